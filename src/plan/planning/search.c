/* The best layout of a model on a number of accelerators.
 *
 * Every combination of tp x pp x dp x cp x ep, schedule, microbatch, ZeRO stage and recompute gets a closed-form
 * estimate of time and memory; so do groups of hosts that hold replicas of the shards (HSDP) where data parallelism
 * spans hosts, and offloading where the memory does not suffice without. Its terms are prices of the recorded programs (prog/simulate.h): one block of
 * each kind, what comes before the blocks and what after, recorded once for each way to divide a layer; the
 * number of layers only multiplies them. The best combinations are then laid out and simulated as they would run,
 * also with pipeline stages instead of data-parallel ranks as neighbors on a host, and only those figures are
 * reported. So the estimate decides what is simulated, never what is reported. */
#include "ops/op_table.h"
#include "planning_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CANDIDATES = 1 << 17, KEPT_CANDIDATES = 1 << 15 };
enum {
    MOST_ROWS = 8,
    MOST_TENSOR = 64,
    MOST_PIPELINE = 64,
    MOST_CONTEXT = 16,
    FINALISTS = 24,
    FEW_FINALISTS =
        8, /* of models whose layout takes long: with SLOW_MODEL experts in all layers; one per shape */
    FEW_NEAR = 3, /* the best of those: stages as neighbors are tried for them, too */
    SLOW_MODEL = 4096,
    PER_SHAPE = 2,
    SHARD_SIZES = 4
};

/* A batch in tokens is rounded up by less than this to use all accelerators. */
static const double most_rounding = 0.10;

/* Layouts that reach less of the best one's score are not worth showing. */
static const double least_of_best = 2.0 / 3;

/* The modes of activation_checkpoint that the search tries. */
static const cfg_recompute recomputes[] = { CFG_AC_NONE, CFG_AC_SELECTIVE, CFG_AC_FULL };
const char *recompute_name(cfg_recompute k) {
    return config_choice("activation_checkpoint.mode", (int)k);
}

/* optimizer.offload, training.offload_params */
static const char *const offload_settings[OFFLOADS][2] = {
    [OFFLOAD_NONE] = { "0", "false" },
    [OFFLOAD_MOMENTS] = { "1", "false" },
    [OFFLOAD_ALL] = { "1", "true" },
};
static const char *const offload_names[OFFLOADS] = { "none", "moments", "all" };
const char *offload_name(offload_kind k) { return offload_names[k]; }

/* ---- one way to divide a layer ------------------------------------------------------------------ */
/* Parameters of a rank, and what their states and their update take. They depend on tp, cp and ep alone. */
typedef struct state_prices {
    double update;              /* seconds per element that a rank updates, but for the next */
    double matrices;            /* seconds per block, of GEMMs on whole matrices (Muon) */
    double bytes[MEMORY_KINDS]; /* of weights, gradients and states, per element */
    double first_params, last_params; /* elements on a rank; a tied table counts in both */
    double block_params[CHAIN_KINDS]; /* ... of a block of each kind */
    double
        expert_params[CHAIN_KINDS]; /* ... those of experts, which expert-parallel ranks divide */
} state_prices;
/* The cost of a block and its surroundings, for (tp, cp, ep, rows, recompute of cheap ops, a split backward pass). */
typedef struct layer_prices {
    int tp, cp, ep;
    int64_t rows;
    bool selective;
    bool split; /* weight gradients are deferred, and what they read is saved */
    bool possible;
    prog_price first, last, block[CHAIN_KINDS];
    double message;
    state_prices states;
} layer_prices;

typedef struct searcher {
    const config *cfg;
    config settled; /* with the optimizer that a run would choose */
    const run_target *on;
    const search_options *o;
    model_config mc;
    cost_model k;
    sim_costs costs;
    int64_t seq;
    double batch;  /* sequences per step, all ranks */
    bool exact;    /* they may not be rounded */
    bool all;      /* only layouts that use all accelerators */
    uint8_t *kind; /* [layers] of each block */
    int recorded;  /* layers of a model that has blocks of every kind */
    layer_prices *prices;
    int n_prices, prices_cap;
    layout_choice *list; /* candidates */
    int n, cap;
    long considered;
} searcher;

static void count_params(const searcher *s, layer_prices *p, const model *m) {
    for (int i = 0; i < CHAIN_KINDS; i++) p->states.block_params[i] = 0;
    for (int i = 0; i < model_buckets(m); i++) {
        bucket_view b = model_bucket(m, i);
        double n = (double)b.count;
        bool first_of_kind = b.layer >= 0;
        for (int l = 0; l < b.layer; l++) first_of_kind &= s->kind[l] != s->kind[b.layer];
        if (first_of_kind) p->states.block_params[s->kind[b.layer]] += n;
        if (b.layer < 0 && strcmp(b.name, "last") != 0) p->states.first_params += n;
        if (b.layer < 0 && (!strcmp(b.name, "last") || !strcmp(b.name, "tied")))
            p->states.last_params += n;
    }
}

static void count_experts(const searcher *s, layer_prices *p, const model *m) {
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        bool counted = (q->apart & AXIS(AX_EP)) && q->layer >= 0;
        for (int l = 0; counted && l < q->layer; l++) counted &= s->kind[l] != s->kind[q->layer];
        if (counted)
            p->states.expert_params[s->kind[q->layer]] += (double)(q->local[0] * q->local[1]);
    }
}

