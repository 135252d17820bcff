/* Recording of updates: lists without backward that read reduced gradients and change weights and optimizer
 * state in place. Their operands are memory of the plan, scratch values that the memory pass lays out, and the
 * step block's state. Memory is changed in the order of the list; a collective changes the placement of a value,
 * and what reads a partial sum is refused. */
#include "prog_internal.h"

#include <string.h>

val prog_region(prog *p, const char *name, int region, int64_t at, dtype dt, int64_t n,
                placement pl) {
    val v = val_new(p, VC_REGION, dt, 1, &n, pl);
    p->val[v].name = name;
    p->val[v].region = region;
    p->val[v].offset = (size_t)at * dt_size(dt);
    return v;
}

val prog_scratch(prog *p, int ndim, const int64_t *dim, placement pl) {
    return prog_scratch_of(p, DT_F32, ndim, dim, pl);
}

val prog_scratch_of(prog *p, dtype dt, int ndim, const int64_t *dim, placement pl) {
    return val_new(p, VC_TEMP, dt, ndim, dim, pl);
}

val prog_scratch_like(prog *p, val other) {
    if (other == VAL_NONE) return VAL_NONE; /* recording has failed */
    prog_val v = p->val[other];
    return val_new(p, VC_TEMP, v.dt, v.ndim, v.dim, v.pl);
}

val prog_step_state(prog *p) {
    return val_new(p, VC_STATE, DT_U8, 1, (int64_t[]){ sizeof(step_state) }, (placement){ 0 });
}

val prog_elements(prog *p, val of, int64_t at, int ndim, const int64_t *dim) {
    if (of == VAL_NONE) return VAL_NONE; /* recording has failed */
    prog_val v = p->val[of];
    return val_alias(p, of, (size_t)at * dt_size(v.dt), v.dt, ndim, dim, v.pl);
}

val prog_shard(prog *p, val of, int64_t at, const int64_t dim[2], placement pl) {
    val v = prog_elements(p, of, at, 2, dim);
    for (int a = 0; a < AX_COUNT; a++)
        if (pl.on[a].kind == PL_S && mesh_size(&p->m, (mesh_axis)a) > 1)
            p->val[v].pl.on[a] = pl.on[a];
    return v;
}

/* Whether a value has the type and the dims that a signature asks for. @param size of its letters so far */
static bool operand_fits(const prog_val *v, const op_operand *o, int64_t size[128]) {
    static const dtype types[] = {
        [KIND_F32] = DT_F32, [KIND_I32] = DT_I32, [KIND_I64] = DT_I64, [KIND_U8] = DT_U8
    };
    bool any_float = o->type == KIND_FLOAT || o->type == KIND_WEIGHT;
    if (any_float ? !dt_is_float(v->dt) : v->dt != types[o->type]) return false;
    if (o->ndim == ANY_SHAPE) return true;
    for (int d = 0; d < o->ndim; d++) {
        int64_t *known = &size[(int)o->dim[d].symbol], want = o->dim[d].times;
        if (d >= v->ndim) return false;
        if (o->dim[d].symbol && !*known) *known = v->dim[d] / want;
        if (v->dim[d] != want * (o->dim[d].symbol ? *known : 1)) return false;
    }
    return v->ndim == o->ndim;
}

/* @param reads it reads its operand, which then may not be a partial sum */
static void check_operands(prog *p, op_code op, const val *list, const op_operand *sig, int n,
                           bool reads, int64_t size[128]) {
    for (int i = 0; i < n && !p->error; i++) {
        char text[64];
        if (list[i] == VAL_NONE && !sig[i].optional && sig[i].name[0])
            prog_fail(p, NULL, "%s lacks %s", op_name(op), sig[i].name);
        if (list[i] == VAL_NONE) continue;
        const prog_val *v = &p->val[list[i]];
        if (!operand_fits(v, &sig[i], size))
            prog_fail(p, NULL, "%s: %s does not fit the signature %s", op_name(op), sig[i].name,
                      op_row_of(op)->signature);
        else if (reads && placement_axes(v->pl, PL_P))
            prog_fail(p, "sum it over these axes before: rec_moved", "%s reads %s, which is %s",
                      op_name(op), sig[i].name, placement_str(text, sizeof text, v->pl));
    }
}

change_request change_of(op_code op) {
    change_request c = { .op = op };
    for (int i = 0; i < OP_MAX_IN; i++) c.in[i] = VAL_NONE;
    for (int i = 0; i < OP_MAX_OUT; i++) c.out[i] = VAL_NONE;
    return c;
}

void rec_change_(prog *p, change_request c) {
    op_signature sig = op_signature_of(c.op);
    int64_t size[128] = { 0 };
    if (p->error) return;
    check_operands(p, c.op, c.in, sig.in, sig.ins, true, size);
    check_operands(p, c.op, c.out, sig.out, sig.outs, op_row_of(c.op)->cost == COST_UPDATE, size);
    if (p->error) return;
    prog_op *o = op_emit(p, c.op);
    memcpy(o->in, c.in, sizeof o->in);
    memcpy(o->out, c.out, sizeof o->out);
    o->attr = c.attr;
    o->acc = c.add ? ACC_ADD : ACC_STORE;
    o->queue = c.queue;
}

val rec_moved_(prog *p, val x, axis_set axes, place to) {
    if (p->error) return VAL_NONE;
    val y = emit_comm(p, x, axes, to, WHEN_ALWAYS);
    if (y == VAL_NONE || y == x || p->val[y].cls != VC_TEMP) return y;
    if (op_move_kind(&p->fwd.op[p->fwd.n - 1]) == MOVE_ALL_REDUCE) { /* in place */
        p->val[y].cls = VC_ALIAS;
        p->val[y].base = x;
    }
    return y;
}

void rec_move_into_(prog *p, val x, axis_set axes, place to, val into) {
    if (p->error) return;
    val y = emit_comm(p, x, axes, to, WHEN_ALWAYS);
    if (y == VAL_NONE) return;
    BUG_IF(y == x || val_bytes(&p->val[y]) != val_bytes(&p->val[into]));
    p->fwd.op[p->fwd.n - 1].out[0] = into;
}

void rec_sum_over_(prog *p, val x, axis_set axes) {
    if (p->error || mesh_span(&p->m, axes) == 1) return;
    const prog_val v = p->val[x];
    val sum = val_alias(p, x, 0, v.dt, v.ndim, v.dim, v.pl);
    emit_move(p, x, sum, (comm_move){ .axes = axes, .from = PLACE_P, .to = PLACE_I });
}

void rec_exchange_(prog *p, val mine, val theirs, exchange_spec e) {
    if (p->error) return;
    val of[] = { e.sends_first ? mine : theirs, e.sends_first ? theirs : mine };
    prog_op o[2];
    for (int i = 0; i < 2; i++) {
        comm_move m = { .axes = e.axes,
                        .kind = of[i] == mine ? MOVE_SEND : MOVE_RECV,
                        .peer = e.peer,
                        .channel = e.channel };
        o[i] = op_of_move(of[i], of[i], m, p->site);
    }
    for (int i = 0; i < 4; i++) {
        prog_op *x = &o[i % 2];
        x->phase = i < 2 ? COMM_START : COMM_WAIT;
        x->pair = i < 2 ? -1 : p->fwd.n - 2;
        list_push(p->emit, x);
    }
}
