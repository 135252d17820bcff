/* Updates of whole matrices: Adafactor and Muon. What changes from step to step is read from the step
 * block on the device. Kernels have blocks of 256 threads; where not stated otherwise, a grid of
 * CUDA_PARTIALS blocks loops over the elements. Deterministic: every sum is split into a fixed number of
 * partial sums. */
#include "update.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256 };

/* ---- Adafactor -----------------------------------------------------------------------------------
 * As the CPU's (ops/cpu/update_adafactor.c): row and column means of the squared gradient, the norm of
 * the update, the update: the gradient is read four times. Workspace, fp32 where not marked:
 *
 *     | partial [CUDA_PARTIALS] f64 | total f64 | row factors [R] | column factors [C] |
 *       column sums [CUDA_PARTIALS, C] |
 */
typedef struct factored {
    const float *g;
    float *p, *rows, *cols; /* the state; a vector has v in `rows`, and cols is NULL */
    double *partial, *total;
    float *row, *col, *sums;
    int64_t r, c;
    int blocks;
    update_attr a;
    const step_block *s;
    mixed copy;
} factored;

static __device__ float beta2_of(const step_block *s, float &rest) {
    double power = pow((double)s->now.count, -0.8);
    rest = (float)power;
    return (float)(1 - power);
}

/* Sums a double over the block into partial[block]. */
static __device__ void store_partial_sum(const factored &f, double v) {
    __shared__ double smem[THREADS];
    smem[threadIdx.x] = v;
    __syncthreads();
    for (int o = THREADS / 2; o; o >>= 1) {
        if (threadIdx.x < o) smem[threadIdx.x] += smem[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) f.partial[blockIdx.x] = smem[0];
}

/* A single thread. */
static __global__ void add_partial_sums(factored f) {
    double sum = 0;
    for (int i = 0; i < f.blocks; i++) sum += f.partial[i];
    *f.total = sum;
}

/* rows: running mean of the squared gradient over each row; partial sums of rows. A block per row at a
 * time. */
static __global__ void row_sums(factored f) {
    if (f.s->now.skip) return;
    __shared__ float smem[33];
    float rest, b2 = beta2_of(f.s, rest), scale = f.s->now.grad_scale;
    double total = 0;
    for (int64_t row = blockIdx.x; row < f.r; row += gridDim.x) {
        float sum = 0;
        for (int64_t k = threadIdx.x; k < f.c; k += THREADS) {
            float x = f.g[row * f.c + k] * scale;
            sum += x * x + f.a.eps;
        }
        sum = block_sum(sum, smem);
        if (threadIdx.x) continue;
        f.rows[row] = b2 * f.rows[row] + rest * (sum / f.c);
        total += f.rows[row];
    }
    store_partial_sum(f, total);
}

/* Grid: (columns / 256, parts); block (x, y) sums 256 columns over every gridDim.y-th row. */
static __global__ void column_sums(factored f) {
    float scale = f.s->now.grad_scale, sum = 0;
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= f.c) return;
    for (int64_t row = blockIdx.y; row < f.r; row += gridDim.y) {
        float x = f.g[row * f.c + col] * scale;
        sum += x * x + f.a.eps;
    }
    f.sums[blockIdx.y * f.c + col] = sum;
}

static __global__ void column_factors(factored f, int parts) {
    if (f.s->now.skip) return;
    float rest, b2 = beta2_of(f.s, rest), sum = 0;
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= f.c) return;
    for (int k = 0; k < parts; k++) sum += f.sums[k * f.c + col];
    f.cols[col] = b2 * f.cols[col] + rest * (sum / f.r);
    f.col[col] = 1 / sqrtf(f.cols[col]);
}

static __global__ void row_factors(factored f) {
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < f.r) f.row[row] = 1 / sqrtf(f.rows[row] / (float)(*f.total / f.r));
}

