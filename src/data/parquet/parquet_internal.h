/* Internals of parquet/.
 *
 *     thrift.c      the metadata's wire format, by tables
 *     footer.c      schema, row groups and column chunks; what is refused
 *     cursor.c      the pages of a column chunk, as they are in the file
 *     data_page.c        checksum, decompression, levels: a page becomes values
 *     encodings.c   PLAIN, dictionary, RLE, the delta encodings, BYTE_STREAM_SPLIT
 *     codec.c       codecs; snappy.c, lz4.c those that are decoded here
 *     flatbuffer.c  the wire format of Arrow's metadata
 *     arrow.c       Arrow files and streams: schema and record batches
 *     arrow_rows.c  the buffers of a record batch become values
 *
 * Below err, functions that read bytes of the file return NULL, or why they cannot be read: a static
 * text, to which the caller adds the place. */
#ifndef INGOT_PARQUET_INTERNAL_H
#define INGOT_PARQUET_INTERNAL_H

#include <stdatomic.h>

#include "parquet/parquet.h"

/* ---- thrift ---------------------------------------------------------------------------------- */
typedef struct thrift_reader {
    const uint8_t *p, *end;
    arena *memory; /* for texts and lists */
    size_t budget; /* bytes of it that may still be used */
    int depth;
    const char *wrong; /* the first fault; NULL: none */
    bool truncated;    /* the fault is that the bytes ended */
} thrift_reader;
typedef enum {
    THRIFT_BOOL,    /* bool */
    THRIFT_I32,     /* int32_t */
    THRIFT_I64,     /* int64_t */
    THRIFT_NUMBER,  /* thrift_number, from an i32 that may be absent */
    THRIFT_TEXT,    /* const char *, NUL-terminated */
    THRIFT_STRUCT,  /* inline, by its layout */
    THRIFT_LIST,    /* thrift_list of structs */
    THRIFT_NUMBERS, /* uint64_t: list of i32 as a set of bits; 63 stands for all others */
    THRIFT_IS_SET,  /* bool: the field is there */
} thrift_kind;
typedef struct thrift_layout thrift_layout;
typedef struct thrift_member {
    int id;
    thrift_kind kind;
    size_t offset;
    const thrift_layout *layout;
} thrift_member;
struct thrift_layout {
    size_t size; /* of the struct */
    const thrift_member *members;
    int n;
};
typedef struct thrift_number {
    int32_t value;
    bool is_set;
} thrift_number;
typedef struct thrift_list {
    void *items;
    int64_t n;
} thrift_list;
/* Reads a struct into *out, whose other members stay as they are. @return false: see t->wrong. */
bool thrift_read(thrift_reader *t, const thrift_layout *l, void *out);

/* ---- the footer ------------------------------------------------------------------------------ */
typedef enum {
    PHYSICAL_BOOL,
    PHYSICAL_INT32,
    PHYSICAL_INT64,
    PHYSICAL_INT96,
    PHYSICAL_FLOAT,
    PHYSICAL_DOUBLE,
    PHYSICAL_BYTES,
    PHYSICAL_FIXED,
    PHYSICAL_TYPES
} physical_type;

/* A column in a row group, as the metadata states it. */
typedef struct column_chunk {
    const char *file_path; /* of another file; NULL: this one */
    bool encrypted;
    int32_t type, codec;
    uint64_t encodings; /* bit i: encoding i is used */
    int64_t n_values, bytes, data_offset, dictionary_offset;
} column_chunk;

typedef struct leaf {
    parquet_column public;
    physical_type type;
    int32_t max_definition; /* definition level of a value that is there */
} leaf;

typedef struct row_group {
    thrift_list chunks; /* of column_chunk, one per leaf */
    int64_t n_rows, bytes;
} row_group;

typedef struct arrow_file arrow_file;
struct parquet_file {
    parquet_source source;
    parquet_limits limits;
    arena *memory;
    leaf *leaves;
    int n_leaves;
    row_group *groups;
    int n_groups;
    int64_t data_end;  /* where the metadata begins */
    arrow_file *arrow; /* NULL: it is a Parquet file */
    bool *damaged;     /* the caller's; NULL: not needed */
};
const column_chunk *file_chunk(const parquet_file *f, int group, int column);
/* @return an error about a place in a column. @param offset < 0: of the whole chunk. */
err column_error(const parquet_file *f, int group, int column, int64_t offset,
                 const char *why) MUST_USE;

