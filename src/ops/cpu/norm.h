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

/* ---- rows of one type t: fp32 or bf16 ----------------------------------------------------------
 * A norm reads a row twice: for its statistics, then for the result. The loops below do the second
 * of one row together with the first of the next, so that memory is read, computed on and written
 * at an even rate: one after the other, each would wait for what the other is good at. Weights are
 * fp32. Sums run in several vectors side by side, in an order that depends on the width alone. The
 * end of a row comes first: code after the loop would have the sums live in memory within it. */

/* The row whose statistics are next: r = x + delta when delta is given. x NULL: there is none. */
typedef struct norm_next {
    const void *x, *delta;
    void *r;
} norm_next;
/* The row to finish: y = (x - mean) * scale * w + b; b may be NULL. x NULL: there is none. */
typedef struct norm_out {
    const void *x;
    void *y;
    const float *w, *b;
    float mean, scale;
} norm_out;

VEC_INLINE void next_pair(dtype t, const norm_next *n, bool centred, int64_t k, vf sum[2]) {
    vf v[2], delta[2];
    vec_load2(t, n->x, k, v);
    if (n->delta) {
        vec_load2(t, n->delta, k, delta);
        v[0] = vec_round(t, v[0] + delta[0]);
        v[1] = vec_round(t, v[1] + delta[1]);
    }
    if (n->r) vec_store2(t, n->r, k, v);
    sum[0] += centred ? v[0] : v[0] * v[0];
    sum[1] += centred ? v[1] : v[1] * v[1];
}
VEC_INLINE float next_one(dtype t, const norm_next *n, bool centred, int64_t k) {
    float v = elem_get(t, n->x, k);
    if (n->delta) v = elem_round(t, v + elem_get(t, n->delta, k));
    if (n->r) elem_put(t, n->r, k, v);
    return centred ? v : v * v;
}
VEC_INLINE void out_pair(dtype t, const norm_out *o, int64_t k) {
    vf v[2], w[2], b[2];
    vec_load2(t, o->x, k, v);
    vec_load2(DT_F32, o->w, k, w);
    v[0] = (v[0] - o->mean) * o->scale * w[0];
    v[1] = (v[1] - o->mean) * o->scale * w[1];
    if (o->b) {
        vec_load2(DT_F32, o->b, k, b);
        v[0] += b[0];
        v[1] += b[1];
    }
    vec_store2(t, o->y, k, v);
}
VEC_INLINE void out_one(dtype t, const norm_out *o, int64_t k) {
    float v = (elem_get(t, o->x, k) - o->mean) * o->scale * o->w[k];
    elem_put(t, o->y, k, o->b ? v + o->b[k] : v);
}

/* One pass of width d over both rows. @return the sum of the next row, of its squares unless
 * centred. */
