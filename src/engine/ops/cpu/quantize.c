/* Quantizes tensors to fp8, and writes their transposes. CPUs have no fp8 GEMM: this is the reference for
 * the GPU, and lets fp8 programs run anywhere. Everything is read twice, once for the largest magnitude;
 * an activation is computed into the workspace first.
 *
 * Workspace: | x, if it is an activation, fp32 | column sums | */
#include "chunks.h"
#include "ops/op_table.h"

#include <math.h>
#include <string.h>

enum { ROWS = 16, AMAX_PARTS = 128 };

/* ---- the largest finite magnitude -------------------------------------------------------------- */
typedef struct amax_job {
    const tensor *x;
    int64_t n, each;
    uint32_t part[AMAX_PARTS]; /* bits: magnitudes are ordered as their bits */
} amax_job;

static void amax_task(void *ctx, int64_t i, int worker) {
    amax_job *j = ctx;
    span e = span_of(i, j->each, j->n);
    float tmp[BLOCK];
    uint32_t most = 0, bits[BLOCK];
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        memcpy(bits, elems_get(j->x, at, m, tmp), (size_t)m * sizeof *bits);
        for (int64_t k = 0; k < m; k++) {
            uint32_t u = bits[k] & 0x7fffffff;
            u = u < 0x7f800000 ? u : 0;
            most = u > most ? u : most;
        }
    }
    j->part[i] = most;
}

static float amax_of(const op_call *c, const tensor *x) {
    amax_job j = { .x = x, .n = tensor_count(x) };
    j.each = MAX(TASK_ELEMENTS, ceil_div(j.n, AMAX_PARTS));
    int64_t parts = ceil_div(j.n, j.each);
    pool_run(c->run->pool, parts, amax_task, &j);
    uint32_t most = 0;
    for (int64_t i = 0; i < parts; i++) most = MAX(most, j.part[i]);
    float amax;
    memcpy(&amax, &most, sizeof amax);
    return amax;
}

/* Updates the row. @return the scale to quantize with. */
static float update_row(const op_call *c, const tensor *x, float *row) {
    if (c->attr.fp8.given) return row[FP8_SCALE];
    bool delayed = fp8_keeps_history(c->attr.fp8.recipe), unset = !delayed || row[FP8_SCALE] == 0;
    if (c->attr.fp8.measure ? unset : delayed || !c->attr.fp8.measured) {
        float amax = amax_of(c, x);
        row[FP8_AMAX] = delayed && row[FP8_AMAX] > amax ? row[FP8_AMAX] : amax;
    }
    if (unset && !c->attr.fp8.measure) {
        row[FP8_TOP] = fp8_top(c->out[c->out[0].data ? 0 : 1].dt);
        fp8_set_scale(row, fp8_scale(row[FP8_AMAX], row[FP8_TOP]));
    }
    return row[FP8_SCALE];
}

/* ---- fp8 --------------------------------------------------------------------------------------- */
typedef struct quantize_job {
    const tensor *x, *q, *qt;
    float scale;
} quantize_job;

/* A task has ROWS rows: a column of them is contiguous in the transpose. */
static void quantize_task(void *ctx, int64_t i, int worker) {
    const quantize_job *j = ctx;
    const tensor *q = j->q, *qt = j->qt;
    int64_t n = j->x->dim[0], width = j->x->dim[1];
    span rows = span_of(i, ROWS, n);
    float tmp[BLOCK], scaled[BLOCK];
    uint8_t bytes[ROWS][BLOCK];
    for (int64_t col = 0; col < width; col += BLOCK) {
        int64_t cols = MIN(BLOCK, width - col);
        for (int64_t r = rows.lo; r < rows.hi; r++) {
            uint8_t *line = bytes[r - rows.lo];
            const float *x = elems_get(j->x, r * width + col, cols, tmp);
            for (int64_t k = 0; k < cols; k++) scaled[k] = isfinite(x[k]) ? x[k] * j->scale : NAN;
            dt_from_f32(q->data ? q->dt : qt->dt, scaled, line, cols);
            if (q->data) memcpy((uint8_t *)q->data + r * width + col, line, (size_t)cols);
        }
        if (!qt->data) continue;
        for (int64_t k = 0; k < cols; k++)
            for (int64_t r = rows.lo; r < rows.hi; r++)
                ((uint8_t *)qt->data)[(col + k) * n + r] = bytes[r - rows.lo][k];
    }
}

