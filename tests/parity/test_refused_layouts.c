/* Layouts that cannot run are refused before anything runs: programs that lack a collective, degrees that do not divide a model,
 * ranks that disagree. */
#include "support/model.h"

/* ---- programs ---------------------------------------------------------------------------------- */
typedef enum { KEEP, DROP_GATHER, DROP_REDUCE, DOUBLE_REDUCE } sabotage;

static err record_mlp(sabotage how, bool sp, int line_of[2]) {
    prog_param param[] = {
        { .name = "up", .ndim = 2, .dim = { 16, 8 }, .pl.on[AX_TP] = PLACE_S(0) },
        { .name = "down", .ndim = 2, .dim = { 8, 16 }, .pl.on[AX_TP] = PLACE_S(1) },
    };
    prog_bucket bucket[] = { { .name = "block", .dt = DT_F32 } };
    mesh m = { .size = { [AX_TP] = 2 } };
    bucket_layout(param, 2, bucket, 1, &m);
    param_set set = { param, 2, bucket, 1 };
    prog *p = prog_new("mlp", PROG_TRAIN, &m, &set, &(prog_options){ 0 });
    placement pl = { .on[AX_TP] = sp ? PLACE_S(0) : PLACE_I };
    residual_state s = prog_residual_in(p, sp ? 2 : 4, 8, DT_F32, DT_F32, pl);
    val x = rec_sum(p, s), h = x;
    if (how != DROP_GATHER) h = rec_comm(p, h, AXIS(AX_TP), PLACE_R);
    line_of[0] = __LINE__ + 1;
    h = rec_linear(p, h, prog_use(p, "up", h), VAL_NONE);
    h = rec_linear(p, h, prog_use(p, "down", h), VAL_NONE);
    if (how != DROP_REDUCE) h = rec_comm(p, h, AXIS(AX_TP), pl.on[AX_TP]);
    if (how == DOUBLE_REDUCE) h = rec_comm(p, h, AXIS(AX_TP), PLACE_P);
    line_of[1] = __LINE__ + 1;
    x = rec_add(p, x, h);
    prog_residual_out(p, (residual_state){ x, VAL_NONE });
    err e = prog_finish(p);
    prog_free(p);
    return e;
}

static void expect_refused(sabotage how, bool sp, int which, const char *part) {
    int line[2];
    err e = record_mlp(how, sp, line);
    char where[64] = "";
    if (which >= 0) snprintf(where, sizeof where, "test_refused_layouts.c:%d", line[which]);
    assert_error(e, where, part);
}

static void a_dropped_collective_is_refused(void **state) {
    int line[2];
    assert_ok(record_mlp(KEEP, false, line));
    assert_ok(record_mlp(KEEP, true, line));
    expect_refused(DROP_GATHER, false, 0, "linear");
    expect_refused(DROP_GATHER, true, 0, "linear");
    expect_refused(DROP_REDUCE, false, 1, "add");
    expect_refused(DROP_REDUCE, true, 1, "add");
    expect_refused(DOUBLE_REDUCE, false, -1, "comm");
}

/* Attention to the keys of one rank alone, where the tokens of a sequence are shared. */
static void attention_without_an_exchange_is_refused(void **state) {
    mesh m = { .size = { [AX_CP] = 2 } };
    prog *p = prog_new("block", PROG_TRAIN, &m, &(param_set){ 0 }, &(prog_options){ 0 });
    placement pl = placement_on(AXIS(AX_CP), PLACE_S(0));
    int64_t n = 8, width = 3 * 8;
    residual_state s = prog_residual_in(p, n, width, DT_F32, DT_F32, pl);
    val start = prog_input(p, "start", DT_I32, 1, &n, pl);
    head_shape h = { .q = 1, .kv = 1, .dim = 8, .seq = 16, .scale = 1 };
    rec_attention(p, rec_sum(p, s), start, VAL_NONE, VAL_NONE, h);
    assert_error(prog_finish(p), "attention", "cp");
    prog_free(p);
}

/* ---- models ------------------------------------------------------------------------------------ */
static void expect_degree_refused(const model_config *c, int tp, const char *why,
                                  const char *remedy) {
    mesh m = { .size = { [AX_TP] = tp } };
    err e = model_split_tp(c, &m);
    assert_non_null(e);
    assert_string_equal(err_remedy(e), remedy);
    assert_error(e, why);
}

