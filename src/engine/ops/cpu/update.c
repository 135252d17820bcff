/* Elementwise updates: SGD, momentum, Adam, Lion; and adaptive clipping by rows. Each update is one pass
 * over memory that applies the gradient's scale and the decay, updates, and writes the low-precision copy
 * of the weights. Bytes per element: SGD 12, momentum and Lion 20, Adam 28, plus the copy's. */
#include "ops/clip.h"
#include "update.h"
#include "ops/op_table.h"

/* ---- rules ----------------------------------------------------------------------------------- */
LOOP_INLINE void sgd_lane(const update_factors *f, update_lane *x) {
    vf g = vec_muladd(x->g, vec_of(f->scale), x->p * f->decay);
    x->p = vec_muladd(g, vec_of(-f->lr), x->p);
}

LOOP_INLINE void momentum_lane(const update_factors *f, update_lane *x) {
    vf g = vec_muladd(x->g, vec_of(f->scale), x->p * f->decay);
    x->m = vec_muladd(x->m, vec_of(f->mu), g);
    x->p = vec_muladd(vec_muladd(x->m, vec_of(f->then), g * f->now), vec_of(-f->lr), x->p);
}

LOOP_INLINE void lion_lane(const update_factors *f, update_lane *x) {
    const vf one = vec_of(1), none = { 0 };
    const vi minus = (vi){ 0 } + INT32_MIN;
    vf u = vec_muladd(x->m, vec_of(f->b1), x->g * f->g1);
    vf sign = vec_select(u == none, none, vec_select(minus, u, one));
    x->p = vec_muladd(vec_muladd(x->p, vec_of(f->decay), sign), vec_of(-f->lr), x->p);
    x->m = vec_muladd(x->m, vec_of(f->b2), x->g * f->g2);
}

LOOP_INLINE void along_lane(const update_factors *f, update_lane *x) {
    x->p = vec_muladd(x->g, vec_of(-f->lr), x->p * f->keep);
}

/* The same, with decay only where the step has the sign of the weight, and so moves it towards zero too. */
LOOP_INLINE void along_cautious_lane(const update_factors *f, update_lane *x) {
    vf keep = vec_select(x->g * x->p >= (vf){ 0 }, vec_of(f->keep), vec_of(1));
    x->p = vec_muladd(x->g, vec_of(-f->lr), x->p * keep);
}

/* Adam with decay through the gradient. */
LOOP_INLINE void adam_l2_lane(const update_factors *f, update_lane *x) {
    x->g = vec_muladd(x->g, vec_of(f->scale), x->p * f->decay);
    adam_lane(f, x);
}

