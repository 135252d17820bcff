/* bf16 products with AMX: a tile register holds 16 rows of 64 bytes, and one instruction adds the
 * product of 16 x 32 of A and 32 x 16 of B to 16 x 16 fp32 sums.
 *
 *     tmm0 tmm1    sums of 32 x 32        tmm4, tmm5   A: upper and lower 16 rows
 *     tmm2 tmm3                           tmm6, tmm7   B: left and right 16 columns
 */
#include "kernel_internal.h"

#include <immintrin.h>
#include <stdalign.h>

enum { MR = 32, NR = 32, STEP = 32 }; /* STEP: of K, one tile register wide */

/* The layout the processor reads (palette 1). */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "ldtilecfg reads 64 bytes");

/* All eight registers at full size; each thread needs its own configuration. */
static void enter(void) {
    alignas(64) tile_config config = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

static void leave(void) { _tile_release(); }

static inline void store_sums(float *c, int64_t ldc) {
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    _tile_stored(2, c + 16 * ldc, ldc * 4);
    _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

static inline void load_sums(const float *c, int64_t ldc) {
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(1, c + 16, ldc * 4);
    _tile_loadd(2, c + 16 * ldc, ldc * 4);
    _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
}

static inline void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add) {
    const uint16_t *pa = a, *pb = b;
    if (add)
        load_sums(c, ldc);
    else
        zero_sums();
    for (; k > 0; k -= STEP, pa += MR * STEP, pb += NR * STEP) {
        _tile_loadd(6, pb, NR * 4);
        _tile_loadd(4, pa, STEP * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pb + 32, NR * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, pa + 16 * STEP, STEP * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(c, ldc);
}

static double burn(int64_t rounds) {
    enter();
    zero_sums();
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    leave();
    return (double)rounds * 4 * (16 * 16 * 32 * 2);
}

static const gemm_kernel kernel = { .dt = DT_BF16,
                                    .mr = MR,
                                    .nr = NR,
                                    .ga = 32,
                                    .gb = 2,
                                    .ku = 32,
                                    .kc = 512,
                                    .block_m = 256,
                                    .block_n = 256,
                                    .tile = tile,
                                    .enter = enter,
                                    .leave = leave,
                                    .burn = burn };
const gemm_kernel *const CPU(gemm_bf16_kernel) = &kernel;
