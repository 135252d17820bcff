/* fp8: bytes and scales of one tensor, linear layers with fp8 operands, and small models trained
 * with them. (That recompute changes no bit of it is test_recompute's.) */
#include "support/folder.h"
#include "support/model.h"

#include "checkpoint/checkpoint.h"
#include "prog/prog_internal.h"

/* ---- one call ---------------------------------------------------------------------------- */
static void *filled(dtype dt, int64_t n, float mean, float spread, uint64_t seed) {
    float *v = mem_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = mean + spread * rng_normal(rng_key_of(seed, 1), (uint64_t)i);
    void *data = mem_alloc((size_t)n * dt_size(dt) + 64);
    dt_from_f32(dt, v, data, n);
    free(v);
    return data;
}

static tensor matrix(void *data, dtype dt, int64_t rows, int64_t cols) {
    return tensor_of(data, dt, 2, (int64_t[]){ rows, cols });
}
static tensor random_matrix(dtype dt, int64_t rows, int64_t cols, float spread, uint64_t seed) {
    return matrix(filled(dt, rows * cols, 0, spread, seed), dt, rows, cols);
}
static tensor row_tensor(float *row) { return tensor_of(row, DT_F32, 1, (int64_t[]){ FP8_ROW }); }

static void call(op_call *c, const char *isa, pool *threads) {
    const op_backend *b = ops_cpu(isa);
    op_run run = { .pool = threads, .workspace_bytes = ops_workspace(b, c, pool_size(threads)) };
    run.workspace = mem_alloc(run.workspace_bytes + 64);
    c->run = &run;
    ops_run(b, c);
    free(run.workspace);
}

static void quantize(tensor x, float *row, fp8_recipe recipe, bool given, tensor q, tensor qt) {
    op_call c = { .op = OP_QUANTIZE, .in = { x, row_tensor(row) }, .out = { q, qt } };
    c.attr.fp8.recipe = recipe;
    c.attr.fp8.given = given;
    call(&c, OPS_ISA_BEST, NULL);
}

/* ---- bytes ------------------------------------------------------------------------------- */
static void check_bytes(dtype xt, dtype dt, int64_t n, int64_t k, const char *isa, pool *threads) {
    tensor x = random_matrix(xt, n, k, 4, 3);
    float odd[] = { NAN, INFINITY, -INFINITY, 0, -0.0f, 1e4f, -1e4f };
    dt_from_f32(xt, odd, x.data, COUNT_OF(odd));
    float row[FP8_ROW] = { [FP8_SCALE] = 64, [FP8_UNSCALE] = 1.0f / 64, [FP8_TOP] = fp8_top(dt) };
    enum { GUARD = 0xa5 };
    uint8_t *q = mem_alloc((size_t)(n * k) + 1), *qt = mem_alloc((size_t)(n * k) + 1);
    q[n * k] = qt[n * k] = GUARD;
    op_call c = { .op = OP_QUANTIZE,
                  .in = { x, row_tensor(row) },
                  .out = { matrix(q, dt, n, k), matrix(qt, dt, k, n) } };
    c.attr.fp8.recipe = FP8_DELAYED;
    call(&c, isa, threads);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) {
            float v, scaled;
            uint8_t want;
            dt_to_f32(xt, (char *)x.data + (size_t)(i * k + j) * dt_size(xt), &v, 1);
            scaled = isfinite(v) ? v * 64 : NAN; /* 1e4 and some others saturate in e4m3 */
            dt_from_f32(dt, &scaled, &want, 1);
            assert_int_equal(q[i * k + j], want);
            assert_int_equal(qt[j * n + i], want);
        }
    assert_int_equal(q[n * k], GUARD);
    assert_int_equal(qt[n * k], GUARD);
    assert_true(row[FP8_AMAX] > 9e3f && row[FP8_AMAX] < 1.1e4f);
    assert_true(row[FP8_SCALE] == 64);
    free(x.data);
    free(q);
    free(qt);
}

