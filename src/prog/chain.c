/* A chain's instances: first, the blocks, last; their memory, addresses and the order they run in.
 *
 * Recompute by blocks is nothing but this order. With keep_every = n the forward pass keeps the
 * summed input of every n-th block (its block input) and the saved values of n blocks; backward runs a
 * segment's forward lists again from its block input into those same n slots:
 *
 *     keep_every 2:   F0 F1 | F2 F3 | F4 F5 | last | B5 B4 | F2' F3 B3 B2 | F0' F1 B1 B0 | first
 *                     in0     in2     in4                    from in2       from in0
 *
 * The same ops on the same inputs are bit-exact. F' is the block with the kept sum as its residual and
 * no delta; the last forward of a segment runs only what backward reads.
 */
#include "plan_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* ---- regions ----------------------------------------------------------------------------- */
plan *plan_new(const mesh *m, const op_backend *backend, int threads) {
    plan *p = mem_alloc(sizeof *p);
    p->m = *m;
    p->backend = backend;
    p->threads = threads;
    return p;
}

int plan_region(plan *p, const char *name, size_t bytes) {
    BUG_IF(p->arena);
    mem_reserve((void **)&p->region, &p->region_cap, p->regions, sizeof *p->region);
    region *r = &p->region[p->regions];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->bytes = bytes;
    return p->regions++;
}

int plan_region_host(plan *p, const char *name, size_t bytes) {
    int index = plan_region(p, name, bytes);
    p->region[index].offloaded = true;
    p->region[index].host = p->backend->device != NULL;
    return index;
}

size_t plan_offloaded_bytes(const plan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++) sum += p->region[i].offloaded ? p->region[i].bytes : 0;
    return sum;
}

size_t plan_host_bytes(const plan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++) sum += p->region[i].host ? p->region[i].bytes : 0;
    return sum;
}

size_t plan_bytes(const plan *p, const char *name) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++)
        if (!p->region[i].host && (!name || !strcmp(p->region[i].name, name)))
            sum += p->region[i].bytes;
    /* asked before commit, the shared regions are not there yet */
    if (!p->arena && (!name || !strcmp(name, "temp"))) sum += p->temp_bytes;
    if (!p->arena && (!name || !strcmp(name, "work"))) sum += p->work_bytes;
    return sum;
}

int plan_region_count(const plan *p) { return p->regions; }

const char *plan_region_info(const plan *p, int index, size_t *bytes) {
    *bytes = p->region[index].host ? 0 : p->region[index].bytes;
    return p->region[index].name;
}

static int find_input(const plan *p, const char *name) {
    for (int i = 0; i < p->regions; i++)
        if (p->region[i].name[0] == '.' && !strcmp(p->region[i].name + 1, name)) return i;
    return -1;
}

/* Inputs are regions whose name begins with a dot; programs that ask for one share it. */
static void add_input(plan *p, const prog_val *v, int layers) {
    size_t bytes = val_bytes(v) * (size_t)(v->per_layer ? layers : 1);
    int at = find_input(p, v->name);
    if (at < 0) {
        char name[REGION_NAME];
        snprintf(name, sizeof name, ".%s", v->name);
        at = plan_region(p, name, 0);
        p->region[at].input = (input_info){ v->dt, v->pl };
    }
    /* one input, one part of it; rows are dealt out before */
    const axis_set parts = AXES_ALL & ~AXES_ROWS;
    BUG_IF((placement_axes(p->region[at].input.pl, PL_S) ^ placement_axes(v->pl, PL_S)) & parts);
    p->region[at].bytes = MAX(p->region[at].bytes, bytes);
}

int plan_threads(const plan *p) { return p->threads; }

void *plan_data(const plan *p, int index) {
    BUG_IF(!p->arena);
    return (char *)(p->region[index].host ? p->host : p->arena) + p->region[index].at;
}

void *plan_input(const plan *p, const char *name) {
    int at = find_input(p, name);
    return at < 0 ? NULL : plan_data(p, at);
}

bool plan_input_info(const plan *p, const char *name, input_info *out) {
    int at = find_input(p, name);
    if (at >= 0) *out = p->region[at].input;
    return at >= 0;
}

