/* The residual mixed with an earlier value (mix.c) and the RMS norm without weights that follows, a row at a time:
 *
 *     r = x + delta,   m = a r + b past, rounded to its type,   y = m stat,   stat = 1 / rms(m)
 *     g = dm + stat (dy - m stat^2 mean(dy m)),   dx = a g,   dpast = dkept + b g,   da and db as sums of g r and g past
 *
 * Every operand is read once from memory; the second pass over a row finds it in cache. Rows of one type, fp32 or bf16,
 * that are whole units (bandwidth.h) are computed in registers, all others in fp32 copies. The sums da and db over fixed
 * chunks of rows are added in order: deterministic for any number of threads. */
#include "norm.h"
#include "ops/op_table.h"

#include <math.h>

typedef struct mix_job {
    const op_call *c;
    norm_space space;
    int64_t n, d, each; /* each: rows per task forward, chunks per task backward */
    float a, b;
    dtype
        native; /* the type all activations share, where rows are computed in units; else DT_NONE */
} mix_job;

static mix_job mix_job_of(const op_call *c, const tensor *const *t, int n) {
    const float *a = c->in[3].data, *b = c->in[4].data;
    mix_job j = { .c = c,
                  .space = CPU(norm_space_of)(c),
                  .n = c->in[0].dim[0],
                  .d = c->in[0].dim[1],
                  .each = bandwidth_rows(c->in[0].dim[0], c->in[0].dim[1], c->run->pool),
                  .a = a ? *a : 1,
                  .b = *b,
                  .native = t[0]->dt };
    for (int i = 0; i < n; i++)
        if (t[i]->data && t[i]->dt != j.native) j.native = DT_NONE;
    if (j.d % UNIT || (j.native != DT_F32 && j.native != DT_BF16)) j.native = DT_NONE;
    return j;
}

/* ---- rows of one type, in units ---------------------------------------------------------------- */
static void *row_pointer(const tensor *t, int64_t row, int64_t d) {
    return t->data ? (char *)t->data + (size_t)(row * d) * dt_size(t->dt) : NULL;
}

/* Computes the unit of m at k, rounded to its type: stores it, and leaves it in registers. */
LOOP_INLINE void mix_unit(dtype t, const mix_job *j, const void *r, const void *past, void *to,
                          int64_t k, vf m[UNIT_VECS]) {
    vf p[UNIT_VECS];
    unit_load(t, r, k, m);
    unit_load(t, past, k, p);
    UNIT_EACH m[i] = vec_muladd(m[i], vec_of(j->a), p[i] * j->b);
    unit_store(t, to, k, m);
    if (t != DT_F32) unit_load(t, to, k, m);
}

/* @param m a row of scratch memory, where the result itself is absent */
LOOP_INLINE void forward_units(dtype t, const mix_job *j, int64_t row, void *m) {
    const op_call *c = j->c;
    const void *x = row_pointer(&c->in[0], row, j->d), *delta = row_pointer(&c->in[1], row, j->d);
    const void *past = row_pointer(&c->in[2], row, j->d);
    void *r = row_pointer(&c->out[0], row, j->d), *y = row_pointer(&c->out[2], row, j->d);
    void *kept = row_pointer(&c->out[4], row, j->d);
    size_t bytes = (size_t)j->d * elem_size(t);
    vf squares[UNIT_VECS] = { { 0 } }, v[UNIT_VECS], w[UNIT_VECS];
    if (kept) memcpy(kept, past, bytes);
    if (!delta && r && r != x) memcpy(r, x, bytes);
    if (!r) r = (void *)x; /* which is only read then */
    for (int64_t k = 0; k < j->d; k += UNIT) {
        unit_prefetch(t, x, k);
        unit_prefetch(t, past, k);
        if (delta) {
            unit_prefetch(t, delta, k);
            unit_load(t, x, k, v);
            unit_load(t, delta, k, w);
            UNIT_EACH v[i] += w[i];
            unit_store(t, r, k, v);
        }
        mix_unit(t, j, r, past, m, k, v);
        UNIT_EACH squares[i] += v[i] * v[i];
    }
    float scale = 1 / sqrtf(unit_total(squares) / (float)j->d + c->attr.eps);
    ((float *)c->out[3].data)[row] = scale;
    for (int64_t k = 0; y && k < j->d; k += UNIT) {
        unit_load(t, m, k, v);
        UNIT_EACH v[i] *= scale;
        unit_store(t, y, k, v);
    }
}

