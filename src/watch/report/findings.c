/* The findings of findings.def: each decides from the columns of a run whether it holds, and writes its evidence.
 *
 * Thresholds are shares of the run or multiples of its own noise, never a number of steps alone: a run of 200 steps and one
 * of 200,000 are judged alike. A median over a part of the run is what most rules compare, since it ignores single
 * steps. A column that was not logged is NaN everywhere, and no comparison with NaN holds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_internal.h"

/* ---- parts of a run ---------------------------------------------------------------------------- */
/* @return a quantile of a column over rows [from, to) of the run, as parts of 1. NaN: no value there. */
static double quantile_between(const run_report *r, const series_column *c, double from, double to,
                               double q) {
    return report_quantile_between(c, (int64_t)(from * (double)r->rows),
                                   (int64_t)(to * (double)r->rows), q);
}
static double median_between(const run_report *r, const series_column *c, double from, double to) {
    return quantile_between(r, c, from, to, 0.5);
}
static double column_median(const run_report *r, const char *name, double from, double to) {
    return median_between(r, series_find(r->all, name), from, to);
}

/* @return the share of a column's values in [low, high], from a part of the run on. NaN: no values. */
static double share_within(const run_report *r, const char *name, double from, double low,
                           double high) {
    const series_column *c = series_find(r->all, name);
    int64_t n = 0, inside = 0;
    for (int64_t i = 0; c && i < c->n; i++) {
        double v = series_value(c, i);
        if (series_row(c, i) < (int64_t)(from * (double)r->rows) || !isfinite(v)) continue;
        n++;
        inside += v >= low && v <= high;
    }
    return n ? (double)inside / (double)n : NAN;
}

/* The column whose quantile over the last half is largest, among those named PREFIX + a name. */
static const series_column *largest_quantile_of(const run_report *r, const char *prefix, double q,
                                                double *largest) {
    const series_column *found = NULL;
    *largest = -INFINITY;
    for (int i = 0; i < series_columns(r->all); i++) {
        const series_column *c = series_at(r->all, i);
        if (!str_starts(c->name, prefix)) continue;
        double v = quantile_between(r, c, 0.5, 1, q);
        if (v > *largest) *largest = v, found = c;
    }
    return found;
}
static const series_column *largest_of(const run_report *r, const char *prefix, double *largest) {
    return largest_quantile_of(r, prefix, 0.5, largest);
}

/* @return the median over the columns of their quantiles over the last half. NaN: fewer than `least` columns */
static double middle_quantile_of(const run_report *r, const char *prefix, double q, int least) {
    double v[1024];
    int n = 0;
    for (int i = 0; i < series_columns(r->all) && n < 1024; i++) {
        const series_column *c = series_at(r->all, i);
        if (str_starts(c->name, prefix) && !str_ends(c->name, ".other"))
            v[n++] = quantile_between(r, c, 0.5, 1, q);
    }
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    return n >= least ? v[(n - 1) / 2] : NAN;
}

/* A finding whose evidence is one number: it holds where `value` is more than `limit`, and shows `shown` in `text`. */
#define FINDS_ABOVE(name, value, limit, text, shown)                                               \
    static bool finds_##name(const run_report *r, str *s) {                                        \
        double v = (value);                                                                        \
        if (v > (limit)) str_add(s, text, shown);                                                  \
        return v > (limit);                                                                        \
    }

/* ---- how it ended -------------------------------------------------------------------------------- */
static bool finds_died(const run_report *r, str *s) {
    if (*r->events.failure)
        str_add(s, "the run ended at step %.0f: %s", r->events.failure_step, r->events.failure);
    else if (r->status.state == RUN_DIED) /* it was killed, and could not say so */
        str_add(s, "the run ended at step %lld: %s", (long long)r->status.step, r->status.cause);
    return s->len > 0;
}

