/* ops: the arithmetic. Each op is a plain function over tensors, usable on its own; programs
 * (prog/) only arrange calls to it. Depends on tensor, util and io.
 *
 *     const op_backend *cpu = ops_cpu(OPS_ISA_BEST);
 *     op_call c = { .op = OP_SWIGLU, .in = { gu }, .out = { y }, .run = &run };
 *     ops_run(cpu, &c);
 *
 * Conventions
 *   - Activations are [N, D] row major: N tokens. Sequences and documents are told by `start`
 *     alone, never by the shape.
 *   - Activations may be fp32, bf16 or fp16, in any mixture; arithmetic, sums, softmax and
 *     statistics are fp32. Weight gradients are always fp32.
 *   - An absent optional tensor has data == NULL.
 *   - "+=" marks outputs that are stored when call.accumulate is false and added to when true.
 *   - The result does not depend on the number of threads: work is cut by shape alone.
 *   - Kernels never allocate: what they need beyond their operands is `run->workspace`, of at
 *     least ops_workspace() bytes.
 */
#ifndef INGOT_OPS_H
#define INGOT_OPS_H

#include "ops/fp8.h"
#include "tensor/tensor.h"

/* One row an op: enum, printed name, flags. Everything that lists ops derives from here.
 *   CHEAP    bandwidth-bound and free of products: selective recompute runs it again
 *   INPLACE  out[0] may share in[0]'s memory
 *   EXTERN   run by the executor (communication), not by a backend                        */
