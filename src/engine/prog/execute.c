/* Runs a chain's instruction list: ops through the backend, communication through comm. */
#include "exec_internal.h"
#include "plan_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ops see matrices: of rows [E,R,D], which communication shards along any of their dims, [E R,D]. Integers keep
 * their dims, and so does what updates work on: batches of matrices. */
static tensor operand_of(const prog *p, const prog_op *o, val v) {
    tensor t = val_tensor(&p->val[v]);
    bool keeps = op_flags(o->op) & (OPF_EXTERN | OPF_UPDATE);
    if (t.ndim < 3 || !dt_is_float(t.dt) || keeps) return t;
    return tensor_of(NULL, t.dt, 2, (int64_t[]){ t.dim[0] * t.dim[1], t.dim[2] });
}

op_call call_of(const prog *p, const prog_op *o, void *const *addr) {
    op_call c = { .op = o->op, .attr = o->attr };
    for (int i = 0; i < OP_MAX_IN; i++)
        if (o->in[i] != VAL_NONE) {
            c.in[i] = operand_of(p, o, o->in[i]);
            c.in[i].data = addr ? addr[o->in[i]] : NULL;
        }
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] != VAL_NONE) {
            c.out[i] = operand_of(p, o, o->out[i]);
            c.out[i].data = addr ? addr[o->out[i]] : NULL;
        }
    return c;
}

/* ---- communication ------------------------------------------------------------------------- */
/* Holds the state of a list of instructions while it runs. */
typedef struct chain_run {
    exec *x;
    const chain_plan *k;
    const step_list *l;
    int micros;
    const exec_hooks *hooks;
    const step_block *step;
} chain_run;

/* Waits for the oldest until no more than `left` are open. */
static err end_comms(exec *x, open_comms *o, int left) {
    while (o->begun - o->ended > left)
        TRY(comm_wait(x->comm, &o->ring[o->ended++ % o->cap].ticket));
    return OK;
}

static err end_if_far(exec *x, open_comms *o, axis_set axes) {
    enum { FAR = 16 };
    for (int i = o->ended; i < o->begun; i++) {
        const open_comm *c = &o->ring[i % o->cap];
        if (c->ticket.move.axes == axes && x->plan->begun[axes] - c->number >= FAR)
            return end_comms(x, o, 0);
    }
    return OK;
}

/* Bounds the distance between the oldest and the newest open communication over one set of axes (comm.h): a ring
 * may share its axis with a communication that outlives its program. */
static err end_far(const chain_run *r, axis_set axes) {
    TRY(end_if_far(r->x, &r->x->plan->late, axes));
    TRY(end_if_far(r->x, &r->x->plan->updated, axes));
    if (!r->k) return OK; /* a program that runs on its own */
    for (int which = 0; which < POOLS; which++) {
        const slot_memory *kinds[] = { &r->k->gathered[which], &r->k->whole_grad[which] };
        for (size_t i = 0; i < COUNT_OF(kinds); i++)
            for (int s = 0; s < kinds[i]->slots; s++)
                TRY(end_if_far(r->x, &kinds[i]->comms[s], axes));
    }
    return OK;
}

static err start_comm(const chain_run *r, const comm_move *move, const op_call *c,
                      open_comms *open) {
    TRY(end_far(r, move->axes));
    BUG_IF(open->begun - open->ended == open->cap);
    open_comm *o = &open->ring[open->begun++ % open->cap];
    o->number = r->x->plan->begun[move->axes]++;
    return comm_start(r->x->comm, move, &c->in[0], &c->out[0], &o->ticket);
}

