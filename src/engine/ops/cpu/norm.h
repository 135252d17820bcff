/* Shared by the norms: sums over a row, and weight gradients summed over rows.
 *
 * Workspace of a norm:
 *     partial[chunks][width]          backward: one weight gradient per chunk of rows
 *     rows[threads][NORM_ROWS][ld]    fp32 copies of the rows a worker is computing
 */
#ifndef INGOT_OPS_CPU_NORM_H
#define INGOT_OPS_CPU_NORM_H

#include "bandwidth.h"

#include <string.h>

enum { NORM_ROWS = 5 };

typedef struct norm_space {
    int64_t rows, each, chunks; /* row chunks of the backward, `each` rows long */
    int64_t width;              /* of a partial weight gradient; 0 forward */
    int64_t ld;                 /* of a row copy */
    float *partial, *row;
} norm_space;

/* @return how a norm call of these shapes divides its workspace; pointers are NULL. */
norm_space CPU(norm_divide)(const op_call *c);
/* The same, with the pointers. */
norm_space CPU(norm_space_of)(const op_call *c);
static inline float *norm_row(const norm_space *s, int worker, int which) {
    return s->row + (worker * NORM_ROWS + which) * s->ld;
}

/* out[0..n) (+)= the sum over chunks, in order, of partial columns [first, first + n). */
const float *CPU(norm_weights)(const tensor *w, int64_t d, float *tmp);
void CPU(norm_reduce)(const op_call *c, const norm_space *s, int64_t first, int which);

/* ---- rows of one type: fp32 or bf16 ------------------------------------------------------------
 * Weights are fp32. Sums run in several vectors at once, in an order that depends on the width alone, and
 * always over the row as rounded to its type, so that statistics are the same when the row is read back.
 * The end of a row is padded with zeros and goes through the same code. */

/* The variant of a loop: constant after inlining. */
typedef struct norm_form {
    dtype t;
    bool centered; /* layer norm */
    bool delta;    /* forward: there is a residual sum to compute */
    bool extra;    /* forward: a bias; backward: dr */
} norm_form;

/* Not inlined, so that every loop adds up its sums with the same instructions. */
static __attribute__((noinline)) float norm_total(vf a, vf b, vf c, vf d) {
    return vec_sum((a + b) + (c + d));
}
LOOP_INLINE float unit_total(const vf x[UNIT_VECS]) { return norm_total(x[0], x[1], x[2], x[3]); }

/* Elements [k, k + m) of a row, and zeros up to a unit. */
typedef struct norm_rest {
    _Alignas(VEC_BYTES) char at[UNIT * sizeof(float)];
} norm_rest;
LOOP_INLINE void *rest_get(dtype t, const void *p, int64_t k, int64_t m, norm_rest *rest) {
    size_t size = elem_size(t);
    memset(rest, 0, sizeof *rest);
    memcpy(rest->at, (const char *)p + (size_t)k * size, (size_t)m * size);
    return rest->at;
}
LOOP_INLINE void rest_put(dtype t, void *p, int64_t k, int64_t m, const norm_rest *rest) {
    size_t size = elem_size(t);
    memcpy((char *)p + (size_t)k * size, rest->at, (size_t)m * size);
}

/* ---- forward: a row is read twice, for its statistics, then for the result. The second pass of one row
 * and the first pass of the next are one loop, so that reads, arithmetic and writes overlap: as separate
 * loops, one would be limited by memory and the other by arithmetic. */

/* The row whose statistics are next, r, which is x + delta or x itself. r NULL: there is none. */
typedef struct norm_next {
    const void *x, *delta;
    void *r;
    float *sum; /* layer norm: where the sum of the row goes */
} norm_next;
/* The row to finish: y = (x * scale + shift) * w + b. x NULL: there is none. */
typedef struct norm_finish {
    const void *x;
    void *y;
    const float *w, *b;
    float scale, shift;
} norm_finish;
typedef struct norm_sums {
    vf plain[UNIT_VECS], squares[UNIT_VECS];
} norm_sums;

LOOP_INLINE void unit_sums_of(dtype t, const void *r, int64_t k, bool centered, norm_sums *s) {
    vf x[UNIT_VECS];
    unit_load(t, r, k, x);
    UNIT_EACH s->squares[i] += x[i] * x[i];
    if (centered) UNIT_EACH s->plain[i] += x[i];
}
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/* Hidden from gcc 12, which would replace it by the fp16 constant 1. */
LOOP_INLINE bfloat16x8_t bf16_ones(void) {
    uint16x8_t one = vdupq_n_u16(0x3f80);
    __asm__("" : "+w"(one));
    return vreinterpretq_bf16_u16(one);
}
/* Adds the products of two adjacent elements at once, without converting them: lanes sum other elements
 * than in fp32, so that the last bits of a row's statistics depend on the type it is read in. */
