/* Specs: mixture of experts. Sizes are N tokens, D width, E experts, K choices per token. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 256, MOST_K = 8 };

/* ---- routing. Variants: 1, sigmoid; 2, normalized; 4, capacity; 8, padded to it; 16, sequences
 * are shared by two ranks, this one the second; shape.d: tokens per sequence, or per chunk of one ----------------------------------------------------------------------------------------------- */
/* Groups of experts, where these can be divided and the eligible ones are enough. */
static void draw_groups(op_case *c, bool some, bool best, int64_t experts, int64_t k) {
    int groups = experts % 4 || experts < 8 ? 2 : 4, limit = groups / 2;
    if (!some || experts % groups || experts / groups < 2 || limit * (experts / groups) < k) return;
    c->attr.route.groups = groups;
    c->attr.route.group_limit = limit;
    c->attr.route.group_best = best;
}
/* Whether the group of an expert is among those of the greatest sums of two scores, or of the greatest scores.
 * @param v of all experts */
static bool is_eligible(const op_case *c, const double *v, int64_t expert) {
    int64_t groups = c->attr.route.groups, each = size_of(c, 'E') / MAX(groups, 1), before = 0;
    double sum[64];
    if (groups <= 1) return true;
    for (int64_t g = 0; g < groups; g++) {
        sum[g] = -INFINITY;
        for (int64_t a = 0; a < each; a++) {
            if (c->attr.route.group_best) sum[g] = MAX(sum[g], v[g * each + a]);
            for (int64_t b = 0; b < a && !c->attr.route.group_best; b++)
                sum[g] = MAX(sum[g], v[g * each + a] + v[g * each + b]);
        }
    }
    for (int64_t g = 0; g < groups; g++) before += sum[g] > sum[expert / each];
    return before < c->attr.route.group_limit;
}

static void route_sizes(op_case *c) {
    int variant = c->shape.variant;
    int64_t n = size_of(c, 'N'), experts = size_of(c, 'E'), k = size_of(c, 'K');
    int64_t seq = size_of(c, 'T'), seqs = (n + seq - 1) / seq;
    int64_t capacity = variant & 12 ? MAX(1, seq * k * 5 / (4 * experts)) : 0;
    c->attr.route.sigmoid = variant & 1;
    c->attr.route.normalize = variant & 2;
    c->attr.route.padded = variant & 8;
    c->attr.route.scale = variant & 2 ? 2.5f : 0;
    c->attr.route.seq = (int)seq;
    c->attr.route.capacity = (int)capacity;
    c->attr.route.balance = 0.7f;
    c->attr.route.z = 0.3f;
    draw_groups(c, variant & 32, variant & 2, experts, k);
    c->size['B'] = c->size['O'] = experts + 1;
    c->size['M'] = variant & 8 ? experts * seqs * capacity : n * k;
    if (!(variant & 16) || n % seq || (variant & 8)) return;
    int chunks = seqs % 2 ? 1 : 2;
    c->attr.route.chunks = chunks;
    c->attr.route.rank = 1;
    c->size['C'] = 2 * chunks;
    c->size['S'] = seqs / chunks;
}

/* Logits and bias as drawn: finite differences move the operands, but not the choices that follow. */
static double *drawn[2];
static void keep_drawn(const op_case *c) {
    for (int i = 0; i < 2; i++) {
        free(drawn[i]);
        drawn[i] = copy_values(c->in[i].v, c->in[i].count);
        round_values(DT_F32, drawn[i], c->in[i].count);
    }
}
static void route_values(op_case *c) {
    int64_t n = size_of(c, 'N');
    spread_values(&c->in[1], 0, 0.2);
    if (c->in[2].v) fill_below(&c->in[2], (int)size_of(c, 'T'));
    keep_drawn(c);
    c->grad[4] = mem_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) c->grad[4][i] = c->step.loss_grad;
}

