/* ingot sweep: one config, trained several times with different options, and how the runs compare.
 *
 *     DIR/NAME          the run folder of each
 *     DIR/NAME.log      what it printed
 *     DIR/NAME.json     its options, once it has ended: such a run is not started again
 *     DIR/report.html   all of them side by side
 *
 * With halving, all runs are trained for the steps of the first rung, the best of them to the second, and so on; those that are left
 * are trained to their end. The best are those with the lowest held-out loss. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/sweep.h"
#include "io/io.h"
#include "report/report.h"
#include "util/wait.h"

#define AT(member) offsetof(sweep_args, member)
static const cli_arg args[] = {
    { "dir", ARG_TEXT, AT(dir), "FOLDER", "where the runs go (default runs/sweep-NAME)" },
    { "parallel", ARG_COUNT, AT(parallel), "N",
      "runs at a time (default 1): a GPU each in turn, or a share of the cores" },
    { "fresh", ARG_FLAG, AT(fresh), "", "start over, instead of skipping what has been run" },
    { "dry-run", ARG_FLAG, AT(dry), "", "print the commands instead of running them" },
};
const cli_spec cmd_sweep_spec = { "sweep", "NAME|FILE.yaml [--section.key=value ...] [options]",
                                  CLI_ARGS(args), 0, true };

/* ---- the comparison -------------------------------------------------------------------------------- */
static err print_comparison(const sweep *s, const char *dir, run_report *const *runs, int n) {
    const run_report *const *list = (const run_report *const *)runs;
    str text = { 0 }, page = { 0 };
    report_compare(list, n, REPORT_TEXT, cli_width(60, 100), &text);
    fputs(text.text, stdout);
    report_write(list, n, REPORT_HTML, 100, &page);
    const char *path = PATH_IN(dir, "report.html");
    err e = io_write(path, page.text, page.len);
    if (!e) printf("%s has all of it\n", path);
    str_free(&text);
    str_free(&page);
    if (e || isnan(s->equal_loss)) return e;
    TRY(report_same_loss(list, n, s->equal_loss));
    printf("%d runs: every loss is equal to within %g\n", n, s->equal_loss);
    return OK;
}

/* Reads the runs of which[] that have metrics. @param at [n] which run each report is of @return how many there are */
static err read_reports(const sweep *s, const char *dir, const int *which, int n, run_report **runs,
                        int *at, int *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        const char *path = PATH_IN(dir, s->run[which[i]].name);
        if (io_has(path, "metrics.jsonl")) TRY(report_read(path, &runs[*out]));
        if (runs[*out]) at[(*out)++] = which[i];
    }
    return OK;
}

static void free_reports(run_report **runs, int n) {
    for (int i = 0; i < n; i++) report_free(runs[i]);
    free(runs);
}

static err compare_runs(const sweep *s, const char *dir) {
    run_report **runs = mem_alloc((size_t)(s->n + 1) * sizeof *runs);
    int *all = mem_alloc((size_t)s->n * sizeof *all), *at = mem_alloc((size_t)s->n * sizeof *at);
    int n = 0;
    for (int i = 0; i < s->n; i++) all[i] = i;
    err e = read_reports(s, dir, all, s->n, runs, at, &n);
    if (!e && n) e = print_comparison(s, dir, runs, n);
    free_reports(runs, n);
    free(all);
    free(at);
    return e;
}

/* Keeps the best of which[], by held-out loss. */
static err keep_best_runs(const sweep *s, const char *dir, int64_t stop, int *which, int *n) {
    run_report **runs = mem_alloc((size_t)(*n + 1) * sizeof *runs);
    int *at = mem_alloc((size_t)MAX(1, *n) * sizeof *at), read = 0;
    int keep = MAX(1, (int)ceil(s->keep * *n)), kept = 0;
    err e = read_reports(s, dir, which, *n, runs, at, &read);
    while (!e && kept < keep && read > 0) {
        int best = report_best((const run_report *const *)runs, read, NULL, NULL);
        if (best < 0) break;
        which[kept++] = at[best];
        report_free(runs[best]); /* the next best */
        memmove(runs + best, runs + best + 1, (size_t)(read - best - 1) * sizeof *runs);
        memmove(at + best, at + best + 1, (size_t)(read - best - 1) * sizeof *at);
        read--;
    }
    if (!e && !kept)
        e = err_hint(ERR("no run has a loss after %lld steps", (long long)stop),
                     "halving chooses by held-out loss: set validation.every");
    *n = kept;
    free_reports(runs, read);
    free(at);
    return e;
}

