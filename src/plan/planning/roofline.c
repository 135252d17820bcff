/* What ops and communications cost on an accelerator: a roofline for calls, algorithms by message size for
 * collectives. One set of constants holds for every accelerator, model and layout; no published run has one of
 * its own. Efficiencies of calls started from shares of a data sheet's peak that kernels reach on an H200 (GEMMs
 * of 8192 and of transformer shapes, cuDNN's attention, copies), those of links from what collectives reach on
 * NVLink and InfiniBand; they were adjusted within that range, once for all runs that test_published lists. */
#include "planning_internal.h"

#include <math.h>
#include <string.h>

#include "ops/op_table.h"

/* A GEMM of m x n x k runs at `large` of the peak, times d / (d + half) for each of its three dims. */
typedef struct gemm_efficiency {
    double large, half;
} gemm_efficiency;
static const gemm_efficiency gemm_wide = { 0.82, 224 }, gemm_fp8 = { 0.81, 320 };

/* Attention, counted causally, at `large` times T / (T + keys) times D / (D + head): sequence, head size. */
typedef struct attention_efficiency {
    double large, keys, head;
} attention_efficiency;
static const attention_efficiency attention_forward = { 0.715, 600, 30 },
                                  attention_backward = { 0.535, 900, 17 };

static const double memory_share = 0.85;  /* of the memory's bandwidth */
static const double call_seconds = 3e-6;  /* at least, for any kernel */
static const double logit_passes = 4;     /* over the logits of a chunk, in the loss */
static const double link_share = 0.82;    /* of a link's bandwidth, in one direction */
static const double network_share = 0.90; /* of the network's */
static const double tree_share = 0.70;    /* of the bandwidth, for algorithms of few steps */
static const double link_hop = 2e-6, network_hop = 8e-6; /* seconds per step of an algorithm */
static const double move_seconds = 10e-6;                /* to start a collective */
static const double interference = 0.20;                 /* sim_costs.interference */

static const double rank_deviation = 0.01; /* standard deviation of ranks' speeds, as a share */

/* Megatron-LM (core/tensor_parallel/cross_entropy.py) widens logits to fp32 and computes maximum, difference,
 * exponential, sum, quotient and, backward, product and narrowing as a kernel each: 6 + 4 + 8 + 8 + 4 + 8 + 8 + 6 bytes
 * for each logit. */
static const other_system other_systems[] = { { "megatron-lm", 52 } };

err other_system_find(const char *name, const other_system **out) {
    for (size_t i = 0; i < COUNT_OF(other_systems); i++)
        if (!strcmp(other_systems[i].name, name)) {
            *out = &other_systems[i];
            return OK;
        }
    return err_hint(ERR_USAGE("--as: \"%.40s\" is not a system whose steps are known", name),
                    "--as %s", other_systems[0].name);
}

/* ---- calls ------------------------------------------------------------------------------------- */
/* In a type that it has no unit for, an accelerator computes as fast as in the nearest that it has. */
static double peak_of(const cost_model *k, dtype dt) {
    const double *peak = k->gpu->peak;
    double fp16 = isnan(peak[PEAK_FP16]) ? peak[PEAK_BF16] : peak[PEAK_FP16];
    double bf16 = isnan(peak[PEAK_BF16]) ? fp16 : peak[PEAK_BF16];
    double fp32 = k->tf32 && !isnan(peak[PEAK_TF32]) ? peak[PEAK_TF32] : peak[PEAK_FP32];
    double rate = dt == DT_F32 ? fp32 : dt == DT_F16 ? fp16 : bf16;
    if (dt_is_fp8(dt) && !isnan(peak[PEAK_FP8])) rate = peak[PEAK_FP8];
    double nearest = isnan(bf16) ? fp32 : bf16;
    return (isnan(rate) ? nearest : rate) * k->gpu->power * k->share;
}

static double copy_seconds(const cost_model *k, double bytes) {
    return bytes / (k->gpu->memory_bandwidth * memory_share * k->share);
}

static double saturation_of(double size, double half) { return size / (size + half); }

/* Of a[m,k] b[k,n] = c[m,n] from element counts, whichever are transposed. */
static double gemm_share(const gemm_efficiency *e, double a, double b, double c) {
    return e->large * saturation_of(sqrt(a * c / b), e->half) *
           saturation_of(sqrt(a * b / c), e->half) * saturation_of(sqrt(b * c / a), e->half);
}

static double attention_share(const attention_efficiency *e, const op_call *c) {
    double keys = c->attr.heads.seq ? c->attr.heads.seq : (double)c->in[0].dim[0];
    return e->large * saturation_of(keys, e->keys) * saturation_of(c->attr.heads.dim, e->head);
}

