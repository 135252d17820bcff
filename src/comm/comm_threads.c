/* Ranks as threads of one process: every layout has a fast parity test with no launcher.
 *
 * Each rank keeps a ring of its communications per set of axes. A rank publishes its tensors when
 * it starts one; whoever waits first waits for the others' entries of the same sequence number and
 * reads from their memory. Phases are counters, one per rank and axis set:
 *
 *     start:  ring[seq] = tensors;  phase = 3*seq + 1        my input is there
 *     wait :  peers' phase >= 3*seq + 1 ... read ...  phase = 3*seq + 2
 *             peers' phase >= 3*seq + 2 ... (all-reduce reads the reduced slices) ...
 *             phase = 3*seq + 3; peers' phase >= 3*seq + 3   everybody has read: memory is free
 */
#include "comm_internal.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 64, SETS = 1 << AX_COUNT, MAX_RANKS = 64 };

typedef struct lane { /* one rank's communications along one set of axes */
    _Atomic uint64_t phase;
    uint64_t next;
    comm_ticket ring[RING];
} lane;

typedef struct world {
    int ranks;
    double patience;
    _Atomic int alive; /* endpoints not yet freed */
    _Atomic bool failed;
    lane (*lanes)[SETS]; /* [ranks][SETS] */
} world;

typedef struct group {
    int n, me, rank[MAX_RANKS];
} group;

static group group_of(const comm *c, axis_set axes) {
    group g = { .n = mesh_span(&c->m, axes) };
    g.me = mesh_group(&c->m, axes, g.rank);
    return g;
}

static err threads_start(comm *c, comm_ticket *t) {
    world *w = c->state;
    lane *l = &w->lanes[c->m.rank][t->move.axes];
    t->sequence = l->next++;
    BUG_IF(3 * t->sequence >= atomic_load(&l->phase) + 3 * (RING - 1)); /* too many in flight */
    l->ring[t->sequence % RING] = *t;
    /* Earlier communications of this lane may still be open: then wait() publishes for us. */
    uint64_t expected = 3 * t->sequence;
    atomic_compare_exchange_strong(&l->phase, &expected, 3 * t->sequence + 1);
    return OK;
}

/* Waits until every member of the group reached `phase`. */
static err await(comm *c, const group *g, const comm_ticket *t, uint64_t phase) {
    world *w = c->state;
    double deadline = 0;
    for (int i = 0; i < g->n; i++) {
        for (int spin = 0; atomic_load(&w->lanes[g->rank[i]][t->move.axes].phase) < phase; spin++) {
            sched_yield();
            if (spin % 4096 != 4095) continue;
            if (!deadline) deadline = time_now() + w->patience;
            if (!atomic_load(&w->failed) && time_now() < deadline) continue;
            atomic_store(&w->failed, true);
            return ERR("rank %d waits in %s number %llu for rank %d, which has not arrived",
                       c->m.rank, move_name(move_of(t->move.from, t->move.to)),
                       (unsigned long long)t->sequence, g->rank[i]);
        }
    }
    return OK;
}

static const comm_ticket *peer(comm *c, const group *g, int i, const comm_ticket *t) {
    world *w = c->state;
    return &w->lanes[g->rank[i]][t->move.axes].ring[t->sequence % RING];
}

static err check_partners(comm *c, const group *g, const comm_ticket *t) {
    for (int i = 0; i < g->n; i++) {
        const comm_ticket *p = peer(c, g, i, t);
        if (place_same(p->move.from, t->move.from) && place_same(p->move.to, t->move.to) &&
            p->in.dt == t->in.dt && tensor_count(&p->in) == tensor_count(&t->in))
            continue;
        return ERR("ranks %d and %d meet in different collectives: %s of %lld elements and %s of "
                   "%lld",
                   c->m.rank, g->rank[i], move_name(move_of(t->move.from, t->move.to)),
                   (long long)tensor_count(&t->in), move_name(move_of(p->move.from, p->move.to)),
                   (long long)tensor_count(&p->in));
    }
    return OK;
}

/* out[j] = sum over the group of in[from + j], in rank order, in fp32. */
static void sum_range(comm *c, const group *g, const comm_ticket *t, int64_t from, int64_t n,
                      void *out) {
    enum { BLOCK = 1024 };
    float sum[BLOCK], part[BLOCK];
    size_t size = dt_size(t->in.dt);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = MIN((int64_t)BLOCK, n - at);
        char *to = (char *)out + (size_t)at * size;
        for (int i = 0; i < g->n; i++) {
            const char *src = peer(c, g, i, t)->in.data;
            dt_to_f32(t->in.dt, src + (size_t)(from + at) * size, i ? part : sum, len);
            for (int64_t j = 0; i && j < len; j++) sum[j] += part[j];
        }
        dt_from_f32(t->in.dt, sum, to, len);
    }
}

static void all_gather(comm *c, const group *g, const comm_ticket *t) {
    int dim = t->move.from.dim;
    dim_split k = split_at(&t->in, dim);
    size_t part = (size_t)(k.dim * k.inner) * dt_size(t->in.dt);
    for (int i = 0; i < g->n; i++) {
        const char *src = peer(c, g, i, t)->in.data;
        for (int64_t o = 0; o < k.outer; o++) {
            char *to = (char *)t->out.data + ((size_t)o * (size_t)g->n + (size_t)i) * part;
            if (to != src + (size_t)o * part) memcpy(to, src + (size_t)o * part, part);
        }
    }
}

