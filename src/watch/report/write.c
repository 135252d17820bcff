/* The report as a document, and as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "report_internal.h"

/* ---- a table under construction --------------------------------------------------------------- */
typedef struct cells {
    char **text;
    int n, capacity, columns;
} cells;

static void add_cell(cells *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_cell(cells *c, const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    LIST_ADD(c->text, c->n, c->capacity) = strdup(text);
}
static void add_number_cell(cells *c, const char *fmt, double v) {
    char text[64] = "-";
    if (isfinite(v)) snprintf(text, sizeof text, fmt, v); // NOLINT: one of ours
    add_cell(c, "%s", text);
}
/* Begins a table with its heading, of `columns` texts. */
static cells begin_table(int columns, ...) {
    cells c = { .columns = columns };
    va_list args;
    va_start(args, columns);
    for (int i = 0; i < columns; i++) add_cell(&c, "%s", va_arg(args, const char *));
    va_end(args);
    return c;
}
static void put_table(doc *d, cells *c) {
    doc_table(d, c->text, c->n / c->columns, c->columns);
    for (int i = 0; i < c->n; i++) free(c->text[i]);
    free(c->text);
    *c = (cells){ 0 };
}

/* ---- plots ------------------------------------------------------------------------------------ */
static void plot_column(doc *d, const char *title, const char *column,
                        const run_report *const *runs, int n) {
    int most = d->format == REPORT_HTML ? 700 : MAX(20, d->width - 14), drawn = 0;
    doc_curve *curves = mem_alloc((size_t)n * sizeof *curves);
    series_point *points = mem_alloc((size_t)n * (size_t)most * sizeof *points);
    for (int i = 0; i < n; i++) {
        const series_column *c = series_find(runs[i]->all, column);
        if (!c) continue;
        series_point *own = points + (size_t)drawn * (size_t)most;
        int count = series_points(runs[i]->all, c, -INFINITY, INFINITY, most, own);
        curves[drawn++] = (doc_curve){ runs[i]->dir, own, count };
    }
    if (drawn) doc_plot(d, title, curves, drawn);
    free(points);
    free(curves);
}

static void plot_runs(doc *d, const run_report *const *runs, int n) {
    plot_column(d, "training loss", "loss", runs, n);
    if (d->format != REPORT_HTML) return;
    plot_column(d, "held-out loss", "val_loss", runs, n);
    plot_column(d, "gradient norm", "grad_norm", runs, n);
    plot_column(d, "learning rate", "lr", runs, n);
    plot_column(d, "tokens per second", "tok_s", runs, n);
}

/* ---- one run ---------------------------------------------------------------------------------- */
static const char *const phase_names[] = { [PHASE_FAST] = "fast gain",
                                           [PHASE_SLOW] = "slow gain",
                                           [PHASE_STAGNANT] = "stagnant",
                                           [PHASE_RISING] = "rising" };

static void write_run_status(doc *d, const run_status *s) {
    str line = { 0 };
    status_line(s, &line);
    doc_line(d, "%s", line.text);
    str_free(&line);
    if (*s->cause)
        doc_line(d, "%s: %s%s%s", run_state_names[s->state], s->cause,
                 *s->remedy ? ". Remedy: " : "", s->remedy);
    for (int i = 0; i < s->n_last; i++)
        doc_line(d, "alert in step %lld: %s: %s. Remedy: %s", (long long)s->last[i].step,
                 s->last[i].name, s->last[i].message, s->last[i].remedy);
}

static void write_loss(doc *d, const run_report *r) {
    char a[32];
    bool counted = isfinite(r->tokens); /* a log of another program may have none */
    doc_line(d, "steps %.0f to %.0f%s%s%s; resumes: %d", r->first_step, r->last_step,
             counted ? ", " : "", counted ? str_count(a, sizeof a, r->tokens) : "",
             counted ? " tokens" : "", r->events.resumes);
    doc_line(d, "loss %.4f at first, %.4f at best, %.4f at last (means of %lld steps)%s",
             r->first_loss, r->best_loss, r->last_loss, (long long)r->window_rows,
             r->diverged ? "; it DIVERGED" : "");
    if (isfinite(r->last_val))
        doc_line(d, "held-out loss %.4f at last, %.4f at best; perplexity %.2f", r->last_val,
                 r->best_val, exp(r->last_val));
}

/* ---- the mix that was trained ------------------------------------------------------------------ */
static double last_finite(const series *all, const series_column *c) {
    for (int64_t row = series_rows(all) - 1; c && row >= 0; row--) {
        double v = series_in_row(c, row);
        if (isfinite(v)) return v;
    }
    return NAN;
}

/* A source by its column of tokens, "sources.NAME.tokens". */
typedef struct trained_source {
    char name[128];
    double tokens, loss;
} trained_source;

/* @param at the column to begin with; moved past the one found. @return false: none is left. */
static bool next_source(const run_report *r, int *at, trained_source *out) {
    static const char before[] = "sources.", after[] = ".tokens";
    for (; *at < series_columns(r->all); ++*at) {
        const series_column *c = series_at(r->all, *at);
        if (!str_starts(c->name, before) || !str_ends(c->name, after)) continue;
        int n = (int)(strlen(c->name) - strlen(before) - strlen(after));
        char loss[192];
        snprintf(out->name, sizeof out->name, "%.*s", n, c->name + strlen(before));
        snprintf(loss, sizeof loss, "%s%s.loss", before, out->name);
        out->tokens = last_finite(r->all, c);
        out->loss = last_finite(r->all, series_find(r->all, loss));
        ++*at;
        return true;
    }
    return false;
}

static double all_source_tokens(const run_report *r) {
    trained_source s;
    double sum = 0;
    for (int at = 0; next_source(r, &at, &s);)
        if (isfinite(s.tokens)) sum += s.tokens;
    return sum;
}

static void write_mix(doc *d, const run_report *r) {
    double sum = all_source_tokens(r);
    trained_source s;
    char a[32];
    if (!(sum > 0)) return;
    cells c = begin_table(4, "source", "tokens trained", "share", "last loss");
    for (int at = 0; next_source(r, &at, &s);) {
        add_cell(&c, "%s", s.name);
        add_cell(&c, "%s", str_count(a, sizeof a, s.tokens));
        add_number_cell(&c, "%.2f %%", 100 * s.tokens / sum);
        add_number_cell(&c, "%.4f", s.loss);
    }
    put_table(d, &c);
}

static json_t *mix_json(const run_report *r) {
    double sum = all_source_tokens(r);
    json_t *all = json_object();
    trained_source s;
    for (int at = 0; next_source(r, &at, &s);)
        json_object_set_new(all, s.name,
                            json_pack("{s:o, s:o, s:o}", "tokens", io_json_number(s.tokens),
                                      "share", io_json_number(s.tokens / sum), "loss",
                                      io_json_number(s.loss)));
    return all;
}

static void write_phases(doc *d, const run_report *r) {
    if (!r->phases) {
        doc_line(d, "too short for phases: they take %d steps",
                 REPORT_LEAST_WINDOW + REPORT_LEAST_WINDOW / 2);
        return;
    }
    cells c = begin_table(4, "phase", "from step", "to step", "improvement");
    int first = MAX(0, r->phases - 3 * REPORT_LISTED);
    if (first) doc_line(d, "the last %d of %d phases", 3 * REPORT_LISTED, r->phases);
    for (int i = first; i < r->phases; i++) {
        const loss_phase *p = &r->phase[i];
        add_cell(&c, "%s", phase_names[p->kind]);
        add_cell(&c, "%.0f", p->from);
        add_cell(&c, "%.0f", p->to);
        add_number_cell(&c, "%.2f %%", 100 * p->gain);
    }
    put_table(d, &c);
}

static void write_spikes(doc *d, const run_report *r) {
    int n = (int)MIN(r->spikes, REPORT_LISTED);
    if (!n) {
        doc_line(d, "no spike");
        return;
    }
    doc_line(d, "%lld spikes%s", (long long)r->spikes, r->spikes > n ? "; the highest:" : ":");
    cells c = begin_table(6, "step", "loss", "mean", "deviations", "sequences", "beside it");
    for (int i = 0; i < n; i++) {
        const loss_spike *s = &r->spike[i];
        add_cell(&c, "%.0f", s->step);
        add_cell(&c, "%.4f", s->loss);
        add_cell(&c, "%.4f", s->mean);
        add_number_cell(&c, "%.1f", (s->loss - s->mean) / s->deviation);
        if (isfinite(s->from_sequence))
            add_cell(&c, "%.0f-%.0f", s->from_sequence, s->to_sequence);
        else
            add_cell(&c, "-");
        add_cell(&c, "%s", s->cause);
    }
    put_table(d, &c);
}

static void write_speed(doc *d, const run_report *r) {
    char a[32], b[32], e[32];
    if (!isfinite(r->tok_s)) return;
    doc_line(d, "%s tokens/s (median; %s to %s in 90 %% of steps)",
             str_count(a, sizeof a, r->tok_s), str_count(b, sizeof b, r->tok_s_low),
             str_count(e, sizeof e, r->tok_s_high));
    if (isfinite(r->mfu))
        doc_line(d, "MFU %.1f %%, %.1f %% of the measured peak", 100 * r->mfu, 100 * r->peak_share);
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        { "waiting for data", r->seconds.data }, { "forward and backward", r->seconds.compute },
        { "optimizer", r->seconds.optim },       { "all of the steps", r->seconds.step },
        { "validation", r->seconds.eval },       { "samples", r->seconds.sample },
        { "checkpoints", r->seconds.ckpt }
    };
    double whole = r->seconds.step + r->seconds.eval + r->seconds.sample + r->seconds.ckpt;
    cells c = begin_table(3, "time", "sum", "share");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!(parts[i].seconds > 0)) continue;
        add_cell(&c, "%s", parts[i].name);
        add_cell(&c, "%s", str_duration(a, sizeof a, parts[i].seconds));
        add_cell(&c, "%.1f %%", 100 * parts[i].seconds / whole);
    }
    put_table(d, &c);
    doc_line(d, "cost so far: %.3g device hours", whole / 3600);
    if (isfinite(r->energy_kwh))
        doc_line(d, "energy of the GPU of rank 0: %.3g kWh", r->energy_kwh);
}

