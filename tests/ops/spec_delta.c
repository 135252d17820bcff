/* Specs: gated DeltaNet. Letters: k = heads of keys, g = heads of values for each, d = dims of a key, e = dims of a value,
 * s = sequences of a state. References step from token to token, where the kernels work by chunks. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Documents of drawn lengths; with an even variant rows of one document each. */
static void draw_documents(op_case *c, int which) {
    int64_t first = 0;
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        if (c->shape.variant % 2 && draw_below(9) == 0) first = i;
        if (c->attr.heads.seq && i % c->attr.heads.seq == 0) first = i;
        c->in[which].v[i] = (double)first;
    }
}

/* ---- the convolution -------------------------------------------------------------------------------- */
static void conv_values(op_case *c) { draw_documents(c, 2); }
static void conv_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), taps = size_of(c, 'W');
    for (int64_t at = 0; at < c->out[0].count; at++) {
        int64_t i = at / cols, col = at % cols;
        double p = 0;
        for (int64_t t = 0; t < taps; t++) {
            int64_t from = i - (taps - 1) + t;
            if (from >= (int64_t)c->in[2].v[i])
                p += c->in[1].v[col * taps + t] * c->in[0].v[from * cols + col];
        }
        c->out[0].v[at] = p * sigmoid(p);
    }
}

/* Tokens go to the sequences in turn; the last row is there twice. Sequences begin at position 0 but for the last. */
static void place_tokens(op_case *c, int pos, int start) {
    int64_t n = size_of(c, 'N'), s = size_of(c, 's');
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i == n - 1 && n > 1 ? i - 1 : i, of = k % s;
        c->in[start].v[i] = (double)(of * c->attr.heads.seq);
        c->in[pos].v[i] = (double)(k / s + (of == s - 1 ? 3 : 0));
    }
}
static bool repeats(const op_case *c, int64_t i, int pos, int start) {
    return i && c->in[pos].v[i] == c->in[pos].v[i - 1] &&
           c->in[start].v[i] == c->in[start].v[i - 1];
}
static void conv_cached_sizes(op_case *c) {
    c->attr.heads.seq = (int)size_of(c, 'N') + 5;
    c->size['S'] = size_of(c, 's');
    c->size['T'] = (size_of(c, 'W') - 1) * size_of(c, 'C');
}
static void conv_cached_values(op_case *c) { place_tokens(c, 3, 4); }
static void conv_cached_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), taps = size_of(c, 'W');
    for (int64_t at = 0; at < c->out[0].count; at++) {
        int64_t i = at / cols, col = at % cols;
        double *state =
            c->in[2].v + (int64_t)c->in[4].v[i] / c->attr.heads.seq * (taps - 1) * cols + col;
        if (repeats(c, i, 3, 4)) {
            c->out[0].v[at] = c->out[0].v[at - cols];
            continue;
        }
        double p = c->in[1].v[col * taps + taps - 1] * c->in[0].v[at];
        for (int64_t t = 0; t < taps - 1; t++) {
            if (c->in[3].v[i] == 0) state[t * cols] = 0;
            p += c->in[1].v[col * taps + t] * state[t * cols];
        }
        for (int64_t t = 0; t < taps - 1; t++)
            state[t * cols] = t < taps - 2 ? state[(t + 1) * cols] : c->in[0].v[at];
        c->out[0].v[at] = p * sigmoid(p);
    }
}

/* ---- gates ------------------------------------------------------------------------------------------- */
static void gates_reference(op_case *c) {
    int64_t h = size_of(c, 'H');
    for (int64_t i = 0; i < size_of(c, 'N') * h; i++) {
        int64_t at = i / h * 2 * h + i % h;
        double a = c->in[0].v[at + h] + c->in[2].v[i % h];
        c->out[0].v[at] = sigmoid(c->in[0].v[at]);
        c->out[0].v[at + h] = -exp(c->in[1].v[i % h]) * log1p(exp(a));
    }
}

