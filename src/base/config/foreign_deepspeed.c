/* DeepSpeed's configuration, to version 0.16. Its optimizer and model may be the program's own: what the file leaves to
 * the program has no default here. */
#include "config/foreign.h"

/* clang-format off */
static const foreign_rule rules[] = {
    { "optimizer.params.lr", "optimizer.lr", NULL, "0.001", "optimizer.type" },
    { "optimizer.params.betas.0", "optimizer.beta1", NULL, "0.9", "optimizer.type" },
    { "optimizer.params.eps", "optimizer.eps", NULL, "1e-08", "optimizer.type" },
    { "optimizer.params.weight_decay", "optimizer.weight_decay", NULL, "0", "optimizer.type" },
    { "scheduler.params.total_num_steps", "training.steps" },
    { "scheduler.params.warmup_num_steps", "lr_scheduler.warmup", NULL, "1000", "scheduler.type" },
    { "bf16.enabled", "precision.dtype", "true=bf16,false=", "fp32" },
    { "bfloat16.enabled", "precision.dtype", "true=bf16,false=" },
    { "fp16.enabled", "precision.dtype", "true=fp16,false=" },
    { "fp16.loss_scale_window", "precision.loss_scale_growth_interval", NULL, "1000" },
    { "gradient_clipping", "training.max_norm", NULL, "0" },
    { "zero_optimization.stage", "parallelism.zero_stage", NULL, "0" },
    { "zero_optimization.stage3_param_persistence_threshold", "parallelism.fsdp_persistence_threshold", NULL, "100000" },
    { "zero_optimization.param_persistence_threshold", "parallelism.fsdp_persistence_threshold" },
    { "communication_data_type", "parallelism.reduce_dtype", "fp32=,bf16=bf16,bfp16=bf16,fp16=fp16" },
    { "zero_optimization.offload_param.device", "training.offload_params", "cpu=true,none=false" },
    { "zero_optimization.cpu_offload_params", "training.offload_params", FOREIGN_BOOL },
    { "zero_optimization.cpu_offload_param", "training.offload_params", FOREIGN_BOOL },
    { "zero_optimization.cpu_offload", "optimizer.offload", "true=1,false=0" },
    { "steps_per_print", "metrics.log_every" },
    { "seed", "training.seed" },
    { 0 },
};

