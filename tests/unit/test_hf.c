/* config.json of Hugging Face models: what transformers wrote is read, goes out again the same, and
 * what our models do not have is refused. */
#include "support/hf.h"

#include <math.h>

static void what_transformers_wrote_is_read(void **state) {
    for (size_t i = 0; i < COUNT_OF(hf_fixtures); i++) {
        model_config c;
        const hf_family *family, *found;
        str unknown = { 0 };
        assert_ok(hf_import_config(fixture_path(i), &c, &family, &unknown));
        assert_string_equal(hf_family_type(family), hf_fixtures[i].family);
        assert_same_config(&c, &hf_fixtures[i].want);
        if (unknown.len) fail_msg("%s: unknown keys %s", hf_fixtures[i].folder, unknown.text);
        assert_ok(hf_family_for(&c, NULL, &found));
        assert_ptr_equal(found, family);
    }
}

static void what_is_written_is_read_the_same(void **state) {
    for (size_t i = 0; i < COUNT_OF(hf_fixtures); i++) {
        model_config c;
        const hf_family *family = hf_family_of(hf_fixtures[i].family);
        str unknown = { 0 };
        assert_ok(hf_export_config(*state, family, &hf_fixtures[i].want, DT_BF16, NO_TOKENS));
        assert_ok(hf_import_config(*state, &c, &family, &unknown));
        assert_string_equal(hf_family_type(family), hf_fixtures[i].family);
        assert_same_config(&c, &hf_fixtures[i].want);
        assert_int_equal(unknown.len, 0);
    }
}

/* ---- what files may hold ------------------------------------------------------------------ */
#define SIZES                                                                                      \
    ", \"max_position_embeddings\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 2, "           \
    "\"num_attention_heads\": 4, \"intermediate_size\": 36"
#define VOCAB    ", \"vocab_size\": 80"
#define KV_HEADS ", \"num_key_value_heads\": 2"
#define LLAMA3                                                                                     \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4"
#define ORIGINAL "\"original_max_position_embeddings\": 8192"

/* A small model's config.json with `keys` added. @param unknown may be NULL. */
static err import_with(test_folder *f, const char *type, const char *keys, model_config *c,
                       str *unknown) {
    char text[1024];
    const hf_family *family;
    snprintf(text, sizeof text, "{\"model_type\": \"%s\"%s%s}", type, SIZES, keys);
    folder_write(f, "config.json", text);
    return hf_import_config(f->path, c, &family, unknown);
}

static void what_is_absent_has_the_default_of_the_family(void **state) {
    model_config c;
    assert_ok(import_with(*state, "llama", VOCAB, &c, NULL));
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 8);
    assert_true(c.rope_theta == 10000 && c.norm_eps == 1e-6 && !c.tied);
    assert_int_equal(c.rope_scaling, ROPE_PLAIN);
    assert_ok(import_with(*state, "mistral", VOCAB KV_HEADS, &c, NULL));
    assert_int_equal(c.window, 4096);
    assert_ok(import_with(*state, "mixtral", VOCAB KV_HEADS, &c, NULL));
    assert_true(c.rope_theta == 1e6);
    assert_true(c.capacity_factor == 0 && c.balance_loss == 0.001);
    assert_ok(
        import_with(*state, "mistral", VOCAB KV_HEADS ", \"sliding_window\": null", &c, NULL));
    assert_int_equal(c.window, 0);
    assert_ok(import_with(*state, "qwen3", VOCAB KV_HEADS, &c, NULL));
    assert_int_equal(c.head_dim, 128);
    assert_ok(import_with(*state, "gpt_neox", VOCAB, &c, NULL));
    assert_true(c.rope_fraction == 0.25 && c.parallel);
}

