/* Ranks that reach one another's memory.
 *
 * Collectives. Each rank has, per set of axes, a ring of postings. comm_start fills in the next one, with
 * its tensors, and counts it:
 *
 *     rank 0   posted 7   | 0 | 1 | 2 | ... | 6 |          a group meets in its n-th collective when all of
 *     rank 1   posted 6   | 0 | 1 | 2 | ... |              its ranks have posted more than n
 *
 * When all members have posted, the collective falls into tasks (comm_data.c), and every rank that waits
 * for it takes tasks until none is left, also those that fill another rank's tensors: a rank that still
 * computes finds its result ready. So a wait depends on what others have started and never on what they
 * wait for. The counts of tasks taken and done are in the posting of the group's first member.
 *
 * A ring has twice as many postings as may be open. A member that starts collective s has completed s - 32;
 * so all have posted that one, and completed s - 64, whose posting is thus free.
 *
 * Messages. A pair of ranks has a box of letters for each direction: those that the sender has to send,
 * those that the receiver wants. The k-th of a channel sent meets the k-th wanted. Whoever waits first takes
 * the letter (compare-and-swap of the sent one's state) and copies; both are then DONE. A state contains how
 * often its letter was used, so that one which is used again meanwhile is not taken. */
#include "comm_internal.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING = 2 * COMM_MAX_OPEN };

typedef struct posting {
    comm_move move; /* its pointers are the poster's own: not followed by others */
    char name[COMM_NAME];
    tensor in, out;
    _Atomic int64_t taken, done; /* tasks; of the first member */
    _Atomic double from, to;     /* when the first was taken, and the last done */
} posting;

typedef struct axes_lane { /* one rank's collectives over one set of axes */
    _Atomic uint64_t posted;
    _Atomic int waits; /* the rank waits in one of them, and has for a while */
    posting ring[RING];
} axes_lane;

enum { LETTER_FREE, LETTER_POSTED, LETTER_TAKEN, LETTER_DONE, LETTER_BAD, LETTER_STATES = 8 };

typedef struct letter {
    _Atomic uint64_t state; /* LETTER_* + LETTER_STATES * uses */
    _Atomic uint64_t key; /* axes, channel and the number in it; others may look while it is set */
    comm_move move;
    tensor t;
    double from, to; /* when it was copied, once it is DONE */
} letter;

typedef struct letter_box { /* from one rank to another */
    letter sent[COMM_MAX_OPEN], wanted[COMM_MAX_OPEN];
} letter_box;

struct shared_world {
    int ranks;
    _Atomic int failing,
        failed; /* 1 + the first rank that gave up; `failing` while it writes why */
    char cause[512];
    /* then lane [ranks][COMM_SETS], letter_box [from][to], int32_t rows [ranks][COMM_SETS][RING][ranks] */
};

struct shared_end {
    shared_world *w;
    const int *index;            /* of a rank in the world; NULL: the rank */
    const shared_memory *memory; /* NULL: one address space */
    axes_lane (*lanes)[COMM_SETS];
    letter_box *boxes;
    int32_t *rows;
    bool open[COMM_SETS][RING];
    struct channel_counts {
        uint64_t sent[COMM_CHANNELS], wanted[COMM_CHANNELS];
    } (*messages)[COMM_SETS]; /* [rank][set] */
};

static size_t lanes_at(void) { return align_up(sizeof(shared_world), 64); }
static size_t boxes_at(int n) {
    return lanes_at() + align_up((size_t)n * COMM_SETS * sizeof(axes_lane), 64);
}
static size_t rows_at(int n) {
    return boxes_at(n) + align_up((size_t)n * (size_t)n * sizeof(letter_box), 64);
}
size_t shared_world_bytes(int n) {
    return rows_at(n) + (size_t)n * (size_t)n * COMM_SETS * RING * sizeof(int32_t);
}

void shared_world_init(shared_world *w, int ranks) { w->ranks = ranks; }

