/* Adafactor (Shazeer and Stern, 2018), without first moment and with a step size of its own only
 * through the learning rate. The mean square of a matrix's gradient is kept by row and by column:
 *
 *     b2 = 1 - t^-0.8,  s = g g + eps
 *     rows = b2 rows + (1 - b2) mean over columns of s,  columns likewise
 *     v = rows columns / mean(rows),  u = g / sqrt(v),  u /= max(1, rms(u))
 *     p = (1 - lr decay) p - lr u
 *
 * and a vector keeps v itself. Three passes over the gradient: sums, the norm of u, the update. Sums are
 * split by shape alone, into at most CHUNKS ranges of rows that are added in order: deterministic.
 *
 * Workspace, all fp32 but the sums:
 *
 *     | sums f64 [chunks] | row factors [R] | column factors [C] | column sums [chunks, C] |
 */
#include "update.h"

#include <string.h>

enum { CHUNKS = 64 };
static const double DECAY_POWER = -0.8, CLIP = 1.0;

typedef struct factor_job {
    const op_call *c;
    update_factors f;
    float b2, c2;
    int64_t r, cols, each, chunks; /* a vector is r rows of one column */
    bool factored;
    double *sum;                /* [chunks] */
    float *row, *col, *col_sum; /* [r], [cols], [chunks, cols] */
    float lr;                   /* clipping included */
} factor_job;

static factor_job job_of(const op_call *c) {
    const tensor *g = &c->in[0];
    factor_job j = { .c = c, .r = g->dim[0], .cols = g->ndim == 2 ? g->dim[1] : 1 };
    j.factored = g->ndim == 2;
    j.each = MAX(rows_per_task(j.cols), ceil_div(j.r, CHUNKS));
    j.chunks = ceil_div(j.r, j.each);
    return j;
}

size_t CPU(adafactor_workspace)(const op_backend *b, const op_call *c, int threads) {
    factor_job j = job_of(c);
    size_t floats = j.factored ? (size_t)(j.r + j.cols + j.chunks * j.cols) : 0;
    return (size_t)j.chunks * sizeof(double) + floats * sizeof(float);
}

static double sum_of(const factor_job *j) {
    double sum = 0;
    for (int64_t i = 0; i < j->chunks; i++) sum += j->sum[i];
    return sum;
}

/* ---- matrices: sums, then factors ------------------------------------------------------------ */
static void sums_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    float *restrict col = j->col_sum + i * j->cols, *rows = j->c->out[1].data;
    float scale = j->f.scale, eps = j->c->attr.update.eps;
    double total = 0;
    memset(col, 0, (size_t)j->cols * sizeof *col);
    span s = span_of(i, j->each, j->r);
    for (int64_t row = s.lo; row < s.hi; row++) {
        const float *restrict g = (const float *)j->c->in[0].data + row * j->cols;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < j->cols; k++) {
            float x = g[k] * scale, sq = x * x + eps;
            col[k] += sq;
            sum += sq;
        }
        rows[row] = j->b2 * rows[row] + j->c2 * (sum / (float)j->cols);
        total += rows[row];
    }
    j->sum[i] = total;
}

/* Column state from partial sums, and the factors of rows and columns that turn g into u. */
static void columns_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    float *cols = j->c->out[2].data;
    span s = span_of(i, BLOCK, j->cols);
    for (int64_t k = s.lo; k < s.hi; k++) {
        float sum = 0;
        for (int64_t q = 0; q < j->chunks; q++) sum += j->col_sum[q * j->cols + k];
        cols[k] = j->b2 * cols[k] + j->c2 * (sum / (float)j->r);
        j->col[k] = 1 / sqrtf(cols[k]);
    }
}

static void factor_rows(const factor_job *j) {
    const float *rows = j->c->out[1].data;
    float mean = (float)(sum_of(j) / (double)j->r);
    for (int64_t i = 0; i < j->r; i++) j->row[i] = 1 / sqrtf(rows[i] / mean);
}

/* ---- the norm of u --------------------------------------------------------------------------- */
static double row_squares(const float *restrict g, const float *restrict col, float by, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; k++) {
        float u = g[k] * by * col[k];
        sum += (double)u * u;
    }
    return sum;
}

static void norm_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    const float *g = j->c->in[0].data;
    span s = span_of(i, j->each, j->r);
    double total = 0;
    for (int64_t row = s.lo; row < s.hi; row++)
        total += row_squares(g + row * j->cols, j->col, j->f.scale * j->row[row], j->cols);
    j->sum[i] = total;
}

/* Also updates the mean square of a vector. */
static void vector_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    const float *restrict g = j->c->in[0].data;
    float *restrict v = j->c->out[1].data, scale = j->f.scale, eps = j->c->attr.update.eps;
    span s = span_of(i, j->each, j->r);
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t k = s.lo; k < s.hi; k++) {
        float x = g[k] * scale, sq = x * x;
        v[k] = j->b2 * v[k] + j->c2 * (sq + eps);
        total += (double)(sq / v[k]);
    }
    j->sum[i] = total;
}

/* ---- the update ------------------------------------------------------------------------------ */
static void apply_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    const op_call *c = j->c;
    float keep = j->f.keep, *weights = c->out[0].data;
    span s = span_of(i, j->each, j->r);
    for (int64_t row = s.lo; row < s.hi; row++) {
        const float *restrict g = (const float *)c->in[0].data + row * j->cols, *col = j->col;
        float *restrict p = weights + row * j->cols, by = j->lr * j->f.scale * j->row[row];
#pragma omp simd
        for (int64_t k = 0; k < j->cols; k++) p[k] = p[k] * keep - by * g[k] * col[k];
        update_copy(&c->out[3], weights, row * j->cols, j->cols);
    }
}

static void apply_vector_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    const float *restrict g = j->c->in[0].data, *restrict v = j->c->out[1].data;
    float *restrict p = j->c->out[0].data, keep = j->f.keep, by = j->lr * j->f.scale;
    span s = span_of(i, j->each, j->r);
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) p[k] = p[k] * keep - by * g[k] / sqrtf(v[k]);
    update_copy(&j->c->out[3], p, s.lo, s.hi - s.lo);
}

void CPU(update_adafactor)(const op_call *c) {
    factor_job j = job_of(c);
    BUG_IF(c->out[0].dt != DT_F32);
    if (!update_due(c, 0, 3)) return;
    BUG_IF(tensor_count(&c->out[1]) != j.r);
    BUG_IF(j.factored && tensor_count(&c->out[2]) != j.cols);
    j.f = update_factors_of(c);
    j.c2 = (float)pow((double)c->run->step->now.count, DECAY_POWER);
    j.b2 = (float)(1 - pow((double)c->run->step->now.count, DECAY_POWER));
    j.sum = c->run->workspace;
    j.row = (float *)(j.sum + j.chunks);
    j.col = j.row + j.r;
    j.col_sum = j.col + j.cols;
    if (j.factored) {
        pool_run(c->run->pool, j.chunks, sums_task, &j);
        pool_run(c->run->pool, ceil_div(j.cols, BLOCK), columns_task, &j);
        factor_rows(&j);
    }
    pool_run(c->run->pool, j.chunks, j.factored ? norm_task : vector_task, &j);
    double rms = sqrt(sum_of(&j) / (double)tensor_count(&c->in[0]));
    j.lr = (float)(j.f.lr / MAX(1.0, rms / CLIP));
    pool_run(c->run->pool, j.chunks, j.factored ? apply_task : apply_vector_task, &j);
}
