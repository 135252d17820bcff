/* Whole runs on several ranks: the losses of one rank on every layout, whatever else a run does. */
#include "support/layouts.h"

#include <sys/stat.h>

static void every_layout_logs_the_same_losses(void **state) {
    agrees_on(ALL_LAYOUTS, *state, (settings){ NULL }, NULL, 0);
}

static void dropout_clipping_and_recompute_do_not_depend_on_the_layout(void **state) {
    agrees_everywhere(*state,
                      (settings){ "model.dropout", "0.2", "model.attention_dropout", "0.1",
                                  "training.max_norm", "0.3", "activation_checkpoint", "full",
                                  "model.tie_embeddings", "true" },
                      "clipped", 1e-5);
}

/* Several microbatches, evaluation and updates of the factors. */
static void carried_values_do_not_depend_on_the_layout(void **state) {
    settings own = {
        "model.layers",
        "3",
        "model.layer_scalars",
        "true",
        "model.backout",
        "true",
        "model.smear",
        "true",
        "training.global_batch_size",
        "8",
        "optimizer.groups",
        "[{match: mix.residual, lr: 0.001}, {match: \"*mix*\", lr: 0.05}, {match: \"smear.*\", lr: 0.05}]"
    };
    agrees_everywhere(*state, own, NULL, 0);
}

/* Stages of GPipe send all microbatches on before the first comes back, and with each the values that it carries: more messages
 * than may be under way at a time. */
static void stages_send_any_number_of_microbatches(void **state) {
    test_folder *f = *state;
    static const char *const carries[] = { "false", "true" };
    for (size_t k = 0; k < COUNT_OF(carries); k++) {
        settings common = { SETTINGS_FOR_RANKS("4"),
                            "training.global_batch_size",
                            "40",
                            "training.local_batch_size",
                            "1",
                            "model.layer_scalars",
                            carries[k],
                            "model.backout",
                            carries[k] };
        settings stages = { "parallelism.pipeline_parallel_degree", "2",
                            "parallelism.pipeline_parallel_schedule", "GPipe" };
        char one[8], many[8];
        snprintf(one, sizeof one, "one%zu", k);
        snprintf(many, sizeof many, "many%zu", k);
        assert_ok(run_on_ranks(f, one, common, (settings){ NULL }, 1));
        assert_ok(run_on_ranks(f, many, common, stages, 2));
        json_t *x = logged_steps(f, one), *y = logged_steps(f, many);
        assert_int_equal(json_array_size(x), json_array_size(y));
        for (size_t i = 0; i < json_array_size(x); i++) {
            double a = logged_number(x, i, "loss"), b = logged_number(y, i, "loss");
            if (!(fabs(a - b) <= 1e-5 * a)) fail_msg("step %zu: %.8g, one rank %.8g", i, b, a);
        }
        json_decref(x);
        json_decref(y);
    }
}

static void a_growing_batch_and_longer_sequences_do_not_depend_on_the_layout(void **state) {
    agrees_everywhere(*state,
                      (settings){ "training.batch_ramp_start", "4", "training.batch_ramp", "50%",
                                  "training.seq_curriculum_start", "8",
                                  "training.global_batch_size", "16" },
                      "batch", 0);
}

/* Rows whose longest documents differ, so that ranks see different ones. */
static void the_longest_document_does_not_depend_on_the_layout(void **state) {
    enum { DOCUMENTS = 300, LONGEST = 16 };
    test_folder *f = *state;
    str text = { 0 };
    rng_key key = rng_key_of(5, 0);
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        uint64_t n = 3 + rng_below(key, 2 * i, LONGEST);
        for (uint64_t k = 0; k < n; k++)
            str_add(&text, "%c", (char)('a' + rng_below(key, (i + 1) << 20 | k, 26)));
        str_add(&text, "\n%s\n", TEXT_SEPARATOR);
    }
    const char *path = folder_write(f, "documents.txt", text.text);
    str_free(&text);
    agrees_on_some(f,
                   (settings){ "data.train", path, "data.guard", "false",
                               "training.seq_curriculum_start", "20", "training.seq_curriculum",
                               "50%", "validation.every", "0" },
                   NULL, 0);
}

