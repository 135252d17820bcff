/* Products of tiles for attention. The fp32 path takes operands as plain matrices, L as [m][k] and
 * R as [k][n], so a score tile serves as either without a copy. The bf16 path, where the
 * instruction set multiplies bf16, is in kernel/. */
#include "attention_internal.h"

#include <string.h>

#if defined(__aarch64__)
#include "kernel/tile_f32_neon.h"
#else
#include "kernel/tile_f32_vector.h"
#endif

enum { F32_GRAIN = 4 };

/* ---- transposing --------------------------------------------------------------------------- */
typedef float f4 __attribute__((vector_size(16), aligned(4), may_alias));

static inline void transpose4(float *dst, int ldd, const float *src, int lds) {
    f4 a = *(const f4 *)src, b = *(const f4 *)(src + lds);
    f4 c = *(const f4 *)(src + 2 * lds), d = *(const f4 *)(src + 3 * lds);
    f4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
       ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    f4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5),
       cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(f4 *)dst = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    *(f4 *)(dst + ldd) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    *(f4 *)(dst + 2 * ldd) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    *(f4 *)(dst + 3 * ldd) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

void CPU(tile_transpose)(float *dst, int ldd, const float *src, int lds, int rows, int cols) {
    for (int r = 0; r < rows; r += 4)
        for (int c = 0; c < cols; c += 4)
            transpose4(dst + (size_t)c * ldd + r, ldd, src + (size_t)r * lds + c, lds);
}

/* ---- fp32 ---------------------------------------------------------------------------------- */
static const void *src_at(const tile_src *s, int row, int col) {
    return (const char *)s->data + (size_t)(row * s->stride + col) * dt_size(s->dt);
}

/* [rows][width] */
static void f32_plain(void *dst, const tile_src *s, int width) {
    float *to = dst;
    for (int r = 0; r < s->rows; r++, to += width) {
        CPU(to_f32)(s->dt, src_at(s, r, 0), to, s->cols);
        memset(to + s->cols, 0, (size_t)(width - s->cols) * sizeof *to);
    }
    int more = (int)align_up(s->rows, TILE_F32_UNIT) - s->rows;
    memset(to, 0, (size_t)more * width * sizeof *to);
}

/* [width][ATT_TILE]: four rows at a time through a block that stays in the nearest cache. */
static void f32_turned(void *dst, const tile_src *s, int width) {
    float block[4][ATT_TILE];
    float *to = dst;
    int rows = (int)align_up(s->rows, TILE_F32_UNIT);
    for (int r = 0; r < rows; r += 4) {
        for (int c = 0; c < width; c += ATT_TILE) {
            int cols = MIN(ATT_TILE, width - c), got = MIN(cols, s->cols - c);
            memset(block, 0, sizeof block);
            for (int i = 0; i < 4 && r + i < s->rows && got > 0; i++)
                CPU(to_f32)(s->dt, src_at(s, r + i, c), block[i], got);
            CPU(tile_transpose)
            (to + (size_t)c * ATT_TILE + r, ATT_TILE, block[0], ATT_TILE, 4, cols);
        }
    }
}

static const void *f32_scores(void *room, const float *t, int keys, int queries) {
    (void)room, (void)keys, (void)queries;
    return t;
}

/* R is [k][n] where its rows are keys or dims, and its row length is that of C. */
static void f32_mul(const tile_job *j) {
    const float *left = j->left, *right = j->right;
    int ldr = j->ldc;
    for (int n = 0, cols; n < j->n; n += cols) {
        cols = f32_panel_cols(j->n - n);
        for (int m = 0; m < j->m; m += TILE_MR) {
            int k0, k1;
            if (!tile_inner(j, m, m + TILE_MR, n, n + cols, F32_GRAIN, &k0, &k1)) continue;
            f32_panel(left + (size_t)m * j->inner, j->inner, right + n, ldr, k0, k1,
                      j->c + (size_t)m * j->ldc + n, j->ldc, j->add, cols);
        }
    }
}

static const tile_path f32_path = {
    .name = "fp32",
    .elem = sizeof(float),
    .unit = TILE_F32_UNIT,
    .left_outer = f32_plain,
    .left_inner = f32_turned,
    .right_outer = f32_turned,
    .right_inner = f32_plain,
    .left_scores = f32_scores,
    .right_scores = f32_scores,
    .mul = f32_mul,
};

/* ---- bf16, where the instruction set has it -------------------------------------------------- */
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "kernel/tile_bf16_neon.h"
#elif defined(__AVX512BF16__)
#include "kernel/tile_bf16_avx512.h"
#else
static const tile_path *bf16_path_or_null(void) { return NULL; }
#endif

const tile_path *CPU(tile_path_for)(dtype dt) {
    const tile_path *bf16 = dt == DT_BF16 ? bf16_path_or_null() : NULL;
    return bf16 ? bf16 : &f32_path;
}
