/* curate: which documents are worth training on. Filters drop and edit documents by rules;
 * deduplication drops copies of other documents; decontamination removes the texts of
 * evaluations. Each is a text_transform. Depends on text, comm, io, util, utf8proc and PCRE2. */
#ifndef INGOT_CURATE_H
#define INGOT_CURATE_H

#include "text/text.h"

/* ==== filters ==================================================================================
 *
 *     filter_options o = filter_defaults();
 *     o.sets = "gopher-quality,fineweb";
 *     o.limit[FILTER_gopher_min_words] = 20;
 *     filter *f = NULL;
 *     TRY(filter_new(&o, 4, &f));                  // for 4 threads
 *     text_transform s = filter_transform(f);              // text_transform_run(&s, ...)
 *     filter_free(f);
 *
 * A document passes these steps in order: conditions on members, URL lists, language, the rule sets in
 * the order of `sets`, bad words, quality, PII masks. The first rule that fails drops it. Units:
 *
 *     character   a code point; lengths are in characters too
 *     word        as datatrove splits text in the language (word_rules.h); a run that is not White_Space with --words space
 *     line        text up to \n, without the white space around it; blank if nothing is left
 *     paragraph   lines between blank lines
 *     sentence    see filter_sentences
 */

/* Every rule that can drop a document: X(id, option and name in reports, limit, LEAST or MOST,
 * what is measured, the rule sets or options that use it). LEAST drops a document that measures less than the limit, MOST one that
 * measures more. A rule has the name of the option that sets its limit, so the report shows
 * which option to change. */
