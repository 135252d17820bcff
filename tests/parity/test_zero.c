/* Options of ZeRO change time and memory alone: whole runs with them log the losses of one rank. */
#include "support/train.h"

#include <math.h>

static settings small = { SETTINGS_FOR_RANKS("3") };

static void same_losses(test_folder *f, const char *alone, const char *name, double within) {
    static const char *const keys[] = { "loss", "grad_norm", "val_loss" };
    json_t *one = logged_steps(f, alone), *many = logged_steps(f, name);
    assert_int_equal(json_array_size(one), json_array_size(many));
    for (size_t i = 0; i < json_array_size(one); i++)
        for (size_t k = 0; k < COUNT_OF(keys); k++) {
            if (!json_object_get(json_array_get(one, i), keys[k])) continue;
            double a = logged_number(one, i, keys[k]), b = logged_number(many, i, keys[k]);
            if (!(fabs(a - b) <= within * fabs(a)))
                fail_msg("%s: step %zu has %s %.8g, one rank %.8g", name, i + 1, keys[k], b, a);
        }
    json_decref(one);
    json_decref(many);
}

typedef struct zero_case {
    const char *name;
    int ranks;
    const char *rows; /* of each, so that microbatches of all ranks have four */
    double within;
    settings own;
} zero_case;

static void options_of_stage_3_log_the_same_losses(void **state) {
    static const zero_case cases[] = {
        { "kept", 2, "2", 1e-5, { "parallelism.fsdp_reshard_after_forward", "never" } },
        { "whole", 4, "1", 1e-5, { "parallelism.fsdp_persistence_threshold", "600" } },
        { "two ahead",
          4,
          "2",
          1e-5,
          { "parallelism.fsdp_prefetch", "2", "parallelism.tensor_parallel_degree", "2",
            "activation_checkpoint.mode", "full" } },
        { "none ahead",
          2,
          "2",
          1e-5,
          { "parallelism.fsdp_prefetch", "0", "parallelism.bucket_cap_mb", "1" } },
        { "gathered again for each microbatch",
          4,
          "2",
          1e-5,
          { "parallelism.fsdp_reshard_after_forward", "always",
            "parallelism.pipeline_parallel_degree", "2" } },
        { "narrow",
          2,
          "2",
          1e-2,
          { "parallelism.gather_dtype", "bf16", "parallelism.reduce_dtype", "bf16" } },
    };
    test_folder *f = *state;
    assert_ok(run_on_ranks(f, "one", small, (settings){ "training.local_batch_size", "4" }, 1));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        settings all = { "parallelism.zero_stage", "3", "training.local_batch_size",
                         cases[i].rows };
        for (int k = 0; cases[i].own[k]; k++) all[k + 4] = cases[i].own[k];
        assert_ok(run_on_ranks(f, cases[i].name, small, all, cases[i].ranks));
        same_losses(f, "one", cases[i].name, cases[i].within);
    }
}

/* Optimizer state in the host's memory, or in 8 bits, on every stage. */
static void state_elsewhere_logs_the_same_losses(void **state) {
    static const settings states[] = {
        { "optimizer.offload", "1" },
        { "optimizer.offload", "0.5", "optimizer.name", "adam8bit" },
        { "optimizer.name", "adam8bit" },
    };
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(states); i++) {
        settings own = { NULL };
        memcpy(own, states[i], sizeof own);
        int n = 0;
        while (own[n]) n++;
        own[n] = "training.local_batch_size";
        own[n + 1] = "4";
        char one[16];
        snprintf(one, sizeof one, "one%zu", i);
        assert_ok(run_on_ranks(f, one, small, own, 1));
        own[n + 1] = "2";
        own[n + 2] = "parallelism.zero_stage";
        for (int stage = 0; stage <= 3; stage++) {
            static const char *const text[] = { "0", "1", "2", "3" };
            char name[32];
            if (SANITIZED && (stage + (int)i) % 2) continue;
            own[n + 3] = text[stage];
            snprintf(name, sizeof name, "state%zu stage%d", i, stage);
            assert_ok(run_on_ranks(f, name, small, own, 2));
            same_losses(f, one, name, 1e-5);
        }
    }
}

/* Parameters in host memory, at every stage, with and without other things that use them. */
static void parameters_elsewhere_log_the_same_losses(void **state) {
    static const struct {
        int ranks;
        settings own;
    } cases[] = {
        { 2, { "parallelism.zero_stage", "0", "precision", "bf16" } },
        { 2, { "parallelism.zero_stage", "1", "optimizer.name", "muon" } },
        { 2, { "parallelism.zero_stage", "2", "optimizer.offload", "1", "training.agc", "0.01" } },
        { 2,
          { "parallelism.zero_stage", "3", "optimizer.name", "adam8bit", "precision", "bf16",
            "optimizer.master", "bf16" } },
        { 4,
          { "parallelism.zero_stage", "1", "parallelism.pipeline_parallel_degree", "2",
            "activation_checkpoint.mode", "full" } },
        { 4,
          { "parallelism.zero_stage", "3", "parallelism.tensor_parallel_degree", "2",
            "parallelism.fsdp_persistence_threshold", "100" } },
    };
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        settings own = { "training.local_batch_size", "2" };
        int n = 2;
        for (int k = 0; cases[i].own[k]; k++) own[n++] = cases[i].own[k];
        char here[16], host[16];
        snprintf(here, sizeof here, "here%zu", i);
        snprintf(host, sizeof host, "host%zu", i);
        assert_ok(run_on_ranks(f, here, small, own, cases[i].ranks));
        own[n++] = "training.offload_params";
        own[n++] = "true";
        assert_ok(run_on_ranks(f, host, small, own, cases[i].ranks));
        same_losses(f, here, host, 0);
    }
}

/* A checkpoint does not depend on where parameters were stored. */
static void a_run_continues_with_parameters_elsewhere(void **state) {
    test_folder *f = *state;
    settings here = { "training.local_batch_size", "2", "parallelism.zero_stage", "1" };
    settings host = { "training.local_batch_size", "2",    "parallelism.zero_stage", "1",
                      "training.offload_params",   "true", "training.stop",          "2" };
    assert_ok(run_on_ranks(f, "one", small, here, 2));
    assert_ok(run_on_ranks(f, "moved", small, host, 2));
    here[4] = "training.stop";
    here[5] = "4";
    assert_ok(run_on_ranks(f, "moved", small, here, 2));
    host[7] = "0";
    assert_ok(run_on_ranks(f, "moved", small, host, 2));
    same_losses(f, "one", "moved", 0);
}

static void what_needs_stage_3_is_refused_below(void **state) {
    static const settings wrong[] = {
        { "parallelism.fsdp_reshard_after_forward", "never" },
        { "parallelism.fsdp_prefetch", "2" },
        { "parallelism.fsdp_persistence_threshold", "100" },
        { "parallelism.gather_dtype", "bf16" },
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        err e = run_on_ranks(*state, "run", small, (const char **)wrong[i], 2);
        assert_error(e, wrong[i][0], "zero_stage=3");
    }
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        T(options_of_stage_3_log_the_same_losses),   T(state_elsewhere_logs_the_same_losses),
        T(parameters_elsewhere_log_the_same_losses), T(a_run_continues_with_parameters_elsewhere),
        T(what_needs_stage_3_is_refused_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
