/* Decides how backward gets each forward value it reads:
 *   - under selective recompute, a result whose row states how to rebuild it (op_row.rebuild) is rebuilt
 *     where what it is rebuilt from is available anyway;
 *   - what sequence parallelism gathers is saved as the rank's own rows, and backward gathers it again, beside
 *     a GEMM that does not need it;
 *   - everything else is saved.
 * (Recompute of whole blocks is an order of instructions: forward lists run again, see steps.c.)
 * Ops are pure functions of their inputs, so a rebuilt value is bit-exact.
 *
 * Some backward ops yield the forward result on their way (swiglu_bwd has y as an optional result). A
 * weight gradient that wants such a value is deferred until that op has run: nothing in the list waits for
 * a weight gradient. */
#include "prog_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct saver {
    prog *p;
    op_list out;      /* the backward list being rebuilt */
    val *again;       /* [vals at start] the rebuilt value, or VAL_NONE */
    uint8_t *needed;  /* [vals at start] read by backward other than through a rebuilt value */
    int n;            /* vals at start */
    op_list deferred; /* readers of an activation that its own backward op will rebuild */
} saver;

static bool from_forward(const saver *s, val v) {
    return v >= 0 && v < s->n && s->p->val[v].cls == VC_TEMP && s->p->val[v].producer >= 0;
}

static const prog_op *producer_of(const saver *s, val v) {
    return &s->p->fwd.op[s->p->val[v].producer];
}

/* ---- how a row states what is rebuilt ------------------------------------------------------ */
/* The operand or result of o that a word of op_row.rebuild names: "x", "r|x", or "-" for none. */
static val named_value(const prog_op *o, const op_signature *sig, const char *word, size_t len) {
    char name[OPERAND_NAME];
    for (size_t at = 0; at < len;) {
        size_t n = strcspn(word + at, "| ");
        n = MIN(n, len - at);
        BUG_IF(n >= sizeof name);
        memcpy(name, word + at, n);
        name[n] = '\0';
        int in = op_find(sig->in, sig->ins, name), out = op_find(sig->out, sig->outs, name);
        BUG_IF(in < 0 && out < 0 && strcmp(name, "-")); /* a row names what its op does not have */
        val v = in >= 0 ? o->in[in] : out >= 0 ? o->out[out] : VAL_NONE;
        if (v != VAL_NONE) return v;
        at += n + 1;
    }
    return VAL_NONE;
}

/* Fills slots from a list of names. @return how many it names. */
static int named_values(const prog_op *o, const char *names, val *to) {
    op_signature sig = op_signature_of(o->op);
    int n = 0;
    for (const char *s = names; s && *s; s += strspn(s, " ")) {
        size_t len = strcspn(s, " ");
        to[n++] = named_value(o, &sig, s, len);
        s += len;
    }
    return n;
}

/* The call that rebuilds a result of o, in terms of o's own values. @return the result that it
 * rebuilds, VAL_NONE when o's cannot be. */
static val rebuilding_call(const prog_op *o, prog_op *call) {
    const op_row *row = op_row_of(o->op);
    if (row->rebuild.op == OP_NONE) return VAL_NONE;
    *call = op_blank(row->rebuild.op, o->site);
    call->attr = o->attr;
    call->when = o->when;
    int n = named_values(o, row->rebuild.in, call->in);
    for (int i = n; i < OP_MAX_IN; i++)
        if (o->in[i] != VAL_NONE) return VAL_NONE;
    named_values(o, row->rebuild.out, call->out);
    int first = 0; /* the first that is named: others need not be rebuilt on their own */
    for (const char *s = row->rebuild.out; *s == '-'; s += strspn(s + 1, " ") + 1) first++;
    return call->out[first];
}

static bool can_rebuild(const saver *s, val v) {
    prog_op call;
    if (!s->p->o.selective || !from_forward(s, v)) return false;
    if (rebuilding_call(producer_of(s, v), &call) != v) return false;
    val from = val_root(s->p, call.in[0]);
    return s->needed[from] || can_rebuild(s, from);
}

/* ---- what backward reads in place of a forward value ------------------------------------------ */
static val available_value(saver *s, val v);

static val copy_of(saver *s, val v, val_class cls) {
    prog_val x = s->p->val[v];
    val t = val_new(s->p, cls, x.dt, x.ndim, x.dim, x.pl);
    s->p->val[t].param = x.param;
    s->p->val[t].bucket = x.bucket;
    s->p->val[t].name = x.name;
    return t;
}

static val rebuild_value(saver *s, val v) {
    prog_op call;
    val t = VAL_NONE;
    BUG_IF(rebuilding_call(producer_of(s, v), &call) != v);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (call.out[i] == VAL_NONE) continue;
        val copy = copy_of(s, call.out[i], VC_TEMP);
        if (call.out[i] == v) t = copy;
        call.out[i] = copy;
    }
    for (int i = 0; i < OP_MAX_IN; i++) call.in[i] = available_value(s, call.in[i]);
    list_push(&s->out, &call);
    return t;
}

/* Whether v is an activation that the ranks of a layer gathered. Weight gradients that are deferred would need it long after. */
static bool is_gathered(const saver *s, val v) {
    if (s->p->o.split_weights || !from_forward(s, v)) return false;
    const prog_op *o = producer_of(s, v);
    return (op_flags(o->op) & OPF_EXTERN) && op_move_kind(o) == MOVE_ALL_GATHER &&
           o->attr.comm.axes == s->p->o.chunk_axes && from_forward(s, val_root(s->p, o->in[0]));
}

static val gather_again(saver *s, val v) {
    prog_op o = *producer_of(s, v);
    o.out[0] = copy_of(s, v, VC_TEMP);
    o.in[0] = available_value(s, o.in[0]);
    list_push(&s->out, &o);
    return o.out[0];
}

