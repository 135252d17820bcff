/* Specs: updates, and what precedes them. Variants of updates: 1, decay through the gradient, and a copy
 * in bf16; 2, Nesterov, and a copy in fp16; 4, the step is skipped. Trajectories against PyTorch's are in
 * tests/unit/test_update.c. */
#include "harness.h"

#include "ops/block8.h"
#include "ops/clip.h"

#include <math.h>
#include <string.h>

static void update_values(op_case *c) {
    int variant = c->shape.variant;
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
    x->p -= rate(c) * (g + c->attr.update.decay * x->p);
}
static void momentum_rule(const op_case *c, double g, moments *x) {
    double mu = c->attr.update.momentum;
    g += c->attr.update.decay * x->p;
    x->m = mu * x->m + g;
    x->p -= rate(c) * (c->attr.update.nesterov ? g + mu * x->m : x->m);
}
static void adam_rule(const op_case *c, double g, moments *x) {
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2, decay = c->attr.update.decay;
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
    x->p -= rate(c) * (direction + c->attr.update.decay * x->p);
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

/* ---- matrices -------------------------------------------------------------------------------------------- */
static void matrix_values(op_case *c) {
    update_values(c);
    c->attr.update.lr_mul = 1, c->attr.update.eps = 1e-30f;
    c->attr.update.momentum = 0.95f, c->attr.update.nesterov = true;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        op_value *x = &c->out[i];
        if (!strcmp(x->name, "rows") || !strcmp(x->name, "cols")) {
            spread_values(x, 1, 0.1);
            x->optional = false;
        }
    }
}
/* A matrix has cols, a vector has not: neither is a choice. */
static bool only_the_copy(uint32_t absent_in, uint32_t absent_out) { return absent_out == 8; }

static void agc_values(op_case *c) { c->attr.agc.factor = 0.5f, c->attr.agc.eps = 1e-3f; }
static void agc_reference(op_case *c) {
    int64_t cols = size_of(c, 'C');
    for (int64_t row = 0; row < size_of(c, 'R'); row++) {
        double *g = c->out[0].v + row * cols, p_square = 0, g_square = 0;
        for (int64_t k = 0; k < cols; k++) {
            p_square += pow(c->in[0].v[row * cols + k], 2);
            g_square += pow(g[k] * c->step.now.grad_scale, 2);
        }
        double most = c->attr.agc.factor * MAX(sqrt(p_square), (double)c->attr.agc.eps);
        for (int64_t k = 0; k < cols && sqrt(g_square) > most; k++) g[k] *= most / sqrt(g_square);
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
    clip_state(&state, sum, c->step.update.max_norm, c->attr.clip.growth_interval);
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
    { .op = OP_UPDATE_ADAFACTOR, .letters = "rc", .values = matrix_values,
      .checked_in = "tests/unit/test_update.c", .may_lack = only_the_copy, .modes = MODE_F32,
      .small = { { 7, 9 }, { 77 } }, .wide = { { 64, 96 }, { 130, 40 }, { 300, 300 } },
      .wide_tol = { 3e-6 } },
    { .op = OP_UPDATE_MUON, .letters = "RC", .values = matrix_values,
      .checked_in = "tests/unit/test_update.c", .modes = MODE_F32, .small = { { 7, 9 }, { 9, 7 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 300, 300 } }, .wide_tol = { 1e-4 } },
    { .op = OP_AGC, .letters = "RC", .values = agc_values, .reference = agc_reference,
      .modes = MODE_F32, .small = { { 1, 1 }, { 7, 33 } },
      .wide = { { 64, 96 }, { 130, 40 }, { 300, 300 } }, .wide_tol = { 2e-6 } },
    { .op = OP_SQNORM, .letters = "n", .values = sqnorm_values, .reference = sqnorm_reference,
      .merge = sqnorm_merge, .looser = 1e-7, .modes = MODE_F32,
      .small = { { 1 }, { 777 }, { 50001 } }, .wide = { { 7 }, { 4096 }, { 100003 }, { 3000000 } },
      .wide_tol = { 1e-12 }, .shift = 4 },
    { .op = OP_CLIP, .letters = "s", .values = clip_values, .reference = clip_reference,
      .modes = MODE_F32, .variants = CLIP_VARIANTS, .exact = true,
      .small = { { sizeof(step_state) } } },
    { 0 },
};
