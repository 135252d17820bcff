/* Optimizers over whole models: which parameter gets which rule and numbers, norms and steps that
 * do not depend on the layout. Their memory is tested in test_optim_memory.c, the kernels
 * themselves in test_update.c. */
#include "support/optim.h"
#include "optim/optim_internal.h"

/* The norm that the recorded program leaves, without the loss scale. */
static err grad_norm(optim_fixture *r, double *norm) {
    TRY(exec_program(&r->x, r->o->norm));
    return optim_half_norm(r->o, &r->x, norm);
}

/* ---- on any layout --------------------------------------------------------------------------- */
typedef struct spread {
    const layout *l;
    const optim_settings *s;
    float *weight[128]; /* whole parameters, after three steps */
    double norm;        /* of the first gradient */
    pthread_mutex_t lock;
    bool agree;
} spread;
typedef struct spread_rank {
    spread *all;
    comm *end;
    optim_fixture r;
    err error;
} spread_rank;

static void gather_weight(void *ctx, const element *e) {
    spread_rank *me = ctx;
    int k = model_find_param(me->r.m, e->q->name);
    float **w = &me->all->weight[k];
    if (!*w) {
        *w = mem_alloc((size_t)(e->q->dim[0] * e->q->dim[1]) * sizeof(float));
        for (int64_t i = 0; i < e->q->dim[0] * e->q->dim[1]; i++) (*w)[i] = NAN;
    }
    float *at = &(*w)[e->global];
    if (!isnan(*at) && memcmp(at, e->p, sizeof *at)) me->all->agree = false;
    *at = *e->p;
}

static err spread_run(spread_rank *me) {
    const layout *l = me->all->l;
    model_config c = small_llama();
    model_layout lay = { .mesh = { .size = { [AX_DP_REPLICATE] = l->replicas,
                                             [AX_DP_SHARD] = l->dp,
                                             [AX_TP] = l->tp } },
                         .dt = l->dt ? l->dt : DT_F32,
                         .zero = l->zero };
    double norm = 0;
    TRY(fixture_make(&me->r, &c, &lay, me->all->s, me->end));
    exec_state_set(&me->r.x, &(step_state){ .loss_scale = 2 });
    for (uint64_t step = 0; step < 3; step++) {
        fill_gradients(&me->r, step);
        TRY(grad_norm(&me->r, &norm));
        pthread_mutex_lock(&me->all->lock);
        if (!step && me->all->norm != 0 && me->all->norm != norm) me->all->agree = false;
        if (!step) me->all->norm = norm;
        pthread_mutex_unlock(&me->all->lock);
        TRY(optim_step(me->r.o, &me->r.x, 0.01, 1.0));
        if (me->r.x.step.now.norm != (float)norm || me->r.x.step.now.count != (int64_t)step + 1)
            return ERR("step %d: the norm is %g, the step's %g", (int)step, norm,
                       (double)me->r.x.step.now.norm);
    }
    pthread_mutex_lock(&me->all->lock);
    each_element(&me->r, gather_weight, me);
    pthread_mutex_unlock(&me->all->lock);
    fixture_free(&me->r);
    return OK;
}
static void *spread_main(void *arg) {
    spread_rank *me = arg;
    me->error = spread_run(me);
    return NULL;
}

static void spread_on(const layout *l, const optim_settings *s, spread *out) {
    *out = (spread){ .l = l, .s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .agree = true };
    mesh me = { .size = {
                    [AX_DP_REPLICATE] = l->replicas, [AX_DP_SHARD] = l->dp, [AX_TP] = l->tp } };
    comm *ends[RUN_MAX_RANKS] = { comm_self() };
    int n = mesh_world(&me);
    if (n > 1) {
        comm_free(ends[0]);
        assert_ok(comm_threads(me, 20, ends));
    }
    spread_rank rank[RUN_MAX_RANKS];
    pthread_t thread[RUN_MAX_RANKS];
    for (int r = 0; r < n; r++) {
        rank[r] = (spread_rank){ .all = out, .end = ends[r] };
        pthread_create(&thread[r], NULL, spread_main, &rank[r]);
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < n; r++) assert_ok(rank[r].error);
    for (int r = 0; r < n; r++) comm_free(ends[r]);
}