static void both_forms_of_rope_are_read(void **state) {
    static const char *const forms[] = {
        ", \"rope_theta\": 5e5, \"rope_scaling\": {" LLAMA3 ", " ORIGINAL "}",
        ", \"rope_theta\": 5e5, \"rope_scaling\": {" LLAMA3 "}, " ORIGINAL,
        ", \"rope_parameters\": {\"rope_theta\": 5e5, " LLAMA3 ", " ORIGINAL "}",
        ", \"rope_theta\": 5e5, \"rope_parameters\": {" LLAMA3 ", " ORIGINAL "}",
        ", \"rope_theta\": 5e5, \"rope_parameters\": {" LLAMA3 ", " ORIGINAL
        "}, \"rope_scaling\": {" LLAMA3 ", " ORIGINAL "}",
    };
    model_config c;
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        char keys[800];
        snprintf(keys, sizeof keys, VOCAB "%s", forms[i]);
        assert_ok(import_with(*state, "llama", keys, &c, NULL));
        assert_true(c.rope_theta == 500000 && c.rope_scaling == ROPE_LLAMA3);
        assert_true(c.rope_factor == 8 && c.rope_original == 8192);
    }
    /* as Llama 4 Scout has it: no frequency is between the two bounds */
    assert_ok(import_with(*state, "llama",
                          VOCAB ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 16, "
                                "\"low_freq_factor\": 1, \"high_freq_factor\": 1, " ORIGINAL "}",
                          &c, NULL));
    for (int64_t j = 0; j < rope_dims(&c) / 2; j++) {
        double plain = rope_frequency(&c, j, 0), turns = 8192 * plain / (2 * acos(-1));
        assert_true(rope_frequency(&c, j, 1) == (turns > 1 ? plain : plain / 16));
    }
    assert_ok(import_with(*state, "llama", VOCAB ", \"rope_scaling\": null", &c, NULL));
    assert_int_equal(c.rope_scaling, ROPE_PLAIN);
    assert_ok(import_with(*state, "gpt_neox",
                          VOCAB ", \"rotary_emb_base\": 5e5, \"rotary_pct\": 0.5, "
                                "\"rope_theta\": 5e5, \"partial_rotary_factor\": 0.5",
                          &c, NULL));
    assert_true(c.rope_theta == 500000 && c.rope_fraction == 0.5);
}

/* Without "factor" the attention's follows from the two contexts; Phi-3's older files have other names of the scaling. */
static void long_rope_is_read_as_transformers_does(void **state) {
    static const char *const names[] = { "longrope", "su", "yarn" };
    model_config c;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char keys[800];
        snprintf(keys, sizeof keys,
                 VOCAB
                 ", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": \"%s\", "
                 "\"short_factor\": [1, 1.5, 2, 2.5], \"long_factor\": [1, 3, 5, 7.25]}",
                 names[i]);
        assert_ok(import_with(*state, "phi3", keys, &c, NULL));
        assert_int_equal(c.rope_scaling, ROPE_LONG);
        assert_true(c.rope_original == 16 && c.rope_factor == 4 && c.rope_long.of[3] == 7.25);
        assert_true(fabs(rope_factor_of(&c) - sqrt(1.5)) < 1e-15); /* ln 4 / ln 16 */
        for (int64_t j = 0; j < 4; j++) {
            double plain = rope_frequency(&c, j, 0);
            assert_true(rope_frequency(&c, j, 16) == plain / c.rope_short.of[j]);
            assert_true(rope_frequency(&c, j, 17) == plain / c.rope_long.of[j]);
        }
    }
}

static void other_names_of_the_same_are_read(void **state) {
    model_config c;
    assert_ok(import_with(*state, "llama", VOCAB ", \"hidden_act\": \"swish\"", &c, NULL));
    assert_int_equal(c.mlp, MLP_SWIGLU);
    assert_ok(import_with(*state, "gpt2", VOCAB, &c, NULL)); /* sizes under the common names */
    assert_true(c.dim == 32 && c.layers == 2 && c.heads == 4 && c.max_seq == 64 && c.ffn == 128);
}

static void layers_that_are_all_alike_are_read(void **state) {
    model_config c;
    assert_ok(import_with(*state, "qwen2",
                          VOCAB KV_HEADS ", \"layer_types\": [\"full_attention\", "
                                         "\"full_attention\"]",
                          &c, NULL));
    assert_ok(import_with(*state, "mistral",
                          VOCAB KV_HEADS ", \"sliding_window\": 5, \"layer_types\": "
                                         "[\"sliding_attention\", \"sliding_attention\"]",
                          &c, NULL));
    assert_int_equal(c.window, 5);
}

/* Dense layers come first, or alternate with those that have experts. */
static void dense_layers_among_experts_are_read_and_written(void **state) {
    model_config c, back;
    const hf_family *family;
    assert_ok(import_with(*state, "qwen3_moe",
                          VOCAB ", \"decoder_sparse_step\": 2, \"mlp_only_layers\": [0]", &c,
                          NULL));
    assert_true(c.layers == 2 && c.moe_step == 2 && c.first_dense == 1);
    assert_true(!model_has_experts(&c, 0) && model_has_experts(&c, 1));
    family = hf_family_of("qwen3_moe");
    assert_ok(hf_export_config(*state, family, &c, DT_BF16, NO_TOKENS));
    assert_ok(hf_import_config(*state, &back, &family, NULL));
    assert_same_config(&back, &c);
}

