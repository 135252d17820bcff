#ifndef INGOT_TRAIN_INTERNAL_H
#define INGOT_TRAIN_INTERNAL_H

#include "io/io.h"
#include "monitor/monitor.h"
#include "serve/serve.h"
#include "train/train.h"

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

/* The folder of a run: see run_folder.c. */
typedef struct folder_id {
    uint64_t device, inode;
} folder_id;
typedef enum {
    FOLDER_THERE,
    FOLDER_AWAY,    /* out of reach, as when its disk is unmounted: it may come back */
    FOLDER_REMOVED, /* by someone: it does not come back */
    FOLDER_REPLACED /* another run is there now */
} folder_state;
typedef struct run_folder {
    char *path;    /* owned */
    io_lock *lock; /* NULL: there was no folder when it was opened, and the run has not begun */
    folder_id id;  /* once the run has begun */
    int handle;    /* open on it since then; 0: not yet */
    folder_state state; /* after the last step, agreed upon by all ranks */
    bool has_previous;  /* the run that this one replaces is still there */
} run_folder;

/* A source to train on, or a set to validate on. */
typedef struct run_source {
    char *name; /* owned */
    data_source *data;
    bool borrowed; /* data is another's */
    data_range range;
    double weight, epochs; /* as in data_part */
    loader *batches;       /* of a set alone */
    double loss;           /* of a set: at the last validation */
    double sum;            /* of a source: losses of the step */
    int64_t valid;         /* ... over this many targets */
} run_source;

/* A microbatch that is queued and whose losses are being fetched. */
typedef struct pending_losses {
    bool open;
    device_ticket losses;
    int micro;
    int32_t *part; /* [rows], as in data_batch; owned */
    int64_t *row_valid;
} pending_losses;

/* Keeps the facts of a step's batches until their losses are read. */
typedef struct step_rows {
    int32_t *part; /* [microbatches][rows], as in data_batch; owned */
    int64_t *row_valid;
} step_rows;

/* A step that is queued: what the host knew when it queued it, and what it reads later. */
/* Counts of the tokens that a layer routed to each expert in the last step, in flight. */
typedef struct expert_load {
    const float *at; /* in the plan; NULL: another rank has the layer */
    device_ticket ticket;
} expert_load;

/* Communication of a step: seconds in which bytes moved, and those of them that computation hid. */
typedef enum { OVERLAP_ALL, OVERLAP_DP, OVERLAP_TP, OVERLAPS } overlap_axes;
typedef struct step_overlap {
    double moving[OVERLAPS], hidden[OVERLAPS];
} step_overlap;

typedef struct queued_step {
    bool open;
    due_events due;
    device_ticket state; /* the step state after it */
    double lr, loss_sum;
    double data_s, compute_s, optim_s; /* seconds of the host; on a device, of queueing alone */
    int marks;                         /* of a device: the first of its marks */
    int64_t valid, micros, windows, rejected;
    double
        pipeline_wait_s; /* for the neighbors of a pipeline; after the step, of all ranks together */
    step_overlap overlap;   /* likewise */
    expert_load *load;      /* [layers]; NULL: the model has no experts */
    int64_t longest;        /* document of the step, under a sequence curriculum */
    double small_sq, small; /* of the first microbatch's gradient: its norm squared, its targets */
} queued_step;

/* Holds the source that a run begins with. */
typedef struct run_start {
    char *path;           /* of a checkpoint or a Hugging Face folder, owned; NULL: nothing */
    bool resume;          /* training continues from there: optimizer state, step and data */
    bool branch;          /* ... of another run: checkpoint.branch_path */
    const hf_family *hf;  /* of a Hugging Face folder, else NULL */
    model_config saved;   /* what it holds */
    json_t *run;          /* resume_snapshot of the process that saved it, owned; NULL: none kept */
    bool bytes;           /* it was trained on bytes */
    bool no_prefix;       /* its documents began without the tokenizer's prefix */
    tokenizer *tokenizer; /* what it was trained with, owned; NULL: not known */
    char *tokenizer_path; /* its file or folder, owned; NULL: bytes, or not known */
} run_start;

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

/* validation.tasks: questions.c. */
typedef struct run_questions {
    task_file *file;     /* [n] */
    observe_task *score; /* [n], of the last round; names owned */
    int n;
    int64_t rows, seq; /* of the programs that answer: as long as the longest question needs */
    chain eval;
    int eval_id;
} run_questions;

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

