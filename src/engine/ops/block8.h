/* block8: optimizer moments in one byte per element. Depends on tensor.
 *
 * A block of 256 elements shares an fp32 scale, its largest magnitude. A byte encodes an element as a
 * fraction of the scale: a small float with 3 bits of mantissa, so that adjacent codes differ by 6 to
 * 12 % everywhere in the range:
 *
 *     unsigned (second moments)   0..255: from 2^-31.75 up to 1, 8 values per octave
 *     signed (first moments)      bit 7 the sign, below it 0: zero;  1..127: 2^-15.75 up to 1
 *
 * The square of the signed range is the unsigned one, as the moments are. Values are rounded to the
 * nearest code. The unsigned form has no zero: a denominator may come out too large, but never 0.
 * (Stochastic rounding, which has no bias, was tried: over 1000 steps its noise cost more than the bias
 * it saved.)
 *
 * Memory of n elements: ceil(n / 256) * 256 codes, then one fp32 scale per block.
 *
 * The largest element of a block always has the largest code, so that decoding and encoding again yields
 * the same scale and the same codes. A scale below BLOCK8_TINY is stored as 0: its decoded values would
 * lose bits, and compared with any eps they vanish anyway.
 */
#ifndef INGOT_OPS_BLOCK8_H
#define INGOT_OPS_BLOCK8_H

#include "tensor/tensor.h"

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

/* @return the largest magnitude of a block; 0 when below BLOCK8_TINY, NaN when one element is NaN. */
static inline float block8_scale(const float *x) {
    uint32_t most = 0; /* magnitudes are ordered as their bits */
    for (int k = 0; k < BLOCK8; k++) {
        uint32_t size = f32_bits(x[k]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most < f32_bits(BLOCK8_TINY) ? 0 : f32_of_bits(most);
}

/* @return the bits of the fraction that code 0 encodes (signed: would encode, if it were not zero). */
static inline uint32_t block8_base(bool sign) {
    return BLOCK8_ONE - ((sign ? 127u : 255u) << BLOCK8_SHIFT);
}

/* Encodes a block of 256 elements; those past the end of the tensor must be 0. */
static inline void block8_pack(const float *__restrict x, bool sign, uint8_t *__restrict code,
                               float *__restrict scale) {
    const uint32_t base = block8_base(sign), half = (uint32_t)1 << (BLOCK8_SHIFT - 1);
    const float max = block8_scale(x), inverse = max > 0 ? 1 / max : 0;
    *scale = max;
    for (int k = 0; k < BLOCK8; k++) {
        uint32_t bits = f32_bits(x[k]);
        uint32_t part = f32_bits(f32_of_bits(bits & 0x7fffffffu) * inverse);
        uint32_t c = ((part > base ? part : base) - base + half) >> BLOCK8_SHIFT;
        code[k] = (uint8_t)(sign ? c | (bits >> 24 & 0x80u) : c);
    }
}

static inline void block8_unpack(const uint8_t *__restrict code, bool sign, float scale,
                                 float *__restrict x) {
    const uint32_t base = block8_base(sign);
    for (int k = 0; k < BLOCK8; k++) {
        uint32_t c = code[k] & (sign ? 0x7fu : 0xffu), bits = base + (c << BLOCK8_SHIFT);
        if (sign) bits = (c ? bits : 0) | (uint32_t)(code[k] & 0x80u) << 24;
        x[k] = f32_of_bits(bits) * scale;
    }
}

#endif
