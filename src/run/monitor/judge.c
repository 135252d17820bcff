/* The judges: one for each row of monitor.def, and the state they judge by.
 *
 * A step is judged by the steps before it and enters the windows afterwards, limited to what would just not
 * have been an alert: one bad step does not raise the bar for the next, and a level that stays becomes the
 * new normal. */
#include <stdlib.h>
#include <string.h>

#include "monitor_internal.h"

/* ---- windows ----------------------------------------------------------------------------------- */
/* Measures the last n values of a ring of `window`, the oldest first, wherever it is: a resumed run sums in the same
 * order. */
static window_stats measure_last(const rolling *r, int window, int n) {
    window_stats w = { .n = (int)MIN(r->seen, (int64_t)n) };
    double sum = 0, squares = 0;
    for (int64_t i = r->seen - w.n; i < r->seen; i++) sum += r->value[i % window];
    w.mean = w.n ? sum / w.n : NAN;
    for (int64_t i = r->seen - w.n; i < r->seen; i++) {
        double away = r->value[i % window] - w.mean;
        squares += away * away;
    }
    w.deviation = w.n ? sqrt(squares / w.n) : NAN;
    return w;
}

static window_stats window_measure(const rolling *r, int window) {
    return measure_last(r, window, window);
}

static void push_value(rolling *r, int window, double v, double limit) {
    if (!isfinite(v)) return;
    r->value[r->seen++ % window] = isfinite(limit) ? MIN(v, limit) : v;
}

static double span_value(const span_mean *s) { return s->n ? s->sum / (double)s->n : NAN; }

static void span_add(span_mean *s, double v) {
    if (!isfinite(v)) return;
    s->sum += v;
    s->n++;
}

/* ---- the loss ----------------------------------------------------------------------------------- */
/* The loss above which a step is a spike; infinite: too few losses yet. Losses that hardly differ have a
 * deviation near nothing: a share of the mean is the least that counts. */
static double spike_limit(const monitor *m, window_stats *w) {
    const double least_share = 0.01;
    *w = window_measure(&m->now.loss, m->s.window);
    if (w->n < m->s.least) return INFINITY;
    double by_ratio = w->mean * m->s.threshold[MONITOR_loss_spike];
    double by_sigma = w->mean + m->s.sigma * MAX(w->deviation, least_share * fabs(w->mean));
    return w->mean > 0 ? MIN(by_ratio, by_sigma) : by_sigma;
}

bool monitor_would_spike(const monitor *m, double loss) {
    window_stats w;
    double limit = spike_limit(m, &w);
    return !m->s.off[MONITOR_loss_spike] && isfinite(limit) && loss > limit;
}

static verdict judge_loss_spike(const monitor *m, const monitor_step *s) {
    window_stats w;
    double limit = spike_limit(m, &w);
    bool judged = isfinite(limit) && isfinite(s->loss);
    return (verdict){ judged, judged && s->loss > limit, s->loss, limit, w.mean, w.deviation, -1 };
}

static verdict judge_plateau(const monitor *m, const monitor_step *s) {
    const monitor_state *n = &m->now;
    double now = span_value(&n->plateau), limit = m->s.threshold[MONITOR_plateau];
    bool judged = n->plateau.n == PLATEAU_STEPS && n->before > 0;
    double fell = judged ? (n->before - now) / n->before : NAN;
    return (verdict){ judged, judged && fell < limit, fell, limit, now, NAN, -1 };
}

/* fp16 finds its loss scale by overflowing gradients now and then. That is expected as long as the scale can be
 * halved; a loss that is not finite does not depend on the scale. */
static verdict judge_nonfinite(const monitor *m, const monitor_step *s) {
    const double least_scale = 1; /* of ops/clip.h */
    bool scale_mends = isfinite(s->loss) && s->loss_scale > least_scale;
    bool finite = isfinite(s->loss) && (isfinite(s->grad_norm) || scale_mends);
    double value = isfinite(s->loss) ? s->grad_norm : s->loss;
    return (verdict){ true, !finite, value, NAN, NAN, NAN, -1 };
}

static verdict judge_loss_scale(const monitor *m, const monitor_step *s) {
    double limit = m->s.threshold[MONITOR_loss_scale];
    return (verdict){
        !isnan(s->loss_scale), s->loss_scale <= limit, s->loss_scale, limit, NAN, NAN, -1
    };
}

