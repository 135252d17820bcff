/* From the buffers of an Arrow record batch to values.
 *
 *     part        validity of each struct around the column, own validity, then by layout:
 *                 FIXED: values   BYTES: offsets, bytes   VIEWS: views, any number of buffers of bytes
 *
 * The cursor reads the buffers of one column as they are. Buffers that are not compressed are read in parts:
 * a batch may hold a whole corpus. Such a part begins at a multiple of 8 rows, and so at a whole byte of the
 * validity. Compressed columns and views are read whole, which parquet_limits bounds. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet_internal.h"

/* A buffer of a column, or the part of it that belongs to the page's rows. */
typedef struct arrow_part {
    int64_t offset;       /* in the file */
    size_t raw, n;        /* n bytes, at this offset in parquet_pages.raw */
    bool compressed;      /* after 8 bytes that state its length */
    size_t plain;         /* bytes, decompressed */
    const uint8_t *bytes; /* [plain], set when they are decoded */
} arrow_part;
struct arrow_page {
    arrow_layout layout;
    const arrow_field *field;
    int width;
    int codec;      /* of compressed parts */
    int validities; /* the first parts; empty: every row has a value */
    size_t plain;   /* bytes of all compressed parts, decompressed */
    int64_t base;   /* of the first byte of the last part, in what offsets count */
    int n;
    arrow_part parts[];
};

struct arrow_cursor {
    const parquet_file *f;
    const arrow_field *field;
    const arrow_batch *batch;
    arrow_page *whole; /* parts of all rows */
    bool split;        /* rows are read in parts */
    int group, column;
    str offsets; /* of all rows, if the layout has them and rows are read in parts */
    parquet_dictionary *dictionary;
};

static err batch_error(const arrow_cursor *c, const char *why) {
    return column_error(c->f, c->group, c->column, c->batch->body, why);
}

/* ---- the buffers of a column ----------------------------------------------------------------- */
typedef struct buffer_finder {
    const arrow_batch *batch;
    const uint8_t *metadata;
    arrow_batch_layout l;
    const char *wrong;
} buffer_finder;

static int64_t item_number(const buffer_finder *b, const flat_vector *v, size_t bytes, size_t i) {
    return load_signed(b->metadata + v->at + bytes * i, 8);
}

static size_t first_buffer(const buffer_finder *b, const arrow_field *f) {
    size_t at = (size_t)f->first_buffer;
    for (size_t i = 0; i < (size_t)f->views_before && i < b->l.variadic.n; i++)
        at += (size_t)item_number(b, &b->l.variadic, 8, i);
    return at;
}

/* Adds buffer i of the batch as a part. */
static void add_part(buffer_finder *b, size_t i, arrow_page *p) {
    if (i >= b->l.buffers.n) {
        b->wrong = "the batch has too few buffers";
        return;
    }
    int64_t offset = item_number(b, &b->l.buffers, 16, i),
            n = load_signed(b->metadata + b->l.buffers.at + 16 * i + 8, 8);
    if (offset < 0 || n < 0 || offset > b->batch->body_bytes || n > b->batch->body_bytes - offset)
        b->wrong = "a buffer is outside the batch";
    else
        p->parts[p->n++] = (arrow_part){ .offset = b->batch->body + offset, .n = (size_t)n };
}

static void add_validity(buffer_finder *b, const arrow_file *a, int field, arrow_page *p) {
    const arrow_field *f = &a->fields[field];
    if (b->wrong) return;
    if (f->parent >= 0) add_validity(b, a, f->parent, p);
    if (item_number(b, &b->l.nodes, 16, (size_t)field) != b->batch->rows)
        b->wrong = "the column's number of values differs from the batch's number of rows";
    if (!b->wrong) add_part(b, first_buffer(b, f), p);
    p->validities++;
}

/* @return the buffers that hold a column's values, after the validity. */
static size_t count_data(const buffer_finder *b, arrow_layout layout, int views_before) {
    if (layout == LAYOUT_FIXED) return 1;
    if (layout == LAYOUT_BYTES) return 2;
    if ((size_t)views_before >= b->l.variadic.n) return 1;
    int64_t more = item_number(b, &b->l.variadic, 8, (size_t)views_before);
    return 1 + (size_t)MIN(MAX(more, (int64_t)0), (int64_t)b->l.buffers.n);
}

