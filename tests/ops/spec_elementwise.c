/* Specs: activations and other ops by element. */
#include "harness.h"

#include <math.h>

/* Widths for every path of a kernel: vectors, their rest, rows of one block and of several. */
#define WIDE_SHAPES                                                                                \
    { 1, 8 }, { 3, 20 }, { 17, 64 }, { 33, 768 }, { 8, 1600 }, { 5, 2048 }, { 130, 129 }, {        \
        4, 5120                                                                                    \
    }

/* ---- activations ----------------------------------------------------------------------------------- */
static void gelu_values(op_case *c) {
    c->attr.act = (act_kind)c->shape.variant; /* every one in turn */
    spread_values(&c->in[0], 0, 2.5);         /* into both tails */
}
static void gelu_reference(op_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++)
        c->out[0].v[i] = gelu_of(c->in[0].v[i], c->attr.act);
}

static void swiglu_values(op_case *c) { spread_values(&c->in[0], 0, 2); }
static void swiglu_reference(op_case *c) {
    int64_t f = size_of(c, 'F');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        const double *row = c->in[0].v + i / f * 2 * f, g = row[i % f], u = row[f + i % f];
        c->out[0].v[i] = g / (1 + exp(-g)) * u;
    }
}

static void geglu_values(op_case *c) {
    c->attr.act = (act_kind)c->shape.variant;
    spread_values(&c->in[0], 0, 2);
}
static void geglu_reference(op_case *c) {
    int64_t f = size_of(c, 'F');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        const double *row = c->in[0].v + i / f * 2 * f;
        c->out[0].v[i] = gelu_of(row[i % f], c->attr.act) * row[f + i % f];
    }
}

/* Values keep away from the limits, where the slope is not defined. */
static void clamped_values(op_case *c) {
    c->attr.clamp.limit = 1.5f;
    c->attr.clamp.alpha = 1.702f;
    for (int64_t i = 0; i < c->in[0].count; i++)
        if (fabs(fabs(c->in[0].v[i]) - 1.5) < 0.05) c->in[0].v[i] *= 1.2;
}
static void clamped_reference(op_case *c) {
    int64_t f = size_of(c, 'F');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        const double *row = c->in[0].v + i / f * 2 * f;
        double g = MIN(row[i % f], 1.5), u = MAX(-1.5, MIN(row[f + i % f], 1.5));
        c->out[0].v[i] = (u + 1) * g / (1 + exp(-(double)1.702f * g));
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------- */
static void add_reference(op_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++)
        c->out[0].v[i] = c->in[0].v[i] + (c->in[1].v ? c->in[1].v[i] : 0);
}
static void cast_reference(op_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++) c->out[0].v[i] = c->in[0].v[i];
}

static void scale_values(op_case *c) { c->attr.scale.by = -0.75f; }
static void scale_reference(op_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++) c->out[0].v[i] = -0.75 * c->in[0].v[i];
}

static void zero_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].count; i++) c->out[0].v[i] = 0;
}

static void dropout_values(op_case *c) {
    c->attr.dropout.p = 0.3f;
    c->attr.dropout.site = 7;
    for (int64_t i = 0; i < c->in[1].count; i++) /* ids need more than 32 bits, in no order */
        c->in[1].v[i] = (double)(draw_below(1000) + (draw_below(8) << 33));
}
static void dropout_reference(op_case *c) {
    double p = c->attr.dropout.p;
    int64_t cols = size_of(c, 'D');
    for (int64_t i = 0; i < c->in[0].count; i++) {
        uint64_t id = (uint64_t)c->in[1].v[i / cols];
        uint32_t word[4], ctr[4] = { c->attr.dropout.site | c->layer << 16, (uint32_t)id,
                                     (uint32_t)(id >> 32), (uint32_t)(i % cols / 4) };
        philox4x32(c->step.dropout, ctr, PHILOX_ROUNDS, word);
        bool kept = (double)word[i % cols % 4] / 4294967296.0 >= p;
        c->out[0].v[i] = kept ? c->in[0].v[i] / (1 - p) : 0;
    }
}

enum { EVERY_MODE = (1 << MODE_COUNT) - 1 };
const op_spec elementwise_specs[] = {
    { .op = OP_GELU,
      .letters = "NF",
      .values = gelu_values,
      .reference = gelu_reference,
      .variants = 3,
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 3e-6 },
      .shift = 8 },
    { .op = OP_SWIGLU,
      .letters = "NF",
      .values = swiglu_values,
      .reference = swiglu_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 40, 700 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 3e-6 },
      .shift = 8 },
    { .op = OP_GEGLU,
      .letters = "NF",
      .values = geglu_values,
      .reference = geglu_reference,
      .variants = 3,
      .small = { { 1, 1 }, { 7, 33 }, { 40, 700 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 3e-6 },
      .shift = 8 },
    { .op = OP_SWIGLU_CLAMPED,
      .letters = "NF",
      .values = clamped_values,
      .reference = clamped_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 40, 700 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 3e-6 },
      .shift = 8 },
    { .op = OP_ADD,
      .letters = "ND",
      .reference = add_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_modes = EVERY_MODE,
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_FETCH,
      .letters = "ND",
      .reference = cast_reference,
      .modes = MODES_UNIFORM, /* a copy of bytes */
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_ACCUMULATE,
      .letters = "ND",
      .reference = cast_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_DROPOUT,
      .letters = "ND",
      .values = dropout_values,
      .reference = dropout_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 40, 700 } },
      .wide = { WIDE_SHAPES },
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_CAST,
      .letters = "ND",
      .reference = cast_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_modes = EVERY_MODE,
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_SCALE,
      .letters = "ND",
      .values = scale_values,
      .reference = scale_reference,
      .small = { { 1, 1 }, { 7, 33 }, { 30, 1100 } },
      .wide = { WIDE_SHAPES },
      .wide_modes = EVERY_MODE,
      .wide_tol = { 1e-6 },
      .shift = 8 },
    { .op = OP_ZERO,
      .letters = "ND",
      .reference = zero_reference,
      .small = { { 1, 1 }, { 7, 33 } },
      .wide = { { 1000 } },
      .exact = true },
    { 0 },
};
