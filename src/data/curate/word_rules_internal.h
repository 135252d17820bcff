/* Internals of the rules by which text is split into words: what word_rules.c matches, and word_rules_read.c and
 * word_tables.c fill. */
#ifndef INGOT_WORD_RULES_INTERNAL_H
#define INGOT_WORD_RULES_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "curate/word_rules.h"

enum { EXCEPTION_BITS = 1 << 14 };
enum { MAX_EXCEPTION_BYTES = UINT8_MAX, MAX_EXCEPTION_TOKENS = 4 };
typedef enum { PREFIX, SUFFIX, INFIX, WHOLE, URL, SENTENCE, PATTERNS } pattern_kind;

typedef struct word_exception {
    const char *text;
    uint8_t n, bytes[MAX_EXCEPTION_TOKENS]; /* [n] of each token */
} word_exception;

/* The tokens that an exception is split into when exceptions do not count; step 4 looks for them. */
typedef struct exception_phrase {
    uint8_t n; /* 0: step 4 does not look for it */
    uint8_t bytes[15];
} exception_phrase;

typedef struct point_ranges {
    uint32_t (*at)[2]; /* [n] first and last code point, ascending */
    size_t n;
} point_ranges;

struct word_rules {
    arena *arena; /* has the arrays and texts below */
    pcre2_code *pattern[PATTERNS];
    word_exception *exceptions; /* [n_exceptions] */
    exception_phrase *phrase;   /* [n_exceptions] */
    size_t n_exceptions;
    size_t longest; /* exception, in bytes */
    uint32_t *slot; /* [slot_mask + 1] index + 1; 0: free */
    uint64_t slot_mask;
    uint64_t maybe[EXCEPTION_BITS / 64]; /* by exception_bit: clear where no exception is */
    uint64_t ascii_punctuation[2];       /* a bit per code point */
    point_ranges punctuation, sentence_ends;
    bool
        letters_alone; /* ASCII letters form one word unless it is an exception; none is punctuation */
    bool splits_letters; /* an affix or infix may be in letters of ASCII alone */
    bool blanks;         /* spaces and tabs alone separate chunks */
    bool breaks;         /* Unicode's word breaks instead of patterns */
    bool pairs;          /* with these, Hangul is cut into pairs of syllables */
    uint8_t number;      /* distinguishes rules that share a scratch */
    uint64_t hash;
};

/* Compiles a pattern of a kind. @param where, name what the error names. */
err word_rules_compile(const char *text, pattern_kind kind, const char *where, const char *name,
                       pcre2_code **out) MUST_USE;
/* Indexes the exceptions, once all are there, and finds which of them affixes would split. */
void word_rules_prepare(word_rules *w);

/* ---- Unicode's word breaks: word_breaks.c ---- */
typedef struct word_breaks word_breaks;
word_breaks *word_breaks_new(void);
void word_breaks_free(word_breaks *b); /* takes NULL */
/* Splits a chunk without white space. @param pairs cuts Hangul into pairs of syllables. @param bytes [n] receives the
 * bytes of each word. @return how many. */
size_t word_breaks_split(word_breaks *b, const char *chunk, size_t n, bool pairs, uint32_t *bytes);

/* ---- runs of scripts written without spaces: word_breaks_icu.c, or word_breaks_none.c ---- */
typedef struct dictionary_breaks dictionary_breaks;
dictionary_breaks *dictionary_breaks_new(void); /* NULL: without a dictionary */
void dictionary_breaks_free(dictionary_breaks *d);
/* As word_breaks_split. */
size_t dictionary_breaks_split(dictionary_breaks *d, const char *run, size_t n, uint32_t *bytes);

#endif
