/* What the norms share: sums over a row, and weight gradients summed over rows.
 *
 * Workspace of a norm:
 *     partial[chunks][width]          backward: one weight gradient a chunk of rows
 *     rows[threads][NORM_ROWS][ld]    fp32 copies of the rows a worker has in hand
 */
#ifndef INGOT_OPS_CPU_NORM_H
#define INGOT_OPS_CPU_NORM_H

#include "chunks.h"
#include "vec.h"

#include <string.h>

enum { NORM_ROWS = 5 };

typedef struct norm_space {
    int64_t rows, each, chunks; /* row chunks of the backward, `each` rows long */
    int64_t width;              /* of a partial weight gradient; 0 forward */
    int64_t ld;                 /* of a row copy */
    float *partial, *row;
} norm_space;

/* How a norm call of these shapes divides its workspace; pointers are left NULL. */
norm_space CPU(norm_divide)(const op_call *c);
/* The same, with the pointers. */
norm_space CPU(norm_space_of)(const op_call *c);
static inline float *norm_row(const norm_space *s, int worker, int which) {
    return s->row + (worker * NORM_ROWS + which) * s->ld;
}

/* out[0..n) (+)= the sum over chunks, in order, of partial columns [first, first + n). */
void CPU(norm_reduce)(const op_call *c, const norm_space *s, int64_t first, int which);

/* ---- rows of one type: fp32 or bf16 ------------------------------------------------------------
 * A norm reads a row twice: for its statistics, then for the result. The loops below do the second
 * of one row together with the first of the next, so that memory is read, computed on and written
 * at an even rate: one after the other, each would wait for what the other is good at. Weights are
 * fp32. Sums run in several vectors side by side, in an order that depends on the width alone, and
 * always over the row as it is stored: that it was summed up on the way leaves no trace. The end of
 * a row is padded and goes through the same code, into sums of its own: calls beside the loop
 * would have those live in memory within it. */
enum { PAIR = 2 * VEC };

/* What a loop is made for: constant after inlining. */
typedef struct norm_form {
    dtype t;
    bool centred; /* layer norm */
    bool delta;   /* forward: there is a residual sum to make */
    bool extra;   /* forward: a bias; backward: dr */
} norm_form;

/* The row whose statistics are next, r, which is x + delta or x itself. r NULL: there is none. */
typedef struct norm_next {
    const void *x, *delta;
    void *r;
} norm_next;
/* The row to finish: y = (x * scale + shift) * w + b. x NULL: there is none. */
typedef struct norm_out {
    const void *x;
    void *y;
    const float *w, *b;
    float scale, shift;
} norm_out;

/* Elements [k, k + m) of a row, and zeros up to a pair of vectors. */
typedef struct norm_rest {
    _Alignas(VEC_BYTES) char at[PAIR * sizeof(float)];
} norm_rest;
VEC_INLINE size_t norm_size(dtype t) { return t == DT_F32 ? sizeof(float) : sizeof(uint16_t); }
VEC_INLINE void *rest_get(dtype t, const void *p, int64_t k, int64_t m, norm_rest *rest) {
    size_t size = norm_size(t);
    memset(rest, 0, sizeof *rest);
    memcpy(rest->at, (const char *)p + (size_t)k * size, (size_t)m * size);
    return rest->at;
}
VEC_INLINE void rest_put(dtype t, void *p, int64_t k, int64_t m, const norm_rest *rest) {
    size_t size = norm_size(t);
    memcpy((char *)p + (size_t)k * size, rest->at, (size_t)m * size);
}

/* Not inlined, so that every loop's sums are added up by the same instructions. */
static __attribute__((noinline)) float norm_total(vf a, vf b, vf c, vf d) {
    return vec_sum((a + b) + (c + d));
}

VEC_INLINE void next_pair(norm_form f, const norm_next *n, int64_t k, vf sum[2]) {
    vf v[2], delta[2];
    vec_load2(f.t, f.delta ? n->x : n->r, k, v);
    if (f.delta) {
        vec_load2(f.t, n->delta, k, delta);
        v[0] += delta[0];
        v[1] += delta[1];
        vec_keep2(f.t, n->r, k, v);
    }
    sum[0] += f.centred ? v[0] : v[0] * v[0];
    sum[1] += f.centred ? v[1] : v[1] * v[1];
}
VEC_INLINE void next_rest(norm_form f, const norm_next *n, int64_t k, int64_t m, vf sum[2]) {
    norm_rest r, delta;
    norm_next own = { .r = rest_get(f.t, f.delta ? n->x : n->r, k, m, &r) };
    own.x = own.r;
    if (f.delta) own.delta = rest_get(f.t, n->delta, k, m, &delta);
    next_pair(f, &own, 0, sum);
    if (f.delta) rest_put(f.t, n->r, k, m, &r);
}

