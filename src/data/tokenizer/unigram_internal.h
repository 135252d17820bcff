/* Pieces of text to ids by scores (unigram.c). */
#ifndef INGOT_TOKENIZER_UNIGRAM_INTERNAL_H
#define INGOT_TOKENIZER_UNIGRAM_INTERNAL_H

#include "text/text.h"
#include "tokenizer/adjacency_internal.h"

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
typedef struct unigram_node {
    int32_t base, check; /* as in a trie_node */
    int32_t id;          /* of the token that ends here; -1: none */
    float score;
} unigram_node;
typedef struct unigram_float {
    unigram_node *at; /* NULL: not SentencePiece's */
    float *score;     /* [tokens] */
    int32_t *after;   /* [65536] the node of a character; -1: no token begins with it */
    uint64_t *pairs;  /* hashed: pairs of characters of three bytes that are adjacent in a token */
    int pairs_shift;
    uint64_t known[65536 / 64]; /* a bit for each character that is a token */
    float unknown_score;
    float cached_below; /* while the carried sum is nearer to 0, a cached word's ids hold */
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
    float *sum;         /* [cap] the same; SentencePiece's */
    float *second;      /* [cap] sums of the second-best ways */
    int32_t *ids;       /* [cap] */
    size_t cap, n;
    float carried; /* the sum of what came before in this text; 0 where one begins */
} unigram_work;
void unigram_work_reserve(unigram_work *w, size_t n); /* for a piece of n bytes */

void unigram_float_build(unigram *u, const unigram_parts *p);
void unigram_float_free(unigram_float *f);
/* @return the end of the part of a word that begins at `from`: no token goes beyond it, and no run of unknown
 * characters, so that what follows has its ids by itself. */
size_t unigram_part_end(const unigram_float *f, const char *text, size_t from, size_t end);
/* Fills w->link for a piece of n bytes that follows what was carried. */
void unigram_float_search(const unigram *u, unigram_work *w, const char *piece, size_t n);
/* The same for a word at the beginning of a text. @return whether the way found is the best one after any text. */
bool unigram_float_decided(const unigram *u, unigram_work *w, const char *word, size_t n);
/* The ids that w->link leads to. @return as bpe_piece. */
const int32_t *unigram_collect(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                               size_t n, size_t *n_ids);
/* @param b the tokenizer's: its tokens and the ids of bytes. @return as bpe_piece. */
const int32_t *unigram_piece(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                             size_t n, size_t *n_ids);
void unigram_work_free(unigram_work *w);

#endif
