/* Latent attention; layouts and formulas are those of cpu/latent.c. The expanded form is a copy: a block of 256 threads
 * per token, each element read once and written once. The compressed form has a block per head and token, which
 *
 *   - absorbs the head's rows of w into its query, [latent | rot] in shared memory;
 *   - steps over the cache by KEYS rows: a warp takes the dot products of one row at a time, then every thread adds up its own
 *     columns of c, LATENT_COLS at most, with the softmax's online rescaling;
 *   - multiplies the sum with the head's other rows of w, a warp per row.
 *
 * Bytes: of the cache, once per head; of w, once per head and token. Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, KEYS = 32, LATENT_COLS = 16 };

typedef struct latent_dims {
    int heads, rot, plain, value, dim; /* dim: of a head of qkv */
} latent_dims;

static latent_dims latent_dims_of(const op_call *c, const tensor *q, const tensor *kv,
                                  const tensor *rot, const tensor *qkv) {
    latent_dims s = {};
    s.heads = c->attr.heads.q, s.rot = (int)rot->dim[1];
    s.plain = (int)(q->dim[1] / s.heads) - s.rot;
    s.value = (int)(kv->dim[1] / s.heads) - s.plain;
    s.dim = (int)(qkv->dim[1] / (3 * s.heads));
    return s;
}

/* ---- the expanded form ------------------------------------------------------------------------- */
/* Grid: a block per token. */
static __global__ void __launch_bounds__(THREADS)
    expand_latent(mixed q, mixed kv, mixed rot, mixed qkv, latent_dims s) {
    int64_t row = blockIdx.x;
    int part = s.heads * s.dim, qk = s.rot + s.plain, own = s.plain + s.value;
    for (int e = threadIdx.x; e < 3 * part; e += THREADS) {
        int which = e / part, head = e % part / s.dim, at = e % s.dim;
        int64_t h = row * s.heads + head;
        float v = 0;
        if (which == 0 && at < qk) v = read1(q.p, q.dt, h * qk + at);
        if (which == 1 && at < s.rot) v = read1(rot.p, rot.dt, row * s.rot + at);
        if (which == 1 && at >= s.rot && at < qk) v = read1(kv.p, kv.dt, h * own + at - s.rot);
        if (which == 2 && at < s.value) v = read1(kv.p, kv.dt, h * own + s.plain + at);
        write1(qkv.p, qkv.dt, row * 3 * part + e, v);
    }
}

/* Grid: a block per token. The gradient of the shared key is the sum over the heads. */
static __global__ void __launch_bounds__(THREADS)
    collect_latent(mixed dqkv, mixed dq, mixed dkv, mixed drot, latent_dims s) {
    int64_t row = blockIdx.x, base = row * 3 * s.heads * s.dim;
    int part = s.heads * s.dim, qk = s.rot + s.plain, own = s.plain + s.value;
    for (int e = threadIdx.x; e < s.heads * qk; e += THREADS)
        write1(dq.p, dq.dt, row * s.heads * qk + e,
               read1(dqkv.p, dqkv.dt, base + e / qk * s.dim + e % qk));
    for (int e = threadIdx.x; e < s.heads * own; e += THREADS) {
        int head = e / own, at = e % own;
        int64_t from = at < s.plain ? base + part + head * s.dim + s.rot + at
                                    : base + 2 * part + head * s.dim + at - s.plain;
        write1(dkv.p, dkv.dt, row * s.heads * own + e, read1(dqkv.p, dqkv.dt, from));
    }
    for (int e = threadIdx.x; e < s.rot; e += THREADS) {
        float sum = 0;
        for (int h = 0; h < s.heads; h++)
            sum += read1(dqkv.p, dqkv.dt, base + part + h * s.dim + e);
        write1(drot.p, drot.dt, row * s.rot + e, sum);
    }
}