VEC_INLINE void out_pair(norm_form f, const norm_out *o, int64_t k) {
    vf v[2], w[2], b[2];
    vec_load2(f.t, o->x, k, v);
    vec_load2(DT_F32, o->w, k, w);
    v[0] = f.centred ? v[0] * o->scale + o->shift : v[0] * o->scale;
    v[1] = f.centred ? v[1] * o->scale + o->shift : v[1] * o->scale;
    v[0] *= w[0];
    v[1] *= w[1];
    if (f.extra) {
        vec_load2(DT_F32, o->b, k, b);
        v[0] += b[0];
        v[1] += b[1];
    }
    vec_store2(f.t, o->y, k, v);
}
VEC_INLINE void out_rest(norm_form f, const norm_out *o, int64_t k, int64_t m) {
    norm_rest x, w, b;
    norm_out own = *o;
    own.x = own.y = rest_get(f.t, o->x, k, m, &x);
    own.w = rest_get(DT_F32, o->w, k, m, &w);
    if (f.extra) own.b = rest_get(DT_F32, o->b, k, m, &b);
    out_pair(f, &own, 0);
    rest_put(f.t, o->y, k, m, &x);
}

/* One pass of width d over both rows. @return the sum of the next row, of its squares unless
 * centred. */
VEC_INLINE float norm_pass(norm_form f, norm_next n, norm_out o, int64_t d) {
    vf sum[4] = { { 0 } }, rest[2] = { { 0 } };
    int64_t whole = d / (2 * PAIR) * (2 * PAIR);
    for (int64_t k = whole; k < d; k += PAIR) {
        if (n.r) next_rest(f, &n, k, MIN(PAIR, d - k), rest);
        if (o.x) out_rest(f, &o, k, MIN(PAIR, d - k));
    }
    if (n.r && o.x) {
        for (int64_t k = 0; k < whole; k += 2 * PAIR) {
            next_pair(f, &n, k, sum);
            out_pair(f, &o, k);
            next_pair(f, &n, k + PAIR, sum + 2);
            out_pair(f, &o, k + PAIR);
        }
    } else if (n.r) {
        for (int64_t k = 0; k < whole; k += 2 * PAIR) {
            next_pair(f, &n, k, sum);
            next_pair(f, &n, k + PAIR, sum + 2);
        }
    } else {
        for (int64_t k = 0; k < whole; k += PAIR) out_pair(f, &o, k);
    }
    return norm_total(sum[0] + rest[0], sum[1] + rest[1], sum[2], sum[3]);
}

/* The sum of (x - mean)^2. */
VEC_INLINE float row_deviation(dtype t, const void *x, float mean, int64_t d) {
    enum { SUMS = 8 };
    vf sum[SUMS] = { { 0 } }, rest[2] = { { 0 } };
    int64_t whole = d / (SUMS * VEC) * (SUMS * VEC);
    for (int64_t k = whole; k < d; k += PAIR) {
        norm_rest from;
        vf v[2];
        vec_load2(t, rest_get(t, x, k, MIN(PAIR, d - k), &from), 0, v);
        for (int64_t i = 0; i < PAIR; i++) v[i / VEC][i % VEC] -= i < d - k ? mean : 0;
        rest[0] += v[0] * v[0];
        rest[1] += v[1] * v[1];
    }
    for (int64_t k = 0; k < whole; k += SUMS * VEC) {
        VEC_UNROLL for (int i = 0; i < SUMS; i += 2) {
            vf v[2];
            vec_load2(t, x, k + i * VEC, v);
            sum[i] += (v[0] - mean) * (v[0] - mean);
            sum[i + 1] += (v[1] - mean) * (v[1] - mean);
        }
    }
    return norm_total(sum[0] + sum[4] + rest[0], sum[1] + sum[5] + rest[1], sum[2] + sum[6],
                      sum[3] + sum[7]);
}

/* ---- backward: the same with, for h = x * scale + shift and g = dy w,
 *     dx = dr + scale * (g - mean(g) - h * mean(g h)),   dw += dy h,   db += dy
 * An RMS norm has shift 0, no mean(g) and no db. */
typedef struct norm_back {
    const void *dy, *x, *dr;
    void *dx;
    float scale, shift;
    float g, gh; /* scale * mean(g), scale * mean(g h): known when the row is finished */
} norm_back;
typedef struct norm_grad {
    const float *w;
    float *dw, *db;
} norm_grad;
typedef struct norm_dots {
    vf g[2], gx[2]; /* sums of g and of g x */
} norm_dots;

