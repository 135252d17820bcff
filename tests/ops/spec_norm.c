/* Specs: norms. Variants of rmsnorm and layernorm: 1, the residual (x, r and their gradients) in fp32;
 * 2, weights in fp32. Of qknorm: 1, over the whole width; 2, weights in fp32. */
#include "harness.h"

#include <math.h>
#include <string.h>

static void norm_sizes(op_case *c) { c->attr.eps = 1e-5f; }
static void norm_values(op_case *c) {
    if (c->shape.variant & 1) {
        c->in[0].dt = c->in[0].grad_dt = DT_F32;
        c->out[0].dt = c->out[0].grad_dt = DT_F32;
    }
    if (c->shape.variant & 2) c->in[2].dt = c->in[3].dt = DT_F32;
    spread_values(&c->in[0], 0.5, 1); /* a mean to take away */
}

/* y = (r - mean) * scale * w + b over one group of columns; mean 0 unless centered. @return scale */
static double norm_group(const double *r, const double *w, const double *b, double *y, int64_t d,
                         double eps, bool centered, double *mean_out) {
    double mean = 0, var = 0;
    for (int64_t k = 0; centered && k < d; k++) mean += r[k] / (double)d;
    for (int64_t k = 0; k < d; k++) var += (r[k] - mean) * (r[k] - mean) / (double)d;
    double scale = 1 / sqrt(var + eps);
    for (int64_t k = 0; k < d; k++) y[k] = (r[k] - mean) * scale * (w ? w[k] : 1) + (b ? b[k] : 0);
    *mean_out = mean;
    return scale;
}
static void norm_reference(op_case *c, bool centered) {
    int64_t d = size_of(c, 'D');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double *r = c->out[0].v + i * d, mean;
        for (int64_t k = 0; k < d; k++)
            r[k] = c->in[0].v[i * d + k] + (c->in[1].v ? c->in[1].v[i * d + k] : 0);
        double scale = norm_group(r, c->in[2].v, c->in[3].v, c->out[1].v + i * d, d, c->attr.eps,
                                  centered, &mean);
        if (centered) c->out[2].v[2 * i] = mean;
        c->out[2].v[centered ? 2 * i + 1 : i] = scale;
    }
}
static void rmsnorm_reference(op_case *c) { norm_reference(c, false); }
static void layernorm_reference(op_case *c) { norm_reference(c, true); }
/* r may be absent only when delta is. */
static bool norm_may_lack(uint32_t absent_in, uint32_t absent_out) {
    return !(absent_out & 1) || (absent_in & 2);
}

/* Gradients of y along x and against past, so that those of the factors are not sums that cancel. */
static void lean_gradient(op_case *c, int y) {
    int64_t n = c->in[0].count;
    c->grad[y] = mem_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        c->grad[y][i] = 2 * (c->in[0].v[i] - c->in[2].v[i]) + c->out[y].v[i];
}
/* Variant 1: the residual and the earlier value in fp32, and what has their type. */
static void residual_in_fp32(op_case *c) {
    if (!(c->shape.variant & 1)) return;
    c->in[0].dt = c->in[0].grad_dt = c->in[2].dt = c->in[2].grad_dt = DT_F32;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (strcmp(c->out[i].name, "y")) c->out[i].dt = c->out[i].grad_dt = DT_F32;
}
/* The residual and an earlier value. Variant 1: all but delta in fp32, as a residual. */
static void mix_values(op_case *c) {
    residual_in_fp32(c);
    if (c->shape.variant & 1) c->out[1].dt = c->out[1].grad_dt = DT_F32;
    lean_gradient(c, 1);
}
static void mix_reference(op_case *c) {
    double a = c->in[3].v ? c->in[3].v[0] : 1, b = c->in[4].v[0];
    for (int64_t i = 0; i < c->in[0].count; i++) {
        double past = c->in[2].v[i];
        double r = c->in[0].v[i] + (c->in[1].v ? c->in[1].v[i] : 0);
        c->out[0].v[i] = r;
        c->out[1].v[i] = a * r + b * past;
        c->out[2].v[i] = past;
    }
}
/* The norm undoes a common factor, so that without dm a da + b db is 0: factors alike in size leave both large. */
static void mix_norm_values(op_case *c) {
    residual_in_fp32(c);
    spread_values(&c->in[3], 1, 0.1);
    spread_values(&c->in[4], 0.8, 0.1);
    lean_gradient(c, 2);
}
static void mix_norm_reference(op_case *c) {
    double a = c->in[3].v ? c->in[3].v[0] : 1, b = c->in[4].v[0], mean;
    int64_t d = size_of(c, 'D');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double *m = c->out[1].v + i * d;
        for (int64_t k = i * d; k < (i + 1) * d; k++) {
            double r = c->in[0].v[k] + (c->in[1].v ? c->in[1].v[k] : 0), past = c->in[2].v[k];
            c->out[0].v[k] = r;
            c->out[1].v[k] = a * r + b * past;
            c->out[4].v[k] = past;
        }
        c->out[3].v[i] =
            norm_group(m, NULL, NULL, c->out[2].v + i * d, d, c->attr.eps, false, &mean);
    }
}

