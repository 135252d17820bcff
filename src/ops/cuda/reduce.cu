/* The sum of squares of a gradient: 4 bytes an element, read once. Squares are added in fp32 sixteen
 * at a time, those sums in fp64, in an order fixed by the shape. */
#include "device.cuh"

enum { THREADS = 512, LOADS = 4, TILE = THREADS * LOADS * 4 };

static __device__ double block_sum(double v, double *room) {
    room[threadIdx.x] = v;
    __syncthreads();
    for (int o = THREADS / 2; o; o >>= 1) {
        if (threadIdx.x < o) room[threadIdx.x] += room[threadIdx.x + o];
        __syncthreads();
    }
    return room[0];
}

static __device__ __forceinline__ float square(float4 v) {
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* Grid: at most CUDA_PARTIALS blocks, each every so-many-th tile of 8192 elements. */
static __global__ void __launch_bounds__(THREADS)
    squares(const float *x, int64_t n, bool fours, double *partial) {
    __shared__ double room[THREADS];
    double sum = 0;
    for (int64_t tile = (int64_t)blockIdx.x * TILE; tile < n; tile += (int64_t)gridDim.x * TILE) {
        if (fours && tile + TILE <= n) {
            const float4 *at = (const float4 *)(x + tile) + threadIdx.x;
            float4 v[LOADS];
#pragma unroll
            for (int k = 0; k < LOADS; k++) v[k] = __ldcs(at + k * THREADS);
            sum += (square(v[0]) + square(v[1])) + (square(v[2]) + square(v[3]));
        } else {
            for (int64_t i = tile + threadIdx.x; i < n && i < tile + TILE; i += THREADS)
                sum += (double)x[i] * x[i];
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void finish(const double *partial, int n, float by, float *out, bool accumulate) {
    __shared__ double room[THREADS];
    double sum = block_sum(threadIdx.x < n ? partial[threadIdx.x] : 0, room) * by;
    if (threadIdx.x) return;
    if (accumulate) sum += (double)out[0] + out[1];
    out[0] = (float)sum;
    out[1] = (float)(sum - out[0]);
}

extern "C" size_t cuda_reduce_workspace(const op_backend *b, const op_call *c, int threads) {
    return CUDA_PARTIALS * sizeof(double);
}

extern "C" void cuda_sqnorm(const op_call *c) {
    static_assert((int)CUDA_PARTIALS <= (int)THREADS, "one block adds the partial sums");
    const tensor *x = &c->in[0];
    BUG_IF(x->dt != DT_F32 || tensor_count(&c->out[0]) != 2);
    int64_t n = tensor_count(x), blocks = ceil_div(n, TILE);
    if (blocks > CUDA_PARTIALS) blocks = CUDA_PARTIALS;
    double *partial = (double *)c->run->workspace;
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, squares, (const float *)x->data, n,
           (uintptr_t)x->data % 16 == 0, partial);
    LAUNCH(cuda_of(c), { 1, THREADS }, finish, partial, (int)blocks, c->attr.scale.by,
           (float *)c->out[0].data, c->accumulate & 1);
}
