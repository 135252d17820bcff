/* Small configs with the keys of files in the repositories of Megatron-LM, DeepSpeed, GPT-NeoX, torchtitan and OLMo, and
 * of Hugging Face's examples. Each converts with the meaning that it has there, or is refused by the key that has no
 * counterpart. The texts are our own; the first column names the file whose keys they have. */
#include "support/test.h"

#include "planning/planning.h"

typedef struct file_case {
    const char *like, *format, *text;
    int64_t ranks;
    const char *lost; /* what the error names; NULL: it converts */
    const char *lines[6];
} file_case;

#define GPT                                                                                        \
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 "
#define RUN "--micro-batch-size 2 --global-batch-size 16 --train-iters 100 --lr 1e-4 "
#define SCRIPT(program, more)                                                                      \
    "torchrun --nproc_per_node 4 --nnodes 2 " program " " GPT RUN more "\n"

/* clang-format off */
static const file_case megatron[] = {
    { "examples/pretrain_gpt.sh", "megatron",
      "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nCHECKPOINT_PATH=/ckpt\nARGS=\"\n " GPT RUN " --lr-decay-style cosine "
      "--min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16\n\"\n"
      "DATA_ARGS=\"\n --data-path $DATA_PATH --split 949,50,1 \n\"\n"
      "torchrun pretrain_gpt.py \\\n $ARGS \\\n $DATA_ARGS \\\n --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH\n", 0, NULL,
      { "dtype: fp16", "loss_scale: 4294967296", "warmup: 1%", "validation_fraction: 0.05", "beta2: 0.999" } },
    { "examples/pretrain_gpt.sh, shorter schedule", "megatron",
      SCRIPT("pretrain_gpt.py", "--lr-decay-iters 60 --lr-warmup-fraction 0.1 --lr-decay-style cosine"), 0, NULL,
      { "  length: 60\n", "  warmup: 6%\n", "  steps: 100\n" } },
    { "examples/pretrain_gpt_distributed.sh", "megatron",
      "GPUS_PER_NODE=8\nNNODES=1\nWORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))\n"
      "DISTRIBUTED_ARGS=\"--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port 6000\"\n"
      "ARGS=\"" GPT " --micro-batch-size 8 --train-iters 50 --lr 1e-4\"\ntorchrun $DISTRIBUTED_ARGS pretrain_gpt.py $ARGS --distributed-backend nccl\n",
      0, NULL, { "for 8 ranks", "global_batch_size: 64", "data_parallel_shard_degree: 8" } },
    { "examples/pretrain_gpt_distributed_with_mp.sh", "megatron",
      SCRIPT("pretrain_gpt.py", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"), 0, NULL,
      { "data_parallel_shard_degree: 2", "sequence_parallel: true", "pipeline_parallel_degree: 2" } },
    { "examples/pretrain_gpt3_175B.sh", "megatron",
      "options=\" \\\n --train-samples 1000 --rampup-batch-size 16 16 500 " GPT "--micro-batch-size 1 --global-batch-size 64 "
      "--lr-warmup-samples 100 --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine --log-interval 10 --bf16 \"\n"
      "run_cmd=\"python -u ${DIR}/pretrain_gpt.py $@ ${options}\"\nsrun -l sh -c \"${run_cmd}\"\n", 0, NULL,
      { "steps: 128000 tokens", "batch_ramp_start: 16", "min_lr_factor: 0.1", "warmup: 12800 tokens" } },
    { "examples/gpt3/train_gpt3_175b_distributed.sh", "megatron",
      "GPUS_PER_NODE=8\nNUM_NODES=16\nTP=${TP:-8}\nMODEL_ARGS=(\n  " GPT "\n  --attention-backend auto # (auto/fused)\n)\n"
      "TRAINING_ARGS=(" RUN " --init-method-std 0.006 --global-batch-size 128)\n"
      "torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} "
      "--tensor-model-parallel-size $TP\n", 0, NULL,
      { "for 128 ranks", "init_std: 0.006", "tensor_parallel_degree: 8", "data_parallel_shard_degree: 16", "global_batch_size: 128" } },
    { "examples/mixtral/train_mixtral_8x7b_distributed.sh", "megatron",
      "MOE_ARGS=(--num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm)\n"
      "LOG=(--log-interval 1)\nif [ -n \"${KEY}\" ]; then\n  LOG+=(--wandb-project x)\nfi\n"
      "torchrun pretrain_gpt.py " GPT RUN "--disable-bias-linear --no-position-embedding --position-embedding-type rope --swiglu "
      "--untie-embeddings-and-output-weights --normalization RMSNorm ${MOE_ARGS[@]} ${LOG[@]}\n", 0, NULL,
      { "experts: 8", "balance_loss: 0.01", "ffn_dim: 640", "positions: rope", "bias: false" } },
    { "examples/mixtral, its balance over a batch", "megatron",
      SCRIPT("pretrain_gpt.py", "--num-experts 8 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2"), 0, "moe_router_load_balancing_type", { 0 } },
    { "examples/bert/train_bert_340m_distributed.sh", "megatron", SCRIPT("pretrain_bert.py", "--bf16"), 0, "pretrain_bert.py", { 0 } },
    { "examples/t5/train_t5_220m_distributed.sh", "megatron", SCRIPT("pretrain_t5.py", "--vocab-extra-ids 100"), 0, "pretrain_t5.py", { 0 } },
    { "examples/mamba/train.sh", "megatron", SCRIPT("pretrain_mamba.py", "--hybrid-attention-ratio 0.08"), 0, "pretrain_mamba.py", { 0 } },
    { "examples/pretrain_ict.sh", "megatron", SCRIPT("pretrain_ict.py", "--ict-head-size 128"), 0, "ict_head_size", { 0 } },
    { "examples/retro/train_retro.sh", "megatron", SCRIPT("pretrain_gpt.py", "--retro-add-retriever"), 0, "retro_add_retriever", { 0 } },
    { "examples/llama/train_llama3_8b_h100_fp8.sh", "megatron",
      SCRIPT("pretrain_gpt.py", "--fp8-format hybrid --fp8-recipe tensorwise --group-query-attention --num-query-groups 2 --kv-channels 64"), 0, NULL,
      { "fp8: current", "kv_heads: 2", "head_dim: 64" } },
    { "the same, scaled by 1024 steps", "megatron",
      SCRIPT("pretrain_gpt.py", "--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max"), 0, "fp8_amax_history_len", { 0 } },
    { "examples/gptoss/02_train.sh", "megatron",
      "A=()\nif [ \"$X\" = 1 ]; then A+=(--vocab-size 9); fi\ntorchrun pretrain_gpt.py " GPT RUN "${A[@]}\n", 0, "vocab_size = 9", { 0 } },
    { "academic_paper_scripts/sc21/SRUN.sh", "megatron", "python pretrain_gpt.py ${MEGATRON_PARAMS} --fp16\n", 0, "$MEGATRON_PARAMS", { 0 } },
    { "academic_paper_scripts/sc21/run_figure_11.sh", "megatron", "TP=8\nPP=8\nMBS=1\nOPTS=\"--checkpoint-activations\"\n. CONFIG.sh\n", 0, "--num-layers", { 0 } },
};

static const file_case deepspeed[] = {
    { "ds_config_func_bs4_zero1.json", "deepspeed",
      "{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 1, \"steps_per_print\": 1, \"zero_optimization\": {\"stage\": 1}, "
      "\"gradient_clipping\": 1.0, \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"loss_scale_window\": 1000, \"hysteresis\": 2, \"min_loss_scale\": 1}}",
      0, NULL, { "global_batch_size: 4", "zero_stage: 1", "dtype: fp16", "loss_scale: 65536", "max_norm: 1" } },
    { "ds_config_func_bs8_zero2_offload.json", "deepspeed",
      "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true, \"reduce_bucket_size\": 7000000}}", 0, NULL,
      { "zero_stage: 2", "offload: 1", "dtype: fp32", "max_norm: 0" } },
    { "ds_config_func_scheduler.json", "deepspeed",
      "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-5}}, \"scheduler\": {\"type\": \"WarmupLR\", "
      "\"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 10}}}", 0, "warmup_type", { 0 } },
    { "the same with a linear warm-up", "deepspeed",
      "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-5}}, \"scheduler\": {\"type\": \"WarmupDecayLR\", "
      "\"params\": {\"warmup_max_lr\": 2e-3, \"warmup_num_steps\": 10, \"total_num_steps\": 100, \"warmup_type\": \"linear\"}}}", 0, NULL,
      { "lr: 0.002", "name: adamw", "beta2: 0.999", "weight_decay: 0", "min_lr_factor: 0", "name: linear" } },
    { "ds_config_perf_bs32.json", "deepspeed",
      "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 4, \"wall_clock_breakdown\": false}", 0, NULL,
      { "for 2 ranks", "local_batch_size: 4", "data_parallel_shard_degree: 2" } },
    { "the same on other ranks", "deepspeed",
      "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 4}", 4, "not 4 x 4", { 0 } },
    { "BingBertSquad, Lamb", "deepspeed", "{\"train_batch_size\": 24, \"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 3e-5}}}", 0, "optimizer.type = Lamb", { 0 } },
    { "1-bit Adam", "deepspeed", "{\"train_batch_size\": 24, \"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"freeze_step\": 9}}}", 0, "optimizer.type = OneBitAdam", { 0 } },
    { "eigenvalue_quantize_config.json", "deepspeed", "{\"train_batch_size\": 24, \"eigenvalue\": {\"enabled\": true, \"max_iter\": 50}}", 0, "eigenvalue.enabled", { 0 } },
    { "tests/torch_compile/ds_config_z3.json", "deepspeed",
      "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true, \"loss_scale\": 0}, \"zero_optimization\": {\"stage\": 3, "
      "\"stage3_param_persistence_threshold\": 0}, \"compile\": {\"backend\": \"inductor\"}}", 16, NULL,
      { "zero_stage: 3", "fsdp_persistence_threshold: 0", "global_batch_size: 16" } },
    { "tests/hybrid_engine", "deepspeed", "{\"train_batch_size\": 16, \"hybrid_engine\": {\"enabled\": true}}", 0, "hybrid_engine.enabled", { 0 } },
    { "ZeRO++", "deepspeed", "{\"train_batch_size\": 16, \"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}}", 0, "zero_quantized_weights", { 0 } },
    { "Adam with L2 decay", "deepspeed",
      "{\"train_batch_size\": 16, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"weight_decay\": 0.1}}}", 0, NULL, { "name: adam\n", "weight_decay: 0.1" } },
    { "ds_config_zero3.json of transformers", "deepspeed",
      "{\"bf16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}}, "
      "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}, \"gradient_accumulation_steps\": \"auto\", \"train_batch_size\": \"auto\"}", 0, NULL,
      { "zero_stage: 3", "offload_params: true", "name: adamw" } },
    { "NVMe", "deepspeed", "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}}", 0, "offload_optimizer.device", { 0 } },
    { "a misspelled key", "deepspeed", "{\"train_batch_size\": 1, \"gradient_cliping\": 1.0}", 0, "is it \"gradient_clipping\"", { 0 } },
};

#define NEOX "{\"num-layers\": 4, \"hidden-size\": 192, \"num-attention-heads\": 6, \"seq-length\": 128, \"max-position-embeddings\": 128, "     \
             "\"train_micro_batch_size_per_gpu\": 4, \"train-iters\": 100, "
static const file_case neox[] = {
    { "configs/125M.yml", "neox", NEOX "\"pipe-parallel-size\": 1, \"pos-emb\": \"rotary\", \"init_method\": \"small_init\"}", 0, "init_method", { 0 } },
    { "configs/20B.yml", "neox", NEOX "\"output_layer_init_method\": \"wang_init\"}", 0, "output_layer_init_method", { 0 } },
    { "configs/bf16_125M.yml", "neox",
      NEOX "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.0006, \"betas\": [0.9, 0.999], \"eps\": 1.0e-8}}, \"min_lr\": 0.00006, "
      "\"precision\": \"bfloat16\", \"fp32_allreduce\": True, \"bf16\": {\"enabled\": true}, \"scaled-upper-triang-masked-softmax-fusion\": false}", 8, NULL,
      { "dtype: bf16", "global_batch_size: 32", "min_lr_factor: 0.1", "weight_decay: 0.1", "warmup: 1%" } },
    { "configs/bnb_125M.yml", "neox", NEOX "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.0006}}, \"use_bnb_optimizer\": true}", 0, NULL, { "name: adam8bit" } },
    { "1-bit Adam", "neox", NEOX "\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.001, \"freeze_step\": 23000}}}", 0, "optimizer.type", { 0 } },
    { "sm3", "neox", NEOX "\"optimizer\": {\"type\": \"sm3\", \"params\": {}}}", 0, "optimizer.type = sm3", { 0 } },
    { "configs/125M-dmoe.yml", "neox", NEOX "\"moe_num_experts\": 8, \"moe_top_k\": 1, \"moe_expert_interval\": 2}", 0, "moe_router_type = sinkhorn", { 0 } },
    { "the same with top-k", "neox", NEOX "\"moe_num_experts\": 8, \"moe_top_k\": 2, \"moe_expert_interval\": 2, \"moe_router_type\": \"topk\", \"activation\": \"swiglu\", \"use_bias_in_mlp\": false, \"use_bias_in_attn_linear\": false}", 0, NULL,
      { "experts: 8", "experts_per_token: 2", "moe_layer_step: 2", "capacity_factor: 0" } },
    { "configs/mamba/mamba-130M.yml", "neox", NEOX "\"attention_config\": [[[\"mamba\"], 24]]}", 0, "attention_config", { 0 } },
    { "configs/rwkv/170M.yml", "neox", NEOX "\"attention_config\": [[[\"rwkv\"], 12]]}", 0, "attention_config", { 0 } },
    { "configs/sparse.yml", "neox", NEOX "\"attention_config\": [[[\"local\", \"global\"], \"all\"]]}", 0, "attention_config", { 0 } },
    { "configs/gmlp_small.yml", "neox", NEOX "\"attention_config\": [[[\"gmlp\"], \"all\"]]}", 0, "attention_config", { 0 } },
    { "configs/pythia/12B.yml", "neox",
      NEOX "\"attention-config\": [[[\"flash\"], 36]], \"no-weight-tying\": true, \"gpt-j-residual\": true, \"rotary-pct\": 0.25, \"pos-emb\": \"rotary\", "
      "\"model-parallel-size\": 2, \"gradient_accumulation_steps\": 2, \"checkpoint-activations\": true, \"partition-activations\": true, "
      "\"zero_optimization\": {\"stage\": 1, \"cpu_offload\": false}, \"lr-decay-iters\": 100}", 8, NULL,
      { "parallel_branches: true", "rope_fraction: 0.25", "global_batch_size: 32", "data_parallel_shard_degree: 4", "mode: full", "tie_embeddings: false" } },
    { "configs/llama/7B.yml", "neox",
      NEOX "\"norm\": \"rmsnorm\", \"rms_norm_epsilon\": 1.0e-6, \"activation\": \"swiglu\", \"mlp_multiple_of\": 256, \"use_bias_in_attn_linear\": False, "
      "\"use_bias_in_mlp\": False}", 0, NULL, { "norm: rms", "norm_eps: 1e-6", "ffn_dim: 256", "bias: false" } },
    { "configs/llama2/7B.yml", "neox", NEOX "\"use_bias_in_attn_linear\": false}", 0, "use_bias_in_attn_linear", { 0 } },
    { "configs/finetuning_configs/6-9B.yml", "neox", NEOX "\"finetune\": true}", 0, "finetune", { 0 } },
    { "configs/local_setup.yml", "neox",
      "{\"data_path\": \"data/enwik8\", \"vocab_file\": \"v.json\", \"merge_file\": \"m.txt\", \"save\": \"c\", \"load\": \"c\", \"tensorboard_dir\": \"t\"}", 0, NULL,
      { "train: data/enwik8", "does not describe the model" } },
    { "configs/slurm_125M.yml", "neox", NEOX "\"launcher\": \"slurm\", \"deepspeed_slurm\": true, \"num_gpus\": 8, \"num_nodes\": 2, \"gradient_accumulation_steps\": 3}", 0, NULL,
      { "for 16 ranks", "global_batch_size: 192" } },
    { "configs/llemma/7B.yml", "neox", NEOX "\"decay_lr_to\": 0.03}", 0, "decay_lr_to", { 0 } },
};

static const file_case torchtitan[] = {
    { "llama3_8b.toml", "torchtitan",
      "[job]\ndump_folder = \"./o\"\n[model]\nname = \"llama3\"\nflavor = \"8B\"\nhf_assets_path = \"./a\"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n"
      "steps = 1000\ndataset = \"c4\"\n[parallelism]\ndata_parallel_shard_degree = -1\n[checkpoint]\nenable = false\ninterval = 500\n"
      "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"op\"\n[compile]\nenable = false\n", 0, NULL,
      { "preset: llama3-8b", "every: 0", "weight_decay: 0.1", "lr: 0.0008", "name: linear", "documents: false" } },
    { "llama3_70b.toml", "torchtitan",
      "[model]\nname = \"llama3\"\nflavor = \"70B\"\n[parallelism]\ntensor_parallel_degree = 8\n[lr_scheduler]\nwarmup_steps = 60\ndecay_ratio = 0.8\ndecay_type = \"sqrt\"\nmin_lr_factor = 0.1\n",
      256, NULL, { "name: wsd", "decay: 80%", "decay_type: sqrt", "data_parallel_shard_degree: 32", "min_lr_factor: 0.1" } },
    { "llama3_405b.toml", "torchtitan",
      "[model]\nname = \"llama3\"\nflavor = \"405B\"\nconverters = [\"float8\"]\n[float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = [\"output\"]\n", 0, NULL,
      { "fp8: current", "steps: 10000" } },
    { "the same by rows", "torchtitan", "[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = [\"float8\"]\n[float8]\nrecipe_name = \"rowwise\"\n", 0, "float8.recipe_name", { 0 } },
    { "version 0.2, quantize.linear.float8", "torchtitan",
      "[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n", 0, NULL, { "fp8: current" } },
    { "mxfp8", "torchtitan", "[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = [\"mx\"]\n", 0, "model.converters", { 0 } },
    { "the layout of 2024", "torchtitan",
      "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nbatch_size = 4\nwarmup_steps = 300\ndata_parallel_degree = 8\ntensor_parallel_degree = 2\n"
      "[experimental]\npipeline_parallel_degree = 2\ncontext_parallel_degree = 2\n[float8]\nenable_float8_linear = true\n[checkpoint]\nenable_checkpoint = true\n", 0, NULL,
      { "data_parallel_shard_degree: 8", "tensor_parallel_degree: 2", "pipeline_parallel_degree: 2", "context_parallel_degree: 2", "fp8: current", "every: 500" } },
    { "debug_model.toml", "torchtitan", "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n", 0, "model.flavor", { 0 } },
    { "deepseek_v3_671b.toml", "torchtitan", "[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n", 0, "model.flavor", { 0 } },
    { "ft debug_model.toml", "torchtitan", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[fault_tolerance]\nenable = true\nsemi_sync_method = \"diloco\"\n", 0, "semi_sync_method", { 0 } },
    { "flux_dev_model.toml", "torchtitan", "[model]\nname = \"flux\"\nflavor = \"flux-dev\"\n[training]\nimg_size = 256\n", 0, "training.img_size", { 0 } },
    { "qwen3_0.6b.toml", "torchtitan",
      "[model]\nname = \"qwen3\"\nflavor = \"0.6B\"\n[optimizer]\nlr = 3e-4\nbeta2 = 0.98\n[validation]\nenable = true\nfreq = 5\nsteps = 10\n[debug]\nseed = 7\n", 0, NULL,
      { "preset: qwen3-0.6b", "beta2: 0.98", "every: 5", "batches: 10", "seed: 7" } },
};

#define OLMO "model:\n  d_model: 256\n  n_heads: 8\n  n_layers: 4\n  mlp_ratio: 8\n  rope: true\n  include_bias: false\n"
static const file_case olmo[] = {
    { "official-0724/OLMo-1B.yaml", "olmo", OLMO "  init_fn: mitchell\nmax_duration: 739_328\n", 0, "init_fn", { 0 } },
    { "the same with its default", "olmo", OLMO "max_duration: 739_328\nsave_folder: f\n", 0, NULL,
      { "steps: 739328", "ffn_dim: 1024", "name: lion", "global_batch_size: 512", "dropout: 0.1", "vocab_size: 50304" } },
    { "official-0724/OLMo-7B.yaml", "olmo", OLMO "scheduler:\n  name: linear_with_warmup\n  t_warmup: 5000\n  grad_clip_warmup_steps: 1000\n", 0, "grad_clip_warmup_steps", { 0 } },
    { "official-0724/OLMo-7B-0424.yaml", "olmo", OLMO "  clip_qkv: 8.0\n", 0, "clip_qkv", { 0 } },
    { "official-1124/OLMo2-7B-stage1.yaml", "olmo",
      OLMO "  attention_layer_norm: true\n  layer_norm_type: rms\n  norm_after: true\noptimizer:\n  name: adamw\n  learning_rate: 3e-4\n  eps: 1e-8\n"
      "scheduler:\n  units: tokens\n  t_warmup: 8388608000\n  t_max: 5e12\nmax_duration: 4e12T\n", 0, NULL,
      { "steps: 5e12 tokens", "stop: 4e12 tokens", "norm_position: post", "qk_norm: full", "eps: 1e-8" } },
    { "the same, a shorter schedule", "olmo", OLMO "scheduler:\n  units: tokens\n  t_max: 3e12\nmax_duration: 4e12T\n", 0, NULL,
      { "steps: 4e12 tokens", "length: 3e12 tokens" } },
    { "the same, z-loss", "olmo", OLMO "softmax_auxiliary_loss: true\n", 0, NULL, { "z_loss: 0.0001" } },
    { "the same, its factor", "olmo", OLMO "softmax_auxiliary_loss: true\nauxiliary_loss_multiplier: 1e-5\n", 0, NULL,
      { "z_loss: 1e-5" } },
    { "the same, filter", "olmo", OLMO "data:\n  paths: []\n  instance_filter:\n    repetition_max_period: 13\n", 0, "data.instance_filter", { 0 } },
    { "the same, decayed norms", "olmo", OLMO "optimizer:\n  decay_norm_and_bias: true\n", 0, "decay_norm_and_bias", { 0 } },
    { "annealing/peteish7-anneal.yaml", "olmo", OLMO "load_path: s3://b/step477000\nreset_trainer_state: false\n", 0, "load_path", { 0 } },
    { "tiny/OLMo-20M.yaml", "olmo", OLMO "max_duration: 1ep\nglobal_train_batch_size: 1024\ndevice_train_microbatch_size: 8\nprecision: amp_bf16\ndistributed_strategy: ddp\n"
      "ddp:\n  grad_sync_mode: batch\nfsdp: null\n", 0, NULL, { "steps: 1 epochs", "zero_stage: 0", "dtype: bf16", "local_batch_size: 8" } },
};

static const file_case hf[] = {
    { "run_clm.py, no arguments", "hf", "{\"output_dir\": \"o\"}", 0, NULL, { "lr: 5e-5", "steps: 3 epochs", "local_batch_size: 8", "name: linear", "weight_decay: 0\n", "seed: 42" } },
    { "accumulation", "hf", "{\"output_dir\": \"o\", \"gradient_accumulation_steps\": 2}", 0, "gradient_accumulation_steps", { 0 } },
    { "accumulation on 4", "hf", "{\"output_dir\": \"o\", \"gradient_accumulation_steps\": 2}", 4, NULL, { "global_batch_size: 64" } },
    { "cosine_with_min_lr", "hf", "{\"learning_rate\": 1e-3, \"lr_scheduler_type\": \"cosine_with_min_lr\", \"lr_scheduler_kwargs\": {\"min_lr\": 1e-4}, \"warmup_steps\": 20}", 0, NULL,
      { "min_lr_factor: 0.1", "warmup: 20", "name: cosine" } },
    { "polynomial", "hf", "{\"output_dir\": \"o\", \"lr_scheduler_type\": \"polynomial\"}", 0, "lr_scheduler_type", { 0 } },
    { "GaLore", "hf", "{\"output_dir\": \"o\", \"optim\": \"galore_adamw\"}", 0, "optim = galore_adamw", { 0 } },
    { "FSDP", "hf", "{\"output_dir\": \"o\", \"fsdp\": \"full_shard auto_wrap\", \"save_strategy\": \"epoch\", \"eval_strategy\": \"steps\", \"eval_steps\": 0.1}", 0, NULL,
      { "zero_stage: 3", "every: 1 epochs", "every: 10%" } },
    { "bitsandbytes", "hf", "{\"output_dir\": \"o\", \"optim\": \"paged_adamw_8bit\", \"max_steps\": 10}", 0, NULL, { "name: adam8bit", "steps: 10" } },
};
/* clang-format on */

static void check_case(const file_case *c) {
    str out = { 0 }, notes = { 0 };
    convert_options o = { .format = c->format, .ranks = c->ranks };
    err e = convert_config(c->text, strlen(c->text), c->like, &o, &out, &notes);
    if (c->lost) {
        if (!e) fail_msg("%s: no error; \"%s\" is lost", c->like, c->lost);
        if (!strstr(err_message(e), c->lost))
            fail_msg("%s: no \"%s\" in: %s", c->like, c->lost, err_message(e));
        err_free(e);
    } else if (e) {
        fail_msg("%s: %s", c->like, err_message(e));
    }
    for (char *q = out.text; q && *q; q++) /* values with blanks are quoted */
        if (*q == '"') memmove(q, q + 1, strlen(q));
    for (size_t i = 0; !c->lost && i < COUNT_OF(c->lines) && c->lines[i]; i++)
        if (!strstr(out.text, c->lines[i]))
            fail_msg("%s: no \"%s\" in:\n%s", c->like, c->lines[i], out.text);
    str_free(&out);
    str_free(&notes);
}

#define CHECK_ALL(list)                                                                            \
    static void list##_files(void **state) {                                                       \
        for (size_t i = 0; i < COUNT_OF(list); i++) check_case(&list[i]);                          \
    }
CHECK_ALL(megatron)
CHECK_ALL(deepspeed)
CHECK_ALL(neox)
CHECK_ALL(torchtitan)
CHECK_ALL(olmo)
CHECK_ALL(hf)

_Static_assert(COUNT_OF(megatron) + COUNT_OF(deepspeed) + COUNT_OF(neox) + COUNT_OF(torchtitan) +
                       COUNT_OF(olmo) >=
                   60,
               "files of the five projects");

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_files), cmocka_unit_test(deepspeed_files),
        cmocka_unit_test(neox_files),     cmocka_unit_test(torchtitan_files),
        cmocka_unit_test(olmo_files),     cmocka_unit_test(hf_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