/* ---- the gradient -------------------------------------------------------------------------------- */
static double explosion_limit(const monitor *m, double max_norm) {
    double ratio = m->s.threshold[MONITOR_grad_explosion];
    window_stats w = window_measure(&m->now.norm, m->s.window);
    return w.n < m->s.least ? INFINITY : ratio * MAX(max_norm, w.mean);
}

static bool has_history(const monitor *m) { return m->now.norm.seen >= m->s.least; }

/* Whether the loss stands out from the last steps' by three standard deviations, and a tenth at least. */
static bool loss_is_raised(const monitor *m, const monitor_step *s) {
    window_stats w = measure_last(&m->now.loss, m->s.window, MIN(m->s.window, RECENT_STEPS));
    return !(s->loss <= w.mean + MAX(3 * w.deviation, 0.1 * fabs(w.mean)));
}

/* In batches of few tokens a single rare one can have a gradient of twenty times the usual norm, in a run that
 * nothing ails. Where weights run away the loss rises with the norm. A policy of skip judges the norm alone, as the
 * kernel that skips does. */
static verdict judge_grad_explosion(const monitor *m, const monitor_step *s) {
    window_stats w = window_measure(&m->now.norm, m->s.window);
    double limit = explosion_limit(m, s->max_norm);
    bool judged = isfinite(limit) && isfinite(s->grad_norm);
    bool skips = m->s.policy[MONITOR_grad_explosion] == MONITOR_SKIP;
    bool holds = judged && s->grad_norm > limit && (skips || loss_is_raised(m, s));
    return (verdict){ judged, holds, s->grad_norm, limit, w.mean, w.deviation, -1 };
}

static verdict judge_norm(const monitor *m, const monitor_step *s, monitor_id id, bool above) {
    double limit = m->s.threshold[id], v = s->grad_norm;
    bool judged = has_history(m) && isfinite(v);
    bool holds = above ? v > limit : v < limit;
    return (verdict){ judged, judged && holds, v, limit, NAN, NAN, -1 };
}
static verdict judge_grad_alarm(const monitor *m, const monitor_step *s) {
    return judge_norm(m, s, MONITOR_grad_alarm, true);
}
static verdict judge_grad_large(const monitor *m, const monitor_step *s) {
    return judge_norm(m, s, MONITOR_grad_large, true);
}
static verdict judge_grad_small(const monitor *m, const monitor_step *s) {
    return judge_norm(m, s, MONITOR_grad_small, false);
}

/* At the end of a span of steps. */
static verdict judge_grad_rise(const monitor *m, const monitor_step *s) {
    const double *span = m->now.spans;
    double ratio = span[RISE_SPANS - 1] / span[0];
    bool judged = m->now.rise.n == 0 && isfinite(ratio), rises = judged;
    for (int i = 1; i < RISE_SPANS; i++) rises = rises && span[i] > span[i - 1];
    double limit = m->s.threshold[MONITOR_grad_rise];
    bool high = span[RISE_SPANS - 1] > limit * s->max_norm; /* else a healthy run that learns */
    return (verdict){ judged, rises && high && ratio > limit, ratio,
                      limit,  span[RISE_SPANS - 1],           NAN,
                      -1 };
}

