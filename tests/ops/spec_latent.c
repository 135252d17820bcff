/* Specs: latent attention. Letters: h = heads, r = rotated dims of a head, p = its other dims of q and k, v = its values,
 * l = the latent vector, s = sequences of a cache. Layouts: src/engine/ops/cpu/latent.c. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

static void latent_sizes(op_case *c) {
    int64_t h = size_of(c, 'h'), r = size_of(c, 'r'), p = size_of(c, 'p'), v = size_of(c, 'v');
    c->attr.heads.q = (int)h;
    c->size['A'] = h * (r + p);
    c->size['B'] = h * (p + v);
    c->size['R'] = r;
    c->size['C'] = 3 * h * (MAX(r + p, v) + c->shape.variant);
    c->size['O'] = h * v;
}

static void latent_qkv_reference(op_case *c) {
    int64_t h = size_of(c, 'h'), r = size_of(c, 'r'), p = size_of(c, 'p'), v = size_of(c, 'v');
    int64_t dim = size_of(c, 'C') / (3 * h);
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row = i / (3 * h * dim), part = i / (h * dim) % 3, head = i / dim % h, at = i % dim;
        const double *q = c->in[0].v + (row * h + head) * (r + p);
        const double *kv = c->in[1].v + (row * h + head) * (p + v);
        double x = 0;
        if (part == 0 && at < r + p) x = q[at];
        if (part == 1 && at < r + p) x = at < r ? c->in[2].v[row * r + at] : kv[at - r];
        if (part == 2 && at < v) x = kv[p + at];
        c->out[0].v[i] = x;
    }
}

static void head_values_sizes(op_case *c) {
    c->attr.heads.q = (int)size_of(c, 'h');
    c->size['C'] = size_of(c, 'h') * (size_of(c, 'v') + size_of(c, 'p'));
    c->size['O'] = size_of(c, 'h') * size_of(c, 'v');
}
static void head_values_reference(op_case *c) {
    int64_t v = size_of(c, 'v'), dim = v + size_of(c, 'p');
    for (int64_t i = 0; i < c->out[0].count; i++) c->out[0].v[i] = c->in[0].v[i / v * dim + i % v];
}

/* ---- a cache. variant 1: a window; 2: capped scores --------------------------------------------------- */
enum { Q, C, ROT, W, CACHE, POS, START, FILLED = 37 };
static void latent_cached_sizes(op_case *c) {
    latent_sizes(c);
    c->size['L'] = size_of(c, 'l');
    c->size['E'] = size_of(c, 'l') + size_of(c, 'r');
    c->size['P'] = size_of(c, 's') * (FILLED + size_of(c, 'N'));
    c->attr.heads.scale = (float)(1 / sqrt((double)(size_of(c, 'r') + size_of(c, 'p'))));
    c->attr.heads.window = c->shape.variant & 1 ? 11 : 0;
    c->attr.heads.cap = c->shape.variant & 2 ? 1.5f : 0;
}
/* Tokens go to the sequences in turn, behind what these hold. */
static void latent_cached_values(op_case *c) {
    int64_t sequences = size_of(c, 's'), each = FILLED + size_of(c, 'N');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        c->in[START].v[i] = (double)(i % sequences * each);
        c->in[POS].v[i] = (double)(i % sequences * 9 + i / sequences);
    }
    spread_values(&c->in[W], 0, 1 / sqrt((double)size_of(c, 'l')));
}
static void store_tokens(op_case *c, int64_t i) {
    int64_t l = size_of(c, 'l'), r = size_of(c, 'r');
    double *to = c->in[CACHE].v + (int64_t)(c->in[START].v[i] + c->in[POS].v[i]) * (l + r);
    for (int64_t e = 0; e < l; e++) to[e] = c->in[C].v[i * l + e];
    for (int64_t e = 0; e < r; e++) to[l + e] = c->in[ROT].v[i * r + e];
}
/* The expanded form: keys and values of every row of the cache. */
static void latent_cached_reference(op_case *c) {
    int64_t h = size_of(c, 'h'), r = size_of(c, 'r'), p = size_of(c, 'p'), v = size_of(c, 'v'),
            l = size_of(c, 'l'), window = c->attr.heads.window;
    double cap = c->attr.heads.cap, *k = mem_alloc((size_t)(p + v) * sizeof *k);
    for (int64_t i = 0; i < size_of(c, 'N'); i++) store_tokens(c, i);
    for (int64_t i = 0; i < size_of(c, 'N') * h; i++) {
        int64_t token = i / h, head = i % h, pos = (int64_t)c->in[POS].v[token];
        const double *q = c->in[Q].v + i * (r + p), *w = c->in[W].v + head * (p + v) * l;
        double *o = c->out[0].v + i * v, sum = 0;
        for (int64_t e = 0; e < v; e++) o[e] = 0;
        for (int64_t at = window ? MAX(0, pos - window + 1) : 0; at <= pos; at++) {
            const double *row = c->in[CACHE].v + ((int64_t)c->in[START].v[token] + at) * (l + r);
            double score = 0;
            for (int64_t d = 0; d < p + v; d++) {
                k[d] = 0;
                for (int64_t e = 0; e < l; e++) k[d] += w[d * l + e] * row[e];
            }
            for (int64_t e = 0; e < r; e++) score += q[e] * row[l + e];
            for (int64_t e = 0; e < p; e++) score += q[r + e] * k[e];
            score *= c->attr.heads.scale;
            if (cap > 0) score = cap * tanh(score / cap);
            sum += exp(score);
            for (int64_t e = 0; e < v; e++) o[e] += exp(score) * k[p + e];
        }
        for (int64_t e = 0; e < v; e++) o[e] /= sum;
    }
    free(k);
}

const op_spec latent_specs[] = {
    { .op = OP_LATENT_QKV,
      .letters = "Nhrpv",
      .sizes = latent_sizes,
      .reference = latent_qkv_reference,
      .small = { { 1, 1, 2, 1, 1 },
                 { 5, 3, 4, 3, 2 },
                 { 4, 2, 4, 0, 6 },
                 { 9, 4, 6, 5, 13, .variant = 1 },
                 { 70, 2, 16, 32, 32 } },
      .wide = { { 300, 4, 64, 128, 128 }, { 33, 8, 16, 20, 40 } },
      .wide_tol = { 1e-9, 1e-6 } },
    { .op = OP_HEAD_VALUES,
      .letters = "Nhvp",
      .sizes = head_values_sizes,
      .reference = head_values_reference,
      .small = { { 1, 1, 1, 1 }, { 5, 3, 4, 3 }, { 70, 4, 32, 16 } },
      .wide = { { 300, 4, 128, 64 }, { 33, 8, 12, 5 } },
      .wide_tol = { 1e-9, 1e-9 } },
    { .op = OP_LATENT_CACHED,
      .letters = "Nhrpvls",
      .sizes = latent_cached_sizes,
      .values = latent_cached_values,
      .reference = latent_cached_reference,
      .writes = "cache",
      .small = { { 1, 1, 2, 1, 1, 3, 1 },
                 { 5, 3, 4, 3, 2, 7, 2 },
                 { 4, 2, 4, 0, 6, 20, 1, .variant = 1 },
                 { 9, 2, 6, 5, 13, 40, 3, .variant = 2 },
                 { 70, 2, 16, 32, 32, 64, 1, .variant = 1 } },
      .wide = { { 3, 4, 64, 128, 128, 512, 1 }, { 40, 2, 16, 20, 40, 300, 4, .variant = 1 } },
      .wide_tol = { 1e-5 } },
    { 0 },
};
