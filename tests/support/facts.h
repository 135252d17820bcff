/* Another legal value of a fact, for tests that walk the table. */
#ifndef INGOT_TESTS_FACTS_H
#define INGOT_TESTS_FACTS_H

#include "model/model.h"

/* A list of as many numbers as the model's longrope needs, from `first` on. */
static inline fact_list numbers_from(const model_config *c, double first) {
    fact_list list = { .n = (int)(rope_dims(c) / 2) };
    for (int i = 0; i < list.n; i++) list.of[i] = first + 0.25 * i;
    return list;
}

/* Gives a model with longrope its lists. */
static inline void fill_rope_lists(model_config *c) {
    if (c->pos != POS_ROPE || c->rope_scaling != ROPE_LONG) return;
    c->rope_short = numbers_from(c, 1);
    c->rope_long = numbers_from(c, 1.75);
}

/* @return a value of the fact that c does not have and that contradicts none of its others. */
static inline double other_value(const model_fact *f, const model_config *c) {
    double v = model_fact_get(f, c);
    if (f->at == offsetof(model_config, first_dense)) return 1; /* not all of them */
    if (f->at == offsetof(model_config, layer_pattern)) return v == 24 ? 4 : 24;
    switch (f->type) {
    case FACT_BOOL: return !v;
    case FACT_CHOICE: return v < f->max ? v + 1 : f->min;
    case FACT_INT: return v == 0 ? 5 : v * 2 <= f->max ? v * 2 : v / 2;
    case FACT_REAL:
    case FACT_LIST: break;
    }
    return v == 0 ? f->max / 8 : v / 2 >= f->min ? v / 2 : v * 2;
}

/* Sets a fact to such a value. */
static inline void set_other_value(const model_fact *f, model_config *c) {
    if (f->type == FACT_LIST) {
        fact_list list = numbers_from(c, 3);
        model_fact_set_list(f, c, &list);
    } else {
        model_fact_set(f, c, other_value(f, c));
    }
}

#endif
