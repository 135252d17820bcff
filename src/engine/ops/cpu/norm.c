/* RMS norm and layer norm, fused with the residual sum before them. One body serves both: an RMS
 * norm is a layer norm whose mean is taken to be 0. Bytes moved: each operand once. */
#include "norm.h"
#include "ops/op_table.h"

#include <math.h>
#include <string.h>

/* ---- workspace ----------------------------------------------------------------------------- */
norm_space CPU(norm_divide)(const op_call *c) {
    const tensor *x = &c->in[0]; /* [N, D] or [N, C] */
    norm_space s = { .rows = x->dim[0], .ld = (int64_t)align_up((size_t)x->dim[1], 16) };
    switch (c->op) {
    case OP_RMSNORM_BWD: s.width = s.ld; break;
    case OP_LAYERNORM_BWD: s.width = 2 * s.ld; break;
    case OP_MIX_NORM_BWD: s.width = 16; break; /* two sums, and the alignment of what follows */
    case OP_QKNORM_BWD:
    case OP_QKNORM_ROPE_WEIGHTED_BWD:
    case OP_QKNORM_BY_BWD: s.width = 2 * s.ld; break;
    default: break;
    }
    s.each = MAX(32, ceil_div(s.rows, 128));
    s.chunks = ceil_div(s.rows, s.each);
    return s;
}

static size_t partial_count(const norm_space *s) { return (size_t)(s->chunks * s->width); }

norm_space CPU(norm_space_of)(const op_call *c) {
    norm_space s = CPU(norm_divide)(c);
    s.partial = c->run->workspace;
    s.row = s.partial + partial_count(&s);
    return s;
}

size_t CPU(norm_workspace)(const op_backend *b, const op_call *c, int threads) {
    norm_space s = CPU(norm_divide)(c);
    return (partial_count(&s) + (size_t)(threads * NORM_ROWS * s.ld)) * sizeof(float);
}

typedef struct reduce_job {
    const norm_space *space;
    int64_t first, n;
    float *out;
    bool accumulate;
} reduce_job;

static void reduce_task(void *ctx, int64_t i, int worker) {
    const reduce_job *j = ctx;
    span cols = span_of(i, BLOCK, j->n);
    int64_t m = cols.hi - cols.lo;
    float sum[BLOCK] = { 0 };
    for (int64_t k = 0; k < j->space->chunks; k++) {
        const float *part = j->space->partial + k * j->space->width + j->first + cols.lo;
#pragma omp simd
        for (int64_t e = 0; e < m; e++) sum[e] += part[e];
    }
    float *out = j->out + cols.lo;
    if (j->accumulate) {
#pragma omp simd
        for (int64_t e = 0; e < m; e++) out[e] += sum[e];
    } else {
        memcpy(out, sum, (size_t)m * sizeof *out);
    }
}

void CPU(norm_reduce)(const op_call *c, const norm_space *s, int64_t first, int which) {
    const tensor *out = &c->out[which];
    if (!out->data) return;
    BUG_IF(out->dt != DT_F32);
    reduce_job j = { .space = s,
                     .first = first,
                     .n = tensor_count(out),
                     .out = out->data,
                     .accumulate = c->accumulate >> which & 1 };
    pool_run(c->run->pool, ceil_div(j.n, BLOCK), reduce_task, &j);
}

/* @return the weights of d columns in fp32, through tmp where they must be converted: 1 where there are none. */
const float *CPU(norm_weights)(const tensor *w, int64_t d, float *tmp) {
    if (w->data) return CPU(row_get)(w, 0, d, tmp);
    for (int64_t k = 0; k < d; k++) tmp[k] = 1;
    return tmp;
}

/* ---- rows of one type -------------------------------------------------------------------------- */
typedef struct norm_job {
    const op_call *c;
    norm_space space;
    int64_t n, d, each; /* each: rows per task forward, chunks per task backward */
    bool centered;      /* layer norm */
    dtype native; /* the type all activations share, when the row functions take it; else DT_NONE */
} norm_job;

static dtype norm_type(const tensor *const *t, int n) {
    dtype dt = t[0]->dt;
    for (int i = 0; i < n; i++)
        if (t[i]->data && t[i]->dt != dt) return DT_NONE;
    return dt == DT_F32 || dt == DT_BF16 ? dt : DT_NONE;
}

static void *row_data(const tensor *t, int64_t row, int64_t d) {
    return t->data ? (char *)t->data + (size_t)(row * d) * dt_size(t->dt) : NULL;
}
/* The i-th row after p, which may be NULL. */
LOOP_INLINE void *row_after(const void *p, int64_t i, size_t bytes) {
    return p ? (char *)p + (size_t)i * bytes : NULL;
}

