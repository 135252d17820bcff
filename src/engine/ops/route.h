/* Rules of routing that every backend follows: sizes, scores, which expert a row belongs to. One token at a
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

enum { ROUTE_MAX_K = 16, ROUTE_MAX_EXPERTS = 1024, ROUTE_MAX_GROUPS = 64 };

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

/* Ranks that share the tokens of a sequence: what each chunk of it chose. */
typedef struct route_ranks {
    const int32_t *count;        /* [C,S,E], C = ranks chunks; NULL: sequences are whole */
    int64_t chunks, ranks, rank; /* chunks of a sequence per rank; ranks; this one */
    int64_t seqs, experts;
} route_ranks;

/* Which chunk of the sequence a rank's is. */
ROUTE_FN int64_t route_chunk(const route_ranks *p, int64_t rank, int64_t chunk) {
    return chunk ? p->chunks * p->ranks - 1 - rank : rank;
}

/* Choices of an expert in the sequence of a unit (a sequence, or a chunk of it) that come before the unit.
 * @param all those of the whole sequence instead */
ROUTE_FN int32_t route_choices(const route_ranks *p, int64_t unit, int64_t expert, bool all) {
    int64_t b = unit / p->chunks, own = route_chunk(p, p->rank, unit % p->chunks);
    int32_t sum = 0;
    for (int64_t rank = 0; rank < p->ranks; rank++)
        for (int64_t chunk = 0; chunk < p->chunks; chunk++)
            if (all || route_chunk(p, rank, chunk) < own)
                sum += p->count[((rank * p->chunks + chunk) * p->seqs + b) * p->experts + expert];
    return sum;
}

/* Returns how many of n choices in a unit an expert takes. */
ROUTE_FN int32_t route_taken(const route_ranks *p, int64_t capacity, int64_t unit, int64_t expert,
                             int32_t n) {
    int64_t left = capacity - (p->count ? route_choices(p, unit, expert, false) : 0);
    if (!capacity) return n;
    return left < 0 ? 0 : n < left ? n : (int32_t)left;
}

ROUTE_FN route_ranks route_ranks_of(const op_call *c, const tensor *count, int64_t experts) {
    route_ranks p = { (const int32_t *)count->data, 1, 1, 0, 1, experts };
    if (!p.count) return p;
    p.chunks = c->attr.route.chunks;
    p.ranks = count->dim[0] / p.chunks;
    p.rank = c->attr.route.rank;
    p.seqs = count->dim[1];
    return p;
}

/* The two best scores of a group so far. */
typedef struct route_best {
    float first, second;
} route_best;
ROUTE_FN route_best route_better(route_best b, float v) {
    if (v > b.first) return (route_best){ v, b.first };
    if (v > b.second) b.second = v;
    return b;
}

/* Returns the `limit` groups of the greatest scores, a bit each; ties go to the lower number. */
ROUTE_FN uint64_t route_best_groups(const float *score, int groups, int limit) {
    uint64_t chosen = 0;
    for (int i = 0; i < limit; i++) {
        int best = -1;
        for (int g = 0; g < groups; g++)
            if (!(chosen >> g & 1) && (best < 0 || score[g] > score[best])) best = g;
        chosen |= (uint64_t)1 << best;
    }
    return chosen;
}

/* The expert of a choice, from its row: dropped ones carry it, others are within an expert's range. */
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
