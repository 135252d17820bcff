/* Internals of text/: how bytes on disk become blocks of documents.
 *
 *     byte_reader    decompressed bytes of one input            byte_reader.c, decompress.h
 *     block_reader   splits them into blocks of whole records   block_reader.c
 *     text_format    where records end; records to documents    format_*.c, json_scan.c
 *                    (Parquet: rows instead of bytes            format_parquet.c)
 *     pipeline       workers: read, parse, work, merge in order pipeline.c
 *     stage          a pipeline that writes what is kept        stage.c, sink.c, output_parts.c, stage_report.c
 *     tasks          segments shared among the ranks of a job   stage_tasks.c, output_lock.c, stage_progress.c
 */
#ifndef INGOT_TEXT_INTERNAL_H
#define INGOT_TEXT_INTERNAL_H

#include <stdatomic.h>
#include <time.h>

#include "parquet/parquet.h"
#include "text/text.h"

static inline text_span text_span_of(const char *s) {
    size_t n = 0;
    while (s && s[n]) n++;
    return (text_span){ s, n };
}
bool span_is(text_span s, const char *word);
/* Ignores the case of ASCII letters. */
bool span_is_nocase(text_span s, const char *word);
/* @return the span without white space at either end. */
text_span span_trim(text_span s);

/* ---- byte_reader ----------------------------------------------------------------------------- */
typedef enum { /* state.json has these numbers */
               COMPRESSION_NONE,
               COMPRESSION_GZIP,
               COMPRESSION_ZSTD,
               COMPRESSION_DETECT,
               COMPRESSION_PARQUET, /* of outputs: not JSON lines, and compressed inside */
               COMPRESSION_BZIP2,   /* this one and those after it: of inputs only */
               COMPRESSION_XZ,
               COMPRESSION_LZ4,
               COMPRESSION_BROTLI,
} text_compression;
/* Detects the compression from the first bytes of a file. */
text_compression compression_of_bytes(const char *head, size_t n);
/* ... or from its name. *bare: length of the name without the ending of the compression. */
text_compression compression_of_name(const char *name, size_t *bare);

/* An error if the first bytes of an input are of a known format that is not text.
 * @param head after decompression, or before it to recognize other compressions. */
err refuse_known_binary(const char *path, const char *head, size_t n) MUST_USE;
/* The same, and if they look like any other data that is not text. @param head decompressed. */
err refuse_binary(const char *path, const char *head, size_t n) MUST_USE;
/* An error if they are text in another encoding than UTF-8, of which little would remain. */
err refuse_other_encoding(const char *path, const char *head, size_t n) MUST_USE;

typedef struct byte_reader byte_reader;
/* Opens a file ("-": standard input; "s3://...": an object). @param from, to byte range of a plain file; to < 0: up to
 * its end. @param path borrowed. */
err byte_reader_open(const char *path, text_compression compression, int64_t from, int64_t to,
                     byte_reader **out) MUST_USE;
/* Decompresses up to n bytes; *got is smaller only at the end. Bytes that cannot be decompressed
 * end the input and are reported by byte_reader_damage; only errors of the system are returned. */
err byte_reader_read(byte_reader *s, char *to, size_t n, size_t *got) MUST_USE;
/* @return bytes of the file consumed so far. */
int64_t byte_reader_consumed(const byte_reader *s);
/* @return why and where the input ended early; NULL: it did not. */
const char *byte_reader_damage(const byte_reader *s);
/* Makes the reader pass on only frames whose checksums are right, up to where the file ends; a frame that is damaged
 * ends the input. @param again the file can be read twice; else a long damaged frame is an error. */
void byte_reader_check_frames(byte_reader *s, bool again);
/* @return bytes of a damaged file that were not passed on: of the file, or of the text if more are known. */
int64_t byte_reader_lost(const byte_reader *s, int64_t file_bytes);
void byte_reader_close(byte_reader *s); /* takes NULL */

/* ---- object_reader: an object of a store, for byte_reader and Parquet ------------------------- */
typedef struct object_reader object_reader;
/* @param url borrowed. @param to < 0: up to its end. */
err object_reader_open(const char *url, int64_t from, int64_t to, object_reader **out) MUST_USE;
/* Reads up to n bytes; *got is smaller only at the end. */
err object_reader_read(object_reader *r, char *to, size_t n, size_t *got) MUST_USE;
/* Reads exactly n bytes at an offset. */
err object_reader_read_at(object_reader *r, int64_t offset, void *to, size_t n) MUST_USE;
void object_reader_close(object_reader *r); /* takes NULL */

