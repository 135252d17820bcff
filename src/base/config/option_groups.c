/* optimizer.groups: parameters that are updated with other settings than the section's own. The option's text is a YAML
 * list in flow style, whichever style a file has it in:
 *
 *     [{match: embed, name: adamw, lr: 0.3, betas: [0.8, 0.995]}, {match: "*.norm*", lr: 0.01}]
 *
 * A key other than `match` and `betas` is an option of the section, with its type and its range. */
#include <stdlib.h>
#include <string.h>

#include "config/option_list_internal.h"

/* Options of the section that a group may set, and where its value is kept. */
static const struct {
    const char *key;
    size_t offset;
    int trait; /* what the group's optimizer must read for the key to have an effect; 0: any does */
} group_keys[] = {
#define GROUP_KEY(key, trait) { #key, offsetof(cfg_group, key), trait },
    CFG_GROUP_KEYS(GROUP_KEY)
};

static const option *section_option(const char *key) {
    const option *o = option_find("optimizer", key);
    BUG_IF(o == NULL);
    return o;
}

/* ---- reading --------------------------------------------------------------------------------- */
static err read_betas(const list_reader *r, int i, const yaml_node_t *value, cfg_group *out) {
    const yaml_node_item_t *item = value->data.sequence.items.start;
    if (value->type != YAML_SEQUENCE_NODE || value->data.sequence.items.top - item != 2)
        return err_hint(ERR("%s: group %d: betas: expected a list of two numbers", r->label, i + 1),
                        "write betas: [0.9, 0.95]");
    TRY(list_read_value(r, i, "optimizer", "beta1", "beta1",
                        yaml_document_get_node(r->doc, item[0]), &out->beta1));
    return list_read_value(r, i, "optimizer", "beta2", "beta2",
                           yaml_document_get_node(r->doc, item[1]), &out->beta2);
}

static err read_match(const list_reader *r, int i, const yaml_node_t *value, cfg_group *out) {
    const char *text = list_text(value);
    if (!text || !*text || strlen(text) >= sizeof out->match)
        return err_hint(ERR("%s: group %d: match: expected a role or a pattern of at most %zu "
                            "characters",
                            r->label, i + 1, sizeof out->match - 1),
                        "roles are embed, head, matrices and vectors; a pattern is a parameter's "
                        "name, such as \"attn.*\"");
    snprintf(out->match, sizeof out->match, "%s", text);
    return OK;
}

static err read_group_key(const list_reader *r, int n, const char *key, const yaml_node_t *value) {
    cfg_group *out = (cfg_group *)r->ctx + n;
    if (!strcmp(key, "match")) return read_match(r, n, value, out);
    if (!strcmp(key, "betas")) return read_betas(r, n, value, out);
    for (size_t i = 0; i < COUNT_OF(group_keys); i++)
        if (!strcmp(group_keys[i].key, key))
            return list_read_value(r, n, "optimizer", key, key, value,
                                   (char *)out + group_keys[i].offset);
    err e = ERR("%s: group %d: unknown key \"%.60s\"", r->label, n + 1, key);
    const char *near = str_nearer(key, "betas", str_nearer(key, "match", NULL));
    str all = { 0 };
    str_add(&all, "match, betas");
    for (size_t i = 0; i < COUNT_OF(group_keys); i++) {
        str_add(&all, ", %s", group_keys[i].key);
        near = str_nearer(key, group_keys[i].key, near);
    }
    e = near ? err_hint(e, "\"%s\"; a group has %s", near, all.text)
             : err_hint(e, "a group has %s", all.text);
    str_free(&all);
    return e;
}

static err clear_group(const list_reader *r, int n) {
    cfg_group *out = (cfg_group *)r->ctx + n;
    *out = (cfg_group){ .match = "" };
    for (size_t i = 0; i < COUNT_OF(group_keys); i++)
        option_unset(section_option(group_keys[i].key), (char *)out + group_keys[i].offset);
    return OK;
}

static err require_match(const list_reader *r, int n) {
    if (*((const cfg_group *)r->ctx)[n].match) return OK;
    return err_hint(ERR("%s: group %d: match is missing", r->label, n + 1),
                    "state which parameters the group has: match: embed, head, matrices, vectors, "
                    "or a pattern such as \"attn.*\"");
}

