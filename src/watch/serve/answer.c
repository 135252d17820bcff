/* From a request to an answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "io/io.h"
#include "observe/observe.h"
#include "report/report.h"
#include "serve_internal.h"

/* ---- what a request asks for ----------------------------------------------------------------- */
static void refuse_request(serve_answer *out, int status, const char *why) {
    out->status = status;
    out->type = "text/plain; charset=utf-8";
    out->body.len = 0;
    str_add(&out->body, "%s\n", why);
}

static served_run *requested_run(const served_site *site, const serve_request *r,
                                 serve_answer *out) {
    int64_t i = 0;
    const char *text = serve_query(r, "run");
    if (text && number_parse_int(text, &i) && i >= 0 && i < site->n_runs) return &site->runs[i];
    refuse_request(out, 404, "the run does not exist; /api/runs lists the runs");
    return NULL;
}

static double query_number(const serve_request *r, const char *name, double otherwise) {
    const char *text = serve_query(r, name);
    double v;
    return text && number_parse_real(text, &v) ? v : otherwise;
}

/* Reads what was appended since, at most ten times a second. */
static bool refresh_run(served_run *run, serve_answer *out) {
    if (time_now() - run->updated < 0.1) return true;
    err e = series_update(run->all);
    if (e) refuse_request(out, 500, err_message(e));
    run->updated = time_now();
    bool fine = !e;
    err_free(e);
    return fine;
}

static const series_column *requested_column(const served_site *site, const serve_request *r,
                                             served_run **run, serve_answer *out) {
    *run = requested_run(site, r, out);
    if (!*run || !refresh_run(*run, out)) return NULL;
    const char *key = serve_query(r, "key");
    const series_column *c = key ? series_find((*run)->all, key) : NULL;
    if (!c) refuse_request(out, 404, "the run has no such metric; /api/runs lists them");
    return c;
}

static void put_json(serve_answer *out, json_t *doc) {
    out->type = "application/json";
    io_json_add(&out->body, doc, JSON_COMPACT);
}

/* ---- answers --------------------------------------------------------------------------------- */
static json_t *columns_json(const series *s) {
    json_t *list = json_array();
    for (int i = 0; i < series_columns(s); i++) {
        const char *name = series_at(s, i)->name;
        json_array_append_new(list, io_json_string(name, strlen(name)));
    }
    return list;
}

/* Bytes of the files that events come from: whoever asks sees when there are new ones. */
static int64_t event_bytes(const served_run *run) {
    static const char *const names[] = { "events.jsonl", "launch.jsonl" };
    int64_t sum = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct stat st;
        if (lstat(PATH_IN(run->dir, names[i]), &st) == 0) sum += (int64_t)st.st_size;
    }
    return sum;
}

static void answer_runs(const served_site *site, const serve_request *r, serve_answer *out) {
    json_t *list = json_array(), *about = json_object();
    for (int i = 0; i < site->n_runs; i++) {
        if (!refresh_run(&site->runs[i], out)) continue;
        const series *s = site->runs[i].all;
        double last = series_last(s, "step"), time = series_last(s, "time");
        run_status status;
        status_read(site->runs[i].dir, s, &status);
        json_array_append_new(
            list, json_pack("{s:o, s:I, s:f, s:f, s:o, s:I, s:o, s:o}", "name",
                            io_json_string(site->runs[i].name, strlen(site->runs[i].name)), "rows",
                            (json_int_t)series_rows(s), "step", isnan(last) ? 0 : last, "time",
                            isnan(time) ? 0 : time, "status", status_json(&status), "events",
                            (json_int_t)event_bytes(&site->runs[i]), "energy_kwh",
                            io_json_number(report_energy(s)), "metrics", columns_json(s)));
    }
    for (int i = 0; i < METRICS; i++)
        json_object_set_new(about, metric_table[i].key,
                            json_pack("{s:s, s:s, s:s, s:s}", "name", metric_table[i].sink, "unit",
                                      metric_table[i].unit, "normal", metric_table[i].normal,
                                      "meaning", metric_table[i].meaning));
    if (out->status == 200)
        put_json(out, json_pack("{s:O, s:O, s:s*}", "runs", list, "metrics", about, "plan",
                                site->plan_path));
    json_decref(list);
    json_decref(about);
}

static void answer_series(const served_site *site, const serve_request *r, serve_answer *out) {
    enum { MOST_POINTS = 4000 };
    served_run *run;
    const series_column *c = requested_column(site, r, &run, out);
    if (!c) return;
    double wanted = query_number(r, "points", 1000);
    int most = (int)fmin(fmax(wanted, 1), MOST_POINTS);
    series_point *p = mem_alloc((size_t)most * sizeof *p);
    int got = series_points(run->all, c, query_number(r, "from", -INFINITY),
                            query_number(r, "to", INFINITY), most, p);
    static const char *const names[] = { "{\"step\":[", "],\"mean\":[", "],\"low\":[",
                                         "],\"high\":[" };
    out->type = "application/json";
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        str_add(&out->body, "%s", names[k]);
        for (int i = 0; i < got; i++) {
            const double values[] = { p[i].step, p[i].mean, p[i].low, p[i].high };
            if (i) str_add(&out->body, ",");
            str_add_json_number(&out->body, values[k]);
        }
    }
    str_add(&out->body, "]}");
    free(p);
}

