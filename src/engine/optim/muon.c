/* Muon over ranks.
 *
 * Muon needs whole matrices, for work that is worth sharing. The layers are distributed over the slices' ranks:
 * in a round of one layer per slice each rank sends its slice of layer j to rank j (an all-to-all),
 * which orthogonalizes that layer's matrices and sends the slices back.
 *
 *     rank 0:  layer 0 slice 0 | layer 1 slice 0          layer 0: slice 0 | slice 1
 *     rank 1:  layer 0 slice 1 | layer 1 slice 1   <->    layer 1: slice 0 | slice 1
 *
 * Matrices that tensor parallelism has sharded are distributed over its ranks the same way: one matrix of a shape
 * to each rank that has a shard (muon_round). Those with rows that several ranks hold are gathered, and all of
 * those ranks compute the same. No rank ever holds more than one layer. Where no ranks have slices, matrices stay in
 * the gradient's place.
 *
 * Matrices of one shape, or of that shape transposed, are orthogonalized in batches: packed one after another into
 * rows of a buffer, iterated upon together, and unpacked. The result of a matrix does not depend on its batch.
 */
#include "optim_internal.h"

#include <stdlib.h>

/* ---- who orthogonalizes a matrix ------------------------------------------------------------- */
/* Axes over which the matrix is sharded, and how. */
static axis_set shards_over(const optimizer *o, const model_param *q) {
    return placement_axes(q->pl, PL_S) & mesh_axes(&o->mesh);
}
static place shard_place(axis_set axes, const model_param *q) {
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) return q->pl.on[a];
    return PLACE_I;
}

axis_set dealt_over(const optimizer *o, int param) {
    bool dealt = o->param[param].turn >= 0;
    return slices_over(o, param) | (dealt ? shards_over(o, model_param_at(o->m, param)) : 0);
}

static bool is_turn_of_this(const optimizer *o, int param) {
    int turn = o->param[param].turn;
    return turn < 0 || turn == mesh_index(&o->mesh, shards_over(o, model_param_at(o->m, param)));
}

/* The layers of a bucket are distributed over the ranks of its slices, in order (next_layers). */
bool muon_is_here(const optimizer *o, int param) {
    const model_param *q = model_param_at(o->m, param);
    axis_set axes = slices_over(o, param);
    int at = 0;
    if (!q->local[0]) return false; /* another rank's expert */
    if (!is_turn_of_this(o, param)) return false;
    for (int i = 0; i < model_buckets(o->m); i++) {
        bucket_view b = model_bucket(o->m, i);
        if (b.bucket != q->bucket) continue;
        if (b.layer == q->layer)
            return at % mesh_span(&o->mesh, axes) == mesh_index(&o->mesh, axes);
        at++;
    }
    return false;
}

/* Matrices that ranks take turns with: of one shape, sharded alike, in one list of record_orthogonal. A list has one
 * layer where ranks have slices, and all layers otherwise. */
typedef struct deal {
    int bucket, layer; /* layer: -1 for all */
    int64_t dim[2];
    placement pl;
    int first, n; /* the turn of its first matrix, and the number of matrices */
} deal;

static bool is_dealt_alike(const deal *a, const deal *b) {
    return a->bucket == b->bucket && a->layer == b->layer && a->dim[0] == b->dim[0] &&
           a->dim[1] == b->dim[1] && placement_same(a->pl, b->pl);
}

void muon_deal(optimizer *o) {
    deal *all = mem_alloc((size_t)o->params * sizeof *all);
    int n = 0;
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        int ranks = mesh_span(&o->mesh, shards_over(o, q)), k = n;
        o->param[i].turn = -1;
        if (o->param[i].r->kind != BY_ORTHOGONAL || ranks == 1 || q->repeated || !q->local[0])
            continue;
        bool sliced = mesh_span(&o->mesh, slices_over(o, i)) > 1;
        deal d = { q->bucket, sliced ? q->layer : -1, { q->dim[0], q->dim[1] }, q->pl, 0, 0 };
        while (k > 0 && !is_dealt_alike(&all[k - 1], &d)) {
            k--; /* a list's first shape begins where its others have ended */
            if (all[k].bucket == d.bucket && all[k].layer == d.layer) d.first += all[k].n;
        }
        if (k == 0)
            all[k = n++] = d;
        else
            k--;
        o->param[i].turn = (all[k].first + all[k].n++) % ranks;
    }
    free(all);
}

