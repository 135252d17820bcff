/* Softmax and its gradient over rows of logits, in place. One block a row: a first pass keeps the
 * running maximum and sum, a second writes (p - onehot) x the loss's gradient. A row is read twice,
 * the second time mostly from L2, and written once. Deterministic. */
#include "device.cuh"

enum { THREADS = 512, NO_TARGET = -100 };

typedef struct softmax_args {
    const int32_t *target;
    float *loss;
    const step_block *step;
    int64_t v, stride;
    float scale;
    bool grad;
} softmax_args;

/* A maximum and the sum of e^(x - max). */
static __device__ __forceinline__ void join(float &max, float &sum, float other_max,
                                            float other_sum) {
    float most = fmaxf(max, other_max);
    if (most == -INFINITY) return;
    sum = sum * __expf(max - most) + other_sum * __expf(other_max - most);
    max = most;
}

template <class A> static __global__ void softmax_rows(A z, softmax_args a) {
    __shared__ float maxima[32], sums[32];
    int64_t row = blockIdx.x, base = row * a.stride, end = base + a.v;
    int32_t target = a.target[row];
    if (target == NO_TARGET) {
        if (threadIdx.x == 0) a.loss[row] = 0;
        float none[8] = { 0 };
        for (int64_t i = threadIdx.x * EIGHT; a.grad && i < a.v; i += THREADS * EIGHT)
            z.store(base + i, end, none);
        return;
    }
    float max = -INFINITY, sum = 0, at_target = -INFINITY;
    for (int64_t i = threadIdx.x * EIGHT; i < a.v; i += THREADS * EIGHT) {
        float v[8], most = -INFINITY, part = 0;
        z.load(base + i, end, v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = i + k < a.v ? v[k] * a.scale : -INFINITY;
            if (i + k == target) at_target = v[k];
            most = fmaxf(most, v[k]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) part += __expf(v[k] - most);
        join(max, sum, most, part);
    }
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) {
        join(max, sum, __shfl_xor_sync(~0u, max, o), __shfl_xor_sync(~0u, sum, o));
        at_target = fmaxf(at_target, __shfl_xor_sync(~0u, at_target, o));
    }
    __shared__ float targets[32];
    int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) maxima[warp] = max, sums[warp] = sum, targets[warp] = at_target;
    __syncthreads();
    max = -INFINITY, sum = 0, at_target = -INFINITY;
    for (int i = 0; i < THREADS / WARP; i++) {
        join(max, sum, maxima[i], sums[i]);
        at_target = fmaxf(at_target, targets[i]);
    }
    if (threadIdx.x == 0) a.loss[row] = logf(sum) + max - at_target;
    if (!a.grad) return;
    float unit = a.step->loss_grad * a.scale, by = unit / sum;
    for (int64_t i = threadIdx.x * EIGHT; i < a.v; i += THREADS * EIGHT) {
        float v[8];
        z.load(base + i, end, v);
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = __expf(v[k] * a.scale - max) * by - (i + k == target ? unit : 0.0f);
        z.store(base + i, end, v);
    }
}

extern "C" void cuda_softmax_rows(const cuda_softmax *s) {
    const op_call *c = s->call;
    softmax_args a = {};
    a.target = (const int32_t *)c->in[2].data + s->from;
    a.loss = (float *)c->out[0].data + s->from;
    a.step = c->run->step;
    a.v = s->v, a.stride = s->stride, a.scale = c->attr.ce.logit_scale, a.grad = s->grad;
    int64_t dim[] = { s->count, s->stride };
    tensor z = tensor_of(s->z, s->zt, 2, dim);
    const tensor *all[] = { &z };
    WITH_TYPE(common_type(s->stride, all, 1),
              (softmax_rows<A><<<(unsigned)s->count, THREADS, 0, cuda_stream(c)>>>(A(z), a)));
    CUDA_LAUNCHED(c);
}
