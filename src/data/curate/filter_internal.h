/* Internals of the filter. One pass over a text (scan_text) leaves counts and arrays; the rule
 * sets read only these, except C4, which goes through the lines. All memory belongs to a worker
 * and grows to the largest document seen, so that nothing is allocated per document. */
#ifndef INGOT_FILTER_INTERNAL_H
#define INGOT_FILTER_INTERNAL_H

#include "curate/curate.h"
#include "curate/word_rules.h"

/* A line that is not blank, without the white space around it. */
typedef struct scan_line {
    uint32_t at, bytes, chars;
    uint32_t words, longest_word; /* in characters */
    bool paragraph;               /* the first of one */
} scan_line;

typedef struct scan {
    text_span text;
    int64_t chars, letters;      /* letters with their marks */
    int64_t newlines, all_lines; /* all_lines: including blank ones */
    int64_t hashes, ellipses;
    int64_t words, letter_words;           /* ... with a letter */
    int64_t solid_words, solid_word_chars; /* ... with a letter, digit or mark */
    unsigned stop_words;                   /* bit per stop word that occurred */
    uint64_t *hash;                        /* [words] */
    uint32_t *word_chars;                  /* [words + 1] characters in all words before */
    scan_line *lines;
    int64_t n_lines;
    int64_t words_capacity, lines_capacity;
} scan;
void scan_text(scan *s, text_span text);
void scan_free(scan *s);

/* A set that is emptied by incrementing its stamp. Keys are 64-bit hashes. */
typedef struct seen_slot {
    uint64_t key;
    uint32_t stamp, count;
} seen_slot;
/* A model of --quality. */
enum { CLASSIFIERS_MOST = 8 };
typedef struct classifier {
    char name[32]; /* of the members that --annotate writes */
    language_model *model;
    int *kept; /* indices of its labels that --keep names */
    int n_kept;
} classifier;

typedef struct seen_set {
    seen_slot *slots;        /* [mask + 1] */
    uint64_t mask, capacity; /* slots in use, less one; slots there are */
    uint32_t stamp;
} seen_set;

/* A run of n words that may occur more than once; see filter_repeat.c. */
typedef struct repeat_run {
    uint64_t hash; /* of its words */
    uint32_t at;   /* its first word */
    uint32_t slot;
} repeat_run;

/* Words as datatrove splits them; datatrove_words.c. */
typedef struct datatrove_words {
    word_scratch *scratch;
    text_span of;    /* the text that was split last */
    uint64_t *hash;  /* [n] */
    uint32_t *chars; /* [n + 1] characters in all words before */
    uint32_t *at;    /* [n + 1] where each begins in `joined` */
    char *joined;    /* all words without what was between them */
    int64_t n, cap;
    size_t joined_cap;
    int64_t solid, solid_chars; /* words that are not all punctuation; their characters */
    int64_t letters;            /* words with a letter */
    unsigned stop_words;        /* bit per stop word that occurred */
} datatrove_words;
void datatrove_words_free(datatrove_words *d); /* takes NULL */

/* A condition of --where; see filter_members.c. */
typedef struct filter_condition filter_condition;

typedef struct filter_worker {
    scan scan;
    bool scanned; /* `scan` is up to date with the text */
    seen_set seen;
    repeat_run *runs;
    int64_t runs_capacity;
    str edited, masked;
    str folded; /* a URL in lower case */
    language_scratch *language, *quality[CLASSIFIERS_MOST];
    str members;                /* annotations of the document */
    datatrove_words *datatrove; /* made when it is needed */
} filter_worker;

/* The document being judgment. */
typedef struct judgment {
    const filter *f;
    filter_worker *w;
    const text_doc *doc;
    bool split;                          /* the worker's words are of this document */
    bool language_known;                 /* `label` is set */
    int label;                           /* the language by `model`; -1: none is likely */
    const word_rules *words;             /* NULL: not chosen yet */
    text_verdict *v;                     /* v->text is the text as edited so far */
    int64_t count[FILTER_COUNTER_COUNT]; /* edits, added to the totals if the document is kept */
} judgment;

typedef bool (*filter_step)(judgment *j); /* @return true when the document is dropped */

struct filter {
    filter_options o;
    filter_step steps[16];
    int n_steps;
    phrase_list *bad_words, *url_domains, *url_words, *url_parts;
    bool datatrove; /* words and lines are datatrove's; false: --words space */
    word_tables *tables;
    word_rules *file_words; /* of --words FILE; NULL: none */
    int words;              /* rules of all documents, unless their languages decide */
    int *label_words;       /* the rules of each label of `model`; NULL: languages do not decide */
    language_model *model;  /* NULL: nothing needs one */
    bool by_language;       /* documents are kept by their languages */
    int *languages;         /* indices of the labels to keep */
    int n_languages;
    classifier quality[CLASSIFIERS_MOST];
    int n_quality;
    filter_condition *conditions;
    int n_conditions;
    bool pii[PII_KIND_COUNT];
    filter_worker *workers;
    int n_workers;
    uint64_t hash;
};

