/* Routing of tokens to experts: scores, the best K, the row of every choice, and the gradient of the
 * weights and of the auxiliary losses. Work is split by sequence, since capacity and balance are per
 * sequence: deterministic for any number of threads. Experts whose scores are equal go by their number. */
#include "chunks.h"
#include "ops/op_table.h"
#include "ops/route.h"

#include <math.h>
#include <string.h>

typedef struct route_job {
    route_sizes s;
    op_attr attr;
    const float *logits, *bias, *dweight; /* [N,E], [E+1] or NULL, [N,K] */
    float *weight, *aux, *dlogits;        /* [N,K], [N] or NULL, [N,E] */
    int32_t *row, *source, *offset;       /* [N,K], [M], [E+1] */
    int32_t *taken;                       /* workspace [sequences, E]: choices */
    int32_t *dropped;                     /* workspace [sequences] */
    route_ranks ranks; /* `sequences` are chunks of them where ranks share them */
    float unit;        /* of the auxiliary gradient */
} route_job;

static span tokens_of(const route_job *j, int64_t b) { return span_of(b, j->s.seq, j->s.n); }

/* ---- scores ------------------------------------------------------------------------------------ */
/* @param p the scores: probabilities, or sigmoids. @return log sum exp of the logits. */
static float scores_of(const route_job *j, const float *logits, float *p) {
    int64_t experts = j->s.experts;
    float most = logits[0], sum = 0;
    for (int64_t e = 1; e < experts; e++) most = MAX(most, logits[e]);
    for (int64_t e = 0; e < experts; e++) sum += p[e] = expf(logits[e] - most);
    for (int64_t e = 0; e < experts; e++)
        p[e] = j->attr.route.sigmoid ? 1 / (1 + expf(-logits[e])) : p[e] / sum;
    return most + logf(sum);
}

/* The groups whose experts a token may choose, a bit each. */
static uint64_t eligible_groups(const route_job *j, const float *p) {
    int groups = j->attr.route.groups;
    int64_t each = j->s.experts / MAX(groups, 1);
    float score[ROUTE_MAX_GROUPS];
    if (groups <= 1) return ~(uint64_t)0;
    for (int g = 0; g < groups; g++) {
        route_best best = { -INFINITY, -INFINITY };
        for (int64_t e = g * each; e < (g + 1) * each; e++)
            best = route_better(best, p[e] + (j->bias ? j->bias[e] : 0));
        score[g] = j->attr.route.group_best ? best.first : best.first + best.second;
    }
    return route_best_groups(score, groups, j->attr.route.group_limit);
}

static void choose_experts(const route_job *j, const float *p, int32_t *expert) {
    int64_t experts = j->s.experts, each = experts / MAX(j->attr.route.groups, 1);
    uint64_t eligible = eligible_groups(j, p);
    for (int64_t k = 0; k < j->s.k; k++) {
        float best = -INFINITY;
        int32_t at = -1;
        for (int64_t e = 0; e < experts; e++) {
            float v = p[e] + (j->bias ? j->bias[e] : 0);
            bool before = !(eligible >> e / each & 1);
            for (int64_t i = 0; i < k; i++) before |= expert[i] == (int32_t)e;
            if (!before && (v > best || at < 0)) best = v, at = (int32_t)e;
        }
        expert[k] = at;
    }
}

static float weight_factor(const route_job *j, const float *p, const int32_t *expert) {
    float scale = j->attr.route.scale > 0 ? j->attr.route.scale : 1, sum = 0;
    if (!j->attr.route.normalize) return scale;
    for (int64_t k = 0; k < j->s.k; k++) sum += p[expert[k]];
    return scale / MAX(sum, 1e-20f);
}

/* ---- forward ------------------------------------------------------------------------------------- */
/* Chooses, and counts what each expert takes of the sequence. `row` holds the expert of each
 * choice until rows are numbered. */
