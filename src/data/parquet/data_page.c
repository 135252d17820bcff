/* From the bytes of pages to values.
 *
 *     data page v1   codec( [length][definition levels] values )
 *     data page v2   repetition levels, definition levels, codec( values )
 *
 * A definition level below the maximum means that the row has no value. The levels are dropped here:
 * rows without a value get a parquet_value whose `at` is NULL. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "parquet/parquet_internal.h"

/* ---- headers --------------------------------------------------------------------------------- */
#define AT(member) offsetof(parquet_page, member)
static const thrift_member data_members[] = {
    { 1, THRIFT_I32, AT(n_values), NULL },
    { 2, THRIFT_I32, AT(encoding), NULL },
    { 3, THRIFT_I32, AT(level_encoding), NULL },
};
static const thrift_member dictionary_members[] = {
    { 1, THRIFT_I32, AT(n_values), NULL },
    { 2, THRIFT_I32, AT(encoding), NULL },
};
static const thrift_member data_v2_members[] = {
    { 1, THRIFT_I32, AT(n_values), NULL },         { 2, THRIFT_I32, AT(n_nulls), NULL },
    { 4, THRIFT_I32, AT(encoding), NULL },         { 5, THRIFT_I32, AT(definition_bytes), NULL },
    { 6, THRIFT_I32, AT(repetition_bytes), NULL }, { 7, THRIFT_BOOL, AT(compressed), NULL },
};
/* These three describe the same struct as the header: at most one of them is in it. */
static const thrift_layout data_layout = { 0, data_members, COUNT_OF(data_members) },
                           dictionary_layout = { 0, dictionary_members,
                                                 COUNT_OF(dictionary_members) },
                           data_v2_layout = { 0, data_v2_members, COUNT_OF(data_v2_members) };
static const thrift_member page_members[] = {
    { 1, THRIFT_I32, AT(type), NULL },        { 2, THRIFT_I32, AT(plain_bytes), NULL },
    { 3, THRIFT_I32, AT(raw_bytes), NULL },   { 4, THRIFT_NUMBER, AT(crc), NULL },
    { 5, THRIFT_STRUCT, 0, &data_layout },    { 7, THRIFT_STRUCT, 0, &dictionary_layout },
    { 8, THRIFT_STRUCT, 0, &data_v2_layout },
};
const thrift_layout page_layout = { sizeof(parquet_page), page_members, COUNT_OF(page_members) };

/* ---- bytes ----------------------------------------------------------------------------------- */
static const char *check_sum(const parquet_page *h, const char *raw) {
    if (!h->crc.is_set) return NULL;
    uint32_t sum = (uint32_t)crc32(0, (const unsigned char *)raw, (uInt)h->raw_bytes);
    return sum == (uint32_t)h->crc.value ? NULL : "its checksum is wrong";
}

/* Decompresses a page. Its first `levels` bytes are never compressed. *out: into `raw` if nothing
 * had to be done, else into `to`, which has plain_bytes bytes. */
static const char *decompress_page(int32_t codec, const parquet_page *h, const char *raw,
                                   size_t levels, char *to, const char **out) {
    size_t n = (size_t)h->raw_bytes, size = (size_t)h->plain_bytes;
    *out = raw;
    if (levels > n || levels > size) return "its levels are longer than the page";
    if (codec == CODEC_NONE || (h->type == PAGE_DATA_V2 && !h->compressed))
        return n == size ? NULL : "its length differs from its header";
    *out = to;
    memcpy(to, raw, levels);
    if (n == levels && size == levels) return NULL; /* no values: nothing was compressed */
    return codec_decompress(CODECS_PARQUET, codec, raw + levels, n - levels, to + levels,
                            size - levels);
}

/* ---- levels ---------------------------------------------------------------------------------- */
typedef struct level_span {
    const uint8_t *p;
    size_t n;
} level_span;

/* Finds the definition levels; *values begins after them. */
static const char *find_levels(const parquet_page *h, const uint8_t *plain, level_span *levels,
                               size_t *values) {
    enum { RLE = 3 };
    size_t size = (size_t)h->plain_bytes;
    if (h->type == PAGE_DATA_V2) {
        *levels = (level_span){ plain + h->repetition_bytes, (size_t)h->definition_bytes };
        *values = (size_t)h->repetition_bytes + (size_t)h->definition_bytes;
        return NULL;
    }
    if (h->level_encoding != RLE) return "its levels have the obsolete encoding BIT_PACKED";
    if (size < 4 || load_u32(plain) > size - 4) return "its levels are longer than the page";
    *levels = (level_span){ plain + 4, load_u32(plain) };
    *values = 4 + levels->n;
    return NULL;
}

static int bit_width(int32_t most) {
    int n = 0;
    while (n < 31 && most >> n) n++;
    return n;
}

static const char *decode_optional(const leaf *l, const parquet_page *h, const uint8_t *plain,
                                   value_input *in, parquet_value *out) {
    level_span levels;
    size_t rows = (size_t)h->n_values, at = 0, n = 0;
    uint32_t most = (uint32_t)l->max_definition;
    const char *wrong = find_levels(h, plain, &levels, &at);
    if (wrong) return wrong;
    uint32_t *level = mem_grow(NULL, (rows + 1) * sizeof *level);
    wrong = decode_runs(levels.p, levels.n, bit_width(l->max_definition), level, rows);
    for (size_t i = 0; i < rows && !wrong; i++) {
        if (level[i] > most) wrong = "a definition level is too large";
        n += level[i] == most;
    }
    in->p = plain + at;
    if (!wrong && n > 0) wrong = decode_values(h->encoding, in, out, n);
    bool gaps = !wrong && n < rows;
    for (size_t i = rows; gaps && i-- > 0;) /* to the rows that have one, from the last on */
        out[i] = level[i] == most ? out[--n] : (parquet_value){ 0 };
    free(level);
    return wrong;
}

