/* Byte pair encoding of pieces of many characters, which are mostly new: 今日は天気がいい. The search is that of
 * bpe_walk.c, from left to right, the longest token that stays apart from the one before it. Here it goes by units, in
 * several pieces in turns.
 *
 * A unit is a character that is a token, or a byte of another character. If tokens that consist of whole units and stay
 * apart are found for all of a piece, they are its encoding, since there is only one. If there are none, merges across
 * the border of a character came before those inside of it, and bpe_walk.c searches by bytes.
 *
 * Merges are numbered in order of rank; a symbol is a byte, or 256 + the merge that makes it. Whether two tokens stay
 * apart is found without looking up most pairs:
 *
 *     A, which no token continues, and B      A B is not a token, so the two are not joined to each other
 *     all merges between a character at the   no merge crosses the border before both tokens are there, or before
 *     end of A and one at the beginning of    the merges that are still to be undone: the rest need not be
 *     B come after those of A and B           looked up
 *
 * What is left waits for memory: the trie of tokens by units, halves of tokens, slots of pairs. So each of several
 * pieces takes a turn of one load, which its turn before asked for. Tables are small and on huge pages. A pair's hash
 * leads to a bucket of a few pairs, which holds a factor for a second hash, chosen when the table is built, that leads
 * to the only slot which can hold the pair. Most pairs are not joined: one bit of 16 in the bucket shows it for many,
 * and these read slot 0, which is always near. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe_internal.h"
#include "tokenizer/char_trie_internal.h"
#include "tokenizer/chars_internal.h"

enum {
    BYTES = 256,
    MERGE_BITS = 24,
    SYMBOL_BITS = 20,
    NO_SYMBOL = (1 << SYMBOL_BITS) - 1,
    NO_MERGE = (1 << MERGE_BITS) - 1,
    BUCKET_PAIRS = 4, /* on average */
    NODE_BITS = 22,
    NO_NODE = (1 << NODE_BITS) - 1,
    POINTS = 1 << 16, /* code points that units may have; other characters are units of bytes */
    A_BYTE = 0xD800,  /* + a byte: the code point that stands for it, which no character has */
    LARGE = 4 << 20,  /* bytes of an allocation, at least, so that it is on huge pages */
};

/* ---- pairs --------------------------------------------------------------------------------------------- */

typedef struct pair_hashes {
    uint64_t bucket;
    uint32_t slot; /* to be multiplied with the bucket's factor */
} pair_hashes;

static inline pair_hashes hash_symbols(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (pair_hashes){ h, (uint32_t)(h ^ h >> 32) };
}

static inline uint64_t joined_slot(const bpe_units *u, pair_hashes h, uint32_t factor) {
    return (uint64_t)(h.slot * (2 * factor + 1)) * u->n_slots >> 32;
}

/* @return the only slot that can hold a pair, on its way into the caches; 0 where none can. */
static inline uint32_t find_slot(const bpe_units *u, uint32_t left, uint32_t right) {
    pair_hashes h = hash_symbols(left, right);
    uint32_t bucket = u->buckets[h.bucket >> u->bucket_shift];
    uint64_t may_join = bucket >> (h.slot & 15) & 1; /* a ternary would be a branch */
    uint64_t slot = joined_slot(u, h, bucket >> 16) & -may_join;
    __builtin_prefetch(&u->slots[slot]);
    return (uint32_t)slot;
}