static void gated_norm_sizes(op_case *c) {
    c->attr.eps = 1e-5f;
    c->size['C'] = size_of(c, 'H') * size_of(c, 'A');
}
static void gated_norm_reference(op_case *c) {
    int64_t dim = size_of(c, 'A');
    for (int64_t i = 0; i < c->out[1].count; i++) {
        const double *x = c->in[0].v + i * dim, *z = c->in[1].v + i * dim;
        double sum = 0;
        for (int64_t e = 0; e < dim; e++) sum += x[e] * x[e];
        double r = c->out[1].v[i] = 1 / sqrt(sum / (double)dim + c->attr.eps);
        for (int64_t e = 0; e < dim; e++)
            c->out[0].v[i * dim + e] =
                x[e] * r * (c->in[2].v ? c->in[2].v[e] : 1) * z[e] * sigmoid(z[e]);
    }
}

static void sigmoid_gate_reference(op_case *c) {
    for (int64_t i = 0; i < c->out[0].count; i++)
        c->out[0].v[i] = c->in[0].v[i] * sigmoid(c->in[1].v[i]);
}

/* ---- the rule. variant 1: documents; 2: strong decay; 4: rows of a batch -------------------------------- */
static void rule_sizes(op_case *c) {
    int64_t k = size_of(c, 'k'), heads = k * size_of(c, 'g');
    c->attr.heads.q = (int)k;
    c->attr.heads.seq = c->shape.variant & 4 ? (int)size_of(c, 'N') / 2 : 0;
    c->size['B'] = 2 * heads;
    c->size['O'] = heads * size_of(c, 'e');
    c->size['C'] = 2 * k * size_of(c, 'd') + size_of(c, 'O');
}
static void draw_gates(op_case *c) {
    int64_t heads = size_of(c, 'B') / 2;
    for (int64_t i = 0; i < c->in[1].count; i++) {
        double *v = &c->in[1].v[i];
        *v = i / heads % 2 ? -fabs(*v) * (c->shape.variant & 2 ? 20 : 0.1) : sigmoid(*v);
    }
}
static void rule_values(op_case *c) {
    draw_documents(c, 2);
    draw_gates(c);
}
static void unit_of(const double *x, int64_t n, double by, double *to) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) to[i] = by * x[i] / sqrt(sum + 1e-6);
}
/* One token of one head: S decays, is corrected, and is read. */
static void rule_token(op_case *c, int64_t i, int64_t h, double *S, double *q, double *k) {
    int64_t d = size_of(c, 'd'), e = size_of(c, 'e'), heads = size_of(c, 'B') / 2,
            keys = size_of(c, 'k');
    const double *row = c->in[0].v + i * size_of(c, 'C'), *gate = c->in[1].v + i * 2 * heads + h;
    const double *v = row + 2 * keys * d + h * e;
    int64_t key = h / size_of(c, 'g');
    unit_of(row + key * d, d, 1 / sqrt((double)d), q);
    unit_of(row + (keys + key) * d, d, 1, k);
    for (int64_t b = 0; b < e; b++) {
        double kv = 0, o = 0;
        for (int64_t a = 0; a < d; a++) kv += k[a] * (S[a * e + b] *= exp(gate[heads]));
        for (int64_t a = 0; a < d; a++) {
            S[a * e + b] += gate[0] * k[a] * (v[b] - kv);
            o += q[a] * S[a * e + b];
        }
        c->out[0].v[i * heads * e + h * e + b] = o;
    }
}
static void rule_reference(op_case *c) {
    int64_t d = size_of(c, 'd'), e = size_of(c, 'e'), heads = size_of(c, 'B') / 2;
    double *S = mem_alloc((size_t)(d * e + 2 * d) * sizeof *S);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < size_of(c, 'N'); i++) {
            for (int64_t at = 0; at < d * e && c->in[2].v[i] == (double)i; at++) S[at] = 0;
            rule_token(c, i, h, S, S + d * e, S + d * e + d);
        }
    free(S);
}