VEC_INLINE vf normal_of(norm_form f, const norm_back *o, vf x) {
    return f.centred ? x * o->scale + o->shift : x * o->scale;
}
VEC_INLINE void dots_pair(norm_form f, const norm_back *n, const float *w, norm_dots *s,
                          int64_t k) {
    vf dy[2], x[2], wv[2];
    vec_load2(f.t, n->dy, k, dy);
    vec_load2(f.t, n->x, k, x);
    vec_load2(DT_F32, w, k, wv);
    for (int i = 0; i < 2; i++) {
        vf g = dy[i] * wv[i];
        if (f.centred) s->g[i] += g;
        s->gx[i] += g * (f.centred ? normal_of(f, n, x[i]) : x[i]);
    }
}
VEC_INLINE void back_pair(norm_form f, const norm_back *o, const norm_grad *p, int64_t k) {
    vf dy[2], x[2], w[2], dx[2] = { { 0 } }, dw[2], db[2];
    vec_load2(f.t, o->dy, k, dy);
    vec_load2(f.t, o->x, k, x);
    vec_load2(DT_F32, p->w, k, w);
    vec_load2(DT_F32, p->dw, k, dw);
    if (f.centred) vec_load2(DT_F32, p->db, k, db);
    if (f.extra) vec_load2(f.t, o->dr, k, dx);
    for (int i = 0; i < 2; i++) {
        vf h = normal_of(f, o, x[i]);
        dw[i] += dy[i] * h;
        if (f.centred) db[i] += dy[i];
        if (f.centred) dx[i] -= o->g;
        dx[i] += dy[i] * w[i] * o->scale - h * o->gh;
    }
    vec_store2(f.t, o->dx, k, dx);
    vec_store2(DT_F32, p->dw, k, dw);
    if (f.centred) vec_store2(DT_F32, p->db, k, db);
}

VEC_INLINE void dots_rest(norm_form f, const norm_back *n, const float *w, norm_dots *s, int64_t k,
                          int64_t m) {
    norm_rest dy, x, wv;
    norm_back own = *n;
    own.dy = rest_get(f.t, n->dy, k, m, &dy);
    own.x = rest_get(f.t, n->x, k, m, &x);
    dots_pair(f, &own, rest_get(DT_F32, w, k, m, &wv), s, 0);
}
VEC_INLINE void back_rest(norm_form f, const norm_back *o, const norm_grad *p, int64_t k,
                          int64_t m) {
    norm_rest dy, x, dr, dx, w, dw, db;
    norm_back own = *o;
    norm_grad sums = { .w = rest_get(DT_F32, p->w, k, m, &w),
                       .dw = rest_get(DT_F32, p->dw, k, m, &dw) };
    own.dy = rest_get(f.t, o->dy, k, m, &dy);
    own.x = rest_get(f.t, o->x, k, m, &x);
    own.dx = dx.at;
    if (f.extra) own.dr = rest_get(f.t, o->dr, k, m, &dr);
    if (f.centred) sums.db = rest_get(DT_F32, p->db, k, m, &db);
    back_pair(f, &own, &sums, 0);
    rest_put(f.t, o->dx, k, m, &dx);
    rest_put(DT_F32, p->dw, k, m, &dw);
    if (f.centred) rest_put(DT_F32, p->db, k, m, &db);
}

/* One pass over both rows; sets next->g and next->gh. */
VEC_INLINE void norm_back_pass(norm_form f, norm_back *next, const norm_back *out, norm_grad p,
                               int64_t d) {
    norm_dots s = { .g = { { 0 } } }, rest = s;
    norm_back n = *next, o = *out;
    int64_t whole = d / PAIR * PAIR;
    if (n.x && whole < d) dots_rest(f, &n, p.w, &rest, whole, d - whole);
    if (o.x && whole < d) back_rest(f, &o, &p, whole, d - whole);
    if (n.x && o.x) {
        for (int64_t k = 0; k < whole; k += PAIR) {
            dots_pair(f, &n, p.w, &s, k);
            back_pair(f, &o, &p, k);
        }
    } else if (n.x) {
        for (int64_t k = 0; k < whole; k += PAIR) dots_pair(f, &n, p.w, &s, k);
    } else {
        for (int64_t k = 0; k < whole; k += PAIR) back_pair(f, &o, &p, k);
    }
    float by = n.scale / (float)d;
    next->g = f.centred ? norm_total(s.g[0], s.g[1], rest.g[0], rest.g[1]) * by : 0;
    next->gh =
        norm_total(s.gx[0], s.gx[1], rest.gx[0], rest.gx[1]) * by * (f.centred ? 1 : n.scale);
}

#endif
