/* Muon: momentum whose matrix is made nearly orthogonal before it is applied (Jordan et al., 2024).
 *
 *     m = mu m + (1 - mu) g,   u = (1 - mu) g + mu m  (Nesterov)  or  m        MUON_MOMENTUM
 *     rows of u get equal norms, where they are equilibrated                    MUON_PACK
 *     x = u / |u|, its longer side across
 *     x = five polynomials of x x^T, times x: ops/polar.h                      ORTHOGONALIZE
 *     u = sqrt(max(1, R / C)) x                                                MUON_UNPACK
 *
 * NorMuon (Li et al., 2025) evens out the size of lines of u, which are its rows, or its columns where there are more of
 * those. With x of norm sqrt(min(R, C)):
 *
 *     v = beta2 v + (1 - beta2) mean square of each line of x                  MUON_UNPACK_ROWS, MUON_UNPACK_COLS
 *     x = x / sqrt(v), and back to norm sqrt(min(R, C))
 *
 * UPDATE_ALONG then steps along u. Small matrices of a batch are spread over the threads, one each; of large ones the
 * threads share every GEMM. The result is the same, since that of a GEMM does not depend on its threads.
 *
 * Workspace of orthogonalize, one part for each matrix that is computed at a time, with B = 1:
 *
 *     | next [S, L] | 4 squares [S, S] | GEMM workspace |
 */
#include "update.h"

#include <string.h>

#include "ops/polar.h"

/* TILE: rows and columns that are transposed at a time. SMALL: elements of a matrix that is one task. */
enum { MAX_CHUNKS = 128, TILE = 32, SMALL = 1 << 18 };

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

static void CPU(muon_momentum)(const op_call *c) {
    if (c->run->step->now.skip) return;
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS), momentum_task,
             (void *)c);
}

/* ---- packing --------------------------------------------------------------------------------- */
/* A matrix u [R, C] and the packed one, x [S, L]. */
typedef struct muon_packing {
    const op_call *c;
    const tensor *u, *x;
    bool tall;
    int64_t each, chunks; /* of the sum of squares */
    double *sum;          /* [chunks], or [lines] */
    float by;             /* what elements are multiplied by */
    const float *line;    /* ... and those of each row or column of u; NULL: by 1 */
    bool of_rows;         /* lines are rows of u */
} muon_packing;

/* Whether the lines of u are those along which a row of x extends: columns of x are the others. */
static bool lines_across(const muon_packing *p) { return p->of_rows == p->tall; }

static muon_packing packing_of(const op_call *c, const tensor *u, const tensor *x) {
    muon_packing p = { c, u, x, .tall = u->dim[0] > u->dim[1], .sum = c->run->workspace };
    int64_t n = tensor_count(u);
    p.each = MAX(TASK_ELEMENTS, ceil_div(n, MAX_CHUNKS));
    p.chunks = ceil_div(n, p.each);
    return p;
}

static void squares_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    const float *restrict u = p->u->data;
    span s = span_of(i, p->each, tensor_count(p->u));
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = s.lo; k < s.hi; k++) sum += (double)u[k] * u[k];
    p->sum[i] = sum;
}

/* The sum of squares of each row of u. */
static void row_squares_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    int64_t cols = p->u->dim[1];
    span s = span_of(i, rows_per_task(cols), p->u->dim[0]);
    for (int64_t row = s.lo; row < s.hi; row++) {
        const float *restrict u = (const float *)p->u->data + row * cols;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < cols; k++) sum += (double)u[k] * u[k];
        p->sum[row] = sum;
    }
}

