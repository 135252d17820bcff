/* Runs a small model on any layout of thread ranks and collects its loss and every gradient as
 * whole tensors, so that layouts can be compared element by element. */
#ifndef INGOT_TESTS_MODEL_H
#define INGOT_TESTS_MODEL_H

#include "support/test.h"

#include <math.h>
#include <pthread.h>

#include "model/model_internal.h"

enum {
    RUN_SEQ = 16,
    RUN_ROWS = 4,
    RUN_MICROS = 2,
    RUN_MOST_MICROS = 8,
    RUN_MAX_RANKS = 8,
    RUN_MAX_PARAMS = 512
};

typedef struct layout {
    const char *name;
    int replicas, dp, cp, tp, pp; /* dp_replicate, dp_shard, ...; 0 reads as 1 */
    context_mode context;
    pipeline_schedule schedule;
    int chunks;
    int first_less, last_less; /* as in pipeline */
    int split[9];              /* layers of each virtual stage; all 0: not given */
    int ep;
    int micros; /* 0: RUN_MICROS */
    bool sp;
    int tp_chunks; /* as in model_layout */
    int zero;
    int prefetch;                      /* 0 reads as 1; -1: none */
    bool keep_gathered;                /* parameters of ZeRO-3 */
    bool offload_params;               /* as in model_layout */
    int64_t whole_below, bucket_bytes; /* as in model_layout, with the wires */
    dtype gather_wire, reduce_wire;
    int keep_every, keep_last;
    bool selective;
    dtype dt;
    const char *modules;
    fp8_recipe fp8;
    bool fp8_head; /* as in model_layout */
    int threads;
    int64_t logit_bytes; /* as in prog_options */
    bool loss_terms;     /* label smoothing and a z-loss */
    double nudge;        /* every weight is changed by up to this much of itself */
    bool zero_step;      /* a step comes first in which constants are as they were initialized */
} layout;

typedef struct outcome {
    double loss; /* mean over the valid targets of all microbatches */
    int params;
    char name[RUN_MAX_PARAMS][64];
    int64_t count[RUN_MAX_PARAMS];
    float *grad[RUN_MAX_PARAMS];
    uint8_t *seen[RUN_MAX_PARAMS]; /* an element was written by some rank */
    size_t param_bytes, temp_bytes, saved_bytes;
    double cp_bytes[MOVE_ILLEGAL]; /* that rank 0 sent over cp, by kind of move */
    bool replicas_agree;
    comm_counter sent[64]; /* by rank 0, in the step */
    int counters;
    double outer, blocks; /* elements of rank 0's buckets, padded: outside blocks, in all of them */
    int scales;           /* of fp8, the same on all ranks; 0: none */
    float scale[256];
} outcome;

static inline model_config small_llama(void) {
    model_config c;
    model_config_init(&c);
    snprintf(c.name, sizeof c.name, "test");
    c.layers = 2;
    c.dim = 32;
    c.ffn = 48;
    c.vocab = 40;
    c.max_seq = 64;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 8;
    c.norm_bias = false;
    c.init_std = 0.2;
    c.mup_base = 32;
    return c;
}

static inline model_config small_gpt2(void) {
    model_config c = small_llama();
    c.norm = NORM_LAYER;
    c.mlp = MLP_GELU_TANH;
    c.bias = true;
    c.pos = POS_LEARNED;
    c.tied = true;
    return c;
}

/* The facts of models that learn fast, all at once. */
static inline model_config small_fast(void) {
    model_config c = small_llama();
    c.mlp = MLP_RELU2;
    c.weightless_norms = true;
    c.embedding_norm = true;
    c.qknorm = QKNORM_HEAD;
    c.qk_scale = 1.2;
    c.logit_softcap = 3;
    c.layers = 4; /* every kind of block: with and without the window, with and without values */
    c.window = 5;
    c.full_step = 3;
    c.value_step = 2;
    return c;
}

/* The same, whose layers read values of earlier ones, and tokens the embedding of the one before. */
static inline model_config small_carrying(void) {
    model_config c = small_fast();
    c.layer_scalars = true;
    c.backout = true;
    c.smear = true;
    return c;
}

static inline model_config small_neox(void) {
    model_config c = small_llama();
    c.norm = NORM_LAYER;
    c.mlp = MLP_GELU_ERF;
    c.bias = true;
    c.parallel = true;
    c.rope_fraction = 0.5;
    return c;
}

/* The facts of models of 2024 and later, in four groups that cannot be combined in one model. Every kind of layer
 * occurs, each with other positions. */
