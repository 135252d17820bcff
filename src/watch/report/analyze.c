/* From columns to findings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "report_internal.h"

/* ---- statistics ----------------------------------------------------------------------------- */
double report_quantile(const series_column *c, int64_t row, double q) {
    return report_quantile_between(c, row, INT64_MAX, q);
}

double report_quantile_between(const series_column *c, int64_t from, int64_t to, double q) {
    if (!c || !c->n) return NAN;
    double *v = mem_alloc((size_t)c->n * sizeof *v);
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t row = series_row(c, i);
        if (row >= from && row < to && isfinite(series_value(c, i))) v[n++] = series_value(c, i);
    }
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    double result = n ? v[(int64_t)(q * (double)(n - 1) + 0.5)] : NAN;
    free(v);
    return result;
}

double report_sum(const run_report *r, const char *name, double from) {
    const series_column *c = series_find(r->all, name);
    double sum = 0;
    for (int64_t i = 0; c && i < c->n; i++)
        if (series_row(c, i) >= (int64_t)(from * (double)r->rows) && isfinite(series_value(c, i)))
            sum += series_value(c, i);
    return sum;
}

double report_noise(const series_column *c, int64_t from, int64_t to) {
    double *d = mem_alloc((size_t)MAX(c->n, 1) * sizeof *d), last = NAN;
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        if (series_row(c, i) < from || series_row(c, i) >= to) continue;
        double v = series_value(c, i);
        if (isfinite(v) && isfinite(last)) d[n++] = fabs(v - last);
        last = v;
    }
    sort_array(d, (size_t)n, sizeof *d, compare_doubles);
    double noise = n ? 1.4826 * d[n / 2] / sqrt(2) : 0; /* of normal noise */
    free(d);
    return noise;
}

/* ---- windows and phases ---------------------------------------------------------------------- */
static void find_windows(run_report *r, const series_column *loss) {
    int64_t size = MAX(REPORT_LEAST_WINDOW, loss->n / REPORT_WINDOWS);
    r->window_rows = size;
    r->window = mem_alloc((size_t)(loss->n / size + 1) * sizeof *r->window);
    for (int64_t from = 0; from < loss->n; from += size) {
        int64_t to = MIN(from + size, loss->n), n = 0;
        double sum = 0;
        if (r->windows && to - from < size / 2) break;
        for (int64_t i = from; i < to; i++)
            if (isfinite(series_value(loss, i))) sum += series_value(loss, i), n++;
        loss_window *w = &r->window[r->windows];
        *w = (loss_window){ .from = series_step(r->all, loss, from),
                            .to = series_step(r->all, loss, to - 1),
                            .mean = n ? sum / (double)n : NAN,
                            .gain = NAN,
                            .error = report_noise(loss, from, to) / sqrt((double)MAX(n, 1)) };
        if (r->windows) w->gain = (w[-1].mean - w->mean) / fabs(w[-1].mean);
        r->windows++;
    }
    r->first_loss = r->window[0].mean;
    r->last_loss = r->window[r->windows - 1].mean;
    r->best_loss = INFINITY;
    for (int i = 0; i < r->windows; i++) r->best_loss = fmin(r->best_loss, r->window[i].mean);
}

static phase_kind phase_kind_of(const loss_window *w) {
    double error = 2 * hypot(w[-1].error, w->error) / fabs(w[-1].mean);
    if (w->gain >= REPORT_FAST_GAIN) return PHASE_FAST;
    if (w->gain >= REPORT_STAGNANT) return PHASE_SLOW;
    return w->gain > -REPORT_STAGNANT - error ? PHASE_STAGNANT : PHASE_RISING;
}

