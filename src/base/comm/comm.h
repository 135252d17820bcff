/* comm: the mesh of ranks and the one communication verb. Depends on tensor.
 *
 * A rank holds one `comm` endpoint. A communication changes how a tensor is distributed over the ranks of a
 * set of mesh axes: comm_start(from -> to), later comm_wait. Which collective that is follows
 * from the two placements:
 *
 *     P -> I, R      all-reduce             S(d) -> I, R   all-gather
 *     P -> S(d)      reduce-scatter         S(d) -> S(e)   all-to-all
 *     I -> S(d)      take a slice (local)   I <-> R        nothing: only the meaning changes
 *
 * Moves that placements do not express are requested by `kind`: a maximum, rows sent by count, a shift around
 * the group, a message to one rank of it.
 *
 * In the thread of rank r, given `comm *ends[4]` from comm_threads, `int r`, and the tensors `tensor x`,
 * a partial sum on each rank of AX_TP, and `tensor y`:
 *
 *     comm_move sum = { .axes = AXIS(AX_TP), .from = PLACE_P, .to = PLACE_R };
 *     comm_ticket ticket;
 *     TRY(comm_start(ends[r], &sum, &x, &y, &ticket));     // what comes between overlaps it
 *     TRY(comm_wait(ends[r], &ticket));                    // y is the same on every rank
 */
#ifndef INGOT_COMM_H
#define INGOT_COMM_H

#include "config/choices.h"
#include "tensor/tensor.h"

/* ---- mesh: ranks as a box, the last axis varies fastest; as one of them sees it ------------- */
typedef struct mesh {
    int size[AX_COUNT]; /* 0 is read as 1 */
    int rank;           /* this one */
    int tp_rep;         /* AXES_TP_REP: a divisor of the size of tp; 0 is read as 1 */
    uint8_t order
        [AX_COUNT]; /* the axes, first to last, each as 1 + mesh_axis; all 0: as mesh_axis has them */
} mesh;
int mesh_size(const mesh *m, mesh_axis a);
int mesh_world(const mesh *m);
int mesh_coord(const mesh *m, mesh_axis a);
int mesh_span(const mesh *m, axis_set axes);  /* ranks in a group along these axes */
int mesh_index(const mesh *m, axis_set axes); /* of this rank in its group */
axis_set mesh_axes(const mesh *m);            /* those with more than one rank */
/* Fills the ranks of this one's group along `axes`, in order. @return its index in it. */
int mesh_group(const mesh *m, axis_set axes, int *members);
/* Names the group: equal for ranks of one group, different for others along the same axes. */
int mesh_group_id(const mesh *m, axis_set axes);
mesh mesh_as(const mesh *m, int rank); /* as another rank sees it */
/* @return a mesh with the axes of this one and fewer ranks, as rank 0 sees it: along each axis the smallest divisor of
 * its degree, so that what divides over this mesh divides over that one. */
mesh mesh_reduced(const mesh *m);
/* @return the number of pipeline stages, and this rank's stage. */
int mesh_stages(const mesh *m);
int mesh_stage(const mesh *m);
int mesh_first_of_stage(const mesh *m, int stage); /* the first rank of a stage */
/* @return the distance between neighbors along the axis, in ranks: 1 for the last axis. */
int mesh_stride(const mesh *m, mesh_axis a);

/* ---- the verb ---------------------------------------------------------------------------- */
typedef enum {
    MOVE_NONE, /* the bytes stay as they are */
    MOVE_SLICE,
    MOVE_ALL_REDUCE,
    MOVE_ALL_GATHER,
    MOVE_REDUCE_SCATTER,
    MOVE_ALL_TO_ALL,
    /* Not expressed by placements: comm_move.kind names them. */
    MOVE_ALL_MAX, /* the largest value of each element over the group; NaN where one is NaN */
    MOVE_ROWS,    /* all-to-all with another number of rows for each member */
    MOVE_SHIFT,   /* to the member `peer` places further, from the one as far before */
    MOVE_SEND,    /* `in` to one member */
    MOVE_RECV,    /* `out` from one member */
    MOVE_ILLEGAL
} move_kind;
move_kind move_of(place from, place to);
const char *move_name(move_kind k);

/* Channels of messages: 0 .. COMM_CHANNELS - 1. A rank has at most COMM_MAX_OPEN messages that are being sent, and as many
 * that it waits for. */
enum { COMM_CHANNELS = 16, COMM_MAX_OPEN = 32 };

