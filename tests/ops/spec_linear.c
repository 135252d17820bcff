/* Specs: the embedding, linear layers, the loss. Variants of linear layers: 1, GELU by erf; 2, weights in
 * bf16, and the bias in fp32; 4, the bias in fp32; 8, squared ReLU instead of GELU. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- embedding. variant 1: most tokens are one row's; 2: the table is the second of three shards ------- */
static void embed_values(op_case *c) {
    int64_t rows = size_of(c, 'V');
    bool sharded = c->shape.variant == 2;
    if (sharded) c->attr.vocab.first = rows, c->attr.vocab.size = 3 * rows;
    fill_below(&c->in[0], sharded ? 3 * rows : rows);
    if (sharded) return;
    for (int64_t i = 0; c->shape.variant && i < c->in[0].count; i++)
        if (i % 5) c->in[0].v[i] = 0;
}
static void embed_reference(op_case *c) {
    int64_t d = size_of(c, 'D');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row = (int64_t)c->in[0].v[i / d] - c->attr.vocab.first;
        bool own = row >= 0 && row < size_of(c, 'V');
        c->out[0].v[i] = own ? c->in[1].v[row * d + i % d] : 0;
    }
}

/* ---- linear -------------------------------------------------------------------------------------------- */
static void linear_values(op_case *c) {
    int variant = c->shape.variant;
    c->attr.act = variant & 8 ? ACT_RELU2 : variant & 1 ? ACT_GELU_ERF : ACT_GELU_TANH;
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
/* y = gelu(pre) w^T: only its backward is one op */
static void gelu_linear_values(op_case *c) {
    linear_values(c);
    drop_value(&c->in[2]);
    strcpy(c->in[0].name, "pre");
    spread_values(&c->in[0], 0, 2.5); /* into both tails */
}
static void gelu_linear_reference(op_case *c) {
    int64_t k = size_of(c, 'K'), m = size_of(c, 'M');
    double *x = mem_alloc((size_t)k * sizeof *x);
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        for (int64_t e = 0; e < k; e++) x[e] = gelu_of(c->in[0].v[i * k + e], c->attr.act);
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t e = 0; e < k; e++) sum += x[e] * c->in[1].v[j * k + e];
            c->out[0].v[i * m + j] = sum;
        }
    }
    free(x);
}

/* ---- the loss. variant: 1, logits scaled; 2, dh in fp32; 4, weights in fp32; 8, logits capped; 16, targets smoothed;
 * 32, z-loss ---------- */
