/* checkpoint, inside: manifests, what ranks hold of tensors, shards, folders of steps. */
#ifndef INGOT_CHECKPOINT_INTERNAL_H
#define INGOT_CHECKPOINT_INTERNAL_H

#include <stdatomic.h>

#include "checkpoint/checkpoint.h"
#include "io/io.h"

#define CKPT_MODEL_FILE    "model.safetensors" /* of formats 1 and 2, and of a single rank */
#define CKPT_OPTIM_FILE    "optim.safetensors"
#define CKPT_MANIFEST_FILE "manifest.json"
#define CKPT_FP8_ROWS      "fp8" /* the tensor of delayed fp8's scales, among the optimizer's */

/* ---- manifest.c: what a checkpoint is ---------------------------------------------------- */
enum { CKPT_FORMAT = 3, CKPT_FORMAT_WHOLE_FILES = 2, CKPT_FORMAT_WITHOUT_CHECKSUM = 1 };

typedef char hash_text[17];
void hash_print(uint64_t hash, hash_text out);
/* Reads the member `key`, sixteen hexadecimal digits. */
err hash_read(const json_t *object, const char *name, const char *key, uint64_t *out) MUST_USE;

/* Reads a checkpoint's manifest and checks format, checksum, and that a folder named after a step is that
 * step's. @param doc owned: json_decref. @param format may be NULL. */
err manifest_read(const char *folder, json_t **doc, int64_t *format) MUST_USE;
/* The same of a manifest that was read from elsewhere. @param name stands for it in messages. */
err manifest_check(const json_t *doc, const char *name, int64_t *format) MUST_USE;
/* @return whether the manifest is intact, but has a format that this version does not know or is another
 * step's than the folder is named after. */
bool manifest_is_foreign(const char *folder);
/* Writes the manifest of a folder whose other files are complete.
 * @param tensors, files as shard_write filled them; borrowed. @param chunk see ckpt_index.
 * @param run borrowed; may be NULL. */
err manifest_write(const char *folder, const model_config *c, const ckpt_state *s,
                   const json_t *run, const json_t *tensors, const json_t *files,
                   int64_t chunk) MUST_USE;
/* Formats 1 and 2: compares a file with the size and the checksum that the manifest gives for it. */
err manifest_verify_file(const char *folder, const json_t *doc, const char *name) MUST_USE;
/* @return whether the last step before the checkpoint had a finite loss, as far as is known. */
bool manifest_loss_is_finite(const json_t *doc);

/* ---- extents.c: what ranks hold of a tensor ------------------------------------------------
 * A rank holds a rectangle of a tensor, and of its elements in row-major order those from `from` to
 * `to`. Tensor parallelism makes rectangles, ZeRO and the division of a save among replicas make
 * ranges; any number of mesh axes ends in this one form.
 *
 *     . . . . . .
 *     . # # # . .      at { 1, 1 }, dim { 3, 3 }, from 0 to 7
 *     . # # # . .
 *     . # - - . .      - : of the rectangle, not of the range
 */
typedef struct ckpt_extent {
    int64_t at[ST_MAX_DIM], dim[ST_MAX_DIM];
    int64_t from, to;
} ckpt_extent;
static inline int64_t extent_count(const ckpt_extent *p) { return p->to - p->from; }
/* @return the whole tensor. */
ckpt_extent extent_whole(int ndim, const int64_t *dim);
bool extent_is_whole(int ndim, const int64_t *dim, const ckpt_extent *p);
/* Calls run(ctx, a, b, n) for every run of n elements that both extents hold, where `a` and `b` count from
 * the first element of each range; both ascend from call to call. @param dim of the tensor. */
typedef err (*extent_run)(void *ctx, int64_t a, int64_t b, int64_t n);
err extents_intersect(int ndim, const int64_t *dim, const ckpt_extent *a, const ckpt_extent *b,
                      extent_run run, void *ctx) MUST_USE;

