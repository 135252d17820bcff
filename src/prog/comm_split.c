/* Every communication becomes a START where its input is ready and a WAIT just before its result
 * is first read, so that what lies between overlaps it. The memory pass keeps both tensors alive
 * and apart from START to WAIT. Moves that need no bytes stay one op, which nothing runs.
 *
 * What reduces a bucket's gradient, with a step's last microbatch, starts where the gradient is complete and
 * outlives the list: nothing touches that gradient again before the update, so it overlaps the rest of the
 * block's backward, and that of other blocks. */
#include "prog_internal.h"

#include <stdlib.h>

static bool moves_bytes(const prog_op *o) {
    return (op_flags(o->op) & OPF_EXTERN) && op_move_kind(o) != MOVE_NONE;
}

static bool op_touches(const prog *p, const prog_op *o, val root) {
    for (int k = 0; k < OP_MAX_IN; k++)
        if (o->in[k] != VAL_NONE && val_root(p, o->in[k]) == root) return true;
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (o->out[k] != VAL_NONE && val_root(p, o->out[k]) == root) return true;
    return false;
}

/* Whether op i reduces a gradient that nothing in the list touches afterwards. */
static bool outlives_list(const prog *p, const op_list *l, int i) {
    const prog_op *o = &l->op[i];
    val root = val_root(p, o->in[0]);
    if (o->when != WHEN_LAST || p->val[root].cls != VC_GRAD) return false;
    for (int k = i + 1; k < l->n; k++)
        if (op_touches(p, &l->op[k], root)) return false;
    return true;
}

/* Whether the op yields nothing but gradients of parameters, which no op of the list waits for. */
static bool only_param_grads(const prog *p, const prog_op *o) {
    for (int k = 0; k < OP_MAX_OUT; k++) {
        val_class cls = o->out[k] == VAL_NONE ? VC_GRAD : p->val[val_root(p, o->out[k])].cls;
        if (cls != VC_GRAD && cls != VC_WHOLE_GRAD) return false;
    }
    return !(op_flags(o->op) & OPF_EXTERN);
}

/* Moves communications up. Reductions of gradients are recorded last: each starts where its gradient is
 * complete. Others start before gradients of weights that were recorded in between, which overlap them then:
 * under tensor parallelism the gradient of a layer's input crosses while that of its weights is computed. */
static void hoist_comms(const prog *p, op_list *l) {
    for (int i = 1; i < l->n; i++) {
        prog_op o = l->op[i];
        if (!moves_bytes(&o)) continue;
        val in = val_root(p, o.in[0]), out = val_root(p, o.out[0]);
        bool reduction = o.when == WHEN_LAST && p->val[in].cls == VC_GRAD;
        int at = i;
        for (; at > 0; at--) {
            const prog_op *before = &l->op[at - 1];
            if (op_touches(p, before, in) || op_touches(p, before, out)) break;
            if (!reduction && !only_param_grads(p, before)) break;
            l->op[at] = *before;
        }
        l->op[at] = o;
    }
}

void pass_split_comm(prog *p, op_list *l) {
    op_list out = { 0 };
    hoist_comms(p, l);
    int *open = mem_alloc((size_t)(l->n + 1) * sizeof *open); /* STARTs without WAIT, in order */
    int opens = 0;
    for (int i = 0; i <= l->n; i++) {
        /* How many must end before this op: all up to the last one it depends on, since the
         * communications of a rank end in the order they began. */
        int end = i == l->n ? opens : 0;
        for (int k = 0; k < opens && i < l->n; k++) {
            const prog_op *s = &out.op[open[k]];
            if (op_touches(p, &l->op[i], val_root(p, s->out[0]))) end = k + 1;
        }
        for (int k = 0; k < end; k++) {
            prog_op w = out.op[open[k]];
            w.phase = COMM_WAIT;
            w.pair = open[k];
            list_push(&out, &w);
        }
        for (int k = end; k < opens; k++) open[k - end] = open[k];
        opens -= end;
        if (i == l->n) break;
        prog_op o = l->op[i];
        if (moves_bytes(&o) && outlives_list(p, l, i)) {
            o.phase = COMM_LATE;
        } else if (moves_bytes(&o)) {
            o.phase = COMM_START;
            open[opens++] = out.n;
        }
        list_push(&out, &o);
    }
    free(open);
    free(l->op);
    *l = out;
}
