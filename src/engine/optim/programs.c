/* The update, recorded: which ops and collectives a step ends with, on which memory, in which order. The list is
 * made once, before the plan is committed; executor, planner and checker read it like those of the model. */
#include "optim_internal.h"

#include "ops/block8.h"

/* ---- operands ------------------------------------------------------------------------------ */
val record_elements(const optimizer *o, prog *p, int param, region_at in, dtype dt, int64_t at,
                    int64_t n) {
    return prog_region(p, model_param_at(o->m, param)->name, in.region, in.at + at, dt, n,
                       placement_on(parts_over(o, param), PLACE_S(0)));
}

static val record_state_of(const optimizer *o, prog *p, int param, int k) {
    const param_update *t = &o->param[param];
    const struct rule_state *x = &t->states.state[k];
    const model_param *q = model_param_at(o->m, param);
    if (state_is_whole(x))
        return prog_region(p, q->name, t->whole[k], 0, DT_F32, q->dim[x->shape == AS_COLS],
                           (placement){ 0 });
    const update_range *s = &o->range[t->range];
    int64_t n = state_in_bytes(x) ? (int64_t)block8_bytes(s->count) : s->count;
    return record_elements(o, p, s->param, (region_at){ s->state[k], 0 },
                           state_in_bytes(x) ? DT_U8 : DT_F32, 0, n);
}

void record_states(const optimizer *o, prog *p, int param, change_request *c) {
    const rule_states *states = &o->param[param].states;
    for (int k = 0; k < states->n; k++)
        if (states->state[k].op == c->op)
            c->out[states->state[k].out] = record_state_of(o, p, param, k);
}

/* ---- the norm ------------------------------------------------------------------------------ */
bool has_gradient(const optimizer *o, int param) {
    return model_param_at(o->m, param)->role != ROLE_STATE;
}

static grad_run run_of_param(const optimizer *o, int param) {
    const param_update *t = &o->param[param];
    const update_range *s = &o->range[t->range];
    return (grad_run){ s->b.grad.region, s->b.grad.at + s->at + t->at, t->count, t->copies };
}

/* Whether there is nothing but zeros between the gradients of two parameters: not where another rank's
 * slice of the first one's bucket follows. */
static bool zeros_between(const optimizer *o, const grad_run *a, const grad_run *b) {
    bool alone = !model_keeps_slices(o->m, HOLDS_STATE);
    return padding_is_zero(o) && (alone || a->region == b->region);
}

/* Gradients are contiguous in the arena, with less than a page of zeros between them: most of them are one run. */
bool next_grad_run(const optimizer *o, bool (*chosen)(const void *ctx, int param), const void *ctx,
                   int *i, grad_run *out) {
    while (*i < o->ordered && !chosen(ctx, o->order[*i])) ++*i;
    if (*i == o->ordered) return false;
    grad_run last = *out = run_of_param(o, o->order[*i]);
    for (++*i; *i < o->ordered && chosen(ctx, o->order[*i]); ++*i) {
        grad_run next = run_of_param(o, o->order[*i]);
        int64_t apart = (int64_t)plan_offset(o->p, next.region) -
                        (int64_t)plan_offset(o->p, last.region); /* in bytes of the arena */
        int64_t gap = apart / (int64_t)sizeof(float) + next.at - (last.at + last.n);
        if (next.copies != out->copies || gap < 0 || gap * (int64_t)sizeof(float) >= PLAN_PAGE)
            break;
        if (gap && !zeros_between(o, &last, &next)) break;
        out->n += gap + next.n;
        last = next;
    }
    return true;
}

void record_squares(prog *p, val grad, int64_t copies, val sum, bool add) {
    change_request c = change_of(OP_SQNORM);
    c.attr.scale.by = (float)(1.0 / (double)copies);
    c.in[0] = grad;
    c.out[0] = sum;
    c.add = add;
    rec_change(p, c);
}

void record_run_squares(prog *p, const grad_run *r, val sum) {
    record_squares(p, prog_region(p, "grads", r->region, r->at, DT_F32, r->n, (placement){ 0 }),
                   r->copies, sum, true);
}

static bool is_any_gradient(const void *ctx, int param) { return has_gradient(ctx, param); }

val record_sum(const optimizer *o, prog *p, place_kind kind) {
    return prog_region(p, "square sum", o->sum, 0, DT_F32, 2,
                       placement_on(mesh_axes(&o->mesh), (place){ .kind = kind }));
}

void record_zero(prog *p, val x) {
    change_request zero = change_of(OP_ZERO);
    zero.out[0] = x;
    rec_change(p, zero);
}

/* Counts each element of the whole model once, whatever the layout. */
static void record_norm(const optimizer *o, prog *p) {
    val sum = record_sum(o, p, PL_P);
    record_zero(p, sum);
    grad_run r;
    for (int i = 0; next_grad_run(o, is_any_gradient, o, &i, &r);) record_run_squares(p, &r, sum);
    rec_moved(p, sum, mesh_axes(&o->mesh), PLACE_I);
}

/* Records, for metrics, a square sum of gradients or weights for each block and one for parameters outside blocks,
 * stored after that of the norm. */
