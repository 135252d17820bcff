/* Finds which values are live during each op: see timeline.h. Every op reads and writes addresses. Sorted by address, the accesses of one
 * address are a row of lives:
 *
 *     write  read  read | write  read | ...        a life lasts from a write to the last read before the next
 *
 * so that slots which recompute, pipelines and ZeRO use again and again need no rules of their own. */
#include "prog/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "exec_internal.h"
#include "plan_internal.h"

const char *const live_names[LIVE_KINDS] = {
    [LIVE_TEMP] = "temporary",        [LIVE_SAVED] = "saved for backward",
    [LIVE_PASSED] = "residual",       [LIVE_GATHERED] = "gathered parameters",
    [LIVE_GRADS] = "whole gradients", [LIVE_WORK] = "workspace",
};

typedef struct memory_access {
    const char *address;
    int at; /* moment */
    bool writes;
    val root;
    const prog *p;
    int layer;
    live_kind kind;
    size_t bytes;
} memory_access;

typedef struct timeline_player {
    plan *p;
    timeline *t;
    memory_access *list;
    int n, cap, moment_cap;
} timeline_player;

/* @return LIVE_KINDS for what lives all the time. */
static live_kind kind_of(val_class c) {
    switch (c) {
    case VC_TEMP: return LIVE_TEMP;
    case VC_SAVED:
    case VC_BLOCK_INPUT: return LIVE_SAVED;
    case VC_BOUNDARY:
    case VC_CARRIED: return LIVE_PASSED;
    case VC_GATHERED: return LIVE_GATHERED;
    case VC_WHOLE_GRAD: return LIVE_GRADS;
    default: return LIVE_KINDS;
    }
}

static void note_access(timeline_player *y, const instance *in, val v, bool writes) {
    if (v == VAL_NONE) return;
    val root = val_root(in->p, v);
    const prog_val *x = &in->p->val[root];
    live_kind kind = kind_of(x->cls);
    if (kind == LIVE_KINDS || !in->addr[root]) return;
    LIST_ADD(y->list, y->n, y->cap) =
        (memory_access){ in->addr[root], y->t->n - 1, writes, root,
                         in->p,          in->layer,   kind,   val_bytes(x) };
}

static void play_op(timeline_player *y, const instance *in, const prog_op *o, const char *list,
                    int micro) {
    timeline *t = y->t;
    const char *slash = strrchr(o->site.file, '/');
    live_moment *m = &LIST_ADD(t->at, t->n, y->moment_cap);
    *m = (live_moment){ .program = in->p->name,
                        .list = list,
                        .op = op_name(o->op),
                        .file = slash ? slash + 1 : o->site.file,
                        .line = o->site.line,
                        .layer = in->layer,
                        .micro = micro };
    if (!(op_flags(o->op) & OPF_EXTERN)) {
        op_call c = call_of(in->p, o, in->addr);
        m->bytes[LIVE_WORK] = ops_workspace(y->p->backend, &c, y->p->threads);
    }
    for (int k = 0; k < OP_MAX_IN; k++) note_access(y, in, o->in[k], false);
    for (int k = 0; k < OP_MAX_OUT; k++) note_access(y, in, o->out[k], o->phase != COMM_WAIT);
}

static void play_timeline_instr(timeline_player *y, const chain_plan *k, const instr *i,
                                int micros) {
    static const char *const names[] = {
        [DO_FWD] = "forward",     [DO_FWD_SAVES] = "recompute", [DO_BWD] = "backward",
        [DO_WEIGHTS] = "weights", [DO_GATHER] = "gather",       [DO_GATHERED] = "gather",
        [DO_REDUCE] = "reduce",   [DO_REDUCED] = "reduce"
    };
    if ((size_t)i->kind >= COUNT_OF(names) || !names[i->kind]) return;
    chunk_plan *u = &k->chunk[i->chunk];
    const instance *in = &u->inst[i->slot][i->instance];
    chain_bind_slots(k, i);
    const op_list *l = instr_list(in->p, i->kind);
    for (int n = 0; n < l->n; n++)
        if (op_runs(&l->op[n], i->kind, i->micro, micros))
            play_op(y, in, &l->op[n], names[i->kind], i->micro);
}

