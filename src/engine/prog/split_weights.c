/* Splits backward in two: what yields the gradient that leaves the program stays, the rest, which is the
 * gradients of weights and what only they need, becomes a list that may run later. What the second list
 * reads of the first is kept like what backward reads of forward. */
#include "prog_internal.h"

#include <stdlib.h>

static void mark_values(const prog *p, const val *v, int n, uint8_t *set) {
    for (int k = 0; k < n; k++)
        if (v[k] != VAL_NONE) set[val_root(p, v[k])] = 1;
}

static bool any_marked(const prog *p, const val *v, int n, const uint8_t *set) {
    for (int k = 0; k < n; k++)
        if (v[k] != VAL_NONE && set[val_root(p, v[k])]) return true;
    return false;
}

void pass_split_weights(prog *p) {
    uint8_t *needed = mem_alloc((size_t)p->vals), *made = mem_alloc((size_t)p->vals);
    uint8_t *stays = mem_alloc((size_t)p->bwd.n + 1);
    if (p->grad_out != VAL_NONE) needed[val_root(p, p->grad_out)] = 1;
    for (int i = p->bwd.n - 1; i >= 0; i--) {
        const prog_op *o = &p->bwd.op[i];
        stays[i] = any_marked(p, o->out, OP_MAX_OUT, needed);
        if (stays[i]) mark_values(p, o->in, OP_MAX_IN, needed);
    }
    op_list first = { 0 };
    for (int i = 0; i < p->bwd.n; i++) {
        const prog_op *o = &p->bwd.op[i];
        list_push(stays[i] ? &first : &p->weights, o);
        if (stays[i]) mark_values(p, o->out, OP_MAX_OUT, made);
    }
    for (int i = 0; i < p->weights.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val v = val_root(p, p->weights.op[i].in[k]);
            if (v != VAL_NONE && made[v] && p->val[v].cls == VC_TEMP) p->val[v].cls = VC_SAVED;
        }
    free(p->bwd.op);
    p->bwd = first;
    free(needed);
    free(made);
    free(stays);
}
