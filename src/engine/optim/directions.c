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
 * the same. Nobody ever holds more than one layer. Where no ranks have slices, matrices stay in the gradient's place.
 *
 * Matrices of one shape, or of that shape transposed, are orthogonalized in batches: packed one after another into
 * rows of a buffer, iterated upon together, and unpacked. What becomes of a matrix does not depend on its batch.
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

/* The layers of a bucket are dealt out to the ranks of its slices, in order (next_layers). */
static bool orthogonalizes_here(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    axis_set axes = slices_over(o, param);
    int at = 0;
    if (!q->local[0]) return false; /* another rank's expert */
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        if (b.bucket != q->bucket) continue;
        if (b.layer == q->layer)
            return at % mesh_span(&o->mesh, axes) == mesh_index(&o->mesh, axes);
        at++;
    }
    return false;
}

/* ---- memory -------------------------------------------------------------------------------- */
/* Whether this rank keeps the parameter's states by row and column: Adafactor's follow from sums over all ranks. */
static bool has_lines_here(const optimizer *o, int param) {
    return o->param[param].r->kind == BY_ORTHOGONAL ? orthogonalizes_here(o, param)
                                                    : bucket_is_here(o, param);
}

void directions_reserve(optimizer *o) {
    o->polar = model_lay(o->m)->dt == DT_F32 ? DT_F32 : o->s.backend->polar;
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
            if (state_is_whole(x) && has_lines_here(o, i))
                t->whole[k] = (host ? plan_region_host : plan_region)(
                    o->p, "optimizer", (size_t)q->dim[x->shape == AS_COLS] * sizeof(float));
        }
    }
}

/* ---- operands ------------------------------------------------------------------------------- */
/* The elements of a parameter that this rank updates. */
static val param_elements(const optimizer *o, prog *p, int param, param_buffer which) {
    const param_update *t = &o->param[param];
    const update_range *s = &o->range[t->range];
    return record_elements(o, p, param, which == PARAM_GRAD ? s->b.grad : s->b.master, DT_F32,
                           s->at + t->at, t->count);
}

/* An op on a rank's part of a matrix. */
static change_request change_part(const optimizer *o, op_code op, int param) {
    change_request c = change_of(op);
    c.attr.update.first = model_weights_range(o->m, param).from;
    c.attr.update.base = model_global_index(o->m, param, 0);
    c.attr.update.cols = model_param_at(o->m, param)->local[1];
    c.attr.update.stride = model_param_at(o->m, param)->dim[1];
    return c;
}

/* The sums of a matrix among those of all: by row, then by column or by row again. */
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

/* The weights' step along a direction. @param squares VAL_NONE: its length is right as it is */
static void record_along(const optimizer *o, prog *p, const update_range *s, val direction,
                         val squares) {
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

/* ---- Muon ------------------------------------------------------------------------------------ */
static void record_copy(prog *p, val from, val to) {
    change_request copy = change_of(OP_ADD);
    copy.in[0] = from;
    copy.out[0] = to;
    rec_change(p, copy);
}

/* A matrix that is to be orthogonalized. */
typedef struct muon_entry {
    int param;
    val own;    /* this rank's shard */
    val whole;  /* what was packed: itself, or gathered */
    val packed; /* its place in its batch; VAL_NONE: it has not been in one yet */
} muon_entry;
typedef struct muon_list {
    muon_entry *entry; /* [params] */
    int n;
} muon_list;

/* A packed matrix has its longer side across, and sides that 16-byte accesses divide. */
enum { PACKED_MULTIPLE = 8, BATCH_ELEMENTS = 1 << 28 };
typedef struct packed_shape {
    int64_t dim[2];
} packed_shape;

static packed_shape packed_shape_of(const optimizer *o, const muon_entry *e) {
    const model_param *q = model_param_at(o->m, e->param);
    int64_t s = ceil_div(MIN(q->dim[0], q->dim[1]), PACKED_MULTIPLE);
    int64_t l = ceil_div(MAX(q->dim[0], q->dim[1]), PACKED_MULTIPLE);
    return (packed_shape){ { s * PACKED_MULTIPLE, l * PACKED_MULTIPLE } };
}
static bool packs_alike(const optimizer *o, const muon_entry *a, const muon_entry *b) {
    packed_shape x = packed_shape_of(o, a), y = packed_shape_of(o, b);
    return x.dim[0] == y.dim[0] && x.dim[1] == y.dim[1];
}

/* Axes over which the matrix is sharded, and how. */
static axis_set shards_over(const optimizer *o, const model_param *q) {
    return placement_axes(q->pl, PL_S) & mesh_axes(&o->mesh);
}
static place shard_place(axis_set axes, const model_param *q) {
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) return q->pl.on[a];
    return PLACE_I;
}

