/* Sums over the rows of a tensor, for the gradients of biases and of norm weights, in two kernels: blocks
 * write partial sums, and add_partials adds those. Each element is read once. Deterministic: the grid and
 * the order of sums depend on the shape alone.
 */
#include "device.cuh"

enum { ROWS = 8, BLOCKS = 4 * CUDA_PARTIALS / 3, STEP = WARP * EIGHT };

/* ---- partial sums --------------------------------------------------------------------------------- */
/* Grid: a block per 32 columns; block: 32 x 32 threads; 32 share a column. Bytes: 4 per partial
 * sum. */
static __global__ void __launch_bounds__(1024)
    add_partials(const float *partial, int rows, int cols, cuda_sums o) {
    __shared__ float smem[32][33];
    int col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (col < cols)
#pragma unroll 4
        for (int r = threadIdx.y; r < rows; r += 32) sum += partial[(int64_t)r * cols + col];
    smem[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(smem[threadIdx.x][threadIdx.y]); /* a column per warp now */
    col = blockIdx.x * 32 + threadIdx.y;
    bool second = col >= o.wide;
    float *out = second ? o.out[1] : o.out[0];
    bool add = second ? o.add[1] : o.add[0];
    col -= second ? o.wide : 0;
    if (threadIdx.x || col >= o.d || !out) return;
    out[col] = add ? out[col] + sum : sum;
}

extern "C" void cuda_add_partials(cuda_context *x, const float *partial, int rows, int outputs,
                                  const cuda_sums *o) {
    int cols = outputs * o->wide;
    LAUNCH(x, { blocks_for(cols, 32), dim3(32, 32) }, add_partials, partial, rows, cols, *o);
}

/* ---- columns of a tensor -------------------------------------------------------------------------- */
/* Grid: (STEP columns, sets of ROWS x U rows); a block loops over every gridDim.y-th set. Block: 32 lanes x
 * ROWS. A lane has eight columns, a thread U loads in flight. */
template <class A, int U>
static __global__ void __launch_bounds__(ROWS *WARP, 4)
    column_partials(A x, int64_t rows, int64_t cols, float *partial) {
    __shared__ float smem[ROWS][STEP + 8];
    int64_t col = ((int64_t)blockIdx.x * WARP + threadIdx.x) * EIGHT;
    int64_t first = (int64_t)blockIdx.y * ROWS * U + threadIdx.y;
    float sum[8] = { 0 };
    for (int64_t r = first; r < rows && col < cols; r += (int64_t)gridDim.y * ROWS * U) {
        typename A::raw loaded[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t at = (r + u * ROWS) * cols;
            loaded[u] = {};
            if (r + u * ROWS < rows) loaded[u] = x.fetch(at + col, at + cols);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            float v[8];
            A::widen(loaded[u], v);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) smem[threadIdx.y][threadIdx.x * 8 + i] = sum[i];
    __syncthreads();
    int t = threadIdx.y * WARP + threadIdx.x;
    int64_t out = (int64_t)blockIdx.x * STEP + t;
    if (out >= cols) return;
    float total = 0;
#pragma unroll
    for (int k = 0; k < ROWS; k++) total += smem[k][t];
    partial[blockIdx.y * cols + out] = total;
}

/* The most partial sums that a column has. */
static int64_t max_partials(int64_t cols) {
    int64_t most = BLOCKS / ceil_div(cols, STEP);
    return most < 1 ? 1 : most > CUDA_PARTIALS ? CUDA_PARTIALS : most;
}

extern "C" size_t cuda_columns_bytes(int64_t cols) {
    return (size_t)(max_partials(cols) * cols) * sizeof(float);
}

template <class A> static int launch_columns(cuda_context *x, const tensor *t, float *partial) {
    static_assert((int)ROWS == (int)EIGHT, "a thread per column adds the sums of a block");
    enum { U = (A::WHOLE ? 128 : 64) / sizeof(typename A::raw) };
    int64_t rows = t->dim[0], cols = t->dim[1];
    int64_t down = ceil_div(rows, ROWS * U), most = max_partials(cols);
    if (down > most) down = most;
    dim3 grid(blocks_for(cols, STEP), (unsigned)down), block(WARP, ROWS);
    LAUNCH(x, { grid, block }, column_partials<A, U>, A(*t), rows, cols, partial);
    return (int)down;
}

extern "C" void cuda_sum_columns(cuda_context *x, const tensor *t, float *out, bool accumulate,
                                 void *partial) {
    int cols = (int)t->dim[1], rows = 0;
    const tensor *all[] = { t };
    WITH_TYPE(common_type(cols, all, 1), rows = launch_columns<A>(x, t, (float *)partial));
    cuda_sums o = { { out, NULL }, { accumulate, false }, cols, cols };
    cuda_add_partials(x, (const float *)partial, rows, 1, &o);
}
