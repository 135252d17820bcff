/* Other models and other data for the same run: what attention, packing and experts would change. */
#include "planning_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHANGES = 6, MOST_OPTIONS = 3 };

typedef struct model_change {
    char what[80];
    struct {
        const char *option;
        char value[24];
    } set[MOST_OPTIONS];
    int n;
    bool same_run; /* it changes how, not what, is computed */
} model_change;

typedef struct change_list {
    model_change all[MOST_CHANGES];
    int n;
} change_list;

static model_change *begin_change(change_list *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static model_change *begin_change(change_list *l, const char *format, ...) {
    BUG_IF(l->n == MOST_CHANGES);
    model_change *m = &l->all[l->n++];
    va_list args;
    va_start(args, format);
    vsnprintf(m->what, sizeof m->what, format, args);
    va_end(args);
    return m;
}

static void change_text(model_change *m, const char *option, const char *value) {
    BUG_IF(m->n == MOST_OPTIONS);
    m->set[m->n].option = option;
    snprintf(m->set[m->n++].value, sizeof m->set->value, "%s", value);
}

static void change_number(model_change *m, const char *option, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    change_text(m, option, text);
}

static void change_attention(change_list *l, const capacity *now) {
    const model_config *c = &now->mc;
    if (c->kv_heads < c->heads)
        change_number(begin_change(l, "%d key/value heads instead of %d: one per query head",
                                   c->heads, c->kv_heads),
                      "model.kv_heads", c->heads);
    else if (c->heads % 4 == 0)
        change_number(begin_change(l, "%d key/value heads instead of %d (grouped queries)",
                                   c->heads / 4, c->kv_heads),
                      "model.kv_heads", c->heads / 4);
    if (c->window && c->window < now->seq)
        change_number(begin_change(l, "attention to all tokens before"), "model.sliding_window", 0);
    else if (!c->window && now->seq % 4 == 0)
        change_number(begin_change(l, "attention to the last %lld tokens", (long long)now->seq / 4),
                      "model.sliding_window", now->seq / 4);
}

static void change_packing(change_list *l, const config *cfg) {
    bool concat = cfg->data.packing == PACK_CONCAT;
    model_change *m =
        begin_change(l, concat ? "documents packed by best fit" : "documents concatenated");
    change_text(m, "data.packing", concat ? "best_fit" : "concat");
}

/* As many weights are active per token in both. */
static void change_experts(change_list *l, const capacity *now) {
    const model_config *c = &now->mc;
    if (c->experts) {
        model_change *m = begin_change(l, "dense layers, as many weights active");
        change_number(m, "model.experts", 0);
        change_number(m, "model.ffn_dim",
                      (c->experts_per_token + c->shared_experts) * model_expert_dim(c));
    } else if (c->ffn % 2 == 0) {
        model_change *m = begin_change(l, "8 experts, 2 per token, as many weights active");
        change_number(m, "model.experts", 8);
        change_number(m, "model.experts_per_token", 2);
        change_number(m, "model.expert_dim", c->ffn / 2);
    }
}

/* A GPU's all-reduces by rings or by trees, where NCCL would choose. */
static void change_algorithm(change_list *l, const config *cfg, const run_target *on) {
    static const char *const names[] = { "ring", "tree" };
    if (!on->gpu || on->gpu->shared || cfg->comm.nccl_algorithm != NCCL_BY_SIZE) return;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        model_change *m = begin_change(l, "all-reduces between GPUs by %ss", names[i]);
        m->same_run = true;
        change_text(m, "comm.nccl_algorithm", names[i]);
    }
}

static err apply_change(const model_change *m, config *c) {
    for (int i = 0; i < m->n; i++) TRY(config_set(c, m->set[i].option, m->set[i].value));
    return OK;
}

/* Of a change that the run can take. */
static err try_change(const config *cfg, const run_target *on, const model_change *m,
                      capacity_variant *v) {
    config changed;
    config_copy(&changed, cfg);
    step_time t = { .seconds = NAN };
    err e = apply_change(m, &changed);
    if (!e) e = capacity_of(&changed, on, &v->cap);
    if (!e && on->gpu) e = step_simulate(&changed, on, on->gpu, NULL, &t);
    v->seconds = t.seconds;
    config_free(&changed);
    return e;
}

void add_other_runs(const config *cfg, const run_target *on, const capacity *now,
                    capacity_variant **list, int *n) {
    change_list changes = { .n = 0 };
    change_algorithm(&changes, cfg, on);
    change_attention(&changes, now);
    change_packing(&changes, cfg);
    change_experts(&changes, now);
    for (int i = 0; i < changes.n; i++) {
        const model_change *m = &changes.all[i];
        capacity_variant v = { .other_run = !m->same_run };
        err e = try_change(cfg, on, m, &v);
        if (e) { /* this family or layout does not have it */
            err_free(e);
            continue;
        }
        if (m->same_run && v.seconds == (*list)[0].seconds) continue; /* nothing is reduced so */
        str_add(&v.what, "%s", m->what);
        for (int k = 0; k < m->n; k++)
            str_add(&v.settings, "%s--%s=%s", k ? " " : "", m->set[k].option, m->set[k].value);
        v.slower =
            on->gpu ? v.seconds / (*list)[0].seconds - 1 : v.cap.flops_full / now->flops_full - 1;
        *list = mem_grow(*list, sizeof **list * (size_t)(*n + 1));
        (*list)[(*n)++] = v;
    }
}
