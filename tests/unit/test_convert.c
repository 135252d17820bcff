/* Configs of other systems: values land in the right options, and files that are none are refused. What whole
 * files become is in tests/golden/convert; test_convert_keys.c is about single keys. */
#include "support/test.h"

#include "io/io.h"
#include "planning/planning.h"

static err convert_to(const char *text, const char *format, str *out) {
    str notes = { 0 };
    convert_options o = { .format = format };
    err e = convert_config(text, strlen(text), "x", &o, out, &notes);
    str_free(&notes);
    return e;
}

static char *convert(const char *text, const char *format) {
    str out = { 0 };
    assert_ok(convert_to(text, format, &out));
    return out.text;
}

static void assert_has(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("no \"%s\" in:\n%s", words, text);
}

static void units_and_defaults(void **state) {
    char *titan = convert("[training]\nenable_cpu_offload = true\n", "torchtitan");
    assert_has(titan, "offload_params: true"); /* and what its optimizer keeps */
    assert_has(titan, "offload: 1");
    free(titan);
    char *out = convert(
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 50257 --seq-length 128 --max-position-embeddings 128 "
        "--train-samples 1000 --lr 1e-3 --min-lr 1e-4 --rampup-batch-size 8 8 500 "
        "--lr-warmup-fraction .05",
        "megatron");
    assert_has(out, "vocab_size: 50304"); /* padded as Megatron does */
    assert_has(out, "steps: \"128000 tokens\"");
    assert_has(out, "min_lr_factor: 0.1");
    assert_has(out, "batch_ramp_start: 8");
    assert_has(out, "batch_ramp_increment: 8");
    assert_has(out, "batch_ramp: \"64000 tokens\"");
    assert_has(out, "warmup: 5%");
    assert_has(out, "positions: learned"); /* its default */
    assert_has(out, "tie_embeddings: true");
    assert_has(out, "ffn_dim: 256");
    free(out);
    out = convert(
        "model:\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n  multi_query_attention: true\n  mlp_hidden_size: 512\n"
        "  activation_type: swiglu\nmax_duration: 2ep\n",
        "olmo");
    assert_has(out, "kv_heads: 1");
    assert_has(out, "ffn_dim: 256");
    assert_has(out, "steps: \"2 epochs\"");
    free(out);
    out = convert("{\"max_steps\": 100, \"warmup_steps\": 30, \"warmup_ratio\": 0.0, "
                  "\"per_device_train_batch_size\": 2}",
                  "hf");
    assert_has(out, "warmup: 30"); /* the ratio is not set */
    free(out);
    out = convert("{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10}}", "deepspeed");
    assert_has(out, "dtype: fp16");
    assert_has(out, "loss_scale: 1024");
    free(out);
}