/* @return the scan of the text as edited so far. */
const scan *judgment_scan(judgment *j);
/* @return the label of the document's language, by the filter's model; -1: none has half of the probability. */
int judgment_label(judgment *j);
/* @return the rules by which the document is split into words; filter_words.c. */
const word_rules *judgment_words(judgment *j);
/* Whether any rule set splits text by the rules of a language: all but basic do. */
bool filter_splits_words(const filter_options *o);
err filter_open_words(filter *f) MUST_USE;
void filter_words_free(filter *f);
/* @return whether a measured value fails a rule; if so the verdict records it. */
bool judgment_fails(judgment *j, int rule, double value);
static inline double safe_ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/* Count and characters of elements that repeat an earlier one. */
typedef struct repeats {
    int64_t count, chars;
} repeats;
repeats filter_repeated_lines(filter_worker *w, const scan *s);
/* Empties the set and reserves space for n keys. */
void seen_clear(seen_set *s, int64_t n);
/* Counts the key. @return its slot. */
uint32_t seen_add(seen_set *s, uint64_t key);
/* Counts the key. @return how often it has been counted. */
uint32_t seen_count(seen_set *s, uint64_t key);
void seen_free(seen_set *s);

/* ---- runs of words: filter_repeat.c ---- */
typedef struct run_words {
    const uint64_t *hash;  /* [n] */
    const uint32_t *chars; /* [n + 1] characters in all words before */
    int64_t n;
} run_words;
typedef struct word_runs {
    repeat_run *run; /* in text order */
    int64_t n;
    int words; /* per run */
} word_runs;
static inline int64_t run_chars(const run_words *w, uint32_t at, int words) {
    return w->chars[at + (uint32_t)words] - w->chars[at];
}
/* @return [n] of the worker, whose content is not kept. */
repeat_run *runs_reserve(filter_worker *w, int64_t n);
/* Starts with every single word as a run. */
word_runs runs_begin(filter_worker *w, const run_words *words);
/* Makes every run one word longer and counts how often each occurs. */
void runs_extend(word_runs *r, seen_set *seen, const run_words *words);
/* Keeps the runs that may still repeat when extended by one word. */
void runs_narrow(word_runs *r, const seen_set *seen);
/* @return characters of the most frequent run (the first one in a tie), including the spaces between its words, times its
 * number of occurrences. */
int64_t top_run_chars(const word_runs *r, const seen_set *seen, const run_words *words);

bool filter_url(judgment *j);
bool filter_language(judgment *j);
bool filter_gopher_repetition(judgment *j);
bool filter_gopher_quality(judgment *j);
bool filter_c4(judgment *j);
bool filter_c4_no_punct(judgment *j);
bool filter_c4_paper(judgment *j);
bool filter_fineweb(judgment *j);
bool filter_basic(judgment *j);
bool filter_bad_words(judgment *j);
bool filter_where(judgment *j);
bool filter_quality(judgment *j);
/* Adds a condition of --where. */
err filter_take_condition(filter *f, const char *text) MUST_USE;
void filter_conditions_free(filter *f);
/* @return the first of the largest of n probabilities. */
int filter_likeliest(const float *p, int n);
/* Writes the likeliest label and its probability onto the document, if that is wanted. */
void filter_annotate(judgment *j, const char *name, const language_model *m, const float *p);
bool filter_pii(judgment *j);

/* ---- what the two versions of C4 share ---- */
typedef struct c4_rules {
    bool punctuated; /* lines must end a sentence */
    int line_words;  /* the setting: words of a line */
    int sentences;   /* the rule: sentences of a document */
} c4_rules;
typedef struct c4_counts {
    int64_t lorem_ipsum, braces, sentences;
} c4_counts;
enum { C4_LOREM_IPSUM, C4_JAVASCRIPT, C4_POLICY, C4_BRACE, C4_CITATION, C4_FOUND_KINDS };
/* Adds how often each kind of phrase occurs in a line. @param found [C4_FOUND_KINDS]. */
void c4_find_phrases(text_span line, int *found);

/* As datatrove measures: filter_datatrove.c. */
bool datatrove_gopher_repetition(judgment *j);
bool datatrove_gopher_quality(judgment *j);
bool datatrove_c4(judgment *j, const c4_rules *rules);
bool datatrove_fineweb(judgment *j);

/* @return the words of the text as edited so far. */
const datatrove_words *datatrove_words_of(judgment *j);
/* Sentences of a line, as spaCy's sentencizer or the language's own rules count them. */
int64_t datatrove_sentences(judgment *j, text_span line);
/* Whether Python's str.isspace holds. */
static inline bool is_python_space(uint32_t cp) {
    return (unicode_class(cp) & CLASS_SPACE) || (cp >= 0x1C && cp <= 0x1F);
}
/* The end of the run at `from` of characters that are Python's white space, or that are not. */
size_t python_spaces_end(text_span t, size_t from);
size_t python_chunk_end(text_span t, size_t from);

/* The last code point of a text that is not empty. */
static inline uint32_t last_code_point(text_span s) {
    size_t i = s.len - 1;
    while (i > 0 && ((unsigned char)s.at[i] & 0xC0) == 0x80) i--;
    uint32_t cp;
    utf8_decode(s.at + i, &cp);
    return cp;
}
bool filter_ends_in_ellipsis(text_span line);

/* Replaces `out` by the text in lower case. */
void fold_text(text_span text, str *out);

#endif