static const layout layouts[] = {
    { .name = "dp2", .dp = 2, .tp = 1 },
    { .name = "tp2", .dp = 1, .tp = 2 },
    { .name = "zero1 dp2", .dp = 2, .zero = 1 },
    { .name = "zero1 dp2 in bf16", .dp = 2, .zero = 1, .dt = DT_BF16 },
    { .name = "zero3 dp2 in bf16", .dp = 2, .zero = 3, .dt = DT_BF16 },
    { .name = "zero2 dp2 tp2", .dp = 2, .tp = 2, .zero = 2 },
    { .name = "hsdp 2 x zero1 dp2", .replicas = 2, .dp = 2, .zero = 1 },
    { .name = "hsdp 2 x zero3 dp2", .replicas = 2, .dp = 2, .zero = 3 },
    { .name = "zero3 dp2", .dp = 2, .tp = 1, .zero = 3 },
    { .name = "zero3 dp2 tp2", .dp = 2, .tp = 2, .zero = 3 },
};

static double expected_norm(void) {
    model_config c = small_llama();
    model_layout lay = { .dt = DT_F32 };
    model *m;
    double sum = 0;
    assert_ok(model_new(&c, &lay, &m));
    for (int k = 0; k < model_params(m); k++) {
        const model_param *q = model_param_at(m, k);
        for (int64_t i = 0; i < q->dim[0] * q->dim[1]; i++) sum += pow(gradient_of(q, i, 0), 2);
    }
    model_free(m);
    return 0.5 * sqrt(sum);
}

static double largest_difference(const spread *a, const spread *b, const model *m) {
    double worst = 0;
    for (int k = 0; k < model_params(m); k++) {
        const model_param *q = model_param_at(m, k);
        for (int64_t i = 0; i < q->dim[0] * q->dim[1]; i++) {
            double d = fabs((double)a->weight[k][i] - b->weight[k][i]);
            if (!(d <= worst)) worst = d;
        }
    }
    return worst;
}

static void spread_free(spread *s) {
    for (int k = 0; k < 128; k++) free(s->weight[k]);
}

/* Each element counts once, whoever holds it; the padding never; and weights follow those of one rank that computes in
 * the same type: Muon's iterations do. */