/* ---- pages ----------------------------------------------------------------------------------- */
typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } page_type;
typedef struct arrow_page arrow_page;
struct parquet_page {
    int32_t type, plain_bytes, raw_bytes;
    thrift_number crc;
    int32_t n_values, n_nulls, encoding, level_encoding;
    int32_t definition_bytes, repetition_bytes; /* v2 */
    bool compressed;                            /* v2 */
    int64_t offset;                             /* of the header in the file */
    size_t at;                                  /* of its bytes in parquet_pages.raw */
    char *composed;    /* owned: strings that the page shares between values */
    arrow_page *arrow; /* owned; NULL: it is a page of a Parquet file */
};
extern const thrift_layout page_layout;

struct parquet_dictionary {
    atomic_int refs;
    parquet_value *values;
    size_t n;
    char *bytes; /* that the values point into */
    char *composed;
};
parquet_dictionary *dictionary_hold(parquet_dictionary *d); /* takes NULL, @return d */
void dictionary_release(parquet_dictionary *d);             /* takes NULL */

/* The buffers that a page's values are decoded from. */
typedef struct value_input {
    const uint8_t *p, *end;
    physical_type type;
    parquet_kind kind;
    const parquet_dictionary *dictionary; /* NULL: none */
    size_t most_bytes;                    /* that `composed` may have */
    char **composed;                      /* owned by the caller */
} value_input;
/* Decodes n values. */
const char *decode_values(int32_t encoding, value_input *in, parquet_value *out, size_t n);
/* @return whether the encoding, as its number, is known. */
bool encoding_known(int encoding);
/* Decodes n numbers of `width` bits from runs and packed groups. */
const char *decode_runs(const uint8_t *p, size_t bytes, int width, uint32_t *out, size_t n);
/* Codecs by their numbers, which are not the same in both formats. */
typedef enum { CODECS_PARQUET, CODECS_ARROW } codec_set;
enum { CODEC_NONE = 0 }; /* of Parquet */
/* Decompresses into exactly `size` bytes. */
const char *codec_decompress(codec_set set, int32_t number, const void *from, size_t n, void *to,
                             size_t size);
/* @return the codec's name; *supported: whether it can be read. */
const char *codec_name(codec_set set, int32_t number, bool *supported);
/* Appends the names of those that can be read. */
void codec_names(codec_set set, str *out);
const char *snappy_decompress(const void *from, size_t n, void *to, size_t size);
const char *lz4_block_decompress(const void *from, size_t n, void *to, size_t size);
const char *lz4_frame_decompress(const void *from, size_t n, void *to, size_t size);
/* Decompresses a dictionary page and decodes its values.
 * @param raw its bytes as in the file; owned by *out afterwards, or freed */
const char *dictionary_decode(const parquet_file *f, int group, int column, const parquet_page *h,
                              char *raw, parquet_dictionary **out);
/* Like str_reserve, for pages: an empty buffer that has to grow is not copied, since a page of text often has
 * megabytes. */
void buffer_reserve(str *s, size_t more);

static inline uint32_t load_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
/* @return a little-endian number of 1, 2, 4 or 8 bytes. */
static inline int64_t load_signed(const uint8_t *p, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    int unused = 64 - 8 * (int)bytes;
    return (int64_t)(v << unused) >> unused;
}

/* ---- flatbuffers ----------------------------------------------------------------------------- */
typedef struct flatbuffer {
    const uint8_t *bytes;
    size_t n;
    bool damaged; /* something pointed outside of it */
} flatbuffer;
/* A table; one that is not there has no slots, so that its members are not there either. */
typedef struct flat_table {
    flatbuffer *in;
    size_t at; /* 0: it is not there */
    const uint8_t *vtable;
    size_t slots;
} flat_table;
typedef struct flat_vector {
    flatbuffer *in;
    size_t at, n;
} flat_vector;
flat_table flat_root(flatbuffer *b);
int64_t flat_number(const flat_table *t, int id, size_t bytes, int64_t otherwise);
flat_table flat_child(const flat_table *t, int id);
/* @return a vector of structs or numbers of `item_bytes` bytes; of tables: of 4. */
flat_vector flat_items(const flat_table *t, int id, size_t item_bytes);
/* @return item i < n of a vector of tables. */
flat_table flat_item(const flat_vector *v, size_t i);
/* @return a copy in the arena, "" if it is not there. */
const char *flat_text(const flat_table *t, int id, arena *memory);

