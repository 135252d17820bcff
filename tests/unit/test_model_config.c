/* From the options of the model section to a model, and what checkpoints record about it. */
#include "support/test.h"

#include "checkpoint/checkpoint.h"

enum { MOST_SETTINGS = 12 };
typedef const char *settings[MOST_SETTINGS]; /* name, value, ... */

static err read_model(settings own, model_config *out) {
    config c;
    config_init(&c);
    for (int i = 0; i + 1 < MOST_SETTINGS && own[i]; i += 2)
        assert_ok(config_set(&c, own[i], own[i + 1]));
    err e = model_from_config(&c, out);
    config_free(&c);
    return e;
}

static int count_params(const model_config *c, const char *ending) {
    model *m;
    int n = 0;
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &m));
    for (int i = 0; i < model_params(m); i++) {
        const char *name = model_param_at(m, i)->name;
        size_t len = strlen(name), end = strlen(ending);
        n += len >= end && !strcmp(name + len - end, ending);
    }
    model_free(m);
    return n;
}

static void check_refused(settings own, const char *with) {
    model_config c;
    err e = read_model(own, &c);
    assert_non_null(e);
    if (!strstr(err_message(e), with)) fail_msg("no \"%s\" in: %s", with, err_message(e));
    assert_true(err_remedy(e)[0] != 0);
    err_free(e);
}

/* ---- sizes ---------------------------------------------------------------------------------- */
/* These follow the width: the inner width in the preset's proportion, a multiple of 16, and the head size. */
static void sizes_follow_the_width(void **state) {
    model_config preset, c;
    assert_ok(read_model((settings){ "model.preset", "tiny" }, &preset));
    assert_ok(read_model(
        (settings){ "model.preset", "tiny", "model.dim", "100", "model.heads", "5" }, &c));
    assert_int_equal(c.ffn, (preset.ffn * 100 / preset.dim + 15) / 16 * 16);
    assert_int_equal(c.ffn % 16, 0);
    assert_true(preset.ffn * 100 / preset.dim % 16 != 0); /* so that rounding shows */
    assert_int_equal(c.head_dim, 20);
    assert_int_equal(c.kv_heads, 5);
}

/* ---- biases -------------------------------------------------------------------------------- */
static void bias_false_leaves_no_bias_in_the_model(void **state) {
    model_config c;
    assert_ok(read_model((settings){ "model.preset", "gpt-small" }, &c));
    assert_int_equal(count_params(&c, ".b"), c.layers * 8 + 1);
    assert_ok(read_model((settings){ "model.preset", "gpt-small", "model.bias", "false" }, &c));
    assert_int_equal(count_params(&c, ".b"), 0);
    assert_ok(read_model(
        (settings){ "model.preset", "gpt-small", "model.bias", "false", "model.norm_bias", "true" },
        &c));
    assert_int_equal(count_params(&c, ".b"), c.layers * 2 + 1);
    assert_ok(
        read_model((settings){ "model.preset", "gpt-small", "model.norm_bias", "false" }, &c));
    assert_int_equal(count_params(&c, "norm1.b") + count_params(&c, "norm.b"), 0);
    assert_int_equal(count_params(&c, "mlp.up.b"), c.layers);
}

/* A checkpoint of before model.norm_bias has biases in its layer norms, whatever model.bias is. */
static void older_checkpoints_keep_the_biases_of_their_norms(void **state) {
    model_config c, read;
    assert_ok(read_model((settings){ "model.preset", "gpt-small", "model.bias", "false" }, &c));
    json_t *o = model_to_json(&c);
    assert_ok(model_from_json(o, "new", &read));
    assert_int_equal(count_params(&read, ".b"), 0);
    assert_int_equal(json_object_del(o, "norm_bias"), 0);
    assert_ok(model_from_json(o, "old", &read));
    assert_int_equal(count_params(&read, ".b"), c.layers * 2 + 1);
    json_decref(o);
}

/* ---- rotary positions ---------------------------------------------------------------------- */
static void each_option_of_rope_scaling_counts_alone(void **state) {
    model_config c;
    assert_ok(read_model((settings){ "model.rope_scaling", "llama3" }, &c));
    assert_true(c.rope_scaling == ROPE_LLAMA3 && c.rope_factor == 8 && c.rope_low == 1);
    assert_true(c.rope_high == 4 && c.rope_original == 8192);
    assert_ok(read_model((settings){ "model.rope_scaling", "llama3", "model.rope_low_freq_factor",
                                     "2", "model.rope_high_freq_factor", "6",
                                     "model.rope_original_max_seq_len", "512" },
                         &c));
    assert_true(c.rope_factor == 8 && c.rope_low == 2);
    assert_true(c.rope_high == 6 && c.rope_original == 512);
    assert_ok(read_model(
        (settings){ "model.preset", "llama3-405b", "model.rope_scaling_factor", "32" }, &c));
    assert_true(c.rope_factor == 32 && c.rope_original == 8192);
}

static void a_rope_fraction_of_zero_is_refused(void **state) {
    check_refused((settings){ "model.rope_fraction", "0" }, "rope_fraction");
}

/* Dims rotate in pairs: part of an odd head can, all of it cannot. */
static void an_odd_head_does_not_rotate_whole(void **state) {
    model_config c;
    check_refused((settings){ "model.head_dim", "33" }, "odd");
    assert_ok(read_model((settings){ "model.head_dim", "33", "model.rope_fraction", "0.5" }, &c));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_the_width),
        cmocka_unit_test(bias_false_leaves_no_bias_in_the_model),
        cmocka_unit_test(older_checkpoints_keep_the_biases_of_their_norms),
        cmocka_unit_test(each_option_of_rope_scaling_counts_alone),
        cmocka_unit_test(a_rope_fraction_of_zero_is_refused),
        cmocka_unit_test(an_odd_head_does_not_rotate_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
