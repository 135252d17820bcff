/* Expert parallelism: rows of a rank's tokens go to the ranks that have their experts, and back.
 *
 * Padded to a capacity all parts are equal: rows are [experts, rows of each, width], sharded along the second
 * dim before, by sequence, and along the first after.
 *
 * Else parts differ in size: ranks exchange how many rows each expert receives, an all-to-all moves that many,
 * and the received rows are put in the order of the experts:
 *
 *     rank 0   | e0 e0 | e1 | e2 e3 |    counts         | e0 e0 e1 | e0 e1 e1 |    | e0 e0 e0 | e1 e1 e1 |
 *     rank 1   | e0 | e1 e1 | e2 e2 |  ----------->     from rank 0  from rank 1
 *
 * Memory is reserved for the largest possible number: every token of every rank chooses as many of this rank's
 * experts as it can. */
#include "prog_internal.h"

#include <string.h>

/* ---- routing ------------------------------------------------------------------------------- */
/* How ranks share the sequences of a batch: those that each have some tokens of every sequence, in runs. */
typedef struct sequence_share {
    axis_set axes;
    int64_t run; /* tokens of a run; 0: without sequences to balance */
    int runs;    /* of a sequence, on a rank */
} sequence_share;

static sequence_share share_of_sequences(const prog *p, val logits, int64_t seq) {
    axis_set axes = placement_axes(p->val[logits].pl, PL_S) & mesh_axes(&p->m) & ~AXES_ROWS;
    int runs = axes ? p->o.sequence_runs : 1;
    if (p->mode == PROG_DECODE) seq = 0;
    return (sequence_share){ axes, seq / (mesh_span(&p->m, axes) * runs), runs };
}

static void set_route_groups(const route_spec *s, op_attr *attr) {
    if (s->groups <= 1) return;
    attr->route.groups = s->groups;
    attr->route.group_limit = s->group_limit;
    attr->route.group_best = s->group_best;
}

/* Gathers the choices of every rank's runs of the sequences. */
static val record_choice_counts(prog *p, val logits, val bias, const route_spec *s,
                                sequence_share q) {
    if (!q.axes) return VAL_NONE;
    rec_request r = { OP_ROUTE_COUNT, { logits, bias } };
    r.attr.route.sigmoid = s->sigmoid;
    set_route_groups(s, &r.attr);
    r.attr.route.seq = (int)q.run;
    r.attr.route.k = (int)s->k;
    r.attr.route.chunks = q.runs;
    r.sizes.of['C'] = q.runs;
    r.sizes.of['S'] = p->val[logits].dim[0] / (q.run * q.runs);
    val own = rec_first(p, r);
    return p->error ? VAL_NONE : emit_comm(p, own, q.axes, PLACE_R, WHEN_ALWAYS);
}

routing rec_route_(prog *p, val logits, val bias, route_spec s) {
    val out[OP_MAX_OUT];
    if (p->error || logits == VAL_NONE) return (routing){ VAL_NONE, VAL_NONE, VAL_NONE, VAL_NONE };
    int64_t n = p->val[logits].dim[0], experts = p->val[logits].dim[1];
    sequence_share q = share_of_sequences(p, logits, s.seq);
    /* Rows are padded to the capacity where experts are on other ranks, which then exchange equal parts. A part of a
     * sequence may have all rows of an expert, so that padding would not pay there. */
    bool apart = mesh_size(&p->m, AX_EP) > 1 && p->mode != PROG_DECODE;
    bool padded = apart && !q.axes && s.capacity > 0;
    rec_request r = { OP_ROUTE, { logits, bias, record_choice_counts(p, logits, bias, &s, q) } };
    if (q.axes) {
        r.attr.route.chunks = q.runs;
        r.attr.route.rank = mesh_index(&p->m, q.axes);
    }
    r.attr.route.sigmoid = s.sigmoid;
    set_route_groups(&s, &r.attr);
    r.attr.route.normalize = s.normalize;
    r.attr.route.scale = s.scale;
    r.attr.route.seq = (int)q.run;
    r.attr.route.capacity = (int)s.capacity;
    r.attr.route.balance = s.balance;
    r.attr.route.z = s.z;
    r.attr.route.padded = padded;
    r.sizes.of['K'] = s.k;
    r.sizes.of['M'] = padded ? experts * (n / q.run) * s.capacity : n * s.k;
    r.sizes.of['O'] = experts + 1;
    rec_op(p, &r, out);
    return (routing){ out[0], out[1], out[2], out[3], padded };
}

/* ---- equal parts --------------------------------------------------------------------------- */
static val exchange_padded(prog *p, val x, int experts, bool to_experts) {
    int groups = to_experts ? experts * mesh_size(&p->m, AX_EP) : experts;
    if (p->error || x == VAL_NONE) return VAL_NONE;
    prog_val *v = &p->val[x];
    BUG_IF(v->ndim != 2 || v->dim[0] % groups);
    v->ndim = 3;
    v->dim[2] = v->dim[1];
    v->dim[1] = v->dim[0] / groups;
    v->dim[0] = groups;
    v->pl.on[AX_EP] = PLACE_S(to_experts ? 1 : 0);
    return rec_comm_(p, x, AXIS(AX_EP), PLACE_S(to_experts ? 0 : 1));
}

