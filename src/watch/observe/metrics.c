/* The registry of metrics, and what is done alike for all of them. */
#include <string.h>

#include "observe/observe.h"

const metric metric_table[METRICS] = {
#define ROW(key_, path_, kind_, presence_, sink_, unit_, normal_, meaning_, offset_)               \
    [METRIC_##key_] = { .key = #key_,                                                              \
                        .path = path_,                                                             \
                        .sink = sink_,                                                             \
                        .unit = unit_,                                                             \
                        .normal = normal_,                                                         \
                        .meaning = meaning_,                                                       \
                        .kind = kind_,                                                             \
                        .presence = presence_,                                                     \
                        .offset = offset_ },
#define COUNT(key, presence, sink, unit, normal, meaning)                                          \
    ROW(key, NULL, METRIC_COUNT, METRIC_##presence, sink, unit, normal, meaning,                   \
        offsetof(observe_step, key))
#define FIGURE(key, presence, sink, unit, normal, meaning)                                         \
    ROW(key, NULL, METRIC_FIGURE, METRIC_##presence, sink, unit, normal, meaning,                  \
        offsetof(observe_step, key))
#define EACH(key, path, sink, unit, normal, meaning)                                               \
    ROW(key, path, METRIC_EACH, METRIC_EXTRA, sink, unit, normal, meaning, 0)
#include "observe/metrics.def"
#undef ROW
};

observe_step observe_step_none(void) {
    observe_step s = { .eta_s = NAN };
    for (int i = 0; i < METRICS; i++)
        if (metric_table[i].kind == METRIC_FIGURE)
            *(double *)((char *)&s + metric_table[i].offset) = NAN;
    return s;
}

double metric_value(const metric *m, const observe_step *s) {
    const char *at = (const char *)s + m->offset;
    if (m->kind == METRIC_FIGURE) return *(const double *)at;
    if (m->kind == METRIC_EACH) return NAN;
    int64_t count = *(const int64_t *)at;
    return count || m->presence == METRIC_ALWAYS ? (double)count : NAN;
}

static void visit_one(metric_visitor fn, void *ctx, int which, const char *item, double v) {
    if (isfinite(v)) fn(ctx, &metric_table[which], item, v);
}

static void visit_blocks(const observe_detail *d, metric_visitor fn, void *ctx) {
    const struct {
        int metric;
        const double *v;
        bool other; /* one more, for what is outside of blocks */
    } arrays[] = { { METRIC_block_grad_norm, d->grad_norm, true },
                   { METRIC_block_param_norm, d->param_norm, true },
                   { METRIC_block_activation, d->activation_rms },
                   { METRIC_block_fp8_amax, d->fp8_amax },
                   { METRIC_block_fp8_saturated, d->fp8_saturated } };
    for (size_t k = 0; k < COUNT_OF(arrays); k++)
        for (int i = 0; arrays[k].v && i < d->blocks + arrays[k].other; i++) {
            char item[16] = "other";
            if (i < d->blocks) snprintf(item, sizeof item, "%d", i);
            visit_one(fn, ctx, arrays[k].metric, item, arrays[k].v[i]);
        }
}

static void visit_ranks(const observe_ranks *r, metric_visitor fn, void *ctx) {
    for (int i = 0; i < r->n; i++) {
        char item[16];
        snprintf(item, sizeof item, "%d", i);
        visit_one(fn, ctx, METRIC_rank_busy, item, r->busy_s[i]);
        visit_one(fn, ctx, METRIC_rank_wait, item, r->wait_s[i]);
        visit_one(fn, ctx, METRIC_rank_ratio, item, r->ratio[i]);
    }
}

void metric_visit(const observe_step *s, metric_visitor fn, void *ctx) {
    for (int i = 0; i < METRICS; i++)
        visit_one(fn, ctx, i, NULL, metric_value(&metric_table[i], s));
    for (int i = 0; i < s->n_sources; i++) {
        visit_one(fn, ctx, METRIC_source_loss, s->sources[i].name, s->sources[i].loss);
        visit_one(fn, ctx, METRIC_source_tokens, s->sources[i].name, (double)s->sources[i].tokens);
    }
    for (int i = 0; i < s->n_validation; i++) {
        const observe_source *p = &s->validation[i];
        visit_one(fn, ctx, METRIC_set_loss, p->name, p->loss);
        visit_one(fn, ctx, METRIC_set_ppl, p->name, exp(p->loss));
    }
    for (int i = 0; i < s->n_tasks; i++) {
        visit_one(fn, ctx, METRIC_task_acc, s->tasks[i].name, s->tasks[i].acc);
        visit_one(fn, ctx, METRIC_task_acc_norm, s->tasks[i].name, s->tasks[i].acc_norm);
    }
    if (s->detail) visit_blocks(s->detail, fn, ctx);
    if (s->ranks) visit_ranks(s->ranks, fn, ctx);
    for (int i = 0; i < s->n_comm; i++) {
        visit_one(fn, ctx, METRIC_comm_time, s->comm[i].name, s->comm[i].seconds);
        visit_one(fn, ctx, METRIC_comm_bytes, s->comm[i].name, s->comm[i].bytes);
    }
}

bool metric_item(const metric *m, const char *name, const char **item, size_t *n) {
    const char *open = m->path ? strchr(m->path, '<') : NULL;
    if (!open) return false;
    const char *after = strchr(open, '>') + 1;
    size_t before = (size_t)(open - m->path), length = strlen(name), end = strlen(after);
    if (length <= before + end || strncmp(name, m->path, before) || !str_ends(name, after))
        return false;
    *item = name + before;
    *n = length - before - end;
    return true;
}

void metric_sink_name(const metric *m, const char *item, str *out) {
    const char *open = strchr(m->sink, '<');
    if (!open || !item) {
        str_add(out, "%s", m->sink);
        return;
    }
    str_add(out, "%.*s%s%s", (int)(open - m->sink), m->sink, item, strchr(open, '>') + 1);
}

void metric_docs(str *out) {
    str_add(out, "| key | name in sinks | unit | normal | meaning |\n|---|---|---|---|---|\n");
    for (int i = 0; i < METRICS; i++) {
        const metric *m = &metric_table[i];
        const char *where = m->path ? m->path : m->key;
        str_add(out, "| %s%s%s | %s%s%s | %s | %s | %s |\n", *where ? "`" : "", where,
                *where ? "`" : "", *m->sink ? "`" : "", m->sink, *m->sink ? "`" : "", m->unit,
                m->normal, m->meaning);
    }
}
