/* Rewrites the linear layers that the model marked (prog_fp8) to run in fp8:
 *
 *     forward    quantize x -> x8, x8T       quantize w -> w8       y = linear(x8, w8)
 *     backward   quantize dy -> dy8, dy8T    quantize w -> w8T      dx = linear_bwd_x(dy8, w8T)
 *                                                                   dw = linear_bwd_w(dy8T, x8T)
 *
 * It runs between the derivation of backward and the choice of what is saved: so x8T, one byte per
 * element, is saved in place of x, or recomputed where selective recompute can. Weights are
 * quantized where they are used, which costs less than keeping them. The bias gradient is summed as
 * dy is quantized. An activation whose result nothing else reads is computed as it is quantized, and
 * so is its gradient: swiglu, quantize become quantize_swiglu (op_row.quantized). A norm without weights leaves its result
 * unwritten: quantize_norm computes it from the norm's operand and statistics (op_row.scaled).
 *
 * Scales are rows of the input "fp8", one for each operand of each site of each layer (ops/fp8.h).
 * On several ranks the largest magnitude is found over all that hold parts of a tensor, so that their scales
 * are the same, and those of one rank: before each quantization with the recipe "current", once per step
 * with "delayed". Rows of "current" are those of a microbatch: in a pipeline each that is under way has its own.
 * A program that does not train has rows of its own and scales by the current tensors, so that a
 * held-out loss leaves no trace in the training. */
#include "prog_internal.h"

#include <stdlib.h>

typedef struct fp8_site {
    val x8t;       /* computed forward, read backward */
    val dy8, dy8t; /* computed by the first op of backward that reads dy */
} fp8_site;

typedef struct rewrite {
    prog *p;
    op_list out;   /* the list being rebuilt */
    op_list held;  /* activations that the quantization of their result takes over */
    op_list norms; /* norms, as recorded, whose result is computed as it is quantized */
    bool forward;
    fp8_site *site; /* [p->o.fp8_sites] */
} rewrite;

/* ---- what the model marks ------------------------------------------------------------------- */
void prog_fp8(prog *p, val y, fp8_recipe recipe, int which) {
    CHOICE_DECIDED(fp8_recipe, 3);
    if (p->error || y == VAL_NONE || recipe == FP8_OFF) return;
    prog_op *o = &p->fwd.op[p->val[y].producer];
    BUG_IF(!(op_flags(o->op) & OPF_FP8) || which >= p->o.fp8_sites);
    const prog_val *x = &p->val[o->in[0]], *w = &p->val[o->in[1]];
    bool fits = x->dim[0] % FP8_UNIT == 0 && x->dim[1] % FP8_UNIT == 0 && w->dim[0] % FP8_UNIT == 0;
    if (!fits || x->dt != DT_BF16 || w->dt != DT_BF16) return;
    o->attr.fp8.recipe = recipe;
    o->attr.fp8.site = which;
}

/* Ranks see different parts of a tensor, so that their rows differ: the largest value is kept. */
static prog_op largest_over(val rows, axis_set axes, rec_site site) {
    return op_of_move(rows, rows, (comm_move){ .axes = axes, .kind = MOVE_ALL_MAX }, site);
}

static val fp8_rows(prog *p, int layers) {
    int64_t dim[] = { (int64_t)layers * p->o.fp8_sites * FP8_OPERANDS, FP8_ROW };
    return prog_input_shared(p, "fp8", dim);
}

void rec_fp8_commit_(prog *p, int layers) {
    if (p->error) return;
    val rows = fp8_rows(p, layers);
    op_emit(p, OP_FP8_COMMIT)->out[0] = rows;
}

/* Other pipeline stages have seen nothing of a layer: their rows are 0. */
void rec_fp8_share_(prog *p, int layers) {
    if (p->error) return;
    prog_op most = largest_over(fp8_rows(p, layers), mesh_axes(&p->m), p->site);
    list_push(p->emit, &most);
}

