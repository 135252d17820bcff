/* Recording and planning refuse bad programs, and record collectives for several ranks. */
#include "support/test.h"

#include "prog/prog_internal.h"
#include "support/model.h"
#include "support/watch.h"

enum { N = 8, D = 16, F = 16 };

/* A program over tp=2 whose one parameter, gate|up or plain, is sharded by columns. */
static prog *mlp_on_two_ranks(int segments) {
    static prog_param param[1];
    static prog_bucket bucket[1];
    param[0] = (prog_param){
        .name = "up", .ndim = 2, .dim = { F, D }, .segments = segments, .pl.on[AX_TP] = PLACE_S(0)
    };
    bucket[0] = (prog_bucket){ .name = "block", .dt = DT_F32 };
    mesh m = { .size = { [AX_TP] = 2 } };
    bucket_layout(param, 1, bucket, 1, &m);
    param_set set = { param, 1, bucket, 1 };
    return prog_new("mlp", PROG_TRAIN, &m, &set, &(prog_options){ 0 });
}

static val record_up(prog *p) {
    int64_t dim[] = { N, D };
    val x = prog_input(p, "x", DT_F32, 2, dim, (placement){ .on[AX_TP] = PLACE_R });
    return rec_linear(p, x, prog_use(p, "up", x), VAL_NONE);
}

static void fused_segments_cannot_be_gathered(void **state) {
    prog *p = mlp_on_two_ranks(2);
    val whole = rec_comm(p, record_up(p), AXIS(AX_TP), PLACE_R);
    rec(p, OP_SWIGLU, { whole });
    assert_error(prog_finish(p), "2 segments", "all-gather", "interleave", "test_record.c");
    prog_free(p);
}

static void fused_segments_pass_where_each_is_sharded(void **state) {
    prog *p = mlp_on_two_ranks(2);
    val up = record_up(p), y = rec(p, OP_SWIGLU, { up });
    assert_int_equal(p->val[y].dim[1], F / 2);
    assert_int_equal(p->val[y].segments[1], 0);
    rec_comm(p, y, AXIS(AX_TP), PLACE_R); /* what swiglu yields is one segment again */
    assert_null(p->error);
    prog_free(p);
}

static void swiglu_needs_its_halves_as_segments(void **state) {
    prog *p = mlp_on_two_ranks(1);
    val up = record_up(p);
    rec(p, OP_SWIGLU, { up });
    assert_error(prog_finish(p), "swiglu", "gu", "1 segment(s), expected 2");
    prog_free(p);
}

static void dropout_refuses_sharded_columns(void **state) {
    prog *p = mlp_on_two_ranks(1);
    int64_t n = N;
    val id = prog_input(p, "ids", DT_I64, 1, &n, (placement){ 0 });
    rec_dropout(p, record_up(p), id, 0.5f, 0);
    assert_error(prog_finish(p), "dropout", "placements do not fit on axis tp");
    prog_free(p);
}

/* ---- a sharded vocabulary ---------------------------------------------------------------------- */
/* A program over tp=2 with half of a token table, as one of both ranks has it. */
static prog *table_on_two_ranks(void) {
    static prog_param param[1];
    static prog_bucket bucket[1];
    param[0] = (prog_param){ .name = "table",
                             .ndim = 2,
                             .dim = { F, D },
                             .first = F,
                             .whole = 2 * F - 1,
                             .pl.on[AX_TP] = PLACE_S(0) };
    bucket[0] = (prog_bucket){ .name = "first", .dt = DT_F32 };
    mesh m = { .size = { [AX_TP] = 2 }, .rank = 1 };
    bucket_layout(param, 1, bucket, 1, &m);
    param_set set = { param, 1, bucket, 1 };
    return prog_new("table", PROG_TRAIN, &m, &set, &(prog_options){ 0 });
}

static val whole_tokens(prog *p, const char *name) {
    int64_t n = N;
    return prog_input(p, name, DT_I32, 1, &n, (placement){ 0 });
}

static void an_embedding_that_is_not_summed_is_refused(void **state) {
    for (int sums = 0; sums < 2; sums++) {
        prog *p = table_on_two_ranks();
        val tok = whole_tokens(p, "tokens"), x = rec_embed(p, tok, prog_use(p, "table", tok));
        assert_int_equal(p->fwd.op[0].attr.vocab.first, F);
        assert_int_equal(p->fwd.op[0].attr.vocab.size, 2 * F - 1);
        if (sums) x = rec_comm(p, x, AXIS(AX_TP), PLACE_S(0));
        prog_residual_out(p, (residual_state){ x, VAL_NONE });
        if (sums)
            assert_ok(prog_finish(p));
        else
            assert_error(prog_finish(p), "the residual leaves as tp:P", "test_record.c");
        prog_free(p);
    }
}

