/* Questions with several answers during training (questions.c): validation.tasks. */
#ifndef INGOT_TRAIN_QUESTIONS_INTERNAL_H
#define INGOT_TRAIN_QUESTIONS_INTERNAL_H

#include "train/train.h"

typedef struct trainer trainer;

/* validation.tasks: questions.c. */
typedef struct run_questions {
    task_file *file;     /* [n] */
    observe_task *score; /* [n], of the last round; names owned */
    int n;
    int64_t rows, seq; /* of the programs that answer: as long as the longest question needs */
    chain eval;
    int eval_id;
} run_questions;
bool questions_are_asked(const config *c);
/* Reads them; after datasets_open. */
err questions_open(trainer *t) MUST_USE;
/* Records the programs that answer them; with the trainer's own. */
err questions_plan(trainer *t) MUST_USE;
/* Puts them to the model; all ranks together. */
err questions_answer(trainer *t, observe_step *s) MUST_USE;
void questions_free(trainer *t);

#endif
