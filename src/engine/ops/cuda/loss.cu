/* Cross-entropy over rows of logits and its gradient, in place. Grid: a block of 512 threads per row. A
 * first pass computes the running maximum and sum of the softmax, a second writes (p - onehot) times the
 * gradient of the loss. A row that fits into shared memory is kept there for the second pass: each logit
 * is read once and written once. A longer row is read twice, the second time mostly from L2. Gradients in fp8 are
 * stored beside the logits: their scale is known before them. Deterministic.
 *
 * At the end, the same for a vocabulary that is sharded: ce_stat before the collective, ce_loss after it. */
#include "fp8.cuh"

#include <float.h>

/* Two blocks fit on an SM: while one computes, the other loads. Larger blocks measured slower. */
enum { THREADS = 512, NO_TARGET = -100, ROW_BYTES = 112 << 10 };

typedef struct softmax_args {
    const int32_t *target;
    float *loss, *top1; /* top1 may be NULL */
    const step_block *step;
    int64_t v, stride;
    float scale, cap, smoothing, z_loss;
    bool grad;
    uint8_t *dz8; /* where gradients are stored in fp8; NULL: in place */
    float *dz_row;
} softmax_args;

/* Holds the results of a row's statistics: its loss, and the gradient by logit j, which is by e^(logit - max) - each, and at the
 * target less `share`. plain: the loss without smoothing and z-loss; lse: the logarithm of the sum of e^logit; mean: of
 * the logits, which only smoothing reads. */
typedef struct logit_slopes {
    float by, each, share;
} logit_slopes;

static __device__ __forceinline__ float full_loss(float plain, float lse, float at_target,
                                                  float mean, float smoothing, float z_loss) {
    return plain + smoothing * (at_target - mean) + z_loss * lse * lse;
}

/* The gradient of a token's loss. */
static __device__ __forceinline__ float loss_unit(const step_block *step, float scale) {
    float loss_scale = step->now.loss_scale > 0 ? step->now.loss_scale : 1;
    return step->loss_grad * scale * loss_scale;
}

static __device__ __forceinline__ logit_slopes logit_slopes_of(float unit, float sum, float lse,
                                                               float v, float smoothing,
                                                               float z_loss) {
    logit_slopes d = { unit * (1 + 2 * z_loss * lse) / sum, unit * smoothing / v,
                       unit * (1 - smoothing) };
    return d;
}

/* tanh for logits. Where they are of 16 bits, whose rounding is coarser, the machine's approximation serves. */
template <class A> static __device__ __forceinline__ float cap_tanh(float x) {
    return A::NARROW ? tanh_approx(x) : tanhf(x);
}

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
static __device__ __forceinline__ void merge_block_stats(float &max, float &sum, float &target) {
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

/* Stores eight gradients of the block's row, from column i on. */
template <class A>
static __device__ __forceinline__ void store_gradient(const A &z, const softmax_args &a, int i,
                                                      int64_t end, const float x[8]) {
    if (a.dz8)
        *(uint2 *)(a.dz8 + blockIdx.x * a.v + i) = to_fp8<__NV_E5M2>(x);
    else
        z.store(blockIdx.x * a.stride + i, end, x);
}

/* Works in powers of two: logits are multiplied by scale x log2(e) when read, and capped as such. */
template <class A, bool KEEP, bool CAP>
static __global__ void __launch_bounds__(THREADS, 2) softmax_rows(A z, softmax_args a) {
    DYNAMIC_SHARED(pack16, shared); /* KEEP: the row; a thread reads only what it copied itself */
    typename A::raw *kept = (typename A::raw *)shared;
    int64_t base = blockIdx.x * a.stride, end = base + a.v;
    int v = (int)a.v, target = a.target[blockIdx.x];
    float unit = loss_unit(a.step, a.scale), dz_scale = a.dz8 ? fp8_logit_scale(unit) : 1;
    if (a.dz8 && blockIdx.x == 0 && threadIdx.x == 0) fp8_set_scale(a.dz_row, dz_scale);
    if (target == NO_TARGET) {
        if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
        if (threadIdx.x == 0 && a.top1) a.top1[blockIdx.x] = 0;
        float none[8] = { 0 };
        for (int i = threadIdx.x * EIGHT; a.grad && i < v; i += THREADS * EIGHT)
            store_gradient(z, a, i, end, none);
        return;
    }
    if (KEEP) {
        for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT)
            z.load_async(kept + i / EIGHT, base + i, end);
        copies_commit();
        copies_wait<0>();
    }
    const float log2_e = 1.44269504f, by_e = a.scale * log2_e;
    const float cap = CAP ? a.cap * log2_e : 0, into_cap = CAP ? a.scale / a.cap : 0;
    float max = -INFINITY, sum = 0, at_target = -INFINITY, logits = 0, x[8];
    for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT) {
        float part = 0, most;
        if (KEEP)
            A::widen(kept[i / EIGHT], x);
        else
            z.load(base + i, end, x);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = CAP ? cap * cap_tanh<A>(x[k] * into_cap) : x[k] * by_e;
        if (i + 8 > v)
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] = i + k < v ? x[k] : -INFINITY;
        if ((unsigned)(target - i) < 8)