shared_end *shared_end_new(shared_world *w, const int *index, const shared_memory *memory) {
    shared_end *s = mem_alloc(sizeof *s);
    s->index = index;
    s->memory = memory;
    char *base = (char *)w;
    s->w = w;
    s->lanes = (void *)(base + lanes_at());
    s->boxes = (void *)(base + boxes_at(w->ranks));
    s->rows = (void *)(base + rows_at(w->ranks));
    s->messages = mem_alloc((size_t)w->ranks * sizeof *s->messages);
    return s;
}

void shared_end_free(shared_end *s) {
    if (!s) return;
    free(s->messages);
    free(s);
}

static int rank_index(const shared_end *s, int rank) { return s->index ? s->index[rank] : rank; }

static tensor publish_tensor(shared_end *s, const tensor *t, bool written) {
    tensor p = *t;
    if (s->memory && t->data) p.data = s->memory->start(s->memory->ctx, t, written);
    return p;
}
static tensor reach_tensor(shared_end *s, int rank, const tensor *published) {
    tensor t = *published;
    if (s->memory && t.data) t.data = s->memory->reach(s->memory->ctx, rank_index(s, rank), t.data);
    return t;
}
static void retire_tensor(shared_end *s, const tensor *t, const tensor *published, bool written,
                          size_t bytes) {
    if (s->memory && t->data) s->memory->end(s->memory->ctx, t, published->data, written, bytes);
}

/* ---- waiting ------------------------------------------------------------------------------- */
typedef struct patience {
    int spins;
    bool begun; /* `w` has: the first looks cost nothing */
    wait_state w;
} patience;

/* Most waits end within microseconds, so the first looks are busy ones where each rank has
 * a core. Then others run; and a rank that waits longer sleeps between looks, which a scheduler rewards: it
 * gets the core at once when it wakes, whatever else runs there. @return false when it is time to look why
 * nothing happens: often. */
static bool still_patient(const comm *c, patience *p) {
    enum { BUSY = 4000, YIELDS = 64, NAP = 20000 /* nanoseconds */ };
    int spins = ++p->spins - (c->crowded ? 0 : BUSY);
    if (spins > YIELDS)
        nanosleep(&(struct timespec){ 0, NAP }, NULL);
    else if (spins > 0)
        sched_yield();
    return p->spins % 64 != 0;
}

void shared_abort(shared_end *s, int rank, const char *cause) {
    shared_world *w = s->w;
    int none = 0;
    if (!atomic_compare_exchange_strong(&w->failing, &none, rank + 1)) return;
    snprintf(w->cause, sizeof w->cause, "%s", cause ? cause : "");
    atomic_store(&w->failed, rank + 1);
}

bool shared_failed_elsewhere(const shared_end *s, int rank) {
    int failed = atomic_load(&s->w->failed);
    return failed && failed != rank + 1;
}

/* Appends the ranks that hang: ranks that wait for one another all wait, and those that do not wait hang. */
static void list_hanging(comm *c, shared_end *s, str *out) {
    char name[COMM_NAME + JOB_HOST];
    int n = 0;
    for (int r = 0; r < mesh_world(&c->m); r++) {
        int waits = 0, at = rank_index(s, r);
        for (int set = 0; set < COMM_SETS && at >= 0; set++)
            waits |= atomic_load(&s->lanes[at][set].waits);
        if (at < 0 || waits) continue;
        str_add(out, "%s%s", n++ ? " and " : "; it hangs in ",
                comm_rank_name(c, r, name, sizeof name));
    }
    if (n) str_add(out, ", which %s for nobody", n > 1 ? "wait" : "waits");
}

/* @return an error when another rank has given up, or time is up: then this rank gives up too. @param
 * missing names what has not come, in words. */
