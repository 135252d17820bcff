/* The monitor's state in a checkpoint. Numbers are written so that they read back exactly; an alert or a
 * member that another version did not have starts anew. */
#include <stdlib.h>

#include "io/io.h"
#include "monitor_internal.h"

static void begin_state(monitor_state *n) {
    *n = (monitor_state){ .before = NAN, .is_spike = NAN };
    for (int i = 0; i < RISE_SPANS; i++) n->spans[i] = NAN;
    for (int i = 0; i < MONITOR_ALERTS; i++) n->clear[i] = -1;
}

monitor *monitor_new(const monitor_settings *s) {
    monitor *m = mem_alloc(sizeof *m);
    m->s = *s;
    BUG_IF(s->window < 1 || s->window > MOST_WINDOW || s->bottleneck < 1);
    begin_state(&m->now);
    return m;
}

void monitor_free(monitor *m) { free(m); }

/* ---- saving ------------------------------------------------------------------------------------- */
/* Numbers that are not finite, "none yet", are null. */
static json_t *numbers_json(const double *v, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, io_json_number(v[i]));
    return list;
}

/* @return the values as JSON, the oldest first. */
static json_t *rolling_json(const rolling *r, int window) {
    json_t *list = json_array();
    int64_t n = MIN(r->seen, (int64_t)window);
    for (int64_t i = r->seen - n; i < r->seen; i++)
        json_array_append_new(list, json_real(r->value[i % window]));
    return list;
}

static json_t *span_json(const span_mean *s) {
    return json_pack("[f, I]", s->sum, (json_int_t)s->n);
}

json_t *monitor_save(const monitor *m) {
    const monitor_state *n = &m->now;
    json_t *active = json_object();
    for (int i = 0; i < MONITOR_ALERTS; i++)
        if (n->clear[i] >= 0 && monitor_table[i].scope != MONITOR_MACHINE)
            json_object_set_new(active, monitor_table[i].name, json_integer(n->clear[i]));
    json_t *o = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "losses",
        rolling_json(&n->loss, m->s.window), "norms", rolling_json(&n->norm, m->s.window),
        "plateau", span_json(&n->plateau), "plateau_before", io_json_number(n->before), "rise",
        span_json(&n->rise), "rise_spans", numbers_json(n->spans, RISE_SPANS), "dead_steps",
        (json_int_t)n->dead_steps, "saturated_steps", (json_int_t)n->saturated_steps, "spikes",
        (json_int_t)n->spikes, "active", active);
    BUG_IF(!o);
    return o;
}

/* ---- loading -------------------------------------------------------------------------------------- */
static err bad_member(const char *name, const char *key) {
    return err_hint(ERR("%s: the monitor's state: \"%s\" is not what it should be", name, key),
                    "the checkpoint is damaged, or was written by something else");
}

static double number_of(const json_t *v, double none) {
    double x = json_is_number(v) ? json_number_value(v) : none;
    return isfinite(x) ? x : none;
}

static err read_number_list(const json_t *o, const char *name, const char *key, double *to, int n) {
    const json_t *list = json_object_get(o, key);
    if (!list) return OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)n) return bad_member(name, key);
    for (int i = 0; i < n; i++) to[i] = number_of(json_array_get(list, (size_t)i), NAN);
    return OK;
}

/* Of a longer window the latest are taken. */
static err read_rolling(const json_t *o, const char *name, const char *key, int window,
                        rolling *to) {
    const json_t *list = json_object_get(o, key);
    if (!list) return OK;
    if (!json_is_array(list) || json_array_size(list) > MOST_WINDOW) return bad_member(name, key);
    size_t n = json_array_size(list);
    for (size_t i = n > (size_t)window ? n - (size_t)window : 0; i < n; i++) {
        double v = number_of(json_array_get(list, i), NAN);
        if (isnan(v)) return bad_member(name, key);
        to->value[to->seen++ % window] = v;
    }
    return OK;
}

static err read_count(const json_t *o, const char *name, const char *key, int64_t *to) {
    const json_t *v = json_object_get(o, key);
    if (!v) return OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0) return bad_member(name, key);
    *to = json_integer_value(v);
    return OK;
}

static err read_span(const json_t *o, const char *name, const char *key, int64_t most,
                     span_mean *to) {
    const json_t *v = json_object_get(o, key);
    if (!v) return OK;
    const json_t *n = json_array_get(v, 1);
    double sum = number_of(json_array_get(v, 0), NAN);
    bool good = json_is_integer(n) && json_integer_value(n) >= 0 && json_integer_value(n) < most;
    if (!good || isnan(sum)) return bad_member(name, key);
    *to = (span_mean){ sum, json_integer_value(n) };
    return OK;
}

err monitor_load(monitor *m, const json_t *o, const char *name) {
    monitor_state *n = &m->now;
    begin_state(n);
    if (!o) return OK;
    if (!json_is_object(o)) return bad_member(name, "monitor");
    TRY(read_rolling(o, name, "losses", m->s.window, &n->loss));
    TRY(read_rolling(o, name, "norms", m->s.window, &n->norm));
    TRY(read_number_list(o, name, "rise_spans", n->spans, RISE_SPANS));
    TRY(read_span(o, name, "plateau", PLATEAU_STEPS, &n->plateau));
    TRY(read_span(o, name, "rise", RISE_STEPS, &n->rise));
    n->before = number_of(json_object_get(o, "plateau_before"), NAN);
    TRY(read_count(o, name, "dead_steps", &n->dead_steps));
    TRY(read_count(o, name, "saturated_steps", &n->saturated_steps));
    TRY(read_count(o, name, "spikes", &n->spikes));
    const json_t *active = json_object_get(o, "active");
    for (int i = 0; i < MONITOR_ALERTS; i++)
        TRY(read_count(active, name, monitor_table[i].name, &n->clear[i]));
    return OK;
}
