/* Which of our families llama.cpp computes, under which names of parameters and facts. */
#include "checkpoint/gguf_internal.h"

#include <math.h>
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
    HF_QKV("", "blk.%d.attn_qkv.weight", 0), HF_QKV(".b", "blk.%d.attn_qkv.bias", 0),               \
    HF_BIASED("l%d.attn.o", "blk.%d.attn_output", 0)
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
/* Rows of gated DeltaNet's q, k and v follow one another, where Hugging Face has them by head. */
static const hf_param qwen3next[] = { EMBEDDING_AND_HEAD, NORMS_AROUND, QK_NORMS, SHARED_EXPERTS, EXPERTS,
    { "l%d.moe.gate",     "blk.%d.ffn_gate_inp_shexp.weight", 0 },
    { "l%d.attn.q",       "blk.%d.attn_q.weight",             HF_GATE | HF_BY_HEAD },
    { "l%d.attn.gate",    "blk.%d.attn_q.weight",             HF_UP | HF_BY_HEAD },
    { "l%d.attn.k",       "blk.%d.attn_k.weight",             0 },
    { "l%d.attn.v",       "blk.%d.attn_v.weight",             0 },
    { "l%d.attn.o",       "blk.%d.attn_output.weight",        0 },
    { "l%d.delta.q",      "blk.%d.attn_qkv.weight",           HF_Q | HF_DELTA },
    { "l%d.delta.k",      "blk.%d.attn_qkv.weight",           HF_K | HF_DELTA },
    { "l%d.delta.v",      "blk.%d.attn_qkv.weight",           HF_V | HF_DELTA },
    { "l%d.delta.z",      "blk.%d.attn_gate.weight",          0 },
    { "l%d.delta.b",      "blk.%d.ssm_ba.weight",             HF_GATE | HF_BY_KEY },
    { "l%d.delta.a",      "blk.%d.ssm_ba.weight",             HF_UP | HF_BY_KEY },
    { "l%d.delta.q.conv", "blk.%d." GGUF_CONV,                HF_Q | HF_DELTA },
    { "l%d.delta.k.conv", "blk.%d." GGUF_CONV,                HF_K | HF_DELTA },
    { "l%d.delta.v.conv", "blk.%d." GGUF_CONV,                HF_V | HF_DELTA },
    { "l%d.delta.rate",   "blk.%d.ssm_a",                     HF_RATE },
    { "l%d.delta.shift",  "blk.%d.ssm_dt.bias",               0 },
    { "l%d.delta.norm",   "blk.%d.ssm_norm.weight",           0 },
    { "l%d.delta.o",      "blk.%d.ssm_out.weight",            0 },
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
#define NORMS_BEHIND                                                                             \
    { "l%d.attn.norm.w", "blk.%d.post_attention_norm.weight", 0 },                               \
    { "l%d.mlp.norm.w",  "blk.%d.post_ffw_norm.weight",       0 }
static const hf_param gemma2[]   = { EMBEDDING_AND_HEAD, NORMS, NORMS_BEHIND, ATTENTION(0), FEED_FORWARD };
static const hf_param gemma3[]   = { EMBEDDING_AND_HEAD, NORMS, NORMS_BEHIND, ATTENTION(0), QK_NORMS, FEED_FORWARD };
static const hf_param cohere2[]  = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED), FEED_FORWARD };
static const hf_param stablelm[] = { EMBEDDING_AND_HEAD, NORMS, NORM_BIASES, ATTENTION(0), QKV_BIASES, FEED_FORWARD };
static const hf_param phi3[]     = { EMBEDDING_AND_HEAD, NORMS, FUSED_ATTENTION,
    { "l%d.mlp.gate",    "blk.%d.ffn_up.weight",              HF_GATE },
    { "l%d.mlp.up",      "blk.%d.ffn_up.weight",              HF_UP },
    { "l%d.mlp.down",    "blk.%d.ffn_down.weight",            0 },
};
/* With two norms that of attention is called the second. */
#define FALCON EMBEDDING_AND_HEAD, { "norm.b", "output_norm.bias", 0 }, FUSED_ATTENTION, FEED_FORWARD
static const hf_param falcon[]   = { FALCON,
    HF_NORM("l%d.norm1", "blk.%d.attn_norm"),
};
static const hf_param falcon_two[] = { FALCON,
    HF_NORM("l%d.norm1", "blk.%d.attn_norm_2"),
    HF_NORM("l%d.norm2", "blk.%d.attn_norm"),
};
static const hf_param llama4[]   = { EMBEDDING_AND_HEAD, NORMS, ATTENTION(HF_PAIRED), SHARED_EXPERTS, FEED_FORWARD, EXPERTS };
/* It generates from the latent vector: keys are projected into it by the transpose of what projects them from it. */
static const hf_param deepseek2[] = { EMBEDDING_AND_HEAD, NORMS, SHARED_EXPERTS, FEED_FORWARD, EXPERTS,
    { "l%d.attn.q",         "blk.%d.attn_q.weight",         HF_ROTATED_LAST | HF_PAIRED },
    { "l%d.attn.q_a",       "blk.%d.attn_q_a.weight",       0 },
    { "l%d.attn.q_a.norm",  "blk.%d.attn_q_a_norm.weight",  0 },
    { "l%d.attn.q_b",       "blk.%d.attn_q_b.weight",       HF_ROTATED_LAST | HF_PAIRED },
    { "l%d.attn.kv_a",      "blk.%d.attn_kv_a_mqa.weight",  HF_ROTATED_LAST | HF_PAIRED | HF_ONE_HEAD },
    { "l%d.attn.kv_a.norm", "blk.%d.attn_kv_a_norm.weight", 0 },
    { "l%d.attn.kv_b",      "blk.%d.attn_k_b.weight",       HF_KEYS },
    { "l%d.attn.kv_b",      "blk.%d.attn_v_b.weight",       HF_VALUES },
    { "l%d.attn.o",         "blk.%d.attn_output.weight",    0 },
    { "l%d.moe.bias",       "blk.%d.exp_probs_b.bias",      HF_SHORT },
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
    { "qwen3_next", "qwen3next", ROWS(qwen3next), false, .delta = true },
    { "glm4_moe",  "glm4moe",  ROWS(glm4moe),  false, .routes = true },
    { "gpt_oss",   "gpt-oss",  ROWS(gpt_oss),  false, .pattern = 12, .windows = true, .biased = true, .yarn = true,
      .mlp = MLP_SWIGLU_CLAMPED },
    { "mpt",       "mpt",      ROWS(mpt),      false },
    { "phi3",      "phi3",     ROWS(phi3),     false, .even_heads = true, .long_rope = true },
    { "olmo3",     "olmo2",    ROWS(olmo2),    true,  .pattern = 1112, .windows = true, .even_heads = true, .yarn = true,
      .local = true },
    { "gemma2",    "gemma2",   ROWS(gemma2),   false, .pattern = 12, .windows = true, .tied = true, .own_scale = true,
      .caps = true, .mlp = MLP_GEGLU },
    { "gemma3_text", "gemma3", ROWS(gemma3),   false, .pattern = 111112, .windows = true, .own_scale = true, .local = true,
      .mlp = MLP_GEGLU },
    { "cohere2",   "cohere2",  ROWS(cohere2),  false, .pattern = 1114, .windows = true, .tied = true, .even_heads = true },
    { "stablelm",  "stablelm", ROWS(stablelm), true,  .even_heads = true },
    { "falcon",    "falcon",   ROWS(falcon),   false, .even_heads = true, .norms = "one" },
    { "falcon",    "falcon",   ROWS(falcon_two), false, .even_heads = true, .norms = "two" },
    { "llama4_text", "llama4", ROWS(llama4),   false, .shares = true, .pattern = 1114, .windows = true, .interleaved = true,
      .chunks = true },
    { "deepseek_v3", "deepseek2", ROWS(deepseek2), false, .routes = true, .groups = true, .yarn = true },
    { "deepseek_v2", "deepseek2", ROWS(deepseek2), false, .routes = true, .groups = true, .yarn = true },
    { "kimi_k2",   "deepseek2", ROWS(deepseek2), false, .routes = true, .groups = true, .yarn = true },
};

