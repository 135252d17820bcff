/* Models known by name. A row is a family and a size. */
#include "model_internal.h"

#include <string.h>

/* Values that the sizes of a family share, as far as they differ from the defaults of the fact table: a
 * member that is 0 here has its default. */
#define BY_BYTES                .tied = true, .vocab = 257, .max_seq = 1024
#define EXPERTS(n, chosen, dim) .experts = n, .experts_per_token = chosen, .expert_dim = dim

#define SIGMOID_ROUTER .router_score = ROUTER_SIGMOID, .router_normalize = true, .router_bias = true

#define GPT .norm = NORM_LAYER, .mlp = MLP_GELU_TANH, .bias = true, .pos = POS_LEARNED, .tied = true
static const model_config gpt2 = { GPT, .vocab = 50257, .max_seq = 1024 };
static const model_config gpt3 = { GPT, .vocab = 50257, .max_seq = 2048 };
static const model_config pythia = { .norm = NORM_LAYER,
                                     .mlp = MLP_GELU_ERF,
                                     .bias = true,
                                     .parallel = true,
                                     .rope_fraction = 0.25,
                                     .init = INIT_SMALL,
                                     .vocab = 50304,
                                     .max_seq = 2048 };
static const model_config llama = { .vocab = 32000, .max_seq = 4096 };
static const model_config llama3 = { .rope_theta = 500000, .vocab = 128256, .max_seq = 8192 };
static const model_config llama31 = {
    .rope_theta = 500000, .rope_scaling = ROPE_LLAMA3, .vocab = 128256, .max_seq = 131072
};
static const model_config mistral = { .window = 4096, .vocab = 32000, .max_seq = 32768 };
/* Chinchilla's relative positions are not public; rotary ones stand in. Sizes are the paper's. */
static const model_config chinchilla = { .mlp = MLP_GELU_TANH, .vocab = 32000, .max_seq = 2048 };
#define OLMO                                                                                       \
    .init = INIT_FLAT, .norm_position = NORM_POST, .qknorm = QKNORM_FULL, .rope_theta = 500000,    \
    .norm_eps = 1e-6
static const model_config olmo2 = { OLMO, .vocab = 100352, .max_seq = 4096 };
#define QWEN  .rope_theta = 1000000, .norm_eps = 1e-6, .vocab = 151936
#define QWEN2 QWEN, .qkv_bias = true
#define QWEN3 QWEN, .qknorm = QKNORM_HEAD, .max_seq = 40960
#define QWEN2_MOE(n, chosen, dim, shared)                                                          \
    QWEN2, EXPERTS(n, chosen, dim), .shared_experts = 1, .shared_dim = shared,                     \
                                    .shared_gate = true, .balance_loss = 0.001
static const model_config qwen2 = { QWEN2, .max_seq = 131072 };
static const model_config qwen2_tied = { QWEN2, .tied = true, .max_seq = 32768 };
static const model_config qwen3 = { QWEN3 };
static const model_config qwen3_tied = { QWEN3, .tied = true };
static const model_config mixtral = { .experts = 8,
                                      .experts_per_token = 2,
                                      .router_normalize = true,
                                      .rope_theta = 1000000,
                                      .vocab = 32000,
                                      .max_seq = 32768 };
static const model_config qwen3_moe = { QWEN3, EXPERTS(128, 8, 768), .router_normalize = true,
                                        .balance_loss = 0.001 };
#define QWEN3_NEXT                                                                                 \
    .layer_pattern = 5552, .attention_gate = true, .qknorm = QKNORM_HEAD, .rope_fraction = 0.25,   \
    .router_normalize = true, .balance_loss = 0.001, .shared_experts = 1, .shared_gate = true,     \
    .norm_eps = 1e-6
static const model_config qwen3_next = {
    QWEN3_NEXT,        EXPERTS(512, 10, 512),  .init = INIT_FLAT,
    .shared_dim = 512, .rope_theta = 10000000, .vocab = 151936,
    .max_seq = 262144
};
static const model_config delta_tiny = { QWEN3_NEXT,           BY_BYTES,
                                         EXPERTS(8, 2, 96),    .delta_keys = 2,
                                         .delta_values = 4,    .delta_key_dim = 32,
                                         .delta_value_dim = 32 };
