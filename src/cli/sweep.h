/* A sweep: one config, trained several times with different options. sweep_file.c reads its file, sweep_runs.c runs it. */
#ifndef INGOT_CLI_SWEEP_H
#define INGOT_CLI_SWEEP_H

#include <jansson.h>

#include "util/util.h"

typedef struct sweep_run {
    char *name;      /* owned */
    json_t *options; /* of this run, owned */
    json_t *
        first; /* options of a first part, after which it is resumed without them; NULL: none; owned */
} sweep_run;

enum { SWEEP_RUNGS = 16 };
typedef struct sweep {
    char *name, *config; /* owned; config NULL: the defaults */
    json_t *doc;         /* owned */
    json_t *common;      /* options of all runs, owned */
    double
        equal_loss; /* all runs must log the same losses, to within this part; NaN: they need not */
    sweep_run *run;
    int n, cap;
    int64_t rung[SWEEP_RUNGS]; /* of halving: steps after which only the best continue */
    int rungs;
    double keep; /* the part that continues */
} sweep;

/* @param what a name of those that come with ingot, or a file */
err sweep_open(const char *what, sweep *s) MUST_USE;
void sweep_free(sweep *s);
void sweep_list(void); /* prints those that come with ingot */
/* Every option exists, and takes its value. */
err sweep_check_options(const sweep *s, const json_t *options) MUST_USE;
/* Appends an option's value as the command line takes it. */
void sweep_option_text(str *out, const json_t *v);

typedef struct sweep_args {
    const char *dir;
    bool fresh, dry;
    int64_t parallel; /* runs at a time */
} sweep_args;
/* "DIR/NAMEending", owned. */
char *sweep_path(const char *dir, const sweep_run *r, const char *ending);
void sweep_print_commands(const sweep *s, const sweep_args *a);
/* Runs some of the runs, as many at a time as a->parallel, and skips those that have got that far before. @param stop steps
 * after which they end; 0: none @param failed counts those that did not succeed; they are removed from which[] */
err sweep_train(const sweep *s, const sweep_args *a, int *which, int *n, int64_t stop,
                int *failed) MUST_USE;

#endif
