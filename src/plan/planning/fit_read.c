/* Finished runs as points for a fit: run folders, and tables in CSV. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

enum { MOST_BYTES = 1 << 30 };

static void add_fit_run(fit_run **runs, int *n, fit_run r, const char *name) {
    *runs = mem_grow(*runs, sizeof **runs * (size_t)(*n + 1));
    r.name = mem_alloc(strlen(name) + 1);
    strcpy(r.name, name);
    (*runs)[(*n)++] = r;
}

void fit_runs_free(fit_run *runs, int n) {
    for (int i = 0; i < n; i++) free(runs[i].name);
    free(runs);
}

/* Parameters as scaling laws count them: those of the model that RUN/config.yaml describes. */
static err read_params(const char *path, double *params) {
    config c;
    model_config m;
    config_init(&c);
    err e = config_load(&c, path);
    if (!e) e = model_from_config(&c, &m);
    if (!e) *params = (double)model_count(&m);
    config_free(&c);
    return e;
}

/* The last line's tokens, and its held-out loss if a line has one; else the mean training loss of the
 * last tenth, since a single step's is noise. */
static err read_metrics(char *text, const char *path, double *tokens, double *loss) {
    double held_out = NAN, sum = 0;
    int lines = 0, number = 0, counted = 0;
    char *next = NULL;
    for (const char *at = text; (at = strchr(at, '\n')); at++) lines++;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = NULL;
        number++;
        TRY(io_json_parse(line, strlen(line), path, &o));
        const json_t *t = json_object_get(o, "tokens"), *v = json_object_get(o, "val_loss");
        if (json_is_number(t)) *tokens = json_number_value(t);
        if (json_is_number(v)) held_out = json_number_value(v);
        if (10 * (number - 1) >= 9 * lines - 10 && json_is_number(json_object_get(o, "loss"))) {
            sum += json_number_value(json_object_get(o, "loss"));
            counted++;
        }
        json_decref(o);
    }
    *loss = isnan(held_out) && counted ? sum / counted : held_out;
    if (*tokens > 0 && *loss > 0) return OK;
    return err_hint(ERR("%s: no line has tokens and a loss", path), "is the run finished?");
}

static err read_folder(const char *folder, fit_run **runs, int *n) {
    const char *metrics = PATH_IN(folder, "metrics.jsonl"),
               *config_path = PATH_IN(folder, "config.yaml");
    char *text = NULL;
    fit_run r = { 0 };
    err e = read_params(config_path, &r.params);
    if (!e) e = io_read(metrics, MOST_BYTES, &text, NULL);
    if (!e) e = read_metrics(text, metrics, &r.tokens, &r.loss);
    if (!e) add_fit_run(runs, n, r, folder);
    free(text);
    return e;
}

/* Columns are found by their names in the first line; others are ignored. */
static err read_table(char *text, const char *path, fit_run **runs, int *n) {
    static const char *const names[] = { "params", "tokens", "loss" };
    int column[COUNT_OF(names)] = { -1, -1, -1 }, line = 0;
    char *next = NULL;
    for (char *row = strtok_r(text, "\r\n", &next); row; row = strtok_r(NULL, "\r\n", &next)) {
        double value[COUNT_OF(names)] = { 0 };
        char *rest = row, *cell;
        line++;
        for (int i = 0; (cell = strsep(&rest, ",")); i++)
            for (size_t k = 0; k < COUNT_OF(names); k++) {
                cell += strspn(cell, " \t");
                if (line == 1 && strcmp(cell, names[k]) == 0) column[k] = i;
                if (line == 1 || column[k] != i) continue;
                if (!number_parse_real(cell, &value[k]) || !(value[k] > 0))
                    return err_hint(ERR("%s:%d: expected %s above 0; got \"%.40s\"", path, line,
                                        names[k], cell),
                                    "write numbers like 125M, 2.5e9 or 3.12");
            }
        if (line == 1) continue;
        char name[64];
        snprintf(name, sizeof name, "line %d", line);
        for (size_t k = 0; k < COUNT_OF(names); k++)
            if (!(value[k] > 0))
                return err_hint(ERR("%s:%d: no %s", path, line, names[k]),
                                "the first line names the columns: params,tokens,loss");
        add_fit_run(runs, n, (fit_run){ NULL, value[0], value[1], value[2] }, name);
    }
    return OK;
}

err fit_read(const char *path, fit_run **runs, int *n) {
    if (io_is_dir(path)) return read_folder(path, runs, n);
    char *text = NULL;
    TRY(io_read(path, MOST_BYTES, &text, NULL));
    err e = read_table(text, path, runs, n);
    free(text);
    return e;
}
