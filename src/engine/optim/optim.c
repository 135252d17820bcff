/* The optimizer: which parameters one call updates, where their state is stored, and the step. */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>

#include "ops/block8.h"

/* ---- ranges ------------------------------------------------------------------------------ */
bool padding_is_zero(const optimizer *o) { return !model_keeps_slices(o->m, HOLDS_GRADS); }

/* Whether one call can update both: the same rule with the same numbers, whatever the elements are. */
static bool same_numbers(const op_attr *a, const op_attr *b) {
    return a->update.lr_mul == b->update.lr_mul && a->update.decay == b->update.decay &&
           a->update.beta1 == b->update.beta1 && a->update.beta2 == b->update.beta2 &&
           a->update.eps == b->update.eps && a->update.momentum == b->update.momentum &&
           a->update.l2 == b->update.l2 && a->update.nesterov == b->update.nesterov &&
           a->update.decay_by == b->update.decay_by && a->update.cautious == b->update.cautious;
}

static bool can_extend(const optimizer *o, const update_range *s, const update_range *next) {
    const rule_states *states = &o->param[s->param].states;
    int64_t gap = next->at - (s->at + s->count);
    if (s->r != next->r || !same_numbers(&s->attr, &next->attr)) return false;
    /* Muon's other ops take elements one by one, and its matrices from where they are */
    bool by_param = s->r->kind != BY_ELEMENT && s->r->kind != BY_ORTHOGONAL;
    if (by_param || (gap && !padding_is_zero(o))) return false;
    if (s->b.master_dt != DT_F32) return false; /* rounded by parameter */
    for (int k = 0; k < states->n; k++)         /* a block belongs to one parameter */
        if (state_in_bytes(&states->state[k]) && (next->at - s->at) % BLOCK8) return false;
    return true;
}

/* Adds a parameter to the range before it where one call can update both, else to a new one. */
static void add_param(optimizer *o, int param, const bucket_view *b, const param_range *z,
                      bool first) {
    const model_param *q = model_param_at(o->m, param);
    update_range *s = o->ranges ? &o->range[o->ranges - 1] : NULL;
    int64_t n = z->to - z->from;
    update_range own = { .r = o->param[param].r, .b = *b, .at = z->at, .count = n, .param = param };
    own.attr = rule_attr(&o->s, &o->groups.group[o->groups.of[param]], model_conf(o->m), q);
    own.attr.update.site = (uint32_t)hash_str(q->name);
    own.attr.update.first = z->from;
    own.attr.update.base = model_global_index(o->m, param, 0);
    own.attr.update.cols = q->local[1];
    own.attr.update.stride = q->dim[1];
    if (!first && can_extend(o, s, &own)) {
        s->count = z->at + n - s->at;
    } else {
        s = &o->range[o->ranges++];
        *s = own;
    }
    param_update *t = &o->param[param];
    t->range = (int)(s - o->range);
    t->at = z->at - s->at;
    t->count = n;
    t->copies = model_param_copies(o->m, param);
    o->order[o->ordered++] = param;
}

/* A parameter's part of a bucket. */
typedef struct ranged_param {
    int param;
    param_range z;
} ranged_param;

SORT_ORDER(by_bucket_place, ranged_param, RISING(z.at));

/* Returns the first parameter of a layer. Parameters, tens of thousands with experts, are listed layer by layer.
 * @param from the first one of any layer */
static int find_layer(const model *m, int layer, int from) {
    if (model_param_at(m, from)->layer > layer) from = 0;
    while (from < model_params(m) && model_param_at(m, from)->layer != layer) from++;
    BUG_IF(from == model_params(m));
    return from;
}