static const model_config qwen15_moe = { QWEN2_MOE(60, 4, 1408, 5632), .max_seq = 8192 };
static const model_config qwen2_moe = { QWEN2_MOE(64, 8, 2560, 20480), .max_seq = 131072 };
#define GLM45                                                                                      \
    SIGMOID_ROUTER, .shared_experts = 1, .balance_loss = 1e-4, .qkv_bias = true,                   \
                    .rope_fraction = 0.5, .rope_theta = 1000000, .vocab = 151552,                  \
                    .max_seq = 131072
static const model_config glm45_air = { GLM45, EXPERTS(128, 8, 1408), .first_dense = 1 };
static const model_config glm45 = { GLM45, EXPERTS(160, 8, 1536), .first_dense = 3,
                                    .router_scale = 2.5, .qknorm = QKNORM_HEAD };
#define GPT_OSS                                                                                    \
    .experts_per_token = 4, .router_normalize = true, .router_logit_bias = true,                   \
    .balance_loss = 0.001, .mlp = MLP_SWIGLU_CLAMPED, .mlp_bias = true, .qkv_bias = true,          \
    .o_bias = true, .sinks = true, .window = 128, .layer_pattern = 12, .rope_theta = 150000,       \
    .rope_scaling = ROPE_YARN, .rope_factor = 32, .rope_original = 4096, .vocab = 201088,          \
    .max_seq = 131072
static const model_config gpt_oss_20b = { GPT_OSS, .experts = 32 };
static const model_config gpt_oss_120b = { GPT_OSS, .experts = 128 };
/* Scout; Maverick has experts in every second layer, and does not normalize queries and keys. */
#define LLAMA4                                                                                     \
    .shared_experts = 1, .router_score = ROUTER_SIGMOID, .scale_input = true,                      \
    .balance_loss = 0.001, .window = 8192, .chunked = true, .layer_pattern = 1114,                 \
    .temperature = 0.1, .rope_theta = 500000, .vocab = 202048
static const model_config llama4_scout = { LLAMA4,
                                           EXPERTS(16, 1, 8192),
                                           .qknorm = QKNORM_HEAD,
                                           .qk_rope_only = true,
                                           .rope_scaling = ROPE_LLAMA3,
                                           .rope_factor = 16,
                                           .rope_low = 1,
                                           .rope_high = 1,
                                           .max_seq = 10485760 };
static const model_config llama4_maverick = { LLAMA4, EXPERTS(128, 1, 8192), .moe_step = 2,
                                              .max_seq = 1048576 };
static const model_config olmo3 = { OLMO, .window = 4096, .layer_pattern = 1112, .vocab = 100278,
                                    .max_seq = 8192 };
static const model_config smollm3 = { .tied = true,
                                      .layer_pattern = 2224,
                                      .rope_theta = 5000000,
                                      .norm_eps = 1e-6,
                                      .vocab = 128256,
                                      .max_seq = 65536 };
/* Granite's factors are those of muP; two of them depend on the width. */
#define GRANITE                                                                                    \
    .tied = true, .embedding_scale = 12, .residual_scale = 0.22, .vocab = 49155, .max_seq = 4096
static const model_config granite_2b = { GRANITE, .attention_scale = 1.0 / 64,
                                         .logit_scale = 1.0 / 8 };
static const model_config granite_8b = { GRANITE, .attention_scale = 1.0 / 128,
                                         .logit_scale = 1.0 / 16 };
