/* A model's facts as JSON, by the fact table of model.h. */
#include "checkpoint/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* Facts that older checkpoints have under another key, and as true or false where there is a choice
 * of two now. */
static const struct { const char *older, *key; } renamed[] = { { "norm_post", "norm_position" } };

json_t *model_list_to_json(const fact_list *list) {
    json_t *a = json_array();
    for (int i = 0; i < list->n; i++) json_array_append_new(a, json_real(list->of[i]));
    return a;
}

bool model_list_from_json(const model_fact *f, const json_t *v, fact_list *out) {
    *out = (fact_list){ 0 };
    bool good = json_is_array(v) && json_array_size(v) <= FACT_MOST;
    for (size_t i = 0; good && i < json_array_size(v); i++) {
        const json_t *number = json_array_get(v, i);
        good = json_is_number(number) && model_fact_legal(f, json_number_value(number));
        out->of[out->n++] = json_number_value(number);
    }
    return good;
}

static json_t *fact_to_json(const model_fact *f, const model_config *c) {
    double v = model_fact_get(f, c);
    char text[64];
    switch (f->type) {
    case FACT_INT: return json_integer((json_int_t)v);
    case FACT_REAL: return json_real(v);
    case FACT_BOOL: return json_boolean(v != 0);
    case FACT_LIST: return model_list_to_json(model_fact_list(f, c));
    case FACT_CHOICE: break;
    }
    return json_string(model_fact_text(f, v, text, sizeof text));
}

json_t *model_to_json(const model_config *c) {
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(c->name));
    for (int i = 0; i < model_facts(); i++)
        json_object_set_new(o, model_fact_at(i)->key, fact_to_json(model_fact_at(i), c));
    return o;
}

/* @return NaN where the JSON is not of the fact's type. */
static double fact_from_json(const model_fact *f, const json_t *v) {
    switch (f->type) {
    case FACT_INT: return json_is_integer(v) ? (double)json_integer_value(v) : NAN;
    case FACT_REAL: return json_is_number(v) ? json_number_value(v) : NAN;
    case FACT_BOOL: return json_is_boolean(v) ? json_is_true(v) : NAN;
    case FACT_LIST: BUG("a list is not one number");
    case FACT_CHOICE: break;
    }
    for (int i = 0; json_is_string(v) && i <= (int)f->max; i++)
        if (!strcmp(config_choice(f->name, i), json_string_value(v))) return i;
    return json_is_boolean(v) ? json_is_true(v) : NAN;
}

static err read_fact(const char *doc, const char *key, const json_t *v, model_config *c) {
    const char *ours = key;
    for (size_t i = 0; i < COUNT_OF(renamed); i++)
        if (!strcmp(renamed[i].older, key)) ours = renamed[i].key;
    const model_fact *f = model_fact_find(ours);
    if (!f)
        return err_hint(
            ERR("%s: a fact \"%s\" of the model, which this version does not know", doc, key),
            "use the version of ingot that wrote it");
    fact_list list;
    bool is_list = f->type == FACT_LIST, good = is_list && model_list_from_json(f, v, &list);
    double value = is_list ? 0 : fact_from_json(f, v);
    if (is_list ? !good : isnan(value) || (value != 0 && !model_fact_legal(f, value))) {
        char expects[256], *got = json_dumps(v, JSON_ENCODE_ANY);
        err e = err_hint(ERR("%s: \"%s\": expected %s; got %s", doc, key,
                             model_fact_expects(f, expects, sizeof expects), got ? got : "nothing"),
                         "use the version of ingot that wrote it");
        free(got);
        return e;
    }
    if (is_list)
        model_fact_set_list(f, c, &list);
    else
        model_fact_set(f, c, value);
    return OK;
}

/* Older checkpoints have zeros for facts that do not matter to their model: these are not checked
 * but take the defaults. */
static err check_facts(const char *doc, model_config *c) {
    model_config_normalize(c);
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        char value[64], expects[256];
        double v = model_fact_get(f, c);
        if (model_fact_legal_in(f, c)) continue;
        if ((f->flags & FACT_REQUIRED) && v == 0)
            return err_hint(ERR("%s: the model's \"%s\" is missing", doc, f->key),
                            "use another checkpoint: this one is damaged");
        return err_hint(ERR("%s: \"%s\": expected %s; got %s", doc, f->key,
                            model_fact_expects(f, expects, sizeof expects),
                            model_fact_shown(f, c, value, sizeof value)),
                        "use another checkpoint: this one is damaged");
    }
    return model_check(c);
}

/* Version 0.1 rotated an even number of dims, the nearest below the fraction of a head; the fraction
 * that means as many now takes its place. */
static void keep_rotated_dims(model_config *c) {
    double head = (double)c->head_dim;
    int64_t dims = (int64_t)(c->rope_fraction * head + 0.5) / 2 * 2;
    if (c->pos != POS_ROPE || (int64_t)(c->rope_fraction * head) == dims) return;
    c->rope_fraction = (double)dims / head;
    while ((int64_t)(c->rope_fraction * head) < dims)
        c->rope_fraction = nextafter(c->rope_fraction, 1);
}

err model_from_json(const json_t *o, const char *doc, model_config *c) {
    const char *name, *key;
    json_t *v;
    model_config_init(c);
    TRY(io_json_text(o, doc, "name", &name));
    snprintf(c->name, sizeof c->name, "%s", name);
    json_object_foreach((json_t *)(uintptr_t)o, key, v) if (strcmp(key, "name"))
        TRY(read_fact(doc, key, v, c));
    if (json_object_get(o, "norm_post")) keep_rotated_dims(c); /* which version 0.1 wrote */
    return check_facts(doc, c);
}
