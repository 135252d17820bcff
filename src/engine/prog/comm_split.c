/* Every communication becomes a START where its input is ready and a WAIT just before its result
 * is first read, so that the ops between them overlap it. The memory pass keeps both tensors alive
 * and apart from START to WAIT. Moves that need no bytes stay one op, which nothing runs. A fetch from host
 * memory is only a START: whoever waits for the gather that it begins waits for it.
 *
 * The reduction of a bucket's gradient, with a step's last microbatch, starts where the gradient is complete and
 * outlives the list: nothing touches that gradient again before the update, so it overlaps the rest of the
 * block's backward, and that of other blocks.
 *
 * Gradients of weights, which nothing in a backward list reads, are deferred to where the list would wait, so
 * that they overlap what it waits for:
 *
 *     recorded   gather dy, dx, dw, scatter dx, norm, gather dy2, dx2, dw2, scatter dx2, ...
 *     runs       gather dy, dx, scatter dx [dw] norm, gather dy2 [some of dw] dx2, scatter dx2 [dw2] ...
 */
#include "prog_internal.h"

#include <stdlib.h>

static bool moves_bytes(const prog_op *o) {
    return (op_flags(o->op) & OPF_EXTERN) && op_move_kind(o) != MOVE_NONE;
}

/* ---- what depends on what ------------------------------------------------------------------------ */
/* The bytes of a value: a range of its root's. */
typedef struct byte_range {
    val root;
    size_t from, to;
} byte_range;

static byte_range bytes_of(const prog *p, val v) {
    byte_range r = { .root = val_root(p, v) };
    if (v == VAL_NONE) return r;
    for (val a = v; a != r.root; a = p->val[a].base) r.from += p->val[a].offset;
    r.to = r.from + val_bytes(&p->val[v]);
    return r;
}

static bool overlap_any(const prog *p, val v, const val *others, int n) {
    byte_range a = bytes_of(p, v);
    for (int k = 0; k < n && v != VAL_NONE; k++) {
        byte_range b = bytes_of(p, others[k]);
        if (others[k] != VAL_NONE && a.root == b.root && a.from < b.to && b.from < a.to)
            return true;
    }
    return false;
}

static bool is_nothing(const prog_op *o) {
    return (op_flags(o->op) & OPF_EXTERN) && !moves_bytes(o);
}

/* Whether the op reads or writes these bytes. */
static bool op_touches(const prog *p, const prog_op *o, val v) {
    if (is_nothing(o)) return false;
    return overlap_any(p, v, o->in, OP_MAX_IN) || overlap_any(p, v, o->out, OP_MAX_OUT);
}

/* Whether two ops may not change places: one writes what the other reads or writes. */
static bool depends(const prog *p, const prog_op *a, const prog_op *b) {
    if (is_nothing(a) || is_nothing(b)) return false;
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op_touches(p, b, a->out[k]) || overlap_any(p, b->out[k], a->in, OP_MAX_IN)) return true;
    return false;
}

