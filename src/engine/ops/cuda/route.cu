/* Routing of tokens to experts, in kernels that a CUDA graph can hold: nothing is read by the host.
 *
 *     choose_experts   a warp per token: scores, the best K, weights; `row` holds the experts, until
 *                      `number_rows` puts rows there
 *     count_choices    a block per sequence: choices per expert
 *     sum_offsets      one block: the first row of every (expert, sequence)
 *     number_rows      a warp per sequence, in order of tokens: rows, and which choices are dropped
 *
 * Backward counts again and then has a warp per token. Sums over experts are by warp, counts are integers:
 * deterministic. Moves logits once per pass; the rest is small.
 *
 * Workspace: | chosen [sequences, E] | first [sequences, E] | dropped [sequences] |, i32 */
#include "device.cuh"
#include "ops/op_table.h"
#include "ops/route.h"

#include <math.h>

enum { WARPS = 4, THREADS = 256 };

struct route_args {
    route_sizes s;
    bool sigmoid, normalize, padded;
    float scale, balance, z;
    int groups, group_limit;
    bool group_best;
    const float *logits, *bias, *dweight;
    float *weight, *aux, *dlogits, *load;
    bool add;
    int32_t *row, *source, *offset, *chosen, *first, *dropped;
    const step_block *step;
    route_ranks ranks; /* `sequences` are chunks of them where ranks share them */
};

static __device__ __forceinline__ int64_t sequence_end(const route_args &a, int64_t b) {
    int64_t end = (b + 1) * a.s.seq;
    return end < a.s.n ? end : a.s.n;
}

/* Choices of an expert in the whole sequence that unit b belongs to, and of all experts there. */
static __device__ __forceinline__ float chosen_of(const route_args &a, int64_t b, int64_t e) {
    return (float)(a.ranks.count ? route_choices(&a.ranks, b, e, true)
                                 : a.chosen[b * a.s.experts + e]);
}
static __device__ __forceinline__ float choices_of(const route_args &a, int64_t b) {
    int64_t units = a.ranks.count ? a.ranks.chunks * a.ranks.ranks : 1;
    return (float)(a.s.k * units * (sequence_end(a, b) - b * a.s.seq));
}

/* ---- one token, by a warp -------------------------------------------------------------------------- */
/* p[E] in shared memory: the scores. @return log sum exp of the logits. */
static __device__ float scores_of(const route_args &a, int64_t t, float *p) {
    const float *x = a.logits + t * a.s.experts;
    int lane = threadIdx.x % WARP;
    float most = -INFINITY, sum = 0;
    for (int64_t e = lane; e < a.s.experts; e += WARP) most = fmaxf(most, x[e]);
    most = warp_max(most);
    for (int64_t e = lane; e < a.s.experts; e += WARP) sum += expf(x[e] - most);
    sum = warp_sum(sum);
    for (int64_t e = lane; e < a.s.experts; e += WARP)
        p[e] = a.sigmoid ? 1 / (1 + expf(-x[e])) : expf(x[e] - most) / sum;
    __syncwarp();
    return most + logf(sum);
}

/* The groups whose experts the token may choose, a bit each, to every lane. */
static __device__ uint64_t eligible_groups(const route_args &a, const float *p) {
    float score[ROUTE_MAX_GROUPS];
    if (a.groups <= 1) return ~(uint64_t)0;
    int64_t each = a.s.experts / a.groups;
    for (int g = 0; g < a.groups; g++) {
        route_best best = { -INFINITY, -INFINITY };
        for (int64_t e = g * each + threadIdx.x % WARP; e < (g + 1) * each; e += WARP)
            best = route_better(best, p[e] + (a.bias ? a.bias[e] : 0));
        for (int o = WARP / 2; o; o >>= 1) {
            float first = __shfl_xor_sync(~0u, best.first, o);
            float second = __shfl_xor_sync(~0u, best.second, o);
            best = route_better(route_better(best, first), second);
        }
        score[g] = a.group_best ? best.first : best.first + best.second;
    }
    return route_best_groups(score, a.groups, a.group_limit);
}

