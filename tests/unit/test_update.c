/* The update kernels: trajectories against PyTorch's (tests/fixtures/make.py has the formulas), by
 * hand where numbers are few, deterministic on any number of threads, copies refreshed. Every
 * instruction set of this machine is tested. */
#include "support/test.h"

#include <math.h>

#include "checkpoint/checkpoint.h"
#include "ops/block8.h"
#include "ops/clip.h"
#include "ops/op_table.h"

/* ---- a parameter with its state -------------------------------------------------------------- */
typedef struct subject {
    op_call c;
    step_block step;
    op_run run;
    float *g, *p;
    void *state[2], *copy;
    int64_t n;
    const struct form *f;
    tensor states[2], sums[2], squares; /* sums: of rows and columns; owned */
} subject;

/* How the states of a rule follow the weights: '=' as many, 'r' rows, 'c' columns, 'b' bytes. Rules that
 * first turn the gradient into a direction run several ops. */
typedef enum { DIRECT, FACTORED, FACTORED_VECTOR, ORTHOGONAL } direction;
typedef struct form {
    op_code op;
    const char *state;
    int copy;
    direction by;
} form;
static const form sgd = { OP_UPDATE_SGD, "", 1 }, momentum = { OP_UPDATE_MOMENTUM, "=", 2 },
                  adam = { OP_UPDATE_ADAM, "==", 3 }, lion = { OP_UPDATE_LION, "=", 2 },
                  adam8 = { OP_UPDATE_ADAM8, "bb", 3 },
                  muon = { OP_UPDATE_ALONG, "=", 1, ORTHOGONAL },
                  factor = { OP_UPDATE_ALONG, "rc", 1, FACTORED },
                  factor_vector = { OP_UPDATE_ALONG, "=", 1, FACTORED_VECTOR };

static void subject_make(subject *s, const op_backend *b, const form *f, op_attr attr, int ndim,
                         const int64_t *dim, dtype copy, pool *threads) {
    *s = (subject){ .c = { .op = f->op, .attr = attr }, .f = f };
    s->c.in[0] = s->c.out[0] = tensor_of(NULL, DT_F32, ndim, dim);
    s->n = tensor_count(&s->c.in[0]);
    s->c.in[0].data = s->g = mem_alloc((size_t)s->n * sizeof *s->g);
    s->c.out[0].data = s->p = mem_alloc((size_t)s->n * sizeof *s->p);
    for (int k = 0; f->state[k]; k++) {
        int64_t bytes = (int64_t)block8_bytes(s->n);
        tensor *t = &s->states[k];
        *t = f->state[k] == '='   ? s->c.in[0]
             : f->state[k] == 'r' ? tensor_of(NULL, DT_F32, 1, &dim[0])
             : f->state[k] == 'c' ? tensor_of(NULL, DT_F32, 1, &dim[1])
                                  : tensor_of(NULL, DT_U8, 1, &bytes);
        t->data = s->state[k] = mem_alloc(tensor_bytes(t));
        if (f->by == DIRECT) s->c.out[1 + k] = *t;
        s->sums[k] = *t;
        s->sums[k].data = mem_alloc(tensor_bytes(t));
    }
    s->squares = tensor_of(mem_alloc(2 * sizeof(float)), DT_F32, 1, (int64_t[]){ 2 });
    if (copy) {
        tensor *t = &s->c.out[f->copy];
        *t = tensor_of(NULL, copy, ndim, dim);
        t->data = s->copy = mem_alloc(tensor_bytes(t));
    }
    s->run = (op_run){ .pool = threads };
}

static void subject_call(subject *s, const op_backend *b, op_call c) {
    s->run.workspace_bytes = ops_workspace(b, &c, pool_size(s->run.pool));
    s->run.workspace = aligned_alloc(64, align_up(s->run.workspace_bytes + 64, 64));
    c.run = &s->run;
    ops_run(b, &c);
    free(s->run.workspace);
}

/* Makes a matrix orthogonal, in place, in fp32. */
static void orthogonalize(subject *s, const op_backend *b, const tensor *u) {
    int64_t dim[] = { 1, MIN(u->dim[0], u->dim[1]), MAX(u->dim[0], u->dim[1]) };
    tensor batch = tensor_of(mem_alloc(tensor_bytes(u)), DT_F32, 3, dim);
    tensor x = tensor_of(batch.data, DT_F32, 2, dim + 1);
    subject_call(s, b, (op_call){ .op = OP_MUON_PACK, .in = { *u }, .out = { x } });
    subject_call(s, b, (op_call){ .op = OP_ORTHOGONALIZE, .out = { batch } });
    subject_call(s, b, (op_call){ .op = OP_MUON_UNPACK, .in = { x }, .out = { *u } });
    free(batch.data);
}

