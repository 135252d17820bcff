/* The optimizer of a run that names none: which runs have it, for every model, and how they are continued. */
#include "support/train.h"

#include "model/model.h"

/* A run without a word about its optimizer. */
#define BARE_RUN                                                                                   \
    "model.preset", "tiny", "model.layers", "2", "model.dim", "16", "model.heads", "2",            \
        "model.kv_heads", "2", "model.head_dim", "8", "model.ffn_dim", "32", "precision", "fp32",  \
        "device.kind", "cpu", "training.steps", "6", "training.seq_len", "32", "training.threads", \
        "1", "training.local_batch_size", "4", "data.synth_documents", "60", "metrics.log_every",  \
        "0", "validation.every", "0"

/* @return what RUN/config.yaml states of an option, owned by `memory`. */
static char *stated(test_folder *f, const char *run, const char *option, str *memory) {
    char path[64];
    config c;
    config_init(&c);
    snprintf(path, sizeof path, "%s/config.yaml", run);
    assert_ok(config_load(&c, in_folder(f, path)));
    memory->len = 0;
    for (int i = 0; i < config_option_count(); i++)
        if (!strcmp(config_option_name(i), option)) config_option_text(&c, i, memory);
    config_free(&c);
    return memory->text;
}

#define train_bare(f, name, ...)                                                                   \
    do {                                                                                           \
        settings common = { BARE_RUN };                                                            \
        assert_ok(run_with(f, name, common, __VA_ARGS__));                                         \
    } while (0)

static double last_loss(test_folder *f, const char *run) {
    json_t *steps = logged_steps(f, run);
    double loss = logged_number(steps, json_array_size(steps) - 1, "loss");
    json_decref(steps);
    return loss;
}

static void a_run_that_names_none_has_the_recipe(void **state) {
    str text = { 0 };
    train_bare(*state, "run", (settings){ NULL });
    assert_string_equal(stated(*state, "run", "optimizer.recipe", &text), "fast");
    assert_string_equal(stated(*state, "run", "optimizer.name", &text), "muon");
    assert_string_equal(stated(*state, "run", "lr_scheduler.name", &text), "wsd");
    assert_string_equal(stated(*state, "run", "optimizer.lr_scaling_base_batch", &text), "2048");
    assert_non_null(strstr(stated(*state, "run", "optimizer.groups", &text), "match: embed"));
    /* what it printed is what it did: the same config gives the same run */
    char path[] = "run/config.yaml";
    config c;
    config_init(&c);
    assert_ok(config_load(&c, in_folder(*state, path)));
    assert_ok(config_set(&c, "run.dir", in_folder(*state, "again")));
    assert_ok(train_run(&c, &(train_options){ .quiet = true }));
    config_free(&c);
    assert_true(last_loss(*state, "run") == last_loss(*state, "again"));
    str_free(&text);
}

/* Opens the run in outline. @return the rule of its matrices */
static const char *rule_of(config *c, char *rules, size_t size) {
    train_outline o;
    int n;
    err e = train_outline_open(
        c, &(outline_options){ .ops = ops_cpu(OPS_ISA_BEST), .threads = 1, .ranks = 1 }, &o);
    assert_ok(e);
    const optim_group *g = optim_groups(o.o, &n);
    snprintf(rules, size, "%s", g[n - 1].rules);
    train_outline_free(&o);
    return rules;
}

static config bare_config(void) {
    settings common = { BARE_RUN };
    config c;
    config_init(&c);
    for (int i = 0; i + 1 < MOST_SETTINGS && common[i]; i += 2)
        assert_ok(config_set(&c, common[i], common[i + 1]));
    return c;
}

/* A value that is given keeps its meaning, also where it is the default's. */
static void any_option_of_the_optimizer_keeps_the_defaults(void **state) {
    (void)state;
    int tried = 0;
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i);
        bool schedules = str_starts(name, "lr_scheduler.");
        bool neither = !strcmp(name, "optimizer.recipe") || !strcmp(name, "optimizer.master") ||
                       !strcmp(name, "optimizer.offload");
        char rules[32];
        str text = { 0 };
        config c = bare_config();
        if (!config_has_effect(&c, i) || (!schedules && !str_starts(name, "optimizer."))) {
            config_free(&c);
            continue;
        }
        config_option_text(&c, i, &text);
        assert_ok(config_set(&c, name, text.text));
        const char *expected = neither ? "muon" : "adamw";
        if (strcmp(rule_of(&c, rules, sizeof rules), expected))
            fail_msg("with %s given the rule is %s, expected %s", name, rules, expected);
        tried++;
        str_free(&text);
        config_free(&c);
    }
    assert_true(tried > 10);
}

