/* The norm of the gradient that the first half of a step's microbatches left, for the gradient noise scale, recorded.
 *
 * Ranks hold parts of a gradient until the last microbatch reduces it. These are summed into memory of their own, a piece
 * of a parameter at a time, so that what accumulates is left as it is. Without a pipeline one program does that
 * between two microbatches. Those of a pipeline overlap: there is a program for each list that writes gradients, which
 * runs behind it. */
#include "optim_internal.h"

enum { HALF_PIECE = 1 << 22 };

/* The gradients that a program of the half measures. */
typedef struct half_grads {
    const optimizer *o;
    const grad_list *of; /* NULL: all gradients */
} half_grads;

static bool is_in_parts(const optimizer *o, int param) {
    grad_axes axes = model_grad_axes(o->m, param);
    return mesh_span(&o->mesh, axes.data) > 1 || mesh_span(&o->mesh, axes.tensor) > 1;
}

static bool is_measured(const half_grads *h, int param) {
    const model_param *q = model_param_at(h->o->m, param);
    return has_gradient(h->o, param) &&
           (!h->of || grad_list_writes(h->of, q->layer, q->bucket, q->offset));
}

static bool is_measured_and_whole(const void *ctx, int param) {
    const half_grads *h = ctx;
    return is_measured(h, param) && !is_in_parts(h->o, param) && !model_param_tied(h->o->m, param);
}

/* Counts n elements of a gradient that is summed, from element `from` of the parameter on, as far as this rank
 * updates them. Those of a table that both ends of a pipeline hold are kept until both are known. */
static void record_piece(const optimizer *o, prog *p, int param, val piece, int64_t from, int64_t n,
                         val sum) {
    const param_update *t = &o->param[param];
    param_range own;
    half_tied tied;
    if (t->range < 0 || !model_param_range(o->m, param, &o->range[t->range].b, &own)) return;
    int64_t begin = MAX(from, own.from), count = MIN(from + n, own.to) - begin;
    if (count <= 0) return;
    val part = prog_elements(p, piece, begin - from, 1, &count);
    if (!model_param_tied(o->m, param)) {
        record_squares(p, part, t->copies, sum, true);
        return;
    }
    model_half_tied(o->m, &tied);
    change_request keep = change_of(OP_ACCUMULATE);
    keep.in[0] = part;
    keep.out[0] = prog_region(p, "tied", tied.region, own.at + begin - own.from, DT_F32, count,
                              (placement){ 0 });
    rec_change(p, keep);
}

/* Sums the parts of one parameter's gradient; this rank has those in `b`. All pieces share the memory of
 * `scratch`, so that one is summed and counted before the next is copied. */
static void record_in_parts(const optimizer *o, prog *p, int param, const bucket_view *b,
                            val scratch, val sum) {
    grad_axes axes = model_grad_axes(o->m, param);
    param_range held;
    if (!model_param_range(o->m, param, b, &held)) return;
    for (int64_t at = held.from; at < held.to; at += HALF_PIECE) {
        int64_t n = MIN(HALF_PIECE, held.to - at);
        val piece = prog_region(p, "grads", b->grad.region, b->grad.at + held.at + at - held.from,
                                DT_F32, n, (placement){ 0 });
        if (is_in_parts(o, param)) {
            change_request copy = change_of(OP_ACCUMULATE);
            copy.in[0] = piece;
            copy.out[0] = piece = prog_elements(p, scratch, 0, 1, &n);
            rec_change(p, copy);
            rec_sum_over(p, piece, axes.data);
            rec_sum_over(p, piece, axes.tensor);
        }
        record_piece(o, p, param, piece, at, n, sum);
    }
}

static int64_t largest_piece(const optimizer *o) {
    int64_t most = 1;
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        most = MAX(most, MIN(HALF_PIECE, q->local[0] * q->local[1]));
    }
    return most;
}

static void record_half(const half_grads *h, prog *p, val sum) {
    const optimizer *o = h->o;
    grad_run run;
    for (int i = 0; next_grad_run(o, is_measured_and_whole, h, &i, &run);)
        record_run_squares(p, &run, sum);
    val scratch = prog_scratch(p, 1, (int64_t[]){ largest_piece(o) }, (placement){ 0 });
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket_grads(o->m, i);
        for (int k = 0; k < o->params; k++)
            if (is_measured(h, k) && (is_in_parts(o, k) || model_param_tied(o->m, k)))
                record_in_parts(o, p, k, &b, scratch, sum);
    }
}

/* @param of NULL: of every list */
static err add_half(optimizer *o, const grad_list *of, bool clears, bool measures) {
    prog *p = new_update_program(o, "half-batch gradient");
    val sum = record_sum(o, p, PL_P);
    if (clears) record_zero(p, sum);
    if (measures) record_half(&(half_grads){ o, of }, p, sum);
    chain_end *e = &LIST_ADD(o->half, o->halves, o->half_cap);
    *e = (chain_end){ .kind = END_HALF, .p = p, .layer = of ? of->layer : -1 };
    if (of) e->after = *of;
    TRY(prog_finish(p));
    return plan_program(o->p, p, e->layer, &e->id);
}

err optim_record_half(optimizer *o, chain *c) {
    bool piped = c->pipe.ranks > 1;
    grad_list list;
    TRY(add_half(o, NULL, true, !piped));
    for (int i = 0; piped && chain_grad_list(c, &i, &list);) TRY(add_half(o, &list, false, true));
    c->half = o->half;
    c->halves = o->halves;
    return OK;
}

void record_half_end(const optimizer *o, prog *p) {
    val sum = record_sum(o, p, PL_P);
    half_tied tied;
    for (int i = 0; i < o->ordered && model_half_tied(o->m, &tied); i++) {
        const param_update *t = &o->param[o->order[i]];
        if (!model_param_tied(o->m, o->order[i])) continue;
        val both = prog_region(p, "tied", tied.region, o->range[t->range].at + t->at, DT_F32,
                               t->count, (placement){ 0 });
        record_squares(p, both, t->copies, sum, true);
    }
    rec_moved(p, sum, mesh_axes(&o->mesh), PLACE_I);
}
