/* Shared by the update kernels: the scalars of a step, the loop over vectors of elements, the copy that
 * GEMMs read, and stochastic rounding of bf16 weights. */
#ifndef INGOT_OPS_CPU_UPDATE_H
#define INGOT_OPS_CPU_UPDATE_H

#include "ops/matrix_slice.h"
#include "philox.h"
#include "bandwidth.h"

#include <math.h>

#include "ops/op_table.h"

/* The scalars of one call: computed once, in fp64, from the attributes and the step block. */
typedef struct update_factors {
    float scale;         /* of the gradient */
    float lr;            /* of this parameter, over the direction's size where that is above 1 */
    float keep;          /* 1 - lr decay: what decoupled decay leaves */
    float decay;         /* the decay itself */
    float mu, now, then; /* momentum; the direction is now g + then m */
    float b1, g1;        /* beta1, and (1 - beta1) with the gradient's scale in it */
    float b2, g2;        /* beta2, likewise */
    float root_g2;       /* what g is multiplied by before it is squared */
    float step, eps;     /* Adam: p -= step m / (sqrt(v) + eps), bias corrections in them */
} update_factors;

static inline float momentum_of(const op_call *c) {
    const step_block *s = c->run->step;
    double mu = c->attr.update.momentum;
    return (float)(mu + s->update.momentum.weight * (s->update.momentum.toward - mu));
}

static inline update_factors update_factors_of(const op_call *c) {
    const step_block *s = c->run->step;
    double lr = (double)s->update.lr * c->attr.update.lr_mul, decay = c->attr.update.decay;
    decay *= 1 - (double)s->update.decay_less[c->attr.update.decay_by];
    float mu = momentum_of(c);
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2, t = (double)s->now.count;
    /* L2 decay is added to the scaled gradient, so that the factors below must not scale it again */
    double scale = c->attr.update.l2 ? 1 : s->now.grad_scale;
    double root_bias = sqrt(1 - pow(b2, t)), most = 1;
    if (c->op == OP_UPDATE_ALONG && c->in[1].data) {
        const float *squares = c->in[1].data;
        most = MAX(1.0, sqrt((double)squares[0] + squares[1]));
    }
    bool nesterov = c->attr.update.nesterov;
    return (update_factors){ .scale = s->now.grad_scale,
                             .lr = (float)(lr / most),
                             .keep = c->attr.update.l2 ? 1 : (float)(1 - lr * decay),
                             .decay = (float)decay,
                             .mu = mu,
                             .now = nesterov ? 1 : 0,
                             .then = nesterov ? mu : 1,
                             .b1 = (float)b1,
                             .g1 = (float)((1 - b1) * scale),
                             .b2 = (float)b2,
                             .g2 = (float)((1 - b2) * scale),
                             .root_g2 = (float)(sqrt(1 - b2) * scale),
                             .step = (float)(lr * root_bias / (1 - pow(b1, t))),
                             .eps = (float)(c->attr.update.eps * root_bias) };
}

/* ---- vectors of elements --------------------------------------------------------------------- */
typedef struct update_lane {
    vf g, p, m, v;
} update_lane;

