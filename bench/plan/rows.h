/* Published speeds beside simulated ones: reads bench/plan/rows.txt, simulates each row and sums up errors. Used by
 * bench/plan/rows, which prints all of them, and by test_rows, which holds both halves to their bars.
 *
 * Constants of the planner (planning/roofline.c, planning/systems.c) are chosen by the rows of the calibration half
 * alone. A hash of a row's name decides which half it belongs to, so that no one chooses. */
#ifndef INGOT_BENCH_PLAN_ROWS_H
#define INGOT_BENCH_PLAN_ROWS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "planning/planning.h"

typedef enum { MEASURE_TOKENS, MEASURE_SECONDS, MEASURE_TFLOPS, MEASURE_MFU } row_measure;
enum { ROW_SETTINGS = 40, MOST_DEFINES = 64 };

typedef struct published_row {
    const char *name, *source, *gpu, *as; /* of the file's text; as NULL: our own step */
    int ranks;
    row_measure measure;
    double published;
    char *settings; /* owned: "key=value key=value" */
    bool reported;  /* in the half that nothing is fitted to */
    /* after rows_simulate: */
    double simulated, off; /* in the published unit; speed relative to the published one, minus 1 */
    double memory, limit;  /* bytes of a rank, and of the accelerator */
    step_time time;
} published_row;

typedef struct published_rows {
    char *text;
    published_row *row;
    int n, cap;
    hardware catalogue;
    struct {
        const char *name, *settings;
    } define[MOST_DEFINES];
    int defines;
    const char *source[MOST_DEFINES]; /* their keys */
    int sources;
} published_rows;

/* FNV-1a; its lowest bit decides. */
static inline bool row_is_reported(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    return (h ^ h >> 16) & 1;
}

static inline char *row_field(char **rest) {
    char *at = *rest, *end = at ? strchr(at, '|') : NULL;
    if (!at) return NULL;
    *rest = end ? end + 1 : NULL;
    if (!end) end = at + strlen(at);
    while (*at == ' ') at++;
    while (end > at && end[-1] == ' ') end--;
    *end = '\0';
    return at;
}

static inline err expand_settings(const published_rows *p, const char *from, str *out) {
    while (*from) {
        size_t n = strcspn(from, " ");
        const char *found = NULL;
        for (int i = 0; i < p->defines && *from == '@'; i++)
            if (strlen(p->define[i].name) == n - 1 && !memcmp(p->define[i].name, from + 1, n - 1))
                found = p->define[i].settings;
        if (*from == '@' && !found) return ERR("rows: \"%.*s\" is not defined", (int)n, from);
        if (n)
            str_add(out, "%s%.*s", out->len ? " " : "", found ? (int)strlen(found) : (int)n,
                    found ? found : from);
        from += n;
        from += strspn(from, " ");
    }
    return OK;
}

static inline err read_row(published_rows *p, char *line) {
    static const char *const measures[] = { "tokens ", "seconds ", "tflops ", "mfu " };
    char *f[7];
    published_row r = { 0 };
    str settings = { 0 };
    for (int i = 0; i < 7; i++)
        if (!(f[i] = row_field(&line)))
            return ERR("rows: a row has %d fields, expected 7: %s", i, f[0]);
    r.name = f[0];
    r.source = f[1];
    r.gpu = f[2];
    r.ranks = atoi(f[3]);
    r.as = strcmp(f[4], "-") ? f[4] : NULL;
    size_t k = 0;
    while (k < COUNT_OF(measures) && strncmp(f[5], measures[k], strlen(measures[k])) != 0) k++;
    if (k == COUNT_OF(measures)) return ERR("rows: %s: \"%s\" is not a measure", r.name, f[5]);
    r.measure = (row_measure)k;
    bool known = false;
    for (int i = 0; i < p->sources; i++) known |= !strcmp(p->source[i], r.source);
    if (!known) return ERR("rows: %s: no line says what the source \"%s\" is", r.name, r.source);
    r.published = atof(f[5] + strlen(measures[k]));
    if (r.ranks < 1 || !(r.published > 0)) return ERR("rows: %s: ranks or figure missing", r.name);
    TRY(expand_settings(p, f[6], &settings));
    r.settings = settings.text;
    r.reported = row_is_reported(r.name);
    p->row = mem_reserve(p->row, &p->cap, p->n, sizeof *p->row);
    p->row[p->n++] = r;
    return OK;
}

