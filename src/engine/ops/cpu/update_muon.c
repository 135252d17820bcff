/* Muon: momentum whose matrix is made nearly orthogonal before it is applied (Jordan et al., 2024).
 *
 *     m = mu m + (1 - mu) g,   u = (1 - mu) g + mu m  (Nesterov)  or  m
 *     x = u / |u|, then five times  x = a x + (b G + c G G) x,  G = x x^T
 *     u = sqrt(max(1, R / C)) x
 *
 * The polynomial drives every singular value towards 1. G is taken on the shorter side: for tall
 * matrices it is x^T x, and multiplies from the right. GEMMs run on the pool, in fp32; the passes between
 * them read and write each element once. UPDATE_ALONG then steps along u.
 *
 * Workspace of orthogonalize, with S = min(R, C); x lies there and in u in turn, at last in u:
 *
 *     | x [R, C] | G [S, S] | b G + c G G [S, S] | sums f64 [chunks] | GEMM workspace |
 */
#include "update.h"

enum { ITERATIONS = 5, MAX_CHUNKS = 128 };
_Static_assert(ITERATIONS % 2 == 1, "the last result must be in u");
static const float A = 3.4445f, B = -4.7750f, C = 2.0315f;
static const double LEAST_NORM = 1e-7;

typedef struct muon_job {
    const op_call *c;
    int64_t n, each, chunks;
    int64_t side;
    bool tall;
    tensor x, next, gram, poly; /* [R, C], [R, C], [S, S], [S, S] */
    double *sum;                /* [chunks] */
    float inverse;              /* 1 / |u| */
    float by;                   /* what an iteration's result is multiplied by */
} muon_job;

static muon_job muon_job_of(const op_call *c) {
    const tensor *g = &c->out[0]; /* [R, C] */
    BUG_IF(g->ndim != 2);
    muon_job j = { .c = c, .n = tensor_count(g), .tall = g->dim[0] > g->dim[1] };
    j.side = MIN(g->dim[0], g->dim[1]);
    j.each = MAX(TASK_ELEMENTS, ceil_div(j.n, MAX_CHUNKS));
    j.chunks = ceil_div(j.n, j.each);
    j.x = j.next = tensor_of(NULL, DT_F32, 2, g->dim);
    j.gram = j.poly = tensor_of(NULL, DT_F32, 2, (int64_t[]){ j.side, j.side });
    return j;
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */
static gemm gram_gemm(const muon_job *j) {
    return CPU(gemm_of)(&j->x, j->tall, &j->x, !j->tall, &j->gram);
}
static gemm square_gemm(const muon_job *j) {
    return CPU(gemm_of)(&j->gram, false, &j->gram, false, &j->poly);
}
static gemm next_gemm(const muon_job *j) {
    const tensor *left = j->tall ? &j->x : &j->poly, *right = j->tall ? &j->poly : &j->x;
    gemm g = CPU(gemm_of)(left, false, right, false, &j->next);
    g.accumulate = true;
    return g;
}

static size_t own_bytes(const muon_job *j) {
    size_t floats = (size_t)j->n + 2 * (size_t)(j->side * j->side);
    return align_up(floats * sizeof(float), 64) + (size_t)MAX_CHUNKS * sizeof(double);
}

size_t CPU(orthogonalize_workspace)(const op_backend *b, const op_call *c, int threads) {
    muon_job j = muon_job_of(c);
    gemm g[] = { gram_gemm(&j), square_gemm(&j), next_gemm(&j) };
    size_t gemm_bytes = 0;
    for (size_t i = 0; i < COUNT_OF(g); i++)
        gemm_bytes = MAX(gemm_bytes, CPU(gemm_workspace)(&g[i], threads));
    return own_bytes(&j) + gemm_bytes;
}

static void run_muon_gemm(const muon_job *j, gemm g) {
    size_t own = own_bytes(j);
    CPU(gemm_run)
    (&g, j->c->run->pool, (char *)j->c->run->workspace + own, j->c->run->workspace_bytes - own);
}

/* ---- momentum -------------------------------------------------------------------------------- */
static void momentum_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const float *g = c->in[0].data; /* which u may be */
    float *u = c->out[0].data, *restrict m = c->out[1].data;
    update_factors f = update_factors_of(c);
    float mu = f.mu, rest = 1 - mu, scale = f.scale, now = f.now * rest, then = f.then;
    span s = span_of(i, TASK_ELEMENTS, tensor_count(&c->in[0]));
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) {
        float gk = g[k] * scale, mk = mu * m[k] + rest * gk;
        m[k] = mk;
        u[k] = now * gk + then * mk;
    }
}

void CPU(muon_momentum)(const op_call *c) {
    if (c->run->step->now.skip) return;
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS), momentum_task,
             (void *)c);
}

/* ---- passes ---------------------------------------------------------------------------------- */
static void squares_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    const float *restrict u = j->c->out[0].data;
    span s = span_of(i, j->each, j->n);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = s.lo; k < s.hi; k++) sum += (double)u[k] * u[k];
    j->sum[i] = sum;
}

static void normalize_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    const float *restrict u = j->c->out[0].data;
    float *restrict x = j->x.data, by = j->inverse;
    span s = span_of(i, j->each, j->n);
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) x[k] = u[k] * by;
}

/* poly = b G + c G G, where poly holds G G; times the factor of this iteration. */
static void poly_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    const float *restrict gram = j->gram.data;
    float *restrict poly = j->poly.data;
    span s = span_of(i, TASK_ELEMENTS, j->side * j->side);
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) poly[k] = j->by * (B * gram[k] + C * poly[k]);
}

static void next_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    const float *restrict x = j->x.data;
    float *restrict next = j->next.data;
    span s = span_of(i, j->each, j->n);
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) next[k] = j->by * A * x[k];
}

void CPU(orthogonalize)(const op_call *c) {
    muon_job j = muon_job_of(c);
    pool *p = c->run->pool;
    double sum = 0;
    if (c->run->step->now.skip) return;
    float *at = c->run->workspace;
    j.x.data = at;
    j.next.data = c->out[0].data;
    j.gram.data = at + j.n;
    j.poly.data = at + j.n + j.side * j.side;
    j.sum = (double *)((char *)at + own_bytes(&j)) - MAX_CHUNKS;
    pool_run(p, j.chunks, squares_task, &j);
    for (int64_t i = 0; i < j.chunks; i++) sum += j.sum[i];
    j.inverse = (float)(1 / MAX(sqrt(sum), LEAST_NORM));
    pool_run(p, j.chunks, normalize_task, &j);
    double tall = (double)c->out[0].dim[0] / (double)c->out[0].dim[1];
    for (int k = 0; k < ITERATIONS; k++) {
        j.by = k + 1 < ITERATIONS ? 1 : (float)sqrt(MAX(1.0, tall));
        run_muon_gemm(&j, gram_gemm(&j));
        run_muon_gemm(&j, square_gemm(&j));
        pool_run(p, ceil_div(j.side * j.side, TASK_ELEMENTS), poly_task, &j);
        pool_run(p, j.chunks, next_task, &j);
        run_muon_gemm(&j, next_gemm(&j));
        tensor old = j.x;
        j.x = j.next;
        j.next = old;
    }
}