static void find_phases(run_report *r) {
    r->phase = mem_alloc((size_t)r->windows * sizeof *r->phase);
    double before = NAN;
    for (int i = 1; i < r->windows; i++) {
        const loss_window *w = &r->window[i];
        phase_kind kind = phase_kind_of(w);
        loss_phase *p = r->phases ? &r->phase[r->phases - 1] : NULL;
        if (!p || p->kind != kind) {
            p = &r->phase[r->phases++];
            *p = (loss_phase){ .kind = kind, .from = w->from };
            before = w[-1].mean;
        }
        p->to = w->to;
        p->gain = (before - w->mean) / fabs(before);
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */
static void measure_loss(run_report *r) {
    const series_column *loss = series_find(r->all, "loss");
    find_windows(r, loss);
    find_phases(r);
    for (int64_t i = 0; i < loss->n; i++) r->not_finite += !isfinite(series_value(loss, i));
    double error = 4 * sqrt(2) * r->window[r->windows - 1].error;
    r->diverged = !isfinite(r->last_loss) || !isfinite(series_value(loss, loss->n - 1)) ||
                  r->last_loss > r->best_loss + REPORT_DIVERGED * fabs(r->best_loss) + error;
    r->end_loss = series_value(loss, loss->n - 1);
    r->last_val = series_last(r->all, "val_loss");
    r->best_val = report_quantile(series_find(r->all, "val_loss"), 0, 0);
}

static void add_stall(run_report *r, run_stall s) {
    r->stalls++;
    int n = (int)MIN(r->stalls - 1, REPORT_LISTED), least = 0;
    if (n < REPORT_LISTED) {
        r->stall[n] = s;
        return;
    }
    for (int i = 1; i < REPORT_LISTED; i++)
        if (r->stall[i].seconds < r->stall[least].seconds) least = i;
    if (s.seconds <= r->stall[least].seconds) return;
    memmove(&r->stall[least], &r->stall[least + 1],
            (size_t)(REPORT_LISTED - 1 - least) * sizeof(run_stall));
    r->stall[REPORT_LISTED - 1] = s;
}

/* Watts times the seconds of the steps since the value before: there are fewer rows than steps where the series is bounded. */
double report_energy(const series *s) {
    const series_column *power = series_find(s, "gpu_power"), *step = series_find(s, "step_s");
    double joules = 0, before = NAN;
    if (!power || !step) return NAN;
    for (int64_t i = 0; i < power->n; i++) {
        double at = series_step(s, power, i), steps = at > before ? at - before : 1;
        double j = series_value(power, i) * series_in_row(step, series_row(power, i)) * steps;
        if (isfinite(j)) joules += j;
        before = at;
    }
    return joules / 3.6e6;
}

/* The first steps of a process warm up: medians leave them out, and they are not stalls. */
enum { WARM_UP = 3 };

static void measure_run_speed(run_report *r) {
    const series *s = r->all;
    const series_column *tok = series_find(s, "tok_s"), *step = series_find(s, "step_s");
    const series_column *data = series_find(s, "data_s");
    int64_t row = r->rows > 2 * WARM_UP ? WARM_UP : 0;
    r->tok_s = report_quantile(tok, row, 0.5);
    r->tok_s_low = report_quantile(tok, row, 0.05);
    r->tok_s_high = report_quantile(tok, row, 0.95);
    r->mfu = report_quantile(series_find(s, "mfu"), row, 0.5);
    r->peak_share = report_quantile(series_find(s, "peak_share"), row, 0.5);
    r->grad_norm = report_quantile(series_find(s, "grad_norm"), row, 0.5);
    r->step_s = report_quantile(step, row, 0.5);
    r->energy_kwh = report_energy(s);
    r->seconds.step = report_sum(r, "step_s", 0);
    r->seconds.data = report_sum(r, "data_s", 0);
    r->seconds.compute = report_sum(r, "compute_s", 0);
    r->seconds.optim = report_sum(r, "optim_s", 0);
    r->seconds.eval = report_sum(r, "eval_s", 0);
    r->seconds.sample = report_sum(r, "sample_s", 0);
    r->seconds.ckpt = report_sum(r, "ckpt_s", 0);
    for (int64_t i = 0; step && i < step->n; i++) {
        double seconds = series_value(step, i);
        if (series_row(step, i) < WARM_UP || !(seconds > REPORT_STALL * r->step_s)) continue;
        r->stalled_s += seconds - r->step_s;
        add_stall(r, (run_stall){ series_step(s, step, i), seconds,
                                  series_in_row(data, series_row(step, i)) });
    }
}

/* ---- events -------------------------------------------------------------------------------------- */
/* Calls `take` for each line of a file of the run that is a JSON object. A file that does not exist is empty. */
static err each_object(run_report *r, const char *name,
                       void (*take)(run_report *r, const json_t *o)) {
    const char *path = PATH_IN(r->dir, name);
    io_mapping m = { 0 };
    err e = io_exists(path) ? io_map(path, &m) : OK;
    const char *at = (const char *)m.data, *end = at ? at + m.size : NULL;
    while (!e && at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        json_t *o = json_loadb(at, (size_t)((newline ? newline : end) - at), 0, NULL);
        if (json_is_object(o)) take(r, o);
        json_decref(o);
        at = newline ? newline + 1 : end;
    }
    io_unmap(&m);
    return e;
}

static void take_event(run_report *r, const json_t *o) {
    const char *kind = json_string_value(json_object_get(o, "event"));
    const char *message = json_string_value(json_object_get(o, "message"));
    double step = json_number_value(json_object_get(o, "step"));
    if (!kind) return;
    r->events.failure[0] = '\0'; /* something followed it */
    if (!strcmp(kind, "resume")) r->events.resumes++;
    if (!strcmp(kind, "rollback")) {
        r->events.rollbacks++;
        r->events.rollback_step = json_number_value(json_object_get(o, "from_step"));
    }
    if (!strcmp(kind, "alert"))
        report_name_document(r, step, json_array_get(json_object_get(o, "documents"), 0));
    if (strcmp(kind, "failure") && !json_is_true(json_object_get(o, "on_alert"))) return;
    r->events.failure_step = step;
    snprintf(r->events.failure, sizeof r->events.failure, "%s", message ? message : "an error");
}

static void take_attempt(run_report *r, const json_t *o) {
    const json_t *status = json_object_get(o, "status");
    const char *cause = json_string_value(json_object_get(o, "cause"));
    enum { STOPPED = 75 }; /* on request: exits.def */
    if (!json_is_integer(status) || json_integer_value(status) == 0 ||
        json_integer_value(status) == STOPPED)
        return;
    r->events.restarts++;
    snprintf(r->events.restart_cause, sizeof r->events.restart_cause, "%s",
             cause && *cause ? cause : "cause not known");
}

static err analyze_run(run_report *r) {
    TRY(series_update(r->all));
    r->rows = series_rows(r->all);
    if (!r->rows || !series_find(r->all, "loss"))
        return err_hint(ERR("%s has no metrics.jsonl with a step in it", r->dir),
                        "give the folder of a run, such as runs/tiny");
    const series_column *step = series_find(r->all, "step");
    r->first_step = series_value(step, 0);
    r->last_step = series_value(step, r->rows - 1);
    r->tokens = series_in_row(series_find(r->all, "tokens"), r->rows - 1);
    measure_loss(r);
    measure_run_speed(r);
    report_find_spikes(r);
    TRY(each_object(r, "events.jsonl", take_event));
    TRY(each_object(r, "launch.jsonl", take_attempt));
    status_read(r->dir, r->all, &r->status);
    report_find_all(r);
    return OK;
}

err report_read(const char *dir, run_report **out) {
    run_report *r = mem_alloc(sizeof *r);
    r->dir = strdup(dir);
    r->all = series_new(dir);
    err e = analyze_run(r);
    if (e) {
        report_free(r);
        return e;
    }
    *out = r;
    return OK;
}

void report_free(run_report *r) {
    if (!r) return;
    for (int i = 0; i < r->findings; i++) free(r->finding[i].evidence);
    free(r->finding);
    series_free(r->all);
    free(r->window);
    free(r->phase);
    free(r->dir);
    free(r);
}

err report_same_loss(const run_report *const *runs, int n, double tolerance) {
    const series_column *a = series_find(runs[0]->all, "loss");
    for (int k = 1; k < n; k++) {
        const series_column *b = series_find(runs[k]->all, "loss");
        if (a->n != b->n)
            return ERR("%s logged %lld losses, %s %lld", runs[0]->dir, (long long)a->n,
                       runs[k]->dir, (long long)b->n);
        for (int64_t i = 0; i < a->n; i++) {
            double x = series_value(a, i), y = series_value(b, i);
            double step = series_step(runs[0]->all, a, i);
            if (step != series_step(runs[k]->all, b, i))
                return ERR("%s logged step %.0f where %s logged %.0f", runs[0]->dir, step,
                           runs[k]->dir, series_step(runs[k]->all, b, i));
            double apart = x == y ? 0 : fabs(x - y) / fabs(x);
            if (apart <= tolerance || (isnan(x) && isnan(y))) continue;
            return ERR(
                "step %.0f: the loss of %s is %.9g, of %s %.9g; they differ by a factor of 1 + "
                "%.3g, and may by 1 + %g",
                step, runs[0]->dir, x, runs[k]->dir, y, apart, tolerance);
        }
    }
    return OK;
}