/* clang-format off */
#define FILTER_RULES(X)                                                                             \
    X(url_domains, "url-domain-count", 0, MOST, "domains of --url-domains that contain the host", "--url-domains") \
    X(url_words, "url-word-count", 0, MOST, "words of --url-words and parts of --url-parts in the URL", "--url-words, --url-parts") \
    X(language, "language-threshold", 0.65, LEAST, "probability of the languages of --language", "--language, --language-model") \
    X(repeat_paragraphs, "repeat-paragraphs", 0.30, MOST, "fraction of paragraphs that repeat an earlier one", "gopher-repetition") \
    X(repeat_paragraph_chars, "repeat-paragraph-chars", 0.20, MOST, "fraction of characters in them", "gopher-repetition") \
    X(repeat_lines, "repeat-lines", 0.30, MOST, "fraction of non-blank lines that repeat an earlier one", "gopher-repetition") \
    X(repeat_line_chars, "repeat-line-chars", 0.20, MOST, "fraction of characters in them", "gopher-repetition") \
    X(top_2gram, "top-2gram-chars", 0.20, MOST, "fraction of characters in the most frequent 2-gram of words", "gopher-repetition") \
    X(top_3gram, "top-3gram-chars", 0.18, MOST, "... 3-gram", "gopher-repetition") \
    X(top_4gram, "top-4gram-chars", 0.16, MOST, "... 4-gram", "gopher-repetition") \
    X(repeat_5gram, "repeat-5gram-chars", 0.15, MOST, "fraction of characters in repeated 5-grams of words", "gopher-repetition") \
    X(repeat_6gram, "repeat-6gram-chars", 0.14, MOST, "... 6-grams", "gopher-repetition") \
    X(repeat_7gram, "repeat-7gram-chars", 0.13, MOST, "... 7-grams", "gopher-repetition") \
    X(repeat_8gram, "repeat-8gram-chars", 0.12, MOST, "... 8-grams", "gopher-repetition") \
    X(repeat_9gram, "repeat-9gram-chars", 0.11, MOST, "... 9-grams", "gopher-repetition") \
    X(repeat_10gram, "repeat-10gram-chars", 0.10, MOST, "... 10-grams", "gopher-repetition") \
    X(gopher_min_words, "gopher-min-words", 50, LEAST, "words with a letter or a digit", "gopher-quality") \
    X(gopher_max_words, "gopher-max-words", 100000, MOST, "the same", "gopher-quality") \
    X(gopher_min_length, "gopher-min-word-length", 3, LEAST, "their mean length", "gopher-quality") \
    X(gopher_max_length, "gopher-max-word-length", 10, MOST, "the same", "gopher-quality") \
    X(gopher_hashes, "gopher-hashes", 0.1, MOST, "# per word", "gopher-quality") \
    X(gopher_ellipses, "gopher-ellipses", 0.1, MOST, "ellipses per word", "gopher-quality") \
    X(gopher_bullets, "gopher-bullet-lines", 0.9, MOST, "fraction of lines that begin with a bullet or -", "gopher-quality") \
    X(gopher_line_ellipses, "gopher-ellipsis-lines", 0.3, MOST, "fraction of lines that end in an ellipsis", "gopher-quality") \
    X(gopher_letters, "gopher-letter-words", 0.8, LEAST, "fraction of words with a letter", "gopher-quality") \
    X(gopher_stop_words, "gopher-stop-words", 2, LEAST, "number of these words that occur: the be to of and that have with", "gopher-quality") \
    X(c4_lorem_ipsum, "c4-lorem-ipsum", 0, MOST, "mentions of lorem ipsum", "c4, c4-no-punct, c4-paper") \
    X(c4_braces, "c4-braces", 0, MOST, "lines with {", "c4, c4-no-punct, c4-paper") \
    X(c4_sentences, "c4-sentences", 5, LEAST, "sentences in the lines left", "c4, c4-no-punct") \
    X(c4_paper_sentences, "c4-paper-sentences", 3, LEAST, "the same, of c4-paper", "c4-paper") \
    X(fineweb_ends, "fineweb-line-ends", 0.12, LEAST, "fraction of non-blank lines that end a sentence", "fineweb") \
    X(fineweb_short, "fineweb-short-lines", 0.67, MOST, "fraction of non-blank lines that are short", "fineweb") \
    X(fineweb_repeats, "fineweb-repeat-chars", 0.01, MOST, "fraction of characters in repeated lines", "fineweb") \
    X(fineweb_newlines, "fineweb-newlines", 0.3, MOST, "line ends per word", "fineweb") \
    X(basic_min_words, "basic-min-words", 50, LEAST, "words", "basic") \
    X(basic_max_words, "basic-max-words", 100000, MOST, "words", "basic") \
    X(basic_length, "basic-word-length", 3, LEAST, "mean length of words", "basic") \
    X(basic_symbols, "basic-symbols", 0.1, MOST, "# and ellipses per word", "basic") \
    X(basic_letters, "basic-letters", 0.7, LEAST, "fraction of characters that are letters or their marks", "basic") \
    X(where, "where-count", 0, MOST, "conditions of --where that the document does not meet", "--where") \
    X(quality, "quality-threshold", 0.5, LEAST, "probability of the labels of --keep", "--keep") \
    X(bad_words, "bad-word-count", 0, MOST, "occurrences of words and phrases of --bad-words", "--bad-words")

/* Other numbers that rules use: X(id, option, value, help, the rule sets that use it). */
#define FILTER_SETTINGS(X)                                                                          \
    X(c4_line_words, "c4-line-words", 3, "c4: remove lines with fewer words", "c4, c4-no-punct") \
    X(c4_paper_line_words, "c4-paper-line-words", 5, "c4-paper: the same", "c4-paper") \
    X(c4_word_length, "c4-word-length", 1000, "c4: remove lines with a longer word", "c4, c4-no-punct, c4-paper") \
    X(short_line, "fineweb-short-line", 30, "fineweb: a line of at most this many characters is short", "fineweb")

/* Changes that filters make in documents they keep, and other counts: X(id, name). */
#define FILTER_COUNTERS(X)                                                                          \
    X(line_length, "lines removed: overlong word")                                                \
    X(line_end, "lines removed: no sentence end")                                              \
    X(line_words, "lines removed: too few words")                                                   \
    X(line_javascript, "lines removed: javascript")                                                 \
    X(line_policy, "lines removed: cookies, privacy, terms")                                        \
    X(citations, "citation marks removed")                                                          \
    X(email, "e-mail addresses masked")                                                             \
    X(ip, "IP addresses masked")                                                                    \
    X(phone, "phone numbers masked")                                                                \
    X(card, "card numbers masked")                                                                  \
    X(iban, "IBANs masked")                                                                         \
    X(ssn, "social security numbers masked")                                                        \
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
    const char *of; /* the rule sets or options that use it, separated by ", " */
} filter_rule;
extern const filter_rule filter_rules[FILTER_RULE_COUNT];

