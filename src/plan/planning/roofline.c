/* The cost of calls of ops on an accelerator, and the time of a step of them. Rates of GEMMs and of attention are the
 * catalogue's: the best that was measured on the chip, by size; other ops move bytes. Communications are in network_links.c. One set
 * of constants holds for every accelerator, model, layout and system (cost_constants). */
#include "planning_internal.h"

#include <math.h>

#include "ops/op_table.h"

const cost_constants plan_constants = {
    .gemm_sustained = 1.02,
    .gemm_half = 224,
    .gemm_peak = { 0.80, 0.71 },
    .power = 0.85,
    .memory = 0.85,
    .call = 3e-6,
    .logit_passes = 4,
    .passes = { [AS_OURS] = 1, [COMPILED] = 1.2, [EAGER_FUSED] = 2, [EAGER] = 3 },
    .stored_scores = { 13, 22 },
    .link = 0.82,
    .network = 0.90,
    .tree = 0.70,
    .link_hop = 2e-6,
    .network_hop = 8e-6,
    .switch_hop = 2e-6,
    .start = 10e-6,
    .interference = 0.20,
    .chips = 0.01,
    .hosts = 0.01,
};

/* A kernel of attention runs, operations counted causally, at the chip's rate times T / (T + keys) times D / (D + head):
 * sequence, head size. `peak` is the share of the chip's peak where the catalogue has no rate. */
typedef struct attention_efficiency {
    double peak, keys, head;
} attention_efficiency;
static const attention_efficiency attention_kernels[ATTENTION_KERNELS][2] = {
    /* forward, backward */
    [ATTENTION_OURS] = { { 0.715, 600, 30 }, { 0.535, 900, 17 } },
    [ATTENTION_CUDNN] = { { 0.715, 600, 30 }, { 0.535, 900, 17 } },
    [ATTENTION_FLASH2] = { { 0.405, 520, 20 }, { 0.405, 520, 20 } },
    [ATTENTION_FLASH1] = { { 0.20, 300, 0 }, { 0.20, 300, 0 } },
};

/* ---- calls ------------------------------------------------------------------------------------- */
/* In a type that it has no unit for, an accelerator computes as fast as in the nearest that it has. */
static peak_kind unit_for(const cost_model *k, dtype dt) {
    const double *peak = k->gpu->peak;
    peak_kind half = dt == DT_F16 ? PEAK_FP16 : PEAK_BF16,
              other = dt == DT_F16 ? PEAK_BF16 : PEAK_FP16;
    if (isnan(peak[half])) half = other;
    if (dt_is_fp8(dt) && !isnan(peak[PEAK_FP8])) return PEAK_FP8;
    if (dt == DT_F32) half = k->tf32 && !isnan(peak[PEAK_TF32]) ? PEAK_TF32 : PEAK_FP32;
    return isnan(peak[half]) ? PEAK_FP32 : half;
}

/* @return the rate of the largest GEMMs in this type. */
static double large_gemm_rate(const cost_model *k, dtype dt) {
    peak_kind unit = unit_for(k, dt);
    double best = k->gpu->gemm[unit];
    if (isnan(best)) best = k->gpu->peak[unit] * plan_constants.gemm_peak[unit == PEAK_FP8];
    if (k->as) best *= k->as->gemm;
    return best * plan_constants.gemm_sustained * pow(k->gpu->power, plan_constants.power) *
           k->share;
}

static double copy_seconds(const cost_model *k, double bytes) {
    return bytes / (k->gpu->memory_bandwidth * plan_constants.memory * k->share);
}

static double saturation_of(double size, double half) { return size / (size + half); }

/* Of a[m,k] b[k,n] = c[m,n] from element counts, whichever are transposed. */
static double gemm_share(double half, double a, double b, double c) {
    return saturation_of(sqrt(a * c / b), half) * saturation_of(sqrt(a * b / c), half) *
           saturation_of(sqrt(b * c / a), half);
}

/* Scores in memory: GEMMs over all of them, though the mask leaves half, and passes over the scores of every head.
 * @param flops of causal attention */
static double stored_attention_seconds(const cost_model *k, const op_call *c, double flops,
                                       bool backward) {
    double dim = c->attr.heads.dim, scores = flops / (backward ? 5 : 2) / dim;
    double gemm = large_gemm_rate(k, k->dt) * saturation_of(dim, plan_constants.gemm_half / 2);
    double seconds =
        2 * flops / gemm + copy_seconds(k, scores * plan_constants.stored_scores[backward]);
    if (backward && k->selective) seconds += stored_attention_seconds(k, c, flops * 2 / 5, false);
    return seconds;
}

/* Rates of our kernels for a ring's blocks as shares of attention's, forward and backward: bench/gpu/attention on an
 * H200, 8k and 32k keys, heads of 128. */
static const double block_share[2] = { 1.03, 0.9 };