static bool is_marked(const prog_op *o) {
    return (op_flags(o->op) & OPF_FP8) && o->attr.fp8.recipe != FP8_OFF;
}

/* ---- activations that are computed as they are quantized ----------------------------------- */
static op_code quantizing_op(op_code op) {
    op_code q = op_row_of(op)->quantized;
    return q == OP_NONE ? OP_QUANTIZE : q;
}

/* Whether nothing but marked layers reads v, and as an operand that they quantize: not as a weight. */
static bool only_quantized(const prog *p, val v) {
    const op_list *lists[] = { &p->fwd, &p->bwd };
    int readers = 0;
    for (size_t l = 0; l < COUNT_OF(lists); l++)
        for (int i = 0; i < lists[l]->n; i++)
            for (int k = 0; k < OP_MAX_IN; k++) {
                const prog_op *o = &lists[l]->op[i];
                if (o->in[k] == VAL_NONE || val_root(p, o->in[k]) != v) continue;
                bool operand = is_marked(o) && op_signature_of(o->op).in[k].type == KIND_FLOAT;
                if (o->in[k] != v || !operand) return false;
                readers++;
            }
    return readers > 0 && v != p->res_out && v != p->delta_out;
}

/* Keeps an activation out of the list when the quantization of its result can take it over. */
static bool hold_back(rewrite *r, const prog_op *o) {
    if (quantizing_op(o->op) == OP_QUANTIZE || !only_quantized(r->p, o->out[0])) return false;
    r->p->val[o->out[0]].producer = -1;
    list_push(&r->held, o);
    return true;
}

static const prog_op *find_held(const rewrite *r, val v) {
    for (int i = 0; i < r->held.n; i++)
        if (r->held.op[i].out[0] == v) return &r->held.op[i];
    return NULL;
}

/* @return a result or operand of a norm by its name. */
static val norm_value(const prog_op *o, const char *name) {
    op_signature sig = op_signature_of(o->op);
    int out = op_find(sig.out, sig.outs, name), in = op_find(sig.in, sig.ins, name);
    return out >= 0 ? o->out[out] : in >= 0 ? o->in[in] : VAL_NONE;
}
static val norm_source(const prog_op *o) {
    val v = norm_value(o, op_row_of(o->op)->scaled.from);
    return v == VAL_NONE ? o->in[0] : v;
}

/* @return a norm without the result that is computed as it is quantized; any other op as it is. */
static prog_op without_result(rewrite *r, prog_op o) {
    prog *p = r->p;
    if (op_row_of(o.op)->scaled.op == OP_NONE || norm_value(&o, "w") != VAL_NONE) return o;
    val y = norm_value(&o, "y");
    if (!only_quantized(p, y) || p->val[y].dt != p->val[norm_source(&o)].dt) return o;
    list_push(&r->norms, &o);
    p->val[y].producer = -1;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o.out[i] == y) o.out[i] = VAL_NONE;
    return o;
}

static const prog_op *find_norm(const rewrite *r, val y) {
    for (int i = 0; i < r->norms.n; i++)
        if (norm_value(&r->norms.op[i], "y") == y) return &r->norms.op[i];
    return NULL;
}

/* ---- the ops ---------------------------------------------------------------------------------- */
static val scale_row(rewrite *r, const prog_op *of, int operand) {
    int which = of->attr.fp8.site;
    int64_t dim[] = { r->p->o.fp8_sites * FP8_OPERANDS, FP8_ROW }, one = FP8_ROW;
    const char *name = r->p->mode == PROG_TRAIN ? "fp8" : "fp8_eval";
    val rows = prog_input_per_layer(r->p, name, DT_F32, dim, (placement){ 0 });
    r->p->val[rows].all_layers = true;
    /* backward of a microbatch reads the scales of its forward, while a pipeline has others under way */
    r->p->val[rows].per_micro |= !fp8_keeps_history(of->attr.fp8.recipe);
    size_t at = (size_t)(which * FP8_OPERANDS + operand) * FP8_ROW * sizeof(float);
    return val_alias(r->p, rows, at, DT_F32, 1, &one, (placement){ 0 });
}

