/* Numbers that follow the run: the learning rate, clipping, the gradient noise scale. */
#include "optim/optim.h"

#include <math.h>

#include "ops/clip.h"

/* ---- learning rate ----------------------------------------------------------------------- */
static const double PI = 3.14159265358979323846, EXPONENTIAL_END = 0.01;

static double fall_DECAY_LINEAR(double end, double x) { return 1 + (end - 1) * x; }
static double fall_DECAY_COSINE(double end, double x) {
    return end + (1 - end) * (1 + cos(PI * x)) / 2;
}
static double fall_DECAY_SQRT(double end, double x) { return end + (1 - end) * (1 - sqrt(x)); }
static double fall_DECAY_EXPONENTIAL(double end, double x) {
    return pow(end > 0 ? end : EXPONENTIAL_END, x);
}

typedef double (*fall_function)(double end, double x);
#define FALL(symbol, text, traits, help) [symbol] = fall_##symbol,
static const fall_function falls[] = { DECAY_KINDS(FALL) };

/* The shape of a schedule's fall; wsd leaves it to lr_scheduler.decay_type, and constant has none. */
static fall_function shape_of(const schedule *s) {
    switch (s->kind) {
    case SCHED_CONSTANT: return NULL;
    case SCHED_COSINE: return fall_DECAY_COSINE;
    case SCHED_LINEAR: return fall_DECAY_LINEAR;
    case SCHED_WSD: return falls[s->decay];
    }
    BUG("not a schedule");
}

/* @return how much of the fall has passed at this point: 0 to 1. */
static double passed_of_fall(const schedule *s, double at) {
    int64_t rest = MAX(s->end - s->warmup, 0);
    bool at_end = sched_kind_traits[s->kind] & SCHED_FALLS_AT_END;
    int64_t length = at_end ? MIN(s->decay_length, rest) : rest;
    double into = at - (double)(s->end - length);
    if (!shape_of(s) || into <= 0 || length == 0) return 0;
    return MIN(into / (double)length, 1.0);
}

double schedule_lr(const schedule *s, double at, double size) {
    double warmup = (double)s->warmup;
    if (at < warmup) return s->lr * ((at + size) / (warmup + size));
    double x = passed_of_fall(s, at);
    return x > 0 ? s->lr * shape_of(s)(s->min_factor, x) : s->lr;
}

/* ---- momentum and weight decay ------------------------------------------------------------- */
static double decay_factor(wd_schedule kind, double passed, double lr_factor) {
    switch (kind) {
    case WD_CONSTANT: return 1;
    case WD_LINEAR: return fall_DECAY_LINEAR(0, passed);
    case WD_COSINE: return fall_DECAY_COSINE(0, passed);
    case WD_LR: return lr_factor;
    }
    BUG("not a schedule of weight decay");
}

optim_factors schedule_factors(const schedule *s, const momentum_schedule *m, double at,
                               double lr_factor) {
    optim_factors f = { 0 };
    double passed = s->total > 0 ? MIN(at / (double)s->total, 1.0) : 0;
    for (int i = 0; i < wd_schedule_count; i++)
        f.decay[i] = decay_factor((wd_schedule)i, passed, lr_factor);
    if (at < (double)m->warmup) {
        f.momentum.toward = m->start;
        f.momentum.weight = 1 - at / (double)m->warmup;
    } else if (!isnan(m->end)) {
        f.momentum.toward = m->end;
        f.momentum.weight = passed_of_fall(s, at);
    }
    return f;
}

/* ---- clipping ---------------------------------------------------------------------------- */
double optim_clip(double norm, double max_norm) {
    return isfinite(norm) ? clip_factor(norm, max_norm) : NAN;
}

/* ---- gradient noise scale ---------------------------------------------------------------- */
double noise_scale_add(noise_scale *n, double small_sq, double b_small, double large_sq,
                       double b_large) {
    BUG_IF(!(b_small > 0 && b_large > b_small));
    double decay = n->decay > 0 ? n->decay : 0.99;
    /* E|g_B|^2 = |G|^2 + noise / B, at two sizes B: two equations for two unknowns */
    double g2 = (b_large * large_sq - b_small * small_sq) / (b_large - b_small);
    double noise = (small_sq - large_sq) / (1 / b_small - 1 / b_large);
    /* both averages start from 0, which their ratio does not see */
    n->g2 = decay * n->g2 + (1 - decay) * g2;
    n->noise = decay * n->noise + (1 - decay) * noise;
    n->seen++;
    return n->g2 > 0 && n->noise >= 0 ? n->noise / n->g2 : NAN;
}
