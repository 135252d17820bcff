/* Packing of bf16 operands whose K is the slow dimension, with registers of 64 bytes: the weight gradient
 * dw = dy^T x packs both operands that way. gemm_pack.c uses it where the instruction set has such
 * registers; it is written in the compiler's vector types, so that tests run it on any machine.
 *
 *     row k     | r0 r1 r2 ...  r31 |  64 bytes          pairs: | r0k r0k+1 | r1k r1k+1 | ...
 *     row k + 1 | r0 r1 r2 ...  r31 |
 */
#ifndef INGOT_OPS_CPU_PACK_WIDE_H
#define INGOT_OPS_CPU_PACK_WIDE_H

#include <stdint.h>
#include <string.h>

/* Tests set PACK_WIDE, to have it used on machines without such registers. */
#if defined(__AVX512BW__) || defined(PACK_WIDE)
#define WIDE_REGISTERS 1
#else
#define WIDE_REGISTERS 0
#endif

#if WIDE_REGISTERS

enum { WIDE_ROWS = 32 }; /* of a panel; elements of a register */

typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
#define WIDE_INLINE static inline __attribute__((always_inline))

WIDE_INLINE u16x32 wide_load(const char *p) {
    u16x32 v;
    memcpy(&v, p, sizeof v);
    return v;
}
WIDE_INLINE void wide_store(char *p, u64x8 v) { memcpy(p, &v, sizeof v); }

/* The instructions that interleave two registers work within each quarter of 16 bytes. */
typedef struct wide_pairs {
    u16x32 low, high; /* of every 8 columns, the first and the last 4 */
} wide_pairs;
WIDE_INLINE wide_pairs wide_interleave(u16x32 a, u16x32 b) {
    return (wide_pairs){
        __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16,
                                48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59),
        __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
                                20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63)
    };
}

/* Pairs of K, 32 columns: out[units][32][2]. */
WIDE_INLINE void wide_interleave2(const char *in, size_t stride, int64_t units, size_t step,
                                  char *out) {
    for (int64_t u = 0; u < units; u++, in += 2 * stride, out += step) {
        wide_pairs p = wide_interleave(wide_load(in), wide_load(in + stride));
        u64x8 low = (u64x8)p.low, high = (u64x8)p.high;
        wide_store(out, __builtin_shufflevector(low, high, 0, 1, 8, 9, 2, 3, 10, 11));
        wide_store(out + 64, __builtin_shufflevector(low, high, 4, 5, 12, 13, 6, 7, 14, 15));
    }
}

/* ---- 32 x 32 transposed: pairs first, then 16 x 16 pairs in four stages ---------------------------- */
/* Stages 1 and 2, of registers i ... i + 3: within each quarter, 4 x 4 pairs are transposed. */
WIDE_INLINE void transpose_quarters(u64x8 *x) {
    u32x16 a = (u32x16)x[0], b = (u32x16)x[1], c = (u32x16)x[2], d = (u32x16)x[3];
    u64x8 ab0 = (u64x8)__builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12,
                                               28, 13, 29);
    u64x8 ab1 = (u64x8)__builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14,
                                               30, 15, 31);
    u64x8 cd0 = (u64x8)__builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12,
                                               28, 13, 29);
    u64x8 cd1 = (u64x8)__builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14,
                                               30, 15, 31);
    x[0] = __builtin_shufflevector(ab0, cd0, 0, 8, 2, 10, 4, 12, 6, 14);
    x[1] = __builtin_shufflevector(ab0, cd0, 1, 9, 3, 11, 5, 13, 7, 15);
    x[2] = __builtin_shufflevector(ab1, cd1, 0, 8, 2, 10, 4, 12, 6, 14);
    x[3] = __builtin_shufflevector(ab1, cd1, 1, 9, 3, 11, 5, 13, 7, 15);
}
/* Stages 3 and 4: quarter q of a, b, c and d becomes one register, which is stored at out[q]. */
WIDE_INLINE void store_quarters(u64x8 a, u64x8 b, u64x8 c, u64x8 d, char *out, size_t step) {
    u64x8 ab02 = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);
    u64x8 ab13 = __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
    u64x8 cd02 = __builtin_shufflevector(c, d, 0, 1, 4, 5, 8, 9, 12, 13);
    u64x8 cd13 = __builtin_shufflevector(c, d, 2, 3, 6, 7, 10, 11, 14, 15);
    wide_store(out, __builtin_shufflevector(ab02, cd02, 0, 1, 4, 5, 8, 9, 12, 13));
    wide_store(out + step, __builtin_shufflevector(ab13, cd13, 0, 1, 4, 5, 8, 9, 12, 13));
    wide_store(out + 2 * step, __builtin_shufflevector(ab02, cd02, 2, 3, 6, 7, 10, 11, 14, 15));
    wide_store(out + 3 * step, __builtin_shufflevector(ab13, cd13, 2, 3, 6, 7, 10, 11, 14, 15));
}

/* The columns of `half` (0: the first 4 of every 8, 1: the last 4) over 32 of K: out[32][32]. */
WIDE_INLINE void wide_transpose_half(const char *in, size_t stride, int half, char *out) {
    u64x8 x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const char *pair = in + 2 * (size_t)i * stride;
        wide_pairs p = wide_interleave(wide_load(pair), wide_load(pair + stride));
        x[i] = (u64x8)(half ? p.high : p.low);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) transpose_quarters(x + i);
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) /* quarter q holds column 8 q + 4 half + r */
        store_quarters(x[r], x[4 + r], x[8 + r], x[12 + r], out + (4 * half + r) * 64, 8 * 64);
}
WIDE_INLINE void wide_transpose32(const char *in, size_t stride, char *out) {
    wide_transpose_half(in, stride, 0, out);
    wide_transpose_half(in, stride, 1, out);
}

#endif /* WIDE_REGISTERS */
#endif
