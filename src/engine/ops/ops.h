/* ops: the arithmetic. Each op is a plain function over tensors, usable on its own; programs
 * (prog/) only arrange calls to it. The ops themselves are rows of ops.def; op_table.h reads them.
 * Depends on comm, tensor, util and io.
 *
 *     #include "ops/op_table.h"
 *     float gu[4 * 16] = { 0 }, y[4 * 8];
 *     op_run run = { 0 };
 *     op_call c = { .op = OP_SWIGLU, .run = &run };
 *     c.in[0] = tensor_of(gu, DT_F32, 2, (int64_t[]){ 4, 16 });
 *     c.out[0] = tensor_of(y, DT_F32, 2, (int64_t[]){ 4, 8 });
 *     ops_run(ops_cpu(OPS_ISA_BEST), &c);
 *
 * Conventions
 *   - Activations are [N, D] row major: N tokens. `start` alone delimits sequences and documents,
 *     never the shape.
 *   - Activations may be fp32, bf16 or fp16, in any mixture; arithmetic, sums, softmax and
 *     statistics are fp32. Weight gradients are always fp32.
 *   - An absent optional tensor has data == NULL.
 *   - "+=" marks outputs that are stored when call.accumulate is false and added to when true.
 *   - The result does not depend on the number of threads: work is split by shape alone.
 *   - Kernels never allocate: what they need beyond their operands is `run->workspace`, of at
 *     least ops_workspace() bytes.
 */
#ifndef INGOT_OPS_H
#define INGOT_OPS_H

#include "comm/comm.h"
#include "ops/fp8.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* An op of the table (op_table.h). Only code that names ops or reads their rows includes that table, so
 * that a new row does not rebuild the tree. */
typedef int op_code;
const char *op_name(op_code op);

typedef enum { ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU2 } act_kind;
/* Muon's polynomials: those of Jordan et al. (2024), or of Polar Express (Amsel et al., 2025). */
typedef enum { POLAR_CLASSIC, POLAR_EXPRESS, POLAR_KINDS } polar_kind;

enum { QKNORM_ROPE_DIM = 256 }; /* the largest heads of QKNORM_ROPE */

