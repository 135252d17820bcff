/* Rules that need more of a matrix than a rank holds of it: adaptive clipping, Adafactor and Muon.
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
 * the whole matrix's rows and columns; those of all matrices lie in one buffer, which is summed over the
 * ranks at once (P -> I), and so are the mean squares of Adafactor's directions. Of ranks that hold
 * the same elements one contributes. What follows from the sums every rank computes for itself.
 *
 * Muon needs whole matrices, for work that is worth sharing. The layers are dealt out to the slices' ranks:
 * of as many layers as there are slices each rank sends its slice of layer j to rank j (an all-to-all),
 * which orthogonalizes that layer's matrices and sends the slices back.
 *
 *     rank 0:  layer 0 slice 0 | layer 1 slice 0          layer 0: slice 0 | slice 1
 *     rank 1:  layer 0 slice 1 | layer 1 slice 1   <->    layer 1: slice 0 | slice 1
 *
 * Matrices that tensor parallelism has sharded are gathered over its ranks first, and all of these compute
 * the same. Nobody ever holds more than one layer.
 */
#include "optim_internal.h"

#include "ops/op_table.h"

static const rule *rule_at(const optimizer *o, int param) {
    return rule_of(o->s.kind, model_param_at(o->m, param));
}
static bool clips_rows(const optimizer *o, int param) {
    return rule_clips_rows(&o->s, model_conf(o->m), model_param_at(o->m, param));
}

/* Axes along which ranks hold different parts of a parameter. Ranks of another pipeline stage have other
 * parameters. */
static axis_set parts_over(const optimizer *o, int param) {
    return mesh_axes(&o->mesh) & ~model_param_same(o->m, param) & ~AXIS(AX_PP);
}
/* Those of them that ZeRO slices it over. */
static axis_set slices_over(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    return parts_over(o, param) & ~placement_axes(q->pl, PL_S) & ~q->apart;
}

/* Whether this rank adds its part of the parameter to a sum over the ranks: the first of those that hold the
 * same one does. */
static bool contributes_sums(const optimizer *o, int param) {
    return o->slot[param].range >= 0 &&
           mesh_index(&o->mesh, (o->d.parts | AXES_TP_REP) & model_param_same(o->m, param)) == 0;
}

static bool bucket_is_here(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        if (b.bucket == q->bucket && (b.layer < 0 || b.layer == q->layer)) return true;
    }
    return false;
}

/* ---- calls --------------------------------------------------------------------------------- */
/* The elements of a parameter that this rank updates. */
static tensor param_elements(const optimizer *o, int param, param_part part, bool ready) {
    const param_slot *t = &o->slot[param];
    const update_range *s = &o->range[t->range];
    return part_view(o, ready, part == PARAM_GRAD ? s->b.grad : s->b.master, DT_F32, s->at + t->at,
                     1, &t->count);
}

static op_attr part_attr(const optimizer *o, int param) {
    op_attr a = { 0 };
    a.update.first = model_weights_range(o->m, param).from;
    a.update.base = model_global_index(o->m, param, 0);
    a.update.cols = model_param_at(o->m, param)->local[1];
    a.update.stride = model_param_at(o->m, param)->dim[1];
    return a;
}

/* The sums of a matrix: by row, then by column or by row again. */
static tensor sums_tensor(const optimizer *o, int param, int which, bool by_column, bool ready) {
    const model_param *q = model_param_at(o->m, param);
    int64_t at = o->slot[param].sums + which * q->dim[0];
    return region_view(o, ready, o->d.sums, DT_F32, at, 1, &q->dim[by_column]);
}
static tensor all_sums(const optimizer *o) {
    return region_view(o, true, o->d.sums, DT_F32, 0, 1, &o->d.sum_count);
}

static tensor param_squares(const optimizer *o, int param) {
    int64_t two = 2;
    return region_view(o, true, o->d.squares, DT_F32, 2 * param, 1, &two);
}

static op_call agc_sums_call(const optimizer *o, int param, bool ready) {
    op_call c = { .op = OP_AGC_SUMS, .attr = part_attr(o, param) };
    c.in[0] = param_elements(o, param, PARAM_MASTER, ready);
    c.in[1] = param_elements(o, param, PARAM_GRAD, ready);
    for (int k = 0; k < 2; k++) c.out[k] = sums_tensor(o, param, k, false, ready);
    return c;
}

