/* Ranks as threads of one process: every layout has a fast parity test with no launcher. All of them see
 * the same addresses, so what comm_shared.c needs is there. */
#include "comm_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct thread_world {
    _Atomic int alive; /* endpoints not yet freed */
    shared_world *shared;
} thread_world;

typedef struct thread_end {
    thread_world *w;
    shared_end *shared;
} thread_end;

static shared_end *threads_end(comm *c) { return ((thread_end *)c->state)->shared; }

static err threads_start(comm *c, comm_ticket *t) { return shared_start(c, threads_end(c), t); }
static err threads_wait(comm *c, comm_ticket *t) { return shared_wait(c, threads_end(c), t); }
static void threads_abort(comm *c, const char *cause) {
    shared_abort(threads_end(c), c->m.rank, cause);
}

static bool threads_failed(const comm *c) {
    return shared_failed_elsewhere(((const thread_end *)c->state)->shared, c->m.rank);
}

static void threads_free(comm *c) {
    thread_end *end = c->state;
    thread_world *w = end->w;
    shared_end_free(end->shared);
    free(end);
    if (atomic_fetch_sub(&w->alive, 1) > 1) return;
    free(w->shared);
    free(w);
}

err comm_threads(mesh m, double timeout, comm **ends) {
    static const comm_backend threads = { .name = "thread",
                                          .start = threads_start,
                                          .wait = threads_wait,
                                          .abort = threads_abort,
                                          .free = threads_free,
                                          .failed_elsewhere = threads_failed };
    int n = mesh_world(&m);
    if (n > COMM_MAX_RANKS)
        return ERR("a process holds at most %d ranks, asked for %d", COMM_MAX_RANKS, n);
    thread_world *w = mem_alloc(sizeof *w);
    w->shared = mem_alloc(shared_world_bytes(n));
    shared_world_init(w->shared, n);
    atomic_store(&w->alive, n);
    for (int r = 0; r < n; r++) {
        thread_end *end = mem_alloc(sizeof *end);
        *end = (thread_end){ w, shared_end_new(w->shared, NULL, NULL) };
        ends[r] = mem_alloc(sizeof **ends);
        *ends[r] = (comm){ .backend = &threads,
                           .m = mesh_as(&m, r),
                           .timeout = timeout > 0 ? timeout : 60,
                           .core_sharers = n,
                           .local_rank = -1,
                           .crowded = n > thread_cores(),
                           .state = end };
    }
    return OK;
}
