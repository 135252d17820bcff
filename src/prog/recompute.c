/* Decides how backward gets each forward value it reads:
 *   - a gathered parameter is gathered again: saving it would undo ZeRO-3;
 *   - under selective recompute, a cheap op whose inputs are saved anyway runs again;
 *   - everything else is saved.
 * (Recompute of whole blocks is the chain's business: it runs forward lists again, see chain.c.)
 * Ops are pure functions of their inputs, so a value made again has the same bits. */
#include "prog_internal.h"

#include <stdlib.h>

typedef struct saver {
    prog *p;
    op_list out;     /* the backward list being rebuilt */
    val *again;      /* [vals at start] the value made again, or VAL_NONE */
    uint8_t *needed; /* [vals at start] read by backward other than through a cheap op */
    int n;           /* vals at start */
    op_list put_off; /* readers of an activation that its own backward op will make again */
} saver;

static bool from_forward(const saver *s, val v) {
    return v >= 0 && v < s->n && s->p->val[v].cls == VC_TEMP && s->p->val[v].producer >= 0;
}

static const prog_op *maker(const saver *s, val v) { return &s->p->fwd.op[s->p->val[v].producer]; }

static bool is_gather(const saver *s, val v) {
    if (!from_forward(s, v) || maker(s, v)->op != OP_COMM) return false;
    return s->p->val[val_root(s->p, maker(s, v)->in[0])].cls == VC_PARAM;
}

/* Which of a cheap op's results is worth making again; statistics are tiny and stay saved. */
static int result_of(const prog_op *o) {
    bool norm = o->op == OP_RMSNORM || o->op == OP_LAYERNORM;
    bool quantize = o->op >= OP_QUANTIZE && o->op <= OP_QUANTIZE_GELU_BWD;
    return norm || quantize ? 1 : 0; /* of a quantisation the transpose */
}

static bool cheap_result(const prog_op *o, val v) {
    if (o->op == OP_LINEAR_GELU) return v == o->out[0]; /* gelu of the saved pre-activation */
    return (op_flags(o->op) & OPF_CHEAP) && v == o->out[result_of(o)];
}

/* What must be at hand to make a cheap result again. */
static val source_of(const prog_op *o) {
    if (o->op == OP_LINEAR_GELU) return o->out[1];
    bool norm = o->op == OP_RMSNORM || o->op == OP_LAYERNORM;
    return norm && o->out[0] != VAL_NONE ? o->out[0] : o->in[0];
}

static bool remakable(const saver *s, val v) {
    if (!s->p->selective || !from_forward(s, v)) return false;
    const prog_op *o = maker(s, v);
    if (!cheap_result(o, v) || (o->op == OP_ADD && o->in[1] != VAL_NONE)) return false;
    val src = val_root(s->p, source_of(o));
    return s->needed[src] || remakable(s, src);
}

static val fetch(saver *s, val v);

static val twin(saver *s, val v, val_class cls) {
    prog_val x = s->p->val[v];
    val t = val_new(s->p, cls, x.dt, x.ndim, x.dim, x.pl);
    s->p->val[t].param = x.param;
    s->p->val[t].bucket = x.bucket;
    s->p->val[t].name = x.name;
    return t;
}

static val make_again(saver *s, val v) {
    prog_op o = *maker(s, v), fresh = o;
    val t = twin(s, v, VC_TEMP);
    for (int i = 0; i < OP_MAX_OUT; i++) fresh.out[i] = VAL_NONE;
    bool norm = o.op == OP_RMSNORM || o.op == OP_LAYERNORM;
    if (o.op == OP_LINEAR_GELU) {
        fresh.op = OP_GELU;
        fresh.in[1] = fresh.in[2] = VAL_NONE;
    }
    if (norm) { /* from the saved sum, without the delta */
        fresh.in[1] = VAL_NONE;
        fresh.out[2] = twin(s, o.out[2], VC_TEMP);
    }
    if (o.op == OP_QKNORM) fresh.out[1] = twin(s, o.out[1], VC_TEMP);
    fresh.in[0] = source_of(&o);
    fresh.out[result_of(&o)] = t;
    for (int i = 0; i < OP_MAX_IN; i++) fresh.in[i] = fetch(s, fresh.in[i]);
    list_push(&s->out, &fresh);
    return t;
}

