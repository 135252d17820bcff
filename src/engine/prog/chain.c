/* A chain's memory: what its instances save and pass on, and the addresses of every value in them.
 *
 *     saved          per slot and block      what backward reads; with recompute, of one segment
 *     block inputs   per slot and segment    from where recompute starts
 *     passed         per slot                what a pipeline stage sends and receives
 *                                            (chunks of a rank whose slots have one size share them)
 *     residual       two of each, in turn    between the programs of a stage
 *     carried        per slot                values that later programs read, and in training their gradients;
 *                                            stages send and receive them there, beside the residual
 *     gathered       per slot of a pool      parameters that are stored in slices (slots.c)
 *     whole grads    per slot of a pool      gradients on their way to the slices
 */
#include "chain_internal.h"
#include "exec_internal.h"
#include "plan_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* ---- adding a chain ---------------------------------------------------------------------- */
static err measure_call(plan *p, const op_call *c, device_queue q) {
    size_t *most = q == QUEUE_UPDATE ? &p->update_work_bytes : &p->work_bytes;
    TRY(ops_check(p->backend, c));
    *most = MAX(*most, ops_workspace(p->backend, c, p->threads));
    return OK;
}

/* Adds a program's needs; refuses what the backend cannot run. */
static err measure_program(plan *p, const prog *g) {
    p->temp_bytes = MAX(p->temp_bytes, g->temp_bytes);
    p->fetches |= prog_fetches(g);
    for (int k = 0; k < PROG_LISTS; k++)
        for (int i = 0; i < g->list[k].n; i++) {
            const prog_op *o = &g->list[k].op[i];
            if (op_flags(o->op) & OPF_EXTERN) continue;
            op_call c = call_of(g, o, NULL);
            TRY(measure_call(p, &c, o->queue));
        }
    return OK;
}

err plan_program(plan *p, prog *g, int layer, int *which) {
    BUG_IF(p->arena);
    TRY(measure_program(p, g));
    p->program = mem_reserve(p->program, &p->program_cap, p->programs, sizeof *p->program);
    p->program[p->programs] = (instance){ .p = g, .layer = layer };
    *which = p->programs++;
    return OK;
}

/* @return how many of the rank's first n blocks read an input; each has a part of it. */
static int blocks_reading(const chain *c, int rank, const char *name, int n) {
    int count = 0;
    tensor shape;
    for (int i = 0; i < c->pipe.chunks; i++) {
        model_chunk u = chain_chunk(c, rank, i);
        for (int l = 0; l < u.layers && u.before + l < n; l++)
            count += prog_input_shape(chain_block(c, u.from + l), name, &shape);
    }
    return count;
}

static err add_programs(plan *p, const chain_plan *k) {
    enum { FIRST, LAST, BEGIN, END, BLOCK };
    prog *all[BLOCK + CHAIN_KINDS] = { k->c.first, k->c.last, k->c.begin, k->c.end };
    memcpy(all + BLOCK, k->c.block, sizeof k->c.block);
    bool used[COUNT_OF(all)] = { [BEGIN] = k->c.begin != NULL, [END] = k->c.end != NULL };
    for (int i = 0; i < k->c.pipe.chunks; i++) {
        const model_chunk *u = &k->chunk[i].k;
        used[FIRST] |= u->first;
        used[LAST] |= u->last;
        for (int l = u->from; l < u->from + u->layers; l++)
            used[BLOCK + (k->c.kind ? k->c.kind[l] : 0)] = true;
    }
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (!used[i]) continue;
        TRY(measure_program(p, all[i]));
        for (val v = 0; v < all[i]->vals; v++) {
            const prog_val *x = &all[i]->val[v];
            if (x->cls != VC_INPUT) continue;
            int here = blocks_reading(&k->c, mesh_stage(&p->m), x->name, k->c.layers);
            plan_add_input(p, x, x->all_layers ? k->c.layers : here);
        }
    }
    return OK;
}

