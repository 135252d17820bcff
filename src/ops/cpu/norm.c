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

/* From the sum over a row to its statistics: what it is multiplied by, then shifted by. By value:
 * read back from memory, they would wait for all the stores of the row before. */
typedef struct norm_stat {
    float scale, shift;
} norm_stat;
static norm_stat row_statistics(const norm_job *j, dtype t, int64_t row, const void *x, float sum) {
    float *stat = j->c->out[2].data; /* [N] or [N, 2] */
    float d = (float)j->d, mean = sum / d, squares = sum;
    if (j->centred)
        squares = t == DT_F32 ? row_deviation(DT_F32, x, mean, j->d)
                              : row_deviation(DT_BF16, x, mean, j->d);
    norm_stat s = { .scale = 1 / sqrtf(squares / d + j->c->attr.eps) };
    s.shift = j->centred ? -mean * s.scale : 0;
    if (j->centred) stat[2 * row] = mean;
    stat[j->centred ? 2 * row + 1 : row] = s.scale;
    return s;
}

static void *row_data(const tensor *t, int64_t row, int64_t d) {
    return t->data ? (char *)t->data + (size_t)(row * d) * dt_size(t->dt) : NULL;
}

/* All activations of one type: each pass finishes row - 1 and sums up row. */
VEC_INLINE void native_rows(norm_form f, const norm_job *j, span rows, const float *w,
                            const float *b) {
    const op_call *c = j->c;
    norm_out o = { .x = NULL, .w = w, .b = b };
    for (int64_t row = rows.lo; row <= rows.hi; row++) {
        norm_next n = { .r = NULL };
        if (row < rows.hi) {
            n.x = row_data(&c->in[0], row, j->d);
            n.delta = row_data(&c->in[1], row, j->d);
            n.r = row_data(&c->out[0], row, j->d);
            if (!f.delta && n.r && n.r != n.x) memcpy(n.r, n.x, (size_t)j->d * norm_size(f.t));
            if (!n.r) n.r = (void *)n.x; /* which is only read then */
        }
        float sum = norm_pass(f, n, o, j->d);
        if (row == rows.hi) break;
        norm_stat s = row_statistics(j, f.t, row, n.r, sum);
        o.x = n.r;
        o.y = row_data(&c->out[1], row, j->d);
        o.scale = s.scale;
        o.shift = s.shift;
    }
}

/* The loop of each form. */
#define ROWS(name, ...)                                                                            \
    static void name(const norm_job *j, span rows, const float *w, const float *b) {               \
        native_rows((norm_form){ __VA_ARGS__ }, j, rows, w, b);                                    \
    }
ROWS(rms_f32, DT_F32, false, false, false)
ROWS(rms_f32_sum, DT_F32, false, true, false)
ROWS(rms_bf16, DT_BF16, false, false, false)
ROWS(rms_bf16_sum, DT_BF16, false, true, false)
ROWS(layer_f32, DT_F32, true, false, false)
ROWS(layer_f32_bias, DT_F32, true, false, true)
ROWS(layer_f32_sum, DT_F32, true, true, false)
ROWS(layer_f32_sum_bias, DT_F32, true, true, true)
ROWS(layer_bf16, DT_BF16, true, false, false)
ROWS(layer_bf16_bias, DT_BF16, true, false, true)
ROWS(layer_bf16_sum, DT_BF16, true, true, false)
ROWS(layer_bf16_sum_bias, DT_BF16, true, true, true)
#undef ROWS

typedef void (*rows_fn)(const norm_job *j, span rows, const float *w, const float *b);
static rows_fn rows_of(const norm_job *j, bool delta, bool bias) {
    static const rows_fn rms[2][2] = { { rms_f32, rms_f32_sum }, { rms_bf16, rms_bf16_sum } };
    static const rows_fn layer[2][2][2] = {
        { { layer_f32, layer_f32_bias }, { layer_f32_sum, layer_f32_sum_bias } },
        { { layer_bf16, layer_bf16_bias }, { layer_bf16_sum, layer_bf16_sum_bias } },
    };
    bool narrow = j->native == DT_BF16;
    return j->centred ? layer[narrow][delta][bias] : rms[narrow][delta];
}

