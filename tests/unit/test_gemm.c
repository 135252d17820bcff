/* GEMMs against a plain fp64 reference: every pair of types, transposition, kind of store and
 * awkward size, on every instruction set this processor has. What the ops make of them (linear,
 * linear_ce) is in tests/ops; here only what takes shapes too large for it. */
#include "support/test.h"

#include <math.h>

#include "ops/cpu/kernel/kernel_internal.h"
#include "ops/cpu/vmath.h"
#include "ops/cpu_features.h"
#include "ops/op_table.h"

/* ---- the instruction sets, and AMX in plain C (emulate/amx) ----------------------------------- */
#define ISAS CPU_ISA_TABLE X(amx_emulated)
#define X(isa)                                                                                     \
    void gemm_run_##isa(const gemm *g, pool *p, void *workspace, size_t bytes);                    \
    size_t gemm_workspace_##isa(const gemm *g, int threads);                                       \
    size_t gemm_workspace_rows_##isa(const gemm *g, int threads);                                  \
    size_t gemm_workspace_most_##isa(const gemm *g, int threads);
ISAS
#undef X

    static const struct isa {
    const char *name;
    void (*run)(const gemm *g, pool *p, void *workspace, size_t bytes);
    size_t (*workspace)(const gemm *g, int threads);
    size_t (*workspace_rows)(const gemm *g, int threads);
    size_t (*workspace_most)(const gemm *g, int threads);
} isas[] = {
#define X(isa)                                                                                     \
    { #isa, gemm_run_##isa, gemm_workspace_##isa, gemm_workspace_rows_##isa,                       \
      gemm_workspace_most_##isa },
    ISAS
#undef X
};
static bool has_isa(const char *isa) { return !strcmp(isa, "amx_emulated") || cpu_has_isa(isa); }

enum { MOST_THREADS = 3 };
static pool *pools[MOST_THREADS + 1]; /* by number of threads; set up once, read by all tests */

/* ---- operands --------------------------------------------------------------------------------- */
enum { POISON = 0xff }; /* 0xff..: NaN in every float type */

static float get(dtype dt, const void *p, int64_t i) {
    float x;
    dt_to_f32(dt, (const char *)p + (size_t)i * dt_size(dt), &x, 1);
    return x;
}

/* Values within [-2, 2) that look random; a hash, because millions of them are drawn. */
static void *draw(dtype dt, int64_t count, uint32_t stream) {
    float *x = mem_alloc((size_t)count * sizeof *x + 1);
    char *p = mem_alloc((size_t)count * dt_size(dt) + 1);
    for (int64_t i = 0; i < count; i++) {
        uint32_t h = ((uint32_t)i + stream * 0x9e3779b9u) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        x[i] = (float)(h >> 8) * 0x1p-22f - 2;
    }
    dt_from_f32(dt, x, p, count);
    free(x);
    return p;
}

static double epsilon(dtype dt) { return dt == DT_F32 ? 6e-8 : dt == DT_BF16 ? 4e-3 : 5e-4; }

/* ---- one GEMM ---------------------------------------------------------------------------------- */
typedef struct store_kind {
    const char *name;
    float alpha;
    bool accumulate, gelu, pre;
    act_kind act;
    dtype bias;
} store_kind;
static const store_kind stores[] = {
    { .name = "plain" },
    { .name = "bias", .bias = DT_F32 },
    { .name = "bias gelu pre", .bias = DT_BF16, .gelu = true, .pre = true },
    { .name = "accumulate", .accumulate = true },
    { .name = "bias gelu erf", .bias = DT_F16, .gelu = true, .act = ACT_GELU_ERF },
    { .name = "alpha", .alpha = 0.5f },
    { .name = "alpha accumulate", .alpha = -3, .accumulate = true },
};
enum { STORES = sizeof stores / sizeof stores[0], PAD = 5 };

typedef struct gemm_case {
    gemm g;
    const store_kind *store;
    double *sum,
        *size; /* [M, N]: the exact result, and the sum of its terms' sizes; set by reference */
    char *c, *pre, *start; /* [M, ldc]; start: what C held before */
    size_t c_bytes;
} gemm_case;

UNWATCHED static void reference(gemm_case *t) {
    const gemm *g = &t->g;
    double *row = mem_alloc((size_t)g->n * sizeof *row);
    size_t bytes = (size_t)(g->m * g->n) * sizeof *t->sum;
    memset(t->sum, 0, bytes);
    memset(t->size, 0, bytes);
    for (int64_t k = 0; k < g->k; k++) {
        for (int64_t j = 0; j < g->n; j++)
            row[j] = get(g->bt, g->b, g->tb ? j * g->ldb + k : k * g->ldb + j);
        for (int64_t i = 0; i < g->m; i++) {
            double a = get(g->at, g->a, g->ta ? k * g->lda + i : i * g->lda + k);
            double *restrict sum = t->sum + i * g->n, *restrict size = t->size + i * g->n;
            for (int64_t j = 0; j < g->n; j++) {
                sum[j] += a * row[j];
                size[j] += fabs(a * row[j]);
            }
        }
    }
    free(row);
}

static gemm_case gemm_case_make(int64_t m, int64_t n, int64_t k, dtype at, dtype bt, dtype ct,
                                bool ta, bool tb, const store_kind *store) {
    gemm_case t = { .store = store };
    t.g = (gemm){ .m = m, .n = n, .k = k, .at = at, .bt = bt, .ct = ct, .ta = ta, .tb = tb };
    gemm *g = &t.g;
    g->lda = (ta ? m : k) + PAD;
    g->ldb = (tb ? k : n) + PAD;
    g->ldc = n + PAD;
    g->a = draw(at, (ta ? k : m) * g->lda, 1);
    g->b = draw(bt, (tb ? n : k) * g->ldb, 2);
    g->alpha = store->alpha;
    g->accumulate = store->accumulate;
    g->gelu = store->gelu;
    g->act = store->act;
    if (store->bias) g->bias = draw(g->bias_t = store->bias, n, 3);
    t.c_bytes = (size_t)(m * g->ldc) * dt_size(ct);
    g->c = t.c = mem_alloc(t.c_bytes);
    if (store->pre) g->pre = t.pre = mem_alloc(t.c_bytes);
    t.start = draw(ct, m * g->ldc, 4);
    t.sum = mem_alloc((size_t)(m * n) * sizeof *t.sum);
    t.size = mem_alloc((size_t)(m * n) * sizeof *t.size);
    return t;
}

static void gemm_case_free(gemm_case *t) {
    void *owned[] = { (void *)t->g.a, (void *)t->g.b, (void *)t->g.bias, t->c, t->pre, t->start,
                      t->sum,         t->size };
    for (size_t i = 0; i < COUNT_OF(owned); i++) free(owned[i]);
}

static void gemm_case_run(gemm_case *t, const struct isa *isa, int threads) {
    memset(t->c, POISON, t->c_bytes);
    if (t->pre) memset(t->pre, POISON, t->c_bytes);
    if (t->store->accumulate) memcpy(t->c, t->start, t->c_bytes);
    size_t bytes = isa->workspace(&t->g, threads), guard = 64;
    char *workspace = aligned_alloc(64, align_up(bytes + guard, 64));
    memset(workspace, POISON, bytes);
    memset(workspace + bytes, 0x5a, guard);
    isa->run(&t->g, pools[threads], workspace, bytes);
    for (size_t i = 0; i < guard; i++)
        if (workspace[bytes + i] != 0x5a) fail_msg("%s: wrote beyond its workspace", isa->name);
    free(workspace);
}

static double gelu_of(act_kind act, double x) {
    if (act == ACT_GELU_ERF) return 0.5 * x * erfc(-x / sqrt(2));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void expect(const gemm_case *t, const char *isa, int64_t i, int64_t j, const char *what,
                   double got, double want, double slack) {
    const gemm *g = &t->g;
    if (fabs(got - want) <= slack + epsilon(g->ct) * fabs(want) + 1e-7) return;
    fail_msg("%s %s%s x %s%s -> %s, %lld x %lld x %lld, %s: %s[%lld, %lld] = %.9g, expected %.9g",
             isa, dt_name(g->at), g->ta ? "^T" : "", dt_name(g->bt), g->tb ? "^T" : "",
             dt_name(g->ct), (long long)g->m, (long long)g->n, (long long)g->k, t->store->name,
             what, (long long)i, (long long)j, got, want);
}

static void gemm_case_check(const gemm_case *t, const char *isa) {
    const gemm *g = &t->g;
    double alpha = g->alpha != 0 ? g->alpha : 1;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->ldc + j;
            double slack = 1e-6 * (fabs(alpha) * t->size[i * g->n + j] + 1);
            double want = alpha * t->sum[i * g->n + j], got = get(g->ct, t->c, at);
            if (g->bias) want += get(g->bias_t, g->bias, j);
            if (g->accumulate) want += get(g->ct, t->start, at);
            if (t->pre) {
                double pre = get(g->ct, t->pre, at);
                expect(t, isa, i, j, "pre", pre, want, slack);
                want = pre; /* what was kept, not what was computed */
                slack = 1e-6;
            }
            if (g->gelu) want = gelu_of(g->act, want);
            expect(t, isa, i, j, "c", got, want, 1.2 * slack);
        }
    /* Between the rows nothing may change. */
    const char *was = g->accumulate ? t->start : NULL;
    for (int64_t i = 0; i < g->m; i++) {
        size_t from = (size_t)(i * g->ldc + g->n) * dt_size(g->ct);
        for (size_t b = from; b < from + PAD * dt_size(g->ct); b++)
            assert_int_equal((uint8_t)t->c[b], was ? (uint8_t)was[b] : POISON);
    }
}

static void check_gemm(int64_t m, int64_t n, int64_t k, dtype at, dtype bt, dtype ct, int trans,
                       const store_kind *store, int threads) {
    gemm_case t = gemm_case_make(m, n, k, at, bt, ct, trans & 1, trans & 2, store);
    reference(&t);
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (!has_isa(isas[i].name)) continue;
        gemm_case_run(&t, &isas[i], threads);
        gemm_case_check(&t, isas[i].name);
    }
    gemm_case_free(&t);
}