static const model_config phi3 = { .window = 2047, .vocab = 32064, .max_seq = 4096 };
/* Phi-3.5 stretches each frequency by a factor of its own; the numbers are those of its config.json. */
static const model_config phi35 = {
    .rope_scaling = ROPE_LONG,
    .rope_factor = 32,
    .rope_original = 4096,
    /* clang-format off */
    .rope_short = { 48, {
        1.0, 1.0199999809265137, 1.0299999713897705, 1.0299999713897705,
        1.0499999523162842, 1.0499999523162842, 1.0499999523162842, 1.0499999523162842,
        1.0499999523162842, 1.0699999332427979, 1.0999999046325684, 1.1099998950958252,
        1.1599998474121094, 1.1599998474121094, 1.1699998378753662, 1.2899998426437378,
        1.339999794960022, 1.679999828338623, 1.7899998426437378, 1.8199998140335083,
        1.8499997854232788, 1.8799997568130493, 1.9099997282028198, 1.9399996995925903,
        1.9899996519088745, 2.0199997425079346, 2.0199997425079346, 2.0199997425079346,
        2.0199997425079346, 2.0199997425079346, 2.0199997425079346, 2.0299997329711914,
        2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914,
        2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914,
        2.0799996852874756, 2.0899996757507324, 2.189999580383301, 2.2199995517730713,
        2.5899994373321533, 2.729999542236328, 2.749999523162842, 2.8399994373321533 } },
    .rope_long = { 48, {
        1.0800000429153442, 1.1100000143051147, 1.1399999856948853, 1.340000033378601,
        1.5899999141693115, 1.600000023841858, 1.6200000047683716, 2.620000123977661,
        3.2300000190734863, 3.2300000190734863, 4.789999961853027, 7.400000095367432,
        7.700000286102295, 9.09000015258789, 12.199999809265137, 17.670000076293945,
        24.46000099182129, 28.57000160217285, 30.420001983642578, 30.840002059936523,
        32.590003967285156, 32.93000411987305, 42.320003509521484, 44.96000289916992,
        50.340003967285156, 50.45000457763672, 57.55000305175781, 57.93000411987305,
        58.21000289916992, 60.1400032043457, 62.61000442504883, 62.62000274658203,
        62.71000289916992, 63.1400032043457, 63.1400032043457, 63.77000427246094,
        63.93000411987305, 63.96000289916992, 63.970001220703125, 64.02999877929688,
        64.06999969482422, 64.08000183105469, 64.12000274658203, 64.41000366210938,
        64.4800033569336, 64.51000213623047, 64.52999877929688, 64.83999633789062 } },
    /* clang-format on */
    .vocab = 32064,
    .max_seq = 131072
};
static const model_config phi4 = { .rope_theta = 250000, .vocab = 100352, .max_seq = 16384 };
static const model_config starcoder2 = { .norm = NORM_LAYER,
                                         .mlp = MLP_GELU_TANH,
                                         .bias = true,
                                         .tied = true,
                                         .window = 4096,
                                         .rope_theta = 1000000,
                                         .vocab = 49152,
                                         .max_seq = 16384 };
static const model_config stablelm2 = {
    .norm = NORM_LAYER, .qkv_bias = true, .rope_fraction = 0.25, .vocab = 100352, .max_seq = 4096
};
static const model_config cohere2 = { .norm = NORM_LAYER,
                                      .parallel = true,
                                      .shared_norm = true,
                                      .tied = true,
                                      .window = 4096,
                                      .layer_pattern = 1114,
                                      .rope_theta = 50000,
                                      .logit_scale = 0.25,
                                      .vocab = 256000,
                                      .max_seq = 8192 };
/* Gemma multiplies embeddings by the square root of the width. */
#define GEMMA .norm_position = NORM_BOTH, .mlp = MLP_GEGLU, .tied = true, .norm_eps = 1e-6
#define GEMMA2                                                                                     \
    GEMMA, .window = 4096, .layer_pattern = 12, .attention_softcap = 50, .logit_softcap = 30,      \
           .vocab = 256000, .max_seq = 8192
static const model_config gemma2_2b = { GEMMA2, .embedding_scale = 48 };
static const model_config gemma2_9b = { GEMMA2, .embedding_scale = 59.866518188383063 };
static const model_config gemma2_27b = { GEMMA2, .embedding_scale = 67.882250993908556,
                                         .attention_scale = 1.0 / 12 };
#define GEMMA3                                                                                     \
    GEMMA, .qknorm = QKNORM_HEAD, .layer_pattern = 111112, .rope_theta = 1000000,                  \
           .rope_local = 10000
#define GEMMA3_TEXT GEMMA3, .window = 512, .vocab = 262144, .max_seq = 32768
static const model_config gemma3_270m = { GEMMA3_TEXT, .embedding_scale = 25.298221281347036 };
static const model_config gemma3_1b = { GEMMA3_TEXT, .embedding_scale = 33.941125496954278 };
static const model_config gemma3_4b = { GEMMA3,
                                        .window = 1024,
                                        .embedding_scale = 50.596442562694071,
                                        .vocab = 262208,
                                        .rope_scaling = ROPE_LINEAR,
                                        .rope_factor = 8,
                                        .max_seq = 131072 };
