/* Ops around the gated delta rule, and the gate of attention's output.
 *
 *     delta_gates    beta = sigmoid(b),   g = -e^rate softplus(a + shift)
 *                    db = dbeta beta (1 - beta),   da = dshift = -dg e^rate sigmoid(a + shift),   drate = dg g
 *     gated_norm     y = x r w silu(z),   r = 1 / rms(x) of a head;   u = dy w silu(z):   dx = r (u - x r^2 mean(u x))
 *                    dz = dy x r w silu'(z),   dw = the sum of dy x r silu(z)
 *     sigmoid_gate   y = x s,   s = sigmoid(gate);   dx = dy s,   dgate = dy x s (1 - s)
 *
 * A task has a run of rows. Gradients of weights over fixed runs are summed in order: deterministic for any number of threads. */
#include "chunks.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <math.h>
#include <string.h>

enum { GATE_RUNS = 64 };

/* to[k] (+)= the sum over runs of partial[run, k]. */
static void sum_runs(const float *partial, int64_t runs, int64_t n, bool add, float *to) {
    for (int64_t k = 0; to && k < n; k++) {
        float sum = add ? to[k] : 0;
        for (int64_t i = 0; i < runs; i++) sum += partial[i * n + k];
        to[k] = sum;
    }
}

static float logistic(float x) { return 1 / (1 + vm_exp(-x)); }
static float softplus_of(float x) { return x > 20 ? x : log1pf(vm_exp(x)); }

/* ---- gates of the delta rule ------------------------------------------------------------------------ */
typedef struct gates_job {
    const op_call *c;
    const tensor *ba, *rate, *shift;
    int64_t n, heads, each;
    float *partial; /* [runs, 2 heads]: of rate, of shift */
} gates_job;

static gates_job gates_job_of(const op_call *c, const tensor *ba) {
    int64_t n = ba->dim[0];
    return (gates_job){ .c = c,
                        .ba = ba,
                        .rate = ba + 1,
                        .shift = ba + 2,
                        .n = n,
                        .heads = ba->dim[1] / 2,
                        .each = ceil_div(n, GATE_RUNS),
                        .partial = c->run->workspace };
}

static void gates_task(void *ctx, int64_t task, int worker) {
    const gates_job *j = ctx;
    span rows = span_of(task, j->each, j->n);
    for (int64_t i = rows.lo * j->heads; i < rows.hi * j->heads; i++) {
        int64_t h = i % j->heads, at = i / j->heads * 2 * j->heads + h;
        float tmp, b = *elems_get(j->ba, at, 1, &tmp);
        float *to = (float *)j->c->out[0].data + at;
        to[0] = logistic(b);
        float a = *elems_get(j->ba, at + j->heads, 1, &tmp);
        float rate = *elems_get(j->rate, h, 1, &tmp);
        float shift = *elems_get(j->shift, h, 1, &tmp);
        to[j->heads] = -vm_exp(rate) * softplus_of(a + shift);
    }
}

static void CPU(delta_gates)(const op_call *c) {
    gates_job j = gates_job_of(c, &c->in[0]);
    pool_run(c->run->pool, ceil_div(j.n, j.each), gates_task, &j);
}

static void gates_bwd_task(void *ctx, int64_t task, int worker) {
    const gates_job *j = ctx;
    const float *d = j->c->in[0].data;
    const tensor *dba = &j->c->out[0];
    float *sums = j->partial + task * 2 * j->heads, tmp, value;
    span rows = span_of(task, j->each, j->n);
    memset(sums, 0, (size_t)(2 * j->heads) * sizeof *sums);
    for (int64_t i = rows.lo * j->heads; i < rows.hi * j->heads; i++) {
        int64_t h = i % j->heads, at = i / j->heads * 2 * j->heads + h;
        float beta = logistic(*elems_get(j->ba, at, 1, &tmp));
        float x = *elems_get(j->ba, at + j->heads, 1, &tmp);
        float scale = -vm_exp(*elems_get(j->rate, h, 1, &tmp));
        x += *elems_get(j->shift, h, 1, &tmp);
        float dg = d[at + j->heads], da = dg * scale * logistic(x);
        sums[h] += dg * scale * softplus_of(x);
        sums[j->heads + h] += da;
        if (!dba->data) continue;
        value = d[at] * beta * (1 - beta);
        elems_put(dba, at, 1, &value);
        elems_put(dba, at + j->heads, 1, &da);
    }
}