static inline model_config small_gemma(void) {
    model_config c = small_llama();
    c.norm_position = NORM_BOTH;
    c.mlp = MLP_GEGLU;
    c.qknorm = QKNORM_HEAD;
    c.tied = true;
    c.embedding_scale = 5.5;
    c.attention_scale = 0.4;
    c.attention_softcap = 2;
    c.logit_softcap = 3;
    c.layers = 4;
    c.window = 5;
    c.layer_pattern = 112;
    c.rope_local = 100;
    c.rope_scaling = ROPE_LINEAR;
    return c;
}

static inline model_config small_cohere(void) {
    model_config c = small_llama();
    c.norm = NORM_LAYER;
    c.parallel = c.shared_norm = true;
    c.qkv_bias = c.o_bias = true;
    c.logit_scale = 0.3;
    c.layers = 4;
    c.window = 5;
    c.layer_pattern = 1432;
    return c;
}

static inline model_config small_granite(void) {
    model_config c = small_llama();
    c.mlp_bias = true;
    c.mlp = MLP_GEGLU_ERF;
    c.embedding_scale = 12;
    c.residual_scale = 0.22;
    c.attention_scale = 0.1;
    c.logit_scale = 0.5;
    c.rope_fraction = 0.5;
    c.rope_scaling = ROPE_YARN;
    c.rope_factor = 4;
    c.rope_original = 16;
    return c;
}

static inline model_config small_falcon(void) {
    model_config c = small_llama();
    c.norm = NORM_LAYER;
    c.norm_bias = true;
    c.mlp = MLP_GELU_ERF;
    c.parallel = true;
    c.o_bias = true;
    c.kv_heads = 1;
    c.rope_scaling = ROPE_DYNAMIC;
    return c;
}

/* Norms on the outputs, and of queries and keys over all heads together. */
static inline model_config small_olmo(void) {
    model_config c = small_llama();
    c.norm_position = NORM_POST;
    c.qknorm = QKNORM_FULL;
    c.qk_scale = 1.2;
    c.norm_eps = 0.1; /* so that it matters whose mean it is added to */
    return c;
}

/* Keys and values, and queries, from latent vectors; heads of keys are wider than those of values. */
static inline model_config small_latent(void) {
    model_config c = small_llama();
    c.kv_heads = c.heads;
    c.head_dim = 12;
    c.kv_latent = 10;
    c.q_latent = 14;
    c.rope_head_dim = 4;
    c.value_head_dim = 6;
    c.layers = 3;
    c.window = 5;
    c.layer_pattern = 124;
    c.qkv_bias = true;
    return c;
}
/* ... and of values wider than those of keys, with queries from the residual. */
static inline model_config small_latent_kv(void) {
    model_config c = small_latent();
    c.q_latent = 0;
    c.head_dim = 6;
    c.value_head_dim = 10;
    c.attention_softcap = 2;
    return c;
}

/* Gated DeltaNet between layers of attention, whose output has a gate; heads of values are wider than those of keys. */
static inline model_config small_delta(void) {
    model_config c = small_llama();
    c.layers = 4;
    c.layer_pattern = 552;
    c.delta_keys = 4;
    c.delta_values = 8;
    c.delta_key_dim = 6;
    c.delta_value_dim = 5;
    c.delta_conv = 3;
    c.attention_gate = true;
    c.qknorm = QKNORM_HEAD;
    c.rope_fraction = 0.5;
    return c;
}

static const struct {
    const char *name;
    model_config (*make)(void);
} new_models[] = {
    { "gemma", small_gemma },   { "cohere", small_cohere }, { "granite", small_granite },
    { "falcon", small_falcon }, { "olmo", small_olmo },
};

static inline model_config small_moe(void) {
    model_config c = small_llama();
    c.experts = 4;
    c.experts_per_token = 2;
    c.expert_dim = 24;
    c.router_normalize = true;
    c.router_scale = 1;
    c.moe_step = 1;
    c.capacity_factor = 1.25;
    c.balance_loss = 0.1;
    c.router_z_loss = 0.01;
    return c;
}

/* Gated DeltaNet with experts in every second layer; a window and biases of attention. */
static inline model_config small_delta_moe(void) {
    model_config c = small_moe();
    c.layers = 4;
    c.layer_pattern = 515;
    c.window = 5;
    c.delta_keys = 4;
    c.delta_values = 4;
    c.delta_key_dim = 6;
    c.delta_value_dim = 4;
    c.attention_gate = true;
    c.qkv_bias = true;
    c.moe_step = 2;
    c.shared_experts = 1;
    c.shared_gate = true;
    return c;
}