static op_call agc_call(const optimizer *o, int param, bool ready) {
    op_call c = { .op = OP_AGC, .attr = part_attr(o, param) };
    c.attr.agc = o->range[o->slot[param].range].attr.agc;
    c.out[0] = param_elements(o, param, PARAM_GRAD, ready);
    for (int k = 0; k < 2; k++) c.in[k] = sums_tensor(o, param, k, false, ready);
    return c;
}

static op_call factor_sums_call(const optimizer *o, int param, bool ready) {
    op_call c = { .op = OP_FACTOR_SUMS, .attr = part_attr(o, param) };
    c.attr.update.eps = o->range[o->slot[param].range].attr.update.eps;
    c.in[0] = param_elements(o, param, PARAM_GRAD, ready);
    for (int k = 0; k < 2; k++) c.out[k] = sums_tensor(o, param, k, k, ready);
    return c;
}

static op_call factor_moments_call(const optimizer *o, int param, bool ready) {
    op_call c = { .op = OP_FACTOR_MOMENTS };
    for (int k = 0; k < 2; k++) {
        c.out[k] = c.out[2 + k] = sums_tensor(o, param, k, k, ready);
        c.out[2 + k].data = ready ? plan_data(o->p, o->slot[param].whole[k]) : NULL;
    }
    return c;
}

static op_call factor_call(const optimizer *o, int param, bool ready) {
    const update_range *s = &o->range[o->slot[param].range];
    op_call c = { .op = OP_FACTOR_MATRIX };
    c.out[0] = param_elements(o, param, PARAM_GRAD, ready);
    if (s->r->kind == BY_FACTORS) {
        c.attr = part_attr(o, param);
        for (int k = 0; k < 2; k++) c.in[k] = sums_tensor(o, param, k, k, ready);
    } else {
        c.op = OP_FACTOR_VECTOR;
        c.attr.update.eps = s->attr.update.eps;
        c.out[1] = region_view(o, ready, s->state[0], DT_F32, 0, 1, &s->count);
    }
    return c;
}

static op_call momentum_call(const optimizer *o, const update_range *s, float *u, bool ready) {
    op_call c = { .op = OP_MUON_MOMENTUM };
    c.attr.update.momentum = s->attr.update.momentum;
    c.attr.update.nesterov = s->attr.update.nesterov;
    c.attr.update.host_state = s->attr.update.host_state;
    c.in[0] = c.out[0] = part_view(o, ready, s->b.grad, DT_F32, s->at, 1, &s->count);
    if (u) c.out[0].data = u;
    c.out[1] = region_view(o, ready, s->state[0], DT_F32, 0, 1, &s->count);
    return c;
}

/* The weights' step; `u` is where the direction lies, if not in the gradient's place. */
static op_call along_call(const optimizer *o, const update_range *s, float *u, bool ready) {
    op_call c = { .op = OP_UPDATE_ALONG, .attr = s->attr };
    c.attr.update.host_state = false;
    c.in[0] = part_view(o, ready, s->b.grad, DT_F32, s->at, 1, &s->count);
    if (u) c.in[0].data = u;
    c.out[0] = part_view(o, ready, s->b.master, s->b.master_dt, s->at, 1, &s->count);
    if (s->b.copy.region >= 0)
        c.out[1] = part_view(o, ready, s->b.copy, s->b.dt, s->at, 1, &s->count);
    return c;
}

/* ---- memory -------------------------------------------------------------------------------- */
static err reserve_sums(optimizer *o, plan *p) {
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        param_slot *t = &o->slot[i];
        bool factored = rule_at(o, i)->kind == BY_FACTORS;
        if ((!factored && !clips_rows(o, i)) || !bucket_is_here(o, i)) continue;
        t->sums = o->d.sum_count;
        o->d.sum_count += q->dim[0] + MAX(q->dim[0], q->dim[1]);
        bool host = t->range >= 0 && o->range[t->range].attr.update.host_state;
        for (int k = 0; k < 2 && factored; k++)
            t->whole[k] = (host ? plan_region_host
                                : plan_region)(p, "optimizer", (size_t)q->dim[k] * sizeof(float));
        op_call moments = factor_moments_call(o, i, false);
        if (factored) TRY(reserve_call(o, p, &o->work, &moments));
    }
    if (o->d.sum_count) o->d.sums = plan_region(p, "work", (size_t)o->d.sum_count * sizeof(float));
    return OK;
}

