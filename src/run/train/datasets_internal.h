/* The data of a run (datasets.c): what it trains and validates on. */
#ifndef INGOT_TRAIN_DATASETS_INTERNAL_H
#define INGOT_TRAIN_DATASETS_INTERNAL_H

#include "train/train.h"
#include "train/step_internal.h"

typedef struct trainer trainer;

/* A source to train on, or a set to validate on. */
typedef struct run_source {
    char *name; /* owned */
    data_source *data;
    bool borrowed; /* data is another's */
    data_range range;
    double weight, epochs; /* as in mix_source */
    double *phase_weights; /* likewise; owned */
    loader *batches;       /* of a set alone */
    double loss;           /* of a set: at the last validation */
    double sum;            /* of a source: losses of the step */
    int64_t valid;         /* ... over this many targets */
} run_source;
typedef struct run_data {
    run_source *sources, *sets; /* to train on; to validate on; owned */
    int n_sources, n_sets;
    double *phases; /* tokens with which each phase of the mix begins, after the first; owned */
    int n_phases;
    bool has_clean;           /* sources has one more: alerts.clean_source */
    loader *batches;          /* of all sources */
    observe_source *observed; /* [n_sources + n_sets], of the last step */
    tokenizer *tokenizer;     /* for samples; NULL: not known */
} run_data;
err datasets_open(trainer *t) MUST_USE;
int64_t datasets_tokens(const run_source *list, int n);
bool datasets_are_bytes(const trainer *t);
/* @return what identifies the tokenizer of the data; 0: not known. */
uint64_t datasets_tokenizer_hash(const trainer *t);
/* Leaves the tokenizer in the run's folder, where sample and export find it. */
err datasets_save_tokenizer(const trainer *t) MUST_USE;
/* Opens the loaders; after trainer_set_lengths. */
err datasets_load(trainer *t) MUST_USE;
/* Makes batches as the lengths have become, from where the run stands. */
err datasets_replan(trainer *t) MUST_USE;
/* Puts the loader where the state is, past what is to be skipped. */
err datasets_begin(trainer *t) MUST_USE;
void datasets_step_begin(trainer *t);
/* Adds a microbatch's losses to their sources. @return their sum. */
double datasets_add_losses(trainer *t, const pending_losses *f, const float *losses);
/* Logs the windows that the guard rejected. @param rejected how many in the step: added to. */
err datasets_log_rejected(trainer *t, const data_batch *b, int64_t step,
                          int64_t *rejected) MUST_USE;
void datasets_measure(trainer *t, observe_step *out);
/* Computes the loss of every set. @param loss their mean by the sets' weights, else by their sizes. */
err datasets_validate(trainer *t, double *loss) MUST_USE;
void datasets_free(trainer *t);

#endif
