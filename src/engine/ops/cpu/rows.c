/* Conversions of many elements to and from fp32: round to nearest, ties to even, subnormals kept, NaN stays
 * NaN; bit-exact with the converters of single elements in tensor.h. */
#include "chunks.h"
#include "vec.h"

/* ---- one fp16 element, branch-free so that loops over it vectorize --------------------------- */
/* The half's exponent and mantissa in fp32 position, then scaled by 2^112, the difference of the
 * biases: exact, and it normalizes subnormals as well. */
static inline float float_of_f16(uint16_t h) {
    uint32_t mag = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t finite = f32_bits(f32_of_bits(mag) * 0x1p112f);
    return f32_of_bits(sign | (mag >= 0x0f800000 ? mag | 0x7f800000 : finite));
}

/* Normal results round as integers; subnormal ones by adding 0.5, whose last mantissa bit weighs
 * what the half's does (2^-24), so that the addition itself rounds. */
static inline uint16_t f16_of(float x) {
    uint32_t u = f32_bits(x), mag = u & 0x7fffffff;
    uint32_t normal = (mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13;
    uint32_t tiny = f32_bits(f32_of_bits(mag) + 0.5f) - 0x3f000000;
    uint32_t code = mag < 0x38800000 ? tiny : normal;
    code = mag >= 0x47800000 ? 0x7c00 : code; /* 65536 and more, and infinity */
    code = mag > 0x7f800000 ? 0x7e00 | (mag >> 13 & 0x3ff) : code;
    return (uint16_t)(u >> 16 & 0x8000) | (uint16_t)code;
}

/* ---- fp16 with the processor's own instructions, where it has them, for as many whole vectors as fit.
 * @return how many elements that was; the functions above convert the rest. */
#if defined(__ARM_NEON)
static int64_t f16_load_vectors(const uint16_t *s, float *d, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(s + i));
        vst1q_f32(d + i, vcvt_f32_f16(vget_low_f16(h)));
        vst1q_f32(d + i + 4, vcvt_high_f32_f16(h));
    }
    return i;
}
static int64_t f16_store_vectors(const float *s, uint16_t *d, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        float16x4_t lo = vcvt_f16_f32(vld1q_f32(s + i));
        vst1q_u16(d + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(lo, vld1q_f32(s + i + 4))));
    }
    return i;
}
#elif defined(__F16C__)
static int64_t f16_load_vectors(const uint16_t *s, float *d, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + i))));
    return i;
}
static int64_t f16_store_vectors(const float *s, uint16_t *d, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(d + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}
#else
static int64_t f16_load_vectors(const uint16_t *s, float *d, int64_t n) { return 0; }
static int64_t f16_store_vectors(const float *s, uint16_t *d, int64_t n) { return 0; }
#endif

/* ---- arrays -------------------------------------------------------------------------------- */
VEC_INLINE void convert_elements(dtype from, const void *s, dtype to, void *d, int64_t n) {
    int64_t k = 0;
    for (vf x[2]; k + 2 * VEC <= n; k += 2 * VEC) {
        vec_load2(from, s, k, x);
        vec_store2(to, d, k, x);
    }
    for (; k < n; k++) elem_put(to, d, k, elem_get(from, s, k));
}
static void f16_load(const uint16_t *restrict s, float *restrict d, int64_t n) {
    int64_t done = f16_load_vectors(s, d, n);
#pragma omp simd
    for (int64_t i = done; i < n; i++) d[i] = float_of_f16(s[i]);
}
static void f16_store(const float *restrict s, uint16_t *restrict d, int64_t n) {
    int64_t done = f16_store_vectors(s, d, n);
#pragma omp simd
    for (int64_t i = done; i < n; i++) d[i] = f16_of(s[i]);
}

void CPU(to_f32)(dtype dt, const void *src, float *dst, int64_t n) {
    switch (dt) {
    case DT_BF16: convert_elements(DT_BF16, src, DT_F32, dst, n); break;
    case DT_F16: f16_load(src, dst, n); break;
    default: dt_to_f32(dt, src, dst, n);
    }
}

void CPU(from_f32)(dtype dt, const float *src, void *dst, int64_t n) {
    switch (dt) {
    case DT_BF16: convert_elements(DT_F32, src, DT_BF16, dst, n); break;
    case DT_F16: f16_store(src, dst, n); break;
    default: dt_from_f32(dt, src, dst, n);
    }
}

const float *CPU(row_get)(const tensor *t, int64_t row, int64_t cols, float *tmp) {
    return elems_get(t, row * cols, cols, tmp);
}
float *CPU(row_at)(const tensor *t, int64_t row, int64_t cols, float *tmp) {
    return elems_at(t, row * cols, tmp);
}
void CPU(row_put)(const tensor *t, int64_t row, int64_t cols, const float *from) {
    elems_put(t, row * cols, cols, from);
}