static err reserve_calls(optimizer *o, const plan *p, int param) {
    const param_slot *t = &o->slot[param];
    rule_kind kind = rule_at(o, param)->kind;
    op_call call[4];
    int n = 0;
    if (clips_rows(o, param)) {
        call[n++] = agc_sums_call(o, param, false);
        call[n++] = agc_call(o, param, false);
    }
    if (kind == BY_FACTORS) call[n++] = factor_sums_call(o, param, false);
    if (kind == BY_FACTORS || kind == BY_FACTORS_VECTOR) call[n++] = factor_call(o, param, false);
    for (int i = 0; i < n; i++) TRY(reserve_call(o, p, &o->work, &call[i]));
    if (kind == BY_ELEMENT) return OK;
    op_call along = along_call(o, &o->range[t->range], NULL, false);
    return reserve_call(o, p, &o->work, &along);
}

/* Muon's buffers: for the largest bucket, and the largest matrix of which tp ranks hold parts. */
static err reserve_orthogonal(optimizer *o, plan *p) {
    size_t most = 0, slices = 0, matrix = 0;
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        if (rule_at(o, i)->kind != BY_ORTHOGONAL || !bucket_is_here(o, i)) continue;
        int n = mesh_span(&o->mesh, slices_over(o, i));
        for (int k = 0; k < model_buckets(o->m) && n > 1; k++) {
            bucket_view b = model_bucket(o->m, k);
            if (b.bucket == q->bucket) slices = MAX(slices, (size_t)(b.count * n));
        }
        if (placement_axes(q->pl, PL_S) & mesh_axes(&o->mesh))
            matrix = MAX(matrix, (size_t)(q->dim[0] * q->dim[1]));
        op_call c = { .op = OP_ORTHOGONALIZE, .out = { tensor_of(NULL, DT_F32, 2, q->dim) } };
        TRY(reserve_call(o, p, &o->work, &c));
        if (o->slot[i].range >= 0) {
            op_call m = momentum_call(o, &o->range[o->slot[i].range], NULL, false);
            TRY(reserve_call(o, p, &o->work, &m));
        }
        most++;
    }
    if (!most) return OK;
    o->d.slices = plan_region(p, "work", slices * sizeof(float));
    o->d.bucket = plan_region(p, "work", slices * sizeof(float));
    o->d.matrix = plan_region(p, "work", matrix * sizeof(float));
    return OK;
}

err directions_reserve(optimizer *o, plan *p) {
    o->d = (directions){ .sums = -1, .squares = -1, .slices = -1, .bucket = -1, .matrix = -1 };
    for (int i = 0; i < o->params; i++)
        if (rule_at(o, i)->kind != BY_ELEMENT || clips_rows(o, i)) o->d.parts |= parts_over(o, i);
    TRY(reserve_sums(o, p));
    for (int i = 0; i < o->params; i++)
        if (o->slot[i].range >= 0) TRY(reserve_calls(o, p, i));
    TRY(reserve_orthogonal(o, p));
    if (o->d.sum_count)
        o->d.squares = plan_region(p, "work", (size_t)(2 * o->params) * sizeof(float));
    return OK;
}

/* ---- sums over ranks ------------------------------------------------------------------------ */
/* Runs the call that sums a rank's part of a parameter, where it contributes one. */
static void sum_part(const step_run *r, int param,
                     op_call (*call)(const optimizer *o, int param, bool ready)) {
    if (!contributes_sums(r->o, param)) return;
    op_call c = call(r->o, param, true);
    run_call(r, &c);
}

static void zero_tensor(const step_run *r, const tensor *t) {
    op_call zero = { .op = OP_ZERO, .out = { *t } };
    run_call(r, &zero);
}

/* ---- adaptive clipping ---------------------------------------------------------------------- */
err clip_adaptively(const step_run *r) {
    const optimizer *o = r->o;
    if (o->s.agc <= 0 || o->d.sums < 0) return OK;
    tensor all = all_sums(o);
    if (o->d.parts) zero_tensor(r, &all); /* of parts that other ranks sum */
    for (int i = 0; i < o->params; i++)
        if (clips_rows(o, i)) sum_part(r, i, agc_sums_call);
    TRY(sum_over(r, "adaptive clipping", o->d.parts, &all));
    for (int i = 0; i < o->params; i++) {
        if (!clips_rows(o, i) || o->slot[i].range < 0) continue;
        op_call c = agc_call(o, i, true);
        run_call(r, &c);
    }
    return OK;
}

/* ---- Adafactor ------------------------------------------------------------------------------- */
static void sum_squares(const step_run *r, int param) {
    const model_param *q = model_param_at(r->o->m, param);
    tensor u = param_elements(r->o, param, PARAM_GRAD, true), sum = param_squares(r->o, param);
    op_call c = sqnorm_call(u.data, u.dim[0], q->dim[0] * q->dim[1], false, &sum);
    run_call(r, &c);
}

