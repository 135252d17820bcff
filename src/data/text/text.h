/* text: documents in and out. Reads text, JSON, CSV, HTML, WARC, WET and Parquet files, compressed or not, as
 * documents of valid UTF-8; runs work over them on all cores with a result that does not depend on
 * the number of threads or ranks; writes what is kept, as JSON lines or Parquet. Depends on util, io, parquet, comm,
 * zlib, zstd and libxml2.
 *
 *     inputs = files, folders, globs, "-"
 *       -> segments   a range of one file: the unit of output and of resuming
 *         -> blocks     about a megabyte of whole documents: the unit of parallel work
 *           -> documents
 *
 * Given `const char *const *paths`, `int n`, and `text_transform s`, a transform such as filter_transform returns:
 *
 *     text_inputs *in = NULL;
 *     text_transform_report report;
 *     TRY(text_inputs_open(paths, n, &(text_input_options){ 0 }, &in));
 *     TRY(text_transform_run(&s, in, &(text_transform_options){ .out = "clean" }, &report));
 *     text_inputs_close(in);
 *
 * Results are independent of the number of threads because blocks are split by bytes, never by
 * worker, and merged in input order. */
#ifndef INGOT_TEXT_H
#define INGOT_TEXT_H

#include "util/util.h"

typedef struct text_span {
    const char *at; /* borrowed; not NUL-terminated */
    size_t len;
} text_span;
bool text_spans_equal(text_span a, text_span b);
/* @return the span without white space at either end. */
text_span span_trim(text_span s);
/* Characters other than ASCII letters stay as they are. */
static inline char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* ---- documents ------------------------------------------------------------------------------- */
typedef struct text_doc {
    text_span text; /* valid UTF-8 without NUL */
    /* Valid UTF-8; empty if not given. For plain text and WARC the source is the input as the user
     * named it. */
    text_span id, url, source, license;
    /* Its other members as JSON, each as `, "name": value`; empty if there are none, if they are in
     * `line`, or if no transform will write the document. */
    text_span members;
    text_span line;  /* the JSON line it came from, without its end; empty for other formats */
    size_t value[2]; /* where the text's JSON string is in `line`: [begin, end), with quotes */
    int64_t number;  /* index in its segment, from 0 */
} text_doc;

/* Appends a document as a JSON line. If the document came from a JSON line, that line is copied
 * and only the text is replaced, if `text` differs from d->text; otherwise writes an object of
 * the members that are not empty. */
void text_doc_write(const text_doc *d, text_span text, str *out);
/* Appends n bytes of valid UTF-8 as a JSON string, quotes included. */
void text_json_string(const char *text, size_t n, str *out);

/* Appends the value of a member, as text: "source", or any other that the document has, such as "language". Members of
 * documents that do not come from JSON are there only if a transform writes them. @return false: it has no such member, or
 * it is neither a string, a number nor a bool. */
bool text_doc_member(const text_doc *d, const char *name, str *out);

/* In plain text files a line that consists of exactly this string ends a document. The line
 * break before it belongs to the separator, not to the document. */
#define TEXT_SEPARATOR "<|endoftext|>"

/* ---- inputs ---------------------------------------------------------------------------------- */
typedef enum { TEXT_REPAIR, TEXT_REFUSE } text_invalid;

typedef struct text_input_options {
    /* Names of JSON members or Parquet columns. NULL: "text", "id", "url", "source", "license" (or "licence"). A
     * name may be a path such as "metadata.url". */
    const char *text_field, *id_field, *url_field, *source_field, *license_field;
    text_invalid invalid; /* replace invalid UTF-8 by U+FFFD, or drop the document */
    bool strict; /* a record that cannot be read is an error instead of being skipped and counted */
    /* Comma-separated names: keep only these, or all except these. NULL: no restriction. */
    const char *sources, *not_sources, *licenses, *not_licenses;
    const char *format;   /* one of TEXT_FORMATS; NULL: detected from name and content */
    size_t segment_bytes; /* of a plain file; 0: 256 MiB. A compressed file is one segment */
    size_t block_bytes;   /* 0: 1 MiB */
    /* the longest record accepted; 0: 64 MiB. Longer plain text is split there, at a line end; a
     * longer record of another format is skipped and counted as unreadable */
    size_t document_bytes;
    size_t page_bytes; /* the largest page of a Parquet file accepted, decompressed; 0: 1 GiB */
} text_input_options;
/* For messages and help. */
#define TEXT_FORMATS "text, jsonl, json, csv, tsv, html, warc, wet, tar, parquet or arrow"
/* @return whether it is one of them. */
bool text_format_exists(const char *name);

