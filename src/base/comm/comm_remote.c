/* Collectives by messages, for groups whose ranks do not reach one another's memory.
 *
 * Every rank sends each other member what that one needs and gets what it needs itself; sums are then made
 * where they are needed, in rank order in fp32, so that results are bit-identical to those in shared memory.
 * No rank sends more bytes than a ring would. An operation is a list of transfers; when all have ended, its
 * next round begins:
 *
 *     all-reduce, maximum    0: every member's share of my slice    1: the other slices, reduced
 *     rows                   0: counts                              1: rows
 *     all others             0: what I need of every member
 *
 * A thread of its own advances what is open while the rank computes. One lock guards the transport and
 * all operations. */
#include "comm_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct buffer {
    char *at;
    size_t used, capacity;
} buffer;

typedef struct remote_op {
    bool open, done;
    err error;
    comm_ticket t;
    comm_group g;
    int round;
    dtype dt, wire; /* of the tensors; of what crosses */
    bool rounds;    /* they differ */
    transport_request *transfers;
    int n, cap;
    buffer out, in;  /* what is sent and received, where that is not in the tensors themselves */
    int32_t *counts; /* rows: from each member */
    int counts_cap;
} remote_op;

struct remote_end {
    transport *w;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    bool threaded, quit, lost;
    void (*on_lost)(void *ctx, err e);
    void *lost_ctx;
    int opens;
    remote_op *ops[COMM_SETS * COMM_MAX_OPEN]; /* reused; NULL from n_ops on */
    int n_ops;
    uint64_t sequence[COMM_SETS];
};

/* ---- transfers --------------------------------------------------------------------------- */
/* Messages keep their channel's order. Collectives of a set of axes are numbered, since a later round of
 * one may begin after the first of the next. */
static int tag_of(const remote_op *o) {
    move_kind k = comm_kind(&o->t.move);
    int axes = (int)o->t.move.axes; /* 7 bits */
    if (k == MOVE_SEND || k == MOVE_RECV) return axes << 5 | 1 << 4 | o->t.move.channel;
    return (int)(o->t.sequence % (1 << 13)) << 12 | axes << 5 | o->round;
}

/* Posts one transfer, in pieces of the largest message. */
static err post_message(remote_end *r, remote_op *o, int member, void *at, size_t bytes,
                        bool receives) {
    transport *w = r->w;
    for (size_t from = 0; from < bytes; from += TRANSPORT_MAX_BYTES) {
        o->transfers = mem_reserve(o->transfers, &o->cap, o->n, sizeof *o->transfers);
        transport_request *q = &o->transfers[o->n];
        *q = (transport_request){ .bytes = MIN(bytes - from, (size_t)TRANSPORT_MAX_BYTES),
                                  .peer = o->g.rank[member],
                                  .receives = receives };
        char *p = (char *)at + from;
        TRY(receives ? w->recv(w, q->peer, tag_of(o), p, q) : w->send(w, q->peer, tag_of(o), p, q));
        o->n++;
    }
    return OK;
}

static char *buffer_take(buffer *b, size_t bytes) {
    char *at = b->at + b->used;
    BUG_IF(b->used + bytes > b->capacity);
    b->used += align_up(bytes, 64);
    return at;
}
static void reserve_buffer(buffer *b, size_t bytes, int pieces) {
    size_t all = bytes + 64 * (size_t)(pieces + 1);
    if (all > b->capacity) {
        free(b->at);
        b->at = mem_alloc(b->capacity = all);
    }
    b->used = 0;
}

static void convert_values(dtype from, const void *src, dtype to, void *dst, int64_t n) {
    float v[COMM_BLOCK];
    for (int64_t at = 0; at < n; at += COMM_BLOCK) {
        int64_t len = MIN((int64_t)COMM_BLOCK, n - at);
        dt_to_f32(from, (const char *)src + (size_t)at * dt_size(from), v, len);
        dt_from_f32(to, v, (char *)dst + (size_t)at * dt_size(to), len);
    }
}

/* Converts values of the wire's type to the tensors' type. */
static void widen_values(const remote_op *o, const void *src, void *dst, int64_t n) {
    convert_values(o->wire, src, o->dt, dst, n);
}