LOOP_INLINE void unit_sums_bf16(const void *r, int64_t k, bool centered, norm_sums *s) {
    const bfloat16x8_t one = bf16_ones();
    VEC_UNROLL for (int i = 0; i < UNIT_VECS; i += 2) {
        bfloat16x8_t x = vreinterpretq_bf16_u16(vld1q_u16((const uint16_t *)r + k + i * VEC));
        s->squares[i] = (vf)vbfdotq_f32((float32x4_t)s->squares[i], x, x);
        if (centered) s->plain[i] = (vf)vbfdotq_f32((float32x4_t)s->plain[i], x, one);
    }
}
#else
LOOP_INLINE void unit_sums_bf16(const void *r, int64_t k, bool centered, norm_sums *s) {
    unit_sums_of(DT_BF16, r, k, centered, s);
}
#endif

LOOP_INLINE void next_row_unit(norm_form f, const norm_next *n, int64_t k, norm_sums *s) {
    if (f.delta) {
        vf x[UNIT_VECS], delta[UNIT_VECS];
        unit_load(f.t, n->x, k, x);
        unit_load(f.t, n->delta, k, delta);
        UNIT_EACH x[i] += delta[i];
        unit_store(f.t, n->r, k, x);
    }
    if (f.t == DT_BF16)
        unit_sums_bf16(n->r, k, f.centered, s);
    else
        unit_sums_of(f.t, n->r, k, f.centered, s);
}
LOOP_INLINE void next_rest(norm_form f, const norm_next *n, int64_t k, int64_t m, norm_sums *s) {
    norm_rest r, delta;
    norm_next own = { .r = rest_get(f.t, f.delta ? n->x : n->r, k, m, &r) };
    own.x = own.r;
    if (f.delta) own.delta = rest_get(f.t, n->delta, k, m, &delta);
    next_row_unit(f, &own, 0, s);
    if (f.delta) rest_put(f.t, n->r, k, m, &r);
}
LOOP_INLINE void next_ahead(norm_form f, const norm_next *n, int64_t k) {
    unit_prefetch(f.t, f.delta ? n->x : n->r, k);
    if (f.delta) unit_prefetch(f.t, n->delta, k);
}

LOOP_INLINE void out_unit(norm_form f, const norm_finish *o, int64_t k) {
    vf v[UNIT_VECS], w[UNIT_VECS], b[UNIT_VECS];
    unit_load(f.t, o->x, k, v);
    unit_load(DT_F32, o->w, k, w);
    if (f.extra) unit_load(DT_F32, o->b, k, b);
    UNIT_EACH v[i] = f.centered ? v[i] * o->scale + o->shift : v[i] * o->scale;
    UNIT_EACH v[i] = f.extra ? v[i] * w[i] + b[i] : v[i] * w[i];
    unit_store(f.t, o->y, k, v);
}
LOOP_INLINE void out_rest(norm_form f, const norm_finish *o, int64_t k, int64_t m) {
    norm_rest x, w, b;
    norm_finish own = *o;
    own.x = own.y = rest_get(f.t, o->x, k, m, &x);
    own.w = rest_get(DT_F32, o->w, k, m, &w);
    if (f.extra) own.b = rest_get(DT_F32, o->b, k, m, &b);
    out_unit(f, &own, 0);
    rest_put(f.t, o->y, k, m, &x);
}

/* One pass of width d over both rows. @return the sum of the next row's squares. */
LOOP_INLINE float norm_pass(norm_form f, norm_next n, norm_finish o, int64_t d) {
    norm_sums s = { .plain = { { 0 } } };
    int64_t whole = d / UNIT * UNIT, rest = d - whole;
    if (n.r && rest) next_rest(f, &n, whole, rest, &s);
    if (o.x && rest) out_rest(f, &o, whole, rest);
    if (n.r && o.x) {
        for (int64_t k = 0; k < whole; k += UNIT) {
            next_ahead(f, &n, k);
            next_row_unit(f, &n, k, &s);
            out_unit(f, &o, k);
        }
    } else if (n.r) {
        for (int64_t k = 0; k < whole; k += UNIT) next_row_unit(f, &n, k, &s);
    } else if (o.x) {
        for (int64_t k = 0; k < whole; k += UNIT) out_unit(f, &o, k);
    }
    if (f.centered && n.sum) *n.sum = unit_total(s.plain);
    return unit_total(s.squares);
}

/* ---- backward, a row at a time: with h = x * scale + shift and g = dy w,
 *     dw += dy h,   db += dy,   dx = dr + scale * (g - mean(g) - h * mean(g h))
 * An RMS norm has shift 0, no mean(g) and no db. */
typedef struct norm_back {
    const void *dy, *x, *dr;
    void *dx;
    float scale, shift;
    float at, by; /* dx = dr + scale g - (at + by x): known after the first of the two loops */
} norm_back;
typedef struct norm_grad {
    const float *w;
    float *dw, *db;
} norm_grad;
typedef struct norm_dots {
    vf g[UNIT_VECS], gh[UNIT_VECS]; /* sums of g, and of g h (RMS norm: of g x) */
} norm_dots;

