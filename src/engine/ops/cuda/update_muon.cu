/* Muon's direction: momentum, and orthogonal matrices (ops/polar.h has the iterations). What changes from step to step
 * is read from the step block on the device. Kernels have blocks of 256 threads. Deterministic: every sum is split
 * into a fixed number of partial sums. */
#include "update.cuh"

extern "C" {
#include "ops/polar.h"
}

enum { THREADS = 256, TILE = 64 };

/* Elements [i, i + 8) of n floats; zeros beyond their end. @param eights they are aligned to 16 bytes */
static __device__ __forceinline__ void read_some(const float *p, bool eights, int64_t i, int64_t n,
                                                 float v[8]) {
    if (eights && i + EIGHT <= n) return read8(p + i, v);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = i + k < n ? p[i + k] : 0;
}
static __device__ __forceinline__ void write_some(float *p, bool eights, int64_t i, int64_t n,
                                                  const float v[8]) {
    if (eights && i + EIGHT <= n) return write8(p + i, v);
    for (int k = 0; k < 8 && i + k < n; k++) p[i + k] = v[k];
}
static bool is_aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- momentum: a thread takes EACH eights of elements ------------------------------------------------ */
enum { EACH = 2 };

static __global__ void muon_momentum(const float *g, float *u, float *m, int64_t n, bool eights,
                                     float own, bool nesterov, const step_block *s) {
    if (s->now.skip) return;
    float mu = momentum_now(own, s);
    float scale = s->now.grad_scale, rest = 1 - mu, now = nesterov ? rest : 0;
    float then = nesterov ? mu : 1;
    int64_t first = ((int64_t)blockIdx.x * EACH * THREADS + threadIdx.x) * EIGHT;
    float gv[EACH][8], mv[EACH][8];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int64_t i = first + e * THREADS * EIGHT;
        read_some(g, eights, i, n, gv[e]);
        read_some(m, eights, i, n, mv[e]);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int64_t i = first + e * THREADS * EIGHT;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float x = gv[e][k] * scale;
            mv[e][k] = mu * mv[e][k] + rest * x;
            gv[e][k] = now * x + then * mv[e][k];
        }
        write_some(m, eights, i, n, mv[e]);
        write_some(u, eights, i, n, gv[e]);
    }
}

static void cuda_muon_momentum(const op_call *c) {
    const float *g = (const float *)c->in[0].data;
    float *u = (float *)c->out[0].data, *m = (float *)c->out[1].data;
    int64_t n = tensor_count(&c->in[0]);
    LAUNCH(cuda_of(c), { blocks_for(n, EACH * THREADS * EIGHT), THREADS }, muon_momentum, g, u, m,
           n, is_aligned16(g) && is_aligned16(u) && is_aligned16(m), c->attr.update.momentum,
           c->attr.update.nesterov, c->run->step);
}

/* ---- packing ----------------------------------------------------------------------------------------- */
static __device__ __forceinline__ double warp_sum_double(double v) {
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

/* @return the sum over the block, for all of its threads. */
static __device__ double block_sum_double(double v) {
    __shared__ double smem[THREADS / WARP];
    v = warp_sum_double(v);
    __syncthreads(); /* of the call before */
    if (threadIdx.x % WARP == 0) smem[threadIdx.x / WARP] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < THREADS / WARP; i++) v += smem[i];
    return v;
}

/* A grid of CUDA_PARTIALS blocks; block i leaves its sum of squares in partial[i]. */
static __global__ void muon_squares(const float *u, int64_t n, bool eights, double *partial) {
    __shared__ double smem[THREADS / WARP];
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n;
         i += (int64_t)gridDim.x * THREADS * EIGHT) {
        float v[8], square = 0;
        read_some(u, eights, i, n, v);
#pragma unroll
        for (int k = 0; k < 8; k++) square += v[k] * v[k];
        sum += square;
    }
    sum = warp_sum_double(sum);
    if (threadIdx.x % WARP == 0) smem[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    sum = 0;
    for (int i = 0; i < THREADS / WARP; i++) sum += smem[i];
    partial[blockIdx.x] = sum;
}

/* @return 1 / (margin |u|) from the partial sums, which every warp adds for itself, in one order. */
static __device__ float inverse_norm(const double *partial, double margin) {
    double sum = 0;
    for (int i = threadIdx.x % WARP; i < CUDA_PARTIALS; i += WARP) sum += partial[i];
    sum = warp_sum_double(sum);
    return (float)(1 / (margin * fmax(sqrt(sum), POLAR_LEAST_NORM)));
}