static void CPU(delta_gates_bwd)(const op_call *c) {
    gates_job j = gates_job_of(c, &c->in[1]);
    int64_t runs = ceil_div(j.n, j.each);
    pool_run(c->run->pool, runs, gates_bwd_task, &j);
    for (int which = 0; which < 2; which++) { /* of rate, of shift */
        float *to = c->out[1 + which].data;
        for (int64_t h = 0; to && h < j.heads; h++) {
            float sum = c->accumulate >> (1 + which) & 1 ? to[h] : 0;
            for (int64_t i = 0; i < runs; i++) sum += j.partial[(2 * i + which) * j.heads + h];
            to[h] = sum;
        }
    }
}

static size_t CPU(delta_gates_workspace)(const op_backend *b, const op_call *c, int threads) {
    return (size_t)(GATE_RUNS * c->in[1].dim[1]) * sizeof(float);
}

/* ---- norm of heads with a gate ------------------------------------------------------------------------ */
typedef struct gated_job {
    const op_call *c;
    const tensor *dy, *x, *z, *w;
    int64_t n, heads, dim, each;
    float *stat, *partial, *buffer; /* partial [runs, dim]; buffer of a worker [6, dim] */
} gated_job;

static gated_job gated_job_of(const op_call *c, const tensor *x, const tensor *w,
                              const tensor *stat) {
    int64_t n = x->dim[0], heads = stat->dim[1];
    gated_job j = {
        .c = c, .x = x, .z = x + 1, .w = w, .n = n, .heads = heads, .stat = stat->data
    };
    j.dim = x->dim[1] / heads;
    j.each = ceil_div(n, GATE_RUNS);
    j.buffer = c->run->workspace;
    return j;
}

static void gated_norm_task(void *ctx, int64_t task, int worker) {
    const gated_job *j = ctx;
    float *tmp = j->buffer + (int64_t)worker * 6 * j->dim, *out = tmp + 3 * j->dim;
    span rows = span_of(task, j->each, j->n);
    const float *w = j->w->data ? elems_get(j->w, 0, j->dim, tmp + 2 * j->dim) : NULL;
    for (int64_t i = rows.lo * j->heads; i < rows.hi * j->heads; i++) {
        const float *x = elems_get(j->x, i * j->dim, j->dim, tmp);
        const float *z = elems_get(j->z, i * j->dim, j->dim, tmp + j->dim);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < j->dim; e++) sum += x[e] * x[e];
        float r = 1 / sqrtf(sum / (float)j->dim + j->c->attr.eps);
        for (int64_t e = 0; e < j->dim; e++)
            out[e] = x[e] * r * (w ? w[e] : 1) * z[e] * logistic(z[e]);
        j->stat[i] = r;
        elems_put(&j->c->out[0], i * j->dim, j->dim, out);
    }
}

static void CPU(gated_norm)(const op_call *c) {
    gated_job j = gated_job_of(c, &c->in[0], &c->in[2], &c->out[1]);
    pool_run(c->run->pool, ceil_div(j.n, j.each), gated_norm_task, &j);
}

static void gated_norm_bwd_head(const gated_job *j, int64_t i, const float *w, float *tmp,
                                float *dw) {
    const float *x = elems_get(j->x, i * j->dim, j->dim, tmp);
    const float *z = elems_get(j->z, i * j->dim, j->dim, tmp + j->dim);
    const float *dy = elems_get(j->dy, i * j->dim, j->dim, tmp + 3 * j->dim);
    float *dx = tmp + 4 * j->dim, *dz = tmp + 5 * j->dim, r = j->stat[i], sum = 0;
    for (int64_t e = 0; e < j->dim; e++) {
        float s = logistic(z[e]), gate = z[e] * s, scale = w ? w[e] : 1;
        float plain = dy[e] * x[e] * r;
        dw[e] += plain * gate;
        dz[e] = plain * scale * s * (1 + z[e] * (1 - s));
        dx[e] = dy[e] * scale * gate;
        sum += dx[e] * x[e];
    }
    float by = r * r * sum / (float)j->dim;
    for (int64_t e = 0; e < j->dim; e++) dx[e] = r * (dx[e] - by * x[e]);
    if (j->c->out[0].data) elems_put(&j->c->out[0], i * j->dim, j->dim, dx);
    if (j->c->out[1].data) elems_put(&j->c->out[1], i * j->dim, j->dim, dz);
}