/* @return the bytes of carried values and their gradients, of a microbatch. Of a kind of block that leaves a value the model has
 * one. */
static double carried_bytes_of(const layer_prices *p) {
    double carried = p->first.carried;
    for (int i = 0; i < CHAIN_KINDS; i++) carried += p->block[i].carried;
    return carried;
}

static void price_programs(const searcher *s, layer_prices *p, const chain *c,
                           const model_config *mc, const model_layout *lay) {
    const mesh *m = &lay->mesh;
    p->first = sim_price(c->first, m, &s->costs, true);
    p->last = sim_price(c->last, m, &s->costs, true);
    for (int i = 0; i < CHAIN_KINDS; i++)
        if (c->block[i]) {
            p->block[i] = sim_price(c->block[i], m, &s->costs, true);
            p->block[i].saved -= other_system_spares(s->on->as, mc, lay, c->block[i]);
        }
    mesh staged = *m; /* a neighbor along pp is as far away as all other axes are wide */
    staged.size[AX_PP] = 2;
    staged.size[AX_DP_SHARD] = MAX(1, s->k.gpu->domain / (p->tp * p->cp));
    double values = 1 + carried_bytes_of(p) / (2 * p->block[0].residual);
    p->message = values * sim_message(c, &staged, &s->costs);
}

/* Prices the same programs with weight gradients deferred, as a stage of a pipeline of two records them. */
static err price_split(const searcher *s, layer_prices *p, const model_config *mc,
                       const model_layout *whole) {
    model_layout l = *whole;
    model *m = NULL;
    chain c;
    l.mesh.size[AX_PP] = 2;
    l.pipe = (pipeline){ .kind = PIPE_ZERO_BUBBLE, .chunks = 1, .first_less = 1 };
    TRY(model_new(mc, &l, &m));
    err e = model_record(m, PROG_TRAIN, p->rows * s->seq, s->seq, &c);
    if (!e) price_programs(s, p, &c, mc, whole);
    model_free(m);
    return e;
}

/* Prices an update's GEMMs alone, all of which are in blocks: the cost of a whole matrix is not proportional to its elements, and
 * token tables have none. */
static double price_matrices(void *ctx, const char *program, const op_call *c) {
    const searcher *s = ctx;
    return op_row_of(c->op)->cost == COST_ORTHOGONALIZE ? s->costs.call(s->costs.ctx, program, c)
                                                        : 0;
}

/* Memory and time per element of a parameter, by the plan of its model and optimizer. Ranks share what ZeRO shards:
 * each takes as much per element as one rank would. */
static err price_states(const searcher *s, layer_prices *p, model *m, plan *q,
                        const model_layout *l) {
    static const memory_kind states[] = { MEMORY_WEIGHTS, MEMORY_GRADIENTS, MEMORY_MASTER,
                                          MEMORY_MOMENTS };
    optim_settings settings = train_optim(&s->settled, s->on->ops, l);
    optimizer *o;
    capacity c = { 0 };
    double elements = 0;
    for (int i = 0; i < model_buckets(m); i++) elements += (double)model_bucket(m, i).count;
    TRY(optim_new(&settings, m, q, &o));
    sim_costs alone = { .call = price_matrices, .move = free_move, .ctx = (void *)s };
    double matrices = update_seconds(o, &l->mesh, &alone);
    p->states.update = MAX(0, update_seconds(o, &l->mesh, &s->costs) - matrices) / elements;
    p->states.matrices = matrices / s->recorded;
    capacity_add_memory(q, false, &c);
    for (size_t i = 0; i < COUNT_OF(states); i++)
        p->states.bytes[states[i]] = c.memory[states[i]] / elements;
    if (s->on->as) other_system_states(s->on->as, l->dt, p->states.bytes);
    optim_free(o);
    return OK;
}

/* @return the layout of a rank that only shares layers with others. */
static model_layout layout_of_prices(const searcher *s, const layer_prices *p) {
    model_layout l = train_layout(s->cfg, s->on->ops, s->seq);
    l.mesh = (mesh){ .size = { [AX_CP] = p->cp, [AX_EP] = p->ep, [AX_TP] = p->tp } };
    l.zero = 0;
    l.selective = p->selective;
    l.pipe = (pipeline){ .kind = PIPE_1F1B, .chunks = 1 };
    return l;
}

/* Counts the parameters of the recorded layers and prices their states. */
static err price_own_states(const searcher *s, layer_prices *p, model *m, const model_layout *l) {
    plan *q = plan_new(&l->mesh, s->on->ops, 1);
    model_reserve(m, q, true);
    count_params(s, p, m);
    count_experts(s, p, m);
    err e = price_states(s, p, m, q, l);
    plan_free(q);
    return e;
}

/* Takes states from prices of another batch or recompute mode, on which they do not depend. @return false: there are none */
static bool share_states(const searcher *s, layer_prices *p) {
    for (int i = 0; i < s->n_prices; i++) {
        const layer_prices *q = &s->prices[i];
        if (!q->possible || q->tp != p->tp || q->cp != p->cp || q->ep != p->ep) continue;
        p->states = q->states;
        return true;
    }
    return false;
}

/* Records the programs of such a rank, of a model of so few layers that it has one block of each kind: the others are
 * alike. */
