/* Specs: ops over heads. Letters: d = head size, q and k = query and key heads, w = window, s = tokens of
 * a row (0: one row), l = mean length of a document (0: one per row), t = rotated dims. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

static void heads_sizes(op_case *c) {
    int64_t d = size_of(c, 'd'), q = size_of(c, 'q'), k = size_of(c, 'k');
    c->attr.heads.q = (int)q;
    c->attr.heads.kv = (int)k;
    c->attr.heads.dim = (int)d;
    c->size['C'] = (q + 2 * k) * d;
    c->size['O'] = q * d;
    c->size['H'] = q;
    c->size['A'] = q + 3; /* sinks */
}
/* Keeps the sinks, some of other heads among them, or drops them. */
static void settle_sinks(op_case *c, int sink) {
    if (!c->attr.heads.sinks) drop_value(&c->in[sink]);
    c->in[sink].optional = false;
}

/* ---- rope -------------------------------------------------------------------------------------------- */
static void rope_sizes(op_case *c) {
    heads_sizes(c);
    c->attr.heads.rot = (int)size_of(c, 't');
    c->size['T'] = size_of(c, 't');
    c->size['P'] = size_of(c, 'N') + 3;
}
static void fill_rope(op_value *pos, op_value *table) {
    int64_t positions = table->dim[0], rot = table->dim[1];
    fill_below(pos, positions);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t j = 0; j < rot / 2; j++) {
            double angle = (double)p * pow(10000, -2.0 * (double)j / (double)rot);
            table->v[p * rot + j] = cos(angle);
            table->v[p * rot + rot / 2 + j] = sin(angle);
        }
}
static void rope_values(op_case *c) { fill_rope(&c->in[1], &c->in[2]); }
/* Results are the rows `from`, with q and k heads rotated. */
static void rotate_heads(op_case *c, const double *from, const op_value *pos,
                         const op_value *table) {
    int64_t cols = size_of(c, 'C'), rot = size_of(c, 't'), half = rot / 2, d = size_of(c, 'd');
    for (int64_t i = 0; i < c->out[0].count; i++) c->out[0].v[i] = from[i];
    for (int64_t i = 0; i < size_of(c, 'N'); i++)
        for (int64_t h = 0; h < size_of(c, 'q') + size_of(c, 'k'); h++)
            for (int64_t j = 0; j < half; j++) {
                const double *row = table->v + (int64_t)pos->v[i] * rot;
                int64_t at = i * cols + h * d + j;
                double x = from[at], y = from[at + half];
                c->out[0].v[at] = x * row[j] - y * row[half + j];
                c->out[0].v[at + half] = y * row[j] + x * row[half + j];
            }
}
static void rope_reference(op_case *c) { rotate_heads(c, c->in[0].v, &c->in[1], &c->in[2]); }

/* ---- norm and rotation ------------------------------------------------------------------------------- */
static void qknorm_rope_sizes(op_case *c) {
    rope_sizes(c);
    c->attr.eps = 1e-2f; /* large enough to count */
    c->size['S'] = size_of(c, 'q') + size_of(c, 'k');
    c->size['A'] = size_of(c, 'd');
}
static int rope_operand(const op_case *c) { return c->in[3].v ? 3 : 1; } /* behind the weights */
/* Variant 1: a table that also scales, as long contexts have it. */
static void qknorm_rope_values(op_case *c) {
    int pos = rope_operand(c);
    fill_rope(&c->in[pos], &c->in[pos + 1]);
    if (c->shape.variant) spread_values(&c->in[pos + 1], 0, 1.3);
}
static void qknorm_rope_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), d = size_of(c, 'd'), heads = size_of(c, 'S');
    int pos = rope_operand(c);
    double *n = copy_values(c->in[0].v, c->in[0].count);
    for (int64_t i = 0; i < size_of(c, 'N') * heads; i++) {
        const double *w = pos == 1 ? NULL : c->in[i % heads < size_of(c, 'q') ? 1 : 2].v;
        double *head = n + i / heads * cols + i % heads * d, sum = 0;
        for (int64_t k = 0; k < d; k++) sum += head[k] * head[k] / (double)d;
        c->out[1].v[i] = 1 / sqrt(sum + c->attr.eps);
        for (int64_t k = 0; k < d; k++) head[k] *= c->out[1].v[i] * (w ? w[k] : 1);
    }
    rotate_heads(c, n, &c->in[pos], &c->in[pos + 1]);
    free(n);
}

/* ---- other orders: p = parts; i and j = rows of the outer and the inner index ------------------------ */
static void group_sizes(op_case *c) {
    heads_sizes(c);
    c->attr.reorder.parts = (int)size_of(c, 'p');
    c->size['G'] = size_of(c, 'C');
}
static void group_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), d = size_of(c, 'd'), parts = size_of(c, 'p');
    int64_t heads[] = { size_of(c, 'q'), size_of(c, 'k'), size_of(c, 'k') };
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        double *to = c->out[0].v + i * cols;
        for (int64_t part = 0; part < parts; part++) {
            const double *from = c->in[0].v + i * cols;
            for (int s = 0; s < 3; from += heads[s++] * d)
                for (int64_t e = 0, n = heads[s] / parts * d; e < n; e++)
                    *to++ = from[part * n + e];
        }
    }
}
static void swap_sizes(op_case *c) {
    c->attr.reorder.outer = (int)size_of(c, 'i');
    c->attr.reorder.inner = (int)size_of(c, 'j');
}
static void swap_reference(op_case *c) {
    int64_t d = size_of(c, 'D'), outer = size_of(c, 'i'), inner = size_of(c, 'j');
    int64_t rows = size_of(c, 'N') / (outer * inner);
    double *to = c->out[0].v;
    for (int64_t j = 0; j < inner; j++)
        for (int64_t i = 0; i < outer; i++)
            for (int64_t e = 0; e < rows * d; e++)
                *to++ = c->in[0].v[(i * inner + j) * rows * d + e];
}