/* A ring's blocks run at the kernel's rate for the keys of one block, whatever type the running result has. */
static double attention_seconds(const cost_model *k, const op_call *c, op_cost cost, double flops) {
    bool backward = cost == COST_ATTENTION_BWD || cost == COST_ATTENTION_BLOCK_BWD;
    bool block = cost == COST_ATTENTION_BLOCK || cost == COST_ATTENTION_BLOCK_BWD;
    attention_kernel kernel = k->as ? k->as->attention : ATTENTION_OURS;
    if (kernel == ATTENTION_STORED) return stored_attention_seconds(k, c, flops, backward);
    const attention_efficiency *e = &attention_kernels[kernel][backward];
    int seq = c->attr.heads.seq;
    double keys = block || !seq ? (double)c->in[block ? 2 : 0].dim[0] : seq,
           rate = k->gpu->attention[kernel];
    if (isnan(rate) || k->dt == DT_F32) rate = e->peak * k->gpu->peak[unit_for(k, k->dt)];
    rate *= pow(k->gpu->power, plan_constants.power) * k->share;
    if (block && kernel == ATTENTION_OURS) rate *= block_share[backward];
    return flops /
           (rate * saturation_of(keys, e->keys) * saturation_of(c->attr.heads.dim, e->head));
}

/* The type that the call's GEMMs multiply: the loss quantizes its operands itself. */
static dtype gemm_type(const op_call *c) { return c->attr.ce.fp8 ? DT_E4M3 : c->in[0].dt; }

/* Share of the large GEMMs' rate at which the call's operations run. */
static double compute_share(const cost_model *k, const op_call *c, op_cost cost) {
    static const double hopper_bf16 = 989.4e12;
    /* A GEMM's fill and drain take a constant time, which is more of it the faster the unit is: half of the rate is lost at
     * dims that grow with the cube root of the unit's. */
    double half =
        plan_constants.gemm_half * cbrt(k->gpu->peak[unit_for(k, gemm_type(c))] / hopper_bf16);
    const tensor *in = c->in, *out = c->out;
    switch (cost) {
    case COST_GROUPED: {
        double experts = MAX(1, c->attr.experts), rows = (double)in[0].dim[0] / experts;
        double wide = (double)in[0].dim[1], other = (double)tensor_count(&in[1]) / experts / wide;
        if (op_flags(c->op) & OPF_WEIGHT_GRAD) other = (double)in[1].dim[1];
        return gemm_share(half, rows * wide, wide * other, rows * other);
    }
    case COST_ORTHOGONALIZE: { /* most of its GEMMs are of the matrix and a square of its shorter side */
        double rows = (double)out[0].dim[out[0].ndim - 2],
               cols = (double)out[0].dim[out[0].ndim - 1];
        double side = MIN(rows, cols);
        return gemm_share(half, rows * cols, side * side, rows * cols);
    }
    case COST_LOSS: {
        double n = (double)in[0].dim[0], d = (double)in[0].dim[1], v = (double)in[1].dim[0];
        return gemm_share(half, n * d, d * v, n * v);
    }
    default:
        return gemm_share(half, (double)tensor_count(&in[0]), (double)tensor_count(&in[1]),
                          (double)tensor_count(&out[0]));
    }
}

static double price_call(void *ctx, const char *program, const op_call *c) {
    const cost_model *k = ctx;
    (void)program;
    op_cost cost = op_row_of(c->op)->cost;
    op_work w = ops_work(c);
    const call_cost *measured = call_cost_find(k->gpu, c->op, k->dt);
    if (measured) {
        call_shape shape = call_shape_of(c);
        return call_cost_seconds(measured, &shape, k->share);
    }
    double alike = k->gpu->shared ? call_cost_of_kind(k->gpu, c, k->dt, k->share) : NAN;
    if (!isnan(alike)) return alike;
    if (cost == COST_LOSS) {
        double each =
            k->as ? k->as->logit_bytes : plan_constants.logit_passes * (double)dt_size(c->in[1].dt);
        w.bytes += each * (double)c->in[0].dim[0] * (double)c->in[1].dim[0];
    } else if (k->as && op_row_of(c->op)->bwd == BWD_LOSS) { /* of logits that tp ranks share */
        w.bytes = k->as->logit_bytes * (double)tensor_count(&c->in[0]);
    } else if (k->as && w.flops == 0 && !(op_flags(c->op) & OPF_UPDATE)) {
        w.bytes *= plan_constants.passes[k->as->passes];
    }
    double bytes = copy_seconds(k, w.bytes), flops = 0;
    dtype type = c->in[0].dt == DT_NONE ? c->out[0].dt : gemm_type(c);
    bool attends = cost >= COST_ATTENTION && cost <= COST_ATTENTION_BLOCK_BWD;
    if (attends)
        flops = attention_seconds(k, c, cost, w.flops);
    else if (w.flops > 0)
        flops = w.flops / (large_gemm_rate(k, type) * compute_share(k, c, cost));
    return cost == COST_LOSS ? flops + bytes : MAX(plan_constants.call, MAX(flops, bytes));
}

