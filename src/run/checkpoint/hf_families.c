/* The Hugging Face families: how each expresses the facts of a model in config.json, and its names
 * and layouts of parameters. A fact that a family does not declare here has its default in every
 * model of that family, and an export with another value is refused. */
#include "checkpoint/hf_internal.h"

#include <string.h>

/* clang-format off */
#define AT(member)                            offsetof(model_config, member)
#define KEY(theirs, member, absent, value, null) \
    { theirs, NULL, AT(member), HF_USED, absent, null, value }
#define SIZE(theirs, member)                  KEY(theirs, member, HF_REFUSED, 0, HF_REFUSED)
#define REAL(theirs, member, value)           KEY(theirs, member, HF_VALUE, value, HF_REFUSED)
#define RENAMED(theirs, alias, member) \
    { theirs, alias, AT(member), HF_USED, HF_REFUSED, HF_REFUSED, 0 }
#define IMPLIED(member, value)                { NULL, NULL, AT(member), HF_IMPLIED, HF_VALUE, HF_VALUE, value }
#define ZEROS(member)                         { NULL, NULL, AT(member), HF_ZEROS, HF_VALUE, HF_VALUE, 1 }
#define ALL_KV                                { NULL, NULL, AT(kv_heads), HF_IMPLIED, HF_HEADS, HF_HEADS, 0 }
#define HEAD_DIM                              KEY("head_dim", head_dim, HF_HEAD_DIM, 0, HF_HEAD_DIM)
#define DIVIDED_DIM(theirs)                   { theirs, NULL, AT(head_dim), HF_IMPLIED, HF_HEAD_DIM, HF_HEAD_DIM, 0 }
/* One key for the biases of all four projections. */
#define ATTENTION_BIAS                        REAL("attention_bias", qkv_bias, 0), REAL("attention_bias", o_bias, 0)
#define MLP_BIAS                              REAL("mlp_bias", mlp_bias, 0)
/* A number whose absence and null mean 0: none. */
#define OPTIONAL(theirs, member, value)       KEY(theirs, member, HF_VALUE, value, HF_ZERO)

/* ---- facts --------------------------------------------------------------------------------- */
static const hf_key gpt2_keys[] = {
    SIZE("vocab_size", vocab),
    RENAMED("n_positions", "max_position_embeddings", max_seq),
    RENAMED("n_embd",      "hidden_size",             dim),
    RENAMED("n_layer",     "num_hidden_layers",       layers),
    RENAMED("n_head",      "num_attention_heads",     heads),
    KEY("n_inner", ffn, HF_4_DIM, 0, HF_4_DIM),
    REAL("layer_norm_epsilon",  norm_eps, 1e-5),
    REAL("initializer_range",   init_std, 0.02),
    REAL("tie_word_embeddings", tied, 1),
    IMPLIED(pos, POS_LEARNED), IMPLIED(norm, NORM_LAYER), ALL_KV, DIVIDED_DIM(NULL),
    ZEROS(bias), ZEROS(norm_bias), ZEROS(qkv_bias),
};

static const hf_key mpt_keys[] = {
    SIZE("vocab_size", vocab), KEY("max_seq_len", max_seq, HF_VALUE, 2048, HF_REFUSED),
    RENAMED("d_model", "hidden_size", dim), RENAMED("n_layers", "num_hidden_layers", layers),
    RENAMED("n_heads", "num_attention_heads", heads), { NULL, NULL, AT(ffn), HF_IMPLIED, HF_4_DIM, HF_4_DIM, 0 },
    REAL("layer_norm_epsilon", norm_eps, 1e-5), REAL("initializer_range", init_std, 0.02),
    REAL("tie_word_embeddings", tied, 1), OPTIONAL("attn_config.softmax_scale", attention_scale, 0),
    { "attn_config.alibi_bias_max", NULL, AT(alibi_max), HF_IMPLIED, HF_VALUE, HF_VALUE, 8 }, IMPLIED(pos, POS_ALIBI), IMPLIED(mlp, MLP_GELU_ERF),
    IMPLIED(norm, NORM_LAYER), IMPLIED(norm_bias, 0), ALL_KV, DIVIDED_DIM(NULL),
};

static const hf_key gpt_neox_keys[] = {
    SIZE("vocab_size", vocab),
    SIZE("max_position_embeddings", max_seq),
    SIZE("hidden_size", dim),
    SIZE("num_hidden_layers", layers),
    SIZE("num_attention_heads", heads),
    SIZE("intermediate_size", ffn),
    REAL("layer_norm_eps",        norm_eps, 1e-5),
    REAL("initializer_range",     init_std, 0.02),
    REAL("tie_word_embeddings",   tied, 0),
    REAL("use_parallel_residual", parallel, 1),
    IMPLIED(norm, NORM_LAYER), ALL_KV, DIVIDED_DIM("head_dim"),
    ZEROS(bias), ZEROS(norm_bias), ZEROS(qkv_bias),
};

/* Rows that Llama and the families derived from it share. */
#define SIZE_KEYS(EPS_KEY, EPS, TIED)                                                             \
    SIZE("vocab_size", vocab),                                                                   \
    SIZE("max_position_embeddings", max_seq),                                                    \
    SIZE("hidden_size", dim),                                                                    \
    SIZE("num_hidden_layers", layers),                                                           \
    SIZE("num_attention_heads", heads),                                                          \
    SIZE("intermediate_size", ffn),                                                              \
    REAL(EPS_KEY,               norm_eps, EPS),                                                  \
    REAL("initializer_range",   init_std, 0.02),                                                 \
    REAL("tie_word_embeddings", tied, TIED)
#define LLAMA_KEYS(EPS) SIZE_KEYS("rms_norm_eps", EPS, 0)
#define KV_HEADS(absent, value) KEY("num_key_value_heads", kv_heads, absent, value, HF_HEADS)

static const hf_key llama_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_HEADS, 0), HEAD_DIM, ATTENTION_BIAS, MLP_BIAS,
};
static const hf_key mistral_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 8), HEAD_DIM,
    KEY("sliding_window", window, HF_VALUE, 4096, HF_ZERO),
};
static const hf_key qwen2_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 32), HEAD_DIM, ZEROS(qkv_bias),
};
static const hf_key qwen3_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 32), IMPLIED(qknorm, QKNORM_HEAD),
    KEY("head_dim", head_dim, HF_VALUE, 128, HF_REFUSED), ATTENTION_BIAS,
};
/* transformers drops no token, in training either. */
#define EXPERTS(key, alias, number, per_token) BALANCED_EXPERTS(key, alias, number, per_token, 0.001)
#define BALANCED_EXPERTS(key, alias, number, per_token, balance)                                  \
    { key, alias, AT(experts), HF_USED, HF_VALUE, HF_REFUSED, number },                           \
    KEY("num_experts_per_tok", experts_per_token, HF_VALUE, per_token, HF_REFUSED),               \
    KEY("router_aux_loss_coef", balance_loss, HF_VALUE, balance, HF_ZERO), IMPLIED(capacity_factor, 0)
