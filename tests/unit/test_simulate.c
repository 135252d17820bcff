/* The simulator plays the lists that the executor runs: what it reports about idle time, overlap and order follows
 * from them alone once costs are known. */
#include "support/model.h"

#include "support/watch.h"
#include "prog/simulate.h"

/* ---- costs in units of time ---------------------------------------------------------------------- */
/* A block forward takes 1, its backward 2, half of that the gradients of its four matrices. */
static double unit_call(void *ctx, const char *program, const op_call *c) {
    if (strcmp(program, "block")) return 0;
    if (c->op == OP_ATTENTION || c->op == OP_ATTENTION_BWD) return 1;
    return c->op == OP_LINEAR_BWD_W ? 0.25 : 0;
}

typedef struct move_cost {
    axis_set axes; /* communications over these */
    double seconds;
    double messages;
    double fetch; /* of a bucket in host memory */
} move_cost;

static double unit_move(void *ctx, const mesh *m, const comm_move *move, double bytes) {
    const move_cost *k = ctx;
    assert_true(bytes > 0);
    if (move->kind == MOVE_SEND) return k->messages;
    return mesh_span(m, move->axes) > 1 && (move->axes & k->axes) ? k->seconds : 0;
}

static double unit_fetch(void *ctx, double bytes) {
    assert_true(bytes > 0);
    return ((const move_cost *)ctx)->fetch;
}

static sim_costs units(move_cost *k) {
    return (sim_costs){ .call = unit_call, .move = unit_move, .fetch = unit_fetch, .ctx = k };
}

/* ---- a small model on a layout ---------------------------------------------------------------------- */
typedef struct laid_out {
    model *m;
    mesh me;
    chain train;
} laid_out;

static laid_out lay_out(const layout *l, int layers, int micros) {
    laid_out o = { .me = { .size = { [AX_PP] = l->pp, [AX_DP_SHARD] = l->dp, [AX_TP] = l->tp } } };
    model_config c = small_llama();
    c.layers = layers;
    model_layout k = { .mesh = o.me,
                       .zero = l->zero,
                       .prefetch = 1,
                       .keep_gathered = l->keep_gathered,
                       .offload_params = l->offload_params,
                       .sequence_parallel = l->tp > 1,
                       .pipe = { .kind = l->schedule, .chunks = MAX(1, l->chunks) } };
    assert_ok(model_new(&c, &k, &o.m));
    assert_ok(model_record(o.m, PROG_TRAIN, 32, 16, &o.train));
    o.train.keep_every = l->keep_every;
    o.train.micros = micros;
    return o;
}

static sim_result simulate(const layout *l, int layers, int micros, move_cost *k) {
    laid_out o = lay_out(l, layers, micros);
    sim_costs costs = units(k);
    sim_result r;
    assert_ok(sim_chain(&o.train, &o.me, &costs, NULL, &r));
    model_free(o.m);
    return r;
}

static void assert_near(double got, double want) {
    if (fabs(got - want) > 1e-9 * fmax(1, fabs(want))) fail_msg("%.12g, expected %.12g", got, want);
}

/* ---- pipelines -------------------------------------------------------------------------------------- */
static void the_bubble_is_the_closed_form(void **state) {
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int k = PIPE_1F1B; k <= PIPE_ZERO_BUBBLE; k++) {
            int chunks = k == PIPE_INTERLEAVED ? 3 : 1, micros = 4 * ranks, layers = 6 * ranks;
            layout l = { .pp = ranks, .schedule = k, .chunks = chunks };
            sim_result r = simulate(&l, layers, micros, &(move_cost){ 0 });
            /* ZeroBubble's tasks are a third each of what a stage has to do */
            double units = k == PIPE_ZERO_BUBBLE ? 3 : chunks, idle = ranks - 1;
            if (ranks == 1) idle = 0;
            double work = 3.0 * 6 * micros;
            assert_near(r.bubble, idle / (units * micros + idle));
            assert_near(r.compute, work);
            assert_near(r.seconds, work / (1 - r.bubble));
        }
}

static void more_microbatches_never_raise_the_bubble(void **state) {
    for (int k = PIPE_1F1B; k <= PIPE_ZERO_BUBBLE; k++) {
        double last = 1;
        for (int micros = 4; micros <= 40; micros += 4) {
            layout l = { .pp = 4, .schedule = k, .chunks = k == PIPE_INTERLEAVED ? 2 : 1 };
            move_cost cost = { .messages = 0.3 };
            double bubble = simulate(&l, 8, micros, &cost).bubble;
            assert_true(bubble <= last + 1e-12 && bubble > 0);
            last = bubble;
        }
    }
}

