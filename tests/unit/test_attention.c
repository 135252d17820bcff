/* Attention against a plain fp64 reference, on every instruction set this processor has: forward,
 * backward, documents, windows, shared key heads, element types, threads, and the cache. */
#include "support/test.h"

#include <math.h>

#include "ops/op_table.h"

/* ---- cases ----------------------------------------------------------------------------------- */
typedef struct shape {
    int n, q, kv, dim, window;
    int docs; /* mean length of a document; 0: one sequence */
} shape;

static const shape shapes[] = {
    { 1, 1, 1, 8, 0, 0 },     { 7, 2, 2, 8, 0, 0 },       { 64, 2, 1, 16, 0, 0 },
    { 65, 4, 1, 16, 0, 0 },   { 100, 2, 2, 64, 0, 0 },    { 128, 2, 1, 64, 32, 0 },
    { 193, 4, 2, 48, 0, 30 }, { 200, 2, 2, 128, 50, 60 }, { 150, 4, 4, 80, 1, 0 },
    { 300, 2, 1, 13, 0, 5 },  { 333, 3, 3, 96, 100, 0 },  { 700, 4, 2, 32, 0, 200 },
    { 640, 1, 1, 8, 0, 40 },  { 520, 2, 1, 64, 257, 0 },  { 90, 2, 2, 130, 0, 20 },
};

typedef struct types {
    dtype qkv, o, grad, dqkv;
    double tol;
} types;
static const types type_mixes[] = {
    { DT_F32, DT_F32, DT_F32, DT_F32, 2e-5 },   { DT_BF16, DT_BF16, DT_BF16, DT_BF16, 2e-2 },
    { DT_F16, DT_F16, DT_F16, DT_F16, 3e-3 },   { DT_BF16, DT_F32, DT_BF16, DT_F32, 2e-2 },
    { DT_BF16, DT_BF16, DT_F32, DT_F32, 2e-2 }, { DT_F32, DT_BF16, DT_F16, DT_BF16, 2e-2 },
};

static rng_key key;
static uint64_t drawn;
static double normal(void) { return rng_normal(key, drawn++); }
static int below(int n) { return (int)rng_below(key, drawn++, (uint64_t)n); }

/* A problem and its answer, in fp64. Inputs are already rounded to the types they are handed over
 * in. */
typedef struct problem {
    shape s;
    types t;
    double scale;
    int cols, width; /* of qkv, of o */
    int32_t *start;
    double *qkv, *o, *lse, *dout, *dqkv;
} problem;

static void round_values(dtype dt, double *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float f = (float)v[i], back;
        uint32_t raw = 0;
        dt_from_f32(dt, &f, &raw, 1);
        dt_to_f32(dt, &raw, &back, 1);
        v[i] = back;
    }
}
static double *normals(size_t n, double size) {
    double *v = mem_alloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = size * normal();
    return v;
}

static problem problem_make(shape s, types t) {
    problem p = { .s = s, .t = t, .scale = 1.0 / sqrt(s.dim) };
    p.cols = (s.q + 2 * s.kv) * s.dim;
    p.width = s.q * s.dim;
    p.start = mem_alloc((size_t)s.n * sizeof *p.start);
    for (int i = 1; i < s.n; i++) p.start[i] = s.docs && below(s.docs) == 0 ? i : p.start[i - 1];
    p.qkv = normals((size_t)s.n * p.cols, 1.0);
    p.dout = normals((size_t)s.n * p.width, 1.0);
    round_values(t.qkv, p.qkv, (size_t)s.n * p.cols);
    round_values(t.grad, p.dout, (size_t)s.n * p.width);
    p.o = mem_alloc((size_t)s.n * p.width * sizeof *p.o);
    p.lse = mem_alloc((size_t)s.q * s.n * sizeof *p.lse);
    p.dqkv = mem_alloc((size_t)s.n * p.cols * sizeof *p.dqkv);
    return p;
}
static void problem_free(problem *p) {
    free(p->start), free(p->qkv), free(p->o), free(p->lse), free(p->dout), free(p->dqkv);
}