/* ---- parts by count ------------------------------------------------------------------------- */
/* How many rows of each rank come for each of this rank's experts. */
static val exchange_counts(prog *p, val sent) {
    if (p->error) return VAL_NONE;
    placement pl =
        p->val[sent].pl; /* a column for each rank; the experts' rows are spread over them */
    pl.on[AX_EP] = PLACE_S(1);
    val columns = val_alias(p, sent, 0, DT_I32, 2, p->val[sent].dim, pl);
    return rec_comm_(p, columns, AXIS(AX_EP), PLACE_S(0));
}

expert_rows rec_to_experts_(prog *p, val x, routing to, int experts) {
    enum { ROWS, OFFSET };
    expert_rows r = { x, to.offset, VAL_NONE, VAL_NONE, { 0 }, experts };
    if (p->error || x == VAL_NONE || mesh_size(&p->m, AX_EP) == 1) return r;
    if (p->mode == PROG_DECODE) { /* every rank has the same few rows: the weights come to them */
        r.experts *= mesh_size(&p->m, AX_EP);
        return r;
    }
    if (to.padded) {
        r.rows = exchange_padded(p, x, experts, true);
        r.offset = VAL_NONE;
        return r;
    }
    memcpy(r.home, p->val[x].dim, sizeof r.home);
    const prog_val *row = &p->val[to.row]; /* of a token at most as many as this rank has experts */
    int64_t most = mesh_size(&p->m, AX_EP) * row->dim[0] * MIN(row->dim[1], (int64_t)experts);
    if (most > INT32_MAX / 2) {
        prog_fail(p, "lower training.local_batch_size",
                  "up to %lld rows could come to the experts of one rank", (long long)most);
        return r;
    }
    rec_request count = { OP_EXPERT_ROWS, { to.offset } };
    count.sizes.of['E'] = experts * mesh_size(&p->m, AX_EP);
    count.sizes.of['J'] = 1;
    r.sent = rec_first(p, count);
    r.came = exchange_counts(p, r.sent);
    if (p->error) return r;
    rec_request group = { OP_GROUP_ROWS,
                          { emit_rows(p, x, AXIS(AX_EP), r.sent, r.came, most), r.came } };
    group.sizes.of['O'] = experts + 1;
    val out[OP_MAX_OUT];
    rec_op(p, &group, out);
    r.rows = out[ROWS];
    r.offset = out[OFFSET];
    return r;
}

val rec_from_experts_(prog *p, val x, const expert_rows *from) {
    if (p->error || x == VAL_NONE || mesh_size(&p->m, AX_EP) == 1 || p->mode == PROG_DECODE)
        return x;
    if (from->sent == VAL_NONE) return exchange_padded(p, x, from->experts, false);
    val apart = rec_first(p, (rec_request){ OP_UNGROUP_ROWS, { x, from->came } });
    return p->error ? VAL_NONE
                    : emit_rows(p, apart, AXIS(AX_EP), from->came, from->sent, from->home[0]);
}

/* ---- their layers -------------------------------------------------------------------------- */
/* The matrices of all experts, from those of the ranks along ep. Segments are within an expert, and experts stay
 * whole: nothing interleaves. */
static val gather_experts(prog *p, val w) {
    int ep = mesh_size(&p->m, AX_EP);
    if (ep == 1) return w;
    uint16_t segments = p->val[w].segments[0];
    p->val[w].segments[0] = 0;
    val all = emit_comm(p, w, AXIS(AX_EP), PLACE_I, WHEN_ALWAYS);
    p->val[w].segments[0] = segments;
    if (all != VAL_NONE) p->val[all].segments[0] = (uint16_t)(segments * ep);
    return all;
}

val rec_expert_linear_(prog *p, val x, val w, val b, const expert_rows *at) {
    if (p->error || w == VAL_NONE) return VAL_NONE;
    if (p->mode == PROG_DECODE) w = gather_experts(p, w);
    if (p->error) return VAL_NONE;
    rec_request r = { OP_GROUPED_LINEAR, { x, w, at->offset }, { .experts = at->experts } };
    if (p->val[w].dim[0] % at->experts)
        prog_fail(p, NULL, "grouped_linear: w has %lld rows, which %d experts do not divide",
                  (long long)p->val[w].dim[0], at->experts);
    r.sizes.of['F'] = p->val[w].dim[0] / at->experts;
    val y = rec_first(p, r);
    if (y != VAL_NONE) p->val[y].segments[1] = (uint16_t)(p->val[w].segments[0] / at->experts);
    if (b == VAL_NONE || p->error) return y;
    if (p->mode == PROG_DECODE) b = gather_experts(p, b);
    rec_request add = { OP_EXPERT_BIAS, { y, at->offset, b }, { .experts = at->experts } };
    val out[OP_MAX_OUT];
    prog_op *o = rec_op(p, &add, out);
    if (o) o->once = placement_axes(p->val[out[0]].pl, PL_P);
    if (o) p->val[out[0]].segments[1] = p->val[y].segments[1];
    return out[0];
}
