/* The typed record calls. What an op accepts and yields is its row in the op table: rec_op checks shapes
 * and placements against it, per mesh axis, and adds the op. What no alternative of the row allows is
 * refused here, with the line in the model's source: a forgotten collective never becomes a wrong loss. */
#include "prog_internal.h"

#include "ops/alibi.h"

#include <string.h>

/* ---- placements -------------------------------------------------------------------------- */
enum { PLACE_ANY = 255 };

/* One alternative of a row's rule: "S0 R R > S0 @batch". */
typedef struct place_rule {
    place in[OP_MAX_IN], out[OP_MAX_OUT]; /* kind PLACE_ANY: unconstrained */
    bool batch_only, given;               /* given: all operands that it names are there */
} place_rule;

static place parse_place(const char *s) {
    switch (*s) {
    case 'I': return PLACE_I;
    case 'R': return PLACE_R;
    case 'P': return PLACE_P;
    case 'S': return PLACE_S((uint8_t)(s[1] - '0'));
    case '.': return (place){ PLACE_ANY, 0 };
    default: BUG("a placement in ops.def"); return PLACE_I;
    }
}

/* @return what follows the alternative; NULL past the last. */
static const char *parse_rule(const char *s, place_rule *r) {
    *r = (place_rule){ .batch_only = false };
    for (int i = 0; i < OP_MAX_IN; i++) r->in[i].kind = PLACE_ANY;
    s += strspn(s, "; ");
    if (!*s) return NULL;
    place last = PLACE_I;
    for (int i = 0, o = -1; *s && *s != ';'; s += strcspn(s, " ;"), s += strspn(s, " ")) {
        if (*s == '>')
            o = 0;
        else if (*s == '@')
            *(s[1] == 'b' ? &r->batch_only : &r->given) = true;
        else if (o < 0)
            r->in[i++] = parse_place(s);
        else
            last = r->out[o++] = parse_place(s);
        for (int k = MAX(o, 0); k < OP_MAX_OUT; k++) r->out[k] = last;
    }
    return s;
}

static bool rule_fits(const prog *p, const place_rule *r, const val *in, mesh_axis axis) {
    if (r->batch_only && AXIS(axis) & sequence_axes()) return false;
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (r->in[i].kind == PLACE_ANY) continue;
        if (in[i] == VAL_NONE ? r->given : !place_same(r->in[i], p->val[in[i]].pl.on[axis]))
            return false;
    }
    return true;
}

static void fail_placements(prog *p, op_code op, const val *in, mesh_axis axis) {
    op_signature sig = op_signature_of(op);
    str got = { 0 };
    for (int i = 0; i < sig.ins; i++) {
        char text[64];
        if (in[i] == VAL_NONE) continue;
        const char *name = p->val[in[i]].name;
        str_add(&got, "%s%s%s%s%s is %s", got.len ? ", " : "", sig.in[i].name, name ? " (" : "",
                name ? name : "", name ? ")" : "",
                placement_str(text, sizeof text, p->val[in[i]].pl));
    }
    prog_fail(p, "a collective is missing before this op, or there is one too many: rec_comm",
              "%s: placements do not fit on axis %s: %s; it accepts %s", op_name(op),
              mesh_axis_name[axis], got.text, op_row_of(op)->place);
    str_free(&got);
}

/* Finds the row's alternative for every axis. @param out placements of the results.
 * @return false after an error. */
static bool place_results(prog *p, op_code op, const val *in, placement out[OP_MAX_OUT]) {
    const char *rules = op_row_of(op)->place;
    if (!rules) {
        prog_fail(p, "add .place to its row in src/engine/ops/ops.def", "%s has no placement rule",
                  op_name(op));
        return false;
    }
    for (int axis = 0; axis < AX_COUNT; axis++) {
        place_rule r;
        const char *s = rules;
        if (*rules == '=') {
            for (int k = 0; k < OP_MAX_OUT; k++) out[k].on[axis] = p->val[in[0]].pl.on[axis];
            continue;
        }
        while ((s = parse_rule(s, &r)) && !rule_fits(p, &r, in, (mesh_axis)axis)) continue;
        if (!s) {
            fail_placements(p, op, in, (mesh_axis)axis);
            return false;
        }
        for (int k = 0; k < OP_MAX_OUT; k++) out[k].on[axis] = r.out[k];
    }
    return true;
}

