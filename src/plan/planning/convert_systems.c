/* The configs of other systems: which key is which option. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAME_AS_TRUE "true=true,false=false,True=true,False=false"

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
static const convert_rule megatron_rules[] = {
    { "num_layers", "model.layers", NULL },
    { "hidden_size", "model.dim", NULL },
    { "num_attention_heads", "model.heads", NULL },
    { "max_position_embeddings", "model.max_seq_len", NULL },
    { "seq_length", "training.seq_len", NULL },
    { "micro_batch_size", "training.local_batch_size", NULL },
    { "global_batch_size", "training.global_batch_size", NULL },
    { "train_iters", "training.steps", NULL },
    { "lr", "optimizer.lr", NULL },
    { "weight_decay", "optimizer.weight_decay", NULL },
    { "adam_beta1", "optimizer.beta1", NULL },
    { "adam_beta2", "optimizer.beta2", NULL },
    { "adam_eps", "optimizer.eps", NULL },
    { "clip_grad", "training.max_norm", NULL },
    { "optimizer", "optimizer.name", "adam=adamw,sgd=momentum,muon=muon" },
    { "lr_decay_style", "lr_scheduler.name",
      "cosine=cosine,linear=linear,constant=constant,WSD=wsd" },
    { "lr_warmup_iters", "lr_scheduler.warmup", NULL },
    { "bf16", "precision.dtype", "true=bf16" },
    { "fp16", "precision.dtype", "true=fp16" },
    { "normalization", "model.norm", "LayerNorm=layer,RMSNorm=rms" },
    { "norm_epsilon", "model.norm_eps", NULL },
    { "layernorm_epsilon", "model.norm_eps", NULL },
    { "swiglu", "model.activation", "true=swiglu" },
    { "position_embedding_type", "model.positions", "rope=rope,learned_absolute=learned" },
    { "use_rotary_position_embeddings", "model.positions", "true=rope" },
    { "rotary_base", "model.rope_theta", NULL },
    { "rotary_percent", "model.rope_fraction", NULL },
    { "qk_layernorm", "model.qk_norm", "true=head" },
    { "init_method_std", "model.init_std", NULL },
    { "hidden_dropout", "model.dropout", NULL },
    { "attention_dropout", "model.attention_dropout", NULL },
    { "tensor_model_parallel_size", "parallelism.tensor_parallel_degree", NULL },
    { "pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree", NULL },
    { "context_parallel_size", "parallelism.context_parallel_degree", NULL },
    { "expert_model_parallel_size", "parallelism.expert_parallel_degree", NULL },
    { "sequence_parallel", "parallelism.sequence_parallel", SAME_AS_TRUE },
    { "use_distributed_optimizer", "parallelism.zero_stage", "true=1,false=0" },
    { "num_experts", "model.experts", NULL },
    { "moe_router_topk", "model.experts_per_token", NULL },
    { "moe_ffn_hidden_size", "model.expert_dim", NULL },
    { "moe_aux_loss_coeff", "model.balance_loss", NULL },
    { "moe_z_loss_coeff", "model.router_z_loss", NULL },
    { "moe_expert_capacity_factor", "model.capacity_factor", NULL },
    { "moe_grouped_gemm", NULL, NULL },
    { "moe_token_dispatcher_type", NULL, NULL },
    { "overlap_grad_reduce", NULL, NULL },
    { "overlap_param_gather", NULL, NULL },
    { "tp_comm_overlap", NULL, NULL },
    { "seed", "training.seed", NULL },
    { "recompute_granularity", "activation_checkpoint.mode", "full=full,selective=selective" },
    { "recompute_activations", "activation_checkpoint.mode", "true=selective" },
    { "eval_interval", "validation.every", NULL },
    { "eval_iters", "validation.batches", NULL },
    { "save_interval", "checkpoint.every", NULL },
    { "log_interval", "metrics.log_every", NULL },
    { "data_path", "data.train", NULL },
    { "group_query_attention", NULL, NULL },
    { "use_flash_attn", NULL, NULL },
    { "use_mcore_models", NULL, NULL },
    { 0 },
};

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

/* What Megatron uses where its command line is silent and our default differs. */
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
static const convert_rule deepspeed_rules[] = {
    { "train_batch_size", "training.global_batch_size", NULL },
    { "train_micro_batch_size_per_gpu", "training.local_batch_size", NULL },
    { "optimizer.type", "optimizer.name",
      "Adam=adamw,AdamW=adamw,Lion=lion,SGD=momentum,Muon=muon" },
    { "optimizer.params.lr", "optimizer.lr", NULL },
    { "optimizer.params.betas.0", "optimizer.beta1", NULL },
    { "optimizer.params.betas.1", "optimizer.beta2", NULL },
    { "optimizer.params.eps", "optimizer.eps", NULL },
    { "optimizer.params.weight_decay", "optimizer.weight_decay", NULL },
    { "scheduler.type", "lr_scheduler.name",
      "WarmupLR=constant,WarmupDecayLR=linear,WarmupCosineLR=cosine" },
    { "scheduler.params.warmup_num_steps", "lr_scheduler.warmup", NULL },
    { "scheduler.params.total_num_steps", "training.steps", NULL },
    { "scheduler.params.cos_min_ratio", "lr_scheduler.min_lr_factor", NULL },
    { "scheduler.params.warmup_max_lr", "optimizer.lr", NULL },
    { "bf16.enabled", "precision.dtype", "true=bf16,false=" },
    { "fp16.enabled", "precision.dtype", "true=fp16,false=" },
    { "fp16.loss_scale_window", "precision.loss_scale_growth_interval", NULL },
    { "gradient_clipping", "training.max_norm", NULL },
    { "zero_optimization.stage", "parallelism.zero_stage", NULL },
    { "zero_optimization.overlap_comm", NULL, NULL },
    { "zero_optimization.contiguous_gradients", NULL, NULL },
    { "zero_optimization.stage3_param_persistence_threshold",
      "parallelism.fsdp_persistence_threshold", NULL },
    { "communication_data_type", "parallelism.reduce_dtype",
      "fp32=,bf16=bf16,bfp16=bf16,fp16=fp16" },
    { "zero_optimization.offload_optimizer.device", "optimizer.offload", "cpu=1,none=0" },
    { "zero_optimization.offload_optimizer.pin_memory", NULL, NULL },
    { "zero_optimization.offload_param.device", "training.offload_params", "cpu=true,none=false" },
    { "zero_optimization.offload_param.pin_memory", NULL, NULL },
    { "zero_optimization.offload_param.device", "training.offload_params", "cpu=true,none=false" },
    { "zero_optimization.offload_param.pin_memory", NULL, NULL },
    { "steps_per_print", "metrics.log_every", NULL },
    { "wall_clock_breakdown", NULL, NULL },
    { 0 },
};

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
static const convert_rule neox_rules[] = {
    { "num_layers", "model.layers", NULL },
    { "hidden_size", "model.dim", NULL },
    { "num_attention_heads", "model.heads", NULL },
    { "max_position_embeddings", "model.max_seq_len", NULL },
    { "seq_length", "training.seq_len", NULL },
    { "norm", "model.norm", "layernorm=layer,rmsnorm=rms" },
    { "layernorm_epsilon", "model.norm_eps", NULL },
    { "rms_norm_epsilon", "model.norm_eps", NULL },
    { "pos_emb", "model.positions", "rotary=rope,learned=learned" },
    { "rotary_pct", "model.rope_fraction", NULL },
    { "rotary_emb_base", "model.rope_theta", NULL },
    { "gpt_j_residual", "model.parallel_branches", SAME_AS_TRUE },
    { "activation", "model.activation", "gelu=gelu,swiglu=swiglu" },
    { "hidden_dropout", "model.dropout", NULL },
    { "attention_dropout", "model.attention_dropout", NULL },
    { "pipe_parallel_size", "parallelism.pipeline_parallel_degree", "0=,*" },
    { "model_parallel_size", "parallelism.tensor_parallel_degree", NULL },
    { "sequence_parallel", "parallelism.sequence_parallel", SAME_AS_TRUE },
    { "zero_optimization.stage", "parallelism.zero_stage", NULL },
    { "zero_optimization.overlap_comm", NULL, NULL },
    { "zero_optimization.contiguous_gradients", NULL, NULL },
    { "zero_optimization.stage3_param_persistence_threshold",
      "parallelism.fsdp_persistence_threshold", NULL },
    { "train_iters", "training.steps", NULL },
    { "train_batch_size", "training.global_batch_size", NULL },
    { "optimizer.type", "optimizer.name",
      "Adam=adamw,adam=adamw,AdamW=adamw,Lion=lion,SGD=momentum" },
    { "optimizer.params.lr", "optimizer.lr", NULL },
    { "optimizer.params.betas.0", "optimizer.beta1", NULL },
    { "optimizer.params.betas.1", "optimizer.beta2", NULL },
    { "optimizer.params.eps", "optimizer.eps", NULL },
    { "weight_decay", "optimizer.weight_decay", NULL },
    { "gradient_clipping", "training.max_norm", NULL },
    { "lr_decay_style", "lr_scheduler.name", "cosine=cosine,linear=linear,constant=constant" },
    { "checkpoint_activations", "activation_checkpoint.mode", "true=full,false=none" },
    { "fp16.enabled", "precision.dtype", "true=fp16,false=" },
    { "fp16.fp16", NULL, NULL },
    { "fp16.loss_scale", NULL, "0=" },
    { "fp16.loss_scale_window", "precision.loss_scale_growth_interval", NULL },
    { "bf16.enabled", "precision.dtype", "true=bf16,false=" },
    { "precision", "precision.dtype", "bfloat16=bf16,fp16=fp16,fp32=fp32" },
    { "checkpoint_factor", "checkpoint.every", NULL },
    { "save_interval", "checkpoint.every", NULL },
    { "eval_interval", "validation.every", NULL },
    { "eval_iters", "validation.batches", NULL },
    { "log_interval", "metrics.log_every", NULL },
    { "seed", "training.seed", NULL },
    { "data_path", "data.train", NULL },
    { "vocab_file", "data.tokenizer", NULL },
    { "distributed_backend", NULL, NULL },
    { "wall_clock_breakdown", NULL, NULL },
    { "steps_per_print", NULL, NULL },
    { "tensorboard_dir", NULL, NULL },
    { "log_dir", NULL, NULL },
    { "scaled_upper_triang_masked_softmax_fusion", NULL, NULL },
    { "bias_gelu_fusion", NULL, NULL },
    { 0 },
};

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
static const convert_rule torchtitan_rules[] = {
    { "training.seq_len", "training.seq_len", NULL },
    { "training.batch_size", "training.local_batch_size", NULL },
    { "training.local_batch_size", "training.local_batch_size", NULL },
    { "training.global_batch_size", "training.global_batch_size", "-1=,*" },
    { "training.steps", "training.steps", NULL },
    { "training.max_norm", "training.max_norm", NULL },
    { "training.warmup_steps", "lr_scheduler.warmup", NULL },
    { "training.seed", "training.seed", NULL },
    { "training.mixed_precision_param", "precision.dtype", "bfloat16=bf16,float32=fp32" },
    { "training.mixed_precision_reduce", NULL, NULL },
    { "training.compile", NULL, NULL },
    { "optimizer.name", "optimizer.name", "AdamW=adamw,Adam=adam,Muon=muon" },
    { "optimizer.lr", "optimizer.lr", NULL },
    { "optimizer.eps", "optimizer.eps", NULL },
    { "optimizer.beta1", "optimizer.beta1", NULL },
    { "optimizer.beta2", "optimizer.beta2", NULL },
    { "optimizer.weight_decay", "optimizer.weight_decay", NULL },
    { "optimizer.fused", NULL, NULL },
    { "lr_scheduler.warmup_steps", "lr_scheduler.warmup", NULL },
    { "lr_scheduler.decay_type", "lr_scheduler.name", "linear=linear,cosine=cosine" },
    { "lr_scheduler.min_lr_factor", "lr_scheduler.min_lr_factor", NULL },
    { "lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", NULL },
    { "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree",
      NULL },
    { "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree", NULL },
    { "parallelism.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward", NULL },
    { "parallelism.tensor_parallel_degree", "parallelism.tensor_parallel_degree", NULL },
    { "parallelism.enable_async_tensor_parallel", NULL, NULL },
    { "parallelism.disable_loss_parallel", NULL, NULL },
    { "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree", NULL },
    { "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule",
      "1F1B=1F1B,GPipe=GPipe,Interleaved1F1B=Interleaved1F1B" },
    { "parallelism.context_parallel_degree", "parallelism.context_parallel_degree", NULL },
    { "parallelism.context_parallel_rotate_method", NULL, NULL },
    { "parallelism.expert_parallel_degree", "parallelism.expert_parallel_degree", NULL },
    { "activation_checkpoint.mode", "activation_checkpoint.mode",
      "none=none,full=full,selective=selective" },
    { "activation_checkpoint.selective_ac_option", NULL, NULL },
    { "checkpoint.interval", "checkpoint.every", NULL },
    { "checkpoint.keep_latest_k", "checkpoint.keep_latest_k", NULL },
    { "validation.freq", "validation.every", NULL },
    { "validation.steps", "validation.batches", NULL },
    { "metrics.log_freq", "metrics.log_every", NULL },
    { "job.dump_folder", "run.dir", NULL },
    { "job.description", NULL, NULL },
    { "metrics.enable_tensorboard", NULL, NULL },
    { "metrics.save_tb_folder", NULL, NULL },
    { "metrics.disable_color_printing", NULL, NULL },
    { 0 },
};

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
static const convert_rule olmo_rules[] = {
    { "run_name", "run.name", NULL },
    { "seed", "training.seed", NULL },
    { "model.d_model", "model.dim", NULL },
    { "model.n_heads", "model.heads", NULL },
    { "model.n_layers", "model.layers", NULL },
    { "model.weight_tying", "model.tie_embeddings", SAME_AS_TRUE },
    { "model.rope", "model.positions", "true=rope,false=learned" },
    { "model.rope_theta", "model.rope_theta", NULL },
    { "model.include_bias", "model.bias", SAME_AS_TRUE },
    { "model.layer_norm_type", "model.norm", "default=layer,low_precision=layer,rms=rms" },
    { "model.layer_norm_eps", "model.norm_eps", NULL },
    { "model.bias_for_layer_norm", "model.norm_bias", SAME_AS_TRUE },
    { "model.layer_norm_with_affine", NULL, "true=" },
    { "model.attention_layer_norm", "model.qk_norm", "true=full,false=none" },
    { "model.norm_after", "model.norm_position", "true=post,false=pre" },
    { "model.activation_type", "model.activation", "swiglu=swiglu,gelu=gelu" },
    { "model.residual_dropout", "model.dropout", NULL },
    { "model.embedding_dropout", "model.embedding_dropout", NULL },
    { "model.max_sequence_length", "model.max_seq_len", NULL },
    { "model.init_std", "model.init_std", NULL },
    { "model.init_device", NULL, NULL },
    { "model.flash_attention", NULL, NULL },
    { "model.attention_dropout", "model.attention_dropout", NULL },
    { "fsdp.sharding_strategy", "parallelism.zero_stage",
      "FULL_SHARD=3,SHARD_GRAD_OP=2,NO_SHARD=0" },
    { "fsdp.wrapping_strategy", NULL, NULL },
    { "fsdp.precision", NULL, NULL },
    { "model.alibi", NULL, "false=" },
    { "model.block_type", NULL, "sequential=" },
    { "model.eos_token_id", NULL, NULL },
    { "model.pad_token_id", NULL, NULL },
    { "optimizer.name", "optimizer.name", "adamw=adamw,lionw=lion" },
    { "optimizer.learning_rate", "optimizer.lr", NULL },
    { "optimizer.weight_decay", "optimizer.weight_decay", NULL },
    { "optimizer.eps", "optimizer.eps", NULL },
    { "optimizer.betas.0", "optimizer.beta1", NULL },
    { "optimizer.betas.1", "optimizer.beta2", NULL },
    { "optimizer.metrics_log_interval", NULL, NULL },
    { "scheduler.name", "lr_scheduler.name",
      "cosine_with_warmup=cosine,linear_with_warmup=linear" },
    { "scheduler.alpha_f", "lr_scheduler.min_lr_factor", NULL },
    { "global_train_batch_size", "training.global_batch_size", NULL },
    { "device_train_microbatch_size", "training.local_batch_size", NULL },
    { "precision", "precision.dtype", "amp_bf16=bf16,amp_fp16=fp16,fp32=fp32" },
    { "max_grad_norm", "training.max_norm", NULL },
    { "save_interval", "checkpoint.every", NULL },
    { "eval_interval", "validation.every", "${save_interval}=,*" },
    { "save_folder", NULL, NULL },
    { "save_overwrite", NULL, NULL },
    { "dry_run", NULL, NULL },
    { "tokenizer.identifier", "data.tokenizer", NULL },
    { 0 },
};

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
static const convert_rule hf_rules[] = {
    { "output_dir", "run.dir", NULL },
    { "run_name", "run.name", NULL },
    { "learning_rate", "optimizer.lr", NULL },
    { "weight_decay", "optimizer.weight_decay", NULL },
    { "adam_beta1", "optimizer.beta1", NULL },
    { "adam_beta2", "optimizer.beta2", NULL },
    { "adam_epsilon", "optimizer.eps", NULL },
    { "max_grad_norm", "training.max_norm", NULL },
    { "lr_scheduler_type", "lr_scheduler.name",
      "linear=linear,cosine=cosine,constant=constant,constant_with_warmup=constant,warmup_stable_decay=wsd" },
    { "warmup_steps", "lr_scheduler.warmup", "0=,*" },
    { "bf16", "precision.dtype", "true=bf16,false=" },
    { "fp16", "precision.dtype", "true=fp16,false=" },
    { "tf32", "precision.tf32", SAME_AS_TRUE },
    { "seed", "training.seed", NULL },
    { "save_steps", "checkpoint.every", NULL },
    { "save_total_limit", "checkpoint.keep_latest_k", NULL },
    { "eval_steps", "validation.every", NULL },
    { "logging_steps", "metrics.log_every", NULL },
    { "gradient_checkpointing", "activation_checkpoint.mode", "true=full,false=none" },
    { "optim", "optimizer.name",
      "adamw_torch=adamw,adamw_torch_fused=adamw,adamw_hf=adamw,adafactor=adafactor,sgd=momentum,adamw_8bit=adam8bit,"
      "adamw_bnb_8bit=adam8bit,lion_32bit=lion" },
    { "save_strategy", NULL, NULL },
    { "eval_strategy", NULL, NULL },
    { "evaluation_strategy", NULL, NULL },
    { "logging_strategy", NULL, NULL },
    { "report_to", NULL, NULL },
    { "report_to.0", NULL, NULL },
    { "do_train", NULL, NULL },
    { "do_eval", NULL, NULL },
    { 0 },
};

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
    { "torchtitan", "torchtitan", SYNTAX_TOML, ".toml", "[training]", false, torchtitan_rules,
      finish_torchtitan },
    { "deepspeed", "DeepSpeed", SYNTAX_JSON, ".json", "train_micro_batch_size_per_gpu", false,
      deepspeed_rules, finish_deepspeed },
    { "hf", "Hugging Face's TrainingArguments", SYNTAX_JSON, ".json", "per_device_train_batch_size",
      false, hf_rules, finish_hf },
    { "olmo", "OLMo", SYNTAX_YAML, NULL, "global_train_batch_size", true, olmo_rules, finish_olmo },
    { "neox", "GPT-NeoX", SYNTAX_YAML, NULL, "train_micro_batch_size_per_gpu", true, neox_rules,
      finish_neox },
    { "megatron", "Megatron-LM", SYNTAX_ARGUMENTS, NULL, "--num-layers", true, megatron_rules,
      finish_megatron },
};
const int convert_system_count = (int)COUNT_OF(convert_systems);
