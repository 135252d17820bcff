/* A run on a terminal:
 *
 *     runs/tiny  running: step 1200 of 5000 (24 %), 3 M of 12 M tokens, 2 h left              status
 *     step 1200  loss 2.31  held-out 2.40  lr 3e-4  12.3 k tok/s  MFU 41 %      headline
 *         loss   4.2 | ..                                                                  curves
 *                    |   ''--....___
 *     time per step  data 1 %  compute 80 %  waits 12 %  optimizer 7 %                      breakdown
 *     ranks          0 ....#...                                                             ranks
 *     alerts         step 900: loss_spike ...                                               alerts
 *
 * Lines are made one by one, each cut to the width in columns, not bytes; the state, its cause and alerts continue below where the
 * screen is high enough. A screen that is too low loses the second curve first, then ranks, then the breakdown. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_internal.h"

enum { LABEL = 15 }; /* columns before a section's content */
#define red      "\033[31m"
#define green    "\033[32m"
#define yellow   "\033[33m"
#define dim_text "\033[2m"
static const char *const dim = dim_text, *const bold = "\033[1m", *const no_color = "\033[0m";

/* ---- a line ---------------------------------------------------------------------------------------- */
typedef struct screen_line {
    const run_screen *s;
    str *out;
    int columns; /* so far */
} screen_line;

static void add_color(screen_line *l, const char *escape) {
    if (l->s->color) str_add(l->out, "%s", escape);
}

/* Text of any origin: no control characters, and no more columns than fit. */
static void add_columns(screen_line *l, const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        int n = *at < 0x80 ? 1 : *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : 2;
        if (l->columns >= l->s->width) return;
        bool plain = n == 1 ? *at >= ' ' && *at != 127 : l->s->utf8;
        for (int i = 1; i < n && plain; i++) plain = (at[i] & 0xc0) == 0x80;
        if (plain)
            str_add_bytes(l->out, (const char *)at, (size_t)n);
        else
            str_add(l->out, "?");
        l->columns++;
        if (!plain) n = 1;
        while (n-- && *at) at++;
    }
}

static void add_text(screen_line *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_text(screen_line *l, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_columns(l, text);
}

static screen_line begin_screen_line(const run_screen *s, str *out, const char *label) {
    screen_line l = { s, out, 0 };
    add_color(&l, dim);
    if (label) add_text(&l, "%-*s", LABEL, label);
    add_color(&l, no_color);
    return l;
}

static void end_screen_line(const screen_line *l) { str_add(l->out, "\n"); }

/* @return the bytes of a text that fit into `columns`, to the end of a part or a word. 0: there is no such end */
static int fitting_part(const char *text, int columns) {
    int word = 0, part = 0;
    for (int i = 1; i <= columns; i++) {
        if (text[i] != ' ') continue;
        word = i;
        if (strchr(",;", text[i - 1])) part = i;
    }
    return 2 * part > columns ? part : word;
}

/* Text that continues in up to `most` lines below. @return how many it took */
static int add_wrapped(screen_line *l, const char *color, const char *text, int most) {
    int more = 0;
    add_color(l, color);
    for (; more < most && (int)strlen(text) > l->s->width - l->columns; more++) {
        int n = fitting_part(text, l->s->width - l->columns);
        if (n == 0) break;
        add_text(l, "%.*s", n, text);
        add_color(l, no_color);
        end_screen_line(l);
        *l = begin_screen_line(l->s, l->out, "");
        add_color(l, color);
        text += n + 1;
    }
    add_columns(l, text);
    add_color(l, no_color);
    return more;
}

/* ---- values ----------------------------------------------------------------------------------------- */
/* @return the mean of the last values, at most `most` of them. */
static double recent_mean(const run_screen *s, const char *name, int64_t most) {
    const series_column *c = series_find(s->all, name);
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = c ? MAX(0, c->n - most) : 0; c && i < c->n; i++)
        if (isfinite(series_value(c, i))) sum += series_value(c, i), n++;
    return n ? sum / (double)n : NAN;
}