/* ---- facts --------------------------------------------------------------------------------- */
/* Keys behind the architecture's name, and the facts they hold (config/model_facts.def). */
static const struct { const char *theirs, *ours; } facts[] = {
    { "vocab_size",              "vocab_size" },
    { "embedding_length",        "dim" },
    { "block_count",             "layers" },
    { "feed_forward_length",     "ffn_dim" },
    { "attention.head_count",    "heads" },
};
/* clang-format on */

const gguf_model *gguf_model_of(const hf_family *family, const model_config *c) {
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        const char *norms = models[i].norms;
        if (norms && strcmp(norms, c->shared_norm ? "one" : "two")) continue;
        if (!strcmp(models[i].family, hf_family_type(family))) return &models[i];
    }
    return NULL;
}

/* @return n where every n-th layer is attention and the others are gated DeltaNet; 0: they follow in another order */
static int attention_step(const model_config *c) {
    int64_t kinds = c->layer_pattern, n = 1;
    if (kinds % 10 != 2) return 0;
    for (kinds /= 10; kinds % 10 == 5; kinds /= 10) n++;
    return kinds ? 0 : (int)n;
}

static const char *delta_misfit(const model_config *c) {
    if (!attention_step(c) || attention_step(c) > c->layers)
        return "these kinds of layers (model.layer_pattern)";
    if (c->delta_key_dim != c->delta_value_dim)
        return "heads of values that are not as wide as those of keys (model.delta_value_dim)";
    return c->qkv_bias || c->o_bias ? "biases of attention (model.qkv_bias)" : NULL;
}