/* The blocks of all segments share the same slots; blocks outside segments have their own, after those. */
static int saved_index(const chain *c, const model_chunk *k, int block) {
    int rest = chunk_rerun(c, k);
    return block < rest ? block % c->segment_slots : block - rest + MIN(c->segment_slots, rest);
}

static size_t block_input_bytes(const prog *p) {
    return p->block_input == VAL_NONE ? 0 : align_up(val_bytes(&p->val[p->block_input]), ALIGN);
}

/* @return the bytes of the saved values of the chunk's first n slots. Blocks that share a slot may be of different kinds. */
static size_t chunk_saved_bytes(const chain *c, const model_chunk *k, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        size_t most = 0;
        for (int block = 0; block < k->layers; block++)
            if (saved_index(c, k, block) == i)
                most = MAX(most, chain_block(c, k->from + block)->saved_bytes);
        sum += most;
    }
    return sum;
}

/* @return n: microbatches in flight share the first n slots, since backward recomputes the values of every segment. */
static int shared_slots(const chain *c, const model_chunk *k) {
    return chain_reruns_last(c) ? MIN(c->segment_slots, chunk_rerun(c, k)) : 0;
}

static size_t shared_bytes(const chain *c, const model_chunk *k) {
    return chunk_saved_bytes(c, k, shared_slots(c, k));
}

/* All chunks of a rank share it: a task ends before the next begins. */
static void add_shared(plan *p, chain_plan *k) {
    size_t most = 0;
    for (int i = 0; i < k->c.pipe.chunks; i++)
        most = MAX(most, shared_bytes(&k->c, &k->chunk[i].k));
    k->shared = most ? plan_region(p, "saved", most) : -1;
}

static bool is_training(const chain_plan *k) { return k->c.first->mode == PROG_TRAIN; }
static bool splits_backward(const chain_plan *k) { return pipeline_splits_backward(&k->c.pipe); }
static bool is_pipeline(const chain_plan *k) { return k->c.pipe.ranks > 1; }

/* Whether the sum that a stage receives has memory of its own: in training its first block's input is kept anyway. */
static bool keeps_entry(const chain_plan *k, const model_chunk *u) {
    return !is_training(k) || u->layers == 0;
}

/* Lists the values that a stage passes on, in order: the sum it sends; in training the gradients, those between all
 * its programs where weight tasks read them later, else those at its top and bottom; and the sum it
 * receives, unless that is its first block's input. */
static int passed_values(const chain_plan *k, const model_chunk *u) {
    int gradients = !is_training(k) ? 0 : splits_backward(k) ? u->layers + 1 : 2;
    return 1 + gradients + keeps_entry(k, u);
}

static size_t passed_bytes(const chain_plan *k, const model_chunk *u) {
    return is_pipeline(k) ? k->res_bytes * (size_t)passed_values(k, u) : 0;
}

/* Bytes that a slot's blocks save until backward and, behind them, the program before the blocks, which is never run
 * again, so that it has its own. */
static size_t slot_saved_bytes(const chain *c, const model_chunk *k) {
    size_t first = k->first ? align_up(c->first->saved_bytes, ALIGN) : 0;
    return chunk_saved_bytes(c, k, saved_index(c, k, k->layers)) + first - shared_bytes(c, k);
}

int chain_slot_owner(const chain *c, int rank, int chunk) {
    const model_chunk mine = chain_chunk(c, rank, chunk);
    for (int i = 0; i < chunk; i++) {
        const model_chunk k = chain_chunk(c, rank, i);
        if (slot_saved_bytes(c, &k) == slot_saved_bytes(c, &mine) &&
            chunk_segments(c, &k) == chunk_segments(c, &mine) && !k.layers == !mine.layers)
            return i;
    }
    return chunk;
}

/* @return how many values programs of the chain carry: those from 0 on. */
static int carried_values(const chain *c) {
    int n = 0;
    for (int i = 0; i < CARRIES; i++) {
        bool left = c->first->carry_out[i] != VAL_NONE;
        for (int l = 0; l < c->layers; l++) left |= chain_block(c, l)->carry_out[i] != VAL_NONE;
        if (left) n = i + 1;
    }
    return n;
}

