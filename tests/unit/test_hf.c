/* Hugging Face exchange: settings and weights that transformers wrote come in, go out again the
 * same, and what our models cannot do is refused. */
#include "support/folder.h"

#include "checkpoint/checkpoint.h"

/* ---- settings ---------------------------------------------------------------------------- */

/* What tests/fixtures/make.py asked transformers for. */
#define SMALL(EPS, SEQ, HEAD)                                                                      \
    .layers = 2, .dim = 32, .ffn = 36, .vocab = 80, .max_seq = SEQ, .heads = 4, .kv_heads = 2,     \
    .head_dim = HEAD, .rope_theta = 10000, .rope_fraction = 1, .norm_eps = EPS, .init_std = 0.02
static const struct {
    const char *folder, *family;
    model_config want;
} fixtures[] = {
    { "gpt2",
      "gpt2",
      { .layers = 2,
        .dim = 32,
        .ffn = 48,
        .vocab = 83,
        .max_seq = 24,
        .heads = 4,
        .kv_heads = 4,
        .head_dim = 8,
        .tied = true,
        .norm = NORM_LAYER,
        .mlp = MLP_GELU_TANH,
        .bias = true,
        .norm_bias = true,
        .pos = POS_LEARNED,
        .norm_eps = 1e-5,
        .init_std = 0.02 } },
    { "gpt_neox",
      "gpt_neox",
      { .layers = 2,
        .dim = 32,
        .ffn = 48,
        .vocab = 80,
        .max_seq = 64,
        .heads = 2,
        .kv_heads = 2,
        .head_dim = 16,
        .norm = NORM_LAYER,
        .mlp = MLP_GELU_ERF,
        .bias = true,
        .norm_bias = true,
        .parallel = true,
        .rope_theta = 10000,
        .rope_fraction = 0.25,
        .norm_eps = 1e-5,
        .init_std = 0.02 } },
    { "llama", "llama", { SMALL(1e-5, 64, 8) } },
    { "llama3",
      "llama",
      { SMALL(1e-5, 512, 8), .tied = true, .rope_scaling = ROPE_LLAMA3, .rope_factor = 8,
        .rope_low = 1, .rope_high = 4, .rope_original = 64 } },
    { "llama3_sharded",
      "llama",
      { SMALL(1e-5, 512, 8), .tied = true, .rope_scaling = ROPE_LLAMA3, .rope_factor = 8,
        .rope_low = 1, .rope_high = 4, .rope_original = 64 } },
    { "mistral", "mistral", { SMALL(1e-6, 64, 8), .window = 5 } },
    { "olmo2", "olmo2", { SMALL(1e-5, 64, 8), .norm_position = NORM_POST, .qknorm = QKNORM_FULL } },
    { "qwen2", "qwen2", { SMALL(1e-6, 64, 8), .qkv_bias = true } },
    { "qwen3", "qwen3", { SMALL(1e-6, 64, 12), .qknorm = QKNORM_HEAD } },
};

static void assert_same_config(const model_config *a, const model_config *b) {
    int i = model_config_diff(a, b, 0);
    if (i < 0) return;
    const model_fact *f = model_fact_at(i);
    fail_msg("%s: got %g, expected %g", f->name, model_fact_get(f, a), model_fact_get(f, b));
}

static void path_of(char *buf, size_t n, const char *folder) {
    snprintf(buf, n, "%s/%s", FIXTURES, folder);
}

static void reads_settings(void **state) {
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        char folder[512];
        model_config c;
        const hf_family *family, *found;
        path_of(folder, sizeof folder, fixtures[i].folder);
        assert_ok(hf_import_config(folder, &c, &family));
        assert_string_equal(hf_family_type(family), fixtures[i].family);
        assert_same_config(&c, &fixtures[i].want);
        assert_ok(hf_family_for(&c, NULL, &found));
        assert_ptr_equal(found, family);
    }
}

static void settings_round_trip(void **state) {
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        model_config c;
        const hf_family *family = hf_family_of(fixtures[i].family);
        assert_ok(hf_export_config(*state, family, &fixtures[i].want, DT_BF16));
        assert_ok(hf_import_config(*state, &c, &family));
        assert_string_equal(hf_family_type(family), fixtures[i].family);
        assert_same_config(&c, &fixtures[i].want);
    }
}

