/* RMS norm and layer norm with the residual sum fused, and the norms of q and k heads; forward and
 * backward.
 *
 * A row is held in the registers of `warps` warps, at most 32 elements a thread, so that each tensor
 * is read once and written once:
 *
 *     forward    x, delta -> r, y          2 to 4 x N x D elements
 *     backward   dy, r, dr -> dx           3 to 4 x N x D elements, and the weights' gradients:
 *                each block adds the rows it takes up in registers and leaves one partial sum;
 *                a second kernel adds those in order. Deterministic: who takes which row follows
 *                from the shapes and the device alone.
 */
#include "device.cuh"

enum { MOST_V = 4, FWD_WARPS = 4, BWD_WARPS = 8, MOST_WIDTH = 16384 };

/* Rows of d elements. A token has `groups` of them, one after another from column `first` of
 * `stride`, and their statistics from column stat_first of stat_stride. */
typedef struct norm_shape {
    int64_t n; /* tokens x groups */
    int d, groups, first, stride, stat_first, stat_stride;
    int warps, rows; /* warps a row, rows a block */
    float eps;
    bool rms;
} norm_shape;

static __device__ __forceinline__ int64_t row_place(const norm_shape &s, int64_t row) {
    if (s.groups == 1) return row * s.stride + s.first;
    return row / s.groups * s.stride + s.first + row % s.groups * s.d;
}
static __device__ __forceinline__ int64_t stat_place(const norm_shape &s, int64_t row) {
    if (s.groups == 1) return row * s.stat_stride + s.stat_first;
    return row / s.groups * s.stat_stride + s.stat_first + row % s.groups;
}

static norm_shape shape_of(const op_call *c, int64_t tokens, int groups, int64_t d, int first,
                           int64_t stride, bool rms) {
    BUG_IF(d > MOST_WIDTH);
    norm_shape s = {};
    s.n = tokens * groups;
    s.d = (int)d;
    s.groups = groups;
    s.first = first;
    s.stride = (int)stride;
    s.stat_stride = rms ? 1 : 2;
    s.eps = c->attr.eps;
    s.rms = rms;
    return s;
}

/* Forward fills a thread's registers. Backward, which keeps sums beside a row, takes three vectors a
 * thread where one warp then holds the row and waits for no other; else two, until a row has
 * BWD_WARPS. */
static void spread(norm_shape &s, bool bwd) {
    int64_t vectors = ceil_div(s.d, WARP * EIGHT);
    s.warps = (int)ceil_div(vectors, !bwd ? MOST_V : vectors <= 3 ? 3 : 2);
    if (bwd && s.warps > BWD_WARPS)
        s.warps = vectors > BWD_WARPS * MOST_V ? 2 * BWD_WARPS : BWD_WARPS;
    int warps = bwd ? BWD_WARPS : FWD_WARPS;
    s.rows = s.warps < warps ? warps / s.warps : 1;
}

/* The sum over a row's warps, to all its threads. `room` [32]. */
static __device__ __forceinline__ float row_sum(float v, const norm_shape &s, float *room) {
    v = warp_sum(v);
    if (s.warps == 1) return v;
    int warp = threadIdx.x / WARP, first = warp / s.warps * s.warps;
    __syncthreads();
    if (threadIdx.x % WARP == 0) room[warp] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < s.warps; i++) v += room[first + i];
    return v;
}

/* The columns of vector k of this thread. */
static __device__ __forceinline__ int column(const norm_shape &s, int k) {
    int in_row = threadIdx.x % (s.warps * WARP);
    return (k * s.warps * WARP + in_row) * EIGHT;
}