/* Routers and experts of models of 2024 and later. */
static inline model_config small_grouped(void) {
    model_config c = small_moe();
    c.experts = 8;
    c.experts_per_token = 3;
    c.groups = 4;
    c.group_limit = 2;
    c.router_score = ROUTER_SIGMOID;
    c.router_scale = 1.7;
    c.shared_experts = 1;
    c.shared_dim = 20;
    c.shared_gate = true;
    c.mlp = MLP_GEGLU;
    return c;
}
static inline model_config small_biased_experts(void) {
    model_config c = small_moe();
    c.router_logit_bias = c.mlp_bias = c.sinks = true;
    c.window = 5;
    c.layer_pattern = 12;
    c.mlp = MLP_SWIGLU_CLAMPED;
    c.swiglu_limit = 0.8;
    c.shared_experts = 1;
    c.layers = 3;
    c.first_dense = 1;
    return c;
}
static inline model_config small_scaled_input(void) {
    model_config c = small_moe();
    c.router_score = ROUTER_SIGMOID;
    c.router_normalize = false;
    c.experts_per_token = 1;
    c.scale_input = true;
    c.qknorm = QKNORM_HEAD;
    c.qk_weights = false;
    c.qk_rope_only = true;
    c.layers = 4;
    c.window = 5;
    c.chunked = true;
    c.layer_pattern = 1143;
    c.temperature = 0.3;
    c.temperature_floor = 4;
    c.shared_experts = 2;
    return c;
}
static const struct {
    const char *name;
    model_config (*make)(void);
} new_moes[] = {
    { "groups of experts", small_grouped },
    { "biased experts", small_biased_experts },
    { "scaled input of experts", small_scaled_input },
};

/* The global batch of a microbatch, the same for every layout: documents of uneven length. */
typedef struct test_batch {
    int32_t tokens[RUN_ROWS * RUN_SEQ], targets[RUN_ROWS * RUN_SEQ], pos[RUN_ROWS * RUN_SEQ],
        start[RUN_ROWS * RUN_SEQ];
    int64_t ids[RUN_ROWS * RUN_SEQ];
    int valid;
} test_batch;

static inline void make_batch(test_batch *b, int micro, int64_t vocab) {
    rng_key key = rng_key_of(7, (uint64_t)micro);
    b->valid = 0;
    for (int r = 0; r < RUN_ROWS; r++) {
        int begin = 0;
        for (int t = 0; t < RUN_SEQ; t++) {
            int i = r * RUN_SEQ + t;
            if (t && rng_below(key, (uint64_t)i + 1000, 6) == 0) begin = t;
            b->tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)vocab);
            bool masked = rng_below(key, (uint64_t)i + 2000, 8) == 0;
            b->targets[i] =
                masked ? -100 : (int32_t)rng_below(key, (uint64_t)i + 3000, (uint64_t)vocab);
            b->valid += !masked;
            b->pos[i] = t - begin;
            b->start[i] = r * RUN_SEQ + begin;
            b->ids[i] = ((int64_t)micro * RUN_ROWS + r) * RUN_SEQ + t;
        }
    }
}

typedef struct rank_job {
    const model_config *c;
    const layout *l;
    comm *end;
    int rank;
    outcome *out;
    pthread_mutex_t *lock;
    err error;
    double loss; /* this rank's share */
} rank_job;

/* The scales of fp8 after a step. */
static inline void collect_scales(outcome *o, const model *m, const plan *p) {
    const model_layout *l = model_lay(m);
    bool own = l->fp8 == FP8_CURRENT && l->pipe.ranks > 1; /* a stage's, of a microbatch */
    const float *rows = own ? NULL : plan_input(p, "fp8", 0);
    int n = rows ? model_conf(m)->layers * 4 * FP8_OPERANDS : 0;
    assert_true((size_t)n <= COUNT_OF(o->scale));
    for (int i = 0; i < n; i++) {
        float scale = rows[i * FP8_ROW + FP8_SCALE];
        if (o->scales && o->scale[i] != scale) o->replicas_agree = false;
        o->scale[i] = scale;
    }
    o->scales = n;
}

