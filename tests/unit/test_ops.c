/* Every op against a plain fp64 reference, through the one harness. The references are written
 * from the contracts in ops.h, in the most naive way that is right. */
#include "op_harness.h"
#include "ops/op_table.h"

/* ---- embedding: a = D, b = V ----------------------------------------------------------------- */
static void embed_setup(op_inst *t) {
    op_shape s = t->shape;
    in_make(t, 0, T_I32, s.n);
    in_make(t, 1, T_WEIGHT, s.b, s.a);
    out_make(t, 0, T_ACT, s.n, s.a);
    for (int64_t i = 0; i < s.n; i++) t->in[0].v[i] = (double)draw_below(s.b);
}
static void embed_ref(op_inst *t) {
    int64_t d = t->shape.a;
    for (int64_t i = 0; i < t->shape.n; i++)
        for (int64_t k = 0; k < d; k++)
            t->out[0].v[i * d + k] = t->in[1].v[(int64_t)t->in[0].v[i] * d + k];
}

/* ---- linear: a = K, b = M; variant: act_kind ------------------------------------------------- */
static double gelu(double x, act_kind act) {
    if (act == ACT_GELU_ERF) return 0.5 * x * (1 + erf(x / sqrt(2)));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void linear_setup(op_inst *t) {
    op_shape s = t->shape;
    in_make(t, 0, T_ACT, s.n, s.a);
    in_make(t, 1, T_WEIGHT, s.b, s.a);
    in_make(t, 2, T_WEIGHT, s.b);
    out_make(t, 0, T_ACT, s.n, s.b);
    for (int64_t i = 0; i < t->in[1].count; i++) t->in[1].v[i] /= sqrt((double)s.a);
}
static void linear_ref(op_inst *t) {
    int64_t k = t->shape.a, m = t->shape.b;
    for (int64_t i = 0; i < t->shape.n; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = t->in[2].v ? t->in[2].v[j] : 0;
            for (int64_t e = 0; e < k; e++) sum += t->in[0].v[i * k + e] * t->in[1].v[j * k + e];
            t->out[0].v[i * m + j] = sum;
        }
}
static void linear_gelu_setup(op_inst *t) {
    linear_setup(t);
    out_make(t, 1, T_ACT, t->shape.n, t->shape.b);
    t->attr.act = t->shape.variant ? ACT_GELU_ERF : ACT_GELU_TANH;
}
static void linear_gelu_ref(op_inst *t) {
    linear_ref(t);
    for (int64_t i = 0; i < t->out[0].count; i++) {
        double pre = t->out[1].v[i] = t->out[0].v[i];
        t->out[0].v[i] = gelu(pre, t->attr.act);
    }
}
/* y = gelu(pre) w^T, of which only the backward is one op */
static void gelu_linear_setup(op_inst *t) {
    op_shape s = t->shape;
    in_make(t, 0, T_ACT, s.n, s.a);
    in_make(t, 1, T_WEIGHT, s.b, s.a);
    out_make(t, 0, T_ACT, s.n, s.b);
    t->attr.act = s.variant ? ACT_GELU_ERF : ACT_GELU_TANH;
    for (int64_t i = 0; i < t->in[0].count; i++) t->in[0].v[i] *= 2.5; /* into both tails */
    for (int64_t i = 0; i < t->in[1].count; i++) t->in[1].v[i] /= sqrt((double)s.a);
}
static void gelu_linear_ref(op_inst *t) {
    int64_t k = t->shape.a, m = t->shape.b;
    for (int64_t i = 0; i < t->shape.n; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t e = 0; e < k; e++)
                sum += gelu(t->in[0].v[i * k + e], t->attr.act) * t->in[1].v[j * k + e];
            t->out[0].v[i * m + j] = sum;
        }
}