static void refusals(void **state) {
    static const struct {
        const char *format, *text, *complaint;
    } bad[] = {
        { "toml", "[training]", "is none of" },
        { "torchtitan", "[model]\nname = \"llama3\"\nflavor = \"9B\"\n", "no such preset" },
        { "torchtitan", "[training]\nsteps = { a = 1 }\n", "x:2: inline tables" },
        { "torchtitan", "[training\n", "x:1" },
        { "torchtitan", "[training]\nname = \"open\n", "x:2: a string does not end" },
        { "torchtitan", "[training]\nsteps = yes please\n", "x:2: a value" },
        { "torchtitan", "a = 1\na.b = 2\n", "both a table and a value" },
        { "deepspeed", "{\"train_batch_size\": ", "x:1" },
        { "deepspeed", "{\"train_batch_size\": -4}", "train_batch_size" },
        { "deepspeed",
          "{\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2, "
          "\"gradient_accumulation_steps\": 2}",
          "on any number of ranks" },
        { "olmo", "model: [1\n", "x:" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        str out = { 0 };
        assert_error(convert_to(bad[i].text, bad[i].format, &out), bad[i].complaint);
        str_free(&out);
    }
    str out = { 0 };
    assert_error(convert_to("hello", NULL, &out), "not recognized");
}

/* Whole, the value would have 10 x 2^40 characters. */
static void a_variable_that_doubles_is_bounded(void **state) {
    str script = { 0 }, out = { 0 };
    str_add(&script, "A=aaaaaaaaaa\n");
    for (int i = 0; i < 40; i++) str_add(&script, "A=$A${A}\n");
    str_add(&script, "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --lr $A\n");
    assert_error(convert_to(script.text, "megatron", &out), "lr");
    str_free(&out);
    str_free(&script);
}

static void toml(void **state) {
    json_t *doc = NULL;
    assert_ok(toml_to_json(
        "a = 1 # one\n[t.u]\nb = \"x # y\\n\"\nc = [1, 2,\n  3]\nd = 1_000.5\ne = true\n"
        "f.g = 'raw\\n'\n",
        "x", &doc));
    char *text = json_dumps(doc, JSON_SORT_KEYS | JSON_COMPACT);
    assert_string_equal(
        text, "{\"a\":1,\"t\":{\"u\":{\"b\":\"x # y\\n\",\"c\":[1,2,3],\"d\":1000.5,\"e\":true,"
              "\"f\":{\"g\":\"raw\\\\n\"}}}}");
    free(text);
    json_decref(doc);
    assert_error(toml_to_json("a = [1, [", "x", &doc), "x:1");
    str deep = { 0 };
    str_add(&deep, "a = ");
    for (int i = 0; i < 100000; i++) str_add(&deep, "[");
    assert_error(toml_to_json(deep.text, "x", &doc), "x:1");
    str_free(&deep);
}

/* Bytes changed, inserted, removed and repeated: an error or a config, never more than that. */
static void damage(str *s, rng_key key, uint64_t *drawn) {
    static const char *const pieces[] = { "[",   "{",  "\"", "\n", "=", ": ", "&a ",      "*a ",
                                          "1e9", "--", "#",  "- ", "'", "\\", "[[[[[[[[", "\xff" };
    for (uint64_t n = 1 + rng_below(key, (*drawn)++, 5); n; n--) {
        size_t at = rng_below(key, (*drawn)++, s->len + 1);
        size_t len = rng_below(key, (*drawn)++, 40);
        len = MIN(len, s->len - at);
        const char *piece = pieces[rng_below(key, (*drawn)++, COUNT_OF(pieces))];
        str out = { 0 };
        str_add_bytes(&out, s->text, at);
        uint64_t kind = rng_below(key, (*drawn)++, 4);
        if (kind == 0) str_add(&out, "%s", piece);
        if (kind == 1) str_add_bytes(&out, s->text + at, len); /* twice */
        if (kind == 2) len = 0;
        str_add_bytes(&out, s->text + at + (kind == 3 ? len : 0),
                      s->len - at - (kind == 3 ? len : 0));
        if (kind == 2) out.len = at; /* truncated */
        str_add(&out, "%s", "");
        out.text[out.len] = '\0';
        str_free(s);
        *s = out;
    }
}

/* An error says what is wrong with a file and where, not merely that nothing recognizes it. */
static void wrong_files_are_named(void **state) {
    static const struct {
        const char *name, *text, *says;
    } files[] = {
        { "a.json", "", "a.json:1" },
        { "a.json", "{\"zero_optimization\": {", "not valid JSON" },
        { "a.json", "[1, 2]", "not recognized" },
        { "a.toml", "[training]\nsteps = 10\nbatch_size = \n", "a.toml:3" },
        { "a.yaml", "model: [1\n", "a.yaml" },
        { "a.json", "{\"zero_optimization\": {\"stage\": 7}}", "from 0 to 3" },
        { "a.json", "{\"train_batch_size\": \"abc\", \"zero_optimization\": {\"stage\": 1}}",
          "train_batch_size" },
        { "a.json",
          "{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}, \"steps_per_print\": 9}",
          "both true" },
        { "a.json", "{\"optimizer\": {\"type\": \"OneBitAdam\"}, \"steps_per_print\": 9}",
          "OneBitAdam" },
        { "a.sh", "python pretrain_gpt.py --num-layers twelve --hidden-size 256", "twelve" },
    };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        str out = { 0 }, notes = { 0 };
        convert_options o = { .ranks = 8 };
        assert_error(
            convert_config(files[i].text, strlen(files[i].text), files[i].name, &o, &out, &notes),
            files[i].says);
        str_free(&out);
        str_free(&notes);
    }
}

static void damaged_files(void **state) {
    static const char *const files[][2] = {
        { "megatron.sh", "megatron" }, { "deepspeed.json", "deepspeed" },
        { "neox.yml", "neox" },        { "torchtitan.toml", "torchtitan" },
        { "olmo.yaml", "olmo" },       { "hf.json", "hf" },
    };
    enum { ROUNDS = 150 };
    rng_key key = rng_key_of(11, 0);
    uint64_t drawn = 0;
    int errors = 0, configs = 0;
    for (size_t i = 0; i < COUNT_OF(files); i++)
        for (int k = 0; k < ROUNDS; k++) {
            char path[256], *text = NULL;
            size_t len;
            str damaged = { 0 }, out = { 0 };
            snprintf(path, sizeof path, FIXTURES "/../golden/convert/%s", files[i][0]);
            assert_ok(io_read(path, 1 << 20, &text, &len));
            str_add_bytes(&damaged, text, len);
            damage(&damaged, key, &drawn);
            err e = convert_to(damaged.text, files[i][1], &out);
            *(e ? &errors : &configs) += 1;
            if (!e) assert_true(str_starts(out.text, "# From x"));
            err_free(e);
            str_free(&out);
            str_free(&damaged);
            free(text);
        }
    assert_true(errors > 100 && configs > 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_and_defaults),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_variable_that_doubles_is_bounded),
        cmocka_unit_test(toml),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
