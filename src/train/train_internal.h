#ifndef INGOT_TRAIN_INTERNAL_H
#define INGOT_TRAIN_INTERNAL_H

#include "train/train.h"

typedef struct cadences { /* in steps; 0: never */
    int64_t log, validate, sample, save;
} cadences;

typedef struct trainer {
    const config *cfg;
    const train_options *opt;
    char *dir; /* owned */

    const op_backend *ops;
    model_config mc;
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train, eval;
    int train_id, eval_id;
    generator gen;
    bool can_sample;

    data_source *data, *held_out; /* held_out NULL: a range of data */
    data_range train_range, eval_range;
    loader *batches, *eval_batches;

    int64_t rows, micros, seq; /* a microbatch; microbatches in a full step; tokens in a row */
    int64_t steps, stop;       /* length of the schedule; where this run ends */
    schedule sched;
    cadences every;
    ckpt_state state;
    double peak_flops; /* of this machine for this run's products; NaN: not measured */

    observe *log;
    progress *show;
    double val_loss;
} trainer;

/* setup.c: everything up to the first step. */
err trainer_setup(trainer *t);
void trainer_free(trainer *t);
/* report.c: what the user is told before the first step. */
void trainer_describe(const trainer *t);
err trainer_write_programs(const trainer *t);

#endif
