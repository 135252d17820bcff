/* Shared by the files of `ingot plan`: its options, numbers as its tables show them. */
#ifndef INGOT_CLI_PLAN_COMMON_H
#define INGOT_CLI_PLAN_COMMON_H

#include <jansson.h>
#include <time.h>

#include "cli/cli.h"
#include "io/io.h"
#include "planning/planning.h"

/* Quantities are texts here, so that each can complain about its own range. */
typedef struct plan_args {
    const char *compute, *params, *tokens, *loss, *unique_tokens, *inference_tokens, *law;
    const char *gpu, *gpus, *dtype, *mfu, *provider, *catalogue, *pue, *usd_kwh;
    const char *failures, *restart, *repair, *spares, *checkpoint_time, *interval, *start;
    int64_t seed;
    const char *search_for, *cap, *write, *as;
    bool goodput, check, what_if, search, fewer, json;
} plan_args;

/* Numbers in tables, written into a buffer of the function's own ring: up to eight may be in use. */
const char *show_count(double v);   /* "70B", "1.43T" */
const char *show_flops(double v);   /* "6.3e23" */
const char *show_whole(double v);   /* "166,192" */
const char *show_rounded(double v); /* three digits: "3,640", "0.012" */

/* Prints a JSON document and frees it. */
void plan_print_json(json_t *doc);

/* plan_law.c: compute, parameters, tokens and loss by the scaling laws. */
err plan_report_laws(const plan_args *a) MUST_USE;

/* plan_cost.c: what it runs on, as --gpu and its companions describe it. */
machine_query plan_machine_query(const plan_args *a);
/* Time and cost of the point's operations, and unless its parameters are NaN their states by a formula, as far as the
 * options ask for them. @param doc NULL: prints. */
void plan_report_cost(const plan_machine *m, const scaling_point *p, json_t *doc);
/* plan_goodput.c: the same with failures, where the options ask for it. Simulated before anything is printed,
 * so that a mistake in an option comes first. */
typedef struct plan_failures {
    bool asked, dated; /* dated: with --start */
    time_t start;
    goodput_run run;
    goodput result;
} plan_failures;
/* @param checkpoint bytes; NaN: 12 per parameter. */
err plan_failures_open(const plan_args *a, const plan_machine *m, const scaling_point *p,
                       double checkpoint, plan_failures *out) MUST_USE;
void plan_report_failures(const plan_failures *f, const plan_machine *m, json_t *doc);
/* Likewise, with other rates of failures. @param p of a known length */
err plan_compare_failures(const plan_args *a, const plan_machine *m, const scaling_point *p,
                          double checkpoint, json_t *doc) MUST_USE;

/* plan_source.c: the config that is planned. */
typedef struct plan_source {
    const char *recipe; /* that a model's name stands for; NULL: none. Static */
    bool chosen_layout; /* by a search */
} plan_source;
err plan_read_config(const plan_args *a, int argc, char **args, config *c, plan_source *s) MUST_USE;
/* Gives a recipe without a layout the best one on m's accelerators. @param ranks of it; else unchanged */
err plan_choose_layout(const plan_machine *m, const run_target *on, double limit, config *c,
                       plan_source *s, int *ranks) MUST_USE;
/* @param gpus that were asked for */
void plan_report_source(const plan_source *s, double gpus, json_t *doc);

/* plan_config.c: what a config needs. @param config_args the arguments that are not plan's own. */
err plan_report_config(const plan_args *a, int argc, char **config_args) MUST_USE;

/* plan_search.c: the best layouts. @param limit bytes of a rank where --cap is not given. */
err plan_report_search(const plan_args *a, const plan_machine *m, const config *c,
                       const run_target *on, double limit) MUST_USE;

extern const cli_subcommand plan_fit, plan_hardware, plan_recipe;

#endif
