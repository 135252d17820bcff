/* Plays a step's instructions. Costs of a program's lists are computed once and runs of calls merged, so that
 * an instruction is a handful of events; a step without pipeline repeats after its second microbatch, and only
 * four are played. */
#include "prog/simulate.h"

#include <stdlib.h>

#include "exec_internal.h"
#include "plan_internal.h"

enum { PLAYED_MICROS = 4 };

/* ---- priced lists ------------------------------------------------------------------------------ */
typedef enum { ITEM_CALLS, ITEM_START, ITEM_WAIT, ITEM_BOTH, ITEM_LATE, ITEM_LAST } item_kind;
/* Queues of communications: one for each set of axes, and one of what host memory yields. */
enum { FROM_HOST = AXIS_SETS, SIM_QUEUES };
typedef struct priced_item {
    item_kind kind;
    double seconds;
    double host;    /* ITEM_CALLS: seconds in which the host starts them */
    unsigned links; /* that it occupies */
    int queue;
    op_when when;
    bool saves;
    int pair;  /* ITEM_WAIT: its START */
    int after; /* ITEM_START: 1 + the fetch whose result it reads; 0: none */
} priced_item;
typedef struct priced_list {
    priced_item *item;
    int n, cap;
} priced_list;

typedef struct priced_prog {
    const prog *p;
    priced_list list[PROG_LISTS];
} priced_prog;

static double larger_tensor(const op_call *c, dtype wire) {
    double in = (double)tensor_bytes(&c->in[0]);
    double out = c->out[0].dt == DT_NONE ? 0 : (double)tensor_bytes(&c->out[0]);
    double narrow = 1;
    if (wire != DT_NONE && dt_size(wire) < dt_size(c->in[0].dt))
        narrow = (double)dt_size(wire) / (double)dt_size(c->in[0].dt);
    return MAX(in, out) * narrow;
}

static void push_item(priced_list *l, const priced_item *i) {
    priced_item *last = l->n ? &l->item[l->n - 1] : NULL;
    if (i->kind == ITEM_CALLS && last && last->kind == ITEM_CALLS && last->when == i->when &&
        last->saves == i->saves) {
        last->seconds += i->seconds;
        last->host += i->host;
        return;
    }
    LIST_ADD(l->item, l->n, l->cap) = *i;
}

/* @return the axes that gradients are reduced over. */
static axis_set reduced_axes(const prog *p) {
    axis_set axes = 0;
    for (int b = 0; b < p->set.buckets; b++) axes |= p->set.bucket[b].reduced;
    return axes;
}

static priced_item price_comm(const prog *p, const prog_op *o, const mesh *m,
                              const sim_costs *costs, const int *start_of) {
    static const item_kind kinds[] = { [COMM_BOTH] = ITEM_BOTH,
                                       [COMM_START] = ITEM_START,
                                       [COMM_WAIT] = ITEM_WAIT,
                                       [COMM_LATE] = ITEM_LATE };
    comm_move move = o->attr.comm;
    op_call c = call_of(p, o, NULL);
    priced_item i = { .kind = kinds[o->phase], .queue = (int)move.axes, .when = o->when };
    i.saves = o->saves;
    if (o->phase == COMM_WAIT) {
        i.pair = start_of[o->pair];
        return i;
    }
    if (costs->late && !(move.axes & ~reduced_axes(p))) i.kind = ITEM_LAST;
    i.seconds = costs->move(costs->ctx, m, &move, larger_tensor(&c, move.wire));
    i.links = costs->links ? costs->links(costs->ctx, m, &move) : 0;
    return i;
}

/* A fetch takes the bus; what a gather waits for ends the list. @return 1 + its item. */
static int push_fetch(const prog *p, const prog_op *o, const sim_costs *costs, priced_list *out) {
    op_call c = call_of(p, o, NULL);
    double seconds = costs->fetch ? costs->fetch(costs->ctx, (double)tensor_bytes(&c.in[0])) : 0;
    push_item(out, &(priced_item){ .kind = ITEM_START, .queue = FROM_HOST, .seconds = seconds });
    return out->n;
}