/* ---- attention --------------------------------------------------------------------------------------- */
/* Softmax over keys [from, to] of one query; k and v by row with stride. factor: of each key's probability,
 * NULL: 1. @return the log-sum-exp */
static double attend(const double *q, const double *k, const double *v, int64_t stride,
                     int64_t from, int64_t to, const op_case *c, const double *factor, double *o) {
    double scale = c->attr.heads.scale, cap = c->attr.heads.cap;
    int64_t dim = c->attr.heads.dim;
    double sum = 0, top = -INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = from; j <= to; j++) {
            double score = 0;
            for (int64_t e = 0; e < dim; e++) score += scale * q[e] * k[j * stride + e];
            if (cap > 0) score = cap * tanh(score / cap);
            if (pass == 0) {
                top = MAX(top, score);
                continue;
            }
            sum += exp(score - top);
            double p = exp(score - top) * (factor ? factor[j] : 1);
            for (int64_t e = 0; e < dim; e++) o[e] = (j == from ? 0 : o[e]) + p * v[j * stride + e];
        }
    for (int64_t e = 0; e < dim; e++) o[e] /= sum;
    return top + log(sum);
}

/* variant 1: the length of rows is known to the kernel */
static void attention_sizes(op_case *c) {
    heads_sizes(c);
    c->attr.heads.window = (int)size_of(c, 'w');
    c->attr.heads.scale = (float)(1 / sqrt((double)size_of(c, 'd')));
    c->attr.heads.seq = c->shape.variant ? (int)size_of(c, 's') : 0;
    c->attr.heads.documents = size_of(c, 'l') > 0;
}
static void attention_values(op_case *c) {
    int64_t seq = size_of(c, 's') ? size_of(c, 's') : size_of(c, 'N'), length = size_of(c, 'l');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        bool fresh = i % seq == 0 || (length && draw_below(length) == 0);
        c->in[1].v[i] = fresh ? (double)i : c->in[1].v[i - 1];
    }
    drop_value(&c->in[2]);
    settle_sinks(c, 3);
}
static void sink_sizes(op_case *c) {
    attention_sizes(c);
    c->attr.heads.sinks = true;
    c->attr.heads.sink_first = 2;
}

/* Ids of a document are consecutive, from anywhere on, or from where those that share a counter are those that a tile has
 * together. Shapes of an odd number of tokens: the heads are a rank's share. */
static void dropped_sizes(op_case *c) {
    attention_sizes(c);
    /* Kernels compare four bytes at a time, and differently from a half on. */
    c->attr.dropout.p = size_of(c, 'd') % 64 ? 0.5f : 0.3f;
    c->attr.dropout.site = 7;
    c->attr.heads.first = size_of(c, 'N') % 2 ? 3 * (int)size_of(c, 'q') : 0;
}
static void dropped_values(op_case *c) {
    double *id = mem_alloc((size_t)c->in[2].count * sizeof *id), *own = c->in[2].v;
    c->in[2].v = NULL;
    attention_values(c);
    for (int64_t i = 0; i < c->in[2].count; i++) {
        int64_t any = draw_below(INT64_C(1) << 40), aligned = any / 16 * 16 + i % 16;
        if (i && c->in[1].v[i] != (double)i)
            id[i] = id[i - 1] + 1;
        else
            id[i] = (double)(draw_below(2) ? aligned : any);
    }
    c->in[2].v = id;
    c->in[2].optional = false;
    free(own);
}
/* Returns the factor of dropout for the probability of a query and a key, as ops.def and attention_drop.h state
 * it. @param query, key their ids */
static double drop_factor(const op_case *c, int64_t head, uint64_t query, uint64_t key) {
    head += c->attr.heads.first;
    double below = floor(c->attr.dropout.p * 256 + 0.5);
    uint32_t word[4],
        ctr[4] = { c->attr.dropout.site | c->layer << 16, (uint32_t)query, (uint32_t)(query >> 32),
                   (uint32_t)(head << 21 | (int64_t)(key >> 4 & 0x1fffff)) };
    philox4x32(c->step.dropout, ctr, 7, word);
    uint32_t byte = word[key % 16 / 4] >> (key % 4 * 8) & 0xff;
    return byte < below ? 0 : 1 / (1 - below / 256);
}
static void drop_factors(const op_case *c, int64_t head, int64_t i, int64_t from, double *factor) {
    for (int64_t j = from; j <= i; j++)
        factor[j] = drop_factor(c, head, (uint64_t)c->in[2].v[i], (uint64_t)c->in[2].v[j]);
}