static void reduce_scatter(comm *c, const group *g, const comm_ticket *t) {
    dim_split k = split_at(&t->out, t->move.to.dim);
    int64_t part = k.dim * k.inner;
    for (int64_t o = 0; o < k.outer; o++)
        sum_range(c, g, t, (o * g->n + g->me) * part, part,
                  (char *)t->out.data + (size_t)(o * part) * dt_size(t->out.dt));
}

/* S(d) -> S(e): my slice along e of every member's tensor, joined along d. */
static void all_to_all(comm *c, const group *g, const comm_ticket *t) {
    int d = t->move.from.dim, e = t->move.to.dim;
    for (int i = 0; i < g->n; i++) {
        tensor piece = peer(c, g, i, t)->in;
        dim_split in = split_at(&piece, e), out = split_at(&t->out, d);
        size_t size = dt_size(piece.dt);
        /* Two dims: the inner one runs along a row, the outer one over rows. */
        BUG_IF(piece.ndim != 2);
        int64_t rows = d == 0 ? in.outer : t->out.dim[0], cols = d == 0 ? t->out.dim[1] : in.inner;
        for (int64_t r = 0; r < rows; r++) {
            const char *src = piece.data;
            char *dst = t->out.data;
            if (d == 0) { /* rows joined, columns sliced */
                src += (size_t)(r * piece.dim[1] + g->me * cols) * size;
                dst += (size_t)((i * rows + r) * cols) * size;
            } else { /* columns joined, rows sliced */
                cols = piece.dim[1];
                src += (size_t)((g->me * rows + r) * cols) * size;
                dst += (size_t)(r * out.dim + i * cols) * size;
            }
            memcpy(dst, src, (size_t)cols * size);
        }
    }
}

/* In place is allowed, so each rank first sums its own slice, then all fetch the slices. */
static int64_t slice_start(int64_t n, const group *g, int i) { return n * i / g->n; }

static void sum_own_slice(comm *c, const group *g, const comm_ticket *t) {
    int64_t n = tensor_count(&t->in), a = slice_start(n, g, g->me),
            b = slice_start(n, g, g->me + 1);
    sum_range(c, g, t, a, b - a, (char *)t->out.data + (size_t)a * dt_size(t->in.dt));
}

static void fetch_slices(comm *c, const group *g, const comm_ticket *t) {
    int64_t n = tensor_count(&t->in);
    size_t size = dt_size(t->in.dt);
    for (int i = 0; i < g->n; i++) {
        size_t a = (size_t)slice_start(n, g, i) * size, b = (size_t)slice_start(n, g, i + 1) * size;
        if (i != g->me)
            memcpy((char *)t->out.data + a, (const char *)peer(c, g, i, t)->out.data + a, b - a);
    }
}

static void first_half(comm *c, const group *g, const comm_ticket *t) {
    switch (move_of(t->move.from, t->move.to)) {
    case MOVE_ALL_REDUCE: sum_own_slice(c, g, t); break;
    case MOVE_ALL_GATHER: all_gather(c, g, t); break;
    case MOVE_REDUCE_SCATTER: reduce_scatter(c, g, t); break;
    case MOVE_ALL_TO_ALL: all_to_all(c, g, t); break;
    case MOVE_SLICE: comm_take_slice(&t->in, &t->out, t->move.to.dim, g->me, g->n); break;
    default: BUG("a move without bytes has no first half");
    }
}

static err threads_wait(comm *c, comm_ticket *t) {
    world *w = c->state;
    group g = group_of(c, t->move.axes);
    lane *l = &w->lanes[c->m.rank][t->move.axes];
    uint64_t at = 3 * t->sequence;
    BUG_IF(atomic_load(&l->phase) != at + 1); /* communications end in the order they began */
    TRY(await(c, &g, t, at + 1));
    TRY(check_partners(c, &g, t));
    first_half(c, &g, t);
    atomic_store(&l->phase, at + 2);
    if (move_of(t->move.from, t->move.to) == MOVE_ALL_REDUCE) {
        TRY(await(c, &g, t, at + 2));
        fetch_slices(c, &g, t);
    }
    atomic_store(&l->phase, at + 3);
    TRY(await(c, &g, t, at + 3));
    if (l->next > t->sequence + 1) atomic_store(&l->phase, at + 4); /* the next has begun already */
    return OK;
}

static void threads_abort(comm *c) {
    world *w = c->state;
    atomic_store(&w->failed, true);
}

static void threads_free(comm *c) {
    world *w = c->state;
    if (atomic_fetch_sub(&w->alive, 1) > 1) return;
    free(w->lanes);
    free(w);
}

err comm_threads(mesh m, double patience, comm **ends) {
    static const comm_backend threads = { .name = "thread",
                                          .start = threads_start,
                                          .wait = threads_wait,
                                          .abort = threads_abort,
                                          .free = threads_free };
    int n = mesh_world(&m);
    if (n > MAX_RANKS) return ERR("the thread backend holds %d ranks, asked for %d", MAX_RANKS, n);
    world *w = mem_alloc(sizeof *w);
    w->ranks = n;
    w->patience = patience > 0 ? patience : 60;
    w->lanes = mem_alloc((size_t)n * sizeof *w->lanes);
    atomic_store(&w->alive, n);
    for (int r = 0; r < n; r++) {
        ends[r] = mem_alloc(sizeof **ends);
        *ends[r] = (comm){ .backend = &threads, .m = mesh_as(&m, r), .state = w };
    }
    return OK;
}
