/* RMS norm and rotation of the q and k heads of a row in one pass; v passes through. Bytes moved: q and k once in and
 * once out, backward also y's; v only where results have memory of their own.
 *
 * With n = x stat and y = R n, where R rotates pairs and multiplies them by f:
 *     dx = stat (R' dy - n mean(dy y)),  n = R' y / f^2,  f^2 = cos^2 + sin^2 of any pair
 * With weights, y = R (w n):  g = R' dy,  dw = g n,  dx = stat (w g - n mean(w g n)). */
#include "norm.h"
#include "ops/op_table.h"

#include <math.h>

typedef struct qknorm_rope_job {
    const op_call *c;
    const tensor *from, *to, *table; /* from: what `to` may share memory with */
    const int32_t *pos;              /* [N] */
    int64_t n, cols, each;
    int dim, half, heads; /* half: of the rotated dims; heads: of q and k */
    norm_space space;     /* of the weights' gradients */
} qknorm_rope_job;

/* A head at hand: its first element, its row of the table, its statistic, and q's or k's weights and their gradient. */
typedef struct qk_head {
    int64_t at;
    const float *cs, *w;
    float *stat, *dw;
} qk_head;

/* Rotates a head by the angles of a table row; sign -1: back. */
static void rotate(float *x, const float *cs, int half, float sign) {
#pragma omp simd
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half], s = sign * cs[half + j];
        x[j] = a * cs[j] - b * s;
        x[j + half] = b * cs[j] + a * s;
    }
}

static float mean_product(const float *x, const float *y, int dim) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < dim; k++) sum += x[k] * y[k];
    return sum / (float)dim;
}

/* Of a rotation and a factor. */
static float squared_factor(const float *cs, int half) {
    return half ? cs[0] * cs[0] + cs[half] * cs[half] : 1;
}

/* ---- any mixture of types and any width ------------------------------------------------------------ */
static void head_fwd(const qknorm_rope_job *j, const qk_head *h) {
    float tmp[QKNORM_ROPE_DIM], y[QKNORM_ROPE_DIM];
    const float *x = elems_get(j->from, h->at, j->dim, tmp);
    float scale = 1 / sqrtf(mean_product(x, x, j->dim) + j->c->attr.eps);
#pragma omp simd
    for (int k = 0; k < j->dim; k++) y[k] = x[k] * scale * h->w[k];
    rotate(y, h->cs, j->half, 1);
    elems_put(j->to, h->at, j->dim, y);
    *h->stat = scale;
}

static void head_bwd(const qknorm_rope_job *j, const qk_head *h) {
    float dy_tmp[QKNORM_ROPE_DIM], y_tmp[QKNORM_ROPE_DIM], dx[QKNORM_ROPE_DIM];
    const float *dy = elems_get(j->from, h->at, j->dim, dy_tmp), *cs = h->cs;
    const float *y = elems_get(&j->c->in[1], h->at, j->dim, y_tmp);
    float mean = mean_product(dy, y, j->dim), stat = *h->stat;
    int half = j->half;
    float by = mean / squared_factor(h->cs, half);
#pragma omp simd
    for (int k = 0; k < 2 * half; k++) dx[k] = stat * (dy[k] - y[k] * by);
#pragma omp simd
    for (int k = 2 * half; k < j->dim; k++) dx[k] = stat * (dy[k] - y[k] * mean);
    rotate(dx, cs, half, -1);
    elems_put(j->to, h->at, j->dim, dx);
}

static void head_weighted_bwd(const qknorm_rope_job *j, const qk_head *h) {
    float g[QKNORM_ROPE_DIM], n[QKNORM_ROPE_DIM], stat = *h->stat;
    const float *dy = elems_get(j->from, h->at, j->dim, g);
    const float *x = elems_get(&j->c->in[1], h->at, j->dim, n);
    if (dy != g) memcpy(g, dy, (size_t)j->dim * sizeof *g);
    rotate(g, h->cs, j->half, -1);
#pragma omp simd
    for (int k = 0; k < j->dim; k++) {
        n[k] = x[k] * stat;
        h->dw[k] += g[k] * n[k];
        g[k] *= h->w[k];
    }
    float mean = mean_product(g, n, j->dim);
#pragma omp simd
    for (int k = 0; k < j->dim; k++) g[k] = stat * (g[k] - n[k] * mean);
    elems_put(j->to, h->at, j->dim, g);
}

/* ---- tensors of one type, fp32 or bf16, and parts of a head that are multiples of STRIP ------------ */
enum { STRIP = 2 * VEC };

