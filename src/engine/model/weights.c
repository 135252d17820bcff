/* A model's memory: plan regions for its buckets, initial weights, constants. */
#include "model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_table.h"

static int bucket_instances(const model *m, int b) {
    return bucket_per_layer(m->info[b].where) ? m->c.layers : 1;
}

/* Whether this rank's pipeline stage has this bucket. */
static bool has_bucket(const model *m, int b, int layer) {
    const pipeline *p = &m->l.pipe;
    int rank = mesh_stage(&m->l.mesh), from, to;
    bool first = rank == 0, last = rank == p->ranks - 1;
    switch (m->info[b].where) {
    case BUCKET_FIRST: return first;
    case BUCKET_TIED: return first || last;
    case BUCKET_LAST: return last;
    default: break;
    }
    if (m->kind[layer] != m->info[b].kind) return false;
    for (int c = 0; c < p->chunks; c++) {
        pipeline_blocks(p, m->c.layers, rank, c, &from, &to);
        if (layer >= from && layer < to) return true;
    }
    return false;
}

static dtype master_of(const model *m, int b) {
    return m->l.master == DT_BF16 && m->bucket[b].dt == DT_BF16 ? DT_BF16 : DT_F32;
}

/* Programs read the copy, where there is one: then the master weights are the update's alone. */
static bool has_copy(const model *m, int b) { return m->bucket[b].dt != master_of(m, b); }
static bucket_range master_range(const model *m, int b) {
    return bucket_holds(&m->bucket[b], &m->l.mesh, has_copy(m, b) ? HOLDS_STATE : HOLDS_PARAMS);
}

/* A table that the first and the last stage of a pipeline both hold. */
static bool shared_by_stages(const model *m, int b) {
    return m->info[b].where == BUCKET_TIED && m->l.pipe.ranks > 1;
}

/* Finds the part of a table held by two stages that this rank updates. @return false: it holds none */
static bool tied_view(const model *m, bucket_view *out) {
    for (int i = 0; i < model_buckets(m); i++) {
        *out = model_bucket(m, i);
        if (shared_by_stages(m, out->bucket)) return true;
    }
    return false;
}

/* The stages that hold a tied table exchange its gradients; each adds the other's to its own. */
static chain_end record_tied(model *m, plan *p, region_at in, int64_t count) {
    enum { CHANNEL = 2 }; /* beside those of the pipeline */
    chain_end e = { .kind = END_TIED, .layer = -1 };
    bool first = mesh_stage(&m->l.mesh) == 0;
    prog *g =
        prog_new("tied table", PROG_UPDATE, &m->l.mesh, &(param_set){ 0 }, &(prog_options){ 0 });
    val mine = prog_region(g, "tied", in.region, in.at, DT_F32, count, (placement){ 0 });
    val theirs = prog_scratch(g, 1, &count, (placement){ 0 });
    rec_exchange(g, mine, theirs,
                 (exchange_spec){ AXES_STAGES, first ? m->l.pipe.ranks - 1 : 0, CHANNEL, first });
    change_request add = change_of(OP_ACCUMULATE);
    add.in[0] = theirs;
    add.out[0] = mine;
    add.add = true;
    rec_change(g, add);
    err bad = prog_finish(g);
    if (!bad) bad = plan_program(p, g, -1, &e.id);
    BUG_IF(bad != NULL); /* the op is what reductions add with */
    LIST_ADD(m->recorded, m->records, m->record_cap) = g;
    e.p = g;
    return e;
}

static void reserve_tied(model *m, plan *p) {
    bucket_view b;
    m->tied = m->half_tied = (chain_end){ 0 };
    m->tied_half = -1;
    if (!tied_view(m, &b)) return;
    m->tied = record_tied(m, p, b.grad, b.count);
    if (!m->l.keeps_half_grad) return;
    m->tied_half = plan_region(p, "pipeline", (size_t)b.count * sizeof(float));
    m->half_tied = record_tied(m, p, (region_at){ m->tied_half, 0 }, b.count);
}

