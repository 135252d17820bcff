/* Profiles of other systems (`ingot plan --as`): what their steps do differently from our programs, as their sources
 * show. The simulator still plays our instruction lists; a profile changes what calls and communications cost, what
 * memory they need, and how operations are counted. */
#include <math.h>
#include <string.h>

#include "ops/op_table.h"
#include "planning_internal.h"

/* Bytes that a loss moves per logit beside its GEMMs. Megatron-LM (core/tensor_parallel/cross_entropy.py) widens
 * logits to fp32 and runs maximum, difference, exponential, sum, quotient and, backward, product and narrowing as a kernel
 * each: 6 + 4 + 8 + 8 + 4 + 8 + 8 + 6. PyTorch's cross entropy widens, takes a log softmax and, backward, its gradient, which
 * is narrowed: 6 + 8 + 12 + 6. */
enum { LOGITS_MEGATRON = 52, LOGITS_PYTORCH = 32 };

/* `passes`: an eager framework runs each elementwise op as a kernel of its own, with operands in memory; ours are fused
 * into norms and GEMMs. A compiler removes most of the difference. */
#define SYSTEM(system, does, scores, logits, kernels, start, rate, counts, ...)                    \
    {                                                                                              \
        .name = system, .about = does, .attention = ATTENTION_##scores, .logit_bytes = logits,     \
        .passes = kernels, .launch = start, .gemm = rate, .count = COUNT_##counts, __VA_ARGS__     \
    }
/* Members that the systems of a family share. */
#define MEGATRON_EARLY                                                                             \
    .late_gradients = true, .bf16_gradients = true, .messages = MESSAGES_SCATTERED
#define MEGATRON_TE                                                                                \
    .tp_overlap = 8, .bf16_gradients = true, .messages = MESSAGES_EARLY, .routes_shards = true
#define TE_KEEPS (KEEPS_SHARDS | KEEPS_ROUTED_SHARDS)
#define TITAN    .fp8_gather = true, .casts_shards = true

