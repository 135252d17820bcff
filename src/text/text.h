/* text: documents, in and out. Reads text, JSON lines, WARC and WET, plain or compressed, as a
 * stream of documents of valid UTF-8; runs work over them on all cores with the result of one;
 * writes what is kept. Depends on io, zlib, zstd, libxml2.
 *
 *     inputs = files, folders, globs, "-"
 *       -> segments   a range of one file, the unit of output, of resuming and of sharing out
 *         -> blocks     about a megabyte of whole documents, the unit of parallel work
 *           -> documents
 *
 *     text_inputs *in = NULL;
 *     TRY(text_inputs_open(paths, n, &(text_input_options){ 0 }, &in));
 *     text_stage s = { .name = "filter", .rules = names, .n_rules = 3, .ctx = &f, .judge = judge };
 *     TRY(text_stage_run(&s, in, &(text_stage_options){ .out = "clean" }, &report));
 *     text_inputs_close(in);
 *
 * Nothing here depends on the number of threads: blocks are cut by bytes and merged in order.
 */
#ifndef INGOT_TEXT_H
#define INGOT_TEXT_H

#include "util/util.h"

typedef struct text_span {
    const char *at; /* borrowed; not NUL-terminated */
    size_t len;
} text_span;

/* ---- documents ----------------------------------------------------------------------------- */
typedef struct text_doc {
    text_span text;                     /* valid UTF-8 */
    text_span id, url, source, licence; /* valid UTF-8; empty: not given. Plain text and WARC: the
                                         * source is the input as the user named it */
    text_span line;  /* the JSON line it came from, without its end; empty: another format */
    size_t value[2]; /* the text's JSON string in `line`: bytes [0, 1), quotes included */
    int64_t number;  /* in its segment, from 0: names the document with the segment's index */
} text_doc;

/* Appends a document as a JSON line. With `line`, that line is written as it was but for the text
 * where `text` differs from d->text; else an object of the members that are not empty. */
void text_doc_write(const text_doc *d, text_span text, str *out);
/* Appends n bytes of valid UTF-8 as a JSON string, quotes included. */
void text_json_string(const char *text, size_t n, str *out);

/* In plain text files a line that holds exactly this ends a document. The line break before it
 * belongs to the separator, not to the document. */
#define TEXT_SEPARATOR "<|endoftext|>"

/* ---- inputs -------------------------------------------------------------------------------- */
typedef enum { TEXT_REPAIR, TEXT_REFUSE } text_invalid;

typedef struct text_input_options {
    /* Names of JSON members. NULL: "text", "id", "url", "source", "license" (or "licence"). A name
     * may be a path, "metadata.url". */
    const char *text_field, *id_field, *url_field, *source_field, *licence_field;
    text_invalid invalid; /* bytes that are no UTF-8 become U+FFFD, or cost the document */
    bool strict;          /* a record that cannot be read is an error, not a counted skip */
    /* Comma-separated names: only those, or all but those. NULL: no matter. */
    const char *sources, *not_sources, *licences, *not_licences;
    const char *format;    /* "text", "jsonl", "warc", "wet"; NULL: by name and content */
    size_t segment_bytes;  /* of a plain file; 0: 256 MiB. Compressed files are one segment */
    size_t block_bytes;    /* 0: 1 MiB */
    size_t document_bytes; /* the longest record read; 0: 64 MiB. Plain text is cut there, at the
                            * end of a line; a longer record of another kind is a bad one */
} text_input_options;

/* What became of the records read. */
typedef struct text_counts {
    int64_t documents, bytes; /* handed on, and their text */
    int64_t repaired;         /* documents with bytes replaced */
    int64_t invalid;          /* documents refused for such bytes */
    int64_t unreadable;       /* records that are no document: broken JSON, no text, too long */
    int64_t empty;            /* documents without text */
    int64_t excluded;         /* by source or licence */
} text_counts;
void text_counts_add(text_counts *to, const text_counts *from);

typedef struct text_inputs text_inputs;
/* Lists the inputs: files, folders (every file below whose name says a known format), globs, "-" for
 * standard input. In the order given, names of a folder or glob in byte order. */
err text_inputs_open(const char *const *paths, int n, const text_input_options *o,
                     text_inputs **out) MUST_USE;
int text_segments(const text_inputs *in);
const char *text_segment_path(const text_inputs *in, int segment);
int64_t text_inputs_bytes(const text_inputs *in); /* on disk; 0 for standard input */
/* Names, sizes and options: a resumed stage must find the same. */
uint64_t text_inputs_hash(const text_inputs *in);
void text_inputs_close(text_inputs *in); /* takes NULL */

/* ---- work over blocks ----------------------------------------------------------------------- */
typedef struct text_block {
    const text_doc *docs;
    int n;
    int segment;
    int64_t raw_bytes; /* of the input they came from, for progress */
} text_block;

typedef struct text_flow {
    void *ctx;
    size_t result_size; /* of what work hands to merge */
    /* On any thread. @param worker in [0, threads). @param result zeroed. */
    err (*work)(void *ctx, int worker, const text_block *b, void *result);
    /* In input order, one at a time. Takes what `result` owns. */
    err (*merge)(void *ctx, const text_block *b, void *result);
    /* Frees what a result owns when an error elsewhere means it is not merged. NULL: nothing. */
    void (*drop)(void *result);
} text_flow;

