/* The output layer in fp8 (precision.fp8_head): one call against a reference that rounds what the op rounds, small models
 * trained with it, every kind of layout against one rank, and refusals. */
#include "support/model.h"

#include "prog/prog_internal.h"

/* ---- one call ---------------------------------------------------------------------------- */
enum { N = 48, D = 32, V = 96, NONE = -100 };

typedef struct head_case {
    float h[N * D], w[V * D];
    uint16_t h16[N * D], w16[V * D];
    int32_t target[N];
    float loss[N], dh[N * D], dw[V * D];
    op_attr attr;
    step_block step;
} head_case;

/* Draws values that bf16 holds. @param exact e4m3 holds them, too */
static void draw_values(float *v, uint16_t *half, int n, float spread, bool exact, uint64_t seed) {
    uint8_t bytes[V * D];
    for (int i = 0; i < n; i++) v[i] = spread * rng_normal(rng_key_of(seed, 1), (uint64_t)i);
    if (exact) dt_from_f32(DT_E4M3, v, bytes, n), dt_to_f32(DT_E4M3, bytes, v, n);
    dt_from_f32(DT_BF16, v, half, n);
    dt_to_f32(DT_BF16, half, v, n);
}

static void draw_case(head_case *c, bool exact, uint64_t seed) {
    *c = (head_case){ .attr.ce.logit_scale = 1, .step.loss_grad = 1.0f / 1000 };
    draw_values(c->h, c->h16, N * D, 1, exact, seed);
    draw_values(c->w, c->w16, V * D, 0.25f, exact, seed + 1);
    for (int i = 0; i < N; i++)
        c->target[i] = i % 7 == 3 ? NONE : (int32_t)rng_below(rng_key_of(seed, 3), (uint64_t)i, V);
}

static void run_head(head_case *c, bool fp8) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    op_run run = { .step = &c->step };
    op_call call = { .op = OP_LINEAR_CE, .run = &run, .attr = c->attr };
    call.attr.ce.fp8 = fp8;
    call.in[0] = tensor_of(c->h16, DT_BF16, 2, (int64_t[]){ N, D });
    call.in[1] = tensor_of(c->w16, DT_BF16, 2, (int64_t[]){ V, D });
    call.in[2] = tensor_of(c->target, DT_I32, 1, (int64_t[]){ N });
    call.out[0] = tensor_of(c->loss, DT_F32, 1, (int64_t[]){ N });
    call.out[1] = tensor_of(c->dh, DT_F32, 2, (int64_t[]){ N, D });
    call.out[2] = tensor_of(c->dw, DT_F32, 2, (int64_t[]){ V, D });
    run.pool = pool_new(2);
    run.workspace_bytes = ops_workspace(b, &call, 2);
    run.workspace = mem_alloc(run.workspace_bytes);
    ops_run(b, &call);
    free(run.workspace);
    pool_free(run.pool);
}

/* Rounds as quantization does: by the largest power of two that keeps the values in e4m3. */
static void round_to_e4m3(float *v, int n) {
    float most = 0, scale;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(v[i]));
    scale = fp8_scale(most, fp8_top(DT_E4M3));
    for (int i = 0; i < n; i++) {
        uint8_t byte;
        float x = v[i] * scale;
        dt_from_f32(DT_E4M3, &x, &byte, 1);
        dt_to_f32(DT_E4M3, &byte, &x, 1);
        v[i] = x / scale;
    }
}

/* The gradient of row i by its logits before the cap, in e5m2 where `fp8`; the loss. */
static double row_reference(const head_case *c, const float *h, const float *w, int i, bool fp8,
                            double dz[V]) {
    double logit[V], slope[V], sum = 0, all = 0, e = (double)c->attr.ce.smoothing,
                               cap = (double)c->attr.ce.cap;
    for (int j = 0; j < V; j++) {
        double x = 0;
        for (int k = 0; k < D; k++) x += (double)h[i * D + k] * (double)w[j * D + k];
        x *= (double)c->attr.ce.logit_scale;
        logit[j] = cap > 0 ? cap * tanh(x / cap) : x;
        slope[j] = cap > 0 ? 1 - logit[j] / cap * logit[j] / cap : 1;
        sum += exp(logit[j]);
        all += logit[j];
    }
    double lse = log(sum), z = (double)c->attr.ce.z_loss, at = logit[c->target[i]];
    float unit = c->step.loss_grad * c->attr.ce.logit_scale;
    if (c->step.now.loss_scale > 0) unit *= c->step.now.loss_scale;
    float scale = fp8 ? fp8_logit_scale(unit) : 1;
    for (int j = 0; j < V; j++) {
        double p = exp(logit[j] - lse) * (1 + 2 * z * lse) - e / V;
        float x = (float)((p - (j == c->target[i] ? 1 - e : 0)) * slope[j] * (double)unit *
                          (double)scale);
        uint8_t byte;
        if (fp8) dt_from_f32(DT_E5M2, &x, &byte, 1), dt_to_f32(DT_E5M2, &byte, &x, 1);
        dz[j] = (double)x / (double)scale;
    }
    return lse - (1 - e) * at - e * all / V + z * lse * lse;
}