#pragma unroll
            for (int k = 0; k < 8; k++) at_target = i + k == target ? x[k] : at_target;
        if (a.smoothing > 0)
#pragma unroll
            for (int k = 0; k < 8; k++) logits += i + k < v ? x[k] : 0;
        most = max;
#pragma unroll
        for (int k = 0; k < 8; k++) most = fmaxf(most, x[k]);
        if (most == -INFINITY) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) part += exp2_approx(x[k] - most);
        sum = sum * exp2_approx(max - most) + part;
        max = most;
    }
    merge_block_stats(max, sum, at_target);
    if (a.smoothing > 0) {
        __shared__ float sums[THREADS / WARP];
        logits = block_sum(logits, sums);
    }
    float lse = logf(sum) + max / log2_e;
    if (threadIdx.x == 0)
        a.loss[blockIdx.x] =
            full_loss(logf(sum) + (max - at_target) / log2_e, lse, at_target / log2_e,
                      logits / log2_e / (float)v, a.smoothing, a.z_loss);
    if (threadIdx.x == 0 && a.top1) a.top1[blockIdx.x] = at_target >= max;
    if (!a.grad) return;
    logit_slopes d = logit_slopes_of(unit * dz_scale, sum, lse, (float)v, a.smoothing, a.z_loss);
    for (int i = threadIdx.x * EIGHT; i < v; i += THREADS * EIGHT) {
        if (KEEP)
            A::widen(kept[i / EIGHT], x);
        else
            z.load(base + i, end, x);
        float slope[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float t = CAP ? cap_tanh<A>(x[k] * into_cap) : 0;
            slope[k] = 1 - t * t;
            x[k] = exp2_approx((CAP ? cap * t : x[k] * by_e) - max) * d.by - d.each;
        }
        if ((unsigned)(target - i) < 8)
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] -= i + k == target ? d.share : 0;
        if (CAP)
#pragma unroll
            for (int k = 0; k < 8; k++) x[k] *= slope[k];
        store_gradient(z, a, i, end, x);
    }
}

template <class A>
static void launch_softmax(const op_call *c, const tensor &z, const softmax_args &a) {
    size_t row = (size_t)ceil_div(a.v, EIGHT) * sizeof(typename A::raw);
    bool keep = a.grad && row <= ROW_BYTES;
    auto kernel = keep ? (a.cap > 0 ? softmax_rows<A, true, true> : softmax_rows<A, true, false>)
                       : (a.cap > 0 ? softmax_rows<A, false, true> : softmax_rows<A, false, false>);
    LAUNCH(cuda_of(c), { (unsigned)z.dim[0], THREADS, keep ? row : 0 }, kernel, A(z), a);
}

extern "C" void cuda_softmax_rows(const cuda_softmax *s) {
    const op_call *c = s->call;
    softmax_args a = {};
    a.target = (const int32_t *)c->in[2].data + s->from;
    a.loss = (float *)c->out[0].data + s->from;
    if (c->out[3].data) a.top1 = (float *)c->out[3].data + s->from;
    a.step = c->run->step;
    a.v = s->v, a.stride = s->stride, a.scale = c->attr.ce.logit_scale, a.grad = s->grad;
    a.cap = c->attr.ce.cap, a.smoothing = c->attr.ce.smoothing, a.z_loss = c->attr.ce.z_loss;
    a.dz8 = s->dz8, a.dz_row = s->dz_row;
    int64_t dim[] = { s->count, s->stride };
    tensor z = tensor_of(s->z, s->zt, 2, dim);
    const tensor *all[] = { &z };
    WITH_ONE_TYPE(common_type(s->stride, all, 1), launch_softmax<A>(c, z, a));
}

/* ---- a sharded vocabulary ----------------------------------------------------------------------
 * Grid: a block of 512 threads per row. ce_stat reads the row twice, the second time mostly from L2; ce_loss
 * reads it once and writes its gradient. Deterministic. */
