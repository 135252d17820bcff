/* Seeds of a Unigram vocabulary: the substrings of words that are worth a token, from an array of suffixes.
 *
 * Suffixes end with their word, and count up to PIECE_MAX_CHARS characters. They are parted by their first character
 * and each part is sorted by itself, all of them side by side. Suffixes that agree in their first d characters lie
 * next to each other; an interval that does not agree in one more is a candidate of length d, seen as often as the
 * words its suffixes are in. These are the nodes of the suffix tree, found in one pass with a stack. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_unigram.h"

enum { FEW = 12 }; /* suffixes that are sorted by insertion */

typedef struct candidate {
    uint64_t value; /* what it is chosen by: how often it was seen, times its length */
    uint32_t low, high;
    uint32_t chars;
} candidate;

typedef struct suffix_part { /* suffixes with the same first character */
    uint32_t low, high;
    uint64_t seen;
    candidate *found; /* longer than a character */
    int n, cap;
} suffix_part;

typedef struct suffix_array {
    const unigram_words *w;
    uint32_t *at; /* [n] positions, the ends of words not among them */
    uint32_t n;
    suffix_part *parts;
    int n_parts;
} suffix_array;

/* ---- sorting ------------------------------------------------------------------------------------------- */

static uint32_t char_at(const uint32_t *text, uint32_t suffix, uint32_t depth) {
    return text[suffix + depth];
}

static bool suffix_less(const uint32_t *text, uint32_t a, uint32_t b, uint32_t depth) {
    for (; depth < PIECE_MAX_CHARS; depth++) {
        uint32_t x = char_at(text, a, depth), y = char_at(text, b, depth);
        if (x != y) return x < y;
        if (x == 0) return false;
    }
    return false;
}

static void sort_few(const uint32_t *text, uint32_t *s, uint32_t n, uint32_t depth) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t moved = s[i], k = i;
        for (; k > 0 && suffix_less(text, moved, s[k - 1], depth); k--) s[k] = s[k - 1];
        s[k] = moved;
    }
}

static uint32_t middle_of(uint32_t a, uint32_t b, uint32_t c) {
    return a < b ? (b < c ? b : MAX(a, c)) : (a < c ? a : MAX(b, c));
}

/* Multikey quicksort: by the character at `depth` into less, equal and greater; the equal ones by the next. */
static void sort_suffixes(const uint32_t *text, uint32_t *s, uint32_t n, uint32_t depth) {
    while (n > FEW && depth < PIECE_MAX_CHARS) {
        uint32_t pivot = middle_of(char_at(text, s[0], depth), char_at(text, s[n / 2], depth),
                                   char_at(text, s[n - 1], depth));
        uint32_t less = 0, i = 0, greater = n;
        while (i < greater) {
            uint32_t c = char_at(text, s[i], depth), moved = s[i];
            if (c < pivot) {
                s[i++] = s[less];
                s[less++] = moved;
            } else if (c > pivot) {
                s[i] = s[--greater];
                s[greater] = moved;
            } else {
                i++;
            }
        }
        sort_suffixes(text, s, less, depth);
        sort_suffixes(text, s + greater, n - greater, depth);
        if (pivot == 0) return; /* words that end here are equal */
        s += less;
        n = greater - less;
        depth++;
    }
    if (depth < PIECE_MAX_CHARS) sort_few(text, s, n, depth);
}

/* Positions by their first character. */
static void part_suffixes(const unigram_words *w, suffix_array *a) {
    enum { VALUES = 0x110001 };
    uint32_t *next = mem_alloc((VALUES + 1) * sizeof *next);
    *a = (suffix_array){ .w = w, .at = mem_alloc(((size_t)w->n + 1) * sizeof *a->at) };
    for (uint32_t i = 0; i < w->n; i++) next[w->text[i]]++;
    next[0] = 0;
    for (uint32_t c = 1; c < VALUES; c++) a->n_parts += next[c] > 0;
    a->parts = mem_alloc(((size_t)a->n_parts + 1) * sizeof *a->parts);
    a->n_parts = 0;
    for (uint32_t c = 1; c < VALUES; c++) {
        uint32_t many = next[c];
        next[c] = a->n;
        if (many) a->parts[a->n_parts++] = (suffix_part){ .low = a->n, .high = a->n + many };
        a->n += many;
    }
    for (uint32_t i = 0; i < w->n; i++)
        if (w->text[i]) a->at[next[w->text[i]]++] = i;
    free(next);
}

/* ---- candidates ---------------------------------------------------------------------------------------- */

static void add_candidate(suffix_part *p, candidate c, uint64_t seen) {
    if (c.chars < 2 || seen < 2) return;
    c.value = seen * c.chars;
    LIST_ADD(p->found, p->n, p->cap) = c;
}

static uint32_t common_chars(const uint32_t *text, uint32_t a, uint32_t b) {
    uint32_t n = 0;
    while (n < PIECE_MAX_CHARS && text[a + n] && text[a + n] == text[b + n]) n++;
    return n;
}

/* A word that no other begins with is a candidate; other suffixes that occur once are parts of it. */
static void add_whole_word(const suffix_array *a, suffix_part *p, uint32_t k, uint32_t shared) {
    const unigram_words *w = a->w;
    uint32_t at = a->at[k], word = w->word[at], chars = w->first[word + 1] - 1 - at;
    if (at != w->first[word] || chars > PIECE_MAX_CHARS || chars <= shared) return;
    add_candidate(p, (candidate){ .low = k, .high = k + 1, .chars = chars }, w->count[word]);
}

