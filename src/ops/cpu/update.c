/* Elementwise updates: SGD, momentum, Adam, Lion; and adaptive clipping by rows. Each update is one pass
 * over memory that applies the gradient's scale and the decay, updates, and writes the low-precision copy
 * of the weights. Bytes per element: SGD 12, momentum and Lion 20, Adam 28, plus the copy's. */
#include "ops/clip.h"
#include "update.h"
#include "ops/op_table.h"

/* ---- rules ----------------------------------------------------------------------------------- */
VEC_INLINE void sgd_lane(const update_factors *f, lane *x) {
    x->p -= (x->g * f->scale + x->p * f->decay) * f->lr;
}

VEC_INLINE void momentum_lane(const update_factors *f, lane *x) {
    vf g = x->g * f->scale + x->p * f->decay;
    x->m = x->m * f->mu + g;
    x->p -= (g * f->now + x->m * f->then) * f->lr;
}

VEC_INLINE void lion_lane(const update_factors *f, lane *x) {
    const vf one = vec_of(1), none = { 0 };
    const vi minus = (vi){ 0 } + INT32_MIN;
    vf u = x->m * f->b1 + x->g * f->g1;
    vf sign = vec_select(u == none, none, vec_select(minus, u, one));
    x->p -= (sign + x->p * f->decay) * f->lr;
    x->m = x->m * f->b2 + x->g * f->g2;
}

/* Adam with decay through the gradient. */
VEC_INLINE void adam_l2_lane(const update_factors *f, lane *x) {
    x->g = x->g * f->scale + x->p * f->decay;
    adam_lane(f, x);
}

/* The loop of each rule, compiled for the state it has, with and without the copy. */
#define SWEEP(name, keeps_m, keeps_v)                                                              \
    static void name(const update_factors *f, elements e) {                                        \
        if (!(keeps_m)) e.m = NULL;                                                                \
        if (!(keeps_v)) e.v = NULL;                                                                \
        BUG_IF(((keeps_m) && !e.m) || ((keeps_v) && !e.v));                                        \
        if (e.copy) {                                                                              \
            sweep(name##_lane, f, e);                                                              \
        } else {                                                                                   \
            e.copy = NULL;                                                                         \
            sweep(name##_lane, f, e);                                                              \
        }                                                                                          \
    }
SWEEP(sgd, false, false)
SWEEP(momentum, true, false)
SWEEP(adam, true, true)
SWEEP(adam_l2, true, true)
SWEEP(lion, true, false)
#undef SWEEP

/* ---- the pass -------------------------------------------------------------------------------- */
typedef void (*sweep_fn)(const update_factors *f, elements e);
static const struct {
    sweep_fn decoupled, l2; /* by how decay is applied; equal for rules with only one way */
    int states;
} rules[OP_COUNT] = {
    [OP_UPDATE_SGD] = { sgd, sgd, 0 },
    [OP_UPDATE_MOMENTUM] = { momentum, momentum, 1 },
    [OP_UPDATE_ADAM] = { adam, adam_l2, 2 },
    [OP_UPDATE_LION] = { lion, lion, 1 },
};

typedef struct update_job {
    const op_call *c;
    int64_t n, each;
    sweep_fn sweep;
    update_factors f;
} update_job;

static void update_task(void *ctx, int64_t i, int worker) {
    const update_job *j = ctx;
    const op_call *c = j->c;
    int states = rules[c->op].states;
    const tensor *copy = &c->out[states + 1];
    float *m = states > 0 ? c->out[1].data : NULL, *v = states > 1 ? c->out[2].data : NULL;
    float tmp[BLOCK];
    span e = span_of(i, j->each, j->n);
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t n = MIN(BLOCK, e.hi - at);
        elements x = { .g = (const float *)c->in[0].data + at,
                       .p = update_get(&c->out[0], at, n, tmp),
                       .m = m ? m + at : NULL,
                       .v = v ? v + at : NULL,
                       .copy = copy_at(copy, at),
                       .n = n };
        j->sweep(&j->f, x);
        if (!x.copy) update_put(c, copy, x.p, at, n);
    }
}

void CPU(update)(const op_call *c) {
    int states = rules[c->op].states;
    if (!update_due(c, states, states + 1)) return;
    update_job j = { .c = c, .n = tensor_count(&c->in[0]), .f = update_factors_of(c) };
    j.each = ceil_div(stream_task(j.n, c->run->pool), BLOCK) * BLOCK;
    j.sweep = c->attr.update.l2 ? rules[c->op].l2 : rules[c->op].decoupled;
    pool_run(c->run->pool, ceil_div(j.n, j.each), update_task, &j);
}

/* ---- clipping --------------------------------------------------------------------------------- */
void CPU(clip)(const op_call *c) {
    const step_block *step = c->run->step;
    BUG_IF(tensor_count(&c->in[0]) != 2 || tensor_bytes(&c->out[0]) != sizeof(step_state));
    clip_state(c->out[0].data, c->in[0].data, step->update.max_norm, c->attr.clip.growth_interval);
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
        double length = row_length(g, cols) * c->run->step->now.grad_scale;
        if (!(length > most)) continue; /* NaN too: the global norm shows it */
        float by = (float)(most / length);
#pragma omp simd
        for (int64_t k = 0; k < cols; k++) g[k] *= by;
    }
}

void CPU(agc)(const op_call *c) {
    const tensor *p = &c->in[0];
    BUG_IF(p->ndim != 2 || p->dt != DT_F32 || c->out[0].dt != DT_F32);
    BUG_IF(tensor_count(p) != tensor_count(&c->out[0]));
    if (c->run->step->now.skip) return;
    pool_run(c->run->pool, ceil_div(p->dim[0], rows_per_task(p->dim[1])), agc_task, (void *)c);
}
