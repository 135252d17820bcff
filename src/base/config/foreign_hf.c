/* Hugging Face's TrainingArguments, to version 5, with the defaults of version 4. */
#include "config/foreign.h"

/* clang-format off */
static const foreign_rule rules[] = {
    { "output_dir", "run.dir" },
    { "run_name", "run.name" },
    { "learning_rate", "optimizer.lr", NULL, "5e-05" },
    { "weight_decay", "optimizer.weight_decay", NULL, "0" },
    { "adam_beta1", "optimizer.beta1", NULL, "0.9" },
    { "adam_beta2", "optimizer.beta2", NULL, "0.999" },
    { "adam_epsilon", "optimizer.eps", NULL, "1e-08" },
    { "label_smoothing_factor", "training.label_smoothing" },
    { "max_grad_norm", "training.max_norm", NULL, "1" },
    { "bf16", "precision.dtype", "true=bf16,false=", "fp32" },
    { "fp16", "precision.dtype", "true=fp16,false=" },
    { "tf32", "precision.tf32", FOREIGN_BOOL },
    { "seed", "training.seed", NULL, "42" },
    { "save_total_limit", "checkpoint.keep_latest_k", NULL, "0" },
    { "logging_steps", "metrics.log_every", NULL, "500" },
    { "gradient_checkpointing", "activation_checkpoint.mode", "true=full,false=none", "none" },
    { "optim", "optimizer.name",
      "adamw_torch=adamw,adamw_torch_fused=adamw,adamw_torch_xla=adamw,adamw_torch_npu_fused=adamw,adamw_hf=adamw,"
      "adamw_apex_fused=adamw,paged_adamw=adamw,paged_adamw_32bit=adamw,adafactor=adafactor,sgd=sgd,adamw_8bit=adam8bit,"
      "adamw_bnb_8bit=adam8bit,paged_adamw_8bit=adam8bit,lion_32bit=lion,paged_lion_32bit=lion", "adamw" },
    { "use_cpu", "device.kind", "true=cpu,false=" },
    { "no_cuda", "device.kind", "true=cpu,false=" },
    { "ddp_bucket_cap_mb", "parallelism.bucket_cap_mb" },
    { "full_determinism", "debug.deterministic", FOREIGN_BOOL },
    { 0 },
};

const foreign_table foreign_hf = {
    .rules = rules,
    .read = "per_device_train_batch_size per_gpu_train_batch_size gradient_accumulation_steps max_steps num_train_epochs "
            "lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps fsdp save_strategy save_steps eval_strategy "
            "evaluation_strategy eval_steps deepspeed",
    .idle = "overwrite_output_dir do_train do_eval do_predict prediction_loss_only per_device_eval_batch_size "
            "per_gpu_eval_batch_size eval_accumulation_steps eval_delay torch_empty_cache_steps log_level log_level_replica "
            "log_on_each_node logging_dir logging_strategy logging_first_step logging_nan_inf_filter save_safetensors "
            "save_on_each_node save_only_model restore_callback_states_from_checkpoint use_mps_device jit_mode_eval use_ipex "
            "fp16_opt_level half_precision_backend bf16_full_eval fp16_full_eval local_rank ddp_backend tpu_num_cores "
            "tpu_metrics_debug debug dataloader_drop_last dataloader_num_workers dataloader_prefetch_factor past_index "
            "disable_tqdm remove_unused_columns label_names metric_for_best_model greater_is_better ignore_data_skip "
            "fsdp_min_num_params fsdp_config fsdp_transformer_layer_cls_to_wrap accelerator_config "
            "length_column_name report_to ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph "
            "dataloader_pin_memory dataloader_persistent_workers dataloader_in_order dataloader_multiprocessing_context "
            "skip_memory_metrics use_legacy_prediction_loop push_to_hub resume_from_checkpoint hub_model_id hub_strategy "
            "hub_token hub_private_repo hub_always_push hub_revision gradient_checkpointing_kwargs "
            "include_inputs_for_metrics include_for_metrics eval_do_concat_batches fp16_backend push_to_hub_model_id "
            "push_to_hub_organization push_to_hub_token mp_parameters torchdynamo ray_scope ddp_timeout torch_compile "
            "torch_compile_backend torch_compile_mode dispatch_batches split_batches include_tokens_per_second "
            "include_num_input_tokens_seen batch_eval_metrics eval_on_start eval_use_gather_object use_liger_kernel "
            "liger_kernel_config project trackio_space_id trackio_bucket_id trackio_static_space_id enable_jit_checkpoint "
            "use_cache",
    .changes = "data_seed auto_find_batch_size optim_args adafactor group_by_length "
            "neftune_noise_alpha optim_target_modules load_best_model_at_end average_tokens_across_devices=true "
            "train_sampling_strategy=random parallelism_config deepspeed.*",
};
/* clang-format on */
