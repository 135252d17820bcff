/* checkpoint: what is on disk between runs. Safetensors files, models exchanged with the Hugging
 * Face world, and the saved states of a run. Depends on optim, data, io and below.
 *
 * Given `float *table`:
 *
 *     st_file *f;
 *     TRY(st_open("gpt2/", &f));                      // one file, or a folder of several
 *     const st_tensor *w;
 *     TRY(st_need(f, "wte.weight", 2, (int64_t[]){ 50257, 768 }, &w));
 *     TRY(st_read_f32(w, 0, w->count, table));        // whatever float type it was stored in
 *     st_close(f);
 */
#ifndef INGOT_CHECKPOINT_H
#define INGOT_CHECKPOINT_H

#include <jansson.h>

#include "shards/data.h"
#include "optim/optim.h"
#include "tokenizer/tokenizer.h"

/* ---- safetensors, reading ----------------------------------------------------------------
 * The format, all little-endian:
 *
 *     | u64 n | n bytes of JSON, maybe padded with spaces | data ... |
 *
 * 1. n is at most ST_MAX_HEADER, and the header is inside the file and begins with '{'.
 * 2. The JSON is one object: name -> { "dtype": "F32", "shape": [2, 3], "data_offsets": [a, b] },
 *    and optionally "__metadata__": text -> text. Names are unique.
 * 3. [a, b) counts from the first byte after the header, and b - a is what dtype and shape need.
 * 4. The ranges cover the data exactly: no overlap, no hole, nothing after the last.
 *
 * st_open checks all of it, so that what it returns can be read without further checks. A file
 * must not be changed while it is open: it is mapped, not copied. */
enum { ST_MAX_DIM = 8, ST_MAX_HEADER = 100 << 20 };

/* The files of a model folder: all in one, or an index that names several. */
#define ST_SINGLE_FILE "model.safetensors"
#define ST_INDEX_FILE  "model.safetensors.index.json"

typedef struct st_tensor {
    const char *name; /* borrowed from the file, as all here */
    const char *type; /* as the file has it: "BF16" */
    dtype dt;         /* DT_NONE for types of the format that we do not compute with */
    int ndim;
    int64_t dim[ST_MAX_DIM]; /* 0 dims: a scalar, count 1 */
    int64_t count;
    size_t bytes;
    const void *data;  /* may be unaligned: copy with st_read or st_read_f32 */
    const char *where; /* path of its file, for messages */
} st_tensor;

typedef struct st_file st_file; /* one file, or all files of a folder */

/* Opens and checks a file; a folder holding model.safetensors or model.safetensors.index.json; or
 * an index file. In a folder of several files the index decides which tensors there are.
 * @param out owned: st_close. */
err st_open(const char *path, st_file **out) MUST_USE;
void st_close(st_file *f); /* takes NULL */

int st_count(const st_file *f);
/* @return the i-th tensor in order of names. */
const st_tensor *st_at(const st_file *f, int i);
/* @return NULL when there is none of that name. */
const st_tensor *st_find(const st_file *f, const char *name);
/* Like st_find, but a missing tensor, or one of another shape, is an error. */
err st_need(const st_file *f, const char *name, int ndim, const int64_t *dim,
            const st_tensor **out) MUST_USE;
/* @return the text under `key` in the (first) file's __metadata__, or NULL. */
const char *st_metadata(const st_file *f, const char *key);

/* Copies n elements from `first` on, in row-major order, as they are stored. */
void st_read(const st_tensor *t, int64_t first, int64_t n, void *dst);
/* Likewise, converted to fp32. An error when the tensor's type is not a known float. */
err st_read_f32(const st_tensor *t, int64_t first, int64_t n, float *dst) MUST_USE;
/* Releases the memory of a tensor's pages: later reads are from the file. */
void st_release(const st_tensor *t);

/* ---- safetensors, writing ----------------------------------------------------------------
 * The header comes first, so shapes are given before data. A callback then emits the data, one
 * tensor at a time, so that they need not be in memory together. Files appear complete
 * under their name or not at all. */
typedef struct st_spec {
    const char *name;
    dtype dt;
    int ndim;
    int64_t dim[ST_MAX_DIM];
} st_spec;

typedef struct st_sink st_sink;
/* Appends bytes to the tensor being written. */
err st_emit(st_sink *s, const void *bytes, size_t n) MUST_USE;