/* ---- forward --------------------------------------------------------------------------------- */
template <class A, int V>
static __global__ void norm_fwd(A x, A delta, mixed w, mixed b, A r, A y, float *stat,
                                norm_shape s) {
    __shared__ float room[32];
    int64_t row = (int64_t)blockIdx.x * s.rows + threadIdx.x / (s.warps * WARP);
    bool live = row < s.n;
    int64_t base = row_place(s, row), end = base + s.d;
    float v[V][8], sum = 0;
#pragma unroll
    for (int k = 0; k < V; k++) {
        int col = column(s, k);
        bool in = live && col < s.d;
        for (int i = 0; i < 8; i++) v[k][i] = 0;
        if (in) x.load(base + col, end, v[k]);
        if (in && delta.present()) {
            float d[8];
            delta.load(base + col, end, d);
            for (int i = 0; i < 8; i++) v[k][i] = r.round(v[k][i] + d[i]);
        }
        if (in && r.present()) r.store(base + col, end, v[k]);
        for (int i = 0; i < 8; i++) sum += s.rms ? v[k][i] * v[k][i] : v[k][i];
    }
    sum = row_sum(sum, s, room);
    float mean = s.rms ? 0 : sum / s.d;
    if (!s.rms) {
        sum = 0;
#pragma unroll
        for (int k = 0; k < V; k++)
            for (int i = 0; i < 8; i++)
                if (column(s, k) + i < s.d) sum += (v[k][i] - mean) * (v[k][i] - mean);
        sum = row_sum(sum, s, room);
    }
    float scale = rsqrtf(sum / s.d + s.eps);
    if (!live) return;
    if (column(s, 0) == 0) {
        float *to = stat + stat_place(s, row);
        if (!s.rms) *to++ = mean;
        *to = scale;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        int col = column(s, k);
        if (col >= s.d) continue;
        float weight[8], bias[8] = { 0 };
        w.load(col, s.d, weight);
        if (b.present()) b.load(col, s.d, bias);
        for (int i = 0; i < 8; i++) v[k][i] = (v[k][i] - mean) * scale * weight[i] + bias[i];
        y.store(base + col, end, v[k]);
    }
}

typedef struct norm_args {
    tensor x, delta, w, b, r, y; /* delta, b and r may be absent */
    float *stat;
} norm_args;

template <class A>
static void launch_fwd(cudaStream_t stream, const norm_args &a, const norm_shape &s) {
    int blocks = (int)ceil_div(s.n, s.rows), threads = s.rows * s.warps * WARP;
#define FWD(V)                                                                                     \
    norm_fwd<A, V><<<blocks, threads, 0, stream>>>(                                                \
        A(a.x, s.d), A(a.delta, s.d), mixed(a.w), mixed(a.b), A(a.r, s.d), A(a.y, s.d), a.stat, s)
    switch (ceil_div(s.d, s.warps * WARP * EIGHT)) {
    case 1: FWD(1); break;
    case 2: FWD(2); break;
    case 3: FWD(3); break;
    default: FWD(4);
    }
#undef FWD
}

static void run_fwd(const op_call *c, const norm_args &a, norm_shape s) {
    spread(s, false);
    const tensor *all[] = { &a.x, &a.delta, &a.r, &a.y };
    dtype dt = s.stride % 8 ? DT_NONE : common_type(s.d, all, 4);
    WITH_TYPE(dt, launch_fwd<A>(cuda_stream(c), a, s));
    CUDA_LAUNCHED(c);
}

extern "C" void cuda_norm(const op_call *c) {
    bool rms = c->op == OP_RMSNORM;
    const tensor *x = &c->in[0];
    norm_shape s = shape_of(c, x->dim[0], 1, x->dim[1], 0, x->dim[1], rms);
    norm_args a = {};
    a.x = *x, a.delta = c->in[1], a.w = c->in[2], a.r = c->out[0], a.y = c->out[1];
    if (!rms) a.b = c->in[3];
    a.stat = (float *)c->out[2].data;
    if (!a.delta.data && a.r.data == a.x.data) a.r.data = NULL; /* r is x already */
    run_fwd(c, a, s);
}

