/* Ranks that stall (watchdog.c), lag behind (straggler.c) or hold corrupt weights (replicas.c). */
#ifndef INGOT_TRAIN_HEALTH_INTERNAL_H
#define INGOT_TRAIN_HEALTH_INTERNAL_H

#include "train/train.h"

typedef struct trainer trainer;
typedef struct watchdog watchdog;               /* watchdog.c */
typedef struct straggler_watch straggler_watch; /* straggler.c */
void watchdog_start(trainer *t);
void watchdog_stop(trainer *t);
void watchdog_note_step(trainer *t); /* a step is done */
/* @return an error when it has found a stall. */
err watchdog_check(const trainer *t) MUST_USE;
void straggler_begin(trainer *t);
void straggler_end(trainer *t);
/* After each step, on all ranks together: judges now and then. */
err straggler_step(trainer *t, observe_step *out) MUST_USE;
void straggler_free(trainer *t);

typedef struct replica {
    uint64_t held, bytes; /* as of ckpt_hash_held */
} replica;
/* Marks the ranks whose bytes differ from those of most ranks that hold the same; of two, both.
 * @return how many. */
int replicas_judge(const replica *all, int n, bool *bad);
/* After each step, on all ranks together. @param saves a full checkpoint follows. */
err replicas_check(trainer *t, bool saves) MUST_USE;

#endif
