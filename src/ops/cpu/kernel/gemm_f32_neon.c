/* fp32 products on Arm. Elements of A are lanes of a register, so that no broadcast is needed. The
 * inner loop is assembly for the same reason as in gemm_bf16_neon.c.
 *
 *     v0-v1    A: eight rows                  v2-v4   B: twelve columns
 *     v8-v31   sums: v(8 + 3i + j) is row i x the j-th four columns
 */
#include "kernel_internal.h"

#include <arm_neon.h>

enum { MR = 8, NR = 12, COLS = NR / 4, SUMS = MR * COLS };

/* One row, a lane of register x, into its three sums. */
#define ROW(x, lane, s0, s1, s2)                                                                   \
    "fmla v" #s0 ".4s, v2.4s, v" #x ".s[" #lane "]\n"                                              \
    "fmla v" #s1 ".4s, v3.4s, v" #x ".s[" #lane "]\n"                                              \
    "fmla v" #s2 ".4s, v4.4s, v" #x ".s[" #lane "]\n"
#define ROWS4(x, a, b, c, d, e, f, g, h, i, j, k, l)                                               \
    ROW(x, 0, a, b, c) ROW(x, 1, d, e, f) ROW(x, 2, g, h, i) ROW(x, 3, j, k, l)
#define ZERO4(s0, s1, s2, s3)                                                                      \
    "movi v" #s0 ".4s, #0\n movi v" #s1 ".4s, #0\n movi v" #s2 ".4s, #0\n movi v" #s3 ".4s, #0\n"
#define ZERO_SUMS                                                                                  \
    ZERO4(8, 9, 10, 11)                                                                            \
    ZERO4(12, 13, 14, 15)                                                                          \
    ZERO4(16, 17, 18, 19) ZERO4(20, 21, 22, 23) ZERO4(24, 25, 26, 27) ZERO4(28, 29, 30, 31)
#define VECTOR_REGISTERS                                                                           \
    "v0", "v1", "v2", "v3", "v4", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",     \
        "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", \
        "v30", "v31"

/* sums[i][j] over k > 0. */
static inline void multiply(int64_t k, const void *a, const void *b, float32x4_t sums[MR][COLS]) {
    void *out = sums;
    __asm__ volatile(ZERO_SUMS
                     "1:\n"
                     "ldp q0, q1, [%[a]], #32\n"
                     "ldp q2, q3, [%[b]], #48\n"
                     "ldr q4, [%[b], #-16]\n"
                     "subs %[k], %[k], #1\n" ROWS4(0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
                         ROWS4(1, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                               31) "b.ne 1b\n"
                                   "stp q8, q9, [%[out]]\n stp q10, q11, [%[out], #32]\n"
                                   "stp q12, q13, [%[out], #64]\n stp q14, q15, [%[out], #96]\n"
                                   "stp q16, q17, [%[out], #128]\n stp q18, q19, [%[out], #160]\n"
                                   "stp q20, q21, [%[out], #192]\n stp q22, q23, [%[out], #224]\n"
                                   "stp q24, q25, [%[out], #256]\n stp q26, q27, [%[out], #288]\n"
                                   "stp q28, q29, [%[out], #320]\n stp q30, q31, [%[out], #352]\n"
                     : [k] "+r"(k), [a] "+r"(a), [b] "+r"(b)
                     : [out] "r"(out)
                     : "cc", "memory", VECTOR_REGISTERS);
}

static void tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add) {
    float32x4_t sums[MR][COLS];
    multiply(k, a, b, sums);
    for (int i = 0; i < MR; i++, c += ldc)
        for (int j = 0; j < COLS; j++)
            vst1q_f32(c + 4 * j, add ? vaddq_f32(vld1q_f32(c + 4 * j), sums[i][j]) : sums[i][j]);
}

static double burn(int64_t rounds) {
    int64_t left = rounds;
    __asm__ volatile(ZERO_SUMS ZERO4(0, 1, 2, 3) "movi v4.4s, #0\n"
                                                 "1:\n"
                                                 "subs %[left], %[left], #1\n" ROWS4(
                                                     0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                                     19) ROWS4(1, 20, 21, 22, 23, 24, 25, 26, 27,
                                                               28, 29, 30, 31) "b.ne 1b\n"
                     : [left] "+r"(left)
                     :
                     : "cc", VECTOR_REGISTERS);
    return (double)rounds * SUMS * 8;
}

const gemm_kernel CPU(gemm_f32_kernel) = {
    .dt = DT_F32, .mr = MR, .nr = NR, .ga = 1, .gb = 1, .kc = 512, .tile = tile, .burn = burn
};
