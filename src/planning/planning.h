/* planning: what a run needs, before it runs. Scaling laws and fits to finished runs; a catalogue of
 * hardware and prices; memory by laying out the real programs; time, cost and goodput; advice from
 * published recipes. Depends on train, since memory is what training itself would reserve.
 *
 * Given a budget of `double flops`:
 *
 *     const scaling_law *law;
 *     scaling_point p;
 *     TRY(law_find("refit", &law));
 *     TRY(law_solve(law, &(scaling_query){ .compute = flops, .params = NAN, .tokens = NAN,
 *                                          .loss = NAN, .unique = INFINITY }, &p));
 *     printf("%.3g parameters, %.3g tokens, loss %.3f\n", p.params, p.tokens, p.loss);
 *
 * The word "plan" belongs to prog/plan.h: the memory and the instances of a run's programs.
 */
#ifndef INGOT_PLANNING_H
#define INGOT_PLANNING_H

#include "train/train.h"

/* ---- scaling laws --------------------------------------------------------------------------
 * N parameters, D tokens, C = 6 N D floating point operations, L the loss in nats per token. */
#define PF_DAY 8.64e19 /* 1e15 operations per second for a day */

typedef enum {
    SURFACE_NONE,  /* a frontier only: losses come from law_default */
    SURFACE_SUM,   /* L = e + a / N^alpha + b / D^beta */
    SURFACE_JOINT, /* L = ((a / N)^(alpha / beta) + b / D)^beta, as in Kaplan et al. */
} surface_kind;

typedef struct scaling_law {
    const char *name, *title, *source;
    surface_kind surface;
    double e, a, alpha, b, beta;
    /* The compute-optimal frontier D = at_tokens (N / at_params)^slope. A slope of 0: it is where the
     * surface is lowest along C = 6 N D. */
    double at_params, at_tokens, slope;
} scaling_law;

int law_count(void);
const scaling_law *law_at(int i);
const scaling_law *law_default(void);
/* An unknown name is an error that lists the names. */
err law_find(const char *name, const scaling_law **out) MUST_USE;

/* What is known; NaN: to be found. `unique` tokens exist, and are repeated where more are trained on
 * (INFINITY: no limit). */
typedef struct scaling_query {
    double compute, params, tokens, loss;
    double unique;
} scaling_query;
typedef struct scaling_point {
    double compute, params, tokens, loss;
    double effective_tokens; /* what the tokens are worth once repeats are discounted */
} scaling_point;

/* The expected loss of N parameters after D tokens, of which `unique` are different. */
double law_loss(const scaling_law *l, double params, double tokens, double unique);
/* Tokens and parameters that are worth as much as these when data repeats (Muennighoff et al. 2023). */
double law_effective_tokens(double tokens, double unique);
/* Completes a query from any one or two of the four quantities. One alone is completed along the
 * compute-optimal frontier. Of the two models that reach a loss with a compute budget, it is the smaller.
 * @return an error for values no run can have, and for a loss that is out of reach, with the nearest one
 * that is not. */
err law_solve(const scaling_law *l, const scaling_query *q, scaling_point *out) MUST_USE;
/* The model of this loss that takes the fewest operations over its life: training on D tokens at 6 N each
 * and inference on `inference` tokens at 2 N each (Sardana et al. 2024). */
err law_solve_lifetime(const scaling_law *l, double loss, double unique, double inference,
                       scaling_point *out) MUST_USE;

/* ---- fits to finished runs ----------------------------------------------------------------- */
typedef struct fit_run {
    char *name; /* owned */
    double params, tokens, loss;
} fit_run;
typedef struct fit_band {
    double low, high; /* the middle 80 % of the bootstrap */
} fit_band;
typedef struct law_fit {
    scaling_law law;                         /* SURFACE_SUM */
    double error;                            /* root mean square of the relative residuals */
    fit_band e, a, alpha, b, beta, exponent; /* exponent: of N in C along the frontier */
    scaling_law *samples;                    /* [n_samples], owned: one per resampling */
    int n_samples;
} law_fit;
/* Reads a run folder (config.yaml, metrics.jsonl), or a .csv file with the columns params, tokens and
 * loss, and appends to *runs. */
err fit_read(const char *path, fit_run **runs, int *n) MUST_USE;
void fit_runs_free(fit_run *runs, int n);
/* Fits E + A / N^alpha + B / D^beta by a Huber loss on relative residuals (delta 1e-3, as Chinchilla's
 * approach 3), and again for each of `samples` resamplings of the runs.
 * @return an error when the runs cannot determine it. */
err law_fit_runs(const fit_run *runs, int n, int samples, uint64_t seed, law_fit *out) MUST_USE;
void law_fit_free(law_fit *f); /* takes a zeroed one */
/* The loss that the resamplings span at this point. */
fit_band law_fit_loss(const law_fit *f, double params, double tokens);

/* ---- plots for terminals -------------------------------------------------------------------- */
typedef struct plot_series {
    const double *x, *y;
    int n;
    char mark;
    const char *label; /* NULL: not in the legend */
} plot_series;
/* Draws points over a logarithmic x axis; later series draw over earlier ones. NaNs are left out. */
void plot_draw(str *out, const plot_series *series, int n, const char *x_label,
               const char *y_label);

#endif