LOOP_INLINE void dots_unit(norm_form f, const norm_back *n, const norm_grad *p, norm_dots *s,
                           int64_t k) {
    vf dy[UNIT_VECS], x[UNIT_VECS], w[UNIT_VECS], dw[UNIT_VECS], db[UNIT_VECS];
    unit_load(f.t, n->dy, k, dy);
    unit_load(f.t, n->x, k, x);
    unit_load(DT_F32, p->w, k, w);
    unit_load(DT_F32, p->dw, k, dw);
    if (f.centered) {
        unit_load(DT_F32, p->db, k, db);
        UNIT_EACH x[i] = x[i] * n->scale + n->shift;
        UNIT_EACH db[i] += dy[i];
        unit_store(DT_F32, p->db, k, db);
        UNIT_EACH dw[i] += dy[i] * x[i];
        UNIT_EACH dy[i] *= w[i];
        UNIT_EACH s->g[i] += dy[i];
        UNIT_EACH s->gh[i] += dy[i] * x[i];
    } else {
        UNIT_EACH dy[i] *= x[i];
        UNIT_EACH s->gh[i] += dy[i] * w[i];
        UNIT_EACH dw[i] += dy[i] * n->scale;
    }
    unit_store(DT_F32, p->dw, k, dw);
}
LOOP_INLINE void dots_rest(norm_form f, const norm_back *n, const norm_grad *p, norm_dots *s,
                           int64_t k, int64_t m) {
    norm_rest dy, x, w, dw, db;
    norm_back own = *n;
    norm_grad sums = { .w = rest_get(DT_F32, p->w, k, m, &w),
                       .dw = rest_get(DT_F32, p->dw, k, m, &dw) };
    own.dy = rest_get(f.t, n->dy, k, m, &dy);
    own.x = rest_get(f.t, n->x, k, m, &x);
    if (f.centered) sums.db = rest_get(DT_F32, p->db, k, m, &db);
    dots_unit(f, &own, &sums, s, 0);
    rest_put(DT_F32, p->dw, k, m, &dw);
    if (f.centered) rest_put(DT_F32, p->db, k, m, &db);
}

LOOP_INLINE void back_unit(norm_form f, const norm_back *o, const float *weight, int64_t k) {
    vf dy[UNIT_VECS], x[UNIT_VECS], w[UNIT_VECS], dx[UNIT_VECS] = { { 0 } };
    unit_load(f.t, o->dy, k, dy);
    unit_load(f.t, o->x, k, x);
    unit_load(DT_F32, weight, k, w);
    if (f.extra) unit_load(f.t, o->dr, k, dx);
    UNIT_EACH dy[i] *= o->scale;
    if (f.centered) UNIT_EACH dx[i] -= o->at;
    UNIT_EACH dx[i] += dy[i] * w[i];
    UNIT_EACH dx[i] -= x[i] * o->by;
    unit_store(f.t, o->dx, k, dx);
}
LOOP_INLINE void back_rest(norm_form f, const norm_back *o, const float *weight, int64_t k,
                           int64_t m) {
    norm_rest dy, x, dr, dx, w;
    norm_back own = *o;
    own.dy = rest_get(f.t, o->dy, k, m, &dy);
    own.x = rest_get(f.t, o->x, k, m, &x);
    own.dx = dx.at;
    if (f.extra) own.dr = rest_get(f.t, o->dr, k, m, &dr);
    back_unit(f, &own, rest_get(DT_F32, weight, k, m, &w), 0);
    rest_put(f.t, o->dx, k, m, &dx);
}

/* The first loop: weight gradients, and what the second needs. */
LOOP_INLINE void back_sums(norm_form f, norm_back *row, norm_grad p, int64_t d) {
    norm_dots s = { .g = { { 0 } } };
    norm_back n = *row;
    int64_t whole = d / UNIT * UNIT;
    if (whole < d) dots_rest(f, &n, &p, &s, whole, d - whole);
    for (int64_t k = 0; k < whole; k += UNIT) {
        unit_prefetch(f.t, n.dy, k);
        unit_prefetch(f.t, n.x, k);
        dots_unit(f, &n, &p, &s, k);
    }
    float mean = n.scale / (float)d;
    row->by = unit_total(s.gh) * mean * n.scale * (f.centered ? 1 : n.scale);
    row->at = f.centered ? unit_total(s.g) * mean + unit_total(s.gh) * mean * n.shift : 0;
}
LOOP_INLINE void back_finish(norm_form f, const norm_back *row, const float *w, int64_t d) {
    norm_back o = *row;
    int64_t whole = d / UNIT * UNIT;
    if (whole < d) back_rest(f, &o, w, whole, d - whole);
    for (int64_t k = 0; k < whole; k += UNIT) {
        if (f.extra) unit_prefetch(f.t, o.dr, k);
        back_unit(f, &o, w, k);
    }
}
/* The first of `next` and the second of `out`; x NULL: there is none. */
LOOP_INLINE void norm_back_pass(norm_form f, norm_back *next, const norm_back *out, norm_grad p,
                                int64_t d) {
    if (out->x) back_finish(f, out, p.w, d);
    if (next->x) back_sums(f, next, p, d);
}

#endif
