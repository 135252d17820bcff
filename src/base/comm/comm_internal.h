/* The backend side of comm.h.
 *
 *     comm.c            what all backends share: local moves, counters, helpers for the host
 *     comm_data.c       what a collective does to the tensors of its group, as independent tasks
 *     comm_shared.c     ranks that reach one another's memory: collectives and messages
 *     comm_threads.c    such ranks as threads of one process
 *     comm_process.c    ranks as processes: shared memory inside a host, messages between hosts
 *     comm_memory.c     memory of a process that other processes of its host map
 *     comm_remote.c     collectives by messages
 *     job.c             how a process learns that it is a rank; transport_*.c: how messages travel
 */
#ifndef INGOT_COMM_INTERNAL_H
#define INGOT_COMM_INTERNAL_H

#include "comm/comm.h"
#include "util/wait.h"

enum { COMM_SETS = AXES_TP_REP + 1, COMM_MAX_RANKS = 1024, COMM_NAME = 48 };
enum { COMM_BLOCK = 1024 }; /* elements that are reduced at a time */

typedef struct comm_backend {
    const char *name;
    err (*start)(comm *c, comm_ticket *t);
    err (*wait)(comm *c, comm_ticket *t);
    /* Runs a move without other ranks; NULL: on the CPU. */
    err (*local)(comm *c, const comm_ticket *t);
    void (*abort)(comm *c, const char *cause);
    void (*free)(comm *c);
    err (*map)(comm *c, size_t bytes, void **out); /* NULL: mem_map; with unmap */
    void (*unmap)(comm *c, void *p, size_t bytes);
    bool (*failed_elsewhere)(const comm *c);
    void (*set_algorithm)(comm *c, nccl_algorithm algorithm); /* NULL: it has none */
    void (*settle)(comm *c); /* counts when bytes moved of what has ended since; NULL: waits do */
} comm_backend;

struct comm {
    const comm_backend *backend; /* NULL: a world of one */
    mesh m;
    double timeout;       /* seconds */
    double stop_patience; /* after a signal; 0: the timeout */
    int core_sharers, local_rank;
    bool crowded;                /* there are more ranks than cores */
    comm *host;                  /* of a GPU's: for values of the host; NULL: itself */
    void *state;                 /* the backend's */
    int waiting;                 /* inside comm_wait; read by other threads (comm_is_waiting) */
    const comm_watcher *watcher; /* borrowed; NULL: none */
    const struct job_member *members; /* [ranks], borrowed; NULL: threads of one process */
    comm_counter count[COMM_SETS][MOVE_ILLEGAL];
};

/* ---- waits for other ranks (comm.c) -------------------------------------------------------------------------
 * A signal does not end a collective: the step is finished and saved first, which needs all ranks. But it shortens how long
 * to wait for one that may be frozen. */
double comm_patience(const comm *c); /* seconds, now */
void comm_begin_wait(const comm *c, const comm_move *m, wait_state *w);
/* Whether it has lasted too long; reported to the log from half a minute on. */
bool comm_wait_is_over(const comm *c, wait_state *w);

/* Writes "all-reduce over tp (block 3)" into buf. @return buf. */
char *comm_describe(const comm_move *m, char *buf, size_t n);

/* ---- ranks of one group ---------------------------------------------------------------------- */
typedef struct comm_group {
    int n, me, rank[COMM_MAX_RANKS];
} comm_group;
comm_group comm_group_of(const comm *c, axis_set axes);

/* ---- what a collective does (comm_data.c) ----------------------------------------------------- */
/* A collective in which all members have arrived, with tensors that can all be reached. It takes 88 KiB, for the largest
 * number of ranks: only the first n entries of each array are ever written. */
typedef struct meeting {
    comm_move move;
    int n;
    tensor in[COMM_MAX_RANKS], out[COMM_MAX_RANKS];
    const int32_t *rows[COMM_MAX_RANKS]; /* MOVE_ROWS: send_rows of each member */
} meeting;
/* A collective is divided into tasks, which may run in any order and at the same time. */
int64_t meeting_tasks(const meeting *m);
void meeting_run(const meeting *m, int64_t task);
/* @return the rows that member `to` receives from member `from`, and their offset in its tensor. */
int64_t meeting_rows(const meeting *m, int from, int to, int64_t *begin);

/* Sums, or takes the maximum of, n <= COMM_BLOCK elements of all inputs, in order, in fp32. */
void meeting_reduce(const meeting *m, int64_t at, int64_t n, float *out);
/* Copies the whole of one member's input to its part along from.dim of another's output. */
void meeting_gather(const meeting *m, int from, int to);
bool comm_rounds(dtype dt, dtype wire); /* whether a value changes on such a wire */
/* Copies n values of one type, rounded through `wire` unless it is DT_NONE or the same type. */
void comm_copy_values(dtype dt, dtype wire, const void *src, void *dst, int64_t n);
/* out = part `index` of `parts` of `in`, split along `dim`. Types are equal. */
void comm_take_slice(const tensor *in, const tensor *out, int dim, int index, int parts);

