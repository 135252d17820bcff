/* monitor: notices trouble in the numbers of a run. Depends on util and io.
 *
 * Given `monitor_settings settings` and, after each step, `monitor_step s`:
 *
 *     monitor *m = monitor_new(&settings);
 *     monitor_alert found[MONITOR_ALERTS];
 *     int n = monitor_add(m, &s, found);        // what this step shows
 *     json_t *saved = monitor_save(m);          // into a checkpoint; monitor_load continues exactly
 *     monitor_free(m);
 *
 * The core is a pure function of the numbers it is given and of its own state: no clock, no file. Ranks that
 * give it the same numbers get the same alerts, and a resumed run gets those that it would have got.
 *
 * Alerts are rows of monitor.def. One fires when its condition begins to hold, and again only after the
 * condition has not held for a while. What is done about it, its policy, is carried out by train/. */
#ifndef INGOT_MONITOR_H
#define INGOT_MONITOR_H

#include <jansson.h>
#include <math.h>

#include "config/choices.h"
#include "util/util.h"

/* ---- the table ------------------------------------------------------------------------------ */
typedef enum {
#define ALERT(name, ...) MONITOR_##name,
#include "monitor/monitor.def"
    MONITOR_ALERTS
} monitor_id;
typedef enum { MONITOR_NOTE, MONITOR_ALERT } monitor_level;
typedef enum { MONITOR_STEP, MONITOR_STATE, MONITOR_MACHINE } monitor_scope;
/* Policies: actions upon an alert, the mildest first. */
typedef enum {
    MONITOR_LOG,       /* an event, a line, and its delivery: as with all of them */
    MONITOR_SKIP,      /* the step's update is left out */
    MONITOR_COOL_DOWN, /* a lower learning rate for a while */
    MONITOR_ROLLBACK,  /* back to the last good checkpoint, past the data of the step */
    MONITOR_STOP,      /* the run saves and ends */
    MONITOR_POLICIES
} monitor_policy;

typedef struct monitor_row {
    const char *name;
    monitor_level level;
    monitor_scope scope;
    monitor_policy policy;
    double threshold[monitor_preset_count];
    const char *meaning, *remedy; /* meaning has the threshold as %g */
} monitor_row;
extern const monitor_row monitor_table[MONITOR_ALERTS];
const char *monitor_policy_name(monitor_policy p);
/* Appends the table as Markdown. */
void monitor_docs(str *out);

/* ---- settings -------------------------------------------------------------------------------- */
typedef struct monitor_settings {
    double threshold[MONITOR_ALERTS];
    monitor_policy policy[MONITOR_ALERTS];
    bool off[MONITOR_ALERTS]; /* not judged */
    int window, least, bottleneck;
    double sigma;
} monitor_settings;
/* The numbers of a preset, with what the two texts change: "loss_spike=2.5, plateau=off" and
 * "loss_spike=rollback, nonfinite=skip". The preset off leaves only what a run cannot ignore. */
err monitor_settings_read(monitor_preset preset, const char *thresholds, const char *policies,
                          monitor_settings *out) MUST_USE;

/* ---- one step --------------------------------------------------------------------------------- */
/* A figure that is not measured is NaN or NULL. Norms and losses are those of all ranks. */
typedef struct monitor_step {
    int64_t step;
    double loss, grad_norm;
    double max_norm;   /* that gradients are clipped to; 0: not */
    double loss_scale; /* fp16 alone */
    int blocks;
    const double *activation_rms;             /* [blocks], of what enters a block */
    const double *block_grad, *block_param;   /* [blocks + 1], norms; the last is not judged */
    const double *expert_least, *expert_most; /* [blocks], of an even share; NaN: no experts */
    double fp8_saturated;                     /* share of the fp8 tensors */
    double mfu, comm_share, data_share;       /* of this step, on rank 0; elsewhere NaN */
} monitor_step;
/* All not measured. */
monitor_step monitor_step_none(void);

typedef struct monitor_alert {
    monitor_id id;
    monitor_policy policy;
    int64_t step;
    double value, limit;    /* what was seen, and what it was compared with */
    double mean, deviation; /* of the window, where there is one; else NaN */
    int block;              /* -1: none in particular */
} monitor_alert;

/* "the loss is above 2 times ...: 9.12 (limit 6.34)". */
void monitor_describe(const monitor_settings *s, const monitor_alert *a, str *out);

typedef struct monitor monitor;
monitor *monitor_new(const monitor_settings *s); /* s is copied */
void monitor_free(monitor *m);                   /* takes NULL */
const monitor_settings *monitor_settings_of(const monitor *m);

/* Takes a step in. @param out [MONITOR_ALERTS]. @return how many alerts fired. */
int monitor_add(monitor *m, const monitor_step *s, monitor_alert *out);
/* Something that is noticed elsewhere, such as a save that failed. @return false: it has fired already, and
 * monitor_clear was not called since. */
bool monitor_raise(monitor *m, monitor_id id, int64_t step, double value, monitor_alert *out);
void monitor_clear(monitor *m, monitor_id id);

/* How much of the time training waits for saves: judged over a minute at least, since a single save may be most of a
 * run of seconds. Start with `from` set to the time at which training began. */
typedef struct monitor_saves {
    double from, waited; /* since when, in seconds of time_now; seconds */
} monitor_saves;
/* Takes in that training waited `waited` seconds for a save that is complete at `now`. @return the share of the time
 * since the last judgment; NaN: too early to judge. */
double monitor_save_share(monitor_saves *s, double now, double waited);

/* Whether the last step's loss was a spike: 1, 0; NaN: too few losses yet. */
double monitor_is_spike(const monitor *m);
int64_t monitor_spikes(const monitor *m); /* steps so far whose loss was */
/* Whether a step with this loss would be one, for those who must know before its update. */
bool monitor_would_spike(const monitor *m, double loss);
/* The gradient norm above which the update of the next step is to be skipped; 0: none is. It is what the
 * alert then compares with, so that a device can decide before the host knows the norm.
 * @param max_norm as in monitor_step. */
double monitor_skip_norm(const monitor *m, double max_norm);

/* @return the state, for a checkpoint; owned. */
json_t *monitor_save(const monitor *m);
/* @param state as monitor_save returned it, NULL: begins anew. @param name of the file, for errors. */
err monitor_load(monitor *m, const json_t *state, const char *name) MUST_USE;

/* ---- delivery ------------------------------------------------------------------------------------
 * A thread that runs a command with the alert as JSON on its standard input, and posts it to an address.
 * Training never waits for it: what does not fit its short queue is dropped, with a warning. */
typedef struct monitor_sender monitor_sender;
typedef struct monitor_sender_options {
    const char *command; /* for sh -c; "": none */
    const char *webhook; /* http:// or https://; "": none */
    double seconds;      /* that each may take before it is ended */
} monitor_sender_options;
/* Options are copied. An error where a webhook is asked for and the build has no libcurl. */
err monitor_sender_new(const monitor_sender_options *o, monitor_sender **out) MUST_USE;
void monitor_send(monitor_sender *s, const json_t *alert); /* without a sender: nothing */
/* Waits for what is queued, each as long as it may take. Takes NULL. */
void monitor_sender_free(monitor_sender *s);

#endif
