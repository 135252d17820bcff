/* bf16 tiles for VDPBF16PS, which adds the products of two adjacent k to fp32 sums: panels of 8 rows for
 * L, whose pairs are broadcast, and of 32 columns, two vectors, for R. For processors that have it but no
 * AMX; those with AMX run it at half the rate of fp32. */
#include "tile_bf16_pairs.h"

enum { BF16_LEFT = 8, BF16_RIGHT = 32 };

static void bf16_left_outer(void *dst, const tile_src *s, int width) {
    bf16_outer(dst, s, width, BF16_LEFT);
}
static void bf16_left_inner(void *dst, const tile_src *s, int width) {
    bf16_inner(dst, s, width, BF16_LEFT);
}
static void bf16_right_outer(void *dst, const tile_src *s, int width) {
    bf16_outer(dst, s, width, BF16_RIGHT);
}
static void bf16_right_inner(void *dst, const tile_src *s, int width) {
    bf16_inner(dst, s, width, BF16_RIGHT);
}
static const void *bf16_right_scores(void *buffer, const float *t, int keys, int queries) {
    return bf16_pack_scores(buffer, t, keys, queries, BF16_RIGHT);
}

static const void *bf16_left_scores(void *buffer, const float *t, int keys, int queries) {
    uint16_t *to = buffer;
    for (int k = 0; k < keys; k++) {
        for (int q = 0; q < queries; q += 16) {
            uint16_t half[16];
            __m256bh h = _mm512_cvtneps_pbh(_mm512_loadu_ps(t + (size_t)k * ATT_TILE + q));
            _mm256_storeu_si256((__m256i *)half, (__m256i)h);
            for (int i = 0; i < 16; i += BF16_STEP)
                memcpy(to + bf16_at(k, q + i, ATT_TILE, BF16_LEFT), half + i, 4);
        }
    }
    return buffer;
}

/* C[8, 32]: 16 sums. */
static inline void bf16_panel(const uint16_t *l, const uint16_t *r, int k0, int k1, float *c,
                              int ldc, bool add) {
    __m512 sum[BF16_LEFT][2];
    ATT_UNROLL
    for (int i = 0; i < BF16_LEFT; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int k = k0; k < k1; k += BF16_STEP) {
        __m512bh y0 = (__m512bh)_mm512_loadu_si512(r + (size_t)k * BF16_RIGHT);
        __m512bh y1 = (__m512bh)_mm512_loadu_si512(r + (size_t)k * BF16_RIGHT + 32);
        ATT_UNROLL
        for (int i = 0; i < BF16_LEFT; i++) {
            int pair;
            memcpy(&pair, l + (size_t)k * BF16_LEFT + 2 * i, 4);
            __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, y0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, y1);
        }
    }
    ATT_UNROLL
    for (int i = 0; i < BF16_LEFT; i++) {
        ATT_UNROLL
        for (int v = 0; v < 2; v++) {
            float *to = c + (size_t)i * ldc + 16 * v;
            __m512 x = add ? _mm512_add_ps(sum[i][v], _mm512_loadu_ps(to)) : sum[i][v];
            _mm512_storeu_ps(to, x);
        }
    }
}

static void bf16_mul(const tile_job *j) {
    const uint16_t *left = j->left, *right = j->right;
    for (int n = 0; n < j->n; n += BF16_RIGHT) {
        for (int m = 0; m < j->m; m += BF16_LEFT) {
            int k0, k1;
            if (!tile_inner(j, m, m + BF16_LEFT, n, n + BF16_RIGHT, BF16_STEP, &k0, &k1)) continue;
            bf16_panel(left + (size_t)m * j->inner, right + (size_t)n * j->inner, k0, k1,
                       j->c + (size_t)m * j->ldc + n, j->ldc, j->add);
        }
    }
}

static const tile_path bf16_path = TILE_PATH("bf16 dot", uint16_t, BF16_UNIT, bf16);
static const tile_path *bf16_path_or_null(void) { return &bf16_path; }