/* A matrix u [R,C] and the packed one, x [S,L]. */
typedef struct muon_matrix {
    int64_t rows, cols, s, l;
    bool eights; /* rows of u are aligned to 16 bytes */
} muon_matrix;

static muon_matrix muon_matrix_of(const tensor *u, const tensor *x) {
    bool eights = u->dim[1] % 4 == 0 && is_aligned16(u->data);
    return { u->dim[0], u->dim[1], x->dim[0], x->dim[1], eights };
}

/* Eight elements of row `row` of u from column `col` on; zeros beyond its end. */
static __device__ __forceinline__ void read_row8(const float *u, const muon_matrix &m, int64_t row,
                                                 int64_t col, float v[8]) {
    read_some(u + row * m.cols, m.eights, col, row < m.rows ? m.cols : 0, v);
}
static __device__ __forceinline__ void write_row8(float *u, const muon_matrix &m, int64_t row,
                                                  int64_t col, const float v[8]) {
    write_some(u + row * m.cols, m.eights, col, row < m.rows ? m.cols : 0, v);
}

/* ---- lines: rows or columns of u that are scaled as a whole --------------------------------------------
 * Workspace: sums of squares [lines], then factors [lines]. */
/* A block for each row of u: its sum of squares. */
static __global__ void row_squares(const float *u, int64_t cols, float *sum) {
    const float *row = u + (int64_t)blockIdx.x * cols;
    double part = 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS) part += (double)row[k] * row[k];
    part = block_sum_double(part);
    if (threadIdx.x == 0) sum[blockIdx.x] = (float)part;
}

/* One block: what each row of u is multiplied by so that all have one norm, and the matrix the norm 1 / margin. */
static __global__ void equilibrate_rows(const float *sum, float *factor, int64_t rows,
                                        double margin) {
    double all = 0, square = 0;
    for (int64_t i = threadIdx.x; i < rows; i += THREADS) all += sum[i];
    all = block_sum_double(all);
    double least = fmax(POLAR_LEAST_ROW * sqrt(all / (double)rows), POLAR_LEAST_NORM);
    for (int64_t i = threadIdx.x; i < rows; i += THREADS) {
        double by = 1 / fmax(sqrt((double)sum[i]), least);
        square += by * by * sum[i];
    }
    square = block_sum_double(square);
    double norm = margin * fmax(sqrt(square), POLAR_LEAST_NORM);
    for (int64_t i = threadIdx.x; i < rows; i += THREADS)
        factor[i] = (float)(1 / (fmax(sqrt((double)sum[i]), least) * norm));
}

/* Sums of squares of columns of x [s, l] with leading dimension `wide`: a block has 32 columns, and each of its warps
 * every eighth row. */
static __global__ void column_squares(const void *x, int dt, int64_t s, int64_t l, int64_t wide,
                                      float *sum) {
    __shared__ float smem[THREADS / WARP][WARP];
    int64_t col = (int64_t)blockIdx.x * WARP + threadIdx.x % WARP;
    float part = 0;
    for (int64_t row = threadIdx.x / WARP; row < s && col < l; row += THREADS / WARP) {
        float v = read1(x, dt, row * wide + col);
        part += v * v;
    }
    smem[threadIdx.x / WARP][threadIdx.x % WARP] = part;
    __syncthreads();
    if (threadIdx.x >= WARP || col >= l) return;
    for (int i = 1; i < THREADS / WARP; i++) part += smem[i][threadIdx.x];
    sum[col] = part;
}

/* ... of rows of x: a block for each. */
static __global__ void packed_row_squares(const void *x, int dt, int64_t l, int64_t wide,
                                          float *sum) {
    double part = 0;
    for (int64_t k = threadIdx.x; k < l; k += THREADS) {
        float v = read1(x, dt, (int64_t)blockIdx.x * wide + k);
        part += (double)v * v;
    }
    part = block_sum_double(part);
    if (threadIdx.x == 0) sum[blockIdx.x] = (float)part;
}

/* One block: moves NorMuon's second moments, and sets what elements of each line are multiplied by.
 * @param over elements of a line; size: min(R, C) */
static __global__ void move_moments(const float *sum, float *factor, float *moment, int64_t n,
                                    double over, double size, double beta2, const step_block *s) {
    double all = 0, square = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        all += sum[i];
        factor[i] = 0; /* of a step that is skipped */
    }
    if (s->now.skip) return;
    all = block_sum_double(all);
    double norm = all > 0 ? size / all : 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        double mean = sum[i] * norm / over;
        moment[i] = (float)(beta2 * moment[i] + (1 - beta2) * mean);
        double by = 1 / sqrt(fmax((double)moment[i], POLAR_LEAST_MOMENT));
        square += mean * over * by * by;
    }
    square = block_sum_double(square);
    double all_by = square > 0 ? sqrt(norm * size / square) : 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        factor[i] = (float)(all_by / sqrt(fmax((double)moment[i], POLAR_LEAST_MOMENT)));
}

