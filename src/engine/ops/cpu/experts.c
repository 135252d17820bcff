/* Tokens to the rows of their experts and back, and the experts' GEMMs. Every result is a gather, so that
 * nothing is added out of order. */
#include "chunks.h"
#include "ops/op_table.h"

#include <string.h>

typedef struct rows_job {
    const op_call *c;
    const tensor *from, *to;
    const tensor *y;       /* COMBINE_BWD: the experts' output */
    const float *weight;   /* [N,K] */
    float *dweight;        /* [N,K] */
    const int32_t *row;    /* [N,K] */
    const int32_t *source; /* [M] */
    int64_t k, d, n, each; /* n: rows of `to` */
} rows_job;

static void run_rows(rows_job j, const tensor *row, const tensor *rows_of,
                     void (*task)(void *, int64_t, int)) {
    j.row = row->data;
    j.k = row->dim[1];
    j.n = rows_of->dim[0];
    j.d = rows_of->dim[1];
    j.each = rows_per_task(j.d);
    pool_run(j.c->run->pool, ceil_div(j.n, j.each), task, &j);
}

/* to[m] = from[token of m], times its weight where there are weights. */
static void spread_task(void *ctx, int64_t i, int worker) {
    const rows_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    float x_tmp[BLOCK], y_tmp[BLOCK];
    for (int64_t m = rows.lo; m < rows.hi; m++)
        for (int64_t at = 0; at < j->d; at += BLOCK) {
            int64_t n = MIN(BLOCK, j->d - at), from = j->source[m];
            float *y = elems_at(j->to, m * j->d + at, y_tmp);
            if (from < 0) {
                memset(y, 0, (size_t)n * sizeof *y);
            } else {
                const float *x = elems_get(j->from, from / j->k * j->d + at, n, x_tmp);
                float by = j->weight ? j->weight[from] : 1;
                for (int64_t e = 0; e < n; e++) y[e] = by * x[e];
            }
            elems_put(j->to, m * j->d + at, n, y);
        }
}

/* to[t] = the sum of from[row] over the token's rows, each times its weight. */
static void sum_task(void *ctx, int64_t i, int worker) {
    const rows_job *j = ctx;
    span tokens = span_of(i, j->each, j->n);
    float x_tmp[BLOCK], sum[BLOCK];
    for (int64_t t = tokens.lo; t < tokens.hi; t++)
        for (int64_t at = 0; at < j->d; at += BLOCK) {
            int64_t n = MIN(BLOCK, j->d - at);
            memset(sum, 0, sizeof sum);
            for (int64_t k = t * j->k; k < (t + 1) * j->k; k++) {
                if (j->row[k] < 0) continue;
                const float *x = elems_get(j->from, j->row[k] * j->d + at, n, x_tmp);
                float by = j->weight ? j->weight[k] : 1;
                for (int64_t e = 0; e < n; e++) sum[e] += by * x[e];
            }
            elems_put(j->to, t * j->d + at, n, sum);
        }
}

static void run_spread(const op_call *c, const tensor *from, const tensor *row,
                       const tensor *source, const float *weight) {
    rows_job j = { c, from, &c->out[0], .weight = weight, .source = source->data };
    run_rows(j, row, j.to, spread_task);
}

static void run_sum(const op_call *c, const tensor *from, const tensor *row, const float *weight) {
    rows_job j = { c, from, &c->out[0], .weight = weight };
    run_rows(j, row, j.to, sum_task);
}

