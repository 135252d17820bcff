/* The instructions of a step, from the timetable: what a task runs, block by block, what it receives
 * and sends, and which memory is its own. Executor, checkers, simulator, timelines and dumps walk this list, with
 * step_next.
 *
 * Without a pipeline the timetable is that of one microbatch. A step is its list for the first microbatch, for those
 * between, which are repeated, and for the last: what is gathered once, or for the next microbatch, differs.
 *
 * Recompute by blocks is nothing but an order. With keep_every = n the forward pass keeps the summed
 * input of every n-th block (its block input) and the saved values of n blocks; backward runs a
 * segment's forward lists again from its block input into those same n slots (segments of one block have two in turn
 * where a block would overwrite the residual that the one before it saved):
 *
 *     keep_every 2:   F0 F1 | F2 F3 | F4 F5 | last | B5 B4 | F2' F3 B3 B2 | F0' F1 B1 B0 | first
 *                     in0     in2     in4                    from in2       from in0
 *
 * A pipeline runs the last segment again, too: others of its microbatches are in flight, and would each keep a
 * segment's values until then. So they share one segment's memory, and each keeps block inputs alone.
 *
 * The same ops on the same inputs are bit-exact. F' is the block with the kept sum as its residual and
 * no delta; the last forward of a segment runs only what backward reads. The first block of a later
 * pipeline stage is such an F', too: stages pass on the sum. */
#include "step_list_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- chunks ------------------------------------------------------------------------------ */
static bool reads_residual(const prog *p, const prog_op *o) {
    bool reads = false;
    for (int k = 0; k < OP_MAX_IN; k++)
        reads |= o->in[k] != VAL_NONE && (o->in[k] == p->res_in || o->in[k] == p->delta_in);
    return reads;
}

/* Whether v of program p and w of program q, both saved, have bytes in common in one slot. */
static bool saved_overlap(const prog *p, val v, const prog *q, val w) {
    if (v == VAL_NONE || w == VAL_NONE) return false;
    const prog_val *x = &p->val[val_root(p, v)], *y = &q->val[val_root(q, w)];
    return x->cls == VC_SAVED && y->cls == VC_SAVED && x->at < y->at + val_bytes(y) &&
           y->at < x->at + val_bytes(x);
}

