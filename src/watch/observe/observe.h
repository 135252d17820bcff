/* observe: what a run reports. metrics.jsonl with one object per step, events.jsonl, status.json (status.h), and
 * the progress line. Depends on util and io.
 *
 *     observe *o = NULL;
 *     TRY(observe_open(&(observe_options){ .dir = "runs/a" }, &o));
 *     progress *p = progress_new(stdout);
 *     observe_step s = OBSERVE_STEP_NONE;           // every figure "not measured"
 *     s.step = 1;
 *     s.loss = 5.5;
 *     TRY(observe_log(o, &s));
 *     progress_show(p, &s);
 */
#ifndef INGOT_OBSERVE_H
#define INGOT_OBSERVE_H

#include <jansson.h>
#include <math.h>

#include "util/util.h"

/* Of a pipeline: when its stages work on what. The live page shows it. */
#define OBSERVE_TIMETABLE "timetable.json"

/* ---- metrics ------------------------------------------------------------------------------
 * metrics.def has a row for each: the members of observe_step, the keys of metrics.jsonl, the names in
 * every sink and the table of docs/observability.md come from it. */
typedef enum { METRIC_ALWAYS, METRIC_EXTRA } metric_presence;
typedef enum { METRIC_COUNT, METRIC_FIGURE, METRIC_EACH } metric_kind;
typedef struct metric {
    const char *key, *sink, *unit, *normal, *meaning;
    const char
        *path; /* of a METRIC_EACH: where it is in a line; NULL for others, which are at key */
    metric_kind kind;
    metric_presence presence;
    size_t offset; /* in an observe_step; not for METRIC_EACH */
} metric;
enum {
#define COUNT(key, ...)  METRIC_##key,
#define FIGURE(key, ...) METRIC_##key,
#define EACH(key, ...)   METRIC_##key,
#include "observe/metrics.def"
    METRICS
};
extern const metric metric_table[METRICS];

/* ---- one step ---------------------------------------------------------------------------- */
/* One source of a mixture, or one set to validate on. */
typedef struct observe_source {
    const char *name; /* borrowed */
    int64_t tokens;   /* seen so far */
    double loss;      /* mean over its targets; NaN: none in this step */
} observe_source;

/* Values that a histogram is made from. */
typedef struct observe_sample {
    const char *name;   /* "weights", borrowed as are the values */
    const float *value; /* [n] */
    int64_t n;
} observe_sample;

/* Metrics that are measured now and then, because they take a pass over the parameters. */
typedef struct observe_detail {
    int blocks; /* of the model; the arrays have one more element, for what is outside of them */
    double *grad_norm, *param_norm; /* [blocks + 1] */
    /* [blocks], NaN where not known; NULL: not measured. Borrowed where they come from elsewhere. */
    double *activation_rms, *fp8_amax, *fp8_saturated;
    observe_sample sample[3]; /* weights, gradients, updates */
} observe_detail;

/* Questions with several answers, as validation.tasks has them. */
typedef struct observe_task {
    const char *name; /* borrowed */
    double acc, acc_norm;
} observe_task;

/* Times that ranks measured of themselves in the last STRAGGLER_WINDOW steps, per step. */
typedef struct observe_ranks {
    int n;
    const double *busy_s, *wait_s, *ratio; /* [n] */
} observe_ranks;

/* One collective over one set of axes, per step and rank. */
typedef struct observe_comm {
    char name[80]; /* "dp_shard:reduce-scatter" */
    double seconds, bytes;
} observe_comm;

typedef struct observe_step {
#define COUNT(key, ...)  int64_t key;
#define FIGURE(key, ...) double key;
#include "observe/metrics.def"
    /* Where there are several, "sources": { NAME: { "tokens": N, "loss": L }, ... } and
     * "validation": { NAME: L, ... }. Borrowed. */
    const observe_source *sources, *validation;
    int n_sources, n_validation;
    /* "tasks": { NAME: { "acc": A, "acc_norm": N }, ... }; borrowed. */
    const observe_task *tasks;
    int n_tasks;
    /* "blocks": { "grad_norm": [...], "param_norm": [...] }, the last of each being what is outside
     * the blocks; NULL: not measured. Borrowed. */
    const observe_detail *detail;
    /* "ranks": { "busy_s": [...], ... } and "comm": { NAME: { "s": S, "bytes": B }, ... }; NULL and 0: not
     * measured. Borrowed. */
    const observe_ranks *ranks;
    const observe_comm *comm;
    int n_comm;
    bool tensorboard; /* the step also goes to TensorBoard */
    /* For the progress line alone. */
    int64_t total_steps; /* 0: not known */
    double eta_s;        /* seconds left; NaN: not known */
} observe_step;

/* @return NaN where it was not measured. */
double metric_value(const metric *m, const observe_step *s);
/* Calls fn for every value of the step that was measured. `item` is the source, set, block, rank or
 * collective of a METRIC_EACH, else NULL. */
typedef void (*metric_visitor)(void *ctx, const metric *m, const char *item, double value);
void metric_visit(const observe_step *s, metric_visitor fn, void *ctx);
/* Whether `name`, a member of a line with those it is nested in ("sources.web.loss"), is an item of this
 * METRIC_EACH. @param item, n set to the item's name, borrowed from `name`. */
bool metric_item(const metric *m, const char *name, const char **item, size_t *n);
/* Appends the name in sinks, with `item` in place of <...>. */
void metric_sink_name(const metric *m, const char *item, str *out);
/* Appends the table of docs/observability.md. */
void metric_docs(str *out);

/* Counts zero, every figure not measured. */
observe_step observe_step_none(void);
#define OBSERVE_STEP_NONE observe_step_none()