/* The best expert of the eligible groups that is not among the first k chosen; ties go to the lower number. */
static __device__ int32_t best_expert(const route_args &a, const float *p, uint64_t eligible,
                                      const int32_t *chosen, int k) {
    int32_t each = (int32_t)a.s.experts / (a.groups > 1 ? a.groups : 1);
    float best = -INFINITY;
    int32_t at = INT32_MAX;
    for (int32_t e = threadIdx.x % WARP; e < (int32_t)a.s.experts; e += WARP) {
        float v = p[e] + (a.bias ? a.bias[e] : 0);
        bool before = !(eligible >> e / each & 1);
        for (int i = 0; i < k; i++) before |= chosen[i] == e;
        if (!before && (v > best || at == INT32_MAX)) best = v, at = e;
    }
    for (int o = WARP / 2; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, best, o);
        int32_t e = __shfl_xor_sync(~0u, at, o);
        if (e != INT32_MAX && (at == INT32_MAX || v > best || (v == best && e < at)))
            best = v, at = e;
    }
    return at;
}

static __device__ float weight_factor(const route_args &a, const float *p, const int32_t *expert) {
    float scale = a.scale > 0 ? a.scale : 1, sum = 0;
    if (!a.normalize) return scale;
    for (int i = 0; i < (int)a.s.k; i++) sum += p[expert[i]];
    return scale / fmaxf(sum, 1e-20f);
}

static __global__ void __launch_bounds__(WARPS *WARP) choose_experts(route_args a) {
    DYNAMIC_SHARED(float, shared);
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (t >= a.s.n) return;
    float *p = shared + threadIdx.x / WARP * a.s.experts;
    int32_t expert[ROUTE_MAX_K];
    int lane = threadIdx.x % WARP, k = (int)a.s.k;
    scores_of(a, t, p);
    uint64_t eligible = eligible_groups(a, p);
    for (int i = 0; i < k; i++) expert[i] = best_expert(a, p, eligible, expert, i);
    float by = weight_factor(a, p, expert);
    for (int i = 0; i < k; i++)
        if (i == lane) {
            a.row[t * k + i] = expert[i];
            if (a.weight) a.weight[t * k + i] = p[expert[i]] * by;
        }
}

/* ---- rows ------------------------------------------------------------------------------------------- */
/* Grid: a block per sequence. @param numbered rows are final, else experts */
static __global__ void __launch_bounds__(THREADS) count_choices(route_args a, bool numbered) {
    __shared__ int32_t sum[ROUTE_MAX_EXPERTS + 1];
    int64_t b = blockIdx.x, k = a.s.k;
    for (int64_t e = threadIdx.x; e <= a.s.experts; e += THREADS) sum[e] = 0;
    __syncthreads();
    for (int64_t i = b * a.s.seq * k + threadIdx.x; i < sequence_end(a, b) * k; i += THREADS) {
        int64_t e = numbered ? route_expert(a.row[i], a.offset, a.s.experts) : a.row[i];
        atomicAdd(&sum[e], 1);
        if (numbered && a.row[i] < 0) atomicAdd(&sum[a.s.experts], 1);
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.s.experts; e += THREADS)
        a.chosen[b * a.s.experts + e] = sum[e];
    if (threadIdx.x == 0) a.dropped[b] = sum[a.s.experts];
}

static __device__ __forceinline__ int32_t rows_taken(const route_args &a, int64_t b, int64_t e) {
    if (a.padded) return (int32_t)a.s.capacity;
    return route_taken(&a.ranks, a.s.capacity, b, e, a.chosen[b * a.s.experts + e]);
}