/* How many rows go to each rank, which the host must know: on a device it waits for the counts. */
static err set_row_counts(plan *p, const tensor *by, comm_move *move) {
    int n = mesh_span(&p->m, move->axes);
    int64_t counts = tensor_count(by), each = 2 * n + counts;
    if (!p->row_counts) { /* as many experts in every block */
        p->row_counts = mem_alloc((size_t)(ROW_TURNS * each) * sizeof *p->row_counts);
        p->row_counts_each = each;
    }
    BUG_IF(p->row_counts_each != each);
    int32_t *send = p->row_counts + (p->row_turn++ % ROW_TURNS) * each, *raw = send + 2 * n;
    TRY(plan_get(p, raw, by->data, tensor_bytes(by)));
    memset(send, 0, (size_t)(2 * n) * sizeof *send);
    for (int64_t i = 0; i < counts; i++) /* a column for each rank, or experts in their order */
        send[by->dim[1] == n ? i % n : i * n / counts] += raw[i];
    move->send_rows = send;
    move->recv_rows = send + n;
    return OK;
}

/* Whether the communication reads what a fetch brings: a part of a slot of parameters. */
static bool reads_fetched(const prog *p, const prog_op *o) {
    return p->val[val_root(p, o->in[0])].cls == VC_GATHERED;
}

static err run_comm(const chain_run *r, const instance *in, const prog_op *o, open_comms *open) {
    exec *x = r->x;
    const op_backend *b = x->plan->backend;
    comm_move move = o->attr.comm;
    if (comm_kind(&move) == MOVE_NONE) return OK;
    op_call c = call_of(in->p, o, in->addr);
    if (b->device && b->device->native_queue && reads_fetched(in->p, o))
        move.after = b->device->native_queue(b->context, QUEUE_FETCH);
    move.name = in->p->name;
    move.layer = in->layer + 1;
    if (comm_kind(&move) == MOVE_SEND) c.out[0] = (tensor){ 0 };
    if (comm_kind(&move) == MOVE_RECV) c.in[0] = (tensor){ 0 };
    if (comm_kind(&move) == MOVE_ROWS && o->phase != COMM_WAIT)
        TRY(set_row_counts(x->plan, &c.in[1], &move));
    if (o->phase == COMM_LATE) {
        TRY(end_comms(x, &x->plan->late, MOST_LATE - 1));
        return start_comm(r, &move, &c, &x->plan->late);
    }
    if (o->phase != COMM_WAIT) TRY(start_comm(r, &move, &c, open));
    if (o->phase != COMM_START && open->begun > open->ended) /* else it was far, and has ended */
        TRY(end_comms(x, open, open->begun - open->ended - 1));
    return OK;
}

/* @return the first element that is not finite; n: none. Reads in large blocks: on a device each
 * of them waits. */
static err find_not_finite(const plan *p, const tensor *t, int64_t *found, float *value) {
    enum { BLOCK = 1 << 20 };
    int64_t n = *found = tensor_count(t);
    size_t size = dt_size(t->dt), capacity = (size_t)MIN(n, (int64_t)BLOCK);
    void *raw = mem_alloc(capacity * size);
    float *row = mem_alloc(capacity * sizeof *row);
    err e = OK;
    for (int64_t at = 0; at < n && *found == n && !e; at += BLOCK) {
        int64_t len = MIN((int64_t)BLOCK, n - at);
        e = plan_get(p, raw, (const char *)t->data + (size_t)at * size, (size_t)len * size);
        if (!e) dt_to_f32(t->dt, raw, row, len);
        for (int64_t j = 0; j < len && *found == n && !e; j++)
            if (!isfinite(row[j])) *found = at + j, *value = row[j];
    }
    free(raw);
    free(row);
    return e;
}

static err check_finite(const plan *p, const instance *in, const prog_op *o, const op_call *c) {
    for (int k = 0; k < OP_MAX_OUT; k++) {
        const tensor *t = &c->out[k];
        int64_t at;
        float value = 0;
        if (!t->data || !dt_is_float(t->dt)) continue;
        TRY(find_not_finite(p, t, &at, &value));
        if (at == tensor_count(t)) continue;
        char where[32] = "";
        if (in->layer >= 0) snprintf(where, sizeof where, " %d", in->layer);
        return ERR("first non-finite value at %s%s, %s, %s:%d: element %lld is %g", in->p->name,
                   where, op_name(o->op), o->site.file, o->site.line, (long long)at, (double)value);
    }
    return OK;
}