static void layouts_take_the_same_steps(void **state) {
    static const struct {
        optim_kind kind;
        double agc, within;
        int groups;   /* of `mixed` */
        bool options; /* of Muon */
    } rules[] = { { OPTIM_ADAMW, 0, 2e-6 },         { OPTIM_LION, 0, 2e-6 },
                  { OPTIM_MOMENTUM, 0, 2e-6 },      { OPTIM_ADAFACTOR, 0, 2e-6 },
                  { OPTIM_MUON, 0, 2e-6 },          { OPTIM_ADAMW, 0.02, 2e-6 },
                  { OPTIM_MUON, 0, 2e-6, 2 },       { OPTIM_ADAMW, 0.02, 2e-6, 3 },
                  { OPTIM_MUON, 0, 2e-6, 0, true }, { OPTIM_ADAMW, 0, 2e-6, 3, true } };
#define GROUP(...)                                                                                 \
    {                                                                                              \
        .beta1 = NAN, .beta2 = NAN, .eps = NAN, .weight_decay = NAN, .momentum = NAN,              \
        .lr_base_width = CFG_AUTO, __VA_ARGS__                                                     \
    }
    static const cfg_group mixed[] = {
        GROUP(.match = "mlp.*", .name = OPTIM_ADAFACTOR, .lr = 0.02),
        GROUP(.match = "embed", .name = OPTIM_LION, .lr = 0.001),
        GROUP(.match = "l1.attn.*", .name = OPTIM_MUON, .lr = 0.005),
    };
    const layout single[] = { { .name = "one", .dp = 1, .tp = 1 },
                              { .name = "one in bf16", .dp = 1, .tp = 1, .dt = DT_BF16 } };
    model_config c = small_llama();
    model *m;
    assert_ok(model_new(&c, &(model_layout){ .dt = DT_F32 }, &m));
    for (size_t k = 0; k < COUNT_OF(rules); k++) {
        optim_settings s = settings_of(rules[k].kind);
        s.agc = rules[k].agc;
        s.lr = 0.01;
        s.equilibrate = s.cautious = rules[k].options;
        s.muon_beta2 = rules[k].options ? 0.9 : 0;
        s.groups = rules[k].groups;
        memcpy(s.group, mixed, (size_t)s.groups * sizeof *mixed);
        spread ones[2];
        for (int t = 0; t < 2; t++) {
            spread_on(&single[t], &s, &ones[t]);
            assert_true(fabs(ones[t].norm / expected_norm() - 1) < 1e-6);
        }
        for (size_t i = 0; i < COUNT_OF(layouts); i++) {
            spread many;
            const spread *one = &ones[layouts[i].dt == DT_BF16];
            spread_on(&layouts[i], &s, &many);
            if (fabs(many.norm / one->norm - 1) > 1e-6)
                fail_msg("%s: norm %.9g, expected %.9g", layouts[i].name, many.norm, one->norm);
            if (!many.agree) fail_msg("%s: ranks differ", layouts[i].name);
            double worst = largest_difference(&many, one, m);
            if (!(worst < rules[k].within))
                fail_msg("%s, rule %zu: weights differ by %g", layouts[i].name, k, worst);
            spread_free(&many);
        }
        for (int t = 0; t < 2; t++) spread_free(&ones[t]);
    }
    model_free(m);
}

/* ---- what each parameter gets ---------------------------------------------------------------- */
/* Without a gradient decay alone moves weights: matrices, the embedding and head too, no vector. */
static void set_zero(void *ctx, const element *e) { *e->g = 0; }
static void set_three(void *ctx, const element *e) { *e->p = 3; }
static void check_decay(void *ctx, const element *e) {
    double want = e->q->ndim == 2 ? 3 * (1 - 0.01 * 0.1) : 3;
    if (fabs(*e->p - want) > 1e-6) fail_msg("%s is %.8g, expected %.8g", e->q->name, *e->p, want);
}
/* One step from weights of 3. @param set the gradients; @param ctx of check */
static void step_and_check(const model_config *c, const optim_settings *s,
                           void (*set)(void *ctx, const element *e),
                           void (*check)(void *ctx, const element *e), void *ctx) {
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, c, &(model_layout){ .dt = DT_F32 }, s, end));
    each_element(&r, set, NULL);
    each_element(&r, set_three, NULL);
    assert_ok(optim_step(r.o, &r.x, 0.01, 0));
    each_element(&r, check, ctx);
    fixture_free(&r);
    comm_free(end);
}
static void only_matrices_decay(void **state) {
    static const optim_kind kinds[] = { OPTIM_SGD,      OPTIM_ADAMW,     OPTIM_LION,
                                        OPTIM_ADAM8BIT, OPTIM_ADAFACTOR, OPTIM_MUON };
    model_config c = small_llama();
    c.bias = true;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        optim_settings s = settings_of(kinds[k]);
        step_and_check(&c, &s, set_zero, check_decay, NULL);
    }
}

/* The first step of Lion moves every weight by its learning rate: µP's factors show. */
static void check_lion_step(void *ctx, const element *e) {
    double want = 3 - 0.01 * (e->q->role == ROLE_HIDDEN ? 8.0 / 32 : 1);
    if (fabs(*e->p - want) > 1e-6) fail_msg("%s is %.8g, expected %.8g", e->q->name, *e->p, want);
}
static void set_one(void *ctx, const element *e) { *e->g = 1; }
static void mup_scales_the_rates(void **state) {
    model_config c = small_llama();
    c.mup = true;
    c.mup_base = 8;
    optim_settings s = settings_of(OPTIM_LION);
    s.weight_decay = 0;
    step_and_check(&c, &s, set_one, check_lion_step, NULL);
}

