/* Vectors as wide as the instruction set's registers, in the compiler's own vector types: for loops that
 * are too complex for the auto-vectorizer (several accumulators, narrow types loaded on the fly).
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

#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <immintrin.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline))
/* Before a loop over registers: gcc keeps an array in memory unless all its loops are unrolled. */
#if defined(__clang__)
#define VEC_UNROLL _Pragma("unroll")
#else
#define VEC_UNROLL _Pragma("GCC unroll 8")
#endif

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
/* a b + c, rounded once where the instruction set can: by name, since of a b + c d the compiler may fuse
 * either product, and another one in the next copy of a loop. */
#if defined(__ARM_NEON)
VEC_INLINE vf vec_muladd(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#elif defined(__AVX512F__)
VEC_INLINE vf vec_muladd(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__FMA__) && defined(__AVX2__)
VEC_INLINE vf vec_muladd(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
VEC_INLINE vf vec_muladd(vf a, vf b, vf c) { return a * b + c; }
#endif
/* x within [-top, top]; NaN stays NaN. */
#if defined(__ARM_NEON)
VEC_INLINE vf vec_clamp(vf x, vf top) {
    float32x4_t t = (float32x4_t)top;
    return (vf)vmaxq_f32(vminq_f32((float32x4_t)x, t), vnegq_f32(t));
}
#else
VEC_INLINE vf vec_clamp(vf x, vf top) {
    return vec_select(x > top, top, vec_select(x < -top, -top, x));
}
#endif
VEC_INLINE float vec_sum(vf x) { /* always in the same order */
    float s = 0;
    for (int i = 0; i < VEC; i++) s += x[i];
    return s;
}
/* The same by halves, in fewer instructions: in a function that is not inlined, since the compiler may change the order. */
#if defined(__ARM_NEON) && defined(__aarch64__)
VEC_INLINE float vec_total(vf x) { return vaddvq_f32((float32x4_t)x); }
#elif defined(__AVX512F__)
VEC_INLINE float vec_total(vf x) { return _mm512_reduce_add_ps((__m512)x); }
#elif defined(__AVX2__)
VEC_INLINE float vec_total(vf x) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
#else
VEC_INLINE float vec_total(vf x) { return vec_sum(x); }
#endif

/* ---- bf16, with the same rounding as f32_to_bf16 -----------------------------------------------
 * Widening and narrowing by intrinsics: gcc 12 makes scalar code of __builtin_convertvector. */
#if defined(__ARM_NEON)
VEC_INLINE vf vec_from_bf16(vh h) { return (vf)vshll_n_u16((uint16x4_t)h, 16); }
VEC_INLINE vh vec_high_half(vu u) { return (vh)vshrn_n_u32((uint32x4_t)u, 16); }
#elif defined(__AVX512F__)
VEC_INLINE vf vec_from_bf16(vh h) { return (vf)((vu)_mm512_cvtepu16_epi32((__m256i)h) << 16); }
VEC_INLINE vh vec_high_half(vu u) { return (vh)_mm512_cvtepi32_epi16((__m512i)(u >> 16)); }
#elif defined(__AVX2__)
VEC_INLINE vf vec_from_bf16(vh h) { return (vf)((vu)_mm256_cvtepu16_epi32((__m128i)h) << 16); }
VEC_INLINE vh vec_high_half(vu u) {
    __m256i s = _mm256_srai_epi32((__m256i)u, 16); /* signed, as the pack wants it */
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packs_epi32(s, s), 0xd8));
}
#elif defined(__SSE2__)
VEC_INLINE vf vec_from_bf16(vh h) {
    __m128i wide = _mm_cvtsi64_si128((int64_t)h);
    return (vf)_mm_unpacklo_epi16(_mm_setzero_si128(), wide);
}
VEC_INLINE vh vec_high_half(vu u) {
    __m128i s = _mm_srai_epi32((__m128i)u, 16);
    return (vh)_mm_cvtsi128_si64(_mm_packs_epi32(s, s));
}
#else
VEC_INLINE vf vec_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }
VEC_INLINE vh vec_high_half(vu u) { return __builtin_convertvector(u >> 16, vh); }
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
VEC_INLINE vh vec_to_bf16(vf x) { return (vh)vcvt_bf16_f32((float32x4_t)x); }
#elif defined(__AVX512F__) /* has an instruction too, but it flushes subnormals */
/* The high halves of the result are those of x in bf16. */
VEC_INLINE vu vec_round_bf16(vf x) {
    vu u = (vu)x, even = u + 0x7fff + ((u >> 16) & 1);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vu)_mm512_mask_or_epi32((__m512i)even, nan, (__m512i)u, _mm512_set1_epi32(0x400000));
}
VEC_INLINE vh vec_to_bf16(vf x) { return vec_high_half(vec_round_bf16(x)); }
#else
VEC_INLINE vh vec_to_bf16(vf x) {
    vu u = (vu)x, even = u + 0x7fff + ((u >> 16) & 1), quiet = u | 0x400000, nan = (vu)(x != x);
    return vec_high_half((quiet & nan) | (even & ~nan));
}
#endif