/* ---- personal data --------------------------------------------------------------------------- */
/* X(id, name, mask). The default masks are reserved for examples: RFC 2606, RFC 5737, and
 * 555-01xx. */
#define PII_KINDS(X)                                                                               \
    X(email, "email", "email@example.com")                                                         \
    X(ip, "ip", "192.0.2.1")                                                                       \
    X(phone, "phone", "555-0100")                                                                  \
    X(card, "card", "0000 0000 0000 0000")                                                         \
    X(iban, "iban", "XX00 0000 0000 0000")                                                         \
    X(ssn, "ssn", "000-00-0000")
#define PII_ALL_KINDS     "email, ip, phone, card, iban, ssn"
#define PII_ENUM(id, ...) PII_##id,
enum { PII_KINDS(PII_ENUM) PII_KIND_COUNT };

/* Appends the text with personal data masked: e-mail addresses, public IP addresses (v4 and v6),
 * phone numbers (international with +, national ones of many countries), payment cards (by prefix,
 * length and Luhn check), IBANs (mod 97), and US social security numbers.
 * @param masks [PII_KIND_COUNT]; NULL: leave that kind.
 * @param count [PII_KIND_COUNT]: added to.
 * @return false when there is nothing to mask, and nothing is appended. */
bool pii_mask(text_span text, const char *const *masks, str *out, int64_t *count);

/* ---- language: fastText models ---------------------------------------------------------------
 * Reads supervised models, .bin and quantized .ftz, with any loss. The file is mapped, not
 * copied. */
typedef struct language_model language_model;
err language_open(const char *path, language_model **out) MUST_USE;
err language_builtin(language_model **out) MUST_USE; /* the model that is compiled in */
void language_close(language_model *m);              /* takes NULL */
int language_count(const language_model *m);
const char *language_name(const language_model *m, int i); /* "en" for "__label__en" */
uint64_t language_hash(const language_model *m);           /* of the file */
size_t language_bytes(const language_model *m);            /* memory, including the mapped file */
/* Buffers for predictions, one per thread. */
typedef struct language_scratch language_scratch;
language_scratch *language_scratch_new(const language_model *m);
void language_scratch_free(language_scratch *r); /* takes NULL */
/* Predicts the probability of each language. Line ends count as spaces. @return
 * [language_count], borrowed until the next call; all 0 if the model knows no part of the text. */
const float *language_predict(const language_model *m, language_scratch *r, text_span text);

/* ---- training of such models ---------------------------------------------------------------- */
typedef struct quality_options {
    int64_t dim, ngrams, buckets, min_count, max_words, epochs;
    int64_t min_chars, max_chars; /* character n-grams of words; max_chars 0: none */
    int64_t pieces;               /* of 1 to 20 words, cut from each document in each epoch */
    int64_t zero_rows;            /* rows of zeros counted in the mean of a text; see language.c */
    bool quantize;                /* write an .ftz file */
    bool rows_from_zero; /* n-grams that no document had do not count; else rows begin at random */
    double rate, held_out; /* held_out: the part of the documents that AUC is measured on */
    double length_rate;    /* of the length of a text, by the mean length; 0: as of words */
    uint64_t seed;
    bool quiet;
} quality_options;
static inline quality_options quality_defaults(void) {
    return (quality_options){ .dim = 16,
                              .ngrams = 2,
                              .buckets = 200000,
                              .min_count = 3,
                              .max_words = 1000000,
                              .epochs = 20,
                              .rate = 0.5,
                              .rows_from_zero = true,
                              .length_rate = 0.1,
                              .held_out = 0.1 };
}
/* For languages: character n-grams alone, in a file that is small. */
static inline quality_options language_train_defaults(void) {
    return (quality_options){ .dim = 16,
                              .ngrams = 1,
                              .buckets = 180000,
                              .min_chars = 1,
                              .max_chars = 4,
                              .min_count = 1,
                              .epochs = 5,
                              .rate = 0.5,
                              .held_out = 0.5,
                              .pieces = 2,
                              .zero_rows = 30,
                              .quantize = true };
}
enum { QUALITY_LABELS = 512 };
typedef struct quality_label {
    char name[64];
    int64_t training, held_out; /* documents */
    int64_t correct;            /* held-out documents that get this label, their own */
    double auc;                 /* on the held-out ones; NaN: too few */
} quality_label;
typedef struct quality_report {
    int64_t documents, unlabelled, words, held_out, correct;
    int labels;
    quality_label label[QUALITY_LABELS];
} quality_report;
/* Documents to learn from. @param label of all of them; NULL: the `source` of each is its label. */
typedef struct quality_input {
    text_inputs *in;
    const char *label;
} quality_input;
/* Learns from labelled documents; writes a fastText model. */
err quality_train(const quality_input *inputs, int n, const quality_options *o, const char *path,
                  quality_report *r) MUST_USE;
