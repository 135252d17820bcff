/* e^x and tanh for loops that the compiler turns into vector code: no calls, no branches, no tables. Accurate
 * to about 1e-6 relative within [-87.3, 88.7], 0 below and infinity above. NaN stays NaN.
 *
 *     for (int64_t i = 0; i < n; i++) y[i] = vm_exp(x[i] - max);
 *
 * The build lets the compiler reorder sums, so nothing here relies on (a + b) - b keeping the
 * rounding of a + b, nor on n*hi + n*lo keeping its two halves apart.
 */
#ifndef INGOT_OPS_CPU_VMATH_H
#define INGOT_OPS_CPU_VMATH_H

#include "tensor/tensor.h"

static inline float vm_copysign(float x, float sign) {
    return f32_of_bits((f32_bits(x) & 0x7fffffffu) | (f32_bits(sign) & 0x80000000u));
}

/* cond ? a : b with both sides computed: gcc makes a branch of the plain form when a side is
 * costly, and a loop with a branch is not vectorized. */
static inline float vm_select(int cond, float a, float b) {
    uint32_t mask = -(uint32_t)(cond != 0);
    return f32_of_bits((f32_bits(a) & mask) | (f32_bits(b) & ~mask));
}

/* e^x = 2^n e^r (1 - d): r = x - n*hi with hi the leading 15 bits of ln 2, so that n*hi is exact,
 * and d = n*lo the first-order rest. e^r by a polynomial of degree 6 over half an octave. */
static inline float vm_exp(float x) {
    const float log2e = 1.44269504f, hi = 0.693145751953125f, lo = 1.42860677e-6f;
    float c =
        vm_select(x > -88.0f, x, -88.0f); /* NaN becomes -88 here, and is put back at the end */
    c = vm_select(c < 89.0f, c, 89.0f);
    float t = c * log2e;
    int32_t n = (int32_t)(t + vm_copysign(0.5f, t));
    float r = c - (float)n * hi;
    float q = 0.001392692661f;
    q = q * r + 0.008363773874f;
    q = q * r + 0.04166655011f;
    q = q * r + 0.1666657338f;
    q = q * r + 0.5f;
    float p = q * (r * r) + r;
    p = (p + 1.0f) * (1.0f - (float)n * lo);
    float y = f32_of_bits(f32_bits(p) + ((uint32_t)n << 23));
    y = vm_select(x < -87.3365448f, 0.0f, y);
    y = vm_select(x > 88.7228394f, f32_of_bits(0x7f800000u), y);
    return vm_select(x != x, x, y);
}

/* Accurate to about 2e-7 absolute. */
static inline float vm_tanh(float x) { return 1.0f - 2.0f / (1.0f + vm_exp(2.0f * x)); }

#endif