typedef struct watchdog watchdog;               /* watchdog.c */
typedef struct straggler_watch straggler_watch; /* straggler.c */

/* Holds the monitor's input and the actions it asked for: see alerts.c and healing.c. */
typedef struct run_alerts {
    monitor *m;
    monitor_sender *sender; /* of rank 0; NULL: nothing is delivered */
    int64_t from;           /* windows consumed before the last step */
    double *row_loss;       /* [windows of the last step], as this rank has them; owned */
    exec_sample *sampled;   /* [blocks], of what enters them, at metrics.detail_every; owned */
    double *activation;     /* [blocks], its root mean square; owned */
    double *expert; /* [3][blocks], least and most of an even share, ranks that know it; owned */
    double comm_s;  /* that this rank had waited for communication before the last step */
    double fp8_saturated;              /* at metrics.detail_every */
    monitor_alert act[MONITOR_ALERTS]; /* to be acted on once nothing is in flight */
    int n_act;
    bool interrupts;    /* ... and what is being queued is dropped for it */
    int64_t cool_from;  /* the first step of the last cool-down; 0: none */
    int64_t attempts;   /* rollbacks at one place so far */
    int64_t last_alert; /* the step of the last alert that made one */
    int64_t decided;    /* what the last step's alerts were, for ranks to compare */
    bool stops;         /* an alert of this rank's machine asks all to stop */
    str op;             /* the first op that was not finite, as found again; owned */
} run_alerts;

typedef struct trainer {
    const config *cfg;
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
    tokenizer *tokenizer; /* of the data, for samples; NULL: not known */
    float *losses;        /* [2][rows * seq], of a microbatch, and as this rank has them */
    pending_losses pending;
    step_rows rows_of;
    queued_step last; /* the last step that was queued */
    double since;     /* when the step before it was done */
    double average_s; /* of a step */

    run_source *sources, *sets; /* to train on; to validate on; owned */
    int n_sources, n_sets;
    bool has_clean;      /* sources has one more: alerts.clean_source */
    loader *batches;     /* of all sources */
    observe_part *parts; /* [n_sources + n_sets], of the last step */

    int64_t rows, micros,
        seq;             /* a rank's microbatch; microbatches in a full step; tokens in a row */
    batch_ramp ramp;     /* the windows of every step */
    int64_t curriculum;  /* length of the sequence curriculum, in windows */
    int64_t steps, stop; /* where the schedule ends, and where this run does */
    bool in_tokens;      /* the run's length was given in tokens: the schedule counts them */
    schedule sched;
    momentum_schedule momentum;
    cadences every;
    ckpt_state state;
    run_saves saves;
    run_alerts alerts;
    bool new_optimizer;      /* another one than the checkpoint's, whose states are left behind */
    json_t *run;             /* owned: resume_snapshot, for checkpoints */
    str changes;             /* what differs from the checkpoint that is continued; lines */
    bool peak_is_known;      /* it was measured when the machine was idle */
    double peak_flops;       /* the most this device can do in the run's type, as measured */
    double peak_measured_at; /* by time_now; it is measured again with validations */
    double published; /* the vendor's figure for it; NaN: not known, and MFU is of peak_flops */

    watchdog *dog;               /* NULL: none */
    straggler_watch *stragglers; /* NULL: no step yet */
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
    observe_detail detail;           /* arrays owned, NULL until the first */
    float *sample;                   /* owned: the values of detail.sample */
} trainer;

/* ---- one rank of a run, from its config to its end (loop.c); started by start_ranks.c ------------------ */
err train_rank(trainer *t) MUST_USE;

/* ranks.c: how ranks are laid out, and how they agree. All but the first three are called by all ranks
 * together. */
/* @param ranks that there are; 0: as many as the config asks for. */
err ranks_mesh(const config *c, int ranks, mesh *out) MUST_USE;
/* Rank 0 prints and writes. */
bool is_first_rank(const trainer *t);
/* Ranks that read different sequences, and which of them this one is. */
int ranks_with_rows(const trainer *t);
/* Rows that an evaluation runs at a time, a divisor of `rows`: fewer where experts on other ranks take every token, for
 * which memory is reserved. */