/* The ops that turn the gradient into a direction, in place. */
static void make_direction(subject *s, const op_backend *b) {
    const tensor *g = &s->c.in[0];
    op_call sums = { .op = OP_FACTOR_SUMS, .in = { *g }, .out = { s->sums[0], s->sums[1] } };
    op_call moments = { .op = OP_FACTOR_MOMENTS,
                        .out = { s->sums[0], s->sums[1], s->states[0], s->states[1] } };
    op_call matrix = { .op = OP_FACTOR_MATRIX, .in = { s->sums[0], s->sums[1] }, .out = { *g } };
    op_call vector = { .op = OP_FACTOR_VECTOR, .out = { *g, s->states[0] } };
    op_call squares = { .op = OP_SQNORM, .in = { *g }, .out = { s->squares } };
    op_call momentum_ = { .op = OP_MUON_MOMENTUM, .in = { *g }, .out = { *g, s->states[0] } };
    squares.attr.scale.by = (float)(1.0 / (double)s->n);
    momentum_.attr.update.momentum = s->c.attr.update.momentum;
    momentum_.attr.update.nesterov = s->c.attr.update.nesterov;
    vector.attr.update.eps = sums.attr.update.eps = s->c.attr.update.eps;
    sums.attr.update.cols = sums.attr.update.stride = g->dim[1];
    matrix.attr.update.cols = matrix.attr.update.stride = g->dim[1];
    if (s->f->by == ORTHOGONAL) {
        subject_call(s, b, momentum_);
        orthogonalize(s, b, g);
        return;
    }
    if (s->f->by == FACTORED) {
        subject_call(s, b, sums);
        subject_call(s, b, moments);
        subject_call(s, b, matrix);
    } else {
        subject_call(s, b, vector);
    }
    subject_call(s, b, squares);
    s->c.in[1] = s->squares;
}

static void subject_step(subject *s, const op_backend *b, double lr, double scale) {
    s->step.update.lr = (float)lr;
    s->step.now.grad_scale = (float)scale;
    s->step.now.count++;
    s->run.step = &s->step;
    if (s->f->by != DIRECT) make_direction(s, b);
    subject_call(s, b, s->c);
}

static void subject_free(subject *s) {
    free(s->g);
    free(s->p);
    free(s->state[0]);
    free(s->state[1]);
    free(s->copy);
    for (int k = 0; k < 2; k++) free(s->sums[k].data);
    free(s->squares.data);
}

/* As make.py has them. */
static void initial(float *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = (float)(0.5 * cos(0.3 * (double)(i + 1)));
}
static void gradient(float *g, int64_t n, int64_t step) {
    for (int64_t k = 0; k < n; k++) {
        double i = (double)k;
        g[k] = (float)(0.1 * sin(0.1 * (double)step * (i + 1) + 0.7 * i * i));
    }
}

static op_attr attr_of(double decay, double beta1, double beta2, double eps) {
    op_attr a = { 0 };
    a.update.lr_mul = 1;
    a.update.decay = (float)decay;
    a.update.beta1 = (float)beta1;
    a.update.beta2 = (float)beta2;
    a.update.eps = (float)eps;
    return a;
}

/* ---- trajectories ---------------------------------------------------------------------------- */
typedef struct trajectory {
    const char *name;
    const form *matrix, *vector; /* NULL: none */
    double lr, decay, beta1, beta2, eps, momentum;
    bool l2, nesterov;
    double tolerance; /* of weights near 1, after 100 steps */
} trajectory;
static const trajectory trajectories[] = {
    { "sgd", &sgd, &sgd, 0.05, 0.01, .tolerance = 1e-7 },
    { "sgd_momentum", &momentum, &momentum, 0.05, 0.01, .momentum = 0.9, .tolerance = 5e-7 },
    { "sgd_nesterov", &momentum, &momentum, 0.05, 0.01, .momentum = 0.9, .nesterov = true,
      .tolerance = 5e-7 },
    { "adam", &adam, &adam, 0.01, 0.01, 0.9, 0.95, 1e-8, .l2 = true, .tolerance = 1e-6 },
    { "adamw", &adam, &adam, 0.01, 0.1, 0.9, 0.95, 1e-8, .tolerance = 1e-6 },
    { "adafactor", &factor, &factor_vector, 0.01, 0.1, .eps = 1e-30, .tolerance = 1e-6 },
    { "lion", &lion, &lion, 0.003, 0.1, 0.9, 0.99, .tolerance = 2e-7 },
    { "muon", &muon, NULL, 0.02, 0.1, .momentum = 0.95, .nesterov = true, .tolerance = 2e-6 },
};

static double worst_difference(const st_file *f, const char *name, const char *shape, int64_t step,
                               const float *got, int64_t n) {
    char key[64];
    float *want = mem_alloc((size_t)n * sizeof *want);
    snprintf(key, sizeof key, "%s.%s.%lld", name, shape, (long long)step);
    const st_tensor *t = st_find(f, key);
    assert_non_null(t);
    assert_int_equal(t->count, n);
    assert_ok(st_read_f32(t, 0, n, want));
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    free(want);
    return worst;
}

static void follow(const op_backend *b, const st_file *f, const trajectory *t, const form *form_,
                   const char *shape, int ndim, const int64_t *dim) {
    op_attr attr = attr_of(t->decay, t->beta1, t->beta2, t->eps);
    attr.update.momentum = (float)t->momentum;
    attr.update.l2 = t->l2;
    attr.update.nesterov = t->nesterov;
    subject s;
    subject_make(&s, b, form_, attr, ndim, dim, DT_NONE, NULL);
    initial(s.p, s.n);
    for (int64_t step = 1; step <= 100; step++) {
        gradient(s.g, s.n, step);
        for (int64_t i = 0; i < s.n; i++) s.g[i] *= 64; /* as a loss scale would, exactly */
        subject_step(&s, b, t->lr, 1.0 / 64);
        if (step != 1 && step != 10 && step != 100) continue;
        double worst = worst_difference(f, t->name, shape, step, s.p, s.n);
        if (!(worst <= t->tolerance))
            fail_msg("%s, %s on %s: step %lld is off by %.3g, allowed %.3g", t->name, shape,
                     b->name, (long long)step, worst, t->tolerance);
    }
    subject_free(&s);
}

