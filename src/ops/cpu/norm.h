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

/* ---- one row, all of one type t: fp32 or bf16 --------------------------------------------------
 * Each function runs a step over whole vectors, then once over the m < VEC elements left. Sums run
 * in four vectors side by side: one chain of additions would wait for the latency of each. Their
 * order depends on the width alone. Weights are fp32. */
VEC_INLINE float row_sum(dtype t, const void *x, int64_t d) {
    vf a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0;
    int64_t k = 0;
    for (; k + 4 * VEC <= d; k += 4 * VEC) {
        a0 += vec_load(t, x, k);
        a1 += vec_load(t, x, k + VEC);
        a2 += vec_load(t, x, k + 2 * VEC);
        a3 += vec_load(t, x, k + 3 * VEC);
    }
    for (; k + VEC <= d; k += VEC) a0 += vec_load(t, x, k);
    if (k < d) a1 += vec_get(t, x, k, d - k, 0);
    return vec_sum((a0 + a1) + (a2 + a3));
}

VEC_INLINE vf squared(vf x) { return x * x; }
VEC_INLINE float row_squares(dtype t, const void *x, float mean, int64_t d) {
    vf a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0;
    int64_t k = 0;
    for (; k + 4 * VEC <= d; k += 4 * VEC) {
        a0 += squared(vec_load(t, x, k) - mean);
        a1 += squared(vec_load(t, x, k + VEC) - mean);
        a2 += squared(vec_load(t, x, k + 2 * VEC) - mean);
        a3 += squared(vec_load(t, x, k + 3 * VEC) - mean);
    }
    for (; k + VEC <= d; k += VEC) a0 += squared(vec_load(t, x, k) - mean);
    if (k < d) a1 += squared(vec_get(t, x, k, d - k, mean) - mean);
    return vec_sum((a0 + a1) + (a2 + a3));
}

/* y = (x - mean) * scale * w + b; b may be NULL. */
typedef struct norm_out {
    const void *x;
    const float *w, *b;
    void *y;
    float mean, scale;
} norm_out;
VEC_INLINE vf normalise(const norm_out *a, vf x, vf w, vf b) {
    return (x - a->mean) * (a->scale * w) + b;
}
VEC_INLINE void row_normalise(dtype t, norm_out a, int64_t d) {
    int64_t k = 0;
    for (; k + 2 * VEC <= d; k += 2 * VEC) {
        vf x[2], w[2], b[2] = { { 0 }, { 0 } };
        vec_load2(t, a.x, k, x);
        vec_load2(DT_F32, a.w, k, w);
        if (a.b) vec_load2(DT_F32, a.b, k, b);
        vf y[2] = { normalise(&a, x[0], w[0], b[0]), normalise(&a, x[1], w[1], b[1]) };
        vec_store2(t, a.y, k, y);
    }
    for (int64_t m; k < d; k += VEC) {
        m = MIN(d - k, VEC);
        vf b = a.b ? vec_get(DT_F32, a.b, k, m, 0) : (vf){ 0 };
        vf x = vec_get(t, a.x, k, m, 0), w = vec_get(DT_F32, a.w, k, m, 0);
        vec_put(t, a.y, k, m, normalise(&a, x, w, b));
    }
}

/* One row of a norm's backward, with h = (x - mean) * scale and g = dy w:
 *     dx = dr + scale * (g - mean(g) - h * mean(g h)),   dw += dy h,   db += dy
 * An RMS norm has mean 0, no mean(g) and no db. dr may be NULL. */
typedef struct norm_back {
    const void *dy, *x, *dr;
    const float *w;
    void *dx;
    float *dw, *db;
    float mean, scale;
} norm_back;

typedef struct norm_dots {
    vf g, gx; /* sums of g and of g (x - mean) */
} norm_dots;
VEC_INLINE void dots_step(dtype t, const norm_back *a, norm_dots *s, int64_t k, int64_t m) {
    vf g = vec_get(t, a->dy, k, m, 0) * vec_get(DT_F32, a->w, k, m, 0);
    s->g += g;
    s->gx += g * (vec_get(t, a->x, k, m, 0) - a->mean);
}
VEC_INLINE void backward_step(dtype t, const norm_back *a, bool centred, float g, float gh,
                              int64_t k, int64_t m) {
    vf dy = vec_get(t, a->dy, k, m, 0), h = (vec_get(t, a->x, k, m, 0) - a->mean) * a->scale;
    vf dx = a->scale * (dy * vec_get(DT_F32, a->w, k, m, 0) - g - h * gh);
    if (a->dr) dx += vec_get(t, a->dr, k, m, 0);
    vec_put(DT_F32, a->dw, k, m, vec_get(DT_F32, a->dw, k, m, 0) + dy * h);
    if (centred) vec_put(DT_F32, a->db, k, m, vec_get(DT_F32, a->db, k, m, 0) + dy);
    vec_put(t, a->dx, k, m, dx);
}
VEC_INLINE void row_backward(dtype t, norm_back a, bool centred, int64_t d) {
    norm_dots s0 = { { 0 }, { 0 } }, s1 = s0;
    int64_t k = 0;
    for (; k + 2 * VEC <= d; k += 2 * VEC) {
        dots_step(t, &a, &s0, k, VEC);
        dots_step(t, &a, &s1, k + VEC, VEC);
    }
    for (; k < d; k += VEC) dots_step(t, &a, &s0, k, MIN(d - k, VEC));
    float g = centred ? vec_sum(s0.g + s1.g) / (float)d : 0;
    float gh = vec_sum(s0.gx + s1.gx) * a.scale / (float)d;
    for (k = 0; k + VEC <= d; k += VEC) backward_step(t, &a, centred, g, gh, k, VEC);
    if (k < d) backward_step(t, &a, centred, g, gh, k, d - k);
}

#endif
