/* SentencePiece's Viterbi search, with its arithmetic: sums are floats that go on from word to word, over the
 * whole text, so that where two ways to write a word are nearly equal the text before it decides.
 *
 * Words are cached all the same. Rounding is monotone, so the search finds the way whose scores, added one after
 * another in float, give the largest sum. Below the magnitude at which SentencePiece takes the sums back (LARGEST),
 * one addition is off by 2^-8 at most, and a way to write a word of c characters has at most c additions: if a way
 * is better than every other by more than c * 2^-7, it is chosen after any text. The search from 0 finds by how much
 * the best way is better: every other one joins it for the last time at some position of it, so the least difference
 * between the best and the second-best sum at these positions is what separates the two.
 * Such words are cached; their scores are then added one by one, so that the carried sum is the
 * library's. The rest of the words, those with unknown characters, and long ones, which scripts that do not separate
 * words have and which mostly occur once, are searched each time.
 *
 * A search looks up the characters first, then follows the tokens that begin with each (char_trie.c). Whether a token
 * is the best way to its end is hard to predict, so it is decided without a branch. A long word is searched in windows,
 * each of which ends where no token of the word crosses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/unigram_internal.h"

static const float LARGEST = 100000;
/* Per character; a fourth more than 2^-7, for the rounding of the search from 0 itself. */
static const float ROUNDING = 0x1.4p-7f;
enum { WINDOW = 3072 }; /* bytes, whose arrays are near memory */

/* ---- the model ------------------------------------------------------------------------------------ */

void unigram_float_build(unigram *u, const unigram_parts *p, const trie_key *keys, int32_t n) {
    unigram_float *f = &u->single;
    double largest = fabs(u->unknown_score);
    f->score = mem_alloc(((size_t)p->n + 1) * sizeof *f->score);
    f->unknown_score = (float)u->unknown_score;
    for (int64_t i = 0; i < p->n; i++) {
        f->score[i] = (float)u->score[i];
        largest = MAX(largest, fabs(u->score[i]));
    }
    char_trie_build(&f->trie, keys, n, f->score, u->unknown, f->unknown_score);
    f->largest = (float)largest;
}

/* A NaN compares as false. */
bool unigram_float_is_near(const unigram_float *f, const unigram_work *w, size_t n) {
    return fabsf(w->carried) + (float)(n + 1) * f->largest < LARGEST;
}

void unigram_float_free(unigram_float *f) {
    char_trie_free(&f->trie);
    free(f->score);
    *f = (unigram_float){ 0 };
}

/* ---- the search ----------------------------------------------------------------------------------- */

/* The arrays of a unigram_work, which nothing else points to: the compiler may keep what it has read of the model. */
typedef struct search_arrays {
    float *restrict sum;
    float *restrict second; /* NULL: not wanted */
    unigram_link *restrict link;
    const char_entry *restrict chars;
} search_arrays;
#define INLINE                                                                                     \
    static inline __attribute__((always_inline)) /* NULL or not is known where it is inlined */

INLINE void relax(search_arrays a, size_t end, float sum, size_t start, int32_t id) {
    float known = a.sum[end];
    bool better = sum > known;
    if (a.second) a.second[end] = better ? known : MAX(a.second[end], sum);
    uint64_t old, new, keep = (uint64_t)better - 1;
    const unigram_link link = { (uint32_t)start, id };
    memcpy(&old, &a.link[end], sizeof old);
    memcpy(&new, &link, sizeof new);
    new ^= (old ^ new) & keep; /* a ternary would be a branch */
    memcpy(&a.link[end], &new, sizeof new);
    a.sum[end] = better ? sum : known;
}

/* Follows the tokens that begin with the character at `start`. @return where the search for longer ones ended. */
INLINE size_t relax_tokens(const char_node *nodes, search_arrays a, size_t start) {
    float here = a.sum[start];
    char_entry first = a.chars[start];
    size_t end = start + 1;
    uint32_t node = CHAR_TRIE_FIRST | first.symbol;
    uint32_t next = char_trie_next(first.base, a.chars[end].symbol);
    relax(a, end, here + first.score, start, first.id);
    while (nodes[next].parent == node) {
        char_node now = nodes[node = next];
        next = char_trie_next(now.base, a.chars[++end].symbol);
        relax(a, end, here + now.score, start, now.id);
    }
    return end;
}

