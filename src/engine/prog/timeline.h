/* timeline: what of a plan's memory is live while a chain runs, op by op. Nothing runs: the instructions of a
 * step are played, as the checker plays them. Depends on plan.h.
 *
 * Given a committed `plan *p` and the chain `int train` in it:
 *
 *     timeline t;
 *     TRY(timeline_make(p, train, 4, &t));
 *     printf("most at %s, %s\n", t.at[t.peak].program, t.at[t.peak].op);
 *     timeline_free(&t);
 */
#ifndef INGOT_TIMELINE_H
#define INGOT_TIMELINE_H

#include "prog/plan.h"

typedef enum {
    LIVE_TEMP,     /* within a list of a program */
    LIVE_SAVED,    /* for backward, with block inputs */
    LIVE_PASSED,   /* the residual, values that programs carry, and their gradients */
    LIVE_GATHERED, /* parameters that are stored in slices */
    LIVE_GRADS,    /* gradients on their way to slices */
    LIVE_WORK,     /* workspace of the op */
    LIVE_KINDS
} live_kind;
extern const char *const live_names[LIVE_KINDS];

/* While an op runs. */
typedef struct live_moment {
    const char *program, *list, *op; /* borrowed from the plan, as all texts here */
    const char *file;                /* where the model's source recorded it */
    int line, layer, micro;          /* layer -1: outside of blocks */
    size_t bytes[LIVE_KINDS];
} live_moment;
typedef struct live_value {
    const char *program, *op, *file; /* of the op that made it */
    int line, layer;
    live_kind kind;
    size_t bytes;
    int from, to; /* the moments at which it is live */
} live_value;

typedef struct timeline {
    live_moment *at;
    int n, peak;       /* the moment at which most is live */
    size_t fixed;      /* parameters, gradients, optimizer state and inputs: live all the time */
    live_value *value; /* all, the largest first */
    int values;
} timeline;
/* @param micros microbatches of the step; without a pipeline one of them is played, the others being like it */
err timeline_make(plan *p, int which, int micros, timeline *out) MUST_USE;
void timeline_free(timeline *t); /* takes a zeroed one */
size_t timeline_bytes(const live_moment *m);

#endif