static void trajectories_match_pytorch(void **state) {
    st_file *f;
    assert_ok(st_open(FIXTURES "/optim.safetensors", &f));
    for (int i = 0; ops_cpu_isa(i); i++)
        for (size_t k = 0; k < COUNT_OF(trajectories); k++) {
            const trajectory *t = &trajectories[k];
            const op_backend *b = ops_cpu(ops_cpu_isa(i));
            follow(b, f, t, t->matrix, "matrix", 2, (int64_t[]){ 8, 16 });
            follow(b, f, t, t->matrix, "tall", 2, (int64_t[]){ 16, 8 });
            if (t->vector) follow(b, f, t, t->vector, "vector", 1, (int64_t[]){ 16 });
        }
    st_close(f);
}

/* Of a gradient that stays as it is, the corrected moments are g and g^2 from the first step on, so
 * each step is lr g / (|g| + eps). An eps as large as g shows whether it is added to the corrected
 * root: uncorrected, the first step would be 4.5 times too small. */
static void adam_adds_eps_to_the_corrected_root(void **state) {
    static const form *const forms[] = { &adam, &adam8 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (size_t k = 0; k < COUNT_OF(forms); k++) {
            const op_backend *b = ops_cpu(ops_cpu_isa(i));
            subject s;
            subject_make(&s, b, forms[k], attr_of(0, 0.9, 0.95, 0.5), 1, (int64_t[]){ 64 }, DT_NONE,
                         NULL);
            for (int64_t j = 0; j < s.n; j++) s.g[j] = j % 2 ? 0.5f : -0.5f;
            for (int64_t j = 0; j < s.n; j++) s.p[j] = 0;
            for (int step = 1; step <= 8; step++) {
                subject_step(&s, b, 0.125, 1);
                for (int64_t j = 0; j < s.n; j++) {
                    double want = (j % 2 ? -0.0625 : 0.0625) * step;
                    assert_true(fabs(s.p[j] / want - 1) < (forms[k] == &adam ? 1e-5 : 1e-2));
                }
            }
            subject_free(&s);
        }
}

/* ---- 8-bit moments --------------------------------------------------------------------------- */
static void fill_random(float *x, int64_t n, uint64_t which, double spread) {
    rng_key key = rng_key_of(11, which);
    for (int64_t i = 0; i < n; i++) /* magnitudes over several octaves, as gradients have */
        x[i] =
            rng_normal(key, (uint64_t)i) * (float)exp2(spread * rng_normal(key, (uint64_t)(i + n)));
}

/* Decoding and encoding again gives the same bytes, for blocks of all kinds. */
static void block8_codes_survive_a_round_trip(void **state) {
    enum { N = BLOCK8, CASES = 400 };
    for (int t = 0; t < CASES; t++)
        for (int sign = 0; sign < 2; sign++) {
            float x[N], y[N], scale, again;
            uint8_t code[N], code2[N];
            int64_t n = t % 3 ? N : 1 + t % N; /* the rest is 0 */
            memset(x, 0, sizeof x);
            fill_random(x, n, (uint64_t)t, t % 12);
            for (int64_t i = 0; i < n; i++) {
                x[i] *= (float)pow(10, t % 57 - 40);
                if (!sign) x[i] = fabsf(x[i]);
                if (t % 7 == 0 && i % 3 == 0) x[i] = 0;
            }
            block8_pack(x, sign, code, &scale);
            block8_unpack(code, sign, scale, y);
            block8_pack(y, sign, code2, &again);
            assert_memory_equal(&scale, &again, sizeof scale);
            assert_memory_equal(code, code2, sizeof code);
        }
}

/* Half a step at most: an eighth of an octave's lower end, halved. Below the smallest code, zero
 * included, the signed form gives zero and the unsigned the smallest. */
static void block8_rounds_to_half_a_step(void **state) {
    for (int sign = 0; sign < 2; sign++) {
        float x[BLOCK8], y[BLOCK8], scale, least = sign ? 0x1p-16f : 0x1p-32f;
        uint8_t code[BLOCK8];
        fill_random(x, BLOCK8, 1, 3);
        for (int i = 0; i < BLOCK8; i++) x[i] = sign ? x[i] : x[i] * x[i];
        x[5] = x[9] = 0;
        block8_pack(x, sign, code, &scale);
        x[7] = scale * least / 4;
        block8_pack(x, sign, code, &scale);
        block8_unpack(code, sign, scale, y);
        for (int i = 0; i < BLOCK8; i++)
            if (fabsf(x[i]) > 1.3f * scale * least)
                assert_true(fabsf(y[i] - x[i]) <= 0.0626f * fabsf(x[i]));
        for (int i = 5; i <= 9; i += 2)
            assert_true(sign ? y[i] == 0 : y[i] > 0 && y[i] < 1.3f * scale * least);
    }
}

/* Weights drift from those of fp32 AdamW by rounding alone: over 100 steps by 3 to 4 % of the way
 * they went. The gradient is a signal, of sizes over several octaves, and as much noise. */
static void adam8_follows_adamw(void **state) {
    enum { N = 5000, STEPS = 100 };
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    op_attr attr = attr_of(0.1, 0.9, 0.95, 1e-8);
    subject exact, small;
    subject_make(&exact, b, &adam, attr, 1, (int64_t[]){ N }, DT_NONE, NULL);
    subject_make(&small, b, &adam8, attr, 1, (int64_t[]){ N }, DT_NONE, NULL);
    float *signal = mem_alloc(N * sizeof *signal), *first = mem_alloc(N * sizeof *first);
    fill_random(signal, N, 100, 0);
    for (int i = 0; i < N; i++) signal[i] = copysignf(exp2f(signal[i]), signal[i]);
    initial(exact.p, N);
    memcpy(small.p, exact.p, N * sizeof(float));
    memcpy(first, exact.p, N * sizeof(float));
    for (int step = 0; step < STEPS; step++) {
        fill_random(exact.g, N, (uint64_t)step, 0);
        for (int i = 0; i < N; i++) exact.g[i] = 1e-3f * signal[i] * (1 + exact.g[i]);
        memcpy(small.g, exact.g, N * sizeof(float));
        subject_step(&exact, b, 1e-3, 1);
        subject_step(&small, b, 1e-3, 1);
    }
    double apart = 0, moved = 0, worst = 0;
    for (int i = 0; i < N; i++) {
        double d = (double)small.p[i] - exact.p[i];
        apart += d * d;
        moved += pow((double)exact.p[i] - first[i], 2);
        worst = MAX(worst, fabs(d));
    }
    assert_true(sqrt(apart / moved) < 0.04);
    assert_true(worst < 12e-3);
    free(signal);
    free(first);
    subject_free(&exact);
    subject_free(&small);
}

/* ---- threads and copies ---------------------------------------------------------------------- */
static const struct {
    const char *name;
    const form *f;
    int ndim;
    int64_t dim[2];
} sizes[] = {
    { "sgd", &sgd, 1, { 40003 } },
    { "momentum", &momentum, 1, { 40003 } },
    { "adam", &adam, 1, { 40003 } },
    { "lion", &lion, 1, { 40003 } },
    { "adam8", &adam8, 1, { 40003 } },
    { "adafactor", &factor, 2, { 331, 257 } },
    { "adafactor, vector", &factor_vector, 1, { 40003 } },
    { "muon, wide", &muon, 2, { 131, 257 } },
    { "muon, tall", &muon, 2, { 257, 131 } },
};

/* Three steps; @return the weights, and checks that the copy is what they round to. */
static float *run_three(const op_backend *b, size_t which, int threads, dtype copy) {
    pool *p = threads > 1 ? pool_new(threads) : NULL;
    op_attr attr = attr_of(0.1, 0.9, 0.95, 1e-8);
    attr.update.momentum = 0.9f;
    attr.update.nesterov = true;
    subject s;
    subject_make(&s, b, sizes[which].f, attr, sizes[which].ndim, sizes[which].dim, copy, p);
    fill_random(s.p, s.n, 50, 0);
    for (uint64_t step = 0; step < 3; step++) {
        fill_random(s.g, s.n, step, 1);
        subject_step(&s, b, 0.01, 0.5);
    }
    if (copy) {
        char *want = mem_alloc((size_t)s.n * dt_size(copy));
        dt_from_f32(copy, s.p, want, s.n);
        assert_memory_equal(want, s.copy, (size_t)s.n * dt_size(copy));
        free(want);
    }
    float *out = s.p;
    s.p = NULL;
    subject_free(&s);
    pool_free(p);
    return out;
}

static void updates_do_not_depend_on_the_number_of_threads(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        int64_t n = sizes[i].dim[0] * (sizes[i].ndim == 2 ? sizes[i].dim[1] : 1);
        float *one = run_three(b, i, 1, DT_BF16), *many = run_three(b, i, 3, DT_F16);
        float *two = run_three(b, i, 2, DT_NONE);
        if (memcmp(one, many, (size_t)n * sizeof *one) || memcmp(one, two, (size_t)n * sizeof *one))
            fail_msg("%s gives other bits on more threads", sizes[i].name);
        free(one);
        free(two);
        free(many);
    }
}

