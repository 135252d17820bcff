/* Published training runs as configs: each has its published size, plans, and trains when it is shrunk; and advice
 * from them. */
#include "support/train.h"

#include <math.h>

#include "planning/planning.h"

static void open_recipe(int i, config *c) {
    config_init(c);
    assert_ok(config_parse(c, recipe_text(i), strlen(recipe_text(i)), recipe_name(i)));
}

/* Parameters in billions as the reports state them. Relative positions take a matrix of dim x dim per
 * layer, which rotary ones do not. */
static const struct {
    const char *name;
    double params, tokens;
    bool relative;
} published[] = {
    { "gpt3-175b", 174.6, 300e9, false },    { "gpt-neox-20b", 20.55, 471.9e9, false },
    { "gopher-280b", 280, 300e9, true },     { "palm-540b", 540.35, 780e9, false },
    { "chinchilla-70b", 70, 1.4e12, true },  { "llama2-7b", 6.74, 2e12, false },
    { "llama2-70b", 68.98, 2e12, false },    { "llama3-8b", 8.03, 15e12, false },
    { "llama3-70b", 70.55, 15e12, false },   { "llama3-405b", 405.85, 15.6e12, false },
    { "falcon-180b", 179.5, 3.5e12, false }, { "mistral-7b", 7.24, 2e12, false },
    { "olmo1-7b", 6.89, 2e12, false },       { "olmo2-13b", 13.7, 5e12, false },
    { "pythia-6.9b", 6.86, 299.9e9, false }, { "mixtral-8x7b", 46.7, 2e12, false },
};

static void sizes_are_the_published_ones(void **state) {
    assert_int_equal(recipe_count(), (int)COUNT_OF(published));
    for (size_t i = 0; i < COUNT_OF(published); i++) {
        int at = -1;
        config c;
        capacity cap;
        str source = { 0 };
        assert_ok(recipe_find(published[i].name, &at));
        open_recipe(at, &c);
        recipe_note(at, "source", &source);
        assert_true(source.len > 10);
        assert_ok(
            capacity_of(&c, &(run_target){ .ops = ops_cpu(OPS_ISA_BEST), .device = true }, &cap));
        double extra =
            published[i].relative ? cap.mc.layers * (double)cap.mc.dim * (double)cap.mc.dim : 0;
        if (fabs((cap.params + extra) / (1e9 * published[i].params) - 1) > 0.01)
            fail_msg("%s has %.4gB parameters", published[i].name, (cap.params + extra) / 1e9);
        assert_true(fabs(cap.tokens / published[i].tokens - 1) < 0.001);
        assert_true(cap.total > 16 * cap.params);
        str_free(&source);
        config_free(&c);
    }
}

/* Hundreds of hosts of eight share a step evenly. */
static void batches_divide_among_many_ranks(void **state) {
    for (int i = 0; i < recipe_count(); i++) {
        config c;
        open_recipe(i, &c);
        cfg_amount batch = c.training.global_batch_size;
        assert_int_equal(batch.unit, CFG_SEQUENCES);
        assert_true((int64_t)batch.value % 512 == 0);
        config_free(&c);
    }
}

static void each_trains_when_tiny(void **state) {
    test_folder *f = *state;
    for (int i = 0; i < recipe_count(); i++) {
        config c;
        open_recipe(i, &c);
        assert_ok(config_scale(&c, "tiny"));
        assert_ok(config_set(&c, "training.steps", "4"));
        assert_ok(config_set(&c, "training.threads", "1"));
        assert_ok(config_set(&c, "validation.every", "0"));
        assert_ok(config_set(&c, "device.kind", "cpu"));
        assert_ok(config_set(&c, "run.dir", in_folder(f, recipe_name(i))));
        assert_ok(train_run(&c, &(train_options){ .quiet = true }));
        json_t *steps = logged_steps(f, recipe_name(i));
        assert_true(logged_number(steps, 3, "loss") < logged_number(steps, 0, "loss"));
        json_decref(steps);
        config_free(&c);
    }
}

static void draw_setting(config *c, const char *option, const char *const *values, int n,
                         rng_key key, uint64_t *drawn) {
    const char *value = values[rng_below(key, (*drawn)++, (uint64_t)n)];
    if (*value) assert_ok(config_set(c, option, value));
}