/* ---- hub: datasets that were downloaded from the Hugging Face hub ----------------------------- */
bool hub_is_url(const char *path); /* hf://... */
/* *path: what an hf:// URL names in the local cache; owned (free). */
err hub_resolve(const char *url, char **path) MUST_USE;
/* @return the snapshot of "main", if the folder is a repository in the layout of the cache; owned. NULL: it is not. */
char *hub_snapshot(const char *folder);

/* ---- spool: strings with stable addresses, all freed together -------------------------------- */
typedef struct spool_piece spool_piece;
typedef struct spool {
    spool_piece *head; /* the newest */
} spool;
/* Reserves n bytes; the next spool_commit keeps the first `used` of them. */
char *spool_reserve(spool *s, size_t n);
text_span spool_commit(spool *s, size_t used);
text_span spool_copy(spool *s, const char *text, size_t n);
void spool_reset(spool *s); /* keeps one piece for reuse */
void spool_free(spool *s);

/* ---- records that cannot be read ------------------------------------------------------------- */
typedef struct bad_records {
    int64_t n;
    int64_t offset; /* of the first one, in the decompressed bytes */
    char why[160];  /* reason for the first one */
} bad_records;
void bad_records_add(bad_records *b, int64_t offset, const char *fmt, ...) PRINTF_LIKE(3, 4);
void bad_records_merge(bad_records *to,
                       const bad_records *from); /* `from` comes after `to` in the input */

/* ---- blocks, raw and parsed ------------------------------------------------------------------ */
typedef struct row_block row_block;
typedef struct raw_block {
    str bytes;          /* whole records */
    row_block *rows;    /* owned: of a Parquet file, instead of bytes; NULL: none */
    text_span head;     /* borrowed: the file's header, in formats that have one */
    int64_t offset;     /* of the first byte, in the decompressed bytes of the file */
    int64_t raw_bytes;  /* of the file consumed for it */
    bad_records bad;    /* records skipped because they are too long */
    char *damage;       /* owned; why the file ends early here; NULL: it does not */
    int64_t lost_bytes; /* with damage: of the file after it, and of the record it interrupts */
} raw_block;
void raw_block_free(raw_block *b);
void row_block_free(row_block *b); /* takes NULL */

typedef struct text_format text_format;
/* Parses the blocks of one worker into documents. */
typedef struct parser {
    const text_inputs *in;
    const text_format *format;
    text_span path, source; /* name and default source for documents of this input */
    text_doc *docs;         /* of the current block; they point into it and into `strings` */
    int n, capacity;
    spool strings;
    str scratch, body;
    text_counts counts;
    bad_records bad;
} parser;
void parser_init(parser *p, const text_inputs *in, int segment, const text_format *format);
/* Parses a block; the documents of the previous one become invalid. */
void parser_parse(parser *p, const raw_block *b);
void parser_free(parser *p);
/* @return whether a record of n bytes, its end included, is short enough; otherwise it is
 * counted as bad. */
bool parser_check_length(parser *p, size_t n, int64_t offset);
/* Adds a document unless it is empty or excluded. @param repaired whether its text was. */
void parser_add_document(parser *p, const text_doc *d, bool repaired);
/* @return whether the text is valid UTF-8 without NUL, which counts as invalid in every format. */
bool is_clean_utf8(const char *text, size_t n);
/* Makes text valid UTF-8 without NUL, as the options require; *repaired becomes true if bytes were
 * replaced.
 * @return false if the document is refused, which is counted. */
bool parser_check_utf8(parser *p, text_span *text, bool *repaired);
/* @return the text with each CR LF replaced by LF. */
text_span parser_normalize_breaks(parser *p, text_span text);