static err record_prices(const searcher *s, layer_prices *p) {
    model_layout l = layout_of_prices(s, p);
    model_config mc = s->mc;
    model *m = NULL;
    chain c;
    mc.layers = s->recorded;
    TRY(model_split_tp(&mc, &l.mesh));
    TRY(model_new(&mc, &l, &m));
    err e = model_record(m, PROG_TRAIN, p->rows * s->seq, s->seq, &c);
    if (!e) {
        price_programs(s, p, &c, &mc, &l);
        if (!share_states(s, p)) e = price_own_states(s, p, m, &l);
        if (!e && p->split) e = price_split(s, p, &mc, &l);
    }
    model_free(m);
    return e;
}

/* Finds the kind of every layer, and how many layers have all of them. */
static err record_kinds(searcher *s) {
    const layer_prices one = { .tp = 1, .cp = 1, .ep = 1 };
    model_layout l = layout_of_prices(s, &one);
    model *m = NULL;
    chain c;
    TRY(model_new(&s->mc, &l, &m));
    err e = model_record(m, PROG_TRAIN, s->seq, s->seq, &c);
    s->kind = mem_alloc((size_t)s->mc.layers);
    s->recorded = 1;
    for (int i = 0; !e && i < s->mc.layers; i++) {
        bool is_new = true;
        s->kind[i] = c.kind ? c.kind[i] : 0;
        for (int k = 0; k < i; k++) is_new &= s->kind[k] != s->kind[i];
        if (is_new) s->recorded = i + 1;
    }
    model_free(m);
    return e;
}

static layer_prices *add_prices(searcher *s, const layer_prices *key) {
    LIST_ADD(s->prices, s->n_prices, s->prices_cap) = *key;
    return &s->prices[s->n_prices - 1];
}

/* Of prices for one and for `many` sequences: what they take grows with the sequences. */
static void extrapolate_price(const prog_price *one, const prog_price *many, double share,
                              prog_price *out) {
    const double *a = (const double *)one, *b = (const double *)many;
    double *to = (double *)out;
    static_assert(sizeof(prog_price) % sizeof(double) == 0, "all of its members are doubles");
    for (size_t i = 0; i < sizeof(prog_price) / sizeof(double); i++)
        to[i] = a[i] + share * (b[i] - a[i]);
}

static const layer_prices *find_prices(searcher *s, const layer_prices *key) {
    enum { MANY = 4 };
    for (int i = 0; i < s->n_prices; i++) {
        const layer_prices *p = &s->prices[i];
        if (p->tp == key->tp && p->cp == key->cp && p->ep == key->ep && p->rows == key->rows &&
            p->selective == key->selective && p->split == key->split)
            return p;
    }
    layer_prices own = *key;
    if (key->rows == 1 || key->rows == MANY) {
        err e = record_prices(s, &own);
        own.possible = !e;
        err_free(e); /* a layout that training refuses is not a candidate */
        return add_prices(s, &own);
    }
    layer_prices one = *key, many = *key;
    one.rows = 1;
    many.rows = MANY;
    one = *find_prices(s, &one);
    many = *find_prices(s, &many);
    own = one;
    own.rows = key->rows;
    own.possible = one.possible && many.possible;
    double share = (double)(key->rows - 1) / (MANY - 1);
    extrapolate_price(&one.first, &many.first, share, &own.first);
    extrapolate_price(&one.last, &many.last, share, &own.last);
    for (int i = 0; i < CHAIN_KINDS; i++)
        extrapolate_price(&one.block[i], &many.block[i], share, &own.block[i]);
    own.message = one.message + share * (many.message - one.message);
    return add_prices(s, &own);
}

/* ---- the estimate ------------------------------------------------------------------------------- */
typedef struct stage_sums {
    double forward, backward; /* seconds of a microbatch, with recompute */
    double weights;           /* of `backward`: what a split pass puts off */
    double params, experts, saved, block_inputs;
    double one_saved; /* of the largest block */
    int layers;
} stage_sums;

static mesh choice_mesh(const layout_choice *c) {
    mesh m = { .size = { [AX_PP] = c->pp,
                         [AX_DP_REPLICATE] = c->replicas,
                         [AX_DP_SHARD] = c->dp / c->replicas / c->ep,
                         [AX_CP] = c->cp,
                         [AX_EP] = c->ep,
                         [AX_TP] = c->tp } };
    BUG_IF(mesh_world(&m) != choice_ranks(c));
    return m;
}

/* Ranks that share one copy of what is sharded. */
static double shard_ranks(const layout_choice *c) { return (double)c->dp / c->replicas * c->cp; }

static stage_sums sum_stage(const searcher *s, const layer_prices *p, const layout_choice *c,
                            int stage) {
    stage_sums t = { 0 };
    pipeline pipe = { .ranks = c->pp,
                      .chunks = c->chunks,
                      .kind = c->schedule,
                      .first_less = c->ends_counted,
                      .last_less = c->ends_counted };
    for (int k = 0; k < c->chunks; k++) {
        int from, to;
        pipeline_blocks(&pipe, s->mc.layers, stage, k, &from, &to);
        for (int l = from; l < to; l++) {
            const prog_price *b = &p->block[s->kind[l]];
            t.forward += b->forward;
            t.backward += b->backward + b->weights;
            t.weights += b->weights;
            if (c->recompute == CFG_AC_FULL) t.backward += b->again;
            t.params += p->states.block_params[s->kind[l]];
            t.experts += p->states.expert_params[s->kind[l]];
            t.saved += b->saved;
            t.block_inputs += b->block_input;
            t.one_saved = MAX(t.one_saved, b->saved);
            t.layers++;
        }
    }
    if (stage == 0) {
        t.forward += p->first.forward;
        t.backward += p->first.backward + p->first.weights;
        t.weights += p->first.weights;
        t.params += p->states.first_params;
    }
    if (stage == c->pp - 1) {
        t.forward += p->last.forward;
        t.params += p->states.last_params;
    }
    return t;
}