static void cuda_latent_qkv(const op_call *c) {
    bool back = c->op == OP_LATENT_QKV_BWD;
    const tensor *parts = back ? c->out : c->in, *qkv = back ? &c->in[0] : &c->out[0];
    latent_dims s = latent_dims_of(c, &parts[0], &parts[1], &parts[2], qkv);
    unsigned rows = (unsigned)qkv->dim[0];
    if (back)
        LAUNCH(cuda_of(c), { rows, THREADS }, collect_latent, mixed(*qkv), mixed(parts[0]),
               mixed(parts[1]), mixed(parts[2]), s);
    else
        LAUNCH(cuda_of(c), { rows, THREADS }, expand_latent, mixed(parts[0]), mixed(parts[1]),
               mixed(parts[2]), mixed(*qkv), s);
}

/* The first `value` columns of each head of `dim`; back: zeros in the others. Grid: a block per token. */
static __global__ void __launch_bounds__(THREADS)
    copy_head_values(mixed from, mixed to, int heads, int dim, int value, bool back) {
    int64_t row = blockIdx.x;
    int cols = heads * (back ? dim : value);
    await_previous();
    for (int e = threadIdx.x; e < cols; e += THREADS) {
        int head = e / (back ? dim : value), at = e % (back ? dim : value);
        int64_t in = (row * heads + head) * (back ? value : dim) + at;
        write1(to.p, to.dt, row * cols + e, at < value ? read1(from.p, from.dt, in) : 0);
    }
}

static void cuda_head_values(const op_call *c) {
    bool back = c->op == OP_HEAD_VALUES_BWD;
    int heads = c->attr.heads.q;
    const tensor *wide = back ? &c->out[0] : &c->in[0], *own = back ? &c->in[0] : &c->out[0];
    LAUNCH(cuda_of(c), { (unsigned)wide->dim[0], THREADS, 0, true }, copy_head_values,
           mixed(c->in[0]), mixed(c->out[0]), heads, (int)(wide->dim[1] / heads),
           (int)(own->dim[1] / heads), back);
}

/* ---- the compressed form ----------------------------------------------------------------------- */
enum { Q, C, ROT, W, CACHE, POS, START };

typedef struct latent_cache {
    latent_dims s;
    int latent, row, window; /* row: columns of the cache */
    float scale, cap;
    const int32_t *pos, *start;
} latent_cache;

/* Copies c and the rotated key of each token to its row of the cache. Grid: a block per token. */
static __global__ void __launch_bounds__(THREADS)
    store_latent(mixed c, mixed rot, mixed cache, latent_cache a) {
    int64_t i = blockIdx.x, row = (int64_t)a.start[i] + a.pos[i];
    for (int e = threadIdx.x; e < a.row; e += THREADS) {
        float v = e < a.latent ? read1(c.p, c.dt, i * a.latent + e)
                               : read1(rot.p, rot.dt, i * a.s.rot + e - a.latent);
        write1(cache.p, cache.dt, row * a.row + e, v);
    }
}

/* Scores of `keys` rows of the cache from `key` on, by warps. */
static __device__ void score_keys(const mixed &cache, const latent_cache &a, const float *q,
                                  int64_t key, int keys, float *score) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int j = warp; j < keys; j += WARPS) {
        float sum = 0;
        for (int e = lane; e < a.row; e += WARP)
            sum += q[e] * read1(cache.p, cache.dt, (key + j) * a.row + e);
        sum = warp_sum(sum);
        if (a.cap > 0) sum = a.cap * tanhf(sum / a.cap);
        if (lane == 0) score[j] = sum;
    }
    __syncthreads();
}

