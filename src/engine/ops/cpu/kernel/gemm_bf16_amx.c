/* bf16 GEMM with AMX: a tile register holds 16 rows of 64 bytes, and one instruction adds the
 * product of 16 x 32 of A and 32 x 16 of B to 16 x 16 fp32 sums.
 *
 *     tmm0 tmm1    sums of 32 x 32        tmm4   A: upper or lower 16 rows
 *     tmm2 tmm3                           tmm5   B: left or right 16 columns
 *
 * Only two of the four free registers hold operands, so that four multiplications need five loads where
 * four would do. On machines shared with others, the more registers were in use, the longer loads waited
 * for earlier multiplications, as if registers for renaming were scarce. With two, this measured 1.25 times
 * as fast on 16 such cores.
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

/* All eight registers at full size. A constant, because gcc 12 declares that ldtilecfg reads 8 bytes and drops
 * stores to the other 56 of a local variable. */
static const alignas(64) tile_config full_tiles = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

/* Each thread needs its own configuration. */
static void enter_amx(void) { _tile_loadconfig(&full_tiles); }

static void leave_amx(void) { _tile_release(); }

static inline void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Rows of A are `row` bytes apart, steps of K `step` bytes. */
static inline void multiply_amx_tile(int64_t k, const char *a, size_t row, size_t step,
                                     const char *b, float *c, int64_t ldc, bool add) {
    if (add) {
        _tile_loadd(0, c, ldc * 4);
        _tile_loadd(1, c + 16, ldc * 4);
        _tile_loadd(2, c + 16 * ldc, ldc * 4);
        _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
    } else {
        zero_sums();
    }
    for (; k > 0; k -= STEP, a += step, b += NR * STEP * 2) {
        _tile_loadd(4, a, row);
        _tile_loadd(5, b, NR * 4);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(4, a + 16 * row, row);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(5, b + 64, NR * 4);
        _tile_dpbf16ps(3, 4, 5);
        _tile_loadd(4, a, row);
        _tile_dpbf16ps(1, 4, 5);
    }
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    _tile_stored(2, c + 16 * ldc, ldc * 4);
    _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

static void multiply_register_tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc,
                                   bool add) {
    multiply_amx_tile(k, a, STEP * 2, MR * STEP * 2, b, c, ldc, add);
}

static void tile_rows(int64_t k, const void *a, int64_t lda, const void *b, float *c, int64_t ldc,
                      bool add) {
    multiply_amx_tile(k, a, (size_t)lda * 2, STEP * 2, b, c, ldc, add);
}

static double burn_registers(int64_t rounds) {
    enter_amx();
    zero_sums();
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    leave_amx();
    return (double)rounds * 4 * (16 * 16 * 32 * 2);
}

static const gemm_kernel kernel = { .dt = DT_BF16,
                                    .mr = MR,
                                    .nr = NR,
                                    .ga = 32,
                                    .gb = 2,
                                    .ku = 32,
                                    .kc = 1024,
                                    .block_m = 256,
                                    .block_n = 256,
                                    .tile = multiply_register_tile,
                                    .tile_rows = tile_rows,
                                    .rows_m = 512,
                                    .own_k = 512,
                                    .enter = enter_amx,
                                    .leave = leave_amx,
                                    .burn = burn_registers };
const gemm_kernel *const CPU(gemm_bf16_kernel) = &kernel;