/* Whether an update waits for the bus, whose time the planner counts by the bytes that are offloaded. */
static bool moves_host_memory(const op_attr *a) {
    return a->update.host_state || a->update.host_params;
}

static void price_list(const prog *p, const op_list *l, const mesh *m, const sim_costs *costs,
                       bool accumulates, priced_list *out) {
    int *start_of = mem_alloc((size_t)(l->n + 1) * sizeof *start_of), fetched = 0;
    for (int k = 0; k < l->n; k++) {
        const prog_op *o = &l->op[k];
        if (o->when == WHEN_UNSCALED) continue; /* of the first step alone */
        if (op_flags(o->op) & OPF_FETCH) {
            fetched = push_fetch(p, o, costs, out);
            continue;
        }
        if (op_flags(o->op) & OPF_EXTERN) {
            move_kind kind = op_move_kind(o);
            if (kind == MOVE_NONE || kind == MOVE_SLICE) continue;
            priced_item i = price_comm(p, o, m, costs, start_of);
            if (i.kind == ITEM_START) i.after = fetched;
            start_of[k] = out->n;
            push_item(out, &i);
            continue;
        }
        if (o->queue == QUEUE_UPDATE && moves_host_memory(&o->attr)) continue;
        op_call c = call_of(p, o, NULL);
        c.accumulate = o->acc == ACC_ADD || (o->acc == ACC_MICRO && accumulates) ? ~0u : 0;
        push_item(out, &(priced_item){ .kind = ITEM_CALLS,
                                       .seconds = costs->call(costs->ctx, p->name, &c),
                                       .host = costs->launch,
                                       .when = o->when,
                                       .saves = o->saves });
    }
    if (fetched) push_item(out, &(priced_item){ .kind = ITEM_WAIT, .pair = fetched - 1 });
    free(start_of);
}

static priced_prog price_program(const prog *p, const mesh *m, const sim_costs *costs,
                                 bool accumulates) {
    priced_prog g = { .p = p };
    if (!p) return g;
    for (int i = 0; i < PROG_LISTS; i++)
        price_list(p, &p->list[i], m, costs, accumulates, &g.list[i]);
    return g;
}

static void priced_free(priced_prog *g) {
    for (int i = 0; i < PROG_LISTS; i++) free(g->list[i].item);
}

static const priced_list *list_of(const priced_prog *g, instr_kind kind) {
    return &g->list[instr_list(g->p, kind) - g->p->list];
}

static list_item item_of(const priced_item *i) {
    return (list_item){ i->when, i->kind == ITEM_START, i->saves };
}

/* ---- a rank ------------------------------------------------------------------------------------ */
typedef struct in_flight {
    double seconds, end;
} in_flight;

typedef struct sim_rank {
    step_list l;
    step_cursor at;         /* next instruction */
    double now;             /* of the compute queue */
    double last;            /* of reductions that follow the last task */
    double host;            /* when the host has started all calls so far */
    double busy[SIM_LINKS]; /* when each link is free */
    double *free_at;        /* [SIM_QUEUES] of each communication queue */
    double link[PASSES];
    in_flight late[MOST_LATE];
    int late_begun, late_ended;
    in_flight *gathered[POOLS], *whole_grad[POOLS]; /* [slots][the longest list] by START */
    in_flight updated[MOST_AHEAD];
    int updated_begun, updated_ended;
    in_flight (*sent)[PASSES]; /* [chunks * slots] */
    int slots;                 /* the most of a chunk */
    double *arrived[PASSES];   /* when messages to this rank arrive, in order */
    int arrivals[PASSES], arrival_cap[PASSES], received[PASSES];
    double compute, exposed, hidden, idle;
    double update; /* of what the step ends with */
} sim_rank;