static void choose_task(void *ctx, int64_t b, int worker) {
    const route_job *j = ctx;
    int64_t experts = j->s.experts, k = j->s.k;
    int32_t *taken = j->taken + b * experts;
    float p[ROUTE_MAX_EXPERTS];
    memset(taken, 0, (size_t)experts * sizeof *taken);
    span tokens = tokens_of(j, b);
    for (int64_t t = tokens.lo; t < tokens.hi; t++) {
        int32_t own[ROUTE_MAX_K], *expert = j->row ? j->row + t * k : own;
        scores_of(j, j->logits + t * experts, p);
        choose_experts(j, p, expert);
        float by = weight_factor(j, p, expert);
        for (int64_t i = 0; i < k; i++) {
            if (j->weight) j->weight[t * k + i] = p[expert[i]] * by;
            taken[expert[i]]++;
        }
    }
}

/* Choices of the whole sequence that a unit belongs to. */
static int32_t chosen_of(const route_job *j, int64_t unit, int64_t e, const int32_t *own) {
    return j->ranks.count ? route_choices(&j->ranks, unit, e, true) : own[e];
}
static float choices_of(const route_job *j, span tokens) {
    int64_t units = j->ranks.count ? j->ranks.chunks * j->ranks.ranks : 1;
    return (float)(j->s.k * units * (tokens.hi - tokens.lo));
}

/* Per token: balance E sum f p + z lse^2. @param chosen choices of this sequence, [E] */
static void aux_losses(const route_job *j, int64_t b, const int32_t *chosen) {
    int64_t experts = j->s.experts;
    float p[ROUTE_MAX_EXPERTS];
    span tokens = tokens_of(j, b);
    float unit = (float)experts / choices_of(j, tokens);
    for (int64_t t = tokens.lo; t < tokens.hi; t++) {
        float lse = scores_of(j, j->logits + t * experts, p), sum = 0, all = 0;
        for (int64_t e = 0; e < experts; e++) {
            all += p[e];
            sum += p[e] * (float)chosen_of(j, b, e, chosen);
        }
        j->aux[t] = j->attr.route.balance * unit * sum / all + j->attr.route.z * lse * lse;
    }
}

/* From experts to rows; `taken` now holds the first row of each expert in this sequence. */
static void number_task(void *ctx, int64_t b, int worker) {
    const route_job *j = ctx;
    int64_t experts = j->s.experts, k = j->s.k;
    const int32_t *first = j->taken + b * experts;
    int32_t used[ROUTE_MAX_EXPERTS] = { 0 }, before[ROUTE_MAX_EXPERTS] = { 0 };
    for (int64_t e = 0; j->ranks.count && e < experts; e++)
        before[e] = route_choices(&j->ranks, b, e, false);
    span tokens = tokens_of(j, b);
    for (int64_t i = tokens.lo * k; i < tokens.hi * k; i++) {
        int32_t e = j->row[i], at = used[e]++;
        bool dropped = j->s.capacity && before[e] + at >= j->s.capacity;
        j->row[i] = dropped ? -1 - e : first[e] + at;
        if (!dropped) j->source[j->row[i]] = (int32_t)i;
    }
    if (j->aux) aux_losses(j, b, used);
}

/* Turns counts into first rows: packed one after another, or padded to the capacity. */
static void number_experts(const route_job *j) {
    const route_sizes *s = &j->s;
    bool padded = j->attr.route.padded;
    int32_t at = 0;
    for (int64_t e = 0; e < s->experts; e++) {
        j->offset[e] = at;
        for (int64_t b = 0; b < s->seqs; b++) {
            int32_t *count = &j->taken[b * s->experts + e];
            int32_t n = route_taken(&j->ranks, s->capacity, b, e, *count);
            *count = at;
            at += padded ? (int32_t)s->capacity : n;
        }
    }
    j->offset[s->experts] = at;
    BUG_IF(at > s->rows);
}

static route_job route_job_of(const op_call *c, const tensor *logits, const tensor *row,
                              int64_t rows) {
    route_job j = { .attr = c->attr, .logits = logits->data };
    j.s = route_sizes_of(logits->dim[0], logits->dim[1], row->dim[1], rows, c->attr.route.seq,
                         c->attr.route.capacity);
    j.row = row->data;
    BUG_IF(j.s.experts > ROUTE_MAX_EXPERTS || j.s.k > ROUTE_MAX_K || j.s.k > j.s.experts);
    BUG_IF(c->attr.route.padded && !j.s.capacity);
    BUG_IF(c->attr.route.groups > ROUTE_MAX_GROUPS);
    j.taken = (int32_t *)align_up((uintptr_t)c->run->workspace, 64);
    j.dropped = j.taken + j.s.seqs * j.s.experts;
    return j;
}