static val available_value(saver *s, val v) {
    if (v == VAL_NONE || v >= s->n) return v;
    if (s->again[v] != VAL_NONE) return s->again[v];
    if (s->p->val[v].cls == VC_ALIAS) {
        val base = s->p->val[v].base, got = available_value(s, base);
        if (got == base) return v;
        val t = copy_of(s, v, VC_ALIAS);
        s->p->val[t].base = got;
        s->p->val[t].offset = s->p->val[v].offset;
        return s->again[v] = t;
    }
    if (can_rebuild(s, v)) return s->again[v] = rebuild_value(s, v);
    if (is_gathered(s, v)) return s->again[v] = gather_again(s, v);
    if (from_forward(s, v)) s->p->val[v].cls = VC_SAVED;
    return v;
}

static void add_available(saver *s, prog_op o) {
    for (int k = 0; k < OP_MAX_IN; k++) o.in[k] = available_value(s, o.in[k]);
    list_push(&s->out, &o);
}

/* ---- forward results that a backward op yields on its way -------------------------------------- */
/* The result of backward op `bwd` that is result v of its forward op; -1: it yields none. */
static int forward_result(const saver *s, op_code bwd, val v) {
    const prog_op *f = producer_of(s, v);
    op_signature sig = op_signature_of(f->op), back = op_signature_of(bwd);
    const op_code *ops = op_row_of(f->op)->bwd_op;
    for (int i = 0; i < sig.outs && (ops[0] == bwd || ops[1] == bwd); i++)
        if (f->out[i] == v) return op_find(back.out, back.outs, sig.out[i].name);
    return -1;
}

/* Whether `o` is the backward op of the very call that computed v: it reads what that one read. */
static bool belongs_to(const saver *s, const prog_op *o, val v) {
    const prog_op *f = producer_of(s, v);
    op_signature sig = op_signature_of(f->op), back = op_signature_of(o->op);
    int i = op_find(back.in, back.ins, sig.in[0].name);
    return i >= 0 && o->in[i] == f->in[0];
}

/* The operand for which this weight gradient waits; VAL_NONE: it does not. */
static val waits_for(const saver *s, const prog_op *o) {
    if (!(op_flags(o->op) & OPF_WEIGHT_GRAD)) return VAL_NONE;
    for (int k = 0; k < OP_MAX_IN; k++) {
        val v = o->in[k];
        if (v == VAL_NONE || !can_rebuild(s, v) || s->again[v] != VAL_NONE) continue;
        for (int i = 0; i < 2; i++) {
            op_code bwd = op_row_of(producer_of(s, v)->op)->bwd_op[i];
            if (bwd != OP_NONE && forward_result(s, bwd, v) >= 0) return v;
        }
    }
    return VAL_NONE;
}

/* Adds o, which also yields what the ops deferred for it wait for; then those. */
static void add_and_resume(saver *s, prog_op o) {
    for (int i = 0; i < s->deferred.n; i++) {
        val y = waits_for(s, &s->deferred.op[i]);
        int at = y == VAL_NONE ? -1 : forward_result(s, o.op, y);
        if (at >= 0 && belongs_to(s, &o, y)) o.out[at] = s->again[y] = copy_of(s, y, VC_TEMP);
    }
    add_available(s, o);
    int kept = 0;
    for (int i = 0; i < s->deferred.n; i++) {
        prog_op late = s->deferred.op[i];
        if (waits_for(s, &late) == VAL_NONE)
            add_available(s, late);
        else
            s->deferred.op[kept++] = late;
    }
    s->deferred.n = kept;
}

/* Marks the forward ops that lead to something saved: all that a second forward must run. */
static void mark_saves(prog *p) {
    uint8_t *need = mem_alloc((size_t)p->vals);
    for (val v = 0; v < p->vals; v++)
        need[v] = p->val[v].cls == VC_SAVED || p->val[v].cls == VC_BLOCK_INPUT;
    for (int i = p->fwd.n - 1; i >= 0; i--) {
        prog_op *o = &p->fwd.op[i];
        for (int k = 0; k < OP_MAX_OUT; k++)
            o->saves |= o->out[k] != VAL_NONE && need[val_root(p, o->out[k])];
        for (int k = 0; k < OP_MAX_IN && o->saves; k++)
            if (o->in[k] != VAL_NONE) need[val_root(p, o->in[k])] = 1;
    }
    free(need);
}

void pass_save(prog *p) {
    saver s = { .p = p, .n = p->vals };
    s.again = mem_alloc((size_t)p->vals * sizeof *s.again);
    s.needed = mem_alloc((size_t)p->vals);
    for (val v = 0; v < p->vals; v++) s.again[v] = VAL_NONE;
    for (int i = 0; i < p->bwd.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            prog_op call;
            val v = val_root(p, p->bwd.op[i].in[k]);
            if (from_forward(&s, v) && rebuilding_call(producer_of(&s, v), &call) != v)
                s.needed[v] = 1;
        }
    if (p->block_input != VAL_NONE) s.needed[p->block_input] = 1;
    for (int i = 0; i < p->bwd.n; i++) {
        prog_op o = p->bwd.op[i];
        if (waits_for(&s, &o) != VAL_NONE)
            list_push(&s.deferred, &o);
        else
            add_and_resume(&s, o);
    }
    BUG_IF(s.deferred.n);
    free(s.deferred.op);
    if (p->block_input != VAL_NONE) p->val[p->block_input].cls = VC_BLOCK_INPUT;
    mark_saves(p);
    free(p->bwd.op);
    p->bwd = s.out;
    free(s.again);
    free(s.needed);
}