/* ---- the reference ---------------------------------------------------------------------------- */
typedef struct head_view {
    double *q, *k, *v; /* of token 0 */
} head_view;
UNWATCHED static head_view head_of(const problem *p, double *qkv, int h) {
    int kv = h / (p->s.q / p->s.kv);
    return (head_view){ qkv + h * p->s.dim, qkv + (p->s.q + kv) * p->s.dim,
                        qkv + (p->s.q + p->s.kv + kv) * p->s.dim };
}
UNWATCHED static int first_key(const problem *p, int i) {
    return p->s.window ? MAX(p->start[i], i - p->s.window + 1) : p->start[i];
}
UNWATCHED static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* prob[j] for the keys of query i. @return the log-sum-exp. */
UNWATCHED static double probabilities(const problem *p, head_view x, int i, double *prob) {
    double top = -INFINITY, sum = 0;
    const double *q = x.q + (size_t)i * p->cols;
    for (int j = first_key(p, i); j <= i; j++) {
        prob[j] = p->scale * dot(q, x.k + (size_t)j * p->cols, p->s.dim);
        top = fmax(top, prob[j]);
    }
    for (int j = first_key(p, i); j <= i; j++) sum += prob[j] = exp(prob[j] - top);
    for (int j = first_key(p, i); j <= i; j++) prob[j] /= sum;
    return top + log(sum);
}

UNWATCHED static void reference_fwd(problem *p) {
    double *prob = mem_alloc((size_t)p->s.n * sizeof *prob);
    for (int h = 0; h < p->s.q; h++) {
        head_view x = head_of(p, p->qkv, h);
        for (int i = 0; i < p->s.n; i++) {
            double *o = p->o + (size_t)i * p->width + h * p->s.dim;
            p->lse[(size_t)h * p->s.n + i] = probabilities(p, x, i, prob);
            memset(o, 0, (size_t)p->s.dim * sizeof *o);
            for (int j = first_key(p, i); j <= i; j++)
                for (int d = 0; d < p->s.dim; d++) o[d] += prob[j] * x.v[(size_t)j * p->cols + d];
        }
    }
    free(prob);
}

UNWATCHED static void reference_bwd(problem *p) {
    double *prob = mem_alloc((size_t)p->s.n * sizeof *prob);
    memset(p->dqkv, 0, (size_t)p->s.n * p->cols * sizeof *p->dqkv);
    for (int h = 0; h < p->s.q; h++) {
        head_view x = head_of(p, p->qkv, h), g = head_of(p, p->dqkv, h);
        for (int i = 0; i < p->s.n; i++) {
            size_t qi = (size_t)i * p->cols, oi = (size_t)i * p->width + h * p->s.dim;
            double delta = dot(p->dout + oi, p->o + oi, p->s.dim);
            probabilities(p, x, i, prob);
            for (int j = first_key(p, i); j <= i; j++) {
                size_t kj = (size_t)j * p->cols;
                double dp = dot(p->dout + oi, x.v + kj, p->s.dim);
                double ds = prob[j] * (dp - delta) * p->scale;
                for (int d = 0; d < p->s.dim; d++) {
                    g.q[qi + d] += ds * x.k[kj + d];
                    g.k[kj + d] += ds * x.q[qi + d];
                    g.v[kj + d] += prob[j] * p->dout[oi + d];
                }
            }
        }
    }
    free(prob);
}

