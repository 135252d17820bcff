/* Specs: updates, and what precedes them. Variants of updates: 1, decay through the gradient, and a copy
 * in bf16; 2, Nesterov, and a copy in fp16; 4, the step is skipped. Trajectories against PyTorch's are in
 * tests/unit/test_update.c. */
#include "harness.h"

#include "ops/block8.h"
#include "ops/clip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The schedules of momentum and decay, which are part of the step. */
static void scheduled_values(op_case *c) {
    c->step.update.momentum.toward = 0.7f, c->step.update.momentum.weight = 0.3f;
    c->step.update.decay_less[WD_COSINE] = 0.25f;
    c->attr.update.decay_by = c->shape.variant & 1 ? WD_COSINE : WD_LINEAR;
}
static double momentum_of(const op_case *c) {
    double own = c->attr.update.momentum;
    return own + c->step.update.momentum.weight * (c->step.update.momentum.toward - own);
}
static double decay_of(const op_case *c) {
    return c->attr.update.decay * (1 - c->step.update.decay_less[c->attr.update.decay_by]);
}

static void update_values(op_case *c) {
    int variant = c->shape.variant;
    scheduled_values(c);
    c->attr.update.lr_mul = 1.5f, c->attr.update.decay = 0.1f;
    c->attr.update.beta1 = 0.9f, c->attr.update.beta2 = 0.95f;
    c->attr.update.eps = 1e-8f, c->attr.update.momentum = 0.9f;
    c->attr.update.l2 = variant & 1, c->attr.update.nesterov = variant & 2;
    c->step.now.skip = variant & 4 ? 1 : 0;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        op_value *x = &c->out[i];
        if (!strcmp(x->name, "copy")) x->dt = variant & 2 ? DT_F16 : DT_BF16;
        if (!strcmp(x->name, "m")) spread_values(x, 0, 0.1);
        if (!strcmp(x->name, "v")) spread_values(x, 1, 0.1);
    }
}

/* Decay is decoupled in all but SGD, momentum and Adam. */
static void lion_values(op_case *c) {
    update_values(c);
    c->attr.update.l2 = false;
}

/* ---- by element -------------------------------------------------------------------------------------- */
typedef struct moments {
    double p, m, v;
} moments;
typedef void (*update_rule)(const op_case *c, double g, moments *x);

static double rate(const op_case *c) { return (double)c->step.update.lr * c->attr.update.lr_mul; }
static double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

static void sgd_rule(const op_case *c, double g, moments *x) {
    x->p -= rate(c) * (g + decay_of(c) * x->p);
}
static void momentum_rule(const op_case *c, double g, moments *x) {
    double mu = momentum_of(c);
    g += decay_of(c) * x->p;
    x->m = mu * x->m + g;
    x->p -= rate(c) * (c->attr.update.nesterov ? g + mu * x->m : x->m);
}
static void adam_rule(const op_case *c, double g, moments *x) {
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2, decay = decay_of(c);
    double count = (double)c->step.now.count;
    if (c->attr.update.l2)
        g += decay * x->p;
    else
        x->p -= rate(c) * decay * x->p;
    x->m = b1 * x->m + (1 - b1) * g;
    x->v = b2 * x->v + (1 - b2) * g * g;
    double m = x->m / (1 - pow(b1, count)), v = x->v / (1 - pow(b2, count));
    x->p -= rate(c) * m / (sqrt(v) + c->attr.update.eps);
}
static void lion_rule(const op_case *c, double g, moments *x) {
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2;
    double direction = sign_of(b1 * x->m + (1 - b1) * g);
    x->p -= rate(c) * (direction + decay_of(c) * x->p);
    x->m = b2 * x->m + (1 - b2) * g;
}

