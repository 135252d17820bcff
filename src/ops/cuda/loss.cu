/* Cross-entropy over rows of logits and its gradient, in place. Grid: a block of 512 threads per row. A
 * first pass computes the running maximum and sum of the softmax, a second writes (p - onehot) times the
 * gradient of the loss. A row that fits into shared memory is kept there for the second pass: each logit
 * is read once and written once. A longer row is read twice, the second time mostly from L2.
 * Deterministic. */
#include "device.cuh"

/* Two blocks fit on an SM: while one computes, the other loads. Larger blocks measured slower. */
enum { THREADS = 512, NO_TARGET = -100, ROW_BYTES = 112 << 10 };

typedef struct softmax_args {
    const int32_t *target;
    float *loss;
    const step_block *step;
    int64_t v, stride;
    float scale;
    bool grad;
} softmax_args;

/* Merges two running softmax states: a maximum and the sum of 2^(x - max). */
static __device__ __forceinline__ void merge_softmax(float &max, float &sum, float other_max,
                                                     float other_sum) {
    float most = fmaxf(max, other_max);
    if (most == -INFINITY) return;
    sum = sum * exp2_approx(max - most) + other_sum * exp2_approx(other_max - most);
    max = most;
}

static __device__ __forceinline__ void merge_warp(float &max, float &sum, float &target) {
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) {
        merge_softmax(max, sum, __shfl_xor_sync(~0u, max, o), __shfl_xor_sync(~0u, sum, o));
        target = fmaxf(target, __shfl_xor_sync(~0u, target, o));
    }
}

/* Merges the states of all threads of a block and returns the result to each. target: -inf in all threads
 * but the one that saw the target's logit. */
static __device__ __forceinline__ void merge_block(float &max, float &sum, float &target) {
    enum { WARPS = THREADS / WARP };
    __shared__ float maxima[WARPS], sums[WARPS], targets[WARPS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    merge_warp(max, sum, target);
    if (lane == 0) maxima[warp] = max, sums[warp] = sum, targets[warp] = target;
    __syncthreads();
    max = lane < WARPS ? maxima[lane] : -INFINITY;
    sum = lane < WARPS ? sums[lane] : 0;
    target = lane < WARPS ? targets[lane] : -INFINITY;
    merge_warp(max, sum, target);
}

/* Works in powers of two: logits are multiplied by scale x log2(e) when read. */
template <class A, bool KEEP>
static __global__ void __launch_bounds__(THREADS, 2) softmax_rows(A z, softmax_args a) {
    DYNAMIC_SHARED(pack16, shared); /* KEEP: the row; a thread reads only what it copied itself */
    typename A::raw *kept = (typename A::raw *)shared;
    int64_t base = blockIdx.x * a.stride, end = base + a.v;
    int v = (int)a.v, target = a.target[blockIdx.x];
    if (target == NO_TARGET) {
        if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
        float none[8] = { 0 };
        for (int i = threadIdx.x * EIGHT; a.grad && i < v; i += THREADS * EIGHT)
            z.store(base + i, end, none);
        return;
    }
    if (KEEP) {
        for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT)
            z.load_async(kept + i / EIGHT, base + i, end);
        copies_commit();
        copies_wait<0>();
    }
    const float log2_e = 1.44269504f, by_e = a.scale * log2_e;
    float max = -INFINITY, sum = 0, at_target = -INFINITY, x[8];
    for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT) {
        float part = 0, most;
        if (KEEP)
            A::widen(kept[i / EIGHT], x);
        else
            z.load(base + i, end, x);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] *= by_e;
        if (i + 8 > v)
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] = i + k < v ? x[k] : -INFINITY;
        if ((unsigned)(target - i) < 8)
#pragma unroll
            for (int k = 0; k < 8; k++) at_target = i + k == target ? x[k] : at_target;
        most = max;
#pragma unroll
        for (int k = 0; k < 8; k++) most = fmaxf(most, x[k]);
        if (most == -INFINITY) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) part += exp2_approx(x[k] - most);
        sum = sum * exp2_approx(max - most) + part;
        max = most;
    }
    merge_block(max, sum, at_target);
    if (threadIdx.x == 0) a.loss[blockIdx.x] = logf(sum) + (max - at_target) / log2_e;
    if (!a.grad) return;
    float loss_scale = a.step->now.loss_scale > 0 ? a.step->now.loss_scale : 1;
    float unit = a.step->loss_grad * a.scale * loss_scale, by = unit / sum;
    for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT) {
        if (KEEP)
            A::widen(kept[i / EIGHT], x);
        else
            z.load(base + i, end, x);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = exp2_approx(x[k] * by_e - max) * by;
        if ((unsigned)(target - i) < 8)
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] -= i + k == target ? unit : 0;
        z.store(base + i, end, x);
    }
}

template <class A>
static void launch_softmax(const op_call *c, const tensor &z, const softmax_args &a) {
    size_t row = (size_t)ceil_div(a.v, EIGHT) * sizeof(typename A::raw);
    bool keep = a.grad && row <= ROW_BYTES;
    auto kernel = keep ? softmax_rows<A, true> : softmax_rows<A, false>;
    LAUNCH(cuda_of(c), { (unsigned)z.dim[0], THREADS, keep ? row : 0 }, kernel, A(z), a);
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
    WITH_ONE_TYPE(common_type(s->stride, all, 1), launch_softmax<A>(c, z, a));
}
