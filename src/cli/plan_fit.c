/* ingot plan fit: a scaling law from finished runs. */
#include "cli/plan_common.h"

#include <math.h>
#include <stdlib.h>

typedef struct fit_args {
    int64_t samples, seed;
    const char *compute, *write;
    bool json;
} fit_args;
static const cli_arg args[] = {
    { "samples", ARG_COUNT, offsetof(fit_args, samples), "N",
      "resamplings of the runs for the bands (default 200)" },
    { "seed", ARG_COUNT, offsetof(fit_args, seed), "N", "seed of the resampling (default 0)" },
    { "compute", ARG_TEXT, offsetof(fit_args, compute), "FLOPS",
      "budget to extrapolate to (default: 100 times the largest run)" },
    { "write", ARG_TEXT, offsetof(fit_args, write), "FILE",
      "write the law, for --law FILE of ingot plan and ingot serve" },
    { "json", ARG_FLAG, offsetof(fit_args, json), "", "print JSON" },
};

enum { CURVE = 128 };
typedef struct curve {
    double x[CURVE], y[CURVE], low[CURVE], high[CURVE];
} curve;

/* Plots the loss along the fitted frontier, from the smallest run's compute to `to`. */
static err trace_frontier(const law_fit *f, double from, double to, curve *c) {
    for (int i = 0; i < CURVE; i++) {
        scaling_point p;
        c->x[i] = from * pow(to / from, (double)i / (CURVE - 1));
        TRY(law_solve(&f->law, &(scaling_query){ c->x[i], NAN, NAN, NAN, INFINITY }, &p));
        fit_band b = law_fit_loss(f, p.params, p.tokens);
        c->y[i] = p.loss;
        c->low[i] = b.low;
        c->high[i] = b.high;
    }
    return OK;
}

static void print_constant(const char *name, double value, fit_band b) {
    printf("  %-9s %10.4g   %.4g to %.4g\n", name, value, b.low, b.high);
}

static void print_plot(const curve *c, const fit_run *runs, int n) {
    double *x = mem_alloc(sizeof *x * (size_t)n), *y = mem_alloc(sizeof *y * (size_t)n);
    str out = { 0 };
    for (int i = 0; i < n; i++) {
        x[i] = 6 * runs[i].params * runs[i].tokens;
        y[i] = runs[i].loss;
    }
    const plot_series series[] = {
        { c->x, c->low, CURVE, '.', "80 % band" },
        { c->x, c->high, CURVE, '.', NULL },
        { c->x, c->y, CURVE, '-', "compute-optimal frontier of the fit" },
        { x, y, n, 'o', "runs" },
    };
    plot_draw(&out, series, (int)COUNT_OF(series), "FLOPs", "loss");
    printf("\n%s", out.text);
    str_free(&out);
    free(x);
    free(y);
}

static void print_fit(const law_fit *f, const fit_run *runs, int n, const scaling_point *p,
                      fit_band loss, const curve *c) {
    const scaling_law *l = &f->law;
    printf("%d runs, L = E + A / N^alpha + B / D^beta, residuals %.2f %%\n\n", n, 100 * f->error);
    printf("  %-9s %10s   80 %% band (%d resamplings)\n", "constant", "fit", f->n_samples);
    print_constant("E", l->e, f->e);
    print_constant("A", l->a, f->a);
    print_constant("alpha", l->alpha, f->alpha);
    print_constant("B", l->b, f->b);
    print_constant("beta", l->beta, f->beta);
    print_constant("N ~ C^", l->beta / (l->alpha + l->beta), f->exponent);
    printf("\nWith %s FLOPs: %s parameters, %s tokens, loss %.3f (%.3f to %.3f)\n",
           show_flops(p->compute), show_count(p->params), show_count(p->tokens), p->loss, loss.low,
           loss.high);
    print_plot(c, runs, n);
}

static json_t *constant_json(double value, fit_band b) {
    return json_pack("{s:o, s:o, s:o}", "fit", io_json_number(value), "low", io_json_number(b.low),
                     "high", io_json_number(b.high));
}

static json_t *fit_json(const law_fit *f, const fit_run *runs, int n, const scaling_point *p,
                        fit_band loss) {
    const scaling_law *l = &f->law;
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list,
            json_pack("{s:s, s:o, s:o, s:o, s:o}", "run", runs[i].name, "params",
                      io_json_number(runs[i].params), "tokens", io_json_number(runs[i].tokens),
                      "loss", io_json_number(runs[i].loss), "fitted_loss",
                      io_json_number(law_loss(l, runs[i].params, runs[i].tokens, INFINITY))));
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:o}", "E", constant_json(l->e, f->e), "A",
        constant_json(l->a, f->a), "alpha", constant_json(l->alpha, f->alpha), "B",
        constant_json(l->b, f->b), "beta", constant_json(l->beta, f->beta), "N_exponent",
        constant_json(l->beta / (l->alpha + l->beta), f->exponent), "relative_residual",
        io_json_number(f->error), "resamplings", f->n_samples, "extrapolation",
        json_pack("{s:o, s:o, s:o, s:o}", "compute", io_json_number(p->compute), "params",
                  io_json_number(p->params), "tokens", io_json_number(p->tokens), "loss",
                  constant_json(p->loss, loss)),
        "runs", list);
}

static err report_law_fit(const fit_args *a, const fit_run *runs, int n, double budget) {
    law_fit f;
    scaling_point p;
    curve c;
    double least = INFINITY, most = 0;
    TRY(law_fit_runs(runs, n, (int)MIN(a->samples, 100000), (uint64_t)a->seed, &f));
    for (int i = 0; i < n; i++) {
        least = fmin(least, 6 * runs[i].params * runs[i].tokens);
        most = fmax(most, 6 * runs[i].params * runs[i].tokens);
    }
    if (isnan(budget)) budget = 100 * most;
    err e = law_solve(&f.law, &(scaling_query){ budget, NAN, NAN, NAN, INFINITY }, &p);
    if (!e) e = trace_frontier(&f, least, fmax(budget, most), &c);
    if (!e) {
        fit_band loss = law_fit_loss(&f, p.params, p.tokens);
        if (a->json)
            plan_print_json(fit_json(&f, runs, n, &p, loss));
        else
            print_fit(&f, runs, n, &p, loss, &c);
    }
    if (!e && a->write) e = law_write(&f, n, a->write);
    law_fit_free(&f);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    fit_args a = { .samples = 200 };
    fit_run *runs = NULL;
    int words = 0, n = 0;
    double budget;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &words));
    TRY(plan_quantity("compute", a.compute, &budget));
    err e = OK;
    for (int i = 0; i < words && !e; i++) e = fit_read(argv[i], &runs, &n);
    if (!e) e = report_law_fit(&a, runs, n, budget);
    fit_runs_free(runs, n);
    return e;
}

const cli_subcommand plan_fit = {
    .summary = "fit a scaling law to finished runs",
    .run = run,
    .spec = { "plan fit", "RUN... [options]", CLI_ARGS(args), 1, true },
    .help =
        "Each RUN is a run folder, whose last held-out loss counts, or a .csv file with the columns\n"
        "params, tokens and loss. At least five runs of three sizes and three lengths are needed;\n"
        "each should have finished its own learning-rate schedule.\n"
        "\n"
        "Examples\n"
        "  ingot plan fit runs/s* runs/m* runs/l*\n"
        "  ingot plan fit sweep.csv --compute 1e21 --write ours.yaml\n"
        "  ingot plan --compute 1e22 --law ours.yaml\n",
};
