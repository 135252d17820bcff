/* Pieces of text to ids by scores (unigram.c). */
#ifndef INGOT_TOKENIZER_UNIGRAM_INTERNAL_H
#define INGOT_TOKENIZER_UNIGRAM_INTERNAL_H

#include "text/text.h"
#include "tokenizer/bpe_internal.h"

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
typedef struct unigram {
    token_trie trie;
    double *score; /* [tokens] */
    double unknown_score;
    int32_t unknown;
    bool
        single; /* sums are rounded to float and go on from piece to piece: nothing can be cached */
} unigram;
err unigram_new(const unigram_parts *p, unigram **out) MUST_USE;
void unigram_free(unigram *u);                      /* takes NULL */
uint64_t unigram_hash(const unigram *u, int64_t n); /* of the n scores */

/* The best way to reach a position. */
typedef struct unigram_step {
    double sum;
    uint32_t start; /* of its last token */
    int32_t id;
} unigram_step;
typedef struct unigram_work {
    unigram_step *best; /* [cap] */
    int32_t *ids;       /* [cap] */
    size_t cap, n;
    double carried; /* the sum of what came before in this text; 0 where one begins */
} unigram_work;
/* @param b the tokenizer's: its tokens and the ids of bytes. @return as bpe_piece. */
const int32_t *unigram_piece(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                             size_t n, size_t *n_ids);
void unigram_work_free(unigram_work *w);

#endif