/* Microbatches whose activations a stage holds. */
static double held_micros(const layout_choice *c, int stage) {
    double behind = c->pp - stage - 1, micros = (double)c->micros;
    if (c->pp == 1) return 1;
    if (c->schedule == PIPE_ZERO_BUBBLE) return MIN(micros, c->pp);
    if (c->chunks == 1) return MIN(micros, behind + 1);
    return MIN(micros * c->chunks, 2 * behind + (c->chunks - 1) * c->pp + 1) / c->chunks;
}

/* Elements that a rank has of what ZeRO shards. Experts are divided among expert-parallel ranks already. */
static double sharded_params(const layout_choice *c, const stage_sums *t) {
    double ranks = shard_ranks(c);
    return (t->params - t->experts) / ranks + t->experts / (ranks / c->ep);
}

/* @return the bytes of a stage's weights and optimizer state, on a rank and, offloaded, in its host. */
static double state_bytes(const layer_prices *p, const layout_choice *c, const stage_sums *t,
                          double *offloaded) {
    double sharded = c->zero >= 1 ? sharded_params(c, t) : t->params;
    double weights = p->states.bytes[MEMORY_WEIGHTS] * (c->zero >= 3 ? sharded : t->params);
    double master = p->states.bytes[MEMORY_MASTER] * sharded,
           moments = p->states.bytes[MEMORY_MOMENTS] * sharded;
    *offloaded = 0;
    if (c->offload == OFFLOAD_NONE) return weights + master + moments;
    *offloaded = moments;
    if (c->offload == OFFLOAD_MOMENTS) return weights + master;
    *offloaded += master + p->states.bytes[MEMORY_WEIGHTS] * sharded;
    return 0;
}

/* Whether blocks' weights are in slots that are filled before each use. */
static bool fills_slots(const layout_choice *c) {
    return c->zero >= 3 || c->offload == OFFLOAD_ALL;
}

static double estimate_bytes(const searcher *s, const layer_prices *p, const layout_choice *c,
                             const stage_sums *t, int stage) {
    double held = held_micros(c, stage), offloaded;
    double grad = p->states.bytes[MEMORY_GRADIENTS],
           grads = grad * (c->zero >= 2 ? sharded_params(c, t) : t->params);
    double activations = t->saved * held;
    if (c->recompute == CFG_AC_FULL) activations = t->block_inputs * held + t->one_saved;
    activations += carried_bytes_of(p) * held * c->chunks;
    double layer = t->params / MAX(1, t->layers), slots = 0;
    bool all = c->pp > 1 && c->offload != OFFLOAD_ALL; /* a pipeline gathers them once per step */
    if (fills_slots(c)) slots += p->states.bytes[MEMORY_WEIGHTS] * (all ? t->params : 2 * layer);
    if (c->zero >= 2) slots += 2 * grad * layer;
    int passed = c->schedule == PIPE_ZERO_BUBBLE ? t->layers + 2 : 3 * c->chunks;
    if (c->pp > 1) slots += p->block[0].residual * (s->on->as ? 4 : passed * held);
    double temp = MAX(p->first.temp, p->last.temp);
    for (int i = 0; i < CHAIN_KINDS; i++) temp = MAX(temp, p->block[i].temp);
    temp += 6 * p->block[0].residual;
    return state_bytes(p, c, t, &offloaded) + grads + activations + slots + temp;
}

/* @return the seconds of a step that data parallelism, and weights in host memory, add where nothing hides them. */
static double exposed_data(const searcher *s, const layout_choice *c, const stage_sums *t) {
    mesh m = choice_mesh(c);
    axis_set axes = AXIS(AX_DP_SHARD) | AXIS(AX_CP) | AXIS(AX_EP);
    double layers = MAX(1, t->layers), layer = t->params / layers, micros = (double)c->micros;
    double share = c->zero >= 1 ? shard_ranks(c) : 1;
    comm_move scatter = { .axes = axes, .from = PLACE_P, .to = PLACE_S(0) };
    comm_move gather = { .axes = axes, .from = PLACE_S(0), .to = PLACE_I };
    comm_move sum = { .axes = AXIS(AX_DP_REPLICATE), .from = PLACE_P, .to = PLACE_I };
    double reduce = s->costs.move(s->costs.ctx, &m, &scatter, 4 * layer);
    if (c->replicas > 1) reduce += s->costs.move(s->costs.ctx, &m, &sum, 4 * layer / share);
    double bring = s->costs.move(s->costs.ctx, &m, &gather, 2 * layer);
    double own = c->zero >= 1 ? sharded_params(c, t) / layers : layer;
    if (c->offload == OFFLOAD_ALL) bring += s->costs.fetch(s->costs.ctx, 2 * own);
    double forward = t->forward / layers, backward = t->backward / layers;
    double reductions = c->zero >= 2 ? micros : 1, gathers = 1, again = 0;
    if (fills_slots(c) && (c->pp == 1 || c->offload == OFFLOAD_ALL)) gathers = again = micros;
    double hidden = s->costs.interference * layers * (reduce * reductions + bring * gathers);
    double total =
        reduce + bring + hidden; /* the last of one, the first of the other: nothing is left */
    total += layers * gathers * MAX(0, bring - forward);
    total += layers * reductions * MAX(0, reduce + (again > 0 ? bring : 0) - backward);
    return total;
}

