/* Recompute changes what is kept, never a bit of the result; gradients through values that programs carry are slopes of the loss. */
#include "support/sampled.h"

static const layout modes[] = {
    { .name = "full", .dp = 1, .tp = 1, .keep_every = 1 },
    { .name = "every 2", .dp = 1, .tp = 1, .keep_every = 2 },
    { .name = "every 3", .dp = 1, .tp = 1, .keep_every = 3 },
    { .name = "every 8, more than layers", .dp = 1, .tp = 1, .keep_every = 8 },
    { .name = "full, but for the last two", .dp = 1, .tp = 1, .keep_every = 1, .keep_last = 2 },
    { .name = "every 2, but for the last", .dp = 1, .tp = 1, .keep_every = 2, .keep_last = 1 },
    { .name = "every 3, but for the last", .dp = 1, .tp = 1, .keep_every = 3, .keep_last = 1 },
    { .name = "full, but for all", .dp = 1, .tp = 1, .keep_every = 1, .keep_last = 5 },
    { .name = "selective", .dp = 1, .tp = 1, .selective = true },
    { .name = "selective and every 2", .dp = 1, .tp = 1, .selective = true, .keep_every = 2 },
    { .name = "selective and full", .dp = 1, .tp = 1, .selective = true, .keep_every = 1 },
    { .name = "full, three threads", .dp = 1, .tp = 1, .keep_every = 1, .threads = 3 },
};

static void compare(const char *name, model_config c, dtype dt, const char *modules,
                    fp8_recipe fp8) {
    c.layers = 5;
    outcome none, again;
    layout plain = { .dp = 1, .tp = 1, .dt = dt, .modules = modules, .fp8 = fp8 };
    run_layout(&c, &plain, &none);
    run_layout(&c, &plain, &again);
    same_bits("a second run", &again, &none);
    outcome_free(&again);
    static size_t turn; /* under sanitizers each comparison takes a third of the modes */
    for (size_t i = SANITIZED ? turn++ % 3 : 0; i < COUNT_OF(modes); i += SANITIZED ? 3 : 1) {
        outcome o;
        layout l = modes[i];
        char what[128];
        l.dt = dt;
        l.modules = modules;
        l.fp8 = fp8;
        snprintf(what, sizeof what, "%s %s%s, %s", name, dt_name(dt), fp8 ? " with fp8" : "",
                 l.name);
        run_layout(&c, &l, &o);
        same_bits(what, &o, &none);
        if (l.keep_every < 5 && l.keep_last < 5 && !(o.saved_bytes < none.saved_bytes))
            fail_msg("%s: keeps %zu bytes, none keeps %zu", what, o.saved_bytes, none.saved_bytes);
        outcome_free(&o);
    }
    outcome_free(&none);
}

static void every_type(const char *name, model_config c) {
    compare(name, c, DT_F32, NULL, FP8_OFF);
    compare(name, c, DT_BF16, NULL, FP8_OFF);
    compare(name, c, DT_F16, NULL, FP8_OFF);
    compare(name, c, DT_BF16, "head=fp32,attn=fp16", FP8_OFF);
    compare(name, c, DT_BF16, NULL, FP8_DELAYED);
    compare(name, c, DT_BF16, "attn=fp16", FP8_CURRENT);
}

static void recompute_is_bit_exact_for_llama(void **state) {
    model_config c = small_llama();
    c.dropout = 0.1;
    c.attn_dropout = 0.1;
    c.qknorm = QKNORM_HEAD;
    every_type("llama", c);
}

static void recompute_is_bit_exact_for_gpt2(void **state) {
    model_config c = small_gpt2();
    c.embed_dropout = 0.1;
    c.attn_dropout = 0.3;
    every_type("gpt2", c);
}

static void recompute_is_bit_exact_for_neox(void **state) {
    model_config c = small_neox();
    every_type("neox", c);
}

static void recompute_is_bit_exact_for_fast_learner(void **state) {
    model_config c = small_fast();
    c.embed_dropout = 0.1;
    every_type("fast", c);
    c = small_carrying();
    every_type("fast, carrying", c);
    c.norm_position = NORM_POST; /* kinds of blocks save other values, in one slot */
    compare("fast, carrying, norm on the output", c, DT_BF16, NULL, FP8_OFF);
}

static void recompute_is_bit_exact_for_post_norm(void **state) {
    model_config c = small_llama();
    c.norm_position = NORM_POST;
    c.qknorm = QKNORM_FULL;
    c.window = 5;
    every_type("olmo2", c);
}

static void recompute_is_bit_exact_for_newer_families(void **state) {
    for (size_t i = 0; i < COUNT_OF(new_models); i++)
        every_type(new_models[i].name, new_models[i].make());
}

