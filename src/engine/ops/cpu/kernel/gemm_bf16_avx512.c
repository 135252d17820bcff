/* bf16 GEMM with AVX-512's vdpbf16ps: each lane adds the dot product of two pairs. A pair of A is
 * broadcast against 32 columns of B. */
#include "kernel_internal.h"

#include <immintrin.h>
#include <string.h>

enum { MR = 12, COLS = 2, NR = COLS * 16 };

static inline __m512bh broadcast_pair(const uint16_t *p) {
    int pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

static void multiply_register_tile(int64_t k, const void *a, const void *b, float *c, int64_t ldc,
                                   bool add) {
    const uint16_t *pa = a, *pb = b;
    __m512 sum[MR][COLS];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < COLS; j++) sum[i][j] = _mm512_setzero_ps();
    for (; k > 0; k -= 2, pa += MR * 2, pb += NR * 2) {
        __m512bh y[COLS];
        for (int j = 0; j < COLS; j++) y[j] = (__m512bh)_mm512_loadu_si512(pb + j * 32);
        for (int i = 0; i < MR; i++) {
            __m512bh x = broadcast_pair(pa + i * 2);
            for (int j = 0; j < COLS; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, y[j]);
        }
    }
    for (int i = 0; i < MR; i++, c += ldc)
        for (int j = 0; j < COLS; j++) {
            __m512 old = add ? _mm512_loadu_ps(c + j * 16) : _mm512_setzero_ps();
            _mm512_storeu_ps(c + j * 16, _mm512_add_ps(old, sum[i][j]));
        }
}

static double burn_registers(int64_t rounds) {
    enum { SUMS = MR * COLS };
    __m512 sum[SUMS];
    __m512bh x = (__m512bh)_mm512_set1_epi32((int)rounds & 0xff);
    for (int i = 0; i < SUMS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
    for (int i = 1; i < SUMS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    volatile float keep = _mm512_cvtss_f32(sum[0]);
    (void)keep;
    return (double)rounds * SUMS * 64;
}

static const gemm_kernel kernel = { .dt = DT_BF16,
                                    .mr = MR,
                                    .nr = NR,
                                    .ga = 2,
                                    .gb = 2,
                                    .ku = 2,
                                    .kc = 512,
                                    .block_m = 128,
                                    .block_n = 192,
                                    .tile = multiply_register_tile,
                                    .burn = burn_registers };
const gemm_kernel *const CPU(gemm_bf16_kernel) = &kernel;