/* @return the bytes of a slot: of the values and, in training, of their gradients behind them. */
static size_t carried_bytes(const chain_plan *k) {
    return k->res_bytes * (size_t)carried_values(&k->c) * (is_training(k) ? 2 : 1);
}

/* Chains that evaluate run one after the other and leave nothing in these regions: all have those of the first one.
 * @param first its region; -1: there is none. @return the region. */
static int eval_region(plan *p, int first, const char *name, size_t bytes) {
    if (first < 0) return plan_region(p, name, bytes);
    p->region[first].bytes = MAX(p->region[first].bytes, bytes);
    return first;
}

/* @return the first chain of the plan that evaluates, where k does too and without a pipeline; NULL: k has regions of its own. */
static const chain_plan *first_eval(const plan *p, const chain_plan *k) {
    for (int i = 0; i < p->chains && k->c.first->mode == PROG_EVAL && !is_pipeline(k); i++)
        if (p->chain[i].c.first->mode == PROG_EVAL) return &p->chain[i] == k ? NULL : &p->chain[i];
    return NULL;
}

static void add_regions(plan *p, const chain_plan *k, chunk_plan *u) {
    const chain_plan *first = first_eval(p, k);
    size_t n = (size_t)u->slots, segments = (size_t)chunk_segments(&k->c, &u->k);
    if (is_training(k)) {
        u->slot_bytes = slot_saved_bytes(&k->c, &u->k);
        u->saved = plan_region(p, "saved", n * u->slot_bytes);
        if (k->c.keep_every)
            u->block_inputs =
                plan_region(p, "block inputs", n * block_input_bytes(k->c.block[0]) * segments);
    }
    if (is_pipeline(k)) u->passed = plan_region(p, "pipeline", n * passed_bytes(k, &u->k));
    if (carried_bytes(k))
        u->carried =
            eval_region(p, first ? first->chunk->carried : -1, "carried", n * carried_bytes(k));
}

/* @param owner of its slots: itself, or a chunk that was added before. */
static void add_chunk(plan *p, const chain_plan *k, chunk_plan *u, const chunk_plan *owner,
                      int slots) {
    size_t n = (size_t)slots;
    u->slots = slots;
    u->saved = owner == u ? -1 : owner->saved;
    u->block_inputs = owner == u ? -1 : owner->block_inputs;
    u->passed = owner == u ? -1 : owner->passed;
    u->carried = owner == u ? -1 : owner->carried;
    u->slot_bytes = owner->slot_bytes;
    if (owner == u) add_regions(p, k, u);
    u->inputs = mem_alloc(n * sizeof *u->inputs);
    u->ticket = mem_alloc(n * sizeof *u->ticket);
    u->inst = mem_alloc(n * sizeof *u->inst);
    u->insts = u->k.layers + 2 + chunk_segments(&k->c, &u->k);
    for (int s = 0; s < slots; s++) {
        u->inst[s] = mem_alloc((size_t)u->insts * sizeof **u->inst);
        for (int i = 0; i < u->insts; i++) {
            int n_blocks = u->k.layers;
            int block = i <= n_blocks ? i - 1 : (i - n_blocks - 2) * k->c.keep_every;
            bool outside = i == 0 || i == n_blocks + 1;
            u->inst[s][i] = (instance){ chunk_program(&k->c, &u->k, i),
                                        outside ? -1 : u->k.from + block, NULL, 0, 0 };
        }
    }
}

/* @return where the slots end. */
static size_t add_pool(slot_memory *s, int slots, size_t bytes, size_t at) {
    *s = (slot_memory){ .slots = slots, .at = at, .bytes = bytes };
    s->comms = mem_alloc((size_t)slots * sizeof *s->comms);
    for (int i = 0; i < slots; i++) {
        enum { MOST_BUCKETS = 32 }; /* of a program */
        s->comms[i].cap = MOST_BUCKETS;
        s->comms[i].ring = mem_alloc(MOST_BUCKETS * sizeof *s->comms[i].ring);
    }
    return at + (size_t)slots * bytes;
}

