/* The facts of a model as data: config/model_facts.def turned into a table, and what can be done
 * with any of its rows. */
#include "model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER_SIZE(member) sizeof(((model_config *)0)->member)
#define FACT(key_, member, type_, def, low, high, flags_)                                          \
    { .key = #key_,                                                                                \
      .name = "model." #key_,                                                                      \
      .type = (type_),                                                                             \
      .flags = (flags_),                                                                           \
      .fallback = (double)(def),                                                                   \
      .min = (double)(low),                                                                        \
      .max = (double)(high),                                                                       \
      .at = offsetof(model_config, member),                                                        \
      .size = MEMBER_SIZE(member),                                                                 \
      .option_at = offsetof(config, model.key_) },
static const model_fact facts[] = {
#define MODEL_INT(key, member, type, def, min, max, flags, help)                                   \
    FACT(key, member, FACT_INT, def, min, max, flags)
#define MODEL_REAL(key, member, def, min, max, flags, help)                                        \
    FACT(key, member, FACT_REAL, def, min, max, flags)
#define MODEL_BOOL(key, member, def, flags, help) FACT(key, member, FACT_BOOL, def, 0, 1, flags)
#define MODEL_CHOICE(key, member, type, def, flags, help)                                          \
    FACT(key, member, FACT_CHOICE, def, 0, type##_count - 1, flags)
#define MODEL_LIST(key, member, min, max, flags, help)                                             \
    FACT(key, member, FACT_LIST, 0, min, max, flags)
#include "config/model_facts.def"
};

int model_facts(void) { return (int)COUNT_OF(facts); }

const model_fact *model_fact_at(int i) {
    BUG_IF(i < 0 || i >= model_facts());
    return &facts[i];
}

const model_fact *model_fact_find(const char *key) {
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        if (!strcmp(facts[i].key, key)) return &facts[i];
    return NULL;
}

double model_fact_get(const model_fact *f, const model_config *c) {
    const void *at = (const char *)c + f->at;
    switch (f->type) {
    case FACT_REAL: return *(const double *)at;
    case FACT_BOOL: return *(const bool *)at;
    case FACT_LIST: return ((const fact_list *)at)->n;
    case FACT_INT:
    case FACT_CHOICE: break;
    }
    return f->size == sizeof(int64_t) ? (double)*(const int64_t *)at : *(const int *)at;
}

void model_fact_set(const model_fact *f, model_config *c, double value) {
    void *at = (char *)c + f->at;
    switch (f->type) {
    case FACT_REAL: *(double *)at = value; return;
    case FACT_BOOL: *(bool *)at = value != 0; return;
    case FACT_LIST:
        BUG_IF(value != 0);
        *(fact_list *)at = (fact_list){ 0 };
        return;
    case FACT_INT:
    case FACT_CHOICE: break;
    }
    if (f->size == sizeof(int64_t))
        *(int64_t *)at = (int64_t)value;
    else
        *(int *)at = (int)value;
}

const fact_list *model_fact_list(const model_fact *f, const model_config *c) {
    BUG_IF(f->type != FACT_LIST);
    return (const fact_list *)((const char *)c + f->at);
}

void model_fact_set_list(const model_fact *f, model_config *c, const fact_list *list) {
    BUG_IF(f->type != FACT_LIST);
    *(fact_list *)((char *)c + f->at) = *list;
}

void model_fact_copy(const model_fact *f, const model_config *from, model_config *to) {
    memcpy((char *)to + f->at, (const char *)from + f->at, f->size);
}

bool model_fact_same(const model_fact *f, const model_config *a, const model_config *b) {
    if (model_fact_get(f, a) != model_fact_get(f, b)) return false;
    for (int i = 0; f->type == FACT_LIST && i < model_fact_list(f, a)->n; i++)
        if (model_fact_list(f, a)->of[i] != model_fact_list(f, b)->of[i]) return false;
    return true;
}

/* Whether some layers have no positions. */
static bool has_unrotated(const model_config *c) {
    bool some = c->pos == POS_NONE;
    for (int64_t rest = c->pos == POS_ROPE ? c->layer_pattern : 0; rest; rest /= 10)
        some |= rest % 10 == 3 || rest % 10 == 4;
    return some;
}

bool model_has_delta(const model_config *c) {
    bool some = false;
    for (int64_t rest = c->layer_pattern; rest; rest /= 10) some |= rest % 10 == 5;
    return some;
}

/* @return what a fact needs to matter that this model does not have; NULL: nothing is missing. */
static const char *missing_of(const model_fact *f, const model_config *c) {
    rope_scaling_kind scaling = c->pos == POS_ROPE ? c->rope_scaling : ROPE_PLAIN;
    CHOICE_DECIDED(rope_scaling_kind, 6);
#define X(name, holds, needs)                                                                      \
    if ((f->flags & FACT_OF_##name) && !(holds)) return needs;
    FACT_CONDITIONS(X)
#undef X
    return NULL;
}

bool model_fact_applies(const model_fact *f, const model_config *c) { return !missing_of(f, c); }

err model_check_idle(const config *cfg, const model_config *c, bool log) {
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        const char *needs = missing_of(&facts[i], c);
        if (needs) TRY(config_refuse_idle(cfg, facts[i].name, "model", log, needs));
    }
    return OK;
}

bool model_fact_legal(const model_fact *f, double value) {
    bool whole = f->type != FACT_REAL && f->type != FACT_LIST;
    return value >= f->min && value <= f->max && (!whole || value == floor(value));
}

bool model_fact_legal_in(const model_fact *f, const model_config *c) {
    if (f->type != FACT_LIST) return model_fact_legal(f, model_fact_get(f, c));
    const fact_list *list = model_fact_list(f, c);
    bool legal = true;
    for (int i = 0; i < list->n; i++) legal &= model_fact_legal(f, list->of[i]);
    return legal;
}

char *model_fact_text(const model_fact *f, double value, char *buf, size_t n) {
    switch (f->type) {
    case FACT_INT: snprintf(buf, n, "%lld", (long long)value); break;
    case FACT_BOOL: snprintf(buf, n, "%s", value != 0 ? "true" : "false"); break;
    case FACT_CHOICE: snprintf(buf, n, "%s", config_choice(f->name, (int)value)); break;
    case FACT_LIST: /* one of its numbers */
    case FACT_REAL: /* the shortest text that reads back as the value */
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(buf, n, "%.*g", digits, value);
            if (strtod(buf, NULL) == value) break;
        }
    }
    return buf;
}

char *model_fact_shown(const model_fact *f, const model_config *c, char *buf, size_t n) {
    if (f->type != FACT_LIST) return model_fact_text(f, model_fact_get(f, c), buf, n);
    const fact_list *list = model_fact_list(f, c);
    str text = { 0 };
    char number[32];
    for (int i = 0; i < list->n; i++)
        str_add(&text, "%s%s", i ? ", " : "",
                model_fact_text(f, list->of[i], number, sizeof number));
    bool whole = text.len + sizeof "[]" <= n;
    int cut = (int)(whole ? text.len : n - sizeof "[...]");
    snprintf(buf, n, "[%.*s%s]", cut, text.len ? text.text : "", whole ? "" : "...");
    str_free(&text);
    return buf;
}

char *model_fact_expects(const model_fact *f, char *buf, size_t n) {
    str text = { 0 };
    switch (f->type) {
    case FACT_INT:
        str_add(&text, "a whole number from %lld to %lld", (long long)f->min, (long long)f->max);
        break;
    case FACT_REAL: str_add(&text, "a number from %g to %g", f->min, f->max); break;
    case FACT_LIST:
        str_add(&text, "a list of at most %d numbers from %g to %g", FACT_MOST, f->min, f->max);
        break;
    case FACT_BOOL: str_add(&text, "true or false"); break;
    case FACT_CHOICE:
        for (int i = 0; i <= (int)f->max; i++)
            str_add(&text, "%s%s",
                    i == 0            ? ""
                    : i < (int)f->max ? ", "
                                      : " or ",
                    config_choice(f->name, i));
    }
    snprintf(buf, n, "%s", text.text);
    str_free(&text);
    return buf;
}

int model_config_diff(const model_config *a, const model_config *b, int from) {
    for (int i = from; i < model_facts(); i++) {
        const model_fact *f = &facts[i];
        if (!model_fact_applies(f, a) && !model_fact_applies(f, b)) continue;
        if (!model_fact_same(f, a, b)) return i;
    }
    return -1;
}

void model_config_init(model_config *c) {
    *c = (model_config){ 0 };
    for (size_t i = 0; i < COUNT_OF(facts); i++) model_fact_set(&facts[i], c, facts[i].fallback);
}

void model_config_without_mup(model_config *c) {
    if (!c->mup) return;
    if (c->attention_scale == 0) c->attention_scale = 8 / (double)c->head_dim;
    c->logit_scale *= (double)c->mup_base / (double)c->dim;
    c->mup = false;
    model_config_normalize(c);
}

void model_config_normalize(model_config *c) {
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        if (!model_fact_applies(&facts[i], c)) model_fact_set(&facts[i], c, facts[i].fallback);
    if (c->rope_local == c->rope_theta && c->rope_scaling == ROPE_PLAIN) c->rope_local = 0;
}