/* ---- calls ------------------------------------------------------------------------------- */
static op_run op_run_of(const exec *x, const step_block *step, device_queue q) {
    const plan *p = x->plan;
    bool beside = q == QUEUE_UPDATE;
    return (op_run){ .pool = x->pool,
                     .workspace = plan_data(p, beside ? p->update_work : p->work),
                     .workspace_bytes = beside ? p->update_work_bytes : p->work_bytes,
                     .step = step,
                     .context = p->backend->context,
                     .queue = q };
}

/* The time of calls includes waiting for them, where they are only queued. */
static void timed_calls(const exec *x, const op_call *c, int n) {
    const op_backend *b = x->plan->backend;
    double from = time_now();
    if (b->device) b->device->mark(b->context, c->run->queue, MARKS_OF_STEPS);
    ops_run_group(b, c, n);
    if (b->device) b->device->mark(b->context, c->run->queue, MARKS_OF_STEPS + 1);
    double seconds =
        b->device ? b->device->seconds_between(b->context, MARKS_OF_STEPS, MARKS_OF_STEPS + 1)
                  : time_now() - from;
    for (int i = 0; i < n; i++) x->probe.timer->call(x->probe.timer->ctx, &c[i], seconds / n);
}

/* Runs calls of one op that touch different memory. @param in, o what the first is a part of; NULL: of no program. */
static void call_parts(exec *x, const op_call *c, int n, const instance *in, const prog_op *o,
                       int micro) {
    if (x->probe.trace) {
        int at = trace_call_begin(x->probe.trace, c);
        ops_run_group(x->plan->backend, c, n);
        trace_call_end(x->probe.trace, at, c, n, in, o, micro);
    } else if (x->probe.timer) {
        timed_calls(x, c, n);
    } else {
        ops_run_group(x->plan->backend, c, n);
    }
}

/* @return an error only where none is to be noted. */
static err note_not_finite(exec *x, const instance *in, const prog_op *o, const op_call *c) {
    exec_finding *f = x->probe.finding;
    if (!f) return check_finite(x->plan, in, o, c);
    f->ops++;
    if (f->at) return OK;
    err e = check_finite(x->plan, in, o, c);
    if (!e) return OK;
    f->at = f->ops;
    snprintf(f->text, sizeof f->text, "%s", err_message(e));
    err_free(e);
    return OK;
}

/* Fetches the first elements of a block's input, where this op yields it; when it is recomputed they are the
 * same. */
static void sample_activation(exec *x, const instance *in, const prog_op *o, const op_call *c) {
    enum { SAMPLED = 1 << 16 };
    int k = 0;
    while (k < OP_MAX_OUT && (o->out[k] == VAL_NONE || o->out[k] != in->p->block_input)) k++;
    if (k == OP_MAX_OUT || in->layer < 0) return;
    const tensor *t = &c->out[k];
    exec_sample *s = &x->probe.activation[in->layer];
    if (s->n) return;
    s->n = MIN(tensor_count(t), (int64_t)SAMPLED);
    s->dt = t->dt;
    plan_fetch(x->plan, QUEUE_COMPUTE, &s->ticket, t->data, (size_t)s->n * dt_size(t->dt));
}

static err run_op(exec *x, const instance *in, const prog_op *o, int micro,
                  const step_block *step) {
    op_run run = op_run_of(x, step, o->queue);
    run.layer = (uint32_t)(in->layer + 1);
    if (op_flags(o->op) & OPF_FETCH) {
        /* it follows the last use of its slot and the update of the parameters */
        run.queue = QUEUE_FETCH;
        exec_join(x, QUEUE_FETCH, QUEUE_COMPUTE);
        exec_await(x, QUEUE_FETCH, QUEUE_UPDATE, in->layer + 1);
        exec_await(x, QUEUE_FETCH, QUEUE_COPY_OUT, EVENT_STORED + in->layer);
    }
    op_call c = call_of(in->p, o, in->addr);
    c.run = &run;
    c.accumulate = o->acc == ACC_ADD || (o->acc == ACC_MICRO && micro) ? ~0u : 0;
    if (o->once && mesh_index(&in->p->m, o->once)) c.in[2].data = NULL;
    call_parts(x, &c, 1, in, o, micro);
    if (x->probe.check_finite && in->p->mode != PROG_UPDATE) TRY(note_not_finite(x, in, o, &c));
    if (x->probe.activation && micro == 0) sample_activation(x, in, o, &c);
    return OK;
}

