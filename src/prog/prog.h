/* prog: programs. A model's forward pass is called once, at start-up, and *records* a list of ops
 * with static shapes; the backward list is derived from it; everything else is a pass over those
 * lists. Depends on ops and comm.
 *
 *     prog *p = prog_new("block", PROG_TRAIN, &mesh, &params);
 *     stream s = prog_stream_in(p, N, D, DT_F32, DT_BF16, placement);  // residual, delta
 *     norm_out n = rec_norm(p, s, prog_use(p, "norm1.w", s.residual), VAL_NONE, 1e-5f);
 *     val h = rec_comm(p, n.y, AX_TP, PLACE_R);
 *     val d = rec_linear(p, h, prog_use(p, "attn.o", h), VAL_NONE);
 *     prog_stream_out(p, (stream){ n.r, rec_comm(p, d, AX_TP, PLACE_I) });
 *     TRY(prog_finish(p));         // derives backward; a missing collective is an error, with place
 *
 * Values are in single-assignment form: an op never overwrites what another made, and only the
 * memory pass (memory.c) lets two values share bytes. So a gradient that two inputs share, as at a
 * residual sum, is one value with two readers.
 *
 * A program is a template. A *chain* runs first -> block x layers -> last; each use of a program
 * in it is an instance with its own table of addresses, made once when the plan is committed.
 */
#ifndef INGOT_PROG_H
#define INGOT_PROG_H

#include "comm/comm.h"
#include "ops/ops.h"

typedef int val;
#define VAL_NONE (-1)

typedef enum { PROG_TRAIN, PROG_EVAL, PROG_DECODE } prog_mode;

/* ---- parameters as programs see them -----------------------------------------------------
 * Parameters live in buckets: flat buffers of one element type, laid out by bucket_layout. With
 * ZeRO-3 a bucket is stored as S(0) over dp, in equal slices aligned to 256 elements, and gathered
 * whole when used.
 *
 *     bucket  |<- sharded over tp ->|<-- the same on all tp ranks -->| padding |
 *               qkv | o | gate_up...   norm1 | norm2 | biases
 *     dp slices |--------- 0 ---------|--------- 1 ---------|                    (ZeRO-3)
 */
enum { PARAM_ALIGN = 256, PARAM_NAME = 48 };

typedef struct prog_param {
    char name[PARAM_NAME]; /* within the program: "attn.qkv" */
    int ndim;
    int64_t dim[2]; /* of this tp rank */
    place tp;       /* I, S(0) or S(1) */
    int bucket;     /* index into param_set.bucket */
    int64_t offset; /* in elements, set by bucket_layout */
} prog_param;

typedef struct prog_bucket {
    const char *name;
    dtype dt;        /* of the copy that programs read */
    bool sharded;    /* ZeRO-3: stored S(0) over dp */
    bool tied;       /* two programs write its gradient */
    int64_t count;   /* elements, padded; of one tp rank, whole over dp */
    int64_t tp_same; /* from here on parameters are the same on every tp rank */
} prog_bucket;

typedef struct param_set {
    const prog_param *param;
    int params;
    const prog_bucket *bucket;
    int buckets;
} param_set;

/* Assigns offsets and sizes: tp-sharded parameters first, each aligned, the end padded to equal
 * aligned slices for `dp` ranks. */
void bucket_layout(prog_param *param, int params, prog_bucket *bucket, int buckets, int dp);
/* Elements of the part this rank stores. */
int64_t bucket_stored(const prog_bucket *b, const mesh *m);

/* ---- values ------------------------------------------------------------------------------ */
typedef enum {
    VC_TEMP,     /* lives inside one list */
    VC_SAVED,    /* made forward, read backward, once per instance in flight */
    VC_CUT,      /* the block's summed input: all that recompute needs to start again */
    VC_PARAM,    /* a bucket (or a parameter in it), as stored */
    VC_GRAD,     /* its fp32 gradient */
    VC_INPUT,    /* bound by name: tokens, positions, a cache */
    VC_BOUNDARY, /* passed between instances */
    VC_ALIAS     /* bytes of another value */
} val_class;

typedef struct prog_val {
    const char *name; /* NULL for most */
    val_class cls;
    dtype dt;
    int ndim;
    int64_t dim[TENSOR_MAX_DIM]; /* local */
    placement pl;
    val base; /* VC_ALIAS: whose bytes, at offset bytes */
    size_t offset;
    int param, bucket; /* VC_PARAM, VC_GRAD and their aliases; else -1 */
    int producer;      /* op of the forward list, -1: none */
    val grad;          /* while backward is derived */
    bool needs_grad;
    bool per_layer; /* VC_INPUT: one for each layer, as a cache */
    size_t at;      /* memory plan: offset in the temp region or in an instance's saved slot */
} prog_val;

