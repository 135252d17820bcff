/* GELU and SwiGLU, forward and backward, and bias + GELU. All are limited by memory bandwidth: each
 * operand is read once and each result written once. Blocks of 256 threads, eight elements per thread
 * and load. Deterministic. */
#include "act.cuh"

enum { THREADS = 256 };

/* ---- GELU ------------------------------------------------------------------------------------ */
/* y = gelu(x), or y = dy gelu'(x). Grid: n / 2048 blocks. */
template <class A, bool BWD, act_kind ACT>
static __global__ void __launch_bounds__(THREADS) gelu_map(A x, A dy, A y, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    if (i >= n) return;
    float v[8], d[8];
    x.load(i, n, v);
    if (BWD) dy.load(i, n, d);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = BWD ? d[k] * gelu_derivative(v[k], ACT) : gelu(v[k], ACT);
    y.store(i, n, v);
}

template <class A, bool BWD>
static void launch_gelu(cuda_context *ctx, const tensor &x, const tensor &dy, const tensor &y,
                        act_kind act) {
    int64_t n = x.dim[0];
    auto kernel = act == ACT_RELU2      ? gelu_map<A, BWD, ACT_RELU2>
                  : act == ACT_GELU_ERF ? gelu_map<A, BWD, ACT_GELU_ERF>
                                        : gelu_map<A, BWD, ACT_GELU_TANH>;
    LAUNCH(ctx, { blocks_for(n, THREADS * EIGHT), THREADS }, kernel, A(x), A(dy), A(y), n);
}

static void run_gelu(cuda_context *ctx, act_kind act, const tensor *xt, const tensor *dyt,
                     const tensor *yt) {
    int64_t n = tensor_count(xt);
    tensor x = tensor_of(xt->data, xt->dt, 1, &n), y = tensor_of(yt->data, yt->dt, 1, &n);
    tensor dy = dyt ? tensor_of(dyt->data, dyt->dt, 1, &n) : tensor{};
    const tensor *all[] = { &x, &dy, &y };
    WITH_TYPE(common_type(n, all, 3), dy.data ? launch_gelu<A, true>(ctx, x, dy, y, act)
                                              : launch_gelu<A, false>(ctx, x, dy, y, act));
}

static void cuda_gelu(const op_call *c) {
    run_gelu(cuda_of(c), c->attr.act, &c->in[0], NULL, &c->out[0]);
}
extern "C" void cuda_gelu_bwd(const op_call *c) {
    run_gelu(cuda_of(c), c->attr.act, &c->in[1], &c->in[0], &c->out[0]);
}

/* ---- SwiGLU: rows of gate | up. Grid: a block per row -------------------------------------------- */
template <class A> static __global__ void __launch_bounds__(THREADS) swiglu(A gu, A y, int f) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    for (int col = threadIdx.x * EIGHT; col < f; col += THREADS * EIGHT) {
        float gate[8], up[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
#pragma unroll
        for (int k = 0; k < 8; k++) up[k] *= gate[k] * sigmoid(gate[k]);
        y.store(o + col, o + f, up);
    }
}

template <class A>
static __global__ void __launch_bounds__(THREADS) swiglu_bwd(A dy, A gu, A dgu, A y, int f) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    for (int col = threadIdx.x * EIGHT; col < f; col += THREADS * EIGHT) {
        float gate[8], up[8], d[8], result[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
        dy.load(o + col, o + f, d);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float s = sigmoid(gate[k]), silu = gate[k] * s;
            result[k] = up[k] * silu;
            gate[k] = d[k] * up[k] * (s + silu * (1 - s));
            up[k] = d[k] * silu;
        }
        dgu.store(g + col, g + f, gate);
        dgu.store(u + col, u + f, up);
        if (y.present()) y.store(o + col, o + f, result);
    }
}

