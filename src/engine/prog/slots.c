/* Parameters and gradients that ZeRO keeps in slices, in a step's instructions.
 *
 * A program whose parameters are stored in slices reads them from a slot, into which they are gathered
 * before; one whose gradients are kept in slices leaves whole ones in a slot, from where they are reduced
 * afterwards. Blocks share a pool of slots, the programs around them another. Both communications outlive the
 * program: with a prefetch of one, two slots of parameters and two of gradients,
 *
 *     forward    gather 1 | gather 2, gathered 1, F1 | gather 3, gathered 2, F2 | gather 4, ...
 *     slot       0          1                     0    0                     1    1
 *
 *     backward   gather 2, gathered 3, B3, reduce 3 | gather 1, gathered 2, B2, reduce 2, reduced 3 | ...
 *
 * so that gathering block 3 overlaps F2, and reducing block 3 overlaps B2. A slot that still holds what a
 * program reads is not gathered again: backward of the last blocks finds their parameters where forward left
 * them, and so does every program when there is a slot for each (chain.keep_gathered).
 *
 * A list that is run once per microbatch continues where it ended: what its end leaves in the slots is gathered
 * in the first microbatch alone, and the rest of what its beginning reads is gathered at the end of the one
 * before, so that no microbatch but the first begins with a gather that nothing overlaps. */
#include "plan_internal.h"

#include <stdlib.h>

enum { GRAD_SLOTS = 2 }; /* of blocks: one being computed, one being reduced */

/* @return the program's number in its chunk; a restart has that of its block. */
static int program_index(const chain *c, const model_chunk *k, int at) {
    int restart = at - (k->layers + 2);
    return restart < 0 ? at : restart * c->keep_every + 1;
}

/* Names a program's parameters among those of a rank. */
static int param_key(const chain *c, const model_chunk *k, const instr *i) {
    return i->chunk * (c->layers + 2) + program_index(c, k, i->instance);
}

static bool list_touches(const prog *p, const op_list *l, val_class cls) {
    for (int i = 0; i < l->n; i++) {
        for (int k = 0; k < OP_MAX_IN; k++)
            if (l->op[i].in[k] != VAL_NONE && p->val[val_root(p, l->op[i].in[k])].cls == cls)
                return true;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (l->op[i].out[k] != VAL_NONE && p->val[val_root(p, l->op[i].out[k])].cls == cls)
                return true;
    }
    return false;
}

/* Which instructions of a rank touch a class of values. A step has thousands, of few lists of ops: each is
 * searched once. */
enum { KNOWN_LISTS = 32 };
typedef struct touched {
    const chain *c;
    int rank;
    val_class cls;
    int n; /* lists searched */
    struct known_list {
        const op_list *list;
        bool touches;
    } known[KNOWN_LISTS];
} touched;

/* Whether the instruction computes with gathered parameters, or leaves whole gradients. */
static bool instr_touches(touched *t, const instr *i) {
    if (!instr_computes(i->kind)) return false;
    model_chunk k = chain_chunk(t->c, t->rank, i->chunk);
    const prog *p = chunk_program(t->c, &k, program_index(t->c, &k, i->instance));
    const op_list *list = instr_list(p, i->kind);
    for (int n = 0; n < t->n; n++)
        if (t->known[n].list == list) return t->known[n].touches;
    bool touches = list_touches(p, list, t->cls);
    if (t->n < KNOWN_LISTS) t->known[t->n++] = (struct known_list){ list, touches };
    return touches;
}

/* ---- a list that is rebuilt with instructions added --------------------------------------------- */
typedef struct addition {
    int after; /* the instruction that it follows; -1: it begins the list */
    instr i;
} addition;

typedef struct additions {
    addition *add; /* in the order of `after` */
    int n, cap;
} additions;

