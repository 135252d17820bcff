/* Which of our families llama.cpp computes, under which names of parameters and facts. */
#include "checkpoint/gguf_internal.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
/* ---- parameters ---------------------------------------------------------------------------- */
#define EMBEDDING_AND_HEAD                                                                       \
    { "embed.tokens",   "token_embd.weight",                 0 },                                \
    { "norm.w",         "output_norm.weight",                0 },                                \
    { "head",           "output.weight",                     0 }
#define NORMS                                                                                    \
    { "l%d.norm1.w",    "blk.%d.attn_norm.weight",           0 },                                \
    { "l%d.norm2.w",    "blk.%d.ffn_norm.weight",            0 }
#define NORM_BIASES                                                                              \
    { "l%d.norm1.b",    "blk.%d.attn_norm.bias",             0 },                                \
    { "l%d.norm2.b",    "blk.%d.ffn_norm.bias",              0 },                                \
    { "norm.b",         "output_norm.bias",                  0 }
#define ATTENTION(HOW)                                                                           \
    { "l%d.attn.q",     "blk.%d.attn_q.weight",              HOW },                              \
    { "l%d.attn.k",     "blk.%d.attn_k.weight",              HOW },                              \
    { "l%d.attn.v",     "blk.%d.attn_v.weight",              0 },                                \
    { "l%d.attn.o",     "blk.%d.attn_output.weight",         0 }
#define FUSED_ATTENTION                                                                          \
    { "l%d.attn.q",     "blk.%d.attn_qkv.weight",            HF_Q },                             \
    { "l%d.attn.k",     "blk.%d.attn_qkv.weight",            HF_K },                             \
    { "l%d.attn.v",     "blk.%d.attn_qkv.weight",            HF_V },                             \
    { "l%d.attn.q.b",   "blk.%d.attn_qkv.bias",              HF_Q },                             \
    { "l%d.attn.k.b",   "blk.%d.attn_qkv.bias",              HF_K },                             \
    { "l%d.attn.v.b",   "blk.%d.attn_qkv.bias",              HF_V },                             \
    { "l%d.attn.o",     "blk.%d.attn_output.weight",         0 },                                \
    { "l%d.attn.o.b",   "blk.%d.attn_output.bias",           0 }
#define QKV_BIASES                                                                               \
    { "l%d.attn.q.b",   "blk.%d.attn_q.bias",                0 },                                \
    { "l%d.attn.k.b",   "blk.%d.attn_k.bias",                0 },                                \
    { "l%d.attn.v.b",   "blk.%d.attn_v.bias",                0 }
#define QK_NORMS                                                                                 \
    { "l%d.attn.qnorm", "blk.%d.attn_q_norm.weight",         0 },                                \
    { "l%d.attn.knorm", "blk.%d.attn_k_norm.weight",         0 }
#define FEED_FORWARD                                                                             \
    { "l%d.mlp.gate",   "blk.%d.ffn_gate.weight",            0 },                                \
    { "l%d.mlp.up",     "blk.%d.ffn_up.weight",              0 },                                \
    { "l%d.mlp.down",   "blk.%d.ffn_down.weight",            0 }
#define FEED_FORWARD_BIASES                                                                      \
    { "l%d.mlp.up.b",   "blk.%d.ffn_up.bias",                0 },                                \
    { "l%d.mlp.down.b", "blk.%d.ffn_down.bias",              0 }
#define EXPERTS                                                                                  \
    { "l%d.moe.router",    "blk.%d.ffn_gate_inp.weight",     0 },                                \
    { "l%d.expert%d.gate", "blk.%d.ffn_gate_exps.weight",    HF_EXPERT },                        \
    { "l%d.expert%d.up",   "blk.%d.ffn_up_exps.weight",      HF_EXPERT },                        \
    { "l%d.expert%d.down", "blk.%d.ffn_down_exps.weight",    HF_EXPERT }

#define SHARED_EXPERTS                                                                           \
    { "l%d.mlp.gate",   "blk.%d.ffn_gate_shexp.weight",      HF_SHARED },                        \
    { "l%d.mlp.up",     "blk.%d.ffn_up_shexp.weight",        HF_SHARED },                        \
    { "l%d.mlp.down",   "blk.%d.ffn_down_shexp.weight",      HF_SHARED }
