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

static void a_growing_batch_and_longer_sequences_do_not_depend_on_the_layout(void **state) {
    agrees_everywhere(*state,
                      (settings){ "training.batch_ramp_start", "4", "training.batch_ramp", "50%",
                                  "training.seq_curriculum_start", "8",
                                  "training.global_batch_size", "16" },
                      "batch", 0);
}

/* A length in tokens ends in the same step, and intervals by the clock are rank 0's. */
static void lengths_in_tokens_and_time_do_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state,
                   (settings){ "training.steps", "1500 tokens", "validation.every", "0",
                               "metrics.detail_every", "0.001s", "checkpoint.every", "0.002s" },
                   "tokens", 0);
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

/* What only rank 0 can see, others learn of. */
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
        T(a_growing_batch_and_longer_sequences_do_not_depend_on_the_layout),
        T(lengths_in_tokens_and_time_do_not_depend_on_the_layout),
        T(expert_load_does_not_depend_on_the_layout),
        T(norms_do_not_depend_on_the_layout),
        T(a_rank_that_fails_ends_the_run),
        T(a_save_that_fails_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