static void add_after(additions *a, int after, instr_kind kind, const instr *of) {
    a->add = mem_reserve(a->add, &a->cap, a->n, sizeof *a->add);
    int at = a->n++;
    for (; at > 0; at--) { /* what starts comes before what waits */
        const addition *b = &a->add[at - 1];
        bool waits = b->after == after && b->i.kind == DO_GATHERED && kind == DO_GATHER;
        if (b->after <= after && !waits) break;
        a->add[at] = *b;
    }
    a->add[at] = (addition){ after, *of };
    a->add[at].i.kind = kind;
}

static void insert_additions(step_list *l, additions *a) {
    step_list out = *l;
    out.list = NULL;
    out.n = out.cap = 0;
    for (int i = -1, k = 0; i < l->n; i++) {
        if (l->repeats && i == l->repeat_from) out.repeat_from = out.n;
        if (l->repeats && i == l->repeat_to) out.repeat_to = out.n;
        if (i >= 0) LIST_ADD(out.list, out.n, out.cap) = l->list[i];
        for (; k < a->n && a->add[k].after == i; k++)
            LIST_ADD(out.list, out.n, out.cap) = a->add[k].i;
    }
    free(l->list);
    free(a->add);
    *l = out;
}

/* ---- slots -------------------------------------------------------------------------------------- */
typedef struct slot_use {
    int key;              /* -1: nothing yet */
    int use;              /* the last one, by number */
    int at;               /* ... and by instruction */
    int first, key_first; /* the instruction that used it first, and what it held then */
} slot_use;

typedef struct pool_use {
    slot_use *slot; /* [cap] */
    int cap, n;
} pool_use;

/* @return the slot that holds a program's parameters; NULL: none. */
static slot_use *find_slot_with_key(pool_use *p, int key) {
    for (int i = 0; i < p->n; i++)
        if (p->slot[i].key == key) return &p->slot[i];
    return NULL;
}

/* @return a new slot, or the least recently used one. */
static slot_use *oldest_slot(pool_use *p) {
    if (p->n < p->cap) {
        p->slot[p->n] = (slot_use){ -1, -1, -1, -1, -1 };
        return &p->slot[p->n++];
    }
    slot_use *s = &p->slot[0];
    for (int i = 1; i < p->n; i++)
        if (p->slot[i].use < s->use) s = &p->slot[i];
    return s;
}

static pool_use pool_new_use(int cap) {
    return (pool_use){ .cap = cap, .slot = mem_alloc((size_t)cap * sizeof(slot_use)) };
}

/* The first content of a slot is gathered at the list's beginning in a step's first microbatch alone. For the next one
 * it is still there at the end, or is gathered there. @param near the end: after which instruction */
static void gather_ahead(additions *a, const step_list *l, const slot_use *s, int near) {
    const instr *use = &l->list[s->first];
    bool stays = s->key == s->key_first;
    for (int i = 0; i < a->n; i++) {
        instr *g = &a->add[i].i;
        bool same = g->instance == use->instance && g->chunk == use->chunk;
        bool first = same && g->gathered == use->gathered && a->add[i].after < s->first;
        if (first && (stays || g->kind == DO_GATHER)) g->once = true;
    }
    instr next = *use;
    next.ahead = true;
    if (!stays) add_after(a, MAX(near, s->at), DO_GATHER, &next);
}