/* ---- forward --------------------------------------------------------------------------------- */
typedef struct norm_rows {
    const void *x, *delta;
    void *r, *y;
    float *stat; /* [n] or [n, 2] */
    const float *w, *b;
    int64_t n;
} norm_rows;

/* The mean square of x - mean, computed from the differences. */
static float row_deviation(dtype t, const void *x, float mean, int64_t d) {
    double sum = 0;
    for (int64_t k = 0; k < d; k++) {
        float v = elem_get(t, x, k) - mean;
        sum += (double)v * v;
    }
    return (float)(sum / (double)d);
}

/* The statistics of a row, from its sums: it is multiplied by scale, then shift is added. Returned by value:
 * a load from memory would wait for all stores of the previous row. */
typedef struct norm_stat {
    float scale, shift;
} norm_stat;
static norm_stat row_statistics(const norm_job *j, dtype t, const void *x, float sum, float squares,
                                float *stat) {
    float d = (float)j->d, eps = j->c->attr.eps, square = squares / d;
    if (!j->centered) return (norm_stat){ .scale = stat[0] = 1 / sqrtf(square + eps) };
    float mean = sum / d, variance = square - mean * mean;
    /* a mean that is large beside the deviation cancels digits; below the bound at most 4 bits of 24 */
    if (!(square < 16 * variance)) variance = row_deviation(t, x, mean, j->d);
    norm_stat s = { .scale = 1 / sqrtf(variance + eps) };
    s.shift = -mean * s.scale;
    stat[0] = mean;
    stat[1] = s.scale;
    return s;
}

/* Each pass writes the result of row - 1 and sums up row. */
LOOP_INLINE void norm_block(norm_form f, const norm_job *j, const norm_rows *t) {
    size_t bytes = (size_t)j->d * elem_size(f.t);
    norm_finish o = { .x = NULL, .w = t->w, .b = t->b };
    for (int64_t row = 0; row <= t->n; row++) {
        float sum = 0;
        norm_next n = { .sum = &sum };
        if (row < t->n) {
            n.x = row_after(t->x, row, bytes);
            n.delta = row_after(t->delta, row, bytes);
            n.r = row_after(t->r, row, bytes);
            if (!f.delta && n.r && n.r != n.x) memcpy(n.r, n.x, bytes);
            if (!n.r) n.r = (void *)n.x; /* which is only read then */
        }
        float squares = norm_pass(f, n, o, j->d);
        if (row == t->n) break;
        norm_stat s =
            row_statistics(j, f.t, n.r, sum, squares, t->stat + row * (f.centered ? 2 : 1));
        o.x = t->y ? n.r : NULL;
        o.y = row_after(t->y, row, bytes);
        o.scale = s.scale;
        o.shift = s.shift;
    }
}

/* The loop of each form. */
#define BLOCK_OF(name, ...)                                                                        \
    static void name(const norm_job *j, const norm_rows *t) {                                      \
        norm_block((norm_form){ __VA_ARGS__ }, j, t);                                              \
    }
BLOCK_OF(rms_f32, DT_F32, false, false, false)
BLOCK_OF(rms_f32_sum, DT_F32, false, true, false)
BLOCK_OF(rms_bf16, DT_BF16, false, false, false)
BLOCK_OF(rms_bf16_sum, DT_BF16, false, true, false)
BLOCK_OF(layer_f32, DT_F32, true, false, false)
BLOCK_OF(layer_f32_bias, DT_F32, true, false, true)
BLOCK_OF(layer_f32_sum, DT_F32, true, true, false)
BLOCK_OF(layer_f32_sum_bias, DT_F32, true, true, true)
BLOCK_OF(layer_bf16, DT_BF16, true, false, false)
BLOCK_OF(layer_bf16_bias, DT_BF16, true, false, true)
BLOCK_OF(layer_bf16_sum, DT_BF16, true, true, false)
BLOCK_OF(layer_bf16_sum_bias, DT_BF16, true, true, true)
#undef BLOCK_OF

static void norm_rows_of(const norm_job *j, dtype t, const norm_rows *rows) {
    static void (*const rms[2][2])(const norm_job *j, const norm_rows *t) = {
        { rms_f32, rms_f32_sum },
        { rms_bf16, rms_bf16_sum },
    };
    static void (*const layer[2][2][2])(const norm_job *j, const norm_rows *t) = {
        { { layer_f32, layer_f32_bias }, { layer_f32_sum, layer_f32_sum_bias } },
        { { layer_bf16, layer_bf16_bias }, { layer_bf16_sum, layer_bf16_sum_bias } },
    };
    bool narrow = t == DT_BF16, delta = rows->delta != NULL;
    (j->centered ? layer[narrow][delta][rows->b != NULL] : rms[narrow][delta])(j, rows);
}