static void record_block_norms(const optimizer *o, prog *p, param_buffer which) {
    int layers = model_conf(o->m)->layers;
    placement partial = placement_on(mesh_axes(&o->mesh), PLACE_P);
    val sums = prog_region(p, "block norms", o->sum, 2, DT_F32, 2 * (layers + 1), partial);
    record_zero(p, sums);
    for (int i = 0; i < o->ordered; i++) {
        const param_update *t = &o->param[o->order[i]];
        const update_range *s = &o->range[t->range];
        int layer = s->b.layer;
        if (!has_gradient(o, o->order[i])) continue;
        val sum = prog_elements(p, sums, 2 * (layer < 0 ? layers : layer), 1, (int64_t[]){ 2 });
        grad_run r = run_of_param(o, o->order[i]);
        if (which == PARAM_GRAD)
            record_run_squares(p, &r, sum);
        else
            record_squares(p,
                           record_elements(o, p, o->order[i], s->b.master, s->b.master_dt,
                                           s->at + t->at, t->count),
                           t->copies, sum, true);
    }
    rec_moved(p, sums, mesh_axes(&o->mesh), PLACE_I);
}

static void record_clip(const optimizer *o, prog *p) {
    change_request c = change_of(OP_CLIP);
    c.attr.clip.growth_interval = o->s.growth_interval;
    c.in[0] = record_sum(o, p, PL_I);
    c.out[0] = prog_step_state(p);
    rec_change(p, c);
    record_adaptive_clip(o, p);
}

/* ---- updates ------------------------------------------------------------------------------- */
/* Updates of host memory wait for the bus, so they run beside the next step. */
static device_queue queue_of(const update_range *s) {
    bool host = s->attr.update.host_state || s->attr.update.host_params;
    return host && s->r->kind == BY_ELEMENT ? QUEUE_UPDATE : QUEUE_COMPUTE;
}

static void record_range(const optimizer *o, prog *p, const update_range *s) {
    change_request c = change_of(s->r->op);
    c.attr = s->attr;
    c.queue = queue_of(s);
    c.in[0] = record_elements(o, p, s->param, s->b.grad, DT_F32, s->at, s->count);
    record_states(o, p, s->param, &c);
    record_weights(o, p, s, &c);
    rec_change(p, c);
}

void record_weights(const optimizer *o, prog *p, const update_range *s, change_request *c) {
    op_signature sig = op_signature_of(c->op);
    c->out[0] = record_elements(o, p, s->param, s->b.master, s->b.master_dt, s->at, s->count);
    if (s->b.copy.region >= 0)
        c->out[op_find(sig.out, sig.outs, "copy")] =
            record_elements(o, p, s->param, s->b.copy, s->b.dt, s->at, s->count);
}

static void record_update(const optimizer *o, prog *p) {
    for (int i = 0; i < o->ranges; i++)
        if (queue_of(&o->range[i]) == QUEUE_COMPUTE && o->range[i].r->kind == BY_ELEMENT)
            record_range(o, p, &o->range[i]);
    record_directions(o, p);
}

/* ---- programs ------------------------------------------------------------------------------ */
prog *new_update_program(const optimizer *o, const char *name) {
    return prog_new(name, PROG_UPDATE, &o->mesh, &(param_set){ 0 }, &(prog_options){ 0 });
}

static err add_step_end(optimizer *o, end_kind kind, prog *p, int layer) {
    chain_end *e = &o->end[o->ends++];
    *e = (chain_end){ .kind = kind, .p = p, .layer = layer, .stored = o->params_on_host };
    if (!p) return OK;
    TRY(prog_finish(p));
    return plan_program(o->p, p, layer, &e->id);
}

static err record_host_updates(optimizer *o) {
    int layers = model_conf(o->m)->layers;
    for (int layer = -1; layer < layers; layer++) {
        prog *p = NULL;
        for (int i = 0; i < o->ranges; i++) {
            const update_range *s = &o->range[i];
            if (s->b.layer != layer || queue_of(s) != QUEUE_UPDATE) continue;
            if (!p) p = new_update_program(o, "update beside");
            record_range(o, p, s);
        }
        TRY(add_step_end(o, END_BESIDE, p, layer));
    }
    return OK;
}

/* A tied table comes first: both stages have a part of its sum. */
static err add_half_end(optimizer *o) {
    half_tied tied;
    if (model_half_tied(o->m, &tied)) {
        o->end[o->ends] = tied.sum;
        o->end[o->ends++].kind = END_HALF;
    }
    o->half_end = new_update_program(o, "half-batch norm");
    record_half_end(o, o->half_end);
    return add_step_end(o, END_HALF, o->half_end, -1);
}

err optim_record(optimizer *o) {
    static const struct {
        const char *name;
        void (*record)(const optimizer *o, prog *p);
    } programs[PROGRAMS] = { [PROGRAM_NORM] = { "gradient norm", record_norm },
                             [PROGRAM_CLIP] = { "clip", record_clip },
                             [PROGRAM_UPDATE] = { "update", record_update } };
    for (int i = 0; i < PROGRAMS; i++) {
        o->program[i] = new_update_program(o, programs[i].name);
        programs[i].record(o, o->program[i]);
    }
    for (int i = 0; i < (int)COUNT_OF(o->block_norms); i++) {
        o->block_norms[i] = new_update_program(o, "block norms");
        record_block_norms(o, o->block_norms[i], (param_buffer)i);
        TRY(prog_finish(o->block_norms[i]));
        TRY(plan_program(o->p, o->block_norms[i], -1, &o->block_norm[i]));
    }
    o->end = mem_alloc((size_t)(model_conf(o->m)->layers + 4 + PROGRAMS) * sizeof *o->end);
    if (model_lay(o->m)->keeps_half_grad) TRY(add_half_end(o));
    TRY(add_step_end(o, END_DECIDE, NULL, -1));
    TRY(add_step_end(o, END_NORM, o->program[PROGRAM_NORM], -1));
    o->norm = o->end[o->ends - 1].id;
    TRY(add_step_end(o, END_UPDATE, o->program[PROGRAM_CLIP], -1));
    if (o->on_host) TRY(record_host_updates(o));
    return add_step_end(o, END_UPDATE, o->program[PROGRAM_UPDATE], -1);
}
