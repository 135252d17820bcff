/* status: how far a run is and how it ended, as one struct. The run writes it to RUN/status.json; the page, `watch`,
 * `report` and Prometheus read it back with status_read. Depends on util, io and series.
 *
 *     run_status s;
 *     status_read("runs/a", NULL, &s);
 *     printf("%s at step %lld of %lld\n", run_state_names[s.state], (long long)s.step, (long long)s.steps);
 *
 * A process that was killed cannot write how it ended. So status.json names the process, and a reader on the same
 * machine that does not find this process any more reports the run as died. From another machine, a run is presumed
 * dead when nothing was written for a long time. */
#ifndef INGOT_STATUS_H
#define INGOT_STATUS_H

#include <jansson.h>

#include "observe/series.h"

#define STATUS_FILE "status.json"
#define RUN_STATES(X)                                                                              \
    X(UNKNOWN, "unknown")                                                                          \
    X(RUNNING, "running")                                                                          \
    X(FINISHED, "finished")                                                                        \
    X(STOPPED, "stopped")                                                                          \
    X(DIED, "died")
typedef enum {
#define X(name, text) RUN_##name,
    RUN_STATES(X)
#undef X
        RUN_STATE_COUNT
} run_state;
extern const char *const run_state_names[RUN_STATE_COUNT];

enum { STATUS_ALERTS = 3, STATUS_TEXT = 320 };
typedef struct status_alert {
    int64_t step;
    char name[48], message[STATUS_TEXT], remedy[STATUS_TEXT];
} status_alert;

typedef struct run_status {
    run_state state;
    int64_t step, steps;                 /* steps: of the whole run; 0: not known */
    double tokens, total_tokens;         /* NaN: not known */
    double eta_s;                        /* seconds left; NaN: not known, or it does not run */
    int64_t checkpoint;                  /* step of the last full one; -1: none */
    int64_t restarts, rollbacks, alerts; /* counts since the first step */
    status_alert last[STATUS_ALERTS];    /* the newest alerts, the newest first */
    int n_last;
    double began, updated;  /* Unix seconds; 0: not known */
    double step_s;          /* of recent steps; NaN: not known */
    double flops_per_token; /* of the model, attention counted in full; NaN: not known */
    char cause[STATUS_TEXT], remedy[STATUS_TEXT]; /* why it stopped or died; "": not known */
    /* The process that writes it. */
    int64_t pid, pid_began; /* pid_began: in clock ticks since the machine's start */
    char host[128],
        machine[128]; /* machine: identifies the boot and the namespace of process ids */
} run_status;

/* @return zero steps, nothing known. */
run_status status_none(void);
/* Reads RUN/status.json. Without one, or where `all` has more recent steps, the rest is derived from metrics.jsonl,
 * events.jsonl and launch.jsonl, as far as it is there. @param all the run's metrics, up to date; may be NULL */
void status_read(const char *dir, const series *all, run_status *out);
/* @return what status.json holds, but for the process, and `ingot report --json` prints: owned. */
json_t *status_json(const run_status *s);
/* @return the number that status_json has under `key`; NaN: it is not known. */
double status_number(const run_status *s, const char *key);
/* Appends "running: step 30 of 100 (30 %), 1.2 M of 4 M tokens, 3 min left". */
void status_line(const run_status *s, str *out);

/* ---- for the process that runs --------------------------------------------------------------- */
/* Continues the status of an earlier process, if `dir` has one, with its counts. */
void status_begin(const char *dir, int64_t step, int64_t steps, double total_tokens,
                  run_status *out);
/* Counts an event as observe_event logs it. @return whether it changed the status. */
bool status_take_event(run_status *s, const json_t *event);
/* Replaces status.json at once, without waiting for the disk: a reader sees the old one or the new one. */
err status_write(const char *dir, const run_status *s) MUST_USE;

/* ---- lines of JSON ---------------------------------------------------------------------------- */
/* @return the last `most` bytes of DIR/name, from a line's beginning on; owned; "" when it cannot be read. */
char *status_file_tail(const char *dir, const char *name, int64_t most);
/* @return the objects in the last `most` bytes of DIR/name, an array: owned; lines that are not whole are left out. */
json_t *status_tail(const char *dir, const char *name, int64_t most);

#endif
