/* GPT-NeoX's arguments, among them DeepSpeed's. */
#include "config/foreign.h"

/* clang-format off */
static const foreign_rule rules[] = {
    { "num_layers", "model.layers" },
    { "hidden_size", "model.dim" },
    { "num_attention_heads", "model.heads" },
    { "max_position_embeddings", "model.max_seq_len" },
    { "norm", "model.norm", "layernorm=layer,rmsnorm=rms", "layer" },
    { "pos_emb", "model.positions", "rotary=rope,learned=learned", "learned" },
    { "rotary_pct", "model.rope_fraction", NULL, "1" },
    { "rotary_emb_base", "model.rope_theta", NULL, "10000" },
    { "gpt_j_residual", "model.parallel_branches", FOREIGN_BOOL, "false" },
    { "no_weight_tying", "model.tie_embeddings", "true=false,false=true", "true" },
    { "attention_dropout", "model.attention_dropout", NULL, "0" },
    { "init_method_std", "model.init_std", NULL, "0.02" },
    { "seq_length", "training.seq_len" },
    { "seed", "training.seed", NULL, "1234" },
    { "optimizer.params.lr", "optimizer.lr", NULL, "0.001" },
    { "optimizer.params.betas.0", "optimizer.beta1", NULL, "0.9" },
    { "optimizer.params.betas.1", "optimizer.beta2", NULL, "0.999" },
    { "optimizer.params.eps", "optimizer.eps", NULL, "1e-08" },
    { "weight_decay", "optimizer.weight_decay", NULL, "0.1" },
    { "gradient_clipping", "training.max_norm", NULL, "1" },
    { "clip_grad", "training.max_norm" },
    { "lr_decay_style", "lr_scheduler.name", "cosine=cosine,linear=linear,constant=constant", "linear" },
    { "fp16.enabled", "precision.dtype", "true=fp16,false=" },
    { "fp16.fp16", "precision.dtype", "true=fp16,false=" },
    { "fp16.loss_scale_window", "precision.loss_scale_growth_interval", NULL, "1000" },
    { "loss_scale_window", "precision.loss_scale_growth_interval" },
    { "bf16.enabled", "precision.dtype", "true=bf16,false=" },
    { "precision", "precision.dtype", "bfloat16=bf16,fp16=fp16,fp32=fp32", "fp32" },
    { "model_parallel_size", "parallelism.tensor_parallel_degree", NULL, "1" },
    { "sequence_parallel", "parallelism.sequence_parallel", FOREIGN_BOOL, "false" },
    { "zero_optimization.stage", "parallelism.zero_stage", NULL, "0" },
    { "zero_stage", "parallelism.zero_stage" },
    { "zero_optimization.stage3_param_persistence_threshold", "parallelism.fsdp_persistence_threshold" },
    { "checkpoint_activations", "activation_checkpoint.mode", "true=full,false=none", "none" },
    { "keep_last_n_checkpoints", "checkpoint.keep_latest_k", NULL, "0" },
    { "eval_interval", "validation.every", NULL, "1000" },
    { "eval_iters", "validation.batches", NULL, "100" },
    { "log_interval", "metrics.log_every", NULL, "100" },
    { "log_gradient_noise_scale", "training.noise_scale", FOREIGN_BOOL },
    { "vocab_file", "data.tokenizer" },
    { 0 },
};