/* Tensors are asked for once each, in the order they take in the file: widest element type first,
 * so that every one is aligned, and otherwise as given. */
typedef struct st_source {
    /* Emits all bytes of specs[i], in as many pieces as it likes. */
    err (*fill)(void *ctx, int i, st_sink *s);
    void *ctx;
} st_source;

typedef struct st_meta {
    const char *key, *value;
} st_meta;

/* Writes one file. `meta` (n_meta pairs) goes to __metadata__ beside "format": "pt", which readers
 * from the PyTorch world ask for. */
err st_write(const char *path, const st_spec *specs, int n, const st_meta *meta, int n_meta,
             st_source from) MUST_USE;

/* Where the parts of a written file are. */
typedef struct st_positions {
    int64_t *offset; /* [n], the caller's: first byte of each tensor, from the file's beginning */
    int64_t header_bytes; /* what comes before the data */
    uint64_t header_hash; /* hash_bytes of the header */
    int64_t bytes;        /* of the file */
} st_positions;
/* Likewise, and reports the offsets of everything written. */
err st_write_at(const char *path, const st_spec *specs, int n, const st_meta *meta, int n_meta,
                st_source from, st_positions *out) MUST_USE;

/* Writes model.safetensors into an existing folder, or, when the data exceed `max_file_bytes`
 * (0: no limit), model-0000i-of-0000k.safetensors with the index that ties them. Tensors keep their
 * order and are never split; one larger than the limit has a file to itself. */
err st_write_folder(const char *folder, const st_spec *specs, int n, size_t max_file_bytes,
                    st_source from) MUST_USE;

/* ---- Hugging Face models -----------------------------------------------------------------
 * A folder holds config.json, whose "model_type" names a family, the weights, and the tokenizer. Each
 * family has its own keys for the facts of a model, and its own names and layouts for parameters:
 * matrices stored transposed, q, k and v in one tensor, or alternating by head. Both are tables
 * (hf_families.c). */
typedef struct hf_family hf_family;
/* @param model_type as config.json has it: "llama". @return NULL when it is not one of ours. */
const hf_family *hf_family_of(const char *model_type);
/* @return the i-th family; NULL past the last. */
const hf_family *hf_family_at(int i);
const char *hf_family_type(const hf_family *family); /* its model_type */

/* Reads FOLDER/config.json. Dropout, a choice of the training, is left off. An error when the file
 * asks for something that our models do not have.
 * @param unknown receives the keys that we do not know, separated by commas; NULL: a warning lists
 * them. */
err hf_import_config(const char *folder, model_config *c, const hf_family **family,
                     str *unknown) MUST_USE;
/* Finds the family that has models of these facts: the first that does, or `wanted` (a model_type)
 * where that is not NULL. */
err hf_family_for(const model_config *c, const char *wanted, const hf_family **family) MUST_USE;

/* Ids of the tokens that begin and end a document; -1: none. */
typedef struct hf_tokens {
    int64_t bos, eos;
    const json_t *
        others; /* further members of config.json that name tokens, such as a list of ends; NULL: none */
} hf_tokens;
/* Writes FOLDER/config.json. An error names the first fact that the family does not express.
 * @param dt of the weights: DT_F32, DT_BF16 or DT_F16. */
err hf_export_config(const char *folder, const hf_family *family, const model_config *c, dtype dt,
                     hf_tokens tokens) MUST_USE;

/* Opens the weights of a folder. Pickled ones are refused with the way to convert them. */
err hf_open_weights(const char *folder, st_file **out) MUST_USE;
/* Reads every parameter of the model from an open file and passes it, whole and in fp32, to
 * put(ctx, i, values), i as in model_param_at. An error when one is missing or has another shape,
 * or when the file holds weights that this model does not have. */
err hf_import_params(const hf_family *family, const st_file *f, const model *m,
                     err (*put)(void *ctx, int i, const float *values), void *ctx) MUST_USE;

/* Reads all weights of FOLDER into a model, after plan_commit. An error also where one is not finite. */
err hf_load(const hf_family *family, const char *folder, model *m, exec *x) MUST_USE;