/* ---- norms: a = D ---------------------------------------------------------------------------- */
static void norm_setup(op_inst *t) {
    op_shape s = t->shape;
    in_make(t, 0, T_ACT, s.n, s.a);
    in_make(t, 1, T_ACT, s.n, s.a);
    in_make(t, 2, T_WEIGHT, s.a);
    out_make(t, 0, T_ACT, s.n, s.a);
    out_make(t, 1, T_ACT, s.n, s.a);
    t->attr.eps = 1e-5f;
}
static void rmsnorm_setup(op_inst *t) {
    norm_setup(t);
    out_make(t, 2, T_F32, t->shape.n);
}
static void layernorm_setup(op_inst *t) {
    norm_setup(t);
    in_make(t, 3, T_WEIGHT, t->shape.a);
    out_make(t, 2, T_F32, t->shape.n, 2);
    for (int64_t i = 0; i < t->in[0].count; i++) t->in[0].v[i] += 0.5; /* a mean to take away */
}
/* y = (r - mean) * scale * w + b over one group of columns; mean 0 unless centred. */
static double norm_ref_group(const double *r, const double *w, const double *b, double *y,
                             int64_t d, double eps, bool centred, double *mean_out) {
    double mean = 0, var = 0;
    for (int64_t k = 0; centred && k < d; k++) mean += r[k] / (double)d;
    for (int64_t k = 0; k < d; k++) var += (r[k] - mean) * (r[k] - mean) / (double)d;
    double scale = 1 / sqrt(var + eps);
    for (int64_t k = 0; k < d; k++) y[k] = (r[k] - mean) * scale * w[k] + (b ? b[k] : 0);
    *mean_out = mean;
    return scale;
}
static void norm_ref(op_inst *t, bool centred) {
    int64_t d = t->shape.a;
    for (int64_t i = 0; i < t->shape.n; i++) {
        double *r = t->out[0].v + i * d, mean;
        for (int64_t k = 0; k < d; k++)
            r[k] = t->in[0].v[i * d + k] + (t->in[1].v ? t->in[1].v[i * d + k] : 0);
        double scale = norm_ref_group(r, t->in[2].v, t->in[3].v, t->out[1].v + i * d, d,
                                      t->attr.eps, centred, &mean);
        if (centred) t->out[2].v[2 * i] = mean;
        t->out[2].v[centred ? 2 * i + 1 : i] = scale;
    }
}
static void rmsnorm_ref(op_inst *t) { norm_ref(t, false); }
static void layernorm_ref(op_inst *t) { norm_ref(t, true); }

/* ---- heads: a = head size, b = q heads, c = kv heads ----------------------------------------- */
static int64_t heads_setup(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = (s.b + 2 * s.c) * s.a;
    in_make(t, 0, T_ACT, s.n, cols);
    t->attr.heads.q = (int)s.b;
    t->attr.heads.kv = (int)s.c;
    t->attr.heads.dim = (int)s.a;
    return cols;
}

/* variant 1: over the whole width */
static void qknorm_setup(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = heads_setup(t);
    bool full = t->attr.heads.norm_full = s.variant == 1;
    in_make(t, 1, T_WEIGHT, full ? s.a * s.b : s.a);
    in_make(t, 2, T_WEIGHT, full ? s.a * s.c : s.a);
    out_make(t, 0, T_ACT, s.n, cols);
    out_make(t, 1, T_F32, s.n, full ? 2 : s.b + s.c);
    t->attr.eps = 1e-6f;
}
static void qknorm_ref(op_inst *t) {
    op_shape s = t->shape;
    bool full = s.variant == 1;
    int64_t cols = t->in[0].dim[1], stats = t->out[1].dim[1];
    for (int64_t i = 0; i < s.n; i++) {
        const double *x = t->in[0].v + i * cols;
        double *y = t->out[0].v + i * cols, mean;
        for (int64_t k = 0; k < cols; k++) y[k] = x[k];
        int64_t q_width = full ? s.a * s.b : s.a, k_width = full ? s.a * s.c : s.a;
        for (int64_t g = 0, at = 0; g < stats; g++) {
            bool is_q = g < (full ? 1 : s.b);
            int64_t width = is_q ? q_width : k_width;
            t->out[1].v[i * stats + g] = norm_ref_group(x + at, t->in[is_q ? 1 : 2].v, NULL, y + at,
                                                        width, t->attr.eps, false, &mean);
            at += width;
        }
    }
}

/* variant: rotated dims */
static void rope_setup(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = heads_setup(t), positions = s.n + 3;
    t->attr.heads.rot = s.variant;
    in_make(t, 1, T_I32, s.n);
    in_make(t, 2, T_WEIGHT, positions, s.variant);
    out_make(t, 0, T_ACT, s.n, cols);
    for (int64_t i = 0; i < s.n; i++) t->in[1].v[i] = (double)draw_below(positions);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t j = 0; j < s.variant / 2; j++) {
            double angle = (double)p * pow(10000, -2.0 * (double)j / (double)s.variant);
            t->in[2].v[p * s.variant + j] = cos(angle);
            t->in[2].v[p * s.variant + s.variant / 2 + j] = sin(angle);
        }
}
static void rope_ref(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = t->in[0].dim[1], half = s.variant / 2;
    for (int64_t i = 0; i < s.n * cols; i++) t->out[0].v[i] = t->in[0].v[i];
    for (int64_t i = 0; i < s.n; i++)
        for (int64_t h = 0; h < s.b + s.c; h++)
            for (int64_t j = 0; j < half; j++) {
                const double *row = t->in[2].v + (int64_t)t->in[1].v[i] * s.variant;
                int64_t at = i * cols + h * s.a + j;
                double x = t->in[0].v[at], y = t->in[0].v[at + half];
                t->out[0].v[at] = x * row[j] - y * row[half + j];
                t->out[0].v[at + half] = y * row[j] + x * row[half + j];
            }
}

