/* Where documents are written: rows (doc_rows.c, annotate.c), sinks (sink.c), folders of parts (output_parts.c). */
#ifndef INGOT_TEXT_OUTPUT_INTERNAL_H
#define INGOT_TEXT_OUTPUT_INTERNAL_H

#include "io/io.h"
#include "parquet/parquet.h"
#include "store/vfs.h"
#include "text/text.h"
#include "text/byte_reader_internal.h"

enum { DOC_COLUMNS = 6, DOC_COLUMNS_DROPPED = 8 }; /* of kept and of dropped documents */
extern const parquet_column doc_columns[DOC_COLUMNS_DROPPED];
/* @param dropped_by NULL: kept. @param scratch reused. */
void doc_add_row(const text_inputs *in, const text_doc *d, text_span text, const char *dropped_by,
                 double value, str *scratch, parquet_rows *rows);
/* The document with the members of a verdict, as text_verdict describes them; it is the same if there are
 * none. @param scratch what it borrows, until the next call. */
text_doc doc_annotate(const text_doc *d, text_span members, str scratch[2]);
typedef struct compressor compressor;
compressor *compressor_new(text_compression compression);
/* Replaces the text by its compressed form, a complete gzip member or zstd frame. */
void compressor_run(compressor *p, str *text);
void compressor_free(compressor *p); /* takes NULL */

typedef struct sink {
    enum { SINK_NOWHERE, SINK_STDOUT, SINK_FILE, SINK_FOLDER } kind;
    const char *path; /* borrowed */
    text_compression compression;
    struct vfs_writer *writer;
    bool wrote;
    parquet_target target; /* of a Parquet file */
    parquet_writer *table;
} sink;
/* @param compress method for the parts of a folder. */
err sink_init(sink *s, const char *path, const char *compress) MUST_USE;
/* Yields the path of a part, and REPORT_IN below that of its report, until the end of the block. */
#define PART_IN(s, segment) sink_part_path((char[IO_PATH_BYTES]){ 0 }, s, segment)
char *sink_part_path(char to[IO_PATH_BYTES], const sink *s, int segment);
err sink_begin_part(sink *s, int segment) MUST_USE;
err sink_write(sink *s, const void *bytes, size_t n) MUST_USE;
err sink_end_part(sink *s) MUST_USE; /* the part is complete */
err sink_finish(sink *s) MUST_USE;   /* the whole output is complete */
void sink_abort(sink *s);            /* removes incomplete files */

/* Parts, one per segment in most transforms, each with a report that is written after it: where the report exists,
 * the part is complete. state.json records the transform and the inputs. */
typedef struct parts {
    const text_transform *transform;
    const text_inputs *in;
    const char *folder; /* of state.json and the reports */
    const sink *out;    /* [n_out] */
    int n_out;
    const sink *dropped;
    int n;                      /* parts; -1: not known yet */
    struct vfs *files;          /* borrowed, of one thread */
    const struct json_t *given; /* the options of the transform; NULL: not known */
} parts;
/* Creates the folders and checks that what they hold may be continued, or with `fresh` discarded.
 * Changes nothing in them. */
err parts_check(const parts *p, bool fresh) MUST_USE;
/* The same; then discards what is to be discarded, and begins. */
err parts_open(const parts *p, bool fresh) MUST_USE;
/* Checks a folder that a transform has written against its state.json, before it is read as input: the
 * transform has finished, and all of its parts are there in their full size. @param v as in vfs.h. */
err parts_verify(struct vfs *v, const char *folder, const char *state) MUST_USE;
/* The folders as a transform finds them when it begins. */
typedef struct parts_found {
    vfs_listing reports, out[TEXT_OUTPUTS_MAX], dropped;
} parts_found;
err parts_look(const parts *p, parts_found *out) MUST_USE;
void parts_found_free(parts_found *f);
/* *whole: whether the segment's part is complete; *r is then its report. */
err parts_find(const parts *p, const parts_found *f, int segment, bool *whole,
               text_transform_report *r) MUST_USE;
err parts_add(const parts *p, int segment, const text_transform_report *r) MUST_USE;
/* The inputs with sizes and hashes, and the files that were skipped in folders, as lists. @return owned. */
struct json_t *text_inputs_json(const text_inputs *in);
struct json_t *text_inputs_skipped_json(const text_inputs *in);
/* The text of card.yaml, for people: how the folder was made. @param out owned. */
err card_text(const parts *p, str *out) MUST_USE;
#define REPORT_IN(p, part) parts_report_path((char[IO_PATH_BYTES]){ 0 }, p, part)
char *parts_report_path(char to[IO_PATH_BYTES], const parts *p, int part);
/* All parts are complete. */
err parts_close(const parts *p) MUST_USE;

#endif
