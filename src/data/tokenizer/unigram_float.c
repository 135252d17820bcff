/* SentencePiece's Viterbi search, with its arithmetic: sums are floats that go on from word to word, over the
 * whole text, so that where two ways to write a word are nearly equal the text before it decides.
 *
 * Nodes of the trie have their token's score beside them, and a table leads from a character of up to three bytes to
 * its node, past the walk over its bytes.
 *
 * Words are cached all the same. Rounding is monotone, so the search finds the way whose scores, added one after
 * another in float, give the largest sum. Below the magnitude at which SentencePiece takes the sums back (LARGEST),
 * one addition is off by 2^-8 at most, and a way to write a word of c characters has at most c additions: if a way
 * is better than every other by more than c * 2^-7, it is chosen after any text. The search from 0 finds by how much
 * the best way is better: every other one joins it for the last time at some position of it, so the least difference
 * between the best and the second-best sum at these positions is what separates the two.
 * Such words are cached; their scores are then added one by one, so that the carried sum is the
 * library's. The rest of the words, and those with unknown characters, are searched each time.
 *
 * Scripts that do not separate words have long ones that occur once. As for merges (adjacency.c), these are split
 * between two characters that are not adjacent in any token. */
#include <math.h>
#include <stdlib.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/unigram_internal.h"

static const float LARGEST = 100000;
/* Per character; a fourth more than 2^-7, for the rounding of the search from 0 itself. */
static const float ROUNDING = 0x1.4p-7f;
enum { BMP = 0x10000 }; /* characters of up to three bytes */

/* ---- the model ------------------------------------------------------------------------------------ */

static int32_t find_char_node(const unigram_float *f, const char *bytes, size_t n) {
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t next = f->at[node].base + (uint8_t)bytes[i];
        if (f->at[next].check != node) return -1;
        node = next;
    }
    return node;
}

static void build_nodes(unigram *u, const unigram_parts *p) {
    unigram_float *f = &u->single;
    f->at = mem_alloc((size_t)u->trie.n * sizeof *f->at);
    f->after = mem_alloc(BMP * sizeof *f->after);
    for (int32_t i = 0; i < u->trie.n; i++) {
        trie_node t = u->trie.at[i];
        f->at[i] = (unigram_node){ t.base, t.check, t.token, t.token < 0 ? 0 : f->score[t.token] };
    }
    for (uint32_t cp = 0; cp < BMP; cp++) {
        char bytes[4];
        bool surrogate = cp >= 0xD800 && cp < 0xE000;
        int32_t node = surrogate ? -1 : find_char_node(f, bytes, (size_t)utf8_encode(cp, bytes));
        f->after[cp] = node;
        f->known[cp >> 6] |= (uint64_t)(node >= 0 && f->at[node].id >= 0) << (cp & 63);
    }
}

static bool is_pair(const char *p) { return is_three_bytes(p) && is_three_bytes(p + 3); }
static uint64_t pair_bit(const unigram_float *f, const char *p) {
    return adjacency_hash(adjacency_bytes(p, 6), f->pairs_shift);
}

static void build_pairs(unigram_float *f, const unigram_parts *p) {
    enum { LOG2_MIN = 12, LOG2_MAX = 24, BITS_PER_PAIR = 16 };
    int log2 = LOG2_MIN;
    uint64_t count = 0;
    for (int64_t i = 0; i < p->n; i++)
        for (size_t k = 0; k + 6 <= p->text[i].len; k++) count += is_pair(p->text[i].at + k);
    while (log2 < LOG2_MAX && UINT64_C(1) << log2 < BITS_PER_PAIR * count) log2++;
    f->pairs = mem_alloc((size_t)1 << log2 >> 3);
    f->pairs_shift = 64 - log2;
    for (int64_t i = 0; i < p->n; i++)
        for (size_t k = 0; k + 6 <= p->text[i].len; k++) {
            if (!is_pair(p->text[i].at + k)) continue;
            uint64_t bit = pair_bit(f, p->text[i].at + k);
            f->pairs[bit >> 6] |= UINT64_C(1) << (bit & 63);
        }
}

void unigram_float_build(unigram *u, const unigram_parts *p) {
    unigram_float *f = &u->single;
    double largest = fabs(u->unknown_score);
    f->score = mem_alloc(((size_t)p->n + 1) * sizeof *f->score);
    f->unknown_score = (float)u->unknown_score;
    for (int64_t i = 0; i < p->n; i++) {
        f->score[i] = (float)u->score[i];
        largest = MAX(largest, fabs(u->score[i]));
    }
    build_nodes(u, p);
    build_pairs(f, p);
    /* Not a number compares as false, so that such scores are searched each time. */
    f->cached_below = largest < LARGEST ? LARGEST - (float)(UNIGRAM_CACHED * largest) : 0;
}