static bool overlaps(const tensor *a, const tensor *b) {
    return a->data && b->data && (char *)a->data < (char *)b->data + tensor_bytes(b) &&
           (char *)b->data < (char *)a->data + tensor_bytes(a);
}
/* Whether one of two calls writes what the other touches. */
static bool calls_conflict(const op_call *a, const op_call *b) {
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!a->out[i].data && !b->out[i].data) continue;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (overlaps(&a->out[i], &b->in[k]) || overlaps(&b->out[i], &a->in[k])) return true;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (overlaps(&a->out[i], &b->out[k])) return true;
    }
    return false;
}

/* Runs calls of an update's matrices together: op `first` of a list, and those right behind it that are of the same op
 * and touch other memory. @return how many */
static int run_alike(exec *x, const instance *in, const op_list *l, int first,
                     const step_block *step) {
    const op_backend *b = x->plan->backend;
    op_run run = op_run_of(x, step, l->op[first].queue);
    run.layer = (uint32_t)(in->layer + 1);
    op_call c[OPS_GROUP];
    int n = 0;
    for (int limit = OPS_GROUP; n < limit && first + n < l->n; n++) {
        const prog_op *o = &l->op[first + n];
        if (o->op != l->op[first].op || o->queue != l->op[first].queue) break;
        if (o->when != WHEN_ALWAYS || o->acc != ACC_STORE) break;
        c[n] = call_of(in->p, o, in->addr);
        c[n].run = &run;
        bool apart = true;
        for (int i = 0; i < n && apart; i++) apart = !calls_conflict(&c[i], &c[n]);
        limit = MIN(limit, ops_group_limit(b, &c[n], run.workspace_bytes));
        if (!apart || n >= limit) break;
    }
    call_parts(x, c, n, in, &l->op[first], 0);
    return n;
}

bool item_runs(list_item o, instr_kind kind, bool last) {
    if (o.when == WHEN_LAST && !last) return false;
    if (kind == DO_GATHER || kind == DO_REDUCE) return o.starts;
    if (kind == DO_GATHERED || kind == DO_REDUCED) return !o.starts;
    return kind != DO_FWD_SAVES || o.saves;
}

bool op_runs(const prog_op *o, instr_kind kind, int micro, int micros) {
    list_item item = { o->when, o->phase == COMM_START, o->saves };
    return item_runs(item, kind, micro == micros - 1);
}

static err run_list(const chain_run *r, const instance *in, const instr *at, open_comms *open) {
    const op_list *l = instr_list(in->p, at->kind);
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        if (!op_runs(o, at->kind, at->micro, r->micros)) continue;
        if (o->when == WHEN_UNSCALED && r->x->scaled) continue;
        if (op_flags(o->op) & OPF_EXTERN)
            TRY(run_comm(r, in, o, open));
        else if (in->p->mode == PROG_UPDATE && r->x->plan->backend->impl[o->op]->run_group &&
                 o->when == WHEN_ALWAYS && o->acc == ACC_STORE)
            i += run_alike(r->x, in, l, i, r->step) - 1;
        else
            TRY(run_op(r->x, in, o, at->micro, r->step));
    }
    return OK;
}

/* ---- between pipeline stages ------------------------------------------------------------------ */
static comm_move stage_message(const chain_plan *k, const plan *p, const instr *i) {
    return (comm_move){ .axes = AXES_STAGES,
                        .kind = i->kind == DO_SEND ? MOVE_SEND : MOVE_RECV,
                        .peer = message_peer(&k->c, mesh_stage(&p->m), i),
                        .channel = i->pass,
                        .name =
                            i->pass == PASS_RESIDUAL ? "pipeline forward" : "pipeline backward" };
}