/* The row before, in several documents: position 0 has none. */
static void smear_sizes(op_case *c) {
    if (size_of(c, 'G') > size_of(c, 'D')) c->size['G'] = size_of(c, 'D');
}
static void smear_values(op_case *c) {
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        c->in[2].v[i] = i == 0 || draw_below(5) == 0 ? 0 : c->in[2].v[i - 1] + 1;
}
static void smear_reference(op_case *c) {
    int64_t d = size_of(c, 'D');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        const double *x = c->in[0].v + i * d, *prev = c->in[1].v ? c->in[1].v + i * d : x - d;
        double z = 0;
        for (int64_t k = 0; k < size_of(c, 'G'); k++) z += c->in[3].v[k] * x[k];
        double by = c->in[4].v[0] / (1 + exp(-z));
        for (int64_t k = 0; k < d; k++)
            c->out[0].v[i * d + k] = x[k] + (c->in[2].v[i] != 0 ? by * prev[k] : 0);
    }
}

/* d = head size, q and k: heads of each */
static void qknorm_sizes(op_case *c) {
    int64_t d = size_of(c, 'd'), q = size_of(c, 'q'), k = size_of(c, 'k');
    bool full = c->shape.variant & 1;
    c->attr.heads.q = (int)q;
    c->attr.heads.kv = (int)k;
    c->attr.heads.dim = (int)d;
    c->attr.heads.norm_full = full;
    c->attr.eps = 1e-6f;
    c->size['C'] = (q + 2 * k) * d;
    c->size['A'] = full ? q * d : d;
    c->size['B'] = full ? k * d : d;
    c->size['S'] = full ? 2 : q + k;
}
static void qknorm_values(op_case *c) {
    if (c->shape.variant & 2) c->in[1].dt = c->in[2].dt = DT_F32;
    spread_values(&c->in[0], 0.2, 1);
}
static void qknorm_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), groups = size_of(c, 'S');
    int64_t of_q = c->attr.heads.norm_full ? 1 : c->attr.heads.q;
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        const double *x = c->in[0].v + i * cols;
        double *y = c->out[0].v + i * cols, mean;
        for (int64_t k = 0; k < cols; k++) y[k] = x[k];
        for (int64_t g = 0, at = 0; g < groups; g++) {
            const op_value *w = &c->in[g < of_q ? 1 : 2];
            int64_t width = size_of(c, g < of_q ? 'A' : 'B');
            c->out[1].v[i * groups + g] =
                norm_group(x + at, w->v, NULL, y + at, width, c->attr.eps, false, &mean);
            at += width;
        }
    }
}