/* ---- shapes ------------------------------------------------------------------------------ */
static void dims_text(const prog_val *v, char *text, size_t n) {
    size_t at = 0;
    for (int i = 0; i < v->ndim && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, i ? ", %lld" : "%lld", (long long)v->dim[i]);
}

static bool match_dims(prog *p, op_code op, const op_operand *o, val v, val first,
                       letter_sizes *s) {
    const prog_val *x = &p->val[v], *a = &p->val[first];
    prog_val flat = *x; /* the rows of all experts are rows to an op */
    if (x->ndim == 3 && o->ndim == 2) {
        flat.ndim = 2;
        flat.dim[0] *= x->dim[1];
        flat.dim[1] = x->dim[2];
        x = &flat;
    }
    char got[96], want[96] = "";
    bool fits;
    if (o->ndim == ANY_SHAPE) {
        fits = x->ndim == a->ndim && !memcmp(x->dim, a->dim, sizeof x->dim);
        dims_text(a, want, sizeof want);
    } else {
        fits = x->ndim == o->ndim;
        size_t at = 0;
        for (int i = 0; i < o->ndim; i++) {
            int times = o->dim[i].times;
            int64_t *size = &s->of[(int)o->dim[i].symbol], have = fits ? x->dim[i] : 0;
            if (o->dim[i].symbol && !*size && have % times == 0) *size = have / times;
            if (fits && times == 1 && x->segments[i] > 1)
                s->segments[(int)o->dim[i].symbol] = x->segments[i];
            int64_t expected = o->dim[i].symbol ? *size * times : times;
            fits = fits && have == expected;
            at += (size_t)snprintf(want + at, sizeof want - at, i ? ", %lld" : "%lld",
                                   (long long)expected);
        }
    }
    if (fits) return true;
    dims_text(x, got, sizeof got);
    prog_fail(p, op_row_of(op)->signature, "%s: %s is [%s], expected [%s]", op_name(op), o->name,
              got, want);
    return false;
}

static dtype result_type(const prog *p, const op_operand *o, const val *in) {
    if (o->type_of >= 0) return p->val[in[o->type_of]].dt;
    switch (o->type) {
    case KIND_F32: return DT_F32;
    case KIND_I32: return DT_I32;
    case KIND_I64: return DT_I64;
    case KIND_U8: return DT_U8;
    default: return p->dt;
    }
}

static val new_result(prog *p, const op_operand *o, const val *in, const letter_sizes *s,
                      placement pl) {
    int64_t dim[TENSOR_MAX_DIM] = { 0 };
    const prog_val *x = &p->val[in[0]];
    int ndim = o->ndim == ANY_SHAPE ? x->ndim : o->ndim;
    for (int i = 0; i < ndim; i++) {
        dim[i] = o->ndim == ANY_SHAPE ? x->dim[i] : o->dim[i].times;
        if (o->ndim != ANY_SHAPE && o->dim[i].symbol) dim[i] *= s->of[(int)o->dim[i].symbol];
        BUG_IF(dim[i] <= 0); /* a letter that neither an operand nor the caller gives */
    }
    val v = val_new(p, VC_TEMP, result_type(p, o, in), ndim, dim, pl);
    x = &p->val[in[0]]; /* the list may have moved */
    for (int i = 0; i < ndim; i++)
        p->val[v].segments[i] = o->ndim == ANY_SHAPE   ? x->segments[i]
                                : o->dim[i].times == 1 ? s->segments[(int)o->dim[i].symbol]
                                                       : 0;
    p->val[v].producer = p->fwd.n; /* the op about to be emitted */
    p->val[v].needs_grad = p->mode == PROG_TRAIN && dt_is_float(p->val[v].dt);
    return v;
}

/* "gu[N,2F]" reads two halves: where the dim is sharded they must be segments of it, or a rank would see
 * columns of one half as the other. */
