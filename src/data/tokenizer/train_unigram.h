/* Training a Unigram model, from word counts to tokens with scores:
 *
 *     word counts -> code points -> seeds ----------> EM and pruning -> tokens, scores
 *       train.c      train_layout.c  train_seeds.c     train_em.c        train_unigram.c
 *
 * All words lie in one array of code points, and everything else refers to positions in it. A seed is an interval
 * of the sorted suffixes, so the places where it occurs are known without a search: each position has the list of
 * the pieces that begin there, its matches. EM and pruning only read these lists and take pieces out of them:
 *
 *     text        ▁ t h e 0 ▁ t o 0 ...     0 ends a word
 *     matches     ▁ t h e   ▁ t o           one character, always there
 *                 ▁t  th he ▁t to           longer pieces, as long as they are kept
 *
 * Results do not depend on the number of threads, nor on the machine: expectations are summed as integers, and
 * logarithms are computed here, with operations that IEEE 754 defines exactly.
 */
#ifndef INGOT_TOKENIZER_TRAIN_UNIGRAM_H
#define INGOT_TOKENIZER_TRAIN_UNIGRAM_H

#include "tokenizer/train_internal.h"

enum { PIECE_MAX_CHARS = 16, PIECE_ID_BITS = 27 };

/* ---- words: train_layout.c --------------------------------------------------------------------- */
typedef struct unigram_words {
    uint32_t *text;    /* [n] code points + 1; 0 ends a word */
    uint32_t *word;    /* [n] the word that a position is in */
    uint32_t n;        /* positions, ends included */
    uint32_t *first;   /* [n_words + 1] where each word begins */
    uint64_t *count;   /* [n_words] how often it was seen */
    uint32_t n_words;  /* parts of words, where characters without a token are left out */
    uint32_t longest;  /* word, in characters */
    int64_t left_out;  /* distinct words that did not fit in memory */
    int64_t uncovered; /* distinct characters without a token */
} unigram_words;
/* Lays the words out in byte order; the counts are used up. Characters beyond the share `coverage` of all text, the
 * rarest, get no token: words are parted there. When all words would take more than `memory`, the rarest stay out. */
err unigram_words_fill(unigram_words *w, word_counts *from, double coverage,
                       size_t memory) MUST_USE;
void unigram_words_free(unigram_words *w);

/* ---- seeds: train_seeds.c ---------------------------------------------------------------------- */
typedef struct learned_piece {
    uint32_t at;   /* a position where it occurs */
    uint8_t chars; /* its length */
    double score;  /* logarithm of its probability */
    double share;  /* its probability */
} learned_piece;

/* The pieces that begin at each position: chars << PIECE_ID_BITS | piece. */
typedef struct unigram_lattice {
    const unigram_words *words;
    learned_piece *pieces; /* [n] */
    uint32_t n;
    uint32_t *first;   /* [words->n + 1] into matches */
    uint32_t *matches; /* in order of their length */
} unigram_lattice;
static inline uint32_t match_piece(uint32_t m) { return m & ((1u << PIECE_ID_BITS) - 1); }
static inline uint32_t match_chars(uint32_t m) { return m >> PIECE_ID_BITS; }

/* The characters, and of the substrings that occur at least twice those with the highest frequency times length.
 * @param most longer pieces than a character. */
void unigram_seed(const unigram_words *w, size_t most, pool *threads, unigram_lattice *out);
void unigram_lattice_free(unigram_lattice *l);

/* ---- EM: train_em.c ------------------------------------------------------------------------------ */
/* One round of EM; pieces that are expected less than half a time are removed. */
void unigram_improve(unigram_lattice *l, pool *threads);
/* Removes the pieces whose loss costs the least, a quarter of them, but not below `least`. */
void unigram_prune(unigram_lattice *l, uint32_t least, pool *threads);
double exact_log(double x); /* x > 0; the same on every machine */
double exact_exp(double x);

#endif
