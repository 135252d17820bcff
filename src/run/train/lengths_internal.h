/* The batch, and every length of the config in steps or tokens (lengths.c, idle.c). */
#ifndef INGOT_TRAIN_LENGTHS_INTERNAL_H
#define INGOT_TRAIN_LENGTHS_INTERNAL_H

#include "config/config.h"
#include "optim/optim.h"
#include "shards/data.h"
#include "train/clock_internal.h"

typedef struct trainer trainer;

/* The interval between two events, in steps, tokens or seconds. Those given in tokens come due in the
 * step that completes them, however many tokens a step has; those in seconds in the first step that is
 * queued after them. */
typedef struct cadence {
    double length; /* whole steps or tokens, or seconds; 0: never */
    cfg_unit unit;
    double next; /* in seconds: the time_now at which it is due */
} cadence;
typedef struct cadences {
    cadence log, tensorboard, detail, validate, tasks, sample, save, weights;
} cadences;
/* Marks the work that is due in a step: decided once, when it is queued, since the clock runs on. */
typedef struct due_events {
    bool log, tensorboard, detail, validate, tasks, sample, save, weights;
} due_events;
/* @return sequences in a microbatch of all ranks. */
int64_t trainer_micro_rows(const trainer *t);
/* How much a step takes, when the run ends and what is due on the way: set by lengths.c, then only read. */
typedef struct run_lengths {
    int64_t rows, micros,
        seq;             /* a rank's microbatch; microbatches in a full step; tokens in a row */
    batch_ramp ramp;     /* the windows of every step */
    int64_t curriculum;  /* length of the sequence curriculum, in windows */
    int64_t steps, stop; /* where the schedule ends, and where this run does */
    int64_t early;       /* training.stop; INT64_MAX: none */
    run_clock clock;     /* of a run whose length is given in time: `stop` then follows it */
    bool in_tokens;      /* the run's length was given in tokens: the schedule counts them */
    schedule sched;
    momentum_schedule momentum;
    cadences every;
} run_lengths;
err trainer_set_batch(trainer *t) MUST_USE;
/* After datasets_open: epochs are counted in the data's tokens. Reads where t->state stands. */
err trainer_set_lengths(trainer *t) MUST_USE;
/* Refuses options that this run leaves without an effect: idle.c. */
err trainer_check_idle(const trainer *t) MUST_USE;
/* @return what comes due in the step that ends after `step` steps and `tokens` tokens, has `in_step` tokens
 * itself, and is queued at the time `now`. Call once per step. */
due_events cadences_due(cadences *every, int64_t step, int64_t tokens, int64_t in_step, double now);
/* @return the tokens that the run will have been trained on after its last step. */
int64_t trainer_tokens_at_end(const trainer *t);
/* Returns the factor of the weight decay that optimizer.weight_decay_base_tokens asks for. */
double trainer_decay_per_token(const trainer *t);

#endif