/* Sets what each row of u is multiplied by so that all have the same norm, and the matrix the norm 1 / margin. */
static void equilibrate_rows(muon_packing *p, float *line) {
    int64_t rows = p->u->dim[0];
    double all = 0, square = 0;
    pool_run(p->c->run->pool, ceil_div(rows, rows_per_task(p->u->dim[1])), row_squares_task, p);
    for (int64_t i = 0; i < rows; i++) all += p->sum[i];
    double least = MAX(POLAR_LEAST_ROW * sqrt(all / (double)rows), POLAR_LEAST_NORM);
    for (int64_t i = 0; i < rows; i++) {
        double by = 1 / MAX(sqrt(p->sum[i]), least);
        square += by * by * p->sum[i];
        line[i] = (float)by;
    }
    double norm = MAX(sqrt(square), POLAR_LEAST_NORM);
    p->by = (float)(1 / (norm * polar_margin(p->c->attr.update.polar)));
    p->line = line;
    p->of_rows = true;
}

/* Fills the factors of elements [l, l + n) of row s of x. */
static void fill_factors(const muon_packing *p, int64_t s, int64_t l, int64_t n,
                         float *restrict f) {
    bool across = p->line && lines_across(p);
    float by = p->line && !across ? p->by * p->line[s] : p->by;
    for (int64_t k = 0; k < n; k++) f[k] = by;
    for (int64_t k = 0; across && k < n; k++) f[k] *= p->line[l + k];
}

/* Elements [l, l + n) of row s of x, from u; zeros beyond it. */
static void gather_row(const muon_packing *p, int64_t s, int64_t l, int64_t n, float *restrict to) {
    float f[BLOCK];
    int64_t rows = p->u->dim[0], cols = p->u->dim[1];
    const float *restrict u = p->u->data;
    int64_t inside = s < MIN(rows, cols) ? MAX(0, MIN(n, MAX(rows, cols) - l)) : 0;
    if (inside) fill_factors(p, s, l, inside, f);
    for (int64_t k = 0; p->tall && k < inside; k++) to[k] = f[k] * u[s + (l + k) * cols];
    for (int64_t k = 0; !p->tall && k < inside; k++) to[k] = f[k] * u[s * cols + l + k];
    for (int64_t k = inside; k < n; k++) to[k] = 0;
}

/* A band of TILE rows of x, in tiles: one of a tall matrix fits L1 where a whole row of x, a column of u, does not. */
static void pack_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    float row[BLOCK];
    int64_t wide = p->x->dim[1], step = p->tall ? TILE : BLOCK;
    span s = span_of(i, TILE, p->x->dim[0]);
    for (int64_t l = 0; l < wide; l += step)
        for (int64_t k = s.lo; k < s.hi; k++) {
            int64_t n = MIN(step, wide - l);
            gather_row(p, k, l, n, row);
            elems_put(p->x, k * wide + l, n, row);
        }
}

static void CPU(muon_pack)(const op_call *c) {
    muon_packing p = packing_of(c, &c->in[0], &c->out[0]);
    double sum = 0;
    if (c->run->step->now.skip) return;
    if (c->attr.update.equilibrate) {
        equilibrate_rows(&p, (float *)(p.sum + p.u->dim[0]));
    } else {
        pool_run(c->run->pool, p.chunks, squares_task, &p);
        for (int64_t i = 0; i < p.chunks; i++) sum += p.sum[i];
        double norm = MAX(sqrt(sum), POLAR_LEAST_NORM);
        p.by = (float)(1 / (norm * polar_margin(c->attr.update.polar)));
    }
    pool_run(c->run->pool, ceil_div(p.x->dim[0], TILE), pack_task, &p);
}

static size_t CPU(muon_pack_workspace)(const op_backend *b, const op_call *c, int threads) {
    size_t lines = (size_t)c->in[0].dim[0] * (sizeof(double) + sizeof(float));
    return c->attr.update.equilibrate ? lines : MAX_CHUNKS * sizeof(double);
}

