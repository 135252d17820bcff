/* Conversions between fp32 and the narrow types, one element at a time: the reference that the
 * vectorised converters in ops/ are tested against. */
#include "tensor/tensor.h"

#include <string.h>

/* A small float format: sign, `ebits` of exponent with the usual bias, `mbits` of mantissa. */
typedef struct mini {
    int ebits, mbits;
    uint32_t max_code; /* largest finite magnitude */
    uint32_t inf_code; /* what overflow becomes */
    uint32_t nan_code;
    bool has_inf;
} mini;
static const mini format_f16 = { 5, 10, 0x7bff, 0x7c00, 0x7e00, true };
static const mini format_e4m3 = { 4, 3, 0x7e, 0x7e, 0x7f, false };
static const mini format_e5m2 = { 5, 2, 0x7b, 0x7b, 0x7e, true };

/* Rounds to nearest even. Works on the magnitude as an integer, so that a carry out of the
 * mantissa moves into the exponent by itself. */
static uint32_t to_mini(const mini *f, float x) {
    uint32_t u = f32_bits(x), mag = u & 0x7fffffff;
    uint32_t sign = (u >> 31) << (f->ebits + f->mbits);
    int bias = (1 << (f->ebits - 1)) - 1, drop = 23 - f->mbits;
    if (mag > 0x7f800000) return sign | f->nan_code;
    if (mag == 0x7f800000) return sign | f->inf_code;
    int exp = (int)(mag >> 23) - 127 + bias;
    uint32_t code;
    if (exp >= 1) {
        uint32_t shifted = mag - ((uint32_t)(127 - bias) << 23);
        code = (shifted + (1u << (drop - 1)) - 1 + (shifted >> drop & 1)) >> drop;
    } else { /* subnormal: shift the mantissa with its hidden bit into place */
        int shift = drop + 1 - exp;
        if (shift > 25) return sign;
        uint32_t m = (mag & 0x7fffff) | 0x800000;
        code = (m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift;
    }
    return sign | (code > f->max_code ? f->inf_code : code);
}

static float from_mini(const mini *f, uint32_t code) {
    uint32_t sign = (code >> (f->ebits + f->mbits) & 1) << 31;
    uint32_t exp = code >> f->mbits & ((1u << f->ebits) - 1), m = code & ((1u << f->mbits) - 1);
    int bias = (1 << (f->ebits - 1)) - 1, drop = 23 - f->mbits;
    if (f->has_inf && exp == (1u << f->ebits) - 1)
        return f32_of_bits(sign | 0x7f800000 | m << drop);
    if (!f->has_inf && (code & ((1u << (f->ebits + f->mbits)) - 1)) == f->nan_code)
        return f32_of_bits(sign | 0x7fc00000);
    if (exp == 0) { /* exact: m is small, and the scale a power of two */
        float v = (float)m * f32_of_bits((uint32_t)(127 + 1 - bias - f->mbits) << 23);
        return sign ? -v : v;
    }
    return f32_of_bits(sign | (exp + 127 - (uint32_t)bias) << 23 | m << drop);
}

uint16_t f32_to_bf16(float x) {
    uint32_t u = f32_bits(x), nan = u >> 16 | 0x40, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan
                                                    : rounded); /* no branch: loops vectorize */
}
float bf16_to_f32(uint16_t h) { return f32_of_bits((uint32_t)h << 16); }
uint16_t f32_to_f16(float x) { return (uint16_t)to_mini(&format_f16, x); }
float f16_to_f32(uint16_t h) { return from_mini(&format_f16, h); }
uint8_t f32_to_e4m3(float x) { return (uint8_t)to_mini(&format_e4m3, x); }
float e4m3_to_f32(uint8_t b) { return from_mini(&format_e4m3, b); }
uint8_t f32_to_e5m2(float x) { return (uint8_t)to_mini(&format_e5m2, x); }
float e5m2_to_f32(uint8_t b) { return from_mini(&format_e5m2, b); }

static const struct {
    const char *name, *safetensors;
    size_t size;
    bool is_float;
} info[DT_COUNT] = {
    [DT_NONE] = { "none", "", 0, false },       [DT_F32] = { "fp32", "F32", 4, true },
    [DT_BF16] = { "bf16", "BF16", 2, true },    [DT_F16] = { "fp16", "F16", 2, true },
    [DT_E4M3] = { "e4m3", "F8_E4M3", 1, true }, [DT_E5M2] = { "e5m2", "F8_E5M2", 1, true },
    [DT_I32] = { "i32", "I32", 4, false },      [DT_I64] = { "i64", "I64", 8, false },
    [DT_U8] = { "u8", "U8", 1, false },         [DT_U16] = { "u16", "U16", 2, false },
};

size_t dt_size(dtype dt) { return info[dt].size; }
const char *dt_name(dtype dt) { return info[dt].name; }
const char *dt_safetensors(dtype dt) { return info[dt].safetensors; }
bool dt_is_float(dtype dt) { return info[dt].is_float; }

dtype dt_from_name(const char *name) {
    for (int i = 1; i < DT_COUNT; i++)
        if (!strcmp(info[i].name, name)) return (dtype)i;
    return DT_NONE;
}
dtype dt_from_safetensors(const char *name) {
    for (int i = 1; i < DT_COUNT; i++)
        if (!strcmp(info[i].safetensors, name)) return (dtype)i;
    return DT_NONE;
}

#define EACH(type, expr)                                                                           \
    do {                                                                                           \
        const type *s = src;                                                                       \
        for (int64_t i = 0; i < n; i++) dst[i] = expr(s[i]);                                       \
    } while (0)

void dt_to_f32(dtype from, const void *src, float *dst, int64_t n) {
    switch (from) {
    case DT_F32: memcpy(dst, src, (size_t)n * sizeof *dst); break;
    case DT_BF16: EACH(uint16_t, bf16_to_f32); break;
    case DT_F16: EACH(uint16_t, f16_to_f32); break;
    case DT_E4M3: EACH(uint8_t, e4m3_to_f32); break;
    case DT_E5M2: EACH(uint8_t, e5m2_to_f32); break;
    default: BUG("not a float type");
    }
}
#undef EACH

#define EACH(type, expr)                                                                           \
    do {                                                                                           \
        type *d = dst;                                                                             \
        for (int64_t i = 0; i < n; i++) d[i] = expr(src[i]);                                       \
    } while (0)

void dt_from_f32(dtype to, const float *src, void *dst, int64_t n) {
    switch (to) {
    case DT_F32: memcpy(dst, src, (size_t)n * sizeof *src); break;
    case DT_BF16: EACH(uint16_t, f32_to_bf16); break;
    case DT_F16: EACH(uint16_t, f32_to_f16); break;
    case DT_E4M3: EACH(uint8_t, f32_to_e4m3); break;
    case DT_E5M2: EACH(uint8_t, f32_to_e5m2); break;
    default: BUG("not a float type");
    }
}
