/* Rules by learned models and by members of documents: --quality, --annotate and --where. */
#include "curate/filter_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- conditions on members ------------------------------------------------------------------------- */

typedef enum { IS_LEAST, IS_MOST, IS_EQUAL, IS_NOT } condition_kind;
static const struct {
    const char *text;
    condition_kind kind;
} operators[] = { { ">=", IS_LEAST }, { "<=", IS_MOST }, { "!=", IS_NOT }, { "=", IS_EQUAL } };

struct filter_condition {
    char *name, *value; /* owned */
    condition_kind kind;
    double number;
};

err filter_take_condition(filter *f, const char *text) {
    for (size_t i = 0; i < COUNT_OF(operators); i++) {
        const char *at = strstr(text, operators[i].text);
        if (!at || at == text) continue;
        filter_condition c = { .name = strndup(text, (size_t)(at - text)),
                               .value = strdup(at + strlen(operators[i].text)),
                               .kind = operators[i].kind };
        bool number = number_parse_real(c.value, &c.number);
        f->conditions =
            mem_grow(f->conditions, ((size_t)f->n_conditions + 1) * sizeof *f->conditions);
        f->conditions[f->n_conditions++] = c;
        if (!number && (c.kind == IS_LEAST || c.kind == IS_MOST))
            return ERR_USAGE("--where: \"%s\" in \"%s\" is not a number", c.value, text);
        return OK;
    }
    return err_hint(ERR_USAGE("--where: \"%s\" is not a condition", text),
                    "write it like quality_score>=0.5, words<=1000, language=en or license!=none");
}

void filter_conditions_free(filter *f) {
    for (int i = 0; i < f->n_conditions; i++) {
        free(f->conditions[i].name);
        free(f->conditions[i].value);
    }
    free(f->conditions);
}

/* @return all members of a document but its text, owned; NULL: none. */
static json_t *document_members(const text_doc *d, str *scratch) {
    scratch->len = 0;
    if (d->line.len) return json_loadb(d->line.at, d->line.len, 0, NULL);
    if (!d->members.len) return NULL;
    str_add_bytes(scratch, "{", 1);
    str_add_bytes(scratch, d->members.at + 1, d->members.len - 1); /* without the comma */
    str_add_bytes(scratch, "}", 1);
    return json_loadb(scratch->text, scratch->len, 0, NULL);
}

static bool text_equals(const json_t *v, const char *text) {
    char number[64] = "";
    if (json_is_string(v)) return strcmp(json_string_value(v), text) == 0;
    if (json_is_boolean(v)) return strcmp(json_is_true(v) ? "true" : "false", text) == 0;
    if (json_is_number(v)) snprintf(number, sizeof number, "%.15g", json_number_value(v));
    return number[0] && strcmp(number, text) == 0;
}

static bool condition_holds(const filter_condition *c, const json_t *members) {
    const json_t *v = json_object_get(members, c->name);
    switch (c->kind) {
    case IS_LEAST: return json_is_number(v) && json_number_value(v) >= c->number;
    case IS_MOST: return json_is_number(v) && json_number_value(v) <= c->number;
    case IS_EQUAL: return v && text_equals(v, c->value);
    case IS_NOT: return !v || !text_equals(v, c->value);
    }
    return false;
}

bool filter_where(judgment *j) {
    json_t *members = document_members(j->doc, &j->w->folded);
    int failed = 0;
    for (int i = 0; i < j->f->n_conditions; i++)
        failed += !condition_holds(&j->f->conditions[i], members);
    json_decref(members);
    return judgment_fails(j, FILTER_where, failed);
}

/* ---- scores ----------------------------------------------------------------------------------------- */

int filter_likeliest(const float *p, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (p[i] > p[best]) best = i;
    return best;
}

void filter_annotate(judgment *j, const char *name, const language_model *m, const float *p) {
    str *out = &j->w->members;
    if (!j->f->o.annotate) return;
    int best = filter_likeliest(p, language_count(m));
    const char *label = language_name(m, best);
    str_add(out, ", \"%s\": ", name);
    text_json_string(label, strlen(label), out);
    str_add(out, ", \"%s_score\": %.6g", name, (double)p[best]);
    j->v->members = (text_span){ out->text, out->len };
}

bool filter_quality(judgment *j) {
    const filter *f = j->f;
    for (int k = 0; k < f->n_quality; k++) {
        const classifier *c = &f->quality[k];
        const float *p = language_predict(c->model, j->w->quality[k], j->v->text);
        float best = 0;
        filter_annotate(j, c->name, c->model, p);
        for (int i = 0; i < c->n_kept; i++) best = MAX(best, p[c->kept[i]]);
        if (c->n_kept > 0 && judgment_fails(j, FILTER_quality, best)) return true;
    }
    return false;
}
