/* GGUF files, read back by a reader that knows the format alone: header, metadata, names, shapes, offsets, and every
 * element where llama.cpp expects it. */
#include "support/hf.h"

#include "io/io.h"

#include <math.h>

typedef struct gguf_tensor {
    char name[64];
    uint32_t ndim, type;
    uint64_t dim[4], count;
    const uint8_t *data;
} gguf_tensor;

typedef struct gguf_file {
    char *bytes;
    size_t len, at;
    gguf_tensor t[256];
    uint64_t n;
    uint64_t context, heads, tokens, merges;
    char architecture[256];
} gguf_file;

static uint64_t take(gguf_file *f, int bytes) {
    uint64_t v = 0;
    assert_true(f->at + (size_t)bytes <= f->len);
    for (int i = 0; i < bytes; i++) v |= (uint64_t)(uint8_t)f->bytes[f->at++] << 8 * i;
    return v;
}
static void take_text(gguf_file *f, char *out, size_t cap) {
    uint64_t n = take(f, 8);
    assert_true(f->at + n <= f->len);
    snprintf(out, cap, "%.*s", (int)n, f->bytes + f->at);
    f->at += n;
}
static uint64_t take_value(gguf_file *f, uint64_t type, char *text, size_t cap) {
    if (type == 8) {
        take_text(f, text, cap);
        return 0;
    }
    assert_true(type == 4 || type == 5 || type == 6 || type == 7);
    return take(f, type == 7 ? 1 : 4);
}

static void read_pair(gguf_file *f) {
    char key[128], text[256] = "";
    take_text(f, key, sizeof key);
    uint64_t type = take(f, 4), value = 0;
    if (type == 9) {
        uint64_t of = take(f, 4), n = take(f, 8);
        for (uint64_t i = 0; i < n; i++) take_value(f, of, text, sizeof text);
        if (strcmp(key, "tokenizer.ggml.tokens") == 0) f->tokens = n;
        if (strcmp(key, "tokenizer.ggml.merges") == 0) f->merges = n;
        return;
    }
    value = take_value(f, type, text, sizeof text);
    if (str_ends(key, ".context_length")) f->context = value;
    if (str_ends(key, ".attention.head_count")) f->heads = value;
    if (strcmp(key, "general.architecture") == 0)
        snprintf(f->architecture, sizeof f->architecture, "%s", text);
}

static void gguf_read(const char *path, gguf_file *f) {
    memset(f, 0, sizeof *f);
    assert_ok(io_read(path, 1 << 28, &f->bytes, &f->len));
    assert_memory_equal(f->bytes, "GGUF", 4);
    f->at = 4;
    assert_int_equal(take(f, 4), 3);
    f->n = take(f, 8);
    assert_in_range(f->n, 1, COUNT_OF(f->t));
    for (uint64_t pairs = take(f, 8); pairs; pairs--) read_pair(f);
    uint64_t offset[COUNT_OF(f->t)];
    for (uint64_t i = 0; i < f->n; i++) {
        gguf_tensor *t = &f->t[i];
        take_text(f, t->name, sizeof t->name);
        t->ndim = (uint32_t)take(f, 4);
        t->count = 1;
        for (uint32_t k = 0; k < t->ndim; k++) t->count *= t->dim[k] = take(f, 8);
        t->type = (uint32_t)take(f, 4);
        offset[i] = take(f, 8);
        assert_int_equal(offset[i] % 32, 0);
    }
    size_t data = align_up(f->at, 32);
    for (uint64_t i = 0; i < f->n; i++) {
        f->t[i].data = (uint8_t *)f->bytes + data + offset[i];
        assert_true(data + offset[i] < f->len);
    }
}