int choice_ranks(const layout_choice *c) { return c->tp * c->pp * c->cp * c->dp; }

static double score_of(const searcher *s, const layout_choice *c, double tokens_per_second) {
    return s->o->for_cost ? tokens_per_second / choice_ranks(c) : tokens_per_second;
}

static bool same_sums(const stage_sums *a, const stage_sums *b) {
    return a->forward == b->forward && a->backward == b->backward && a->params == b->params &&
           a->saved == b->saved && a->layers == b->layers;
}

static void estimate_speed(const searcher *s, const layer_prices *p, const stage_sums *stages,
                           layout_choice *c) {
    double slowest = 0, all = 0, micros = (double)c->micros, exposed = 0, update = 0, moved = 0,
           put_off = 0;
    for (int stage = 0; stage < c->pp; stage++) {
        const stage_sums *t = &stages[stage];
        double seconds = t->forward + t->backward, offloaded;
        slowest = MAX(slowest, seconds);
        all += seconds;
        put_off += t->weights;
        if (stage > 0 && same_sums(t, t - 1)) continue; /* nor does it communicate more */
        exposed = MAX(exposed, exposed_data(s, c, t));
        double own = c->zero ? sharded_params(c, t) : t->params;
        /* ranks that share states deal out the blocks whose matrices they need whole */
        double blocks = c->zero ? ceil(t->layers / shard_ranks(c)) : t->layers;
        update = MAX(update, p->states.update * own + p->states.matrices * blocks);
        state_bytes(p, c, t, &offloaded);
        moved = MAX(moved, s->costs.fetch(s->costs.ctx, 2 * offloaded));
    }
    /* weight gradients that are deferred fill their own time, and as much of the others' */
    double fill = (all - slowest) / c->chunks - 2 * put_off * (c->pp - 1) / c->pp;
    double messages = c->pp > 1 ? 2 * (c->pp - 1) * p->message * c->chunks : 0;
    /* as many microbatches are in flight as there are stages, so that each waits for its messages */
    double wait = c->pp > 1 && c->chunks == 1 ? 2 * p->message : 0;
    double seconds = MAX(micros * (slowest + wait) + fill + messages + exposed + update, moved);
    c->estimate = micros * (double)c->rows * c->dp * (double)s->seq / seconds;
    c->score = score_of(s, c, c->estimate);
}

/* ---- the candidates ------------------------------------------------------------------------------ */
SORT_ORDER(by_score, layout_choice, FALLING(score));

/* @return the estimate's bytes. */
static double consider_choice(searcher *s, const layer_prices *p, const stage_sums *stages,
                              layout_choice c) {
    s->considered++;
    for (int stage = 0; stage < c.pp; stage++) { /* the rank that needs most */
        double bytes = estimate_bytes(s, p, &c, &stages[stage], stage);
        if (bytes > c.bytes) c.fullest = stage;
        c.bytes = MAX(c.bytes, bytes);
    }
    if (c.bytes > 1.10 * s->o->limit)
        return c.bytes; /* the layout itself decides about what is near */
    estimate_speed(s, p, stages, &c);
    if (s->n == MOST_CANDIDATES) {
        sort_array(s->list, (size_t)s->n, sizeof *s->list, by_score);
        s->n = KEPT_CANDIDATES;
    }
    LIST_ADD(s->list, s->n, s->cap) = c;
    return c.bytes;
}

/* Shards within one host, two, four ...: collectives of states stay near, at the price of memory. */
static void consider_replicas(searcher *s, const layer_prices *p, const stage_sums *stages,
                              layout_choice c) {
    int near = MAX(2, s->k.gpu->domain / (c.tp * c.cp)), dp = c.dp;
    for (int i = 0, size = near; i < SHARD_SIZES && size < dp; i++, size *= 2) {
        if (dp % size || size % c.ep) continue;
        c.replicas = dp / size;
        consider_choice(s, p, stages, c);
    }
}

static void consider_states(searcher *s, const layer_prices *p, const stage_sums *stages,
                            layout_choice c) {
    bool split = c.pp > 1 && c.schedule == PIPE_ZERO_BUBBLE;
    bool hosts = (int64_t)c.dp * c.cp * c.tp > s->k.gpu->domain;
    int most = c.dp * c.cp > 1 && !split ? 3 : 1;
    for (c.zero = 1; c.zero <= most; c.zero++) {
        c.offload = OFFLOAD_NONE;
        double bytes = consider_choice(s, p, stages, c);
        if (hosts && bytes <= s->o->limit) consider_replicas(s, p, stages, c);
        if (!s->on->device || bytes <= 0.9 * s->o->limit) continue;
        for (c.offload = OFFLOAD_MOMENTS; c.offload < OFFLOADS; c.offload++)
            consider_choice(s, p, stages, c);
    }
}

