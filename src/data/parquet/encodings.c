/* How values are encoded in a page. Each decoder checks that it reads within the page, and
 * yields exactly the number of values asked for. Strings are not copied: they point into the page, except with
 * DELTA_BYTE_ARRAY, whose strings share their beginnings. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet_internal.h"

static const char SHORT[] = "the values end before the page's number of values is reached";
static const char OTHER_TYPE[] = "the encoding does not belong to this type";

static uint64_t load_some(const uint8_t *p, size_t available) {
    uint64_t v = 0;
    memcpy(&v, p, MIN(available, sizeof v)); /* little-endian, as all machines that run this */
    return v;
}

/* @return `width` bits at bit `at` of p[0 .. bytes). Bits beyond are 0. */
static uint64_t load_bits(const uint8_t *p, size_t bytes, size_t at, int width) {
    size_t byte = at >> 3;
    int shift = (int)(at & 7);
    if (width == 0 || byte >= bytes) return 0;
    uint64_t v = load_some(p + byte, bytes - byte) >> shift;
    if (shift + width > 64 && byte + 8 < bytes) v |= (uint64_t)p[byte + 8] << (64 - shift);
    return width == 64 ? v : v & (((uint64_t)1 << width) - 1);
}

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

/* ---- runs ------------------------------------------------------------------------------------ */
/* Groups of eight packed numbers. The last group may lack the bytes of its padding. */
static size_t unpack_groups(const uint8_t **p, const uint8_t *end, uint64_t groups, int width,
                            uint32_t *out, size_t n) {
    size_t left = (size_t)(end - *p);
    uint64_t most = width ? left * 8 / (unsigned)width : n;
    size_t count = (size_t)MIN(MIN(groups * 8, most), (uint64_t)n);
    for (size_t i = 0; i < count; i++)
        out[i] = (uint32_t)load_bits(*p, left, i * (size_t)width, width);
    *p += MIN(groups * (unsigned)width, left);
    return count;
}

static bool repeat_value(const uint8_t **p, const uint8_t *end, int width, uint32_t *out,
                         size_t n) {
    size_t bytes = (size_t)(width + 7) / 8;
    if (bytes > (size_t)(end - *p)) return false;
    uint32_t v = (uint32_t)load_some(*p, bytes);
    *p += bytes;
    for (size_t i = 0; i < n; i++) out[i] = v;
    return true;
}

const char *decode_runs(const uint8_t *p, size_t bytes, int width, uint32_t *out, size_t n) {
    const uint8_t *end = p + bytes;
    if (width > 32) return "numbers of more than 32 bits";
    for (size_t done = 0; done < n;) {
        uint64_t head;
        if (!read_varint(&p, end, &head) || head >> 33) return SHORT;
        size_t got = (size_t)MIN(head >> 1, (uint64_t)(n - done));
        if (head & 1)
            got = unpack_groups(&p, end, head >> 1, width, out + done, n - done);
        else if (!repeat_value(&p, end, width, out + done, got))
            return SHORT;
        if (got == 0) return SHORT;
        done += got;
    }
    return NULL;
}

/* ---- plain ----------------------------------------------------------------------------------- */
static const char PRESENT[] = ""; /* what `at` of a number points to */

static parquet_value integer_value(int64_t v) {
    return (parquet_value){ .at = PRESENT, .integer = v };
}

/* @return the value of 4 or 8 bytes. */
static parquet_value fixed_value(const value_input *in, uint64_t bits) {
    parquet_value v = { .at = PRESENT };
    float narrow;
    uint32_t low = (uint32_t)bits;
    switch (in->type) {
    case PHYSICAL_INT32:
        v.integer = in->kind == PARQUET_UNSIGNED ? (int64_t)low : (int64_t)(int32_t)low;
        break;
    case PHYSICAL_FLOAT:
        memcpy(&narrow, &low, sizeof narrow);
        v.real = (double)narrow;
        break;
    case PHYSICAL_DOUBLE: memcpy(&v.real, &bits, sizeof v.real); break;
    default: v.integer = (int64_t)bits;
    }
    return v;
}

static size_t fixed_width(physical_type t) {
    static const size_t widths[PHYSICAL_TYPES] = {
        [PHYSICAL_INT32] = 4, [PHYSICAL_FLOAT] = 4, [PHYSICAL_INT64] = 8, [PHYSICAL_DOUBLE] = 8
    };
    return widths[t];
}

static const char *plain_strings(value_input *in, parquet_value *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (in->end - in->p < 4) return SHORT;
        size_t length = load_u32(in->p);
        in->p += 4;
        if (length > (size_t)(in->end - in->p)) return "a string is longer than its page";
        out[i] = (parquet_value){ .at = (const char *)in->p, .length = length };
        in->p += length;
    }
    return NULL;
}

