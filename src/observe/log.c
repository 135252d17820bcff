/* metrics.jsonl and events.jsonl: lines of JSON, each appended with one write, so that a reader never
 * sees half a line. A run that resumes removes the metrics of the steps that it will repeat. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "observe/observe.h"

struct observe {
    char *metrics_path, *events_path;
    int metrics, events; /* descriptors */
};

/* ---- one step as JSON ---------------------------------------------------------------------- */
typedef enum { ALWAYS, EXTRA } presence;

observe_step observe_step_none(void) {
#define AS_ZERO(name)      .name = 0,
#define AS_NAN(name, when) .name = NAN,
    return (observe_step){ OBSERVE_FIELDS(AS_ZERO, AS_NAN).eta_s = NAN };
#undef AS_ZERO
#undef AS_NAN
}

/* JSON has no NaN and no infinity: null stands for both. */
static void add_figure(str *out, const char *name, double v, presence when) {
    if (when == EXTRA && isnan(v)) return;
    if (isfinite(v))
        str_add(out, ",\"%s\":%.9g", name, v);
    else
        str_add(out, ",\"%s\":null", name);
}

static void add_name(str *out, const char *before, const char *name) {
    json_t *text = io_json_string(name, strlen(name));
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    BUG_IF(quoted == NULL);
    str_add(out, "%s%s:", before, quoted);
    free(quoted);
    json_decref(text);
}

static void add_parts(str *out, const observe_step *s) {
    for (int i = 0; i < s->n_sources; i++) {
        const observe_part *p = &s->sources[i];
        add_name(out, i ? "," : ",\"sources\":{", p->name);
        str_add(out, "{\"tokens\":%lld", (long long)p->tokens);
        add_figure(out, "loss", p->loss, EXTRA);
        str_add(out, i + 1 < s->n_sources ? "}" : "}}");
    }
    for (int i = 0; i < s->n_validation; i++) {
        add_name(out, i ? "," : ",\"validation\":{", s->validation[i].name);
        if (isfinite(s->validation[i].loss))
            str_add(out, "%.9g", s->validation[i].loss);
        else
            str_add(out, "null");
        if (i + 1 == s->n_validation) str_add(out, "}");
    }
}

static void step_as_json(const observe_step *s, str *out) {
    str_add(out, "{");
#define ADD_COUNT(name)                                                                            \
    str_add(out, "%s\"%s\":%lld", out->text[out->len - 1] == '{' ? "" : ",", #name,                \
            (long long)s->name);
#define ADD_FIGURE(name, when) add_figure(out, #name, s->name, when);
    OBSERVE_FIELDS(ADD_COUNT, ADD_FIGURE)
#undef ADD_COUNT
#undef ADD_FIGURE
    add_parts(out, s);
    str_add(out, "}\n");
}

/* ---- resuming ------------------------------------------------------------------------------ */
/* @return whether the line is a whole object of a step before `first`. */
static bool keep_line(const char *line, size_t len, int64_t first) {
    json_t *object = json_loadb(line, len, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    bool keep = json_is_integer(step) && json_integer_value(step) < first;
    json_decref(object);
    return keep;
}

/* Splits [p, end) at line ends and copies the lines to keep. @return how many are dropped. */
static int64_t copy_kept_lines(const char *p, const char *end, int64_t first, str *kept) {
    int64_t dropped = 0;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t len = newline ? (size_t)(newline - p) : (size_t)(end - p);
        if (newline && keep_line(p, len, first))
            str_add_bytes(kept, p, len + 1);
        else
            dropped++;
        p += len + 1;
    }
    return dropped;
}

static err drop_later_metrics(const char *path, int64_t first) {
    if (!io_exists(path)) return OK;
    io_mapping m;
    TRY(io_map(path, &m));
    str kept = { 0 };
    const char *text = (const char *)m.data;
    int64_t dropped = text ? copy_kept_lines(text, text + m.size, first, &kept) : 0;
    io_unmap(&m);
    err e = OK;
    if (dropped) {
        e = io_write(path, kept.text ? kept.text : "", kept.len);
        if (!e && first > 0)
            log_info("%s: removed %lld lines of steps from %lld on, which run again", path,
                     (long long)dropped, (long long)first);
    }
    str_free(&kept);
    return e;
}

/* ---- the logs ------------------------------------------------------------------------------ */
static char *path_in(const char *dir, const char *name) {
    str s = { 0 };
    str_add(&s, "%s/%s", dir, name);
    return s.text;
}

err observe_open(const char *dir, int64_t first_step, observe **out) {
    observe *o = mem_alloc(sizeof *o);
    *o = (observe){ path_in(dir, "metrics.jsonl"), path_in(dir, "events.jsonl"), -1, -1 };
    err e = OK;
    TRY_CLEAN(drop_later_metrics(o->metrics_path, first_step));
    TRY_CLEAN(io_append_open(o->metrics_path, &o->metrics));
    TRY_CLEAN(io_append_open(o->events_path, &o->events));
    *out = o;
    return OK;
cleanup:
    observe_close(o);
    return e;
}

err observe_log(observe *o, const observe_step *s) {
    str line = { 0 };
    step_as_json(s, &line);
    err e = io_append(o->metrics, o->metrics_path, line.text, line.len);
    str_free(&line);
    return e;
}

err observe_event(observe *o, const char *kind, int64_t step, json_t *details) {
    json_t *event = json_pack("{s:s, s:I, s:I}", "event", kind, "step", (json_int_t)step, "time",
                              (json_int_t)time(NULL));
    BUG_IF(event == NULL);
    if (details) json_object_update(event, details);
    json_decref(details);
    char *text = json_dumps(event, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(event);
    if (!text) return ERR("event \"%s\": a text in it is not UTF-8", kind);
    str line = { 0 };
    str_add(&line, "%s\n", text);
    free(text);
    err e = io_append(o->events, o->events_path, line.text, line.len);
    str_free(&line);
    return e;
}

void observe_close(observe *o) {
    if (!o) return;
    if (o->metrics >= 0) close(o->metrics);
    if (o->events >= 0) close(o->events);
    free(o->metrics_path);
    free(o->events_path);
    free(o);
}