static void update_reference(op_case *c, update_rule rule, int states) {
    double *m = states > 0 ? c->out[1].v : NULL, *v = states > 1 ? c->out[2].v : NULL;
    op_value *copy = &c->out[states + 1];
    for (int64_t i = 0; i < c->in[0].count; i++) {
        moments x = { c->out[0].v[i], m ? m[i] : 0, v ? v[i] : 0 };
        if (c->step.now.skip) continue;
        rule(c, c->in[0].v[i] * c->step.now.grad_scale, &x);
        c->out[0].v[i] = x.p;
        if (m) m[i] = x.m;
        if (v) v[i] = x.v;
        if (copy->v) copy->v[i] = x.p;
    }
}
static void sgd_reference(op_case *c) { update_reference(c, sgd_rule, 0); }
static void momentum_reference(op_case *c) { update_reference(c, momentum_rule, 1); }
static void adam_reference(op_case *c) { update_reference(c, adam_rule, 2); }
static void lion_reference(op_case *c) { update_reference(c, lion_rule, 1); }

/* ---- weights in bf16, rounded stochastically ------------------------------------------------------------ */
static void adam8_sizes(op_case *c) {
    c->size['a'] = c->size['b'] = (int64_t)block8_bytes(size_of(c, 'n'));
}
static void narrow_values(op_case *c) {
    update_values(c);
    c->attr.update.lr_mul = 1, c->attr.update.decay = 0, c->attr.update.l2 = false;
    c->attr.update.site = 3;
    c->attr.update.first = 4096 + c->shape.variant;
    if (c->shape.variant) /* a shard of a matrix's columns */
        c->attr.update.base = 5, c->attr.update.cols = 11, c->attr.update.stride = 29;
    spread_values(&c->in[0], 0, 0.01);
    c->out[0].dt = DT_BF16;
    for (int i = 1; i < OP_MAX_OUT; i++)
        if (!strcmp(c->out[i].name, "copy")) drop_value(&c->out[i]);
}
/* p - g has no rounding of its own: both sides must round alike, bit for bit. */
static void exact_values(op_case *c) {
    narrow_values(c);
    c->step.update.lr = c->step.now.grad_scale = 1;
}

/* ---- directions --------------------------------------------------------------------------------------- */
static void along_reference(op_case *c) {
    double size = c->in[1].v ? MAX(1.0, sqrt(c->in[1].v[0] + c->in[1].v[1])) : 1;
    for (int64_t i = 0; i < c->in[0].count && !c->step.now.skip; i++) {
        double p = c->out[0].v[i], step = c->in[0].v[i];
        if (!c->attr.update.cautious || step * p >= 0) p *= 1 - rate(c) * decay_of(c);
        c->out[0].v[i] = p - rate(c) / size * c->in[0].v[i];
        if (c->out[1].v) c->out[1].v[i] = c->out[0].v[i];
    }
}
static void along_values(op_case *c) {
    lion_values(c);
    c->attr.update.cautious = c->shape.variant & 2;
    if (c->in[1].v) c->in[1].v[0] = c->shape.variant & 1 ? 0.3 : 2.5, c->in[1].v[1] = 1e-3;
}

/* Parts of a matrix [R, C]: variant 0, all of it; 1, a range that begins and ends within rows; 2, such a
 * range of a shard of the columns; 3, of a shard of the rows. */
static void part_sizes(op_case *c) {
    int64_t rows = size_of(c, 'R'), cols = size_of(c, 'c'), inside = c->shape.variant ? 1 : 0;
    int64_t n = rows * cols;
    c->attr.update.cols = c->attr.update.stride = cols;
    if (c->shape.variant == 2) c->attr.update.stride += 5, c->attr.update.base = 3;
    if (c->shape.variant == 3) c->attr.update.base = 2 * cols;
    c->size['C'] = c->attr.update.stride;
    c->size['n'] = n;
    if (n > 4) c->attr.update.first = 2 * inside, c->size['n'] = n - 3 * inside;
    if (c->shape.variant == 3) c->size['R'] = rows + 4;
}
/* Row and column in the whole matrix of the call's element i. */
static void whole_place(const op_case *c, int64_t i, int64_t *row, int64_t *col) {
    int64_t local = c->attr.update.first + i, cols = c->attr.update.cols;
    int64_t at = c->attr.update.base + local / cols * c->attr.update.stride + local % cols;
    *row = at / c->attr.update.stride;
    *col = at % c->attr.update.stride;
}

