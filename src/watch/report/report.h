/* report: what a run's metrics show about its health, and how runs compare. Depends on observe.
 *
 *     run_report *r = NULL;
 *     TRY(report_read("runs/a", &r));
 *     printf("%lld spikes, loss %.4f\n", (long long)r->spikes, r->last_loss);
 *     str text = { 0 };
 *     report_write((const run_report *const[]){ r }, 1, REPORT_TEXT, 80, &text);
 *     report_free(r);
 *     str_free(&text);
 */
#ifndef INGOT_REPORT_H
#define INGOT_REPORT_H

#include <jansson.h>

#include "observe/series.h"
#include "observe/status.h"

/* ---- the analysis -------------------------------------------------------------------------- */
enum { REPORT_WINDOWS = 20, REPORT_LEAST_WINDOW = 20, REPORT_LISTED = 10 };
#define REPORT_STAGNANT  0.001 /* improvement from one window to the next, as a part of the loss */
#define REPORT_FAST_GAIN 0.01
#define REPORT_DIVERGED  0.1 /* last window above the best, as a part of the loss */
#define REPORT_STALL     3   /* step times the median */

/* A twentieth of the run, REPORT_LEAST_WINDOW rows at least; the last one may be shorter, down to half. A window that
 * scales with the run judges runs of any length alike, since a loss falls with the logarithm of the steps. */
typedef struct loss_window {
    double from, to; /* steps */
    double mean;     /* of finite losses */
    double gain;     /* improvement on the window before, as a part of it; NaN for the first */
    double error;    /* standard error of the mean, from the differences of successive losses */
} loss_window;

typedef struct loss_spike {
    double step, loss, mean, deviation;
    double from_sequence, to_sequence; /* the data of the step; NaN: not known */
    char cause[256];                   /* what else was unusual in that step */
    char source[48];  /* of the sequence with the highest loss, from the alert; "": not known */
    int64_t document; /* within the source; -1: not known */
} loss_spike;

typedef struct run_stall {
    double step, seconds, data_seconds;
} run_stall;

typedef enum { PHASE_FAST, PHASE_SLOW, PHASE_STAGNANT, PHASE_RISING } phase_kind;
typedef struct loss_phase {
    phase_kind kind;
    double from, to; /* steps */
    double gain;     /* over the phase, as a part of the loss before it */
} loss_phase;

typedef struct run_report {
    char *dir;   /* as it was given */
    series *all; /* owned */
    run_status status;
    int64_t rows;
    double first_step, last_step, tokens;
    double first_loss, last_loss, best_loss; /* means of the first, last and best window */
    double end_loss;                         /* of the last step; NaN: not finite */
    double last_val, best_val;               /* NaN: none */
    loss_window *window;
    int windows;
    int64_t window_rows;
    loss_phase *phase;
    int phases;
    loss_spike spike[REPORT_LISTED]; /* the highest above their mean, by step */
    int64_t spikes, not_finite;
    bool diverged;
    double tok_s, tok_s_low, tok_s_high; /* median, 5th and 95th percentile */
    double mfu, peak_share;              /* medians; NaN: not measured */
    double step_s;                       /* median */
    double grad_norm;                    /* median */
    double energy_kwh;                   /* of the GPU of rank 0, during steps; NaN: not measured */
    struct {
        double step, data, compute, optim, eval, sample, ckpt;
    } seconds;                      /* sums */
    run_stall stall[REPORT_LISTED]; /* the longest, by step */
    int64_t stalls;
    double stalled_s; /* beyond the median */
    struct {          /* events.jsonl and launch.jsonl */
        int resumes, rollbacks, restarts;
        double rollback_step; /* of the last */
        char failure[256]; /* what ended the run, if an error did and nothing followed; "": none */
        double failure_step;
        char restart_cause[256]; /* of the last attempt that failed */
    } events;
    struct report_finding *finding; /* [findings] */
    int findings;
} run_report;

/* Something that is wrong with a run: a row of findings.def. */
typedef struct report_finding {
    const char *name, *remedy;
    char *evidence; /* owned: a sentence with the figures and steps */
} report_finding;

/* Reads and analyzes a run folder. @param out owned: report_free. */
err report_read(const char *dir, run_report **out) MUST_USE;
void report_free(run_report *r); /* takes NULL */
/* @return the energy of the GPU of rank 0 during steps, in kWh; NaN: not measured */
double report_energy(const series *s);

/* ---- what is printed ----------------------------------------------------------------------- */
typedef enum { REPORT_TEXT, REPORT_MARKDOWN, REPORT_HTML } report_format;
/* One report of n runs: each by itself, then side by side. HTML is one self-contained page. @param width
 * columns of plots as text. */
void report_write(const run_report *const *runs, int n, report_format format, int width, str *out);
/* Only how they compare. */
void report_compare(const run_report *const *runs, int n, report_format format, int width,
                    str *out);
/* Finds the run with the lowest held-out loss at equal tokens: those at which the first of them had its last one. Runs that have finished
 * are compared if there are any, else all; without held-out losses, the losses of the last step. @param tokens, loss what was compared; may be NULL
 * @return its index, -1: none has a loss */
int report_best(const run_report *const *runs, int n, double *tokens, double *loss);
/* @return owned. */
json_t *report_json(const run_report *const *runs, int n);
/* An error when the losses of a run differ from those of the first by more than `tolerance` of it in a step, or
 * when they did not log the same steps. */
err report_same_loss(const run_report *const *runs, int n, double tolerance) MUST_USE;

/* Appends the table of findings as Markdown: docs/observability.md. */
void report_docs(str *out);

/* ---- a screen of a run that is under way: screen.c ------------------------------------------- */
typedef struct run_screen {
    const char *name;     /* of the run */
    const series *all;    /* up to date */
    const json_t *events; /* the last lines of events.jsonl, an array */
    const run_status *status;
    double now;        /* Unix seconds */
    int width, height; /* columns and lines */
    bool color;        /* with escapes for colors */
    bool utf8;         /* else ASCII alone */
} run_screen;
/* Draws curves, where a step's time goes, ranks and alerts into `height` lines of at most `width` columns, each
 * ending in a newline. What does not fit is left out, the least needed first. */
void report_draw_screen(const run_screen *s, str *out);

#endif
