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

/* Pointers of one row; delta and r may be NULL. All of one type. */
typedef struct norm_fwd {
    const void *x, *delta;
    void *r, *y;
    float mean, scale;
} norm_fwd;

VEC_INLINE void row_add(dtype t, const void *x, const void *delta, void *r, int64_t d) {
    int64_t k = 0;
    for (; k + 2 * VEC <= d; k += 2 * VEC) {
        vf a[2], b[2];
        vec_load2(t, x, k, a);
        vec_load2(t, delta, k, b);
        vec_store2(t, r, k, (vf[]){ a[0] + b[0], a[1] + b[1] });
    }
    for (int64_t m; k < d; k += VEC) {
        m = MIN(d - k, VEC);
        vec_put(t, r, k, m, vec_get(t, x, k, m, 0) + vec_get(t, delta, k, m, 0));
    }
}

/* Makes r where asked, then the statistics of the row to normalise, which a->x becomes. */
VEC_INLINE void row_statistics(dtype t, norm_fwd *a, bool centred, float eps, int64_t d) {
    if (a->delta)
        row_add(t, a->x, a->delta, a->r, d);
    else if (a->r && a->r != a->x)
        memcpy(a->r, a->x, (size_t)d * dt_size(t));
    if (a->r) a->x = a->r;
    a->mean = centred ? row_sum(t, a->x, d) / (float)d : 0;
    a->scale = 1 / sqrtf(row_squares(t, a->x, a->mean, d) / (float)d + eps);
}

static void *row_data(const tensor *t, int64_t row, int64_t d) {
    return t->data ? (char *)t->data + (size_t)(row * d) * dt_size(t->dt) : NULL;
}

/* A few rows: the statistics of all, then the results of all, so that one row's square root and
 * division pass while the next is summed. */
enum { GROUP = 4 };
VEC_INLINE void group_forward(dtype t, const norm_job *j, const float *w, const float *b,
                              int64_t row, int n) {
    const op_call *c = j->c;
    float *stat = c->out[2].data; /* [N] or [N, 2] */
    norm_fwd a[GROUP];
    for (int i = 0; i < n; i++) {
        a[i] = (norm_fwd){ .x = row_data(&c->in[0], row + i, j->d),
                           .delta = row_data(&c->in[1], row + i, j->d),
                           .r = row_data(&c->out[0], row + i, j->d),
                           .y = row_data(&c->out[1], row + i, j->d) };
        row_statistics(t, &a[i], j->centred, c->attr.eps, j->d);
    }
    for (int i = 0; i < n; i++) {
        norm_out out = { a[i].x, w, b, a[i].y, a[i].mean, a[i].scale };
        row_normalise(t, out, j->d);
        if (j->centred) stat[2 * (row + i)] = a[i].mean;
        stat[j->centred ? 2 * (row + i) + 1 : row + i] = a[i].scale;
    }
}

/* Any mixture of types: the row in fp32, with r rounded to its own type on the way. */
static void mixed_forward(const norm_job *j, const float *w, const float *b, int64_t row,
                          int worker) {
    const tensor *xt = &j->c->in[0], *dt = &j->c->in[1], *rt = &j->c->out[0], *yt = &j->c->out[1];
    float *tmp = norm_row(&j->space, worker, 0), *other = norm_row(&j->space, worker, 1);
    float *stat = j->c->out[2].data;
    const float *x = CPU(row_get)(xt, row, j->d, tmp);
    if (rt->data) {
        if (dt->data) row_add(DT_F32, x, CPU(row_get)(dt, row, j->d, other), tmp, j->d);
        CPU(row_put)(rt, row, j->d, dt->data ? tmp : x);
        x = CPU(row_get)(rt, row, j->d, tmp);
    }
    norm_fwd a = { .x = x };
    row_statistics(DT_F32, &a, j->centred, j->c->attr.eps, j->d);
    float *y = CPU(row_at)(yt, row, j->d, other);
    row_normalise(DT_F32, (norm_out){ x, w, b, y, a.mean, a.scale }, j->d);
    CPU(row_put)(yt, row, j->d, y);
    if (j->centred) stat[2 * row] = a.mean;
    stat[j->centred ? 2 * row + 1 : row] = a.scale;
}

static void norm_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const tensor *bt = &j->c->in[3];
    const float *w = CPU(row_get)(&j->c->in[2], 0, j->d, norm_row(&j->space, worker, 2));
    const float *b = NULL;
    if (j->centred && bt->data) b = CPU(row_get)(bt, 0, j->d, norm_row(&j->space, worker, 3));
    span rows = span_of(i, j->each, j->n);
    if (j->native == DT_NONE) {
        for (int64_t row = rows.lo; row < rows.hi; row++) mixed_forward(j, w, b, row, worker);
        return;
    }
    for (int64_t row = rows.lo; row < rows.hi; row += GROUP) {
        int n = (int)MIN(GROUP, rows.hi - row);
        if (j->native == DT_F32)
            group_forward(DT_F32, j, w, b, row, n);
        else
            group_forward(DT_BF16, j, w, b, row, n);
    }
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
static void norm_bwd_one(const norm_job *j, int64_t row, int worker, norm_back *a) {
    const tensor *dyt = &j->c->in[0], *rt = &j->c->in[1], *drt = &j->c->in[4], *dxt = &j->c->out[0];
    const norm_space *s = &j->space;
    if (j->native == DT_NONE) {
        a->dy = CPU(row_get)(dyt, row, j->d, norm_row(s, worker, 0));
        a->x = CPU(row_get)(rt, row, j->d, norm_row(s, worker, 1));
        a->dr = drt->data ? CPU(row_get)(drt, row, j->d, norm_row(s, worker, 3)) : NULL;
        a->dx = CPU(row_at)(dxt, row, j->d, norm_row(s, worker, 4));
        row_backward(DT_F32, *a, j->centred, j->d);
        CPU(row_put)(dxt, row, j->d, a->dx);
        return;
    }
    a->dy = row_data(dyt, row, j->d);
    a->x = row_data(rt, row, j->d);
    a->dr = row_data(drt, row, j->d);
    a->dx = row_data(dxt, row, j->d);
    if (j->native == DT_F32)
        row_backward(DT_F32, *a, j->centred, j->d);
    else
        row_backward(DT_BF16, *a, j->centred, j->d);
}

static void norm_bwd_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const norm_space *s = &j->space;
    const float *stat = j->c->in[2].data; /* [N] or [N, 2] */
    norm_back a = { .dw = s->partial + i * s->width };
    a.db = a.dw + s->ld;
    memset(a.dw, 0, (size_t)s->width * sizeof *a.dw);
    a.w = CPU(row_get)(&j->c->in[3], 0, j->d, norm_row(s, worker, 2));
    span rows = span_of(i, s->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        a.mean = j->centred ? stat[2 * row] : 0;
        a.scale = stat[j->centred ? 2 * row + 1 : row];
        norm_bwd_one(j, row, worker, &a);
    }
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