/* ---- second moments ---------------------------------------------------------------------------- */
/* Sums of squares of columns [i BLOCK, ...) of x, each over its rows in order. */
static void column_squares_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    float tmp[BLOCK];
    int64_t wide = p->x->dim[1], lines = MAX(p->u->dim[0], p->u->dim[1]);
    span s = span_of(i, BLOCK, lines);
    double *restrict sum = p->sum + s.lo;
    memset(sum, 0, (size_t)(s.hi - s.lo) * sizeof *sum);
    for (int64_t k = 0; k < MIN(p->u->dim[0], p->u->dim[1]); k++) {
        const float *x = elems_get(p->x, k * wide + s.lo, s.hi - s.lo, tmp);
        for (int64_t j = 0; j < s.hi - s.lo; j++) sum[j] += (double)x[j] * x[j];
    }
}

/* ... and of a band of rows of x. */
static void packed_row_squares_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    float tmp[BLOCK];
    int64_t wide = p->x->dim[1], length = MAX(p->u->dim[0], p->u->dim[1]);
    span s = span_of(i, TILE, MIN(p->u->dim[0], p->u->dim[1]));
    for (int64_t row = s.lo; row < s.hi; row++) {
        double sum = 0;
        for (int64_t l = 0; l < length; l += BLOCK) {
            int64_t n = MIN(BLOCK, length - l);
            const float *x = elems_get(p->x, row * wide + l, n, tmp);
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < n; j++) sum += (double)x[j] * x[j];
        }
        p->sum[row] = sum;
    }
}

/* Moves the second moments of lines, and sets what elements of each are multiplied by. */
static void move_moments(muon_packing *p, float *moment, float *line) {
    int64_t rows = p->u->dim[0], cols = p->u->dim[1], n = p->of_rows ? rows : cols;
    double over = (double)(p->of_rows ? cols : rows), size = (double)MIN(rows, cols);
    double beta2 = p->c->attr.update.beta2, all = 0, square = 0;
    for (int64_t i = 0; i < n; i++) all += p->sum[i];
    double norm = all > 0 ? size / all : 0; /* brings x to the norm sqrt(size) */
    for (int64_t i = 0; i < n; i++) {
        double mean = p->sum[i] * norm / over;
        moment[i] = (float)(beta2 * moment[i] + (1 - beta2) * mean);
        double by = 1 / sqrt(MAX((double)moment[i], POLAR_LEAST_MOMENT));
        square += mean * over * by * by;
        line[i] = (float)by;
    }
    p->by *= (float)(square > 0 ? sqrt(norm * size / square) : 0);
    p->line = line;
}

static void normalize_lines(muon_packing *p) {
    const op_call *c = p->c;
    p->of_rows = c->op == OP_MUON_UNPACK_ROWS;
    int64_t n = c->out[1].dim[0];
    if (lines_across(p))
        pool_run(c->run->pool, ceil_div(n, BLOCK), column_squares_task, p);
    else
        pool_run(c->run->pool, ceil_div(n, TILE), packed_row_squares_task, p);
    move_moments(p, c->out[1].data, (float *)(p->sum + n));
}

static size_t CPU(muon_unpack_workspace)(const op_backend *b, const op_call *c, int threads) {
    return (size_t)c->out[1].dim[0] * (sizeof(double) + sizeof(float));
}

static void unpack_task(void *ctx, int64_t i, int worker) {
    const muon_packing *p = ctx;
    float tmp[BLOCK], f[BLOCK];
    int64_t cols = p->u->dim[1], wide = p->x->dim[1], length = p->tall ? p->u->dim[0] : cols;
    int64_t step = p->tall ? TILE : BLOCK;
    float *restrict u = p->u->data;
    span s = span_of(i, TILE, p->tall ? cols : p->u->dim[0]);
    for (int64_t l = 0; l < length; l += step)
        for (int64_t k = s.lo; k < s.hi; k++) {
            int64_t n = MIN(step, length - l);
            const float *row = elems_get(p->x, k * wide + l, n, tmp);
            fill_factors(p, k, l, n, f);
            for (int64_t j = 0; p->tall && j < n; j++) u[k + (l + j) * cols] = f[j] * row[j];
            for (int64_t j = 0; !p->tall && j < n; j++) u[k * cols + l + j] = f[j] * row[j];
        }
}