static void test_bytes(void **state) {
    static const int64_t shapes[][2] = { { 16, 16 }, { 48, 272 }, { 16, 1600 }, { 1040, 32 } };
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    pool *three = pool_new(3);
    for (int isa = 0; ops_cpu_isa(isa); isa++)
        for (size_t s = 0; s < COUNT_OF(shapes); s++)
            for (int k = 0; k < 6; k++)
                check_bytes(types[k / 2], k & 1 ? DT_E5M2 : DT_E4M3, shapes[s][0], shapes[s][1],
                            ops_cpu_isa(isa), k & 1 ? three : NULL);
    pool_free(three);
}

/* ---- scales ------------------------------------------------------------------------------ */
static void test_scale(void **state) {
    assert_true(fp8_scale(448, 448) == 1);
    assert_true(fp8_scale(449, 448) == 0.5f);
    assert_true(fp8_scale(1, 448) == 256);
    assert_true(fp8_scale(1, 57344) == 32768);
    assert_true(fp8_scale(0, 448) == 0);
    for (int i = 0; i < 2000; i++) {
        float amax =
            ldexpf(1 + (float)rng_below(rng_key_of(1, 2), (uint64_t)i, 1000) / 1000, i % 170 - 49);
        float s = fp8_scale(amax, 448);
        int exponent;
        assert_true(frexpf(s, &exponent) == 0.5f);
        assert_true(amax * s <= 448 && 2 * amax * s > 448);
    }
    float tiny = fp8_scale(1e-30f, 57344), row[FP8_ROW] = { 0 };
    fp8_set_scale(row, tiny);
    assert_true(row[FP8_UNSCALE] * row[FP8_UNSCALE] > 0 || tiny <= 0x1p66f);
    assert_true(1 / tiny * (1 / fp8_scale(1e-30f, 448)) > 0); /* the pair that a GEMM takes */
}

static void check_row(const float *row, float scale, float amax) {
    if (row[FP8_SCALE] != scale || row[FP8_AMAX] != amax)
        fail_msg("scale %g and amax %g, expected %g and %g", (double)row[FP8_SCALE],
                 (double)row[FP8_AMAX], (double)scale, (double)amax);
    assert_true(row[FP8_UNSCALE] == (scale > 0 ? 1 / scale : 0));
}

static void test_delayed_row(void **state) {
    float v[256] = { 0 }, row[FP8_ROW] = { 0 };
    uint8_t bytes[256];
    tensor x = matrix(v, DT_F32, 16, 16), q = matrix(bytes, DT_E4M3, 16, 16), none = { 0 };
    quantize(x, row, FP8_DELAYED, false, q, none);
    check_row(row, 0, 0); /* zeros carry no information */
    v[200] = -2;
    v[7] = NAN;
    v[8] = -INFINITY;
    quantize(x, row, FP8_DELAYED, false, q, none);
    check_row(row, 128, 2);
    assert_true(e4m3_to_f32(bytes[200]) == -256);
    v[3] = 50;
    quantize(x, row, FP8_DELAYED, false, q, none);
    check_row(row, 128, 50); /* the same scale all through the step: 50 saturates */
    assert_true(e4m3_to_f32(bytes[3]) == 448);
    v[3] = 1;
    quantize(x, row, FP8_DELAYED, false, q, none);
    check_row(row, 128, 50);
    fp8_commit_row(row);
    check_row(row, 8, 0);
    v[3] = 400;
    quantize(x, row, FP8_DELAYED, true, q, none); /* as it is, unseen */
    check_row(row, 8, 0);
    for (int step = 0; step < FP8_STEPS; step++) { /* 50 is the largest of the last 16 steps... */
        check_row(row, 8, 0);
        row[FP8_AMAX] = 3;
        fp8_commit_row(row);
    }
    check_row(row, 128, 0); /* ...and no longer */
    for (int step = 0; step < FP8_STEPS; step++) fp8_commit_row(row);
    check_row(row, 0, 0); /* nothing but zeros for as long: cold */
}

static void test_current_row(void **state) {
    float v[256] = { [9] = 2 }, row[FP8_ROW] = { 0 };
    uint8_t bytes[256];
    tensor x = matrix(v, DT_F32, 16, 16), q = matrix(bytes, DT_E5M2, 16, 16), none = { 0 };
    quantize(x, row, FP8_CURRENT, false, none, q);
    check_row(row, 16384, 2);
    v[9] = 0.25f;
    quantize(x, row, FP8_CURRENT, false, q, none);
    check_row(row, 131072, 0.25f);
    v[9] = 0;
    quantize(x, row, FP8_CURRENT, false, q, none);
    check_row(row, 0, 0);
}

