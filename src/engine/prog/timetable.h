/* timetable: when which rank of a pipeline works on which microbatch. Depends on util and config.
 *
 * The blocks of a model are divided over the ranks of the pp axis. A rank holds one or more chunks of
 * consecutive blocks; chunk c of rank s is *virtual stage* c * ranks + s, so that a microbatch passes
 * from rank to rank, once around for each chunk. A schedule determines which rank works on which microbatch
 * when. It is made by playing the pipeline in units of time, a forward task being one unit and a backward
 * task two, or one for the gradient of its input and one for those of its weights. So each rank's order
 * is part of an execution that ends: no rank waits for ever.
 *
 *     GPipe         all microbatches forward, then all backward; holds all of them at once
 *     1F1B          one backward as soon as one can be: rank s holds at most ranks - s microbatches
 *     Interleaved1F1B   the same with several chunks per rank: less idle time, more communication
 *     ZeroBubble    1F1B with weight gradients deferred to where a rank would be idle
 *
 *     timetable s;
 *     TRY(timetable_make(&(pipeline){ .ranks = 4, .chunks = 1, .kind = PIPE_1F1B }, 8, &s));
 *     const pipeline_task *first = &s.of[2][0];       // what rank 2 does first
 *     timetable_free(&s);
 */
#ifndef INGOT_TIMETABLE_H
#define INGOT_TIMETABLE_H

#include "config/choices.h"
#include "util/util.h"

/* Virtual stages that may be divided one by one. */
enum { MOST_SPLIT_STAGES = 512 };

typedef struct pipeline {
    int ranks;  /* along pp */
    int chunks; /* of each rank */
    pipeline_schedule kind;
    bool forward_only;
    /* Layers are divided as if the embedding and the head were this many layers. */
    int first_less, last_less;
    /* Or as given, by virtual stage: the first block of each, and where the last one ends. 0: not given */
    int split_stages;
    uint16_t split_from[MOST_SPLIT_STAGES + 1];
} pipeline;

typedef enum {
    TASK_FORWARD,
    TASK_BACKWARD, /* with ZeroBubble: the gradient of the input alone */
    TASK_WEIGHTS   /* the gradients of the weights, deferred */
} task_kind;

typedef struct pipeline_task {
    task_kind kind;
    int chunk, micro;
    int begin, end; /* units of time */
} pipeline_task;

typedef struct timetable {
    pipeline p;
    int micros;
    pipeline_task **of; /* [ranks][tasks] */
    int tasks;          /* of each rank */
    int length;         /* units of time until the last task ends */
} timetable;

/* The blocks of a chunk are [*from, *to) of all: equal shares, unless the pipeline states others. Only the first and
 * the last virtual stage may have none. */
void pipeline_blocks(const pipeline *p, int layers, int rank, int chunk, int *from, int *to);
/* @return an error, with the remedy, for a pipeline that this schedule cannot run. */
err timetable_make(const pipeline *p, int micros, timetable *out) MUST_USE;
void timetable_free(timetable *s);
bool pipeline_splits_backward(const pipeline *p);
/* @return the share of time that ranks are idle. */
double timetable_bubble(const timetable *s);
/* Appends a line per rank with a column per unit of time: 3 is microbatch 3 forward, `3 its backward, .3 its weights. */
void timetable_print(const timetable *s, str *out);

#endif
