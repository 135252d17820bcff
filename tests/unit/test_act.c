/* GELU and SwiGLU over the whole range of their inputs, on every instruction set of this machine:
 * accuracy for each of the 65,536 bf16 numbers and for fp32, and values that depend neither on their
 * position nor on which op computes them. (Gradients by finite differences are test_ops's.) */
#include "support/test.h"

#include <math.h>

#include "ops/op_table.h"

enum { NUMBERS = 1 << 16 };

/* ---- references ------------------------------------------------------------------------------ */
static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double cubic(double x) { return 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
static double gelu_tanh(double x) { return x * logistic(cubic(x)); }
static double gelu_tanh_slope(double x) {
    double s = logistic(cubic(x)), slope = 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return s + (s > 0 && s < 1 ? x * s * (1 - s) * slope : 0);
}
static double gelu_erf(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double gelu_erf_slope(double x) {
    return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
}
static double silu(double x) { return x * logistic(x); }
static double silu_slope(double x) { return logistic(x) * (1 + x * (1 - logistic(x))); }

/* ---- values ---------------------------------------------------------------------------------- */
static tensor tensor_new(dtype dt, int64_t rows, int64_t cols) {
    tensor t = tensor_of(NULL, dt, 2, (int64_t[]){ rows, cols });
    t.data = mem_alloc(tensor_bytes(&t));
    return t;
}
static float get(const tensor *t, int64_t i) {
    float v;
    dt_to_f32(t->dt, (char *)t->data + (size_t)i * dt_size(t->dt), &v, 1);
    return v;
}
static void set(const tensor *t, int64_t i, float v) {
    dt_from_f32(t->dt, &v, (char *)t->data + (size_t)i * dt_size(t->dt), 1);
}

/* The i-th test value: as bf16 every number there is, as fp32 those with other low bits. */
static float value(dtype dt, int i) {
    uint32_t bits = (uint32_t)i << 16 | (dt == DT_F32 ? (uint32_t)i * 40503u & 0xffffu : 0);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* To 3e-5 relative before rounding, since the exponential's argument is rounded too. What is below
 * 1e-30 may be anything as small. */
static void check_close(const char *what, dtype dt, float x, double got, double want) {
    double unit = dt == DT_BF16 ? 0x1p-8 : 0x1p-22;
    if (isnan(want) ? isnan(got) : fabs(got - want) <= (unit + 3e-5) * fabs(want) + 1e-30) return;
    fail_msg("%s in %s of %.9g: got %.9g, expected %.9g", what, dt_name(dt), (double)x, got, want);
}

/* Beyond +-1e4 the references overflow or hit infinity times zero; there x or 0 is expected. */
static bool is_tame(float x) { return !(fabsf(x) > 1e4f); }

static void run(const op_backend *b, op_call *c) {
    op_run r = { 0 };
    c->run = &r;
    ops_run(b, c);
}

static void check_gelu(const op_backend *b, dtype dt, act_kind act, double (*fwd)(double),
                       double (*slope)(double)) {
    tensor x = tensor_new(dt, NUMBERS, 1), y = tensor_new(dt, NUMBERS, 1);
    tensor dy = tensor_new(dt, NUMBERS, 1), dx = tensor_new(dt, NUMBERS, 1);
    for (int i = 0; i < NUMBERS; i++) set(&x, i, value(dt, i)), set(&dy, i, 1);
    op_call f = { .op = OP_GELU, .attr = { .act = act }, .in = { x }, .out = { y } };
    op_call g = { .op = OP_GELU_BWD, .attr = { .act = act }, .in = { dy, x }, .out = { dx } };
    run(b, &f);
    run(b, &g);
    for (int i = 0; i < NUMBERS; i++) {
        float v = get(&x, i);
        if (isnan(v)) assert_true(isnan(get(&y, i)));
        if (!is_tame(v)) continue;
        check_close("gelu", dt, v, get(&y, i), fwd(v));
        double want = slope(v), near_zero = 1e-6; /* where its two terms cancel */
        if (fabs(get(&dx, i) - want) > near_zero) check_close("slope", dt, v, get(&dx, i), want);
    }
    free(x.data), free(y.data), free(dy.data), free(dx.data);
}

static void gelu_is_accurate_everywhere(void **state) {
    for (int i = 0; ops_cpu_isa(i); i++)
        for (int t = 0; t < 2; t++) {
            const op_backend *b = ops_cpu(ops_cpu_isa(i));
            check_gelu(b, t ? DT_BF16 : DT_F32, ACT_GELU_TANH, gelu_tanh, gelu_tanh_slope);
            check_gelu(b, t ? DT_BF16 : DT_F32, ACT_GELU_ERF, gelu_erf, gelu_erf_slope);
        }
}

/* Rows of 7 columns, so that values stand everywhere in a vector and at the end of rows. */
typedef struct glu {
    tensor gu, y, dy, dgu, again;
} glu;

static glu glu_run(const op_backend *b, dtype dt) {
    enum { COLS = 7, ROWS = (NUMBERS + COLS - 1) / COLS };
    glu l = { tensor_new(dt, ROWS, 2 * COLS), tensor_new(dt, ROWS, COLS),
              tensor_new(dt, ROWS, COLS), tensor_new(dt, ROWS, 2 * COLS),
              tensor_new(dt, ROWS, COLS) };
    for (int i = 0; i < ROWS * COLS; i++) {
        set(&l.gu, i / COLS * 2 * COLS + i % COLS, value(dt, i % NUMBERS));
        set(&l.gu, i / COLS * 2 * COLS + COLS + i % COLS, 1);
        set(&l.dy, i, 1);
    }
    op_call f = { .op = OP_SWIGLU, .in = { l.gu }, .out = { l.y } };
    op_call g = { .op = OP_SWIGLU_BWD, .in = { l.dy, l.gu }, .out = { l.dgu, l.again } };
    run(b, &f);
    run(b, &g);
    return l;
}

static void swiglu_is_accurate_and_recomputed_to_the_bit(void **state) {
    enum { COLS = 7 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (int t = 0; t < 2; t++) {
            dtype dt = t ? DT_BF16 : DT_F32;
            glu l = glu_run(ops_cpu(ops_cpu_isa(i)), dt);
            assert_memory_equal(l.y.data, l.again.data, tensor_bytes(&l.y));
            for (int k = 0; k < NUMBERS; k++) {
                int64_t at = k / COLS * 2 * COLS + k % COLS;
                float g = get(&l.gu, at);
                if (isnan(g) || !is_tame(g)) continue;
                check_close("silu", dt, g, get(&l.y, k), silu(g));
                check_close("du", dt, g, get(&l.dgu, at + COLS), silu(g));
                if (fabs(get(&l.dgu, at) - silu_slope(g)) > 1e-6)
                    check_close("dg", dt, g, get(&l.dgu, at), silu_slope(g));
            }
            free(l.gu.data), free(l.y.data), free(l.dy.data), free(l.dgu.data), free(l.again.data);
        }
}

/* The same numbers, shifted by one element: every value gets another lane, the last ones the padding. */
static void gelu_does_not_depend_on_the_position(void **state) {
    enum { N = 1000 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (int t = 0; t < 2; t++) {
            dtype dt = t ? DT_BF16 : DT_F32;
            tensor x = tensor_new(dt, N + 1, 1), a = tensor_new(dt, N, 1), b = tensor_new(dt, N, 1);
            for (int k = 0; k <= N; k++) set(&x, k, 4 * rng_normal(rng_key_of(1, 1), (uint64_t)k));
            tensor from = tensor_of(x.data, dt, 2, (int64_t[]){ N, 1 }), shifted = from;
            shifted.data = (char *)x.data + dt_size(dt);
            op_call one = { .op = OP_GELU, .in = { from }, .out = { a } };
            op_call two = { .op = OP_GELU, .in = { shifted }, .out = { b } };
            run(ops_cpu(ops_cpu_isa(i)), &one);
            run(ops_cpu(ops_cpu_isa(i)), &two);
            assert_memory_equal((char *)a.data + dt_size(dt), b.data, (N - 1) * dt_size(dt));
            free(x.data), free(a.data), free(b.data);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_is_accurate_everywhere),
        cmocka_unit_test(swiglu_is_accurate_and_recomputed_to_the_bit),
        cmocka_unit_test(gelu_does_not_depend_on_the_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