/* Adds the carried values of a message behind its first one. @return how many it has. */
static int add_carried(const exec *x, const chain_plan *k, const instr *i, tensor *all) {
    int n = 1;
    for (int v = 0; v < CARRIES; v++)
        if (message_carries(&k->c, mesh_stage(&x->plan->m), i, v))
            all[n++] = passed_carried(x->plan, k, &k->chunk[i->chunk], i->pass, i->slot, v);
    return n;
}

static err send_boundary(exec *x, const chain_plan *k, const instr *i) {
    const chunk_plan *u = &k->chunk[i->chunk];
    if (i->pass == PASS_RESIDUAL) {
        op_run run = op_run_of(x, NULL, QUEUE_COMPUTE);
        op_call sum = sum_passed(x->plan, k, u, i->slot);
        sum.run = &run;
        call_parts(x, &sum, 1, NULL, NULL, i->micro);
    }
    tensor all[1 + CARRIES] = { passed_out(x->plan, k, u, i->pass, i->slot) }, none = { 0 };
    comm_move move = stage_message(k, x->plan, i);
    int n = add_carried(x, k, i, all);
    for (int v = 0; v < n; v++)
        TRY(comm_start(x->comm, &move, &all[v], &none, &u->ticket[i->slot][i->pass][v]));
    return OK;
}

static err wait_sent(exec *x, const chain_plan *k, const instr *i) {
    int n = message_values(&k->c, mesh_stage(&x->plan->m), i);
    for (int v = 0; v < n; v++)
        TRY(comm_wait(x->comm, &k->chunk[i->chunk].ticket[i->slot][i->pass][v]));
    return OK;
}

static err receive_boundary(exec *x, const chain_plan *k, const instr *i) {
    const chunk_plan *u = &k->chunk[i->chunk];
    tensor all[1 + CARRIES] = { passed_in(x->plan, k, u, i->pass, i->slot) }, none = { 0 };
    comm_ticket ticket[1 + CARRIES];
    comm_move move = stage_message(k, x->plan, i);
    int n = add_carried(x, k, i, all);
    for (int v = 0; v < n; v++) TRY(comm_start(x->comm, &move, &none, &all[v], &ticket[v]));
    for (int v = 0; v < n; v++) TRY(comm_wait(x->comm, &ticket[v]));
    return OK;
}

/* ---- chains ------------------------------------------------------------------------------ */
/* Whether a program gathers parameters from where they are stored, without fetching them first. */
static bool gathers_stored(const prog *p) {
    for (int i = 0; i < p->gather.n; i++)
        if ((op_flags(p->gather.op[i].op) & OPF_EXTERN) && !reads_fetched(p, &p->gather.op[i]))
            return true;
    return false;
}

/* A chain begins with all instances of the first microbatch, forward: each awaits its update before, or
 * before its parameters are gathered. */
static void await_update(const chain_run *r, const instr *i, const instance *in) {
    const plan *p = r->x->plan;
    int event = in->layer + 1;
    bool starts = i->kind == DO_FWD || (i->kind == DO_GATHER && gathers_stored(in->p));
    bool first = starts && i->micro == 0 && i->instance < r->k->chunk[i->chunk].k.layers + 2;
    if (first && event < p->awaits_cap && p->awaits[event])
        exec_await(r->x, QUEUE_COMPUTE, QUEUE_UPDATE, event);
}

/* ---- gathers of updated parameters --------------------------------------------------------- */
void exec_params_changed(exec *x) {
    plan *p = x->plan;
    BUG_IF(p->updated.begun != p->updated.ended);
    for (int i = 0; i < p->params_cap; i++) p->params[i] = PARAMS_IN_SLICES;
}

