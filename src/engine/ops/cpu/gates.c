/* Gates: of a token, which multiplies its row, and of a feed-forward layer, clamped.
 *
 *     gate_rows        z = g y,   g = sigmoid(x . w)
 *                      dy = g dz,   ds = g (1 - g) (dz . y),   dx = ds w,   dw = the sum of ds x
 *     swiglu_clamped   y = (u + 1) g s,   s = sigmoid(alpha g),   of clamped u and g
 *                      dg = dy (u + 1) s (1 + alpha g (1 - s)),   du = dy g s, 0 beyond the limits
 *
 * A task has a run of rows. The gradients of w over fixed runs are summed in order: deterministic for any number of
 * threads. */
#include "bandwidth.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <string.h>

enum { GATE_RUNS = 64 };

/* ---- a gate per row ---------------------------------------------------------------------------- */
typedef struct gate_job {
    const op_call *c;
    const tensor *y, *x, *w; /* [N, D], [N, K], [1, K] */
    int64_t n, d, k, each;   /* each: rows of a task */
    float *partial;          /* [GATE_RUNS, K] */
} gate_job;

static gate_job gate_job_of(const op_call *c, const tensor *y, const tensor *x, const tensor *w) {
    BUG_IF(w->dim[0] != 1);
    return (gate_job){ .c = c,
                       .y = y,
                       .x = x,
                       .w = w,
                       .n = y->dim[0],
                       .d = y->dim[1],
                       .k = x->dim[1],
                       .each = rows_per_task(y->dim[1]) };
}

static float dot_elements(const tensor *a, int64_t a_at, const tensor *b, int64_t b_at, int64_t n) {
    float a_tmp[BLOCK], b_tmp[BLOCK], sum = 0;
    for (int64_t k = 0; k < n; k += BLOCK) {
        int64_t m = MIN(BLOCK, n - k);
        const float *p = elems_get(a, a_at + k, m, a_tmp), *q = elems_get(b, b_at + k, m, b_tmp);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < m; i++) part += p[i] * q[i];
        sum += part;
    }
    return sum;
}

static void scale_elements(const tensor *from, int64_t at, const tensor *to, int64_t to_at,
                           int64_t n, float by) {
    float tmp[BLOCK], out[BLOCK];
    for (int64_t k = 0; k < n; k += BLOCK) {
        int64_t m = MIN(BLOCK, n - k);
        const float *x = elems_get(from, at + k, m, tmp);
        for (int64_t i = 0; i < m; i++) out[i] = by * x[i];
        elems_put(to, to_at + k, m, out);
    }
}

static float gate_of_row(const gate_job *j, int64_t row) {
    return 1 / (1 + vm_exp(-dot_elements(j->x, row * j->k, j->w, 0, j->k)));
}

static void gate_task(void *ctx, int64_t i, int worker) {
    const gate_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++)
        scale_elements(j->y, row * j->d, &j->c->out[0], row * j->d, j->d, gate_of_row(j, row));
}

static void CPU(gate_rows)(const op_call *c) {
    gate_job j = gate_job_of(c, &c->in[0], &c->in[1], &c->in[2]);
    pool_run(c->run->pool, ceil_div(j.n, j.each), gate_task, &j);
}

static void gate_bwd_task(void *ctx, int64_t i, int worker) {
    const gate_job *j = ctx;
    const tensor *dz = &j->c->in[0], *dy = &j->c->out[0], *dx = &j->c->out[1];
    float *dw = j->partial + i * j->k, tmp[BLOCK];
    span rows = span_of(i, j->each, j->n);
    memset(dw, 0, (size_t)j->k * sizeof *dw);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        float g = gate_of_row(j, row);
        float ds = g * (1 - g) * dot_elements(dz, row * j->d, j->y, row * j->d, j->d);
        if (dy->data) scale_elements(dz, row * j->d, dy, row * j->d, j->d, g);
        if (dx->data) scale_elements(j->w, 0, dx, row * j->k, j->k, ds);
        for (int64_t k = 0; k < j->k; k += BLOCK) {
            int64_t m = MIN(BLOCK, j->k - k);
            const float *x = elems_get(j->x, row * j->k + k, m, tmp);
            for (int64_t e = 0; e < m; e++) dw[k + e] += ds * x[e];
        }
    }
}