/* Grid: one block. */
static __global__ void __launch_bounds__(THREADS) sum_offsets(route_args a) {
    __shared__ int32_t total[ROUTE_MAX_EXPERTS];
    for (int64_t e = threadIdx.x; e < a.s.experts; e += THREADS) {
        int32_t n = 0;
        for (int64_t b = 0; b < a.s.seqs; b++) n += rows_taken(a, b, e);
        total[e] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t at = 0;
        for (int64_t e = 0; e < a.s.experts; e++) {
            int32_t n = total[e];
            a.offset[e] = total[e] = at;
            at += n;
        }
        a.offset[a.s.experts] = at;
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.s.experts; e += THREADS) {
        int32_t at = total[e];
        for (int64_t b = 0; b < a.s.seqs; b++) {
            a.first[b * a.s.experts + e] = at;
            at += rows_taken(a, b, e);
        }
    }
}

/* Grid: a warp per sequence, which takes 32 choices at a time. */
static __global__ void __launch_bounds__(WARP) number_rows(route_args a) {
    __shared__ int32_t used[ROUTE_MAX_EXPERTS], earlier[ROUTE_MAX_EXPERTS];
    int64_t b = blockIdx.x, end = sequence_end(a, b) * a.s.k;
    int lane = threadIdx.x;
    for (int64_t e = lane; e < a.s.experts; e += WARP) {
        used[e] = 0;
        earlier[e] = a.ranks.count ? route_choices(&a.ranks, b, e, false) : 0;
    }
    __syncwarp();
    for (int64_t from = b * a.s.seq * a.s.k; from < end; from += WARP) {
        int64_t i = from + lane;
        int32_t e = i < end ? a.row[i] : -1, before = 0, same = 0;
        for (int o = 0; o < WARP; o++) {
            bool equal = __shfl_sync(~0u, e, o) == e;
            before += equal && o < lane;
            same += equal;
        }
        int32_t at = e < 0 ? 0 : used[e] + before;
        __syncwarp();
        if (e >= 0 && before == same - 1) used[e] += same;
        __syncwarp();
        if (e < 0) continue;
        bool dropped = a.s.capacity && earlier[e] + at >= a.s.capacity;
        int32_t row = a.first[b * a.s.experts + e] + at;
        a.row[i] = dropped ? -1 - e : row;
        if (!dropped) a.source[row] = (int32_t)i;
    }
}

static __global__ void fill_rows(int32_t *p, int64_t n, int32_t v) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) p[i] = v;
}

static __global__ void __launch_bounds__(WARPS *WARP) aux_losses(route_args a) {
    DYNAMIC_SHARED(float, shared);
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (t >= a.s.n) return;
    int64_t b = t / a.s.seq;
    float *p = shared + threadIdx.x / WARP * a.s.experts, all = 0, sum = 0;
    float lse = scores_of(a, t, p);
    for (int64_t e = threadIdx.x % WARP; e < a.s.experts; e += WARP) {
        all += p[e];
        sum += p[e] * chosen_of(a, b, e);
    }
    all = warp_sum(all), sum = warp_sum(sum);
    float unit = (float)a.s.experts / choices_of(a, b);
    if (threadIdx.x % WARP == 0) a.aux[t] = a.balance * unit * sum / all + a.z * lse * lse;
}

/* ---- backward: the derivation is in cpu/route.c -------------------------------------------------------- */
static __global__ void __launch_bounds__(WARPS *WARP) token_gradients(route_args a) {
    DYNAMIC_SHARED(float, shared);
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, experts = a.s.experts;
    if (t >= a.s.n) return;
    int lane = threadIdx.x % WARP, k = (int)a.s.k;
    int64_t b = t / a.s.seq;
    float *p = shared + threadIdx.x / WARP * experts, lse = scores_of(a, t, p);
    float step_unit = a.step->loss_grad * (a.step->now.loss_scale > 0 ? a.step->now.loss_scale : 1);
    float per_choice = step_unit * a.balance * (float)experts / choices_of(a, b);
    int32_t expert[ROUTE_MAX_K];
    for (int i = 0; i < k; i++)
        expert[i] = (int32_t)route_expert(a.row[t * k + i], a.offset, experts);
    float factor = weight_factor(a, p, expert), scale = a.scale > 0 ? a.scale : 1, drawn = 0;
    for (int i = 0; a.normalize && i < k; i++)
        drawn += a.dweight[t * k + i] * p[expert[i]] * factor / scale;
    float all = 0, mean = 0, dot = 0;
    for (int64_t e = lane; e < experts; e += WARP) {
        all += p[e];
        mean += p[e] * per_choice * chosen_of(a, b, e);
    }
    all = warp_sum(all);
    mean = warp_sum(mean) / all;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t e = lane; e < experts; e += WARP) {
            float ds = (per_choice * chosen_of(a, b, e) - mean) / all;
            for (int i = 0; i < k; i++)
                if (expert[i] == e) ds += factor * (a.dweight[t * k + i] - drawn);
            if (pass == 0) {
                dot += p[e] * ds;
                continue;
            }
            float slope = a.sigmoid ? p[e] * (1 - p[e]) * ds : p[e] * (ds - dot);
            float share = a.sigmoid ? expf(a.logits[t * experts + e] - lse) : p[e];
            a.dlogits[t * experts + e] = slope + 2 * step_unit * a.z * lse * share;
        }
        if (pass == 0) dot = warp_sum(dot);
    }
}