static void drop_pool(slot_memory *s) {
    for (int i = 0; s->comms && i < s->slots; i++) free(s->comms[i].ring);
    free(s->comms);
}

static void add_pools(plan *p, chain_plan *k, const step_list *l) {
    const prog *all[2 + CHAIN_KINDS] = { k->c.first, k->c.last };
    for (int i = 0; i < CHAIN_KINDS; i++) all[2 + i] = k->c.block[i];
    size_t gathered[POOLS] = { 0 }, whole[POOLS] = { 0 };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        slot_pool which = i < 2 ? POOL_OUTER : POOL_BLOCKS;
        if (!all[i]) continue;
        gathered[which] = MAX(gathered[which], all[i]->gathered_bytes);
        whole[which] = MAX(whole[which], all[i]->whole_grad_bytes);
    }
    size_t gathered_end = 0, whole_end = 0;
    for (int i = 0; i < POOLS; i++) {
        gathered_end = add_pool(&k->gathered[i], l->gathered[i], gathered[i], gathered_end);
        whole_end = add_pool(&k->whole_grad[i], l->whole_grads[i], whole[i], whole_end);
    }
    p->gathered_bytes = MAX(p->gathered_bytes, gathered_end);
    p->whole_grad_bytes = MAX(p->whole_grad_bytes, whole_end);
}

chain plan_chain_as_run(const plan *p, const chain *c) {
    chain out = *c;
    out.beside = p->awaits;
    out.besides = p->awaits_cap;
    return out;
}

/* Finds or makes the list for this number of microbatches. */
static err add_list(const plan *p, chain_plan *k, int micros, step_list **out) {
    for (int i = 0; i < k->lists; i++)
        if (k->list[i].micros == micros) {
            *out = &k->list[i];
            return OK;
        }
    k->list = mem_reserve(k->list, &k->list_cap, k->lists, sizeof *k->list);
    *out = &k->list[k->lists];
    int rank = mesh_stage(&p->m);
    k->c = plan_chain_as_run(p, &k->c);
    TRY(step_list_make(&k->c, rank, micros, *out));
    k->lists++;
    return step_list_check_slots(&k->c, rank, *out);
}

err chain_steps(const plan *p, chain_plan *k, int micros, const step_list **out) {
    step_list *l;
    TRY(add_list(p, k, micros, &l));
    for (int i = 0; i < k->c.pipe.chunks; i++) BUG_IF(l->slots[i] > k->chunk[i].slots);
    for (int i = 0; i < POOLS; i++)
        BUG_IF(l->gathered[i] > k->gathered[i].slots || l->whole_grads[i] > k->whole_grad[i].slots);
    BUG_IF(l->inputs > p->input_slots);
    *out = l;
    return OK;
}