static bool match_segments(prog *p, op_code op, const op_operand *o, val v) {
    const prog_val *x = &p->val[v];
    for (int i = 0; i < o->ndim; i++) {
        bool sharded = false;
        for (int a = 0; a < AX_COUNT; a++) sharded |= place_same(x->pl.on[a], PLACE_S((uint8_t)i));
        if (!o->dim[i].symbol || o->dim[i].times == 1 || !sharded) continue;
        if (x->segments[i] == o->dim[i].times) continue;
        prog_fail(p, "fuse the parts into one parameter, so that each of them is sharded",
                  "%s: dim %d of %s is sharded as %d segment(s), expected %d", op_name(op), i,
                  o->name, MAX(x->segments[i], 1), o->dim[i].times);
        return false;
    }
    return true;
}

/* ---- one op ------------------------------------------------------------------------------ */
/* Whether all required operands are there; after an error they are not, and nothing more is said. */
static bool operands_present(prog *p, rec_request *r, const op_signature *sig) {
    for (int i = sig->ins; i < OP_MAX_IN; i++) r->in[i] = VAL_NONE;
    if (p->error) return false;
    for (int i = 0; i < sig->ins; i++)
        if (r->in[i] == VAL_NONE && !sig->in[i].optional) {
            prog_fail(p, op_row_of(r->op)->signature, "%s: operand %s is missing", op_name(r->op),
                      sig->in[i].name);
            return false;
        }
    return true;
}

prog_op *rec_op(prog *p, rec_request *r, val out[OP_MAX_OUT]) {
    op_signature sig = op_signature_of(r->op);
    for (int i = 0; i < OP_MAX_OUT; i++) out[i] = VAL_NONE;
    if (!operands_present(p, r, &sig)) return NULL;
    for (int i = 0; i < sig.ins; i++)
        if (r->in[i] != VAL_NONE && sig.in[i].type_of >= 0)
            r->in[i] = val_as(p, r->in[i], p->val[r->in[sig.in[i].type_of]].dt);
    for (int i = 0; i < sig.ins; i++)
        if (r->in[i] != VAL_NONE &&
            (!match_dims(p, r->op, &sig.in[i], r->in[i], r->in[0], &r->sizes) ||
             !match_segments(p, r->op, &sig.in[i], r->in[i])))
            return NULL;
    placement pl[OP_MAX_OUT] = { 0 };
    if (!place_results(p, r->op, r->in, pl)) return NULL;
    for (int i = 0; i < sig.outs; i++)
        if (!sig.out[i].optional || (r->want >> i & 1))
            out[i] = new_result(p, &sig.out[i], r->in, &r->sizes, pl[i]);
    prog_op *o = op_emit(p, r->op);
    memcpy(o->in, r->in, sizeof o->in);
    memcpy(o->out, out, sizeof o->out);
    o->attr = r->attr;
    return o;
}

val rec_first(prog *p, rec_request r) {
    val out[OP_MAX_OUT];
    rec_op(p, &r, out);
    return out[0];
}

/* ---- the ops ----------------------------------------------------------------------------- */
val rec_embed_(prog *p, val tok, val table) {
    rec_request r = { OP_EMBED, { tok, table } };
    rec_set_vocab(p, table, &r.attr);
    return rec_first(p, r);
}

static val rec_linear_op(prog *p, op_code op, val x, val w, val b, act_kind act) {
    val out[OP_MAX_OUT];
    rec_request r = { op, { x, w, b, VAL_NONE, VAL_NONE }, { .act = act } };
    prog_op *o = rec_op(p, &r, out);
    if (o && b != VAL_NONE) o->once = placement_axes(p->val[out[0]].pl, PL_P);
    return out[0];
}

val rec_linear_(prog *p, val x, val w, val b) { return rec_linear_op(p, OP_LINEAR, x, w, b, 0); }
val rec_linear_gelu_(prog *p, val x, val w, val b, act_kind act) {
    return rec_linear_op(p, OP_LINEAR_GELU, x, w, b, act);
}

/* A sum of what came in is all that recompute needs to run the program again. */
static void note_block_input(prog *p, residual_state s, val sum) {
    if (s.residual == p->res_in && s.delta == p->delta_in) p->block_input = sum;
}