enum { PROGS = 4 + CHAIN_KINDS };
typedef struct sim_run {
    chain c;
    mesh m;
    const sim_costs *costs;
    const sim_watch *watch;
    priced_prog prog[PROGS];
    sim_rank *rank;
    int longest; /* items of a list */
    double message, sum;
    in_flight *own; /* [longest] */
    int micros;     /* that are played */
} sim_run;

/* Communications of other queues that are still on one of its links share it, so both take longer: the whole of that is
 * counted with the later one. @param ready when what it reads is there */
static in_flight start_move(sim_rank *r, int queue, unsigned links, double seconds, double ready) {
    if (seconds <= 0) return (in_flight){ 0, ready };
    double begin = MAX(MAX(r->now, ready), r->free_at[queue]), shared = 0;
    for (int i = 0; i < SIM_LINKS; i++)
        if (links >> i & 1) shared = MAX(shared, MIN(seconds, r->busy[i] - begin));
    seconds += shared;
    for (int i = 0; i < SIM_LINKS; i++)
        if (links >> i & 1) r->busy[i] = MAX(r->busy[i], begin + seconds);
    r->free_at[queue] = begin + seconds;
    return (in_flight){ seconds, begin + seconds };
}

static void wait_move(const sim_run *s, sim_rank *r, const in_flight *f) {
    double exposed = MIN(f->seconds, MAX(0, f->end - r->now));
    double hidden = f->seconds - exposed;
    r->exposed += MAX(0, f->end - r->now);
    r->hidden += hidden;
    r->now = MAX(r->now, f->end);
    r->now += s->costs->interference * hidden;
    r->compute += s->costs->interference * hidden;
}

static void end_late(const sim_run *s, sim_rank *r, int left) {
    while (r->late_begun - r->late_ended > left)
        wait_move(s, r, &r->late[r->late_ended++ % MOST_LATE]);
}

static void play_item(const sim_run *s, sim_rank *r, const priced_list *l, int k, in_flight *open) {
    const priced_item *i = &l->item[k];
    switch (i->kind) {
    case ITEM_CALLS:
        r->host += i->host;
        r->compute += MAX(i->seconds, r->host - r->now);
        r->now = MAX(r->now + i->seconds, r->host);
        break;
    case ITEM_START:
        open[k] =
            start_move(r, i->queue, i->links, i->seconds, i->after ? open[i->after - 1].end : 0);
        break;
    case ITEM_WAIT:
        if (l->item[i->pair].kind != ITEM_LAST) wait_move(s, r, &open[i->pair]);
        break;
    case ITEM_BOTH:
        open[k] = start_move(r, i->queue, i->links, i->seconds, 0);
        wait_move(s, r, &open[k]);
        break;
    case ITEM_LAST: r->last += i->seconds; break;
    case ITEM_LATE:
        end_late(s, r, MOST_LATE - 1);
        r->late[r->late_begun++ % MOST_LATE] = start_move(r, i->queue, i->links, i->seconds, 0);
        break;
    }
}

/* Plays the list of a program that an instruction runs. */
static void play_program(const sim_run *s, sim_rank *r, const prog *p, const instr *i,
                         in_flight *open) {
    const priced_prog *g = s->prog;
    while (g->p != p) g++;
    const priced_list *l = list_of(g, i->kind);
    for (int n = 0; n < l->n; n++)
        if (item_runs(item_of(&l->item[n]), i->kind, i->micro == r->l.micros - 1))
            play_item(s, r, l, n, open);
}