static inline void collect(rank_job *j, model *m, plan *p) {
    outcome *o = j->out;
    pthread_mutex_lock(j->lock);
    o->params = model_params(m);
    collect_scales(o, m, p);
    assert_true(o->params <= RUN_MAX_PARAMS);
    for (int i = 0; i < model_buckets(m); i++) {
        bucket_view b = model_bucket(m, i);
        const float *g = (const float *)plan_data(p, b.grad.region) + b.grad.at;
        for (int k = 0; k < o->params; k++) {
            param_range r;
            const model_param *q = model_param_at(m, k);
            if (!o->grad[k]) {
                o->count[k] = q->dim[0] * q->dim[1];
                o->grad[k] = mem_alloc((size_t)o->count[k] * sizeof(float));
                o->seen[k] = mem_alloc((size_t)o->count[k]);
                snprintf(o->name[k], sizeof o->name[k], "%s", q->name);
            }
            if (!model_param_range(m, k, &b, &r)) continue;
            for (int64_t e = r.from; e < r.to; e++) {
                int64_t at = model_global_index(m, k, e);
                float v = g[r.at + e - r.from];
                if (o->seen[k][at] && o->grad[k][at] != v) o->replicas_agree = false;
                o->grad[k][at] = v;
                o->seen[k][at] = 1;
            }
        }
    }
    if (j->rank == 0) {
        o->param_bytes = plan_bytes(p, "params");
        o->temp_bytes = plan_bytes(p, "temp");
        o->saved_bytes = plan_bytes(p, "saved") + plan_bytes(p, "block inputs");
        o->counters = comm_counters(j->end, o->sent, COUNT_OF(o->sent));
        for (int i = 0; i < model_buckets(m); i++) {
            bucket_view b = model_bucket(m, i);
            int slices = j->l->zero ? mesh_span(comm_mesh(j->end), AXES_DATA) : 1;
            *(b.layer < 0 ? &o->outer : &o->blocks) += (double)b.count * slices;
        }
    }
    pthread_mutex_unlock(j->lock);
}

/* Vectors, gates and, with init_zero_outputs, matrices start at 0 or 1, which would hide a bias added twice or a norm's weight left out. */
static inline void stir_vectors(model *m, exec *x) {
    for (int i = 0; i < model_params(m); i++) {
        param_range r = { 0 };
        const model_param *q = model_param_at(m, i);
        float *v = model_param_data(m, x->plan, i, PARAM_MASTER, &r);
        bool constant = q->ndim == 1 || q->init == INIT_ZEROS || (v && v[0] == 0);
        rng_key key = rng_key_of(9, hash_str(q->name));
        for (int64_t e = r.from; v && constant && e < r.to; e++)
            v[e - r.from] += 0.2f * rng_normal(key, (uint64_t)model_global_index(m, i, e));
    }
    BUG_IF(model_publish(m, x) != OK);
}

/* Changes every weight by up to `most` of itself, at random. */
static inline void nudge_weights(model *m, exec *x, double most) {
    for (int i = 0; i < model_params(m) && most > 0; i++) {
        param_range r = { 0 };
        float *v = model_param_data(m, x->plan, i, PARAM_MASTER, &r);
        rng_key key = rng_key_of(11, hash_str(model_param_at(m, i)->name));
        for (int64_t e = r.from; v && e < r.to; e++) {
            double u = rng_uniform(key, (uint64_t)model_global_index(m, i, e));
            v[e - r.from] = (float)(v[e - r.from] * (1 + most * (2 * u - 1)));
        }
    }
    BUG_IF(model_publish(m, x) != OK);
}

static inline int run_micros(const layout *l) { return l->micros ? l->micros : RUN_MICROS; }

typedef struct run_state {
    rank_job *j;
    model *m;
    exec *x;
    int chain_id;
    int64_t n;
    double loss;
    test_batch batch[RUN_MOST_MICROS];
} run_state;

static inline err feed_batch(void *ctx, int micro, int slot) {
    run_state *r = ctx;
    const test_batch *all = &r->batch[micro];
    int64_t from = mesh_index(comm_mesh(r->j->end), AXES_ROWS) * r->n;
    int32_t start[RUN_ROWS * RUN_SEQ];
    for (int64_t i = 0; i < r->n; i++) start[i] = all->start[from + i] - (int32_t)from;
    model_batch b = { .tokens = all->tokens + from,
                      .targets = all->targets + from,
                      .pos = all->pos + from,
                      .start = start,
                      .ids = all->ids + from,
                      .n = r->n,
                      .slot = slot };
    model_set_batch(r->m, r->x->plan, &b);
    return OK;
}

