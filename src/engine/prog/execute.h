/* execute: runs the chains of a committed plan. On a device calls are only queued: nothing here waits
 * for them. What makes the same calls every time is captured the second time and replayed as one from
 * then on (a CUDA graph). Depends on plan.h.
 *
 * Given `plan *p` and the chain `int train` in it:
 *
 *     exec x = { .plan = p, .comm = comm_self(), .pool = pool_new(2) };
 *     TRY(exec_chain(&x, train, 0, 1));               // one microbatch, forward and backward
 *     tensor losses = exec_result(&x, train);
 */
#ifndef INGOT_EXECUTE_H
#define INGOT_EXECUTE_H

#include "prog/plan.h"

/* Takes the time of each call. */
typedef struct op_timer {
    void (*call)(void *ctx, const op_call *c, double seconds);
    void *ctx;
} op_timer;

/* Names the first op of several microbatches that yielded a NaN or infinity. */
typedef struct exec_finding {
    int64_t ops;    /* run so far */
    int64_t at;     /* which of them it was, from 1; 0: none */
    char text[256]; /* program, block, op, place in the source, value */
} exec_finding;

/* The first elements of what enters a block, in flight. */
typedef struct exec_sample {
    device_ticket ticket;
    int64_t n; /* elements; 0: none was taken */
    dtype dt;
} exec_sample;

typedef struct exec_trace exec_trace; /* trace.h */

/* The times at which a rank of a pipeline ran the tasks of its timetable, in their order: all zero at first. A task that computes
 * nothing is left out: the backward task of a stage that has the head alone. */
typedef struct task_time {
    task_kind kind;
    int chunk, micro;
    double at[2]; /* where it began and ended, in seconds since task_times_begin */
} task_time;
typedef struct task_times {
    task_time *of; /* [n] owned */
    int n, cap;
    double zero; /* the time_now of task_times_begin */
} task_times;

/* Lists what the caller wants noted about what runs; all zero: nothing. */
typedef struct exec_probes {
    bool check_finite;       /* stop at the first op that yields a NaN or infinity, and name it */
    exec_finding *finding;   /* check_finite: do not stop, since other ranks would wait; NULL: do */
    exec_sample *activation; /* [layers], of the next first microbatch; NULL: none is taken */
    const op_timer *timer;   /* waits for each call and times it; NULL: disabled */
    task_times *times; /* of the microbatches that run next (task_times_begin); NULL: disabled */
    exec_trace *trace; /* records what runs (trace_begin sets it); NULL: nothing does */
} exec_probes;

typedef struct exec {
    plan *plan;
    comm *comm;
    pool *pool;
    step_block step; /* `now` is the CPU's; a device has its own: exec_state_get */
    bool scaled;     /* the rows of fp8 that are in use have scales */
    exec_probes probe;
    uint64_t
        instructions; /* begun so far; a watchdog reads it from another thread (exec_progress) */
} exec;
/* @return how many instructions have begun: what stalls does not change it. From any thread. */
uint64_t exec_progress(const exec *x);

/* Runs one microbatch of a chain: forward, and backward in TRAIN. Inputs are in place already, in slot 0.
 * A pipeline runs it alone: micros is 1.
 * @param micro, micros which microbatch of how many: gradients are stored in the first, reduced
 * over the mesh with the last. */
err exec_chain(exec *x, int which, int micro, int micros) MUST_USE;
/* Hooks of the caller for each microbatch of a step: `feed` puts its inputs into a slot (plan_input) before it
 * begins; `loss` reads its losses (exec_result) before the next one overwrites them, on ranks that compute
 * losses. */
typedef struct exec_hooks {
    err (*feed)(void *ctx, int micro, int slot);
    err (*loss)(void *ctx, int micro);
    /* Sets what the update reads, once the gradients are complete; NULL: the step ends with its microbatches. */
    err (*update)(void *ctx);
    void *ctx;
} exec_hooks;
/* Runs all microbatches of a step, in the order of the chain's schedule, and what the chain ends with. */
err exec_microbatches(exec *x, int which, int micros, const exec_hooks *hooks) MUST_USE;
/* From here on the tasks of a pipeline are timed into t, until x->probe.times is NULL again. Ranks that are to be
 * compared call it together. Does nothing while a trace records, which times everything. */
void task_times_begin(exec *x, task_times *t);
/* Waits for the tasks, and completes their times. */
void task_times_read(const exec *x, task_times *t);
/* Whether this rank computes what the chain yields: of a pipeline the last one does. */
bool exec_has_result(const exec *x, int which);
/* Declares that the parameters have changed, each rank having updated its slice: chains gather what they read
 * before the programs that read it, the next one that runs them. */
void exec_params_changed(exec *x);
/* A list of calls that is the same every time: all zero at first, dropped at the end. */
typedef struct exec_tape {
    int runs;
    void *graph;
} exec_tape;
/* Runs a program of plan_program. It reads the step block as the last exec_step left it. */
err exec_program(exec *x, int which) MUST_USE;
/* Runs what a step ends with, without a chain. @param tape [2], dropped by the caller */
err exec_ends(exec *x, const chain_end *end, int n, exec_tape *tape) MUST_USE;
/* Returns the chain's result: the loss per token, or logits. Its data is an address in the plan. */
tensor exec_result(const exec *x, int which);
/* @return the address of one float per token of an EVAL chain's result: 1 if the target was the likeliest token, else 0. */
const void *exec_top1(const exec *x, int which);
/* @return the result's placement: with sequence parallelism each rank has the losses of its own tokens. */
placement exec_result_placement(const exec *x, int which);
/* The step block as kernels read it, with the values that x->step has now; its state is left as the
 * kernels wrote it. */
step_block *exec_step(exec *x);
/* The state that kernels carry from step to step, in the backend's memory. get waits. */
const step_state *exec_state(exec *x);
err exec_state_get(exec *x, step_state *out) MUST_USE;
void exec_state_set(exec *x, const step_state *s);

/* The order of queues, as in device_table. A call runs on the queue that its op_run names, with a
 * workspace that no other queue uses; without a device calls run in their turn. Reading memory waits for
 * all queues; chains await the event of QUEUE_UPDATE before the blocks that plan_await_update names. */
/* Events of QUEUE_COPY_OUT: behind the copies of a checkpoint; behind the updated parameters of a layer that are in
 * host memory (-1: outside blocks). */
enum { EVENT_COPIED = 0, EVENT_STORED = 2 };
void exec_join(exec *x, device_queue q, device_queue other);
void exec_signal(exec *x, device_queue q, int event);
void exec_await(exec *x, device_queue q, device_queue of, int event);

/* Makes the calls that `calls` makes, or replays them. */
err exec_replay(exec *x, exec_tape *t, err (*calls)(void *ctx), void *ctx) MUST_USE;
void exec_tape_drop(const plan *p, exec_tape *t);

#endif
