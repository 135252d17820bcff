/* The inside of a plan (plan.c): regions of one arena, chains and programs that live in it. */
#ifndef INGOT_PROG_PLAN_INTERNAL_H
#define INGOT_PROG_PLAN_INTERNAL_H

#include "prog/execute.h"
#include "prog/chain_internal.h"

enum { REGION_NAME = 32 };

typedef struct region {
    char name[REGION_NAME];
    size_t bytes, at;   /* at: offset in the arena, set by plan_commit */
    bool host;          /* ... or in the host's */
    bool offloaded;     /* reserved for the host, whether or not there is a device */
    input_info input;   /* of an input's region */
    size_t stride;      /* of its slots; 0: there is one */
    size_t layer_bytes; /* of each layer's part; 0: layers share it */
} region;
enum { MOST_LATE = 16 };
/* Exchanges of rows that may be open at once. */
enum { ROW_TURNS = 8 };
/* Gathers of updated parameters that may be open at once. */
enum { MOST_AHEAD = 15 };
/* States whether this rank has what others updated of a layer's bucket. */
typedef enum { PARAMS_WHOLE, PARAMS_IN_SLICES, PARAMS_MOVING } params_state;

struct plan {
    mesh m;
    const op_backend *backend;
    int threads;
    region *region;
    int regions, region_cap;
    chain_plan *chain;
    int chains, chain_cap;
    instance *program; /* that run on their own */
    int programs, program_cap;
    open_comm late_ring[MOST_LATE];
    open_comms late; /* that outlive the program that started them */
    open_comm updated_ring[MOST_AHEAD];
    open_comms updated; /* gathers of updated parameters */
    uint8_t *params;    /* [params_cap] params_state, by layer + 1 and bucket */
    int params_cap;
    uint64_t begun[AXIS_SETS]; /* communications, by set of axes */
    /* Of the last exchanges of rows: to each rank, from each rank, and what these are counted by. */
    int32_t *row_counts; /* [ROW_TURNS][row_counts_each]; NULL: there was none */
    int64_t row_counts_each;
    unsigned row_turn;
    size_t temp_bytes, work_bytes;
    size_t update_work_bytes;                /* of calls on QUEUE_UPDATE */
    size_t gathered_bytes, whole_grad_bytes; /* of the slots of the chain that has most */
    int input_slots;                         /* microbatches whose inputs are there at once */
    bool fetches;                            /* some programs fetch parameters from host memory */
    bool *
        awaits; /* [awaits_cap] whether chains await this event of QUEUE_UPDATE, before that instance */
    int awaits_cap;
    int temp, work, update_work, step, gathered, whole_grad; /* regions, made by plan_commit */
    comm *comm;         /* borrowed; NULL: only this rank reaches the arena */
    void *arena, *host; /* host: memory of the host, for a device */
    size_t arena_bytes, host_bytes;
};
/* The bytes of a slot of inputs are a multiple of this. */
enum { INPUT_ALIGN = 64 };
void plan_add_input(plan *p, const prog_val *v, int layers);

#endif