static bool finds_restarts(const run_report *r, str *s) {
    if (r->events.restarts < 2) return false;
    str_add(s, "%d attempts of `ingot launch` failed, the last by: %s", r->events.restarts,
            r->events.restart_cause);
    return true;
}

static bool finds_rollbacks(const run_report *r, str *s) {
    if (!r->events.rollbacks) return false;
    str_add(s, "%d rollbacks, the last from step %.0f", r->events.rollbacks,
            r->events.rollback_step);
    return true;
}

/* ---- the loss ------------------------------------------------------------------------------------ */
static bool finds_not_finite(const run_report *r, str *s) {
    if (!r->not_finite) return false;
    str_add(s, "%lld losses are not finite", (long long)r->not_finite);
    return true;
}

static bool finds_diverged(const run_report *r, str *s) {
    if (!r->diverged || !isfinite(r->last_loss)) return false;
    int best = 0;
    for (int i = 0; i < r->windows; i++)
        if (r->window[i].mean == r->best_loss) best = i;
    if (!(r->last_loss > r->best_loss)) return false; /* only its last loss is not finite */
    str_add(s, "the loss is %.1f %% above its best, %.4f around step %.0f",
            100 * (r->last_loss / r->best_loss - 1), r->best_loss, r->window[best].to);
    return true;
}

static bool finds_spikes(const run_report *r, str *s) {
    if (!r->spikes) return false;
    const loss_spike *highest = &r->spike[0];
    for (int i = 1; i < (int)MIN(r->spikes, REPORT_LISTED); i++)
        if (r->spike[i].loss - r->spike[i].mean > highest->loss - highest->mean)
            highest = &r->spike[i];
    str_add(s, "%lld in %lld steps, the highest at step %.0f (%.4f where %.4f was usual; %s)",
            (long long)r->spikes, (long long)r->rows, highest->step, highest->loss, highest->mean,
            highest->cause);
    int same_source = 0, same_document = 0;
    for (int i = 0; i < (int)MIN(r->spikes, REPORT_LISTED) && *highest->source; i++) {
        bool same = !strcmp(r->spike[i].source, highest->source);
        same_source += same;
        same_document +=
            same && highest->document >= 0 && r->spike[i].document == highest->document;
    }
    if (same_document > 1)
        str_add(s, "; document %lld of %s is the worst of %d of them", (long long)highest->document,
                highest->source, same_document);
    else if (same_source > 1)
        str_add(s, "; the worst sequence of %d of them is of %s", same_source, highest->source);
    return true;
}

/* Whether the loss stopped falling at row `from`. A healthy loss falls with a power of the steps, so by a share of itself for
 * each factor that the steps grow by: 3 % per factor e and more in published runs. Flat is less than half of that between
 * the middles of the two halves since `from`, even at the upper end of what noise leaves open. */
static bool is_flat_from(const series_column *loss, int64_t from, double *gain) {
    int64_t middle = (from + loss->n) / 2, n[2] = { 0, 0 };
    double mean[2] = { 0, 0 };
    for (int64_t i = from; i < loss->n; i++) {
        double v = series_value(loss, i);
        if (!isfinite(v)) continue;
        mean[i >= middle] += v;
        n[i >= middle]++;
    }
    if (!n[0] || !n[1]) return false;
    for (int k = 0; k < 2; k++) mean[k] /= (double)n[k];
    double error = report_noise(loss, from, loss->n) * sqrt(1 / (double)n[0] + 1 / (double)n[1]);
    double growth = log((double)(middle + loss->n) / (double)(from + middle));
    *gain = (mean[0] - mean[1]) / fabs(mean[0]);
    return *gain + 3 * error / fabs(mean[0]) < 0.014 * growth;
}