static void write_stalls(doc *d, const run_report *r) {
    int n = (int)MIN(r->stalls, REPORT_LISTED);
    if (!n) return;
    doc_line(d, "%lld stalls (a step of over %dx the median), %.1f s in all%s",
             (long long)r->stalls, REPORT_STALL, r->stalled_s,
             r->stalls > n ? "; the longest:" : ":");
    cells c = begin_table(3, "step", "seconds", "of it waiting for data");
    for (int i = 0; i < n; i++) {
        add_cell(&c, "%.0f", r->stall[i].step);
        add_cell(&c, "%.3f", r->stall[i].seconds);
        add_number_cell(&c, "%.3f", r->stall[i].data_seconds);
    }
    put_table(d, &c);
}

static void write_run(doc *d, const run_report *r) {
    doc_heading(d, r->dir);
    write_run_status(d, &r->status);
    write_loss(d, r);
    write_mix(d, r);
    plot_runs(d, &r, 1);
    write_phases(d, r);
    write_spikes(d, r);
    write_speed(d, r);
    write_stalls(d, r);
    if (series_skipped(r->all))
        doc_line(d, "%lld lines of metrics.jsonl are damaged and were left out",
                 (long long)series_skipped(r->all));
    for (int i = 0; i < r->findings; i++)
        doc_line(d, "-> %s: %s. Remedy: %s.", r->finding[i].name, r->finding[i].evidence,
                 r->finding[i].remedy);
    if (!r->findings) doc_line(d, "-> Nothing to improve was found.");
}