/* Any mixture of types: the row in fp32, with r rounded to its own type on the way. */
static void mixed_row(const norm_job *j, int64_t row, int worker, norm_rows t) {
    const tensor *dt = &j->c->in[1], *rt = &j->c->out[0], *yt = &j->c->out[1];
    float *tmp = norm_row(&j->space, worker, 0), *other = norm_row(&j->space, worker, 1);
    const float *x = CPU(row_get)(&j->c->in[0], row, j->d, tmp);
    if (rt->data) {
        const float *delta = dt->data ? CPU(row_get)(dt, row, j->d, other) : NULL;
#pragma omp simd
        for (int64_t k = 0; k < j->d; k++) tmp[k] = delta ? x[k] + delta[k] : x[k];
        CPU(row_put)(rt, row, j->d, tmp);
        x = CPU(row_get)(rt, row, j->d, tmp);
    }
    t.n = 1;
    t.x = x;
    t.y = yt->data ? CPU(row_at)(yt, row, j->d, other) : NULL;
    norm_rows_of(j, DT_F32, &t);
    if (yt->data) CPU(row_put)(yt, row, j->d, t.y);
}

static void norm_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const op_call *c = j->c;
    span rows = span_of(i, j->each, j->n);
    int64_t stats = j->centered ? 2 : 1;
    norm_rows t = { .w = CPU(norm_weights)(&c->in[2], j->d, norm_row(&j->space, worker, 2)) };
    if (j->centered && c->in[3].data)
        t.b = CPU(row_get)(&c->in[3], 0, j->d, norm_row(&j->space, worker, 3));
    t.stat = (float *)c->out[2].data + rows.lo * stats;
    if (j->native == DT_NONE) {
        for (int64_t row = rows.lo; row < rows.hi; row++, t.stat += stats)
            mixed_row(j, row, worker, t);
        return;
    }
    t.n = rows.hi - rows.lo;
    t.x = row_data(&c->in[0], rows.lo, j->d);
    t.delta = row_data(&c->in[1], rows.lo, j->d);
    t.r = row_data(&c->out[0], rows.lo, j->d);
    t.y = row_data(&c->out[1], rows.lo, j->d);
    norm_rows_of(j, j->native, &t);
}

static void norm_run(const op_call *c, bool centered) {
    const tensor *x = &c->in[0];
    norm_job j = { .c = c,
                   .space = CPU(norm_space_of)(c),
                   .n = x->dim[0],
                   .d = x->dim[1],
                   .each = bandwidth_rows(x->dim[0], x->dim[1], c->run->pool),
                   .centered = centered };
    j.native = norm_type((const tensor *[]){ x, &c->in[1], &c->out[0], &c->out[1] }, 4);
    BUG_IF(c->in[1].data && !c->out[0].data); /* the sum must be kept somewhere */
    BUG_IF(c->out[2].dt != DT_F32);
    pool_run(c->run->pool, ceil_div(j.n, j.each), norm_task, &j);
}

static void CPU(rmsnorm)(const op_call *c) { norm_run(c, false); }
static void CPU(layernorm)(const op_call *c) { norm_run(c, true); }

/* ---- backward -------------------------------------------------------------------------------- */
typedef struct back_rows {
    const void *dy, *x, *dr;
    void *dx;
    const float *stat; /* [n] or [n, 2] */
    norm_grad p;
    int64_t n;
} back_rows;

LOOP_INLINE void back_block(norm_form f, const norm_job *j, const back_rows *t) {
    size_t bytes = (size_t)j->d * elem_size(f.t);
    for (int64_t row = 0; row < t->n; row++) {
        const float *stat = t->stat + row * (f.centered ? 2 : 1);
        norm_back b = { .dy = row_after(t->dy, row, bytes),
                        .x = row_after(t->x, row, bytes),
                        .dr = row_after(t->dr, row, bytes),
                        .dx = row_after(t->dx, row, bytes),
                        .scale = f.centered ? stat[1] : stat[0],
                        .shift = f.centered ? -stat[0] * stat[1] : 0 };
        back_sums(f, &b, t->p, j->d);
        back_finish(f, &b, t->p.w, j->d);
    }
}

#define BLOCK_OF(name, ...)                                                                        \
    static void name(const norm_job *j, const back_rows *t) {                                      \
        back_block((norm_form){ __VA_ARGS__ }, j, t);                                              \
    }
