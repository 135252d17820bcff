/* Hashes of short texts, and bytes searched eight at a time: for loops over the words of a document, where a call to a
 * library per word would dominate. */
#ifndef INGOT_WORD_HASH_H
#define INGOT_WORD_HASH_H

#include <stdint.h>
#include <string.h>

#define EACH_BYTE(byte) ((uint64_t)(byte)*UINT64_C(0x0101010101010101))
#define HIGHS           EACH_BYTE(0x80)

static inline uint64_t load_eight(const char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t load_four(const char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Marks, by their highest bit, bytes that may end a word: white space, controls and non-ASCII bytes. Marks after the first
 * non-ASCII byte are undefined. */
static inline uint64_t word_end_bytes(uint64_t eight) {
    uint64_t above_space = (eight & ~HIGHS) + EACH_BYTE(0x7F - ' ');
    return (~above_space | eight) & HIGHS;
}

/* Marks bytes up to a space: white space and controls of ASCII. */
static inline uint64_t ascii_end_bytes(uint64_t eight) {
    return ~((eight & ~HIGHS) + EACH_BYTE(0x7F - ' ')) & ~eight & HIGHS;
}

static inline uint64_t mix_hash(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* The hash of n bytes. Reads no others: a rest of fewer than eight bytes overlaps what was read before. */
static inline uint64_t word_hash(const char *p, size_t n) {
    uint64_t h = n * 0xD6E8FEB86659FD93u; /* short texts are told apart by their lengths too */
    if (n >= 8) {
        size_t i = 0;
        for (; i + 8 <= n; i += 8) h = mix_hash(h, load_eight(p + i));
        return i < n ? mix_hash(h, load_eight(p + n - 8)) : h;
    }
    if (n >= 4) return mix_hash(h, load_four(p) | (uint64_t)load_four(p + n - 4) << 32);
    if (n == 0) return mix_hash(h, 0);
    return mix_hash(h, (uint8_t)p[0] | (uint64_t)(uint8_t)p[n / 2] << 8 |
                           (uint64_t)(uint8_t)p[n - 1] << 16);
}

#endif
