/* GELU (tanh and erf forms) and SwiGLU. Bytes moved: each operand once; what limits them is
 * the exponential, so the common forms use the cheapest one there is, vec_logistic2. */
#include "chunks.h"
#include "vec.h"
#include "vmath.h"

#include <string.h>

static const float LOG2E = 1.44269504f;
/* Vectors whose exponentials run side by side: each is one long chain of dependent steps, and
 * results are stored only when all are there, so that no store keeps them apart. */
enum { SIDE = 4 };

/* ---- GELU ------------------------------------------------------------------------------------ */
/* The tanh form is x s(z) with s the logistic function and z = x (a + b x^2), a = 2 sqrt(2 / pi),
 * b = 0.044715 a; its slope is s + x s (1 - s) z'. */
static const float GELU_A = 1.5957691216f, GELU_B = 0.0713548163f;

VEC_INLINE vf gelu_logistic(vf x) {
    return vec_logistic2(x * (x * x * -(LOG2E * GELU_B) - LOG2E * GELU_A));
}
VEC_INLINE vf gelu_tanh_at(vf x) { return x * gelu_logistic(x); }
VEC_INLINE vf gelu_tanh_slope(vf x) {
    vf s = gelu_logistic(x);
    return s + x * (s - s * s) * (x * x * (3 * GELU_B) + GELU_A);
}
static void gelu_tanh(const float *x, float *y, int64_t n) {
    int64_t k = 0;
    for (vf out[SIDE]; k + SIDE * VEC <= n; k += SIDE * VEC) {
        VEC_UNROLL for (int i = 0; i < SIDE; i++) {
            out[i] = gelu_tanh_at(vec_load(DT_F32, x, k + i * VEC));
        }
        VEC_UNROLL for (int i = 0; i < SIDE; i++) vec_store(DT_F32, y, k + i * VEC, out[i]);
    }
    for (; k < n; k++) y[k] = gelu_tanh_at(vec_of(x[k]))[0];
}
static void gelu_tanh_bwd(const float *dy, const float *x, float *dx, int64_t n) {
    int64_t k = 0;
    for (vf out[SIDE]; k + SIDE * VEC <= n; k += SIDE * VEC) {
        VEC_UNROLL for (int i = 0; i < SIDE; i++) {
            vf slope = gelu_tanh_slope(vec_load(DT_F32, x, k + i * VEC));
            out[i] = vec_load(DT_F32, dy, k + i * VEC) * slope;
        }
        VEC_UNROLL for (int i = 0; i < SIDE; i++) vec_store(DT_F32, dx, k + i * VEC, out[i]);
    }
    for (; k < n; k++) dx[k] = dy[k] * gelu_tanh_slope(vec_of(x[k]))[0];
}

/* In blocks of one length, the last one padded: compilers may round the scalar rest of a loop
 * differently from its vectors, and a value must not depend on where in a row it stands. */
enum { ERF_BLOCK = 16 };
static __attribute__((noinline)) void gelu_erf_block(const float *x, float *y) {
#pragma omp simd
    for (int k = 0; k < ERF_BLOCK; k++) y[k] = vm_gelu_erf(x[k]);
}
static void gelu_erf(const float *x, float *y, int64_t n) {
    int64_t k = 0;
    for (; k + ERF_BLOCK <= n; k += ERF_BLOCK) gelu_erf_block(x + k, y + k);
    if (k == n) return;
    float rest[ERF_BLOCK] = { 0 };
    memcpy(rest, x + k, (size_t)(n - k) * sizeof *x);
    gelu_erf_block(rest, rest);
    memcpy(y + k, rest, (size_t)(n - k) * sizeof *y);
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

void CPU(gelu_values)(act_kind act, const float *x, float *y, int64_t n) {
    gelus[act].fwd(x, y, n);
}

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
VEC_INLINE vf logistic(vf x) { return vec_logistic2(x * -LOG2E); }

static void swiglu_block(const float *g, const float *u, float *y, int64_t n) {
    int64_t k = 0;
    for (vf out[SIDE]; k + SIDE * VEC <= n; k += SIDE * VEC) {
        VEC_UNROLL for (int i = 0; i < SIDE; i++) {
            vf gate = vec_load(DT_F32, g, k + i * VEC);
            out[i] = gate * logistic(gate) * vec_load(DT_F32, u, k + i * VEC);
        }
        VEC_UNROLL for (int i = 0; i < SIDE; i++) vec_store(DT_F32, y, k + i * VEC, out[i]);
    }
    for (; k < n; k++) y[k] = g[k] * logistic(vec_of(g[k]))[0] * u[k];
}

/* silu(g) = g s: d/dg = s + g s (1 - s). */
typedef struct swiglu_grad {
    vf g, u;
} swiglu_grad;
VEC_INLINE swiglu_grad swiglu_slope(vf dy, vf g, vf u) {
    vf s = logistic(g), silu = g * s;
    return (swiglu_grad){ .g = dy * u * (s + silu - silu * s), .u = dy * silu };
}
static void swiglu_bwd_block(const float *dy, const float *g, const float *u, float *dg, float *du,
                             int64_t n) {
    int64_t k = 0;
    for (swiglu_grad out[SIDE]; k + SIDE * VEC <= n; k += SIDE * VEC) {
        VEC_UNROLL for (int i = 0; i < SIDE; i++) {
            int64_t at = k + i * VEC;
            out[i] = swiglu_slope(vec_load(DT_F32, dy, at), vec_load(DT_F32, g, at),
                                  vec_load(DT_F32, u, at));
        }
        VEC_UNROLL for (int i = 0; i < SIDE; i++) {
            vec_store(DT_F32, dg, k + i * VEC, out[i].g);
            vec_store(DT_F32, du, k + i * VEC, out[i].u);
        }
    }
    for (; k < n; k++) {
        swiglu_grad d = swiglu_slope(vec_of(dy[k]), vec_of(g[k]), vec_of(u[k]));
        dg[k] = d.g[0];
        du[k] = d.u[0];
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
    float dy_tmp[BLOCK], g_tmp[BLOCK], u_tmp[BLOCK], dg_tmp[BLOCK], du_tmp[BLOCK], y_tmp[BLOCK];
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t at = 0; at < f; at += BLOCK) {
            int64_t m = MIN(BLOCK, f - at), gate = row * 2 * f + at;
            const float *dy = elems_get(dyt, row * f + at, m, dy_tmp);
            const float *g = elems_get(gut, gate, m, g_tmp);
            const float *u = elems_get(gut, gate + f, m, u_tmp);
            float *dg = elems_at(dgut, gate, dg_tmp), *du = elems_at(dgut, gate + f, du_tmp);
            if (c->out[1].data) {
                float *y = elems_at(&c->out[1], row * f + at, y_tmp);
                swiglu_block(g, u, y, m);
                elems_put(&c->out[1], row * f + at, m, y);
            }
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
