/* Norms and values that are read of gradients and parameters now and then, beside the step's list: of the first
 * microbatch, of each block. */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>

static tensor sum_tensor(const optimizer *o) {
    return tensor_of(plan_data(o->p, o->sum), DT_F32, 1, (int64_t[]){ 2 });
}

static void begin_squares(const optimizer *o, exec *x) {
    op_call none = { .op = OP_ZERO, .out = { sum_tensor(o) } };
    exec_call(x, &none);
}

static void add_squares(const optimizer *o, exec *x, float *from, int64_t n, int64_t copies) {
    op_call c = { .op = OP_SQNORM, .accumulate = 1 };
    c.attr.scale.by = (float)(1.0 / (double)copies);
    c.in[0] = tensor_of(from, DT_F32, 1, &n);
    c.out[0] = sum_tensor(o);
    exec_call(x, &c);
}

/* The square sum on this rank, with what the host has added up, over all ranks. */
static err sum_over_ranks(const optimizer *o, exec *x, double host, double *sum) {
    float now[2];
    tensor t = sum_tensor(o);
    comm_move move = { mesh_axes(&o->mesh), PLACE_P, PLACE_I, .name = "gradient norm" };
    comm_ticket ticket;
    TRY(plan_get(o->p, now, t.data, sizeof now));
    now[1] += (float)host;
    plan_put(o->p, t.data, now, sizeof now);
    if (move.axes) {
        TRY(comm_start(x->comm, &move, &t, &t, &ticket));
        TRY(comm_wait(x->comm, &ticket));
    }
    TRY(plan_get(o->p, now, t.data, sizeof now));
    *sum = (double)now[0] + now[1];
    return OK;
}

/* Without the loss scale. */
static err norm_of(exec *x, double square_sum, double *norm) {
    step_state now;
    TRY(exec_state_get(x, &now));
    *norm = sqrt(square_sum) / (now.loss_scale > 0 ? now.loss_scale : 1);
    return OK;
}

err optim_grad_norm(optimizer *o, exec *x, double *norm) {
    float sum[2];
    TRY(exec_program(x, o->norm));
    TRY(plan_get(o->p, sum, plan_data(o->p, o->sum), sizeof sum));
    return norm_of(x, (double)sum[0] + sum[1], norm);
}

/* ---- of the first microbatch ------------------------------------------------------------------ */
/* Whether tensor-parallel ranks have parts of a sum as the parameter's gradient until they add them up. */
static bool is_partial(const optimizer *o, int param) {
    bool sliced = model_lay(o->m)->zero >= 2 && mesh_span(&o->mesh, AXES_DATA) > 1;
    return !sliced && (model_param_at(o->m, param)->repeated || model_grad_partial(o->m, param));
}

static bool is_complete(const optimizer *o, int param, const exec_grads *g) {
    const model_param *q = model_param_at(o->m, param);
    return !g || exec_grads_has(g, q->layer, q->bucket, q->offset);
}

/* Gradients of the first microbatch that are complete and not partial. */
typedef struct first_grads {
    const optimizer *o;
    const exec_grads *complete; /* NULL: all of them */
} first_grads;

static bool is_first_and_whole(const void *ctx, int param) {
    const first_grads *f = ctx;
    return has_gradient(f->o, param) && is_complete(f->o, param, f->complete) &&
           !is_partial(f->o, param) && !model_param_tied(f->o->m, param);
}

static float *grad_data(const optimizer *o, const param_slot *t) {
    const update_range *s = &o->range[t->range];
    return (float *)plan_data(o->p, s->b.grad.region) + s->b.grad.at + s->at + t->at;
}

/* Square sums of the gradients that are partial, summed over tensor-parallel ranks, or over those that share
 * key/value heads. They are small: the host sums them. */
static err add_partial_squares(const optimizer *o, const exec *x, const exec_grads *g,
                               double *sum) {
    err e = OK;
    for (int i = 0; i < o->ordered && !e; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        if (!is_partial(o, o->order[i]) || !is_complete(o, o->order[i], g)) continue;
        float *values = mem_alloc((size_t)t->count * sizeof *values);
        e = plan_get(o->p, values, grad_data(o, t), (size_t)t->count * sizeof *values);
        bool repeated = model_param_at(o->m, o->order[i])->repeated;
        axis_set axes = repeated ? AXES_TP_REP : AXIS(AX_TP);
        if (!e) e = comm_sum(x->comm, axes, values, t->count);
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
    o->first_partial = 0;
    begin_squares(o, x);
}

err optim_first_add(optimizer *o, exec *x, const exec_grads *g) {
    first_grads f = { o, g };
    grad_run run;
    for (int i = 0; next_grad_run(o, is_first_and_whole, &f, &i, &run);)
        add_squares(o, x, (float *)plan_data(o->p, run.region) + run.at, run.n, run.copies);
    if (completes_tied(o, g)) model_keep_tied(o->m, x);
    return add_partial_squares(o, x, g, &o->first_partial);
}

/* Both ends of a pipeline have a part of the tied table's gradient: its square is that of their sum. */
static err add_tied_squares(const optimizer *o, exec *x) {
    tensor sum;
    TRY(model_sum_first_tied(o->m, x, &sum));
    for (int i = 0; i < o->ordered && sum.data; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        if (!model_param_tied(o->m, o->order[i])) continue;
        add_squares(o, x, (float *)sum.data + o->range[t->range].at + t->at, t->count, t->copies);
    }
    return OK;
}

err optim_first_norm(optimizer *o, exec *x, double *norm) {
    double sum;
    TRY(add_tied_squares(o, x));
    TRY(sum_over_ranks(o, x, o->first_partial, &sum));
    return norm_of(x, sum, norm);
}

/* ---- of each block, and values ---------------------------------------------------------------- */
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
static err block_square_sum(const optimizer *o, exec *x, int layer, param_part part,
                            double *square) {
    double host = 0;
    begin_squares(o, x);
    for (int i = 0; i < o->ordered; i++) {
        const param_slot *t = &o->slot[o->order[i]];
        dtype dt;
        if (o->range[t->range].b.layer != layer || !has_gradient(o, o->order[i])) continue;
        void *at = part_data(o, t, part, &dt);
        if (dt == DT_F32)
            add_squares(o, x, at, t->count, t->copies);
        else
            TRY(host_square_sum(o, t, part, &host));
    }
    return sum_over_ranks(o, x, host, square);
}

err optim_block_norms(optimizer *o, exec *x, param_part part, double *norm) {
    int layers = model_conf(o->m)->layers;
    for (int i = 0; i <= layers; i++) {
        TRY(block_square_sum(o, x, i < layers ? i : -1, part, &norm[i]));
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