static void CPU(muon_unpack)(const op_call *c) {
    muon_packing p = packing_of(c, &c->out[0], &c->in[0]);
    double tall = (double)p.u->dim[0] / (double)p.u->dim[1];
    if (c->run->step->now.skip) return;
    p.by = (float)sqrt(MAX(1.0, tall));
    if (c->op != OP_MUON_UNPACK) normalize_lines(&p);
    pool_run(c->run->pool, ceil_div(MIN(p.u->dim[0], p.u->dim[1]), TILE), unpack_task, &p);
}

/* ---- orthogonal matrices ----------------------------------------------------------------------- */
/* A matrix, and what computes it. */
typedef struct muon_job {
    const op_call *c;
    pool *pool; /* of its GEMMs and passes */
    char *gemm_workspace;
    size_t gemm_bytes;
    tensor add, to; /* of the pass */
    float by, diagonal;
} muon_job;

static tensor matrix_of(const op_call *c, int64_t i) {
    const tensor *x = &c->out[0]; /* [B, S, L] */
    size_t bytes = (size_t)(x->dim[1] * x->dim[2]) * dt_size(x->dt);
    char *data = x->data ? (char *)x->data + (size_t)i * bytes : NULL;
    return tensor_of(data, x->dt, 2, &x->dim[1]);
}
static tensor square_of(const tensor *x, void *data) {
    return tensor_of(data, x->dt, 2, (int64_t[]){ x->dim[0], x->dim[0] });
}
static bool is_one_task(const op_call *c) {
    const tensor *x = &c->out[0];
    return x->dim[0] > 1 && x->dim[1] * x->dim[2] <= SMALL;
}

/* Bytes of a matrix's part of the workspace before the GEMMs', and of the GEMMs'. */
static size_t polar_bytes(const tensor *x) {
    tensor square = square_of(x, NULL);
    return align_up(tensor_bytes(x), 64) + POLAR_SQUARES * align_up(tensor_bytes(&square), 64);
}
static size_t gemm_bytes(const tensor *x, int threads) {
    tensor square = square_of(x, NULL);
    gemm g[] = { CPU(gemm_of)(x, false, x, true, &square),
                 CPU(gemm_of)(&square, false, &square, true, &square),
                 CPU(gemm_of)(&square, false, x, false, x) };
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(g); i++) {
        most = MAX(most, CPU(gemm_workspace)(&g[i], threads));
        g[i].accumulate = true;
        most = MAX(most, CPU(gemm_workspace)(&g[i], threads));
    }
    return align_up(most, 64);
}

static size_t CPU(orthogonalize_workspace)(const op_backend *b, const op_call *c, int threads) {
    tensor x = matrix_of(c, 0);
    if (!is_one_task(c)) return polar_bytes(&x) + gemm_bytes(&x, threads);
    return (size_t)threads * (polar_bytes(&x) + gemm_bytes(&x, 1));
}

/* to = by add + diagonal I; a row of the squares at a time. */
static void terms_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    float tmp[BLOCK], out[BLOCK];
    int64_t side = j->to.dim[0];
    for (int64_t at = 0; at < side; at += BLOCK) {
        int64_t n = MIN(BLOCK, side - at);
        const float *add = elems_get(&j->add, i * side + at, n, tmp);
        float *to = elems_at(&j->to, i * side + at, out);
        for (int64_t k = 0; k < n; k++) to[k] = j->by * add[k];
        if (i >= at && i < at + n) to[i - at] += j->diagonal;
        elems_put(&j->to, i * side + at, n, to);
    }
}