static void cuda_swiglu(const op_call *c) {
    const tensor *gu = &c->in[0], *y = &c->out[0], *all[] = { gu, y };
    int f = (int)(gu->dim[1] / 2);
    WITH_TYPE(common_type(f, all, 2), LAUNCH(cuda_of(c), { blocks_for(gu->dim[0], 1), THREADS },
                                             swiglu<A>, A(*gu, f), A(*y, f), f));
}

static void cuda_swiglu_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *gu = &c->in[1], *dgu = &c->out[0], *y = &c->out[1];
    const tensor *all[] = { dy, gu, dgu, y };
    int f = (int)(gu->dim[1] / 2);
    WITH_TYPE(common_type(f, all, 4),
              LAUNCH(cuda_of(c), { blocks_for(gu->dim[0], 1), THREADS }, swiglu_bwd<A>, A(*dy, f),
                     A(*gu, f), A(*dgu, f), A(*y, f), f));
}

/* ---- GEGLU, likewise ---------------------------------------------------------------------------- */
template <class A, act_kind ACT>
static __global__ void __launch_bounds__(THREADS) geglu(A gu, A y, int f) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    for (int col = threadIdx.x * EIGHT; col < f; col += THREADS * EIGHT) {
        float gate[8], up[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
#pragma unroll
        for (int k = 0; k < 8; k++) up[k] *= gelu(gate[k], ACT);
        y.store(o + col, o + f, up);
    }
}

template <class A, act_kind ACT>
static __global__ void __launch_bounds__(THREADS) geglu_bwd(A dy, A gu, A dgu, int f) {
    int64_t g = (int64_t)blockIdx.x * 2 * f, u = g + f, o = (int64_t)blockIdx.x * f;
    for (int col = threadIdx.x * EIGHT; col < f; col += THREADS * EIGHT) {
        float gate[8], up[8], d[8];
        gu.load(g + col, g + f, gate);
        gu.load(u + col, u + f, up);
        dy.load(o + col, o + f, d);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float value = gelu(gate[k], ACT);
            gate[k] = d[k] * up[k] * gelu_derivative(gate[k], ACT);
            up[k] = d[k] * value;
        }
        dgu.store(g + col, g + f, gate);
        dgu.store(u + col, u + f, up);
    }
}

template <class A> static void launch_geglu(const op_call *c, int f) {
    auto kernel = c->attr.act == ACT_RELU2      ? geglu<A, ACT_RELU2>
                  : c->attr.act == ACT_GELU_ERF ? geglu<A, ACT_GELU_ERF>
                                                : geglu<A, ACT_GELU_TANH>;
    LAUNCH(cuda_of(c), { blocks_for(c->in[0].dim[0], 1), THREADS }, kernel, A(c->in[0], f),
           A(c->out[0], f), f);
}

template <class A> static void launch_geglu_bwd(const op_call *c, int f) {
    auto kernel = c->attr.act == ACT_RELU2      ? geglu_bwd<A, ACT_RELU2>
                  : c->attr.act == ACT_GELU_ERF ? geglu_bwd<A, ACT_GELU_ERF>
                                                : geglu_bwd<A, ACT_GELU_TANH>;
    LAUNCH(cuda_of(c), { blocks_for(c->in[1].dim[0], 1), THREADS }, kernel, A(c->in[0], f),
           A(c->in[1], f), A(c->out[0], f), f);
}

static void cuda_geglu(const op_call *c) {
    const tensor *gu = &c->in[0], *all[] = { gu, &c->out[0] };
    int f = (int)(gu->dim[1] / 2);
    WITH_TYPE(common_type(f, all, 2), launch_geglu<A>(c, f));
}

static void cuda_geglu_bwd(const op_call *c) {
    const tensor *gu = &c->in[1], *all[] = { &c->in[0], gu, &c->out[0] };
    int f = (int)(gu->dim[1] / 2);
    WITH_TYPE(common_type(f, all, 3), launch_geglu_bwd<A>(c, f));
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
