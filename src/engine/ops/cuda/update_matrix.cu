/* The passes before the updates of Adafactor and adaptive clipping: sums by row and column, and
 * directions. What changes from step to step is read from the step block on the device. Kernels have blocks
 * of 256 threads; where not stated otherwise, a grid of CUDA_PARTIALS blocks loops over the elements.
 * Deterministic: every sum is split into a fixed number of partial sums. */
#include "update.cuh"

extern "C" {
#include "ops/matrix_slice.h"
#include "ops/op_table.h"
}

enum { THREADS = 256 };

/* The columns [lo, hi) of local row `row` that the call has; element `at` of it is column 0. */
typedef struct slice_row {
    int64_t lo, hi, at;
} slice_row;
static __device__ __forceinline__ slice_row slice_row_of(const matrix_slice &m, int64_t row) {
    int64_t from = row * m.cols;
    slice_row r = { from < m.first ? m.first - from : 0, m.cols, from - m.first };
    if (from + m.cols > m.first + m.n) r.hi = m.first + m.n - from;
    return r;
}

static void fill_zero(const op_call *c, const tensor *t) {
    CUDA_OK(cuda_of(c), cudaMemsetAsync(t->data, 0, tensor_bytes(t), cuda_stream(c)));
}

static __device__ float beta2_of(const step_block *s, float &rest) {
    double power = pow((double)s->now.count, -0.8);
    rest = (float)power;
    return (float)(1 - power);
}

/* ---- Adafactor: ops/cpu/update_adafactor.c has the formulas -------------------------------------- */
/* A block per row at a time. */
static __global__ void factor_row_sums(const float *g, float *sum, matrix_slice m, float eps,
                                       const step_block *s) {
    __shared__ float smem[33];
    float scale = s->now.grad_scale;
    for (int64_t row = blockIdx.x; row < (m.end - m.begin); row += gridDim.x) {
        slice_row r = slice_row_of(m, m.begin + row);
        float v = 0;
        for (int64_t k = r.lo + threadIdx.x; k < r.hi; k += THREADS) {
            float x = g[r.at + k] * scale;
            v += x * x + eps;
        }
        v = block_sum(v, smem);
        if (threadIdx.x == 0) sum[m.row0 + m.begin + row] = v;
    }
}

/* Grid: (columns / 256, parts); block (x, y) sums 256 columns over every gridDim.y-th row. */
static __global__ void factor_column_parts(const float *g, float *parts, matrix_slice m, float eps,
                                           const step_block *s) {
    float scale = s->now.grad_scale, sum = 0;
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= m.cols) return;
    for (int64_t row = blockIdx.y; row < (m.end - m.begin); row += gridDim.y) {
        slice_row r = slice_row_of(m, m.begin + row);
        if (col < r.lo || col >= r.hi) continue;
        float x = g[r.at + col] * scale;
        sum += x * x + eps;
    }
    parts[blockIdx.y * m.cols + col] = sum;
}

static __global__ void factor_column_sums(const float *parts, float *sum, matrix_slice m, int n) {
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float v = 0;
    if (col >= m.cols) return;
    for (int k = 0; k < n; k++) v += parts[k * m.cols + col];
    sum[m.col0 + col] = v;
}

static int column_parts(const matrix_slice &m) {
    return (int)((m.end - m.begin) < CUDA_PARTIALS ? (m.end - m.begin) : CUDA_PARTIALS);
}

static void cuda_factor_sums(const op_call *c) {
    matrix_slice m = matrix_slice_of(c, tensor_count(&c->in[0]));
    const float *g = (const float *)c->in[0].data;
    float *parts = (float *)c->run->workspace, eps = c->attr.update.eps;
    cuda_context *x = cuda_of(c);
    unsigned across = (unsigned)ceil_div(m.cols, THREADS);
    int n = column_parts(m);
    fill_zero(c, &c->out[0]);
    fill_zero(c, &c->out[1]);
    LAUNCH(x, { CUDA_PARTIALS, THREADS }, factor_row_sums, g, (float *)c->out[0].data, m, eps,
           c->run->step);
    LAUNCH(x, { dim3(across, (unsigned)n), THREADS }, factor_column_parts, g, parts, m, eps,
           c->run->step);
    LAUNCH(x, { across, THREADS }, factor_column_sums, (const float *)parts,
           (float *)c->out[1].data, m, n);
}

static size_t cuda_factor_workspace(const op_backend *b, const op_call *c, int threads) {
    matrix_slice m = matrix_slice_of(c, tensor_count(&c->in[0]));
    return (size_t)(column_parts(m) * m.cols) * sizeof(float);
}

/* One block: the running means, then the factors. */
static __global__ void factor_moments(float *row_sum, float *col_sum, float *rows, float *cols,
                                      int64_t r, int64_t c, const step_block *s) {
    if (s->now.skip) return;
    __shared__ double partial[1];
    float rest, b2 = beta2_of(s, rest);
    double total = 0;
    for (int64_t i = threadIdx.x; i < r; i += THREADS) {
        rows[i] = b2 * rows[i] + rest * (row_sum[i] / c);
        total += rows[i];
    }
    for (int64_t i = threadIdx.x; i < c; i += THREADS) {
        cols[i] = b2 * cols[i] + rest * (col_sum[i] / r);
        col_sum[i] = 1 / sqrtf(cols[i]);
    }
    __shared__ double doubles[THREADS];
    total = block_sum_f64<THREADS>(total, doubles);
    if (threadIdx.x == 0) partial[blockIdx.x] = total; /* the block is the first */
    __syncthreads();
    float mean = (float)(partial[0] / r);
    for (int64_t i = threadIdx.x; i < r; i += THREADS) row_sum[i] = 1 / sqrtf(rows[i] / mean);
}

