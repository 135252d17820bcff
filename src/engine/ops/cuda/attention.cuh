/* Shared by the attention kernels of attention.cu and attention_mma.cu: which keys a query sees, and where the
 * operands of a call lie. */
#ifndef INGOT_OPS_CUDA_ATTENTION_CUH
#define INGOT_OPS_CUDA_ATTENTION_CUH

#include "device.cuh"
#include "philox.cuh"

extern "C" {
#include "ops/attention_drop.h"
#include "ops/op_table.h"
}

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

typedef struct att {
    int64_t n, n_keys;
    int64_t
        set; /* tokens per block of attention.cu: QUERIES, or 1 where each is of another sequence */
    int q, kv, dim, window;
    int chunk;        /* decoding: keys of the token's own chunk; 0: no chunks */
    float scale, cap; /* of scores; cap 0: not bounded */
    const int32_t *
        start; /* [n] the first token that each token attends to; decoding: the sequence's first row of the cache */
    const int32_t *pos;   /* decoding: [n] the token's row after that */
    const int32_t *range; /* a block of keys: [2, n] first key and end of each query's */
    const int32_t *from;  /* first token to process, the start of a document; NULL: 0 */
    int64_t lse_head, lse_token;
    const void *qkv, *keys; /* keys: qkv itself, the cache, or k|v; then qkv is q alone */
    int qkv_t, key_t;
    int64_t stride, key_stride; /* elements of a row */
    int key_col;                /* first column of k; v follows all heads of k */
    attention_drop drop;
    const int64_t *key_id;  /* with dropout */
    const step_block *step; /* with dropout: has the key */
} att;

/* The result of the keys of other blocks, which this one is added to. */
typedef struct att_before {
    const void *o;
    int dt;
    const float *lse; /* NULL: there were none */
} att_before;

static __device__ __forceinline__ int64_t first_token(const att &a) { return a.from ? *a.from : 0; }
static __device__ __forceinline__ int64_t lse_at(const att &a, int head, int64_t i) {
    return head * a.lse_head + i * a.lse_token;
}
static __device__ __forceinline__ int64_t last_key(const att &a, int64_t i) {
    if (a.range) return (int64_t)a.range[a.n + i] - 1;
    return a.pos ? (int64_t)a.start[i] + a.pos[i] : i;
}
static __device__ __forceinline__ int64_t first_key(const att &a, int64_t i) {
    if (a.range) return a.range[i];
    int64_t lo = a.start ? a.start[i] : 0, last = last_key(a, i);
    if (a.chunk > 0) return last - a.pos[i] % a.chunk;
    if (a.window > 0 && last - a.window + 1 > lo) lo = last - a.window + 1;
    return lo;
}

/* A score from q k', in units of 1 / unit: log2(e), or 1. */
static __device__ __forceinline__ float att_score(const att &a, float x, float unit) {
    return a.cap > 0 ? a.cap * unit * tanhf(x * (a.scale / a.cap)) : x * (a.scale * unit);
}
/* The derivative of a score by q k'. */
static __device__ __forceinline__ float att_score_slope(const att &a, float x) {
    if (!(a.cap > 0)) return a.scale;
    float t = tanhf(x * (a.scale / a.cap));
    return a.scale * (1 - t * t);
}

/* The first query that sees key j or a later one. Ends of queries' ranges grow, so a search finds it: 32 at a time, by
 * the lanes of a whole warp. */
static __device__ __forceinline__ int64_t first_query(const att &a, int64_t j) {
    if (!a.range) return j;
    int64_t lo = 0, hi = a.n;
    while (lo < hi) {
        int64_t step = (hi - lo + 31) / 32, at = lo + threadIdx.x % 32 * step;
        int before = __popc(__ballot_sync(~0u, at < hi && last_key(a, at) < j));
        if (!before) return lo;
        hi = min(hi, lo + before * step);
        lo += (before - 1) * step + 1;
    }
    return lo;
}

/* The operands of a backward; dq and dkv may be one tensor. */
typedef struct att_grad {
    mixed dout, o, dq, dkv;
    const float *lse;
    float *rowdot; /* [H, N] workspace */
    float *sums;   /* [N, H D] workspace for dq in fp32; NULL: none */
    bool add;      /* to dq */
} att_grad;

/* Which of the two gradients of keys a launch computes. */
typedef enum { DK = 1, DV = 2 } key_grads;

/* attention_hopper.cu, attention_bwd_hopper.cu: @return false where they do not fit the call, and nothing was done. */
extern "C" bool attend_by_hopper(const op_call *c, const att *a, const att_before *before,
                                 const tensor *o, float *lse);
extern "C" bool attention_grad_by_hopper(const op_call *c, const att *a, const att_grad *g);
/* attention_few.cu: attention over a cache that has the tokens' own keys, unless it stores them (attend_few_stores). @return false
 * where it does not fit the call, and nothing was done. @param lse [q, n]; NULL: not wanted */
extern "C" bool attend_few(const op_call *c, const att *a, void *workspace, float *lse);
extern "C" bool attend_few_stores(const op_call *c);
extern "C" size_t attend_few_bytes(const cuda_device *d, const op_call *c);
/* attention_mma.cu: @return false where the tensor cores do not fit the call, and nothing was done. */
bool attend_by_mma(const op_call *c, const att &a, const att_before &before, const tensor *o,
                   float *lse);
bool attention_grad_by_mma(const op_call *c, const att &a, const att_grad &g);

#endif