/* ---- index.c, index_read.c: the tensors of a checkpoint, and reading them ---------------------- */
typedef struct ckpt_slice {
    int tensor, file;
    ckpt_extent extent;
    int64_t offset; /* of its first byte in the file */
    uint64_t *hash; /* of each chunk; NULL in formats 1 and 2, whose files have one checksum */
    const uint8_t *bytes; /* formats 1 and 2: mapped; else NULL */
} ckpt_slice;
typedef struct ckpt_tensor {
    const char *name;
    dtype dt;
    int ndim;
    int64_t dim[ST_MAX_DIM], count;
    int first_slice, n_slices;
} ckpt_tensor;
typedef struct ckpt_file_info {
    const char *name;
    char *path; /* owned */
    int64_t bytes, header_bytes;
    uint64_t header_hash;
    int fd; /* -1: not open */
} ckpt_file_info;
typedef struct ckpt_index {
    int64_t format;
    arena *mem;
    ckpt_tensor *tensor; /* [tensors], by name */
    ckpt_slice *slice;   /* [slices], by tensor */
    ckpt_file_info *file;
    int tensors, slices, files;
    int64_t
        chunk; /* bytes under one checksum: a slice's data is divided into chunks of this size */
    st_file *st[2];  /* formats 1 and 2: its files, mapped */
    uint8_t *buffer; /* [chunk]; NULL until one is read */
    int held_slice;  /* whose chunk the buffer holds; -1: none */
    int64_t held_chunk;
    int64_t bytes_read; /* from files, so far */
    pool *readers;      /* who reads what is queued; NULL until then; owned */
    struct queued_chunk *queued;
    struct chunk_run *runs;
    int n_queued, queued_cap, n_runs, runs_cap;
    uint8_t *staging;             /* [readers][chunk]: chunks that are wanted in part */
    _Atomic int64_t first_failed; /* of what is queued: those after it need not be read */
} ckpt_index;
int64_t slice_bytes(const ckpt_index *x, const ckpt_slice *s);
int64_t slice_chunks(const ckpt_index *x, const ckpt_slice *s); /* how many it is divided into */
/* Opens a checkpoint's tensors. In formats 1 and 2 files are not verified. @param out owned. */
err index_open(const char *folder, const json_t *doc, int64_t format, ckpt_index **out) MUST_USE;
void index_close(ckpt_index *x);                                      /* takes NULL */
const ckpt_tensor *index_find(const ckpt_index *x, const char *name); /* NULL: none */
/* Like index_find; a missing tensor, or one of another number of elements, is an error. */
err index_need(const ckpt_index *x, const char *folder, const char *name, int ndim,
               const int64_t *dim, const ckpt_tensor **out) MUST_USE;
/* Reads a part of a tensor as fp32 and verifies the chunks it touches. Of another shape than the tensor's
 * (with as many elements) a part is read where that is the same in row-major order: 1-D states of
 * formats 1 and 2. */
err index_read(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
               const ckpt_extent *want, float *to) MUST_USE;
/* The same for many tensors at once, by several threads: after index_read_queued, and not before, the parts that were
 * queued are where they belong. After an error of index_queue the index is of no further use. */
err index_queue(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
                const ckpt_extent *want, float *to) MUST_USE;
err index_read_queued(ckpt_index *x) MUST_USE;
/* Verifies all bytes of a checkpoint of format 3, or of `shares` shares of them the one numbered `share`. */
err index_verify(ckpt_index *x, int share, int shares) MUST_USE;

/* @return whether a tensor of this name is a parameter's weights, not a state of the training. */
bool tensor_is_weights(const char *name);

/* ---- shard.c: one file of a checkpoint -------------------------------------------------------- */
enum { CKPT_CHUNK = 4 << 20 };
typedef struct shard_piece {
    const char *name;
    int ndim;
    int64_t dim[ST_MAX_DIM]; /* of the tensor */
    ckpt_extent extent;
} shard_piece;
/* Gives elements [first, first + n) of piece i's range. */
typedef struct shard_source {
    err (*get)(void *ctx, int i, int64_t first, int64_t n, float *to);
    void *ctx;
} shard_source;
/* Writes FOLDER/NAME and adds what it holds to `tensors` and `files`, as the manifest lists them.
 * @param chunk a multiple of 4. */
err shard_write(const char *folder, const char *name, const shard_piece *piece, int n,
                shard_source from, int64_t chunk, json_t *tensors, json_t *files) MUST_USE;