/* @param most lines below the first @return lines drawn below it */
static int draw_status(const run_screen *s, int most, str *out) {
    static const char *const colors[RUN_STATE_COUNT] = { [RUN_UNKNOWN] = dim_text,
                                                         [RUN_RUNNING] = green,
                                                         [RUN_FINISHED] = green,
                                                         [RUN_STOPPED] = yellow,
                                                         [RUN_DIED] = red };
    screen_line l = begin_screen_line(s, out, NULL);
    str text = { 0 };
    add_color(&l, bold);
    add_text(&l, "%s  ", s->name);
    add_color(&l, no_color);
    status_line(s->status, &text);
    int more = add_wrapped(&l, colors[s->status->state], text.text, most);
    end_screen_line(&l);
    str_free(&text);
    return more;
}

/* @return lines drawn, at most `most`. */
static int draw_cause(const run_screen *s, int most, str *out) {
    if (!*s->status->cause) return 0;
    screen_line l = begin_screen_line(s, out, run_state_names[s->status->state]);
    str text = { 0 };
    str_add(&text, *s->status->remedy ? "%s; %s" : "%s", s->status->cause, s->status->remedy);
    int more = add_wrapped(&l, red, text.text, most - 1);
    end_screen_line(&l);
    str_free(&text);
    return 1 + more;
}

static void draw_headline(const run_screen *s, str *out) {
    char a[32];
    double val = series_last(s->all, "val_loss"), mfu = series_last(s->all, "mfu"),
           time = series_last(s->all, "time");
    screen_line l = begin_screen_line(s, out, NULL);
    if (!series_rows(s->all)) {
        add_text(&l, "no steps yet");
        end_screen_line(&l);
        return;
    }
    add_text(&l, "loss %.4f", series_last(s->all, "loss"));
    if (isfinite(val)) add_text(&l, "  held-out %.4f", val);
    add_text(&l, "  lr %.2e", series_last(s->all, "lr"));
    add_text(&l, "  %s tok/s", str_count(a, sizeof a, recent_mean(s, "tok_s", 20)));
    if (isfinite(mfu)) add_text(&l, "  MFU %.1f %%", 100 * recent_mean(s, "mfu", 20));
    if (s->status->state == RUN_RUNNING && s->now - time > 30) {
        add_color(&l, yellow);
        add_text(&l, "  last step %s ago", str_duration(a, sizeof a, s->now - time));
        add_color(&l, no_color);
    }
    end_screen_line(&l);
}

/* ---- curves: dots of braille, two by four in a character, or one per character ------------------------ */
typedef struct dot_grid {
    unsigned char *bits;             /* [rows][columns] */
    int rows, columns, across, down; /* characters; dots in one */
} dot_grid;

static void plot_points(const dot_grid *g, const series_point *p, int n, double low, double high) {
    static const unsigned char braille[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    int wide = g->columns * g->across, tall = g->rows * g->down;
    for (int i = 0; i < n; i++) {
        if (!p[i].n) continue;
        int x = n > 1 ? (int)((int64_t)i * (wide - 1) / (n - 1)) : 0;
        int y = (int)((high - p[i].mean) / (high - low) * (tall - 1) + 0.5);
        y = MAX(0, MIN(tall - 1, y));
        g->bits[y / g->down * g->columns + x / g->across] |=
            g->across == 2 ? braille[y % 4][x % 2] : 1;
    }
}

static void draw_grid_row(const run_screen *s, const dot_grid *g, int row, const char *label,
                          double value, str *out) {
    screen_line l = begin_screen_line(s, out, NULL);
    add_color(&l, dim);
    add_text(&l, "%-5.5s%9.4g |", row == 0 ? label : "", value);
    add_color(&l, no_color);
    add_color(&l, green);
    for (int c = 0; c < g->columns; c++) {
        unsigned char bits = g->bits[row * g->columns + c];
        char dots[4] = { (char)0xe2, (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 63)), 0 };
        add_columns(&l, s->utf8 ? dots : bits ? "*" : " ");
    }
    add_color(&l, no_color);
    end_screen_line(&l);
}

