/* block8: moments in a byte an element. Depends on util.
 *
 * A block of 256 elements shares an fp32 scale, its largest magnitude. A byte says an element as a
 * part of the scale, as a small float with 3 bits of mantissa, so that neighbours differ by 6 to
 * 12 % wherever they lie:
 *
 *     unsigned (second moments)   0: zero;  1..255: from 2^-31.75 up to 1, 8 values an octave
 *     signed (first moments)      bit 7 the sign, below it 0: zero;  1..127: 2^-15.75 up to 1
 *
 * The square of the signed range is the unsigned one, as the moments are. Values are rounded to the
 * nearest code; what lies below the smallest becomes zero when signed and the smallest code when
 * unsigned: a denominator may be too large, never zero by rounding. (Rounding by chance, without
 * bias, was tried: over 1000 steps its noise cost more than the bias it saved.)
 *
 * Memory of n elements: ceil(n / 256) * 256 codes, then one fp32 scale a block.
 *
 * The largest element of a block always has the largest code, so decoding and encoding again
 * finds the same scale and the same codes. A scale below BLOCK8_TINY is taken as 0:
 * there decoded values would lose bits, and beside any eps they vanish anyway.
 */
#ifndef INGOT_OPS_BLOCK8_H
#define INGOT_OPS_BLOCK8_H

#include "util/util.h"

#include <string.h>

enum { BLOCK8 = 256, BLOCK8_SHIFT = 20 };
#define BLOCK8_TINY 1e-27f
#define BLOCK8_ONE  0x3f800000u /* the bits of 1.0f */

static inline int64_t block8_count(int64_t n) { return (n + BLOCK8 - 1) / BLOCK8; }
static inline size_t block8_bytes(int64_t n) {
    return (size_t)block8_count(n) * (BLOCK8 + sizeof(float));
}
static inline float *block8_scales(void *state, int64_t n) {
    return (float *)((uint8_t *)state + block8_count(n) * BLOCK8);
}

static inline uint32_t block8_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float block8_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The largest magnitude of a block, 0 when tiny; a NaN shows. */
static inline float block8_scale(const float *x, int64_t n) {
    uint32_t most = 0; /* the bits of magnitudes are ordered as they are */
    for (int64_t k = 0; k < n; k++) {
        uint32_t size = block8_bits(x[k]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most < block8_bits(BLOCK8_TINY) ? 0 : block8_float(most);
}

/* Encodes up to 256 elements. */
static inline void block8_pack(const float *restrict x, int64_t n, bool sign,
                               uint8_t *restrict code, float *restrict scale) {
    const float max = block8_scale(x, n), inverse = 1 / max;
    *scale = max;
    if (max == 0) {
        for (int64_t k = 0; k < n; k++) code[k] = 0;
        return;
    }
    /* one step below the smallest code, where zero would be if it were one of the series */
    const uint32_t zero = BLOCK8_ONE - ((sign ? 127u : 255u) << BLOCK8_SHIFT);
    const uint32_t half = (uint32_t)1 << (BLOCK8_SHIFT - 1);
    for (int64_t k = 0; k < n; k++) {
        uint32_t bits = block8_bits(x[k]), size = bits & 0x7fffffffu;
        uint32_t part = block8_bits(block8_float(size) * inverse);
        /* the reciprocal may miss 1 by a bit, and the largest must have the largest code */
        part = ((size == block8_bits(max)) | (part > BLOCK8_ONE)) ? BLOCK8_ONE : part;
        uint32_t c = ((part > zero ? part - zero : 0) + half) >> BLOCK8_SHIFT;
        uint32_t some = c + ((c == 0) & (size != 0));
        code[k] = (uint8_t)(sign ? c | (c ? bits >> 24 & 0x80u : 0) : some);
    }
}

static inline void block8_unpack(const uint8_t *restrict code, int64_t n, bool sign, float scale,
                                 float *restrict x) {
    const uint32_t top = sign ? 127 : 255;
    for (int64_t k = 0; k < n; k++) {
        uint32_t c = code[k] & top, minus = sign ? (uint32_t)(code[k] & 0x80u) << 24 : 0;
        uint32_t bits = BLOCK8_ONE - ((top - c) << BLOCK8_SHIFT);
        x[k] = block8_float((c ? bits : 0) | minus) * scale;
    }
}

#endif
