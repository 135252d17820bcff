/* Plays all ranks' communication together before anything runs: a step that would hang, or whose partners
 * disagree, is refused here with both places. What is played is the list of instructions that runs. */
#include "plan_internal.h"

#include <stdlib.h>

/* A rank's communications that move bytes, in the order they begin. */
typedef struct trace {
    mesh m;
    const prog_op **op;
    const prog **of;
    int n, cap, cap2, at;
} trace;

static void trace_list(trace *t, const prog *p, run_kind kind, int micro, int micros) {
    const op_list *l = kind == RUN_BWD ? &p->bwd : &p->fwd;
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        if (!(op_flags(o->op) & OPF_EXTERN) || o->phase == COMM_WAIT) continue;
        if (!op_runs(o, kind, micro, micros)) continue;
        move_kind k = move_of(o->attr.comm.from, o->attr.comm.to);
        if (k == MOVE_NONE || k == MOVE_SLICE) continue;
        mem_reserve((void **)&t->op, &t->cap, t->n, sizeof *t->op);
        mem_reserve((void **)&t->of, &t->cap2, t->n, sizeof *t->of);
        t->op[t->n] = o;
        t->of[t->n++] = p;
    }
}

static int64_t elements(const trace *t, int i) {
    tensor x = val_tensor(&t->of[i]->val[t->op[i]->in[0]]);
    return tensor_count(&x);
}

static err disagree(const trace *t, int r, int q) {
    const prog_op *a = t[r].op[t[r].at], *b = t[q].at < t[q].n ? t[q].op[t[q].at] : NULL;
    return ERR("rank %d is at a %s over %lld elements (%s:%d), but rank %d is at %s (%s:%d): they "
               "would wait for each other forever",
               r, move_name(move_of(a->attr.comm.from, a->attr.comm.to)),
               (long long)elements(&t[r], t[r].at), a->site.file, a->site.line, q,
               b ? move_name(move_of(b->attr.comm.from, b->attr.comm.to)) : "the end",
               b ? b->site.file : "-", b ? b->site.line : 0);
}

/* @return whether rank r's next collective has all its partners; *clash when one never will. */
static bool meets(const trace *t, int ranks, int r, int *clash) {
    const prog_op *o = t[r].op[t[r].at];
    axis_set axes = o->attr.comm.axes;
    for (int q = 0; q < ranks; q++) {
        if (mesh_group_id(&t[q].m, axes) != mesh_group_id(&t[r].m, axes)) continue;
        const prog_op *b = t[q].at < t[q].n ? t[q].op[t[q].at] : NULL;
        if (!b || b->attr.comm.axes != axes || !place_same(b->attr.comm.from, o->attr.comm.from) ||
            !place_same(b->attr.comm.to, o->attr.comm.to) ||
            elements(&t[q], t[q].at) != elements(&t[r], t[r].at)) {
            *clash = q;
            return false;
        }
    }
    return true;
}

static err play(trace *t, int ranks) {
    for (;;) {
        int waiting = -1, clash = -1;
        bool moved = false;
        for (int r = 0; r < ranks; r++) {
            if (t[r].at >= t[r].n) continue;
            waiting = r;
            int against = -1;
            if (!meets(t, ranks, r, &against)) {
                clash = against;
                continue;
            }
            axis_set axes = t[r].op[t[r].at]->attr.comm.axes;
            int group = mesh_group_id(&t[r].m, axes);
            for (int q = 0; q < ranks; q++)
                if (mesh_group_id(&t[q].m, axes) == group) t[q].at++;
            moved = true;
        }
        if (waiting < 0) return OK;
        if (!moved) return disagree(t, waiting, clash);
    }
}

err plan_check_ranks(const mesh *m, const chain *chains, int ranks) {
    enum { MICROS = 3 }; /* the first of a step, one between, the last */
    trace *t = mem_alloc((size_t)ranks * sizeof *t);
    for (int r = 0; r < ranks; r++) {
        const chain *c = &chains[r];
        instr *list;
        int n = chain_order(c, &list);
        t[r].m = mesh_as(m, r);
        for (int micro = 0; micro < MICROS; micro++)
            for (int i = 0; i < n; i++)
                trace_list(&t[r], chain_program(c, list[i].instance), list[i].kind, micro, MICROS);
        free(list);
    }
    err e = play(t, ranks);
    for (int r = 0; r < ranks; r++) {
        free(t[r].op);
        free(t[r].of);
    }
    free(t);
    return e;
}