/* Adam has decay in its gradient, and so in its normalized step; AdamW (only_matrices_decay) beside it. */
static void check_l2_step(void *ctx, const element *e) {
    double want = e->q->ndim == 2 ? 3 - 0.01 : 3;
    if (fabs(*e->p - want) > 1e-5) fail_msg("%s is %.8g, expected %.8g", e->q->name, *e->p, want);
}
static void adam_decays_through_the_gradient(void **state) {
    model_config c = small_llama();
    optim_settings s = settings_of(OPTIM_ADAM);
    step_and_check(&c, &s, set_zero, check_l2_step, NULL);
}

/* Muon's steps have the size of the matrix already: µP changes none of the matrices in blocks. */
typedef struct hidden_weights {
    float *at; /* NULL: only counted */
    int64_t n;
} hidden_weights;
static void gather_hidden(void *ctx, const element *e) {
    hidden_weights *h = ctx;
    if (e->q->role != ROLE_HIDDEN) return;
    if (h->at) h->at[h->n] = *e->p;
    h->n++;
}
static hidden_weights after_muon_step(bool mup) {
    model_config c = small_llama();
    c.mup = mup;
    c.mup_base = 8;
    optim_settings s = settings_of(OPTIM_MUON);
    comm *end = comm_self();
    optim_fixture r;
    hidden_weights h = { 0 };
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    each_element(&r, set_three, NULL);
    fill_gradients(&r, 0);
    assert_ok(optim_step(r.o, &r.x, 0.01, 0));
    each_element(&r, gather_hidden, &h);
    h = (hidden_weights){ mem_alloc((size_t)h.n * sizeof *h.at), 0 };
    each_element(&r, gather_hidden, &h);
    fixture_free(&r);
    comm_free(end);
    return h;
}
static void mup_leaves_the_steps_of_muon(void **state) {
    hidden_weights plain = after_muon_step(false), mup = after_muon_step(true);
    assert_true(plain.n == mup.n && plain.n > 0);
    assert_memory_equal(plain.at, mup.at, (size_t)plain.n * sizeof *plain.at);
    free(plain.at);
    free(mup.at);
}

/* Rows of weights are 3 sqrt(C) long and rows of gradients 10 sqrt(C): with a factor of 0.1 only
 * 0.3 of each element is left, but not of vectors and not of the head, tied or not. */
static void set_ten(void *ctx, const element *e) { *e->g = 10; }
static void check_agc(void *ctx, const element *e) {
    const bool *tied = ctx;
    bool free_ = e->q->ndim == 1 || !strcmp(e->q->name, *tied ? "embed.tokens" : "head");
    double want = 3 - 0.01 * (free_ ? 10 : 0.3);
    if (fabs(*e->p - want) > 1e-6) fail_msg("%s is %.8g, expected %.8g", e->q->name, *e->p, want);
}
static void agc_spares_vectors_and_the_head(void **state) {
    for (int tied = 0; tied < 2; tied++) {
        model_config c = small_llama();
        c.tied = tied;
        optim_settings s = settings_of(OPTIM_SGD);
        s.weight_decay = 0;
        s.agc = 0.1;
        step_and_check(&c, &s, set_ten, check_agc, &(bool){ tied });
    }
}

/* Muon takes q, k and v apart: each comes out with singular values near 1. Its other parameters
 * move as AdamW moves them. */