/* @param m a row of scratch memory @param sums da and db so far */
LOOP_INLINE void backward_units(dtype t, const mix_job *j, int64_t row, void *m, double sums[2]) {
    const op_call *c = j->c;
    const void *dy = row_pointer(&c->in[0], row, j->d), *r = row_pointer(&c->in[1], row, j->d);
    const void *past = row_pointer(&c->in[2], row, j->d), *dm = row_pointer(&c->in[6], row, j->d);
    const void *dkept = row_pointer(&c->in[7], row, j->d);
    void *dx = row_pointer(&c->out[0], row, j->d), *dpast = row_pointer(&c->out[1], row, j->d);
    float scale = ((const float *)c->in[5].data)[row];
    vf dot[UNIT_VECS] = { { 0 } }, da[UNIT_VECS] = { { 0 } }, db[UNIT_VECS] = { { 0 } };
    vf g[UNIT_VECS], v[UNIT_VECS], w[UNIT_VECS];
    for (int64_t k = 0; k < j->d; k += UNIT) {
        unit_prefetch(t, dy, k);
        unit_prefetch(t, r, k);
        unit_prefetch(t, past, k);
        mix_unit(t, j, r, past, m, k, v);
        unit_load(t, dy, k, g);
        UNIT_EACH dot[i] += g[i] * v[i];
    }
    float along = unit_total(dot) * scale * scale / (float)j->d;
    for (int64_t k = 0; k < j->d; k += UNIT) {
        unit_load(t, dy, k, g);
        unit_load(t, m, k, v);
        UNIT_EACH g[i] = (g[i] - v[i] * along) * scale;
        if (dm) {
            unit_prefetch(t, dm, k);
            unit_load(t, dm, k, v);
            UNIT_EACH g[i] += v[i];
        }
        unit_load(t, r, k, v);
        UNIT_EACH da[i] += g[i] * v[i];
        unit_load(t, past, k, v);
        UNIT_EACH db[i] += g[i] * v[i];
        UNIT_EACH v[i] = g[i] * j->b;
        if (dkept) {
            unit_prefetch(t, dkept, k);
            unit_load(t, dkept, k, w);
            UNIT_EACH v[i] += w[i];
        }
        unit_store(t, dpast, k, v);
        UNIT_EACH g[i] *= j->a;
        unit_store(t, dx, k, g); /* last: it may replace dy */
    }
    sums[0] += (double)unit_total(da);
    sums[1] += (double)unit_total(db);
}

/* ---- any mixture of types ---------------------------------------------------------------------- */
/* Computes m = a r + b past, rounded to type dt, for either pass. @param tmp where it is rounded */
static void mix_row_values(const mix_job *j, const float *r, const float *past, dtype dt, float *m,
                           float *tmp) {
    float a = j->a, b = j->b;
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) m[k] = a * r[k] + b * past[k];
    if (dt == DT_F32) return;
    CPU(from_f32)(dt, m, tmp, j->d);
    CPU(to_f32)(dt, tmp, m, j->d);
}

/* @return row `row` of x + delta, rounded to the type of r and stored there where r is wanted. */
static const float *sum_row(const mix_job *j, int64_t row, float *tmp, float *other) {
    const tensor *xt = &j->c->in[0], *dt = &j->c->in[1], *rt = &j->c->out[0];
    const float *x = CPU(row_get)(xt, row, j->d, tmp);
    bool onto_itself = rt->data == xt->data && rt->dt == xt->dt;
    if (!rt->data || (!dt->data && onto_itself)) return x;
    if (dt->data) {
        const float *delta = CPU(row_get)(dt, row, j->d, other);
#pragma omp simd
        for (int64_t k = 0; k < j->d; k++) tmp[k] = x[k] + delta[k];
        x = tmp;
    }
    CPU(row_put)(rt, row, j->d, x);
    return CPU(row_get)(rt, row, j->d, tmp);
}

static void mix_norm_row(const mix_job *j, int64_t row, int worker) {
    const op_call *c = j->c;
    const tensor *mt = &c->out[1], *yt = &c->out[2], *kept = &c->out[4];
    float *tmp = norm_row(&j->space, worker, 0), *other = norm_row(&j->space, worker, 1);
    float *m = norm_row(&j->space, worker, 2), squares = 0;
    const float *r = sum_row(j, row, tmp, other);
    const float *past = CPU(row_get)(&c->in[2], row, j->d, other);
    if (kept->data) CPU(row_put)(kept, row, j->d, past);
    mix_row_values(j, r, past, mt->data ? mt->dt : c->in[0].dt, m, norm_row(&j->space, worker, 3));
    if (mt->data) CPU(row_put)(mt, row, j->d, m);
#pragma omp simd reduction(+ : squares)
    for (int64_t k = 0; k < j->d; k++) squares += m[k] * m[k];
    float scale = 1 / sqrtf(squares / (float)j->d + c->attr.eps);
    ((float *)c->out[3].data)[row] = scale;
    if (!yt->data) return;
    float *y = CPU(row_at)(yt, row, j->d, tmp);
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) y[k] = m[k] * scale;
    CPU(row_put)(yt, row, j->d, y);
}

