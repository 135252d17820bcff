/* fp8: as the CPU ops convert it. */
#ifndef INGOT_EMULATE_CUDA_FP8_H
#define INGOT_EMULATE_CUDA_FP8_H

#include <cuda_bf16.h>

typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;
typedef enum { __NV_SATFINITE } __nv_saturation_t;

static inline uint16_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate,
                                                __nv_fp8_interpretation_t form) {
    float pair[] = { x.x, x.y };
    uint8_t bytes[2];
    dt_from_f32(form == __NV_E5M2 ? DT_E5M2 : DT_E4M3, pair, bytes, 2);
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

#endif
