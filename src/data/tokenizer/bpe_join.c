/* Byte pair encoding of short pieces from characters on, for scripts of three bytes per character whose pieces are
 * long and mostly new: 今日は天気がいい.
 *
 * Applies where tokens have ranks above those of their halves (bpe_walk.c), so that joins happen in order of rank and
 * every token is made by one pair only. Other pairs are never joined and are left out here. Merges are numbered in
 * order of rank; a symbol is a byte, or 256 + the merge that makes it.
 *
 * A character begins as one symbol, past the joins of its bytes, if no join from its inside to a neighbor can come
 * before them: if every token that begins or ends inside of it, goes beyond it and fits its neighbors has a higher rank
 * than the character itself. Until that rank the bytes of the character are joined as if they were alone; joins of the
 * whole character have higher ranks in any case. Other characters begin as bytes.
 *
 * A piece has at most 64 symbols, so that a word has a bit for each one that is left, and the next join is the least of
 * 64 numbers, merge << 6 | position: of equals, the leftmost.
 *
 * Time is spent waiting for memory, and on branches that are hard to predict: whether a pair is joined. So pairs are
 * looked up without branches, several pieces take turns, and tables are small and on huge pages. A pair's hash leads
 * to a bucket of a few pairs, which holds a factor for a second hash, chosen when the table is built, that leads to
 * the only slot which can hold the pair. Most pairs are not joined: one bit of 16 in the bucket shows it for many, and
 * these read slot 0, which is always near. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe_internal.h"
#include "tokenizer/chars_internal.h"

enum {
    BYTES = 256,
    MERGE_BITS = 24,
    SYMBOL_BITS = 20,
    NO_SYMBOL = (1 << SYMBOL_BITS) - 1, /* joined to nothing */
    NO_MERGE = (1 << MERGE_BITS) - 1,
    POSITION_BITS = 6,
    BUCKET_PAIRS = 4, /* on average */
    CHARS = 1 << 16,  /* of three bytes, by code point */
    AS_BYTES = INT32_MIN,
};

typedef struct pair_hashes {
    uint64_t bucket;
    uint32_t slot; /* to be multiplied with the bucket's factor */
} pair_hashes;

static inline pair_hashes hash_symbols(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (pair_hashes){ h, (uint32_t)(h ^ h >> 32) };
}

static inline uint64_t joined_slot(const bpe_joins *j, pair_hashes h, uint32_t factor) {
    return (uint64_t)(h.slot * (2 * factor + 1)) * j->n_slots >> 32;
}

/* @return the only slot that can hold a pair, on its way into the caches; 0 where none can. */
static inline uint32_t find_slot(const bpe_joins *j, uint32_t left, uint32_t right) {
    pair_hashes h = hash_symbols(left, right);
    uint32_t bucket = j->buckets[h.bucket >> j->bucket_shift];
    uint64_t may_join = bucket >> (h.slot & 15) & 1; /* a ternary would be a branch */
    uint64_t slot = joined_slot(j, h, bucket >> 16) & -may_join;
    __builtin_prefetch(&j->slots[slot]);
    return (uint32_t)slot;
}