/* ---- adaptive clipping, by hand -------------------------------------------------------------- */
static void agc_clips_by_unit(void **state) {
    for (int i = 0; ops_cpu_isa(i); i++) {
        const op_backend *b = ops_cpu(ops_cpu_isa(i));
        float p[] = { 3, 4, 0, 0, 0, 0, 1, 0, 0 };          /* lengths 5, 0, 1 */
        float g[] = { 6, 0, 8, 0, 0.5f, 0, 0, 0.1f, 0.1f }; /* 10, 0.5, 0.141 */
        step_block step = { .now = { .grad_scale = 0.5f } };
        op_run run = { .step = &step };
        float p_sum[3], g_sum[3];
        int64_t n = 9, rows = 3;
        op_call sums = { .op = OP_AGC_SUMS, .run = &run }, c = { .op = OP_AGC, .run = &run };
        sums.in[0] = tensor_of(p, DT_F32, 1, &n);
        sums.in[1] = c.out[0] = tensor_of(g, DT_F32, 1, &n);
        sums.out[0] = c.in[0] = tensor_of(p_sum, DT_F32, 1, &rows);
        sums.out[1] = c.in[1] = tensor_of(g_sum, DT_F32, 1, &rows);
        sums.attr.update.cols = sums.attr.update.stride = 3;
        c.attr.update.cols = c.attr.update.stride = 3;
        c.attr.agc.factor = 0.1f;
        c.attr.agc.eps = 1e-3f;
        ops_run(b, &sums);
        ops_run(b, &c);
        /* row 0 may have 0.1 * 5 = 0.5 and has 5 once scaled; row 1 0.1 * 0.001 and has 0.25; row
         * 2 may have 0.1 and has 0.0707 */
        float want[] = { 0.6f, 0, 0.8f, 0, 0.5f * 4e-4f, 0, 0, 0.1f, 0.1f };
        for (int k = 0; k < 9; k++) assert_float_equal(g[k], want[k], 1e-7);
    }
}