/* ---- several ----------------------------------------------------------------------------------- */
/* @return the last held-out loss of a run at no more than these tokens. @param at the tokens that it is of */
static double held_out_at(const run_report *r, double most, double *at) {
    const series_column *val = series_find(r->all, "val_loss"),
                        *tokens = series_find(r->all, "tokens");
    double found = NAN;
    for (int64_t i = 0; val && tokens && i < val->n; i++) {
        double t = series_in_row(tokens, series_row(val, i));
        if (t > most || !isfinite(series_value(val, i))) continue;
        found = series_value(val, i);
        *at = t;
    }
    return found;
}

int report_best(const run_report *const *runs, int n, double *tokens, double *loss) {
    bool any_finished = false, any_val = false;
    double equal = INFINITY, at = NAN, least = INFINITY;
    int best = -1;
    for (int i = 0; i < n; i++) any_finished |= runs[i]->status.state == RUN_FINISHED;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            const run_report *r = runs[i];
            if (any_finished && r->status.state != RUN_FINISHED) continue;
            double v = held_out_at(r, pass ? equal : INFINITY, &at);
            if (pass == 0) {
                any_val |= isfinite(v);
                if (isfinite(v)) equal = fmin(equal, at);
                continue;
            }
            if (!any_val) v = r->end_loss, at = r->tokens;
            if (!(v < least)) continue;
            least = v;
            best = i;
            if (tokens) *tokens = at;
        }
    if (loss) *loss = least;
    return best;
}