static const char *decode_plain(value_input *in, parquet_value *out, size_t n) {
    size_t left = (size_t)(in->end - in->p), width = fixed_width(in->type);
    if (in->type == PHYSICAL_BYTES) return plain_strings(in, out, n);
    if (in->type == PHYSICAL_BOOL) {
        if (left < (n + 7) / 8) return SHORT;
        for (size_t i = 0; i < n; i++) out[i] = integer_value(in->p[i / 8] >> (i % 8) & 1);
        return NULL;
    }
    if (!width) return OTHER_TYPE;
    if (left / width < n) return SHORT;
    for (size_t i = 0; i < n; i++) out[i] = fixed_value(in, load_some(in->p + i * width, width));
    return NULL;
}

/* Decodes values whose bytes are stored apart: first the first bytes of all values, then the second. */
static const char *decode_byte_split(value_input *in, parquet_value *out, size_t n) {
    size_t left = (size_t)(in->end - in->p), width = fixed_width(in->type);
    if (!width) return OTHER_TYPE;
    if (left / width < n) return SHORT;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        for (size_t b = 0; b < width; b++) bits |= (uint64_t)in->p[b * n + i] << 8 * b;
        out[i] = fixed_value(in, bits);
    }
    return NULL;
}

/* ---- dictionaries ---------------------------------------------------------------------------- */
static const char *decode_indices(value_input *in, parquet_value *out, size_t n) {
    const parquet_dictionary *d = in->dictionary;
    if (!d) return "the column has no dictionary, and its values refer to one";
    if (n == 0) return NULL;
    if (in->p == in->end) return SHORT;
    int width = *in->p++;
    uint32_t *index = mem_grow(NULL, n * sizeof *index);
    const char *wrong = decode_runs(in->p, (size_t)(in->end - in->p), width, index, n);
    for (size_t i = 0; i < n && !wrong; i++) {
        if (index[i] >= d->n)
            wrong = "a value is not in the column's dictionary";
        else
            out[i] = d->values[index[i]];
    }
    free(index);
    return wrong;
}

static const char *decode_bool_runs(value_input *in, parquet_value *out, size_t n) {
    if (in->type != PHYSICAL_BOOL) return OTHER_TYPE;
    if (in->end - in->p < 4 || load_u32(in->p) > (size_t)(in->end - in->p - 4)) return SHORT;
    uint32_t *bits = mem_grow(NULL, (n + 1) * sizeof *bits);
    const char *wrong = decode_runs(in->p + 4, load_u32(in->p), 1, bits, n);
    for (size_t i = 0; i < n && !wrong; i++) out[i] = integer_value(bits[i]);
    free(bits);
    return wrong;
}

/* ---- differences ----------------------------------------------------------------------------- */
typedef struct delta_head {
    uint64_t block, minis, count; /* values per block, parts of a block, values in all */
    int64_t first;
} delta_head;

static bool read_zigzag(const uint8_t **p, const uint8_t *end, int64_t *out) {
    uint64_t u;
    if (!read_varint(p, end, &u)) return false;
    *out = (int64_t)(u >> 1) ^ -(int64_t)(u & 1);
    return true;
}

static bool read_delta_head(value_input *in, delta_head *h) {
    enum { MOST = 1 << 20 };
    return read_varint(&in->p, in->end, &h->block) && read_varint(&in->p, in->end, &h->minis) &&
           read_varint(&in->p, in->end, &h->count) && read_zigzag(&in->p, in->end, &h->first) &&
           h->block > 0 && h->block <= MOST && h->minis > 0 && h->minis <= h->block &&
           h->block % h->minis == 0 && h->block / h->minis % 8 == 0;
}

/* One block: the least difference, the widths of its parts, the parts. *done grows. */
static const char *decode_delta_block(value_input *in, const delta_head *h, int64_t *out, size_t n,
                                      size_t *done) {
    int64_t least;
    size_t each = (size_t)(h->block / h->minis);
    if (!read_zigzag(&in->p, in->end, &least)) return SHORT;
    if ((size_t)(in->end - in->p) < h->minis) return SHORT;
    const uint8_t *widths = in->p;
    in->p += h->minis;
    for (uint64_t m = 0; m < h->minis && *done < n; m++) {
        size_t left = (size_t)(in->end - in->p), bytes = each / 8 * widths[m];
        size_t count = MIN(each, n - *done);
        if (widths[m] > 64) return "differences of more than 64 bits";
        if (left * 8 < count * widths[m]) return SHORT;
        for (size_t i = 0; i < count; i++, ++*done)
            out[*done] = (int64_t)((uint64_t)out[*done - 1] + (uint64_t)least +
                                   load_bits(in->p, left, i * widths[m], widths[m]));
        in->p += MIN(bytes, left);
    }
    return NULL;
}