/* An attribute that a kernel does not honor is refused: Lion with l2 left out the gradient's scale. */
static void decay_through_the_gradient_is_refused_where_there_is_none(void **state) {
    static const op_code has_none[] = { OP_UPDATE_LION, OP_UPDATE_ADAM8, OP_UPDATE_ALONG };
    for (size_t i = 0; i < COUNT_OF(has_none); i++) {
        op_call c = { .op = has_none[i], .attr.update.l2 = true };
        assert_error(ops_check(ops_cpu(OPS_ISA_BEST), &c), op_name(c.op), "update.l2");
    }
    op_call has_it = { .op = OP_UPDATE_ADAM, .attr.update.l2 = true };
    assert_ok(ops_check(ops_cpu(OPS_ISA_BEST), &has_it));
}

/* Decay and learning rate of one SGD step, by hand. */
static void one_sgd_step_matches_the_formula(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    subject s;
    op_attr attr = attr_of(0.5, 0, 0, 0);
    attr.update.lr_mul = 0.25f;
    subject_make(&s, b, &sgd, attr, 1, (int64_t[]){ 2 }, DT_NONE, NULL);
    s.p[0] = 1, s.p[1] = -2, s.g[0] = 3, s.g[1] = 4;
    subject_step(&s, b, 0.4, 2); /* p -= 0.1 (2 g + 0.5 p) */
    assert_float_equal(s.p[0], 1 - 0.1 * (6 + 0.5), 1e-6);
    assert_float_equal(s.p[1], -2 - 0.1 * (8 - 1), 1e-6);
    subject_free(&s);
}

/* ---- what a step may do ---------------------------------------------------------------------- */
/* One step whose gradient has this norm, times the loss scale it was made with. */
static void clip(const op_backend *b, step_block *step, double norm, double max_norm,
                 int64_t interval) {
    double scale = step->now.loss_scale > 0 ? step->now.loss_scale : 1, sum = pow(norm * scale, 2);
    float pair[2] = { (float)sum, isfinite(sum) ? (float)(sum - (float)sum) : 0 };
    op_run run = { .step = step };
    op_call c = { .op = OP_CLIP, .run = &run };
    step->update.max_norm = (float)max_norm;
    c.attr.clip.growth_interval = interval;
    c.in[0] = tensor_of(pair, DT_F32, 1, (int64_t[]){ 2 });
    c.out[0] = tensor_of(&step->now, DT_U8, 1, (int64_t[]){ sizeof step->now });
    ops_run(b, &c);
}

static void clip_scales_and_counts_steps(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    step_block s = { .now = { .count = 5 } };
    clip(b, &s, 0.5, 1, 0);
    assert_true(s.now.grad_scale == 1 && s.now.norm == 0.5f && s.now.count == 6 && !s.now.skip);
    clip(b, &s, 4, 1, 0);
    assert_true(s.now.grad_scale == 0.25f && s.now.norm == 4 && s.now.count == 7);
    clip(b, &s, 4, 0, 0);
    assert_true(s.now.grad_scale == 1 && s.now.count == 8);
    clip(b, &s, 0, 1, 0);
    assert_true(s.now.grad_scale == 1 && s.now.norm == 0 && s.now.count == 9);
    static const double bad[] = { INFINITY, -INFINITY, NAN, 1e30 };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        clip(b, &s, bad[i], 1, 0);
        assert_true(s.now.skip && s.now.count == 9 && !isfinite(s.now.norm));
        assert_true(s.now.loss_scale == 0 && s.now.good == 0);
    }
    clip(b, &s, 1, 1, 0);
    assert_true(!s.now.skip && s.now.count == 10 && s.now.grad_scale == 1);
}

/* An update that is left out on purpose is not an overflow: neither the count nor the loss scale notices. */
static void a_long_gradient_can_be_skipped(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    step_block s = { .now = { .count = 5, .loss_scale = 1024, .good = 1 } };
    s.update.skip_norm = 3;
    clip(b, &s, 3, 1, 10);
    assert_true(!s.now.skip && s.now.count == 6 && s.now.good == 2);
    clip(b, &s, 3.1, 1, 10);
    assert_true(s.now.skip && s.now.count == 6 && s.now.good == 2 && s.now.loss_scale == 1024);
    assert_true(fabsf(s.now.norm - 3.1f) < 1e-5f && s.now.grad_scale == 0);
    clip(b, &s, INFINITY, 1, 10); /* this one is */
    assert_true(s.now.skip && s.now.good == 0 && s.now.loss_scale == 512);
    s.update.skip_norm = -1;
    clip(b, &s, 0.1, 1, 10);
    assert_true(s.now.skip && s.now.count == 6 && s.now.loss_scale == 512);
}

