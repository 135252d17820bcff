/* Muon with all of its options against a plain reference of the papers: Nesterov momentum that follows a schedule, rows of
 * equal norms (MuonEq), Polar Express in fp64, second moments per neuron (NorMuon), decay where the update agrees
 * (cautious) and follows a schedule. */
#include "support/optim.h"

#include "prog/prog_internal.h"
#include "prog/trace.h"

static const double LR = 0.02;

typedef struct matrix {
    double *p, *m, *v; /* weights, momentum, second moments by row or column */
    int64_t rows, cols;
} matrix;

static double square_sum(const double *x, int64_t n, int64_t stride) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * stride] * x[i * stride];
    return sum;
}
static void scale_by(double *x, int64_t n, int64_t stride, double by) {
    for (int64_t i = 0; i < n; i++) x[i * stride] *= by;
}

/* x = a x + (b G + c G G) x with G = x x^T, five times. */
static void polar_express(double *x, int64_t rows, int64_t cols) {
    static const double f[5][3] = {
        { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
        { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
        { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
        { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
        { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 },
    };
    size_t square = (size_t)(rows * rows) * sizeof(double);
    double *g = mem_alloc(square), *q = mem_alloc(square);
    double *y = mem_alloc((size_t)(rows * cols) * sizeof *y);
    for (int step = 0; step < 5; step++) {
        for (int64_t i = 0; i < rows * rows; i++) {
            g[i] = 0;
            for (int64_t k = 0; k < cols; k++)
                g[i] += x[i / rows * cols + k] * x[i % rows * cols + k];
        }
        for (int64_t i = 0; i < rows * rows; i++) {
            q[i] = f[step][1] * g[i] + (i / rows == i % rows ? f[step][0] : 0);
            for (int64_t k = 0; k < rows; k++)
                q[i] += f[step][2] * g[i / rows * rows + k] * g[k * rows + i % rows];
        }
        for (int64_t i = 0; i < rows * cols; i++) {
            y[i] = 0;
            for (int64_t k = 0; k < rows; k++)
                y[i] += q[i / cols * rows + k] * x[k * cols + i % cols];
        }
        memcpy(x, y, (size_t)(rows * cols) * sizeof *y);
    }
    free(g);
    free(q);
    free(y);
}

/* Each line over the root of its second moment, at the norm of an orthogonal matrix. */
static void even_out(matrix *x, double *u, double beta2) {
    int64_t n = x->rows * x->cols;
    bool by_row = x->rows >= x->cols;
    int64_t lines = by_row ? x->rows : x->cols, length = n / lines;
    int64_t stride = by_row ? 1 : x->cols, next = by_row ? x->cols : 1;
    double norm = sqrt((double)MIN(x->rows, x->cols));
    scale_by(u, n, 1, norm / sqrt(square_sum(u, n, 1)));
    for (int64_t i = 0; i < lines; i++) {
        double mean = square_sum(u + i * next, length, stride) / (double)length;
        x->v[i] = beta2 * x->v[i] + (1 - beta2) * mean;
        scale_by(u + i * next, length, stride, 1 / sqrt(x->v[i]));
    }
    scale_by(u, n, 1, norm / sqrt(square_sum(u, n, 1)));
}

static void reference_step(matrix *x, const optim_settings *s, const model_param *q, uint64_t step,
                           double mu, double decay) {
    int64_t n = x->rows * x->cols;
    double *u = mem_alloc((size_t)n * sizeof *u);
    for (int64_t i = 0; i < n; i++) {
        double g = gradient_of(q, i, step);
        x->m[i] = mu * x->m[i] + (1 - mu) * g;
        u[i] = (1 - mu) * g + mu * x->m[i];
    }
    for (int64_t r = 0; r < x->rows && s->equilibrate; r++)
        scale_by(u + r * x->cols, x->cols, 1, 1 / sqrt(square_sum(u + r * x->cols, x->cols, 1)));
    scale_by(u, n, 1, 1 / (1.01 * sqrt(square_sum(u, n, 1))));
    polar_express(u, x->rows, x->cols);
    if (s->muon_beta2 > 0) even_out(x, u, s->muon_beta2);
    double lr = LR, tall = sqrt(MAX(1.0, (double)x->rows / (double)x->cols));
    for (int64_t i = 0; i < n; i++) {
        bool agrees = u[i] * x->p[i] >= 0;
        double keep = s->cautious && !agrees ? 1 : 1 - lr * decay;
        x->p[i] = x->p[i] * keep - lr * tall * u[i];
    }
    free(u);
}

typedef struct comparison {
    matrix *of;
    const model *m;
    bool sets;
    double worst;
} comparison;
static void compare_element(void *ctx, const element *e) {
    comparison *c = ctx;
    matrix *x = &c->of[model_find_param(c->m, e->q->name)];
    if (e->q->role != ROLE_HIDDEN) return;
    if (c->sets) x->p[e->global] = *e->p;
    c->worst = MAX(c->worst, fabs(x->p[e->global] - (double)*e->p));
}

static double worst_after_steps(const optim_settings *s) {
    model_config c = small_llama();
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, s, end));
    matrix all[128] = { 0 };
    for (int i = 0; i < model_params(r.m); i++) {
        const model_param *q = model_param_at(r.m, i);
        size_t n = (size_t)(q->dim[0] * q->dim[1]);
        all[i] =
            (matrix){ mem_alloc(n * 8), mem_alloc(n * 8), mem_alloc(n * 8), q->dim[0], q->dim[1] };
    }
    comparison k = { all, r.m, true };
    each_element(&r, compare_element, &k);
    for (uint64_t step = 0; step < 4; step++) {
        optim_factors f = { .momentum = { 0.7, 0.3 * (double)step } };
        for (int i = 0; i < wd_schedule_count; i++) f.decay[i] = 1 - 0.2 * (double)step;
        double mu = s->momentum + f.momentum.weight * (0.7 - s->momentum);
        optim_set_factors(r.o, &f);
        fill_gradients(&r, step);
        assert_ok(optim_step(r.o, &r.x, LR, 0));
        for (int i = 0; i < model_params(r.m); i++)
            if (model_param_at(r.m, i)->role == ROLE_HIDDEN)
                reference_step(&all[i], s, model_param_at(r.m, i), step, mu,
                               s->weight_decay * f.decay[s->decay_by]);
    }
    k = (comparison){ all, r.m, false, 0 };
    each_element(&r, compare_element, &k);
    for (int i = 0; i < model_params(r.m); i++) {
        free(all[i].p);
        free(all[i].m);
        free(all[i].v);
    }
    fixture_free(&r);
    comm_free(end);
    return k.worst;
}

/* A step moves weights by up to 2e-2; every option moves them by far more than the tolerance. */
static void each_option_is_what_its_paper_states(void **state) {
    for (int options = 0; options < 8; options++) {
        optim_settings s = settings_of(OPTIM_MUON);
        s.polar = POLAR_EXPRESS;
        s.weight_decay = 0.5;
        s.decay_by = WD_COSINE;
        s.equilibrate = options & 1;
        s.muon_beta2 = options & 2 ? 0.9 : 0;
        s.cautious = options & 4;
        double worst = worst_after_steps(&s);
        if (!(worst < 2e-5)) fail_msg("options %d: weights differ by %g", options, worst);
    }
}

/* A matrix without any gradient stays, and so does one whose rows have none. */
static void set_some(void *ctx, const element *e) {
    bool none = e->q->layer == 0 || e->global / e->q->dim[1] == 1;
    *e->g = none ? 0 : gradient_of(e->q, e->global, 0);
}
static void check_finite(void *ctx, const element *e) {
    if (!isfinite(*e->p)) fail_msg("%s has %g", e->q->name, *e->p);
}
static void keep_first(void *ctx, const element *e) {
    double *sum = ctx;
    if (e->q->layer == 0 && e->q->role == ROLE_HIDDEN) *sum += *e->p;
}
static void rows_without_gradients_stay_finite(void **state) {
    model_config c = small_llama();
    comm *end = comm_self();
    optim_fixture r;
    optim_settings s = settings_of(OPTIM_MUON);
    double before = 0, after = 0;
    s.equilibrate = true;
    s.muon_beta2 = 0.9;
    s.weight_decay = 0;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    each_element(&r, keep_first, &before);
    for (int step = 0; step < 3; step++) {
        each_element(&r, set_some, NULL);
        assert_ok(optim_step(r.o, &r.x, LR, 0));
    }
    each_element(&r, check_finite, NULL);
    each_element(&r, keep_first, &after);
    assert_true(before == after);
    fixture_free(&r);
    comm_free(end);
}

/* How many matrices a rank's step packs. */
static int packed_by(const model_config *c, const model_layout *l, int rank) {
    optim_settings s = settings_of(OPTIM_MUON);
    model_layout own = *l;
    const prog *update;
    model *m;
    optimizer *o;
    int n = 0;
    own.mesh.rank = rank;
    assert_ok(model_new(c, &own, &m));
    plan *p = plan_new(&own.mesh, counting(), 1);
    model_reserve(m, p, true);
    assert_ok(optim_new(&s, m, p, &o));
    for (int i = 0; (update = optim_next_program(o, &i)) != NULL;)
        for (int k = 0; k < update->fwd.n; k++) n += update->fwd.op[k].op == OP_MUON_PACK;
    optim_free(o);
    plan_free(p);
    model_free(m);
    return n;
}

/* The ranks of a group share the matrices evenly, to one of each shape. */
static void a_group_orthogonalizes_each_matrix_once(void **state) {
    static const model_layout layouts[] = {
        { .dt = DT_F32, .mesh.size = { [AX_TP] = 2 } },
        { .dt = DT_F32, .mesh.size = { [AX_TP] = 4 } },
        { .dt = DT_F32, .mesh.size = { [AX_DP_SHARD] = 2 }, .zero = 1 },
        { .dt = DT_F32, .mesh.size = { [AX_DP_SHARD] = 2, [AX_TP] = 2 }, .zero = 1 },
        { .dt = DT_F32, .mesh.size = { [AX_DP_SHARD] = 4, [AX_TP] = 2 }, .zero = 3 },
        { .dt = DT_F32, .mesh.size = { [AX_DP_REPLICATE] = 2, [AX_TP] = 4 } },
    };
    model_config c = small_llama();
    c.layers = 8;
    c.kv_heads = 4;
    int matrices = 7 * c.layers;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        int sum = 0, most = 0, ranks = mesh_world(&layouts[i].mesh);
        int copies = mesh_size(&layouts[i].mesh, AX_DP_REPLICATE);
        for (int r = 0; r < ranks; r++) {
            int n = packed_by(&c, &layouts[i], r);
            sum += n;
            most = MAX(most, n);
        }
        assert_int_equal(sum, copies * matrices);
        if (most > copies * matrices / ranks + 7)
            fail_msg("layout %zu: one of %d ranks has %d of %d matrices", i, ranks, most, matrices);
    }
}

/* ---- groups ------------------------------------------------------------------------------------ */
static int largest_group;
/* Runs the last call of a group first: their order must not matter. */
static void run_backward(const op_call *c, int n) {
    largest_group = MAX(largest_group, n);
    while (n > 0) call_on_cpu(&c[--n]);
}

typedef struct update_sums {
    uint64_t weights; /* a hash of all */
    op_work work;     /* of the calls, as a trace has them */
} update_sums;
static void hash_weight(void *ctx, const element *e) {
    update_sums *s = ctx;
    s->weights = hash_bytes(e->p, sizeof *e->p, s->weights);
}

static update_sums update_with(const op_backend *b) {
    model_config c = small_llama();
    comm *end = comm_self();
    optim_fixture r = { 0 };
    optim_settings s = settings_of(OPTIM_MUON);
    update_sums sums = { 0 };
    trace_row *rows;
    s.muon_beta2 = 0.9;
    assert_ok(model_new(&c, &(model_layout){ .dt = DT_F32 }, &r.m));
    r.p = plan_new(&model_lay(r.m)->mesh, b, 1);
    model_reserve(r.m, r.p, true);
    assert_ok(optim_new(&s, r.m, r.p, &r.o));
    assert_ok(plan_commit(r.p));
    model_init(r.m, r.p, 42);
    r.x = (exec){ .plan = r.p, .comm = end };
    fill_gradients(&r, 0);
    exec_trace *t = trace_begin(&r.x);
    assert_ok(optim_step(r.o, &r.x, LR, 1));
    assert_ok(trace_end(t));
    for (int i = 0, n = trace_rows(t, &rows); i < n; i++)
        sums.work.bytes += rows[i].work.bytes, sums.work.flops += rows[i].work.flops;
    each_element(&r, hash_weight, &sums);
    free(rows);
    trace_free(t);
    fixture_free(&r);
    comm_free(end);
    return sums;
}

/* Calls that run together change the same weights, and a trace counts the work of all of them. */
static void groups_of_calls_do_what_single_ones_do(void **state) {
    static watched_kernels kernels;
    op_backend grouping = backend_copied(&kernels);
    for (int i = OP_NONE + 1; i < OP_COUNT; i++)
        if (op_flags((op_code)i) & OPF_UPDATE) kernels.own[i].run_group = run_backward;
    update_sums single = update_with(ops_cpu(OPS_ISA_BEST)), grouped = update_with(&grouping);
    assert_true(largest_group > 4);
    assert_true(single.weights == grouped.weights);
    assert_true(single.work.bytes > 0 && single.work.bytes == grouped.work.bytes);
    assert_true(single.work.flops == grouped.work.flops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_calls_do_what_single_ones_do),
        cmocka_unit_test(each_option_is_what_its_paper_states),
        cmocka_unit_test(rows_without_gradients_stay_finite),
        cmocka_unit_test(a_group_orthogonalizes_each_matrix_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