/* ---- the command ------------------------------------------------------------------------------------ */
/* Takes --section.key=value out of argv, into the options of all runs. @return how many words are left. */
static err take_overrides(int argc, char **argv, json_t *into, int *left) {
    *left = 0;
    for (int i = 0; i < argc; i++) {
        char *equals = strchr(argv[i], '='), *dot = strchr(argv[i], '.');
        if (!str_starts(argv[i], "--") || !equals || !dot || dot > equals) {
            argv[(*left)++] = argv[i];
            continue;
        }
        char *key = strndup(argv[i] + 2, (size_t)(equals - argv[i]) - 2);
        json_object_set_new(into, key, json_string(equals + 1));
        free(key);
    }
    return OK;
}

static err run_sweep(const sweep *s, const sweep_args *a) {
    int failed = 0, n = s->n, *which = mem_alloc((size_t)n * sizeof *which);
    err e = OK;
    sweep_args later = *a;
    for (int i = 0; i < n; i++) which[i] = i;
    TRY_CLEAN(io_make_dirs(a->dir));
    struct sigaction action = { .sa_handler = wait_note_signal }; /* waitpid returns */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i <= s->rungs && !wait_first_signal(); i++) {
        int64_t stop = i < s->rungs ? s->rung[i] : 0;
        TRY_CLEAN(sweep_train(s, i ? &later : a, which, &n, stop, &failed));
        later.fresh = false; /* what has been begun continues */
        if (stop && n > 1 && !wait_first_signal()) {
            TRY_CLEAN(keep_best_runs(s, a->dir, stop, which, &n));
            printf("after %lld steps %d continue\n", (long long)stop, n);
        }
    }
    if (wait_first_signal()) {
        e = err_exit(ERR("stopped by a signal; the same command continues"),
                     wait_first_signal() == SIGINT ? EXIT_INTERRUPTED : EXIT_PREEMPTED);
        goto cleanup;
    }
    TRY_CLEAN(compare_runs(s, a->dir));
    if (failed)
        e = err_hint(ERR("%d of %d runs failed", failed, s->n),
                     "their logs are in %s; the same command tries them again", a->dir);
cleanup:
    free(which);
    return e;
}

err cmd_sweep(int argc, char **argv) {
    sweep_args a = { .parallel = 1 };
    sweep s = { .equal_loss = NAN };
    json_t *overrides = json_object();
    str dir = { 0 };
    int left, n = 0;
    err e = OK;
    TRY_CLEAN(take_overrides(argc - 1, argv + 1, overrides, &left));
    TRY_CLEAN(cli_parse_many(&cmd_sweep_spec, left, argv + 1, &a, &n));
    if (n == 0) {
        sweep_list();
        goto cleanup;
    }
    if (n > 1) {
        e = err_hint(ERR_USAGE("expected one sweep; got %d", n), "ingot sweep %s", argv[1]);
        goto cleanup;
    }
    TRY_CLEAN(sweep_open(argv[1], &s));
    TRY_CLEAN(sweep_check_options(&s, overrides));
    json_object_update(s.common, overrides);
    str_add(&dir, "runs/sweep-%s", s.name);
    if (!a.dir) a.dir = dir.text;
    if (a.parallel < 1 || a.parallel > 256)
        e = ERR_USAGE("--parallel: expected 1 to 256; got %lld", (long long)a.parallel);
    else if (a.dry)
        sweep_print_commands(&s, &a);
    else
        e = run_sweep(&s, &a);
cleanup:
    sweep_free(&s);
    json_decref(overrides);
    str_free(&dir);
    return e;
}
