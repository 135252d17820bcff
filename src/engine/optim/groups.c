/* Which group each parameter belongs to, and the settings of each group (optimizer.groups). */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names for the parameters of a role. */
static const struct {
    const char *name;
    param_role role;
} roles[] = {
    { "embed", ROLE_INPUT },     { "embedding", ROLE_INPUT }, { "head", ROLE_OUTPUT },
    { "matrices", ROLE_HIDDEN }, { "vectors", ROLE_VECTOR },
};

/* Whether a text matches a pattern, in which * stands for any characters. */
static bool matches_pattern(const char *pattern, const char *text) {
    const char *star = NULL, *again = NULL;
    while (*text) {
        if (*pattern == '*') {
            star =
                pattern++; /* stands for nothing at first, then for one character more each time */
            again = text;
        } else if (*pattern == *text) {
            pattern++, text++;
        } else if (star) {
            pattern = star + 1;
            text = ++again;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == '\0';
}

static bool group_matches(const char *match, const model_param *q) {
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (!strcmp(match, roles[i].name)) return q->role == roles[i].role;
    return matches_pattern(match, q->name) || matches_pattern(match, q->base);
}

/* ---- settings -------------------------------------------------------------------------------- */
static double or_else(double own, double other) { return isnan(own) ? other : own; }

static double width_factor(int64_t base, const model_config *c) {
    return base > 0 ? sqrt((double)base / (double)c->dim) : 1;
}

static double length_factor(int64_t base, const optim_settings *s) {
    return base > 0 && s->decay_per_token > 0 ? (double)base * s->decay_per_token : 1;
}

/* @return the settings of parameters that no group matches. */
static optim_group rest_of(const optim_settings *s, const model_config *c) {
    return (optim_group){ .kind = s->kind,
                          .lr_factor = width_factor(s->lr_base_width, c),
                          .beta1 = s->beta1,
                          .beta2 = s->beta2,
                          .eps = s->eps,
                          .weight_decay = s->weight_decay * length_factor(s->decay_base_tokens, s),
                          .momentum = s->momentum,
                          .decay_by = s->decay_by,
                          .scaled_decay = s->decay_base_tokens > 0 };
}

static optim_group group_of(const optim_settings *s, const cfg_group *g, const model_config *c) {
    optim_group out = rest_of(s, c);
    snprintf(out.match, sizeof out.match, "%s", g->match);
    if (g->name != CFG_AUTO) out.kind = (optim_kind)g->name;
    int64_t base = g->lr_base_width == CFG_AUTO ? s->lr_base_width : g->lr_base_width;
    int64_t tokens = g->weight_decay_base_tokens;
    if (tokens == CFG_AUTO) tokens = s->decay_base_tokens;
    out.lr_factor = width_factor(base, c) * (isnan(g->lr) ? 1 : g->lr / s->lr);
    out.beta1 = or_else(g->beta1, s->beta1);
    out.beta2 = or_else(g->beta2, s->beta2);
    out.eps = or_else(g->eps, s->eps);
    out.weight_decay = or_else(g->weight_decay, s->weight_decay) * length_factor(tokens, s);
    out.scaled_decay = tokens > 0;
    out.decays_vectors = !isnan(g->weight_decay);
    out.momentum = or_else(g->momentum, s->momentum);
    if (g->weight_decay_schedule != CFG_AUTO) out.decay_by = (wd_schedule)g->weight_decay_schedule;
    return out;
}

/* ---- what cannot be -------------------------------------------------------------------------- */
static err matches_nothing(const char *match, int number, const model *m) {
    err e = ERR("optimizer.groups: group %d: \"%s\" matches no parameter", number, match);
    if (!strcmp(match, "head") && model_conf(m)->tied)
        return err_hint(e, "the head is the embedding's table (model.tie_embeddings): match embed");
    const char *near = NULL, *near_name = NULL;
    str names = { 0 };
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        near = str_nearer(match, q->base, near);
        near_name = str_nearer(match, q->name, near_name);
        if (q->layer <= 0 && q->role != ROLE_STATE && names.len < 400)
            str_add(&names, "%s%s", names.len ? ", " : "", q->name);
    }
    if (!near) near = near_name;
    e = near ? err_hint(e, "\"%s\"; roles are embed, head, matrices and vectors; names are %s",
                        near, names.text)
             : err_hint(e, "roles are embed, head, matrices and vectors; names are %s", names.text);
    str_free(&names);
    return e;
}

/* A group all of whose parameters belong to groups before it. */
static err is_shadowed(const char *match, int number) {
    return err_hint(ERR("optimizer.groups: group %d: every parameter that \"%s\" matches belongs "
                        "to a group before it",
                        number, match),
                    "a parameter belongs to the first group that matches it: put the more specific "
                    "group first");
}

static err check_rate(const optim_settings *s, const cfg_group *g, int number,
                      const model_config *c) {
    int64_t base = g->lr_base_width == CFG_AUTO ? s->lr_base_width : g->lr_base_width;
    if (base > 0 && c->mup)
        return err_hint(ERR("optimizer.lr_base_width and model.mup both scale the learning rate "
                            "with the width"),
                        "set one of them");
    if (isnan(g->lr) || s->lr > 0) return OK;
    return err_hint(ERR("optimizer.groups: group %d: lr is %g, but the schedule is a "
                        "multiple of optimizer.lr, which is 0",
                        number, g->lr),
                    "set optimizer.lr above 0; a last group {match: \"*\", lr: 0} keeps the other "
                    "parameters as they are");
}

/* ---- the table ------------------------------------------------------------------------------- */
static void count_param(const optim_settings *s, optim_group *g, const model_param *q) {
    optim_kind kind = rule_kind_of(s, g, q);
    size_t n = strlen(g->rules);
    g->params++;
    g->elements += q->dim[0] * q->dim[1];
    g->reads |= optim_kind_traits[kind];
    g->decays |= q->decay || g->decays_vectors;
    if (!strstr(g->rules, rule_kind_name(kind)))
        snprintf(g->rules + n, sizeof g->rules - n, "%s%s", n ? ", " : "", rule_kind_name(kind));
}

static err resolve_group(const optim_settings *s, const model *m, int i, group_table *out) {
    bool last = i == s->groups, matched = last;
    const cfg_group *own = &s->group[i];
    const model_config *c = model_conf(m);
    const cfg_group none = { .lr = NAN, .lr_base_width = CFG_AUTO };
    TRY(check_rate(s, last ? &none : own, i + 1, c));
    optim_group *g = &out->group[i];
    *g = last ? rest_of(s, c) : group_of(s, own, c);
    for (int k = 0; k < model_params(m); k++) {
        const model_param *q = model_param_at(m, k);
        bool has = last || (q->role != ROLE_STATE && group_matches(g->match, q));
        matched |= has;
        if (!has || out->of[k] >= 0) continue;
        out->of[k] = i;
        if (q->role != ROLE_STATE) count_param(s, g, q);
    }
    if (!matched) return matches_nothing(g->match, i + 1, m);
    if (!last && !g->params) return is_shadowed(g->match, i + 1);
    return g->params || last ? rules_check_group(g, m) : OK;
}

err groups_resolve(const optim_settings *s, const model *m, group_table *out) {
    *out = (group_table){ .groups = s->groups + 1 };
    out->of = mem_alloc((size_t)model_params(m) * sizeof *out->of);
    for (int k = 0; k < model_params(m); k++) out->of[k] = -1;
    err e = OK;
    for (int i = 0; i < out->groups && !e; i++) e = resolve_group(s, m, i, out);
    if (e) free(out->of);
    return e;
}