/* Grid: (tokens, heads); shared: the query [row], then the sum [latent]. */
static __global__ void __launch_bounds__(THREADS)
    attend_latent(mixed q, mixed w, mixed cache, mixed o, latent_cache a) {
    DYNAMIC_SHARED(float, shared);
    __shared__ float score[KEYS];
    float *own = shared, *sum = shared + a.row, acc[LATENT_COLS] = { 0 }, top = -3.0e38f, total = 0;
    int64_t i = blockIdx.x, head = blockIdx.y, first = head * (a.s.plain + a.s.value);
    int64_t at = (i * a.s.heads + head) * (a.s.rot + a.s.plain);
    for (int e = threadIdx.x; e < a.row; e += THREADS) {
        float v = 0;
        if (e >= a.latent) v = read1(q.p, q.dt, at + e - a.latent);
        for (int d = 0; e < a.latent && d < a.s.plain; d++)
            v += read1(q.p, q.dt, at + a.s.rot + d) * read1(w.p, w.dt, (first + d) * a.latent + e);
        own[e] = v * a.scale;
    }
    __syncthreads();
    int64_t last = (int64_t)a.start[i] + a.pos[i], key = a.start[i];
    if (a.window > 0 && a.pos[i] >= a.window) key = last - a.window + 1;
    for (; key <= last; key += KEYS) {
        int keys = (int)(last + 1 - key < KEYS ? last + 1 - key : KEYS);
        score_keys(cache, a, own, key, keys, score);
        float best = top;
        for (int j = 0; j < keys; j++) best = fmaxf(best, score[j]);
        float shrink = __expf(top - best);
        total *= shrink, top = best;
#pragma unroll
        for (int k = 0; k < LATENT_COLS; k++) acc[k] *= shrink;
        for (int j = 0; j < keys; j++) {
            float p = __expf(score[j] - best);
            total += p;
#pragma unroll
            for (int k = 0; k < LATENT_COLS; k++) {
                int e = threadIdx.x + k * THREADS;
                if (e < a.latent) acc[k] += p * read1(cache.p, cache.dt, (key + j) * a.row + e);
            }
        }
        __syncthreads(); /* the scores are read */
    }
#pragma unroll
    for (int k = 0; k < LATENT_COLS; k++)
        if (threadIdx.x + k * THREADS < a.latent) sum[threadIdx.x + k * THREADS] = acc[k] / total;
    __syncthreads();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int v = warp; v < a.s.value; v += WARPS) {
        float dot = 0;
        for (int e = lane; e < a.latent; e += WARP)
            dot += sum[e] * read1(w.p, w.dt, (first + a.s.plain + v) * a.latent + e);
        dot = warp_sum(dot);
        if (lane == 0) write1(o.p, o.dt, (i * a.s.heads + head) * a.s.value + v, dot);
    }
}

static void cuda_latent_cached(const op_call *c) {
    latent_cache a = {};
    a.s.heads = c->attr.heads.q, a.s.rot = (int)c->in[ROT].dim[1];
    a.s.plain = (int)(c->in[Q].dim[1] / a.s.heads) - a.s.rot;
    a.s.value = (int)(c->out[0].dim[1] / a.s.heads);
    a.latent = (int)c->in[C].dim[1], a.row = (int)c->in[CACHE].dim[1];
    a.window = c->attr.heads.window, a.scale = c->attr.heads.scale, a.cap = c->attr.heads.cap;
    a.pos = (const int32_t *)c->in[POS].data, a.start = (const int32_t *)c->in[START].data;
    BUG_IF(a.latent > LATENT_COLS * THREADS || a.row != a.latent + a.s.rot);
    unsigned n = (unsigned)c->in[Q].dim[0];
    LAUNCH(cuda_of(c), { n, THREADS }, store_latent, mixed(c->in[C]), mixed(c->in[ROT]),
           mixed(c->in[CACHE]), a);
    size_t shared = (size_t)(a.row + a.latent) * sizeof(float);
    LAUNCH(cuda_of(c), { dim3(n, (unsigned)a.s.heads), THREADS, shared }, attend_latent,
           mixed(c->in[Q]), mixed(c->in[W]), mixed(c->in[CACHE]), mixed(c->out[0]), a);
}

KERNEL(LATENT_QKV, cuda_latent_qkv, NULL, ATTR(HEADS_Q));
KERNEL(LATENT_QKV_BWD, cuda_latent_qkv, NULL, ATTR(HEADS_Q));
KERNEL(HEAD_VALUES, cuda_head_values, NULL, ATTR(HEADS_Q));
KERNEL(HEAD_VALUES_BWD, cuda_head_values, NULL, ATTR(HEADS_Q));
KERNEL(LATENT_CACHED, cuda_latent_cached, NULL, ATTR(HEADS_Q) | ATTRS_ATTENTION);
