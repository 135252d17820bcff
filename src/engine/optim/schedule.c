/* Numbers that follow the run: the learning rate, clipping, the gradient noise scale. */
#include "optim/optim.h"

#include <math.h>

#include "ops/clip.h"

/* ---- learning rate ----------------------------------------------------------------------- */
static const double PI = 3.14159265358979323846, EXPONENTIAL_END = 0.01;

static double fall_linear(double end, double x) { return 1 + (end - 1) * x; }
static double fall_cosine(double end, double x) { return end + (1 - end) * (1 + cos(PI * x)) / 2; }
static double fall_sqrt(double end, double x) { return end + (1 - end) * (1 - sqrt(x)); }
static double fall_exponential(double end, double x) {
    return pow(end > 0 ? end : EXPONENTIAL_END, x);
}

static double (*const falls[])(double end, double x) = {
    [DECAY_COSINE] = fall_cosine,
    [DECAY_LINEAR] = fall_linear,
    [DECAY_EXPONENTIAL] = fall_exponential,
    [DECAY_SQRT] = fall_sqrt,
};

double schedule_lr(const schedule *s, int64_t at, int64_t size) {
    if (at < s->warmup) return s->lr * ((double)(at + size) / (double)(s->warmup + size));
    int64_t rest = MAX(s->total - s->warmup, 0);
    int64_t length = s->kind == SCHED_WSD ? MIN(s->decay_length, rest) : rest;
    int64_t into = at - (s->total - length);
    if (s->kind == SCHED_CONSTANT || into <= 0 || length == 0) return s->lr;
    decay_kind fall = s->kind == SCHED_COSINE   ? DECAY_COSINE
                      : s->kind == SCHED_LINEAR ? DECAY_LINEAR
                                                : s->decay;
    return s->lr * falls[fall](s->min_factor, MIN((double)into / (double)length, 1.0));
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