/* Reads exactly n integers, and moves in->p behind them. */
static const char *decode_deltas(value_input *in, int64_t *out, size_t n) {
    delta_head h = { 0 };
    if (!read_delta_head(in, &h)) return "the head of the delta encoding is damaged";
    if (h.count != n) return "the delta encoding and the page differ in their number of values";
    if (n == 0) return NULL;
    out[0] = h.first;
    const char *wrong = NULL;
    for (size_t done = 1; done < n && !wrong;) wrong = decode_delta_block(in, &h, out, n, &done);
    return wrong;
}

static const char *decode_delta_integers(value_input *in, parquet_value *out, size_t n) {
    if (in->type != PHYSICAL_INT32 && in->type != PHYSICAL_INT64) return OTHER_TYPE;
    int64_t *v = mem_grow(NULL, (n + 1) * sizeof *v);
    const char *wrong = decode_deltas(in, v, n);
    for (size_t i = 0; i < n && !wrong; i++) out[i] = fixed_value(in, (uint64_t)v[i]);
    free(v);
    return wrong;
}

/* Lengths, then the strings. */
static const char *decode_delta_lengths(value_input *in, parquet_value *out, size_t n) {
    if (in->type != PHYSICAL_BYTES) return OTHER_TYPE;
    int64_t *lengths = mem_grow(NULL, (n + 1) * sizeof *lengths);
    const char *wrong = decode_deltas(in, lengths, n);
    for (size_t i = 0; i < n && !wrong; i++) {
        if (lengths[i] < 0 || lengths[i] > in->end - in->p) {
            wrong = "a string is longer than its page";
            break;
        }
        out[i] = (parquet_value){ .at = (const char *)in->p, .length = (size_t)lengths[i] };
        in->p += lengths[i];
    }
    free(lengths);
    return wrong;
}

/* @return bytes of all strings together; SIZE_MAX: a prefix is longer than the string before it, or
 * all are longer than `most`. */
static size_t composed_bytes(const int64_t *prefix, const parquet_value *suffix, size_t n,
                             size_t most) {
    size_t all = 0, last = 0;
    for (size_t i = 0; i < n; i++) {
        if (prefix[i] < 0 || (uint64_t)prefix[i] > last) return SIZE_MAX;
        last = (size_t)prefix[i] + suffix[i].length;
        if (last > most - all) return SIZE_MAX;
        all += last;
    }
    return all;
}

/* Lengths of the beginnings shared with the string before, then the rest of each string. */
static const char *decode_delta_strings(value_input *in, parquet_value *out, size_t n) {
    if (in->type != PHYSICAL_BYTES) return OTHER_TYPE;
    int64_t *prefix = mem_grow(NULL, (n + 1) * sizeof *prefix);
    const char *wrong = decode_deltas(in, prefix, n);
    if (!wrong) wrong = decode_delta_lengths(in, out, n);
    size_t all = wrong ? 0 : composed_bytes(prefix, out, n, in->most_bytes);
    if (all == SIZE_MAX) wrong = "strings that share their beginnings have impossible lengths";
    if (!wrong) {
        char *to = *in->composed = mem_grow(NULL, all + 1), *last = to;
        for (size_t i = 0; i < n; i++) {
            size_t head = (size_t)prefix[i];
            memmove(to, last, head);
            memcpy(to + head, out[i].at, out[i].length);
            out[i] = (parquet_value){ .at = to, .length = head + out[i].length };
            last = to;
            to += out[i].length;
        }
    }
    free(prefix);
    return wrong;
}

/* ---- the table ------------------------------------------------------------------------------- */
static const char *(*const decoders[])(value_input *in, parquet_value *out, size_t n) = {
    [0] = decode_plain,          [2] = decode_indices,       [3] = decode_bool_runs,
    [5] = decode_delta_integers, [6] = decode_delta_lengths, [7] = decode_delta_strings,
    [8] = decode_indices,        [9] = decode_byte_split,
};

bool encoding_known(int encoding) {
    return encoding >= 0 && encoding < (int)COUNT_OF(decoders) && decoders[encoding];
}

const char *decode_values(int32_t encoding, value_input *in, parquet_value *out, size_t n) {
    if (!encoding_known(encoding)) return "the encoding is not supported";
    return n ? decoders[encoding](in, out, n) : NULL;
}
