/* bf16 and fp16: as the CPU ops convert them. */
#ifndef INGOT_EMULATE_CUDA_BF16_H
#define INGOT_EMULATE_CUDA_BF16_H

#include <machine_emulated.h>

extern "C" {
#include "tensor/tensor.h"
}

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits(f32_to_bf16(x)) {}
    operator float() const { return bf16_to_f32(bits); }
};
struct half {
    uint16_t bits;
    half() = default;
    half(float x) : bits(f32_to_f16(x)) {}
    operator float() const { return f16_to_f32(bits); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct alignas(4) half2 {
    half x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return { x, y }; }
static inline float __half2float(half x) { return x; }
static inline half __float2half_rn(float x) { return x; }
static inline half2 __floats2half2_rn(float x, float y) { return { x, y }; }
static inline float2 __half22float2(half2 x) { return { x.x, x.y }; }

#endif