const foreign_table foreign_neox = {
    .rules = rules,
    .read = "intermediate_size num_kv_heads activation bias_gelu_fusion mlp_multiple_of hidden_dropout layernorm_epsilon rms_norm_epsilon "
            "use_bias_in_attn_linear use_bias_in_mlp use_bias_in_norms padded_vocab_size make_vocab_size_divisible_by "
            "sliding_window_width use_qk_layernorm moe_num_experts moe_expert_interval moe_top_k moe_router_type "
            "moe_aux_loss_coeff pipe_parallel_size train_batch_size train_micro_batch_size_per_gpu batch_size "
            "gradient_accumulation_steps train_iters train_epochs lr_decay_iters lr_decay_fraction warmup min_lr lr "
            "optimizer.type optimizer_type use_bnb_optimizer optimizer.params.momentum fp16.initial_scale_power "
            "checkpoint_scale checkpoint_factor save_interval data_path train_data_paths valid_data_paths split save load "
            "zero_optimization.offload_optimizer.device zero_optimization.offload_param.device attention_config "
            "num_nodes num_gpus world_size global_num_gpus finetune",
    .idle = "bf16.bf16 bf16.loss_scale bf16.loss_scale_window bf16.initial_scale_power bf16.hysteresis bf16.min_loss_scale deepspeed steps_per_print wall_clock_breakdown dump_state flops_profiler fp32_allreduce prescale_gradients "
            "gradient_predivide_factor sparse_gradients communication_data_type autotuning activation_checkpointing "
            "sparse_attention tensorboard wandb csv_monitor comms_logger checkpoint data_types deepspeed_extra_args hostfile "
            "include exclude master_port master_addr launcher force_multi autotuning_run no_ssh_check comment account "
            "pipe_partition_method is_pipe_parallel layernorm_fusion rmsnorm_fusion use_flashattn_swiglu "
            "scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion  bias_dropout_fusion "
            "rope_fusion fused_kernels_build_path use_cpu_initialization attention_softmax_in_fp32 rotary_save_freqs_buffer "
            "output_layer_parallelism serve_model_weights weight_server_port online_dataserver_ips online_dataserver_ports "
            "rpe_num_buckets rpe_max_distance scalenorm_epsilon gmlp_attn_dim sparsity_config "
            "mamba_selective_scan_fusion mamba_causal_conv_fusion mamba_inner_func_fusion mamba_selective_fp32_params "
            "mamba_use_bias_in_conv mamba_use_bias_in_linears zero_reduce_scatter zero_contiguous_gradients "
            "zero_reduce_bucket_size zero_allgather_bucket_size zero_optimization.contiguous_gradients "
            "zero_optimization.reduce_scatter zero_optimization.reduce_bucket_size zero_optimization.allgather_partitions "
            "zero_optimization.allgather_bucket_size zero_optimization.overlap_comm zero_optimization.load_from_fp32_weights "
            "zero_optimization.elastic_checkpoint zero_optimization.sub_group_size zero_optimization.cpu_offload "
            "zero_optimization.offload_optimizer zero_optimization.offload_param "
            "zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_max_live_parameters "
            "zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_gather_fp16_weights_on_model_save "
            "zero_optimization.stage3_gather_16bit_weights_on_model_save zero_optimization.ignore_unused_parameters "
            "zero_optimization.round_robin_gradients zero_optimization.legacy_stage1 zero_allow_untested_optimizer "
            "fp16.hysteresis fp16.min_loss_scale fp16.type fp16.auto_cast hysteresis dynamic_loss_scale min_scale "
            "use_wandb wandb_group wandb_run_name wandb_team wandb_project wandb_host wandb_init_all_ranks git_hash log_dir "
            "tensorboard_dir use_comet comet_workspace comet_project comet_experiment_name comet_tags comet_others "
            "comet_experiment peak_theoretical_tflops log_grad_pct_zeros log_param_norm log_grad_norm log_optimizer_states "
            "gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload memory_profiling memory_profiling_path profile "
            "profile_step_start profile_step_stop distributed_backend local_rank rank lazy_mpu_init adlr_autoresume "
            "adlr_autoresume_interval onnx_safe deepscale deepscale_config deepspeed_mpi deepspeed_slurm user_script "
            "iteration do_train do_valid do_test tokenizer_type use_shared_fs test_data_paths test_data_weights data_impl "
            "mmap_warmup s3_path s3_chunk_size config_files checkpoint_validation_with_forward_pass extra_save_iters "
            "no_save_optim no_save_rng no_load_optim no_load_rng merge_file num_workers checkpoint_num_layers "
            "deepspeed_activation_checkpointing contiguous_checkpointing checkpoint_in_cpu synchronize_each_layer "
            "profile_backward partition_activations char_level_ppl coord_check save_base_shapes text_gen_type "
            "precompute_model_name temperature top_p top_k return_logits maximum_tokens prompt_end sample_input_file "
            "sample_output_file num_samples recompute eval_results_prefix eval_tasks te_fp8_wgrad te_fp8_amax_history_len "
            "te_fp8_amax_compute_algo te_fp8_margin te_fp8_format te_columnparallel te_rowparallel te_layernorm_mlp te_mha "
            "optimizer.params.bias_correction short_seq_prob curriculum_learning elasticity data_efficiency "
            "compression_training use_tutel moe_lbl_in_fp32 dpo_fp32 dpo_beta dpo_reference_free kto_fp32 "
            "kto_desirable_weight kto_undesirable_weight kto_beta fp32_reinforce kl_impl kl_div_beta "
            "reinforce_leave_one_out allow_chopped mup_width_scale precision_config curriculum_seqlen param_sharing_style "
            "log_interval_size",
    .changes = "scheduler amp.enabled fp16.loss_scale=0|0.0 fp16.fp16_master_weights_and_grads loss_scale "
            "expansion_factor opt_pos_emb_offset=0 num_unique_layers fp16_lm_cross_entropy apply_query_key_layer_scaling "
            "init_method=normal output_layer_init_method=scaled_normal gpt_j_tied soft_prompt_tuning te_fp8_mha dim_att "
            "head_size ffn_dim override_lr_scheduler use_checkpoint_lr_scheduler eod_mask_loss train_label_data_paths "
            "train_reward_data_paths test_label_data_paths test_reward_data_paths valid_label_data_paths "
            "valid_reward_data_paths pos_train_data_paths neg_train_data_paths pos_train_label_data_paths "
            "neg_train_label_data_paths pos_valid_data_paths neg_valid_data_paths pos_valid_label_data_paths "
            "neg_valid_label_data_paths pos_test_data_paths neg_test_data_paths pos_test_label_data_paths "
            "neg_test_label_data_paths train_data_weights valid_data_weights weight_by_num_documents "
            "weighted_sampler_alpha=1|1.0 pack_impl=packed dataset_impl=gpt2 train_impl=normal z_loss=0|0.0 exit_interval "
            "use_mup base_shapes_file mup_init_scale=1|1.0 mup_attn_temp=1|1.0 mup_output_temp=1|1.0 mup_embedding_mult=1|1.0 "
            "mup_rp_embedding_mult=1|1.0 moe_jitter_eps optimizer.params.weight_decay optimizer.params.freeze_step "
            "optimizer.params.max_coeff optimizer.params.min_coeff optimizer.params.cuda_aware "
            "optimizer.params.comm_backend_name curriculum_learning.enabled data_efficiency.enabled elasticity.enabled "
            "compression_training.weight_quantization sparse_attention.mode moe_type=megablocks "
            "moe_expert_parallel_size=1 moe_token_dropping moe_train_capacity_factor moe_eval_capacity_factor "
            "moe_min_capacity moe_use_residual moe_loss_coeff enable_expert_tensor_parallelism moe_glu mlp_type=regular",
};
/* clang-format on */