/* The factor that turns element i of the gradient into the update before clipping. */
static __device__ __forceinline__ float factor_at(const factored &f, int64_t i) {
    float scale = f.s->now.grad_scale;
    if (f.cols) return scale * f.row[i / f.c] * f.col[i % f.c];
    return scale / sqrtf(f.rows[i]);
}

/* Partial sums of the squared update; a vector's state is updated on the way. */
static __global__ void update_squares(factored f) {
    if (f.s->now.skip) return;
    float rest, b2 = beta2_of(f.s, rest), scale = f.s->now.grad_scale;
    double sum = 0;
    int64_t n = f.r * f.c, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float x = f.g[i] * scale;
        if (!f.cols) f.rows[i] = b2 * f.rows[i] + rest * (x * x + f.a.eps);
        float u = f.g[i] * factor_at(f, i);
        sum += (double)u * u;
    }
    store_partial_sum(f, sum);
}

static __global__ void apply_factored(factored f) {
    if (f.s->now.skip) return;
    const factors k = block_factors(f.a, f.s);
    int64_t n = f.r * f.c, step = (int64_t)gridDim.x * THREADS;
    double rms = sqrt(*f.total / (double)n);
    float lr = (float)(k.lr / (rms > 1 ? rms : 1.0));
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float p = f.p[i] * k.keep - lr * f.g[i] * factor_at(f, i);
        f.p[i] = p;
        if (f.copy.present()) write1(f.copy.p, f.copy.dt, i, p);
    }
}

extern "C" void cuda_update_adafactor(const op_call *c) {
    const tensor *g = &c->in[0];
    bool matrix = g->ndim == 2;
    factored f = { (const float *)g->data,
                   (float *)c->out[0].data,
                   (float *)c->out[1].data,
                   matrix ? (float *)c->out[2].data : NULL,
                   (double *)c->run->workspace,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   g->dim[0],
                   matrix ? g->dim[1] : 1,
                   CUDA_PARTIALS,
                   attr_of(c),
                   c->run->step,
                   mixed(c->out[3]) };
    f.total = f.partial + CUDA_PARTIALS;
    f.row = (float *)(f.total + 1);
    f.col = f.row + f.r;
    f.sums = f.col + f.c;
    cuda_context *ctx = cuda_of(c);
    if (matrix) {
        unsigned across = (unsigned)ceil_div(f.c, THREADS);
        int parts = (int)(f.r < CUDA_PARTIALS ? f.r : CUDA_PARTIALS);
        LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, row_sums, f);
        LAUNCH(ctx, { 1, 1 }, add_partial_sums, f);
        LAUNCH(ctx, { dim3(across, (unsigned)parts), THREADS }, column_sums, f);
        LAUNCH(ctx, { across, THREADS }, column_factors, f, parts);
        LAUNCH(ctx, { (unsigned)ceil_div(f.r, THREADS), THREADS }, row_factors, f);
    }
    LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, update_squares, f);
    LAUNCH(ctx, { 1, 1 }, add_partial_sums, f);
    LAUNCH(ctx, { CUDA_PARTIALS * 4, THREADS }, apply_factored, f);
}

/* ---- Muon -----------------------------------------------------------------------------------------
 * As the CPU's (ops/cpu/update_muon.c): momentum, five Newton-Schulz steps with fp32 GEMMs, the update.
 * Workspace: | x [R,C] | next [R,C] | G [S,S] | poly [S,S] | partial f64 | total | cuBLASLt's |
 */
static __global__ void muon_momentum(const float *g, float *m, float *u, int64_t n, double *partial,
                                     update_attr a, const step_block *s) {
    if (s->now.skip) return;
    const factors f = block_factors(a, s);
    float rest = 1 - f.mu, now = f.now * rest;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float gi = g[i] * f.scale, mi = f.mu * m[i] + rest * gi, ui = now * gi + f.then * mi;
        m[i] = mi;
        u[i] = ui;
        sum += (double)ui * ui;
    }
    factored sums = { NULL, NULL, NULL, NULL, partial, NULL, NULL,   NULL,
                      NULL, 0,    0,    0,    a,       s,    mixed{} };
    store_partial_sum(sums, sum);
}

