/* A tokenizer is three things, put together once and then only read:
 *
 *     rules     what happens to text before the model sees it: added tokens, normalizers, splits
 *     model     pieces of text to ids: by merges (bpe) or by scores (unigram)
 *     texts     ids to bytes
 *
 * encode.c runs text through the first two, decode.c through the last. Text need not be UTF-8: a byte
 * that is not part of a character counts as a character of its own, not a letter, number or space.
 */
#ifndef INGOT_TOKENIZER_INTERNAL_H
#define INGOT_TOKENIZER_INTERNAL_H

#include "text/text.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/adjacency_internal.h"
#include "tokenizer/text_rules_internal.h"
#include "tokenizer/unigram_internal.h"

/* A learned or loaded vocabulary: everything is borrowed. */
typedef struct bpe_parts {
    const char *pattern;   /* a name that splitter_pattern knows, or a regular expression */
    const char *normalize; /* as norms_parse reads it; NULL: nothing */
    regex_flavor flavor;
    const text_span *tokens; /* [n_tokens] bytes in id order; empty: no such id */
    int64_t n_tokens;
    const bpe_pair *merges; /* [n_merges] in order of rank; what a pair makes is their joint text */
    int64_t n_merges;
    const int32_t *special; /* [n_special] ids of tokens that merges never make */
    int n_special;
    bool whole_first; /* a piece that is a token is that token, whatever the merges are */
} bpe_parts;
/* A byte-level tokenizer. An error when the two of a merge do not join to a token. */
err tokenizer_from_bpe(const bpe_parts *p, tokenizer **out) MUST_USE;
/* Looks for a regular expression or what splitter_pattern names, with our scanner where it can. */
err finder_of(const char *pattern, regex_flavor flavor, finder *out) MUST_USE;

struct tokenizer {
    const char *kind;
    bpe bpe;             /* without merges if there is a unigram model; its tokens count for both */
    adjacency adjacency; /* of the merges' tokens */
    unigram *unigram;    /* NULL: none */
    bool sentencepiece; /* came from a .model: where Hugging Face's rules differ, SentencePiece's */
    norm_step norms[MAX_STEPS];
    split_step splits[MAX_STEPS];
    int n_norms, n_splits;
    scan_fn scan; /* set: all that the rules do is to split with this scanner */
    bool
        by_words; /* of SentencePiece's Unigram: normalized text is split into words, and no more */
    added_token *added; /* [n_added] */
    int n_added;
    added_set raw, normal; /* looked for before and after normalizing */
    int64_t vocab;
    text_span *decoded; /* [vocab] what each id gives, at `decoded_bytes` */
    char *decoded_bytes;
    /* [vocab] what each id gives as the first of a text, at `decoded_first_bytes`; NULL: the same */
    text_span *decoded_first;
    char *decoded_first_bytes;
    bool *is_special;            /* [vocab] */
    int strip_left, strip_right; /* spaces taken from the ends of what is decoded */
    char *unknown_surface;       /* owned: what the unknown token gives; NULL: its text */
    token_affixes affixes;
    bool affixes_changed; /* they are not those of `source` */
    int32_t eos;
    bool
        eos_is_named; /* by the files beside it or by tokenizer_set_eos, which affixes do not change */
    uint64_t hash;
    char *source; /* the tokenizer.json it came from; NULL: made by us */
    size_t source_len;
};
/* Gives an added token its text, and with the normalizers in place what is looked for. */
void added_token_set(const tokenizer *t, added_token *a, const char *text, size_t n);
/* [vocab] the model's tokens, and added tokens as they are found; empty: no such id. @return owned. */
text_span *tokenizer_texts(const tokenizer *t);
/* Fills in what follows from the rest: sets of added tokens, the scanner, eos, hash.
 * @param decoded [vocab] what ids give, copied; NULL: tokenizer_texts. */
void tokenizer_finish(tokenizer *t, const text_span *decoded);
/* @return the id that ends documents. */
int32_t tokenizer_find_eos(const tokenizer *t);
err tokenizer_bytes(tokenizer **out) MUST_USE;

#endif
