/* One rank of a run, from its config to its end (loop.c; start_ranks.c starts it). Each part of the state has an owner,
 * whose header declares it:
 *
 *     datasets -> step -> alerts, measure -> saving        a batch from its shard to its loss, and what follows it
 *     start, resume, setup, lengths, ranks                 before the first step
 *     questions, profile, health                           beside the steps
 */
#ifndef INGOT_TRAINER_INTERNAL_H
#define INGOT_TRAINER_INTERNAL_H

#include "serve/serve.h"
#include "train/alerts_internal.h"
#include "train/datasets_internal.h"
#include "train/health_internal.h"
#include "train/measure_internal.h"
#include "train/profile_internal.h"
#include "train/questions_internal.h"
#include "train/saving_internal.h"
#include "train/start_internal.h"

typedef struct trainer {
    const config *cfg; /* as given, or `own` */
    config own;        /* with the settings of the recipe: recipe.c; owned */
    cfg_recipe recipe; /* as chosen */
    const train_options *opt;
    mesh mesh; /* of all ranks, as this one sees it */
    run_folder folder;
    const char *dir; /* folder.path */
    run_start start;

    const op_backend *ops; /* from ops_open */
    model_config mc;
    bool grow_vocab; /* the model takes the vocabulary the data has */
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train, eval;
    int train_id, eval_id;
    generator gen;
    float *losses; /* [2][rows * seq], of a microbatch, and as this rank has them */
    pending_losses pending;
    step_rows rows_of;
    queued_step last; /* the last step that was queued */
    double since;     /* when the step before it was done */
    double average_s; /* of a step */

    run_data data;
    run_lengths len;
    ckpt_state state;
    run_saves saves;
    run_alerts alerts;
    bool new_optimizer; /* another one than the checkpoint's, whose states are left behind */
    json_t *run;        /* owned: resume_snapshot, for checkpoints */
    str changes;        /* what differs from the checkpoint that is continued; lines */

    watchdog *dog;               /* NULL: none */
    straggler_watch *stragglers; /* NULL: no step yet */
    run_peak peak;
    run_detail detail;
    run_profile profile;
    run_stage_times stage_times;
    run_questions questions;
    observe *log;
    serve *page; /* NULL: not served */
    progress *show;
    double began;    /* the time_now of rank 0 */
    FILE *text_log;  /* RUN/train.log, of rank 0 */
    int stop_signal; /* that one rank at least had got by the end of the last step; 0: none */
    double val_loss;
    double eval_s, sample_s, ckpt_s; /* since the last line of metrics.jsonl; 0: none */
} trainer;
err train_rank(trainer *t) MUST_USE;

#endif
