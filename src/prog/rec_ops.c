/* The typed record calls: each checks shapes and placements and yields its result's. A rule is
 * stated per mesh axis, as rows of (inputs -> output); what no row allows is refused here, with
 * the place in the model's source: a forgotten collective never becomes a wrong loss. */
#include "prog_internal.h"

#include <string.h>

/* ---- placement rules --------------------------------------------------------------------- */
enum { ANY = 255 };
typedef struct place_rule {
    place in[3]; /* kind ANY: absent or unconstrained */
    place out;
} place_rule;

/* y = x w^T + b */
static const place_rule linear_rules[] = {
    { { { PL_I, 0 }, { PL_I, 0 }, { PL_I, 0 } }, { PL_I, 0 } },
    { { { PL_S, 0 }, { PL_R, 0 }, { PL_R, 0 } }, { PL_S, 0 } }, /* tokens are cut */
    { { { PL_R, 0 }, { PL_S, 0 }, { PL_S, 0 } }, { PL_S, 1 } }, /* columns of y are cut */
    { { { PL_S, 1 }, { PL_S, 1 }, { PL_I, 0 } }, { PL_P, 0 } }, /* the sum is cut */
    { { { PL_R, 0 }, { PL_R, 0 }, { PL_R, 0 } }, { PL_R, 0 } },
};
/* one row at a time, with weights along the row: norms, embedding, loss */
static const place_rule row_rules[] = {
    { { { PL_I, 0 }, { PL_I, 0 }, { ANY, 0 } }, { PL_I, 0 } },
    { { { PL_S, 0 }, { PL_R, 0 }, { ANY, 0 } }, { PL_S, 0 } },
};
/* element by element (and by head): linear ops also take partial sums */
static const place_rule local_rules[] = {
    { { { PL_I, 0 }, { ANY, 0 }, { ANY, 0 } }, { PL_I, 0 } },
    { { { PL_R, 0 }, { ANY, 0 }, { ANY, 0 } }, { PL_R, 0 } },
    { { { PL_S, 0 }, { ANY, 0 }, { ANY, 0 } }, { PL_S, 0 } },
    { { { PL_S, 1 }, { ANY, 0 }, { ANY, 0 } }, { PL_S, 1 } },
};
static const place_rule sum_rules[] = {
    { { { PL_I, 0 }, { PL_I, 0 }, { ANY, 0 } }, { PL_I, 0 } },
    { { { PL_R, 0 }, { PL_R, 0 }, { ANY, 0 } }, { PL_R, 0 } },
    { { { PL_S, 0 }, { PL_S, 0 }, { ANY, 0 } }, { PL_S, 0 } },
    { { { PL_S, 1 }, { PL_S, 1 }, { ANY, 0 } }, { PL_S, 1 } },
    { { { PL_P, 0 }, { PL_P, 0 }, { ANY, 0 } }, { PL_P, 0 } },
};
/* heads, with per-token facts (positions, document starts) and a weight each head shares */
static const place_rule head_rules[] = {
    { { { PL_I, 0 }, { PL_I, 0 }, { PL_I, 0 } }, { PL_I, 0 } },
    { { { PL_S, 0 }, { PL_S, 0 }, { PL_R, 0 } }, { PL_S, 0 } },
    { { { PL_S, 1 }, { PL_I, 0 }, { PL_R, 0 } }, { PL_S, 1 } },
};

static bool fits(place rule, const prog *p, val v, int axis) {
    if (rule.kind == ANY || v == VAL_NONE) return true;
    return place_same(rule, p->val[v].pl.on[axis]);
}