/* A small Llama's config.json with `keys` added. */
static err import_with(const char *dir, const char *keys, model_config *c) {
    char path[128], text[1024];
    const hf_family *family;
    snprintf(path, sizeof path, "%s/config.json", dir);
    int n = snprintf(text, sizeof text,
                     "{\"model_type\": \"llama\", \"max_position_embeddings\": 64, "
                     "\"hidden_size\": 32, \"num_hidden_layers\": 2, "
                     "\"num_attention_heads\": 4, \"intermediate_size\": 36%s}",
                     keys);
    assert_ok(io_write(path, text, (size_t)n));
    return hf_import_config(dir, c, &family);
}

#define VOCAB ", \"vocab_size\": 80"
static void older_files_are_read(void **state) {
    model_config c;
    assert_ok(import_with(*state, VOCAB, &c)); /* what is absent has the family's default */
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 8);
    assert_true(c.rope_theta == 10000 && c.norm_eps == 1e-6 && !c.tied &&
                c.rope_scaling == ROPE_PLAIN);
    assert_ok(import_with(*state,
                          VOCAB ", \"rope_theta\": 500000, \"head_dim\": null, \"rope_scaling\": "
                                "{\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
                                "\"high_freq_factor\": 4, "
                                "\"original_max_position_embeddings\": 8192}",
                          &c));
    assert_true(c.rope_theta == 500000 && c.rope_scaling == ROPE_LLAMA3 && c.rope_original == 8192);
    assert_ok(import_with(*state, VOCAB ", \"rope_scaling\": null", &c));
    assert_int_equal(c.rope_scaling, ROPE_PLAIN);
}

static const struct {
    const char *keys, *says;
} refused[] = {
    { "", "\"vocab_size\" is missing" },
    { ", \"vocab_size\": \"80\"", "expected a positive integer, got \"80\"" },
    { ", \"vocab_size\": 0", "a positive integer" },
    { ", \"vocab_size\": -3", "a positive integer" },
    { ", \"vocab_size\": 1e30", "a positive integer" },
    { ", \"vocab_size\": 9223372036854775807", "a positive integer" },
    { ", \"vocab_size\": null", "size of zero" },
    { VOCAB ", \"num_key_value_heads\": 3", "kv_heads" },
    { VOCAB ", \"rms_norm_eps\": true", "a number of at least 0" },
    { VOCAB ", \"tie_word_embeddings\": 1", "true or false" },
    { VOCAB ", \"hidden_act\": \"relu\"", "expected \"silu\", got \"relu\"" },
    { VOCAB ", \"mlp_bias\": true", "mlp_bias" },
    { VOCAB ", \"rope_scaling\": {\"rope_type\": \"yarn\"}", "got \"yarn\"" },
    { VOCAB ", \"rope_scaling\": {\"rope_type\": \"llama3\"}", "\"factor\" is missing" },
    { VOCAB ", \"rope_theta\": \"x\"", "a number" },
    { VOCAB ", \"partial_rotary_factor\": 0.5", "expected 1, got 0.5" },
    { VOCAB ", \"quantization_config\": {}", "quantised" },
};

static void other_settings_are_refused(void **state) {
    model_config c;
    const hf_family *family;
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        assert_error(import_with(*state, refused[i].keys, &c), refused[i].says);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", (char *)*state);
    assert_ok(io_write(path, "{\"model_type\": \"bert\"}", 22));
    err e = hf_import_config(*state, &c, &family);
    assert_non_null(strstr(err_remedy(e), "gpt_neox"));
    assert_error(e, "\"bert\" are not known");
    assert_ok(io_write(path, "{}", 2));
    assert_error(hf_import_config(*state, &c, &family), "model_type");
    assert_error(hf_import_config("/nonexistent", &c, &family), "/nonexistent/config.json");
}

static void families_refuse_what_they_lack(void **state) {
    const hf_family *family;
    model_config c = fixtures[2].want;
    c.mup = true;
    assert_error(hf_family_for(&c, NULL, &family), "no Hugging Face family");
    assert_error(hf_family_for(&c, "llama", &family), "no muP scales");
    c.mup = false;
    assert_error(hf_family_for(&c, "gpt2", &family), "learned positions");
    assert_error(hf_family_for(&c, "qwen2", &family), "biases of q, k and v");
    assert_error(hf_family_for(&c, "bert", &family), "not known");
    assert_error(hf_export_config(*state, hf_family_of("olmo2"), &c, DT_F32),
                 "models of type olmo2");
    c.window = 9;
    assert_ok(hf_family_for(&c, NULL, &family));
    assert_string_equal(hf_family_type(family), "mistral");
}

