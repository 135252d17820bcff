/* GELU and SwiGLU with their backwards: bandwidth-bound, eight elements a thread. Deterministic. */
#include "device.cuh"

enum { THREADS = 256, PER_SM = 16 };

/* ---- GELU ------------------------------------------------------------------------------------ */
static __device__ __forceinline__ float gelu(float x, bool tanh_form) {
    if (!tanh_form) return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return x / (1 + __expf(-2 * u));
}

static __device__ __forceinline__ float gelu_slope(float x, bool tanh_form) {
    if (!tanh_form)
        return 0.5f * (1 + erff(x * 0.70710678118654752f)) +
               x * 0.39894228040143268f * __expf(-0.5f * x * x);
    float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    float s = 1 / (1 + __expf(-2 * u)); /* (1 + tanh u) / 2 */
    float du = 0.79788456080286536f * (1 + 3 * 0.044715f * x * x);
    return s + x * 2 * s * (1 - s) * du;
}

template <class A> static __global__ void gelu_map(A x, A dy, A y, int64_t n, bool tanh_form) {
    int64_t step = (int64_t)gridDim.x * THREADS * EIGHT;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n; i += step) {
        float v[8], d[8];
        x.load(i, n, v);
        if (dy.present()) {
            dy.load(i, n, d);
            for (int k = 0; k < 8; k++) v[k] = d[k] * gelu_slope(v[k], tanh_form);
        } else {
            for (int k = 0; k < 8; k++) v[k] = gelu(v[k], tanh_form);
        }
        y.store(i, n, v);
    }
}

static void gelu_launch(cuda_context *ctx, act_kind act, const tensor *xt, const tensor *dyt,
                        const tensor *yt) {
    int64_t n = tensor_count(xt);
    tensor x = tensor_of(xt->data, xt->dt, 1, &n), y = tensor_of(yt->data, yt->dt, 1, &n);
    tensor dy = dyt ? tensor_of(dyt->data, dyt->dt, 1, &n) : tensor{};
    const tensor *all[] = { &x, &dy, &y };
    int blocks = grid_for(ctx, n, THREADS * EIGHT, PER_SM);
    WITH_TYPE(common_type(n, all, 3), (gelu_map<A><<<blocks, THREADS, 0, ctx->stream>>>(
                                          A(x), A(dy), A(y), n, act == ACT_GELU_TANH)));
    cuda_ok(ctx, cudaGetLastError(), __FILE__, __LINE__);
}

extern "C" void cuda_gelu(const op_call *c) {
    gelu_launch(cuda_of(c), c->attr.act, &c->in[0], NULL, &c->out[0]);
}
extern "C" void cuda_gelu_bwd(const op_call *c) {
    gelu_launch(cuda_of(c), c->attr.act, &c->in[1], &c->in[0], &c->out[0]);
}

/* ---- SwiGLU: rows of gate | up ----------------------------------------------------------------- */
template <class A> static __global__ void swiglu(A gu, A y, int64_t n, int64_t f) {
    int64_t eights = (f + 7) / 8, total = n * eights, step = (int64_t)gridDim.x * THREADS;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total; e += step) {
        int64_t row = e / eights, col = e % eights * 8, g = row * 2 * f + col;
        float gate[8], up[8];
        gu.load(g, row * 2 * f + f, gate);
        gu.load(g + f, row * 2 * f + 2 * f, up);
        for (int k = 0; k < 8; k++) gate[k] = gate[k] / (1 + __expf(-gate[k])) * up[k];
        y.store(row * f + col, row * f + f, gate);
    }
}

template <class A> static __global__ void swiglu_bwd(A dy, A gu, A dgu, int64_t n, int64_t f) {
    int64_t eights = (f + 7) / 8, total = n * eights, step = (int64_t)gridDim.x * THREADS;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total; e += step) {
        int64_t row = e / eights, col = e % eights * 8, g = row * 2 * f + col;
        float gate[8], up[8], d[8];
        gu.load(g, row * 2 * f + f, gate);
        gu.load(g + f, row * 2 * f + 2 * f, up);
        dy.load(row * f + col, row * f + f, d);
        for (int k = 0; k < 8; k++) {
            float s = 1 / (1 + __expf(-gate[k])), silu = gate[k] * s;
            float du = d[k] * silu;
            gate[k] = d[k] * up[k] * (s + silu * (1 - s));
            up[k] = du;
        }
        dgu.store(g, row * 2 * f + f, gate);
        dgu.store(g + f, row * 2 * f + 2 * f, up);
    }
}

extern "C" void cuda_swiglu(const op_call *c) {
    const tensor *gu = &c->in[0], *y = &c->out[0], *all[] = { gu, y };
    int64_t n = gu->dim[0], f = gu->dim[1] / 2;
    int blocks = grid_for(cuda_of(c), n * ceil_div(f, 8), THREADS, PER_SM);
    WITH_TYPE(common_type(f, all, 2),
              (swiglu<A><<<blocks, THREADS, 0, cuda_stream(c)>>>(A(*gu, f), A(*y, f), n, f)));
    CUDA_LAUNCHED(c);
}

extern "C" void cuda_swiglu_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *gu = &c->in[1], *dgu = &c->out[0], *all[] = { dy, gu, dgu };
    int64_t n = gu->dim[0], f = gu->dim[1] / 2;
    int blocks = grid_for(cuda_of(c), n * ceil_div(f, 8), THREADS, PER_SM);
    WITH_TYPE(common_type(f, all, 3), (swiglu_bwd<A><<<blocks, THREADS, 0, cuda_stream(c)>>>(
                                          A(*dy, f), A(*gu, f), A(*dgu, f), n, f)));
    CUDA_LAUNCHED(c);
}

/* ---- bias, where a product could not add it ---------------------------------------------------- */
template <class A>
static __global__ void bias_gelu(A z, mixed b, A y, int64_t rows, int64_t cols, int act) {
    int64_t eights = (cols + 7) / 8, total = rows * eights, step = (int64_t)gridDim.x * THREADS;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total; e += step) {
        int64_t row = e / eights, col = e % eights * 8, at = row * cols + col;
        int64_t end = row * cols + cols;
        float v[8], add[8];
        z.load(at, end, v);
        if (b.present()) {
            b.load(col, cols, add);
            for (int k = 0; k < 8; k++) v[k] = z.round(v[k] + add[k]);
            z.store(at, end, v);
        }
        if (act < 0) continue;
        for (int k = 0; k < 8; k++) v[k] = gelu(v[k], act == ACT_GELU_TANH);
        y.store(at, end, v);
    }
}

extern "C" void cuda_bias_gelu(cuda_context *x, const tensor *z, const tensor *bias, int act,
                               const tensor *y) {
    int64_t rows = z->dim[0], cols = z->dim[1];
    const tensor *all[] = { z, y };
    int blocks = grid_for(x, rows * ceil_div(cols, 8), THREADS, PER_SM);
    WITH_TYPE(common_type(cols, all, 2), (bias_gelu<A><<<blocks, THREADS, 0, x->stream>>>(
                                             A(*z), mixed(*bias), A(*y), rows, cols, act)));
    cuda_ok(x, cudaGetLastError(), __FILE__, __LINE__);
}