/* @return the norm of the difference as a share of the norm */
static double apart(const float *got, const double *want, int n) {
    double off = 0, size = 0;
    for (int i = 0; i < n; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(off / size);
}

static void check_case(head_case *c, const char *what) {
    static double dh[N * D], dw[V * D], loss[N];
    static float h[N * D], w[V * D];
    memcpy(h, c->h, sizeof h), memcpy(w, c->w, sizeof w);
    round_to_e4m3(h, N * D), round_to_e4m3(w, V * D);
    memset(dh, 0, sizeof dh), memset(dw, 0, sizeof dw);
    run_head(c, true);
    for (int i = 0; i < N; i++) {
        double dz[V];
        loss[i] = 0;
        if (c->target[i] == NONE) continue;
        loss[i] = row_reference(c, h, w, i, true, dz);
        for (int j = 0; j < V; j++)
            for (int k = 0; k < D; k++) {
                dh[i * D + k] += dz[j] * (double)w[j * D + k];
                dw[j * D + k] += dz[j] * (double)h[i * D + k];
            }
    }
    double by[] = { apart(c->loss, loss, N), apart(c->dh, dh, N * D), apart(c->dw, dw, V * D) };
    /* Of 4,608 gradients some lie so near the middle of two codes that the last bit of a logit decides. */
    if (!(by[0] < 1e-5 && by[1] < 4e-3 && by[2] < 4e-3))
        fail_msg("%s: loss, dh and dw differ by %.2g, %.2g and %.2g", what, by[0], by[1], by[2]);
    for (int i = 0; i < N; i++)
        for (int k = 0; c->target[i] == NONE && k < D; k++) assert_true(c->dh[i * D + k] == 0);
}

static void a_call_rounds_what_it_should(void **state) {
    static head_case c;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        draw_case(&c, seed == 1, 10 * seed);
        if (seed == 3) c.attr.ce.cap = 1.5f;
        if (seed == 4) c.attr.ce.smoothing = 0.125f, c.attr.ce.z_loss = 0.0625f;
        if (seed == 5) c.attr.ce.logit_scale = -0.5f, c.step.now.loss_scale = 1024;
        if (seed == 6) c.step.loss_grad = 1e-9f;
        char what[32];
        snprintf(what, sizeof what, "case %d", (int)seed);
        check_case(&c, what);
    }
}

/* Of operands that e4m3 holds, the loss is that of bf16. Gradients of 0 and activations of 0 yield 0. */
static void a_call_is_exact_where_fp8_is(void **state) {
    static head_case c;
    draw_case(&c, true, 77);
    run_head(&c, false);
    float loss[N];
    memcpy(loss, c.loss, sizeof loss);
    run_head(&c, true);
    for (int i = 0; i < N; i++) assert_float_equal(c.loss[i], loss[i], 1e-5);
    c.step.loss_grad = 0;
    run_head(&c, true);
    for (int i = 0; i < V * D; i++) assert_true(c.dw[i] == 0);
    c.step.loss_grad = 1;
    memset(c.h16, 0, sizeof c.h16);
    run_head(&c, true);
    for (int i = 0; i < N; i++)
        if (c.target[i] != NONE) assert_float_equal(c.loss[i], log(V), 1e-5);
    for (int i = 0; i < V * D; i++) assert_true(c.dw[i] == 0);
    c.h16[5 * D + 1] = 0x7f80; /* infinity */
    run_head(&c, true);
    assert_true(isnan(c.loss[5]) && !isnan(c.loss[6]) && isnan(c.dh[5 * D]));
}

/* ---- models ------------------------------------------------------------------------------- */
static model_config head_model(model_config c) {
    c.vocab = 96;
    c.ffn = 64;
    return c;
}

/* Gradients of a model are those of bf16, but for the rounding. */
static void gradients_are_close_to_those_of_bf16(void **state) {
    model_config models[] = { small_llama(), small_gpt2(), small_fast() };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        model_config c = head_model(models[i]);
        outcome plain, fp8;
        run_layout(&c, &(layout){ .dt = DT_BF16, .loss_terms = i == 1 }, &plain);
        run_layout(&c, &(layout){ .dt = DT_BF16, .loss_terms = i == 1, .fp8_head = true }, &fp8);
        assert_true(plain.loss != fp8.loss);
        same_within("gradients of a head in fp8", &fp8, &plain, 0.2);
        outcome_free(&plain);
        outcome_free(&fp8);
    }
}

