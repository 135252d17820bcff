/* The table of this instruction set's kernels. */
#include "kernel/kernel_internal.h"

static size_t workspace(const op_backend *b, const op_call *c, int threads) {
    switch (c->op) {
    case OP_LINEAR:
    case OP_LINEAR_GELU:
    case OP_LINEAR_BWD_X:
    case OP_LINEAR_BWD_X_GELU:
    case OP_LINEAR_BWD_W: return CPU(linear_workspace)(c, threads);
    case OP_RMSNORM:
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM:
    case OP_LAYERNORM_BWD:
    case OP_QKNORM:
    case OP_QKNORM_BWD: return CPU(norm_workspace)(c, threads);
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
    case OP_ATTENTION_CACHED: return CPU(attention_workspace)(c, threads);
    case OP_QUANTIZE:
    case OP_QUANTIZE_SWIGLU:
    case OP_QUANTIZE_SWIGLU_BWD:
    case OP_QUANTIZE_GELU:
    case OP_QUANTIZE_GELU_BWD: return CPU(quantize_workspace)(c, threads);
    case OP_LINEAR_CE: return CPU(linear_ce_workspace)(c, threads);
    case OP_UPDATE_ADAFACTOR: return CPU(adafactor_workspace)(c, threads);
    case OP_UPDATE_MUON: return CPU(muon_workspace)(c, threads);
    default: return 0;
    }
}

static double burn(dtype dt, int64_t rounds) {
    const gemm_kernel *k = dt == DT_BF16 ? CPU(gemm_bf16_kernel) : &CPU(gemm_f32_kernel);
    if (k->enter) k->enter();
    double done = k->burn(rounds);
    if (k->leave) k->leave();
    return done;
}

#define CPU_STRING2(x) #x
#define CPU_STRING(x)  CPU_STRING2(x)

extern const op_backend CPU(backend);
const op_backend CPU(backend) = {
    .name = CPU_STRING(CPU_ISA),
    .bf16_products = CPU_BF16_PRODUCTS,
    .workspace = workspace,
    .burn = burn,
    .kernel = {
        [OP_EMBED] = CPU(embed),
        [OP_EMBED_BWD] = CPU(embed_bwd),
        [OP_LINEAR] = CPU(linear),
        [OP_LINEAR_GELU] = CPU(linear),
        [OP_LINEAR_BWD_X] = CPU(linear_bwd_x),
        [OP_LINEAR_BWD_X_GELU] = CPU(linear_bwd_x_gelu),
        [OP_LINEAR_BWD_W] = CPU(linear_bwd_w),
        [OP_RMSNORM] = CPU(rmsnorm),
        [OP_RMSNORM_BWD] = CPU(rmsnorm_bwd),
        [OP_LAYERNORM] = CPU(layernorm),
        [OP_LAYERNORM_BWD] = CPU(layernorm_bwd),
        [OP_QKNORM] = CPU(qknorm),
        [OP_QKNORM_BWD] = CPU(qknorm_bwd),
        [OP_ROPE] = CPU(rope),
        [OP_ROPE_BWD] = CPU(rope),
        [OP_ATTENTION] = CPU(attention),
        [OP_ATTENTION_BWD] = CPU(attention_bwd),
        [OP_ATTENTION_CACHED] = CPU(attention_cached),
        [OP_GELU] = CPU(gelu),
        [OP_GELU_BWD] = CPU(gelu_bwd),
        [OP_SWIGLU] = CPU(swiglu),
        [OP_SWIGLU_BWD] = CPU(swiglu_bwd),
        [OP_ADD] = CPU(add),
        [OP_CAST] = CPU(add),
        [OP_DROPOUT] = CPU(dropout),
        [OP_SCALE] = CPU(scale),
        [OP_QUANTIZE] = CPU(quantize),
        [OP_QUANTIZE_SWIGLU] = CPU(quantize),
        [OP_QUANTIZE_SWIGLU_BWD] = CPU(quantize),
        [OP_QUANTIZE_GELU] = CPU(quantize),
        [OP_QUANTIZE_GELU_BWD] = CPU(quantize),
        [OP_FP8_COMMIT] = CPU(fp8_commit),
        [OP_LINEAR_CE] = CPU(linear_ce),
        [OP_SQNORM] = CPU(sqnorm),
        [OP_ZERO] = CPU(zero),
        [OP_UPDATE_SGD] = CPU(update),
        [OP_UPDATE_MOMENTUM] = CPU(update),
        [OP_UPDATE_ADAM] = CPU(update),
        [OP_UPDATE_LION] = CPU(update),
        [OP_UPDATE_ADAM8] = CPU(update_adam8),
        [OP_UPDATE_ADAFACTOR] = CPU(update_adafactor),
        [OP_UPDATE_MUON] = CPU(update_muon),
        [OP_CLIP] = CPU(clip),
        [OP_AGC] = CPU(agc),
    },
};