/* ---- weights ----------------------------------------------------------------------------- */

/* A model of a fixture with its weights, whole. */
typedef struct loaded {
    model *m;
    const hf_family *family;
    float **values;
} loaded;

static err keep(void *ctx, int i, const float *values) {
    loaded *l = ctx;
    const model_param *p = model_param_at(l->m, i);
    size_t n = (size_t)(p->dim[0] * (p->ndim == 2 ? p->dim[1] : 1)) * sizeof(float);
    l->values[i] = mem_alloc(n);
    memcpy(l->values[i], values, n);
    return OK;
}

static err give(void *ctx, int i, float *values) {
    loaded *l = ctx;
    const model_param *p = model_param_at(l->m, i);
    memcpy(values, l->values[i],
           (size_t)(p->dim[0] * (p->ndim == 2 ? p->dim[1] : 1)) * sizeof(float));
    return OK;
}

static err load(const model_config *c, const hf_family *family, const char *folder, loaded *l) {
    st_file *f;
    TRY(st_open(folder, &f));
    *l = (loaded){ .family = family };
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &l->m));
    l->values = mem_alloc((size_t)model_params(l->m) * sizeof *l->values);
    err e = hf_import_params(family, f, l->m, keep, l);
    st_close(f);
    return e;
}

static void unload(loaded *l) {
    for (int i = 0; l->m && i < model_params(l->m); i++) free(l->values[i]);
    free(l->values);
    model_free(l->m);
}

static const float *value_of(const loaded *l, const char *name) {
    int i = model_find_param(l->m, name);
    assert_true(i >= 0);
    return l->values[i];
}

static void weights_round_trip(void **state) {
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        char folder[512], out[128];
        loaded l;
        st_file *before, *after;
        path_of(folder, sizeof folder, fixtures[i].folder);
        snprintf(out, sizeof out, "%s/%s", (char *)*state, fixtures[i].folder);
        assert_ok(io_make_dirs(out));
        const hf_family *family = hf_family_of(fixtures[i].family);
        assert_ok(load(&fixtures[i].want, family, folder, &l));
        assert_ok(hf_export_params(family, out, l.m, DT_F32, i % 2 ? 20000 : 0, give, &l));
        assert_ok(st_open(folder, &before));
        assert_ok(st_open(out, &after));
        assert_int_equal(st_count(before), st_count(after));
        for (int k = 0; k < st_count(before); k++) {
            const st_tensor *a = st_at(before, k), *b;
            assert_ok(st_need(after, a->name, a->ndim, a->dim, &b));
            assert_string_equal(a->type, b->type);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        st_close(before);
        st_close(after);
        unload(&l);
    }
}

/* The layouts by index, said once more: a mistake made in both directions passes a round trip. */
static void layouts_are_as_documented(void **state) {
    loaded l;
    st_file *f;
    enum { D = 32, HEAD = 16 };
    assert_ok(load(&fixtures[0].want, hf_family_of("gpt2"), FIXTURES "/gpt2", &l));
    assert_ok(st_open(FIXTURES "/gpt2", &f));
    const float *hf = st_find(f, "transformer.h.1.attn.c_attn.weight")->data; /* [D, 3 D] */
    const float *bias = st_find(f, "transformer.h.1.attn.c_attn.bias")->data;
    for (int r = 0; r < D; r++) {
        for (int c = 0; c < D; c++) {
            assert_true(value_of(&l, "l1.attn.q")[r * D + c] == hf[c * 3 * D + r]);
            assert_true(value_of(&l, "l1.attn.k")[r * D + c] == hf[c * 3 * D + D + r]);
            assert_true(value_of(&l, "l1.attn.v")[r * D + c] == hf[c * 3 * D + 2 * D + r]);
        }
        assert_true(value_of(&l, "l1.attn.k.b")[r] == bias[D + r]);
    }
    st_close(f);
    unload(&l);

    assert_ok(load(&fixtures[1].want, hf_family_of("gpt_neox"), FIXTURES "/gpt_neox", &l));
    assert_ok(st_open(FIXTURES "/gpt_neox", &f));
    hf = st_find(f, "gpt_neox.layers.0.attention.query_key_value.weight")->data;
    bias = st_find(f, "gpt_neox.layers.0.attention.query_key_value.bias")->data;
    for (int j = 0; j < HEAD; j++) { /* rows: q0 k0 v0 q1 k1 v1, each of HEAD */
        assert_memory_equal(value_of(&l, "l0.attn.q") + j * D, hf + j * D, D * 4);
        assert_memory_equal(value_of(&l, "l0.attn.k") + j * D, hf + (HEAD + j) * D, D * 4);
        assert_memory_equal(value_of(&l, "l0.attn.q") + (HEAD + j) * D, hf + (3 * HEAD + j) * D,
                            D * 4);
        assert_memory_equal(value_of(&l, "l0.attn.v") + (HEAD + j) * D, hf + (5 * HEAD + j) * D,
                            D * 4);
        assert_true(value_of(&l, "l0.attn.k.b")[HEAD + j] == bias[4 * HEAD + j]);
    }
    st_close(f);
    unload(&l);
}

