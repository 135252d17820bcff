/* RMS norm of q and of k over all heads of a token, where ranks share the heads: each rank's mean squares, and the norm
 * by the sum of them. With s the mean square, g = dy w and r = 1 / sqrt(s + eps):
 *
 *     y = x r w,   dx = g r,   ds = -r^3 (g . x) / 2,   dw = sum of dy x r
 *
 * Bytes moved: each operand once. */
#include "norm.h"
#include "ops/op_table.h"

#include <math.h>
#include <string.h>

typedef struct by_job {
    const op_call *c;
    norm_space space;
    int64_t n, cols, each;
    int64_t at[3]; /* first column of q, k and v */
} by_job;

static by_job by_job_of(const op_call *c, const tensor *x) {
    int64_t dim = c->attr.heads.dim, q = c->attr.heads.q, kv = c->attr.heads.kv;
    by_job j = { .c = c,
                 .n = x->dim[0],
                 .cols = x->dim[1],
                 .each = rows_per_task(x->dim[1]),
                 .at = { 0, q * dim, (q + kv) * dim } };
    BUG_IF(j.cols != (q + 2 * kv) * dim);
    return j;
}

static by_job by_job_in_space(const op_call *c) {
    by_job j = by_job_of(c, &c->in[0]);
    j.space = CPU(norm_space_of)(c);
    return j;
}

/* ---- mean squares ------------------------------------------------------------------------------ */
static void qk_squares_task(void *ctx, int64_t i, int worker) {
    const by_job *j = ctx;
    const op_call *c = j->c;
    float *out = c->out[0].data; /* [N, 2] */
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *x = CPU(row_get)(&c->in[0], row, j->cols, norm_row(&j->space, worker, 0));
        for (int k = 0; k < 2; k++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t e = j->at[k]; e < j->at[k + 1]; e++) sum += x[e] * x[e];
            out[2 * row + k] = c->attr.scale.by * sum / (float)(j->at[k + 1] - j->at[k]);
        }
    }
}

static void CPU(qk_squares)(const op_call *c) {
    by_job j = by_job_in_space(c);
    pool_run(c->run->pool, ceil_div(j.n, j.each), qk_squares_task, &j);
}

static void qk_squares_bwd_task(void *ctx, int64_t i, int worker) {
    const by_job *j = ctx;
    const op_call *c = j->c;
    const float *ds = c->in[0].data; /* [N, 2] */
    span rows = span_of(i, j->each, j->n);
    float xs[BLOCK], dx[BLOCK];
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int k = 0; k < 3; k++) {
            int64_t end = k < 2 ? j->at[k + 1] : j->cols, width = end - j->at[k];
            float by = k < 2 ? 2 * c->attr.scale.by * ds[2 * row + k] / (float)width : 0;
            for (int64_t e = j->at[k]; e < end; e += BLOCK) {
                int64_t m = MIN(BLOCK, end - e), at = row * j->cols + e;
                const float *x = elems_get(&c->in[1], at, m, xs);
                for (int64_t d = 0; d < m; d++) dx[d] = k < 2 ? by * x[d] : 0;
                elems_put(&c->out[0], at, m, dx);
            }
        }
}

static void CPU(qk_squares_bwd)(const op_call *c) {
    by_job j = by_job_of(c, &c->in[1]);
    pool_run(c->run->pool, ceil_div(j.n, j.each), qk_squares_bwd_task, &j);
}

/* ---- the norm ---------------------------------------------------------------------------------- */
/* 1 / rms of q and of k. */
static void row_scales(const by_job *j, const tensor *squares, int64_t row, float r[2]) {
    const float *s = (const float *)squares->data + 2 * row;
    for (int k = 0; k < 2; k++) r[k] = 1 / sqrtf(s[k] + j->c->attr.eps);
}

