/* Norms and values that are read of gradients and parameters now and then, beside the step's list: of the first
 * half of a step, of each block. */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>

static tensor sum_tensor(const optimizer *o) {
    return tensor_of(plan_data(o->p, o->sum), DT_F32, 1, (int64_t[]){ 2 });
}

static void add_squares(const optimizer *o, exec *x, float *from, int64_t n, int64_t copies) {
    op_call c = { .op = OP_SQNORM, .accumulate = 1 };
    c.attr.scale.by = (float)(1.0 / (double)copies);
    c.in[0] = tensor_of(from, DT_F32, 1, &n);
    c.out[0] = sum_tensor(o);
    exec_call(x, &c);
}

/* The square sum on this rank, over all ranks. */
static err sum_over_ranks(const optimizer *o, exec *x, double *sum) {
    float now[2];
    tensor t = sum_tensor(o);
    comm_move move = { mesh_axes(&o->mesh), PLACE_P, PLACE_I, .name = "gradient norm" };
    comm_ticket ticket;
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

/* ---- of the first half of a step -------------------------------------------------------------- */
/* Ranks hold parts of a gradient until the last microbatch reduces it. These are summed here into memory of their own,
 * a piece of a parameter at a time, so that what accumulates is left as it is. */
enum { HALF_PIECE = 1 << 22 };

void half_reserve(optimizer *o) {
    int64_t most = 0;
    o->piece = -1;
    for (int i = 0; i < o->params && model_lay(o->m)->keeps_half_grad; i++) {
        const model_param *q = model_param_at(o->m, i);
        most = MAX(most, MIN(HALF_PIECE, q->local[0] * q->local[1]));
    }
    o->piece_count = most;
    if (most && mesh_world(&o->mesh) > 1)
        o->piece = plan_region(o->p, "work", (size_t)most * sizeof(float));
}

/* Gradients that no rank has to sum, of the lists that have completed. */
typedef struct half_grads {
    const optimizer *o;
    const exec_grads *complete; /* NULL: all of them */
} half_grads;

static bool is_in_parts(const optimizer *o, int param) {
    grad_parts parts = model_grad_parts(o->m, param);
    return mesh_span(&o->mesh, parts.data) > 1 || mesh_span(&o->mesh, parts.tensor) > 1;
}

static bool is_complete(const optimizer *o, int param, const exec_grads *g) {
    const model_param *q = model_param_at(o->m, param);
    return has_gradient(o, param) && (!g || exec_grads_has(g, q->layer, q->bucket, q->offset));
}

static bool is_complete_and_whole(const void *ctx, int param) {
    const half_grads *f = ctx;
    return is_complete(f->o, param, f->complete) && !is_in_parts(f->o, param) &&
           !model_param_tied(f->o->m, param);
}

static err sum_over_parts(exec *x, axis_set axes, tensor *piece) {
    comm_move move = { axes, PLACE_P, PLACE_I, .name = "gradient noise" };
    comm_ticket ticket;
    if (!axes) return OK;
    TRY(comm_start(x->comm, &move, piece, piece, &ticket));
    return comm_wait(x->comm, &ticket);
}

/* Counts n elements of a gradient that is summed, from element `from` of the parameter on, as far as this rank
 * updates them. Those of a table that both ends of a pipeline hold are kept until both are known. */
static void count_piece(const optimizer *o, exec *x, int param, float *piece, int64_t from,
                        int64_t n) {
    const param_update *t = &o->param[param];
    if (t->range < 0) return;
    const update_range *s = &o->range[t->range];
    param_range own;
    if (!model_param_range(o->m, param, &s->b, &own)) return;
    int64_t begin = MAX(from, own.from), end = MIN(from + n, own.to);
    if (begin >= end) return;
    if (model_param_tied(o->m, param))
        model_keep_tied(o->m, x, piece + (begin - from), own.at + begin - own.from, end - begin);
    else
        add_squares(o, x, piece + (begin - from), end - begin, t->copies);
}

/* Sums the parts of one parameter's gradient, of which this rank has those in `b`. */
static err add_in_parts(const optimizer *o, exec *x, int param, const bucket_view *b) {
    grad_parts parts = model_grad_parts(o->m, param);
    bool whole = !is_in_parts(o, param);
    param_range held;
    if (!model_param_range(o->m, param, b, &held)) return OK;
    float *grad = (float *)plan_data(o->p, b->grad.region) + b->grad.at + held.at;
    for (int64_t at = held.from; at < held.to; at += HALF_PIECE) {
        int64_t n = MIN(HALF_PIECE, held.to - at);
        tensor from = tensor_of(grad + (at - held.from), DT_F32, 1, &n), sum = from;
        if (!whole) {
            sum.data = plan_data(o->p, o->piece);
            exec_call(x, &(op_call){ .op = OP_ACCUMULATE, .in = { from }, .out = { sum } });
            TRY(sum_over_parts(x, parts.data, &sum));
            TRY(sum_over_parts(x, parts.tensor, &sum));
        }
        count_piece(o, x, param, sum.data, at, n);
    }
    return OK;
}

void optim_half_begin(optimizer *o, exec *x) {
    op_call none = { .op = OP_ZERO, .out = { sum_tensor(o) } };
    exec_call(x, &none);
}

err optim_half_add(optimizer *o, exec *x, const exec_grads *g) {
    half_grads f = { o, g };
    grad_run run;
    for (int i = 0; next_grad_run(o, is_complete_and_whole, &f, &i, &run);)
        add_squares(o, x, (float *)plan_data(o->p, run.region) + run.at, run.n, run.copies);
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket_grads(o->m, i);
        for (int k = 0; k < o->params; k++)
            if (is_complete(o, k, g) && (is_in_parts(o, k) || model_param_tied(o->m, k)))
                TRY(add_in_parts(o, x, k, &b));
    }
    return OK;
}

