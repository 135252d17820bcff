/* Other models and other data for the same run: what attention, packing and experts would change; and the same run with
 * other kernels and networks. */
#include "planning_internal.h"

#include <math.h>
#include <stdarg.h>

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
    bool grouped = !c->kv_latent; /* there every head has keys and values, and none are cached */
    if (grouped && c->kv_heads < c->heads)
        change_number(begin_change(l, "%d key/value heads instead of %d: one per query head",
                                   c->heads, c->kv_heads),
                      "model.kv_heads", c->heads);
    else if (grouped && c->heads % 4 == 0)
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

/* Adds all-reduces by rings or by trees, where NCCL would choose. */
static void change_algorithm(change_list *l, const config *cfg, const run_target *on) {
    static const char *const names[] = { "ring", "tree" };
    if (!on->gpu || on->gpu->shared || cfg->comm.nccl_algorithm != NCCL_BY_SIZE) return;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        model_change *m = begin_change(l, "all-reduces between GPUs by %ss", names[i]);
        m->same_run = true;
        change_text(m, "comm.nccl_algorithm", names[i]);
    }
}

/* Of a change that the run can take. */
static err try_change(const config *cfg, const run_target *on, const model_change *m,
                      capacity_variant *v) {
    config changed;
    config_copy(&changed, cfg);
    step_time t = { .seconds = NAN };
    err e = OK;
    for (int i = 0; i < m->n && !e; i++)
        e = config_set(&changed, m->set[i].option, m->set[i].value);
    if (!e) e = capacity_of(&changed, on, &v->cap);
    if (!e && on->gpu) e = step_simulate(&changed, on, on->gpu, NULL, &t);
    v->seconds = t.seconds;
    config_free(&changed);
    return e;
}

/* ---- other kernels and networks for the same run --------------------------------------------------- */
/* Bytes of attention's probabilities where a kernel keeps them for backward: of all layers of the stage, or with full
 * recompute of the one that is at work. */
static double stored_scores(const config *cfg, const capacity *now) {
    const mesh *m = &now->layout;
    double layers = cfg->activation_checkpoint.mode == CFG_AC_FULL ? 1 : now->layers_of_stage;
    double heads = (double)now->mc.heads / mesh_size(m, AX_TP);
    return layers * (double)now->rows * heads * (double)now->seq * (double)now->seq /
           mesh_size(m, AX_CP) * (double)dt_size(now->dt);
}

static void append_variant(capacity_variant **list, int *n, const capacity_variant *v) {
    *list = mem_grow(*list, sizeof **list * (size_t)(*n + 1));
    (*list)[(*n)++] = *v;
}

/* Attention over stored scores, as before FlashAttention. Both sides are simulated with one profile, so that attention is
 * all that differs. */
static err add_standard_attention(const config *cfg, const run_target *on, const capacity *now,
                                  capacity_variant **list, int *n) {
    enum { BYTES_PER_LOGIT = 16 };
    other_system fused = { .name = "fused",
                           .attention = ATTENTION_OURS,
                           .gemm = 1,
                           .logit_bytes = BYTES_PER_LOGIT },
                 stored = fused;
    step_time before, after;
    run_target target = *on;
    stored.attention = ATTENTION_STORED;
    target.as = &fused;
    TRY(step_simulate(cfg, &target, on->gpu, NULL, &before));
    target.as = &stored;
    TRY(step_simulate(cfg, &target, on->gpu, NULL, &after));
    capacity_variant v = { .cap = *now, .slower = after.seconds / before.seconds - 1 };
    v.seconds = (*list)[0].seconds * (1 + v.slower);
    v.cap.memory[MEMORY_ACTIVATIONS] += stored_scores(cfg, now);
    v.cap.total += stored_scores(cfg, now);
    str_add(&v.what, "standard attention, which stores its scores");
    append_variant(list, n, &v);
    return OK;
}

static err add_fabric(const config *cfg, const run_target *on, const capacity *now, double factor,
                      capacity_variant **list, int *n) {
    accelerator gpu = *on->gpu;
    run_target target = *on;
    step_time t;
    gpu.network *= factor;
    target.gpu = &gpu;
    TRY(step_simulate(cfg, &target, &gpu, NULL, &t));
    capacity_variant v = { .cap = *now, .seconds = t.seconds };
    v.slower = t.seconds / (*list)[0].seconds - 1;
    str_add(&v.what, "a network of %.4g GB/s per GPU instead of %.4g", gpu.network / 1e9,
            on->gpu->network / 1e9);
    append_variant(list, n, &v);
    return OK;
}

/* Adds changes that the run does not decide, but whoever builds the cluster or the kernels. */
static void add_other_machines(const config *cfg, const run_target *on, const capacity *now,
                               capacity_variant **list, int *n) {
    if (!on->gpu || on->gpu->shared) return;
    err e = on->as ? OK : add_standard_attention(cfg, on, now, list, n);
    bool nodes = mesh_world(&now->layout) > on->gpu->per_node;
    if (!e && nodes) e = add_fabric(cfg, on, now, 2, list, n);
    if (!e && nodes) e = add_fabric(cfg, on, now, 0.5, list, n);
    err_free(e); /* what cannot be simulated has no row */
}

void add_other_runs(const config *cfg, const run_target *on, const capacity *now,
                    capacity_variant **list, int *n) {
    change_list changes = { .n = 0 };
    add_other_machines(cfg, on, now, list, n);
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
        append_variant(list, n, &v);
    }
}