static bool finds_plateau(const run_report *r, str *s) {
    enum { LEAST = 100 };
    const series_column *loss = series_find(r->all, "loss");
    int64_t n = loss->n, from = -1, step = MAX(n / 20, 1);
    double gain = 0, own;
    if (r->diverged) return false;
    for (int64_t at = n - MAX(LEAST, n / 4); at > 0; at -= step)
        if (is_flat_from(loss, at, &own)) from = at, gain = own;
    if (from < 0) return false;
    str_add(s, "the loss fell by %.2f %% in the %lld steps since step %.0f", 100 * fmax(gain, 0),
            (long long)(n - from), series_step(r->all, loss, from));
    return true;
}

/* Held-out losses are smoothed over three, and must rise by more than their noise and 2 %. */
static bool finds_overfits(const run_report *r, str *s) {
    const series_column *val = series_find(r->all, "val_loss"), *loss = series_find(r->all, "loss");
    if (!val || val->n < 5) return false;
    int64_t best = 1;
    double smooth = 0, least = INFINITY, last = 0;
    for (int64_t i = 1; i + 1 < val->n; i++) {
        smooth = (series_value(val, i - 1) + series_value(val, i) + series_value(val, i + 1)) / 3;
        if (smooth < least) least = smooth, best = i;
        last = smooth;
    }
    double noise = report_noise(val, 0, r->rows);
    double then = median_between(
        r, loss, (double)MAX(0, series_row(val, best) - r->window_rows) / (double)r->rows,
        (double)(series_row(val, best) + 1) / (double)r->rows);
    if (!(last > 1.02 * least && last > least + 3 * noise) || r->last_loss > 1.01 * then)
        return false;
    str_add(
        s,
        "the held-out loss is %.1f %% above its best, %.4f near step %.0f, while the training loss fell from %.4f to %.4f",
        100 * (last / least - 1), least, series_step(r->all, val, best), then, r->last_loss);
    return true;
}

FINDS_ABOVE(repeated_data, series_in_row(series_find(r->all, "epoch"), r->rows - 1), 4,
            "the data was read %.1f times", v)

/* ---- the update ---------------------------------------------------------------------------------- */
static bool finds_rate_too_low(const run_report *r, str *s) {
    double ratio = column_median(r, "update_ratio", 0.1, 0.6);
    if (!(ratio < 2e-5) || column_median(r, "lr", 0.1, 0.6) == 0) return false;
    str_add(s, "an update changes the weights by %.1e of their norm, where 1e-4 to 1e-2 is usual",
            ratio);
    return true;
}

FINDS_ABOVE(rate_too_high, column_median(r, "update_ratio", 0.1, 0.6), 0.05,
            "an update changes the weights by %.1e of their norm, where 1e-4 to 1e-2 is usual", v)

FINDS_ABOVE(rate_is_zero, share_within(r, "lr", 0, 0, 0), 0.1,
            "the learning rate is 0 in %.0f %% of the steps", 100 * v)

static bool finds_always_clipped(const run_report *r, str *s) {
    double share = share_within(r, "clipped", 0.1, 0, 0.999);
    if (!(share > 0.8) || !(column_median(r, "clipped", 0.1, 1) < 0.5)) return false;
    str_add(s, "%.0f %% of the updates were clipped, to %.2f of their size in the median",
            100 * share, column_median(r, "clipped", 0.1, 1));
    return true;
}

static bool finds_gradient_rises(const run_report *r, str *s) {
    double before = column_median(r, "grad_norm", 0.25, 0.5),
           after = column_median(r, "grad_norm", 0.75, 1);
    if (r->rows < 100 || !(after > 3 * before) ||
        !(column_median(r, "grad_norm", 0.5, 0.75) > 1.2 * before))
        return false;
    str_add(s,
            "the gradient norm rose from %.3g in the second quarter of the run to %.3g in the last",
            before, after);
    return true;
}

static bool finds_gradient_vanished(const run_report *r, str *s) {
    double before = column_median(r, "grad_norm", 0, 0.25),
           after = column_median(r, "grad_norm", 0.75, 1);
    if (r->rows < 100 || !(after < 1e-3 * before)) return false;
    str_add(s, "the gradient norm fell from %.3g to %.3g", before, after);
    return true;
}

