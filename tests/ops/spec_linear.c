/* Specs: the embedding, linear layers, the loss. Variants of linear layers: 1, GELU by erf; 2, weights in
 * bf16, and the bias in fp32; 4, the bias in fp32. */
#include "harness.h"

#include <math.h>
#include <string.h>

/* ---- embedding. variant 1: most tokens are one row's --------------------------------------------------- */
static void embed_values(op_case *c) {
    fill_below(&c->in[0], size_of(c, 'V'));
    for (int64_t i = 0; c->shape.variant && i < c->in[0].count; i++)
        if (i % 5) c->in[0].v[i] = 0;
}
static void embed_reference(op_case *c) {
    int64_t d = size_of(c, 'D');
    for (int64_t i = 0; i < c->out[0].count; i++)
        c->out[0].v[i] = c->in[1].v[(int64_t)c->in[0].v[i / d] * d + i % d];
}

/* ---- linear -------------------------------------------------------------------------------------------- */
static void linear_values(op_case *c) {
    int variant = c->shape.variant;
    c->attr.act = variant & 1 ? ACT_GELU_ERF : ACT_GELU_TANH;
    if (variant & 2) c->in[1].dt = DT_BF16;
    if (variant & 6) c->in[2].dt = DT_F32;
    spread_values(&c->in[1], 0, 1 / sqrt((double)size_of(c, 'K')));
}
static void linear_reference(op_case *c) {
    int64_t k = size_of(c, 'K'), m = size_of(c, 'M');
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = c->in[2].v ? c->in[2].v[j] : 0;
            for (int64_t e = 0; e < k; e++) sum += c->in[0].v[i * k + e] * c->in[1].v[j * k + e];
            c->out[0].v[i * m + j] = sum;
        }
}
static void linear_gelu_reference(op_case *c) {
    linear_reference(c);
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double pre = c->out[1].v[i] = c->out[0].v[i];
        c->out[0].v[i] = gelu_of(pre, c->attr.act);
    }
}
/* y = gelu(pre) w^T, of which only the backward is one op */
static void gelu_linear_values(op_case *c) {
    linear_values(c);
    drop_value(&c->in[2]);
    strcpy(c->in[0].name, "pre");
    spread_values(&c->in[0], 0, 2.5); /* into both tails */
}
static void gelu_linear_reference(op_case *c) {
    int64_t k = size_of(c, 'K'), m = size_of(c, 'M');
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t e = 0; e < k; e++)
                sum += gelu_of(c->in[0].v[i * k + e], c->attr.act) * c->in[1].v[j * k + e];
            c->out[0].v[i * m + j] = sum;
        }
}

/* ---- the loss. variant: 1, logits scaled; 2, dh in fp32; 4, weights in fp32 ------------------------------ */
static void linear_ce_values(op_case *c) {
    int64_t n = size_of(c, 'N');
    c->attr.ce.logit_scale = c->shape.variant & 1 ? 0.5f : 1.0f;
    if (c->shape.variant & 2) c->in[0].grad_dt = DT_F32;
    if (c->shape.variant & 4) c->in[1].dt = DT_F32;
    spread_values(&c->in[1], 0, 1 / sqrt((double)size_of(c, 'D')));
    c->grad[0] = mem_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        c->in[2].v[i] = draw_below(5) == 0 ? -100 : (double)draw_below(size_of(c, 'V'));
        c->grad[0][i] = c->step.loss_grad;
    }
}
static void linear_ce_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), vocab = size_of(c, 'V');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double sum = 0, chosen = 0;
        for (int64_t j = 0; j < vocab; j++) {
            double logit = 0;
            for (int64_t k = 0; k < d; k++) logit += c->in[0].v[i * d + k] * c->in[1].v[j * d + k];
            logit *= c->attr.ce.logit_scale;
            sum += exp(logit);
            if (j == (int64_t)c->in[2].v[i]) chosen = logit;
        }
        c->out[0].v[i] = c->in[2].v[i] < 0 ? 0 : log(sum) - chosen;
    }
}

/* clang-format off */
#define LINEAR_WIDE                                                                                \
    { 16, 64, 32 }, { 33, 24, 40, .variant = 5 }, { 128, 768, 2304, .variant = 4 }, { 71, 13, 5 },  \
    { 200, 384, 1536, .variant = 4 }, { 33, 64, 40, .variant = 2, .modes = MODE_F32 },             \
    { 64, 64, 64, .variant = 5, .modes = MODE_BF16 }

/* GEMMs on the CPU round their operands as a GPU does; only the order of sums differs. */
const op_spec linear_specs[] = {
    { .op = OP_EMBED, .letters = "NDV", .values = embed_values, .reference = embed_reference,
      .small = { { 1, 1, 1 }, { 9, 67, 5 }, { 40, 700, 60 } },
      .wide = { { 7, 8, 50 }, { 21, 20, 50 }, { 119, 64, 50 }, { 231, 768, 50 }, { 56, 1600, 50 },
                { 35, 2048, 50 }, { 910, 129, 50 }, { 28, 5120, 50 },
                { 3000, 12, 1, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 },
                { 3000, 264, 3, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 },
                { 3000, 520, 1000, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 } },
      .wide_modes = MODES_UNIFORM | MODE_BF16_F32, .wide_tol = { 1e-7, 3e-6 }, .shift = 8 },
    { .op = OP_LINEAR, .letters = "NKM", .values = linear_values, .reference = linear_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19 }, { 32, 64, 48 }, { 70, 40, 130 } },
      .wide = { LINEAR_WIDE }, .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_LINEAR_GELU, .letters = "NKM", .values = linear_values,
      .reference = linear_gelu_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19, .variant = 1 }, { 70, 40, 130 } },
      .wide = { LINEAR_WIDE }, .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_LINEAR, .name = "gelu_linear", .only = OP_LINEAR_BWD_X_GELU, .letters = "NKM",
      .values = gelu_linear_values, .reference = gelu_linear_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19, .variant = 1 }, { 70, 40, 130 } },
      .wide = { LINEAR_WIDE }, .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_LINEAR_CE, .letters = "NDV", .values = linear_ce_values,
      .reference = linear_ce_reference,
      .small = { { 1, 1, 2 }, { 7, 33, 19 }, { 40, 16, 130, .variant = 1 } },
      .wide = { { 33, 64, 101, .variant = 1 }, { 17, 32, 4096, .variant = 1 },
                { 5, 16, 50257, .variant = 1 }, { 64, 24, 37, .variant = 1 },
                { 64, 64, 64, .variant = 1 }, { 33, 64, 63, .variant = 1 },
                { 4200, 64, 129, .variant = 1 },
                { 33, 64, 101, .variant = 3, .modes = MODE_BF16 },
                { 33, 64, 101, .variant = 5, .modes = MODE_BF16 },
                { 48, 64, 193, .variant = 1, .modes = MODE_BF16, .adds_first = true } },
      /* a GPU's logits are of the operands' type, the CPU's fp32 */
      .wide_tol = { 2e-5 }, .wide_mixed = 1e-2 },
    { 0 },
};
