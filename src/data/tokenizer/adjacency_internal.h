/* Where pieces can be split (adjacency.c). */
#ifndef INGOT_TOKENIZER_ADJACENCY_INTERNAL_H
#define INGOT_TOKENIZER_ADJACENCY_INTERNAL_H

#include "tokenizer/bpe_internal.h"
#include "tokenizer/chars_internal.h"

typedef struct adjacency {
    uint64_t *whole, *prefix, *suffix; /* sets of bits; NULL: pieces are never split */
    uint64_t *left; /* by number of the character: whether `whole` or `prefix` has it on the left */
    int whole_shift, prefix_shift; /* of a hash to a bit of the first two */
} adjacency;
enum { ADJACENCY_SUFFIX_BITS = 1 << 16, ADJACENCY_CHARS = 1 << 16 };
void adjacency_build(const bpe *b, adjacency *a);
void adjacency_free(adjacency *a);

/* Of two characters' numbers, the right one without its last byte for `prefix`. */
static inline uint64_t adjacency_hash(uint64_t left, uint32_t right, int shift) {
    return (left << 16 | right) * 0x9E3779B97F4A7C15u >> shift;
}

/* Of the last byte of a character and the first two of the next one, as their numbers have them. */
static inline uint64_t adjacency_index(uint32_t left, uint32_t right) {
    return (left & 63) << 10 | right >> 6;
}

static inline uint64_t adjacency_has(const uint64_t *set, uint64_t bit) {
    return set[bit >> 6] >> (bit & 63) & 1;
}

/* Whether some token may cover the boundary between two characters of three bytes, which have these numbers. */
static inline bool adjacency_covers(const adjacency *a, uint32_t left, uint32_t right) {
    if (adjacency_has(a->suffix, adjacency_index(left, right))) return true;
    if (!adjacency_has(a->left, left)) return false;
    return adjacency_has(a->whole, adjacency_hash(left, right, a->whole_shift)) ||
           adjacency_has(a->prefix, adjacency_hash(left, right >> 6, a->prefix_shift));
}

/* @return the end of the part of a piece that begins at `from`: the first boundary that no token covers, or
 * the piece's end. */
static inline size_t adjacency_part_end(const adjacency *a, const char *text, size_t from,
                                        size_t end) {
    bool three = false; /* the character before i has three bytes */
    uint32_t left = 0, right = 0;
    for (size_t i = from; i + 3 <= end; left = right) {
        bool here = is_three_bytes(text + i);
        if (here) right = three_bytes_number(text + i);
        if (three && here && !adjacency_covers(a, left, right)) return i;
        three = here;
        i += here ? 3 : 1;
    }
    return end;
}

#endif
