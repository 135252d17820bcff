/* Code that all backends share: moves that need no other rank, counters, and helpers for the host. */
#include "comm_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int comm_rank(const comm *c) { return c ? c->m.rank : 0; }
int comm_world(const comm *c) { return c ? mesh_world(&c->m) : 1; }
const mesh *comm_mesh(const comm *c) { return &c->m; }

comm_group comm_group_of(const comm *c, axis_set axes) {
    comm_group g; /* only the first g.n ranks are set */
    g.n = mesh_span(&c->m, axes);
    g.me = mesh_group(&c->m, axes, g.rank);
    return g;
}

char *comm_describe(const comm_move *m, char *buf, size_t n) {
    char axes[64], layer[16] = "";
    size_t at = (size_t)snprintf(buf, n, "%s over %s", move_name(comm_kind(m)),
                                 axes_str(axes, sizeof axes, m->axes));
    if (m->layer) snprintf(layer, sizeof layer, " %d", m->layer - 1);
    if (m->name && at < n) snprintf(buf + at, n - at, " (%s%s)", m->name, layer);
    return buf;
}

char *comm_rank_name(const comm *c, int rank, char *buf, size_t n) {
    if (c->members)
        snprintf(buf, n, "rank %d (%s)", rank, c->members[rank].host);
    else
        snprintf(buf, n, "rank %d", rank);
    return buf;
}