/* Sends n values to a member, converted where the wire's type differs from the tensors'. */
static err send_values(remote_end *r, remote_op *o, int member, const void *src, int64_t n) {
    void *from = (void *)src;
    if (o->rounds) {
        from = buffer_take(&o->out, (size_t)n * dt_size(o->wire));
        convert_values(o->dt, src, o->wire, from, n);
    }
    return member == o->g.me
               ? OK
               : post_message(r, o, member, from, (size_t)n * dt_size(o->wire), false);
}

static size_t wire_bytes(const remote_op *o, int64_t n) { return (size_t)n * dt_size(o->wire); }

/* ---- pieces: the same number of values for every member ------------------------------------ */
/* Packs the values that a member needs of this rank's input. */
typedef struct wire_piece {
    tensor t; /* its shape */
    int64_t n;
} wire_piece;

static wire_piece piece_of(const remote_op *o) {
    move_kind k = comm_kind(&o->t.move);
    wire_piece p = { .t = o->t.in };
    if (k == MOVE_REDUCE_SCATTER || k == MOVE_ALL_TO_ALL) p.t.dim[o->t.move.to.dim] /= o->g.n;
    p.n = tensor_count(&p.t);
    return p;
}

/* @return the address of piece i of the input, packed into `out` where it is not contiguous. */
static const void *pack_piece(remote_op *o, const wire_piece *p, int i) {
    move_kind k = comm_kind(&o->t.move);
    const char *in = o->t.in.data;
    if (k == MOVE_ALL_GATHER) return in;
    if (o->t.move.to.dim == 0) return in + (size_t)(i * p->n) * dt_size(o->dt);
    tensor to = p->t;
    to.data = buffer_take(&o->out, (size_t)p->n * dt_size(o->dt));
    comm_take_slice(&o->t.in, &to, o->t.move.to.dim, i, o->g.n);
    return to.data;
}

/* Whether what comes is received where it belongs: nothing to convert, and parts are contiguous. */
static bool receives_in_place(const remote_op *o) {
    return comm_kind(&o->t.move) == MOVE_ALL_GATHER && o->t.move.from.dim == 0 && !o->rounds;
}

/* Packed elements are sent from `out`, those that are not received in place arrive in `in`; each again where types
 * differ. */
static void reserve_pieces(remote_op *o, int64_t n) {
    bool packs = comm_kind(&o->t.move) != MOVE_ALL_GATHER && o->t.move.to.dim != 0;
    size_t plain = (size_t)o->g.n * (size_t)n * dt_size(o->dt);
    size_t wire = (size_t)o->g.n * wire_bytes(o, n);
    reserve_buffer(&o->out, (packs ? plain : 0) + (o->rounds ? wire : 0), 2 * o->g.n);
    reserve_buffer(&o->in, (receives_in_place(o) ? 0 : wire) + (o->rounds ? plain : 0), 2 * o->g.n);
}

static err start_pieces(remote_end *r, remote_op *o) {
    wire_piece p = piece_of(o);
    reserve_pieces(o, p.n);
    for (int i = 0; i < o->g.n; i++) {
        char *to = receives_in_place(o) ? (char *)o->t.out.data + (size_t)i * wire_bytes(o, p.n)
                                        : buffer_take(&o->in, wire_bytes(o, p.n));
        if (i != o->g.me) TRY(post_message(r, o, i, to, wire_bytes(o, p.n), true));
    }
    for (int k = 0; k < o->g.n; k++) { /* not all to the same member first */
        int i = (o->g.me + k) % o->g.n;
        const void *src = pack_piece(o, &p, i);
        TRY(send_values(r, o, i, src, p.n));
        if (i != o->g.me) continue;
        size_t step = align_up(wire_bytes(o, p.n), 64);
        char *own = receives_in_place(o) ? (char *)o->t.out.data + (size_t)i * wire_bytes(o, p.n)
                                         : o->in.at + (size_t)i * step;
        const void *sent = o->rounds ? o->out.at + o->out.used - step : src;
        if (own != sent) memcpy(own, sent, wire_bytes(o, p.n));
    }
    return OK;
}

