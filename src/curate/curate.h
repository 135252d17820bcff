/* curate: which documents are worth training on. Filters drop and edit documents by rules;
 * deduplication and decontamination drop those that are too much like others. Depends on text, io,
 * util and utf8proc.
 */
#ifndef INGOT_CURATE_H
#define INGOT_CURATE_H

#include "text/text.h"

/* ==== filters ==================================================================================
 *
 *     filter_options o = filter_defaults();
 *     o.sets = "gopher-quality,fineweb";
 *     o.limit[FILTER_gopher_min_words] = 20;
 *     filter *f = NULL;
 *     TRY(filter_new(&o, threads, &f));
 *     text_stage s = filter_stage(f);              // text_stage_run(&s, ...)
 *     filter_free(f);
 *
 * A document passes the steps in this order: URL, language, the rule sets in the order of `sets`,
 * bad words, PII. The first rule that fails drops it. What is measured:
 *
 *     character   a code point; also where a length is said
 *     word        a run of characters that are not White_Space
 *     line        what \n ends, without the white space around it; blank when nothing is left
 *     paragraph   lines between blank lines
 *     sentence    see filter_sentences
 */

/* Every rule that can drop a document: X(id, option and name in reports, limit, LEAST or MOST,
 * what is measured). LEAST drops a document that measures less than the limit, MOST one that
 * measures more. A rule is its option: the report says which number to change. */
/* clang-format off */
#define FILTER_RULES(X)                                                                             \
    X(url_domains, "url-domain-count", 0, MOST, "domains of --url-domains that the host lies in")   \
    X(url_words, "url-word-count", 0, MOST, "words of --url-words and parts of --url-parts in the URL") \
    X(language, "language-threshold", 0.65, LEAST, "probability of the languages of --language")    \
    X(repeat_paragraphs, "repeat-paragraphs", 0.30, MOST, "paragraphs that repeat one, of all")     \
    X(repeat_paragraph_chars, "repeat-paragraph-chars", 0.20, MOST, "characters in them, of all")   \
    X(repeat_lines, "repeat-lines", 0.30, MOST, "lines that repeat one, of those not blank")        \
    X(repeat_line_chars, "repeat-line-chars", 0.20, MOST, "characters in them, of all")             \
    X(top_2gram, "top-2gram-chars", 0.20, MOST, "characters in the most frequent two words, of all") \
    X(top_3gram, "top-3gram-chars", 0.18, MOST, "... three words")                                  \
    X(top_4gram, "top-4gram-chars", 0.16, MOST, "... four words")                                   \
    X(repeat_5gram, "repeat-5gram-chars", 0.15, MOST, "characters in repeated runs of five words, of all") \
    X(repeat_6gram, "repeat-6gram-chars", 0.14, MOST, "... six words")                              \
    X(repeat_7gram, "repeat-7gram-chars", 0.13, MOST, "... seven words")                            \
    X(repeat_8gram, "repeat-8gram-chars", 0.12, MOST, "... eight words")                            \
    X(repeat_9gram, "repeat-9gram-chars", 0.11, MOST, "... nine words")                             \
    X(repeat_10gram, "repeat-10gram-chars", 0.10, MOST, "... ten words")                            \
    X(gopher_min_words, "gopher-min-words", 50, LEAST, "words with a letter or digit")              \
    X(gopher_max_words, "gopher-max-words", 100000, MOST, "the same")                               \
    X(gopher_min_length, "gopher-min-word-length", 3, LEAST, "their mean length")                   \
    X(gopher_max_length, "gopher-max-word-length", 10, MOST, "the same")                            \
    X(gopher_hashes, "gopher-hashes", 0.1, MOST, "# per word")                                      \
    X(gopher_ellipses, "gopher-ellipses", 0.1, MOST, "ellipses per word")                           \
    X(gopher_bullets, "gopher-bullet-lines", 0.9, MOST, "lines that begin with a bullet or -, of all") \
    X(gopher_line_ellipses, "gopher-ellipsis-lines", 0.3, MOST, "lines that end in an ellipsis, of all") \
    X(gopher_letters, "gopher-letter-words", 0.8, LEAST, "words with a letter, of all")             \
    X(gopher_stop_words, "gopher-stop-words", 2, LEAST, "different words of: the be to of and that have with") \
    X(c4_lorem_ipsum, "c4-lorem-ipsum", 0, MOST, "mentions of lorem ipsum")                         \
    X(c4_braces, "c4-braces", 0, MOST, "lines with {")                                              \
    X(c4_sentences, "c4-sentences", 5, LEAST, "sentences in the lines left")                        \
    X(fineweb_ends, "fineweb-line-ends", 0.12, LEAST, "lines that end a sentence, of those not blank") \
    X(fineweb_short, "fineweb-short-lines", 0.67, MOST, "short lines, of those not blank")          \
    X(fineweb_repeats, "fineweb-repeat-chars", 0.01, MOST, "characters in repeated lines, of all")  \
    X(fineweb_newlines, "fineweb-newlines", 0.3, MOST, "line ends per word")                        \
    X(basic_min_words, "basic-min-words", 50, LEAST, "words")                                       \
    X(basic_max_words, "basic-max-words", 100000, MOST, "words")                                    \
    X(basic_length, "basic-word-length", 3, LEAST, "mean length of words")                          \
    X(basic_symbols, "basic-symbols", 0.1, MOST, "# and ellipses per word")                         \
    X(basic_letters, "basic-letters", 0.7, LEAST, "letters, with their marks, of all characters")   \
    X(bad_words, "bad-word-count", 0, MOST, "words and phrases of --bad-words")