LOOP_INLINE float strips_mean(dtype t, const void *x, const void *y, int dim) {
    vf sum[2] = { { 0 }, { 0 } };
    for (int k = 0; k < dim; k += STRIP) {
        vf a[2], b[2];
        vecs_load(t, x, k, a, 2);
        vecs_load(t, y, k, b, 2);
        VEC_UNROLL for (int i = 0; i < 2; i++) sum[i] += a[i] * b[i];
    }
    return vec_sum(sum[0] + sum[1]) / (float)dim;
}
LOOP_INLINE void *head_at(const tensor *x, dtype t, int64_t at) {
    return (char *)x->data + (size_t)at * elem_size(t);
}
/* Rotates pairs that are in registers and stores them. */
LOOP_INLINE void strips_rotate(dtype t, const float *cs, int half, float sign, int k, const vf a[2],
                               const vf b[2], void *to) {
    vf c[2], s[2], x[2], y[2];
    vecs_load(DT_F32, cs, k, c, 2);
    vecs_load(DT_F32, cs, k + half, s, 2);
    VEC_UNROLL for (int i = 0; i < 2; i++) x[i] = a[i] * c[i] - b[i] * (s[i] * sign);
    VEC_UNROLL for (int i = 0; i < 2; i++) y[i] = b[i] * c[i] + a[i] * (s[i] * sign);
    vecs_store(t, to, k, x, 2);
    vecs_store(t, to, k + half, y, 2);
}

LOOP_INLINE void strips_scaled(dtype t, const void *x, const float *w, float scale, int k,
                               vf v[2]) {
    vf weight[2];
    vecs_load(t, x, k, v, 2);
    vecs_load(DT_F32, w, k, weight, 2);
    VEC_UNROLL for (int i = 0; i < 2; i++) v[i] = v[i] * scale * weight[i];
}
LOOP_INLINE void strips_fwd(dtype t, const qknorm_rope_job *j, const qk_head *h) {
    const void *x = head_at(j->from, t, h->at);
    void *y = head_at(j->to, t, h->at);
    float scale = 1 / sqrtf(strips_mean(t, x, x, j->dim) + j->c->attr.eps);
    vf a[2], b[2];
    for (int k = 0; k < j->half; k += STRIP) {
        strips_scaled(t, x, h->w, scale, k, a);
        strips_scaled(t, x, h->w, scale, k + j->half, b);
        strips_rotate(t, h->cs, j->half, 1, k, a, b, y);
    }
    for (int k = 2 * j->half; k < j->dim; k += STRIP) {
        strips_scaled(t, x, h->w, scale, k, a);
        vecs_store(t, y, k, a, 2);
    }
    *h->stat = scale;
}

/* stat (dy - y by) */
LOOP_INLINE void strips_less(dtype t, const void *dy, const void *y, float stat, float by, int k,
                             vf v[2]) {
    vf u[2];
    vecs_load(t, dy, k, v, 2);
    vecs_load(t, y, k, u, 2);
    VEC_UNROLL for (int i = 0; i < 2; i++) v[i] = (v[i] - u[i] * by) * stat;
}
LOOP_INLINE void strips_bwd(dtype t, const qknorm_rope_job *j, const qk_head *h) {
    const void *dy = head_at(j->from, t, h->at), *y = head_at(&j->c->in[1], t, h->at);
    void *dx = head_at(j->to, t, h->at);
    float mean = strips_mean(t, dy, y, j->dim), by = mean / squared_factor(h->cs, j->half);
    vf a[2], b[2];
    for (int k = 0; k < j->half; k += STRIP) {
        strips_less(t, dy, y, *h->stat, by, k, a);
        strips_less(t, dy, y, *h->stat, by, k + j->half, b);
        strips_rotate(t, h->cs, j->half, -1, k, a, b, dx);
    }
    for (int k = 2 * j->half; k < j->dim; k += STRIP) {
        strips_less(t, dy, y, *h->stat, mean, k, a);
        vecs_store(t, dx, k, a, 2);
    }
}
static void fwd_f32(const qknorm_rope_job *j, const qk_head *h) { strips_fwd(DT_F32, j, h); }
static void fwd_bf16(const qknorm_rope_job *j, const qk_head *h) { strips_fwd(DT_BF16, j, h); }
static void bwd_f32(const qknorm_rope_job *j, const qk_head *h) { strips_bwd(DT_F32, j, h); }
static void bwd_bf16(const qknorm_rope_job *j, const qk_head *h) { strips_bwd(DT_BF16, j, h); }

static bool in_strips(const qknorm_rope_job *j) {
    dtype t = j->from->dt;
    bool alike = j->to->dt == t && (j->c->op != OP_QKNORM_ROPE_BWD || j->c->in[1].dt == t);
    return alike && (t == DT_F32 || t == DT_BF16) && j->half % STRIP == 0 &&
           (j->dim - 2 * j->half) % STRIP == 0;
}