static void factor_values(op_case *c) {
    c->attr.update.eps = 1e-3f;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (strchr("rcv", c->out[i].name[0]) && c->out[i].v) spread_values(&c->out[i], 1, 0.1);
}
static void part_values(op_case *c) {
    for (int i = 0; i < 2 && c->in[i].v; i++) spread_values(&c->in[i], 1, 0.1);
}
static double scaled(const op_case *c, double g) { return g * c->step.now.grad_scale; }

static void factor_sums_reference(op_case *c) {
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < c->out[k].count; i++) c->out[k].v[i] = 0;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        int64_t row, col;
        double s = pow(scaled(c, c->in[0].v[i]), 2) + c->attr.update.eps;
        whole_place(c, i, &row, &col);
        c->out[0].v[row] += s;
        c->out[1].v[col] += s;
    }
}
static void factor_moments_reference(op_case *c) {
    double rest = pow((double)c->step.now.count, -0.8), mean = 0;
    int64_t size[] = { c->out[2].count, c->out[3].count };
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < size[k]; i++) {
            double *x = &c->out[2 + k].v[i];
            *x = (1 - rest) * *x + rest * c->out[k].v[i] / (double)size[!k];
            if (!k) mean += *x / (double)size[0];
        }
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < size[k]; i++)
            c->out[k].v[i] = 1 / sqrt(c->out[2 + k].v[i] / (k ? 1 : mean));
}
static void factor_matrix_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row, col;
        whole_place(c, i, &row, &col);
        c->out[0].v[i] = scaled(c, c->out[0].v[i]) * c->in[0].v[row] * c->in[1].v[col];
    }
}
static void factor_vector_reference(op_case *c) {
    double rest = pow((double)c->step.now.count, -0.8);
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double g = scaled(c, c->out[0].v[i]), *v = &c->out[1].v[i];
        *v = (1 - rest) * *v + rest * (g * g + c->attr.update.eps);
        c->out[0].v[i] = g / sqrt(*v);
    }
}

static void muon_values(op_case *c) {
    scheduled_values(c);
    c->attr.update.momentum = 0.95f, c->attr.update.nesterov = c->shape.variant & 1;
}
static void muon_reference(op_case *c) {
    double mu = momentum_of(c);
    for (int64_t i = 0; i < c->in[0].count; i++) {
        double g = scaled(c, c->in[0].v[i]), *m = &c->out[1].v[i];
        *m = mu * *m + (1 - mu) * g;
        c->out[0].v[i] = c->attr.update.nesterov ? (1 - mu) * g + mu * *m : *m;
    }
}

/* Packed sides are those of the matrix, or longer: variant 1. 2: Polar Express. 4: rows get equal norms, and the last one
 * is so short that it does not. */
static void pack_sizes(op_case *c) {
    int64_t more = c->shape.variant & 1 ? 5 : 0;
    c->size['S'] = MIN(size_of(c, 'R'), size_of(c, 'C')) + more;
    c->size['L'] = MAX(size_of(c, 'R'), size_of(c, 'C')) + more;
    c->attr.update.polar = c->shape.variant & 2 ? POLAR_EXPRESS : POLAR_CLASSIC;
    c->attr.update.equilibrate = c->shape.variant & 4;
}
static void pack_values(op_case *c) {
    int64_t rows = size_of(c, 'R'), cols = size_of(c, 'C');
    for (int64_t i = 0; i < rows * cols && rows > 1; i++)
        c->in[0].v[i] *= i / cols == rows - 1 ? 1e-9 : 1 + 0.3 * (double)(i / cols);
}
/* Rows over their norms; one shorter than 1e-6 of the root of their mean square, over that. */
static void equilibrate(double *v, int64_t rows, int64_t cols) {
    double all = 0;
    for (int64_t i = 0; i < rows * cols; i++) all += v[i] * v[i];
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t k = 0; k < cols; k++) square += pow(v[r * cols + k], 2);
        double by = MAX(sqrt(square), 1e-6 * sqrt(all / (double)rows));
        for (int64_t k = 0; k < cols; k++) v[r * cols + k] /= by;
    }
}
static void pack_reference(op_case *c) {
    int64_t rows = size_of(c, 'R'), cols = size_of(c, 'C'), wide = size_of(c, 'L');
    double square = 0, margin = c->attr.update.polar == POLAR_EXPRESS ? 1.01 : 1;
    double *u = mem_alloc((size_t)(rows * cols) * sizeof *u);
    memcpy(u, c->in[0].v, (size_t)(rows * cols) * sizeof *u);
    if (c->attr.update.equilibrate) equilibrate(u, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) square += u[i] * u[i];
    for (int64_t i = 0; i < c->out[0].count; i++) c->out[0].v[i] = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t row = i / cols, col = i % cols,
                to = rows > cols ? col * wide + row : row * wide + col;
        c->out[0].v[to] = u[i] / (margin * sqrt(square));
    }
    free(u);
}
static void unpack_reference(op_case *c) {
    int64_t rows = size_of(c, 'R'), cols = size_of(c, 'C'), wide = size_of(c, 'L');
    double by = sqrt(MAX(1.0, (double)rows / (double)cols));
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t row = i / cols, col = i % cols;
        c->out[0].v[i] = by * c->in[0].v[rows > cols ? col * wide + row : row * wide + col];
    }
}