/* Grid: one block. */
static __global__ void __launch_bounds__(THREADS) sum_load(route_args a) {
    for (int64_t e = threadIdx.x; e <= a.s.experts; e += THREADS) {
        int64_t sum = 0;
        for (int64_t b = 0; b < a.s.seqs; b++)
            sum += e < a.s.experts ? a.chosen[b * a.s.experts + e] : a.dropped[b];
        a.load[e] = (a.add ? a.load[e] : 0) + (float)sum;
    }
}

/* ---- the bias. Grid: one block ---------------------------------------------------------------------- */
static __global__ void __launch_bounds__(THREADS)
    update_bias(const float *load, float *bias, int64_t experts, float rate,
                const step_block *step) {
    __shared__ float mean;
    if (step->now.skip) return;
    if (threadIdx.x == 0) {
        mean = 0;
        for (int64_t e = 0; e < experts; e++) mean += load[e];
        mean /= (float)experts;
    }
    __syncthreads();
    for (int64_t e = threadIdx.x; e < experts; e += THREADS)
        bias[e] += rate * (float)((load[e] < mean) - (load[e] > mean));
}

static void cuda_update_router_bias(const op_call *c) {
    LAUNCH(cuda_of(c), { 1, THREADS }, update_bias, (const float *)c->in[0].data,
           (float *)c->out[0].data, c->in[0].dim[0] - 1, c->attr.update.lr_mul, c->run->step);
}

/* ---- calls ----------------------------------------------------------------------------------------------- */
static route_args args_of(const op_call *c, const tensor *logits, const tensor *row, int64_t rows) {
    route_args a = {};
    a.s = route_sizes_of(logits->dim[0], logits->dim[1], row->dim[1], rows, c->attr.route.seq,
                         c->attr.route.capacity);
    BUG_IF(a.s.experts > ROUTE_MAX_EXPERTS || a.s.k > ROUTE_MAX_K || a.s.k > a.s.experts);
    a.sigmoid = c->attr.route.sigmoid;
    a.normalize = c->attr.route.normalize;
    a.padded = c->attr.route.padded;
    a.groups = c->attr.route.groups;
    a.group_limit = c->attr.route.group_limit;
    a.group_best = c->attr.route.group_best;
    BUG_IF(a.groups > ROUTE_MAX_GROUPS);
    a.scale = c->attr.route.scale;
    a.balance = c->attr.route.balance;
    a.z = c->attr.route.z;
    a.logits = (const float *)logits->data;
    a.row = (int32_t *)row->data;
    a.chosen = (int32_t *)c->run->workspace;
    a.first = a.chosen + a.s.seqs * a.s.experts;
    a.dropped = a.first + a.s.seqs * a.s.experts;
    a.step = c->run->step;
    return a;
}

static launch_shape by_token(const route_args &a) {
    return { blocks_for(a.s.n, WARPS), WARPS * WARP, WARPS * (size_t)a.s.experts * sizeof(float) };
}

