/* Whole runs on several ranks: the losses of one rank on every layout, whatever else a run does. */
#include "support/train.h"

#include <math.h>
#include <sys/stat.h>

typedef struct layout_case {
    int ranks;
    const char *
        rows; /* of each, so that microbatches of all ranks have four: a growing batch has whole ones */
    settings layout;
} layout_case;

enum { TENSOR_ALONE = 4 };
static const layout_case layouts[] = {
    { 2, "2", { "parallelism.zero_stage", "0" } },
    { 2, "2", { "parallelism.zero_stage", "1" } },
    { 4,
      "1",
      { "parallelism.zero_stage", "2", "parallelism.data_parallel_replicate_degree", "2" } },
    { 2, "2", { "parallelism.zero_stage", "3" } },
    { 4, "4", { "parallelism.tensor_parallel_degree", "4" } }, /* two ranks per key/value head */
    { 4, "2", { "parallelism.tensor_parallel_degree", "2", "parallelism.zero_stage", "3" } },
    { 2, "4", { "parallelism.context_parallel_degree", "2", "parallelism.zero_stage", "3" } },
    { 4,
      "4",
      { "parallelism.context_parallel_degree", "2", "parallelism.tensor_parallel_degree", "2",
        "parallelism.zero_stage", "2" } },
    { 4,
      "2",
      { "parallelism.context_parallel_degree", "2", "parallelism.context_parallel_mode", "ulysses",
        "parallelism.zero_stage", "1" } },
    { 2, "4", { "parallelism.pipeline_parallel_degree", "2" } },
    { 4,
      "2",
      { "parallelism.pipeline_parallel_degree", "2", "parallelism.pipeline_parallel_schedule",
        "GPipe", "parallelism.zero_stage", "3" } },
};
enum { FIRST_PIPELINE = COUNT_OF(layouts) - 2 };

static settings small = { SETTINGS_FOR_RANKS("2"), "training.local_batch_size", "4" };

/* The settings of a run on a layout. */
static void lay_out(settings to, const char *const *own, const layout_case *l) {
    int n = 0;
    memset(to, 0, sizeof(settings));
    for (int i = 0; own[i]; i++) to[n++] = own[i];
    for (int i = 0; l->layout[i]; i++) to[n++] = l->layout[i];
    to[n++] = "training.local_batch_size";
    to[n] = l->rows;
}

static void same_as(test_folder *f, const char *base, const char *name, const layout_case *l,
                    const char *key, double within) {
    json_t *one = logged_steps(f, base), *many = logged_steps(f, name);
    assert_int_equal(json_array_size(one), json_array_size(many));
    for (size_t i = 0; i < json_array_size(one); i++) {
        if (!json_object_get(json_array_get(one, i), key)) continue;
        double a = logged_number(one, i, key), b = logged_number(many, i, key);
        if (!(fabs(a - b) <= within * fabs(a)))
            fail_msg("%d ranks, %s %s: step %zu has %s %.8g, %s %.8g", l->ranks, l->layout[0],
                     l->layout[1], i + 1, key, b, base, a);
    }
    json_decref(one);
    json_decref(many);
}
static void same_figures(test_folder *f, const char *name, const layout_case *l, const char *key,
                         double within) {
    same_as(f, "one", name, l, key, within);
}

enum { NAME = 16 };
static err run_on_layout(test_folder *f, settings own, size_t i, char name[NAME]) {
    settings all;
    snprintf(name, NAME, "run%zu", i);
    lay_out(all, own, &layouts[i]);
    return run_on_ranks(f, name, small, all, layouts[i].ranks);
}

/* A run with these settings logs the same on every layout. */
static void agrees_on(uint32_t which, test_folder *f, settings own, const char *key,
                      double within) {
    assert_ok(run_on_ranks(f, "one", small, own, 1));
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        if (!(which >> i & 1)) continue;
        assert_ok(run_on_layout(f, own, i, name));
        same_figures(f, name, &layouts[i], "loss", 1e-5);
        same_figures(f, name, &layouts[i], "grad_norm", 1e-5);
        same_figures(f, name, &layouts[i], "val_loss", 1e-5);
        if (key) same_figures(f, name, &layouts[i], key, within);
    }
}

static void agrees_everywhere(test_folder *f, settings own, const char *key, double within) {
    agrees_on(~0u, f, own, key, within);
}

/* For what does not know of ranks by itself: HSDP, tensor, context and pipeline parallel, each with ZeRO. */
static void agrees_on_some(test_folder *f, settings own, const char *key, double within) {
    agrees_on(1u << 2 | 1u << 5 | 1u << 7 | 1u << 10, f, own, key, within);
}