/* Skips buckets that another chain has gathered since the update. */
static err gather_updated(const chain_run *r, const instr *i) {
    plan *p = r->x->plan;
    const instance *in = &r->k->chunk[i->chunk].inst[i->slot][i->instance];
    const prog_bucket *b = &in->p->set.bucket[i->bucket];
    int event = in->layer + 1;
    uint8_t *state = &p->params[event * in->p->set.buckets + i->bucket];
    if (i->kind == DO_GATHERED_UPDATED) {
        bool open = *state == PARAMS_MOVING && p->updated.begun > p->updated.ended;
        *state = PARAMS_WHOLE;
        return open ? end_comms(r->x, &p->updated, p->updated.begun - p->updated.ended - 1) : OK;
    }
    if (*state != PARAMS_IN_SLICES) return OK;
    *state = PARAMS_MOVING;
    if (event < p->awaits_cap && p->awaits[event])
        exec_await(r->x, QUEUE_COMPUTE, QUEUE_UPDATE, event);
    bucket_range own = bucket_holds(b, &p->m, HOLDS_STATE);
    char *base = plan_data(p, r->k->find(r->k->find_ctx, i->bucket, in->layer).param);
    op_call c = { .out = { tensor_of(base, b->dt, 1, &b->count) } };
    c.in[0] = tensor_of(base + (size_t)own.first * dt_size(b->dt), b->dt, 1, &own.count);
    comm_move move = updated_move(b);
    return start_comm(r, &move, &c, &p->updated);
}

/* @return the communications of the slot that the instruction begins or ends; NULL: they end with the instruction. */
static open_comms *slot_comms(const chain_run *r, const instr *i) {
    slot_pool which = pool_of(&r->k->chunk[i->chunk].k, i->instance);
    if (i->kind == DO_GATHER || i->kind == DO_GATHERED)
        return &r->k->gathered[which].comms[i->gathered];
    if (i->kind == DO_REDUCE || i->kind == DO_REDUCED)
        return &r->k->whole_grad[which].comms[i->whole_grad];
    return NULL;
}

uint64_t exec_progress(const exec *x) {
    return __atomic_load_n(&x->instructions, __ATOMIC_RELAXED);
}

/* ---- programs that run on their own: what begins or ends a step ------------------------------- */
static err run_alone(const chain_run *r, const instance *in, const instr *i) {
    open_comm ring[4];
    open_comms own = { .ring = ring, .cap = COUNT_OF(ring) };
    for (val v = 0; in->p && v < in->p->vals; v++)
        if (in->p->val[v].cls == VC_STATE) in->addr[v] = &exec_step_at(r->x)->now;
    return in->p ? run_list(r, in, i, &own) : OK;
}

err exec_program(exec *x, int which) {
    chain_run r = { .x = x, .micros = 1, .step = exec_step_at(x) };
    return run_alone(&r, &x->plan->program[which], &(instr){ .kind = DO_UPDATE });
}

/* Runs updates in the order in which the next step reads the weights, which waits for one layer at a time. */
static err run_beside(const chain_run *r, const instr *i) {
    exec *x = r->x;
    if (i->end->layer < 0) {
        exec_join(x, QUEUE_UPDATE, QUEUE_COMPUTE);
        exec_join(x, QUEUE_COPY_IN, QUEUE_COMPUTE);
    }
    if (i->end->p) TRY(run_alone(r, &x->plan->program[i->end->id], i));
    exec_signal(x, QUEUE_UPDATE, i->end->layer + 1);
    if (i->end->stored) exec_signal(x, QUEUE_COPY_OUT, EVENT_STORED + i->end->layer);
    return OK;
}

/* Runs an instruction that is not a list of a chunk's program. */
static err run_simple(const chain_run *r, const instr *i) {
    exec *x = r->x;
    const exec_hooks *h = r->hooks;
    switch (i->kind) {
    case DO_FEED: return h ? h->feed(h->ctx, i->micro, i->inputs) : OK;
    case DO_LOSS: return h ? h->loss(h->ctx, i->micro) : OK;
    case DO_SEND: return send_boundary(x, r->k, i);
    case DO_SENT: return wait_sent(x, r->k, i);
    case DO_RECV: return receive_boundary(x, r->k, i);
    case DO_GATHER_UPDATED:
    case DO_GATHERED_UPDATED: return gather_updated(r, i);
    case DO_BEGIN: return run_alone(r, &r->k->begin, i);
    case DO_END: TRY(run_alone(r, &r->k->end, i)); return end_comms(x, &x->plan->late, 0);
    case DO_DECIDE: return h ? h->update(h->ctx) : OK;
    case DO_TIED:
    case DO_NORM:
    case DO_HALF:
    case DO_UPDATE: return run_alone(r, &x->plan->program[i->end->id], i);
    case DO_BESIDE: return run_beside(r, i);
    case DO_FWD:
    case DO_FWD_SAVES:
    case DO_BWD:
    case DO_WEIGHTS:
    case DO_GATHER:
    case DO_GATHERED:
    case DO_REDUCE:
    case DO_REDUCED: BUG("a list is run by run_program");
    }
    return OK;
}

