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
 * library's. The rest of the words, and those with unknown characters, are searched each time. */
#include <math.h>
#include <stdlib.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/unigram_internal.h"

static const float LARGEST = 100000;
/* Per character; a fourth more than 2^-7, for the rounding of the search from 0 itself. */
static const float ROUNDING = 0x1.4p-7f;
enum { TABLE = 0x10000 };

/* ---- the model ------------------------------------------------------------------------------------ */

static int32_t walk_char(const unigram_float *f, const char *bytes, size_t n) {
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t next = f->at[node].base + (uint8_t)bytes[i];
        if (f->at[next].check != node) return -1;
        node = next;
    }
    return node;
}

void unigram_float_build(unigram_float *f, const token_trie *trie, const double *score, int64_t n,
                         double unknown_score) {
    double largest = fabs(unknown_score);
    f->at = mem_alloc((size_t)trie->n * sizeof *f->at);
    f->score = mem_alloc(((size_t)n + 1) * sizeof *f->score);
    f->after = mem_alloc(TABLE * sizeof *f->after);
    f->unknown_score = (float)unknown_score;
    for (int64_t i = 0; i < n; i++) {
        f->score[i] = (float)score[i];
        largest = MAX(largest, fabs(score[i]));
    }
    for (int32_t i = 0; i < trie->n; i++) {
        trie_node t = trie->at[i];
        f->at[i] = (unigram_node){ t.base, t.check, t.token, t.token < 0 ? 0 : f->score[t.token] };
    }
    for (uint32_t cp = 0; cp < TABLE; cp++) {
        char bytes[4];
        bool surrogate = cp >= 0xD800 && cp < 0xE000;
        f->after[cp] = surrogate ? -1 : walk_char(f, bytes, (size_t)utf8_encode(cp, bytes));
    }
    /* Not a number compares as false, so that such scores are searched each time. */
    f->cached_below = largest < LARGEST ? LARGEST - (float)(UNIGRAM_CACHED * largest) : 0;
}

void unigram_float_free(unigram_float *f) {
    free(f->at);
    free(f->score);
    free(f->after);
    *f = (unigram_float){ 0 };
}

/* ---- the search ----------------------------------------------------------------------------------- */

static inline void relax(unigram_work *w, size_t end, float sum, uint32_t start, int32_t id,
                         bool with_second) {
    bool better = sum > w->sum[end];
    if (with_second) w->second[end] = better ? w->sum[end] : MAX(w->second[end], sum);
    w->sum[end] = better ? sum : w->sum[end];
    w->link[end] = better ? (unigram_link){ start, id } : w->link[end];
}

/* Follows the tokens that begin with the character at `start`. @return whether the character is one. */
static inline bool relax_tokens(const unigram_float *f, unigram_work *w, const char *piece,
                                size_t n, size_t start, size_t len, int32_t node,
                                bool with_second) {
    const unigram_node *at = f->at;
    float here = w->sum[start];
    if (node < 0) return false;
    bool is_token = at[node].id >= 0;
    if (is_token)
        relax(w, start + len, here + at[node].score, (uint32_t)start, at[node].id, with_second);
    for (size_t i = start + len; i < n; i++) {
        int32_t next = at[node].base + (uint8_t)piece[i];
        if (at[next].check != node) break;
        node = next;
        if (at[node].id >= 0)
            relax(w, i + 1, here + at[node].score, (uint32_t)start, at[node].id, with_second);
    }
    return is_token;
}

/* SentencePiece takes a sum off all that follows before it is too large for a float. */
static void take_back_sums(unigram_work *w, size_t at, size_t n) {
    float offset = w->sum[at];
    for (size_t i = at; i <= n; i++)
        if (w->sum[i] != -INFINITY) w->sum[i] -= offset;
}

/* @param with_second w->second gets the second-best sums; nothing is taken back. @return characters. */
static inline size_t search(const unigram *u, unigram_work *w, const char *piece, size_t n,
                            float from, bool with_second) {
    const unigram_float *f = &u->single;
    size_t chars = 0;
    for (size_t i = 0; i <= n; i++) w->sum[i] = -INFINITY;
    for (size_t i = 0; with_second && i <= n; i++) w->second[i] = -INFINITY;
    w->sum[0] = from;
    for (size_t at = 0, len; at < n; at += len, chars++) {
        uint32_t cp;
        len = (size_t)char_decode(piece + at, n - at, &cp);
        if (!with_second && fabsf(w->sum[at]) > LARGEST) take_back_sums(w, at, n);
        /* A broken byte decodes to U+FFFD as that character itself does. */
        int32_t node = cp < TABLE && cp != 0xFFFD ? f->after[cp] : walk_char(f, piece + at, len);
        if (relax_tokens(f, w, piece, n, at, len, node, with_second)) continue;
        relax(w, at + len, f->unknown_score + w->sum[at], (uint32_t)at, u->unknown, with_second);
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