/* ---- backward -------------------------------------------------------------------------------- */
template <class A, int V, bool RMS>
static __global__ void __launch_bounds__(V > 3 ? 512 : 256, V > 3          ? 1
                                                            : RMS && V < 3 ? 3
                                                                           : 2)
    norm_bwd(A dy, A x, const float *stat, mixed w, A dr, A dx, float *partial, bool biased,
             norm_shape s) {
    extern __shared__ float shared[]; /* [rows - 1][2 or 1][d] for the block's sum */
    __shared__ float room[32];
    int in_block = threadIdx.x / (s.warps * WARP);
    float dw[V][8] = { { 0 } }, db[V][8] = { { 0 } };
    for (int64_t first = (int64_t)blockIdx.x * s.rows; first < s.n;
         first += (int64_t)gridDim.x * s.rows) {
        int64_t row = first + in_block, base = row_place(s, row), end = base + s.d;
        bool live = row < s.n;
        const float *st = stat + stat_place(s, live ? row : 0);
        float mean = RMS ? 0 : st[0], scale = RMS ? st[0] : st[1];
        float g[V][8], h[V][8], sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int k = 0; k < V; k++) {
            int col = column(s, k);
#pragma unroll
            for (int i = 0; i < 8; i++) g[k][i] = h[k][i] = 0;
            if (!live || col >= s.d) continue;
            dy.load(base + col, end, g[k]);
            x.load(base + col, end, h[k]);
            float weight[8];
            w.load(col, s.d, weight);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (col + i >= s.d) continue;
                h[k][i] = (h[k][i] - mean) * scale;
                dw[k][i] += g[k][i] * h[k][i];
                if (!RMS) db[k][i] += g[k][i];
                g[k][i] *= weight[i];
                sum_g += g[k][i];
                sum_gh += g[k][i] * h[k][i];
            }
        }
        sum_gh = row_sum(sum_gh, s, room) / s.d;
        sum_g = RMS ? 0 : row_sum(sum_g, s, room) / s.d;
        if (!live) continue;
#pragma unroll
        for (int k = 0; k < V; k++) {
            int col = column(s, k);
            if (col >= s.d) continue;
            float d[8] = { 0 };
            if (dr.present()) dr.load(base + col, end, d);
#pragma unroll
            for (int i = 0; i < 8; i++) d[i] += scale * (g[k][i] - sum_g - h[k][i] * sum_gh);
            dx.store(base + col, end, d);
        }
    }
    /* The rows of the block in order, then one partial sum. */
    int kinds = biased ? 2 : 1;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < V; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int col = column(s, k) + i;
            if (in_block == 0 || col >= s.d) continue;
            float *to = shared + (int64_t)(in_block - 1) * kinds * s.d;
            to[col] = dw[k][i];
            if (biased) to[s.d + col] = db[k][i];
        }
    __syncthreads();
    if (in_block > 0) return;
    float *to = partial + (int64_t)blockIdx.x * kinds * s.d;
#pragma unroll
    for (int k = 0; k < V; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int col = column(s, k) + i;
            if (col >= s.d) continue;
            float sum = dw[k][i], sum_b = db[k][i];
            for (int row = 1; row < s.rows; row++) {
                const float *from = shared + (int64_t)(row - 1) * kinds * s.d;
                sum += from[col];
                if (biased) sum_b += from[s.d + col];
            }
            to[col] = sum;
            if (biased) to[s.d + col] = sum_b;
        }
}

/* out[col] (+)= sum over rows of partial[rows, stride]; 32 columns a block, 8 threads each. */
static __global__ void add_partials(const float *partial, int rows, int64_t stride, int64_t cols,
                                    float *out, bool accumulate) {
    __shared__ float room[8][33];
    int64_t col = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (col < cols)
        for (int r = threadIdx.y; r < rows; r += 8) sum += partial[r * stride + col];
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= cols) return;
    for (int k = 1; k < 8; k++) sum += room[k][threadIdx.x];
    out[col] = accumulate ? out[col] + sum : sum;
}

/* As many blocks as are on the device at a time, on 132 multiprocessors: a second wave would run
 * with most of it idle. */
static int bwd_blocks(const norm_shape &s) {
    int64_t vectors = ceil_div(s.d, (int64_t)s.warps * WARP * EIGHT);
    int most = vectors > 3            ? CUDA_PARTIALS / 3
               : s.rms && vectors < 3 ? CUDA_PARTIALS
                                      : CUDA_PARTIALS / 3 * 2;
    int64_t blocks = ceil_div(s.n, s.rows);
    return (int)(blocks < most ? blocks : most);
}

typedef struct norm_bwd_args {
    tensor dy, x, w, dr, dx; /* dr may be absent */
    const float *stat;
    float *dw, *db; /* NULL: not wanted */
    bool add_w, add_b;
} norm_bwd_args;

