/* Words as code points, for Unigram training. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_unigram.h"

enum {
    BYTES_PER_CHAR = 64, /* of memory: text, suffixes, candidates and matches, at their largest */
};

typedef struct raw_word {
    const char *at; /* in the arena */
    uint32_t len;
    uint64_t count;
} raw_word;

typedef struct raw_words {
    arena *memory;
    raw_word *at;
    size_t n, cap;
} raw_words;

static void copy_counted_word(void *ctx, const char *word, size_t len, uint64_t count) {
    raw_words *r = ctx;
    if (len > UINT32_MAX / 2) return;
    if (r->n == r->cap) {
        r->cap = MAX((size_t)1024, r->cap * 2);
        r->at = mem_grow(r->at, r->cap * sizeof *r->at);
    }
    char *copy = arena_alloc(r->memory, len);
    memcpy(copy, word, len);
    r->at[r->n++] = (raw_word){ copy, (uint32_t)len, count };
}

static int compare_words(const void *a, const void *b) {
    const raw_word *x = a, *y = b;
    int order = memcmp(x->at, y->at, MIN(x->len, y->len));
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* The most frequent first. */
static int compare_counts(const void *a, const void *b) {
    const raw_word *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return compare_words(a, b);
}

static int64_t choose_chars(const raw_words *r, double coverage, bool *covered) {
    uint64_t *seen = mem_alloc(CODE_POINTS * sizeof *seen);
    for (size_t i = 0; i < r->n; i++) chars_count(seen, r->at[i].at, r->at[i].len, r->at[i].count);
    int64_t out = chars_choose(seen, coverage, covered);
    free(seen);
    return out;
}

/* ---- layout ---------------------------------------------------------------------------------------- */

static void close_word(unigram_words *w, uint64_t count) {
    uint32_t begin = w->first[w->n_words];
    if (w->n == begin) return;
    w->longest = MAX(w->longest, w->n - begin);
    w->word[w->n] = w->n_words;
    w->text[w->n++] = 0;
    w->count[w->n_words++] = count;
    w->first[w->n_words] = w->n;
}

static void lay_out(unigram_words *w, const raw_words *r, const bool *covered) {
    size_t chars = 0, parts = 0; /* at most */
    for (size_t i = 0; i < r->n; i++) chars += 2 * (size_t)r->at[i].len, parts += r->at[i].len;
    BUG_IF(chars >= UINT32_MAX);
    w->text = mem_alloc((chars + 1) * sizeof *w->text);
    w->word = mem_alloc((chars + 1) * sizeof *w->word);
    w->first = mem_alloc((parts + 2) * sizeof *w->first);
    w->count = mem_alloc((parts + 1) * sizeof *w->count);
    for (size_t i = 0; i < r->n; i++) {
        uint32_t cp;
        for (uint32_t at = 0; at < r->at[i].len;) {
            at += (uint32_t)char_decode(r->at[i].at + at, r->at[i].len - at, &cp);
            if (!covered[cp]) {
                close_word(w, r->at[i].count);
                continue;
            }
            w->word[w->n] = w->n_words;
            w->text[w->n++] = cp + 1;
        }
        close_word(w, r->at[i].count);
    }
    /* Returns memory that was reserved for the worst case. */
    w->text = mem_grow(w->text, ((size_t)w->n + 1) * sizeof *w->text);
    w->word = mem_grow(w->word, ((size_t)w->n + 1) * sizeof *w->word);
    w->first = mem_grow(w->first, ((size_t)w->n_words + 1) * sizeof *w->first);
    w->count = mem_grow(w->count, ((size_t)w->n_words + 1) * sizeof *w->count);
}

err unigram_words_fill(unigram_words *w, word_counts *from, double coverage, size_t memory) {
    raw_words r = { .memory = arena_new() };
    bool *covered = mem_alloc(CODE_POINTS);
    /* matches are counted in 32 bits: up to PIECE_MAX_CHARS for each character */
    size_t bytes = 0, n = 0, most = MIN(memory / BYTES_PER_CHAR, UINT32_MAX / PIECE_MAX_CHARS);
    *w = (unigram_words){ 0 };
    err e = word_counts_each(from, true, copy_counted_word, &r);
    if (!e) {
        sort_array(r.at, r.n, sizeof *r.at, compare_counts);
        while (n < r.n && (bytes += r.at[n].len) <= most) n++;
        w->left_out = (int64_t)(r.n - n);
        r.n = n;
        sort_array(r.at, r.n, sizeof *r.at, compare_words);
        w->uncovered = choose_chars(&r, coverage, covered);
        lay_out(w, &r, covered);
    }
    free(covered);
    free(r.at);
    arena_free(r.memory);
    return e;
}

void unigram_words_free(unigram_words *w) {
    free(w->text);
    free(w->word);
    free(w->first);
    free(w->count);
    *w = (unigram_words){ 0 };
}
