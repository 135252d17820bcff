/* Runs in bf16 and fp8 on several ranks: as close to one rank as rounding lets them be. */
#include "support/layouts.h"

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
        if (!(WIDE_MODEL_LAYOUTS >> i & 1)) continue;
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

/* A tied table is read by the embedding and by the head. Where their types differ it is kept in fp32, as if both had
 * asked for it: the embedding's result has the residual's type anyway. */
static void a_tied_head_computes_in_its_own_type(void **state) {
    static const char *const modules[] = { "", "head=fp32", "embed=fp32,head=fp32" };
    double loss[COUNT_OF(modules)];
    for (size_t i = 0; i < COUNT_OF(modules); i++) {
        char name[NAME];
        snprintf(name, NAME, "modules%zu", i);
        assert_ok(run_on_ranks(*state, name, small,
                               (settings){ "precision", "bf16", "precision.modules", modules[i],
                                           "model.tie_embeddings", "true" },
                               1));
        json_t *steps = logged_steps(*state, name);
        loss[i] = logged_number(steps, 1, "loss");
        json_decref(steps);
    }
    assert_true(loss[1] != loss[0]);
    assert_true(loss[1] == loss[2]);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        T(bf16_stays_close_on_every_layout),
        T(a_tied_head_computes_in_its_own_type),
        T(fp8_current_stays_close_on_every_layout),
        T(fp8_delayed_stays_close_on_every_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