static err check_patience(comm *c, shared_end *s, patience *p, const comm_move *m,
                          const char *missing) {
    char what[160];
    int failed = atomic_load(&s->w->failed);
    if (failed > COMM_MAX_RANKS) /* no rank is left to report it */
        return ERR("rank %d ends in %s: %s", c->m.rank, comm_describe(m, what, sizeof what),
                   s->w->cause);
    if (failed)
        return ERR("rank %d ends in %s because rank %d failed: %s", c->m.rank,
                   comm_describe(m, what, sizeof what), failed - 1, s->w->cause);
    if (!p->begun) comm_begin_wait(c, m, &p->w);
    p->begun = true;
    atomic_store(&s->lanes[rank_index(s, c->m.rank)][m->axes].waits, 1);
    if (!comm_wait_is_over(c, &p->w)) return OK;
    str hanging = { 0 };
    list_hanging(c, s, &hanging);
    err e = err_hint(ERR("rank %d has waited %.3g s in %s for %s%s", c->m.rank,
                         p->w.deadline - p->w.began, comm_describe(m, what, sizeof what), missing,
                         hanging.text ? hanging.text : ""),
                     "see what these ranks do; comm.timeout_seconds sets how long to wait");
    shared_abort(s, c->m.rank, err_message(e));
    str_free(&hanging);
    return err_exit(e, EXIT_HUNG);
}

/* ---- collectives --------------------------------------------------------------------------- */
static posting *posting_of(shared_end *s, int rank, const comm_ticket *t) {
    return &s->lanes[rank_index(s, rank)][t->move.axes].ring[t->sequence % RING];
}

static int32_t *posted_rows(shared_end *s, int rank, const comm_ticket *t) {
    size_t ring =
        ((size_t)rank_index(s, rank) * COMM_SETS + t->move.axes) * RING + t->sequence % RING;
    return s->rows + ring * (size_t)s->w->ranks;
}

static void start_collective(comm *c, shared_end *s, comm_ticket *t) {
    axes_lane *l = &s->lanes[rank_index(s, c->m.rank)][t->move.axes];
    t->sequence = atomic_load(&l->posted);
    bool *open = s->open[t->move.axes];
    BUG_IF(t->sequence >= COMM_MAX_OPEN && open[(t->sequence - COMM_MAX_OPEN) % RING]);
    open[t->sequence % RING] = true;
    posting *p = posting_of(s, c->m.rank, t);
    p->move = t->move;
    p->in = publish_tensor(s, &t->in, false);
    p->out = publish_tensor(s, &t->out, true);
    snprintf(p->name, sizeof p->name, "%s", t->move.name ? t->move.name : "");
    atomic_store(&p->taken, 0);
    atomic_store(&p->done, 0);
    if (comm_kind(&t->move) == MOVE_ROWS)
        memcpy(posted_rows(s, c->m.rank, t), t->move.send_rows,
               (size_t)mesh_span(&c->m, t->move.axes) * sizeof(int32_t));
    atomic_store(&l->posted, t->sequence + 1);
}

static bool has_posted(shared_end *s, int rank, const comm_ticket *t) {
    return atomic_load(&s->lanes[rank_index(s, rank)][t->move.axes].posted) > t->sequence;
}

static void list_missing(comm *c, shared_end *s, const comm_group *g, const comm_ticket *t,
                         str *out) {
    char name[COMM_NAME + JOB_HOST];
    int n = 0;
    for (int i = 0; i < g->n; i++)
        if (!has_posted(s, g->rank[i], t))
            str_add(out, "%s%s", n++ ? ", " : "", comm_rank_name(c, g->rank[i], name, sizeof name));
    str_add(out, ", which %s not started it", n == 1 ? "has" : "have");
}

static err await_members(comm *c, shared_end *s, const comm_group *g, const comm_ticket *t) {
    patience p = { 0 };
    for (int i = 0; i < g->n; i++)
        while (!has_posted(s, g->rank[i], t)) {
            if (still_patient(c, &p)) continue;
            str missing = { 0 };
            list_missing(c, s, g, t, &missing);
            err e = check_patience(c, s, &p, &t->move, missing.text);
            str_free(&missing);
            TRY(e);
        }
    return OK;
}

