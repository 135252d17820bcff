/* A metric of a run as CSV, every step, made in parts as the peer takes them: while a run of a million steps is downloaded, other
 * requests are answered between the parts, and memory holds one of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve_internal.h"

struct csv_parts {
    series *all;
    char *name;
};

csv_parts *csv_open(const char *dir, const char *name, str *head) {
    csv_parts *c = mem_alloc(sizeof *c);
    c->name = strdup(name);
    c->all = series_new(dir);
    series_set_only(c->all, c->name);
    str_add(head, "step,\"");
    for (const char *at = name; *at; at++) str_add(head, *at == '"' ? "\"\"" : "%c", *at);
    str_add(head, "\"\n");
    return c;
}

/* Whole numbers have all their digits. */
static void add_csv_value(str *out, double v) {
    if (!isfinite(v)) return;
    if (fabs(v) >= 1e9 && fabs(v) < 9e15 && v == floor(v))
        str_add(out, "%.0f", v);
    else
        str_add_json_number(out, v);
}

err csv_next(csv_parts *c, str *out, bool *more) {
    TRY(series_next_part(c->all, more));
    const series_column *step = series_find(c->all, "step"), *values = series_find(c->all, c->name);
    for (int64_t i = 0; values && i < values->n; i++) {
        add_csv_value(out, series_value(step, series_row(values, i)));
        str_add_bytes(out, ",", 1);
        add_csv_value(out, series_value(values, i));
        str_add_bytes(out, "\n", 1);
    }
    return OK;
}

void csv_free(csv_parts *c) {
    if (!c) return;
    series_free(c->all);
    free(c->name);
    free(c);
}