#if defined(__ARM_NEON)
LOOP_INLINE vf vec_root(vf x) { return (vf)vsqrtq_f32((float32x4_t)x); }
#elif defined(__AVX512F__)
LOOP_INLINE vf vec_root(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
#elif defined(__AVX2__)
LOOP_INLINE vf vec_root(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
#elif defined(__SSE2__)
LOOP_INLINE vf vec_root(vf x) { return (vf)_mm_sqrt_ps((__m128)x); }
#else
LOOP_INLINE vf vec_root(vf x) {
    for (int i = 0; i < VEC; i++) x[i] = sqrtf(x[i]);
    return x;
}
#endif

/* PyTorch's p = keep p - lr / bias1 m / (sqrt(v) / sqrt(bias2) + eps), with sqrt(bias2) moved out:
 * these loops are limited by arithmetic before memory, so that every multiplication counts. */
LOOP_INLINE void adam_lane(const update_factors *f, update_lane *x) {
    vf g = x->g * f->root_g2;
    x->m = vec_muladd(x->m, vec_of(f->b1), x->g * f->g1);
    x->v = vec_muladd(g, g, x->v * f->b2);
    x->p = vec_muladd(x->m / (vec_root(x->v) + f->eps), vec_of(-f->step), x->p * f->keep);
}

/* Elements [0, n) of a block; m and v are NULL where the rule has none. `copy` is written in the same loop
 * when it is bf16; the caller converts to other types. */
typedef struct elements {
    const float *g;
    float *p, *m, *v;
    uint16_t *copy;
    int64_t n;
} elements;
typedef void (*lane_rule)(const update_factors *f, update_lane *x);

/* Several vectors at once, loads first and stores last: the dependent operations of one vector are longer
 * than the processor's reorder window. */
LOOP_INLINE void sweep_lanes(lane_rule rule, const update_factors *f, elements e, int64_t k,
                             int n) {
    update_lane x[UNIT_VECS];
    for (int i = 0; i < n; i++) {
        x[i].g = vec_load(DT_F32, e.g, k + i * VEC);
        x[i].p = vec_load(DT_F32, e.p, k + i * VEC);
        if (e.m) x[i].m = vec_load(DT_F32, e.m, k + i * VEC);
        if (e.v) x[i].v = vec_load(DT_F32, e.v, k + i * VEC);
    }
    for (int i = 0; i < n; i++) rule(f, &x[i]);
    for (int i = 0; i < n; i++) {
        vec_store(DT_F32, e.p, k + i * VEC, x[i].p);
        if (e.m) vec_store(DT_F32, e.m, k + i * VEC, x[i].m);
        if (e.v) vec_store(DT_F32, e.v, k + i * VEC, x[i].v);
        if (e.copy) vec_store(DT_BF16, e.copy, k + i * VEC, x[i].p);
    }
}

/* The last elements, fewer than a vector holds. */
LOOP_INLINE void sweep_rest(lane_rule rule, const update_factors *f, elements e, int64_t k) {
    float g[VEC] = { 0 }, p[VEC] = { 0 }, m[VEC] = { 0 }, v[VEC] = { 0 };
    uint16_t copy[VEC];
    size_t n = (size_t)(e.n - k), bytes = n * sizeof(float);
    memcpy(g, e.g + k, bytes);
    memcpy(p, e.p + k, bytes);
    if (e.m) memcpy(m, e.m + k, bytes);
    if (e.v) memcpy(v, e.v + k, bytes);
    elements own = { g, p, e.m ? m : NULL, e.v ? v : NULL, e.copy ? copy : NULL, VEC };
    sweep_lanes(rule, f, own, 0, 1);
    memcpy(e.p + k, p, bytes);
    if (e.m) memcpy(e.m + k, m, bytes);
    if (e.v) memcpy(e.v + k, v, bytes);
    if (e.copy) memcpy(e.copy + k, copy, n * sizeof *copy);
}

/* Inlined, so that the rule, and which pointers are NULL, are constants. */
LOOP_INLINE void sweep_elements(lane_rule rule, const update_factors *f, elements e) {
    const update_factors own = *f; /* which no store can alias */
    int64_t k = 0;
    for (; k + UNIT <= e.n; k += UNIT) {
        unit_prefetch(DT_F32, e.g, k);
        unit_prefetch(DT_F32, e.p, k);
        if (e.m) unit_prefetch(DT_F32, e.m, k);
        if (e.v) unit_prefetch(DT_F32, e.v, k);
        sweep_lanes(rule, &own, e, k, UNIT_VECS);
    }
    for (; k + VEC <= e.n; k += VEC) sweep_lanes(rule, &own, e, k, 1);
    if (k < e.n) sweep_rest(rule, &own, e, k);
}

/* @return the copy that `sweep` writes itself; NULL: there is none, or one of another type. */
static inline uint16_t *copy_at(const tensor *copy, int64_t at) {
    return copy->data && copy->dt == DT_BF16 ? (uint16_t *)copy->data + at : NULL;
}

/* ---- weights kept in bf16 --------------------------------------------------------------------
 * Rounded stochastically, so that steps too small for the type count on average. Element i of
 * a whole parameter is decided by the upper half of word i % 4 of
 *     philox(step key, { all ones, update, parameter, i / 4 })
 * whichever rank or call holds it. No dropout has a first word of all ones. */
static inline uint16_t round_stochastic(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) /* infinite or NaN: kept, NaN as a quiet one */
        return (uint16_t)(bits >> 16 | (bits & 0x7fffffu ? 0x40u : 0u));
    return (uint16_t)((bits + (random >> 16)) >> 16);
}

/* Rounds elements [at, at + n) of the weights from fp32. */
static inline void update_round(const op_call *c, const float *x, int64_t at, int64_t n) {
    const step_block *s = c->run->step;
    uint32_t head[3] = { ~0u, (uint32_t)s->now.count, c->attr.update.site }, word[PHILOX_WORDS];
    philox_prefix prefix = philox_prepare(s->update.rounding, head);
    uint16_t *p = (uint16_t *)c->out[0].data + at;
    int64_t cols = c->attr.update.cols ? c->attr.update.cols : INT64_MAX;
    for (int64_t done = 0; done < n;) { /* row by row */
        int64_t local = c->attr.update.first + at + done, row = local / cols, col = local % cols;
        int64_t index = c->attr.update.base + row * c->attr.update.stride + col;
        int64_t end = index + MIN(n - done, cols - col);
        for (int64_t i = index; i < end;) {
            int64_t from = i / 4 * 4, to = MIN(end, from + PHILOX_WORDS);
            philox_words(&prefix, (uint32_t)(from / 4), word);
            for (; i < to; i++, done++) p[done] = round_stochastic(x[done], word[i - from]);
        }
    }
}

/* @return where to compute elements [at, at + n) of the weights: in place when fp32, else converted into
 * tmp; then call update_put. */
static inline float *update_get(const tensor *p, int64_t at, int64_t n, float *tmp) {
    if (p->dt == DT_F32) return (float *)p->data + at;
    CPU(to_f32)(p->dt, (const uint16_t *)p->data + at, tmp, n);
    return tmp;
}
static inline void update_put(const op_call *c, const tensor *copy, const float *x, int64_t at,
                              int64_t n) {
    if (c->out[0].dt == DT_BF16)
        update_round(c, x, at, n);
    else if (copy->data)
        elems_put(copy, at, n, x);
}

/* ---- slices of matrices ---------------------------------------------------------------------- */
/* The rows of the i-th task of `each`. */
static inline span task_rows(const matrix_slice *m, int64_t i, int64_t each) {
    span s = span_of(i, each, m->end - m->begin);
    return (span){ s.lo + m->begin, s.hi + m->begin };
}
static inline span row_span(const matrix_slice *m, int64_t row) {
    return (span){ MAX(m->first, row * m->cols) - row * m->cols,
                   MIN(m->first + m->n, (row + 1) * m->cols) - row * m->cols };
}
/* The call's index of a local row's first column; below 0 where the part begins within the row. */
static inline int64_t row_at(const matrix_slice *m, int64_t row) {
    return row * m->cols - m->first;
}

/* Checks the operands: fp32 of one size; the copy may have any float type.
 * @return false when the step is skipped: nothing may change. */
static inline bool update_due(const op_call *c, int states, int copy) {
    int64_t n = tensor_count(&c->in[0]);
    BUG_IF(c->in[0].dt != DT_F32);
    bool narrow = c->out[0].dt == DT_BF16;
    for (int i = 0; i <= states; i++)
        BUG_IF(!c->out[i].data || tensor_count(&c->out[i]) != n ||
               (c->out[i].dt != DT_F32 && !(narrow && i == 0)));
    BUG_IF(c->out[copy].data && (narrow || tensor_count(&c->out[copy]) != n));
    if (c->run->step->now.skip) return false;
    BUG_IF(c->run->step->now.count < 1);
    return true;
}

#endif
