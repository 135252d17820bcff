/* Plays all ranks' communication together before anything runs: a step that would hang, or whose partners
 * disagree, is refused here with both places. What is played is the list of instructions that runs. */
#include "exec_internal.h"

#include <stdlib.h>

/* A communication that moves bytes. */
typedef struct trace_entry {
    instr_kind message; /* DO_SEND, DO_SENT, DO_RECV; DO_FWD: a collective */
    comm_move move;
    int64_t elements;
    int peer; /* of a message: the other rank, in the world */
    int channel;
    int number; /* DO_SENT: of the message that it waits for, among those to its peer on its channel */
    rec_site site;
} trace_entry;

/* A rank's communications, in the order they begin. */
typedef struct trace {
    mesh m;
    trace_entry *entry;
    int n, cap, at;
} trace;

static void trace_add(trace *t, const trace_entry *e) { LIST_ADD(t->entry, t->n, t->cap) = *e; }

static int64_t value_elements(const prog *p, val v) {
    tensor x = val_tensor(&p->val[v]);
    return tensor_count(&x);
}

static void trace_program_message(trace *t, const prog *p, const prog_op *o) {
    int members[1024];
    BUG_IF(mesh_span(&t->m, o->attr.comm.axes) > (int)COUNT_OF(members));
    mesh_group(&t->m, o->attr.comm.axes, members);
    trace_add(t, &(trace_entry){ .message = op_move_kind(o) == MOVE_SEND ? DO_SEND : DO_RECV,
                                 .move.axes = o->attr.comm.axes,
                                 .elements = value_elements(p, o->in[0]),
                                 .peer = members[o->attr.comm.peer],
                                 .channel = o->attr.comm.channel,
                                 .site = o->site });
}

static void trace_list(trace *t, const prog *p, instr_kind kind, int micro, int micros) {
    const op_list *l = instr_list(p, kind);
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        if (!(op_flags(o->op) & OPF_EXTERN) || o->phase == COMM_WAIT) continue;
        if (!op_runs(o, kind, micro, micros)) continue;
        move_kind k = op_move_kind(o);
        if (k == MOVE_NONE || k == MOVE_SLICE) continue;
        if (k == MOVE_SEND || k == MOVE_RECV) {
            trace_program_message(t, p, o);
            continue;
        }
        trace_add(t, &(trace_entry){ .message = DO_FWD,
                                     .move = o->attr.comm,
                                     .elements = value_elements(p, o->in[0]),
                                     .site = o->site });
    }
}

static void trace_message(trace *t, const chain *c, const instr *i, int number) {
    int members[1024];
    BUG_IF(c->pipe.ranks > (int)COUNT_OF(members));
    int me = mesh_group(&t->m, AXES_STAGES, members);
    int peer = members[message_peer(c, me, i)];
    trace_add(t, &(trace_entry){ .message = i->kind,
                                 .move.axes = AXES_STAGES,
                                 .elements = value_elements(c->block[0], c->block[0]->res_in) *
                                             message_values(c, me, i),
                                 .peer = peer,
                                 .channel = (int)i->pass,
                                 .number = number,
                                 .site = { "the pipeline", "", i->micro } });
}

/* Numbers the messages that a rank sends in a step: counts them by channel, and notes the number of the last one that
 * was sent from each slot. */
typedef struct sent_messages {
    int sent[PASSES];
    int *of; /* [chunks * slots * PASSES] */
    int slots;
} sent_messages;

static int sent_number(sent_messages *s, const instr *i) {
    int *of = &s->of[(i->chunk * s->slots + i->slot) * PASSES + (int)i->pass];
    if (i->kind == DO_SEND) *of = s->sent[i->pass]++;
    return *of;
}

static void trace_updated(trace *t, const prog *p, const instr *i) {
    const prog_bucket *b = &p->set.bucket[i->bucket];
    trace_add(t, &(trace_entry){ .message = DO_FWD,
                                 .move = updated_move(b),
                                 .elements = bucket_holds(b, &t->m, HOLDS_STATE).count,
                                 .site = { b->name, "", i->instance } });
}

static err trace_rank(trace *t, const chain *c, int micros) {
    step_list l;
    int rank = mesh_stage(&t->m);
    TRY(step_list_make(c, rank, micros, &l));
    err e = step_list_check_slots(c, rank, &l);
    step_cursor at = { &l };
    sent_messages sent = { .slots = 1 };
    for (int k = 0; k < c->pipe.chunks; k++) sent.slots = MAX(sent.slots, l.slots[k]);
    sent.of = mem_alloc((size_t)(c->pipe.chunks * sent.slots) * PASSES * sizeof *sent.of);
    for (instr i; step_next(&at, &i);) {
        model_chunk k = chain_chunk(c, rank, i.chunk);
        if (i.kind == DO_RECV) trace_message(t, c, &i, 0);
        if (i.kind == DO_SEND || i.kind == DO_SENT) trace_message(t, c, &i, sent_number(&sent, &i));
        if (i.kind == DO_BEGIN) trace_list(t, c->begin, i.kind, 0, micros);
        if (i.end && i.end->p) trace_list(t, i.end->p, i.kind, 0, micros);
        if (i.kind == DO_END && c->end) trace_list(t, c->end, i.kind, 0, micros);
        if (i.kind == DO_GATHER_UPDATED) trace_updated(t, chunk_program(c, &k, i.instance), &i);
        if (instr_runs_list(i.kind))
            trace_list(t, chunk_program(c, &k, i.instance), i.kind, i.micro, micros);
    }
    free(sent.of);
    step_list_free(&l);
    return e;
}