void model_reserve(model *m, plan *p, bool train) {
    for (int b = 0; b < m->buckets; b++) {
        bucket_info *k = &m->info[b];
        int n = bucket_instances(m, b);
        size_t master = (size_t)master_range(m, b).count * dt_size(master_of(m, b));
        size_t copy = (size_t)bucket_holds(&m->bucket[b], &m->l.mesh, HOLDS_PARAMS).count *
                      dt_size(m->bucket[b].dt);
        k->master = mem_grow(k->master, (size_t)n * sizeof(int));
        k->copy = mem_grow(k->copy, (size_t)n * sizeof(int));
        k->grad = mem_grow(k->grad, (size_t)n * sizeof(int));
        for (int l = 0; l < n; l++) {
            bool here = has_bucket(m, b, l);
            int (*reserve)(plan *, const char *, size_t) =
                m->bucket[b].host ? plan_region_host : plan_region;
            k->master[l] = here ? reserve(p, "params", master) : -1;
            k->copy[l] = here && has_copy(m, b) ? reserve(p, "copies", copy) : -1;
            k->grad[l] = -1;
        }
    }
    for (int b = 0; b < m->buckets && train; b++) { /* contiguous: their norm is one call */
        size_t count = (size_t)bucket_holds(&m->bucket[b], &m->l.mesh, HOLDS_GRADS).count;
        for (int l = 0; l < bucket_instances(m, b); l++)
            if (has_bucket(m, b, l))
                m->info[b].grad[l] = plan_region(p, "grads", count * sizeof(float));
    }
    if (train) reserve_tied(m, p);
}

bucket_regions model_bucket_regions(void *ctx, int b, int layer) {
    const model *m = ctx;
    const bucket_info *k = &m->info[b];
    int l = bucket_per_layer(k->where) ? layer : 0;
    return (bucket_regions){ k->copy[l] >= 0 ? k->copy[l] : k->master[l], k->grad[l] };
}

int model_buckets(const model *m) {
    int n = 0;
    for (int b = 0; b < m->buckets; b++)
        for (int l = 0; l < bucket_instances(m, b); l++) n += has_bucket(m, b, l);
    return n;
}

/* The i-th bucket, as what a rank holds of it in one respect. */
static bucket_view view_bucket(const model *m, int i, bucket_buffer which) {
    int b = 0, l = 0;
    for (;;) {
        if (l == bucket_instances(m, b)) b++, l = 0;
        if (has_bucket(m, b, l) && i-- == 0) break;
        l++;
    }
    const prog_bucket *k = &m->bucket[b];
    const bucket_info *info = &m->info[b];
    const mesh *me = &m->l.mesh;
    bucket_range own = bucket_holds(k, me, which);
    bucket_view v = { .name = k->name,
                      .bucket = b,
                      .layer = bucket_per_layer(info->where) ? l : -1,
                      .dt = k->dt,
                      .count = own.count,
                      .first = own.first,
                      .master = { -1, own.first - master_range(m, b).first },
                      .copy = { -1, own.first - bucket_holds(k, me, HOLDS_PARAMS).first },
                      .grad = { -1, own.first - bucket_holds(k, me, HOLDS_GRADS).first },
                      .master_dt = master_of(m, b),
                      .host = k->host };
    if (info->master) {
        v.master.region = info->master[l];
        v.copy.region = info->copy[l];
        v.grad.region = info->grad[l];
    }
    return v;
}

bucket_view model_bucket(const model *m, int i) { return view_bucket(m, i, HOLDS_STATE); }
bucket_view model_bucket_grads(const model *m, int i) { return view_bucket(m, i, HOLDS_GRADS); }