/* Counts of the records that were read, by outcome. */
/* Kinds of records that are neither documents nor damaged: X(id, name). */
#define TEXT_SKIPS(X)                                                                              \
    X(about_crawl, "WARC records about the crawl")                                                 \
    X(revisits, "WARC records of unchanged pages (revisit)")                                       \
    X(other_media, "WARC records that are not HTML or plain text")
#define TEXT_SKIP_ENUM(id, name) TEXT_SKIP_##id,
enum { TEXT_SKIPS(TEXT_SKIP_ENUM) TEXT_SKIP_COUNT };

typedef struct text_counts {
    int64_t documents, bytes; /* documents passed on, and the bytes of their text */
    int64_t repaired;         /* documents with invalid bytes replaced */
    int64_t invalid;          /* documents dropped for invalid bytes */
    int64_t unreadable;       /* records that are not documents: broken JSON, no text, too long */
    int64_t empty;            /* documents without text */
    int64_t lost_bytes;       /* of damaged files, at least: after the damage, and in the record it
                               * interrupts */
    int64_t excluded;         /* dropped by source or license */
    int64_t skipped[TEXT_SKIP_COUNT];
} text_counts;
void text_counts_add(text_counts *to, const text_counts *from);
/* An error if there were records and none could be read. @param who "filter", for the message. */
err text_counts_check(const text_counts *c, const char *who) MUST_USE;

typedef struct text_inputs text_inputs;
/* Lists the inputs: files, folders (every file below them whose name has a known extension),
 * globs, and "-" for standard input. Keeps the order given; files of a folder or glob are sorted
 * by name. */
err text_inputs_open(const char *const *paths, int n, const text_input_options *o,
                     text_inputs **out) MUST_USE;
int text_segments(const text_inputs *in);
const char *text_segment_path(const text_inputs *in, int segment);
int64_t text_segment_bytes(const text_inputs *in,
                           int segment); /* of its file that it covers, about */
int text_inputs_files(const text_inputs *in);
int64_t text_inputs_bytes(const text_inputs *in);         /* on disk; standard input counts as 0 */
int64_t text_inputs_segment_bytes(const text_inputs *in); /* at which plain files are split */
/* Divides the segments into runs, each for one file: about 64 of them, so that as many ranks have work, but of a size for which a
 * file is worth it. Does not depend on the number of ranks.
 * @param first [segments + 1] of each run, then the number of segments. @param bytes [segments + 1] of each run.
 * @return how many runs. */
int text_segments_divide(const text_inputs *in, int *first, int64_t *bytes);
/* Makes documents that do not come from JSON carry their other members too, for a transform that writes or asks for them. */
void text_inputs_keep_members(text_inputs *in);
/* Whether some input can be read only once, by one process: standard input or another pipe. */
bool text_inputs_have_pipe(const text_inputs *in);
/* Hash of names, sizes, content (of long files: samples) and options, which must be the same when a
 * transform is resumed. */
uint64_t text_inputs_hash(const text_inputs *in);
/* *newer: an input that was modified after `path`, a file or an object, and that text_inputs_hash, which reads
 * only samples of long files, may therefore miss; NULL: none. */
err text_inputs_newer(const text_inputs *in, const char *path, const char **newer) MUST_USE;
/* An error if a file or folder to be written is an input, contains one, or is inside an input folder,
 * where the next run would read it. @param path NULL: nothing is written. */
err text_inputs_check_output(const text_inputs *in, const char *path) MUST_USE;
void text_inputs_close(text_inputs *in); /* takes NULL */

/* ---- work over blocks ------------------------------------------------------------------------ */
typedef struct text_block {
    const text_doc *docs;
    int n;
    int segment;
    int64_t raw_bytes; /* of input consumed for this block, for progress */
} text_block;

typedef struct text_pipeline {
    void *ctx;
    size_t result_size; /* bytes of the result that `work` passes to `merge` */
    /* Called on any thread. @param worker in [0, threads). @param result zeroed. */
    err (*work)(void *ctx, int worker, const text_block *b, void *result);
    /* Called in input order, one block at a time. Takes ownership of what `result` owns. */
    err (*merge)(void *ctx, const text_block *b, void *result);
    /* Frees what a result owns, if an error elsewhere means that it is not merged. NULL:
     * nothing. */
    void (*drop)(void *result);
} text_pipeline;