/* @return log sum exp */
static double route_scores(const op_case *c, const double *logits, int64_t t, double *p) {
    int64_t experts = size_of(c, 'E');
    const double *x = logits + t * experts;
    double sum = 0;
    for (int64_t e = 0; e < experts; e++) sum += exp(x[e]);
    for (int64_t e = 0; e < experts; e++)
        p[e] = c->attr.route.sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]) / sum;
    return log(sum);
}

/* The choices and weights of a token. */
static void route_token(op_case *c, int64_t t, int64_t *expert) {
    int64_t experts = size_of(c, 'E'), k = size_of(c, 'K');
    double p[MOST_EXPERTS], sum = 0;
    bool used[MOST_EXPERTS] = { false };
    double v[MOST_EXPERTS];
    route_scores(c, drawn[0], t, p);
    for (int64_t e = 0; e < experts; e++) v[e] = p[e] + (c->in[1].v ? drawn[1][e] : 0);
    for (int64_t e = 0; e < experts; e++) used[e] = !is_eligible(c, v, e);
    for (int64_t i = 0; i < k; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++)
            if (!used[e] && (best < 0 || v[e] > v[best])) best = e;
        used[expert[i] = best] = true;
    }
    route_scores(c, c->in[0].v, t, p);
    for (int64_t i = 0; i < k; i++) sum += p[expert[i]];
    double by = c->attr.route.scale > 0 ? c->attr.route.scale : 1;
    for (int64_t i = 0; i < k; i++)
        c->out[0].v[t * k + i] = p[expert[i]] * by / (c->attr.route.normalize ? sum : 1);
}

/* Choices of an expert in the sequence of unit b: of all its chunks, or of those before the unit. With two ranks
 * the order of chunks is 0, 1 or, where each has two, 0, 1, 1, 0. */
static double shared_choices(const op_case *c, int64_t b, int64_t e, bool all) {
    static const int order[2][4] = { { 0, 1 }, { 0, 3, 1, 2 } }; /* by rank and chunk */
    int64_t chunks = c->attr.route.chunks, seqs = size_of(c, 'S'), experts = size_of(c, 'E');
    int own = order[chunks - 1][chunks + b % chunks];
    double sum = 0;
    for (int64_t i = 0; i < 2 * chunks; i++)
        if (all || order[chunks - 1][i] < own)
            sum += c->in[2].v[(i * seqs + b / chunks) * experts + e];
    return sum;
}

static void route_reference(op_case *c) {
    int64_t n = size_of(c, 'N'), experts = size_of(c, 'E'), k = size_of(c, 'K'),
            seq = size_of(c, 'T');
    int64_t seqs = (n + seq - 1) / seq, capacity = c->attr.route.capacity;
    int64_t *expert = mem_alloc((size_t)(n * k) * sizeof *expert);
    int64_t *count = mem_alloc((size_t)(seqs * experts) * sizeof *count);
    double total[MOST_EXPERTS + 1] = { 0 };
    for (int64_t t = 0; t < n; t++) route_token(c, t, expert + t * k);
    /* rows: expert by expert, sequence by sequence, token by token */
    int64_t at = 0;
    for (int64_t i = 0; i < size_of(c, 'M'); i++) c->out[2].v[i] = -1;
    for (int64_t e = 0; e < experts; e++) {
        c->out[3].v[e] = (double)at;
        for (int64_t b = 0; b < seqs; b++) {
            int64_t *used = &count[b * experts + e], first = at;
            int64_t before = c->in[2].v ? (int64_t)shared_choices(c, b, e, false) : 0;
            for (int64_t i = b * seq * k; i < MIN((b + 1) * seq, n) * k; i++) {
                if (expert[i] != e) continue;
                bool dropped = capacity && before + (*used)++ >= capacity;
                if (!capacity) ++*used;
                c->out[1].v[i] = (double)(dropped ? -1 - e : at);
                if (dropped)
                    total[experts]++;
                else
                    c->out[2].v[at++] = (double)i;
            }
            total[e] += (double)*used;
            if (c->attr.route.padded) at = first + capacity;
        }
    }
    c->out[3].v[experts] = (double)at;
    for (int64_t t = 0; t < n; t++) {
        double p[MOST_EXPERTS], lse = route_scores(c, c->in[0].v, t, p), all = 0, sum = 0;
        int64_t b = t / seq, tokens = MIN((b + 1) * seq, n) - b * seq;
        for (int64_t e = 0; e < experts; e++) {
            all += p[e];
            double chosen = (double)count[b * experts + e];
            if (c->in[2].v) chosen = shared_choices(c, b, e, true) / 2 / c->attr.route.chunks;
            sum += p[e] * chosen / (double)(k * tokens);
        }
        c->out[4].v[t] =
            c->attr.route.balance * (double)experts * sum / all + c->attr.route.z * lse * lse;
    }
    /* The load is what the row calls the gradient of the bias: nothing at the bias as drawn, and of that
     * slope around it. */
    for (int64_t e = 0; c->in[1].v && e <= experts; e++)
        c->out[4].v[0] += (c->in[1].v[e] - drawn[1][e]) * total[e] / c->step.loss_grad;
    free(expert);
    free(count);
}