static void reduce_values(const meeting *m, int64_t n, dtype dt, char *out) {
    float v[COMM_BLOCK];
    for (int64_t at = 0; at < n; at += COMM_BLOCK) {
        int64_t len = MIN((int64_t)COMM_BLOCK, n - at);
        meeting_reduce(m, at, len, v);
        dt_from_f32(dt, v, out + (size_t)at * dt_size(dt), len);
    }
}

/* Fills the members' pieces as tensors of the wire's type. */
static void meet_pieces(meeting *m, const remote_op *o, const wire_piece *p) {
    m->move = o->t.move;
    m->move.wire = DT_NONE; /* they have crossed */
    m->n = o->g.n;
    for (int i = 0; i < m->n; i++) {
        m->in[i] = p->t;
        m->in[i].dt = o->wire;
        m->in[i].data = o->in.at + (size_t)i * align_up(wire_bytes(o, p->n), 64);
    }
}

static void end_pieces(remote_op *o) {
    if (receives_in_place(o)) return;
    wire_piece p = piece_of(o);
    meeting m;
    meet_pieces(&m, o, &p);
    if (comm_kind(&o->t.move) == MOVE_REDUCE_SCATTER) {
        reduce_values(&m, p.n, o->dt, o->t.out.data);
        return;
    }
    m.out[o->g.me] = o->t.out;
    for (int i = 0; i < m.n; i++) {
        if (o->rounds) {
            char *wide = buffer_take(&o->in, (size_t)p.n * dt_size(o->dt));
            widen_values(o, m.in[i].data, wide, p.n);
            m.in[i].data = wide;
            m.in[i].dt = o->dt;
        }
        meeting_gather(&m, i, o->g.me);
    }
}

/* ---- all-reduce ---------------------------------------------------------------------------- */
static int64_t slice_start(const remote_op *o, int i) {
    return tensor_count(&o->t.in) * i / o->g.n;
}
static int64_t slice_count(const remote_op *o, int i) {
    return slice_start(o, i + 1) - slice_start(o, i);
}
static char *slice_at(const remote_op *o, const tensor *t, int i) {
    return (char *)t->data + (size_t)slice_start(o, i) * dt_size(o->dt);
}

static err start_reduce(remote_end *r, remote_op *o) {
    int64_t n = slice_count(o, o->g.me), all = tensor_count(&o->t.in);
    size_t wire = (size_t)o->g.n * wire_bytes(o, all / o->g.n + 1);
    reserve_buffer(&o->out, o->rounds ? wire : 0, o->g.n);
    reserve_buffer(&o->in, wire, o->g.n);
    for (int i = 0; i < o->g.n; i++) {
        char *to = buffer_take(&o->in, wire_bytes(o, n));
        if (i != o->g.me)
            TRY(post_message(r, o, i, to, wire_bytes(o, n), true));
        else if (!o->rounds)
            memcpy(to, slice_at(o, &o->t.in, i), wire_bytes(o, n));
    }
    for (int k = 0; k < o->g.n; k++) {
        int i = (o->g.me + k) % o->g.n;
        TRY(send_values(r, o, i, slice_at(o, &o->t.in, i), slice_count(o, i)));
        if (i == o->g.me && o->rounds) {
            size_t step = align_up(wire_bytes(o, n), 64);
            memcpy(o->in.at + (size_t)i * step, o->out.at + o->out.used - step, wire_bytes(o, n));
        }
    }
    return OK;
}

static err spread_reduced(remote_end *r, remote_op *o) {
    int64_t n = slice_count(o, o->g.me);
    wire_piece p = { .t = tensor_of(NULL, o->wire, 1, &n), .n = n };
    meeting m;
    meet_pieces(&m, o, &p);
    char *mine = slice_at(o, &o->t.out, o->g.me), *sent = mine;
    o->out.used = 0;
    if (o->rounds) sent = buffer_take(&o->out, wire_bytes(o, n));
    reduce_values(&m, n, o->wire, sent);
    if (o->rounds) widen_values(o, sent, mine, n);
    o->in.used = 0;
    for (int i = 0; i < o->g.n; i++) {
        int64_t part = slice_count(o, i);
        char *to = o->rounds ? buffer_take(&o->in, wire_bytes(o, part)) : slice_at(o, &o->t.out, i);
        if (i != o->g.me) TRY(post_message(r, o, i, to, wire_bytes(o, part), true));
    }
    for (int k = 1; k < o->g.n; k++)
        TRY(post_message(r, o, (o->g.me + k) % o->g.n, sent, wire_bytes(o, n), false));
    return OK;
}