static const char *decode_page(const parquet_pages *p, parquet_page *h, char *to,
                               parquet_value *out) {
    const parquet_file *f = p->file;
    const leaf *l = &f->leaves[p->column];
    const char *raw = p->raw.text + h->at, *plain;
    size_t levels =
        h->type == PAGE_DATA_V2 ? (size_t)h->definition_bytes + (size_t)h->repetition_bytes : 0;
    const char *wrong = check_sum(h, raw);
    if (wrong) return wrong;
    wrong = decompress_page(file_chunk(f, p->group, p->column)->codec, h, raw, levels, to, &plain);
    if (wrong) return wrong;
    const uint8_t *bytes = (const uint8_t *)plain;
    value_input in = { .p = bytes + levels,
                       .end = bytes + h->plain_bytes,
                       .type = l->type,
                       .kind = l->public.kind,
                       .dictionary = p->dictionary,
                       .most_bytes = f->limits.page_bytes,
                       .composed = &h->composed };
    if (l->max_definition > 0) return decode_optional(l, h, bytes, &in, out);
    return decode_values(h->encoding, &in, out, (size_t)h->n_values);
}

void buffer_reserve(str *s, size_t more) {
    if (s->len || more < s->cap) {
        str_reserve(s, more);
        return;
    }
    free(s->text);
    s->cap = more + more / 8 + 1; /* the next page may be a little larger */
    s->text = mem_alloc_large(s->cap);
}

void reserve_values(parquet_pages *p) {
    size_t n = (size_t)MAX(p->rows, (int64_t)1);
    if (n <= p->values_capacity) return;
    free(p->values);
    p->values = mem_grow(NULL, n * sizeof *p->values);
    p->values_capacity = n;
}

err parquet_decode(parquet_pages *p) {
    size_t plain = 0, at = 0, row = 0;
    err e = OK;
    if (p->n && p->page[0].arrow) return arrow_decode(p);
    for (int i = 0; i < p->n; i++) plain += (size_t)p->page[i].plain_bytes;
    p->plain.len = 0;
    buffer_reserve(&p->plain, plain);
    reserve_values(p);
    for (int i = 0; i < p->n; i++) {
        parquet_page *h = &p->page[i];
        const char *wrong = decode_page(p, h, p->plain.text + at, p->values + row);
        for (int64_t k = 0; wrong && k < h->n_values; k++)
            p->values[row + (size_t)k] = (parquet_value){ .length = PARQUET_LOST };
        if (wrong && !e) e = column_error(p->file, p->group, p->column, h->offset, wrong);
        at += (size_t)h->plain_bytes;
        row += (size_t)h->n_values;
    }
    return e;
}

void parquet_pages_clear(parquet_pages *p) {
    for (int i = 0; i < p->n; i++) {
        free(p->page[i].composed);
        free(p->page[i].arrow);
    }
    dictionary_release(p->dictionary);
    p->dictionary = NULL;
    p->n = 0;
    p->rows = 0;
    p->raw.len = 0;
}

void parquet_pages_free(parquet_pages *p) {
    parquet_pages_clear(p);
    free(p->page);
    free(p->values);
    str_free(&p->raw);
    str_free(&p->plain);
    *p = (parquet_pages){ 0 };
}

/* ---- dictionaries ---------------------------------------------------------------------------- */
parquet_dictionary *dictionary_hold(parquet_dictionary *d) {
    if (d) atomic_fetch_add(&d->refs, 1);
    return d;
}

void dictionary_release(parquet_dictionary *d) {
    if (!d || atomic_fetch_sub(&d->refs, 1) > 1) return;
    free(d->values);
    free(d->bytes);
    free(d->composed);
    free(d);
}

enum { ENCODING_PLAIN = 0, ENCODING_PLAIN_DICTIONARY = 2 };

static const char *check_dictionary(const parquet_page *h, const char *raw) {
    if (h->encoding != ENCODING_PLAIN && h->encoding != ENCODING_PLAIN_DICTIONARY)
        return "the dictionary's encoding is not supported";
    if ((size_t)h->n_values > (size_t)h->plain_bytes * 8)
        return "the dictionary has more values than bytes";
    return check_sum(h, raw);
}

const char *dictionary_decode(const parquet_file *f, int group, int column, const parquet_page *h,
                              char *raw, parquet_dictionary **out) {
    const leaf *l = &f->leaves[column];
    size_t n = (size_t)h->n_values, size = (size_t)h->plain_bytes;
    int32_t codec = file_chunk(f, group, column)->codec;
    parquet_dictionary *d = *out = mem_alloc(sizeof *d);
    atomic_store(&d->refs, 1);
    d->bytes = raw;
    const char *wrong = check_dictionary(h, raw), *plain;
    if (wrong) return wrong;
    char *to = codec == CODEC_NONE ? NULL : mem_alloc_large(size + 1);
    wrong = decompress_page(codec, h, raw, 0, to, &plain);
    if (to) {
        d->bytes = to;
        free(raw);
    }
    if (wrong) return wrong;
    d->n = n;
    d->values = mem_grow(NULL, (n + 1) * sizeof *d->values);
    value_input in = { .p = (uint8_t *)d->bytes,
                       .end = (uint8_t *)d->bytes + size,
                       .type = l->type,
                       .kind = l->public.kind,
                       .most_bytes = f->limits.page_bytes,
                       .composed = &d->composed };
    return decode_values(ENCODING_PLAIN, &in, d->values, n);
}