/* Gathers start when the program `prefetch` uses before begins, or as soon as their slot is free. */
static void add_gathers(const chain *c, int rank, step_list *l) {
    int blocks = 0, uses = 0, *use_at = mem_alloc((size_t)(l->n + 1) * sizeof *use_at);
    additions a = { 0 };
    touched gathered = { c, rank, VC_GATHERED };
    for (int i = 0; i < c->pipe.chunks; i++) blocks += chain_chunk(c, rank, i).layers;
    int cap[POOLS] = { [POOL_BLOCKS] = c->keep_gathered ? blocks : MIN(c->prefetch + 1, blocks),
                       [POOL_OUTER] = c->keep_gathered ? 2 : 1 };
    pool_use pools[POOLS] = { pool_new_use(cap[0]), pool_new_use(cap[1]) };
    for (int i = 0; i < l->n; i++) {
        instr *in = &l->list[i];
        if (!instr_touches(&gathered, in)) continue;
        model_chunk k = chain_chunk(c, rank, in->chunk);
        pool_use *p = &pools[pool_of(&k, in->instance)];
        int key = param_key(c, &k, in);
        slot_use *s = find_slot_with_key(p, key);
        bool gather = !s;
        if (gather) s = oldest_slot(p);
        in->gathered = (int)(s - p->slot);
        in->once = c->keep_gathered;
        int first = MAX(uses - c->prefetch, s->use + 1);
        if (gather) {
            add_after(&a, first ? use_at[first - 1] : -1, DO_GATHER, in);
            add_after(&a, i - 1, DO_GATHERED, in);
        }
        in->once = false;
        bool begins = s->first < 0;
        *s = (slot_use){ key, uses, i, begins ? i : s->first, begins ? key : s->key_first };
        use_at[uses++] = i;
    }
    if (c->pipe.ranks == 1 && !c->keep_gathered)
        for (int i = 0; i < POOLS; i++)
            for (int k = 0; k < pools[i].n; k++)
                gather_ahead(&a, l, &pools[i].slot[k], use_at[MAX(0, uses - 1 - c->prefetch)]);
    for (int i = 0; i < POOLS; i++) {
        l->gathered[i] = pools[i].n;
        free(pools[i].slot);
    }
    free(use_at);
    insert_additions(l, &a);
}

/* Reductions start when the gradients are there and end before their slot is written again. */
static void add_reductions(const chain *c, int rank, step_list *l) {
    additions a = { 0 };
    touched whole_grads = { c, rank, VC_WHOLE_GRAD };
    pool_use pools[POOLS] = { pool_new_use(GRAD_SLOTS), pool_new_use(1) };
    int uses = 0;
    for (int i = 0; i < l->n; i++) {
        instr *in = &l->list[i];
        if (!instr_touches(&whole_grads, in)) continue;
        model_chunk k = chain_chunk(c, rank, in->chunk);
        pool_use *p = &pools[pool_of(&k, in->instance)];
        slot_use *s = oldest_slot(p);
        in->whole_grad = (int)(s - p->slot);
        if (s->at >= 0) add_after(&a, i - 1, DO_REDUCED, &l->list[s->at]);
        add_after(&a, i, DO_REDUCE, in);
        *s = (slot_use){ 0, uses++, i, -1, -1 };
    }
    for (int left = 0; left < uses; left++) /* in the order they began */
        for (int i = 0; i < POOLS; i++)
            for (int k = 0; k < pools[i].n; k++)
                if (pools[i].slot[k].use == left && pools[i].slot[k].at >= 0)
                    add_after(&a, l->n - 1, DO_REDUCED, &l->list[pools[i].slot[k].at]);
    for (int i = 0; i < POOLS; i++) {
        l->whole_grads[i] = pools[i].n;
        free(pools[i].slot);
    }
    insert_additions(l, &a);
}

void step_list_add_slots(const chain *c, int rank, step_list *l) {
    add_reductions(c, rank, l);
    add_gathers(c, rank, l); /* behind a program's end these start first: they are needed sooner */
}

/* ---- updated parameters ------------------------------------------------------------------------- */
/* Whether the program reads the bucket where each rank has updated a slice of it. */
static bool reads_updated(const prog *p, int bucket) {
    const prog_bucket *b = &p->set.bucket[bucket];
    if (!bucket_is_sliced(b, &p->m, HOLDS_STATE) || bucket_is_sliced(b, &p->m, HOLDS_PARAMS))
        return false;
    for (val v = 0; v < p->vals; v++)
        if (p->val[v].cls == VC_PARAM && p->val[v].bucket == bucket) return true;
    return false;
}

