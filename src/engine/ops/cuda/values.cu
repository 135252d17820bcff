/* Values of the tokens themselves, added to the value heads of a row of q | k | v, and the gradients: the formulas are
 * those of cpu/values.c. A block of 256 threads has ROWS tokens at a time and computes their gates first, in shared
 * memory. Bytes moved: v, ve, and of x the gates' channels; backward writes dve and a dx that is 0 beyond those.
 * Deterministic: backward's grid is fixed, and every block writes a partial sum of the gates' gradients. */
#include "device.cuh"

enum {
    THREADS = 256,
    ROWS = 8,
    MOST_HEADS = 256,
    MOST_CHANNELS = 16,
    BLOCKS = CUDA_PARTIALS,
    PER_SM = 3
};

typedef struct values_shape {
    int64_t n;
    int cols, v, heads, dim, channels, width; /* v: the first column of v; width: columns of x */
    bool copy;                                /* q and k too: results have memory of their own */
} values_shape;

/* The tokens of a block, in shared memory. */
typedef struct values_shared {
    float w[MOST_HEADS * MOST_CHANNELS], x[ROWS * MOST_CHANNELS], gate[ROWS * MOST_HEADS];
} values_shared;

static __device__ __forceinline__ void load_gates(const mixed &w, const values_shape &s,
                                                  values_shared *m) {
    for (int i = threadIdx.x; i < s.heads * s.channels; i += THREADS) m->w[i] = read1(w.p, w.dt, i);
}

/* The gates of the tokens from `first` on, [ROWS][heads]. */
static __device__ __forceinline__ void compute_gates(const mixed &x, const values_shape &s,
                                                     int64_t first, values_shared *m) {
    for (int i = threadIdx.x; i < ROWS * s.channels; i += THREADS) {
        int64_t row = first + i / s.channels;
        m->x[i] = row < s.n ? read1(x.p, x.dt, row * s.width + i % s.channels) : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * s.heads; i += THREADS) {
        const float *a = m->x + i / s.heads * s.channels, *b = m->w + i % s.heads * s.channels;
        float z = 0;
        for (int k = 0; k < s.channels; k++) z += a[k] * b[k];
        m->gate[i] = 3 * sigmoid(z);
    }
    __syncthreads();
}

/* Copies columns [0, end) of the block's rows. */
template <class A>
static __device__ __forceinline__ void copy_columns(const A &from, const A &to,
                                                    const values_shape &s, int64_t first, int rows,
                                                    int end) {
    int eights = (end + 7) / 8;
    for (int i = threadIdx.x; i < rows * eights; i += THREADS) {
        int64_t base = (first + i / eights) * s.cols, at = base + i % eights * 8;
        float v[8];
        from.load(at, base + end, v);
        to.store(at, base + end, v);
    }
}

/* Grid: n / ROWS blocks. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    values_fwd(A qkv, A ve, mixed x, mixed w, A y, values_shape s) {
    __shared__ values_shared m;
    int64_t first = (int64_t)blockIdx.x * ROWS;
    int rows = (int)(s.n - first < ROWS ? s.n - first : ROWS), kv = s.heads * s.dim,
        eights = (s.dim + 7) / 8;
    await_previous();
    load_gates(w, s, &m);
    compute_gates(x, s, first, &m);
    for (int i = threadIdx.x; i < rows * s.heads * eights; i += THREADS) {
        int row = i / (s.heads * eights), head = i / eights % s.heads, col = i % eights * 8;
        int64_t at = (first + row) * s.cols + s.v + head * s.dim,
                own = (first + row) * kv + head * s.dim;
        float v[8], e[8], gate = m.gate[row * s.heads + head];
        qkv.load(at + col, at + s.dim, v);
        ve.load(own + col, own + s.dim, e);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] += gate * e[k];
        y.store(at + col, at + s.dim, v);
    }
    if (s.copy) copy_columns(qkv, y, s, first, rows, s.v);
}

/* Zeros in the columns of dx that gates do not read, of the block's rows. */
static __device__ __forceinline__ void zero_columns(const mixed &dx, const values_shape &s,
                                                    int64_t first, int rows) {
    int from = (s.channels + 7) / 8 * 8, eights = (s.width - from + 7) / 8;
    const float zero[8] = { 0 };
    for (int i = threadIdx.x; i < rows * eights; i += THREADS) {
        int64_t base = (first + i / eights) * s.width;
        dx.store(base + from + i % eights * 8, base + s.width, zero);
    }
    for (int i = threadIdx.x; i < rows * (from - s.channels); i += THREADS) {
        int col = s.channels + i % (from - s.channels);
        if (col < s.width)
            write1(dx.p, dx.dt, (first + i / (from - s.channels)) * s.width + col, 0);
    }
}