static err run_program(const chain_run *r, const instr *i) {
    enum { MOST_OPEN = 256 };
    exec *x = r->x;
    chunk_plan *u = &r->k->chunk[i->chunk];
    const instance *in = &u->inst[i->slot][i->instance];
    chain_bind_inputs(x->plan, u, i->slot, i->inputs);
    chain_bind_slots(r->k, i);
    await_update(r, i, in);
    open_comm ring[MOST_OPEN];
    open_comms own = { .ring = ring, .cap = MOST_OPEN }, *open = slot_comms(r, i);
    TRY(run_list(r, in, i, open ? open : &own));
    if (!prog_fetches(in->p)) return OK;
    /* memory fetched into a slot is complete when the compute queue has awaited its event */
    int event = i->gathered * POOLS + (int)pool_of(&u->k, i->instance);
    if (i->kind == DO_GATHER) exec_signal(x, QUEUE_FETCH, event);
    if (i->kind == DO_GATHERED) exec_await(x, QUEUE_COMPUTE, QUEUE_FETCH, event);
    return OK;
}

static err run_instr(const chain_run *r, const instr *i) {
    exec *x = r->x;
    bool lists = instr_runs_list(i->kind);
    exec_trace *began = x->probe.trace; /* hooks may end it */
    __atomic_fetch_add(&x->instructions, 1, __ATOMIC_RELAXED);
    int at = began ? trace_instr_begin(began) : 0;
    if (x->probe.times && lists) task_times_note(x, i, false);
    err e = lists ? run_program(r, i) : run_simple(r, i);
    if (x->probe.times && lists) task_times_note(x, i, true);
    const instance *in = lists ? &r->k->chunk[i->chunk].inst[i->slot][i->instance] : NULL;
    if (i->end && i->end->p) in = &x->plan->program[i->end->id];
    if (x->probe.trace && x->probe.trace == began)
        trace_instr_end(x->probe.trace, at, i, in, i->micro);
    return e;
}

/* Marks instructions that no tape records: they involve the host, or belong to one of the repeated microbatches. */
static bool is_untaped(instr_kind k) {
    return k == DO_FEED || k == DO_LOSS || k == DO_HALF || k == DO_SEND || k == DO_SENT ||
           k == DO_RECV || k == DO_DECIDE || k == DO_BESIDE;
}

/* Instructions that run back to back. */
typedef struct step_section {
    const chain_run *r;
    step_cursor from;
    int n;
} step_section;

static err section_calls(void *ctx) {
    const step_section *p = ctx;
    step_cursor at = p->from;
    for (int k = 0; k < p->n; k++) {
        instr i;
        step_next(&at, &i);
        TRY(run_instr(p->r, &i));
    }
    return OK;
}

/* @return the tape of a section that begins with this instruction. NULL: a fetch for the next microbatch, or of what an update
 * brings from host memory, outlives the calls of this one. */
static exec_tape *tape_of(const chain_run *r, const instr *i, exec_tape *micro, exec_tape *end) {
    if (i->kind == DO_NORM) return &end[0];
    if (r->x->plan->fetches) return NULL;
    return i->end ? &end[1] : &micro[(i->micro == 0) + 2 * (i->micro == r->micros - 1)];
}