/* ---- Arrow ----------------------------------------------------------------------------------- */
/* How a column's values are laid out in its buffers. */
typedef enum {
    LAYOUT_OTHER, /* not read */
    LAYOUT_FIXED, /* validity, values of `width` bits; also the indices of a dictionary */
    LAYOUT_BYTES, /* validity, offsets of `width` bits, bytes */
    LAYOUT_VIEWS, /* validity, views of 16 bytes, any number of buffers with bytes */
} arrow_layout;

/* A node of the schema, in depth-first order. */
typedef struct arrow_field {
    const char *path; /* arena; NULL: the root */
    int parent;       /* -1: none */
    bool is_leaf, repeated;
    bool hidden; /* in a union or the like: not read */
    arrow_layout layout;
    parquet_kind kind;
    int width;
    bool is_unsigned;
    int64_t multiply, divide; /* of integers, to the kind's unit; 0: not needed */
    int first_buffer;         /* without the buffers of views before it */
    int views_before;         /* fields with views, in front of it */
    bool has_dictionary; /* it is of indices; the members below are of the dictionary's values */
    int64_t dictionary;
    arrow_layout value_layout;
    int value_width;
} arrow_field;

/* A record batch, or a dictionary. */
typedef struct arrow_batch {
    const uint8_t *metadata; /* arena; a message */
    size_t metadata_bytes;
    int64_t body, body_bytes; /* in the file */
    int64_t rows;
    bool is_dictionary, is_delta;
    int64_t dictionary;      /* its number */
    int dictionaries_before; /* in the file */
} arrow_batch;

struct arrow_file {
    arrow_field *fields;
    int n_fields, n_buffers, n_views; /* buffers: without those of views */
    int *field_of_leaf;
    arrow_batch *batches, *dictionaries;
    int n_batches, n_dictionaries;
    int batches_capacity, dictionaries_capacity;
    int version;           /* of the metadata */
    size_t metadata_bytes; /* of all messages */
};
/* @return whether a file that begins with these bytes is an Arrow file or stream. */
bool arrow_has_magic(const void *head, size_t n, bool *is_stream);
err arrow_read_metadata(parquet_file *f, bool is_stream) MUST_USE;
void arrow_free(arrow_file *a); /* takes NULL */
err arrow_check_column(const parquet_file *f, int column) MUST_USE;
/* The table of a record batch. `in` is set, and borrowed by it. */
flat_table arrow_batch_table(const arrow_batch *b, flatbuffer *in);
typedef struct arrow_batch_layout {
    flat_vector nodes;    /* per field: i64 rows, i64 missing values */
    flat_vector buffers;  /* i64 offset in the body, i64 bytes */
    flat_vector variadic; /* per field with views: i64 number of its buffers with bytes */
    bool compressed;
    int codec, method;
} arrow_batch_layout;
const char *arrow_batch_parts(const flat_table *t, arrow_batch_layout *out);

/* Whether a page exceeds the limit, and why: not damage, but a matter of memory, so it has a remedy. */
bool parquet_is_too_large(const parquet_file *f, size_t bytes, char *why, size_t n);
#define PARQUET_TOO_LARGE "raise --memory or --longest, or rewrite the file with smaller "

typedef struct arrow_cursor arrow_cursor;
err arrow_cursor_open(const parquet_file *f, int group, int column, arrow_cursor **out) MUST_USE;
void arrow_cursor_close(arrow_cursor *c); /* takes NULL */
/* Reads the next rows into one page. */
err arrow_cursor_next(arrow_cursor *c, int64_t row, size_t bytes, parquet_pages *out) MUST_USE;
err arrow_decode(parquet_pages *p) MUST_USE;
void reserve_values(parquet_pages *p);

#endif