template <class A>
static void launch_bwd(const op_call *c, const norm_bwd_args &a, const norm_shape &s, bool biased) {
    int blocks = bwd_blocks(s), threads = s.rows * s.warps * WARP;
    size_t shared = (size_t)(s.rows - 1) * (biased ? 2 : 1) * s.d * sizeof(float);
    float *partial = (float *)c->run->workspace;
#define BWD(V)                                                                                     \
    (s.rms ? norm_bwd<A, V, true>                                                                  \
           : norm_bwd<A, V, false>)<<<blocks, threads, shared, cuda_stream(c)>>>(                  \
        A(a.dy, s.d), A(a.x, s.d), a.stat, mixed(a.w), A(a.dr, s.d), A(a.dx, s.d), partial,        \
        biased, s)
    switch (ceil_div(s.d, s.warps * WARP * EIGHT)) {
    case 1: BWD(1); break;
    case 2: BWD(2); break;
    case 3: BWD(3); break;
    default: BWD(4);
    }
#undef BWD
}

static void run_bwd(const op_call *c, const norm_bwd_args &a, norm_shape s) {
    spread(s, true);
    const tensor *all[] = { &a.dy, &a.x, &a.dr, &a.dx };
    dtype dt = s.stride % 8 ? DT_NONE : common_type(s.d, all, 4);
    bool biased = a.db != NULL;
    WITH_TYPE(dt, launch_bwd<A>(c, a, s, biased));
    CUDA_LAUNCHED(c);
    float *partial = (float *)c->run->workspace, *out[] = { a.dw, a.db };
    bool add[] = { a.add_w, a.add_b };
    for (int k = 0; k < 2; k++) {
        if (!out[k]) continue;
        add_partials<<<(unsigned)ceil_div(s.d, 32), dim3(32, 8), 0, cuda_stream(c)>>>(
            partial + k * s.d, bwd_blocks(s), (int64_t)s.d * (biased ? 2 : 1), s.d, out[k], add[k]);
        CUDA_LAUNCHED(c);
    }
}

extern "C" void cuda_norm_bwd(const op_call *c) {
    bool rms = c->op == OP_RMSNORM_BWD;
    const tensor *x = &c->in[1];
    norm_shape s = shape_of(c, x->dim[0], 1, x->dim[1], 0, x->dim[1], rms);
    norm_bwd_args a = {};
    a.dy = c->in[0], a.x = *x, a.w = c->in[3], a.dr = c->in[4], a.dx = c->out[0];
    a.stat = (const float *)c->in[2].data;
    a.dw = (float *)c->out[1].data, a.add_w = c->accumulate >> 1 & 1;
    a.db = rms ? NULL : (float *)c->out[2].data, a.add_b = c->accumulate >> 2 & 1;
    run_bwd(c, a, s);
}

/* ---- q and k heads ---------------------------------------------------------------------------- */
/* The groups of q (part 0) or k (part 1) in a row of q | k | v. */
static norm_shape heads_of(const op_call *c, const tensor *x, int part) {
    int q = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    bool full = c->attr.heads.norm_full;
    int heads = part ? kv : q, first = part ? q * dim : 0;
    norm_shape s = full ? shape_of(c, x->dim[0], 1, (int64_t)heads * dim, first, x->dim[1], true)
                        : shape_of(c, x->dim[0], heads, dim, first, x->dim[1], true);
    s.stat_stride = full ? 2 : q + kv;
    s.stat_first = part ? (full ? 1 : q) : 0;
    return s;
}

/* v, as it is. */
template <class A>
static __global__ void copy_columns(A x, A y, int64_t rows, int64_t stride, int64_t first) {
    int64_t width = stride - first, eights = (width + 7) / 8, total = rows * eights;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < total;
         e += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = e / eights, at = row * stride + first + e % eights * 8;
        float v[8];
        x.load(at, row * stride + stride, v);
        y.store(at, row * stride + stride, v);
    }
}

static void copy_v(const op_call *c, const tensor *x, const tensor *y) {
    if (x->data == y->data) return;
    int64_t rows = x->dim[0], stride = x->dim[1];
    int64_t first = (int64_t)(c->attr.heads.q + c->attr.heads.kv) * c->attr.heads.dim;
    const tensor *all[] = { x, y };
    dtype dt = first % 8 ? DT_NONE : common_type(stride, all, 2);
    int blocks = grid_for(cuda_of(c), rows * ceil_div(stride - first, 8), 256, 16);
    int64_t width = first % 8 ? first : stride;
    WITH_TYPE(dt, (copy_columns<A><<<blocks, 256, 0, cuda_stream(c)>>>(A(*x, width), A(*y, width),
                                                                       rows, stride, first)));
    CUDA_LAUNCHED(c);
}

