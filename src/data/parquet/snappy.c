/* Snappy's raw format: the decompressed length, then literals and copies of earlier output.
 *
 * The elements of text yield five bytes on average, and whether the next one is a literal or a copy is hard
 * to predict. So decode_fast has one branch per element that is nearly always taken the same way: a table
 * and a conditional move select the source, and 16 bytes are moved, beyond the element's end; the next
 * element overwrites the excess. What remains on the critical path is finding the next tag. Near the
 * ends of input and output, and for rare elements, decode_element counts every byte. */
#include <string.h>

#include "parquet/parquet_internal.h"

enum {
    STEP = 16,              /* bytes moved at once */
    LONGEST = 64,           /* bytes that an element can yield in decode_fast; a multiple of STEP */
    SLACK = LONGEST + STEP, /* bytes of input and output that decode_fast needs per element */
};

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

/* Table of facts about an element, by its tag, for decode_fast: the bytes that it yields in bits 0 to 7, and above them
 * a part of the distance back to the bytes that it copies:
 *
 *     tag & 3   0: literal                 as many as it yields: the check of distances accepts it
 *               1: copy, 1 byte follows    bits 8 to 10 of the distance
 *               2: copy, 2 bytes follow    0
 *
 * The rare elements are literals whose length follows, and copies with a distance of four bytes, which
 * writers do not make. They get the distance 0, which the check refuses. */
#define YIELD(t)    ((t) % 4 == 1 ? (t) / 4 % 8 + 4 : (t) / 4 + 1)
#define IS_RARE(t)  ((t) % 4 == 3 || ((t) % 4 == 0 && (t) / 4 >= 60))
#define DISTANCE(t) ((t) % 4 == 0 ? YIELD(t) : (t) % 4 == 1 ? (t) / 32 * 256 : 0)
#define TAG(t)      (IS_RARE(t) ? LONGEST : YIELD(t) | DISTANCE(t) << 8)
#define TAG_4(t)    TAG(t), TAG((t) + 1), TAG((t) + 2), TAG((t) + 3)
#define TAG_16(t)   TAG_4(t), TAG_4((t) + 4), TAG_4((t) + 8), TAG_4((t) + 12)
#define TAG_64(t)   TAG_16(t), TAG_16((t) + 16), TAG_16((t) + 32), TAG_16((t) + 48)
static const uint32_t tags[256] = { TAG_64(0), TAG_64(64), TAG_64(128), TAG_64(192) };

/* Decodes elements while both sides have slack, up to the first that is rare or damaged, or that repeats
 * its own output: these are left to decode_element. */
static void decode_fast(snappy_state *s) {
    static const uint32_t distance_mask[4] = { 0, 0xFF, 0xFFFF, 0 };
    if (s->end - s->p < SLACK || s->out_end - s->out < SLACK || s->out - s->begin < LONGEST) return;
    const uint8_t *p = s->p, *stop = s->end - SLACK;
    uint8_t *out = s->out, *out_stop = s->out_end - SLACK;
    uint32_t tag = *p;
    while (p <= stop && out <= out_stop) {
        uint32_t kind = tag & 3, known = tags[tag];
        const uint8_t *data = p + 1;
        size_t n = known & 0xFF, literal = (tag >> 2) + 1, data_bytes = kind ? kind : literal;
        size_t back = (load_u32(data) & distance_mask[kind]) + (known >> 8);
        /* Whether n <= back <= bytes made so far, which are LONGEST or more: one unsigned comparison. */
        if (back - n > (size_t)(out - s->begin) - n) break;
        tag = data[data_bytes];
        const uint8_t *from = kind ? out - back : data;
        memmove(out, from, STEP); /* beyond n bytes the two may overlap */
        if (n > STEP)
            for (int i = STEP; i < LONGEST; i += STEP) memmove(out + i, from + i, STEP);
        p = data + data_bytes;
        out += n;
    }
    s->p = p;
    s->out = out;
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
    if (length != size) return "the length of the Snappy data differs from the page's header";
    while (s.p < s.end) {
        decode_fast(&s);
        if (s.p < s.end && !decode_element(&s)) return "the Snappy data is damaged";
    }
    return s.out == s.out_end ? NULL : "the Snappy data is truncated";
}
