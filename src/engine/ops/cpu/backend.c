/* The backend of one instruction set: its table of kernels. */
#include "kernel/kernel_internal.h"
#include "ops/op_table.h"

/* One row per op: kernel, workspace, the attributes it honors. */
static const op_impl impls[OP_COUNT] = {
    [OP_EMBED] = { CPU(embed), NULL, ATTRS_VOCAB },
    [OP_EMBED_BWD] = { CPU(embed_bwd), NULL, ATTRS_VOCAB },
    [OP_LINEAR] = { CPU(linear), CPU(linear_workspace), ATTRS_FP8 },
    [OP_LINEAR_GELU] = { CPU(linear), CPU(linear_workspace), ATTRS_FP8 | ATTR(ACT) },
    [OP_LINEAR_BWD_X] = { CPU(linear_bwd_x), CPU(linear_workspace), ATTRS_FP8 },
    [OP_LINEAR_BWD_X_GELU] = { CPU(linear_bwd_x_gelu), CPU(linear_workspace), ATTR(ACT) },
    [OP_LINEAR_BWD_W] = { CPU(linear_bwd_w), CPU(linear_workspace), ATTRS_FP8 },
    [OP_RMSNORM] = { CPU(rmsnorm), CPU(norm_workspace), ATTR(EPS) },
    [OP_RMSNORM_BWD] = { CPU(rmsnorm_bwd), CPU(norm_workspace) },
    [OP_LAYERNORM] = { CPU(layernorm), CPU(norm_workspace), ATTR(EPS) },
    [OP_LAYERNORM_BWD] = { CPU(layernorm_bwd), CPU(norm_workspace) },
    [OP_QKNORM] = { CPU(qknorm), CPU(norm_workspace), ATTRS_HEADS | ATTR(EPS) | ATTR(NORM_FULL) },
    [OP_QKNORM_BWD] = { CPU(qknorm_bwd), CPU(norm_workspace), ATTRS_HEADS | ATTR(NORM_FULL) },
    [OP_ROPE] = { CPU(rope), NULL, ATTRS_HEADS | ATTR(ROT) },
    [OP_ROPE_BWD] = { CPU(rope), NULL, ATTRS_HEADS | ATTR(ROT) },
    [OP_ATTENTION] = { CPU(attention), CPU(attention_workspace),
                       ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT },
    [OP_ATTENTION_BWD] = { CPU(attention_bwd), CPU(attention_workspace),
                           ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT },
    [OP_ATTENTION_BLOCK] = { CPU(attention_block), CPU(attention_workspace),
                             ATTRS_HEADS | ATTR(SCORE_SCALE) | ATTRS_ATTENTION_DROPOUT },
    [OP_ATTENTION_BLOCK_BWD] = { CPU(attention_block_bwd), CPU(attention_workspace),
                                 ATTRS_HEADS | ATTR(SCORE_SCALE) | ATTRS_ATTENTION_DROPOUT },
    [OP_SPLIT_HEADS] = { CPU(split_heads) },
    [OP_SPLIT_HEADS_BWD] = { CPU(split_heads) },
    [OP_ATTENTION_CACHED] = { CPU(attention_cached), CPU(attention_workspace),
                              ATTRS_HEADS | ATTRS_ATTENTION },
    [OP_GROUP_HEADS] = { CPU(group_heads), NULL, ATTRS_HEADS | ATTR(PARTS) },
    [OP_GROUP_HEADS_BWD] = { CPU(group_heads), NULL, ATTRS_HEADS | ATTR(PARTS) },
    [OP_SWAP_ROWS] = { CPU(swap_rows), NULL, ATTRS_SWAP },
    [OP_SWAP_ROWS_BWD] = { CPU(swap_rows), NULL, ATTRS_SWAP },
    [OP_GELU] = { CPU(gelu), NULL, ATTR(ACT) },
    [OP_GELU_BWD] = { CPU(gelu_bwd), NULL, ATTR(ACT) },
    [OP_SWIGLU] = { CPU(swiglu) },
    [OP_SWIGLU_BWD] = { CPU(swiglu_bwd) },
    [OP_ADD] = { CPU(add) },
    [OP_CAST] = { CPU(add) },
    [OP_DROPOUT] = { CPU(dropout), NULL, ATTR(DROPOUT_P) | ATTR(DROPOUT_SITE) },
    [OP_SCALE] = { CPU(scale), NULL, ATTR(SCALE_BY) },
    [OP_ROUTE] = { CPU(route), CPU(route_workspace), ATTRS_ROUTE },
    [OP_ROUTE_BWD] = { CPU(route_bwd), CPU(route_workspace), ATTRS_ROUTE },
    [OP_ROUTE_COUNT] = { CPU(route_count), CPU(route_workspace), ATTRS_ROUTE_COUNT },
    [OP_EXPERT_ROWS] = { CPU(expert_rows) },
    [OP_GROUP_ROWS] = { CPU(group_rows) },
    [OP_GROUP_ROWS_BWD] = { CPU(group_rows) },
    [OP_UNGROUP_ROWS] = { CPU(group_rows) },
    [OP_UNGROUP_ROWS_BWD] = { CPU(group_rows) },
    [OP_DISPATCH] = { CPU(dispatch) },
    [OP_DISPATCH_BWD] = { CPU(dispatch_bwd) },
    [OP_COMBINE] = { CPU(combine) },
    [OP_COMBINE_BWD] = { CPU(combine_bwd) },
    [OP_GROUPED_LINEAR] = { CPU(grouped_linear), CPU(grouped_workspace), ATTR(EXPERTS) },
    [OP_GROUPED_LINEAR_BWD_X] = { CPU(grouped_linear), CPU(grouped_workspace), ATTR(EXPERTS) },
    [OP_GROUPED_LINEAR_BWD_W] = { CPU(grouped_linear_bwd_w), CPU(grouped_workspace),
                                  ATTR(EXPERTS) },
    [OP_QUANTIZE] = { CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 },
    [OP_QUANTIZE_SWIGLU] = { CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 },
    [OP_QUANTIZE_SWIGLU_BWD] = { CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 },
    [OP_QUANTIZE_GELU] = { CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 | ATTR(ACT) },
    [OP_QUANTIZE_GELU_BWD] = { CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 | ATTR(ACT) },
    [OP_FP8_COMMIT] = { CPU(fp8_commit) },
    [OP_LINEAR_CE] = { CPU(linear_ce), CPU(linear_ce_workspace), ATTR(LOGIT_SCALE) },
    [OP_CE_STAT] = { CPU(ce_stat), NULL, ATTR(LOGIT_SCALE) | ATTRS_VOCAB },
    [OP_CE_LOSS] = { CPU(ce_loss), NULL, ATTR(LOGIT_SCALE) | ATTRS_VOCAB },
    [OP_FETCH] = { CPU(add) },
    [OP_ACCUMULATE] = { CPU(accumulate) },
    [OP_SQNORM] = { CPU(sqnorm), NULL, ATTR(SCALE_BY) },
    [OP_ZERO] = { CPU(zero) },
    [OP_UPDATE_SGD] = { CPU(update), NULL, ATTRS_UPDATE },
    [OP_UPDATE_MOMENTUM] = { CPU(update), NULL, ATTRS_UPDATE },
    [OP_UPDATE_ADAM] = { CPU(update), NULL, ATTRS_UPDATE },
    [OP_UPDATE_LION] = { CPU(update), NULL, ATTRS_UPDATE_DECOUPLED },
    [OP_UPDATE_ADAM8] = { CPU(update_adam8), NULL, ATTRS_UPDATE_DECOUPLED },
    [OP_UPDATE_ALONG] = { CPU(update), NULL, ATTRS_UPDATE_DECOUPLED },
    [OP_FACTOR_SUMS] = { CPU(factor_sums), CPU(factor_workspace), ATTRS_PART | ATTR(UPDATE_EPS) },
    [OP_FACTOR_MOMENTS] = { CPU(factor_moments) },
    [OP_FACTOR_MATRIX] = { CPU(factor_matrix), NULL, ATTRS_PART },
    [OP_FACTOR_VECTOR] = { CPU(factor_vector), NULL, ATTR(UPDATE_EPS) },
    [OP_MUON_MOMENTUM] = { CPU(muon_momentum), NULL,
                           ATTR(MOMENTUM) | ATTR(NESTEROV) | ATTR(HOST_STATE) },
    [OP_MUON_PACK] = { CPU(muon_pack), CPU(muon_pack_workspace), ATTR(POLAR) },
    [OP_ORTHOGONALIZE] = { CPU(orthogonalize), CPU(orthogonalize_workspace), ATTR(POLAR) },
    [OP_MUON_UNPACK] = { CPU(muon_unpack) },
    [OP_UPDATE_ROUTER_BIAS] = { CPU(update_router_bias), NULL, ATTRS_UPDATE },
    [OP_CLIP] = { CPU(clip), NULL, ATTR(GROWTH_INTERVAL) },
    [OP_AGC_SUMS] = { CPU(agc_sums), NULL, ATTRS_PART },
    [OP_AGC] = { CPU(agc), NULL, ATTRS_PART | ATTR(AGC_FACTOR) | ATTR(AGC_EPS) },
};

static double burn_flops(dtype dt, int64_t rounds) {
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
    .bf16_gemm = CPU_BF16_GEMM,
    .polar = CPU_BF16_GEMM ? DT_BF16 : DT_F32,
    .impl = impls,
    .burn = burn_flops,
};
