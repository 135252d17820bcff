/* Hashes of short texts, and bytes searched eight at a time: for loops over the words of a document, where a call to a
 * library per word would dominate. */
#ifndef INGOT_WORD_HASH_H
#define INGOT_WORD_HASH_H

#include <stdbool.h>
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

/* @return the n < 8 bytes at p as a number, the first lowest. Reads no others: parts overlap. */
static inline uint64_t load_short(const char *p, size_t n) {
    if (n >= 4) return load_four(p) | (uint64_t)load_four(p + n - 4) << 8 * (n - 4);
    if (n == 0) return 0;
    return (uint8_t)p[0] | (uint64_t)(uint8_t)p[n / 2] << 8 * (n / 2) |
           (uint64_t)(uint8_t)p[n - 1] << 8 * (n - 1);
}

/* The hash of a word of n < 8 bytes that load_short has loaded. */
static inline uint64_t short_hash(uint64_t bytes, size_t n) {
    return mix_hash(n * 0xD6E8FEB86659FD93u,
                    bytes); /* the length distinguishes runs of zero bytes */
}

/* The hash of n bytes. Reads no others: the last eight overlap what was read before. */
static inline uint64_t word_hash(const char *p, size_t n) {
    if (n < 8) return short_hash(load_short(p, n), n);
    uint64_t h = n * 0xD6E8FEB86659FD93u;
    for (size_t i = 0; i + 8 < n; i += 8) h = mix_hash(h, load_eight(p + i));
    return mix_hash(h, load_eight(p + n - 8));
}

static inline bool same_bytes(const char *a, const char *b, size_t n) {
    if (n < 8) return load_short(a, n) == load_short(b, n);
    for (size_t i = 0; i + 8 < n; i += 8)
        if (load_eight(a + i) != load_eight(b + i)) return false;
    return load_eight(a + n - 8) == load_eight(b + n - 8);
}

enum { STOP_WORDS = 8, ALL_STOP_WORDS = (1 << STOP_WORDS) - 1 };

/* @return the bit of one of Gopher's stop words, from its bytes as load_short has them; else 0. */
static inline unsigned stop_bit(uint64_t bytes) {
#define WORD(a, b, c, d)                                                                           \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
    static const uint32_t words[STOP_WORDS] = {
        WORD('t', 'h', 'e', 0),   WORD('b', 'e', 0, 0),     WORD('t', 'o', 0, 0),
        WORD('o', 'f', 0, 0),     WORD('a', 'n', 'd', 0),   WORD('t', 'h', 'a', 't'),
        WORD('h', 'a', 'v', 'e'), WORD('w', 'i', 't', 'h'),
    };
#undef WORD
    unsigned bit = 0;
    for (unsigned i = 0; i < STOP_WORDS; i++) bit |= (unsigned)(bytes == words[i]) << i;
    return bit;
}

/* Marks letters of ASCII, up to the first byte that is not ASCII. */
static inline uint64_t letters_in(uint64_t eight) {
    uint64_t lower = eight | EACH_BYTE(0x20);
    return (lower + EACH_BYTE(0x80 - 'a')) & ~(lower + EACH_BYTE(0x7F - 'z')) & HIGHS;
}

#endif