static double spectral_square(const float *a, int64_t rows, int64_t cols) { /* largest, of a a^T */
    double x[64], y[64], length = 0;
    BUG_IF(rows > 64 || cols > 64);
    for (int64_t i = 0; i < rows; i++) x[i] = 1 + 0.1 * (double)i;
    for (int t = 0; t < 200; t++) {
        for (int64_t j = 0; j < cols; j++) {
            y[j] = 0;
            for (int64_t i = 0; i < rows; i++) y[j] += a[i * cols + j] * x[i];
        }
        length = 0;
        for (int64_t i = 0; i < rows; i++) {
            x[i] = 0;
            for (int64_t j = 0; j < cols; j++) x[i] += a[i * cols + j] * y[j];
            length += x[i] * x[i];
        }
        length = sqrt(length);
        for (int64_t i = 0; i < rows; i++) x[i] /= length;
    }
    return length;
}
static void set_nothing(void *ctx, const element *e) { *e->p = 0; }
static void muon_orthogonalizes_each_part(void **state) {
    model_config c = small_llama();
    optim_settings s = settings_of(OPTIM_MUON);
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    fill_gradients(&r, 0);
    each_element(&r, set_nothing, NULL);
    assert_ok(optim_step(r.o, &r.x, 1, 0));
    for (int i = 0; i < model_buckets(r.m); i++) {
        bucket_view b = model_bucket(r.m, i);
        for (int k = 0; k < model_params(r.m); k++) {
            const model_param *q = model_param_at(r.m, k);
            param_range z;
            if (!model_param_range(r.m, k, &b, &z)) continue;
            const float *p = (const float *)plan_data(r.p, b.master.region) + b.master.at + z.at;
            if (q->role != ROLE_HIDDEN) { /* Adam's first step: the learning rate, by sign */
                for (int64_t e = 0; e < z.to; e++) assert_true(fabs(fabs(p[e]) - 1) < 0.05);
                continue;
            }
            double top = sqrt(spectral_square(p, q->local[0], q->local[1]));
            top /= sqrt(fmax(1, (double)q->local[0] / (double)q->local[1]));
            if (!(top > 0.65 && top < 1.3)) fail_msg("%s: largest singular value %g", q->name, top);
        }
    }
    fixture_free(&r);
    comm_free(end);
}

static void check_copy(void *ctx, const element *e) {
    if (!e->copy) return;
    uint16_t want;
    dt_from_f32(e->copy_dt, e->p, &want, 1);
    assert_memory_equal(&want, e->copy, sizeof want);
    ++*(int64_t *)ctx;
}
static void copies_are_refreshed(void **state) {
    static const dtype types[] = { DT_BF16, DT_F16 };
    for (optim_kind kind = OPTIM_SGD; kind <= OPTIM_MUON; kind++)
        for (size_t t = 0; t < COUNT_OF(types); t++) {
            model_config c = small_llama();
            optim_settings s = settings_of(kind);
            comm *end = comm_self();
            int64_t seen = 0;
            optim_fixture r;
            assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = types[t] }, &s, end));
            fill_gradients(&r, 0);
            assert_ok(optim_step(r.o, &r.x, 0.01, 0));
            each_element(&r, check_copy, &seen);
            assert_true(seen > 10000);
            fixture_free(&r);
            comm_free(end);
        }
}

/* ---- refusals -------------------------------------------------------------------------------- */
static void assert_refused(optim_settings s, model_layout l, bool mup, const char *because) {
    model_config c = small_llama();
    c.mup = mup;
    model *m;
    optimizer *o;
    if (!l.dt) l.dt = DT_F32;
    assert_ok(model_new(&c, &l, &m));
    plan *p = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(m, p, true);
    assert_error(optim_new(&s, m, p, &o), because);
    assert_null(o);
    plan_free(p);
    model_free(m);
}

/* ---- state that is not a weight -------------------------------------------------------------------- */
/* A router's bias moves by its rate, away from what is loaded more than the mean, under every optimizer; the
 * load is in no norm. */