/* Recompute adds a forward pass of every block but the last segment's. */
static void recompute_costs_a_forward_pass(void **state) {
    layout l = { .keep_every = 1 };
    assert_near(simulate(&l, 8, 1, &(move_cost){ 0 }).seconds, 8 * 3 + 7);
}

/* ---- communication ---------------------------------------------------------------------------------- */
static const layout sharded[] = {
    { .name = "dp2", .dp = 2 },
    { .name = "zero1", .dp = 2, .zero = 1 },
    { .name = "zero2", .dp = 2, .zero = 2 },
    { .name = "zero3", .dp = 2, .zero = 3 },
    { .name = "zero3, kept", .dp = 2, .zero = 3, .keep_gathered = true },
    { .name = "zero1 in host memory", .dp = 2, .zero = 1, .offload_params = true },
    { .name = "tp2", .tp = 2 },
    { .name = "dp2 x tp2 x pp2", .dp = 2, .tp = 2, .pp = 2 },
};

static void free_communication_is_ideal(void **state) {
    for (size_t i = 0; i < COUNT_OF(sharded); i++) {
        int pp = MAX(1, sharded[i].pp), micros = 4;
        sim_result r = simulate(&sharded[i], 8, micros, &(move_cost){ 0 });
        assert_near(r.exposed, 0);
        assert_near(r.compute, 3.0 * 8 / pp * micros);
        assert_near(r.seconds, 3.0 * 8 / pp * (micros + pp - 1));
    }
}

/* Two slots: what hides behind a block hides but for the first; else the bus sets the pace. Of 8 blocks each
 * microbatch fetches 16, less the two that forward and the two that backward find in the slots. A gather comes
 * after its fetch. */
static void fetches_from_host_memory_take_the_bus(void **state) {
    layout alone = { .offload_params = true }, two = { .dp = 2, .zero = 1, .offload_params = true };
    double compute = 3.0 * 8 * 4, blocks = 4 * 12;
    sim_result small = simulate(&alone, 8, 4, &(move_cost){ .fetch = 0.01 });
    sim_result large = simulate(&alone, 8, 4, &(move_cost){ .fetch = 10 });
    assert_near(small.compute, compute);
    assert_true(small.exposed > 0 && small.exposed < 0.2 && small.hidden > 0.01 * blocks);
    assert_true(large.seconds > 10 * blocks && large.seconds < 10 * blocks * 1.4 + compute);
    move_cost gather = { .axes = AXES_ALL, .seconds = 1 }, both = gather;
    both.fetch = 1;
    double without = simulate(&two, 8, 4, &gather).seconds,
           with = simulate(&two, 8, 4, &both).seconds;
    assert_true(with > without + 1 - 1e-9);
}

/* Communication of any cost makes nothing faster, and shows where compute cannot hide it. */
static void communication_is_hidden_or_waited_for(void **state) {
    for (size_t i = 0; i < COUNT_OF(sharded); i++) {
        double last = 0;
        for (double cost = 0; cost < 20; cost = 2 * cost + 0.1) {
            move_cost k = { .axes = AXES_ALL, .seconds = cost };
            sim_result r = simulate(&sharded[i], 8, 4, &k);
            assert_true(r.seconds >= last - 1e-9 && r.seconds >= r.compute + r.exposed - 1e-9);
            last = r.seconds;
        }
        assert_true(last > 8 * 3 * 4);
    }
    /* two slots: a gather of 0.9 hides behind the block before it, but for the first of each direction */
    move_cost k = { .axes = AXIS(AX_DP_SHARD), .seconds = 0.01 };
    layout zero3 = { .dp = 2, .zero = 3 };
    assert_true(simulate(&zero3, 8, 1, &k).exposed < 0.1);
    k.seconds = 50;
    assert_true(simulate(&zero3, 8, 1, &k).exposed > 8 * 50);
}

/* A step without a pipeline is played in part, and the rest is the same again. */
static void later_microbatches_take_the_same_time(void **state) {
    for (size_t i = 0; i < COUNT_OF(sharded); i++) {
        move_cost k = { .axes = AXES_ALL, .seconds = 0.2 };
        if (sharded[i].pp > 1) continue;
        double s[4];
        for (int m = 0; m < 4; m++) s[m] = simulate(&sharded[i], 4, 4 + m, &k).seconds;
        for (int m = 1; m < 3; m++) assert_near(s[m + 1] - s[m], s[1] - s[0]);
        double many = simulate(&sharded[i], 4, 104, &k).seconds;
        assert_near(many, s[0] + 100 * (s[1] - s[0]));
    }
}

