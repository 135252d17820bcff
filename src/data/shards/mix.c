/* Which source of a mixture comes when.
 *
 * Sources take turns in the proportion of whole numbers, their counts. The first source against all the
 * others is a line of slope c/B on a grid, c its count and B the sum of all: of the first p
 * positions it has floor(p c / B), and position p is its own when that grows from p to p + 1. What
 * it leaves goes, renumbered, to the second source against the rest, and so on. So source, number and
 * the way back are a division for each source, every round of B positions is exact, and nothing is
 * stored.
 *
 * When a source has been through its epochs a new span begins without it, and where a phase of the mix begins, one with
 * other counts. There are at most as many spans as sources and phases, found once. */
#include "shards/data_internal.h"

#include <math.h>
#include <stdlib.h>

__extension__ typedef unsigned __int128 u128;

typedef struct mix_span {
    int64_t begin;        /* position */
    const int64_t *count; /* [sources] of its phase; 0: not in it */
    int64_t *before;      /* [sources] windows of each source up to there */
    int64_t
        *left; /* [sources] sum of the counts of the sources still in, this one on; 0: it left */
} mix_span;

struct mix {
    int sources, spans, phases;
    int64_t *count;       /* [phases, sources] */
    const int64_t *begin; /* [phases] where each begins, at the latest; owned */
    int64_t *most;        /* [sources] windows until it leaves; INT64_MAX: never */
    mix_span *span;
    int64_t total;
};

