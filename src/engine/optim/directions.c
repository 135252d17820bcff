/* Rules that need more of a matrix than a rank holds of it: adaptive clipping, Adafactor and Muon (muon.c).
 *
 * A rank's part of a parameter is a flat range of its shard (ZeRO), which tensor parallelism has taken
 * from rows or columns of the whole:
 *
 *         whole matrix            shard of tp rank 0          part of slice 1
 *     a a a a | b b b b              a a a a                     . . . .
 *     a a a a | b b b b              a a a a                     . . a a
 *     a a a a | b b b b              a a a a                     a a a a
 *
 * Adaptive clipping and Adafactor need sums by row and by column. Each rank sums its part into vectors of
 * the whole matrix's rows and columns; those of all matrices are in one buffer, which is summed over the
 * ranks at once (P -> I), and so are the mean squares of Adafactor's directions. Of ranks that hold
 * the same elements one contributes. What follows from the sums every rank computes for itself.
 */
#include "optim_internal.h"

#include <stdlib.h>

static bool clips_rows(const optimizer *o, int param) {
    return rule_clips_rows(&o->s, model_conf(o->m), model_param_at(o->m, param));
}

axis_set parts_over(const optimizer *o, int param) {
    return mesh_axes(&o->mesh) & ~model_param_same(o->m, param) & ~AXES_STAGES;
}
axis_set slices_over(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    return parts_over(o, param) & ~placement_axes(q->pl, PL_S) & ~q->apart;
}

/* Whether this rank adds its part of the parameter to a sum over the ranks: the first of those that hold the
 * same one does. */
static bool contributes_sums(const optimizer *o, int param) {
    return o->param[param].range >= 0 &&
           mesh_index(&o->mesh, (o->parts | ~AXES_ALL) & model_param_same(o->m, param)) == 0;
}

static bool bucket_is_here(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        if (b.bucket == q->bucket && (b.layer < 0 || b.layer == q->layer)) return true;
    }
    return false;
}

/* ---- memory -------------------------------------------------------------------------------- */
void directions_reserve(optimizer *o) {
    o->polar = model_lay(o->m)->dt == DT_F32 ? DT_F32 : o->s.backend->polar;
    muon_deal(o);
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        param_update *t = &o->param[i];
        bool sums = t->r->kind == BY_FACTORS || clips_rows(o, i);
        if (t->r->kind != BY_ELEMENT || clips_rows(o, i)) o->parts |= parts_over(o, i);
        if (sums && bucket_is_here(o, i)) {
            t->sums = o->sum_count;
            o->sum_count += q->dim[0] + MAX(q->dim[0], q->dim[1]);
        }
        /* few elements, which Muon's kernels read in place */
        bool host = t->range >= 0 && o->range[t->range].attr.update.host_state &&
                    t->r->kind != BY_ORTHOGONAL;
        for (int k = 0; k < t->states.n; k++) {
            const struct rule_state *x = &t->states.state[k];
            if (!state_is_whole(x)) continue; /* Adafactor's follow from sums over all ranks */
            if (t->r->kind == BY_ORTHOGONAL ? muon_is_here(o, i) : bucket_is_here(o, i))
                t->whole[k] = (host ? plan_region_host : plan_region)(
                    o->p, "optimizer", (size_t)q->dim[x->shape == AS_COLS] * sizeof(float));
        }
    }
}

/* ---- operands ------------------------------------------------------------------------------- */
/* @return the elements of a parameter that this rank updates. */
static val param_elements(const optimizer *o, prog *p, int param, param_buffer which) {
    const param_update *t = &o->param[param];
    const update_range *s = &o->range[t->range];
    return record_elements(o, p, param, which == PARAM_GRAD ? s->b.grad : s->b.master, DT_F32,
                           s->at + t->at, t->count);
}

/* @return the request of an op on a rank's part of a matrix. */
static change_request change_part(const optimizer *o, op_code op, int param) {
    change_request c = change_of(op);
    c.attr.update.first = model_weights_range(o->m, param).from;
    c.attr.update.base = model_global_index(o->m, param, 0);
    c.attr.update.cols = model_param_at(o->m, param)->local[1];
    c.attr.update.stride = model_param_at(o->m, param)->dim[1];
    return c;
}

/* @return the sums of a matrix among those of all matrices: by row, then by column or by row again. */
static val sums_of(const optimizer *o, prog *p, val all, int param, int which, bool by_column) {
    const model_param *q = model_param_at(o->m, param);
    return prog_elements(p, all, o->param[param].sums + which * q->dim[0], 1, &q->dim[by_column]);
}

/* Partial sums, zero where other ranks have the parts. */
static val new_sums(const optimizer *o, prog *p, int64_t n) {
    val all = prog_scratch(p, 1, &n, placement_on(o->parts, PLACE_P));
    if (o->parts) record_zero(p, all);
    return all;
}