/* Whether block b, in the slot of block a before it, overwrites what that passed on while it reads it. */
static bool overwrites_residual(const prog *a, const prog *b) {
    bool over = false;
    int last = b->fwd.n - 1;
    while (last >= 0 && !reads_residual(b, &b->fwd.op[last])) last--;
    for (int i = 0; i <= last; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            over |= saved_overlap(a, a->res_out, b, b->fwd.op[i].out[k]) ||
                    saved_overlap(a, a->delta_out, b, b->fwd.op[i].out[k]);
    return over;
}

static int slots_of_segment(const chain *c) {
    bool over = false;
    for (int l = 0; c->keep_every == 1 && l + 1 < c->layers && !over; l++)
        over = overwrites_residual(chain_block(c, l), chain_block(c, l + 1));
    return over ? 2 : c->keep_every;
}

chain chain_normal(const chain *c) {
    chain n = *c;
    n.pipe.ranks = MAX(1, n.pipe.ranks);
    n.pipe.chunks = MAX(1, n.pipe.chunks);
    n.pipe.forward_only = c->first->mode != PROG_TRAIN;
    n.micros = MAX(1, n.micros);
    n.segment_slots = slots_of_segment(c);
    return n;
}

model_chunk chain_chunk(const chain *c, int rank, int index) {
    model_chunk k = { .stage = index * c->pipe.ranks + rank };
    int from, to;
    for (int i = 0; i < index; i++) {
        pipeline_blocks(&c->pipe, c->layers, rank, i, &from, &to);
        k.before += to - from;
    }
    pipeline_blocks(&c->pipe, c->layers, rank, index, &from, &to);
    k.from = from;
    k.layers = to - from;
    k.first = k.stage == 0;
    k.last = k.stage == c->pipe.ranks * c->pipe.chunks - 1;
    return k;
}

prog *chunk_program(const chain *c, const model_chunk *k, int at) {
    if (at == 0) return k->first ? c->first : NULL;
    if (at == k->layers + 1) return k->last ? c->last : NULL;
    /* restarts, after the last, begin every segment */
    int block = at <= k->layers ? at - 1 : (at - k->layers - 2) * c->keep_every;
    return chain_block(c, k->from + block);
}

int chunk_rerun(const chain *c, const model_chunk *k) {
    if (!c->keep_every) return 0;
    return MAX(0, MIN(k->layers, c->layers - c->keep_last - k->from));
}

bool chain_reruns_last(const chain *c) {
    return c->keep_every && c->pipe.ranks > 1 && !c->pipe.forward_only;
}

int chunk_segments(const chain *c, const model_chunk *k) {
    return c->keep_every ? (chunk_rerun(c, k) + c->keep_every - 1) / c->keep_every : 0;
}

const op_list *instr_list(const prog *p, instr_kind kind) {
    switch (kind) {
    case DO_BWD: return &p->bwd;
    case DO_WEIGHTS: return &p->weights;
    case DO_GATHER:
    case DO_GATHERED: return &p->gather;
    case DO_REDUCE:
    case DO_REDUCED: return &p->reduce;
    default: return &p->fwd;
    }
}

bool instr_runs_list(instr_kind k) { return k >= DO_FWD && k <= DO_REDUCED; }
bool instr_computes(instr_kind k) { return k >= DO_FWD && k <= DO_WEIGHTS; }

/* Residuals go to the next virtual stage, gradients back to the one before. */
int message_peer(const chain *c, int rank, const instr *i) {
    bool next = (i->pass == PASS_RESIDUAL) == (i->kind != DO_RECV);
    return (rank + (next ? 1 : c->pipe.ranks - 1)) % c->pipe.ranks;
}

bool chain_reads_carried(const chain *c, int which, int layer) {
    for (int l = layer; l < c->layers; l++)
        if (chain_block(c, l)->carry_in[which] != VAL_NONE) return true;
    return layer <= c->layers && c->last->carry_in[which] != VAL_NONE;
}

static bool is_carried_before(const chain *c, int which, int layer) {
    for (int l = 0; l < layer; l++)
        if (chain_block(c, l)->carry_out[which] != VAL_NONE) return true;
    return c->first->carry_out[which] != VAL_NONE;
}

bool message_carries(const chain *c, int rank, const instr *i, int which) {
    model_chunk k = chain_chunk(c, rank, i->chunk);
    bool behind = (i->pass == PASS_RESIDUAL) == (i->kind != DO_RECV); /* of the chunk's blocks */
    int layer = k.from + (behind ? k.layers : 0);
    return is_carried_before(c, which, layer) && chain_reads_carried(c, which, layer);
}

int message_values(const chain *c, int rank, const instr *i) {
    int n = 1;
    for (int v = 0; v < CARRIES; v++) n += message_carries(c, rank, i, v);
    return n;
}

static bool is_carrying(const chain *c) {
    bool any = false;
    for (int v = 0; v < CARRIES; v++) any |= is_carried_before(c, v, c->layers);
    return any;
}

comm_move updated_move(const prog_bucket *b) {
    return (comm_move){
        .axes = b->slices, .from = PLACE_S(0), .to = PLACE_I, .name = "gather of updated parameters"
    };
}

bool step_next(step_cursor *c, instr *out) {
    const step_list *l = c->l;
    do {
        if (c->at == l->repeat_to && c->again + 1 < l->repeats) {
            c->at = l->repeat_from;
            c->again++;
        }
        if (c->at == l->n) return false;
        *out = l->list[c->at];
        if (c->at >= l->repeat_from && c->at < l->repeat_to) out->micro += c->again;
        c->at++;
    } while (out->kind == DO_HALF && out->micro != l->half);
    return true;
}

/* ---- tasks as instructions ---------------------------------------------------------------------- */
/* Slots are given to microbatches, lowest first, and given back when their last task is done. */
typedef struct slot_set {
    bool *taken; /* [cap] */
    int cap, lowest;
    /* [cap] the chunk that sends from a slot, plus 1, while that has not been waited for */
    uint8_t (*sending)[PASSES];
} slot_set;
typedef struct slot_user {
    int *of; /* [micros] -1: none */
    slot_set *from;
} slot_user;

typedef struct sent_from {
    int chunk, slot;
    stage_pass what;
} sent_from;

typedef struct maker {
    const chain *c;
    step_list *out;
    pipeline_task task;
    model_chunk k;
    slot_set set[MAX_CHUNKS]; /* of the chunks that own them */
    slot_set input_set;
    slot_user chunk[MAX_CHUNKS], inputs;
    sent_from sending[COMM_MAX_OPEN]; /* what is being sent, the oldest first */
    int n_sending;
} maker;

static void take_slot(slot_user *u, int micro, int *most) {
    slot_set *from = u->from;
    if (u->of[micro] >= 0) return;
    int s = from->lowest;
    while (s < from->cap && from->taken[s]) s++;
    BUG_IF(s == from->cap);
    from->taken[s] = true;
    from->lowest = s + 1;
    u->of[micro] = s;
    *most = MAX(*most, s + 1);
}

static void give_slot(slot_user *u, int micro) {
    u->from->taken[u->of[micro]] = false;
    u->from->lowest = MIN(u->from->lowest, u->of[micro]);
}

static void add_instr(maker *m, instr_kind kind, int at) {
    step_list *l = m->out;
    const pipeline_task *t = &m->task;
    LIST_ADD(l->list, l->n, l->cap) = (instr){ .kind = kind,
                                               .task = t->kind,
                                               .chunk = t->chunk,
                                               .instance = at,
                                               .slot = m->chunk[t->chunk].of[t->micro],
                                               .inputs = m->inputs.of[t->micro],
                                               .micro = t->micro,
                                               .gathered = -1,
                                               .whole_grad = -1 };
}

static uint8_t *sending_chunk(maker *m, stage_pass what, int slot) {
    return &m->chunk[m->task.chunk].from->sending[slot][what];
}

static int slot_now(const maker *m) { return m->chunk[m->task.chunk].of[m->task.micro]; }

static bool is_sent_from(const maker *m, const sent_from *f, stage_pass what, int slot) {
    return m->chunk[f->chunk].from == m->chunk[m->task.chunk].from && f->what == what &&
           f->slot == slot;
}

/* Notes that a message is being sent, or has been. */
static void note_sending(maker *m, bool sends, stage_pass what, int slot) {
    int at = 0;
    while (!sends && !is_sent_from(m, &m->sending[at], what, slot)) at++;
    if (sends)
        m->sending[m->n_sending++] = (sent_from){ m->task.chunk, slot, what };
    else
        memmove(&m->sending[at], &m->sending[at + 1],
                (size_t)(--m->n_sending - at) * sizeof *m->sending);
}

static void add_pass(maker *m, instr_kind kind, stage_pass what, int slot) {
    add_instr(m, kind, 0);
    instr *i = &m->out->list[m->out->n - 1];
    i->pass = what;
    i->slot = slot;
    if (kind == DO_RECV) return;
    note_sending(m, kind == DO_SEND, what, slot);
    uint8_t *sending = sending_chunk(m, what, slot);
    if (kind == DO_SENT) i->chunk = *sending - 1;
    *sending = kind == DO_SEND ? (uint8_t)(i->chunk + 1) : 0;
}

/* Waits for the oldest message first where as many are being sent as there may be, carried values counted beside the
 * residual: GPipe would otherwise send those of all microbatches before it waits for one. */
static void add_send(maker *m, stage_pass what, int slot) {
    int most = COMM_MAX_OPEN / (is_carrying(m->c) ? 1 + CARRIES : 1), chunk = m->task.chunk;
    if (m->n_sending >= most) {
        sent_from oldest = m->sending[0];
        m->task.chunk = oldest.chunk;
        add_pass(m, DO_SENT, oldest.what, oldest.slot);
        m->task.chunk = chunk;
    }
    add_pass(m, DO_SEND, what, slot);
}

/* Memory that is being sent from is not written to. */
static void finish_sending(maker *m, stage_pass what, int slot) {
    if (*sending_chunk(m, what, slot)) add_pass(m, DO_SENT, what, slot);
}

static void add_forward(maker *m) {
    const pipeline_task *t = &m->task;
    step_list *l = m->out;
    bool new_micro = m->inputs.of[t->micro] < 0;
    take_slot(&m->inputs, t->micro, &l->inputs);
    take_slot(&m->chunk[t->chunk], t->micro, &l->slots[t->chunk]);
    if (new_micro) add_instr(m, DO_FEED, 0);
    if (is_carrying(m->c))
        finish_sending(m, PASS_RESIDUAL, slot_now(m)); /* sent from where it is received */
    if (!m->k.first) add_pass(m, DO_RECV, PASS_RESIDUAL, slot_now(m));
    /* the loss of a stage without blocks writes the gradient that it sends, and that of values it reads */
    if (m->k.last && (!m->k.layers || is_carrying(m->c)))
        finish_sending(m, PASS_GRADIENT, slot_now(m));
    for (int i = 0; i <= m->k.layers + 1; i++)
        if (chunk_program(m->c, &m->k, i)) add_instr(m, DO_FWD, i);
    bool pipelined = m->c->pipe.ranks > 1; /* else its losses are read when it has ended */
    if (m->k.last && pipelined && m->c->first->mode != PROG_DECODE) add_instr(m, DO_LOSS, 0);
    finish_sending(m, PASS_RESIDUAL, slot_now(m));
    if (!m->k.last) add_send(m, PASS_RESIDUAL, slot_now(m));
}

static void add_backward(maker *m) {
    int n = m->k.layers, keep = m->c->keep_every;
    finish_sending(m, PASS_RESIDUAL, slot_now(m));
    finish_sending(m, PASS_GRADIENT, slot_now(m));
    if (!m->k.last) add_pass(m, DO_RECV, PASS_GRADIENT, slot_now(m));
    for (int l = n - 1; l >= 0; l--) {
        int s = keep ? l / keep : 0, rerun = chunk_rerun(m->c, &m->k);
        bool segment_end = l < rerun && (l % keep == keep - 1 || l == rerun - 1);
        bool saved = s == chunk_segments(m->c, &m->k) - 1 && !chain_reruns_last(m->c);
        if (segment_end && !saved)
            for (int f = s * keep; f <= l; f++)
                add_instr(m, f == l ? DO_FWD_SAVES : DO_FWD, f == s * keep ? n + 2 + s : f + 1);
        add_instr(m, DO_BWD, l + 1);
    }
    if (m->k.first)
        add_instr(m, DO_BWD, 0);
    else
        add_send(m, PASS_GRADIENT, slot_now(m));
}

static void add_pipeline_task(maker *m, const pipeline_task *t, int rank) {
    bool split = pipeline_splits_backward(&m->c->pipe);
    task_kind last = m->c->pipe.forward_only ? TASK_FORWARD : split ? TASK_WEIGHTS : TASK_BACKWARD;
    m->task = *t;
    m->k = chain_chunk(m->c, rank, t->chunk);
    if (t->kind == TASK_FORWARD) add_forward(m);
    if (t->kind == TASK_BACKWARD) add_backward(m);
    if (t->kind == TASK_WEIGHTS)
        for (int l = m->k.layers; l >= (m->k.first ? 0 : 1); l--) add_instr(m, DO_WEIGHTS, l);
    if (t->kind != last) return;
    give_slot(&m->chunk[t->chunk], t->micro);
    bool done = t->chunk == (m->c->pipe.forward_only ? m->c->pipe.chunks - 1 : 0);
    if (done) give_slot(&m->inputs, t->micro);
}

/* @param cap of the set, which is made where it has none yet */
static slot_user no_slots(slot_set *from, int micros, int cap) {
    slot_user u = { mem_alloc((size_t)micros * sizeof *u.of), from };
    for (int i = 0; i < micros; i++) u.of[i] = -1;
    if (from->cap) return u;
    *from = (slot_set){ mem_alloc((size_t)cap * sizeof *from->taken), cap, 0,
                        mem_alloc((size_t)cap * sizeof *from->sending) };
    return u;
}

static void drop_set(slot_set *s) {
    free(s->taken);
    free(s->sending);
}

/* Waits for what is still being sent: nothing is under way when a step ends. */
static void wait_for_sends(maker *m) {
    for (int k = 0; k < m->c->pipe.chunks; k++) {
        m->task.chunk = k;
        for (int slot = 0; slot < m->out->slots[k]; slot++) {
            finish_sending(m, PASS_RESIDUAL, slot);
            finish_sending(m, PASS_GRADIENT, slot);
        }
    }
}

static void push_instr(step_list *l, instr i) { LIST_ADD(l->list, l->n, l->cap) = i; }

static instr plain_instr(instr_kind kind, int micro) {
    return (instr){ .kind = kind, .micro = micro, .gathered = -1, .whole_grad = -1 };
}

static_assert(DO_HALF - DO_TIED == (int)END_HALF, "instructions are in the order of end_kind");
static void push_end(step_list *l, const chain_end *end, int micro) {
    instr in = plain_instr((instr_kind)(DO_TIED + (int)end->kind), micro);
    in.end = end;
    push_instr(l, in);
}

/* Makes the list of one microbatch that of a step: the first one, those between, the last. */
static void add_microbatches(const chain *c, step_list *l, int micros) {
    step_list one = *l;
    int parts = MIN(micros, 3);
    l->list = NULL;
    l->n = l->cap = 0;
    l->micros = micros;
    for (int part = 0; part < parts; part++) {
        bool first = part == 0, last = part == parts - 1;
        int micro = last ? micros - 1 : part;
        if (!first && !last) l->repeat_from = l->n;
        for (int i = 0; i < one.n; i++) {
            instr in = one.list[i];
            if ((in.once && !first) || (in.ahead && last)) continue;
            in.micro = micro;
            push_instr(l, in);
        }
        if (last) push_instr(l, plain_instr(DO_END, micro));
        if (!last && l->half >= 0) push_end(l, c->half, micro);
        if (c->first->mode != PROG_DECODE) push_instr(l, plain_instr(DO_LOSS, micro));
        if (!first && !last) l->repeat_to = l->n, l->repeats = micros - 2;
    }
    free(one.list);
}

/* Every rank begins with these once the first inputs are there; they are replayed with the microbatch that follows. */
static void add_begin(step_list *l) {
    push_instr(l, plain_instr(DO_BEGIN, 0));
    for (int i = l->n - 1; i > 1; i--) {
        instr before = l->list[i - 1];
        l->list[i - 1] = l->list[i];
        l->list[i] = before;
    }
    l->repeat_from += l->repeats > 0;
    l->repeat_to += l->repeats > 0;
}

void step_list_add_ends(step_list *l, const chain_end *end, int n) {
    for (int i = 0; i < n; i++) {
        bool half = end[i].kind == END_HALF;
        if (!half || l->half >= 0) push_end(l, &end[i], half ? l->half : l->micros);
    }
}

/* ---- the first half of a step ------------------------------------------------------------------- */
/* @return the op's k-th result, if it accumulates the gradient of a parameter. */
static const prog_val *written_grad(const prog *p, const prog_op *o, int k) {
    val v = o->out[k];
    bool writes = v != VAL_NONE && !(op_flags(o->op) & OPF_EXTERN);
    return writes && p->val[val_root(p, v)].cls == VC_GRAD ? &p->val[v] : NULL;
}

bool chain_grad_list(const chain *c, int *i, grad_list *out) {
    static const instr_kind kinds[] = { DO_FWD, DO_BWD, DO_WEIGHTS, DO_REDUCED };
    enum { KINDS = COUNT_OF(kinds) };
    for (; *i < (c->layers + 2) * KINDS; ++*i) {
        int at = *i / KINDS; /* first, the blocks, last */
        bool block = at > 0 && at <= c->layers, writes = false;
        *out = (grad_list){ block ? chain_block(c, at - 1)
                            : at  ? c->last
                                  : c->first,
                            block ? at - 1 : -1, (int)kinds[*i % KINDS] };
        const op_list *l = instr_list(out->p, kinds[*i % KINDS]);
        for (int n = 0; n < l->n * OP_MAX_OUT && !writes; n++)
            writes = written_grad(out->p, &l->op[n / OP_MAX_OUT], n % OP_MAX_OUT) != NULL;
        if (writes) return ++*i, true;
    }
    return false;
}

bool grad_list_writes(const grad_list *g, int layer, int bucket, int64_t offset) {
    const op_list *l = instr_list(g->p, (instr_kind)g->list);
    for (int n = 0; n < l->n * OP_MAX_OUT && layer == g->layer; n++) {
        const prog_val *x = written_grad(g->p, &l->op[n / OP_MAX_OUT], n % OP_MAX_OUT);
        if (!x || x->bucket != bucket) continue;
        if (g->list == DO_REDUCED) return true; /* the whole slice */
        const prog_param *q = &g->p->set.param[x->param];
        int64_t end = q->offset + q->dim[0] * (q->ndim > 1 ? q->dim[1] : 1);
        if (offset >= q->offset && offset < end) return true;
    }
    return false;
}

static const chain_end *half_behind(const chain *c, int rank, const instr *i) {
    model_chunk k = chain_chunk(c, rank, i->chunk);
    bool block = i->instance > 0 && i->instance <= k.layers;
    int layer = block ? k.from + i->instance - 1 : -1;
    if (!instr_runs_list(i->kind) || i->instance > k.layers + 1) return NULL;
    for (int n = 1; n < c->halves; n++) {
        const grad_list *g = &c->half[n].after;
        if (g->list == (int)i->kind && g->layer == layer &&
            g->p == chunk_program(c, &k, i->instance))
            return &c->half[n];
    }
    return NULL;
}

/* Microbatches of a pipeline overlap: what the first half left is read behind each list, before the next microbatch
 * adds to it. */
static void add_halves(const chain *c, int rank, step_list *l) {
    step_list out = *l;
    bool begun = false;
    out.list = NULL;
    out.n = out.cap = 0;
    for (int i = 0; i < l->n; i++) {
        const instr *in = &l->list[i];
        push_instr(&out, *in);
        const chain_end *half = in->micro == l->half ? half_behind(c, rank, in) : NULL;
        if (half && !begun) push_end(&out, c->half, l->half);
        if (half) push_end(&out, half, l->half);
        begun |= half != NULL;
    }
    free(l->list);
    *l = out;
}

void step_list_from(const chain *c, int rank, const timetable *s, int micros, step_list *out) {
    int made = s->micros;
    *out =
        (step_list){ .micros = made, .half = c->halves && micros % 2 == 0 ? micros / 2 - 1 : -1 };
    int chunks = c->pipe.chunks, owner[MAX_CHUNKS];
    BUG_IF(chunks > MAX_CHUNKS);
    maker m = { .c = c, .out = out };
    m.inputs = no_slots(&m.input_set, made, made);
    for (int k = 0; k < chunks; k++) {
        owner[k] = chain_slot_owner(c, rank, k);
        m.chunk[k] = no_slots(&m.set[owner[k]], made, chunks * made);
    }
    for (int i = 0; i < s->tasks; i++) add_pipeline_task(&m, &s->of[rank][i], rank);
    for (int k = 0; k < chunks; k++)
        out->slots[owner[k]] = MAX(out->slots[owner[k]], out->slots[k]);
    for (int k = 0; k < chunks; k++) out->slots[k] = out->slots[owner[k]];
    wait_for_sends(&m);
    for (int k = 0; k < chunks; k++) {
        free(m.chunk[k].of);
        drop_set(&m.set[k]);
    }
    free(m.inputs.of);
    drop_set(&m.input_set);
    step_list_add_slots(c, rank, out);
    if (c->pipe.ranks == 1)
        add_microbatches(c, out, micros);
    else
        push_instr(out, plain_instr(DO_END, micros - 1));
    if (c->pipe.ranks > 1 && out->half >= 0) add_halves(c, rank, out);
    step_list_add_updated(c, rank, out);
    if (c->begin) add_begin(out);
    step_list_add_ends(out, c->tied, c->tied != NULL);
    step_list_add_ends(out, c->end_list, c->ends);
}

err step_list_make(const chain *c, int rank, int micros, step_list *out) {
    timetable s;
    *out = (step_list){ .micros = micros };
    TRY(timetable_make(&c->pipe, c->pipe.ranks > 1 ? micros : 1, &s));
    step_list_from(c, rank, &s, micros, out);
    timetable_free(&s);
    return OK;
}

void step_list_free(step_list *l) {
    free(l->list);
    *l = (step_list){ 0 };
}