/* Softmax over keys [from, to] of one query; v and k by row with stride. @return lse */
static double attend_ref(const double *q, const double *k, const double *v, int64_t stride,
                         int64_t from, int64_t to, int64_t dim, double scale, double *o) {
    double sum = 0, top = -INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = from; j <= to; j++) {
            double score = 0;
            for (int64_t e = 0; e < dim; e++) score += scale * q[e] * k[j * stride + e];
            if (pass == 0) {
                top = MAX(top, score);
                continue;
            }
            sum += exp(score - top);
            for (int64_t e = 0; e < dim; e++)
                o[e] = (j == from ? 0 : o[e]) + exp(score - top) * v[j * stride + e];
        }
    for (int64_t e = 0; e < dim; e++) o[e] /= sum;
    return top + log(sum);
}

/* variant: the window */
static void attention_setup(op_inst *t) {
    op_shape s = t->shape;
    heads_setup(t);
    in_make(t, 1, T_I32, s.n);
    out_make(t, 0, T_ACT, s.n, s.b * s.a);
    out_make(t, 1, T_F32, s.b, s.n);
    t->attr.heads.window = s.variant;
    t->attr.heads.scale = (float)(1 / sqrt((double)s.a));
    for (int64_t i = 1; i < s.n; i++) /* a new document now and then */
        t->in[1].v[i] = draw_below(9) == 0 ? (double)i : t->in[1].v[i - 1];
}
static void attention_ref(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = t->in[0].dim[1];
    for (int64_t i = 0; i < s.n; i++)
        for (int64_t h = 0; h < s.b; h++) {
            int64_t kv = h / (s.b / s.c), from = (int64_t)t->in[1].v[i];
            if (s.variant) from = MAX(from, i - s.variant + 1);
            const double *k = t->in[0].v + (s.b + kv) * s.a, *v = k + s.c * s.a;
            t->out[1].v[h * s.n + i] =
                attend_ref(t->in[0].v + i * cols + h * s.a, k, v, cols, from, i, s.a,
                           t->attr.heads.scale, t->out[0].v + (i * s.b + h) * s.a);
        }
}

static void attention_cached_setup(op_inst *t) {
    op_shape s = t->shape;
    int64_t positions = s.n + 20;
    heads_setup(t);
    in_make(t, 1, T_ACT, positions, 2 * s.c * s.a);
    in_make(t, 2, T_I32, s.n);
    out_make(t, 0, T_ACT, s.n, s.b * s.a);
    t->attr.heads.window = s.variant;
    t->attr.heads.scale = (float)(1 / sqrt((double)s.a));
    for (int64_t i = 0; i < s.n; i++) t->in[2].v[i] = (double)(i + 17);
}
static void attention_cached_ref(op_inst *t) {
    op_shape s = t->shape;
    int64_t cols = t->in[0].dim[1], width = t->in[1].dim[1];
    for (int64_t i = 0; i < s.n; i++) {
        int64_t p = (int64_t)t->in[2].v[i], from = s.variant ? MAX(0, p - s.variant + 1) : 0;
        for (int64_t e = 0; e < width; e++)
            t->in[1].v[p * width + e] = t->in[0].v[i * cols + s.b * s.a + e];
        for (int64_t h = 0; h < s.b; h++) {
            const double *k = t->in[1].v + h / (s.b / s.c) * s.a;
            attend_ref(t->in[0].v + i * cols + h * s.a, k, k + s.c * s.a, width, from, p, s.a,
                       t->attr.heads.scale, t->out[0].v + (i * s.b + h) * s.a);
        }
    }
}