extern "C" void cuda_qknorm(const op_call *c) {
    for (int part = 0; part < 2; part++) {
        norm_args a = {};
        a.x = c->in[0], a.w = c->in[1 + part], a.y = c->out[0];
        a.stat = (float *)c->out[1].data;
        run_fwd(c, a, heads_of(c, &c->in[0], part));
    }
    copy_v(c, &c->in[0], &c->out[0]);
}

extern "C" void cuda_qknorm_bwd(const op_call *c) {
    for (int part = 0; part < 2; part++) {
        norm_bwd_args a = {};
        a.dy = c->in[0], a.x = c->in[1], a.w = c->in[3 + part], a.dx = c->out[0];
        a.stat = (const float *)c->in[2].data;
        a.dw = (float *)c->out[1 + part].data, a.add_w = c->accumulate >> (1 + part) & 1;
        run_bwd(c, a, heads_of(c, &c->in[1], part));
    }
    copy_v(c, &c->in[0], &c->out[0]);
}

/* ---- sums of columns, for the gradients of biases ----------------------------------------------- */
template <class A>
static __global__ void column_partials(A x, int64_t rows, int64_t cols, float *partial) {
    /* A block takes 256 columns (32 threads of eight) and every gridDim.y-th set of 8 rows. */
    __shared__ float room[8][256 + 8];
    int64_t col = ((int64_t)blockIdx.x * 32 + threadIdx.x) * EIGHT;
    float sum[8] = { 0 };
    for (int64_t r = (int64_t)blockIdx.y * 8 + threadIdx.y; r < rows && col < cols;
         r += (int64_t)gridDim.y * 8) {
        float v[8];
        x.load(r * cols + col, r * cols + cols, v);
        for (int i = 0; i < 8; i++) sum[i] += v[i];
    }
    for (int i = 0; i < 8; i++) room[threadIdx.y][threadIdx.x * 8 + i] = sum[i];
    __syncthreads();
    int t = threadIdx.y * 32 + threadIdx.x;
    int64_t out = (int64_t)blockIdx.x * 256 + t;
    if (out >= cols) return;
    float total = 0;
    for (int k = 0; k < 8; k++) total += room[k][t];
    partial[blockIdx.y * cols + out] = total;
}

extern "C" size_t cuda_columns_bytes(int64_t cols) {
    return (size_t)CUDA_PARTIALS * (size_t)cols * sizeof(float);
}

extern "C" void cuda_sum_columns(cuda_context *x, const tensor *t, float *out, bool accumulate,
                                 void *partial) {
    int64_t rows = t->dim[0], cols = t->dim[1];
    int64_t across = ceil_div(cols, 256), most = 2 * CUDA_PARTIALS / across;
    int64_t down = ceil_div(rows, 8 * 8);
    down = down < most ? down : most;
    down = down < 1 ? 1 : down > CUDA_PARTIALS ? CUDA_PARTIALS : down;
    const tensor *all[] = { t };
    WITH_TYPE(
        common_type(cols, all, 1),
        (column_partials<A><<<dim3((unsigned)across, (unsigned)down), dim3(32, 8), 0, x->stream>>>(
            A(*t), rows, cols, (float *)partial)));
    add_partials<<<(unsigned)ceil_div(cols, 32), dim3(32, 8), 0, x->stream>>>(
        (const float *)partial, (int)down, cols, cols, out, accumulate);
    cuda_ok(x, cudaGetLastError(), __FILE__, __LINE__);
}

extern "C" size_t cuda_norm_workspace(const op_call *c) {
    int64_t width = 0;
    switch (c->op) {
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM_BWD: width = 2 * c->in[1].dim[1]; break;
    case OP_QKNORM_BWD: width = c->in[1].dim[1]; break;
    default: break;
    }
    return (size_t)CUDA_PARTIALS * (size_t)width * sizeof(float);
}
