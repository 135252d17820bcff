/* Snappy's raw format: the decompressed length, then literals and copies of earlier output.
 *
 * Most elements are short, so where at least SLACK bytes are left on both sides they are moved 16 bytes at
 * a time, beyond their end; the next element overwrites the excess. Near the ends every byte is counted. */
#include <string.h>

#include "parquet/parquet_internal.h"

enum { SLACK = 64 + 16 }; /* the longest copy, and a step beyond it */

typedef struct snappy_state {
    const uint8_t *p, *end;         /* input */
    uint8_t *out, *out_end, *begin; /* output */
} snappy_state;

static bool read_length(snappy_state *s, uint32_t *out) {
    *out = 0;
    for (int shift = 0; shift < 35 && s->p < s->end; shift += 7) {
        uint8_t b = *s->p++;
        if (shift == 28 && b > 15) return false;
        *out |= (uint32_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

/* Reads n <= 4 bytes, little-endian. The caller has checked that they are there. */
static uint32_t snappy_read_bytes(snappy_state *s, int n) {
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint32_t)*s->p++ << 8 * i;
    return v;
}

/* Repeats the last `back` bytes, n <= 64 in all, and writes up to 15 bytes beyond. */
static inline void copy_fast(uint8_t *to, size_t back, size_t n) {
    const uint8_t *from = to - back;
    if (back >= 16) {
        memcpy(to, from, 16);
        for (size_t i = 16; i < n; i += 16) memcpy(to + i, from + i, 16);
    } else if (back >= 8) {
        for (size_t i = 0; i < n; i += 8) memcpy(to + i, from + i, 8);
    } else {
        for (size_t i = 0; i < n; i++) to[i] = from[i];
    }
}

/* Bytes that the element of each tag yields, if its length is in the tag. */
#define YIELD(t)    ((t) % 4 == 1 ? (t) / 4 % 8 + 4 : (t) / 4 + 1)
#define YIELD_4(t)  YIELD(t), YIELD((t) + 1), YIELD((t) + 2), YIELD((t) + 3)
#define YIELD_16(t) YIELD_4(t), YIELD_4((t) + 4), YIELD_4((t) + 8), YIELD_4((t) + 12)
#define YIELD_64(t) YIELD_16(t), YIELD_16((t) + 16), YIELD_16((t) + 32), YIELD_16((t) + 48)
static const uint8_t yields[256] = { YIELD_64(0), YIELD_64(64), YIELD_64(128), YIELD_64(192) };

/* Decodes elements as long as both sides have slack. Which of the two short forms a copy has is hard to
 * predict, so the table and masks select without a branch. @return false: the data is damaged. */
static bool decode_fast(snappy_state *s) {
    static const uint32_t low_mask[4] = { 0, 0xFF, 0xFFFF, 0xFFFFFFFF },
                          high_mask[4] = { 0, 0x700, 0, 0 };
    if (s->end - s->p < SLACK || s->out_end - s->out < SLACK) return true;
    const uint8_t *p = s->p, *stop = s->end - SLACK;
    uint8_t *out = s->out, *out_stop = s->out_end - SLACK;
    uint32_t tag = *p; /* of the next element: loaded while the one before is copied */
    while (p <= stop && out <= out_stop) {
        uint32_t kind = tag & 3;
        if (kind == 0) {
            size_t n = (tag >> 2) + 1;
            if (n > 60) break; /* its length follows: left to decode_element */
            memcpy(out, p + 1, 16);
            tag = p[1 + n];
            for (size_t i = 16; i < n; i += 16) memcpy(out + i, p + 1 + i, 16);
            p += 1 + n;
            out += n;
            continue;
        }
        size_t n = yields[tag];
        size_t back = (load_u32(p + 1) & low_mask[kind]) | (tag << 3 & high_mask[kind]);
        p += 1 + kind + (kind == 3);
        tag = *p;
        if (back - 1 >= (size_t)(out - s->begin)) return false; /* 0 is refused too */
        copy_fast(out, back, n);
        out += n;
    }
    s->p = p;
    s->out = out;
    return true;
}

/* Decodes one element. @return false: the data is damaged. */
static bool decode_element(snappy_state *s) {
    uint8_t tag = *s->p++;
    int kind = tag & 3, extra = kind == 3 ? 4 : kind;
    size_t n = (size_t)(tag >> 2) + 1;
    if (kind == 0) extra = n > 60 ? (int)n - 60 : 0;
    if (s->end - s->p < extra) return false;
    if (kind == 0) {
        if (extra) n = (size_t)snappy_read_bytes(s, extra) + 1;
        if (n > (size_t)(s->end - s->p) || n > (size_t)(s->out_end - s->out)) return false;
        memcpy(s->out, s->p, n);
        s->p += n;
        s->out += n;
        return true;
    }
    size_t back = snappy_read_bytes(s, extra);
    if (kind == 1) n = (size_t)(tag >> 2 & 7) + 4, back |= (size_t)(tag >> 5) << 8;
    if (back == 0 || back > (size_t)(s->out - s->begin) || n > (size_t)(s->out_end - s->out))
        return false;
    const uint8_t *from = s->out - back;
    for (size_t i = 0; i < n; i++) s->out[i] = from[i];
    s->out += n;
    return true;
}

const char *snappy_decompress(const void *from, size_t n, void *to, size_t size) {
    snappy_state s = { .p = from,
                       .end = (const uint8_t *)from + n,
                       .out = to,
                       .out_end = (uint8_t *)to + size,
                       .begin = to };
    uint32_t length;
    if (!read_length(&s, &length)) return "the Snappy data is truncated";
    if (length != size) return "the Snappy data has another length than the page's header states";
    while (s.p < s.end) {
        if (!decode_fast(&s)) return "the Snappy data is damaged";
        if (s.p < s.end && !decode_element(&s)) return "the Snappy data is damaged";
    }
    return s.out == s.out_end ? NULL : "the Snappy data is truncated";
}
