/* y = x w^T + b and its gradients: one GEMM each, with bias and GELU applied as tiles are stored. The bias
 * gradient is a sum over rows. */
#include "chunks.h"
#include "ops/op_table.h"

#include <string.h>

static bool reads_fp8(const op_call *c) { return dt_is_fp8(c->in[0].dt); }

/* x[N,K], w[M,K] -> y[N,M] */
static gemm forward_gemm(const op_call *c) {
    gemm g = CPU(gemm_of)(&c->in[0], false, &c->in[1], true, &c->out[0]);
    g.bias = c->in[2].data;
    g.bias_t = c->in[2].dt;
    g.gelu = c->op == OP_LINEAR_GELU;
    g.act = c->attr.act;
    g.pre = g.gelu ? c->out[1].data : NULL;
    return g;
}

static gemm gemm_of_op(const op_call *c) {
    gemm g;
    switch (c->op) {
    case OP_LINEAR_BWD_X:
    case OP_LINEAR_BWD_X_GELU: /* dy[N,M], w[M,K] -> dx[N,K]; in fp8 w is stored transposed */
        return CPU(gemm_of)(&c->in[0], false, &c->in[1], reads_fp8(c), &c->out[0]);
    case OP_LINEAR_BWD_W: /* dy[N,M], x[N,K] -> += dw[M,K]; in fp8 both are stored transposed */
        g = CPU(gemm_of)(&c->in[0], !reads_fp8(c), &c->in[1], reads_fp8(c), &c->out[0]);
        g.accumulate = c->accumulate & 1;
        return g;
    default: return forward_gemm(c);
    }
}

static void run_gemm(const op_call *c) {
    gemm g = gemm_of_op(c);
    const float *a = c->in[3].data, *b = c->in[4].data; /* rows, ops/fp8.h */
    /* from stored values to real ones; 0, for a tensor of zeros: gemm reads it as 1 */
    if (reads_fp8(c)) g.alpha = a[FP8_UNSCALE] * b[FP8_UNSCALE];
    CPU(gemm_run)(&g, c->run->pool, c->run->workspace, c->run->workspace_bytes);
}

static void CPU(linear)(const op_call *c) {
    const tensor *pre = &c->out[1];
    BUG_IF(c->op == OP_LINEAR_GELU && pre->data && pre->dt != c->out[0].dt);
    run_gemm(c);
}

static void CPU(linear_bwd_x)(const op_call *c) { run_gemm(c); }

static void CPU(linear_bwd_x_gelu)(const op_call *c) {
    run_gemm(c);
    op_call slope = *c; /* in place */
    slope.in[0] = c->out[0];
    slope.in[1] = c->in[2];
    CPU(gelu_bwd)(&slope);
}

/* ---- the bias gradient ------------------------------------------------------------------------
 * The rows of dy are split into spans and its columns into blocks, a task for each pair; then the sums of
 * the spans are added. Within a span BIAS_ROWS rows at a time are added up, which keeps the rounding error
 * of a long sum small. The split depends on the shape alone: deterministic. */
enum { BIAS_COLS = 128, BIAS_ROWS = 64, BIAS_SPAN = 8 * BIAS_ROWS };

typedef struct bias_run {
    const tensor *dy;
    float *out;
    bool add;
    int64_t rows, width, spans, blocks;
    float *sums; /* [spans, width] */
} bias_run;

static void span_task(void *ctx, int64_t i, int worker) {
    const bias_run *b = ctx;
    const tensor *dy = b->dy;
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
    float *out = b->out + from;
    if (!b->add) memset(out, 0, (size_t)cols * sizeof *out);
    for (int64_t s = 0; s < b->spans; s++)
        for (int64_t j = 0; j < cols; j++) out[j] += b->sums[s * b->width + from + j];
}

void CPU(sum_columns)(const tensor *dy, const tensor *out, bool add, pool *p, void *workspace) {
    BUG_IF(out->dt != DT_F32);
    bias_run b = { dy, out->data, add, dy->dim[0], dy->dim[1] };
    b.spans = ceil_div(b.rows, BIAS_SPAN);
    b.blocks = ceil_div(b.width, BIAS_COLS);
    b.sums = (float *)align_up((uintptr_t)workspace, 64);
    pool_run(p, b.spans * b.blocks, span_task, &b);
    pool_run(p, b.blocks, block_task, &b);
}

size_t CPU(sum_columns_bytes)(int64_t rows, int64_t cols) {
    return (size_t)(ceil_div(rows, BIAS_SPAN) * cols) * sizeof(float) + 64;
}

static void CPU(linear_bwd_w)(const op_call *c) {
    run_gemm(c);
    if (c->out[1].data)
        CPU(sum_columns)(&c->in[0], &c->out[1], c->accumulate & 2, c->run->pool, c->run->workspace);
}

static size_t CPU(linear_workspace)(const op_backend *b, const op_call *c, int threads) {
    gemm g = gemm_of_op(c);
    size_t bytes = CPU(gemm_workspace)(&g, threads);
    if (c->op != OP_LINEAR_BWD_W) return bytes;
    return MAX(bytes, CPU(sum_columns_bytes)(c->in[0].dim[0], c->in[0].dim[1]));
}

KERNEL(LINEAR, CPU(linear), CPU(linear_workspace), ATTRS_FP8);
KERNEL(LINEAR_GELU, CPU(linear), CPU(linear_workspace), ATTRS_FP8 | ATTR(ACT));
KERNEL(LINEAR_BWD_X, CPU(linear_bwd_x), CPU(linear_workspace), ATTRS_FP8);
KERNEL(LINEAR_BWD_X_GELU, CPU(linear_bwd_x_gelu), CPU(linear_workspace), ATTR(ACT));
KERNEL(LINEAR_BWD_W, CPU(linear_bwd_w), CPU(linear_workspace), ATTRS_FP8);
