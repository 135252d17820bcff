/* Specs: fp8. Scales are powers of two and a value is rounded once, so that the bytes and rows of
 * quantize are the CPU's, bit for bit. The CPU's own are checked in tests/unit/test_fp8.c. */
#include "harness.h"

#include <math.h>
#include <string.h>

static void fp8_sizes(op_case *c) { c->size['R'] = FP8_ROW; }

/* Fills a scale row; scale 0: cold. */
static void fill_row(op_value *x, float scale, dtype dt) {
    float row[FP8_ROW] = { 0 };
    row[FP8_TOP] = fp8_top(dt);
    fp8_set_scale(row, scale);
    row[FP8_AMAX] = 0.25f;
    for (int i = 0; i < FP8_ROW; i++) x->v[i] = row[i];
}

/* Activations and gradients of the linear ops as they are in fp8: rows are needed, no bias gradient. */
static void fill_scaled(op_value *x, dtype dt, double spread, op_value *row, float scale) {
    x->dt = dt;
    spread_values(x, 0, spread);
    fill_row(row, scale, dt);
    row->optional = false;
}

/* ---- quantize ---------------------------------------------------------------------------------------- */
enum { RECIPES = 5, QUANTIZE_VARIANTS = 2 * 2 * RECIPES };
static void quantize_values(op_case *c) {
    static const double odd[] = { NAN, INFINITY, -INFINITY, 0, -0.0 };
    int v = c->shape.variant, recipe = v / 4;
    dtype dt = v & 1 ? DT_E5M2 : DT_E4M3;
    c->out[0].dt = c->out[1].dt = dt;
    drop_value(&c->out[2]);                  /* a sum depends on its order */
    fill_row(&c->in[1], v & 2 ? 64 : 0, dt); /* 64: values beyond 7 saturate in e4m3 */
    spread_values(&c->in[0], 0, 3);
    c->attr.fp8.recipe = recipe % 4 ? FP8_CURRENT : FP8_DELAYED;
    c->attr.fp8.given = recipe == 2;
    c->attr.fp8.measured = recipe > 2;
    memcpy(c->in[0].v + 11, odd, sizeof odd);
    if (recipe > 2) c->in[1].v[FP8_AMAX] = 100; /* of all ranks: as large as any value here */
}
/* A tensor of zeros leaves its row cold; the next one warms it. */
static void zeros_values(op_case *c) {
    c->out[0].dt = c->out[1].dt = DT_E4M3;
    drop_value(&c->out[2]);
    fill_row(&c->in[1], 0, DT_E4M3);
    spread_values(&c->in[0], 0, 0);
    c->attr.fp8.recipe = FP8_DELAYED;
}
/* variant: the activation; all but the first with the recipe current */
static void quantize_sum_values(op_case *c) {
    dtype dt = c->in[2].v ? DT_E5M2 : DT_E4M3;
    c->out[0].dt = c->out[1].dt = dt;
    spread_values(&c->in[0], 0.1, 2);
    spread_values(&c->in[2], 0, 2);
    spread_values(&c->in[1], 0, 0);
    c->attr.act = (act_kind)c->shape.variant;
    c->attr.fp8.recipe = c->shape.variant ? FP8_CURRENT : FP8_DELAYED;
}
static bool quantize_may_lack(uint32_t absent_in, uint32_t absent_out) {
    return (absent_out & 3) != 3;
}

static void commit_values(op_case *c) {
    op_value *rows = &c->out[0];
    for (int64_t i = 0; i < rows->count; i++) rows->v[i] = fabs(rows->v[i]);
    for (int64_t i = 0; i < rows->dim[0]; i++)
        rows->v[i * FP8_ROW + FP8_TOP] = fp8_top(i & 1 ? DT_E5M2 : DT_E4M3);
    if (rows->dim[0] > 5) memset(rows->v + 5 * FP8_ROW, 0, FP8_ROW * sizeof *rows->v);
}
static void commit_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].dim[0]; i++) {
        float row[FP8_ROW];
        double *v = c->out[0].v + i * FP8_ROW;
        for (int k = 0; k < FP8_ROW; k++) row[k] = (float)v[k];
        fp8_commit_row(row);
        for (int k = 0; k < FP8_ROW; k++) v[k] = row[k];
    }
}