/* Numbers that rules use beside their limits: X(id, option, value, help). */
#define FILTER_SETTINGS(X)                                                                          \
    X(c4_line_words, "c4-line-words", 3, "C4 removes lines of fewer words")                         \
    X(c4_word_length, "c4-word-length", 1000, "... with a word longer than this")                   \
    X(short_line, "fineweb-short-line", 30, "a line this long or shorter is short")

/* What filters change in documents they keep, and what else they count: X(id, name). */
#define FILTER_COUNTERS(X)                                                                          \
    X(line_length, "lines removed: a word too long")                                                \
    X(line_end, "lines removed: no end of a sentence")                                              \
    X(line_words, "lines removed: too few words")                                                   \
    X(line_javascript, "lines removed: javascript")                                                 \
    X(line_policy, "lines removed: cookies, privacy, terms")                                        \
    X(citations, "citation marks removed")                                                          \
    X(email, "e-mail addresses masked")                                                             \
    X(ip, "IP addresses masked")                                                                    \
    X(phone, "phone numbers masked")                                                                \
    X(no_url, "documents without a URL")
/* clang-format on */

typedef enum { FILTER_LEAST, FILTER_MOST } filter_direction;
#define FILTER_ENUM(id, ...)  FILTER_##id,
#define SETTING_ENUM(id, ...) SETTING_##id,
#define COUNTER_ENUM(id, ...) COUNTER_##id,
enum { FILTER_RULES(FILTER_ENUM) FILTER_RULE_COUNT };
enum { FILTER_SETTINGS(SETTING_ENUM) FILTER_SETTING_COUNT };
enum { FILTER_COUNTERS(COUNTER_ENUM) FILTER_COUNTER_COUNT };

typedef struct filter_rule {
    const char *name;
    double limit;
    filter_direction direction;
} filter_rule;
extern const filter_rule filter_rules[FILTER_RULE_COUNT];

/* ---- personal data ------------------------------------------------------------------------- */
/* X(id, name, mask). The masks are set aside for examples: RFC 2606, RFC 5737, and 555-01xx. */
#define PII_KINDS(X)                                                                               \
    X(email, "email", "email@example.com")                                                         \
    X(ip, "ip", "192.0.2.1")                                                                       \
    X(phone, "phone", "555-0100")
#define PII_ENUM(id, ...) PII_##id,
enum { PII_KINDS(PII_ENUM) PII_KIND_COUNT };

/* Appends the text with e-mail addresses, public IP addresses (v4 and v6) and phone numbers
 * (North American with separators, and international with +) masked.
 * @param masks [PII_KIND_COUNT]; NULL: leave that kind.
 * @param count [PII_KIND_COUNT]: added to.
 * @return false when there is nothing to mask, and nothing is appended. */
bool pii_mask(text_span text, const char *const *masks, str *out, int64_t *count);

/* ---- language: fastText models --------------------------------------------------------------
 * Reads supervised models, .bin and quantised .ftz, of any loss. The file is mapped, not copied. */