/* h must be whole and each rank's use of it its own; targets must be whole. */
static void a_sharded_loss_refuses_what_is_not_gathered(void **state) {
    static const place of_h[] = { { PL_R, 0 }, { PL_I, 0 }, { PL_S, 0 }, { PL_P, 0 } };
    for (size_t i = 0; i < COUNT_OF(of_h); i++) {
        prog *p = table_on_two_ranks();
        residual_state s =
            prog_residual_in(p, N, D, DT_F32, DT_F32, (placement){ .on[AX_TP] = of_h[i] });
        val h = rec_sum(p, s), w = prog_use(p, "table", h);
        rec_linear_ce(p, (loss_spec){ h, w, whole_tokens(p, "targets"), 1 });
        if (i == 0)
            assert_ok(prog_finish(p));
        else
            assert_error(prog_finish(p), "linear: placements do not fit on axis tp");
        prog_free(p);
    }
}

static void a_collective_over_axes_of_different_placements_is_refused(void **state) {
    prog_bucket bucket[] = { { .name = "none", .dt = DT_F32 } };
    param_set set = { NULL, 0, bucket, 1 };
    mesh m = { .size = { [AX_DP_SHARD] = 2, [AX_TP] = 2 } };
    prog *p = prog_new("mixed", PROG_TRAIN, &m, &set, &(prog_options){ 0 });
    int64_t dim[] = { N, D };
    val x = prog_input(p, "x", DT_F32, 2, dim,
                       (placement){ .on = { [AX_DP_SHARD] = PLACE_S(0), [AX_TP] = PLACE_P } });
    emit_comm(p, x, AXIS(AX_DP_SHARD) | AXIS(AX_TP), PLACE_I, WHEN_ALWAYS);
    assert_error(prog_finish(p), "different placements", "dp_shard:S0 tp:P");
    prog_free(p);
}

static void wrong_shapes_are_refused_by_name(void **state) {
    prog *p = mlp_on_two_ranks(1);
    int64_t dim[] = { N, D + 1 };
    val x = prog_input(p, "x", DT_F32, 2, dim, (placement){ .on[AX_TP] = PLACE_R });
    rec_linear(p, x, prog_use(p, "up", x), VAL_NONE);
    assert_error(prog_finish(p), "linear: w is [16, 16], expected [16, 17]");
    prog_free(p);
}

/* ---- blocks on several ranks ------------------------------------------------------------------ */
typedef struct recorded {
    model *m;
    chain c;
} recorded;

static recorded record_layout(const model_layout *l) {
    recorded r;
    model_config c = small_llama();
    assert_ok(model_new(&c, l, &r.m));
    assert_ok(model_record(r.m, PROG_TRAIN, RUN_ROWS * RUN_SEQ, RUN_SEQ, &r.c));
    return r;
}

static recorded record_model(mesh m, dtype dt, bool sp, int zero) {
    return record_layout(
        &(model_layout){ .mesh = m, .dt = dt, .sequence_parallel = sp, .zero = zero });
}

/* Activations cross tp in the type their module computes in, the first norm's too. */
static void activations_cross_tp_in_bf16(void **state) {
    recorded r =
        record_model((mesh){ .size = { [AX_DP_SHARD] = 1, [AX_TP] = 2 } }, DT_BF16, true, 0);
    const prog *p = r.c.block[0];
    const op_list *lists[] = { &p->fwd, &p->bwd };
    int moves = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            const prog_op *o = &lists[k]->op[i];
            if (o->op != OP_COMM || o->phase == COMM_WAIT) continue;
            if (move_of(o->attr.comm.from, o->attr.comm.to) == MOVE_NONE) continue;
            if (p->val[o->in[0]].bucket >= 0 || p->val[val_root(p, o->in[0])].cls == VC_GRAD)
                continue;
            assert_int_equal(p->val[o->in[0]].dt, DT_BF16);
            moves++;
        }
    /* two gathers and two reduce-scatters, their duals, and the gathers again for the weights' gradients */
    assert_int_equal(moves, 10);
    model_free(r.m);
}

/* Compares with tests/fixtures/programs/NAME.txt; UPDATE_PROGRAMS=1 rewrites it. */
static void compare_dump(const char *name, const prog *p) {
    str text = { 0 };
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/programs/%s.txt", name);
    prog_dump(p, &text);
    if (getenv("UPDATE_PROGRAMS")) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(text.text, 1, text.len, f);
        fclose(f);
    }
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is missing; UPDATE_PROGRAMS=1 writes it", path);
    char *want = calloc(1, text.len + 2);
    size_t n = fread(want, 1, text.len + 1, f);
    fclose(f);
    if (n != text.len || memcmp(want, text.text, n))
        fail_msg("%s differs; UPDATE_PROGRAMS=1 rewrites it, then read the diff:\n%s", path,
                 text.text);
    free(want);
    str_free(&text);
}