void plan_put(const plan *p, void *to, const void *from, size_t bytes) {
    const op_device *d = p->backend->device;
    if (d)
        d->put(p->backend->context, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

err plan_get(const plan *p, void *to, const void *from, size_t bytes) {
    const op_device *d = p->backend->device;
    if (d) return d->get(p->backend->context, to, from, bytes);
    memcpy(to, from, bytes);
    return OK;
}

void plan_fetch(const plan *p, op_ticket *t, const void *from, size_t bytes) {
    const op_device *d = p->backend->device;
    if (d) {
        d->fetch(p->backend->context, t, from, bytes);
        return;
    }
    if (t->capacity < bytes) t->memory = mem_grow(t->memory, t->capacity = bytes);
    t->bytes = bytes;
    memcpy(t->memory, from, bytes);
}

err plan_take(const plan *p, op_ticket *t, void *to) {
    const op_device *d = p->backend->device;
    if (d) return d->take(p->backend->context, t, to);
    memcpy(to, t->memory, t->bytes);
    return OK;
}

void plan_drop(const plan *p, op_ticket *t) {
    const op_device *d = p->backend->device;
    if (d)
        d->drop(p->backend->context, t);
    else
        free(t->memory);
    *t = (op_ticket){ 0 };
}

static err map_on_host(size_t bytes, void **out) {
    err e = mem_map(bytes, out);
    if (!e) return OK;
    return err_hint(e, "use a smaller model, training.local_batch_size or training.seq_len; "
                       "activation_checkpoint.mode=full, optimizer.name=adam8bit and "
                       "optimizer.master=bf16 need less");
}

static err arena_map(plan *p, size_t bytes, size_t host_bytes) {
    const op_device *d = p->backend->device;
    TRY(d ? d->map(p->backend->context, bytes, &p->arena) : map_on_host(bytes, &p->arena));
    p->arena_bytes = bytes;
    if (!host_bytes) return OK;
    TRY(d->map_host(p->backend->context, host_bytes, &p->host));
    p->host_bytes = host_bytes;
    return OK;
}

static void arena_unmap(plan *p) {
    const op_device *d = p->backend->device;
    if (d && p->host) d->unmap_host(p->backend->context, p->host, p->host_bytes);
    if (d && p->arena)
        d->unmap(p->backend->context, p->arena, p->arena_bytes);
    else if (!d)
        mem_unmap(p->arena, p->arena_bytes);
}

/* ---- adding a chain ---------------------------------------------------------------------- */
/* Adds a program's needs; refuses what the backend cannot run. */
static err measure(plan *p, const prog *g) {
    p->temp_bytes = MAX(p->temp_bytes, g->temp_bytes);
    const op_list *lists[] = { &g->fwd, &g->bwd };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            const prog_op *o = &lists[k]->op[i];
            if (op_flags(o->op) & OPF_EXTERN) continue;
            op_call c = call_of(g, o, NULL);
            TRY(ops_check(p->backend, &c));
            p->work_bytes = MAX(p->work_bytes, ops_workspace(p->backend, &c, p->threads));
        }
    return OK;
}

/* Blocks that run forward again, but for the last segment of them: the first n. */
static int blocks_rerun(const chain *c) { return c->keep_every ? c->layers - c->keep_last : 0; }
static int segments(const chain *c) {
    return c->keep_every ? (blocks_rerun(c) + c->keep_every - 1) / c->keep_every : 0;
}
/* Blocks of a segment take the slots of those of another; the rest have their own, behind. */
static int slot_of(const chain *c, int layer) {
    int rest = blocks_rerun(c);
    return layer < rest ? layer % c->keep_every : layer - rest + MIN(c->keep_every, rest);
}
static int slots(const chain *c) { return slot_of(c, c->layers); }

int chain_order(const chain *c, instr **out) {
    int L = c->layers, keep = c->keep_every, n = 0;
    instr *list = *out = mem_alloc((size_t)(4 * L + 8) * sizeof *list);
    for (int i = 0; i <= L + 1; i++) list[n++] = (instr){ RUN_FWD, i };
    if (c->first->mode != PROG_TRAIN) return n;
    for (int l = L - 1; l >= 0; l--) {
        int s = keep ? l / keep : 0;
        bool segment_end = s < segments(c) - 1 && l % keep == keep - 1;
        if (segment_end) /* the last one's values still lie in the slots */
            for (int f = s * keep; f <= l; f++)
                list[n++] =
                    (instr){ f == l ? RUN_FWD_SAVES : RUN_FWD, f == s * keep ? L + 2 + s : f + 1 };
        list[n++] = (instr){ RUN_BWD, l + 1 };
    }
    list[n++] = (instr){ RUN_BWD, 0 };
    return n;
}

prog *chain_program(const chain *c, int at) {
    return at == 0 ? c->first : at == c->layers + 1 ? c->last : c->block;
}

static void add_instances(chain_plan *k) {
    const chain *c = &k->c;
    int L = c->layers;
    k->insts = L + 2 + segments(c);
    k->inst = mem_alloc((size_t)k->insts * sizeof *k->inst);
    for (int i = 0; i < k->insts; i++) {
        int layer = i == 0 || i == L + 1 ? -1 : i <= L ? i - 1 : (i - L - 2) * c->keep_every;
        k->inst[i] = (instance){ chain_program(c, i), layer, NULL };
    }
    k->instrs = chain_order(c, &k->list);
}

static size_t block_input_bytes(const prog *p) {
    return p->block_input == VAL_NONE ? 0 : align_up(val_bytes(&p->val[p->block_input]), ALIGN);
}

err plan_chain(plan *p, const chain *c, bucket_finder find, void *ctx, int *which) {
    mem_reserve((void **)&p->chain, &p->chain_cap, p->chains, sizeof *p->chain);
    chain_plan *k = &p->chain[p->chains];
    *k = (chain_plan){ .c = *c, .find = find, .find_ctx = ctx, .saved = -1, .block_inputs = -1 };
    prog *all[] = { c->first, c->block, c->last };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        TRY(measure(p, all[i]));
        for (val v = 0; v < all[i]->vals; v++)
            if (all[i]->val[v].cls == VC_INPUT) add_input(p, &all[i]->val[v], c->layers);
    }
    const prog_val *res = &c->block->val[c->block->res_in];
    k->res_bytes = align_up(val_bytes(res), ALIGN);
    k->delta_bytes = align_up(val_bytes(&c->block->val[c->block->delta_in]), ALIGN);
    k->slot_bytes = c->block->saved_bytes;
    bool train = c->first->mode == PROG_TRAIN;
    if (train) {
        BUG_IF(c->first->saved_bytes || c->last->saved_bytes); /* only blocks save */
        k->saved = plan_region(p, "saved", k->slot_bytes * (size_t)slots(c));
        if (c->keep_every)
            k->block_inputs =
                plan_region(p, "block inputs", block_input_bytes(c->block) * (size_t)segments(c));
    }
    /* two of each, taken in turn: residual, delta, and in training the gradient */
    k->residual = plan_region(p, "residual", 2 * (k->res_bytes * (train ? 2 : 1) + k->delta_bytes));
    k->result = plan_region(p, "result", val_bytes(&c->last->val[c->last->result]));
    add_instances(k);
    *which = p->chains++;
    return OK;
}