/* @return the number of workers: `threads`, or one per core if it is 0. */
int text_thread_count(int threads);
/* Runs every block of one segment through the pipeline and holds at most `threads` blocks at a
 * time. A segment may be run again unless it comes from a pipe, which is an error.
 * @param counts what was read is added to it. */
err text_pipeline_run(text_inputs *in, int segment, const text_pipeline *f, int threads,
                      text_counts *counts) MUST_USE;

/* ---- work shared by ranks --------------------------------------------------------------------
 * Ranks are processes of one job (comm/) that work on the same inputs and write to the same folder, on a file
 * system that all of them share. A task is a part of the work that does not depend on others, such as a
 * segment; whichever rank runs it, its result is the same. */
struct comm;
typedef struct text_progress text_progress;
typedef struct text_tasks {
    struct comm *comm; /* NULL: this process runs all tasks, in order */
    const char *name;  /* shown with the progress; NULL: none is shown */
    int n;
    const int64_t *bytes; /* [n] of input, about: the ranks get equal shares of them */
    const bool *done;     /* [n] need not run; the same on all ranks. NULL: all have to run */
    void *ctx;
    err (*run)(void *ctx, int task, text_progress *p);
} text_tasks;
/* Runs each task on one of the ranks; those that are through take over what slower ones have not begun. On all ranks
 * together; it returns when all are through, or one has failed: with its error there, and on the others with one that
 * says so (err_is_echo). A single task runs on rank 0. */
err text_tasks_run(const text_tasks *t) MUST_USE;
/* The same with one task per segment of `in`; n and bytes of `t` are not read. */
err text_tasks_run_segments(text_tasks t, const text_inputs *in) MUST_USE;
enum { TEXT_DONE = -1 };
/* Fills the rank that each task is assigned to at first, or TEXT_DONE; the same on all ranks. @param owner [n]. */
void text_tasks_assign(const text_tasks *t, int *owner);
/* Counts input as read. A task calls it for each block, from one thread at a time. @return an error when
 * another rank has failed, and the task is to stop. */
err text_progress_add(text_progress *p, int64_t bytes) MUST_USE;

/* A folder that only this job writes to: "FOLDER/.lock" exists while it does. On all ranks together: rank 0
 * makes and locks the folder, the others check that they see the same one. Below a URL the lock is an object, which
 * shows that the store can be written and is the same on all ranks, but does not keep another job out. */
typedef struct text_lock text_lock;
err text_lock_folder(struct comm *c, const char *folder, text_lock **out) MUST_USE;
void text_unlock_folder(text_lock *l); /* takes NULL */

/* ---- transforms: documents in, documents out ----------------------------------------------------- */
struct text_part;
typedef struct text_verdict {
    int rule;     /* index of the rule that drops the document; TEXT_KEEP: none */
    double value; /* what the rule measured */
    /* text to write, preset to the document's own. May point into memory of the worker that
     * stays valid until its next document */
    text_span text;
    /* members to write onto the document if it is kept, replacing its own of the same names: each as
     * `, "name": value`, in plain ASCII names. Memory as for `text`. Empty: none */
    text_span members;
    int64_t *count; /* [n_counters] counters of the transform, to be incremented */
    int output; /* of a transform with several outputs: the one that gets the document, if it is kept */
} text_verdict;
enum { TEXT_KEEP = -1 };

typedef struct text_transform {
    const char *name;         /* "filter": used in progress, reports and messages */
    const char *const *rules; /* [n_rules] names of the rules that drop documents */
    int n_rules;
    const char *const
        *counters; /* [n_counters] names of other counts, such as "e-mail addresses masked" */
    int n_counters;
    uint64_t hash; /* of every option that changes the result */
    void *ctx;
    err (*judge)(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v);
    /* [n_outputs] names of the folders in the output folder among which kept documents are divided. 0: all go to the
     * output itself */
    const char *const *outputs;
    int n_outputs;
    /* A transform that does not keep the order of the input puts its parts together itself, and has no `judge`. */
    int n_parts;
    const int64_t *part_bytes; /* [n_parts] about, to share them among ranks */
    err (*fill)(void *ctx, int part, struct text_part *to, struct text_progress *p);
} text_transform;
enum { TEXT_OUTPUTS_MAX = 64 };

