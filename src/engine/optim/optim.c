/* The update as a list of op calls: which parameters go together, which memory, in which order. */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>

#include "ops/block8.h"
#include "ops/op_table.h"

/* ---- ranges ------------------------------------------------------------------------------ */
/* Gradients kept in slices come through a buffer whose padding may hold anything; else padding is zero
 * from the start. */
static bool padding_is_zero(const optimizer *o) {
    return model_lay(o->m)->zero < 2 || mesh_span(&o->mesh, AXES_DATA) == 1;
}

static bool can_extend(const optimizer *o, const update_range *s, const update_range *next) {
    int64_t gap = next->at - (s->at + s->count);
    bool same = s->r == next->r && s->attr.update.lr_mul == next->attr.update.lr_mul &&
                s->attr.update.decay == next->attr.update.decay;
    if (!same || s->r->kind != BY_ELEMENT || (gap && !padding_is_zero(o))) return false;
    if (s->b.master_dt != DT_F32) return false; /* rounded by parameter */
    for (int k = 0; k < s->r->states; k++)      /* a block belongs to one parameter */
        if (rule_in_bytes(s->r, k) && (next->at - s->at) % BLOCK8) return false;
    return true;
}

/* Adds a parameter to the range before it where one call can update both, else to a new one. */
static void add_param(optimizer *o, int param, const bucket_view *b, const param_range *z,
                      bool first) {
    const model_param *q = model_param_at(o->m, param);
    update_range *s = o->ranges ? &o->range[o->ranges - 1] : NULL;
    int64_t n = z->to - z->from;
    update_range own = {
        .r = rule_of(o->s.kind, q), .b = *b, .at = z->at, .count = n, .param = param
    };
    own.attr = rule_attr(&o->s, model_conf(o->m), q);
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
    param_slot *t = &o->slot[param];
    t->range = (int)(s - o->range);
    t->at = z->at - s->at;
    t->count = n;
    t->copies = model_param_copies(o->m, param);
    o->order[o->ordered++] = param;
}

/* Covers the parameters of each bucket in memory order. */
static void make_ranges(optimizer *o) {
    for (int i = 0; i < o->params; i++) o->slot[i] = (param_slot){ -1, .whole = { -1, -1 } };
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        int64_t from = 0;
        for (bool first = true;; first = false) {
            int next = -1;
            param_range z, nearest = { .at = b.count };
            for (int k = 0; k < o->params; k++)
                if (model_param_range(o->m, k, &b, &z) && z.at >= from && z.at < nearest.at)
                    next = k, nearest = z;
            if (next < 0) break;
            add_param(o, next, &b, &nearest, first);
            from = nearest.at + 1;
        }
    }
}

/* ---- calls ------------------------------------------------------------------------------- */
tensor region_view(const optimizer *o, bool ready, int region, dtype dt, int64_t at, int ndim,
                   const int64_t *dim) {
    char *data = ready && region >= 0 ? plan_data(o->p, region) : NULL;
    return tensor_of(data ? data + (size_t)at * dt_size(dt) : NULL, dt, ndim, dim);
}

tensor part_view(const optimizer *o, bool ready, region_part in, dtype dt, int64_t at, int ndim,
                 const int64_t *dim) {
    return region_view(o, ready, in.region, dt, in.at + at, ndim, dim);
}

/* State k of a range. */
static tensor state_tensor(const optimizer *o, const update_range *s, int k, bool ready) {
    const model_param *q = model_param_at(o->m, s->param);
    int64_t bytes = (int64_t)block8_bytes(s->count);
    if (rule_in_bytes(s->r, k)) return region_view(o, ready, s->state[k], DT_U8, 0, 1, &bytes);
    bool rows = s->r->state[k].shape == AS_ROWS, cols = s->r->state[k].shape == AS_COLS;
    int region = rows || cols ? o->slot[s->param].whole[k] : s->state[k];
    return region_view(o, ready, region, DT_F32, 0, 1, rows || cols ? &q->dim[cols] : &s->count);
}