/* Lanes that share a head: a power of two, so that one may not divide the other. */
static int lanes_of(int dim) {
    int lanes = 1;
    while (lanes < WARP && lanes * EIGHT < dim) lanes *= 2;
    return lanes;
}

/* Grid: BLOCKS blocks, which loop over the tokens. `lanes` threads sum dv . ve of a head of a token; U of these are in
 * flight. */
template <class A>
static __global__ void __launch_bounds__(THREADS, PER_SM)
    values_bwd(A dy, A ve, mixed x, mixed w, A dqkv, A dve, mixed dx, float *partial,
               values_shape s, int lanes) {
    enum { GATES_PER_THREAD = MOST_HEADS * MOST_CHANNELS / THREADS, U = A::NARROW ? 3 : 1 };
    __shared__ values_shared m;
    __shared__ float dz[ROWS * MOST_HEADS];
    int group = threadIdx.x / lanes, lane = threadIdx.x % lanes, groups = THREADS / lanes;
    int gates = s.heads * s.channels, kv = s.heads * s.dim;
    float dw[GATES_PER_THREAD] = { 0 };
    load_gates(w, s, &m);
    for (int64_t first = (int64_t)blockIdx.x * ROWS; first < s.n;
         first += (int64_t)gridDim.x * ROWS) {
        int rows = (int)(s.n - first < ROWS ? s.n - first : ROWS);
        __syncthreads(); /* nothing of the last tokens is read any more */
        if (dx.present()) zero_columns(dx, s, first, rows);
        compute_gates(x, s, first, &m);
        for (int base = 0; base < rows * s.heads; base += U * groups) {
            float dot[U] = { 0 };
            for (int k = lane * EIGHT; k < s.dim; k += lanes * EIGHT) {
                typename A::raw loaded[U][2] = {};
#pragma unroll
                for (int u = 0; u < U; u++) {
                    int i = base + u * groups + group;
                    int64_t row = first + i / s.heads, col = (int64_t)(i % s.heads) * s.dim;
                    int64_t at = row * s.cols + s.v + col, own = row * kv + col;
                    if (i >= rows * s.heads) continue;
                    loaded[u][0] = dy.fetch(at + k, at + s.dim); /* 0 beyond the head's dims */
                    loaded[u][1] = ve.fetch(own + k, own + s.dim);
                }
#pragma unroll
                for (int u = 0; u < U; u++) {
                    int i = base + u * groups + group;
                    int64_t own = (first + i / s.heads) * kv + (int64_t)(i % s.heads) * s.dim;
                    float d[8], e[8], gate = i < rows * s.heads ? m.gate[i] : 0;
                    A::widen(loaded[u][0], d);
                    A::widen(loaded[u][1], e);
#pragma unroll
                    for (int c = 0; c < 8; c++) {
                        dot[u] += d[c] * e[c];
                        e[c] = gate * d[c];
                    }
                    if (dve.present() && i < rows * s.heads) dve.store(own + k, own + s.dim, e);
                }
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                int i = base + u * groups + group;
                for (int o = lanes / 2; o; o >>= 1) dot[u] += __shfl_xor_sync(~0u, dot[u], o);
                if (lane == 0 && i < rows * s.heads)
                    dz[i] = dot[u] * m.gate[i] * (1 - m.gate[i] / 3);
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < GATES_PER_THREAD; k++) {
            int i = threadIdx.x + k * THREADS;
            for (int r = 0; i < gates && r < rows; r++)
                dw[k] += dz[r * s.heads + i / s.channels] * m.x[r * s.channels + i % s.channels];
        }
        for (int i = threadIdx.x; dx.present() && i < rows * s.channels; i += THREADS) {
            int row = i / s.channels, col = i % s.channels;
            float sum = 0;
            for (int h = 0; h < s.heads; h++)
                sum += dz[row * s.heads + h] * m.w[h * s.channels + col];
            write1(dx.p, dx.dt, (first + row) * s.width + col, sum);
        }
        if (s.copy) copy_columns(dy, dqkv, s, first, rows, s.cols);
    }
    float *to = partial + (int64_t)blockIdx.x * ((gates + 7) / 8 * 8);
#pragma unroll
    for (int k = 0; k < GATES_PER_THREAD; k++)
        if (threadIdx.x + k * THREADS < gates) to[threadIdx.x + k * THREADS] = dw[k];
}

static values_shape values_shape_of(const op_call *c) {
    values_shape s = {};
    int q = c->attr.heads.q, kv = c->attr.heads.kv;
    s.n = c->in[0].dim[0], s.cols = (int)c->in[0].dim[1], s.width = (int)c->in[2].dim[1];
    s.heads = kv, s.dim = c->attr.heads.dim, s.v = (q + kv) * s.dim,
    s.channels = (int)c->in[3].dim[1];
    s.copy = c->out[0].data && c->out[0].data != c->in[0].data;
    BUG_IF(kv > MOST_HEADS || s.channels > MOST_CHANNELS);
    return s;
}

static void cuda_add_values(const op_call *c) {
    values_shape s = values_shape_of(c);
    const tensor *qkv = &c->in[0], *ve = &c->in[1], *y = &c->out[0], *all[] = { qkv, ve, y };
    WITH_TYPE(common_type(s.dim, all, 3),
              LAUNCH(cuda_of(c), { blocks_for(s.n, ROWS), THREADS, 0, true }, values_fwd<A>,
                     A(*qkv, s.dim), A(*ve, s.dim), mixed(c->in[2]), mixed(c->in[3]), A(*y, s.dim),
                     s));
}

static void cuda_add_values_bwd(const op_call *c) {
    values_shape s = values_shape_of(c);
    const tensor *dy = &c->in[0], *ve = &c->in[1], *dqkv = &c->out[0], *dve = &c->out[1];
    const tensor *all[] = { dy, ve, dqkv, dve };
    int blocks = (int)(ceil_div(s.n, ROWS) < BLOCKS ? ceil_div(s.n, ROWS) : BLOCKS);
    float *partial = (float *)c->run->workspace;
    WITH_TYPE(common_type(s.dim, all, 4),
              LAUNCH(cuda_of(c), { blocks, THREADS }, values_bwd<A>, A(*dy, s.dim), A(*ve, s.dim),
                     mixed(c->in[2]), mixed(c->in[3]), A(*dqkv, s.dim), A(*dve, s.dim),
                     mixed(c->out[2]), partial, s, lanes_of(s.dim)));
    int gates = s.heads * s.channels;
    if (!c->out[3].data) return;
    cuda_sums o = { { (float *)c->out[3].data, NULL },
                    { (c->accumulate >> 3 & 1) != 0, false },
                    gates,
                    (gates + 7) / 8 * 8 };
    cuda_add_partials(cuda_of(c), partial, blocks, 1, &o);
}

static size_t cuda_add_values_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * align_up((size_t)(c->in[3].dim[0] * c->in[3].dim[1]), EIGHT) * sizeof(float);
}

KERNEL(ADD_VALUES, cuda_add_values, NULL, ATTRS_HEADS);
KERNEL(ADD_VALUES_BWD, cuda_add_values_bwd, cuda_add_values_workspace, ATTRS_HEADS);
