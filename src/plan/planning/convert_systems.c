/* The configs of other systems: which key is which option. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what several share --------------------------------------------------------------------------- */
/* The floor of the learning rate, which some state as a rate. */
static err set_min_lr(convert_source *s, const char *key, double lr) {
    double least = convert_take_number(s, key);
    return lr > 0 ? convert_set_number(s, key, "lr_scheduler.min_lr_factor", least / lr, "") : OK;
}

/* One head's width and the feed-forward's, where they follow from the model's. */
static err set_widths(convert_source *s, double dim, double heads, double head_dim, double kv_heads,
                      double ffn) {
    if (isnan(head_dim) && heads > 0) head_dim = dim / heads;
    TRY(convert_set_number(s, "head width", "model.head_dim", head_dim, ""));
    TRY(convert_set_number(s, "key/value heads", "model.kv_heads",
                           isnan(kv_heads) ? heads : kv_heads, ""));
    return convert_set_number(s, "feed-forward width", "model.ffn_dim", isnan(ffn) ? 4 * dim : ffn,
                              "");
}

static double round_up_to(double n, double to) { return ceil(n / to) * to; }

/* Steps times ranks are not known here: the step is what one rank accumulates. */
static err set_accumulated(convert_source *s, const char *micro_key, const char *times_key) {
    double micro = convert_take_number(s, micro_key), times = convert_take_number(s, times_key);
    TRY(convert_set_number(s, micro_key, "training.local_batch_size", micro, ""));
    return convert_set_number(s, times_key, "training.global_batch_size", micro * times, "");
}

/* ---- Megatron-LM ---------------------------------------------------------------------------------- */

/* Interleaved: the file states layers per chunk, or chunks per rank. */
static err set_megatron_chunks(convert_source *s) {
    double pp = convert_take_number(s, "pipeline_model_parallel_size"),
           layers = convert_take_number(s, "num_layers"),
           each = convert_take_number(s, "num_layers_per_virtual_pipeline_stage"),
           chunks = convert_take_number(s, "num_virtual_stages_per_pipeline_rank");
    if (isnan(chunks) && each > 0 && pp > 0) chunks = layers / pp / each;
    if (!(chunks > 1)) return OK;
    TRY(convert_set(s, "virtual stages", "parallelism.pipeline_parallel_schedule",
                    "Interleaved1F1B"));
    return convert_set_number(s, "virtual stages", "parallelism.pipeline_parallel_chunks", chunks,
                              "");
}

/* Megatron's defaults, where ours differ: used for keys that its command line leaves out. */
static err set_megatron_defaults(convert_source *s) {
    static const struct {
        const char *key, *option, *value;
        bool of_experts;
    } unset[] = {
        { "hidden_dropout", "model.dropout", "0.1", false },
        { "attention_dropout", "model.attention_dropout", "0.1", false },
        { "weight_decay", "optimizer.weight_decay", "0.01", false },
        { "adam_beta2", "optimizer.beta2", "0.999", false },
        { "lr_decay_style", "lr_scheduler.name", "linear", false },
        { "moe_expert_capacity_factor", "model.capacity_factor", "0", true },
        { "moe_aux_loss_coeff", "model.balance_loss", "0", true },
        { "moe_router_pre_softmax", "model.router_normalize", "true", true },
    };
    bool experts = convert_take(s, "num_experts");
    for (size_t i = 0; i < COUNT_OF(unset); i++)
        if ((experts || !unset[i].of_experts) && !convert_take(s, unset[i].key))
            TRY(convert_set(s, unset[i].key, unset[i].option, unset[i].value));
    return OK;
}