/* clang-format off */
static const other_system systems[] = {
    SYSTEM("megatron-2021", "Megatron-LM of 2020 and 2021: attention over stored scores with dropout, no sequence parallelism, gradients "
           "all-reduced after backward", STORED, LOGITS_MEGATRON, EAGER_FUSED, 8e-6, 0.87, RECOMPUTED, MEGATRON_EARLY),
    SYSTEM("megatron-2022", "Megatron-LM of 2022: sequence parallelism, and only the scores of attention are recomputed",
           STORED, LOGITS_MEGATRON, EAGER_FUSED, 8e-6, 0.95, FULL, MEGATRON_EARLY, .keeps = KEEPS_SHARDS),
    SYSTEM("megatron-2024", "Megatron-LM of 2024: Transformer Engine, tensor-parallel communication overlapped with GEMMs",
           CUDNN, LOGITS_MEGATRON, EAGER_FUSED, 5e-6, 1, FULL, MEGATRON_TE, .keeps = TE_KEEPS),
    SYSTEM("nemo-2024", "NeMo of 2024: as Megatron-LM of 2024 with a fused loss, FlashAttention-2",
           FLASH2, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .keeps = TE_KEEPS, .fp8_gather = true),
    SYSTEM("nemo", "NeMo and Megatron-Bridge: as Megatron-LM of 2025, with an exchange of every expert's tokens",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .keeps = TE_KEEPS | KEEPS_NO_RESULTS, .fp8_gather = true),
    SYSTEM("nemo-offload", "Megatron-Bridge with the saved values of half of the layers in host memory",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .keeps = TE_KEEPS | KEEPS_NO_RESULTS, .fp8_gather = true,
           .host_blocks = 0.5),
    SYSTEM("megatron-2025", "Megatron-LM of 2025 with DeepEP: a fused loss, tokens go once to each host of their experts",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .keeps = TE_KEEPS | KEEPS_NO_RESULTS, .fp8_gather = true,
           .sends_once = true),
    SYSTEM("deepseek", "DeepSeek's system for V3: tokens go once to each host of their experts, while another microbatch computes",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, .messages = MESSAGES_EARLY, .fp8_gather = true,
           .keeps = KEEPS_NO_RESULTS | KEEPS_LATENTS | KEEPS_FP8 | KEEPS_NO_GRADIENTS, .bf16_moments = true, .copies = 2,
           .sends_once = true, .hides_experts = true),
    SYSTEM("torchtitan", "torchtitan with torch.compile: FlashAttention-2, FSDP with prefetch",
           FLASH2, LOGITS_PYTORCH, COMPILED, 4e-6, 0.9, FULL, TITAN),
    SYSTEM("torchtitan-async", "torchtitan with torch.compile and asynchronous tensor parallelism",
           FLASH2, LOGITS_PYTORCH, COMPILED, 4e-6, 0.9, FULL, TITAN, .tp_overlap = 8),
    SYSTEM("torchtitan-eager", "torchtitan without torch.compile",
           FLASH2, LOGITS_PYTORCH, EAGER, 10e-6, 0.9, FULL, TITAN),
    SYSTEM("llm-foundry", "llm-foundry (MPT): eager PyTorch, FSDP, attention in Triton with ALiBi",
           FLASH1, LOGITS_PYTORCH, EAGER, 10e-6, 0.86, FULL, .casts_shards = true),
    SYSTEM("deepspeed", "DeepSpeed with an eager Hugging Face model: FlashAttention-2, ZeRO",
           FLASH2, LOGITS_PYTORCH, EAGER, 12e-6, 0.92, FULL, .bf16_gradients = true),
    SYSTEM("gpt-neox", "GPT-NeoX: Megatron-LM's layers under DeepSpeed, attention over stored scores",
           STORED, LOGITS_MEGATRON, EAGER_FUSED, 10e-6, 0.87, RECOMPUTED, MEGATRON_EARLY),
    SYSTEM("nanotron", "nanotron: eager PyTorch with FlashAttention-2 and Megatron's sharded loss",
           FLASH2, LOGITS_MEGATRON, EAGER, 12e-6, 0.92, FULL, .late_gradients = true),
    SYSTEM("llama3", "Meta's system for Llama 3: cuDNN's attention, all-gathered keys under context parallelism",
           CUDNN, LOGITS_PYTORCH, COMPILED, 5e-6, 0.95, CAUSAL, .messages = MESSAGES_EARLY,
           .keeps = KEEPS_SHARDS),
    /* Chowdhery et al. 2022, arXiv:2204.02311, section 4: one fully sharded activation tensor is saved from each layer. */
    SYSTEM("palm", "PaLM's system: XLA on TPUs, the recomputed layers' inputs kept in shards",
           OURS, 8, AS_OURS, 0, 1, FULL, .keeps = KEEPS_INPUT_SHARDS),
    SYSTEM("tinyllama", "TinyLlama: FSDP with FlashAttention-2 and fused norms, rotations and loss",
           FLASH2, 16, EAGER_FUSED, 8e-6, 0.92, FULL, .casts_shards = true),
};
/* clang-format on */

err other_system_find(const char *name, const other_system **out) {
    str all = { 0 };
    const char *near = NULL;
    for (size_t i = 0; i < COUNT_OF(systems); i++) {
        near = str_nearer(name, systems[i].name, near);
        if (!strcmp(systems[i].name, name)) {
            str_free(&all);
            *out = &systems[i];
            return OK;
        }
        str_add(&all, "%s%s", i ? ", " : "", systems[i].name);
    }
    err e = err_hint(
        ERR_USAGE("--as: \"%.40s\" is not a system whose steps are known: %s", name, all.text),
        "--as %s", near ? near : systems[0].name);
    str_free(&all);
    return e;
}