/* Whether op i reduces a gradient that nothing in the list touches afterwards. */
static bool outlives_list(const prog *p, const op_list *l, int i) {
    const prog_op *o = &l->op[i];
    if (o->when != WHEN_LAST || p->val[val_root(p, o->in[0])].cls != VC_GRAD) return false;
    for (int k = i + 1; k < l->n; k++)
        if (op_touches(p, &l->op[k], o->in[0])) return false;
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

/* ---- where communications start ------------------------------------------------------------------- */
/* Whether a communication may start before this op, on which it does not depend. Reductions of gradients pass
 * everything. Those of layers pass what works on other rows (chunk_rows.c), but no other communication: all
 * complete in the order they began. Others pass gradients of weights. */
static bool starts_before(const prog *p, const prog_op *o, const prog_op *op) {
    bool reduction = o->when == WHEN_LAST && p->val[val_root(p, o->in[0])].cls == VC_GRAD;
    if (reduction || is_nothing(op)) return true;
    if (o->attr.comm.axes == p->o.chunk_axes) return !moves_bytes(op);
    return only_param_grads(p, op);
}

/* Moves communications up: under tensor parallelism the gradient of a layer's input crosses while that of
 * its weights is computed; reductions of gradients, which are recorded last, start where the gradient is
 * complete. */
static void hoist_comms(const prog *p, op_list *l) {
    for (int i = 1; i < l->n; i++) {
        prog_op o = l->op[i];
        int at = i;
        if (!moves_bytes(&o)) continue;
        for (; at > 0; at--) {
            if (depends(p, &l->op[at - 1], &o) || !starts_before(p, &o, &l->op[at - 1])) break;
            l->op[at] = l->op[at - 1];
        }
        l->op[at] = o;
    }
}

/* ---- the list rebuilt -------------------------------------------------------------------------------- */
typedef struct comm_splitter {
    const prog *p;
    const op_list *l;
    op_list out;
    int *open, opens; /* STARTs without WAIT, in order */
    op_list deferred; /* gradients of weights, in order */
} comm_splitter;

/* @return how many communications must end before this op: all up to the last one it depends on, since those of a
 * rank end in the order they began. */
static int ends_before(const comm_splitter *s, const prog_op *o) {
    int end = 0;
    for (int k = 0; k < s->opens; k++)
        if (op_touches(s->p, o, s->out.op[s->open[k]].out[0])) end = k + 1;
    return end;
}

static void add_waits(comm_splitter *s, int n) {
    for (int k = 0; k < n; k++) {
        prog_op w = s->out.op[s->open[k]];
        w.phase = COMM_WAIT;
        w.pair = s->open[k];
        list_push(&s->out, &w);
    }
    for (int k = n; k < s->opens; k++) s->open[k - n] = s->open[k];
    s->opens -= n;
}

static void add_op(comm_splitter *s, int i) {
    prog_op o = s->l->op[i];
    if (op_flags(o.op) & OPF_FETCH) o.phase = COMM_START;
    if (moves_bytes(&o) && outlives_list(s->p, s->l, i)) {
        o.phase = COMM_LATE;
    } else if (moves_bytes(&o)) {
        o.phase = COMM_START;
        s->open[s->opens++] = s->out.n;
    }
    list_push(&s->out, &o);
}

static void add_deferred(comm_splitter *s, int n) {
    for (int k = 0; k < n; k++) {
        add_waits(s, ends_before(s, &s->deferred.op[k])); /* for what was gathered for it */
        list_push(&s->out, &s->deferred.op[k]);
    }
    for (int k = n; k < s->deferred.n; k++) s->deferred.op[k - n] = s->deferred.op[k];
    s->deferred.n -= n;
}

/* @return how many deferred ops must run before this one. */
static int deferred_before(const comm_splitter *s, const prog_op *o) {
    int n = 0;
    for (int k = 0; k < s->deferred.n; k++)
        if (depends(s->p, &s->deferred.op[k], o)) n = k + 1;
    return n;
}

/* Rebuilds the list with STARTs and WAITs. @param waits [n + 1] how often an op and those after it wait. Filled when
 * `count` is true; else gradients of weights are spread over these waits. */
static op_list split_list(const prog *p, const op_list *l, int *waits, bool count) {
    comm_splitter s = { .p = p, .l = l, .open = mem_alloc((size_t)(l->n + 1) * sizeof *s.open) };
    for (int i = 0; i <= l->n; i++) {
        const prog_op *o = i < l->n ? &l->op[i] : NULL;
        int end = o ? ends_before(&s, o) : s.opens;
        if (count) waits[i] = end > 0;
        bool is_late = !count && o && waits[i + 1] && (op_flags(o->op) & OPF_WEIGHT_GRAD);
        if (is_late && only_param_grads(p, o)) {
            list_push(&s.deferred, o);
            continue;
        }
        add_deferred(&s, o ? deferred_before(&s, o) : 0);
        if (end && !count) add_deferred(&s, (s.deferred.n + waits[i] - 1) / waits[i]);
        add_waits(&s, o ? ends_before(&s, o) : s.opens);
        if (o) add_op(&s, i);
    }
    for (int i = l->n - 1; count && i >= 0; i--) waits[i] += waits[i + 1];
    BUG_IF(s.deferred.n);
    free(s.deferred.op);
    free(s.open);
    return s.out;
}

void pass_split_comm(prog *p, op_list *l) {
    hoist_comms(p, l);
    int *waits = mem_alloc((size_t)(l->n + 1) * sizeof *waits);
    op_list split = split_list(p, l, waits, true);
    if (l == &p->bwd) {
        free(split.op);
        split = split_list(p, l, waits, false);
    }
    free(waits);
    free(l->op);
    *l = split;
}
