/* The source that a run begins with (start.c): a checkpoint, a Hugging Face folder, or nothing. */
#ifndef INGOT_TRAIN_START_INTERNAL_H
#define INGOT_TRAIN_START_INTERNAL_H

#include "checkpoint/checkpoint.h"
#include "train/train.h"

typedef struct trainer trainer;

/* Names the source of the weights, the optimizer state and the position in the data. */
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

#endif
