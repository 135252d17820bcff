/* The plan's inside, shared by plan.c, chain.c, steps.c, slots.c, check.c and execute.c. */
#ifndef INGOT_PLAN_INTERNAL_H
#define INGOT_PLAN_INTERNAL_H

#include "prog/execute.h"
#include "prog_internal.h"

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

/* A program at one place of a chain and for one microbatch in flight, with its own addresses. */
typedef struct instance {
    prog *p;                  /* NULL: another rank runs it */
    int layer;                /* -1 for first and last */
    void **addr;              /* [p->vals], NULL: absent */
    int gathered, whole_grad; /* the slots it is bound to */
} instance;

/* ---- the instructions of a step (steps.c) ------------------------------------------------------ */
/* Consecutive blocks that a rank runs, with what comes before the first and after the last of them. Their
 * instances are numbered: 0 is first, 1 to layers are the blocks, layers + 1 is last; then restarts,
 * one per segment that is recomputed. */
typedef struct model_chunk {
    int from, layers; /* its blocks */
    int before;       /* blocks of this rank's chunks before it */
    int stage;        /* virtual */
    bool first, last; /* it begins with the embedding, ends with the loss */
} model_chunk;
/* @param rank along pp */
model_chunk chain_chunk(const chain *c, int rank, int index);

typedef enum {
    DO_FEED,      /* the caller puts a microbatch's inputs in place */
    DO_FWD,       /* a program's forward list */
    DO_FWD_SAVES, /* forward again, only what backward will read */
    DO_BWD,
    DO_WEIGHTS, /* gradients of weights that backward put off */
    DO_GATHER, /* starts to gather the parameters of a program that are stored in slices, into a slot */
    DO_GATHERED, /* waits until they are */
    DO_REDUCE,   /* starts to reduce the whole gradients that a list left in a slot */
    DO_REDUCED,  /* waits for that, and adds this rank's slice to the one it accumulates */
    /* The same of parameters that the last update left in slices (ZeRO 1 and 2), into their place. */
    DO_GATHER_UPDATED,
    DO_GATHERED_UPDATED,
    DO_SEND, /* begins to send what passes to the next virtual stage, or back */
    DO_SENT, /* waits until it is sent */
    DO_RECV,
    DO_LOSS,  /* the caller reads the losses of a microbatch */
    DO_GRADS, /* the caller may read the gradients that it and those before it left */
    DO_BEGIN, /* the program that every rank begins a step with */
    DO_END,   /* ... and ends its microbatches with; waits for what is still being reduced */
    /* The programs that end a step, by end_kind. */
    DO_TIED,
    DO_DECIDE,
    DO_NORM,
    DO_UPDATE,
    DO_BESIDE
} instr_kind;
typedef enum { PASS_RESIDUAL, PASS_GRADIENT, PASSES } stage_pass;
typedef struct instr {
    instr_kind kind;
    task_kind task;  /* of the timetable, that it is a part of */
    stage_pass pass; /* DO_SEND, DO_SENT, DO_RECV */
    int chunk, instance;
    int slot;   /* of the chunk's memory */
    int inputs; /* slot of the microbatch's inputs */
    int micro;
    /* Slots of gathered parameters and of whole gradients, of the pool of its program; -1: none. */
    int gathered, whole_grad;
    int bucket;           /* DO_GATHER_UPDATED, DO_GATHERED_UPDATED */
    const chain_end *end; /* DO_TIED and those after it */
    /* While the list of a microbatch is made (slots.c): */
    bool once;  /* in a step's first one alone: what it brings stays */
    bool ahead; /* for the next microbatch: not in the last one */
} instr;

/* Blocks have slots of one size; the programs around them share others. */
typedef enum { POOL_BLOCKS, POOL_OUTER, POOLS } slot_pool;
static inline slot_pool pool_of(const model_chunk *k, int at) {
    return at == 0 || at == k->layers + 1 ? POOL_OUTER : POOL_BLOCKS;
}

enum { MAX_CHUNKS = 16 };
/* All instructions of a rank for one step. Without a pipeline the microbatches between the first and the last run
 * the same ones, which are repeated. */
typedef struct step_list {
    int micros;
    instr *list;
    int n, cap;
    int repeat_from, repeat_to, repeats; /* [from, to) run so many times; 0: nothing is repeated */
    int slots[MAX_CHUNKS];               /* how many slots it uses */
    int inputs;
    int gathered[POOLS], whole_grads[POOLS];
} step_list;
/* Walks the instructions of a step in the order in which they run: all who read a list do it with this. */
typedef struct step_cursor {
    const step_list *l;
    int at, again;
} step_cursor;
/* @param out the next instruction, of its microbatch. @return false: the step has ended. */
bool step_next(step_cursor *c, instr *out);
/* @param c with its pipeline given */
err step_list_make(const chain *c, int rank, int micros, step_list *out) MUST_USE;
/* The same, of a timetable that was made already: all ranks have one. It is that of a single microbatch where there
 * is no pipeline. */