static bool finds_uneven_blocks(const run_report *r, str *s) {
    static const char prefix[] = "blocks.grad_norm.";
    double largest, middle = middle_quantile_of(r, prefix, 0.5, 3);
    const series_column *c = largest_of(r, prefix, &largest);
    if (!c || str_ends(c->name, ".other") || !(largest > 10 * middle)) return false;
    str_add(s, "the gradient norm of block %s is %.0f times that of the median block",
            c->name + strlen(prefix), largest / middle);
    return true;
}

static bool finds_activations_grow(const run_report *r, str *s) {
    static const char prefix[] = "blocks.activation_rms.";
    double largest;
    const series_column *c = largest_of(r, prefix, &largest);
    double before = median_between(r, c, 0, 0.25), after = median_between(r, c, 0.75, 1);
    if (!(after > 100 && after > 4 * before)) return false;
    str_add(s, "the root mean square of what enters block %s rose from %.3g to %.3g",
            c->name + strlen(prefix), before, after);
    return true;
}

static bool finds_skipped_updates(const run_report *r, str *s) {
    const series_column *c = series_find(r->all, "skipped");
    double skipped = report_sum(r, "skipped", 0.1);
    if (!c || !(skipped > 0.02 * 0.9 * (double)r->rows) || skipped < 3) return false;
    str_add(
        s,
        "%.0f updates were skipped after the first tenth of the run, because the gradient was not finite or an alert asked for it",
        skipped);
    return true;
}

static bool finds_loss_scale_fell(const run_report *r, str *s) {
    double least = report_quantile(series_find(r->all, "loss_scale"), 0, 0);
    double last = column_median(r, "loss_scale", 0.75, 1);
    if (!(last <= 16) && !(least <= 1)) return false;
    str_add(s, "the loss scale is %g, and was %g at least", last, least);
    return true;
}

static bool finds_fp8_saturated(const run_report *r, str *s) {
    static const char prefix[] = "blocks.fp8_saturated.";
    double largest;
    const series_column *c = largest_of(r, prefix, &largest);
    if (!c || !(largest > 0.1)) return false;
    str_add(s, "%.0f %% of the fp8 tensors of block %s exceed what their scales can hold",
            100 * largest, c->name + strlen(prefix));
    return true;
}

/* ---- experts and data ---------------------------------------------------------------------------- */
FINDS_ABOVE(experts_unbalanced, column_median(r, "expert_load", 0.5, 1), 4,
            "the most loaded expert gets %.1f times its even share", v)

FINDS_ABOVE(experts_drop, column_median(r, "expert_drop", 0.5, 1), 0.1,
            "%.0f %% of the choices of experts are dropped", 100 * v)

static bool finds_rejected_sequences(const run_report *r, str *s) {
    double rejected = report_sum(r, "rejected", 0),
           all = series_in_row(series_find(r->all, "windows"), r->rows - 1);
    if (!(rejected > 0.01 * all)) return false;
    str_add(s, "the guard rejected %.0f sequences, %.1f %% of them", rejected,
            100 * rejected / all);
    return true;
}

/* Tokens per step, from the last tenth of the run: a ramp has ended by then. */
static double tokens_per_step(const run_report *r) {
    const series_column *tokens = series_find(r->all, "tokens");
    int64_t from = r->rows - 1 - r->rows / 10;
    if (!tokens || from < 0 || from == r->rows - 1) return NAN;
    return (series_in_row(tokens, r->rows - 1) - series_in_row(tokens, from)) /
           (double)(r->rows - 1 - from);
}

static bool finds_batch_too_small(const run_report *r, str *s) {
    double scale = column_median(r, "noise_scale", 0.5, 1), batch = tokens_per_step(r);
    if (!(scale > 16 * batch)) return false;
    str_add(s, "the gradient noise scale is %.3g tokens, %.0f times the batch", scale,
            scale / batch);
    return true;
}

