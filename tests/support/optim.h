/* The tests of the optimizer share these: a model, a plan and an optimizer on one rank, and gradients
 * that depend on the element alone. */
#ifndef INGOT_TESTS_OPTIM_H
#define INGOT_TESTS_OPTIM_H

#include "support/model.h"

#include "ops/block8.h"
#include "optim/optim.h"
#include "support/watch.h"

typedef struct optim_fixture {
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    int rank;
} optim_fixture;

static int calls_made[OP_COUNT];
static void count_call(const op_call *c) {
    __atomic_fetch_add(&calls_made[c->op], 1, __ATOMIC_RELAXED);
    call_on_cpu(c);
}
static const op_backend *counting(void) {
    static op_backend b;
    static watched_kernels kernels;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!b.name) b = backend_watched(&kernels, count_call);
    pthread_mutex_unlock(&lock);
    return &b;
}

static err fixture_make(optim_fixture *r, const model_config *c, const model_layout *l,
                        const optim_settings *s, comm *end) {
    *r = (optim_fixture){ .rank = comm_rank(end) };
    model_layout lay = *l;
    lay.mesh.rank = r->rank;
    TRY(model_new(c, &lay, &r->m));
    r->p = plan_new(&l->mesh, counting(), 1);
    model_reserve(r->m, r->p, true);
    TRY(optim_new(s, r->m, r->p, &r->o));
    TRY(plan_commit(r->p));
    model_init(r->m, r->p, 42);
    r->x = (exec){ .plan = r->p, .comm = end };
    return OK;
}

static void fixture_free(optim_fixture *r) {
    optim_free(r->o);
    plan_free(r->p);
    model_free(r->m);
}

/* Calls fn for every element of every parameter stored here: where its weight, gradient and copy
 * lie, and its index in the whole parameter. */
typedef struct element {
    const model_param *q;
    int64_t global;
    float *p, *g;
    const void *copy;
    dtype copy_dt;
} element;
static void each_element(optim_fixture *r, void (*fn)(void *ctx, const element *e), void *ctx) {
    for (int i = 0; i < model_buckets(r->m); i++) {
        bucket_view b = model_bucket(r->m, i);
        float *p = (float *)plan_data(r->p, b.master.region) + b.master.at;
        float *g = (float *)plan_data(r->p, b.grad.region) + b.grad.at;
        const char *copy = b.copy.region >= 0 ? plan_data(r->p, b.copy.region) : NULL;
        if (copy) copy += (size_t)b.copy.at * dt_size(b.dt);
        for (int k = 0; k < model_params(r->m); k++) {
            param_range z;
            if (!model_param_range(r->m, k, &b, &z)) continue;
            for (int64_t e = z.from; e < z.to; e++) {
                int64_t at = z.at + e - z.from;
                fn(ctx, &(element){ .q = model_param_at(r->m, k),
                                    .global = model_global_index(r->m, k, e),
                                    .p = p + at,
                                    .g = g + at,
                                    .copy = copy ? copy + (size_t)at * dt_size(b.dt) : NULL,
                                    .copy_dt = b.dt });
            }
        }
    }
}

/* A gradient that depends on the parameter, the global element and the step alone. */
static float gradient_of(const model_param *q, int64_t global, uint64_t step) {
    return 0.05f * rng_normal(rng_key_of(step, hash_str(q->name)), (uint64_t)global);
}
static void set_gradient(void *ctx, const element *e) {
    *e->g = gradient_of(e->q, e->global, *(const uint64_t *)ctx);
}
static void fill_gradients(optim_fixture *r, uint64_t step) {
    /* other ranks' slices hold anything, and in slices so does the padding between parameters: neither may
     * be read */
    const model_layout *l = model_lay(r->m);
    bool slices = l->zero >= 2 && mesh_size(&l->mesh, AX_DP_SHARD) > 1;
    for (int i = 0; i < model_buckets(r->m); i++) {
        bucket_view b = model_bucket(r->m, i);
        size_t bytes;
        plan_region_info(r->p, b.grad.region, &bytes);
        float *all = plan_data(r->p, b.grad.region), *g = all + b.grad.at;
        for (size_t k = 0; k < bytes / sizeof *all; k++) all[k] = 1e6f;
        for (int64_t k = 0; k < b.count; k++) g[k] = slices ? 1e6f : 0;
    }
    each_element(r, set_gradient, &step);
}

static optim_settings settings_of(optim_kind kind) {
    return (optim_settings){ .kind = kind,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .momentum = 0.9,
                             .nesterov = true };
}

#endif