/* ---- elementwise: a = columns ---------------------------------------------------------------- */
static void unary_setup(op_inst *t) {
    in_make(t, 0, T_ACT, t->shape.n, t->shape.a);
    out_make(t, 0, T_ACT, t->shape.n, t->shape.a);
    t->attr.scale.by = -0.75f;
}
static void gelu_setup(op_inst *t) {
    unary_setup(t);
    t->attr.act = t->shape.variant ? ACT_GELU_ERF : ACT_GELU_TANH;
    for (int64_t i = 0; i < t->in[0].count; i++) t->in[0].v[i] *= 2.5; /* into both tails */
}
static void gelu_ref(op_inst *t) {
    for (int64_t i = 0; i < t->in[0].count; i++) t->out[0].v[i] = gelu(t->in[0].v[i], t->attr.act);
}
static void swiglu_setup(op_inst *t) {
    in_make(t, 0, T_ACT, t->shape.n, 2 * t->shape.a);
    out_make(t, 0, T_ACT, t->shape.n, t->shape.a);
}
static void swiglu_ref(op_inst *t) {
    int64_t f = t->shape.a;
    for (int64_t i = 0; i < t->shape.n; i++)
        for (int64_t k = 0; k < f; k++) {
            double g = t->in[0].v[i * 2 * f + k], u = t->in[0].v[i * 2 * f + f + k];
            t->out[0].v[i * f + k] = g / (1 + exp(-g)) * u;
        }
}
static void add_setup(op_inst *t) {
    unary_setup(t);
    in_make(t, 1, T_ACT, t->shape.n, t->shape.a);
}
static void add_ref(op_inst *t) {
    for (int64_t i = 0; i < t->in[0].count; i++)
        t->out[0].v[i] = t->in[0].v[i] + (t->in[1].v ? t->in[1].v[i] : 0);
}
static void cast_ref(op_inst *t) {
    for (int64_t i = 0; i < t->in[0].count; i++) t->out[0].v[i] = t->in[0].v[i];
}
static void scale_ref(op_inst *t) {
    for (int64_t i = 0; i < t->in[0].count; i++) t->out[0].v[i] = -0.75 * t->in[0].v[i];
}

static void zero_ref(op_inst *t) {
    for (int64_t i = 0; i < t->out[0].count; i++) t->out[0].v[i] = 0;
}

static void dropout_setup(op_inst *t) {
    unary_setup(t);
    in_make(t, 1, T_I64, t->shape.n);
    t->attr.dropout.p = 0.3f;
    t->attr.dropout.site = 7;
    for (int64_t i = 0; i < t->shape.n; i++) /* ids need more than 32 bits, in no order */
        t->in[1].v[i] = (double)(draw_below(1000) + (draw_below(8) << 33));
}
static void dropout_ref(op_inst *t) {
    double p = t->attr.dropout.p;
    int64_t cols = t->shape.a;
    for (int64_t i = 0; i < t->in[0].count; i++) {
        uint64_t id = (uint64_t)t->in[1].v[i / cols];
        uint32_t word[4], ctr[4] = { t->attr.dropout.site | t->layer << 16, (uint32_t)id,
                                     (uint32_t)(id >> 32), (uint32_t)(i % cols / 4) };
        philox4x32(t->step.dropout, ctr, word);
        bool kept = (double)word[i % cols % 4] / 4294967296.0 >= p;
        t->out[0].v[i] = kept ? t->in[0].v[i] / (1 - p) : 0;
    }
}

static void sqnorm_setup(op_inst *t) {
    in_make(t, 0, T_F32, t->shape.n);
    out_make(t, 0, T_F32, 2);
    t->attr.scale.by = 0.5f;
}
static void sqnorm_ref(op_inst *t) {
    double sum = 0;
    for (int64_t i = 0; i < t->in[0].count; i++) sum += t->in[0].v[i] * t->in[0].v[i];
    t->out[0].v[0] = (float)(0.5 * sum);
    t->out[0].v[1] = 0.5 * sum - t->out[0].v[0];
}

/* ---- the loss: a = D, b = V ------------------------------------------------------------------ */
static void linear_ce_setup(op_inst *t) {
    op_shape s = t->shape;
    in_make(t, 0, T_ACT, s.n, s.a);
    in_make(t, 1, T_WEIGHT, s.b, s.a);
    in_make(t, 2, T_I32, s.n);
    out_make(t, 0, T_F32, s.n);
    t->attr.ce.logit_scale = s.variant ? 0.5f : 1.0f;
    for (int64_t i = 0; i < t->in[1].count; i++) t->in[1].v[i] /= sqrt((double)s.a);
    t->grad[0] = mem_alloc((size_t)s.n * sizeof(double));
    for (int64_t i = 0; i < s.n; i++) {
        t->in[2].v[i] = draw_below(5) == 0 ? -100 : (double)draw_below(s.b);
        t->grad[0][i] = t->step.loss_grad;
    }
}
static void linear_ce_ref(op_inst *t) {
    int64_t d = t->shape.a, vocab = t->shape.b;
    for (int64_t i = 0; i < t->shape.n; i++) {
        double sum = 0, chosen = 0;
        for (int64_t j = 0; j < vocab; j++) {
            double logit = 0;
            for (int64_t k = 0; k < d; k++) logit += t->in[0].v[i * d + k] * t->in[1].v[j * d + k];
            logit *= t->attr.ce.logit_scale;
            sum += exp(logit);
            if (j == (int64_t)t->in[2].v[i]) chosen = logit;
        }
        t->out[0].v[i] = t->in[2].v[i] < 0 ? 0 : log(sum) - chosen;
    }
}