#define FALCON                                                                                     \
    .norm = NORM_LAYER, .mlp = MLP_GELU_ERF, .parallel = true, .tied = true, .vocab = 65024,       \
    .max_seq = 2048
static const model_config falcon_7b = { FALCON, .shared_norm = true };
static const model_config falcon_40b = { FALCON };
#define MPT .norm = NORM_LAYER, .mlp = MLP_GELU_ERF, .pos = POS_ALIBI, .tied = true, .vocab = 50432
static const model_config mpt_7b = { MPT, .max_seq = 2048 };
static const model_config mpt_30b = { MPT, .max_seq = 8192 };
/* For plain text as bytes: 256 of them and the end of a document. */
static const model_config bytes = { BY_BYTES };
static const model_config bytes_moe = { BY_BYTES, EXPERTS(8, 2, 192), .router_normalize = true };
static const model_config gpt_small = { GPT, .vocab = 4096, .max_seq = 1024 };

/* nanochat as transformers has it: without the tables of values and scalars of later versions. */
static const model_config nanochat = { .init = INIT_BY_FAN_IN,
                                       .init_embed_std = 0.8,
                                       .init_head_std = 0.001,
                                       .init_zero_outputs = true,
                                       .mlp = MLP_RELU2,
                                       .weightless_norms = true,
                                       .embedding_norm = true,
                                       .qknorm = QKNORM_HEAD,
                                       .logit_softcap = 15,
                                       .norm_eps = 1e-6,
                                       .vocab = 65536,
                                       .max_seq = 2048 };

/* Latent attention in every head. */
#define LATENT .init = INIT_FLAT, .kv_latent = 512, .rope_head_dim = 64, .value_head_dim = 128
static const model_config deepseek_v3 = { LATENT,
                                          SIGMOID_ROUTER,
                                          EXPERTS(256, 8, 2048),
                                          .init_std = 0.006,
                                          .norm_eps = 1e-6,
                                          .q_latent = 1536,
                                          .shared_experts = 1,
                                          .first_dense = 3,
                                          .router_scale = 2.5,
                                          .groups = 8,
                                          .group_limit = 4,
                                          .balance_loss = 0.0001,
                                          .vocab = 129280,
                                          .max_seq = 4096 };
#define MOONSHOT                                                                                   \
    LATENT, SIGMOID_ROUTER, .first_dense = 1, .balance_loss = 0.001, .rope_theta = 50000,          \
                            .vocab = 163840
/* As it is trained before its context is extended. */
static const model_config kimi_k2 = {
    MOONSHOT,         EXPERTS(384, 8, 2048), .norm_eps = 1e-6,
    .q_latent = 1536, .shared_experts = 1,   .router_scale = 2.827,
    .max_seq = 4096
};
#define DEEPSEEK_V2                                                                                \
    LATENT, .init_std = 0.006, .norm_eps = 1e-6, .shared_experts = 2, .first_dense = 1,            \
            .balance_loss = 0.003, .vocab = 102400, .max_seq = 4096
static const model_config deepseek_v2 = { DEEPSEEK_V2,       EXPERTS(160, 6, 1536),
                                          .q_latent = 1536,  .router_scale = 16,
                                          .groups = 8,       .group_limit = 3,
                                          .group_best = true };
static const model_config deepseek_v2_lite = { DEEPSEEK_V2, EXPERTS(64, 6, 1408) };
static const model_config moonlight = { MOONSHOT,
                                        EXPERTS(64, 6, 1408),
                                        .norm_eps = 1e-5,
                                        .shared_experts = 2,
                                        .router_scale = 2.446,
                                        .max_seq = 8192 };
static const model_config latent_tiny = { BY_BYTES, .kv_latent = 32, .q_latent = 48,
                                          .rope_head_dim = 16, .value_head_dim = 32 };
static const model_config olmoe = { .init = INIT_FLAT,
                                    .qknorm = QKNORM_FULL,
                                    .experts = 64,
                                    .experts_per_token = 8,
                                    .balance_loss = 0.01,
                                    .router_z_loss = 0.001,
                                    .vocab = 50304,
                                    .max_seq = 4096 };