static const hf_key mixtral_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_VALUE, 8), HEAD_DIM, EXPERTS("num_local_experts", NULL, 8, 2),
    KEY("sliding_window", window, HF_VALUE, 0, HF_ZERO), IMPLIED(router_normalize, 1),
};
static const hf_key qwen3_moe_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 4), HEAD_DIM, EXPERTS("num_experts", "num_local_experts", 128, 8),
    IMPLIED(qknorm, QKNORM_HEAD), REAL("norm_topk_prob", router_normalize, 0),
    KEY("moe_intermediate_size", expert_dim, HF_VALUE, 768, HF_REFUSED),
    REAL("decoder_sparse_step", moe_step, 1), ATTENTION_BIAS,
    { "mlp_only_layers", NULL, AT(first_dense), HF_FIRST_N, HF_ZERO, HF_ZERO, 0 },
};
static const hf_key qwen2_moe_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 16), HEAD_DIM, EXPERTS("num_experts", "num_local_experts", 60, 4),
    REAL("qkv_bias", qkv_bias, 1), REAL("norm_topk_prob", router_normalize, 0),
    KEY("moe_intermediate_size", expert_dim, HF_VALUE, 1408, HF_REFUSED), IMPLIED(shared_experts, 1),
    KEY("shared_expert_intermediate_size", shared_dim, HF_VALUE, 5632, HF_REFUSED), IMPLIED(shared_gate, 1),
    REAL("decoder_sparse_step", moe_step, 1),
    { "mlp_only_layers", NULL, AT(first_dense), HF_FIRST_N, HF_ZERO, HF_ZERO, 0 },
};
static const hf_key qwen3_next_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_VALUE, 2), KEY("head_dim", head_dim, HF_VALUE, 256, HF_HEAD_DIM), ATTENTION_BIAS,
    IMPLIED(qknorm, QKNORM_HEAD), IMPLIED(attention_gate, 1), IMPLIED(mlp, MLP_SWIGLU),
    REAL("linear_num_key_heads", delta_keys, 16), REAL("linear_num_value_heads", delta_values, 32),
    REAL("linear_key_head_dim", delta_key_dim, 128), REAL("linear_value_head_dim", delta_value_dim, 128),
    REAL("linear_conv_kernel_dim", delta_conv, 4),
    EXPERTS("num_experts", "num_local_experts", 512, 10), REAL("norm_topk_prob", router_normalize, 1),
    KEY("moe_intermediate_size", expert_dim, HF_VALUE, 512, HF_REFUSED), IMPLIED(shared_experts, 1),
    KEY("shared_expert_intermediate_size", shared_dim, HF_VALUE, 512, HF_REFUSED), IMPLIED(shared_gate, 1),
    REAL("decoder_sparse_step", moe_step, 1),
    { "mlp_only_layers", NULL, AT(first_dense), HF_FIRST_N, HF_ZERO, HF_ZERO, 0 },
};
/* Experts are chosen by sigmoids plus a bias, within groups. A model that was trained without that bias has zeros. */
static const hf_key glm4_moe_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_VALUE, 8), HEAD_DIM, REAL("attention_bias", qkv_bias, 0),
    { "use_qk_norm", NULL, AT(qknorm), HF_SWITCH, HF_ZERO, HF_ZERO, QKNORM_HEAD },
    { "n_routed_experts", "num_local_experts", AT(experts), HF_USED, HF_VALUE, HF_REFUSED, 128 },
    KEY("num_experts_per_tok", experts_per_token, HF_VALUE, 8, HF_REFUSED), IMPLIED(capacity_factor, 0),
    KEY("moe_intermediate_size", expert_dim, HF_VALUE, 1408, HF_REFUSED),
    REAL("n_shared_experts", shared_experts, 1), REAL("first_k_dense_replace", first_dense, 1),
    REAL("routed_scaling_factor", router_scale, 1), REAL("norm_topk_prob", router_normalize, 1),
    REAL("n_group", groups, 1), REAL("topk_group", group_limit, 1),
    IMPLIED(router_score, ROUTER_SIGMOID), ZEROS(router_bias),
};
/* Softmax over the chosen experts is softmax over all, divided by the sum of the chosen. */
static const hf_key gpt_oss_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_VALUE, 8), KEY("head_dim", head_dim, HF_VALUE, 64, HF_HEAD_DIM),
    REAL("attention_bias", qkv_bias, 1), REAL("attention_bias", o_bias, 1), IMPLIED(sinks, 1),
    EXPERTS("num_local_experts", "num_experts", 128, 4), IMPLIED(router_normalize, 1),
    ZEROS(mlp_bias), ZEROS(router_logit_bias), OPTIONAL("sliding_window", window, 128),
    IMPLIED(mlp, MLP_SWIGLU_CLAMPED), REAL("swiglu_alpha", swiglu_alpha, 1.702), REAL("swiglu_limit", swiglu_limit, 7),
};
/* Layers with rotary positions see chunks and normalize queries and keys; the others see all, by position. */
static const hf_key llama4_keys[] = {
    SIZE("vocab_size", vocab), SIZE("max_position_embeddings", max_seq), SIZE("hidden_size", dim),
    SIZE("num_hidden_layers", layers), SIZE("num_attention_heads", heads),
    KEY("intermediate_size_mlp", ffn, HF_VALUE, 16384, HF_REFUSED),
    KEY("intermediate_size", expert_dim, HF_VALUE, 8192, HF_REFUSED),
    REAL("rms_norm_eps", norm_eps, 1e-5), REAL("initializer_range", init_std, 0.02), REAL("tie_word_embeddings", tied, 0),
    KV_HEADS(HF_VALUE, 8), KEY("head_dim", head_dim, HF_VALUE, 128, HF_HEAD_DIM), ATTENTION_BIAS,
    { "use_qk_norm", NULL, AT(qknorm), HF_SWITCH, HF_VALUE, HF_ZERO, QKNORM_HEAD },
    IMPLIED(qk_weights, 0), IMPLIED(qk_rope_only, 1),
    EXPERTS("num_local_experts", NULL, 16, 1), IMPLIED(shared_experts, 1), IMPLIED(router_score, ROUTER_SIGMOID),
    IMPLIED(scale_input, 1), REAL("interleave_moe_layer_step", moe_step, 1),
    { "moe_layers", NULL, AT(moe_step), HF_NTH, HF_SAME, HF_SAME, 0 },
    OPTIONAL("attention_chunk_size", window, 8192), IMPLIED(chunked, 1),
    REAL("attn_scale", temperature, 0.1), REAL("floor_scale", temperature_floor, 8192),
    { "attn_temperature_tuning", NULL, AT(temperature), HF_ENABLES, HF_SAME, HF_SAME, 0 },
};
static const hf_key olmo2_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_HEADS, 0), HEAD_DIM, IMPLIED(qknorm, QKNORM_FULL),
    IMPLIED(norm_position, NORM_POST), ATTENTION_BIAS,
};
static const hf_key olmoe_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_HEADS, 0), HEAD_DIM, ATTENTION_BIAS, IMPLIED(qknorm, QKNORM_FULL),
    BALANCED_EXPERTS("num_experts", "num_local_experts", 64, 8, 0.01), REAL("norm_topk_prob", router_normalize, 0),
};
static const hf_key olmo3_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_HEADS, 0), HEAD_DIM, IMPLIED(qknorm, QKNORM_FULL),
    IMPLIED(norm_position, NORM_POST), ATTENTION_BIAS, OPTIONAL("sliding_window", window, 4096),
};
static const hf_key smollm3_keys[] = {
    SIZE_KEYS("rms_norm_eps", 1e-6, 1), KV_HEADS(HF_VALUE, 4), HEAD_DIM, ATTENTION_BIAS, MLP_BIAS,
};
static const hf_key phi3_keys[] = {
    LLAMA_KEYS(1e-5), KV_HEADS(HF_HEADS, 0), HEAD_DIM, OPTIONAL("sliding_window", window, 0),
};
static const hf_key granite_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_HEADS, 0), HEAD_DIM, ATTENTION_BIAS, MLP_BIAS,
    REAL("embedding_multiplier", embedding_scale, 1),
    REAL("residual_multiplier",  residual_scale, 1),
    REAL("attention_multiplier", attention_scale, 1),
    { "logits_scaling", NULL, AT(logit_scale), HF_INVERSE, HF_VALUE, HF_REFUSED, 1 },
};
static const hf_key glm4_keys[] = {
    LLAMA_KEYS(1.5625e-7), KV_HEADS(HF_VALUE, 2), KEY("head_dim", head_dim, HF_VALUE, 128, HF_REFUSED),
    REAL("attention_bias", qkv_bias, 1), IMPLIED(norm_position, NORM_BOTH),
};
/* Biases that every model has, and none: those of layer norms. */
static const hf_key starcoder2_keys[] = {
    SIZE_KEYS("norm_epsilon", 1e-5, 1), KV_HEADS(HF_VALUE, 2), HEAD_DIM, IMPLIED(norm, NORM_LAYER), ZEROS(norm_bias),
    REAL("use_bias", bias, 1), OPTIONAL("sliding_window", window, 0),
};
static const hf_key stablelm_keys[] = {
    SIZE_KEYS("layer_norm_eps", 1e-5, 0), KV_HEADS(HF_VALUE, 32), DIVIDED_DIM(NULL), IMPLIED(norm, NORM_LAYER),
    ZEROS(norm_bias), REAL("use_qkv_bias", qkv_bias, 0),
    REAL("use_parallel_residual", parallel, 0), REAL("use_parallel_residual", shared_norm, 0),
};
static const hf_key cohere2_keys[] = {
    SIZE_KEYS("layer_norm_eps", 1e-5, 1), KV_HEADS(HF_HEADS, 0), DIVIDED_DIM("head_dim"), ATTENTION_BIAS,
    IMPLIED(norm, NORM_LAYER), IMPLIED(norm_bias, 0), IMPLIED(parallel, 1), IMPLIED(shared_norm, 1),
    REAL("logit_scale", logit_scale, 0.0625), OPTIONAL("sliding_window", window, 4096),
};
/* Embeddings are multiplied by sqrt(dim); queries by a number that need not follow from the head's width. */
#define GEMMA_KEYS(FINAL_CAP)                                                                     \
    SIZE_KEYS("rms_norm_eps", 1e-6, 1), KV_HEADS(HF_VALUE, 4), ATTENTION_BIAS,                    \
    KEY("head_dim", head_dim, HF_VALUE, 256, HF_REFUSED), IMPLIED(norm_position, NORM_BOTH),      \
    { NULL, NULL, AT(embedding_scale), HF_IMPLIED, HF_SQRT_DIM, HF_SQRT_DIM, 0 },                 \
    { "query_pre_attn_scalar", NULL, AT(attention_scale), HF_INVERSE_SQUARE, HF_VALUE, HF_REFUSED, 1.0 / 16 }, \
    OPTIONAL("sliding_window", window, 4096), OPTIONAL("final_logit_softcapping", logit_softcap, FINAL_CAP)
