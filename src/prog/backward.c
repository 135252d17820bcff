/* Derives the backward list from the forward list: one rule an op, walked in reverse. A gradient's
 * placement is the dual of its value's; that alone makes every collective of the backward pass. */
#include "prog_internal.h"

#include <stdlib.h>

typedef struct walk {
    prog *p;
    const prog_op *o; /* a copy of the forward op under the rule */
} walk;

static val grad(const walk *w, val v) { return v == VAL_NONE ? VAL_NONE : w->p->val[v].grad; }

static val like(walk *w, val v) {
    prog_val x = w->p->val[v];
    return val_new(w->p, VC_TEMP, x.dt, x.ndim, x.dim, placement_dual(x.pl));
}

static bool wants(const walk *w, val v) { return v != VAL_NONE && w->p->val[v].needs_grad; }

/* v's gradient so far plus g. Values are never overwritten: a second reader gets a sum of its own. */
static void give(walk *w, val v, val g) {
    if (!wants(w, v) || g == VAL_NONE) return;
    prog *p = w->p;
    if (!placement_same(p->val[g].pl, placement_dual(p->val[v].pl))) {
        char got[64], want[64];
        prog_fail(p, NULL, "%s: a gradient is %s, expected %s", op_name(w->o->op),
                  placement_str(got, sizeof got, p->val[g].pl),
                  placement_str(want, sizeof want, placement_dual(p->val[v].pl)));
        return;
    }
    val old = p->val[v].grad;
    if (old != VAL_NONE) {
        val sum = like(w, v);
        prog_op *o = op_emit(p, OP_ADD);
        o->in[0] = old;
        o->in[1] = g;
        o->out[0] = sum;
        g = sum;
    }
    p->val[v].grad = g;
}

/* Emits op(in...) -> a new gradient for v, and gives it. @return false when v wants none. */
static val one(walk *w, op_code op, val for_v, val a, val b, val c, val d, val e) {
    if (!wants(w, for_v)) return VAL_NONE;
    val dx = like(w, for_v);
    prog_op *o = op_emit(w->p, op);
    val in[OP_MAX_IN] = { a, b, c, d, e };
    for (int i = 0; i < OP_MAX_IN; i++) o->in[i] = in[i];
    o->out[0] = dx;
    o->attr = w->o->attr;
    give(w, for_v, dx);
    return dx;
}

static void bwd_embed(walk *w) {
    op_acc acc;
    if (!wants(w, w->o->in[1])) return;
    val dt = param_grad(w->p, w->o->in[1], &acc), dx = grad(w, w->o->out[0]);
    prog_op *o = op_emit(w->p, OP_EMBED_BWD);
    o->in[0] = dx;
    o->in[1] = w->o->in[0];
    o->out[0] = dt;
    o->acc = acc;
}

static void linear_weights(walk *w, val dy) {
    op_acc acc, bias_acc;
    val x = w->o->in[0], b = w->o->in[2];
    val dw = param_grad(w->p, w->o->in[1], &acc);
    val db = wants(w, b) ? param_grad(w->p, b, &bias_acc) : VAL_NONE;
    prog_op *o = op_emit(w->p, OP_LINEAR_BWD_W);
    o->in[0] = dy;
    o->in[1] = x;
    o->out[0] = dw;
    o->out[1] = db;
    o->acc = acc;
    o->attr.fp8 = w->o->attr.fp8;
    BUG_IF(db != VAL_NONE && bias_acc != acc);
}

/* @return the LINEAR_GELU that made v when the op under the rule is its only reader, and not in fp8:
 * there the slope rides on what quantises the gradient; else NULL. */
static const prog_op *gelu_before(const walk *w, val v) {
    const prog *p = w->p;
    int made = p->val[v].producer, readers = 0;
    if (made < 0 || p->fwd.op[made].op != OP_LINEAR_GELU || p->fwd.op[made].out[0] != v)
        return NULL;
    for (int i = made + 1; i < p->fwd.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val in = p->fwd.op[i].in[k];
            readers += in != VAL_NONE && val_root(p, in) == v;
        }
    bool fp8 = w->o->attr.fp8.recipe != FP8_OFF;
    return readers == 1 && v != p->res_out && v != p->delta_out && !fp8 ? &p->fwd.op[made] : NULL;
}