/* Both ends of a pipeline have a part of the tied table's gradient: its square is that of their sum. */
static err add_tied_squares(const optimizer *o, exec *x) {
    tensor sum;
    TRY(model_sum_half_tied(o->m, x, &sum));
    for (int i = 0; i < o->ordered && sum.data; i++) {
        const param_update *t = &o->param[o->order[i]];
        if (!model_param_tied(o->m, o->order[i])) continue;
        add_squares(o, x, (float *)sum.data + o->range[t->range].at + t->at, t->count, t->copies);
    }
    return OK;
}

err optim_half_norm(optimizer *o, exec *x, double *norm) {
    double sum;
    TRY(add_tied_squares(o, x));
    TRY(sum_over_ranks(o, x, &sum));
    return norm_of(x, sum, norm);
}

/* ---- of each block, and values ---------------------------------------------------------------- */
static char *part_data(const optimizer *o, const param_update *t, param_part part, dtype *dt) {
    const update_range *s = &o->range[t->range];
    *dt = part == PARAM_GRAD ? DT_F32 : s->b.master_dt;
    region_part in = part == PARAM_GRAD ? s->b.grad : s->b.master;
    char *data = plan_data(o->p, in.region);
    return data + (size_t)(in.at + s->at + t->at) * dt_size(*dt);
}

/* Reads elements [from, from + n) of a parameter as fp32. @param raw a buffer of n floats. */
static err read_elements(const optimizer *o, const param_update *t, param_part part, int64_t from,
                         int64_t n, float *raw, float *to) {
    dtype dt;
    char *at = part_data(o, t, part, &dt);
    TRY(plan_get(o->p, dt == DT_F32 ? to : raw, at + (size_t)from * dt_size(dt),
                 (size_t)n * dt_size(dt)));
    if (dt != DT_F32) dt_to_f32(dt, raw, to, n);
    return OK;
}

err optim_block_norms(optimizer *o, exec *x, param_part part, double *norm) {
    int blocks = model_conf(o->m)->layers + 1;
    float *sums = mem_alloc((size_t)blocks * 2 * sizeof *sums);
    err e = exec_program(x, o->block_norm[part]);
    if (!e)
        e = plan_get(o->p, sums, (float *)plan_data(o->p, o->sum) + 2,
                     (size_t)blocks * 2 * sizeof *sums);
    for (int i = 0; i < blocks && !e; i++) norm[i] = sqrt((double)sums[2 * i] + sums[2 * i + 1]);
    free(sums);
    return e;
}

int64_t optim_param_count(const optimizer *o, int param) {
    return o->param[param].range < 0 ? 0 : o->param[param].count;
}

err optim_read(const optimizer *o, int param, param_part part, int64_t n, float *to) {
    float *raw = mem_alloc((size_t)n * sizeof *raw);
    err e = read_elements(o, &o->param[param], part, 0, n, raw, to);
    free(raw);
    return e;
}