/* The loop of each rule, compiled for the state it has, with and without the copy. */
#define SWEEP(name, keeps_m, keeps_v)                                                              \
    static void name(const update_factors *f, elements e) {                                        \
        if (!(keeps_m)) e.m = NULL;                                                                \
        if (!(keeps_v)) e.v = NULL;                                                                \
        BUG_IF(((keeps_m) && !e.m) || ((keeps_v) && !e.v));                                        \
        if (e.copy) {                                                                              \
            sweep_elements(name##_lane, f, e);                                                     \
        } else {                                                                                   \
            e.copy = NULL;                                                                         \
            sweep_elements(name##_lane, f, e);                                                     \
        }                                                                                          \
    }
SWEEP(sgd, false, false)
SWEEP(momentum, true, false)
SWEEP(adam, true, true)
SWEEP(adam_l2, true, true)
SWEEP(along, false, false)
SWEEP(along_cautious, false, false)
SWEEP(lion, true, false)
#undef SWEEP

/* ---- the pass -------------------------------------------------------------------------------- */
typedef void (*sweep_fn)(const update_factors *f, elements e);
typedef struct update_job {
    const op_call *c;
    int64_t n, each;
    int states;
    sweep_fn sweep;
    update_factors f;
} update_job;

static void update_task(void *ctx, int64_t i, int worker) {
    const update_job *j = ctx;
    const op_call *c = j->c;
    const tensor *copy = &c->out[j->states + 1];
    float *m = j->states > 0 ? c->out[1].data : NULL, *v = j->states > 1 ? c->out[2].data : NULL;
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

static void sweep_update(const op_call *c, sweep_fn sweep) {
    update_job j = { .c = c, .n = tensor_count(&c->in[0]), .states = op_states(c->op) };
    BUG_IF(j.states > 2);
    if (!update_due(c, j.states, j.states + 1)) return;
    j.each = ceil_div(bandwidth_task(j.n, c->run->pool), BLOCK) * BLOCK;
    j.f = update_factors_of(c);
    j.sweep = sweep;
    pool_run(c->run->pool, ceil_div(j.n, j.each), update_task, &j);
}
static void CPU(update_sgd)(const op_call *c) { sweep_update(c, sgd); }
static void CPU(update_momentum)(const op_call *c) { sweep_update(c, momentum); }
static void CPU(update_adam)(const op_call *c) {
    sweep_update(c, c->attr.update.l2 ? adam_l2 : adam);
}
static void CPU(update_lion)(const op_call *c) { sweep_update(c, lion); }
static void CPU(update_along)(const op_call *c) {
    sweep_update(c, c->attr.update.cautious ? along_cautious : along);
}

/* ---- clipping --------------------------------------------------------------------------------- */
static void CPU(clip)(const op_call *c) {
    const step_block *step = c->run->step;
    BUG_IF(tensor_count(&c->in[0]) != 2 || tensor_bytes(&c->out[0]) != sizeof(step_state));
    clip_state(c->out[0].data, c->in[0].data, step->update.max_norm, step->update.skip_norm,
               c->attr.clip.growth_interval);
}

/* ---- adaptive clipping ------------------------------------------------------------------------
 * Brock et al., 2021: a row of the gradient may be at most `factor` times as long as the row of
 * weights it changes. The gradient is measured as the update will use it, scale included. */
typedef struct agc_job {
    const op_call *c;
    matrix_slice m;
    int64_t each; /* rows of a task */
} agc_job;

static agc_job agc_job_of(const op_call *c, const tensor *g) {
    agc_job j = { .c = c, .m = matrix_slice_of(c, tensor_count(g)) };
    j.each = rows_per_task(j.m.cols);
    return j;
}
static void agc_run(agc_job *j, void (*task)(void *ctx, int64_t i, int worker)) {
    pool_run(j->c->run->pool, ceil_div(j->m.end - j->m.begin, j->each), task, j);
}

static double square_sum(const float *x, span s, double scale) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = s.lo; k < s.hi; k++) sum += (double)x[k] * x[k];
    return sum * scale * scale;
}

static void agc_sums_task(void *ctx, int64_t i, int worker) {
    const agc_job *j = ctx;
    const op_call *c = j->c;
    float *p_sum = c->out[0].data, *g_sum = c->out[1].data;
    span rows = task_rows(&j->m, i, j->each);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        int64_t at = row_at(&j->m, row), to = j->m.row0 + row;
        span k = row_span(&j->m, row);
        p_sum[to] = (float)square_sum((const float *)c->in[0].data + at, k, 1);
        g_sum[to] =
            (float)square_sum((const float *)c->in[1].data + at, k, c->run->step->now.grad_scale);
    }
}

static void CPU(agc_sums)(const op_call *c) {
    agc_job j = agc_job_of(c, &c->in[1]);
    BUG_IF(j.m.row0 + j.m.end > c->out[0].dim[0]);
    for (int k = 0; k < 2; k++) memset(c->out[k].data, 0, tensor_bytes(&c->out[k]));
    agc_run(&j, agc_sums_task);
}

static void agc_task(void *ctx, int64_t i, int worker) {
    const agc_job *j = ctx;
    const op_call *c = j->c;
    const float *p_sum = c->in[0].data, *g_sum = c->in[1].data;
    span rows = task_rows(&j->m, i, j->each);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        int64_t whole = j->m.row0 + row;
        double most = c->attr.agc.factor * MAX(sqrt(p_sum[whole]), (double)c->attr.agc.eps);
        double length = sqrt(g_sum[whole]);
        if (!(length > most)) continue; /* NaN too: the global norm shows it */
        float *g = (float *)c->out[0].data + row_at(&j->m, row), by = (float)(most / length);
        span k = row_span(&j->m, row);
#pragma omp simd
        for (int64_t n = k.lo; n < k.hi; n++) g[n] *= by;
    }
}

static void CPU(agc)(const op_call *c) {
    agc_job j = agc_job_of(c, &c->out[0]);
    if (c->run->step->now.skip) return;
    agc_run(&j, agc_task);
}

KERNEL(UPDATE_SGD, CPU(update_sgd), NULL, ATTRS_UPDATE);
KERNEL(UPDATE_MOMENTUM, CPU(update_momentum), NULL, ATTRS_UPDATE);
KERNEL(UPDATE_ADAM, CPU(update_adam), NULL, ATTRS_UPDATE);
KERNEL(UPDATE_LION, CPU(update_lion), NULL, ATTRS_UPDATE_DECOUPLED);
KERNEL(UPDATE_ALONG, CPU(update_along), NULL, ATTRS_UPDATE_DECOUPLED | ATTR(CAUTIOUS));
KERNEL(CLIP, CPU(clip), NULL, ATTR(GROWTH_INTERVAL));
KERNEL(AGC_SUMS, CPU(agc_sums), NULL, ATTRS_PART);
KERNEL(AGC, CPU(agc), NULL, ATTRS_PART | ATTR(AGC_FACTOR) | ATTR(AGC_EPS));