/* INGOT_TEST_SEED: the first model's seed (1); INGOT_TEST_MODELS: how many (24, under sanitizers 6). */
static void recompute_is_bit_exact_for_sampled_models(void **state) {
    const char *seed = getenv("INGOT_TEST_SEED"), *models = getenv("INGOT_TEST_MODELS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t n = models ? strtoull(models, NULL, 10) : SANITIZED ? 6 : 24;
    for (uint64_t i = first; i < first + n; i++) {
        model_config c;
        outcome none;
        char text[1024];
        uint64_t at = 0;
        draw_model(rng_key_of(i, hash_str("recomputed")), &at, &c);
        size_t begin = (size_t)snprintf(text, sizeof text, "seed %llu:", (unsigned long long)i);
        describe(&c, text + begin, sizeof text - begin);
        print_message("%s\n", text);
        layout l = { .name = text, .dt = i % 2 ? DT_BF16 : DT_F32 };
        run_layout(&c, &l, &none);
        for (int k = 0; k < 4; k++) {
            outcome o;
            l.keep_every = 1 + k / 2;
            l.selective = k % 2;
            run_layout(&c, &l, &o);
            same_bits(text, &o, &none);
            outcome_free(&o);
        }
        outcome_free(&none);
    }
}

/* ---- gradients against finite differences ------------------------------------------------------- */
typedef struct differentiated {
    model *m;
    exec x;
    int id;
    int64_t n;
} differentiated;

static double mean_loss(differentiated *d) {
    double sum = 0;
    assert_ok(model_publish(d->m, &d->x));
    assert_ok(exec_chain(&d->x, d->id, 0, 1));
    const float *loss = exec_result(&d->x, d->id).data;
    for (int64_t i = 0; i < d->n; i++) sum += (double)loss[i] / (double)d->n;
    return sum;
}

/* Moves a whole parameter along a random direction, both ways. */
static void slope_is_its_gradient(differentiated *d, const char *name) {
    int i = model_find_param(d->m, name);
    assert_true(i >= 0);
    param_range r;
    float *w = model_param_data(d->m, d->x.plan, i, PARAM_MASTER, &r);
    const float *g = model_param_data(d->m, d->x.plan, i, PARAM_GRAD, NULL);
    int64_t count = r.to - r.from;
    float *saved = mem_alloc((size_t)count * sizeof *saved), *along = mem_alloc((size_t)count * 4);
    rng_normals(rng_key_of(4, hash_str(name)), 0, count, along);
    memcpy(saved, w, (size_t)count * sizeof *saved);
    mean_loss(d);
    double want = 0, loss[2], norm = norm2(along, count), h = 4e-3;
    for (int64_t k = 0; k < count; k++) want += (double)g[k] * along[k] / norm;
    for (int side = 0; side < 2; side++) {
        for (int64_t k = 0; k < count; k++)
            w[k] = saved[k] + (float)((side ? h : -h) * along[k] / norm);
        loss[side] = mean_loss(d);
    }
    memcpy(w, saved, (size_t)count * sizeof *saved);
    double slope = (loss[1] - loss[0]) / (2 * h);
    if (!(fabs(slope - want) < 1e-2 * fabs(want) + 2e-4))
        fail_msg("%s: the loss rises by %g, its gradient has %g", name, slope, want);
    free(saved);
    free(along);
}

/* Layouts agree with one rank whatever that computes: here it is compared with the loss itself. */
static void gradients_of_carried_values_are_slopes(void **state) {
    static const char *const names[] = { "smear.gate",      "smear.factor", "embed.tokens",
                                         "l0.mix.residual", "l0.mix.embed", "l2.mix.residual",
                                         "l3.mix.embed",    "mix.middle",   "l0.attn.v",
                                         "l2.mlp.down",     "l3.mlp.up" };
    enum { ROWS = 2, SEQ = 16, N = ROWS * SEQ };
    model_config c = small_carrying();
    model_layout l = { .dt = DT_F32 };
    differentiated d = { .n = N, .x = { .comm = comm_self() } };
    chain train;
    assert_ok(model_new(&c, &l, &d.m));
    d.x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(d.m, d.x.plan, true);
    assert_ok(model_record(d.m, PROG_TRAIN, N, SEQ, &train));
    assert_ok(plan_chain(d.x.plan, &train, model_bucket_regions, d.m, &d.id));
    assert_ok(plan_commit(d.x.plan));
    model_fill_constants(d.m, d.x.plan);
    model_init(d.m, d.x.plan, 3);
    stir_vectors(d.m, &d.x);
    int32_t tok[N], target[N], pos[N], start[N];
    int64_t ids[N];
    for (int i = 0; i < N; i++) {
        tok[i] = (int32_t)rng_below(rng_key_of(1, 1), (uint64_t)i, (uint64_t)c.vocab);
        target[i] = (int32_t)rng_below(rng_key_of(1, 2), (uint64_t)i, (uint64_t)c.vocab);
        pos[i] = i % SEQ;
        start[i] = i / SEQ * SEQ;
        ids[i] = i;
    }
    d.x.step.loss_grad = 1.0f / N;
    model_set_batch(d.m, d.x.plan, &(model_batch){ tok, target, pos, start, ids, N });
    for (size_t i = 0; i < COUNT_OF(names); i++) slope_is_its_gradient(&d, names[i]);
    plan_free(d.x.plan);
    model_free(d.m);
    comm_free(d.x.comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_carried_values_are_slopes),
        cmocka_unit_test(recompute_is_bit_exact_for_llama),
        cmocka_unit_test(recompute_is_bit_exact_for_sampled_models),
        cmocka_unit_test(recompute_is_bit_exact_for_gpt2),
        cmocka_unit_test(recompute_is_bit_exact_for_neox),
        cmocka_unit_test(recompute_is_bit_exact_for_post_norm),
        cmocka_unit_test(recompute_is_bit_exact_for_fast_learner),
        cmocka_unit_test(recompute_is_bit_exact_for_newer_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