static const gguf_tensor *find_tensor(const gguf_file *f, const char *name) {
    for (uint64_t i = 0; i < f->n; i++)
        if (strcmp(f->t[i].name, name) == 0) return &f->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static double element(const gguf_tensor *t, int64_t i) {
    float x;
    switch (t->type) {
    case 0: memcpy(&x, t->data + 4 * i, 4); return x;
    case 1: dt_to_f32(DT_F16, t->data + 2 * i, &x, 1); return x;
    case 30: dt_to_f32(DT_BF16, t->data + 2 * i, &x, 1); return x;
    case 8:
        dt_to_f32(DT_F16, t->data + i / 32 * 34, &x, 1);
        return x * (double)(int8_t)t->data[i / 32 * 34 + 2 + i % 32];
    default: fail_msg("type %u", t->type); return 0;
    }
}

static err export_loaded(const loaded *l, const char *path, gguf_type type) {
    tokenizer *tok = NULL;
    assert_ok(tokenizer_open("bytes", NULL, &tok));
    hf_export x = {
        .family = l->family, .m = l->m, .tok = tok, .get = give_param, .ctx = (void *)l
    };
    err e = gguf_export_file(path, &x, type);
    tokenizer_free(tok);
    return e;
}

/* Row r of a head's q or k as llama.cpp's type llama has it: pairs that rotate together are neighbors. */
static int64_t paired_row(int64_t r, int64_t head) {
    int64_t in = r % head, half = head / 2;
    return r - in + (in < half ? 2 * in : 2 * (in - half) + 1);
}

/* Compares parameter `ours` with rows [first, ...) of a tensor. */
static void expect_param(const loaded *l, const gguf_file *f, const char *ours, const char *theirs,
                         int64_t first, bool paired, double error) {
    int at = model_find_param(l->m, ours);
    const gguf_tensor *t = find_tensor(f, theirs);
    assert_true(at >= 0);
    const model_param *p = model_param_at(l->m, at);
    int64_t cols = p->ndim == 2 ? p->dim[1] : 1;
    if (p->ndim == 2) assert_int_equal(t->dim[0], cols);
    for (int64_t r = 0; r < p->dim[0]; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t to = first + (paired ? paired_row(r, model_conf(l->m)->head_dim) : r);
            double want = l->values[at][r * cols + c], got = element(t, to * cols + c);
            if (fabs(got - want) > error * fmax(1e-3, fabs(want)))
                fail_msg("%s: row %lld column %lld is %g in %s; expected %g", ours, (long long)r,
                         (long long)c, got, theirs, want);
        }
}

static void every_family_is_written_where_llama_cpp_reads(void **state) {
    int written = 0;
    for (size_t i = 0; i < COUNT_OF(hf_fixtures); i++) {
        char path[128];
        loaded l;
        gguf_file f;
        const hf_family *family = hf_family_of(hf_fixtures[i].family);
        const model_config *c = &hf_fixtures[i].want;
        assert_ok(load_params(c, family, fixture_path(i), &l));
        snprintf(path, sizeof path, "%s", in_folder(*state, "m.gguf"));
        err e = export_loaded(&l, path, GGUF_F32);
        if (e) { /* refused with the fact that llama.cpp does not compute */
            assert_true(c->tied || c->experts || c->rope_scaling != ROPE_PLAIN);
            assert_non_null(strstr(err_message(e), "llama.cpp reads no"));
            err_free(e);
            unload(&l);
            continue;
        }
        written++;
        gguf_read(path, &f);
        assert_int_equal(f.tokens, c->vocab);
        assert_int_equal(f.heads, c->heads);
        assert_int_equal(f.context, c->window ? MIN(c->window, c->max_seq) : c->max_seq);
        bool fused = c->norm == NORM_LAYER, llama = strcmp(f.architecture, "llama") == 0;
        int64_t width = c->heads * c->head_dim;
        expect_param(&l, &f, "embed.tokens", "token_embd.weight", 0, false, 0);
        expect_param(&l, &f, "norm.w", "output_norm.weight", 0, false, 0);
        expect_param(&l, &f, "l1.attn.q", fused ? "blk.1.attn_qkv.weight" : "blk.1.attn_q.weight",
                     0, llama, 0);
        expect_param(&l, &f, "l1.attn.k", fused ? "blk.1.attn_qkv.weight" : "blk.1.attn_k.weight",
                     fused ? width : 0, llama, 0);
        expect_param(&l, &f, "l1.attn.v", fused ? "blk.1.attn_qkv.weight" : "blk.1.attn_v.weight",
                     fused ? 2 * width : 0, false, 0);
        if (c->experts) {
            int64_t rows = c->expert_dim ? c->expert_dim : c->ffn;
            expect_param(&l, &f, "l1.expert2.up", "blk.1.ffn_up_exps.weight", 2 * rows, false, 0);
            expect_param(&l, &f, "l1.expert2.down", "blk.1.ffn_down_exps.weight", 2 * c->dim, false,
                         0);
        } else
            expect_param(&l, &f, "l0.mlp.down", "blk.0.ffn_down.weight", 0, false, 0);
        free(f.bytes);
        unload(&l);
    }
    assert_true(written >= 6);
}

/* A model with a value of its own in every place. */
static void fill_params(const model_config *c, const hf_family *family, loaded *l) {
    *l = (loaded){ .family = family };
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &l->m));
    l->values = mem_alloc((size_t)model_params(l->m) * sizeof *l->values);
    for (int i = 0; i < model_params(l->m); i++) {
        const model_param *p = model_param_at(l->m, i);
        int64_t n = p->dim[0] * p->dim[1];
        l->values[i] = mem_alloc((size_t)n * sizeof(float));
        for (int64_t k = 0; k < n; k++) l->values[i][k] = (float)(i * 100000 + k);
    }
}