/* @return what llama.cpp's models of this type do not have in their attention; NULL: nothing */
static const char *attention_misfit(const gguf_model *g, const model_config *c) {
    double usual = 1 / sqrt((double)c->head_dim), across = 1 / sqrt((double)c->dim / c->heads);
    bool own = !strcmp(g->name, "granite"), large = c->layers == 46 || c->layers == 62;
    double scale = c->attention_scale != 0 ? c->attention_scale : usual;
    double want = g->own_scale && large ? across : usual; /* by Gemma's 27B models */
    if (g->delta && delta_misfit(c)) return delta_misfit(c);
    if (!g->delta && c->layer_pattern != g->pattern)
        return "these kinds of layers (model.layer_pattern)";
    if (g->even_heads && c->heads * c->head_dim != c->dim)
        return "heads that are not as wide as the model together (model.head_dim)";
    if (g->all_kv && c->kv_heads != c->heads) return "grouped queries (model.kv_heads)";
    if (g->biased && !(c->qkv_bias && (c->o_bias || !g->yarn)))
        return "attention without biases (model.qkv_bias, model.attention_output_bias)";
    if (!own && fabs(scale - want) > 1e-6 * want)
        return "another factor of the scores (model.attention_scale)";
    if (g->caps && !(c->attention_softcap > 0 && c->logit_softcap > 0))
        return "unbounded scores or logits (model.attention_softcap, model.logit_softcap)";
    if (g->chunks && (c->window != 8192 || c->temperature != 0.1 || c->temperature_floor != 8192 ||
                      c->qk_scale != 1 || (c->qknorm != QKNORM_NONE) != (c->experts != 128)))
        return "other chunks, temperatures or norms than Llama 4's (model.sliding_window, "
               "model.attention_temperature, model.qk_norm)";
    if (c->kv_latent && c->latent_eps != c->norm_eps)
        return "another epsilon of the latent vectors (model.latent_norm_eps)";
    bool lite = c->layers == 26 || c->layers == 27 || (c->layers == 48 && c->vocab == 128256);
    if (c->q_latent && lite)
        return "a latent vector of queries at this number of layers (model.q_latent_dim)";
    return NULL;
}

static const char *rope_misfit(const gguf_model *g, const model_config *c) {
    bool betas = c->rope_fast == 32 && c->rope_slow == 1;
    if (c->window && g->windows && c->rope_scaling != ROPE_PLAIN && g->local && c->rope_local == 0)
        return "stretched rotary frequencies in layers with a window (model.rope_local_theta)";
    switch (c->pos == POS_ROPE ? c->rope_scaling : ROPE_PLAIN) {
    case ROPE_PLAIN:
    case ROPE_DYNAMIC: return NULL;
    case ROPE_LLAMA3:
    case ROPE_LINEAR:
        if (!strcmp(g->name, "llama")) return NULL;
        if (!strcmp(g->name, "llama4")) return NULL;
        if (!strcmp(g->name, "gemma3") && c->rope_scaling == ROPE_LINEAR) return NULL;
        break;
    case ROPE_YARN:
        if (g->yarn && betas && c->rope_attention == (c->kv_latent ? 1 : 0)) return NULL;
        break;
    case ROPE_LONG:
        if (g->long_rope) return NULL;
        break;
    }
    return "stretched rotary frequencies (model.rope_scaling)";
}