static void record_copy(prog *p, val from, val to) {
    change_request copy = change_of(OP_ADD);
    copy.in[0] = from;
    copy.out[0] = to;
    rec_change(p, copy);
}

/* A matrix that is to be orthogonalized. */
typedef struct muon_entry {
    int param;
    int round;  /* of its list; -1: none yet */
    val own;    /* this rank's shard */
    val packed; /* its place in its batch; VAL_NONE: another rank orthogonalizes it */
} muon_entry;
/* Matrices of one shape and placement that one all-to-all brings to the ranks whose turn they are, at most one to each; or
 * a single one that this rank has whole, or gathers. */
typedef struct muon_round {
    int first, last; /* in the list, beside others between them */
    int here;        /* the one that this rank orthogonalizes; -1: none */
    val whole;       /* what was packed; of one that is dealt, [1, rows, columns] */
} muon_round;
typedef struct muon_list {
    muon_entry *entry; /* [params] */
    muon_round *round; /* [params] */
    int n, rounds;
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

/* ---- rounds ------------------------------------------------------------------------------------ */
static bool moves_alike(const optimizer *o, const muon_entry *a, const muon_entry *b) {
    const model_param *q = model_param_at(o->m, a->param), *r = model_param_at(o->m, b->param);
    return q->dim[0] == r->dim[0] && q->dim[1] == r->dim[1] && placement_same(q->pl, r->pl) &&
           o->param[b->param].turn >= 0;
}

/* Begins a round with an entry, which those behind it join until it is the turn of a rank that has one. */
static void begin_round(const optimizer *o, muon_list *l, int at) {
    muon_entry *e = &l->entry[at];
    muon_round *r = &l->round[l->rounds];
    axis_set axes = shards_over(o, model_param_at(o->m, e->param));
    int first = o->param[e->param].turn, ranks = mesh_span(&o->mesh, axes);
    *r = (muon_round){ at, at, is_turn_of_this(o, e->param) ? at : -1, VAL_NONE };
    e->round = l->rounds++;
    for (int i = at + 1, next = 1; i < l->n && first >= 0 && next < ranks; i++) {
        muon_entry *f = &l->entry[i];
        if (f->round >= 0 || !moves_alike(o, e, f)) continue;
        if (o->param[f->param].turn != (first + next++) % ranks) break;
        f->round = e->round;
        r->last = i;
        if (is_turn_of_this(o, f->param)) r->here = i;
    }
}

/* @return the offset of a matrix among the round's shards, [ranks, rows, columns]: each rank has its part of every one. */
static int64_t turn_at(const optimizer *o, const muon_entry *e) {
    const model_param *q = model_param_at(o->m, e->param);
    return o->param[e->param].turn * q->local[0] * q->local[1];
}
static place round_place(axis_set axes, const model_param *q) {
    place at = shard_place(axes, q);
    at.dim++;
    return at;
}

static val deal_out(const optimizer *o, prog *p, const muon_list *l, const muon_round *r) {
    const model_param *q = model_param_at(o->m, l->entry[r->first].param);
    axis_set axes = shards_over(o, q);
    int64_t dim[] = { mesh_span(&o->mesh, axes), q->local[0], q->local[1] };
    val parts = prog_scratch(p, 3, dim, placement_on(axes, round_place(axes, q)));
    for (int i = r->first; i <= r->last; i++)
        if (l->entry[i].round == r - l->round)
            record_copy(p, l->entry[i].own,
                        prog_elements(p, parts, turn_at(o, &l->entry[i]), 2, q->local));
    return rec_moved(p, parts, axes, PLACE_S(0));
}

static void deal_back(const optimizer *o, prog *p, const muon_list *l, const muon_round *r,
                      val whole) {
    const model_param *q = model_param_at(o->m, l->entry[r->first].param);
    axis_set axes = shards_over(o, q);
    val parts = rec_moved(p, whole, axes, round_place(axes, q));
    for (int i = r->first; i <= r->last; i++)
        if (l->entry[i].round == r - l->round)
            record_copy(p, prog_elements(p, parts, turn_at(o, &l->entry[i]), 2, q->local),
                        l->entry[i].own);
}

/* @return the whole matrix of a parameter that is not dealt. Of rows that several tp ranks hold, the first of them has the
 * matrix's; a sum brings them together. */
static val gather_whole(const optimizer *o, prog *p, const muon_entry *e) {
    const model_param *q = model_param_at(o->m, e->param);
    if (!q->repeated) return e->own;
    val sum = prog_scratch(p, 2, q->dim, placement_on(shards_over(o, q), PLACE_P));
    record_zero(p, sum);
    if (mesh_index(&o->mesh, model_param_same(o->m, e->param) & ~AXES_ALL) == 0)
        record_copy(p, e->own, prog_elements(p, sum, q->first[0] * q->dim[1], 2, q->local));
    return rec_moved(p, sum, shards_over(o, q), PLACE_I);
}

/* ---- batches ----------------------------------------------------------------------------------- */
static void record_pack(const optimizer *o, prog *p, const muon_list *l, muon_round *r,
                        val packed) {
    muon_entry *first = &l->entry[r->first];
    bool dealt = o->param[first->param].turn >= 0;
    r->whole = dealt ? deal_out(o, p, l, r) : gather_whole(o, p, first);
    if (r->here < 0) return;
    const model_param *q = model_param_at(o->m, l->entry[r->here].param);
    change_request pack = change_of(OP_MUON_PACK);
    pack.attr.update.polar = o->s.polar;
    pack.attr.update.equilibrate = o->s.equilibrate;
    pack.in[0] = dealt ? prog_elements(p, r->whole, 0, 2, q->dim) : r->whole;
    pack.out[0] = l->entry[r->here].packed = packed;
    rec_change(p, pack);
}

static const muon_entry *round_entry(const muon_list *l, const muon_round *r) {
    return &l->entry[r->here < 0 ? r->first : r->here];
}
/* @return the op that unpacks a matrix: it depends on the shape, which the matrices of a round share. */
static op_code unpack_op(const optimizer *o, const muon_entry *e) {
    op_code keeps = o->param[e->param].r->keeps[1];
    return keeps ? keeps : OP_MUON_UNPACK;
}

/* Makes this rank's shards those of the packed matrices. */
static void record_unpack(const optimizer *o, prog *p, const muon_list *l, const muon_round *r) {
    const muon_entry *e = round_entry(l, r);
    const model_param *q = model_param_at(o->m, e->param);
    bool dealt = o->param[e->param].turn >= 0;
    change_request unpack = change_of(unpack_op(o, e));
    val whole = r->whole == e->own ? e->own : prog_scratch_like(p, r->whole);
    if (r->here >= 0) {
        unpack.in[0] = e->packed;
        unpack.out[0] = dealt ? prog_elements(p, whole, 0, 2, q->dim) : whole;
        if (unpack.op != OP_MUON_UNPACK) unpack.attr.update.beta2 = (float)o->s.muon_beta2;
        record_states(o, p, e->param, &unpack);
        rec_change(p, unpack);
    } else {
        record_zero(p, whole); /* all-to-alls read it, so that it needs memory of its own */
    }
    if (dealt)
        deal_back(o, p, l, r, whole);
    else if (q->repeated)
        record_copy(p, prog_elements(p, whole, q->first[0] * q->dim[1], 2, q->local), e->own);
}

/* Orthogonalizes an entry and others of its shape behind it, as many as a batch may have: enough for the tiles of
 * a GPU's last wave to matter little. Rounds, which all ranks have, end a batch on all of them. */
static void record_batch(const optimizer *o, prog *p, muon_list *l, int first) {
    packed_shape x = packed_shape_of(o, &l->entry[first]);
    int64_t each = x.dim[0] * x.dim[1], limit = MAX(1, BATCH_ELEMENTS / each), n = 0, k = 0;
    int from = l->rounds;
    for (int i = first; i < l->n && l->rounds - from < limit; i++)
        if (l->entry[i].round < 0 && packs_alike(o, &l->entry[first], &l->entry[i]))
            begin_round(o, l, i);
    for (int i = from; i < l->rounds; i++) n += l->round[i].here >= 0;
    val all = VAL_NONE;
    if (n)
        all =
            prog_scratch_of(p, o->polar, 3, (int64_t[]){ n, x.dim[0], x.dim[1] }, (placement){ 0 });
    for (int i = from; i < l->rounds; i++) {
        bool here = l->round[i].here >= 0;
        val packed = here ? prog_elements(p, all, k++ * each, 2, x.dim) : VAL_NONE;
        record_pack(o, p, l, &l->round[i], packed);
    }
    if (n) {
        change_request c = change_of(OP_ORTHOGONALIZE);
        c.attr.update.polar = o->s.polar;
        c.out[0] = all;
        rec_change(p, c);
    }
    /* Matrices and transposed ones may unpack by different ops: calls of one op that follow each other run together. */
    op_code one = unpack_op(o, &l->entry[first]);
    for (int other = 0; other < 2; other++)
        for (int i = from; i < l->rounds; i++)
            if ((unpack_op(o, round_entry(l, &l->round[i])) != one) == other)
                record_unpack(o, p, l, &l->round[i]);
}

static void record_orthogonal(const optimizer *o, prog *p, muon_list *l) {
    for (int i = 0; i < l->n; i++)
        if (l->entry[i].round < 0) record_batch(o, p, l, i);
    l->n = l->rounds = 0;
}

/* A bucket's instances, one for each layer, which are distributed over the ranks of its slices. */
typedef struct bucket_layers {
    const bucket_view *view; /* [layers of a round] */
    int n, slices;
    axis_set axes;
} bucket_layers;

/* @return the directions of a range: in their layer's row of the slices, or in the gradient. */
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

/* @param steps the weights along the directions; else the momentum becomes them
 * @return how many ranges this rank holds */
static int each_range(const optimizer *o, prog *p, const bucket_layers *b, val slices, bool steps) {
    int n = 0;
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
            n++;
        }
    return n;
}