static inline err add_losses(void *ctx, int micro) {
    run_state *r = ctx;
    const float *losses = exec_result(r->x, r->chain_id).data;
    int64_t mine = exec_result(r->x, r->chain_id).dim[0];
    for (int64_t i = 0; i < mine; i++) r->loss += losses[i];
    return OK;
}

static inline pipeline layout_pipe(const layout *l) {
    pipeline p = { .chunks = l->chunks,
                   .kind = l->schedule,
                   .first_less = l->first_less,
                   .last_less = l->last_less };
    int stages = MAX(1, l->pp) * MAX(1, l->chunks), all = 0;
    for (size_t i = 0; i < COUNT_OF(l->split); i++) all += l->split[i];
    for (int i = 0; all && i < stages; i++)
        p.split_from[i + 1] = (uint16_t)(p.split_from[i] + l->split[i]);
    p.split_stages = all ? stages : 0;
    return p;
}

static inline err rank_run(rank_job *j) {
    const layout *l = j->l;
    mesh me = *comm_mesh(j->end);
    model_layout lay = { .mesh = me,
                         .dt = l->dt ? l->dt : DT_F32,
                         .modules = l->modules,
                         .sequence_parallel = l->sp,
                         .tp_chunks = l->tp_chunks,
                         .context = l->context,
                         .seq = l->cp > 1 ? RUN_SEQ : 0,
                         .pipe = layout_pipe(l),
                         .zero = l->zero,
                         .prefetch = l->prefetch ? MAX(l->prefetch, 0) : 1,
                         .keep_gathered = l->keep_gathered,
                         .offload_params = l->offload_params,
                         .whole_below = l->whole_below,
                         .bucket_bytes = l->bucket_bytes,
                         .gather_wire = l->gather_wire,
                         .reduce_wire = l->reduce_wire,
                         .selective = l->selective,
                         .fp8 = l->fp8,
                         .fp8_head = l->fp8_head,
                         .logit_bytes = l->logit_bytes,
                         .label_smoothing = l->loss_terms ? 0.125f : 0,
                         .z_loss = l->loss_terms ? 0.0625f : 0 };
    model *m;
    chain c;
    TRY(model_new(j->c, &lay, &m));
    int64_t rows = RUN_ROWS / mesh_span(&me, AXES_ROWS), n = rows * RUN_SEQ;
    TRY(model_record(m, PROG_TRAIN, n, RUN_SEQ, &c));
    c.keep_every = l->keep_every;
    c.keep_last = l->keep_last;
    c.micros = run_micros(l);
    plan *p = plan_new(&me, ops_cpu(OPS_ISA_BEST), l->threads ? l->threads : 1);
    model_reserve(m, p, true);
    int chain_id;
    TRY(plan_chain(p, &c, model_bucket_regions, m, &chain_id));
    TRY(plan_commit(p));
    model_init(m, p, 42);
    exec x = { .plan = p, .comm = j->end, .pool = l->threads > 1 ? pool_new(l->threads) : NULL };
    run_state r = { .j = j, .m = m, .x = &x, .chain_id = chain_id, .n = n };
    int valid = 0, micros = run_micros(l);
    for (int k = 0; k < micros; k++) {
        make_batch(&r.batch[k], k, j->c->vocab);
        valid += r.batch[k].valid;
    }
    x.step = (step_block){ .loss_grad = 1.0f / (float)valid, .dropout = rng_key_of(5, 5) };
    const exec_hooks hooks = { feed_batch, add_losses, .ctx = &r };
    if (l->zero_step) TRY(exec_microbatches(&x, chain_id, micros, &hooks));
    stir_vectors(m, &x);
    nudge_weights(m, &x, l->nudge);
    r.loss = 0;
    TRY(exec_microbatches(&x, chain_id, micros, &hooks));
    if (m->tied.p) TRY(exec_program(&x, m->tied.id));
    collect(j, m, p);
    /* every tp rank has the same losses: count one */
    if (mesh_coord(&me, AX_TP) == 0) j->loss = r.loss / valid;
    pool_free(x.pool);
    plan_free(p);
    model_free(m);
    return OK;
}

static inline void *rank_main(void *arg) {
    rank_job *j = arg;
    j->error = rank_run(j);
    return NULL;
}