static void cuda_route(const op_call *c) {
    cuda_context *x = cuda_of(c);
    route_args a = args_of(c, &c->in[0], &c->out[1], c->out[2].dim[0]);
    a.ranks = route_ranks_of(c, &c->in[2], a.s.experts);
    a.bias = (const float *)c->in[1].data;
    a.weight = (float *)c->out[0].data;
    a.source = (int32_t *)c->out[2].data;
    a.offset = (int32_t *)c->out[3].data;
    a.aux = (float *)c->out[4].data;
    unsigned seqs = (unsigned)a.s.seqs;
    LAUNCH(x, { blocks_for(a.s.rows, THREADS), THREADS }, fill_rows, a.source, a.s.rows, -1);
    LAUNCH(x, by_token(a), choose_experts, a);
    LAUNCH(x, { seqs, THREADS }, count_choices, a, false);
    LAUNCH(x, { 1, THREADS }, sum_offsets, a);
    LAUNCH(x, { seqs, WARP }, number_rows, a);
    if (a.aux) LAUNCH(x, by_token(a), aux_losses, a);
}

/* Chunks are in the order of the tokens, counts by chunk first. */
static __global__ void __launch_bounds__(THREADS)
    order_counts(route_args a, int32_t *to, int64_t chunks, int64_t seqs) {
    int64_t u = blockIdx.x, at = u % chunks * seqs + u / chunks;
    for (int64_t e = threadIdx.x; e < a.s.experts; e += THREADS)
        to[at * a.s.experts + e] = a.chosen[u * a.s.experts + e];
}

/* Workspace: as of routing, then row [N, K]. */
static void cuda_route_count(const op_call *c) {
    cuda_context *x = cuda_of(c);
    const tensor *count_out = &c->out[0];
    tensor row = {};
    row.dim[1] = c->attr.route.k;
    route_args a = args_of(c, &c->in[0], &row, 0);
    a.row = a.dropped + a.s.seqs;
    a.bias = (const float *)c->in[1].data;
    unsigned units = (unsigned)a.s.seqs;
    BUG_IF(a.s.seqs != count_out->dim[0] * count_out->dim[1]);
    LAUNCH(x, by_token(a), choose_experts, a);
    LAUNCH(x, { units, THREADS }, count_choices, a, false);
    LAUNCH(x, { units, THREADS }, order_counts, a, (int32_t *)count_out->data, count_out->dim[0],
           count_out->dim[1]);
}

static void cuda_route_bwd(const op_call *c) {
    cuda_context *x = cuda_of(c);
    route_args a = args_of(c, &c->in[1], &c->in[2], 0);
    a.ranks = route_ranks_of(c, &c->in[4], a.s.experts);
    a.dweight = (const float *)c->in[0].data;
    a.offset = (int32_t *)c->in[3].data;
    a.dlogits = (float *)c->out[0].data;
    a.load = (float *)c->out[1].data;
    a.add = c->accumulate & 2;
    LAUNCH(x, { (unsigned)a.s.seqs, THREADS }, count_choices, a, true);
    LAUNCH(x, by_token(a), token_gradients, a);
    if (a.load) LAUNCH(x, { 1, THREADS }, sum_load, a);
}

static size_t cuda_route_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *logits = c->op == OP_ROUTE_BWD ? &c->in[1] : &c->in[0];
    route_sizes s = route_sizes_of(logits->dim[0], logits->dim[1], 1, 0, c->attr.route.seq, 0);
    int64_t rows = c->op == OP_ROUTE_COUNT ? s.n * c->attr.route.k : 0;
    return (size_t)(s.seqs * (2 * s.experts + 1) + rows) * sizeof(int32_t);
}

KERNEL(ROUTE, cuda_route, cuda_route_workspace, ATTRS_ROUTE);
KERNEL(ROUTE_BWD, cuda_route_bwd, cuda_route_workspace, ATTRS_ROUTE);
KERNEL(ROUTE_COUNT, cuda_route_count, cuda_route_workspace, ATTRS_ROUTE_COUNT);
KERNEL(UPDATE_ROUTER_BIAS, cuda_update_router_bias, NULL, ATTRS_UPDATE);