static void interference_delays_compute(void **state) {
    layout zero3 = { .dp = 2, .zero = 3 };
    laid_out o = lay_out(&zero3, 8, 4);
    move_cost k = { .axes = AXIS(AX_DP_SHARD), .seconds = 0.5 };
    sim_costs costs = units(&k);
    sim_result plain, slowed;
    assert_ok(sim_chain(&o.train, &o.me, &costs, NULL, &plain));
    costs.interference = 0.1;
    assert_ok(sim_chain(&o.train, &o.me, &costs, NULL, &slowed));
    assert_true(plain.hidden > 0);
    assert_true(slowed.seconds > plain.seconds &&
                slowed.seconds < plain.seconds + 0.2 * plain.hidden);
    model_free(o.m);
}

/* ---- the bytes ------------------------------------------------------------------------------------------- */
static double scattered_bytes(void *ctx, const mesh *m, const comm_move *move, double bytes) {
    bool scatters = move->from.kind == PL_P && move->to.kind == PL_S;
    *(double *)ctx += scatters && move->axes & AXIS(AX_DP_SHARD) ? bytes : 0;
    return 0;
}

/* A gradient that is reduced in bf16 is half as many bytes as its fp32 values. */
static void a_narrow_wire_moves_fewer_bytes(void **state) {
    double bytes[2] = { 0 };
    for (int narrow = 0; narrow < 2; narrow++) {
        model *m;
        chain c;
        model_config mc = small_llama();
        mesh me = { .size = { [AX_DP_SHARD] = 2 } };
        assert_ok(model_new(
            &mc,
            &(model_layout){ .mesh = me, .zero = 2, .reduce_wire = narrow ? DT_BF16 : DT_NONE },
            &m));
        assert_ok(model_record(m, PROG_TRAIN, 32, 16, &c));
        c.micros = 2;
        sim_costs costs = {
            .call = unit_call, .move = scattered_bytes, .fetch = unit_fetch, .ctx = &bytes[narrow]
        };
        sim_result r;
        assert_ok(sim_chain(&c, &me, &costs, NULL, &r));
        model_free(m);
    }
    assert_true(bytes[0] > 0);
    assert_near(bytes[1], bytes[0] / 2);
}

/* ---- the order ---------------------------------------------------------------------------------------- */
/* Writes what a rank did as a line of text: f3 is block 3 forward, b3 backward, [2 a microbatch's inputs, 2] its
 * losses. */
typedef struct rank_trace {
    str text;
    model_config c;
    model_layout l;
    comm *end;
    int micros;
    err error;
} rank_trace;

static void trace_call(const op_call *c) {
    rank_trace *t = c->run->context;
    str_add(&t->text, "%c%u ", c->op == OP_ATTENTION ? 'f' : 'b', c->run->layer - 1);
}
static err trace_feed(void *ctx, int micro, int slot) {
    str_add(&((rank_trace *)ctx)->text, "[%d ", micro);
    return OK;
}
static err trace_loss(void *ctx, int micro) {
    str_add(&((rank_trace *)ctx)->text, "%d] ", micro);
    return OK;
}

static err run_traced(rank_trace *t) {
    watched_kernels *kernels = mem_alloc(sizeof *kernels);
    op_backend traced = backend_copied(kernels);
    kernels->own[OP_ATTENTION].run = kernels->own[OP_ATTENTION_BWD].run = trace_call;
    traced.context = t;
    model *m;
    chain train;
    int id;
    TRY(model_new(&t->c, &t->l, &m));
    plan *p = plan_new(&t->l.mesh, &traced, 1);
    model_reserve(m, p, true);
    TRY(model_record(m, PROG_TRAIN, 32, 16, &train));
    train.micros = t->micros;
    TRY(plan_chain(p, &train, model_bucket_regions, m, &id));
    TRY(plan_commit(p));
    exec x = { .plan = p, .comm = t->end };
    TRY(exec_microbatches(&x, id, t->micros, &(exec_hooks){ trace_feed, trace_loss, .ctx = t }));
    plan_free(p);
    model_free(m);
    free(kernels);
    return OK;
}

static void *traced_main(void *arg) {
    rank_trace *t = arg;
    t->error = run_traced(t);
    return NULL;
}

/* Communications of two axes on one link take longer than on a link each; where they never meet, as long. */
static unsigned one_link(void *ctx, const mesh *m, const comm_move *move) {
    return SIM_LINK_NETWORK;
}
static unsigned link_of_axes(void *ctx, const mesh *m, const comm_move *move) {
    return move->axes & AXIS(AX_TP) ? SIM_LINK_HOST : SIM_LINK_NETWORK;
}
static double seconds_with(const layout *l, sim_costs costs) {
    laid_out o = lay_out(l, 6, 2);
    sim_result r;
    assert_ok(sim_chain(&o.train, &o.me, &costs, NULL, &r));
    model_free(o.m);
    return r.seconds;
}

