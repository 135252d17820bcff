/* Updates by element: SGD, momentum, Adam, Lion; and adaptive clipping by rows. Each is one pass
 * over memory: the gradient's scale, the decay, the update and the narrow copy of the weights
 * together. Bytes an element: SGD 12, momentum and Lion 20, Adam 28, and the copy's own. */
#include "update.h"

/* ---- rules ----------------------------------------------------------------------------------- */
typedef struct elements { /* of one block */
    const float *g;
    float *p, *m, *v;
    int64_t n;
} elements;

static void sgd(const op_call *c, const update_factors *f, elements e) {
    const float *restrict g = e.g;
    float *restrict p = e.p, scale = f->scale, decay = f->decay, lr = f->lr;
#pragma omp simd
    for (int64_t k = 0; k < e.n; k++) p[k] -= lr * (g[k] * scale + decay * p[k]);
}

static void momentum(const op_call *c, const update_factors *f, elements e) {
    const float *restrict g = e.g;
    float *restrict p = e.p, *restrict m = e.m;
    float scale = f->scale, decay = f->decay, lr = f->lr, mu = c->attr.update.momentum;
    /* u = now g + then m: the buffer itself, or with Nesterov the gradient and a look ahead */
    float now = c->attr.update.nesterov ? 1 : 0, then = c->attr.update.nesterov ? mu : 1;
#pragma omp simd
    for (int64_t k = 0; k < e.n; k++) {
        float gk = g[k] * scale + decay * p[k], mk = mu * m[k] + gk;
        m[k] = mk;
        p[k] -= lr * (now * gk + then * mk);
    }
}

static void adam(const op_call *c, const update_factors *f, elements e) {
    const float *restrict g = e.g;
    float *restrict p = e.p, *restrict m = e.m, *restrict v = e.v;
    float scale = f->scale, l2 = c->attr.update.l2 ? f->decay : 0;
    float keep = c->attr.update.l2 ? 1 : f->keep, step = f->step, bias = f->root_bias;
    float c1 = f->c1, b2 = f->b2, c2 = f->c2, eps = f->eps;
#pragma omp simd
    for (int64_t k = 0; k < e.n; k++) {
        float gk = g[k] * scale + l2 * p[k], mk = m[k] + c1 * (gk - m[k]);
        float vk = b2 * v[k] + c2 * gk * gk;
        m[k] = mk;
        v[k] = vk;
        p[k] = p[k] * keep - step * mk / (sqrtf(vk) * bias + eps);
    }
}

static void lion(const op_call *c, const update_factors *f, elements e) {
    const float *restrict g = e.g;
    float *restrict p = e.p, *restrict m = e.m;
    float scale = f->scale, decay = f->decay, lr = f->lr;
    float b1 = f->b1, c1 = f->c1, b2 = f->b2, c2 = f->c2;
#pragma omp simd
    for (int64_t k = 0; k < e.n; k++) {
        float gk = g[k] * scale, u = b1 * m[k] + c1 * gk;
        float sign = (u > 0 ? 1.0f : 0.0f) - (u < 0 ? 1.0f : 0.0f);
        p[k] -= lr * (sign + decay * p[k]);
        m[k] = b2 * m[k] + c2 * gk;
    }
}

/* ---- the pass -------------------------------------------------------------------------------- */
static const struct {
    void (*rule)(const op_call *c, const update_factors *f, elements e);
    int states;
} rules[OP_COUNT] = {
    [OP_UPDATE_SGD] = { sgd, 0 },
    [OP_UPDATE_MOMENTUM] = { momentum, 1 },
    [OP_UPDATE_ADAM] = { adam, 2 },
    [OP_UPDATE_LION] = { lion, 1 },
};

typedef struct update_job {
    const op_call *c;
    update_factors f;
} update_job;

static void update_task(void *ctx, int64_t i, int worker) {
    const update_job *j = ctx;
    const op_call *c = j->c;
    int states = rules[c->op].states;
    float *p = c->out[0].data, *m = states > 0 ? c->out[1].data : NULL;
    float *v = states > 1 ? c->out[2].data : NULL;
    span e = span_of(i, TASK_ELEMENTS, tensor_count(&c->in[0]));
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        elements x = { .g = (const float *)c->in[0].data + at,
                       .p = p + at,
                       .m = m ? m + at : NULL,
                       .v = v ? v + at : NULL,
                       .n = MIN(BLOCK, e.hi - at) };
        rules[c->op].rule(c, &j->f, x);
        update_copy(&c->out[states + 1], p, at, x.n);
    }
}

void CPU(update)(const op_call *c) {
    int states = rules[c->op].states;
    update_check(c, states, states + 1);
    update_job j = { c, update_factors_of(c) };
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS), update_task, &j);
}

/* ---- adaptive clipping ------------------------------------------------------------------------
 * Brock et al., 2021: a row of the gradient may be at most `factor` times as long as the row of
 * weights it changes. The gradient is measured as the update will use it, scale included. */
static double row_length(const float *x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; k++) sum += (double)x[k] * x[k];
    return sqrt(sum);
}

static void agc_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    int64_t cols = c->in[0].dim[1];
    span rows = span_of(i, rows_per_task(cols), c->in[0].dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *p = (const float *)c->in[0].data + row * cols;
        float *g = (float *)c->out[0].data + row * cols;
        double most = c->attr.agc.factor * MAX(row_length(p, cols), (double)c->attr.agc.eps);
        double length = row_length(g, cols) * c->run->step->update.grad_scale;
        if (!(length > most)) continue; /* NaN passes: the norm of the whole has shown it */
        float by = (float)(most / length);
#pragma omp simd
        for (int64_t k = 0; k < cols; k++) g[k] *= by;
    }
}

void CPU(agc)(const op_call *c) {
    const tensor *p = &c->in[0];
    BUG_IF(p->ndim != 2 || p->dt != DT_F32 || c->out[0].dt != DT_F32);
    BUG_IF(tensor_count(p) != tensor_count(&c->out[0]));
    pool_run(c->run->pool, ceil_div(p->dim[0], rows_per_task(p->dim[1])), agc_task, (void *)c);
}
