/* Writes tables of optional strings: PLAIN, zstd, checksums, data pages of version 1.
 *
 *     workers    rows -> parquet_rows_pack: one page per column, compressed, as one string
 *     in order   parquet_writer_add: pages collect per column, and become a row group when there are enough
 *
 * A row group is one column after the other, so the pages of a group wait in memory, compressed. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "parquet/parquet_internal.h"

enum { CODEC_ZSTD = 6, ZSTD_LEVEL = 3, PLAIN = 0, RLE = 3 };
static const int64_t GROUP_BYTES = (int64_t)64 << 20;

/* ---- thrift ---------------------------------------------------------------------------------- */
enum { FIELD_I32 = 5, FIELD_I64 = 6, FIELD_TEXT = 8, FIELD_LIST = 9, FIELD_STRUCT = 12 };

static void put_byte(str *s, int byte) { str_add_bytes(s, &(char){ (char)byte }, 1); }

static void thrift_put_varint(str *s, uint64_t v) {
    for (; v >= 128; v >>= 7) put_byte(s, (int)(v & 127) | 128);
    put_byte(s, (int)v);
}

/* @param last id of the field before; 0: the first. Ids grow by at most 15 here. */
static void put_field(str *s, int *last, int id, int wire) {
    put_byte(s, (id - *last) << 4 | wire);
    *last = id;
}

static void put_zigzag(str *s, int64_t v) {
    thrift_put_varint(s, (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0));
}

static void put_number(str *s, int *last, int id, int wire, int64_t v) {
    put_field(s, last, id, wire);
    put_zigzag(s, v);
}

static void put_string(str *s, const char *text) {
    thrift_put_varint(s, strlen(text));
    str_add_bytes(s, text, strlen(text));
}

static void put_list(str *s, int *last, int id, int wire, size_t n) {
    put_field(s, last, id, FIELD_LIST);
    put_byte(s, (n < 15 ? (int)n : 15) << 4 | wire);
    if (n >= 15) thrift_put_varint(s, n);
}

static void put_stop(str *s) { put_byte(s, 0); }

/* ---- rows ------------------------------------------------------------------------------------ */
struct parquet_rows {
    int n_columns;
    int64_t n;
    str *values, *present; /* [n_columns]: PLAIN strings; a byte per row */
    str plain, page;
    ZSTD_CCtx *zstd;
};

parquet_rows *parquet_rows_new(int n_columns) {
    parquet_rows *r = mem_alloc(sizeof *r);
    r->n_columns = n_columns;
    r->values = mem_alloc((size_t)n_columns * sizeof *r->values);
    r->present = mem_alloc((size_t)n_columns * sizeof *r->present);
    r->zstd = ZSTD_createCCtx();
    return r;
}

void parquet_rows_free(parquet_rows *r) {
    if (!r) return;
    for (int i = 0; i < r->n_columns; i++) {
        str_free(&r->values[i]);
        str_free(&r->present[i]);
    }
    free(r->values);
    free(r->present);
    str_free(&r->plain);
    str_free(&r->page);
    ZSTD_freeCCtx(r->zstd);
    free(r);
}

static void put_u32(str *s, uint32_t v) {
    for (int i = 0; i < 4; i++) put_byte(s, (int)(v >> 8 * i & 255));
}

void parquet_rows_add(parquet_rows *r, const parquet_value *row) {
    for (int i = 0; i < r->n_columns; i++) {
        put_byte(&r->present[i], row[i].at != NULL);
        if (!row[i].at) continue;
        BUG_IF(row[i].length > INT32_MAX);
        put_u32(&r->values[i], (uint32_t)row[i].length);
        str_add_bytes(&r->values[i], row[i].at, row[i].length);
    }
    r->n++;
}

/* Definition levels as runs of equal ones, with their length before them. */
static void put_levels(const str *present, str *out) {
    size_t at = out->len;
    put_u32(out, 0);
    for (size_t i = 0, end; i < present->len; i = end) {
        for (end = i; end < present->len && present->text[end] == present->text[i];) end++;
        thrift_put_varint(out, (uint64_t)(end - i) << 1);
        put_byte(out, present->text[i]);
    }
    uint32_t n = (uint32_t)(out->len - at - 4);
    for (int i = 0; i < 4; i++) out->text[at + (size_t)i] = (char)(n >> 8 * i & 255);
}