/* Finds the row for every axis. @return false after an error. */
static bool place_by(prog *p, const char *op, const place_rule *rules, size_t n, val a, val b,
                     val c, placement *out) {
    for (int axis = 0; axis < AX_COUNT; axis++) {
        size_t i = 0;
        while (i < n && !(fits(rules[i].in[0], p, a, axis) && fits(rules[i].in[1], p, b, axis) &&
                          fits(rules[i].in[2], p, c, axis)))
            i++;
        if (i < n) {
            out->on[axis] = rules[i].out;
            continue;
        }
        str got = { 0 };
        val in[] = { a, b, c };
        for (int k = 0; k < 3; k++) {
            char text[64];
            if (in[k] == VAL_NONE) continue;
            const char *name = p->val[in[k]].name;
            str_add(&got, "%s%s is %s", got.len ? ", " : "", name ? name : "operand",
                    placement_str(text, sizeof text, p->val[in[k]].pl));
        }
        prog_fail(p, "a collective is missing before this op, or there is one too many: rec_comm",
                  "%s: placements do not fit on axis %s: %s", op, mesh_axis_name[axis], got.text);
        str_free(&got);
        return false;
    }
    return true;
}
#define PLACE_BY(p, op, rules, a, b, c, out) place_by(p, op, rules, COUNT_OF(rules), a, b, c, out)

static bool same_shape(prog *p, const char *op, val a, val b) {
    const prog_val *x = &p->val[a], *y = &p->val[b];
    bool same = x->ndim == y->ndim && !memcmp(x->dim, y->dim, sizeof x->dim);
    if (!same)
        prog_fail(p, NULL, "%s: shapes differ: [%lld, %lld] and [%lld, %lld]", op,
                  (long long)x->dim[0], (long long)x->dim[1], (long long)y->dim[0],
                  (long long)y->dim[1]);
    return same;
}

static bool expect(prog *p, const char *op, const char *what, int64_t got, int64_t want) {
    if (got == want) return true;
    prog_fail(p, NULL, "%s: %s is %lld, expected %lld", op, what, (long long)got, (long long)want);
    return false;
}

static bool bad(const prog *p, val a) { return p->error || a == VAL_NONE; }

/* A result of the op just emitted. */
static val result(prog *p, dtype dt, int64_t rows, int64_t cols, placement pl) {
    int64_t dim[] = { rows, cols };
    val v = val_new(p, VC_TEMP, dt, cols ? 2 : 1, dim, pl);
    p->val[v].producer = p->fwd.n; /* the op about to be emitted */
    p->val[v].needs_grad = p->mode == PROG_TRAIN;
    return v;
}

/* ---- ops --------------------------------------------------------------------------------- */
val rec_embed_(prog *p, val tok, val table) {
    placement pl;
    if (bad(p, tok) || bad(p, table) || !PLACE_BY(p, "embed", row_rules, tok, table, VAL_NONE, &pl))
        return VAL_NONE;
    val x = result(p, p->dt, p->val[tok].dim[0], p->val[table].dim[1], pl);
    prog_op *o = op_emit(p, OP_EMBED);
    o->in[0] = tok;
    o->in[1] = table;
    o->out[0] = x;
    return x;
}

static val linear(prog *p, op_code op, val x, val w, val b, act_kind act) {
    placement pl;
    if (bad(p, x) || bad(p, w)) return VAL_NONE;
    x = val_as(p, x, p->val[w].dt);
    if (!PLACE_BY(p, op_name(op), linear_rules, x, w, b, &pl) ||
        !expect(p, op_name(op), "the width of x", p->val[x].dim[1], p->val[w].dim[1]))
        return VAL_NONE;
    for (int a = 0; a < AX_COUNT; a++)
        if (op == OP_LINEAR_GELU && pl.on[a].kind == PL_P) {
            prog_fail(p, "reduce first, then apply the activation",
                      "linear_gelu: gelu of a partial sum");
            return VAL_NONE;
        }
    int64_t n = p->val[x].dim[0], m = p->val[w].dim[0];
    val y = result(p, p->dt, n, m, pl);
    val pre = op == OP_LINEAR_GELU ? result(p, p->dt, n, m, pl) : VAL_NONE;
    prog_op *o = op_emit(p, op);
    o->in[0] = x;
    o->in[1] = w;
    o->in[2] = b;
    o->out[0] = y;
    o->out[1] = pre;
    o->attr.act = act;
    o->once = b != VAL_NONE && pl.on[AX_TP].kind == PL_P;
    return y;
}