/* The head alone is in fp8, so that little else decides how values round. Data parallelism changes only scales; under tensor
 * parallelism sums of another order move values near the middle of two codes to the other one. */
static void layouts_agree_with_one_rank(void **state) {
    static const struct {
        layout l;
        double tol;
    } on[] = {
        { { .name = "tp2", .tp = 2 }, 0.1 },
        { { .name = "tp2+sp, two chunks", .tp = 2, .sp = true, .logit_bytes = 1 }, 0.1 },
        { { .name = "tp2, four microbatches", .tp = 2, .micros = 4 }, 0.1 },
        { { .name = "dp2", .dp = 2 }, 2e-3 },
        { { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 3 }, 0.1 },
        { { .name = "pp2", .pp = 2, .micros = 4 }, 2e-3 },
        { { .name = "pp2 x tp2", .pp = 2, .tp = 2, .micros = 4, .schedule = PIPE_ZERO_BUBBLE },
          0.1 },
        { { .name = "cp2", .cp = 2, .context = CONTEXT_RING }, 0.1 },
    };
    model_config models[] = { head_model(small_llama()), head_model(small_gpt2()) };
    models[0].logit_softcap = 4;
    for (size_t m = 0; m < COUNT_OF(models); m++)
        for (size_t i = m; i < COUNT_OF(on); i += SANITIZED ? 3 : 1) {
            layout l = on[i].l, whole = { .dt = DT_BF16, .fp8_head = true, .micros = l.micros };
            outcome one, o;
            l.dt = DT_BF16;
            l.fp8_head = true;
            l.loss_terms = whole.loss_terms = m == 1;
            run_layout(&models[m], &whole, &one);
            run_layout(&models[m], &l, &o);
            if (!o.replicas_agree) fail_msg("%s: ranks differ", l.name);
            same_within(l.name, &o, &one, on[i].tol);
            outcome_free(&o);
            outcome_free(&one);
        }
}

/* ---- evaluation and refusals --------------------------------------------------------------- */
static err record(model_config c, model_layout l, prog_mode mode, int64_t tokens, chain *out,
                  model **m) {
    *m = NULL;
    TRY(model_new(&c, &l, m));
    return model_record(*m, mode, tokens, RUN_SEQ, out);
}

static int ops_in_fp8(const prog *p) {
    int n = 0;
    for (int i = 0; i < p->fwd.n; i++) n += p->fwd.op[i].attr.ce.fp8;
    return n;
}

/* Held-out losses measure the model that is exported. */
static void only_training_is_in_fp8(void **state) {
    model_config c = head_model(small_llama());
    model_layout l = { .dt = DT_BF16, .fp8 = FP8_CURRENT, .fp8_head = true };
    chain train, eval;
    model *m, *other;
    assert_ok(record(c, l, PROG_TRAIN, 64, &train, &m));
    assert_ok(record(c, l, PROG_EVAL, 64, &eval, &other));
    assert_int_equal(ops_in_fp8(train.last), 1);
    assert_int_equal(ops_in_fp8(eval.last), 0);
    model_free(m);
    model_free(other);
    c.vocab = 40; /* of no concern to it */
    assert_ok(record(c, l, PROG_EVAL, 64, &eval, &other));
    model_free(other);
}

static void refused(model_config c, const char *modules, int64_t tokens, const char *why) {
    model_layout l = { .dt = DT_BF16, .fp8 = FP8_CURRENT, .fp8_head = true, .modules = modules };
    chain train;
    model *m;
    err e = record(c, l, PROG_TRAIN, tokens, &train, &m);
    if (e == OK || !strstr(err_message(e), why))
        fail_msg("not refused for %s: %s", why, e ? err_message(e) : "accepted");
    err_free(e);
    model_free(m);
}

static void sizes_and_types_are_refused(void **state) {
    model_config c = head_model(small_llama());
    refused(c, "head=fp32", 64, "the output layer computes in fp32");
    refused(c, NULL, 72, "72 tokens of a microbatch");
    c.vocab = 300;
    refused(c, NULL, 64, "300 tokens of the vocabulary");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_rounds_what_it_should),
        cmocka_unit_test(a_call_is_exact_where_fp8_is),
        cmocka_unit_test(gradients_are_close_to_those_of_bf16),
        cmocka_unit_test(layouts_agree_with_one_rank),
        cmocka_unit_test(only_training_is_in_fp8),
        cmocka_unit_test(sizes_and_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