/* ---- calling the kernels ------------------------------------------------------------------------ */
/* Memory between canaries, filled with bytes that are NaN in every float type. */
enum { CANARY = 64 };
typedef struct buffer {
    char *whole, *data;
    size_t bytes;
} buffer;
static buffer buffer_make(size_t bytes, int poison) {
    buffer b = { .whole = aligned_alloc(64, align_up(bytes + 2 * CANARY, 64)), .bytes = bytes };
    assert_non_null(b.whole);
    b.data = b.whole + CANARY;
    memset(b.whole, 0xa5, bytes + 2 * CANARY);
    memset(b.data, poison, bytes);
    return b;
}
static void buffer_free(buffer *b) {
    for (int i = 0; i < CANARY; i++) {
        assert_int_equal((uint8_t)b->whole[i], 0xa5);
        assert_int_equal((uint8_t)b->data[b->bytes + (size_t)i], 0xa5);
    }
    free(b->whole);
}
static buffer buffer_of(dtype dt, const double *v, size_t n) {
    buffer b = buffer_make(n * dt_size(dt), 0xff);
    for (size_t i = 0; v && i < n; i++) {
        float f = (float)v[i];
        dt_from_f32(dt, &f, b.data + i * dt_size(dt), 1);
    }
    return b;
}
static double value_at(const buffer *b, dtype dt, size_t i) {
    float f;
    dt_to_f32(dt, b->data + i * dt_size(dt), &f, 1);
    return f;
}

static op_attr attr_of(const problem *p) {
    op_attr a = { 0 };
    a.heads.q = p->s.q;
    a.heads.kv = p->s.kv;
    a.heads.dim = p->s.dim;
    a.heads.window = p->s.window;
    a.heads.scale = (float)p->scale;
    return a;
}
static tensor rows_of(buffer b, dtype dt, int64_t n, int64_t cols) {
    return tensor_of(b.data, dt, 2, (int64_t[]){ n, cols });
}

/* Runs the call with its own poisoned workspace and as many threads. */
static void run_call(const char *isa, op_call *c, int threads, int poison) {
    const op_backend *backend = ops_cpu(isa);
    op_run run = { .workspace_bytes = ops_workspace(backend, c, threads) };
    buffer workspace = buffer_make(run.workspace_bytes, poison);
    run.workspace = workspace.data;
    run.pool = threads > 1 ? pool_new(threads) : NULL;
    c->run = &run;
    ops_run(backend, c);
    pool_free(run.pool);
    buffer_free(&workspace);
}

typedef struct fwd_out {
    buffer o, lse;
} fwd_out;
static fwd_out run_fwd(const problem *p, const char *isa, int threads, int poison) {
    size_t n = (size_t)p->s.n;
    buffer qkv = buffer_of(p->t.qkv, p->qkv, n * p->cols);
    fwd_out out = { buffer_of(p->t.o, NULL, n * p->width), buffer_of(DT_F32, NULL, n * p->s.q) };
    op_call c = { .op = OP_ATTENTION, .attr = attr_of(p) };
    c.in[0] = rows_of(qkv, p->t.qkv, p->s.n, p->cols);
    c.in[1] = tensor_of(p->start, DT_I32, 1, (int64_t[]){ p->s.n });
    c.out[0] = rows_of(out.o, p->t.o, p->s.n, p->width);
    c.out[1] = rows_of(out.lse, DT_F32, p->s.q, p->s.n);
    run_call(isa, &c, threads, poison);
    buffer_free(&qkv);
    return out;
}

/* o and lse are the reference's. */
static buffer run_bwd(const problem *p, const char *isa, int threads, int poison) {
    size_t n = (size_t)p->s.n;
    buffer dout = buffer_of(p->t.grad, p->dout, n * p->width);
    buffer qkv = buffer_of(p->t.qkv, p->qkv, n * p->cols);
    buffer o = buffer_of(p->t.o, p->o, n * p->width), lse = buffer_of(DT_F32, p->lse, n * p->s.q);
    buffer dqkv = buffer_of(p->t.dqkv, NULL, n * p->cols);
    op_call c = { .op = OP_ATTENTION_BWD, .attr = attr_of(p) };
    c.in[0] = rows_of(dout, p->t.grad, p->s.n, p->width);
    c.in[1] = rows_of(qkv, p->t.qkv, p->s.n, p->cols);
    c.in[2] = rows_of(o, p->t.o, p->s.n, p->width);
    c.in[3] = rows_of(lse, DT_F32, p->s.q, p->s.n);
    c.in[4] = tensor_of(p->start, DT_I32, 1, (int64_t[]){ p->s.n });
    c.out[0] = rows_of(dqkv, p->t.dqkv, p->s.n, p->cols);
    run_call(isa, &c, threads, poison);
    buffer_free(&dout), buffer_free(&qkv), buffer_free(&o), buffer_free(&lse);
    return dqkv;
}