static const char *experts_misfit(const gguf_model *g, const model_config *c) {
    if (!c->experts) return g->interleaved || g->delta ? "no experts (model.experts)" : NULL;
    if (!g->routes && c->router_normalize == g->shares)
        return g->shares
                   ? "experts whose weights are divided by their sum (model.router_normalize=true)"
                   : "experts whose weights are not divided by their sum "
                     "(model.router_normalize=false)";
    if ((c->first_dense && !g->routes) || (c->moe_step != 1 && !g->interleaved))
        return "layers without experts among those with them";
    if (c->groups > 1 && (!g->groups || c->group_best))
        return "groups of experts (model.expert_groups)";
    bool as_wide = c->shared_dim == 0 || c->shared_dim == c->shared_experts * model_expert_dim(c);
    if (g->interleaved && (c->shared_experts != 1 || !as_wide || c->router_scale != 1))
        return "another shared expert, or a factor of their weights (model.shared_experts, "
               "model.router_scale)";
    return NULL;
}

err gguf_check_model(const gguf_model *g, const model_config *c) {
    const char *fact = attention_misfit(g, c);
    bool gated = mlp_kind_traits[c->mlp] & MLP_GATED;
    if (!fact) fact = rope_misfit(g, c);
    if (!fact) fact = experts_misfit(g, c);
    if (c->tied && g->own_head) fact = "a head that is the embedding (model.tie_embeddings)";
    if (!c->tied && g->tied) fact = "a head of their own (model.tie_embeddings)";
    if (gated ? c->mlp != g->mlp : c->mlp == MLP_RELU2) fact = "this activation (model.activation)";
    if (c->mlp == MLP_SWIGLU_CLAMPED && (c->swiglu_limit != 7 || c->swiglu_alpha != 1.702))
        fact = "these bounds (model.swiglu_limit, model.swiglu_alpha)";
    if (g->norms && !c->parallel)
        fact = "branches that follow one another (model.parallel_branches)";
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

#define KEY(name) key_of(key, sizeof key, g, name)
static void add_attention(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
    int64_t latent = c->kv_latent;
    /* latent attention is that of one head of keys, which are the latent vector and the rotated part */
    gguf_add_integer(m, KEY("attention.head_count_kv"), latent ? 1 : c->kv_heads);
    gguf_add_integer(m, KEY("attention.key_length"),
                     latent ? latent + c->rope_head_dim : c->head_dim);
    gguf_add_integer(m, KEY("attention.value_length"), latent ? latent : c->head_dim);
    if (latent) {
        gguf_add_integer(m, KEY("attention.q_lora_rank"), c->q_latent);
        gguf_add_integer(m, KEY("attention.kv_lora_rank"), latent);
        gguf_add_integer(m, KEY("attention.key_length_mla"), c->head_dim);
        gguf_add_integer(m, KEY("attention.value_length_mla"), c->value_head_dim);
    }
    if (c->pos == POS_ALIBI) gguf_add_real(m, KEY("attention.max_alibi_bias"), c->alibi_max);
    if (g->windows && c->window) gguf_add_integer(m, KEY("attention.sliding_window"), c->window);
    if (c->attention_softcap > 0)
        gguf_add_real(m, KEY("attn_logit_softcapping"), c->attention_softcap);
    if (c->logit_softcap > 0) gguf_add_real(m, KEY("final_logit_softcapping"), c->logit_softcap);
}

static void add_delta(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
    gguf_add_integer(m, KEY("full_attention_interval"), attention_step(c));
    gguf_add_integer(m, KEY("ssm.conv_kernel"), c->delta_conv);
    gguf_add_integer(m, KEY("ssm.state_size"), c->delta_key_dim);
    gguf_add_integer(m, KEY("ssm.group_count"), c->delta_keys);
    gguf_add_integer(m, KEY("ssm.time_step_rank"), c->delta_values);
    gguf_add_integer(m, KEY("ssm.inner_size"), c->delta_values * c->delta_value_dim);
}

static void add_rope(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
    rope_scaling_kind kind = c->rope_scaling;
    bool yarn = kind == ROPE_YARN, beyond = kind == ROPE_LONG;
    gguf_add_real(m, KEY("rope.freq_base"), c->rope_theta);
    gguf_add_integer(m, KEY("rope.dimension_count"), rope_dims(c));
    if (g->local)
        gguf_add_real(m, KEY("rope.freq_base_swa"),
                      c->rope_local != 0 ? c->rope_local : c->rope_theta);
    if (kind == ROPE_LINEAR && g->local) {
        gguf_add_text(m, KEY("rope.scaling.type"), "linear");
        gguf_add_real(m, KEY("rope.scaling.factor"), c->rope_factor);
    }
    if (!yarn && !beyond) return;
    gguf_add_text(m, KEY("rope.scaling.type"), yarn ? "yarn" : "longrope");
    if (yarn) gguf_add_real(m, KEY("rope.scaling.factor"), c->rope_factor);
    gguf_add_integer(m, KEY("rope.scaling.original_context_length"), c->rope_original);
    if (beyond) gguf_add_real(m, KEY("rope.scaling.attn_factor"), rope_factor_of(c));
    if (c->rope_mscale != 0)
        gguf_add_real(m, KEY("rope.scaling.yarn_log_multiplier"), 0.1 * c->rope_mscale);
}

static void add_experts(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
    if (!c->experts && !c->kv_latent) return;
    gguf_add_integer(m, KEY("expert_feed_forward_length"),
                     c->experts ? model_expert_dim(c) : c->ffn);
    if (c->shared_experts || c->kv_latent)
        gguf_add_integer(m, KEY("expert_shared_count"), c->shared_experts);
    if (c->shared_experts)
        gguf_add_integer(m, KEY("expert_shared_feed_forward_length"),
                         c->shared_dim ? c->shared_dim : c->shared_experts * model_expert_dim(c));
    if (g->routes)
        gguf_add_integer(m, KEY("leading_dense_block_count"),
                         c->experts ? c->first_dense : c->layers);
    if (!c->experts) return;
    gguf_add_integer(m, KEY("expert_count"), c->experts);
    gguf_add_integer(m, KEY("expert_used_count"), c->experts_per_token);
    if (g->interleaved) gguf_add_integer(m, KEY("interleave_moe_layer_step"), c->moe_step);
    if (c->groups > 1) {
        gguf_add_integer(m, KEY("expert_group_count"), c->groups);
        gguf_add_integer(m, KEY("expert_group_used_count"), c->group_limit);
    }
    if (!g->routes) return;
    gguf_add_real(m, KEY("expert_weights_scale"), c->router_scale);
    gguf_add_bool(m, KEY("expert_weights_norm"), c->router_normalize);
    gguf_add_integer(m, KEY("expert_gating_func"), c->router_score == ROUTER_SIGMOID ? 2 : 1);
}

void gguf_add_model(gguf_meta *m, const gguf_model *g, const model_config *c) {
    char key[64];
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        gguf_add_integer(m, KEY(facts[i].theirs),
                         (int64_t)model_fact_get(model_fact_find(facts[i].ours), c));
    gguf_add_integer(m, KEY("context_length"), context_of(g, c));
    gguf_add_real(m,
                  KEY(c->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                          : "attention.layer_norm_epsilon"),
                  c->norm_eps);
    add_attention(m, g, c);
    if (g->delta) add_delta(m, g, c);
    if (c->pos == POS_ROPE) add_rope(m, g, c);
    if (!strcmp(g->name, "granite")) {
        gguf_add_real(m, KEY("logit_scale"), 1 / c->logit_scale);
        gguf_add_real(m, KEY("embedding_scale"), c->embedding_scale);
        gguf_add_real(m, KEY("residual_scale"), c->residual_scale);
        gguf_add_real(m, KEY("attention.scale"), c->attention_scale);
    }
    if (!strcmp(g->name, "cohere2")) gguf_add_real(m, KEY("logit_scale"), c->logit_scale);
    if (!strcmp(g->name, "gptneox") || !strcmp(g->name, "stablelm"))
        gguf_add_bool(m, KEY("use_parallel_residual"), c->parallel);
    add_experts(m, g, c);
}
#undef KEY
