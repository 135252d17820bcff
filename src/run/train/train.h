/* train: a run from its config to a trained model. Depends on everything below it.
 *
 *     config c;                                         // from YAML and the command line
 *     TRY(train_run(&c, &(train_options){ .fresh = false }));
 *
 * One step:
 *
 *     loader -> microbatches -> programs forward and backward, gradients summed in fp32
 *            -> global norm -> clip -> optimizer on the stored weights -> copies refreshed
 *            -> metrics -> (validation, sample, checkpoint when due)
 *
 * A run folder that has a checkpoint is continued, bit for bit as if it had never stopped.
 */
#ifndef INGOT_TRAIN_H
#define INGOT_TRAIN_H

#include <signal.h>

#include "config/config.h"
#include "eval/eval.h"
#include "observe/observe.h"

typedef struct train_options {
    bool fresh; /* start over: what the folder holds of an earlier run is removed */
    bool quiet; /* no summary at the start; metrics.log_every: 0 leaves out the progress */
    int ranks; /* threads of this process that train together; 0: as many as the config asks for, or
                 * the processes of the job this one was started in (comm_job_open) */
    /* The number of a signal that came: finish the step, save, return. May be NULL. */
    const volatile sig_atomic_t *stop;
    /* Called, from a thread of its own, when a rank has stalled for training.step_timeout: ends the process. NULL:
     * the run ends with an error as soon as the rank moves on. */
    void (*stalled)(void);
    /* The steps to profile, first and last (RUN/profile/steps-A-B.json); 0: none. */
    int64_t profile_from, profile_to;
    bool memory_timeline; /* write what is live when, from the plan (RUN/profile/memory.json) */
    int *
        stopped_by; /* set to SIGTERM where a signal asked for the machine, to SIGINT where another one ended the
                           * run, of any rank; may be NULL */
} train_options;

err train_run(const config *c, const train_options *o) MUST_USE;
char *train_run_dir(const config *c); /* the run folder; owned (free) */
/* An error when the parallelism section does not lay out this many ranks. */
err train_check_ranks(const config *c, int ranks) MUST_USE;
/* Proves that the ranks of the run meet in every collective and message, as training does before it starts. @param
 * ranks as in train_options. @param played how many ranks were laid out for it: all, or of a large run fewer along
 * each axis */
err train_check_lists(const config *c, int ranks, int *played) MUST_USE;
/* Appends the timetable as text: when each rank of the pipeline works on which microbatch, and when ZeRO gathers and reduces. @param ranks as in train_options. */
err train_timetable(const config *c, int ranks, str *out) MUST_USE;

/* ---- a run in outline: everything that can be known of it without data and without memory ----- */
/* The programs are those that train_run would record, and the plan is what it would map: same code, same
 * bytes. Nothing is mapped, so the run may be larger than the machine. */
typedef struct train_outline {
    const model *m;
    const plan *p; /* not committed */
    const optimizer *o;
    const chain *train;       /* the recorded programs, and how often they run */
    int64_t rows, micros;     /* sequences in a microbatch; microbatches in a step */
    int64_t seq, step_tokens; /* tokens in a sequence; in a full step */
    double steps, tokens;     /* length of the run; NaN: in epochs of data that is not known */
    struct trainer *owner;
} train_outline;
/* The device, ranks and stage that a run is outlined for. */
typedef struct outline_options {
    const op_backend *ops; /* whose kernels and workspace count; borrowed */
    int threads;           /* 0: as the config, all ranks being on this machine */
    int ranks;             /* of the whole run; 0: as many as the parallelism section asks for */
    int stage;             /* of the pipeline: whose memory it is */
} outline_options;
/* @param out freed by train_outline_free, on an error too. */
err train_outline_open(const config *c, const outline_options *o, train_outline *out) MUST_USE;
/* Returns the batch of a step, without recording anything. */
typedef struct step_batch {
    mesh layout;
    int64_t rows, micros; /* sequences in a microbatch; microbatches in a step */
    int data_ranks;       /* that train on sequences of their own */
} step_batch;
/* @param ranks as in outline_options */
err train_batch(const config *c, int ranks, step_batch *out) MUST_USE;
void train_outline_free(train_outline *o); /* takes a zeroed one */

/* ---- from a config to what runs ---------------------------------------------------------- */
/* Opens the device that computes; close it with ops_close. Ranks of a machine take its GPUs in turn, from device.index on. */
err train_device(const config *c, int local_rank, const op_backend **out) MUST_USE;
int train_gpu(const config *c, int local_rank); /* the number of that GPU */
/* Returns how the model is distributed over the mesh, in rows of `seq` tokens. */
model_layout train_layout(const config *c, const op_backend *ops, int64_t seq);
optim_settings train_optim(const config *c, const op_backend *ops, const model_layout *l);
/* Returns the config with the optimizer's settings that a new run would choose where they are left open. @param out config_free, also after an
 * error */
err train_settle(const config *c, const model_config *mc, config *out) MUST_USE;
/* Sets which of a chain's blocks are recomputed. */
void train_recompute(const config *c, chain *t);

#endif