static void play_updated(const sim_run *s, sim_rank *r, const instr *i, const prog *p) {
    const prog_bucket *b = &p->set.bucket[i->bucket];
    if (i->kind == DO_GATHERED_UPDATED) {
        wait_move(s, r, &r->updated[r->updated_ended++ % MOST_AHEAD]);
        return;
    }
    comm_move move = updated_move(b);
    const sim_costs *c = s->costs;
    unsigned links = c->links ? c->links(c->ctx, &s->m, &move) : 0;
    double seconds = c->move(c->ctx, &s->m, &move, (double)b->count * (double)dt_size(b->dt));
    r->updated[r->updated_begun++ % MOST_AHEAD] = start_move(r, (int)b->slices, links, seconds, 0);
}

/* ---- instructions -------------------------------------------------------------------------------- */
static void watch_event(const sim_run *s, sim_task task, int rank, const instr *i, int layer,
                        double begin) {
    if (!s->watch) return;
    sim_event e = { task, rank, i->chunk, i->micro, layer, begin, s->rank[rank].now };
    s->watch->event(s->watch->ctx, &e);
}

static void play_send(const sim_run *s, int rank, const instr *i) {
    sim_rank *r = &s->rank[rank];
    sim_rank *to = &s->rank[message_peer(&s->c, rank, i)];
    if (i->pass == PASS_RESIDUAL) {
        r->now += s->sum;
        r->compute += s->sum;
    }
    double begin = MAX(r->now, r->link[i->pass]);
    double seconds = s->message * message_values(&s->c, rank, i);
    r->link[i->pass] = begin + seconds;
    r->sent[i->chunk * r->slots + i->slot][i->pass] = (in_flight){ seconds, begin + seconds };
    LIST_ADD(to->arrived[i->pass], to->arrivals[i->pass], to->arrival_cap[i->pass]) =
        begin + seconds;
}

static bool play_receive(const sim_run *s, int rank, const instr *i) {
    sim_rank *r = &s->rank[rank];
    if (r->received[i->pass] == r->arrivals[i->pass]) return false;
    double at = r->arrived[i->pass][r->received[i->pass]++];
    r->idle += MAX(0, at - r->now);
    r->now = MAX(r->now, at);
    return true;
}

/* @return where the communications of an instruction are open: its own, or those of a slot. */
static in_flight *open_of(const sim_run *s, const sim_rank *r, const instr *i,
                          const model_chunk *k) {
    slot_pool which = pool_of(k, i->instance);
    if (i->kind == DO_GATHER || i->kind == DO_GATHERED)
        return r->gathered[which] + i->gathered * s->longest;
    if (i->kind == DO_REDUCE || i->kind == DO_REDUCED)
        return r->whole_grad[which] + i->whole_grad * s->longest;
    return s->own;
}

static void play_list(const sim_run *s, int rank, const instr *i) {
    sim_rank *r = &s->rank[rank];
    model_chunk k = chain_chunk(&s->c, rank, i->chunk);
    double begin = r->now;
    play_program(s, r, chunk_program(&s->c, &k, i->instance), i, open_of(s, r, i, &k));
    bool outside = i->instance == 0 || i->instance == k.layers + 1;
    int layer = outside ? -1 : k.from + MIN(i->instance, k.layers) - 1;
    if (i->kind == DO_FWD) watch_event(s, SIM_FORWARD, rank, i, layer, begin);
    if (i->kind == DO_BWD) watch_event(s, SIM_BACKWARD, rank, i, layer, begin);
    if (i->kind == DO_WEIGHTS) watch_event(s, SIM_WEIGHTS, rank, i, layer, begin);
}

