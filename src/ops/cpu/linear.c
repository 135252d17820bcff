/* y = x w^T + b and its gradients: each one product, with bias and GELU applied as tiles are
 * stored. The bias gradient, a sum over rows, is cut by columns. */
#include "chunks.h"

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

/* ---- the bias gradient ------------------------------------------------------------------------
 * The rows of dy are cut into spans and its columns into blocks, a task each; then the sums of the
 * spans are added. Within a span rows are added in runs, which keeps the rounding error of a long
 * sum small. The cuts depend on the shape alone. */
enum { BIAS_COLS = 128, BIAS_ROWS = 64, BIAS_SPAN = 8 * BIAS_ROWS };

typedef struct bias_run {
    const op_call *call;
    int64_t rows, width, spans, blocks;
    float *sums; /* [spans, width] */
} bias_run;

static bias_run bias_make(const op_call *c) {
    bias_run b = { .call = c, .rows = c->in[0].dim[0], .width = c->in[0].dim[1] };
    b.spans = ceil_div(b.rows, BIAS_SPAN);
    b.blocks = ceil_div(b.width, BIAS_COLS);
    return b;
}

static void span_task(void *ctx, int64_t i, int worker) {
    const bias_run *b = ctx;
    const tensor *dy = &b->call->in[0];
    int64_t from = i % b->blocks * BIAS_COLS, cols = MIN(BIAS_COLS, b->width - from);
    int64_t first = i / b->blocks * BIAS_SPAN, end = MIN(first + BIAS_SPAN, b->rows);
    float total[BIAS_COLS] = { 0 }, run[BIAS_COLS], row[BIAS_COLS] = { 0 };
    for (int64_t r0 = first; r0 < end; r0 += BIAS_ROWS) {
        memset(run, 0, sizeof run);
        for (int64_t r = r0; r < MIN(r0 + BIAS_ROWS, end); r++) {
            int64_t at = r * b->width + from;
            CPU(to_f32)(dy->dt, (const char *)dy->data + at * (int64_t)dt_size(dy->dt), row, cols);
            for (int j = 0; j < BIAS_COLS; j++) run[j] += row[j];
        }
        for (int j = 0; j < BIAS_COLS; j++) total[j] += run[j];
    }
    memcpy(b->sums + i / b->blocks * b->width + from, total, (size_t)cols * sizeof *total);
}

static void block_task(void *ctx, int64_t i, int worker) {
    const bias_run *b = ctx;
    int64_t from = i * BIAS_COLS, cols = MIN(BIAS_COLS, b->width - from);
    float *out = (float *)b->call->out[1].data + from;
    if (!(b->call->accumulate & 2)) memset(out, 0, (size_t)cols * sizeof *out);
    for (int64_t s = 0; s < b->spans; s++)
        for (int64_t j = 0; j < cols; j++) out[j] += b->sums[s * b->width + from + j];
}

void CPU(linear_bwd_w)(const op_call *c) {
    run_product(c);
    if (!c->out[1].data) return;
    BUG_IF(c->out[1].dt != DT_F32);
    bias_run b = bias_make(c);
    b.sums = (float *)align_up((uintptr_t)c->run->workspace, 64);
    pool_run(c->run->pool, b.spans * b.blocks, span_task, &b);
    pool_run(c->run->pool, b.blocks, block_task, &b);
}

size_t CPU(linear_workspace)(const op_call *c, int threads) {
    gemm g = product_of(c);
    size_t product = CPU(gemm_workspace)(&g, threads);
    if (c->op != OP_LINEAR_BWD_W) return product;
    bias_run b = bias_make(c);
    return MAX(product, (size_t)(b.spans * b.width) * sizeof(float) + 64);
}