val rec_linear_(prog *p, val x, val w, val b) { return linear(p, OP_LINEAR, x, w, b, 0); }
val rec_linear_gelu_(prog *p, val x, val w, val b, act_kind act) {
    return linear(p, OP_LINEAR_GELU, x, w, b, act);
}

norm_out rec_norm_(prog *p, stream s, bool rms, val w, val b, float eps) {
    norm_out none = { VAL_NONE, VAL_NONE };
    op_code op = rms ? OP_RMSNORM : OP_LAYERNORM;
    placement pl;
    if (bad(p, s.residual) || bad(p, w)) return none;
    if (!PLACE_BY(p, op_name(op), row_rules, s.residual, w, VAL_NONE, &pl) ||
        (s.delta != VAL_NONE && (!same_shape(p, op_name(op), s.residual, s.delta) ||
                                 !PLACE_BY(p, op_name(op), row_rules, s.delta, w, VAL_NONE, &pl))))
        return none;
    prog_val x = p->val[s.residual];
    val r = s.delta == VAL_NONE ? VAL_NONE : result(p, x.dt, x.dim[0], x.dim[1], pl);
    val y = result(p, p->dt, x.dim[0], x.dim[1], pl);
    val stat = result(p, DT_F32, x.dim[0], rms ? 0 : 2, pl);
    prog_op *o = op_emit(p, op);
    o->in[0] = s.residual;
    o->in[1] = s.delta;
    o->in[2] = w;
    o->in[3] = b;
    o->out[0] = r;
    o->out[1] = y;
    o->out[2] = stat;
    o->attr.eps = eps;
    if (s.residual == p->res_in && s.delta == p->delta_in) p->cut = r;
    return (norm_out){ r == VAL_NONE ? s.residual : r, y };
}

val rec_add_(prog *p, val a, val b) {
    placement pl;
    if (bad(p, a) || bad(p, b) || !same_shape(p, "add", a, b) ||
        !PLACE_BY(p, "add", sum_rules, a, b, VAL_NONE, &pl))
        return VAL_NONE;
    val c = result(p, p->val[a].dt, p->val[a].dim[0], p->val[a].dim[1], pl);
    prog_op *o = op_emit(p, OP_ADD);
    o->in[0] = a;
    o->in[1] = b;
    o->out[0] = c;
    return c;
}

val rec_sum_(prog *p, stream s) {
    if (s.delta == VAL_NONE) return s.residual;
    val sum = rec_add_(p, s.residual, s.delta);
    if (s.residual == p->res_in && s.delta == p->delta_in) p->cut = sum;
    return sum;
}

/* Divides the model's heads over the tp ranks that share them. */
static bool local_heads(prog *p, const char *op, val qkv, head_shape h, op_attr *attr) {
    int tp = p->val[qkv].pl.on[AX_TP].kind == PL_S ? mesh_size(&p->m, AX_TP) : 1;
    if (h.q % tp || h.kv % tp || h.q % h.kv) {
        prog_fail(p, "use a tensor_parallel_degree that divides the key/value heads",
                  "%s: %d query and %d key/value heads do not divide over %d ranks", op, h.q, h.kv,
                  tp);
        return false;
    }
    attr->heads.q = h.q / tp;
    attr->heads.kv = h.kv / tp;
    attr->heads.dim = h.dim;
    attr->heads.rot = h.rot;
    attr->heads.window = h.window;
    attr->heads.seq = h.seq;
    attr->heads.documents = h.documents;
    attr->heads.scale = h.scale;
    attr->heads.norm_full = h.norm_full;
    return expect(p, op, "the width of qkv", p->val[qkv].dim[1],
                  (int64_t)(attr->heads.q + 2 * attr->heads.kv) * h.dim);
}