/* @return false when it waits for a message that has not been sent. */
static bool play_instr(const sim_run *s, int rank, const instr *i) {
    sim_rank *r = &s->rank[rank];
    model_chunk k = chain_chunk(&s->c, rank, i->chunk);
    if (instr_runs_list(i->kind)) {
        play_list(s, rank, i);
        return true;
    }
    switch (i->kind) {
    case DO_FEED: watch_event(s, SIM_FEED, rank, i, -1, r->now); return true;
    case DO_LOSS: watch_event(s, SIM_LOSS, rank, i, -1, r->now); return true;
    case DO_SEND: play_send(s, rank, i); return true;
    case DO_SENT: wait_move(s, r, &r->sent[i->chunk * r->slots + i->slot][i->pass]); return true;
    case DO_RECV: return play_receive(s, rank, i);
    case DO_GATHER_UPDATED:
    case DO_GATHERED_UPDATED:
        play_updated(s, r, i, chunk_program(&s->c, &k, i->instance));
        return true;
    case DO_TIED:
    case DO_NORM:
    case DO_HALF:
    case DO_UPDATE: /* counted apart */
        r->update += sim_program(i->end->p, &s->m, s->costs);
        return true;
    /* In full: how much of it the next step's forward pass hides on a GPU has not been measured. */
    case DO_BESIDE:
        if (i->end->p) r->update += sim_program(i->end->p, &s->m, s->costs);
        return true;
    case DO_BEGIN: play_program(s, r, s->c.begin, i, s->own); return true;
    case DO_END:
        if (s->c.end) play_program(s, r, s->c.end, i, s->own);
        end_late(s, r, 0);
        r->now += r->last;
        r->exposed += r->last;
        return true;
    case DO_DECIDE: /* the host's, which the device does not wait for */
    case DO_FWD:    /* lists: above */
    case DO_FWD_SAVES:
    case DO_BWD:
    case DO_WEIGHTS:
    case DO_GATHER:
    case DO_GATHERED:
    case DO_REDUCE:
    case DO_REDUCED: return true;
    }
    return true;
}

/* ---- a step -------------------------------------------------------------------------------------- */
static in_flight *new_slots(int n, int longest) {
    return mem_alloc((size_t)(n * longest + 1) * sizeof(in_flight));
}

static void open_rank(const sim_run *s, const timetable *t, int rank) {
    sim_rank *r = &s->rank[rank];
    step_list_from(&s->c, rank, t, s->micros, &r->l);
    r->at = (step_cursor){ &r->l };
    for (int i = 0; i < POOLS; i++) {
        r->gathered[i] = new_slots(r->l.gathered[i], s->longest);
        r->whole_grad[i] = new_slots(r->l.whole_grads[i], s->longest);
    }
    r->free_at = mem_alloc(SIM_QUEUES * sizeof *r->free_at);
    for (int i = 0; i < s->c.pipe.chunks; i++) r->slots = MAX(r->slots, r->l.slots[i]);
    r->sent = mem_alloc((size_t)(s->c.pipe.chunks * r->slots) * sizeof *r->sent);
}

static void close_rank(sim_rank *r) {
    for (int i = 0; i < POOLS; i++) {
        free(r->gathered[i]);
        free(r->whole_grad[i]);
    }
    for (int i = 0; i < PASSES; i++) free(r->arrived[i]);
    free(r->free_at);
    free(r->sent);
    step_list_free(&r->l);
}

/* Plays all ranks of a pipeline, each as far as its messages have arrived. */
static void play_pipeline(sim_run *s) {
    bool left = false;
    for (bool moved = true; moved;) {
        moved = left = false;
        for (int rank = 0; rank < s->c.pipe.ranks; rank++) {
            sim_rank *r = &s->rank[rank];
            instr i;
            for (step_cursor next = r->at; step_next(&next, &i); r->at = next, moved = true)
                if (!play_instr(s, rank, &i)) {
                    left = true;
                    break;
                }
        }
    }
    BUG_IF(left); /* plan_check_ranks proves that it ends */
}

/* Plays microbatches one after another: the first, two between, the last; those between take the same time, and so do
 * the ones that are not played. */