/* @return the merge of two symbols; NO_MERGE: they are not joined. */
static inline uint32_t read_slot(const bpe_units *u, uint32_t at, uint32_t left, uint32_t right) {
    uint64_t slot = u->slots[at];
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
static bool place_bucket(bpe_units *u, const uint64_t *pairs, uint32_t n) {
    uint32_t *mine = &u->buckets[hash_slot(pairs[0]).bucket >> u->bucket_shift];
    for (uint32_t factor = 0; factor <= UINT16_MAX; factor++) {
        uint32_t placed = 0;
        for (; placed < n; placed++) {
            uint64_t *slot = &u->slots[joined_slot(u, hash_slot(pairs[placed]), factor)];
            if (*slot != UINT64_MAX) break;
            *slot = pairs[placed];
        }
        if (placed == n) {
            *mine |= factor << 16;
            for (uint32_t i = 0; i < n; i++) *mine |= 1u << (hash_slot(pairs[i]).slot & 15);
            return true;
        }
        while (placed-- > 0)
            u->slots[joined_slot(u, hash_slot(pairs[placed]), factor)] = UINT64_MAX;
    }
    return false;
}

/* Fills slots and buckets. @param pairs [u->n] as slots hold them. @return false: two have equal hashes. */
static bool place_merges(bpe_units *u, const uint64_t *pairs) {
    size_t n_buckets = (size_t)1 << (64 - u->bucket_shift);
    memset(u->slots, 0xFF, u->n_slots * sizeof *u->slots);
    memset(u->buckets, 0, n_buckets * sizeof *u->buckets);
    bucket *all = mem_alloc(n_buckets * sizeof *all);
    uint64_t *sorted = mem_alloc(((size_t)u->n + 1) * sizeof *sorted);
    for (int64_t i = 0; i < u->n; i++) all[hash_slot(pairs[i]).bucket >> u->bucket_shift].n++;
    uint32_t from = 0;
    for (size_t b = 0; b < n_buckets; b++) {
        all[b].from = from;
        from += all[b].n;
        all[b].n = 0;
    }
    for (int64_t i = 0; i < u->n; i++) {
        bucket *b = &all[hash_slot(pairs[i]).bucket >> u->bucket_shift];
        sorted[b->from + b->n++] = pairs[i];
    }
    sort_array(all, n_buckets, sizeof *all, compare_buckets); /* large ones fit least */
    bool placed = true;
    for (size_t b = 0; b < n_buckets && placed && all[b].n; b++)
        placed = place_bucket(u, sorted + all[b].from, all[b].n);
    free(sorted);
    free(all);
    return placed;
}

/* ---- bounds: the first merge between two characters ----------------------------------------------------- */

/* A merge is between two characters if its left half ends with the left one, or with last bytes of it, and its right
 * half begins with the right one, or with first bytes of it. `bounds` has the least of these merges by the hash of both
 * characters, and of the left one and the right one's first two bytes; `suffix_bounds` by the last byte of the left one
 * and the first two bytes of the right one. Pairs of equal hashes share an entry: a bound may be too low, never too
 * high. */
enum {
    NO_BOUND = UINT16_MAX,
    FIRST_BYTES = 1 << 30, /* of a hash: the right one is a character without its last six bits */
    INSIDE = 1 << 30,      /* of a point: no character begins here */
    BROKEN = 1 << 29,      /* of a point: not of a character that has a code point below POINTS */
};

static inline uint32_t bound_slot(const bpe_units *u, uint64_t left, uint32_t right) {
    return (uint32_t)((left << 32 | right) * 0x9E3779B97F4A7C15u >> u->bounds_shift);
}

static inline uint32_t suffix_slot(uint32_t left, uint32_t right) {
    return (left & 63) << 10 | right;
}

static void lower_bound(const bpe_units *u, uint16_t *bound, uint32_t merge) {
    *bound = (uint16_t)MIN(*bound, merge >> u->bound_shift);
}

/* @return the character that ends before s[n]; -1: only a part of one is there. */
static int64_t char_before(const char *s, size_t n) {
    uint8_t last = (uint8_t)s[n - 1];
    if (last < 0x80) return last;
    if (n >= 2 && ((uint8_t)s[n - 2] & 0xE0) == 0xC0) return (s[n - 2] & 31) << 6 | (s[n - 1] & 63);
    if (n >= 3 && is_three_bytes(s + n - 3)) return three_bytes_number(s + n - 3);
    return -1;
}

/* Enters a merge, whose right half begins at s[k]. */
static void add_bound(bpe_units *u, text_span token, size_t k, uint32_t merge) {
    const char *s = token.at, *right = s + k;
    uint8_t first = (uint8_t)right[0];
    size_t n = token.len - k, len = first < 0x80 ? 1 : first < 0xE0 ? 2 : 3;
    if (is_follow(right[0]) || first >= 0xF0) return; /* bound_before has no bound there */
    int64_t left = char_before(s, k);
    uint32_t least = first, most; /* first bytes that the right one may have */
    if (len == 1) least = first >> 6;
    if (len == 2) least = first & 31;
    if (len == 3) least = (first & 15u) << 6 | (n > 1 ? right[1] & 63u : 0);
    most = len == 3 && n == 1 ? least + 63 : least;
    if (left >= 0 && n >= len) {
        uint32_t cp = len == 1   ? first
                      : len == 2 ? least << 6 | (right[1] & 63u)
                                 : three_bytes_number(right);
        lower_bound(u, &u->bounds[bound_slot(u, (uint64_t)left, cp)], merge);
        return;
    }
    for (uint32_t r = least; r <= most; r++)
        lower_bound(u,
                    left < 0 ? &u->suffix_bounds[suffix_slot((uint8_t)s[k - 1], r)]
                             : &u->bounds[bound_slot(u, (uint64_t)left, r | FIRST_BYTES)],
                    merge);
}

/* Prefetches what bound_before reads. @param point of a unit that has one before it. */
static inline void ask_bound(const bpe_units *u, const uint32_t *point) {
    __builtin_prefetch(&u->bounds[bound_slot(u, point[-1], point[0])]);
    __builtin_prefetch(&u->bounds[bound_slot(u, point[-1], point[0] >> 6 | FIRST_BYTES)]);
}

/* @return a merge that no merge between the unit and the one before it has a lower rank than; UINT32_MAX: there is no
 * such merge. */
static inline uint32_t bound_before(const bpe_units *u, const uint32_t *point) {
    uint32_t left = point[-1] & (POINTS - 1), right = point[0];
    if (point[-1] & BROKEN || right & INSIDE) return 0;
    uint32_t whole = u->bounds[bound_slot(u, left, right)],
             prefix = u->bounds[bound_slot(u, left, right >> 6 | FIRST_BYTES)],
             suffix = u->suffix_bounds[suffix_slot(left, right >> 6)],
             least = MIN(MIN(whole, prefix), suffix);
    return least == NO_BOUND ? UINT32_MAX : least << u->bound_shift;
}

/* ---- building ------------------------------------------------------------------------------------------ */

typedef struct ranked {
    int32_t rank, id;
} ranked;

static int compare_by_rank(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Allocates all tables but the trie as one block. */
static void alloc_tables(bpe_units *u) {
    enum { SUFFIXES = 1 << 16 };
    int buckets_log2 = 4, bounds_log2 = 16;
    while ((int64_t)BUCKET_PAIRS << buckets_log2 < u->n) buckets_log2++;
    while ((int64_t)1 << bounds_log2 < 2 * u->n) bounds_log2++;
    while (u->n >> u->bound_shift >= NO_BOUND) u->bound_shift++;
    u->bucket_shift = 64 - buckets_log2;
    u->bounds_shift = 64 - bounds_log2;
    u->n_slots = (uint32_t)(u->n + u->n / 4 + 16);
    size_t buckets = (size_t)1 << buckets_log2, bounds = (size_t)1 << bounds_log2;
    size_t symbols = BYTES + (size_t)u->n;
    size_t bytes = u->n_slots * sizeof *u->slots + symbols * sizeof *u->halves +
                   buckets * sizeof *u->buckets + symbols * sizeof *u->ids +
                   (bounds + SUFFIXES) * sizeof *u->bounds;
    u->slots = mem_alloc_large(MAX(bytes, LARGE));
    u->halves = (bpe_pair *)(u->slots + u->n_slots);
    u->buckets = (uint32_t *)(u->halves + symbols);
    u->ids = (int32_t *)(u->buckets + buckets);
    u->bounds = (uint16_t *)(u->ids + symbols);
    u->suffix_bounds = u->bounds + bounds;
    memset(u->bounds, 0xFF, (bounds + SUFFIXES) * sizeof *u->bounds);
}

/* Writes a token as one character per unit. @return bytes. */
static size_t write_units(const bpe *b, text_span token, char *to) {
    size_t n = 0;
    for (size_t i = 0, len; i < token.len; i += len) {
        const char *s = token.at + i;
        uint32_t cp;
        len = (size_t)char_decode(s, token.len - i, &cp);
        int32_t id = len > 1 && cp < POINTS ? bpe_find(b, s, len) : -1;
        bool is_char =
            (signed char)s[0] >= 0 || (id >= 0 && b->walk->tokens[id].rank != WALK_NOT_MADE);
        if (!is_char) cp = A_BYTE + (uint8_t)s[0], len = 1;
        n += (size_t)utf8_encode(cp, to + n);
    }
    return n;
}

/* Nodes of the trie, and units, which are its first nodes: the number of the node before, or of the unit << 42 |
 * base << 20 | symbol. A unit with number u leads from a node to entry base + u, if that one names the node. */
static uint64_t pack_node(uint32_t number, uint32_t base, int32_t symbol) {
    uint64_t low = symbol >= 0 ? (uint32_t)symbol : NO_SYMBOL;
    return ((uint64_t)number << NODE_BITS | base) << SYMBOL_BITS | low;
}

static inline uint32_t symbol_of(uint64_t node) { return (uint32_t)node & NO_SYMBOL; }
static inline uint32_t base_of(uint64_t node) { return (uint32_t)(node >> SYMBOL_BITS) & NO_NODE; }
static inline uint32_t node_number(uint64_t node) {
    return (uint32_t)(node >> (SYMBOL_BITS + NODE_BITS));
}

/* @return false: too many nodes. */
static bool pack_trie(bpe_units *u, const char_trie *t) {
    if ((uint64_t)t->n + t->n_symbols >= NO_NODE) return false;
    u->n_nodes = t->n;
    u->nodes = mem_alloc_large(MAX((t->n + POINTS) * sizeof *u->nodes, LARGE));
    u->units = u->nodes + t->n;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t parent = t->at[i].parent;
        if (parent == CHAR_TRIE_FREE)
            parent = NO_NODE;
        else if (parent & CHAR_TRIE_FIRST)
            parent = t->n + (parent & ~CHAR_TRIE_FIRST);
        u->nodes[i] = pack_node(parent, t->at[i].base, t->at[i].id);
    }
    for (uint32_t i = 0; i < POINTS; i++)
        u->units[i] = pack_node(t->chars[i].symbol, t->chars[i].base, t->chars[i].id);
    return true;
}

/* @return false: too many nodes. */
static bool build_unit_trie(const bpe *b, bpe_units *u) {
    int32_t n = BYTES + (int32_t)u->n;
    size_t total = 0;
    for (int32_t i = 0; i < n; i++) total += 3 * b->tokens[u->ids[i]].len;
    char *text = mem_alloc(total + 1), *to = text;
    trie_key *keys = mem_alloc((size_t)n * sizeof *keys);
    float *score = mem_alloc((size_t)n * sizeof *score);
    for (int32_t i = 0; i < n; i++) {
        size_t len = write_units(b, b->tokens[u->ids[i]], to);
        keys[i] = (trie_key){ { to, len }, i };
        to += len;
    }
    token_trie sorted = { 0 };
    token_trie_build(&sorted, keys, n);
    token_trie_free(&sorted);
    char_trie t = { 0 };
    char_trie_build(&t, keys, n, score, -1, 0);
    bool fits = pack_trie(u, &t);
    char_trie_free(&t);
    free(score);
    free(keys);
    free(text);
    return fits;
}

void bpe_units_build(bpe *b) {
    bpe_units_free(b);
    if (!b->walk || b->n >= NO_SYMBOL - BYTES) return;
    bpe_units *u = b->units = mem_alloc(sizeof *u);
    const walk_token *tokens = b->walk->tokens;
    ranked *order = mem_alloc(((size_t)b->n + 1) * sizeof *order);
    int32_t *symbols = mem_alloc(((size_t)b->n + 1) * sizeof *symbols);
    uint64_t *pairs = mem_alloc(((size_t)b->n + 1) * sizeof *pairs);
    for (int64_t i = 0; i < b->n; i++)
        if (tokens[i].rank >= 0) order[u->n++] = (ranked){ tokens[i].rank, (int32_t)i };
    sort_array(order, (size_t)u->n, sizeof *order, compare_by_rank);
    alloc_tables(u);
    for (int k = 0; k < BYTES; k++) symbols[u->ids[k] = b->byte_id[k]] = k;
    for (int64_t i = 0; i < u->n; i++)
        symbols[u->ids[BYTES + i] = order[i].id] = (int32_t)(BYTES + i);
    u->ids_in_order = true;
    for (int64_t i = 0; i < u->n; i++)
        u->ids_in_order &= u->ids[BYTES + i] == u->ids[BYTES] + (int32_t)i;
    for (int64_t i = 0; i < u->n; i++) {
        const walk_token *t = &tokens[order[i].id];
        uint32_t left = (uint32_t)symbols[t->left], right = (uint32_t)symbols[t->right];
        pairs[i] = ((uint64_t)left << SYMBOL_BITS | right) << MERGE_BITS | (uint64_t)i;
        u->halves[BYTES + i] = (bpe_pair){ (int32_t)left, (int32_t)right };
        add_bound(u, b->tokens[order[i].id], b->tokens[t->left].len, (uint32_t)i);
    }
    bool placed = place_merges(u, pairs);
    placed = placed && build_unit_trie(b, u);
    free(pairs);
    free(symbols);
    free(order);
    if (!placed) bpe_units_free(b);
}

void bpe_units_free(bpe *b) {
    if (b->units) {
        free(b->units->slots);
        free(b->units->nodes);
    }
    free(b->units);
    b->units = NULL;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* A piece that is being encoded. */
typedef struct lane {
    bpe_job *job;
    enum { AT_NODE, AT_LEFT, AT_RIGHT, AT_PAIR } waits_for;
    uint32_t n, from;    /* units; where the next token begins */
    uint32_t len;        /* units of the token that is tried, or of the walk in the trie so far */
    uint32_t node, next; /* the one before and the one that was asked for */
    uint32_t left, right, limit, bound,
        slot;        /* what is at the border between two tokens (bpe_walk.c) */
    uint32_t count;  /* tokens so far */
    bool is_shorter; /* a longer token begins at `from` */
    struct {
        uint32_t symbol, len;
        bool is_shorter;
    } tokens[BPE_JOB_BYTES];
    uint64_t units[BPE_JOB_BYTES + 1];
    uint32_t points[BPE_JOB_BYTES + 1]; /* code points of characters that units are, or are of */
    uint32_t candidates[BPE_JOB_BYTES +
                        1]; /* by length: symbols of tokens that begin at `from`, or NO_SYMBOL */
    bool is_dead[BPE_JOB_BYTES + 1]; /* no tokens lead from there to the end */
} lane;

/* @return how many units. */
static uint32_t split_units(const bpe_units *u, const char *s, size_t n, lane *l) {
    uint32_t count = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = (size_t)char_decode(s + i, n - i, &cp);
        bool has_point = len > 1 ? cp < POINTS : (signed char)s[i] >= 0;
        l->units[count] = u->units[has_point ? cp : 0];
        l->points[count] = cp;
        bool is_unit = has_point && symbol_of(l->units[count]) != NO_SYMBOL;
        count += is_unit;
        for (size_t k = 0; !is_unit && k < len; k++, count++) {
            l->units[count] = u->units[A_BYTE + (uint8_t)s[i + k]];
            l->points[count] = has_point ? cp | (k ? INSIDE : 0) : INSIDE | BROKEN;
        }
    }
    l->units[count] = NO_SYMBOL; /* leads nowhere */
    return count;
}

static inline void ask_node(const bpe_units *u, lane *l, uint64_t here, uint32_t node) {
    l->node = node;
    l->next = base_of(here) ? base_of(here) + node_number(l->units[l->from + l->len]) : 0;
    l->waits_for = AT_NODE;
    __builtin_prefetch(&u->nodes[l->next]);
}

static inline void begin_token(const bpe_units *u, lane *l) {
    uint64_t first = l->units[l->from];
    l->candidates[l->len = 1] = symbol_of(first);
    l->is_shorter = false;
    ask_node(u, l, first, u->n_nodes + node_number(first));
}

/* Moves on along a unit. @return false: no token goes on with it. */
static inline bool walk_on(const bpe_units *u, lane *l) {
    uint64_t here = u->nodes[l->next];
    if (node_number(here) != l->node) return false;
    l->candidates[++l->len] = symbol_of(here);
    ask_node(u, l, here, l->next);
    return true;
}

/* Takes the token that is tried. @return false: the piece is complete. */
static inline bool take_token(const bpe_units *u, lane *l) {
    l->tokens[l->count].symbol = l->candidates[l->len];
    l->tokens[l->count].len = l->len;
    l->tokens[l->count++].is_shorter = l->is_shorter;
    l->from += l->len;
    if (l->from == l->n) return false;
    ask_bound(u, l->points + l->from);
    begin_token(u, l);
    return true;
}

static inline void ask_pair(const bpe_units *u, lane *l) {
    l->slot = find_slot(u, l->left, l->right);
    l->waits_for = AT_PAIR;
}

/* Undoes the later one of the merges that made the two symbols at the border, which are not joined.
 * @return false: the piece is complete. */
static inline bool undo_merge(const bpe_units *u, lane *l) {
    bool is_left = l->left > l->right && l->left >= BYTES;
    uint32_t later = is_left ? l->left : l->right;
    if (later < BYTES) return take_token(u, l);
    l->limit = later - BYTES + !is_left;
    if (l->limit <= l->bound) return take_token(u, l);
    l->waits_for = is_left ? AT_LEFT : AT_RIGHT;
    __builtin_prefetch(&u->halves[later]);
    return true;
}

/* Goes back one token: from where it ended none leads on. @return false: there is none before. */
static bool drop_token(const bpe_units *u, lane *l) {
    if (l->count == 0) return false;
    l->is_dead[l->from] = true;
    uint32_t len = l->tokens[--l->count].len;
    l->from -= len;
    begin_token(u, l);
    while (l->len < len && walk_on(u, l)) {
    }
    return true;
}

/* Tries the tokens that begin at `from` and have at most `len` units, the longest one first.
 * @return false: the piece is complete, or has no encoding by units. */
static inline bool try_tokens(const bpe_units *u, lane *l) {
    for (;;) {
        for (; l->len > 0; l->len--) {
            if (l->candidates[l->len] == NO_SYMBOL) continue;
            if (!l->is_dead[l->from + l->len]) break;
            l->is_shorter = true;
        }
        if (l->len > 0) break;
        if (!drop_token(u, l)) return false;
    }
    l->bound = l->from ? bound_before(u, l->points + l->from) : UINT32_MAX;
    if (l->bound == UINT32_MAX) return take_token(u, l);
    l->left = l->tokens[l->count - 1].symbol;
    l->right = l->candidates[l->len];
    l->limit = NO_MERGE;
    if (!l->tokens[l->count - 1].is_shorter) return undo_merge(u, l);
    ask_pair(u, l);
    return true;
}

/* @return false: the piece is complete, or has no encoding by units. */
static inline bool advance_lane(const bpe_units *u, lane *l) {
    switch (l->waits_for) {
    case AT_NODE: return walk_on(u, l) || try_tokens(u, l);
    case AT_LEFT: l->left = (uint32_t)u->halves[l->left].right; break;
    case AT_RIGHT: l->right = (uint32_t)u->halves[l->right].left; break;
    case AT_PAIR:
        if (read_slot(u, l->slot, l->left, l->right) >= l->limit) return undo_merge(u, l);
        l->len--;
        l->is_shorter = true;
        return try_tokens(u, l);
    }
    ask_pair(u, l);
    return true;
}

/* Fills a lane with the next piece. @return false: there is none. */
static bool begin_lane(const bpe *b, lane *l, bpe_job **next, const bpe_job *end) {
    for (; *next < end; ++*next) {
        bpe_job *job = *next;
        int32_t whole = b->whole_first ? bpe_find(b, job->piece, job->len) : -1;
        if (whole < 0) break;
        job->ids[0] = whole;
        job->n = 1;
    }
    if (*next == end) return false;
    l->job = (*next)++;
    l->n = split_units(b->units, l->job->piece, l->job->len, l);
    l->from = l->count = 0;
    memset(l->is_dead, 0, l->n + 1);
    begin_token(b->units, l);
    return true;
}

static void end_lane(const bpe_units *u, lane *l) {
    l->job->n = l->from == l->n ? l->count : 0;
    for (size_t i = 0; i < l->job->n; i++) {
        uint32_t symbol = l->tokens[i].symbol;
        bool is_in_order = u->ids_in_order && symbol >= BYTES;
        l->job->ids[i] = is_in_order ? u->ids[BYTES] + (int32_t)(symbol - BYTES) : u->ids[symbol];
    }
}

void bpe_units_pieces(const bpe *b, bpe_job *jobs, size_t n) {
    enum { LANES = 12 };
    lane lanes[LANES], *busy[LANES];
    bpe_job *next = jobs, *end = jobs + n;
    int n_busy = 0;
    while (n_busy < LANES && begin_lane(b, &lanes[n_busy], &next, end)) {
        busy[n_busy] = &lanes[n_busy];
        n_busy++;
    }
    while (n_busy > 0)
        for (int i = 0; i < n_busy; i++) {
            if (advance_lane(b->units, busy[i])) continue;
            end_lane(b->units, busy[i]);
            if (!begin_lane(b, busy[i], &next, end)) busy[i--] = busy[--n_busy];
        }
}
