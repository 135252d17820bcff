/* A model's memory: plan regions for its buckets, initial weights, constants, the inputs of a
 * batch. */
#include "model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int bucket_instances(const model *m, int b) {
    return m->info[b].where == BUCKET_BLOCK ? m->c.layers : 1;
}

static dtype master_of(const model *m, int b) {
    return m->l.master == DT_BF16 && m->bucket[b].dt == DT_BF16 ? DT_BF16 : DT_F32;
}

void model_reserve(model *m, plan *p, bool train) {
    for (int b = 0; b < m->buckets; b++) {
        bucket_info *k = &m->info[b];
        int n = bucket_instances(m, b);
        size_t count = (size_t)bucket_stored(&m->bucket[b], &m->l.mesh);
        k->master = mem_grow(k->master, (size_t)n * sizeof(int));
        k->copy = mem_grow(k->copy, (size_t)n * sizeof(int));
        k->grad = mem_grow(k->grad, (size_t)n * sizeof(int));
        for (int l = 0; l < n; l++) {
            dtype dt = m->bucket[b].dt, master = master_of(m, b);
            k->master[l] = plan_region(p, "params", count * dt_size(master));
            k->copy[l] = dt != master ? plan_region(p, "copies", count * dt_size(dt)) : -1;
            k->grad[l] = -1;
        }
    }
    for (int b = 0; b < m->buckets && train; b++) { /* contiguous: their norm is one call */
        size_t count = (size_t)bucket_stored(&m->bucket[b], &m->l.mesh);
        for (int l = 0; l < bucket_instances(m, b); l++)
            m->info[b].grad[l] = plan_region(p, "grads", count * sizeof(float));
    }
}

bucket_regions model_bucket_regions(void *ctx, int b, int layer) {
    const model *m = ctx;
    const bucket_info *k = &m->info[b];
    int l = k->where == BUCKET_BLOCK ? layer : 0;
    return (bucket_regions){ k->copy[l] >= 0 ? k->copy[l] : k->master[l], k->grad[l] };
}

int model_buckets(const model *m) {
    int n = 0;
    for (int b = 0; b < m->buckets; b++) n += bucket_instances(m, b);
    return n;
}

bucket_view model_bucket(const model *m, int i, int rank) {
    int b = 0;
    while (i >= bucket_instances(m, b)) i -= bucket_instances(m, b++);
    const bucket_info *k = &m->info[b];
    int64_t count = bucket_stored(&m->bucket[b], &m->l.mesh);
    int slice = m->bucket[b].sharded ? mesh_coord(&m->l.mesh, rank, AX_DP) : 0;
    bucket_view v = { .name = m->bucket[b].name,
                      .bucket = b,
                      .layer = k->where == BUCKET_BLOCK ? i : -1,
                      .dt = m->bucket[b].dt,
                      .count = count,
                      .first = count * slice,
                      .master_dt = master_of(m, b),
                      .master = -1,
                      .copy = -1,
                      .grad = -1 };
    if (k->master) {
        v.master = k->master[i];
        v.copy = k->copy[i];
        v.grad = k->grad[i];
    }
    return v;
}

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
static bool find_param(const model *m, int rank, int param, bucket_view *b, param_range *r) {
    for (int i = 0; i < model_buckets(m); i++) {
        *b = model_bucket(m, i, rank);
        if (model_param_range(m, param, b, r)) return true;
    }
    return false;
}

float *model_param_data(const model *m, const plan *p, int rank, int param, param_part part,
                        param_range *range) {
    bucket_view b;
    param_range r;
    if (!find_param(m, rank, param, &b, &r)) return NULL;
    BUG_IF(part == PARAM_MASTER && b.master_dt != DT_F32);
    if (range) *range = r;
    return (float *)plan_data(p, part == PARAM_MASTER ? b.master : b.grad) + r.at;
}

/* n elements from `at` on of a region of this type. */
static err get_values(const plan *p, int region, dtype dt, int64_t at, int64_t n, float *to) {
    const char *from = (const char *)plan_data(p, region) + (size_t)at * dt_size(dt);
    if (dt == DT_F32) return plan_get(p, to, from, (size_t)n * sizeof *to);
    void *raw = mem_alloc((size_t)n * dt_size(dt));
    err e = plan_get(p, raw, from, (size_t)n * dt_size(dt));
    if (!e) dt_to_f32(dt, raw, to, n);
    free(raw);
    return e;
}