/* @return the whole matrix. Of rows that several tp ranks hold, the first of them has the matrix's; a sum brings them
 * together. */
static val record_whole(const optimizer *o, prog *p, const muon_entry *e) {
    const model_param *q = model_param_at(o->m, e->param);
    if (!q->repeated) return rec_moved(p, e->own, shards_over(o, q), PLACE_I);
    val sum = prog_scratch(p, 2, q->dim, placement_on(shards_over(o, q), PLACE_P));
    record_zero(p, sum);
    if (mesh_index(&o->mesh, model_param_same(o->m, e->param) & ~AXES_ALL) == 0)
        record_copy(p, e->own, prog_elements(p, sum, q->first[0] * q->dim[1], 2, q->local));
    return rec_moved(p, sum, shards_over(o, q), PLACE_I);
}

/* Makes this rank's shard that of the packed matrix. */
static void record_unpack(const optimizer *o, prog *p, const muon_entry *e) {
    const model_param *q = model_param_at(o->m, e->param);
    axis_set axes = shards_over(o, q);
    op_code keeps = o->param[e->param].r->keeps[1];
    change_request unpack = change_of(keeps ? keeps : OP_MUON_UNPACK);
    val whole = e->whole == e->own ? e->own : prog_scratch_like(p, e->whole);
    unpack.in[0] = e->packed;
    unpack.out[0] = whole;
    if (keeps) unpack.attr.update.beta2 = (float)o->s.muon_beta2;
    record_states(o, p, e->param, &unpack);
    rec_change(p, unpack);
    if (q->repeated)
        record_copy(p, prog_elements(p, whole, q->first[0] * q->dim[1], 2, q->local), e->own);
    else if (axes)
        rec_move_into(p, whole, axes, shard_place(axes, q), e->own);
}

/* Orthogonalizes this matrix and others of its shape behind it, as many as a batch may have: enough for the tiles of
 * a GPU's last wave to matter little. */
static void record_batch(const optimizer *o, prog *p, muon_entry *first, int behind) {
    packed_shape x = packed_shape_of(o, first);
    int64_t each = x.dim[0] * x.dim[1], limit = MAX(1, BATCH_ELEMENTS / each), n = 0;
    for (int i = 0; i < behind; i++)
        n += first[i].packed == VAL_NONE && packs_alike(o, first, &first[i]);
    n = MIN(n, limit);
    val all =
        prog_scratch_of(p, o->polar, 3, (int64_t[]){ n, x.dim[0], x.dim[1] }, (placement){ 0 });
    int last = -1;
    for (int64_t k = 0; k < n;) {
        muon_entry *e = &first[++last];
        if (e->packed != VAL_NONE || !packs_alike(o, first, e)) continue;
        e->packed = prog_elements(p, all, k++ * each, 2, x.dim);
        change_request pack = change_of(OP_MUON_PACK);
        pack.attr.update.polar = o->s.polar;
        pack.attr.update.equilibrate = o->s.equilibrate;
        pack.in[0] = e->whole = record_whole(o, p, e);
        pack.out[0] = e->packed;
        rec_change(p, pack);
    }
    change_request c = change_of(OP_ORTHOGONALIZE);
    c.attr.update.polar = o->s.polar;
    c.out[0] = all;
    rec_change(p, c);
    for (int i = 0; i <= last; i++)
        if (packs_alike(o, first, &first[i])) record_unpack(o, p, &first[i]);
}

static void record_orthogonal(const optimizer *o, prog *p, muon_list *l) {
    for (int i = 0; i < l->n; i++)
        if (l->entry[i].packed == VAL_NONE) record_batch(o, p, &l->entry[i], l->n - i);
    l->n = 0;
}

/* A bucket's instances, one for each layer, which are dealt out to the ranks of its slices. */
typedef struct bucket_layers {
    const bucket_view *view; /* [layers of a round] */
    int n, slices;
    axis_set axes;
} bucket_layers;

/* Where the directions of a range are: in their layer's row of the slices, or in the gradient. */
static val direction_of(const optimizer *o, prog *p, const bucket_layers *b, val slices, int layer,
                        const update_range *s) {
    if (b->slices == 1) return record_elements(o, p, s->param, s->b.grad, DT_F32, s->at, s->count);
    return prog_elements(p, slices, layer * b->view[layer].count + s->at, 1, &s->count);
}

