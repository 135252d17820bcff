/* How the bandwidth-bound ops are split into tasks and blocks.
 *
 * A task is a range of rows (or elements) whose size depends on the shape alone, so that sums have the same
 * order for any number of threads. Inside a task, operands that are not fp32 are converted to fp32 in
 * blocks small enough to stay in L1; fp32 operands are used in place.
 */
#ifndef INGOT_OPS_CPU_CHUNKS_H
#define INGOT_OPS_CPU_CHUNKS_H

#include "cpu_internal.h"

#include <string.h>

enum {
    BLOCK = 512,               /* elements converted at a time: 2 KiB of fp32 per buffer */
    TASK_ELEMENTS = 16 * 1024, /* enough work to outweigh the cost of starting a task */
};

typedef struct span {
    int64_t lo, hi; /* [lo, hi) */
} span;

/* The i-th range of [0, n) split into ranges of `each`. */
static inline span span_of(int64_t i, int64_t each, int64_t n) {
    return (span){ i * each, MIN((i + 1) * each, n) };
}
static inline int64_t rows_per_task(int64_t cols) { return MAX(1, TASK_ELEMENTS / MAX(cols, 1)); }

/* @return elements [at, at + n) of a tensor as fp32: in place, or converted into tmp. */
static inline const float *elems_get(const tensor *t, int64_t at, int64_t n, float *tmp) {
    if (t->dt == DT_F32) return (const float *)t->data + at;
    CPU(to_f32)(t->dt, (const char *)t->data + (size_t)at * dt_size(t->dt), tmp, n);
    return tmp;
}
/* @return where to compute elements [at, ...): the tensor when fp32, else tmp; then call elems_put. */
static inline float *elems_at(const tensor *t, int64_t at, float *tmp) {
    return t->dt == DT_F32 ? (float *)t->data + at : tmp;
}
static inline void elems_put(const tensor *t, int64_t at, int64_t n, const float *from) {
    if (t->dt == DT_F32 && from == (const float *)t->data + at) return;
    CPU(from_f32)(t->dt, from, (char *)t->data + (size_t)at * dt_size(t->dt), n);
}
/* Copies n elements to a tensor of any float type. */
static inline void elems_copy(const tensor *from, int64_t at, const tensor *to, int64_t to_at,
                              int64_t n) {
    size_t size = dt_size(from->dt);
    if (from->dt == to->dt) {
        memmove((char *)to->data + (size_t)to_at * size, (char *)from->data + (size_t)at * size,
                (size_t)n * size);
        return;
    }
    float tmp[BLOCK];
    for (int64_t k = 0; k < n; k += BLOCK) {
        int64_t m = MIN(BLOCK, n - k);
        elems_put(to, to_at + k, m, elems_get(from, at + k, m, tmp));
    }
}
static inline void elems_clear(const tensor *t, int64_t at, int64_t n) {
    size_t size = dt_size(t->dt);
    memset((char *)t->data + (size_t)at * size, 0, (size_t)n * size);
}

#endif