/* NorMuon as its paper has it: each line (row, or column) over the root of its moving mean square, at the norm of an
 * orthogonal matrix. */
static void moment_values(op_case *c) {
    c->attr.update.beta2 = 0.9f;
    spread_values(&c->out[1], 1, 0.1);
}
static void normuon_reference(op_case *c) {
    int64_t rows = size_of(c, 'R'), cols = size_of(c, 'C'), n = c->out[1].count;
    bool by_row = !strcmp(c->out[1].name, "row");
    double size = (double)MIN(rows, cols), all = 0, after = 0, beta2 = c->attr.update.beta2;
    double tall = sqrt(MAX(1.0, (double)rows / (double)cols)), *u = c->out[0].v;
    double *mean = mem_alloc((size_t)n * sizeof *mean);
    unpack_reference(c);
    for (int64_t i = 0; i < rows * cols; i++) all += u[i] * u[i];
    for (int64_t i = 0; i < rows * cols; i++) {
        u[i] *= sqrt(size / all);
        mean[by_row ? i / cols : i % cols] += u[i] * u[i] / (double)(by_row ? cols : rows);
    }
    for (int64_t i = 0; i < n; i++) c->out[1].v[i] = beta2 * c->out[1].v[i] + (1 - beta2) * mean[i];
    for (int64_t i = 0; i < rows * cols; i++) {
        u[i] /= sqrt(c->out[1].v[by_row ? i / cols : i % cols]);
        after += u[i] * u[i];
    }
    for (int64_t i = 0; i < rows * cols; i++) u[i] *= tall * sqrt(size / after);
    free(mean);
}

/* Matrices of a batch with norm 1. Rows fall off, so that singular values spread over a decade; the last column
 * and row of each are zero, as where a packed matrix is larger than its own. */