static const char *start_finder(const arrow_batch *batch, buffer_finder *b) {
    flatbuffer in;
    flat_table t = arrow_batch_table(batch, &in);
    *b = (buffer_finder){ .batch = batch, .metadata = batch->metadata };
    const char *wrong = arrow_batch_parts(&t, &b->l);
    b->l.nodes.in = b->l.buffers.in = b->l.variadic.in = NULL; /* `in` ends here */
    return wrong;
}

enum { DEEPEST = 64 };

/* The buffers of a column in a record batch; owned by the caller also when they are wrong. */
static const char *column_buffers(const arrow_file *a, const arrow_batch *batch, int field,
                                  arrow_page **out) {
    const arrow_field *f = &a->fields[field];
    buffer_finder b;
    const char *wrong = start_finder(batch, &b);
    if (wrong) return wrong;
    size_t data = count_data(&b, f->layout, f->views_before), at = first_buffer(&b, f) + 1;
    arrow_page *p = mem_alloc(sizeof *p + (DEEPEST + 1 + data) * sizeof *p->parts);
    *out = p;
    p->layout = f->layout;
    p->width = f->width;
    p->field = f;
    p->codec = b.l.codec;
    add_validity(&b, a, field, p);
    for (size_t i = 0; i < data && !b.wrong; i++) add_part(&b, at + i, p);
    for (int i = 0; i < p->n; i++) p->parts[i].compressed = b.l.compressed && p->parts[i].n;
    return b.wrong;
}

/* The same of the values of a dictionary, which is a batch with one column. */
static const char *dictionary_buffers(const arrow_field *f, const arrow_batch *batch,
                                      arrow_page **out) {
    buffer_finder b;
    const char *wrong = start_finder(batch, &b);
    if (wrong) return wrong;
    size_t data = count_data(&b, f->value_layout, 0);
    arrow_page *p = mem_alloc(sizeof *p + (1 + data) * sizeof *p->parts);
    *out = p;
    p->layout = f->value_layout;
    p->width = f->value_width;
    p->field = f;
    p->codec = b.l.codec;
    p->validities = 1;
    for (size_t i = 0; i <= data && !b.wrong; i++) add_part(&b, i, p);
    for (int i = 0; i < p->n; i++) p->parts[i].compressed = b.l.compressed && p->parts[i].n;
    return b.wrong;
}

/* ---- reading --------------------------------------------------------------------------------- */
static err check_size(const arrow_cursor *c, size_t bytes) {
    char why[128];
    if (!parquet_is_too_large(c->f, bytes, why, sizeof why)) return OK;
    return err_hint(batch_error(c, why), PARQUET_TOO_LARGE "batches");
}

/* Reads the parts of a page, and the lengths that compressed ones state. */
static err read_parts(const arrow_cursor *c, arrow_page *p, str *raw) {
    const parquet_source *s = &c->f->source;
    size_t total = 0;
    p->plain = 0;
    for (int i = 0; i < p->n; i++) {
        total += p->parts[i].n; /* each at most the file, and few */
        TRY(check_size(c, total));
    }
    buffer_reserve(raw, total + 1);
    for (int i = 0; i < p->n; i++) {
        arrow_part *part = &p->parts[i];
        part->raw = raw->len;
        part->plain = part->n;
        if (part->n) TRY(s->read(s->ctx, part->offset, raw->text + raw->len, part->n));
        raw->len += part->n;
        if (!part->compressed) continue;
        if (part->n < 8) return batch_error(c, "a compressed buffer is too short");
        int64_t length = load_signed((const uint8_t *)raw->text + part->raw, 8);
        part->raw += 8;
        part->n -= 8;
        part->compressed = length >= 0; /* -1: it is as it is */
        part->plain = length >= 0 ? (size_t)length : part->n;
        if (!part->compressed) continue;
        TRY(check_size(c, part->plain));
        p->plain += part->plain;
        TRY(check_size(c, p->plain));
    }
    return OK;
}

static int64_t load_offset(const char *offsets, int width, int64_t i) {
    const uint8_t *p = (const uint8_t *)offsets + (size_t)i * (size_t)width / 8;
    return width == 32 ? (int32_t)load_u32(p) : load_signed(p, 8);
}

