/* plan: the memory of a run, and the instances of its programs. Depends on record.h.
 *
 * A program is a template. A *chain* runs first -> block x layers -> last; each use of a program in it
 * is an instance with its own table of addresses, resolved once when the plan is committed.
 *
 * One arena holds a run. Regions are reserved by name before plan_commit maps it:
 *
 *     | tokens | ... | params | grads | caller's own | saved | block inputs | residual | temp | work | gathered |
 *       inputs         buckets, per layer              by plan_chain            shared by all chains
 *
 * Given `mesh m`, `chain c` and `bucket_finder find`:
 *
 *     int id;
 *     plan *p = plan_new(&m, ops_cpu(OPS_ISA_BEST), 2);
 *     int state = plan_region(p, "optimizer", 1 << 20);
 *     TRY(plan_chain(p, &c, find, NULL, &id));        // refuses ops the backend cannot run
 *     TRY(plan_commit(p));
 *     float *moments = plan_data(p, state);
 */
#ifndef INGOT_PLAN_H
#define INGOT_PLAN_H

#include "prog/record.h"
#include "prog/timetable.h"

/* Blocks may be of several kinds, each with a program of its own. */
enum { CHAIN_KINDS = 20 };
/* The programs of plan_program that run after a step's microbatches. */
typedef enum {
    END_TIED,   /* a table that two stages hold: they add up their gradients */
    END_DECIDE, /* the caller sets what the update reads (exec_hooks.update) */
    END_NORM,   /* the gradient's norm */
    END_UPDATE,
    END_BESIDE, /* the update of a layer in host memory, beside the next step, which awaits its event */
    END_HALF /* a part of the norm of the gradient that the first half of a step's microbatches left */
} end_kind;
/* A list of a program that accumulates gradients of parameters, which no other list writes. */
typedef struct grad_list {
    const prog *p;
    int layer; /* -1: outside blocks */
    int list;  /* the kind of instruction that runs it */
} grad_list;
typedef struct chain_end {
    end_kind kind;
    const prog *p; /* NULL: none */
    int id;
    int layer;       /* END_BESIDE: -1: outside blocks, the first of them */
    bool stored;     /* ... parameters are there too: another event follows what is copied back */
    grad_list after; /* END_HALF, in a pipeline: the list that it runs behind */
} chain_end;

typedef struct chain {
    prog *begin,
        *end; /* what every rank runs before and after a step's microbatches; NULL: nothing */
    prog *first, *block[CHAIN_KINDS], *last; /* block[k] NULL: there are k kinds */
    const uint8_t
        *kind;  /* [layers] which of the kinds each block is; borrowed. NULL: all are the first */
    int layers; /* of all ranks along pp together */
    int keep_every; /* recompute: keep the input of every n-th block only; 0: keep everything */
    int keep_last;  /* ... but keep everything of the last n blocks */
    /* Slots of saved values that all segments share, set by chain_normal: one per block of a segment, or two for segments of
     * one block, where a block would overwrite the residual that the one before it saved. */
    int segment_slots;
    pipeline pipe; /* how the ranks along pp share it; all zero: there is one */
    int micros;    /* the most microbatches of a step; 0 reads as 1 */
    /* Parameters that are stored in slices (ZeRO-3): */
    int prefetch;       /* gather those of the program that comes n later while one runs */
    bool keep_gathered; /* gather them once per step, and keep them; else what slots hold */
    /* Borrowed: */
    const chain_end *tied; /* of the model; NULL: none */
    const chain_end
        *end_list; /* [ends] of the optimizer; none: a step ends with its microbatches */
    int ends;
    /* [halves] of the optimizer: what runs behind the first half of an even number of microbatches. Without a pipeline
     * it is one program; else the first one clears what the others, each behind a list, add to. */
    const chain_end *half;
    int halves;
    /* [besides] by layer + 1, set by plan_chain_as_run: updates that run beside the step, whose parameters are gathered no
     * earlier than they must. */
    const bool *beside;
    int besides;
} chain;

/* @return the program of a layer's block. */
static inline prog *chain_block(const chain *c, int layer) {
    return c->block[c->kind ? c->kind[layer] : 0];
}

/* Finds the next list of a chain that accumulates gradients. @param i 0 at first. @return false: there is none */
bool chain_grad_list(const chain *c, int *i, grad_list *out);
/* Whether it writes the gradient of the parameter at this offset of a bucket. */
bool grad_list_writes(const grad_list *g, int layer, int bucket, int64_t offset);

typedef struct plan plan;
plan *plan_new(const mesh *m, const op_backend *backend, int threads);
void plan_free(plan *p);             /* takes NULL */
bool plan_has_device(const plan *p); /* else its memory is the process's own */
/* Reserves bytes. @return the region's index. Regions are in the order they were reserved, each at a
 * page boundary; the rest of a region's last page is zero, and stays so. */
enum { PLAN_PAGE = 4096 };
int plan_region(plan *p, const char *name, size_t bytes);
/* The same in host memory, which the device's kernels reach over the bus. It is not part of the arena;
 * without a device it is. */
