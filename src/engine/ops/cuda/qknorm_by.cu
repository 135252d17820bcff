/* RMS norm of q and k over all heads of a token, where ranks share the heads: mean squares of a rank's columns, and the
 * norm by the sum of all ranks'; the formulas are those of cpu/qknorm_by.c. A block of 256 threads has a row at a time,
 * a thread the same eights of columns of every row. Bytes moved: each operand once. Backward's weight gradients are
 * summed in shared memory, over a fixed grid of BLOCKS blocks that loop over the rows. Deterministic. */
#include "device.cuh"

enum { THREADS = 256, BLOCKS = CUDA_PARTIALS, MOST_COLUMNS = 49152 };

typedef struct by_shape {
    int64_t rows;
    int cols, at[4]; /* first column of q, k and v, and the end */
    float eps, by;   /* by: factor of the mean squares */
} by_shape;

static by_shape by_shape_of(const op_call *c, const tensor *x) {
    int dim = c->attr.heads.dim, q = c->attr.heads.q, kv = c->attr.heads.kv;
    by_shape s = {};
    s.rows = x->dim[0], s.cols = (int)x->dim[1];
    s.at[1] = q * dim, s.at[2] = (q + kv) * dim, s.at[3] = s.cols;
    s.eps = c->attr.eps, s.by = c->attr.scale.by;
    return s;
}

/* Accesses start at multiples of this many elements: 1 where a part is not made of eights. */
static int64_t part_unit(const by_shape &s) {
    return s.at[1] % 8 || s.at[2] % 8 || s.cols % 8 ? 1 : 8;
}

/* Grid: a block per row. */
template <class A>
static __global__ void __launch_bounds__(THREADS) qk_squares(A x, float *squares, by_shape s) {
    __shared__ float smem[THREADS / WARP];
    int64_t base = (int64_t)blockIdx.x * s.cols;
    for (int part = 0; part < 2; part++) {
        float sum = 0;
        for (int e = s.at[part] + threadIdx.x * 8; e < s.at[part + 1]; e += THREADS * 8) {
            float v[8];
            x.load(base + e, base + s.at[part + 1], v);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[i] * v[i];
        }
        sum = block_sum(sum, smem);
        if (threadIdx.x == 0)
            squares[2 * (int64_t)blockIdx.x + part] = s.by * sum / (s.at[part + 1] - s.at[part]);
    }
}

