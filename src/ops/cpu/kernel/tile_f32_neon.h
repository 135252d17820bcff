/* C[8, 12] of an fp32 product in NEON, and C[8, 8] and C[8, 4] for what twelve leaves over. Four
 * steps of k at a time: a row of L is then one load, and its lanes feed the multiply-adds. Rows
 * come in two halves, R being read twice, so that 24 sums, 4 rows of L and 3 of R fill the
 * registers. */
#include <arm_neon.h>

enum { TILE_MR = 8, TILE_F32_UNIT = 16 };

#define F32_STEP(lane)                                                                             \
    do {                                                                                           \
        const float *at = r + (size_t)(k + lane) * ldr;                                            \
        float32x4_t y[3];                                                                          \
        UNROLL                                                                                     \
        for (int v = 0; v < vecs; v++) y[v] = vld1q_f32(at + 4 * v);                               \
        UNROLL                                                                                     \
        for (int i = 0; i < 4; i++)                                                                \
            UNROLL                                                                                 \
        for (int v = 0; v < vecs; v++)                                                             \
            sum[half + i][v] = vfmaq_laneq_f32(sum[half + i][v], y[v], x[i], lane);                \
    } while (0)

static inline __attribute__((always_inline)) void f32_block(const float *l, int ldl, const float *r,
                                                            int ldr, int k0, int k1, float *c,
                                                            int ldc, bool add, int vecs) {
    float32x4_t sum[TILE_MR][3], x[4];
    UNROLL
    for (int i = 0; i < TILE_MR; i++)
        UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vdupq_n_f32(0);
    for (int k = k0; k < k1; k += 4) {
        UNROLL
        for (int half = 0; half < TILE_MR; half += 4) {
            UNROLL
            for (int i = 0; i < 4; i++) x[i] = vld1q_f32(l + (size_t)(half + i) * ldl + k);
            F32_STEP(0);
            F32_STEP(1);
            F32_STEP(2);
            F32_STEP(3);
        }
    }
    UNROLL
    for (int i = 0; i < TILE_MR; i++) {
        UNROLL
        for (int v = 0; v < vecs; v++) {
            float *to = c + (size_t)i * ldc + 4 * v;
            vst1q_f32(to, add ? vaddq_f32(sum[i][v], vld1q_f32(to)) : sum[i][v]);
        }
    }
}
#undef F32_STEP

/* Columns of the next panel when `left` remain: twelve, but never leaving a lone four behind. */
static inline int f32_panel_cols(int left) { return left >= 12 && left != 16 ? 12 : MIN(left, 8); }

static void f32_panel(const float *l, int ldl, const float *r, int ldr, int k0, int k1, float *c,
                      int ldc, bool add, int cols) {
    if (cols == 12)
        f32_block(l, ldl, r, ldr, k0, k1, c, ldc, add, 3);
    else if (cols == 8)
        f32_block(l, ldl, r, ldr, k0, k1, c, ldc, add, 2);
    else
        f32_block(l, ldl, r, ldr, k0, k1, c, ldc, add, 1);
}
