/* Where pieces can be split (adjacency.c). */
#ifndef INGOT_TOKENIZER_ADJACENCY_INTERNAL_H
#define INGOT_TOKENIZER_ADJACENCY_INTERNAL_H

#include "tokenizer/bpe_internal.h"

typedef struct adjacency {
    uint64_t *whole, *prefix, *suffix; /* sets of bits; NULL: pieces are never split */
    uint64_t *left; /* by number of the character: whether `whole` or `prefix` has it on the left */
    int whole_shift, prefix_shift; /* of a hash to a bit of the first two */
} adjacency;
enum { ADJACENCY_SUFFIX_BITS = 1 << 16, ADJACENCY_CHARS = 1 << 16 };
void adjacency_build(const bpe *b, adjacency *a);
void adjacency_free(adjacency *a);

/* Whether a character of three bytes is at p. */
static inline bool is_three_bytes(const char *p) {
    return ((uint8_t)p[0] & 0xF0) == 0xE0 && ((uint8_t)p[1] & 0xC0) == 0x80 &&
           ((uint8_t)p[2] & 0xC0) == 0x80;
}

/* The number of such a character: its code point, if the text is not broken. */
static inline uint32_t three_bytes_number(const char *p) {
    return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
}

static inline uint64_t adjacency_bytes(const char *p, int n) {
    uint64_t x = 0;
    for (int i = 0; i < n; i++) x = x << 8 | (uint8_t)p[i];
    return x;
}

static inline uint64_t adjacency_hash(uint64_t key, int shift) {
    return (key * 0x9E3779B97F4A7C15u ^ key >> 24) * 0xD6E8FEB86659FD93u >> shift;
}

static inline uint64_t adjacency_index(char l3, char r1, char r2) {
    return (uint64_t)(l3 & 63) << 10 | (uint64_t)(r1 & 15) << 6 | (uint64_t)(r2 & 63);
}

static inline uint64_t adjacency_has(const uint64_t *set, uint64_t bit) {
    return set[bit >> 6] >> (bit & 63) & 1;
}

/* Whether some token may cover the boundary between two characters of three bytes. @param at where the
 * second begins. */
static inline bool adjacency_covers(const adjacency *a, const char *at) {
    if (adjacency_has(a->suffix, adjacency_index(at[-1], at[0], at[1]))) return true;
    if (!adjacency_has(a->left, three_bytes_number(at - 3))) return false;
    uint64_t left = adjacency_bytes(at - 3, 3), right = adjacency_bytes(at, 3);
    return adjacency_has(a->whole, adjacency_hash(left << 24 | right, a->whole_shift)) ||
           adjacency_has(a->prefix, adjacency_hash(left << 16 | right >> 8, a->prefix_shift));
}

/* @return the end of the part of a piece that begins at `from`: the first boundary that no token covers, or
 * the piece's end. */
static inline size_t adjacency_part_end(const adjacency *a, const char *text, size_t from,
                                        size_t end) {
    bool three = false; /* the character before i has three bytes */
    for (size_t i = from; i + 3 <= end;) {
        bool here = is_three_bytes(text + i);
        if (three && here && !adjacency_covers(a, text + i)) return i;
        three = here;
        i += here ? 3 : 1;
    }
    return end;
}

#endif
