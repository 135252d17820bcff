/* y = x w^T + b and its gradients: each one product, with bias and GELU applied as tiles are
 * stored. The bias gradient, a sum over rows, is cut by columns. */
#include "cpu_internal.h"

#include <string.h>

/* x[N,K], w[M,K] -> y[N,M] */
static gemm forward(const op_call *c) {
    gemm g = CPU(gemm_of)(&c->in[0], false, &c->in[1], true, &c->out[0]);
    g.bias = c->in[2].data;
    g.bias_t = c->in[2].dt;
    g.gelu = c->op == OP_LINEAR_GELU;
    g.act = c->attr.act;
    g.pre = g.gelu ? c->out[1].data : NULL;
    return g;
}

/* dy[N,M], w[M,K] -> dx[N,K] */
static gemm backward_x(const op_call *c) {
    return CPU(gemm_of)(&c->in[0], false, &c->in[1], false, &c->out[0]);
}

/* dy[N,M], x[N,K] -> += dw[M,K] */
static gemm backward_w(const op_call *c) {
    gemm g = CPU(gemm_of)(&c->in[0], true, &c->in[1], false, &c->out[0]);
    g.accumulate = c->accumulate & 1;
    return g;
}

static gemm product_of(const op_call *c) {
    switch (c->op) {
    case OP_LINEAR_BWD_X: return backward_x(c);
    case OP_LINEAR_BWD_W: return backward_w(c);
    default: return forward(c);
    }
}

size_t CPU(linear_workspace)(const op_call *c, int threads) {
    gemm g = product_of(c);
    return CPU(gemm_workspace)(&g, threads);
}

static void run_product(const op_call *c) {
    gemm g = product_of(c);
    CPU(gemm_run)(&g, c->run->pool, c->run->workspace, c->run->workspace_bytes);
}

void CPU(linear)(const op_call *c) {
    const tensor *pre = &c->out[1];
    BUG_IF(c->op == OP_LINEAR_GELU && pre->data && pre->dt != c->out[0].dt);
    run_product(c);
}

void CPU(linear_bwd_x)(const op_call *c) { run_product(c); }

/* ---- the bias gradient ------------------------------------------------------------------------ */
enum { BIAS_COLS = 128, BIAS_ROWS = 64 };

/* Sums a block of columns: in runs of BIAS_ROWS rows, then the runs, which keeps the rounding
 * error of a long sum small. */
static void bias_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *dy = &c->in[0], *db = &c->out[1];
    int64_t rows = dy->dim[0], width = dy->dim[1], from = i * BIAS_COLS;
    int64_t cols = MIN(BIAS_COLS, width - from);
    float total[BIAS_COLS] = { 0 }, run[BIAS_COLS], row[BIAS_COLS] = { 0 };
    for (int64_t r0 = 0; r0 < rows; r0 += BIAS_ROWS) {
        memset(run, 0, sizeof run);
        for (int64_t r = r0; r < MIN(r0 + BIAS_ROWS, rows); r++) {
            const char *at = (const char *)dy->data + (r * width + from) * (int64_t)dt_size(dy->dt);
            CPU(to_f32)(dy->dt, at, row, cols);
            for (int j = 0; j < BIAS_COLS; j++) run[j] += row[j];
        }
        for (int j = 0; j < BIAS_COLS; j++) total[j] += run[j];
    }
    float *out = (float *)db->data + from;
    bool add = c->accumulate & 2;
    for (int64_t j = 0; j < cols; j++) out[j] = add ? out[j] + total[j] : total[j];
}

void CPU(linear_bwd_w)(const op_call *c) {
    run_product(c);
    if (!c->out[1].data) return;
    BUG_IF(c->out[1].dt != DT_F32);
    int64_t width = c->in[0].dim[1];
    pool_run(c->run->pool, (width + BIAS_COLS - 1) / BIAS_COLS, bias_task, (void *)(uintptr_t)c);
}
