/* Shared by the update kernels: the scalars of a step, loads and stores of four elements, and stochastic
 * rounding of bf16 weights. */
#ifndef INGOT_OPS_CUDA_UPDATE_CUH
#define INGOT_OPS_CUDA_UPDATE_CUH

#include <math.h>

#include "device.cuh"
#include "philox.cuh"

extern "C" {
#include "ops/op_table.h"
}

/* Picks calls of a group that can be one launch: the first that is not done yet, and up to `most` in all that are `alike`.
 * Matrices of two shapes may alternate, as those of a layer do: the others are left for later launches.
 * @return how many; 0: all are done */
template <class F>
static int pick_alike(const op_call *c, int n, int most, bool done[OPS_GROUP],
                      int picked[OPS_GROUP], F alike) {
    int count = 0, first = 0;
    while (first < n && done[first]) first++;
    for (int i = first; i < n && count < most; i++) {
        if (done[i] || !alike(&c[first], &c[i])) continue;
        done[i] = true;
        picked[count++] = i;
    }
    return count;
}

/* A call's attributes, and what the host can compute from them. */
typedef struct update_attr {
    float lr_mul, decay, beta1, beta2, eps, momentum;
    float rest1, rest2, root2; /* 1 - beta1, 1 - beta2, the square root of that */
    bool l2, nesterov;
    int decay_by;
    uint32_t site;
    int64_t first, base, cols, stride;
    const float *squares; /* UPDATE_ALONG: of the direction; NULL: not needed */
} update_attr;

static inline update_attr attr_of(const op_call *c) {
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2;
    update_attr a = { c->attr.update.lr_mul, c->attr.update.decay,    c->attr.update.beta1,
                      c->attr.update.beta2,  c->attr.update.eps,      c->attr.update.momentum,
                      (float)(1 - b1),       (float)(1 - b2),         (float)sqrt(1 - b2),
                      c->attr.update.l2,     c->attr.update.nesterov, c->attr.update.decay_by,
                      c->attr.update.site,   c->attr.update.first,    c->attr.update.base,
                      c->attr.update.cols,   c->attr.update.stride,   NULL };
    if (c->op == OP_UPDATE_ALONG) a.squares = (const float *)c->in[1].data;
    return a;
}

/* The scalars of one call, as in ops/cpu/update.h; computed by one thread of each block. */
typedef struct factors {
    float scale, lr, keep, decay, mu, now, then, b1, g1, b2, g2, root_g2, step, eps;
    bool skip;
    uint2 key; /* of the stochastic rounding of bf16 weights, together with the count */
    uint32_t count;
} factors;

/* 1 - x^n, by squaring: the block waits for it, and pow takes several times as long. */
static __device__ float bias_correction(double x, int64_t n) {
    double y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return (float)(1 - y);
}

/* The momentum of this step. @param own the call's attribute */
static __device__ __forceinline__ float momentum_now(float own, const step_block *s) {
    return fmaf(s->update.momentum.weight, s->update.momentum.toward - own, own);
}

static __device__ factors factors_of(const update_attr &a, const step_block *s) {
    float decay = a.decay * (1 - s->update.decay_less[a.decay_by]);
    float mu = momentum_now(a.momentum, s);
    float lr = s->update.lr * a.lr_mul, all = s->now.grad_scale, scale = a.l2 ? 1 : all;
    float root_bias = sqrtf(bias_correction(a.beta2, s->now.count));
    factors f;
    f.scale = all;
    f.lr = a.squares ? lr / fmaxf(1, sqrtf(a.squares[0] + a.squares[1])) : lr;
    f.keep = a.l2 ? 1 : fmaf(-lr, decay, 1);
    f.decay = decay;
    f.mu = mu;
    f.now = a.nesterov ? 1 : 0;
    f.then = a.nesterov ? mu : 1;
    f.b1 = a.beta1;
    f.g1 = a.rest1 * scale;
    f.b2 = a.beta2;
    f.g2 = a.rest2 * scale;
    f.root_g2 = a.root2 * scale;
    f.step = lr * root_bias / bias_correction(a.beta1, s->now.count);
    f.eps = a.eps * root_bias;
    f.skip = s->now.skip;
    f.key = make_uint2(s->update.rounding.k[0], s->update.rounding.k[1]);
    f.count = (uint32_t)s->now.count;
    return f;
}

static __device__ __forceinline__ const factors &block_factors(const update_attr &a,
                                                               const step_block *s) {
    __shared__ factors f;
    if (threadIdx.x == 0) f = factors_of(a, s);
    __syncthreads();
    return f;
}

/* AdamW's rule for one element; with L2, Adam's with decay through the gradient. */
template <bool L2> struct adam {
    static constexpr int states = 2;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        if (L2) g = g * f.scale + p * f.decay;
        float r = g * f.root_g2;
        m = m * f.b1 + g * f.g1;
        v = v * f.b2 + r * r;
        p = p * f.keep - __fdividef(m, sqrt_approx(v) + f.eps) * f.step;
    }
};

/* ---- weights kept in bf16: stochastic rounding, so that small steps count on average ---------------
 * The random words of elements [4 k, 4 k + 4) of a whole parameter, the same as in ops/cpu/update.h. */
