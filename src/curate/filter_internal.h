/* Inside the filter: one pass over a text leaves counts and arrays (scan); the rule sets read only
 * these, but for C4, which goes through the lines. All memory is a worker's and grows to the
 * largest document seen, so that nothing is allocated from document to document. */
#ifndef INGOT_FILTER_INTERNAL_H
#define INGOT_FILTER_INTERNAL_H

#include "curate/curate.h"

/* A line that is not blank, without the white space around it. */
typedef struct scan_line {
    uint32_t at, bytes, chars;
    uint32_t words, longest_word; /* in characters */
    bool paragraph;               /* the first of one */
} scan_line;

typedef struct scan {
    text_span text;
    int64_t chars, letters;      /* letters with their marks */
    int64_t newlines, all_lines; /* all_lines: blank ones too */
    int64_t hashes, ellipses;
    int64_t words, letter_words;           /* ... with a letter */
    int64_t solid_words, solid_word_chars; /* ... with a letter, a digit or a mark */
    unsigned stop_words;                   /* one bit for each that was seen */
    uint64_t *hash;                        /* [words] */
    uint32_t *word_chars;                  /* [words + 1] characters in all words before */
    scan_line *lines;
    int64_t n_lines;
    int64_t words_room, lines_room;
} scan;
void scan_text(scan *s, text_span text);
void scan_free(scan *s);

/* A set that is emptied by counting up its stamp. Slots are handed out for keys, 64-bit hashes. */
typedef struct seen_slot {
    uint64_t key;
    uint32_t stamp, count;
} seen_slot;
typedef struct seen_set {
    seen_slot *slots; /* [mask + 1] */
    uint64_t mask;
    uint32_t stamp;
} seen_set;

/* Runs of n words that occur more than once; see filter_repeat.c. */
typedef struct repeat_run {
    uint64_t hash; /* of its words */
    uint32_t at;   /* its first word */
    uint32_t slot;
} repeat_run;

typedef struct filter_worker {
    scan scan;
    bool scanned; /* `scan` is of the text as it is now */
    seen_set seen;
    repeat_run *runs;
    int64_t runs_room;
    str edited, masked;
    str folded; /* a URL in lower case */
    language_room *language;
} filter_worker;

/* The document being judged. */
typedef struct judged {
    const filter *f;
    filter_worker *w;
    const text_doc *doc;
    text_verdict *v;                     /* v->text is the text as it is now */
    int64_t count[FILTER_COUNTER_COUNT]; /* of edits: counted if the document is kept */
} judged;

typedef bool (*filter_step)(judged *j); /* @return true when the document is dropped */

struct filter {
    filter_options o;
    filter_step steps[16];
    int n_steps;
    phrase_list *bad_words, *url_domains, *url_words, *url_parts;
    language_model *model;
    int *languages; /* labels that are wanted */
    int n_languages;
    bool pii[PII_KIND_COUNT];
    filter_worker *workers;
    int n_workers;
    uint64_t hash;
};

/* The scan of the text as it is now. */
const scan *judged_scan(judged *j);
/* Whether a measure fails a rule; if so the verdict says it. */
bool judged_fails(judged *j, int rule, double value);
static inline double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/* Characters and number of elements that repeat an earlier one. */
typedef struct repeats {
    int64_t count, chars;
} repeats;
repeats filter_repeated_lines(filter_worker *w, const scan *s);
void seen_free(seen_set *s);

bool filter_url(judged *j);
bool filter_language(judged *j);
bool filter_gopher_repetition(judged *j);
bool filter_gopher_quality(judged *j);
bool filter_c4(judged *j);
bool filter_c4_no_punct(judged *j);
bool filter_fineweb(judged *j);
bool filter_basic(judged *j);
bool filter_bad_words(judged *j);
bool filter_pii(judged *j);

/* The last code point of a text that is not empty. */
static inline uint32_t last_code_point(text_span s) {
    size_t i = s.len - 1;
    while (i > 0 && ((unsigned char)s.at[i] & 0xC0) == 0x80) i--;
    uint32_t cp;
    utf8_decode(s.at + i, &cp);
    return cp;
}
bool filter_ends_in_ellipsis(text_span line);

/* In lower case, code point by code point. */
uint32_t fold_code_point(uint32_t cp);
/* Replaces `out`. */
void fold_text(text_span text, str *out);

#endif