static void end_reduce(remote_op *o) {
    if (!o->rounds) return;
    o->in.used = 0;
    for (int i = 0; i < o->g.n; i++) {
        char *from = buffer_take(&o->in, wire_bytes(o, slice_count(o, i)));
        if (i != o->g.me) widen_values(o, from, slice_at(o, &o->t.out, i), slice_count(o, i));
    }
}

/* ---- rows ---------------------------------------------------------------------------------- */
static err start_rows(remote_end *r, remote_op *o) {
    if (o->counts_cap < o->g.n)
        o->counts = mem_grow(o->counts, (size_t)(o->counts_cap = o->g.n) * sizeof *o->counts);
    for (int i = 0; i < o->g.n; i++) {
        if (i == o->g.me)
            o->counts[i] = o->t.move.send_rows[i];
        else
            TRY(post_message(r, o, i, &o->counts[i], sizeof *o->counts, true));
    }
    for (int i = 0; i < o->g.n; i++)
        if (i != o->g.me)
            TRY(post_message(r, o, i, (void *)&o->t.move.send_rows[i], sizeof *o->counts, false));
    return OK;
}

static int64_t row_elements(const tensor *t) { return tensor_count(t) / MAX(t->dim[0], 1); }

static err remote_exchange_rows(remote_end *r, remote_op *o) {
    int64_t row = row_elements(&o->t.in), got = 0, sent = 0;
    const char *in = o->t.in.data;
    for (int i = 0; i < o->g.n; i++) {
        if (o->counts[i] < 0 || o->t.move.send_rows[i] < 0)
            return ERR("an all-to-all with a negative number of rows");
        got += o->counts[i];
        sent += o->t.move.send_rows[i];
    }
    if (got > o->t.out.dim[0] || sent > o->t.in.dim[0])
        return ERR("rank %d gets %lld rows in %s, but has capacity for %lld", o->g.rank[o->g.me],
                   (long long)got, o->t.move.name ? o->t.move.name : "an all-to-all of rows",
                   (long long)o->t.out.dim[0]);
    reserve_buffer(&o->in, wire_bytes(o, got * row), o->g.n);
    reserve_buffer(&o->out, wire_bytes(o, sent * row), o->g.n);
    char *out = o->t.out.data;
    for (int i = 0; i < o->g.n; i++) {
        int64_t n = o->counts[i] * row;
        char *to = o->rounds ? buffer_take(&o->in, wire_bytes(o, n)) : out;
        if (i != o->g.me) TRY(post_message(r, o, i, to, wire_bytes(o, n), true));
        out += (size_t)n * dt_size(o->dt);
    }
    for (int i = 0; i < o->g.n; i++) {
        int64_t n = o->t.move.send_rows[i] * row;
        if (i != o->g.me) TRY(send_values(r, o, i, in, n));
        in += (size_t)n * dt_size(o->dt);
    }
    return OK;
}

static void end_rows(remote_op *o) {
    int64_t row = row_elements(&o->t.in);
    char *out = o->t.out.data;
    const char *own = o->t.in.data;
    for (int i = 0; i < o->g.me; i++)
        own += (size_t)(o->t.move.send_rows[i] * row) * dt_size(o->dt);
    o->in.used = 0;
    for (int i = 0; i < o->g.n; i++) {
        int64_t n = o->counts[i] * row;
        o->t.move.recv_rows[i] = o->counts[i];
        char *from = o->rounds ? buffer_take(&o->in, wire_bytes(o, n)) : NULL;
        if (i == o->g.me)
            comm_copy_values(o->dt, o->wire, own, out, n);
        else if (o->rounds)
            widen_values(o, from, out, n);
        out += (size_t)n * dt_size(o->dt);
    }
}

