/* text, inside: how bytes on disk become blocks of documents.
 *
 *     stream    the unpacked bytes of one input            stream.c
 *     reader    cuts them into raw blocks of whole records reader.c
 *     format    where records end; records to documents    format_*.c, jsonscan.c
 *     flow      workers: cut, parse, work, merge in order  flow.c
 *     stage     a flow that writes what is kept            stage.c, sink.c, report.c
 */
#ifndef INGOT_TEXT_INTERNAL_H
#define INGOT_TEXT_INTERNAL_H

#include "text/text.h"

static inline text_span span_of(const char *s) {
    size_t n = 0;
    while (s && s[n]) n++;
    return (text_span){ s, n };
}
bool span_is(text_span s, const char *word);
/* Ignores the case of ASCII letters. */
bool span_is_nocase(text_span s, const char *word);
/* Without spaces, tabs and line ends at either end. */
text_span span_trim(text_span s);

/* ---- stream --------------------------------------------------------------------------------- */
typedef enum { PACK_NONE, PACK_GZIP, PACK_ZSTD, PACK_SNIFF } text_packing;
/* By the first bytes of a file. */
text_packing packing_of(const char *head, size_t n);

typedef struct stream stream;
/* Opens a file ("-": standard input). @param from, to the bytes of a plain file; to < 0: its end.
 * @param path borrowed. */
err stream_open(const char *path, text_packing packing, int64_t from, int64_t to,
                stream **out) MUST_USE;
/* Unpacks n bytes; *got is smaller at the end only. Bytes that cannot be unpacked end the stream
 * and are told by stream_damage; only the system's errors are errors here. */
err stream_read(stream *s, char *to, size_t n, size_t *got) MUST_USE;
/* @return bytes of the file used so far. */
int64_t stream_taken(const stream *s);
/* @return why and where the stream ended early; NULL: it did not. */
const char *stream_damage(const stream *s);
void stream_close(stream *s); /* takes NULL */

/* ---- strings that stay where they are until all are forgotten --------------------------------- */
typedef struct spool_piece spool_piece;
typedef struct spool {
    spool_piece *head; /* the newest */
} spool;
/* @return room for n bytes, of which the next spool_take keeps the first so many. */
char *spool_room(spool *s, size_t n);
text_span spool_take(spool *s, size_t used);
text_span spool_copy(spool *s, const char *text, size_t n);
void spool_reset(spool *s); /* keeps one piece for the next strings */
void spool_free(spool *s);

/* ---- records that cannot be read --------------------------------------------------------------- */
typedef struct bad_records {
    int64_t n;
    int64_t offset; /* of the first, in the unpacked bytes */
    char why[160];  /* about the first */
} bad_records;
void bad_add(bad_records *b, int64_t offset, const char *fmt, ...) PRINTF_LIKE(3, 4);
void bad_merge(bad_records *to, const bad_records *from); /* `from` comes later in the input */

/* ---- blocks, raw and parsed --------------------------------------------------------------------- */
typedef struct raw_block {
    str bytes;         /* whole records */
    int64_t offset;    /* of the first byte, in the unpacked bytes of the file */
    int64_t raw_bytes; /* of the file, used for it */
    bad_records bad;   /* too long to be kept */
    char *damage;      /* owned; why the file ends here, before its end */
} raw_block;

typedef struct text_format text_format;
/* Makes documents of one worker's blocks, one after another. */
typedef struct parser {
    const text_inputs *in;
    const text_format *format;
    text_span path, source; /* of the input: names and default source of documents */
    text_doc *docs;         /* of the block; point into it and into `strings` */
    int n, capacity;
    spool strings;
    str scratch, body;
    text_counts counts;
    bad_records bad;
} parser;
void parser_open(parser *p, const text_inputs *in, int segment, const text_format *format);
/* Makes the documents of a block; those of the one before are forgotten. */
void parser_run(parser *p, const raw_block *b);
void parser_free(parser *p);
/* @return whether a record of n bytes, its end included, is short enough; if not it is counted. */
bool parser_fits(parser *p, size_t n, int64_t offset);
/* Hands a document on unless it is empty or excluded. @param repaired its text was. */
void parser_add(parser *p, const text_doc *d, bool repaired);
/* Makes text valid UTF-8 as the options say. @return false when the document is refused; counted.
 * *repaired becomes true when bytes were replaced. */