err plan_chain(plan *p, const chain *c, bucket_finder find, void *ctx, int *which) {
    p->chain = mem_reserve(p->chain, &p->chain_cap, p->chains, sizeof *p->chain);
    chain_plan *k = &p->chain[p->chains];
    *k = (chain_plan){ .c = chain_normal(c), .find = find, .find_ctx = ctx };
    if (pipeline_splits_backward(&k->c.pipe) && k->c.keep_every)
        return err_hint(ERR("the schedule ZeroBubble keeps what weight gradients read, which "
                            "recomputing blocks would overwrite"),
                        "use activation_checkpoint.mode=none or selective, or the schedule 1F1B");
    int rank = mesh_stage(&p->m);
    BUG_IF(k->c.pipe.ranks != mesh_stages(&p->m));
    *which = p->chains++; /* freed with the plan from here on */
    k->chunk = mem_alloc((size_t)k->c.pipe.chunks * sizeof *k->chunk);
    for (int i = 0; i < k->c.pipe.chunks; i++) k->chunk[i].k = chain_chunk(&k->c, rank, i);
    step_list *l;
    TRY(add_list(p, k, k->c.micros, &l));
    p->input_slots = MAX(p->input_slots, l->inputs);
    TRY(add_programs(p, k));
    const prog *block = k->c.block[0]; /* what passes between blocks is alike */
    k->res_bytes = align_up(val_bytes(&block->val[block->res_in]), ALIGN);
    k->delta_bytes = align_up(val_bytes(&block->val[block->delta_in]), ALIGN);
    if (is_training(k)) BUG_IF(c->last->saved_bytes); /* backward follows in the same list */
    for (int i = 0; i < k->c.pipe.chunks; i++)
        add_chunk(p, k, &k->chunk[i], &k->chunk[chain_slot_owner(&k->c, rank, i)], l->slots[i]);
    add_shared(p, k);
    add_pools(p, k, l);
    for (int i = 0; is_pipeline(k) && i < k->c.pipe.chunks; i++) {
        if (k->chunk[i].k.last) continue;
        op_call sum = sum_passed(p, k, &k->chunk[i], -1);
        TRY(measure_call(p, &sum, QUEUE_COMPUTE));
    }
    /* two of each, taken in turn: residual, delta, and in training the gradient */
    size_t each = k->res_bytes * (is_training(k) ? 2 : 1) + k->delta_bytes;
    int states = (c->layers + 1) * block->set.buckets;
    while (p->params_cap < states)
        p->params = mem_reserve(p->params, &p->params_cap, p->params_cap, sizeof *p->params);
    const chain_plan *first = first_eval(p, k);
    k->residual = eval_region(p, first ? first->residual : -1, "residual", 2 * each);
    k->result = plan_region(p, "result", val_bytes(&c->last->val[c->last->result]));
    if (c->last->top1 != VAL_NONE)
        k->top1 = plan_region(p, "top1", val_bytes(&c->last->val[c->last->top1]));
    return OK;
}

/* ---- addresses --------------------------------------------------------------------------- */
enum { S_RES, S_DELTA, S_GRAD };
static char *residual_at(const plan *p, const chain_plan *k, int what, int turn) {
    size_t sizes[] = { k->res_bytes, k->delta_bytes, k->res_bytes }, at = 0;
    for (int i = 0; i < what; i++) at += 2 * sizes[i];
    return (char *)plan_data(p, k->residual) + at + (size_t)(turn & 1) * sizes[what];
}

/* @return the address of the i-th value that a stage passes on. */
static char *passed_at(const plan *p, const chain_plan *k, const chunk_plan *u, int slot, int i) {
    return (char *)plan_data(p, u->passed) + (size_t)slot * passed_bytes(k, &u->k) +
           (size_t)i * k->res_bytes;
}

/* @return the gradient between instances i - 1 and i. Gradients that outlive a task have memory of their own. */
static char *gradient_at(const plan *p, const chain_plan *k, const chunk_plan *u, int slot, int i) {
    bool top = i == u->k.layers + 1, bottom = i == 1 && !u->k.first;
    if (is_pipeline(k) && splits_backward(k)) return passed_at(p, k, u, slot, i);
    if (is_pipeline(k) && top) return passed_at(p, k, u, slot, 1);
    if (is_pipeline(k) && bottom) return passed_at(p, k, u, slot, 2);
    return residual_at(p, k, S_GRAD, i);
}

typedef struct spot { /* whose addresses are being resolved */
    const plan *p;
    const chain_plan *k;
    const chunk_plan *u;
    int slot;
    const instance *in;
    int index; /* of its program in the chunk */
} spot;

static int spot_block(const spot *s) { return s->in->layer - s->u->k.from; }