/* ---- to one member, from one member ---------------------------------------------------------- */
static err remote_start_message(remote_end *r, remote_op *o) {
    move_kind k = comm_kind(&o->t.move);
    int n = o->g.n, by = (o->t.move.peer % n + n) % n;
    bool shift = k == MOVE_SHIFT;
    int to = shift ? (o->g.me + by) % n : o->t.move.peer;
    int from = shift ? (o->g.me - by + n) % n : o->t.move.peer;
    int64_t count = tensor_count(k == MOVE_RECV ? &o->t.out : &o->t.in);
    reserve_buffer(&o->in, wire_bytes(o, count), 1);
    reserve_buffer(&o->out, wire_bytes(o, count), 1);
    if (shift && to == o->g.me) {
        comm_copy_values(o->dt, o->wire, o->t.in.data, o->t.out.data, count);
        return OK;
    }
    char *at = o->rounds ? buffer_take(&o->in, wire_bytes(o, count)) : o->t.out.data;
    if (k != MOVE_SEND) TRY(post_message(r, o, from, at, wire_bytes(o, count), true));
    return k == MOVE_RECV ? OK : send_values(r, o, to, o->t.in.data, count);
}

static void end_message(remote_op *o) {
    move_kind k = comm_kind(&o->t.move);
    bool stays = k == MOVE_SHIFT && o->t.move.peer % o->g.n == 0;
    if (k != MOVE_SEND && !stays && o->rounds)
        widen_values(o, o->in.at, o->t.out.data, tensor_count(&o->t.out));
}

/* ---- rounds ---------------------------------------------------------------------------------- */
typedef struct rounds {
    err (*start)(remote_end *r, remote_op *o);
    err (*second)(remote_end *r, remote_op *o); /* NULL: there is one round */
    void (*end)(remote_op *o);
} rounds;