static void the_loss_scale_halves_and_doubles(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    step_block s = { .now = { .loss_scale = 1024 } };
    clip(b, &s, 4, 1, 3);
    assert_true(s.now.norm == 4 && s.now.grad_scale == 0.25f / 1024);
    clip(b, &s, 4, 1, 3);
    assert_true(s.now.loss_scale == 1024 && s.now.good == 2);
    clip(b, &s, 4, 1, 3); /* this step's gradients have the scale they were made with */
    assert_true(s.now.loss_scale == 2048 && s.now.good == 0 && s.now.grad_scale == 0.25f / 1024);
    clip(b, &s, 4, 1, 3);
    clip(b, &s, 4, 1, 3);
    clip(b, &s, NAN, 1, 3); /* the count of good steps starts again */
    assert_true(s.now.skip && s.now.loss_scale == 1024 && s.now.good == 0 && s.now.count == 5);
    clip(b, &s, 1, 1, 3);
    clip(b, &s, 1, 1, 3);
    assert_true(s.now.loss_scale == 1024);
    clip(b, &s, 1, 1, 3);
    assert_true(s.now.loss_scale == 2048);
    for (int i = 0; i < 100; i++) clip(b, &s, INFINITY, 1, 3);
    assert_true(s.now.loss_scale == 1);
    for (int i = 0; i < 1000; i++) clip(b, &s, 0, 1, 3);
    assert_true(s.now.loss_scale == 4294967296.0f);
}

/* Many square sums added one by one are as accurate as a single sum. */
static void square_sums_add_up_exactly(void **state) {
    enum { N = 3000, PARTS = 300 };
    float x[N], sum[2] = { 0 };
    double want = 0;
    rng_key key = rng_key_of(5, 5);
    op_run run = { 0 };
    for (int k = 0; k < PARTS; k++) {
        for (int i = 0; i < N; i++) {
            x[i] = 1e-3f * rng_normal(key, (uint64_t)(k * N + i));
            want += (double)x[i] * x[i];
        }
        op_call c = { .op = OP_SQNORM, .accumulate = k > 0, .run = &run };
        c.attr.scale.by = 1;
        c.in[0] = tensor_of(x, DT_F32, 1, (int64_t[]){ N });
        c.out[0] = tensor_of(sum, DT_F32, 1, (int64_t[]){ 2 });
        ops_run(ops_cpu(OPS_ISA_BEST), &c);
    }
    assert_true(fabs(((double)sum[0] + sum[1]) / want - 1) < 1e-12);
}

/* A step that is skipped leaves every operand as it was, on every rule. */
static void a_skipped_step_changes_nothing(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        subject s;
        subject_make(&s, b, sizes[i].f, attr_of(0.1, 0.9, 0.95, 1e-8), sizes[i].ndim, sizes[i].dim,
                     DT_BF16, NULL);
        fill_random(s.p, s.n, 1, 0);
        fill_random(s.g, s.n, 2, 0);
        subject_step(&s, b, 0.01, 1);
        char *before[4];
        const tensor kept[] = { s.c.out[0], s.states[0], s.states[1], s.c.out[s.f->copy] };
        for (int k = 0; k < 4; k++) {
            before[k] = mem_alloc(tensor_bytes(&kept[k]) + 1);
            if (kept[k].data) memcpy(before[k], kept[k].data, tensor_bytes(&kept[k]));
        }
        s.step.now.skip = 1;
        for (int64_t k = 0; k < s.n; k++) s.g[k] = NAN;
        subject_step(&s, b, 0.01, 0);
        for (int k = 0; k < 4; k++) {
            if (kept[k].data && memcmp(before[k], kept[k].data, tensor_bytes(&kept[k])))
                fail_msg("%s: a skipped step changed tensor %d", sizes[i].name, k);
            free(before[k]);
        }
        subject_free(&s);
    }
}

/* ---- weights in bf16 ------------------------------------------------------------------------- */
/* p - g on n weights from element `first` of a bucket on; p is rounded stochastically. */
static void narrow_step(const op_backend *b, uint16_t *p, float *g, int64_t n, int64_t first,
                        uint32_t site, int64_t count, pool *threads) {
    step_block step = { .update = { .lr = 1, .rounding = rng_key_of(4, 4) } };
    step.now = (step_state){ .grad_scale = 1, .count = count };
    op_run run = { .step = &step, .pool = threads };
    op_call c = { .op = OP_UPDATE_SGD, .run = &run };
    c.attr.update.lr_mul = 1;
    c.attr.update.site = site;
    c.attr.update.first = first;
    c.in[0] = tensor_of(g, DT_F32, 1, &n);
    c.out[0] = tensor_of(p, DT_BF16, 1, &n);
    ops_run(b, &c);
}

enum { NARROW = 100003, ONE = 0x3f80 }; /* ONE: of bf16, whose next is 1 + 2^-7 */
static void narrow_from(uint16_t *p, float *g, double part) {
    for (int64_t i = 0; i < NARROW; i++) {
        p[i] = ONE;
        g[i] = (float)(-part * 0x1p-7);
    }
}