static const hf_key gemma2_keys[] = { GEMMA_KEYS(30), OPTIONAL("attn_logit_softcapping", attention_softcap, 50) };
static const hf_key gemma3_keys[] = { GEMMA_KEYS(0), IMPLIED(qknorm, QKNORM_HEAD) };
/* Three ways to divide heads; the last two ignore the number of key/value heads. */
#define FALCON_KEYS                                                                               \
    SIZE("vocab_size", vocab), SIZE("num_hidden_layers", layers),                                 \
    RENAMED("hidden_size", "n_embed", dim), SIZE("num_attention_heads", heads),                   \
    KEY("max_position_embeddings", max_seq, HF_VALUE, 2048, HF_REFUSED),                          \
    KEY("ffn_hidden_size", ffn, HF_4_DIM, 0, HF_4_DIM),                                           \
    REAL("layer_norm_epsilon", norm_eps, 1e-5), REAL("initializer_range", init_std, 0.02),        \
    REAL("tie_word_embeddings", tied, 1), REAL("bias", bias, 0), DIVIDED_DIM(NULL),               \
    IMPLIED(norm, NORM_LAYER), ZEROS(norm_bias)
static const hf_key falcon_new_keys[] = {
    FALCON_KEYS, KEY("num_kv_heads", kv_heads, HF_HEADS, 0, HF_HEADS), IMPLIED(parallel, 1),
};
static const hf_key falcon_shared_keys[] = {
    FALCON_KEYS, KEY("num_kv_heads", kv_heads, HF_HEADS, 0, HF_HEADS), IMPLIED(parallel, 1), IMPLIED(shared_norm, 1),
};
#define FALCON_BRANCHES REAL("parallel_attn", parallel, 1), REAL("parallel_attn", shared_norm, 1)
static const hf_key falcon_heads_keys[] = { FALCON_KEYS, ALL_KV, FALCON_BRANCHES };
static const hf_key falcon_keys[]       = { FALCON_KEYS, IMPLIED(kv_heads, 1), FALCON_BRANCHES };
/* Heads are normalized after they are rotated, which is the same without weights, and but for scalings that change
 * their length. */
static const hf_key nanochat_keys[] = {
    LLAMA_KEYS(1e-6), KV_HEADS(HF_HEADS, 0), HEAD_DIM, ATTENTION_BIAS,
    OPTIONAL("final_logit_softcapping", logit_softcap, 15),
    IMPLIED(qknorm, QKNORM_HEAD), IMPLIED(weightless_norms, 1), IMPLIED(embedding_norm, 1),
};

/* Latent attention. A file may name the rotated dims twice. */
#define LATENT_KEYS                                                                               \
    LLAMA_KEYS(1e-6), KV_HEADS(HF_HEADS, 0), SIZE("kv_lora_rank", kv_latent),                     \
    KEY("q_lora_rank", q_latent, HF_VALUE, 1536, HF_ZERO), RENAMED("qk_rope_head_dim", "head_dim", rope_head_dim), \
    { "qk_nope_head_dim", NULL, AT(head_dim), HF_UNROTATED, HF_REFUSED, HF_REFUSED, 0 },          \
    KEY("v_head_dim", value_head_dim, HF_VALUE, 128, HF_REFUSED), IMPLIED(latent_eps, 1e-6), ATTENTION_BIAS
#define DEEPSEEK_EXPERTS(NUMBER, DIM, SHARED, DENSE, SCALE)                                       \
    { "n_routed_experts", "num_local_experts", AT(experts), HF_USED, HF_VALUE, HF_REFUSED, NUMBER }, \
    KEY("num_experts_per_tok", experts_per_token, HF_VALUE, 8, HF_REFUSED), IMPLIED(capacity_factor, 0), \
    KEY("moe_intermediate_size", expert_dim, HF_VALUE, DIM, HF_REFUSED),                          \
    REAL("n_shared_experts", shared_experts, SHARED), REAL("first_k_dense_replace", first_dense, DENSE), \
    REAL("routed_scaling_factor", router_scale, SCALE)
static const hf_key deepseek_dense_keys[] = { LATENT_KEYS };
static const hf_key deepseek_v3_keys[] = {
    LATENT_KEYS, DEEPSEEK_EXPERTS(256, 2048, 1, 3, 2.5), REAL("norm_topk_prob", router_normalize, 1),
    REAL("n_group", groups, 8), REAL("topk_group", group_limit, 4), IMPLIED(router_score, ROUTER_SIGMOID),
    ZEROS(router_bias),
};
static const hf_key deepseek_v2_keys[] = { LATENT_KEYS, DEEPSEEK_EXPERTS(64, 1407, 2, 0, 1) };
static const hf_key deepseek_v2_group_keys[] = {
    LATENT_KEYS, DEEPSEEK_EXPERTS(64, 1407, 2, 0, 1), SIZE("n_group", groups), SIZE("topk_group", group_limit),
    IMPLIED(group_best, 1),
};

#define FACTOR SIZE("factor", rope_factor)
static const hf_key factor_keys[] = { FACTOR };
static const hf_key llama3_keys[] = {
    FACTOR,
    SIZE("low_freq_factor", rope_low),
    SIZE("high_freq_factor", rope_high),
    SIZE("original_max_position_embeddings", rope_original),
};
static const hf_key yarn_keys[] = {
    FACTOR,
    KEY("beta_fast", rope_fast, HF_VALUE, 32, HF_VALUE),
    KEY("beta_slow", rope_slow, HF_VALUE, 1, HF_VALUE),
    OPTIONAL("attention_factor", rope_attention, 0),
    REAL("truncate", rope_truncate, 1),
    KEY("original_max_position_embeddings", rope_original, HF_MAX_SEQ, 0, HF_MAX_SEQ),
};

