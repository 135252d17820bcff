/* parquet: reads columns of Parquet files, the format of most published corpora, and writes tables
 * of strings. Arrow files (Feather version 2) and streams are read through the same functions; there, a
 * record batch is a row group. Depends on util, zlib (gzip and checksums) and zstd; Snappy is decoded here.
 *
 *     file -> row groups -> one column chunk per column -> pages of a megabyte or so
 *
 * Reading has two steps, so that decoding can run in parallel. A cursor reads the pages of one column
 * of one row group as they are, in order; parquet_decode, on any thread, makes values of them. In
 * columns that do not repeat, which are the only ones read, a value is a row.
 *
 * Given `parquet_source source`:
 *
 *     parquet_file *f = NULL;
 *     TRY(parquet_open(&source, &(parquet_limits){ 0 }, NULL, &f));
 *     int text = parquet_find_column(f, "text");
 *     parquet_cursor *c = NULL;
 *     parquet_pages pages = { 0 };
 *     TRY(parquet_cursor_open(f, 0, text, &c));          // row group 0
 *     for (bool more = true; more;) {
 *         TRY(parquet_cursor_next(c, 1 << 20, &pages, &more));
 *         if (more) TRY(parquet_decode(&pages));         // pages.values[0 .. pages.rows)
 *     }
 *
 * Nothing in a file is trusted: every length is checked against what contains it, and memory is
 * bounded by parquet_limits. */
#ifndef INGOT_PARQUET_H
#define INGOT_PARQUET_H

#include "util/util.h"

/* ---- files ----------------------------------------------------------------------------------- */
/* Where the bytes come from. */
typedef struct parquet_source {
    const char *name; /* for messages; borrowed for the life of the file */
    int64_t size;
    void *ctx;
    /* Reads exactly n bytes at an offset. Offset and n are within the size. */
    err (*read)(void *ctx, int64_t offset, void *to, size_t n);
} parquet_source;

typedef struct parquet_limits {
    size_t page_bytes; /* the largest page accepted, decompressed; 0: 1 GiB */
} parquet_limits;

/* Types of a column's values. */
typedef enum {
    PARQUET_OTHER, /* decimals, times of day, INT96, UUID, ...: not read */
    PARQUET_BOOL,
    PARQUET_INTEGER,
    PARQUET_UNSIGNED,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_DATE, /* days since 1970-01-01 */
    PARQUET_MILLIS,
    PARQUET_MICROS,
    PARQUET_NANOS,  /* these three: since 1970-01-01T00:00:00Z */
    PARQUET_STRING, /* marked as UTF-8 */
    PARQUET_JSON,   /* the same, marked as JSON */
    PARQUET_BYTES,  /* the same without the mark */
} parquet_kind;
/* @return "string"; for messages. */
const char *parquet_kind_name(parquet_kind k);

typedef struct parquet_column {
    const char *name; /* names from the root, joined by dots */
    parquet_kind kind;
    bool repeated; /* a list, or in one: not read */
} parquet_column;

typedef struct parquet_file parquet_file;
/* @return whether a file that begins with these bytes is one for parquet_open. */
bool parquet_has_magic(const void *head, size_t n);
/* Reads the metadata at the end of a Parquet file, or of all messages of an Arrow file or stream.
 * @param damaged set if this or parquet_check_column fails because the file is truncated or changed; it must outlive the
 * file. NULL: not needed. */
err parquet_open(const parquet_source *s, const parquet_limits *l, bool *damaged,
                 parquet_file **out) MUST_USE;
void parquet_close(parquet_file *f); /* takes NULL */
int parquet_columns(const parquet_file *f);
const parquet_column *parquet_column_at(const parquet_file *f, int column);
/* @return the column of that name; -1: there is none. */
int parquet_find_column(const parquet_file *f, const char *name);
int parquet_groups(const parquet_file *f);
int64_t parquet_group_rows(const parquet_file *f, int group);
/* @return bytes in the file. */
int64_t parquet_group_bytes(const parquet_file *f, int group);
/* An error if a column uses something that is not supported: a codec, an encoding, encryption. */
err parquet_check_column(const parquet_file *f, int column) MUST_USE;

