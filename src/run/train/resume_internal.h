/* Compares a continued run with the saved one (resume.c). */
#ifndef INGOT_TRAIN_RESUME_INTERNAL_H
#define INGOT_TRAIN_RESUME_INTERNAL_H

#include "train/train.h"

typedef struct trainer trainer;

/* @return the options and the data as checkpoints keep them; owned. */
json_t *resume_snapshot(const trainer *t);
/* Compare this run with the one that was saved: an error for what may not change, lines in t->changes
 * for what did. First the model and the seed, then, when everything is built, the rest. */
err resume_compare_model(trainer *t) MUST_USE;
err resume_compare(trainer *t) MUST_USE;

#endif
