/* The plan's inside, shared by chain.c and execute.c. */
#ifndef INGOT_PLAN_INTERNAL_H
#define INGOT_PLAN_INTERNAL_H

#include "prog/execute.h"
#include "prog_internal.h"

enum { REGION_NAME = 32 };
typedef struct region {
    char name[REGION_NAME];
    size_t bytes, at; /* at: offset in the arena, set by plan_commit */
    bool host;        /* ... or in the host's */
    bool offloaded;   /* reserved for the host, whether or not there is a device */
    input_info input; /* of an input's region */
} region;

/* A program at one place of a chain, with its own addresses. */
typedef struct instance {
    prog *p;
    int layer;   /* -1 for first and last */
    void **addr; /* [p->vals], NULL: absent */
} instance;

typedef enum {
    RUN_FWD,
    RUN_BWD,
    RUN_FWD_SAVES /* forward again, only what backward will read */
} run_kind;
typedef struct instr {
    run_kind kind;
    int instance;
} instr;

typedef struct chain_plan {
    chain c;
    bucket_finder find;
    void *find_ctx;
    int saved, block_inputs, residual, result; /* regions, -1: none */
    size_t slot_bytes;                         /* of one layer's saved values */
    size_t res_bytes, delta_bytes;
    instance *inst; /* [layers + 2]: first, blocks, last; then restarts, one per segment */
    int insts;
    instr *list;
    int instrs;
    exec_tape tape[4]; /* by whether a microbatch is the first of its step and the last */
} chain_plan;

struct plan {
    mesh m;
    const op_backend *backend;
    int threads;
    region *region;
    int regions, region_cap;
    chain_plan *chain;
    int chains, chain_cap;
    size_t temp_bytes, work_bytes;
    bool *joins; /* [join_cap] whether chains join the event of this number, before that instance */
    int join_cap;
    int temp, work, step; /* regions, made by plan_commit */
    void *arena, *host;   /* host: memory of the host, for a device */
    size_t arena_bytes, host_bytes;
};

/* Whether an instruction of this kind runs this op of its list, in a microbatch. */
bool op_runs(const prog_op *o, run_kind kind, int micro, int micros);
/* The order in which a chain's instances run: first is 0, the blocks 1 to layers, last layers + 1; then
 * one restart per recomputed segment. @param list owned by the caller. @return its length. */
int chain_order(const chain *c, instr **list);
prog *chain_program(const chain *c, int at);
/* The call of an op in an instance; addr NULL gives shapes without data. */
op_call call_of(const prog *p, const prog_op *o, void *const *addr);

#endif