/* Grid: (L / 64, S / 64); a block has a tile of 64 x 64. A tile of a tall matrix is transposed in shared memory. Reads
 * are in flight while the norm is computed. */
enum { TILE_EIGHTS = TILE / 8, TILE_TURNS = TILE * TILE_EIGHTS / THREADS };
template <class A>
static __global__ void muon_pack(const float *u, A x, muon_matrix m, bool tall,
                                 const double *partial, double margin, const float *line) {
    __shared__ float tile[TILE][TILE + 1];
    int row = threadIdx.x / TILE_EIGHTS, col = threadIdx.x % TILE_EIGHTS * 8;
    int64_t s0 = (int64_t)blockIdx.y * TILE, l0 = (int64_t)blockIdx.x * TILE;
    float v[TILE_TURNS][8];
#pragma unroll
    for (int i = 0; i < TILE_TURNS; i++)
        read_row8(u, m, (tall ? l0 : s0) + row + i * (TILE / TILE_TURNS), (tall ? s0 : l0) + col,
                  v[i]);
    float by = line ? 1 : inverse_norm(partial, margin);
#pragma unroll
    for (int i = 0; i < TILE_TURNS && line; i++) {
        int64_t at = (tall ? l0 : s0) + row + i * (TILE / TILE_TURNS);
        float own = at < m.rows ? line[at] : 0;
#pragma unroll
        for (int k = 0; k < 8; k++) v[i][k] *= own;
    }
#pragma unroll
    for (int i = 0; i < TILE_TURNS && tall; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) tile[row + i * (TILE / TILE_TURNS)][col + k] = v[i][k];
    if (tall) __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_TURNS; i++) {
        int64_t s = s0 + row + i * (TILE / TILE_TURNS), l = l0 + col;
        if (s >= m.s || l >= m.l) continue;
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[i][k] = by * (tall ? tile[col + k][row + i * (TILE / TILE_TURNS)] : v[i][k]);
        x.store(s * m.l + l, (s + 1) * m.l, v[i]);
    }
}

/* The same tiles, the other way. @param line what each line of u is multiplied by; NULL: by 1. across: lines are the
 * columns of x */
template <class A>
static __global__ void muon_unpack(A x, float *u, muon_matrix m, bool tall, float by,
                                   const float *line, bool across) {
    __shared__ float tile[TILE][TILE + 1];
    float v[8];
    int64_t s0 = (int64_t)blockIdx.y * TILE, l0 = (int64_t)blockIdx.x * TILE;
    for (int i = threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
        int row = i / (TILE / 8), col = i % (TILE / 8) * 8;
        if (s0 + row >= m.s || l0 + col >= m.l) continue;
        x.load((s0 + row) * m.l + l0 + col, (s0 + row + 1) * m.l, v);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] *= by;
        int64_t lines = across == tall ? m.rows : m.cols;
#pragma unroll
        for (int k = 0; k < 8 && line; k++) {
            int64_t at = across ? l0 + col + k : s0 + row;
            v[k] *= at < lines ? line[at] : 0;
        }
        if (!tall) write_row8(u, m, s0 + row, l0 + col, v);
#pragma unroll
        for (int k = 0; k < 8 && tall; k++) tile[row][col + k] = v[k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE / 8 && tall; i += THREADS) {
        int row = i / (TILE / 8), col = i % (TILE / 8) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = tile[col + k][row];
        write_row8(u, m, l0 + row, s0 + col, v);
    }
}

static launch_shape packing_shape(const muon_matrix &m) {
    return { dim3(blocks_for(m.l, TILE), blocks_for(m.s, TILE)), THREADS };
}

