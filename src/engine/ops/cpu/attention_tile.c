/* GEMMs of tiles for attention: the fp32 path, and the choice of path. The kernels, and the bf16 path for
 * instruction sets that multiply bf16, are in kernel/. */
#include "attention_internal.h"

#include <string.h>

#if defined(__aarch64__)
#include "kernel/tile_f32_neon.h"
#else
#include "kernel/tile_f32_vector.h"
#endif

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

/* ---- fp32 ------------------------------------------------------------------------------------
 * L is in panels, [m / TILE_MR][k][TILE_MR]; R is a plain matrix, [k][n], so that a score tile
 * serves without a copy. */
enum { F32_GRAIN = 4 };

static const void *src_at(const tile_src *s, int row, int col) {
    return (const char *)s->data + (size_t)(row * s->stride + col) * dt_size(s->dt);
}

/* Rows are about a page apart, which the hardware prefetcher does not follow. */
enum { AHEAD = 12 };
static void prefetch_rows(const tile_src *s, int row, int rows) {
    for (int r = row + AHEAD; r < MIN(row + AHEAD + rows, s->rows); r++) {
        const char *at = src_at(s, r, 0);
        for (size_t b = 0; b < (size_t)s->cols * dt_size(s->dt); b += 64)
            __builtin_prefetch(at + b);
    }
}

typedef struct f32_block {
    float buffer[4][ATT_TILE];
    const float *at; /* the four rows, in buffer or in the source */
    int ld;
} f32_block;

/* rows [r, r + 4), cols [c, c + cols) of the source as fp32, zero beyond it. */
static void f32_rows4(f32_block *b, const tile_src *s, int r, int c, int cols) {
    if (s->dt == DT_F32 && r + 4 <= s->rows && c + cols <= s->cols) {
        b->at = src_at(s, r, c);
        b->ld = (int)s->stride;
        return;
    }
    for (int i = 0; i < 4; i++) {
        int got = r + i < s->rows ? MAX(MIN(cols, s->cols - c), 0) : 0;
        if (got > 0) CPU(to_f32)(s->dt, src_at(s, r + i, c), b->buffer[i], got);
        memset(b->buffer[i] + got, 0, (size_t)(cols - got) * sizeof(float));
    }
    b->at = b->buffer[0];
    b->ld = ATT_TILE;
}

/* Packs a source whose rows are the outer index into panels of `panel` rows, four rows at a time,
 * transposed. R is one panel as wide as a tile. */
static void f32_outer(float *to, const tile_src *s, int width, int panel) {
    f32_block block;
    int rows = (int)align_up((size_t)s->rows, TILE_F32_UNIT);
    for (int r = 0; r < rows; r += 4) {
        prefetch_rows(s, r, 4);
        float *at = to + (size_t)(r / panel) * panel * width + r % panel;
        for (int c = 0; c < width; c += ATT_TILE) {
            int cols = MIN(ATT_TILE, width - c);
            f32_rows4(&block, s, r, c, cols);
            CPU(tile_transpose)(at + (size_t)c * panel, panel, block.at, block.ld, 4, cols);
        }
    }
}

static void f32_left_outer(void *dst, const tile_src *s, int width) {
    f32_outer(dst, s, width, TILE_MR);
}
static void f32_right_outer(void *dst, const tile_src *s, int width) {
    f32_outer(dst, s, width, ATT_TILE);
}

static void f32_left_inner(void *dst, const tile_src *s, int width) {
    f32_block block;
    int rows = (int)align_up((size_t)s->rows, TILE_F32_UNIT);
    for (int r = 0; r < rows; r += 4) {
        prefetch_rows(s, r, 4);
        for (int c = 0; c < width; c += ATT_TILE) {
            int cols = MIN(ATT_TILE, width - c);
            f32_rows4(&block, s, r, c, cols);
            for (int p = 0; p < cols; p += TILE_MR) {
                float *to = (float *)dst + (size_t)(c + p) * ATT_TILE + (size_t)r * TILE_MR;
                for (int i = 0; i < 4; i++)
                    memcpy(to + i * TILE_MR, block.at + (size_t)i * block.ld + p,
                           TILE_MR * sizeof *to);
            }
        }
    }
}

static void f32_right_inner(void *dst, const tile_src *s, int width) {
    float *to = dst;
    int rows = (int)align_up((size_t)s->rows, TILE_F32_UNIT);
    for (int r = 0; r < rows; r++, to += width) {
        int got = r < s->rows ? s->cols : 0;
        prefetch_rows(s, r, 1);
        if (got) CPU(to_f32)(s->dt, src_at(s, r, 0), to, got);
        memset(to + got, 0, (size_t)(width - got) * sizeof *to);
    }
}

static const void *f32_left_scores(void *buffer, const float *t, int keys, int queries) {
    for (int k = 0; k < keys; k += TILE_MR) CPU(tile_transpose)
    ((float *)buffer + (size_t)k * ATT_TILE, TILE_MR, t + (size_t)k * ATT_TILE, ATT_TILE, TILE_MR,
     queries);
    return buffer;
}
static const void *f32_right_scores(void *buffer, const float *t, int keys, int queries) {
    (void)buffer, (void)keys, (void)queries;
    return t;
}

static void f32_mul(const tile_job *j) {
    const float *left = j->left, *right = j->right;
    for (int n = 0; n < j->n; n += TILE_NR) {
        for (int m = 0; m < j->m; m += TILE_MR) {
            int k0, k1;
            if (!tile_inner(j, m, m + TILE_MR, n, n + TILE_NR, F32_GRAIN, &k0, &k1)) continue;
            f32_panel(left + (size_t)m * j->inner, right + n, j->ldc, k0, k1,
                      j->c + (size_t)m * j->ldc + n, j->ldc, j->add);
        }
    }
}

/* A path whose functions begin with its name. */
#define TILE_PATH(label, type, size, path)                                                         \
    {                                                                                              \
        .name = label, .elem = sizeof(type), .unit = size, .left_outer = path##_left_outer,        \
        .left_inner = path##_left_inner, .right_outer = path##_right_outer,                        \
        .right_inner = path##_right_inner, .left_scores = path##_left_scores,                      \
        .right_scores = path##_right_scores, .mul = path##_mul                                     \
    }
static const tile_path f32_path = TILE_PATH("fp32", float, TILE_F32_UNIT, f32);

/* ---- bf16, where the instruction set has it -------------------------------------------------- */
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "kernel/tile_bf16_neon.h"
#elif defined(__AMX_BF16__)
#include "kernel/tile_bf16_amx.h"
#elif defined(__AVX512BF16__)
#include "kernel/tile_bf16_avx512.h"
#else
static const tile_path *bf16_path_or_null(void) { return NULL; }
#endif

const tile_path *CPU(tile_path_for)(dtype dt) {
    const tile_path *bf16 = dt == DT_BF16 ? bf16_path_or_null() : NULL;
    return bf16 ? bf16 : &f32_path;
}