/* Attributes that are fixed when an op is recorded. An op reads only the members that its row in ops.def lists. */
typedef struct op_attr {
    float eps;    /* norms */
    act_kind act; /* LINEAR_GELU, GELU */
    struct {
        int q, kv, dim; /* local query heads, key/value heads, head size */
        int rot;        /* ROPE: rotated dims of each head, even */
        int window;     /* attention: keys that a query sees at most; 0: no limit */
        int seq;        /* attention: tokens per row, which no document crosses; 0: unknown */
        bool documents; /* attention: rows may hold several documents */
        float scale;    /* attention: multiplies the scores */
        float cap;      /* attention: bounds the scores, cap tanh(score / cap); 0: no bound */
        int chunk;      /* ATTENTION_CACHED: keys of the token's own chunk alone; 0: no chunks */
        float temper, temper_floor; /* SCALE_QUERIES */
        bool sinks;     /* attention: the softmax's denominator has a learned term per head */
        int sink_first; /* attention: the sink of the first head */
        int first; /* ALIBI, attention with dropout: which of the model's heads the first one is */
        bool norm_full; /* QKNORM: over all heads of a token together */
    } heads;
    struct {
        int heads; /* of the whole model */
        float max;
    } alibi; /* ALIBI: see ops/alibi.h */
    struct {
        float limit, alpha;
    } clamp;     /* SWIGLU_CLAMPED */
    int experts; /* GROUPED_LINEAR: groups of rows, each with its own matrix */
    struct {
        bool sigmoid;     /* scores: else softmax */
        bool normalize;   /* divide a token's weights by their sum */
        bool padded;      /* rows: see ROUTE in ops.def */
        float scale;      /* of the weights; 0 reads as 1 */
        int seq;          /* tokens per sequence; 0: all are one */
        int capacity;     /* tokens of a sequence that one expert takes; 0: all */
        int k;            /* ROUTE_COUNT: choices per token */
        int chunks, rank; /* where ranks share a sequence: see ROUTE in ops.def */
        /* Of `groups` groups of adjacent experts those `group_limit` are eligible whose two best scores have the
         * greatest sums or, with group_best, whose best score is greatest; 0 or 1 group: all experts are. */
        int groups, group_limit;
        bool group_best;
        float balance, z; /* factors of the auxiliary losses */
    } route;
    struct {
        float p;
        uint32_t site; /* which dropout of the block; the executor adds the layer */
    } dropout;
    struct {
        int parts;        /* GROUP_HEADS */
        int outer, inner; /* SWAP_ROWS */
    } reorder;
    struct {
        float by;
    } scale;
    struct {
        float logit_scale;
        float cap;       /* of the scaled logits: cap tanh(logit / cap); 0: none */
        float smoothing; /* of the target: this much of its weight is spread over the vocabulary */
        float z_loss;    /* weight of the squared logarithm of the softmax's denominator */
        bool fp8;        /* LINEAR_CE: its GEMMs are in fp8 */
    } ce;
    struct
    { /* a token table that is sharded: the call's rows are those of tokens first, first + 1, ... */
        int64_t first,
            size; /* size: tokens of the whole vocabulary; 0: the table has all of them */
    } vocab;
    struct {
        float lr_mul, decay, beta1, beta2, eps, momentum;
        bool l2, nesterov;
        int decay_by;  /* which of the step's factors the decay follows: see decay_less */
        bool cautious; /* decay only what moves towards zero anyway */
        polar_kind polar;
        bool equilibrate; /* rows get equal norms before a matrix is orthogonalized */
        uint32_t site;    /* weights in bf16: the parameter, for the stochastic rounding */
        /* Which elements of the parameter the call's are: element i is local element first + i, which
         * is element base + row * stride + column of the whole one, in rows of `cols` (0: of a single
         * row). */
        int64_t first, base, cols, stride;
        bool host_state;  /* moments are in host memory, which a device reaches over the bus */
        bool host_params; /* ... and so do p and its copy */
    } update;
    struct {
        float factor, eps;
    } agc;
    struct {
        int64_t
            growth_interval; /* finite steps before the loss scale doubles; 0: no loss scaling */
    } clip;
    struct {
        fp8_recipe recipe; /* QUANTIZE; of a recorded LINEAR: to be rewritten by fp8.c */
        bool given;        /* QUANTIZE: use the row's scale as it is */
        /* On several ranks, around a maximum over them. measure: only find the largest magnitude, where
         * a scale is needed, and yield nothing; measured: the row has it. */
        bool measure, measured;
        int site; /* recorded LINEAR: its number within the program */
    } fp8;
    comm_move comm; /* COMM: without who asks for it */
} op_attr;

/* Written by the kernels of a step and read by those of the next. The host reads a copy later, and never
 * waits for it. */
typedef struct step_state {
    float loss_scale; /* of the current step's losses; 0: no loss scaling, as 1 */
    float norm;       /* of the last step's gradient, without the loss scale */
    float grad_scale; /* clipping and the loss scale's inverse: multiplies every gradient */
    int32_t skip;     /* the norm was not finite, or above skip_norm: updates do nothing */
    int64_t count;    /* updates so far, including this one: for bias correction */
    int64_t good;     /* steps in a row that were not skipped, for the loss scale */
} step_state;

/* Values that change from step to step: one block, read by kernels. The host writes all of it but `now`, before
 * the calls that read it are queued: `update` before those of the update, the rest before a microbatch,
 * while the previous update may still be reading its part. */