static void router_biases_follow_the_load(void **state) {
    static const float load[] = { 4, 0, 2, 2, 100 }; /* the last counts what was dropped */
    for (int kind = OPTIM_SGD; kind <= OPTIM_MUON; kind++)
        for (int on = 0; on < 2; on++) {
            model_config c = small_moe();
            c.router_bias = on;
            c.router_bias_rate = 0.25;
            optim_settings s = settings_of((optim_kind)kind);
            comm *end = comm_self();
            optim_fixture r;
            assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
            int i = model_find_param(r.m, "l1.moe.bias");
            memcpy(model_param_data(r.m, r.p, i, PARAM_GRAD, NULL), load, sizeof load);
            double norm;
            assert_ok(grad_norm(&r, &norm));
            assert_true(norm == 0);
            assert_ok(optim_step(r.o, &r.x, 0.01, 0));
            const float *bias = model_param_data(r.m, r.p, i, PARAM_MASTER, NULL);
            const float want[] = { -0.25f, 0.25f, 0, 0, 0 };
            for (int e = 0; e < 5; e++) assert_true(bias[e] == (on ? want[e] : 0));
            fixture_free(&r);
            comm_free(end);
        }
}

static void bad_settings_are_refused(void **state) {
    model_layout plain = { .mesh = { .size = { [AX_DP_SHARD] = 1, [AX_TP] = 1 } } };
    optim_settings s = settings_of(OPTIM_ADAMW);
    assert_refused(settings_of(OPTIM_SGD), plain, true, "model.mup has no learning rates for sgd");
    model_layout narrow = { .mesh = { .size = { [AX_DP_SHARD] = 1, [AX_TP] = 1 } },
                            .master = DT_BF16 };
    assert_refused(settings_of(OPTIM_ADAMW), narrow, false, "computes in fp32");
    narrow.dt = DT_BF16;
    s.agc = 0.1;
    assert_refused(s, narrow, false, "training.agc needs weights in fp32");
    s = settings_of(OPTIM_ADAMW);
    s.offload = 1.5;
    assert_refused(s, plain, false, "optimizer.offload is 1.5");
    s = settings_of(OPTIM_ADAMW);
    s.beta2 = 0.999999999;
    assert_refused(s, plain, false, "optimizer.beta2");
}

static void check_untouched(void *ctx, const element *e) { assert_true(*e->p == 3); }
static void a_step_that_is_not_finite_is_skipped(void **state) {
    model_config c = small_llama();
    optim_settings s = settings_of(OPTIM_ADAMW);
    s.growth_interval = 10;
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    exec_state_set(&r.x, &(step_state){ .loss_scale = 8 });
    fill_gradients(&r, 0);
    each_element(&r, set_three, NULL);
    ((float *)plan_data(r.p, model_bucket(r.m, 0).grad.region))[3] = INFINITY;
    double norm;
    assert_ok(grad_norm(&r, &norm));
    assert_false(isfinite(norm));
    assert_ok(optim_step(r.o, &r.x, 0.01, 1));
    assert_true(r.x.step.now.skip && r.x.step.now.count == 0 && r.x.step.now.loss_scale == 4);
    each_element(&r, check_untouched, NULL);
    fill_gradients(&r, 0);
    assert_ok(optim_step(r.o, &r.x, 0.01, 1));
    assert_true(!r.x.step.now.skip && r.x.step.now.count == 1 && r.x.step.now.good == 1);
    err e = optim_step(r.o, &r.x, NAN, 1);
    assert_non_null(e);
    err_free(e);
    assert_int_equal(r.x.step.now.count, 1);
    fixture_free(&r);
    comm_free(end);
}