/* Area under the ROC curve. @return NaN when all are positive or none is. */
double quality_auc(const float *scores, const bool *positive, int64_t n);

/* ---- lists of words and phrases --------------------------------------------------------------
 * A UTF-8 file with one entry per line, matched case-insensitively. Lines that begin with # are
 * comments. */
typedef struct phrase_list phrase_list;
err phrase_list_read(const char *path, phrase_list **out) MUST_USE;
void phrase_list_free(phrase_list *l); /* takes NULL */
int phrase_list_size(const phrase_list *l);
size_t phrase_list_bytes(const phrase_list *l); /* of memory */
uint64_t phrase_list_hash(const phrase_list *l);
/* @return how many times phrases occur as whole words: not next to a letter, digit or mark. In
 * scripts that do not separate words (Han, kana, Thai, Lao, Khmer, Burmese) they match anywhere. */
int64_t phrase_list_count(const phrase_list *l, text_span text);
/* @return whether the list has exactly this phrase, given in lower case. */
bool phrase_list_has(const phrase_list *l, text_span phrase);
/* @return at how many positions of the text, given in lower case, a phrase of the list begins. */
int64_t phrase_list_parts(const phrase_list *l, text_span text);

/* ---- the filter ------------------------------------------------------------------------------ */
typedef struct filter_options {
    const char *sets; /* comma-separated, in the order they apply; NULL: FILTER_DEFAULT_SETS */
    double limit[FILTER_RULE_COUNT];
    double setting[FILTER_SETTING_COUNT];
    /* Paths of files; NULL: the rule is off. */
    const char *bad_words, *url_domains, *url_words, *url_parts, *language_model;
    const char *
        languages; /* comma-separated labels of the model; NULL: any label, or no rule without a model */
    const char
        *quality; /* path of a fastText model, or several as "name=path,name=path"; NULL: none */
    const char *keep;  /* comma-separated labels of them; NULL: documents are only annotated */
    const char *where; /* comma-separated conditions on members, such as "quality_score>=0.5" */
    bool annotate;     /* write the likeliest label and its probability onto documents */
    const char *pii;   /* comma-separated kinds to mask; NULL: none */
    const char *
        words; /* "auto", the default if NULL: datatrove's words in the document's language; a language; the
                          path of rules (word_rules.h); or "space" */
    const char *mask[PII_KIND_COUNT];
} filter_options;
/* FineWeb's sets. c4-no-punct is C4 without the rule that a line must end a sentence. */
#define FILTER_DEFAULT_SETS "gopher-repetition,gopher-quality,c4-no-punct,fineweb"
#define FILTER_ALL_SETS                                                                            \
    "gopher-repetition, gopher-quality, c4, c4-no-punct, c4-paper, fineweb, basic"