val rec_qknorm_(prog *p, val qkv, val wq, val wk, head_shape h, float eps) {
    placement pl;
    op_attr attr = { .eps = eps };
    if (bad(p, qkv) || bad(p, wq) || bad(p, wk) || !local_heads(p, "qknorm", qkv, h, &attr))
        return VAL_NONE;
    if (h.norm_full && p->val[qkv].pl.on[AX_TP].kind == PL_S) {
        prog_fail(p, "use tensor_parallel_degree 1 for this model",
                  "qknorm: over all heads together, but the heads are cut over tp");
        return VAL_NONE;
    }
    if (!PLACE_BY(p, "qknorm", head_rules, qkv, VAL_NONE, wq, &pl)) return VAL_NONE;
    prog_val x = p->val[qkv];
    val y = result(p, x.dt, x.dim[0], x.dim[1], pl);
    val stat = result(p, DT_F32, x.dim[0], h.norm_full ? 2 : attr.heads.q + attr.heads.kv, pl);
    prog_op *o = op_emit(p, OP_QKNORM);
    o->in[0] = qkv;
    o->in[1] = wq;
    o->in[2] = wk;
    o->out[0] = y;
    o->out[1] = stat;
    o->attr = attr;
    return y;
}

val rec_rope_(prog *p, val qkv, val pos, val table, head_shape h) {
    placement pl;
    op_attr attr = { 0 };
    if (bad(p, qkv) || !local_heads(p, "rope", qkv, h, &attr) ||
        !PLACE_BY(p, "rope", head_rules, qkv, pos, VAL_NONE, &pl) ||
        !expect(p, "rope", "the table's width", p->val[table].dim[1], h.rot))
        return VAL_NONE;
    val y = result(p, p->val[qkv].dt, p->val[qkv].dim[0], p->val[qkv].dim[1], pl);
    prog_op *o = op_emit(p, OP_ROPE);
    o->in[0] = qkv;
    o->in[1] = pos;
    o->in[2] = table;
    o->out[0] = y;
    o->attr = attr;
    return y;
}

/* Tokens cut over tp cannot attend: a rank would miss its keys. (dp cuts between sequences.) */
static bool whole_sequences(prog *p, const char *op, val qkv) {
    place tp = p->val[qkv].pl.on[AX_TP];
    if (tp.kind != PL_S || tp.dim == 1) return true;
    prog_fail(p, "gather the tokens first: rec_comm to R", "%s: tokens are cut over tp", op);
    return false;
}

val rec_attention_(prog *p, val qkv, val start, head_shape h) {
    placement pl;
    op_attr attr = { 0 };
    if (bad(p, qkv) || !local_heads(p, "attention", qkv, h, &attr) ||
        !whole_sequences(p, "attention", qkv) ||
        !PLACE_BY(p, "attention", head_rules, qkv, start, VAL_NONE, &pl))
        return VAL_NONE;
    int64_t n = p->val[qkv].dim[0];
    val o_ = result(p, p->val[qkv].dt, n, (int64_t)attr.heads.q * h.dim, pl);
    placement lse_pl = pl; /* [heads, N]: its dims are the other way round */
    for (int a = 0; a < AX_COUNT; a++)
        if (pl.on[a].kind == PL_S) lse_pl.on[a].dim = (uint8_t)(1 - pl.on[a].dim);
    val lse = result(p, DT_F32, attr.heads.q, n, lse_pl);
    prog_op *o = op_emit(p, OP_ATTENTION);
    o->in[0] = qkv;
    o->in[1] = start;
    o->out[0] = o_;
    o->out[1] = lse;
    o->attr = attr;
    return o_;
}