bool model_param_range(const model *m, int param, const bucket_view *b, param_range *out) {
    const model_param *p = &m->param[param];
    if (p->bucket != b->bucket || (b->layer >= 0 && p->layer != b->layer)) return false;
    int64_t begin = p->offset, end = p->offset + p->local[0] * p->local[1];
    int64_t from = MAX(begin, b->first), to = MIN(end, b->first + b->count);
    if (from >= to) return false;
    *out = (param_range){ from - begin, to - begin, from - b->first };
    return true;
}

/* The bucket that holds something of a parameter here. */
static bool find_param_range(const model *m, int param, bucket_view *b, param_range *r) {
    for (int i = 0; i < model_buckets(m); i++) {
        *b = model_bucket(m, i);
        if (model_param_range(m, param, b, r)) return true;
    }
    return false;
}

float *model_param_data(const model *m, const plan *p, int param, param_buffer which,
                        param_range *range) {
    bucket_view b;
    param_range r;
    if (!find_param_range(m, param, &b, &r)) return NULL;
    BUG_IF(which == PARAM_MASTER && b.master_dt != DT_F32);
    if (range) *range = r;
    region_at in = which == PARAM_MASTER ? b.master : b.grad;
    return (float *)plan_data(p, in.region) + in.at + r.at;
}

/* n elements from `at` on of a region of this type. */
static err region_get(const plan *p, int region, dtype dt, int64_t at, int64_t n, float *to) {
    const char *from = (const char *)plan_data(p, region) + (size_t)at * dt_size(dt);
    if (dt == DT_F32) return plan_get(p, to, from, (size_t)n * sizeof *to);
    void *raw = mem_alloc((size_t)n * dt_size(dt));
    err e = plan_get(p, raw, from, (size_t)n * dt_size(dt));
    if (!e) dt_to_f32(dt, raw, to, n);
    free(raw);
    return e;
}

static void region_put(const plan *p, int region, dtype dt, int64_t at, int64_t n,
                       const float *from) {
    char *to = (char *)plan_data(p, region) + (size_t)at * dt_size(dt);
    if (dt == DT_F32) {
        plan_put(p, to, from, (size_t)n * sizeof *from);
        return;
    }
    void *raw = mem_alloc((size_t)n * dt_size(dt));
    dt_from_f32(dt, from, raw, n);
    plan_put(p, to, raw, (size_t)n * dt_size(dt));
    free(raw);
}

param_range model_weights_range(const model *m, int param) {
    bucket_view b;
    param_range r;
    return find_param_range(m, param, &b, &r) ? r : (param_range){ 0 };
}

axis_set model_param_same(const model *m, int param) {
    const model_param *p = &m->param[param];
    axis_set others =
        placement_axes(p->pl, PL_S) | m->bucket[p->bucket].slices | AXES_STAGES | p->apart;
    return (mesh_axes(&m->l.mesh) & ~others) | p->repeated;
}

axis_set model_param_divided(const model *m, int param) {
    const model_param *p = &m->param[param];
    return mesh_axes(&m->l.mesh) & (placement_axes(p->pl, PL_S) | m->bucket[p->bucket].slices);
}

/* The axes over which the gradient is a partial sum when backward has ended, besides those that its bucket is reduced
 * over. */
static axis_set partial_over(const model *m, int param) {
    const model_param *p = &m->param[param];
    axis_set axes = p->repeated;
    for (int i = 0; i < m->records && !p->repeated; i++)
        for (int k = 0; k < m->fuseds; k++) {
            const prog_param *q = &m->fused[k]; /* that which the part lies in */
            int64_t n = q->dim[0] * (q->ndim > 1 ? q->dim[1] : 1);
            bool in = q->bucket == p->bucket && p->offset >= q->offset && p->offset < q->offset + n;
            if (in) axes |= prog_grad_partial(m->recorded[i], k);
        }
    return axes;
}

bool model_keeps_slices(const model *m, bucket_buffer which) {
    bool sliced = false;
    for (int b = 0; b < m->buckets; b++)
        sliced |= bucket_is_sliced(&m->bucket[b], &m->l.mesh, which);
    return sliced;
}

