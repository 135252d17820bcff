/* Formats: where records end, and how a block of records becomes documents (parser.c, format_*.c). */
#ifndef INGOT_TEXT_PARSER_INTERNAL_H
#define INGOT_TEXT_PARSER_INTERNAL_H

#include "text/text.h"
#include "text/byte_reader_internal.h"
#include "text/span_internal.h"

typedef struct row_block row_block;
typedef struct raw_block {
    str bytes;          /* whole records */
    row_block *rows;    /* owned: of a Parquet file, instead of bytes; NULL: none */
    text_span head;     /* borrowed: the file's header, in formats that have one */
    int64_t offset;     /* of the first byte, in the decompressed bytes of the file */
    int64_t raw_bytes;  /* of the file consumed for it */
    bool last;          /* it ends with its file, which is not damaged */
    bad_records bad;    /* records skipped because they are too long */
    char *damage;       /* owned; why the file ends early here; NULL: it does not */
    int64_t lost_bytes; /* with damage: of the file after it, and of the record it interrupts */
} raw_block;
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
/* first_record_end of lines. After a CSV line that is too long, the next one may be in the middle of a field: it is then bad. */
size_t first_line_end(const char *p, size_t n, bool line_start);
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
/* Indices of json_member results. */
enum { FIELD_TEXT, FIELD_ID, FIELD_URL, FIELD_SOURCE, FIELD_LICENSE, FIELDS };

#endif