static int64_t scale_down(int64_t p, int64_t c, int64_t b) {
    return (int64_t)((u128)(uint64_t)p * (uint64_t)c / (uint64_t)b);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* Weights as whole numbers: exact when they have up to nine decimals, else rounded to nine. */
static void count_by_weight(const double *weight, int n, int64_t *count) {
    double sum = 0, unit = 1;
    for (int i = 0; i < n; i++) sum += weight[i];
    bool whole = false;
    for (int decimals = 0; decimals <= 9 && !whole; decimals++, unit *= whole ? 1 : 10) {
        whole = true;
        for (int i = 0; i < n; i++) {
            double x = weight[i] * unit;
            if (x == 0) continue;
            whole = whole && x >= 1 && fabs(x - round(x)) < 1e-6 && sum * unit < 1e15;
        }
    }
    if (!whole) unit = 1e9 / sum;
    for (int i = 0; i < n; i++) count[i] = weight[i] > 0 ? MAX(1, llround(weight[i] * unit)) : 0;
}

/* Sets the counts of one phase. @param weight [sources]. */
static err set_counts(mix *m, int phase, const mix_source *sources, const double *weight,
                      const int64_t *windows) {
    int64_t *count = m->count + (size_t)phase * (size_t)m->sources;
    int weighted = 0;
    for (int i = 0; i < m->sources; i++) {
        if (!(weight[i] >= 0) || !isfinite(weight[i]))
            return ERR("source %s: a weight of %g", sources[i].name, weight[i]);
        weighted += weight[i] > 0;
    }
    if (phase == 0 && weighted && weighted < m->sources)
        return err_hint(ERR("some sources of the mix have a weight and some have none"),
                        "give every source a weight, or none of them for a mix by size");
    if (phase > 0 && !weighted)
        return ERR("phase %d of the mix has none of the sources that are there", phase);
    if (weighted)
        count_by_weight(weight, m->sources, count);
    else
        for (int i = 0; i < m->sources; i++) count[i] = windows[i];
    int64_t common = 0;
    for (int i = 0; i < m->sources; i++) common = gcd(count[i], common);
    for (int i = 0; i < m->sources; i++) count[i] /= common;
    return OK;
}

static err set_all_counts(mix *m, const mix_source *sources, const int64_t *windows) {
    double *weight = mem_alloc((size_t)m->sources * sizeof *weight);
    err e = OK;
    for (int phase = 0; phase < m->phases && !e; phase++) {
        for (int i = 0; i < m->sources; i++)
            weight[i] = phase ? sources[i].phase_weights[phase - 1] : sources[i].weight;
        e = set_counts(m, phase, sources, weight, windows);
    }
    free(weight);
    return e;
}

/* ---- inside a span, positions counted from its begin ---------------------------------------- */

static mix_turn span_at(const mix *m, const mix_span *f, int64_t p) {
    for (int i = 0; i < m->sources; i++) {
        if (!f->left[i]) continue;
        int64_t number = scale_down(p, f->count[i], f->left[i]);
        if (scale_down(p + 1, f->count[i], f->left[i]) > number)
            return (mix_turn){ i, f->before[i] + number };
        p -= number;
    }
    BUG_IF("the last source takes what is left");
    return (mix_turn){ 0 };
}

static int64_t span_count(const mix *m, const mix_span *f, int source, int64_t p) {
    for (int i = 0; i < source; i++)
        if (f->left[i]) p -= scale_down(p, f->count[i], f->left[i]);
    return f->before[source] +
           (f->left[source] ? scale_down(p, f->count[source], f->left[source]) : 0);
}

/* Beyond every run, and far from overflow however many spans are added up. */
static const int64_t FAR = (int64_t)1 << 52;

/* @return the position of the source's window `number`, counted from the span's begin. */
static int64_t span_find(const mix *m, const mix_span *f, int source, int64_t number) {
    u128 b = (u128)(uint64_t)f->left[source], c = (u128)(uint64_t)f->count[source];
    u128 p = ((u128)(uint64_t)(number + 1) * b + c - 1) / c - 1;
    for (int i = source - 1; i >= 0; i--)
        if (f->left[i]) p = p * (uint64_t)f->left[i] / (uint64_t)(f->left[i] - f->count[i]);
    return p > (u128)FAR ? FAR : (int64_t)p;
}

/* ---- spans ---------------------------------------------------------------------------------- */

static void set_left(const mix *m, mix_span *f) {
    int64_t sum = 0;
    for (int i = m->sources - 1; i >= 0; i--) {
        bool in = f->before[i] < m->most[i] && f->count[i] > 0;
        sum += in ? f->count[i] : 0;
        f->left[i] = in ? sum : 0;
    }
}

static bool any_left(const mix *m, const mix_span *f) {
    for (int i = 0; i < m->sources; i++)
        if (f->left[i]) return true;
    return false;
}

/* Enters the phase that a span belongs to; one whose sources have all left ends where the next begins. */
static void enter_phase(mix *m, mix_span *f, int *phase) {
    for (;; ++*phase) {
        bool later = *phase + 1 < m->phases;
        if (later && m->begin[*phase + 1] <= f->begin) continue;
        f->count = m->count + (size_t)*phase * (size_t)m->sources;
        set_left(m, f);
        if (any_left(m, f) || !later) return;
    }
}

/* @return the position, from the span's begin, after which the first source leaves. */
static int64_t span_length(const mix *m, const mix_span *f) {
    int64_t length = INT64_MAX;
    for (int i = 0; i < m->sources; i++)
        if (f->left[i] && m->most[i] < INT64_MAX)
            length = MIN(length, span_find(m, f, i, m->most[i] - f->before[i] - 1) + 1);
    return length;
}

static void make_phases(mix *m) {
    m->span = mem_alloc((size_t)(m->sources + m->phases + 1) * sizeof *m->span);
    m->total = INT64_MAX;
    int phase = 0;
    for (;;) {
        mix_span *f = &m->span[m->spans];
        f->left = mem_alloc((size_t)m->sources * sizeof *f->left);
        if (m->spans == 0) f->before = mem_alloc((size_t)m->sources * sizeof *f->before);
        enter_phase(m, f, &phase);
        m->spans++;
        if (!any_left(m, f)) { /* everything has been read: this span is only the end */
            m->total = f->begin;
            return;
        }
        int64_t length = span_length(m, f);
        if (phase + 1 < m->phases) length = MIN(length, m->begin[phase + 1] - f->begin);
        if (length == INT64_MAX) return;
        f[1].begin = f->begin + length;
        f[1].before = mem_alloc((size_t)m->sources * sizeof *f->before);
        for (int i = 0; i < m->sources; i++) f[1].before[i] = span_count(m, f, i, length);
    }
}

static const mix_span *span_with(const mix *m, int64_t position) {
    int i = m->spans - 1;
    while (m->span[i].begin > position) i--;
    return &m->span[i];
}

/* ---- the whole ------------------------------------------------------------------------------- */

err mix_new(const mix_source *sources, int n, const int64_t *windows, int phases,
            const int64_t *begin, mix **out) {
    BUG_IF(n < 1);
    mix *m = mem_alloc(sizeof *m);
    m->sources = n;
    m->phases = phases + 1;
    m->count = mem_alloc((size_t)n * (size_t)m->phases * sizeof *m->count);
    int64_t *from = mem_alloc((size_t)m->phases * sizeof *from);
    for (int i = 0; i < phases; i++) from[i + 1] = begin[i];
    m->begin = from;
    m->most = mem_alloc((size_t)n * sizeof *m->most);
    err e = OK;
    for (int i = 0; i < n; i++) {
        double most = sources[i].epochs * (double)windows[i];
        m->most[i] = sources[i].epochs > 0 && most < 1e18 ? MAX(1, (int64_t)most) : INT64_MAX;
    }
    TRY_CLEAN(set_all_counts(m, sources, windows));
    make_phases(m);
    *out = m;
    m = NULL;
cleanup:
    mix_free(m);
    return e;
}

int64_t mix_total(const mix *m) { return m->total; }

mix_turn mix_at(const mix *m, int64_t position) {
    BUG_IF(position < 0 || position >= m->total);
    const mix_span *f = span_with(m, position);
    return span_at(m, f, position - f->begin);
}

int64_t mix_count(const mix *m, int source, int64_t positions) {
    const mix_span *f = span_with(m, positions);
    return span_count(m, f, source, positions - f->begin);
}

double mix_share(const mix *m, int source, int64_t position) {
    const mix_span *f = span_with(m, position);
    int64_t all = 0;
    for (int i = 0; i < m->sources; i++) all = MAX(all, f->left[i]);
    return f->left[source] ? (double)f->count[source] / (double)all : 0;
}

int64_t mix_most(const mix *m, int source) { return m->most[source]; }

void mix_free(mix *m) {
    if (!m) return;
    for (int i = 0; i < m->spans; i++) {
        free(m->span[i].before);
        free(m->span[i].left);
    }
    free(m->span);
    free(m->count);
    free((void *)(uintptr_t)m->begin);
    free(m->most);
    free(m);
}