static void rule_cached_sizes(op_case *c) {
    rule_sizes(c);
    c->attr.heads.seq = (int)size_of(c, 'N') + 5;
    c->size['S'] = size_of(c, 's');
    c->size['T'] = size_of(c, 'B') / 2 * size_of(c, 'd') * size_of(c, 'e');
}
static void rule_cached_values(op_case *c) {
    place_tokens(c, 3, 4);
    draw_gates(c);
}
static void rule_cached_reference(op_case *c) {
    int64_t d = size_of(c, 'd'), e = size_of(c, 'e'), heads = size_of(c, 'B') / 2;
    double *qk = mem_alloc((size_t)(2 * d) * sizeof *qk);
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t sequence = (int64_t)c->in[4].v[i] / c->attr.heads.seq;
            double *S = c->in[2].v + (sequence * heads + h) * d * e,
                   *o = c->out[0].v + (i * heads + h) * e;
            for (int64_t at = 0; at < d * e && c->in[3].v[i] == 0; at++)
                if (!repeats(c, i, 3, 4)) S[at] = 0;
            if (repeats(c, i, 3, 4))
                for (int64_t b = 0; b < e; b++) o[b] = o[b - heads * e];
            else
                rule_token(c, i, h, S, qk, qk + d);
        }
    free(qk);
}

const op_spec delta_specs[] = {
    { .op = OP_SHORT_CONV,
      .letters = "NCW",
      .values = conv_values,
      .reference = conv_reference,
      .small = { { 1, 1, 2 },
                 { 5, 3, 4, .variant = 1 },
                 { 70, 19, 4, .variant = 1 },
                 { 9, 300, 3 } },
      .wide = { { 300, 384, 4, .variant = 1 }, { 33, 130, 5 } },
      .wide_tol = { 1e-5, 1e-5 } },
    { .op = OP_SHORT_CONV_CACHED,
      .letters = "NCWs",
      .sizes = conv_cached_sizes,
      .values = conv_cached_values,
      .reference = conv_cached_reference,
      .writes = "state",
      .small = { { 1, 1, 2, 1 }, { 5, 3, 4, 2 }, { 9, 300, 3, 1 }, { 8, 17, 4, 8 } },
      .wide = { { 40, 384, 4, 3 } },
      .wide_tol = { 1e-5 } },
    { .op = OP_DELTA_GATES,
      .letters = "NH",
      .reference = gates_reference,
      .small = { { 1, 1 }, { 5, 3 }, { 130, 8 } },
      .wide = { { 300, 32 }, { 33, 5 } },
      .wide_tol = { 1e-5, 1e-4 } },
    { .op = OP_GATED_NORM,
      .letters = "NHA",
      .sizes = gated_norm_sizes,
      .reference = gated_norm_reference,
      .small = { { 1, 1, 2 }, { 5, 3, 7 }, { 70, 2, 32 } },
      .wide = { { 300, 4, 128 }, { 33, 3, 40 } },
      .wide_tol = { 1e-5, 1e-4 } },
    { .op = OP_SIGMOID_GATE,
      .letters = "NC",
      .reference = sigmoid_gate_reference,
      .small = { { 1, 1 }, { 5, 33 }, { 7, 520 } },
      .wide = { { 300, 384 }, { 33, 130 } },
      .wide_tol = { 1e-5, 1e-5 } },
    { .op = OP_DELTA_RULE,
      .letters = "Nkgde",
      .sizes = rule_sizes,
      .values = rule_values,
      .reference = rule_reference,
      .small = { { 1, 1, 1, 1, 1 },
                 { 5, 2, 1, 3, 4, .variant = 1 },
                 { 9, 1, 3, 4, 2, .variant = 2 },
                 { 70, 1, 2, 5, 6, .variant = 1 },
                 { 150, 1, 1, 8, 4 },
                 { 132, 2, 1, 4, 3, .variant = 5 } },
      .wide = { { 200, 2, 2, 32, 48, .variant = 1 }, { 130, 1, 1, 128, 64 } },
      .wide_tol = { 1e-4, 1e-3 } },
    { .op = OP_DELTA_CACHED,
      .letters = "Nkgdes",
      .sizes = rule_cached_sizes,
      .values = rule_cached_values,
      .reference = rule_cached_reference,
      .writes = "state",
      .small = { { 1, 1, 1, 1, 1, 1 },
                 { 5, 2, 2, 3, 4, 2 },
                 { 9, 1, 3, 4, 2, 1 },
                 { 8, 2, 1, 16, 8, 8 } },
      .wide = { { 40, 2, 2, 32, 48, 3 }, { 4, 1, 2, 128, 128, 4 } },
      .wide_tol = { 1e-4 } },
    { 0 },
};