typedef struct updated_gathers {
    instr *list; /* in the order in which they are read */
    int n, cap, begun, ended;
    additions a;
} updated_gathers;

/* Adds the gathers of what the instruction reads first. */
static void find_updated(const chain *c, int rank, const instr *i, updated_gathers *u) {
    model_chunk k = chain_chunk(c, rank, i->chunk);
    const prog *p = chunk_program(c, &k, i->instance);
    for (int b = 0; b < p->set.buckets; b++) {
        bool again = !reads_updated(p, b);
        for (int n = 0; n < u->n && !again; n++) { /* a table that two programs read */
            model_chunk of = chain_chunk(c, rank, u->list[n].chunk);
            bool outside = pool_of(&of, u->list[n].instance) == POOL_OUTER &&
                           pool_of(&k, i->instance) == POOL_OUTER;
            again = u->list[n].bucket == b &&
                    (outside || param_key(c, &of, &u->list[n]) == param_key(c, &k, i));
        }
        if (again) continue;
        LIST_ADD(u->list, u->n, u->cap) = *i;
        u->list[u->n - 1].bucket = b;
    }
}

static void end_updated(updated_gathers *u, int after, int left) {
    while (u->begun - u->ended > left)
        add_after(&u->a, after, DO_GATHERED_UPDATED, &u->list[u->ended++]);
}

/* Starts the first `ready` and some that come after them. What an update beside the step still writes is started no
 * earlier than it must. */
static void start_updated(const chain *c, int rank, updated_gathers *u, int after, int ready) {
    for (; u->begun < u->n; u->begun++) {
        const instr *g = &u->list[u->begun];
        model_chunk k = chain_chunk(c, rank, g->chunk);
        int event = pool_of(&k, g->instance) == POOL_OUTER ? 0 : k.from + g->instance;
        bool awaits = event < c->besides && c->beside[event];
        if (u->begun >= ready + (awaits ? 1 : MOST_AHEAD)) break;
        end_updated(u, after, MOST_AHEAD - 1);
        add_after(&u->a, after, DO_GATHER_UPDATED, g);
    }
}

/* Parameters that the update left in slices are gathered in the order in which the first microbatch reads them, some
 * ahead of their use; a later stage of a pipeline starts before its first message has arrived. */
void step_list_add_updated(const chain *c, int rank, step_list *l) {
    updated_gathers u = { 0 };
    int *ready = mem_alloc((size_t)(l->n + 1) * sizeof *ready);
    for (int i = 0; i < l->n; i++) {
        if (l->list[i].kind == DO_FWD && l->list[i].micro == 0)
            find_updated(c, rank, &l->list[i], &u);
        ready[i] = u.n;
    }
    for (int i = 0; i < l->n && u.ended < u.n; i++) {
        instr_kind kind = l->list[i].kind;
        if (kind == DO_RECV) start_updated(c, rank, &u, i - 1, 0);
        if (kind != DO_FWD) continue;
        start_updated(c, rank, &u, i - 1, ready[i]);
        end_updated(&u, i - 1, MAX(0, u.begun - ready[i]));
    }
    free(ready);
    free(u.list);
    insert_additions(l, &u.a);
}

/* ---- playing a list ------------------------------------------------------------------------------- */
typedef enum { SLOT_FREE, SLOT_MOVING, SLOT_READY } slot_state;
typedef struct played_slot {
    slot_state state;
    int key; /* of gathered parameters; of gradients 1 + the instruction's program */
} played_slot;

typedef struct played {
    const chain *c;
    int rank;
    touched reads, writes; /* gathered parameters, whole gradients */
    played_slot *gathered[POOLS], *whole_grad[POOLS];
    const step_list *l;
} played;

static err slot_error(const instr *i, const char *what) {
    return ERR("microbatch %d, instance %d of chunk %d: %s", i->micro, i->instance, i->chunk, what);
}

