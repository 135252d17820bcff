#ifndef INGOT_TASKS_INTERNAL_H
#define INGOT_TASKS_INTERNAL_H

#include "eval/eval.h"

/* How a generated answer is compared with those that are right. */
typedef enum {
    MATCH_WORDS,  /* without case, punctuation and white space around it */
    MATCH_SQUAD,  /* ... and without articles */
    MATCH_NUMBER, /* its last number */
} task_match;

struct task_row {
    const char *name, *source;
    const char *fields[4]; /* members that identify it; "a|b": one of them */
    task_type type;
    const char *preamble, *context, *choices, *each, *answer,
        *target;           /* task_table.c; NULL: none */
    const char *delimiter; /* between context and answer; NULL: a space */
    const char *stop[4];   /* TASK_GENERATE: texts that end an answer */
    int64_t tokens;        /* ... and its most tokens */
    task_match match;
    const char *
        group; /* a member whose value examples must share; they are then the first ones, not drawn */
    bool by_name;   /* never recognized by its members */
    bool by_tokens; /* as DCLM scores: the mean over the tokens that differ */
};

extern const task_row task_table[];

/* Generates the answers of a TASK_GENERATE and counts those that are right. */
err task_generate_all(const task_run *r, const task_file *t, task_score *out) MUST_USE;
/* Whether an answer matches one of those that are right. */
bool task_matches(task_match how, const char *answer, const task_question *q);

#endif