double other_system_flops(const other_system *as, const model_config *mc, int64_t seq) {
    double full = model_flops(mc, seq, false), causal = model_flops(mc, seq, true);
    double logits = 6 * (double)mc->dim * (double)mc->vocab; /* not recomputed */
    switch (as ? as->count : COUNT_FULL) {
    case COUNT_CAUSAL: return causal;
    case COUNT_RECOMPUTED: return (full - logits) * 4 / 3 + logits;
    case COUNT_FULL: break;
    }
    return full;
}

/* ---- memory ------------------------------------------------------------------------------------ */
static double free_call(void *ctx, const char *program, const op_call *c) { return 0; }
double free_move(void *ctx, const mesh *m, const comm_move *move, double bytes) { return 0; }

/* A saved value that a system keeps a share of, by the ops that compute it and that read it first; OP_NONE: any. A share
 * of 0 is recomputed. */
enum { ANY_OP = OP_NONE };
static const struct {
    kept_values trait;
    op_code by, reader;
    double share;
} kept_shares[] = {
    /* Megatron-LM, core/transformer/moe/experts.py: since 2025 a token's weight multiplies the hidden values of its
     * expert. DeepSeek does not publish it; with the experts' results V3 would not fit. */
    { KEEPS_NO_RESULTS, ANY_OP, OP_COMBINE, 0 },
    /* DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.3: up-projections of latent attention are recomputed. */
    { KEEPS_LATENTS, OP_LATENT_QKV, ANY_OP, 0 },
    /* Section 3.3.3: the input of the projection after attention in E5M6, those of other GEMMs and of SwiGLU in FP8. */
    { KEEPS_FP8, OP_ATTENTION, ANY_OP, 12.0 / 16 },
    { KEEPS_FP8, ANY_OP, OP_GROUPED_LINEAR, 8.0 / 16 },
    { KEEPS_FP8, ANY_OP, OP_SWIGLU, 8.0 / 16 },
    { KEEPS_FP8, ANY_OP, OP_QUANTIZE_SWIGLU, 8.0 / 16 },
};

static double kept_share(const other_system *as, const model_config *mc, const model_layout *lay,
                         const saved_value *v) {
    double share = 1, own = 1.0 / mesh_size(&lay->mesh, AX_TP);
    bool replicated = false, partial = place_same(v->pl.on[AX_TP], PLACE_P);
    for (int a = 0; a < AX_COUNT; a++)
        replicated |= place_same(v->pl.on[a], PLACE_R) && lay->mesh.size[a] > 1;
    if (as->keeps & KEEPS_SHARDS && lay->sequence_parallel && replicated) share *= own;
    if (as->keeps & KEEPS_ROUTED_SHARDS && partial) share *= own;
    if (as->keeps & KEEPS_NO_GRADIENTS && v->backward) return 0;
    /* our kernels give values as many dims as keys */
    if (as->keeps & KEEPS_LATENTS && mc->kv_latent && v->by == OP_ATTENTION && v->dt != DT_F32)
        share *= (double)mc->value_head_dim / (double)mc->head_dim;
    for (size_t i = 0; i < COUNT_OF(kept_shares) && v->dt != DT_F32; i++)
        if (as->keeps & kept_shares[i].trait &&
            (kept_shares[i].by == ANY_OP || kept_shares[i].by == v->by) &&
            (kept_shares[i].reader == ANY_OP || kept_shares[i].reader == v->reader))
            share *= kept_shares[i].share;
    return share;
}

double other_system_spares(const other_system *as, const model_config *mc, const model_layout *lay,
                           const prog *p) {
    double spared = 0;
    saved_value v;
    for (int i = 0; as && as->keeps && prog_next_saved(p, &i, &v);)
        spared += v.bytes * (1 - kept_share(as, mc, lay, &v));
    return spared;
}

/* Saved bytes of the stage's blocks for one microbatch: ours, or those that the system keeps. */
static double stage_saved(const other_system *as, const train_outline *o, int stage, bool spared) {
    const model_layout *lay = model_lay(o->m);
    const model_config *mc = model_conf(o->m);
    double sum = 0;
    for (int k = 0; k < lay->pipe.chunks; k++) {
        int from, to;
        pipeline_blocks(&lay->pipe, mc->layers, stage, k, &from, &to);
        for (int l = from; l < to; l++) {
            const prog *p = chain_block(o->train, l);
            double spares = other_system_spares(as, mc, lay, p);
            sum += spared ? spares : prog_saved_bytes(p) - spares;
        }
    }
    return sum;
}