filter_options filter_defaults(void);
/* An error if a limit, a setting or a mask is not the default and nothing would use it. */
err filter_check(const filter_options *o) MUST_USE;
typedef struct filter filter;
/* @param workers number of threads that judge concurrently. */
err filter_new(const filter_options *o, int workers, filter **out) MUST_USE;
void filter_free(filter *f);          /* takes NULL */
size_t filter_bytes(const filter *f); /* memory of lists and model */
enum {
    FILTER_BYTES_PER_TEXT_BYTE = 48
}; /* worst case of a worker's memory: text of one-letter words */
/* Judges a document; the `judge` of the transform. @param ctx the filter. */
err filter_judge(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) MUST_USE;
text_transform filter_transform(filter *f);

/* @return the number of sentences in a line. A sentence ends with a sentence terminal followed,
 * unless the script has no spaces, by white space and not by a lower-case letter; initials ("J.
 * Smith") do not end one. Text after the last end counts as a sentence. */
int64_t filter_sentences(text_span line);
/* @return whether the code point has Unicode's property Sentence_Terminal. */
bool filter_is_terminal(uint32_t code_point);

/* ==== deduplication =============================================================================
 *
 * Given `dedup_options o` and `text_inputs *in`:
 *
 *     dedup *d = NULL;
 *     TRY(dedup_find_copies(&o, in, &d));          // first pass: reads the documents, finds copies
 *     text_transform s = dedup_transform(d);               // text_transform_run(&s, in, ...): second pass
 *     TRY(dedup_finish(d));                        // removes the folder of spill files
 *
 * Three methods. EXACT: documents with identical bytes. NEAR: documents whose sets of word n-grams
 * are similar, by MinHash and banding (this includes exact copies). PARAGRAPH: paragraphs of the
 * same words; all but the first are removed from their documents. How words are compared
 * is a normalization; by default in lower case, without marks and punctuation, numbers kept. */
enum { NGRAM_MAX = 64, MINHASH_MAX = 4096 }; /* limits: words of an n-gram; hash functions */
typedef enum { DEDUP_NEAR, DEDUP_EXACT, DEDUP_PARAGRAPH } dedup_method;
typedef enum { DEDUP_FIRST, DEDUP_LAST, DEDUP_LONGEST } dedup_keep;
/* Selects which parts of a word are ignored when words are compared. Zeroed: case, accents and punctuation do
 * not, numbers do. */
typedef struct normalization {
    bool keep_case, keep_accents;
    bool keep_punctuation; /* each punctuation mark or symbol is a word of its own */
    bool zero_digits;      /* "1984" and "2001" become the same word, "0000" */
} normalization;
/* How a transform that reads its input twice reads it the first time. */
typedef struct pass_options {
    const char *work; /* folder for spill files, from which a rerun resumes */
    bool own_work;    /* each rank has its own, which no other rank sees */
    bool keep_work, fresh, quiet;
    struct comm *comm;  /* the ranks that share the work, and call this together; NULL: alone */
    const char *report; /* path of the transform's report, JSON lines; NULL: none */
    const text_transform_options *to; /* checked before anything is read; NULL: not known yet */
    /* Deduplication against an existing corpus: the first `first_segment` segments of the input are that corpus, which
     * is only compared with; the transform reads the others, `transform_in`. 0 and NULL: the transform reads all. */
    int first_segment;
    const text_inputs *transform_in;
    int threads;
    size_t memory; /* for tables; memory for reading comes on top */
} pass_options;

typedef struct dedup_options {
    dedup_method method;
    normalization words; /* of NEAR and PARAGRAPH */
    /* which document of a cluster is kept: the first or last in input order, or the first of the
     * longest */
    dedup_keep keep;
    int ngram, bands, rows; /* of NEAR */
    bool lines;             /* a paragraph ends at every line end, not only at blank lines */
    int paragraph_words;    /* paragraphs of fewer words are never removed */
    /* PARAGRAPH, Dolma's rule: a paragraph is removed if at least this fraction of its n-grams, which begin `stride`
     * words apart, were seen before. paragraph_ngram 0: if the whole paragraph was. */
    int paragraph_ngram, stride;
    double overlap;
    const char *index;      /* file with the keys of an earlier corpus: what it has is a copy */
    const char *save_index; /* where to write those of this one, and of `index`; NULL: nowhere */
    double index_error;     /* probability that a key that is not in the index is found there */
    pass_options pass;      /* its report has a line per cluster; not with PARAGRAPH */
} dedup_options;
dedup_options dedup_defaults(void); /* FineWeb's n-grams, hashes and bands */