/* @return whether there was something to draw. */
static bool draw_curve(const run_screen *s, const char *label, const char *name, int rows,
                       str *out) {
    const series_column *c = series_find(s->all, name);
    int columns = s->width - LABEL - 1;
    if (!c || !c->n || rows < 2 || columns < 8) return false;
    dot_grid g = { NULL, rows, columns, s->utf8 ? 2 : 1, s->utf8 ? 4 : 1 };
    int most = columns * g.across;
    series_point *p = mem_alloc((size_t)most * sizeof *p);
    int n = series_points(s->all, c, -INFINITY, INFINITY, most, p);
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < n; i++)
        if (p[i].n) low = fmin(low, p[i].mean), high = fmax(high, p[i].mean);
    if (isfinite(low)) {
        if (!(high > low)) high = low + 1e-9 + fabs(low) * 1e-3;
        g.bits = mem_alloc((size_t)(rows * columns));
        plot_points(&g, p, n, low, high);
        for (int r = 0; r < rows; r++)
            draw_grid_row(s, &g, r, label, high - (high - low) * r / (rows - 1), out);
        free(g.bits);
    }
    free(p);
    return isfinite(low);
}

/* ---- where the time goes ----------------------------------------------------------------------------- */
static void draw_breakdown(const run_screen *s, str *out) {
    enum { STEPS = 50 };
    double step = recent_mean(s, "step_s", STEPS), data = recent_mean(s, "data_s", STEPS);
    double wait = recent_mean(s, "ranks.wait_s.0", 5), compute = recent_mean(s, "compute_s", STEPS);
    double optim = recent_mean(s, "optim_s", STEPS);
    screen_line l = begin_screen_line(s, out, "time per step");
    if (!(step > 0)) {
        end_screen_line(&l);
        return;
    }
    if (isfinite(wait) && isfinite(compute)) compute = fmax(0, compute - wait);
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        { "data", data }, { "compute", compute }, { "waits", wait }, { "optimizer", optim }
    };
    /* Waits are measured over other steps than the rest, so that the sum may exceed the whole; what is printed adds up
     * to 100.0. */
    double sum = 0, shown = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) sum += fmax(0, parts[i].seconds);
    double whole = fmax(step, sum);
    add_text(&l, "%.4g s:", step);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!isfinite(parts[i].seconds)) continue;
        double share = fmin(round(1000 * fmax(0, parts[i].seconds) / whole) / 10, 100 - shown);
        shown += share;
        add_text(&l, "  %s %.1f %%", parts[i].name, share);
    }
    add_text(&l, "  other %.1f %%", fmax(0, 100 - shown));
    end_screen_line(&l);
}

/* ---- ranks -------------------------------------------------------------------------------------------- */
static int count_ranks(const run_screen *s) {
    int n = 0;
    char name[48];
    do snprintf(name, sizeof name, "ranks.ratio.%d", n);
    while (series_find(s->all, name) && ++n < 1024);
    return n;
}

static double rank_ratio(const run_screen *s, int rank) {
    char name[48];
    snprintf(name, sizeof name, "ranks.ratio.%d", rank);
    return series_last(s->all, name);
}

/* Draws a character per rank: as fast as the others, slower, a straggler. @return lines drawn. */
static int draw_ranks(const run_screen *s, int ranks, int most, str *out) {
    int each = MAX(1, s->width - LABEL - 6), drawn = 0;
    for (int from = 0; from < ranks && drawn < most; from += each, drawn++) {
        screen_line l = begin_screen_line(s, out, drawn ? "" : "ranks");
        add_text(&l, "%4d ", from);
        for (int r = from; r < MIN(ranks, from + each); r++) {
            double ratio = rank_ratio(s, r);
            add_color(&l, ratio >= 1.2 ? red : ratio >= 1.1 ? yellow : green);
            add_columns(&l, ratio >= 1.2 ? "#" : ratio >= 1.1 ? "+" : isfinite(ratio) ? "." : "?");
            add_color(&l, no_color);
        }
        end_screen_line(&l);
    }
    return drawn;
}

