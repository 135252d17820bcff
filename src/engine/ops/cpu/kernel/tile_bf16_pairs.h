/* Operands in pairs of bf16, as x86 multiplies them: two adjacent k side by side,
 *     [outer / panel][inner / 2][panel outer][2 inner]                                       */
#include <immintrin.h>

enum { BF16_STEP = 2, BF16_UNIT = 32 };

/* @return the index of the pair of inner elements at k of outer index `at`; `inner` as in tile_job. */
static inline size_t bf16_at(int at, int k, int inner, int panel) {
    return (size_t)(at / panel) * panel * inner + (size_t)k * panel +
           (size_t)(at % panel) * BF16_STEP;
}

/* The source's rows are outer: each row is split into pairs. */
static inline void bf16_outer(uint16_t *to, const tile_src *s, int width, int panel) {
    int rows = (int)align_up((size_t)s->rows, BF16_UNIT);
    for (int r = 0; r < rows; r++) {
        const uint16_t *from = (const uint16_t *)s->data + r * s->stride;
        int cols = r < s->rows ? s->cols : 0, whole = cols / BF16_STEP * BF16_STEP, k = 0;
        prefetch_rows(s, r, 1);
        for (; k < whole; k += BF16_STEP) memcpy(to + bf16_at(r, k, width, panel), from + k, 4);
        if (k < cols) {
            uint16_t part[BF16_STEP] = { from[k], 0 };
            memcpy(to + bf16_at(r, k, width, panel), part, 4);
            k += BF16_STEP;
        }
        for (; k < width; k += BF16_STEP) memset(to + bf16_at(r, k, width, panel), 0, 4);
    }
}
/* The source's rows are inner: two of them are interleaved. */
static inline void bf16_inner(uint16_t *to, const tile_src *s, int width, int panel) {
    static const uint16_t zero[BF16_UNIT];
    int rows = (int)align_up((size_t)s->rows, BF16_UNIT);
    for (int k = 0; k < rows; k += BF16_STEP) {
        prefetch_rows(s, k, BF16_STEP);
        for (int c = 0; c < width; c += panel) {
            uint16_t part[BF16_STEP][BF16_UNIT] = { { 0 } };
            const uint16_t *x[BF16_STEP];
            int n = MIN(panel, MAX(s->cols - c, 0));
            for (int i = 0; i < BF16_STEP; i++) {
                const uint16_t *from = (const uint16_t *)s->data + (k + i) * s->stride + c;
                x[i] = k + i >= s->rows ? zero : n == panel ? from : part[i];
                if (x[i] == part[i]) memcpy(part[i], from, (size_t)n * 2);
            }
            uint16_t *at = to + bf16_at(c, k, ATT_TILE, panel);
            for (int i = 0; i < panel; i++) {
                at[2 * i] = x[0][i];
                at[2 * i + 1] = x[1][i];
            }
        }
    }
}
/* Packs a score tile as R: its rows, keys, are inner. */
static inline const void *bf16_pack_scores(void *buffer, const float *t, int keys, int queries,
                                           int panel) {
    uint16_t *to = buffer;
    for (int k = 0; k < keys; k += BF16_STEP) {
        for (int q = 0; q < queries; q += 16) {
            const float *at = t + (size_t)k * ATT_TILE + q;
            __m256bh even = _mm512_cvtneps_pbh(_mm512_loadu_ps(at));
            __m256bh odd = _mm512_cvtneps_pbh(_mm512_loadu_ps(at + ATT_TILE));
            __m512i low = _mm512_cvtepu16_epi32((__m256i)even);
            __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)odd), 16);
            _mm512_storeu_si512(to + bf16_at(q, k, ATT_TILE, panel), _mm512_or_si512(low, high));
        }
    }
    return buffer;
}