/* ---- activations made as they are quantized ------------------------------------------------ */
/* The same as the op that makes x, in fp32, and then its quantization. */
static void check_fused(op_code fused, op_code plain, int64_t n, int64_t in, int64_t second,
                        int64_t k, fp8_recipe recipe) {
    tensor a = random_matrix(DT_BF16, n, in, 2, 1), b = { 0 }, none = { 0 };
    if (second) b = random_matrix(DT_BF16, n, second, 2, 2);
    tensor x = random_matrix(DT_F32, n, k, 1, 3);
    op_call make = { .op = plain, .in = { a, b }, .out = { x } };
    if (plain == OP_RMSNORM) { /* whose statistics are the second operand */
        b = tensor_of(mem_alloc((size_t)n * sizeof(float)), DT_F32, 1, &n);
        make = (op_call){ .op = plain, .in = { a }, .out = { none, x, b } };
    }
    make.attr.act = ACT_GELU_ERF;
    call(&make, OPS_ISA_BEST, NULL);
    float want_row[FP8_ROW] = { 0 }, row[FP8_ROW] = { 0 };
    uint8_t *bytes[4];
    for (int i = 0; i < 4; i++) bytes[i] = mem_alloc((size_t)(n * k));
    quantize(x, want_row, recipe, false, matrix(bytes[0], DT_E5M2, n, k),
             matrix(bytes[1], DT_E5M2, k, n));
    float *sum = mem_alloc((size_t)k * sizeof *sum);
    op_call c = { .op = fused,
                  .in = { a, row_tensor(row), b },
                  .out = { matrix(bytes[2], DT_E5M2, n, k), matrix(bytes[3], DT_E5M2, k, n),
                           tensor_of(sum, DT_F32, 1, &k) } };
    c.attr.act = ACT_GELU_ERF;
    c.attr.fp8.recipe = recipe;
    for (int add = 0; add < 2; add++) {
        c.accumulate = add ? ~0u : 0;
        call(&c, OPS_ISA_BEST, NULL);
        for (int64_t j = 0; j < k; j++) {
            double s = 0, size = 1e-6;
            for (int64_t i = 0; i < n; i++) s += ((float *)x.data)[i * k + j];
            for (int64_t i = 0; i < n; i++) size += fabsf(((float *)x.data)[i * k + j]);
            assert_true(fabs(sum[j] - (add ? 2 : 1) * s) < 1e-5 * size);
        }
    }
    assert_memory_equal(bytes[0], bytes[2], (size_t)(n * k));
    assert_memory_equal(bytes[1], bytes[3], (size_t)(n * k));
    assert_memory_equal(row, want_row, sizeof row);
    for (int i = 0; i < 4; i++) free(bytes[i]);
    void *all[] = { a.data, b.data, x.data, sum, none.data };
    for (size_t i = 0; i < COUNT_OF(all); i++) free(all[i]);
}

static void test_fused(void **state) {
    for (int64_t n = 16; n < 1200; n += 560)
        for (int64_t k = 16; k < 600; k += 272) {
            fp8_recipe recipe = n == 16 ? FP8_CURRENT : FP8_DELAYED;
            check_fused(OP_QUANTIZE, OP_CAST, n, k, 0, k, recipe);
            check_fused(OP_QUANTIZE_SWIGLU, OP_SWIGLU, n, 2 * k, 0, k, recipe);
            check_fused(OP_QUANTIZE_SWIGLU_BWD, OP_SWIGLU_BWD, n, k, 2 * k, 2 * k, recipe);
            check_fused(OP_QUANTIZE_GELU, OP_GELU, n, k, 0, k, recipe);
            check_fused(OP_QUANTIZE_GELU_BWD, OP_GELU_BWD, n, k, k, k, recipe);
            check_fused(OP_QUANTIZE_NORM, OP_RMSNORM, n, k, 0, k, recipe);
        }
}