/* "model-00002-of-00004.safetensors"; of a single rank without the numbers. */
void shard_name(char *buf, size_t n, const char *kind, int rank, int ranks);

/* ---- holdings.c: what this rank holds of the run's tensors, and what it writes of them -------- */
typedef struct holding {
    int param; /* -1: the rows of fp8 */
    int state; /* -1: the weights */
    char name[96];
    int ndim;
    int64_t dim[2];     /* of the whole tensor */
    ckpt_extent extent; /* what this rank holds; empty: nothing */
    ckpt_extent
        write; /* what it writes of it: each element is written by one of the ranks that hold it */
} holding;
/* All tensors, the weights first. @param o NULL: weights alone. @param out owned (free). @return how many. */
int holdings_list(const model *m, const plan *p, const optimizer *o, holding **out);

/* The address of its elements in the plan; NULL: a state that is quantized. */
const void *holding_data(const model *m, const plan *p, const optimizer *o, const holding *h,
                         dtype *dt);

/* ---- folders.c: the folders of a run's steps ---------------------------------------------------- */
extern const char *const ckpt_root_names[CKPT_KINDS]; /* "checkpoints", "weights" */
#define ROOT_IN(run_dir, kind) PATH_IN(run_dir, ckpt_root_names[kind])
/* Both yield "ROOT/PREFIXstep-00000012SUFFIX": STEP_IN until the end of the block, step_path owned (free). */
#define STEP_IN(root, prefix, step, suffix)                                                        \
    step_path_into((char[IO_PATH_BYTES]){ 0 }, root, prefix, step, suffix)
char *step_path_into(char to[IO_PATH_BYTES], const char *root, const char *prefix, int64_t step,
                     const char *suffix);
char *step_path(const char *root, const char *prefix, int64_t step, const char *suffix);
#define STEP_TEMPORARY ".tmp" /* being written */
#define STEP_REPLACED  ".old" /* while the same step is saved once more */
/* Removes what need not be kept. */
err folders_remove_old(const char *root, const ckpt_keep *keep) MUST_USE;
/* Facts about a checkpoint that retention decides by. */
typedef struct kept_step {
    int64_t step, saves;
    bool finite, kept;
    double held_out; /* NaN: none */
} kept_step;
/* @param doc its manifest; NULL: it cannot be read. */
kept_step kept_step_of(int64_t step, const json_t *doc);
/* Marks those that stay; `k` ascends by step. */
void choose_kept(kept_step *k, int n, const ckpt_keep *keep);
/* @return the step of a folder's name, "step-00000012"; -1: it is not one. */
int64_t step_of_name(const char *name);

/* ---- remote.c: the checkpoints of a run in an object store -------------------------------------- */
#define CKPT_SUPERSEDED_MANIFEST "manifest-superseded.json"
struct store;
typedef struct remote_job {
    struct store *s;
    const char *run_dir, *url;
    const _Atomic bool *cancelled; /* set by another thread: upload nothing more */
} remote_job;
/* Uploads RUN/checkpoints/step-N to URL/checkpoints/step-N (of weights, RUN/weights/...), unless it is there
 * already, and what stands beside checkpoints in the run folder. What the store has of that step stays until the
 * upload is complete. */
err remote_upload(const remote_job *j, ckpt_kind kind, int64_t step, int64_t *bytes) MUST_USE;
/* Removes what need not be kept and older copies of a step, and supersedes checkpoints of later steps than `newest`:
 * the run has gone back behind them. */
err remote_remove_old(struct store *s, const char *url, ckpt_kind kind, const ckpt_keep *keep,
                      int64_t newest) MUST_USE;
/* Writes, and removes, the mark that a run went back to a step. */
err remote_mark_gone_back(const char *run_dir, int64_t step) MUST_USE;
err remote_forget_gone_back(const char *run_dir) MUST_USE;
/* Uploads the step of the mark, if the store lacks it, and supersedes all later checkpoints there. The mark stays.
 * @param step -1: the mark does not exist, and nothing was done. */
err remote_go_back(const remote_job *j, int64_t *step) MUST_USE;

#endif