enum { OPF_CHEAP = 1, OPF_INPLACE = 2, OPF_EXTERN = 4 };
/* clang-format off */
#define OP_TABLE(X)                                                                            \
    /* tok[N] i32, table[V,D] -> x[N,D]           ids outside [0,V) are a BUG: the loader checks */ \
    X(EMBED,         "embed",         0)                                                       \
    /* dx[N,D], tok[N] -> += dtable[V,D]                                                      */ \
    X(EMBED_BWD,     "embed_bwd",     0)                                                       \
    /* The linear ops also take in[0] and in[1] in fp8, with their rows (ops/fp8.h) as in[3] and    \
     * in[4]. Both lie along what is summed over: BWD_X takes w as wT[K,M], BWD_W dyT[M,N] and      \
     * xT[K,N], and makes no db.                                                                   \
     * x[N,K], w[M,K], b[M]? -> y[N,M]            y = x w^T + b                               */ \
    X(LINEAR,        "linear",        0)                                                       \
    /* x[N,K], w[M,K], b[M]? -> y[N,M], pre[N,M]  y = gelu(pre), attr.act                     */ \
    X(LINEAR_GELU,   "linear_gelu",   0)                                                       \
    /* dy[N,M], w[M,K] -> dx[N,K]                                                             */ \
    X(LINEAR_BWD_X,  "linear_bwd_x",  0)                                                       \
    /* dy[N,M], w[M,K], pre[N,K] -> dpre[N,K]     gelu'(pre) * (dy w), attr.act: through the layer  \
     * whose x is gelu(pre)                                                                  */ \
    X(LINEAR_BWD_X_GELU, "linear_bwd_x_gelu", 0)                                               \
    /* dy[N,M], x[N,K] -> += dw[M,K], += db[M]?                                               */ \
    X(LINEAR_BWD_W,  "linear_bwd_w",  0)                                                       \
    /* x[N,D], delta[N,D]?, w[D] -> r[N,D], y[N,D], stat[N]    r = x + delta (x when absent);  \
     * y = r * stat * w, stat = 1/rms(r). r is rounded to its type before it is normalised, so \
     * that y can be made again from r. r may be absent only when delta is, or share x.     */ \
    X(RMSNORM,       "rmsnorm",       OPF_CHEAP)                                               \
    /* dy[N,D], r[N,D], stat[N], w[D], dr[N,D]? -> dx[N,D], += dw[D]    dx = dr + d(norm)     */ \
    X(RMSNORM_BWD,   "rmsnorm_bwd",   0)                                                       \
    /* x[N,D], delta[N,D]?, w[D], b[D]? -> r[N,D], y[N,D], stat[N,2] (mean, 1/deviation)      */ \
    X(LAYERNORM,     "layernorm",     OPF_CHEAP)                                               \
    /* dy[N,D], r[N,D], stat[N,2], w[D], dr[N,D]? -> dx[N,D], += dw[D], += db[D]?             */ \
    X(LAYERNORM_BWD, "layernorm_bwd", 0)                                                       \
    /* qkv[N,C], wq, wk -> y[N,C], stat[N,S]      RMS norm of q and of k, attr.heads; per head  \
     * (w[head_dim], S = heads + kv_heads) or over the whole width (S = 2). v is copied.     */ \
    X(QKNORM,        "qknorm",        OPF_CHEAP)                                               \
    /* dy[N,C], qkv[N,C], stat, wq, wk -> dqkv[N,C], += dwq, += dwk                           */ \
    X(QKNORM_BWD,    "qknorm_bwd",    0)                                                       \
    /* qkv[N,C], pos[N] i32, table[P,rot] -> y[N,C]   rotates the first rot dims of each q and k \
     * head, half-split: (x[j], x[j+rot/2]); table row = cos[rot/2] | sin[rot/2]             */ \
    X(ROPE,          "rope",          OPF_CHEAP | OPF_INPLACE)                                 \
    /* dy[N,C], pos, table -> dqkv[N,C]           the inverse rotation                        */ \
    X(ROPE_BWD,      "rope_bwd",      OPF_INPLACE)                                             \
    /* qkv[N,C], start[N] i32 -> o[N,H*hd], lse[H,N] f32                                       \
     * token i attends to j in [max(start[i], i-window+1), i]; window 0: no limit. start is     \
     * non-decreasing and start[i] <= i. q|k|v are segments of a row, attr.heads.            */ \
    X(ATTENTION,     "attention",     0)                                                       \
    /* do[N,H*hd], qkv[N,C], o[N,H*hd], lse[H,N], start[N] -> dqkv[N,C]                       */ \
    X(ATTENTION_BWD, "attention_bwd", 0)                                                       \
    /* qkv[N,C], cache[P,2*KV*hd], pos[N] i32 -> o[N,H*hd]   stores k|v of each token at row    \
     * pos of the cache, then attends to rows [max(0,pos-window+1), pos]                     */ \
    X(ATTENTION_CACHED, "attention_cached", 0)                                                 \
    /* x[N,F] -> y[N,F], attr.act                                                             */ \
    X(GELU,          "gelu",          OPF_CHEAP)                                               \
    /* dy[N,F], x[N,F] -> dx[N,F]                                                             */ \
    X(GELU_BWD,      "gelu_bwd",      OPF_INPLACE)                                             \
    /* gu[N,2F] (gate|up) -> y[N,F]               y = silu(gate) * up                         */ \
    X(SWIGLU,        "swiglu",        OPF_CHEAP)                                               \
    /* dy[N,F], gu[N,2F] -> dgu[N,2F], y[N,F]?     y: SWIGLU's result, made again              */ \
    X(SWIGLU_BWD,    "swiglu_bwd",    0)                                                       \
    /* a[N,D], b[N,D]? -> c[N,D]                  copies (or converts) when b is absent       */ \
    X(ADD,           "add",           OPF_CHEAP | OPF_INPLACE)                                 \
    /* x[N,D], id[N] i64 -> y[N,D]                keeps x/(1-p) with probability 1-p, decided by \
     * (step key, attr.dropout.site, id, column); its own backward                           */ \
    X(DROPOUT,       "dropout",       OPF_CHEAP | OPF_INPLACE)                                 \
    /* x[...] -> y[...] of another element type                                               */ \
    X(CAST,          "cast",          OPF_CHEAP)                                               \
    /* x[...] -> y[...]                           y = x * attr.scale.by                       */ \
    X(SCALE,         "scale",         OPF_CHEAP | OPF_INPLACE)                                 \
    /* x[N,K], row f32[FP8_ROW] -> q[N,K]?, qt[K,N]?, += sum[K] f32?   q = x * scale in q's type,  \
     * e4m3 or e5m2, saturated; NaN where x is not finite. qt = q^T. sum: of x over its rows, a     \
     * bias gradient. N and K are multiples of 16. The scale is the row's (ops/fp8.h), by           \
     * attr.fp8; the row learns x's largest magnitude.                                       */ \
    X(QUANTIZE,      "quantize",      OPF_CHEAP)                                               \
    /* The same of what another op makes of its operands, which is written nowhere else:            \
     * gu[N,2K], row -> q, qt, += sum                                                         */ \
    X(QUANTIZE_SWIGLU, "quantize_swiglu", OPF_CHEAP)                                           \
    /* dy[N,F], row, gu[N,2F] -> q[N,2F], qt[2F,N], += sum                                    */ \
    X(QUANTIZE_SWIGLU_BWD, "quantize_swiglu_bwd", 0)                                           \
    /* x[N,K], row -> q, qt, += sum, attr.act                                                 */ \
    X(QUANTIZE_GELU, "quantize_gelu", OPF_CHEAP)                                               \
    /* dy[N,K], row, x[N,K] -> q, qt, += sum, attr.act                                        */ \
    X(QUANTIZE_GELU_BWD, "quantize_gelu_bwd", 0)                                               \
    /* -> rows[R,FP8_ROW] f32, also read: a step begins, fp8_commit_row on each               */ \
    X(FP8_COMMIT,    "fp8_commit",    0)                                                       \
    /* h[N,D], w[V,D], target[N] i32 -> loss[N] f32, dh[N,D]?, += dw[V,D]?                      \
     * loss = -log softmax(attr.ce.logit_scale * h w^T)[target], 0 where target is -100. With   \
     * dh and dw the gradients of sum(loss) * step->loss_grad are made in the same pass, a     \
     * chunk of rows at a time: all logits never exist.                                      */ \
    X(LINEAR_CE,     "linear_ce",     0)                                                       \
    /* one communication step: attr.comm                                                      */ \
    X(COMM,          "comm",          OPF_EXTERN)                                              \
    /* g[n] f32 -> += sum[2] f32 (fp64 inside)    sum of squares, times attr.scale.by: a number and \
     * what its rounding left out, so that many can be added                                 */ \
    X(SQNORM,        "sqnorm",        0)                                                       \
    /* -> x[...]                                  all zero bits                               */ \
    X(ZERO,          "zero",          0)                                                       \
    /* Updates. g f32 -> p f32, state..., copy? (p in another type); all outputs are also inputs. \
     * SGD, momentum, Adam, Lion and Adam8 also take p bf16, without a copy, and round it by chance. \
     * step->update holds what changes by the step, attr.update what is the parameter's own.   \
     * g[n] -> p[n], copy[n]?                                                                 */ \
    X(UPDATE_SGD,    "update_sgd",    0)                                                       \
    /* g[n] -> p[n], m[n], copy[n]?                                                           */ \
    X(UPDATE_MOMENTUM, "update_momentum", 0)                                                   \
    /* g[n] -> p[n], m[n], v[n], copy[n]?         attr.update.l2: decay through the gradient  */ \
    X(UPDATE_ADAM,   "update_adam",   0)                                                       \
    /* g[n] -> p[n], m[n], copy[n]?                                                           */ \
    X(UPDATE_LION,   "update_lion",   0)                                                       \
    /* g[n] -> p[n], m u8[], v u8[], copy[n]?     blocks of 256: a byte each, then fp32 scales */ \
    X(UPDATE_ADAM8,  "update_adam8",  0)                                                       \
    /* g[R,C] -> p[R,C], rows[R], cols[C], copy?  g[n] -> p[n], v[n], (absent), copy?          */ \
    X(UPDATE_ADAFACTOR, "update_adafactor", 0)                                                 \
    /* g[R,C] -> p[R,C], m[R,C], copy?                                                        */ \
    X(UPDATE_MUON,   "update_muon",   0)                                                       \
    /* sum[2] f32 -> state u8[]                   what a step may do, from the square sum of its     \
     * gradient: step->now (a step_state), attr.clip; ops/clip.h                             */ \
    X(CLIP,          "clip",          0)                                                       \
    /* p[R,C] f32 -> g[R,C] f32                   adaptive clipping by rows, in place, attr.agc */ \
    X(AGC,           "agc",           0)