typedef struct step_block {
    float loss_grad; /* d(sum of token losses): 1 / valid targets of the global batch */
    rng_key dropout; /* key of this step's dropout masks */
    struct {
        float lr;
        float max_norm;   /* gradients longer than this are scaled down to it; 0: never */
        float skip_norm;  /* a longer gradient makes no update; 0: every one does, negative: none */
        rng_key rounding; /* weights in bf16: key of this step's stochastic rounding */
        /* Momentum is attr.momentum, moved by `weight` of the way to `toward`. */
        struct {
            float toward, weight;
        } momentum;
        /* Decay is multiplied by 1 - this: by schedule, and in the second half for decays that
         * follow the length of the run too. */
        float decay_less[2 * wd_schedule_count];
    } update;
    step_state now;
} step_block;

/* The environment of a call. */
typedef struct op_run {
    pool *pool; /* NULL: the caller's thread alone */
    void *workspace;
    size_t workspace_bytes;
    const step_block *step; /* in the backend's memory */
    uint32_t layer;         /* of the program instance, for dropout */
    void *context;          /* the backend's own */
    device_queue queue; /* of its device, that the call runs on; its workspace is not another's */
} op_run;

enum { OP_MAX_IN = 8, OP_MAX_OUT = 5 };
typedef struct op_call {
    op_code op;
    tensor in[OP_MAX_IN];
    tensor out[OP_MAX_OUT];
    op_attr attr;
    uint32_t accumulate; /* bit i: out[i] is added to, where documented "+=" */
    const op_run *run;
} op_call;

__extension__ typedef unsigned __int128 attr_set; /* bit i: attribute i (op_attrs.h) */
typedef void (*op_kernel)(const op_call *c);
typedef struct op_backend op_backend;
/* How a backend runs an op. */
typedef struct op_impl {
    op_kernel run; /* NULL: it cannot */
    /* Bytes a call of these shapes needs with this many threads; data pointers are not read. NULL: 0. */
    size_t (*workspace)(const op_backend *b, const op_call *c, int threads);
    attr_set attrs; /* those it honors; others are refused when they are set */
    /* Runs n calls that touch different memory and share a `run`, whose workspace has a part for each (ops_group_workspace), in
     * as few launches as it can, with the results of single calls; NULL: one by one. */
    void (*run_group)(const op_call *c, int n);
} op_impl;
/* Defines a backend's op_impl of an op. */
#ifdef __cplusplus
#define OP_KERNEL(symbol, ...)                                                                     \
    extern "C" const op_impl symbol;                                                               \
    const op_impl symbol = { __VA_ARGS__ }
#else
#define OP_KERNEL(symbol, ...)                                                                     \
    extern const op_impl symbol;                                                                   \
    const op_impl symbol = { __VA_ARGS__ }
#endif
struct op_backend {
    const char *name;
    bool bf16_gemm;             /* GEMMs are faster in bf16 than in fp32 */
    dtype polar;                /* the type in which ORTHOGONALIZE runs for models in 16 bits */
    const device_table *device; /* NULL: the CPU */
    void *context;
    const op_impl *const *impl; /* [OP_COUNT], from 1 on */
    /* Multiply-adds of this type on registers only, on the calling thread. @return FLOPs done. */
    double (*burn)(dtype dt, int64_t rounds);
};

/* ---- the CPU, by instruction set ---------------------------------------------------------
 * The same sources are compiled once per instruction set; the best one this processor has is
 * chosen at run time. */
#define OPS_ISA_BEST NULL
/* @param isa a name from ops_cpu_isa, or OPS_ISA_BEST. @return NULL when this CPU lacks it. */
const op_backend *ops_cpu(const char *isa);
/* @return the i-th instruction set this CPU runs, weakest first; NULL past the end. */
const char *ops_cpu_isa(int i);

/* ---- NVIDIA GPUs --------------------------------------------------------------------------
 * Kernels queue their work and return; its device_table copies memory and waits. */