/* @return the rows, from `row`, that hold `bytes` bytes; a multiple of 8, or all that are left. */
static int64_t rows_of_bytes(const arrow_cursor *c, int64_t row, size_t bytes) {
    int64_t rows = c->batch->rows,
            most = (int64_t)(c->f->limits.page_bytes / sizeof(parquet_value)),
            want = (int64_t)MIN(bytes, SIZE_MAX / 16), n = 0;
    most = MAX(most / 8 * 8, (int64_t)8);
    if (c->whole->layout == LAYOUT_FIXED) {
        n = (want * 8 / c->whole->width / 8 + 1) * 8;
    } else {
        uint64_t first = (uint64_t)load_offset(c->offsets.text, c->whole->width, row);
        do {
            n += 8;
        } while (n < most && n < rows - row &&
                 (uint64_t)load_offset(c->offsets.text, c->whole->width, row + n) - first <
                     (uint64_t)want);
    }
    return MIN(MIN(n, most), rows - row);
}

/* Narrows a part to bytes [from, to). */
static const char *narrow_part(arrow_part *p, int64_t from, int64_t to) {
    if (from < 0 || to < from || to > (int64_t)p->n) return "a buffer is too short for its rows";
    p->offset += from;
    p->n = (size_t)(to - from);
    return NULL;
}

/* Narrows a copy of the parts of all rows to some rows. */
static const char *narrow_page(const arrow_cursor *c, int64_t row, int64_t rows, arrow_page *p) {
    const char *wrong = NULL;
    int64_t end = row + rows, width = p->width;
    for (int i = 0; i < p->validities && !wrong; i++)
        if (p->parts[i].n) wrong = narrow_part(&p->parts[i], row / 8, ceil_div(end, 8));
    if (wrong) return wrong;
    arrow_part *data = &p->parts[p->validities];
    if (p->layout == LAYOUT_FIXED)
        return narrow_part(data, row * width / 8, ceil_div(end * width, 8));
    wrong = narrow_part(data, row * width / 8, (end + 1) * width / 8);
    p->base = load_offset(c->offsets.text, p->width, row);
    return wrong ? wrong
                 : narrow_part(&data[1], p->base, load_offset(c->offsets.text, p->width, end));
}

err arrow_cursor_next(arrow_cursor *c, int64_t row, size_t bytes, parquet_pages *out) {
    int64_t rows = c->split ? rows_of_bytes(c, row, bytes) : c->batch->rows;
    size_t size = sizeof *c->whole + (size_t)c->whole->n * sizeof *c->whole->parts;
    arrow_page *p = memcpy(mem_grow(NULL, size), c->whole, size);
    LIST_ADD(out->page, out->n, out->capacity) = (parquet_page){ .arrow = p };
    if (c->split) {
        const char *wrong = narrow_page(c, row, rows, p);
        if (wrong) return batch_error(c, wrong);
    }
    TRY(read_parts(c, p, &out->raw));
    out->rows = rows;
    out->offset = c->batch->body;
    out->dictionary = dictionary_hold(c->dictionary);
    return OK;
}

/* ---- values ---------------------------------------------------------------------------------- */
static const char *decompress_parts(arrow_page *p, const str *raw, str *plain) {
    plain->len = 0;
    buffer_reserve(plain, p->plain + 1);
    for (int i = 0; i < p->n; i++) {
        arrow_part *part = &p->parts[i];
        const char *from = raw->text + part->raw;
        part->bytes = (const uint8_t *)from;
        if (!part->compressed) continue;
        char *to = plain->text + plain->len;
        part->bytes = (const uint8_t *)to;
        plain->len += part->plain;
        if (!part->plain) continue;
        const char *wrong =
            codec_decompress(CODECS_ARROW, p->codec, from, part->n, to, part->plain);
        if (wrong) return wrong;
    }
    return NULL;
}

static double load_real(const uint8_t *p, int width) {
    float f;
    double d;
    memcpy(&f, p, sizeof f);
    if (width == 32) return (double)f;
    memcpy(&d, p, sizeof d);
    return d;
}

static int64_t load_integer(const arrow_field *f, const uint8_t *p, int width) {
    int64_t v = load_signed(p, (size_t)width / 8);
    if (f->is_unsigned && width < 64) v &= ((int64_t)1 << width) - 1;
    if (f->multiply) v = (int64_t)((uint64_t)v * (uint64_t)f->multiply);
    return f->divide ? v / f->divide : v;
}