static void cuda_muon_pack(const op_call *c) {
    const tensor *u = &c->in[0], *x = &c->out[0];
    muon_matrix m = muon_matrix_of(u, x);
    double *partial = (double *)c->run->workspace, margin = polar_margin(c->attr.update.polar);
    float *sum = (float *)partial, *line = c->attr.update.equilibrate ? sum + m.rows : NULL;
    if (line) {
        LAUNCH(cuda_of(c), { (unsigned)m.rows, THREADS }, row_squares, (const float *)u->data,
               m.cols, sum);
        LAUNCH(cuda_of(c), { 1, THREADS }, equilibrate_rows, (const float *)sum, line, m.rows,
               margin);
    } else {
        LAUNCH(cuda_of(c), { CUDA_PARTIALS, THREADS }, muon_squares, (const float *)u->data,
               m.rows * m.cols, is_aligned16(u->data), partial);
    }
    WITH_TYPE(common_type(m.l, &x, 1),
              LAUNCH(cuda_of(c), packing_shape(m), muon_pack<A>, (const float *)u->data, A(*x), m,
                     m.rows > m.cols, (const double *)partial, margin, (const float *)line));
}

static size_t cuda_muon_pack_workspace(const op_backend *b, const op_call *c, int threads) {
    if (c->attr.update.equilibrate) return (size_t)c->in[0].dim[0] * 2 * sizeof(float);
    return CUDA_PARTIALS * sizeof(double);
}

/* @return what each line of u is multiplied by; NULL: the op has no second moments. */
static const float *normalize_lines(const op_call *c, const muon_matrix &m, bool of_rows,
                                    bool across) {
    if (c->op == OP_MUON_UNPACK) return NULL;
    const tensor *x = &c->in[0];
    int64_t n = c->out[1].dim[0], shorter = m.rows < m.cols ? m.rows : m.cols;
    int64_t longer = m.rows < m.cols ? m.cols : m.rows;
    float *sum = (float *)c->run->workspace, *factor = sum + n;
    if (across)
        LAUNCH(cuda_of(c), { blocks_for(longer, WARP), THREADS }, column_squares, x->data,
               (int)x->dt, shorter, longer, m.l, sum);
    else
        LAUNCH(cuda_of(c), { (unsigned)n, THREADS }, packed_row_squares, x->data, (int)x->dt,
               longer, m.l, sum);
    LAUNCH(cuda_of(c), { 1, THREADS }, move_moments, (const float *)sum, factor,
           (float *)c->out[1].data, n, (double)(of_rows ? m.cols : m.rows), (double)shorter,
           (double)c->attr.update.beta2, c->run->step);
    return factor;
}

static size_t cuda_muon_unpack_workspace(const op_backend *b, const op_call *c, int threads) {
    return (size_t)c->out[1].dim[0] * 2 * sizeof(float);
}

static void cuda_muon_unpack(const op_call *c) {
    const tensor *x = &c->in[0], *u = &c->out[0];
    muon_matrix m = muon_matrix_of(u, x);
    double ratio = (double)m.rows / (double)m.cols;
    float by = (float)sqrt(ratio > 1 ? ratio : 1);
    bool tall = m.rows > m.cols, of_rows = c->op == OP_MUON_UNPACK_ROWS, across = of_rows == tall;
    const float *line = normalize_lines(c, m, of_rows, across);
    WITH_TYPE(common_type(m.l, &x, 1), LAUNCH(cuda_of(c), packing_shape(m), muon_unpack<A>, A(*x),
                                              (float *)u->data, m, tall, by, line, across));
}

/* ---- orthogonal matrices -----------------------------------------------------------------------------
 * GEMMs run on all matrices of the batch at once where orthogonalize_hopper.cu can, else one by one through cuBLASLt.
 * Workspace, each part aligned to 256 bytes: | next [B,S,L] | 4 squares [B,S,S] | cuBLASLt's |
 */
/* y = f[0] y + f[1] add + f[2] I, of matrices [S,S]; CUDA_PARTIALS blocks loop over the elements. */
static __global__ void add_terms(mixed y, mixed add, int64_t n, int64_t s, float f0, float f1,
                                 float f2) {
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n;
         i += (int64_t)gridDim.x * THREADS * EIGHT) {
        float v[8], w[8] = { 0 };
        y.load(i, n, v);
        if (add.present()) add.load(i, n, w);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int64_t at = (i + k) % (s * s);
            v[k] = f0 * v[k] + f1 * w[k] + (at / s == at % s ? f2 : 0);
        }
        y.store(i, n, v);
    }
}

/* Copies what is below the diagonals of matrices [S,S] to above them; CUDA_PARTIALS blocks loop over the elements. */
template <class T> static __global__ void mirror(T *y, int64_t n, int64_t s) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / s % s, col = i % s;
        if (col > row) y[i] = y[i + (col - row) * s - (col - row)];
    }
}

typedef struct muon_job {
    const op_call *c;
    void *workspace; /* of cuBLASLt */
} muon_job;

