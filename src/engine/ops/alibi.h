/* Linear biases of attention scores (ALiBi) as columns of queries and keys, so that every kernel of attention computes
 * them: a query of head h has the head's slope s beyond its own dims, and a key its position p. Since a softmax does not
 * change when all scores of a query do, s p biases the scores as s (p - position of the query) does.
 *
 *     q   own dims | 256 a  a  256 b  b | zeros        a: s / scale of the scores, as bf16 has it; b: the rest of it
 *     k   own dims |  hi   lo   hi   lo | zeros        p = 256 hi + lo
 *     v   own dims |  0    0    0    0  | zeros
 *
 * Every number but b is exact in each type, for positions below ALIBI_MOST. __device__ where CUDA includes it. */
#ifndef INGOT_OPS_ALIBI_H
#define INGOT_OPS_ALIBI_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ALIBI_FN static inline __host__ __device__
#else
#define ALIBI_FN static inline
#endif

enum { ALIBI_COLS = 4, ALIBI_MOST = 65536 };

/* Columns of a head with the bias: a multiple of 8, as kernels on tensor cores need. */
ALIBI_FN int alibi_width(int dim) { return (dim + ALIBI_COLS + 7) / 8 * 8; }

/* The slope of a head: 2^(-max (h + 1) / n) where n is a power of two, else those of the greatest one below n, and then
 * every second of twice as many heads. */
ALIBI_FN float alibi_slope(int head, int heads, float max) {
    int power = 1;
    while (2 * power <= heads) power *= 2;
    float exponent = head < power ? (float)(head + 1) / (float)power
                                  : (float)(2 * (head - power) + 1) / (float)(2 * power);
    return exp2f(-max * exponent);
}

/* Column i, of ALIBI_COLS, of a query. @param slope of its head over the scale of the scores */
ALIBI_FN float alibi_query(float slope, int i) {
    uint32_t bits;
    float coarse;
    memcpy(&bits, &slope, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&coarse, &bits, sizeof coarse);
    return (i < 2 ? coarse : slope - coarse) * (i % 2 ? 1.0f : 256.0f);
}

/* ... and of a key. */
ALIBI_FN float alibi_key(int32_t pos, int i) { return (float)(i % 2 ? pos % 256 : pos / 256); }

#endif