/* ---- adaptive clipping ---------------------------------------------------------------------- */
void record_adaptive_clip(const optimizer *o, prog *p) {
    if (o->s.agc <= 0 || !o->sum_count) return;
    val all = new_sums(o, p, o->sum_count);
    for (int i = 0; i < o->params; i++) {
        if (!clips_rows(o, i) || !contributes_sums(o, i)) continue;
        change_request c = change_part(o, OP_AGC_SUMS, i);
        c.in[0] = param_elements(o, p, i, PARAM_MASTER);
        c.in[1] = param_elements(o, p, i, PARAM_GRAD);
        for (int k = 0; k < 2; k++) c.out[k] = sums_of(o, p, all, i, k, false);
        rec_change(p, c);
    }
    all = rec_moved(p, all, o->parts, PLACE_I);
    for (int i = 0; i < o->params; i++) {
        if (!clips_rows(o, i) || o->param[i].range < 0) continue;
        change_request c = change_part(o, OP_AGC, i);
        c.attr.agc = o->range[o->param[i].range].attr.agc;
        c.out[0] = param_elements(o, p, i, PARAM_GRAD);
        for (int k = 0; k < 2; k++) c.in[k] = sums_of(o, p, all, i, k, false);
        rec_change(p, c);
    }
}

void record_along(const optimizer *o, prog *p, const update_range *s, val direction, val squares) {
    change_request c = change_of(s->r->op);
    c.attr = s->attr;
    c.attr.update.host_state = false;
    c.in[0] = direction;
    c.in[1] = squares;
    record_weights(o, p, s, &c);
    rec_change(p, c);
}

/* ---- Adafactor ------------------------------------------------------------------------------- */
static bool is_factored(const optimizer *o, int param) {
    rule_kind kind = o->param[param].r->kind;
    return kind == BY_FACTORS || kind == BY_FACTORS_VECTOR;
}

/* @return the factors of all matrices. */
static val record_factors(const optimizer *o, prog *p) {
    val all = new_sums(o, p, o->sum_count);
    for (int i = 0; i < o->params; i++) {
        if (o->param[i].r->kind != BY_FACTORS || !contributes_sums(o, i)) continue;
        change_request c = change_part(o, OP_FACTOR_SUMS, i);
        c.attr.update.eps = o->range[o->param[i].range].attr.update.eps;
        c.in[0] = param_elements(o, p, i, PARAM_GRAD);
        for (int k = 0; k < 2; k++) c.out[k] = sums_of(o, p, all, i, k, k);
        rec_change(p, c);
    }
    all = rec_moved(p, all, o->parts, PLACE_I);
    for (int i = 0; i < o->params; i++) {
        if (o->param[i].r->kind != BY_FACTORS || o->param[i].whole[0] < 0) continue;
        change_request c = change_of(OP_FACTOR_MOMENTS);
        for (int k = 0; k < 2; k++) c.out[k] = sums_of(o, p, all, i, k, k);
        record_states(o, p, i, &c);
        rec_change(p, c);
    }
    return all;
}

/* Makes the gradient the direction. */
static void record_direction(const optimizer *o, prog *p, val factors, int param) {
    const param_update *t = &o->param[param];
    const update_range *s = &o->range[t->range];
    bool matrix = t->r->kind == BY_FACTORS;
    change_request c =
        matrix ? change_part(o, OP_FACTOR_MATRIX, param) : change_of(OP_FACTOR_VECTOR);
    c.out[0] = param_elements(o, p, param, PARAM_GRAD);
    if (matrix) {
        for (int k = 0; k < 2; k++) c.in[k] = sums_of(o, p, factors, param, k, k);
    } else {
        c.attr.update.eps = s->attr.update.eps;
        record_states(o, p, param, &c);
    }
    rec_change(p, c);
}

static void record_adafactor(const optimizer *o, prog *p) {
    int64_t two = 2;
    val factors =
        o->sum_count ? record_factors(o, p) : VAL_NONE; /* a group may have vectors only */
    val squares = new_sums(o, p, two * o->params);
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        if (!is_factored(o, i) || o->param[i].range < 0) continue;
        record_direction(o, p, factors, i);
        if (contributes_sums(o, i))
            record_squares(p, param_elements(o, p, i, PARAM_GRAD), q->dim[0] * q->dim[1],
                           prog_elements(p, squares, two * i, 1, &two), false);
    }
    squares = rec_moved(p, squares, o->parts, PLACE_I);
    for (int i = 0; i < o->params; i++)
        if (is_factored(o, i) && o->param[i].range >= 0)
            record_along(o, p, &o->range[o->param[i].range], param_elements(o, p, i, PARAM_GRAD),
                         prog_elements(p, squares, two * i, 1, &two));
}

void record_directions(const optimizer *o, prog *p) {
    bool factored = false, orthogonal = false;
    for (int i = 0; i < o->params; i++) {
        factored |= is_factored(o, i);
        orthogonal |= o->param[i].r->kind == BY_ORTHOGONAL;
    }
    if (factored) record_adafactor(o, p);
    if (orthogonal) record_muon(o, p);
}
