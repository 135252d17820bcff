/* A scaling law from finished runs: L = E + A / N^alpha + B / D^beta.
 *
 * For given exponents the law is linear in E, A and B, so only (alpha, beta) is searched: a grid that
 * narrows around its best cell, and at each point a weighted least-squares fit with E, A, B >= 0. Weights
 * are 1 / L^2, which makes residuals relative (Chinchilla fits log L), times Huber's, by iteration. It
 * needs no initial values, and cannot diverge. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one fit -------------------------------------------------------------------------------- */
enum { TERMS = 3, ITERATIONS = 12, GRID = 7, NARROWINGS = 24 };
static const double huber_delta = 1e-3;

typedef struct samples {
    const fit_run *runs;
    const int *pick; /* [n] which run each sample is */
    int n;
} samples;

/* Solves the weighted normal equations for the terms in `use`. @return false when they are singular. */
static bool solve_terms(double m[TERMS][TERMS + 1], unsigned use, double x[TERMS]) {
    double a[TERMS][TERMS + 1];
    int at[TERMS], n = 0;
    for (int i = 0; i < TERMS; i++)
        if (use >> i & 1) at[n++] = i;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) a[i][k] = m[at[i]][at[k]];
        a[i][n] = m[at[i]][TERMS];
    }
    for (int i = 0; i < n; i++) { /* positive definite: no pivoting */
        if (!(a[i][i] > 1e-14 * m[at[i]][at[i]])) return false;
        for (int r = 0; r < n; r++) {
            double f = r == i ? 0 : a[r][i] / a[i][i];
            for (int k = i; k <= n && r != i; k++) a[r][k] -= f * a[i][k];
        }
    }
    for (int i = 0; i < TERMS; i++) x[i] = 0;
    for (int i = 0; i < n; i++) x[at[i]] = a[i][n] / a[i][i];
    return true;
}

/* Non-negative least squares of three terms: the best of the subsets whose solution is not negative. */
static bool solve_non_negative(double m[TERMS][TERMS + 1], double x[TERMS]) {
    double best = INFINITY;
    for (unsigned use = 1; use < 1u << TERMS; use++) {
        double y[TERMS], value = 0;
        if (!solve_terms(m, use, y)) continue;
        bool negative = false;
        for (int i = 0; i < TERMS; i++) {
            negative = negative || y[i] < 0;
            value -= y[i] * m[i][TERMS]; /* x'Mx - 2x'v = -x'v at the solution */
        }
        if (negative || !(value < best)) continue;
        best = value;
        memcpy(x, y, sizeof y);
    }
    return isfinite(best);
}

static void terms_of(const fit_run *r, double alpha, double beta, double f[TERMS]) {
    f[0] = 1;
    f[1] = pow(r->params, -alpha);
    f[2] = pow(r->tokens, -beta);
}

static double huber_loss(double r) {
    double a = fabs(r);
    return a <= huber_delta ? a * a / 2 : huber_delta * (a - huber_delta / 2);
}

/* Finds the best E, A, B for these exponents. @return the loss; INFINITY: none. */
static double fit_linear(const samples *s, double alpha, double beta, double x[TERMS]) {
    double loss = INFINITY;
    for (int it = 0; it < ITERATIONS; it++) {
        double m[TERMS][TERMS + 1] = { { 0 } };
        for (int i = 0; i < s->n; i++) {
            const fit_run *r = &s->runs[s->pick[i]];
            double f[TERMS], y = 0;
            terms_of(r, alpha, beta, f);
            for (int k = 0; k < TERMS && it; k++) y += x[k] * f[k];
            double residual = it ? fabs(y / r->loss - 1) : 0;
            double w = (residual <= huber_delta ? 1 : huber_delta / residual) / (r->loss * r->loss);
            for (int a = 0; a < TERMS; a++) {
                for (int b = 0; b < TERMS; b++) m[a][b] += w * f[a] * f[b];
                m[a][TERMS] += w * f[a] * r->loss;
            }
        }
        if (!solve_non_negative(m, x)) return INFINITY;
    }
    loss = 0;
    for (int i = 0; i < s->n; i++) {
        const fit_run *r = &s->runs[s->pick[i]];
        double f[TERMS];
        terms_of(r, alpha, beta, f);
        loss += huber_loss((x[0] * f[0] + x[1] * f[1] + x[2] * f[2]) / r->loss - 1);
    }
    return loss;
}