static err finish_megatron(convert_source *s) {
    double dim = convert_take_number(s, "hidden_size"), seq = convert_take_number(s, "seq_length");
    double vocab = convert_take_number(s, "vocab_size"),
           to = convert_take_number(s, "make_vocab_size_divisible_by");
    double samples = convert_take_number(s, "train_samples");
    bool swiglu = convert_is(s, "swiglu", "true");
    bool rms = convert_is(s, "normalization", "RMSNorm");
    TRY(set_widths(s, dim, convert_take_number(s, "num_attention_heads"),
                   convert_take_number(s, "kv_channels"),
                   convert_take_number(s, "num_query_groups"),
                   convert_take_number(s, "ffn_hidden_size")));
    TRY(convert_set_number(s, "vocab_size", "model.vocab_size",
                           round_up_to(vocab, isnan(to) ? 128 : to), ""));
    TRY(convert_set_number(s, "train_samples", "training.steps", samples * seq, "tokens"));
    TRY(convert_set_number(s, "lr_warmup_fraction", "lr_scheduler.warmup",
                           100 * convert_take_number(s, "lr_warmup_fraction"), "%"));
    TRY(convert_set_number(s, "lr_warmup_samples", "lr_scheduler.warmup",
                           seq * convert_take_number(s, "lr_warmup_samples"), "tokens"));
    TRY(set_min_lr(s, "min_lr", convert_take_number(s, "lr")));
    TRY(set_megatron_chunks(s));
    TRY(set_megatron_defaults(s));
    bool tied = !convert_take(s, "untie_embeddings_and_output_weights");
    TRY(convert_set(s, "untie-embeddings-and-output-weights", "model.tie_embeddings",
                    tied ? "true" : "false"));
    TRY(convert_set(s, "disable-bias-linear", "model.bias",
                    convert_take(s, "disable_bias_linear") ? "false" : "true"));
    if (!swiglu) TRY(convert_set(s, "swiglu", "model.activation", "gelu"));
    if (!rms) TRY(convert_set(s, "normalization", "model.norm", "layer"));
    if (!convert_take(s, "position_embedding_type") &&
        !convert_take(s, "use_rotary_position_embeddings"))
        TRY(convert_set(s, "position-embedding-type", "model.positions", "learned"));
    const char *ramp = convert_take(s, "rampup_batch_size"); /* start, increment, samples */
    char *end = NULL;
    if (!ramp) return OK;
    double start = strtod(ramp, &end), increment = strtod(end, &end);
    TRY(convert_set_number(s, "rampup_batch_size", "training.batch_ramp_start", start, ""));
    TRY(convert_set_number(s, "rampup_batch_size", "training.batch_ramp_increment", increment, ""));
    return convert_set_number(s, "rampup_batch_size", "training.batch_ramp",
                              strtod(end, NULL) * seq, "tokens");
}

/* ---- DeepSpeed ------------------------------------------------------------------------------------ */

static err finish_deepspeed(convert_source *s) {
    double power = convert_take_number(s, "fp16.initial_scale_power");
    double micro = convert_take_number(s, "train_micro_batch_size_per_gpu");
    double times = convert_take_number(s, "gradient_accumulation_steps");
    TRY(convert_set_number(s, "fp16.initial_scale_power", "precision.loss_scale", exp2(power), ""));
    if (convert_take(s, "train_batch_size")) return OK;
    return convert_set_number(s, "gradient_accumulation_steps", "training.global_batch_size",
                              micro * times, "");
}

/* ---- GPT-NeoX ------------------------------------------------------------------------------------- */