static bool same_move(const posting *a, const posting *b) {
    return comm_kind(&a->move) == comm_kind(&b->move) && place_same(a->move.from, b->move.from) &&
           place_same(a->move.to, b->move.to) && a->move.wire == b->move.wire &&
           a->in.dt == b->in.dt &&
           (comm_kind(&a->move) != MOVE_SHIFT || a->move.peer == b->move.peer);
}

static err check_partners(comm *c, shared_end *s, const comm_group *g, const comm_ticket *t) {
    const posting *own = posting_of(s, c->m.rank, t);
    for (int i = 0; i < g->n; i++) {
        const posting *p = posting_of(s, g->rank[i], t);
        bool counted = comm_kind(&t->move) == MOVE_ROWS;
        if (same_move(own, p) && (counted || tensor_count(&p->in) == tensor_count(&own->in)))
            continue;
        char a[160], b[160];
        comm_move theirs = p->move;
        theirs.name = p->name;
        return ERR("ranks %d and %d meet in different collectives: %s, of %lld elements of %s, and "
                   "%s, of %lld of %s",
                   c->m.rank, g->rank[i], comm_describe(&t->move, a, sizeof a),
                   (long long)tensor_count(&own->in), dt_name(own->in.dt),
                   comm_describe(&theirs, b, sizeof b), (long long)tensor_count(&p->in),
                   dt_name(p->in.dt));
    }
    return OK;
}

/* Reads the shapes and row counts that the members posted. */
static void meet_postings(meeting *m, shared_end *s, const comm_group *g, const comm_ticket *t) {
    m->move = t->move;
    m->n = g->n;
    for (int i = 0; i < g->n; i++) {
        const posting *p = posting_of(s, g->rank[i], t);
        m->in[i] = p->in;
        m->out[i] = p->out;
        m->rows[i] = posted_rows(s, g->rank[i], t);
    }
}

/* Reads the addresses of the members' tensors. A rank that finds all tasks done does not: others may have ended since. */
static err reach_members(shared_end *s, const comm_group *g, meeting *m) {
    for (int i = 0; i < g->n; i++) {
        m->in[i] = reach_tensor(s, g->rank[i], &m->in[i]);
        m->out[i] = reach_tensor(s, g->rank[i], &m->out[i]);
        if (!m->in[i].data || !m->out[i].data)
            return ERR("rank %d has ended: its memory cannot be mapped any more", g->rank[i]);
    }
    return OK;
}

static err run_meeting_tasks(comm *c, shared_end *s, const comm_group *g, comm_ticket *t,
                             meeting *m) {
    posting *first = posting_of(s, g->rank[0], t);
    int64_t tasks = meeting_tasks(m), k, own = 0;
    while ((k = atomic_fetch_add(&first->taken, 1)) < tasks) {
        if (!k) atomic_store(&first->from, time_now());
        if (!own++) TRY(reach_members(s, g, m));
        meeting_run(m, k);
        atomic_store(&first->to, time_now());
        atomic_fetch_add(&first->done, 1);
    }
    patience p = { 0 };
    while (atomic_load(&first->done) < tasks)
        if (!still_patient(c, &p))
            TRY(check_patience(c, s, &p, &t->move,
                               "a rank that took a part of the work and stopped"));
    t->moved_from = atomic_load(&first->from);
    t->moved_to = atomic_load(&first->to);
    return OK;
}

/* Every rank checks every member's rows, so all refuse together. */
static err check_rows(const comm_group *g, const meeting *m) {
    for (int to = 0; to < m->n; to++) {
        int64_t begin, sent = 0, got = meeting_rows(m, m->n - 1, to, &begin) + begin;
        for (int i = 0; i < m->n; i++) {
            if (m->rows[to][i] < 0)
                return ERR("rank %d sends %d rows to rank %d", g->rank[to], m->rows[to][i],
                           g->rank[i]);
            sent += m->rows[to][i];
        }
        if (sent > m->in[to].dim[0])
            return ERR("rank %d sends %lld rows of a tensor that has %lld", g->rank[to],
                       (long long)sent, (long long)m->in[to].dim[0]);
        if (got > m->out[to].dim[0])
            return ERR("rank %d gets %lld rows in %s, but has capacity for %lld", g->rank[to],
                       (long long)got, m->move.name ? m->move.name : "an all-to-all of rows",
                       (long long)m->out[to].dim[0]);
    }
    return OK;
}