/* ---- addresses --------------------------------------------------------------------------- */
static char *residual_at(const plan *p, const chain_plan *k, int what, int turn) {
    size_t sizes[] = { k->res_bytes, k->delta_bytes, k->res_bytes }, at = 0;
    for (int i = 0; i < what; i++) at += 2 * sizes[i];
    return (char *)plan_data(p, k->residual) + at + (size_t)(turn & 1) * sizes[what];
}
enum { S_RES, S_DELTA, S_GRAD };

static char *saved_at(const plan *p, const chain_plan *k, const instance *in, val v) {
    size_t slot = (size_t)slot_of(&k->c, in->layer);
    return (char *)plan_data(p, k->saved) + slot * k->slot_bytes + in->p->val[v].at;
}

static void *block_input_at(const plan *p, const chain_plan *k, const instance *in) {
    int n = k->c.keep_every;
    if (in->layer >= blocks_rerun(&k->c) || in->layer % n)
        return saved_at(p, k, in, in->p->block_input);
    return (char *)plan_data(p, k->block_inputs) +
           (size_t)(in->layer / n) * block_input_bytes(in->p);
}

/* Where a root value lies, apart from the residual that comes in. */
static void *root_address(const plan *p, const chain_plan *k, const instance *in, int index,
                          val v) {
    const prog_val *x = &in->p->val[v];
    switch (x->cls) {
    case VC_TEMP: return (char *)plan_data(p, p->temp) + x->at;
    case VC_SAVED: return saved_at(p, k, in, v);
    case VC_BLOCK_INPUT: return block_input_at(p, k, in);
    case VC_PARAM: return plan_data(p, k->find(k->find_ctx, x->bucket, in->layer).param);
    case VC_GRAD: return plan_data(p, k->find(k->find_ctx, x->bucket, in->layer).grad);
    case VC_INPUT: {
        char *at = plan_input(p, x->name);
        return at + (x->per_layer ? (size_t)in->layer * val_bytes(x) : 0);
    }
    case VC_BOUNDARY:
        if (v == in->p->grad_in) return residual_at(p, k, S_GRAD, index + 1);
        if (v == in->p->grad_out) return residual_at(p, k, S_GRAD, index);
        if (v == in->p->result) return plan_data(p, k->result);
        if (v == val_root(in->p, in->p->res_out)) return residual_at(p, k, S_RES, index);
        if (v == val_root(in->p, in->p->delta_out)) return residual_at(p, k, S_DELTA, index);
        return NULL; /* the incoming residual: bound by the caller */
    default: BUG("a value without memory of its own");
    }
}