/* ---- the tests -------------------------------------------------------------------------------- */
static const dtype outs[] = { DT_F32, DT_BF16, DT_F16 };

static void gemms_of_every_kind_match_the_reference(void **state) {
    static const int64_t sizes[] = { 1, 3, 17, 65, 257 };
    static const dtype pairs[][2] = {
        { DT_F32, DT_F32 },  { DT_BF16, DT_BF16 }, { DT_F16, DT_F16 },
        { DT_F32, DT_BF16 }, { DT_BF16, DT_F16 },
    };
    enum { SIZES = sizeof sizes / sizeof sizes[0], LARGE = 2000000 };
    int count = 0; /* store, output type and threads go round with it, so that all of them meet */
    for (size_t p = 0; p < COUNT_OF(pairs); p++)
        for (int trans = 0; trans < 4; trans++)
            for (int s = 0; s < SIZES * SIZES * SIZES; s++, count++) {
                int64_t m = sizes[s % SIZES], n = sizes[s / SIZES % SIZES],
                        k = sizes[s / SIZES / SIZES];
                /* a large one of each pair of types is transposed in one of the four ways */
                bool large = m * n * k > LARGE;
                if ((SANITIZED || large) && trans != ((int)p + s) % 4) continue;
                if (SANITIZED && large && (int)p != s % (int)COUNT_OF(pairs)) continue;
                check_gemm(m, n, k, pairs[p][0], pairs[p][1], outs[count % 3], trans,
                           &stores[count % STORES], 1 + count % MOST_THREADS);
            }
}

