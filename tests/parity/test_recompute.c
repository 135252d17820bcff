/* Recompute changes what is kept, never a bit of the result. */
#include "support/model.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recompute_is_bit_exact_for_llama),
        cmocka_unit_test(recompute_is_bit_exact_for_gpt2),
        cmocka_unit_test(recompute_is_bit_exact_for_neox),
        cmocka_unit_test(recompute_is_bit_exact_for_post_norm),
        cmocka_unit_test(recompute_is_bit_exact_for_fast_learner),
        cmocka_unit_test(recompute_is_bit_exact_for_newer_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
