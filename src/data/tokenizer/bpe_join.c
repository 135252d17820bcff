/* Byte pair encoding of short pieces from characters on, for scripts of three bytes per character whose pieces are
 * long and mostly new: 今日は天気がいい.
 *
 * Applies where tokens have ranks above those of their halves (bpe_walk.c), so that joins happen in order of rank and
 * every token is made by one pair only. Other pairs are never joined and are left out here. Merges are numbered in order
 * of rank; a symbol is a byte, or 256 + the merge that makes it.
 *
 * A character begins as one symbol, past the joins of its bytes, if no join from its inside to a neighbor can come before
 * them: if every token that begins or ends inside of it, and goes beyond it, has a higher rank than the character
 * itself. Until that rank the bytes of the character are joined as if they were alone; joins of the whole
 * character have higher ranks in any case. Other characters begin as bytes.
 *
 * A piece has at most 64 symbols, so that a word has a bit for each one that is left, and the next join is the least of 64
 * numbers, merge << 6 | position: of equals, the leftmost. A pair is looked up without branches, since whether it can
 * be joined is hard to predict: a second hash, chosen per bucket when the table is built, leads to the only slot
 * that can hold it. A slot has the merge and 8 bits of the pair's hash. These may agree by accident, so the two symbols
 * are compared before they are joined, when nothing waits for it. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe_internal.h"

enum {
    BYTES = 256,
    NO_MERGE = (1 << 24) - 1,
    POSITION_BITS = 6,
    BUCKET_PAIRS = 4, /* on average */
    CHARS = 1 << 16,  /* of three bytes, by code point */
    AS_BYTES = INT32_MIN,
};

typedef struct pair_hashes {
    uint64_t bucket;
    uint32_t slot; /* to be multiplied with that of the bucket; the lowest byte is the tag */
} pair_hashes;

static inline pair_hashes hash_symbols(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (pair_hashes){ h, (uint32_t)(h ^ h >> 32) };
}

static inline uint32_t slot_of(const bpe_joins *j, uint32_t hash, uint16_t factor) {
    return (uint32_t)(hash * (2u * factor + 1)) >> j->slot_shift;
}

/* @return the merge of two symbols, or perhaps that of two others; NO_MERGE: they are not joined. */
static inline uint32_t find_join(const bpe_joins *j, uint32_t left, uint32_t right) {
    pair_hashes h = hash_symbols(left, right);
    uint32_t slot = j->slots[slot_of(j, h.slot, j->factors[h.bucket >> j->bucket_shift])];
    return (uint8_t)slot == (uint8_t)h.slot ? slot >> 8 : NO_MERGE;
}

/* ---- the table of pairs ------------------------------------------------------------------------------ */

typedef struct bucket {
    uint32_t from, n; /* of the pairs sorted by bucket */
} bucket;

