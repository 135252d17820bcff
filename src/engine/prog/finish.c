/* The order of the passes. */
#include "prog_internal.h"

#include <stdlib.h>

/* Values that are left for later programs have memory of the chain, in which backward finds them too. */
static void mark_carried(prog *p) {
    for (int i = 0; i < CARRIES; i++) {
        if (p->carry_out[i] == VAL_NONE) continue;
        prog_val *v = &p->val[val_root(p, p->carry_out[i])];
        BUG_IF(v->cls != VC_TEMP);
        v->cls = VC_CARRIED;
    }
}

/* The passes over a program whose lists are recorded. */
static void run_passes(prog *p) {
    if (p->mode == PROG_UPDATE) { /* in place: neither reordered nor overlapped */
        pass_memory(p);
        return;
    }
    mark_carried(p);
    if (p->o.fp8_sites) pass_fp8(p);
    if (p->terminal) { /* one list */
        for (int i = 0; i < p->bwd.n; i++) list_push(&p->fwd, &p->bwd.op[i]);
        p->bwd.n = 0;
    } else if (p->mode == PROG_TRAIN) {
        pass_save(p);
    }
    if (p->o.split_weights) pass_split_weights(p);
    val out[] = { p->res_out, p->delta_out, p->result, p->top1 };
    /* what leaves the program outlives its temporaries */
    for (size_t i = 0; i < COUNT_OF(out); i++) {
        val root = val_root(p, out[i]);
        if (root != VAL_NONE && p->val[root].cls == VC_TEMP) p->val[root].cls = VC_BOUNDARY;
    }
    for (int i = 0; i < PROG_LISTS; i++) pass_split_comm(p, &p->list[i]);
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
