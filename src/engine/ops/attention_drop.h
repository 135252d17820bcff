/* attention_drop: which attention probabilities dropout zeroes, for the CPU's and the CUDA kernels alike.
 * Depends on ops.
 *
 * Softmax comes first; then a probability is zeroed with probability p, and else divided by 1 - p. The
 * sum of the row that softmax divides by, and so lse, does not change. The decision for query and key of
 * a head is byte `key id % 16` (the low byte of a word first) of
 *
 *     philox(step key, { site | layer << 16, query id low, query id high, head << 21 | key id / 16 % 2^21 })
 *
 * after seven rounds, the fewest that pass all of TestU01's tests (Salmon et al., 2011), since there is a block for every
 * sixteen scores: zeroed where it is below p 2^8. Ids are those of the tokens in the data, and heads are counted over
 * the whole model, so that every layout, forward, recompute and backward draw the same mask. Keys that a
 * query sees are within 2^24 tokens of each other (model.max_seq_len), so that their ids differ in the
 * bits used. The rate is rounded to a multiple of 1/256, from 1/256 to 255/256, as FlashAttention does: drawing is most of
 * what dropout costs, and more bits per decision would double it. What is kept is scaled by the rounded rate, so that the mean
 * is exact. */
#ifndef INGOT_OPS_ATTENTION_DROP_H
#define INGOT_OPS_ATTENTION_DROP_H

#include "ops/ops.h"

#ifdef __CUDACC__
#define ATTENTION_DROP_FUNCTION static __host__ __device__ inline
#else
#define ATTENTION_DROP_FUNCTION static inline
#endif

enum { ATTENTION_DROP_KEYS = 16, ATTENTION_DROP_KEY_BITS = 21 }; /* keys that share a counter */
enum { ATTENTION_DROP_ROUNDS = 7 };

typedef struct attention_drop {
    uint32_t site;     /* with the layer */
    uint32_t head;     /* of the model: the first of this rank's */
    uint32_t below;    /* zeroed when the byte is below */
    float keep;        /* what a kept probability is multiplied by */
    const int64_t *id; /* [N]; NULL: no dropout */
} attention_drop;

/* The dropout of an ATTENTION or ATTENTION_BWD call; `id` is its operand of that name. */
static inline attention_drop attention_drop_of(const op_call *c, const tensor *id) {
    attention_drop d = { 0, 0, 0, 1, NULL };
    double p = c->attr.dropout.p;
    if (p == 0) return d;
    BUG_IF(!(p > 0 && p < 1) || c->attr.dropout.site >> 16 || !id->data);
    BUG_IF(c->attr.heads.first + c->attr.heads.q > 1 << (32 - ATTENTION_DROP_KEY_BITS));
    d.site = c->attr.dropout.site | c->run->layer << 16;
    d.head = (uint32_t)c->attr.heads.first;
    d.below = (uint32_t)(p * 256 + 0.5);
    d.below = d.below < 1 ? 1 : d.below > 255 ? 255 : d.below;
    d.keep = (float)(1 / (1 - d.below / 256.0));
    d.id = (const int64_t *)id->data;
    return d;
}

/* The last word of the counter of a key. @param head of this rank */
ATTENTION_DROP_FUNCTION uint32_t attention_drop_counter(const attention_drop *d, int head,
                                                        int64_t key_id) {
    uint32_t keys = (uint32_t)((uint64_t)key_id / ATTENTION_DROP_KEYS);
    return (d->head + (uint32_t)head) << ATTENTION_DROP_KEY_BITS |
           (keys & ((1u << ATTENTION_DROP_KEY_BITS) - 1));
}

#endif
