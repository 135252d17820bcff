/* Derives the backward list from the forward list, one op at a time and last to first, by the rule in
 * each op's row. Most rules are BWD_BY_NAME: the row lists backward ops, and their operands and results
 * are bound by name. For "swiglu(gu -> y)" and "swiglu_bwd(dy, gu -> dgu)" that means: dy is the gradient
 * of y, gu is what the forward op read, dgu becomes (part of) the gradient of gu.
 *
 * A gradient's placement is the dual of its value's; that alone yields every collective of the backward
 * pass. Nothing is dropped in silence: an op without a rule, or a needed gradient that no backward op
 * yields, is an error that names it. */
#include "prog_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct bwd_step {
    prog *p;
    const prog_op *o; /* a copy of the forward op whose gradients are derived */
    op_signature sig; /* of that op */
} bwd_step;

static val grad_of(const bwd_step *s, val v) {
    return v == VAL_NONE ? VAL_NONE : s->p->val[v].grad;
}

static bool needs_grad(const bwd_step *s, val v) {
    return v != VAL_NONE && s->p->val[v].needs_grad;
}

/* @return a new value with v's type and shape, and the placement of its gradient. */
static val new_grad(bwd_step *s, val v) {
    prog_val x = s->p->val[v];
    return val_new(s->p, VC_TEMP, x.dt, x.ndim, x.dim, placement_dual(x.pl));
}

/* Adds g to v's gradient so far. Values are never overwritten: a second reader gets a new sum. */
static void add_grad(bwd_step *s, val v, val g) {
    if (!needs_grad(s, v) || g == VAL_NONE) return;
    prog *p = s->p;
    if (!placement_same(p->val[g].pl, placement_dual(p->val[v].pl))) {
        char got[64], want[64];
        prog_fail(p, NULL, "%s: a gradient is %s, expected %s", op_name(s->o->op),
                  placement_str(got, sizeof got, p->val[g].pl),
                  placement_str(want, sizeof want, placement_dual(p->val[v].pl)));
        return;
    }
    val old = p->val[v].grad;
    if (old != VAL_NONE) g = emit_add(p, old, g, p->val[v].dt);
    p->val[v].grad = g;
}

/* ---- backward ops, bound by name ----------------------------------------------------------- */
/* @return the forward operand that `name` ("dx") is the gradient of; VAL_NONE: none. */
static val operand_by_gradient(const bwd_step *s, const char *name) {
    int i = name[0] == 'd' ? op_find(s->sig.in, s->sig.ins, name + 1) : -1;
    return i < 0 ? VAL_NONE : s->o->in[i];
}

/* Finds the value that a backward op reads under this name: a gradient of a forward result, or a forward operand or
 * result itself. */
static val operand_by_name(const bwd_step *s, const char *name) {
    int out = name[0] == 'd' ? op_find(s->sig.out, s->sig.outs, name + 1) : -1;
    if (out >= 0) return grad_of(s, s->o->out[out]);
    int in = op_find(s->sig.in, s->sig.ins, name);
    if (in >= 0) return s->o->in[in];
    out = op_find(s->sig.out, s->sig.outs, name);
    return out < 0 ? VAL_NONE : s->o->out[out];
}

/* Binds the operands and results of backward op `op` by name: a parameter's gradient is the one that accumulates.
 * @return whether any result is needed. */