VEC_INLINE float norm_pass(dtype t, norm_next n, norm_out o, bool centred, int64_t d) {
    vf sum[4] = { { 0 } };
    float rest = 0;
    int64_t whole = d / (4 * VEC) * (4 * VEC);
    for (int64_t k = whole; k < d; k++) {
        if (n.x) rest += next_one(t, &n, centred, k);
        if (o.x) out_one(t, &o, k);
    }
    if (n.x && o.x) {
        for (int64_t k = 0; k < whole; k += 4 * VEC) {
            next_pair(t, &n, centred, k, sum);
            out_pair(t, &o, k);
            next_pair(t, &n, centred, k + 2 * VEC, sum + 2);
            out_pair(t, &o, k + 2 * VEC);
        }
    } else if (n.x) {
        for (int64_t k = 0; k < whole; k += 4 * VEC) {
            next_pair(t, &n, centred, k, sum);
            next_pair(t, &n, centred, k + 2 * VEC, sum + 2);
        }
    } else {
        for (int64_t k = 0; k < whole; k += 2 * VEC) out_pair(t, &o, k);
    }
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

/* The sum of (x - mean)^2. */
VEC_INLINE float row_deviation(dtype t, const void *x, float mean, int64_t d) {
    vf a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0, u[2], v[2];
    int64_t whole = d / (4 * VEC) * (4 * VEC);
    float rest = 0;
    for (int64_t k = whole; k < d; k++) {
        float off = elem_get(t, x, k) - mean;
        rest += off * off;
    }
    for (int64_t k = 0; k < whole; k += 4 * VEC) {
        vec_load2(t, x, k, u);
        vec_load2(t, x, k + 2 * VEC, v);
        a0 += (u[0] - mean) * (u[0] - mean);
        a1 += (u[1] - mean) * (u[1] - mean);
        a2 += (v[0] - mean) * (v[0] - mean);
        a3 += (v[1] - mean) * (v[1] - mean);
    }
    return vec_sum((a0 + a1) + (a2 + a3)) + rest;
}

/* ---- backward: the same with, for h = (x - mean) * scale and g = dy w,
 *     dx = dr + scale * (g - mean(g) - h * mean(g h)),   dw += dy h,   db += dy
 * An RMS norm has mean 0, no mean(g) and no db. dr may be NULL. */
typedef struct norm_back {
    const void *dy, *x, *dr;
    void *dx;
    float mean, scale;
    float g, gh; /* mean(g), mean(g h): known when the row is finished */
} norm_back;
typedef struct norm_grad {
    const float *w;
    float *dw, *db;
} norm_grad;
typedef struct norm_dots {
    vf g[2], gx[2]; /* sums of g and of g (x - mean) */
} norm_dots;

VEC_INLINE void dots_pair(dtype t, const norm_back *n, const float *w, norm_dots *s, int64_t k) {
    vf dy[2], x[2], wv[2];
    vec_load2(t, n->dy, k, dy);
    vec_load2(t, n->x, k, x);
    vec_load2(DT_F32, w, k, wv);
    vf g0 = dy[0] * wv[0], g1 = dy[1] * wv[1];
    s->g[0] += g0;
    s->g[1] += g1;
    s->gx[0] += g0 * (x[0] - n->mean);
    s->gx[1] += g1 * (x[1] - n->mean);
}
VEC_INLINE void back_pair(dtype t, const norm_back *o, const norm_grad *p, bool centred,
                          int64_t k) {
    vf dy[2], x[2], w[2], dr[2] = { { 0 } }, dw[2], db[2];
    vec_load2(t, o->dy, k, dy);
    vec_load2(t, o->x, k, x);
    vec_load2(DT_F32, p->w, k, w);
    vec_load2(DT_F32, p->dw, k, dw);
    if (o->dr) vec_load2(t, o->dr, k, dr);
    vf h0 = (x[0] - o->mean) * o->scale, h1 = (x[1] - o->mean) * o->scale;
    dw[0] += dy[0] * h0;
    dw[1] += dy[1] * h1;
    dr[0] += o->scale * (dy[0] * w[0] - o->g - h0 * o->gh);
    dr[1] += o->scale * (dy[1] * w[1] - o->g - h1 * o->gh);
    vec_store2(t, o->dx, k, dr);
    vec_store2(DT_F32, p->dw, k, dw);
    if (!centred) return;
    vec_load2(DT_F32, p->db, k, db);
    db[0] += dy[0];
    db[1] += dy[1];
    vec_store2(DT_F32, p->db, k, db);
}
VEC_INLINE void back_one(dtype t, const norm_back *o, const norm_grad *p, bool centred, int64_t k) {
    float dy = elem_get(t, o->dy, k), h = (elem_get(t, o->x, k) - o->mean) * o->scale;
    float dx = o->scale * (dy * p->w[k] - o->g - h * o->gh);
    elem_put(t, o->dx, k, o->dr ? dx + elem_get(t, o->dr, k) : dx);
    p->dw[k] += dy * h;
    if (centred) p->db[k] += dy;
}

/* One pass over both rows; sets n->g and n->gh. */
VEC_INLINE void norm_back_pass(dtype t, norm_back *next, const norm_back *out, norm_grad p,
                               bool centred, int64_t d) {
    norm_dots s = { .g = { { 0 } } };
    norm_back n = *next, o = *out;
    int64_t whole = d / (2 * VEC) * (2 * VEC);
    float rest_g = 0, rest_gx = 0;
    for (int64_t k = whole; k < d; k++) {
        float g = n.x ? elem_get(t, n.dy, k) * p.w[k] : 0;
        rest_g += g;
        rest_gx += n.x ? g * (elem_get(t, n.x, k) - n.mean) : 0;
        if (o.x) back_one(t, &o, &p, centred, k);
    }
    if (n.x && o.x) {
        for (int64_t k = 0; k < whole; k += 2 * VEC) {
            dots_pair(t, &n, p.w, &s, k);
            back_pair(t, &o, &p, centred, k);
        }
    } else if (n.x) {
        for (int64_t k = 0; k < whole; k += 2 * VEC) dots_pair(t, &n, p.w, &s, k);
    } else {
        for (int64_t k = 0; k < whole; k += 2 * VEC) back_pair(t, &o, &p, centred, k);
    }
    next->g = centred ? (vec_sum(s.g[0] + s.g[1]) + rest_g) / (float)d : 0;
    next->gh = (vec_sum(s.gx[0] + s.gx[1]) + rest_gx) * n.scale / (float)d;
}

#endif