static const char *fixed_values(const arrow_page *p, size_t rows, parquet_value *out) {
    const arrow_part *data = &p->parts[p->validities];
    const arrow_field *f = p->field;
    if (data->plain < (rows * (size_t)p->width + 7) / 8)
        return "a buffer is too short for its rows";
    for (size_t i = 0; i < rows; i++) {
        const uint8_t *at = data->bytes + i * (size_t)p->width / 8;
        out[i].at = (const char *)data->bytes;
        if (p->width == 1)
            out[i].integer = *at >> i % 8 & 1;
        else if (f->kind == PARQUET_FLOAT || f->kind == PARQUET_DOUBLE)
            out[i].real = load_real(at, p->width);
        else
            out[i].integer = load_integer(f, at, p->width);
    }
    return NULL;
}

static const char *byte_values(const arrow_page *p, size_t rows, parquet_value *out) {
    const arrow_part *offsets = &p->parts[p->validities], *data = offsets + 1;
    if (rows == 0) return NULL; /* there may be no offsets at all */
    if (offsets->plain < (rows + 1) * (size_t)p->width / 8)
        return "a buffer is too short for its rows";
    const char *from = (const char *)offsets->bytes;
    int64_t at = load_offset(from, p->width, 0), base = p->base;
    if (at < base) return "an offset is outside its buffer";
    for (size_t i = 0; i < rows; i++) {
        int64_t end = load_offset(from, p->width, (int64_t)i + 1);
        if (end < at || end - base > (int64_t)data->plain) return "an offset is outside its buffer";
        out[i] = (parquet_value){ .at = (const char *)data->bytes + (at - base),
                                  .length = (size_t)(end - at) };
        at = end;
    }
    return NULL;
}

static const char *view_values(const arrow_page *p, size_t rows, parquet_value *out) {
    enum { VIEW_BYTES = 16, INLINE_BYTES = 12 };
    const arrow_part *views = &p->parts[p->validities], *buffers = views + 1;
    uint32_t n = (uint32_t)(p->n - p->validities - 1);
    if (views->plain < rows * VIEW_BYTES) return "a buffer is too short for its rows";
    for (size_t i = 0; i < rows; i++) {
        const uint8_t *v = views->bytes + i * VIEW_BYTES;
        size_t length = load_u32(v), offset = load_u32(v + 12);
        uint32_t buffer = load_u32(v + 8);
        out[i] = (parquet_value){ .at = (const char *)v + 4, .length = length };
        if (length <= INLINE_BYTES) continue;
        if (buffer >= n || offset > buffers[buffer].plain ||
            length > buffers[buffer].plain - offset)
            out[i] = (parquet_value){ .length = PARQUET_LOST };
        else
            out[i].at = (const char *)buffers[buffer].bytes + offset;
    }
    return NULL;
}

static const char *look_up_values(const parquet_dictionary *d, size_t rows, parquet_value *out) {
    if (!d) return "its dictionary is missing";
    for (size_t i = 0; i < rows; i++) {
        if (!out[i].at) continue;
        if ((uint64_t)out[i].integer >= d->n) return "an index is outside its dictionary";
        out[i] = d->values[out[i].integer];
    }
    return NULL;
}

/* Rows whose bit is not set have no value, whatever their buffers hold. */
static const char *clear_missing(const arrow_page *p, size_t rows, parquet_value *out) {
    for (int k = 0; k < p->validities; k++) {
        const arrow_part *bits = &p->parts[k];
        if (!bits->plain) continue;
        if (bits->plain < (rows + 7) / 8) return "a buffer is too short for its rows";
        for (size_t i = 0; i < rows; i++)
            if (!(bits->bytes[i / 8] >> i % 8 & 1)) out[i] = (parquet_value){ 0 };
    }
    return NULL;
}

static const char *decode_parts(arrow_page *p, const str *raw, str *plain, size_t rows,
                                parquet_value *out) {
    static const char *(*const decode[])(const arrow_page *, size_t, parquet_value *) = {
        [LAYOUT_FIXED] = fixed_values,
        [LAYOUT_BYTES] = byte_values,
        [LAYOUT_VIEWS] = view_values,
    };
    const char *wrong = decompress_parts(p, raw, plain);
    if (!wrong) wrong = decode[p->layout](p, rows, out);
    if (!wrong) wrong = clear_missing(p, rows, out);
    /* Views of rows without a value may be anything; other views that point nowhere are an error. */
    for (size_t i = 0; i < rows && !wrong && p->layout == LAYOUT_VIEWS; i++)
        if (parquet_is_lost(&out[i])) wrong = "a view is outside its buffer";
    return wrong;
}