static void consider_split(searcher *s, const layout_choice *c) {
    stage_sums stages[MOST_PIPELINE];
    const layer_prices key = { .tp = c->tp,
                               .cp = c->cp,
                               .ep = c->ep,
                               .rows = c->rows,
                               .selective = c->recompute == CFG_AC_SELECTIVE,
                               .split = c->schedule == PIPE_ZERO_BUBBLE };
    const layer_prices *p = find_prices(s, &key);
    if (!p->possible) return;
    for (int i = 0; i < c->pp; i++) stages[i] = sum_stage(s, p, c, i);
    consider_states(s, p, stages, *c);
}

/* Equal shares of the layers; where that leaves some stages with more than others, the ends also count as layers, as in
 * Llama 3's 126 layers on 128 virtual stages. */
static void consider_schedule(searcher *s, layout_choice c) {
    int stages = c.pp * c.chunks;
    c.ends_counted = false;
    if (s->mc.layers >= stages) consider_split(s, &c);
    c.ends_counted = true;
    if (c.pp > 1 && s->mc.layers % stages && s->mc.layers + 2 >= stages) consider_split(s, &c);
}

static void consider_schedules(searcher *s, layout_choice c) {
    for (size_t r = 0; r < COUNT_OF(recomputes); r++) {
        c.recompute = recomputes[r];
        c.chunks = 1;
        c.schedule = PIPE_1F1B;
        consider_schedule(s, c);
        c.schedule = PIPE_ZERO_BUBBLE;
        if (c.pp > 1 && c.recompute != CFG_AC_FULL) consider_schedule(s, c);
        c.schedule = PIPE_INTERLEAVED;
        for (c.chunks = 2; c.pp > 1 && c.micros % c.pp == 0 && c.chunks <= 8; c.chunks *= 2)
            consider_schedule(s, c);
    }
}

/* All accelerators, and the batch rounded up to what they share evenly, as training rounds it. */
static void consider_whole_batches(searcher *s, layout_choice c) {
    int of_dp = c.tp * c.pp * c.cp;
    if (s->o->gpus % of_dp || s->o->gpus / of_dp % c.ep) return;
    c.dp = s->o->gpus / of_dp;
    for (c.rows = 1; c.rows <= MOST_ROWS; c.rows *= 2) {
        int64_t last = 0, micros = (int64_t)ceil(s->batch / (double)(c.rows * c.dp) - 1e-9);
        for (int group = 1; group <= c.pp;
             group += MAX(1, c.pp - 1)) { /* interleaving takes groups of pp */
            c.micros = ceil_div(micros, group) * group;
            double off = (double)(c.dp * c.rows * c.micros) / s->batch - 1;
            bool fits = s->exact ? off == 0 : off < most_rounding;
            if (fits && c.micros != last && c.micros >= c.pp) consider_schedules(s, c);
            last = c.micros;
            if (c.pp == 1) break;
        }
    }
}

/* As many data-parallel ranks as there are and the batch allows. */
static void consider_batches(searcher *s, layout_choice c) {
    int most = s->o->gpus / (c.tp * c.pp * c.cp);
    for (c.rows = 1; c.rows <= MOST_ROWS; c.rows *= 2) {
        int64_t least = (int64_t)fmax(1, ceil(s->batch / ((double)c.rows * most) - 0.02));
        for (int64_t micros = least; micros < least + 64; micros++) {
            int64_t dp = (int64_t)floor(s->batch / (double)(c.rows * micros) + 0.02);
            if (dp > most) dp = most;
            dp -= dp % c.ep;
            double off = fabs((double)(dp * c.rows * micros) / s->batch - 1);
            bool fits = dp >= 1 && (s->exact ? off == 0 : off < 0.03);
            if (!fits || (c.pp > 1 && micros < c.pp)) continue;
            c.micros = micros;
            c.dp = (int)dp;
            consider_schedules(s, c);
            if (!s->o->for_cost && micros > least + 8 && dp * 2 < most) break;
        }
    }
}

static void consider_shape(searcher *s, layout_choice c) {
    int most = ceil_div(s->mc.layers, c.pp), experts = MAX(1, s->mc.experts);
    bool even = (double)most * c.pp <= 1.13 * s->mc.layers;
    if (!even || (int64_t)c.tp * c.cp * c.pp * c.ep > s->o->gpus) return;
    if (experts % c.ep || model_tp_below(&s->mc, c.tp) != c.tp) return;
    if (s->all)
        consider_whole_batches(s, c);
    else
        consider_batches(s, c);
}

static void consider_shapes(searcher *s) {
    int domain = MIN(s->k.gpu->domain, MOST_TENSOR), experts = MAX(1, s->mc.experts);
    for (int tp = 1; tp <= domain; tp *= 2)
        for (int cp = 1; cp == 1 || (cp <= MOST_CONTEXT && s->seq / cp >= 1024); cp *= 2)
            for (int ep = 1; ep <= experts; ep *= 2) {
                if (s->o->progress) s->o->progress(s->o->ctx, s->considered, 0);
                for (int pp = 1; pp <= MIN(MOST_PIPELINE, s->mc.layers); pp++)
                    consider_shape(s, (layout_choice){
                                          .tp = tp, .cp = cp, .ep = ep, .pp = pp, .replicas = 1 });
            }
}