static void polar_values(op_case *c) {
    int64_t s = size_of(c, 'S'), l = size_of(c, 'L');
    c->attr.update.polar = c->shape.variant & 2 ? POLAR_EXPRESS : POLAR_CLASSIC;
    for (int64_t b = 0; b < size_of(c, 'B'); b++) {
        double *x = c->out[0].v + b * s * l, square = 0;
        for (int64_t i = 0; i < s * l; i++) {
            x[i] *= pow(10, -1.0 * (double)(i / l) / (double)s);
            if (s > 1 && l > 1 && (i / l == s - 1 || i % l == l - 1)) x[i] = 0;
            square += x[i] * x[i];
        }
        for (int64_t i = 0; i < s * l; i++) x[i] /= 1.01 * sqrt(square);
    }
}
/* x = a x + (b G + c G G) x, G = x x^T, five times: as the papers have it. */
static void polar_reference(op_case *c) {
    static const double classic[3] = { 3.4445, -4.7750, 2.0315 };
    static const double express[5][3] = {
        { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
        { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
        { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
        { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
        { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 },
    };
    int64_t s = size_of(c, 'S'), l = size_of(c, 'L');
    double *g = mem_alloc((size_t)(s * s) * sizeof *g), *y = mem_alloc((size_t)(s * l) * sizeof *y);
    for (int64_t step = 0; step < 5 * size_of(c, 'B'); step++) {
        double *x = c->out[0].v + step / 5 * s * l;
        const double *p = c->attr.update.polar == POLAR_EXPRESS ? express[step % 5] : classic;
        for (int64_t i = 0; i < s * s; i++) {
            g[i] = 0;
            for (int64_t k = 0; k < l; k++) g[i] += x[i / s * l + k] * x[i % s * l + k];
        }
        for (int64_t i = 0; i < s * l; i++) y[i] = p[0] * x[i];
        for (int64_t i = 0; i < s * s; i++) {
            double square = 0;
            for (int64_t k = 0; k < s; k++) square += g[i / s * s + k] * g[k * s + i % s];
            square = p[1] * g[i] + p[2] * square;
            for (int64_t k = 0; k < l; k++) y[i / s * l + k] += square * x[i % s * l + k];
        }
        memcpy(x, y, (size_t)(s * l) * sizeof *y);
    }
    free(g);
    free(y);
}

static void agc_sums_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].count; i++) c->out[0].v[i] = c->out[1].v[i] = 0;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        int64_t row, col;
        whole_place(c, i, &row, &col);
        c->out[0].v[row] += pow(c->in[0].v[i], 2);
        c->out[1].v[row] += pow(scaled(c, c->in[1].v[i]), 2);
    }
}
/* Sums of squares: the first row is not clipped, and one has weights of zero. */
static void agc_values(op_case *c) {
    c->attr.agc.factor = 0.5f, c->attr.agc.eps = 1e-3f;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < c->in[k].count; i++) c->in[k].v[i] = pow(c->in[k].v[i], 2);
    c->in[1].v[0] = 0.2 * c->in[0].v[0];
    if (c->in[0].count > 1) c->in[0].v[1] = 0;
}
static void agc_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row, col;
        whole_place(c, i, &row, &col);
        double most = c->attr.agc.factor * MAX(sqrt(c->in[0].v[row]), (double)c->attr.agc.eps);
        double length = sqrt(c->in[1].v[row]);
        if (length > most) c->out[0].v[i] *= most / length;
    }
}

/* ---- the norm, and what follows from it ------------------------------------------------------------------- */
static void sqnorm_values(op_case *c) { c->attr.scale.by = 0.5f; }
static void sqnorm_reference(op_case *c) {
    double sum = 0;
    for (int64_t i = 0; i < c->in[0].count; i++) sum += c->in[0].v[i] * c->in[0].v[i];
    c->out[0].v[0] = (float)(0.5 * sum);
    c->out[0].v[1] = 0.5 * sum - c->out[0].v[0];
}
/* Its two results are one number: the value, and what its rounding left out. */
static void sqnorm_merge(double *v) {
    v[0] += v[1];
    v[1] = 0;
}

static const float clip_sums[] = { 0, 1e-30f, 0.25f, 1, 4, 1e30f, INFINITY };
static const float clip_scales[] = { 0, 1, 1024, 4294967296.0f };
enum { INTERVALS = 3, CLIP_VARIANTS = COUNT_OF(clip_sums) * COUNT_OF(clip_scales) * INTERVALS };
static void clip_values(op_case *c) {
    int i = c->shape.variant / INTERVALS;
    float sum = clip_sums[i % (int)COUNT_OF(clip_sums)];
    step_state state = { .loss_scale = clip_scales[i / (int)COUNT_OF(clip_sums)],
                         .count = 11,
                         .good = 1 };
    unsigned char bytes[sizeof state];
    memcpy(bytes, &state, sizeof state);
    c->in[0].v[0] = sum;
    c->in[0].v[1] = sum * 1e-8f;
    for (size_t k = 0; k < sizeof state; k++) c->out[0].v[k] = bytes[k];
    c->attr.clip.growth_interval = c->shape.variant % INTERVALS;
}
/* Every backend runs these lines, to the bit; they are tested in tests/unit/test_update.c. */
static void clip_reference(op_case *c) {
    step_state state;
    unsigned char bytes[sizeof state];
    float sum[2] = { (float)c->in[0].v[0], (float)c->in[0].v[1] };
    for (size_t k = 0; k < sizeof state; k++) bytes[k] = (unsigned char)c->out[0].v[k];
    memcpy(&state, bytes, sizeof state);
    clip_state(&state, sum, c->step.update.max_norm, c->step.update.skip_norm,
               c->attr.clip.growth_interval);
    memcpy(bytes, &state, sizeof state);
    for (size_t k = 0; k < sizeof state; k++) c->out[0].v[k] = bytes[k];
}

