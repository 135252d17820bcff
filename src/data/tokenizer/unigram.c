/* Unigram: of all ways to write a piece as tokens, the one with the highest sum of scores (Viterbi).
 *
 * Tokens are found with a trie (trie.c). For each position of the piece the best way to reach it is kept:
 *
 *     position   0    1    2    3 ...        best[3] = the token that ends there, where it begins,
 *                u  n  i  g                  and the sum of scores up to it
 *
 * A character that is not a token of its own may be passed over as unknown, at 10 below the lowest
 * score. Ties go to the token that begins first, as in both originals, whose arithmetic decides near-ties:
 *
 *     Hugging Face     in double, each piece from 0
 *     SentencePiece    sums in float, over the whole text (unigram_float.c), so that ids are the library's
 *                      (0.2.3) in long texts too
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/unigram_internal.h"

static const double UNKNOWN_PENALTY = 10;
enum { NO_TOKEN = -1, UNREACHED = -2 };

/* ---- the model ------------------------------------------------------------------------------------ */

err unigram_new(const unigram_parts *p, unigram **out) {
    unigram *u = mem_alloc(sizeof *u);
    trie_key *keys = mem_alloc(((size_t)p->n + 1) * sizeof *keys);
    int32_t n = 0;
    double lowest = INFINITY;
    u->score = mem_alloc(((size_t)p->n + 1) * sizeof *u->score);
    u->unknown = p->unknown;
    for (int64_t i = 0; i < p->n; i++) {
        u->score[i] = p->single ? (double)(float)p->score[i] : p->score[i];
        if (p->use[i] == TOKEN_UNUSED || p->text[i].len == 0) continue;
        if (p->use[i] == TOKEN_NORMAL) lowest = MIN(lowest, u->score[i]);
        keys[n++] = (trie_key){ p->text[i], (int32_t)i };
    }
    /* SentencePiece's: above all that is learned, and higher for longer ones. */
    for (int64_t i = 0; i < p->n; i++)
        if (p->use[i] == TOKEN_USER_DEFINED)
            u->score[i] = (double)(float)(0.1 * ((double)p->text[i].len - 1));
    if (!isfinite(lowest)) lowest = 0;
    u->unknown_score =
        p->single ? (double)((float)lowest - (float)UNKNOWN_PENALTY) : lowest - UNKNOWN_PENALTY;
    token_trie_build(&u->trie, keys, n);
    if (p->single) unigram_float_build(u, p, keys, n);
    free(keys);
    *out = u;
    return OK;
}

void unigram_free(unigram *u) {
    if (!u) return;
    unigram_float_free(&u->single);
    token_trie_free(&u->trie);
    free(u->score);
    free(u);
}

uint64_t unigram_hash(const unigram *u, int64_t n) {
    uint64_t h = hash_bytes(u->score, (size_t)n * sizeof *u->score, u->single.score != NULL);
    h = hash_bytes(&u->unknown_score, sizeof u->unknown_score, h);
    return hash_bytes(&u->unknown, sizeof u->unknown, h);
}

/* ---- the best path ---------------------------------------------------------------------------------- */

static void reach(unigram_work *w, size_t end, size_t start, int32_t id, double sum) {
    if (w->link[end].id != UNREACHED && sum <= w->total[end]) return;
    w->total[end] = sum;
    w->link[end] = (unigram_link){ (uint32_t)start, id };
}

/* Follows the tokens that begin at `start`. @return whether one of them is the first character. */
static bool reach_tokens(const unigram *u, unigram_work *w, const char *piece, size_t n,
                         size_t start, size_t char_len) {
    double till_here = w->total[start];
    bool single_char = false;
    int32_t node = 0;
    for (size_t i = start; i < n && token_trie_step(&u->trie, &node, piece[i]); i++) {
        int32_t id = u->trie.at[node].token;
        if (id < 0) continue;
        reach(w, i + 1, start, id, u->score[id] + till_here);
        single_char |= i + 1 - start == char_len;
    }
    return single_char;
}

static void find_best_path(const unigram *u, unigram_work *w, const char *piece, size_t n) {
    unigram_work_reserve(w, n);
    for (size_t i = 1; i <= n; i++) w->link[i].id = UNREACHED;
    w->total[0] = 0;
    w->link[0] = (unigram_link){ 0, NO_TOKEN };
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        len = (size_t)char_decode(piece + at, n - at, &cp);
        if (reach_tokens(u, w, piece, n, at, len)) continue;
        reach(w, at + len, at, u->unknown, u->unknown_score + w->total[at]);
    }
}