/* ---- formats --------------------------------------------------------------------------------- */
typedef struct input_file input_file;
typedef struct input_segment input_segment;
typedef struct block_reader block_reader;
/* Of a format whose records do not follow one another in the file. */
typedef struct format_reader {
    err (*add_segments)(text_inputs *in, const input_file *f);
    err (*open)(block_reader *r, const input_file *f, const input_segment *s);
    err (*next)(block_reader *r, raw_block *b, bool *more);
    void (*close)(block_reader *r);
} format_reader;
struct text_format {
    const char *name;
    const format_reader *reader; /* NULL: bytes are split into blocks by what follows */
    /* @return bytes up to the end of the last complete record; 0: there is none. */
    size_t (*last_record_end)(const char *p, size_t n);
    /* @return bytes up to the first end of a record, starting inside one. @param line_start p is
     * the first byte of a line. */
    size_t (*first_record_end)(const char *p, size_t n, bool line_start);
    /* @return bytes of the record at p as its header states; 0, or NULL as function: unknown. */
    uint64_t (*length)(const char *p, size_t n);
    /* @return bytes of the header at the beginning of a file; 0: it does not end. NULL: there is none. */
    size_t (*head_length)(const char *p, size_t n);
    void (*parse)(parser *p, const raw_block *b);
    /* @return where to split a record whose first n bytes are already too long; NULL: such a
     * record is skipped. */
    size_t (*split_at)(const char *p, size_t n);
    size_t overhead; /* upper bound of the bytes of a record outside its document */
    /* bytes before a record needed to recognize its start; 0: the format cannot be split */
    size_t look_back;
    bool keeps_tail; /* a record truncated by damage is still a document */
    bool decodes;    /* its records state their own encodings */
};
extern const text_format format_text, format_jsonl, format_json_array, format_csv, format_tsv,
    format_csv_semicolon, format_csv_bar, format_tar, format_html, format_warc, format_parquet;
/* Adds the document of one JSON object without line breaks. @param valid its bytes are known to be UTF-8. */
void json_parse_object(parser *p, text_span line, int64_t offset, bool valid);
/* @return whether every document has a member of this name, from a field: "text", "id"... */
bool doc_has_member(text_span name);
/* @return the longest record accepted, its end included. */
size_t format_longest_record(const text_format *f, const text_inputs *in);
/* Looks up a format by its --format name. @return NULL if there is none. */
const text_format *format_by_name(const char *name);
/* Looks up a format by the extension of a path, after removing that of the compression. @return
 * NULL if it is not a known one. */
const text_format *format_of_path(const char *path, text_compression *compression);
/* Detects the format from the first bytes. */
const text_format *format_of_content(const char *head, size_t n);
/* @return the format of content that was declared to be of format `f`: JSON may be an array, and fields of CSV may be
 * separated by something else. @param text_field name of the member that holds the text. */
const text_format *format_refine(const text_format *f, const char *head, size_t n,
                                 const char *text_field);
/* The part of it that is about CSV: a separator that the header does not have, or by which it has no column of the
 * text, gives way to one by which it has. */
const text_format *csv_refine(const text_format *f, const char *head, size_t n,
                              const char *text_field);

/* @return whether the first bytes of a file are the header of a tar archive. */
bool tar_has_magic(const char *head, size_t n);

/* Finds the document separator: a whole line, with its end. *begin is the end of the text before
 * it. @return bytes up to the end of that line; 0 if there is none. */
size_t find_separator_line(const char *p, size_t n, bool line_start, size_t *begin);

/* ---- HTTP ------------------------------------------------------------------------------------ */
/* @return the value of a header line; empty if there is none. @param head lines, of which the
 * first is skipped. */
text_span header_value(text_span head, const char *name);
/* @return bytes of the header at p, including the empty line that ends it; 0: it does not end. */
size_t header_length(const char *p, size_t n);
typedef struct http_body {
    text_span bytes;   /* decoded; into the message or `made` */
    const char *wrong; /* why it cannot be used; NULL if it can */
    text_span type;    /* "text/html" */
    char charset[32];  /* "" when not given */
} http_body;
/* Parses a response. A body that is not text has an empty type. @param most limit on the bytes
 * of a decompressed body. @param made storage for what was decoded. */
http_body http_parse(text_span message, size_t most, str *made);
/* Splits "text/html; charset=x". */
void http_split_media_type(text_span value, http_body *out);

/* ---- JSON ------------------------------------------------------------------------------------ */
typedef struct json_member {
    size_t at, end; /* in the line; a string's quotes included */
    enum { JSON_ABSENT, JSON_PLAIN, JSON_ESCAPED, JSON_SCALAR } kind; /* a string or a number */
} json_member;
/* A dotted path of member names, and the index of the result that receives its value. */
typedef struct json_want {
    const char *path;
    int result;
} json_want;
/* Checks that the line is one JSON object in valid UTF-8 and finds the wanted members; among
 * members of the same name the last one counts. @param out zeroed. *odd: some escape stands for
 * no character (half a surrogate pair, or NUL). @return NULL, or why the line is not such an
 * object. */