static char *saved_at(const spot *s, val v) {
    const chain *c = &s->k->c;
    int block = s->in->layer < 0 ? s->u->k.layers : spot_block(s);
    int index = saved_index(c, &s->u->k, block);
    size_t before = chunk_saved_bytes(c, &s->u->k, index) + s->in->p->val[v].at;
    if (index < shared_slots(c, &s->u->k)) return (char *)plan_data(s->p, s->k->shared) + before;
    return (char *)plan_data(s->p, s->u->saved) + (size_t)s->slot * s->u->slot_bytes + before -
           shared_bytes(c, &s->u->k);
}

static char *block_input_at(const spot *s) {
    const chain *c = &s->k->c;
    int block = spot_block(s), n = c->keep_every;
    if (block >= chunk_rerun(c, &s->u->k) || block % n) return saved_at(s, s->in->p->block_input);
    size_t i = (size_t)(s->slot * chunk_segments(c, &s->u->k) + block / n);
    return (char *)plan_data(s->p, s->u->block_inputs) + i * block_input_bytes(s->in->p);
}

static char *carried_in_slot(const plan *p, const chain_plan *k, const chunk_plan *u, int slot,
                             stage_pass what, int which) {
    int i = which + (what == PASS_GRADIENT ? carried_values(&k->c) : 0);
    return (char *)plan_data(p, u->carried) + (size_t)slot * carried_bytes(k) +
           (size_t)i * k->res_bytes;
}

/* @return NULL for a gradient that no program has left yet: none behind this one reads the value. */
static char *carried_at(const spot *s, val v) {
    const prog *g = s->in->p;
    int next = s->u->k.from + s->index; /* the first block, or the last program, behind it */
    for (int i = 0; i < CARRIES; i++) {
        char *gradient = NULL;
        if (v == g->carry_in[i] || v == val_root(g, g->carry_out[i]))
            return carried_in_slot(s->p, s->k, s->u, s->slot, PASS_RESIDUAL, i);
        if (is_training(s->k))
            gradient = carried_in_slot(s->p, s->k, s->u, s->slot, PASS_GRADIENT, i);
        if (v == g->carry_grad_out[i]) return gradient;
        if (v == g->carry_grad_in[i])
            return chain_reads_carried(&s->k->c, i, next) ? gradient : NULL;
    }
    BUG("a carried value that no program carries");
}

/* @return the address of a root value other than the residual input. */
static void *root_address(const spot *s, val v) {
    const plan *p = s->p;
    const prog *g = s->in->p;
    const prog_val *x = &g->val[v];
    switch (x->cls) {
    case VC_TEMP: return (char *)plan_data(p, p->temp) + x->at;
    case VC_SAVED: return saved_at(s, v);
    case VC_BLOCK_INPUT: return block_input_at(s);
    case VC_CARRIED: return carried_at(s, v);
    case VC_PARAM: return plan_data(p, s->k->find(s->k->find_ctx, x->bucket, s->in->layer).param);
    case VC_GRAD: return plan_data(p, s->k->find(s->k->find_ctx, x->bucket, s->in->layer).grad);
    case VC_GATHERED: /* in slot 0 at first */
        return (char *)plan_data(p, p->gathered) + s->k->gathered[pool_of(&s->u->k, s->index)].at +
               x->at;
    case VC_WHOLE_GRAD:
        return (char *)plan_data(p, p->whole_grad) +
               s->k->whole_grad[pool_of(&s->u->k, s->index)].at + x->at;
    case VC_INPUT: {
        char *at = plan_input(p, x->name, 0);
        if (!x->per_layer) return at;
        int layer = s->in->layer;
        if (!x->all_layers)
            layer = blocks_reading(&s->k->c, mesh_stage(&p->m), x->name,
                                   s->u->k.before + spot_block(s));
        return at + (size_t)layer * val_bytes(x);
    }
    case VC_BOUNDARY:
        if (v == g->grad_in) return gradient_at(p, s->k, s->u, s->slot, s->index + 1);
        if (v == g->grad_out) return gradient_at(p, s->k, s->u, s->slot, s->index);
        if (v == g->result) return plan_data(p, s->k->result);
        if (v == g->top1) return plan_data(p, s->k->top1);
        if (v == val_root(g, g->res_out)) return residual_at(p, s->k, S_RES, s->index);
        if (v == val_root(g, g->delta_out)) return residual_at(p, s->k, S_DELTA, s->index);
        return NULL; /* the incoming residual: bound by the caller */
    default: BUG("a value without memory of its own");
    }
}

