/* Megatron-LM's arguments, from version 2.5 to core 0.19. Flags that switch something off ("no_...") are keys of their
 * own, as on its command line. */
#include "config/foreign.h"

/* clang-format off */
static const foreign_rule rules[] = {
    /* model */
    { "num_layers", "model.layers" },
    { "hidden_size", "model.dim" },
    { "num_attention_heads", "model.heads" },
    { "max_position_embeddings", "model.max_seq_len" },
    { "normalization", "model.norm", "LayerNorm=layer,RMSNorm=rms", "layer" },
    { "norm_epsilon", "model.norm_eps" },
    { "layernorm_epsilon", "model.norm_eps", NULL, "1e-05" },
    { "position_embedding_type", "model.positions", "rope=rope,learned_absolute=learned", "learned" },
    { "rotary_base", "model.rope_theta", NULL, "10000" },
    { "rotary_percent", "model.rope_fraction", NULL, "1" },
    { "qk_layernorm", "model.qk_norm", "true=head,false=", "none" },
    { "init_method_std", "model.init_std", NULL, "0.02" },
    { "attention_dropout", "model.attention_dropout", NULL, "0.1" },
    { "untie_embeddings_and_output_weights", "model.tie_embeddings", "true=false,false=", "true" },
    { "disable_bias_linear", "model.bias", "true=false,false=", "true" },
    { "add_qkv_bias", "model.qkv_bias", FOREIGN_BOOL },
    /* experts */
    { "num_experts", "model.experts" },
    { "moe_router_topk", "model.experts_per_token", NULL, "2", "num_experts" },
    { "moe_ffn_hidden_size", "model.expert_dim" },
    { "moe_z_loss_coeff", "model.router_z_loss", NULL, "0", "num_experts" },
    { "moe_expert_capacity_factor", "model.capacity_factor", NULL, "0", "num_experts" },
    { "moe_router_score_function", "model.router_score", "softmax=softmax,sigmoid=sigmoid", "softmax", "num_experts" },
    { "moe_router_topk_scaling_factor", "model.router_scale", NULL, "1", "num_experts" },
    { "moe_router_enable_expert_bias", "model.router_bias", FOREIGN_BOOL, "false", "num_experts" },
    { "moe_router_bias_update_rate", "model.router_bias_rate" },
    /* length, batch, optimizer */
    { "seq_length", "training.seq_len" },
    { "clip_grad", "training.max_norm", NULL, "1" },
    { "lr", "optimizer.lr" },
    { "weight_decay", "optimizer.weight_decay", NULL, "0.01" },
    { "adam_beta1", "optimizer.beta1", NULL, "0.9" },
    { "adam_beta2", "optimizer.beta2", NULL, "0.999" },
    { "adam_eps", "optimizer.eps", NULL, "1e-08" },
    { "sgd_momentum", "optimizer.momentum", NULL, "0.9" },
    { "optimizer", "optimizer.name", "adam=adamw,sgd=momentum", "adamw" },
    { "lr_decay_style", "lr_scheduler.name", "cosine=cosine,linear=linear,constant=constant,WSD=wsd", "linear" },
    { "lr_wsd_decay_iters", "lr_scheduler.decay" },
    { "lr_wsd_decay_style", "lr_scheduler.decay_type", "exponential=exponential,linear=linear,cosine=cosine,minus_sqrt=sqrt",
      "exponential" },
    { "seed", "training.seed", NULL, "1234" },
    { "bf16", "precision.dtype", "true=bf16,false=", "fp32" },
    { "fp16", "precision.dtype", "true=fp16,false=" },
    { "initial_loss_scale", "precision.loss_scale", NULL, "4294967296" },
    { "loss_scale_window", "precision.loss_scale_growth_interval", NULL, "1000" },
    /* layout */
    { "tensor_model_parallel_size", "parallelism.tensor_parallel_degree", NULL, "1" },
    { "pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree", NULL, "1" },
    { "account_for_embedding_in_pipeline_split", "parallelism.pipeline_parallel_first_stage_less_layers", "true=1,false=" },
    { "account_for_loss_in_pipeline_split", "parallelism.pipeline_parallel_last_stage_less_layers", "true=1,false=" },
    { "context_parallel_size", "parallelism.context_parallel_degree", NULL, "1" },
    { "expert_model_parallel_size", "parallelism.expert_parallel_degree", NULL, "1" },
    { "sequence_parallel", "parallelism.sequence_parallel", FOREIGN_BOOL, "false" },
    { "grad_reduce_in_bf16", "parallelism.reduce_dtype", "true=bf16,false=" },
    { "recompute_granularity", "activation_checkpoint.mode", "full=full,selective=selective" },
    { "recompute_activations", "activation_checkpoint.mode", "true=selective,false=" },
    { "checkpoint_activations", "activation_checkpoint.mode", "true=full,false=" },
    { "activations_checkpoint_method", "activation_checkpoint.mode", "uniform=full,block=full" },
    /* intervals */
    { "eval_interval", "validation.every", NULL, "1000" },
    { "eval_iters", "validation.batches", NULL, "100" },
    { "save_interval", "checkpoint.every", NULL, "0" },
    { "log_interval", "metrics.log_every", NULL, "100" },
    { 0 },
};