/* @param folder bench/plan. @param out rows_close */
static inline err rows_open(const char *folder, published_rows *out) {
    char path[4096], *line, *rest;
    size_t len;
    *out = (published_rows){ 0 };
    snprintf(path, sizeof path, "%s/clusters.yaml", folder);
    TRY(hardware_open(path, &out->catalogue));
    snprintf(path, sizeof path, "%s/rows.txt", folder);
    TRY(io_read(path, 1 << 24, &out->text, &len));
    for (rest = out->text; (line = strsep(&rest, "\n"));) {
        bool source = !strncmp(line, "source ", 7);
        if (!*line || *line == '#') continue;
        if (!source && strncmp(line, "define ", 7) != 0) {
            TRY(read_row(out, line));
            continue;
        }
        if (out->defines == MOST_DEFINES || out->sources == MOST_DEFINES)
            return ERR("rows: more than %d definitions", MOST_DEFINES);
        char *name = line + 7, *settings = strchr(name, ' ');
        if (!settings) return ERR("rows: %s: nothing after its name", line);
        *settings++ = '\0';
        if (source) {
            out->source[out->sources++] = name;
            continue;
        }
        out->define[out->defines].name = name;
        out->define[out->defines++].settings = settings;
    }
    return OK;
}

static inline void rows_close(published_rows *p) {
    for (int i = 0; i < p->n; i++) free(p->row[i].settings);
    free(p->row);
    free(p->text);
    hardware_free(&p->catalogue);
}

static inline err apply_settings(const char *settings, config *c) {
    char *copy = strdup(settings), *rest = copy, *one;
    err e = OK;
    while (!e && (one = strsep(&rest, " "))) {
        char *value = strchr(one, '=');
        if (!value) continue;
        *value++ = '\0';
        e = config_set(c, one, value);
    }
    free(copy);
    return e;
}

/* The published figures of the simulated step. */
static inline double row_speed(const published_row *r, const step_time *t, double peak) {
    switch (r->measure) {
    case MEASURE_TOKENS: return t->tokens_per_second / r->ranks;
    case MEASURE_SECONDS: return t->seconds;
    case MEASURE_TFLOPS: return t->flops_counted / 1e12;
    case MEASURE_MFU: return 100 * t->flops_counted / peak;
    }
    return NAN;
}

static inline err simulate_row(const published_rows *p, published_row *r) {
    config c;
    const accelerator *gpu;
    run_target on = { .ranks = r->ranks };
    double peak = NAN;
    capacity cap;
    config_init(&c);
    err e = config_set(&c, "optimizer.name", "adamw"); /* as all of the systems */
    if (!e) e = apply_settings(r->settings, &c);
    if (!e) e = hardware_find(&p->catalogue, r->gpu, &gpu);
    if (!e && r->as) e = other_system_find(r->as, &on.as);
    if (!e) e = plan_target_accelerator(gpu, &c, &on, &r->limit);
    if (!e) e = hardware_find_peak(gpu, hardware_fastest_type(gpu), &peak);
    if (!e) e = step_simulate(&c, &on, gpu, NULL, &r->time);
    if (!e) e = capacity_of(&c, &on, &cap);
    if (!e) {
        r->memory = cap.total;
        r->simulated = row_speed(r, &r->time, peak);
        r->off = (r->measure == MEASURE_SECONDS ? r->published / r->simulated
                                                : r->simulated / r->published) -
                 1;
    }
    config_free(&c);
    return e;
}

/* Prints the rows that are refused. @return how many. */
static inline int rows_simulate(published_rows *p) {
    int refused = 0;
    for (int i = 0; i < p->n; i++) {
        err e = simulate_row(p, &p->row[i]);
        if (!e) continue;
        fprintf(stderr, "%s:\n", p->row[i].name);
        err_print(stderr, e, false);
        err_free(e);
        p->row[i].off = NAN;
        refused++;
    }
    return refused;
}

static const char *const row_units[] = { "tok/s", "s", "TFLOP/s", "% MFU" };

/* ---- sums --------------------------------------------------------------------------------------- */
typedef struct rows_summary {
    int n, within_15, within_25;
    double median, worst; /* of absolute errors, as shares */
    int pairs,
        in_order; /* of two layouts of one model on one cluster whose speeds differ by more than 1 % */
    int fits;     /* rows whose memory fits */
} rows_summary;

