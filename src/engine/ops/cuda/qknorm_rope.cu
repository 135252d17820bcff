/* RMS norm and rotation of q and k heads in one pass, forward and backward: the formulas are those of
 * cpu/qknorm_rope.c. A head has 2^bits threads of a warp; a thread holds sixteen of its elements in registers: eight
 * pairs that are rotated together, or elements that are not rotated.
 *
 *     head | first halves of the pairs | second halves | not rotated |     thread i < pairs: eights i of both halves
 *
 * Grid: blocks of 256 threads, one head per 2^bits; v's heads too, which are copied, where the result has memory of its
 * own. With weights the backward pass has a fixed grid that loops over the heads, and every block writes a partial sum of
 * the weights' gradients. Bytes: 2 x N x C elements, backward 3 (in place q and k alone), and the rows of the table.
 * Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREAD_BITS = 8, THREADS = 1 << THREAD_BITS, BLOCKS = CUDA_PARTIALS };

typedef struct head_rows {
    uint32_t rows;
    int q, heads, all;      /* heads per row: of q; of q and k; those that are written */
    int stride, dim, rot;   /* columns of a row; of a head, all and rotated */
    int pairs, units, bits; /* threads of a head that rotate, that have elements; log2 of all */
    float eps;
} head_rows;

/* The sixteen elements of a thread: two eights of a head. */
typedef struct head_sixteen {
    int64_t row, base; /* base: the head's first element */
    int head, lane, at[2], end[2];
    bool in; /* this thread has elements */
} head_sixteen;

/* The thread's elements of head `number` among the `heads` from `first` on of every row. */
static __device__ __forceinline__ head_sixteen sixteen_of(const head_rows &s, uint32_t number,
                                                          int first, int heads) {
    head_sixteen p;
    p.lane = threadIdx.x & ((1 << s.bits) - 1);
    p.row = number / heads;
    p.head = first + number % heads;
    p.base = p.row * s.stride + (int64_t)p.head * s.dim;
    p.in = p.row < s.rows && p.lane < s.units;
    bool rotates = p.lane < s.pairs;
    p.at[0] = rotates ? p.lane * 8 : s.rot + (p.lane - s.pairs) * 16;
    p.at[1] = p.at[0] + (rotates ? s.rot / 2 : 8);
    p.end[0] = rotates ? s.rot / 2 : s.dim;
    p.end[1] = rotates ? s.rot : s.dim;
    return p;
}
/* The head of a thread in a grid with threads for each. */
static __device__ __forceinline__ uint32_t first_number(const head_rows &s) {
    return (blockIdx.x << (THREAD_BITS - s.bits)) + (threadIdx.x >> s.bits);
}

/* Elements from `base` on, `absent` where there are none. */
template <class A>
static __device__ __forceinline__ void load_sixteen(const A &x, const head_sixteen &p, bool in,
                                                    int64_t base, float absent, float v[2][8]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int k = 0; k < 8; k++) v[h][k] = absent;
        if (in && p.at[h] < p.end[h]) x.load(base + p.at[h], base + p.end[h], v[h]);
    }
}
template <class A>
static __device__ __forceinline__ void store_sixteen(const A &y, const head_sixteen &p,
                                                     const float v[2][8]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (p.in && p.at[h] < p.end[h]) y.store(p.base + p.at[h], p.base + p.end[h], v[h]);
}

/* cos and sin of the thread's pairs; elements that are not rotated have the angle 0. */
template <class W>
static __device__ __forceinline__ void load_angles(const W &table, const int32_t *pos,
                                                   const head_rows &s, const head_sixteen &p,
                                                   float cs[2][8]) {
    bool rotates = p.in && p.head < s.heads && p.lane < s.pairs;
    load_sixteen(table, p, rotates, rotates ? (int64_t)pos[p.row] * s.rot : 0, 0, cs);
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (!rotates) cs[0][k] = 1;
}
static __device__ __forceinline__ void rotate_sixteen(const float cs[2][8], float sign,
                                                      float v[2][8]) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float a = v[0][k], b = v[1][k];
        v[0][k] = a * cs[0][k] - sign * b * cs[1][k];
        v[1][k] = b * cs[0][k] + sign * a * cs[1][k];
    }
}

