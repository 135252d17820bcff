/* LZ4: blocks, as Parquet's LZ4_RAW has them, and frames of blocks, as Arrow has them.
 *
 *     sequence   token, length of literals, literals, u16 distance, length of the copy
 *     block      sequences; the last one ends after its literals
 *     frame      magic, flags, [u64 length], checksum, blocks with u32 lengths, 0, [checksum]
 *
 * A token holds both lengths, 4 bits each; if these are all ones, bytes that are added follow. Short sequences,
 * nearly all, are moved 16 bytes at a time, beyond their end, where at least SLACK bytes are left on both
 * sides; the next sequence overwrites the excess. */
#include <string.h>
#include <xxhash.h>

#include "parquet/parquet_internal.h"

enum {
    SLACK = 64,
    LENGTH_MORE = 15, /* the length is continued in bytes */
    SHORTEST_COPY = 4,
};
static const char *const DAMAGED = "the LZ4 data is damaged", *const TRUNCATED =
                                                                  "the LZ4 data is truncated";

typedef struct lz4_state {
    const uint8_t *p, *end;         /* input */
    uint8_t *out, *out_end, *begin; /* output; copies do not reach back beyond `begin` */
} lz4_state;

/* ---- blocks ---------------------------------------------------------------------------------- */
/* Decodes sequences without continued lengths as long as both sides have slack.
 * @return false: the data is damaged. */
static bool decode_short_sequences(lz4_state *s) {
    const uint8_t *p = s->p;
    uint8_t *out = s->out;
    while (s->end - p >= SLACK && s->out_end - out >= SLACK) {
        size_t literals = *p >> 4, n = *p & 15;
        if (literals == LENGTH_MORE || n == LENGTH_MORE) break;
        memcpy(out, p + 1, 16);
        out += literals;
        p += 1 + literals;
        size_t back = (size_t)p[0] | (size_t)p[1] << 8;
        p += 2;
        n += SHORTEST_COPY;
        if (back - 1 >= (size_t)(out - s->begin)) return false; /* 0 is refused too */
        const uint8_t *from = out - back;
        if (back >= 8) {
            for (size_t i = 0; i < 24; i += 8) memcpy(out + i, from + i, 8);
        } else {
            for (size_t i = 0; i < n; i++) out[i] = from[i];
        }
        out += n;
    }
    s->p = p;
    s->out = out;
    return true;
}

static bool continue_length(lz4_state *s, size_t *n) {
    uint8_t more = 255;
    if (*n != LENGTH_MORE) return true;
    while (more == 255 && s->p < s->end) *n += more = *s->p++;
    return more != 255;
}

/* Repeats the last `back` bytes, n in all; the caller has checked both. */
static void copy_back(lz4_state *s, size_t back, size_t n) {
    uint8_t *to = s->out;
    const uint8_t *from = to - back;
    size_t i = 0;
    if (back >= 16)
        for (; i + 16 <= n; i += 16) memcpy(to + i, from + i, 16);
    for (; i < n; i++) to[i] = from[i];
    s->out += n;
}

/* Decodes one sequence of any length. @return false: the data is damaged. */
static bool decode_sequence(lz4_state *s) {
    size_t literals = *s->p >> 4, n = *s->p & 15;
    s->p++;
    if (!continue_length(s, &literals)) return false;
    if (literals > (size_t)(s->end - s->p) || literals > (size_t)(s->out_end - s->out))
        return false;
    memcpy(s->out, s->p, literals);
    s->p += literals;
    s->out += literals;
    if (s->p == s->end) return true; /* the last one */
    if (s->end - s->p < 2) return false;
    size_t back = (size_t)s->p[0] | (size_t)s->p[1] << 8;
    s->p += 2;
    if (!continue_length(s, &n)) return false;
    n += SHORTEST_COPY;
    if (back - 1 >= (size_t)(s->out - s->begin) || n > (size_t)(s->out_end - s->out)) return false;
    copy_back(s, back, n);
    return s->p < s->end;
}

/* @return false: the data is damaged. */
static bool decode_block(lz4_state *s) {
    if (s->p == s->end) return false;
    while (s->p < s->end)
        if (!decode_short_sequences(s) || !decode_sequence(s)) return false;
    return true;
}

