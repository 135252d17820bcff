/* Ranks as processes. A group whose ranks are all on one host meets in shared memory (comm_shared.c), any
 * other exchanges messages (comm_remote.c).
 *
 * The first rank of a host makes the memory that all of its ranks map: the world of comm_shared.c, then a
 * table of every rank's segments. Tensors in a segment (comm_map: the arena of a plan) are read and
 * written where they are. Others are copied to a segment when a communication starts and back when it ends:
 *
 *     address published = segment << 44 | offset     (1 + its number in the rank's table)
 */
#include "comm_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 256, OFFSET_BITS = 44, LEAST_BOUNCE = 1 << 16 };

typedef struct own_segment {
    char *at;
    bool bounce, used; /* for tensors outside a segment; one has it */
} own_segment;

typedef struct host_memory {
    int me, ranks;                         /* on this host */
    shared_segment (*table)[MAX_SEGMENTS]; /* shared: [ranks] */
    own_segment own[MAX_SEGMENTS];
    int n_own;
    void *(*mapped)[MAX_SEGMENTS]; /* other ranks' segments, as mapped here; NULL: not yet */
} host_memory;

typedef struct process_end {
    comm_job *job;
    int *index, local; /* of each rank on this host, -1: elsewhere; how many are here */
    shared_segment control;
    void *at; /* of control */
    host_memory memory;
    shared_memory access;
    shared_end *shared; /* NULL: this rank shares no memory */
    remote_end *remote;
    bool near[COMM_SETS]; /* sets of axes whose group meets in shared memory */
} process_end;

/* ---- segments ------------------------------------------------------------------------------- */
static err add_segment(host_memory *h, size_t bytes, bool bounce, int *out) {
    if (h->n_own == MAX_SEGMENTS)
        return ERR("more than %d segments of shared memory", MAX_SEGMENTS);
    own_segment *s = &h->own[h->n_own];
    void *at;
    TRY(segment_new(bytes, &h->table[h->me][h->n_own], &at));
    *s = (own_segment){ .at = at, .bounce = bounce };
    *out = h->n_own++;
    return OK;
}

static void *published_address(int s, size_t offset) {
    return (void *)(((uintptr_t)(s + 1) << OFFSET_BITS) | offset);
}

static int find_bounce(host_memory *h, size_t bytes) {
    int best = -1;
    for (int i = 0; i < h->n_own; i++) {
        size_t have = h->table[h->me][i].bytes;
        if (!h->own[i].bounce || h->own[i].used || have < bytes) continue;
        if (best < 0 || have < h->table[h->me][best].bytes) best = i;
    }
    if (best >= 0) return best;
    size_t size = LEAST_BOUNCE;
    while (size < bytes) size *= 2;
    err e = add_segment(h, size, true, &best);
    if (e) { /* as mem_alloc, which it stands for */
        err_print(stderr, e, false);
        abort();
    }
    return best;
}

static void *memory_start(void *ctx, const tensor *t, bool written) {
    host_memory *h = ctx;
    size_t bytes = tensor_bytes(t);
    for (int i = 0; i < h->n_own; i++) {
        char *at = h->own[i].at, *p = t->data;
        if (!h->own[i].bounce && at && p >= at && p + bytes <= at + h->table[h->me][i].bytes)
            return published_address(i, (size_t)(p - at));
    }
    int i = find_bounce(h, bytes);
    h->own[i].used = true;
    if (!written) memcpy(h->own[i].at, t->data, bytes);
    return published_address(i, 0);
}

static void *memory_reach(void *ctx, int index, void *p) {
    host_memory *h = ctx;
    int s = (int)((uintptr_t)p >> OFFSET_BITS) - 1;
    size_t offset = (uintptr_t)p & (((uintptr_t)1 << OFFSET_BITS) - 1);
    if (index == h->me) return h->own[s].at + offset;
    void **at = &h->mapped[index][s];
    if (!*at) {
        err e = segment_map(&h->table[index][s], at);
        err_free(e);
        if (e) return NULL;
    }
    return (char *)*at + offset;
}

static void memory_end(void *ctx, const tensor *t, void *p, bool written, size_t bytes) {
    host_memory *h = ctx;
    own_segment *s = &h->own[((uintptr_t)p >> OFFSET_BITS) - 1];
    if (!s->bounce) return;
    if (written) memcpy(t->data, s->at, bytes);
    s->used = false;
}

/* ---- backend -------------------------------------------------------------------------------- */
static err process_start(comm *c, comm_ticket *t) {
    process_end *p = c->state;
    return p->near[t->move.axes] ? shared_start(c, p->shared, t) : remote_start(c, p->remote, t);
}

static bool process_failed(const comm *c) {
    const process_end *p = c->state;
    return p->shared && shared_failed_elsewhere(p->shared, c->m.rank);
}

static err process_wait(comm *c, comm_ticket *t) {
    process_end *p = c->state;
    return p->near[t->move.axes] ? shared_wait(c, p->shared, t)
                                 : remote_wait(c, p->remote, t, process_failed);
}

static void process_abort(comm *c, const char *cause) {
    process_end *p = c->state;
    if (p->shared) shared_abort(p->shared, c->m.rank, cause);
}

/* Ranks that wait in shared memory are notified, too. */
static void rank_lost(void *ctx, err e) {
    const comm *c = ctx;
    const process_end *p = c->state;
    enum { NOBODY = COMM_MAX_RANKS };
    if (p->shared) shared_abort(p->shared, NOBODY, err_message(e));
}