/* The mean over a head of the products of x and y; every thread of the warp calls it. */
static __device__ __forceinline__ float mean_product(const head_rows &s, const float x[2][8],
                                                     const float y[2][8]) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += x[0][k] * y[0][k] + x[1][k] * y[1][k];
    for (int o = 1 << s.bits >> 1; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    return sum / (float)s.dim;
}

/* The weights of a head, 1 where it has none. */
static __device__ __forceinline__ void load_head_weights(const mixed &wq, const mixed &wk,
                                                         const head_rows &s, const head_sixteen &p,
                                                         float w[2][8]) {
    mixed of; /* member by member: a reference to one of two parameters would copy both to memory */
    of.p = p.head < s.q ? wq.p : wk.p;
    of.dt = p.head < s.q ? wq.dt : wk.dt;
    of.eights = p.head < s.q ? wq.eights : wk.eights;
    load_sixteen(of, p, p.in && p.head < s.heads, 0, 1, w);
}

template <class A, bool WEIGHTED>
static __global__ void __launch_bounds__(THREADS)
    qknorm_rope_fwd(A x, A y, mixed wq, mixed wk, const int32_t *pos, typename A::fp32 table,
                    float *stat, head_rows s) {
    head_sixteen p = sixteen_of(s, first_number(s), 0, s.all);
    float v[2][8], cs[2][8], w[2][8];
    await_previous();
    load_sixteen(x, p, p.in, p.base, 0, v);
    load_angles(table, pos, s, p, cs);
    if (WEIGHTED) load_head_weights(wq, wk, s, p, w);
    float scale = rsqrtf(mean_product(s, v, v) + s.eps);
    if (p.head < s.heads) {
#pragma unroll
        for (int i = 0; i < 16; i++) v[i / 8][i % 8] *= WEIGHTED ? scale * w[i / 8][i % 8] : scale;
        rotate_sixteen(cs, 1, v);
        if (p.in && p.lane == 0) stat[p.row * s.heads + p.head] = scale;
    }
    store_sixteen(y, p, v);
}

/* From the result, without weights. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    qknorm_rope_bwd(A dy, A y, const float *stat, const int32_t *pos, typename A::fp32 table, A dx,
                    head_rows s) {
    head_sixteen p = sixteen_of(s, first_number(s), 0, s.all);
    bool normed = p.in && p.head < s.heads;
    float d[2][8], v[2][8], cs[2][8];
    load_sixteen(dy, p, p.in, p.base, 0, d);
    load_sixteen(y, p, normed, p.base, 0, v);
    load_angles(table, pos, s, p, cs);
    float mean = mean_product(s, d, v);
    if (normed) {
        float scale = stat[p.row * s.heads + p.head];
        float by = mean / (cs[0][0] * cs[0][0] + cs[1][0] * cs[1][0]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            d[0][k] = scale * (d[0][k] - v[0][k] * by);
            d[1][k] = scale * (d[1][k] - v[1][k] * by);
        }
        rotate_sixteen(cs, -1, d);
    }
    store_sixteen(dx, p, d);
}

/* Sums the blocks' dw over the heads that its threads had, in order, to partial[dim]. */
static __device__ __forceinline__ void add_heads(const head_rows &s, const head_sixteen &p,
                                                 const float dw[2][8], float *partial) {
    __shared__ float smem[16][THREADS];
    int lanes = 1 << s.bits;
    __syncthreads(); /* the last call's sums have been read */
#pragma unroll
    for (int i = 0; i < 16; i++) smem[i][threadIdx.x] = dw[i / 8][i % 8];
    __syncthreads();
    if (threadIdx.x >= lanes || p.lane >= s.units) return;
    for (int i = 0; i < 16; i++) {
        int col = p.at[i / 8] + i % 8;
        float sum = 0;
        for (int t = p.lane; t < THREADS; t += lanes) sum += smem[i][t];
        if (col < p.end[i / 8]) partial[col] = sum;
    }
}