/* SentencePiece takes a sum off all that follows before it is too large for a float. */
static void take_back_sums(float *sum, size_t at, size_t n) {
    float offset = sum[at];
    for (size_t i = at; i <= n; i++)
        if (sum[i] != -INFINITY) sum[i] -= offset;
}

/* Looks up the characters that begin in the first `limit` bytes. @return how many. */
static size_t find_chars(const char_trie *t, unigram_work *w, const char *piece, size_t n,
                         size_t limit) {
    char_entry *restrict chars = w->chars;
    uint32_t *restrict offset = w->offset;
    size_t count = 0, at = 0;
    for (size_t len; at < limit; at += len) {
        offset[count] = (uint32_t)at;
        chars[count++] = char_trie_entry(t, piece + at, n - at, &len);
    }
    offset[count] = (uint32_t)at;
    chars[count] = (char_entry){ .symbol = CHAR_TRIE_NO_SYMBOL };
    return count;
}

static void begin_search(unigram_work *w, size_t n, float from) {
    for (size_t i = 1; i <= n; i++) w->sum[i] = -INFINITY;
    w->sum[0] = from;
}

/* Searches a text whose sums are not large, without more. */
static void search_near(const unigram *u, unigram_work *w, size_t n) {
    const char_node *nodes = u->single.trie.at;
    const search_arrays a = { w->sum, NULL, w->link, w->chars };
    begin_search(w, n, w->carried);
    for (size_t at = 0; at < n; at++) relax_tokens(nodes, a, at);
}

/* Searches a text that may be part of a longer one. @return the last position that no token crosses, however
 * the text goes on. */
static size_t search_far(const unigram *u, unigram_work *w, size_t n) {
    const char_node *nodes = u->single.trie.at;
    const search_arrays a = { w->sum, NULL, w->link, w->chars };
    size_t reached = 0, cut = 0;
    begin_search(w, n, w->carried);
    for (size_t at = 0; at < n; at++) {
        /* Unknown characters that follow one another are one id. */
        if (at && reached <= at && a.link[at].id != u->unknown) cut = at;
        if (fabsf(a.sum[at]) > LARGEST) take_back_sums(a.sum, at, n);
        size_t end = relax_tokens(nodes, a, at);
        reached = MAX(reached, end);
    }
    return cut;
}

size_t unigram_float_search(const unigram *u, unigram_work *w, const char *piece, size_t n,
                            size_t *bytes) {
    size_t end = 0;
    for (size_t limit = WINDOW; end == 0; limit *= 2) {
        size_t shown = MIN(n, limit);
        unigram_work_reserve(w, shown);
        size_t chars = find_chars(&u->single.trie, w, piece, n, shown);
        bool near = shown == n && unigram_float_is_near(&u->single, w, n);
        if (near) search_near(u, w, chars);
        if (!near) end = search_far(u, w, chars);
        if (shown == n) end = chars;
    }
    w->carried = w->sum[end];
    *bytes = w->offset[end];
    return end;
}

bool unigram_float_decided(const unigram *u, unigram_work *w, const char *word, size_t n,
                           size_t *chars) {
    unigram_work_reserve(w, n);
    *chars = find_chars(&u->single.trie, w, word, n, n);
    const search_arrays a = { w->sum, w->second, w->link, w->chars };
    begin_search(w, *chars, 0);
    for (size_t i = 0; i <= *chars; i++) w->second[i] = -INFINITY;
    for (size_t at = 0; at < *chars; at++) relax_tokens(u->single.trie.at, a, at);
    float apart = INFINITY;
    for (size_t at = *chars; at > 0; at = w->link[at].start) {
        if (w->link[at].id == u->unknown) return false;
        apart = MIN(apart, w->sum[at] - w->second[at]);
    }
    return apart > (float)*chars * ROUNDING;
}