/* dweight of a choice is the dot product of the token's gradient with the expert's output. */
static void dot_task(void *ctx, int64_t i, int worker) {
    const rows_job *j = ctx;
    span tokens = span_of(i, j->each, j->n);
    float x_tmp[BLOCK], y_tmp[BLOCK];
    for (int64_t t = tokens.lo; t < tokens.hi; t++)
        for (int64_t k = t * j->k; k < (t + 1) * j->k; k++) {
            float sum = 0;
            for (int64_t at = 0; at < j->d && j->row[k] >= 0; at += BLOCK) {
                int64_t n = MIN(BLOCK, j->d - at);
                const float *x = elems_get(j->from, t * j->d + at, n, x_tmp);
                const float *y = elems_get(j->y, j->row[k] * j->d + at, n, y_tmp);
                float part = 0;
#pragma omp simd reduction(+ : part)
                for (int64_t e = 0; e < n; e++) part += x[e] * y[e];
                sum += part;
            }
            j->dweight[k] = sum;
        }
}

static void run_dots(const op_call *c, const tensor *tokens, const tensor *y, const tensor *row) {
    rows_job j = { c, tokens, .y = y, .dweight = c->out[1].data };
    run_rows(j, row, tokens, dot_task);
}

static void CPU(dispatch)(const op_call *c) {
    run_spread(c, &c->in[0], &c->in[1], &c->in[2], NULL);
}
static void CPU(dispatch_bwd)(const op_call *c) { run_sum(c, &c->in[0], &c->in[1], NULL); }
static void CPU(combine)(const op_call *c) { run_sum(c, &c->in[0], &c->in[2], c->in[1].data); }
static void CPU(combine_bwd)(const op_call *c) {
    run_spread(c, &c->in[0], &c->in[3], &c->in[4], c->in[2].data);
    run_dots(c, &c->in[0], &c->in[1], &c->in[3]);
}
static void CPU(dispatch_weighted)(const op_call *c) {
    run_spread(c, &c->in[0], &c->in[2], &c->in[3], c->in[1].data);
}
static void CPU(dispatch_weighted_bwd)(const op_call *c) {
    if (c->out[0].data) run_sum(c, &c->in[0], &c->in[3], c->in[2].data);
    if (c->out[1].data) run_dots(c, &c->in[1], &c->in[0], &c->in[3]);
}

/* ---- rows between ranks ------------------------------------------------------------------------- */
static void CPU(expert_rows)(const op_call *c) {
    const int32_t *offset = c->in[0].data;
    int32_t *count = c->out[0].data;
    for (int64_t e = 0; e < c->out[0].dim[0]; e++) count[e] = offset[e + 1] - offset[e];
}

/* Also of gradients: the backward of one order is the other. */
static void CPU(group_rows)(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0];
    const int32_t *count = c->in[1].data;
    int64_t experts = c->in[1].dim[0], ranks = c->in[1].dim[1], grouped = 0, d = y->dim[1];
    bool to_groups = c->op == OP_GROUP_ROWS || c->op == OP_UNGROUP_ROWS_BWD;
    int32_t *offset = c->op == OP_GROUP_ROWS ? c->out[1].data : NULL;
    for (int64_t e = 0; e < experts; e++) {
        if (offset) offset[e] = (int32_t)grouped;
        for (int64_t j = 0; j < ranks; j++) {
            int64_t apart = 0,
                    n = count[e * ranks + j]; /* ranks before, and experts before of it */
            for (int64_t i = 0; i < experts * ranks; i++)
                if (i % ranks < j || (i % ranks == j && i / ranks < e)) apart += count[i];
            BUG_IF(n < 0 || grouped + n > y->dim[0] || apart + n > y->dim[0]);
            elems_copy(x, (to_groups ? apart : grouped) * d, y, (to_groups ? grouped : apart) * d,
                       n * d);
            grouped += n;
        }
    }
    if (offset) offset[experts] = (int32_t)grouped;
    elems_clear(y, grouped * d, (y->dim[0] - grouped) * d);
}

/* ---- GEMMs ----------------------------------------------------------------------------------------
 * One per expert, each shared by all threads. */
typedef struct expert_group {
    int64_t first, rows;
} expert_group;

static expert_group expert_group_of(const op_call *c, int64_t e) {
    const int32_t *offset = c->in[2].data;
    int64_t rows = c->in[0].dim[0], experts = c->attr.experts;
    if (!offset) return (expert_group){ e * (rows / experts), rows / experts };
    return (expert_group){ offset[e], offset[e + 1] - offset[e] };
}