/* ---- linear layers ----------------------------------------------------------------------- */
typedef struct pair {
    tensor plain, q, qt;
    float row[FP8_ROW];
} pair;

static void pair_open(pair *p, dtype dt, int64_t rows, int64_t cols, float spread, uint64_t seed) {
    *p = (pair){ .plain = random_matrix(DT_F32, rows, cols, spread, seed) };
    p->q = matrix(mem_alloc((size_t)(rows * cols)), dt, rows, cols);
    p->qt = matrix(mem_alloc((size_t)(rows * cols)), dt, cols, rows);
    quantize(p->plain, p->row, FP8_CURRENT, false, p->q, p->qt);
}

static void pair_free(pair *p) {
    free(p->plain.data);
    free(p->q.data);
    free(p->qt.data);
}

/* The fp8 values as what they stand for. */
static float *real_values(const pair *p) {
    int64_t n = tensor_count(&p->q);
    float *v = mem_alloc((size_t)n * sizeof *v);
    dt_to_f32(p->q.dt, p->q.data, v, n);
    for (int64_t i = 0; i < n; i++) v[i] *= p->row[FP8_UNSCALE];
    return v;
}

/* Relative distance of c[m,n], of any type, from the sums of a[i * as + k * ak] b[j * bs + k * bk],
 * plus bias and then GELU, plus `before`. */
typedef struct sums {
    const float *a, *b, *bias;
    int64_t m, n, k, as, ak, bs, bk;
    bool gelu;
    float before;
} sums;

static double distance(const tensor *c, sums s) {
    float *got = mem_alloc((size_t)(s.m * s.n) * sizeof *got);
    dt_to_f32(c->dt, c->data, got, s.m * s.n);
    double d = 0, size = 0;
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            double v = s.bias ? s.bias[j] : 0;
            for (int64_t k = 0; k < s.k; k++)
                v += (double)s.a[i * s.as + k * s.ak] * s.b[j * s.bs + k * s.bk];
            if (s.gelu) v *= 0.5 * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
            v += s.before;
            d += (v - got[i * s.n + j]) * (v - got[i * s.n + j]);
            size += v * v;
        }
    free(got);
    return sqrt(d / size);
}

/* Against fp64 sums of the very values that the bytes stand for, and of those before rounding. */
static void check_gemm(const char *what, const tensor *c, const pair *a, const pair *b, sums s,
                       double exact, double rounded) {
    float *ra = real_values(a), *rb = real_values(b);
    s.a = ra, s.b = rb;
    double d = distance(c, s);
    if (!(d <= exact)) fail_msg("%s is off by %.2e of its own operands", what, d);
    s.a = a->plain.data, s.b = b->plain.data;
    d = distance(c, s);
    if (!(d <= rounded)) fail_msg("%s is off by %.2e of what was rounded", what, d);
    free(ra);
    free(rb);
}