enum { DEDUP_SIZES = 32 };
typedef struct dedup_summary {
    int64_t documents, copies;  /* copies: documents, or paragraphs, that repeat another one */
    int64_t paragraphs;         /* paragraphs compared; only with PARAGRAPH */
    int64_t clusters, largest;  /* clusters have at least two documents */
    int64_t sizes[DEDUP_SIZES]; /* number of clusters with [2^i, 2^(i+1)) documents */
} dedup_summary;

typedef struct dedup dedup;
/* @param in must be files, since they are read twice. */
err dedup_find_copies(const dedup_options *o, text_inputs *in, dedup **out) MUST_USE;
const dedup_summary *dedup_get_summary(const dedup *d);
text_transform dedup_transform(dedup *d);
/* Removes the work folder, after the transform has run. */
err dedup_finish(dedup *d) MUST_USE;
void dedup_free(dedup *d); /* takes NULL */

/* ---- repeated substrings (Lee et al. 2022) ---------------------------------------------------
 * Every substring of `length` bytes, or tokens, that occurs more than once in all documents is removed. Used like
 * dedup_find_copies. */
typedef struct substring_options {
    int length;                        /* symbols of a repeat, at least 2 */
    const struct tokenizer *tokenizer; /* symbols are its tokens; NULL: bytes */
    bool keep_first;                   /* the first occurrence stays; else none does */
    pass_options pass;                 /* without a report */
} substring_options;
typedef struct substring_summary {
    int64_t documents;
    int64_t candidates; /* windows that were compared */
    int64_t windows;    /* windows that are removed */
} substring_summary;
typedef struct substring substring;
err substring_find(const substring_options *o, text_inputs *in, substring **out) MUST_USE;
const substring_summary *substring_get_summary(const substring *s);
text_transform substring_transform(substring *s);
err substring_finish(substring *s) MUST_USE;
void substring_free(substring *s); /* takes NULL */

/* @return the folder for spill files: `work`, or else one beside the output, or in the current folder if that is below a
 * URL; owned (free). @param rank the one whose own it is; -1: it is that of all. */
char *curate_work_folder(const char *work, const char *out, int rank);
/* @return the probability that two texts of this similarity (Jaccard index of their n-grams)
 * share a band. */
double minhash_match_probability(int bands, int rows, double similarity);
/* Chooses bands and rows, with at most `hashes` hash functions, whose curve is closest to a step
 * at `threshold`: minimizes the area of false positives below it plus that of false negatives
 * above it. */
void minhash_choose_bands(int hashes, double threshold, int *bands, int *rows);

/* ==== decontamination ===========================================================================
 *
 * Removes the texts of evaluations from training documents: where a document contains `ngram`
 * consecutive words of a reference, these words and a margin on either side are removed. Words are
 * compared in lower case, without marks and punctuation. n-grams that occur in more than `common`
 * documents are boilerplate rather than evidence, unless a document has at least half of a reference text, and are
 * ignored; to know them, the documents are read once before they are judged.
 *
 * Given `decontaminate_options o` and `text_inputs *in`:
 *
 *     decontaminate *d = NULL;
 *     TRY(decontaminate_find_matches(&o, in, &d)); // as dedup_find_copies
 *     text_transform s = decontaminate_transform(d);
 */
typedef struct decontaminate_options {
    const char *against; /* comma-separated: JSON lines files, or folders of them */
    const char *fields;  /* comma-separated members to search for; NULL: every string of a line */
    int ngram;           /* consecutive words that make a match */
    int shortest;        /* shorter texts, down to this many words, must match as a whole */
    int sentence; /* still shorter ones, down to this many words, must be a sentence or line of the document;
                     0: they are not searched for */
    int common; /* n-grams in more documents than this are ignored, except as above; 0: none are */
    int margin; /* characters removed on either side of a match */
    int piece;  /* remaining pieces of fewer characters are removed too */
    int pieces; /* a document that falls into more pieces than this is dropped */
    pass_options
        pass; /* its report has a line per match and per common n-gram; its memory is for the references */
} decontaminate_options;
/* @return the values of GPT-3's paper, and those for shorter texts. */
decontaminate_options decontaminate_defaults(void);

