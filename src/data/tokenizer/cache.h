/* A cache of pieces and their ids, for one thread: a table of small sets.
 *
 *     set   | entry | entry | entry | entry |      entry   | key 16 | ids 3 x 4 | n 4 |
 *
 * A new piece takes the last way of its set, and moves one way ahead each time it is met again,
 * so that what is rare makes way for what is rare. A piece of up to 15 bytes is its own key, with
 * its length in the last byte; that of a longer one is its hash and length, and its bytes are kept
 * to be compared. Ids beyond three, and those bytes, lie in `spill`; when that is full, all is
 * forgotten.
 */
#ifndef INGOT_TOKENIZER_CACHE_H
#define INGOT_TOKENIZER_CACHE_H

#include <string.h>

#include "util/util.h"

enum {
    CACHE_SETS_LOG2 = 16,
    CACHE_SETS = 1 << CACHE_SETS_LOG2,
    CACHE_WAYS = 4,
    CACHE_SPILL = 1 << 22, /* words */
    CACHE_SHORT = 15,      /* bytes of a piece that is its own key */
    CACHE_LONGEST = 255,   /* pieces beyond are not kept */
    CACHE_INLINE = 3,      /* ids in the entry */
};

typedef struct cache_key {
    uint64_t low, high;
} cache_key;

typedef struct cache_entry {
    cache_key key; /* high == 0: empty */
    int32_t
        id[CACHE_INLINE]; /* [0] is where in `spill` they are, when n is above or the piece long */
    uint32_t n;
} cache_entry;

typedef struct cache {
    cache_entry (*sets)[CACHE_WAYS]; /* [CACHE_SETS] */
    int32_t *spill;                  /* [CACHE_SPILL] */
    size_t spilled;
} cache;

void cache_init(cache *c);
void cache_free(cache *c);
void cache_add(cache *c, cache_key key, const char *piece, size_t len, const int32_t *ids,
               size_t n);
/* The ids of a piece longer than CACHE_SHORT. @return NULL: not known. */
const int32_t *cache_find_long(cache *c, cache_key key, const char *piece, size_t len, size_t *n);
cache_key cache_key_long(const char *piece, size_t len);

static inline cache_key cache_key_masked(uint64_t low, uint64_t high, size_t len) {
    uint64_t keep_low = len >= 8 ? UINT64_MAX : ((uint64_t)1 << 8 * len) - 1;
    uint64_t keep_high = len <= 8 ? 0 : ((uint64_t)1 << 8 * (len - 8)) - 1;
    return (cache_key){ low & keep_low, (high & keep_high) | (uint64_t)len << 56 };
}

/* The key of a piece of 1 to CACHE_SHORT bytes with 16 readable ones. */
static inline cache_key cache_key_of(const char *piece, size_t len) {
    uint64_t word[2];
    memcpy(word, piece, 16);
    return cache_key_masked(word[0], word[1], len);
}

/* The same where fewer can be read. */
static inline cache_key cache_key_at_end(const char *piece, size_t len) {
    uint64_t word[2] = { 0, 0 };
    memcpy(word, piece, len);
    return cache_key_masked(word[0], word[1], len);
}

static inline cache_entry *cache_set(const cache *c, cache_key k) {
    uint64_t h = k.low * 0x9E3779B97F4A7C15u ^ (k.high ^ k.high >> 32) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    return c->sets[h >> (64 - CACHE_SETS_LOG2)];
}

static inline bool cache_key_equal(cache_key a, cache_key b) {
    return ((a.low ^ b.low) | (a.high ^ b.high)) == 0;
}

/* @return NULL: not there. */
static inline const cache_entry *cache_find(cache_entry *set, cache_key key) {
    if (cache_key_equal(set[0].key, key)) return &set[0];
    for (int i = 1; i < CACHE_WAYS; i++) {
        if (!cache_key_equal(set[i].key, key)) continue;
        cache_entry again = set[i];
        set[i] = set[i - 1];
        set[i - 1] = again;
        return &set[i - 1];
    }
    return NULL;
}

#endif
