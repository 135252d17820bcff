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

#include "data/data.h"
#include "optim/optim.h"
#include "tokenizer/tokenizer.h"

/* ---- safetensors, reading ----------------------------------------------------------------
 * The format, all little-endian:
 *
 *     | u64 n | n bytes of JSON, maybe padded with spaces | data ... |
 *
 * 1. n is at most ST_MAX_HEADER, and the header lies inside the file and begins with '{'.
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
    const char *where; /* path of the file it lies in, for messages */
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
/* The same, converted to fp32. An error when the tensor's type is not a float we know. */
err st_read_f32(const st_tensor *t, int64_t first, int64_t n, float *dst) MUST_USE;

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

/* A whole folder: config.json, generation_config.json, the weights and, where there is a tokenizer,
 * tokenizer.json and tokenizer_config.json. It is written beside `folder` and renamed when complete,
 * so that a failure leaves what was there. A folder that exists is replaced where all it holds are
 * files of a model, and otherwise refused. */
typedef struct hf_export {
    const hf_family *family;
    const model *m;
    dtype dt;
    size_t max_file_bytes;                            /* 0: no limit */
    const tokenizer *tok;                             /* NULL: none */
    const char *tokenizer_config, *generation_config; /* imported files; NULL: none */
    err (*get)(void *ctx, int i, float *values);
    void *ctx;
} hf_export;
err hf_export_folder(const char *folder, const hf_export *x) MUST_USE;

/* ---- a run's checkpoints -----------------------------------------------------------------
 *
 *     RUN/checkpoints/step-00001000/manifest.json       what it is, a checksum of each file and one
 *                                                       of itself
 *                                   model.safetensors   master weights, by parameter name
 *                                   optim.safetensors   NAME/m, NAME/v, ..., and the scales of
 *                                                       delayed fp8; absent after import
 *
 * 1. Tensors are whole and named as the parameter table names them, so any layout can load them.
 * 2. The folder appears under its name complete, or not at all: it is written as .step-N.tmp and
 *    renamed. A step that is saved once more is exchanged, never removed first.
 * 3. The data cursor is the number of windows consumed, the ranges skipped, whether epochs have
 *    offsets, and the seed.
 * 4. Every byte of a checkpoint is under a checksum: a flipped bit is an error, never another run.
 *    Format 1, whose manifests have none of themselves, is still read.
 */
typedef struct ckpt_state {
    int64_t step;      /* steps done */
    int64_t updates;   /* of the optimizer: steps that were not skipped */
    int64_t tokens;    /* seen */
    int64_t windows;   /* consumed */
    data_skips skips;  /* windows jumped over */
    bool epoch_offset; /* as in loader_options; older checkpoints lack it, which means false */
    uint64_t seed;
    bool bytes; /* tokens are bytes of text, so samples can be read */
    loss_scaler scaler;
    noise_scale noise;
    double loss;             /* of the last step; NaN: not finite, or not known */
    int64_t skipped_updates; /* fp16: in a row, up to the last step */
    uint64_t tokenizer;      /* of the data, as tokenizer_hash gives it; 0: not known */
} ckpt_state;

/* Writes a checkpoint and removes the oldest beyond `keep` (0: none), but never the last one after a
 * finite loss. All ranks call it together: rank 0 writes whole tensors, so that a checkpoint loads into
 * any layout.
 * @param o may be NULL: weights alone. @param run what the run was configured with, kept as it is for
 * ckpt_read_manifest; borrowed, may be NULL. */
err ckpt_save(const char *run_dir, const model *m, exec *x, const optimizer *o, const ckpt_state *s,
              const json_t *run, int64_t keep) MUST_USE;
/* Removes or puts right what a killed save left behind. No other process may be saving to this run. */
err ckpt_recover(const char *run_dir) MUST_USE;
/* Finds the newest complete checkpoint. @param path owned (free); NULL when there is none. */
err ckpt_latest(const char *run_dir, char **path) MUST_USE;
/* Finds the newest checkpoint whose files are what its checksums say. Newer ones that are damaged are passed
 * over with a warning; when all are, the newest one's damage is the error. Reads every byte of them.
 * @param path owned (free); NULL when there is none. */
err ckpt_newest_whole(const char *run_dir, char **path) MUST_USE;
/* Renames checkpoints of later steps than `step`, those that ckpt_newest_whole passed over, to
 * damaged-step-N: they are neither found nor counted any more, and not removed. */
err ckpt_set_newer_aside(const char *run_dir, int64_t step) MUST_USE;
/* The same as ckpt_newest_whole of a run folder, or the checkpoint folder itself where that is given; none
 * is an error. @param path owned (free). */
err ckpt_find(const char *run, char **path) MUST_USE;
/* @return a file in a checkpoint's folder or its run's, owned; NULL when there is none. */
char *ckpt_file(const char *checkpoint, const char *name);
/* The same of tokenizer.json. */
char *ckpt_tokenizer_path(const char *checkpoint);
/* What the checkpoint at `path` holds; files are verified by ckpt_load. @param run as ckpt_save got it:
 * owned (json_decref), NULL when there is none; may be NULL itself. */
err ckpt_read_manifest(const char *path, model_config *c, ckpt_state *s, json_t **run) MUST_USE;
/* Loads weights (and optimizer state, unless o is NULL or the checkpoint has none) after
 * plan_commit, on all ranks together. A model of other shapes is an error. */
err ckpt_load(const char *path, model *m, exec *x, optimizer *o) MUST_USE;
/* The same of a checkpoint that ckpt_newest_whole found: checksums of its tensors are not compared again. */
err ckpt_load_verified(const char *path, model *m, exec *x, optimizer *o) MUST_USE;

/* An error when `t`, which was read from `path`, is not the tokenizer that the state was trained with. */
err ckpt_check_tokenizer(const ckpt_state *s, const tokenizer *t, const char *path) MUST_USE;

/* A model's facts as JSON and back. A fact that an older checkpoint lacks has its default; one that
 * this version does not know is an error. */
json_t *model_to_json(const model_config *c);
err model_from_json(const json_t *object, const char *name, model_config *c) MUST_USE;

#endif