static bool finds_batch_too_large(const run_report *r, str *s) {
    double scale = column_median(r, "noise_scale", 0.5, 1), batch = tokens_per_step(r);
    if (!(scale < batch / 16) || !(scale > 0)) return false;
    str_add(s, "the gradient noise scale is %.3g tokens, a %.0fth of the batch", scale,
            batch / scale);
    return true;
}

/* ---- time -------------------------------------------------------------------------------------- */
/* Of a rank that is slow now and then, as beside another process, the median shows nothing. Where all are, the machine is. */
static bool finds_slow_rank(const run_report *r, str *s) {
    static const char prefix[] = "ranks.ratio.";
    double ratio, often;
    const series_column *c = largest_of(r, prefix, &ratio),
                        *d = largest_quantile_of(r, prefix, 0.75, &often);
    if (c && ratio > 1.15)
        str_add(s, "rank %s computes for %.2f times the median of the ranks with the same work",
                c->name + strlen(prefix), ratio);
    else if (d && often > 1.3 * fmax(1, middle_quantile_of(r, prefix, 0.75, 2)))
        str_add(s,
                "rank %s computes for %.2f times the median of the ranks with the same work, or "
                "longer, in a quarter of the steps since the middle of the run",
                d->name + strlen(prefix), often);
    return s->len > 0;
}

/* Whether a row has as many sequences and as long ones as the last: a ramp or a curriculum changes the speed. */
static bool is_like_last(const series_column *batch, const series_column *length, int64_t row,
                         int64_t last) {
    double a = series_in_row(batch, row), b = series_in_row(batch, last);
    double c = series_in_row(length, row), d = series_in_row(length, last);
    return (a == b || (isnan(a) && isnan(b))) && (c == d || (isnan(c) && isnan(d)));
}

/* Tokens per second at the end of the run against the best tenth before it. */
static bool finds_throughput_fell(const run_report *r, str *s) {
    enum { PARTS = 10 };
    const series_column *tok = series_find(r->all, "tok_s");
    const series_column *batch = series_find(r->all, "batch"),
                        *length = series_find(r->all, "seq_len");
    if (!tok || r->rows < 50) return false;
    int first = 0;
    while (first < PARTS - 1 &&
           !is_like_last(batch, length, r->rows * first / PARTS + (first ? 0 : 3), r->rows - 1))
        first++;
    double best = -INFINITY, last = column_median(r, "tok_s", 0.8, 1), speed[PARTS];
    for (int i = first; i < PARTS; i++) {
        speed[i] = column_median(r, "tok_s", (double)i / PARTS, (double)(i + 1) / PARTS);
        best = fmax(best, speed[i]);
    }
    if (!(last < 0.8 * best)) return false;
    int from = PARTS - 1;
    while (from > first && speed[from - 1] < (best + last) / 2) from--;
    str_add(s, "%.3g tokens per second at the end, %.3g at best; it fell around step %.0f", last,
            best, series_value(series_find(r->all, "step"), r->rows * from / PARTS));
    return true;
}

FINDS_ABOVE(data_stall, report_sum(r, "data_s", 0.1) / report_sum(r, "step_s", 0.1), 0.05,
            "%.0f %% of the step time was spent waiting for data", 100 * v)

static double all_seconds(const run_report *r) {
    return r->seconds.step + r->seconds.eval + r->seconds.sample + r->seconds.ckpt;
}

static bool finds_stalls(const run_report *r, str *s) {
    if (!r->stalls || !(r->stalled_s > 0.02 * all_seconds(r))) return false;
    str_add(s, "%lld steps took over %dx the median, %.0f s in all", (long long)r->stalls,
            REPORT_STALL, r->stalled_s);
    return true;
}

FINDS_ABOVE(checkpoint_time, r->seconds.ckpt / all_seconds(r), 0.05,
            "%.0f %% of the time went into checkpoints", 100 * v)