/* Grid: a block per row. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    qk_squares_bwd(const float *ds, A x, A dx, by_shape s) {
    int64_t base = (int64_t)blockIdx.x * s.cols;
    for (int part = 0; part < 3; part++) {
        float by = 0;
        if (part < 2)
            by = 2 * s.by * ds[2 * (int64_t)blockIdx.x + part] / (s.at[part + 1] - s.at[part]);
        for (int e = s.at[part] + threadIdx.x * 8; e < s.at[part + 1]; e += THREADS * 8) {
            float v[8] = { 0 };
            if (part < 2) x.load(base + e, base + s.at[part + 1], v);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] *= by;
            dx.store(base + e, base + s.at[part + 1], v);
        }
    }
}

/* Weights of eight columns of a part; 1 where there are none. */
template <class W>
static __device__ __forceinline__ void load_weights(const W &w, int at, int end, float v[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 1;
    if (w.present()) w.load(at, end, v);
}

/* Grid: a block per row. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    qknorm_by(A x, const float *squares, mixed wq, mixed wk, A y, by_shape s) {
    int64_t base = (int64_t)blockIdx.x * s.cols;
    for (int part = 0; part < 3; part++) {
        float r = part < 2 ? rsqrtf(squares[2 * (int64_t)blockIdx.x + part] + s.eps) : 1;
        int width = s.at[part + 1] - s.at[part];
        for (int e = threadIdx.x * 8; e < width; e += THREADS * 8) {
            float v[8], w[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
            x.load(base + s.at[part] + e, base + s.at[part + 1], v);
            if (part < 2) load_weights(part ? wk : wq, e, width, w);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = v[i] * r * w[i];
            y.store(base + s.at[part] + e, base + s.at[part + 1], v);
        }
    }
}

/* Grid: BLOCKS blocks at most, which loop over the rows; shared: a sum per column of q and k. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    qknorm_by_bwd(A dy, A x, const float *squares, mixed wq, mixed wk, A dx, float *ds,
                  float *partial, by_shape s) {
    DYNAMIC_SHARED(float, dw);
    __shared__ float smem[THREADS / WARP];
    for (int e = threadIdx.x; e < s.at[2]; e += THREADS) dw[e] = 0;
    __syncthreads();
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        int64_t base = row * s.cols;
        for (int part = 0; part < 3; part++) {
            float r = part < 2 ? rsqrtf(squares[2 * row + part] + s.eps) : 1, dot = 0;
            int width = s.at[part + 1] - s.at[part];
            for (int e = threadIdx.x * 8; e < width; e += THREADS * 8) {
                int64_t at = base + s.at[part] + e, end = base + s.at[part + 1];
                float g[8], v[8], w[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
                dy.load(at, end, g);
                if (part < 2) {
                    x.load(at, end, v);
                    load_weights(part ? wk : wq, e, width, w);
                    for (int i = 0; i < 8 && e + i < width; i++) {
                        dw[s.at[part] + e + i] += g[i] * v[i] * r;
                        g[i] *= w[i];
                        dot += g[i] * v[i];
                        g[i] *= r;
                    }
                }
                dx.store(at, end, g);
            }
            if (part == 2) continue;
            dot = block_sum(dot, smem);
            if (threadIdx.x == 0) ds[2 * row + part] = -0.5f * r * r * r * dot;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < s.at[2]; e += THREADS)
        partial[(int64_t)blockIdx.x * 2 * s.at[1] + e] = dw[e];
}

static void cuda_qk_squares(const op_call *c) {
    const tensor *x = &c->in[0], *all[] = { x };
    by_shape s = by_shape_of(c, x);
    int64_t unit = part_unit(s);
    WITH_TYPE(common_type(unit, all, 1),
              LAUNCH(cuda_of(c), { (unsigned)s.rows, THREADS }, qk_squares<A>, A(*x, unit),
                     (float *)c->out[0].data, s));
}

static void cuda_qk_squares_bwd(const op_call *c) {
    const tensor *x = &c->in[1], *dx = &c->out[0], *all[] = { x, dx };
    by_shape s = by_shape_of(c, x);
    int64_t unit = part_unit(s);
    WITH_TYPE(common_type(unit, all, 2),
              LAUNCH(cuda_of(c), { (unsigned)s.rows, THREADS }, qk_squares_bwd<A>,
                     (const float *)c->in[0].data, A(*x, unit), A(*dx, unit), s));
}

static void cuda_qknorm_by(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0], *all[] = { x, y };
    by_shape s = by_shape_of(c, x);
    int64_t unit = part_unit(s);
    WITH_TYPE(common_type(unit, all, 2),
              LAUNCH(cuda_of(c), { (unsigned)s.rows, THREADS }, qknorm_by<A>, A(*x, unit),
                     (const float *)c->in[1].data, mixed(c->in[2]), mixed(c->in[3]), A(*y, unit),
                     s));
}

static void cuda_qknorm_by_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0], *all[] = { dy, x, dx };
    by_shape s = by_shape_of(c, x);
    int64_t unit = part_unit(s);
    int blocks = (int)(s.rows < BLOCKS ? s.rows : BLOCKS);
    float *partial = (float *)c->run->workspace;
    BUG_IF(s.at[2] > MOST_COLUMNS);
    WITH_TYPE(common_type(unit, all, 3),
              LAUNCH(cuda_of(c), { blocks, THREADS, s.at[2] * sizeof(float) }, qknorm_by_bwd<A>,
                     A(*dy, unit), A(*x, unit), (const float *)c->in[2].data, mixed(c->in[3]),
                     mixed(c->in[4]), A(*dx, unit), (float *)c->out[1].data, partial, s));
    /* There are at least as many columns for q as for k, and a partial sum has the columns of q for both. */
    cuda_sums q = { { (float *)c->out[2].data, NULL }, { (c->accumulate >> 2 & 1) != 0, false } };
    cuda_sums k = { { NULL, (float *)c->out[3].data }, { false, (c->accumulate >> 3 & 1) != 0 } };
    q.wide = k.wide = q.d = s.at[1], k.d = s.at[2] - s.at[1];
    if (q.out[0]) cuda_add_partials(cuda_of(c), partial, blocks, 2, &q);
    if (k.out[1]) cuda_add_partials(cuda_of(c), partial, blocks, 2, &k);
}

static size_t cuda_qknorm_by_workspace(const op_backend *b, const op_call *c, int threads) {
    return (size_t)BLOCKS * 2 * c->attr.heads.q * c->attr.heads.dim * sizeof(float);
}

KERNEL(QK_SQUARES, cuda_qk_squares, NULL, ATTRS_HEADS | ATTR(SCALE_BY));
KERNEL(QK_SQUARES_BWD, cuda_qk_squares_bwd, NULL, ATTRS_HEADS | ATTR(SCALE_BY));
KERNEL(QKNORM_BY, cuda_qknorm_by, NULL, ATTRS_HEADS | ATTR(EPS));
KERNEL(QKNORM_BY_BWD, cuda_qknorm_by_bwd, cuda_qknorm_by_workspace, ATTRS_HEADS | ATTR(EPS));