/* Rounded up in proportion to the distance from the value below: the mean is right to 5 sigma. */
static void stochastic_rounding_is_unbiased(void **state) {
    uint16_t *p = mem_alloc(NARROW * sizeof *p);
    float *g = mem_alloc(NARROW * sizeof *g);
    static const double parts[] = { 0, 0.01, 0.3, 0.5, 0.97 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (size_t k = 0; k < COUNT_OF(parts); k++) {
            int64_t up = 0;
            narrow_from(p, g, parts[k]);
            narrow_step(ops_cpu(ops_cpu_isa(i)), p, g, NARROW, 0, 7, 1, NULL);
            for (int64_t e = 0; e < NARROW; e++) {
                assert_true(p[e] == ONE || p[e] == ONE + 1);
                up += p[e] != ONE;
            }
            double slack = 5 * sqrt(parts[k] * (1 - parts[k]) / NARROW);
            assert_true(fabs((double)up / NARROW - parts[k]) <= slack + 1e-4 * parts[k]);
        }
    free(p);
    free(g);
}

static int64_t differing(const uint16_t *a, const uint16_t *b, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] != b[i];
    return sum;
}

/* The random bits belong to the element of the bucket: the same on any number of threads and in any
 * split into calls, different in another step or bucket. */
static void stochastic_rounding_depends_on_the_element_alone(void **state) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    uint16_t *p = mem_alloc(NARROW * sizeof *p), *q = mem_alloc(NARROW * sizeof *q);
    float *g = mem_alloc(NARROW * sizeof *g);
    pool *threads = pool_new(3);
    narrow_from(p, g, 0.5);
    narrow_step(b, p, g, NARROW, 1000, 7, 1, NULL);
    narrow_from(q, g, 0.5);
    narrow_step(b, q, g, NARROW, 1000, 7, 1, threads);
    assert_int_equal(differing(p, q, NARROW), 0);
    narrow_from(q, g, 0.5);
    for (int64_t at = 0, n; at < NARROW; at += n) { /* pieces of no order */
        n = MIN(1 + at % 777, NARROW - at);
        narrow_step(b, q + at, g + at, n, 1000 + at, 7, 1, NULL);
    }
    assert_int_equal(differing(p, q, NARROW), 0);
    for (int other = 0; other < 3; other++) {
        narrow_from(q, g, 0.5);
        narrow_step(b, q, g, NARROW, 1000 + (other == 0) * 4, 7 + (other == 1), 1 + (other == 2),
                    NULL);
        assert_true(llabs(differing(p, q, NARROW) - NARROW / 2) < NARROW / 50);
    }
    pool_free(threads);
    free(p);
    free(q);
    free(g);
}

/* As documented, so that a run continues bit-exactly in a later version: element i is rounded up
 * where the upper half of word i % 4 of philox(key, { all ones, update, site, i / 4 }) carries. */
static void stochastic_rounding_draws_the_documented_words(void **state) {
    enum { FIRST = 1002, SITE = 7, COUNT = 3, N = 1000 };
    uint16_t p[N];
    float g[N];
    for (int i = 0; i < N; i++) {
        p[i] = ONE;
        g[i] = -0.5f * 0x1p-7f;
    }
    narrow_step(ops_cpu(OPS_ISA_BEST), p, g, N, FIRST, SITE, COUNT, NULL);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = FIRST + i, word[4];
        philox4x32(rng_key_of(4, 4), (uint32_t[]){ ~0u, COUNT, SITE, at / 4 }, PHILOX_ROUNDS, word);
        assert_int_equal(p[i], ONE + ((word[at % 4] >> 16) + 0x8000u > 0xffff));
    }
}

/* A value that bf16 represents exactly is not rounded; NaN and infinity stay what they are. */
static void exact_values_and_nan_are_not_rounded(void **state) {
    uint16_t p[] = { 0, 0x8000, ONE, 0xc049, 0x7f7f, 0x0080, 0x0001 };
    uint16_t want[COUNT_OF(p)];
    float g[COUNT_OF(p)] = { 0 };
    memcpy(want, p, sizeof p);
    narrow_step(ops_cpu(OPS_ISA_BEST), p, g, (int64_t)COUNT_OF(p), 0, 0, 1, NULL);
    want[1] = p[1] ? 0x8000 : 0; /* either zero */
    assert_memory_equal(p, want, sizeof p);
    g[2] = NAN, p[3] = 0x7fc0, g[4] = INFINITY;
    narrow_step(ops_cpu(OPS_ISA_BEST), p, g, (int64_t)COUNT_OF(p), 0, 0, 1, NULL);
    float v[COUNT_OF(p)];
    dt_to_f32(DT_BF16, p, v, (int64_t)COUNT_OF(p));
    assert_true(isnan(v[2]) && isnan(v[3]) && v[4] == -INFINITY);
}

/* Steps of a thousandth of the distance between neighbors, which rounding to the nearest would lose
 * entirely: bf16 Adam still follows fp32 Adam. */