static const rounds *rounds_of(const remote_op *o) {
    static const rounds pieces = { start_pieces, NULL, end_pieces },
                        reduce = { start_reduce, spread_reduced, end_reduce },
                        rows = { start_rows, remote_exchange_rows, end_rows },
                        message = { remote_start_message, NULL, end_message };
    switch (comm_kind(&o->t.move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX: return &reduce;
    case MOVE_ROWS: return &rows;
    case MOVE_SHIFT:
    case MOVE_SEND:
    case MOVE_RECV: return &message;
    default: return &pieces;
    }
}

/* Drops the transfers that have ended. */
static err test_transfers(remote_end *r, remote_op *o) {
    int kept = 0;
    err e = OK;
    for (int i = 0; i < o->n; i++) {
        bool done = false;
        if (!e) e = r->w->test(r->w, &o->transfers[i], &done);
        if (!done) o->transfers[kept++] = o->transfers[i];
    }
    o->n = kept;
    return e;
}

/* Called with the lock held. */
static void remote_advance(remote_end *r, remote_op *o) {
    if (!o->open || o->done) return;
    err e = test_transfers(r, o);
    if (!e && o->n) return;
    const rounds *s = rounds_of(o);
    if (!e && o->round == 0 && s->second) {
        o->round = 1;
        e = s->second(r, o);
        if (!e && o->n) return;
    }
    if (!e) s->end(o);
    o->error = e;
    o->t.moved_to = time_now();
    o->done = true;
    r->opens--;
}

/* Watches the ranks meanwhile, where no other thread does. */
static void wait_for_work(remote_end *r) {
    enum { LOOKS = 10 }; /* per second */
    if (!r->w->watch || r->lost) {
        pthread_cond_wait(&r->work, &r->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000000 / LOOKS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&r->work, &r->lock, &until);
    if (r->quit || r->opens) return;
    err e = r->w->watch(r->w);
    if (!e) return;
    r->lost = true;
    r->on_lost(r->lost_ctx, e);
    err_free(e);
}

static void *advance_all(void *arg) {
    remote_end *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        if (!r->opens) {
            wait_for_work(r);
            continue;
        }
        for (int i = 0; i < r->n_ops; i++) remote_advance(r, r->ops[i]);
        pthread_mutex_unlock(&r->lock);
        nanosleep(&(struct timespec){ 0, 50000 }, NULL);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

remote_end *remote_end_new(transport *w, void (*lost)(void *ctx, err e), void *ctx) {
    remote_end *r = mem_alloc(sizeof *r);
    r->w = w;
    r->on_lost = lost;
    r->lost_ctx = ctx;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    r->threaded = pthread_create(&r->thread, NULL, advance_all, r) == 0;
    return r;
}

void remote_end_free(remote_end *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    if (r->threaded) pthread_join(r->thread, NULL);
    for (int i = 0; i < r->n_ops; i++) {
        free(r->ops[i]->transfers);
        free(r->ops[i]->out.at);
        free(r->ops[i]->in.at);
        free(r->ops[i]->counts);
        err_free(r->ops[i]->error);
        free(r->ops[i]);
    }
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static remote_op *free_op(remote_end *r) {
    for (int i = 0; i < r->n_ops; i++)
        if (!r->ops[i]->open) return r->ops[i];
    BUG_IF(r->n_ops == COUNT_OF(r->ops));
    return r->ops[r->n_ops++] = mem_alloc(sizeof(remote_op));
}

err remote_start(comm *c, remote_end *r, comm_ticket *t) {
    move_kind k = comm_kind(&t->move);
    pthread_mutex_lock(&r->lock);
    if (k != MOVE_SEND && k != MOVE_RECV) t->sequence = r->sequence[t->move.axes]++;
    remote_op *o = free_op(r);
    o->open = true;
    o->done = false;
    o->t = *t;
    o->g = comm_group_of(c, t->move.axes);
    o->round = 0;
    o->dt = k == MOVE_RECV ? t->out.dt : t->in.dt;
    o->wire = t->move.wire ? t->move.wire : o->dt;
    o->rounds = o->wire != o->dt;
    o->n = 0;
    t->request = o;
    r->opens++;
    err e = rounds_of(o)->start(r, o);
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    return e;
}

/* Lists the ranks of open transfers, those that send to this one first. */
static void list_open(const comm *c, const remote_op *o, str *out) {
    char name[COMM_NAME + JOB_HOST];
    bool receives = false;
    int n = 0;
    for (int i = 0; i < o->n; i++) receives |= o->transfers[i].receives;
    for (int i = 0, last = -1; i < o->n; i++) {
        const transport_request *q = &o->transfers[i];
        if (q->receives != receives || q->peer == last) continue;
        str_add(out, "%s%s", n++ ? ", " : "", comm_rank_name(c, q->peer, name, sizeof name));
        last = q->peer;
    }
    str_add(out, ", which %s not %s", n == 1 ? "has" : "have",
            receives ? "sent what is needed" : "taken what is for them");
}

static err out_of_time(const comm *c, const remote_op *o, const wait_state *w) {
    char what[160];
    str missing = { 0 };
    list_open(c, o, &missing);
    err e =
        err_hint(ERR("rank %d has waited %.3g s in %s for %s", c->m.rank, w->deadline - w->began,
                     comm_describe(&o->t.move, what, sizeof what), missing.text),
                 "see what these ranks do; comm.timeout_seconds sets how long to wait");
    str_free(&missing);
    return err_exit(e, EXIT_HUNG);
}

err remote_wait(comm *c, remote_end *r, comm_ticket *t, bool (*failed)(const comm *c)) {
    remote_op *o = t->request;
    wait_state w;
    bool begun = false; /* `w` has: the first looks cost nothing */
    err e = OK;
    for (int spin = 1; !e; spin++) {
        pthread_mutex_lock(&r->lock);
        remote_advance(r, o);
        bool done = o->done;
        if (done) {
            e = o->error;
            o->error = OK;
            o->open = false;
            t->moved_from = t->started;
            t->moved_to = o->t.moved_to;
        } else if (spin % 1024 == 0) {
            if (!begun) comm_begin_wait(c, &o->t.move, &w);
            begun = true;
            if (comm_wait_is_over(c, &w)) e = out_of_time(c, o, &w);
        }
        pthread_mutex_unlock(&r->lock);
        if (done || e) break;
        if (failed && failed(c))
            return err_echo(ERR("rank %d ends because another rank failed", c->m.rank));
        sched_yield();
    }
    return e;
}