static float mixed_pass(bool centred, norm_next n, norm_out o, int64_t d) {
    if (!centred) return norm_pass((norm_form){ .t = DT_F32 }, n, o, d);
    if (!o.b) return norm_pass((norm_form){ .t = DT_F32, .centred = true }, n, o, d);
    return norm_pass((norm_form){ .t = DT_F32, .centred = true, .extra = true }, n, o, d);
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
    float sum = mixed_pass(j->centred, (norm_next){ .r = (void *)x }, none, j->d);
    norm_stat stat = row_statistics(j, DT_F32, row, x, sum);
    o.scale = stat.scale;
    o.shift = stat.shift;
    mixed_pass(j->centred, (norm_next){ .r = NULL }, o, j->d);
    CPU(row_put)(yt, row, j->d, o.y);
}

static void norm_task(void *ctx, int64_t i, int worker) {
    const norm_job *j = ctx;
    const tensor *bt = &j->c->in[3];
    const float *w = CPU(row_get)(&j->c->in[2], 0, j->d, norm_row(&j->space, worker, 2)), *b = NULL;
    if (j->centred && bt->data) b = CPU(row_get)(bt, 0, j->d, norm_row(&j->space, worker, 3));
    span rows = span_of(i, j->each, j->n);
    if (j->native != DT_NONE) {
        rows_of(j, j->c->in[1].data != NULL, b != NULL)(j, rows, w, b);
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
static norm_back back_row(const norm_job *j, int64_t row) {
    const float *stat = j->c->in[2].data; /* [N] or [N, 2] */
    if (!j->centred) return (norm_back){ .scale = stat[row] };
    return (norm_back){ .scale = stat[2 * row + 1], .shift = -stat[2 * row] * stat[2 * row + 1] };
}

VEC_INLINE void native_rows_bwd(norm_form f, const norm_job *j, span rows, norm_grad p) {
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
        norm_back_pass(f, &n, &o, p, j->d);
        o = n;
    }
}

#define ROWS(name, ...)                                                                            \
    static void name(const norm_job *j, span rows, norm_grad p) {                                  \
        native_rows_bwd((norm_form){ __VA_ARGS__ }, j, rows, p);                                   \
    }
ROWS(rms_back_f32, DT_F32, false, false, false)
ROWS(rms_back_f32_sum, DT_F32, false, false, true)
ROWS(rms_back_bf16, DT_BF16, false, false, false)
ROWS(rms_back_bf16_sum, DT_BF16, false, false, true)
ROWS(layer_back_f32, DT_F32, true, false, false)
ROWS(layer_back_f32_sum, DT_F32, true, false, true)
ROWS(layer_back_bf16, DT_BF16, true, false, false)
ROWS(layer_back_bf16_sum, DT_BF16, true, false, true)
#undef ROWS

typedef void (*back_fn)(const norm_job *j, span rows, norm_grad p);
static const back_fn back_rows[2][2][2] = {
    /* layer norm, bf16, with dr */
    { { rms_back_f32, rms_back_f32_sum }, { rms_back_bf16, rms_back_bf16_sum } },
    { { layer_back_f32, layer_back_f32_sum }, { layer_back_bf16, layer_back_bf16_sum } },
};

static void mixed_pass_bwd(bool centred, norm_back *n, const norm_back *o, norm_grad p, int64_t d) {
    bool dr = o->dr != NULL;
    if (centred && dr)
        norm_back_pass((norm_form){ DT_F32, true, false, true }, n, o, p, d);
    else if (centred)
        norm_back_pass((norm_form){ DT_F32, true, false, false }, n, o, p, d);
    else if (dr)
        norm_back_pass((norm_form){ DT_F32, false, false, true }, n, o, p, d);
    else
        norm_back_pass((norm_form){ DT_F32, false, false, false }, n, o, p, d);
}

static void mixed_row_bwd(const norm_job *j, int64_t row, int worker, norm_grad p) {
    const tensor *dyt = &j->c->in[0], *rt = &j->c->in[1], *drt = &j->c->in[4], *dxt = &j->c->out[0];
    const norm_space *s = &j->space;
    norm_back n = back_row(j, row), none = { .x = NULL };
    n.dy = CPU(row_get)(dyt, row, j->d, norm_row(s, worker, 0));
    n.x = CPU(row_get)(rt, row, j->d, norm_row(s, worker, 1));
    n.dr = drt->data ? CPU(row_get)(drt, row, j->d, norm_row(s, worker, 3)) : NULL;
    n.dx = CPU(row_at)(dxt, row, j->d, norm_row(s, worker, 4));
    mixed_pass_bwd(j->centred, &n, &none, p, j->d);
    mixed_pass_bwd(j->centred, &none, &n, p, j->d);
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
        back_rows[j->centred][j->native == DT_BF16][j->c->in[4].data != NULL](j, rows, p);
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