static void linear_case(int64_t n, int64_t k, int64_t m, bool bias, bool gelu) {
    pair x, w, dy;
    pair_open(&x, DT_E4M3, n, k, 3, 1);
    pair_open(&w, DT_E4M3, m, k, 0.02f, 2);
    pair_open(&dy, DT_E5M2, n, m, 1e-5f, 3);
    tensor y = random_matrix(DT_BF16, n, m, 1, 4), pre = random_matrix(DT_BF16, n, m, 1, 4);
    tensor b = tensor_of(filled(DT_F32, m, 0, 1, 5), DT_F32, 1, &m), none = { 0 };
    op_call f = { .op = gelu ? OP_LINEAR_GELU : OP_LINEAR,
                  .in = { x.q, w.q, bias ? b : none, row_tensor(x.row), row_tensor(w.row) },
                  .out = { y, gelu ? pre : none } };
    call(&f, OPS_ISA_BEST, NULL);
    sums s = { NULL, NULL, bias ? b.data : NULL, n, m, k, k, 1, k, 1, gelu, 0 };
    check_gemm("y", &y, &x, &w, s, 4e-3, 0.06);

    tensor dx = random_matrix(DT_BF16, n, k, 1, 4);
    op_call g = { .op = OP_LINEAR_BWD_X,
                  .in = { dy.q, w.qt, none, row_tensor(dy.row), row_tensor(w.row) },
                  .out = { dx } };
    call(&g, OPS_ISA_BEST, NULL);
    check_gemm("dx", &dx, &dy, &w,
               (sums){ .m = n, .n = k, .k = m, .as = m, .ak = 1, .bs = 1, .bk = k }, 4e-3, 0.1);

    tensor dw = random_matrix(DT_F32, m, k, 0, 4);
    for (int add = 0; add < 2; add++) {
        float before = add ? 1e-3f : 0;
        for (int64_t i = 0; i < m * k; i++) ((float *)dw.data)[i] = add ? before : NAN;
        op_call h = { .op = OP_LINEAR_BWD_W,
                      .in = { dy.qt, x.qt, none, row_tensor(dy.row), row_tensor(x.row) },
                      .out = { dw },
                      .accumulate = add ? ~0u : 0 };
        call(&h, OPS_ISA_BEST, NULL);
        check_gemm(
            "dw", &dw, &dy, &x,
            (sums){ .m = m, .n = k, .k = n, .as = 1, .ak = m, .bs = 1, .bk = k, .before = before },
            1e-5, 0.1);
    }
    void *all[] = { y.data, pre.data, b.data, dx.data, dw.data };
    for (size_t i = 0; i < COUNT_OF(all); i++) free(all[i]);
    pair_free(&x);
    pair_free(&w);
    pair_free(&dy);
}

static void test_linear(void **state) {
    linear_case(16, 16, 16, false, false);
    linear_case(48, 272, 80, true, false);
    linear_case(64, 96, 160, true, true);
    linear_case(4128, 16, 32, true, false); /* sums over more tokens than one stretch takes */
    linear_case(32, 4128, 16, false, true);
}

/* ---- small models ------------------------------------------------------------------------ */
typedef struct small {
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train, eval;
    int train_id, eval_id;
    int valid;
    test_batch batch[RUN_MICROS];
} small;

enum { TOKENS = RUN_ROWS * RUN_SEQ };