/* One matrix of a batch after the other. */
static void multiply_each(const muon_job *j, const tensor *a, const tensor *b, bool transposed,
                          const tensor *to) {
    for (int64_t i = 0; i < to->dim[0]; i++) {
        cuda_gemm g = {};
        g.m = to->dim[1], g.n = to->dim[2], g.k = a->dim[2];
        g.a = (const char *)a->data + i * a->dim[1] * a->dim[2] * dt_size(a->dt);
        g.b = (const char *)b->data + i * b->dim[1] * b->dim[2] * dt_size(b->dt);
        g.c = (char *)to->data + i * to->dim[1] * to->dim[2] * dt_size(to->dt);
        g.at = g.bt = g.ct = to->dt;
        g.lda = g.k, g.ldb = b->dim[2], g.ldc = g.n;
        g.tb = transposed, g.exact = true;
        cuda_gemm_require(cuda_of(j->c), &g, j->workspace);
    }
}

static void multiply_symmetric(void *context, const tensor *a, const tensor *b, const tensor *add,
                               const float f[3], const tensor *to) {
    const muon_job *j = (const muon_job *)context;
    cuda_batch_gemm g = { *a, *b, *add, *to, f[0], f[1], f[2], true };
    if (cuda_batch_gemm_hopper(cuda_of(j->c), &g)) return;
    multiply_each(j, a, b, true, to);
    int64_t n = tensor_count(to);
    launch_shape shape = { CUDA_PARTIALS, THREADS };
    if (a->data != b->data && to->dt == DT_F32)
        LAUNCH(cuda_of(j->c), shape, mirror<float>, (float *)to->data, n, to->dim[1]);
    else if (a->data != b->data)
        LAUNCH(cuda_of(j->c), shape, mirror<uint16_t>, (uint16_t *)to->data, n, to->dim[1]);
    if (!add->data) return;
    LAUNCH(cuda_of(j->c), shape, add_terms, mixed(*to, n), mixed(*add, n), n, to->dim[1], f[0],
           f[1], f[2]);
}

static void multiply_plain(void *context, const tensor *q, const tensor *x, const tensor *to) {
    const muon_job *j = (const muon_job *)context;
    cuda_batch_gemm g = { *q, *x, { 0 }, *to, 1, 0, 0, false };
    if (!cuda_batch_gemm_hopper(cuda_of(j->c), &g)) multiply_each(j, q, x, false, to);
}

/* A step that is skipped is orthogonalized too, and then not applied: GEMMs read no step block. */
static void cuda_orthogonalize(const op_call *c) {
    const tensor *x = &c->out[0];
    muon_job j = { c };
    polar_run r = { &j, *x, *x };
    char *at = (char *)c->run->workspace;
    r.next.data = at;
    at += align_up(tensor_bytes(x), 256);
    for (int i = 0; i < POLAR_SQUARES; i++) {
        int64_t dim[] = { x->dim[0], x->dim[1], x->dim[1] };
        r.square[i] = tensor_of(at, x->dt, 3, dim);
        at += align_up(tensor_bytes(&r.square[i]), 256);
    }
    j.workspace = at;
    r.symmetric = multiply_symmetric, r.apply = multiply_plain;
    polar_iterate(&r, c->attr.update.polar);
    if (r.x.data != x->data)
        CUDA_OK(cuda_of(c), cudaMemcpyAsync(x->data, r.x.data, tensor_bytes(x),
                                            cudaMemcpyDeviceToDevice, cuda_stream(c)));
}

static size_t cuda_orthogonalize_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *x = &c->out[0];
    size_t square = (size_t)(x->dim[0] * x->dim[1] * x->dim[1]) * dt_size(x->dt);
    return align_up(tensor_bytes(x), 256) + POLAR_SQUARES * align_up(square, 256) +
           CUDA_GEMM_WORKSPACE;
}

KERNEL(MUON_MOMENTUM, cuda_muon_momentum, NULL, ATTR(MOMENTUM) | ATTR(NESTEROV) | ATTR(HOST_STATE));
KERNEL(MUON_PACK, cuda_muon_pack, cuda_muon_pack_workspace, ATTR(POLAR) | ATTR(EQUILIBRATE));
KERNEL(ORTHOGONALIZE, cuda_orthogonalize, cuda_orthogonalize_workspace, ATTR(POLAR));
KERNEL(MUON_UNPACK, cuda_muon_unpack);
KERNEL(MUON_UNPACK_ROWS, cuda_muon_unpack, cuda_muon_unpack_workspace, ATTR(BETA2));
KERNEL(MUON_UNPACK_COLS, cuda_muon_unpack, cuda_muon_unpack_workspace, ATTR(BETA2));