/* When an op of a list runs, by microbatch. */
typedef enum { WHEN_ALWAYS, WHEN_FIRST, WHEN_LAST } op_when;
/* How "+=" outputs behave. */
typedef enum {
    ACC_STORE, /* overwrite */
    ACC_MICRO, /* overwrite in a step's first microbatch, add in later ones */
    ACC_ADD    /* add */
} op_acc;
typedef enum { COMM_BOTH, COMM_START, COMM_WAIT } comm_phase;

typedef struct prog_op {
    op_code op;
    val in[OP_MAX_IN], out[OP_MAX_OUT];
    op_attr attr;
    op_when when;
    op_acc acc;
    comm_phase phase;
    int pair;   /* COMM_WAIT: index of its START */
    bool once;  /* LINEAR: the bias is added by tp coordinate 0 alone, the sum being partial */
    bool saves; /* forward: backward reads something that follows from it */
    const char *file;
    int line;
} prog_op;

typedef struct op_list {
    prog_op *op;
    int n, cap;
} op_list;

typedef struct prog {
    const char *name;
    prog_mode mode;
    mesh m;
    param_set set;
    bool selective;  /* recompute cheap ops in backward instead of saving their results */
    bool split_comm; /* START and WAIT apart */
    int fp8_sites;   /* linear layers that prog_fp8 may mark, numbered from 0; 0: none */
    dtype dt;        /* what the module being recorded computes in */
    prog_val *val;
    int vals, val_cap;
    op_list fwd, bwd;
    op_list *emit; /* the list that recording adds to */
    bool terminal; /* ends in the loss: backward follows in the same list */
    val res_in, delta_in, res_out, delta_out; /* the stream, VAL_NONE where there is none */
    val cut;                                  /* its sum, from which recompute can start */
    val grad_in, grad_out;                    /* of the stream, backward */
    val loss;                                 /* per token; in DECODE the logits */
    size_t temp_bytes, saved_bytes;           /* by the memory pass */
    val *bucket_full, *bucket_grad; /* [buckets] what parameters are read from, gradients go to */
    uint8_t *param_written;         /* [params] who wrote its gradient so far */
    const char *file;               /* of the record call under way */
    int line;
    err error; /* the first, kept until prog_finish */
} prog;

prog *prog_new(const char *name, prog_mode mode, const mesh *m, const param_set *set);
void prog_free(prog *p); /* takes NULL */
/* Tells that an earlier program of the backward order wrote this parameter's gradient (a tied
 * table), so this one must add. */
void prog_param_shared(prog *p, const char *name);
/* Derives backward (TRAIN), recomputes, splits communication, plans memory. @return the first
 * error of recording, with the file and line of the op. */
err prog_finish(prog *p);
/* The lists as text, one op a line. */
void prog_dump(const prog *p, str *out);

/* ---- recording ---------------------------------------------------------------------------
 * Each rec_ call notes its place in the source. After an error they return VAL_NONE and do
 * nothing, so model code needs no checks of its own. */
static inline prog *prog_here(prog *p, const char *file, int line) {
    p->file = file;
    p->line = line;
    return p;
}
#define HERE(p) prog_here(p, __FILE__, __LINE__)

typedef struct stream {
    val residual, delta; /* delta: VAL_NONE when already added */
} stream;
typedef struct norm_out {
    val r, y; /* r: the sum that was normalised */
} norm_out;
typedef struct head_shape {
    int q, kv, dim, rot, window; /* of the whole model; tp divides them */
    int seq;                     /* tokens in a row, which no document crosses; 0: not known */
    bool documents;              /* rows may hold several documents */
    float scale;
    bool norm_full;
} head_shape;

stream prog_stream_in(prog *p, int64_t n, int64_t d, dtype residual, dtype delta, placement pl);
void prog_stream_out(prog *p, stream s);
val prog_input(prog *p, const char *name, dtype dt, int ndim, const int64_t *dim, placement pl);
/* An input of which every layer has its own. */
val prog_input_per_layer(prog *p, const char *name, dtype dt, int ndim, const int64_t *dim,
                         placement pl);
/* The parameter, ready for use beside x: gathered if stored in slices, R where x differs between
 * ranks that hold the same weights (so that its gradient is a sum over them). */