norm_out rec_norm_(prog *p, residual_state s, norm_spec n) {
    enum { R, Y };
    val out[OP_MAX_OUT];
    rec_request r = { .op = n.rms ? OP_RMSNORM : OP_LAYERNORM,
                      .in = { s.residual, s.delta, n.w, n.rms ? VAL_NONE : n.b },
                      .attr = { .eps = n.eps },
                      .want = (s.delta == VAL_NONE ? 0 : 1 << R) | 1 << Y };
    if (rec_op(p, &r, out)) note_block_input(p, s, out[R]);
    return (norm_out){ out[R] == VAL_NONE ? s.residual : out[R], out[Y] };
}

val rec_add_(prog *p, val a, val b) {
    if (b == VAL_NONE && !p->error) prog_fail(p, NULL, "add: operand b is missing");
    return rec_first(p, (rec_request){ OP_ADD, { a, b } });
}

val rec_sum_(prog *p, residual_state s) {
    if (s.delta == VAL_NONE) return s.residual;
    val sum = rec_add_(p, s.residual, s.delta);
    note_block_input(p, s, sum);
    return sum;
}

val rec_mix_(prog *p, residual_state s, mix_spec m) {
    enum { R, Y };
    val out[OP_MAX_OUT];
    if (m.past == VAL_NONE) return rec_sum_(p, s);
    rec_request r = { .op = OP_MIX,
                      .in = { s.residual, s.delta, m.past, m.a, m.b },
                      .want = s.delta == VAL_NONE ? 0 : 1 << R };
    if (rec_op(p, &r, out)) note_block_input(p, s, out[R]);
    return out[Y];
}

norm_out rec_mix_norm_(prog *p, residual_state s, mix_spec m, norm_spec n) {
    enum { R, M, Y };
    val out[OP_MAX_OUT];
    if (m.past == VAL_NONE) return rec_norm_(p, s, n);
    if (!n.rms || n.w != VAL_NONE)
        return rec_norm_(p, (residual_state){ rec_mix_(p, s, m), VAL_NONE }, n);
    rec_request r = { .op = OP_MIX_NORM,
                      .in = { s.residual, s.delta, m.past, m.a, m.b },
                      .attr = { .eps = n.eps },
                      .want = (s.delta == VAL_NONE ? 0 : 1 << R) | 1 << M | 1 << Y };
    if (rec_op(p, &r, out)) note_block_input(p, s, out[R]);
    return (norm_out){ out[M], out[Y] };
}

/* Over all heads where ranks share them: the mean squares of each rank's heads are summed over the ranks. */
static val qknorm_over_ranks(prog *p, const rec_request *n, axis_set axes) {
    rec_request squares = { OP_QK_SQUARES, { n->in[0] }, n->attr };
    squares.attr.scale.by = 1 / (float)mesh_span(&p->m, axes);
    val own = rec_first(p, squares);
    val all = p->error ? VAL_NONE : emit_comm(p, own, axes, PLACE_R, WHEN_ALWAYS);
    return rec_first(p,
                     (rec_request){ OP_QKNORM_BY, { n->in[0], all, n->in[1], n->in[2] }, n->attr });
}