/* ---- choices per chunk. Variants: 1, sigmoid; 2, two chunks of each sequence; 4, groups -------------------------------- */
static void count_sizes(op_case *c) {
    int64_t units = size_of(c, 'N') / size_of(c, 'T'), chunks = c->shape.variant & 2 ? 2 : 1;
    c->attr.route.sigmoid = c->shape.variant & 1;
    draw_groups(c, c->shape.variant & 4, c->shape.variant & 2, size_of(c, 'E'), size_of(c, 'K'));
    c->attr.route.seq = (int)size_of(c, 'T');
    c->attr.route.k = (int)size_of(c, 'K');
    c->attr.route.chunks = (int)chunks;
    c->size['B'] = size_of(c, 'E') + 1;
    c->size['C'] = chunks;
    c->size['S'] = units / chunks;
}
static void count_values(op_case *c) { spread_values(&c->in[1], 0, 0.2); }
static void count_reference(op_case *c) {
    int64_t experts = size_of(c, 'E'), seq = size_of(c, 'T'), chunks = size_of(c, 'C');
    memset(c->out[0].v, 0, (size_t)c->out[0].count * sizeof(double));
    for (int64_t t = 0; t < size_of(c, 'N'); t++) {
        int64_t unit = t / seq, at = unit % chunks * size_of(c, 'S') + unit / chunks;
        double p[MOST_EXPERTS];
        bool used[MOST_EXPERTS];
        route_scores(c, c->in[0].v, t, p);
        for (int64_t e = 0; e < experts; e++) p[e] += c->in[1].v ? c->in[1].v[e] : 0;
        for (int64_t e = 0; e < experts; e++) used[e] = !is_eligible(c, p, e);
        for (int64_t i = 0; i < size_of(c, 'K'); i++) {
            int64_t best = -1;
            for (int64_t e = 0; e < experts; e++)
                if (!used[e] && (best < 0 || p[e] > p[best])) best = e;
            used[best] = true;
            c->out[0].v[at * experts + best]++;
        }
    }
}

