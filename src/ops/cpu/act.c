/* GELU (tanh and erf forms) and SwiGLU. Bytes moved: each operand once; the polynomials of vmath.h
 * keep the loops in vector registers. */
#include "chunks.h"
#include "vmath.h"

/* ---- GELU ---------------------------------------------------------------------------------- */
static void gelu_tanh(const float *x, float *y, int64_t n) {
#pragma omp simd
    for (int64_t k = 0; k < n; k++) y[k] = vm_gelu_tanh(x[k]);
}
static void gelu_erf(const float *x, float *y, int64_t n) {
#pragma omp simd
    for (int64_t k = 0; k < n; k++) y[k] = vm_gelu_erf(x[k]);
}

/* y = x s(z), z = x (a + b x^2) with the constants of vm_gelu_tanh: dy/dx = s + x s (1 - s) z'. */
static void gelu_tanh_bwd(const float *dy, const float *x, float *dx, int64_t n) {
    const float a = 1.5957691216f, b = 0.0713548163f;
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        float v = x[k], s = vm_sigmoid(v * (a + b * v * v));
        dx[k] = dy[k] * (s + v * s * (1 - s) * (a + 3 * b * v * v));
    }
}
/* y = x Phi(x): dy/dx = Phi(x) + x phi(x). */
static void gelu_erf_bwd(const float *dy, const float *x, float *dx, int64_t n) {
    const float inv_sqrt_2pi = 0.3989422804f;
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        float v = x[k];
        dx[k] = dy[k] * (vm_normal_cdf(v) + v * inv_sqrt_2pi * vm_exp(-0.5f * v * v));
    }
}

static const struct {
    void (*fwd)(const float *x, float *y, int64_t n);
    void (*bwd)(const float *dy, const float *x, float *dx, int64_t n);
} gelus[] = {
    [ACT_GELU_TANH] = { gelu_tanh, gelu_tanh_bwd },
    [ACT_GELU_ERF] = { gelu_erf, gelu_erf_bwd },
};

static void gelu_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *xt = &c->in[0], *yt = &c->out[0];
    span e = span_of(i, TASK_ELEMENTS, tensor_count(xt));
    float x_tmp[BLOCK], y_tmp[BLOCK];
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        float *y = elems_at(yt, at, y_tmp);
        gelus[c->attr.act].fwd(elems_get(xt, at, m, x_tmp), y, m);
        elems_put(yt, at, m, y);
    }
}

static void gelu_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *dyt = &c->in[0], *xt = &c->in[1], *dxt = &c->out[0];
    span e = span_of(i, TASK_ELEMENTS, tensor_count(xt));
    float dy_tmp[BLOCK], x_tmp[BLOCK], dx_tmp[BLOCK];
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        const float *dy = elems_get(dyt, at, m, dy_tmp), *x = elems_get(xt, at, m, x_tmp);
        float *dx = elems_at(dxt, at, dx_tmp);
        gelus[c->attr.act].bwd(dy, x, dx, m);
        elems_put(dxt, at, m, dx);
    }
}

void CPU(gelu)(const op_call *c) {
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS), gelu_task, (void *)c);
}
void CPU(gelu_bwd)(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]);
    pool_run(c->run->pool, ceil_div(n, TASK_ELEMENTS), gelu_bwd_task, (void *)c);
}

/* ---- SwiGLU --------------------------------------------------------------------------------- */
static void swiglu_block(const float *g, const float *u, float *y, int64_t n) {
#pragma omp simd
    for (int64_t k = 0; k < n; k++) y[k] = g[k] * vm_sigmoid(g[k]) * u[k];
}
static void swiglu_bwd_block(const float *dy, const float *g, const float *u, float *dg, float *du,
                             int64_t n) {
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        float s = vm_sigmoid(g[k]), silu = g[k] * s;
        dg[k] = dy[k] * u[k] * (s + silu * (1 - s));
        du[k] = dy[k] * silu;
    }
}

static void swiglu_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *gut = &c->in[0], *yt = &c->out[0];
    int64_t f = yt->dim[1];
    span rows = span_of(i, rows_per_task(f), yt->dim[0]);
    float g_tmp[BLOCK], u_tmp[BLOCK], y_tmp[BLOCK];
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t at = 0; at < f; at += BLOCK) {
            int64_t m = MIN(BLOCK, f - at), gate = row * 2 * f + at;
            const float *g = elems_get(gut, gate, m, g_tmp);
            const float *u = elems_get(gut, gate + f, m, u_tmp);
            float *y = elems_at(yt, row * f + at, y_tmp);
            swiglu_block(g, u, y, m);
            elems_put(yt, row * f + at, m, y);
        }
}

static void swiglu_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *dyt = &c->in[0], *gut = &c->in[1], *dgut = &c->out[0];
    int64_t f = dyt->dim[1];
    span rows = span_of(i, rows_per_task(f), dyt->dim[0]);
    float dy_tmp[BLOCK], g_tmp[BLOCK], u_tmp[BLOCK], dg_tmp[BLOCK], du_tmp[BLOCK];
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t at = 0; at < f; at += BLOCK) {
            int64_t m = MIN(BLOCK, f - at), gate = row * 2 * f + at;
            const float *dy = elems_get(dyt, row * f + at, m, dy_tmp);
            const float *g = elems_get(gut, gate, m, g_tmp);
            const float *u = elems_get(gut, gate + f, m, u_tmp);
            float *dg = elems_at(dgut, gate, dg_tmp), *du = elems_at(dgut, gate + f, du_tmp);
            swiglu_bwd_block(dy, g, u, dg, du, m);
            elems_put(dgut, gate, m, dg);
            elems_put(dgut, gate + f, m, du);
        }
}

void CPU(swiglu)(const op_call *c) {
    const tensor *y = &c->out[0];
    BUG_IF(c->in[0].dim[1] != 2 * y->dim[1]);
    pool_run(c->run->pool, ceil_div(y->dim[0], rows_per_task(y->dim[1])), swiglu_task, (void *)c);
}
void CPU(swiglu_bwd)(const op_call *c) {
    const tensor *dy = &c->in[0];
    BUG_IF(c->in[1].dim[1] != 2 * dy->dim[1]);
    int64_t tasks = ceil_div(dy->dim[0], rows_per_task(dy->dim[1]));
    pool_run(c->run->pool, tasks, swiglu_bwd_task, (void *)c);
}