enum { STAT_MAX, STAT_SUM, STAT_TARGET, STAT_LOGITS, STATS };

typedef struct shard_args {
    const int32_t *target;
    const float *stat_in;            /* [ranks][n][STATS] */
    float *stat, *loss, *top1, *row; /* top1 and row may be NULL */
    const step_block *step;
    int64_t n, v, ranks;
    int own, first; /* columns that are tokens, and the first one's id */
    float whole;    /* tokens of all ranks */
    float scale, cap, smoothing, z_loss;
    bool grad;
} shard_args;

static __device__ __forceinline__ float block_max(float v, float *smem) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    v = warp_max(v);
    if (lane == 0) smem[warp] = v;
    __syncthreads();
    v = smem[0];
    for (int i = 1; i < THREADS / WARP; i++) v = fmaxf(v, smem[i]);
    return v;
}

static __device__ __forceinline__ float logit_as_seen(float x, float scale, float cap) {
    return cap > 0 ? cap * tanhf(x * scale / cap) : x * scale;
}

/* Eight scaled and capped logits, -inf beyond the vocabulary. */
template <class Z>
static __device__ __forceinline__ void load_logits(const Z &z, const shard_args &a, int i,
                                                   float x[8]) {
    int64_t base = blockIdx.x * a.v;
    z.load(base + i, base + a.v, x);
#pragma unroll
    for (int k = 0; k < 8; k++)
        x[k] = i + k < a.own ? logit_as_seen(x[k], a.scale, a.cap) : -INFINITY;
}

template <class Z> static __global__ void __launch_bounds__(THREADS) stat_rows(Z z, shard_args a) {
    __shared__ float maxima[THREADS / WARP], sums[THREADS / WARP];
    const float log2_e = 1.44269504f;
    float *stat = a.stat + (int64_t)blockIdx.x * STATS, max = -INFINITY, sum = 0, logits = 0, x[8];
    int target = a.target[blockIdx.x];
    if (target == NO_TARGET) {
        if (threadIdx.x < STATS) stat[threadIdx.x] = 0;
        return;
    }
    for (int i = threadIdx.x * EIGHT; i < a.own; i += THREADS * EIGHT) {
        load_logits(z, a, i, x);
#pragma unroll
        for (int k = 0; k < 8; k++) max = fmaxf(max, x[k]);
    }
    max = block_max(max, maxima);
    for (int i = threadIdx.x * EIGHT; i < a.own; i += THREADS * EIGHT) {
        load_logits(z, a, i, x);
#pragma unroll
        for (int k = 0; k < 8; k++) sum += exp2_approx((x[k] - max) * log2_e);
        if (a.smoothing > 0)
#pragma unroll
            for (int k = 0; k < 8; k++) logits += i + k < a.own ? x[k] : 0;
        int at = target - a.first - i;
        if ((unsigned)at < 8 && i + at < a.own)
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (k == at) stat[STAT_TARGET] = x[k];
    }
    sum = block_sum(sum, sums);
    if (a.smoothing > 0) logits = block_sum(logits, sums);
    if (threadIdx.x) return;
    stat[STAT_LOGITS] = logits;
    stat[STAT_MAX] = a.own ? max : -FLT_MAX;
    stat[STAT_SUM] = sum;
    if (target < a.first || target >= a.first + a.own) stat[STAT_TARGET] = 0;
}

