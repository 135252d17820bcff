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

static bool touches(const prog *p, const prog_op *o, val root) {
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
        if (touches(p, &l->op[k], root)) return false;
    return true;
}

/* Reductions of gradients are recorded last: moves each to where its gradient is complete. */
static void hoist_reductions(const prog *p, op_list *l) {
    for (int i = 1; i < l->n; i++) {
        prog_op o = l->op[i];
        val root = moves_bytes(&o) ? val_root(p, o.in[0]) : VAL_NONE;
        if (root == VAL_NONE || o.when != WHEN_LAST || p->val[root].cls != VC_GRAD) continue;
        int at = i;
        for (; at > 0 && !touches(p, &l->op[at - 1], root); at--) l->op[at] = l->op[at - 1];
        l->op[at] = o;
    }
}

void pass_split_comm(prog *p, op_list *l) {
    op_list out = { 0 };
    hoist_reductions(p, l);
    int *open = mem_alloc((size_t)(l->n + 1) * sizeof *open); /* STARTs without WAIT, in order */
    int opens = 0;
    for (int i = 0; i <= l->n; i++) {
        /* How many must end before this op: all up to the last one it depends on, since the
         * communications of a rank end in the order they began. */
        int end = i == l->n ? opens : 0;
        for (int k = 0; k < opens && i < l->n; k++) {
            const prog_op *s = &out.op[open[k]];
            if (touches(p, &l->op[i], val_root(p, s->out[0]))) end = k + 1;
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
