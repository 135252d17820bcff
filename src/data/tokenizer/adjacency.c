/* Where a piece can be split without changing its ids: between two characters that are not adjacent in
 * any token. Whatever merges happen, each symbol is a token, so none can ever cover such a boundary, and
 * the merges on either side do not depend on each other.
 *
 * Scripts that do not separate words make long pieces, most of which occur once: 今日は天気がいい. Their
 * parts occur often, so that the cache knows them: 今日は | 天気 | がいい. Only boundaries between characters
 * of three bytes, which nearly all characters of such scripts have, are considered.
 *
 * A token may begin or end inside a character, so there are three sets. For a boundary between the
 * characters l1 l2 l3 and r1 r2 r3, `whole` has those of tokens that cover both, `prefix` those that cover
 * l1 l2 l3 r1 r2, and `suffix` those that cover l3 r1 r2 but not all of the left character. A token that covers
 * only r1 of the right one is entered with every r2. The first two are hashed: a set may claim an adjacency
 * that is not there, which costs a split, but it never misses one. Most characters of a script that a vocabulary was
 * not trained on are not the left one in either, which a bit for each shows first.
 *
 * Where a piece that is a token is that token, whatever the merges are, a part must not become a token that
 * merges do not give: nothing is split off before the first and after the last character of such tokens. */
#include <stdlib.h>

#include "tokenizer/adjacency_internal.h"
#include "tokenizer/chars_internal.h"

static void set_bit(uint64_t *set, uint64_t i) { set[i >> 6] |= (uint64_t)1 << (i & 63); }

/* Enters the boundary at k of a token, if it is one of those between three bytes each. */
static void add_boundary(adjacency *a, const char *t, size_t n, size_t k) {
    size_t before = MIN(k, 3), after = MIN(n - k, 3);
    if (!is_lead(t[k]) || !is_follow(t[k - 1])) return;
    if (before > 1 && !(before == 2 ? is_follow(t[0]) : is_follow(t[k - 2]) && is_lead(t[k - 3])))
        return;
    for (size_t i = 1; i < after; i++)
        if (!is_follow(t[k + i])) return;
    uint32_t left = before == 3 ? three_bytes_number(t + k - 3) : t[k - 1] & 63u;
    if (before == 3) set_bit(a->left, left);
    if (before == 3 && after == 3) {
        set_bit(a->whole, adjacency_hash(left, three_bytes_number(t + k), a->whole_shift));
        return;
    }
    for (uint32_t c = 0; c < 64; c++) { /* every r2 that it may be */
        uint32_t r2 = after == 1 ? c : t[k + 1] & 63u, two = (t[k] & 15u) << 6 | r2;
        if (before == 3)
            set_bit(a->prefix, adjacency_hash(left, two, a->prefix_shift));
        else
            set_bit(a->suffix, adjacency_index(left, two << 6));
        if (after > 1) break;
    }
}

/* For a token that merges do not give, or may not, while a piece may be it: claims all boundaries before its first
 * and after its last character. */
static void keep_whole(adjacency *a, text_span t) {
    enum { NEIGHBORS = 1 << 10, LASTS = 1 << 6 }; /* first two bytes, last bytes of a character */
    if (t.len < 3) return;
    const char *last = t.at + t.len - 3;
    for (uint32_t l3 = 0; l3 < LASTS && is_three_bytes(t.at); l3++)
        set_bit(a->suffix, adjacency_index(l3, three_bytes_number(t.at)));
    for (uint32_t r = 0; r < NEIGHBORS && is_three_bytes(last); r++)
        set_bit(a->suffix, adjacency_index(three_bytes_number(last), r << 6));
}

static void add_tokens(adjacency *a, const bpe *b) {
    for (int64_t i = 0; i < b->n; i++) {
        for (size_t k = 1; k < b->tokens[i].len; k++)
            add_boundary(a, b->tokens[i].at, b->tokens[i].len, k);
        bool is_given = b->walk && b->walk->tokens[i].rank != WALK_NOT_MADE;
        if (b->whole_first && !is_given) keep_whole(a, b->tokens[i]);
    }
}

enum { SET_LOG2_MIN = 16, SET_LOG2_MAX = 24 };

/* @return bits of a hashed set of so many: few enough collisions, and near memory, which the walk needs too. */
static int set_bits_log2(uint64_t count) {
    int log2 = SET_LOG2_MIN;
    while (log2 < SET_LOG2_MAX && (uint64_t)1 << log2 < 16 * count) log2++;
    return log2;
}

static uint64_t count_entries(const uint64_t *set, int log2) {
    uint64_t count = 0;
    for (size_t i = 0; i < (size_t)1 << log2 >> 6; i++)
        count += (uint64_t)__builtin_popcountll(set[i]);
    return count;
}

/* @return at least as many as any set will have: a boundary may be entered with 64 bytes that follow */
static uint64_t most_entries(const bpe *b) {
    uint64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        for (size_t k = 1; k < b->tokens[i].len; k++) n += is_lead(b->tokens[i].at[k]);
    return 64 * n;
}

static void alloc_sets(adjacency *a, int whole_log2, int prefix_log2) {
    *a = (adjacency){ .whole = mem_alloc((size_t)1 << whole_log2 >> 3),
                      .prefix = mem_alloc((size_t)1 << prefix_log2 >> 3),
                      .suffix = mem_alloc(ADJACENCY_SUFFIX_BITS / 8),
                      .left = mem_alloc(ADJACENCY_CHARS / 8),
                      .whole_shift = 64 - whole_log2,
                      .prefix_shift = 64 - prefix_log2 };
}

void adjacency_build(const bpe *b, adjacency *a) {
    adjacency_free(a);
    /* Unknown bytes that follow one another are one token: these pieces must stay whole. Bytes that an
     * unknown character falls back to are not the text of their tokens. */
    if (b->n_pairs == 0 || b->chars || (b->unknown >= 0 && b->fuse_unknown)) return;
    adjacency trial; /* most are entered many times */
    int log2 = set_bits_log2(most_entries(b));
    alloc_sets(&trial, log2, log2);
    add_tokens(&trial, b);
    alloc_sets(a, set_bits_log2(count_entries(trial.whole, log2)),
               set_bits_log2(count_entries(trial.prefix, log2)));
    add_tokens(a, b);
    adjacency_free(&trial);
}

void adjacency_free(adjacency *a) {
    free(a->whole);
    free(a->prefix);
    free(a->suffix);
    free(a->left);
    *a = (adjacency){ 0 };
}
