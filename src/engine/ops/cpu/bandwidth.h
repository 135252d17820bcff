/* How the bandwidth-bound ops read memory. Hardware prefetchers predict the next addresses from the last:
 * tasks are long, since every jump to another address starts the prediction over; and loops that compute
 * much per row prefetch what is some rows ahead, so that loading continues meanwhile. */
#ifndef INGOT_OPS_CPU_BANDWIDTH_H
#define INGOT_OPS_CPU_BANDWIDTH_H

#include "chunks.h"
#include "vec.h"

enum {
    PREFETCH_AHEAD = 12 * 1024, /* bytes to prefetch ahead: past L1, within L2 */
    TASKS_PER_THREAD = 4,       /* per thread: when one is late, others take over its share */
    PREFETCH_LINE = 64,
};

/* @return elements per task of a loop over n of them, for loops whose result does not depend on it. */
static inline int64_t bandwidth_task(int64_t n, const pool *p) {
    int64_t share = ceil_div(n, (int64_t)TASKS_PER_THREAD * pool_size(p));
    return MIN(MAX(share, TASK_ELEMENTS), 16 * TASK_ELEMENTS);
}
static inline int64_t bandwidth_rows(int64_t n, int64_t cols, const pool *p) {
    return MAX(1, bandwidth_task(n * cols, p) / MAX(cols, 1));
}

/* For the parts of loops with many variants, which are constants after inlining. Sanitizers check every access of
 * each variant, so that inlining takes gcc up to a minute for a file there; the compiler decides then. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOOP_INLINE static inline
#else
#define LOOP_INLINE VEC_INLINE
#endif

/* ---- units: elements computed together, fp32 or bf16. Loops over the vectors of a unit do one operation
 * on all of them, then the next, so that no vector waits for its own previous operation. */
enum { UNIT_VECS = 4, UNIT = UNIT_VECS * VEC };
#define UNIT_EACH VEC_UNROLL for (int i = 0; i < UNIT_VECS; i++)

LOOP_INLINE size_t elem_size(dtype t) { return t == DT_F32 ? sizeof(float) : sizeof(uint16_t); }
/* n vectors from element k on; n is even, and constant. */
LOOP_INLINE void vecs_load(dtype t, const void *p, int64_t k, vf *x, int n) {
    VEC_UNROLL for (int i = 0; i < n; i += 2) vec_load2(t, p, k + i * VEC, x + i);
}
LOOP_INLINE void vecs_store(dtype t, void *p, int64_t k, const vf *x, int n) {
    VEC_UNROLL for (int i = 0; i < n; i += 2) vec_store2(t, p, k + i * VEC, x + i);
}
LOOP_INLINE void unit_load(dtype t, const void *p, int64_t k, vf x[UNIT_VECS]) {
    vecs_load(t, p, k, x, UNIT_VECS);
}
LOOP_INLINE void unit_store(dtype t, void *p, int64_t k, const vf x[UNIT_VECS]) {
    vecs_store(t, p, k, x, UNIT_VECS);
}
/* Prefetches the unit PREFETCH_AHEAD bytes after element k, which need not exist. */
LOOP_INLINE void unit_prefetch(dtype t, const void *p, int64_t k) {
    const char *at = (const char *)p + (size_t)k * elem_size(t) + PREFETCH_AHEAD;
    VEC_UNROLL for (size_t i = 0; i < UNIT * elem_size(t); i += PREFETCH_LINE)
        __builtin_prefetch(at + i, 0, 2);
}

#endif