/* clang-format on */

#define OP_ENUM(id, name, flags) OP_##id,
typedef enum { OP_TABLE(OP_ENUM) OP_COUNT } op_code;
#undef OP_ENUM

const char *op_name(op_code op);
int op_flags(op_code op);

typedef enum { ACT_GELU_TANH, ACT_GELU_ERF } act_kind;

/* What is fixed when an op is recorded. Only the member an op documents is read. */
typedef struct op_attr {
    float eps;    /* norms */
    act_kind act; /* LINEAR_GELU, GELU */
    struct {
        int q, kv, dim; /* local query heads, key/value heads, head size */
        int rot;        /* ROPE: rotated dims of each head, even */
        int window;     /* attention: 0 none */
        int seq;        /* attention: tokens in a row, which no document crosses; 0: not known */
        bool documents; /* attention: rows may hold several documents */
        float scale;    /* attention: of the scores */
        bool norm_full; /* QKNORM: over all heads of a token together */
    } heads;
    struct {
        float p;
        uint32_t site; /* which dropout of the block; the executor adds the layer */
    } dropout;
    struct {
        float by;
    } scale;
    struct {
        float logit_scale;
    } ce;
    struct {
        float lr_mul, decay, beta1, beta2, eps, momentum;
        bool l2, nesterov;
        /* Weights in bf16: which bucket, and which of its elements is the first: with the step they
         * decide how each is rounded. */
        uint32_t site;
        int64_t first;
        bool far; /* state lies in the host's memory, behind a slow bus */
    } update;
    struct {
        float factor, eps;
    } agc;
    struct {
        int64_t growth_interval; /* good steps before the loss scale doubles; 0: it has none */
    } clip;
    struct {
        fp8_recipe recipe; /* QUANTIZE; of a recorded LINEAR: to be rewritten by fp8.c */
        bool given;        /* QUANTIZE: with the row's scale as it is */
        int site;          /* recorded LINEAR: which of the program's */
    } fp8;
    struct {
        uint32_t axes; /* set of mesh_axis bits */
        place from, to;
    } comm;
} op_attr;

