/* Any bytes as the files of a run folder, which form feeds divide: metrics.jsonl, what is appended to it after it was read once,
 * events.jsonl, launch.jsonl and status.json. They are read as `ingot watch`, `ingot report`, `ingot serve` and `ingot data
 * reweigh` read them. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"

enum { METRICS, MORE_METRICS, EVENTS, LAUNCH, STATUS, PARTS };
enum { ROWS = 8, VALUES = 64, POINTS = 5 };

static void append_to(const char *path, const uint8_t *at, size_t n) {
    FILE *f = fopen(path, "ab");
    if (!f || fwrite(at, 1, n, f) != n || fclose(f)) abort();
}

/* Every value by each of the ways to it. */
static void look_at_columns(const series *s) {
    series_point point[POINTS];
    for (int i = 0; i < series_columns(s); i++) {
        const series_column *c = series_at(s, i);
        if (series_find(s, c->name) != c) abort(); /* no name is given twice */
        for (int64_t k = 0; k < c->n; k++) {
            int64_t row = series_row(c, k);
            double value = series_value(c, k), in_row = series_in_row(c, row);
            bool same = value == in_row || (isnan(value) && isnan(in_row));
            if (row < 0 || row >= series_rows(s) || !same) abort();
            if (k > 0 && !(series_step(s, c, k) > series_step(s, c, k - 1))) abort();
        }
        if (series_points(s, c, -INFINITY, INFINITY, POINTS, point) > POINTS) abort();
    }
}

static void follow(const char *path, const uint8_t *more, size_t n) {
    run_status status;
    str screen = { 0 };
    series *s = series_new(fuzz_folder());
    series_set_most(s, ROWS, VALUES);
    err_free(series_update(s));
    look_at_columns(s);
    append_to(path, more, n);
    err_free(series_update(s));
    look_at_columns(s);
    status_read(fuzz_folder(), s, &status);
    json_t *events = status_tail(fuzz_folder(), "events.jsonl", 1 << 12);
    report_draw_screen(&(run_screen){ .name = "run",
                                      .all = s,
                                      .events = events,
                                      .status = &status,
                                      .now = 1e9,
                                      .width = 60,
                                      .height = 30,
                                      .utf8 = true },
                       &screen);
    json_decref(events);
    str_free(&screen);
    series_free(s);
}

static void report_all(void) {
    run_report *r = NULL;
    err e = report_read(fuzz_folder(), &r);
    if (!e) {
        const run_report *const both[] = { r, r };
        for (report_format f = REPORT_TEXT; f <= REPORT_HTML; f++) {
            str text = { 0 };
            report_write(both, 2, f, 60, &text);
            str_free(&text);
        }
        json_decref(report_json(both, 2));
        err_free(report_same_loss(both, 2, 0));
        report_best(both, 2, NULL, NULL);
    }
    report_free(r);
    err_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const names[PARTS] = { "metrics.jsonl", NULL, "events.jsonl", "launch.jsonl",
                                              "status.json" };
    const uint8_t *at[PARTS], *end = data + n, *from = data;
    size_t size[PARTS];
    log_set_level(LOG_ERROR);
    for (int i = 0; i < PARTS; i++) {
        const uint8_t *to =
            i < PARTS - 1 && from < end ? memchr(from, '\f', (size_t)(end - from)) : NULL;
        if (!to) to = end;
        at[i] = from;
        size[i] = (size_t)(to - from);
        from = to < end ? to + 1 : end;
    }
    for (int i = PARTS - 1; i >= 0; i--) /* metrics.jsonl at last: its path is appended to */
        if (names[i]) fuzz_write(names[i], at[i], size[i]);
    char path[256];
    snprintf(path, sizeof path, "%s/metrics.jsonl", fuzz_folder());
    follow(path, at[MORE_METRICS], size[MORE_METRICS]);
    report_all();
    return 0;
}
