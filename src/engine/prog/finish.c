/* The order of the passes. */
#include "prog_internal.h"

#include <stdlib.h>

/* Values that leave the program must outlive its temporaries. */
static void mark_outputs(prog *p) {
    val out[] = { p->res_out, p->delta_out, p->result, p->top1 };
    for (size_t i = 0; i < COUNT_OF(out); i++)
        if (out[i] != VAL_NONE && p->val[val_root(p, out[i])].cls == VC_TEMP)
            p->val[val_root(p, out[i])].cls = VC_BOUNDARY;
}

/* Values that are left for later programs have memory of the chain, in which backward finds them too. */
static void mark_carried(prog *p) {
    for (int i = 0; i < CARRIES; i++) {
        if (p->carry_out[i] == VAL_NONE) continue;
        prog_val *v = &p->val[val_root(p, p->carry_out[i])];
        BUG_IF(v->cls != VC_TEMP);
        v->cls = VC_CARRIED;
    }
}

static void append_ops(op_list *to, op_list *from) {
    for (int i = 0; i < from->n; i++) list_push(to, &from->op[i]);
    free(from->op);
    *from = (op_list){ 0 };
}

/* The passes over a program whose lists are recorded. */
static void run_passes(prog *p) {
    if (p->mode == PROG_UPDATE) { /* in place: neither reordered nor overlapped */
        pass_memory(p);
        return;
    }
    mark_carried(p);
    if (p->o.fp8_sites) pass_fp8(p);
    if (p->terminal)
        append_ops(&p->fwd, &p->bwd);
    else if (p->mode == PROG_TRAIN)
        pass_save(p);
    if (p->o.split_weights) pass_split_weights(p);
    mark_outputs(p);
    pass_split_comm(p, &p->fwd);
    pass_split_comm(p, &p->bwd);
    pass_split_comm(p, &p->weights);
    pass_split_comm(p, &p->gather);
    pass_split_comm(p, &p->reduce);
    pass_memory(p);
}

err prog_finish(prog *p) {
    if (!p->error) pass_chunk_rows(p);
    if (!p->error && p->mode == PROG_TRAIN) pass_backward(p);
    if (!p->error) run_passes(p);
    err e = p->error;
    p->error = OK;
    return e ? err_trail(e, __FILE__, __LINE__) : OK;
}
