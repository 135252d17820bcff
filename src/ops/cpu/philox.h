/* Philox 4x32-10 (util/rng.c) on LANES counters side by side: one after another it would cost more
 * than the memory it decides over. */
#ifndef INGOT_OPS_CPU_PHILOX_H
#define INGOT_OPS_CPU_PHILOX_H

#include "cpu_internal.h"

enum { LANES = 16 };

/* Word w of counter { head, first + l } is out[w][l]. */
static inline void philox_lanes(rng_key key, const uint32_t head[3], uint32_t first,
                                uint32_t out[4][LANES]) {
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (uint32_t l = 0; l < LANES; l++) {
        out[0][l] = head[0];
        out[1][l] = head[1];
        out[2][l] = head[2];
        out[3][l] = first + l;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * out[0][l], p1 = (uint64_t)0xCD9E8D57u * out[2][l];
            uint32_t c1 = out[1][l], c3 = out[3][l];
            out[0][l] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            out[1][l] = (uint32_t)p1;
            out[2][l] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            out[3][l] = (uint32_t)p0;
        }
    }
}

#endif
