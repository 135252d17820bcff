/* Checkpoints of the run (saving.c). All but the questions are called by all ranks together. */
#ifndef INGOT_TRAIN_SAVING_INTERNAL_H
#define INGOT_TRAIN_SAVING_INTERNAL_H

#include "monitor/monitor.h"
#include "train/train.h"
#include "train/lengths_internal.h"

typedef struct trainer trainer;

/* Tracks the save in progress and those to be tried again: see saving.c. */
typedef struct run_saves {
    ckpt_saver *saver;
    ckpt_uploader *uploader; /* of rank 0; NULL: nothing is uploaded */
    int64_t saved;    /* step of the last full checkpoint that is on disk; -1: none of this run */
    int64_t failures; /* in a row */
    double failing_since; /* the time_now of rank 0 at the first of them */
    int64_t retry_at;     /* step of the next attempt after a failure; 0: none */
    double stalled_s;     /* that the training waited for the save in flight */
    monitor_saves waits;  /* ... and for those before it */
} run_saves;
/* @return whether a run ends that could not save in this many attempts over this many seconds. */
bool saving_gives_up(int64_t failures, double seconds);
/* Begins what is due after a step. A save that fails is reported and tried again. The run ends where the failure
 * would recur, and where it goes on for too long. */
err saving_after_step(trainer *t, const due_events *due) MUST_USE;
/* Once per step: moves the save in flight on. */
err saving_poll(trainer *t) MUST_USE;
/* Waits for the save in flight; one that fails is reported. No other is begun. */
err saving_settle(trainer *t) MUST_USE;
/* Saves where the run stands, and waits for it: an error ends the run. */
err saving_now(trainer *t) MUST_USE;
/* Begins to upload, and uploads the checkpoint that the run continues from where the store lacks it. */
err saving_open(trainer *t) MUST_USE;
/* Hands a checkpoint that is complete on disk to the uploader. */
void saving_upload(trainer *t, ckpt_kind kind, int64_t step);
/* Uploads the last checkpoint of a run that has ended, where the store lacks it. */
err saving_upload_last(trainer *t) MUST_USE;
/* Waits for what is being uploaded. */
err saving_finish_uploads(trainer *t) MUST_USE;
/* @return whether a save may read what the step after this one changes: it is finished first. */
bool saving_is_due(const trainer *t, const due_events *due);

#endif