static val gather_again(saver *s, val v) {
    prog_op o = *maker(s, v);
    o.out[0] = twin(s, v, VC_TEMP);
    list_push(&s->out, &o);
    return o.out[0];
}

/* The value backward should read in place of v. */
static val fetch(saver *s, val v) {
    if (v == VAL_NONE || v >= s->n) return v;
    if (s->again[v] != VAL_NONE) return s->again[v];
    if (s->p->val[v].cls == VC_ALIAS) {
        val base = s->p->val[v].base, got = fetch(s, base);
        if (got == base) return v;
        val t = twin(s, v, VC_ALIAS);
        s->p->val[t].base = got;
        s->p->val[t].offset = s->p->val[v].offset;
        return s->again[v] = t;
    }
    if (is_gather(s, v)) return s->again[v] = gather_again(s, v);
    if (remakable(s, v)) return s->again[v] = make_again(s, v);
    if (from_forward(s, v)) s->p->val[v].cls = VC_SAVED;
    return v;
}

/* SWIGLU_BWD reads what its forward read, and makes that result again for the price of writing it.
 * The weight gradient, which nothing in the list reads, can wait for it. */
static bool waits(const saver *s, const prog_op *o) {
    if (o->op != OP_LINEAR_BWD_W || !remakable(s, o->in[1])) return false;
    return maker(s, o->in[1])->op == OP_SWIGLU && s->again[o->in[1]] == VAL_NONE;
}

static void add_fetched(saver *s, prog_op o) {
    for (int k = 0; k < OP_MAX_IN; k++) o.in[k] = fetch(s, o.in[k]);
    list_push(&s->out, &o);
}

static void add_activation(saver *s, prog_op o) {
    for (int i = 0; i < s->put_off.n; i++) {
        val y = s->put_off.op[i].in[1];
        if (maker(s, y)->in[0] == o.in[1]) o.out[1] = s->again[y] = twin(s, y, VC_TEMP);
    }
    add_fetched(s, o);
    int kept = 0;
    for (int i = 0; i < s->put_off.n; i++) {
        prog_op late = s->put_off.op[i];
        if (s->again[late.in[1]] != VAL_NONE)
            add_fetched(s, late);
        else
            s->put_off.op[kept++] = late;
    }
    s->put_off.n = kept;
}

/* Marks the forward ops that lead to something saved: all that a second forward must run. */
static void mark_saves(prog *p) {
    uint8_t *need = mem_alloc((size_t)p->vals);
    for (val v = 0; v < p->vals; v++)
        need[v] = p->val[v].cls == VC_SAVED || p->val[v].cls == VC_CUT;
    for (int i = p->fwd.n - 1; i >= 0; i--) {
        prog_op *o = &p->fwd.op[i];
        for (int k = 0; k < OP_MAX_OUT; k++)
            o->saves |= o->out[k] != VAL_NONE && need[val_root(p, o->out[k])];
        for (int k = 0; k < OP_MAX_IN && o->saves; k++)
            if (o->in[k] != VAL_NONE) need[val_root(p, o->in[k])] = 1;
    }
    free(need);
}

err pass_save(prog *p) {
    saver s = { .p = p, .n = p->vals };
    s.again = mem_alloc((size_t)p->vals * sizeof *s.again);
    s.needed = mem_alloc((size_t)p->vals);
    for (val v = 0; v < p->vals; v++) s.again[v] = VAL_NONE;
    for (int i = 0; i < p->bwd.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val v = val_root(p, p->bwd.op[i].in[k]);
            if (from_forward(&s, v) && !cheap_result(maker(&s, v), v)) s.needed[v] = 1;
        }
    if (p->cut != VAL_NONE) s.needed[p->cut] = 1;
    for (int i = 0; i < p->bwd.n; i++) {
        prog_op o = p->bwd.op[i];
        if (waits(&s, &o))
            list_push(&s.put_off, &o);
        else if (o.op == OP_SWIGLU_BWD)
            add_activation(&s, o);
        else
            add_fetched(&s, o);
    }
    BUG_IF(s.put_off.n);
    free(s.put_off.op);
    if (p->cut != VAL_NONE) p->val[p->cut].cls = VC_CUT;
    mark_saves(p);
    free(p->bwd.op);
    p->bwd = s.out;
    free(s.again);
    free(s.needed);
    return OK;
}
