/* Conversion to fp8 in kernels. Depends on device.cuh. */
#ifndef INGOT_CUDA_FP8_CUH
#define INGOT_CUDA_FP8_CUH

#include <cuda_fp8.h>

#include "device.cuh"

/* Eight values, rounded; those beyond the largest of the format become that. */
template <__nv_fp8_interpretation_t F>
static __device__ __forceinline__ uint2 to_fp8(const float v[8]) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * i], v[2 * i + 1]), __NV_SATFINITE, F);
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

#endif