/* ---- the table ------------------------------------------------------------------------------- */
/* clang-format off */
static const op_spec specs[] = {
    { "embed", embed_setup, embed_ref, .has_grad = 1, .call = {
        { .op = OP_EMBED, { IN(0), IN(1) }, { OUT(0) } },
        { .op = OP_EMBED_BWD, { GRAD(0), IN(0) }, { GRAD_IN(1) }, .adds = 1 } },
      .shape = { { .n = 1, 1, 1 }, { .n = 9, 67, 5 }, { .n = 40, 700, 60 } } },
    { "linear", linear_setup, linear_ref, .has_grad = 1, .optional_in = 4, .call = {
        { .op = OP_LINEAR, { IN(0), IN(1), IN(2) }, { OUT(0) } },
        { .op = OP_LINEAR_BWD_X, { GRAD(0), IN(1) }, { GRAD_IN(0) } },
        { .op = OP_LINEAR_BWD_W, { GRAD(0), IN(0) }, { GRAD_IN(1), GRAD_IN(2) }, .adds = 3 } },
      .shape = { { .n = 1, 1, 1 }, { .n = 7, 33, 19 }, { .n = 32, 64, 48 },
                 { .n = 70, 40, 130 } } },
    { "linear_gelu", linear_gelu_setup, linear_gelu_ref, .optional_in = 4, .call = {
        { .op = OP_LINEAR_GELU, { IN(0), IN(1), IN(2) }, { OUT(0), OUT(1) } } },
      .shape = { { .n = 1, 1, 1 }, { .n = 7, 33, 19, .variant = 1 }, { .n = 70, 40, 130 } } },
    { "gelu_linear", gelu_linear_setup, gelu_linear_ref, .has_grad = 1, .call = {
        { .op = OP_LINEAR_BWD_X_GELU, { GRAD(0), IN(1), IN(0) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 1, 1 }, { .n = 7, 33, 19, .variant = 1 }, { .n = 70, 40, 130 } } },
    { "rmsnorm", rmsnorm_setup, rmsnorm_ref, .has_grad = 3, .optional_in = 2, .optional_grad = 1,
      .call = {
        { .op = OP_RMSNORM, { IN(0), IN(1), IN(2) }, { OUT(0), OUT(1), OUT(2) }, .shares = true,
          .optional_out = 1, .optional_when = 2 },
        { .op = OP_RMSNORM_BWD, { GRAD(1), OUT(0), OUT(2), IN(2), GRAD(0) },
          { GRAD_IN(0), GRAD_IN(2) }, .adds = 2 } },
      .shape = { { .n = 1, 5 }, { .n = 5, 37 }, { .n = 40, 600 } } },
    { "layernorm", layernorm_setup, layernorm_ref, .has_grad = 3, .optional_in = 10,
      .optional_grad = 1, .call = {
        { .op = OP_LAYERNORM, { IN(0), IN(1), IN(2), IN(3) }, { OUT(0), OUT(1), OUT(2) },
          .shares = true, .optional_out = 1, .optional_when = 2 },
        { .op = OP_LAYERNORM_BWD, { GRAD(1), OUT(0), OUT(2), IN(2), GRAD(0) },
          { GRAD_IN(0), GRAD_IN(2), GRAD_IN(3) }, .adds = 6 } },
      .shape = { { .n = 1, 5 }, { .n = 5, 37 }, { .n = 40, 513 } } },
    { "qknorm", qknorm_setup, qknorm_ref, .has_grad = 1, .call = {
        { .op = OP_QKNORM, { IN(0), IN(1), IN(2) }, { OUT(0), OUT(1) } },
        { .op = OP_QKNORM_BWD, { GRAD(0), IN(0), OUT(1), IN(1), IN(2) },
          { GRAD_IN(0), GRAD_IN(1), GRAD_IN(2) }, .adds = 6 } },
      .shape = { { .n = 1, 2, 1, 1 }, { .n = 5, 12, 3, 1 }, { .n = 5, 12, 4, 2, 1 },
                 { .n = 70, 64, 4, 2 }, { .n = 40, 64, 4, 1, 1 } } },
    { "rope", rope_setup, rope_ref, .has_grad = 1, .call = {
        { .op = OP_ROPE, { IN(0), IN(1), IN(2) }, { OUT(0) } },
        { .op = OP_ROPE_BWD, { GRAD(0), IN(1), IN(2) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 2, 1, 1, 2 }, { .n = 5, 12, 3, 1, 6 }, { .n = 9, 64, 20, 5, 64 },
                 { .n = 90, 64, 4, 2, 32 } } },
    { "attention", attention_setup, attention_ref, .has_grad = 1, .looser = 2, .call = {
        { .op = OP_ATTENTION, { IN(0), IN(1) }, { OUT(0), OUT(1) } },
        { .op = OP_ATTENTION_BWD, { GRAD(0), IN(0), OUT(0), OUT(1), IN(1) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 2, 1, 1 }, { .n = 17, 12, 3, 1 }, { .n = 40, 16, 4, 2, 7 },
                 { .n = 70, 64, 2, 2 } } },
    { "attention_cached", attention_cached_setup, attention_cached_ref, .mutated = 2, .call = {
        { .op = OP_ATTENTION_CACHED, { IN(0), IN(1), IN(2) }, { OUT(0) } } },
      .shape = { { .n = 1, 2, 1, 1 }, { .n = 3, 12, 4, 2 }, { .n = 5, 64, 4, 4, 6 } } },
    { "gelu", gelu_setup, gelu_ref, .has_grad = 1, .call = {
        { .op = OP_GELU, { IN(0) }, { OUT(0) } },
        { .op = OP_GELU_BWD, { GRAD(0), IN(0) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 7, 33, .variant = 1 }, { .n = 30, 1100 },
                 { .n = 30, 1100, .variant = 1 } } },
    { "swiglu", swiglu_setup, swiglu_ref, .has_grad = 1, .call = {
        { .op = OP_SWIGLU, { IN(0) }, { OUT(0) } },
        { .op = OP_SWIGLU_BWD, { GRAD(0), IN(0) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 40, 700 } } },
    { "add", add_setup, add_ref, .optional_in = 2, .call = {
        { .op = OP_ADD, { IN(0), IN(1) }, { OUT(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 30, 1100 } } },
    { "dropout", dropout_setup, dropout_ref, .has_grad = 1, .call = {
        { .op = OP_DROPOUT, { IN(0), IN(1) }, { OUT(0) } },
        { .op = OP_DROPOUT, { GRAD(0), IN(1) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 40, 700 } } },
    { "cast", unary_setup, cast_ref, .call = { { .op = OP_CAST, { IN(0) }, { OUT(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 30, 1100 } } },
    { "scale", unary_setup, scale_ref, .has_grad = 1, .call = {
        { .op = OP_SCALE, { IN(0) }, { OUT(0) } },
        { .op = OP_SCALE, { GRAD(0) }, { GRAD_IN(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 }, { .n = 30, 1100 } } },
    { "linear_ce", linear_ce_setup, linear_ce_ref, .has_grad = 1, .call = {
        { .op = OP_LINEAR_CE, { IN(0), IN(1), IN(2) }, { OUT(0), GRAD_IN(0), GRAD_IN(1) },
          .adds = 4, .optional_out = 6 } },
      .shape = { { .n = 1, 1, 2 }, { .n = 7, 33, 19 }, { .n = 40, 16, 130, .variant = 1 } } },
    { "sqnorm", sqnorm_setup, sqnorm_ref, .call = {
        { .op = OP_SQNORM, { IN(0) }, { OUT(0) } } }, /* adding: test_update.c */
      .shape = { { .n = 1 }, { .n = 777 }, { .n = 50001 } } },
    { "zero", unary_setup, zero_ref, .call = { { .op = OP_ZERO, { { 0 } }, { OUT(0) } } },
      .shape = { { .n = 1, 1 }, { .n = 7, 33 } } },
};
/* clang-format on */

static void test_spec(void **state) { harness_run(*state); }

/* Forgetting to test an op is a failure here. Updates are tested in test_update.c, fp8 in test_fp8.c. */
static void every_op_has_a_spec(void **state) {
    for (int op = 1; op < OP_COUNT; op++) {
        bool found = op_flags(op) & (OPF_EXTERN | OPF_UPDATE | OPF_QUANTIZE) || op == OP_FP8_COMMIT;
        for (size_t s = 0; s < COUNT_OF(specs); s++)
            for (int k = 0; k < SPEC_MAX_CALLS; k++)
                found |= specs[s].call[k].out[0].kind && specs[s].call[k].op == op;
        if (!found) fail_msg("%s has no row in the table of specs of this test", op_name(op));
    }
}

/* ---- converters ------------------------------------------------------------------------------ */
/* In pieces: those shorter than a vector take the one-element code. */
static void cast(const op_backend *b, dtype from, void *src, dtype to, void *dst, int64_t n,
                 int64_t piece) {
    op_run run = { 0 };
    op_call c = { .op = OP_CAST, .run = &run };
    for (int64_t at = 0; at < n; at += piece) {
        int64_t m = MIN(piece, n - at);
        c.in[0] = tensor_of((char *)src + (size_t)at * dt_size(from), from, 1, &m);
        c.out[0] = tensor_of((char *)dst + (size_t)at * dt_size(to), to, 1, &m);
        ops_run(b, &c);
    }
}

/* Every code up, and every code down again with its neighbours and halfway points: all as the
 * one-element converters have it. */
static void check_converters(const op_backend *b, dtype narrow, int64_t piece) {
    enum { CODES = 65536, NEAR = 5 };
    uint16_t *code = mem_alloc(CODES * sizeof *code);
    float *wide = mem_alloc(CODES * sizeof *wide), *near = mem_alloc(CODES * NEAR * sizeof *near);
    uint16_t *down = mem_alloc(CODES * NEAR * sizeof *down);
    for (int i = 0; i < CODES; i++) code[i] = (uint16_t)i;
    cast(b, narrow, code, DT_F32, wide, CODES, piece);
    for (int i = 0; i < CODES; i++) {
        float want, next;
        uint16_t after = (uint16_t)(i + 1);
        dt_to_f32(narrow, &code[i], &want, 1);
        dt_to_f32(narrow, &after, &next, 1);
        if (isnan(want))
            assert_true(isnan(wide[i]));
        else
            assert_memory_equal(&wide[i], &want, sizeof want);
        float half = want + (next - want) / 2;
        const float all[NEAR] = { want, half, nextafterf(half, INFINITY),
                                  nextafterf(half, -INFINITY), want * 1.7f };
        memcpy(near + i * NEAR, all, sizeof all);
    }
    cast(b, DT_F32, near, narrow, down, CODES * NEAR, piece);
    for (int i = 0; i < CODES * NEAR; i++) {
        uint16_t want;
        float back;
        dt_from_f32(narrow, &near[i], &want, 1);
        dt_to_f32(narrow, &down[i], &back, 1);
        if (isnan(near[i]) ? !isnan(back) : down[i] != want)
            fail_msg("%s, %a to %s: got %04x, expected %04x", b->name, (double)near[i],
                     dt_name(narrow), down[i], want);
    }
    free(code);
    free(wide);
    free(near);
    free(down);
}
static void test_converters(void **state) {
    const int64_t pieces[] = { 1 << 20, 7, 1 };
    for (int i = 0; ops_cpu_isa(i); i++)
        for (size_t p = 0; p < COUNT_OF(pieces); p++) {
            check_converters(ops_cpu(ops_cpu_isa(i)), DT_BF16, pieces[p]);
            check_converters(ops_cpu(ops_cpu_isa(i)), DT_F16, pieces[p]);
        }
}

/* Kernels that compute on bf16 without the converters must round as they do: every code plus half
 * its last place (a tie), and plus some other code. */
static void test_bf16_sums(void **state) {
    enum { CODES = 65536, N = 2 * CODES };
    draw_from("bf16 sums");
    uint16_t *a = mem_alloc(N * sizeof *a), *b = mem_alloc(N * sizeof *b),
             *c = mem_alloc(N * sizeof *c);
    for (int i = 0; i < N; i++) {
        uint16_t exponent = (uint16_t)(i & 0x7f80), half = (uint16_t)(exponent - (8 << 7));
        a[i] = (uint16_t)i;
        b[i] = i < CODES ? (exponent > 8 << 7 ? half : 0) : (uint16_t)draw_below(CODES);
    }
    for (int i = 0; ops_cpu_isa(i); i++) {
        int64_t n = N;
        op_run run = { 0 };
        op_call call = { .op = OP_ADD, .run = &run };
        call.in[0] = tensor_of(a, DT_BF16, 1, &n);
        call.in[1] = tensor_of(b, DT_BF16, 1, &n);
        call.out[0] = tensor_of(c, DT_BF16, 1, &n);
        ops_run(ops_cpu(ops_cpu_isa(i)), &call);
        for (int k = 0; k < N; k++) {
            float sum = bf16_to_f32(a[k]) + bf16_to_f32(b[k]), got = bf16_to_f32(c[k]);
            if (isnan(sum) ? !isnan(got) : c[k] != f32_to_bf16(sum))
                fail_msg("%s: %04x + %04x gave %04x, expected %04x", ops_cpu_isa(i), a[k], b[k],
                         c[k], f32_to_bf16(sum));
        }
    }
    free(a);
    free(b);
    free(c);
}

/* Far from 0 an activation is its limit, and a NaN is not lost. */
static void test_extremes(void **state) {
    float x[] = { -1e4f, -200, -88, 88, 200, 1e4f, NAN, 0 }, y[8], dx[8], one[8];
    const float want[] = { 0, 0, 0, 88, 200, 1e4f, NAN, 0 },
                slope[] = { 0, 0, 0, 1, 1, 1, NAN, 0.5f };
    const act_kind acts[] = { ACT_GELU_TANH, ACT_GELU_ERF };
    int64_t n = 8;
    for (int i = 0; i < 8; i++) one[i] = 1;
    for (int i = 0; ops_cpu_isa(i); i++)
        for (int a = 0; a < 2; a++) {
            op_run run = { 0 };
            op_call f = { .op = OP_GELU, .run = &run, .attr = { .act = acts[a] } }, b = f;
            b.op = OP_GELU_BWD;
            f.in[0] = b.in[1] = tensor_of(x, DT_F32, 1, &n);
            b.in[0] = tensor_of(one, DT_F32, 1, &n);
            f.out[0] = tensor_of(y, DT_F32, 1, &n);
            b.out[0] = tensor_of(dx, DT_F32, 1, &n);
            ops_run(ops_cpu(ops_cpu_isa(i)), &f);
            ops_run(ops_cpu(ops_cpu_isa(i)), &b);
            for (int k = 0; k < 8; k++) {
                assert_true(isnan(want[k]) ? isnan(y[k]) : fabsf(y[k] - want[k]) < 1e-30f);
                assert_true(isnan(want[k]) ? isnan(dx[k]) : fabsf(dx[k] - slope[k]) < 1e-6f);
            }
        }
}

/* Rows whose mean is many deviations from 0, where a variance in one pass loses its digits. */
static void test_far_layernorm(void **state) {
    enum { N = 7, D = 768 };
    static float x[N][D], w[D], y[N][D], stat[N][2];
    draw_from("far layernorm");
    for (int k = 0; k < D; k++) w[k] = 1;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < D; k++) x[i][k] = (float)(pow(4, i) + draw_normal());
    for (int i = 0; ops_cpu_isa(i); i++) {
        const op_backend *b = ops_cpu(ops_cpu_isa(i));
        op_call c = { .op = OP_LAYERNORM, .attr = { .eps = 1e-5f } };
        c.in[0] = tensor_of(x, DT_F32, 2, (int64_t[]){ N, D });
        c.in[2] = tensor_of(w, DT_F32, 1, (int64_t[]){ D });
        c.out[1] = tensor_of(y, DT_F32, 2, (int64_t[]){ N, D });
        c.out[2] = tensor_of(stat, DT_F32, 2, (int64_t[]){ N, 2 });
        size_t bytes = ops_workspace(b, &c, 1);
        op_run run = { .workspace = mem_alloc(bytes + 1), .workspace_bytes = bytes };
        c.run = &run;
        ops_run(b, &c);
        free(run.workspace);
        for (int r = 0; r < N; r++) {
            double mean = 0, var = 0;
            for (int k = 0; k < D; k++) mean += (double)x[r][k] / D;
            for (int k = 0; k < D; k++) var += (x[r][k] - mean) * (x[r][k] - mean) / D;
            double scale = 1 / sqrt(var + 1e-5);
            assert_true(fabs(stat[r][0] - mean) < 1e-6 * mean);
            assert_true(fabs(stat[r][1] - scale) < 2e-6 * scale);
        }
    }
}

int main(void) {
    enum { OTHERS = 5 };
    struct CMUnitTest tests[COUNT_OF(specs) + OTHERS] = {
        cmocka_unit_test(every_op_has_a_spec), cmocka_unit_test(test_converters),
        cmocka_unit_test(test_bf16_sums),      cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_far_layernorm),
    };
    for (size_t s = 0; s < COUNT_OF(specs); s++)
        tests[s + OTHERS] =
            (struct CMUnitTest){ specs[s].name, test_spec, NULL, NULL, (void *)&specs[s] };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