/* Copies what is below the diagonal to above it: a band of TILE columns of what is below, in tiles. */
static void mirror_task(void *ctx, int64_t i, int worker) {
    const muon_job *j = ctx;
    int64_t side = j->to.dim[0];
    span s = span_of(i, TILE, side);
    uint16_t *half = j->to.data;
    float *full = j->to.data;
    bool wide = j->to.dt == DT_F32;
    for (int64_t row = s.lo; row < side; row += TILE)
        for (int64_t k = s.lo; k < s.hi; k++)
            for (int64_t r = MAX(row, k + 1); r < MIN(row + TILE, side); r++) {
                if (wide) full[k * side + r] = full[r * side + k];
                if (!wide) half[k * side + r] = half[r * side + k];
            }
}

static void multiply_symmetric(void *ctx, const tensor *a, const tensor *b, const tensor *add,
                               const float f[3], const tensor *to) {
    muon_job *j = ctx;
    gemm g = CPU(gemm_of)(a, false, b, true, to);
    g.alpha = f[0];
    g.accumulate = add->data;
    j->add = *add, j->to = *to, j->by = f[1], j->diagonal = f[2];
    if (add->data) pool_run(j->pool, to->dim[0], terms_task, j);
    CPU(gemm_run)(&g, j->pool, j->gemm_workspace, j->gemm_bytes);
    if (a->data != b->data) pool_run(j->pool, ceil_div(to->dim[0], TILE), mirror_task, j);
}

static void multiply_plain(void *ctx, const tensor *q, const tensor *x, const tensor *to) {
    muon_job *j = ctx;
    gemm g = CPU(gemm_of)(q, false, x, false, to);
    CPU(gemm_run)(&g, j->pool, j->gemm_workspace, j->gemm_bytes);
}

static void orthogonalize_matrix(const op_call *c, int64_t i, pool *p, char *at) {
    tensor x = matrix_of(c, i);
    muon_job j = { c, p, at + polar_bytes(&x), gemm_bytes(&x, pool_size(p)) };
    polar_run r = { &j, x, x, .symmetric = multiply_symmetric, .apply = multiply_plain };
    r.next.data = at;
    at += align_up(tensor_bytes(&x), 64);
    for (int k = 0; k < POLAR_SQUARES; k++) {
        r.square[k] = square_of(&x, at);
        at += align_up(tensor_bytes(&r.square[k]), 64);
    }
    polar_iterate(&r, c->attr.update.polar);
    if (r.x.data != x.data) memcpy(x.data, r.x.data, tensor_bytes(&x));
}

static void polar_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    tensor x = matrix_of(c, i);
    size_t each = polar_bytes(&x) + gemm_bytes(&x, 1);
    orthogonalize_matrix(c, i, NULL, (char *)c->run->workspace + (size_t)worker * each);
}

static void CPU(orthogonalize)(const op_call *c) {
    int64_t n = c->out[0].dim[0];
    if (c->run->step->now.skip) return;
    if (is_one_task(c)) {
        pool_run(c->run->pool, n, polar_task, (void *)c);
        return;
    }
    for (int64_t i = 0; i < n; i++) orthogonalize_matrix(c, i, c->run->pool, c->run->workspace);
}

KERNEL(MUON_MOMENTUM, CPU(muon_momentum), NULL, ATTR(MOMENTUM) | ATTR(NESTEROV) | ATTR(HOST_STATE));
KERNEL(MUON_PACK, CPU(muon_pack), CPU(muon_pack_workspace), ATTR(POLAR) | ATTR(EQUILIBRATE));
KERNEL(ORTHOGONALIZE, CPU(orthogonalize), CPU(orthogonalize_workspace), ATTR(POLAR));
KERNEL(MUON_UNPACK, CPU(muon_unpack));
KERNEL(MUON_UNPACK_ROWS, CPU(muon_unpack), CPU(muon_unpack_workspace), ATTR(BETA2));
KERNEL(MUON_UNPACK_COLS, CPU(muon_unpack), CPU(muon_unpack_workspace), ATTR(BETA2));
