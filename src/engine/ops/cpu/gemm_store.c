/* Stores a tile of sums to C: scale, bias, accumulation, GELU, rounding to C's type. The sums of a tile are
 * contiguous, so that the elementwise parts are long vector loops. */
#include "kernel/kernel_internal.h"
#include "vec.h"

#include <string.h>

static char *tile_address(const gemm *g, void *base, const gemm_tile *t) {
    return (char *)base + (t->row * g->ldc + t->col) * (int64_t)dt_size(g->ct);
}

/* Rows are a few words: an inline loop is cheaper than a call of memcpy. */
static inline void stream_row(char *to, const char *from, size_t bytes) {
    for (; bytes >= 8; bytes -= 8, to += 8, from += 8) memcpy(to, from, 8);
    if (bytes) memcpy(to, from, bytes);
}

/* Rounds the tile to C's type and copies the valid part to `base` (C or pre). */
static void store_tile(const gemm *g, const gemm_tile *t, void *base) {
    float rounded[GEMM_MAX_TILE];
    const char *from = (const char *)t->t;
    char *to = tile_address(g, base, t);
    size_t element = dt_size(g->ct), stride = (size_t)g->ldc * element;
    if (g->ct != DT_F32) {
        CPU(from_f32)(g->ct, t->t, rounded, t->mr * t->nr);
        from = (const char *)rounded;
    }
    for (int64_t i = 0; i < t->rows; i++, to += stride, from += t->nr * element)
        stream_row(to, from, (size_t)t->cols * element);
}

static void get_bias(const gemm *g, const gemm_tile *t, float *bias) {
    const char *from = (const char *)g->bias + t->col * (int64_t)dt_size(g->bias_t);
    CPU(to_f32)(g->bias_t, from, bias, t->cols);
}

static void add_bias(const gemm *g, const gemm_tile *t) {
    float bias[GEMM_MAX_NR] = { 0 };
    get_bias(g, t, bias);
    for (int i = 0; i < t->mr; i++)
        for (int j = 0; j < t->nr; j++) t->t[i * t->nr + j] += bias[j];
}

static void add_c(const gemm *g, const gemm_tile *t) {
    float old[GEMM_MAX_NR];
    const char *from = tile_address(g, g->c, t);
    size_t stride = (size_t)g->ldc * dt_size(g->ct);
    for (int64_t i = 0; i < t->rows; i++, from += stride) {
        CPU(to_f32)(g->ct, from, old, t->cols);
        for (int64_t j = 0; j < t->cols; j++) t->t[i * t->nr + j] += old[j];
    }
}

/* `pre` is rounded to its type before GELU sees it, and GELU is that of the type, so that the result
 * can be recomputed from what was kept. */
static void apply_gelu(const gemm *g, const gemm_tile *t) {
    int64_t n = t->mr * t->nr;
    float *x = t->t, rounded[GEMM_MAX_TILE];
    if (g->pre) store_tile(g, t, g->pre);
    if (g->pre && g->ct != DT_F32) {
        CPU(from_f32)(g->ct, x, rounded, n);
        if (g->ct == DT_BF16) CPU(gelu_values)(g->act, DT_BF16, rounded, rounded, n);
        CPU(to_f32)(g->ct, rounded, x, n);
        if (g->ct == DT_BF16) return;
    }
    CPU(gelu_values)(g->act, DT_F32, x, x, n);
}

/* The common case, a whole tile with at most a bias, in one pass. `dt` is constant after inlining. */
VEC_INLINE void store_whole_tile(const gemm *g, const gemm_tile *t, dtype dt) {
    float bias[GEMM_MAX_NR] = { 0 };
    if (t->bias && g->bias) get_bias(g, t, bias);
    char *to = tile_address(g, g->c, t);
    const float *from = t->t;
    for (int64_t i = 0; i < t->rows; i++, from += t->nr, to += g->ldc * (int64_t)dt_size(dt))
        for (int j = 0; j < t->nr; j += VEC)
            vec_store(dt, to, j, vec_load(DT_F32, from, j) + vec_load(DT_F32, bias, j));
}

static bool is_plain(const gemm *g, const gemm_tile *t) {
    return t->cols == t->nr && t->nr % VEC == 0 && !t->add && !g->gelu &&
           (g->alpha == 0 || g->alpha == 1) && (g->ct == DT_BF16 || g->ct == DT_F32);
}

void CPU(gemm_store)(const gemm *g, const gemm_tile *t) {
    if (is_plain(g, t)) {
        if (g->ct == DT_BF16)
            store_whole_tile(g, t, DT_BF16);
        else
            store_whole_tile(g, t, DT_F32);
        return;
    }
    if (g->alpha != 0 && g->alpha != 1)
        for (int i = 0; i < t->mr * t->nr; i++) t->t[i] *= g->alpha;
    if (t->bias && g->bias) add_bias(g, t);
    if (t->add) add_c(g, t);
    if (g->gelu) apply_gelu(g, t);
    store_tile(g, t, g->c);
}
