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

/* Which column holds an item of a METRIC_EACH: its name is before + item + after. */
static const struct {
    int metric;
    const char *before, *after;
    bool exponential; /* the metric is exp of the column */
} nested[] = {
    { METRIC_source_loss, "sources.", ".loss" },
    { METRIC_source_tokens, "sources.", ".tokens" },
    { METRIC_set_loss, "validation.", "" },
    { METRIC_set_ppl, "validation.", "", true },
    { METRIC_block_grad_norm, "blocks.grad_norm.", "" },
    { METRIC_block_param_norm, "blocks.param_norm.", "" },
};

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

/* The last of a model's blocks in an array is what is outside of them. */
static void name_last_block(const served_run *run, const char *before, char *item,
                            size_t capacity) {
    char next[64];
    snprintf(next, sizeof next, "%s%d", before, atoi(item) + 1);
    if (!series_find(run->all, next)) snprintf(item, capacity, "other");
}

static void add_items(str *out, int which, const str *name, const served_run *run,
                      const char *label) {
    for (size_t k = 0; k < COUNT_OF(nested); k++)
        for (int i = 0; nested[k].metric == which && i < series_columns(run->all); i++) {
            const series_column *c = series_at(run->all, i);
            size_t before = strlen(nested[k].before), after = strlen(nested[k].after);
            size_t n = strlen(c->name);
            if (!str_starts(c->name, nested[k].before) || !str_ends(c->name, nested[k].after))
                continue;
            if (n <= before + after) continue;
            char item[256];
            snprintf(item, sizeof item, "%.*s", (int)(n - before - after), c->name + before);
            if (str_starts(nested[k].before, "blocks."))
                name_last_block(run, nested[k].before, item, sizeof item);
            add_value(out, name, run, label, item, c, nested[k].exponential);
        }
}

void prometheus_text(served_run *const *runs, int n, str *out) {
    str name = { 0 }, values = { 0 };
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