static const model_config glm4 = { .norm_position = NORM_BOTH,
                                   .qkv_bias = true,
                                   .rope_fraction = 0.5,
                                   .vocab = 151552,
                                   .max_seq = 32768 };

static const struct {
    const char *name;
    const model_config *family;
    int layers;
    int64_t dim;
    int heads, kv_heads; /* 0: as many as heads */
    int64_t head_dim;    /* 0: dim / heads */
    int64_t ffn;         /* 0: 4 dim */
    int64_t vocab;       /* 0: the family's */
} presets[] = {
    { "tiny", &bytes, 4, 128, 4, 2, 0, 384, 0 },
    { "moe-tiny", &bytes_moe, 4, 128, 4, 2, 0, 384, 0 },
    { "demo", &bytes, 4, 256, 8, 4, 0, 704, 0 },
    { "gpt-small", &gpt_small, 6, 384, 6, 0, 0, 0, 0 },
    { "gpt2-124m", &gpt2, 12, 768, 12, 0, 0, 0, 0 },
    { "gpt2-355m", &gpt2, 24, 1024, 16, 0, 0, 0, 0 },
    { "gpt2-774m", &gpt2, 36, 1280, 20, 0, 0, 0, 0 },
    { "gpt2-1558m", &gpt2, 48, 1600, 25, 0, 0, 0, 0 },
    { "gpt3-125m", &gpt3, 12, 768, 12, 0, 0, 0, 0 },
    { "gpt3-350m", &gpt3, 24, 1024, 16, 0, 0, 0, 0 },
    { "gpt3-760m", &gpt3, 24, 1536, 16, 0, 0, 0, 0 },
    { "gpt3-1.3b", &gpt3, 24, 2048, 16, 0, 0, 0, 0 },
    { "gpt3-2.7b", &gpt3, 32, 2560, 32, 0, 0, 0, 0 },
    { "gpt3-6.7b", &gpt3, 32, 4096, 32, 0, 0, 0, 0 },
    { "gpt3-13b", &gpt3, 40, 5120, 40, 0, 0, 0, 0 },
    { "gpt3-175b", &gpt3, 96, 12288, 96, 0, 0, 0, 0 },
    { "pythia-14m", &pythia, 6, 128, 4, 0, 0, 0, 0 },
    { "pythia-31m", &pythia, 6, 256, 8, 0, 0, 0, 0 },
    { "pythia-70m", &pythia, 6, 512, 8, 0, 0, 0, 0 },
    { "pythia-160m", &pythia, 12, 768, 12, 0, 0, 0, 0 },
    { "pythia-410m", &pythia, 24, 1024, 16, 0, 0, 0, 0 },
    { "pythia-1b", &pythia, 16, 2048, 8, 0, 0, 0, 0 },
    { "pythia-1.4b", &pythia, 24, 2048, 16, 0, 0, 0, 0 },
    { "pythia-2.8b", &pythia, 32, 2560, 32, 0, 0, 0, 0 },
    { "pythia-6.9b", &pythia, 32, 4096, 32, 0, 0, 0, 50432 },
    { "pythia-12b", &pythia, 36, 5120, 40, 0, 0, 0, 50688 },
    { "llama-1b", &llama, 16, 2048, 32, 8, 0, 8192, 0 },
    { "llama-3b", &llama, 28, 3072, 24, 8, 0, 8192, 0 },
    { "llama-7b", &llama, 32, 4096, 32, 0, 0, 11008, 0 },
    { "llama2-7b", &llama, 32, 4096, 32, 0, 0, 11008, 0 },
    { "llama2-13b", &llama, 40, 5120, 40, 0, 0, 13824, 0 },
    { "llama2-70b", &llama, 80, 8192, 64, 8, 0, 28672, 0 },
    { "llama3-8b", &llama3, 32, 4096, 32, 8, 0, 14336, 0 },
    { "llama3-70b", &llama3, 80, 8192, 64, 8, 0, 28672, 0 },
    { "llama3-405b", &llama31, 126, 16384, 128, 8, 0, 53248, 0 },
    { "mistral-7b", &mistral, 32, 4096, 32, 8, 0, 14336, 0 },
    { "mixtral-8x7b", &mixtral, 32, 4096, 32, 8, 0, 14336, 0 },
    { "chinchilla-70b", &chinchilla, 80, 8192, 64, 0, 0, 0, 0 },
    { "olmo2-1b", &olmo2, 16, 2048, 16, 0, 0, 8192, 0 },
    { "olmo2-7b", &olmo2, 32, 4096, 32, 0, 0, 11008, 0 },
    { "olmo2-13b", &olmo2, 40, 5120, 40, 0, 0, 13824, 0 },
    { "olmo2-32b", &olmo2, 64, 5120, 40, 8, 0, 27648, 0 },
    { "qwen2.5-0.5b", &qwen2_tied, 24, 896, 14, 2, 0, 4864, 0 },
    { "qwen2.5-7b", &qwen2, 28, 3584, 28, 4, 0, 18944, 152064 },
    { "qwen3-0.6b", &qwen3_tied, 28, 1024, 16, 8, 128, 3072, 0 },
    { "qwen3-1.7b", &qwen3_tied, 28, 2048, 16, 8, 128, 6144, 0 },
    { "qwen3-4b", &qwen3_tied, 36, 2560, 32, 8, 128, 9728, 0 },
    { "qwen3-8b", &qwen3, 36, 4096, 32, 8, 128, 12288, 0 },
    { "qwen3-14b", &qwen3, 40, 5120, 40, 8, 128, 17408, 0 },
    { "qwen3-32b", &qwen3, 64, 5120, 64, 8, 128, 25600, 0 },
    { "qwen3-next-80b-a3b", &qwen3_next, 48, 2048, 16, 2, 256, 5120, 0 },
    { "delta-tiny", &delta_tiny, 4, 128, 4, 2, 32, 384, 0 },
    { "qwen3-30b-a3b", &qwen3_moe, 48, 2048, 32, 4, 128, 6144, 0 },
    { "qwen1.5-moe-a2.7b", &qwen15_moe, 24, 2048, 16, 0, 0, 5632, 0 },
    { "qwen2-57b-a14b", &qwen2_moe, 28, 3584, 28, 4, 0, 18944, 0 },
    { "glm4.5-air", &glm45_air, 46, 4096, 96, 8, 128, 10944, 0 },
    { "glm4.5", &glm45, 92, 5120, 96, 8, 128, 12288, 0 },
    { "gpt-oss-20b", &gpt_oss_20b, 24, 2880, 64, 8, 64, 2880, 0 },
    { "gpt-oss-120b", &gpt_oss_120b, 36, 2880, 64, 8, 64, 2880, 0 },
    { "llama4-scout", &llama4_scout, 48, 5120, 40, 8, 128, 16384, 0 },
    { "llama4-maverick", &llama4_maverick, 48, 5120, 40, 8, 128, 16384, 0 },
    { "olmo3-7b", &olmo3, 32, 4096, 32, 0, 0, 11008, 0 },
    { "olmo3-32b", &olmo3, 64, 5120, 40, 8, 0, 27648, 0 },
    { "smollm3-3b", &smollm3, 36, 2048, 16, 4, 0, 11008, 0 },
    { "granite3-2b", &granite_2b, 40, 2048, 32, 8, 0, 8192, 0 },
    { "granite3-8b", &granite_8b, 40, 4096, 32, 8, 0, 12800, 0 },
    { "phi3-mini", &phi3, 32, 3072, 32, 0, 0, 8192, 0 },
    { "phi3.5-mini", &phi35, 32, 3072, 32, 0, 0, 8192, 0 },
    { "phi3-medium", &phi3, 40, 5120, 40, 10, 0, 17920, 0 },
    { "phi4-14b", &phi4, 40, 5120, 40, 10, 0, 17920, 0 },
    { "starcoder2-3b", &starcoder2, 30, 3072, 24, 2, 0, 0, 0 },
    { "starcoder2-7b", &starcoder2, 32, 4608, 36, 4, 0, 0, 0 },
    { "stablelm2-1.6b", &stablelm2, 24, 2048, 32, 0, 0, 5632, 0 },
    { "command-r7b", &cohere2, 32, 4096, 32, 8, 0, 14336, 0 },
    { "gemma2-2b", &gemma2_2b, 26, 2304, 8, 4, 256, 9216, 0 },
    { "gemma2-9b", &gemma2_9b, 42, 3584, 16, 8, 256, 14336, 0 },
    { "gemma2-27b", &gemma2_27b, 46, 4608, 32, 16, 128, 36864, 0 },
    { "gemma3-270m", &gemma3_270m, 18, 640, 4, 1, 256, 2048, 0 },
    { "gemma3-1b", &gemma3_1b, 26, 1152, 4, 1, 256, 6912, 0 },
    { "gemma3-4b", &gemma3_4b, 34, 2560, 8, 4, 256, 10240, 0 },
    { "olmoe-1b-7b", &olmoe, 16, 2048, 16, 0, 0, 1024, 0 },
    { "glm4-9b", &glm4, 40, 4096, 32, 2, 128, 13696, 0 },
    { "latent-tiny", &latent_tiny, 4, 128, 4, 0, 48, 384, 0 },
    { "deepseek-v2-lite", &deepseek_v2_lite, 27, 2048, 16, 0, 192, 10944, 0 },
    { "deepseek-v2", &deepseek_v2, 60, 5120, 128, 0, 192, 12288, 0 },
    { "deepseek-v3", &deepseek_v3, 61, 7168, 128, 0, 192, 18432, 0 },
    { "kimi-k2", &kimi_k2, 61, 7168, 64, 0, 192, 18432, 0 },
    { "moonlight-16b-a3b", &moonlight, 27, 2048, 16, 0, 192, 11264, 0 },
    { "falcon-7b", &falcon_7b, 32, 4544, 71, 1, 0, 0, 0 },
    { "falcon-40b", &falcon_40b, 60, 8192, 128, 8, 0, 0, 0 },
    { "nanochat-d20", &nanochat, 20, 1280, 10, 0, 0, 0, 0 },
    { "mpt-7b", &mpt_7b, 32, 4096, 32, 0, 0, 0, 0 },
    { "mpt-30b", &mpt_30b, 48, 7168, 64, 0, 0, 0, 0 },
};