/* Writes them to a folder, as st_write_folder does, in element type `dt` and under the family's
 * names; biases that the family's models have and this one lacks are zeros. An error when a weight
 * exceeds the type. get(ctx, i, values) gives parameter i, whole. */
err hf_export_params(const hf_family *family, const char *folder, const model *m, dtype dt,
                     size_t max_file_bytes, err (*get)(void *ctx, int i, float *values),
                     void *ctx) MUST_USE;
/* The same with the parameters' gradients, in fp32: a weight that files hold less 1 has a gradient all the same. */
err hf_export_gradients(const hf_family *family, const char *folder, const model *m,
                        err (*get)(void *ctx, int i, float *values), void *ctx) MUST_USE;

/* A whole folder: config.json, generation_config.json, the weights and, where there is a tokenizer,
 * tokenizer.json and tokenizer_config.json. It is written beside `folder` and renamed when complete,
 * so that a failure leaves what was there. A folder that exists is replaced where all it holds are
 * files of a model, and otherwise refused. */
typedef struct hf_export {
    const hf_family *family;
    const model *m;
    dtype dt;
    size_t max_file_bytes; /* 0: no limit */
    const tokenizer *tok;  /* NULL: none */
    const char *from;      /* checkpoint beside which the imported files are; NULL: none */
    err (*get)(void *ctx, int i, float *values);
    void *ctx;
} hf_export;
err hf_export_folder(const char *folder, const hf_export *x) MUST_USE;

/* Writes the model as a file of llama.cpp, tokenizer included. */
typedef enum { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 } gguf_type;
bool gguf_type_from_name(const char *name, gguf_type *out); /* "fp16"; false: none of them */
err gguf_export_file(const char *path, const hf_export *x, gguf_type type) MUST_USE;
/* As hf_family_for, among families that llama.cpp reads. */
err gguf_family_for(const model_config *c, const char *wanted, const hf_family **family) MUST_USE;

/* Files of an imported folder that a run keeps for its exports: how text is generated, chat template, names of tokens.
 * The config.json of the folder is called otherwise in a run, which is not such a folder. */
#define HF_TOKENIZER_CONFIG  "tokenizer_config.json"
#define HF_GENERATION_CONFIG "generation_config.json"
typedef struct hf_kept_file {
    const char *theirs, *ours;
} hf_kept_file;
const hf_kept_file *hf_kept_file_at(int i); /* NULL past the end */
/* Copies those that are there. @param from a Hugging Face folder, a run or a checkpoint. */
err hf_keep_files(const char *from, const char *run_dir) MUST_USE;
/* Notes in these files which token ends the documents of a run, unless they name it already.
 * @param tok may be NULL @param id -1: not known */
err hf_name_end(const char *run_dir, const tokenizer *tok, int64_t id) MUST_USE;

