/* The backend side of comm.h.
 *
 *     comm.c            what all backends share: local moves, counters, helpers for the host
 *     comm_data.c       what a collective does to the tensors of its group, as independent tasks
 *     comm_shared.c     ranks that reach one another's memory: collectives and messages
 *     comm_threads.c    such ranks as threads of one process
 */
#ifndef INGOT_COMM_INTERNAL_H
#define INGOT_COMM_INTERNAL_H

#include "comm/comm.h"

enum { COMM_SETS = 1 << AX_COUNT, COMM_MAX_RANKS = 128, COMM_NAME = 48, COMM_MAX_OPEN = 32 };

typedef struct comm_backend {
    const char *name;
    err (*start)(comm *c, comm_ticket *t);
    err (*wait)(comm *c, comm_ticket *t);
    void (*abort)(comm *c, const char *cause);
    void (*free)(comm *c);
} comm_backend;

struct comm {
    const comm_backend *backend; /* NULL: a world of one */
    mesh m;
    double timeout; /* seconds */
    void *state;    /* the backend's */
    comm_counter count[COMM_SETS][MOVE_ILLEGAL];
};

/* "all-reduce over tp (block 3)": written into buf, which is returned. */
char *comm_describe(const comm_move *m, char *buf, size_t n);

/* ---- ranks of one group ---------------------------------------------------------------------- */
typedef struct group {
    int n, me, rank[COMM_MAX_RANKS];
} group;
group group_of(const comm *c, axis_set axes);

/* ---- what a collective does (comm_data.c) ----------------------------------------------------- */
/* A collective in which all members have arrived, with tensors that can all be reached. */
typedef struct meeting {
    comm_move move;
    int n;
    tensor in[COMM_MAX_RANKS], out[COMM_MAX_RANKS];
    const int32_t *rows[COMM_MAX_RANKS]; /* MOVE_ROWS: send_rows of each member */
} meeting;
/* It falls into tasks, which may run in any order and at the same time. */
int64_t meeting_tasks(const meeting *m);
void meeting_run(const meeting *m, int64_t task);
/* Rows that member `to` gets from member `from`, and where they begin in its tensor. */
int64_t meeting_rows(const meeting *m, int from, int to, int64_t *begin);

/* Copies n values of one type, rounded through `wire` unless it is DT_NONE or the same type. */
void comm_copy_values(dtype dt, dtype wire, const void *src, void *dst, int64_t n);
/* out = part `index` of `parts` of `in`, split along `dim`. Types are equal. */
void comm_take_slice(const tensor *in, const tensor *out, int dim, int index, int parts);

/* ---- ranks that reach one another's memory (comm_shared.c) --------------------------------------- */
/* The state that `ranks` ranks share: plain memory, zeroed, without addresses in it. */
typedef struct shared_world shared_world;
size_t shared_world_bytes(int ranks);
void shared_world_init(shared_world *w, int ranks);

/* One rank's side of it. */
typedef struct shared_end shared_end;
shared_end *shared_end_new(shared_world *w);
void shared_end_free(shared_end *s); /* takes NULL */
err shared_start(comm *c, shared_end *s, comm_ticket *t) MUST_USE;
err shared_wait(comm *c, shared_end *s, comm_ticket *t) MUST_USE;
void shared_abort(comm *c, shared_end *s, const char *cause);

#endif