/* Share of the peak at which the call's operations run. */
static double compute_share(const op_call *c, op_cost cost) {
    const gemm_efficiency *e = dt_is_fp8(c->in[0].dt) ? &gemm_fp8 : &gemm_wide;
    const tensor *in = c->in, *out = c->out;
    switch (cost) {
    case COST_ATTENTION:
    case COST_ATTENTION_BLOCK: return attention_share(&attention_forward, c);
    case COST_ATTENTION_BWD:
    case COST_ATTENTION_BLOCK_BWD: return attention_share(&attention_backward, c);
    case COST_GROUPED: {
        double experts = MAX(1, c->attr.experts), rows = (double)in[0].dim[0] / experts;
        double wide = (double)in[0].dim[1], other = (double)tensor_count(&in[1]) / experts / wide;
        if (op_flags(c->op) & OPF_WEIGHT_GRAD) other = (double)in[1].dim[1];
        return gemm_share(e, rows * wide, wide * other, rows * other);
    }
    case COST_ORTHOGONALIZE: { /* most of its GEMMs are of the matrix and a square of its shorter side */
        double rows = (double)out[0].dim[out[0].ndim - 2],
               cols = (double)out[0].dim[out[0].ndim - 1];
        double side = MIN(rows, cols);
        return gemm_share(e, rows * cols, side * side, rows * cols);
    }
    case COST_LOSS: {
        double n = (double)in[0].dim[0], d = (double)in[0].dim[1], v = (double)in[1].dim[0];
        return gemm_share(e, n * d, d * v, n * v);
    }
    default:
        return gemm_share(e, (double)tensor_count(&in[0]), (double)tensor_count(&in[1]),
                          (double)tensor_count(&out[0]));
    }
}

/* @return NULL: it has not been measured. */
static const call_cost *find_call_cost(const cost_model *k, op_code op) {
    for (int i = 0; i < k->gpu->n_calls; i++)
        if (k->gpu->calls[i].op == op && k->gpu->calls[i].type == k->dt) return &k->gpu->calls[i];
    return NULL;
}

static double measured_seconds(const cost_model *k, const call_cost *m, const op_work *w) {
    return m->call + (m->flop * w->flops + m->byte * w->bytes + m->exp * w->exps) / k->share;
}

static double price_call(void *ctx, const char *program, const op_call *c) {
    const cost_model *k = ctx;
    (void)program;
    op_cost cost = op_row_of(c->op)->cost;
    op_work w = ops_work(c);
    const call_cost *measured = find_call_cost(k, c->op);
    if (measured) return measured_seconds(k, measured, &w);
    if (cost == COST_LOSS) {
        double each = k->as ? k->as->logit_bytes : logit_passes * (double)dt_size(c->in[1].dt);
        w.bytes += each * (double)c->in[0].dim[0] * (double)c->in[1].dim[0];
    } else if (k->as && op_row_of(c->op)->bwd == BWD_LOSS) { /* of logits that tp ranks share */
        w.bytes = k->as->logit_bytes * (double)tensor_count(&c->in[0]);
    }
    double bytes = copy_seconds(k, w.bytes), flops = 0;
    dtype type = c->in[0].dt == DT_NONE ? c->out[0].dt : c->in[0].dt;
    if (w.flops > 0) flops = w.flops / (peak_of(k, type) * compute_share(c, cost));
    return cost == COST_LOSS ? flops + bytes : MAX(call_seconds, MAX(flops, bytes));
}

/* ---- communication ----------------------------------------------------------------------------- */
/* How a group of ranks lies on hosts. */
typedef struct group_shape {
    double n, local, hosts; /* members; of one host; hosts */
} group_shape;

static group_shape shape_of_group(const cost_model *k, const mesh *m, axis_set axes) {
    group_shape g = { .n = mesh_span(m, axes), .local = 1 };
    int per_node = k->gpu->per_node;
    for (int a = 0; a < AX_COUNT; a++) {
        int stride = mesh_stride(m, (mesh_axis)a), size = mesh_size(m, (mesh_axis)a);
        if ((axes & AXIS(a)) && stride < per_node) g.local *= MIN(size, per_node / stride);
    }
    if (axes == AXES_TP_REP) g.local = MIN(g.n, per_node);
    g.local = MIN(g.local, g.n);
    g.hosts = ceil(g.n / g.local);
    return g;
}

/* Bytes per second through each member, all members sending at once. A host's members each have a network
 * adapter, and rings cross between hosts on all of them. */
static double group_bandwidth(const cost_model *k, const group_shape *g) {
    double link = k->gpu->link / 2 * link_share;
    double network = k->gpu->network * network_share * g->local;
    return g->hosts > 1 ? MIN(network, g->local > 1 ? link : network) : link;
}

/* A ring moves the least bytes, in as many steps as there are members; a tree the other way around. `moved`
 * is what a ring sends per member. */
static double ring_or_tree(const cost_model *k, const group_shape *g, double moved, double steps,
                           nccl_algorithm algorithm) {
    double rate = group_bandwidth(k, g);
    double ring_hops = (g->hosts - 1) * network_hop + (g->local - 1) * link_hop;
    double tree_hops = ceil(log2(g->hosts)) * network_hop + ceil(log2(g->local)) * link_hop;
    double ring = moved / rate + steps * ring_hops;
    double tree = moved / (rate * tree_share) + steps * tree_hops;
    switch (algorithm) {
    case NCCL_BY_RING: return move_seconds + ring;
    case NCCL_BY_TREE: return move_seconds + tree;
    case NCCL_BY_SIZE: break;
    }
    return move_seconds + MIN(ring, tree);
}

