/* GELU, forward and backward, gated activations, and bias + GELU. All are limited by memory bandwidth: each
 * operand is read once and each result written once. Blocks of 256 threads, eight elements per thread
 * and load. Deterministic. */
#include "act.cuh"

enum { THREADS = 256 };

/* ---- GELU ------------------------------------------------------------------------------------ */
/* y = gelu(x), or y = dy gelu'(x). Grid: n / 2048 blocks. */
template <class A, bool BWD, act_kind ACT>
static __global__ void __launch_bounds__(THREADS) gelu_map(A x, A dy, A y, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    await_previous();
    if (i >= n) return;
    float v[8], d[8];
    x.load(i, n, v);
    if (BWD) dy.load(i, n, d);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = BWD ? d[k] * gelu_derivative(v[k], ACT) : gelu(v[k], ACT);
    y.store(i, n, v);
}

static void run_gelu(cuda_context *ctx, act_kind act, const tensor *xt, const tensor *dyt,
                     const tensor *yt) {
    int64_t n = tensor_count(xt);
    tensor x = tensor_of(xt->data, xt->dt, 1, &n), y = tensor_of(yt->data, yt->dt, 1, &n);
    tensor dy = dyt ? tensor_of(dyt->data, dyt->dt, 1, &n) : tensor{};
    const tensor *all[] = { &x, &dy, &y };
    launch_shape shape = { blocks_for(n, THREADS * EIGHT), THREADS, 0, true };
    WITH_ACT(act, WITH_TYPE(
                      common_type(n, all, 3),
                      if (dy.data) LAUNCH(ctx, shape, gelu_map<A, true, ACT>, A(x), A(dy), A(y), n);
                      else LAUNCH(ctx, shape, gelu_map<A, false, ACT>, A(x), A(dy), A(y), n)));
}

static void cuda_gelu(const op_call *c) {
    run_gelu(cuda_of(c), c->attr.act, &c->in[0], NULL, &c->out[0]);
}
extern "C" void cuda_gelu_bwd(const op_call *c) {
    run_gelu(cuda_of(c), c->attr.act, &c->in[1], &c->in[0], &c->out[0]);
}

/* ---- gates: y = f(gate, up) of rows of gate | up. Grid: a block per row -------------------------- */
/* Each has its value, and its gradients, which take the place of gate and up; they are computed with the value. */
struct silu_gate {
    __device__ __forceinline__ float value(float gate, float up) const {
        return up * (gate * sigmoid(gate));
    }
    __device__ __forceinline__ float grads(float d, float &gate, float &up) const {
        float s = sigmoid(gate), silu = gate * s, y = up * silu;
        gate = d * up * (s + silu * (1 - s));
        up = d * silu;
        return y;
    }
};
template <act_kind ACT> struct gelu_gate {
    __device__ __forceinline__ float value(float gate, float up) const {
        return up * gelu(gate, ACT);
    }
    __device__ __forceinline__ float grads(float d, float &gate, float &up) const {
        float by = gelu(gate, ACT), y = up * by;
        gate = d * up * gelu_derivative(gate, ACT);
        up = d * by;
        return y;
    }
};
/* Its formula is in cpu/gates.c. */
struct clamped_gate {
    float limit, alpha;
    __device__ __forceinline__ float value(float gate, float up) const {
        float a = fminf(gate, limit), b = fmaxf(-limit, fminf(up, limit));
        return (b + 1) * a * sigmoid(alpha * a);
    }
    __device__ __forceinline__ float grads(float d, float &gate, float &up) const {
        float a = fminf(gate, limit), b = fmaxf(-limit, fminf(up, limit));
        float s = sigmoid(alpha * a), slope = s * (1 + alpha * a * (1 - s));
        gate = gate <= limit ? d * (b + 1) * slope : 0;
        up = b == up ? d * a * s : 0;
        return (b + 1) * a * s;
    }
};

/* Grid: rows x parts of the columns. */
template <class A, class GATE>
static __global__ void __launch_bounds__(THREADS) gated(A gu, A y, int f, GATE by) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    int first = (blockIdx.y * THREADS + threadIdx.x) * EIGHT, next = gridDim.y * THREADS * EIGHT;
    await_previous();
    for (int col = first; col < f; col += next) {
        float gate[8], up[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
#pragma unroll
        for (int k = 0; k < 8; k++) up[k] = by.value(gate[k], up[k]);
        y.store(o + col, o + f, up);
    }
}