double other_system_moves(const other_system *as, const train_outline *o) {
    return as && as->host_blocks > 0 ? as->host_blocks * stage_saved(as, o, 0, false) : 0;
}

/* Workspace beyond what training needs: a run evaluates without a bound of the tokens that an expert may receive. */
static double eval_workspace(const train_outline *o) {
    double most = MAX(prog_temp_bytes(o->train->first), prog_temp_bytes(o->train->last));
    for (int i = 0; i < CHAIN_KINDS; i++)
        if (o->train->block[i]) most = MAX(most, prog_temp_bytes(o->train->block[i]));
    return MAX(0, (double)plan_bytes(o->p, "temp") - most);
}

void other_system_states(const other_system *as, dtype dt, double bytes[MEMORY_KINDS]) {
    if (as->bf16_gradients && dt != DT_F32) bytes[MEMORY_GRADIENTS] /= 2;
    if (as->bf16_moments) bytes[MEMORY_MOMENTS] /= 2;
    bytes[MEMORY_WEIGHTS] *= MAX(1, as->copies);
    bytes[MEMORY_GRADIENTS] *= MAX(1, as->copies);
}

void other_system_memory(const other_system *as, const train_outline *o, int stage, capacity *c) {
    static const sim_costs nothing = { .call = free_call, .move = free_move };
    const model_layout *lay = model_lay(o->m);
    const prog_price b = sim_price(o->train->block[0], &lay->mesh, &nothing, true);
    bool master = c->memory[MEMORY_MASTER] > 0;
    other_system_states(as, c->dt, c->memory);
    if (as->bf16_gradients && c->dt != DT_F32)
        c->memory[MEMORY_COMMUNICATION] -= (double)plan_bytes(o->p, "whole grads") / 2;
    if (as->casts_shards && lay->zero == 3 && master) c->memory[MEMORY_WEIGHTS] = 0;
    c->memory[MEMORY_WORKSPACE] -= eval_workspace(o);
    int stages = mesh_stages(&lay->mesh), tp = mesh_size(&lay->mesh, AX_TP);
    /* microbatches that a stage has slots for, without recompute of blocks */
    double held = (double)plan_bytes(o->p, "saved") / stage_saved(NULL, o, stage, false);
    if (stages > 1) { /* ours has buffers of messages for each microbatch in flight */
        double *messages = &c->memory[MEMORY_COMMUNICATION];
        *messages -= fmin(*messages, (double)plan_bytes(o->p, "pipeline"));
        *messages += 4 * b.residual;
    }
    if (o->train->keep_every && as->keeps & KEEPS_INPUT_SHARDS)
        c->memory[MEMORY_ACTIVATIONS] -= (double)plan_bytes(o->p, "block inputs") * (1 - 1.0 / tp);
    if (o->train->keep_every)
        c->memory[MEMORY_ACTIVATIONS] -= other_system_spares(as, &c->mc, lay, o->train->block[0]);
    else
        c->memory[MEMORY_ACTIVATIONS] -=
            held *
            (stage_saved(as, o, stage, true) + as->host_blocks * stage_saved(as, o, stage, false));
    if (as->attention == ATTENTION_STORED && !o->train->keep_every && !lay->selective) {
        /* scores, their softmax and a mask of dropout: 2 + 2 + 1 bytes */
        double tokens = (double)(o->rows * o->seq), heads = (double)c->mc.heads / tp;
        c->memory[MEMORY_ACTIVATIONS] +=
            5 * heads * (double)o->seq * tokens * held * c->layers_of_stage;
    }
    c->total = 0;
    for (int k = 0; k < MEMORY_KINDS; k++) c->total += c->memory[k];
}