/* An expert_dim of 0 is the width of the dense layers: families that have a key for it need the number. */
static void experts_as_wide_as_dense_layers_are_written(void **state) {
    model_config c, back;
    const hf_family *family;
    assert_ok(import_with(*state, "qwen3_moe", VOCAB, &c, NULL));
    c.expert_dim = 0;
    family = hf_family_of("qwen3_moe");
    assert_ok(hf_export_config(*state, family, &c, DT_BF16, NO_TOKENS));
    assert_ok(hf_import_config(*state, &back, &family, NULL));
    assert_int_equal(back.expert_dim, c.ffn);
    assert_ok(import_with(*state, "mixtral", VOCAB KV_HEADS, &c, NULL));
    c.expert_dim = c.ffn;
    assert_ok(hf_export_config(*state, hf_family_of("mixtral"), &c, DT_BF16, NO_TOKENS));
    c.expert_dim = c.ffn / 2;
    assert_error(hf_export_config(*state, hf_family_of("mixtral"), &c, DT_BF16, NO_TOKENS),
                 "model.expert_dim");
}

static void unknown_keys_are_listed(void **state) {
    model_config c;
    str unknown = { 0 };
    assert_ok(import_with(*state, "llama",
                          VOCAB ", \"logit_softcap\": 30, \"use_cache\": true, \"x\": 1, "
                                "\"rope_parameters\": {\"beta_fast\": 32}",
                          &c, &unknown));
    assert_string_equal(unknown.text, "rope_parameters.beta_fast, logit_softcap, x");
    str_free(&unknown);
}

