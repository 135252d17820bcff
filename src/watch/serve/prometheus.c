/* The last value of every metric, in Prometheus's text format. Names are those of the sinks with "ingot_"
 * before them; runs and items are labels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "observe/observe.h"
#include "serve_internal.h"

void prometheus_name(const metric *m, str *name, char *label) {
    const char *open = strchr(m->sink, '<');
    size_t n = open ? strcspn(open + 1, ">") : 0;
    snprintf(label, 16, "%.*s", (int)n, open ? open + 1 : "");
    name->len = 0;
    str_add(name, "ingot_");
    for (const char *at = m->sink; *at; at++) {
        if (at == open) at += n + 2;
        if (!*at) break;
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9');
        if (letter || name->text[name->len - 1] != '_') str_add_bytes(name, letter ? at : "_", 1);
    }
    while (name->text[name->len - 1] == '_') name->text[--name->len] = '\0';
    if (!str_ends(name->text, "_count")) return;
    name->len -= strlen("_count");
    str_add(name, "s");
}

static void add_label(str *out, const char *name, const char *value) {
    str_add(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"') str_add(out, "\\");
        str_add_bytes(out, *value == '\n' ? " " : value, 1);
    }
    str_add(out, "\"");
}

static void add_value(str *out, const str *name, const served_run *run, const char *label,
                      const char *item, const series_column *c, bool exponential) {
    double v = c->n ? series_value(c, c->n - 1) : NAN;
    if (exponential) v = exp(v);
    if (!isfinite(v)) return;
    str_add(out, "%s{", name->text);
    add_label(out, "run", run->name);
    if (*label) {
        str_add(out, ",");
        add_label(out, label, item);
    }
    str_add(out, "} %.17g\n", v);
}

/* The last of a model's blocks in an array is what is outside of them, where the metric has it. */
static void name_last_block(const served_run *run, const metric *m, char *item, size_t capacity) {
    char next[96];
    const char *open = strchr(m->path, '<');
    snprintf(next, sizeof next, "%.*s%d", (int)(open - m->path), m->path, atoi(item) + 1);
    if (!series_find(run->all, next)) snprintf(item, capacity, "other");
}

static void add_items(str *out, int which, const str *name, const served_run *run,
                      const char *label) {
    bool exponential = which == METRIC_set_ppl;
    const metric *m = &metric_table[exponential ? METRIC_set_loss : which];
    for (int i = 0; i < series_columns(run->all); i++) {
        const series_column *c = series_at(run->all, i);
        const char *at;
        size_t n;
        if (!metric_item(m, c->name, &at, &n)) continue;
        char item[256];
        snprintf(item, sizeof item, "%.*s", (int)n, at);
        if (which == METRIC_block_grad_norm || which == METRIC_block_param_norm)
            name_last_block(run, m, item, sizeof item);
        add_value(out, name, run, label, item, c, exponential);
    }
}

/* ---- how far runs are ------------------------------------------------------------------------- */
static void add_status(served_run *const *runs, int n, str *out) {
    static const struct {
        const char *name, *key, *help; /* key: in status.json */
    } rows[] = {
        { "steps", "steps", "Steps of the whole run" },
        { "planned_tokens", "total_tokens", "Tokens of the whole run" },
        { "eta_seconds", "eta_s", "Seconds until the run is done" },
        { "checkpoint_step", "checkpoint", "Step of the last full checkpoint" },
        { "restarts", "restarts", "How often the run was started again" },
        { "rollbacks", "rollbacks", "How often the run went back to a checkpoint" },
        { "alerts", "alerts", "Alerts so far" },
        { "start_time_seconds", "began", "When the run began (Unix time)" },
        { "last_step_time_seconds", "updated", "When the run last reported (Unix time)" },
    };
    run_status *s = mem_alloc((size_t)MAX(n, 1) * sizeof *s);
    for (int k = 0; k < n; k++) status_read(runs[k]->dir, runs[k]->all, &s[k]);
    for (int i = 0; i < (int)COUNT_OF(rows) && n; i++) {
        str_add(out, "# HELP ingot_run_%s %s\n# TYPE ingot_run_%s gauge\n", rows[i].name,
                rows[i].help, rows[i].name);
        for (int k = 0; k < n; k++) {
            double v = status_number(&s[k], rows[i].key);
            if (!isfinite(v)) continue;
            str_add(out, "ingot_run_%s{", rows[i].name);
            add_label(out, "run", runs[k]->name);
            str_add(out, "} %.17g\n", v);
        }
    }
    if (n)
        str_add(
            out,
            "# HELP ingot_run_state 1 for the state a run is in\n# TYPE ingot_run_state gauge\n");
    for (int k = 0; k < n; k++)
        for (int state = 0; state < RUN_STATE_COUNT; state++) {
            str_add(out, "ingot_run_state{");
            add_label(out, "run", runs[k]->name);
            str_add(out, ",state=\"%s\"} %d\n", run_state_names[state],
                    s[k].state == (run_state)state);
        }
    free(s);
}

void prometheus_text(served_run *const *runs, int n, str *out) {
    str name = { 0 }, values = { 0 };
    add_status(runs, n, out);
    for (int i = 0; i < METRICS; i++) {
        const metric *m = &metric_table[i];
        char label[16];
        if (!*m->sink && i != METRIC_step) continue;
        prometheus_name(m, &name, label);
        if (i == METRIC_step) str_add(&name, "_step");
        values.len = 0;
        for (int k = 0; k < n; k++) {
            const series_column *c = series_find(runs[k]->all, m->key);
            if (m->kind == METRIC_EACH)
                add_items(&values, i, &name, runs[k], label);
            else if (c)
                add_value(&values, &name, runs[k], "", "", c, false);
        }
        if (!values.len) continue;
        str_add(out, "# HELP %s %s%s%s%s\n# TYPE %s gauge\n", name.text, m->meaning,
                *m->unit ? " (" : "", m->unit, *m->unit ? ")" : "", name.text);
        str_add_bytes(out, values.text, values.len);
    }
    str_free(&name);
    str_free(&values);
}