static const hf_key longrope_keys[] = {
    KEY("original_max_position_embeddings", rope_original, HF_MAX_SEQ, 0, HF_MAX_SEQ),
    KEY("factor", rope_factor, HF_LONGER, 0, HF_LONGER),
    OPTIONAL("attention_factor", rope_attention, 0),
    SIZE("short_factor", rope_short),
    SIZE("long_factor", rope_long),
};

static const hf_demand gpt2_demands[] = {
    { "scale_attn_weights",              "true",  false },
    { "scale_attn_by_inverse_layer_idx", "false", false },
    { "attn_pdrop",                      "0.0",   true },
    { "embd_pdrop",                      "0.0",   true },
    { "resid_pdrop",                     "0.0",   true },
};
static const hf_demand mpt_demands[] = { /* of the others transformers reads none */
    { "attn_config.alibi", "true", false }, { "attn_config.clip_qkv", "null", false },
    { "attn_config.qk_ln", "false", false }, { "attn_config.prefix_lm", "false", false },
    { "attn_config.attn_type", "\"multihead_attention\"", false },
    { "attn_config.attn_uses_sequence_id", "false", true }, { "attn_config.attn_impl", "\"torch\"", true },
    { "attn_config.attn_pdrop", "0", true }, { "logit_scale", "null", false }, { "no_bias", "true", false },
    { "expansion_ratio", "4", false }, { "learned_pos_emb", "false", true }, { "emb_pdrop", "0.0", true },
    { "resid_pdrop", "0.0", true }, { "init_device", "\"cpu\"", true }, { "verbose", "0", true },
    { "embedding_fraction", "1.0", true }, { "norm_type", "\"low_precision_layernorm\"", true },
};
#define NO_WINDOW             { "use_sliding_window", "false", false }, \
                              { "sliding_window",     "null",  true }
static const hf_demand gpt_neox_demands[] = { { "attention_bias", "true", false } };
static const hf_demand no_window[]        = { NO_WINDOW };
static const hf_demand gpt_oss_demands[]  = { { "hidden_act", "\"silu\"", true } }; /* not read */
static const hf_demand qwen3_next_demands[] = { { "hidden_act", "\"silu\"", false } }; /* of its convolutions, too */
static const hf_demand phi3_demands[]     = { { "resid_pdrop", "0.0", true }, { "embd_pdrop", "0.0", true } };
static const hf_demand starcoder2_demands[] = {
    { "residual_dropout", "0.0", true }, { "embedding_dropout", "0.0", true },
};
static const hf_demand no_clipping[]      = { { "clip_qkv", "null", false } };
static const hf_demand stablelm_demands[] = { { "qk_layernorm", "false", false } };
static const hf_demand cohere2_demands[]  = { { "use_qk_norm", "false", false } };
static const hf_demand gemma2_demands[]   = { { "use_bidirectional_attention", "false", false } };
static const hf_demand gemma3_demands[]   = { /* which transformers does not cap, whatever the file states */
    { "use_bidirectional_attention", "false", false }, { "attn_logit_softcapping", "null", false },
};
/* These keys describe layers that dense models do not have. */
#define NO_EXPERTS                                                                                \
    { "n_routed_experts", "2", true }, { "n_group", "1", true }, { "topk_group", "1", true },     \
    { "num_experts_per_tok", "1", true }, { "n_shared_experts", "1", true }, { "moe_intermediate_size", "1", true }, \
    { "norm_topk_prob", "false", true }, { "routed_scaling_factor", "1.0", true }
static const hf_demand deepseek_dense_demands[]    = { NO_EXPERTS };
static const hf_demand deepseek_v2_dense_demands[] = { { "mlp_bias", "false", false }, NO_EXPERTS };
static const hf_demand deepseek_v3_demands[] = {
    { "scoring_func", "\"sigmoid\"", false }, { "topk_method", "\"noaux_tc\"", false }, { "moe_layer_freq", "1", false },
};
#define DEEPSEEK_V2_DEMANDS /* transformers never normalizes the weights */                       \
    { "mlp_bias", "false", false }, { "norm_topk_prob", "false", false },                         \
    { "scoring_func", "\"softmax\"", false }, { "moe_layer_freq", "1", false }
static const hf_demand deepseek_v2_demands[] = {
    DEEPSEEK_V2_DEMANDS, { "n_group", "null", true }, { "topk_group", "null", true },
};
static const hf_demand deepseek_v2_group_demands[] = {
    DEEPSEEK_V2_DEMANDS, { "topk_method", "\"group_limited_greedy\"", false },
};
/* Which row of the types deepseek_v2 and v3 a file is: rotated dims are pairs, or halves; with groups of experts. */
static const hf_demand deepseek_is_paired[] = { { "rope_interleave", "true", true } };
static const hf_demand deepseek_is_halved[] = { { "rope_interleave", "false", false } };
static const hf_demand deepseek_is_greedy[] = { { "topk_method", "\"greedy\"", true } };
#define NO_ALIBI { "alibi", "false", false }, { "apply_residual_connection_post_layernorm", "false", false }
#define NEW_FALCON NO_ALIBI, { "multi_query", "true", true }, { "parallel_attn", "true", false }
#define OLD_FALCON                                                                                \
    NO_ALIBI, { "new_decoder_architecture", "false", false }, { "num_kv_heads", "null", true },   \
    { "num_ln_in_parallel_attn", "null", false }
static const hf_demand falcon_shared_demands[] = { NEW_FALCON };
static const hf_demand falcon_new_demands[]    = { NEW_FALCON, { "num_ln_in_parallel_attn", "2", false } };
static const hf_demand falcon_heads_demands[]  = { OLD_FALCON };
static const hf_demand falcon_demands[]        = { OLD_FALCON, { "multi_query", "true", false } };
/* Which row of the type falcon a file is. */
static const hf_demand falcon_is_shared[] = {
    { "new_decoder_architecture", "true", false }, { "num_ln_in_parallel_attn", "1", false },
};
static const hf_demand falcon_is_new[]    = { { "new_decoder_architecture", "true", false } };
static const hf_demand falcon_has_heads[] = { { "multi_query", "false", false } };

const hf_demand hf_common_demands[] = {
    { "is_causal",           "true",  false },
    { "is_encoder_decoder",  "false", false },
    { "add_cross_attention", "false", false },
    { "pruned_heads",        "{}",    false },
    { "quantization_config", "null",  false },
};
const int hf_n_common_demands = (int)COUNT_OF(hf_common_demands);

/* ---- parameters ---------------------------------------------------------------------------- */
#define GPT2_LAYER "transformer.h.%d."
static const hf_param gpt2_params[] = {
    { "embed.tokens",    "transformer.wte.weight",                  0 },
    { "embed.positions", "transformer.wpe.weight",                  0 },
    HF_NORM("l%d.norm1", GPT2_LAYER "ln_1"),
    HF_QKV("", GPT2_LAYER "attn.c_attn.weight", HF_TRANSPOSED),
    HF_QKV(".b", GPT2_LAYER "attn.c_attn.bias", 0),
    HF_BIASED("l%d.attn.o", GPT2_LAYER "attn.c_proj", HF_TRANSPOSED),
    HF_NORM("l%d.norm2", GPT2_LAYER "ln_2"),
    HF_BIASED("l%d.mlp.up", GPT2_LAYER "mlp.c_fc", HF_TRANSPOSED),
    HF_BIASED("l%d.mlp.down", GPT2_LAYER "mlp.c_proj", HF_TRANSPOSED),
    HF_NORM("norm", "transformer.ln_f"),
    { "head",            "lm_head.weight",                          0 },
};

