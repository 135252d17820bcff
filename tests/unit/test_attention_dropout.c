/* The mask of attention dropout, read off the results: with equal scores and v of token j the unit vector
 * j, the output of query i is its row of probabilities; with dO of query i the unit vector i, dv of key j
 * is its column. On every instruction set; gradients are checked by tests/ops, layouts by
 * tests/parity/test_layouts.c. */
#include "support/test.h"

#include <math.h>

#include "ops/op_table.h"

enum { N = 128, HEADS = 4, PAIRS = HEADS * N * (N + 1) / 2 };
static const float RATE = 51 / 256.0f; /* 0.2, rounded */

typedef struct draw {
    rng_key key;
    uint32_t site, layer;
    int heads, first_head; /* heads of this rank */
    int64_t first;         /* id of the first token */
    float p;
} draw;
static const draw usual = { { { 3, 5 } }, 3, 1, HEADS, 0, 1000, 0.2f };

/* Holds the factor of each probability: [head][query][key] */
typedef float mask[HEADS][N][N];

static void run(const op_backend *b, op_call *c, const draw *d) {
    step_block step = { .dropout = d->key };
    op_run r = { .step = &step, .layer = d->layer };
    r.workspace_bytes = ops_workspace(b, c, 1);
    r.workspace = mem_alloc(r.workspace_bytes);
    c->run = &r;
    ops_run(b, c);
    free(r.workspace);
}

static op_attr attr_of(const draw *d) {
    op_attr a = { .dropout = { d->p, d->site } };
    a.heads.q = a.heads.kv = d->heads;
    a.heads.dim = N;
    a.heads.scale = 1;
    a.heads.first = d->first_head;
    return a;
}

/* The mask that forward applies, and the one of backward. */
static void draw_masks(const op_backend *b, const draw *d, mask forward, mask backward) {
    int64_t width = d->heads * N, cols = 3 * width;
    float *qkv = mem_alloc((size_t)(N * cols) * sizeof *qkv);
    float *o = mem_alloc((size_t)(N * width) * sizeof *o),
          *dout = mem_alloc((size_t)(N * width) * 4);
    float *dqkv = mem_alloc((size_t)(N * cols) * sizeof *dqkv), *lse = mem_alloc(HEADS * N * 4);
    int32_t start[N] = { 0 };
    int64_t id[N];
    for (int i = 0; i < N; i++) {
        id[i] = d->first + i;
        for (int h = 0; h < d->heads; h++)
            qkv[i * cols + 2 * width + h * N + i] = dout[i * width + h * N + i] = 1;
    }
    tensor x = tensor_of(qkv, DT_F32, 2, (int64_t[]){ N, cols });
    tensor s = tensor_of(start, DT_I32, 1, (int64_t[]){ N });
    tensor ids = tensor_of(id, DT_I64, 1, (int64_t[]){ N });
    tensor y = tensor_of(o, DT_F32, 2, (int64_t[]){ N, width });
    tensor stat = tensor_of(lse, DT_F32, 2, (int64_t[]){ d->heads, N });
    tensor dy = tensor_of(dout, DT_F32, 2, (int64_t[]){ N, width });
    tensor dx = tensor_of(dqkv, DT_F32, 2, (int64_t[]){ N, cols });
    op_call f = { .op = OP_ATTENTION, .attr = attr_of(d), .in = { x, s, ids }, .out = { y, stat } };
    run(b, &f, d);
    op_call g = {
        .op = OP_ATTENTION_BWD, .attr = attr_of(d), .in = { dy, x, y, stat, s, ids }, .out = { dx }
    };
    run(b, &g, d);
    for (int h = 0; h < d->heads; h++)
        for (int i = 0; i < N; i++) {
            assert_true(fabs(lse[h * N + i] - log(i + 1)) < 1e-5); /* that of softmax */
            for (int j = 0; j < N; j++) {
                forward[h][i][j] = o[i * width + h * N + j] * (float)(i + 1);
                backward[h][i][j] = dqkv[j * cols + 2 * width + h * N + i] * (float)(i + 1);
            }
        }
    free(qkv), free(o), free(dout), free(dqkv), free(lse);
}

static int pairs_that_differ(mask a, mask b, int heads) {
    int n = 0;
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j <= i; j++) n += (a[h][i][j] == 0) != (b[h][i][j] == 0);
    return n;
}

static mask first, second, back;