const char *model_preset_name(int i) {
    return i >= 0 && i < (int)COUNT_OF(presets) ? presets[i].name : NULL;
}

/* Facts that are true by default and false in a family, which a member of 0 cannot state. */
static const struct {
    const model_config *family;
    const char *fact;
} switched_off[] = {
    { &llama4_scout, "qk_norm_weights" },
    { &cohere2, "norm_bias" },
    { &mpt_7b, "norm_bias" },
    { &mpt_30b, "norm_bias" },
    { &gpt_oss_20b, "rope_truncate" },
    { &gpt_oss_120b, "rope_truncate" },
};

/* The defaults with a family's own values over them. */
static void init_family(const model_config *family, model_config *c) {
    model_config_init(c);
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        if (model_fact_get(f, family) != 0) model_fact_copy(f, family, c);
    }
    for (size_t i = 0; i < COUNT_OF(switched_off); i++)
        if (switched_off[i].family == family)
            model_fact_set(model_fact_find(switched_off[i].fact), c, 0);
}

err model_preset(const char *name, model_config *c) {
    if (strcmp(name, MODEL_CUSTOM) == 0) {
        model_config_init(c);
        snprintf(c->name, sizeof c->name, "%s", name);
        return OK;
    }
    const char *near = NULL;
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        near = str_nearer(name, presets[i].name, near);
        if (strcmp(presets[i].name, name)) continue;
        init_family(presets[i].family, c);
        snprintf(c->name, sizeof c->name, "%s", name);
        c->layers = presets[i].layers;
        c->dim = presets[i].dim;
        c->heads = presets[i].heads;
        c->kv_heads = presets[i].kv_heads ? presets[i].kv_heads : c->heads;
        c->head_dim = presets[i].head_dim ? presets[i].head_dim : c->dim / c->heads;
        c->ffn = presets[i].ffn ? presets[i].ffn : 4 * c->dim;
        if (presets[i].vocab) c->vocab = presets[i].vocab;
        return OK;
    }
    err e = ERR("no model preset is called '%s'", name);
    if (near) return err_hint(e, "did you mean '%s'? \"ingot config --models\" lists them", near);
    return err_hint(e, "list them with \"ingot config --models\"");
}