/* The model of a fixture, whose values fill_params sets, and a file of it. */
typedef struct filled {
    model_config c;
    const hf_family *family;
    char path[128];
    loaded l;
    gguf_file f;
} filled;

static void open_fixture(void **state, const char *folder, filled *m) {
    char from[512];
    snprintf(from, sizeof from, "%s/%s", FIXTURES, folder);
    snprintf(m->path, sizeof m->path, "%s", in_folder(*state, "m.gguf"));
    assert_ok(hf_import_config(from, &m->c, &m->family, NULL));
}

static void expect_refused(filled *m, const char *words) {
    fill_params(&m->c, m->family, &m->l);
    assert_error(export_loaded(&m->l, m->path, GGUF_F32), words);
    unload(&m->l);
}

static void write_and_read(filled *m) {
    fill_params(&m->c, m->family, &m->l);
    assert_ok(export_loaded(&m->l, m->path, GGUF_F32));
    gguf_read(m->path, &m->f);
}

static void close_filled(filled *m) {
    free(m->f.bytes);
    unload(&m->l);
}

/* Families of fixtures, but for facts that llama.cpp lacks, which are refused. */
static void newer_families_are_written_where_llama_cpp_reads(void **state) {
    static const struct {
        const char *family;
        bool paired;
        const char *ours, *theirs;
        const char *architecture; /* NULL: the family's name */
    } cases[] = {
        { "granite", true, "l1.mlp.gate", "blk.1.ffn_gate.weight" },
        { "smollm3", true, "l1.mlp.gate", "blk.1.ffn_gate.weight" },
        { "olmoe", false, "l1.expert0.gate", "blk.1.ffn_gate_exps.weight" },
        { "starcoder2", false, "l1.mlp.up.b", "blk.1.ffn_up.bias" },
        { "glm4", true, "l1.mlp.gate", "blk.1.ffn_up.weight" },
        { "qwen2_moe", false, "l1.mlp.down", "blk.1.ffn_down_shexp.weight", "qwen2moe" },
        { "glm4_moe", false, "l0.mlp.up", "blk.0.ffn_up.weight", "glm4moe" },
        { "gpt_oss", false, "l1.expert0.up.b", "blk.1.ffn_up_exps.bias", "gpt-oss" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        filled m;
        open_fixture(state, cases[i].family, &m);
        model_config c = m.c;
        c.rope_scaling = ROPE_PLAIN;
        c.rope_fraction = 1;
        if (!strcmp(cases[i].family, "olmoe")) c.kv_heads = c.heads;
        c.groups = 1;
        c.swiglu_limit = 7;
        if (c.layer_pattern && !c.experts)
            c.layer_pattern = 2224, c.qkv_bias = c.o_bias = c.mlp_bias = false;
        model_config_normalize(&c);
        if (model_config_diff(&m.c, &c, 0) >= 0 && m.c.rope_fraction == 1)
            expect_refused(&m, "llama.cpp");
        m.c = c;
        write_and_read(&m);
        const char *name = cases[i].architecture ? cases[i].architecture : cases[i].family;
        assert_string_equal(m.f.architecture, name);
        expect_param(&m.l, &m.f, "l1.attn.v", "blk.1.attn_v.weight", 0, false, 0);
        expect_param(&m.l, &m.f, "l1.attn.k", "blk.1.attn_k.weight", 0, cases[i].paired, 0);
        expect_param(&m.l, &m.f, cases[i].ours, cases[i].theirs, 0, false, 0);
        if (c.norm_position == NORM_BOTH)
            expect_param(&m.l, &m.f, "l1.mlp.up", cases[i].theirs, c.ffn, false, 0);
        close_filled(&m);
    }
}

/* Families whose windows, factors and kinds of layers llama.cpp has built in: the fixture, which has others, is refused with the
 * fact, and written with these. */
static void built_in_facts_are_needed(void **state) {
    static const struct {
        const char *folder, *architecture, *says;
        struct {
            const char *fact;
            double value;
        } set[8];
        const char *ours, *theirs;
        int64_t first;
        bool paired;
    } cases[] = {
        { "gemma2",
          "gemma2",
          "model.attention_scale",
          { { "attention_scale", 0 } },
          "l1.mlp.norm.w",
          "blk.1.post_ffw_norm.weight",
          0,
          false },
        { "gemma3",
          "gemma3",
          "model.layer_pattern",
          { { "attention_scale", 0 }, { "layers", 6 }, { "layer_pattern", 111112 } },
          "l5.attn.qnorm",
          "blk.5.attn_q_norm.weight",
          0,
          false },
        { "cohere2",
          "cohere2",
          "model.",
          { { "layers", 4 },
            { "layer_pattern", 1114 },
            { "qkv_bias", 0 },
            { "attention_output_bias", 0 },
            { "tie_embeddings", 1 } },
          "l3.attn.k",
          "blk.3.attn_k.weight",
          0,
          true },
        { "olmo3",
          "olmo2",
          "model.",
          { { "layers", 4 },
            { "layer_pattern", 1112 },
            { "rope_beta_fast", 32 },
            { "rope_beta_slow", 1 },
            { "rope_local_theta", 1000 } },
          "l3.norm1.w",
          "blk.3.post_attention_norm.weight",
          0,
          false },
        { "llama4",
          "llama4",
          "model.",
          { { "layer_pattern", 1114 },
            { "sliding_window", 8192 },
            { "attention_temperature", 0.1 },
            { "attention_temperature_floor", 8192 },
            { "experts", 4 } },
          "l3.attn.q",
          "blk.3.attn_q.weight",
          0,
          true },
        { "phi3",
          "phi3",
          NULL,
          { { "rope_fraction", 1 } },
          "l1.mlp.up",
          "blk.1.ffn_up.weight",
          36,
          false },
        { "phi3_long",
          "phi3",
          NULL,
          { { "rope_fraction", 1 } },
          "l1.attn.k",
          "blk.1.attn_qkv.weight",
          32,
          false },
        { "stablelm",
          "stablelm",
          NULL,
          { { "rope_fraction", 0.5 } },
          "l1.attn.q.b",
          "blk.1.attn_q.bias",
          0,
          false },
        { "falcon",
          "falcon",
          NULL,
          { { "rope_fraction", 1 } },
          "l1.norm1.w",
          "blk.1.attn_norm_2.weight",
          0,
          false },
        { "deepseek_v3",
          "deepseek2",
          "model.",
          { { "rope_attention_factor", 1 },
            { "qkv_bias", 0 },
            { "attention_output_bias", 0 },
            { "latent_norm_eps", 1e-6 },
            { "norm_eps", 1e-6 } },
          "l1.attn.kv_a.norm",
          "blk.1.attn_kv_a_norm.weight",
          0,
          false },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        filled m;
        open_fixture(state, cases[i].folder, &m);
        if (cases[i].says) expect_refused(&m, cases[i].says);
        for (size_t k = 0; k < COUNT_OF(cases[i].set) && cases[i].set[k].fact; k++)
            model_fact_set(model_fact_find(cases[i].set[k].fact), &m.c, cases[i].set[k].value);
        write_and_read(&m);
        assert_string_equal(m.f.architecture, cases[i].architecture);
        expect_param(&m.l, &m.f, cases[i].ours, cases[i].theirs, cases[i].first, cases[i].paired,
                     0);
        if (m.c.rope_scaling == ROPE_LONG) {
            assert_true(element(find_tensor(&m.f, "rope_factors_short.weight"), 1) == 1.25);
            assert_true(element(find_tensor(&m.f, "rope_factors_long.weight"), 3) == 12);
        }
        close_filled(&m);
    }
}

/* Compares a row of a parameter with a row of a tensor. */
static void expect_row(const loaded *l, const gguf_file *f, const char *ours, int64_t row,
                       const char *theirs, int64_t their_row) {
    int at = model_find_param(l->m, ours);
    assert_true(at >= 0);
    int64_t cols = model_param_at(l->m, at)->dim[1];
    for (int64_t c = 0; c < cols; c++)
        assert_true(element(find_tensor(f, theirs), their_row * cols + c) ==
                    (double)l->values[at][row * cols + c]);
}

/* q, k and v follow one another, and so do the rows of their convolution, which is fp32 in every file; queries alternate with
 * their gates by head, and b with a by head of keys. */
static void gated_delta_nets_are_rearranged(void **state) {
    static const struct {
        const char *fact;
        double value;
    } needed[] = { { "delta_value_dim", 8 }, { "qkv_bias", 0 }, { "attention_output_bias", 0 } };
    char from[512], path[128];
    model_config c;
    const hf_family *family;
    loaded l;
    gguf_file f;
    snprintf(from, sizeof from, "%s/qwen3_next", FIXTURES);
    snprintf(path, sizeof path, "%s", in_folder(*state, "d.gguf"));
    assert_ok(hf_import_config(from, &c, &family, NULL));
    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        if (i < 2) {
            fill_params(&c, family, &l);
            assert_error(export_loaded(&l, path, GGUF_F16), needed[i].fact);
            unload(&l);
        }
        model_fact_set(model_fact_find(needed[i].fact), &c, needed[i].value);
    }
    model_config other = c;
    other.layer_pattern = 525;
    fill_params(&other, family, &l);
    assert_error(export_loaded(&l, path, GGUF_F16), "model.layer_pattern");
    unload(&l);

    fill_params(&c, family, &l);
    for (int i = 0; i < model_params(l.m); i++)
        for (int64_t k = 0; k < model_param_at(l.m, i)->dim[0] * model_param_at(l.m, i)->dim[1];
             k++)
            l.values[i][k] = (float)(i * 7 + k) / 2048 - 1; /* which fp16 holds */
    assert_ok(export_loaded(&l, path, GGUF_F16));
    gguf_read(path, &f);
    assert_string_equal(f.architecture, "qwen3next");
    int64_t keys = c.delta_keys * c.delta_key_dim, share = c.delta_values / c.delta_keys;
    const char *qkv = "blk.1.attn_qkv.weight", *conv = "blk.1.ssm_conv1d.weight";
    expect_row(&l, &f, "l1.delta.q", 3, qkv, 3);
    expect_row(&l, &f, "l1.delta.k", 3, qkv, keys + 3);
    expect_row(&l, &f, "l1.delta.v", 3, qkv, 2 * keys + 3);
    expect_row(&l, &f, "l1.delta.v.conv", 3, conv, 2 * keys + 3);
    assert_int_equal(find_tensor(&f, conv)->type, 0);
    assert_int_equal(find_tensor(&f, conv)->ndim, 2);
    expect_row(&l, &f, "l1.delta.z", 3, "blk.1.attn_gate.weight", 3);
    expect_row(&l, &f, "l1.delta.b", share, "blk.1.ssm_ba.weight", 2 * share);
    expect_row(&l, &f, "l1.delta.a", share, "blk.1.ssm_ba.weight", 3 * share);
    expect_row(&l, &f, "l2.attn.q", c.head_dim, "blk.2.attn_q.weight", 2 * c.head_dim);
    expect_row(&l, &f, "l2.attn.gate", c.head_dim, "blk.2.attn_q.weight", 3 * c.head_dim);
    double rate = l.values[model_find_param(l.m, "l1.delta.rate")][2];
    assert_true(fabs(element(find_tensor(&f, "blk.1.ssm_a"), 2) + exp(rate)) < 1e-6);
    free(f.bytes);
    unload(&l);
}