static void the_programs_under_tp_and_sp_are_as_written(void **state) {
    recorded r =
        record_model((mesh){ .size = { [AX_DP_SHARD] = 1, [AX_TP] = 2 } }, DT_BF16, true, 0);
    compare_dump("block_tp2_sp", r.c.block[0]);
    compare_dump("first_tp2_sp", r.c.first);
    compare_dump("last_tp2_sp", r.c.last);
    model_free(r.m);
}

/* Whether a GEMM or attention runs between a communication's start and its wait. */
static bool is_overlapped(const op_list *l, int wait) {
    for (int i = l->op[wait].pair + 1; i < wait; i++)
        if (op_row_of(l->op[i].op)->cost != COST_BYTES) return true;
    return false;
}

/* In chunks, all communication but the first gather and the last sum of a branch overlaps something; backward
 * only the first of the gradient that comes in does not. */
static void chunks_overlap_what_crosses_tp(void **state) {
    for (int chunks = 1; chunks <= 4; chunks *= 2) {
        model_layout l = {
            .mesh.size[AX_TP] = 2, .dt = DT_BF16, .sequence_parallel = true, .tp_chunks = chunks
        };
        recorded r = record_layout(&l);
        const prog *p = r.c.block[0];
        const op_list *lists[] = { &p->fwd, &p->bwd };
        int hidden[2] = { 0 }, all[2] = { 0 };
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < lists[k]->n; i++) {
                if (lists[k]->op[i].phase != COMM_WAIT) continue;
                hidden[k] += is_overlapped(lists[k], i);
                all[k]++;
            }
        assert_int_equal(all[0], 4 * chunks);
        int again = 2; /* gathers of inputs that were saved as shards */
        assert_int_equal(all[1], 4 * chunks + again);
        assert_int_equal(hidden[0], 4 * chunks - 4);
        assert_int_equal(hidden[1], 4 * chunks - 1 + again);
        if (chunks == 2) compare_dump("block_tp2_sp_chunks", p);
        model_free(r.m);
    }
}

static void the_block_under_zero3_is_as_written(void **state) {
    recorded r =
        record_model((mesh){ .size = { [AX_DP_SHARD] = 2, [AX_TP] = 1 } }, DT_BF16, false, 3);
    compare_dump("block_dp2_zero3", r.c.block[0]);
    model_free(r.m);
}

/* Lets each op of a list in turn read a temporary that nothing makes. @return how many read one */
static int plant_unmade(prog *p, op_list *l, const char *list) {
    int planted = 0;
    char reader[64], value[32];
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val was = l->op[i].in[k];
            if (was == VAL_NONE) continue;
            prog_val x = p->val[was];
            val unmade = val_new(p, VC_TEMP, x.dt, x.ndim, x.dim, x.pl);
            p->val[unmade].name = "planted";
            l->op[i].in[k] = unmade;
            snprintf(reader, sizeof reader, "op %d of list %s, %s, reads", i, list,
                     op_name(l->op[i].op));
            snprintf(value, sizeof value, "value %%%d planted", unmade);
            pass_memory(p);
            assert_error(p->error, p->name, reader, value);
            p->error = OK;
            l->op[i].in[k] = was;
            planted++;
        }
    pass_memory(p);
    assert_null(p->error);
    return planted;
}

static void a_list_that_reads_what_no_op_makes_is_refused(void **state) {
    const model_layout layouts[] = {
        { .mesh.size = { [AX_DP_SHARD] = 2 }, .dt = DT_BF16, .zero = 3 },
        { .mesh.size = { [AX_PP] = 2 },
          .pipe = { .ranks = 2, .chunks = 1, .kind = PIPE_ZERO_BUBBLE } },
    };
    int planted[5] = { 0 };
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        recorded r = record_layout(&layouts[i]);
        prog *p = r.c.block[0];
        planted[0] += plant_unmade(p, &p->gather, "gather");
        planted[1] += plant_unmade(p, &p->fwd, "forward");
        planted[2] += plant_unmade(p, &p->bwd, "backward");
        planted[3] += plant_unmade(p, &p->weights, "weights");
        planted[4] += plant_unmade(p, &p->reduce, "reduce");
        model_free(r.m);
    }
    for (size_t i = 0; i < COUNT_OF(planted); i++) assert_true(planted[i] > 0);
}