static inline void run_layout(const model_config *c, const layout *l, outcome *out) {
    memset(out, 0, sizeof *out);
    out->replicas_agree = true;
    mesh me = { .size = { [AX_PP] = l->pp,
                          [AX_DP_REPLICATE] = l->replicas,
                          [AX_DP_SHARD] = l->dp,
                          [AX_CP] = l->cp,
                          [AX_EP] = l->ep,
                          [AX_TP] = l->tp } };
    assert_ok(model_split_tp(c, &me));
    int n = mesh_world(&me);
    comm *ends[RUN_MAX_RANKS];
    if (n == 1)
        ends[0] = comm_self();
    else
        assert_ok(comm_threads(me, 20, ends));
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    rank_job job[RUN_MAX_RANKS];
    pthread_t thread[RUN_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        job[r] = (rank_job){ c, l, ends[r], r, out, &lock, OK };
        pthread_create(&thread[r], NULL, rank_main, &job[r]);
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < n; r++) assert_ok(job[r].error);
    for (int r = 0; r < n; r++) out->loss += job[r].loss; /* in the order of ranks */
    comm_counter counter[32];
    int counters = comm_counters(ends[0], counter, 32);
    assert_true(counters <= 32);
    for (int i = 0; i < counters; i++)
        if (counter[i].axes == AXIS(AX_CP)) out->cp_bytes[counter[i].kind] += counter[i].bytes;
    for (int r = 0; r < n; r++) comm_free(ends[r]);
}

static inline void outcome_free(outcome *o) {
    for (int k = 0; k < o->params; k++) {
        free(o->grad[k]);
        free(o->seen[k]);
    }
}

static inline double norm2(const float *a, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * a[i];
    return sqrt(s);
}

static inline double norm_of_all(const outcome *o) {
    double all = 0;
    for (int k = 0; k < o->params; k++) all += pow(norm2(o->grad[k], o->count[k]), 2);
    return sqrt(all);
}

/* @return ||a-b|| / max(||b||, 1e-3 ||all of b||) of the k-th gradient. */
static inline double grad_difference(const outcome *a, const outcome *b, int k, double all) {
    double d = 0;
    for (int64_t i = 0; i < b->count[k]; i++) d += pow((double)a->grad[k][i] - b->grad[k][i], 2);
    return sqrt(d) / fmax(norm2(b->grad[k], b->count[k]), 1e-3 * all);
}

/* @return how far loss and gradients are apart, relative. */
static inline double worst_difference(const outcome *a, const outcome *b) {
    double all = norm_of_all(b), worst = fabs(a->loss - b->loss) / fabs(b->loss);
    for (int k = 0; k < b->params; k++) worst = fmax(worst, grad_difference(a, b, k, all));
    return worst;
}

static inline void same_within(const char *what, const outcome *a, const outcome *b, double tol) {
    double all = norm_of_all(b);
    assert_int_equal(a->params, b->params);
    assert_true(all > 0);
    if (fabs(a->loss - b->loss) > tol * fabs(b->loss))
        fail_msg("%s: loss %.9g, expected %.9g", what, a->loss, b->loss);
    for (int k = 0; k < b->params; k++) {
        for (int64_t i = 0; i < b->count[k]; i++)
            if (!a->seen[k][i])
                fail_msg("%s: %s has a hole at %lld", what, a->name[k], (long long)i);
        double off = grad_difference(a, b, k, all);
        if (!(off <= tol))
            fail_msg("%s: gradient of %s is off by %.3g of it, more than %.3g", what, a->name[k],
                     off, tol);
    }
}

/* How far the gradients of a model are from those of one rank where the weights are changed by as much as rounding changes
 * them: what a different order of sums may do. Some models amplify it by a thousand. The gradient of a factor is one number, a
 * sum over elements that cancel, which one change of the weights may leave nearly as it was: the most of several counts. */
static inline double rounding_of(const model_config *c, const outcome *one, int micros) {
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        outcome off;
        layout nudged = { .name = "nudged", .micros = micros, .nudge = 6e-8 * (1 + 0.1 * i) };
        run_layout(c, &nudged, &off);
        for (int k = 0; k < one->params; k++)
            worst = fmax(worst, grad_difference(&off, one, k, norm_of_all(one)));
        outcome_free(&off);
    }
    return worst;
}

static inline void same_bits(const char *what, const outcome *a, const outcome *b) {
    assert_int_equal(a->params, b->params);
    if (memcmp(&a->loss, &b->loss, sizeof a->loss)) fail_msg("%s: the loss differs", what);
    for (int k = 0; k < b->params; k++)
        if (memcmp(a->grad[k], b->grad[k], (size_t)b->count[k] * sizeof(float)))
            fail_msg("%s: the gradient of %s differs", what, a->name[k]);
}

#endif