val prog_use_(prog *p, const char *name, val x);
/* The same, but invariant over tp whatever x is: a bias added once to a partial sum. */
val prog_use_once_(prog *p, const char *name, val x);

val rec_cast_(prog *p, val x, dtype dt);
val rec_comm_(prog *p, val x, mesh_axis axis, place to);
val rec_embed_(prog *p, val tok, val table);
val rec_linear_(prog *p, val x, val w, val b);
val rec_linear_gelu_(prog *p, val x, val w, val b, act_kind act);
/* Marks the linear layer that made y as one to multiply in fp8 (fp8.c). Does nothing where its types
 * are not bf16 or its sizes no multiples of 16. */
void prog_fp8(prog *p, val y, fp8_recipe recipe, int site);
/* First of a step: scales for all layers, from what earlier steps saw (FP8_DELAYED). */
void rec_fp8_commit_(prog *p, int layers);
norm_out rec_norm_(prog *p, stream s, bool rms, val w, val b, float eps);
val rec_sum_(prog *p, stream s); /* the stream's sum, where no norm comes first */
val rec_qknorm_(prog *p, val qkv, val wq, val wk, head_shape h, float eps);
val rec_rope_(prog *p, val qkv, val pos, val table, head_shape h);
val rec_attention_(prog *p, val qkv, val start, head_shape h);
val rec_attention_cached_(prog *p, val qkv, val cache, val pos, head_shape h);
val rec_swiglu_(prog *p, val gate_up);
val rec_add_(prog *p, val a, val b);
val rec_scale_(prog *p, val x, float by);
val rec_dropout_(prog *p, val x, val id, float rate, uint32_t site);
/* Per-token loss; terminal. In TRAIN it makes the gradients of h and w too. */
void rec_linear_ce_(prog *p, val h, val w, val target, float logit_scale);

#define prog_use(p, ...)             prog_use_(HERE(p), __VA_ARGS__)
#define prog_use_once(p, ...)        prog_use_once_(HERE(p), __VA_ARGS__)
#define rec_cast(p, ...)             rec_cast_(HERE(p), __VA_ARGS__)
#define rec_comm(p, ...)             rec_comm_(HERE(p), __VA_ARGS__)
#define rec_embed(p, ...)            rec_embed_(HERE(p), __VA_ARGS__)
#define rec_linear(p, ...)           rec_linear_(HERE(p), __VA_ARGS__)
#define rec_linear_gelu(p, ...)      rec_linear_gelu_(HERE(p), __VA_ARGS__)
#define rec_fp8_commit(p, ...)       rec_fp8_commit_(HERE(p), __VA_ARGS__)
#define rec_norm(p, ...)             rec_norm_(HERE(p), __VA_ARGS__)
#define rec_sum(p, ...)              rec_sum_(HERE(p), __VA_ARGS__)
#define rec_qknorm(p, ...)           rec_qknorm_(HERE(p), __VA_ARGS__)
#define rec_rope(p, ...)             rec_rope_(HERE(p), __VA_ARGS__)
#define rec_attention(p, ...)        rec_attention_(HERE(p), __VA_ARGS__)
#define rec_attention_cached(p, ...) rec_attention_cached_(HERE(p), __VA_ARGS__)
#define rec_swiglu(p, ...)           rec_swiglu_(HERE(p), __VA_ARGS__)
#define rec_add(p, ...)              rec_add_(HERE(p), __VA_ARGS__)
#define rec_scale(p, ...)            rec_scale_(HERE(p), __VA_ARGS__)
#define rec_dropout(p, ...)          rec_dropout_(HERE(p), __VA_ARGS__)
#define rec_linear_ce(p, ...)        rec_linear_ce_(HERE(p), __VA_ARGS__)

/* ---- plan: memory and instances ----------------------------------------------------------
 * One arena holds a run. Regions are asked for by name, before plan_commit maps it:
 *
 *     | tokens | ... | params | grads | what the caller adds | saved | cuts | stream | temp | work |
 *       inputs         buckets, per layer                      by plan_chain      shared by chains
 */
typedef struct chain {
    prog *first, *block, *last;
    int layers;
    int keep_every; /* recompute: keep the input of every n-th block only; 0: keep everything */
    int keep_last;  /* ... but keep everything of this many blocks, the last */
} chain;

typedef struct plan plan;
plan *plan_new(const mesh *m, const op_backend *backend, int threads);
void plan_free(plan *p); /* takes NULL */
int plan_threads(const plan *p);
/* Reserves bytes. @return the region's index. Regions lie in the order they were asked for, each at
 * a whole page; what is left of its last page is zero, and stays so. */
