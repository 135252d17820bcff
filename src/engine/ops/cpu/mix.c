/* The residual and an earlier value of the chain, each times a learned factor:
 *
 *     r = x + delta,   y = a r + b past
 *     dx = a dy,   dpast = dkept + b dy,   da = the sum of dy r,   db = the sum of dy past
 *
 * One pass over memory. The sums over fixed runs of elements are added in order: deterministic for any number of
 * threads. */
#include "bandwidth.h"
#include "ops/op_table.h"

enum { MIX_RUNS = 128 };

static float factor_of(const tensor *t) { return t->data ? *(const float *)t->data : 1; }

/* @return elements [at, at + m) of x + delta, rounded to the type of r and stored there where r is wanted. @param tmp two blocks */
static const float *mix_sum(const op_call *c, int64_t at, int64_t m, float *tmp) {
    const tensor *xt = &c->in[0], *dt = &c->in[1], *rt = &c->out[0];
    const float *x = elems_get(xt, at, m, tmp);
    bool onto_itself = rt->data == xt->data && rt->dt == xt->dt;
    if (!dt->data) {
        if (rt->data && !onto_itself) elems_put(rt, at, m, x);
        return x;
    }
    const float *d = elems_get(dt, at, m, tmp + BLOCK);
    float *r = elems_at(rt, at, tmp);
#pragma omp simd
    for (int64_t k = 0; k < m; k++) r[k] = x[k] + d[k];
    elems_put(rt, at, m, r);
    return elems_get(rt, at, m, tmp);
}

static void mix_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *pt = &c->in[2], *yt = &c->out[1];
    float a = factor_of(&c->in[3]), b = factor_of(&c->in[4]);
    float r_tmp[2 * BLOCK], p_tmp[BLOCK], y_tmp[BLOCK];
    int64_t n = tensor_count(pt);
    span e = span_of(i, bandwidth_task(n, c->run->pool), n);
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        const float *r = mix_sum(c, at, m, r_tmp), *past = elems_get(pt, at, m, p_tmp);
        if (c->out[2].data) elems_put(&c->out[2], at, m, past);
        if (!yt->data) continue;
        float *y = elems_at(yt, at, y_tmp);
#pragma omp simd
        for (int64_t k = 0; k < m; k++) y[k] = a * r[k] + b * past[k];
        elems_put(yt, at, m, y);
    }
}

static void CPU(mix)(const op_call *c) {
    int64_t n = tensor_count(&c->in[2]);
    pool_run(c->run->pool, ceil_div(n, bandwidth_task(n, c->run->pool)), mix_task, (void *)c);
}

/* Writes by dy plus the gradient so far, which may be absent. */
static void put_gradient(const tensor *so_far, const tensor *to, int64_t at, int64_t m,
                         const float *dy, float by) {
    float s_tmp[BLOCK], out_tmp[BLOCK];
    if (!to->data) return;
    float *out = elems_at(to, at, out_tmp);
    if (so_far->data) {
        const float *s = elems_get(so_far, at, m, s_tmp);
#pragma omp simd
        for (int64_t k = 0; k < m; k++) out[k] = s[k] + by * dy[k];
    } else {
#pragma omp simd
        for (int64_t k = 0; k < m; k++) out[k] = by * dy[k];
    }
    elems_put(to, at, m, out);
}

static int64_t mix_run(int64_t n) {
    return (int64_t)align_up((size_t)MAX(ceil_div(n, MIX_RUNS), BLOCK), BLOCK);
}

static void mix_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    float a = factor_of(&c->in[3]), b = factor_of(&c->in[4]), *partial = c->run->workspace;
    float g_tmp[BLOCK], r_tmp[BLOCK], p_tmp[BLOCK];
    double da = 0, db = 0;
    int64_t n = tensor_count(&c->in[0]);
    span e = span_of(i, mix_run(n), n);
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        const float *g = elems_get(&c->in[0], at, m, g_tmp);
        const float *r = elems_get(&c->in[1], at, m, r_tmp);
        const float *past = elems_get(&c->in[2], at, m, p_tmp);
        float with_r = 0, with_past = 0;
#pragma omp simd reduction(+ : with_r, with_past)
        for (int64_t k = 0; k < m; k++) {
            with_r += g[k] * r[k];
            with_past += g[k] * past[k];
        }
        da += (double)with_r;
        db += (double)with_past;
        put_gradient(&c->in[5], &c->out[1], at, m, g, b);
        put_gradient(&(tensor){ 0 }, &c->out[0], at, m, g, a); /* last: it may replace dy */
    }
    partial[2 * i] = (float)da;
    partial[2 * i + 1] = (float)db;
}

static void CPU(mix_bwd)(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]), runs = ceil_div(n, mix_run(n));
    const float *partial = c->run->workspace;
    pool_run(c->run->pool, runs, mix_bwd_task, (void *)c);
    for (int out = 2; out < 4; out++) {
        float *to = c->out[out].data;
        if (!to) continue;
        double sum = c->accumulate >> out & 1 ? (double)*to : 0;
        for (int64_t i = 0; i < runs; i++) sum += (double)partial[2 * i + out - 2];
        *to = (float)sum;
    }
}

static size_t CPU(mix_workspace)(const op_backend *b, const op_call *c, int threads) {
    return 2 * MIX_RUNS * sizeof(float);
}

KERNEL(MIX, CPU(mix));
KERNEL(MIX_BWD, CPU(mix_bwd), CPU(mix_workspace));
