/* Snappy's raw format: the decompressed length, then literals and copies of earlier output. */
#include <string.h>

#include "parquet/parquet_internal.h"

typedef struct snappy_input {
    const uint8_t *p, *end;
} snappy_input;

static bool read_length(snappy_input *in, uint32_t *out) {
    *out = 0;
    for (int shift = 0; shift < 35 && in->p < in->end; shift += 7) {
        uint8_t b = *in->p++;
        if (shift == 28 && b > 15) return false;
        *out |= (uint32_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

/* Reads n <= 4 bytes, little-endian. The caller has checked that they are there. */
static uint32_t read_bytes(snappy_input *in, int n) {
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint32_t)*in->p++ << 8 * i;
    return v;
}

/* Copies n bytes from `back` bytes before `to`; source and target may overlap. Writes up to 15 bytes
 * beyond, where `space` says that they are there. */
static void copy_back(uint8_t *to, size_t back, size_t n, size_t space) {
    const uint8_t *from = to - back;
    if (back >= 8 && space >= n + 8) {
        for (size_t i = 0; i < n; i += 8) memcpy(to + i, from + i, 8);
        return;
    }
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

/* Decodes the tag at p. *literal: n bytes follow; otherwise n bytes from `back` bytes before. */
static bool read_tag(snappy_input *in, bool *literal, size_t *n, size_t *back) {
    uint8_t tag = *in->p++;
    int kind = tag & 3, extra = kind == 3 ? 4 : kind;
    *literal = kind == 0;
    *n = (size_t)(tag >> 2) + 1;
    if (kind == 0) extra = *n > 60 ? (int)*n - 60 : 0;
    if (in->end - in->p < extra) return false;
    if (kind == 0) {
        if (extra) *n = (size_t)read_bytes(in, extra) + 1;
        return true;
    }
    *back = read_bytes(in, extra);
    if (kind == 1) *n = (size_t)(tag >> 2 & 7) + 4, *back |= (size_t)(tag >> 5) << 8;
    return true;
}

const char *snappy_decompress(const void *from, size_t n, void *to, size_t size) {
    snappy_input in = { from, (const uint8_t *)from + n };
    uint32_t length;
    uint8_t *out = to, *end = out + size;
    if (!read_length(&in, &length)) return "the Snappy data is truncated";
    if (length != size) return "the Snappy data has another length than the page's header states";
    while (in.p < in.end) {
        bool literal;
        size_t len, back = 0;
        if (!read_tag(&in, &literal, &len, &back)) return "the Snappy data is truncated";
        if (len > (size_t)(end - out)) return "the Snappy data is longer than it states";
        if (literal) {
            if (len > (size_t)(in.end - in.p)) return "the Snappy data is truncated";
            memcpy(out, in.p, len);
            in.p += len;
        } else {
            if (back == 0 || back > (size_t)(out - (uint8_t *)to))
                return "the Snappy data refers to bytes before its beginning";
            copy_back(out, back, len, (size_t)(end - out));
        }
        out += len;
    }
    return out == end ? NULL : "the Snappy data is truncated";
}