static op_call update_call(const optimizer *o, const update_range *s, bool ready) {
    op_call c = { .op = s->r->op, .attr = s->attr };
    c.in[0] = part_view(o, ready, s->b.grad, DT_F32, s->at, 1, &s->count);
    c.out[0] = part_view(o, ready, s->b.master, s->b.master_dt, s->at, 1, &s->count);
    if (s->b.copy.region >= 0)
        c.out[s->r->copy] = part_view(o, ready, s->b.copy, s->b.dt, s->at, 1, &s->count);
    for (int k = 0; k < s->r->states; k++) c.out[1 + k] = state_tensor(o, s, k, ready);
    return c;
}

op_call sqnorm_call(float *grad, int64_t n, int64_t copies, bool add, const tensor *sum) {
    op_call c = { .op = OP_SQNORM, .accumulate = add };
    c.attr.scale.by = (float)(1.0 / (double)copies);
    c.in[0] = tensor_of(grad, DT_F32, 1, &n);
    c.out[0] = *sum;
    return c;
}

/* Updates of what is in host memory wait for the bus, and do that beside the next step. */
static device_queue queue_of(const update_range *s) {
    bool host = s->attr.update.host_state || s->attr.update.host_params;
    return host && s->r->kind == BY_ELEMENT ? QUEUE_UPDATE : QUEUE_COMPUTE;
}
static workspace *workspace_of(optimizer *o, device_queue q) {
    return q == QUEUE_UPDATE ? &o->update_work : &o->work;
}

static size_t range_state_bytes(const optimizer *o, const update_range *s) {
    size_t sum = 0;
    for (int k = 0; k < s->r->states; k++) {
        tensor t = state_tensor(o, s, k, false);
        sum += tensor_bytes(&t);
    }
    return sum;
}

/* Places a share of the state in host memory, as whole ranges: the last layers first, then what lies
 * outside the blocks. */
static void offload_state(optimizer *o, plan *p) {
    double all = 0, moved = 0;
    for (int i = 0; i < o->ranges; i++) all += (double)range_state_bytes(o, &o->range[i]);
    for (int layer = model_conf(o->m)->layers - 1; layer >= -1; layer--)
        for (int i = 0; i < o->ranges; i++) {
            update_range *s = &o->range[i];
            double own = (double)range_state_bytes(o, s);
            if (s->b.layer != layer) continue;
            if (moved + own / 2 > o->s.offload * all) return;
            s->attr.update.host_state = o->on_host = true;
            plan_await_update(p, layer);
            moved += own;
        }
}

/* Parameters in host memory are updated there. */
static void offload_params(optimizer *o, plan *p) {
    for (int i = 0; i < o->ranges; i++) {
        update_range *s = &o->range[i];
        if (!s->b.host) continue;
        s->attr.update.host_params = o->on_host = o->params_on_host = true;
        plan_await_update(p, s->b.layer);
    }
}

err reserve_call(optimizer *o, const plan *p, workspace *w, const op_call *c) {
    TRY(ops_check(o->s.backend, c));
    w->bytes = MAX(w->bytes, ops_workspace(o->s.backend, c, plan_threads(p)));
    return OK;
}

/* Reserves state and workspace; refuses an update that the backend cannot run. */
static err reserve_memory(optimizer *o, plan *p) {
    const op_backend *b = o->s.backend;
    int64_t most = 1;
    for (int i = 0; i < o->ranges; i++) {
        update_range *s = &o->range[i];
        for (int k = 0; k < s->r->states; k++) {
            tensor t = state_tensor(o, s, k, false);
            if (s->r->state[k].shape == AS_ROWS || s->r->state[k].shape == AS_COLS) continue;
            s->state[k] = (s->attr.update.host_state ? plan_region_host : plan_region)(
                p, "optimizer", tensor_bytes(&t));
        }
        op_call c = update_call(o, s, false);
        if (s->r->kind == BY_ELEMENT) TRY(reserve_call(o, p, workspace_of(o, queue_of(s)), &c));
        most += s->count;
    }
    TRY(directions_reserve(o, p));
    tensor sum = tensor_of(NULL, DT_F32, 1, (int64_t[]){ 2 });
    op_call c = sqnorm_call(NULL, most, 1, false, &sum);
    o->work.bytes = MAX(o->work.bytes, ops_workspace(b, &c, plan_threads(p)));
    o->work.region = plan_region(p, "work", o->work.bytes);
    o->update_work.region = plan_region(p, "work", o->update_work.bytes);
    o->sum = plan_region(p, "work", tensor_bytes(&sum));
    return OK;
}

