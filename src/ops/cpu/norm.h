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
 * Sums run in four vectors side by side: one chain of additions would wait for the latency of
 * each. Their order depends on the width alone. Weights are fp32. */
VEC_INLINE float row_sum(dtype t, const void *x, int64_t d) {
    vf a0 = { 0 }, a1 = a0, a2 = a0, a3 = a0;
    int64_t k = 0;
    for (; k + 4 * VEC <= d; k += 4 * VEC) {
        a0 += vec_load(t, x, k);
        a1 += vec_load(t, x, k + VEC);
        a2 += vec_load(t, x, k + 2 * VEC);
        a3 += vec_load(t, x, k + 3 * VEC);
    }
    for (; k < d; k += VEC) a0 += vec_get(t, x, k, d, 0);
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
    for (; k < d; k += VEC) a0 += squared(vec_get(t, x, k, d, mean) - mean);
    return vec_sum((a0 + a1) + (a2 + a3));
}

/* y = (x - mean) * scale * w + b; b may be NULL. */
VEC_INLINE void row_normalise(dtype t, const void *x, const float *w, const float *b, void *y,
                              int64_t d, float mean, float scale) {
    for (int64_t k = 0; k < d; k += VEC) {
        vf v = (vec_get(t, x, k, d, 0) - mean) * scale * vec_get(DT_F32, w, k, d, 0);
        if (b) v += vec_get(DT_F32, b, k, d, 0);
        vec_put(t, y, k, d, v);
    }
}

/* The two sums of a norm's backward: of g = dy w, and of g (x - mean). */
typedef struct norm_dots {
    float g, gx;
} norm_dots;
VEC_INLINE norm_dots row_dots(dtype t, const void *dy, const float *w, const void *x, float mean,
                              int64_t d) {
    vf g0 = { 0 }, g1 = g0, x0 = g0, x1 = g0;
    int64_t k = 0;
    for (; k + 2 * VEC <= d; k += 2 * VEC) {
        vf a = vec_load(t, dy, k) * vec_load(DT_F32, w, k);
        vf b = vec_load(t, dy, k + VEC) * vec_load(DT_F32, w, k + VEC);
        g0 += a;
        g1 += b;
        x0 += a * (vec_load(t, x, k) - mean);
        x1 += b * (vec_load(t, x, k + VEC) - mean);
    }
    for (; k < d; k += VEC) {
        vf a = vec_get(t, dy, k, d, 0) * vec_get(DT_F32, w, k, d, 0);
        g0 += a;
        x0 += a * (vec_get(t, x, k, d, 0) - mean);
    }
    return (norm_dots){ .g = vec_sum(g0 + g1), .gx = vec_sum(x0 + x1) };
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
VEC_INLINE void row_backward(dtype t, const norm_back *a, bool centred, int64_t d) {
    float mean = centred ? a->mean : 0, scale = a->scale;
    norm_dots dots = row_dots(t, a->dy, a->w, a->x, mean, d);
    float g = centred ? dots.g / (float)d : 0, gh = dots.gx * scale / (float)d;
    for (int64_t k = 0; k < d; k += VEC) {
        vf dy = vec_get(t, a->dy, k, d, 0), h = (vec_get(t, a->x, k, d, 0) - mean) * scale;
        vf dx = scale * (dy * vec_get(DT_F32, a->w, k, d, 0) - g - h * gh);
        if (a->dr) dx += vec_get(t, a->dr, k, d, 0);
        vec_put(DT_F32, a->dw, k, d, vec_get(DT_F32, a->dw, k, d, 0) + dy * h);
        if (centred) vec_put(DT_F32, a->db, k, d, vec_get(DT_F32, a->db, k, d, 0) + dy);
        vec_put(t, a->dx, k, d, dx);
    }
}

#endif