/* The gradient of a linear layer's input; behind a GELU, of what came before that. */
static void linear_input(walk *w, val dy) {
    val x = w->o->in[0], weight = w->o->in[1];
    const prog_op *made = wants(w, x) ? gelu_before(w, x) : NULL;
    if (!made) {
        one(w, OP_LINEAR_BWD_X, x, dy, weight, VAL_NONE, VAL_NONE, VAL_NONE);
        return;
    }
    val pre = made->out[1], dpre = like(w, pre);
    prog_op *o = op_emit(w->p, OP_LINEAR_BWD_X_GELU);
    o->in[0] = dy;
    o->in[1] = weight;
    o->in[2] = pre;
    o->out[0] = dpre;
    o->attr.act = made->attr.act;
    give(w, pre, dpre);
}

static void bwd_linear(walk *w) {
    val dy = w->o->op == OP_LINEAR_GELU ? grad(w, w->o->out[1]) : VAL_NONE;
    bool through = dy != VAL_NONE; /* the layer behind made the gradient of `pre` */
    dy = val_as(w->p, through ? dy : grad(w, w->o->out[0]), w->p->val[w->o->in[1]].dt);
    if (w->o->op == OP_LINEAR_GELU && !through) {
        val dpre = like(w, w->o->out[1]);
        prog_op *o = op_emit(w->p, OP_GELU_BWD);
        o->in[0] = dy;
        o->in[1] = w->o->out[1];
        o->out[0] = dpre;
        o->attr = w->o->attr;
        dy = dpre;
    }
    linear_input(w, dy);
    if (wants(w, w->o->in[1])) linear_weights(w, dy);
}

/* The gradient that reaches the normalised sum from elsewhere is added inside the op. */
static void bwd_norm(walk *w) {
    prog *p = w->p;
    bool rms = w->o->op == OP_RMSNORM;
    val x = w->o->in[0], delta = w->o->in[1], r = w->o->out[0], summed = r == VAL_NONE ? x : r;
    op_acc acc, bias_acc = ACC_STORE;
    val dw = param_grad(p, w->o->in[2], &acc);
    val db = wants(w, w->o->in[3]) ? param_grad(p, w->o->in[3], &bias_acc) : VAL_NONE;
    BUG_IF(db != VAL_NONE && bias_acc != acc);
    val dx = like(w, summed);
    prog_op *o = op_emit(p, rms ? OP_RMSNORM_BWD : OP_LAYERNORM_BWD);
    o->in[0] = grad(w, w->o->out[1]);
    o->in[1] = summed;
    o->in[2] = w->o->out[2];
    o->in[3] = w->o->in[2];
    o->in[4] = grad(w, summed);
    o->out[0] = dx;
    o->out[1] = dw;
    o->out[2] = db;
    o->acc = acc;
    o->attr = w->o->attr;
    if (r == VAL_NONE) {
        p->val[x].grad = dx; /* already holds what x had */
    } else {
        give(w, x, dx);
        give(w, delta, dx);
    }
}

static void bwd_qknorm(walk *w) {
    op_acc qa, ka;
    val dwq = param_grad(w->p, w->o->in[1], &qa), dwk = param_grad(w->p, w->o->in[2], &ka);
    BUG_IF(qa != ka);
    val dx = like(w, w->o->in[0]);
    prog_op *o = op_emit(w->p, OP_QKNORM_BWD);
    o->in[0] = grad(w, w->o->out[0]);
    o->in[1] = w->o->in[0];
    o->in[2] = w->o->out[1];
    o->in[3] = w->o->in[1];
    o->in[4] = w->o->in[2];
    o->out[0] = dx;
    o->out[1] = dwq;
    o->out[2] = dwk;
    o->acc = qa;
    o->attr = w->o->attr;
    give(w, w->o->in[0], dx);
}