static void cuda_factor_moments(const op_call *c) {
    LAUNCH(cuda_of(c), { 1, THREADS }, factor_moments, (float *)c->out[0].data,
           (float *)c->out[1].data, (float *)c->out[2].data, (float *)c->out[3].data,
           c->out[2].dim[0], c->out[3].dim[0], c->run->step);
}

static __global__ void factor_matrix(float *u, const float *row, const float *col, matrix_slice m,
                                     const step_block *s) {
    if (s->now.skip) return;
    float scale = s->now.grad_scale;
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < m.n; i += step) {
        int64_t local = m.first + i;
        u[i] *= scale * row[m.row0 + local / m.cols] * col[m.col0 + local % m.cols];
    }
}

static void cuda_factor_matrix(const op_call *c) {
    matrix_slice m = matrix_slice_of(c, tensor_count(&c->out[0]));
    LAUNCH(cuda_of(c), { CUDA_PARTIALS * 4, THREADS }, factor_matrix, (float *)c->out[0].data,
           (const float *)c->in[0].data, (const float *)c->in[1].data, m, c->run->step);
}

static __global__ void factor_vector(float *u, float *v, int64_t n, float eps,
                                     const step_block *s) {
    if (s->now.skip) return;
    float rest, b2 = beta2_of(s, rest), scale = s->now.grad_scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float x = u[i] * scale;
        v[i] = b2 * v[i] + rest * (x * x + eps);
        u[i] = x / sqrtf(v[i]);
    }
}

static void cuda_factor_vector(const op_call *c) {
    LAUNCH(cuda_of(c), { CUDA_PARTIALS, THREADS }, factor_vector, (float *)c->out[0].data,
           (float *)c->out[1].data, tensor_count(&c->out[0]), c->attr.update.eps, c->run->step);
}

/* ---- adaptive clipping. Grid: a block per row ------------------------------------------------------ */
static __global__ void agc_sums(const float *p, const float *g, float *p_sum, float *g_sum,
                                matrix_slice m, const step_block *s) {
    __shared__ float smem[33];
    slice_row r = slice_row_of(m, m.begin + blockIdx.x);
    float pp = 0, gg = 0, scale = s->now.grad_scale;
    for (int64_t k = r.lo + threadIdx.x; k < r.hi; k += blockDim.x) {
        float pk = p[r.at + k], gk = g[r.at + k] * scale;
        pp += pk * pk;
        gg += gk * gk;
    }
    pp = block_sum(pp, smem);
    gg = block_sum(gg, smem);
    if (threadIdx.x) return;
    p_sum[m.row0 + m.begin + blockIdx.x] = pp;
    g_sum[m.row0 + m.begin + blockIdx.x] = gg;
}

static void cuda_agc_sums(const op_call *c) {
    matrix_slice m = matrix_slice_of(c, tensor_count(&c->in[1]));
    fill_zero(c, &c->out[0]);
    fill_zero(c, &c->out[1]);
    LAUNCH(cuda_of(c), { (unsigned)(m.end - m.begin), THREADS }, agc_sums,
           (const float *)c->in[0].data, (const float *)c->in[1].data, (float *)c->out[0].data,
           (float *)c->out[1].data, m, c->run->step);
}

static __global__ void agc_clip_rows(const float *p_sum, const float *g_sum, float *g,
                                     matrix_slice m, float factor, float eps, const step_block *s) {
    if (s->now.skip) return;
    slice_row r = slice_row_of(m, m.begin + blockIdx.x);
    int64_t row = m.row0 + m.begin + blockIdx.x;
    float most = factor * fmaxf(sqrtf(p_sum[row]), eps), length = sqrtf(g_sum[row]);
    if (!(length > most)) return; /* NaN too: the global norm shows it */
    float by = most / length;
    for (int64_t k = r.lo + threadIdx.x; k < r.hi; k += blockDim.x) g[r.at + k] *= by;
}

static void cuda_agc(const op_call *c) {
    matrix_slice m = matrix_slice_of(c, tensor_count(&c->out[0]));
    LAUNCH(cuda_of(c), { (unsigned)(m.end - m.begin), THREADS }, agc_clip_rows,
           (const float *)c->in[0].data, (const float *)c->in[1].data, (float *)c->out[0].data, m,
           c->attr.agc.factor, c->attr.agc.eps, c->run->step);
}

KERNEL(FACTOR_SUMS, cuda_factor_sums, cuda_factor_workspace, ATTRS_PART | ATTR(UPDATE_EPS));
KERNEL(FACTOR_MOMENTS, cuda_factor_moments);
KERNEL(FACTOR_MATRIX, cuda_factor_matrix, NULL, ATTRS_PART);
KERNEL(FACTOR_VECTOR, cuda_factor_vector, NULL, ATTR(UPDATE_EPS));
KERNEL(AGC_SUMS, cuda_agc_sums, NULL, ATTRS_PART);
KERNEL(AGC, cuda_agc, NULL, ATTRS_PART | ATTR(AGC_FACTOR) | ATTR(AGC_EPS));