/* ---- elements [k, k + VEC) of an array of fp32 or bf16 --------------------------------------- */
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
/* Two vectors at once, which narrow types load and store in half the instructions. */
#if defined(__ARM_NEON)
VEC_INLINE void vec_widen2(uint16x8_t h, vf x[2]) {
    x[0] = (vf)vzip1q_u16(vdupq_n_u16(0), h); /* zips run on more pipes than long shifts */
    x[1] = (vf)vzip2q_u16(vdupq_n_u16(0), h);
}
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
VEC_INLINE uint16x8_t vec_narrow2(const vf x[2]) {
    bfloat16x8_t low = vcvtq_low_bf16_f32((float32x4_t)x[0]);
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, (float32x4_t)x[1]));
}
#elif defined(__ARM_NEON)
VEC_INLINE uint16x8_t vec_narrow2(const vf x[2]) {
    return vcombine_u16((uint16x4_t)vec_to_bf16(x[0]), (uint16x4_t)vec_to_bf16(x[1]));
}
#endif
VEC_INLINE void vec_load2(dtype dt, const void *p, int64_t k, vf x[2]) {
#if defined(__ARM_NEON)
    if (dt == DT_BF16) {
        vec_widen2(vld1q_u16((const uint16_t *)p + k), x);
        return;
    }
#endif
    x[0] = vec_load(dt, p, k);
    x[1] = vec_load(dt, p, k + VEC);
}
VEC_INLINE void vec_store2(dtype dt, void *p, int64_t k, const vf x[2]) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if (dt == DT_BF16) {
        vst1q_u16((uint16_t *)p + k, vec_narrow2(x));
        return;
    }
#elif defined(__AVX512BW__)
    if (dt == DT_BF16) { /* words 1, 3, 5, ... of both */
        const vu pair = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
        __m512i odd = (__m512i)(pair * 0x40004 + 0x30001);
        __m512i low = (__m512i)vec_round_bf16(x[0]), high = (__m512i)vec_round_bf16(x[1]);
        _mm512_storeu_si512((uint16_t *)p + k, _mm512_permutex2var_epi16(low, odd, high));
        return;
    }
#endif
    vec_store(dt, p, k, x[0]);
    vec_store(dt, p, k + VEC, x[1]);
}

/* One element, for what is left at the end of a row. */
VEC_INLINE float elem_get(dtype dt, const void *p, int64_t k) {
    if (dt == DT_F32) return ((const float *)p)[k];
    union {
        uint32_t u;
        float f;
    } x = { .u = (uint32_t)((const uint16_t *)p)[k] << 16 };
    return x.f;
}
VEC_INLINE void elem_put(dtype dt, void *p, int64_t k, float f) {
    union {
        float f;
        uint32_t u;
    } x = { .f = f };
    uint32_t even = x.u + 0x7fff + (x.u >> 16 & 1), quiet = x.u | 0x400000;
    if (dt == DT_F32)
        ((float *)p)[k] = f;
    else
        ((uint16_t *)p)[k] = (uint16_t)((f == f ? even : quiet) >> 16);
}

/* table[at[0]], table[at[1]], ... */
#if defined(                                                                                       \
    __ARM_NEON) /* integer registers put them together: lanes loaded one by one take longer */
VEC_INLINE uint64_t vec_join(const float *table, uint32_t first, uint32_t second) {
    uint32_t low, high;
    memcpy(&low, table + first, sizeof low);
    memcpy(&high, table + second, sizeof high);
    return (uint64_t)high << 32 | low;
}
VEC_INLINE vf vec_gather(const float *table, const uint16_t *at) {
    uint64_t i;
    memcpy(&i, at, sizeof i);
    uint64_t low = vec_join(table, i & 0xffff, i >> 16 & 0xffff);
    uint64_t high = vec_join(table, i >> 32 & 0xffff, (uint32_t)(i >> 48));
    return (vf)vcombine_u64(vcreate_u64(low), vcreate_u64(high));
}
/* first[l] and second[l] = table[at[l]][0] and [1] */
VEC_INLINE void vec_gather_pairs(const float (*table)[2], const uint16_t *at, vf *first,
                                 vf *second) {
    uint64_t i;
    memcpy(&i, at, sizeof i);
    float32x4_t low = vcombine_f32(vld1_f32(table[i & 0xffff]), vld1_f32(table[i >> 16 & 0xffff]));
    float32x4_t high = vcombine_f32(vld1_f32(table[i >> 32 & 0xffff]), vld1_f32(table[i >> 48]));
    *first = (vf)vuzp1q_f32(low, high);
    *second = (vf)vuzp2q_f32(low, high);
}
#else
VEC_INLINE vf vec_gather(const float *table, const uint16_t *at) {
    vf x = { 0 };
    for (int i = 0; i < VEC; i++) x[i] = table[at[i]];
    return x;
}
VEC_INLINE void vec_gather_pairs(const float (*table)[2], const uint16_t *at, vf *first,
                                 vf *second) {
    vf a = { 0 }, b = { 0 };
    for (int i = 0; i < VEC; i++) {
        a[i] = table[at[i]][0];
        b[i] = table[at[i]][1];
    }
    *first = a;
    *second = b;
}
#endif

/* ---- 2^t and 1 / (1 + 2^t) -----------------------------------------------------------------------
 * 2^t = 2^n 2^r, n the nearest integer: adding 1.5 * 2^23 leaves n in the low bits of the sum, which is
 * read as an integer, so that no reordering of sums can undo it. 2^r by a polynomial, within 3e-7. t is
 * clamped to the exponents there are. NaN gives garbage: multiply by what gave the NaN. */
VEC_INLINE vf vec_exp2(vf t) {
    const vf magic = vec_of(12582912.0f), top = vec_of(126.0f);
    t = vec_clamp(t, top);
    vu shifted = (vu)(t + magic);
    vf r = t - __builtin_convertvector((vi)(shifted - (vu)magic), vf);
    vf p = r * 0.0013381302537f + 0.0096663685154f;
    p = p * r + 0.055503810138f;
    p = p * r + 0.240223490380f;
    p = p * r + 0.693147180560f;
    p = p * r + 1.0f;
    return (vf)((vu)p + (shifted << 23));
}
VEC_INLINE vf vec_logistic2(vf t) { return 1.0f / (1.0f + vec_exp2(t)); }

#endif
