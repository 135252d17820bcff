/* The core's promise: a model recorded once gives the same loss and gradients on every layout. */
#include "support/model.h"

static const layout layouts[] = {
    { .name = "tp2", .dp = 1, .tp = 2 },
    { .name = "tp2+sp", .dp = 1, .tp = 2, .sp = true },
    { .name = "dp2", .dp = 2, .tp = 1 },
    { .name = "zero3 over 2", .dp = 2, .tp = 1, .zero3 = true },
    { .name = "dp2 x tp2", .dp = 2, .tp = 2 },
    { .name = "dp2 x tp2+sp", .dp = 2, .tp = 2, .sp = true },
    { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero3 = true },
    { .name = "zero3 over 4", .dp = 4, .tp = 1, .zero3 = true },
    { .name = "dp2 x tp2+sp, full recompute", .dp = 2, .tp = 2, .sp = true, .keep_every = 1 },
    { .name = "zero3 over 2, selective", .dp = 2, .tp = 1, .zero3 = true, .selective = true },
};

static void compare_all(const char *model_name, const model_config *c) {
    outcome one;
    run_layout(c, &(layout){ .name = "one", .dp = 1, .tp = 1 }, &one);
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        outcome o;
        char what[128];
        snprintf(what, sizeof what, "%s on %s", model_name, layouts[i].name);
        run_layout(c, &layouts[i], &o);
        assert_true(o.replicas_agree);
        same_within(what, &o, &one, 1e-5);
        outcome_free(&o);
    }
    outcome_free(&one);
}

static void test_llama(void **state) {
    model_config c = small_llama();
    compare_all("llama", &c);
}

static void test_llama_tied_dropout(void **state) {
    model_config c = small_llama();
    c.tied = true;
    c.dropout = 0.2;
    c.embed_dropout = 0.1;
    c.qknorm = QKNORM_HEAD;
    c.qkv_bias = true;
    compare_all("llama, tied, qk-norm, dropout", &c);
}

static void test_gpt2(void **state) {
    model_config c = small_gpt2();
    c.kv_heads = c.heads;
    compare_all("gpt2", &c);
}

static void test_neox(void **state) {
    model_config c = small_neox();
    c.rope_fraction = 0.25;
    compare_all("neox", &c);
}

static void test_post_norm(void **state) {
    model_config c = small_llama();
    c.norm_post = true;
    compare_all("norm on the output", &c);
}

/* ---- ZeRO-3 ------------------------------------------------------------------------------ */
/* Stored weights fall with the ranks, and what is gathered is one block at a time, not the model:
 * with many layers the peak is far below the whole. */
static void test_zero3_memory(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    outcome whole, half, quarter;
    run_layout(&c, &(layout){ .dp = 4, .tp = 1 }, &whole);
    run_layout(&c, &(layout){ .dp = 2, .tp = 1, .zero3 = true }, &half);
    run_layout(&c, &(layout){ .dp = 4, .tp = 1, .zero3 = true }, &quarter);
    assert_true(half.param_bytes <= whole.param_bytes / 2 + 65536);
    assert_true(quarter.param_bytes <= whole.param_bytes / 4 + 65536);
    /* gathered parameters and their gradients live in temp, once, whatever the layers */
    size_t block = (size_t)model_count(&c) * sizeof(float) / 8;
    assert_true(quarter.temp_bytes <= whole.temp_bytes + 3 * block);
    assert_true(quarter.saved_bytes <= whole.saved_bytes); /* no gathered weight is saved */
    outcome_free(&whole);
    outcome_free(&half);
    outcome_free(&quarter);
}

/* ---- what must be refused ---------------------------------------------------------------- */
typedef enum { KEEP, DROP_GATHER, DROP_REDUCE, DROUBLE_REDUCE } sabotage;

static err record_mlp(sabotage how, bool sp, int line_of[2]) {
    prog_param param[] = {
        { .name = "up", .ndim = 2, .dim = { 16, 8 }, .tp = PLACE_S(0) },
        { .name = "down", .ndim = 2, .dim = { 8, 16 }, .tp = PLACE_S(1) },
    };
    prog_bucket bucket[] = { { .name = "block", .dt = DT_F32 } };
    bucket_layout(param, 2, bucket, 1, 1);
    mesh m = { .size = { 1, 2 } };
    param_set set = { param, 2, bucket, 1 };
    prog *p = prog_new("mlp", PROG_TRAIN, &m, &set);
    placement pl = { .on[AX_TP] = sp ? PLACE_S(0) : PLACE_I };
    stream s = prog_stream_in(p, sp ? 2 : 4, 8, DT_F32, DT_F32, pl);
    val x = rec_sum(p, s), h = x;
    if (how != DROP_GATHER) h = rec_comm(p, h, AX_TP, PLACE_R);
    line_of[0] = __LINE__ + 1;
    h = rec_linear(p, h, prog_use(p, "up", h), VAL_NONE);
    h = rec_linear(p, h, prog_use(p, "down", h), VAL_NONE);
    if (how != DROP_REDUCE) h = rec_comm(p, h, AX_TP, pl.on[AX_TP]);
    if (how == DROUBLE_REDUCE) h = rec_comm(p, h, AX_TP, PLACE_P);
    line_of[1] = __LINE__ + 1;
    x = rec_add(p, x, h);
    prog_stream_out(p, (stream){ x, VAL_NONE });
    err e = prog_finish(p);
    prog_free(p);
    return e;
}

static void expect_refused(sabotage how, bool sp, int which, const char *words) {
    int line[2];
    err e = record_mlp(how, sp, line);
    char where[64];
    if (!e) fail_msg("a dropped collective was recorded without complaint");
    snprintf(where, sizeof where, "test_layouts.c:%d", which < 0 ? 0 : line[which]);
    if (which >= 0 && !strstr(err_message(e), where))
        fail_msg("'%s' does not name %s", err_message(e), where);
    if (!strstr(err_message(e), words)) fail_msg("'%s' does not say '%s'", err_message(e), words);
    err_free(e);
}

static void test_dropped_collective(void **state) {
    int line[2];
    assert_ok(record_mlp(KEEP, false, line));
    assert_ok(record_mlp(KEEP, true, line));
    expect_refused(DROP_GATHER, false, 0, "linear");
    expect_refused(DROP_GATHER, true, 0, "linear");
    expect_refused(DROP_REDUCE, false, 1, "add");
    expect_refused(DROP_REDUCE, true, 1, "add");
    expect_refused(DROUBLE_REDUCE, false, -1, "comm");
}

/* Ranks that disagree about their next collective are told so before anything runs. */
static void test_ranks_disagree(void **state) {
    model_config c = small_llama(), longer = c;
    longer.dim = 64;
    longer.head_dim = 16;
    mesh me = { .size = { 1, 2 } };
    model *m[2];
    chain ch[2];
    for (int r = 0; r < 2; r++) {
        assert_ok(model_new(r ? &longer : &c, &(model_layout){ .mesh = me }, &m[r]));
        assert_ok(model_record(m[r], PROG_TRAIN, 32, 16, &ch[r]));
    }
    err e = prog_check_ranks(&me, ch, 2);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "rank"));
    err_free(e);
    ch[1] = ch[0];
    assert_ok(prog_check_ranks(&me, ch, 2));
    model_free(m[0]);
    model_free(m[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_tied_dropout),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_neox),
        cmocka_unit_test(test_post_norm),
        cmocka_unit_test(test_zero3_memory),
        cmocka_unit_test(test_dropped_collective),
        cmocka_unit_test(test_ranks_disagree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