/* ---- comparing ------------------------------------------------------------------------------------ */
static void assert_near(const char *what, const problem *p, const char *isa, const buffer *got,
                        dtype dt, const double *want, size_t n, double tol) {
    double size = 0;
    for (size_t i = 0; i < n; i++) size = fmax(size, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        double x = value_at(got, dt, i), bound = tol * (0.2 * size + fabs(want[i])) + 1e-6;
        if (fabs(x - want[i]) <= bound) continue;
        fail_msg("%s[%zu] is %.9g, not %.9g within %.2g: %s, qkv %s, n=%d heads=%d/%d dim=%d "
                 "window=%d docs=%d",
                 what, i, x, want[i], bound, isa, dt_name(p->t.qkv), p->s.n, p->s.q, p->s.kv,
                 p->s.dim, p->s.window, p->s.docs);
    }
}
static bool same_bytes(const buffer *a, const buffer *b) {
    return a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
}

#define EACH_ISA(isa)                                                                              \
    const char *isa = NULL;                                                                        \
    for (int isa##_i = 0; (isa = ops_cpu_isa(isa##_i)); isa##_i++)

/* ---- tests ------------------------------------------------------------------------------------------ */
static void test_forward(void **state) {
    for (size_t k = 0; k < COUNT_OF(shapes) * COUNT_OF(type_mixes); k += SANITIZED ? 5 : 1) {
        problem p =
            problem_make(shapes[k / COUNT_OF(type_mixes)], type_mixes[k % COUNT_OF(type_mixes)]);
        size_t n = (size_t)p.s.n;
        reference_fwd(&p);
        EACH_ISA(isa) {
            fwd_out got = run_fwd(&p, isa, 1, 0xff);
            assert_near("o", &p, isa, &got.o, p.t.o, p.o, n * p.width, p.t.tol);
            assert_near("lse", &p, isa, &got.lse, DT_F32, p.lse, n * p.s.q, 1e-5);
            buffer_free(&got.o), buffer_free(&got.lse);
        }
        problem_free(&p);
    }
}

static void test_backward(void **state) {
    for (size_t k = 0; k < COUNT_OF(shapes) * COUNT_OF(type_mixes); k += SANITIZED ? 5 : 1) {
        problem p =
            problem_make(shapes[k / COUNT_OF(type_mixes)], type_mixes[k % COUNT_OF(type_mixes)]);
        reference_fwd(&p);
        round_values(p.t.o, p.o, (size_t)p.s.n * p.width);
        reference_bwd(&p);
        EACH_ISA(isa) {
            buffer got = run_bwd(&p, isa, 1, 0xff);
            assert_near("dqkv", &p, isa, &got, p.t.dqkv, p.dqkv, (size_t)p.s.n * p.cols, p.t.tol);
            buffer_free(&got);
        }
        problem_free(&p);
    }
}

/* Sum of o * dout, when qkv moves by `step` along a direction. */
static double moved_loss(problem *p, const double *along, double step) {
    size_t count = (size_t)p->s.n * p->cols;
    for (size_t i = 0; i < count; i++) p->qkv[i] += step * along[i];
    reference_fwd(p);
    double loss = 0;
    for (size_t i = 0; i < (size_t)p->s.n * p->width; i++) loss += p->o[i] * p->dout[i];
    for (size_t i = 0; i < count; i++) p->qkv[i] -= step * along[i];
    return loss;
}

/* The kernel's gradient against differences of the reference's forward: no derivation is shared. */
static void test_backward_against_differences(void **state) {
    const double step = 1e-5;
    for (size_t k = 0; k < COUNT_OF(shapes); k++) {
        problem p = problem_make(shapes[k], type_mixes[0]);
        size_t count = (size_t)p.s.n * p.cols;
        double *along = normals(count, 1.0);
        double slope = (moved_loss(&p, along, step) - moved_loss(&p, along, -step)) / (2 * step);
        reference_fwd(&p);
        EACH_ISA(isa) {
            buffer got = run_bwd(&p, isa, 1, 0xff);
            double sum = 0, size = 0;
            for (size_t i = 0; i < count; i++) {
                double g = value_at(&got, DT_F32, i);
                sum += g * along[i];
                size += g * g;
            }
            if (fabs(sum - slope) > 1e-5 * sqrt(size) + 1e-6)
                fail_msg("%s: slope %.9g, differences %.9g, n=%d dim=%d", isa, sum, slope, p.s.n,
                         p.s.dim);
            buffer_free(&got);
        }
        free(along);
        problem_free(&p);
    }
}

static void test_same_bits_on_any_threads(void **state) {
    static const shape cases[] = { { 700, 4, 2, 32, 0, 200 },
                                   { 1100, 1, 1, 16, 0, 0 },
                                   { 600, 4, 4, 24, 70, 50 } };
    for (size_t k = 0; k < COUNT_OF(cases) * 2; k++) {
        problem p = problem_make(cases[k / 2], type_mixes[k % 2]);
        reference_fwd(&p);
        EACH_ISA(isa) {
            fwd_out one = run_fwd(&p, isa, 1, 0xff);
            buffer grad = run_bwd(&p, isa, 1, 0xff);
            for (int threads = 1; threads <= 4; threads++) {
                fwd_out got = run_fwd(&p, isa, threads, 0x3c);
                buffer more = run_bwd(&p, isa, threads, 0x3c);
                assert_true(same_bytes(&one.o, &got.o) && same_bytes(&one.lse, &got.lse));
                assert_true(same_bytes(&grad, &more));
                buffer_free(&got.o), buffer_free(&got.lse), buffer_free(&more);
            }
            buffer_free(&one.o), buffer_free(&one.lse), buffer_free(&grad);
        }
        problem_free(&p);
    }
}

/* Other values in one document leave the bits of the others alone, both ways. */
static void test_documents_do_not_meet(void **state) {
    for (int mix = 0; mix < 2; mix++) {
        problem p = problem_make((shape){ 200, 2, 1, 16, 0, 0 }, type_mixes[mix]);
        int lo = 70, hi = 131;
        for (int i = 0; i < p.s.n; i++) p.start[i] = i < lo ? 0 : i < hi ? lo : hi;
        EACH_ISA(isa) {
            reference_fwd(&p);
            fwd_out before = run_fwd(&p, isa, 1, 0xff);
            buffer grad = run_bwd(&p, isa, 1, 0xff);
            for (int i = lo * p.cols; i < hi * p.cols; i++) p.qkv[i] = -2 * p.qkv[i];
            reference_fwd(&p);
            fwd_out after = run_fwd(&p, isa, 1, 0xff);
            buffer grad_after = run_bwd(&p, isa, 1, 0xff);
            size_t row = (size_t)p.width * dt_size(p.t.o),
                   wide = (size_t)p.cols * dt_size(p.t.dqkv);
            for (int i = 0; i < p.s.n; i++) {
                bool same = !memcmp(before.o.data + i * row, after.o.data + i * row, row) &&
                            !memcmp(grad.data + i * wide, grad_after.data + i * wide, wide);
                assert_int_equal(same, i < lo || i >= hi);
            }
            buffer_free(&before.o), buffer_free(&before.lse), buffer_free(&after.o);
            buffer_free(&after.lse), buffer_free(&grad), buffer_free(&grad_after);
        }
        problem_free(&p);
    }
}

/* Scores in the thousands, rising and falling along the keys. */
static void swing_scores(problem *p) {
    for (int i = 0; i < p->s.n; i++)
        for (int c = 0; c < (p->s.q + p->s.kv) * p->s.dim; c++)
            p->qkv[(size_t)i * p->cols + c] *= 1 + 40.0 * ((i / 32) % 3);
}
/* Scores that rise by a hundred every 64 keys, on queries all alike. */
static void step_scores(problem *p) {
    int q = p->s.q * p->s.dim, k = p->s.kv * p->s.dim;
    for (int i = 0; i < p->s.n; i++)
        for (int c = 0; c < q + k; c++)
            p->qkv[(size_t)i * p->cols + c] = c < q ? 1 : 100.0 * (i / 64) / (p->scale * p->s.dim);
}

static void test_large_scores(void **state) {
    void (*const kinds[])(problem *) = { swing_scores, step_scores };
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        problem p = problem_make((shape){ 260, 2, 2, 32, 0, k == 0 ? 70 : 0 }, type_mixes[0]);
        kinds[k](&p);
        round_values(DT_F32, p.qkv, (size_t)p.s.n * p.cols);
        reference_fwd(&p);
        EACH_ISA(isa) {
            fwd_out got = run_fwd(&p, isa, 1, 0xff);
            assert_near("o", &p, isa, &got.o, DT_F32, p.o, (size_t)p.s.n * p.width, 2e-3);
            assert_near("lse", &p, isa, &got.lse, DT_F32, p.lse, (size_t)p.s.n * p.s.q, 1e-5);
            buffer_free(&got.o), buffer_free(&got.lse);
        }
        problem_free(&p);
    }
}

