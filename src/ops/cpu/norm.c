/* RMS norm and layer norm, fused with the residual sum before them. One body serves both: an RMS
 * norm is a layer norm whose mean is taken to be 0. Bytes moved: each operand once. */
#include "norm.h"

#include <math.h>
#include <string.h>

/* ---- workspace ----------------------------------------------------------------------------- */
norm_space CPU(norm_divide)(const op_call *c) {
    const tensor *x = &c->in[0]; /* [N, D] or [N, C] */
    norm_space s = { .rows = x->dim[0], .ld = (int64_t)align_up((size_t)x->dim[1], 16) };
    switch (c->op) {
    case OP_RMSNORM_BWD: s.width = s.ld; break;
    case OP_LAYERNORM_BWD: s.width = 2 * s.ld; break;
    case OP_QKNORM_BWD: s.width = 2 * s.ld; break;
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

size_t CPU(norm_workspace)(const op_call *c, int threads) {
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

/* ---- forward --------------------------------------------------------------------------------- */
typedef struct norm_job {
    const op_call *c;
    norm_space space;
    int64_t n, d, each;
    bool centred; /* layer norm */
    dtype native; /* the type all activations share, when the row functions take it; else DT_NONE */
} norm_job;

static dtype common_type(const tensor *const *t, int n) {
    dtype dt = t[0]->dt;
    for (int i = 0; i < n; i++)
        if (t[i]->data && t[i]->dt != dt) return DT_NONE;
    return dt == DT_F32 || dt == DT_BF16 ? dt : DT_NONE;
}

/* One pass, for the type at hand. */
static float pass_by_type(dtype t, bool centred, norm_next n, norm_out o, int64_t d) {
    if (t == DT_F32)
        return centred ? norm_pass(DT_F32, n, o, true, d) : norm_pass(DT_F32, n, o, false, d);
    return centred ? norm_pass(DT_BF16, n, o, true, d) : norm_pass(DT_BF16, n, o, false, d);
}

/* From the sum over a row to its statistics. */
static void row_statistics(const norm_job *j, dtype t, float sum, norm_out *o) {
    float d = (float)j->d, squares = sum;
    if (j->centred) {
        o->mean = sum / d;
        squares = t == DT_F32 ? row_deviation(DT_F32, o->x, o->mean, j->d)
                              : row_deviation(DT_BF16, o->x, o->mean, j->d);
    }
    o->scale = 1 / sqrtf(squares / d + j->c->attr.eps);
}

static void store_statistics(const norm_job *j, int64_t row, const norm_out *o) {
    float *stat = j->c->out[2].data; /* [N] or [N, 2] */
    if (j->centred) stat[2 * row] = o->mean;
    stat[j->centred ? 2 * row + 1 : row] = o->scale;
}

static void *row_data(const tensor *t, int64_t row, int64_t d) {
    return t->data ? (char *)t->data + (size_t)(row * d) * dt_size(t->dt) : NULL;
}

/* All activations of one type: each pass finishes row - 1 and sums up row. */
static void native_rows(const norm_job *j, span rows, const float *w, const float *b) {
    const op_call *c = j->c;
    norm_out o = { .x = NULL };
    for (int64_t row = rows.lo; row <= rows.hi; row++) {
        norm_next n = { .x = NULL };
        if (row < rows.hi) {
            n.x = row_data(&c->in[0], row, j->d);
            n.delta = row_data(&c->in[1], row, j->d);
            n.r = row_data(&c->out[0], row, j->d);
            if (n.r == n.x && !n.delta) n.r = NULL; /* there already */
        }
        float sum = pass_by_type(j->native, j->centred, n, o, j->d);
        if (row == rows.hi) break;
        o = (norm_out){
            .x = n.r ? n.r : n.x, .y = row_data(&c->out[1], row, j->d), .w = w, .b = b
        };
        row_statistics(j, j->native, sum, &o);
        store_statistics(j, row, &o);
    }
}

/* Any mixture of types: the row in fp32, with r rounded to its own type on the way. */
static void mixed_row(const norm_job *j, int64_t row, int worker, const float *w, const float *b) {
    const tensor *xt = &j->c->in[0], *dt = &j->c->in[1], *rt = &j->c->out[0], *yt = &j->c->out[1];
    float *tmp = norm_row(&j->space, worker, 0), *other = norm_row(&j->space, worker, 1);
    const float *x = CPU(row_get)(xt, row, j->d, tmp);
    if (rt->data) {
        const float *delta = dt->data ? CPU(row_get)(dt, row, j->d, other) : NULL;
#pragma omp simd
        for (int64_t k = 0; k < j->d; k++) tmp[k] = delta ? x[k] + delta[k] : x[k];
        CPU(row_put)(rt, row, j->d, tmp);
        x = CPU(row_get)(rt, row, j->d, tmp);
    }
    norm_out o = { .x = x, .y = CPU(row_at)(yt, row, j->d, other), .w = w, .b = b },
             none = { .x = NULL };
    float sum = pass_by_type(DT_F32, j->centred, (norm_next){ .x = x }, none, j->d);
    row_statistics(j, DT_F32, sum, &o);
    store_statistics(j, row, &o);
    pass_by_type(DT_F32, j->centred, (norm_next){ .x = NULL }, o, j->d);
    CPU(row_put)(yt, row, j->d, o.y);
}

static void norm_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const tensor *bt = &j->c->in[3];
    const float *w = CPU(row_get)(&j->c->in[2], 0, j->d, norm_row(&j->space, worker, 2)), *b = NULL;
    if (j->centred && bt->data) b = CPU(row_get)(bt, 0, j->d, norm_row(&j->space, worker, 3));
    span rows = span_of(i, j->each, j->n);
    if (j->native != DT_NONE) {
        native_rows(j, rows, w, b);
        return;
    }
    for (int64_t row = rows.lo; row < rows.hi; row++) mixed_row(j, row, worker, w, b);
}

static void norm_run(const op_call *c, bool centred) {
    const tensor *x = &c->in[0];
    norm_job j = { .c = c,
                   .space = CPU(norm_space_of)(c),
                   .n = x->dim[0],
                   .d = x->dim[1],
                   .each = rows_per_task(x->dim[1]),
                   .centred = centred };
    j.native = common_type((const tensor *[]){ x, &c->in[1], &c->out[0], &c->out[1] }, 4);
    BUG_IF(c->in[1].data && !c->out[0].data); /* the sum must be kept somewhere */
    BUG_IF(c->out[2].dt != DT_F32);
    pool_run(c->run->pool, ceil_div(j.n, j.each), norm_task, &j);
}

void CPU(rmsnorm)(const op_call *c) { norm_run(c, false); }
void CPU(layernorm)(const op_call *c) { norm_run(c, true); }

/* ---- backward -------------------------------------------------------------------------------- */
static void back_by_type(dtype t, bool centred, norm_back *n, const norm_back *o, norm_grad p,
                         int64_t d) {
    if (t == DT_F32 && centred)
        norm_back_pass(DT_F32, n, o, p, true, d);
    else if (t == DT_F32)
        norm_back_pass(DT_F32, n, o, p, false, d);
    else if (centred)
        norm_back_pass(DT_BF16, n, o, p, true, d);
    else
        norm_back_pass(DT_BF16, n, o, p, false, d);
}

static norm_back back_row(const norm_job *j, int64_t row) {
    const float *stat = j->c->in[2].data; /* [N] or [N, 2] */
    return (norm_back){ .mean = j->centred ? stat[2 * row] : 0,
                        .scale = stat[j->centred ? 2 * row + 1 : row] };
}

static void native_rows_bwd(const norm_job *j, span rows, norm_grad p) {
    const op_call *c = j->c;
    norm_back o = { .x = NULL };
    for (int64_t row = rows.lo; row <= rows.hi; row++) {
        norm_back n = { .x = NULL };
        if (row < rows.hi) {
            n = back_row(j, row);
            n.dy = row_data(&c->in[0], row, j->d);
            n.x = row_data(&c->in[1], row, j->d);
            n.dr = row_data(&c->in[4], row, j->d);
            n.dx = row_data(&c->out[0], row, j->d);
        }
        back_by_type(j->native, j->centred, &n, &o, p, j->d);
        o = n;
    }
}

static void mixed_row_bwd(const norm_job *j, int64_t row, int worker, norm_grad p) {
    const tensor *dyt = &j->c->in[0], *rt = &j->c->in[1], *drt = &j->c->in[4], *dxt = &j->c->out[0];
    const norm_space *s = &j->space;
    norm_back n = back_row(j, row), none = { .x = NULL };
    n.dy = CPU(row_get)(dyt, row, j->d, norm_row(s, worker, 0));
    n.x = CPU(row_get)(rt, row, j->d, norm_row(s, worker, 1));
    n.dr = drt->data ? CPU(row_get)(drt, row, j->d, norm_row(s, worker, 3)) : NULL;
    n.dx = CPU(row_at)(dxt, row, j->d, norm_row(s, worker, 4));
    back_by_type(DT_F32, j->centred, &n, &none, p, j->d);
    back_by_type(DT_F32, j->centred, &none, &n, p, j->d);
    CPU(row_put)(dxt, row, j->d, n.dx);
}

static void norm_bwd_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const norm_space *s = &j->space;
    norm_grad p = { .dw = s->partial + i * s->width };
    p.db = p.dw + s->ld;
    memset(p.dw, 0, (size_t)s->width * sizeof *p.dw);
    p.w = CPU(row_get)(&j->c->in[3], 0, j->d, norm_row(s, worker, 2));
    span rows = span_of(i, s->each, j->n);
    if (j->native != DT_NONE) {
        native_rows_bwd(j, rows, p);
        return;
    }
    for (int64_t row = rows.lo; row < rows.hi; row++) mixed_row_bwd(j, row, worker, p);
}

static void norm_bwd_run(const op_call *c, bool centred) {
    const tensor *dy = &c->in[0];
    norm_job j = {
        .c = c, .space = CPU(norm_space_of)(c), .n = dy->dim[0], .d = dy->dim[1], .centred = centred
    };
    j.native = common_type((const tensor *[]){ dy, &c->in[1], &c->in[4], &c->out[0] }, 4);
    BUG_IF(c->in[2].dt != DT_F32);
    pool_run(c->run->pool, j.space.chunks, norm_bwd_task, &j);
    CPU(norm_reduce)(c, &j.space, 0, 1);
    if (centred) CPU(norm_reduce)(c, &j.space, j.space.ld, 2);
}

void CPU(rmsnorm_bwd)(const op_call *c) { norm_bwd_run(c, false); }
void CPU(layernorm_bwd)(const op_call *c) { norm_bwd_run(c, true); }