err optim_new(const optim_settings *s, model *m, plan *p, optimizer **out) {
    *out = NULL;
    TRY(rules_check(s, m));
    optimizer *o = mem_alloc(sizeof *o);
    o->s = *s;
    if (!o->s.backend) o->s.backend = ops_cpu(OPS_ISA_BEST);
    o->m = m;
    o->p = p;
    o->mesh = model_lay(m)->mesh;
    o->params = model_params(m);
    o->slot = mem_alloc((size_t)o->params * sizeof *o->slot);
    o->order = mem_alloc((size_t)o->params * sizeof *o->order);
    o->range = mem_alloc((size_t)o->params * sizeof *o->range);
    make_ranges(o);
    if (s->offload > 0) offload_state(o, p);
    offload_params(o, p);
    err e = reserve_memory(o, p);
    if (e) {
        optim_free(o);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = o;
    return OK;
}

void optim_free(optimizer *o) {
    if (!o) return;
    exec_tape_drop(o->p, &o->clip);
    exec_tape_drop(o->p, &o->updates);
    free(o->slot);
    free(o->order);
    free(o->range);
    free(o);
}

/* ---- running ----------------------------------------------------------------------------- */
static step_run start_step(optimizer *o, exec *x) {
    return (step_run){ o, x, exec_step(x),
                       tensor_of(plan_data(o->p, o->sum), DT_F32, 1, (int64_t[]){ 2 }) };
}

static void run_call_on(const step_run *r, op_call *c, device_queue q) {
    const workspace *w = workspace_of(r->o, q);
    op_run run = { .pool = r->x->pool,
                   .workspace = plan_data(r->o->p, w->region),
                   .workspace_bytes = w->bytes,
                   .step = r->step,
                   .context = r->o->s.backend->context,
                   .queue = q };
    c->run = &run;
    exec_call(r->x, c);
}
void run_call(const step_run *r, op_call *c) { run_call_on(r, c, QUEUE_COMPUTE); }

static float *grad_data(const optimizer *o, const param_slot *t) {
    const update_range *s = &o->range[t->range];
    return (float *)plan_data(o->p, s->b.grad.region) + s->b.grad.at + s->at + t->at;
}

/* Whether there is nothing but zeros between the gradients of two parameters: not where another rank's
 * slice of the first one's bucket follows. */
static bool zeros_between(const optimizer *o, const param_slot *a, const param_slot *b) {
    int of_a = o->range[a->range].b.grad.region, of_b = o->range[b->range].b.grad.region;
    bool alone = model_lay(o->m)->zero == 0 || mesh_span(&o->mesh, AXES_DATA) == 1;
    return padding_is_zero(o) && (alone || of_a == of_b);
}

/* State has no gradient: what lies in its place belongs to no norm. */
static bool has_gradient(const optimizer *o, int param) {
    return model_param_at(o->m, param)->role != ROLE_STATE;
}

/* Whether tensor-parallel ranks have parts of a sum as the parameter's gradient until they add them up. */
static bool is_partial(const optimizer *o, int param) {
    bool sliced = model_lay(o->m)->zero >= 2 && mesh_span(&o->mesh, AXES_DATA) > 1;
    return !sliced && (model_param_at(o->m, param)->repeated || model_grad_partial(o->m, param));
}

/* Which gradients are summed: all, or of the first microbatch those that are complete and not partial. */
typedef struct grad_choice {
    bool first;
    const exec_grads *complete; /* NULL: all of them */
} grad_choice;

static bool is_complete(const optimizer *o, int param, const exec_grads *g) {
    const model_param *q = model_param_at(o->m, param);
    return !g || exec_grads_has(g, q->layer, q->bucket, q->offset);
}

static bool is_chosen(const optimizer *o, int param, const grad_choice *g) {
    if (!has_gradient(o, param)) return false;
    if (!g->first) return true;
    return is_complete(o, param, g->complete) && !is_partial(o, param) &&
           !model_param_tied(o->m, param);
}

/* Adds to the sum of squares. Gradients are contiguous in the arena, with less than a page of zeros between them:
 * most of them are one call. */
static void add_grad_squares(const step_run *r, const grad_choice *g) {
    const optimizer *o = r->o;
    for (int i = 0; i < o->ordered;) {
        if (!is_chosen(o, o->order[i], g)) {
            i++;
            continue;
        }
        const param_slot *first = &o->slot[o->order[i]];
        float *from = grad_data(o, first), *to = from;
        for (; i < o->ordered && is_chosen(o, o->order[i], g); i++) {
            const param_slot *t = &o->slot[o->order[i]];
            int64_t gap = (char *)grad_data(o, t) - (char *)to;
            if (t->copies != first->copies || gap < 0 || gap >= PLAN_PAGE) break;
            if (gap && !zeros_between(o, &o->slot[o->order[i - 1]], t)) break;
            to = grad_data(o, t) + t->count;
        }
        op_call c = sqnorm_call(from, to - from, first->copies, true, &r->sum);
        run_call(r, &c);
    }
}

static void begin_squares(const step_run *r) {
    op_call none = { .op = OP_ZERO, .out = { r->sum } };
    run_call(r, &none);
}

static void sum_grad_squares(const step_run *r) {
    begin_squares(r);
    add_grad_squares(r, &(grad_choice){ 0 });
}

err move_tensor(const step_run *r, const char *name, comm_move move, const tensor *in,
                const tensor *out) {
    move.name = name;
    comm_ticket ticket;
    if (!move.axes) return OK;
    TRY(comm_start(r->x->comm, &move, in, out, &ticket));
    return comm_wait(r->x->comm, &ticket);
}

err sum_over(const step_run *r, const char *name, axis_set axes, const tensor *t) {
    return move_tensor(r, name, (comm_move){ axes, PLACE_P, PLACE_I }, t, t);
}

static err sum_over_ranks(const step_run *r) {
    return sum_over(r, "gradient norm", mesh_axes(&r->o->mesh), &r->sum);
}

err optim_grad_norm(optimizer *o, exec *x, double *norm) {
    step_run r = start_step(o, x);
    float sum[2];
    step_state now;
    sum_grad_squares(&r);
    TRY(sum_over_ranks(&r));
    TRY(plan_get(o->p, sum, r.sum.data, sizeof sum));
    TRY(exec_state_get(x, &now));
    *norm = sqrt((double)sum[0] + sum[1]) / (now.loss_scale > 0 ? now.loss_scale : 1);
    return OK;
}

/* Square sums of the gradients that are partial, summed over tensor-parallel ranks, or over those that share
 * key/value heads. They are small: the host sums them. */
static err add_partial_squares(const step_run *r, const exec_grads *g, double *sum) {
    const optimizer *o = r->o;
    err e = OK;
    for (int i = 0; i < o->ordered && !e; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        if (!is_partial(o, o->order[i]) || !is_complete(o, o->order[i], g)) continue;
        float *values = mem_alloc((size_t)t->count * sizeof *values);
        e = plan_get(o->p, values, grad_data(o, t), (size_t)t->count * sizeof *values);
        bool repeated = model_param_at(o->m, o->order[i])->repeated;
        axis_set axes = repeated ? AXES_TP_REP : AXIS(AX_TP);
        if (!e) e = comm_sum(r->x->comm, axes, values, t->count);
        for (int64_t k = 0; k < t->count; k++)
            *sum += (double)values[k] * values[k] / (double)t->copies;
        free(values);
    }
    return e;
}

static bool completes_tied(const optimizer *o, const exec_grads *g) {
    for (int i = 0; i < o->ordered; i++)
        if (model_param_tied(o->m, o->order[i]) && is_complete(o, o->order[i], g)) return true;
    return false;
}

void optim_first_begin(optimizer *o, exec *x) {
    step_run r = start_step(o, x);
    o->first_partial = 0;
    begin_squares(&r);
}

err optim_first_add(optimizer *o, exec *x, const exec_grads *g) {
    step_run r = start_step(o, x);
    add_grad_squares(&r, &(grad_choice){ true, g });
    if (completes_tied(o, g)) model_keep_tied(o->m, x);
    return add_partial_squares(&r, g, &o->first_partial);
}

/* Both ends of a pipeline have a part of the tied table's gradient: its square is that of their sum. */
static err add_tied_squares(const step_run *r) {
    const optimizer *o = r->o;
    tensor sum;
    TRY(model_sum_first_tied(o->m, r->x, &sum));
    for (int i = 0; i < o->ordered && sum.data; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        const update_range *s = &o->range[t->range];
        if (!model_param_tied(o->m, o->order[i])) continue;
        op_call c =
            sqnorm_call((float *)sum.data + s->at + t->at, t->count, t->copies, true, &r->sum);
        run_call(r, &c);
    }
    return OK;
}

err optim_first_norm(optimizer *o, exec *x, double *norm) {
    step_run r = start_step(o, x);
    float sum[2];
    step_state now;
    TRY(add_tied_squares(&r));
    TRY(plan_get(o->p, sum, r.sum.data, sizeof sum));
    sum[1] += (float)o->first_partial;
    plan_put(o->p, r.sum.data, sum, sizeof sum);
    TRY(sum_over_ranks(&r));
    TRY(plan_get(o->p, sum, r.sum.data, sizeof sum));
    TRY(exec_state_get(x, &now));
    *norm = sqrt((double)sum[0] + sum[1]) / (now.loss_scale > 0 ? now.loss_scale : 1);
    return OK;
}

/* ---- a step: the norm, the updates, and beside them those whose state is in host memory ------ */
static err clip_calls(void *ctx) {
    const step_run *r = ctx;
    op_call clip = { .op = OP_CLIP, .in = { r->sum } };
    clip.attr.clip.growth_interval = r->o->s.growth_interval;
    clip.out[0] = tensor_of(&r->step->now, DT_U8, 1, (int64_t[]){ sizeof r->step->now });
    sum_grad_squares(r);
    TRY(sum_over_ranks(r));
    run_call(r, &clip);
    return clip_adaptively(r);
}

static err device_updates(void *ctx) {
    const step_run *r = ctx;
    for (int i = 0; i < r->o->ranges; i++) {
        const update_range *s = &r->o->range[i];
        if (queue_of(s) != QUEUE_COMPUTE || s->r->kind != BY_ELEMENT) continue;
        op_call c = update_call(r->o, s, true);
        run_call(r, &c);
    }
    return update_along_directions(r);
}

/* In the order in which the next step reads the weights: it waits for one layer at a time. */
static void host_updates(const step_run *r) {
    exec_join(r->x, QUEUE_UPDATE, QUEUE_COMPUTE);
    exec_join(r->x, QUEUE_COPY_IN, QUEUE_COMPUTE);
    for (int layer = -1; layer < model_conf(r->o->m)->layers; layer++) {
        for (int i = 0; i < r->o->ranges; i++) {
            const update_range *s = &r->o->range[i];
            if (s->b.layer != layer || queue_of(s) != QUEUE_UPDATE) continue;
            op_call c = update_call(r->o, s, true);
            run_call_on(r, &c, QUEUE_UPDATE);
        }
        exec_signal(r->x, QUEUE_UPDATE, layer + 1);
        if (r->o->params_on_host) exec_signal(r->x, QUEUE_COPY_OUT, EVENT_STORED + layer);
    }
}

/* Before the step block changes, which the last step's updates read, and before their state is read. */
static void join_updates(exec *x) {
    exec_join(x, QUEUE_COMPUTE, QUEUE_UPDATE);
    exec_join(x, QUEUE_COMPUTE, QUEUE_COPY_OUT);
}

err optim_step(optimizer *o, exec *x, double lr, double max_norm) {
    if (!isfinite(lr) || !(max_norm >= 0))
        return ERR("the update got learning rate %g and maximum gradient norm %g", lr, max_norm);
    x->step.update.lr = (float)lr;
    x->step.update.max_norm = (float)max_norm;
    x->step.update.rounding =
        x->step.dropout; /* which the next step changes before this one ends */
    if (o->on_host) join_updates(x);
    step_run r = start_step(o, x);
    TRY(exec_replay(x, &o->clip, clip_calls, &r));
    if (o->on_host) host_updates(&r);
    /* what an update brings from host memory comes on queues that no graph records */
    TRY(o->params_on_host ? device_updates(&r) : exec_replay(x, &o->updates, device_updates, &r));
    model_gather(o->m, x);
    return OK;
}

/* ---- what is read of parameters and gradients now and then ------------------------------------- */
static char *part_data(const optimizer *o, const param_slot *t, param_part part, dtype *dt) {
    const update_range *s = &o->range[t->range];
    *dt = part == PARAM_GRAD ? DT_F32 : s->b.master_dt;
    region_part in = part == PARAM_GRAD ? s->b.grad : s->b.master;
    char *data = plan_data(o->p, in.region);
    return data + (size_t)(in.at + s->at + t->at) * dt_size(*dt);
}

/* Reads elements [from, from + n) of a parameter as fp32. @param raw a buffer of n floats. */
static err read_elements(const optimizer *o, const param_slot *t, param_part part, int64_t from,
                         int64_t n, float *raw, float *to) {
    dtype dt;
    char *at = part_data(o, t, part, &dt);
    TRY(plan_get(o->p, dt == DT_F32 ? to : raw, at + (size_t)from * dt_size(dt),
                 (size_t)n * dt_size(dt)));
    if (dt != DT_F32) dt_to_f32(dt, raw, to, n);
    return OK;
}

/* The square sum where no kernel reads the type: bf16 master weights. */
static err host_square_sum(const optimizer *o, const param_slot *t, param_part part, double *sum) {
    enum { PIECE = 65536 };
    float *raw = mem_alloc(2 * PIECE * sizeof *raw), *value = raw + PIECE;
    err e = OK;
    for (int64_t from = 0; from < t->count && !e; from += PIECE) {
        int64_t n = MIN(PIECE, t->count - from);
        e = read_elements(o, t, part, from, n, raw, value);
        for (int64_t i = 0; i < n && !e; i++)
            *sum += (double)value[i] * value[i] / (double)t->copies;
    }
    free(raw);
    return e;
}

/* The square sum over the parameters of one block, on all ranks. */
static err block_square_sum(const step_run *r, int layer, param_part part, double *square) {
    const optimizer *o = r->o;
    float sum[2];
    double host = 0;
    op_call none = { .op = OP_ZERO, .out = { r->sum } };
    run_call(r, &none);
    for (int i = 0; i < o->ordered; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        dtype dt;
        if (o->range[t->range].b.layer != layer || !has_gradient(o, o->order[i])) continue;
        float *at = (float *)(void *)part_data(o, t, part, &dt);
        if (dt != DT_F32) {
            TRY(host_square_sum(o, t, part, &host));
            continue;
        }
        op_call c = sqnorm_call(at, t->count, t->copies, true, &r->sum);
        run_call(r, &c);
    }
    TRY(plan_get(o->p, sum, r->sum.data, sizeof sum));
    sum[1] += (float)host;
    plan_put(o->p, r->sum.data, sum, sizeof sum);
    TRY(sum_over_ranks(r));
    TRY(plan_get(o->p, sum, r->sum.data, sizeof sum));
    *square = (double)sum[0] + sum[1];
    return OK;
}

err optim_block_norms(optimizer *o, exec *x, param_part part, double *norm) {
    step_run r = start_step(o, x);
    int layers = model_conf(o->m)->layers;
    for (int i = 0; i <= layers; i++) {
        TRY(block_square_sum(&r, i < layers ? i : -1, part, &norm[i]));
        norm[i] = sqrt(norm[i]);
    }
    return OK;
}

int64_t optim_param_count(const optimizer *o, int param) {
    return o->slot[param].range < 0 ? 0 : o->slot[param].count;
}

err optim_read(const optimizer *o, int param, param_part part, int64_t n, float *to) {
    float *raw = mem_alloc((size_t)n * sizeof *raw);
    err e = read_elements(o, &o->slot[param], part, 0, n, raw, to);
    free(raw);
    return e;
}