static void write_comparison(doc *d, const run_report *const *runs, int n) {
    cells c = begin_table(9, "run", "steps", "tokens", "loss", "held-out", "tok/s", "MFU", "spikes",
                          "time");
    char a[32];
    double at = NAN, loss = NAN;
    int best = report_best(runs, n, &at, &loss);
    doc_heading(d, "Side by side");
    for (int i = 0; i < n; i++) {
        const run_report *r = runs[i];
        add_cell(&c, "%s%s", r->dir, i == best ? " (best)" : "");
        add_cell(&c, "%lld", (long long)r->rows);
        add_cell(&c, "%s", str_count(a, sizeof a, r->tokens));
        add_number_cell(&c, "%.4f", r->end_loss);
        add_number_cell(&c, "%.4f", r->last_val);
        add_cell(&c, "%s", isfinite(r->tok_s) ? str_count(a, sizeof a, r->tok_s) : "-");
        add_number_cell(&c, "%.1f %%", 100 * r->mfu);
        add_cell(&c, "%lld", (long long)r->spikes);
        add_cell(&c, "%s", str_duration(a, sizeof a, r->seconds.step));
    }
    put_table(d, &c);
    if (best >= 0 && n > 1)
        doc_line(d, "best: %s, %s %.4f at %s tokens", runs[best]->dir,
                 isfinite(runs[best]->last_val) ? "held-out loss" : "loss", loss,
                 str_count(a, sizeof a, at));
    plot_runs(d, runs, n);
}

void report_compare(const run_report *const *runs, int n, report_format format, int width,
                    str *out) {
    doc d = { format, width, out };
    doc_begin(&d, "Runs");
    write_comparison(&d, runs, n);
    doc_end(&d);
}

void report_write(const run_report *const *runs, int n, report_format format, int width, str *out) {
    doc d = { format, width, out };
    doc_begin(&d, n == 1 ? runs[0]->dir : "Runs");
    for (int i = 0; i < n; i++) {
        write_run(&d, runs[i]);
        if (i + 1 < n && format == REPORT_TEXT) str_add(out, "\n");
    }
    if (n > 1) write_comparison(&d, runs, n);
    doc_end(&d);
}

/* ---- JSON -------------------------------------------------------------------------------------- */
static json_t *spikes_json(const run_report *r) {
    json_t *list = json_array();
    for (int i = 0; i < (int)MIN(r->spikes, REPORT_LISTED); i++) {
        const loss_spike *s = &r->spike[i];
        json_array_append_new(
            list, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "step", io_json_number(s->step),
                            "loss", io_json_number(s->loss), "mean", io_json_number(s->mean),
                            "deviation", io_json_number(s->deviation), "from_sequence",
                            io_json_number(s->from_sequence), "to_sequence",
                            io_json_number(s->to_sequence), "beside", s->cause));
    }
    return list;
}

static json_t *phases_json(const run_report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->phases; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:o, s:o}", "phase", phase_names[r->phase[i].kind], "from",
                            io_json_number(r->phase[i].from), "to", io_json_number(r->phase[i].to),
                            "improvement", io_json_number(r->phase[i].gain)));
    return list;
}

static json_t *run_json(const run_report *r) {
    json_t *o = json_object(), *findings = json_array();
    const struct {
        const char *key;
        double v;
    } numbers[] = { { "steps", (double)r->rows },
                    { "tokens", r->tokens },
                    { "first_loss", r->first_loss },
                    { "best_loss", r->best_loss },
                    { "last_loss", r->last_loss },
                    { "val_loss", r->last_val },
                    { "best_val_loss", r->best_val },
                    { "spikes", (double)r->spikes },
                    { "not_finite", (double)r->not_finite },
                    { "tok_s", r->tok_s },
                    { "mfu", r->mfu },
                    { "stalls", (double)r->stalls },
                    { "stalled_s", r->stalled_s },
                    { "step_s", r->seconds.step },
                    { "data_s", r->seconds.data },
                    { "eval_s", r->seconds.eval },
                    { "ckpt_s", r->seconds.ckpt },
                    { "energy_kwh", r->energy_kwh },
                    { "resumes", r->events.resumes } };
    json_object_set_new(o, "run", io_json_string(r->dir, strlen(r->dir)));
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        json_object_set_new(o, numbers[i].key, io_json_number(numbers[i].v));
    json_object_set_new(o, "status", status_json(&r->status));
    json_object_set_new(o, "diverged", json_boolean(r->diverged));
    json_object_set_new(o, "sources", mix_json(r));
    json_object_set_new(o, "phases", phases_json(r));
    json_object_set_new(o, "highest_spikes", spikes_json(r));
    for (int i = 0; i < r->findings; i++)
        json_array_append_new(findings,
                              json_pack("{s:s, s:s, s:s}", "name", r->finding[i].name, "evidence",
                                        r->finding[i].evidence, "remedy", r->finding[i].remedy));
    json_object_set_new(o, "findings", findings);
    return o;
}

json_t *report_json(const run_report *const *runs, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, run_json(runs[i]));
    return list;
}