/* All values of a metric, from the file: in memory the past is coarser. */
static void answer_csv(const served_site *site, const serve_request *r, serve_answer *out) {
    served_run *run;
    const series_column *c = requested_column(site, r, &run, out);
    if (!c) return;
    bool more;
    out->type = "text/csv; charset=utf-8";
    out->file = "metric.csv";
    out->parts = csv_open(run->dir, c->name, &out->body);
    err e = csv_next(out->parts, &out->body, &more);
    if (e) refuse_request(out, 500, err_message(e));
    if (e || !more) {
        csv_free(out->parts);
        out->parts = NULL;
    }
    err_free(e);
}

/* Appends the objects among the last lines of a file to an array. @param edit NULL, or changes an object and decides whether
 * it is listed. One line is parsed at a time: the tree of all of them would take ten times the memory of the text. */
static void add_events(const served_run *run, const char *name, bool (*edit)(json_t *o), str *out) {
    enum { TAIL = 1 << 18 };
    char *text = status_file_tail(run->dir, name, TAIL), *next = NULL;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(o) && (!edit || edit(o))) {
            str_add(out, "%s", out->len > 1 ? "," : "");
            if (edit)
                io_json_add(out, json_incref(o), JSON_COMPACT);
            else
                str_add_bytes(out, line, strlen(line));
        }
        json_decref(o);
    }
    free(text);
}

/* Turns an attempt of a launch that failed into an event of the step it goes back to. */
static bool edit_attempt(json_t *o) {
    if (!json_integer_value(json_object_get(o, "status"))) return false;
    const json_t *step = json_object_get(o, "checkpoint");
    json_object_set_new(o, "event", json_string("failed attempt"));
    json_object_set_new(o, "step", json_integer(MAX(0, json_integer_value(step))));
    return true;
}

static void answer_events(const served_site *site, const serve_request *r, serve_answer *out) {
    served_run *run = requested_run(site, r, out);
    if (!run) return;
    out->type = "application/json";
    str_add(&out->body, "[");
    add_events(run, "events.jsonl", NULL, &out->body);
    add_events(run, "launch.jsonl", edit_attempt, &out->body);
    str_add(&out->body, "]");
}

/* ---- ranks ------------------------------------------------------------------------------------- */
typedef struct rank_columns {
    const series_column *
        *of; /* [3][n], as rank_metrics has them; NULL where one is missing; owned */
    int n;
} rank_columns;
static const struct {
    int metric;
    const char *name;
} rank_metrics[] = { { METRIC_rank_busy, "busy" },
                     { METRIC_rank_wait, "wait" },
                     { METRIC_rank_ratio, "ratio" } };

/* Finds the column of each rank in one pass: there may be thousands. @param c of NULL: only counts. */
static void find_rank_columns(const series *s, rank_columns *c) {
    enum { MOST_RANKS = 1 << 14 };
    for (int i = 0; i < series_columns(s); i++)
        for (size_t k = 0; k < COUNT_OF(rank_metrics); k++) {
            const char *item;
            size_t n;
            const series_column *column = series_at(s, i);
            if (!metric_item(&metric_table[rank_metrics[k].metric], column->name, &item, &n))
                continue;
            int rank = atoi(item);
            if (rank < 0 || rank >= MOST_RANKS) continue;
            if (c->of)
                c->of[k * (size_t)c->n + (size_t)rank] = column;
            else
                c->n = MAX(c->n, rank + 1);
        }
}

/* Appends the values of rank r: [[a window's of every rank], ...] per metric, oldest window first. */
static void add_windows(str *out, const rank_columns *c, const series_column *lead, int64_t from) {
    for (size_t k = 0; k < COUNT_OF(rank_metrics); k++) {
        str_add(out, ",\"%s\":[", rank_metrics[k].name);
        for (int64_t i = from; i < lead->n; i++) {
            str_add(out, i > from ? ",[" : "[");
            for (int r = 0; r < c->n; r++) {
                if (r) str_add(out, ",");
                str_add_json_number(
                    out, series_in_row(c->of[k * (size_t)c->n + (size_t)r], series_row(lead, i)));
            }
            str_add(out, "]");
        }
        str_add(out, "]");
    }
}