/* Several strips of C, several stretches of K, and both at once; several blocks of a strip. */
static void gemms_split_in_strips_match_the_reference(void **state) {
    static const int64_t shape[][3] = {
        { 2085, 41, 30 },  { 37, 4133, 21 },   { 45, 50, 2083 },
        { 2060, 2070, 9 }, { 19, 2101, 1300 }, { 1, 70, 900 },
        { 45, 50, 4150 },  { 1060, 20, 4150 }, { 600, 1050, 530 },
    };
    for (size_t i = 0; i < COUNT_OF(shape); i++)
        for (int s = (int)i % 2; s < STORES; s += SANITIZED ? STORES : 2)
            check_gemm(shape[i][0], shape[i][1], shape[i][2],
                       (s / 2 + (int)i) % 2 ? DT_BF16 : DT_F32, s % 3 ? DT_BF16 : DT_F32,
                       outs[(size_t)(s + (int)i) % 3], (s + (int)i) % 4, &stores[s], 2);
}

static void gemms_do_not_depend_on_the_number_of_threads(void **state) {
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (!has_isa(isas[i].name)) continue;
        for (int kind = 0; kind < 8; kind += SANITIZED ? 3 : 1) {
            dtype dt = outs[kind % 3];
            gemm_case t = gemm_case_make(200, 333, kind < 3 ? 150 : 1500, dt, dt, dt, kind & 1,
                                         true, &stores[kind % STORES]);
            gemm_case_run(&t, &isas[i], 1);
            char *one = mem_alloc(t.c_bytes);
            memcpy(one, t.c, t.c_bytes);
            for (int threads = 2; threads <= MOST_THREADS; threads++) {
                gemm_case_run(&t, &isas[i], threads);
                assert_memory_equal(one, t.c, t.c_bytes);
            }
            free(one);
            gemm_case_free(&t);
        }
    }
}

