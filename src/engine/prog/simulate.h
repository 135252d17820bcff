/* simulate: how long a step takes, by playing the instruction lists that the executor runs against what ops
 * and communications cost. Nothing is allocated on a device and nothing runs. Depends on plan.h.
 *
 * Ranks along all axes but pp do the same work, so one of each pipeline stage is played. A rank has a compute
 * queue, on which calls run one after another, and for each set of axes a queue of its own on which
 * communications follow each other beside it: START takes the queue when both are free, WAIT holds the
 * compute queue until the communication has ended. A message arrives at the next stage when its sender's link
 * has carried it.
 *
 *     compute    | F1 ---------- | F2 ---------- wait | F3 ----
 *     dp_shard     | gather 2 ---- | gather 3 ------- |
 *                                                ^^^^ exposed; the rest is hidden
 *
 * Given `chain train` of a model, `mesh m` and `sim_costs costs`:
 *
 *     sim_result r;
 *     TRY(sim_chain(&train, &m, &costs, NULL, &r));
 *     printf("%g s, %g %% of it idle\n", r.seconds, 100 * r.bubble);
 */
#ifndef INGOT_SIMULATE_H
#define INGOT_SIMULATE_H

#include "prog/plan.h"

enum { SIM_LINK_HOST = 1, SIM_LINK_NETWORK = 2, SIM_LINKS = 2 };
typedef struct sim_costs {
    /* Seconds that a call keeps the compute queue busy. @param program its program's name */
    double (*call)(void *ctx, const char *program, const op_call *c);
    /* Seconds that a communication keeps its queue busy. @param bytes of the larger of its two tensors, as they
     * cross between ranks */
    double (*move)(void *ctx, const mesh *m, const comm_move *move, double bytes);
    /* The physical links that it occupies, bits of sim_link; NULL: none. Communications on one link share it. */
    unsigned (*links)(void *ctx, const mesh *m, const comm_move *move);
    /* Seconds that a fetch keeps the bus from host memory busy; NULL: none. */
    double (*fetch)(void *ctx, double bytes);
    /* Seconds of compute lost to each second of communication that it hides: both need SMs and memory. */
    double interference;
    /* Seconds of the host per call that it starts; calls wait for it. */
    double launch;
    /* Communication over the axes that gradients are reduced over runs after the step's last task, and nothing beside it. */
    bool late;
    void *ctx;
} sim_costs;

/* An instruction as it was played, for timetables. */
typedef enum { SIM_FEED, SIM_FORWARD, SIM_BACKWARD, SIM_WEIGHTS, SIM_LOSS } sim_task;
typedef struct sim_event {
    sim_task task;
    int rank, chunk, micro; /* rank along pp */
    int layer;              /* -1: outside blocks */
    double begin, end;
} sim_event;
typedef struct sim_watch {
    void (*event)(void *ctx, const sim_event *e); /* in order for each rank */
    void *ctx;
} sim_watch;

typedef struct sim_result {
    double seconds;                  /* of a step's microbatches, with its reductions and gathers */
    double update;                   /* of what it ends with */
    double compute, exposed, hidden; /* of a rank, on average: calls; communication */
    double bubble;                   /* share of the time in which a rank waits for another stage */
} sim_result;
/* Plays a step of c->micros microbatches. @param watch NULL: disabled */
err sim_chain(const chain *c, const mesh *m, const sim_costs *costs, const sim_watch *watch,
              sim_result *out) MUST_USE;

/* Holds the time and memory of one instance of a program: the terms of closed forms. Seconds and bytes. */
typedef struct prog_price {
    double forward, again, backward; /* again: the last forward of a segment that is recomputed */
    double weights;                  /* where backward puts them off */
    double saved, block_input, residual, temp, gathered, whole_grad;
    double carried; /* of values that it leaves for later programs, and their gradients */
} prog_price;
/* @param accumulates a step has several microbatches */
prog_price sim_price(const prog *p, const mesh *m, const sim_costs *costs, bool accumulates);
double prog_saved_bytes(const prog *p);
double prog_temp_bytes(const prog *p);
/* A value that a program saves until backward. */
typedef struct saved_value {
    double bytes;
    dtype dt;
    placement pl;
    op_code by, reader; /* that computes it, and that reads it first in the forward list */
    bool backward;      /* backward computes it, for weight gradients that are deferred */
} saved_value;
/* Finds the next saved value of a program. @param i 0 at first. @return false: there is none */
bool prog_next_saved(const prog *p, int *i, saved_value *out);
/* Seconds of a program that runs on its own; not of updates that the bus from host memory limits. */
double sim_program(const prog *p, const mesh *m, const sim_costs *costs);
/* Seconds for a stage to pass a residual on. */
double sim_message(const chain *c, const mesh *m, const sim_costs *costs);

#endif