static tensor rows_view(const tensor *t, int64_t first, int64_t rows) {
    int64_t dim[] = { rows, t->dim[1] };
    char *data = t->data;
    return tensor_of(data ? data + (size_t)(first * t->dim[1]) * dt_size(t->dt) : NULL, t->dt, 2,
                     dim);
}

/* The GEMM of one expert: y = x w^T, dx = dy w, or dw = dy^T x. */
static gemm expert_gemm(const op_call *c, int64_t e, expert_group g) {
    int64_t experts = c->attr.experts;
    tensor a = rows_view(&c->in[0], g.first, g.rows);
    if (c->op == OP_GROUPED_LINEAR_BWD_W) {
        tensor b = rows_view(&c->in[1], g.first, g.rows);
        int64_t f = c->out[0].dim[0] / experts;
        tensor dw = rows_view(&c->out[0], e * f, f);
        gemm m = CPU(gemm_of)(&a, true, &b, false, &dw);
        m.accumulate = c->accumulate & 1;
        return m;
    }
    int64_t f = c->in[1].dim[0] / experts;
    tensor w = rows_view(&c->in[1], e * f, f), y = rows_view(&c->out[0], g.first, g.rows);
    return CPU(gemm_of)(&a, false, &w, c->op == OP_GROUPED_LINEAR, &y);
}

static void run_expert(const op_call *c, int64_t e, expert_group g) {
    gemm m = expert_gemm(c, e, g);
    CPU(gemm_run)(&m, c->run->pool, c->run->workspace, c->run->workspace_bytes);
}

static void CPU(grouped_linear)(const op_call *c) {
    int64_t end = 0;
    for (int64_t e = 0; e < c->attr.experts; e++) {
        expert_group g = expert_group_of(c, e);
        if (g.rows) run_expert(c, e, g);
        end = g.first + g.rows;
    }
    elems_clear(&c->out[0], end * c->out[0].dim[1], (c->out[0].dim[0] - end) * c->out[0].dim[1]);
}

static void CPU(grouped_linear_bwd_w)(const op_call *c) {
    int64_t f = c->out[0].dim[0] / c->attr.experts;
    for (int64_t e = 0; e < c->attr.experts; e++) {
        expert_group g = expert_group_of(c, e);
        if (g.rows)
            run_expert(c, e, g);
        else if (!(c->accumulate & 1))
            elems_clear(&c->out[0], e * f * c->out[0].dim[1], f * c->out[0].dim[1]);
    }
}

/* An expert may have any number of rows. */
static size_t CPU(grouped_workspace)(const op_backend *b, const op_call *c, int threads) {
    gemm m = expert_gemm(c, 0, (expert_group){ 0, c->in[0].dim[0] });
    return CPU(gemm_workspace_most)(&m, threads);
}

/* ---- biases ------------------------------------------------------------------------------------
 * Forward: a task per run of rows. Backward: one per expert and block of columns, which adds rows in order. */
typedef struct bias_job {
    const op_call *c;
    const tensor *y, *z; /* [M, F]; of backward dz, dy */
    const int32_t *offset;
    float *db;
    int64_t rows, f, each, blocks;
} bias_job;

static bias_job bias_job_of(const op_call *c) {
    const tensor *y = &c->in[0];
    return (bias_job){ .c = c,
                       .y = y,
                       .z = &c->out[0],
                       .offset = c->in[1].data,
                       .rows = y->dim[0],
                       .f = y->dim[1],
                       .each = rows_per_task(y->dim[1]),
                       .blocks = ceil_div(y->dim[1], BLOCK) };
}

static int64_t first_of_expert(const bias_job *j, int64_t e) {
    return j->offset ? j->offset[e] : e * (j->rows / j->c->attr.experts);
}