const char *json_scan(const char *line, size_t n, const json_want *wants, int n_wants,
                      json_member *out, bool *odd);
/* Unescapes the inside of a checked JSON string. @param to capacity of at least n + 8 bytes.
 * @return bytes written. */
size_t json_unescape(const char *p, size_t n, char *to);
/* Overwrites each escape that stands for no character with \ufffd. */
void json_replace_odd_escapes(char *line, size_t n);
/* Appends the members of a checked object that are not wanted, each as `, "name": value`. */
void json_add_others(const char *line, size_t n, const json_want *wants, int n_wants, str *out);
/* @return bytes before the first quote, backslash or control character. */
size_t json_plain_length(const char *p, size_t n);

/* ---- inputs ---------------------------------------------------------------------------------- */
struct input_file {
    const char *path;  /* arena */
    const char *given; /* arena: the input as the user named it, the default source */
    int64_t size;      /* on disk; 0 for a pipe */
    uint64_t content;  /* hash of its content, or of samples of it if `sampled` */
    bool sampled;
    struct timespec modified;
    text_compression compression;
    const text_format *format; /* NULL: a pipe, detected from its content when read */
    const char *damage;        /* arena: why nothing of it can be read; NULL: something can */
    bool pipe, used;           /* a pipe can be read only once */
};
struct input_segment {
    int file;
    /* bytes in which its records begin, [from, to); to < 0: up to the end of the file. Of a Parquet
     * file: row groups */
    int64_t from, to;
    int64_t bytes; /* of the file that it covers, about */
    bool
        warned; /* what cannot be read of it was reported: passes after the first do not repeat that */
};
struct text_inputs {
    arena *memory;
    text_input_options o; /* with defaults filled in; strings in the arena */
    json_want wants[6];
    int n_wants;
    input_file *files;
    int n_files, files_cap;
    char **folders; /* arena: input folders, resolved */
    int n_folders, folders_cap;
    input_segment *segments;
    int n_segments, segments_cap;
    int64_t bytes;
    bool pipes;      /* some input can be read only once */
    bool text_named; /* the user chose the member that holds the text */
    /* Documents that do not come from JSON carry their other members too: they will be written. */
    bool all_members;
    const char *left_out;      /* arena: columns of a file that are left out of them; NULL: none */
    const char *left_out_from; /* that file */
    int n_skipped;             /* files skipped in the folder being listed */
};
/* Indices of json_member results. */
enum { FIELD_TEXT, FIELD_ID, FIELD_URL, FIELD_SOURCE, FIELD_LICENSE, FIELDS };
/* Notes that nothing of the file that was listed last can be read: it is skipped and counted. @param why without the
 * file's name. @return an error instead, if damage is one. */
err inputs_skip_file(text_inputs *in, const char *why) MUST_USE;
/* Adds a segment of the file that was listed last. */
void inputs_add_segment(text_inputs *in, int64_t from, int64_t to, int64_t bytes);
/* @return whether `word` is one of the comma-separated names. */
bool name_list_has(const char *names, text_span word);

/* ---- reader ---------------------------------------------------------------------------------- */
typedef struct row_reader row_reader;
struct block_reader {
    const text_inputs *in;
    const text_format *format;
    byte_reader *from;
    int64_t offset; /* of the next byte to be read */
    str head;       /* the file's header, in formats that have one */
    str carry;      /* bytes read that belong to the next block */
    bool at_end, done;
    const char *damage; /* borrowed: why nothing of the file can be read; NULL: something can */
    int64_t file_bytes; /* 0 for a pipe */
    row_reader *rows;   /* of a Parquet file; NULL: none */
};
err block_reader_open(block_reader *r, const text_inputs *in, int segment) MUST_USE;
/* Reads the next block. *more is false at the end. @param b reused from block to block. */
err block_reader_next(block_reader *r, raw_block *b, bool *more) MUST_USE;
void block_reader_close(block_reader *r);
/* The byte range of a segment of a plain file: records that begin in it. */
err segment_range(const text_inputs *in, int segment, int64_t *from, int64_t *to) MUST_USE;

/* ---- documents as rows ----------------------------------------------------------------------- */
enum { DOC_COLUMNS = 6, DOC_COLUMNS_DROPPED = 8 }; /* of kept and of dropped documents */
extern const parquet_column doc_columns[DOC_COLUMNS_DROPPED];
/* @param dropped_by NULL: kept. @param scratch reused. */
void doc_add_row(const text_inputs *in, const text_doc *d, text_span text, const char *dropped_by,
                 double value, str *scratch, parquet_rows *rows);

