/* OLMo's training configs (the trainer of OLMo 1 and 2), and the section `fsdp_config` of llm-foundry, whose lengths it
 * shares. */
#include "config/foreign.h"

/* clang-format off */
static const foreign_rule rules[] = {
    { "run_name", "run.name" },
    { "seed", "training.seed", NULL, "6198" },
    { "model.d_model", "model.dim", NULL, "768", "model.n_layers" },
    { "model.n_heads", "model.heads", NULL, "12", "model.n_layers" },
    { "model.n_layers", "model.layers" },
    { "model.weight_tying", "model.tie_embeddings", FOREIGN_BOOL, "true" },
    { "model.rope", "model.positions", "true=rope,false=learned", "learned" },
    { "model.rope_theta", "model.rope_theta", NULL, "10000" },
    { "model.include_bias", "model.bias", FOREIGN_BOOL, "true" },
    { "model.layer_norm_type", "model.norm", "default=layer,low_precision=layer,rms=rms", "layer" },
    { "model.layer_norm_eps", "model.norm_eps", NULL, "1e-05" },
    { "model.bias_for_layer_norm", "model.norm_bias", FOREIGN_BOOL },
    { "model.attention_layer_norm", "model.qk_norm", "true=full,false=none", "none" },
    { "model.norm_after", "model.norm_position", "true=post,false=pre", "pre" },
    { "model.residual_dropout", "model.dropout", NULL, "0.1" },
    { "model.embedding_dropout", "model.embedding_dropout", NULL, "0.1" },
    { "model.attention_dropout", "model.attention_dropout", NULL, "0.1" },
    { "model.init_std", "model.init_std", NULL, "0.02" },
    { "optimizer.name", "optimizer.name", "adamw=adamw,lionw=lion", "lion" },
    { "optimizer.learning_rate", "optimizer.lr", NULL, "0.0001" },
    { "optimizer.weight_decay", "optimizer.weight_decay", NULL, "0.01" },
    { "optimizer.eps", "optimizer.eps", NULL, "1e-05" },
    { "optimizer.betas.0", "optimizer.beta1", NULL, "0.9" },
    { "optimizer.betas.1", "optimizer.beta2", NULL, "0.95" },
    { "scheduler.name", "lr_scheduler.name", "cosine_with_warmup=cosine,linear_with_warmup=linear,constant_with_warmup=constant",
      "cosine" },
    { "scheduler.alpha_f", "lr_scheduler.min_lr_factor", NULL, "0.1" },
    { "global_train_batch_size", "training.global_batch_size", NULL, "512" },
    { "device_train_microbatch_size", "training.local_batch_size", NULL, "16" },
    { "precision", "precision.dtype", "amp_bf16=bf16,bf16=bf16,amp_fp16=fp16,fp32=fp32", "fp32" },
    { "softmax_auxiliary_loss", "training.z_loss", "true=1e-4,false=" },
    { "max_grad_norm", "training.max_norm", NULL, "0" },
    { "save_interval", "checkpoint.every", NULL, "1000" },
    { "save_num_checkpoints_to_keep", "checkpoint.keep_latest_k", "-1=0,*", "0" },
    { "eval_interval", "validation.every", "${save_interval}=,*", "1000" },
    { "eval_subset_num_batches", "validation.batches", "-1=0,*", "0" },
    { "console_log_interval", "metrics.log_every", NULL, "1" },
    { "data.generate_doc_lengths", "data.documents", FOREIGN_BOOL, "false" },
    { "fsdp.sharding_strategy", "parallelism.zero_stage", "FULL_SHARD=3,SHARD_GRAD_OP=2,NO_SHARD=0", "3" },
    { "fsdp_config.sharding_strategy", "parallelism.zero_stage", "FULL_SHARD=3,SHARD_GRAD_OP=2,NO_SHARD=0" },
    { "activation_checkpointing", "activation_checkpoint.mode", "whole_layer=full,fine_grained=selective", "none" },
    { "tokenizer.identifier", "data.tokenizer" },
    { 0 },
};

const foreign_table foreign_olmo = {
    .rules = rules,
    .read = "model.mlp_ratio model.mlp_hidden_size model.n_kv_heads model.multi_query_attention model.activation_type "
            "model.vocab_size model.embedding_size model.max_sequence_length scheduler.units scheduler.t_warmup "
            "scheduler.t_max max_duration stop_at stop_after distributed_strategy data.paths load_path save_folder "
            "device_train_grad_accum device_train_batch_size auxiliary_loss_multiplier",
    .idle = "epoch dry_run model.flash_attention model.attention_type model.eos_token_id model.pad_token_id model.init_device "
            "model.rope_full_precision model.precision model.alibi_bias_max optimizer.metrics_log_interval "
            "optimizer.record_update_metrics data.memmap_dtype data.pad_direction data.num_workers data.drop_last "
            "data.pin_memory data.prefetch_factor data.persistent_workers data.timeout data.generate_attention_mask "
            "restore_dataloader fast_forward_batches evaluators tokenizer.truncate_direction save_interval_unsharded "
            "save_interval_ephemeral save_num_unsharded_checkpoints_to_keep save_overwrite force_save_unsharded "
            "no_pre_train_checkpoint remote_save_folder canceled_check_interval load_path_sharded_checkpointer "
            "try_load_latest_save sharded_checkpointer new_style_checkpoints device_eval_batch_size eval_on_load wandb "
            "speed_monitor gen1_gc_interval compile fsdp.use_orig_params fsdp.wrapping_strategy fsdp.precision "
            "fsdp.hybrid_sharding_num_model_replicas fsdp_config.wrapping_strategy fsdp_config.precision "
            "fsdp_config.mixed_precision fsdp_config.activation_checkpointing_reentrant fsdp_config.activation_cpu_offload "
            "fsdp_config.limit_all_gathers ddp single time_limit extra_steps_after_cancel "
            "save_data_indices python_profiling torch_profiling fused_loss hf_datasets_cache_dir module_outputs_save_steps "
            "early_stopping_factor",
    .changes = "model.clip_qkv model.block_type=sequential model.block_group_size=1 model.alibi model.embedding_layer_norm "
            "model.layer_norm_with_affine=true model.attention_layer_norm_with_affine=true model.scale_logits "
            "model.init_fn=normal model.init_cutoff_factor model.scale_emb_init model.emb_init_std "
            "optimizer.no_decay_norm_and_bias=true optimizer.selective_updates optimizer.decay_norm_and_bias "
            "optimizer.decay_embeddings=true scheduler.grad_clip_warmup_steps scheduler.grad_clip_warmup_factor "
            "scheduler.warmup_min_lr=0|0.0 data.datasets data.label_mask_paths data.seed data.instance_filter "
            "data.custom_dataset max_grad_norm_ratio reset_optimizer_state reset_trainer_state",
};
/* clang-format on */