grad_axes model_grad_axes(const model *m, int param) {
    const model_param *p = &m->param[param];
    const prog_bucket *b = &m->bucket[p->bucket];
    axis_set several = mesh_axes(&m->l.mesh);
    if (bucket_is_sliced(b, &m->l.mesh, HOLDS_GRADS)) /* every microbatch is reduced to slices */
        return (grad_axes){ b->reduced & ~b->slices & several, 0 };
    return (grad_axes){ b->reduced & several, partial_over(m, param) };
}

int model_param_copies(const model *m, int param) {
    int stages = shared_by_stages(m, m->param[param].bucket) ? 2 : 1;
    return stages * mesh_span(&m->l.mesh, model_param_same(m, param));
}

int model_param_copy_index(const model *m, int param) {
    bool second = shared_by_stages(m, m->param[param].bucket) && mesh_stage(&m->l.mesh) > 0;
    axis_set same = model_param_same(m, param);
    return mesh_index(&m->l.mesh, same) + (second ? mesh_span(&m->l.mesh, same) : 0);
}

const void *model_weights_data(const model *m, const plan *p, int param, dtype *dt) {
    bucket_view b;
    param_range r;
    if (!find_param_range(m, param, &b, &r)) return NULL;
    *dt = b.master_dt;
    return (const char *)plan_data(p, b.master.region) +
           (size_t)(b.master.at + r.at) * dt_size(b.master_dt);
}

err model_weights_get(const model *m, const plan *p, int param, float *to) {
    bucket_view b;
    param_range r;
    if (!find_param_range(m, param, &b, &r)) return OK;
    return region_get(p, b.master.region, b.master_dt, b.master.at + r.at, r.to - r.from, to);
}

void model_weights_set(const model *m, const plan *p, int param, const float *from) {
    bucket_view b;
    param_range r;
    if (find_param_range(m, param, &b, &r))
        region_put(p, b.master.region, b.master_dt, b.master.at + r.at, r.to - r.from, from);
}

int64_t model_global_index(const model *m, int param, int64_t local) {
    const model_param *p = &m->param[param];
    int64_t row = local / p->local[1], col = local % p->local[1];
    return (p->first[0] + row) * p->dim[1] + p->first[1] + col;
}

/* ---- initial weights ------------------------------------------------------------------------ */
static bool is_branch_output(const model_param *p) { return p->init == INIT_NORMAL_DEPTH; }
/* Whether it is a first matrix of a feed-forward layer. */
static bool is_branch_input(const model_param *p) {
    const char *dot = strchr(p->base, '.');
    return !strcmp(p->module, "mlp") && p->init == INIT_NORMAL && dot &&
           (!strcmp(dot, ".up") || !strcmp(dot, ".gate")) && strcmp(p->base, "moe.gate") != 0;
}
/* The initial value of a vector whose elements are alike. Factors of model.layer_scalars fall over the layers. */
static float init_constant(const model_config *c, const model_param *p) {
    double depth = (double)p->layer / MAX(c->layers - 1, 1);
    switch (p->init) {
    case INIT_ONES: return 1;
    case INIT_RESIDUAL_FACTOR: return (float)(1.15 - 0.10 * depth);
    case INIT_EMBED_FACTOR: return (float)(0.20 - 0.15 * depth);
    case INIT_MIDDLE_FACTOR: return -0.2f;
    case INIT_ZEROS:
    case INIT_LOG_UNIFORM:
    case INIT_SMALL_UNIFORM:
    case INIT_NORMAL:
    case INIT_NORMAL_DEPTH: break;
    }
    return 0;
}
/* Whether the values are uniform: within sqrt(3) deviations. */
static bool is_uniform(const model_config *c, const model_param *p) {
    CHOICE_DECIDED(init_scheme, 4);
    return c->init == INIT_BY_FAN_IN && (p->role == ROLE_HIDDEN || p->layer >= 0);
}

/* Standard deviation: init_std, or what the model states for the role, divided by sqrt(2 layers) for the outputs
 * of branches; or as GPT-NeoX's small_init and wang_init have it. µP divides that of hidden weights by the square root of the width relative to the base's. */
