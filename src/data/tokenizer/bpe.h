/* The table of merges, as bpe.c and bpe_walk.c look pairs up. */
#ifndef INGOT_TOKENIZER_BPE_H
#define INGOT_TOKENIZER_BPE_H

#include "tokenizer/tokenizer_internal.h"

static const uint64_t PAIR_NONE =
    UINT64_MAX; /* an empty slot; found for a pair that is not a merge */

static inline uint64_t pair_hash(uint64_t pair) {
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static inline pair_slot *pair_at(const bpe *b, uint64_t pair, uint64_t hash) {
    uint64_t i = hash & b->pairs_mask;
    while (b->pairs[i].pair != pair && b->pairs[i].pair != PAIR_NONE) i = (i + 1) & b->pairs_mask;
    return &b->pairs[i];
}

/* Most pairs looked up are not a merge: a bit for each of many hashes shows, from memory that is near, that
 * a pair is not in the table. */
static inline uint64_t *filter_word(const bpe *b, uint64_t hash) {
    return &b->filter[(hash & b->filter_mask) >> 6];
}

/* @return rank << 32 | id of what the two make; PAIR_NONE: they make nothing. */
static inline uint64_t find_merge(const bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, hash = pair_hash(pair);
    if (!(*filter_word(b, hash) >> (hash & 63) & 1)) return PAIR_NONE;
    return pair_at(b, pair, hash)->made;
}

#endif
