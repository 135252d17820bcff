/* Sums, copies, conversions, scaling, dropout, and the sum of squares: one pass over memory. */
#include "philox.h"
#include "bandwidth.h"
#include "ops/op_table.h"

#include <string.h>

/* ---- a + b, copy, cast ----------------------------------------------------------------------- */
/* All of one type, fp32 or bf16. */
LOOP_INLINE void add_vectors(dtype t, const void *a, const void *b, void *c, int64_t n) {
    int64_t k = 0;
    for (; k + 2 * VEC <= n; k += 2 * VEC) {
        vf x[2], y[2];
        vec_load2(t, a, k, x);
        vec_load2(t, b, k, y);
        x[0] += y[0];
        x[1] += y[1];
        vec_store2(t, c, k, x);
    }
    for (; k < n; k++) elem_put(t, c, k, elem_get(t, a, k) + elem_get(t, b, k));
}

static void add_vectors_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *x = &c->in[0], *bt = &c->in[1], *ct = &c->out[0];
    int64_t n = tensor_count(x);
    span e = span_of(i, bandwidth_task(n, c->run->pool), n);
    if (c->op == OP_CAST || c->op == OP_FETCH || !bt->data) {
        elems_copy(x, e.lo, ct, e.lo, e.hi - e.lo);
        return;
    }
    if (x->dt == DT_BF16 && bt->dt == DT_BF16 && ct->dt == DT_BF16) {
        add_vectors(DT_BF16, (uint16_t *)x->data + e.lo, (uint16_t *)bt->data + e.lo,
                    (uint16_t *)ct->data + e.lo, e.hi - e.lo);
        return;
    }
    float a_tmp[BLOCK], b_tmp[BLOCK], c_tmp[BLOCK];
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        float *out = elems_at(ct, at, c_tmp);
        add_vectors(DT_F32, elems_get(x, at, m, a_tmp), elems_get(bt, at, m, b_tmp), out, m);
        elems_put(ct, at, m, out);
    }
}

static void CPU(add)(const op_call *c) {
    bool onto_itself = c->in[0].data == c->out[0].data && c->in[0].dt == c->out[0].dt;
    if (!c->in[1].data && onto_itself) return;
    int64_t n = tensor_count(&c->in[0]);
    pool_run(c->run->pool, ceil_div(n, bandwidth_task(n, c->run->pool)), add_vectors_task,
             (void *)c);
}

static void CPU(accumulate)(const op_call *c) {
    op_call sum = { .in = { c->in[0] }, .out = { c->out[0] }, .run = c->run };
    if (c->accumulate & 1) sum.in[1] = c->out[0];
    CPU(add)(&sum);
}

/* ---- scale ----------------------------------------------------------------------------------- */
static void scale_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *xt = &c->in[0], *yt = &c->out[0];
    float by = c->attr.scale.by, x_tmp[BLOCK], y_tmp[BLOCK];
    span e = span_of(i, TASK_ELEMENTS, tensor_count(xt));
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        const float *x = elems_get(xt, at, m, x_tmp);
        float *y = elems_at(yt, at, y_tmp);
#pragma omp simd
        for (int64_t k = 0; k < m; k++) y[k] = x[k] * by;
        elems_put(yt, at, m, y);
    }
}

static void CPU(scale)(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]);
    pool_run(c->run->pool, ceil_div(n, TASK_ELEMENTS), scale_task, (void *)c);
}

/* ---- dropout --------------------------------------------------------------------------------
 * Element (token, column) is decided by word column % 4 of
 *     philox(step key, { site | layer << 16, id low, id high, column / 4 })
 * so that every layout, and the backward, draws the same mask. */
typedef struct drop {
    rng_key key;
    uint32_t site, below; /* dropped when the word is below */
    float keep;           /* what a kept element is multiplied by */
} drop;

/* PHILOX_WORDS elements from a column on that is a multiple of 4; t is constant after inlining. */
LOOP_INLINE void drop_units(dtype t, const drop *d, const uint32_t *word, const void *x, void *y) {
    const vf keep = vec_of(d->keep);
    const vu below = d->below - (vu){ 0 };
    VEC_UNROLL for (int k = 0; k < PHILOX_WORDS; k += 2 * VEC) {
        vf v[2];
        vec_load2(t, x, k, v);
        VEC_UNROLL for (int i = 0; i < 2; i++) {
            vu bits;
            memcpy(&bits, word + k + i * VEC, sizeof bits);
            v[i] = (vf)((vu)(v[i] * keep) & (vu)(bits >= below));
        }
        vec_store2(t, y, k, v);
    }
}

/* The same for bf16, from counter `first` on. */
#if defined(__ARM_NEON)
LOOP_INLINE void drop_bf16(const drop *d, const philox_prefix *p, uint32_t first, const uint16_t *x,
                           uint16_t *y) {
    const vf keep = vec_of(d->keep);
    uint16x8_t mask[PHILOX_WORDS / 8];
    philox_masks(p, first, d->below, mask);
    VEC_UNROLL for (int i = 0; i < PHILOX_WORDS / 8; i++) {
        vf v[2];
        vec_widen2(vld1q_u16(x + 8 * i), v);
        v[0] *= keep;
        v[1] *= keep;
        vst1q_u16(y + 8 * i, vandq_u16(vec_narrow2(v), mask[i]));
    }
}
#else
LOOP_INLINE void drop_bf16(const drop *d, const philox_prefix *p, uint32_t first, const uint16_t *x,
                           uint16_t *y) {
    uint32_t word[PHILOX_WORDS];
    philox_words(p, first, word);
    drop_units(DT_BF16, d, word, x, y);
}
#endif