/* @return how many there are. */
static int64_t report_received_rows(const comm_group *g, const meeting *m, const comm_ticket *t) {
    int64_t all = 0;
    for (int i = 0; i < g->n; i++) all += t->move.recv_rows[i] = m->rows[i][g->me];
    return all;
}

static err wait_collective(comm *c, shared_end *s, comm_ticket *t) {
    comm_group g = comm_group_of(c, t->move.axes);
    TRY(await_members(c, s, &g, t));
    TRY(check_partners(c, s, &g, t));
    meeting m;
    meet_postings(&m, s, &g, t);
    bool counted = comm_kind(&t->move) == MOVE_ROWS;
    if (counted) TRY(check_rows(&g, &m));
    TRY(run_meeting_tasks(c, s, &g, t, &m));
    posting *own = posting_of(s, c->m.rank, t);
    size_t bytes = tensor_bytes(&t->out);
    if (counted)
        bytes = bytes / (size_t)MAX(t->out.dim[0], 1) * (size_t)report_received_rows(&g, &m, t);
    retire_tensor(s, &t->in, &own->in, false, 0);
    retire_tensor(s, &t->out, &own->out, true, bytes);
    s->open[t->move.axes][t->sequence % RING] = false;
    return OK;
}

/* ---- messages ------------------------------------------------------------------------------ */
static letter_box *letter_box_of(comm *c, shared_end *s, const comm_ticket *t, int peer) {
    bool sends = comm_kind(&t->move) == MOVE_SEND;
    int from = sends ? c->m.rank : peer, to = sends ? peer : c->m.rank;
    return &s->boxes[rank_index(s, from) * s->w->ranks + rank_index(s, to)];
}

static int peer_of(const comm *c, const comm_ticket *t) {
    comm_group g = comm_group_of(c, t->move.axes);
    return g.rank[t->move.peer];
}

static bool is_state(uint64_t state, int what) { return state % LETTER_STATES == (uint64_t)what; }
static uint64_t next_state(uint64_t state, int what) {
    return state / LETTER_STATES * LETTER_STATES + (uint64_t)what;
}

static void shared_start_message(comm *c, shared_end *s, comm_ticket *t) {
    int peer = peer_of(c, t);
    bool sends = comm_kind(&t->move) == MOVE_SEND;
    letter_box *box = letter_box_of(c, s, t, peer);
    letter *mine = sends ? box->sent : box->wanted;
    struct channel_counts *counts = &s->messages[rank_index(s, peer)][t->move.axes];
    int at = 0;
    while (at < COMM_MAX_OPEN && !is_state(atomic_load(&mine[at].state), LETTER_FREE)) at++;
    BUG_IF(at == COMM_MAX_OPEN); /* too many messages in flight */
    letter *l = &mine[at];
    uint64_t number = (sends ? counts->sent : counts->wanted)[t->move.channel]++;
    atomic_store(&l->key,
                 (number * COMM_SETS + t->move.axes) * COMM_CHANNELS + (uint64_t)t->move.channel);
    l->move = t->move;
    l->t = publish_tensor(s, sends ? &t->in : &t->out, !sends);
    t->slot = at;
    atomic_store(&l->state, next_state(atomic_load(&l->state), LETTER_POSTED) + LETTER_STATES);
}

/* @return the letter of the other side that matches this one, with its state; NULL: not yet posted. The key is of that state if the
 * state is the same afterwards: a letter that is used again gets its key first, and is posted last. */
static letter *find_partner(letter *theirs, const letter *mine, uint64_t *state) {
    for (int i = 0; i < COMM_MAX_OPEN; i++) {
        letter *l = &theirs[i];
        *state = atomic_load(&l->state);
        if (is_state(*state, LETTER_POSTED) && atomic_load(&l->key) == atomic_load(&mine->key) &&
            atomic_load(&l->state) == *state)
            return l;
    }
    return NULL;
}

