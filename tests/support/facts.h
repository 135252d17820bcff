/* Another legal value of a fact, for tests that walk the table. */
#ifndef INGOT_TESTS_FACTS_H
#define INGOT_TESTS_FACTS_H

#include "model/model.h"

/* @return a value of the fact that c does not have and that contradicts none of its others. */
static inline double other_value(const model_fact *f, const model_config *c) {
    double v = model_fact_get(f, c);
    if (f->at == offsetof(model_config, first_dense)) return 1; /* not all of them */
    if (f->at == offsetof(model_config, layer_pattern)) return v == 24 ? 4 : 24;
    switch (f->type) {
    case FACT_BOOL: return !v;
    case FACT_CHOICE: return v < f->max ? v + 1 : f->min;
    case FACT_INT: return v == 0 ? 5 : v * 2 <= f->max ? v * 2 : v / 2;
    case FACT_REAL: break;
    }
    return v == 0 ? f->max / 8 : v / 2 >= f->min ? v / 2 : v * 2;
}

#endif
