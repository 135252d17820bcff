/* torchtitan's job configs (TOML, until February 2026), and the places that earlier versions had for their keys. */
#include "config/foreign.h"

/* clang-format off */
#define DEGREES(section)                                                                                                   \
    { section ".data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree" },                           \
    { section ".data_parallel_shard_degree", "parallelism.data_parallel_shard_degree" },                                   \
    { section ".tensor_parallel_degree", "parallelism.tensor_parallel_degree" },                                           \
    { section ".pipeline_parallel_degree", "parallelism.pipeline_parallel_degree" },                                       \
    { section ".context_parallel_degree", "parallelism.context_parallel_degree" }
#define SCHEDULES                                                                                                          \
    "1F1B=1F1B,1f1b=1F1B,GPipe=GPipe,gpipe=GPipe,Interleaved1F1B=Interleaved1F1B,interleaved_1f1b=Interleaved1F1B"

static const foreign_rule rules[] = {
    { "job.dump_folder", "run.dir", NULL, "./outputs" },
    { "training.seq_len", "training.seq_len", NULL, "2048" },
    { "training.local_batch_size", "training.local_batch_size", NULL, "8" },
    { "training.batch_size", "training.local_batch_size" },
    { "training.global_batch_size", "training.global_batch_size", "-1=,*" },
    { "training.max_norm", "training.max_norm", NULL, "1" },
    { "training.seed", "training.seed" },
    { "debug.seed", "training.seed" },
    { "training.deterministic", "debug.deterministic", FOREIGN_BOOL },
    { "debug.deterministic", "debug.deterministic", FOREIGN_BOOL },
    { "training.mixed_precision_param", "precision.dtype", "bfloat16=bf16,float32=fp32", "bf16" },
    { "optimizer.name", "optimizer.name", "AdamW=adamw,Adam=adam", "adamw" },
    { "optimizer.lr", "optimizer.lr", NULL, "0.0008" },
    { "optimizer.eps", "optimizer.eps", NULL, "1e-08" },
    { "optimizer.beta1", "optimizer.beta1", NULL, "0.9" },
    { "optimizer.beta2", "optimizer.beta2", NULL, "0.95" },
    { "optimizer.weight_decay", "optimizer.weight_decay", NULL, "0.1" },
    { "lr_scheduler.warmup_steps", "lr_scheduler.warmup", NULL, "200" },
    { "training.warmup_steps", "lr_scheduler.warmup" },
    { "lr_scheduler.min_lr_factor", "lr_scheduler.min_lr_factor", NULL, "0" },
    { "lr_scheduler.lr_min", "lr_scheduler.min_lr_factor" },
    DEGREES("parallelism"),
    DEGREES("training"),
    DEGREES("experimental"),
    { "training.data_parallel_degree", "parallelism.data_parallel_shard_degree" },
    { "parallelism.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward",
      "default=default,always=always,never=never" },
    { "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule", SCHEDULES },
    { "experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule", SCHEDULES },
    { "parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_first_stage_less_layers" },
    { "parallelism.pipeline_parallel_last_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers" },
    { "parallelism.expert_parallel_degree", "parallelism.expert_parallel_degree" },
    { "activation_checkpoint.mode", "activation_checkpoint.mode", "none=none,full=full,selective=selective", "selective" },
    { "checkpoint.keep_latest_k", "checkpoint.keep_latest_k", NULL, "10" },
    { "metrics.log_freq", "metrics.log_every", NULL, "10" },
    { "metrics.enable_tensorboard", "metrics.tensorboard_every", "true=1,false=0", "0" },
    { "comm.train_timeout_seconds", "comm.timeout_seconds" },
    { 0 },
};