static double init_deviation(const model_config *c, const model_param *p) {
    double std = c->init == INIT_SMALL ? sqrt(0.4 / (double)c->dim) : c->init_std;
    if (is_branch_output(p) && c->init_zero_outputs) return 0;
    if (p->role == ROLE_INPUT && p->layer < 0 && c->init_embed_std > 0) std = c->init_embed_std;
    if (p->role == ROLE_OUTPUT && c->init_head_std > 0) std = c->init_head_std;
    if (is_uniform(c, p)) std = 1 / sqrt((double)p->fan_in);
    if (is_branch_input(p)) std *= c->init_up_scale;
    if (is_branch_output(p) && c->init == INIT_SMALL)
        std = 2 / (c->layers * sqrt((double)c->dim));
    else if (is_branch_output(p) && c->init != INIT_FLAT)
        std /= sqrt(2.0 * c->layers);
    if (c->mup && p->role == ROLE_HIDDEN && !is_uniform(c, p))
        std *= sqrt((double)c->mup_base / (double)c->dim);
    return std;
}

typedef struct init_job {
    const model *m;
    int param;
    rng_key key;
    float *at; /* of element range.from */
    param_range range;
    double std;
} init_job;
enum { INIT_CHUNK = 65536 };

/* Elements that are contiguous in a row of the shard are so in the whole parameter. */
static void init_chunk(void *ctx, int64_t i, int worker) {
    const init_job *j = ctx;
    const model_param *p = &j->m->param[j->param];
    int64_t from = j->range.from + i * INIT_CHUNK, to = MIN(from + INIT_CHUNK, j->range.to);
    bool drawn = p->init == INIT_NORMAL || p->init == INIT_NORMAL_DEPTH;
    for (int64_t e = from, end; e < to; e = end) {
        end = MIN(to, (e / p->local[1] + 1) * p->local[1]);
        float *at = j->at + (e - j->range.from);
        uint64_t first = (uint64_t)model_global_index(j->m, j->param, e);
        if (drawn && is_uniform(&j->m->c, p))
            for (int64_t k = 0; k < end - e; k++)
                at[k] = (float)(sqrt(3) * (2 * rng_uniform(j->key, first + (uint64_t)k) - 1));
        else if (drawn)
            rng_normals(j->key, first, end - e, at);
        for (int64_t k = 0; k < end - e; k++)
            at[k] = drawn ? (float)j->std * at[k] : init_constant(&j->m->c, p);
        for (int64_t k = 0; p->init == INIT_LOG_UNIFORM && k < end - e; k++)
            at[k] = (float)log(0.01 + 15.99 * rng_uniform(j->key, first + (uint64_t)k));
        for (int64_t k = 0; p->init == INIT_SMALL_UNIFORM && k < end - e; k++)
            at[k] = (float)(0.02 * rng_uniform(j->key, first + (uint64_t)k));
    }
}

typedef struct narrow_job {
    dtype dt;
    const float *from;
    char *to;
    int64_t n;
} narrow_job;

static void narrow_chunk(void *ctx, int64_t i, int worker) {
    const narrow_job *j = ctx;
    int64_t from = i * INIT_CHUNK, n = MIN(INIT_CHUNK, j->n - from);
    dt_from_f32(j->dt, j->from + from, j->to + (size_t)from * dt_size(j->dt), n);
}

/* Writes n values to a region from element `at` on, converted to the region's type. */
static void put_converted(const plan *p, pool *threads, region_at in, dtype dt, int64_t n,
                          const float *values, void *narrow) {
    const void *from = values;
    if (dt != DT_F32) {
        narrow_job j = { dt, values, narrow, n };
        pool_run(threads, (n + INIT_CHUNK - 1) / INIT_CHUNK, narrow_chunk, &j);
        from = narrow;
    }
    char *to = (char *)plan_data(p, in.region) + (size_t)in.at * dt_size(dt);
    plan_put(p, to, from, (size_t)n * dt_size(dt));
}

