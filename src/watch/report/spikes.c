/* Steps whose loss stands out, with what else was unusual in them. */
#include <math.h>
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

/* Compares a loss with the ones before it: their mean and standard deviation, without values that are not finite. */
static void measure_before(const series_column *loss, int64_t i, double *mean, double *deviation) {
    enum { WINDOW = 50 };
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t k = MAX(0, i - WINDOW); k < i; k++) {
        double v = series_value(loss, k);
        if (!isfinite(v)) continue;
        sum += v;
        squares += v * v;
        n++;
    }
    *mean = n ? sum / (double)n : NAN;
    *deviation = n ? sqrt(fmax(squares / (double)n - *mean * *mean, 0)) : NAN;
}

/* Finds a spike that begins at a loss although the run raised no alert, which a preset or a threshold may have turned off. Judges by
 * more than the alert does: a run that had alerts on has decided already. A spike may last, but falls to half of its height again;
 * else the loss has diverged. @return the first loss after it, or i: none begins here */
static int64_t spike_end(const series_column *loss, int64_t i, double mean, double deviation,
                         int64_t *peak) {
    enum { LONGEST = 1000, LEAST = 20 };
    int64_t end = MIN(loss->n, i + 1 + MIN((int64_t)LONGEST, MAX((int64_t)LEAST, loss->n / 50)));
    double v = series_value(loss, i);
    *peak = i;
    if (i < 50 || !(v > mean + 8 * deviation) || !(v > 1.15 * mean)) return i;
    for (int64_t k = i + 1; k < end; k++) {
        double at = series_value(loss, k);
        if (at < (series_value(loss, *peak) + mean) / 2) return k;
        if (at > series_value(loss, *peak)) *peak = k;
    }
    return i;
}

/* The run decides what a spike is (the alert loss_spike) and notes it with each step. */
void report_find_spikes(run_report *r) {
    const series_column *loss = series_find(r->all, "loss"), *data = series_find(r->all, "windows");
    const series_column *spike = series_find(r->all, "is_spike");
    for (int64_t i = 0, next; i < loss->n; i = next) {
        double mean, deviation;
        int64_t at = i;
        next = i + 1;
        if (!isfinite(series_value(loss, i))) continue;
        measure_before(loss, i, &mean, &deviation);
        if (!(series_in_row(spike, series_row(loss, i)) > 0)) {
            int64_t end = spike_end(loss, i, mean, deviation, &at);
            if (end == i) continue;
            next = end;
        }
        int64_t row = series_row(loss, at);
        add_spike(r,
                  (loss_spike){ .step = series_step(r->all, loss, at),
                                .loss = series_value(loss, at),
                                .mean = mean,
                                .deviation = deviation,
                                .document = -1,
                                .from_sequence = series_in_row(data, row - 1),
                                .to_sequence = series_in_row(data, row) },
                  row);
    }
}

void report_name_document(run_report *r, double step, const json_t *worst) {
    const char *source = json_string_value(json_object_get(worst, "source"));
    const json_t *number = json_object_get(worst, "document"),
                 *loss = json_object_get(worst, "loss");
    if (!source) return;
    for (int i = 0; i < (int)MIN(r->spikes, REPORT_LISTED); i++) {
        loss_spike *s = &r->spike[i];
        if (s->step != step || *s->source) continue; /* the first alert of a step has named it */
        snprintf(s->source, sizeof s->source, "%s", source);
        s->document = json_is_integer(number) ? json_integer_value(number) : -1;
        str text = { 0 };
        str_add(&text, "%s; worst sequence: ", s->cause);
        if (s->document >= 0) str_add(&text, "document %lld of ", (long long)s->document);
        str_add(&text, "%s", s->source);
        if (json_is_number(loss)) str_add(&text, ", loss %.4g", json_number_value(loss));
        snprintf(s->cause, sizeof s->cause, "%s", text.text);
        str_free(&text);
    }
}
