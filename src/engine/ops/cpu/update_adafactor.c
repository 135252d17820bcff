/* Adafactor (Shazeer and Stern, 2018), without first moment and with a step size of its own only
 * through the learning rate. The mean square of a matrix's gradient is kept by row and by column:
 *
 *     b2 = 1 - t^-0.8,  s = g g + eps
 *     rows = b2 rows + (1 - b2) mean over columns of s,  columns likewise
 *     v = rows columns / mean(rows),  u = g / sqrt(v)
 *
 * and a vector keeps v itself. UPDATE_ALONG then steps along u, clipped to a mean square of 1. Sums are
 * split by shape alone, into at most CHUNKS ranges of rows that are added in order: deterministic.
 *
 * Workspace of factor_sums: column sums [chunks, local columns].
 */
#include "update.h"

#include <string.h>

enum { CHUNKS = 64 };
static const double DECAY_POWER = -0.8;

typedef struct factor_job {
    const op_call *c;
    matrix_slice m;
    int64_t each, chunks; /* rows of a task */
    float scale;
    float b2, c2; /* the moments' decay, and 1 - it */
    float *sums;  /* [chunks, cols] */
} factor_job;

static factor_job factor_job_of(const op_call *c, const tensor *x) {
    factor_job j = { .c = c, .m = matrix_slice_of(c, tensor_count(x)) };
    int64_t rows = j.m.end - j.m.begin;
    j.each = MAX(rows_per_task(j.m.cols), ceil_div(rows, CHUNKS));
    j.chunks = ceil_div(rows, j.each);
    if (c->run) j.scale = c->run->step->now.grad_scale;
    return j;
}

static void set_decay(factor_job *j) {
    double power = pow((double)j->c->run->step->now.count, DECAY_POWER);
    j->c2 = (float)power;
    j->b2 = (float)(1 - power);
}

/* ---- sums ------------------------------------------------------------------------------------ */
static size_t CPU(factor_workspace)(const op_backend *b, const op_call *c, int threads) {
    factor_job j = factor_job_of(c, &c->in[0]);
    return (size_t)(j.chunks * j.m.cols) * sizeof(float);
}

static void sums_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    float *restrict col = j->sums + i * j->m.cols, *rows = j->c->out[0].data;
    float scale = j->scale, eps = j->c->attr.update.eps;
    memset(col, 0, (size_t)j->m.cols * sizeof *col);
    span s = task_rows(&j->m, i, j->each);
    for (int64_t row = s.lo; row < s.hi; row++) {
        const float *restrict g = (const float *)j->c->in[0].data + row_at(&j->m, row);
        span k = row_span(&j->m, row);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t n = k.lo; n < k.hi; n++) {
            float x = g[n] * scale, sq = x * x + eps;
            col[n] += sq;
            sum += sq;
        }
        rows[j->m.row0 + row] = sum;
    }
}

static void columns_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    float *cols = (float *)j->c->out[1].data + j->m.col0;
    span s = span_of(i, BLOCK, j->m.cols);
    for (int64_t k = s.lo; k < s.hi; k++) {
        float sum = 0;
        for (int64_t q = 0; q < j->chunks; q++) sum += j->sums[q * j->m.cols + k];
        cols[k] = sum;
    }
}

static void CPU(factor_sums)(const op_call *c) {
    factor_job j = factor_job_of(c, &c->in[0]);
    BUG_IF(j.m.row0 + j.m.end > c->out[0].dim[0] || j.m.col0 + j.m.cols > c->out[1].dim[0]);
    j.sums = c->run->workspace;
    for (int k = 0; k < 2; k++) memset(c->out[k].data, 0, tensor_bytes(&c->out[k]));
    pool_run(c->run->pool, j.chunks, sums_task, &j);
    pool_run(c->run->pool, ceil_div(j.m.cols, BLOCK), columns_task, &j);
}

/* ---- moments --------------------------------------------------------------------------------- */
/* state = b2 state + c2 sum / over; @return the state's mean. */
static double add_moments(const factor_job *j, const tensor *sum, const tensor *state,
                          int64_t over) {
    const float *s = sum->data;
    float *x = state->data;
    double total = 0;
    for (int64_t i = 0; i < state->dim[0]; i++) {
        x[i] = j->b2 * x[i] + j->c2 * (s[i] / (float)over);
        total += x[i];
    }
    return total / (double)state->dim[0];
}

static void CPU(factor_moments)(const op_call *c) {
    const tensor *rows = &c->out[2], *cols = &c->out[3];
    factor_job j = { .c = c };
    if (c->run->step->now.skip) return;
    set_decay(&j);
    float mean = (float)add_moments(&j, &c->out[0], rows, cols->dim[0]);
    (void)add_moments(&j, &c->out[1], cols, rows->dim[0]);
    float *row = c->out[0].data, *col = c->out[1].data;
    for (int64_t i = 0; i < rows->dim[0]; i++) row[i] = 1 / sqrtf(((float *)rows->data)[i] / mean);
    for (int64_t i = 0; i < cols->dim[0]; i++) col[i] = 1 / sqrtf(((float *)cols->data)[i]);
}

/* ---- the direction --------------------------------------------------------------------------- */
static void matrix_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    const float *rows = (const float *)j->c->in[0].data + j->m.row0;
    const float *restrict col = (const float *)j->c->in[1].data + j->m.col0;
    span s = task_rows(&j->m, i, j->each);
    for (int64_t row = s.lo; row < s.hi; row++) {
        float *restrict u = (float *)j->c->out[0].data + row_at(&j->m, row);
        float by = j->scale * rows[row];
        span k = row_span(&j->m, row);
#pragma omp simd
        for (int64_t n = k.lo; n < k.hi; n++) u[n] = u[n] * by * col[n];
    }
}

static void CPU(factor_matrix)(const op_call *c) {
    factor_job j = factor_job_of(c, &c->out[0]);
    if (c->run->step->now.skip) return;
    pool_run(c->run->pool, j.chunks, matrix_task, &j);
}

static void vector_task(void *ctx, int64_t i, int worker) {
    const factor_job *j = ctx;
    float *restrict u = j->c->out[0].data, *restrict v = j->c->out[1].data;
    float scale = j->scale, eps = j->c->attr.update.eps;
    span s = span_of(i, TASK_ELEMENTS, tensor_count(&j->c->out[0]));
#pragma omp simd
    for (int64_t k = s.lo; k < s.hi; k++) {
        float x = u[k] * scale;
        v[k] = j->b2 * v[k] + j->c2 * (x * x + eps);
        u[k] = x / sqrtf(v[k]);
    }
}

static void CPU(factor_vector)(const op_call *c) {
    factor_job j = { .c = c, .scale = c->run->step->now.grad_scale };
    if (c->run->step->now.skip) return;
    set_decay(&j);
    pool_run(c->run->pool, ceil_div(tensor_count(&c->out[0]), TASK_ELEMENTS), vector_task, &j);
}

KERNEL(FACTOR_SUMS, CPU(factor_sums), CPU(factor_workspace), ATTRS_PART | ATTR(UPDATE_EPS));
KERNEL(FACTOR_MOMENTS, CPU(factor_moments));
KERNEL(FACTOR_MATRIX, CPU(factor_matrix), NULL, ATTRS_PART);
KERNEL(FACTOR_VECTOR, CPU(factor_vector), NULL, ATTR(UPDATE_EPS));
