/* Optimizers, and what is measured of gradients, on several ranks. */
#include "support/layouts.h"

static void lion_does_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state, (settings){ "optimizer.name", "lion", "optimizer.lr", "0.0001" }, NULL,
                   0);
}

static void sgd_does_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state, (settings){ "optimizer.name", "sgd" }, NULL, 0);
}

/* With adaptive clipping, whose sums by row go the same way. At a higher rate the rounding of gradients
 * near zero, which Adafactor scales up to the size of all others, grows beyond the tolerance in 20 steps. */
static void adafactor_does_not_depend_on_the_layout(void **state) {
    agrees_everywhere(*state,
                      (settings){ "optimizer.name", "adafactor", "optimizer.lr", "0.002",
                                  "training.agc", "0.01", STEPS(20), "validation.every", "0" },
                      NULL, 0);
}

static void muon_does_not_depend_on_the_layout(void **state) {
    agrees_everywhere(*state,
                      (settings){ "optimizer.name", "muon", STEPS(20), "validation.every", "0" },
                      NULL, 0);
}

static bool measures_noise(test_folder *f, const char *name) {
    json_t *steps = logged_steps(f, name);
    bool measured = false;
    for (size_t k = 0; k < json_array_size(steps); k++)
        measured |= json_object_get(json_array_get(steps, k), "noise_scale") != NULL;
    json_decref(steps);
    return measured;
}

static void has_the_noise_of(test_folder *f, const char *base, settings own, const layout_case *l,
                             const char *name) {
    settings all;
    lay_out(all, own, l);
    assert_ok(run_on_ranks(f, name, small, all, l->ranks));
    same_as(f, base, name, l, "noise_scale", 1e-3);
}

/* The first half of a step's sequences is the same on every layout and for every microbatch: so is the noise scale. */
static void the_noise_scale_does_not_depend_on_the_layout(void **state) {
    static const layout_case rows[] = {
        { 1, "1", { NULL } },
        { 1, "8", { NULL } },
        { 2, "1", { "parallelism.zero_stage", "0" } },
        { 4, "2", { "parallelism.zero_stage", "1" } },
        { 4, "1", { "parallelism.tensor_parallel_degree", "2", "parallelism.zero_stage", "0" } },
        { 2, "1", { "parallelism.context_parallel_degree", "2", "parallelism.zero_stage", "0" } },
    };
    test_folder *f = *state;
    for (int tied = 0; tied < 2; tied++) {
        settings own = { "training.noise_scale",
                         "true",
                         STEPS(6),
                         "training.global_batch_size",
                         "16",
                         "model.tie_embeddings",
                         tied ? "true" : "false",
                         "validation.every",
                         "0",
                         "model.qk_norm",
                         tied ? "head" : "none" };
        const char *one = tied ? "tied" : "one";
        char name[NAME];
        assert_ok(run_on_ranks(f, one, small, own, 1));
        assert_true(measures_noise(f, one));
        for (size_t i = 0; i < COUNT_OF(layouts) + (SANITIZED ? 0 : COUNT_OF(rows)); i++) {
            snprintf(name, NAME, "%s%zu", one, i);
            has_the_noise_of(f, one, own,
                             i < COUNT_OF(layouts) ? &layouts[i] : &rows[i - COUNT_OF(layouts)],
                             name);
        }
    }
}

static void the_noise_scale_of_experts_does_not_depend_on_the_layout(void **state) {
    static const layout_case cases[] = {
        { 2, "2", { "parallelism.expert_parallel_degree", "2", "parallelism.zero_stage", "0" } },
        { 4, "1", { "parallelism.expert_parallel_degree", "2", "parallelism.zero_stage", "1" } },
        { 4, "2", { "parallelism.expert_parallel_degree", "2", "parallelism.zero_stage", "2" } },
        { 4, "1", { "parallelism.expert_parallel_degree", "4", "parallelism.zero_stage", "3" } },
    };
    settings own = { "training.noise_scale",
                     "true",
                     STEPS(6),
                     "training.global_batch_size",
                     "16",
                     "model.experts",
                     "4",
                     "model.expert_dim",
                     "16",
                     "validation.every",
                     "0" };
    assert_ok(run_on_ranks(*state, "one", small, own, 1));
    assert_true(measures_noise(*state, "one"));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[NAME];
        snprintf(name, NAME, "experts%zu", i);
        has_the_noise_of(*state, "one", own, &cases[i], name);
    }
}

/* A pipeline computes what these ranks compute without one: each list's gradients of the first half are read
 * before another adds to them, in whatever order the schedule runs the lists. A tied table has parts on both ends of the
 * pipeline; their sum is read. */
static void the_noise_scale_does_not_depend_on_the_schedule(void **state) {
    static const struct {
        layout_case plain;
        int ranks; /* of the pipeline of two stages */
        settings own;
    } cases[] = {
        { { 1, "4", { NULL } }, 2, { "parallelism.pipeline_parallel_schedule", "GPipe" } },
        { { 1, "4", { NULL } }, 2, { "parallelism.pipeline_parallel_schedule", "ZeroBubble" } },
        { { 1, "4", { NULL } },
          2,
          { "parallelism.pipeline_parallel_schedule", "Interleaved1F1B" } },
        { { 2, "4", { "parallelism.tensor_parallel_degree", "2" } },
          4,
          { "parallelism.pipeline_parallel_schedule", "ZeroBubble" } },
        { { 2, "2", { "parallelism.zero_stage", "1" } },
          4,
          { "parallelism.pipeline_parallel_schedule", "ZeroBubble" } },
        { { 2, "2", { "parallelism.zero_stage", "3" } },
          4,
          { "parallelism.pipeline_parallel_schedule", "GPipe" } },
        { { 2,
            "2",
            { "parallelism.zero_stage", "2", "model.experts", "4", "model.expert_dim", "16",
              "parallelism.expert_parallel_degree", "2" } },
          4,
          { "parallelism.pipeline_parallel_schedule", "1F1B" } },
    };
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(cases); i += SANITIZED ? 2 : 1) { /* each schedule once */
        settings common = {
            "training.noise_scale", "true", "training.global_batch_size", "16",
            "model.layers",         "5",    "model.tie_embeddings",       i % 3 ? "true" : "false",
            "model.qk_norm",        "head", "validation.every",           "0"
        };
        settings all;
        lay_out(all, common, &cases[i].plain);
        char name[NAME], base[NAME];
        snprintf(base, NAME, "plain%zu", i);
        assert_ok(run_on_ranks(f, base, small, all, cases[i].plain.ranks));
        int n = 0;
        while (all[n]) n++;
        all[n++] = "parallelism.pipeline_parallel_degree";
        all[n++] = "2";
        for (int k = 0; cases[i].own[k]; k++) all[n++] = cases[i].own[k];
        snprintf(name, NAME, "piped%zu", i);
        assert_ok(run_on_ranks(f, name, small, all, cases[i].ranks));
        const layout_case piped = { cases[i].ranks, "", { all[n - 2], all[n - 1] } };
        same_as(f, base, name, &piped, "noise_scale", 1e-3);
        assert_true(measures_noise(f, base));
    }
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        T(lion_does_not_depend_on_the_layout),
        T(sgd_does_not_depend_on_the_layout),
        T(adafactor_does_not_depend_on_the_layout),
        T(muon_does_not_depend_on_the_layout),
        T(the_noise_scale_does_not_depend_on_the_layout),
        T(the_noise_scale_of_experts_does_not_depend_on_the_layout),
        T(the_noise_scale_does_not_depend_on_the_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