static val new_fp8(rewrite *r, val x, dtype dt, bool transposed) {
    prog_val v = r->p->val[x];
    int64_t dim[] = { v.dim[transposed], v.dim[!transposed] };
    val q = val_new(r->p, VC_TEMP, dt, 2, dim, v.pl);
    if (r->forward) r->p->val[q].producer = r->out.n;
    return q;
}

/* Adds an op; the ops inserted before it have shifted its index. */
static void emit_op(rewrite *r, const prog_op *o) {
    for (int i = 0; r->forward && i < OP_MAX_OUT; i++)
        if (o->out[i] != VAL_NONE && r->p->val[o->out[i]].producer >= 0)
            r->p->val[o->out[i]].producer = r->out.n;
    list_push(&r->out, o);
}

static prog_op fp8_op(const prog_op *of, op_code op) {
    prog_op o = op_blank(op, of->site);
    o.attr.fp8 = of->attr.fp8;
    return o;
}

/* Builds the op that quantizes an operand of `of`. @param q, qt results; NULL: not needed. */
static prog_op quantize_operand(rewrite *r, const prog_op *of, int operand, val *q, val *qt) {
    dtype dt = operand == FP8_DY ? DT_E5M2 : DT_E4M3;
    val x = of->in[operand == FP8_W ? 1 : 0];
    const prog_op *made_by = find_held(r, x);
    const prog_op *norm = find_norm(r, x);
    prog_op o = fp8_op(of, made_by ? quantizing_op(made_by->op) : OP_QUANTIZE);
    if (norm) o.op = op_row_of(norm->op)->scaled.op;
    o.in[0] = made_by ? made_by->in[0] : norm ? norm_source(norm) : x;
    o.in[1] = scale_row(r, of, operand);
    if (made_by) o.in[2] = made_by->in[1];
    if (norm) o.in[2] = norm_value(norm, "stat");
    if (made_by) o.attr.act = made_by->attr.act;
    if (r->p->mode != PROG_TRAIN) o.attr.fp8.recipe = FP8_CURRENT;
    o.attr.fp8.given = operand == FP8_W && !r->forward; /* forward has set the scale */
    if (q) o.out[0] = *q = new_fp8(r, x, dt, false);
    if (qt) o.out[1] = *qt = new_fp8(r, x, dt, true);
    return o;
}

/* Adds an op that quantizes. Where other ranks hold other parts of the tensor, the scale follows from all of
 * it: with the recipe "delayed" only as long as the row has none. */
static void add_quantizing(rewrite *r, prog_op *o, axis_set parts) {
    parts &= mesh_axes(&r->p->m);
    if (parts && !o->attr.fp8.given) {
        bool delayed = fp8_keeps_history(o->attr.fp8.recipe);
        prog_op measure = *o, most = largest_over(o->in[1], parts, o->site);
        for (int i = 0; i < OP_MAX_OUT; i++) measure.out[i] = VAL_NONE;
        measure.attr.fp8.measure = o->attr.fp8.measured = true;
        measure.when = most.when = delayed ? WHEN_UNSCALED : WHEN_ALWAYS;
        list_push(&r->out, &measure);
        list_push(&r->out, &most);
    }
    emit_op(r, o);
}

/* @return the axes over which ranks hold different parts of the operand that is quantized. */
static axis_set operand_parts(const rewrite *r, const prog_op *of, int operand) {
    return placement_axes(r->p->val[of->in[operand == FP8_W ? 1 : 0]].pl, PL_S);
}

static void add_quantize(rewrite *r, const prog_op *of, int operand, val *q, val *qt) {
    prog_op o = quantize_operand(r, of, operand, q, qt);
    add_quantizing(r, &o, operand_parts(r, of, operand));
}