template <class A>
static __global__ void __launch_bounds__(THREADS)
    loss_rows(typename A::fp32 z, A dz, shard_args a) {
    const float log2_e = 1.44269504f;
    int64_t base = blockIdx.x * a.v;
    int target = a.target[blockIdx.x];
    bool counts = target != NO_TARGET;
    float max = -FLT_MAX, sum = 0, at_target = 0, logits = 0, x[8];
    for (int r = 0; r < a.ranks && counts; r++)
        max = fmaxf(max, a.stat_in[(r * a.n + blockIdx.x) * STATS + STAT_MAX]);
    for (int r = 0; r < a.ranks && counts; r++) {
        const float *s = a.stat_in + (r * a.n + blockIdx.x) * STATS;
        sum += s[STAT_SUM] * exp2_approx((s[STAT_MAX] - max) * log2_e);
        at_target += s[STAT_TARGET];
        logits += s[STAT_LOGITS];
    }
    float lse = counts ? logf(sum) + max : 0;
    if (threadIdx.x == 0)
        a.loss[blockIdx.x] = counts ? full_loss(logf(sum) + (max - at_target), lse, at_target,
                                                logits / a.whole, a.smoothing, a.z_loss)
                                    : 0;
    if (threadIdx.x == 0 && a.top1) a.top1[blockIdx.x] = counts && at_target >= max;
    float unit = loss_unit(a.step, a.scale);
    if (threadIdx.x == 0 && blockIdx.x == 0 && a.row) fp8_set_scale(a.row, fp8_logit_scale(unit));
    if (!a.grad) return;
    logit_slopes d = logit_slopes_of(unit, counts ? sum : 1, lse, a.whole, a.smoothing, a.z_loss);
    for (int i = threadIdx.x * EIGHT; i < a.v; i += THREADS * EIGHT) {
        load_logits(z, a, i, x);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            bool own = counts && i + k < a.own;
            float p = own ? exp2_approx((x[k] - max) * log2_e) * d.by - d.each : 0;
            float g = p - (own && i + k == target - a.first ? d.share : 0);
            float t = a.cap > 0 && i + k < a.own ? x[k] / a.cap : 0;
            x[k] = g * (1 - t * t);
        }
        dz.store(base + i, base + a.v, x);
    }
}

static shard_args shard_args_of(const op_call *c, const tensor *target) {
    shard_args a = {};
    int64_t size = c->attr.vocab.size, first = c->attr.vocab.first;
    a.target = (const int32_t *)target->data;
    a.step = c->run->step;
    a.n = c->in[0].dim[0], a.v = c->in[0].dim[1];
    a.own = (int)(size ? MIN(a.v, MAX(size - first, 0)) : a.v);
    a.first = (int)first;
    a.scale = c->attr.ce.logit_scale;
    a.cap = c->attr.ce.cap, a.smoothing = c->attr.ce.smoothing, a.z_loss = c->attr.ce.z_loss;
    a.whole = (float)(size ? size : a.v);
    return a;
}

static void cuda_ce_stat(const op_call *c) {
    shard_args a = shard_args_of(c, &c->in[1]);
    const tensor *all[] = { &c->in[0] };
    a.stat = (float *)c->out[0].data;
    WITH_TYPE(common_type(a.v, all, 1),
              LAUNCH(cuda_of(c), { (unsigned)a.n, THREADS }, stat_rows<typename A::fp32>,
                     typename A::fp32(c->in[0]), a));
}

static void cuda_ce_loss(const op_call *c) {
    const tensor *z = &c->in[0], *dz = c->out[0].data ? &c->out[0] : z, *one[] = { dz };
    shard_args a = shard_args_of(c, &c->in[2]);
    a.stat_in = (const float *)c->in[1].data;
    a.ranks = c->in[1].dim[0] / a.n;
    a.loss = (float *)c->out[1].data;
    a.top1 = (float *)c->out[2].data;
    a.row = (float *)c->out[3].data;
    a.grad = c->out[0].data != NULL;
    dtype dt = (uintptr_t)z->data % 16 ? DT_NONE : common_type(a.v, one, 1);
    WITH_TYPE(dt, LAUNCH(cuda_of(c), { (unsigned)a.n, THREADS }, loss_rows<A>, typename A::fp32(*z),
                         A(*dz), a));
}

/* ---- logits by themselves. Grid: n / 4096 blocks ------------------------------------------------- */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    cap_all(A x, A y, int64_t n, float scale, float cap) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    await_previous();
    if (i >= n) return;
    float v[8];
    x.load(i, n, v);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = logit_as_seen(v[k], scale, cap);
    y.store(i, n, v);
}

static void cuda_cap_logits(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]);
    tensor x = tensor_of(c->in[0].data, c->in[0].dt, 1, &n);
    tensor y = tensor_of(c->out[0].data, c->out[0].dt, 1, &n);
    const tensor *all[] = { &x, &y };
    WITH_TYPE(common_type(n, all, 2),
              LAUNCH(cuda_of(c), { blocks_for(n, THREADS * EIGHT), THREADS, 0, true }, cap_all<A>,
                     A(x), A(y), n, c->attr.ce.logit_scale, c->attr.ce.cap));
}

KERNEL(CE_STAT, cuda_ce_stat, NULL, ATTRS_LOSS | ATTRS_VOCAB);
KERNEL(CE_LOSS, cuda_ce_loss, NULL, ATTRS_LOSS | ATTRS_VOCAB);
KERNEL(CAP_LOGITS, cuda_cap_logits, NULL, ATTRS_LOGITS);