static void put_page_header(str *out, int64_t rows, size_t plain, const str *page) {
    int last = 0, inner = 0;
    uint32_t sum = (uint32_t)crc32(0, (const unsigned char *)page->text, (uInt)page->len);
    put_number(out, &last, 1, FIELD_I32, PAGE_DATA);
    put_number(out, &last, 2, FIELD_I32, (int64_t)plain);
    put_number(out, &last, 3, FIELD_I32, (int64_t)page->len);
    put_number(out, &last, 4, FIELD_I32, (int32_t)sum);
    put_field(out, &last, 5, FIELD_STRUCT);
    put_number(out, &inner, 1, FIELD_I32, rows);
    put_number(out, &inner, 2, FIELD_I32, PLAIN);
    put_number(out, &inner, 3, FIELD_I32, RLE);
    put_number(out, &inner, 4, FIELD_I32, RLE);
    put_stop(out);
    put_stop(out);
}

/* Bytes before the pages of packed rows, once, and for each column. */
typedef struct packed_head {
    int64_t rows;
} packed_head;
typedef struct packed_column {
    int64_t bytes, plain_bytes; /* of the page with its header; of the same before compression */
} packed_column;

static err pack_column(parquet_rows *r, int column, str *out) {
    str *levels = &r->plain;
    levels->len = 0;
    put_levels(&r->present[column], levels);
    str_add_bytes(levels, r->values[column].text ? r->values[column].text : "",
                  r->values[column].len);
    if (levels->len > INT32_MAX)
        return err_hint(ERR("a page of %zu bytes is too large for Parquet", levels->len),
                        "lower --longest");
    r->page.len = 0;
    str_reserve(&r->page, ZSTD_compressBound(levels->len));
    size_t n = ZSTD_compressCCtx(r->zstd, r->page.text, r->page.cap, levels->text, levels->len,
                                 ZSTD_LEVEL);
    BUG_IF(ZSTD_isError(n));
    r->page.len = n;
    size_t before = out->len;
    packed_column c = { 0 };
    str_add_bytes(out, &c, sizeof c);
    put_page_header(out, r->n, levels->len, &r->page);
    size_t header = out->len - before - sizeof c;
    str_add_bytes(out, r->page.text, r->page.len);
    c = (packed_column){ (int64_t)(header + n), (int64_t)(header + levels->len) };
    memcpy(out->text + before, &c, sizeof c);
    return OK;
}

err parquet_rows_pack(parquet_rows *r, str *out) {
    packed_head h = { r->n };
    err e = OK;
    if (r->n == 0) return OK;
    str_add_bytes(out, &h, sizeof h);
    for (int i = 0; i < r->n_columns && !e; i++) e = pack_column(r, i, out);
    for (int i = 0; i < r->n_columns; i++) r->values[i].len = r->present[i].len = 0;
    r->n = 0;
    return e;
}

/* ---- the file -------------------------------------------------------------------------------- */
typedef struct written_chunk {
    int64_t offset, bytes, plain_bytes;
} written_chunk;
typedef struct written_group {
    int64_t rows;
    written_chunk *chunks; /* [n_columns] */
} written_group;
struct parquet_writer {
    const parquet_target *to;
    int64_t offset;
    int64_t rows, plain_bytes; /* of the row group under way */
    str *pages;                /* [n_columns] */
    int64_t *plain;            /* [n_columns] */
    written_group *groups;
    int n_groups, groups_capacity;
};

static err write_bytes(parquet_writer *w, const void *bytes, size_t n) {
    TRY(w->to->write(w->to->ctx, bytes, n));
    w->offset += (int64_t)n;
    return OK;
}

err parquet_writer_open(const parquet_target *to, parquet_writer **out) {
    parquet_writer *w = mem_alloc(sizeof *w);
    w->to = to;
    w->pages = mem_alloc((size_t)to->n_columns * sizeof *w->pages);
    w->plain = mem_alloc((size_t)to->n_columns * sizeof *w->plain);
    err e = write_bytes(w, "PAR1", 4);
    if (e) {
        parquet_writer_free(w);
        return e;
    }
    *out = w;
    return OK;
}

static err write_row_group(parquet_writer *w) {
    if (w->rows == 0) return OK;
    written_group *g = &LIST_ADD(w->groups, w->n_groups, w->groups_capacity);
    *g = (written_group){ w->rows, mem_alloc((size_t)w->to->n_columns * sizeof *g->chunks) };
    for (int i = 0; i < w->to->n_columns; i++) {
        g->chunks[i] = (written_chunk){ w->offset, (int64_t)w->pages[i].len, w->plain[i] };
        TRY(write_bytes(w, w->pages[i].text, w->pages[i].len));
        w->pages[i].len = 0;
        w->plain[i] = 0;
    }
    w->rows = w->plain_bytes = 0;
    return OK;
}