static void bwd_rope(walk *w) {
    one(w, OP_ROPE_BWD, w->o->in[0], grad(w, w->o->out[0]), w->o->in[1], w->o->in[2], VAL_NONE,
        VAL_NONE);
}
static void bwd_attention(walk *w) {
    one(w, OP_ATTENTION_BWD, w->o->in[0], grad(w, w->o->out[0]), w->o->in[0], w->o->out[0],
        w->o->out[1], w->o->in[1]);
}
static void bwd_gelu(walk *w) {
    one(w, OP_GELU_BWD, w->o->in[0], grad(w, w->o->out[0]), w->o->in[0], VAL_NONE, VAL_NONE,
        VAL_NONE);
}
static void bwd_swiglu(walk *w) {
    one(w, OP_SWIGLU_BWD, w->o->in[0], grad(w, w->o->out[0]), w->o->in[0], VAL_NONE, VAL_NONE,
        VAL_NONE);
}
static void bwd_add(walk *w) {
    val g = grad(w, w->o->out[0]);
    give(w, w->o->in[0], g);
    give(w, w->o->in[1], g);
}
static void bwd_same(walk *w) { /* ops whose backward is themselves: dropout, scale, cast */
    one(w, w->o->op, w->o->in[0], grad(w, w->o->out[0]), w->o->in[1], VAL_NONE, VAL_NONE, VAL_NONE);
}
static void bwd_comm(walk *w) {
    if (!wants(w, w->o->in[0])) return; /* a gathered parameter: its bucket is reduced as one */
    give(w, w->o->in[0],
         emit_comm(w->p, grad(w, w->o->out[0]), w->o->attr.comm.axes,
                   place_dual(w->o->attr.comm.from), WHEN_ALWAYS));
}
static void bwd_linear_ce(walk *w) { give(w, w->o->in[0], w->o->out[1]); }

static void (*const rules[OP_COUNT])(walk *) = {
    [OP_EMBED] = bwd_embed,
    [OP_LINEAR] = bwd_linear,
    [OP_LINEAR_GELU] = bwd_linear,
    [OP_RMSNORM] = bwd_norm,
    [OP_LAYERNORM] = bwd_norm,
    [OP_QKNORM] = bwd_qknorm,
    [OP_ROPE] = bwd_rope,
    [OP_ATTENTION] = bwd_attention,
    [OP_GELU] = bwd_gelu,
    [OP_SWIGLU] = bwd_swiglu,
    [OP_ADD] = bwd_add,
    [OP_DROPOUT] = bwd_same,
    [OP_SCALE] = bwd_same,
    [OP_CAST] = bwd_same,
    [OP_COMM] = bwd_comm,
    [OP_LINEAR_CE] = bwd_linear_ce,
};

/* ---- gradients of buckets, over the mesh ------------------------------------------------- */
/* Sums the runs of parameters whose gradient is partial over tp (they are the same on every tp
 * rank, but each rank used them on its own tokens or heads). Neighbours go together. */
static void reduce_over_tp(prog *p, int b, const uint8_t *partial, op_when when) {
    const prog_bucket *k = &p->set.bucket[b];
    for (int64_t at = k->tp_same; at < k->count;) {
        int64_t from = -1, to = -1;
        for (int64_t next = at; next < k->count;) { /* the parameter that starts at `next` */
            int i = 0;
            while (i < p->set.params &&
                   (p->set.param[i].bucket != b || p->set.param[i].offset != next))
                i++;
            if (i == p->set.params) break;
            const prog_param *q = &p->set.param[i];
            int64_t n = q->dim[0] * (q->ndim > 1 ? q->dim[1] : 1);
            int64_t end = next + (int64_t)align_up((size_t)n, PARAM_ALIGN);
            if (partial[i]) {
                if (from < 0) from = next;
                to = end;
            } else if (from >= 0) {
                break;
            }
            next = end;
        }
        if (from < 0) return;
        int64_t n = to - from;
        val run = val_alias(p, p->bucket_grad[b], (size_t)from * sizeof(float), DT_F32, 1, &n,
                            (placement){ .on[AX_TP] = PLACE_P });
        val sum = emit_comm(p, run, AXIS(AX_TP), PLACE_I, when);
        if (sum != run) { /* in place */
            p->val[sum].cls = VC_ALIAS;
            p->val[sum].base = run;
        }
        at = to;
    }
}