static __device__ __forceinline__ void rounding_words(const factors &f, uint32_t site, int64_t four,
                                                      uint32_t word[4]) {
    philox(f.key, make_uint4(~0u, f.count, site, (uint32_t)four), word);
}

static __device__ uint32_t rounding_word(const factors &f, uint32_t site, int64_t index) {
    uint32_t word[4];
    int k = (int)(index & 3);
    rounding_words(f, site, index >> 2, word);
    return k == 0 ? word[0] : k == 1 ? word[1] : k == 2 ? word[2] : word[3];
}

static __device__ __forceinline__ uint32_t round_stochastic(float x, uint32_t random) {
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return bits >> 16 | ((bits & 0x7fffffu) ? 0x40u : 0u);
    return (bits + (random >> 16)) >> 16;
}

/* ---- four elements ----------------------------------------------------------------------------- */
typedef struct elements {
    const float *g;
    void *p;     /* fp32, or bf16 */
    void *m, *v; /* the state, in the type of the rule */
    void *copy;
    int copy_dt;
    int64_t n;
    bool fours; /* all operands, and attr.first, are aligned to four elements */
    update_attr a;
    const step_block *s;
} elements;

/* Up to four elements [at, at + count). whole: all four, aligned. */
typedef struct four {
    int64_t at;
    int count;
    bool whole;
} four;

static __device__ __forceinline__ void load4(const float *p, four e, float v[4]) {
    if (e.whole) {
        float4 a = __ldcs((const float4 *)(p + e.at));
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = j < e.count ? p[e.at + j] : 0.0f;
    }
}
static __device__ __forceinline__ void load4(const bf16 *p, four e, float v[4]) {
    if (e.whole) {
        uint2 a = __ldcs((const uint2 *)(p + e.at));
        v[0] = __uint_as_float(a.x << 16), v[1] = __uint_as_float(a.x & 0xffff0000u);
        v[2] = __uint_as_float(a.y << 16), v[3] = __uint_as_float(a.y & 0xffff0000u);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = j < e.count ? __bfloat162float(p[e.at + j]) : 0.0f;
    }
}

static __device__ __forceinline__ void store4(float *p, four e, const float v[4]) {
    if (e.whole) {
        __stcs((float4 *)(p + e.at), make_float4(v[0], v[1], v[2], v[3]));
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < e.count) p[e.at + j] = v[j];
    }
}

/* Stores fp32 weights, and the copy in another type. */
static __device__ __forceinline__ void store_weights(const elements &o, const factors &f, float *p,
                                                     four e, const float v[4]) {
    store4(p, e, v);
    if (!o.copy) return;
    if (e.whole && o.copy_dt == DT_BF16) {
        __nv_bfloat162 h[2] = { __floats2bfloat162_rn(v[0], v[1]),
                                __floats2bfloat162_rn(v[2], v[3]) };
        *(uint2 *)((bf16 *)o.copy + e.at) = *(const uint2 *)h;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < e.count) write1(o.copy, o.copy_dt, e.at + j, v[j]);
    }
}
/* The index in the whole parameter of a local element. */
static __device__ __forceinline__ int64_t whole_index(const update_attr &a, int64_t local) {
    return a.base + (a.cols ? local / a.cols * a.stride + local % a.cols : local);
}
/* Stores bf16 weights, rounded stochastically. */
static __device__ __forceinline__ void store_weights(const elements &o, const factors &f, bf16 *p,
                                                     four e, const float v[4]) {
    int64_t index = whole_index(o.a, o.a.first + e.at);
    bool one_row = !o.a.cols || !(o.a.cols & 3);
    uint32_t word[4];
    if (e.whole && one_row && !(index & 3)) {
        rounding_words(f, o.a.site, index / 4, word);
        uint32_t lo = round_stochastic(v[0], word[0]) | round_stochastic(v[1], word[1]) << 16;
        uint32_t hi = round_stochastic(v[2], word[2]) | round_stochastic(v[3], word[3]) << 16;
        *(uint2 *)(p + e.at) = make_uint2(lo, hi);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= e.count) continue;
        ((uint16_t *)p)[e.at + j] = (uint16_t)round_stochastic(
            v[j], rounding_word(f, o.a.site, whole_index(o.a, o.a.first + e.at + j)));
    }
}

static inline bool is_aligned_to_four(const void *p, size_t size) {
    return (uintptr_t)p % (4 * size) == 0;
}

/* @param states number of state tensors of the op; fp32, or bytes. */
static inline elements elements_of(const op_call *c, int states) {
    const tensor *out = c->out;
    elements o = { (const float *)c->in[0].data,
                   out[0].data,
                   states > 0 ? out[1].data : NULL,
                   states > 1 ? out[2].data : NULL,
                   out[states + 1].data,
                   out[states + 1].dt,
                   tensor_count(&c->in[0]),
                   true,
                   attr_of(c),
                   c->run->step };
    BUG_IF(out[0].dt == DT_BF16 && o.copy);
    o.fours = is_aligned_to_four(o.g, 4) && is_aligned_to_four(o.p, dt_size(out[0].dt)) &&
              is_aligned_to_four(o.m, 4) && is_aligned_to_four(o.v, 4) &&
              is_aligned_to_four(o.copy, dt_size(DT_BF16)) && o.a.first % 4 == 0;
    return o;
}

#endif