/* ---- what is refused ---------------------------------------------------------------------- */
#define BAD_VOCAB "expected a whole number from 1 to 16777216"
#define MIXED     ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"
static const struct {
    const char *type, *keys, *says;
} refused[] = {
    { "qwen3_moe", ", \"vocab_size\": 80, \"mlp_only_layers\": [1]", "the first layers in order" },
    { "qwen3_moe", ", \"vocab_size\": 80, \"mlp_only_layers\": 1", "the first layers in order" },
    { "qwen3_moe", ", \"vocab_size\": 80, \"decoder_sparse_step\": 0", "from 1 to 1024" },
    { "llama", "", "\"vocab_size\" is missing" },
    { "llama", ", \"vocab_size\": \"80\"", BAD_VOCAB "; got \"80\"" },
    { "llama", ", \"vocab_size\": 0", BAD_VOCAB },
    { "llama", ", \"vocab_size\": -3", BAD_VOCAB },
    { "llama", ", \"vocab_size\": 1e30", BAD_VOCAB },
    { "llama", ", \"vocab_size\": 9223372036854775807", BAD_VOCAB },
    { "llama", ", \"vocab_size\": null", BAD_VOCAB },
    { "llama", VOCAB ", \"num_key_value_heads\": 3", "kv_heads" },
    { "mistral", VOCAB, "kv_heads" }, /* transformers takes 8 where there is none */
    { "qwen2", VOCAB, "kv_heads" },   /* and 32 here */
    { "llama", VOCAB ", \"rms_norm_eps\": true", "a number from 0 to 1" },
    { "llama", VOCAB ", \"tie_word_embeddings\": 1", "true or false" },
    { "llama", VOCAB ", \"hidden_act\": \"relu\"", "gelu_python; got \"relu\"" },
    { "gpt_neox", VOCAB ", \"hidden_act\": \"silu\"", "gelu_fast" },
    { "qwen3_next", VOCAB ", \"hidden_act\": \"gelu\"", "\"hidden_act\"" },
    { "llama", VOCAB ", \"mlp_bias\": 1", "mlp_bias" },
    { "stablelm", VOCAB ", \"qk_layernorm\": true", "qk_layernorm" },
    { "falcon", VOCAB ", \"alibi\": true", "alibi" },
    { "olmo3", VOCAB ", \"layer_types\": [\"full_attention\"]", "a member for each layer" },
    { "olmo3", VOCAB ", \"layer_types\": [\"full_attention\", \"chunked_attention\"]", "layer 1" },
    { "olmo3", VOCAB ", \"rope_parameters\": {\"rope_theta\": 777.0}",
      "objects \"full_attention\"" },
    { "gemma2", VOCAB ", \"sliding_window\": null", "\"sliding_window\" is null" },
    { "smollm3", VOCAB ", \"no_rope_layers\": [1, 2]", "a list of 1 and 0" },
    { "cohere2", VOCAB ", \"sliding_window_pattern\": 0", "from 1 to 1024" },
    { "llama", VOCAB ", \"is_causal\": false", "\"is_causal\": expected true; got false" },
    { "gpt2", VOCAB ", \"is_causal\": false", "\"is_causal\"" },
    { "gpt2", VOCAB ", \"add_cross_attention\": true", "\"add_cross_attention\"" },
    { "gpt2", VOCAB ", \"n_embd\": 64", "two names of one key" },
    { "llama", VOCAB ", \"quantization_config\": {}", "quantization_config" },
    { "gpt_neox", VOCAB ", \"head_dim\": 16", "\"head_dim\": expected 8; got 16" },
    { "llama", VOCAB ", \"rope_scaling\": {\"rope_type\": \"proportional\"}",
      "got \"proportional\"" },
    { "llama", VOCAB ", \"rope_scaling\": {\"rope_type\": \"longrope\"}",
      "\"short_factor\" is missing" },
    { "llama",
      VOCAB ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 2, \"x\", 4], "
            "\"long_factor\": [1, 2, 3, 4]}",
      "\"short_factor\": expected a list" },
    { "llama",
      VOCAB ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 2, 3], "
            "\"long_factor\": [1, 2, 3, 4]}",
      "model.rope_short_factor: expected 4 numbers" },
    { "phi3", VOCAB ", \"rope_scaling\": {\"rope_type\": \"linear\"}", "got \"linear\"" },
    { "phi3", /* transformers has 4096 where the key is not at the top level */
      VOCAB ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 2, 3, 4], "
            "\"long_factor\": [1, 2, 3, 4], \"original_max_position_embeddings\": 16}",
      "two values of \"original_max_position_embeddings\"" },
    { "llama", VOCAB ", \"rope_scaling\": {\"rope_type\": \"llama3\"}", "\"factor\" is missing" },
    { "llama", VOCAB ", \"rope_scaling\": {" LLAMA3 "}", "\"original_max_position_embeddings\"" },
    { "llama", VOCAB ", \"rope_scaling\": {\"type\": \"x\", \"rope_type\": \"default\"}",
      "\"type\"" },
    { "llama", VOCAB ", \"rope_theta\": \"x\"", "a number" },
    { "llama", VOCAB ", \"partial_rotary_factor\": 0.5", "expected 1; got 0.5" },
    { "llama", VOCAB ", \"rope_theta\": 5e5, \"rope_parameters\": {\"rope_theta\": 1e4}",
      "\"rope_theta\" is 500000, but another key gives 10000" },
    { "gpt_neox", VOCAB ", \"rope_theta\": 5e5", "\"rope_theta\" is 500000" },
    { "gpt_neox", VOCAB ", \"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\" is 0.5" },
    { "llama",
      VOCAB ", \"rope_parameters\": {\"rope_theta\": 1e4}, \"rope_scaling\": {" LLAMA3 ", " ORIGINAL
            "}",
      "\"rope_parameters\" and \"rope_scaling\" differ" },
    { "llama",
      VOCAB ", \"rope_scaling\": {" LLAMA3 ", " ORIGINAL "}, "
            "\"original_max_position_embeddings\": 64",
      "two values of \"original_max_position_embeddings\"" },
    { "qwen3", VOCAB KV_HEADS ", \"rope_parameters\": {\"full_attention\": {}}", "between layers" },
    { "qwen2", VOCAB KV_HEADS MIXED, "layer 1" },
    { "qwen3", VOCAB KV_HEADS MIXED, "layer 1" },
    { "mistral", VOCAB KV_HEADS MIXED, "layer 0" },
    { "qwen2", VOCAB KV_HEADS ", \"use_sliding_window\": true", "use_sliding_window" },
};

static void what_our_models_lack_is_refused(void **state) {
    test_folder *f = *state;
    model_config c;
    const hf_family *family;
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        assert_error(import_with(f, refused[i].type, refused[i].keys, &c, NULL), refused[i].says);
    folder_write(f, "config.json", "{\"model_type\": \"bert\"}");
    err e = hf_import_config(f->path, &c, &family, NULL);
    assert_non_null(strstr(err_remedy(e), "gpt_neox"));
    assert_error(e, "\"bert\" are not supported");
    folder_write(f, "config.json", "{}");
    assert_error(hf_import_config(f->path, &c, &family, NULL), "model_type");
    assert_error(hf_import_config("/nonexistent", &c, &family, NULL), "/nonexistent/config.json");
}