static void axes_share_a_link(void **state) {
    move_cost both = { .axes = ~0u, .seconds = 0.4 };
    layout crossed = { .dp = 2, .tp = 2, .zero = 3 }, alone = { .dp = 2, .zero = 3 };
    sim_costs apart = units(&both), shared = units(&both);
    apart.links = link_of_axes;
    shared.links = one_link;
    double free_of_each_other = seconds_with(&crossed, units(&both));
    assert_near(seconds_with(&crossed, apart), free_of_each_other);
    assert_true(seconds_with(&crossed, shared) > free_of_each_other + 0.4);
    assert_near(seconds_with(&alone, shared), seconds_with(&alone, units(&both)));
}

/* Reductions that follow the last task are all exposed: six blocks and what is around them. */
static void late_reductions_are_exposed(void **state) {
    move_cost cost = { .axes = AXIS(AX_DP_SHARD), .seconds = 0.01 };
    layout l = { .dp = 2, .zero = 0 };
    sim_costs late = units(&cost);
    late.late = AXES_DATA;
    double beside = seconds_with(&l, units(&cost)), after = seconds_with(&l, late);
    assert_true(after > 2 * 6 * 3 + 6 * 0.01 - 1e-9);
    assert_true(after > beside);
}

/* A host that starts calls more slowly than they run determines the time; one that is faster is not noticed. */
static void calls_wait_for_the_host(void **state) {
    layout l = { .dp = 1 };
    move_cost none = { 0 };
    sim_costs slow = units(&none), fast = units(&none);
    fast.launch = 1e-6;
    slow.launch = 1;
    double ideal = seconds_with(&l, units(&none));
    assert_true(seconds_with(&l, fast) < ideal + 1e-3);
    assert_true(seconds_with(&l, slow) > 2 * ideal);
}

static void trace_event(void *ctx, const sim_event *e) {
    str *of = &((str *)ctx)[e->rank];
    assert_true(e->end >= e->begin);
    if (e->task == SIM_FEED) str_add(of, "[%d ", e->micro);
    if (e->task == SIM_LOSS) str_add(of, "%d] ", e->micro);
    if (e->layer < 0 || e->task == SIM_FEED || e->task == SIM_LOSS) return;
    str_add(of, "%c%d ", e->task == SIM_FORWARD ? 'f' : 'b', e->layer);
}

static void the_order_is_the_executed_one(void **state) {
    for (int k = PIPE_1F1B; k <= PIPE_INTERLEAVED; k++) {
        enum { RANKS = 3, MICROS = 6 };
        layout l = { .pp = RANKS, .schedule = k, .chunks = k == PIPE_INTERLEAVED ? 2 : 1 };
        laid_out o = lay_out(&l, 7, MICROS);
        rank_trace t[RANKS];
        comm *ends[RANKS];
        pthread_t thread[RANKS];
        str simulated[RANKS] = { 0 };
        assert_ok(comm_threads(o.me, 20, ends));
        for (int r = 0; r < RANKS; r++) {
            t[r] = (rank_trace){ .c = *model_conf(o.m), .end = ends[r], .micros = MICROS };
            t[r].l = *model_lay(o.m);
            t[r].l.mesh.rank = r;
            assert_int_equal(pthread_create(&thread[r], NULL, traced_main, &t[r]), 0);
        }
        move_cost cost = { .messages = 0.1 };
        sim_costs costs = units(&cost);
        sim_watch watch = { trace_event, simulated };
        sim_result result;
        assert_ok(sim_chain(&o.train, &o.me, &costs, &watch, &result));
        for (int r = 0; r < RANKS; r++) {
            pthread_join(thread[r], NULL);
            assert_ok(t[r].error);
            assert_string_equal(t[r].text.text, simulated[r].text);
            str_free(&t[r].text);
            str_free(&simulated[r]);
        }
        for (int r = 0; r < RANKS; r++) comm_free(ends[r]);
        model_free(o.m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bubble_is_the_closed_form),
        cmocka_unit_test(more_microbatches_never_raise_the_bubble),
        cmocka_unit_test(recompute_costs_a_forward_pass),
        cmocka_unit_test(free_communication_is_ideal),
        cmocka_unit_test(fetches_from_host_memory_take_the_bus),
        cmocka_unit_test(communication_is_hidden_or_waited_for),
        cmocka_unit_test(later_microbatches_take_the_same_time),
        cmocka_unit_test(interference_delays_compute),
        cmocka_unit_test(axes_share_a_link),
        cmocka_unit_test(late_reductions_are_exposed),
        cmocka_unit_test(calls_wait_for_the_host),
        cmocka_unit_test(a_narrow_wire_moves_fewer_bytes),
        cmocka_unit_test(the_order_is_the_executed_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