/* A sum has to begin with something. */
static void an_update_that_adds_to_what_no_op_makes_is_refused(void **state) {
    for (int zeroed = 0; zeroed < 2; zeroed++) {
        int64_t n = N;
        mesh m = { 0 };
        prog *p = prog_new("sum", PROG_UPDATE, &m, &(param_set){ 0 }, &(prog_options){ 0 });
        change_request zero = change_of(OP_ZERO), add = change_of(OP_ACCUMULATE);
        zero.out[0] = add.out[0] = prog_scratch(p, 1, &n, (placement){ 0 });
        add.in[0] = prog_region(p, "more", 0, 0, DT_F32, n, (placement){ 0 });
        add.add = true;
        if (zeroed) rec_change(p, zero);
        rec_change(p, add);
        if (zeroed)
            assert_ok(prog_finish(p));
        else
            assert_error(prog_finish(p), "program sum",
                         "op 0 of list forward, accumulate, reads sum");
        prog_free(p);
    }
}

/* ---- what a backend lacks ---------------------------------------------------------------------- */
static bucket_regions no_regions(void *ctx, int bucket, int layer) {
    return (bucket_regions){ 0, 0 };
}

static err plan_without(op_code op, attr_set attrs) {
    static watched_kernels kernels;
    op_backend b = backend_watched(&kernels, call_on_cpu);
    kernels.own[op].attrs &= ~attrs;
    recorded r = record_model((mesh){ 0 }, DT_F32, false, 0);
    plan *p = plan_new(&(mesh){ 0 }, &b, 1);
    int which;
    err e = plan_chain(p, &r.c, no_regions, NULL, &which);
    plan_free(p);
    model_free(r.m);
    return e;
}

static void an_attribute_the_kernel_ignores_is_refused_when_planned(void **state) {
    assert_error(plan_without(OP_RMSNORM, ATTR(EPS)), "CPU kernel of rmsnorm does not support eps");
}

static void every_row_parses(void **state) {
    for (int op = 1; op < OP_COUNT; op++) {
        op_signature sig = op_signature_of(op);
        assert_true(sig.outs > 0);
        for (int i = 0; i < sig.outs; i++) assert_true(sig.out[i].name[0]);
    }
}

/* Each message of an exchange is awaited by the wait that names its start. */
static void an_exchange_awaits_what_it_started(void **state) {
    mesh m = { .size = { [AX_PP] = 2 } };
    int64_t n = 8;
    prog *p = prog_new("exchange", PROG_UPDATE, &m, &(param_set){ 0 }, &(prog_options){ 0 });
    val mine = prog_region(p, "mine", 0, 0, DT_F32, n, (placement){ 0 });
    val theirs = prog_scratch(p, 1, &n, (placement){ 0 });
    rec_exchange(p, mine, theirs, (exchange_spec){ AXIS(AX_PP), 1, 2, true });
    int waits = 0;
    for (int i = 0; i < p->fwd.n; i++) {
        const prog_op *o = &p->fwd.op[i];
        if (o->phase != COMM_WAIT) continue;
        assert_in_range(o->pair, 0, i - 1);
        const prog_op *start = &p->fwd.op[o->pair];
        assert_true(start->phase == COMM_START && start->in[0] == o->in[0]);
        assert_int_equal(start->attr.comm.kind, o->attr.comm.kind);
        waits++;
    }
    assert_int_equal(waits, 2);
    prog_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_parses),
        cmocka_unit_test(an_exchange_awaits_what_it_started),
        cmocka_unit_test(fused_segments_cannot_be_gathered),
        cmocka_unit_test(fused_segments_pass_where_each_is_sharded),
        cmocka_unit_test(swiglu_needs_its_halves_as_segments),
        cmocka_unit_test(dropout_refuses_sharded_columns),
        cmocka_unit_test(an_embedding_that_is_not_summed_is_refused),
        cmocka_unit_test(a_sharded_loss_refuses_what_is_not_gathered),
        cmocka_unit_test(a_collective_over_axes_of_different_placements_is_refused),
        cmocka_unit_test(wrong_shapes_are_refused_by_name),
        cmocka_unit_test(activations_cross_tp_in_bf16),
        cmocka_unit_test(the_programs_under_tp_and_sp_are_as_written),
        cmocka_unit_test(chunks_overlap_what_crosses_tp),
        cmocka_unit_test(the_block_under_zero3_is_as_written),
        cmocka_unit_test(a_list_that_reads_what_no_op_makes_is_refused),
        cmocka_unit_test(an_update_that_adds_to_what_no_op_makes_is_refused),
        cmocka_unit_test(an_attribute_the_kernel_ignores_is_refused_when_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