/* The second norm of a block, where it goes by the name of one behind attention. */
#define NORMS_AROUND                                                                             \
    { "l%d.norm1.w",    "blk.%d.attn_norm.weight",           0 },                                \
    { "l%d.norm2.w",    "blk.%d.post_attention_norm.weight", 0 }

/* llama.cpp rotates neighboring rows of a head in models of the type llama. */
static const hf_param llama[]    = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED), FEED_FORWARD, EXPERTS };
static const hf_param qwen2[]    = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(0), QKV_BIASES, FEED_FORWARD };
static const hf_param qwen3[]    = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(0), QK_NORMS, FEED_FORWARD };
static const hf_param qwen3moe[] = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(0), QK_NORMS, EXPERTS };
static const hf_param olmo2[]    = { EMBEDDING_AND_HEAD, ATTENTION(0), QK_NORMS, FEED_FORWARD,
    { "l%d.norm1.w",     "blk.%d.post_attention_norm.weight", 0 },
    { "l%d.norm2.w",     "blk.%d.post_ffw_norm.weight",       0 },
};
static const hf_param granite[]  = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED), FEED_FORWARD, FEED_FORWARD_BIASES,
    { "l%d.mlp.gate.b",  "blk.%d.ffn_gate.bias",              0 },
    { "l%d.attn.o.b",    "blk.%d.attn_output.bias",           0 },
};
static const hf_param smollm3[]  = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED), FEED_FORWARD };
static const hf_param olmoe[]    = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(0), QK_NORMS, EXPERTS };
static const hf_param starcoder2[] = { EMBEDDING_AND_HEAD, NORMS, NORM_BIASES, ATTENTION(0), QKV_BIASES, FEED_FORWARD,
    FEED_FORWARD_BIASES, { "l%d.attn.o.b", "blk.%d.attn_output.bias", 0 },
};
static const hf_param glm4[]     = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED),
    { "l%d.attn.q.b",    "blk.%d.attn_q.bias",                HF_PAIRED },
    { "l%d.attn.k.b",    "blk.%d.attn_k.bias",                HF_PAIRED },
    { "l%d.attn.v.b",    "blk.%d.attn_v.bias",                0 },
    { "l%d.attn.norm.w", "blk.%d.post_attention_norm.weight", 0 },
    { "l%d.mlp.norm.w",  "blk.%d.post_ffw_norm.weight",       0 },
    { "l%d.mlp.gate",    "blk.%d.ffn_up.weight",              HF_GATE },
    { "l%d.mlp.up",      "blk.%d.ffn_up.weight",              HF_UP },
    { "l%d.mlp.down",    "blk.%d.ffn_down.weight",            0 },
};
static const hf_param qwen2moe[] = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(0), QKV_BIASES, SHARED_EXPERTS, EXPERTS,
    { "l%d.moe.gate",    "blk.%d.ffn_gate_inp_shexp.weight",  0 },
};
static const hf_param glm4moe[]  = { EMBEDDING_AND_HEAD, NORMS_AROUND, ATTENTION(0), QKV_BIASES, QK_NORMS,
    SHARED_EXPERTS, FEED_FORWARD, EXPERTS,
    { "l%d.moe.bias",    "blk.%d.exp_probs_b.bias",           HF_SHORT },
};
static const hf_param gpt_oss[]  = { EMBEDDING_AND_HEAD, NORMS_AROUND, ATTENTION(0), QKV_BIASES, EXPERTS,
    { "l%d.attn.o.b",    "blk.%d.attn_output.bias",           0 },
    { "l%d.attn.sinks",  "blk.%d.attn_sinks.weight",          0 },
    { "l%d.moe.router.b",    "blk.%d.ffn_gate_inp.bias",      0 },
    { "l%d.expert%d.gate.b", "blk.%d.ffn_gate_exps.bias",     HF_EXPERT },
    { "l%d.expert%d.up.b",   "blk.%d.ffn_up_exps.bias",       HF_EXPERT },
    { "l%d.expert%d.down.b", "blk.%d.ffn_down_exps.bias",     HF_EXPERT },
};
static const hf_param mpt[]      = { EMBEDDING_AND_HEAD, NORMS, FUSED_ATTENTION, FEED_FORWARD };
static const hf_param gpt2[]     = { EMBEDDING_AND_HEAD, NORMS, NORM_BIASES, FUSED_ATTENTION, FEED_FORWARD,
    FEED_FORWARD_BIASES, { "embed.positions", "position_embd.weight", 0 },
};
static const hf_param gptneox[]  = { EMBEDDING_AND_HEAD, NORMS, NORM_BIASES, FUSED_ATTENTION, FEED_FORWARD,
    FEED_FORWARD_BIASES,
};