typedef struct language_model language_model;
err language_open(const char *path, language_model **out) MUST_USE;
void language_close(language_model *m); /* takes NULL */
int language_count(const language_model *m);
const char *language_name(const language_model *m, int i); /* "en" for "__label__en" */
uint64_t language_hash(const language_model *m);           /* of the file */
size_t language_bytes(const language_model *m);            /* of memory, the mapped file too */
/* Room for a prediction, one for each thread. */
typedef struct language_room language_room;
language_room *language_room_new(const language_model *m);
void language_room_free(language_room *r); /* takes NULL */
/* The probability of each language. Line ends count as spaces.
 * @return [language_count], borrowed until the next call; all 0 when the model knows no part of
 * the text. */
const float *language_predict(const language_model *m, language_room *r, text_span text);

/* ---- lists of words and phrases ---------------------------------------------------------------
 * A file with one a line, in UTF-8; case does not matter. Lines that begin with # are left out. */
typedef struct phrase_list phrase_list;
err phrase_list_read(const char *path, phrase_list **out) MUST_USE;
void phrase_list_free(phrase_list *l); /* takes NULL */
int phrase_list_size(const phrase_list *l);
size_t phrase_list_bytes(const phrase_list *l); /* of memory */
uint64_t phrase_list_hash(const phrase_list *l);
/* How often phrases occur, each as whole words: what is before and after it is no letter, digit or
 * mark. In scripts that do not part words (Han, kana, Thai, Lao, Khmer, Burmese) anywhere. */
int64_t phrase_list_count(const phrase_list *l, text_span text);
/* Whether exactly this, already in lower case, is in the list. */
bool phrase_list_has(const phrase_list *l, text_span phrase);
/* How many places of the text, already in lower case, begin with a phrase of the list. */
int64_t phrase_list_parts(const phrase_list *l, text_span text);

/* ---- the filter ---------------------------------------------------------------------------- */
typedef struct filter_options {
    const char *sets; /* comma-separated, in the order they apply; NULL: FILTER_DEFAULT_SETS */
    double limit[FILTER_RULE_COUNT];
    double setting[FILTER_SETTING_COUNT];
    /* Files; NULL: the rule is off. */
    const char *bad_words, *url_domains, *url_words, *url_parts, *language_model;
    const char *languages; /* comma-separated labels of the model; NULL: any, when it is sure */
    const char *pii;       /* comma-separated kinds to mask; NULL: none */
    const char *mask[PII_KIND_COUNT];
} filter_options;
/* FineWeb's. c4-no-punct is C4 without the rule that a line must end a sentence. */
#define FILTER_DEFAULT_SETS "gopher-repetition,gopher-quality,c4-no-punct,fineweb"
#define FILTER_ALL_SETS     "gopher-repetition, gopher-quality, c4, c4-no-punct, fineweb, basic"

filter_options filter_defaults(void);
typedef struct filter filter;
/* @param workers how many threads judge at a time. */
err filter_new(const filter_options *o, int workers, filter **out) MUST_USE;
void filter_free(filter *f);              /* takes NULL */
size_t filter_bytes(const filter *f);     /* of memory for lists and model */
enum { FILTER_BYTES_PER_TEXT_BYTE = 48 }; /* a worker's memory at worst, text of one-letter words */
/* Judges a document: the `judge` of the stage. @param ctx the filter. */
err filter_judge(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v);
text_stage filter_stage(filter *f);

/* Sentences in a line: a piece ends with a mark that ends sentences and, unless the script has no
 * spaces, white space that no lower-case letter follows; initials ("J. Smith") end none. What is
 * left after the last one counts as well. */
int64_t filter_sentences(text_span line);
/* Unicode's Sentence_Terminal. */
bool filter_is_terminal(uint32_t code_point);

/* ==== deduplication =============================================================================
 *
 *     dedup *d = NULL;
 *     TRY(dedup_find(&o, in, &d));                 // reads the documents once, finds the copies
 *     text_stage s = dedup_stage(d);               // text_stage_run(&s, in, ...) reads them again
 *     TRY(dedup_end(d));                           // removes the folder of spill files
 *
 * Three ways. EXACT: documents of the same bytes. NEAR: documents whose sets of n-grams of words
 * are alike, by MinHash and bands (the exact ones among them). PARAGRAPH: paragraphs of the same
 * words, which are cut out of their documents but for the first. Words are compared in lower case,
 * without marks and punctuation, digits as 0. */