int plan_region_host(plan *p, const char *name, size_t bytes);
size_t plan_host_bytes(const plan *p);
/* @return the bytes reserved by plan_region_host, with or without a device. */
size_t plan_offloaded_bytes(const plan *p);
/* @return the bytes of all regions of this name; NULL: of the whole arena. */
size_t plan_bytes(const plan *p, const char *name);
int plan_region_count(const plan *p);
/* @param bytes in the arena */
const char *plan_region_info(const plan *p, int index, size_t *bytes);
/* @return the bytes that plan_region_host reserved as this region, with or without a device. */
size_t plan_region_offloaded(const plan *p, int index);

/* Which regions hold a bucket and its gradient (-1: none). layer is -1 for first and last. */
typedef struct bucket_regions {
    int param, grad;
} bucket_regions;
typedef bucket_regions (*bucket_finder)(void *ctx, int bucket, int layer);

/* Adds a chain's instances and memory. Programs are borrowed. @param which the chain's index.
 * @return an error that names the op when the backend lacks a kernel or an attribute. */
err plan_chain(plan *p, const chain *c, bucket_finder find, void *ctx, int *which) MUST_USE;
/* Adds a program that runs on its own (PROG_UPDATE), and its memory. Borrowed. @param layer -1: of none. @param
 * which its index. */
err plan_program(plan *p, prog *g, int layer, int *which) MUST_USE;
/* @return the offset of a region in the arena, in bytes: those before it have been reserved. */
size_t plan_offset(const plan *p, int index);
/* Declares that work on QUEUE_UPDATE may still be using what a block (-1: the programs outside
 * blocks) reads and writes when a chain begins: the chain waits for event layer + 1 before it. */
void plan_await_update(plan *p, int layer);
/* @return a chain with the updates beside the step that it awaits in this plan, which its list depends on; valid until the next
 * plan_await_update. */
chain plan_chain_as_run(const plan *p, const chain *c);
/* Before plan_commit: maps the arena where the ranks of this world reach it, which spares communication a
 * copy. @param c borrowed; outlives the plan. */
void plan_share(plan *p, comm *c);
/* Maps the arena and resolves every address. */
err plan_commit(plan *p) MUST_USE;
/* Addresses in the arena: memory of the backend's device, which only its kernels and the calls below
 * reach. On the CPU it is the process's own. */
void *plan_data(const plan *p, int index);
/* An input's memory; NULL when no program has it. Where several microbatches are under way at once, each
 * has a slot. */
void *plan_input(const plan *p, const char *name, int slot);
typedef struct input_info {
    dtype dt;
    placement pl; /* as programs recorded it: which part of it this rank holds */
    size_t bytes; /* of a slot */
} input_info;
/* @return false when no program has it. */
bool plan_input_info(const plan *p, const char *name, input_info *out);
void plan_put(const plan *p, void *to, const void *from, size_t bytes);
err plan_get(const plan *p, void *to, const void *from, size_t bytes) MUST_USE;
/* Deferred reads: fetch queues the copy behind the calls of queue q so far and returns at once; take waits
 * for that copy alone. A ticket starts as all zero, can be reused, and is dropped at the end. */
void plan_fetch(const plan *p, device_queue q, device_ticket *t, const void *from, size_t bytes);
err plan_take(const plan *p, device_ticket *t, void *to) MUST_USE;
/* Like take, without a copy. @param bytes the ticket's own memory, on the host: valid until its next
 * fetch, and for any thread. */
err plan_wait(const plan *p, device_ticket *t, const void **bytes) MUST_USE;
void plan_drop(const plan *p, device_ticket *t);
/* Memory of the device beside the plan's, for copies of what it holds; NULL: without a device, or where it would leave
 * too little. copy queues one on q; pull, which any thread may call, brings bytes to the host through q. */
void *plan_map_spare(const plan *p, size_t bytes);
void plan_unmap_spare(const plan *p, void *at, size_t bytes); /* takes NULL */
void plan_copy(const plan *p, device_queue q, void *to, const void *from, size_t bytes);
/* Copies n rows within an input of prog_input_per_layer, in each layer. @param rows of a layer's memory */
void plan_copy_rows(const plan *p, const char *name, int64_t rows, int64_t to, int64_t from,
                    int64_t n);
err plan_pull(const plan *p, device_queue q, device_ticket *t, const void *from, size_t bytes,
              void *to) MUST_USE;

/* Adds the instructions of a rank along pp as text: U3 starts to gather what the update left of block 3 in slices, u3
 * waits for it; G3 starts to gather its parameters, g3 waits for them; F3, B3 and W3 run its lists, R3 starts to reduce
 * its gradients, r3 waits; H measures the gradient of the first half. What is repeated is in parentheses, behind the number of times. */
err chain_print_steps(const chain *c, int rank, int micros, str *out) MUST_USE;

/* Plays the communication of every rank's chain side by side, without running it, and proves that each
 * collective and each message meets its partners. @param chains one per rank, in rank order. */
err plan_check_ranks(const mesh *m, const chain *chains, int ranks) MUST_USE;

#endif
