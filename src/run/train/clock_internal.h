/* A run whose length is given in time (clock.c). */
#ifndef INGOT_TRAIN_CLOCK_INTERNAL_H
#define INGOT_TRAIN_CLOCK_INTERNAL_H

#include "util/util.h"

typedef struct trainer trainer;
typedef struct queued_step queued_step;

enum {
    CLOCK_STEPS =
        31,          /* the pace is the median of this many steps, which a hiccup does not change */
    CLOCK_TRIAL = 10 /* steps that are timed before the plan, at most */
};
typedef struct run_clock {
    double budget;  /* seconds of training steps; 0: the run's length is not given in time */
    double earlier; /* seconds per step of earlier processes; 0: there was none */
    double step_s[CLOCK_STEPS]; /* of the last steps, a ring */
    int64_t n;                  /* steps that were timed */
} run_clock;
void clock_add(run_clock *c, double step_s);
/* @return seconds per step; 0: not known yet */
double clock_pace(const run_clock *c);
/* Whether enough steps were timed for a plan that stays. */
bool clock_is_tried(const run_clock *c, double used);
/* @return the steps of a run that stands at `step` and has used `used` seconds; 0: too few were timed to tell. Another one
 * follows in any case, so that the last step is known before it begins. */
int64_t clock_plan(const run_clock *c, int64_t step, double used);
/* @param in_flight steps that are queued and not in `used`. @return how many more are to be queued: at least 1 */
int64_t clock_steps_left(const run_clock *c, double used, int64_t in_flight);

/* @return the steps of a run whose length is given in time: as planned, or longer than a trial */
int64_t trainer_clock_length(trainer *t);
/* @param planned steps of the run's length. @return after how many it ends, as far as is known */
int64_t trainer_clock_end(const trainer *t, int64_t planned);
/* Moves the schedule of a step that is to be queued after `step` others by the clock: equally on all ranks. */
err trainer_clock_next(trainer *t, int64_t step, queued_step *q) MUST_USE;
/* Counts the step that was finished last. */
void trainer_clock_finish_step(trainer *t, double step_s);
/* Whether the trial goes on: then no step is queued before the last one was timed. */
bool trainer_clock_is_open(const trainer *t);
/* Plans the run after each step of the trial. Nothing is in flight. */
err trainer_clock_settle(trainer *t) MUST_USE;

#endif