static err process_map(comm *c, size_t bytes, void **out) {
    process_end *p = c->state;
    int at = 0;
    if (!p->shared) return mem_map(bytes, out);
    size_t left = mem_free();
    char want[32], have[32];
    if (bytes > left)
        return ERR("%s of memory are needed, %s are free",
                   str_bytes(want, sizeof want, (double)bytes),
                   str_bytes(have, sizeof have, (double)left));
    TRY(add_segment(&p->memory, MAX(bytes, (size_t)1), false, &at));
    *out = p->memory.own[at].at;
    return OK;
}

/* Other ranks may still have it mapped, so its number is not reused. */
static void process_unmap(comm *c, void *at, size_t bytes) {
    process_end *p = c->state;
    if (!at) return;
    if (!p->shared) {
        mem_unmap(at, bytes);
        return;
    }
    for (int i = 0; i < p->memory.n_own; i++)
        if (p->memory.own[i].at == at) {
            segment_free(&p->memory.table[p->memory.me][i], at);
            p->memory.own[i].at = NULL;
        }
}

static void process_free(comm *c) {
    process_end *p = c->state;
    host_memory *h = &p->memory;
    remote_end_free(p->remote);
    shared_end_free(p->shared);
    for (int i = 0; i < h->n_own; i++) segment_free(&h->table[h->me][i], h->own[i].at);
    for (int r = 0; r < h->ranks && h->mapped; r++)
        for (int i = 0; i < MAX_SEGMENTS; i++) segment_free(&h->table[r][i], h->mapped[r][i]);
    free(h->mapped);
    segment_free(&p->control, p->at);
    free(p->index);
    free(p);
}

/* ---- joining -------------------------------------------------------------------------------- */
/* Numbers the ranks of this host. @return the first of them. */
static int number_ranks(process_end *p) {
    const job_member *all = p->job->members, *me = &all[p->job->w->rank];
    int first = -1;
    p->index = mem_alloc((size_t)p->job->w->ranks * sizeof *p->index);
    for (int r = 0; r < p->job->w->ranks; r++) {
        bool here = all[r].machine == me->machine;
        if (here && first < 0) first = r;
        p->index[r] = here ? p->local++ : -1;
    }
    return first;
}

static err make_control(process_end *p) {
    size_t world = align_up(shared_world_bytes(p->local), 64);
    TRY(segment_new(world + (size_t)p->local * sizeof *p->memory.table, &p->control, &p->at));
    shared_world_init(p->at, p->local);
    return OK;
}

/* All ranks gather twice: where the memory of each host is, and that everyone has mapped it. */
static err share_host(process_end *p, int first) {
    int n = p->job->w->ranks, rank = p->job->w->rank;
    shared_segment *all = mem_alloc((size_t)n * sizeof *all);
    uint8_t well, *wells = mem_alloc((size_t)n);
    err e = first == rank ? make_control(p) : OK, mapped = OK;
    if (!e) e = transport_gather(p->job->w, p->job->timeout, &p->control, all, sizeof *all);
    if (!e && first != rank) {
        p->control = all[first];
        mapped = segment_map(&p->control, &p->at);
    }
    well = !mapped;
    if (!e) e = transport_gather(p->job->w, p->job->timeout, &well, wells, 1);
    for (int r = 0; r < n && !e && !mapped; r++)
        if (!wells[r]) e = ERR("rank %d cannot map the memory of its host", r);
    free(all);
    free(wells);
    if (mapped) err_free(e);
    return mapped ? mapped : e;
}

static void use_host(process_end *p) {
    host_memory *h = &p->memory;
    h->me = p->index[p->job->w->rank];
    h->ranks = p->local;
    h->table = (void *)((char *)p->at + align_up(shared_world_bytes(p->local), 64));
    h->mapped = mem_alloc((size_t)p->local * sizeof *h->mapped);
    p->access = (shared_memory){ memory_start, memory_reach, memory_end, h };
    p->shared = shared_end_new(p->at, p->index, &p->access);
}

static void find_near_sets(comm *c, process_end *p) {
    for (axis_set axes = 1; axes < COMM_SETS; axes++) {
        comm_group g = comm_group_of(c, axes);
        p->near[axes] = p->shared != NULL;
        for (int i = 0; i < g.n; i++) p->near[axes] &= p->index[g.rank[i]] >= 0;
    }
}

static int count_sharers(const comm_job *j) {
    int n = 0;
    for (int r = 0; r < j->w->ranks; r++) n += j->members[r].cores == j->members[j->w->rank].cores;
    return n;
}

/* @return how many ranks precede this one on its machine. */
static int local_rank(const comm_job *j) {
    int n = 0;
    for (int r = 0; r < j->w->rank; r++)
        n += j->members[r].machine == j->members[j->w->rank].machine;
    return n;
}

err comm_processes(comm_job *j, const mesh *m, double timeout, bool share, comm **out) {
    static const comm_backend processes = { .name = "process",
                                            .start = process_start,
                                            .wait = process_wait,
                                            .abort = process_abort,
                                            .free = process_free,
                                            .map = process_map,
                                            .unmap = process_unmap,
                                            .failed_elsewhere = process_failed };
    BUG_IF(mesh_world(m) != j->w->ranks);
    comm *c = *out = mem_alloc(sizeof *c);
    process_end *p = mem_alloc(sizeof *p);
    *c = (comm){ .backend = &processes,
                 .m = mesh_as(m, j->w->rank),
                 .timeout = timeout,
                 .core_sharers = count_sharers(j),
                 .local_rank = local_rank(j),
                 .crowded = count_sharers(j) > thread_cores(),
                 .members = j->members,
                 .state = p };
    p->job = j;
    int first = number_ranks(p);
    if (share) {
        TRY(share_host(p, first));
        if (p->local > 1) use_host(p);
    }
    find_near_sets(c, p);
    if (!p->near[AXES_ALL] || j->w->watch) p->remote = remote_end_new(j->w, rank_lost, c);
    return OK;
}