/* What kernels make of a step and the next one reads. The host sees it late: it never waits. */
typedef struct step_state {
    float loss_scale; /* of the losses under way; 0: none, as 1 */
    float norm;       /* of the last step's gradient, without the loss scale */
    float grad_scale; /* clipping and the loss scale's inverse: multiplies every gradient */
    int32_t skip;     /* the norm was not finite: updates do nothing */
    int64_t count;    /* updates done, this one too: bias corrections follow from it */
    int64_t good;     /* steps in a row that were not skipped, for the loss scale */
} step_state;

/* What changes from step to step: one block, read by kernels. The host writes all of it but `now`,
 * before a step's calls are queued: `update` before those of the update, the rest before a microbatch,
 * when the update before it may still be reading. */
typedef struct step_block {
    float loss_grad; /* d(sum of token losses): 1 / valid targets of the global batch */
    rng_key dropout; /* key of this step's dropout masks */
    struct {
        float lr;
        float max_norm; /* gradients longer than this are scaled down to it; 0: never */
        rng_key chance; /* weights in bf16: key of how this step rounds them */
    } update;
    step_state now;
} step_block;

/* What a call needs from its surroundings. */
typedef struct op_run {
    pool *pool; /* NULL: the caller's thread alone */
    void *workspace;
    size_t workspace_bytes;
    const step_block *step; /* in the backend's memory */
    uint32_t layer;         /* of the program instance, for DROPOUT */
    void *context;          /* the backend's own */
} op_run;

enum { OP_MAX_IN = 5, OP_MAX_OUT = 4 };
typedef struct op_call {
    op_code op;
    tensor in[OP_MAX_IN];
    tensor out[OP_MAX_OUT];
    op_attr attr;
    uint32_t accumulate; /* bit i: out[i] is added to, where documented "+=" */
    const op_run *run;
} op_call;

/* A copy from the device under way; all zero: none. */
typedef struct op_ticket {
    void *memory, *event; /* the backend's own */
    size_t bytes, room;
} op_ticket;

/* The memory kernels work on, and the queue their calls go through, in order. A NULL device is the
 * CPU: the process's own memory, and calls that are done when they return. */
enum { OP_ALL_LEGS = -1 };
typedef struct op_device {
    err (*map)(void *context, size_t bytes, void **out); /* zeroed */
    void (*unmap)(void *context, void *p, size_t bytes);
    /* Memory of the host that kernels reach too, over the bus: zeroed. */
    err (*map_host)(void *context, size_t bytes, void **out);
    void (*unmap_host)(void *context, void *p, size_t bytes);
    /* Host to device; the bytes at `from` are read before it returns. */
    void (*put)(void *context, void *to, const void *from, size_t bytes);
    /* Device to host; waits. */
    err (*get)(void *context, void *to, const void *from, size_t bytes);
    /* Device to host, queued: what lies at `from` when the queue gets there. `take` waits for it
     * alone. A ticket keeps its memory from one use to the next, until it is dropped. */
    void (*fetch)(void *context, op_ticket *t, const void *from, size_t bytes);
    err (*take)(void *context, op_ticket *t, void *to);
    void (*drop)(void *context, op_ticket *t);
    /* Waits for all that was queued. @return the first fault since the last call. */
    err (*sync)(void *context);
    /* Calls between record and recorded are noted, not run; replay queues them all as one. NULL
     * from recorded: the calls could not be noted, and none was run. */
    void (*record)(void *context);
    void *(*recorded)(void *context);
    void (*replay)(void *context, void *graph);
    void (*forget)(void *context, void *graph);
    /* Calls from aside to back are a leg of a second queue, which begins when the first gets to
     * aside. join makes the first wait for that leg's last run and those before it, or for all
     * (OP_ALL_LEGS). get and sync join all. */
    void (*aside)(void *context);
    void (*back)(void *context, int leg);
    void (*join)(void *context, int leg);
    /* Notes when the queue gets here, as mark number i; seconds from one mark to another, waiting
     * for both. */
    void (*mark)(void *context, int i);
    double (*between)(void *context, int from, int to);
    /* Operations a second of a large product of this type, measured; NaN where it cannot be. */
    double (*peak)(void *context, dtype dt);
} op_device;