static void bind_instance(const spot *s, instance *in, void *res, void *delta) {
    prog *g = in->p;
    in->addr = mem_alloc((size_t)g->vals * sizeof *in->addr);
    for (val v = 0; v < g->vals; v++) {
        val r = val_root(g, v);
        char *at = r == g->res_in ? res : r == g->delta_in ? delta : root_address(s, r);
        for (val a = v; at && a != r; a = g->val[a].base) at += g->val[a].offset;
        in->addr[v] = at;
    }
}

/* @return the address of the sum that a chunk received from the stage before it. */
static char *entry_at(const plan *p, const chain_plan *k, const chunk_plan *u, int slot) {
    const spot s = { p, k, u, slot, &u->inst[slot][1], 1 };
    if (keeps_entry(k, &u->k)) return passed_at(p, k, u, slot, passed_values(k, &u->k) - 1);
    return block_input_at(&s);
}

static void resolve_slot(const plan *p, const chain_plan *k, chunk_plan *u, int slot) {
    int n = u->k.layers;
    void *res = u->k.first ? NULL : entry_at(p, k, u, slot), *delta = NULL;
    for (int i = 0; i < u->insts; i++) {
        instance *in = &u->inst[slot][i];
        spot s = { p, k, u, slot, in, i <= n + 1 ? i : in->layer - u->k.from + 1 };
        if (!in->p) continue;
        if (i > n + 1) res = block_input_at(&s), delta = NULL; /* restarts: the kept sum */
        bind_instance(&s, in, res, delta);
        if (in->p->res_out == VAL_NONE) continue;
        res = in->addr[in->p->res_out];
        delta = in->p->delta_out == VAL_NONE ? NULL : in->addr[in->p->delta_out];
    }
}

void program_resolve(const plan *p, instance *in) {
    const prog *g = in->p;
    in->addr = mem_alloc((size_t)g->vals * sizeof *in->addr);
    for (val v = 0; v < g->vals; v++) {
        val r = val_root(g, v);
        const prog_val *x = &g->val[r];
        char *at = NULL; /* of the state: bound when it runs */
        if (x->cls == VC_TEMP) at = (char *)plan_data(p, p->temp) + x->at;
        if (x->cls == VC_REGION) at = (char *)plan_data(p, x->region) + x->offset;
        for (val a = v; at && a != r; a = g->val[a].base) at += g->val[a].offset;
        in->addr[v] = at;
    }
}

/* A program around a step: it has nothing but inputs. */
static void resolve_around(const plan *p, const chain_plan *k, prog *g, instance *in) {
    const spot s = { p, k, &k->chunk[0], 0, in, 0 };
    *in = (instance){ .p = g, .layer = -1 };
    if (g) bind_instance(&s, in, NULL, NULL);
}

void chain_resolve(plan *p, chain_plan *k) {
    resolve_around(p, k, k->c.begin, &k->begin);
    resolve_around(p, k, k->c.end, &k->end);
    for (int c = 0; c < k->c.pipe.chunks; c++)
        for (int s = 0; s < k->chunk[c].slots; s++) resolve_slot(p, k, &k->chunk[c], s);
}

void chain_bind_inputs(const plan *p, chunk_plan *u, int slot, int inputs) {
    if (u->inputs[slot] == inputs) return;
    for (int i = 0; i < u->insts; i++) {
        const instance *in = &u->inst[slot][i];
        for (val v = 0; in->p && v < in->p->vals; v++) {
            const prog_val *x = &in->p->val[val_root(in->p, v)];
            if (x->cls != VC_INPUT) continue;
            ptrdiff_t by = (char *)plan_input(p, x->name, inputs) -
                           (char *)plan_input(p, x->name, u->inputs[slot]);
            in->addr[v] = (char *)in->addr[v] + by;
        }
    }
    u->inputs[slot] = inputs;
}