static int compare_buckets(const void *a, const void *b) {
    const bucket *x = a, *y = b;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

static pair_hashes merge_hashes(const bpe_joins *j, uint32_t merge) {
    return hash_symbols((uint32_t)j->merges[merge].left, (uint32_t)j->merges[merge].right);
}

/* Finds a factor with which a bucket's pairs have free slots, and takes these. @return false: there is none. */
static bool place_bucket(bpe_joins *j, const uint32_t *merges, uint32_t n) {
    for (uint32_t factor = 0; factor <= UINT16_MAX; factor++) {
        uint32_t placed = 0;
        for (; placed < n; placed++) {
            uint32_t hash = merge_hashes(j, merges[placed]).slot;
            uint32_t *slot = &j->slots[slot_of(j, hash, (uint16_t)factor)];
            if (*slot != UINT32_MAX) break;
            *slot = merges[placed] << 8 | (uint8_t)hash;
        }
        if (placed == n) {
            j->factors[merge_hashes(j, merges[0]).bucket >> j->bucket_shift] = (uint16_t)factor;
            return true;
        }
        while (placed-- > 0)
            j->slots[slot_of(j, merge_hashes(j, merges[placed]).slot, (uint16_t)factor)] =
                UINT32_MAX;
    }
    return false;
}

static int log2_above(int64_t n) {
    int log2 = 4;
    while ((int64_t)1 << log2 < n) log2++;
    return log2;
}

static bool build_slots(bpe_joins *j) {
    int slots_log2 = log2_above(2 * j->n), buckets_log2 = log2_above(j->n / BUCKET_PAIRS);
    size_t slots = (size_t)1 << slots_log2, buckets = (size_t)1 << buckets_log2;
    j->slot_shift = 32 - slots_log2;
    j->bucket_shift = 64 - buckets_log2;
    j->slots = mem_alloc(slots * sizeof *j->slots);
    j->factors = mem_alloc(buckets * sizeof *j->factors);
    memset(j->slots, 0xFF, slots * sizeof *j->slots);
    bucket *all = mem_alloc(buckets * sizeof *all);
    uint32_t *sorted = mem_alloc(((size_t)j->n + 1) * sizeof *sorted);
    for (uint32_t i = 0; i < j->n; i++) all[merge_hashes(j, i).bucket >> j->bucket_shift].n++;
    uint32_t from = 0;
    for (size_t b = 0; b < buckets; b++) {
        all[b].from = from;
        from += all[b].n;
        all[b].n = 0;
    }
    for (uint32_t i = 0; i < j->n; i++) {
        bucket *b = &all[merge_hashes(j, i).bucket >> j->bucket_shift];
        sorted[b->from + b->n++] = i;
    }
    sort_array(all, buckets, sizeof *all, compare_buckets); /* the largest need the most freedom */
    bool placed = true;
    for (size_t b = 0; b < buckets && placed && all[b].n; b++)
        placed = place_bucket(j, sorted + all[b].from, all[b].n);
    free(sorted);
    free(all);
    return placed;
}

/* ---- characters that begin as one symbol --------------------------------------------------------------- */

static bool is_lead(uint8_t c) { return (c & 0xF0) == 0xE0; }
static bool is_follow(uint8_t c) { return (c & 0xC0) == 0x80; }

/* What is next to a character: a byte before it, or two after it. Those of three-byte characters have an index each;
 * all others share one. */
enum { BEFORE_OTHER = 64, BEFORE = 65, AFTER_OTHER = 1 << 10, AFTER };
static uint32_t first_two(uint8_t first, uint8_t second) {
    return (first & 15u) << 6 | (second & 63u);
}
static uint32_t index_before(uint8_t byte) { return is_follow(byte) ? byte & 63u : BEFORE_OTHER; }

static void lower_limits(uint32_t *limits, uint32_t step, uint32_t n, uint32_t merge) {
    for (uint32_t i = 0; i < n; i++) limits[i * step] = MIN(limits[i * step], merge);
}

/* Enters a token that begins with the last one or two bytes of a character, and goes on after it. */
static void limit_after(bpe_joins *j, text_span t, size_t tail, uint32_t merge) {
    const uint8_t *s = (const uint8_t *)t.at;
    if (t.len <= tail || !is_follow(s[0]) || !is_follow(s[tail - 1]) || is_follow(s[tail])) return;
    uint32_t *row = j->limit_after + (s[tail - 1] & 63u) * AFTER;
    if (!is_lead(s[tail]))
        lower_limits(row + AFTER_OTHER, 1, 1, merge);
    else if (t.len == tail + 1)
        lower_limits(row + first_two(s[tail], 0), 1, 64, merge);
    else
        lower_limits(row + first_two(s[tail], s[tail + 1]), 1, 1, merge);
}

/* Enters a token that ends with the first one or two bytes of a character, and begins before it. */
static void limit_before(bpe_joins *j, text_span t, size_t head, uint32_t merge) {
    const uint8_t *end = (const uint8_t *)t.at + t.len, *s = end - head;
    if (t.len <= head || !is_lead(s[0]) || !(head == 1 || is_follow(s[1]))) return;
    uint32_t *column = j->limit_before + index_before(s[-1]);
    if (head == 1)
        lower_limits(column + first_two(s[0], 0) * BEFORE, BEFORE, 64, merge);
    else
        lower_limits(column + first_two(s[0], s[1]) * BEFORE, BEFORE, 1, merge);
}

static uint32_t least_limit(const uint32_t *limits, uint32_t n) {
    uint32_t least = limits[0];
    for (uint32_t i = 1; i < n; i++) least = MIN(least, limits[i]);
    return least;
}

/* @param symbols of ids. */
static void build_char_symbols(const bpe *b, bpe_joins *j, const int32_t *symbols) {
    size_t after = 64 * AFTER * sizeof *j->limit_after,
           before = 1024 * BEFORE * sizeof *j->limit_before;
    memset(j->limit_after = mem_alloc(after), 0xFF, after);
    memset(j->limit_before = mem_alloc(before), 0xFF, before);
    for (int64_t i = 0; i < b->n; i++) {
        if (b->walk->tokens[i].rank < 0) continue;
        for (size_t k = 1; k <= 2; k++) {
            limit_after(j, b->tokens[i], k, (uint32_t)symbols[i] - BYTES);
            limit_before(j, b->tokens[i], k, (uint32_t)symbols[i] - BYTES);
        }
    }
    j->chars = mem_alloc(CHARS * sizeof *j->chars);
    for (uint32_t cp = 0; cp < CHARS; cp++) {
        const uint8_t bytes[3] = { (uint8_t)(0xE0 | cp >> 12), (uint8_t)(0x80 | (cp >> 6 & 63)),
                                   (uint8_t)(0x80 | (cp & 63)) };
        int32_t id = bpe_find(b, (const char *)bytes, 3);
        j->chars[cp] = AS_BYTES;
        if (id < 0 || b->walk->tokens[id].rank < 0) continue;
        uint32_t limit = MIN(least_limit(j->limit_after + (cp & 63) * AFTER, AFTER),
                             least_limit(j->limit_before + (cp >> 6) * BEFORE, BEFORE));
        j->chars[cp] = (uint32_t)symbols[id] - BYTES < limit ? symbols[id] : ~symbols[id];
    }
}

/* ---- building ------------------------------------------------------------------------------------------ */

typedef struct ranked {
    int32_t rank, id;
} ranked;

static int compare_ranked(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

void bpe_joins_build(bpe *b) {
    bpe_joins_free(b);
    if (!b->walk) return;
    bpe_joins *j = b->joins = mem_alloc(sizeof *j);
    const walk_token *tokens = b->walk->tokens;
    ranked *order = mem_alloc(((size_t)b->n + 1) * sizeof *order);
    int32_t *symbols = mem_alloc(((size_t)b->n + 1) * sizeof *symbols);
    for (int64_t i = 0; i < b->n; i++)
        if (tokens[i].rank >= 0) order[j->n++] = (ranked){ tokens[i].rank, (int32_t)i };
    sort_array(order, (size_t)j->n, sizeof *order, compare_ranked);
    j->ids = mem_alloc((BYTES + (size_t)j->n) * sizeof *j->ids);
    j->merges = mem_alloc(((size_t)j->n + 1) * sizeof *j->merges);
    for (int c = 0; c < BYTES; c++) symbols[j->ids[c] = b->byte_id[c]] = c;
    for (int64_t i = 0; i < j->n; i++)
        symbols[j->ids[BYTES + i] = order[i].id] = (int32_t)(BYTES + i);
    for (int64_t i = 0; i < j->n; i++)
        j->merges[i] =
            (bpe_pair){ symbols[tokens[order[i].id].left], symbols[tokens[order[i].id].right] };
    bool built = j->n < NO_MERGE && build_slots(j);
    if (built) build_char_symbols(b, j, symbols);
    free(symbols);
    free(order);
    if (!built) bpe_joins_free(b);
}

void bpe_joins_free(bpe *b) {
    if (!b->joins) return;
    free(b->joins->ids);
    free(b->joins->merges);
    free(b->joins->slots);
    free(b->joins->factors);
    free(b->joins->chars);
    free(b->joins->limit_before);
    free(b->joins->limit_after);
    free(b->joins);
    b->joins = NULL;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Whether a character of three bytes begins as one symbol beside its neighbors. */
static bool is_whole_here(const bpe_joins *j, const uint8_t *s, size_t n, size_t at,
                          uint32_t symbol) {
    uint32_t limit = UINT32_MAX;
    if (at > 0)
        limit = j->limit_before[first_two(s[at], s[at + 1]) * BEFORE + index_before(s[at - 1])];
    if (at + 4 < n) {
        uint32_t next = is_lead(s[at + 3]) ? first_two(s[at + 3], s[at + 4]) : AFTER_OTHER;
        limit = MIN(limit, j->limit_after[(s[at + 2] & 63u) * AFTER + next]);
    } else if (at + 3 < n) {
        limit = MIN(limit, j->limit_after[(s[at + 2] & 63u) * AFTER + AFTER_OTHER]);
    }
    return symbol - BYTES < limit;
}

/* @return how many symbols the piece begins as; 0: too many, or the piece has broken characters. */
static size_t begin_symbols(const bpe_joins *j, const char *piece, size_t n, uint32_t *symbols) {
    const uint8_t *s = (const uint8_t *)piece;
    size_t count = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (count + 4 > JOIN_SYMBOLS) return 0;
        len = s[i] < 0x80 ? 1 : s[i] >= 0xF0 ? 4 : is_lead(s[i]) ? 3 : s[i] >= 0xC0 ? 2 : 0;
        if (len == 0 || i + len > n) return 0;
        for (size_t k = 1; k < len; k++)
            if (!is_follow(s[i + k])) return 0;
        int32_t whole = AS_BYTES;
        if (len == 3)
            whole = j->chars[(s[i] & 15u) << 12 | (s[i + 1] & 63u) << 6 | (s[i + 2] & 63u)];
        if (whole < 0 && whole != AS_BYTES && is_whole_here(j, s, n, i, (uint32_t)~whole))
            whole = ~whole;
        if (whole >= 0)
            symbols[count++] = (uint32_t)whole;
        else
            for (size_t k = 0; k < len; k++) symbols[count++] = s[i + k];
    }
    return count;
}

static inline int32_t join_key(const bpe_joins *j, const uint32_t *symbols, unsigned at,
                               unsigned next) {
    return (int32_t)(find_join(j, symbols[at], symbols[next]) << POSITION_BITS | at);
}

static inline int32_t least_key(const int32_t *keys, size_t n) {
    int32_t least = keys[0];
    for (size_t i = 1; i < n; i++) least = MIN(least, keys[i]);
    return least;
}

size_t bpe_join_piece(const bpe_joins *j, const char *piece, size_t len, int32_t *ids) {
    enum { NONE = INT32_MAX, LANES = 8 };
    uint32_t symbols[JOIN_SYMBOLS];
    int32_t keys[JOIN_SYMBOLS];
    size_t n = begin_symbols(j, piece, len, symbols);
    if (n == 0) return 0;
    size_t padded = align_up(n, LANES);
    for (unsigned i = 0; i + 1 < n; i++) keys[i] = join_key(j, symbols, i, i + 1);
    for (size_t i = n - 1; i < padded; i++) keys[i] = NONE;
    uint64_t left = UINT64_MAX >> (64 - n);
    for (;;) {
        int32_t least = least_key(keys, padded);
        uint32_t merge = (uint32_t)least >> POSITION_BITS;
        if (merge >= NO_MERGE) break;
        unsigned at = (uint32_t)least & (JOIN_SYMBOLS - 1);
        uint64_t after = left & (UINT64_MAX - 1) << at;
        unsigned next = (unsigned)__builtin_ctzll(after);
        if (j->merges[merge].left != (int32_t)symbols[at] ||
            j->merges[merge].right != (int32_t)symbols[next]) {
            keys[at] = NONE;
            continue;
        }
        symbols[at] = BYTES + merge;
        left ^= (uint64_t)1 << next;
        keys[next] = NONE;
        after &= after - 1;
        keys[at] = after ? join_key(j, symbols, at, (unsigned)__builtin_ctzll(after)) : NONE;
        uint64_t before = left & (((uint64_t)1 << at) - 1);
        if (before) {
            unsigned previous = 63 - (unsigned)__builtin_clzll(before);
            keys[previous] = join_key(j, symbols, previous, at);
        }
    }
    size_t count = 0;
    for (; left; left &= left - 1) ids[count++] = j->ids[symbols[__builtin_ctzll(left)]];
    return count;
}