static bool bind_by_name(bwd_step *s, op_code op, prog_op *o) {
    prog *p = s->p;
    op_signature sig = op_signature_of(op);
    *o = op_blank(op, p->site);
    bool any = false, summed = false;
    for (int i = 0; i < sig.outs; i++) {
        val of = operand_by_gradient(s, sig.out[i].name);
        if (!needs_grad(s, of)) continue;
        op_acc acc = ACC_STORE;
        bool is_param = sig.out[i].accumulates;
        if (is_param && p->val[of].param < 0) {
            prog_fail(p, "get it through prog_use", "%s: %s is not a parameter", op_name(s->o->op),
                      sig.out[i].name + 1);
            return false;
        }
        o->out[i] = is_param ? param_grad(p, of, &acc) : new_grad(s, of);
        BUG_IF(is_param && summed &&
               acc != o->acc); /* one call adds to all of its sums or to none */
        if (is_param) o->acc = acc, summed = true;
        any = true;
    }
    if (!any) return false;
    for (int i = 0; i < sig.ins; i++) {
        o->in[i] = operand_by_name(s, sig.in[i].name);
        if (o->in[i] == VAL_NONE && !sig.in[i].optional)
            prog_fail(p, op_row_of(op)->signature, "%s: %s has no value for its operand %s",
                      op_name(s->o->op), op_name(op), sig.in[i].name);
    }
    o->attr = s->o->attr;
    return true;
}

/* Emits `op`, bound by name, and adds its results to the gradients of the forward operands. Does nothing when no
 * result is needed. */
static void emit_by_name(bwd_step *s, op_code op) {
    op_signature sig = op_signature_of(op);
    prog_op o;
    if (!bind_by_name(s, op, &o)) return;
    list_push(s->p->emit, &o);
    for (int i = 0; i < sig.outs; i++)
        if (!sig.out[i].accumulates) add_grad(s, operand_by_gradient(s, sig.out[i].name), o.out[i]);
}

/* Refuses an operand that needs a gradient which none of the backward ops yields. */
static void check_all_given(bwd_step *s, const op_code *ops, int n) {
    for (int i = 0; i < s->sig.ins; i++) {
        char name[OPERAND_NAME + 1];
        bool given = !needs_grad(s, s->o->in[i]);
        snprintf(name, sizeof name, "d%s", s->sig.in[i].name);
        for (int k = 0; k < n && !given; k++) {
            op_signature sig = op_signature_of(ops[k]);
            given = op_find(sig.out, sig.outs, name) >= 0;
        }
        if (!given)
            prog_fail(s->p,
                      "name it in the signature of the backward op, in src/engine/ops/ops.def",
                      "%s: no backward op yields the gradient of its operand %s", op_name(s->o->op),
                      s->sig.in[i].name);
    }
}

static void bwd_by_name(bwd_step *s) {
    const op_code *ops = op_row_of(s->o->op)->bwd_op;
    int n = (ops[0] != OP_NONE) + (ops[1] != OP_NONE);
    check_all_given(s, ops, n);
    for (int i = 0; i < n; i++) emit_by_name(s, ops[i]);
}

/* ---- rules of their own -------------------------------------------------------------------- */
static void bwd_self(bwd_step *s) {
    prog_op o = *s->o;
    if (!needs_grad(s, o.in[0])) return;
    o.in[0] = grad_of(s, s->o->out[0]);
    o.out[0] = new_grad(s, s->o->in[0]);
    list_push(s->p->emit, &o);
    add_grad(s, s->o->in[0], o.out[0]);
}

static void bwd_sum(bwd_step *s) {
    val g = grad_of(s, s->o->out[0]);
    for (int i = 0; i < s->sig.ins; i++) add_grad(s, s->o->in[i], g);
}

static void bwd_comm(bwd_step *s) {
    if (!needs_grad(s, s->o->in[0]))
        return; /* a gathered parameter: its bucket is reduced as one */
    if (s->o->attr.comm.kind == MOVE_ROWS) { /* the way back */
        add_grad(s, s->o->in[0],
                 emit_rows(s->p, grad_of(s, s->o->out[0]), s->o->attr.comm.axes, s->o->in[2],
                           s->o->in[1], s->p->val[s->o->in[0]].dim[0]));
        return;
    }
    BUG_IF(s->o->attr.comm.kind); /* composites record their own backward */
    add_grad(s, s->o->in[0],
             emit_comm(s->p, grad_of(s, s->o->out[0]), s->o->attr.comm.axes,
                       place_dual(s->o->attr.comm.from), WHEN_ALWAYS));
}

