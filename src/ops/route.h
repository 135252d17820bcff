/* What every backend's routing agrees on: sizes, scores, which expert a row belongs to. One token at a
 * time; the order of sums is fixed, so that all kernels choose the same experts from the same logits.
 * __device__ where CUDA includes it. */
#ifndef INGOT_OPS_ROUTE_H
#define INGOT_OPS_ROUTE_H

#include "ops/ops.h"

#ifdef __CUDACC__
#define ROUTE_FN static inline __host__ __device__
#else
#define ROUTE_FN static inline
#endif

enum { ROUTE_MAX_K = 16, ROUTE_MAX_EXPERTS = 1024 };

typedef struct route_sizes {
    int64_t n, experts, k, rows; /* rows: M */
    int64_t seq, seqs, capacity; /* capacity: a sequence's tokens per expert, all of them where 0 */
} route_sizes;

ROUTE_FN route_sizes route_sizes_of(int64_t n, int64_t experts, int64_t k, int64_t rows,
                                    int64_t seq, int64_t capacity) {
    route_sizes s = { n, experts, k, rows, seq > 0 ? seq : n, 1, capacity };
    s.seqs = (n + s.seq - 1) / s.seq;
    return s;
}

/* The expert of a choice, from its row: dropped ones carry it, others lie within an expert's range. */
ROUTE_FN int64_t route_expert(int32_t row, const int32_t *offset, int64_t experts) {
    if (row < 0) return -1 - (int64_t)row;
    int64_t lo = 0, hi = experts; /* offset[lo] <= row < offset[hi] */
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (offset[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

#endif