/* From what was normalized, with weights. Grid: up to BLOCKS; a block has its share of q's heads, then of k's, and copies
 * v's where they are written. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    qknorm_rope_weighted_bwd(A dy, A x, const float *stat, mixed wq, mixed wk, const int32_t *pos,
                             typename A::fp32 table, A dx, float *partial, head_rows s) {
    uint32_t stride = gridDim.x << (THREAD_BITS - s.bits);
    for (int part = 0; part < 3; part++) {
        int first = part == 0 ? 0 : part == 1 ? s.q : s.heads;
        int heads = (part == 0 ? s.q : part == 1 ? s.heads : s.all) - first;
        if (heads == 0) continue;
        float dw[2][8] = {}, w[2][8];
        head_sixteen p = sixteen_of(s, 0, first, heads);
        load_head_weights(wq, wk, s, p, w);
        /* all threads of a block loop as often: they share sums */
        for (uint32_t at = blockIdx.x << (THREAD_BITS - s.bits); at < s.rows * heads;
             at += stride) {
            p = sixteen_of(s, at + (threadIdx.x >> s.bits), first, heads);
            float d[2][8], v[2][8], cs[2][8];
            load_sixteen(dy, p, p.in, p.base, 0, d);
            if (part < 2) {
                load_sixteen(x, p, p.in, p.base, 0, v);
                load_angles(table, pos, s, p, cs);
                rotate_sixteen(cs, -1, d);
                float scale = p.in ? stat[p.row * s.heads + p.head] : 0;
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    int h = i / 8, k = i % 8;
                    v[h][k] *= scale;
                    dw[h][k] += d[h][k] * v[h][k];
                    d[h][k] *= w[h][k];
                }
                float mean = mean_product(s, d, v);
#pragma unroll
                for (int i = 0; i < 16; i++)
                    d[i / 8][i % 8] = scale * (d[i / 8][i % 8] - v[i / 8][i % 8] * mean);
            }
            store_sixteen(dx, p, d);
        }
        int wide = (s.dim + 7) / 8 * 8;
        if (part < 2) add_heads(s, p, dw, partial + (blockIdx.x * 2 + part) * wide);
    }
}

static head_rows head_rows_of(const op_call *c) {
    head_rows s = {};
    int kv = c->attr.heads.kv;
    s.stride = (int)c->in[0].dim[1], s.q = c->attr.heads.q, s.heads = s.q + kv;
    s.all = s.heads + (c->in[0].data == c->out[0].data ? 0 : kv);
    BUG_IF(c->in[0].dim[0] * s.all > INT32_MAX);
    s.rows = (uint32_t)c->in[0].dim[0];
    s.dim = c->attr.heads.dim, s.rot = c->attr.heads.rot, s.eps = c->attr.eps;
    s.pairs = (int)ceil_div(s.rot / 2, 8);
    s.units = s.pairs + (int)ceil_div(s.dim - s.rot, 16);
    while (1 << s.bits < s.units) s.bits++;
    BUG_IF(1 << s.bits > WARP || s.dim > QKNORM_ROPE_DIM);
    return s;
}

/* Accesses start at multiples of this. */
static int eights_unit(const head_rows &s) { return s.dim % 8 || s.rot / 2 % 8 ? 1 : 8; }

/* @return the type of all activations where they and the table can be read by eights. */
static dtype eights_type(const head_rows &s, const tensor *const *all, int n, const tensor *table) {
    int unit = eights_unit(s);
    return common_type(unit, &table, 1) == DT_F32 ? common_type(unit, all, n) : DT_NONE;
}