/* ---- pages and values ------------------------------------------------------------------------ */
/* 16 bytes. `at` is NULL where the value is missing; otherwise it begins `length` bytes (kinds
 * STRING and BYTES), or points anywhere. */
typedef struct parquet_value {
    const char *at;
    union {
        size_t length;
        int64_t integer; /* BOOL, INTEGER, UNSIGNED, DATE, times */
        double real;     /* FLOAT, DOUBLE */
    };
} parquet_value;

#define PARQUET_LOST SIZE_MAX
/* @return whether the value was in a page that cannot be read. */
static inline bool parquet_is_lost(const parquet_value *v) {
    return !v->at && v->length == PARQUET_LOST;
}

typedef struct parquet_dictionary parquet_dictionary;
typedef struct parquet_page parquet_page;
/* Consecutive pages of a column. Zero-initialize; reused from call to call. */
typedef struct parquet_pages {
    int64_t first_row, rows; /* of the row group */
    int64_t offset;          /* of the first page in the file */
    parquet_value *values;   /* [rows], after parquet_decode; they point into what follows */
    const parquet_file *file;
    int group, column;
    parquet_page *page; /* [n] */
    int n, capacity;
    str raw;                        /* their bytes as in the file */
    parquet_dictionary *dictionary; /* shared with other pages */
    size_t values_capacity;
    str plain; /* decompressed */
} parquet_pages;
void parquet_pages_clear(parquet_pages *p); /* no pages and rows; memory is kept */
void parquet_pages_free(parquet_pages *p);

typedef struct parquet_cursor parquet_cursor;
err parquet_cursor_open(const parquet_file *f, int group, int column,
                        parquet_cursor **out) MUST_USE;
/* Reads whole pages until they hold `bytes` bytes, decompressed; *more is false at the end. */
err parquet_cursor_next(parquet_cursor *c, size_t bytes, parquet_pages *out, bool *more) MUST_USE;
void parquet_cursor_close(parquet_cursor *c); /* takes NULL */
/* Checks, decompresses and decodes. May run on any thread. @return the first error, if a page cannot be
 * read: its values are PARQUET_LOST, which parquet_is_lost detects, and those of other pages are there. */
err parquet_decode(parquet_pages *p) MUST_USE;

/* ---- writing --------------------------------------------------------------------------------- */
typedef struct parquet_target {
    const parquet_column *columns; /* borrowed; kinds STRING and JSON */
    int n_columns;
    void *ctx;
    err (*write)(void *ctx, const void *bytes, size_t n); /* appends to the file */
} parquet_target;
/* Collects rows on one thread. */
typedef struct parquet_rows parquet_rows;
parquet_rows *parquet_rows_new(int n_columns);
void parquet_rows_free(parquet_rows *r); /* takes NULL */
/* @param row a value per column; `at` NULL: none. Copied. */
void parquet_rows_add(parquet_rows *r, const parquet_value *row);
/* Appends the rows collected so far in the form that parquet_writer_add takes, and forgets them. */
err parquet_rows_pack(parquet_rows *r, str *out) MUST_USE;

typedef struct parquet_writer parquet_writer;
/* @param to borrowed until the writer is freed. */
err parquet_writer_open(const parquet_target *to, parquet_writer **out) MUST_USE;
/* Adds packed rows; writes a row group when there are 64 MiB of them. */
err parquet_writer_add(parquet_writer *w, const char *packed, size_t n) MUST_USE;
err parquet_writer_finish(parquet_writer *w) MUST_USE; /* writes what is left, and the metadata */
void parquet_writer_free(parquet_writer *w);           /* takes NULL */

#endif