static void loss_attrs(op_case *c) {
    c->attr.ce.logit_scale = c->shape.variant & 1 ? 0.5f : 1.0f;
    c->attr.ce.cap = c->shape.variant & 8 ? 0.75f : 0;
    c->attr.ce.smoothing = c->shape.variant & 16 ? 0.25f : 0;
    c->attr.ce.z_loss = c->shape.variant & 32 ? 0.125f : 0;
}
/* @param sum of e^logit; logits their sum, of v tokens */
static double loss_of_logits(const op_case *c, double sum, double chosen, double logits,
                             int64_t v) {
    double smoothing = c->attr.ce.smoothing, z = log(sum);
    return z - (1 - smoothing) * chosen - smoothing * logits / (double)v +
           c->attr.ce.z_loss * z * z;
}
static double seen_logit(const op_case *c, double z) {
    double cap = c->attr.ce.cap, scaled = z * c->attr.ce.logit_scale;
    return cap > 0 ? cap * tanh(scaled / cap) : scaled;
}
static double ce_logit(const op_case *c, int64_t row, int64_t token) {
    int64_t d = size_of(c, 'D');
    double logit = 0;
    for (int64_t k = 0; k < d; k++) logit += c->in[0].v[row * d + k] * c->in[1].v[token * d + k];
    return seen_logit(c, logit);
}
/* A target for a row: none, any token, or the likeliest, and none where rounding might decide which that is. */
static double draw_target(const op_case *c, int64_t row) {
    int64_t vocab = size_of(c, 'V'), likeliest = 0, target = draw_below(vocab);
    double most = -INFINITY, second = -INFINITY, chosen = 0;
    for (int64_t j = 0; j < vocab; j++) {
        double z = ce_logit(c, row, j);
        if (z > most)
            second = most, most = z, likeliest = j;
        else
            second = fmax(second, z);
        if (j == target) chosen = z;
    }
    if (draw_below(3) == 0) target = likeliest;
    double margin = target == likeliest ? most - second : most - chosen;
    return draw_below(5) == 0 || margin < 0.02 * (1 + fabs(most)) ? -100 : (double)target;
}
static void linear_ce_values(op_case *c) {
    int64_t n = size_of(c, 'N');
    loss_attrs(c);
    if (c->shape.variant & 2) c->in[0].grad_dt = DT_F32;
    if (c->shape.variant & 4) c->in[1].dt = DT_F32;
    spread_values(&c->in[1], 0, 1 / sqrt((double)size_of(c, 'D')));
    for (int i = 0; c->attr.ce.fp8 && i < 2; i++) round_values(DT_E4M3, c->in[i].v, c->in[i].count);
    c->grad[0] = mem_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        c->in[2].v[i] = draw_target(c, i);
        c->grad[0][i] = c->step.loss_grad;
    }
}
/* In fp8, of operands that e4m3 holds exactly: only the gradient of the logits is rounded. */
static void linear_ce_fp8_values(op_case *c) {
    c->attr.ce.fp8 = true;
    linear_ce_values(c);
}
static void linear_ce_reference(op_case *c) {
    int64_t vocab = size_of(c, 'V');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double sum = 0, chosen = 0, logits = 0, most = -INFINITY;
        for (int64_t j = 0; j < vocab; j++) {
            double logit = ce_logit(c, i, j);
            most = fmax(most, logit);
            sum += exp(logit);
            logits += logit;
            if (j == (int64_t)c->in[2].v[i]) chosen = logit;
        }
        c->out[0].v[i] = c->in[2].v[i] < 0 ? 0 : loss_of_logits(c, sum, chosen, logits, vocab);
        if (c->out[3].v) c->out[3].v[i] = c->in[2].v[i] >= 0 && chosen >= most;
    }
}

/* ---- the loss of a sharded vocabulary. Of three ranks the second is at hand, whose last two columns are
 * padding where variant & 2; variant & 1: logits scaled; variant & 8: capped ----------------------------------------------------- */