/* Every block adds the partial sums for itself, in order. */
static __global__ void muon_normalize(float *x, int64_t n, const double *partial) {
    __shared__ float by;
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < CUDA_PARTIALS; i++) sum += partial[i];
        by = (float)(1 / fmax(sqrt(sum), 1e-7));
    }
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        x[i] *= by;
}

/* y = a x + b y */
static __global__ void scale_add(const float *x, float *y, int64_t n, float a, float b) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        y[i] = a * x[i] + (b == 0 ? 0.0f : b * y[i]);
}

static __global__ void muon_apply(const float *x, float *p, mixed copy, int64_t n, float shape,
                                  update_attr a, const step_block *s) {
    if (s->now.skip) return;
    const factors f = block_factors(a, s);
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float w = p[i] * f.keep - f.lr * shape * x[i];
        p[i] = w;
        if (copy.present()) write1(copy.p, copy.dt, i, w);
    }
}

static void gemm_fp32(const op_call *c, int64_t m, int64_t n, int64_t k, const float *a, bool ta,
                      const float *b, bool tb, float *to, bool accumulate, void *workspace) {
    cuda_gemm g = {};
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = to;
    g.at = g.bt = g.ct = DT_F32;
    g.lda = ta ? m : k, g.ldb = tb ? k : n, g.ldc = n;
    g.ta = ta, g.tb = tb, g.accumulate = accumulate, g.exact = true;
    cuda_gemm_require(cuda_of(c), &g, workspace);
}

extern "C" void cuda_update_muon(const op_call *c) {
    const tensor *g = &c->in[0];
    int64_t r = g->dim[0], k = g->dim[1], n = r * k, s = r < k ? r : k;
    bool tall = r > k;
    float *x = (float *)c->run->workspace, *next = x + n, *gram = next + n, *poly = gram + s * s;
    double *partial = (double *)align_up((uintptr_t)(poly + s * s), 16);
    void *workspace = (void *)align_up((uintptr_t)(partial + CUDA_PARTIALS), 256);
    cuda_context *ctx = cuda_of(c);
    update_attr a = attr_of(c);
    LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, muon_momentum, (const float *)g->data,
           (float *)c->out[1].data, x, n, partial, a, c->run->step);
    LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, muon_normalize, x, n, partial);
    for (int i = 0; i < 5; i++) {
        gemm_fp32(c, s, s, tall ? r : k, x, tall, x, !tall, gram, false, workspace);
        gemm_fp32(c, s, s, s, gram, false, gram, false, poly, false, workspace);
        LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, scale_add, gram, poly, s * s, -4.7750f, 2.0315f);
        LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, scale_add, x, next, n, 3.4445f, 0);
        if (tall)
            gemm_fp32(c, r, k, k, x, false, poly, false, next, true, workspace);
        else
            gemm_fp32(c, r, k, r, poly, false, x, false, next, true, workspace);
        float *old = x;
        x = next;
        next = old;
    }
    double ratio = (double)r / (double)k;
    float shape = (float)sqrt(ratio > 1 ? ratio : 1.0);
    LAUNCH(ctx, { CUDA_PARTIALS, THREADS }, muon_apply, x, (float *)c->out[0].data,
           mixed(c->out[2]), n, shape, a, c->run->step);
}

extern "C" size_t cuda_update_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *g = &c->in[0];
    int64_t r = g->dim[0], k = g->ndim == 2 ? g->dim[1] : 1, s = r < k ? r : k;
    size_t sums = (CUDA_PARTIALS + 1) * sizeof(double);
    if (c->op == OP_UPDATE_ADAFACTOR)
        return sums + (size_t)(r + k + CUDA_PARTIALS * k) * sizeof(float);
    if (c->op == OP_UPDATE_MUON)
        return (size_t)(2 * r * k + 2 * s * s) * sizeof(float) + sums + 512 + CUDA_GEMM_WORKSPACE;
    return 0;
}