static void answer_ranks(const served_site *site, const serve_request *r, serve_answer *out) {
    enum { MOST_VALUES = 30000 };
    served_run *run = requested_run(site, r, out);
    if (!run || !refresh_run(run, out)) return;
    rank_columns c = { 0 };
    find_rank_columns(run->all, &c);
    c.of = mem_alloc(COUNT_OF(rank_metrics) * (size_t)MAX(c.n, 1) * sizeof *c.of);
    find_rank_columns(run->all, &c);
    const series_column *lead = c.of[0]; /* of rank 0 */
    double wanted = fmax(1, query_number(r, "windows", 60));
    int64_t windows = (int64_t)fmin(wanted, MAX(1, MOST_VALUES / MAX(c.n, 1)));
    int64_t from = lead ? MAX(0, lead->n - windows) : 0;
    out->type = "application/json";
    str_add(&out->body, "{\"ranks\":%d,\"step\":[", c.n);
    for (int64_t i = from; lead && i < lead->n; i++)
        str_add(&out->body, "%s%.0f", i > from ? "," : "", series_step(run->all, lead, i));
    str_add(&out->body, "]");
    if (lead) add_windows(&out->body, &c, lead, from);
    str_add(&out->body, "}");
    free(c.of);
}

/* As the run wrote it; null where it is not a pipeline. */
static void answer_timetable(const served_site *site, const serve_request *r, serve_answer *out) {
    enum { MOST = 4 << 20 };
    served_run *run = requested_run(site, r, out);
    if (!run) return;
    char *text = status_file_tail(run->dir, OBSERVE_TIMETABLE, MOST);
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    put_json(out, json_is_object(doc) ? json_incref(doc) : json_null());
    json_decref(doc);
    free(text);
}

/* Without what must not leave the machine. */
static void answer_config(const served_site *site, const serve_request *r, serve_answer *out) {
    enum { MOST = 1 << 20 };
    served_run *run = requested_run(site, r, out);
    if (!run) return;
    char *text = status_file_tail(run->dir, "config.yaml", MOST), *next = NULL;
    out->type = "text/plain; charset=utf-8";
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        if (!config_line_is_secret(line)) str_add(&out->body, "%s\n", line);
    free(text);
}

static void answer_metrics(const served_site *site, const serve_request *r, serve_answer *out) {
    served_run **list = mem_alloc((size_t)MAX(site->n_runs, 1) * sizeof *list);
    bool fine = true;
    for (int i = 0; i < site->n_runs; i++) {
        list[i] = &site->runs[i];
        fine = fine && refresh_run(&site->runs[i], out);
    }
    out->type = "text/plain; version=0.0.4; charset=utf-8";
    if (fine) prometheus_text(list, site->n_runs, &out->body);
    free(list);
}

static const char *page_part(const char *name) {
    int i = 0;
    while (page_files[i].name && strcmp(page_files[i].name, name) != 0) i++;
    BUG_IF(!page_files[i].name);
    return page_files[i].text;
}

void serve_put_page(serve_answer *out, const char *text) {
    static const char mark[] = "<!-- common -->\n";
    const char *at = strstr(text, mark);
    BUG_IF(!at);
    out->type = "text/html; charset=utf-8";
    str_add_bytes(&out->body, text, (size_t)(at - text));
    str_add(&out->body, "%s%s", page_part("common"), at + strlen(mark));
}

static void answer_page(const served_site *site, const serve_request *r, serve_answer *out) {
    serve_put_page(out, page_part("page"));
}

static void answer_bye(const served_site *site, const serve_request *r, serve_answer *out) {
    out->type = "text/plain; charset=utf-8";
}

static const struct {
    const char *path;
    void (*answer)(const served_site *site, const serve_request *r, serve_answer *out);
} routes[] = {
    { "/", answer_page },
    { "/metrics", answer_metrics },
    { "/api/runs", answer_runs },
    { "/api/end", answer_runs }, /* when too many wait for the end already */
    { "/api/bye", answer_bye },
    { "/api/series", answer_series },
    { "/api/csv", answer_csv },
    { "/api/ranks", answer_ranks },
    { "/api/timetable", answer_timetable },
    { "/api/events", answer_events },
    { "/api/config", answer_config },
};

const serve_route *find_post(const served_site *site, const char *path) {
    for (int i = 0; i < site->n_routes; i++)
        if (!strcmp(site->routes[i].path, path) && site->routes[i].post) return &site->routes[i];
    return NULL;
}

void answer_request(const served_site *site, const serve_request *r, serve_answer *out) {
    out->status = 200;
    for (size_t i = 0; i < COUNT_OF(routes) && !site->routes_only; i++)
        if (!strcmp(routes[i].path, r->path)) {
            routes[i].answer(site, r, out);
            return;
        }
    for (int i = 0; i < site->n_routes; i++)
        if (!strcmp(site->routes[i].path, r->path) && site->routes[i].answer) {
            site->routes[i].answer(site->routes_ctx, r, out);
            return;
        }
    refuse_request(out, 404, "not found");
}