/* ---- a run's checkpoints -----------------------------------------------------------------
 *
 *     RUN/checkpoints/step-00001000/manifest.json                        what it is
 *                                   model-00001-of-00004.safetensors     weights that rank 0 wrote
 *                                   optim-00001-of-00004.safetensors     optimizer state that it wrote
 *                                   ...
 *     RUN/weights/step-00001000/    the same without optimizer state
 *
 * Format 3. Of a single rank the files are called model.safetensors and optim.safetensors.
 *
 *  1. A folder appears under its name complete, or not at all: it is written as .step-N.tmp, every file
 *     in it is synced, the manifest comes last, and then it is renamed. A step that is saved once more is
 *     exchanged, never removed first. A folder without a valid manifest is not a checkpoint.
 *  2. The manifest lists tensors by name, as the parameter table has them, with dtype and the shape of
 *     the whole model: weights as NAME, states as NAME/m, NAME/v, ..., the scales of delayed fp8 as fp8.
 *  3. For each file it lists slices: a tensor, the rectangle of it that the writing rank held ("at",
 *     "shape"), the range of the rectangle's elements in row-major order, and the offset in the file.
 *     Without these three members a slice is the whole tensor.
 *  4. The slices of a tensor hold each of its elements once, whatever the layout that wrote it: nothing
 *     in a checkpoint depends on the number of ranks, so it loads into any layout.
 *  5. A slice's data is divided into chunks of "chunk_bytes", each under a checksum (xxHash64), so that a
 *     rank reads and verifies only the chunks that hold something of its own part.
 *  6. The bytes of a file before its first slice are its safetensors header, under a checksum too, and
 *     the manifest is under one of its own. So every byte is: a flipped bit is an error, or in a byte that
 *     a reader does not need; never another run.
 *  7. "state" has what a run needs besides tensors: the step, the data cursor (windows consumed, ranges
 *     skipped, whether epochs have offsets), the seed, from which and the step every random number
 *     follows, the loss scaler, losses. "model" has the model's facts, "run" the options, the schedule and
 *     the data it was trained with, "ingot" and "revision" the version that wrote it.
 *
 * Why no path loses a completed save, that is, one whose folder has its name. Only these take a checkpoint away:
 *
 *  1. Retention, after a newer one is complete and synced. It leaves the newest `latest`, the newest after a finite loss,
 *     and what cannot be read at the moment. It takes the name away first, by a rename, so that no checkpoint ever
 *     lacks some of its files.
 *  2. The same step, saved again or downloaded. Old and new are exchanged in one rename, the folder is synced, and the
 *     old one is removed then. Where the file system cannot exchange, the old one is called .step-N.old until the new
 *     one has its name, and ckpt_recover renames it back where that did not happen.
 *  3. Going back renames to superseded-step-N, which only a later superseded checkpoint of that step replaces. Damaged
 *     ones are renamed to damaged-step-N.
 *  4. --fresh moves the earlier run to RUN/.previous, which is removed after the first step of the new run.
 *  5. Uploads never change anything on disk. In the store, a folder with a manifest is never written to: a step that is
 *     uploaded again goes to a folder of its own, and the older copy is removed when that has its manifest. Older steps
 *     are removed only after a newer manifest is there, and later ones superseded, when the run goes back, only after the
 *     one it went back to is there.
 *
 * A save that fails, or is killed, touches .step-N.tmp alone. A run whose folder is out of reach writes nothing.
 *
 * Format 2 (model.safetensors and optim.safetensors of whole tensors, one checksum per file) and format 1
 * (whose manifests have no checksum) are still read. */
typedef struct ckpt_state {
    int64_t step;        /* steps done */
    int64_t updates;     /* of the optimizer: steps that were not skipped */
    int64_t tokens;      /* seen */
    int64_t windows;     /* consumed */
    data_skips skips;    /* windows jumped over */
    data_skips replaced; /* windows read from the clean source instead */
    bool epoch_offset;   /* as in loader_options; older checkpoints lack it, which means false */
    uint64_t seed;
    bool bytes; /* tokens are bytes of text, so samples can be read */
    loss_scaler scaler;
    noise_scale noise;
    double loss;             /* of the last step; NaN: not finite, or not known */
    int64_t skipped_updates; /* fp16: in a row, up to the last step */
    uint64_t tokenizer;      /* of the data, as tokenizer_hash gives it; 0: not known */
    bool prefixed;           /* documents begin with the tokenizer's prefix, such as BOS */
    int64_t saves;           /* full checkpoints of this run so far, with this one */
    double seconds;          /* of its training steps */
    int64_t planned_steps;   /* of a run whose length is given in time; 0: not planned yet */
    double planned_seconds;  /* ... its time when it was planned */
    double position;         /* ... of its schedule, in planned steps */
    double held_out_loss;    /* at the last validation; NaN or 0: none */
} ckpt_state;

/* Full checkpoints are what a run continues from; those of weights alone are for everything else. */
typedef enum { CKPT_FULL, CKPT_WEIGHTS, CKPT_KINDS } ckpt_kind;

/* Selects the checkpoints that are kept when another is complete. The last one after a finite loss always is. */
typedef struct ckpt_keep {
    int64_t latest; /* the newest n; 0: all */
    int64_t every;  /* ... and each n-th that was saved; 0: none */
    int64_t best;   /* ... and the n with the lowest held-out loss */
} ckpt_keep;

