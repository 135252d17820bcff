/* The Hugging Face fixtures: what they describe, and their weights in memory. */
#ifndef INGOT_TESTS_HF_H
#define INGOT_TESTS_HF_H

#include "support/folder.h"

#include "checkpoint/checkpoint.h"

#define NO_TOKENS ((hf_tokens){ -1, -1 })

/* Lists the models that tests/fixtures/make.py asked transformers for. */
#define UNSCALED .embedding_scale = 1, .residual_scale = 1, .logit_scale = 1, .init_up_scale = 1
#define SMALL(EPS, SEQ, HEAD)                                                                      \
    .layers = 2, .dim = 32, .ffn = 36, .vocab = 80, .max_seq = SEQ, .heads = 4, .kv_heads = 2,     \
    .head_dim = HEAD, .rope_theta = 10000, .rope_fraction = 1, .norm_eps = EPS, .qk_scale = 1,     \
    .qk_weights = true, .init_std = 0.02, UNSCALED
#define SMALL_EXPERTS(N, K)                                                                        \
    .experts = N, .experts_per_token = K, .groups = 1, .moe_step = 1, .router_scale = 1,           \
    .router_bias_rate = 1e-3, .capacity_factor = 0, .balance_loss = 1e-3
static const struct {
    const char *folder, *family;
    model_config want;
} hf_fixtures[] = {
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
        .init_std = 0.02,
        UNSCALED } },
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
        .init_std = 0.02,
        UNSCALED } },
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
    { "mixtral", "mixtral", { SMALL(1e-5, 64, 8), SMALL_EXPERTS(5, 2), .router_normalize = true } },
    { "qwen3_moe",
      "qwen3_moe",
      { SMALL(1e-6, 64, 12), SMALL_EXPERTS(6, 3), .qknorm = QKNORM_HEAD, .expert_dim = 20,
        .router_normalize = true } },
    { "gpt_neox_odd",
      "gpt_neox",
      { .layers = 2,
        .dim = 40,
        .ffn = 48,
        .vocab = 80,
        .max_seq = 64,
        .heads = 2,
        .kv_heads = 2,
        .head_dim = 20,
        .norm = NORM_LAYER,
        .mlp = MLP_GELU_ERF,
        .bias = true,
        .norm_bias = true,
        .rope_theta = 10000,
        .rope_fraction = 0.25,
        .norm_eps = 1e-5,
        .init_std = 0.02,
        UNSCALED } },
};

static inline void assert_same_config(const model_config *a, const model_config *b) {
    int i = model_config_diff(a, b, 0);
    if (i < 0) return;
    const model_fact *f = model_fact_at(i);
    fail_msg("%s: got %g, expected %g", f->name, model_fact_get(f, a), model_fact_get(f, b));
}

/* Returns the model of fixture i, with the defaults of facts that do not matter to it. */
static inline model_config fixture_config(size_t i) {
    model_config c = hf_fixtures[i].want;
    model_config_normalize(&c);
    return c;
}

/* @return a path that is valid until the next call. */
static inline const char *fixture_path(size_t i) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", FIXTURES, hf_fixtures[i].folder);
    return path;
}

/* ---- weights ----------------------------------------------------------------------------- */

/* A model of a fixture with its weights, whole. */
typedef struct loaded {
    model *m;
    const hf_family *family;
    float **values;
} loaded;

static inline err keep_param(void *ctx, int i, const float *values) {
    loaded *l = ctx;
    const model_param *p = model_param_at(l->m, i);
    size_t n = (size_t)(p->dim[0] * (p->ndim == 2 ? p->dim[1] : 1)) * sizeof(float);
    l->values[i] = mem_alloc(n);
    memcpy(l->values[i], values, n);
    return OK;
}

static inline err give_param(void *ctx, int i, float *values) {
    loaded *l = ctx;
    const model_param *p = model_param_at(l->m, i);
    memcpy(values, l->values[i],
           (size_t)(p->dim[0] * (p->ndim == 2 ? p->dim[1] : 1)) * sizeof(float));
    return OK;
}

static inline err load_params(const model_config *c, const hf_family *family, const char *folder,
                              loaded *l) {
    st_file *f;
    TRY(st_open(folder, &f));
    *l = (loaded){ .family = family };
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &l->m));
    l->values = mem_alloc((size_t)model_params(l->m) * sizeof *l->values);
    err e = hf_import_params(family, f, l->m, keep_param, l);
    st_close(f);
    return e;
}

static inline void unload(loaded *l) {
    for (int i = 0; l->m && i < model_params(l->m); i++) free(l->values[i]);
    free(l->values);
    model_free(l->m);
}

static inline const float *value_of(const loaded *l, const char *name) {
    int i = model_find_param(l->m, name);
    assert_true(i >= 0);
    return l->values[i];
}

/* A model of other facts with the values of those parameters that `from` has too. */
static inline void borrow_params(const model_config *c, const loaded *from, loaded *l) {
    *l = (loaded){ .family = from->family };
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &l->m));
    l->values = mem_alloc((size_t)model_params(l->m) * sizeof *l->values);
    for (int i = 0; i < model_params(l->m); i++)
        assert_ok(keep_param(l, i, value_of(from, model_param_at(l->m, i)->name)));
}

#endif