static void play_microbatches(sim_run *s) {
    sim_rank *r = &s->rank[0], begun[PLAYED_MICROS];
    int micro = -1;
    double more = s->c.micros - s->micros;
    for (instr i; step_next(&r->at, &i);) {
        if (i.kind == DO_FEED) begun[micro = i.micro] = *r;
        if (i.kind == DO_END && more > 0) {
            const sim_rank *from = &begun[micro - 1], *to = &begun[micro];
            double longer = more * (to->now - from->now);
            r->compute += more * (to->compute - from->compute);
            r->exposed += more * (to->exposed - from->exposed);
            r->hidden += more * (to->hidden - from->hidden);
            r->now += longer;
            r->host += longer;
            for (int a = 0; a < SIM_QUEUES; a++) r->free_at[a] += longer;
            for (int a = 0; a < SIM_LINKS; a++) r->busy[a] += longer;
            for (int k = 0; k < MOST_LATE; k++) r->late[k].end += longer;
        }
        play_instr(s, 0, &i);
    }
}

/* A stage sends the sum of the residual and its delta. */
static double price_sum(const sim_run *s) {
    const prog *g = s->c.block[0];
    op_call c = { .op = OP_ADD };
    c.in[0] = c.out[0] = val_tensor(&g->val[g->res_in]);
    if (g->delta_out != VAL_NONE) c.in[1] = val_tensor(&g->val[g->delta_out]);
    return s->costs->call(s->costs->ctx, "pipeline", &c);
}

double sim_message(const chain *c, const mesh *m, const sim_costs *costs) {
    const prog *g = c->block[0];
    comm_move move = { .axes = AXES_STAGES, .kind = MOVE_SEND };
    tensor t = val_tensor(&g->val[g->res_in]);
    return costs->move(costs->ctx, m, &move, (double)tensor_bytes(&t));
}

static void open_programs(sim_run *s) {
    const prog *all[PROGS] = { s->c.first, s->c.last, s->c.begin, s->c.end };
    for (int i = 0; i < CHAIN_KINDS; i++) all[PROGS - CHAIN_KINDS + i] = s->c.block[i];
    for (int i = 0; i < PROGS; i++) {
        s->prog[i] = price_program(all[i], &s->m, s->costs, s->c.micros > 1);
        for (int k = 0; k < PROG_LISTS; k++) s->longest = MAX(s->longest, s->prog[i].list[k].n);
    }
    s->own = mem_alloc((size_t)(s->longest + 1) * sizeof *s->own);
    if (s->c.pipe.ranks == 1) return;
    s->message = sim_message(&s->c, &s->m, s->costs);
    s->sum = price_sum(s);
}

static void sum_up(sim_run *s, sim_result *out) {
    int n = s->c.pipe.ranks;
    double idle = 0;
    for (int i = 0; i < n; i++) {
        out->seconds = MAX(out->seconds, s->rank[i].now);
        out->update = MAX(out->update, s->rank[i].update);
    }
    for (int i = 0; i < n; i++) {
        const sim_rank *r = &s->rank[i];
        out->compute += r->compute / n;
        out->exposed += r->exposed / n;
        out->hidden += r->hidden / n;
        idle += (r->idle + out->seconds - r->now) / n;
    }
    out->bubble = out->seconds > 0 ? idle / out->seconds : 0;
}

err sim_chain(const chain *c, const mesh *m, const sim_costs *costs, const sim_watch *watch,
              sim_result *out) {
    sim_run s = { .c = chain_normal(c), .m = *m, .costs = costs, .watch = watch };
    timetable t;
    *out = (sim_result){ 0 };
    bool pipelined = s.c.pipe.ranks > 1;
    s.micros = pipelined ? s.c.micros : MIN(s.c.micros, PLAYED_MICROS);
    TRY(timetable_make(&s.c.pipe, pipelined ? s.micros : 1, &t));
    open_programs(&s);
    s.rank = mem_alloc((size_t)s.c.pipe.ranks * sizeof *s.rank);
    for (int i = 0; i < s.c.pipe.ranks; i++) open_rank(&s, &t, i);
    timetable_free(&t);
    if (pipelined)
        play_pipeline(&s);
    else
        play_microbatches(&s);
    sum_up(&s, out);
    for (int i = 0; i < s.c.pipe.ranks; i++) close_rank(&s.rank[i]);
    for (int i = 0; i < PROGS; i++) priced_free(&s.prog[i]);
    free(s.rank);
    free(s.own);
    return OK;
}