BLOCK_OF(rms_back_f32, DT_F32, false, false, false)
BLOCK_OF(rms_back_f32_sum, DT_F32, false, false, true)
BLOCK_OF(rms_back_bf16, DT_BF16, false, false, false)
BLOCK_OF(rms_back_bf16_sum, DT_BF16, false, false, true)
BLOCK_OF(layer_back_f32, DT_F32, true, false, false)
BLOCK_OF(layer_back_f32_sum, DT_F32, true, false, true)
BLOCK_OF(layer_back_bf16, DT_BF16, true, false, false)
BLOCK_OF(layer_back_bf16_sum, DT_BF16, true, false, true)
#undef BLOCK_OF

static void back_rows_of(const norm_job *j, dtype t, const back_rows *rows) {
    static void (*const of[2][2][2])(const norm_job *j, const back_rows *t) = {
        { { rms_back_f32, rms_back_f32_sum }, { rms_back_bf16, rms_back_bf16_sum } },
        { { layer_back_f32, layer_back_f32_sum }, { layer_back_bf16, layer_back_bf16_sum } },
    };
    of[j->centered][t == DT_BF16][rows->dr != NULL](j, rows);
}

static void mixed_row_bwd(const norm_job *j, int64_t row, int worker, back_rows t) {
    const tensor *dyt = &j->c->in[0], *rt = &j->c->in[1], *drt = &j->c->in[4], *dxt = &j->c->out[0];
    const norm_space *s = &j->space;
    t.n = 1;
    t.dy = CPU(row_get)(dyt, row, j->d, norm_row(s, worker, 0));
    t.x = CPU(row_get)(rt, row, j->d, norm_row(s, worker, 1));
    t.dr = drt->data ? CPU(row_get)(drt, row, j->d, norm_row(s, worker, 3)) : NULL;
    t.dx = CPU(row_at)(dxt, row, j->d, norm_row(s, worker, 4));
    back_rows_of(j, DT_F32, &t);
    CPU(row_put)(dxt, row, j->d, t.dx);
}

/* The rows of one chunk, into its own weight gradient. */
static void chunk_bwd(const norm_job *j, int64_t chunk, int worker, const float *w) {
    const op_call *c = j->c;
    const norm_space *s = &j->space;
    span rows = span_of(chunk, s->each, j->n);
    int64_t stats = j->centered ? 2 : 1;
    back_rows t = { .stat = (const float *)c->in[2].data + rows.lo * stats,
                    .p = { .w = w, .dw = s->partial + chunk * s->width } };
    t.p.db = t.p.dw + s->ld;
    memset(t.p.dw, 0, (size_t)s->width * sizeof *t.p.dw);
    if (j->native == DT_NONE) {
        for (int64_t row = rows.lo; row < rows.hi; row++, t.stat += stats)
            mixed_row_bwd(j, row, worker, t);
        return;
    }
    t.n = rows.hi - rows.lo;
    t.dy = row_data(&c->in[0], rows.lo, j->d);
    t.x = row_data(&c->in[1], rows.lo, j->d);
    t.dr = row_data(&c->in[4], rows.lo, j->d);
    t.dx = row_data(&c->out[0], rows.lo, j->d);
    back_rows_of(j, j->native, &t);
}

static void norm_bwd_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const float *w = CPU(norm_weights)(&j->c->in[3], j->d, norm_row(&j->space, worker, 2));
    span chunks = span_of(i, j->each, j->space.chunks);
    for (int64_t k = chunks.lo; k < chunks.hi; k++) chunk_bwd(j, k, worker, w);
}

static void norm_bwd_run(const op_call *c, bool centered) {
    const tensor *dy = &c->in[0];
    norm_job j = { .c = c,
                   .space = CPU(norm_space_of)(c),
                   .n = dy->dim[0],
                   .d = dy->dim[1],
                   .centered = centered };
    j.each = ceil_div(bandwidth_rows(j.n, j.d, c->run->pool), j.space.each);
    j.native = norm_type((const tensor *[]){ dy, &c->in[1], &c->in[4], &c->out[0] }, 4);
    BUG_IF(c->in[2].dt != DT_F32);
    pool_run(c->run->pool, ceil_div(j.space.chunks, j.each), norm_bwd_task, &j);
    CPU(norm_reduce)(c, &j.space, 0, 1);
    if (centered) CPU(norm_reduce)(c, &j.space, j.space.ld, 2);
}

static void CPU(rmsnorm_bwd)(const op_call *c) { norm_bwd_run(c, false); }
static void CPU(layernorm_bwd)(const op_call *c) { norm_bwd_run(c, true); }

KERNEL(RMSNORM, CPU(rmsnorm), CPU(norm_workspace), ATTR(EPS));
KERNEL(RMSNORM_BWD, CPU(rmsnorm_bwd), CPU(norm_workspace));
KERNEL(LAYERNORM, CPU(layernorm), CPU(norm_workspace), ATTR(EPS));
KERNEL(LAYERNORM_BWD, CPU(layernorm_bwd), CPU(norm_workspace));