static void small_open(small *s, const model_config *c, fp8_recipe fp8, const char *skip) {
    *s = (small){ .x = { .comm = comm_self() } };
    model_layout l = { .dt = DT_BF16, .fp8 = fp8, .fp8_skip = skip };
    assert_ok(model_new(c, &l, &s->m));
    s->p = s->x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(s->m, s->p, true);
    optim_settings o = {
        .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    assert_ok(optim_new(&o, s->m, s->p, &s->o));
    assert_ok(model_record(s->m, PROG_TRAIN, TOKENS, RUN_SEQ, &s->train));
    assert_ok(model_record(s->m, PROG_EVAL, TOKENS, RUN_SEQ, &s->eval));
    assert_ok(plan_chain(s->p, &s->train, model_bucket_regions, s->m, &s->train_id));
    assert_ok(plan_chain(s->p, &s->eval, model_bucket_regions, s->m, &s->eval_id));
    assert_ok(plan_commit(s->p));
    model_init(s->m, s->p, 42);
    for (int k = 0; k < RUN_MICROS; k++) {
        make_batch(&s->batch[k], k, c->vocab);
        s->valid += s->batch[k].valid;
    }
}

static void small_free(small *s) {
    optim_free(s->o);
    plan_free(s->p);
    model_free(s->m);
    comm_free(s->x.comm);
}

static double run_chain(small *s, int which, const prog *last, int micro, int micros) {
    test_batch *b = &s->batch[micro];
    model_set_batch(s->m, s->p,
                    &(model_batch){ b->tokens, b->targets, b->pos, b->start, b->ids, TOKENS });
    assert_ok(exec_chain(&s->x, which, micro, micros));
    const float *losses = exec_result(&s->x, which).data;
    double sum = 0;
    for (int i = 0; i < TOKENS; i++) sum += losses[i];
    return sum;
}

/* @return the loss before the update. */
static double small_step(small *s) {
    double sum = 0;
    s->x.step.loss_grad = 1.0f / (float)s->valid;
    for (int k = 0; k < RUN_MICROS; k++)
        sum += run_chain(s, s->train_id, s->train.last, k, RUN_MICROS);
    assert_ok(optim_step(s->o, &s->x, 3e-3, 1));
    return sum / s->valid;
}

static double small_eval(small *s) {
    return run_chain(s, s->eval_id, s->eval.last, 0, 1) / s->batch[0].valid;
}

static void check_training(const char *name, const model_config *c, fp8_recipe recipe) {
    enum { STEPS = 30 };
    small plain, fp8;
    small_open(&plain, c, FP8_OFF, NULL);
    small_open(&fp8, c, recipe, NULL);
    double first = 0, a = 0, b = 0;
    for (int i = 0; i < STEPS; i++) {
        a = small_step(&plain);
        b = small_step(&fp8);
        if (i == 0) first = a;
        if (!(fabs(a - b) < 0.03 * first))
            fail_msg("%s, step %d: loss %.4f, in bf16 %.4f", name, i, b, a);
    }
    assert_true(b < 0.2 * first);
    assert_true(a != b);
    double ea = small_eval(&plain), eb = small_eval(&fp8);
    assert_true(ea != eb && fabs(ea - eb) < 0.03 * first);
    small_free(&plain);
    small_free(&fp8);
}

static void test_training(void **state) {
    model_config llama = small_llama(), gpt2 = small_gpt2();
    check_training("llama, delayed", &llama, FP8_DELAYED);
    check_training("gpt2, current", &gpt2, FP8_CURRENT);
    if (SANITIZED) return;
    check_training("llama, current", &llama, FP8_CURRENT);
    check_training("gpt2, delayed", &gpt2, FP8_DELAYED);
}

/* Gradients of fp8 are those of bf16, but for the rounding of what is multiplied. */
static void test_gradients(void **state) {
    model_config models[] = { small_llama(), small_gpt2(), small_neox() };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        outcome plain, fp8;
        layout l = { .dp = 1, .tp = 1, .dt = DT_BF16 };
        run_layout(&models[i], &l, &plain);
        for (l.fp8 = FP8_CURRENT; l.fp8 <= FP8_DELAYED; l.fp8++) {
            run_layout(&models[i], &l, &fp8);
            same_within("gradients in fp8", &fp8, &plain, 0.35);
            outcome_free(&fp8);
        }
        outcome_free(&plain);
    }
}

/* Every row is warm after a step, and an evaluation changes none. */
static void test_rows_of_a_model(void **state) {
    model_config c = small_llama();
    small s;
    int64_t n;
    small_open(&s, &c, FP8_DELAYED, NULL);
    const float *rows = model_fp8_rows(s.m, s.p, &n);
    assert_int_equal(n, c.layers * 12 * FP8_ROW);
    small_eval(&s);
    for (int64_t i = 0; i < n; i++) assert_true(rows[i] == 0);
    small_step(&s);
    for (int64_t i = 0; i < n; i += FP8_ROW) {
        assert_true(rows[i + FP8_SCALE] > 0 && rows[i + FP8_AMAX] > 0);
        assert_true(rows[i + FP8_HISTORY] == 0);
        bool gradient = i / FP8_ROW % FP8_OPERANDS == FP8_DY;
        assert_true(rows[i + FP8_TOP] == (gradient ? 57344 : 448));
    }
    float *before = mem_alloc((size_t)n * sizeof *before);
    memcpy(before, rows, (size_t)n * sizeof *before);
    small_eval(&s);
    assert_memory_equal(before, rows, (size_t)n * sizeof *before);
    small_step(&s);
    for (int64_t i = 0; i < n; i += FP8_ROW)
        assert_true(rows[i + FP8_HISTORY] == before[i + FP8_AMAX]);
    free(before);
    small_free(&s);
}

/* ---- which layers ------------------------------------------------------------------------ */
static int count_ops(const op_list *l, op_code from, op_code to) {
    int n = 0;
    for (int i = 0; i < l->n; i++) n += l->op[i].op >= from && l->op[i].op <= to;
    return n;
}
static int quantisations(const op_list *l) { return count_ops(l, OP_QUANTIZE, OP_QUANTIZE_NORM); }