typedef struct comm_move {
    axis_set axes;
    place from, to;
    move_kind kind; /* MOVE_NONE: the one of from -> to */
    /* The type that crosses between ranks: DT_NONE, the tensors' type. Another float type rounds: each rank's
     * contribution once, to nearest even, also the one a rank keeps itself; sums and maxima then run in
     * fp32. An all-reduce rounds the sum once more, since it too crosses; a reduce-scatter does not. */
    dtype wire;
    int peer; /* MOVE_SEND, MOVE_RECV: index of the other rank in the group; MOVE_SHIFT: how far */
    int channel; /* MOVE_SEND, MOVE_RECV: messages of one channel arrive in the order they are sent */
    /* MOVE_ROWS: rows (dim 0) of `in` for each member, back to back in the order of the group; filled
     * with the rows of `out` that come from each. Rows of `out` after these are not touched. */
    const int32_t *send_rows;
    int32_t *recv_rows;
    /* Who asks, for messages: the program, borrowed until the wait ends (NULL: not known), and 1 + its
     * layer (0: none). */
    const char *name;
    int layer;
    /* GPUs: the queue that `in` comes from, if not the compute queue, as device_table.native_queue has it. */
    void *after;
} comm_move;
move_kind comm_kind(const comm_move *m);

/* A communication in flight. Its tensors, and the rows it sends by, must stay in place and unaliased until
 * comm_wait, with one exception: what is reduced may be reduced in place, and the smaller of the two
 * tensors of a gather or a scatter along dim 0 may be this rank's part of the larger one. */
typedef struct comm_ticket {
    comm_move move;
    tensor in, out;
    uint64_t sequence; /* the backend's, with slot and request */
    int slot;
    void *request;
    double started;
    double moved_from,
        moved_to; /* when its bytes moved, as far as the backend knows by comm_wait */
} comm_ticket;

typedef struct comm comm;
int comm_rank(const comm *c);  /* NULL: 0, as of a process that runs alone */
int comm_world(const comm *c); /* ranks; NULL: 1 */
const mesh *comm_mesh(const comm *c);
/* comm_start hands a communication over, comm_wait ends it. All members of a group start the same
 * collectives of one set of axes in the same order; other sets, and messages, are independent of it.
 * Messages match by (axes, sender, receiver, channel), in order. A wait depends on what others have
 * started, never on what they wait for, so waits may come in any order. At most 32 of a set, and 32
 * messages between two ranks, may be open at a time.
 *
 * Sums run in rank order in fp32, so that every rank gets bit-identical results in every run. */
err comm_start(comm *c, const comm_move *move, const tensor *in, const tensor *out,
               comm_ticket *ticket) MUST_USE;
err comm_wait(comm *c, comm_ticket *ticket) MUST_USE;
/* Aborts: every communication that waits for this rank, and all later ones, fail on every rank with this cause. */
void comm_abort(comm *c, const char *cause);
/* Sets how long collectives wait for other ranks after a signal (util/wait.h); 0: as long as before it. A caller that
 * knows that none takes longer, as in a training step, so ends a run sooner that is asked to stop and has a frozen rank. */
void comm_set_stop_patience(comm *c, double seconds);
void comm_free(comm *c); /* takes NULL */

/* ---- counters ---------------------------------------------------------------------------- */
/* Counts the traffic of this rank over one set of axes with one kind of move. Bytes are those it sends by the
 * bandwidth-optimal (ring) algorithm, whatever the backend does, of the wire's type. With n members,
 *
 *     all-reduce, maximum   2 (n-1)/n of the tensor        reduce-scatter   (n-1)/n of the input
 *     all-gather            (n-1) times the input          all-to-all       (n-1)/n of the input
 *     rows                  the rows for other members     shift, send      the tensor; receive: 0
 */
typedef struct comm_counter {
    axis_set axes;
    move_kind kind;
    int64_t calls;
    double bytes;
    double wait_seconds; /* inside comm_wait */
    double open_seconds; /* from comm_start to the end of comm_wait */
    /* Time in which bytes moved: in shared memory from the first of its tasks to the last, between hosts from
     * its start until everything has arrived, on GPUs that of its kernels. And how much of it was before this
     * rank waited: what computation hides. */
    double moving_seconds, hidden_seconds;
} comm_counter;
/* Fills up to `cap` counters that are not zero, in order of axes and kind. @return how many there are. */
int comm_counters(const comm *c, comm_counter *out, int cap);
double comm_wait_seconds(const comm *c); /* of all counters, and of values of the host */
/* Writes "rank 3 (host-b)" into buf, without the host where ranks are threads. @return buf. */
char *comm_rank_name(const comm *c, int rank, char *buf, size_t n);

/* ---- watching ------------------------------------------------------------------------------ */
/* Called, in the thread that communicates, for every communication that moves bytes: when it has been
 * started, when the rank begins to wait for it, and when that wait is over. */
typedef struct comm_watcher {
    void (*started)(void *ctx, const comm_ticket *t);
    void (*waits)(void *ctx, const comm_ticket *t);
    void (*ended)(void *ctx, const comm_ticket *t);
    void *ctx;
} comm_watcher;
/* @param w borrowed; NULL: ends the watching. */
void comm_watch(comm *c, const comm_watcher *w);

