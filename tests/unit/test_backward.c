/* Which ops the backward pass is made of: where a GELU's slope is fused into the GEMM after it. */
#include "support/test.h"

#include "prog/prog_internal.h"
#include "ops/op_table.h"

typedef enum { PLAIN, TWO_READERS, SCALED, LEAVES, IN_FP8 } reading;

static int count(const prog *p, op_code op) {
    int n = 0;
    for (int i = 0; i < p->bwd.n; i++) n += p->bwd.op[i].op == op;
    return n;
}

/* x + down(gelu(up(x))), where the GELU's result is read in one way or another. */
static prog *record(reading how) {
    static prog_param param[] = {
        { .name = "up", .ndim = 2, .dim = { 16, 16 } },
        { .name = "down", .ndim = 2, .dim = { 16, 16 } },
    };
    static prog_bucket bucket[] = { { .name = "block", .dt = DT_BF16 } };
    mesh m = { .rank = 0 };
    bucket_layout(param, 2, bucket, 1, &m);
    param_set set = { param, 2, bucket, 1 };
    prog *p = prog_new("mlp", PROG_TRAIN, &m, &set, &(prog_options){ .fp8_sites = how == IN_FP8 });
    prog_compute_in(p, DT_BF16);
    residual_state s = prog_residual_in(p, 32, 16, DT_BF16, DT_BF16, (placement){ 0 });
    val x = rec_sum(p, s);
    val h = rec_linear_gelu(p, x, prog_use(p, "up", x), VAL_NONE, ACT_GELU_TANH), read = h;
    if (how == SCALED) read = rec_scale(p, h, 2);
    val y = rec_linear(p, read, prog_use(p, "down", h), VAL_NONE);
    if (how == IN_FP8) prog_fp8(p, y, FP8_CURRENT, 0);
    if (how == TWO_READERS) y = rec_add(p, y, h);
    prog_residual_out(p, (residual_state){ rec_add(p, x, y), how == LEAVES ? h : VAL_NONE });
    return p;
}

static void expect(reading how, int fused) {
    prog *p = record(how);
    err e = prog_finish(p);
    if (e) fail_msg("%s", err_message(e));
    assert_int_equal(count(p, OP_LINEAR_BWD_X_GELU), fused);
    assert_int_equal(count(p, OP_GELU_BWD), 1 - fused);
    assert_int_equal(count(p, OP_LINEAR_BWD_X), 2 - fused);
    assert_int_equal(count(p, OP_LINEAR_BWD_W), 2);
    prog_free(p);
}

static void test_only_reader(void **state) { expect(PLAIN, 1); }
static void test_two_readers(void **state) { expect(TWO_READERS, 0); }
static void test_op_between(void **state) { expect(SCALED, 0); }
static void test_leaves_the_program(void **state) { expect(LEAVES, 0); }
static void test_fp8(void **state) { expect(IN_FP8, 0); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_reader), cmocka_unit_test(test_two_readers),
        cmocka_unit_test(test_op_between),  cmocka_unit_test(test_leaves_the_program),
        cmocka_unit_test(test_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