/* ---- rows between ranks ------------------------------------------------------------------------------------ */
static void offset_sizes(op_case *c) {
    c->size['O'] = size_of(c, 'E') + 1;
    c->size['J'] = 1;
}
static void offset_values(op_case *c) {
    for (int64_t e = 0, at = 0; e <= size_of(c, 'E'); e++, at += draw_below(5))
        c->in[0].v[e] = (double)at;
}
static void offset_reference(op_case *c) {
    for (int64_t e = 0; e < size_of(c, 'E'); e++)
        c->out[0].v[e] = c->in[0].v[e + 1] - c->in[0].v[e];
}
static void group_sizes(op_case *c) { c->size['O'] = size_of(c, 'E') + 1; }
/* Any number of rows from each rank, all of them or not. */
static void group_values(op_case *c) {
    int64_t left = size_of(c, 'M');
    for (int64_t i = 0; i < c->in[1].count; i++) {
        int64_t n = draw_below(MIN(left, 9) + 1);
        c->in[1].v[i] = (double)n;
        left -= n;
    }
}
static void group_reference(op_case *c) {
    int64_t experts = size_of(c, 'E'), ranks = size_of(c, 'J'), d = size_of(c, 'D'), grouped = 0;
    bool group = c->out[1].v != NULL;
    memset(c->out[0].v, 0, (size_t)c->out[0].count * sizeof(double));
    for (int64_t e = 0; e < experts; e++) {
        if (group) c->out[1].v[e] = (double)grouped;
        for (int64_t j = 0; j < ranks; j++)
            for (int64_t i = 0; i < (int64_t)c->in[1].v[e * ranks + j]; i++, grouped++) {
                int64_t apart = i;
                for (int64_t q = 0; q <= j; q++)
                    for (int64_t f = 0; f < (q < j ? experts : e); f++)
                        apart += (int64_t)c->in[1].v[f * ranks + q];
                int64_t from = group ? apart : grouped, to = group ? grouped : apart;
                memcpy(c->out[0].v + to * d, c->in[0].v + from * d, (size_t)d * sizeof(double));
            }
    }
    if (group) c->out[1].v[experts] = (double)grouped;
}

/* ---- rows of experts. Variant 1: a part of the choices is dropped ------------------------------------------ */
static void rows_sizes(op_case *c) { c->size['M'] = size_of(c, 'N') * size_of(c, 'K'); }

/* Fills row and source: a random order of the choices. */
static void rows_values(op_case *c, op_value *row, op_value *source) {
    int64_t n = size_of(c, 'N') * size_of(c, 'K'), used = 0;
    for (int64_t m = 0; m < n; m++) source->v[m] = -1;
    for (int64_t i = 0; i < n; i++) {
        bool dropped = c->shape.variant && draw_below(4) == 0;
        row->v[i] = -1 - (double)draw_below(4);
        if (dropped) continue;
        int64_t at = draw_below(used + 1); /* takes a row that another moves out of */
        source->v[used] = at < used ? source->v[at] : (double)i;
        source->v[at] = (double)i;
        if (at < used) row->v[(int64_t)source->v[used]] = (double)used;
        row->v[i] = (double)at;
        used++;
    }
}
static void dispatch_values(op_case *c) { rows_values(c, &c->in[1], &c->in[2]); }
static void dispatch_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), k = size_of(c, 'K');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t from = (int64_t)c->in[2].v[i / d];
        c->out[0].v[i] = from < 0 ? 0 : c->in[0].v[from / k * d + i % d];
    }
}
static void combine_values(op_case *c) { rows_values(c, &c->in[2], &c->in[3]); }
static void combine_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), k = size_of(c, 'K');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double sum = 0;
        for (int64_t j = i / d * k; j < (i / d + 1) * k; j++)
            if (c->in[2].v[j] >= 0)
                sum += c->in[1].v[j] * c->in[0].v[(int64_t)c->in[2].v[j] * d + i % d];
        c->out[0].v[i] = sum;
    }
}

static void weighted_values(op_case *c) { rows_values(c, &c->in[2], &c->in[3]); }
static void weighted_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), k = size_of(c, 'K');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t from = (int64_t)c->in[3].v[i / d];
        c->out[0].v[i] = from < 0 ? 0 : c->in[1].v[from] * c->in[0].v[from / k * d + i % d];
    }
}
static void sum_values(op_case *c) { rows_values(c, &c->in[1], &c->in[2]); }
static void sum_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), k = size_of(c, 'K');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double sum = 0;
        for (int64_t j = i / d * k; j < (i / d + 1) * k; j++)
            if (c->in[1].v[j] >= 0) sum += c->in[0].v[(int64_t)c->in[1].v[j] * d + i % d];
        c->out[0].v[i] = sum;
    }
}