static void a_staged_batch_of_aligned_documents_does_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state,
                   (settings){ "training.batch_schedule",
                               "[{batch: 4, until: 1}, {batch: 8, until: 2}]", "data.packing",
                               "aligned", "data.documents", "true", "training.global_batch_size",
                               "16" },
                   "batch", 0);
}

/* A length in tokens ends in the same step, and intervals by the clock are rank 0's. */
static void lengths_in_tokens_and_time_do_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state,
                   (settings){ "training.steps", "1500 tokens", "validation.every", "0",
                               "metrics.detail_every", "0.001s", "checkpoint.every", "0.002s" },
                   "tokens", 0);
}

/* Interleaved1F1B runs groups of as many microbatches as there are stages: steps of a ramp and the last step of a
 * length in tokens are rounded up to whole groups, and no step is refused in mid-run. */
static void interleaved_steps_are_whole_groups(void **state) {
    test_folder *f = *state;
    enum { GROUP = 2 * 2, WINDOWS = 47 };
    settings own = { "parallelism.pipeline_parallel_degree",
                     "2",
                     "parallelism.pipeline_parallel_schedule",
                     "Interleaved1F1B",
                     "model.layers",
                     "4",
                     "training.local_batch_size",
                     "2",
                     "training.steps",
                     "1500 tokens",
                     "training.batch_ramp_start",
                     "2",
                     "training.batch_ramp",
                     "60%" };
    assert_ok(run_on_ranks(f, "run", small, own, 2));
    json_t *steps = logged_steps(f, "run");
    size_t n = json_array_size(steps);
    double all = 0;
    for (size_t i = 0; i < n; i++) {
        double batch = logged_number(steps, i, "batch");
        assert_true(fmod(batch, GROUP) == 0);
        if (i > 0 && i + 1 < n) assert_true(batch >= logged_number(steps, i - 1, "batch"));
        all += batch;
    }
    assert_true(logged_number(steps, 0, "batch") == GROUP);
    assert_true(all == ceil(WINDOWS / (double)GROUP) * GROUP);
    json_decref(steps);
}