/* ---- saving ---------------------------------------------------------------------------------
 * A saver writes checkpoints beside the training. Each rank copies what it will write (through pinned
 * memory on a device, beside the next step's forward and backward pass) and a thread of it writes its
 * files; the last step, the manifest and the rename, is that of rank 0. All ranks call these together.
 *
 * Given `const char *run_dir`, `model *m`, `exec x`, `optimizer *o`, `ckpt_request request` and `ckpt_report
 * report`:
 *
 *     ckpt_saver *v = ckpt_saver_new(run_dir, m, &x, o);
 *     TRY(ckpt_saver_begin(v, &request));              // after a step
 *     TRY(ckpt_saver_poll(v, &report));                // once in each of the following: moves it on
 *     ckpt_saver_before_update(v);                     // before their updates
 *     TRY(ckpt_saver_wait(v, &report));                // at the end
 *     ckpt_saver_free(v);
 *
 * An error of one of these calls is that of the save, which is then dropped: earlier checkpoints stay, and the
 * saver is ready for another. */
typedef struct ckpt_saver ckpt_saver;
typedef struct ckpt_request {
    ckpt_kind kind;
    const ckpt_state *state; /* copied */
    const json_t
        *run; /* what the run was configured with, kept for ckpt_read_manifest; may be NULL */
    ckpt_keep keep;
    bool wait; /* write in the caller's thread, without a copy */
} ckpt_request;
/* The outcome of a save. */
typedef struct ckpt_report {
    bool completed; /* since the last call */
    ckpt_kind kind;
    int64_t step, bytes; /* bytes: what this rank wrote */
    double seconds;      /* from its begin to its end */
} ckpt_report;
/* All pointers are borrowed. @param o NULL: weights alone. */
ckpt_saver *ckpt_saver_new(const char *run_dir, const model *m, exec *x, const optimizer *o);
/* Waits for the thread. A save in flight is still completed where every rank's files are. Takes NULL. */
void ckpt_saver_free(ckpt_saver *v);
bool ckpt_saver_is_busy(const ckpt_saver *v);
/* Takes a copy and begins to write it. The saver must not be busy. */
err ckpt_saver_begin(ckpt_saver *v, const ckpt_request *r) MUST_USE;
/* Never blocks longer than the slowest rank needs to get here. @param out may be NULL. */
err ckpt_saver_poll(ckpt_saver *v, ckpt_report *out) MUST_USE;
/* Waits until the save in flight is complete. */
err ckpt_saver_wait(ckpt_saver *v, ckpt_report *out) MUST_USE;
/* Makes the update of the step that is queued next wait until the copy is complete. */
void ckpt_saver_before_update(ckpt_saver *v);

/* Begins and waits. @param o may be NULL: weights alone. @param run, keep may be NULL. */
err ckpt_save(const char *run_dir, const model *m, exec *x, const optimizer *o, const ckpt_state *s,
              const json_t *run, const ckpt_keep *keep) MUST_USE;
/* Writes the weights of a Hugging Face folder as the checkpoint of a run's state->step, without more in memory than the largest tensor. */
err hf_import_run(const hf_family *family, const char *folder, const model *m,
                  const ckpt_state *state, const char *run_dir) MUST_USE;

/* ---- a run's checkpoints in an object store -------------------------------------------------
 * URL/checkpoints/step-N has the files of RUN/checkpoints/step-N, URL/weights/step-N those of weights alone, and
 * URL/ the config and the tokenizer, so that the objects below URL are a run folder. The manifest of a checkpoint is put
 * last and deleted first: as on disk, a folder without one is not a checkpoint. A step that is saved again with other
 * content is step-N.1, step-N.2, ...; the last one counts, and the one before it is removed when that is complete. URLs
 * of steps need not have that number.
 *
 * An uploader has a thread that copies completed saves there while training continues. One upload is under way,
 * one of each kind waits; a newer save takes the place of the one that waits. An upload that fails is reported and tried
 * again, after up to 10 seconds at first, until it succeeds or a newer save replaces it. */
typedef struct ckpt_uploader ckpt_uploader;
/* An error when the store cannot be reached, or refuses. @param out owned: ckpt_uploader_free. */
err ckpt_uploader_open(const char *run_dir, const char *url, ckpt_uploader **out) MUST_USE;
/* Queues the upload of this step's checkpoint, which is complete on disk. @param keep in the store. */
void ckpt_uploader_add(ckpt_uploader *u, ckpt_kind kind, int64_t step, const ckpt_keep *keep);
/* The run goes back to an earlier step: before it sets later checkpoints aside, it leaves a mark on disk; after
 * that, the store gets that step, if it lacks it, and supersedes later ones. A process that is killed between the two,
 * or cannot reach the store, leaves the mark, and whoever continues the run from its folder or uploads again does that
 * first. What is being uploaded ends after its part. ckpt_uploader_go_back waits for the store, 30 seconds at most; a
 * failure is one of ckpt_uploader_poll, and tried again. */
