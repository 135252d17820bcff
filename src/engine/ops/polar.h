/* Muon's iterations, as every backend runs them: they drive the singular values of x towards 1.
 *
 *     x = p(G) x,   p(G) = a I + b G + c G G,   G = x x^T        five times
 *
 * The polynomials of one x all commute, so that G can follow x without x: G of p x is p G p. Where rows are long, the
 * GEMMs of [S,S] by [S,L] are most of the work; x then is multiplied only once for several steps:
 *
 *     step      0              1               2              3               4
 *               G = x x^T      G = p G p       G = x x^T      G = p G p       G = p G p
 *               q = p          q = p q         q = p          q = p q         q = p q
 *                              x = q x                                        x = q x
 *
 * A product of rounded matrices grows what rounding added to the directions in which x is small, by a a per step, and
 * G, whose eigenvalues are the squares, has lost more of those directions than x: G is computed anew after two steps, and made
 * symmetric again after each product of different matrices. Relative to fp64, five steps of 384 x 1536 whose singular
 * values fall from 1 to 1e-5 evenly are off by 0.076 in bf16 without any of this; 0.062 with G of steps 0, 2 and 4;
 * 0.14 with G of 0 and 2. In fp16, whose range suffices since everything is between 1e-7 and 100, they are off by
 * 0.018 with G of 0 and 2. The first polynomial of Polar Express multiplies by 8: in bf16 a G that follows x then has
 * eigenvalues of matrices of low rank that are far off, and the next steps diverge. There G is computed in every step. */
#ifndef INGOT_OPS_POLAR_H
#define INGOT_OPS_POLAR_H

#include "ops/ops.h"

enum { POLAR_STEPS = 5, POLAR_SQUARES = 4 };

/* a, b, c of each step. */
static inline const float *polar_coefficients(polar_kind kind, int step) {
    static const float coefficients[POLAR_KINDS][POLAR_STEPS][3] = {
        { { 3.4445f, -4.7750f, 2.0315f },
          { 3.4445f, -4.7750f, 2.0315f },
          { 3.4445f, -4.7750f, 2.0315f },
          { 3.4445f, -4.7750f, 2.0315f },
          { 3.4445f, -4.7750f, 2.0315f } },
        { { 8.156554525f, -22.483292926f, 15.878769915f },
          { 4.042929935f, -2.808917466f, 0.500017845f },
          { 3.891667802f, -2.772484153f, 0.506064818f },
          { 3.285753658f, -2.368129493f, 0.464490242f },
          { 2.346541326f, -1.709782838f, 0.423235512f } },
    };
    return coefficients[kind][step];
}

/* x is divided by this in addition to its norm: Polar Express converges below 1 only. */
static inline double polar_margin(polar_kind kind) { return kind == POLAR_EXPRESS ? 1.01 : 1; }

/* The smallest norm that x is divided by. */
static const double POLAR_LEAST_NORM = 1e-7;

/* Equilibration: the smallest norm that a row is divided by, relative to the mean square of all rows. */
static const double POLAR_LEAST_ROW = 1e-6;
/* NorMuon: the smallest second moment. */
static const double POLAR_LEAST_MOMENT = 1e-10;

/* x, the result and what the steps need between them: each matrix [S,L] or [S,S], or a batch of them. */
typedef struct polar_run {
    void *context;
    tensor x, next;
    tensor square[POLAR_SQUARES];
    /* to = f[0] a b^T + f[1] add + f[2] I, symmetric to the bit; add may be absent. */
    void (*symmetric)(void *context, const tensor *a, const tensor *b, const tensor *add,
                      const float f[3], const tensor *to);
    /* to = q x */
    void (*apply)(void *context, const tensor *q, const tensor *x, const tensor *to);
} polar_run;

/* Whether G is computed from x in this step. */
static inline bool polar_restarts(polar_kind kind, const tensor *x, int step) {
    bool wide = x->dim[x->ndim - 1] >= 2 * x->dim[x->ndim - 2], coarse = x->dt == DT_BF16;
    if (!wide || (coarse && kind == POLAR_EXPRESS)) return true;
    return step == 0 || step == 2 || (step == 4 && coarse);
}

static inline void polar_swap(tensor *a, tensor *b) {
    tensor t = *a;
    *a = *b;
    *b = t;
}

/* Runs the steps; the result is in r->x, which then is what `next` was if their number is odd. */
static inline void polar_iterate(polar_run *r, polar_kind kind) {
    static const float product[3] = { 1, 0, 0 };
    const tensor none = { 0 };
    tensor *g = &r->square[0], *p = &r->square[1], *q = &r->square[2], *t = &r->square[3];
    for (int i = 0; i < POLAR_STEPS; i++) {
        const float *c = polar_coefficients(kind, i), f[3] = { c[2], c[1], c[0] };
        bool fresh = polar_restarts(kind, &r->x, i);
        bool last = i + 1 == POLAR_STEPS || polar_restarts(kind, &r->x, i + 1);
        if (fresh) r->symmetric(r->context, &r->x, &r->x, &none, product, g);
        r->symmetric(r->context, g, g, g, f, p);
        if (!last) {
            r->symmetric(r->context, g, p, &none, product, t);
            r->symmetric(r->context, p, t, &none, product, g);
        }
        if (fresh) {
            polar_swap(p, q);
        } else {
            r->symmetric(r->context, p, q, &none, product, t);
            polar_swap(t, q);
        }
        if (!last) continue;
        r->apply(r->context, q, &r->x, &r->next);
        polar_swap(&r->x, &r->next);
    }
}

#endif