/* A layout of a large cluster, as a search writes it. */
static void draw_layout(config *c, rng_key key, uint64_t *drawn) {
    static const char
        *const degrees[] = { "1", "1", "2", "4", "8" },
               *const shards[] = { "-1", "4", "61" }, *const stages[] = { "0", "1", "2", "3" },
               *const some[] = { "1", "1", "1", "4" },
               *const schedules[] = { "1F1B", "GPipe", "Interleaved1F1B", "ZeroBubble" },
               *const recomputes[] = { "none", "selective", "full" };
    draw_setting(c, "parallelism.tensor_parallel_degree", degrees, COUNT_OF(degrees), key, drawn);
    draw_setting(c, "parallelism.pipeline_parallel_degree", degrees, COUNT_OF(degrees), key, drawn);
    draw_setting(c, "parallelism.context_parallel_degree", some, COUNT_OF(some), key, drawn);
    draw_setting(c, "parallelism.data_parallel_replicate_degree", some, COUNT_OF(some), key, drawn);
    draw_setting(c, "parallelism.data_parallel_shard_degree", shards, COUNT_OF(shards), key, drawn);
    draw_setting(c, "parallelism.zero_stage", stages, COUNT_OF(stages), key, drawn);
    if (c->parallelism.pipeline_parallel_degree > 1) {
        draw_setting(c, "parallelism.pipeline_parallel_schedule", schedules,
                     c->parallelism.zero_stage > 1 ? 3 : 4, key,
                     drawn); /* ZeroBubble needs 0 or 1 */
        if (c->parallelism.pipeline_parallel_schedule == PIPE_INTERLEAVED)
            assert_ok(config_set(c, "parallelism.pipeline_parallel_chunks", "4"));
    }
    /* ZeroBubble keeps what weight gradients read. */
    if (c->parallelism.pipeline_parallel_schedule != PIPE_ZERO_BUBBLE)
        draw_setting(c, "activation_checkpoint.mode", recomputes, COUNT_OF(recomputes), key, drawn);
    model_config m;
    assert_ok(model_from_config(c, &m));
    if (m.experts > 1 && c->parallelism.data_parallel_shard_degree == 4)
        assert_ok(config_set(c, "parallelism.expert_parallel_degree", "4"));
}

/* A config of thousands of ranks shrinks to a few threads of this process, divided along the same axes. */
static void each_layout_trains_when_tiny(void **state) {
    test_folder *f = *state;
    rng_key key = rng_key_of(38, 7);
    uint64_t drawn = 0;
    int divided = 0;
    for (int i = 0; i < recipe_count(); i++) {
        config c;
        char dir[64];
        open_recipe(i, &c);
        draw_layout(&c, key, &drawn);
        bool stages = c.parallelism.pipeline_parallel_degree > 1,
             heads = c.parallelism.tensor_parallel_degree > 1;
        assert_ok(config_scale(&c, "tiny"));
        assert_true(stages == (c.parallelism.pipeline_parallel_degree == 2));
        assert_true(heads == (c.parallelism.tensor_parallel_degree == 2));
        divided += stages + heads;
        assert_ok(config_set(&c, "training.steps", "2"));
        assert_ok(config_set(&c, "training.threads", "1"));
        assert_ok(config_set(&c, "validation.every", "0"));
        assert_ok(config_set(&c, "device.kind", "cpu"));
        snprintf(dir, sizeof dir, "layout-%d", i);
        assert_ok(config_set(&c, "run.dir", in_folder(f, dir)));
        err e = train_run(&c, &(train_options){ .quiet = true });
        if (e) fail_msg("%s: %s", recipe_name(i), err_message(e));
        config_free(&c);
    }
    assert_true(divided > recipe_count() / 2);
}