/* ---- the tensor that is quantized -------------------------------------------------------------- */
/* The rows of a norm's operand, each times its factor. */
typedef struct scale_job {
    const op_call *c;
    float *to;
} scale_job;
static void norm_row_task(void *ctx, int64_t i, int worker) {
    const scale_job *j = ctx;
    const tensor *x = &j->c->in[0];
    float by = ((const float *)j->c->in[2].data)[i], tmp[BLOCK];
    for (int64_t col = 0; col < x->dim[1]; col += BLOCK) {
        int64_t m = MIN(BLOCK, x->dim[1] - col), at = i * x->dim[1] + col;
        const float *v = elems_get(x, at, m, tmp);
        for (int64_t k = 0; k < m; k++) j->to[at + k] = v[k] * by;
    }
}

static void compute_x(const op_call *c, const tensor *x) {
    op_call by = { .attr = c->attr, .in = { c->in[0], c->in[2] }, .out = { *x }, .run = c->run };
    scale_job rows = { c, x->data };
    switch (c->op) {
    case OP_QUANTIZE_SWIGLU: CPU(swiglu)(&by); break;
    case OP_QUANTIZE_SWIGLU_BWD: CPU(swiglu_bwd)(&by); break;
    case OP_QUANTIZE_GELU: CPU(gelu)(&by); break;
    case OP_QUANTIZE_GELU_BWD: CPU(gelu_bwd)(&by); break;
    case OP_QUANTIZE_NORM: pool_run(c->run->pool, x->dim[0], norm_row_task, &rows); break;
    default: BUG("not a fused quantize op");
    }
}

static tensor shape_of_x(const op_call *c) {
    tensor x = c->in[0];
    if (c->op == OP_QUANTIZE) return x;
    x.dt = DT_F32;
    if (c->op == OP_QUANTIZE_SWIGLU) x.dim[1] /= 2;
    if (c->op == OP_QUANTIZE_SWIGLU_BWD) x.dim[1] *= 2;
    return x;
}

static size_t x_bytes(const op_call *c) {
    tensor x = shape_of_x(c);
    return c->op == OP_QUANTIZE ? 0 : align_up(tensor_bytes(&x), 64) + 64;
}

static size_t CPU(quantize_workspace)(const op_backend *b, const op_call *c, int threads) {
    tensor x = shape_of_x(c);
    return x_bytes(c) + (c->out[2].dt ? CPU(sum_columns_bytes)(x.dim[0], x.dim[1]) : 0);
}

void CPU(quantize)(const op_call *c) {
    tensor x = shape_of_x(c);
    if (c->op != OP_QUANTIZE) {
        x.data = (void *)align_up((uintptr_t)c->run->workspace, 64);
        compute_x(c, &x);
    }
    quantize_job j = { &x, &c->out[0], &c->out[1], update_row(c, &x, c->in[1].data) };
    if (c->attr.fp8.measure) return;
    pool_run(c->run->pool, ceil_div(x.dim[0], ROWS), quantize_task, &j);
    if (c->out[2].data) CPU(sum_columns)
    (&x, &c->out[2], c->accumulate & 4, c->run->pool, (char *)c->run->workspace + x_bytes(c));
}

static void CPU(fp8_commit)(const op_call *c) {
    float *rows = c->out[0].data;
    for (int64_t i = 0; i < c->out[0].dim[0]; i++) fp8_commit_row(rows + i * FP8_ROW);
}

KERNEL(QUANTIZE, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8);
KERNEL(QUANTIZE_SWIGLU, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8);
KERNEL(QUANTIZE_SWIGLU_BWD, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8);
KERNEL(QUANTIZE_GELU, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 | ATTR(ACT));
KERNEL(QUANTIZE_GELU_BWD, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8 | ATTR(ACT));
KERNEL(QUANTIZE_NORM, CPU(quantize), CPU(quantize_workspace), ATTRS_FP8);
KERNEL(FP8_COMMIT, CPU(fp8_commit));