const foreign_table foreign_megatron = {
    .rules = rules,
    .read = "ffn_hidden_size kv_channels num_query_groups group_query_attention hidden_dropout swiglu squared_relu openai_gelu no_bias_gelu_fusion "
            "use_rotary_position_embeddings no_position_embedding vocab_size padded_vocab_size make_vocab_size_divisible_by "
            "moe_shared_expert_intermediate_size moe_aux_loss_coeff moe_router_load_balancing_type moe_layer_freq "
            "moe_router_pre_softmax use_rope_scaling rope_scaling_factor window_size "
            "micro_batch_size global_batch_size rampup_batch_size train_iters train_samples "
            "lr_decay_iters lr_decay_samples lr_warmup_fraction lr_warmup_iters lr_warmup_samples warmup min_lr "
            "lr_wsd_decay_samples use_distributed_optimizer use_torch_fsdp2 use_megatron_fsdp use_custom_fsdp "
            "data_parallel_sharding_strategy "
            "num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank optimizer_cpu_offload optimizer_offload_fraction "
            "fp8_format fp8_recipe fp8_amax_history_len fp8_amax_compute_algo "
            "reset_attention_mask reset_position_ids eod_mask_loss data_path train_data_path valid_data_path split save load",
    .idle = "DDP_impl accumulate_allreduce_grads_in_fp32 activations_checkpoint_num_layers adlr_autoresume "
            "adlr_autoresume_interval app_tag_run_name app_tag_run_version async_save attention_backend "
            "attention_softmax_in_fp32 auto_detect_ckpt_format calc_ft_timeouts check_for_large_grads check_for_spiky_loss "
            "check_weight_hash_across_dp_replicas_interval checkpoint_num_layers ckpt_assume_constant_structure "
            "ckpt_convert_format ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format ckpt_format "
            "ckpt_fully_parallel_load ckpt_fully_parallel_save config_logger_dir cp_comm_type cross_entropy_fusion_impl "
            "cross_entropy_loss_fusion cuda_graph_impl cuda_graph_scope cuda_graph_warmup_steps data_cache_path data_impl "
            "ddp_average_in_collective ddp_bucket_size ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw "
            "decode_only_cuda_graphs defer_embedding_wgrad_compute delay_param_gather delay_wgrad_compute deterministic_mode "
            "disable_chunked_prefill disable_gloo_process_groups disable_mamba_mem_eff_path disable_msc "
            "disable_straggler_on_startup disable_symmetric_registration disable_tp_comm_bulk_dgrad "
            "disable_tp_comm_bulk_wgrad disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag "
            "disable_tp_comm_split_rs distributed_timeout_minutes dist_ckpt_format dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014 "
            "dist_ckpt_strictness distrib_optim_fully_reshardable_mem_efficient distribute_checkpointed_activations "
            "distribute_saved_activations distributed_backend distributed_timeout_seconds_after_init "
            "empty_unused_memory_level enable_cuda_graph enable_experimental enable_ft_package enable_full_sharding_in_hsdp "
            "enable_one_logger error_injection_rate error_injection_type exit_on_missing_checkpoint exit_signal_handler "
            "external_cuda_graph flash_decode fsdp_double_buffer fp8_param_gather fp8_interval "
            "hierarchical_context_parallel_sizes high_priority_stream_groups inference_batch_times_seqlen_threshold "
            "inference_dynamic_batching inference_dynamic_batching_block_size "
            "inference_dynamic_batching_buffer_guaranteed_fraction inference_dynamic_batching_buffer_overflow_factor "
            "inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_chunk_size "
            "inference_dynamic_batching_max_requests_override inference_dynamic_batching_max_tokens_override "
            "inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_track_paused_request_events "
            "inference_dynamic_batching_unified_memory_level inference_max_batch_size inference_max_requests "
            "inference_max_seq_length inference_rng_tracker init_model_with_meta_device inprocess_active_world_size "
            "inprocess_barrier_timeout inprocess_completion_timeout inprocess_empty_cuda_cache inprocess_granularity "
            "inprocess_hard_timeout inprocess_heartbeat_interval inprocess_heartbeat_timeout inprocess_last_call_wait "
            "inprocess_max_iterations inprocess_monitor_process_interval inprocess_monitor_thread_interval "
            "inprocess_progress_watchdog_interval inprocess_restart inprocess_soft_timeout inprocess_termination_grace_time "
            "keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp lazy_mpu_init legacy_tokenizer "
            "load_main_params_from_ckpt load_model_opt_format local_rank log_batch_size_to_tensorboard log_energy "
            "log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm log_progress log_straggler log_throughput "
            "log_timers_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level "
            "manual_gc manual_gc_interval max_tokens_to_oom memory_snapshot_path merge_file "
            "microbatch_group_size_per_virtual_pipeline_stage mid_level_dataset_surplus min_loss_scale mlp_chunks_for_prefill "
            "mmap_warmup moe_deepep_num_sms moe_enable_deepep moe_extended_tp moe_grouped_gemm moe_layer_recompute "
            "moe_pad_experts_for_cuda_graph_inference moe_per_layer_logging moe_permute_fusion moe_router_dtype "
            "moe_router_fusion moe_router_padding_for_fp8 moe_shared_expert_overlap moe_token_dispatcher_type "
            "moe_use_legacy_grouped_gemm expert_tensor_parallel_size multiple_validation_sets full_validation "
            "nccl_all_reduce_for_prefill nccl_communicator_config_path no_align_grad_reduce no_align_param_gather "
            "no_async_tensor_model_parallel_allreduce no_barrier_with_level_1_timing no_bias_dropout_fusion "
            "no_bias_swiglu_fusion no_check_for_nan_in_loss_and_grad no_ckpt_fully_parallel_save "
            "no_clone_scatter_output_in_embedding no_contiguous_buffers_in_local_ddp "
            "no_create_attention_mask_in_dataloader no_data_sharding no_delay_grad_reduce no_gradient_accumulation_fusion "
            "no_gradient_reduce_div_fusion no_load_optim no_load_rng no_log_learnig_rate_to_tensorboard "
            "no_log_loss_scale_to_tensorboard no_manual_gc_eval no_masked_softmax_fusion no_mmap_bin_files no_one_logger "
            "no_overlap_p2p_communication no_persist_layer_norm no_pin_cpu_grads no_pin_cpu_params "
            "no_query_key_layer_scaling no_rope_fusion no_save_optim no_save_rng no_scatter_gather_tensors_in_pipeline "
            "no_strict_fsdp_dtensor_load no_use_tokenizer_model_from_checkpoint_args no_initialization "
            "non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_algo "
            "non_persistent_local_ckpt_dir non_persistent_save_interval num_dataset_builder_threads num_workers "
            "num_distributed_optimizer_instances object_storage_cache_path one_logger_async one_logger_entity "
            "one_logger_project one_logger_run_name onnx_safe overlap_cpu_optimizer_d2h_h2d overlap_grad_reduce "
            "overlap_moe_expert_parallel_comm overlap_p2p_communication_warmup_flush overlap_param_gather "
            "overlap_param_gather_with_optimizer_step persistent_save_interval pipeline_model_parallel_comm_backend profile "
            "profile_ranks profile_step_end profile_step_start recompute_method recompute_modules recompute_num_layers "
            "record_memory_history replication replication_factor replication_jump rerun_mode result_rejected_tracker_filename "
            "reuse_grad_buf_for_mxfp8_param_ag run_workload_inspector_server s3_cache_path save_retain_interval "
            "sharp_enabled_group straggler_ctrlr_port straggler_minmax_count suggested_communication_unit_size "
            "symmetric_ar_type te_rng_tracker tensorboard_dir tensorboard_log_interval tensorboard_queue_size test_data_path "
            "tiktoken_num_special_tokens tiktoken_pattern tiktoken_special_tokens timing_log_level timing_log_option "
            "tokenizer_metadata tokenizer_model tokenizer_type torch_fsdp2_no_reshard_after_forward "
            "tp_comm_bootstrap_backend tp_comm_overlap tp_comm_overlap_cfg tp_comm_overlap_rs_dgrad train_sync_interval "
            "transformer_impl trust_remote_code use_checkpoint_args use_contiguous_buffers_in_ddp use_cpu_initialization "
            "use_dist_ckpt use_flash_attn use_fused_weighted_squared_relu use_legacy_models use_mcore_models "
            "use_mp_args_from_checkpoint_args use_nccl_ub use_persistent_ckpt_worker use_pytorch_profiler "
            "use_ring_exchange_p2p use_sharp use_te_activation_func use_torch_optimizer_for_cpu_offload "
            "use_tp_pp_dp_mapping vocab_file wandb_entity wandb_exp_name wandb_project wandb_save_dir "
            "hysteresis mock_data wgrad_deferral_limit "
            "standalone_embedding_stage exit_duration_in_mins "
            "allow_ambiguous_pad_tokens ckpt_drop_redundant_extra_state create_all_gather_group cuda_graph_modules "
            "dataloader_defer_npy_index_mmap dataloader_fast_cache_load "
            "ddp_param_name_patterns_for_fp32_local_accumulation ddp_reduce_scatter_with_fp32_accumulation "
            "dist_ckpt_workers dump_param_to_param_group_map enable_chunked_prefill enable_msc "
            "fsdp_db_use_persist_buf_on_alloc_fail fsdp_manual_registration ft_num_warmup_iters gtp_expert_remat_nccl_ub "
            "gtp_remat_nccl_ub gtp_remat_reduce_scatter_with_fp32_accumulation inference_coordinator_port "
            "inference_cuda_graph_all_prefills inference_cuda_graph_max_tokens inference_disable_ep_consensus "
            "inference_dynamic_batching_async_sched_mode inference_dynamic_batching_cuda_graph_mixed_prefill_count "
            "inference_dynamic_batching_cuda_graph_sizing_distribution inference_dynamic_batching_logprobs_mode "
            "inference_dynamic_batching_mamba_memory_ratio inference_dynamic_batching_max_requests "
            "inference_dynamic_batching_max_tokens inference_dynamic_batching_paused_buffer_size_gb "
            "inference_dynamic_batching_prefix_caching inference_dynamic_batching_prefix_caching_coordinator_policy "
            "inference_dynamic_batching_prefix_caching_eviction_policy inference_dynamic_batching_prefix_caching_mamba_gb "
            "inference_dynamic_batching_prefix_caching_routing_alpha inference_dynamic_batching_sampling_backend "
            "inference_dynamic_batching_track_generated_token_events inference_logging_step_interval inference_shards "
            "inference_text_gen_server_logging inference_use_synchronous_zmq_collectives inference_wandb_logging "
            "logits_save_dir logits_save_dtype logits_save_top_k logits_save_top_p logits_save_top_p_min_k "
            "mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype "
            "megatron_fsdp_enable_fine_grained_param_gather megatron_fsdp_max_pool_double_buffer megatron_fsdp_version "
            "mla_down_proj_fusion muon_no_split_qkv muon_tp_mode muon_use_syrk no_use_layer_wise_param_layout "
            "num_speculative_tokens optimizer_cuda_graph otel_enabled otel_service_name otel_span_groups refit_method "
            "use_legacy_static_engine align_grad_reduce async_ckpt_cpu_priority async_ckpt_io_priority "
            "async_ckpt_use_cpu_shm async_strategy barrier_with_L1_time chat_template check_for_nan_in_loss "
            "ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_per_rank_objects "
            "ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save_process_group "
            "ckpt_load_validate_sharding_integrity ckpt_pg_tensors_cache_create ckpt_pg_tensors_cache_path "
            "disable_jit_fuser eval_global_batch_size eval_micro_batch_size exit_signal "
            "exit_signal_handler_for_dataloader exit_signal_handler_for_training filter_warnings "
            "flight_recorder_dump_on_timeout flight_recorder_dump_path flight_recorder_extra_dump_on_exec "
            "flight_recorder_include_only_active flight_recorder_include_stack_trace flight_recorder_trace_buffer_size "
            "gpu_sniff_test_interval log_device_memory_used log_l2_norm_grad_to_tensorboard log_loss_scale_to_tensorboard "
            "log_max_attention_logit log_memory_interval log_runtime_to_tensorboard log_throughput_to_tensorboard "
            "manual_gc_eval moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits "
            "moe_routing_trace_dump_weights moe_routing_trace_max_training_iters moe_routing_trace_path most_recent_k "
            "null_tokenizer_eod_id null_tokenizer_pad_id nvtx_ranges pytorch_profiler_collect_callstack "
            "pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes record_shapes runtime_time_unit "
            "save_activations_interval save_config_filepath save_dgrads_interval save_params_interval "
            "save_tokenizer_assets save_tokens_per_expert_interval save_wgrads_interval set_level_for_all_loggers "
            "start_eval_at_iter throughput_window_size tokenizer_hf_no_include_special_tokens tokenizer_hf_no_use_fast "
            "tokenizer_sentencepiece_ignore_extra_whitespaces tokenizer_sentencepiece_legacy use_gigatoken "
            "use_gloo_process_groups use_nsys_profiler validation_set_names verify_integrity export_force_local_attention ",
    .changes = "activation_func_clamp_value apply_layernorm_1p apply_query_key_layer_scaling "
            "apply_residual_connection_post_layernorm batch_size bert_embedder_type bert_load bert_no_binary_head "
            "biencoder_projection_dim biencoder_shared_query_context_model block_data_path cache_mla_latents "
            "calculate_per_token_loss ckpt_step classes_fraction data_args_path data_parallel_random_init "
            "data_per_class_fraction dataloader_type=single decoder_first_pipeline_num_layers "
            "decoder_last_pipeline_num_layers decoder_num_layers decoder_seq_length decoupled_lr decoupled_min_lr "
            "decrease_batch_size_if_needed dino_bottleneck_size dino_freeze_last_layer dino_head_hidden_size "
            "dino_local_crops_number dino_local_img_size dino_norm_last_layer dino_teacher_temp dino_warmup_teacher_temp "
            "dino_warmup_teacher_temp_epochs disable_bf16_reduced_precision_matmul embedding_init_method_std embedding_path "
            "encoder_num_layers encoder_pipeline_model_parallel_size=0 encoder_seq_length "
            "encoder_tensor_model_parallel_size=0 end_weight_decay evidence_data_path exit_interval exp_avg_dtype=fp32 "
            "exp_avg_sq_dtype=fp32 finetune first_last_layers_bf16 fp16_lm_cross_entropy fp32_residual_connection fp4_format "
            "fp4_param_gather fp4_recipe fp8_margin=0 glu_linear_offset=0|0.0 grpo_clamp_eps_lower grpo_clamp_eps_upper "
            "grpo_default_temperature grpo_default_top_p grpo_entropy_term_weight grpo_filter_groups_with_same_reward "
            "grpo_group_size grpo_iterations grpo_kl_beta grpo_prompts_per_step head_lr_mult=1|1.0 "
            "heterogeneous_layers_config_encoded_json heterogeneous_layers_config_path hybrid_attention_ratio=0|0.0 "
            "hybrid_mlp_ratio=0|0.0 hybrid_override_pattern ict_head_size ict_load img_dim img_h img_w "
            "indexer_batch_size indexer_log_interval init_method_xavier_uniform is_hybrid_model iter_per_epoch "
            "iterations_to_skip kitchen_config_file kitchen_recipe_number kv_lora_rank langrl_env_config "
            "langrl_external_server langrl_inference_server_conversation_template langrl_inference_server_type loss_scale "
            "lr_warmup_init=0|0.0 main_grads_dtype=fp32 main_params_dtype=fp32 mamba_head_dim mamba_num_groups "
            "mamba_num_heads mamba_state_dim mask_factor mask_prob mask_type model_parallel_size "
            "moe_apply_probs_on_input moe_input_jitter_eps moe_pad_expert_input_to_capacity moe_router_force_load_balancing "
            "moe_router_group_topk moe_router_num_groups moe_token_drop_policy=probs moe_token_dropping "
            "moe_upcycling_granularity moe_use_upcycling mrope_section mscale=1|1.0 mscale_all_dim=0|0.0 "
            "mtp_loss_scaling_factor mtp_num_layers=0 multi_latent_attention no_fp8_wgrad no_rope_freq "
            "num_channels num_classes num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 output_bert_embeddings "
            "override_lr_scheduler override_opt_param_scheduler patch_dim per_split_data_args_path perform_rl_step "
            "pipeline_model_parallel_layout pipeline_model_parallel_split_rank pretrained_checkpoint q_lora_rank qk_head_dim "
            "qk_l2_norm qk_pos_emb_head_dim query_in_block_prob quick_geglu relative_attention_max_distance "
            "relative_attention_num_buckets renormalize_blend_weights retriever_report_topk_accuracies "
            "retriever_score_scaling retriever_seq_length retro_add_retriever retro_attention_gate retro_cyclic_train_iters "
            "retro_encoder_attention_dropout retro_encoder_hidden_dropout retro_encoder_layers "
            "retro_no_verify_neighbor_count retro_num_neighbors retro_num_retrieved_chunks retro_project_dir "
            "retro_return_doc_ids retro_workdir rl_calculate_intra_group_similarity rl_importance_sampling_truncation_coef "
            "rl_inference_logprobs_is_correction rl_offload_kv_cache_during_training rl_offload_optimizer_during_inference "
            "rl_partial_rollouts rl_prompts_per_eval rl_remove_kv_cache_during_training rl_reset_cuda_graphs "
            "rl_sequence_packing_algo rl_sequence_packing_bin_size rl_use_sequence_packing rope_type=rope "
            "rotary_interleaved rotary_scaling_factor=1|1.0 rotary_seq_len_interpolation_factor=1 sample_rate=1|1.0 sft "
            "sft_tokenizer_prompt_format short_seq_prob skip_train softmax_type=vanilla spec start_weight_decay "
            "swin_backbone_type test_mode titles_data_path use_checkpoint_lr_scheduler "
            "use_checkpoint_opt_param_scheduler use_one_sent_docs use_precision_aware_optimizer v_head_dim "
            "vision_backbone_type vision_pretraining vision_pretraining_type vocab_extra_ids=0 "
            "weight_decay_incr_style=constant window_attn_skip_freq yaml_cfg "
            "apply_wd_to_qk_layernorm dataloader_inter_document_masking fake_process_group fim_data fim_eod_token "
            "fim_fragment_rate fim_middle_token fim_no_prefix fim_pad_token fim_prefix_token fim_rate fim_split_sample "
            "fim_spm_rate fim_suffix_token freeze_all_layers hybrid_layer_pattern linear_attention_freq lion_beta1 "
            "lion_beta2 logits_load_decode_threads logits_load_dir logits_load_ignore_errors logits_load_kd_loss_alpha "
            "logits_load_msc_prefetch_depth logits_load_prefetch_factor mamba_training_ssm_states_dtype "
            "megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype=fp32 megatron_fsdp_main_params_dtype=fp32 "
            "muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec muon_momentum muon_nesterov "
            "muon_num_ns_steps muon_scalar_optimizer muon_scale_mode no_weight_decay_cond_type "
            "no_yarn_correction_range_round_to_int outer_dp_sharding_strategy=no_shard output_logit_dtype "
            "override_ckpt_iteration per_dataset_sequences_path phase_transition_iterations rl_consumption_granularity "
            "rl_default_temperature rl_default_top_k rl_default_top_p rl_durable_rollout_bank rl_generation_lag "
            "rl_inference_expert_model_parallel_size rl_inference_expert_tensor_model_parallel_size "
            "rl_inference_model_unified_memory_level rl_inference_parsers rl_inference_pipeline_model_parallel_size "
            "rl_inference_tensor_model_parallel_size rl_kv_cache_management_mode rl_max_inflight_requests "
            "rl_offload_inference_model_weights_when_idle rl_persist_cuda_graphs rl_profile rl_profile_dir "
            "rl_rollout_bank_dir rl_rollout_bank_max_bytes rl_sequence_packing_max_sequences_per_bin rl_skip_bos_token "
            "rl_submission_granularity rl_training_cuda_graphs rl_verify_model_weights_swap te_precision_config_file "
            "use_same_sampling_seed_across_dp_ranks yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int "
            "yarn_original_max_position_embeddings step_batch_size_schedule enable_gpt_oss wd_incr_steps lr_decay_steps "
            "lr_warmup_steps wsd_decay_steps ",
};
/* clang-format on */