static void put_values(const plan *p, int region, dtype dt, int64_t at, int64_t n,
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

err model_weights_get(const model *m, const plan *p, int rank, int param, float *to) {
    bucket_view b;
    param_range r;
    if (!find_param(m, rank, param, &b, &r)) return OK;
    return get_values(p, b.master, b.master_dt, r.at, r.to - r.from, to);
}

void model_weights_set(const model *m, const plan *p, int rank, int param, const float *from) {
    bucket_view b;
    param_range r;
    if (find_param(m, rank, param, &b, &r))
        put_values(p, b.master, b.master_dt, r.at, r.to - r.from, from);
}

int64_t model_global_index(const model *m, int param, int rank, int64_t local) {
    const model_param *p = &m->param[param];
    int64_t row = local / p->local[1], col = local % p->local[1];
    int coord = mesh_coord(&m->l.mesh, rank, AX_TP);
    if (p->tp.kind == PL_S && p->tp.dim == 0) row += coord * p->local[0];
    if (p->tp.kind == PL_S && p->tp.dim == 1) col += coord * p->local[1];
    return row * p->dim[1] + col;
}

/* ---- initial weights ------------------------------------------------------------------------ */
/* Standard deviation: init_std, divided by sqrt(2 layers) for the outputs of branches. µP divides
 * that of hidden weights by the square root of the width relative to the base's. */
static double init_deviation(const model_config *c, const model_param *p) {
    double std = c->init_std;
    if (p->init == INIT_NORMAL_DEPTH) std /= sqrt(2.0 * c->layers);
    if (c->mup && p->role == ROLE_HIDDEN) std *= sqrt((double)c->mup_base / (double)c->dim);
    return std;
}

typedef struct init_job {
    const model *m;
    int param, rank;
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
        if (drawn)
            rng_normals(j->key, (uint64_t)model_global_index(j->m, j->param, j->rank, e), end - e,
                        at);
        for (int64_t k = 0; k < end - e; k++)
            at[k] = drawn ? (float)j->std * at[k] : p->init == INIT_ONES ? 1 : 0;
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

/* Writes a bucket's values to one of its regions, converted to the region's type. */
static void put_bucket(const plan *p, pool *threads, int region, dtype dt, int64_t n,
                       const float *values, void *narrow) {
    const void *from = values;
    if (dt != DT_F32) {
        narrow_job j = { dt, values, narrow, n };
        pool_run(threads, (n + INIT_CHUNK - 1) / INIT_CHUNK, narrow_chunk, &j);
        from = narrow;
    }
    plan_put(p, plan_data(p, region), from, (size_t)n * dt_size(dt));
}

static void put_master_and_copy(const plan *p, pool *threads, const bucket_view *b,
                                const float *values, void *narrow) {
    put_bucket(p, threads, b->master, b->master_dt, b->count, values, narrow);
    if (b->copy >= 0) put_bucket(p, threads, b->copy, b->dt, b->count, values, narrow);
}

static int64_t largest_bucket(const model *m, int rank) {
    int64_t most = 0;
    for (int i = 0; i < model_buckets(m); i++) most = MAX(most, model_bucket(m, i, rank).count);
    return most;
}

void model_init(model *m, plan *p, int rank, uint64_t seed) {
    pool *threads = pool_new(0);
    size_t most = (size_t)largest_bucket(m, rank);
    float *values = mem_alloc(most * sizeof *values);
    void *narrow = mem_alloc(most * sizeof(uint16_t));
    for (int i = 0; i < model_buckets(m); i++) {
        bucket_view b = model_bucket(m, i, rank);
        memset(values, 0, (size_t)b.count * sizeof *values); /* the padding between parameters */
        for (int k = 0; k < m->params; k++) {
            init_job j = { .m = m, .param = k, .rank = rank };
            if (!model_param_range(m, k, &b, &j.range)) continue;
            j.key = rng_key_of(seed, hash_str(m->param[k].name));
            j.at = values + j.range.at;
            j.std = init_deviation(&m->c, &m->param[k]);
            int64_t n = j.range.to - j.range.from;
            pool_run(threads, (n + INIT_CHUNK - 1) / INIT_CHUNK, init_chunk, &j);
        }
        put_master_and_copy(p, threads, &b, values, narrow);
    }
    free(values);
    free(narrow);
    pool_free(threads);
    model_fill_constants(m, p);
}

err model_refresh_copies(const model *m, plan *p, int rank) {
    pool *threads = pool_new(0);
    size_t most = (size_t)largest_bucket(m, rank);
    float *values = mem_alloc(most * sizeof *values);
    void *narrow = mem_alloc(most * sizeof(uint16_t));
    err e = OK;
    for (int i = 0; i < model_buckets(m) && !e; i++) {
        bucket_view b = model_bucket(m, i, rank);
        if (b.copy < 0) continue;
        e = get_values(p, b.master, b.master_dt, 0, b.count, values);
        if (!e) put_bucket(p, threads, b.copy, b.dt, b.count, values, narrow);
    }
    free(values);
    free(narrow);
    pool_free(threads);
    return e;
}

/* ---- constants and inputs ---------------------------------------------------------------- */
int64_t rope_width(const model_config *c) {
    return (int64_t)(c->rope_fraction * (double)c->head_dim);
}

int64_t rope_dims(const model_config *c) { return (rope_width(c) + 1) / 2 * 2; }

/* Llama 3: frequencies of few turns within the original context are divided by the factor, those of
 * many are kept, and those between are interpolated. */
static double scaled_frequency(const model_config *c, double f) {
    if (c->rope_scaling != ROPE_LLAMA3) return f;
    double turns = (double)c->rope_original * f / 6.283185307179586;
    if (turns <= c->rope_low) return f / c->rope_factor;
    if (turns >= c->rope_high) return f;
    double blend = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - blend) * f / c->rope_factor + blend * f;
}

void model_fill_constants(const model *m, plan *p) {
    void *at = plan_input(p, "rope");
    if (!at) return;
    int64_t rot = rope_dims(&m->c), half = rot / 2, rows = 0;
    double width = (double)rope_width(&m->c);
    tensor shape;
    for (int i = 0; i < m->records; i++)
        if (prog_input_shape(m->recorded[i], "rope", &shape)) rows = MAX(rows, shape.dim[0]);
    size_t bytes = (size_t)(rows * rot) * sizeof(float);
    float *table = mem_alloc(bytes); /* [positions, rot]: cos | sin */
    for (int64_t j = 0; j < half; j++) {
        double f = pow(m->c.rope_theta, -2.0 * (double)j / width);
        f = scaled_frequency(&m->c, f);
        for (int64_t t = 0; t < rows; t++) {
            table[t * rot + j] = (float)cos((double)t * f);
            table[t * rot + half + j] = (float)sin((double)t * f);
        }
    }
    plan_put(p, at, table, bytes);
    free(table);
}

void model_set_batch(const model *m, plan *p, int rank, const model_batch *b) {
    bool sp = m->l.sequence_parallel && mesh_size(&m->l.mesh, AX_TP) > 1;
    int parts = sp ? mesh_size(&m->l.mesh, AX_TP) : 1;
    int64_t n = b->n / parts, from = sp ? n * mesh_coord(&m->l.mesh, rank, AX_TP) : 0;
    const struct {
        const char *name;
        const void *data;
        size_t size;
        bool sharded;
    } in[] = {
        { "tokens", b->tokens, 4, true }, { "targets", b->targets, 4, true },
        { "pos_shard", b->pos, 4, true }, { "ids_shard", b->ids, 8, true },
        { "pos", b->pos, 4, false },      { "ids", b->ids, 8, false },
        { "start", b->start, 4, false },
    };
    for (size_t i = 0; i < COUNT_OF(in); i++) {
        void *to = plan_input(p, in[i].name);
        if (!to || !in[i].data) continue;
        size_t skip = in[i].sharded ? (size_t)from * in[i].size : 0;
        plan_put(p, to, (const char *)in[i].data + skip,
                 (size_t)(in[i].sharded ? n : b->n) * in[i].size);
    }
}
