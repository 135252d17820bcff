/* The memory of a chain (chain.c): instances of its programs, and what of them is in flight. */
#ifndef INGOT_PROG_CHAIN_INTERNAL_H
#define INGOT_PROG_CHAIN_INTERNAL_H

#include "prog/execute.h"
#include "prog/step_list_internal.h"

/* A program at one place of a chain and for one microbatch in flight, with its own addresses. */
typedef struct instance {
    prog *p;                  /* NULL: another rank runs it */
    int layer;                /* -1 for first and last */
    void **addr;              /* [p->vals], NULL: absent */
    int gathered, whole_grad; /* the slots it is bound to */
} instance;
/* Memory of a chunk of layers: saved values, and those that a stage passes to its neighbors, one of each per slot. Chunks
 * that share slots (chain_slot_owner) have the same regions. */
typedef struct chunk_plan {
    model_chunk k;
    int slots;
    int saved, block_inputs, passed, carried; /* regions, -1: none */
    size_t slot_bytes; /* of the values that a slot's blocks save until backward */
    instance **inst;   /* [slots][insts] */
    int insts;
    int *inputs; /* [slots] the slot of inputs that its instances are bound to */
    comm_ticket (*ticket)[PASSES][1 + CARRIES]; /* [slots] of what is being sent */
} chunk_plan;
/* Holds the communications in flight, which end in the order they began. */
typedef struct open_comm {
    comm_ticket ticket;
    uint64_t number; /* among those of its set of axes */
} open_comm;
typedef struct open_comms {
    open_comm *ring; /* [cap] */
    int cap, begun, ended;
} open_comms;
/* The slots of a pool: of gathered parameters, or of whole gradients. */
typedef struct slot_memory {
    int slots;
    size_t at, bytes;  /* of the first in the plan's region; of each */
    open_comms *comms; /* [slots] */
} slot_memory;
typedef struct chain_plan {
    chain c;
    bucket_finder find;
    void *find_ctx;
    chunk_plan *chunk;   /* [c.pipe.chunks] */
    instance begin, end; /* of those of the chain */
    int residual, result, top1;
    int shared; /* region of what blocks save until a task ends (chain_reruns_last); -1: none */
    slot_memory gathered[POOLS], whole_grad[POOLS];
    size_t res_bytes, delta_bytes;
    step_list *list; /* by number of microbatches, as they came up */
    int lists, list_cap;
    exec_tape tape[4]; /* by whether a microbatch is the first of its step and the last */
    exec_tape end_tape[2];
} chain_plan;
void chain_resolve(plan *p, chain_plan *k);
/* Finds or makes the instructions for a step of `micros` microbatches. */
err chain_steps(const plan *p, chain_plan *k, int micros, const step_list **out) MUST_USE;
void chain_free(plan *p, chain_plan *k);
void program_resolve(const plan *p, instance *in);
/* Binds a chunk's instances of a slot to a slot of inputs. */
void chain_bind_inputs(const plan *p, chunk_plan *u, int slot, int inputs);
/* Binds the instance of an instruction to its slots of gathered parameters and whole gradients. */
void chain_bind_slots(const chain_plan *k, const instr *i);
/* @return the residual, or its gradient, that chunk `u` sends or receives in a slot. */
tensor passed_in(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                 int slot);
tensor passed_out(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                  int slot);
/* @return a carried value, or its gradient, which is sent from where it was received or computed. */
tensor passed_carried(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                      int slot, int which);
/* @return the sum of residual and delta that a stage sends. */
op_call sum_passed(const plan *p, const chain_plan *k, const chunk_plan *u, int slot);

#endif
