/* bf16 GEMM with Arm's bfmmla: a register holds 2 rows x 4 of K, and one instruction
 * multiplies two of them into a 2 x 2 block of fp32 sums.
 *
 *     v0-v3    A: four pairs of rows          v4-v7   B: pairs of columns, reused
 *     v8-v31   sums: v(8 + 4j + i) is pair i of rows x pair j of columns
 */
#include "kernel_internal.h"
#include "neon_sums.h"

#include <arm_neon.h>

enum { MR = 8, NR = 12, PAIRS_M = MR / 2, PAIRS_N = NR / 2, SUMS = PAIRS_M * PAIRS_N };

/* clang-format off */
/* Column pair y into its four sums. */
#define COLUMN(y, s0, s1, s2, s3)                                                                  \
    "bfmmla v" #s0 ".4s, v0.8h, v" #y ".8h\n"                                                      \
    "bfmmla v" #s1 ".4s, v1.8h, v" #y ".8h\n"                                                      \
    "bfmmla v" #s2 ".4s, v2.8h, v" #y ".8h\n"                                                      \
    "bfmmla v" #s3 ".4s, v3.8h, v" #y ".8h\n"

/* sums[j][i] over `steps` > 0 groups of four. */
static inline void accumulate_tile(int64_t steps, const void *a, const void *b,
                            float32x4_t sums[PAIRS_N][PAIRS_M]) {
    void *out = sums;
    __asm__ volatile(
        ZERO_SUMS
        "1:\n"
        "ldp q0, q1, [%[a]], #64\n"
        "ldp q4, q5, [%[b]], #96\n"
        "ldp q2, q3, [%[a], #-32]\n"
        "ldp q6, q7, [%[b], #-64]\n"
        COLUMN(4, 8, 9, 10, 11)
        COLUMN(5, 12, 13, 14, 15)
        "ldp q4, q5, [%[b], #-32]\n"
        COLUMN(6, 16, 17, 18, 19)
        COLUMN(7, 20, 21, 22, 23)
        "subs %[steps], %[steps], #1\n"
        COLUMN(4, 24, 25, 26, 27)
        COLUMN(5, 28, 29, 30, 31)
        "b.ne 1b\n"
        STORE_SUMS
        : [steps] "+r"(steps), [a] "+r"(a), [b] "+r"(b)
        : [out] "r"(out)
        : "cc", "memory", VECTOR_REGISTERS);
}

static double burn_registers(int64_t rounds) {
    int64_t left = rounds;
    __asm__ volatile(
        ZERO_SUMS
        ZERO4(0, 1, 2, 3)
        ZERO4(4, 5, 6, 7)
        "1:\n"
        "subs %[left], %[left], #1\n"
        COLUMN(4, 8, 9, 10, 11)
        COLUMN(5, 12, 13, 14, 15)
        COLUMN(6, 16, 17, 18, 19)
        COLUMN(7, 20, 21, 22, 23)
        COLUMN(4, 24, 25, 26, 27)
        COLUMN(5, 28, 29, 30, 31)
        "b.ne 1b\n"
        : [left] "+r"(left)
        :
        : "cc", VECTOR_REGISTERS);
    return (double)rounds * SUMS * 32;
}
/* clang-format on */

static inline void store_two_pairs(float *c, float64x2_t v, bool add) {
    float32x4_t x = vreinterpretq_f32_f64(v);
    vst1q_f32(c, add ? vaddq_f32(vld1q_f32(c), x) : x);
}

static void multiply_register_tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc,
                                   bool add) {
    float32x4_t sums[PAIRS_N][PAIRS_M];
    for (int i = 0; i < MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + NR - 1, 1);
    }
    accumulate_tile(k / 4, a, b, sums);
    for (int i = 0; i < PAIRS_M; i++, c += 2 * ldc)
        for (int j = 0; j < PAIRS_N; j += 2) {
            float64x2_t left = vreinterpretq_f64_f32(sums[j][i]);
            float64x2_t right = vreinterpretq_f64_f32(sums[j + 1][i]);
            store_two_pairs(c + j * 2, vtrn1q_f64(left, right), add);
            store_two_pairs(c + ldc + j * 2, vtrn2q_f64(left, right), add);
        }
}

static const gemm_kernel kernel = { .dt = DT_BF16,
                                    .mr = MR,
                                    .nr = NR,
                                    .ga = 4,
                                    .gb = 4,
                                    .ku = 4,
                                    .kc = 1024,
                                    .block_m = 128,
                                    .block_n = 192,
                                    .tile = multiply_register_tile,
                                    .burn = burn_registers };
const gemm_kernel *const CPU(gemm_bf16_kernel) = &kernel;
