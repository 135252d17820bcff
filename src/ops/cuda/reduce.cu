/* The sum of squares of a gradient: read once, fp64 sums, in an order fixed by the shape. */
#include "device.cuh"

enum { THREADS = 512 };

static __device__ double block_sum(double v, double *room) {
    room[threadIdx.x] = v;
    __syncthreads();
    for (int o = THREADS / 2; o; o >>= 1) {
        if (threadIdx.x < o) room[threadIdx.x] += room[threadIdx.x + o];
        __syncthreads();
    }
    return room[0];
}

static __global__ void squares(mixed x, int64_t n, double *partial) {
    __shared__ double room[THREADS];
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n;
         i += (int64_t)gridDim.x * THREADS * EIGHT) {
        float v[8], part = 0;
        x.load(i, n, v);
        for (int k = 0; k < 8; k++) part += v[k] * v[k];
        sum += part;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void finish(const double *partial, int n, float by, float *out, bool accumulate) {
    __shared__ double room[THREADS];
    double sum = block_sum(threadIdx.x < n ? partial[threadIdx.x] : 0, room);
    if (threadIdx.x) return;
    *out = (float)(sum * by + (accumulate ? *out : 0.0));
}

extern "C" size_t cuda_reduce_workspace(const op_call *c) { return CUDA_PARTIALS * sizeof(double); }

extern "C" void cuda_sqnorm(const op_call *c) {
    static_assert((int)CUDA_PARTIALS <= (int)THREADS, "one block adds the partial sums");
    int64_t n = tensor_count(&c->in[0]), blocks = ceil_div(n, THREADS * EIGHT);
    if (blocks > CUDA_PARTIALS) blocks = CUDA_PARTIALS;
    double *partial = (double *)c->run->workspace;
    tensor x = tensor_of(c->in[0].data, c->in[0].dt, 1, &n);
    mixed all(x);
    all.eights = (uintptr_t)x.data % 16 == 0 && n % 8 == 0;
    squares<<<(unsigned)blocks, THREADS, 0, cuda_stream(c)>>>(all, n, partial);
    CUDA_LAUNCHED(c);
    finish<<<1, THREADS, 0, cuda_stream(c)>>>(partial, (int)blocks, c->attr.scale.by,
                                              (float *)c->out[0].data, c->accumulate & 1);
    CUDA_LAUNCHED(c);
}