/* ---- ranks that reach one another's memory (comm_shared.c) --------------------------------------- */
/* The state that `ranks` ranks share: plain memory, zeroed, without addresses in it. */
typedef struct shared_world shared_world;
size_t shared_world_bytes(int ranks);
void shared_world_init(shared_world *w, int ranks);

/* How ranks of other processes reach a tensor. start: publishes it. @return what stands for its address.
 * reach: the address here of what another rank published. end: after the last use; of what was written by
 * others, the first `bytes` count. */
typedef struct shared_memory {
    void *(*start)(void *ctx, const tensor *t, bool written);
    void *(*reach)(void *ctx, int index, void *published);
    void (*end)(void *ctx, const tensor *t, void *published, bool written, size_t bytes);
    void *ctx;
} shared_memory;

/* One rank's side of it. */
typedef struct shared_end shared_end;
/* @param index of each rank of the mesh in `w`, borrowed; NULL: all of them, in order. @param memory NULL:
 * one address space. */
shared_end *shared_end_new(shared_world *w, const int *index, const shared_memory *memory);
void shared_end_free(shared_end *s); /* takes NULL */
err shared_start(comm *c, shared_end *s, comm_ticket *t) MUST_USE;
err shared_wait(comm *c, shared_end *s, comm_ticket *t) MUST_USE;
/* @param rank the one that gave up. */
void shared_abort(shared_end *s, int rank, const char *cause);

/* @return whether another rank than this one gave up first. */
bool shared_failed_elsewhere(const shared_end *s, int rank);

/* ---- messages between processes (transport_*.c) ---------------------------------------------------------- */
/* Messages between two ranks with one tag arrive in the order they were sent. Not thread-safe. */
typedef struct transport transport;
typedef struct transport_request {
    uint64_t handle; /* the transport's */
    size_t bytes;
    int peer;
    bool receives;
} transport_request;
enum { TRANSPORT_TAGS = 1 << 26, TRANSPORT_MAX_BYTES = 1 << 28 }; /* of one message */
struct transport {
    const char *name; /* "MPI" */
    int rank, ranks;
    err (*send)(transport *w, int to, int tag, const void *from, transport_request *r);
    err (*recv)(transport *w, int from, int tag, void *to, transport_request *r);
    err (*test)(transport *w, transport_request *r, bool *done);
    /* @return an error when a rank has ended. NULL: whatever started the job ends all ranks then. */
    err (*watch)(transport *w);
    void (*close)(transport *w); /* on all ranks together */
    void *state;
};
/* @param stalled ends the process when not all ranks have started within `timeout` seconds. */
err transport_mpi_open(double timeout, void (*stalled)(void), transport **out) MUST_USE;
/* Ranks 0 .. ranks-1 meet at the address of rank 0. */
err transport_tcp_open(int rank, int ranks, const char *host, int port, double timeout,
                       transport **out) MUST_USE;

/* Connects every pair of ranks. @param fds [ranks], -1 for the rank itself; after an error those that are open stay with
 * the caller. */
err tcp_meet(int rank, int ranks, const char *host, int port, double timeout, int *fds) MUST_USE;
err tcp_rank_lost(int rank) MUST_USE;

/* Gathers `bytes` of every rank, in rank order, on all of them. Blocks. */
err transport_gather(transport *w, double timeout, const void *mine, void *all,
                     size_t bytes) MUST_USE;

/* ---- jobs (job.c) -------------------------------------------------------------------------------------- */
enum { JOB_HOST = 64 };
typedef struct job_member { /* what every rank knows of every other */
    char host[JOB_HOST];
    uint64_t machine; /* equal where processes can share memory */
    uint64_t cores;   /* equal where they use the same cores */
} job_member;
struct comm_job {
    transport *w;
    double timeout;
    job_member *members; /* [ranks] */
};

/* ---- collectives by messages (comm_remote.c) ---------------------------------------------------------- */
typedef struct remote_end remote_end;
/* @param lost called, by a thread of its own, when a rank has ended; NULL: not asked. */
remote_end *remote_end_new(transport *w, void (*lost)(void *ctx, err e), void *ctx);
void remote_end_free(remote_end *r); /* takes NULL */
err remote_start(comm *c, remote_end *r, comm_ticket *t) MUST_USE;
/* @param failed whether to give up, asked now and then; NULL: never. */
err remote_wait(comm *c, remote_end *r, comm_ticket *t, bool (*failed)(const comm *c)) MUST_USE;

/* ---- memory that processes of a host share (comm_memory.c) ------------------------------------------------ */
/* Segments are memory without a name in any file system, so nothing is left when a process dies. Other
 * processes open them through /proc. */
typedef struct shared_segment {
    int pid, fd;
    size_t bytes;
} shared_segment;
err segment_new(size_t bytes, shared_segment *out, void **at) MUST_USE;
err segment_map(const shared_segment *s, void **at) MUST_USE;
void segment_free(shared_segment *s, void *at);

#endif