/* ---- playing ---------------------------------------------------------------------------------- */
static const trace_entry *next_of(const trace *t) { return t->at < t->n ? &t->entry[t->at] : NULL; }

static const char *name_of(const trace_entry *e) {
    if (!e) return "the end";
    if (e->message == DO_FWD) return move_name(comm_kind(&e->move));
    return e->message == DO_SEND ? "send" : e->message == DO_SENT ? "wait for a send" : "receive";
}

static err disagreement_error(const trace *t, int r, int q) {
    const trace_entry *a = next_of(&t[r]), *b = next_of(&t[q]);
    return ERR("rank %d is at %s over %lld elements (%s:%d), but rank %d is at %s (%s:%d): they "
               "would wait for each other forever",
               r, name_of(a), (long long)a->elements, a->site.file, a->site.line, q, name_of(b),
               b ? b->site.file : "-", b ? b->site.line : 0);
}

static bool same_collective(const trace_entry *a, const trace_entry *b) {
    return b && b->message == DO_FWD && a->move.axes == b->move.axes &&
           place_same(a->move.from, b->move.from) && place_same(a->move.to, b->move.to) &&
           a->move.kind == b->move.kind && a->move.wire == b->move.wire &&
           a->move.peer == b->move.peer && a->elements == b->elements;
}

/* @return whether rank r's next collective has all its partners; *clash when one never will. */
static bool members_meet(const trace *t, int ranks, int r, int *clash) {
    const trace_entry *e = next_of(&t[r]);
    for (int q = 0; q < ranks; q++) {
        if (mesh_group_id(&t[q].m, e->move.axes) != mesh_group_id(&t[r].m, e->move.axes)) continue;
        if (same_collective(e, next_of(&t[q]))) continue;
        *clash = q;
        return false;
    }
    return true;
}

/* @return how many messages rank r has sent to a peer on a channel so far, or received from it. */
static int messages_so_far(const trace *t, int r, instr_kind what, int peer, int channel) {
    int n = 0;
    for (int i = 0; i < t[r].at; i++) {
        const trace_entry *s = &t[r].entry[i];
        n += s->message == what && s->peer == peer && s->channel == channel;
    }
    return n;
}

/* Whether the message that rank r waits for has been sent, or the one that it sent has been received, without which
 * the wait for it need not end. */
static bool message_meets(const trace *t, int r) {
    const trace_entry *e = next_of(&t[r]);
    if (e->message == DO_SENT)
        return messages_so_far(t, e->peer, DO_RECV, r, e->channel) > e->number;
    return messages_so_far(t, e->peer, DO_SEND, r, e->channel) >
           messages_so_far(t, r, DO_RECV, e->peer, e->channel);
}

/* Moves rank r on, with its partners. @return false when it must wait for *clash. */
static bool trace_advance(trace *t, int ranks, int r, int *clash) {
    const trace_entry *e = next_of(&t[r]);
    if ((e->message == DO_RECV || e->message == DO_SENT) && !message_meets(t, r)) {
        *clash = e->peer;
        return false;
    }
    if (e->message != DO_FWD) {
        t[r].at++;
        return true;
    }
    if (!members_meet(t, ranks, r, clash)) return false;
    int group = mesh_group_id(&t[r].m, e->move.axes);
    axis_set axes = e->move.axes;
    for (int q = 0; q < ranks; q++)
        if (mesh_group_id(&t[q].m, axes) == group) t[q].at++;
    return true;
}

static err match_traces(trace *t, int ranks) {
    for (;;) {
        int waiting = -1, clash = -1;
        bool moved = false;
        for (int r = 0; r < ranks; r++) {
            int against = -1;
            if (!next_of(&t[r])) continue;
            waiting = r;
            if (trace_advance(t, ranks, r, &against))
                moved = true;
            else
                clash = against;
        }
        if (waiting < 0) return OK;
        if (!moved) return disagreement_error(t, waiting, clash);
    }
}

err plan_check_ranks(const mesh *m, const chain *chains, int ranks) {
    trace *t = mem_alloc((size_t)ranks * sizeof *t);
    err e = OK;
    for (int r = 0; r < ranks && !e; r++) {
        chain c = chain_normal(&chains[r]);
        t[r].m = mesh_as(m, r);
        /* the first of a step, two between, the last; of a pipeline as many as fill it twice, and forward no more than it
         * is planned for: stages that only go forward would wait for slots of microbatches that are never in flight */
        int micros = c.pipe.ranks == 1 ? 4 : c.pipe.forward_only ? c.micros : 2 * c.pipe.ranks;
        e = trace_rank(&t[r], &c, micros);
    }
    if (!e) e = match_traces(t, ranks);
    for (int r = 0; r < ranks; r++) free(t[r].entry);
    free(t);
    return e;
}
