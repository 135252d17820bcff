/* Spikes with what was unusual beside them, and what to do about what was found. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "observe/observe.h"
#include "report_internal.h"

/* ---- spikes ---------------------------------------------------------------------------------- */
/* The source whose loss rose most above its own median, where there are several. */
static const char *worst_source(const run_report *r, int64_t row, double *ratio) {
    const char *worst = NULL;
    *ratio = 1.1; /* less is not unusual */
    for (int i = 0; i < series_columns(r->all); i++) {
        const series_column *c = series_at(r->all, i);
        if (!str_starts(c->name, "sources.") || !str_ends(c->name, ".loss")) continue;
        double here = series_in_row(c, row) / report_quantile(c, MAX(0, row - 200), 0.5);
        if (here > *ratio) *ratio = here, worst = c->name + strlen("sources.");
    }
    return worst;
}

static void name_cause(const run_report *r, int64_t row, loss_spike *s) {
    const series *all = r->all;
    double norm = series_in_row(series_find(all, "grad_norm"), row) / r->grad_norm, ratio;
    double rejected = series_in_row(series_find(all, "rejected"), row);
    double skipped = series_in_row(series_find(all, "skipped"), row);
    const char *source = worst_source(r, row, &ratio);
    str text = { 0 };
    str_add(&text, "%s", "");
    if (skipped > 0) str_add(&text, "the gradient overflowed; ");
    if (source)
        str_add(&text, "source %.*s at %.1fx its loss; ", (int)MIN(strlen(source) - 5, 40), source,
                ratio);
    if (rejected > 0) str_add(&text, "the guard rejected %.0f sequences; ", rejected);
    if (norm > 2) str_add(&text, "gradient norm %.1fx its median; ", norm);
    if (text.len) text.text[text.len - 2] = '\0';
    snprintf(s->cause, sizeof s->cause, "%s", text.len ? text.text : "nothing else unusual");
    str_free(&text);
}

static double spike_height(const loss_spike *s) {
    double h = (s->loss - s->mean) / fmax(s->deviation, 1e-30);
    return isfinite(h) ? h : INFINITY;
}

/* Keeps the highest, in the order of their steps. */
static void add_spike(run_report *r, loss_spike s, int64_t row) {
    int n = (int)MIN(r->spikes, REPORT_LISTED), lowest = 0;
    r->spikes++;
    if (n == REPORT_LISTED) {
        for (int i = 1; i < n; i++)
            if (spike_height(&r->spike[i]) < spike_height(&r->spike[lowest])) lowest = i;
        if (spike_height(&s) <= spike_height(&r->spike[lowest])) return;
        memmove(&r->spike[lowest], &r->spike[lowest + 1],
                (size_t)(n - 1 - lowest) * sizeof(loss_spike));
        n--;
    }
    name_cause(r, row, &s);
    r->spike[n] = s;
}

/* The losses before one, to compare it with. */
static void measure_before(const series_column *loss, int64_t i, double *mean, double *deviation) {
    enum { WINDOW = 50 };
    double sum = 0, squares = 0;
    int64_t from = MAX(0, i - WINDOW), n = MAX(i - from, 1);
    for (int64_t k = from; k < i; k++) sum += series_value(loss, k);
    *mean = sum / (double)n;
    for (int64_t k = from; k < i; k++) {
        double away = series_value(loss, k) - *mean;
        squares += away * away;
    }
    *deviation = sqrt(squares / (double)n);
}

/* The run decided what a spike is (the alert loss_spike) and noted it with each step. */
void report_find_spikes(run_report *r) {
    const series_column *loss = series_find(r->all, "loss"), *data = series_find(r->all, "windows");
    const series_column *spike = series_find(r->all, "is_spike");
    for (int64_t i = 0; i < loss->n; i++) {
        double v = series_value(loss, i), mean, deviation;
        int64_t row = series_row(loss, i);
        if (!(series_in_row(spike, row) > 0)) continue;
        measure_before(loss, i, &mean, &deviation);
        add_spike(r,
                  (loss_spike){ .step = series_step(r->all, loss, i),
                                .loss = v,
                                .mean = mean,
                                .deviation = deviation,
                                .from_sequence = series_in_row(data, row - 1),
                                .to_sequence = series_in_row(data, row) },
                  row);
    }
}

/* ---- advice ---------------------------------------------------------------------------------- */
static void add_finding(run_report *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_finding(run_report *r, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->advice = mem_grow(r->advice, (size_t)(r->advices + 1) * sizeof *r->advice);
    r->advice[r->advices++] = strdup(text);
}

static void advise_on_loss(run_report *r) {
    const loss_phase *last = r->phases ? &r->phase[r->phases - 1] : NULL;
    if (r->not_finite)
        add_finding(
            r,
            "%lld losses are not finite: lower optimizer.lr or lengthen lr_scheduler.warmup; "
            "debug.check_finite=true names the first op that went wrong.",
            (long long)r->not_finite);
    if (r->diverged && isfinite(r->last_loss))
        add_finding(
            r,
            "The loss is %.1f %% above its best: it diverged. Resume from a checkpoint before "
            "that with a lower optimizer.lr, or with data.skip over the sequences below.",
            100 * (r->last_loss / r->best_loss - 1));
    if ((double)r->spikes > 0.005 * (double)r->rows && r->spikes > 2)
        add_finding(
            r,
            "%lld spikes in %lld steps are many: lower optimizer.lr or optimizer.beta2, or look "
            "at the data of those steps with `ingot data inspect`.",
            (long long)r->spikes, (long long)r->rows);
    if (!r->diverged && last && last->kind == PHASE_STAGNANT)
        add_finding(
            r,
            "The loss has not moved since step %.0f (under 0.1 %% per %d steps): the learning "
            "rate may be spent, the model too small for the data, or the run done.",
            last->from, REPORT_WINDOW);
    if (r->last_val > r->best_val * 1.02 && r->last_loss < r->last_val)
        add_finding(
            r,
            "The held-out loss is %.1f %% above its best while the training loss fell: the run "
            "overfits. Use more data, fewer epochs, or model.dropout.",
            100 * (r->last_val / r->best_val - 1));
}

static void advise_on_speed(run_report *r) {
    double whole = r->seconds.step + r->seconds.eval + r->seconds.sample + r->seconds.ckpt;
    if (r->seconds.data > 0.05 * r->seconds.step)
        add_finding(r,
                    "%.0f %% of the step time was spent waiting for data: raise data.workers or "
                    "data.prefetch.",
                    100 * r->seconds.data / r->seconds.step);
    if (r->seconds.ckpt > 0.05 * whole)
        add_finding(r, "%.0f %% of the time went into checkpoints: raise checkpoint.every.",
                    100 * r->seconds.ckpt / whole);
    if (r->seconds.eval + r->seconds.sample > 0.1 * whole)
        add_finding(
            r,
            "%.0f %% of the time went into validation and samples: raise validation.every or "
            "lower validation.batches.",
            100 * (r->seconds.eval + r->seconds.sample) / whole);
    if (r->stalled_s > 0.02 * whole && r->stalls)
        add_finding(
            r,
            "%lld steps took over %dx the median, %.0f s in all: look for another process, a "
            "slow disk, or a GPU that throttles.",
            (long long)r->stalls, REPORT_STALL, r->stalled_s);
}

void report_advise(run_report *r) {
    advise_on_loss(r);
    advise_on_speed(r);
}
