/* fp32 GEMM on Arm. Elements of A are lanes of a register, so that no broadcast is needed.
 *
 *     v0-v1    A: eight rows          v2-v4, v5-v7   B: twelve columns, of two successive k
 *     v8-v31   sums: v(8 + 3i + j) is row i x the j-th four columns
 */
#include "kernel_internal.h"
#include "neon_sums.h"

#include <arm_neon.h>

enum { MR = 8, NR = 12, COLS = NR / 4, SUMS = MR * COLS };

/* clang-format off */
/* Row, a lane of x, times columns y0-y2 into three sums. */
#define ROW(x, lane, y0, y1, y2, s0, s1, s2)                                                       \
    "fmla v" #s0 ".4s, v" #y0 ".4s, v" #x ".s[" #lane "]\n"                                        \
    "fmla v" #s1 ".4s, v" #y1 ".4s, v" #x ".s[" #lane "]\n"                                        \
    "fmla v" #s2 ".4s, v" #y2 ".4s, v" #x ".s[" #lane "]\n"
#define UPPER(y0, y1, y2)                                                                          \
    ROW(0, 0, y0, y1, y2, 8, 9, 10) ROW(0, 1, y0, y1, y2, 11, 12, 13)                              \
    ROW(0, 2, y0, y1, y2, 14, 15, 16) ROW(0, 3, y0, y1, y2, 17, 18, 19)
#define LOWER(y0, y1, y2)                                                                          \
    ROW(1, 0, y0, y1, y2, 20, 21, 22) ROW(1, 1, y0, y1, y2, 23, 24, 25)                            \
    ROW(1, 2, y0, y1, y2, 26, 27, 28) ROW(1, 3, y0, y1, y2, 29, 30, 31)

/* sums[i][j] over k > 0, even. */
static inline void accumulate_tile(int64_t k, const void *a, const void *b,
                                   float32x4_t sums[MR][COLS]) {
    void *out = sums;
    __asm__ volatile(
        ZERO_SUMS
        "1:\n"
        "subs %[k], %[k], #2\n"
        "ldp q0, q1, [%[a]], #64\n"
        "ldp q2, q3, [%[b]], #96\n"
        "ldp q4, q5, [%[b], #-64]\n"
        "ldp q6, q7, [%[b], #-32]\n"
        UPPER(2, 3, 4)
        LOWER(2, 3, 4)
        "ldp q0, q1, [%[a], #-32]\n"
        UPPER(5, 6, 7)
        LOWER(5, 6, 7)
        "b.ne 1b\n"
        STORE_SUMS
        : [k] "+r"(k), [a] "+r"(a), [b] "+r"(b)
        : [out] "r"(out)
        : "cc", "memory", VECTOR_REGISTERS);
}

static double burn_registers(int64_t rounds) {
    int64_t left = rounds;
    __asm__ volatile(
        ZERO_SUMS
        ZERO4(0, 1, 2, 3)
        "movi v4.4s, #0\n"
        "1:\n"
        "subs %[left], %[left], #1\n"
        UPPER(2, 3, 4)
        LOWER(2, 3, 4)
        "b.ne 1b\n"
        : [left] "+r"(left)
        :
        : "cc", VECTOR_REGISTERS);
    return (double)rounds * SUMS * 8;
}
/* clang-format on */

static void multiply_register_tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc,
                                   bool add) {
    float32x4_t sums[MR][COLS];
    for (int i = 0; i < MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + NR - 1, 1);
    }
    accumulate_tile(k, a, b, sums);
    for (int i = 0; i < MR; i++, c += ldc)
        for (int j = 0; j < COLS; j++)
            vst1q_f32(c + 4 * j, add ? vaddq_f32(vld1q_f32(c + 4 * j), sums[i][j]) : sums[i][j]);
}

const gemm_kernel CPU(gemm_f32_kernel) = { .dt = DT_F32,
                                           .mr = MR,
                                           .nr = NR,
                                           .ga = 1,
                                           .gb = 1,
                                           .ku = 2,
                                           .kc = 512,
                                           .block_m = 128,
                                           .block_n = 192,
                                           .tile = multiply_register_tile,
                                           .burn = burn_registers };