/* Runs a step, or one microbatch of it. @param only -1: all @param micro, end tapes */
static err run_step_list(const chain_run *r, int only, exec_tape *micro, exec_tape *end) {
    bool updates = !r->hooks || r->hooks->update;
    step_cursor at = { r->l };
    instr i;
    for (step_section p = { r, at, 0 }; step_next(&at, &i); p = (step_section){ r, at, 0 }) {
        if (only >= 0 && i.micro != only) continue;
        if (i.end && i.kind != DO_HALF && !updates) break;
        if (is_untaped(i.kind)) {
            TRY(run_instr(r, &i));
            continue;
        }
        exec_tape *tape = tape_of(r, &i, micro, end);
        for (step_cursor next = at; p.n++, step_next(&next, &i) && !is_untaped(i.kind);) at = next;
        TRY(tape ? exec_replay(r->x, tape, section_calls, &p) : section_calls(&p));
    }
    return OK;
}

/* Finds after a step whether all rows of fp8 that are in use will have a scale in the next one. A tensor of zeros sets none,
 * such as the gradients behind a matrix that starts at zero. Ranks share the rows, so that all find the same. */
static err find_scaled(exec *x, const chain_plan *k) {
    if (!k->c.end || x->scaled) return OK;
    const prog_val *v = &k->c.end->val[k->c.end->fwd.op[0].out[0]];
    int64_t n = v->dim[0];
    float *rows = mem_alloc((size_t)(n * FP8_ROW) * sizeof *rows), *row = rows;
    err e =
        plan_get(x->plan, rows, plan_input(x->plan, "fp8", 0), (size_t)n * FP8_ROW * sizeof *rows);
    x->scaled = true;
    for (int64_t i = 0; i < n && !e; i++, row += FP8_ROW) {
        fp8_commit_row(row);
        x->scaled &= row[FP8_TOP] == 0 || row[FP8_SCALE] > 0;
    }
    free(rows);
    return e;
}

static err run_chain(exec *x, int which, int only, int micros, const exec_hooks *hooks) {
    chain_plan *k = &x->plan->chain[which];
    chain_run r = { x, k, NULL, micros, hooks, exec_step(x) };
    TRY(chain_steps(x->plan, k, micros, &r.l));
    TRY(run_step_list(&r, only, k->tape, k->end_tape));
    if (only < 0 || only == micros - 1) TRY(find_scaled(x, k));
    if (hooks && hooks->update && k->c.ends) exec_params_changed(x);
    return OK;
}

err exec_chain(exec *x, int which, int micro, int micros) {
    const pipeline *pipe = &x->plan->chain[which].c.pipe;
    BUG_IF(pipe->ranks > 1 && micros > 1); /* their order is the schedule's: exec_microbatches */
    return run_chain(x, which, micro, micros, NULL);
}

err exec_microbatches(exec *x, int which, int micros, const exec_hooks *hooks) {
    return run_chain(x, which, -1, micros, hooks);
}

err exec_ends(exec *x, const chain_end *end, int n, exec_tape *tape) {
    step_list l = { .micros = 1, .half = -1 };
    step_list_add_ends(&l, end, n);
    chain_run r = { .x = x, .l = &l, .micros = 1, .step = exec_step_at(x) };
    err e = run_step_list(&r, -1, NULL, tape);
    step_list_free(&l);
    if (!e) exec_params_changed(x);
    return e;
}

bool exec_has_result(const exec *x, int which) {
    const chain_plan *k = &x->plan->chain[which];
    return k->chunk[k->c.pipe.chunks - 1].k.last;
}

tensor exec_result(const exec *x, int which) {
    const chain_plan *k = &x->plan->chain[which];
    const prog *last = k->c.last;
    tensor t = val_tensor(&last->val[last->result]);
    t.data = plan_data(x->plan, k->result);
    return t;
}

const void *exec_top1(const exec *x, int which) {
    const chain_plan *k = &x->plan->chain[which];
    BUG_IF(k->c.last->top1 == VAL_NONE);
    return plan_data(x->plan, k->top1);
}

placement exec_result_placement(const exec *x, int which) {
    const prog *last = x->plan->chain[which].c.last;
    return last->val[last->result].pl;
}