/* Rows of a head's keys are the columns of its part of k_b, and those of values the rows of v_b. */
static void latent_attention_is_split(void **state) {
    filled m;
    open_fixture(state, "deepseek_v3", &m);
    model_config *c = &m.c;
    c->rope_attention = 1;
    c->qkv_bias = c->o_bias = false;
    c->latent_eps = c->norm_eps;
    write_and_read(&m);
    const gguf_tensor *k = find_tensor(&m.f, "blk.1.attn_k_b.weight"),
                      *v = find_tensor(&m.f, "blk.1.attn_v_b.weight");
    const float *ours = m.l.values[model_find_param(m.l.m, "l1.attn.kv_b")];
    int64_t values = c->value_head_dim, keys = c->head_dim - c->rope_head_dim, n = c->kv_latent;
    assert_true(k->dim[0] == (uint64_t)keys && k->dim[1] == (uint64_t)n);
    assert_true(v->dim[0] == (uint64_t)n && v->dim[1] == (uint64_t)values);
    for (int64_t h = 0; h < c->heads; h++)
        for (int64_t r = 0; r < keys + values; r++)
            for (int64_t x = 0; x < n; x++) {
                double got = r < keys ? element(k, (h * n + x) * keys + r)
                                      : element(v, (h * values + r - keys) * n + x);
                assert_true(got == ours[(h * (keys + values) + r) * n + x]);
            }
    close_filled(&m);
}