static inline int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Two releases of a system that ran one layout are not two layouts. */
static inline bool same_layout(const published_row *a, const published_row *b) {
    return !strcmp(a->settings, b->settings) && !strcmp(a->as ? a->as : "", b->as ? b->as : "");
}

/* The settings that make the model, its sequences and its precision. */
static inline bool same_model(const published_row *a, const published_row *b) {
    static const char *const keys[] = { "model.", "training.seq_len=", "precision." };
    char *copy = strdup(a->settings), *rest = copy, *one;
    bool same = !strcmp(a->gpu, b->gpu) && a->ranks == b->ranks;
    while (same && (one = strsep(&rest, " ")))
        for (size_t k = 0; k < COUNT_OF(keys); k++)
            if (!strncmp(one, keys[k], strlen(keys[k]))) {
                const char *at = strstr(b->settings, one);
                same &= at && (at[strlen(one)] == ' ' || !at[strlen(one)]);
            }
    free(copy);
    return same && (!strstr(a->settings, "precision.fp8") == !strstr(b->settings, "precision.fp8"));
}

static inline double tokens_of(const published_row *r, bool published) {
    double own = r->time.tokens_per_second;
    return published ? own / (1 + r->off) : own;
}

/* @param source NULL: of all. Pairs count where their first row is in the half. */
static inline rows_summary rows_sum(const published_rows *p, bool reported, const char *source) {
    rows_summary s = { 0 };
    double *off = mem_alloc((size_t)(p->n + 1) * sizeof *off);
    for (int i = 0; i < p->n; i++) {
        const published_row *a = &p->row[i];
        if (a->reported != reported || (source && strcmp(a->source, source) != 0) || isnan(a->off))
            continue;
        off[s.n++] = fabs(a->off);
        s.within_15 += fabs(a->off) <= 0.15;
        s.within_25 += fabs(a->off) <= 0.25;
        s.worst = MAX(s.worst, fabs(a->off));
        s.fits += a->memory <= a->limit;
        for (int k = 0; k < p->n; k++) {
            const published_row *b = &p->row[k];
            if (k == i || (k < i && b->reported == reported) || !same_model(a, b) ||
                same_layout(a, b) || isnan(b->off))
                continue;
            double was = tokens_of(a, true) / tokens_of(b, true);
            if (fabs(was - 1) <= 0.01) continue;
            s.pairs++;
            s.in_order += (was > 1) == (tokens_of(a, false) > tokens_of(b, false));
        }
    }
    qsort(off, (size_t)s.n, sizeof *off, by_size);
    s.median = s.n ? off[s.n / 2] : 0;
    free(off);
    return s;
}

/* ---- tables of docs/planning.md ------------------------------------------------------------------- */
enum { ROW_LINE = 256 };

static inline void row_line(const published_row *r, char line[ROW_LINE]) {
    snprintf(line, ROW_LINE, "| %s | %.5g %s | %.5g | %+.1f %%%s |", r->name, r->simulated,
             row_units[r->measure], r->published, 100 * r->off, r->reported ? "" : " *");
}

static inline void half_line(const published_rows *p, bool reported, char line[ROW_LINE]) {
    rows_summary s = rows_sum(p, reported, NULL);
    snprintf(line, ROW_LINE, "| %s half | %d | %.1f %% | %.0f %% | %.0f %% | %d of %d |",
             reported ? "reported" : "calibration", s.n, 100 * s.median, 100.0 * s.within_15 / s.n,
             100.0 * s.within_25 / s.n, s.in_order, s.pairs);
}

static inline void source_line(const published_rows *p, const char *source, char line[ROW_LINE]) {
    char text[2][64] = { "-", "-" };
    rows_summary s[2];
    for (int reported = 0; reported < 2; reported++) {
        s[reported] = rows_sum(p, reported, source);
        if (s[reported].n)
            snprintf(text[reported], sizeof text[0], "%.1f %%, %.1f %%", 100 * s[reported].median,
                     100 * s[reported].worst);
    }
    snprintf(line, ROW_LINE, "| %s | %d + %d | %s | %s |", source, s[1].n, s[0].n, text[1],
             text[0]);
}

#endif
