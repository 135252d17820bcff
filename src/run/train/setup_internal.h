/* Set-up up to the first step (setup.c, check_lists.c), the config as used (used.c) and the summary (report.c). */
#ifndef INGOT_TRAIN_SETUP_INTERNAL_H
#define INGOT_TRAIN_SETUP_INTERNAL_H

#include "train/train.h"

typedef struct trainer trainer;

/* Checks config, data and device, builds and loads. Leaves the run folder as it is. */
err trainer_setup(trainer *t) MUST_USE;
/* Records the run's programs and lays out its memory, without mapping it. After trainer_set_batch; reads
 * t->mc, n_sets and every.sample. */
err trainer_lay_out(trainer *t, const op_backend *ops, int threads) MUST_USE;
/* Plays the lists of all ranks together: check_lists.c. @param played how many ranks that were */
err trainer_check_lists(const trainer *t, int *played) MUST_USE;
/* Opens the logs, from the step after t->state's on: what they have of later ones is removed. */
err trainer_open_log(trainer *t) MUST_USE;
/* Refuses weight decay that was scaled for a run much shorter than its base, and may take away more than a weight has. */
err trainer_check_decay(const trainer *t) MUST_USE;
/* Takes the folder over: from here on it holds this run. */
err trainer_begin(trainer *t) MUST_USE;
/* Sets the device's step state to that of a checkpoint, t->state. */
void trainer_restore_step_state(trainer *t);
void trainer_free(trainer *t);
/* Returns the config with every choice made. @param used freed by config_free; borrows from t. */
void trainer_used_config(const trainer *t, config *used);
err trainer_write_config(const trainer *t) MUST_USE;
void trainer_describe(const trainer *t);
/* Prints a row for each group of parameters, where the config has groups. */
void trainer_describe_groups(const trainer *t);
/* Prints one line for each difference from the run that is continued. */
void trainer_report_changes(const trainer *t);
err trainer_write_programs(const trainer *t) MUST_USE;

/* recipe.c: fills in the optimizer and its schedules where the config leaves them open. After trainer_set_batch. */
err recipe_choose(trainer *t) MUST_USE;
/* @return whether an option has the value that recipe_choose gave it. */
bool recipe_decides(const trainer *t, const char *name);
/* Appends what was chosen, and why. */
void recipe_describe(const trainer *t, str *out);

#endif