val rec_attention_cached_(prog *p, val qkv, val cache, val pos, head_shape h) {
    placement pl;
    op_attr attr = { 0 };
    if (bad(p, qkv) || !local_heads(p, "attention_cached", qkv, h, &attr) ||
        !whole_sequences(p, "attention_cached", qkv) ||
        !PLACE_BY(p, "attention_cached", head_rules, qkv, pos, VAL_NONE, &pl))
        return VAL_NONE;
    val y = result(p, p->val[qkv].dt, p->val[qkv].dim[0], (int64_t)attr.heads.q * h.dim, pl);
    prog_op *o = op_emit(p, OP_ATTENTION_CACHED);
    o->in[0] = qkv;
    o->in[1] = cache;
    o->in[2] = pos;
    o->out[0] = y;
    o->attr = attr;
    return y;
}

val rec_swiglu_(prog *p, val gu) {
    placement pl;
    if (bad(p, gu) || !PLACE_BY(p, "swiglu", local_rules, gu, VAL_NONE, VAL_NONE, &pl))
        return VAL_NONE;
    val y = result(p, p->val[gu].dt, p->val[gu].dim[0], p->val[gu].dim[1] / 2, pl);
    prog_op *o = op_emit(p, OP_SWIGLU);
    o->in[0] = gu;
    o->out[0] = y;
    return y;
}

val rec_scale_(prog *p, val x, float by) {
    placement pl = p->val[x].pl; /* linear: any placement, partial sums too */
    if (bad(p, x)) return VAL_NONE;
    if (by == 1) return x;
    val y = result(p, p->val[x].dt, p->val[x].dim[0], p->val[x].dim[1], pl);
    prog_op *o = op_emit(p, OP_SCALE);
    o->in[0] = x;
    o->out[0] = y;
    o->attr.scale.by = by;
    return y;
}

val rec_dropout_(prog *p, val x, val id, float rate, uint32_t site) {
    placement pl;
    if (bad(p, x) || rate <= 0 || p->mode != PROG_TRAIN) return x;
    if (!PLACE_BY(p, "dropout", local_rules, x, VAL_NONE, VAL_NONE, &pl)) return VAL_NONE;
    if (!expect(p, "dropout", "the number of token ids", p->val[id].dim[0], p->val[x].dim[0]))
        return VAL_NONE;
    val y = result(p, p->val[x].dt, p->val[x].dim[0], p->val[x].dim[1], pl);
    prog_op *o = op_emit(p, OP_DROPOUT);
    o->in[0] = x;
    o->in[1] = id;
    o->out[0] = y;
    o->attr.dropout.p = rate;
    o->attr.dropout.site = site;
    return y;
}

void rec_linear_ce_(prog *p, val h, val w, val target, float logit_scale) {
    placement pl;
    if (bad(p, h) || bad(p, w)) return;
    h = val_as(p, h, p->val[w].dt);
    if (!PLACE_BY(p, "linear_ce", row_rules, h, w, VAL_NONE, &pl) ||
        !PLACE_BY(p, "linear_ce", row_rules, target, w, VAL_NONE, &pl) ||
        !expect(p, "linear_ce", "the width of h", p->val[h].dim[1], p->val[w].dim[1]) ||
        !expect(p, "linear_ce", "the number of targets", p->val[target].dim[0], p->val[h].dim[0]))
        return;
    op_acc acc = ACC_STORE;
    val dw = VAL_NONE, dh = VAL_NONE;
    if (p->mode == PROG_TRAIN) {
        dw = param_grad(p, w, &acc); /* may emit: before the op's own results are numbered */
        dh = result(p, p->val[h].dt, p->val[h].dim[0], p->val[h].dim[1], placement_dual(pl));
    }
    p->loss = result(p, DT_F32, p->val[h].dim[0], 0, pl);
    p->val[p->loss].name = "loss";
    prog_op *o = op_emit(p, OP_LINEAR_CE);
    o->in[0] = h;
    o->in[1] = w;
    o->in[2] = target;
    o->out[0] = p->loss;
    o->out[1] = dh;
    o->out[2] = dw;
    o->acc = acc;
    o->attr.ce.logit_scale = logit_scale;
    p->terminal = true;
}