/* Adds the sink of a head to the denominator of what keys gave. */
static void add_sink(const op_case *c, const op_value *sink, int64_t head, double *o, double *lse) {
    if (!sink->v) return;
    double s = sink->v[c->attr.heads.sink_first + head], all = *lse + log1p(exp(s - *lse));
    for (int64_t e = 0; e < size_of(c, 'd'); e++) o[e] *= exp(*lse - all);
    *lse = all;
}
static void attention_reference(op_case *c) {
    int64_t n = size_of(c, 'N'), cols = size_of(c, 'C'), d = size_of(c, 'd');
    int64_t q = size_of(c, 'q'), kv = size_of(c, 'k'), window = size_of(c, 'w');
    double *factor = c->in[2].v ? mem_alloc((size_t)n * sizeof *factor) : NULL;
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < q; h++) {
            int64_t from = (int64_t)c->in[1].v[i];
            if (window) from = MAX(from, i - window + 1);
            const double *k = c->in[0].v + (q + h / (q / kv)) * d, *v = k + kv * d;
            if (factor) drop_factors(c, h, i, from, factor);
            c->out[1].v[h * n + i] = attend(c->in[0].v + i * cols + h * d, k, v, cols, from, i, c,
                                            factor, c->out[0].v + (i * q + h) * d);
            add_sink(c, &c->in[3], h, c->out[0].v + (i * q + h) * d, &c->out[1].v[h * n + i]);
        }
    free(factor);
}

/* ---- attention to a block of keys: m = keys, w = most keys of a query ------------------------------------ */
enum { BEFORE, QUERIES, KEYS, RANGE, ID, KEY_ID, LSE_BEFORE, SINK };
/* dq is a sum in fp32: with o of a coarser type than v, do (v - o) does not cancel. Its terms are as
 * rounded as the operands: a CPU multiplies probabilities in their type. */
enum { BLOCK_MODES = MODES_UNIFORM | MODE_BF16_F32 };
static void block_sizes(op_case *c) {
    heads_sizes(c);
    c->attr.heads.scale = (float)(1 / sqrt((double)size_of(c, 'd')));
    c->size['M'] = size_of(c, 'm');
    c->size['B'] = 2 * size_of(c, 'k') * size_of(c, 'd');
}
/* Both ends grow; a query of a first block sees a key at least. variant 1: there were blocks before. */
static void block_values(op_case *c) {
    int64_t n = size_of(c, 'N'), keys = size_of(c, 'm'), least = c->shape.variant ? 0 : 1;
    int64_t most = MAX(size_of(c, 'w') ? size_of(c, 'w') : keys, least);
    double *first = c->in[RANGE].v, *end = first + n;
    for (int64_t i = 0; i < n; i++) {
        int64_t before = i ? (int64_t)end[i - 1] : 0, left = i ? (int64_t)first[i - 1] : 0;
        int64_t more = draw_below(2 + 2 * keys / n), later = draw_below(2 + keys / n);
        int64_t e = MIN(keys, MAX(before, least) + more), from = MAX(left, e - most);
        first[i] = (double)MIN(from + later, e - least);
        end[i] = (double)e;
    }
    if (!c->shape.variant) {
        drop_value(&c->in[BEFORE]);
        drop_value(&c->in[LSE_BEFORE]);
    }
    c->in[BEFORE].optional = c->in[LSE_BEFORE].optional = false;
    settle_sinks(c, SINK);
    if (c->attr.dropout.p > 0) {
        for (int64_t i = 0; i < n; i++) c->in[ID].v[i] = (double)draw_below(INT64_C(1) << 40);
        for (int64_t j = 0; j < keys; j++) c->in[KEY_ID].v[j] = (double)(j + (n % 2 ? 1000 : 1024));
        c->in[ID].optional = c->in[KEY_ID].optional = false;
    } else {
        drop_value(&c->in[ID]);
        drop_value(&c->in[KEY_ID]);
    }
}
static void block_dropped_sizes(op_case *c) {
    block_sizes(c);
    c->attr.dropout.p = 0.3f;
    c->attr.dropout.site = 7;
    c->attr.heads.first = 5;
}
/* Returns the factor of a key's probability. */
static double block_factor(const op_case *c, int64_t head, int64_t i, int64_t j) {
    if (!(c->attr.dropout.p > 0)) return 1;
    return drop_factor(c, head, (uint64_t)c->in[ID].v[i], (uint64_t)c->in[KEY_ID].v[j]);
}
static void block_reference(op_case *c) {
    int64_t n = size_of(c, 'N'), keys = size_of(c, 'm'), d = size_of(c, 'd');
    int64_t q = size_of(c, 'q'), kv = size_of(c, 'k'), width = size_of(c, 'B');
    double *factor = mem_alloc((size_t)keys * sizeof *factor),
           *own = mem_alloc((size_t)d * sizeof *own);
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < q; h++) {
            int64_t from = (int64_t)c->in[RANGE].v[i], to = (int64_t)c->in[RANGE].v[n + i] - 1;
            const double *k = c->in[KEYS].v + h / (q / kv) * d;
            double *o = c->out[0].v + (i * q + h) * d, lse = -INFINITY, all;
            for (int64_t j = from; j <= to; j++) factor[j] = block_factor(c, h, i, j);
            if (from <= to)
                lse = attend(c->in[QUERIES].v + (i * q + h) * d, k, k + kv * d, width, from, to, c,
                             factor, own);
            double before = c->in[BEFORE].v ? c->in[LSE_BEFORE].v[h * n + i] : -INFINITY;
            all = MAX(lse, before) +
                  log(exp(lse - MAX(lse, before)) + exp(before - MAX(lse, before)));
            for (int64_t e = 0; e < d; e++) {
                o[e] = from <= to ? own[e] * exp(lse - all) : 0;
                if (c->in[BEFORE].v)
                    o[e] += c->in[BEFORE].v[(i * q + h) * d + e] * exp(before - all);
            }
            c->out[1].v[h * n + i] = all;
            add_sink(c, &c->in[SINK], h, o, &c->out[1].v[h * n + i]);
        }
    free(factor);
    free(own);
}

