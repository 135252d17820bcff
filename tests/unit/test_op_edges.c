/* Edges of CPU kernels, on every instruction set: all codes of the converters, ties of bf16 sums, activations
 * far from 0, means far from 0. Every op in general: tests/ops. */
#include "support/test.h"

#include <math.h>

#include "ops/op_table.h"

/* ---- converters ------------------------------------------------------------------------------ */
/* In chunks: those shorter than a vector take the one-element code. */
static void cast(const op_backend *b, dtype from, void *src, dtype to, void *dst, int64_t n,
                 int64_t piece) {
    op_run run = { 0 };
    op_call c = { .op = OP_CAST, .run = &run };
    for (int64_t at = 0; at < n; at += piece) {
        int64_t m = MIN(piece, n - at);
        c.in[0] = tensor_of((char *)src + (size_t)at * dt_size(from), from, 1, &m);
        c.out[0] = tensor_of((char *)dst + (size_t)at * dt_size(to), to, 1, &m);
        ops_run(b, &c);
    }
}

/* Every code up, and every code down again with its neighbours and halfway points: all as the
 * one-element converters have it. */
static void check_converters(const op_backend *b, dtype narrow, int64_t piece) {
    enum { CODES = 65536, NEAR = 5 };
    uint16_t *code = mem_alloc(CODES * sizeof *code);
    float *wide = mem_alloc(CODES * sizeof *wide), *near = mem_alloc(CODES * NEAR * sizeof *near);
    uint16_t *down = mem_alloc(CODES * NEAR * sizeof *down);
    for (int i = 0; i < CODES; i++) code[i] = (uint16_t)i;
    cast(b, narrow, code, DT_F32, wide, CODES, piece);
    for (int i = 0; i < CODES; i++) {
        float want, next;
        uint16_t after = (uint16_t)(i + 1);
        dt_to_f32(narrow, &code[i], &want, 1);
        dt_to_f32(narrow, &after, &next, 1);
        if (isnan(want))
            assert_true(isnan(wide[i]));
        else
            assert_memory_equal(&wide[i], &want, sizeof want);
        float half = want + (next - want) / 2;
        const float all[NEAR] = { want, half, nextafterf(half, INFINITY),
                                  nextafterf(half, -INFINITY), want * 1.7f };
        memcpy(near + i * NEAR, all, sizeof all);
    }
    cast(b, DT_F32, near, narrow, down, CODES * NEAR, piece);
    for (int i = 0; i < CODES * NEAR; i++) {
        uint16_t want;
        float back;
        dt_from_f32(narrow, &near[i], &want, 1);
        dt_to_f32(narrow, &down[i], &back, 1);
        if (isnan(near[i]) ? !isnan(back) : down[i] != want)
            fail_msg("%s, %a to %s: got %04x, expected %04x", b->name, (double)near[i],
                     dt_name(narrow), down[i], want);
    }
    free(code);
    free(wide);
    free(near);
    free(down);
}
static void converters_match_single_elements(void **state) {
    const int64_t pieces[] = { 1 << 20, 7, 1 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (size_t p = 0; p < COUNT_OF(pieces); p++) {
            check_converters(ops_cpu(ops_cpu_isa(i)), DT_BF16, pieces[p]);
            check_converters(ops_cpu(ops_cpu_isa(i)), DT_F16, pieces[p]);
        }
}

/* Kernels that compute on bf16 without the converters must round as they do: every code plus half
 * its last place (a tie), and plus some other code. */
static void bf16_sums_round_to_nearest_even(void **state) {
    enum { CODES = 65536, N = 2 * CODES };
    rng_key key = rng_key_of(1, 0);
    uint16_t *a = mem_alloc(N * sizeof *a), *b = mem_alloc(N * sizeof *b),
             *c = mem_alloc(N * sizeof *c);
    for (int i = 0; i < N; i++) {
        uint16_t exponent = (uint16_t)(i & 0x7f80), half = (uint16_t)(exponent - (8 << 7));
        a[i] = (uint16_t)i;
        b[i] = i < CODES ? (exponent > 8 << 7 ? half : 0)
                         : (uint16_t)rng_below(key, (uint64_t)i, CODES);
    }
    for (int i = 0; ops_cpu_isa(i); i++) {
        int64_t n = N;
        op_run run = { 0 };
        op_call call = { .op = OP_ADD, .run = &run };
        call.in[0] = tensor_of(a, DT_BF16, 1, &n);
        call.in[1] = tensor_of(b, DT_BF16, 1, &n);
        call.out[0] = tensor_of(c, DT_BF16, 1, &n);
        ops_run(ops_cpu(ops_cpu_isa(i)), &call);
        for (int k = 0; k < N; k++) {
            float sum = bf16_to_f32(a[k]) + bf16_to_f32(b[k]), got = bf16_to_f32(c[k]);
            if (isnan(sum) ? !isnan(got) : c[k] != f32_to_bf16(sum))
                fail_msg("%s: %04x + %04x gave %04x, expected %04x", ops_cpu_isa(i), a[k], b[k],
                         c[k], f32_to_bf16(sum));
        }
    }
    free(a);
    free(b);
    free(c);
}

/* Far from 0 an activation is its limit, and a NaN is not lost. */
static void activations_reach_their_limits(void **state) {
    float x[] = { -1e4f, -200, -88, 88, 200, 1e4f, NAN, 0 }, y[8], dx[8], one[8];
    const float want[] = { 0, 0, 0, 88, 200, 1e4f, NAN, 0 },
                slope[] = { 0, 0, 0, 1, 1, 1, NAN, 0.5f };
    const act_kind acts[] = { ACT_GELU_TANH, ACT_GELU_ERF };
    int64_t n = 8;
    for (int i = 0; i < 8; i++) one[i] = 1;
    for (int i = 0; ops_cpu_isa(i); i++)
        for (int a = 0; a < 2; a++) {
            op_run run = { 0 };
            op_call f = { .op = OP_GELU, .run = &run, .attr = { .act = acts[a] } }, b = f;
            b.op = OP_GELU_BWD;
            f.in[0] = b.in[1] = tensor_of(x, DT_F32, 1, &n);
            b.in[0] = tensor_of(one, DT_F32, 1, &n);
            f.out[0] = tensor_of(y, DT_F32, 1, &n);
            b.out[0] = tensor_of(dx, DT_F32, 1, &n);
            ops_run(ops_cpu(ops_cpu_isa(i)), &f);
            ops_run(ops_cpu(ops_cpu_isa(i)), &b);
            for (int k = 0; k < 8; k++) {
                assert_true(isnan(want[k]) ? isnan(y[k]) : fabsf(y[k] - want[k]) < 1e-30f);
                assert_true(isnan(want[k]) ? isnan(dx[k]) : fabsf(dx[k] - slope[k]) < 1e-6f);
            }
        }
}

/* Rows whose mean is many deviations from 0, where a variance in one pass loses its digits. */
static void layernorm_keeps_digits_of_far_means(void **state) {
    enum { N = 7, D = 768 };
    static float x[N][D], w[D], y[N][D], stat[N][2];
    rng_key key = rng_key_of(2, 0);
    for (int k = 0; k < D; k++) w[k] = 1;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < D; k++)
            x[i][k] = (float)(pow(4, i) + rng_normal(key, (uint64_t)(i * D + k)));
    for (int i = 0; ops_cpu_isa(i); i++) {
        const op_backend *b = ops_cpu(ops_cpu_isa(i));
        op_call c = { .op = OP_LAYERNORM, .attr = { .eps = 1e-5f } };
        c.in[0] = tensor_of(x, DT_F32, 2, (int64_t[]){ N, D });
        c.in[2] = tensor_of(w, DT_F32, 1, (int64_t[]){ D });
        c.out[1] = tensor_of(y, DT_F32, 2, (int64_t[]){ N, D });
        c.out[2] = tensor_of(stat, DT_F32, 2, (int64_t[]){ N, 2 });
        size_t bytes = ops_workspace(b, &c, 1);
        op_run run = { .workspace = mem_alloc(bytes + 1), .workspace_bytes = bytes };
        c.run = &run;
        ops_run(b, &c);
        free(run.workspace);
        for (int r = 0; r < N; r++) {
            double mean = 0, var = 0;
            for (int k = 0; k < D; k++) mean += (double)x[r][k] / D;
            for (int k = 0; k < D; k++) var += (x[r][k] - mean) * (x[r][k] - mean) / D;
            double scale = 1 / sqrt(var + 1e-5);
            assert_true(fabs(stat[r][0] - mean) < 1e-6 * mean);
            assert_true(fabs(stat[r][1] - scale) < 2e-6 * scale);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converters_match_single_elements),
        cmocka_unit_test(bf16_sums_round_to_nearest_even),
        cmocka_unit_test(activations_reach_their_limits),
        cmocka_unit_test(layernorm_keeps_digits_of_far_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