static void bwd_blocks(bwd_step *s) {
    blocks_grad g = rec_blocks_backward(s->p, s->o, grad_of(s, s->o->out[0]));
    add_grad(s, g.q, g.dq);
    add_grad(s, g.kv, g.dkv);
}

static void bwd_loss(bwd_step *s) {
    for (int i = 0; i < s->sig.outs; i++)
        if (!s->sig.out[i].accumulates)
            add_grad(s, operand_by_gradient(s, s->sig.out[i].name), s->o->out[i]);
}

static void bwd_stop(bwd_step *s) {
    for (int i = 0; i < s->sig.ins; i++)
        if (needs_grad(s, s->o->in[i]))
            prog_fail(s->p, "record it outside PROG_TRAIN, or give its row a backward rule",
                      "%s is not differentiable", op_name(s->o->op));
}

static void bwd_missing(bwd_step *s) {
    prog_fail(s->p, "add .bwd to its row in src/engine/ops/ops.def", "%s has no backward rule",
              op_name(s->o->op));
}

/* @return the op with a fused activation that computed v when the op at hand is v's only reader, and not
 * in fp8 (there the slope is applied by what quantizes the gradient); else NULL. */
static const prog_op *activation_before(const bwd_step *s, val v) {
    const prog *p = s->p;
    int made = p->val[v].producer, readers = 0;
    if (made < 0 || p->fwd.op[made].out[0] != v) return NULL;
    op_code act = op_row_of(p->fwd.op[made].op)->fused.activation;
    if (act == OP_NONE || act != op_row_of(op_row_of(s->o->op)->bwd_op[0])->through.activation)
        return NULL;
    for (int i = made + 1; i < p->fwd.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val in = p->fwd.op[i].in[k];
            readers += in != VAL_NONE && val_root(p, in) == v;
        }
    bool fp8 = s->o->attr.fp8.recipe != FP8_OFF;
    return readers == 1 && v != p->res_out && v != p->delta_out && !fp8 ? &p->fwd.op[made] : NULL;
}

/* @return the result of a fused op that holds the activation's input. */
static val pre_activation(const prog_op *o) {
    op_signature sig = op_signature_of(o->op);
    return o->out[op_find(sig.out, sig.outs, op_row_of(o->op)->fused.pre)];
}

/* The gradient of a linear layer's input; behind an activation, of what came before that. */
static void emit_linear_input(bwd_step *s, val dy) {
    enum { X, W };
    op_code plain = op_row_of(s->o->op)->bwd_op[0];
    const prog_op *made = needs_grad(s, s->o->in[X]) ? activation_before(s, s->o->in[X]) : NULL;
    if (!needs_grad(s, s->o->in[X])) return;
    val of = made ? pre_activation(made) : s->o->in[X], d = new_grad(s, of);
    op_code op = made ? op_row_of(plain)->through.op : plain;
    prog_op *o = op_emit_on(s->p, op, dy, s->o->in[W], d);
    if (made) o->in[2] = of;
    o->attr = made ? (op_attr){ .act = made->attr.act } : s->o->attr;
    add_grad(s, of, d);
}

/* dy of a fused op goes through its activation first, unless the layer behind has done that. */
static void bwd_linear(bwd_step *s) {
    enum { X, W };
    prog *p = s->p;
    const op_row *row = op_row_of(s->o->op);
    bool fused = row->fused.activation != OP_NONE;
    val pre = fused ? pre_activation(s->o) : VAL_NONE, dy = grad_of(s, pre);
    bool applied = dy != VAL_NONE;
    dy = val_as(p, applied ? dy : grad_of(s, s->o->out[0]), p->val[s->o->in[W]].dt);
    if (fused && !applied) {
        val dpre = new_grad(s, pre);
        op_code slope = op_row_of(row->fused.activation)->bwd_op[0];
        op_emit_on(p, slope, dy, pre, dpre)->attr = s->o->attr;
        dy = dpre;
    }
    emit_linear_input(s, dy);
    p->val[s->o->out[0]].grad = dy; /* what the weights' op finds under the name dy */
    emit_by_name(s, row->bwd_op[1]);
}