#define ROWS(table) table, (int)COUNT_OF(table)
static const gguf_model models[] = {
    { "llama",     "llama",    ROWS(llama),    false },
    { "mistral",   "llama",    ROWS(llama),    false },
    { "mixtral",   "llama",    ROWS(llama),    false },
    { "qwen2",     "qwen2",    ROWS(qwen2),    false },
    { "qwen3",     "qwen3",    ROWS(qwen3),    false },
    { "qwen3_moe", "qwen3moe", ROWS(qwen3moe), false },
    { "olmo2",     "olmo2",    ROWS(olmo2),    true },
    { "gpt2",      "gpt2",     ROWS(gpt2),     false },
    { "gpt_neox",  "gptneox",  ROWS(gptneox),  true },
    { "granite",   "granite",  ROWS(granite),  false },
    { "smollm3",   "smollm3",  ROWS(smollm3),  false, .pattern = 2224 },
    { "olmoe",     "olmoe",    ROWS(olmoe),    true,  .shares = true, .even_heads = true, .all_kv = true },
    { "starcoder2", "starcoder2", ROWS(starcoder2), false, .even_heads = true },
    { "glm4",      "glm4",     ROWS(glm4),     false },
    { "qwen2_moe", "qwen2moe", ROWS(qwen2moe), false, .shares = true, .biased = true },
    { "glm4_moe",  "glm4moe",  ROWS(glm4moe),  false, .routes = true },
    { "gpt_oss",   "gpt-oss",  ROWS(gpt_oss),  false, .pattern = 12, .windows = true, .biased = true, .yarn = true,
      .mlp = MLP_SWIGLU_CLAMPED },
    { "mpt",       "mpt",      ROWS(mpt),      false },
};

/* ---- facts --------------------------------------------------------------------------------- */
/* Keys behind the architecture's name, and the facts they hold (config/model_facts.def). */
static const struct { const char *theirs, *ours; } facts[] = {
    { "vocab_size",              "vocab_size" },
    { "embedding_length",        "dim" },
    { "block_count",             "layers" },
    { "feed_forward_length",     "ffn_dim" },
    { "attention.head_count",    "heads" },
    { "attention.head_count_kv", "kv_heads" },
    { "attention.key_length",    "head_dim" },
    { "attention.value_length",  "head_dim" },
};
/* clang-format on */

const gguf_model *gguf_model_of(const hf_family *family) {
    for (size_t i = 0; i < COUNT_OF(models); i++)
        if (!strcmp(models[i].family, hf_family_type(family))) return &models[i];
    return NULL;
}

err gguf_check_model(const gguf_model *g, const model_config *c) {
    const char *fact = NULL;
    if (c->tied && g->own_head) fact = "a head that is the embedding (model.tie_embeddings)";
    if (c->experts && !g->routes && c->router_normalize == g->shares)
        fact = g->shares
                   ? "experts whose weights are divided by their sum (model.router_normalize=true)"
                   : "experts whose weights are not divided by their sum "
                     "(model.router_normalize=false)";
    if (c->layer_pattern != g->pattern) fact = "these kinds of layers (model.layer_pattern)";
    if (g->even_heads && c->heads * c->head_dim != c->dim)
        fact = "heads that are not as wide as the model together (model.head_dim)";
    if (g->all_kv && c->kv_heads != c->heads) fact = "grouped queries (model.kv_heads)";
    if (c->experts && ((c->first_dense && !g->routes) || c->moe_step != 1))
        fact = "layers without experts among those with them";
    if (c->experts && c->groups > 1) fact = "groups of experts (model.expert_groups)";
    if (g->biased && !(c->qkv_bias && (c->o_bias || !g->yarn)))
        fact = "attention without biases (model.qkv_bias, model.attention_output_bias)";
    if (c->pos == POS_ALIBI && c->attention_scale != 0)
        fact = "another factor of the scores (model.attention_scale)";
    bool stretched = c->rope_scaling != ROPE_PLAIN && c->rope_scaling != ROPE_DYNAMIC;
    bool yarn = c->rope_scaling == ROPE_YARN && c->rope_fast == 32 && c->rope_slow == 1 &&
                c->rope_attention == 0;
    if (stretched && !(g->yarn && yarn) &&
        (strcmp(g->name, "llama") || c->rope_scaling == ROPE_YARN || c->rope_scaling == ROPE_LONG))
        fact = "stretched rotary frequencies (model.rope_scaling)";
    bool gated = mlp_kind_traits[c->mlp] & MLP_GATED;
    if (gated ? c->mlp != g->mlp : c->mlp == MLP_RELU2) fact = "this activation (model.activation)";
    if (c->mlp == MLP_SWIGLU_CLAMPED && (c->swiglu_limit != 7 || c->swiglu_alpha != 1.702))
        fact = "these bounds (model.swiglu_limit, model.swiglu_alpha)";
    if (!fact) return OK;
    return err_hint(ERR("llama.cpp reads no %s models with %s", g->name, fact),
                    "export to a Hugging Face folder instead");
}

