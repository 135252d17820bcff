/* Values of the tokens themselves, added to the value heads of a row of q | k | v:
 *
 *     v_h += g_h ve_h,   g_h = 3 sigmoid(z_h),   z_h = x[:G] . w_h
 *     dve_h = g_h dv_h,   dz_h = (dv_h . ve_h) g_h (1 - g_h / 3),   dx[:G] = sum_h dz_h w_h,   dw_h = sum of dz_h x[:G]
 *
 * Bytes moved: the v part of a row, and in place nothing else of it. A task has a run of rows; the gates' gradients of
 * fixed runs are summed in order, so that they do not depend on the number of threads. */
#include "bandwidth.h"
#include "vmath.h"

#include <string.h>

enum { MOST_GATES = 256, MOST_CHANNELS = 64, CHUNKS = 64 };

typedef struct values_job {
    const op_call *c;
    const tensor *ve, *x; /* [N, B], [N, D] */
    int64_t n, cols, v, heads, dim, channels;
    const float *w; /* [H, G] in fp32 */
    float *partial; /* [CHUNKS, H, G] */
    int64_t each;   /* rows of a chunk */
} values_job;

static size_t CPU(add_values_workspace)(const op_backend *b, const op_call *c, int threads) {
    int64_t gates = tensor_count(&c->in[3]);
    return (size_t)(gates * (1 + CHUNKS)) * sizeof(float);
}

static values_job values_job_of(const op_call *c) {
    const tensor *w = &c->in[3];
    int64_t q = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    values_job j = { .c = c,
                     .ve = &c->in[1],
                     .x = &c->in[2],
                     .n = c->in[0].dim[0],
                     .cols = c->in[0].dim[1],
                     .v = (q + kv) * dim,
                     .heads = kv,
                     .dim = dim,
                     .channels = w->dim[1] };
    BUG_IF(j.cols != (q + 2 * kv) * dim || kv > MOST_GATES || j.channels > MOST_CHANNELS);
    float *widened = c->run->workspace;
    int64_t gates = tensor_count(w);
    CPU(to_f32)(w->dt, w->data, widened, gates);
    j.w = widened;
    j.partial = widened + gates;
    j.each = ceil_div(j.n, CHUNKS);
    return j;
}

/* The gates of a row. @param x its first channels */
static void row_gates(const values_job *j, const float *x, float *gate) {
    for (int64_t h = 0; h < j->heads; h++) {
        float z = 0;
        for (int64_t k = 0; k < j->channels; k++) z += x[k] * j->w[h * j->channels + k];
        gate[h] = 3 / (1 + vm_exp(-z));
    }
}

static void values_row(const values_job *j, int64_t row) {
    const tensor *in = &j->c->in[0], *out = &j->c->out[0];
    float x[MOST_CHANNELS], gate[MOST_GATES], v[BLOCK], e[BLOCK], q[BLOCK];
    row_gates(j, elems_get(j->x, row * j->x->dim[1], j->channels, x), gate);
    if (in->data != out->data) elems_copy(in, row * j->cols, out, row * j->cols, j->v);
    for (int64_t h = 0; h < j->heads; h++)
        for (int64_t k = 0; k < j->dim; k += BLOCK) {
            int64_t at = row * j->cols + j->v + h * j->dim + k, m = MIN(BLOCK, j->dim - k);
            const float *from = elems_get(in, at, m, v);
            const float *own = elems_get(j->ve, (row * j->heads + h) * j->dim + k, m, e);
            for (int64_t i = 0; i < m; i++) q[i] = from[i] + gate[h] * own[i];
            elems_put(out, at, m, q);
        }
}

static void values_task(void *ctx, int64_t i, int worker) {
    const values_job *j = ctx;
    span rows = span_of(i, rows_per_task(j->cols), j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) values_row(j, row);
}

static void CPU(add_values)(const op_call *c) {
    values_job j = values_job_of(c);
    pool_run(c->run->pool, ceil_div(j.n, rows_per_task(j.cols)), values_task, &j);
}

/* @param dw of the chunk */
static void values_row_bwd(const values_job *j, int64_t row, float *dw) {
    const tensor *dy = &j->c->in[0], *dqkv = &j->c->out[0], *dve = &j->c->out[1],
                 *dx = &j->c->out[2];
    int64_t d = j->x->dim[1];
    float xs[MOST_CHANNELS], gate[MOST_GATES], g[BLOCK], e[BLOCK], o[BLOCK],
        sums[MOST_CHANNELS] = { 0 };
    const float *x = elems_get(j->x, row * d, j->channels, xs);
    row_gates(j, x, gate);
    for (int64_t h = 0; h < j->heads; h++) {
        float dot = 0;
        for (int64_t k = 0; k < j->dim; k += BLOCK) {
            int64_t own = (row * j->heads + h) * j->dim + k, m = MIN(BLOCK, j->dim - k);
            const float *dv = elems_get(dy, row * j->cols + j->v + h * j->dim + k, m, g);
            const float *ve = elems_get(j->ve, own, m, e);
            for (int64_t i = 0; i < m; i++) dot += dv[i] * ve[i];
            for (int64_t i = 0; i < m; i++) o[i] = gate[h] * dv[i];
            if (dve->data) elems_put(dve, own, m, o);
        }
        float dz = dot * gate[h] * (1 - gate[h] / 3);
        for (int64_t k = 0; k < j->channels; k++) {
            sums[k] += dz * j->w[h * j->channels + k];
            dw[h * j->channels + k] += dz * x[k];
        }
    }
    if (dx->data) {
        elems_put(dx, row * d, j->channels, sums);
        elems_clear(dx, row * d + j->channels, d - j->channels);
    }
    if (dqkv->data && dqkv->data != dy->data)
        elems_copy(dy, row * j->cols, dqkv, row * j->cols, j->cols);
}

static void values_bwd_task(void *ctx, int64_t i, int worker) {
    const values_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    float *dw = j->partial + i * j->heads * j->channels;
    memset(dw, 0, (size_t)(j->heads * j->channels) * sizeof *dw);
    for (int64_t row = rows.lo; row < rows.hi; row++) values_row_bwd(j, row, dw);
}

static void CPU(add_values_bwd)(const op_call *c) {
    values_job j = values_job_of(c);
    int64_t gates = j.heads * j.channels, chunks = ceil_div(j.n, j.each);
    float *dw = c->out[3].data;
    pool_run(c->run->pool, chunks, values_bwd_task, &j);
    for (int64_t k = 0; dw && k < gates; k++) {
        float sum = c->accumulate & 8 ? dw[k] : 0;
        for (int64_t i = 0; i < chunks; i++) sum += j.partial[i * gates + k];
        dw[k] = sum;
    }
}

KERNEL(ADD_VALUES, CPU(add_values), CPU(add_values_workspace), ATTRS_HEADS);
KERNEL(ADD_VALUES_BWD, CPU(add_values_bwd), CPU(add_values_workspace), ATTRS_HEADS);