/* ---- linear layers: both operands are contiguous along the sum ---------------------------------------------------- */
/* c[rows, cols] = a[rows, k] b[cols, k]^T, unscaled */
static void multiply_scaled(op_case *c) {
    const op_value *a = &c->in[0], *b = &c->in[1];
    int64_t k = a->dim[1], cols = b->dim[0];
    double unscale = c->in[3].v[FP8_UNSCALE] * c->in[4].v[FP8_UNSCALE];
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double sum = 0;
        for (int64_t e = 0; e < k; e++) sum += a->v[i / cols * k + e] * b->v[i % cols * k + e];
        c->out[0].v[i] = sum * unscale;
    }
}
static void linear_fp8_values(op_case *c) {
    c->attr.act = c->shape.variant & 1 ? ACT_GELU_ERF : ACT_GELU_TANH;
    c->in[2].dt = DT_F32;
    fill_scaled(&c->in[0], DT_E4M3, 100, &c->in[3], 0x1p7f);
    fill_scaled(&c->in[1], DT_E4M3, 100, &c->in[4], 0x1p8f);
}
static void linear_fp8_reference(op_case *c) {
    multiply_scaled(c);
    for (int64_t i = 0; i < c->out[0].count; i++) {
        c->out[0].v[i] += c->in[2].v ? c->in[2].v[i % size_of(c, 'M')] : 0;
        if (!c->out[1].v) continue;
        c->out[1].v[i] = c->out[0].v[i];
        c->out[0].v[i] = gelu_of(c->out[1].v[i], c->attr.act);
    }
}
static void bwd_x_fp8_values(op_case *c) {
    swap_dims(&c->in[1]); /* w^T */
    fill_scaled(&c->in[0], DT_E5M2, 1000, &c->in[3], 0x1p11f);
    fill_scaled(&c->in[1], DT_E4M3, 100, &c->in[4], 0x1p8f);
}
static void bwd_w_fp8_values(op_case *c) {
    swap_dims(&c->in[0]); /* dy^T, x^T */
    swap_dims(&c->in[1]);
    drop_value(&c->out[1]);
    fill_scaled(&c->in[0], DT_E5M2, 1000, &c->in[3], 0x1p11f);
    fill_scaled(&c->in[1], DT_E4M3, 100, &c->in[4], 0x1p7f);
}

/* clang-format off */
#define SUM_WIDE                                                                                   \
    { 16, 144 }, { 272, 16 }, { 144, 272 }, { 144, 400 }, { 400, 1600 }, { 2048, 768 }
/* Activations differ in their last bits, so that a value in many thousands rounds the other way. */
#define QUANTIZE_SUM(code, word, by)                                                                     \
    { .op = code, .name = word " with sums", .letters = "N" by, .sizes = fp8_sizes,               \
      .values = quantize_sum_values, .checked_in = "tests/unit/test_fp8.c", .writes = "row",       \
      .may_lack = quantize_may_lack, .variants = 3, .modes = MODE_BF16, .small = { { 16, 16 } },   \
      .wide = { SUM_WIDE }, .wide_tol = { 5e-3 } }
/* A GPU keeps sums of fp8 GEMMs in fewer bits than fp32 has. */
#define LINEAR_FP8(code, word, set, ref)                                                           \
    { .op = code, .name = word, .letters = "NKM", .sizes = fp8_sizes, .values = set,               \
      .reference = ref, .alone = true, .modes = MODE_BF16, .small = { { 16, 16, 16 } },            \
      .wide = { { 48, 32, 64 }, { 144, 272, 400, .variant = 1 }, { 128, 768, 2304 },               \
                { 1024, 384, 1536, .variant = 1 } },                                               \
      .wide_tol = { 1e-3 } }

const op_spec fp8_specs[] = {
    { .op = OP_QUANTIZE, .letters = "NK", .sizes = fp8_sizes, .values = quantize_values,
      .checked_in = "tests/unit/test_fp8.c", .writes = "row", .may_lack = quantize_may_lack,
      .variants = QUANTIZE_VARIANTS, .modes = MODES_UNIFORM, .exact = true, .nan = true,
      .small = { { 16, 16 } },
      .wide = { { 16, 128 }, { 144, 16 }, { 128, 272 }, { 400, 1600 }, { 2048, 768 } } },
    { .op = OP_QUANTIZE, .name = "quantize zeros", .letters = "NK", .sizes = fp8_sizes,
      .values = zeros_values, .checked_in = "tests/unit/test_fp8.c", .writes = "row",
      .may_lack = quantize_may_lack, .modes = MODE_BF16, .exact = true, .small = { { 144, 272 } } },
    QUANTIZE_SUM(OP_QUANTIZE, "quantize", "K"),
    QUANTIZE_SUM(OP_QUANTIZE_SWIGLU, "quantize_swiglu", "K"),
    QUANTIZE_SUM(OP_QUANTIZE_SWIGLU_BWD, "quantize_swiglu_bwd", "F"),
    QUANTIZE_SUM(OP_QUANTIZE_GELU, "quantize_gelu", "K"),
    QUANTIZE_SUM(OP_QUANTIZE_GELU_BWD, "quantize_gelu_bwd", "K"),
    QUANTIZE_SUM(OP_QUANTIZE_NORM, "quantize_norm", "K"),
    { .op = OP_FP8_COMMIT, .letters = "RC", .values = commit_values, .reference = commit_reference,
      .in_out = true, .exact = true, .modes = MODE_F32, .small = { { 1, FP8_ROW } },
      .wide = { { 37, FP8_ROW } } },
    LINEAR_FP8(OP_LINEAR, "linear in fp8", linear_fp8_values, linear_fp8_reference),
    LINEAR_FP8(OP_LINEAR_GELU, "linear_gelu in fp8", linear_fp8_values, linear_fp8_reference),
    LINEAR_FP8(OP_LINEAR_BWD_X, "linear_bwd_x in fp8", bwd_x_fp8_values, multiply_scaled),
    LINEAR_FP8(OP_LINEAR_BWD_W, "linear_bwd_w in fp8", bwd_w_fp8_values, multiply_scaled),
    { 0 },
};
