/* The tile instructions of AMX in plain C, each thread with eight registers of its own: with this folder
 * before the compiler's, src/engine/ops/cpu/kernel/gemm_bf16_amx.c runs on any machine. A tile that is used without
 * a configuration, or after its release, is an error. */
#ifndef INGOT_TESTS_EMULATE_AMX_IMMINTRIN_H
#define INGOT_TESTS_EMULATE_AMX_IMMINTRIN_H

#if defined(__SSE2__)
#include_next <immintrin.h>
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#endif

#include <stdint.h>
#include <string.h>

#include "util/util.h"

enum { TILE_ROWS = 16, TILE_BYTES = 64, TILES = 8 };
typedef struct tile_unit {
    char at[TILES][TILE_ROWS][TILE_BYTES];
    int configured; /* registers of full size; 0: released */
} tile_unit;
static _Thread_local tile_unit tiles;

static inline char *tile_rows_of(int i) {
    BUG_IF(i < 0 || i >= tiles.configured);
    return tiles.at[i][0];
}
static inline void emulated_loadconfig(const void *config) {
    const uint8_t *bytes = config;
    BUG_IF(bytes[0] != 1);
    for (tiles.configured = 0; tiles.configured < TILES; tiles.configured++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * tiles.configured, sizeof row_bytes);
        BUG_IF(row_bytes != TILE_BYTES || bytes[48 + tiles.configured] != TILE_ROWS);
    }
    memset(tiles.at, 0xff, sizeof tiles.at);
}
static inline void emulated_release(void) { tiles.configured = 0; }
static inline void emulated_zero(int i) { memset(tile_rows_of(i), 0, sizeof tiles.at[0]); }
static inline void emulated_load(int i, const void *from, int64_t stride) {
    char *to = tile_rows_of(i);
    for (int r = 0; r < TILE_ROWS; r++)
        memcpy(to + r * TILE_BYTES, (const char *)from + r * stride, TILE_BYTES);
}
static inline void emulated_store(int i, void *to, int64_t stride) {
    const char *from = tile_rows_of(i);
    for (int r = 0; r < TILE_ROWS; r++)
        memcpy((char *)to + r * stride, from + r * TILE_BYTES, TILE_BYTES);
}
static inline float emulated_bf16(const char *row, int i) {
    uint32_t bits = 0;
    float x;
    memcpy((char *)&bits + 2, row + 2 * i, 2);
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* c[m][n] += a[m][2 k] b[k][2 n] + a[m][2 k + 1] b[k][2 n + 1] */
static inline void emulated_multiply(int c, int a, int b) {
    char *to = tile_rows_of(c), *left = tile_rows_of(a), *right = tile_rows_of(b);
    for (int m = 0; m < TILE_ROWS; m++)
        for (int n = 0; n < TILE_ROWS; n++) {
            float sum;
            memcpy(&sum, to + m * TILE_BYTES + n * 4, sizeof sum);
            for (int k = 0; k < TILE_ROWS; k++)
                for (int half = 0; half < 2; half++)
                    sum += emulated_bf16(left + m * TILE_BYTES, 2 * k + half) *
                           emulated_bf16(right + k * TILE_BYTES, 2 * n + half);
            memcpy(to + m * TILE_BYTES + n * 4, &sum, sizeof sum);
        }
}

#define _tile_loadconfig emulated_loadconfig
#define _tile_release    emulated_release
#define _tile_zero       emulated_zero
#define _tile_loadd      emulated_load
#define _tile_stored     emulated_store
#define _tile_dpbf16ps   emulated_multiply

#endif