/* A group without parameters is an error: the recipe names those that a model has. */
static void every_preset_and_fact_has_a_recipe(void **state) {
    (void)state;
    static const char *const facts[][6] = {
        { "model.tie_embeddings", "true", "model.embedding_norm", "true" },
        { "model.tie_embeddings", "false", "model.embedding_norm", "true" },
        { "model.tie_embeddings", "false", "model.weightless_norms", "true" },
        { "model.tie_embeddings", "false", "model.value_embedding_step", "2" },
        { "model.weightless_norms", "true", "model.bias", "true" },
        { "model.weightless_norms", "true", "model.qkv_bias", "true" },
        { "model.weightless_norms", "true", "model.attention_output_bias", "true" },
        { "model.weightless_norms", "true", "model.mlp_bias", "true" },
        { "model.norm", "layer", "model.positions", "learned", "model.tie_embeddings", "false" },
        { "model.experts", "4", "model.weightless_norms", "true" },
        { "model.weightless_norms", "true", "model.layer_scalars", "true" },
        { "model.weightless_norms", "true", "model.backout", "true", "model.bias", "true" },
        { "model.layer_scalars", "true", "model.backout", "true" },
        { "model.weightless_norms", "true", "model.smear", "true" },
    };
    char rules[32];
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        config c = bare_config();
        for (int k = 0; k < 6 && facts[i][k]; k += 2)
            assert_ok(config_set(&c, facts[i][k], facts[i][k + 1]));
        assert_string_equal(rule_of(&c, rules, sizeof rules), "muon");
        config_free(&c);
    }
    for (int i = 0; model_preset_name(i); i++) {
        config c;
        config_init(&c);
        assert_ok(config_set(&c, "model.preset", model_preset_name(i)));
        assert_ok(config_set(&c, "device.kind", "cpu"));
        assert_ok(config_set(&c, "training.local_batch_size", "1"));
        assert_ok(config_set(&c, "training.seq_len", "64"));
        model_config mc;
        if (strcmp(model_preset_name(i), MODEL_CUSTOM)) {
            assert_ok(model_preset(model_preset_name(i), &mc));
            assert_string_equal(rule_of(&c, rules, sizeof rules),
                                model_count(&mc) < 4e9 ? "muon" : "adamw");
        }
        config_free(&c);
    }
}

static void a_continued_run_keeps_its_settings(void **state) {
    str text = { 0 };
    train_bare(*state, "whole", (settings){ NULL });
    train_bare(*state, "parts", (settings){ "training.stop", "3" });
    train_bare(*state, "parts", (settings){ NULL });
    assert_true(last_loss(*state, "whole") == last_loss(*state, "parts"));
    /* another rate alone: the rest is as it began */
    train_bare(*state, "parts", (settings){ "training.steps", "8", "optimizer.lr", "0.01" });
    assert_string_equal(stated(*state, "parts", "optimizer.name", &text), "muon");
    assert_string_equal(stated(*state, "parts", "optimizer.lr", &text), "0.01");
    assert_string_equal(stated(*state, "parts", "optimizer.muon_beta2", &text), "0.9");
    str_free(&text);
}

/* Removes the option from a manifest, under a right checksum. */
static void forget_recipe(const char *path) {
    json_t *doc;
    char hash[32];
    assert_ok(io_json_read(path, &doc));
    json_t *options = json_object_get(json_object_get(doc, "run"), "options");
    assert_int_equal(json_object_del(options, "optimizer.recipe"), 0);
    json_object_del(doc, "checksum");
    char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_bytes(text, strlen(text), 0));
    json_object_set_new(doc, "checksum", json_string(hash));
    assert_ok(io_json_write(path, doc));
    free(text);
    json_decref(doc);
}

/* Versions before the option wrote neither it nor the recipe's settings: such a run goes on with AdamW. */
static void a_run_of_an_earlier_version_keeps_its_optimizer(void **state) {
    str text = { 0 };
    const char *path = in_folder(*state, "old/checkpoints/step-00000003/manifest.json");
    settings plain = { BARE_RUN, "optimizer.recipe", "none" };
    assert_ok(run_with(*state, "old", plain, (settings){ "training.stop", "3" }));
    assert_ok(run_with(*state, "reference", plain, (settings){ NULL }));
    forget_recipe(path);
    train_bare(*state, "old", (settings){ NULL });
    assert_string_equal(stated(*state, "old", "optimizer.name", &text), "adamw");
    assert_true(last_loss(*state, "old") == last_loss(*state, "reference"));
    str_free(&text);
}

/* Rates of random weights would undo what trained ones have learned. */
static void trained_weights_keep_the_defaults(void **state) {
    str text = { 0 };
    train_bare(*state, "first", (settings){ NULL });
    train_bare(*state, "second",
               (settings){ "checkpoint.initial_load_path", in_folder(*state, "first") });
    assert_string_equal(stated(*state, "second", "optimizer.recipe", &text), "none");
    assert_string_equal(stated(*state, "second", "optimizer.name", &text), "adamw");
    str_free(&text);
}

/* The shortest runs, whose weights would otherwise decay by more than they are. */
static void a_run_of_one_step_has_the_recipe(void **state) {
    train_bare(*state, "one", (settings){ "training.steps", "1" });
    train_bare(*state, "few", (settings){ "training.steps", "3" });
}

#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_run_that_names_none_has_the_recipe),
        cmocka_unit_test(any_option_of_the_optimizer_keeps_the_defaults),
        cmocka_unit_test(every_preset_and_fact_has_a_recipe),
        T(a_continued_run_keeps_its_settings),
        T(a_run_of_an_earlier_version_keeps_its_optimizer),
        T(trained_weights_keep_the_defaults),
        T(a_run_of_one_step_has_the_recipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