int ops_cuda_count(void); /* GPUs of this machine; 0 also in a build without CUDA */
/* @return OK when GPU `number` exists; else an error that says why not, with the remedy. */
err ops_cuda_check(int number) MUST_USE;
typedef struct ops_gpu_info {
    char name[256], blas[32], dnn[32]; /* blas, dnn: versions of the libraries */
    char driver[32];                   /* version of the kernel module; "": unknown */
    int sms, capability;               /* streaming multiprocessors; 90 for capability 9.0 */
    int driver_cuda, runtime;          /* versions as CUDA writes them: 13000 */
    double memory, free_memory;        /* bytes */
} ops_gpu_info;
err ops_cuda_describe(int number, ops_gpu_info *out) MUST_USE;
/* Measured rates of a GPU, taken in a second or two; NaN where one cannot be measured. */
typedef struct ops_gpu_speed {
    double copy;                        /* bytes read plus written per second, on the device */
    double to_device, to_host;          /* bytes per second, from and to pinned memory */
    double fp32, tf32, bf16, fp16, fp8; /* FLOP/s of a large GEMM */
} ops_gpu_speed;
err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) MUST_USE;
enum {
    OPS_DETERMINISTIC = 1,   /* results are bit-exact from run to run; slower */
    OPS_TF32 = 2,            /* fp32 GEMMs on tensor cores, with operands rounded to 10 bits */
    OPS_OFFER_OWN_GEMMS = 4, /* autotuning times our own kernel beside cuBLASLt's algorithms */
    OPS_OWN_GEMMS = 8        /* our own kernel computes every GEMM that fits it */
};
err ops_cuda_open(int number, int flags, op_backend **out) MUST_USE;
void ops_cuda_close(op_backend *b); /* takes NULL */

/* ---- choosing a backend ---------------------------------------------------------------------- */
typedef struct ops_choice {
    ops_kind kind;      /* auto: the GPU `index` if it exists, else the CPU */
    int index;          /* which GPU, from 0 */
    ops_gemms gemms;    /* GPU */
    bool deterministic; /* GPU: as in ops_cuda_open */
    bool tf32;          /* GPU: as in ops_cuda_open */
    const char *isa;    /* CPU: a name from ops_cpu_isa, or OPS_ISA_BEST */
} ops_choice;
err ops_open(const ops_choice *c, const op_backend **out) MUST_USE;
void ops_close(const op_backend *b); /* takes NULL */

/* @return the floating-point operations per second that GEMMs of this type can reach with these threads,
 * measured in some milliseconds: MFU is relative to it. */
double ops_peak_flops(const op_backend *b, dtype dt, pool *p);
/* @param bytes of the copy; OPS_COPY_BYTES is more than caches hold, and takes some tenths of a second. A GPU's
 * copy is always of the same size. @return bytes read plus written per second with these threads; NaN: it cannot
 * be measured. */
enum { OPS_COPY_BYTES = 256 << 20 };
double ops_copy_rate(const op_backend *b, pool *p, size_t bytes);

/* @return OK when the backend can run this call; else an error that names op, backend and what is
 * missing. Plans check every call before anything runs. */
err ops_check(const op_backend *b, const op_call *c) MUST_USE;
void ops_run(const op_backend *b, const op_call *c);
/* The work of a call, from its shapes alone: floating-point operations of its GEMMs (attention counted
 * causal), bytes of its operands, each moved once, and exponentials of its softmax. */
typedef struct op_work {
    double flops, bytes, exps;
} op_work;
op_work ops_work(const op_call *c);
size_t ops_workspace(const op_backend *b, const op_call *c, int threads);
/* Many small calls, as of an update's matrices, cost more to launch than to run. */
enum { OPS_GROUP = 64 };
/* @return how many calls like this one may run together with this workspace; 1: it runs alone. */
int ops_group_limit(const op_backend *b, const op_call *c, size_t workspace_bytes);
void ops_run_group(const op_backend *b, const op_call *c, int n); /* of one op */
/* The workspace of call i of a group, each of `bytes`. */
static inline void *ops_group_workspace(const op_run *r, size_t bytes, int i) {
    return (char *)r->workspace + align_up(bytes, 256) * (size_t)i;
}

#endif