/* @return how many workers `threads` asks for: 0 means one per core. */
int text_threads(int threads);
/* Runs every block of one segment through the flow. Holds at most `threads` blocks at a time. A
 * segment may be run again, unless it comes from a pipe: then that is an error.
 * @param counts what was read is added. */
err text_flow_run(text_inputs *in, int segment, const text_flow *f, int threads,
                  text_counts *counts) MUST_USE;

/* ---- stages: documents in, documents out ---------------------------------------------------- */
typedef struct text_verdict {
    int rule;       /* which rule drops the document; TEXT_KEEP: none */
    double value;   /* what the rule measured */
    text_span text; /* what to write; preset to the document's own. May point into memory of the
                     * worker that stays as it is until its next document */
    int64_t *count; /* [n_counters] of the stage: added to */
} text_verdict;
enum { TEXT_KEEP = -1 };

typedef struct text_stage {
    const char *name;         /* "filter": in progress, reports and messages */
    const char *const *rules; /* [n_rules] why documents are dropped */
    int n_rules;
    const char *const *counters; /* [n_counters] what else is counted: "e-mail addresses masked" */
    int n_counters;
    uint64_t hash; /* of every option that changes the outcome */
    void *ctx;
    err (*judge)(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v);
} text_stage;

typedef struct text_stage_options {
    /* A name ending in .jsonl, .jsonl.gz, .jsonl.zst: one file, written atomically. Else a folder
     * with part-NNNNNN.jsonl.zst (or as `compress` says) for each segment and state.json: a rerun
     * keeps the parts that are there. NULL or "-": standard output. */
    const char *out;
    /* Where dropped documents go, with "dropped_by" and "value"; NULL: nowhere. A folder when `out`
     * is one, so that a rerun continues both; else a file. */
    const char *dropped;
    const char *compress; /* of parts: "zst" (NULL), "gz", "none" */
    int threads;          /* 0: one per core */
    bool fresh;           /* start over, whatever is there */
    bool quiet;           /* no progress */
} text_stage_options;

typedef struct text_stage_report {
    text_counts read;
    int64_t kept, kept_bytes;
    int64_t edited;                   /* kept, with another text */
    int64_t *dropped, *dropped_bytes; /* [n_rules] */
    int64_t *count;                   /* [n_counters] */
    double seconds;                   /* of this run */
    int64_t seen_bytes;               /* of text, in this run: without the parts that were there */
    int resumed_parts;
} text_stage_report;

/* Whether the result can go where it shall, and whether what is there is of this stage on these
 * inputs. For stages that read their input before they run: better known now. */
err text_stage_check(const text_stage *s, const text_inputs *in,
                     const text_stage_options *o) MUST_USE;
err text_stage_run(const text_stage *s, text_inputs *in, const text_stage_options *o,
                   text_stage_report *out) MUST_USE;
/* The table of what was read, dropped by each rule and kept, and the peak of memory. */
void text_stage_print(const text_stage *s, const text_stage_report *r, FILE *to);
/* The same as one JSON object. @return owned (json_decref). */
struct json_t *text_stage_json(const text_stage *s, const text_stage_report *r);
void text_stage_print_json(const text_stage *s, const text_stage_report *r, FILE *to);
void text_stage_report_free(text_stage_report *r);

/* ---- UTF-8 and Unicode ------------------------------------------------------------------------
 * Classes of code points come from a table made at build time from utf8proc. */
enum {
    CLASS_LETTER = 1,       /* L* */
    CLASS_NUMBER = 2,       /* N* */
    CLASS_SPACE = 4,        /* White_Space, 25 code points */
    CLASS_MARK = 8,         /* M* */
    CLASS_UPPER = 16,       /* Lu, Lt */
    CLASS_LOWER = 32,       /* Ll */
    CLASS_PUNCTUATION = 64, /* P* */
    CLASS_SYMBOL = 128,     /* S* */
};
extern const uint16_t unicode_pages[0x1100];
extern const uint8_t unicode_classes[];
static inline uint8_t unicode_class(uint32_t cp) {
    return unicode_classes[unicode_pages[cp >> 8] * 256u + (cp & 255u)];
}

/* Decodes the code point at p, which must begin one in valid UTF-8. @return its bytes. */
static inline int utf8_decode(const char *p, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) return *cp = s[0], 1;
    if (s[0] < 0xE0) return *cp = (s[0] & 31u) << 6 | (s[1] & 63u), 2;
    if (s[0] < 0xF0) return *cp = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u), 3;
    *cp = (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
    return 4;
}
/* @return bytes written: 1 to 4. */
int utf8_encode(uint32_t cp, char out[4]);
/* @return bytes of the longest valid prefix (no overlong forms, surrogates, or beyond U+10FFFF). */
size_t utf8_valid(const char *text, size_t n);
/* Appends the text with each maximal invalid piece as one U+FFFD. @return how many there were. */
int64_t utf8_repair(const char *text, size_t n, str *out);
/* @return code points in valid UTF-8. */
int64_t utf8_length(const char *text, size_t n);

#endif
