/* C[8, 8] of an fp32 GEMM in NEON. L is [k][8]: two loads, whose lanes feed the multiply-adds. 16 sums
 * hide their latency and leave registers free; more of them measured no faster. */
#include <arm_neon.h>

enum { TILE_MR = 8, TILE_NR = 8, TILE_F32_UNIT = 16 };
/* Prefetches the next panel of a tile of 64: at head size 128 tiles exceed L1; 4% faster. */
enum { AHEAD_OF_L = 512 };

#define F32_ROW(i, x, lane)                                                                        \
    do {                                                                                           \
        sum[i][0] = vfmaq_laneq_f32(sum[i][0], r0, x, lane);                                       \
        sum[i][1] = vfmaq_laneq_f32(sum[i][1], r1, x, lane);                                       \
    } while (0)

static inline void f32_panel(const float *l, const float *r, int ldr, int k0, int k1, float *c,
                             int ldc, bool add) {
    float32x4_t sum[TILE_MR][2];
    ATT_UNROLL
    for (int i = 0; i < TILE_MR; i++) sum[i][0] = sum[i][1] = vdupq_n_f32(0);
    for (int k = k0; k < k1; k++) {
        __builtin_prefetch(l + (size_t)k * TILE_MR + AHEAD_OF_L);
        float32x4_t a = vld1q_f32(l + (size_t)k * TILE_MR),
                    b = vld1q_f32(l + (size_t)k * TILE_MR + 4);
        float32x4_t r0 = vld1q_f32(r + (size_t)k * ldr), r1 = vld1q_f32(r + (size_t)k * ldr + 4);
        F32_ROW(0, a, 0);
        F32_ROW(1, a, 1);
        F32_ROW(2, a, 2);
        F32_ROW(3, a, 3);
        F32_ROW(4, b, 0);
        F32_ROW(5, b, 1);
        F32_ROW(6, b, 2);
        F32_ROW(7, b, 3);
    }
    ATT_UNROLL
    for (int i = 0; i < TILE_MR; i++) {
        ATT_UNROLL
        for (int v = 0; v < 2; v++) {
            float *to = c + (size_t)i * ldc + 4 * v;
            vst1q_f32(to, add ? vaddq_f32(sum[i][v], vld1q_f32(to)) : sum[i][v]);
        }
    }
}
#undef F32_ROW