/* Copies a fixture's file under other names, with one tensor more or less. */
typedef struct copy {
    const st_file *from;
    const char *without; /* NULL: none */
    const char *with;    /* NULL: none */
    size_t prefix;       /* bytes to cut from names */
} copy;

static err fill_copy(void *ctx, int i, st_sink *s) {
    const copy *c = ctx;
    static const float four[4] = { 1, 2, 3, 4 };
    if (i >= st_count(c->from)) return st_emit(s, four, sizeof four);
    return st_emit(s, st_at(c->from, i)->data, st_at(c->from, i)->bytes);
}

static void write_copy(const char *path, const copy *c) {
    int n = st_count(c->from);
    st_spec *specs = mem_alloc((size_t)(n + 1) * sizeof *specs);
    for (int i = 0; i < n; i++) {
        const st_tensor *t = st_at(c->from, i);
        bool hide = c->without && strcmp(t->name, c->without) == 0;
        specs[i] = (st_spec){ .name = hide ? "h.0.attn.bias" : t->name + c->prefix,
                              .dt = t->dt,
                              .ndim = t->ndim };
        memcpy(specs[i].dim, t->dim, sizeof t->dim);
    }
    if (c->with) specs[n++] = (st_spec){ c->with, DT_F32, 2, { 2, 2 } };
    assert_ok(st_write(path, specs, n, NULL, 0, (st_source){ fill_copy, (void *)(uintptr_t)c }));
    free(specs);
}

static void files_of_other_shapes(void **state) {
    static const struct {
        const char *without, *with;
        size_t prefix;
        const char *says;
    } cases[] = {
        { NULL, NULL, 0, NULL },
        { NULL, NULL, sizeof "transformer." - 1, NULL }, /* as published: the bare model */
        { NULL, "h.0.attn.masked_bias", 0, NULL },       /* a buffer of older versions */
        { NULL, "lm_head.weight", 0, NULL },             /* a second copy of a tied table */
        { NULL, "transformer.h.0.adapter", 0, "no place in a gpt2 model" },
        { "transformer.ln_f.bias", NULL, 0, "no tensor \"transformer.ln_f.bias\"" },
    };
    char path[128];
    st_file *f;
    snprintf(path, sizeof path, "%s/%s", (char *)*state, ST_SINGLE_FILE);
    assert_ok(st_open(FIXTURES "/gpt2", &f));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        loaded l;
        write_copy(path, &(copy){ f, cases[i].without, cases[i].with, cases[i].prefix });
        err e = load(&fixtures[0].want, hf_family_of("gpt2"), *state, &l);
        if (cases[i].says)
            assert_error(e, cases[i].says);
        else
            assert_ok(e);
        unload(&l);
    }
    st_close(f);
}

static void shapes_must_agree(void **state) {
    loaded l;
    model_config c = fixtures[2].want;
    c.ffn = 40;
    assert_error(load(&c, hf_family_of("llama"), FIXTURES "/llama", &l), "expected shape [40, 32]");
    unload(&l);
    c = fixtures[0].want;
    c.vocab = 80;
    assert_error(load(&c, hf_family_of("llama"), FIXTURES "/llama", &l),
                 "llama have no parameter \"embed.positions\"");
    unload(&l);
}

int main(void) {
#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_settings),
        WITH_DIR(settings_round_trip),
        WITH_DIR(older_files_are_read),
        WITH_DIR(other_settings_are_refused),
        WITH_DIR(families_refuse_what_they_lack),
        WITH_DIR(weights_round_trip),
        cmocka_unit_test(layouts_are_as_documented),
        WITH_DIR(files_of_other_shapes),
        cmocka_unit_test(shapes_must_agree),
    };
    return cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