static bool fit_once(const samples *s, scaling_law *out) {
    double low[2] = { 0.02, 0.02 }, high[2] = { 1.2, 1.2 }, best = INFINITY, at[2] = { 0 };
    double x[TERMS] = { 0 };
    for (int round = 0; round < NARROWINGS; round++) {
        for (int i = 0; i < GRID * GRID; i++) {
            double alpha = low[0] + (high[0] - low[0]) * (i % GRID) / (GRID - 1);
            double beta = low[1] + (high[1] - low[1]) * (i / GRID) / (GRID - 1), y[TERMS];
            double loss = fit_linear(s, alpha, beta, y);
            if (!(loss < best)) continue;
            best = loss;
            at[0] = alpha;
            at[1] = beta;
            memcpy(x, y, sizeof y);
        }
        if (!isfinite(best)) return false;
        for (int k = 0; k < 2; k++) {
            double half = (high[k] - low[k]) * 0.3;
            low[k] = fmax(0.01, at[k] - half);
            high[k] = at[k] + half;
        }
    }
    *out = (scaling_law){ .name = "fit",
                          .title = "fit to runs",
                          .source = "these runs",
                          .surface = SURFACE_SUM,
                          .e = x[0],
                          .a = x[1],
                          .alpha = at[0],
                          .b = x[2],
                          .beta = at[1] };
    return x[1] > 0 && x[2] > 0;
}

/* ---- bands ---------------------------------------------------------------------------------- */
static fit_band band_of(double *v, int n) {
    if (!n) return (fit_band){ NAN, NAN };
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    return (fit_band){ v[(int)(0.1 * (n - 1) + 0.5)], v[(int)(0.9 * (n - 1) + 0.5)] };
}

static void set_bands(law_fit *f) {
    double *v = mem_alloc(sizeof *v * (size_t)MAX(f->n_samples, 1));
    const size_t member[] = { offsetof(scaling_law, e), offsetof(scaling_law, a),
                              offsetof(scaling_law, alpha), offsetof(scaling_law, b),
                              offsetof(scaling_law, beta) };
    fit_band *band[] = { &f->e, &f->a, &f->alpha, &f->b, &f->beta };
    for (size_t k = 0; k < COUNT_OF(member); k++) {
        for (int i = 0; i < f->n_samples; i++)
            v[i] = *(const double *)((const char *)&f->samples[i] + member[k]);
        *band[k] = band_of(v, f->n_samples);
    }
    for (int i = 0; i < f->n_samples; i++)
        v[i] = f->samples[i].beta / (f->samples[i].alpha + f->samples[i].beta);
    f->exponent = band_of(v, f->n_samples);
    free(v);
}

fit_band law_fit_loss(const law_fit *f, double params, double tokens) {
    double *v = mem_alloc(sizeof *v * (size_t)MAX(f->n_samples, 1));
    for (int i = 0; i < f->n_samples; i++)
        v[i] = law_loss(&f->samples[i], params, tokens, INFINITY);
    fit_band b = band_of(v, f->n_samples);
    free(v);
    return b;
}

/* ---- the whole ------------------------------------------------------------------------------ */
static int count_distinct(const fit_run *runs, int n, bool params) {
    int distinct = 0;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++) {
            double ratio =
                params ? runs[i].params / runs[k].params : runs[i].tokens / runs[k].tokens;
            seen = seen || fabs(log(ratio)) < 0.01;
        }
        distinct += !seen;
    }
    return distinct;
}

static err check_fit_runs(const fit_run *runs, int n) {
    enum { FEWEST = 5 };
    int sizes = count_distinct(runs, n, true), lengths = count_distinct(runs, n, false);
    if (n >= FEWEST && sizes >= 3 && lengths >= 3) return OK;
    return err_hint(ERR("%d runs of %d sizes and %d lengths do not determine a law with five "
                        "constants; expected at least %d runs, 3 sizes and 3 lengths",
                        n, sizes, lengths, FEWEST),
                    "train each of three sizes on two or three different numbers of tokens");
}

err law_fit_runs(const fit_run *runs, int n, int resamplings, uint64_t seed, law_fit *out) {
    *out = (law_fit){ 0 };
    TRY(check_fit_runs(runs, n));
    int *pick = mem_alloc(sizeof *pick * (size_t)n);
    for (int i = 0; i < n; i++) pick[i] = i;
    samples s = { runs, pick, n };
    if (!fit_once(&s, &out->law)) {
        free(pick);
        return err_hint(ERR("the losses of these runs do not fall with both parameters and tokens"),
                        "leave runs out that did not converge, or that were stopped early");
    }
    for (int i = 0; i < n; i++)
        out->error += pow(
            law_loss(&out->law, runs[i].params, runs[i].tokens, INFINITY) / runs[i].loss - 1, 2);
    out->error = sqrt(out->error / n);
    out->samples = mem_alloc(sizeof *out->samples * (size_t)MAX(resamplings, 1));
    rng_key key = rng_key_of(seed, 0);
    for (int k = 0; k < resamplings; k++) {
        for (int i = 0; i < n; i++)
            pick[i] = (int)rng_below(key, (uint64_t)k * (uint64_t)n + (uint64_t)i, (uint64_t)n);
        if (fit_once(&s, &out->samples[out->n_samples])) out->n_samples++;
    }
    set_bands(out);
    free(pick);
    return OK;
}

void law_fit_free(law_fit *f) {
    free(f->samples);
    f->samples = NULL;
}