/* The gradient that reaches the normalized sum from elsewhere is added inside the op, so that its
 * result is the whole gradient of both addends. Where nothing was added, the sum is x itself. */
static void bwd_norm(bwd_step *s) {
    enum { X, DELTA, W, B };
    prog *p = s->p;
    const val *in = s->o->in, *out = s->o->out; /* out: r, y, stat */
    val summed = out[0] == VAL_NONE ? in[X] : out[0];
    op_acc acc = ACC_STORE, bias_acc = ACC_STORE;
    val dw = needs_grad(s, in[W]) ? param_grad(p, in[W], &acc) : VAL_NONE;
    val db = needs_grad(s, in[B]) ? param_grad(p, in[B], &bias_acc) : VAL_NONE;
    if (dw == VAL_NONE) acc = bias_acc;
    BUG_IF(db != VAL_NONE && bias_acc != acc);
    val dx = new_grad(s, summed);
    prog_op *o = op_emit(p, op_row_of(s->o->op)->bwd_op[0]);
    val reads[] = { grad_of(s, out[1]), summed, out[2], in[W], grad_of(s, summed) };
    memcpy(o->in, reads, sizeof reads);
    o->out[0] = dx;
    o->out[1] = dw;
    o->out[2] = db;
    o->acc = acc;
    o->attr = s->o->attr;
    if (out[0] == VAL_NONE) {
        p->val[in[X]].grad = dx; /* already holds what x had */
    } else {
        add_grad(s, in[X], dx);
        add_grad(s, in[DELTA], dx);
    }
}

/* The gradient that the earlier value has so far, of a carried one what later programs left (seed_carried), is added
 * inside the op. It goes by the name of the result `kept`, and r by its own, also where they are operands. */
static void bwd_mix(bwd_step *s) {
    enum { X, DELTA, PAST, R = 0, DX = 0, DPAST };
    prog_op f = *s->o, o;
    bwd_step named = { s->p, &f, s->sig };
    int kept = op_find(s->sig.out, s->sig.outs, "kept");
    BUG_IF(f.out[kept] != VAL_NONE);          /* the value is kept in place */
    BUG_IF(grad_of(s, f.out[R]) != VAL_NONE); /* only the op itself reads the sum */
    if (f.out[R] == VAL_NONE) f.out[R] = f.in[X];
    f.out[kept] = f.in[PAST];
    if (!bind_by_name(&named, op_row_of(f.op)->bwd_op[0], &o)) return;
    list_push(s->p->emit, &o);
    s->p->val[f.in[PAST]].grad = o.out[DPAST];
    add_grad(s, f.in[X], o.out[DX]);
    add_grad(s, f.in[DELTA], o.out[DX]);
}

static void (*const rules[BWD_COUNT])(bwd_step *) = {
    [BWD_MISSING] = bwd_missing, [BWD_BY_NAME] = bwd_by_name, [BWD_SELF] = bwd_self,
    [BWD_SUM] = bwd_sum,         [BWD_COMM] = bwd_comm,       [BWD_LOSS] = bwd_loss,
    [BWD_LINEAR] = bwd_linear,   [BWD_NORM] = bwd_norm,       [BWD_STOP] = bwd_stop,
    [BWD_BLOCKS] = bwd_blocks,   [BWD_MIX] = bwd_mix,
};

/* ---- gradients of buckets, over the mesh ------------------------------------------------- */
/* Sums x over these axes in place. @param scatter each rank keeps its slice of the sum only. @param wire
 * the type that crosses between ranks, DT_NONE: its own. @return what the rank then has. */