err parquet_writer_add(parquet_writer *w, const char *packed, size_t n) {
    packed_head h;
    if (n == 0) return OK;
    BUG_IF(n < sizeof h);
    memcpy(&h, packed, sizeof h);
    size_t at = sizeof h;
    for (int i = 0; i < w->to->n_columns; i++) {
        packed_column c;
        BUG_IF(n - at < sizeof c);
        memcpy(&c, packed + at, sizeof c);
        at += sizeof c;
        BUG_IF(n - at < (size_t)c.bytes);
        str_add_bytes(&w->pages[i], packed + at, (size_t)c.bytes);
        at += (size_t)c.bytes;
        w->plain[i] += c.plain_bytes;
        w->plain_bytes += c.plain_bytes;
    }
    w->rows += h.rows;
    return w->plain_bytes >= GROUP_BYTES ? write_row_group(w) : OK;
}

static void put_schema(const parquet_writer *w, str *s) {
    enum { UTF8 = 0, JSON = 19, STRING_TYPE = 1, JSON_TYPE = 12, OPTIONAL = 1 };
    int last = 0;
    put_field(s, &last, 4, FIELD_TEXT);
    put_string(s, "schema");
    put_number(s, &last, 5, FIELD_I32, w->to->n_columns);
    put_stop(s);
    for (int i = 0; i < w->to->n_columns; i++) {
        const parquet_column *c = &w->to->columns[i];
        bool json = c->kind == PARQUET_JSON;
        int at = 0, inner = 0;
        put_number(s, &at, 1, FIELD_I32, PHYSICAL_BYTES);
        put_number(s, &at, 3, FIELD_I32, OPTIONAL);
        put_field(s, &at, 4, FIELD_TEXT);
        put_string(s, c->name);
        put_number(s, &at, 6, FIELD_I32, json ? JSON : UTF8);
        put_field(s, &at, 10, FIELD_STRUCT);
        put_field(s, &inner, json ? JSON_TYPE : STRING_TYPE, FIELD_STRUCT);
        put_stop(s); /* the type has no members */
        put_stop(s);
        put_stop(s);
    }
}

static void put_chunk(const parquet_writer *w, const written_group *g, int column, str *s) {
    const written_chunk *k = &g->chunks[column];
    int last = 0, at = 0;
    put_number(s, &last, 2, FIELD_I64, k->offset);
    put_field(s, &last, 3, FIELD_STRUCT);
    put_number(s, &at, 1, FIELD_I32, PHYSICAL_BYTES);
    put_list(s, &at, 2, FIELD_I32, 2);
    put_zigzag(s, PLAIN);
    put_zigzag(s, RLE);
    put_list(s, &at, 3, FIELD_TEXT, 1);
    put_string(s, w->to->columns[column].name);
    put_number(s, &at, 4, FIELD_I32, CODEC_ZSTD);
    put_number(s, &at, 5, FIELD_I64, g->rows);
    put_number(s, &at, 6, FIELD_I64, k->plain_bytes);
    put_number(s, &at, 7, FIELD_I64, k->bytes);
    put_number(s, &at, 9, FIELD_I64, k->offset);
    put_stop(s);
    put_stop(s);
}

static void put_group(const parquet_writer *w, const written_group *g, str *s) {
    int last = 0;
    int64_t plain = 0;
    put_list(s, &last, 1, FIELD_STRUCT, (size_t)w->to->n_columns);
    for (int i = 0; i < w->to->n_columns; i++) {
        put_chunk(w, g, i, s);
        plain += g->chunks[i].plain_bytes;
    }
    put_number(s, &last, 2, FIELD_I64, plain);
    put_number(s, &last, 3, FIELD_I64, g->rows);
    put_stop(s);
}

err parquet_writer_finish(parquet_writer *w) {
    str s = { 0 };
    int last = 0;
    int64_t rows = 0;
    TRY(write_row_group(w));
    for (int i = 0; i < w->n_groups; i++) rows += w->groups[i].rows;
    put_number(&s, &last, 1, FIELD_I32, 2); /* version of the format */
    put_list(&s, &last, 2, FIELD_STRUCT, (size_t)w->to->n_columns + 1);
    put_schema(w, &s);
    put_number(&s, &last, 3, FIELD_I64, rows);
    put_list(&s, &last, 4, FIELD_STRUCT, (size_t)w->n_groups);
    for (int i = 0; i < w->n_groups; i++) put_group(w, &w->groups[i], &s);
    put_field(&s, &last, 6, FIELD_TEXT);
    put_string(&s, "ingot");
    put_stop(&s);
    uint32_t n = (uint32_t)s.len;
    put_u32(&s, n);
    str_add_bytes(&s, "PAR1", 4);
    err e = write_bytes(w, s.text, s.len);
    str_free(&s);
    return e;
}

void parquet_writer_free(parquet_writer *w) {
    if (!w) return;
    for (int i = 0; i < w->to->n_columns; i++) str_free(&w->pages[i]);
    for (int i = 0; i < w->n_groups; i++) free(w->groups[i].chunks);
    free(w->groups);
    free(w->pages);
    free(w->plain);
    free(w);
}