typedef struct decontaminate_summary {
    int64_t references, grams; /* reference files, and distinct n-grams in them */
    int64_t found, common;     /* n-grams found and removed; found and always ignored as common */
    int64_t documents;         /* documents with a match that is removed */
    int64_t ignored;           /* documents with a match that is ignored as common */
    int64_t unsearched;        /* texts of the references that are too short to search for */
    int64_t silent;            /* files without a match, each of which was warned about */
} decontaminate_summary;

typedef struct decontaminate decontaminate;
err decontaminate_find_matches(const decontaminate_options *o, text_inputs *in,
                               decontaminate **out) MUST_USE;
const decontaminate_summary *decontaminate_get_summary(const decontaminate *d);
text_transform decontaminate_transform(decontaminate *d);
err decontaminate_finish(decontaminate *d) MUST_USE;
void decontaminate_free(decontaminate *d); /* takes NULL */

/* ==== sampling, splitting, merging, shuffling ===================================================
 *
 * These transforms ignore the content of documents. All are seeded, and give the same bytes on any number of threads and
 * ranks.
 *
 * Given `sampling_options o` and `text_inputs *in`:
 *
 *     sample *s = NULL;
 *     TRY(sample_new(&o, in, &s)); // reads the documents once, unless a share is asked for
 *     text_transform transform = sample_transform(s);
 *     TRY(sample_finish(s));       // after text_transform_run
 */
struct tokenizer;
typedef struct sampling_options {
    /* Exactly one is set, the others are 0. A share is of the documents, chosen by a hash of their texts; documents, bytes and
     * tokens are taken in random order until there are this many. */
    double share;
    int64_t count, bytes, tokens;
    const struct tokenizer *tokenizer; /* that counts tokens; NULL: none */
    const char
        *per; /* the member for each of whose values this many are taken; NULL: of all documents */
    uint64_t seed;
    pass_options pass; /* without a report, and memory */
} sampling_options;
typedef struct sample_summary {
    int64_t documents; /* read */
    int64_t groups;    /* values of `per` */
    int64_t all_taken; /* groups that have no more than was asked for */
} sample_summary;
typedef struct sample sample;
err sample_new(const sampling_options *o, text_inputs *in, sample **out) MUST_USE;
const sample_summary *sample_get_summary(const sample *s);
text_transform sample_transform(sample *s);
err sample_finish(sample *s) MUST_USE;
void sample_free(sample *s); /* takes NULL */

/* Divides documents among outputs, by a hash of their texts or by the value of a member. */
typedef struct divide_options {
    const char *
        into; /* "train=0.98,test=0.02"; with `by`: "web,books,rest", values of the member and the others */
    const char *by; /* NULL: by shares */
    uint64_t seed;
    int threads;
} divide_options;
typedef struct divide divide;
err divide_new(const divide_options *o, divide **out) MUST_USE;
text_transform divide_transform(divide *d);
void divide_free(divide *d); /* takes NULL */

/* Keeps all documents: with text_transform_options.merge_bytes, in fewer and larger parts. */
text_transform merge_transform(int64_t bytes);

/* Puts all documents into random order: in the first pass each is written to one of many sections of spill files by
 * the top bits of a random key; a part of the output is a range of keys, read into memory and sorted. */
typedef struct shuffle_options {
    uint64_t seed;
    int64_t part_bytes; /* of text in a part of the output, about; 0: 256 MiB */
    pass_options
        pass; /* its memory bounds the text that is in memory at once; a part is no larger */
} shuffle_options;
typedef struct shuffle shuffle;
err shuffle_new(const shuffle_options *o, text_inputs *in, shuffle **out) MUST_USE;
text_transform shuffle_transform(shuffle *s);
err shuffle_finish(shuffle *s) MUST_USE;
void shuffle_free(shuffle *s); /* takes NULL */

#endif