static drop drop_of(const op_call *c) {
    float p = c->attr.dropout.p;
    BUG_IF(!(p >= 0 && p < 1) || c->attr.dropout.site >> 16);
    return (drop){ .key = c->run->step->dropout,
                   .site = c->attr.dropout.site | c->run->layer << 16,
                   .below = (uint32_t)((double)p * 4294967296.0),
                   .keep = (float)(1 / (1 - (double)p)) };
}

static void drop_row(const op_call *c, const drop *d, int64_t row, int64_t id) {
    const tensor *xt = &c->in[0], *yt = &c->out[0];
    int64_t cols = xt->dim[1];
    uint32_t head[3] = { d->site, (uint32_t)id, (uint32_t)((uint64_t)id >> 32) };
    uint32_t word[PHILOX_WORDS];
    philox_prefix prefix = philox_prepare(d->key, head);
    float x_tmp[PHILOX_WORDS], y_tmp[PHILOX_WORDS];
    for (int64_t col = 0; col < cols; col += PHILOX_WORDS) {
        int64_t m = MIN(PHILOX_WORDS, cols - col), at = row * cols + col;
        if (m == PHILOX_WORDS && xt->dt == DT_BF16 && yt->dt == DT_BF16) {
            drop_bf16(d, &prefix, (uint32_t)(col / 4), (uint16_t *)xt->data + at,
                      (uint16_t *)yt->data + at);
            continue;
        }
        philox_words(&prefix, (uint32_t)(col / 4), word);
        if (m == PHILOX_WORDS && xt->dt == DT_F32 && yt->dt == DT_F32) {
            drop_units(DT_F32, d, word, (float *)xt->data + at, (float *)yt->data + at);
        } else {
            CPU(to_f32)(xt->dt, (char *)xt->data + (size_t)at * dt_size(xt->dt), x_tmp, m);
            drop_units(DT_F32, d, word, x_tmp, y_tmp);
            CPU(from_f32)(yt->dt, y_tmp, (char *)yt->data + (size_t)at * dt_size(yt->dt), m);
        }
    }
}

static void dropout_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const int64_t *id = c->in[1].data; /* [N] */
    drop d = drop_of(c);
    span rows = span_of(i, rows_per_task(c->in[0].dim[1]), c->in[0].dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) drop_row(c, &d, row, id[row]);
}

static void CPU(dropout)(const op_call *c) {
    const tensor *x = &c->in[0];
    pool_run(c->run->pool, ceil_div(x->dim[0], rows_per_task(x->dim[1])), dropout_task, (void *)c);
}

/* ---- sum of squares -------------------------------------------------------------------------- */
enum { SQNORM_CHUNKS = 128 };
typedef struct sqnorm_job {
    const tensor *x;
    int64_t n, each;
    double part[SQNORM_CHUNKS];
} sqnorm_job;

static double block_squares(const float *x, int64_t n) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int64_t q = n / 4; /* four stretches at once, so that no sum waits for another's addition */
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t k = 0; k < q; k++) {
        double a = x[k], b = x[k + q], c = x[k + 2 * q], d = x[k + 3 * q];
        s0 += a * a;
        s1 += b * b;
        s2 += c * c;
        s3 += d * d;
    }
    for (int64_t k = 4 * q; k < n; k++) s0 += (double)x[k] * x[k];
    return (s0 + s1) + (s2 + s3);
}

static void sqnorm_task(void *ctx, int64_t i, int worker) {
    sqnorm_job *j = ctx;
    span e = span_of(i, j->each, j->n);
    float tmp[BLOCK];
    double sum = 0;
    for (int64_t at = e.lo; at < e.hi; at += BLOCK) {
        int64_t m = MIN(BLOCK, e.hi - at);
        sum += block_squares(elems_get(j->x, at, m, tmp), m);
    }
    j->part[i] = sum;
}

static void CPU(sqnorm)(const op_call *c) {
    sqnorm_job j = { .x = &c->in[0], .n = tensor_count(&c->in[0]) };
    j.each = MAX(TASK_ELEMENTS, ceil_div(j.n, SQNORM_CHUNKS));
    int64_t chunks = ceil_div(j.n, j.each);
    pool_run(c->run->pool, chunks, sqnorm_task, &j);
    double sum = 0;
    for (int64_t i = 0; i < chunks; i++) sum += j.part[i];
    sum *= c->attr.scale.by;
    float *out = c->out[0].data;
    if (c->accumulate & 1) sum += (double)out[0] + out[1];
    out[0] = (float)sum;
    out[1] = (float)(sum - out[0]);
}

KERNEL(ADD, CPU(add));
KERNEL(CAST, CPU(add));
KERNEL(DROPOUT, CPU(dropout), NULL, ATTR(DROPOUT_P) | ATTR(DROPOUT_SITE));
KERNEL(SCALE, CPU(scale), NULL, ATTR(SCALE_BY));
KERNEL(FETCH, CPU(add));
KERNEL(ACCUMULATE, CPU(accumulate));
KERNEL(SQNORM, CPU(sqnorm), NULL, ATTR(SCALE_BY));