/* A muP model is written with Granite's factors. */
static void mup_models_are_exported_as_granite(void **state) {
    const hf_family *family;
    model_config c = fixture_config(2), back;
    c.mup = true;
    c.mup_base = 8;
    assert_ok(hf_family_for(&c, NULL, &family));
    assert_string_equal(hf_family_type(family), "granite");
    assert_ok(hf_export_config(*state, family, &c, DT_F32, NO_TOKENS));
    assert_ok(hf_import_config(*state, &back, &family, NULL));
    assert_true(!back.mup && back.attention_scale == 1 && back.logit_scale == 0.25);
    assert_error(hf_family_for(&c, "llama", &family), "model.logit_scale=1; this one has 0.25");
}

/* ---- families ----------------------------------------------------------------------------- */
static void a_family_refuses_what_it_does_not_express(void **state) {
    const hf_family *family;
    model_config c = hf_fixtures[2].want;
    c.embedding_norm = true;
    err e = hf_family_for(&c, NULL, &family);
    assert_non_null(strstr(err_remedy(e), "--family=NAME"));
    assert_error(e, "has model.embedding_norm=false; this one has true");
    assert_error(hf_family_for(&c, "llama", &family),
                 "llama have model.embedding_norm=false; this one has true");
    c.embedding_norm = false;
    assert_error(hf_family_for(&c, "gpt2", &family), "model.kv_heads=4; this one has 2");
    assert_error(hf_family_for(&c, "bert", &family), "--family");
    assert_error(hf_export_config(*state, hf_family_of("olmo2"), &c, DT_F32, NO_TOKENS),
                 "olmo2 have model.norm_position=post; this one has pre, and model.qk_norm=full; "
                 "this one has none");
    c.window = 9;
    assert_error(hf_family_for(&c, "llama", &family), "model.sliding_window=0; this one has 9");
    assert_ok(hf_family_for(&c, NULL, &family));
    assert_string_equal(hf_family_type(family), "mistral");
}

/* Fixtures whose expected facts are what is read: test_pytorch compares what these compute. */
static const char *const read_fixtures[] = {
    "olmo3",    "smollm3", "granite", "phi3",          "starcoder2", "stablelm", "cohere2",
    "gemma2",   "gemma3",  "falcon",  "falcon_shared", "olmoe",      "glm4",     "qwen2_moe",
    "glm4_moe", "gpt_oss", "mpt",     "deepseek_v3",   "qwen3_next"
};

static model_config any_fixture(size_t i, const hf_family **family) {
    model_config c;
    if (i < COUNT_OF(hf_fixtures)) {
        *family = hf_family_of(hf_fixtures[i].family);
        return fixture_config(i);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/%s", FIXTURES, read_fixtures[i - COUNT_OF(hf_fixtures)]);
    assert_ok(hf_import_config(path, &c, family, NULL));
    return c;
}

static void newer_families_go_out_as_they_came(void **state) {
    for (size_t i = 0; i < COUNT_OF(read_fixtures); i++) {
        model_config back;
        const hf_family *family, *found;
        model_config c = any_fixture(COUNT_OF(hf_fixtures) + i, &family);
        char path[512];
        str unknown = { 0 };
        snprintf(path, sizeof path, "%s/%s", FIXTURES, read_fixtures[i]);
        assert_ok(hf_import_config(path, &back, &found, &unknown));
        if (unknown.len) fail_msg("%s: unknown keys %s", read_fixtures[i], unknown.text);
        assert_ok(hf_family_for(&c, NULL, &found)); /* two rows of one type may both fit */
        assert_string_equal(hf_family_type(found), hf_family_type(family));
        assert_ok(hf_export_config(*state, family, &c, DT_BF16, NO_TOKENS));
        assert_ok(hf_import_config(*state, &back, &found, &unknown));
        assert_int_equal(unknown.len, 0);
        assert_ptr_equal(found, family);
        assert_same_config(&back, &c);
    }
}

int main(void) {
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_transformers_wrote_is_read),
        WITH_FOLDER(what_is_written_is_read_the_same),
        WITH_FOLDER(what_is_absent_has_the_default_of_the_family),
        WITH_FOLDER(both_forms_of_rope_are_read),
        WITH_FOLDER(long_rope_is_read_as_transformers_does),
        WITH_FOLDER(other_names_of_the_same_are_read),
        WITH_FOLDER(layers_that_are_all_alike_are_read),
        WITH_FOLDER(dense_layers_among_experts_are_read_and_written),
        WITH_FOLDER(experts_as_wide_as_dense_layers_are_written),
        WITH_FOLDER(unknown_keys_are_listed),
        WITH_FOLDER(what_our_models_lack_is_refused),
        WITH_FOLDER(a_family_refuses_what_it_does_not_express),
        WITH_FOLDER(mup_models_are_exported_as_granite),
        WITH_FOLDER(newer_families_go_out_as_they_came),
    };
    return cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