/* Covers the parameters of each bucket in memory order. */
static void make_ranges(optimizer *o) {
    for (int i = 0; i < o->params; i++) {
        param_update *t = &o->param[i];
        const optim_group *g = &o->groups.group[o->groups.of[i]];
        *t = (param_update){ .r = rule_of(&o->s, g, model_param_at(o->m, i)), .range = -1 };
        bool alike = i > 0 && t->r == t[-1].r; /* of tens of thousands of experts */
        t->states = alike ? t[-1].states : rule_states_of(t->r);
        for (int k = 0; k < MAX_STATES; k++) t->whole[k] = -1;
    }
    ranged_param *list = mem_alloc((size_t)o->params * sizeof *list);
    for (int i = 0, from = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        int n = 0;
        if (b.layer >= 0) from = find_layer(o->m, b.layer, from);
        for (int k = b.layer >= 0 ? from : 0; k < o->params; k++) {
            if (b.layer >= 0 && model_param_at(o->m, k)->layer != b.layer) break;
            list[n].param = k;
            n += model_param_range(o->m, k, &b, &list[n].z);
        }
        sort_array(list, (size_t)n, sizeof *list, by_bucket_place);
        for (int k = 0; k < n; k++) add_param(o, list[k].param, &b, &list[k].z, k == 0);
    }
    free(list);
}

/* ---- memory ------------------------------------------------------------------------------ */
static size_t one_state_bytes(const optimizer *o, const update_range *s, int k) {
    const struct rule_state *t = &o->param[s->param].states.state[k];
    if (state_is_whole(t))
        return (size_t)model_param_at(o->m, s->param)->dim[t->shape == AS_COLS] * sizeof(float);
    return state_in_bytes(t) ? block8_bytes(s->count) : (size_t)s->count * sizeof(float);
}

static size_t range_state_bytes(const optimizer *o, const update_range *s) {
    size_t sum = 0;
    for (int k = 0; k < o->param[s->param].states.n; k++) sum += one_state_bytes(o, s, k);
    return sum;
}

/* Places a share of the state in host memory, as whole ranges: the last layers first, then parameters
 * outside the blocks. */
static void offload_state(optimizer *o) {
    double all = 0, moved = 0;
    for (int i = 0; i < o->ranges; i++) all += (double)range_state_bytes(o, &o->range[i]);
    for (int layer = model_conf(o->m)->layers - 1; layer >= -1; layer--)
        for (int i = 0; i < o->ranges; i++) {
            update_range *s = &o->range[i];
            double own = (double)range_state_bytes(o, s);
            if (s->b.layer != layer) continue;
            if (moved + own / 2 > o->s.offload * all) return;
            s->attr.update.host_state = true;
            moved += own;
        }
}

/* Parameters in host memory are updated there. */
static void offload_params(optimizer *o) {
    for (int i = 0; i < o->ranges; i++) {
        update_range *s = &o->range[i];
        if (!s->b.host) continue;
        s->attr.update.host_params = o->params_on_host = true;
    }
}

/* Decides which layers the next step awaits. It orders the gathers of updated parameters, so it is the same for all ranks,
 * whichever of them have ranges in host memory. */
static void await_updates(optimizer *o) {
    o->on_host = o->s.offload > 0;
    for (int i = 0; i < model_buckets(o->m); i++) o->on_host |= model_bucket(o->m, i).host;
    for (int layer = -1; layer < model_conf(o->m)->layers && o->on_host; layer++)
        plan_await_update(o->p, layer);
}

static void reserve_states(optimizer *o) {
    for (int i = 0; i < o->ranges; i++) {
        update_range *s = &o->range[i];
        const rule_states *states = &o->param[s->param].states;
        for (int k = 0; k < states->n; k++)
            if (!state_is_whole(&states->state[k]))
                s->state[k] = (s->attr.update.host_state ? plan_region_host : plan_region)(
                    o->p, "optimizer", one_state_bytes(o, s, k));
    }
    directions_reserve(o);
    size_t sums = 1 + (size_t)model_conf(o->m)->layers + 1;
    o->sum = plan_region(o->p, "work", sums * 2 * sizeof(float));
}