static void bf16_adam_follows_fp32_adam(void **state) {
    enum { N = 4000, STEPS = 300 };
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    static const form *const forms[] = { &adam, &lion, &adam8, &momentum };
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        subject wide, narrow;
        op_attr attr = attr_of(0.1, 0.9, 0.95, 1e-8);
        subject_make(&wide, b, forms[f], attr, 1, (int64_t[]){ N }, DT_NONE, NULL);
        subject_make(&narrow, b, forms[f], attr, 1, (int64_t[]){ N }, DT_NONE, NULL);
        uint16_t *p = mem_alloc(N * sizeof *p);
        narrow.c.out[0].dt = DT_BF16;
        narrow.c.out[0].data = p;
        for (int i = 0; i < N; i++) wide.p[i] = 1, p[i] = ONE;
        for (int step = 0; step < STEPS; step++) {
            fill_random(wide.g, N, (uint64_t)step, 0);
            for (int i = 0; i < N; i++) wide.g[i] = 1 + 0.1f * wide.g[i];
            memcpy(narrow.g, wide.g, N * sizeof(float));
            subject_step(&wide, b, 1e-5, 1);
            subject_step(&narrow, b, 1e-5, 1);
        }
        double moved = 0, away = 0;
        for (int i = 0; i < N; i++) {
            float v;
            dt_to_f32(DT_BF16, &p[i], &v, 1);
            moved += 1 - (double)wide.p[i];
            away += 1 - (double)v;
        }
        if (!(moved > 0.002 * N && fabs(away / moved - 1) < 0.05))
            fail_msg("form %d moved %g in bf16, %g in fp32", (int)f, away / N, moved / N);
        free(p);
        subject_free(&wide);
        subject_free(&narrow);
    }
}

/* A matrix of rank 1 or 2 and a little noise, as a router's gradient is: [rows, 8 rows]. */
static tensor matrix_of_low_rank(rng_key key, int64_t rows) {
    int64_t dim[] = { rows, 8 * rows }, rank = 1 + (int64_t)rng_below(key, 0, 2);
    tensor t = tensor_of(mem_alloc((size_t)(8 * rows * rows) * sizeof(float)), DT_F32, 2, dim);
    float *v = t.data, noise = powf(10, -6 * rng_uniform(key, 1));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < dim[1]; j++) {
            uint64_t at = (uint64_t)(1000 + 2000 * i + j);
            float sum = noise * rng_normal(key, at);
            for (int64_t k = 0; k < rank; k++)
                sum += rng_normal(key, (uint64_t)(100 + 10 * k + i)) *
                       rng_normal(key, (uint64_t)(200 + 300 * k + j));
            v[i * dim[1] + j] = sum;
        }
    return t;
}

/* Singular values end near 1, whatever the rank of a matrix, its type and the polynomials. */
static void orthogonal_directions_never_grow(void **state) {
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    pool *threads = pool_new(1);
    for (uint64_t seed = 0; seed < 300; seed++)
        for (int kind = 0; kind < POLAR_KINDS; kind++)
            for (size_t k = 0; k < COUNT_OF(types); k++) {
                subject s = { .run = { .pool = threads } };
                s.run.step = &s.step;
                rng_key key = rng_key_of(90478, seed);
                tensor u = matrix_of_low_rank(key, 2 + (int64_t)rng_below(key, 2, 7));
                int64_t dim[] = { 1, u.dim[0], u.dim[1] }, n = u.dim[0] * u.dim[1];
                tensor batch = tensor_of(NULL, types[k], 3, dim);
                batch.data = mem_alloc(tensor_bytes(&batch));
                tensor x = tensor_of(batch.data, types[k], 2, dim + 1);
                op_call pack = { .op = OP_MUON_PACK, .in = { u }, .out = { x } };
                op_call steps = { .op = OP_ORTHOGONALIZE, .out = { batch } };
                pack.attr.update.polar = steps.attr.update.polar = (polar_kind)kind;
                subject_call(&s, b, pack);
                subject_call(&s, b, steps);
                double square = 0;
                for (int64_t i = 0; i < n; i++) {
                    float value;
                    dt_to_f32(types[k], (char *)batch.data + (size_t)i * dt_size(types[k]), &value,
                              1);
                    square += (double)value * value;
                }
                if (!(square <= 1.5 * 1.5 * (double)dim[1]))
                    fail_msg("seed %d, %s, polynomials %d: %lld rows have the norm %g", (int)seed,
                             dt_name(types[k]), kind, (long long)dim[1], sqrt(square));
                free(u.data);
                free(batch.data);
            }
    pool_free(threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orthogonal_directions_never_grow),
        cmocka_unit_test(trajectories_match_pytorch),
        cmocka_unit_test(adam_adds_eps_to_the_corrected_root),
        cmocka_unit_test(block8_codes_survive_a_round_trip),
        cmocka_unit_test(block8_rounds_to_half_a_step),
        cmocka_unit_test(adam8_follows_adamw),
        cmocka_unit_test(updates_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(agc_clips_by_unit),
        cmocka_unit_test(decay_through_the_gradient_is_refused_where_there_is_none),
        cmocka_unit_test(one_sgd_step_matches_the_formula),
        cmocka_unit_test(clip_scales_and_counts_steps),
        cmocka_unit_test(a_long_gradient_can_be_skipped),
        cmocka_unit_test(the_loss_scale_halves_and_doubles),
        cmocka_unit_test(square_sums_add_up_exactly),
        cmocka_unit_test(a_skipped_step_changes_nothing),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(stochastic_rounding_depends_on_the_element_alone),
        cmocka_unit_test(stochastic_rounding_draws_the_documented_words),
        cmocka_unit_test(exact_values_and_nan_are_not_rounded),
        cmocka_unit_test(bf16_adam_follows_fp32_adam),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
