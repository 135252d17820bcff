/* C[TILE_MR, TILE_NR] of an fp32 GEMM in the compiler's vector types: a row of L, [k][TILE_MR], of scalars
 * times two vectors of R. Enough sums are in flight to hide the latency of multiply-add, within the
 * registers there are: 32 with AVX-512, 16 without. */
enum {
    TILE_MR = VEC == 16 ? 8 : 4,
    TILE_NR = 2 * VEC,
    TILE_F32_UNIT = TILE_NR < 16 ? 16 : TILE_NR,
};

static inline void f32_panel(const float *l, const float *r, int ldr, int k0, int k1, float *c,
                             int ldc, bool add) {
    vf sum[TILE_MR][2] = { { { 0 } } };
    for (int k = k0; k < k1; k++) {
        vf r0 = att_get(r + (size_t)k * ldr), r1 = att_get(r + (size_t)k * ldr + VEC);
        ATT_UNROLL
        for (int i = 0; i < TILE_MR; i++) {
            float x = l[(size_t)k * TILE_MR + i];
            sum[i][0] += x * r0;
            sum[i][1] += x * r1;
        }
    }
    ATT_UNROLL
    for (int i = 0; i < TILE_MR; i++) {
        float *to = c + (size_t)i * ldc;
        att_put(to, add ? att_get(to) + sum[i][0] : sum[i][0]);
        att_put(to + VEC, add ? att_get(to + VEC) + sum[i][1] : sum[i][1]);
    }
}
