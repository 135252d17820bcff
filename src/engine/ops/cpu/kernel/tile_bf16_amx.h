/* bf16 tiles for AMX, whose registers hold 16 rows of 64 bytes. R is in pairs, as the instruction reads
 * them, in panels of 16 columns; L in blocks of 16 rows by 32 inner elements. Sums stay in registers and
 * are stored to C directly. */
#include "tile_bf16_pairs.h"

#include <stdalign.h>

enum { AMX_ROWS = 16, AMX_INNER = 32 };

static inline size_t amx_left_at(int m, int k, int inner) {
    return (size_t)(m / AMX_ROWS) * AMX_ROWS * inner +
           (size_t)(k / AMX_INNER) * AMX_ROWS * AMX_INNER + (size_t)(m % AMX_ROWS) * AMX_INNER +
           (size_t)(k % AMX_INNER);
}

static void amx_left_outer(void *dst, const tile_src *s, int width) {
    uint16_t *to = dst;
    int rows = (int)align_up((size_t)s->rows, BF16_UNIT);
    for (int r = 0; r < rows; r++) {
        const uint16_t *from = (const uint16_t *)s->data + r * s->stride;
        int cols = r < s->rows ? s->cols : 0;
        prefetch_rows(s, r, 1);
        for (int k = 0; k < width; k += AMX_INNER) {
            int n = MIN(AMX_INNER, MAX(cols - k, 0));
            uint16_t *at = to + amx_left_at(r, k, width);
            memcpy(at, from + k, (size_t)n * sizeof *at);
            memset(at + n, 0, (size_t)(AMX_INNER - n) * sizeof *at);
        }
    }
}

static void amx_left_inner(void *dst, const tile_src *s, int width) {
    uint16_t *to = dst;
    int rows = (int)align_up((size_t)s->rows, BF16_UNIT);
    for (int k = 0; k < rows; k++) {
        const uint16_t *from = (const uint16_t *)s->data + k * s->stride;
        int cols = k < s->rows ? s->cols : 0;
        prefetch_rows(s, k, 1);
        for (int m = 0; m < cols; m++) to[amx_left_at(m, k, ATT_TILE)] = from[m];
        for (int m = cols; m < width; m++) to[amx_left_at(m, k, ATT_TILE)] = 0;
    }
}

static void amx_right_outer(void *dst, const tile_src *s, int width) {
    bf16_outer(dst, s, width, AMX_ROWS);
}
static void amx_right_inner(void *dst, const tile_src *s, int width) {
    bf16_inner(dst, s, width, AMX_ROWS);
}
static const void *amx_right_scores(void *buffer, const float *t, int keys, int queries) {
    return bf16_pack_scores(buffer, t, keys, queries, AMX_ROWS);
}

static const void *amx_left_scores(void *buffer, const float *t, int keys, int queries) {
    uint16_t *to = buffer;
    for (int k = 0; k < keys; k++) {
        for (int q = 0; q < queries; q += AMX_INNER) {
            const float *at = t + (size_t)k * ATT_TILE + q;
            __m512bh h = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + 16), _mm512_loadu_ps(at));
            _mm512_storeu_si512(to + amx_left_at(k, q, ATT_TILE), (__m512i)h);
        }
    }
    return buffer;
}

/* All eight registers at full size; each thread needs its own configuration. */
static void amx_enter(void) {
    alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = { .palette = 1 };
    _Static_assert(sizeof config == 64, "ldtilecfg reads 64 bytes");
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = AMX_ROWS;
    }
    _tile_loadconfig(&config);
}

/* C[32, 32]: registers 0 to 3 are its quarters. l and r start at k0; blocks of both are 16 * 32 elements
 * apart, and the second panel is `panel` elements after the first. */
static inline void amx_panel(const uint16_t *l, const uint16_t *r, int blocks, size_t panel,
                             float *c, int ldc, bool add) {
    int row = ldc * (int)sizeof *c;
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        _tile_loadd(2, c + 16 * (size_t)ldc, row);
        _tile_loadd(3, c + 16 * (size_t)ldc + 16, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int b = 0; b < blocks; b++) {
        size_t at = (size_t)b * AMX_ROWS * AMX_INNER;
        _tile_loadd(4, l + at, 64);
        _tile_loadd(5, l + panel + at, 64);
        _tile_loadd(6, r + at, 64);
        _tile_loadd(7, r + panel + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, c + 16 * (size_t)ldc, row);
    _tile_stored(3, c + 16 * (size_t)ldc + 16, row);
}

static void amx_mul(const tile_job *j) {
    const uint16_t *left = j->left, *right = j->right;
    size_t panel = (size_t)AMX_ROWS * j->inner;
    amx_enter();
    for (int n = 0; n < j->n; n += BF16_UNIT) {
        for (int m = 0; m < j->m; m += BF16_UNIT) {
            int k0, k1;
            if (!tile_inner(j, m, m + BF16_UNIT, n, n + BF16_UNIT, AMX_INNER, &k0, &k1)) continue;
            amx_panel(left + (size_t)m * j->inner + (size_t)k0 * AMX_ROWS,
                      right + (size_t)n * j->inner + (size_t)k0 * AMX_ROWS, (k1 - k0) / AMX_INNER,
                      panel, j->c + (size_t)m * j->ldc + n, j->ldc, j->add);
        }
    }
    _tile_release();
}

static const tile_path bf16_path = TILE_PATH("bf16 amx", uint16_t, BF16_UNIT, amx);
static const tile_path *bf16_path_or_null(void) { return &bf16_path; }