static void add_bias_task(void *ctx, int64_t i, int worker) {
    const bias_job *j = ctx;
    const tensor *b = &j->c->in[2];
    bool adds = j->c->op == OP_EXPERT_BIAS && b->data;
    float y_tmp[BLOCK], b_tmp[BLOCK], out[BLOCK];
    span rows = span_of(i, j->each, j->rows);
    int64_t e = 0, experts = j->c->attr.experts;
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        while (e < experts && row >= first_of_expert(j, e + 1)) e++;
        for (int64_t k = 0; k < j->f; k += BLOCK) {
            int64_t m = MIN(BLOCK, j->f - k), at = row * j->f + k;
            const float *y = elems_get(j->y, at, m, y_tmp);
            if (adds && e < experts) {
                const float *own = elems_get(b, e * j->f + k, m, b_tmp);
                for (int64_t n = 0; n < m; n++) out[n] = y[n] + own[n];
                y = out;
            }
            elems_put(j->z, at, m, y);
        }
    }
}

static void sum_bias_task(void *ctx, int64_t i, int worker) {
    const bias_job *j = ctx;
    int64_t e = i / j->blocks, k = i % j->blocks * BLOCK, m = MIN(BLOCK, j->f - k);
    float sum[BLOCK] = { 0 }, tmp[BLOCK], *db = j->db + e * j->f + k;
    if (j->c->accumulate & 2) memcpy(sum, db, (size_t)m * sizeof *db);
    for (int64_t row = first_of_expert(j, e); row < first_of_expert(j, e + 1); row++) {
        const float *dz = elems_get(j->y, row * j->f + k, m, tmp);
        for (int64_t n = 0; n < m; n++) sum[n] += dz[n];
    }
    memcpy(db, sum, (size_t)m * sizeof *db);
}

static void CPU(expert_bias)(const op_call *c) {
    bias_job j = bias_job_of(c);
    bool adds = c->op == OP_EXPERT_BIAS && c->in[2].data, apart = j.z->data != j.y->data;
    if (j.z->data && (adds || apart))
        pool_run(c->run->pool, ceil_div(j.rows, j.each), add_bias_task, &j);
    j.db = c->op == OP_EXPERT_BIAS_BWD ? c->out[1].data : NULL;
    if (j.db) pool_run(c->run->pool, c->attr.experts * j.blocks, sum_bias_task, &j);
}

KERNEL(DISPATCH_WEIGHTED, CPU(dispatch_weighted));
KERNEL(DISPATCH_WEIGHTED_BWD, CPU(dispatch_weighted_bwd));
KERNEL(COMBINE_SUM, CPU(dispatch_bwd)); /* each is the other's gradient */
KERNEL(COMBINE_SUM_BWD, CPU(dispatch));
KERNEL(EXPERT_BIAS, CPU(expert_bias), NULL, ATTR(EXPERTS));
KERNEL(EXPERT_BIAS_BWD, CPU(expert_bias), NULL, ATTR(EXPERTS));
KERNEL(EXPERT_ROWS, CPU(expert_rows));
KERNEL(GROUP_ROWS, CPU(group_rows));
KERNEL(GROUP_ROWS_BWD, CPU(group_rows));
KERNEL(UNGROUP_ROWS, CPU(group_rows));
KERNEL(UNGROUP_ROWS_BWD, CPU(group_rows));
KERNEL(DISPATCH, CPU(dispatch));
KERNEL(DISPATCH_BWD, CPU(dispatch_bwd));
KERNEL(COMBINE, CPU(combine));
KERNEL(COMBINE_BWD, CPU(combine_bwd));
KERNEL(GROUPED_LINEAR, CPU(grouped_linear), CPU(grouped_workspace), ATTR(EXPERTS));
KERNEL(GROUPED_LINEAR_BWD_X, CPU(grouped_linear), CPU(grouped_workspace), ATTR(EXPERTS));
KERNEL(GROUPED_LINEAR_BWD_W, CPU(grouped_linear_bwd_w), CPU(grouped_workspace), ATTR(EXPERTS));