/* ---- biases of experts. Variant 1: an expert without rows and rows without expert ------------------------ */
static void expert_bias_sizes(op_case *c) {
    c->attr.experts = (int)size_of(c, 'E');
    c->size['G'] = size_of(c, 'E') * size_of(c, 'F');
    c->size['O'] = size_of(c, 'E') + 1;
}
static void expert_bias_values(op_case *c) {
    int64_t experts = size_of(c, 'E'), rows = size_of(c, 'M');
    double *offset = c->in[1].v;
    for (int64_t e = 0; e <= experts; e++) offset[e] = (double)(rows * e / experts);
    if (!(c->shape.variant & 1)) return;
    offset[experts] -= offset[experts] > 2 ? 2 : 0;
    if (experts > 1) offset[1] = 0;
    if (experts > 2) offset[experts - 1] = offset[experts];
}
static void expert_bias_reference(op_case *c) {
    int64_t experts = size_of(c, 'E'), f = size_of(c, 'F'), each = size_of(c, 'M') / experts;
    memcpy(c->out[0].v, c->in[0].v, (size_t)c->out[0].count * sizeof(double));
    for (int64_t e = 0; c->in[2].v && e < experts; e++) {
        int64_t from = c->in[1].v ? (int64_t)c->in[1].v[e] : e * each;
        int64_t to = c->in[1].v ? (int64_t)c->in[1].v[e + 1] : (e + 1) * each;
        for (int64_t i = from * f; i < to * f; i++) c->out[0].v[i] += c->in[2].v[e * f + i % f];
    }
}

/* ---- a gate per row --------------------------------------------------------------------------------------- */
static void gate_sizes(op_case *c) { c->size['A'] = 1; }
static void gate_values(op_case *c) {
    spread_values(&c->in[2], 0, 1 / sqrt((double)size_of(c, 'K')));
}
static void gate_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), k = size_of(c, 'K');
    for (int64_t n = 0; n < size_of(c, 'N'); n++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += c->in[1].v[n * k + i] * c->in[2].v[i];
        for (int64_t i = n * d; i < (n + 1) * d; i++)
            c->out[0].v[i] = c->in[0].v[i] / (1 + exp(-sum));
    }
}

/* ---- GEMMs of experts. Variants: 1, an expert without rows and rows without expert; 2, weights in bf16;
 * 4, an expert with a single row ---------------------------------------------------------------------------- */
static void grouped_sizes(op_case *c) {
    c->attr.experts = (int)size_of(c, 'E');
    c->size['G'] = size_of(c, 'E') * size_of(c, 'F');
    c->size['O'] = size_of(c, 'E') + 1;
}
static void grouped_values(op_case *c) {
    int64_t experts = size_of(c, 'E'), rows = size_of(c, 'M');
    double *offset = c->in[2].v;
    spread_values(&c->in[1], 0, 1 / sqrt((double)size_of(c, 'K')));
    if (c->shape.variant & 2) c->in[1].dt = DT_BF16;
    for (int64_t e = 0; e <= experts; e++) offset[e] = (double)(rows * e / experts);
    if (c->shape.variant & 1) {
        offset[experts] -= offset[experts] > 2 ? 2 : 0;
        if (experts > 1) offset[1] = 0;
        if (experts > 2) offset[experts - 1] = offset[experts];
    }
    if ((c->shape.variant & 4) && experts > 1) offset[1] = 1;
}
static void grouped_reference(op_case *c) {
    int64_t experts = size_of(c, 'E'), k = size_of(c, 'K'), f = size_of(c, 'F');
    int64_t rows = size_of(c, 'M'), each = rows / experts;
    memset(c->out[0].v, 0, (size_t)c->out[0].count * sizeof(double));
    for (int64_t e = 0; e < experts; e++) {
        int64_t from = c->in[2].v ? (int64_t)c->in[2].v[e] : e * each;
        int64_t to = c->in[2].v ? (int64_t)c->in[2].v[e + 1] : (e + 1) * each;
        for (int64_t i = from; i < to; i++)
            for (int64_t j = 0; j < f; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += c->in[0].v[i * k + l] * c->in[1].v[(e * f + j) * k + l];
                c->out[0].v[i * f + j] = sum;
            }
    }
}