/* ---- the finalists ------------------------------------------------------------------------------- */
static err set_layout_number(config *c, const char *name, long long value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    return config_set(c, name, text);
}

err layout_apply(const layout_choice *k, config *c) {
    TRY(set_layout_number(c, "parallelism.tensor_parallel_degree", k->tp));
    TRY(set_layout_number(c, "parallelism.pipeline_parallel_degree", k->pp));
    TRY(set_layout_number(c, "parallelism.context_parallel_degree", k->cp));
    TRY(set_layout_number(c, "parallelism.expert_parallel_degree", k->ep));
    TRY(set_layout_number(c, "parallelism.data_parallel_replicate_degree", k->replicas));
    TRY(set_layout_number(c, "parallelism.data_parallel_shard_degree", k->dp / k->replicas));
    TRY(config_set(c, "parallelism.axis_order",
                   k->stages_near ? "dp_replicate,dp_shard,pp,cp,ep,tp" : ""));
    TRY(config_set(c, "optimizer.offload", offload_settings[k->offload][0]));
    TRY(config_set(c, "training.offload_params", offload_settings[k->offload][1]));
    TRY(set_layout_number(c, "parallelism.zero_stage", k->zero));
    TRY(set_layout_number(c, "parallelism.pipeline_parallel_chunks", k->chunks));
    TRY(config_set(c, "parallelism.pipeline_parallel_split", "[]"));
    TRY(set_layout_number(c, "parallelism.pipeline_parallel_first_stage_less_layers",
                          k->ends_counted));
    TRY(set_layout_number(c, "parallelism.pipeline_parallel_last_stage_less_layers",
                          k->ends_counted));
    TRY(config_set(c, "parallelism.pipeline_parallel_schedule",
                   config_choice("parallelism.pipeline_parallel_schedule", (int)k->schedule)));
    TRY(config_set(c, "activation_checkpoint.mode", recompute_name(k->recompute)));
    TRY(config_set(c, "activation_checkpoint.part", "1"));
    TRY(set_layout_number(c, "training.local_batch_size", k->rows));
    return set_layout_number(c, "training.global_batch_size", k->rows * k->micros * k->dp);
}

/* Lays out the stages that may need most, and simulates the step. */
static err simulate_choice(const searcher *s, layout_choice *k) {
    config c;
    run_target on = *s->on;
    on.ranks = choice_ranks(k);
    config_copy(&c, s->cfg);
    err e = layout_apply(k, &c);
    const int stages[] = { k->fullest, 1 % k->pp,
                           k->pp - 1 }; /* most that do not fit end with the first */
    for (size_t i = 0; i < COUNT_OF(stages) && !e && k->cap.total <= s->o->limit; i++) {
        capacity of_stage;
        if (!stages[i] || (i && (stages[i] == stages[0] || stages[i] == stages[i - 1]))) continue;
        e = capacity_of_stage(&c, &on, stages[i], &of_stage);
        if (!e && of_stage.total > k->cap.total) k->cap = of_stage;
    }
    capacity first = { 0 };
    if (!e && k->cap.total <= s->o->limit)
        e = step_of_first_stage(&c, &on, s->k.gpu, &k->time, &first);
    if (!e && first.total > k->cap.total) k->cap = first;
    config_free(&c);
    return e;
}

/* Most of the time data parallelism makes better use of a host's links than messages between stages do. */
static void try_stages_near(const searcher *s, layout_choice *k) {
    layout_choice near = *k;
    config c;
    run_target on = *s->on;
    near.stages_near = true;
    if (k->pp == 1 || choice_ranks(k) <= s->k.gpu->domain) return;
    on.ranks = choice_ranks(k);
    config_copy(&c, s->cfg);
    err e = layout_apply(&near, &c);
    if (!e) e = step_simulate(&c, &on, s->k.gpu, NULL, &near.time); /* memory is the same */
    if (!e && near.time.tokens_per_second > 1.001 * k->time.tokens_per_second) *k = near;
    err_free(e); /* training refuses it */
    config_free(&c);
}

static bool same_shape(const layout_choice *a, const layout_choice *b) {
    return a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->ep == b->ep;
}

/* Offloading is for what does not fit otherwise: not for what a finalist does as fast without. */
static bool offloads_needlessly(const layout_choice *c, const layout_choice *list, int n) {
    for (int k = 0; k < n && c->offload != OFFLOAD_NONE; k++)
        if (list[k].offload == OFFLOAD_NONE && same_shape(&list[k], c) && list[k].dp == c->dp &&
            list[k].rows == c->rows && list[k].recompute == c->recompute)
            return true;
    return false;
}

