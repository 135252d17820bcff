/* Weights and whole folders of Hugging Face models: layouts, files that differ from config.json, and
 * exports that appear complete or not at all. */
#include "support/hf.h"

#include "io/io.h"

static model_config small_mixed(void) {
    return (model_config){ SMALL(1e-6, 64, 8), SMALL_EXPERTS(6, 3), .qknorm = QKNORM_HEAD,
                           .expert_dim = 20, .first_dense = 1 };
}

/* ---- layouts ------------------------------------------------------------------------------ */
static void weights_go_out_as_they_came(void **state) {
    for (size_t i = 0; i < COUNT_OF(hf_fixtures); i++) {
        char out[128];
        loaded l;
        st_file *before, *after;
        const char *folder = fixture_path(i);
        snprintf(out, sizeof out, "%s/%s", (char *)*state, hf_fixtures[i].folder);
        assert_ok(io_make_dirs(out));
        const hf_family *family = hf_family_of(hf_fixtures[i].family);
        assert_ok(load_params(&hf_fixtures[i].want, family, folder, &l));
        assert_ok(hf_export_params(family, out, l.m, DT_F32, i % 2 ? 20000 : 0, give_param, &l));
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

/* A dense layer and one with experts, each with the parameters of its kind. */
static void mixed_layers_go_out_and_come_back(void **state) {
    model_config c = small_mixed();
    const hf_family *family = hf_family_of("qwen3_moe");
    loaded out = { .family = family }, in;
    assert_ok(model_new(&c, &(model_layout){ .dt = DT_F32 }, &out.m));
    out.values = mem_alloc((size_t)model_params(out.m) * sizeof *out.values);
    for (int i = 0; i < model_params(out.m); i++) {
        const model_param *p = model_param_at(out.m, i);
        out.values[i] = mem_alloc((size_t)(p->dim[0] * p->dim[1]) * sizeof(float));
        for (int64_t k = 0; k < p->dim[0] * p->dim[1]; k++)
            out.values[i][k] = (float)i + (float)k / 4096;
    }
    assert_ok(hf_export_params(family, *state, out.m, DT_F32, 0, give_param, &out));
    st_file *f;
    assert_ok(st_open(*state, &f));
    assert_non_null(st_find(f, "model.layers.0.mlp.gate_proj.weight"));
    assert_null(st_find(f, "model.layers.0.mlp.gate.weight"));
    assert_non_null(st_find(f, "model.layers.1.mlp.experts.0.gate_proj.weight"));
    st_close(f);
    assert_ok(load_params(&c, family, *state, &in));
    for (int i = 0; i < model_params(out.m); i++) {
        const model_param *p = model_param_at(out.m, i);
        if (p->role == ROLE_STATE) continue;
        assert_memory_equal(in.values[i], out.values[i],
                            (size_t)(p->dim[0] * p->dim[1]) * sizeof(float));
    }
    unload(&in);
    unload(&out);
}

/* The layouts by index, stated once more: a mistake made in both directions passes a round trip. */
static void layouts_are_as_documented(void **state) {
    loaded l;
    st_file *f;
    enum { D = 32, HEAD = 16 };
    assert_ok(load_params(&hf_fixtures[0].want, hf_family_of("gpt2"), FIXTURES "/gpt2", &l));
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

    assert_ok(
        load_params(&hf_fixtures[1].want, hf_family_of("gpt_neox"), FIXTURES "/gpt_neox", &l));
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

/* ---- files that differ -------------------------------------------------------------------- */
/* A fixture's file under other names, with one tensor more or less. */
typedef struct copy {
    const st_file *from;
    const char *without; /* NULL: none */
    const char *with;    /* NULL: none */
    size_t prefix;       /* bytes to strip from names */
    const st_tensor *of; /* whose values `with` has; NULL: [2, 2] of its own */
    float plus;          /* added to the first of them */
} copy;

static err fill_copy(void *ctx, int i, st_sink *s) {
    const copy *c = ctx;
    static const float four[4] = { 1, 2, 3, 4 };
    if (i < st_count(c->from)) return st_emit(s, st_at(c->from, i)->data, st_at(c->from, i)->bytes);
    if (!c->of) return st_emit(s, four, sizeof four);
    float first;
    memcpy(&first, c->of->data, sizeof first);
    first += c->plus;
    TRY(st_emit(s, &first, sizeof first));
    return st_emit(s, (const char *)c->of->data + sizeof first, c->of->bytes - sizeof first);
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
    if (c->with) specs[n] = (st_spec){ c->with, DT_F32, 2, { 2, 2 } };
    if (c->with && c->of) memcpy(specs[n].dim, c->of->dim, sizeof c->of->dim);
    n += c->with != NULL;
    assert_ok(st_write(path, specs, n, NULL, 0, (st_source){ fill_copy, (void *)(uintptr_t)c }));
    free(specs);
}

static void files_hold_what_config_json_describes(void **state) {
    st_file *f;
    assert_ok(st_open(FIXTURES "/gpt2", &f));
    const st_tensor *table = st_find(f, "transformer.wte.weight");
    const struct {
        copy how;
        const char *says;
    } cases[] = {
        { { f, NULL, NULL, 0, NULL, 0 }, NULL },
        { { f, NULL, NULL, sizeof "transformer." - 1, NULL, 0 }, NULL }, /* the bare model */
        { { f, NULL, "h.0.attn.masked_bias", 0, NULL, 0 }, NULL }, /* a buffer of older versions */
        { { f, NULL, "lm_head.weight", 0, table, 0 }, NULL },      /* the tied table once more */
        { { f, NULL, "lm_head.weight", 0, table, 1e-3f }, "config.json ties the two" },
        { { f, NULL, "lm_head.weight", 0, NULL, 0 }, "config.json ties the two" },
        { { f, NULL, "transformer.h.0.adapter", 0, NULL, 0 }, "has no tensor \"transformer.h.0." },
        { { f, "transformer.ln_f.bias", NULL, 0, NULL, 0 }, "\"transformer.ln_f.bias\"" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        loaded l;
        write_copy(in_folder(*state, ST_SINGLE_FILE), &cases[i].how);
        err e = load_params(&hf_fixtures[0].want, hf_family_of("gpt2"), *state, &l);
        if (cases[i].says)
            assert_error(e, cases[i].says);
        else
            assert_ok(e);
        unload(&l);
    }
    st_close(f);
}

static void pickles_are_refused_with_the_way_to_convert_them(void **state) {
    st_file *f;
    folder_write(*state, "pytorch_model.bin", "PK");
    err e = hf_open_weights(*state, &f);
    assert_non_null(strstr(err_remedy(e), "save_pretrained"));
    assert_error(e, "pytorch_model.bin");
}

static void shapes_must_agree(void **state) {
    loaded l;
    model_config c = hf_fixtures[2].want;
    c.ffn = 40;
    assert_error(load_params(&c, hf_family_of("llama"), FIXTURES "/llama", &l),
                 "expected shape [40, 32]");
    unload(&l);
    c = hf_fixtures[0].want;
    c.vocab = 80;
    assert_error(load_params(&c, hf_family_of("llama"), FIXTURES "/llama", &l),
                 "llama have no parameter \"embed.positions\"");
    unload(&l);
}

/* ---- biases ------------------------------------------------------------------------------- */
/* A model without biases, written as a family whose models have them. */
static void missing_biases_are_written_as_zeros(void **state) {
    static const int of[] = { 0, 1 }; /* gpt2, gpt_neox */
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        loaded l, plain, back;
        const hf_family *family = hf_family_of(hf_fixtures[of[i]].family);
        model_config c = hf_fixtures[of[i]].want, read;
        assert_ok(load_params(&c, family, fixture_path((size_t)of[i]), &l));
        c.bias = c.norm_bias = false;
        borrow_params(&c, &l, &plain);
        assert_true(model_params(plain.m) < model_params(l.m));
        assert_ok(hf_export_config(*state, family, &c, DT_F32, NO_TOKENS));
        assert_ok(hf_export_params(family, *state, plain.m, DT_F32, 0, give_param, &plain));
        assert_ok(hf_import_config(*state, &read, &family, NULL));
        assert_same_config(&read, &hf_fixtures[of[i]].want);
        assert_ok(load_params(&read, family, *state, &back));
        for (int k = 0; k < model_params(back.m); k++) {
            const model_param *p = model_param_at(back.m, k);
            int own = model_find_param(plain.m, p->name);
            for (int64_t e = 0; e < p->dim[0] * p->dim[1]; e++)
                assert_true(back.values[k][e] == (own < 0 ? 0 : plain.values[own][e]));
        }
        unload(&back);
        unload(&plain);
        unload(&l);
    }
}

/* ---- whole folders ------------------------------------------------------------------------ */
static hf_export export_of(loaded *l, const tokenizer *tok) {
    return (hf_export){
        .family = l->family, .m = l->m, .dt = DT_F32, .tok = tok, .get = give_param, .ctx = l
    };
}

static json_t *json_in(test_folder *f, const char *name) {
    json_t *doc;
    assert_ok(io_json_read(in_folder(f, name), &doc));
    return doc;
}

static void assert_number(test_folder *f, const char *file, const char *key, int64_t want) {
    json_t *doc = json_in(f, file), *v = json_object_get(doc, key);
    if (!json_is_integer(v) || json_integer_value(v) != want)
        fail_msg("%s: %s is not %lld", file, key, (long long)want);
    json_decref(doc);
}

static void an_export_holds_its_tokenizer_and_tokens(void **state) {
    test_folder *f = *state;
    loaded l;
    tokenizer *tok;
    assert_ok(load_params(&hf_fixtures[2].want, hf_family_of("llama"), FIXTURES "/llama", &l));
    assert_ok(tokenizer_open("bytes", NULL, &tok));
    hf_export x = export_of(&l, tok);
    assert_ok(hf_export_folder(in_folder(f, "out/"), &x));
    assert_number(f, "out/config.json", "eos_token_id", 256);
    assert_number(f, "out/config.json", "bos_token_id", 256);
    assert_number(f, "out/generation_config.json", "eos_token_id", 256);
    assert_number(f, "out/tokenizer_config.json", "model_max_length", 64);
    json_t *doc = json_in(f, "out/tokenizer_config.json");
    assert_string_equal(json_string_value(json_object_get(doc, "tokenizer_class")),
                        "PreTrainedTokenizerFast");
    assert_non_null(json_string_value(json_object_get(doc, "eos_token")));
    json_decref(doc);
    assert_true(io_exists(in_folder(f, "out/tokenizer.json")));
    /* tokens of the folder that was imported are kept where the tokenizer has them */
    tokenizer_free(tok);
    assert_ok(tokenizer_open(FIXTURES "/tokenizers/llama3.json", NULL, &tok));
    x = export_of(&l, tok);
    x.from = f->path;
    folder_write(f, "tokenizer_config.json",
                 "{\"bos_token\": \"a\", \"eos_token\": {\"content\": \"b\"}, \"auto_map\": 1}");
    assert_ok(hf_export_folder(in_folder(f, "out"), &x));
    assert_number(f, "out/config.json", "bos_token_id", tokenizer_find(tok, "a", 1));
    assert_number(f, "out/config.json", "eos_token_id", tokenizer_find(tok, "b", 1));
    doc = json_in(f, "out/tokenizer_config.json");
    assert_null(json_object_get(doc, "auto_map"));
    json_decref(doc);
    /* and so is the list of tokens that end a text, without a tokenizer too */
    x = export_of(&l, NULL);
    x.from = f->path;
    folder_write(f, "generation_config.json", "{\"eos_token_id\": [3, 4], \"top_p\": 0.5}");
    assert_ok(hf_export_folder(in_folder(f, "out"), &x));
    assert_number(f, "out/config.json", "eos_token_id", 3);
    doc = json_in(f, "out/generation_config.json");
    assert_int_equal(json_array_size(json_object_get(doc, "eos_token_id")), 2);
    assert_true(json_is_real(json_object_get(doc, "top_p")));
    json_decref(doc);
    folder_write(f, "generation_config.json", "{\"eos_token_id\": 0}"); /* an id like any other */
    assert_ok(hf_export_folder(in_folder(f, "out"), &x));
    assert_number(f, "out/config.json", "eos_token_id", 0);
    tokenizer_free(tok);
    unload(&l);
}

/* A failure leaves what was there; a success leaves nothing of it. */
static void an_export_replaces_a_folder_whole_or_not_at_all(void **state) {
    test_folder *f = *state;
    loaded l;
    tokenizer *tok;
    const char *out = in_folder(f, "out");
    assert_ok(load_params(&hf_fixtures[2].want, hf_family_of("llama"), FIXTURES "/llama", &l));
    assert_ok(tokenizer_open("bytes", NULL, &tok));
    hf_export x = export_of(&l, tok);
    x.max_file_bytes = 20000;
    assert_ok(hf_export_folder(out, &x));
    char *before = folder_read(f, "out/config.json");
    hf_export other = export_of(&l, NULL);
    other.family = hf_family_of("qwen3");
    assert_error(hf_export_folder(out, &other), "qwen3");
    l.values[3][7] = 1e5f;
    other = export_of(&l, NULL);
    other.dt = DT_F16;
    assert_error(hf_export_folder(out, &other), "element 7 is 100000, which fp16 cannot hold");
    char *after = folder_read(f, "out/config.json");
    assert_string_equal(before, after);
    assert_true(io_exists(in_folder(f, "out/" ST_INDEX_FILE)));
    assert_true(io_exists(in_folder(f, "out/tokenizer.json")));
    other.dt = DT_BF16;
    assert_ok(hf_export_folder(out, &other));
    assert_false(io_exists(in_folder(f, "out/" ST_INDEX_FILE)));
    assert_false(io_exists(in_folder(f, "out/tokenizer.json")));
    char **names; /* nothing else is left beside it */
    int n;
    assert_ok(io_list(f->path, &names, &n));
    assert_int_equal(n, 1);
    io_list_free(names, n);
    l.values[3][7] = NAN;
    assert_error(hf_export_folder(out, &other), "element 7 is nan");
    l.values[3][7] = 0;
    assert_error(hf_export_folder(in_folder(f, "out/."), &other), "as a whole");
    assert_error(hf_export_folder("/", &other), "as a whole");
    folder_write(f, "out/notes.txt", "mine");
    assert_error(hf_export_folder(out, &other), "notes.txt");
    assert_true(io_exists(in_folder(f, "out/notes.txt")));
    free(before);
    free(after);
    tokenizer_free(tok);
    unload(&l);
}

int main(void) {
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(weights_go_out_as_they_came),
        WITH_FOLDER(mixed_layers_go_out_and_come_back),
        cmocka_unit_test(layouts_are_as_documented),
        WITH_FOLDER(files_hold_what_config_json_describes),
        WITH_FOLDER(pickles_are_refused_with_the_way_to_convert_them),
        cmocka_unit_test(shapes_must_agree),
        WITH_FOLDER(missing_biases_are_written_as_zeros),
        WITH_FOLDER(an_export_holds_its_tokenizer_and_tokens),
        WITH_FOLDER(an_export_replaces_a_folder_whole_or_not_at_all),
    };
    return cmocka_run_group_tests_name("hf_folder", tests, NULL, NULL);
}
