/* The sum of squares of a gradient, or of weights, in two kernels: each element is read once. Squares
 * and sums are fp64, an operation per element, which costs less than reading it. Deterministic: the order depends on the size alone. */
#include "device.cuh"

enum { THREADS = 512, LOADS = 4, TILE = THREADS * LOADS * 4 };

static __device__ __forceinline__ double sum_of_squares(float4 v) {
    double x = v.x, y = v.y, z = v.z, w = v.w;
    return (x * x + y * y) + (z * z + w * w);
}

/* Grid: at most CUDA_PARTIALS blocks, which loop over tiles of 8192 elements; each writes one partial. */
static __global__ void __launch_bounds__(THREADS)
    partial_squares(const void *x, int dt, int64_t n, bool fours, double *partial) {
    __shared__ double smem[THREADS];
    double sum = 0;
    for (int64_t tile = (int64_t)blockIdx.x * TILE; tile < n; tile += (int64_t)gridDim.x * TILE) {
        if (fours && tile + TILE <= n) {
            const float4 *at = (const float4 *)((const float *)x + tile) + threadIdx.x;
            float4 v[LOADS];
#pragma unroll
            for (int k = 0; k < LOADS; k++) v[k] = __ldcs(at + k * THREADS);
            sum += (sum_of_squares(v[0]) + sum_of_squares(v[1])) +
                   (sum_of_squares(v[2]) + sum_of_squares(v[3]));
        } else {
            for (int64_t i = tile + threadIdx.x; i < n && i < tile + TILE; i += THREADS) {
                double v = read1(x, dt, i);
                sum += v * v;
            }
        }
    }
    sum = block_sum_f64<THREADS>(sum, smem);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block. out: the sum rounded to fp32, and the rest that the rounding left out. */
static __global__ void sum_partial_squares(const double *partial, int n, float by, float *out,
                                           bool accumulate) {
    __shared__ double smem[THREADS];
    double sum = block_sum_f64<THREADS>(threadIdx.x < n ? partial[threadIdx.x] : 0, smem) * by;
    if (threadIdx.x) return;
    if (accumulate) sum += (double)out[0] + out[1];
    out[0] = (float)sum;
    out[1] = (float)(sum - out[0]);
}

static size_t cuda_reduce_workspace(const op_backend *b, const op_call *c, int threads) {
    return CUDA_PARTIALS * sizeof(double);
}

static void cuda_sqnorm(const op_call *c) {
    static_assert((int)CUDA_PARTIALS <= (int)THREADS, "one block adds the partial sums");
    const tensor *x = &c->in[0];
    BUG_IF(tensor_count(&c->out[0]) != 2);
    int64_t n = tensor_count(x), blocks = ceil_div(n, TILE);
    if (blocks > CUDA_PARTIALS) blocks = CUDA_PARTIALS;
    double *partial = (double *)c->run->workspace;
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, partial_squares, x->data, x->dt, n,
           x->dt == DT_F32 && (uintptr_t)x->data % 16 == 0, partial);
    LAUNCH(cuda_of(c), { 1, THREADS }, sum_partial_squares, partial, (int)blocks, c->attr.scale.by,
           (float *)c->out[0].data, c->accumulate & 1);
}

KERNEL(SQNORM, cuda_sqnorm, cuda_reduce_workspace, ATTR(SCALE_BY));