const foreign_table foreign_torchtitan = {
    .rules = rules,
    .read = "model.name model.flavor model.converters training.steps training.enable_cpu_offload training.dtype "
            "lr_scheduler.decay_ratio lr_scheduler.decay_type lr_scheduler.total_steps "
            "float8.enable_float8_linear float8.recipe_name float8.filter_fqns float8.scaling_type_input "
            "float8.scaling_type_weight float8.scaling_type_grad_output "
            "quantize.linear.float8.recipe_name quantize.linear.float8.filter_fqns "
            "checkpoint.enable checkpoint.enable_checkpoint checkpoint.interval checkpoint.interval_type "
            "validation.enable validation.enabled validation.freq validation.steps validation.local_batch_size "
            "training.data_parallel_type",
    .idle = "job.config_file job.description job.print_config job.print_args job.save_config_file job.custom_config_module "
            "job.use_for_integration_test profiling metrics.disable_color_printing metrics.save_tb_folder "
            "metrics.save_for_all_ranks metrics.enable_wandb metrics.enable_color_printing metrics.rank_0_only "
            "model.hf_assets_path model.tokenizer_path model.print_after_conversion model.norm_type=rmsnorm "
            "optimizer.implementation optimizer.fused optimizer.foreach optimizer.early_step_in_backward "
            "training.dataset training.dataset_path training.mixed_precision_reduce training.gc_freq training.gc_debug "
            "training.compile training.dataloader training.fsdp_reshard_after_forward training.enable_loss_parallel "
            "training.disable_loss_parallel training.enable_compiled_autograd training.enable_async_tensor_parallel "
            "training.fp8_linear.* training.num_workers parallelism.disable_loss_parallel "
            "parallelism.enable_async_tensor_parallel parallelism.enable_compiled_autograd "
            "parallelism.pipeline_parallel_microbatch_size parallelism.pipeline_parallel_expert_parallel_overlap "
            "parallelism.context_parallel_load_balancer parallelism.context_parallel_rotate_method "
            "parallelism.expert_tensor_parallel_degree parallelism.expert_parallel_comm_backend "
            "parallelism.pipeline_parallel_schedule_csv experimental.custom_import experimental.custom_args_module "
            "experimental.enable_async_tensor_parallel experimental.enable_compiled_autograd "
            "experimental.context_parallel_rotate_method experimental.pipeline_parallel_microbatches "
            "experimental.custom_model_path checkpoint.enable_ft_dataloader_checkpoints checkpoint.folder "
            "checkpoint.last_save_model_only checkpoint.last_save_model_weights_only checkpoint.model_weights_only "
            "checkpoint.last_save_in_hf checkpoint.export_dtype checkpoint.async_mode checkpoint.load_step "
            "checkpoint.enable_first_step_checkpoint checkpoint.create_seed_checkpoint "
            "activation_checkpoint.selective_ac_option activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns "
            "activation_checkpoint.early_stop activation_checkpoint.memory_budget "
            "activation_checkpoint.visualize_memory_budget_pareto activation_checkpoint.preserve_rng_state "
            "activation_checkpoint.determinism_check activation_checkpoint.debug compile float8.enable_fsdp_float8_all_gather "
            "float8.precompute_float8_dynamic_scale_for_fsdp float8.emulate float8.force_recompute_fp8_weight_in_bwd "
            "float8.moe_fqns_prototype quantize.linear.float8.enable_fsdp_float8_all_gather "
            "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp quantize.linear.float8.emulate quantize.linear.mx "
            "quantize.grouped_mm mx comm.init_timeout_seconds comm.trace_buf_size comm.save_traces_folder "
            "comm.save_traces_file_prefix comm.mode memory_estimation fault_tolerance validation.dataset "
            "validation.dataset_path validation.seq_len validation.dataloader debug.deterministic_warn_only debug.print_config "
            "debug.save_config_file activation_offload.mode=none",
    .changes = "parallelism.module_fqns_per_model_part parallelism.pipeline_parallel_layers_per_stage "
            "parallelism.pipeline_parallel_split_points experimental.pipeline_parallel_split_points "
            "checkpoint.initial_load_path checkpoint.initial_load_model_only=true checkpoint.initial_load_in_hf "
            "checkpoint.initial_load_in_hf_quantized checkpoint.exclude_from_loading checkpoint.load_only "
            "debug.moe_force_load_balance training.debug_moe_force_load_balance fault_tolerance.semi_sync_method "
            "fault_tolerance.enable model.use_flex_attn model.attn_mask_type=causal training.classifier_free_guidance_prob "
            "encoder preprocess inference",
};
/* clang-format on */