/* Adds `of` with operands in fp8, a[.,K] b[.,K]. */
static void add_gemm(rewrite *r, const prog_op *of, val a, int a_operand, val b, int b_operand) {
    prog_op o = *of;
    o.in[0] = a;
    o.in[1] = b;
    o.in[3] = scale_row(r, of, a_operand);
    o.in[4] = scale_row(r, of, b_operand);
    if (op_flags(o.op) & OPF_WEIGHT_GRAD) o.out[1] = VAL_NONE; /* db is summed already */
    emit_op(r, &o);
}

/* Takes the activation out of a fused op where the next layer can apply it as it quantizes. */
static prog_op without_activation(rewrite *r, prog_op o) {
    const op_row *row = op_row_of(o.op);
    if (row->fused.activation == OP_NONE) return o;
    op_signature sig = op_signature_of(o.op);
    int pre = op_find(sig.out, sig.outs, row->fused.pre);
    prog_op act = fp8_op(&o, row->fused.activation);
    act.in[0] = o.out[pre];
    act.out[0] = o.out[0];
    act.attr.act = o.attr.act;
    if (!hold_back(r, &act)) return o;
    o.op = row->fused.plain;
    o.out[0] = o.out[pre];
    o.out[pre] = VAL_NONE;
    return o;
}

static void rewrite_forward(rewrite *r, const prog_op *o) {
    val x8, w8, *x8t = &r->site[o->attr.fp8.site].x8t;
    add_quantize(r, o, FP8_X, &x8, r->p->mode == PROG_TRAIN ? x8t : NULL);
    add_quantize(r, o, FP8_W, &w8, NULL);
    prog_op linear = without_activation(r, *o);
    add_gemm(r, &linear, x8, FP8_X, w8, FP8_W);
}

/* Quantizes dy once for both GEMMs, and sums the bias gradient in place of the weights' op. */
static void quantize_gradient(rewrite *r, const prog_op *of, fp8_site *s) {
    const op_list *l = &r->p->bwd;
    prog_op o = quantize_operand(r, of, FP8_DY, &s->dy8, &s->dy8t);
    for (int i = 0; i < l->n; i++) {
        const prog_op *w = &l->op[i];
        if (!is_marked(w) || !(op_flags(w->op) & OPF_WEIGHT_GRAD) ||
            w->attr.fp8.site != of->attr.fp8.site)
            continue;
        o.out[2] = w->out[1];
        o.acc = w->acc;
    }
    add_quantizing(r, &o, operand_parts(r, of, FP8_DY));
}

static void rewrite_backward(rewrite *r, const prog_op *o) {
    fp8_site *s = &r->site[o->attr.fp8.site];
    if (s->dy8 == VAL_NONE) quantize_gradient(r, o, s);
    if (op_flags(o->op) & OPF_WEIGHT_GRAD) {
        add_gemm(r, o, s->dy8t, FP8_DY, s->x8t, FP8_X);
    } else {
        val w8t;
        add_quantize(r, o, FP8_W, NULL, &w8t);
        add_gemm(r, o, s->dy8, FP8_DY, w8t, FP8_W);
    }
}

static void rewrite_list(rewrite *r, op_list *l) {
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        if (is_marked(o))
            (r->forward ? rewrite_forward : rewrite_backward)(r, o);
        else if (!hold_back(r, o)) {
            prog_op kept = r->forward ? without_result(r, *o) : *o;
            emit_op(r, &kept);
        }
    }
    free(l->op);
    *l = r->out;
    r->out = (op_list){ 0 };
}

void pass_fp8(prog *p) {
    rewrite r = { .p = p, .forward = true };
    r.site = mem_alloc((size_t)(p->o.fp8_sites + 1) * sizeof *r.site);
    for (int i = 0; i < p->o.fp8_sites; i++) r.site[i] = (fp8_site){ VAL_NONE, VAL_NONE, VAL_NONE };
    rewrite_list(&r, &p->fwd);
    r.forward = false;
    rewrite_list(&r, &p->bwd);
    free(r.held.op);
    free(r.norms.op);
    free(r.site);
}