static bool is_factored(const optimizer *o, int param) {
    rule_kind kind = rule_at(o, param)->kind;
    return kind == BY_FACTORS || kind == BY_FACTORS_VECTOR;
}

static err make_factors(const step_run *r) {
    const optimizer *o = r->o;
    tensor all = all_sums(o);
    if (o->d.parts) zero_tensor(r, &all);
    for (int i = 0; i < o->params; i++)
        if (rule_at(o, i)->kind == BY_FACTORS) sum_part(r, i, factor_sums_call);
    TRY(sum_over(r, "Adafactor's sums", o->d.parts, &all));
    for (int i = 0; i < o->params; i++) {
        if (o->slot[i].whole[0] < 0) continue;
        op_call c = factor_moments_call(o, i, true);
        run_call(r, &c);
    }
    return OK;
}

static err update_factored(const step_run *r) {
    const optimizer *o = r->o;
    int64_t n = 2 * o->params;
    tensor all = region_view(o, true, o->d.squares, DT_F32, 0, 1, &n);
    TRY(make_factors(r));
    if (o->d.parts) zero_tensor(r, &all);
    for (int i = 0; i < o->params; i++) {
        if (!is_factored(o, i) || o->slot[i].range < 0) continue;
        op_call c = factor_call(o, i, true);
        run_call(r, &c);
        if (contributes_sums(o, i)) sum_squares(r, i);
    }
    TRY(sum_over(r, "Adafactor's directions", o->d.parts, &all));
    for (int i = 0; i < o->params; i++) {
        if (!is_factored(o, i) || o->slot[i].range < 0) continue;
        op_call c = along_call(o, &o->range[o->slot[i].range], NULL, true);
        c.in[1] = param_squares(o, i);
        run_call(r, &c);
    }
    return OK;
}

/* ---- Muon ------------------------------------------------------------------------------------ */
/* Of rows that several tp ranks hold, the first of them has the matrix's; a sum brings them together. */
static err gather_repeated(const step_run *r, int param, const tensor *own, const tensor *whole) {
    const model_param *q = model_param_at(r->o->m, param);
    float *rows = (float *)whole->data + q->first[0] * q->dim[1];
    op_call copy = { .op = OP_ADD, .in = { *own } };
    copy.out[0] = tensor_of(rows, DT_F32, 2, q->local);
    zero_tensor(r, whole);
    if (mesh_index(&r->o->mesh, AXES_TP_REP) == 0) run_call(r, &copy);
    return sum_over(r, "Muon", AXIS(AX_TP), whole);
}

static void take_repeated(const step_run *r, int param, const tensor *whole, const tensor *own) {
    const model_param *q = model_param_at(r->o->m, param);
    float *rows = (float *)whole->data + q->first[0] * q->dim[1];
    op_call copy = { .op = OP_ADD, .out = { *own } };
    copy.in[0] = tensor_of(rows, DT_F32, 2, q->local);
    run_call(r, &copy);
}

/* Makes a shard of a matrix that of the orthogonal one. */
static err orthogonalize_param(const step_run *r, int param, float *shard) {
    const optimizer *o = r->o;
    const model_param *q = model_param_at(o->m, param);
    tensor own = tensor_of(shard, DT_F32, 2, q->local);
    tensor whole = region_view(o, true, o->d.matrix, DT_F32, 0, 2, q->dim);
    axis_set axes[2] = { 0 }, all = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (q->pl.on[a].kind == PL_S && mesh_size(&o->mesh, (mesh_axis)a) > 1)
            axes[q->pl.on[a].dim] |= AXIS(a);
    all = axes[0] | axes[1];
    BUG_IF(axes[0] && axes[1]);
    op_call c = { .op = OP_ORTHOGONALIZE, .out = { all ? whole : own } };
    place shards = PLACE_S((uint8_t)(axes[1] ? 1 : 0));
    if (q->repeated) {
        TRY(gather_repeated(r, param, &own, &whole));
        run_call(r, &c);
        take_repeated(r, param, &whole, &own);
        return OK;
    }
    TRY(move_tensor(r, "Muon", (comm_move){ all, shards, PLACE_I }, &own, &whole));
    run_call(r, &c);
    return move_tensor(r, "Muon", (comm_move){ all, PLACE_I, shards }, &whole, &own);
}