enum { CE_RANKS = 3, CE_SHARD = 1, CE_STATS = 4 };
static int64_t own_columns(const op_case *c) {
    return size_of(c, 'V') - (c->shape.variant & 2 ? 2 : 0);
}
static void ce_values(op_case *c, op_value *target) {
    int64_t v = size_of(c, 'V'), padded = c->shape.variant & 2;
    loss_attrs(c);
    c->attr.vocab.first = CE_SHARD * v;
    /* with padding, a vocabulary that ends in this rank's columns: the third has none of it */
    c->attr.vocab.size = padded ? CE_SHARD * v + own_columns(c) : CE_RANKS * v;
    for (int64_t i = 0; i < target->count; i++)
        target->v[i] = draw_below(5) == 0 ? -100 : (double)draw_below(c->attr.vocab.size);
}
static void ce_stat_values(op_case *c) { ce_values(c, &c->in[1]); }
/* The maximum of a row's own logits, and the sum of their powers relative to it. */
static void own_stat(const op_case *c, int64_t row, double *max, double *sum) {
    const double *z = c->in[0].v + row * size_of(c, 'V');
    *max = -INFINITY;
    *sum = 0;
    for (int64_t j = 0; j < own_columns(c); j++) *max = fmax(*max, seen_logit(c, z[j]));
    for (int64_t j = 0; j < own_columns(c); j++) *sum += exp(seen_logit(c, z[j]) - *max);
}
static double own_logits(const op_case *c, int64_t row) {
    double sum = 0;
    for (int64_t j = 0; j < own_columns(c) && c->attr.ce.smoothing > 0; j++)
        sum += seen_logit(c, c->in[0].v[row * size_of(c, 'V') + j]);
    return sum;
}
/* @return the scaled logit of a row's target, 0 where it is not among the own columns. */
static double own_target(const op_case *c, const op_value *target, int64_t row) {
    int64_t at = (int64_t)target->v[row] - c->attr.vocab.first;
    if (at < 0 || at >= own_columns(c)) return 0;
    return seen_logit(c, c->in[0].v[row * size_of(c, 'V') + at]);
}
static void ce_stat_reference(op_case *c) {
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double *stat = c->out[0].v + i * CE_STATS;
        stat[0] = stat[1] = stat[2] = stat[3] = 0;
        if (c->in[1].v[i] < 0) continue;
        own_stat(c, i, &stat[0], &stat[1]);
        stat[2] = own_target(c, &c->in[1], i);
        stat[3] = own_logits(c, i);
    }
}
static void ce_loss_sizes(op_case *c) { c->size['S'] = CE_RANKS * size_of(c, 'N'); }
/* The other ranks' statistics are any; the own ones are z's. */
static void ce_loss_values(op_case *c) {
    int64_t n = size_of(c, 'N'), v = size_of(c, 'V');
    ce_values(c, &c->in[2]);
    if (c->out[0].v) c->in[0].grad_dt = c->out[0].dt;
    c->grad[1] = mem_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        c->grad[1][i] = c->step.loss_grad;
        for (int r = 0; r < CE_RANKS; r++) {
            double *stat = c->in[1].v + (r * n + i) * CE_STATS;
            bool has_target = c->in[2].v[i] >= 0 && (int64_t)c->in[2].v[i] / v == r;
            stat[1] = 1 + fabs(stat[1]);
            if (!has_target) stat[2] = 0;
            if (r != CE_SHARD) continue;
            own_stat(c, i, &stat[0], &stat[1]);
            stat[2] = own_target(c, &c->in[2], i);
            stat[3] = own_logits(c, i);
        }
    }
}
/* Of z the own statistics follow, so that finite differences see them. */
static void ce_loss_reference(op_case *c) {
    int64_t n = size_of(c, 'N');
    for (int64_t i = 0; i < n; i++) {
        double own_max, own_sum, sum, at_target = own_target(c, &c->in[2], i);
        double logits = own_logits(c, i);
        own_stat(c, i, &own_max, &own_sum);
        double most = own_max;
        sum = own_sum * exp(own_max);
        for (int r = 0; r < CE_RANKS; r++) {
            const double *stat = c->in[1].v + (r * n + i) * CE_STATS;
            if (r == CE_SHARD) continue;
            most = fmax(most, stat[0]);
            sum += stat[1] * exp(stat[0]);
            at_target += stat[2];
            logits += stat[3];
        }
        c->out[1].v[i] =
            c->in[2].v[i] < 0 ? 0 : loss_of_logits(c, sum, at_target, logits, c->attr.vocab.size);
        if (c->out[2].v) c->out[2].v[i] = c->in[2].v[i] >= 0 && at_target >= most;
    }
    if (!c->out[3].v) return;
    float row[2], loss_scale = c->step.now.loss_scale > 0 ? c->step.now.loss_scale : 1;
    fp8_set_scale(row, fp8_logit_scale(c->step.loss_grad * c->attr.ce.logit_scale * loss_scale));
    for (int i = 0; i < 2; i++) c->out[3].v[i] = row[i];
}

static void cap_logits_values(op_case *c) {
    c->attr.ce.logit_scale = c->shape.variant & 1 ? 0.5f : 1.0f;
    c->attr.ce.cap = 0.75f;
    spread_values(&c->in[0], 0, 2); /* into both tails */
}
static void cap_logits_reference(op_case *c) {
    for (int64_t i = 0; i < c->in[0].count; i++) c->out[0].v[i] = seen_logit(c, c->in[0].v[i]);
}

/* clang-format off */
#define LINEAR_WIDE                                                                                \
    { 16, 64, 32 }, { 33, 24, 40, .variant = 5 }, { 128, 768, 2304, .variant = 4 }, { 71, 13, 5 },  \
    { 200, 384, 1536, .variant = 4 }, { 33, 64, 40, .variant = 2, .modes = MODE_F32 },             \
    { 64, 64, 64, .variant = 5, .modes = MODE_BF16 },                                              \
    /* as many rows as generation has */                                                           \
    { 1, 768, 2304, .variant = 4 }, { 2, 4096, 30, .variant = 4 }, { 3, 264, 129 }, { 8, 2048, 768 },                \
    /* several tiles of Hopper's for each cluster, and parts of them */                            \
    { 300, 520, 776, .variant = 4, .when = ALWAYS }, { 1100, 264, 520, .variant = 0, .when = ALWAYS },                \
    /* and more columns than blocks take at once */                                                \
    { 1, 2056, 2125, .modes = MODE_BF16, .when = ALWAYS }, { 5, 264, 8500, .modes = MODE_BF16 | MODE_F32 }