/* ---- the bias. variant 1: the step is skipped ---------------------------------------------------------------- */
static void bias_values(op_case *c) {
    c->attr.update.lr_mul = 0.01f;
    c->step.now.skip = c->shape.variant;
    fill_below(&c->in[0], 5); /* some at the mean */
    for (int64_t e = 0; e < c->in[0].count / 2 * 2; e += 2) c->in[0].v[e + 1] = 4 - c->in[0].v[e];
}
static void bias_reference(op_case *c) {
    int64_t experts = c->in[0].count - 1;
    double mean = 0;
    for (int64_t e = 0; e < experts; e++) mean += c->in[0].v[e] / (double)experts;
    for (int64_t e = 0; e < experts && !c->step.now.skip; e++) {
        double apart = c->in[0].v[e] - mean;
        c->out[0].v[e] -= fabs(apart) < 1e-9 ? 0 : apart > 0 ? 0.01 : -0.01;
    }
}

/* clang-format off */
const op_spec expert_specs[] = {
    { .op = OP_ROUTE, .letters = "NEKT", .sizes = route_sizes, .values = route_values,
      .reference = route_reference, .modes = MODE_F32, .variants = 64,
      .small = { { 1, 1, 1, 1 }, { 12, 4, 2, 6 }, { 30, 8, 3, 10 }, { 21, 5, 2, 8 } },
      .wide = { { 64, 8, 2, 32 }, { 96, 60, 6, 48 }, { 256, 128, 8, 64 } },
      .wide_tol = { 1e-5 } },
    { .op = OP_ROUTE_COUNT, .letters = "NEKT", .sizes = count_sizes, .values = count_values,
      .reference = count_reference, .modes = MODE_F32, .variants = 8,
      .small = { { 2, 1, 1, 1 }, { 12, 4, 2, 3 }, { 40, 8, 3, 10 } },
      .wide = { { 64, 8, 2, 16 }, { 96, 60, 6, 48 }, { 256, 128, 8, 32 } } },
    { .op = OP_EXPERT_ROWS, .letters = "E", .sizes = offset_sizes, .values = offset_values,
      .reference = offset_reference, .modes = MODE_F32, .small = { { 1 }, { 6 }, { 40 } },
      .wide = { { 128 } } },
    { .op = OP_GROUP_ROWS, .letters = "MDEJ", .sizes = group_sizes, .values = group_values,
      .reference = group_reference,
      .small = { { 1, 1, 1, 1 }, { 17, 33, 3, 2 }, { 40, 600, 2, 4 } },
      .wide = { { 99, 768, 8, 4 }, { 64, 129, 3, 8 } }, .wide_tol = { 1e-6 }, .shift = 8 },
    { .op = OP_UNGROUP_ROWS, .letters = "MDEJ", .sizes = group_sizes, .values = group_values,
      .reference = group_reference,
      .small = { { 1, 1, 1, 1 }, { 17, 33, 3, 2 }, { 40, 600, 2, 4 } },
      .wide = { { 99, 768, 8, 4 }, { 64, 129, 3, 8 } }, .wide_tol = { 1e-6 }, .shift = 8 },
    { .op = OP_DISPATCH, .letters = "NDK", .sizes = rows_sizes, .values = dispatch_values,
      .reference = dispatch_reference, .variants = 2,
      .small = { { 1, 1, 1 }, { 7, 33, 2 }, { 20, 600, 3 } },
      .wide = { { 33, 768, 2 }, { 64, 129, 8 }, { 8, 1600, 4 } },
      .wide_tol = { 1e-6 }, .shift = 8 },
    { .op = OP_COMBINE, .letters = "NDK", .sizes = rows_sizes, .values = combine_values,
      .reference = combine_reference, .variants = 2,
      .small = { { 1, 1, 1 }, { 7, 33, 2 }, { 20, 600, 3 } },
      .wide = { { 33, 768, 2 }, { 64, 129, 8 }, { 8, 1600, 4 } },
      .wide_tol = { 3e-6 }, .shift = 8 },
    { .op = OP_DISPATCH_WEIGHTED, .letters = "NDK", .sizes = rows_sizes, .values = weighted_values,
      .reference = weighted_reference, .variants = 2,
      .small = { { 1, 1, 1 }, { 7, 33, 2 }, { 20, 600, 3 } },
      .wide = { { 33, 768, 2 }, { 64, 129, 8 }, { 8, 1600, 4 } },
      .wide_tol = { 3e-6 }, .shift = 8 },
    { .op = OP_COMBINE_SUM, .letters = "NDK", .sizes = rows_sizes, .values = sum_values,
      .reference = sum_reference, .variants = 2,
      .small = { { 1, 1, 1 }, { 7, 33, 2 }, { 20, 600, 3 } },
      .wide = { { 33, 768, 2 }, { 64, 129, 8 }, { 8, 1600, 4 } },
      .wide_tol = { 3e-6 }, .shift = 8 },
    { .op = OP_EXPERT_BIAS, .letters = "MFE", .sizes = expert_bias_sizes, .values = expert_bias_values,
      .reference = expert_bias_reference, .variants = 2,
      .small = { { 1, 1, 1 }, { 12, 17, 3 }, { 12, 33, 4 }, { 40, 600, 5 } },
      .wide = { { 96, 768, 4 }, { 66, 129, 6 }, { 512, 64, 64 } }, .wide_tol = { 3e-6 }, .shift = 16 },
    { .op = OP_GATE_ROWS, .letters = "NDK", .sizes = gate_sizes, .values = gate_values,
      .reference = gate_reference,
      .small = { { 1, 1, 1 }, { 7, 33, 20 }, { 70, 600, 600 } },
      .wide = { { 33, 768, 768 }, { 64, 129, 130 }, { 800, 1600, 64 } }, .wide_tol = { 1e-5, 3e-5 }, .shift = 8 },
    { .op = OP_GROUPED_LINEAR, .letters = "MKFE", .sizes = grouped_sizes, .values = grouped_values,
      .reference = grouped_reference,
      .small = { { 1, 1, 1, 1 }, { 12, 17, 9, 3 }, { 12, 17, 9, 4, .variant = 1 },
                 { 64, 40, 24, 4, .variant = 3 }, { 30, 32, 16, 2, .variant = 4 },
                 { 96, 20, 40, 6, .variant = 1 } },
      .wide = { { 64, 64, 32, 4 }, { 128, 96, 160, 8, .variant = 1 }, { 200, 72, 200, 2, .variant = 4 },
                { 512, 64, 64, 64, .variant = 1 }, { 400, 136, 264, 3, .variant = 1 },
                { 700, 72, 392, 3 }, { 620, 72, 264, 2, .variant = 4 },
                /* so deep that the ring turns several times for a tile that a warp group skips */
                { 400, 1096, 392, 3, .when = ALWAYS } },
      .wide_tol = { 2e-5 }, .shift = 16 },
    { .op = OP_UPDATE_ROUTER_BIAS, .letters = "n", .values = bias_values, .reference = bias_reference,
      .modes = MODE_F32, .variants = 2, .small = { { 3 }, { 9 }, { 129 } },
      .wide = { { 65 } }, .wide_tol = { 1e-6 } },
    { 0 },
};