static int64_t largest_bucket(const model *m) {
    int64_t most = 0;
    for (int i = 0; i < model_buckets(m); i++)
        most = MAX(most, view_bucket(m, i, HOLDS_PARAMS).count);
    return most;
}

/* The i-th bucket's initial weights, as far as programs here read them. */
static void draw_bucket(const model *m, pool *threads, const bucket_view *b, uint64_t seed,
                        float *values) {
    memset(values, 0, (size_t)b->count * sizeof *values); /* the padding between parameters */
    for (int k = 0; k < m->params; k++) {
        init_job j = { .m = m, .param = k };
        if (!model_param_range(m, k, b, &j.range)) continue;
        j.key = rng_key_of(seed, hash_str(m->param[k].name));
        j.at = values + j.range.at;
        j.std = init_deviation(&m->c, &m->param[k]);
        int64_t n = j.range.to - j.range.from;
        pool_run(threads, (n + INIT_CHUNK - 1) / INIT_CHUNK, init_chunk, &j);
    }
}

void model_init(model *m, plan *p, uint64_t seed) {
    pool *threads = pool_new(0);
    size_t most = (size_t)largest_bucket(m);
    float *values = mem_alloc(most * sizeof *values);
    void *narrow = mem_alloc(most * sizeof(uint16_t));
    for (int i = 0; i < model_buckets(m); i++) {
        bucket_view all = view_bucket(m, i, HOLDS_PARAMS), own = model_bucket(m, i);
        draw_bucket(m, threads, &all, seed, values);
        bool copy = all.copy.region >= 0;
        if (copy) put_converted(p, threads, all.copy, all.dt, all.count, values, narrow);
        const bucket_view *v = copy ? &own : &all; /* what the master weights hold */
        put_converted(p, threads, v->master, v->master_dt, v->count, values + v->first - all.first,
                      narrow);
    }
    free(values);
    free(narrow);
    pool_free(threads);
    model_fill_constants(m, p);
}

static err refresh_copies(const model *m, const plan *p) {
    pool *threads = pool_new(0);
    size_t most = (size_t)largest_bucket(m);
    float *values = mem_alloc(most * sizeof *values);
    void *narrow = mem_alloc(most * sizeof(uint16_t));
    err e = OK;
    for (int i = 0; i < model_buckets(m) && !e; i++) {
        bucket_view b = model_bucket(m, i);
        if (b.copy.region < 0) continue;
        e = region_get(p, b.master.region, b.master_dt, b.master.at, b.count, values);
        if (!e) put_converted(p, threads, b.copy, b.dt, b.count, values, narrow);
    }
    free(values);
    free(narrow);
    pool_free(threads);
    return e;
}

bool model_param_tied(const model *m, int param) {
    return shared_by_stages(m, m->param[param].bucket);
}

bool model_half_tied(const model *m, half_tied *out) {
    *out = (half_tied){ m->tied_half, m->half_tied };
    return m->half_tied.p != NULL;
}

err model_publish(const model *m, exec *x) {
    TRY(refresh_copies(m, x->plan));
    exec_params_changed(x);
    return OK;
}

/* ---- constants ----------------------------------------------------------------------------- */
static int64_t rope_width(const model_config *c) {
    if (c->kv_latent) return c->rope_head_dim;
    return (int64_t)(c->rope_fraction * (double)c->head_dim);
}

int64_t rope_dims(const model_config *c) { return (rope_width(c) + 1) / 2 * 2; }

/* Llama 3: frequencies of few turns within the original context are divided by the factor, those of
 * many are kept, and those between are interpolated. */
static double llama3_frequency(const model_config *c, double f) {
    double turns = (double)c->rope_original * f / 6.283185307179586;
    if (turns <= c->rope_low) return f / c->rope_factor;
    if (turns >= c->rope_high) return f;
    double blend = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - blend) * f / c->rope_factor + blend * f;
}