static void cuda_qknorm_rope(const op_call *c) {
    head_rows s = head_rows_of(c);
    bool weighted = c->op == OP_QKNORM_ROPE_WEIGHTED;
    const tensor *x = &c->in[0], *pos = &c->in[weighted ? 3 : 1], *y = &c->out[0],
                 *all[] = { x, y };
    int unit = eights_unit(s);
    mixed wq, wk;
    if (weighted) wq = mixed(c->in[1], unit), wk = mixed(c->in[2], unit);
    unsigned blocks = blocks_for((int64_t)s.rows * s.all, THREADS >> s.bits);
    WITH_TYPE(eights_type(s, all, 2, pos + 1),
              auto kernel = weighted ? qknorm_rope_fwd<A, true> : qknorm_rope_fwd<A, false>;
              LAUNCH(cuda_of(c), { blocks, THREADS, 0, true }, kernel, A(*x, unit), A(*y, unit), wq,
                     wk, (const int32_t *)pos->data, typename A::fp32(pos[1], unit),
                     (float *)c->out[1].data, s));
}

static void cuda_qknorm_rope_bwd(const op_call *c) {
    head_rows s = head_rows_of(c);
    const tensor *dy = &c->in[0], *y = &c->in[1], *table = &c->in[4], *dx = &c->out[0];
    const tensor *all[] = { dy, y, dx };
    int unit = eights_unit(s);
    WITH_TYPE(
        eights_type(s, all, 3, table),
        LAUNCH(cuda_of(c), { blocks_for((int64_t)s.rows * s.all, THREADS >> s.bits), THREADS },
               qknorm_rope_bwd<A>, A(*dy, unit), A(*y, unit), (const float *)c->in[2].data,
               (const int32_t *)c->in[3].data, typename A::fp32(*table, unit), A(*dx, unit), s));
}

static void cuda_qknorm_rope_weighted_bwd(const op_call *c) {
    head_rows s = head_rows_of(c);
    const tensor *dy = &c->in[0], *x = &c->in[1], *table = &c->in[6], *dx = &c->out[0];
    const tensor *all[] = { dy, x, dx };
    int unit = eights_unit(s);
    int64_t wanted = ceil_div((int64_t)s.rows * s.heads, THREADS >> s.bits);
    int blocks = (int)(wanted < BLOCKS ? wanted : BLOCKS);
    float *partial = (float *)c->run->workspace;
    WITH_TYPE(eights_type(s, all, 3, table),
              LAUNCH(cuda_of(c), { blocks, THREADS }, qknorm_rope_weighted_bwd<A>, A(*dy, unit),
                     A(*x, unit), (const float *)c->in[2].data, mixed(c->in[3], unit),
                     mixed(c->in[4], unit), (const int32_t *)c->in[5].data,
                     typename A::fp32(*table, unit), A(*dx, unit), partial, s));
    cuda_sums o = { { (float *)c->out[1].data, (float *)c->out[2].data },
                    { (c->accumulate >> 1 & 1) != 0, (c->accumulate >> 2 & 1) != 0 },
                    s.dim,
                    (s.dim + 7) / 8 * 8 };
    if (o.out[0] || o.out[1]) cuda_add_partials(cuda_of(c), partial, blocks, 2, &o);
}

static size_t cuda_qknorm_rope_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * 2 * align_up((size_t)c->attr.heads.dim, EIGHT) * sizeof(float);
}

KERNEL(QKNORM_ROPE, cuda_qknorm_rope, NULL, ATTRS_HEADS | ATTR(ROT) | ATTR(EPS));
KERNEL(QKNORM_ROPE_BWD, cuda_qknorm_rope_bwd, NULL, ATTRS_HEADS | ATTR(ROT));
KERNEL(QKNORM_ROPE_WEIGHTED, cuda_qknorm_rope, NULL, ATTRS_HEADS | ATTR(ROT) | ATTR(EPS));
KERNEL(QKNORM_ROPE_WEIGHTED_BWD, cuda_qknorm_rope_weighted_bwd, cuda_qknorm_rope_workspace,
       ATTRS_HEADS | ATTR(ROT));