/* The document with the members of a verdict, as text_verdict describes them; it is the same if there are
 * none. @param scratch what it borrows, until the next call. */
text_doc doc_annotate(const text_doc *d, text_span members, str scratch[2]);

/* ---- compression ----------------------------------------------------------------------------- */
typedef struct compressor compressor;
compressor *compressor_new(text_compression compression);
/* Replaces the text by its compressed form, a complete gzip member or zstd frame. */
void compressor_run(compressor *p, str *text);
void compressor_free(compressor *p); /* takes NULL */

/* ---- sinks: where documents are written ------------------------------------------------------ */
typedef struct sink {
    enum { SINK_NOWHERE, SINK_STDOUT, SINK_FILE, SINK_FOLDER } kind;
    const char *path; /* borrowed */
    text_compression compression;
    struct io_writer *writer;
    bool wrote;
    parquet_target target; /* of a Parquet file */
    parquet_writer *table;
} sink;
/* @param compress method for the parts of a folder. */
err sink_init(sink *s, const char *path, const char *compress) MUST_USE;
char *sink_part_path(const sink *s, int segment); /* owned */
err sink_begin_part(sink *s, int segment) MUST_USE;
err sink_write(sink *s, const void *bytes, size_t n) MUST_USE;
err sink_end_part(sink *s) MUST_USE; /* the part is complete */
err sink_finish(sink *s) MUST_USE;   /* the whole output is complete */
void sink_abort(sink *s);            /* removes incomplete files */

/* ---- reports --------------------------------------------------------------------------------- */
void report_init(text_stage_report *r, const text_stage *s);
void report_add(text_stage_report *to, const text_stage_report *from, const text_stage *s);
/* @param part_bytes size of the part it belongs to. */
err report_save(const text_stage_report *r, const text_stage *s, int64_t part_bytes,
                const char *path) MUST_USE;
err report_load(const char *path, const text_stage *s, text_stage_report *r,
                int64_t *part_bytes) MUST_USE;
/* Adds up the reports of all ranks. */
err report_total(text_stage_report *r, const text_stage *s, struct comm *c) MUST_USE;

/* ---- a folder of parts ----------------------------------------------------------------------- */
/* Parts, one per segment in most stages, each with a report that is written after it: where the report exists,
 * the part is complete. state.json records the stage and the inputs. */
typedef struct parts {
    const text_stage *stage;
    const text_inputs *in;
    const char *folder; /* of state.json and the reports */
    const sink *out;    /* [n_out] */
    int n_out;
    const sink *dropped;
    int n; /* parts; -1: not known yet */
} parts;
/* Creates the folders and checks that what they hold may be continued, or with `fresh` discarded.
 * Changes nothing in them. */
err parts_check(const parts *p, bool fresh) MUST_USE;
/* The same; then discards what is to be discarded, and begins. */
err parts_open(const parts *p, bool fresh) MUST_USE;
/* Checks a folder that a stage has written against its state.json, before it is read as input: the
 * stage has finished, and all of its parts are there in their full size. */
err parts_verify(const char *folder, const char *state) MUST_USE;
/* *whole: whether the segment's part is complete; *r is then its report. */
err parts_find(const parts *p, int segment, bool *whole, text_stage_report *r) MUST_USE;
err parts_add(const parts *p, int segment, const text_stage_report *r) MUST_USE;
/* @return bytes of a part in all outputs, or -1 if it is missing in one. */
int64_t parts_size(const parts *p, int part);
/* All parts are complete. */
err parts_close(const parts *p) MUST_USE;

/* ---- progress -------------------------------------------------------------------------------- */
struct text_progress {
    const char *name; /* NULL: no progress */
    bool live, drawn; /* on a terminal, one line is rewritten */
    double began, shown;
    int64_t total, skipped; /* bytes of input; skipped: completed by an earlier run */
    _Atomic int64_t done;   /* of this rank */
    struct comm *comm;      /* with several ranks the heartbeat shows the sum (stage_tasks.c) */
    atomic_bool stop;       /* another rank has failed */
};
void text_progress_init(text_progress *p, const char *name, int64_t total);
/* Shows that `done` bytes are done, unless that was shown a moment ago. */
void text_progress_show(text_progress *p, int64_t done);
void text_progress_end(text_progress *p);
/* An error that says so; err_is_echo. */
err text_other_rank_failed(const struct comm *c) MUST_USE;

#endif
