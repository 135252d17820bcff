/* Vectors as wide as the instruction set's registers, in the compiler's own vector types: where a
 * loop is too much for the auto-vectoriser (several accumulators, narrow types loaded on the fly).
 * Written with the element type as a parameter that is constant after inlining.
 *
 *     vf acc = { 0 };
 *     for (; k + VEC <= d; k += VEC) acc += vec_load(DT_BF16, x, k) * vec_load(DT_F32, w, k);
 *     float sum = vec_sum(acc);
 */
#ifndef INGOT_OPS_CPU_VEC_H
#define INGOT_OPS_CPU_VEC_H

#include "tensor/tensor.h"

#include <string.h>

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
enum { VEC = VEC_BYTES / 4 };
typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VEC_BYTES / 2)));

VEC_INLINE vf vec_of(float x) { return x - (vf){ 0 }; }
/* Lanes of a where the mask is set (a comparison's result), else of b. */
VEC_INLINE vf vec_select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
VEC_INLINE float vec_sum(vf x) { /* always in the same order */
    float s = 0;
    for (int i = 0; i < VEC; i++) s += x[i];
    return s;
}

/* ---- bf16, with the same rounding as f32_to_bf16 -------------------------------------------- */
VEC_INLINE vf vec_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
VEC_INLINE vh vec_to_bf16(vf x) { return (vh)vcvt_bf16_f32((float32x4_t)x); }
#else
VEC_INLINE vh vec_to_bf16(vf x) {
    vu u = (vu)x, even = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    vu nan = (vu)(x != x);
    return __builtin_convertvector((quiet & nan) | (even & ~nan), vh);
}
#endif

/* ---- elements [k, k + VEC) of an array of fp32 or bf16 ----------------------------------------- */
VEC_INLINE vf vec_load(dtype dt, const void *p, int64_t k) {
    vf x;
    vh h;
    if (dt == DT_F32) {
        memcpy(&x, (const float *)p + k, sizeof x);
        return x;
    }
    memcpy(&h, (const uint16_t *)p + k, sizeof h);
    return vec_from_bf16(h);
}
VEC_INLINE void vec_store(dtype dt, void *p, int64_t k, vf x) {
    if (dt == DT_F32) {
        memcpy((float *)p + k, &x, sizeof x);
        return;
    }
    vh h = vec_to_bf16(x);
    memcpy((uint16_t *)p + k, &h, sizeof h);
}
/* What a stored x reads back as. */
VEC_INLINE vf vec_round(dtype dt, vf x) { return dt == DT_F32 ? x : vec_from_bf16(vec_to_bf16(x)); }

/* Elements [k, k + VEC) of an array of n: at its end, lanes beyond read `fill` and are not stored. */
VEC_INLINE vf vec_get(dtype dt, const void *p, int64_t k, int64_t n, float fill) {
    if (k + VEC <= n) return vec_load(dt, p, k);
    vf x = vec_of(fill);
    for (int64_t i = 0; k + i < n; i++)
        x[i] = dt == DT_F32 ? ((const float *)p)[k + i] : bf16_to_f32(((const uint16_t *)p)[k + i]);
    return x;
}
VEC_INLINE void vec_put(dtype dt, void *p, int64_t k, int64_t n, vf x) {
    if (k + VEC <= n) {
        vec_store(dt, p, k, x);
        return;
    }
    for (int64_t i = 0; k + i < n; i++) {
        if (dt == DT_F32)
            ((float *)p)[k + i] = x[i];
        else
            ((uint16_t *)p)[k + i] = f32_to_bf16(x[i]);
    }
}

/* ---- 1 / (1 + 2^t) -----------------------------------------------------------------------------
 * 2^t = 2^n 2^r, n the nearest integer: adding 1.5 * 2^23 leaves n in the low bits of the sum,
 * which is read as an integer, so that no reordering of sums can undo it. 2^r by a polynomial,
 * within 3e-7. t is kept within the exponents there are, where the result is 1 or 0 anyway. NaN
 * gives garbage: multiply by what gave the NaN. */
VEC_INLINE vf vec_logistic2(vf t) {
    const vf magic = vec_of(12582912.0f), top = vec_of(126.0f);
    t = vec_select(t > top, top, t);
    t = vec_select(t < -top, -top, t);
    vu shifted = (vu)(t + magic);
    vf r = t - __builtin_convertvector((vi)(shifted - (vu)magic), vf);
    vf p = r * 0.0013381302537f + 0.0096663685154f;
    p = p * r + 0.055503810138f;
    p = p * r + 0.240223490380f;
    p = p * r + 0.693147180560f;
    p = p * r + 1.0f;
    vf power = (vf)((vu)p + (shifted << 23));
    return 1.0f / (1.0f + power);
}

#endif