/* A NaN in a query stays in its row; one in a key spreads to the queries that see it. */
static void test_nan_is_kept(void **state) {
    problem p = problem_make((shape){ 130, 1, 1, 16, 0, 0 }, type_mixes[0]);
    p.qkv[(size_t)20 * p.cols] = NAN;
    p.qkv[(size_t)100 * p.cols + p.s.dim] = NAN;
    EACH_ISA(isa) {
        fwd_out got = run_fwd(&p, isa, 1, 0xff);
        for (int i = 0; i < p.s.n; i++) {
            bool is_nan = isnan(value_at(&got.o, DT_F32, (size_t)i * p.width));
            assert_int_equal(is_nan, i == 20 || i >= 100);
        }
        buffer_free(&got.o), buffer_free(&got.lse);
    }
    problem_free(&p);
}

/* ---- the cache ---------------------------------------------------------------------------------------- */
typedef struct cache_case {
    problem p;
    const char *isa;
    dtype dt;
    buffer cache; /* [rows, 2*kv*dim] */
    int rows;
    buffer o;
} cache_case;

/* Tokens order[at .. at+n) of the problem in one call. */
static void run_cached(cache_case *k, const int *order, int at, int n, int threads) {
    const problem *p = &k->p;
    double *part = mem_alloc((size_t)n * p->cols * sizeof *part);
    int32_t *pos = mem_alloc((size_t)n * sizeof *pos), *start = mem_alloc((size_t)n * sizeof *pos);
    for (int i = 0; i < n; i++) {
        pos[i] = order[at + i];
        memcpy(part + (size_t)i * p->cols, p->qkv + (size_t)pos[i] * p->cols,
               (size_t)p->cols * sizeof *part);
    }
    buffer qkv = buffer_of(p->t.qkv, part, (size_t)n * p->cols);
    buffer o = buffer_of(p->t.o, NULL, (size_t)n * p->width);
    op_call c = { .op = OP_ATTENTION_CACHED, .attr = attr_of(p) };
    c.in[0] = rows_of(qkv, p->t.qkv, n, p->cols);
    c.in[1] = rows_of(k->cache, k->dt, k->rows, 2 * p->s.kv * p->s.dim);
    c.in[2] = tensor_of(pos, DT_I32, 1, (int64_t[]){ n });
    c.in[3] = tensor_of(start, DT_I32, 1, (int64_t[]){ n });
    c.out[0] = rows_of(o, p->t.o, n, p->width);
    run_call(k->isa, &c, threads, 0xff);
    size_t row = (size_t)p->width * dt_size(p->t.o);
    for (int i = 0; i < n; i++) memcpy(k->o.data + pos[i] * row, o.data + i * row, row);
    buffer_free(&qkv), buffer_free(&o);
    free(part), free(pos), free(start);
}