static err finish_neox(convert_source *s) {
    double dim = convert_take_number(s, "hidden_size");
    TRY(set_widths(s, dim, convert_take_number(s, "num_attention_heads"), NAN,
                   convert_take_number(s, "num_kv_heads"),
                   convert_take_number(s, "intermediate_size")));
    TRY(convert_set_number(s, "warmup", "lr_scheduler.warmup",
                           100 * convert_take_number(s, "warmup"), "%"));
    TRY(set_min_lr(s, "min_lr", convert_take_number(s, "optimizer.params.lr")));
    bool untied = convert_is(s, "no_weight_tying", "true");
    TRY(convert_set(s, "no-weight-tying", "model.tie_embeddings", untied ? "false" : "true"));
    TRY(convert_set(s, "bias", "model.bias",
                    convert_is(s, "use_bias_in_mlp", "false") ? "false" : "true"));
    if (!convert_take(s, "activation"))
        TRY(convert_set(s, "activation", "model.activation", "gelu"));
    if (!convert_take(s, "norm")) TRY(convert_set(s, "norm", "model.norm", "layer"));
    double power = convert_take_number(s, "fp16.initial_scale_power");
    TRY(convert_set_number(s, "fp16.initial_scale_power", "precision.loss_scale", exp2(power), ""));
    return set_accumulated(s, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps");
}

/* ---- torchtitan ----------------------------------------------------------------------------------- */

/* "llama3" and "8B" are a preset here: "llama3-8b". What it offloads are parameters and optimizer state. */
static err finish_torchtitan(convert_source *s) {
    const char *key = "training.enable_cpu_offload", *offload = convert_take(s, key);
    if (offload && !strcmp(offload, "true")) {
        TRY(convert_set(s, key, "training.offload_params", "true"));
        TRY(convert_set(s, key, "optimizer.offload", "1"));
    }
    const char *name = convert_take(s, "model.name"), *flavor = convert_take(s, "model.flavor");
    model_config m;
    char preset[64];
    TRY(convert_set(s, "fsdp", "parallelism.zero_stage", "3")); /* how it shards, if it does */
    if (!name) return OK;
    snprintf(preset, sizeof preset, "%s%s%s", name, flavor ? "-" : "", flavor ? flavor : "");
    for (char *c = preset; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c += 'a' - 'A';
    err e = model_preset(preset, &m);
    if (!e) return convert_set(s, "model.flavor", "model.preset", preset);
    err_free(e);
    return err_hint(
        ERR("there is no preset for torchtitan's model %s, %s", name, flavor ? flavor : "-"),
        "\"ingot config --models\" lists those there are");
}

/* ---- OLMo ----------------------------------------------------------------------------------------- */

/* "2e12T" are tokens, "1ep" epochs, a number steps. */
static err set_duration(convert_source *s, const char *text) {
    char *end = NULL;
    double v = text ? strtod(text, &end) : NAN;
    if (!text) return OK;
    if (*end && strcmp(end, "T") != 0 && strcmp(end, "ep") != 0)
        return convert_set(s, "max_duration", "training.steps", text);
    return convert_set_number(s, "max_duration", "training.steps", v,
                              *end == 'T'   ? "tokens"
                              : *end == 'e' ? "epochs"
                                            : "");
}

static err finish_olmo(convert_source *s) {
    double dim = convert_take_number(s, "model.d_model"),
           heads = convert_take_number(s, "model.n_heads");
    double hidden = convert_take_number(s, "model.mlp_hidden_size"),
           kv = convert_take_number(s, "model.n_kv_heads");
    double rows = convert_take_number(s, "model.embedding_size"),
           vocab = convert_take_number(s, "model.vocab_size");
    double seq = convert_take_number(s, "model.max_sequence_length");
    bool glu = convert_is(s, "model.activation_type", "swiglu"); /* both halves are counted */
    if (convert_is(s, "model.multi_query_attention", "true")) kv = 1;
    TRY(set_widths(s, dim, heads, NAN, kv, glu ? hidden / 2 : hidden));
    TRY(convert_set_number(s, "model.embedding_size", "model.vocab_size",
                           isnan(rows) ? vocab : rows, ""));
    TRY(convert_set_number(s, "model.max_sequence_length", "training.seq_len", seq, ""));
    bool tokens = convert_is(s, "scheduler.units", "tokens");
    TRY(convert_set_number(s, "scheduler.t_warmup", "lr_scheduler.warmup",
                           convert_take_number(s, "scheduler.t_warmup"), tokens ? "tokens" : ""));
    return set_duration(s, convert_take(s, "max_duration"));
}

/* ---- Hugging Face's TrainingArguments -------------------------------------------------------------- */

static err finish_hf(convert_source *s) {
    double steps = convert_take_number(s, "max_steps"),
           epochs = convert_take_number(s, "num_train_epochs");
    double ratio = convert_take_number(s, "warmup_ratio"),
           times = convert_take_number(s, "gradient_accumulation_steps");
    double micro = convert_take_number(s, "per_device_train_batch_size");
    if (steps > 0)
        TRY(convert_set_number(s, "max_steps", "training.steps", steps, ""));
    else
        TRY(convert_set_number(s, "num_train_epochs", "training.steps", epochs, "epochs"));
    if (ratio > 0)
        TRY(convert_set_number(s, "warmup_ratio", "lr_scheduler.warmup", 100 * ratio, "%"));
    TRY(convert_set_number(s, "per_device_train_batch_size", "training.local_batch_size", micro,
                           ""));
    return convert_set_number(s, "gradient_accumulation_steps", "training.global_batch_size",
                              micro * times, "");
}

/* ---- the table: the first whose telling key occurs ------------------------------------------------- */
const convert_system convert_systems[] = {
    { "torchtitan", "torchtitan", SYNTAX_TOML, ".toml", "[training]", false, foreign_torchtitan,
      finish_torchtitan },
    { "deepspeed", "DeepSpeed", SYNTAX_JSON, ".json", "train_micro_batch_size_per_gpu", false,
      foreign_deepspeed, finish_deepspeed },
    { "hf", "Hugging Face's TrainingArguments", SYNTAX_JSON, ".json", "per_device_train_batch_size",
      false, foreign_hf, finish_hf },
    { "olmo", "OLMo", SYNTAX_YAML, NULL, "global_train_batch_size", true, foreign_olmo,
      finish_olmo },
    { "neox", "GPT-NeoX", SYNTAX_YAML, NULL, "train_micro_batch_size_per_gpu", true, foreign_neox,
      finish_neox },
    { "megatron", "Megatron-LM", SYNTAX_ARGUMENTS, NULL, "--num-layers", true, foreign_megatron,
      finish_megatron },
};
const int convert_system_count = (int)COUNT_OF(convert_systems);