/* @return the merge of two symbols; NO_MERGE: they are not joined. */
static inline uint32_t read_slot(const bpe_joins *j, uint32_t at, uint32_t left, uint32_t right) {
    uint64_t slot = j->slots[at];
    bool is_pair = slot >> MERGE_BITS == ((uint64_t)left << SYMBOL_BITS | right);
    return is_pair ? (uint32_t)slot & NO_MERGE : NO_MERGE;
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

static pair_hashes hash_slot(uint64_t slot) {
    return hash_symbols((uint32_t)(slot >> (MERGE_BITS + SYMBOL_BITS)),
                        (uint32_t)(slot >> MERGE_BITS) & NO_SYMBOL);
}

/* Finds a factor with which a bucket's pairs have free slots, and takes these. @return false: there is none. */
static bool place_bucket(bpe_joins *j, const uint64_t *pairs, uint32_t n) {
    uint32_t *mine = &j->buckets[hash_slot(pairs[0]).bucket >> j->bucket_shift];
    for (uint32_t factor = 0; factor <= UINT16_MAX; factor++) {
        uint32_t placed = 0;
        for (; placed < n; placed++) {
            uint64_t *slot = &j->slots[joined_slot(j, hash_slot(pairs[placed]), factor)];
            if (*slot != UINT64_MAX) break;
            *slot = pairs[placed];
        }
        if (placed == n) {
            *mine |= factor << 16;
            for (uint32_t i = 0; i < n; i++) *mine |= 1u << (hash_slot(pairs[i]).slot & 15);
            return true;
        }
        while (placed-- > 0)
            j->slots[joined_slot(j, hash_slot(pairs[placed]), factor)] = UINT64_MAX;
    }
    return false;
}

/* Fills slots and buckets. @param pairs [j->n] as slots hold them. @return false: two have equal hashes. */
static bool place_merges(bpe_joins *j, const uint64_t *pairs) {
    size_t n_buckets = (size_t)1 << (64 - j->bucket_shift);
    memset(j->slots, 0xFF, j->n_slots * sizeof *j->slots);
    memset(j->buckets, 0, n_buckets * sizeof *j->buckets);
    bucket *all = mem_alloc(n_buckets * sizeof *all);
    uint64_t *sorted = mem_alloc(((size_t)j->n + 1) * sizeof *sorted);
    for (int64_t i = 0; i < j->n; i++) all[hash_slot(pairs[i]).bucket >> j->bucket_shift].n++;
    uint32_t from = 0;
    for (size_t b = 0; b < n_buckets; b++) {
        all[b].from = from;
        from += all[b].n;
        all[b].n = 0;
    }
    for (int64_t i = 0; i < j->n; i++) {
        bucket *b = &all[hash_slot(pairs[i]).bucket >> j->bucket_shift];
        sorted[b->from + b->n++] = pairs[i];
    }
    sort_array(all, n_buckets, sizeof *all, compare_buckets); /* large ones fit least */
    bool placed = true;
    for (size_t b = 0; b < n_buckets && placed && all[b].n; b++)
        placed = place_bucket(j, sorted + all[b].from, all[b].n);
    free(sorted);
    free(all);
    return placed;
}

/* ---- characters that begin as one symbol --------------------------------------------------------------- */

/* Indexes of a character's neighbors, the byte before it and the two bytes after it: each byte of three-byte characters
 * has its own index, all others share one. */
enum { BEFORE_OTHER = 64, BEFORE = 65, AFTER_OTHER = 1 << 10, AFTER };
static uint32_t first_two(char first, char second) { return (first & 15u) << 6 | (second & 63u); }
static uint32_t index_before(char byte) { return is_follow(byte) ? byte & 63u : BEFORE_OTHER; }

static void lower_limits(uint32_t *limits, uint32_t step, uint32_t n, uint32_t merge) {
    for (uint32_t i = 0; i < n; i++) limits[i * step] = MIN(limits[i * step], merge);
}

/* Enters a token that begins with the last one or two bytes of a character, and goes on after it. */
static void limit_after(bpe_joins *j, text_span t, size_t tail, uint32_t merge) {
    const char *s = t.at;
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
    const char *s = t.at + t.len - head;
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
    memset(j->limit_after, 0xFF, 64 * AFTER * sizeof *j->limit_after);
    memset(j->limit_before, 0xFF, 1024 * BEFORE * sizeof *j->limit_before);
    for (int64_t i = 0; i < b->n; i++) {
        if (b->walk->tokens[i].rank < 0) continue;
        for (size_t k = 1; k <= 2; k++) {
            limit_after(j, b->tokens[i], k, (uint32_t)symbols[i] - BYTES);
            limit_before(j, b->tokens[i], k, (uint32_t)symbols[i] - BYTES);
        }
    }
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

static int compare_by_rank(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Allocates all tables as one block, at least two huge pages, from which on these are used. */
static void alloc_tables(bpe_joins *j) {
    enum { LEAST = 4 << 20 };
    int buckets_log2 = 4;
    while ((int64_t)BUCKET_PAIRS << buckets_log2 < j->n) buckets_log2++;
    j->bucket_shift = 64 - buckets_log2;
    j->n_slots = (uint32_t)(j->n + j->n / 4 + 16);
    size_t buckets = (size_t)1 << buckets_log2;
    size_t words = buckets + CHARS + 64 * AFTER + 1024 * BEFORE + BYTES + (size_t)j->n;
    size_t bytes = j->n_slots * sizeof *j->slots + words * sizeof *j->buckets;
    j->slots = mem_alloc_large(MAX(bytes, LEAST));
    j->buckets = (uint32_t *)(j->slots + j->n_slots);
    j->chars = (int32_t *)(j->buckets + buckets);
    j->limit_after = (uint32_t *)(j->chars + CHARS);
    j->limit_before = j->limit_after + 64 * AFTER;
    j->ids = (int32_t *)(j->limit_before + 1024 * BEFORE);
}

void bpe_joins_build(bpe *b) {
    bpe_joins_free(b);
    if (!b->walk || b->n >= NO_SYMBOL - BYTES) return;
    bpe_joins *j = b->joins = mem_alloc(sizeof *j);
    const walk_token *tokens = b->walk->tokens;
    ranked *order = mem_alloc(((size_t)b->n + 1) * sizeof *order);
    int32_t *symbols = mem_alloc(((size_t)b->n + 1) * sizeof *symbols);
    uint64_t *pairs = mem_alloc(((size_t)b->n + 1) * sizeof *pairs);
    for (int64_t i = 0; i < b->n; i++)
        if (tokens[i].rank >= 0) order[j->n++] = (ranked){ tokens[i].rank, (int32_t)i };
    sort_array(order, (size_t)j->n, sizeof *order, compare_by_rank);
    alloc_tables(j);
    for (int c = 0; c < BYTES; c++) symbols[j->ids[c] = b->byte_id[c]] = c;
    for (int64_t i = 0; i < j->n; i++)
        symbols[j->ids[BYTES + i] = order[i].id] = (int32_t)(BYTES + i);
    for (int64_t i = 0; i < j->n; i++) {
        const walk_token *t = &tokens[order[i].id];
        pairs[i] = ((uint64_t)symbols[t->left] << SYMBOL_BITS | (uint64_t)symbols[t->right])
                       << MERGE_BITS |
                   (uint64_t)i;
    }
    j->ids_in_order = true;
    for (int64_t i = 0; i < j->n; i++)
        j->ids_in_order &= j->ids[BYTES + i] == j->ids[BYTES] + (int32_t)i;
    bool placed = place_merges(j, pairs);
    if (placed) build_char_symbols(b, j, symbols);
    free(pairs);
    free(symbols);
    free(order);
    if (!placed) bpe_joins_free(b);
}

void bpe_joins_free(bpe *b) {
    if (b->joins) free(b->joins->slots);
    free(b->joins);
    b->joins = NULL;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Whether a character of three bytes begins as one symbol beside its neighbors. */
static bool is_whole_here(const bpe_joins *j, const char *s, size_t n, size_t at, uint32_t symbol) {
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
static uint32_t begin_symbols(const bpe_joins *j, const char *s, size_t n, uint32_t *symbols) {
    uint32_t count = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint8_t c = (uint8_t)s[i];
        if (count + 4 > JOIN_SYMBOLS) return 0;
        len = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 0;
        if (len == 0 || i + len > n) return 0;
        for (size_t k = 1; k < len; k++)
            if (!is_follow(s[i + k])) return 0;
        int32_t whole = AS_BYTES;
        if (len == 3) whole = j->chars[first_two(s[i], s[i + 1]) << 6 | (s[i + 2] & 63u)];
        if (whole < 0 && whole != AS_BYTES && is_whole_here(j, s, n, i, (uint32_t)~whole))
            whole = ~whole;
        if (whole >= 0)
            symbols[count++] = (uint32_t)whole;
        else
            for (size_t k = 0; k < len; k++) symbols[count++] = (uint8_t)s[i + k];
    }
    return count;
}

/* A piece that is being joined. When its turn comes, the slots that its last turn asked for are near. Symbols and keys
 * have one more each that stands for neighbors that are not there. */
typedef struct join_lane {
    int32_t
        keys[JOIN_SYMBOLS + 1]; /* merge << 6 | position of each symbol and the next one; NONE */
    uint32_t symbols[JOIN_SYMBOLS + 1];
    uint64_t left;  /* a bit for each symbol that is left */
    uint32_t n;     /* keys to be searched */
    uint32_t begun; /* > 0: symbols, all of whose keys are still slots */
    struct asked {
        uint32_t slot, at, next; /* positions of a pair */
    } asked[2];
    bpe_job *job;
} join_lane;
enum { NONE = INT32_MAX, LANES = 8, SEARCH = 16 };

/* Fills a lane with the next piece that it can join. @return false: there is none. */
static bool begin_lane(const bpe_joins *j, join_lane *l, bpe_job **next, const bpe_job *end) {
    uint32_t n = 0;
    while (n == 0 && *next < end) {
        l->job = (*next)++;
        l->job->n = 0;
        n = begin_symbols(j, l->job->piece, l->job->len, l->symbols);
    }
    if (n == 0) return false;
    l->symbols[JOIN_SYMBOLS] = NO_SYMBOL;
    for (uint32_t i = 0; i + 1 < n; i++)
        l->keys[i] = (int32_t)find_slot(j, l->symbols[i], l->symbols[i + 1]);
    l->begun = n;
    l->n = (uint32_t)align_up(n, SEARCH);
    for (uint32_t i = n - 1; i < l->n; i++) l->keys[i] = NONE;
    l->left = UINT64_MAX >> (64 - n);
    return true;
}

static inline void ask_pair(const bpe_joins *j, const join_lane *l, struct asked *a, uint32_t at,
                            uint32_t next) {
    *a = (struct asked){ find_slot(j, l->symbols[at], l->symbols[next]), at, next };
}

static inline void set_key(const bpe_joins *j, join_lane *l, uint32_t slot, uint32_t at,
                           uint32_t next) {
    uint32_t merge = read_slot(j, slot, l->symbols[at], l->symbols[next]);
    l->keys[at] = (int32_t)(merge << POSITION_BITS | (at & (JOIN_SYMBOLS - 1)));
}

/* Sets the keys that the last turn asked for. */
static inline void read_asked(const bpe_joins *j, join_lane *l) {
    if (l->begun) {
        for (uint32_t i = 0; i + 1 < l->begun; i++) set_key(j, l, (uint32_t)l->keys[i], i, i + 1);
        l->begun = 0;
        return;
    }
    for (int i = 0; i < 2; i++) set_key(j, l, l->asked[i].slot, l->asked[i].at, l->asked[i].next);
}

typedef int32_t four_keys __attribute__((vector_size(16)));

static inline four_keys least_of(four_keys a, four_keys b) {
    four_keys is_less = a < b;
    return (a & is_less) | (b & ~is_less);
}

static inline int32_t least_key(const int32_t *keys, uint32_t n) {
    four_keys least[SEARCH / 4], more;
    memcpy(least, keys, sizeof least);
    for (uint32_t k = SEARCH; k < n; k += 4) {
        memcpy(&more, keys + k, sizeof more);
        least[0] = least_of(least[0], more);
    }
    least[0] = least_of(least_of(least[0], least[1]), least_of(least[2], least[3]));
    int32_t low = MIN(least[0][0], least[0][1]), high = MIN(least[0][2], least[0][3]);
    return MIN(low, high);
}

/* Joins the pair of the least rank. @return false: no pair is left. */
static inline bool join_once(const bpe_joins *j, join_lane *l) {
    read_asked(j, l);
    int32_t least = least_key(l->keys, l->n);
    uint32_t merge = (uint32_t)least >> POSITION_BITS, at = (uint32_t)least & (JOIN_SYMBOLS - 1);
    if (merge >= NO_MERGE) return false;
    uint64_t after = l->left & (UINT64_MAX - 1) << at, before = l->left & (((uint64_t)1 << at) - 1);
    uint32_t next = (uint32_t)__builtin_ctzll(after);
    after &= after - 1;
    uint32_t beyond = (uint32_t)__builtin_ctzll(after | (uint64_t)1 << 63);
    uint32_t previous = 63 - (uint32_t)__builtin_clzll(before | 1);
    beyond = after ? beyond : JOIN_SYMBOLS;
    previous = before ? previous : JOIN_SYMBOLS;
    l->left ^= (uint64_t)1 << next;
    l->keys[next] = NONE;
    l->symbols[at] = BYTES + merge;
    ask_pair(j, l, &l->asked[0], at, beyond);
    ask_pair(j, l, &l->asked[1], previous, at);
    return true;
}

static inline int32_t symbol_id(const bpe_joins *j, uint32_t symbol) {
    bool is_in_order = j->ids_in_order && symbol >= BYTES;
    return is_in_order ? j->ids[BYTES] + (int32_t)(symbol - BYTES) : j->ids[symbol];
}

static void end_lane(const bpe_joins *j, join_lane *l) {
    for (uint64_t left = l->left; left; left &= left - 1)
        l->job->ids[l->job->n++] = symbol_id(j, l->symbols[__builtin_ctzll(left)]);
}

void bpe_join_pieces(const bpe_joins *j, bpe_job *jobs, size_t n) {
    join_lane lanes[LANES], *busy[LANES];
    bpe_job *next = jobs, *end = jobs + n;
    int n_busy = 0;
    while (n_busy < LANES && begin_lane(j, &lanes[n_busy], &next, end)) {
        busy[n_busy] = &lanes[n_busy];
        n_busy++;
    }
    while (n_busy > 0)
        for (int i = 0; i < n_busy; i++) {
            if (join_once(j, busy[i])) continue;
            end_lane(j, busy[i]);
            if (!begin_lane(j, busy[i], &next, end)) busy[i--] = busy[--n_busy];
        }
}
