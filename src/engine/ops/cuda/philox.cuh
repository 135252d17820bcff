/* Philox 4x32 (Salmon et al., 2011): the same words as util/rng.c for the same key, counter and rounds. */
#ifndef INGOT_OPS_CUDA_PHILOX_CUH
#define INGOT_OPS_CUDA_PHILOX_CUH

#include <stdint.h>

template <int ROUNDS = PHILOX_ROUNDS>
static __device__ __forceinline__ void philox(uint2 key, uint4 ctr, uint32_t out[4]) {
#pragma unroll
    for (int round = 0; round < ROUNDS; round++, key.x += 0x9E3779B9u, key.y += 0xBB67AE85u) {
        uint32_t h0 = __umulhi(0xD2511F53u, ctr.x), l0 = 0xD2511F53u * ctr.x;
        uint32_t h1 = __umulhi(0xCD9E8D57u, ctr.z), l1 = 0xCD9E8D57u * ctr.z;
        ctr = make_uint4(h1 ^ ctr.y ^ key.x, l1, h0 ^ ctr.w ^ key.y, l0);
    }
    out[0] = ctr.x, out[1] = ctr.y, out[2] = ctr.z, out[3] = ctr.w;
}

#endif