/* Copies when both sides are there and no other rank does. */
static void try_message(shared_end *s, int me, int peer, letter_box *box, letter *mine,
                        bool sends) {
    uint64_t state;
    letter *theirs = find_partner(sends ? box->wanted : box->sent, mine, &state);
    if (!theirs) return;
    letter *sent = sends ? mine : theirs, *wanted = sends ? theirs : mine;
    if (sends) state = atomic_load(&sent->state);
    if (!is_state(state, LETTER_POSTED) ||
        !atomic_compare_exchange_strong(&sent->state, &state, next_state(state, LETTER_TAKEN)))
        return;
    bool fits = sent->t.dt == wanted->t.dt && tensor_count(&sent->t) == tensor_count(&wanted->t) &&
                sent->move.wire == wanted->move.wire;
    int end = fits ? LETTER_DONE : LETTER_BAD;
    tensor from = reach_tensor(s, sends ? me : peer, &sent->t),
           to = reach_tensor(s, sends ? peer : me, &wanted->t);
    if (!from.data || !to.data) end = LETTER_BAD; /* its process has ended */
    double began = time_now();
    if (end == LETTER_DONE)
        comm_copy_values(from.dt, sent->move.wire, from.data, to.data, tensor_count(&from));
    sent->from = wanted->from = began;
    sent->to = wanted->to = time_now();
    atomic_store(&wanted->state, next_state(atomic_load(&wanted->state), end));
    atomic_store(&sent->state, next_state(state, end));
}

static err wait_message(comm *c, shared_end *s, comm_ticket *t) {
    int peer = peer_of(c, t);
    bool sends = comm_kind(&t->move) == MOVE_SEND;
    letter_box *box = letter_box_of(c, s, t, peer);
    letter *mine = &(sends ? box->sent : box->wanted)[t->slot];
    const tensor *x = sends ? &t->in : &t->out;
    patience p = { 0 };
    uint64_t state;
    for (;;) {
        state = atomic_load(&mine->state);
        if (is_state(state, LETTER_DONE) || is_state(state, LETTER_BAD)) break;
        if (is_state(state, LETTER_POSTED)) try_message(s, c->m.rank, peer, box, mine, sends);
        if (is_state(atomic_load(&mine->state), LETTER_DONE) || still_patient(c, &p)) continue;
        char missing[160], name[COMM_NAME + JOB_HOST];
        snprintf(missing, sizeof missing, "%s, which has not started to %s",
                 comm_rank_name(c, peer, name, sizeof name), sends ? "receive" : "send");
        TRY(check_patience(c, s, &p, &t->move, missing));
    }
    retire_tensor(s, x, &mine->t, !sends, tensor_bytes(x));
    t->moved_from = mine->from;
    t->moved_to = mine->to;
    atomic_store(&mine->state, next_state(state, LETTER_FREE));
    if (is_state(state, LETTER_DONE)) return OK;
    char what[160];
    return ERR("rank %d and rank %d disagree in %s: here it has %lld elements of %s", c->m.rank,
               peer, comm_describe(&t->move, what, sizeof what), (long long)tensor_count(x),
               dt_name(x->dt));
}

/* ---- the verb ------------------------------------------------------------------------------ */
static bool is_message(const comm_ticket *t) {
    return comm_kind(&t->move) == MOVE_SEND || comm_kind(&t->move) == MOVE_RECV;
}

err shared_start(comm *c, shared_end *s, comm_ticket *t) {
    if (is_message(t))
        shared_start_message(c, s, t);
    else
        start_collective(c, s, t);
    return OK;
}

err shared_wait(comm *c, shared_end *s, comm_ticket *t) {
    TRY(is_message(t) ? wait_message(c, s, t) : wait_collective(c, s, t));
    atomic_store_explicit(&s->lanes[rank_index(s, c->m.rank)][t->move.axes].waits, 0,
                          memory_order_relaxed);
    return OK;
}