int64_t ranks_eval_rows(const trainer *t, int64_t rows, int64_t seq);
int ranks_rows_index(const trainer *t);
/* Waits until rank 0 has put the folder in order; sets t->began. */
err ranks_begin(trainer *t) MUST_USE;
/* Sets *now to rank 0's. */
err ranks_share_clock(const trainer *t, double *now) MUST_USE;
/* The same, where something is due by the clock. */
err ranks_agree_clock(const trainer *t, double *now) MUST_USE;
/* @return whether whoever sent the signal wants the machine back, and will start the run again. */
bool is_preemption(int signal_number);
/* Sets t->stop_signal. @param folder what rank 0 saw, on every rank. */
err ranks_agree(trainer *t, folder_state *folder) MUST_USE;
/* Sums the last step's losses and counts over the ranks. */
/* Seconds that this rank has waited for the neighbors of a pipeline so far. */
double ranks_pipeline_wait(const trainer *t);
/* Of this rank, since it began. */
step_overlap ranks_overlap(const trainer *t);
err ranks_sum_losses(trainer *t) MUST_USE;
err ranks_sum_stages(const trainer *t, double *values, int n) MUST_USE;
/* Sums what only those that have losses know. */
err ranks_sum_rows(trainer *t, double *row, int64_t n) MUST_USE;
/* Shares the finding of the first rank that has one with every rank. */
err ranks_share_finding(trainer *t, exec_finding *f) MUST_USE;
/* Seconds that this rank has waited for communication so far. */
double ranks_comm_wait(const trainer *t);
err ranks_sum_targets(const trainer *t, double *targets) MUST_USE;
/* setup.c: everything up to the first step. */
/* Checks config, data and device, builds and loads. Leaves the run folder as it is. */
err trainer_setup(trainer *t) MUST_USE;
/* Records the run's programs and lays out its memory, without mapping it. After trainer_set_batch; reads
 * t->mc, n_sets and every.sample. */
err trainer_lay_out(trainer *t, const op_backend *ops, int threads) MUST_USE;
/* Plays the lists of all ranks together: check_lists.c. @param played how many ranks that were */
err trainer_check_lists(const trainer *t, int *played) MUST_USE;
/* @return sequences in a microbatch of all ranks. */
int64_t trainer_micro_rows(const trainer *t);
/* Opens the logs, from the step after t->state's on: what they have of later ones is removed. */
err trainer_open_log(trainer *t) MUST_USE;
/* Takes the folder over: from here on it holds this run. */
err trainer_begin(trainer *t) MUST_USE;
void trainer_free(trainer *t);
/* start.c: what the run begins with. */
/* Finds it, and sets t->state. */
err start_find(trainer *t) MUST_USE;
/* Sets t->mc: the model of the weights, or the config's. */
err start_model(trainer *t) MUST_USE;
/* @return what tokenizes plain text, borrowed: as data.tokenizer selects, else what came with the weights,
 * else "bytes". */
const char *start_tokenizer_name(const trainer *t);
/* Refuses data that was tokenized otherwise than the weights know it. */
err start_check_tokenizer(const trainer *t, const data_info *data) MUST_USE;
/* Loads the weights, and on resume the optimizer's state, or draws them. */
err start_load(trainer *t) MUST_USE;
/* Removes what was downloaded to begin with, once it is loaded. */
err start_drop_download(trainer *t) MUST_USE;
void start_free(run_start *s);
/* used.c: RUN/config.yaml. */
/* The config with every choice made. @param used freed by config_free; borrows from t. */
void trainer_used_config(const trainer *t, config *used);
err trainer_write_config(const trainer *t) MUST_USE;
/* run_folder.c: the run folder. */
/* Locks the folder if it is there: an error when another process has it. */
err folder_open(run_folder *f, const char *path) MUST_USE;
/* Makes and locks the folder, where that is not done yet. */
err folder_make_locked(run_folder *f) MUST_USE;
/* Makes the folder if need be and takes it over. @param fresh sets what an earlier run left aside. */
err folder_begin(run_folder *f, bool fresh) MUST_USE;
/* The new run has taken a step: removes the one it replaces. */
err folder_drop_previous(run_folder *f) MUST_USE;
/* @return whether the path still leads to the folder of this run. One that is back on another device is taken
 * over again. */
folder_state folder_look(run_folder *f);
/* Unlocks, and restores a run that was set aside and not removed. */
void folder_close(run_folder *f);
/* resume.c: what a continued run may change. */
/* @return the options and the data as checkpoints keep them; owned. */
json_t *resume_snapshot(const trainer *t);
/* Compare this run with the one that was saved: an error for what may not change, lines in t->changes
 * for what did. First the model and the seed, then, when everything is built, the rest. */
