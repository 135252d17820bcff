/* Which part of a mixture comes when.
 *
 * Parts take turns in the proportion of whole numbers, their counts. The first part against all the
 * others is a line of slope c/B on a grid, c its count and B the sum of all: of the first p
 * positions it has floor(p c / B), and position p is its own when that grows from p to p + 1. What
 * it leaves goes, renumbered, to the second part against the rest, and so on. So part, number and
 * the way back are a division for each part, every round of B positions is exact, and nothing is
 * stored.
 *
 * When a part has been through its epochs a new phase begins without it, and where a stage of the mix begins, one with
 * other counts. There are at most as many phases as parts and stages, found once. */
#include "shards/data_internal.h"

#include <math.h>
#include <stdlib.h>

__extension__ typedef unsigned __int128 u128;

typedef struct mix_phase {
    int64_t begin;        /* position */
    const int64_t *count; /* [parts] of its stage; 0: not in it */
    int64_t *before;      /* [parts] windows of each part up to there */
    int64_t *left; /* [parts] sum of the counts of the parts still in, this one on; 0: it left */
} mix_phase;

struct mix {
    int parts, phases, stages;
    int64_t *count;       /* [stages, parts] */
    const int64_t *begin; /* [stages] where each begins, at the latest; owned */
    int64_t *most;        /* [parts] windows until it leaves; INT64_MAX: never */
    mix_phase *phase;
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

/* The counts of one stage. @param weight [parts]. */
static err set_counts(mix *m, int stage, const data_part *parts, const double *weight,
                      const int64_t *windows) {
    int64_t *count = m->count + (size_t)stage * (size_t)m->parts;
    int weighted = 0;
    for (int i = 0; i < m->parts; i++) {
        if (!(weight[i] >= 0) || !isfinite(weight[i]))
            return ERR("source %s: a weight of %g", parts[i].name, weight[i]);
        weighted += weight[i] > 0;
    }
    if (stage == 0 && weighted && weighted < m->parts)
        return err_hint(ERR("some sources of the mix have a weight and some have none"),
                        "give every source a weight, or none of them for a mix by size");
    if (stage > 0 && !weighted)
        return ERR("stage %d of the mix has none of the sources that are there", stage);
    if (weighted)
        count_by_weight(weight, m->parts, count);
    else
        for (int i = 0; i < m->parts; i++) count[i] = windows[i];
    int64_t common = 0;
    for (int i = 0; i < m->parts; i++) common = gcd(count[i], common);
    for (int i = 0; i < m->parts; i++) count[i] /= common;
    return OK;
}

static err set_all_counts(mix *m, const data_part *parts, const int64_t *windows) {
    double *weight = mem_alloc((size_t)m->parts * sizeof *weight);
    err e = OK;
    for (int stage = 0; stage < m->stages && !e; stage++) {
        for (int i = 0; i < m->parts; i++)
            weight[i] = stage ? parts[i].stage_weights[stage - 1] : parts[i].weight;
        e = set_counts(m, stage, parts, weight, windows);
    }
    free(weight);
    return e;
}

/* ---- inside a phase, positions counted from its begin ---------------------------------------- */

static mix_turn phase_at(const mix *m, const mix_phase *f, int64_t p) {
    for (int i = 0; i < m->parts; i++) {
        if (!f->left[i]) continue;
        int64_t number = scale_down(p, f->count[i], f->left[i]);
        if (scale_down(p + 1, f->count[i], f->left[i]) > number)
            return (mix_turn){ i, f->before[i] + number };
        p -= number;
    }
    BUG_IF("the last part takes what is left");
    return (mix_turn){ 0 };
}

static int64_t phase_count(const mix *m, const mix_phase *f, int part, int64_t p) {
    for (int i = 0; i < part; i++)
        if (f->left[i]) p -= scale_down(p, f->count[i], f->left[i]);
    return f->before[part] + (f->left[part] ? scale_down(p, f->count[part], f->left[part]) : 0);
}

/* Beyond every run, and far from overflow however many phases are added up. */
static const int64_t FAR = (int64_t)1 << 52;

/* @return the position of the part's window `number`, counted from the phase's begin. */
static int64_t phase_find(const mix *m, const mix_phase *f, int part, int64_t number) {
    u128 b = (u128)(uint64_t)f->left[part], c = (u128)(uint64_t)f->count[part];
    u128 p = ((u128)(uint64_t)(number + 1) * b + c - 1) / c - 1;
    for (int i = part - 1; i >= 0; i--)
        if (f->left[i]) p = p * (uint64_t)f->left[i] / (uint64_t)(f->left[i] - f->count[i]);
    return p > (u128)FAR ? FAR : (int64_t)p;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void set_left(const mix *m, mix_phase *f) {
    int64_t sum = 0;
    for (int i = m->parts - 1; i >= 0; i--) {
        bool in = f->before[i] < m->most[i] && f->count[i] > 0;
        sum += in ? f->count[i] : 0;
        f->left[i] = in ? sum : 0;
    }
}

static bool any_left(const mix *m, const mix_phase *f) {
    for (int i = 0; i < m->parts; i++)
        if (f->left[i]) return true;
    return false;
}

/* Enters the stage that a phase belongs to; one whose sources have all left ends where the next begins. */
static void enter_stage(mix *m, mix_phase *f, int *stage) {
    for (;; ++*stage) {
        bool later = *stage + 1 < m->stages;
        if (later && m->begin[*stage + 1] <= f->begin) continue;
        f->count = m->count + (size_t)*stage * (size_t)m->parts;
        set_left(m, f);
        if (any_left(m, f) || !later) return;
    }
}

/* @return the position, from the phase's begin, after which the first part leaves. */
static int64_t phase_length(const mix *m, const mix_phase *f) {
    int64_t length = INT64_MAX;
    for (int i = 0; i < m->parts; i++)
        if (f->left[i] && m->most[i] < INT64_MAX)
            length = MIN(length, phase_find(m, f, i, m->most[i] - f->before[i] - 1) + 1);
    return length;
}

static void make_phases(mix *m) {
    m->phase = mem_alloc((size_t)(m->parts + m->stages + 1) * sizeof *m->phase);
    m->total = INT64_MAX;
    int stage = 0;
    for (;;) {
        mix_phase *f = &m->phase[m->phases];
        f->left = mem_alloc((size_t)m->parts * sizeof *f->left);
        if (m->phases == 0) f->before = mem_alloc((size_t)m->parts * sizeof *f->before);
        enter_stage(m, f, &stage);
        m->phases++;
        if (!any_left(m, f)) { /* everything has been read: this phase is only the end */
            m->total = f->begin;
            return;
        }
        int64_t length = phase_length(m, f);
        if (stage + 1 < m->stages) length = MIN(length, m->begin[stage + 1] - f->begin);
        if (length == INT64_MAX) return;
        f[1].begin = f->begin + length;
        f[1].before = mem_alloc((size_t)m->parts * sizeof *f->before);
        for (int i = 0; i < m->parts; i++) f[1].before[i] = phase_count(m, f, i, length);
    }
}

static const mix_phase *phase_of(const mix *m, int64_t position) {
    int i = m->phases - 1;
    while (m->phase[i].begin > position) i--;
    return &m->phase[i];
}

/* ---- the whole ------------------------------------------------------------------------------- */

err mix_new(const data_part *parts, int n, const int64_t *windows, int stages, const int64_t *begin,
            mix **out) {
    BUG_IF(n < 1);
    mix *m = mem_alloc(sizeof *m);
    m->parts = n;
    m->stages = stages + 1;
    m->count = mem_alloc((size_t)n * (size_t)m->stages * sizeof *m->count);
    int64_t *from = mem_alloc((size_t)m->stages * sizeof *from);
    for (int i = 0; i < stages; i++) from[i + 1] = begin[i];
    m->begin = from;
    m->most = mem_alloc((size_t)n * sizeof *m->most);
    err e = OK;
    for (int i = 0; i < n; i++) {
        double most = parts[i].epochs * (double)windows[i];
        m->most[i] = parts[i].epochs > 0 && most < 1e18 ? MAX(1, (int64_t)most) : INT64_MAX;
    }
    TRY_CLEAN(set_all_counts(m, parts, windows));
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
    const mix_phase *f = phase_of(m, position);
    return phase_at(m, f, position - f->begin);
}

int64_t mix_count(const mix *m, int part, int64_t positions) {
    const mix_phase *f = phase_of(m, positions);
    return phase_count(m, f, part, positions - f->begin);
}

double mix_share(const mix *m, int part, int64_t position) {
    const mix_phase *f = phase_of(m, position);
    int64_t all = 0;
    for (int i = 0; i < m->parts; i++) all = MAX(all, f->left[i]);
    return f->left[part] ? (double)f->count[part] / (double)all : 0;
}

int64_t mix_most(const mix *m, int part) { return m->most[part]; }

void mix_free(mix *m) {
    if (!m) return;
    for (int i = 0; i < m->phases; i++) {
        free(m->phase[i].before);
        free(m->phase[i].left);
    }
    free(m->phase);
    free(m->count);
    free((void *)(uintptr_t)m->begin);
    free(m->most);
    free(m);
}