static void record_momentum(const optimizer *o, prog *p, const update_range *s, val direction) {
    change_request c = change_of(OP_MUON_MOMENTUM);
    c.attr.update.momentum = s->attr.update.momentum;
    c.attr.update.nesterov = s->attr.update.nesterov;
    c.attr.update.host_state = s->attr.update.host_state;
    c.in[0] = record_elements(o, p, s->param, s->b.grad, DT_F32, s->at, s->count);
    c.out[0] = direction;
    record_states(o, p, s->param, &c);
    rec_change(p, c);
}

/* @param steps the weights along the directions; else the momentum becomes them */
static void each_range(const optimizer *o, prog *p, const bucket_layers *b, val slices,
                       bool steps) {
    for (int layer = 0; layer < b->n; layer++)
        for (int i = 0; i < o->ranges; i++) {
            const update_range *s = &o->range[i];
            if (s->r->kind != BY_ORTHOGONAL || s->b.bucket != b->view[layer].bucket ||
                s->b.layer != b->view[layer].layer)
                continue;
            val u = direction_of(o, p, b, slices, layer, s);
            if (steps)
                record_along(o, p, s, u, VAL_NONE);
            else
                record_momentum(o, p, s, u);
        }
}

/* Lists the matrices of one layer. @param all its bucket, whole */
static void list_layer(const optimizer *o, prog *p, const bucket_view *v, val all, muon_list *l) {
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        if (o->param[i].r->kind != BY_ORTHOGONAL || q->bucket != v->bucket || q->layer != v->layer)
            continue;
        if (!q->local[0]) continue; /* another rank's expert */
        val own = prog_shard(p, all, q->offset, q->local, q->pl);
        l->entry[l->n++] = (muon_entry){ i, own, VAL_NONE, VAL_NONE };
    }
}

/* Layers of which each rank has a slice: one per slice. */
static void update_sliced(const optimizer *o, prog *p, const bucket_layers *b, muon_list *l) {
    int me = mesh_index(&o->mesh, b->axes);
    val mine = prog_scratch(p, 2, (int64_t[]){ b->slices, b->view[0].count },
                            placement_on(b->axes, PLACE_S(1)));
    each_range(o, p, b, mine, false);
    val bucket = rec_moved(p, mine, b->axes, PLACE_S(0));
    if (me < b->n) list_layer(o, p, &b->view[me], bucket, l);
    record_orthogonal(o, p, l);
    each_range(o, p, b, rec_moved(p, bucket, b->axes, PLACE_S(1)), true);
}

/* The parameter of a bucket that Muon updates, -1: none. */
static int orthogonal_param(const optimizer *o, int bucket) {
    for (int i = 0; i < o->params; i++)
        if (o->param[i].r->kind == BY_ORTHOGONAL && model_param_at(o->m, i)->bucket == bucket)
            return i;
    return -1;
}

/* The next layers of a bucket, from view *at on: as many as its ranks have slices. Views of one bucket follow one
 * another, by layer. @return whether Muon updates them */
static bool next_layers(const optimizer *o, int *at, bucket_view *view, bucket_layers *b) {
    *b = (bucket_layers){ view, .n = 0 };
    view[0] = model_bucket(o->m, *at);
    int param = orthogonal_param(o, view[0].bucket);
    b->axes = param < 0 ? 0 : slices_over(o, param);
    b->slices = mesh_span(&o->mesh, b->axes);
    for (; *at < model_buckets(o->m) && b->n < b->slices; ++*at) {
        view[b->n] = model_bucket(o->m, *at);
        if (view[b->n].bucket != view[0].bucket) break;
        b->n++;
    }
    return param >= 0;
}

static void record_muon(const optimizer *o, prog *p) {
    int n = model_buckets(o->m);
    bucket_view *view = mem_alloc((size_t)(n + 1) * sizeof *view);
    bucket_layers b;
    muon_list l = { mem_alloc((size_t)o->params * sizeof *l.entry), 0 };
    for (int i = 0; i < n;)
        if (next_layers(o, &i, view, &b) && b.slices > 1) update_sliced(o, p, &b, &l);
    for (int i = 0; i < n;) {
        if (!next_layers(o, &i, view, &b) || b.slices > 1) continue;
        each_range(o, p, &b, VAL_NONE, false);
        val all = prog_region(p, view->name, view->grad.region, view->grad.at, DT_F32, view->count,
                              (placement){ 0 });
        list_layer(o, p, view, all, &l);
    }
    record_orthogonal(o, p, &l);
    for (int i = 0; i < n;)
        if (next_layers(o, &i, view, &b) && b.slices == 1) each_range(o, p, &b, VAL_NONE, true);
    free(l.entry);
    free(view);
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