/* ---- lives ----------------------------------------------------------------------------------------- */
/* By address, then by time; an op reads before it writes. */
SORT_ORDER(by_address, memory_access, RISING(address) RISING(at) RISING(writes));

SORT_ORDER(by_live_bytes, live_value, FALLING(bytes) RISING(from));

static void end_life(timeline *t, const live_value *v, int64_t (*change)[LIVE_KINDS], int *cap) {
    LIST_ADD(t->value, t->values, *cap) = *v;
    change[v->from][v->kind] += (int64_t)v->bytes;
    change[v->to + 1][v->kind] -= (int64_t)v->bytes;
}

/* An op that overwrites its operand in place continues its life. */
static bool continues(const live_value *life, const memory_access *before, const memory_access *a) {
    if (!a->writes) return a->bytes <= life->bytes;
    return life->to == a->at && before->root == a->root && before->p == a->p;
}

static void find_lives(timeline_player *y, int64_t (*change)[LIVE_KINDS]) {
    int cap = 0;
    live_value life = { .bytes = 0 };
    sort_array(y->list, (size_t)y->n, sizeof *y->list, by_address);
    for (int i = 0; i < y->n; i++) {
        const memory_access *a = &y->list[i];
        bool same = i > 0 && y->list[i - 1].address == a->address;
        if (same && continues(&life, a - 1, a)) {
            life.to = a->at;
            continue;
        }
        if (i > 0) end_life(y->t, &life, change, &cap);
        const live_moment *m = &y->t->at[a->at];
        life = (live_value){ m->program, m->op,    m->file, m->line, a->layer,
                             a->kind,    a->bytes, a->at,   a->at };
    }
    if (y->n) end_life(y->t, &life, change, &cap);
    sort_array(y->t->value, (size_t)y->t->values, sizeof *y->t->value, by_live_bytes);
}

size_t timeline_bytes(const live_moment *m) {
    size_t sum = 0;
    for (int k = 0; k < LIVE_KINDS; k++) sum += m->bytes[k];
    return sum;
}

static void sum_lives(timeline *t, int64_t (*change)[LIVE_KINDS]) {
    int64_t now[LIVE_KINDS] = { 0 };
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < LIVE_KINDS; k++) {
            now[k] += change[i][k];
            if (k != LIVE_WORK) t->at[i].bytes[k] = (size_t)now[k];
        }
        if (timeline_bytes(&t->at[i]) > timeline_bytes(&t->at[t->peak])) t->peak = i;
    }
}

err timeline_make(plan *p, int which, int micros, timeline *out) {
    chain_plan *k = &p->chain[which];
    const step_list *l;
    *out = (timeline){ 0 };
    timeline_player y = { .p = p, .t = out };
    int played = k->c.pipe.ranks > 1 ? micros : 1;
    TRY(chain_steps(p, k, played, &l));
    step_cursor at = { l };
    for (instr i; step_next(&at, &i);) play_timeline_instr(&y, k, &i, played);
    int64_t(*change)[LIVE_KINDS] = mem_alloc((size_t)(out->n + 1) * sizeof *change);
    find_lives(&y, change);
    sum_lives(out, change);
    static const char *const lives[] = { "saved",    "block inputs", "residual", "carried",
                                         "temp",     "work",         "gathered", "whole grads",
                                         "pipeline", "result",       "top1" };
    for (int i = 0; i < p->regions; i++) {
        bool fixed = !p->region[i].host;
        for (size_t n = 0; n < COUNT_OF(lives); n++) fixed &= !!strcmp(lives[n], p->region[i].name);
        if (fixed) out->fixed += p->region[i].bytes;
    }
    free(change);
    free(y.list);
    return OK;
}

void timeline_free(timeline *t) {
    free(t->at);
    free(t->value);
    *t = (timeline){ 0 };
}