static void reduce_bucket(prog *p, int b, const uint8_t *partial) {
    const prog_bucket *k = &p->set.bucket[b];
    bool second = false; /* the later of a tied bucket's two writers */
    for (int i = 0; i < p->set.params; i++)
        second |=
            p->set.param[i].bucket == b && p->param_written[i] == (WROTE_EARLIER | WROTE_HERE);
    val g = p->bucket_grad[b];
    if (p->val[g].cls == VC_TEMP) { /* slices: into the accumulator, every microbatch */
        reduce_over_tp(p, b, partial, WHEN_ALWAYS);
        int64_t n = bucket_stored(k, &p->m);
        p->val[g].pl.on[AX_DP] = PLACE_P;
        val slice = emit_comm(p, g, AXIS(AX_DP), PLACE_S(0), WHEN_ALWAYS);
        p->val[slice].cls = VC_GRAD;
        p->val[slice].bucket = b;
        p->val[slice].name = k->name;
        p->emit->op[p->emit->n - 1].acc = second ? ACC_ADD : ACC_MICRO;
        BUG_IF(p->val[slice].dim[0] != n);
        return;
    }
    if (k->tied && !second) return; /* the other program reduces it, after its own share */
    reduce_over_tp(p, b, partial, WHEN_LAST);
    val whole = val_alias(p, g, 0, DT_F32, 1, &k->count, (placement){ .on[AX_DP] = PLACE_P });
    val sum = emit_comm(p, whole, AXIS(AX_DP), PLACE_I, WHEN_LAST);
    if (sum != whole) {
        p->val[sum].cls = VC_ALIAS;
        p->val[sum].base = whole;
    }
}

static void reduce_all(prog *p, uint8_t *partial) {
    for (val v = 0; v < p->vals; v++) /* gradient aliases carry the dual of how they were used */
        if (p->val[v].param >= 0 && p->val[v].pl.on[AX_TP].kind == PL_P)
            partial[p->val[v].param] = 1;
    for (int b = 0; b < p->set.buckets; b++)
        if (p->bucket_grad[b] != VAL_NONE) reduce_bucket(p, b, partial);
}

/* ---- the pass ---------------------------------------------------------------------------- */
static void seed(prog *p) {
    if (p->res_out == VAL_NONE) return;
    /* The next program begins with residual + delta, so one gradient serves both. */
    prog_val r = p->val[p->res_out];
    p->grad_in = val_new(p, VC_BOUNDARY, r.dt, r.ndim, r.dim, placement_dual(r.pl));
    p->val[p->grad_in].name = "d_stream";
    p->val[p->res_out].grad = p->grad_in;
    if (p->delta_out != VAL_NONE) p->val[p->delta_out].grad = p->grad_in;
}

static void finish_stream(prog *p) {
    if (p->res_in == VAL_NONE || p->error) return;
    val g = p->val[p->res_in].grad;
    BUG_IF(g == VAL_NONE || g != p->val[p->delta_in].grad); /* both begin in one sum */
    BUG_IF(p->val[g].cls != VC_TEMP);
    p->val[g].cls = VC_BOUNDARY;
    p->grad_out = g;
}

err pass_backward(prog *p) {
    const char *file = p->file;
    int line = p->line;
    seed(p);
    p->emit = &p->bwd;
    for (int i = p->fwd.n - 1; i >= 0 && !p->error; i--) {
        prog_op o = p->fwd.op[i]; /* a copy: emitting may move the list */
        walk w = { p, &o };
        bool reached = o.op == OP_LINEAR_CE;
        for (int k = 0; k < OP_MAX_OUT; k++) reached |= grad(&w, o.out[k]) != VAL_NONE;
        if (!reached || !rules[o.op]) continue;
        p->file = o.file;
        p->line = o.line;
        rules[o.op](&w);
    }
    uint8_t *partial = mem_alloc((size_t)p->set.params + 1);
    if (!p->error) reduce_all(p, partial);
    free(partial);
    finish_stream(p);
    p->file = file;
    p->line = line;
    return OK;
}