static err play_gathered(played *p, const instr *i, const model_chunk *k) {
    bool reads = instr_touches(&p->reads, i);
    slot_pool which = pool_of(k, i->instance);
    if (!reads && i->kind != DO_GATHER && i->kind != DO_GATHERED) return OK;
    if (i->gathered < 0 || i->gathered >= p->l->gathered[which])
        return slot_error(i, "its parameters have no slot");
    played_slot *s = &p->gathered[which][i->gathered];
    int key = param_key(p->c, k, i);
    if (i->kind == DO_GATHER) {
        if (s->state == SLOT_MOVING)
            return slot_error(i, "gathers into a slot that another gather still writes");
        *s = (played_slot){ SLOT_MOVING, key };
    } else if (i->kind == DO_GATHERED) {
        if (s->state != SLOT_MOVING || s->key != key)
            return slot_error(i, "waits for parameters that are not being gathered");
        s->state = SLOT_READY;
    } else if (s->state == SLOT_MOVING) {
        return slot_error(i, "reads parameters before their gather has ended");
    } else if (s->state != SLOT_READY || s->key != key) {
        return slot_error(i, "reads a slot that holds other parameters");
    }
    return OK;
}

static err play_whole_grad(played *p, const instr *i, const model_chunk *k) {
    bool writes = instr_touches(&p->writes, i);
    slot_pool which = pool_of(k, i->instance);
    if (!writes && i->kind != DO_REDUCE && i->kind != DO_REDUCED) return OK;
    if (i->whole_grad < 0 || i->whole_grad >= p->l->whole_grads[which])
        return slot_error(i, "its gradients have no slot");
    played_slot *s = &p->whole_grad[which][i->whole_grad];
    int key = param_key(p->c, k, i);
    if (writes) {
        if (s->state != SLOT_FREE)
            return slot_error(i, "overwrites gradients that are not reduced yet");
        *s = (played_slot){ SLOT_READY, key };
    } else if (i->kind == DO_REDUCE) {
        if (s->state != SLOT_READY || s->key != key)
            return slot_error(i, "reduces gradients that are not there");
        s->state = SLOT_MOVING;
    } else {
        if (s->state != SLOT_MOVING || s->key != key)
            return slot_error(i, "waits for gradients that are not being reduced");
        s->state = SLOT_FREE;
    }
    return OK;
}

static err play_slots(played *p) {
    step_cursor at = { p->l };
    for (instr i; step_next(&at, &i);) {
        if (!instr_runs_list(i.kind)) continue;
        model_chunk k = chain_chunk(p->c, p->rank, i.chunk);
        TRY(play_gathered(p, &i, &k));
        TRY(play_whole_grad(p, &i, &k));
    }
    for (int i = 0; i < POOLS; i++) {
        for (int s = 0; s < p->l->gathered[i]; s++)
            if (p->gathered[i][s].state == SLOT_MOVING)
                return ERR("a gather of parameters is never awaited");
        for (int s = 0; s < p->l->whole_grads[i]; s++)
            if (p->whole_grad[i][s].state != SLOT_FREE)
                return ERR("gradients are left that are not reduced");
    }
    return OK;
}

err step_list_check_slots(const chain *c, int rank, const step_list *l) {
    played p = { .c = c,
                 .rank = rank,
                 .reads = { c, rank, VC_GATHERED },
                 .writes = { c, rank, VC_WHOLE_GRAD },
                 .l = l };
    for (int i = 0; i < POOLS; i++) {
        p.gathered[i] = mem_alloc((size_t)(l->gathered[i] + 1) * sizeof **p.gathered);
        p.whole_grad[i] = mem_alloc((size_t)(l->whole_grads[i] + 1) * sizeof **p.whole_grad);
    }
    err e = play_slots(&p);
    for (int i = 0; i < POOLS; i++) {
        free(p.gathered[i]);
        free(p.whole_grad[i]);
    }
    return e;
}