/* ---- the update as a program ----------------------------------------------------------------- */
/* A gradient that ranks have yet to sum cannot be updated from, nor can a matrix take the place of a vector. */
static void updates_refuse_what_does_not_fit(void **state) {
    mesh m = { .size = { [AX_DP_SHARD] = 2, [AX_TP] = 2 } };
    const struct {
        placement grad;
        axis_set summed;
        int64_t weights;
        const char *complaint; /* NULL: it is right */
    } cases[] = {
        { placement_on(AXIS(AX_DP_SHARD), PLACE_S(0)), 0, 64, NULL },
        { placement_on(AXIS(AX_TP), PLACE_P), 0, 64, "update_sgd reads g, which is tp:P" },
        { placement_on(AXIS(AX_TP), PLACE_P), AXIS(AX_TP), 64, NULL },
        { placement_on(AXIS(AX_TP), PLACE_P), AXIS(AX_DP_SHARD), 64, "update_sgd reads g" },
        { placement_on(0, PLACE_I), 0, 63, "p does not fit the signature" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        prog *p = prog_new("update", PROG_UPDATE, &m, &(param_set){ 0 }, &(prog_options){ 0 });
        change_request c = change_of(OP_UPDATE_SGD);
        val g = prog_region(p, "grads", 0, 0, DT_F32, 64, cases[i].grad);
        c.in[0] = rec_moved(p, g, cases[i].summed, PLACE_I);
        c.out[0] = prog_region(p, "params", 1, 0, DT_F32, cases[i].weights, (placement){ 0 });
        if (c.in[0] != VAL_NONE) rec_change(p, c);
        err e = prog_finish(p);
        if (cases[i].complaint)
            assert_error(e, cases[i].complaint);
        else
            assert_ok(e);
        prog_free(p);
    }
}

/* Muon's scratch memory is that of one round of layers, whatever the number of layers is: rounds share it. */
static void rounds_of_muon_share_their_memory(void **state) {
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        model_config c = small_llama();
        c.layers = i ? 8 : 2;
        optim_settings s = { .kind = OPTIM_MUON, .momentum = 0.95 };
        model_layout l = { .dt = DT_F32, .zero = 1, .mesh.size = { [AX_DP_SHARD] = 2 } };
        optim_fixture r = { 0 };
        assert_ok(model_new(&c, &l, &r.m));
        r.p = plan_new(&l.mesh, counting(), 1);
        model_reserve(r.m, r.p, true);
        assert_ok(optim_new(&s, r.m, r.p, &r.o));
        bytes[i] = plan_bytes(r.p, "temp");
        assert_true(bytes[i] > 0);
        fixture_free(&r);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

/* A direction and the length of it may be kept by two ops: states are those of both signatures, in their order. */
static void states_come_from_the_signatures_of_all_ops_that_keep_them(void **state) {
    rule_states x =
        rule_states_of(&(rule){ OP_UPDATE_ALONG, { OP_MUON_MOMENTUM, OP_FACTOR_MOMENTS } });
    const char *name[] = { "m", "row", "col" };
    state_shape shape[] = { AS_PARAM, AS_ROWS, AS_COLS };
    assert_int_equal(x.n, 3);
    for (int k = 0; k < x.n; k++) {
        op_signature sig = op_signature_of(x.state[k].op);
        assert_string_equal(x.state[k].name, name[k]);
        assert_int_equal(x.state[k].shape, shape[k]);
        assert_string_equal(sig.out[x.state[k].out].name, name[k]);
    }
    assert_int_equal(rule_states_of(&(rule){ OP_UPDATE_ADAM8 }).n, 2);
    assert_int_equal(rule_states_of(&(rule){ OP_UPDATE_SGD }).n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_come_from_the_signatures_of_all_ops_that_keep_them),
        cmocka_unit_test(layouts_take_the_same_steps),
        cmocka_unit_test(only_matrices_decay),
        cmocka_unit_test(mup_scales_the_rates),
        cmocka_unit_test(adam_decays_through_the_gradient),
        cmocka_unit_test(mup_leaves_the_steps_of_muon),
        cmocka_unit_test(agc_spares_vectors_and_the_head),
        cmocka_unit_test(muon_orthogonalizes_each_part),
        cmocka_unit_test(copies_are_refreshed),
        cmocka_unit_test(router_biases_follow_the_load),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(a_step_that_is_not_finite_is_skipped),
        cmocka_unit_test(updates_refuse_what_does_not_fit),
        cmocka_unit_test(rounds_of_muon_share_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