/* An interval that is still open: suffixes from `low` on agree in `chars`. */
typedef struct open_node {
    uint32_t low, chars;
    uint64_t seen;
} open_node;

static void find_repeated(const suffix_array *a, suffix_part *p) {
    const unigram_words *w = a->w;
    open_node open[PIECE_MAX_CHARS + 2];
    int depth = 1;
    uint32_t before = 0; /* characters shared with the suffix before */
    open[0] = (open_node){ p->low, 0, 0 };
    for (uint32_t k = p->low; k < p->high; k++) {
        uint64_t count = w->count[w->word[a->at[k]]];
        bool more = k + 1 < p->high;
        uint32_t shared = more ? common_chars(w->text, a->at[k], a->at[k + 1]) : 0;
        add_whole_word(a, p, k, MAX(before, shared));
        p->seen += count;
        /* The suffix belongs to the deepest interval that it or the next one is in. */
        if (shared > open[depth - 1].chars) open[depth++] = (open_node){ k, shared, 0 };
        open[depth - 1].seen += count;
        while (shared < open[depth - 1].chars) {
            open_node done = open[--depth];
            add_candidate(p, (candidate){ .low = done.low, .high = k + 1, .chars = done.chars },
                          done.seen);
            if (shared > open[depth - 1].chars) open[depth++] = (open_node){ done.low, shared, 0 };
            open[depth - 1].seen += done.seen;
        }
        before = shared;
    }
}

static void sort_and_find(void *ctx, int64_t i, int worker) {
    suffix_array *a = ctx;
    suffix_part *p = &a->parts[i];
    sort_suffixes(a->w->text, a->at + p->low, p->high - p->low, 1);
    find_repeated(a, p);
}

/* The best first; of equals the one that comes first in the order of suffixes. */
static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    if (x->low != y->low) return x->low < y->low ? -1 : 1;
    return (x->chars > y->chars) - (x->chars < y->chars);
}

/* All characters, then the best candidates. @return owned. */
static candidate *choose_seeds(const suffix_array *a, size_t most, uint32_t *n) {
    size_t all = 0, at = (size_t)a->n_parts;
    for (int i = 0; i < a->n_parts; i++) all += (size_t)a->parts[i].n;
    candidate *c = mem_alloc((all + at + 1) * sizeof *c);
    for (int i = 0; i < a->n_parts; i++) {
        const suffix_part *p = &a->parts[i];
        c[i] = (candidate){ p->seen, p->low, p->high, 1 };
        if (p->n) memcpy(c + at, p->found, (size_t)p->n * sizeof *c);
        at += (size_t)p->n;
    }
    sort_array(c + a->n_parts, all, sizeof *c, compare_candidates);
    *n = (uint32_t)(MIN(all, most) + (size_t)a->n_parts);
    return c;
}

/* ---- matches ------------------------------------------------------------------------------------------- */

/* First how many each position has, then what they are, the shorter pieces first. */
static void list_matches(const suffix_array *a, const candidate *seeds, unigram_lattice *l) {
    const unigram_words *w = a->w;
    l->first = mem_alloc(((size_t)w->n + 2) * sizeof *l->first);
    uint64_t all = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        all += seeds[i].high - seeds[i].low;
        for (uint32_t k = seeds[i].low; k < seeds[i].high; k++) l->first[a->at[k] + 2]++;
    }
    BUG_IF(all >= UINT32_MAX); /* at most PIECE_MAX_CHARS for each character */
    for (uint32_t i = 2; i < w->n + 2; i++) l->first[i] += l->first[i - 1];
    l->matches = mem_alloc(((size_t)all + 1) * sizeof *l->matches);
    for (uint32_t chars = 1; chars <= PIECE_MAX_CHARS; chars++)
        for (uint32_t i = 0; i < l->n; i++) {
            if (seeds[i].chars != chars) continue;
            for (uint32_t k = seeds[i].low; k < seeds[i].high; k++)
                l->matches[l->first[a->at[k] + 1]++] = chars << PIECE_ID_BITS | i;
        }
}

void unigram_seed(const unigram_words *w, size_t most, pool *threads, unigram_lattice *out) {
    suffix_array a;
    double sum = 0;
    *out = (unigram_lattice){ .words = w };
    part_suffixes(w, &a);
    pool_run(threads, a.n_parts, sort_and_find, &a);
    candidate *seeds = choose_seeds(&a, most, &out->n);
    BUG_IF(out->n >= 1u << PIECE_ID_BITS);
    out->pieces = mem_alloc(((size_t)out->n + 1) * sizeof *out->pieces);
    for (uint32_t i = 0; i < out->n; i++) sum += (double)seeds[i].value;
    for (uint32_t i = 0; i < out->n; i++) {
        double share = (double)seeds[i].value / sum;
        out->pieces[i] =
            (learned_piece){ a.at[seeds[i].low], (uint8_t)seeds[i].chars, exact_log(share), share };
    }
    list_matches(&a, seeds, out);
    for (int i = 0; i < a.n_parts; i++) free(a.parts[i].found);
    free(a.parts);
    free(a.at);
    free(seeds);
}

void unigram_lattice_free(unigram_lattice *l) {
    free(l->pieces);
    free(l->first);
    free(l->matches);
    *l = (unigram_lattice){ 0 };
}