/* ---- a program alone ------------------------------------------------------------------------------ */
/* @return the seconds of a list on its own, with what it waits for. */
static double list_seconds(const sim_run *s, const priced_prog *g, instr_kind kind) {
    const priced_list *l = list_of(g, kind);
    sim_rank r = { .free_at = mem_alloc(SIM_QUEUES * sizeof(double)) };
    for (int i = 0; i < l->n; i++)
        if (item_runs(item_of(&l->item[i]), kind, false)) play_item(s, &r, l, i, s->own);
    free(r.free_at);
    return r.now;
}

double prog_saved_bytes(const prog *p) { return (double)p->saved_bytes; }
double prog_temp_bytes(const prog *p) { return (double)p->temp_bytes; }

static op_code first_op(const op_list *l, val v, bool writes) {
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < (writes ? OP_MAX_OUT : OP_MAX_IN); k++)
            if ((writes ? l->op[i].out[k] : l->op[i].in[k]) == v) return l->op[i].op;
    return OP_NONE;
}

bool prog_next_saved(const prog *p, int *i, saved_value *out) {
    for (; *i < p->vals; ++*i) {
        const val v = (val)*i;
        if (p->val[v].cls != VC_SAVED || val_root(p, v) != v) continue;
        op_code by = first_op(&p->fwd, v, true);
        *out = (saved_value){ .bytes = (double)val_bytes(&p->val[v]),
                              .dt = p->val[v].dt,
                              .pl = p->val[v].pl,
                              .by = by != OP_NONE ? by : first_op(&p->bwd, v, true),
                              .reader = first_op(&p->fwd, v, false),
                              .backward = by == OP_NONE };
        return ++*i, true;
    }
    return false;
}

prog_price sim_price(const prog *p, const mesh *m, const sim_costs *costs, bool accumulates) {
    priced_prog g = price_program(p, m, costs, accumulates);
    sim_run s = { .costs = costs };
    for (int i = 0; i < PROG_LISTS; i++) s.longest = MAX(s.longest, g.list[i].n);
    s.own = mem_alloc((size_t)(s.longest + 1) * sizeof *s.own);
    prog_price out = { .forward = list_seconds(&s, &g, DO_FWD),
                       .again = list_seconds(&s, &g, DO_FWD_SAVES),
                       .backward = list_seconds(&s, &g, DO_BWD),
                       .weights = list_seconds(&s, &g, DO_WEIGHTS),
                       .saved = (double)p->saved_bytes,
                       .temp = (double)p->temp_bytes,
                       .gathered = (double)p->gathered_bytes,
                       .whole_grad = (double)p->whole_grad_bytes };
    if (p->block_input != VAL_NONE) out.block_input = (double)val_bytes(&p->val[p->block_input]);
    if (p->res_in != VAL_NONE) out.residual = (double)val_bytes(&p->val[p->res_in]);
    for (int i = 0; i < CARRIES; i++)
        if (p->carry_out[i] != VAL_NONE)
            out.carried += 2 * (double)val_bytes(&p->val[p->carry_out[i]]);
    priced_free(&g);
    free(s.own);
    return out;
}

double sim_program(const prog *p, const mesh *m, const sim_costs *costs) {
    priced_prog g = { .p = p };
    priced_list *l = &g.list[&p->fwd - p->list];
    price_list(p, &p->fwd, m, costs, false, l);
    sim_run s = { .costs = costs, .own = mem_alloc((size_t)(l->n + 1) * sizeof *s.own) };
    double seconds = list_seconds(&s, &g, DO_FWD);
    free(s.own);
    free(l->item);
    return seconds;
}