void step_list_from(const chain *c, int rank, const timetable *s, int micros, step_list *out);
void step_list_free(step_list *l);
/* Adds what a step ends with. */
void step_list_add_ends(step_list *l, const chain_end *end, int n);
/* slots.c: adds the instructions that gather parameters and reduce whole gradients. */
void step_list_add_slots(const chain *c, int rank, step_list *l);
/* Adds those that gather what the last update left in slices, before the programs that read it. */
void step_list_add_updated(const chain *c, int rank, step_list *l);
/* Plays a list and refuses one that uses a slot before its gather ended, with other parameters than the program's,
 * or that overwrites a gather or a gradient in flight. */
err step_list_check_slots(const chain *c, int rank, const step_list *l) MUST_USE;
/* The chain with what reads as 1 written as 1. */
chain chain_normal(const chain *c);
/* Whether an instruction of this kind runs this op of its list, in a microbatch. */
bool op_runs(const prog_op *o, instr_kind kind, int micro, int micros);
const op_list *instr_list(const prog *p, instr_kind kind);
/* Whether it runs a list of a chunk's program. */
bool instr_runs_list(instr_kind kind);
/* The virtual stage that a message of a pipeline goes to or comes from, as the rank along pp. */
int message_peer(const chain *c, int rank, const instr *i);
/* The gather of a bucket that the update leaves in slices: its move and, of this rank, its elements. */
comm_move updated_move(const prog_bucket *b);
prog *chunk_program(const chain *c, const model_chunk *k, int at);
/* Blocks of a chunk that run forward again, but for the last segment of them: the first n. */
int chunk_rerun(const chain *c, const model_chunk *k);
int chunk_segments(const chain *c, const model_chunk *k);

/* ---- a chain's memory (chain.c) ------------------------------------------------------------------ */
/* Memory of a chunk of layers: saved values, and those that a stage passes to its neighbors, one of each per slot. */
typedef struct chunk_plan {
    model_chunk k;
    int slots;
    int saved, block_inputs, passed; /* regions, -1: none */
    size_t slot_bytes;               /* of the values that a slot's blocks save */
    instance **inst;                 /* [slots][insts] */
    int insts;
    int *inputs;                   /* [slots] the slot of inputs that its instances are bound to */
    comm_ticket (*ticket)[PASSES]; /* [slots] of what is being sent */
} chunk_plan;

/* Communications in flight, which end in the order they began. */
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
    int residual, result;
    slot_memory gathered[POOLS], whole_grad[POOLS];
    size_t res_bytes, delta_bytes;
    step_list *list; /* by number of microbatches, as they came up */
    int lists, list_cap;
    exec_tape tape[4]; /* by whether a microbatch is the first of its step and the last */
    exec_tape end_tape[2];
} chain_plan;

enum { MOST_LATE = 16 };

/* Exchanges of rows that may be open at once. */
enum { ROW_TURNS = 8 };

/* Gathers of updated parameters that may be open at once. */
enum { MOST_AHEAD = 15 };
/* Of a bucket of a layer: whether this rank has what others updated. */
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
    comm *comm;         /* borrowed; NULL: nobody else reaches the arena */
    void *arena, *host; /* host: memory of the host, for a device */
    size_t arena_bytes, host_bytes;
};

/* Bytes to a slot of inputs are a multiple of this. */
enum { INPUT_ALIGN = 64 };
void plan_add_input(plan *p, const prog_val *v, int layers);
void chain_resolve(plan *p, chain_plan *k);
/* The instructions for a step of `micros` microbatches; without a pipeline, for one of them. */
err chain_steps(const plan *p, chain_plan *k, int micros, const step_list **out) MUST_USE;
void chain_free(plan *p, chain_plan *k);
void program_resolve(const plan *p, instance *in);
/* The step block as kernels read it, as exec_step left it. */
step_block *exec_step_at(exec *x);
/* Binds a chunk's instances of a slot to a slot of inputs. */
void chain_bind_inputs(const plan *p, chunk_plan *u, int slot, int inputs);
/* Binds the instance of an instruction to its slots of gathered parameters and whole gradients. */
void chain_bind_slots(const chain_plan *k, const instr *i);
/* Returns the address of the value that chunk `u` sends or receives in a slot. */
tensor passed_in(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                 int slot);
tensor passed_out(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                  int slot);
/* The sum of residual and delta that a stage sends. */
op_call sum_passed(const plan *p, const chain_plan *k, const chunk_plan *u, int slot);
/* task_times.c: called before and after every list that is part of a task. */
void task_times_note(exec *x, const instr *i, bool ends);

/* trace.c: events of what the executor runs. begin returns the event's number; end may be given what it was part
 * of, or NULL. */
int trace_call_begin(exec_trace *t, const op_call *c);
void trace_call_end(exec_trace *t, int at, const op_call *c, const instance *in, const prog_op *o,
                    int micro);
int trace_instr_begin(exec_trace *t);
void trace_instr_end(exec_trace *t, int at, const instr *i, const instance *in, int micro);
/* The call of an op in an instance; addr NULL gives shapes without data. */
op_call call_of(const prog *p, const prog_op *o, void *const *addr);

#endif