typedef struct text_transform_options {
    /* A name ending in .jsonl, .jsonl.gz, .jsonl.zst or .parquet: one file, written atomically. Otherwise
     * a folder with state.json and one part-NNNNNN.jsonl.zst (or as `compress` selects) per
     * segment; a rerun keeps the parts that are complete. NULL or "-": standard output. */
    const char *out;
    /* Where dropped documents are written, with "dropped_by" and "value"; NULL: nowhere. Must be
     * a folder if `out` is one, so that a rerun continues both; otherwise a file. */
    const char *dropped;
    const char *compress; /* of parts: "zst" (the default if NULL), "gz", "none", or "parquet" */
    int threads;          /* 0: one per core */
    int64_t
        merge_bytes; /* several segments become a part, until they have this many bytes; 0: each is one */
    bool fresh;        /* discard earlier output and start over */
    bool quiet;        /* no progress */
    struct comm *comm; /* the ranks that share the work, and call this together; NULL: alone */
    const struct json_t *
        given; /* an object of the options as the user gave them, for state.json; NULL: not known */
} text_transform_options;

typedef struct text_transform_report {
    text_counts read;
    int64_t kept, kept_bytes;
    int64_t edited;                   /* kept with an edited text */
    int64_t *dropped, *dropped_bytes; /* [n_rules] */
    int64_t *count;                   /* [n_counters] */
    /* Documents kept and the bytes of their text by source and license, where they have one: objects of [documents,
     * bytes]. Owned; NULL: none. Only in the reports of parts. */
    struct json_t *sources, *licenses;
    double seconds;     /* of this run, without resumed parts */
    int64_t seen_bytes; /* of text read in this run, without resumed parts */
    int resumed_parts;
    int64_t peak_memory; /* of one rank, the largest */
    int ranks;
} text_transform_report;

/* Checks that the output can be written, and that output already there comes from this transform on
 * these inputs. Transforms that read their input twice call it before the first pass. */
err text_transform_check(const text_transform *s, const text_inputs *in,
                         const text_transform_options *o) MUST_USE;
/* With several ranks the output must be a folder, and the report is that of all of them, on each. */
err text_transform_run(const text_transform *s, text_inputs *in, const text_transform_options *o,
                       text_transform_report *out) MUST_USE;
/* A document as it is written, to be kept by a transform that has `fill` until it knows the order. One per thread. */
typedef struct text_packer text_packer;
err text_packer_new(text_inputs *in, const text_transform_options *o, text_packer **out) MUST_USE;
err text_packer_add(text_packer *p, const text_doc *d, str *out) MUST_USE; /* appends */
void text_packer_free(text_packer *p);                                     /* takes NULL */
/* The part that is being filled: what is read for it and kept is counted in its report. */
typedef struct text_part {
    struct transform_run *run;
    text_transform_report *report;
} text_part;
/* Appends documents that were packed. */
err text_part_write(text_part *to, const text_span *packed, size_t n) MUST_USE;

/* Prints the table of what was read, dropped by each rule and kept, and the peak memory. */
void text_transform_print(const text_transform *s, const text_transform_report *r, FILE *to);
/* The same as one JSON object. @return owned (json_decref). */
struct json_t *text_transform_json(const text_transform *s, const text_transform_report *r);
void text_transform_report_free(text_transform_report *r);

#define CARD_NAME "card.yaml"
/* @return whether transforms write files of this name to an output folder, so that nothing else may have it. */
bool text_output_has_name(const char *name);
/* Writes card.yaml, which records how a folder was made, for a folder that is not one of documents.
 * @param options as in text_transform_options. @param sections an object of objects, each of names and numbers or strings. */
err text_card_write(const char *folder, const char *transform, const struct json_t *options,
                    const text_inputs *in, const struct json_t *sections) MUST_USE;

/* ---- UTF-8 and Unicode -----------------------------------------------------------------------
 * Classes of code points come from a table generated at build time from utf8proc. */
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
/* @return bytes at the end that begin a character whose other bytes are missing: 0 to 3. */
size_t utf8_unfinished(const char *text, size_t n);
/* @return code points in valid UTF-8. */
int64_t utf8_length(const char *text, size_t n);

#endif