const char *lz4_block_decompress(const void *from, size_t n, void *to, size_t size) {
    lz4_state s = { .p = from,
                    .end = (const uint8_t *)from + n,
                    .out = to,
                    .out_end = (uint8_t *)to + size,
                    .begin = to };
    if (!decode_block(&s)) return DAMAGED;
    return s.out == s.out_end ? NULL : TRUNCATED;
}

/* ---- frames ---------------------------------------------------------------------------------- */
typedef struct lz4_frame {
    bool independent, block_sums, content_sum;
    size_t block_bytes; /* of the longest block, decompressed */
} lz4_frame;

enum { FRAME_MAGIC = 0x184D2204, FRAME_VERSION = 1, MAGIC_AND_FLAGS = 6 };
static const uint32_t NOT_COMPRESSED = (uint32_t)1 << 31; /* in the length of a block */

/* Takes a u32 off the input. @return false: it ends before. */
static bool take_u32(lz4_state *s, uint32_t *out) {
    if (s->end - s->p < 4) return false;
    *out = load_u32(s->p);
    s->p += 4;
    return true;
}

/* @param size bytes that the frame should have, decompressed. */
static const char *read_frame_header(lz4_state *s, size_t size, lz4_frame *f) {
    const uint8_t *p = s->p;
    if (s->end - p < MAGIC_AND_FLAGS + 1) return TRUNCATED;
    if (load_u32(p) != FRAME_MAGIC) return "the data is not an LZ4 frame";
    uint8_t flags = p[4], largest = p[5] >> 4;
    if (flags >> 6 != FRAME_VERSION || (flags & 2) || (p[5] & 0x8F) || largest < 4)
        return "the LZ4 frame is of an unknown version";
    if (flags & 1) return "the LZ4 frame needs a dictionary, which is not supported";
    *f = (lz4_frame){ .independent = flags >> 5 & 1,
                      .block_sums = flags >> 4 & 1,
                      .content_sum = flags >> 2 & 1,
                      .block_bytes = (size_t)1 << (8 + 2 * largest) };
    size_t n = MAGIC_AND_FLAGS + (flags & 8 ? 8 : 0);
    if ((size_t)(s->end - p) < n + 1) return TRUNCATED;
    if ((flags & 8) && (uint64_t)load_signed(p + MAGIC_AND_FLAGS, 8) != size)
        return "the length of the LZ4 frame differs from its buffer's header";
    if (p[n] != (XXH32(p + 4, n - 4, 0) >> 8 & 0xFF)) return DAMAGED;
    s->p += n + 1;
    return NULL;
}

/* Decodes the block at s->p, whose length has been read. */
static const char *decode_frame_block(lz4_state *s, const lz4_frame *f, uint32_t length) {
    const size_t n = length & ~NOT_COMPRESSED, left = (size_t)(s->out_end - s->out);
    if (n > (size_t)(s->end - s->p)) return TRUNCATED;
    lz4_state block = { .p = s->p,
                        .end = s->p + n,
                        .out = s->out,
                        .out_end = s->out + MIN(left, f->block_bytes),
                        .begin = f->independent ? s->out : s->begin };
    s->p += n;
    uint32_t sum;
    if (f->block_sums && (!take_u32(s, &sum) || sum != XXH32(block.p, n, 0))) return DAMAGED;
    if (!(length & NOT_COMPRESSED)) {
        if (!decode_block(&block)) return DAMAGED;
    } else {
        if (n > (size_t)(block.out_end - block.out)) return DAMAGED;
        memcpy(block.out, block.p, n);
        block.out += n;
    }
    s->out = block.out;
    return NULL;
}

const char *lz4_frame_decompress(const void *from, size_t n, void *to, size_t size) {
    lz4_state s = { .p = from,
                    .end = (const uint8_t *)from + n,
                    .out = to,
                    .out_end = (uint8_t *)to + size,
                    .begin = to };
    lz4_frame f;
    uint32_t length, sum;
    const char *wrong = read_frame_header(&s, size, &f);
    while (!wrong) {
        if (!take_u32(&s, &length)) return TRUNCATED;
        if (length == 0) break;
        wrong = decode_frame_block(&s, &f, length);
    }
    if (wrong) return wrong;
    if (f.content_sum && (!take_u32(&s, &sum) || sum != XXH32(to, size, 0))) return DAMAGED;
    if (s.out != s.out_end) return TRUNCATED;
    return s.p == s.end ? NULL : DAMAGED;
}