static void a_part_is_dropped_and_the_rest_scaled(void **state) {
    for (int k = 0; ops_cpu_isa(k); k++) {
        draw_masks(ops_cpu(ops_cpu_isa(k)), &usual, first, back);
        double dropped = 0, sigma = sqrt((double)PAIRS * RATE * (1 - RATE));
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < N; i++)
                for (int j = 0; j < N; j++) {
                    float m = first[h][i][j], want = j > i || m == 0 ? 0 : 1 / (1 - RATE);
                    assert_true(fabsf(m - want) < 2e-5f);
                    assert_true(fabsf(back[h][i][j] - want) < 2e-5f);
                    dropped += j <= i && m == 0;
                }
        if (fabs(dropped - (double)PAIRS * RATE) > 4 * sigma)
            fail_msg("%s: %.0f of %d dropped, expected %.0f within %.0f", ops_cpu_isa(k), dropped,
                     PAIRS, PAIRS * (double)RATE, 4 * sigma);
    }
}

/* Independent masks differ in 2 p (1 - p) of the pairs. */
static void expect_other_mask(const char *what, draw d) {
    double chance = 2 * RATE * (1 - RATE), sigma = sqrt(PAIRS * chance * (1 - chance));
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    draw_masks(b, &usual, first, back);
    draw_masks(b, &d, second, back);
    int n = pairs_that_differ(first, second, HEADS);
    if (fabs(n - PAIRS * chance) > 4 * sigma)
        fail_msg("another %s: %d of %d pairs differ, expected %.0f within %.0f", what, n, PAIRS,
                 PAIRS * chance, 4 * sigma);
}

static void steps_sites_layers_and_tokens_have_their_own_masks(void **state) {
    draw d = usual;
    d.key.k[0]++;
    expect_other_mask("step", d);
    d = usual, d.site++;
    expect_other_mask("site", d);
    d = usual, d.layer++;
    expect_other_mask("layer", d);
    d = usual, d.first += N;
    expect_other_mask("sequence", d);
    d = usual, d.first += INT64_C(1) << 32;
    expect_other_mask("sequence, far away", d);
    d = usual, d.first_head = HEADS;
    expect_other_mask("tp rank", d);
}

static void heads_and_keys_have_their_own_decisions(void **state) {
    draw_masks(ops_cpu(OPS_ISA_BEST), &usual, first, back);
    double chance = 2 * RATE * (1 - RATE);
    for (int h = 1; h < HEADS; h++) {
        int n = 0, pairs = N * (N + 1) / 2;
        for (int i = 0; i < N; i++)
            for (int j = 0; j <= i; j++) n += (first[h][i][j] == 0) != (first[0][i][j] == 0);
        assert_true(fabs(n - pairs * chance) < 4 * sqrt(pairs * chance * (1 - chance)));
    }
    for (int apart = 1; apart <= 16; apart++) { /* keys that share a counter, and the next */
        int n = 0, pairs = 0;
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < N; i++)
                for (int j = apart; j <= i; j++, pairs++)
                    n += (first[h][i][j] == 0) != (first[h][i][j - apart] == 0);
        assert_true(fabs(n - pairs * chance) < 4.5 * sqrt(pairs * chance));
    }
}

/* Two ranks of two heads draw what one rank of four does. */
static void sharded_heads_draw_their_own_part(void **state) {
    draw_masks(ops_cpu(OPS_ISA_BEST), &usual, first, back);
    for (int rank = 0; rank < 2; rank++) {
        draw d = usual;
        d.heads = HEADS / 2, d.first_head = rank * d.heads;
        draw_masks(ops_cpu(OPS_ISA_BEST), &d, second, back);
        assert_memory_equal(second, first[rank * 2], sizeof(float) * 2 * N * N);
    }
}

static void a_rate_of_zero_draws_nothing(void **state) {
    draw d = usual;
    d.p = 0, d.site = 0;
    draw_masks(ops_cpu(OPS_ISA_BEST), &d, first, back);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j <= i; j++) assert_true(fabsf(first[h][i][j] - 1) < 1e-5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_is_dropped_and_the_rest_scaled),
        cmocka_unit_test(steps_sites_layers_and_tokens_have_their_own_masks),
        cmocka_unit_test(heads_and_keys_have_their_own_decisions),
        cmocka_unit_test(sharded_heads_draw_their_own_part),
        cmocka_unit_test(a_rate_of_zero_draws_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