err resume_compare_model(trainer *t) MUST_USE;
err resume_compare(trainer *t) MUST_USE;
/* lengths.c: the batch, and every length of the config in steps or tokens. */
err trainer_set_batch(trainer *t) MUST_USE;
/* After datasets_open: epochs are counted in the data's tokens. Reads where t->state stands. */
err trainer_set_lengths(trainer *t) MUST_USE;
/* Refuses options that this run leaves without an effect: idle.c. */
err trainer_check_idle(const trainer *t) MUST_USE;
/* @return what comes due in the step that ends after `step` steps and `tokens` tokens, of which it had
 * `in_step` itself, and is queued at the time `now`. To be asked once per step. */
due_events cadences_due(cadences *every, int64_t step, int64_t tokens, int64_t in_step, double now);
/* datasets.c: the run's data. */
err datasets_open(trainer *t) MUST_USE;
int64_t datasets_tokens(const run_source *list, int n);
bool datasets_are_bytes(const trainer *t);
/* @return what identifies the tokenizer of the data; 0: not known. */
uint64_t datasets_tokenizer_hash(const trainer *t);
/* Leaves the tokenizer in the run's folder, where sample and export find it. */
err datasets_save_tokenizer(const trainer *t) MUST_USE;
/* Opens the loaders; after trainer_set_lengths. */
err datasets_load(trainer *t) MUST_USE;
/* Puts the loader where the state is, past what is to be skipped. */
err datasets_begin(trainer *t) MUST_USE;
void datasets_step_begin(trainer *t);
/* Adds a microbatch's losses to their sources. @return their sum. */
double datasets_add_losses(trainer *t, const pending_losses *f, const float *losses);
/* Logs the windows that the guard rejected. @param rejected how many in the step: added to. */
err datasets_log_rejected(trainer *t, const data_batch *b, int64_t step,
                          int64_t *rejected) MUST_USE;
void datasets_measure(trainer *t, observe_step *out);
/* The loss of every set. @param loss their mean by the sets' weights, else by their sizes. */
err datasets_validate(trainer *t, double *loss) MUST_USE;
void datasets_free(trainer *t);
/* alerts.c: what the monitor is shown of a step, and how what it finds is reported. */
/* After t->mc, the data and the device are known; loads the state of the checkpoint that is continued. */
err alerts_open(trainer *t) MUST_USE;
/* @return the state for a checkpoint; owned. */
json_t *alerts_state(const trainer *t);
err alerts_load_state(trainer *t, const json_t *run) MUST_USE;
/* Shows the monitor the step that was just finished, completes the step's metrics, reports, and decides: what
 * needs the device to be idle waits for alerts_act. All ranks together. */
err alerts_after_step(trainer *t, observe_step *s) MUST_USE;
/* Something that another part noticed. @param what, remedy NULL: the table's. */
err alerts_raise(trainer *t, monitor_id id, double value, const char *what,
                 const char *remedy) MUST_USE;
/* Writes the event, prints and delivers. */
err alerts_report(trainer *t, const monitor_alert *a, const char *what,
                  const char *remedy) MUST_USE;
void alerts_free(trainer *t);
/* healing.c: what is done about alerts. */
/* @return the factor of the learning rate in a step. */
double healing_rate(const trainer *t, int64_t step);
/* Whether an alert is acted on, and reported, once nothing is in flight: by healing_act. */
bool healing_waits(const monitor_alert *a);
/* Notes what the policy of an alert asks for. */
void healing_decide(trainer *t, const monitor_alert *a);
/* Carries it out, with nothing in flight: an error ends the run. */
err healing_act(trainer *t) MUST_USE;
/* @return the error that ends a run that an alert stopped, after it was saved. */
err healing_stop(const trainer *t) MUST_USE;
/* step.c: one step. */
/* The microbatches of the last step once more, from the same data and weights, with a check of every op.
 * @param finding what is found, on every rank; empty: nothing. */
err trainer_repeat_step(trainer *t, str *finding) MUST_USE;
/* @return the tokens of the last step that was queued. */
int64_t trainer_step_tokens(const trainer *t);
/* @return the tokens that the run will have been trained on after its last step. */
int64_t trainer_tokens_at_end(const trainer *t);
/* Returns the factor of the weight decay that optimizer.weight_decay_base_tokens asks for. */
double trainer_decay_per_token(const trainer *t);
/* Queues forward, backward and update of the step after the last. Before it reads anything of that
 * step it calls `finish`, if the previous step is still in flight. */
