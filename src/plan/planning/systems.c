/* Profiles of other systems (`ingot plan --as`): what their steps do differently from our programs, as their sources
 * show. The simulator still plays our instruction lists; a profile changes what calls and communications cost, what
 * memory they need, and how operations are counted. */
#include <math.h>
#include <string.h>

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
    .tp_overlap = 8, .bf16_gradients = true, .messages = MESSAGES_EARLY, .saves_shards = true,     \
    .routes_shards = true
#define TITAN .fp8_gather = true, .casts_shards = true

/* clang-format off */
static const other_system systems[] = {
    SYSTEM("megatron-2021", "Megatron-LM of 2020 and 2021: attention over stored scores with dropout, no sequence parallelism, gradients "
           "all-reduced after backward", STORED, LOGITS_MEGATRON, EAGER_FUSED, 8e-6, 0.87, RECOMPUTED, MEGATRON_EARLY),
    SYSTEM("megatron-2022", "Megatron-LM of 2022: sequence parallelism, and only the scores of attention are recomputed",
           STORED, LOGITS_MEGATRON, EAGER_FUSED, 8e-6, 0.95, FULL, MEGATRON_EARLY, .saves_shards = true),
    SYSTEM("megatron-2024", "Megatron-LM of 2024: Transformer Engine, tensor-parallel communication overlapped with GEMMs",
           CUDNN, LOGITS_MEGATRON, EAGER_FUSED, 5e-6, 1, FULL, MEGATRON_TE),
    SYSTEM("nemo-2024", "NeMo of 2024: as Megatron-LM of 2024 with a fused loss, FlashAttention-2",
           FLASH2, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .fp8_gather = true),
    SYSTEM("nemo", "NeMo and Megatron-Bridge: as Megatron-LM of 2024, with a fused loss",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .fp8_gather = true),
    SYSTEM("megatron-2025", "Megatron-LM of 2025 with DeepEP: a fused loss, tokens go once to each host of their experts",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, MEGATRON_TE, .fp8_gather = true, .sends_once = true),
    SYSTEM("deepseek", "DeepSeek's system for V3: tokens go once to each host of their experts, while another microbatch computes",
           CUDNN, 16, COMPILED, 5e-6, 1, FULL, .bf16_gradients = true, .messages = MESSAGES_EARLY, .fp8_gather = true,
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
           .saves_shards = true),
    SYSTEM("tinyllama", "TinyLlama: FSDP with FlashAttention-2 and fused norms, rotations and loss",
           FLASH2, 16, EAGER_FUSED, 8e-6, 0.92, FULL, .casts_shards = true),
};
/* clang-format on */

static const char *system_name_at(const void *ctx, int i) { return systems[i].name; }

err other_system_find(const char *name, const other_system **out) {
    str all = { 0 };
    for (size_t i = 0; i < COUNT_OF(systems); i++) {
        if (!strcmp(systems[i].name, name)) {
            str_free(&all);
            *out = &systems[i];
            return OK;
        }
        str_add(&all, "%s%s", i ? ", " : "", systems[i].name);
    }
    const char *near = str_nearest(name, system_name_at, NULL, (int)COUNT_OF(systems));
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
static double free_move(void *ctx, const mesh *m, const comm_move *move, double bytes) { return 0; }

/* Microbatches whose activations a stage holds. */
static double held_microbatches(const pipeline *p, int ranks, double micros, int stage) {
    double behind = ranks - stage - 1;
    if (p->chunks <= 1) return fmin(micros, behind + 1);
    return fmin(micros * p->chunks, 2 * behind + (p->chunks - 1) * ranks + 1) / p->chunks;
}

double other_system_saved(const other_system *as, const model_layout *lay, const prog_price *b) {
    double own = 1.0 / mesh_size(&lay->mesh, AX_TP);
    bool shards = as && as->saves_shards && lay->sequence_parallel;
    return b->saved - (shards ? b->saved_replicated * (1 - own) : 0);
}

/* Ours has buffers of messages for each microbatch in flight. */
static void reuse_message_buffers(const train_outline *o, const prog_price *b, capacity *c) {
    c->memory[MEMORY_COMMUNICATION] -=
        fmin(c->memory[MEMORY_COMMUNICATION], (double)plan_bytes(o->p, "pipeline"));
    c->memory[MEMORY_COMMUNICATION] += 4 * b->residual;
}

void other_system_memory(const other_system *as, const train_outline *o, int stage, capacity *c) {
    static const sim_costs nothing = { .call = free_call, .move = free_move };
    const model_layout *lay = model_lay(o->m);
    const prog_price b = sim_price(o->train->block[0], &lay->mesh, &nothing, true);
    bool narrow = c->dt != DT_F32, master = c->memory[MEMORY_MASTER] > 0;
    if (as->bf16_gradients && narrow) c->memory[MEMORY_GRADIENTS] /= 2;
    if (as->casts_shards && lay->zero == 3 && master) c->memory[MEMORY_WEIGHTS] = 0;
    int stages = mesh_stages(&lay->mesh), tp = mesh_size(&lay->mesh, AX_TP);
    double held = held_microbatches(&lay->pipe, stages, (double)o->micros, stage);
    double saved_blocks = o->train->keep_every ? 1 : held * c->layers_of_stage;
    if (stages > 1) reuse_message_buffers(o, &b, c);
    double block = other_system_saved(as, lay, &b);
    c->memory[MEMORY_ACTIVATIONS] -= saved_blocks * (b.saved - block);
    if (as->attention == ATTENTION_STORED && !o->train->keep_every && !lay->selective) {
        /* scores, their softmax and a mask of dropout: 2 + 2 + 1 bytes */
        double tokens = (double)(o->rows * o->seq), heads = (double)c->mc.heads / tp;
        c->memory[MEMORY_ACTIVATIONS] += 5 * heads * (double)o->seq * tokens * saved_blocks;
    }
    c->total = 0;
    for (int k = 0; k < MEMORY_KINDS; k++) c->total += c->memory[k];
}