static void every_layout_logs_the_same_losses(void **state) {
    agrees_everywhere(*state, (settings){ NULL }, NULL, 0);
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
    for (int i = 0; i < 4; i++) {
        static const size_t on[] = { 2, 5, 7, 10 };
        char name[NAME];
        snprintf(name, sizeof name, "run%zu", on[i]);
        same_figures(*state, name, &layouts[on[i]], "expert_drop", 1e-5);
    }
}

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
                                  "training.agc", "0.01", "training.steps", "20",
                                  "validation.every", "0" },
                      NULL, 0);
}
static void muon_does_not_depend_on_the_layout(void **state) {
    agrees_everywhere(
        *state,
        (settings){ "optimizer.name", "muon", "training.steps", "20", "validation.every", "0" },
        NULL, 0);
}

/* The norms that metrics take of each block count every element once. */
static void norms_do_not_depend_on_the_layout(void **state) {
    agrees_on_some(*state, (settings){ "metrics.detail_every", "2" }, "param_norm", 1e-6);
}

/* In bf16 sums of another order round differently. */
static void bf16_stays_close_on_every_layout(void **state) {
    test_folder *f = *state;
    settings bf16 = { "precision", "bf16" };
    assert_ok(run_on_ranks(f, "one", small, bf16, 1));
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        assert_ok(run_on_layout(f, bf16, i, name));
        same_figures(f, name, &layouts[i], "loss", 3e-3);
        same_figures(f, name, &layouts[i], "grad_norm", 1e-2);
    }
}

/* Layers whose shards fp8 GEMMs take. Scales are those of one rank, so that losses are too, but for the order
 * of sums: under tensor parallelism bf16 results are summed, and those near the middle of two codes take
 * the other one. */
static void fp8_stays_close(test_folder *f, const char *recipe) {
    settings fp8 = { "precision",      "bf16", "precision.fp8", recipe, "model.dim",        "64",
                     "model.head_dim", "16",   "model.ffn_dim", "64",   "validation.every", "3" };
    assert_ok(run_on_ranks(f, "one", small, fp8, 1));
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        assert_ok(run_on_layout(f, fp8, i, name));
        double within = i < TENSOR_ALONE ? 3e-4 : 3e-3;
        same_figures(f, name, &layouts[i], "loss", within);
        same_figures(f, name, &layouts[i], "grad_norm", 10 * within);
        same_figures(f, name, &layouts[i], "val_loss", within);
    }
}
static void fp8_current_stays_close_on_every_layout(void **state) {
    fp8_stays_close(*state, "current");
}
static void fp8_delayed_stays_close_on_every_layout(void **state) {
    fp8_stays_close(*state, "delayed");
}

static bool measures_noise(test_folder *f, const char *name) {
    json_t *steps = logged_steps(f, name);
    bool measured = false;
    for (size_t k = 0; k < json_array_size(steps); k++)
        measured |= json_object_get(json_array_get(steps, k), "noise_scale") != NULL;
    json_decref(steps);
    return measured;
}

/* Of what is smaller than a batch there is more than one kind (the gradient of a rank, of all ranks'
 * first microbatch), so that the estimates differ; each is a number of the same size. Tensor-parallel ranks
 * and those of a pipeline have no batches of their own: theirs is that of one rank. */
static void the_noise_scale_is_measured_on_every_layout(void **state) {
    test_folder *f = *state;
    settings own = { "training.noise_scale",       "true", "training.steps",       "12",
                     "training.global_batch_size", "16",   "model.tie_embeddings", "false" };
    assert_ok(run_on_ranks(f, "one", small, own, 1));
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        assert_ok(run_on_layout(f, own, i, name));
        if (i == TENSOR_ALONE || i == FIRST_PIPELINE)
            same_figures(f, name, &layouts[i], "noise_scale", 1e-3);
        assert_true(measures_noise(f, name));
    }
}

/* A pipeline computes what these ranks compute without one: each list's gradients of the first microbatch are read
 * before another adds to them, in whatever order the schedule runs the lists, and of a tied table, of which both
 * ends have a part, their sum is. */
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
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
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
        T(lion_does_not_depend_on_the_layout),
        T(sgd_does_not_depend_on_the_layout),
        T(adafactor_does_not_depend_on_the_layout),
        T(muon_does_not_depend_on_the_layout),
        T(norms_do_not_depend_on_the_layout),
        T(bf16_stays_close_on_every_layout),
        T(fp8_current_stays_close_on_every_layout),
        T(fp8_delayed_stays_close_on_every_layout),
        T(the_noise_scale_is_measured_on_every_layout),
        T(the_noise_scale_does_not_depend_on_the_schedule),
        T(a_rank_that_fails_ends_the_run),
        T(a_save_that_fails_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
