/* Plans a program's memory: which values share bytes, the offsets of temporaries, what an instance
 * saves. The planner alone decides aliasing; recording and backward are single-assignment.
 *
 *     temp   |  a  |   b    |        lifetimes are intervals of op numbers; two values may overlap
 *            | c |    d     |        in bytes only when their intervals do not
 *     saved  | r | stat | qkv | ...  one slot per instance in flight
 *     gathered, whole gradients       a slot of each bucket that is kept in slices (slots.c)
 */
#include "prog_internal.h"

#include <stdlib.h>

enum { ALIGN = 64 };

typedef struct life {
    val v;
    int from, to; /* op numbers, inclusive */
    size_t bytes;
} life;

/* Lets out[0] of an in-place op take the bytes of in[0], or lend it its own. */
static void share_in_place(prog *p, op_list *l) {
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        if (!(op_flags(o->op) & OPF_INPLACE) || o->in[0] == VAL_NONE || o->out[0] == VAL_NONE)
            continue;
        val a = o->in[0], y = o->out[0];
        prog_val *x = &p->val[a], *z = &p->val[y];
        if (x->cls != VC_TEMP || (z->cls != VC_TEMP && z->cls != VC_SAVED)) continue;
        if (x->dt != z->dt || val_bytes(x) != val_bytes(z)) continue;
        bool sole = true; /* nothing reads a later, nor does another operand of this op */
        for (int k = 1; k < OP_MAX_IN; k++)
            sole &= o->in[k] == VAL_NONE || val_root(p, o->in[k]) != a;
        for (int j = i + 1; j < l->n; j++)
            for (int k = 0; k < OP_MAX_IN; k++)
                sole &= l->op[j].in[k] == VAL_NONE || val_root(p, l->op[j].in[k]) != a;
        /* a communication in flight may still be reading a */
        for (int j = 0; j < l->n; j++)
            sole &= !(l->op[j].phase == COMM_WAIT && l->op[j].pair < i && j > i &&
                      val_root(p, l->op[j].in[0]) == a);
        if (!sole) continue;
        x->cls = VC_ALIAS;
        x->base = y;
        x->offset = 0;
    }
}

static void extend_life(life *lives, int *index, const prog *p, val v, int at) {
    v = val_root(p, v);
    if (v == VAL_NONE || p->val[v].cls != VC_TEMP || index[v] < 0) return;
    life *f = &lives[index[v]];
    if (at < f->from) f->from = at;
    if (at > f->to) f->to = at;
}

SORT_ORDER(by_value_size, life, FALLING(bytes) RISING(v));

/* @return the lowest offset at which f does not overlap a placed value that is live at the same time. */
static size_t place_life(const prog *p, const life *placed, int n, const life *f) {
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            const life *g = &placed[i];
            if (g->to < f->from || f->to < g->from) continue;
            size_t begin = p->val[g->v].at, end = begin + g->bytes;
            if (at < end && begin < at + f->bytes) {
                at = end;
                moved = true;
            }
        }
    }
    return at;
}

static size_t plan_list(prog *p, op_list *l) {
    life *lives = mem_alloc((size_t)p->vals * sizeof *lives);
    int *index = mem_alloc((size_t)p->vals * sizeof *index), n = 0;
    for (val v = 0; v < p->vals; v++) index[v] = -1;
    for (int i = 0; i < l->n; i++) /* values this list makes */
        for (int k = 0; k < OP_MAX_OUT; k++) {
            val v = val_root(p, l->op[i].out[k]);
            if (v == VAL_NONE || p->val[v].cls != VC_TEMP || index[v] >= 0) continue;
            index[v] = n;
            lives[n++] = (life){ v, i, i, align_up(val_bytes(&p->val[v]), ALIGN) };
        }
    for (int i = 0; i < l->n; i++) {
        for (int k = 0; k < OP_MAX_IN; k++) extend_life(lives, index, p, l->op[i].in[k], i);
        for (int k = 0; k < OP_MAX_OUT; k++) extend_life(lives, index, p, l->op[i].out[k], i);
    }
    sort_array(lives, (size_t)n, sizeof *lives, by_value_size);
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        p->val[lives[i].v].at = place_life(p, lives, i, &lives[i]);
        total = MAX(total, p->val[lives[i].v].at + lives[i].bytes);
    }
    free(lives);
    free(index);
    return total;
}

/* Lays out values of a class one after another. @return where they end. */
static size_t place_class(prog *p, val_class cls, size_t at) {
    for (val v = 0; v < p->vals; v++)
        if (p->val[v].cls == cls) {
            p->val[v].at = at;
            at += align_up(val_bytes(&p->val[v]), ALIGN);
        }
    return at;
}

/* A list gives memory to the temporaries that its ops make. One that it reads unmade would get the first bytes of
 * the arena, which belong to others: it is refused. */
static void check_temporaries(prog *p, const op_list *l, const char *list) {
    bool *made = mem_alloc((size_t)(p->vals + 1) * sizeof *made);
    for (int i = 0; i < l->n && !p->error; i++) {
        const prog_op *o = &l->op[i];
        op_signature sig = op_signature_of(o->op);
        bool fills = (op_flags(o->op) & OPF_EXTERN) && op_move_kind(o) == MOVE_RECV;
        for (int k = fills ? sig.ins : 0; k < sig.ins + sig.outs; k++) {
            const op_operand *x = k < sig.ins ? &sig.in[k] : &sig.out[k - sig.ins];
            val v = k < sig.ins ? o->in[k] : o->out[k - sig.ins], root = val_root(p, v);
            bool reads = k < sig.ins || (x->accumulates && o->acc == ACC_ADD) || x->state;
            if (!reads || root == VAL_NONE || p->val[root].cls != VC_TEMP || made[root]) continue;
            p->site = o->site;
            prog_fail(p, "record the op that makes it before, in the same list",
                      "op %d of list %s, %s, reads %s, value %%%d%s%s, which no op before it makes",
                      i, list, op_name(o->op), x->name, v, p->val[v].name ? " " : "",
                      p->val[v].name ? p->val[v].name : "");
        }
        for (int k = 0; k < sig.outs; k++)
            if (o->out[k] != VAL_NONE) made[val_root(p, o->out[k])] = true;
    }
    free(made);
}

void pass_memory(prog *p) {
    for (int i = 0; i < PROG_LISTS; i++) check_temporaries(p, &p->list[i], prog_list_names[i]);
    if (p->error) return;
    share_in_place(p, &p->fwd);
    share_in_place(p, &p->bwd);
    share_in_place(p, &p->weights);
    size_t f = plan_list(p, &p->fwd), b = plan_list(p, &p->bwd), w = plan_list(p, &p->weights);
    p->temp_bytes = MAX(MAX(f, b), w);
    BUG_IF(plan_list(p, &p->gather) || plan_list(p, &p->reduce)); /* they outlive the others' */
    p->saved_bytes = place_class(p, VC_SAVED, place_class(p, VC_BLOCK_INPUT, 0));
    p->gathered_bytes = place_class(p, VC_GATHERED, 0);
    p->whole_grad_bytes = place_class(p, VC_WHOLE_GRAD, 0);
}