const foreign_table foreign_deepspeed = {
    .rules = rules,
    .read = "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
            "optimizer.type optimizer.params.betas.1 optimizer.params.momentum optimizer.params.torch_adam "
            "optimizer.params.adam_w_mode optimizer.params.nesterov optimizer.params.betas "
            "scheduler.type scheduler.params.warmup_type scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr "
            "scheduler.params.warmup_min_ratio scheduler.params.cos_min_ratio "
            "zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.ratio "
            "fp16.initial_scale_power",
    .idle = "bf16.loss_scale bf16.loss_scale_window bf16.hysteresis bf16.min_loss_scale bf16.initial_scale_power optimizer.legacy_fusion optimizer.params.fused "
            "optimizer.params.set_grad_none zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients "
            "gradient_predivide_factor sparse_gradients bf16.immediate_grad_update bf16.check_grad_overflow "
            "fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale fp16.auto_cast amp.opt_level "
            "zero_optimization.contiguous_gradients zero_optimization.reduce_scatter zero_optimization.reduce_bucket_size "
            "zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.allgather_partitions "
            "zero_optimization.allgather_bucket_size zero_optimization.overlap_comm zero_optimization.load_from_fp32_weights "
            "zero_optimization.elastic_checkpoint zero_optimization.sub_group_size zero_optimization.cpu_offload_use_pin_memory "
            "zero_optimization.offload_optimizer zero_optimization.offload_param "
            "zero_optimization.stage3_prefetch_bucket_size zero_optimization.prefetch_bucket_size "
            "zero_optimization.stage3_model_persistence_threshold zero_optimization.model_persistence_threshold "
            "zero_optimization.stage3_max_live_parameters zero_optimization.max_live_parameters "
            "zero_optimization.stage3_max_reuse_distance zero_optimization.max_reuse_distance "
            "zero_optimization.stage3_gather_16bit_weights_on_model_save "
            "zero_optimization.gather_16bit_weights_on_model_save zero_optimization.stage3_gather_fp16_weights_on_model_save "
            "zero_optimization.stage3_module_granularity_threshold zero_optimization.module_granularity_threshold "
            "zero_optimization.stage3_use_all_reduce_for_fetch_params zero_optimization.use_all_reduce_for_fetch_params "
            "zero_optimization.ignore_unused_parameters zero_optimization.legacy_stage1 "
            "zero_optimization.round_robin_gradients zero_optimization.zero_hpz_partition_size "
            "zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather "
            "zero_optimization.memory_efficient_linear zero_optimization.pipeline_loading_checkpoint "
            "zero_optimization.override_module_apply zero_optimization.log_trace_cache_warnings "
            "zero_optimization.find_unused_parameters zero_optimization.stage3_gather_fp16_weights "
            "seq_parallel_comm_data_type disable_allgather dump_state wall_clock_breakdown memory_breakdown "
            "graph_harvesting eigenvalue progressive_layer_drop activation_checkpointing flops_profiler tensorboard wandb "
            "csv_monitor comet comms_logger autotuning checkpoint data_types dataloader_drop_last elasticity "
            "use_data_before_expert_parallelism aio compile vocabulary_size nebula hybrid_engine zero_init curriculum_learning "
            "data_efficiency compression_training sparse_attention quantize_training timers flops_profile "
            "pipeline.pipe_partitioned pipeline.grad_partitioned fp32_allreduce pipeline.activation_checkpoint_interval "
            "local_rank",
    .changes = "optimizer.params.amsgrad optimizer.params.bias_correction=true optimizer.params.max_grad_norm=0|0.0 optimizer.params.freeze_step "
            "optimizer.params.cuda_aware optimizer.params.comm_backend_name optimizer.params.coeff_beta "
            "optimizer.params.factor_max optimizer.params.factor_min optimizer.params.factor_threshold "
            "optimizer.params.max_coeff optimizer.params.min_coeff optimizer.params.var_freeze_step "
            "optimizer.params.var_update_scaler optimizer.params.local_step_scaler optimizer.params.local_step_clipper "
            "optimizer.params.dampening=0|0.0 optimizer.params.ns_steps optimizer.params.adam_betas optimizer.params.adam_lr "
            "scheduler.params.last_batch_iteration=-1 scheduler.params.cycle_min_lr scheduler.params.cycle_max_lr "
            "scheduler.params.decay_lr_rate scheduler.params.cycle_first_step_size scheduler.params.cycle_second_step_size "
            "scheduler.params.cycle_first_stair_count scheduler.params.cycle_second_stair_count "
            "scheduler.params.decay_step_size scheduler.params.cycle_momentum scheduler.params.cycle_min_mom "
            "scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate scheduler.params.lr_range_test_min_lr "
            "scheduler.params.lr_range_test_step_size scheduler.params.lr_range_test_step_rate "
            "scheduler.params.lr_range_test_staircase fp16.loss_scale=0|0.0 fp16.fp16_master_weights_and_grads amp.enabled "
            "amp zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients "
            "zero_optimization.zero_quantized_nontrainable_weights zero_optimization.zeropp_loco_param "
            "sparse_attention.mode eigenvalue.enabled progressive_layer_drop.enabled curriculum_learning.enabled "
            "data_efficiency.enabled compression_training.weight_quantization compression_training.sparse_pruning "
            "compression_training.activation_quantization compression_training.row_pruning "
            "compression_training.head_pruning compression_training.channel_pruning "
            "compression_training.layer_reduction.enabled quantize_training.enabled elasticity.enabled "
            "hybrid_engine.enabled data_types.grad_accum_dtype=fp32 tensor_parallel sequence_parallel_size=1",
};
/* clang-format on */