err optim_new(const optim_settings *s, model *m, plan *p, optimizer **out) {
    group_table groups;
    *out = NULL;
    TRY(rules_check(s, m));
    TRY(groups_resolve(s, m, &groups));
    optimizer *o = mem_alloc(sizeof *o);
    o->s = *s;
    if (!o->s.backend) o->s.backend = ops_cpu(OPS_ISA_BEST);
    o->groups = groups;
    for (int i = 0; i < wd_schedule_count; i++) o->factors.decay[i] = 1;
    o->length_factor = 1;
    o->m = m;
    o->p = p;
    o->mesh = model_lay(m)->mesh;
    o->params = model_params(m);
    o->param = mem_alloc((size_t)o->params * sizeof *o->param);
    o->order = mem_alloc((size_t)o->params * sizeof *o->order);
    o->range = mem_alloc((size_t)o->params * sizeof *o->range);
    make_ranges(o);
    if (s->offload > 0) offload_state(o);
    offload_params(o);
    await_updates(o);
    reserve_states(o);
    err e = optim_record(o);
    if (e) {
        optim_free(o);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = o;
    return OK;
}

void optim_free(optimizer *o) {
    if (!o) return;
    for (size_t i = 0; i < COUNT_OF(o->tape); i++) exec_tape_drop(o->p, &o->tape[i]);
    for (int i = 0; i < PROGRAMS; i++) prog_free(o->program[i]);
    for (size_t i = 0; i < COUNT_OF(o->block_norms); i++) prog_free(o->block_norms[i]);
    for (int i = 0; i < o->ends; i++)
        if (o->end[i].kind == END_BESIDE) prog_free((prog *)o->end[i].p);
    prog_free(o->half_end);
    for (int i = 0; i < o->halves; i++) prog_free((prog *)o->half[i].p);
    free(o->half);
    free(o->end);
    free(o->groups.of);
    free(o->param);
    free(o->order);
    free(o->range);
    free(o);
}

const optim_group *optim_groups(const optimizer *o, int *n) {
    *n = o->groups.groups;
    return o->groups.group;
}

void optim_set_decay_per_token(optimizer *o, double per_token) {
    double ratio = per_token / o->s.decay_per_token;
    if (!(ratio > 0) || !isfinite(ratio)) return; /* decay does not follow the length */
    o->s.decay_per_token = per_token;
    o->length_factor *= ratio;
    for (int i = 0; i < o->groups.groups; i++)
        if (o->groups.group[i].scaled_decay) o->groups.group[i].weight_decay *= ratio;
}

const chain_end *optim_ends(const optimizer *o, int *n) {
    *n = o->ends;
    return o->end;
}

const prog *optim_next_program(const optimizer *o, int *i) {
    while (*i < o->ends) {
        const chain_end *e = &o->end[(*i)++];
        if (e->p && e->kind != END_HALF) return e->p;
    }
    return NULL;
}

/* ---- a step: the norm, the updates, and those that run beside the next step --------------------- */
void optim_set_factors(optimizer *o, const optim_factors *f) { o->factors = *f; }

err optim_begin(optimizer *o, exec *x, double lr, double max_norm) {
    if (!isfinite(lr) || !(max_norm >= 0))
        return ERR("the update got learning rate %g and maximum gradient norm %g", lr, max_norm);
    x->step.update.lr = (float)lr;
    x->step.update.max_norm = (float)max_norm;
    x->step.update.momentum.toward = (float)o->factors.momentum.toward;
    x->step.update.momentum.weight = (float)o->factors.momentum.weight;
    for (int i = 0; i < wd_schedule_count; i++) {
        double by_length = o->factors.decay[i] * o->length_factor;
        x->step.update.decay_less[i] = (float)(1 - o->factors.decay[i]);
        x->step.update.decay_less[wd_schedule_count + i] = (float)(1 - by_length);
    }
    x->step.update.rounding =
        x->step.dropout; /* which the next step changes before this one ends */
    /* the last step's updates read the step block, and change state in host memory */
    if (o->on_host) exec_join(x, QUEUE_COMPUTE, QUEUE_UPDATE);
    if (o->on_host) exec_join(x, QUEUE_COMPUTE, QUEUE_COPY_OUT);
    exec_step(x);
    return OK;
}

err optim_step(optimizer *o, exec *x, double lr, double max_norm) {
    TRY(optim_begin(o, x, lr, max_norm));
    return exec_ends(x, o->end, o->ends, o->tape);
}