static void draw_slowest(const run_screen *s, int ranks, str *out) {
    char busy[48], wait[48];
    int slowest = 0;
    for (int r = 1; r < ranks; r++)
        if (rank_ratio(s, r) > rank_ratio(s, slowest)) slowest = r;
    snprintf(busy, sizeof busy, "ranks.busy_s.%d", slowest);
    snprintf(wait, sizeof wait, "ranks.wait_s.%d", slowest);
    screen_line l = begin_screen_line(s, out, "");
    add_text(&l, "slowest: rank %d, %.2f of the median; computes %.4g s and waits %.4g s per step",
             slowest, rank_ratio(s, slowest), series_last(s->all, busy), series_last(s->all, wait));
    end_screen_line(&l);
}

/* ---- alerts ------------------------------------------------------------------------------------------- */
/* Draws the last alerts, newest first. @return lines drawn. */
static int draw_alerts(const run_screen *s, int most, str *out) {
    int drawn = 0;
    for (size_t i = json_array_size(s->events); i-- > 0 && drawn < most;) {
        const json_t *e = json_array_get(s->events, i);
        const char *kind = json_string_value(json_object_get(e, "event"));
        if (!kind || (strcmp(kind, "alert") && strcmp(kind, "failure"))) continue;
        const char *name = json_string_value(json_object_get(e, "alert"));
        const char *text = json_string_value(json_object_get(e, "message"));
        const char *remedy = json_string_value(json_object_get(e, "remedy"));
        str all = { 0 };
        screen_line l = begin_screen_line(s, out, drawn++ ? "" : "alerts");
        str_add(&all, "step %lld: %s: %s%s%s",
                (long long)json_integer_value(json_object_get(e, "step")), name ? name : "failure",
                text ? text : "", remedy ? "; " : "", remedy ? remedy : "");
        drawn += add_wrapped(&l, red, all.text, MIN(1, most - drawn));
        str_free(&all);
        end_screen_line(&l);
    }
    if (drawn || !most) return drawn;
    screen_line l = begin_screen_line(s, out, "alerts");
    add_text(&l, "none");
    end_screen_line(&l);
    return 1;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */
void report_draw_screen(const run_screen *s, str *out) {
    int ranks = count_ranks(s), left = s->height - 1; /* lines below the first */
    size_t from = out->len;
    left -= draw_status(s, left >= 8 ? 2 : 0, out);
    if (left > 0) draw_headline(s, out), left--;
    if (left >= 5) left -= draw_cause(s, left >= 12 ? 4 : 1, out);
    bool breakdown = left >= 4, has_ranks = ranks > 0 && left >= 8;
    int rank_lines = has_ranks ? MIN(3, (ranks - 1) / MAX(1, s->width - LABEL - 6) + 1) : 0;
    int alerts = left >= 6 ? MIN(4, 1 + left / 10) : 0;
    int curves = left - breakdown - rank_lines - has_ranks - alerts;
    int second = curves >= 12 ? curves / 3 : 0;
    draw_curve(s, "loss", "loss", curves - second, out);
    if (second) draw_curve(s, "norm", "grad_norm", second, out);
    if (breakdown) draw_breakdown(s, out);
    if (has_ranks) {
        draw_ranks(s, ranks, rank_lines, out);
        draw_slowest(s, ranks, out);
    }
    if (alerts) draw_alerts(s, alerts, out);
    int lines = 0;
    for (size_t i = from; i < out->len; i++) lines += out->text[i] == '\n';
    for (; lines < s->height; lines++) str_add(out, "\n");
}