/* GEMMs on the CPU round their operands as a GPU does; only the order of sums differs. */
const op_spec linear_specs[] = {
    { .op = OP_EMBED, .letters = "NDV", .values = embed_values, .reference = embed_reference,
      .small = { { 1, 1, 1 }, { 9, 67, 5 }, { 40, 700, 60 }, { 90, 20, 3, .variant = 2 } },
      .wide = { { 7, 8, 50 }, { 119, 64, 50, .variant = 2 }, { 3000, 12, 2, .variant = 2 }, { 21, 20, 50 }, { 119, 64, 50 }, { 231, 768, 50 }, { 56, 1600, 50 },
                { 35, 2048, 50 }, { 910, 129, 50 }, { 28, 5120, 50 },
                { 3000, 12, 1, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 },
                { 3000, 264, 3, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 },
                { 3000, 520, 1000, .variant = 1, .modes = MODE_BF16, .tol = 1e-5 } },
      .wide_modes = MODES_UNIFORM | MODE_BF16_F32, .wide_tol = { 1e-7, 3e-6 }, .shift = 8 },
    { .op = OP_LINEAR, .letters = "NKM", .values = linear_values, .reference = linear_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19 }, { 32, 64, 48 }, { 70, 40, 130 }, { 1, 72, 6 }, { 2, 8, 3 },
                 { 3, 40, 17 }, { 4, 264, 9 }, { 6, 64, 4 }, { 8, 2312, 5 } },
      .wide = { LINEAR_WIDE }, .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_LINEAR_GELU, .letters = "NKM", .values = linear_values,
      .reference = linear_gelu_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19, .variant = 1 }, { 70, 40, 130 }, { 1, 72, 6 },
                 { 2, 8, 3, .variant = 1 }, { 4, 264, 9 }, { 8, 2312, 5 } },
      .wide = { LINEAR_WIDE }, .wide_tol = { 2e-5 }, .shift = 16 },
    /* A square doubles the relative error of what is rounded before it. */
    { .op = OP_LINEAR_GELU, .name = "linear, then squared ReLU", .letters = "NKM", .values = linear_values,
      .reference = linear_gelu_reference, .small = { { 7, 33, 19, .variant = 8 }, { 3, 40, 17, .variant = 8 } },
      .wide = { { 33, 24, 40, .variant = 8 }, { 64, 64, 128, .variant = 12 } }, .wide_tol = { 2e-5 },
      .wide_half = { 2 }, .shift = 16 },
    { .op = OP_LINEAR, .name = "gelu_linear", .only = OP_LINEAR_BWD_X_GELU, .letters = "NKM",
      .values = gelu_linear_values, .reference = gelu_linear_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 19, .variant = 1 }, { 7, 33, 19, .variant = 8 }, { 70, 40, 130 } },
      .wide = { LINEAR_WIDE, { 33, 24, 40, .variant = 8 }, { 64, 64, 128, .variant = 12 } },
      .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_LINEAR_CE, .letters = "NDV", .values = linear_ce_values,
      .reference = linear_ce_reference,
      .small = { { 1, 1, 2 }, { 7, 33, 19 }, { 40, 16, 130, .variant = 1 },
                 { 7, 33, 19, .variant = 8 }, { 40, 16, 1300, .variant = 9 }, { 7, 33, 19, .variant = 16 },
                 { 7, 33, 19, .variant = 32 }, { 40, 16, 1300, .variant = 57 } },
      .wide = { { 33, 64, 101, .variant = 49 }, { 17, 32, 4096, .variant = 57 }, { 5, 16, 50257, .variant = 49 }, { 33, 64, 101, .variant = 1 }, { 17, 32, 4096, .variant = 1 },
                { 5, 16, 50257, .variant = 1 }, { 64, 24, 37, .variant = 1 },
                { 64, 64, 64, .variant = 1 }, { 33, 64, 63, .variant = 1 },
                { 4200, 64, 129, .variant = 1 },
                { 33, 64, 101, .variant = 9 }, { 17, 32, 4096, .variant = 8 }, { 5, 16, 50257, .variant = 9 },
                { 33, 64, 101, .variant = 3, .modes = MODE_BF16 },
                { 33, 64, 101, .variant = 5, .modes = MODE_BF16 },
                { 48, 64, 193, .variant = 1, .modes = MODE_BF16, .adds_first = true } },
      /* a GPU's logits are of the operands' type, the CPU's fp32 */
      .wide_tol = { 2e-5 }, .wide_mixed = 1e-2 },
    { .op = OP_LINEAR_CE, .name = "linear_ce in fp8", .letters = "NDV", .values = linear_ce_fp8_values,
      .reference = linear_ce_reference, .modes = MODE_BF16,
      .small = { { 16, 16, 16 }, { 16, 32, 48, .variant = 1 }, { 48, 16, 1296, .variant = 9 }, { 16, 16, 48, .variant = 16 },
                 { 16, 16, 48, .variant = 34 }, { 48, 16, 1296, .variant = 57 } },
      .wide = { { 48, 64, 112, .variant = 49 }, { 32, 32, 4096, .variant = 57 }, { 16, 16, 50272, .variant = 49 },
                { 16, 16, 65536, .variant = 9 }, { 64, 64, 64, .variant = 1 }, { 4208, 64, 144, .variant = 1 }, { 144, 272, 400, .variant = 9 },
                { 48, 64, 192, .variant = 3 }, { 48, 64, 208, .variant = 1, .adds_first = true } },
      /* e5m2 rounds by up to an eighth; logits that differ in their last bits may round to neighbors */
      .looser = 7, .wide_tol = { 2e-2 }, .wide_half = { 10 } },
    { .op = OP_CE_STAT, .letters = "NV", .values = ce_stat_values, .reference = ce_stat_reference,
      .small = { { 1, 3, .variant = 2 }, { 7, 19 }, { 40, 1300, .variant = 3 }, { 7, 19, .variant = 9 }, { 3, 700, .variant = 10 }, { 7, 19, .variant = 16 },
                 { 7, 19, .variant = 34 }, { 3, 700, .variant = 59 } },
      .wide = { { 17, 4096, .variant = 59 }, { 33, 101, .variant = 48 }, { 33, 101, .variant = 1 }, { 17, 4096, .variant = 3 }, { 5, 25129 }, { 64, 64, .variant = 2 },
                { 33, 101, .variant = 9 }, { 17, 4096, .variant = 11 } },
      .wide_tol = { 1e-5 }, .shift = 8 },
    { .op = OP_CE_LOSS, .letters = "NV", .sizes = ce_loss_sizes, .values = ce_loss_values,
      .reference = ce_loss_reference,
      .small = { { 1, 3, .variant = 2 }, { 7, 19 }, { 40, 1300, .variant = 3 }, { 7, 19, .variant = 9 }, { 3, 700, .variant = 10 }, { 7, 19, .variant = 16 },
                 { 7, 19, .variant = 34 }, { 3, 700, .variant = 59 } },
      .wide = { { 17, 4096, .variant = 59 }, { 33, 101, .variant = 48 }, { 33, 101, .variant = 1 }, { 17, 4096, .variant = 3 }, { 5, 25129 }, { 64, 64, .variant = 2 },
                { 33, 101, .variant = 9 }, { 17, 4096, .variant = 11 } },
      .wide_tol = { 1e-5 }, .shift = 8 },
    { .op = OP_CAP_LOGITS, .letters = "NV", .values = cap_logits_values,
      .reference = cap_logits_reference,
      .small = { { 1, 1, .variant = 8 }, { 7, 33, .variant = 9 }, { 3, 1100, .variant = 8 } },
      .wide = { { 33, 101, .variant = 9 }, { 17, 4096, .variant = 8 }, { 5, 25129, .variant = 8 } },
      .wide_tol = { 3e-6 }, .shift = 8 },
    { 0 },
};