/* The norm over all heads, in two steps: mean squares, and the norm by those of all ranks. */
static void squares_sizes(op_case *c) {
    qknorm_sizes(c);
    c->attr.heads.norm_full = false;
    c->attr.scale.by = 0.25f;
    c->size['A'] = size_of(c, 'q') * size_of(c, 'd');
    c->size['B'] = size_of(c, 'k') * size_of(c, 'd');
}
static void squares_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), width[2] = { size_of(c, 'A'), size_of(c, 'B') };
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        for (int64_t part = 0, at = 0; part < 2; at += width[part++]) {
            double sum = 0;
            for (int64_t k = 0; k < width[part]; k++) {
                double x = c->in[0].v[i * cols + at + k];
                sum += x * x / (double)width[part];
            }
            c->out[0].v[2 * i + part] = c->attr.scale.by * sum;
        }
}
static void by_values(op_case *c) {
    if (c->shape.variant & 2) c->in[2].dt = c->in[3].dt = DT_F32;
    spread_values(&c->in[0], 0.2, 1);
    for (int64_t i = 0; i < c->in[1].count; i++) c->in[1].v[i] = 0.5 + fabs(c->in[1].v[i]);
}
static void by_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), width[2] = { size_of(c, 'A'), size_of(c, 'B') };
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        const double *x = c->in[0].v + i * cols;
        double *y = c->out[0].v + i * cols;
        for (int64_t k = 0; k < cols; k++) y[k] = x[k];
        for (int64_t part = 0, at = 0; part < 2; at += width[part++]) {
            const double *w = c->in[2 + part].v;
            double r = 1 / sqrt(c->in[1].v[2 * i + part] + c->attr.eps);
            for (int64_t k = 0; k < width[part]; k++) y[at + k] = x[at + k] * r * (w ? w[k] : 1);
        }
    }
}

/* clang-format off */
/* Rows of every width, and so many that a block takes several. */
#define NORM_WIDE                                                                                  \
    { 1, 8, .variant = 2 }, { 3, 20, .variant = 2 }, { 17, 64, .variant = 2 },                     \
    { 33, 768, .variant = 2 }, { 8, 1600, .variant = 2 }, { 5, 2048, .variant = 2 },               \
    { 130, 129, .variant = 2 }, { 4, 5120, .variant = 2 },                                         \
    { 1, 8, .variant = 3 }, { 3, 20, .variant = 3 }, { 17, 64, .variant = 3 },                     \
    { 33, 768, .variant = 3 }, { 8, 1600, .variant = 3 }, { 5, 2048, .variant = 3 },               \
    { 130, 129, .variant = 3 }, { 4, 5120, .variant = 3 },                                         \
    MANY(4096, 768), MANY(830, 2048), MANY(700, 1600), MANY(290, 4096), MANY(270, 5120),           \
    MANY(150, 8192), MANY(280, 9000), MANY(140, 16384), MANY(20000, 64), MANY(9, 1025),            \
    MANY(9, 8193), MANY(9, 16383), MANY(4300, 8),                                                  \
    ODD(9), ODD(10), ODD(11), ODD(12), ODD(13), ODD(14), ODD(15)
#define MANY(n, d)                                                                                 \
    { n, d, .variant = 2, .modes = MODE_BF16 }, { n, d, .variant = 3, .modes = MODE_BF16 }
#define ODD(d) { 40, d, .modes = MODE_F32 }
/* Every number of vectors that a thread has, rows of one warp and of several, rows that blocks share and loop over. */
#define MIX_WIDE                                                                                   \
    { 1, 8 }, { 3, 20 }, { 17, 64 }, { 9, 512 }, { 33, 768 }, { 9, 1024 }, { 9, 1280 },            \
    { 9, 1536 }, { 8, 1600 }, { 5, 2048 }, { 130, 129 }, { 4, 5120 }, { 3, 9000 }, { 3, 16384 },   \
    { 4096, 768, .modes = MODE_BF16 }, { 1100, 2048, .modes = MODE_BF16 },                         \
    { 9, 1025, .modes = MODE_BF16 }, { 5, 8193, .modes = MODE_BF16 },                              \
    { 4300, 8, .modes = MODE_BF16 }, ODD(9), ODD(12), ODD(15)
/* clang-format on */