/* ---- blocks --------------------------------------------------------------------------------------- */
static double median_of(const double *v, int n) {
    double *sorted = mem_alloc((size_t)n * sizeof *sorted);
    memcpy(sorted, v, (size_t)n * sizeof *sorted);
    sort_array(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    double median = sorted[n / 2];
    free(sorted);
    return median;
}

/* The block that is furthest beyond the limit. @param unit what values are divided by first. */
static verdict judge_blocks(const double *v, int n, double unit, double limit, bool above) {
    verdict worst = {
        .judged = v && n > 0 && unit > 0, .limit = limit, .mean = NAN, .deviation = NAN, .block = -1
    };
    for (int i = 0; worst.judged && i < n; i++) {
        double x = v[i] / unit;
        bool worse = worst.block < 0 || (above ? x > worst.value : x < worst.value);
        if (isnan(x) || !worse) continue;
        worst.value = x;
        worst.block = i;
    }
    worst.judged = worst.block >= 0;
    worst.holds = worst.judged && (above ? worst.value > limit : worst.value < limit);
    return worst;
}

static verdict judge_against_median(const double *v, int n, double limit) {
    const int least = 3; /* blocks, for a median to mean something */
    return judge_blocks(v, n, v && n >= least ? median_of(v, n) : 0, limit, true);
}

static verdict judge_activation_large(const monitor *m, const monitor_step *s) {
    return judge_blocks(s->activation_rms, s->blocks, 1, m->s.threshold[MONITOR_activation_large],
                        true);
}
static verdict judge_activation_small(const monitor *m, const monitor_step *s) {
    return judge_blocks(s->activation_rms, s->blocks, 1, m->s.threshold[MONITOR_activation_small],
                        false);
}
static verdict judge_param_norm(const monitor *m, const monitor_step *s) {
    return judge_against_median(s->block_param, s->blocks, m->s.threshold[MONITOR_param_norm]);
}
static verdict judge_block_grad(const monitor *m, const monitor_step *s) {
    return judge_against_median(s->block_grad, s->blocks, m->s.threshold[MONITOR_block_grad]);
}

/* ---- experts, fp8 ----------------------------------------------------------------------------------- */
static verdict experts_now(const monitor *m, const monitor_step *s, bool dead) {
    monitor_id id = dead ? MONITOR_expert_dead : MONITOR_expert_saturated;
    return judge_blocks(dead ? s->expert_least : s->expert_most, s->blocks, 1, m->s.threshold[id],
                        !dead);
}
static verdict judge_expert_dead(const monitor *m, const monitor_step *s) {
    verdict v = experts_now(m, s, true);
    v.holds = v.holds && m->now.dead_steps >= EXPERT_STEPS;
    return v;
}
static verdict judge_expert_saturated(const monitor *m, const monitor_step *s) {
    verdict v = experts_now(m, s, false);
    v.holds = v.holds && m->now.saturated_steps >= EXPERT_STEPS;
    return v;
}

static verdict judge_fp8_saturation(const monitor *m, const monitor_step *s) {
    double limit = m->s.threshold[MONITOR_fp8_saturation];
    return (verdict){
        !isnan(s->fp8_saturated), s->fp8_saturated > limit, s->fp8_saturated, limit, NAN, NAN, -1
    };
}

/* ---- time --------------------------------------------------------------------------------------------- */
/* At the end of a span; the first, in which algorithms are tried and files are cold, is not judged. */
static verdict judge_share(const monitor *m, const span_mean *span, monitor_id id, bool above) {
    double v = span_value(span), limit = m->s.threshold[id];
    bool ends =
        m->now.machine_steps > m->s.bottleneck && m->now.machine_steps % m->s.bottleneck == 0;
    bool judged = ends && !isnan(v);
    return (verdict){ judged, judged && (above ? v > limit : v < limit), v, limit, NAN, NAN, -1 };
}
static verdict judge_mfu_low(const monitor *m, const monitor_step *s) {
    return judge_share(m, &m->now.mfu, MONITOR_mfu_low, false);
}
static verdict judge_comm_slow(const monitor *m, const monitor_step *s) {
    return judge_share(m, &m->now.comm, MONITOR_comm_slow, true);
}
static verdict judge_data_stall(const monitor *m, const monitor_step *s) {
    return judge_share(m, &m->now.data, MONITOR_data_stall, true);
}

/* Raised where they are noticed: monitor_raise. */
static verdict not_judged(void) { return (verdict){ .judged = false }; }
double monitor_save_share(monitor_saves *s, double now, double waited) {
    const double least = 60; /* seconds */
    double seconds = now - s->from;
    s->waited += waited;
    if (seconds < least) return NAN;
    double share = s->waited / seconds;
    *s = (monitor_saves){ .from = now };
    return share;
}

static verdict judge_save_slow(const monitor *m, const monitor_step *s) { return not_judged(); }
static verdict judge_save_failed(const monitor *m, const monitor_step *s) { return not_judged(); }
static verdict judge_upload_failed(const monitor *m, const monitor_step *s) { return not_judged(); }
static verdict judge_log_failed(const monitor *m, const monitor_step *s) { return not_judged(); }
static verdict judge_folder_gone(const monitor *m, const monitor_step *s) { return not_judged(); }

typedef verdict (*judge)(const monitor *m, const monitor_step *s);
static const judge judges[MONITOR_ALERTS] = {
#define ALERT(name, ...) [MONITOR_##name] = judge_##name,
#include "monitor/monitor.def"
};

/* ---- the state ------------------------------------------------------------------------------------------ */
/* Adds a step to the state before it is judged: the ends of spans are judged with the step that ends them. */
static void add_spans(monitor *m, const monitor_step *s) {
    monitor_state *n = &m->now;
    span_add(&n->plateau, s->loss);
    span_add(&n->rise, s->grad_norm);
    if (n->rise.n == RISE_STEPS) {
        memmove(n->spans, n->spans + 1, sizeof n->spans - sizeof *n->spans);
        n->spans[RISE_SPANS - 1] = span_value(&n->rise);
        n->rise = (span_mean){ 0 };
    }
    if (s->expert_least) n->dead_steps = experts_now(m, s, true).holds ? n->dead_steps + 1 : 0;
    if (s->expert_most)
        n->saturated_steps = experts_now(m, s, false).holds ? n->saturated_steps + 1 : 0;
    span_add(&n->mfu, s->mfu);
    span_add(&n->comm, s->comm_share);
    span_add(&n->data, s->data_share);
    n->machine_steps++;
}

static void end_step(monitor *m, const monitor_step *s) {
    monitor_state *n = &m->now;
    window_stats w;
    double limit = spike_limit(m, &w);
    push_value(&n->loss, m->s.window, s->loss, limit);
    push_value(&n->norm, m->s.window, s->grad_norm, explosion_limit(m, s->max_norm));
    if (n->plateau.n == PLATEAU_STEPS) {
        n->before = span_value(&n->plateau);
        n->plateau = (span_mean){ 0 };
    }
    if (n->machine_steps % m->s.bottleneck == 0) n->mfu = n->comm = n->data = (span_mean){ 0 };
}

double monitor_skip_norm(const monitor *m, double max_norm) {
    const monitor_settings *s = &m->s;
    double least = INFINITY;
    if (!has_history(m)) return 0;
    if (s->policy[MONITOR_grad_explosion] == MONITOR_SKIP && !s->off[MONITOR_grad_explosion])
        least = explosion_limit(m, max_norm);
    if (s->policy[MONITOR_grad_alarm] == MONITOR_SKIP && !s->off[MONITOR_grad_alarm])
        least = MIN(least, s->threshold[MONITOR_grad_alarm]);
    return isfinite(least) ? least : 0;
}

/* ---- firing --------------------------------------------------------------------------------------------- */
static bool alert_fires(monitor *m, monitor_id id, bool holds) {
    int64_t *clear = &m->now.clear[id];
    if (holds) {
        bool first = *clear < 0;
        *clear = 0;
        return first;
    }
    /* Steps without the condition before it may fire again: one that is judged now and then needs one. */
    int64_t steps = monitor_table[id].scope == MONITOR_STEP ? 10 : 1;
    if (*clear >= 0 && ++*clear >= steps) *clear = -1;
    return false;
}

int monitor_add(monitor *m, const monitor_step *s, monitor_alert *out) {
    int n = 0;
    add_spans(m, s);
    for (int i = 0; i < MONITOR_ALERTS; i++) {
        verdict v = m->s.off[i] ? not_judged() : judges[i](m, s);
        if (i == MONITOR_loss_spike) {
            m->now.is_spike = v.judged ? v.holds : NAN;
            m->now.spikes += v.judged && v.holds;
        }
        if (!v.judged || !alert_fires(m, (monitor_id)i, v.holds)) continue;
        out[n++] = (monitor_alert){ (monitor_id)i, m->s.policy[i], s->step,     v.value,
                                    v.limit,       v.mean,         v.deviation, v.block };
    }
    end_step(m, s);
    return n;
}

bool monitor_raise(monitor *m, monitor_id id, int64_t step, double value, monitor_alert *out) {
    if (m->s.off[id] || !alert_fires(m, id, true)) return false;
    *out = (monitor_alert){ id, m->s.policy[id], step, value, m->s.threshold[id], NAN, NAN, -1 };
    return true;
}
void monitor_clear(monitor *m, monitor_id id) { m->now.clear[id] = -1; }

double monitor_is_spike(const monitor *m) { return m->now.is_spike; }
int64_t monitor_spikes(const monitor *m) { return m->now.spikes; }
const monitor_settings *monitor_settings_of(const monitor *m) { return &m->s; }

monitor_step monitor_step_none(void) {
    return (monitor_step){ .loss = NAN,
                           .grad_norm = NAN,
                           .loss_scale = NAN,
                           .fp8_saturated = NAN,
                           .mfu = NAN,
                           .comm_share = NAN,
                           .data_share = NAN };
}