err ckpt_uploader_mark_back(ckpt_uploader *u, int64_t step) MUST_USE;
void ckpt_uploader_go_back(ckpt_uploader *u);
typedef struct ckpt_upload {
    ckpt_kind kind;
    int64_t step, bytes;
    double seconds;
} ckpt_upload;
/* @return whether an upload was completed since the last call. @param failed owned: the last failure since
 * then; OK: none. */
bool ckpt_uploader_poll(ckpt_uploader *u, ckpt_upload *out, err *failed);
/* Waits for what is under way and what waits; what fails now is not tried again, and a signal after the call ends it.
 * @return an error when the last save is not in the store, with the command that uploads it. */
err ckpt_uploader_finish(ckpt_uploader *u) MUST_USE;
/* Ends after the file that is being uploaded; takes NULL. */
void ckpt_uploader_free(ckpt_uploader *u);

/* Uploads the newest checkpoint of a kind that a run folder has, unless the store has it. @param out step -1: the folder
 * has none; bytes 0: it is there already. */
err ckpt_upload_newest(const char *run_dir, const char *url, ckpt_kind kind,
                       ckpt_upload *out) MUST_USE;

/* Lists the steps of the complete full checkpoints below a URL, ascending. @param steps owned (free). */
err ckpt_remote_list(const char *url, int64_t **steps, int *n) MUST_USE;
/* Downloads the newest full checkpoint below a URL that is later than `after` into run_dir/checkpoints, with
 * the tokenizer, and verifies it. One that is damaged is passed over with a warning. @param url of a run, or of
 * one checkpoint. @param step -1: there was none to download. */
err ckpt_download(const char *url, const char *run_dir, int64_t after, int64_t *step) MUST_USE;
/* Downloads the manifests of all checkpoints below a URL as the folders of a run that has no tensors: for
 * `ingot ckpt ls`. */
err ckpt_download_manifests(const char *url, const char *run_dir) MUST_USE;

/* ---- finding -------------------------------------------------------------------------------- */
/* Removes or repairs what a killed save left behind. No other process may be saving to this run. */
err ckpt_recover(const char *run_dir) MUST_USE;
/* Steps of the checkpoints of a run, ascending; also of one that lacks its manifest, which nothing loads.
 * @param steps owned (free). */
err ckpt_list(const char *run_dir, ckpt_kind kind, int64_t **steps, int *n) MUST_USE;
/* @return the folder of a step, owned (free). */
char *ckpt_path(const char *run_dir, ckpt_kind kind, int64_t step);
char *ckpt_root(const char *run_dir, ckpt_kind kind); /* the folder of this kind, owned (free) */
/* The folder inside a run's that keeps the run which `train --fresh` replaces, until the new one has taken a step. */
#define CKPT_PREVIOUS ".previous"
/* @return the error that a run has no checkpoint. Names where its earlier run is, if it has one.
 * @param remedy where it has none */
err ckpt_missing(const char *run_dir, const char *remedy) MUST_USE;
/* Finds the newest complete checkpoint that a run could continue from. @param path owned (free); NULL when
 * there is none. */
err ckpt_latest(const char *run_dir, char **path) MUST_USE;
/* Finds the newest checkpoint whose files match its checksums. Newer ones that are damaged are passed
 * over with a warning; when all are, the newest one's damage is the error. Reads every byte of them: each
 * rank of `c` a share, all together. @param c NULL: this process alone. @param path owned (free); NULL
 * when there is none. */
err ckpt_newest_whole(const char *run_dir, ckpt_kind kind, comm *c, char **path) MUST_USE;
/* Renames checkpoints of later steps than `step`: those that ckpt_newest_whole passed over to damaged-step-N,
 * those that a run went back from, and weights alone, to superseded-step-N. They are neither found nor counted
 * any more, and not removed. */
typedef enum { CKPT_DAMAGED, CKPT_SUPERSEDED } ckpt_fault;
err ckpt_supersede_newer(const char *run_dir, int64_t step, ckpt_fault why) MUST_USE;
/* The newest whole checkpoint of a run folder, with or without optimizer state, or the checkpoint folder
 * itself where that is given; none is an error. @param path owned (free). */
