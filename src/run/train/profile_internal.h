/* Where the time of a step goes: --profile and --memory-timeline (profile.c), RUN/timetable.json of a pipeline
 * (stage_times.c). Called by all ranks together, but for open and free. */
#ifndef INGOT_TRAIN_PROFILE_INTERNAL_H
#define INGOT_TRAIN_PROFILE_INTERNAL_H

#include "prog/execute.h"
#include "train/train.h"

typedef struct trainer trainer;

/* A profile being recorded: profile.c. */
typedef struct run_profile {
    exec_trace *trace;   /* NULL: none is */
    int64_t first, last; /* steps so far */
    int span;            /* of the step under way */
    double began, seconds;
} run_profile;
/* When the stages of a pipeline work on what: stage_times.c. */
typedef struct run_stage_times {
    task_times own;
    double offset; /* of their zero, on rank 0's clock */
    int64_t steps; /* of this process so far */
    bool taken;    /* of the last step */
} run_stage_times;
/* Writes what the schedule plans; of rank 0. */
void stage_times_open(trainer *t);
/* Before a step's microbatches. @param detail metrics.detail_every asks for it. */
err stage_times_step_begin(trainer *t, bool detail) MUST_USE;
err stage_times_after_step(trainer *t) MUST_USE;
void stage_times_free(trainer *t);
/* Whether the step under way, or the next, is one that is profiled: then it is completed before the next is
 * queued. */
bool profile_is_near(const trainer *t);
/* Around the queueing and finishing of each step. */
err profile_step_begin(trainer *t) MUST_USE;
void profile_step_end(trainer *t);
/* Writes the profile after its last step. @param ends no other step follows */
err profile_after_step(trainer *t, bool ends) MUST_USE;
void profile_free(trainer *t);
/* Once the memory is there. */
err profile_memory(trainer *t) MUST_USE;

#endif