err trainer_queue_step(trainer *t, err (*finish)(trainer *t)) MUST_USE;
/* Waits for the last step. @return an error when its loss or gradient was not finite and no loss
 * scale can mend it. */
err trainer_finish_step(trainer *t, observe_step *s) MUST_USE;
/* saving.c: checkpoints of the run. All are called by all ranks together. */
/* @return whether a run ends that could not save in so many attempts over so many seconds. */
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
/* watchdog.c: a thread that ends a run in which nothing moves any more (training.step_timeout). */
void watchdog_start(trainer *t);
void watchdog_stop(trainer *t);
void watchdog_note_step(trainer *t); /* a step is done */
/* @return an error when it has found a stall. */
err watchdog_check(const trainer *t) MUST_USE;
/* straggler.c: ranks that compute longer than others. Time between begin and end, but for waits, is a rank's
 * own; several spans make a step. */
void straggler_begin(trainer *t);
void straggler_end(trainer *t);
/* After each step, on all ranks together: judges now and then. */
err straggler_step(trainer *t, observe_step *out) MUST_USE;
void straggler_free(trainer *t);
/* stage_times.c: RUN/timetable.json, of a pipeline. All but open and free are called by all ranks together. */
/* Writes what the schedule plans; of rank 0. */
void stage_times_open(trainer *t);
/* Before a step's microbatches. @param detail metrics.detail_every asks for it. */
err stage_times_step_begin(trainer *t, bool detail) MUST_USE;
err stage_times_after_step(trainer *t) MUST_USE;
void stage_times_free(trainer *t);
/* questions.c: questions with several answers during training. */
bool questions_are_asked(const config *c);
/* Reads them; after datasets_open. */
err questions_open(trainer *t) MUST_USE;
/* Records the programs that answer them; with the trainer's own. */
err questions_plan(trainer *t) MUST_USE;
/* Puts them to the model; all ranks together. */
err questions_answer(trainer *t, observe_step *s) MUST_USE;
void questions_free(trainer *t);
/* profile.c: --profile and --memory-timeline. All are called by all ranks together. */
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
/* replicas.c: silent corruption. */
typedef struct replica {
    uint64_t parts, bytes; /* as of ckpt_hash_held */
} replica;
/* Marks the ranks whose bytes differ from those of most ranks with the same parts; of two, both.
 * @return how many. */
int replicas_judge(const replica *all, int n, bool *bad);
/* After each step, on all ranks together. @param saves a full checkpoint follows. */
err replicas_check(trainer *t, bool saves) MUST_USE;
/* peak.c: what the device can do. */
/* Measures it, if that is due, and keeps the best: whatever else runs on the machine
 * only ever slows it down. */
void trainer_measure_peak(trainer *t);
/* @return whether the peak is to be measured again at `now`. */
bool peak_is_due(double measured_at, double now);
/* The file of peaks: a line each. @return NaN: it has none of this key. */
double peak_read(const char *path, const char *key);
void peak_write(const char *path, const char *key, double flops);
/* @param loadavg the content of /proc/loadavg */
bool peak_machine_is_idle(const char *loadavg);
/* @return the peak once a step has reached `achieved`: where that is more, the measurement was taken
 * while the device was busy. It is taken again, and is at least what was achieved. */
double peak_after(double peak, double achieved, double (*measure)(void *ctx), void *ctx);
/* Raises the peak to what a step shows. @param achieved floating point operations per second. */
void trainer_raise_peak(trainer *t, double achieved);
/* @return what 100% of MFU is. */
double trainer_mfu_peak(const trainer *t);
/* detail.c: metrics that take a pass over the parameters. */
/* Between the last microbatch and the update of a step that is to be measured. */
err detail_before_update(trainer *t) MUST_USE;
/* After that step, before the next begins. */
err detail_measure(trainer *t, observe_step *s) MUST_USE;
void detail_free(trainer *t);

/* expert_load.c: metrics of mixtures of experts, fetched behind the update of a step and read after it. */
void expert_load_fetch(trainer *t, queued_step *q);
err expert_load_measure(trainer *t, observe_step *s) MUST_USE;
void expert_load_free(trainer *t);
/* report.c: the summary printed before the first step. */
void trainer_describe(const trainer *t);
/* One line for each difference from the run that is continued. */
void trainer_report_changes(const trainer *t);
err trainer_write_programs(const trainer *t) MUST_USE;

#endif
