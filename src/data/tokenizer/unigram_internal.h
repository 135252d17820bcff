/* Pieces of text to ids by scores (unigram.c). */
#ifndef INGOT_TOKENIZER_UNIGRAM_INTERNAL_H
#define INGOT_TOKENIZER_UNIGRAM_INTERNAL_H

#include "text/text.h"
#include "tokenizer/bpe_internal.h"
#include "tokenizer/char_trie_internal.h"

typedef enum {
    TOKEN_NORMAL,
    TOKEN_UNUSED,       /* text never becomes it: special tokens of SentencePiece, bytes */
    TOKEN_USER_DEFINED, /* SentencePiece's: wins over all that is learned */
} token_use;
typedef struct unigram_parts { /* borrowed */
    const text_span *text;     /* [n] */
    const double *score;       /* [n] */
    const token_use *use;      /* [n] */
    int64_t n;
    int32_t unknown;
    bool single; /* SentencePiece's arithmetic, else Hugging Face's */
} unigram_parts;
/* SentencePiece's arithmetic (unigram_float.c). */
typedef struct unigram_float {
    char_trie trie;
    float *score; /* [tokens] NULL: not SentencePiece's */
    float unknown_score;
    float largest; /* score, by magnitude */
} unigram_float;
enum { UNIGRAM_CACHED = 48 }; /* bytes of the longest word that is cached */

typedef struct unigram {
    token_trie trie;
    double *score; /* [tokens] */
    double unknown_score;
    int32_t unknown;
    unigram_float single; /* sums are floats that go on from piece to piece */
} unigram;
err unigram_new(const unigram_parts *p, unigram **out) MUST_USE;
void unigram_free(unigram *u);                      /* takes NULL */
uint64_t unigram_hash(const unigram *u, int64_t n); /* of the n scores */

/* The last token of the best way to reach a position. */
typedef struct unigram_link {
    uint32_t start;
    int32_t id;
} unigram_link;
typedef struct unigram_work {
    unigram_link *link; /* [cap] */
    double *total;      /* [cap] sums of scores; Hugging Face's */
    float *sum;         /* [cap] the same; SentencePiece's, whose positions count characters */
    float *second;      /* [cap] sums of the second-best ways */
    char_entry *chars;  /* [cap] SentencePiece's: the characters of the piece, */
    uint32_t *offset;   /* [cap] and where they begin, in bytes */
    size_t cap;
    int32_t *ids; /* [ids_cap] */
    size_t ids_cap, n;
    float carried; /* the sum of what came before in this text; 0 where one begins */
} unigram_work;
void unigram_work_reserve(unigram_work *w, size_t n);     /* for n positions after the first */
void unigram_work_reserve_ids(unigram_work *w, size_t n); /* for a piece of n bytes */

/* @param keys of u->trie. */
void unigram_float_build(unigram *u, const unigram_parts *p, const trie_key *keys, int32_t n);
void unigram_float_free(unigram_float *f);
/* Whether no sum of n more bytes is so large that it is taken back, so that the ids of cached words hold. */
bool unigram_float_is_near(const unigram_float *f, const unigram_work *w, size_t n);
/* Fills w->link for the beginning of a piece of n bytes that follows what was carried: all of it, unless it is long.
 * @return characters. @param bytes they have; what follows has its ids by itself. */
size_t unigram_float_search(const unigram *u, unigram_work *w, const char *piece, size_t n,
                            size_t *bytes);
/* The same for a word at the beginning of a text, of at most UNIGRAM_CACHED bytes.
 * @return whether the way found is the best one after any text. @param chars of the word. */
bool unigram_float_decided(const unigram *u, unigram_work *w, const char *word, size_t n,
                           size_t *chars);
/* Appends to w->ids those that w->link leads to from 0 to position n. */
void unigram_collect(const unigram *u, const bpe *b, unigram_work *w, const char *piece, size_t n);
/* @param b the tokenizer's: its tokens and the ids of bytes. @return as bpe_piece. */
const int32_t *unigram_piece(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                             size_t n, size_t *n_ids);
void unigram_work_free(unigram_work *w);

#endif
