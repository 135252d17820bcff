/* Rules that change text before the model sees it: normalizers and splits (text_rules.c), added tokens (added.c). */
#ifndef INGOT_TOKENIZER_TEXT_RULES_INTERNAL_H
#define INGOT_TOKENIZER_TEXT_RULES_INTERNAL_H

#include "text/text.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/charsmap_internal.h"
#include "tokenizer/regex_internal.h"
#include "tokenizer/splitter_internal.h"

enum { MAX_STEPS = 16 }; /* of a tokenizer's normalizers, and of its splits */

typedef enum {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_CHARSMAP,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
} normalizer_kind;
typedef struct finder { /* one of the three; none: finds nothing */
    regex *re;
    char *literal; /* owned */
    scan_fn scan;  /* matches follow one another without gaps */
    char *source;  /* owned: the regular expression, for saving and hashing */
    regex_flavor flavor;
} finder;

typedef struct finder_cursor {
    size_t from, last; /* where to look, where the last match ended */
    bool matched;
} finder_cursor;
/* All matches, one a call. */
bool finder_walk(const finder *f, regex_work *w, const char *text, size_t n, finder_cursor *p,
                 size_t *start, size_t *end);
void finder_free(finder *f);

typedef struct norm_step {
    normalizer_kind kind;
    finder find;
    char *with; /* owned: the replacement, or what is prepended */
    charsmap *map;
    bool longest;                 /* of NORM_CHARSMAP: as SentencePiece replaces */
    bool strip_left, strip_right; /* of NORM_STRIP */
    /* So many steps from this one on are done at once: SQUEEZE_STEPS and, if set, the two that put U+2581 before the
     * text and for each space. */
    int n_squeezed;
    bool squeeze_prepend, squeeze_mark;
} norm_step;
/* SentencePiece's removal of extra spaces as regular expressions: no spaces first, none last, where U+2581 counts as one,
 * and one of several elsewhere. */
#define SQUEEZE_STEPS                                                                              \
    { "\\A +", "[ \xE2\x96\x81]+\\z", " {2,}" }
/* Marks where these follow one another. */
void norms_find_squeeze(norm_step *steps, int n);
/* Normalizers that need no more than a name: X(name, kind, type in a tokenizer.json). */
#define NAMED_NORMALIZERS(X)                                                                       \
    X("nfc", NORM_NFC, "NFC")                                                                      \
    X("nfd", NORM_NFD, "NFD")                                                                      \
    X("nfkc", NORM_NFKC, "NFKC")                                                                   \
    X("nfkd", NORM_NFKD, "NFKD")                                                                   \
    X("lowercase", NORM_LOWERCASE, "Lowercase")                                                    \
    X("strip-accents", NORM_STRIP_ACCENTS, "StripAccents")                                         \
    X("strip", NORM_STRIP, "Strip")                                                                \
    X("nmt", NORM_NMT, "Nmt")
/* Reads a comma-separated list of their names; NULL: none. @param steps [MAX_STEPS]. */
err norms_parse(const char *list, norm_step *steps, int *n) MUST_USE;
/* @return named ones as a tokenizer.json has them, owned. */
struct json_t *norms_json(const norm_step *norms, int n);
/* @return the type of a named one in a tokenizer.json; NULL: it is not one of them. */
const char *normalizer_type(normalizer_kind kind);
/* @return the text, in one of the two buffers once a step has changed it. */
text_span normalize_text(const norm_step *steps, int n_steps, regex_work *w, text_span text,
                         str scratch[2]);

typedef enum {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;
typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme;

/* One pre-tokenizer: changes a piece a little, then splits it. */
typedef struct split_step {
    char *space;           /* owned: what ' ' becomes; NULL: stays */
    char *prepend;         /* owned: put before a piece that does not begin so; NULL: nothing */
    prepend_scheme scheme; /* when */
    finder find;
    split_behavior behavior;
    bool invert; /* what is between the matches counts as the match */
} split_step;
typedef struct added_token {
    char *text; /* owned: as written */
    size_t len;
    char *match; /* owned: what is looked for: `text`, normalized where that is wanted */
    size_t match_len;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
} added_token;
/* Added tokens that are looked for together: in the text as it is, or as normalized. */
typedef struct added_set {
    added_token **by_match; /* [n] in byte order; the tokens are the tokenizer's */
    int n, n_plain;         /* n_plain of them are not special */
    bool first[256];        /* bytes that begin one */
    int only_first;         /* the one byte they all begin with; -1: several */
} added_set;
void added_set_build(added_set *s, added_token *all, int n, bool normalized);

typedef struct added_match {
    /* With the white space it takes. Without lstrip it may begin in the match before; with lstrip it
     * begins behind that, so that nothing may be left: start >= end. */
    size_t start, end;
    const added_token *token;
} added_match;
/* The next token at or after *from that counts, as Hugging Face looks for it; *from moves on.
 * @param out in: the match before, or zeros. */
bool added_next(const added_set *s, const char *text, size_t n, size_t *from, bool special,
                added_match *out);

#endif