/* Vectors stay in fp32; the rest is as close as its type allows. */
static void types_are_as_precise_as_they_can_be(void **state) {
    static const double error[] = { [GGUF_F16] = 1e-3, [GGUF_BF16] = 4e-3 };
    for (size_t i = 0; i < COUNT_OF(hf_fixtures); i++) {
        if (strcmp(hf_fixtures[i].family, "qwen2")) continue;
        loaded l;
        gguf_file f;
        char path[128];
        snprintf(path, sizeof path, "%s", in_folder(*state, "t.gguf"));
        assert_ok(load_params(&hf_fixtures[i].want, hf_family_of("qwen2"), fixture_path(i), &l));
        for (gguf_type type = GGUF_F16; type <= GGUF_BF16; type++) {
            assert_ok(export_loaded(&l, path, type));
            gguf_read(path, &f);
            expect_param(&l, &f, "norm.w", "output_norm.weight", 0, false, 0);
            expect_param(&l, &f, "l0.mlp.up", "blk.0.ffn_up.weight", 0, false, error[type]);
            free(f.bytes);
        }
        assert_ok(export_loaded(&l, path, GGUF_Q8_0));
        gguf_read(path, &f);
        const gguf_tensor *t = find_tensor(&f, "blk.0.ffn_up.weight");
        const float *want = l.values[model_find_param(l.m, "l0.mlp.up")];
        assert_int_equal(t->type, t->dim[0] % 32 ? 1 : 8);
        for (uint64_t b = 0; b + 32 <= t->count; b += 32) {
            double most = 0;
            for (uint64_t k = 0; k < 32; k++) most = fmax(most, fabs((double)want[b + k]));
            for (uint64_t k = 0; k < 32; k++)
                assert_true(fabs(element(t, (int64_t)(b + k)) - want[b + k]) <=
                            most / 127 * 0.57 /* half a step, and its factor in fp16 */);
        }
        free(f.bytes);
        unload(&l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_family_is_written_where_llama_cpp_reads, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(newer_families_are_written_where_llama_cpp_reads,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(built_in_facts_are_needed, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(gated_delta_nets_are_rearranged, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(latent_attention_is_split, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(types_are_as_precise_as_they_can_be, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
