/* A model divided over pipeline stages gives the loss and gradients of one rank, whatever the schedule. */
#include "support/model.h"

#include "prog/step_list_internal.h"

static const layout layouts[] = {
    { .name = "pp2, 1F1B", .pp = 2 },
    { .name = "pp2, GPipe", .pp = 2, .schedule = PIPE_GPIPE },
    { .name = "pp2 x 2 chunks", .pp = 2, .schedule = PIPE_INTERLEAVED, .chunks = 2 },
    { .name = "pp2, ZeroBubble", .pp = 2, .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp4, 1F1B", .pp = 4 },
    { .name = "pp4, ZeroBubble", .pp = 4, .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp3, uneven stages", .pp = 3 },
    { .name = "pp2 x dp2", .pp = 2, .dp = 2 },
    { .name = "pp2 x zero1 over 2, ZeroBubble",
      .pp = 2,
      .dp = 2,
      .zero = 1,
      .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2 x zero2 over 2", .pp = 2, .dp = 2, .zero = 2 },
    { .name = "pp2 x zero3 over 2, GPipe", .pp = 2, .dp = 2, .zero = 3, .schedule = PIPE_GPIPE },
    { .name = "pp2 x tp2", .pp = 2, .tp = 2 },
    { .name = "pp2 x tp2+sp, ZeroBubble",
      .pp = 2,
      .tp = 2,
      .sp = true,
      .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2 x dp2 x tp2+sp", .pp = 2, .dp = 2, .tp = 2, .sp = true },
    { .name = "pp2 x 2 replicas x zero1 over 2, 2 chunks",
      .pp = 2,
      .replicas = 2,
      .dp = 2,
      .zero = 1,
      .schedule = PIPE_INTERLEAVED,
      .chunks = 2 },
    { .name = "pp2, full recompute", .pp = 2, .keep_every = 1 },
    { .name = "pp2, recompute but for the last 2", .pp = 2, .keep_every = 2, .keep_last = 2 },
    { .name = "pp2, selective", .pp = 2, .selective = true, .schedule = PIPE_ZERO_BUBBLE },
};

/* Stages of the embedding alone and of the head alone among them: 5 layers are too few for 6 stages without. */
static const layout uneven[] = {
    { .name = "pp2, the embedding counts", .pp = 2, .first_less = 2 },
    { .name = "pp2, the head counts", .pp = 2, .last_less = 3 },
    { .name = "pp3, embedding and head counted", .pp = 3, .first_less = 1, .last_less = 1 },
    { .name = "pp2, the embedding alone", .pp = 2, .split = { 0, 5 } },
    { .name = "pp2, the head alone", .pp = 2, .split = { 5, 0 } },
    { .name = "pp3, both alone", .pp = 3, .split = { 0, 5, 0 } },
    { .name = "pp3, both alone, GPipe", .pp = 3, .split = { 0, 5, 0 }, .schedule = PIPE_GPIPE },
    { .name = "pp3, both alone, ZeroBubble",
      .pp = 3,
      .split = { 0, 5, 0 },
      .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp4, ZeroBubble, 0 2 3 0",
      .pp = 4,
      .split = { 0, 2, 3, 0 },
      .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2 x 3 chunks, the embedding alone", /* 5 + 1 layers are 6 stages of one */
      .pp = 2,
      .chunks = 3,
      .schedule = PIPE_INTERLEAVED,
      .first_less = 1 },
    { .name = "pp2 x 3 chunks, both alone",
      .pp = 2,
      .chunks = 3,
      .schedule = PIPE_INTERLEAVED,
      .split = { 0, 1, 2, 1, 1, 0 } },
    { .name = "pp2 x zero1 over 2, the head alone",
      .pp = 2,
      .dp = 2,
      .zero = 1,
      .split = { 5, 0 } },
    { .name = "pp2 x zero2 over 2, the embedding alone",
      .pp = 2,
      .dp = 2,
      .zero = 2,
      .split = { 0, 5 } },
    { .name = "pp2 x zero3 over 2, the head alone",
      .pp = 2,
      .dp = 2,
      .zero = 3,
      .split = { 5, 0 } },
    { .name = "pp3 x tp2+sp, both alone", .pp = 3, .tp = 2, .sp = true, .split = { 0, 5, 0 } },
    { .name = "pp2 x cp2, 4 and 1", .pp = 2, .cp = 2, .split = { 4, 1 } },
    { .name = "pp3, both alone, full recompute", .pp = 3, .split = { 0, 5, 0 }, .keep_every = 1 },
    { .name = "pp3, both alone, selective", .pp = 3, .split = { 0, 5, 0 }, .selective = true },
};

static void compare_layouts(const char *model_name, model_config c, const layout *list, size_t n) {
    c.layers = 5;
    outcome one;
    double limit = 1e-5;
    run_layout(&c, &(layout){ .name = "one", .micros = 4 }, &one);
    if (c.layer_scalars || c.backout) limit = fmax(limit, 4 * rounding_of(&c, &one, 4));
    assert_true(limit < 1e-3);
    for (size_t i = 0; i < n; i++) {
        outcome o;
        char what[128];
        layout l = list[i];
        l.micros = 4;
        snprintf(what, sizeof what, "%s on %s", model_name, l.name);
        run_layout(&c, &l, &o);
        assert_true(o.replicas_agree);
        same_within(what, &o, &one, limit);
        outcome_free(&o);
    }
    outcome_free(&one);
}

static void compare_all(const char *model_name, model_config c) {
    compare_layouts(model_name, c, layouts, COUNT_OF(layouts));
}

static void llama_agrees_on_uneven_stages(void **state) {
    compare_layouts("llama", small_llama(), uneven, COUNT_OF(uneven));
}

/* A delta leaves the embedding, a table is at both ends, and blocks have dropout. */
static void tied_gpt2_agrees_on_uneven_stages(void **state) {
    model_config c = small_gpt2();
    c.dropout = c.embed_dropout = c.attn_dropout = 0.1;
    c.kv_heads = c.heads;
    compare_layouts("gpt2", c, uneven, COUNT_OF(uneven));
}

static void post_norm_agrees_on_uneven_stages(void **state) {
    model_config c = small_llama();
    c.norm_position = NORM_POST;
    compare_layouts("norm on the output", c, uneven, COUNT_OF(uneven));
}

static void llama_agrees_on_every_pipeline(void **state) { compare_all("llama", small_llama()); }

static void tied_gpt2_agrees_on_every_pipeline(void **state) {
    model_config c = small_gpt2();
    c.dropout = 0.2;
    c.embed_dropout = 0.1;
    c.attn_dropout = 0.2;
    c.kv_heads = c.heads;
    compare_all("gpt2, tied, dropout", c);
}

static void parallel_branches_agree_on_every_pipeline(void **state) {
    compare_all("neox", small_neox());
}

static void post_norm_agrees_on_every_pipeline(void **state) {
    model_config c = small_llama();
    c.norm_position = NORM_POST;
    compare_all("norm on the output", c);
}

static model_config carrying(void) {
    model_config c = small_carrying();
    c.kv_heads = c.heads;
    return c;
}

/* Stages pass on values of earlier ones, through stages that do not read them, and the gradients back. */
static void carried_values_agree_on_every_pipeline(void **state) {
    compare_all("carrying", carrying());
    compare_layouts("carrying", carrying(), uneven, COUNT_OF(uneven));
    model_config c =
        small_gpt2(); /* tied; of the middle alone, which the stages before it do not have */
    c.kv_heads = c.heads;
    c.dropout = 0.2;
    c.backout = true;
    compare_all("gpt2, carrying", c);
    compare_layouts("gpt2, carrying", c, uneven, COUNT_OF(uneven));
}

/* Stages pass on the very sum that one rank would compute: up to the order in which gradients of a tied
 * table are added, nothing differs at all. */
static void a_pipeline_is_bit_exact(void **state) {
    outcome one, two;
    for (int i = 0; i < 4; i++) {
        int dt = i % 2;
        model_config c = i < 2 ? small_llama() : carrying();
        c.layers = 4;
        layout a = { .micros = 4, .dt = dt ? DT_BF16 : DT_F32 }, b = a;
        b.pp = 2;
        run_layout(&c, &a, &one);
        run_layout(&c, &b, &two);
        same_bits(dt ? "pp2 in bf16" : "pp2", &two, &one);
        outcome_free(&one);
        outcome_free(&two);
    }
}

/* A stage holds its own parameters, and as many microbatches as its place in the pipeline needs. */
static void a_stage_holds_its_share(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    outcome one, two, all;
    run_layout(&c, &(layout){ .micros = 8 }, &one);
    run_layout(&c, &(layout){ .micros = 8, .pp = 4 }, &two);
    run_layout(&c, &(layout){ .micros = 8, .pp = 4, .schedule = PIPE_GPIPE }, &all);
    assert_true(two.param_bytes < one.param_bytes * 2 / 5);
    assert_int_equal(two.saved_bytes, one.saved_bytes);     /* 4 microbatches of a quarter */
    assert_int_equal(all.saved_bytes, 2 * one.saved_bytes); /* 8 */
    outcome_free(&one);
    outcome_free(&two);
    outcome_free(&all);
}

/* Microbatches in flight keep block inputs; the values of one block are there for all of them and for all chunks. */
static void a_recomputed_pipeline_saves_one_block(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    const layout kinds[] = {
        { .micros = 8, .pp = 4 },
        { .micros = 8, .pp = 4, .schedule = PIPE_GPIPE },
        { .micros = 8, .pp = 2, .schedule = PIPE_INTERLEAVED, .chunks = 4 },
    };
    const int kept[] = { 4 * 2, 8 * 2, 4 * 4 }; /* block inputs */
    const size_t input = RUN_ROWS * RUN_SEQ * (size_t)c.dim * sizeof(float);
    outcome one;
    run_layout(&c, &(layout){ .micros = 1 }, &one);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        outcome o;
        layout l = kinds[i];
        l.keep_every = 1;
        run_layout(&c, &l, &o);
        size_t inputs = o.saved_bytes - one.saved_bytes / 8;
        assert_true(inputs % input == 0 && inputs <= (size_t)kept[i] * input);
        outcome_free(&o);
    }
    outcome_free(&one);
}

/* The most microbatches of a chunk and of those that share its slots which a rank holds at once. */
static int held_together(const chain *c, const timetable *t, int rank, int chunk) {
    int now = 0, most = 0, owner = chain_slot_owner(c, rank, chunk);
    for (int i = 0; i < t->tasks; i++) {
        const pipeline_task *k = &t->of[rank][i];
        if (chain_slot_owner(c, rank, k->chunk) != owner) continue;
        now += k->kind == TASK_FORWARD;
        most = MAX(most, now);
        now -= k->kind == TASK_BACKWARD;
    }
    return most;
}

/* Chunks of one size share slots: a rank has as many as it holds microbatches of all of them at once, for any number of
 * microbatches up to the most, and ranks that wait for what they sent from a slot never wait for each other. */
static void check_shared_slots(rng_key key) {
    model_config mc = small_llama();
    int ranks = 2 + (int)rng_below(key, 0, 4), chunks = 2 + (int)rng_below(key, 1, 3);
    int more = (int)rng_below(key, 2, 4), micros = ranks * (1 + (int)rng_below(key, 3, 5));
    mc.layers = ranks * chunks + more * (int)rng_below(key, 4, 3);
    mesh me = { .size = { [AX_PP] = ranks } };
    model_layout l = { .pipe = { .kind = PIPE_INTERLEAVED, .chunks = chunks } };
    if (rng_below(key, 5, 2)) l.pipe.first_less = l.pipe.last_less = 1, mc.layers += chunks;
    model *m[8];
    chain ch[8];
    timetable t;
    for (int r = 0; r < ranks; r++) {
        step_list most, list;
        l.mesh = mesh_as(&me, r);
        assert_ok(model_new(&mc, &l, &m[r]));
        assert_ok(model_record(m[r], PROG_TRAIN, 32, 16, &ch[r]));
        ch[r].keep_every = (int)rng_below(key, 6, 2);
        const chain c = chain_normal(&ch[r]);
        assert_ok(step_list_make(&c, r, micros, &most));
        for (int n = ranks; n <= micros; n += ranks) {
            assert_ok(timetable_make(&c.pipe, n, &t));
            step_list_from(&c, r, &t, n, &list);
            for (int k = 0; k < chunks; k++) {
                assert_int_equal(list.slots[k], held_together(&c, &t, r, k));
                assert_true(list.slots[k] <= most.slots[k]);
            }
            step_list_free(&list);
            timetable_free(&t);
        }
        step_list_free(&most);
    }
    assert_ok(plan_check_ranks(&me, ch, ranks));
    for (int r = 0; r < ranks; r++) assert_ok(model_record(m[r], PROG_EVAL, 32, 16, &ch[r]));
    assert_ok(plan_check_ranks(&me, ch, ranks));
    for (int r = 0; r < ranks; r++) model_free(m[r]);
}

static void chunks_of_one_size_share_slots(void **state) {
    for (uint64_t i = 0; i < 60; i++) check_shared_slots(rng_key_of(38, i));
}

/* ... and what a rank computes with them is that of one rank, whose memory four chunks of a rank do not exceed. */
static void shared_slots_are_bit_exact(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    outcome one, two;
    for (int k = 0; k < 4; k++) {
        layout a = { .micros = 8, .dt = k & 1 ? DT_BF16 : DT_F32 }, b = a;
        b.pp = 2;
        b.chunks = 4;
        b.schedule = PIPE_INTERLEAVED;
        b.keep_every = k / 2;
        run_layout(&c, &a, &one);
        run_layout(&c, &b, &two);
        same_bits("pp2 x 4 chunks", &two, &one);
        /* the first rank holds nine chunks of a block, one rank all eight blocks */
        if (!b.keep_every) assert_true(two.saved_bytes * 8 <= one.saved_bytes * 9);
        outcome_free(&one);
        outcome_free(&two);
    }
}

static void refuse_splits(model_config c) {
    static const struct {
        layout l;
        const char *because;
    } cases[] = {
        { { .split = { 2, 2, 2, 2 } }, "8 layers, the model 6" },
        { { .split = { 3, 0, 2, 1 } }, "stage 1 of 4 has no layers" },
        { { .first_less = 9 }, "stage 1 of 4 has no layers" },
        { { .split = { 1, 1, 1, 1, 1, 1 }, .chunks = 2, .pp = 3 }, "6 stages" },
    };
    c.layers = 6;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model *m;
        layout l = cases[i].l;
        if (!l.pp) l.pp = 4;
        model_layout lay = { .mesh.size = { [AX_PP] = 4 }, .pipe = layout_pipe(&l) };
        lay.pipe.chunks = 1;
        assert_error(model_new(&c, &lay, &m), cases[i].because);
    }
}

static void what_a_pipeline_cannot_do_is_refused(void **state) {
    model_config c = small_llama();
    model *m;
    mesh me = { .size = { [AX_PP] = 4 } };
    assert_error(model_new(&c, &(model_layout){ .mesh = me }, &m), "2 blocks", "4 pipeline stages");
    refuse_splits(c);
    c.layers = 4;
    model_layout zb = { .mesh = me, .zero = 3, .pipe.kind = PIPE_ZERO_BUBBLE };
    assert_error(model_new(&c, &zb, &m), "ZeroBubble", "ZeRO stage 3");
    timetable t;
    pipeline p = { .ranks = 4, .chunks = 2, .kind = PIPE_INTERLEAVED };
    assert_error(timetable_make(&p, 6, &t), "multiples of the 4");
}

/* ---- timetables ---------------------------------------------------------------------------- */
/* The most microbatches that a rank of 1F1B holds at once. */
static int most_in_flight(const timetable *s, int rank) {
    int now = 0, most = 0;
    for (int i = 0; i < s->tasks; i++) {
        now += s->of[rank][i].kind == TASK_FORWARD;
        most = MAX(most, now);
        now -= s->of[rank][i].kind == TASK_BACKWARD;
    }
    return most;
}

static void the_bubble_is_that_of_the_formula(void **state) {
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int k = PIPE_1F1B; k <= PIPE_ZERO_BUBBLE; k++) {
            bool chunks = k == PIPE_INTERLEAVED;
            int micros = 4 * ranks, units = k == PIPE_ZERO_BUBBLE ? 3 : 1;
            pipeline p = { .ranks = ranks, .chunks = chunks ? 3 : 1, .kind = k };
            timetable t;
            assert_ok(timetable_make(&p, micros, &t));
            double idle = ranks - 1, want = idle / (units * p.chunks * micros + idle);
            assert_true(fabs(timetable_bubble(&t) - want) < 1e-12);
            for (int r = 0; r < ranks && k == PIPE_1F1B; r++)
                assert_int_equal(most_in_flight(&t, r), ranks - r);
            timetable_free(&t);
        }
}

static void a_timetable_is_printed(void **state) {
    timetable t;
    str text = { 0 };
    pipeline p = { .ranks = 2, .chunks = 1 };
    assert_ok(timetable_make(&p, 3, &t));
    timetable_print(&t, &text);
    assert_string_equal(text.text, "rank 0  0  1       `0     2 `1       `2\n"
                                   "rank 1     0 `0     1 `1     2 `2\n");
    str_free(&text);
    timetable_free(&t);
}

/* Every rank's list of instructions is played against the others'. */
static void lists_of_all_ranks_meet(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    for (int k = PIPE_1F1B; k <= PIPE_ZERO_BUBBLE; k++) {
        mesh me = { .size = { [AX_PP] = 4, [AX_TP] = 2 } };
        model *m[8];
        chain ch[8];
        model_layout l = { .pipe = { .kind = k, .chunks = k == PIPE_INTERLEAVED ? 2 : 1 } };
        for (int r = 0; r < 8; r++) {
            l.mesh = mesh_as(&me, r);
            assert_ok(model_new(&c, &l, &m[r]));
            assert_ok(model_record(m[r], PROG_TRAIN, 32, 16, &ch[r]));
        }
        assert_ok(plan_check_ranks(&me, ch, 8));
        ch[3].pipe.kind = k == PIPE_GPIPE ? PIPE_1F1B : PIPE_GPIPE; /* one rank has another order */
        if (k != PIPE_INTERLEAVED) assert_error(plan_check_ranks(&me, ch, 8), "forever");
        for (int r = 0; r < 8; r++) model_free(m[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_agrees_on_uneven_stages),
        cmocka_unit_test(tied_gpt2_agrees_on_uneven_stages),
        cmocka_unit_test(post_norm_agrees_on_uneven_stages),
        cmocka_unit_test(llama_agrees_on_every_pipeline),
        cmocka_unit_test(carried_values_agree_on_every_pipeline),
        cmocka_unit_test(tied_gpt2_agrees_on_every_pipeline),
        cmocka_unit_test(parallel_branches_agree_on_every_pipeline),
        cmocka_unit_test(post_norm_agrees_on_every_pipeline),
        cmocka_unit_test(a_pipeline_is_bit_exact),
        cmocka_unit_test(a_stage_holds_its_share),
        cmocka_unit_test(a_recomputed_pipeline_saves_one_block),
        cmocka_unit_test(chunks_of_one_size_share_slots),
        cmocka_unit_test(shared_slots_are_bit_exact),
        cmocka_unit_test(what_a_pipeline_cannot_do_is_refused),
        cmocka_unit_test(the_bubble_is_that_of_the_formula),
        cmocka_unit_test(a_timetable_is_printed),
        cmocka_unit_test(lists_of_all_ranks_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