static void CPU(gate_rows_bwd)(const op_call *c) {
    gate_job j = gate_job_of(c, &c->in[1], &c->in[2], &c->in[3]);
    float *dw = c->out[2].data;
    j.each = ceil_div(j.n, GATE_RUNS);
    j.partial = c->run->workspace;
    int64_t runs = ceil_div(j.n, j.each);
    pool_run(c->run->pool, runs, gate_bwd_task, &j);
    for (int64_t k = 0; dw && k < j.k; k++) {
        float sum = c->accumulate & 4 ? dw[k] : 0;
        for (int64_t i = 0; i < runs; i++) sum += j.partial[i * j.k + k];
        dw[k] = sum;
    }
}

static size_t CPU(gate_rows_workspace)(const op_backend *b, const op_call *c, int threads) {
    return (size_t)(GATE_RUNS * c->in[3].dim[1]) * sizeof(float);
}

/* ---- clamped SwiGLU ---------------------------------------------------------------------------- */
static void clamped_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *gu = &c->in[0], *y = &c->out[0];
    float limit = c->attr.clamp.limit, alpha = c->attr.clamp.alpha;
    float g_tmp[BLOCK], u_tmp[BLOCK], out[BLOCK];
    int64_t f = y->dim[1];
    span rows = span_of(i, rows_per_task(f), y->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t k = 0; k < f; k += BLOCK) {
            int64_t m = MIN(BLOCK, f - k), at = row * 2 * f + k;
            const float *gate = elems_get(gu, at, m, g_tmp), *up = elems_get(gu, at + f, m, u_tmp);
            for (int64_t e = 0; e < m; e++) {
                float g = MIN(gate[e], limit), u = MAX(-limit, MIN(up[e], limit));
                out[e] = (u + 1) * g / (1 + vm_exp(-alpha * g));
            }
            elems_put(y, row * f + k, m, out);
        }
}

static void clamped_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *dy = &c->in[0], *gu = &c->in[1], *dgu = &c->out[0];
    float limit = c->attr.clamp.limit, alpha = c->attr.clamp.alpha;
    float g_tmp[BLOCK], u_tmp[BLOCK], d_tmp[BLOCK], dg[BLOCK], du[BLOCK];
    int64_t f = dy->dim[1];
    span rows = span_of(i, rows_per_task(f), dy->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t k = 0; k < f; k += BLOCK) {
            int64_t m = MIN(BLOCK, f - k), at = row * 2 * f + k;
            const float *gate = elems_get(gu, at, m, g_tmp), *up = elems_get(gu, at + f, m, u_tmp);
            const float *d = elems_get(dy, row * f + k, m, d_tmp);
            for (int64_t e = 0; e < m; e++) {
                float g = MIN(gate[e], limit), u = MAX(-limit, MIN(up[e], limit));
                float s = 1 / (1 + vm_exp(-alpha * g));
                dg[e] = gate[e] <= limit ? d[e] * (u + 1) * s * (1 + alpha * g * (1 - s)) : 0;
                du[e] = u == up[e] ? d[e] * g * s : 0;
            }
            elems_put(dgu, at, m, dg);
            elems_put(dgu, at + f, m, du);
        }
}

static void CPU(swiglu_clamped)(const op_call *c) {
    const tensor *y = c->op == OP_SWIGLU_CLAMPED ? &c->out[0] : &c->in[0];
    void (*task)(void *, int64_t, int) =
        c->op == OP_SWIGLU_CLAMPED ? clamped_task : clamped_bwd_task;
    pool_run(c->run->pool, ceil_div(y->dim[0], rows_per_task(y->dim[1])), task, (void *)c);
}

KERNEL(GATE_ROWS, CPU(gate_rows));
KERNEL(GATE_ROWS_BWD, CPU(gate_rows_bwd), CPU(gate_rows_workspace));
KERNEL(SWIGLU_CLAMPED, CPU(swiglu_clamped), NULL, ATTRS_CLAMP);
KERNEL(SWIGLU_CLAMPED_BWD, CPU(swiglu_clamped), NULL, ATTRS_CLAMP);