/* A bucket's instances, one for each layer, which are dealt out to the ranks of its slices. */
typedef struct bucket_layers {
    const bucket_view *view; /* [layers of a round] */
    int n, slices;
    axis_set axes;
} bucket_layers;

/* Where the directions of a range lie: in their layer's row of the slices, or in the gradient. */
static float *direction_of(const optimizer *o, const bucket_layers *b, int layer,
                           const update_range *s) {
    if (b->slices == 1) return NULL;
    return (float *)plan_data(o->p, o->d.slices) + layer * b->view[layer].count + s->at;
}

typedef op_call (*range_call)(const optimizer *o, const update_range *s, float *u, bool ready);
static void each_range(const step_run *r, const bucket_layers *b, range_call call) {
    const optimizer *o = r->o;
    for (int layer = 0; layer < b->n; layer++)
        for (int i = 0; i < o->ranges; i++) {
            const update_range *s = &o->range[i];
            if (s->r->kind != BY_ORTHOGONAL || s->b.bucket != b->view[layer].bucket ||
                s->b.layer != b->view[layer].layer)
                continue;
            op_call c = call(o, s, direction_of(o, b, layer, s), true);
            run_call(r, &c);
        }
}

/* The matrices of one layer, whose shards are at their offsets from `base` on. */
static err orthogonalize_layer(const step_run *r, const bucket_view *v, float *base) {
    const optimizer *o = r->o;
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        if (rule_at(o, i)->kind != BY_ORTHOGONAL || q->bucket != v->bucket || q->layer != v->layer)
            continue;
        if (!q->local[0]) continue; /* another rank's expert */
        TRY(orthogonalize_param(r, i, base + q->offset));
    }
    return OK;
}

static err update_layers(const step_run *r, const bucket_layers *b) {
    const optimizer *o = r->o;
    int me = mesh_index(&o->mesh, b->axes);
    each_range(r, b, momentum_call);
    if (b->slices == 1) {
        const bucket_view *v = &b->view[0];
        TRY(orthogonalize_layer(r, v, (float *)plan_data(o->p, v->grad.region) + v->grad.at));
    } else {
        int64_t count = b->view[0].count, mine[] = { b->slices, count };
        int64_t row[] = { 1, b->slices * count };
        tensor slices = region_view(o, true, o->d.slices, DT_F32, 0, 2, mine);
        tensor bucket = region_view(o, true, o->d.bucket, DT_F32, 0, 2, row);
        TRY(move_tensor(r, "Muon", (comm_move){ b->axes, PLACE_S(1), PLACE_S(0) }, &slices,
                        &bucket));
        if (me < b->n) TRY(orthogonalize_layer(r, &b->view[me], bucket.data));
        TRY(move_tensor(r, "Muon", (comm_move){ b->axes, PLACE_S(0), PLACE_S(1) }, &bucket,
                        &slices));
    }
    each_range(r, b, along_call);
    return OK;
}

/* The parameter of a bucket that Muon updates, -1: none. */
static int orthogonal_param(const optimizer *o, int bucket) {
    for (int i = 0; i < o->params; i++)
        if (rule_at(o, i)->kind == BY_ORTHOGONAL && model_param_at(o->m, i)->bucket == bucket)
            return i;
    return -1;
}

/* Views of one bucket follow one another, by layer. */
static err update_orthogonal(const step_run *r) {
    enum { MOST = 1024 };
    const optimizer *o = r->o;
    bucket_view view[MOST];
    int n = model_buckets(o->m);
    for (int i = 0; i < n;) {
        bucket_layers b = { view, .n = 0 };
        view[0] = model_bucket(o->m, i);
        int param = orthogonal_param(o, view[0].bucket);
        b.axes = param < 0 ? 0 : slices_over(o, param);
        b.slices = mesh_span(&o->mesh, b.axes);
        BUG_IF(b.slices > MOST);
        for (; i < n && b.n < b.slices; i++) {
            view[b.n] = model_bucket(o->m, i);
            if (view[b.n].bucket != view[0].bucket) break;
            b.n++;
        }
        if (param >= 0) TRY(update_layers(r, &b));
    }
    return OK;
}

err update_along_directions(const step_run *r) {
    bool factored = false, orthogonal = false;
    for (int i = 0; i < r->o->params; i++) {
        factored |= is_factored(r->o, i);
        orthogonal |= rule_at(r->o, i)->kind == BY_ORTHOGONAL;
    }
    if (factored) TRY(update_factored(r));
    return orthogonal ? update_orthogonal(r) : OK;
}