/* The shape is kept: grouped heads, one key/value head, parallel branches, the feed-forward's ratio. */
static void tiny_keeps_the_family(void **state) {
    static const struct {
        const char *name;
        int kv;
        int64_t ffn;
        bool parallel;
    } kept[] = { { "llama2-7b", 4, 176, false },
                 { "llama2-70b", 2, 224, false },
                 { "palm-540b", 1, 256, true },
                 { "pythia-6.9b", 4, 256, true } };
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        int at;
        config c;
        model_config m;
        assert_ok(recipe_find(kept[i].name, &at));
        open_recipe(at, &c);
        assert_ok(config_scale(&c, "tiny"));
        assert_ok(model_from_config(&c, &m));
        assert_int_equal(m.kv_heads, kept[i].kv);
        assert_int_equal(m.ffn, kept[i].ffn);
        assert_true(m.parallel == kept[i].parallel && model_count(&m) < 200000);
        assert_error(config_scale(&c, "huge"), "expected tiny", "huge");
        config_free(&c);
    }
    int at;
    assert_error(recipe_find("llama2-7", &at), "llama2-7");
}

/* ---- advice ----------------------------------------------------------------------------------- */
static bool advises(const char *const *list, advice_kind kind, const char *words) {
    config c;
    capacity cap;
    advice *all = NULL;
    int n = 0;
    bool found = false;
    config_init(&c);
    for (int i = 0; list[i]; i += 2) assert_ok(config_set(&c, list[i], list[i + 1]));
    assert_ok(capacity_of(&c, &(run_target){ .ops = ops_cpu(OPS_ISA_BEST), .device = true }, &cap));
    assert_ok(plan_advise(&c, &cap, &all, &n));
    for (int i = 0; i < n; i++)
        found = found || (all[i].kind == kind && strstr(all[i].text, words));
    advice_free(all, n);
    config_free(&c);
    return found;
}

#define SOUND                                                                                      \
    "model.preset", "llama2-7b", "training.steps", "2e12 tokens", "training.global_batch_size",    \
        "4M tokens", "training.local_batch_size", "1", "training.seq_len", "4096",                 \
        "lr_scheduler.warmup", "2000", "precision.dtype", "bf16"

/* Each mistake is named, and a sound config has none of them. */
static void names_classic_mistakes(void **state) {
    static const struct {
        const char *option, *value, *words;
    } mistakes[] = {
        { "precision.dtype", "fp16", "fp16 without loss scaling" },
        { "lr_scheduler.warmup", "100", "warm-up of 100 steps" },
        { "lr_scheduler.name", "constant", "never decays" },
        { "optimizer.beta2", "0.999", "beta2 0.999" },
        { "training.max_norm", "0", "not clipped" },
        { "training.steps", "20e9 tokens", "under-trained" },
        { "optimizer.lr", "1e-3", "expect spikes" }, /* 3.3 times the recipe's */
        { "training.global_batch_size", "8192 tokens", "gradients are noisier" },
        { "model.vocab_size", "32003", "multiple of 64" },
        { "optimizer.master", "bf16", "stochastic rounding" },
    };
    const char *const sound[] = { SOUND, "precision.loss_scale", "1", NULL };
    for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
        const char *const bad[] = {
            SOUND, "precision.loss_scale", "1", mistakes[i].option, mistakes[i].value, NULL
        };
        if (!advises(bad, ADVICE_WARNING, mistakes[i].words))
            fail_msg("%s=%s: no warning \"%s\"", mistakes[i].option, mistakes[i].value,
                     mistakes[i].words);
        if (advises(sound, ADVICE_WARNING, mistakes[i].words))
            fail_msg("a sound config is warned: \"%s\"", mistakes[i].words);
    }
    assert_true(advises(sound, ADVICE_SUGGESTION, "llama2-7b"));
    assert_true(advises(sound, ADVICE_SUGGESTION, "arXiv:2307.09288"));
    const char *const faster[] = {
        SOUND, "precision.loss_scale", "1", "optimizer.lr", "8e-4", NULL
    };
    assert_false(advises(faster, ADVICE_WARNING, "expect spikes")); /* 2.7 times */
    const char *const small[] = { "model.preset", "tiny", NULL };
    assert_false(advises(small, ADVICE_SUGGESTION, "")); /* no recipe is near */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_the_published_ones),
        cmocka_unit_test_setup_teardown(each_trains_when_tiny, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(each_layout_trains_when_tiny, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(tiny_keeps_the_family),
        cmocka_unit_test(names_classic_mistakes),
        cmocka_unit_test(batches_divide_among_many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