static val reduce_in_place(prog *p, val x, axis_set axes, bool scatter, dtype wire, op_when when) {
    prog_val v = p->val[x];
    if (mesh_span(&p->m, axes) == 1) return x;
    val part = val_alias(p, x, 0, v.dt, v.ndim, v.dim, placement_on(axes, PLACE_P));
    val sum = emit_comm(p, part, axes, scatter ? PLACE_S(0) : PLACE_I, when);
    if (sum == VAL_NONE) return x; /* after an error */
    set_wire(p, wire);
    p->val[sum].cls = VC_ALIAS;
    p->val[sum].base = part;
    if (scatter)
        p->val[sum].offset = (size_t)(mesh_index(&p->m, axes) * p->val[sum].dim[0]) * dt_size(v.dt);
    return sum;
}

/* Sums the runs of parameters whose gradient is partial over axes that shard others (they are the same on every
 * rank along these, but each rank used them on its own tokens or heads). Neighbors go together. */
static void reduce_partial(prog *p, int b, const axis_set *partial, op_when when) {
    const prog_bucket *k = &p->set.bucket[b];
    for (int64_t at = k->replicated; at < k->count;) {
        int64_t from = -1, to = -1;
        axis_set axes = 0;
        for (int64_t next = at; next < k->count;) { /* the parameter that starts at `next` */
            int i = 0;
            while (i < p->set.params &&
                   (p->set.param[i].bucket != b || p->set.param[i].offset != next))
                i++;
            if (i == p->set.params) break;
            const prog_param *q = &p->set.param[i];
            int64_t n = q->dim[0] * (q->ndim > 1 ? q->dim[1] : 1);
            int64_t end = next + (int64_t)align_up((size_t)n, PARAM_ALIGN);
            if (from >= 0 && partial[i] != axes) break;
            if (partial[i]) {
                if (from < 0) from = next;
                axes = partial[i];
                to = end;
            }
            next = end;
        }
        if (from < 0) return;
        int64_t n = to - from;
        val run = val_alias(p, p->bucket_grad[b], (size_t)from * sizeof(float), DT_F32, 1, &n,
                            (placement){ 0 });
        reduce_in_place(p, run, axes, false, DT_NONE, when);
        at = to;
    }
}

/* Sums the gradients of rows that some ranks share: each used them for its own query heads. */
static void reduce_shared_rows(prog *p, int b, op_when when) {
    for (int i = 0; i < p->set.params; i++) {
        const prog_param *q = &p->set.param[i];
        if (q->bucket != b || !q->rep_rows || mesh_span(&p->m, q->rep_axes) == 1) continue;
        int64_t width = q->ndim > 1 ? q->dim[1] : 1, n = q->rep_rows * width;
        size_t from = (size_t)(q->offset + (q->dim[0] - q->rep_rows) * width) * sizeof(float);
        val part = val_alias(p, p->bucket_grad[b], from, DT_F32, 1, &n, (placement){ 0 });
        val sum = val_alias(p, part, 0, DT_F32, 1, &n, (placement){ 0 });
        comm_move m = { .axes = q->rep_axes, .from = PLACE_P, .to = PLACE_I };
        emit_move(p, part, sum, m)->when = when;
    }
}

/* Whether this program is the later of a tied bucket's two writers. */
static bool is_second_writer(const prog *p, int b) {
    bool second = false;
    for (int i = 0; i < p->set.params; i++)
        second |=
            p->set.param[i].bucket == b && p->param_written[i] == (WROTE_EARLIER | WROTE_HERE);
    return second;
}

static bool is_whole_grad(const prog *p, int b) {
    return p->bucket_grad[b] != VAL_NONE && p->val[p->bucket_grad[b]].cls == VC_WHOLE_GRAD;
}

static void reduce_bucket(prog *p, int b, const axis_set *partial) {
    const prog_bucket *k = &p->set.bucket[b];
    bool slices = is_whole_grad(p, b);
    bool waits =
        k->tied && !is_second_writer(p, b); /* the other program reduces it, after its own share */
    if (slices || !waits) {
        reduce_partial(p, b, partial, slices ? WHEN_ALWAYS : WHEN_LAST);
        reduce_shared_rows(p, b, slices ? WHEN_ALWAYS : WHEN_LAST);
    }
    if (slices || waits) return;
    dtype wire = k->reduce_wire;
    val g = reduce_in_place(p, p->bucket_grad[b], k->reduced & k->slices, k->zero, wire, WHEN_LAST);
    reduce_in_place(p, g, k->reduced & ~k->slices, false, wire, WHEN_LAST);
}