static err choose_finalists(searcher *s, layout_result *out) {
    layout_choice list[FINALISTS];
    bool slow = (int64_t)s->mc.layers * MAX(1, s->mc.experts) > SLOW_MODEL;
    int n = 0, most = slow ? FEW_FINALISTS : FINALISTS;
    sort_array(s->list, (size_t)s->n, sizeof *s->list, by_score);
    for (int i = 0; i < s->n && n < most; i++) {
        int alike = 0;
        for (int k = 0; k < n; k++) alike += same_shape(&list[k], &s->list[i]);
        if (alike >= (slow ? 1 : PER_SHAPE) || offloads_needlessly(&s->list[i], list, n)) continue;
        if (s->o->progress) s->o->progress(s->o->ctx, s->considered, out->examined);
        err e = simulate_choice(s, &s->list[i]);
        out->examined++;
        bool fits = !e && s->list[i].cap.total <= s->o->limit;
        err_free(e); /* training refuses it */
        if (!fits) continue;
        list[n] = s->list[i];
        list[n].score = score_of(s, &list[n], list[n].time.tokens_per_second);
        n++;
    }
    sort_array(list, (size_t)n, sizeof *list, by_score);
    for (int i = 0; i < n && i < (slow ? FEW_NEAR : n); i++) {
        try_stages_near(s, &list[i]);
        list[i].score = score_of(s, &list[i], list[i].time.tokens_per_second);
    }
    sort_array(list, (size_t)n, sizeof *list, by_score);
    while (n > 0 && list[n - 1].score < least_of_best * list[0].score) n--;
    out->n = MIN(n, LAYOUTS_SHOWN);
    memcpy(out->best, list, (size_t)out->n * sizeof *list);
    return OK;
}

static err open_searcher(searcher *s) {
    const cfg_amount batch = s->cfg->training.global_batch_size;
    TRY(model_from_config(s->cfg, &s->mc));
    s->seq = s->cfg->training.seq_len;
    if (isnan(batch.value))
        return err_hint(ERR("the search needs the size of a step, which every layout keeps"),
                        "set training.global_batch_size, such as \"4e6 tokens\"");
    s->exact = batch.unit == CFG_SEQUENCES;
    s->batch = s->exact ? batch.value : round(batch.value / (double)s->seq);
    s->costs = cost_model_of(s->o->gpu, s->cfg, s->on, s->o->gpus, &s->k);
    return OK;
}

err layout_find(const config *cfg, const run_target *on, const search_options *o,
                layout_result *out) {
    searcher s = { .cfg = cfg, .on = on, .o = o };
    *out = (layout_result){ 0 };
    TRY(open_searcher(&s));
    log_mute_thread(true); /* layouts that are only tried */
    err e = train_settle(cfg, &s.mc, &s.settled);
    if (!e) e = record_kinds(&s);
    s.all = !o->for_cost && !o->fewer;
    if (!e) consider_shapes(&s);
    if (!e) e = choose_finalists(&s, out);
    if (!e && !out->n && s.all) { /* no layout of all of them fits or divides the batch */
        s.all = false;
        s.n = 0;
        consider_shapes(&s);
        e = choose_finalists(&s, out);
    }
    log_mute_thread(false);
    out->considered = s.considered;
    free(s.prices);
    free(s.list);
    free(s.kind);
    config_free(&s.settled);
    return e;
}

/* ---- why the second is second ---------------------------------------------------------------------- */
/* The step's parts, per token, since steps may differ in tokens; for cost, of all ranks together. */
typedef struct step_parts {
    double whole, compute, exposed, idle, update, host;
} step_parts;

static step_parts parts_per_token(const layout_choice *c, bool for_cost) {
    const step_time *t = &c->time;
    double of = (for_cost ? choice_ranks(c) : 1) / (t->seconds * t->tokens_per_second);
    return (step_parts){ t->seconds * of,     t->run.compute * of,
                         t->run.exposed * of, t->run.bubble * t->run.seconds * of,
                         t->update * of,      t->host * of };
}

static void add_difference(str *out, const char *text) {
    str_add(out, "%s%s", out->len ? ", " : "", text);
}

/* Describes what the second layout keeps elsewhere than the best does: states in host memory, replicas, neighbors. */
static void describe_differences(const layout_choice *a, const layout_choice *b, str *out) {
    char text[96];
    if (a->offload != b->offload) {
        snprintf(text, sizeof text, "offload %s instead of %s", offload_name(b->offload),
                 offload_name(a->offload));
        add_difference(out, text);
    }
    if (a->replicas != b->replicas) {
        snprintf(text, sizeof text, "states sharded over %d instead of %d of its ranks",
                 b->dp / b->replicas, a->dp / a->replicas);
        add_difference(out, text);
    }
    if (a->stages_near != b->stages_near)
        add_difference(out, b->stages_near ? "pipeline stages as neighbors on a host"
                                           : "data-parallel ranks as neighbors on a host");
}

void layout_explain(const layout_choice *best, const layout_choice *second, bool for_cost,
                    str *out) {
    step_parts a = parts_per_token(best, for_cost), b = parts_per_token(second, for_cost);
    const struct {
        const char *what;
        double more;
    } parts[] = {
        { "computing", b.compute - a.compute },
        { "waiting for communication", b.exposed - a.exposed },
        { "an idle pipeline", b.idle - a.idle },
        { "the update", b.update - a.update },
        { "waiting for host memory", b.host - a.host },
    };
    size_t most = 0;
    str differences = { 0 };
    for (size_t i = 1; i < COUNT_OF(parts); i++)
        if (parts[i].more > parts[most].more) most = i;
    str_add(out, "%.1f %% %s, most of it by %s (%+.1f %% of a step)", 100 * (b.whole / a.whole - 1),
            for_cost ? "more expensive" : "slower", parts[most].what,
            100 * parts[most].more / a.whole);
    describe_differences(best, second, &differences);
    if (differences.len) str_add(out, ", with %s", differences.text);
    str_free(&differences);
}