static cache_case cache_make(const problem *p, const char *isa, dtype dt) {
    cache_case k = { *p, isa, dt, .rows = p->s.n + 5 };
    k.cache = buffer_of(dt, NULL, (size_t)k.rows * 2 * p->s.kv * p->s.dim); /* NaN */
    k.o = buffer_of(p->t.o, NULL, (size_t)p->s.n * p->width);
    return k;
}
static void cache_free(cache_case *k) { buffer_free(&k->cache), buffer_free(&k->o); }

/* A prompt in pieces, then token by token, gives what the whole sequence gives at once. */
static void test_cached_is_full_attention(void **state) {
    static const shape cases[] = { { 150, 4, 2, 16, 0, 0 },
                                   { 210, 2, 2, 64, 40, 0 },
                                   { 133, 4, 1, 128, 0, 0 },
                                   { 90, 3, 3, 20, 7, 0 } };
    static const dtype caches[] = { DT_F32, DT_BF16, DT_F16 };
    int order[256];
    for (int i = 0; i < 256; i++) order[i] = i;
    for (size_t k = 0; k < COUNT_OF(cases) * COUNT_OF(caches) * 2; k++) {
        dtype dt = caches[k / 2 % COUNT_OF(caches)];
        problem p = problem_make(cases[k / 2 / COUNT_OF(caches)], type_mixes[k % 2]);
        double tol = dt == DT_F32 ? p.t.tol : 2e-2;
        reference_fwd(&p);
        EACH_ISA(isa) {
            cache_case c = cache_make(&p, isa, dt);
            run_cached(&c, order, 0, 64, 2);
            run_cached(&c, order, 64, 13, 1);
            run_cached(&c, order, 77, 3, 2);
            for (int i = 80; i < p.s.n; i++) run_cached(&c, order, i, 1, 1 + i % 2);
            assert_near("cached", &p, isa, &c.o, p.t.o, p.o, (size_t)p.s.n * p.width, tol);
            cache_free(&c);
        }
        problem_free(&p);
    }
}

/* Positions may come in any order within a call: all are stored before any is attended to. */
static void test_cached_in_any_order(void **state) {
    problem p = problem_make((shape){ 40, 2, 1, 16, 0, 0 }, type_mixes[0]);
    int order[40];
    for (int i = 0; i < p.s.n; i++) order[i] = p.s.n - 1 - i;
    reference_fwd(&p);
    EACH_ISA(isa) {
        cache_case c = cache_make(&p, isa, DT_F32);
        run_cached(&c, order, 0, p.s.n, 1);
        assert_near("cached", &p, isa, &c.o, p.t.o, p.o, (size_t)p.s.n * p.width, p.t.tol);
        cache_free(&c);
    }
    problem_free(&p);
}

int main(void) {
    key = rng_key_of(7, 11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_backward_against_differences),
        cmocka_unit_test(test_same_bits_on_any_threads),
        cmocka_unit_test(test_documents_do_not_meet),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nan_is_kept),
        cmocka_unit_test(test_cached_is_full_attention),
        cmocka_unit_test(test_cached_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