static double price_fetch(void *ctx, double bytes) {
    const cost_model *k = ctx;
    return bytes / k->gpu->host;
}

/* Ranks that share a CPU communicate on the cores that they compute on: nothing is hidden. */
sim_costs cost_model_of(const accelerator *gpu, const config *cfg, const run_target *on, int ranks,
                        cost_model *k) {
    *k = (cost_model){ .gpu = gpu,
                       .tf32 = cfg->precision.tf32,
                       .dt = train_layout(cfg, on->ops, cfg->training.seq_len).dt,
                       .share = gpu->shared ? 1.0 / MAX(1, MIN(ranks, gpu->per_node)) : 1,
                       .fp8 = cfg->precision.fp8 != FP8_OFF,
                       .selective = cfg->activation_checkpoint.mode == CFG_AC_SELECTIVE,
                       .as = on->as,
                       .algorithm = cfg->comm.nccl_algorithm };
    bool late = on->as && on->as->late_gradients && cfg->parallelism.pipeline_parallel_degree > 1;
    return (sim_costs){ .call = price_call,
                        .move = price_move,
                        .links = links_of_move,
                        .fetch = price_fetch,
                        .interference = gpu->shared ? 1 : plan_constants.interference,
                        .launch = on->as ? on->as->launch : 0,
                        .late = late,
                        .ctx = k };
}

/* ---- a step ------------------------------------------------------------------------------------ */
double update_seconds(const optimizer *o, const mesh *m, const sim_costs *costs) {
    const prog *p;
    double sum = 0;
    for (int i = 0; (p = optim_next_program(o, &i)) != NULL;) sum += sim_program(p, m, costs);
    return sum;
}

/* @return the seconds to read a step's tokens from the disk of each node. Ranks that share sequences on a node read them once. */
static double read_seconds(const train_outline *o, const accelerator *gpu, const mesh *m) {
    axis_set rows = model_row_axes(o->m);
    double groups = mesh_span(m, rows);
    double bytes = (double)o->step_tokens * bytes_per_token(model_conf(o->m)->vocab);
    double on_node = gpu->per_node / (double)mesh_span(m, AXES_ALL & ~rows & ~AXES_STAGES);
    double share = MAX(1, MIN(groups, on_node)) / groups;
    return share * bytes / gpu->disk;
}

/* Plays the step of a run that is laid out. */
static err play_outline(const config *cfg, const run_target *on, const accelerator *gpu,
                        const train_outline *o, const sim_watch *watch, step_time *out) {
    cost_model k;
    const mesh *m = &model_lay(o->m)->mesh;
    sim_costs costs = cost_model_of(gpu, cfg, on, mesh_world(m), &k);
    k.experts_per_token = (double)model_conf(o->m)->experts_per_token;
    TRY(sim_chain(o->train, m, &costs, watch, &out->run));
    out->update = out->run.update;
    double moved = 2 * (double)plan_offloaded_bytes(o->p) / gpu->host; /* beside the next step */
    moved += 2 * (double)o->micros * other_system_moves(on->as, o) / gpu->host;
    out->stragglers = straggler_seconds(gpu, out->run.seconds, mesh_world(m));
    out->seconds = out->run.seconds + out->stragglers + out->update;
    out->host = MAX(0, moved - out->seconds);
    out->seconds += out->host;
    out->data = MAX(0, read_seconds(o, gpu, m) - out->seconds);
    out->seconds += out->data;
    out->tokens_per_second = (double)o->step_tokens / out->seconds;
    double rate = out->tokens_per_second / mesh_world(m);
    out->flops_causal = rate * model_flops(model_conf(o->m), o->seq, true);
    out->flops_full = rate * model_flops(model_conf(o->m), o->seq, false);
    out->flops_counted = rate * other_system_flops(on->as, model_conf(o->m), o->seq);
    return OK;
}

static err lay_out_and_play(const config *cfg, const run_target *on, const accelerator *gpu,
                            const sim_watch *watch, step_time *time, capacity *memory) {
    train_outline o;
    outline_options how = { on->ops, on->device ? 1 : 0, on->ranks, 0 };
    *time = (step_time){ 0 };
    err e = train_outline_open(cfg, &how, &o);
    if (!e) e = play_outline(cfg, on, gpu, &o, watch, time);
    if (!e && memory) capacity_of_outline(&o, on, 0, memory);
    train_outline_free(&o);
    return e;
}

err step_simulate(const config *cfg, const run_target *on, const accelerator *gpu,
                  const sim_watch *watch, step_time *out) {
    return lay_out_and_play(cfg, on, gpu, watch, out, NULL);
}

err step_of_first_stage(const config *cfg, const run_target *on, const accelerator *gpu,
                        step_time *time, capacity *memory) {
    return lay_out_and_play(cfg, on, gpu, NULL, time, memory);
}
