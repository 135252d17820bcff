/* The list of instructions of a step: what it consists of, who makes it (steps.c, slots.c) and how it is read
 * (step_cursor). */
#ifndef INGOT_PROG_STEP_LIST_INTERNAL_H
#define INGOT_PROG_STEP_LIST_INTERNAL_H

#include "prog/execute.h"
#include "prog/prog_internal.h"

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

/* The kinds of instructions, each with its name in traces and its letter in dumps; NULL: dumps show it otherwise, or
 * not. Switches over them have no default, so that a new one is a compiler's warning in each of its readers. */
/* clang-format off */
#define INSTR_KINDS(X)                                                                             \
    X(FEED, "inputs", NULL)         /* the caller puts a microbatch's inputs in place */           \
    X(FWD, "forward", "F")          /* a program's forward list */                                 \
    X(FWD_SAVES, "recompute", "F")  /* forward again, only what backward will read */              \
    X(BWD, "backward", "B")                                                                        \
    X(WEIGHTS, "weights", "W")      /* gradients of weights that backward defers */            \
    X(GATHER, "start gather", "G")  /* gathers the parameters of a program that are stored in slices, into a slot */ \
    X(GATHERED, "wait gather", "g")                                                                \
    X(REDUCE, "start reduce", "R")  /* reduces the whole gradients that a list left in a slot */   \
    X(REDUCED, "wait reduce", "r")  /* ... and adds this rank's slice to the one it accumulates */ \
    X(GATHER_UPDATED, "start gather of updated", "U") /* gathers, in their place, parameters that the last update left in slices */ \
    X(GATHERED_UPDATED, "wait gather of updated", "u")                                             \
    X(SEND, "send", NULL)           /* begins to send what passes to the next virtual stage, or back */ \
    X(SENT, "wait send", NULL)                                                                     \
    X(RECV, "receive", NULL)                                                                       \
    X(LOSS, "losses", NULL)         /* the caller reads the losses of a microbatch */              \
    X(BEGIN, "begin", NULL)         /* the program that every rank begins a step with */           \
    X(END, "end", NULL)             /* ... and ends its microbatches with; waits for what is still being reduced */ \
    /* The programs that end a step, by end_kind. */                                               \
    X(TIED, "run", NULL)                                                                           \
    X(DECIDE, "decide", NULL)                                                                      \
    X(NORM, "run", NULL)                                                                           \
    X(UPDATE, "run", NULL)                                                                         \
    X(BESIDE, "run", NULL)                                                                         \
    X(HALF, "run", "H")             /* behind the first half of the microbatches, and before DECIDE */
/* clang-format on */
#define INSTR_KIND(id, name, letter) DO_##id,
typedef enum { INSTR_KINDS(INSTR_KIND) } instr_kind;
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
    const chain_end *end; /* DO_TIED and those after it: the program that it runs */
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
    int repeat_from, repeat_to,
        repeats; /* [from, to) run `repeats` times; 0: nothing is repeated */
    int half; /* the microbatch that DO_HALF runs behind, although it may be in what is repeated; -1: none */
    int slots[MAX_CHUNKS]; /* how many slots a chunk and those it shares them with use */
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
/* Likewise, from a timetable, which all ranks share. Without a pipeline it is that of a single
 * microbatch. */
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
/* @return the chain with 1 in place of zeros that read as 1. */
chain chain_normal(const chain *c);
const op_list *instr_list(const prog *p, instr_kind kind);
/* Whether it runs a list of a chunk's program. */
bool instr_runs_list(instr_kind kind);
/* ... that computes: neither a gather nor a reduction. */
bool instr_computes(instr_kind kind);
/* @return the rank along pp that a message of a pipeline is sent to or received from. */
int message_peer(const chain *c, int rank, const instr *i);
/* Whether a block from `layer` on, or the program after the blocks, reads carried value `which`. */
bool chain_reads_carried(const chain *c, int which, int layer);
/* Whether a message has carried value `which`, or its gradient, beside the residual: programs before the boundary leave the
 * value, and programs behind it read it. */
bool message_carries(const chain *c, int rank, const instr *i, int which);
/* @return how many values a message consists of. */
int message_values(const chain *c, int rank, const instr *i);
/* @return the move that gathers a bucket which the update leaves in slices. */
comm_move updated_move(const prog_bucket *b);
prog *chunk_program(const chain *c, const model_chunk *k, int at);
/* Whether the last segment runs forward again, too: microbatches share the memory of its values. */
bool chain_reruns_last(const chain *c);
/* @return n: the first n blocks of a chunk run forward again, the last segment of them perhaps not. */
int chunk_rerun(const chain *c, const model_chunk *k);
int chunk_segments(const chain *c, const model_chunk *k);
/* @return the first chunk of the rank whose slots have the size of this one's. They share slots, since their peaks of
 * microbatches in flight are not at the same time. */
int chain_slot_owner(const chain *c, int rank, int chunk);

#endif