static void bind(const plan *p, const chain_plan *k, instance *in, int index, void *res,
                 void *delta) {
    prog *g = in->p;
    in->addr = mem_alloc((size_t)g->vals * sizeof *in->addr);
    for (val v = 0; v < g->vals; v++) {
        val r = val_root(g, v);
        char *at = r == g->res_in     ? res
                   : r == g->delta_in ? delta
                                      : root_address(p, k, in, index, r);
        for (val a = v; at && a != r; a = g->val[a].base) at += g->val[a].offset;
        in->addr[v] = at;
    }
}

static void resolve(plan *p, chain_plan *k) {
    void *res = NULL, *delta = NULL;
    for (int i = 0; i < k->c.layers + 2; i++) {
        instance *in = &k->inst[i];
        bind(p, k, in, i, res, delta);
        if (in->p->res_out != VAL_NONE) {
            res = in->addr[in->p->res_out];
            delta = in->p->delta_out == VAL_NONE ? NULL : in->addr[in->p->delta_out];
        }
    }
    for (int i = k->c.layers + 2; i < k->insts; i++) /* restarts: the kept sum, and no delta */
        bind(p, k, &k->inst[i], k->inst[i].layer + 1, block_input_at(p, k, &k->inst[i]), NULL);
}

void plan_join_at(plan *p, int layer) {
    while (p->join_cap <= layer + 1)
        mem_reserve((void **)&p->joins, &p->join_cap, p->join_cap, sizeof *p->joins);
    p->joins[layer + 1] = true;
}

err plan_commit(plan *p) {
    p->temp = plan_region(p, "temp", p->temp_bytes);
    p->work = plan_region(p, "work", p->work_bytes);
    p->step = plan_region(p, "step", p->backend->device ? sizeof(step_block) : 0);
    size_t at = 0, host_at = 0;
    for (int i = 0; i < p->regions; i++) {
        size_t *end = p->region[i].host ? &host_at : &at;
        p->region[i].at = *end;
        *end += align_up(p->region[i].bytes, PLAN_PAGE);
    }
    TRY(arena_map(p, at, host_at));
    for (int i = 0; i < p->chains; i++) resolve(p, &p->chain[i]);
    return OK;
}

void plan_free(plan *p) {
    if (!p) return;
    if (p->backend->device) err_free(p->backend->device->sync(p->backend->context));
    for (int i = 0; i < p->chains; i++) {
        for (int k = 0; k < p->chain[i].insts; k++) free(p->chain[i].inst[k].addr);
        for (size_t k = 0; k < COUNT_OF(p->chain[i].tape); k++)
            exec_tape_drop(p, &p->chain[i].tape[k]);
        free(p->chain[i].inst);
        free(p->chain[i].list);
    }
    free(p->chain);
    free(p->region);
    free(p->joins);
    arena_unmap(p);
    free(p);
}