/* ---- the loss over more than one chunk of rows ------------------------------------------------ */
enum { CE_N = 521, CE_V = 65600, CE_D = 3, IGNORED = -100 };

typedef struct ce_case {
    float *h, *w, *loss, *dh, *dw; /* [N,D] [V,D] [N] [N,D] [V,D] */
    int32_t *target;
} ce_case;

UNWATCHED static void ce_reference(const ce_case *c, double unit, double *loss, double *dh,
                                   double *dw) {
    double *p = mem_alloc(CE_V * sizeof *p);
    for (int i = 0; i < CE_N; i++) {
        if (c->target[i] == IGNORED) continue;
        double sum = 0, at_target = 0;
        for (int v = 0; v < CE_V; v++) {
            double z = 0;
            for (int d = 0; d < CE_D; d++) z += (double)c->h[i * CE_D + d] * c->w[v * CE_D + d];
            sum += p[v] = exp(z);
            if (v == c->target[i]) at_target = z;
        }
        loss[i] = log(sum) - at_target;
        for (int v = 0; v < CE_V; v++) {
            double g = unit * (p[v] / sum - (v == c->target[i]));
            for (int d = 0; d < CE_D; d++) {
                dh[i * CE_D + d] += g * c->w[v * CE_D + d];
                dw[v * CE_D + d] += g * c->h[i * CE_D + d];
            }
        }
    }
    free(p);
}

static void expect_all(const char *isa, const char *what, const float *got, const double *want,
                       int64_t n, double tolerance) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += want[i] * want[i];
    double rms = sqrt(squares / (double)n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (fabs(want[i]) + rms)))
            fail_msg("%s: %s[%lld] = %.9g, expected %.9g", isa, what, (long long)i, got[i],
                     want[i]);
}

static void ce_run(const op_backend *b, const ce_case *c, bool grad, float unit) {
    int64_t nd[] = { CE_N, CE_D }, vd[] = { CE_V, CE_D }, n[] = { CE_N };
    step_block step = { .loss_grad = unit };
    op_run run = { .pool = pools[2], .step = &step };
    op_call call = { .op = OP_LINEAR_CE, .run = &run, .attr.ce.logit_scale = 1 };
    call.in[0] = tensor_of(c->h, DT_F32, 2, nd);
    call.in[1] = tensor_of(c->w, DT_F32, 2, vd);
    call.in[2] = tensor_of(c->target, DT_I32, 1, n);
    call.out[0] = tensor_of(c->loss, DT_F32, 1, n);
    if (grad) {
        call.out[1] = tensor_of(c->dh, DT_F32, 2, nd);
        call.out[2] = tensor_of(c->dw, DT_F32, 2, vd);
    }
    run.workspace_bytes = ops_workspace(b, &call, 2);
    assert_true(run.workspace_bytes < (200u << 20));
    run.workspace = mem_alloc(run.workspace_bytes);
    memset(run.workspace, POISON, run.workspace_bytes);
    ops_run(b, &call);
    free(run.workspace);
}