/* Everyone sends a part to everyone: most of it leaves the host. */
static double exchange_seconds(const cost_model *k, const group_shape *g, double bytes) {
    double inside = bytes * (g->local - 1) / g->n, outside = bytes * (g->n - g->local) / g->n;
    double link = inside / (k->gpu->link / 2 * link_share);
    double network = outside / (k->gpu->network * network_share);
    return move_seconds + MAX(link, network) + (g->hosts > 1 ? network_hop : link_hop);
}

static double message_seconds(const cost_model *k, const group_shape *g, double bytes) {
    bool inside = g->hosts == 1;
    double rate = inside ? k->gpu->link / 2 * link_share : k->gpu->network * network_share;
    return move_seconds + bytes / rate + (inside ? link_hop : network_hop);
}

static double price_move(void *ctx, const mesh *m, const comm_move *move, double bytes) {
    const cost_model *k = ctx;
    group_shape g = shape_of_group(k, m, move->axes);
    double others = (g.n - 1) / g.n;
    if (g.n <= 1) return 0;
    switch (comm_kind(move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX: return ring_or_tree(k, &g, 2 * others * bytes, 2, k->algorithm);
    case MOVE_ALL_GATHER:
    case MOVE_REDUCE_SCATTER: return ring_or_tree(k, &g, others * bytes, 1, NCCL_BY_SIZE);
    case MOVE_ALL_TO_ALL:
    case MOVE_ROWS: return exchange_seconds(k, &g, bytes);
    case MOVE_SHIFT:
    case MOVE_SEND:
    case MOVE_RECV: return message_seconds(k, &g, bytes);
    default: return 0;
    }
}

static double price_fetch(void *ctx, double bytes) {
    const cost_model *k = ctx;
    return bytes / k->gpu->host;
}

sim_costs cost_model_of(const accelerator *gpu, const config *cfg, const run_target *on, int ranks,
                        cost_model *k) {
    *k = (cost_model){ .gpu = gpu,
                       .tf32 = cfg->precision.tf32,
                       .dt = train_layout(cfg, on->ops, cfg->training.seq_len).dt,
                       .share = gpu->shared ? 1.0 / MAX(1, MIN(ranks, gpu->per_node)) : 1,
                       .as = on->as,
                       .algorithm = cfg->comm.nccl_algorithm };
    return (sim_costs){ price_call, price_move, price_fetch, interference, k };
}

/* ---- a step ------------------------------------------------------------------------------------ */
double update_seconds(const optimizer *o, const mesh *m, const sim_costs *costs) {
    const prog *list[OPTIM_PROGRAMS];
    return sim_programs(list, optim_programs(o, list), m, costs);
}

/* Seconds to read a step's tokens from the disk of each node. Ranks that share sequences on a node read them once. */
static double read_seconds(const train_outline *o, const accelerator *gpu, const mesh *m) {
    double groups = mesh_span(m, AXES_ROWS);
    double bytes = (double)o->step_tokens * bytes_per_token(model_conf(o->m)->vocab);
    double on_node = gpu->per_node / (mesh_size(m, AX_TP) * (double)mesh_size(m, AX_CP));
    double share = MAX(1, MIN(groups, on_node)) / groups;
    return share * bytes / gpu->disk;
}

err step_simulate(const config *cfg, const run_target *on, const accelerator *gpu,
                  const sim_watch *watch, step_time *out) {
    train_outline o;
    cost_model k;
    outline_options how = { on->ops, on->device ? 1 : 0, on->ranks, 0 };
    sim_costs costs = { 0 };
    *out = (step_time){ 0 };
    err e = train_outline_open(cfg, &how, &o);
    const mesh *m = e ? NULL : &model_lay(o.m)->mesh;
    if (!e) costs = cost_model_of(gpu, cfg, on, mesh_world(m), &k);
    if (!e) e = sim_chain(o.train, m, &costs, watch, &out->run);
    if (!e) {
        out->update = out->run.update;
        double moved = 2 * (double)plan_offloaded_bytes(o.p) / gpu->host; /* beside the next step */
        /* every step waits for its slowest rank: the largest of that many normal deviates, about */
        out->stragglers = out->run.seconds * rank_deviation * sqrt(2 * log(mesh_world(m)));
        out->seconds = out->run.seconds + out->stragglers + out->update;
        out->host = MAX(0, moved - out->seconds);
        out->seconds += out->host;
        out->data = MAX(0, read_seconds(&o, gpu, m) - out->seconds);
        out->seconds += out->data;
        out->tokens_per_second = (double)o.step_tokens / out->seconds;
        double rate = out->tokens_per_second / mesh_world(m);
        out->flops_causal = rate * model_flops(model_conf(o.m), o.seq, true);
        out->flops_full = rate * model_flops(model_conf(o.m), o.seq, false);
    }
    train_outline_free(&o);
    return e;
}