static void CPU(route)(const op_call *c) {
    route_job j = route_job_of(c, &c->in[0], &c->out[1], c->out[2].dim[0]);
    j.ranks = route_ranks_of(c, &c->in[2], j.s.experts);
    j.bias = c->in[1].data;
    j.weight = c->out[0].data;
    j.source = c->out[2].data;
    j.offset = c->out[3].data;
    j.aux = c->out[4].data;
    for (int64_t i = 0; i < j.s.rows; i++) j.source[i] = -1;
    pool_run(c->run->pool, j.s.seqs, choose_task, &j);
    number_experts(&j);
    pool_run(c->run->pool, j.s.seqs, number_task, &j);
}

/* Chunks are in the order of the tokens, counts by chunk first. */
static void CPU(route_count)(const op_call *c) {
    const tensor *logits = &c->in[0], *count = &c->out[0];
    route_job j = { .attr = c->attr, .logits = logits->data, .bias = c->in[1].data };
    j.s = route_sizes_of(logits->dim[0], logits->dim[1], c->attr.route.k, 0, c->attr.route.seq, 0);
    int64_t experts = j.s.experts, chunks = count->dim[0], seqs = count->dim[1];
    BUG_IF(j.s.seqs != chunks * seqs || chunks != c->attr.route.chunks || j.s.k > experts);
    j.taken = (int32_t *)align_up((uintptr_t)c->run->workspace, 64);
    pool_run(c->run->pool, j.s.seqs, choose_task, &j);
    for (int64_t u = 0; u < j.s.seqs; u++)
        memcpy((int32_t *)count->data + (u % chunks * seqs + u / chunks) * experts,
               j.taken + u * experts, (size_t)experts * sizeof *j.taken);
}

/* ---- backward --------------------------------------------------------------------------------------
 * With scores s, and the weights w_i = factor s_i (factor = scale / sum of the K, or scale alone):
 *     ds_i = factor (dw_i - normalized: sum_j dw_j w_j / scale)
 * balance and z add to ds, and to the logits' own gradient; then softmax or sigmoid carries ds on. */
static void count_choices(const route_job *j, span tokens, int32_t *chosen, int32_t *dropped) {
    int64_t k = j->s.k;
    memset(chosen, 0, (size_t)j->s.experts * sizeof *chosen);
    *dropped = 0;
    for (int64_t i = tokens.lo * k; i < tokens.hi * k; i++) {
        chosen[route_expert(j->row[i], j->offset, j->s.experts)]++;
        *dropped += j->row[i] < 0;
    }
}

/* Gradient of the weights' scores. @param expert of each choice */
static void weight_slopes(const route_job *j, const float *p, const float *dweight,
                          const int32_t *expert, float *ds) {
    float factor = weight_factor(j, p, expert), mean = 0;
    float scale = j->attr.route.scale > 0 ? j->attr.route.scale : 1;
    for (int64_t i = 0; j->attr.route.normalize && i < j->s.k; i++)
        mean += dweight[i] * p[expert[i]] * factor / scale;
    for (int64_t i = 0; i < j->s.k; i++) ds[expert[i]] += factor * (dweight[i] - mean);
}

