/* Shows the monitor each step and reports its findings (alerts.c), and acts on them
 * (healing.c). */
#ifndef INGOT_TRAIN_ALERTS_INTERNAL_H
#define INGOT_TRAIN_ALERTS_INTERNAL_H

#include "monitor/monitor.h"
#include "train/train.h"

typedef struct trainer trainer;

/* Holds the monitor's input and the actions it asked for: see alerts.c and healing.c. */
typedef struct run_alerts {
    monitor *m;
    monitor_sender *sender; /* of rank 0; NULL: nothing is delivered */
    int64_t from;           /* windows consumed before the last step */
    double *row_loss;       /* [windows of the last step], as this rank has them; owned */
    exec_sample *sampled;   /* [blocks], of what enters them, at metrics.detail_every; owned */
    double *activation;     /* [blocks], its root mean square; owned */
    double *expert; /* [3][blocks], least and most of an even share, ranks that know it; owned */
    double comm_s;  /* that this rank had waited for communication before the last step */
    double fp8_saturated;              /* at metrics.detail_every */
    monitor_alert act[MONITOR_ALERTS]; /* to be acted on once nothing is in flight */
    int n_act;
    bool interrupts;    /* ... and what is being queued is dropped for it */
    int64_t cool_from;  /* the first step of the last cool-down; 0: none */
    int64_t attempts;   /* rollbacks at one place so far */
    int64_t last_alert; /* the step of the last alert that made one */
    int64_t decided;    /* what the last step's alerts were, for ranks to compare */
    bool stops;         /* an alert of this rank's machine asks all to stop */
    str op;             /* the first op that was not finite, as found again; owned */
} run_alerts;
/* After t->mc, the data and the device are known; loads the state of the checkpoint that is continued. */
err alerts_open(trainer *t) MUST_USE;
/* @return the state for a checkpoint; owned. */
json_t *alerts_state(const trainer *t);
err alerts_load_state(trainer *t, const json_t *run) MUST_USE;
/* Shows the monitor the step that was just finished, completes the step's metrics, reports, and decides: what
 * needs the device to be idle waits for alerts_act. All ranks together. */
err alerts_after_step(trainer *t, observe_step *s) MUST_USE;
/* Something that another part noticed. @param what, remedy NULL: the table's. */
err alerts_raise(trainer *t, monitor_id id, double value, const char *what,
                 const char *remedy) MUST_USE;
/* Writes the event, prints and delivers. */
err alerts_report(trainer *t, const monitor_alert *a, const char *what,
                  const char *remedy) MUST_USE;
void alerts_free(trainer *t);
/* @return the factor of the learning rate in a step. */
double healing_rate(const trainer *t, int64_t step);
/* Whether an alert is acted on, and reported, once nothing is in flight: by healing_act. */
bool healing_waits(const monitor_alert *a);
/* Notes what the policy of an alert asks for. */
void healing_decide(trainer *t, const monitor_alert *a);
/* Carries it out, with nothing in flight: an error ends the run. */
err healing_act(trainer *t) MUST_USE;
/* @return the error that ends a run that an alert stopped, after it was saved. */
err healing_stop(const trainer *t) MUST_USE;

#endif