bool parser_valid(parser *p, text_span *text, bool *repaired);
/* @return the text with the line breaks of DOS as plain ones. */
text_span parser_breaks(parser *p, text_span text);

/* ---- formats ------------------------------------------------------------------------------------ */
struct text_format {
    const char *name;
    /* @return the bytes up to the end of the last record that is whole; 0: none is. */
    size_t (*last_end)(const char *p, size_t n);
    /* The same for the end that comes first, seen from within a record.
     * @param line_start p is the first byte of a line. */
    size_t (*first_end)(const char *p, size_t n, bool line_start);
    /* Bytes of the record at p, from its head. NULL or @return 0: only first_end can tell. */
    uint64_t (*length)(const char *p, size_t n);
    void (*parse)(parser *p, const raw_block *b);
    /* Where to cut a record whose first n bytes are already too long; NULL: it is passed over. */
    size_t (*cut)(const char *p, size_t n);
    size_t overhead;  /* bytes of a record beside its document, about */
    size_t look_back; /* bytes before a record that show that it begins; 0: cannot be cut */
    bool tails;       /* a record that damage cut short is a document still */
};
extern const text_format format_text, format_jsonl, format_warc;
/* The longest record read, its end included. */
size_t format_longest(const text_format *f, const text_inputs *in);
/* By --format; NULL when there is none of that name. */
const text_format *format_named(const char *name);
/* By a file's name, its packing's ending left out; NULL when it does not say. */
const text_format *format_of_name(const char *path, text_packing *packing);
/* By the first bytes. */
const text_format *format_of_content(const char *head, size_t n);

/* Where the document separator stands: a whole line, with its end. *begin is the text's end before
 * it. @return bytes up to the end of the line, 0 when there is none. */
size_t text_separator(const char *p, size_t n, bool line_start, size_t *begin);

/* ---- HTTP --------------------------------------------------------------------------------------- */
/* The value of a header line; empty when there is none. @param head lines, the first left out. */
text_span header_value(text_span head, const char *name);
/* @return bytes of the head at p, with the empty line that ends it; 0: it does not end. */
size_t header_end(const char *p, size_t n);
typedef struct http_body {
    text_span bytes;   /* decoded; into the message or `made` */
    const char *wrong; /* why it cannot be used; NULL: it can */
    text_span type;    /* "text/html" */
    char charset[32];  /* "" when not given */
} http_body;
/* Takes a response apart. A body that is no text has an empty type.
 * @param most bytes of a body that is unpacked. @param made holds what was decoded. */
http_body http_parse(text_span message, size_t most, str *made);
/* Splits "text/html; charset=x". */
void http_media(text_span value, http_body *out);

/* ---- JSON --------------------------------------------------------------------------------------- */
typedef struct json_member {
    size_t at, end; /* in the line; a string's quotes included */
    enum { JSON_ABSENT, JSON_PLAIN, JSON_ESCAPED, JSON_SCALAR } kind; /* a string or a number */
} json_member;
/* A dotted path of members, and which result takes its value. */
typedef struct json_want {
    const char *path;
    int result;
} json_want;
/* Checks that the line is one JSON object in valid UTF-8 and finds the wanted members; of members
 * of the same name the last counts. @param out zeroed. *odd: an escape stands for no character
 * (half a surrogate pair, NUL). @return NULL, or why the line is no such object. */
const char *json_scan(const char *line, size_t n, const json_want *wants, int n_wants,
                      json_member *out, bool *odd);
/* Unescapes the inside of a checked JSON string. @param to room for n + 8 bytes. @return bytes. */
size_t json_unescape(const char *p, size_t n, char *to);
/* Writes \ufffd over each escape that stands for no character. */
void json_patch(char *line, size_t n);
/* @return bytes before the first quote, backslash or control character. */
size_t json_plain_run(const char *p, size_t n);