typedef void (*op_kernel)(const op_call *c);
typedef struct op_backend {
    const char *name;
    bool bf16_products; /* the processor multiplies bf16 faster than fp32 */
    const op_device *device;
    void *context;
    op_kernel kernel[OP_COUNT];
    /* Bytes a call of these shapes needs with this many threads; data pointers are not read. */
    size_t (*workspace)(const struct op_backend *b, const op_call *c, int threads);
    /* Multiply-adds of this type on registers alone, on the calling thread. @return operations. */
    double (*burn)(dtype dt, int64_t rounds);
} op_backend;

/* ---- the CPU, by instruction set ---------------------------------------------------------
 * The same sources are compiled once per instruction set; the best one this processor has is
 * chosen at run time. */
#define OPS_ISA_BEST NULL
/* @param isa a name from ops_cpu_isa, or OPS_ISA_BEST. @return NULL when this CPU lacks it. */
const op_backend *ops_cpu(const char *isa);
/* @return the i-th instruction set this CPU runs, weakest first; NULL past the end. */
const char *ops_cpu_isa(int i);

/* ---- NVIDIA GPUs --------------------------------------------------------------------------
 * Kernels queue their work and return; op_device moves memory and waits. */
int ops_cuda_count(void); /* GPUs here; 0 also in a build without CUDA */
/* @return OK when GPU `number` is there; else why it is not, with the remedy. */
err ops_cuda_check(int number) MUST_USE;
typedef struct ops_gpu_info {
    char name[256], blas[32], dnn[32]; /* blas, dnn: versions of the libraries */
    char driver[32];                   /* version of the kernel's module; "" when it does not say */
    int multiprocessors, capability;   /* capability: 90 for 9.0 */
    int driver_cuda, runtime;          /* versions as CUDA writes them: 13000 */
    double memory, free_memory;        /* bytes */
} ops_gpu_info;
err ops_cuda_describe(int number, ops_gpu_info *out) MUST_USE;
/* What a GPU reaches, measured in a second or two; NaN where it cannot be. */
typedef struct ops_gpu_speed {
    double copy;                        /* bytes read and written a second, on the device */
    double to_device, to_host;          /* bytes a second, from and to pinned memory */
    double fp32, tf32, bf16, fp16, fp8; /* operations a second of a large product */
} ops_gpu_speed;
err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) MUST_USE;
enum {
    OPS_DETERMINISTIC = 1, /* the same bits in every run, at its cost */
    OPS_TF32 = 2           /* fp32 products on tensor cores: operands rounded to 10 bits */
};
err ops_cuda_open(int number, int flags, op_backend **out) MUST_USE;
void ops_cuda_close(op_backend *b); /* takes NULL */

/* ---- what computes: by choice, for all who run programs -------------------------------------- */
typedef enum { OPS_AUTO, OPS_CPU, OPS_CUDA } ops_kind;
typedef struct ops_choice {
    ops_kind kind;      /* auto: that GPU where there is one, else the CPU */
    int index;          /* which GPU, from 0 */
    bool deterministic; /* GPU: as in ops_cuda_open */
    bool tf32;          /* GPU: as in ops_cuda_open */
    const char *isa;    /* CPU: a name from ops_cpu_isa, or OPS_ISA_BEST */
} ops_choice;
err ops_open(const ops_choice *c, const op_backend **out) MUST_USE;
void ops_close(const op_backend *b); /* takes NULL */

/* Floating-point operations a second that products of this type can reach with these threads, as
 * measured in some milliseconds: what MFU is a share of. */
double ops_peak_flops(const op_backend *b, dtype dt, pool *p);

void ops_run(const op_backend *b, const op_call *c);
/* What a call does, by its shapes alone: floating point operations of its products (attention's
 * counted causal), bytes of its operands, each moved once. */
typedef struct op_work {
    double flops, bytes;
} op_work;
op_work ops_work(const op_call *c);
size_t ops_workspace(const op_backend *b, const op_call *c, int threads);

#endif