/* Moves the values of a class in an instance from one slot to another. */
static void move_class(const instance *in, val_class cls, ptrdiff_t by) {
    for (val v = 0; by && v < in->p->vals; v++)
        if (in->p->val[val_root(in->p, v)].cls == cls) in->addr[v] = (char *)in->addr[v] + by;
}

void chain_bind_slots(const chain_plan *k, const instr *i) {
    const chunk_plan *u = &k->chunk[i->chunk];
    instance *in = &u->inst[i->slot][i->instance];
    slot_pool which = pool_of(&u->k, i->instance);
    if (i->gathered >= 0) {
        int by = i->gathered - in->gathered;
        move_class(in, VC_GATHERED, by * (ptrdiff_t)k->gathered[which].bytes);
        in->gathered = i->gathered;
    }
    if (i->whole_grad >= 0) {
        int by = i->whole_grad - in->whole_grad;
        move_class(in, VC_WHOLE_GRAD, by * (ptrdiff_t)k->whole_grad[which].bytes);
        in->whole_grad = i->whole_grad;
    }
}

/* ---- between stages ------------------------------------------------------------------------ */
static tensor residual_tensor(const chain_plan *k, void *data) {
    const prog *g = k->c.block[0];
    tensor t = val_tensor(&g->val[g->res_in]);
    t.data = data;
    return t;
}

tensor passed_in(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                 int slot) {
    return residual_tensor(k, what == PASS_RESIDUAL ? entry_at(p, k, u, slot)
                                                    : gradient_at(p, k, u, slot, u->k.layers + 1));
}

tensor passed_out(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                  int slot) {
    return residual_tensor(k, what == PASS_RESIDUAL ? passed_at(p, k, u, slot, 0)
                                                    : gradient_at(p, k, u, slot, 1));
}

tensor passed_carried(const plan *p, const chain_plan *k, const chunk_plan *u, stage_pass what,
                      int slot, int which) {
    return residual_tensor(k, carried_in_slot(p, k, u, slot, what, which));
}

op_call sum_passed(const plan *p, const chain_plan *k, const chunk_plan *u, int slot) {
    const prog *g = chunk_program(&k->c, &u->k, u->k.layers); /* the embedding, without blocks */
    void *const *addr = slot < 0 ? NULL : u->inst[slot][u->k.layers].addr;
    op_call c = { .op = OP_ADD };
    c.in[0] = residual_tensor(k, addr ? addr[g->res_out] : NULL);
    if (g->delta_out != VAL_NONE) {
        c.in[1] = val_tensor(&g->val[g->delta_out]);
        c.in[1].data = addr ? addr[g->delta_out] : NULL;
    }
    c.out[0] = residual_tensor(k, addr ? passed_at(p, k, u, slot, 0) : NULL);
    return c;
}

void chain_free(plan *p, chain_plan *k) {
    for (int c = 0; k->chunk && c < k->c.pipe.chunks; c++) {
        chunk_plan *u = &k->chunk[c];
        for (int s = 0; u->inst && s < u->slots; s++) {
            for (int i = 0; i < u->insts; i++) free(u->inst[s][i].addr);
            free(u->inst[s]);
        }
        free(u->inst);
        free(u->inputs);
        free(u->ticket);
    }
    free(k->begin.addr);
    free(k->end.addr);
    free(k->chunk);
    for (int i = 0; i < POOLS; i++) {
        drop_pool(&k->gathered[i]);
        drop_pool(&k->whole_grad[i]);
    }
    for (int i = 0; i < k->lists; i++) step_list_free(&k->list[i]);
    free(k->list);
    for (size_t i = 0; i < COUNT_OF(k->tape); i++) exec_tape_drop(p, &k->tape[i]);
    for (size_t i = 0; i < COUNT_OF(k->end_tape); i++) exec_tape_drop(p, &k->end_tape[i]);
}
