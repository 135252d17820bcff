/* py_random: the random numbers of Python's `random` module, so that few-shot examples are those that other programs draw.
 *
 *     py_random r;
 *     py_random_seed(&r, 1234);
 *     int64_t drawn[5];
 *     py_random_sample(&r, 1000, 5, drawn);              // random.Random(1234).sample(range(1000), 5)
 */
#ifndef INGOT_PY_RANDOM_H
#define INGOT_PY_RANDOM_H

#include "util/util.h"

typedef struct py_random {
    uint32_t word[624];
    int at;
} py_random;
void py_random_seed(py_random *r, uint64_t seed);
uint64_t py_random_below(py_random *r, uint64_t n); /* n > 0 */
/* k different numbers below n, in the order in which they are drawn. @param out [k], k <= n */
void py_random_sample(py_random *r, int64_t n, int64_t k, int64_t *out);
void py_random_shuffle(py_random *r, int64_t *list, int64_t n);

#endif