/* Replaces m by the gradient g. */
static void through_norm(const mix_job *j, int64_t row, const float *dy, float *m, float *tmp) {
    const tensor *dmt = &j->c->in[6];
    float scale = ((const float *)j->c->in[5].data)[row], dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t k = 0; k < j->d; k++) dot += dy[k] * m[k];
    float along = dot * scale * scale / (float)j->d;
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) m[k] = scale * (dy[k] - m[k] * along);
    if (!dmt->data) return;
    const float *dm = CPU(row_get)(dmt, row, j->d, tmp);
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) m[k] += dm[k];
}

static void mix_norm_row_bwd(const mix_job *j, int64_t row, int worker, double sums[2]) {
    const op_call *c = j->c;
    const tensor *rt = &c->in[1], *keptt = &c->in[7], *dxt = &c->out[0], *dpastt = &c->out[1];
    float *own[NORM_ROWS], a = j->a, b = j->b, with_r = 0, with_past = 0;
    for (int i = 0; i < NORM_ROWS; i++) own[i] = norm_row(&j->space, worker, i);
    const float *dy = CPU(row_get)(&c->in[0], row, j->d, own[0]);
    const float *r = CPU(row_get)(rt, row, j->d, own[1]);
    const float *past = CPU(row_get)(&c->in[2], row, j->d, own[2]);
    float *g = own[3];
    mix_row_values(j, r, past, rt->dt, g, own[4]);
    through_norm(j, row, dy, g, own[4]);
#pragma omp simd reduction(+ : with_r, with_past)
    for (int64_t k = 0; k < j->d; k++) {
        with_r += g[k] * r[k];
        with_past += g[k] * past[k];
    }
    sums[0] += (double)with_r;
    sums[1] += (double)with_past;
    const float *kept = keptt->data ? CPU(row_get)(keptt, row, j->d, own[4]) : NULL;
    float *dpast = CPU(row_at)(dpastt, row, j->d, own[2]);
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) dpast[k] = kept ? kept[k] + b * g[k] : b * g[k];
    CPU(row_put)(dpastt, row, j->d, dpast);
    float *dx = CPU(row_at)(dxt, row, j->d, own[1]);
#pragma omp simd
    for (int64_t k = 0; k < j->d; k++) dx[k] = a * g[k];
    CPU(row_put)(dxt, row, j->d, dx);
}

/* ---- calls ------------------------------------------------------------------------------------- */
static void mix_norm_task(void *ctx, int64_t i, int worker) {
    const mix_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        void *m = row_pointer(&j->c->out[1], row, j->d);
        if (!m) m = norm_row(&j->space, worker, 0);
        if (j->native == DT_BF16)
            forward_units(DT_BF16, j, row, m);
        else if (j->native == DT_F32)
            forward_units(DT_F32, j, row, m);
        else
            mix_norm_row(j, row, worker);
    }
}

static void CPU(mix_norm)(const op_call *c) {
    const tensor *all[] = { &c->in[0],  &c->in[1],  &c->in[2], &c->out[0],
                            &c->out[1], &c->out[2], &c->out[4] };
    mix_job j = mix_job_of(c, all, COUNT_OF(all));
    BUG_IF(c->in[1].data && !c->out[0].data); /* the sum must be kept somewhere */
    pool_run(c->run->pool, ceil_div(j.n, j.each), mix_norm_task, &j);
}

static void mix_norm_bwd_task(void *ctx, int64_t i, int worker) {
    const mix_job *j = ctx;
    span chunks = span_of(i, j->each, j->space.chunks);
    for (int64_t chunk = chunks.lo; chunk < chunks.hi; chunk++) {
        span rows = span_of(chunk, j->space.each, j->n);
        float *partial = j->space.partial + chunk * j->space.width;
        double sums[2] = { 0 };
        for (int64_t row = rows.lo; row < rows.hi; row++) {
            void *m = norm_row(&j->space, worker, 0);
            if (j->native == DT_BF16)
                backward_units(DT_BF16, j, row, m, sums);
            else if (j->native == DT_F32)
                backward_units(DT_F32, j, row, m, sums);
            else
                mix_norm_row_bwd(j, row, worker, sums);
        }
        partial[0] = (float)sums[0];
        partial[1] = (float)sums[1];
    }
}

static void CPU(mix_norm_bwd)(const op_call *c) {
    const tensor *all[] = { &c->in[0], &c->in[1],  &c->in[2], &c->in[6],
                            &c->in[7], &c->out[0], &c->out[1] };
    mix_job j = mix_job_of(c, all, COUNT_OF(all));
    j.each = ceil_div(j.each, j.space.each);
    pool_run(c->run->pool, ceil_div(j.space.chunks, j.each), mix_norm_bwd_task, &j);
    for (int i = 0; i < 2; i++) CPU(norm_reduce)(c, &j.space, i, 2 + i);
}

KERNEL(MIX_NORM, CPU(mix_norm), CPU(norm_workspace), ATTR(EPS));
KERNEL(MIX_NORM_BWD, CPU(mix_norm_bwd), CPU(norm_workspace));