/* Adds this rank's slice of the sum to the one that it accumulates, every microbatch; with a step's last
 * one that is summed over the replicas. */
static void add_to_slice(prog *p, int b, val part) {
    const prog_bucket *k = &p->set.bucket[b];
    bool second = is_second_writer(p, b);
    int64_t n = bucket_holds(k, &p->m, HOLDS_GRADS).count;
    val sum = val_new(p, VC_GRAD, DT_F32, 1, &n, p->val[part].pl);
    p->val[sum].bucket = b;
    p->val[sum].name = k->name;
    op_emit_on(p, OP_ACCUMULATE, part, VAL_NONE, sum)->acc = second ? ACC_ADD : ACC_MICRO;
    if (k->tied && !second) return;
    reduce_in_place(p, sum, k->reduced & ~k->slices, false, k->reduce_wire, WHEN_LAST);
}

/* The list of what happens to whole gradients once backward has left them: first all scatters, so that they
 * start together. */
static void reduce_to_slices(prog *p) {
    val *part = mem_alloc((size_t)(p->set.buckets + 1) * sizeof *part);
    op_list *emit = p->emit;
    p->emit = &p->reduce;
    for (int b = 0; b < p->set.buckets; b++) {
        const prog_bucket *k = &p->set.bucket[b];
        if (is_whole_grad(p, b))
            part[b] =
                reduce_in_place(p, p->bucket_grad[b], k->slices, true, k->reduce_wire, WHEN_ALWAYS);
    }
    for (int b = 0; b < p->set.buckets; b++)
        if (is_whole_grad(p, b)) add_to_slice(p, b, part[b]);
    p->emit = emit;
    free(part);
}

/* Gradient aliases carry the dual of how the parameter was used. */
axis_set prog_grad_partial(const prog *p, int param) {
    axis_set shards = 0, partial = 0;
    if (param >= p->set.params) return 0; /* a program without parameters */
    for (int i = 0; i < p->set.params; i++) shards |= placement_axes(p->set.param[i].pl, PL_S);
    for (val v = 0; v < p->vals; v++)
        if (p->val[v].param == param) partial |= placement_axes(p->val[v].pl, PL_P);
    return partial & shards & ~p->set.bucket[p->set.param[param].bucket].reduced;
}

/* ---- the pass ---------------------------------------------------------------------------- */
static void seed_gradients(prog *p) {
    if (p->res_out == VAL_NONE) return;
    /* The next program begins with residual + delta, so one gradient serves both. */
    prog_val r = p->val[p->res_out];
    p->grad_in = val_new(p, VC_BOUNDARY, r.dt, r.ndim, r.dim, placement_dual(r.pl));
    p->val[p->grad_in].name = "d_residual";
    p->val[p->res_out].grad = p->grad_in;
    if (p->delta_out != VAL_NONE) p->val[p->delta_out].grad = p->grad_in;
}

/* The gradient of a carried value as later programs left it. */
static val new_carry_grad(prog *p, int which, val of) {
    prog_val x = p->val[of];
    val g = val_new(p, VC_CARRIED, x.dt, x.ndim, x.dim, placement_dual(x.pl));
    p->val[g].name = "d_carried";
    return p->carry_grad_in[which] = g;
}

/* A reader adds its share to that gradient; of the program that left the value it is the rest. */
static void seed_carried(prog *p) {
    for (int i = 0; i < CARRIES; i++) {
        val in = p->carry_in[i], out = p->carry_out[i];
        BUG_IF(in != VAL_NONE && out != VAL_NONE);
        if (in != VAL_NONE) {
            val g = new_carry_grad(p, i, in); /* may move the values */
            p->val[in].grad = g;
        } else if (out != VAL_NONE) {
            val later = new_carry_grad(p, i, out), so_far = p->val[out].grad;
            if (so_far != VAL_NONE) later = emit_add(p, so_far, later, p->val[out].dt);
            p->val[out].grad = later;
        }
    }
}