/* @param activations how many are made as they are quantized, of the one and its gradient. */
static void check_quantized(model_config c, const char *skip, int linears, int activations) {
    small s;
    small_open(&s, &c, FP8_DELAYED, skip);
    prog *block = s.train.block[0];
    assert_int_equal(quantisations(&block->fwd), 2 * linears);
    assert_int_equal(quantisations(&block->bwd), 2 * linears);
    assert_int_equal(quantisations(&s.eval.block[0]->fwd), 2 * linears);
    assert_int_equal(count_ops(&s.train.begin->fwd, OP_FP8_COMMIT, OP_FP8_COMMIT), 1);
    assert_null(s.eval.begin);
    int fused = count_ops(&block->fwd, OP_QUANTIZE_SWIGLU, OP_QUANTIZE_GELU_BWD) +
                count_ops(&block->bwd, OP_QUANTIZE_SWIGLU, OP_QUANTIZE_GELU_BWD);
    assert_int_equal(fused, activations);
    int left = count_ops(&block->fwd, OP_GELU, OP_SWIGLU_BWD) +
               count_ops(&block->fwd, OP_LINEAR_GELU, OP_LINEAR_GELU) +
               count_ops(&block->bwd, OP_GELU, OP_SWIGLU_BWD) +
               count_ops(&block->bwd, OP_LINEAR_BWD_X_GELU, OP_LINEAR_BWD_X_GELU);
    assert_int_equal(left, 2 - activations);
    for (val v = 0; v < block->vals; v++) { /* inserted ops have moved the others along */
        int at = block->val[v].producer;
        if (at < 0) continue;
        bool makes = false;
        for (int k = 0; k < OP_MAX_OUT; k++) makes |= block->fwd.op[at].out[k] == v;
        assert_true(makes);
    }
    for (int i = 0; i < block->fwd.n; i++)
        if (block->fwd.op[i].op == OP_QUANTIZE_GELU)
            assert_int_equal(block->fwd.op[i].attr.act,
                             c.mlp == MLP_GELU_ERF ? ACT_GELU_ERF : ACT_GELU_TANH);
    small_step(&s);
    small_free(&s);
}

static void test_which(void **state) {
    model_config llama = small_llama(), gpt2 = small_gpt2(), odd = llama;
    check_quantized(llama, NULL, 4, 2);
    check_quantized(llama, "attn.o", 3, 2);
    check_quantized(llama, "mlp,attn.qkv", 1, 0);
    check_quantized(llama, "attn,mlp.down", 1, 1);
    check_quantized(llama, "mlp.up", 3, 1);
    check_quantized(gpt2, NULL, 4, 2);
    check_quantized(gpt2, "mlp.down", 3, 0);
    check_quantized(gpt2, "mlp.up", 3, 0);
    check_quantized(small_neox(), NULL, 4, 2);
    model_config gated = llama, delta = small_delta();
    gated.attention_gate = true;
    check_quantized(gated, NULL, 5, 2);
    check_quantized(gated, "attn.gate", 4, 2);
    delta.layer_pattern = 5;
    delta.delta_key_dim = delta.delta_value_dim = 8; /* sizes that are multiples of 16 */
    check_quantized(delta, NULL, 5, 2);
    check_quantized(delta, "attn.gate", 4, 2);
    odd.ffn = 56; /* no multiple of 16: down's input; up has 112 rows */
    check_quantized(odd, NULL, 3, 1);
    odd = gpt2;
    odd.ffn = 56; /* up's output as well */
    check_quantized(odd, NULL, 2, 0);
}

/* Norms without weights are not written where only layers in fp8 read them. @param norms how many of a block's two */
static void check_norms(model_config c, const char *skip, int norms) {
    small s;
    enum { Y = 1, MIX_Y };
    small_open(&s, &c, FP8_DELAYED, skip);
    const op_list *lists[] = { &s.train.block[0]->fwd, &s.eval.block[0]->fwd };
    for (size_t l = 0; l < COUNT_OF(lists); l++) {
        int unwritten = 0;
        for (int i = 0; i < lists[l]->n; i++) {
            const prog_op *o = &lists[l]->op[i];
            unwritten += o->op == OP_RMSNORM && o->out[Y] == VAL_NONE;
            unwritten += o->op == OP_MIX_NORM && o->out[MIX_Y] == VAL_NONE;
        }
        assert_int_equal(unwritten, norms);
        assert_int_equal(count_ops(lists[l], OP_QUANTIZE_NORM, OP_QUANTIZE_NORM), norms);
    }
    small_step(&s);
    small_free(&s);
}