/* Yarn interpolates by the number of the frequency, between those that turn beta_fast and beta_slow times within
 * the original context. */
static double yarn_bound(const model_config *c, double turns) {
    double ratio = (double)c->rope_original / (turns * 6.283185307179586);
    return (double)rope_width(c) * log(ratio) / (2 * log(c->rope_theta));
}

static double yarn_frequency(const model_config *c, double f, int64_t j) {
    double low = yarn_bound(c, c->rope_fast), high = yarn_bound(c, c->rope_slow);
    if (c->rope_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, (double)rope_width(c) - 1);
    if (low == high) high += 0.001; /* as the reference implementation avoids the division by 0 */
    double stretched = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return stretched * f / c->rope_factor + (1 - stretched) * f;
}

/* of rotated queries and keys, where scaling has one */
double rope_factor_of(const model_config *c) {
    bool yarn = c->rope_scaling == ROPE_YARN, beyond = c->rope_scaling == ROPE_LONG;
    if (c->pos != POS_ROPE || (!yarn && !beyond)) return 1;
    if (c->rope_attention != 0) return c->rope_attention;
    if (yarn) return 0.1 * log(c->rope_factor) + 1;
    return c->rope_factor > 1 ? sqrt(1 + log(c->rope_factor) / log((double)c->rope_original)) : 1;
}

int64_t rope_switch(const model_config *c) {
    return c->pos == POS_ROPE && c->rope_scaling == ROPE_LONG ? c->rope_original : INT64_MAX;
}

double rope_frequency(const model_config *c, int64_t j, int64_t length) {
    double f = pow(c->rope_theta, -2.0 * (double)j / (double)rope_width(c));
    const fact_list *divisor = length > rope_switch(c) ? &c->rope_long : &c->rope_short;
    switch (length ? c->rope_scaling : ROPE_PLAIN) {
    case ROPE_PLAIN:
    case ROPE_DYNAMIC: break; /* positions end where it would begin to stretch */
    case ROPE_LINEAR: return f / c->rope_factor;
    case ROPE_LLAMA3: return llama3_frequency(c, f);
    case ROPE_YARN: return yarn_frequency(c, f, j);
    case ROPE_LONG: return f / divisor->of[j];
    }
    return f;
}

const char *rope_input_name(const model_config *c, int64_t length) {
    if (length > rope_switch(c)) return "rope_long";
    return c->window && c->rope_local != 0 ? "rope_local" : "rope";
}

/* Fills the table of the layers that are like `c`, of sequences of this length. */
static void fill_rope(const model *m, plan *p, const model_config *c, int64_t length) {
    const char *name = rope_input_name(c, length);
    void *at = plan_input(p, name, 0);
    if (!at || c->pos != POS_ROPE) return;
    int64_t rot = rope_dims(c), half = rot / 2, rows = 0;
    double factor = rope_factor_of(c);
    tensor shape;
    for (int i = 0; i < m->records; i++)
        if (prog_input_shape(m->recorded[i], name, &shape)) rows = MAX(rows, shape.dim[0]);
    size_t bytes = (size_t)(rows * rot) * sizeof(float);
    float *table = mem_alloc(bytes); /* [positions, rot]: cos | sin */
    for (int64_t j = 0; j < half; j++) {
        double f = rope_frequency(c, j, length);
        for (int64_t t = 0; t < rows; t++) {
            table[t * rot + j] = (float)(factor * cos((double)t * f));
            table[t * rot + half + j] = (float)(factor * sin((double)t * f));
        }
    }
    plan_put(p, at, table, bytes);
    free(table);
}

void model_fill_constants(const model *m, plan *p) {
    for (int k = 0; k < m->kinds; k++) {
        fill_rope(m, p, &m->of[k], 1);
        if (rope_switch(&m->of[k]) < m->c.max_seq) fill_rope(m, p, &m->of[k], m->c.max_seq);
    }
}