enum { PLAN_PAGE = 4096 };
int plan_region(plan *p, const char *name, size_t bytes);
/* The same in the host's memory, which the device's kernels reach over the bus. It is not part of the
 * arena; where there is no device it is. */
int plan_region_host(plan *p, const char *name, size_t bytes);
size_t plan_host_bytes(const plan *p);
/* Bytes of the regions of this name together; NULL: of the whole arena. */
size_t plan_bytes(const plan *p, const char *name);
int plan_region_count(const plan *p);
const char *plan_region_info(const plan *p, int index, size_t *bytes);

/* Which regions hold a bucket and its gradient (-1: none). layer is -1 for first and last. */
typedef struct bucket_home {
    int param, grad;
} bucket_home;
typedef bucket_home (*bucket_finder)(void *ctx, int bucket, int layer);

/* Adds a chain's instances and memory. Programs are borrowed. @return the chain's index. */
int plan_chain(plan *p, const chain *c, bucket_finder find, void *ctx);
/* What a block (-1: the programs outside blocks) reads and writes may be under way aside when a chain
 * begins, in leg number layer + 1. */
void plan_join_at(plan *p, int layer);
/* Maps the arena and resolves every address. */
err plan_commit(plan *p);
/* Addresses in the arena: memory of the backend's device, which only its kernels and the two calls
 * below reach. On the CPU it is the process's own. */
void *plan_data(const plan *p, int index);
/* An input's memory; NULL when no program asked for it. */
void *plan_input(const plan *p, const char *name);
void plan_put(const plan *p, void *to, const void *from, size_t bytes);
err plan_get(const plan *p, void *to, const void *from, size_t bytes) MUST_USE;
/* Reads late: fetch queues the copy behind the calls made so far and returns at once; take waits for
 * that copy alone. A ticket starts as all zero, serves again and again, and is dropped at the end. */
void plan_fetch(const plan *p, op_ticket *t, const void *from, size_t bytes);
err plan_take(const plan *p, op_ticket *t, void *to) MUST_USE;
void plan_drop(const plan *p, op_ticket *t);

/* ---- execution ---------------------------------------------------------------------------
 * On a device calls are only queued: nothing here waits for them. What runs the same calls every
 * time is recorded the second time and replayed as one from then on (a CUDA graph). */
typedef struct exec {
    plan *plan;
    comm *comm;
    pool *pool;
    step_block step;   /* `now` is the CPU's; a device has its own: exec_state_get */
    bool check_finite; /* stop at the first op that makes a NaN or infinity, and name it */
    bool profile;      /* add up the time of each op and what it did */
    double op_seconds[OP_COUNT];
    op_work op_work[OP_COUNT];
} exec;

/* Runs one microbatch of a chain: forward, and backward in TRAIN. Inputs are in place already.
 * @param micro, micros which microbatch of how many: gradients are stored in the first, reduced
 * over the mesh with the last. */
err exec_chain(exec *x, int which, int micro, int micros);
/* Where the chain's last program has a value: p->loss, p->res_out, ... */
void *exec_value(const exec *x, int which, val v);
/* The step block as kernels read it, with the values that x->step has now; its state is left as the
 * kernels made it. */
step_block *exec_step(exec *x);
/* The state that kernels carry from step to step, in the backend's memory. get waits. */
const step_state *exec_state(exec *x);
err exec_state_get(exec *x, step_state *out) MUST_USE;
void exec_state_set(exec *x, const step_state *s);
/* Runs one call, timed when profiling. The caller has set c->run. */
void exec_call(exec *x, const op_call *c);

/* Calls from aside to back run beside those that follow them, on a queue of their own, until their leg
 * is joined (op_device); without a device in their turn. A workspace is theirs alone. Reading memory
 * joins all legs; chains join a leg before the blocks that plan_join_at names. */
void exec_aside(exec *x);
void exec_back(exec *x, int leg);
void exec_join(exec *x, int leg);

/* A list of calls that is the same every time: all zero at first, dropped at the end. */
typedef struct exec_tape {
    int runs;
    void *graph;
} exec_tape;
/* Makes the calls that `calls` makes, or replays them. They must be made through exec_call. */
err exec_replay(exec *x, exec_tape *t, err (*calls)(void *ctx), void *ctx);
void exec_tape_drop(const plan *p, exec_tape *t);

/* Plays the communication of every rank's chain side by side, without running it, and proves
 * that each collective meets its partners. @param chains one per rank, in rank order. */
err prog_check_ranks(const mesh *m, const chain *chains, int ranks);

#endif