FINDS_ABOVE(evaluation_time, (r->seconds.eval + r->seconds.sample) / all_seconds(r), 0.1,
            "%.0f %% of the time went into validation and samples", 100 * v)

static bool finds_communication(const run_report *r, str *s) {
    double shown =
        column_median(r, "comm_s", 0.1, 1) * (1 - column_median(r, "comm_hidden", 0.1, 1));
    double step = column_median(r, "step_s", 0.1, 1);
    if (!(shown > 0.25 * step)) return false;
    str_add(s, "%.0f %% of the step time is communication that computation does not hide",
            100 * shown / step);
    return true;
}

FINDS_ABOVE(pipeline_bubble, column_median(r, "bubble", 0.1, 1), 0.3,
            "the pipeline's ranks wait for %.0f %% of the step time", 100 * v)

/* Grows through the second half of the run, from eighth to eighth, and by a fifth in all; the first tenth fills caches. */
static bool grows(const run_report *r, const char *name, double *from, double *to) {
    enum { PARTS = 8 };
    double part[PARTS];
    bool always = true;
    for (int i = 0; i < PARTS; i++)
        part[i] = column_median(r, name, 0.1 + 0.9 * i / PARTS, 0.1 + 0.9 * (i + 1) / PARTS);
    for (int i = PARTS / 2; i < PARTS; i++) always &= part[i] > 1.01 * part[i - 1];
    *from = part[0], *to = part[PARTS - 1];
    return always && *to > 1.2 * *from;
}

static bool finds_memory_grows(const run_report *r, str *s) {
    static const char *const columns[] = { "host_mem", "gpu_mem" };
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        double from, to;
        char a[32], b[32];
        if (r->rows < 100 || !grows(r, columns[i], &from, &to)) continue;
        str_add(s, "%s rose from %s to %s", columns[i], str_bytes(a, sizeof a, from),
                str_bytes(b, sizeof b, to));
        return true;
    }
    return false;
}

FINDS_ABOVE(gpu_throttled, share_within(r, "gpu_throttled", 0.1, 1, 1), 0.2,
            "clocks were held down in %.0f %% of the steps", 100 * v)

static bool finds_gpu_idle(const run_report *r, str *s) {
    double busy = column_median(r, "gpu_util", 0.1, 1);
    if (!(busy < 80)) return false;
    str_add(s, "a kernel ran in %.0f %% of the time", busy);
    return true;
}

static bool finds_gpu_errors(const run_report *r, str *s) {
    double ecc = report_quantile(series_find(r->all, "gpu_ecc"), 0, 1);
    double xid = report_quantile(series_find(r->all, "gpu_xid"), 0, 1);
    if (!(ecc > 0) && !(xid > 0)) return false;
    str_add(s, "%.0f uncorrected memory errors, last Xid error %.0f", ecc > 0 ? ecc : 0,
            xid > 0 ? xid : 0);
    return true;
}

/* ---- all of them ------------------------------------------------------------------------------- */
static const struct finding_row {
    const char *name, *remedy;
    bool (*find)(const run_report *r, str *evidence);
} finding_rows[] = {
#define FINDING(name, remedy) { #name, remedy, finds_##name },
#include "findings.def"
};

void report_find_all(run_report *r) {
    r->finding = mem_alloc(COUNT_OF(finding_rows) * sizeof *r->finding);
    for (size_t i = 0; i < COUNT_OF(finding_rows); i++) {
        const struct finding_row *row = &finding_rows[i];
        str evidence = { 0 };
        if (row->find(r, &evidence))
            r->finding[r->findings++] =
                (report_finding){ row->name, row->remedy, strdup(evidence.text) };
        str_free(&evidence);
    }
}

void report_docs(str *out) {
    str_add(out, "| finding | remedy |\n|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(finding_rows); i++)
        str_add(out, "| `%s` | %s |\n", finding_rows[i].name, finding_rows[i].remedy);
}
