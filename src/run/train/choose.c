/* From a config to the device, the layout of the model, the optimizer and recompute. */
#include "train/train.h"

#include <assert.h>
#include <math.h>

int train_gpu(const config *c, int local_rank) {
    int gpus = ops_cuda_count();
    return gpus ? ((int)c->device.index + MAX(0, local_rank)) % gpus : (int)c->device.index;
}

err train_device(const config *c, int local_rank, const op_backend **out) {
    bool others = local_rank > 0; /* a wrong device.index is refused on the first rank */
    ops_choice choice = { .kind = c->device.kind,
                          .index = others ? train_gpu(c, local_rank) : (int)c->device.index,
                          .deterministic = c->debug.deterministic,
                          .tf32 = c->precision.tf32,
                          .gemms = c->device.gemms,
                          .isa = *c->debug.isa ? c->debug.isa : OPS_ISA_BEST };
    return ops_open(&choice, out);
}

static pipeline pipeline_of(const config *c) {
    int kind = c->parallelism.pipeline_parallel_schedule;
    bool interleaved = pipeline_schedule_traits[kind] & PIPE_TAKES_CHUNKS;
    int asked = (int)c->parallelism.pipeline_parallel_chunks;
    int usual = interleaved && c->parallelism.pipeline_parallel_degree > 1 ? 2 : 1;
    pipeline p = { .chunks = asked > 0 ? asked : usual,
                   .kind = c->parallelism.pipeline_parallel_schedule,
                   .first_less = (int)c->parallelism.pipeline_parallel_first_stage_less_layers,
                   .last_less = (int)c->parallelism.pipeline_parallel_last_stage_less_layers };
    const cfg_counts split = config_counts(c->parallelism.pipeline_parallel_split);
    static_assert((int)CFG_MAX_COUNTS <= (int)MOST_SPLIT_STAGES, "each has an entry");
    p.split_stages = split.n;
    for (int i = 0; i < split.n; i++)
        p.split_from[i + 1] = (uint16_t)MIN(UINT16_MAX, p.split_from[i] + split.of[i]);
    return p;
}

static bool keeps_gathered(const config *c) {
    CHOICE_DECIDED(cfg_reshard, 3);
    bool pipelined = c->parallelism.pipeline_parallel_degree > 1;
    int reshard = c->parallelism.fsdp_reshard_after_forward;
    bool few = pipelined && !c->training.offload_params; /* there is memory for all of them */
    return reshard == CFG_RESHARD_NEVER || (reshard == CFG_RESHARD_DEFAULT && few);
}

static dtype compute_dtype(cfg_dtype t, const op_backend *ops) {
    switch (t) {
    case CFG_FP32: return DT_F32;
    case CFG_BF16: return DT_BF16;
    case CFG_FP16: return DT_F16;
    case CFG_FASTEST: return ops->bf16_gemm ? DT_BF16 : DT_F32;
    }
    BUG("not a dtype");
}

static dtype wire_dtype(cfg_wire t) {
    switch (t) {
    case CFG_WIRE_SAME: return DT_NONE;
    case CFG_WIRE_BF16: return DT_BF16;
    case CFG_WIRE_FP16: return DT_F16;
    }
    BUG("not a dtype");
}

model_layout train_layout(const config *c, const op_backend *ops, int64_t seq) {
    enum { LEAST_CHUNK_ROWS = 256 };
    CHOICE_DECIDED(cfg_master, 2);
    bool narrow = c->optimizer.master == CFG_MASTER_BF16;
    int chunks = (int)c->parallelism.tensor_parallel_chunks;
    return (model_layout){ .dt = compute_dtype(c->precision.dtype, ops),
                           .sequence_parallel = c->parallelism.sequence_parallel,
                           .tp_chunks = chunks        ? chunks
                                        : ops->device ? 1
                                                      : 4,
                           .tp_chunk_rows = chunks ? 1 : LEAST_CHUNK_ROWS,
                           .context = c->parallelism.context_parallel_mode,
                           .pipe = pipeline_of(c),
                           .zero = (int)c->parallelism.zero_stage,
                           .prefetch = (int)c->parallelism.fsdp_prefetch,
                           .keep_gathered = keeps_gathered(c),
                           .offload_params = c->training.offload_params,
                           .whole_below = c->parallelism.fsdp_persistence_threshold,
                           .bucket_bytes = c->parallelism.bucket_cap_mb << 20,
                           .gather_wire = wire_dtype(c->parallelism.gather_dtype),
                           .reduce_wire = wire_dtype(c->parallelism.reduce_dtype),
                           .master = narrow ? DT_BF16 : DT_F32,
                           .modules = c->precision.modules,
                           .fp8 = c->precision.fp8,
                           .fp8_skip = c->precision.fp8_skip,
                           .fp8_head = c->precision.fp8_head,
                           .seq = seq,
                           .documents = c->data.documents,
                           .keeps_half_grad = c->training.noise_scale,
                           .label_smoothing = (float)c->training.label_smoothing,
                           .z_loss = (float)c->training.z_loss,
                           .selective = c->activation_checkpoint.mode == CFG_AC_SELECTIVE };
}

optim_settings train_optim(const config *c, const op_backend *ops, const model_layout *l) {
    optim_settings s = { .kind = c->optimizer.name,
                         .lr = c->optimizer.lr,
                         .lr_base_width = c->optimizer.lr_base_width,
                         .beta1 = c->optimizer.beta1,
                         .beta2 = c->optimizer.beta2,
                         .eps = c->optimizer.eps,
                         .weight_decay = c->optimizer.weight_decay,
                         .momentum = c->optimizer.momentum,
                         .nesterov = c->optimizer.nesterov,
                         .decay_by = c->optimizer.weight_decay_schedule,
                         .decay_base_tokens = c->optimizer.weight_decay_base_tokens,
                         .equilibrate = c->optimizer.muon_equilibrate,
                         .muon_beta2 = c->optimizer.muon_beta2,
                         .cautious = c->optimizer.cautious_decay,
                         .polar = c->optimizer.polar_express ? POLAR_EXPRESS : POLAR_CLASSIC,
                         .agc = c->training.agc,
                         .offload = c->optimizer.offload,
                         .growth_interval =
                             l->dt == DT_F16 ? c->precision.loss_scale_growth_interval : 0,
                         .backend = ops };
    s.groups = config_groups(c->optimizer.groups, s.group);
    return s;
}

static int keep_every(const config *c, int layers) {
    switch ((cfg_recompute)c->activation_checkpoint.mode) {
    case CFG_AC_FULL: return 1;
    case CFG_AC_EVERY: return (int)c->activation_checkpoint.every;
    case CFG_AC_SQRT: return (int)lround(sqrt((double)layers));
    case CFG_AC_NONE:
    case CFG_AC_SELECTIVE: return 0;
    }
    BUG("not a mode of recompute");
}

void train_recompute(const config *c, chain *t) {
    double part = c->activation_checkpoint.part;
    t->keep_every = keep_every(c, t->layers);
    t->keep_last = t->layers - (int)lround(part * t->layers);
}
