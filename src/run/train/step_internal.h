/* One step (step.c): queued, then read while the next one is queued. */
#ifndef INGOT_TRAIN_STEP_INTERNAL_H
#define INGOT_TRAIN_STEP_INTERNAL_H

#include "train/train.h"
#include "train/lengths_internal.h"
#include "train/ranks_internal.h"

typedef struct trainer trainer;

/* A microbatch that is queued and whose losses are being fetched. */
typedef struct pending_losses {
    bool open;
    device_ticket losses;
    int micro;
    int32_t *source; /* [rows], as in data_batch; owned */
    int64_t *row_valid;
} pending_losses;
/* Keeps the facts of a step's batches until their losses are read. */
typedef struct step_rows {
    int32_t *source; /* [microbatches][rows], as in data_batch; owned */
    int64_t *row_valid;
} step_rows;
/* Counts of the tokens that a layer routed to each expert in the last step, in flight. */
typedef struct expert_load {
    const float *at; /* in the plan; NULL: another rank has the layer */
    device_ticket ticket;
} expert_load;
typedef struct queued_step {
    bool open;
    due_events due;
    device_ticket state; /* the step state after it */
    double lr, loss_sum;
    double at, advance; /* where the schedule stands, and how far the step moves it, in its unit */
    double data_s, compute_s, optim_s; /* seconds of the host; on a device, of queueing alone */
    int marks;                         /* of a device: the first of its marks */
    int64_t valid, micros, windows, rejected;
    double
        pipeline_wait_s; /* for the neighbors of a pipeline; after the step, of all ranks together */
    step_overlap overlap;   /* likewise */
    expert_load *load;      /* [layers]; NULL: the model has no experts */
    int64_t longest;        /* document of the step, under a sequence curriculum */
    double small_sq, small; /* of the first microbatch's gradient: its norm squared, its targets */
} queued_step;
/* Runs the microbatches of the last step once more, from the same data and weights, with a check of every
 * op.
 * @param finding what is found, on every rank; empty: nothing. */
err trainer_repeat_step(trainer *t, str *finding) MUST_USE;
/* Queues forward, backward and update of the step after the last. Before it reads anything of that
 * step it calls `finish`, if the previous step is still in flight. */
err trainer_queue_step(trainer *t, err (*finish)(trainer *t)) MUST_USE;
/* @return the tokens of the last step that was queued. */
int64_t trainer_step_tokens(const trainer *t);
/* Waits for the last step. @return an error when its loss or gradient was not finite and no loss
 * scale can mend it. */
err trainer_finish_step(trainer *t, observe_step *s) MUST_USE;

#endif
