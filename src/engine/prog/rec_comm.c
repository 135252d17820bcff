/* Recording of communication. Every COMM op of every list is made here, from a comm_move: moves between placements
 * (rec_comm), and those that placements do not express (shifts, rows by count, messages, maxima). */
#include "prog_internal.h"

#include <string.h>

/* ---- one op ------------------------------------------------------------------------------ */
prog_op op_of_move(val x, val y, comm_move m, rec_site site) {
    prog_op o = op_blank(OP_COMM, site);
    o.in[0] = x;
    o.out[0] = y;
    o.attr.comm = m;
    return o;
}

prog_op *emit_move(prog *p, val x, val y, comm_move m) {
    prog_op o = op_of_move(x, y, m, p->site);
    list_push(p->emit, &o);
    if (p->emit == &p->fwd) p->val[y].producer = p->fwd.n - 1;
    return &p->emit->op[p->emit->n - 1];
}

/* ---- moves ------------------------------------------------------------------------------- */
static bool shape_after(const prog *p, const prog_val *x, axis_set axes, place from, place to,
                        int64_t *dim) {
    int n = mesh_span(&p->m, axes);
    memcpy(dim, x->dim, sizeof x->dim);
    if (from.kind == PL_S) dim[from.dim] *= n;
    if (to.kind != PL_S) return true;
    if (to.dim >= x->ndim || dim[to.dim] % n) return false;
    dim[to.dim] /= n;
    return true;
}

/* Refuses what one collective over these axes cannot do. @param from set to the placement that all of
 * them have. @return false after an error. */
static bool check_comm(prog *p, const prog_val *v, axis_set axes, place to, place *from) {
    char was[64];
    bool first = true;
    placement_str(was, sizeof was, v->pl);
    for (int a = 0; a < AX_COUNT; a++) {
        if (!(axes & AXIS(a)) || mesh_size(&p->m, (mesh_axis)a) == 1) continue;
        if (!first && !place_same(*from, v->pl.on[a])) {
            prog_fail(p, "communicate over one axis at a time",
                      "comm: one collective over axes with different placements: %s", was);
            return false;
        }
        *from = v->pl.on[a];
        first = false;
    }
    if (move_of(*from, to) == MOVE_ILLEGAL) {
        prog_fail(p, "see the table of moves in comm/comm.h", "comm: no collective takes %s to %c",
                  was, "IRSP"[to.kind]);
        return false;
    }
    int sharded = from->kind == PL_S ? from->dim : -1, wanted = to.kind == PL_S ? to.dim : -1;
    for (int d = 0; d < v->ndim; d++)
        if (v->segments[d] > 1 && (d == sharded) != (d == wanted)) {
            prog_fail(
                p, "communicate before the segments are fused, or after they are consumed",
                "comm: dim %d is %d segments, each sharded on its own: %s would interleave the "
                "ranks' parts",
                d, v->segments[d], move_name(move_of(*from, to)));
            return false;
        }
    return true;
}

val emit_comm(prog *p, val x, axis_set axes, place to, op_when when) {
    axes &= mesh_axes(&p->m);
    prog_val v = p->val[x];
    placement pl = v.pl;
    place from = PLACE_I;
    int64_t dim[TENSOR_MAX_DIM];
    if (mesh_span(&p->m, axes) == 1) return x;
    if (!check_comm(p, &v, axes, to, &from)) return VAL_NONE;
    if (place_same(from, to)) return x;
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) pl.on[a] = to;
    move_kind move = move_of(from, to);
    if (!shape_after(p, &v, axes, from, to, dim)) {
        prog_fail(p, "choose sizes that the number of ranks divides",
                  "comm: dim %d of size %lld does not divide over %d ranks", to.dim,
                  (long long)v.dim[to.dim], mesh_span(&p->m, axes));
        return VAL_NONE;
    }
    val y;
    if (move == MOVE_NONE) { /* only the meaning changes: the same bytes */
        y = val_alias(p, x, 0, v.dt, v.ndim, dim, pl);
    } else {
        y = val_new(p, VC_TEMP, v.dt, v.ndim, dim, pl);
    }
    p->val[y].needs_grad = v.needs_grad;
    memcpy(p->val[y].segments, v.segments, sizeof v.segments);
    emit_move(p, x, y, (comm_move){ .axes = axes, .from = from, .to = to })->when = when;
    return y;
}

val emit_shift(prog *p, val x, axis_set axes, int by) {
    prog_val v = p->val[x];
    val y = val_new(p, VC_TEMP, v.dt, v.ndim, v.dim, v.pl);
    p->val[y].needs_grad = v.needs_grad;
    memcpy(p->val[y].segments, v.segments, sizeof v.segments);
    emit_move(p, x, y, (comm_move){ .axes = axes, .kind = MOVE_SHIFT, .peer = by });
    return y;
}

val emit_rows(prog *p, val x, axis_set axes, val send, val back, int64_t rows) {
    prog_val v = p->val[x];
    val y = val_new(p, VC_TEMP, v.dt, 2, (int64_t[]){ rows, v.dim[1] }, v.pl);
    p->val[y].needs_grad = v.needs_grad;
    prog_op *o = emit_move(p, x, y, (comm_move){ .axes = axes, .kind = MOVE_ROWS });
    o->in[1] = send;
    o->in[2] = back;
    return y;
}

void set_wire(prog *p, dtype wire) {
    prog_op *o = &p->emit->op[p->emit->n - 1];
    if (wire != DT_NONE && dt_size(wire) < dt_size(p->val[o->in[0]].dt)) o->attr.comm.wire = wire;
}

val rec_comm_(prog *p, val x, axis_set axes, place to) {
    if (p->error || x == VAL_NONE) return VAL_NONE;
    return emit_comm(p, x, axes, to, WHEN_ALWAYS);
}