#define NEOX_LAYER "gpt_neox.layers.%d."
static const hf_param mpt_params[] = {
    { "embed.tokens",    "transformer.wte.weight",                          0 },
    { "l%d.norm1.w",     "transformer.blocks.%d.norm_1.weight",             0 },
    { "l%d.norm2.w",     "transformer.blocks.%d.norm_2.weight",             0 },
    HF_QKV("", "transformer.blocks.%d.attn.Wqkv.weight", 0),
    { "l%d.attn.o",      "transformer.blocks.%d.attn.out_proj.weight",      0 },
    { "l%d.mlp.up",      "transformer.blocks.%d.ffn.up_proj.weight",        0 },
    { "l%d.mlp.down",    "transformer.blocks.%d.ffn.down_proj.weight",      0 },
    { "norm.w",          "transformer.norm_f.weight",                       0 },
    { "head",            "lm_head.weight",                                  0 },
};
/* Biased layers whose q, k and v are one matrix, by head: GPT-NeoX and Falcon. */
#define FUSED_LAYERS(LAYER, ATTENTION, NORM1, NORM2)                                             \
    HF_NORM("l%d.norm1", LAYER NORM1), HF_NORM("l%d.norm2", LAYER NORM2),                        \
    HF_QKV("", LAYER ATTENTION ".query_key_value.weight", HF_BY_HEAD),                               \
    HF_QKV(".b", LAYER ATTENTION ".query_key_value.bias", HF_BY_HEAD),                          \
    HF_BIASED("l%d.attn.o", LAYER ATTENTION ".dense", 0),                                        \
    HF_BIASED("l%d.mlp.up", LAYER "mlp.dense_h_to_4h", 0),                                       \
    HF_BIASED("l%d.mlp.down", LAYER "mlp.dense_4h_to_h", 0)
static const hf_param gpt_neox_params[] = {
    { "embed.tokens",    "gpt_neox.embed_in.weight",                           0 },
    FUSED_LAYERS(NEOX_LAYER, "attention", "input_layernorm", "post_attention_layernorm"),
    HF_NORM("norm", "gpt_neox.final_layer_norm"),
    { "head",            "embed_out.weight",                                   0 },
};

/* Llama's names are those of Mistral, Qwen2 (with q, k, v biases) and Qwen3 (with q and k norms)
 * too. OLMo-2 normalizes the output of a branch instead of its input. */
#define LLAMA_LAYER "model.layers.%d."
#define LLAMA_PARAMS(NORM1, NORM2)                                                               \
    { "embed.tokens",    "model.embed_tokens.weight",                     0 },                   \
    { "l%d.norm1.w",     LLAMA_LAYER NORM1 ".weight",                     0 },                   \
    HF_BIASED("l%d.attn.q", LLAMA_LAYER "self_attn.q_proj", 0),                                  \
    HF_BIASED("l%d.attn.k", LLAMA_LAYER "self_attn.k_proj", 0),                                  \
    HF_BIASED("l%d.attn.v", LLAMA_LAYER "self_attn.v_proj", 0),                                  \
    { "l%d.attn.qnorm",  LLAMA_LAYER "self_attn.q_norm.weight",           0 },                   \
    { "l%d.attn.knorm",  LLAMA_LAYER "self_attn.k_norm.weight",           0 },                   \
    HF_BIASED("l%d.attn.o", LLAMA_LAYER "self_attn.o_proj", 0),                                  \
    { "l%d.norm2.w",     LLAMA_LAYER NORM2 ".weight",                     0 },                   \
    HF_BIASED("l%d.mlp.gate", LLAMA_LAYER "mlp.gate_proj", 0),                                   \
    HF_BIASED("l%d.mlp.up", LLAMA_LAYER "mlp.up_proj", 0),                                       \
    HF_BIASED("l%d.mlp.down", LLAMA_LAYER "mlp.down_proj", 0),                                   \
    { "norm.w",          "model.norm.weight",                             0 },                   \
    { "head",            "lm_head.weight",                                0 },
/* Rotary rows of a head in another order than ours: Cohere and GLM rotate neighboring ones. */
#define ROTATED(HOW)                                                                             \
    HF_BIASED("l%d.attn.q", LLAMA_LAYER "self_attn.q_proj", HOW),                                \
    HF_BIASED("l%d.attn.k", LLAMA_LAYER "self_attn.k_proj", HOW)
#define EXPERT_PARAMS(MLP, GATE, UP, DOWN)                                                       \
    { "l%d.moe.router",     "model.layers.%d." MLP ".gate.weight",               0 },            \
    { "l%d.expert%d.gate",  "model.layers.%d." MLP ".experts.%d." GATE ".weight", 0 },           \
    { "l%d.expert%d.up",    "model.layers.%d." MLP ".experts.%d." UP ".weight",   0 },           \
    { "l%d.expert%d.down",  "model.layers.%d." MLP ".experts.%d." DOWN ".weight", 0 },
static const hf_param mixtral_params[] = {
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
    EXPERT_PARAMS("block_sparse_moe", "w1", "w3", "w2")
};
static const hf_param qwen3_moe_params[] = {
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
    EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
};
#define SHARED_EXPERTS(NAME)                                                                     \
    { "l%d.mlp.gate",    "model.layers.%d.mlp." NAME ".gate_proj.weight",      HF_SHARED },      \
    { "l%d.mlp.up",      "model.layers.%d.mlp." NAME ".up_proj.weight",        HF_SHARED },      \
    { "l%d.mlp.down",    "model.layers.%d.mlp." NAME ".down_proj.weight",      HF_SHARED },