/* Lists the matrices of one layer. @param all its bucket, whole */
static void list_layer(const optimizer *o, prog *p, const bucket_view *v, val all, muon_list *l) {
    for (int i = 0; i < o->params; i++) {
        const model_param *q = model_param_at(o->m, i);
        if (o->param[i].r->kind != BY_ORTHOGONAL || q->bucket != v->bucket || q->layer != v->layer)
            continue;
        if (!q->local[0]) continue; /* another rank's expert */
        val own = prog_shard(p, all, q->offset, q->local, q->pl);
        l->entry[l->n++] = (muon_entry){ i, -1, own, VAL_NONE };
    }
}

/* Updates layers that ranks hold in slices, one layer per slice. */
static void update_sliced(const optimizer *o, prog *p, const bucket_layers *b, muon_list *l) {
    int me = mesh_index(&o->mesh, b->axes);
    val mine = prog_scratch(p, 2, (int64_t[]){ b->slices, b->view[0].count },
                            placement_on(b->axes, PLACE_S(1)));
    if (!each_range(o, p, b, mine, false))
        record_zero(p, mine); /* it is sent without a matrix in it */
    val bucket = rec_moved(p, mine, b->axes, PLACE_S(0));
    if (me < b->n) list_layer(o, p, &b->view[me], bucket, l);
    record_orthogonal(o, p, l);
    each_range(o, p, b, rec_moved(p, bucket, b->axes, PLACE_S(1)), true);
}

/* @return the parameter of a bucket that Muon updates; -1: none. */
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

void record_muon(const optimizer *o, prog *p) {
    int n = model_buckets(o->m);
    bucket_view *view = mem_alloc((size_t)(n + 1) * sizeof *view);
    bucket_layers b;
    muon_list l = { .entry = mem_alloc((size_t)o->params * sizeof *l.entry),
                    .round = mem_alloc((size_t)o->params * sizeof *l.round) };
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
    free(l.round);
    free(view);
}