/* ---- counters ---------------------------------------------------------------------------- */
static double bytes_sent(const comm *c, const comm_ticket *t) {
    double n = mesh_span(&c->m, t->move.axes), others = (n - 1) / n;
    dtype dt = t->in.data ? t->in.dt : t->out.dt;
    double size = (double)dt_size(t->move.wire ? t->move.wire : dt);
    double bytes = (double)tensor_count(&t->in) * size;
    switch (comm_kind(&t->move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX: return 2 * others * bytes;
    case MOVE_ALL_GATHER: return (n - 1) * bytes;
    case MOVE_REDUCE_SCATTER:
    case MOVE_ALL_TO_ALL: return others * bytes;
    case MOVE_SHIFT: return t->move.peer % (int)n ? bytes : 0;
    case MOVE_SEND: return bytes;
    case MOVE_ROWS: break;
    default: return 0;
    }
    int64_t rows = 0, row = tensor_count(&t->in) / MAX(t->in.dim[0], 1);
    for (int i = 0, me = mesh_index(&c->m, t->move.axes); i < (int)n; i++)
        if (i != me) rows += t->move.send_rows[i];
    return (double)(rows * row) * size;
}

static void count_move(comm *c, const comm_ticket *t, double wait_began) {
    double now = time_now();
    comm_counter *k = &c->count[t->move.axes][comm_kind(&t->move)];
    k->calls++;
    k->bytes += bytes_sent(c, t);
    k->wait_seconds += now - wait_began;
    k->open_seconds += now - t->started;
    k->moving_seconds += t->moved_to - t->moved_from;
    k->hidden_seconds += MAX(0, MIN(t->moved_to, wait_began) - t->moved_from);
}

int comm_counters(const comm *c, comm_counter *out, int cap) {
    int n = 0;
    if (c->backend && c->backend->settle) c->backend->settle((comm *)c);
    for (int s = 0; s < COMM_SETS; s++)
        for (int k = 0; k < MOVE_ILLEGAL; k++) {
            if (!c->count[s][k].calls) continue;
            if (n < cap) {
                out[n] = c->count[s][k];
                out[n].axes = (axis_set)s;
                out[n].kind = (move_kind)k;
            }
            n++;
        }
    return n;
}

double comm_wait_seconds(const comm *c) {
    double sum = c->host ? comm_wait_seconds(c->host) : 0;
    for (int s = 0; s < COMM_SETS; s++)
        for (int k = 0; k < MOVE_ILLEGAL; k++) sum += c->count[s][k].wait_seconds;
    return sum;
}

/* ---- the verb ---------------------------------------------------------------------------- */
/* Whether no other rank takes part: the bytes stay, or the group is this rank alone. */
static bool is_local_move(const comm *c, const comm_move *m) {
    move_kind k = comm_kind(m);
    return k == MOVE_NONE || k == MOVE_SLICE || mesh_span(&c->m, m->axes) == 1;
}

static void run_local(const comm *c, const comm_ticket *t) {
    move_kind k = comm_kind(&t->move);
    const tensor *in = &t->in, *out = &t->out;
    size_t bytes = MIN(tensor_bytes(in), tensor_bytes(out));
    if (k == MOVE_SLICE) {
        int parts = mesh_span(&c->m, t->move.axes);
        comm_take_slice(in, out, t->move.to.dim, mesh_index(&c->m, t->move.axes), parts);
        return;
    }
    if (k == MOVE_ROWS) {
        BUG_IF(t->move.send_rows[0] > MIN(in->dim[0], out->dim[0]));
        bytes = tensor_bytes(in) / (size_t)MAX(in->dim[0], 1) * (size_t)t->move.send_rows[0];
        t->move.recv_rows[0] = t->move.send_rows[0];
    }
    if (in->data != out->data) memmove(out->data, in->data, bytes);
}

static void check_move(const comm *c, const comm_move *m, const tensor *in, const tensor *out) {
    move_kind k = comm_kind(m);
    bool message = k == MOVE_SEND || k == MOVE_RECV;
    BUG_IF(k == MOVE_ILLEGAL);
    BUG_IF(!message && in->dt != out->dt);
    BUG_IF(k == MOVE_ROWS && !(m->send_rows && m->recv_rows));
    BUG_IF(m->wire && !(dt_is_float(m->wire) && dt_is_float(k == MOVE_RECV ? out->dt : in->dt)));
    int n = mesh_span(&c->m, m->axes);
    BUG_IF(message && (m->peer < 0 || m->peer >= n || m->peer == mesh_index(&c->m, m->axes)));
    BUG_IF(message && (m->channel < 0 || m->channel >= COMM_CHANNELS));
}

err comm_start(comm *c, const comm_move *move, const tensor *in, const tensor *out,
               comm_ticket *ticket) {
    static const tensor absent = { 0 };
    check_move(c, move, in ? in : &absent, out ? out : &absent);
    *ticket = (comm_ticket){
        .move = *move, .in = in ? *in : absent, .out = out ? *out : absent, .started = time_now()
    };
    if (is_local_move(c, move)) return OK;
    TRY(c->backend->start(c, ticket));
    if (c->watcher) c->watcher->started(c->watcher->ctx, ticket);
    return OK;
}

err comm_wait(comm *c, comm_ticket *ticket) {
    if (is_local_move(c, &ticket->move)) {
        if (c->backend && c->backend->local) return c->backend->local(c, ticket);
        run_local(c, ticket);
        return OK;
    }
    if (c->watcher) c->watcher->waits(c->watcher->ctx, ticket);
    double began = time_now();
    __atomic_store_n(&c->waiting, 1, __ATOMIC_RELAXED);
    err e = c->backend->wait(c, ticket);
    __atomic_store_n(&c->waiting, 0, __ATOMIC_RELAXED);
    TRY(e);
    count_move(c, ticket, began);
    if (c->watcher) c->watcher->ended(c->watcher->ctx, ticket);
    return OK;
}

void comm_watch(comm *c, const comm_watcher *w) { c->watcher = w; }

void comm_set_algorithm(comm *c, nccl_algorithm algorithm) {
    if (c->backend && c->backend->set_algorithm) c->backend->set_algorithm(c, algorithm);
}

/* ---- waits for other ranks ------------------------------------------------------------------------- */
void comm_set_stop_patience(comm *c, double seconds) {
    for (; c; c = c->host) c->stop_patience = seconds;
}

double comm_patience(const comm *c) {
    bool hurries = c->stop_patience > 0 && wait_signal_count() > 0;
    return hurries ? MIN(c->timeout, c->stop_patience) : c->timeout;
}

void comm_begin_wait(const comm *c, const comm_move *m, wait_state *w) {
    enum { FIRST_REPORT_S = 30 }; /* rank 0 writes a checkpoint, or others are still starting */
    char what[160];
    wait_begin(w, c->timeout, "other ranks in %s", comm_describe(m, what, sizeof what));
    w->report_at = w->began + FIRST_REPORT_S;
    w->ignored = INT_MAX;
}

bool comm_wait_is_over(const comm *c, wait_state *w) {
    w->deadline = MIN(w->deadline, w->began + comm_patience(c));
    return wait_is_over(w);
}

void comm_abort(comm *c, const char *cause) {
    if (c->backend && c->backend->abort) c->backend->abort(c, cause);
}

void comm_free(comm *c) {
    if (!c) return;
    if (c->backend && c->backend->free) c->backend->free(c);
    free(c);
}

comm *comm_self(void) {
    comm *c = mem_alloc(sizeof *c);
    c->core_sharers = 1;
    return c;
}

int comm_core_sharers(const comm *c) { return c->core_sharers; }
int comm_local_rank(const comm *c) { return c->local_rank; }

bool comm_is_waiting(const comm *c) {
    const comm *host = c->host ? c->host : c;
    return __atomic_load_n(&host->waiting, __ATOMIC_RELAXED) != 0;
}

err comm_map(comm *c, size_t bytes, void **out) {
    return c->backend && c->backend->map ? c->backend->map(c, bytes, out) : mem_map(bytes, out);
}

void comm_unmap(comm *c, void *p, size_t bytes) {
    if (c->backend && c->backend->unmap)
        c->backend->unmap(c, p, bytes);
    else
        mem_unmap(p, bytes);
}

bool comm_failed_elsewhere(const comm *c) {
    return c->backend && c->backend->failed_elsewhere && c->backend->failed_elsewhere(c);
}

/* ---- for the host ------------------------------------------------------------------------------ */
static err run_move(comm *c, const comm_move *m, const tensor *in, const tensor *out) {
    comm_ticket ticket;
    TRY(comm_start(c, m, in, out, &ticket));
    return comm_wait(c, &ticket);
}

/* @return the endpoint that carries host values: the rank's own, except on a GPU. */
static comm *host_of(comm *c) { return c->host ? c->host : c; }

err comm_sum(comm *c, axis_set axes, float *values, int64_t n) {
    comm_move sum = { .axes = axes & (mesh_axes(&c->m) | AXES_TP_REP),
                      .from = PLACE_P,
                      .to = PLACE_I,
                      .name = "sum of host values" };
    if (mesh_span(&c->m, sum.axes) == 1 || !n) return OK;
    tensor t = tensor_of(values, DT_F32, 1, &n);
    return run_move(host_of(c), &sum, &t, &t);
}

err comm_collect(comm *c, const void *mine, size_t bytes, void *all) {
    int64_t own = (int64_t)bytes, whole = own * mesh_world(&c->m);
    memcpy(all, mine, bytes);
    if (mesh_world(&c->m) == 1) return OK;
    tensor in = tensor_of((void *)(uintptr_t)mine, DT_U8, 1, &own),
           out = tensor_of(all, DT_U8, 1, &whole);
    comm_move gather = {
        .axes = mesh_axes(&c->m), .from = PLACE_S(0), .to = PLACE_I, .name = "host values"
    };
    return run_move(host_of(c), &gather, &in, &out);
}

err comm_total(comm *c, double *values, int n) {
    int world = comm_world(c);
    if (world == 1) return OK;
    double *each = mem_alloc((size_t)world * (size_t)n * sizeof *each);
    err e = comm_collect(c, values, (size_t)n * sizeof *values, each);
    for (int i = 0; i < n && !e; i++) {
        values[i] = each[i];
        for (int r = 1; r < world; r++) values[i] += each[(int64_t)r * n + i];
    }
    free(each);
    return e;
}

/* Doubling distances: after the shift by d a rank has what the 2 d ranks up to it had. Where the world is not a
 * power of two some bytes arrive twice, which `or` does not mind. */
static err merge_chunk(comm *c, uint8_t *data, uint8_t *other, int64_t n) {
    tensor in = tensor_of(data, DT_U8, 1, &n), out = tensor_of(other, DT_U8, 1, &n);
    for (int distance = 1; distance < mesh_world(&c->m); distance *= 2) {
        comm_move shift = { .axes = mesh_axes(&c->m),
                            .kind = MOVE_SHIFT,
                            .peer = distance,
                            .name = "merge of host values" };
        TRY(run_move(host_of(c), &shift, &in, &out));
        for (int64_t i = 0; i < n; i++) data[i] |= other[i];
    }
    return OK;
}

err comm_merge(comm *c, void *data, size_t bytes) {
    enum { CHUNK = 1 << 20 };
    if (comm_world(c) == 1 || !bytes) return OK;
    uint8_t *other = mem_alloc(MIN(bytes, (size_t)CHUNK));
    err e = OK;
    for (size_t at = 0; at < bytes && !e; at += CHUNK)
        e = merge_chunk(c, (uint8_t *)data + at, other, (int64_t)MIN(bytes - at, (size_t)CHUNK));
    free(other);
    return e;
}

err comm_largest(comm *c, int64_t *value) {
    int world = comm_world(c);
    if (world == 1) return OK;
    int64_t *all = mem_alloc((size_t)world * sizeof *all);
    all[comm_rank(c)] = *value;
    err e = comm_merge(c, all, (size_t)world * sizeof *all);
    for (int r = 0; r < world && !e; r++) *value = MAX(*value, all[r]);
    free(all);
    return e;
}

err comm_agree(comm *c, err mine) {
    if (comm_world(c) == 1) return mine;
    float failed = mine ? 1 : 0;
    err e = comm_sum(c, AXES_ALL, &failed, 1);
    if (mine) {
        err_free(e);
        return mine;
    }
    TRY(e);
    return failed > 0 ? err_echo(ERR("rank %d ends because another rank failed", c->m.rank)) : OK;
}