static void the_loss_in_chunks_matches_the_reference(void **state) {
    ce_case c = {
        draw(DT_F32, CE_N * CE_D, 11), draw(DT_F32, CE_V * CE_D, 12), mem_alloc(CE_N * 4),
        mem_alloc(CE_N * CE_D * 4),    mem_alloc(CE_V * CE_D * 4),    mem_alloc(CE_N * 4)
    };
    double *loss = mem_alloc(CE_N * 8), *dh = mem_alloc(CE_N * CE_D * 8);
    double *dw = mem_alloc(CE_V * CE_D * 8);
    for (int i = 0; i < CE_N; i++)
        c.target[i] =
            i % 7 == 3 ? IGNORED : (int32_t)rng_below(rng_key_of(1, 2), (uint64_t)i, CE_V);
    ce_reference(&c, 0.25, loss, dh, dw);
    for (int i = 0; ops_cpu_isa(i); i++) {
        const char *isa = ops_cpu_isa(i);
        for (int grad = 0; grad < 2; grad++) {
            memset(c.loss, POISON, CE_N * 4);
            memset(c.dh, POISON, CE_N * CE_D * 4);
            memset(c.dw, POISON, CE_V * CE_D * 4);
            ce_run(ops_cpu(isa), &c, grad, 0.25f);
            expect_all(isa, "loss", c.loss, loss, CE_N, 1e-5);
        }
        expect_all(isa, "dh", c.dh, dh, CE_N * CE_D, 2e-5);
        expect_all(isa, "dw", c.dw, dw, CE_V * CE_D, 2e-5);
    }
    void *owned[] = { c.h, c.w, c.loss, c.dh, c.dw, c.target, loss, dh, dw };
    for (size_t i = 0; i < COUNT_OF(owned); i++) free(owned[i]);
}

static uint64_t below(uint64_t *at, uint64_t n) { return rng_below(rng_key_of(5, 7), (*at)++, n); }

/* Bounds for GEMMs whose rows or depth are not known yet hold for every number of rows, and for any smaller depth. */
static void workspaces_of_fewer_rows_are_not_larger(void **state) {
    enum { CASES = SANITIZED ? 60 : 400, LARGEST = 9000 };
    uint64_t at = 1u << 20;
    for (int i = 0; i < CASES; i++) {
        dtype dt = outs[i % COUNT_OF(outs)];
        gemm g = { .at = dt, .bt = dt, .ct = outs[below(&at, COUNT_OF(outs))] };
        g.m = 1 + (int64_t)below(&at, LARGEST), g.n = 1 + (int64_t)below(&at, LARGEST);
        g.k = 1 + (int64_t)below(&at, LARGEST), g.ta = below(&at, 2), g.tb = below(&at, 2);
        g.lda = g.ldb = g.ldc = LARGEST;
        int threads = 1 + (int)below(&at, 16);
        for (size_t isa = 0; isa < COUNT_OF(isas); isa++) {
            size_t rows = isas[isa].workspace_rows(&g, threads),
                   most = isas[isa].workspace_most(&g, threads);
            for (gemm f = g; f.m > 0; f.m -= 1 + (int64_t)below(&at, 9)) {
                f.k = g.k;
                assert_true(isas[isa].workspace(&f, threads) <= rows);
                f.k = 1 + (int64_t)below(&at, (uint64_t)g.k);
                assert_true(isas[isa].workspace(&f, threads) <= most);
            }
        }
    }
}

/* Any share of the rows may have a target, and the last chunk any number of rows: the workspace that an op asks for suffices,
 * and the losses are those of a call that also computes gradients. */