val rec_qknorm_(prog *p, val qkv, val wq, val wk, head_shape h, float eps) {
    rec_request r = { OP_QKNORM, { qkv, wq, wk }, { .eps = eps } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    axis_set shared = head_axes(p, qkv);
    if (h.norm_full && mesh_span(&p->m, shared) > 1) return qknorm_over_ranks(p, &r, shared);
    r.sizes.of['S'] = h.norm_full ? 2 : r.attr.heads.q + r.attr.heads.kv;
    return rec_first(p, r);
}

val rec_rope_(prog *p, val qkv, val pos, val table, head_shape h) {
    rec_request r = { OP_ROPE, { qkv, pos, table } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    r.sizes.of['T'] = h.rot;
    return rec_first(p, r);
}

/* One op where it can do both: per head, and heads that its kernels hold in registers. */
val rec_qknorm_rope_(prog *p, val qkv, qk_norms n, val pos, val table, head_shape h) {
    bool weights = n.wq != VAL_NONE;
    if (h.norm_full || h.dim > QKNORM_ROPE_DIM || weights != (n.wk != VAL_NONE))
        return rec_rope_(p, rec_qknorm_(p, qkv, n.wq, n.wk, h, n.eps), pos, table, h);
    rec_request r = { OP_QKNORM_ROPE, { qkv, pos, table } };
    if (weights) r = (rec_request){ OP_QKNORM_ROPE_WEIGHTED, { qkv, n.wq, n.wk, pos, table } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    r.attr.eps = n.eps;
    r.sizes.of['S'] = r.attr.heads.q + r.attr.heads.kv;
    r.sizes.of['T'] = h.rot;
    return rec_first(p, r);
}

val rec_scale_queries_(prog *p, val qkv, val pos, head_shape h) {
    rec_request r = { OP_SCALE_QUERIES, { qkv, pos } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    r.attr.heads.temper = h.temper;
    r.attr.heads.temper_floor = h.temper_floor;
    return rec_first(p, r);
}

val rec_alibi_(prog *p, val qkv, val pos, float max, head_shape *h) {
    rec_request r = { OP_ALIBI, { qkv, pos } };
    if (!local_heads(p, r.op, qkv, *h, &r.attr)) return VAL_NONE;
    r.attr.heads.first = head_share(p, head_axes(p, qkv)) * r.attr.heads.q;
    r.attr.alibi.heads = h->q;
    r.attr.alibi.max = max;
    h->dim = alibi_width(h->dim);
    r.sizes.of['W'] = (int64_t)(r.attr.heads.q + 2 * r.attr.heads.kv) * h->dim;
    val y = rec_first(p, r);
    if (y != VAL_NONE) p->val[y].segments[1] = p->val[qkv].segments[1];
    return y;
}

bool set_attention_dropout(prog *p, val qkv, val id, head_shape h, op_attr *attr) {
    if (!(h.dropout.p > 0) || p->mode != PROG_TRAIN) return false;
    if (id == VAL_NONE) prog_fail(p, NULL, "attention: dropout needs the ids of the tokens");
    attr->dropout.p = h.dropout.p;
    attr->dropout.site = h.dropout.site;
    attr->heads.first = head_share(p, head_axes(p, qkv)) * attr->heads.q;
    return true;
}

val rec_attention_(prog *p, val qkv, val start, val id, val sink, head_shape h) {
    rec_request r = { OP_ATTENTION, { qkv, start, VAL_NONE, sink } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    if (set_attention_dropout(p, qkv, id, h, &r.attr)) r.in[2] = id;
    r.attr.heads.sinks = sink != VAL_NONE;
    r.sizes.of['H'] = r.attr.heads.q;
    r.sizes.of['O'] = (int64_t)r.attr.heads.q * h.dim;
    return rec_first(p, r);
}

val rec_attention_cached_(prog *p, val qkv, val cache, val pos, val start, val sink, head_shape h) {
    rec_request r = { OP_ATTENTION_CACHED, { qkv, cache, pos, start, sink } };
    if (!local_heads(p, r.op, qkv, h, &r.attr)) return VAL_NONE;
    r.attr.heads.sinks = sink != VAL_NONE;
    r.attr.heads.chunk = h.chunk;
    r.sizes.of['O'] = (int64_t)r.attr.heads.q * h.dim;
    return rec_first(p, r);
}

val rec_scale_(prog *p, val x, float by) {
    return by == 1 ? x : rec_first(p, (rec_request){ OP_SCALE, { x }, { .scale.by = by } });
}

val rec_add_values_(prog *p, val qkv, val ve, val x, val w, head_shape h) {
    rec_request r = { OP_ADD_VALUES, { qkv, ve, x, w } };
    return local_heads(p, r.op, qkv, h, &r.attr) ? rec_first(p, r) : VAL_NONE;
}

val rec_cap_logits_(prog *p, val x, float scale, float cap) {
    if (!(cap > 0)) return rec_scale_(p, x, scale);
    return rec_first(p, (rec_request){ OP_CAP_LOGITS, { x }, { .ce = { scale, cap } } });
}

val rec_dropout_(prog *p, val x, val id, float rate, uint32_t site) {
    if (rate <= 0 || p->mode != PROG_TRAIN) return x;
    return rec_first(p, (rec_request){ OP_DROPOUT, { x, id }, { .dropout = { rate, site } } });
}