/* The gradient of the residual state leaves the program. */
static void pass_on_gradient(prog *p) {
    if (p->res_in == VAL_NONE || p->error) return;
    val g = p->val[p->res_in].grad;
    BUG_IF(g == VAL_NONE || g != p->val[p->delta_in].grad); /* both begin in one sum */
    BUG_IF(p->val[g].cls != VC_TEMP);
    p->val[g].cls = VC_BOUNDARY;
    p->grad_out = g;
}

/* The gradients of carried values that this program read go on to earlier ones. */
static void pass_on_carried(prog *p) {
    for (int i = 0; i < CARRIES && !p->error; i++) {
        if (p->carry_in[i] == VAL_NONE) continue;
        val g = p->val[p->carry_in[i]].grad;
        if (g == p->carry_grad_in[i]) continue; /* nothing was added */
        BUG_IF(p->val[g].cls != VC_TEMP);
        p->val[g].cls = VC_CARRIED;
        p->carry_grad_out[i] = g;
    }
}

/* The gradient of v, whose rows were used in parts, consists of theirs. */
static void join_gradients(bwd_step *s, const row_division *g) {
    prog *p = s->p;
    if (p->val[g->part[0]].grad == VAL_NONE) return;
    val whole = new_grad(s, g->whole);
    int64_t rows = p->val[whole].dim[0] / g->parts;
    for (int k = 0; k < g->parts; k++) {
        val part = p->val[g->part[k]].grad;
        BUG_IF(part == VAL_NONE || p->val[part].cls != VC_TEMP); /* an op yielded it for v alone */
        become_rows(p, part, whole, k * rows);
    }
    add_grad(s, g->whole, whole);
}

/* Before the op that yields v: what its gradient is, where v is rows of another value or others are rows of
 * it. All that read these comes later in the forward list. */
static void pass_rows_gradient(bwd_step *s, val v) {
    prog *p = s->p;
    for (int i = 0; i < p->divisions; i++) {
        const row_division *g = &p->division[i];
        if (g->whole == v) join_gradients(s, g);
        val whole = p->val[g->whole].grad;
        for (int k = 0; k < g->parts && whole != VAL_NONE; k++) {
            if (g->part[k] != v || p->val[v].grad != VAL_NONE) continue;
            int64_t rows = p->val[v].dim[0];
            val part = slice_rows(p, whole, k * rows, rows); /* may move the values */
            p->val[v].grad = part;
        }
    }
}

static void derive_op(prog *p, int i) {
    prog_op o = p->fwd.op[i]; /* a copy: emitting may move the list */
    bwd_step s = { p, &o, op_signature_of(o.op) };
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (o.out[k] != VAL_NONE) pass_rows_gradient(&s, o.out[k]);
    op_bwd rule = op_row_of(o.op)->bwd;
    bool reached = rule == BWD_LOSS;
    for (int k = 0; k < OP_MAX_OUT; k++) reached |= grad_of(&s, o.out[k]) != VAL_NONE;
    if (!reached) return;
    p->site = o.site;
    rules[rule](&s);
}

void pass_backward(prog *p) {
    rec_site site = p->site;
    seed_gradients(p);
    p->emit = &p->bwd;
    seed_carried(p);
    for (int i = p->fwd.n - 1; i >= 0 && !p->error; i--) derive_op(p, i);
    axis_set *partial = mem_alloc(((size_t)p->set.params + 1) * sizeof *partial);
    for (int i = 0; i < p->set.params && !p->error; i++) partial[i] = prog_grad_partial(p, i);
    for (int b = 0; b < p->set.buckets && !p->error; b++)
        if (p->bucket_grad[b] != VAL_NONE) reduce_bucket(p, b, partial);
    if (!p->error) reduce_to_slices(p);
    free(partial);
    pass_on_gradient(p);
    pass_on_carried(p);
    p->site = site;
}
