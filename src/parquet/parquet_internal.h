/* Internals of parquet/.
 *
 *     thrift.c      the metadata's wire format, by tables
 *     footer.c      schema, row groups and column chunks; what is refused
 *     cursor.c      the pages of a column chunk, as they are in the file
 *     page.c        checksum, decompression, levels: a page becomes values
 *     encodings.c   PLAIN, dictionary, RLE, the delta encodings, BYTE_STREAM_SPLIT
 *     codec.c       codecs; snappy.c the one that is decoded here
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

struct parquet_file {
    parquet_source source;
    parquet_limits limits;
    arena *memory;
    leaf *leaves;
    int n_leaves;
    row_group *groups;
    int n_groups;
    int64_t data_end; /* where the metadata begins */
};
const column_chunk *file_chunk(const parquet_file *f, int group, int column);
/* An error about a place in a column. @param offset < 0: of the whole chunk. */
err column_error(const parquet_file *f, int group, int column, int64_t offset,
                 const char *why) MUST_USE;

/* ---- pages ----------------------------------------------------------------------------------- */
typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } page_type;
struct parquet_page {
    int32_t type, plain_bytes, raw_bytes;
    thrift_number crc;
    int32_t n_values, n_nulls, encoding, level_encoding;
    int32_t definition_bytes, repetition_bytes; /* v2 */
    bool compressed;                            /* v2 */
    int64_t offset;                             /* of the header in the file */
    size_t at;                                  /* of its bytes in parquet_pages.raw */
    char *composed; /* owned: strings that the page shares between values */
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

/* What a page's values are decoded from. */
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
/* Decompresses into exactly `size` bytes. */
const char *codec_decompress(int32_t codec, const void *from, size_t n, void *to, size_t size);
/* @return the codec's name; *supported: whether it can be read. */
const char *codec_name(int32_t codec, bool *supported);
enum { CODEC_NONE = 0 };
const char *snappy_decompress(const void *from, size_t n, void *to, size_t size);
/* Decompresses a dictionary page and decodes its values. */
const char *dictionary_decode(const parquet_file *f, int group, int column, const parquet_page *h,
                              const char *raw, parquet_dictionary **out);

static inline uint32_t load_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#endif