static void token_gradient(const route_job *j, int64_t t, const float *chosen, float per_choice) {
    int64_t experts = j->s.experts, k = j->s.k;
    float p[ROUTE_MAX_EXPERTS], ds[ROUTE_MAX_EXPERTS] = { 0 }, *out = j->dlogits + t * experts;
    int32_t expert[ROUTE_MAX_K];
    for (int64_t i = 0; i < k; i++)
        expert[i] = (int32_t)route_expert(j->row[t * k + i], j->offset, experts);
    float lse = scores_of(j, j->logits + t * experts, p), all = 0, mean = 0, dot = 0;
    const float *logits = j->logits + t * experts;
    weight_slopes(j, p, j->dweight + t * k, expert, ds);
    for (int64_t e = 0; e < experts; e++) all += p[e];
    for (int64_t e = 0; e < experts; e++) mean += p[e] / all * per_choice * chosen[e];
    for (int64_t e = 0; e < experts; e++) /* through p_e = s_e / all */
        ds[e] += (per_choice * chosen[e] - mean) / all;
    for (int64_t e = 0; e < experts; e++) dot += p[e] * ds[e];
    float z = 2 * j->unit * j->attr.route.z * lse;
    for (int64_t e = 0; e < experts; e++) {
        float slope = j->attr.route.sigmoid ? p[e] * (1 - p[e]) * ds[e] : p[e] * (ds[e] - dot);
        float share = j->attr.route.sigmoid ? expf(logits[e] - lse) : p[e];
        out[e] = slope + z * share;
    }
}

static void backward_task(void *ctx, int64_t b, int worker) {
    const route_job *j = ctx;
    int64_t experts = j->s.experts;
    int32_t *own = j->taken + b * experts;
    float chosen[ROUTE_MAX_EXPERTS];
    span tokens = tokens_of(j, b);
    count_choices(j, tokens, own, &j->dropped[b]);
    for (int64_t e = 0; e < experts; e++) chosen[e] = (float)chosen_of(j, b, e, own);
    float per_choice = j->unit * j->attr.route.balance * (float)experts / choices_of(j, tokens);
    for (int64_t t = tokens.lo; t < tokens.hi; t++) token_gradient(j, t, chosen, per_choice);
}

static void CPU(route_bwd)(const op_call *c) {
    const step_block *step = c->run->step;
    route_job j = route_job_of(c, &c->in[1], &c->in[2], 0);
    j.ranks = route_ranks_of(c, &c->in[4], j.s.experts);
    j.dweight = c->in[0].data;
    j.offset = c->in[3].data;
    j.dlogits = c->out[0].data;
    j.unit = step->loss_grad * (step->now.loss_scale > 0 ? step->now.loss_scale : 1);
    pool_run(c->run->pool, j.s.seqs, backward_task, &j);
    float *load = c->out[1].data;
    for (int64_t e = 0; load && e <= j.s.experts; e++) {
        int64_t sum = 0;
        for (int64_t b = 0; b < j.s.seqs; b++)
            sum += e < j.s.experts ? j.taken[b * j.s.experts + e] : j.dropped[b];
        load[e] = (c->accumulate & 2 ? load[e] : 0) + (float)sum;
    }
}

static size_t CPU(route_workspace)(const op_backend *b, const op_call *c, int threads) {
    const tensor *logits = c->op == OP_ROUTE_BWD ? &c->in[1] : &c->in[0];
    route_sizes s = route_sizes_of(logits->dim[0], logits->dim[1], 1, 0, c->attr.route.seq, 0);
    return (size_t)(s.seqs * (s.experts + 1)) * sizeof(int32_t) + 64;
}

/* ---- the bias ------------------------------------------------------------------------------------- */
static void CPU(update_router_bias)(const op_call *c) {
    const float *load = c->in[0].data;
    float *bias = c->out[0].data, mean = 0;
    int64_t experts = c->in[0].dim[0] - 1;
    if (c->run->step->now.skip) return;
    for (int64_t e = 0; e < experts; e++) mean += load[e];
    mean /= (float)experts;
    for (int64_t e = 0; e < experts; e++)
        bias[e] += c->attr.update.lr_mul * (float)((load[e] < mean) - (load[e] > mean));
}

KERNEL(ROUTE, CPU(route), CPU(route_workspace), ATTRS_ROUTE);
KERNEL(ROUTE_BWD, CPU(route_bwd), CPU(route_workspace), ATTRS_ROUTE);
KERNEL(ROUTE_COUNT, CPU(route_count), CPU(route_workspace), ATTRS_ROUTE_COUNT);
KERNEL(UPDATE_ROUTER_BIAS, CPU(update_router_bias), NULL, ATTRS_UPDATE);