static void losses_of_any_rows_fit_their_workspace(void **state) {
    enum { CASES = SANITIZED ? 40 : 300 };
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    uint64_t at = 0;
    for (int k = 0; k < CASES; k++) {
        bool tall = k % 4 == 0; /* several strips of C */
        int64_t n = 1 + (int64_t)below(&at, tall ? 9000 : 400);
        int64_t d = 1 + (int64_t)below(&at, tall ? 20 : 200),
                v = 2 + (int64_t)below(&at, tall ? 60 : 600);
        int64_t share = 1 + (int64_t)below(&at, 100);
        int threads = 1 + (int)below(&at, MOST_THREADS);
        dtype dt = types[k % COUNT_OF(types)];
        void *h = draw(dt, n * d, 21), *w = draw(dt, v * d, 22), *dh = draw(dt, n * d, 23);
        float *loss[2] = { draw(DT_F32, n, 24), draw(DT_F32, n, 24) },
              *dw = draw(DT_F32, v * d, 25);
        int32_t *target = mem_alloc((size_t)n * sizeof *target);
        for (int64_t i = 0; i < n; i++)
            target[i] =
                below(&at, 100) < (uint64_t)share ? (int32_t)below(&at, (uint64_t)v) : IGNORED;
        for (int i = 0; ops_cpu_isa(i); i++) {
            for (int grad = 0; grad < 2; grad++) {
                step_block step = { .loss_grad = 1 };
                op_run run = { .pool = pools[threads], .step = &step };
                op_call call = { .op = OP_LINEAR_CE, .run = &run, .attr.ce.logit_scale = 1 };
                call.in[0] = tensor_of(h, dt, 2, (int64_t[]){ n, d });
                call.in[1] = tensor_of(w, dt, 2, (int64_t[]){ v, d });
                call.in[2] = tensor_of(target, DT_I32, 1, &n);
                call.out[0] = tensor_of(loss[grad], DT_F32, 1, &n);
                if (grad) {
                    call.out[1] = tensor_of(dh, dt, 2, (int64_t[]){ n, d });
                    call.out[2] = tensor_of(dw, DT_F32, 2, (int64_t[]){ v, d });
                }
                run.workspace_bytes = ops_workspace(ops_cpu(ops_cpu_isa(i)), &call, threads);
                run.workspace = mem_alloc(run.workspace_bytes);
                ops_run(ops_cpu(ops_cpu_isa(i)), &call);
                free(run.workspace);
            }
            for (int64_t j = 0; j < n; j++)
                assert_true(fabs((double)(loss[0][j] - loss[1][j])) <=
                            1e-4 * (1 + fabs((double)loss[1][j])));
        }
        void *owned[] = { h, w, dh, dw, loss[0], loss[1], target };
        for (size_t i = 0; i < COUNT_OF(owned); i++) free(owned[i]);
    }
}

/* ---- e^x --------------------------------------------------------------------------------------- */
static void exp_is_accurate(void **state) {
    enum { POINTS = 100003 };
    for (int i = 0; i < POINTS; i++) {
        float x = (float)(-87.3 + (88.7 + 87.3) * i / (POINTS - 1));
        double want = exp(x), got = vm_exp(x);
        if (!(fabs(got - want) <= 1e-6 * fabs(want)))
            fail_msg("exp(%.9g) = %.9g, expected %.9g", (double)x, got, want);
    }
    assert_true(isnan(vm_exp(NAN)));
    assert_true(vm_exp(INFINITY) == INFINITY && vm_exp(-INFINITY) == 0);
}

static int set_up(void **state) {
    for (int i = 1; i <= MOST_THREADS; i++) pools[i] = pool_new(i);
    return 0;
}
static int tear_down(void **state) {
    for (int i = 1; i <= MOST_THREADS; i++) pool_free(pools[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemms_of_every_kind_match_the_reference),
        cmocka_unit_test(gemms_split_in_strips_match_the_reference),
        cmocka_unit_test(gemms_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(the_loss_in_chunks_matches_the_reference),
        cmocka_unit_test(workspaces_of_fewer_rows_are_not_larger),
        cmocka_unit_test(losses_of_any_rows_fit_their_workspace),
        cmocka_unit_test(exp_is_accurate),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