static void split_sizes(op_case *c) {
    heads_sizes(c);
    c->size['B'] = 2 * size_of(c, 'k') * size_of(c, 'd');
}
static void split_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), o = size_of(c, 'O');
    double *q = c->out[0].v, *kv = c->out[1].v;
    for (int64_t i = 0; i < c->in[0].count; i++)
        if (i % cols < o)
            *q++ = c->in[0].v[i];
        else
            *kv++ = c->in[0].v[i];
}

/* Tokens of each sequence that are in the cache already. variant 1: many */
static int64_t cached_before(const op_case *c) { return c->shape.variant ? 401 : 17; }
static int64_t cached_rows(const op_case *c) { return size_of(c, 'N') + cached_before(c) + 3; }
static void cached_sizes(op_case *c) {
    attention_sizes(c);
    c->attr.heads.seq = 0;
    c->size['P'] = cached_rows(c) * MAX(1, size_of(c, 's'));
    c->size['B'] = 2 * size_of(c, 'k') * size_of(c, 'd');
}
/* Scores that the cap bounds: those of queries and keys of unit variance reach it. */
static void capped_sizes(op_case *c) {
    attention_sizes(c);
    c->attr.heads.cap = 0.7f;
}
static void capped_dropped_sizes(op_case *c) {
    dropped_sizes(c);
    c->attr.heads.cap = 0.7f;
}
static void capped_block_sizes(op_case *c) {
    block_sizes(c);
    c->attr.heads.cap = 0.7f;
}
static void capped_cached_sizes(op_case *c) {
    cached_sizes(c);
    c->attr.heads.cap = 0.7f;
}
static void sink_dropped_sizes(op_case *c) {
    dropped_sizes(c);
    c->attr.heads.sinks = true;
}
static void sink_block_sizes(op_case *c) {
    block_sizes(c);
    c->attr.heads.sinks = true;
    c->attr.heads.sink_first = 3;
}
static void chunk_cached_sizes(op_case *c) {
    cached_sizes(c);
    c->attr.heads.chunk = 7;
}
static void sink_cached_sizes(op_case *c) {
    cached_sizes(c);
    c->attr.heads.sinks = true;
    c->attr.heads.sink_first = 1;
}
static void cached_values(op_case *c) {
    settle_sinks(c, 4);
    int64_t sequences = MAX(1, size_of(c, 's')), n = size_of(c, 'N');
    for (int64_t i = 0; i < n; i++) { /* one sequence, or the next tokens of several */
        int64_t s = i * sequences / n;
        c->in[2].v[i] = (double)(i + cached_before(c) - s * n / sequences);
        c->in[3].v[i] = (double)(s * cached_rows(c));
    }
}
static void cached_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), width = size_of(c, 'B'), d = size_of(c, 'd');
    int64_t q = size_of(c, 'q'), kv = size_of(c, 'k'), window = size_of(c, 'w');
    for (int64_t i = 0; i < size_of(c, 'N'); i++) {
        int64_t first = (int64_t)c->in[3].v[i], p = (int64_t)c->in[2].v[i];
        int64_t from = first + (window ? MAX(0, p - window + 1) : 0);
        if (c->attr.heads.chunk) from = first + p - p % c->attr.heads.chunk;
        p += first;
        for (int64_t e = 0; e < width; e++)
            c->in[1].v[p * width + e] = c->in[0].v[i * cols + q * d + e];
        for (int64_t h = 0; h < q; h++) {
            const double *k = c->in[1].v + h / (q / kv) * d;
            double *o = c->out[0].v + (i * q + h) * d;
            double lse =
                attend(c->in[0].v + i * cols + h * d, k, k + kv * d, width, from, p, c, NULL, o);
            add_sink(c, &c->in[4], h, o, &lse);
        }
    }
}

/* ---- queries by position ---------------------------------------------------------------------------------- */
static void temper_sizes(op_case *c) {
    heads_sizes(c);
    c->attr.heads.temper = 0.3f;
    c->attr.heads.temper_floor = 4;
}
static void temper_values(op_case *c) { fill_below(&c->in[1], 50); }
static void temper_reference(op_case *c) {
    int64_t cols = size_of(c, 'C'), q = size_of(c, 'O');
    for (int64_t i = 0; i < c->out[0].count; i++) {
        double by = 1 + (double)0.3f * log(1 + floor((c->in[1].v[i / cols] + 1) / 4));
        c->out[0].v[i] = c->in[0].v[i] * (i % cols < q ? by : 1);
    }
}