static void by_weights(const by_job *j, int first, int worker, const float *w[2]) {
    for (int k = 0; k < 2; k++)
        w[k] = CPU(norm_weights)(&j->c->in[first + k], j->at[k + 1] - j->at[k],
                                 norm_row(&j->space, worker, 3 + k));
}

static void by_task(void *ctx, int64_t i, int worker) {
    const by_job *j = ctx;
    const op_call *c = j->c;
    const float *w[2];
    by_weights(j, 2, worker, w);
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *x = CPU(row_get)(&c->in[0], row, j->cols, norm_row(&j->space, worker, 0));
        float *y = CPU(row_at)(&c->out[0], row, j->cols, norm_row(&j->space, worker, 1)), r[2];
        row_scales(j, &c->in[1], row, r);
        for (int k = 0; k < 2; k++)
            for (int64_t e = j->at[k]; e < j->at[k + 1]; e++)
                y[e] = x[e] * r[k] * w[k][e - j->at[k]];
        if (x != y) memcpy(y + j->at[2], x + j->at[2], (size_t)(j->cols - j->at[2]) * sizeof *y);
        CPU(row_put)(&c->out[0], row, j->cols, y);
    }
}

static void CPU(qknorm_by)(const op_call *c) {
    by_job j = by_job_in_space(c);
    pool_run(c->run->pool, ceil_div(j.n, j.each), by_task, &j);
}

static void by_bwd_task(void *ctx, int64_t i, int worker) {
    const by_job *j = ctx;
    const op_call *c = j->c;
    const norm_space *sp = &j->space;
    float *ds = c->out[1].data, *partial = sp->partial + i * sp->width;
    const float *w[2];
    memset(partial, 0, (size_t)sp->width * sizeof *partial);
    by_weights(j, 3, worker, w);
    span rows = span_of(i, sp->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *dy = CPU(row_get)(&c->in[0], row, j->cols, norm_row(sp, worker, 0));
        const float *x = CPU(row_get)(&c->in[1], row, j->cols, norm_row(sp, worker, 1));
        float *dx = CPU(row_at)(&c->out[0], row, j->cols, norm_row(sp, worker, 2)), r[2];
        row_scales(j, &c->in[2], row, r);
        for (int k = 0; k < 2; k++) {
            float dot = 0, *dw = partial + k * sp->ld;
#pragma omp simd reduction(+ : dot)
            for (int64_t e = j->at[k]; e < j->at[k + 1]; e++) {
                float d = dy[e], g = d * w[k][e - j->at[k]];
                dw[e - j->at[k]] += d * x[e] * r[k];
                dot += g * x[e];
                dx[e] = g * r[k];
            }
            if (ds) ds[2 * row + k] = -0.5f * r[k] * r[k] * r[k] * dot;
        }
        if (dx != dy)
            memcpy(dx + j->at[2], dy + j->at[2], (size_t)(j->cols - j->at[2]) * sizeof *dx);
        if (c->out[0].data) CPU(row_put)(&c->out[0], row, j->cols, dx);
    }
}

static void CPU(qknorm_by_bwd)(const op_call *c) {
    by_job j = by_job_in_space(c);
    pool_run(c->run->pool, j.space.chunks, by_bwd_task, &j);
    CPU(norm_reduce)(c, &j.space, 0, 2);
    CPU(norm_reduce)(c, &j.space, j.space.ld, 3);
}

KERNEL(QK_SQUARES, CPU(qk_squares), CPU(norm_workspace), ATTRS_HEADS | ATTR(SCALE_BY));
KERNEL(QK_SQUARES_BWD, CPU(qk_squares_bwd), NULL, ATTRS_HEADS | ATTR(SCALE_BY));
KERNEL(QKNORM_BY, CPU(qknorm_by), CPU(norm_workspace), ATTRS_HEADS | ATTR(EPS));
KERNEL(QKNORM_BY_BWD, CPU(qknorm_by_bwd), CPU(norm_workspace), ATTRS_HEADS | ATTR(EPS));