static uint64_t three_bytes(const char *p) {
    return (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[1] << 8 | (uint8_t)p[2];
}

static bool is_known(const unigram_float *f, uint64_t bytes) {
    uint64_t cp = (bytes >> 4 & 0xF000) | (bytes >> 2 & 0xFC0) | (bytes & 63);
    return f->known[cp >> 6] >> (cp & 63) & 1;
}

size_t unigram_part_end(const unigram_float *f, const char *text, size_t from, size_t end) {
    uint64_t left = 0; /* the character before i, if it has three bytes */
    for (size_t i = from; i + 3 <= end;) {
        if ((text[i] & 0x80) == 0 || !is_three_bytes(text + i)) {
            left = 0;
            i++;
            continue;
        }
        uint64_t right = three_bytes(text + i);
        if (left && !adjacency_has(f->pairs, adjacency_hash(left << 24 | right, f->pairs_shift)) &&
            (is_known(f, left) || is_known(f, right)))
            return i;
        left = right;
        i += 3;
    }
    return end;
}

void unigram_float_free(unigram_float *f) {
    free(f->at);
    free(f->score);
    free(f->after);
    free(f->pairs);
    *f = (unigram_float){ 0 };
}

/* ---- the search ----------------------------------------------------------------------------------- */

/* The arrays of a unigram_work, which nothing else points to: the compiler may keep what it has read of the model. */
typedef struct search_arrays {
    float *restrict sum;
    float *restrict second; /* NULL: not wanted */
    unigram_link *restrict link;
} search_arrays;
#define INLINE                                                                                     \
    static inline __attribute__((always_inline)) /* NULL or not is known where it is inlined */

INLINE void relax(search_arrays a, size_t end, float sum, unigram_link link) {
    float known = a.sum[end];
    bool better = sum > known;
    if (a.second) a.second[end] = better ? known : MAX(a.second[end], sum);
    if (!better) return;
    a.sum[end] = sum;
    a.link[end] = link;
}

/* Follows the tokens that begin with the character at `start`. @return whether the character is one. */
INLINE bool relax_tokens(const unigram_node *at, search_arrays a, const char *piece, size_t n,
                         size_t start, size_t len, int32_t node) {
    float here = a.sum[start];
    if (node < 0) return false;
    unigram_node now = at[node];
    bool is_token = now.id >= 0;
    if (is_token)
        relax(a, start + len, here + now.score, (unigram_link){ (uint32_t)start, now.id });
    for (size_t i = start + len; i < n; i++) {
        int32_t next = now.base + (uint8_t)piece[i];
        if (at[next].check != node) break;
        now = at[node = next];
        if (now.id >= 0)
            relax(a, i + 1, here + now.score, (unigram_link){ (uint32_t)start, now.id });
    }
    return is_token;
}

/* SentencePiece takes a sum off all that follows before it is too large for a float. */
static void take_back_sums(float *sum, size_t at, size_t n) {
    float offset = sum[at];
    for (size_t i = at; i <= n; i++)
        if (sum[i] != -INFINITY) sum[i] -= offset;
}

/* @param with_second w->second gets the second-best sums; nothing is taken back. @return characters. */
INLINE size_t search(const unigram *u, unigram_work *w, const char *piece, size_t n, float from,
                     bool with_second) {
    const unigram_float *f = &u->single;
    const search_arrays a = { w->sum, with_second ? w->second : NULL, w->link };
    size_t chars = 0;
    for (size_t i = 0; i <= n; i++) a.sum[i] = -INFINITY;
    for (size_t i = 0; with_second && i <= n; i++) a.second[i] = -INFINITY;
    a.sum[0] = from;
    for (size_t at = 0, len; at < n; at += len, chars++) {
        uint32_t cp;
        len = (size_t)char_decode(piece + at, n - at, &cp);
        if (!with_second && fabsf(a.sum[at]) > LARGEST) take_back_sums(a.sum, at, n);
        /* A broken byte decodes to U+FFFD as that character itself does. */
        int32_t node = cp < BMP && cp != 0xFFFD ? f->after[cp] : find_char_node(f, piece + at, len);
        if (relax_tokens(f->at, a, piece, n, at, len, node)) continue;
        relax(a, at + len, f->unknown_score + a.sum[at],
              (unigram_link){ (uint32_t)at, u->unknown });
    }
    return chars;
}

void unigram_float_search(const unigram *u, unigram_work *w, const char *piece, size_t n) {
    search(u, w, piece, n, w->carried, false);
    w->carried = w->sum[n];
}

bool unigram_float_decided(const unigram *u, unigram_work *w, const char *word, size_t n) {
    unigram_work_reserve(w, n);
    size_t chars = search(u, w, word, n, 0, true);
    float apart = INFINITY;
    for (size_t at = n; at > 0; at = w->link[at].start) {
        if (w->link[at].id == u->unknown) return false;
        apart = MIN(apart, w->sum[at] - w->second[at]);
    }
    return apart > (float)chars * ROUNDING;
}