/* ---- scores by distance: columns of ops/alibi.h. Variants: 1, of twelve heads these are the last ----------------- */
static void alibi_sizes(op_case *c) {
    heads_sizes(c);
    int64_t heads = size_of(c, 'q') + 2 * size_of(c, 'k');
    c->attr.heads.first = c->shape.variant ? 12 - (int)MIN(12, size_of(c, 'q')) : 0;
    c->attr.alibi.heads = c->shape.variant ? 12 : (int)size_of(c, 'q');
    c->attr.alibi.max = 6;
    c->attr.heads.scale = 0.125f;
    c->size['W'] = heads * ((size_of(c, 'd') + 4 + 7) / 8 * 8);
}
static void alibi_values(op_case *c) { fill_below(&c->in[1], 3000); }
/* The slopes of n heads: powers of two where n is one, else those of the power below it and then others between. */
static double slope_of(int64_t head, int64_t n) {
    int64_t power = 1;
    while (2 * power <= n) power *= 2;
    if (head < power) return pow(2, -6.0 * (double)(head + 1) / (double)power);
    return pow(2, -3.0 * (double)(2 * (head - power) + 1) / (double)power);
}
static void alibi_reference(op_case *c) {
    int64_t d = size_of(c, 'd'), q = size_of(c, 'q'), k = size_of(c, 'k'), heads = q + 2 * k;
    int64_t wide = size_of(c, 'W') / heads;
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row = i / wide / heads, h = i / wide % heads, at = i % wide, more = at - d;
        double pos = c->in[1].v[row], v = 0;
        if (more < 0) v = c->in[0].v[(row * heads + h) * d + at];
        if (more >= 0 && more < 4 && h < q) {
            float s = (float)(slope_of(h + c->attr.heads.first, c->attr.alibi.heads) / 0.125);
            uint32_t bits;
            memcpy(&bits, &s, sizeof bits);
            bits &= 0xffff0000u;
            float coarse;
            memcpy(&coarse, &bits, sizeof coarse);
            v = (more < 2 ? (double)coarse : (double)s - coarse) * (more % 2 ? 1 : 256);
        }
        if (more >= 0 && more < 4 && h >= q && h < q + k)
            v = more % 2 ? fmod(pos, 256) : floor(pos / 256);
        c->out[0].v[i] = v;
    }
}

/* ---- values of the tokens themselves --------------------------------------------------------------------- */
static void add_values_sizes(op_case *c) {
    int64_t d = size_of(c, 'd'), q = size_of(c, 'q'), k = size_of(c, 'k');
    c->attr.heads.q = (int)q;
    c->attr.heads.kv = (int)k;
    c->attr.heads.dim = (int)d;
    c->size['C'] = (q + 2 * k) * d;
    c->size['B'] = k * d;
    c->size['H'] = k;
    c->size['G'] = MIN(12, size_of(c, 'D'));
}
static void add_values_reference(op_case *c) {
    int64_t d = size_of(c, 'd'), k = size_of(c, 'k'), cols = size_of(c, 'C'),
            width = size_of(c, 'D');
    int64_t channels = size_of(c, 'G'), v = cols - k * d;
    for (int64_t i = 0; i < c->out[0].count; i++) {
        int64_t row = i / cols, at = i % cols - v, head = at / d;
        double z = 0;
        c->out[0].v[i] = c->in[0].v[i];
        if (at < 0) continue;
        for (int64_t e = 0; e < channels; e++)
            z += c->in[2].v[row * width + e] * c->in[3].v[head * channels + e];
        c->out[0].v[i] += 3 / (1 + exp(-z)) * c->in[1].v[row * k * d + at];
    }
}

/* clang-format off */
/* Rows of one document and of several, with their length known and not. */
#define ROWS(rows, seq, q, kv, d, window, ...)                                                     \
    { (rows) * (seq), d, q, kv, window, seq, 0, __VA_ARGS__ },                                     \
    { (rows) * (seq), d, q, kv, window, seq, 9, __VA_ARGS__ },                                     \
    { (rows) * (seq), d, q, kv, window, seq, 0, .variant = 1, __VA_ARGS__ },                       \
    { (rows) * (seq), d, q, kv, window, seq, 9, .variant = 1, __VA_ARGS__ }
#define LONG(rows, seq, q, kv, d, window, length)                                                  \
    { (rows) * (seq), d, q, kv, window, seq, length, .variant = 1, .modes = MODE_BF16 | MODE_F16,  \
      .when = UNLIMITED }

#define QKNORM_ROPE_SPEC(id)                                                                        \
    { .op = id, .letters = "Ndqkt", .sizes = qknorm_rope_sizes, .values = qknorm_rope_values,      \
      .reference = qknorm_rope_reference, .variants = 2,                                           \
      .small = { { 1, 2, 1, 1, 2 }, { 5, 12, 3, 1, 6 }, { 9, 64, 20, 5, 64 }, { 90, 64, 4, 2, 32 },\
                 { 7, 80, 2, 2, 16 }, { 3, 256, 2, 1, 254 }, { 5, 128, 2, 1, 64 } },               \
      .wide = { { 29, 64, 2, 1, 64 }, { 29, 128, 3, 1, 128 }, { 29, 80, 2, 1, 20 },                \
                { 29, 12, 3, 1, 12 }, { 29, 64, 2, 1, 16 }, { 29, 256, 2, 1, 64 },                 \
                /* more heads than the blocks of a fixed grid have at a time */                    \
                { 130, 250, 25, 1, 2, .modes = MODE_BF16, .when = ALWAYS } },                      \
      .wide_tol = { 3e-6, 1e-5 }, .shift = 8 }