/* ---- rows ------------------------------------------------------------------------------------------ */
/* Where the operands of each op are; weights 0: none. */
typedef void head_fn(const qknorm_rope_job *j, const qk_head *h);
typedef struct qknorm_rope_form {
    head_fn *head, *f32, *bf16; /* for any types; in strips, NULL: none */
    int weights, pos;           /* operands: wq, with wk behind it; pos, with the table behind it */
    bool backward;
} qknorm_rope_form;
static qknorm_rope_form form_of(op_code op) {
    switch (op) {
    case OP_QKNORM_ROPE: return (qknorm_rope_form){ head_fwd, fwd_f32, fwd_bf16, 0, 1, false };
    case OP_QKNORM_ROPE_WEIGHTED:
        return (qknorm_rope_form){ head_fwd, fwd_f32, fwd_bf16, 1, 3, false };
    case OP_QKNORM_ROPE_BWD: return (qknorm_rope_form){ head_bwd, bwd_f32, bwd_bf16, 0, 3, true };
    default: return (qknorm_rope_form){ head_weighted_bwd, NULL, NULL, 3, 5, true };
    }
}

static void qknorm_rope_task(void *ctx, int64_t i, int worker) {
    const qknorm_rope_job *j = ctx;
    const op_call *c = j->c;
    qknorm_rope_form form = form_of(c->op);
    float cs[QKNORM_ROPE_DIM], tmp[2][QKNORM_ROPE_DIM], *dw = NULL;
    const float *w[2];
    const tensor none = { 0 };
    for (int k = 0; k < 2; k++)
        w[k] = CPU(norm_weights)(form.weights ? &c->in[form.weights + k] : &none, j->dim, tmp[k]);
    if (form.weights && form.backward) {
        dw = j->space.partial + i * j->space.width;
        memset(dw, 0, (size_t)j->space.width * sizeof *dw);
    }
    head_fn *head = j->from->dt == DT_F32 ? form.f32 : form.bf16;
    if (!head || !in_strips(j)) head = form.head;
    float *stat = form.backward ? c->in[2].data : c->out[1].data; /* [N, heads] */
    int64_t qk = (int64_t)j->heads * j->dim;
    int rot = 2 * j->half;
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        BUG_IF(j->pos[row] < 0 || j->pos[row] >= j->table->dim[0]);
        qk_head h = { .cs = elems_get(j->table, (int64_t)j->pos[row] * rot, rot, cs) };
        for (int k = 0; k < j->heads; k++) {
            int of_k = k >= c->attr.heads.q;
            h.at = row * j->cols + (int64_t)k * j->dim;
            h.stat = stat + row * j->heads + k;
            h.w = w[of_k];
            h.dw = dw ? dw + of_k * j->space.ld : NULL;
            head(j, &h);
        }
        if (j->from->data != j->to->data)
            elems_copy(j->from, row * j->cols + qk, j->to, row * j->cols + qk, j->cols - qk);
    }
}

static void CPU(qknorm_rope)(const op_call *c) {
    const tensor *from = &c->in[0], *pos = &c->in[form_of(c->op).pos];
    int q = c->attr.heads.q, kv = c->attr.heads.kv, rot = c->attr.heads.rot;
    bool sums = c->op == OP_QKNORM_ROPE_WEIGHTED_BWD;
    qknorm_rope_job j = { .c = c,
                          .from = from,
                          .to = &c->out[0],
                          .pos = pos[0].data,
                          .table = &pos[1],
                          .n = from->dim[0],
                          .cols = from->dim[1],
                          .each = bandwidth_rows(from->dim[0], from->dim[1], c->run->pool),
                          .dim = c->attr.heads.dim,
                          .half = rot / 2,
                          .heads = q + kv };
    if (sums) {
        j.space = CPU(norm_space_of)(c);
        j.each = j.space.each; /* which the number of threads does not change */
    }
    BUG_IF(j.cols != (int64_t)(q + 2 * kv) * j.dim || j.dim > QKNORM_ROPE_DIM);
    BUG_IF(rot % 2 || rot > j.dim || j.table->dim[1] != rot);
    pool_run(c->run->pool, ceil_div(j.n, j.each), qknorm_rope_task, &j);
    if (!sums) return;
    CPU(norm_reduce)(c, &j.space, 0, 1);
    CPU(norm_reduce)(c, &j.space, j.space.ld, 2);
}

KERNEL(QKNORM_ROPE, CPU(qknorm_rope), NULL, ATTRS_HEADS | ATTR(ROT) | ATTR(EPS));
KERNEL(QKNORM_ROPE_BWD, CPU(qknorm_rope), NULL, ATTRS_HEADS | ATTR(ROT));
KERNEL(QKNORM_ROPE_WEIGHTED, CPU(qknorm_rope), NULL, ATTRS_HEADS | ATTR(ROT) | ATTR(EPS));
KERNEL(QKNORM_ROPE_WEIGHTED_BWD, CPU(qknorm_rope), CPU(norm_workspace), ATTRS_HEADS | ATTR(ROT));