err arrow_decode(parquet_pages *p) {
    arrow_page *a = p->page[0].arrow;
    size_t rows = (size_t)p->rows;
    reserve_values(p);
    const char *wrong = decode_parts(a, &p->raw, &p->plain, rows, p->values);
    if (!wrong && a->field->has_dictionary) wrong = look_up_values(p->dictionary, rows, p->values);
    if (!wrong) return OK;
    for (size_t i = 0; i < rows; i++) p->values[i] = (parquet_value){ .length = PARQUET_LOST };
    return column_error(p->file, p->group, p->column, p->offset, wrong);
}

/* ---- opening --------------------------------------------------------------------------------- */
static err check_row_limit(const arrow_cursor *c, int64_t rows) {
    if ((size_t)rows <= c->f->limits.page_bytes / sizeof(parquet_value)) return OK;
    return err_hint(batch_error(c, "the batch has too many rows"),
                    "raise --memory, or rewrite the file with smaller batches");
}

/* Reads and decodes the last dictionary before the batch. */
static err read_dictionary(arrow_cursor *c) {
    const arrow_file *a = c->f->arrow;
    const arrow_batch *from = NULL;
    arrow_page *p = NULL;
    str raw = { 0 }, plain = { 0 };
    for (int i = 0; i < c->batch->dictionaries_before; i++)
        if (a->dictionaries[i].dictionary == c->field->dictionary) from = &a->dictionaries[i];
    if (!from) return batch_error(c, "its dictionary is missing");
    TRY(check_row_limit(c, from->rows));
    const char *wrong = dictionary_buffers(c->field, from, &p);
    err e = wrong ? batch_error(c, wrong) : read_parts(c, p, &raw);
    parquet_dictionary *d = mem_alloc(sizeof *d);
    c->dictionary = d;
    atomic_store(&d->refs, 1);
    d->n = (size_t)from->rows;
    if (!e) {
        d->values = mem_grow(NULL, (d->n + 1) * sizeof *d->values);
        wrong = decode_parts(p, &raw, &plain, d->n, d->values);
        if (wrong) e = batch_error(c, wrong);
    }
    d->bytes = raw.text;
    d->composed = plain.text;
    free(p);
    return e;
}

static err read_offsets(arrow_cursor *c) {
    const parquet_source *s = &c->f->source;
    const arrow_part *part = &c->whole->parts[c->whole->validities];
    int64_t bytes = (c->batch->rows + 1) * (c->whole->width / 8);
    if ((int64_t)part->n < bytes) return batch_error(c, "a buffer is too short for its rows");
    TRY(check_size(c, (size_t)bytes));
    str_reserve(&c->offsets, (size_t)bytes);
    return s->read(s->ctx, part->offset, c->offsets.text, (size_t)bytes);
}

static err open_batch(arrow_cursor *c) {
    const arrow_file *a = c->f->arrow;
    const char *wrong = column_buffers(a, c->batch, a->field_of_leaf[c->column], &c->whole);
    if (wrong) return batch_error(c, wrong);
    bool compressed = false;
    for (int i = 0; i < c->whole->n; i++) compressed |= c->whole->parts[i].compressed;
    c->split = !compressed && c->whole->layout != LAYOUT_VIEWS;
    if (c->batch->rows == 0) return OK;
    if (!c->split) TRY(check_row_limit(c, c->batch->rows));
    if (c->field->has_dictionary) TRY(read_dictionary(c));
    return c->split && c->whole->layout == LAYOUT_BYTES ? read_offsets(c) : OK;
}

err arrow_cursor_open(const parquet_file *f, int group, int column, arrow_cursor **out) {
    const arrow_file *a = f->arrow;
    arrow_cursor *c = mem_alloc(sizeof *c);
    *c = (arrow_cursor){ .f = f,
                         .group = group,
                         .column = column,
                         .batch = &a->batches[group],
                         .field = &a->fields[a->field_of_leaf[column]] };
    BUG_IF(c->field->kind == PARQUET_OTHER || c->field->repeated);
    err e = open_batch(c);
    if (e) {
        arrow_cursor_close(c);
        return e;
    }
    *out = c;
    return OK;
}

void arrow_cursor_close(arrow_cursor *c) {
    if (!c) return;
    dictionary_release(c->dictionary);
    str_free(&c->offsets);
    free(c->whole);
    free(c);
}