const op_spec heads_specs[] = {
    { .op = OP_ROPE, .letters = "Ndqkt", .sizes = rope_sizes, .values = rope_values,
      .reference = rope_reference,
      .small = { { 1, 2, 1, 1, 2 }, { 5, 12, 3, 1, 6 }, { 9, 64, 20, 5, 64 }, { 90, 64, 4, 2, 32 } },
      .wide = { { 29, 64, 2, 1, 64 }, { 29, 128, 3, 1, 128 }, { 29, 80, 2, 1, 20 },
                { 29, 12, 3, 1, 12 }, { 29, 64, 2, 1, 16 } },
      .wide_tol = { 3e-6 }, .shift = 8 },
    QKNORM_ROPE_SPEC(OP_QKNORM_ROPE),
    QKNORM_ROPE_SPEC(OP_QKNORM_ROPE_WEIGHTED),
    { .op = OP_GROUP_HEADS, .letters = "Ndqkp", .sizes = group_sizes, .reference = group_reference,
      .small = { { 1, 2, 1, 1, 1 }, { 5, 3, 4, 2, 2 }, { 9, 16, 12, 6, 3 } },
      .wide = { { 300, 64, 8, 4, 4 }, { 33, 80, 4, 2, 2 } }, .wide_tol = { 1e-9 } },
    { .op = OP_SWAP_ROWS, .letters = "NDij", .sizes = swap_sizes, .reference = swap_reference,
      .small = { { 1, 1, 1, 1 }, { 12, 5, 2, 3 }, { 60, 33, 4, 3 } },
      .wide = { { 240, 128, 4, 2 }, { 96, 37, 2, 6 } }, .wide_tol = { 1e-9 } },
    { .op = OP_ATTENTION, .letters = "Ndqkwsl", .sizes = attention_sizes,
      .values = attention_values, .reference = attention_reference, .private_out = 2, .looser = 2,
      .small = { { 1, 2, 1, 1 }, { 17, 12, 3, 1, .f = 9 }, { 40, 16, 4, 2, 7, .f = 9 },
                 { 70, 64, 2, 2, .f = 9 } },
      .wide = { ROWS(2, 32, 4, 4, 64, 0, .when = ALWAYS), ROWS(3, 64, 6, 2, 64, 0, .when = ALWAYS),
                ROWS(1, 100, 4, 1, 128, 0, .when = ALWAYS), ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS),
                ROWS(2, 64, 4, 4, 64, 0, .when = UNLIMITED),
                ROWS(3, 128, 6, 2, 64, 0, .when = UNLIMITED),
                ROWS(1, 200, 4, 1, 128, 0, .when = UNLIMITED),
                ROWS(2, 96, 2, 2, 32, 17, .when = UNLIMITED),
                /* each document apart; of 60 tokens there are more than slots */
                LONG(2, 2048, 4, 2, 64, 0, 300), LONG(1, 2048, 2, 2, 128, 0, 300),
                LONG(2, 2048, 4, 2, 64, 0, 60), LONG(1, 2048, 2, 2, 128, 0, 60),
                /* rows that are not multiples of 128 */
                LONG(2, 1000, 4, 2, 64, 0, 0), LONG(2, 1000, 4, 2, 64, 0, 300),
                LONG(3, 192, 4, 4, 128, 0, 0), LONG(3, 192, 4, 4, 128, 0, 300),
                LONG(2, 2112, 4, 1, 64, 0, 0), LONG(2, 2112, 4, 1, 64, 0, 300),
                LONG(1, 4096, 8, 2, 128, 512, 0), LONG(1, 4096, 8, 2, 128, 512, 300),
                /* windows: of rows that are multiples of 128 and that are not, of documents past the slots */
                LONG(2, 1024, 4, 4, 64, 100, 0), LONG(2, 1000, 4, 2, 64, 100, 0), LONG(2, 1000, 4, 2, 64, 100, 300),
                LONG(1, 2048, 2, 2, 128, 64, 60), LONG(1, 512, 2, 1, 64, 600, 0),
                /* wide heads */
                LONG(2, 512, 2, 2, 192, 0, 0), LONG(1, 1024, 4, 2, 256, 0, 0), LONG(1, 2048, 2, 1, 256, 0, 300),
                LONG(1, 2048, 2, 2, 192, 0, 300), LONG(1, 1024, 2, 2, 256, 100, 0), LONG(1, 640, 2, 1, 160, 0, 100),
                LONG(1, 2048, 2, 1, 256, 300, 200), LONG(2, 1000, 2, 1, 192, 0, 0),
                LONG(1, 2048, 2, 2, 64, 0, 2048), LONG(1, 2048, 2, 2, 64, 0, 1),
                { 45, 20, 3, 3, 0, 45, 9, .when = ALWAYS }, { 70, 256, 2, 1, 9, 70, 9, .when = ALWAYS } },
      .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 1, 2 } },
    { .op = OP_ATTENTION, .name = "attention with dropout", .letters = "Ndqkwsl",
      .sizes = dropped_sizes, .values = dropped_values, .reference = attention_reference,
      .looser = 2, .cancels = true,
      .small = { { 1, 2, 1, 1 }, { 19, 12, 3, 1, .f = 9 }, { 40, 16, 4, 2, 7, .f = 9 },
                 { 70, 64, 2, 2, .f = 9 }, { 131, 16, 2, 1 } },
      .wide = { ROWS(2, 32, 4, 4, 64, 0, .when = ALWAYS), ROWS(3, 65, 6, 2, 64, 0, .when = ALWAYS),
                ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS), ROWS(1, 140, 2, 1, 96, 0, .when = ALWAYS),
                ROWS(1, 80, 2, 1, 128, 30, .when = ALWAYS),
                ROWS(3, 128, 6, 2, 64, 0, .when = UNLIMITED),
                LONG(2, 1000, 4, 2, 64, 0, 0), LONG(2, 1000, 4, 2, 64, 0, 300),
                LONG(1, 2048, 2, 2, 128, 512, 0), LONG(1, 1000, 2, 1, 192, 0, 300), LONG(1, 600, 2, 2, 256, 100, 0),
                { 70, 256, 2, 1, 9, 70, 9, .when = ALWAYS }, { 70, 192, 2, 1, 0, 70, 9, .when = ALWAYS },
                { 70, 80, 2, 1, 0, 70, 9, .when = ALWAYS }, { 45, 20, 3, 3, 0, 45, 9, .when = ALWAYS } },
      .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 1, 2 } },
    { .op = OP_ATTENTION_BLOCK, .letters = "Ndqkmw", .sizes = block_sizes, .values = block_values,
      .reference = block_reference, .looser = 2, .cancels = true, .variants = 2, .modes = BLOCK_MODES,
      .small = { { 1, 2, 1, 1, 1 }, { 17, 12, 3, 1, 30 }, { 40, 16, 4, 2, 20 }, { 70, 64, 2, 2, 130, 9 },
                 { 131, 16, 2, 1, 70 } },
      .wide = { { 64, 64, 4, 4, 64 }, { 100, 64, 6, 2, 65, 20 }, { 70, 256, 2, 1, 90, 9 },
                { 70, 128, 2, 1, 150 }, { 70, 192, 2, 1, 150 }, { 70, 80, 2, 1, 90, 30 },
                { 260, 256, 2, 1, 200 } },
      .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 1, 2 }, .wide_mixed = 6e-3 },
    { .op = OP_ATTENTION_BLOCK, .name = "attention to a block, with dropout", .letters = "Ndqkmw",
      .sizes = block_dropped_sizes, .values = block_values, .reference = block_reference,
      .looser = 2, .cancels = true, .variants = 2, .modes = BLOCK_MODES,
      .small = { { 5, 4, 2, 1, 40 }, { 17, 12, 3, 1, 30 }, { 70, 64, 2, 2, 130, 9 } },
      .wide = { { 64, 64, 4, 4, 64 }, { 100, 64, 6, 2, 65, 20 }, { 330, 192, 1, 1, 200 }, { 200, 256, 1, 1, 260, 150 } }, .wide_tol = { 1e-5, 4e-5 },
      .wide_half = { 1, 2 }, .wide_mixed = 6e-3 },
    { .op = OP_ATTENTION, .name = "attention with capped scores", .letters = "Ndqkwsl",
      .sizes = capped_sizes, .values = attention_values, .reference = attention_reference, .private_out = 2,
      .looser = 2,
      .small = { { 1, 2, 1, 1 }, { 17, 12, 3, 1, .f = 9 }, { 40, 16, 4, 2, 7, .f = 9 },
                 { 70, 64, 2, 2, .f = 9 } },
      .wide = { ROWS(2, 32, 4, 4, 64, 0, .when = ALWAYS), ROWS(3, 64, 6, 2, 64, 0, .when = ALWAYS),
                ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS), LONG(2, 1000, 4, 2, 64, 0, 300) },
      .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 1, 2 } },
    { .op = OP_ATTENTION, .name = "attention with capped scores and dropout", .letters = "Ndqkwsl",
      .sizes = capped_dropped_sizes, .values = dropped_values, .reference = attention_reference, .looser = 2,
      .small = { { 17, 12, 3, 1, .f = 9 }, { 70, 64, 2, 2, .f = 9 } },
      .wide = { ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS) }, .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 1, 2 } },
    { .op = OP_ATTENTION_BLOCK, .name = "attention to a block, with capped scores", .letters = "Ndqkmw",
      .sizes = capped_block_sizes, .values = block_values, .reference = block_reference,
      .looser = 2, .cancels = true, .variants = 2, .modes = BLOCK_MODES,
      .small = { { 3, 4, 2, 1, 40 }, { 17, 12, 3, 1, 30 }, { 70, 64, 2, 2, 130, 9 } },
      .wide = { { 64, 64, 4, 4, 64 }, { 100, 64, 6, 2, 65, 20 } }, .wide_tol = { 1e-5, 4e-5 },
      .wide_half = { 1, 2 }, .wide_mixed = 6e-3 },
    { .op = OP_ATTENTION_CACHED, .name = "cached attention with capped scores", .letters = "Ndqkws",
      .sizes = capped_cached_sizes, .values = cached_values, .reference = cached_reference, .writes = "cache",
      .small = { { 1, 2, 1, 1 }, { 3, 12, 4, 2 }, { 5, 64, 4, 4, 6 }, { 4, 96, 4, 1, 0, 2 } },
      .wide = { { 1, 64, 4, 2 }, { 41, 64, 4, 2 }, { 41, 64, 4, 2, 11 }, { 2, 128, 8, 2, .variant = 1 } },
      .wide_tol = { 1e-5 } },
    { .op = OP_ATTENTION, .name = "attention with sinks", .letters = "Ndqkwsl",
      .sizes = sink_sizes, .values = attention_values, .reference = attention_reference, .looser = 2, .cancels = true,
      .small = { { 1, 2, 1, 1 }, { 17, 12, 3, 1, .f = 9 }, { 40, 16, 4, 2, 7, .f = 9 }, { 70, 64, 2, 2, .f = 9 } },
      .wide = { ROWS(2, 32, 4, 4, 64, 0, .when = ALWAYS), ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS),
                LONG(2, 1000, 4, 2, 64, 0, 300), LONG(1, 2048, 2, 2, 128, 512, 0) },
      .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 2, 2 } },
    { .op = OP_ATTENTION, .name = "attention with sinks and dropout", .letters = "Ndqkwsl",
      .sizes = sink_dropped_sizes, .values = dropped_values, .reference = attention_reference, .looser = 2, .cancels = true,
      .small = { { 17, 12, 3, 1, .f = 9 }, { 70, 64, 2, 2, .f = 9 } },
      .wide = { ROWS(2, 48, 2, 2, 32, 17, .when = ALWAYS) }, .wide_tol = { 1e-5, 4e-5 }, .wide_half = { 2, 2 } },
    { .op = OP_ATTENTION_BLOCK, .name = "attention to a block, with sinks", .letters = "Ndqkmw",
      .sizes = sink_block_sizes, .values = block_values, .reference = block_reference,
      .looser = 2, .cancels = true, .variants = 2, .modes = BLOCK_MODES,
      .small = { { 3, 4, 2, 1, 40 }, { 17, 12, 3, 1, 30 }, { 70, 64, 2, 2, 130, 9 } },
      .wide = { { 64, 64, 4, 4, 64 }, { 100, 64, 6, 2, 65, 20 } }, .wide_tol = { 1e-5, 4e-5 },
      .wide_half = { 2, 2 }, .wide_mixed = 6e-3 },
    { .op = OP_ATTENTION_CACHED, .name = "cached attention with sinks", .letters = "Ndqkws",
      .sizes = sink_cached_sizes, .values = cached_values, .reference = cached_reference, .writes = "cache",
      .small = { { 1, 2, 1, 1 }, { 3, 12, 4, 2 }, { 5, 64, 4, 4, 6 }, { 20, 16, 4, 2 }, { 2, 72, 8, 1, 0, 2 } },
      .wide = { { 1, 64, 4, 2 }, { 41, 64, 4, 2 }, { 41, 64, 4, 2, 11 }, { 2, 128, 8, 2, .variant = 1 } },
      .wide_tol = { 1e-5 }, .wide_half = { 2 } },
    { .op = OP_ATTENTION_CACHED, .name = "cached attention to chunks", .letters = "Ndqkws",
      .sizes = chunk_cached_sizes, .values = cached_values, .reference = cached_reference, .writes = "cache",
      .small = { { 1, 2, 1, 1 }, { 3, 12, 4, 2 }, { 5, 64, 4, 4 }, { 20, 16, 4, 2 }, { 4, 40, 3, 1, 0, 2 } },
      .wide = { { 1, 64, 4, 2 }, { 41, 64, 4, 2 } }, .wide_tol = { 1e-5 } },
    { .op = OP_SCALE_QUERIES, .letters = "Ndqk", .sizes = temper_sizes, .values = temper_values,
      .reference = temper_reference,
      .small = { { 1, 2, 1, 1 }, { 5, 3, 4, 2 }, { 9, 64, 6, 3 }, { 40, 16, 40, 8 } },
      .wide = { { 300, 64, 8, 4 }, { 33, 80, 4, 2 } }, .wide_tol = { 3e-6 }, .shift = 8 },
    { .op = OP_ALIBI, .letters = "Ndqk", .sizes = alibi_sizes, .values = alibi_values,
      .reference = alibi_reference, .variants = 2,
      .small = { { 1, 2, 1, 1 }, { 5, 3, 4, 2 }, { 9, 64, 6, 3 }, { 40, 16, 12, 4 } },
      .wide = { { 300, 64, 8, 4 }, { 33, 80, 4, 2 } }, .wide_tol = { 3e-6 } },
    { .op = OP_SPLIT_HEADS, .letters = "Ndqk", .sizes = split_sizes, .reference = split_reference,
      .small = { { 1, 2, 1, 1 }, { 5, 3, 4, 2 }, { 9, 64, 6, 3 } },
      .wide = { { 300, 64, 8, 4 }, { 33, 80, 4, 2 } }, .wide_tol = { 1e-9 } },
    { .op = OP_ADD_VALUES, .letters = "NdqkD", .sizes = add_values_sizes, .reference = add_values_reference,
      .small = { { 1, 2, 1, 1, 3 }, { 5, 3, 4, 2, 20 }, { 9, 64, 6, 3, 40 }, { 70, 16, 2, 2, 32 } },
      .wide = { { 300, 64, 8, 4, 64 }, { 33, 80, 4, 2, 36 }, { 4000, 128, 6, 6, 768 } }, .wide_tol = { 3e-6, 1e-5 },
      .shift = 8 },
    { .op = OP_ATTENTION_CACHED, .letters = "Ndqkws", .sizes = cached_sizes,
      .values = cached_values, .reference = cached_reference, .writes = "cache",
      .small = { { 1, 2, 1, 1 }, { 3, 12, 4, 2 }, { 5, 64, 4, 4, 6 }, { 3, 12, 4, 2, 0, 3 }, { 8, 16, 2, 2, 6, 4 },
                 { 1, 64, 8, 1, .variant = 1 }, { 2, 128, 3, 1 }, { 6, 72, 8, 2, 5, 3 }, { 12, 256, 6, 2 },
                 { 32, 40, 4, 1, 9, 8 } },
      .wide = { { 1, 64, 4, 2 }, { 41, 64, 4, 2 }, { 1, 64, 4, 2, 11 }, { 41, 64, 4, 2, 11 }, { 8, 64, 4, 2, 0, 8 },
                { 40, 64, 4, 2, 11, 4 }, { 1, 128, 8, 2, .variant = 1 }, { 1, 64, 3, 3, .variant = 1 },
                { 8, 256, 4, 1, 300, 4, .variant = 1 }, { 32, 64, 6, 2, 0, 8, .variant = 1 },
                { 32, 64, 12, 12, .variant = 1 } },
      .wide_tol = { 1e-5 } },
    { 0 },
};
