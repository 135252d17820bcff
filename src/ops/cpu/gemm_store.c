/* What happens to a tile of sums on its way to C: scale, bias, accumulation, GELU, rounding to
 * C's type. The sums of a tile are contiguous, so the elementwise parts are long vector loops. */
#include "kernel/kernel_internal.h"
#include "vmath.h"

#include <string.h>

static void *at(const gemm *g, void *base, int64_t row, int64_t col) {
    return (char *)base + (row * g->ldc + col) * (int64_t)dt_size(g->ct);
}

/* Rounds the tile to C's type and copies the valid part to `base` (C or pre). */
static void put(const gemm *g, const gemm_tile *t, void *base) {
    float rounded[GEMM_MAX_TILE];
    const char *from = (const char *)t->t;
    size_t element = dt_size(g->ct);
    if (g->ct != DT_F32) {
        CPU(from_f32)(g->ct, t->t, rounded, t->mr * t->nr);
        from = (const char *)rounded;
    }
    for (int64_t i = 0; i < t->rows; i++)
        memcpy(at(g, base, t->row + i, t->col), from + (size_t)i * t->nr * element,
               (size_t)t->cols * element);
}

static void add_bias(const gemm *g, const gemm_tile *t) {
    float bias[GEMM_MAX_NR] = { 0 };
    const char *from = (const char *)g->bias + t->col * (int64_t)dt_size(g->bias_t);
    CPU(to_f32)(g->bias_t, from, bias, t->cols);
    for (int i = 0; i < t->mr; i++)
        for (int j = 0; j < t->nr; j++) t->t[i * t->nr + j] += bias[j];
}

static void add_c(const gemm *g, const gemm_tile *t) {
    float old[GEMM_MAX_NR];
    for (int64_t i = 0; i < t->rows; i++) {
        CPU(to_f32)(g->ct, at(g, g->c, t->row + i, t->col), old, t->cols);
        for (int64_t j = 0; j < t->cols; j++) t->t[i * t->nr + j] += old[j];
    }
}

/* `pre` is rounded to its type before GELU sees it, so that the result can be made again from
 * what was kept. */
static void gelu(const gemm *g, const gemm_tile *t) {
    int64_t n = t->mr * t->nr;
    float *x = t->t;
    if (g->pre) {
        put(g, t, g->pre);
        if (g->ct != DT_F32) {
            float rounded[GEMM_MAX_TILE];
            CPU(from_f32)(g->ct, x, rounded, n);
            CPU(to_f32)(g->ct, rounded, x, n);
        }
    }
    if (g->act == ACT_GELU_TANH)
        for (int64_t i = 0; i < n; i++) x[i] = vm_gelu_tanh(x[i]);
    else
        for (int64_t i = 0; i < n; i++) x[i] = vm_gelu_erf(x[i]);
}

void CPU(gemm_store)(const gemm *g, const gemm_tile *t) {
    if (g->alpha != 0 && g->alpha != 1)
        for (int i = 0; i < t->mr * t->nr; i++) t->t[i] *= g->alpha;
    if (t->bias && g->bias) add_bias(g, t);
    if (t->add) add_c(g, t);
    if (g->gelu) gelu(g, t);
    put(g, t, g->c);
}