static const hf_param qwen2_moe_params[] = {
    { "l%d.moe.gate",    "model.layers.%d.mlp.shared_expert_gate.weight",      0 },
    SHARED_EXPERTS("shared_expert") LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
    EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
};
#define DELTA_LAYER "model.layers.%d.linear_attn."
static const hf_param qwen3_next_params[] = {
    { "l%d.norm1.w",      "model.layers.%d.input_layernorm.weight",            HF_LESS_ONE },
    { "l%d.norm2.w",      "model.layers.%d.post_attention_layernorm.weight",   HF_LESS_ONE },
    { "l%d.attn.qnorm",   "model.layers.%d.self_attn.q_norm.weight",           HF_LESS_ONE },
    { "l%d.attn.knorm",   "model.layers.%d.self_attn.k_norm.weight",           HF_LESS_ONE },
    { "norm.w",           "model.norm.weight",                                 HF_LESS_ONE },
    HF_BIASED("l%d.attn.q", LLAMA_LAYER "self_attn.q_proj", HF_GATE | HF_BY_HEAD),
    HF_BIASED("l%d.attn.gate", LLAMA_LAYER "self_attn.q_proj", HF_UP | HF_BY_HEAD),
    { "l%d.delta.q",      DELTA_LAYER "in_proj_qkvz.weight",                   HF_Q | HF_BY_KEY },
    { "l%d.delta.k",      DELTA_LAYER "in_proj_qkvz.weight",                   HF_K | HF_BY_KEY },
    { "l%d.delta.v",      DELTA_LAYER "in_proj_qkvz.weight",                   HF_V | HF_BY_KEY },
    { "l%d.delta.z",      DELTA_LAYER "in_proj_qkvz.weight",                   HF_Z | HF_BY_KEY },
    { "l%d.delta.b",      DELTA_LAYER "in_proj_ba.weight",                     HF_GATE | HF_BY_KEY },
    { "l%d.delta.a",      DELTA_LAYER "in_proj_ba.weight",                     HF_UP | HF_BY_KEY },
    { "l%d.delta.q.conv", DELTA_LAYER "conv1d.weight",                         HF_Q | HF_DELTA | HF_CONV },
    { "l%d.delta.k.conv", DELTA_LAYER "conv1d.weight",                         HF_K | HF_DELTA | HF_CONV },
    { "l%d.delta.v.conv", DELTA_LAYER "conv1d.weight",                         HF_V | HF_DELTA | HF_CONV },
    { "l%d.delta.rate",   DELTA_LAYER "A_log",                                 0 },
    { "l%d.delta.shift",  DELTA_LAYER "dt_bias",                               0 },
    { "l%d.delta.norm",   DELTA_LAYER "norm.weight",                           0 },
    { "l%d.delta.o",      DELTA_LAYER "out_proj.weight",                       0 },
    { "l%d.moe.gate",     "model.layers.%d.mlp.shared_expert_gate.weight",     0 },
    SHARED_EXPERTS("shared_expert") LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
    EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
};
static const hf_param glm4_moe_params[] = {
    { "l%d.moe.bias",    "model.layers.%d.mlp.gate.e_score_correction_bias",   HF_SHORT },
    SHARED_EXPERTS("shared_experts") LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
    EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
};
#define LLAMA4_LAYER "model.layers.%d.feed_forward."
static const hf_param llama4_params[] = {
    { "l%d.moe.router",     LLAMA4_LAYER "router.weight",                    0 },
    { "l%d.expert%d.gate",  LLAMA4_LAYER "experts.gate_up_proj",             HF_EXPERT | HF_TRANSPOSED | HF_GATE },
    { "l%d.expert%d.up",    LLAMA4_LAYER "experts.gate_up_proj",             HF_EXPERT | HF_TRANSPOSED | HF_UP },
    { "l%d.expert%d.down",  LLAMA4_LAYER "experts.down_proj",                HF_EXPERT | HF_TRANSPOSED },
    { "l%d.mlp.gate",       LLAMA4_LAYER "shared_expert.gate_proj.weight",   HF_SHARED },
    { "l%d.mlp.up",         LLAMA4_LAYER "shared_expert.up_proj.weight",     HF_SHARED },
    { "l%d.mlp.down",       LLAMA4_LAYER "shared_expert.down_proj.weight",   HF_SHARED },
    { "l%d.mlp.gate",       LLAMA4_LAYER "gate_proj.weight",                 0 },
    { "l%d.mlp.up",         LLAMA4_LAYER "up_proj.weight",                   0 },
    { "l%d.mlp.down",       LLAMA4_LAYER "down_proj.weight",                 0 },
    ROTATED(HF_PAIRED),
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
#define OSS_EXPERTS "model.layers.%d.mlp.experts."
static const hf_param gpt_oss_params[] = {
    { "l%d.attn.sinks",     "model.layers.%d.self_attn.sinks",      0 },
    HF_BIASED("l%d.moe.router", LLAMA_LAYER "mlp.router", 0),
    { "l%d.expert%d.gate",  OSS_EXPERTS "gate_up_proj",       HF_EXPERT | HF_TRANSPOSED | HF_GATE | HF_INTERLEAVED },
    { "l%d.expert%d.up",    OSS_EXPERTS "gate_up_proj",       HF_EXPERT | HF_TRANSPOSED | HF_UP | HF_INTERLEAVED },
    { "l%d.expert%d.down",  OSS_EXPERTS "down_proj",          HF_EXPERT | HF_TRANSPOSED },
    { "l%d.expert%d.gate.b", OSS_EXPERTS "gate_up_proj_bias", HF_EXPERT | HF_GATE | HF_INTERLEAVED },
    { "l%d.expert%d.up.b",  OSS_EXPERTS "gate_up_proj_bias",  HF_EXPERT | HF_UP | HF_INTERLEAVED },
    { "l%d.expert%d.down.b", OSS_EXPERTS "down_proj_bias",    HF_EXPERT },
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
static const hf_param gpt_oss_packed[] = {
    { "l%d.expert%d.gate",  OSS_EXPERTS "gate_up_proj",       HF_EXPERT | HF_GATE | HF_INTERLEAVED | HF_MXFP4 },
    { "l%d.expert%d.up",    OSS_EXPERTS "gate_up_proj",       HF_EXPERT | HF_UP | HF_INTERLEAVED | HF_MXFP4 },
    { "l%d.expert%d.down",  OSS_EXPERTS "down_proj",          HF_EXPERT | HF_MXFP4 },
};
/* transformers 5 has all experts of a layer in one tensor; save_pretrained writes the names above, what saves a
 * module's state_dict these. */
static const hf_param stacked_experts[] = {
    { "l%d.moe.router",     "model.layers.%d.mlp.gate.weight",           0 },
    { "l%d.expert%d.gate",  "model.layers.%d.mlp.experts.gate_up_proj",  HF_EXPERT | HF_GATE },
    { "l%d.expert%d.up",    "model.layers.%d.mlp.experts.gate_up_proj",  HF_EXPERT | HF_UP },
    { "l%d.expert%d.down",  "model.layers.%d.mlp.experts.down_proj",     HF_EXPERT },
};
static const hf_param llama_params[] = { LLAMA_PARAMS("input_layernorm", "post_attention_layernorm") };
static const hf_param olmo2_params[] = { LLAMA_PARAMS("post_attention_layernorm",
                                                      "post_feedforward_layernorm") };

static const hf_param phi3_params[] = {
    { "embed.tokens",    "model.embed_tokens.weight",                          0 },
    { "l%d.norm1.w",     "model.layers.%d.input_layernorm.weight",             0 },
    HF_QKV("", "model.layers.%d.self_attn.qkv_proj.weight", 0),
    { "l%d.attn.o",      "model.layers.%d.self_attn.o_proj.weight",            0 },
    { "l%d.norm2.w",     "model.layers.%d.post_attention_layernorm.weight",    0 },
    { "l%d.mlp.gate",    "model.layers.%d.mlp.gate_up_proj.weight",            HF_GATE },
    { "l%d.mlp.up",      "model.layers.%d.mlp.gate_up_proj.weight",            HF_UP },
    { "l%d.mlp.down",    "model.layers.%d.mlp.down_proj.weight",               0 },
    { "norm.w",          "model.norm.weight",                                  0 },
    { "head",            "lm_head.weight",                                     0 },
};
/* The names of Llama with biases in layer norms. */
#define LAYER_NORM_BIASES                                                                        \
    { "l%d.norm1.b",     "model.layers.%d.input_layernorm.bias",               0 },              \
    { "l%d.norm2.b",     "model.layers.%d.post_attention_layernorm.bias",      0 },              \
    { "norm.b",          "model.norm.bias",                                    0 },
static const hf_param starcoder2_params[] = {
    HF_BIASED("l%d.mlp.up", LLAMA_LAYER "mlp.c_fc", 0), HF_BIASED("l%d.mlp.down", LLAMA_LAYER "mlp.c_proj", 0),
    LAYER_NORM_BIASES LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
static const hf_param stablelm_params[] = {
    LAYER_NORM_BIASES LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
static const hf_param glm4_params[] = {
    { "l%d.attn.norm.w", "model.layers.%d.post_self_attn_layernorm.weight",    0 },
    { "l%d.mlp.norm.w",  "model.layers.%d.post_mlp_layernorm.weight",          0 },
    { "l%d.mlp.gate",    "model.layers.%d.mlp.gate_up_proj.weight",            HF_GATE },
    { "l%d.mlp.up",      "model.layers.%d.mlp.gate_up_proj.weight",            HF_UP },
    ROTATED(HF_PAIRED), LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
static const hf_param cohere2_params[] = {
    ROTATED(HF_PAIRED), LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};
#define LATENT_PARAMS(PAIRED)                                                                    \
    { "l%d.attn.q",      "model.layers.%d.self_attn.q_proj.weight",             HF_ROTATED_LAST | PAIRED },                  \
    HF_BIASED("l%d.attn.q_a", LLAMA_LAYER "self_attn.q_a_proj", 0),                              \
    { "l%d.attn.q_a.norm",  "model.layers.%d.self_attn.q_a_layernorm.weight",   0 },                                         \
    { "l%d.attn.q_b",    "model.layers.%d.self_attn.q_b_proj.weight",           HF_ROTATED_LAST | PAIRED },                  \
    HF_BIASED("l%d.attn.kv_a", LLAMA_LAYER "self_attn.kv_a_proj_with_mqa", HF_ROTATED_LAST | PAIRED | HF_ONE_HEAD), \
    { "l%d.attn.kv_a.norm", "model.layers.%d.self_attn.kv_a_layernorm.weight",  0 },                                         \
    { "l%d.attn.kv_b",   "model.layers.%d.self_attn.kv_b_proj.weight",          0 },
static const hf_param deepseek_v2_params[] = {
    LATENT_PARAMS(HF_PAIRED) SHARED_EXPERTS("shared_experts")
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm") EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
};
#define DEEPSEEK_V3_PARAMS(PAIRED)                                                                \
    LATENT_PARAMS(PAIRED) SHARED_EXPERTS("shared_experts")                                       \
    { "l%d.moe.bias",    "model.layers.%d.mlp.gate.e_score_correction_bias",    HF_SHORT },      \
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm") EXPERT_PARAMS("mlp", "gate_proj", "up_proj", "down_proj")
static const hf_param deepseek_v3_params[]        = { DEEPSEEK_V3_PARAMS(HF_PAIRED) };
static const hf_param deepseek_v3_halved_params[] = { DEEPSEEK_V3_PARAMS(0) };
static const hf_param gemma_params[] = {
    { "l%d.norm1.w",     "model.layers.%d.input_layernorm.weight",             HF_LESS_ONE },
    { "l%d.attn.norm.w", "model.layers.%d.post_attention_layernorm.weight",    HF_LESS_ONE },
    { "l%d.norm2.w",     "model.layers.%d.pre_feedforward_layernorm.weight",   HF_LESS_ONE },
    { "l%d.mlp.norm.w",  "model.layers.%d.post_feedforward_layernorm.weight",  HF_LESS_ONE },
    { "l%d.attn.qnorm",  "model.layers.%d.self_attn.q_norm.weight",            HF_LESS_ONE },
    { "l%d.attn.knorm",  "model.layers.%d.self_attn.k_norm.weight",            HF_LESS_ONE },
    { "norm.w",          "model.norm.weight",                                  HF_LESS_ONE },
    LLAMA_PARAMS("input_layernorm", "pre_feedforward_layernorm")
};
#define FALCON_PARAMS(NORM1, NORM2)                                                              \
    { "embed.tokens",    "transformer.word_embeddings.weight",                 0 },              \
    FUSED_LAYERS(GPT2_LAYER, "self_attention", NORM1, NORM2), HF_NORM("norm", "transformer.ln_f"), \
    { "head",            "lm_head.weight",                                     0 },
static const hf_param falcon_new_params[] = { FALCON_PARAMS("ln_attn", "ln_mlp") };
static const hf_param falcon_params[]     = { FALCON_PARAMS("input_layernorm", "post_attention_layernorm") };
static const hf_param nanochat_params[] = {
    ROTATED(HF_REFLECTED),
    { "l%d.mlp.up",      "model.layers.%d.mlp.fc1.weight",                     0 },
    { "l%d.mlp.down",    "model.layers.%d.mlp.fc2.weight",                     0 },
    LLAMA_PARAMS("input_layernorm", "post_attention_layernorm")
};

/* ---- families ------------------------------------------------------------------------------ */
#define ROWS(table)  table, (int)COUNT_OF(table)
#define SILU         "hidden_act", "silu", true
#define ROPE         "rope_theta", NULL, 1.0, 1e4
#define LLAMA_NAMES  "model.", ROWS(llama_params), NULL, 0
static const hf_family families[] = {
    { "gpt2",     "GPT2LMHeadModel",    ROWS(gpt2_keys), ROWS(gpt2_demands),
      "activation_function", "gelu_new", false, NULL, NULL, 0, 0, "transformer.", ROWS(gpt2_params), NULL, 0 },
    { "mpt",      "MptForCausalLM",     ROWS(mpt_keys), ROWS(mpt_demands), NULL, NULL, false, NULL, NULL, 0, 0,
      "transformer.", ROWS(mpt_params), NULL, 0 },
    { "gpt_neox", "GPTNeoXForCausalLM", ROWS(gpt_neox_keys), ROWS(gpt_neox_demands),
      "hidden_act", "gelu", false, "rotary_emb_base", "rotary_pct", 0.25, 1e4,
      "gpt_neox.", ROWS(gpt_neox_params), NULL, 0 },
    { "llama",    "LlamaForCausalLM",   ROWS(llama_keys), NULL, 0,             SILU, ROPE, LLAMA_NAMES },
    { "mistral",  "MistralForCausalLM", ROWS(mistral_keys), NULL, 0,           SILU, ROPE, LLAMA_NAMES },
    { "qwen2",    "Qwen2ForCausalLM",   ROWS(qwen2_keys), ROWS(no_window),     SILU, ROPE, LLAMA_NAMES },
    { "qwen3",    "Qwen3ForCausalLM",   ROWS(qwen3_keys), ROWS(no_window),     SILU, ROPE, LLAMA_NAMES },
    { "mixtral",  "MixtralForCausalLM", ROWS(mixtral_keys), NULL, 0, SILU, "rope_theta", NULL, 1.0, 1e6,
      "model.", ROWS(mixtral_params), ROWS(stacked_experts) },
    { "qwen3_moe", "Qwen3MoeForCausalLM", ROWS(qwen3_moe_keys), ROWS(no_window), SILU, ROPE,
      "model.", ROWS(qwen3_moe_params), ROWS(stacked_experts) },
    { "qwen2_moe", "Qwen2MoeForCausalLM", ROWS(qwen2_moe_keys), ROWS(no_window), SILU, ROPE,
      "model.", ROWS(qwen2_moe_params), ROWS(stacked_experts) },
    { "qwen3_next", "Qwen3NextForCausalLM", ROWS(qwen3_next_keys), ROWS(qwen3_next_demands), NULL, NULL, true,
      "rope_theta", "partial_rotary_factor", 0.25, 1e4, "model.", ROWS(qwen3_next_params), ROWS(stacked_experts),
      .kinds = "25", .full_step = 4, .step_key = "full_attention_interval", .more_layers = true },
    { "glm4_moe", "Glm4MoeForCausalLM", ROWS(glm4_moe_keys), NULL, 0, SILU,
      "rope_theta", "partial_rotary_factor", 0.5, 1e4, "model.", ROWS(glm4_moe_params), ROWS(stacked_experts),
      .more_layers = true },
    { "gpt_oss",  "GptOssForCausalLM", ROWS(gpt_oss_keys), ROWS(gpt_oss_demands), NULL, NULL, true,
      "rope_theta", NULL, 1.0, 1.5e5, "model.", ROWS(gpt_oss_params), ROWS(gpt_oss_packed),
      .kinds = "12", .full_step = 2, .states_rope = true, .mxfp4 = true },
    { "smollm3",  "SmolLM3ForCausalLM", ROWS(smollm3_keys), ROWS(no_window), SILU, "rope_theta", NULL, 1.0, 2e6,
      LLAMA_NAMES, .kinds = "24", .rope_list = "no_rope_layers", .full_step = 4,
      .step_key = "no_rope_layer_interval" },
    { "llama4_text", "Llama4ForCausalLM", ROWS(llama4_keys), NULL, 0, SILU, "rope_theta", NULL, 1.0, 5e5,
      "model.", ROWS(llama4_params), NULL, 0, .kinds = "1234", .rope_list = "no_rope_layers", .full_step = 4,
      .step_key = "no_rope_layer_interval", .chunks = true, .norm_after_rope = true },
    { "olmo2",    "Olmo2ForCausalLM",   ROWS(olmo2_keys), NULL, 0,             SILU, ROPE,
      "model.", ROWS(olmo2_params), NULL, 0 },
    { "olmo3",    "Olmo3ForCausalLM",   ROWS(olmo3_keys), NULL, 0, SILU, "rope_theta", NULL, 1.0, 5e5,
      "model.", ROWS(olmo2_params), NULL, 0, .kinds = "12", .full_step = 4, .local_theta = 5e5 },
    { "olmoe",    "OlmoeForCausalLM",   ROWS(olmoe_keys), ROWS(no_clipping),   SILU, ROPE,
      "model.", ROWS(qwen3_moe_params), ROWS(stacked_experts) },
    { "granite",  "GraniteForCausalLM", ROWS(granite_keys), NULL, 0,           SILU, ROPE, LLAMA_NAMES },
    { "phi3",     "Phi3ForCausalLM",    ROWS(phi3_keys), ROWS(phi3_demands),   SILU,
      "rope_theta", "partial_rotary_factor", 1.0, 1e4, "model.", ROWS(phi3_params), NULL, 0,
      .long_rope_context = 4096 },
    { "glm4",     "Glm4ForCausalLM",    ROWS(glm4_keys), NULL, 0,              SILU,
      "rope_theta", "partial_rotary_factor", 0.5, 1e4, "model.", ROWS(glm4_params), NULL, 0 },
    { "starcoder2", "Starcoder2ForCausalLM", ROWS(starcoder2_keys), ROWS(starcoder2_demands),
      "hidden_act", "gelu_pytorch_tanh", false, ROPE, "model.", ROWS(starcoder2_params), NULL, 0 },
    { "stablelm", "StableLmForCausalLM", ROWS(stablelm_keys), ROWS(stablelm_demands), SILU,
      "rope_theta", "partial_rotary_factor", 0.25, 1e4, "model.", ROWS(stablelm_params), NULL, 0 },
    { "cohere2",  "Cohere2ForCausalLM", ROWS(cohere2_keys), ROWS(cohere2_demands), SILU, ROPE,
      "model.", ROWS(cohere2_params), NULL, 0, .kinds = "14", .full_step = 4, .step_key = "sliding_window_pattern" },
    { "gemma2",   "Gemma2ForCausalLM",  ROWS(gemma2_keys), ROWS(gemma2_demands),
      "hidden_activation", "gelu_pytorch_tanh", true, ROPE, "model.", ROWS(gemma_params), NULL, 0,
      .kinds = "12", .full_step = 2 },
    { "gemma3_text", "Gemma3ForCausalLM", ROWS(gemma3_keys), ROWS(gemma3_demands),
      "hidden_activation", "gelu_pytorch_tanh", true, "rope_theta", NULL, 1.0, 1e6,
      "model.", ROWS(gemma_params), NULL, 0, .kinds = "12", .full_step = 6, .step_key = "sliding_window_pattern",
      .local_theta = 1e4, .local_theta_key = "rope_local_base_freq" },
#define DEEPSEEK(PARAMS) SILU, ROPE, "model.", ROWS(PARAMS), ROWS(stacked_experts), .scaled_scores = true
#define DENSE        .dense_key = "first_k_dense_replace"
#define WHEN(KEYS)   .when = KEYS, .n_when = 1
    { "deepseek_v3", "DeepseekV3ForCausalLM", ROWS(deepseek_dense_keys), ROWS(deepseek_dense_demands),
      DEEPSEEK(deepseek_v3_params), DENSE, WHEN(deepseek_is_paired) },
    { "deepseek_v3", "DeepseekV3ForCausalLM", ROWS(deepseek_v3_keys), ROWS(deepseek_v3_demands),
      DEEPSEEK(deepseek_v3_params), WHEN(deepseek_is_paired), .more_layers = true },
    { "deepseek_v3", "DeepseekV3ForCausalLM", ROWS(deepseek_dense_keys), ROWS(deepseek_dense_demands),
      DEEPSEEK(deepseek_v3_halved_params), DENSE, WHEN(deepseek_is_halved) },
    { "deepseek_v3", "DeepseekV3ForCausalLM", ROWS(deepseek_v3_keys), ROWS(deepseek_v3_demands),
      DEEPSEEK(deepseek_v3_halved_params), WHEN(deepseek_is_halved), .more_layers = true },
    { "deepseek_v2", "DeepseekV2ForCausalLM", ROWS(deepseek_dense_keys), ROWS(deepseek_v2_dense_demands),
      DEEPSEEK(deepseek_v2_params), DENSE },
    { "deepseek_v2", "DeepseekV2ForCausalLM", ROWS(deepseek_v2_keys), ROWS(deepseek_v2_demands),
      DEEPSEEK(deepseek_v2_params), WHEN(deepseek_is_greedy) },
    { "deepseek_v2", "DeepseekV2ForCausalLM", ROWS(deepseek_v2_group_keys), ROWS(deepseek_v2_group_demands),
      DEEPSEEK(deepseek_v2_params) },
    { "kimi_k2",     "DeepseekV3ForCausalLM", ROWS(deepseek_v3_keys), ROWS(deepseek_v3_demands),
      DEEPSEEK(deepseek_v3_params), WHEN(deepseek_is_paired), .more_layers = true },
#define FALCON       "activation", "gelu", false, ROPE, "transformer."
    { "falcon",   "FalconForCausalLM",  ROWS(falcon_shared_keys), ROWS(falcon_shared_demands), FALCON,
      ROWS(falcon_params), NULL, 0, .when = falcon_is_shared, .n_when = 2 },
    { "falcon",   "FalconForCausalLM",  ROWS(falcon_new_keys), ROWS(falcon_new_demands), FALCON,
      ROWS(falcon_new_params), NULL, 0, .when = falcon_is_new, .n_when = 1 },
    { "falcon",   "FalconForCausalLM",  ROWS(falcon_heads_keys), ROWS(falcon_heads_demands), FALCON,
      ROWS(falcon_params), NULL, 0, .when = falcon_has_heads, .n_when = 1 },
    { "falcon",   "FalconForCausalLM",  ROWS(falcon_keys), ROWS(falcon_demands), FALCON,
      ROWS(falcon_params), NULL, 0 },
    { "nanochat", "NanoChatForCausalLM", ROWS(nanochat_keys), NULL, 0, "hidden_act", "relu2", false, ROPE,
      "model.", ROWS(nanochat_params), NULL, 0, .plain_rope = true },
};

/* Keys that change nothing in what a trained model computes: who made the file and how, what a
 * program does with the output, dropout, tokens by name, and keys of other heads than the language
 * model's. */
static const char *const harmless[] = {
    "_attn_implementation", "_name_or_path", "aux_loss_alpha", "ep_size", "seq_aux", "_sliding_window_pattern", "architectures", "attention_dropout", "attn_implementation",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "classifier_dropout", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "eos_token_id", "experts_per_token", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "id2label", "initial_context_length", "is_decoder",
    "label2id", "length_penalty", "max_length", "max_window_layers", "min_length", "model_type",
    "n_ctx", "no_repeat_ngram_size", "num_mtp_layers", "num_nextn_predict_layers", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "original_max_position_embeddings", "output_attentions",
    "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "qk_head_dim", "remove_invalid_values", "reorder_and_upcast_attn", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "router_jitter_noise", "sep_token_id", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache",
};
/* clang-format on */

static const hf_rope_type rope_types[] = {
    { "llama3", ROPE_LLAMA3, ROWS(llama3_keys) },   { "linear", ROPE_LINEAR, ROWS(factor_keys) },
    { "dynamic", ROPE_DYNAMIC, ROWS(factor_keys) }, { "yarn", ROPE_YARN, ROWS(yarn_keys) },
    { "longrope", ROPE_LONG, ROWS(longrope_keys) },
};
const hf_rope_type *hf_rope_type_at(int i) {
    return i < (int)COUNT_OF(rope_types) ? &rope_types[i] : NULL;
}

bool hf_key_is_harmless(const char *key) {
    for (size_t i = 0; i < COUNT_OF(harmless); i++)
        if (!strcmp(harmless[i], key)) return true;
    return false;
}

const hf_family *hf_family_of(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (!strcmp(families[i].model_type, model_type)) return &families[i];
    return NULL;
}

const hf_family *hf_family_at(int i) { return i < (int)COUNT_OF(families) ? &families[i] : NULL; }

const char *hf_family_type(const hf_family *family) { return family->model_type; }

void hf_add_biases(const hf_family *family, model_config *c) {
    for (int i = 0; i < family->n_keys; i++)
        if (family->keys[i].use == HF_ZEROS) *(bool *)((char *)c + family->keys[i].at) = true;
}