const op_spec norm_specs[] = {
    { .op = OP_RMSNORM,
      .letters = "ND",
      .sizes = norm_sizes,
      .values = norm_values,
      .reference = rmsnorm_reference,
      .may_lack = norm_may_lack,
      .shares = true,
      .small = { { 1, 5 }, { 5, 37 }, { 40, 600 } },
      .wide = { NORM_WIDE },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_LAYERNORM,
      .letters = "ND",
      .sizes = norm_sizes,
      .values = norm_values,
      .reference = layernorm_reference,
      .may_lack = norm_may_lack,
      .shares = true,
      .small = { { 1, 5 }, { 5, 37 }, { 40, 513 } },
      .wide = { NORM_WIDE },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_MIX,
      .letters = "ND",
      .values = mix_values,
      .reference = mix_reference,
      .may_lack = norm_may_lack,
      .shares = true,
      .variants = 2,
      .small = { { 1, 1 }, { 5, 37 }, { 40, 600 } },
      .wide = { { 1, 8 }, { 3, 20 }, { 33, 768 }, { 130, 129 }, { 1500, 768, .modes = MODE_BF16 } },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_SMEAR,
      .letters = "NDG",
      .sizes = smear_sizes,
      .values = smear_values,
      .reference = smear_reference,
      .small = { { 1, 1, 1 }, { 5, 37, 24 }, { 90, 600, 24 } },
      .wide = { { 1, 8, 8 },
                { 3, 20, 12 },
                { 33, 768, 24 },
                { 130, 129, 32 },
                { 9000, 256, 24, .modes = MODE_BF16 } },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_MIX_NORM,
      .letters = "ND",
      .sizes = norm_sizes,
      .values = mix_norm_values,
      .reference = mix_norm_reference,
      .may_lack = norm_may_lack,
      .shares = true,
      .variants = 2,
      .small = { { 3, 13 }, { 5, 37 }, { 20, 256 }, { 40, 600 } },
      .wide = { MIX_WIDE },
      .wide_tol = { 3e-6, 3e-5 },
      .wide_mixed = 1e-3, /* of m, backends round a few elements to the other neighbor */
      .shift = 8 },
    { .op = OP_QK_SQUARES,
      .letters = "Ndqk",
      .sizes = squares_sizes,
      .reference = squares_reference,
      .small = { { 1, 2, 1, 1 }, { 5, 12, 3, 1 }, { 70, 64, 4, 2 } },
      .wide = { { 37, 12, 6, 2 }, { 37, 70, 6, 2 }, { 300, 128, 8, 2 }, { 9, 128, 32, 32 } },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_QKNORM_BY,
      .letters = "Ndqk",
      .sizes = squares_sizes,
      .values = by_values,
      .reference = by_reference,
      .small = { { 1, 2, 1, 1 }, { 5, 12, 3, 1 }, { 70, 64, 4, 2 } },
      .wide = { { 37, 12, 6, 2, .variant = 2 },
                { 37, 70, 6, 2, .variant = 2 },
                { 300, 128, 8, 2, .variant = 2 },
                { 420, 16, 32, 32, .variant = 2 } },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_QKNORM,
      .letters = "Ndqk",
      .sizes = qknorm_sizes,
      .values = qknorm_values,
      .reference = qknorm_reference,
      .small = { { 1, 2, 1, 1 },
                 { 5, 12, 3, 1 },
                 { 5, 12, 4, 2, .variant = 1 },
                 { 70, 64, 4, 2 },
                 { 40, 64, 4, 1, .variant = 1 } },
      .wide = { { 37, 12, 6, 2, .variant = 2 },
                { 37, 12, 6, 2, .variant = 3 },
                { 37, 70, 6, 2, .variant = 2 },
                { 37, 70, 6, 2, .variant = 3 },
                { 37, 128, 6, 2, .variant = 2 },
                { 37, 128, 6, 2, .variant = 3 },
                { 37, 10, 4, 1, .variant = 2 },
                { 37, 10, 4, 1, .variant = 3 },
                { 37, 5, 8, 1, .variant = 2 },
                { 37, 5, 8, 1, .variant = 3 },
                { 37, 12, 2, 1, .variant = 2 },
                { 37, 12, 2, 1, .variant = 3 },
                { 37, 64, 1, 1, .variant = 2 },
                { 37, 64, 1, 1, .variant = 3 },
                { 37, 300, 4, 2, .variant = 2 },
                { 37, 300, 4, 2, .variant = 3 },
                { 300, 128, 32, 8, .variant = 2, .modes = MODE_BF16 } },
      .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { 0 },
};