static void gated_norm_bwd_task(void *ctx, int64_t task, int worker) {
    const gated_job *j = ctx;
    float *tmp = j->buffer + (int64_t)worker * 6 * j->dim, *dw = j->partial + task * j->dim;
    span rows = span_of(task, j->each, j->n);
    const float *w = j->w->data ? elems_get(j->w, 0, j->dim, tmp + 2 * j->dim) : NULL;
    memset(dw, 0, (size_t)j->dim * sizeof *dw);
    for (int64_t i = rows.lo * j->heads; i < rows.hi * j->heads; i++)
        gated_norm_bwd_head(j, i, w, tmp, dw);
}

static void CPU(gated_norm_bwd)(const op_call *c) {
    gated_job j = gated_job_of(c, &c->in[1], &c->in[4], &c->in[3]);
    int64_t runs = ceil_div(j.n, j.each);
    j.dy = &c->in[0];
    j.partial = j.buffer + (int64_t)pool_size(c->run->pool) * 6 * j.dim;
    pool_run(c->run->pool, runs, gated_norm_bwd_task, &j);
    sum_runs(j.partial, runs, j.dim, c->accumulate & 4, c->out[2].data);
}

static size_t CPU(gated_norm_workspace)(const op_backend *b, const op_call *c, int threads) {
    bool back = c->op == OP_GATED_NORM_BWD;
    int64_t dim = c->in[0].dim[1] / (back ? c->in[3] : c->out[1]).dim[1];
    return (size_t)((6 * threads + GATE_RUNS) * dim) * sizeof(float);
}

/* ---- a gate of each element ------------------------------------------------------------------------------ */
static void sigmoid_gate_task(void *ctx, int64_t task, int worker) {
    const op_call *c = ctx;
    float a[BLOCK], b[BLOCK], y[BLOCK];
    span own = span_of(task, TASK_ELEMENTS, tensor_count(&c->out[0]));
    for (int64_t at = own.lo; at < own.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, own.hi - at);
        const float *x = elems_get(&c->in[0], at, m, a), *g = elems_get(&c->in[1], at, m, b);
        for (int64_t e = 0; e < m; e++) y[e] = x[e] * logistic(g[e]);
        elems_put(&c->out[0], at, m, y);
    }
}

static void sigmoid_gate_bwd_task(void *ctx, int64_t task, int worker) {
    const op_call *c = ctx;
    float a[BLOCK], b[BLOCK], d[BLOCK], dx[BLOCK], dg[BLOCK];
    span own = span_of(task, TASK_ELEMENTS, tensor_count(&c->in[0]));
    for (int64_t at = own.lo; at < own.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, own.hi - at);
        const float *dy = elems_get(&c->in[0], at, m, d), *x = elems_get(&c->in[1], at, m, a);
        const float *g = elems_get(&c->in[2], at, m, b);
        for (int64_t e = 0; e < m; e++) {
            float s = logistic(g[e]);
            dx[e] = dy[e] * s;
            dg[e] = dx[e] * x[e] * (1 - s);
        }
        if (c->out[0].data) elems_put(&c->out[0], at, m, dx);
        if (c->out[1].data) elems_put(&c->out[1], at, m, dg);
    }
}

static void CPU(sigmoid_gate)(const op_call *c) {
    bool back = c->op == OP_SIGMOID_GATE_BWD;
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS),
             back ? sigmoid_gate_bwd_task : sigmoid_gate_task, (void *)c);
}

KERNEL(DELTA_GATES, CPU(delta_gates));
KERNEL(DELTA_GATES_BWD, CPU(delta_gates_bwd), CPU(delta_gates_workspace));
KERNEL(GATED_NORM, CPU(gated_norm), CPU(gated_norm_workspace), ATTR(EPS));
KERNEL(GATED_NORM_BWD, CPU(gated_norm_bwd), CPU(gated_norm_workspace));
KERNEL(SIGMOID_GATE, CPU(sigmoid_gate));
KERNEL(SIGMOID_GATE_BWD, CPU(sigmoid_gate));