static void norms_without_weights_are_quantized_unwritten(void **state) {
    model_config c = small_llama();
    check_norms(c, NULL, 0);
    c.weightless_norms = true;
    check_norms(c, NULL, 2);
    check_norms(c, "attn.qkv", 1);
    check_norms(c, "mlp.up,attn.qkv", 0);
    c.layer_scalars = true;
    check_norms(c, NULL, 2);
    check_norms(c, "mlp.up", 1);
}

static void refused(model_layout l, const char *why) {
    model_config c = small_llama();
    model *m = NULL;
    err e = model_new(&c, &l, &m);
    assert_true(e != OK && m == NULL);
    if (!strstr(err_message(e), why)) fail_msg("refused, but not for %s: %s", why, err_message(e));
    err_free(e);
}

static void test_refusals(void **state) {
    model_layout l = { .dt = DT_F32, .fp8 = FP8_CURRENT };
    refused(l, "precision.dtype=fp32");
    l.dt = DT_BF16;
    l.fp8_skip = "attn.o,head";
    refused(l, "'head'");
    l.fp8_skip = "attn.q";
    refused(l, "'attn.q'");
    l.fp8_skip = "mlp.";
    refused(l, "'mlp.'");
}

/* ---- checkpoints ------------------------------------------------------------------------- */
static void same_weights(const small *a, const small *b) {
    for (int i = 0; i < model_params(a->m); i++) {
        const model_param *q = model_param_at(a->m, i);
        size_t bytes = (size_t)(q->dim[0] * q->dim[1]) * sizeof(float);
        if (memcmp(model_param_data(a->m, a->p, i, PARAM_MASTER, NULL),
                   model_param_data(b->m, b->p, i, PARAM_MASTER, NULL), bytes))
            fail_msg("%s differs", q->name);
    }
}

static void resume(small *s, const model_config *c, fp8_recipe fp8, const char *from) {
    char *path;
    step_state now = { .count = 3 };
    small_open(s, c, fp8, NULL);
    assert_ok(ckpt_latest(from, &path));
    assert_ok(ckpt_load(path, s->m, &s->x, s->o));
    exec_state_set(&s->x, &now);
    free(path);
}

static void test_resume(void **state) {
    model_config c = small_llama();
    const char *dir = *state;
    small whole, second, plain;
    int64_t n;
    small_open(&whole, &c, FP8_DELAYED, NULL);
    for (int i = 0; i < 3; i++) small_step(&whole);
    ckpt_state st = { .step = 3, .updates = 3 };
    assert_ok(ckpt_save(dir, whole.m, &whole.x, whole.o, &st, NULL, 0));
    resume(&second, &c, FP8_DELAYED, dir);
    const float *rows = model_fp8_rows(whole.m, whole.p, &n);
    const float *restored = model_fp8_rows(second.m, second.p, &n);
    assert_memory_equal(restored, rows, (size_t)n * sizeof(float));
    for (int i = 0; i < 3; i++) assert_true(small_step(&whole) == small_step(&second));
    same_weights(&whole, &second);
    small_free(&second);

    resume(&plain, &c, FP8_OFF, dir); /* rows are not missed... */
    small_step(&plain);
    st.step = 4;
    assert_ok(ckpt_save(dir, plain.m, &plain.x, plain.o, &st, NULL, 0));
    small_free(&plain);
    resume(&second, &c, FP8_DELAYED, dir); /* ...nor needed */
    assert_true(model_fp8_rows(second.m, second.p, &n)[FP8_SCALE] == 0);
    assert_true(isfinite(small_step(&second)));
    small_free(&second);
    small_free(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_delayed_row),
        cmocka_unit_test(test_current_row),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_rows_of_a_model),
        cmocka_unit_test(test_which),
        cmocka_unit_test(norms_without_weights_are_quantized_unwritten),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test_setup_teardown(test_resume, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