static err parse_groups(const char *text, const char *label, cfg_group *out, int *n) {
    list_reader r = { .label = label,
                      .item = "group",
                      .example = "[{match: embed, lr: 0.3}]",
                      .most = CFG_MAX_GROUPS,
                      .begin = clear_group,
                      .read_key = read_group_key,
                      .end = require_match,
                      .ctx = out };
    return list_read(&r, text, n);
}

/* ---- writing --------------------------------------------------------------------------------- */
/* Whether a word means the same with quotes and without. */
static bool is_plain_word(const char *s) {
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._";
    return s[strspn(s, safe)] == '\0' && (*s < '0' || *s > '9');
}

static void print_groups(const cfg_group *g, int n, str *out) {
    str_add(out, "[");
    for (int i = 0; i < n; i++) {
        str_add(out, "%s{match: ", i ? ", " : "");
        if (is_plain_word(g[i].match))
            str_add(out, "%s", g[i].match);
        else
            quote_text(out, g[i].match);
        for (size_t k = 0; k < COUNT_OF(group_keys); k++) {
            const option *o = section_option(group_keys[k].key);
            const void *at = (const char *)&g[i] + group_keys[k].offset;
            if (option_is_unset(o, at)) continue;
            str_add(out, ", %s: ", group_keys[k].key);
            option_print_value(o, at, out);
        }
        str_add(out, "}");
    }
    str_add(out, "]");
}

err groups_normalize(const char *text, const char *label, str *out) {
    cfg_group *g = mem_alloc(CFG_MAX_GROUPS * sizeof *g);
    int n;
    err e = parse_groups(text, label, g, &n);
    if (!e) print_groups(g, n, out);
    free(g);
    return e;
}

/* ---- asking ---------------------------------------------------------------------------------- */
int config_groups(const char *text, cfg_group out[CFG_MAX_GROUPS]) {
    int n;
    err e = parse_groups(text, "optimizer.groups", out, &n);
    BUG_IF(e); /* it was checked when it was set */
    return n;
}

static optim_kind group_kind(const config *c, const cfg_group *g) {
    return g->name == CFG_AUTO ? c->optimizer.name : g->name;
}

bool config_optim_reads(const config *c, int traits) {
    if (optim_kind_traits[c->optimizer.name] & traits) return true;
    cfg_group *g = mem_alloc(CFG_MAX_GROUPS * sizeof *g);
    bool reads = false;
    int n = config_groups(c->optimizer.groups, g);
    for (int i = 0; i < n; i++) reads |= (optim_kind_traits[group_kind(c, &g[i])] & traits) != 0;
    free(g);
    return reads;
}

bool config_groups_same_rules(const char *a, const char *b) {
    cfg_group *x = mem_alloc(2 * CFG_MAX_GROUPS * sizeof *x), *y = x + CFG_MAX_GROUPS;
    int n, m;
    err e = parse_groups(a, "", x, &n), f = parse_groups(b, "", y, &m);
    bool same = !e && !f && n == m;
    for (int i = 0; same && i < n; i++)
        same = !strcmp(x[i].match, y[i].match) && x[i].name == y[i].name;
    err_free(e);
    err_free(f);
    free(x);
    return same;
}

err groups_check_effects(const config *c) {
    cfg_group *g = mem_alloc(CFG_MAX_GROUPS * sizeof *g);
    int n = config_groups(c->optimizer.groups, g);
    err e = OK;
    for (int i = 0; i < n && !e; i++)
        for (size_t k = 0; k < COUNT_OF(group_keys) && !e; k++) {
            const option *o = section_option(group_keys[k].key);
            int trait = group_keys[k].trait;
            if (!trait || optim_kind_traits[group_kind(c, &g[i])] & trait ||
                option_is_unset(o, (const char *)&g[i] + group_keys[k].offset))
                continue;
            e = err_hint(ERR("%s: optimizer.groups: group %d (%s): %s has no effect: %s does not "
                             "read it",
                             config_where(c, "optimizer.groups"), i + 1, g[i].match, o->key,
                             config_choice("optimizer.name", (int)group_kind(c, &g[i]))),
                         "leave %s out, or give the group a name of an optimizer that reads it",
                         o->key);
        }
    free(g);
    return e;
}
