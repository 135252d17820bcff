/* fp32 GEMM in the compilers' vector types: one source for every register width. */
#include "kernel_internal.h"

/* The sums leave registers for a row of B, a broadcast and, without multiply-add, a product: of 16
 * registers, or 32 with AVX-512. */
#if defined(__AVX512F__)
enum { LANES = 16, MR = 12, COLS = 2 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 4, COLS = 3 };
#else
enum { LANES = 4, MR = 4, COLS = 2 };
#endif
enum { NR = COLS * LANES };

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
/* The same in memory of any alignment. */
typedef float vec_at __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

UNCHECKED static void multiply_register_tile(int64_t k, const void *a, const void *b, float *c,
                                             int64_t ldc, bool add) {
    const float *pa = a, *pb = b;
    tile_reads(a, (size_t)(k * MR) * sizeof *pa);
    tile_reads(b, (size_t)(k * NR) * sizeof *pb);
    tile_writes(c, ldc, MR, NR);
    vec sum[MR][COLS];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < COLS; j++) sum[i][j] = (vec){ 0 };
    for (; k > 0; k--, pa += MR, pb += NR) {
        vec y[COLS];
        for (int j = 0; j < COLS; j++) y[j] = *(const vec_at *)(pb + j * LANES);
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < COLS; j++) sum[i][j] += pa[i] * y[j];
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < COLS; j++) {
            vec_at *at = (vec_at *)(c + i * ldc + j * LANES);
            vec old = *at;
            *at = add ? old + sum[i][j] : sum[i][j];
        }
}

static double burn_registers(int64_t rounds) {
    enum { SUMS = MR * COLS };
    vec sum[SUMS], x = (float)rounds * 1e-30f - (vec){ 0 };
    for (int i = 0; i < SUMS; i++) sum[i] = (float)i - (vec){ 0 };
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS; i++) sum[i] += x * sum[i];
    vec total = { 0 };
    for (int i = 0; i < SUMS; i++) total += sum[i];
    volatile float keep = total[0];
    (void)keep;
    return (double)rounds * SUMS * LANES * 2;
}

const gemm_kernel CPU(gemm_f32_kernel) = { .dt = DT_F32,
                                           .mr = MR,
                                           .nr = NR,
                                           .ga = 1,
                                           .gb = 1,
                                           .ku = 1,
                                           .kc = 256,
                                           .block_m = 128,
                                           .block_n = 192,
                                           .tile = multiply_register_tile,
                                           .burn = burn_registers };