static void a_degree_that_cannot_shard_the_model_is_refused(void **state) {
    model_config c = small_llama();
    c.heads = 12;
    c.kv_heads = 6;
    expect_degree_refused(&c, 5, "12 query heads", "use tensor_parallel_degree 3 or 6");
    expect_degree_refused(&c, 4, "6 key/value heads", "use tensor_parallel_degree 3 or 6");
    expect_degree_refused(&c, 24, "12 query heads", "use tensor_parallel_degree 12");
    c.ffn = 50;
    expect_degree_refused(&c, 3, "50 columns", "use tensor_parallel_degree 2");
    c.ffn = 48;
    c.vocab = 5;
    expect_degree_refused(&c, 6, "5 tokens", "use tensor_parallel_degree 3");
    c = small_delta();
    c.delta_keys = 2;
    expect_degree_refused(&c, 4, "2 heads of keys", "use tensor_parallel_degree 2");
}

static void expert_layouts_that_cannot_work_are_refused(void **state) {
    model_config dense = small_llama(), odd = small_moe();
    odd.experts = 5;
    model_layout two = { .mesh.size[AX_EP] = 2 };
    model *m;
    assert_error(model_new(&dense, &two, &m), "no experts");
    assert_error(model_new(&odd, &two, &m), "5 experts");
}

static void expect_context_refused(model_config c, model_layout l, const char *what,
                                   const char *remedy) {
    model *m;
    chain ch;
    assert_ok(model_new(&c, &l, &m));
    err e = model_record(m, PROG_TRAIN, 2 * l.seq, l.seq, &ch);
    assert_non_null(strstr(err_remedy(e), remedy));
    assert_error(e, what);
    model_free(m);
}

static void a_context_that_does_not_divide_is_refused(void **state) {
    model_config c = small_llama();
    model_layout l = { .mesh.size = { [AX_CP] = 3 }, .seq = 16, .context = CONTEXT_RING };
    expect_context_refused(c, l, "do not divide into 6 runs", "context_parallel_degree=2");
    l.context = CONTEXT_ULYSSES;
    expect_context_refused(c, l, "do not divide into 3 runs", "context_parallel_degree=2");
    l.mesh.size[AX_CP] = 4; /* of two key/value heads */
    expect_context_refused(c, l, "do not divide over 4 context-parallel ranks",
                           "context_parallel_degree=2");
    l.mesh.size[AX_CP] = 2;
    expect_context_refused(small_delta(), l, "gated DeltaNet", "set it to 1");
}

/* ---- ranks ------------------------------------------------------------------------------------- */
/* Ranks that disagree about their next collective are refused before anything runs. */
static void ranks_that_disagree_are_refused(void **state) {
    model_config c = small_llama(), longer = c;
    longer.dim = 64;
    longer.head_dim = 16;
    mesh me = { .size = { [AX_DP_SHARD] = 1, [AX_TP] = 2 } };
    model *m[2];
    chain ch[2];
    for (int r = 0; r < 2; r++) {
        assert_ok(model_new(r ? &longer : &c, &(model_layout){ .mesh = me }, &m[r]));
        assert_ok(model_record(m[r], PROG_TRAIN, 32, 16, &ch[r]));
    }
    assert_error(plan_check_ranks(&me, ch, 2), "rank");
    ch[1] = ch[0];
    assert_ok(plan_check_ranks(&me, ch, 2));
    model_free(m[0]);
    model_free(m[1]);
}

/* Ranks are checked, too, if one gathers what an update left in slices and the other has updated all of it. */
static void gathers_of_updated_parameters_are_checked(void **state) {
    model_config c = small_llama();
    mesh me = { .size = { [AX_DP_SHARD] = 2 } };
    model *m[2];
    chain ch[2];
    for (int r = 0; r < 2; r++) {
        assert_ok(model_new(&c, &(model_layout){ .mesh = me, .zero = r }, &m[r]));
        assert_ok(model_record(m[r], PROG_EVAL, 32, 16, &ch[r]));
    }
    assert_error(plan_check_ranks(&me, ch, 2), "all-gather", "the end");
    ch[0] = ch[1];
    assert_ok(plan_check_ranks(&me, ch, 2));
    model_free(m[0]);
    model_free(m[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dropped_collective_is_refused),
        cmocka_unit_test(attention_without_an_exchange_is_refused),
        cmocka_unit_test(a_degree_that_cannot_shard_the_model_is_refused),
        cmocka_unit_test(expert_layouts_that_cannot_work_are_refused),
        cmocka_unit_test(a_context_that_does_not_divide_is_refused),
        cmocka_unit_test(ranks_that_disagree_are_refused),
        cmocka_unit_test(gathers_of_updated_parameters_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
