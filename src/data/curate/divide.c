/* Dividing documents among outputs, and merging small files into large parts. */
#include "curate/curate.h"

#include <stdlib.h>
#include <string.h>

#define DIVIDE_SALT                                                                                \
    0x9E6C63D0876A9F4Bu /* so that the choice is independent of that of `data sample` */

struct divide {
    divide_options o;
    char *names[TEXT_OUTPUTS_MAX]; /* owned */
    double upto[TEXT_OUTPUTS_MAX]; /* by shares: sum of those up to this one */
    int n, rest;                   /* rest: the output of other values; -1: none */
    str *values;                   /* [threads] scratch */
    uint64_t hash;
};
static const char *const rules[] = { "in no output" };

static bool is_folder_name(const char *name) {
    return *name && *name != '.' && *name != '_' && !strchr(name, '/') &&
           !text_output_has_name(name);
}

static err add_output(divide *d, char *entry, double *sum) {
    char *equals = strchr(entry, '=');
    double share = 0;
    if (d->n == TEXT_OUTPUTS_MAX)
        return ERR_USAGE("--into: more than %d outputs", TEXT_OUTPUTS_MAX);
    if (!d->o.by &&
        (!equals || !number_parse_real(equals + 1, &share) || !(share > 0 && share <= 1)))
        return err_hint(
            ERR_USAGE("--into: \"%s\" is not a name and a share", entry),
            "write it like train=0.98,validation=0.01,test=0.01; or give --by a member");
    if (d->o.by && equals)
        return err_hint(
            ERR_USAGE("--into: \"%s\": --by %s takes values, not shares", entry, d->o.by),
            "list its values, such as web,books,rest");
    if (equals) *equals = 0;
    if (!is_folder_name(entry))
        return ERR_USAGE("--into: \"%s\" cannot be the name of a folder", entry);
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->names[i], entry) == 0)
            return ERR_USAGE("--into: \"%s\" is there twice", entry);
    *sum += share;
    if (d->o.by && strcmp(entry, "rest") == 0) d->rest = d->n;
    d->upto[d->n] = *sum;
    d->names[d->n++] = strdup(entry);
    return *sum <= 1 + 1e-9 ? OK : ERR_USAGE("--into: the shares add up to %g, more than 1", *sum);
}

err divide_new(const divide_options *o, divide **out) {
    divide *d = mem_alloc(sizeof *d);
    double sum = 0;
    err e = OK;
    d->o = *o;
    d->rest = -1;
    d->values = mem_alloc((size_t)o->threads * sizeof *d->values);
    d->hash = hash_bytes(o->into, strlen(o->into), o->seed);
    if (o->by) d->hash = hash_bytes(o->by, strlen(o->by), d->hash);
    char *list = strdup(o->into), *rest = NULL;
    for (char *at = strtok_r(list, ",", &rest); at && !e; at = strtok_r(NULL, ",", &rest))
        e = add_output(d, at, &sum);
    free(list);
    if (!e && d->n == 0) e = ERR_USAGE("--into: no output is named");
    if (e)
        divide_free(d);
    else
        *out = d;
    return e;
}

void divide_free(divide *d) {
    if (!d) return;
    for (int i = 0; i < d->n; i++) free(d->names[i]);
    for (int i = 0; i < d->o.threads; i++) str_free(&d->values[i]);
    free(d->values);
    free(d);
}

static err choose_output(void *ctx, int worker, int segment, const text_doc *doc, text_verdict *v) {
    divide *d = ctx;
    int i = 0;
    if (d->o.by) {
        str *value = &d->values[worker];
        value->len = 0;
        str_add(value, "%s", "");
        bool has = text_doc_member(doc, d->o.by, value);
        while (i < d->n && !(has && i != d->rest && strlen(d->names[i]) == value->len &&
                             memcmp(d->names[i], value->text, value->len) == 0))
            i++;
        if (i == d->n && d->rest >= 0) i = d->rest;
    } else {
        double at =
            (double)hash_bytes(doc->text.at, doc->text.len, DIVIDE_SALT + d->o.seed) * 0x1p-64;
        while (i < d->n && at >= d->upto[i]) i++;
        /* Shares that add up to 1 but for rounding leave nothing out. */
        if (i == d->n && d->upto[d->n - 1] > 1 - 1e-9) i = d->n - 1;
    }
    v->rule = i < d->n ? TEXT_KEEP : 0;
    v->output = i < d->n ? i : 0;
    v->count[v->output] += i < d->n;
    return OK;
}

text_transform divide_transform(divide *d) {
    return (text_transform){ .name = "split",
                             .rules = rules,
                             .n_rules = (int)COUNT_OF(rules),
                             .counters = (const char *const *)d->names,
                             .n_counters = d->n,
                             .hash = d->hash,
                             .ctx = d,
                             .judge = choose_output,
                             .outputs = (const char *const *)d->names,
                             .n_outputs = d->n };
}

static err keep_all(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    return OK;
}

text_transform merge_transform(int64_t bytes) {
    return (text_transform){ .name = "merge", .hash = (uint64_t)bytes, .judge = keep_all };
}