static bool add_byte_ids(const bpe *b, const char *s, size_t n, unigram_work *w) {
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] < 0) return false;
    for (size_t i = 0; i < n; i++) w->ids[w->n++] = b->byte_id[(uint8_t)s[i]];
    return true;
}

/* A run of unknown characters: bytes where there is a token for each, else one id for all. */
static void add_unknown_run(const unigram *u, const bpe *b, const char *s, size_t n,
                            unigram_work *w) {
    int32_t whole = u->single.score ? -1 : bpe_find(b, s, n);
    if (whole >= 0)
        w->ids[w->n++] = whole;
    else if (!add_byte_ids(b, s, n, w))
        w->ids[w->n++] = u->unknown;
}

/* Appends the ids of a way without unknown characters, from its end. @return false: there are some. */
static bool collect_known(const unigram *u, unigram_work *w, size_t n) {
    int32_t *ids = w->ids + w->n, *begin = ids + n; /* the buffer holds one for each position */
    for (size_t at = n; at > 0; at = w->link[at].start) {
        if (w->link[at].id == u->unknown) return false;
        *--begin = w->link[at].id;
    }
    size_t count = (size_t)(ids + n - begin);
    memmove(ids, begin, count * sizeof *ids);
    w->n += count;
    return true;
}

void unigram_collect(const unigram *u, const bpe *b, unigram_work *w, const char *piece, size_t n) {
    if (collect_known(u, w, n)) return;
    unigram_link *link = w->link;
    const uint32_t *offset = u->single.score ? w->offset : NULL;
    /* Backwards along the path, leaving in each step where the next one begins; then forwards. */
    uint32_t end = (uint32_t)n;
    for (uint32_t at = (uint32_t)n; at > 0;) {
        uint32_t start = link[at].start;
        link[at].start = end;
        end = at;
        at = start;
    }
    for (uint32_t from = 0, at = end; from < n;) {
        bool unknown = link[at].id == u->unknown;
        uint32_t to = at;
        while (unknown && to < n && link[link[to].start].id == u->unknown) to = link[to].start;
        if (unknown) {
            size_t begin = offset ? offset[from] : from, stop = offset ? offset[to] : to;
            add_unknown_run(u, b, piece + begin, stop - begin, w);
        } else {
            w->ids[w->n++] = link[at].id;
        }
        from = to;
        at = link[to].start;
    }
}

const int32_t *unigram_piece(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                             size_t n, size_t *n_ids) {
    unigram_work_reserve_ids(w, n);
    w->n = 0;
    for (size_t from = 0, bytes; from < n; from += bytes) {
        size_t positions = bytes = n - from;
        if (u->single.score)
            positions = unigram_float_search(u, w, piece + from, n - from, &bytes);
        else
            find_best_path(u, w, piece, n);
        unigram_collect(u, b, w, piece + from, positions);
    }
    *n_ids = w->n;
    return w->ids;
}

void unigram_work_reserve(unigram_work *w, size_t n) {
    BUG_IF(n >= UINT32_MAX);
    if (n + 1 <= w->cap) return;
    w->cap = MAX(n + 1, 2 * w->cap);
    w->link = mem_grow(w->link, w->cap * sizeof *w->link);
    w->total = mem_grow(w->total, w->cap * sizeof *w->total);
    w->sum = mem_grow(w->sum, w->cap * sizeof *w->sum);
    w->second = mem_grow(w->second, w->cap * sizeof *w->second);
    w->chars = mem_grow(w->chars, w->cap * sizeof *w->chars);
    w->offset = mem_grow(w->offset, w->cap * sizeof *w->offset);
}

void unigram_work_reserve_ids(unigram_work *w, size_t n) {
    if (n <= w->ids_cap) return;
    w->ids_cap = MAX(n, 2 * w->ids_cap);
    w->ids = mem_grow(w->ids, w->ids_cap * sizeof *w->ids);
}

void unigram_work_free(unigram_work *w) {
    free(w->link);
    free(w->total);
    free(w->sum);
    free(w->second);
    free(w->chars);
    free(w->offset);
    free(w->ids);
    *w = (unigram_work){ 0 };
}