/* ---- inputs -------------------------------------------------------------------------------------- */
typedef struct input_file {
    const char *path;  /* arena */
    const char *given; /* arena: the input that led to it, a default source */
    int64_t size;      /* on disk; 0 for a pipe */
    text_packing packing;
    const text_format *format; /* NULL: a pipe, whose content will tell */
    bool pipe, used;           /* a pipe can be read once */
} input_file;
typedef struct input_segment {
    int file;
    int64_t from, to; /* where its records begin; `to` < 0: to the end */
} input_segment;
struct text_inputs {
    arena *memory;
    text_input_options o; /* complete; strings in the arena */
    json_want wants[6];
    int n_wants;
    input_file *files;
    int n_files, files_cap;
    input_segment *segments;
    int n_segments, segments_cap;
    int64_t bytes;
    bool pipes;      /* some input can be read once only */
    int passed_over; /* files of a folder, while it is listed */
};
/* What json_member results mean. */
enum { FIELD_TEXT, FIELD_ID, FIELD_URL, FIELD_SOURCE, FIELD_LICENCE, FIELDS };
/* Whether `word` is one of the comma-separated names. */
bool names_have(const char *names, text_span word);

/* ---- reader -------------------------------------------------------------------------------------- */
typedef struct reader {
    const text_inputs *in;
    const text_format *format;
    stream *from;
    int64_t offset; /* of the next byte from the stream */
    str carry;      /* read, and of the next block */
    bool at_end, done;
} reader;
err reader_open(reader *r, const text_inputs *in, int segment) MUST_USE;
/* Cuts the next block. *more is false when there is none. @param b reused from block to block. */
err reader_cut(reader *r, raw_block *b, bool *more) MUST_USE;
void reader_close(reader *r);
/* The bytes a segment of a plain file covers: records that begin in its range. */
err segment_range(const text_inputs *in, int segment, int64_t *from, int64_t *to) MUST_USE;
/* @return about how many bytes of its file a segment is. */
int64_t segment_bytes(const text_inputs *in, int segment);

/* ---- packing --------------------------------------------------------------------------------------- */
typedef struct packer packer;
packer *packer_new(text_packing packing);
/* Replaces the text by itself packed, as a member or frame of its own. */
void packer_run(packer *p, str *text);
void packer_free(packer *p); /* takes NULL */

/* ---- sinks: where documents go ---------------------------------------------------------------------- */
typedef struct sink {
    enum { SINK_NOWHERE, SINK_STDOUT, SINK_FILE, SINK_FOLDER } kind;
    const char *path; /* borrowed */
    text_packing packing;
    struct io_writer *writer;
    bool wrote;
} sink;
/* @param compress of parts in a folder. */
err sink_init(sink *s, const char *path, const char *compress) MUST_USE;
char *sink_part_path(const sink *s, int segment); /* owned */
err sink_begin(sink *s, int segment) MUST_USE;
err sink_write(sink *s, const void *bytes, size_t n) MUST_USE;
err sink_end(sink *s) MUST_USE;    /* of a segment: a part is whole */
err sink_finish(sink *s) MUST_USE; /* of all: a file is whole */
void sink_abort(sink *s);          /* what is not whole is removed */

/* ---- reports ------------------------------------------------------------------------------------------ */
void report_init(text_stage_report *r, const text_stage *s);
void report_add(text_stage_report *to, const text_stage_report *from, const text_stage *s);
err report_save(const text_stage_report *r, const text_stage *s, const char *path) MUST_USE;
err report_load(const char *path, const text_stage *s, text_stage_report *r) MUST_USE;

/* ---- a folder of parts --------------------------------------------------------------------------------- */
/* One part a segment, each with a report that is written last: where that is, the part is whole.
 * state.json says of what the parts are. */
typedef struct parts {
    const text_stage *stage;
    const text_inputs *in;
    const sink *out, *dropped;
} parts;
/* Makes the folders, or finds in them what may be continued. */
err parts_open(const parts *p, bool fresh) MUST_USE;
/* @return whether a segment's part is whole; *r is then its report. */
err parts_find(const parts *p, int segment, bool *whole, text_stage_report *r) MUST_USE;
err parts_add(const parts *p, int segment, const text_stage_report *r) MUST_USE;
err parts_close(const parts *p) MUST_USE; /* all are there */

/* ---- progress ------------------------------------------------------------------------------------------ */
typedef struct text_progress {
    const char *name; /* NULL: quiet */
    bool live, drawn; /* on a terminal: one line, rewritten */
    double began, shown;
    int64_t total, done, skipped; /* bytes of the input; skipped: done before */
} text_progress;
void text_progress_init(text_progress *p, const char *name, int64_t total);
void text_progress_add(text_progress *p, int64_t bytes);
void text_progress_end(text_progress *p);

#endif