/* ---- for the host, on all ranks together ------------------------------------------------------ */
/* Where `c` is NULL there is one rank, and nothing to do (comm_sum excepted). */
/* Sums n values over these axes in place; the results are bit-identical on every rank. */
err comm_sum(comm *c, axis_set axes, float *values, int64_t n) MUST_USE;
/* Gathers `bytes` of every rank, in rank order, on all of them: all [world][bytes]. */
err comm_collect(comm *c, const void *mine, size_t bytes, void *all) MUST_USE;
/* Sums doubles over all ranks, in rank order in fp64. */
err comm_total(comm *c, double *values, int n) MUST_USE;
/* Combines the bytes of all ranks by bitwise or, in place: bytes that one rank has, and the others hold as zeros,
 * are then on all of them. */
err comm_merge(comm *c, void *data, size_t bytes) MUST_USE;
/* Sets *value to the largest of all ranks'. */
err comm_largest(comm *c, int64_t *value) MUST_USE;
/* Whether everyone is well: @return `mine` where it is an error, else an error when another rank's is
 * one. All ranks call it at the same point. */
err comm_agree(comm *c, err mine) MUST_USE;

/* ---- backends ---------------------------------------------------------------------------- */
/* @return the endpoint of a single rank, whose every move is local. */
comm *comm_self(void);
/* Makes mesh_world(m) ranks in this process, one thread each; fills ends[world]. A rank that waits longer than
 * `timeout` seconds (0: 60) returns an error that names the collective, the code that requested it, and the ranks
 * that have not started it. */
err comm_threads(mesh m, double timeout, comm **ends) MUST_USE;

/* ---- ranks as processes ------------------------------------------------------------------ */
/* The job that this process was started in: by mpirun, by srun, or with the environment that torchrun and
 * Kubernetes set (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). */
typedef struct comm_job comm_job;
/* Joins it, which needs all of its processes. @param out NULL when the process was started alone; freed by
 * comm_job_close. @param timeout in seconds. @param stalled ends the process, where it waits for the others in a call of
 * MPI that does not return. */
err comm_job_open(double timeout, void (*stalled)(void), comm_job **out) MUST_USE;
int comm_job_rank(const comm_job *j);
int comm_job_ranks(const comm_job *j);
/* Compares `text` on all ranks together. @return an error where it is not the same on all of them, which names a
 * rank and a line that differ. @param what "config" */
err comm_job_compare(comm_job *j, const char *what, const char *text) MUST_USE;
/* Likewise, for the program that runs. */
err comm_job_compare_program(comm_job *j) MUST_USE;
/* @return the error with the rank and host it occurred on in front; takes ownership. */
err comm_job_name_rank(const comm_job *j, err e) MUST_USE;
/* @return seconds that a failed rank waits before it reports: its error may follow from theirs, or be
 * the same as rank 0's, and whatever started the job ends it meanwhile. @param c NULL: not known yet. */
double comm_job_wait_seconds(const comm_job *j, const comm *c);
/* Opens this rank's endpoint. Ranks of a host share memory unless `shared_memory` is false; others exchange messages.
 * The job is borrowed. */
err comm_processes(comm_job *j, const mesh *m, double timeout, bool shared_memory,
                   comm **out) MUST_USE;
/* Leaves the job; after an error without waiting for the others. Takes NULL. */
void comm_job_close(comm_job *j, bool failed);

/* ---- GPUs ---------------------------------------------------------------------------------- */
/* The GPU that holds the tensors. */
typedef struct comm_gpu {
    int number;
    void *compute; /* the queue (a cudaStream_t) in which they are computed and read */
    /* As of device_table, with its context: for what crosses in a narrower type than the tensors'. */
    void (*add)(void *context, void *stream, const tensor *a, const tensor *b, const tensor *out);
    void *context;
    nccl_algorithm algorithm; /* of all-reduces */
} comm_gpu;
/* Opens this rank's endpoint over NCCL. Host values are exchanged through `host`, which it owns. Sums run in NCCL's order: equal on
 * every rank and in every run, but not those of the CPU. On a narrower wire they run in rank order in fp32, as
 * the CPU's. */
err comm_nccl(comm *host, const comm_gpu *gpu, comm **out) MUST_USE;
/* Sets the algorithm of all-reduces over NCCL: communicators are re-created at their next use. Called on all ranks
 * together, with nothing in flight. Does nothing without NCCL. */
void comm_set_algorithm(comm *c, nccl_algorithm algorithm);

/* ---- a host's memory and cores ------------------------------------------------------------- */
/* @return how many ranks of the world use the same cores as this one, itself included. */
int comm_core_sharers(const comm *c);
/* @return this rank's number among those of its machine; -1: ranks are threads of one process. */
int comm_local_rank(const comm *c);
/* Maps large memory, like mem_map, that communication reads and writes without copies. @return an error when
 * there is not enough. */
err comm_map(comm *c, size_t bytes, void **out) MUST_USE;
void comm_unmap(comm *c, void *p, size_t bytes);
/* Whether this rank waits for others at the moment, on the host. From any thread. */
bool comm_is_waiting(const comm *c);
/* Whether another rank gave up first: then its error is the one to report. */
bool comm_failed_elsewhere(const comm *c);

#endif