/* y: recomputed too, where it is wanted. */
template <class A, class GATE>
static __global__ void __launch_bounds__(THREADS)
    gated_bwd(A dy, A gu, A dgu, A y, int f, GATE by) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    for (int col = threadIdx.x * EIGHT; col < f; col += THREADS * EIGHT) {
        float gate[8], up[8], d[8], result[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
        dy.load(o + col, o + f, d);
#pragma unroll
        for (int k = 0; k < 8; k++) result[k] = by.grads(d[k], gate[k], up[k]);
        dgu.store(g + col, g + f, gate);
        dgu.store(u + col, u + f, up);
        if (y.present()) y.store(o + col, o + f, result);
    }
}

template <class GATE> static void run_gated(const op_call *c, GATE by) {
    const tensor *gu = &c->in[0], *y = &c->out[0], *all[] = { gu, y };
    int f = (int)y->dim[1];
    bool few = y->dim[0] < cuda_of(c)->device->sms; /* rows: their columns are divided too */
    dim3 blocks(blocks_for(y->dim[0], 1), few ? blocks_for(f, THREADS * EIGHT) : 1);
    WITH_TYPE(common_type(f, all, 2), LAUNCH(cuda_of(c), { blocks, THREADS, 0, true },
                                             gated<A, GATE>, A(*gu, f), A(*y, f), f, by));
}

template <class GATE> static void run_gated_bwd(const op_call *c, GATE by) {
    const tensor *dy = &c->in[0], *gu = &c->in[1], *dgu = &c->out[0], *y = &c->out[1];
    const tensor *all[] = { dy, gu, dgu, y };
    int f = (int)dy->dim[1];
    WITH_TYPE(common_type(f, all, 4),
              LAUNCH(cuda_of(c), { blocks_for(dy->dim[0], 1), THREADS }, gated_bwd<A, GATE>,
                     A(*dy, f), A(*gu, f), A(*dgu, f), A(*y, f), f, by));
}

static void cuda_swiglu(const op_call *c) { run_gated(c, silu_gate{}); }
static void cuda_swiglu_bwd(const op_call *c) { run_gated_bwd(c, silu_gate{}); }
static void cuda_geglu(const op_call *c) { WITH_ACT(c->attr.act, run_gated(c, gelu_gate<ACT>{})); }
static void cuda_geglu_bwd(const op_call *c) {
    WITH_ACT(c->attr.act, run_gated_bwd(c, gelu_gate<ACT>{}));
}
static void cuda_swiglu_clamped(const op_call *c) {
    run_gated(c, clamped_gate{ c->attr.clamp.limit, c->attr.clamp.alpha });
}
static void cuda_swiglu_clamped_bwd(const op_call *c) {
    run_gated_bwd(c, clamped_gate{ c->attr.clamp.limit, c->attr.clamp.alpha });
}

/* ---- bias and GELU, where the GEMM could not add them ------------------------------------------- */
/* Grid: a block per row. z is rounded to its type before GELU, so that y can be recomputed from z. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    bias_gelu(A z, mixed b, A y, int64_t cols, int act) {
    int64_t base = blockIdx.x * cols, end = base + cols;
    for (int64_t col = threadIdx.x * EIGHT; col < cols; col += THREADS * EIGHT) {
        float v[8], add[8];
        z.load(base + col, end, v);
        if (b.present()) {
            b.load(col, cols, add);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = z.round(v[k] + add[k]);
            z.store(base + col, end, v);
        }
        if (act < 0) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = gelu(v[k], (act_kind)act);
        y.store(base + col, end, v);
    }
}

extern "C" void cuda_bias_gelu(cuda_context *x, const tensor *z, const tensor *bias, int act,
                               const tensor *y) {
    int64_t cols = z->dim[1];
    const tensor *all[] = { z, y };
    WITH_TYPE(common_type(cols, all, 2),
              LAUNCH(x, { blocks_for(z->dim[0], 1), THREADS }, bias_gelu<A>, A(*z), mixed(*bias),
                     A(*y), cols, act));
}

KERNEL(GELU, cuda_gelu, NULL, ATTR(ACT));
KERNEL(GELU_BWD, cuda_gelu_bwd, NULL, ATTR(ACT));
KERNEL(SWIGLU, cuda_swiglu);
KERNEL(SWIGLU_BWD, cuda_swiglu_bwd);
KERNEL(GEGLU, cuda_geglu, NULL, ATTR(ACT));
KERNEL(GEGLU_BWD, cuda_geglu_bwd, NULL, ATTR(ACT));
KERNEL(SWIGLU_CLAMPED, cuda_swiglu_clamped, NULL, ATTRS_CLAMP);
KERNEL(SWIGLU_CLAMPED_BWD, cuda_swiglu_clamped_bwd, NULL, ATTRS_CLAMP);