/* ---- the run's logs ------------------------------------------------------------------------ */
typedef struct observe_options {
    const char *dir;        /* the run folder, which exists */
    int64_t first_step;     /* the first that will be logged; 0: start from scratch */
    int64_t steps;          /* of the whole run, for status.json; 0: not known */
    double total_tokens;    /* of the whole run; NaN or 0: not known */
    double flops_per_token; /* of the model; 0: not known */
    bool tensorboard;       /* write event files to DIR/tb too */
    int64_t rotate_bytes;   /* begin a new event file after this many bytes; 0: 64 MiB */
    const json_t *hparams;  /* an object of texts, for TensorBoard; borrowed; may be NULL */
    bool gpu;               /* read the GPU's state by NVML, where that is installed */
    int gpu_index;          /* as CUDA counts them */
    const char *nvml;       /* path of the library; NULL: the system's */
    const char *sys;        /* where network interfaces have their counters; NULL: /sys */
} observe_options;
typedef struct observe observe;
/* Opens DIR/metrics.jsonl and DIR/events.jsonl for appending. Metrics of steps >= first_step, left by a
 * run that went further than the checkpoint it resumes from, are removed first, and so is a line
 * truncated by a crash. Events are history and stay. */
err observe_open(const observe_options *options, observe **out) MUST_USE;
/* Completes the step with what follows from it (perplexities, the GPU's state), and appends one line to
 * metrics.jsonl, whole or not at all as far as readers can see. */
err observe_log(observe *o,
                observe_step *s) MUST_USE; /* this and what follows: nothing without a log */
/* Appends {"event": kind, "step": step, "time": unix seconds, ...details} to events.jsonl. "finish", "stop" and
 * "failure" end the run, the last two with a "message" and a "remedy" (status.h).
 * @param details an object, consumed; may be NULL. */
err observe_event(observe *o, const char *kind, int64_t step, json_t *details) MUST_USE;
/* Logs a text that the model wrote: an event of kind "sample", and a text in TensorBoard. @param text any n
 * bytes. */
err observe_text(observe *o, int64_t step, const char *text, size_t n) MUST_USE;
/* Returns the error that kept a line from being written since the last call, owned; OK: all were. Lines are kept in memory
 * meanwhile and written later: a full disk does not end a run. */
err observe_take_failure(observe *o) MUST_USE;
/* The folder was out of reach and is back, maybe as another file of the system: a log that is not in it begins
 * anew there. In a folder that is not known to be the run's, none does. */
void observe_take_folder(observe *o); /* takes NULL */
void observe_close(observe *o);       /* takes NULL */

/* ---- stragglers ------------------------------------------------------------------------------
 * A rank that computes longer than the median of those with the same work: by more than a fifth, and by
 * milliseconds, in three windows in a row. It stays one until it is within a tenth. */
enum { STRAGGLER_WINDOW = 10 /* steps */, STRAGGLER_WINDOWS = 3 };
#define STRAGGLER_RATIO   1.2
#define STRAGGLER_CLEAR   1.1
#define STRAGGLER_LEAST_S 2e-3
typedef struct straggler {
    int windows;                /* in a row in which it was slow */
    bool slow, raised, cleared; /* it is one; it became one, or stopped being one, in this window */
    double ratio, median;       /* its time relative to the median, which is in seconds */
} straggler;
/* @return what a step takes on this rank when nothing interrupts it, of those in a window: the lower
 * quartile. NaN: there are none. */
double straggler_typical(const double *steps, int n);
/* Judges a window. @param s [n], zeroed before the first. @param seconds of each rank: straggler_typical.
 * @param group equal for ranks with the same work. */
void straggler_judge(straggler *s, const double *seconds, const int *group, int n);

/* ---- chips --------------------------------------------------------------------------------- */
/* @return the published dense peak of a chip in FLOP/s, by the name its driver reports; NaN when none is
 * known. @param dtype "fp32", "tf32", "fp16", "bf16" or "fp8". */
double chip_peak(const char *name, const char *dtype);

/* ---- NVML ----------------------------------------------------------------------------------
 * The state of an NVIDIA GPU, from the library that comes with the driver, loaded when it is there. */
typedef struct nvml nvml;
/* @param library NULL: the system's. @return NULL when there is none, or no such GPU. */
nvml *nvml_open(const char *library, int gpu_index);
/* Fills the step's gpu_* members, with what was read at most a second ago. */
void nvml_read(nvml *n, observe_step *s);
void nvml_close(nvml *n); /* takes NULL */

/* ---- links ---------------------------------------------------------------------------------- */
/* @return errors that the network interfaces of this host have counted since they came up; NaN: none has
 * counters. @param sys NULL: /sys. */
double link_errors(const char *sys);

/* ---- the progress line ---------------------------------------------------------------------
 * On a terminal one line rewritten in place, as wide as fits; elsewhere, and where TERM is dumb,
 * plain lines. Color only on a terminal, and not under NO_COLOR. */
typedef struct progress progress;
progress *progress_new(FILE *to); /* `to` is borrowed. Without one the calls below show nothing. */
bool progress_is_live(const progress *p);
void progress_show(progress *p, const observe_step *s);
/* Keeps the line in the log (log_keep), where a live line would leave one per step. */
void progress_log(const observe_step *s);
/* Prints a line of its own, above the live line, and keeps it in the log. */
void progress_note(progress *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Ends the live line, so that what comes next starts on a fresh one. */
void progress_end(progress *p);
void progress_free(progress *p); /* ends first; takes NULL */

/* The line itself: fields are left out, the least needed first, until it fits `width` columns
 * (0: no limit). */
void progress_format(str *out, const observe_step *s, int width, bool color);

#endif