/* Longer texts than a window would be attended to otherwise: llama.cpp has no windows in models of the type llama. */
static int64_t context_of(const gguf_model *g, const model_config *c) {
    return c->window && !g->windows ? MIN(c->window, c->max_seq) : c->max_seq;
}

static const char *key_of(char *buf, size_t n, const gguf_model *g, const char *name) {
    snprintf(buf, n, "%s.%s", g->name, name);
    return buf;
}

void gguf_add_model(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
#define KEY(name) key_of(key, sizeof key, g, name)
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        gguf_add_integer(m, KEY(facts[i].theirs),
                         (int64_t)model_fact_get(model_fact_find(facts[i].ours), c));
    gguf_add_integer(m, KEY("context_length"), context_of(g, c));
    gguf_add_real(m,
                  KEY(c->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                          : "attention.layer_norm_epsilon"),
                  c->norm_eps);
    if (c->pos == POS_ROPE) {
        gguf_add_real(m, KEY("rope.freq_base"), c->rope_theta);
        gguf_add_integer(m, KEY("rope.dimension_count"), rope_dims(c));
    }
    if (c->pos == POS_ALIBI) gguf_add_real(m, KEY("attention.max_alibi_bias"), c->alibi_max);
    if (g->windows && c->window) gguf_add_integer(m, KEY("attention.sliding_window"), c->window);
    if (c->pos == POS_ROPE && c->rope_scaling == ROPE_YARN) {
        gguf_add_text(m, KEY("rope.scaling.type"), "yarn");
        gguf_add_real(m, KEY("rope.scaling.factor"), c->rope_factor);
        gguf_add_integer(m, KEY("rope.scaling.original_context_length"), c->rope_original);
    }
    if (!strcmp(g->name, "granite")) {
        gguf_add_real(m, KEY("logit_scale"), 1 / c->logit_scale);
        gguf_add_real(m, KEY("embedding_scale"), c->embedding_scale);
        gguf_add_real(m, KEY("residual_scale"), c->residual_scale);
        gguf_add_real(m, KEY("attention.scale"), c->attention_scale);
    }
    if (!strcmp(g->name, "gptneox")) gguf_add_bool(m, KEY("use_parallel_residual"), c->parallel);
    if (!c->experts) return;
    gguf_add_integer(m, KEY("expert_count"), c->experts);
    gguf_add_integer(m, KEY("expert_used_count"), c->experts_per_token);
    gguf_add_integer(m, KEY("expert_feed_forward_length"), model_expert_dim(c));
    if (c->shared_experts) {
        int64_t width = c->shared_dim ? c->shared_dim : c->shared_experts * model_expert_dim(c);
        gguf_add_integer(m, KEY("expert_shared_count"), c->shared_experts);
        gguf_add_integer(m, KEY("expert_shared_feed_forward_length"), width);
    }
    if (!g->routes) return;
    gguf_add_integer(m, KEY("leading_dense_block_count"), c->first_dense);
    gguf_add_real(m, KEY("expert_weights_scale"), c->router_scale);
    gguf_add_bool(m, KEY("expert_weights_norm"), c->router_normalize);
    gguf_add_integer(m, KEY("expert_gating_func"), c->router_score == ROUTER_SIGMOID ? 2 : 1);
#undef KEY
}