/* The sizes of a ramp are those of the config; a layout that cannot divide them is refused. */
static void a_ramp_that_the_layout_does_not_divide_is_refused(void **state) {
    static const struct {
        const char *start, *increment, *rows, *words;
    } cases[] = {
        { "6", "0", "2", "training.batch_ramp_start is 6 sequences, which" },
        { "4", "6", "2", "training.batch_ramp_increment is 6 sequences, which" },
        { "4", "8", "2", "which do not divide the 12 from training.batch_ramp_start" },
        { "0", "4", "2", "it needs training.batch_ramp_start" },
        { "100 tokens", "0", "2", "training.batch_ramp_start is 3 sequences, which" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        settings own = { "training.batch_ramp_start",     cases[i].start,
                         "training.batch_ramp_increment", cases[i].increment,
                         "training.local_batch_size",     cases[i].rows,
                         "training.global_batch_size",    "16" };
        assert_error(run_on_ranks(*state, "no", small, own, 2), cases[i].words);
    }
}

/* Layouts whose microbatches have other sizes take the same steps. */
static void the_ramp_does_not_depend_on_the_microbatch(void **state) {
    static const struct {
        int ranks;
        const char *rows;
    } cases[] = { { 1, "1" }, { 1, "2" }, { 1, "4" }, { 2, "1" }, { 2, "2" }, { 4, "1" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[NAME];
        layout_case l = { cases[i].ranks, "", { "training.local_batch_size", cases[i].rows } };
        settings own = { "training.batch_ramp_start",  "4",          "training.batch_ramp", "70%",
                         "training.global_batch_size", "24",         "training.steps",      "9",
                         "training.local_batch_size",  cases[i].rows };
        snprintf(name, NAME, i ? "ramp%zu" : "one", i);
        assert_ok(run_on_ranks(*state, name, small, own, cases[i].ranks));
        if (!i) continue;
        same_figures(*state, name, &l, "batch", 0);
        same_figures(*state, name, &l, "loss", 1e-5);
    }
}

/* @return the texts of a run's samples; owned. */
static char *sampled_text(test_folder *f, const char *run) {
    char path[64], *next = NULL;
    str all = { 0 };
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    char *events = folder_read(f, path);
    for (char *line = strtok_r(events, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        if (strstr(line, "\"event\":\"sample\"")) str_add(&all, "%s\n", strstr(line, "\"text\""));
    free(events);
    return all.text;
}

/* Every rank generates the whole text, also where ranks divide the tokens that they train on. A sequence of 32
 * tokens is shorter than the chunks that prompts run in. */
static void generated_text_does_not_depend_on_the_layout(void **state) {
    test_folder *f = *state;
    settings own = { "sample.every",     "3",
                     "sample.tokens",    "20",
                     "validation.every", "0",
                     "sample.prompt",    "The quick brown fox jumps over the lazy dog. " };
    assert_ok(run_on_ranks(f, "one", small, own, 1));
    char *one = sampled_text(f, "one");
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        assert_ok(run_on_layout(f, own, i, name));
        char *many = sampled_text(f, name);
        assert_string_equal(many, one);
        free(many);
    }
    free(one);
}

/* Every layer's experts count, whichever stage has them; with dense layers among them, so that stages differ. */
static void expert_load_does_not_depend_on_the_layout(void **state) {
    settings own = {
        "model.experts",    "4", "model.expert_dim",         "8", "model.capacity_factor", "0.75",
        "model.layers",     "3", "model.first_dense_layers", "1", "model.router_bias",     "true",
        "validation.every", "0"
    };
    agrees_on_some(*state, own, "expert_load", 1e-5);
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        if (!(SOME_LAYOUTS >> i & 1)) continue;
        snprintf(name, sizeof name, "run%zu", i);
        same_figures(*state, name, &layouts[i], "expert_drop", 1e-5);
    }
}

/* The norms that metrics take of each block count every element once. */
static void norms_do_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state, (settings){ "metrics.detail_every", "2" }, "param_norm", 1e-6);
}

/* One rank's error is the run's. */
static void a_rank_that_fails_ends_the_run(void **state) {
    test_folder *f = *state;
    settings own = { "optimizer.lr",   "1000", "training.max_norm",          "0",
                     "training.steps", "60",   "training.global_batch_size", "16" };
    assert_error(run_on_ranks(f, "bad", small, own, 4), "the loss is");
}

/* The other ranks learn of what only rank 0 can see. */
static void a_save_that_fails_ends_the_run(void **state) {
    test_folder *f = *state;
    assert_ok(run_on_ranks(f, "run", small, (settings){ "training.stop", "1" }, 1));
    settings own = { "checkpoint.initial_load_path", in_folder(f, "run") };
    assert_int_equal(mkdir(in_folder(f, "new"), 0700), 0);
    folder_write(f, "new/checkpoints", "in the way");
    assert_error(run_on_ranks(f, "new", small, own, 2), "checkpoints");
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        T(every_layout_logs_the_same_losses),
        T(dropout_clipping_and_recompute_do_not_depend_on_the_layout),
        T(carried_values_do_not_depend_on_the_layout),
        T(stages_send_any_number_of_microbatches),
        T(a_growing_batch_and_longer_sequences_do_not_depend_on_the_layout),
        T(the_longest_document_does_not_depend_on_the_layout),
        T(a_staged_batch_of_aligned_documents_does_not_depend_on_the_layout),
        T(lengths_in_tokens_and_time_do_not_depend_on_the_layout),
        T(interleaved_steps_are_whole_groups),
        T(a_ramp_that_the_layout_does_not_divide_is_refused),
        T(the_ramp_does_not_depend_on_the_microbatch),
        T(generated_text_does_not_depend_on_the_layout),
        T(expert_load_does_not_depend_on_the_layout),
        T(norms_do_not_depend_on_the_layout),
        T(a_rank_that_fails_ends_the_run),
        T(a_save_that_fails_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