err ckpt_find(const char *run, char **path) MUST_USE;
/* @return a file in a checkpoint's folder or its run's, owned; NULL when there is none. */
char *ckpt_file(const char *checkpoint, const char *name);
/* Likewise, for tokenizer.json. */
char *ckpt_tokenizer_path(const char *checkpoint);

/* ---- reading -------------------------------------------------------------------------------- */
/* Opens the checkpoint at `path`; files are verified as they are read. @param run as ckpt_save got it:
 * owned (json_decref), NULL when there is none; may be NULL itself. */
err ckpt_read_manifest(const char *path, model_config *c, ckpt_state *s, json_t **run) MUST_USE;
/* Loads weights (and optimizer state, unless o is NULL or the checkpoint has none) after
 * plan_commit, on all ranks together. Each reads and verifies the chunks that hold something of its own
 * part. A model of other shapes is an error. */
err ckpt_load(const char *path, model *m, exec *x, optimizer *o) MUST_USE;

/* Hashes the weights and optimizer states that this rank holds, quantized ones apart, of the parameters that ranks
 * along these axes hold copies of (model_param_same). Ranks with equal `held` hold the same elements, and must have
 * equal `bytes`. */
err ckpt_hash_held(const model *m, exec *x, const optimizer *o, axis_set same, uint64_t *held,
                   uint64_t *bytes) MUST_USE;

/* Tensor by tensor, without a model. */
typedef struct ckpt_reader ckpt_reader;
err ckpt_open(const char *path, ckpt_reader **out) MUST_USE;
void ckpt_close(ckpt_reader *r); /* takes NULL */
typedef struct ckpt_tensor_info {
    const char *name; /* borrowed */
    dtype dt;         /* as it is stored */
    int ndim;
    int64_t dim[ST_MAX_DIM], count;
} ckpt_tensor_info;
int ckpt_tensors(const ckpt_reader *r);
ckpt_tensor_info ckpt_tensor_at(const ckpt_reader *r, int i); /* in order of names */
int ckpt_find_tensor(const ckpt_reader *r, const char *name); /* -1: none */
/* Reads elements [first, first + n) of a tensor, in row-major order, as fp32. */
err ckpt_read(ckpt_reader *r, int i, int64_t first, int64_t n, float *to) MUST_USE;
int64_t ckpt_bytes_read(const ckpt_reader *r); /* from files so far */

/* Compares all bytes with their checksums, or of `shares` shares of them the one numbered `share`.
 * @param size may be NULL. */
typedef struct ckpt_size {
    int64_t bytes;
    int files, tensors;
} ckpt_size;
err ckpt_verify(const char *path, int share, int shares, ckpt_size *size) MUST_USE;

/* Facts that a manifest states about its checkpoint, without reading tensors. */
typedef struct ckpt_info {
    int64_t format, step, bytes;
    int files, tensors;
    bool has_states;                /* else weights alone */
    char version[32], revision[64]; /* of the program that wrote it; "": not known */
} ckpt_info;
err ckpt_describe(const char *path, ckpt_info *out) MUST_USE;

/* Writes a copy of a checkpoint as a new folder `to`, its tensors divided over `files` files (and as many of
 * optimizer state), one tensor at a time. */
err ckpt_reshard(const char *path, const char *to, int files, bool weights_only) MUST_USE;

/* An error when `t`, which was read from `path`, is not the tokenizer that the state was trained with. */
err ckpt_check_tokenizer(const ckpt_state *s, const tokenizer *t, const char *path) MUST_USE;
/* Opens a checkpoint's tokenizer, checked, and without a prefix where documents had none. */
err ckpt_open_tokenizer(const ckpt_state *s, const char *path, tokenizer **out) MUST_USE;

/* A model's facts as JSON and back. A fact that an older checkpoint lacks has its default; one that
 * this version does not know is an error. */
json_t *model_to_json(const model_config *c);
json_t *model_list_to_json(const fact_list *list);
/* @return false: it is not a list of numbers that the fact may have */
bool model_list_from_json(const model_fact *f, const json_t *v, fact_list *out);
err model_from_json(const json_t *object, const char *name, model_config *c) MUST_USE;

#endif
