/* Runs of one small model on several layouts, which log the same as on one rank.
 *
 *     agrees_everywhere(f, (settings){ "optimizer.name", "muon" }, NULL, 0);
 */
#ifndef INGOT_TESTS_LAYOUTS_H
#define INGOT_TESTS_LAYOUTS_H

#include "support/train.h"

#include <math.h>

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

/* Under sanitizers every run has three steps, and some models run on fewer layouts. */
#if SANITIZED
#define STEPS(n) "training.steps", "3"
#else
#define STEPS(n) "training.steps", #n
#endif

static settings small = { SETTINGS_FOR_RANKS("2"), STEPS(6), "training.local_batch_size", "4" };

/* The settings of a run on a layout. */
static inline void lay_out(settings to, const char *const *own, const layout_case *l) {
    int n = 0;
    memset(to, 0, sizeof(settings));
    for (int i = 0; own[i]; i++) to[n++] = own[i];
    for (int i = 0; l->layout[i]; i++) to[n++] = l->layout[i];
    to[n++] = "training.local_batch_size";
    to[n] = l->rows;
}

static inline void same_as(test_folder *f, const char *base, const char *name, const layout_case *l,
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
static inline void same_figures(test_folder *f, const char *name, const layout_case *l,
                                const char *key, double within) {
    same_as(f, "one", name, l, key, within);
}

enum { NAME = 16 };
static inline err run_on_layout(test_folder *f, settings own, size_t i, char name[NAME]) {
    settings all;
    snprintf(name, NAME, "run%zu", i);
    lay_out(all, own, &layouts[i]);
    return run_on_ranks(f, name, small, all, layouts[i].ranks);
}

/* Figures of a step that do not depend on the layout. */
static const char *const rounded_figures[] = { "loss", "grad_norm", "val_loss", "clipped" };
static const char *const exact_figures[] = { "step",     "tokens", "windows", "lr",
                                             "rejected", "epoch",  "batch",   "seq_len" };

/* A run with these settings logs the same on every layout. */
static inline void agrees_on(uint32_t which, test_folder *f, settings own, const char *key,
                             double within) {
    assert_ok(run_on_ranks(f, "one", small, own, 1));
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[NAME];
        if (!(which >> i & 1)) continue;
        assert_ok(run_on_layout(f, own, i, name));
        for (size_t k = 0; k < COUNT_OF(rounded_figures); k++)
            same_figures(f, name, &layouts[i], rounded_figures[k], 1e-5);
        for (size_t k = 0; k < COUNT_OF(exact_figures); k++)
            same_figures(f, name, &layouts[i], exact_figures[k], 0);
        if (key) same_figures(f, name, &layouts[i], key, within);
    }
}

#define ONE_LAYOUT(i) (1 << (i))
enum {
    ALL_LAYOUTS = (1 << COUNT_OF(layouts)) - 1,
    PIPELINE_AND_CONTEXT = ONE_LAYOUT(7) | ONE_LAYOUT(10), /* with tp, and ZeRO-2 and 3 */
    EACH_KIND = PIPELINE_AND_CONTEXT | ONE_LAYOUT(2) | ONE_LAYOUT(5), /* and HSDP, tp with ZeRO-3 */
#if SANITIZED
    WIDE_MODEL_LAYOUTS = PIPELINE_AND_CONTEXT, /* of models that take several times as long */
    SOME_LAYOUTS = PIPELINE_AND_CONTEXT
#else
    WIDE_MODEL_LAYOUTS = ALL_LAYOUTS,
    SOME_LAYOUTS = EACH_KIND
#endif
};

static inline void agrees_everywhere(test_folder *f, settings own, const char *key, double within) {
    agrees_on(ALL_LAYOUTS, f, own, key, within);
}

/* For what does not know of ranks by itself. */
static inline void agrees_on_some(test_folder *f, settings own, const char *key, double within) {
    agrees_on(SOME_LAYOUTS, f, own, key, within);
}

#endif