/* clang-format off */
/* Sizes: one element alone may cancel. */
#define BY_ELEMENT(code, set, ref)                                                                      \
    { .op = code, .letters = "n", .values = set, .reference = ref, .modes = MODE_F32,    \
      .variants = 3, .small = { { 37 }, { 255, .variant = 4 } },                                   \
      .wide = { { 255 }, { 1024 }, { 70001 }, { 1024, .variant = 4 } },                            \
      .wide_tol = { 2e-6 }, .shift = 4 }
#define NARROW(code, word, size)                                                                   \
    { .op = code, .name = word " of bf16 weights", .letters = "n", .sizes = size,                  \
      .values = narrow_values, .checked_in = "tests/unit/test_update.c", .modes = MODE_F32,        \
      .small = { { 1 }, { 255 } }, .wide = { { 1024 }, { 70001 } }, .wide_tol = { 2e-6 } }

#define PART_WIDE .wide = { { 64, 96 }, { 130, 40 }, { 300, 300 } }, .wide_tol = { 3e-6 }

const op_spec update_specs[] = {
    BY_ELEMENT(OP_UPDATE_SGD, update_values, sgd_reference),
    BY_ELEMENT(OP_UPDATE_MOMENTUM, update_values, momentum_reference),
    BY_ELEMENT(OP_UPDATE_ADAM, update_values, adam_reference),
    BY_ELEMENT(OP_UPDATE_LION, lion_values, lion_reference),
    NARROW(OP_UPDATE_SGD, "update_sgd", NULL),
    NARROW(OP_UPDATE_MOMENTUM, "update_momentum", NULL),
    NARROW(OP_UPDATE_ADAM, "update_adam", NULL),
    NARROW(OP_UPDATE_LION, "update_lion", NULL),
    NARROW(OP_UPDATE_ADAM8, "update_adam8", adam8_sizes),
    { .op = OP_UPDATE_SGD, .name = "update_sgd, rounding alone", .letters = "n",
      .values = exact_values, .checked_in = "tests/unit/test_update.c", .modes = MODE_F32,
      .variants = 2, .exact = true, .shift = 4, .small = { { 1 }, { 255 } },
      .wide = { { 1024 }, { 70001 } } },
    { .op = OP_UPDATE_ADAM8, .letters = "n", .sizes = adam8_sizes, .values = update_values,
      .checked_in = "tests/unit/test_update.c", .modes = MODE_F32, .small = { { 77 } },
      .wide = { { 6144 }, { 5200 }, { 90000 } }, .wide_tol = { 2e-6 } },
    { .op = OP_UPDATE_ALONG, .letters = "n", .values = along_values, .reference = along_reference,
      .modes = MODE_F32, .variants = 3, .small = { { 37 }, { 255, .variant = 4 } },
      .wide = { { 255 }, { 70001 } }, .wide_tol = { 2e-6 }, .shift = 4 },
    { .op = OP_FACTOR_SUMS, .letters = "Rc", .sizes = part_sizes, .values = factor_values,
      .reference = factor_sums_reference, .modes = MODE_F32, .variants = 4,
      .small = { { 1, 1 }, { 7, 9 }, { 40, 700 } }, PART_WIDE },
    { .op = OP_FACTOR_MOMENTS, .letters = "RC", .values = factor_values,
      .reference = factor_moments_reference, .modes = MODE_F32,
      .small = { { 1, 1 }, { 7, 9 }, { 300, 33 } }, PART_WIDE },
    { .op = OP_FACTOR_MATRIX, .letters = "Rc", .sizes = part_sizes, .values = part_values,
      .reference = factor_matrix_reference, .modes = MODE_F32, .variants = 4,
      .small = { { 1, 1 }, { 7, 9 }, { 40, 700 } }, PART_WIDE },
    { .op = OP_FACTOR_VECTOR, .letters = "n", .values = factor_values,
      .reference = factor_vector_reference, .modes = MODE_F32, .small = { { 1 }, { 40003 } },
      .wide = { { 77 }, { 40003 } }, .wide_tol = { 3e-6 } },
    { .op = OP_MUON_MOMENTUM, .letters = "n", .values = muon_values, .reference = muon_reference,
      .modes = MODE_F32, .variants = 2, .small = { { 1 }, { 40003 } },
      .wide = { { 77 }, { 40003 } }, .wide_tol = { 2e-6 } },
    { .op = OP_MUON_PACK, .letters = "RC", .sizes = pack_sizes, .values = pack_values,
      .reference = pack_reference, .variants = 8, .small = { { 1, 1 }, { 7, 9 }, { 9, 7 }, { 70, 130 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 300, 304 }, { 1024, 520 } }, .wide_tol = { 1e-6 }, .shift = 4 },
    { .op = OP_ORTHOGONALIZE, .letters = "BSL", .values = polar_values,
      .reference = polar_reference, .variants = 3, .looser = 25,
      .small = { { 1, 1, 1 }, { 1, 7, 9 }, { 3, 8, 24 }, { 2, 40, 56 } },
      .wide = { { 2, 64, 96 }, { 3, 40, 136 }, { 1, 304, 304 }, { 2, 520, 1096 }, { 3, 264, 520 } },
      .wide_tol = { 1e-4 }, .wide_half = { 20 } },
    { .op = OP_MUON_UNPACK, .letters = "RC", .sizes = pack_sizes, .reference = unpack_reference,
      .variants = 2, .small = { { 1, 1 }, { 7, 9 }, { 9, 7 }, { 70, 130 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 300, 304 }, { 1024, 520 } }, .wide_tol = { 1e-6 }, .shift = 4 },
    { .op = OP_MUON_UNPACK_ROWS, .letters = "RC", .sizes = pack_sizes, .values = moment_values,
      .reference = normuon_reference, .variants = 2,
      .small = { { 1, 1 }, { 7, 9 }, { 9, 7 }, { 70, 130 }, { 40, 40 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 304, 304 }, { 1024, 520 } }, .wide_tol = { 3e-6 }, .shift = 4 },
    { .op = OP_MUON_UNPACK_COLS, .letters = "RC", .sizes = pack_sizes, .values = moment_values,
      .reference = normuon_reference, .variants = 2,
      .small = { { 1, 1 }, { 7, 9 }, { 9, 7 }, { 70, 130 }, { 40, 40 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 300, 304 }, { 1024, 520 } }, .wide_tol = { 3e-6 }, .shift = 4 },
    { .op = OP_AGC_SUMS, .letters = "Rc", .sizes = part_sizes, .reference = agc_sums_reference,
      .modes = MODE_F32, .variants = 4, .small = { { 1, 1 }, { 7, 33 }, { 40, 700 } }, PART_WIDE },
    { .op = OP_AGC, .letters = "Rc", .sizes = part_sizes, .values = agc_values,
      .reference = agc_reference, .modes = MODE_F32, .variants = 4,
      .small = { { 1, 1 }, { 7, 33 } }, PART_WIDE },
    { .op = OP_SQNORM, .letters = "n", .values = sqnorm_values, .reference = sqnorm_reference,
      .merge = sqnorm_merge, .looser = 1e-7, .modes = MODES_UNIFORM,
      .small = { { 1 }, { 777 }, { 50001 } }, .wide = { { 7 }, { 4096 }, { 100003 }, { 3000000 } },
      .wide_tol = { 1e-12 }, .shift = 4 },
    { .op = OP_CLIP, .letters = "s", .values = clip_values, .reference = clip_reference,
      .modes = MODE_F32, .variants = CLIP_VARIANTS, .exact = true,
      .small = { { sizeof(step_state) } } },
    { 0 },
};