enum { GRAM_MOST = 64, MINHASH_MOST = 4096 }; /* words of an n-gram, hash functions */
typedef enum { DEDUP_NEAR, DEDUP_EXACT, DEDUP_PARAGRAPH } dedup_method;
typedef enum { DEDUP_FIRST, DEDUP_LAST, DEDUP_LONGEST } dedup_keep;
typedef struct dedup_options {
    dedup_method method;
    dedup_keep
        keep; /* of a cluster: the first or last in input order, or the first of the longest */
    int ngram, bands, rows; /* of NEAR */
    bool lines;             /* a paragraph ends at any line end, not at a blank line only */
    int paragraph_words;    /* shorter paragraphs stay */
    const char *work;       /* folder for spill files: what a rerun goes on from */
    bool keep_work, fresh;
    const char *report;           /* JSON lines, one a cluster; NULL: none. Not of PARAGRAPH */
    const text_stage_options *to; /* checked before anything is read; NULL: not known yet */
    int threads;
    size_t memory; /* for tables; what reading takes comes on top */
    bool quiet;
} dedup_options;
dedup_options dedup_defaults(void); /* the n-grams, hashes and bands of FineWeb */

enum { DEDUP_SIZES = 32 };
typedef struct dedup_summary {
    int64_t documents, copies;  /* copies: documents, or paragraphs, that another stands for */
    int64_t paragraphs;         /* compared; of PARAGRAPH */
    int64_t clusters, largest;  /* of two and more documents */
    int64_t sizes[DEDUP_SIZES]; /* how many clusters have [2^i, 2^(i+1)) documents */
} dedup_summary;

typedef struct dedup dedup;
/* @param in must be files: they are read twice. */
err dedup_find(const dedup_options *o, text_inputs *in, dedup **out) MUST_USE;
const dedup_summary *dedup_summarise(const dedup *d);
text_stage dedup_stage(dedup *d);
/* Once the stage is through: removes the work folder. */
err dedup_end(dedup *d) MUST_USE;
void dedup_free(dedup *d); /* takes NULL */

/* The folder for spill files: `work`, or else beside the output. @return owned (free). */
char *dedup_work_folder(const char *work, const char *out);
/* The probability that two texts of this similarity (Jaccard, of their n-grams) share a band. */
double minhash_curve(int bands, int rows, double similarity);
/* Bands and rows, of at most `hashes` hash functions, whose curve is nearest to a step at
 * `threshold`: the areas of what it takes below and misses above are least together. */
void minhash_pick(int hashes, double threshold, int *bands, int *rows);

/* ==== decontamination ===========================================================================
 *
 * Cuts the texts of evaluations out of training documents: wherever a document has `ngram` words in
 * a row of a reference, those and the characters beside them go. Words are compared in lower case,
 * without marks and punctuation. n-grams that more than `common` documents have are no evidence and
 * are left alone; to know them the documents are read once before they are judged.
 *
 *     decontaminate *d = NULL;
 *     TRY(decontaminate_find(&o, in, &d));         // as dedup_find
 *     text_stage s = decontaminate_stage(d);
 */
typedef struct decontaminate_options {
    const char *against; /* comma-separated: JSON lines files, or folders of them */
    const char *fields;  /* comma-separated members to look for; NULL: every string of a line */
    int ngram;           /* words in a row */
    int shortest;        /* texts of fewer than ngram words, down to this, are looked for whole */
    int common;          /* n-grams in more documents than this are left alone; 0: none are */
    int margin;          /* characters cut on either side of a match */
    int piece;           /* what is left between cuts must have this many characters */
    int pieces;          /* a document that falls into more pieces is dropped */
    const char *work;    /* as in dedup_options */
    bool keep_work, fresh;
    const char *report;           /* JSON lines, one a match and one a common n-gram; NULL: none */
    const text_stage_options *to; /* as in dedup_options */
    int threads;
    size_t memory; /* for the references */
    bool quiet;
} decontaminate_options;
decontaminate_options decontaminate_defaults(void); /* GPT-3's */

typedef struct decontaminate_summary {
    int64_t references, grams; /* files, and different n-grams of theirs */
    int64_t found, common;     /* n-grams found and cut, found and left alone */
    int64_t documents;         /* with a match that counts */
    int64_t silent;            /* files without one: each has had its warning */
} decontaminate_summary;

typedef struct decontaminate decontaminate;
err decontaminate_find(const decontaminate_options *o, text_inputs *in,
                       decontaminate **out) MUST_USE;
const decontaminate_summary *decontaminate_summarise(const decontaminate *d);
text_stage decontaminate_stage(decontaminate *d);
err decontaminate_end(decontaminate *d) MUST_USE;
void decontaminate_free(decontaminate *d); /* takes NULL */

#endif
