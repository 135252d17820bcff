/* Values, ops, parameters and communication: what the typed record calls (rec_ops.c) and the passes
 * are built on. */
#include "prog_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- life -------------------------------------------------------------------------------- */
prog *prog_new(const char *name, prog_mode mode, const mesh *m, const param_set *set,
               const prog_options *o) {
    prog *p = mem_alloc(sizeof *p);
    *p = (prog){ .name = name, .mode = mode, .m = *m, .set = *set, .o = *o, .dt = DT_F32 };
    p->emit = &p->fwd;
    p->res_in = p->delta_in = p->res_out = p->delta_out = p->block_input = VAL_NONE;
    p->grad_in = p->grad_out = p->result = p->top1 = VAL_NONE;
    for (int i = 0; i < CARRIES; i++) {
        p->carry_in[i] = p->carry_out[i] = VAL_NONE;
        p->carry_grad_in[i] = p->carry_grad_out[i] = VAL_NONE;
    }
    p->site = (rec_site){ "(unrecorded)", "", 0 };
    p->bucket_full = mem_alloc((size_t)set->buckets * sizeof(val));
    p->bucket_grad = mem_alloc((size_t)set->buckets * sizeof(val));
    for (int b = 0; b < set->buckets; b++) p->bucket_full[b] = p->bucket_grad[b] = VAL_NONE;
    p->param_written = mem_alloc((size_t)set->params);
    return p;
}

void prog_free(prog *p) {
    if (!p) return;
    err_free(p->error);
    free(p->val);
    for (int i = 0; i < PROG_LISTS; i++) free(p->list[i].op);
    free(p->division);
    free(p->bucket_full);
    free(p->bucket_grad);
    free(p->param_written);
    free(p);
}

prog *prog_here(prog *p, const char *file, int line, const char *function) {
    p->site = (rec_site){ file, function, line };
    return p;
}

void prog_compute_in(prog *p, dtype dt) { p->dt = dt; }
void prog_set_result(prog *p, val v) { p->result = v; }

void prog_fail(prog *p, const char *hint, const char *fmt, ...) {
    if (p->error) return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->error = err_make(p->site.file, p->site.line, "program %s, %s:%d: %s", p->name, p->site.file,
                        p->site.line, text);
    if (hint) p->error = err_hint(p->error, "%s", hint);
}

/* ---- values and ops ---------------------------------------------------------------------- */
/* @param dim may be another value's: it is read before the list of values moves. */
val val_new(prog *p, val_class cls, dtype dt, int ndim, const int64_t *dim, placement pl) {
    int64_t size[TENSOR_MAX_DIM];
    for (int i = 0; i < ndim; i++) size[i] = dim[i];
    p->val = mem_reserve(p->val, &p->val_cap, p->vals, sizeof *p->val);
    prog_val *v = &p->val[p->vals];
    *v = (prog_val){ .cls = cls,
                     .dt = dt,
                     .ndim = ndim,
                     .pl = pl,
                     .base = VAL_NONE,
                     .param = -1,
                     .bucket = -1,
                     .producer = -1,
                     .grad = VAL_NONE };
    for (int i = 0; i < ndim; i++) v->dim[i] = size[i];
    for (int a = 0; a < AX_COUNT; a++) /* an axis of one rank holds everything */
        if (mesh_size(&p->m, (mesh_axis)a) == 1) v->pl.on[a] = PLACE_I;
    return p->vals++;
}

val val_alias(prog *p, val base, size_t offset, dtype dt, int ndim, const int64_t *dim,
              placement pl) {
    val v = val_new(p, VC_ALIAS, dt, ndim, dim, pl);
    p->val[v].base = base;
    p->val[v].offset = offset;
    return v;
}

val val_root(const prog *p, val v) {
    while (v != VAL_NONE && p->val[v].cls == VC_ALIAS) v = p->val[v].base;
    return v;
}

tensor val_tensor(const prog_val *v) { return tensor_of(NULL, v->dt, v->ndim, v->dim); }

size_t val_bytes(const prog_val *v) {
    tensor t = val_tensor(v);
    return tensor_bytes(&t);
}

void list_push(op_list *l, const prog_op *op) { LIST_ADD(l->op, l->n, l->cap) = *op; }

prog_op op_blank(op_code op, rec_site site) {
    prog_op o = { .op = op, .site = site, .pair = -1 };
    for (int i = 0; i < OP_MAX_IN; i++) o.in[i] = VAL_NONE;
    for (int i = 0; i < OP_MAX_OUT; i++) o.out[i] = VAL_NONE;
    return o;
}

prog_op *op_emit(prog *p, op_code op) {
    prog_op o = op_blank(op, p->site);
    list_push(p->emit, &o);
    return &p->emit->op[p->emit->n - 1];
}

prog_op *op_emit_on(prog *p, op_code op, val a, val b, val out) {
    prog_op *o = op_emit(p, op);
    o->in[0] = a;
    o->in[1] = b;
    o->out[0] = out;
    return o;
}

val emit_add(prog *p, val a, val b, dtype dt) {
    prog_val v = p->val[a];
    val sum = val_new(p, VC_TEMP, dt, v.ndim, v.dim, v.pl);
    op_emit_on(p, OP_ADD, a, b, sum);
    return sum;
}

val prog_input(prog *p, const char *name, dtype dt, int ndim, const int64_t *dim, placement pl) {
    for (val v = 0; v < p->vals; v++)
        if (p->val[v].cls == VC_INPUT && !strcmp(p->val[v].name, name)) return v;
    val v = val_new(p, VC_INPUT, dt, ndim, dim, pl);
    p->val[v].name = name;
    return v;
}

val prog_input_shared(prog *p, const char *name, const int64_t dim[2]) {
    val v = prog_input(p, name, DT_F32, 2, dim, (placement){ 0 });
    p->val[v].shared = true;
    return v;
}

val prog_input_per_layer(prog *p, const char *name, dtype dt, const int64_t dim[2], placement pl) {
    val v = prog_input(p, name, dt, 2, dim, pl);
    p->val[v].per_layer = true;
    return v;
}

bool prog_input_shape(const prog *p, const char *name, tensor *shape) {
    for (val v = 0; v < p->vals; v++)
        if (p->val[v].cls == VC_INPUT && !strcmp(p->val[v].name, name)) {
            *shape = val_tensor(&p->val[v]);
            return true;
        }
    return false;
}

residual_state prog_residual_in(prog *p, int64_t n, int64_t d, dtype residual, dtype delta,
                                placement pl) {
    int64_t dim[] = { n, d };
    p->res_in = val_new(p, VC_BOUNDARY, residual, 2, dim, pl);
    p->delta_in = val_new(p, VC_BOUNDARY, delta, 2, dim, pl);
    p->val[p->res_in].needs_grad = p->val[p->delta_in].needs_grad = true;
    p->val[p->res_in].name = "residual";
    p->val[p->delta_in].name = "delta";
    return (residual_state){ p->res_in, p->delta_in };
}

void prog_residual_out(prog *p, residual_state s) {
    val out[] = { s.residual, s.delta };
    for (size_t i = 0; i < COUNT_OF(out) && !p->error; i++) {
        char text[64];
        if (out[i] == VAL_NONE || !placement_axes(p->val[out[i]].pl, PL_P)) continue;
        prog_fail(p, "a collective is missing before it: rec_comm", "the residual leaves as %s",
                  placement_str(text, sizeof text, p->val[out[i]].pl));
    }
    p->res_out = s.residual;
    p->delta_out = s.delta;
}

val prog_carry_in(prog *p, int which) {
    BUG_IF(p->res_in == VAL_NONE);
    if (p->carry_in[which] != VAL_NONE) return p->carry_in[which];
    prog_val r = p->val[p->res_in];
    val v = val_new(p, VC_CARRIED, r.dt, r.ndim, r.dim, r.pl);
    p->val[v].needs_grad = true;
    p->val[v].name = "carried";
    return p->carry_in[which] = v;
}

void prog_carry_out(prog *p, int which, val v) { p->carry_out[which] = v; }

/* Whether x's producer can emit another type: it yields what its module computes in (a type that follows
 * from an operand, as a residual's, stays), and nothing has read x yet. */
static bool can_retype(const prog *p, val x) {
    int made_by = p->val[x].producer;
    if (p->emit != &p->fwd || p->val[x].cls != VC_TEMP || made_by < 0) return false;
    const prog_op *o = &p->fwd.op[made_by];
    op_signature sig = op_signature_of(o->op);
    bool yields = false; /* else it yields a part of x */
    if (op_flags(o->op) & OPF_EXTERN) return false;
    for (int i = 0; i < sig.outs; i++) {
        if (o->out[i] == x && sig.out[i].type_of >= 0) return false;
        yields |= o->out[i] == x;
    }
    if (!yields) return false;
    for (int i = made_by + 1; i < p->fwd.n; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (p->fwd.op[i].in[k] == x) return false;
    return true;
}

val val_as(prog *p, val x, dtype dt) {
    if (x == VAL_NONE || p->val[x].dt == dt) return x;
    if (can_retype(p, x)) {
        p->val[x].dt = dt;
        return x;
    }
    val y = val_new(p, VC_TEMP, dt, p->val[x].ndim, p->val[x].dim, p->val[x].pl);
    p->val[y].needs_grad = p->val[x].needs_grad;
    op_emit_on(p, OP_CAST, x, VAL_NONE, y);
    if (p->emit == &p->fwd) p->val[y].producer = p->fwd.n - 1;
    return y;
}

val rec_cast_(prog *p, val x, dtype dt) {
    return p->error || x == VAL_NONE ? VAL_NONE : val_as(p, x, dt);
}

/* ---- parameters -------------------------------------------------------------------------- */
/* Fetches this rank's part into its place in the slot. @return that part. */
static val fetch_part(prog *p, val stored, val full) {
    prog_val v = p->val[stored];
    const prog_bucket *k = &p->set.bucket[v.bucket];
    int64_t first = bucket_holds(k, &p->m, HOLDS_PARAMS).first;
    val part = val_alias(p, full, (size_t)first * dt_size(v.dt), v.dt, 1, v.dim, v.pl);
    op_emit_on(p, OP_FETCH, stored, VAL_NONE, part);
    return part;
}

/* @return the bucket as programs read it, gathered when it is stored in slices. */
static val bucket_read(prog *p, int b) {
    if (p->bucket_full[b] != VAL_NONE) return p->bucket_full[b];
    const prog_bucket *k = &p->set.bucket[b];
    axis_set slices = bucket_is_sliced(k, &p->m, HOLDS_PARAMS) ? k->slices : 0;
    int64_t n = bucket_holds(k, &p->m, HOLDS_PARAMS).count;
    val stored = val_new(p, VC_PARAM, k->dt, 1, &n, placement_on(slices, PLACE_S(0)));
    p->val[stored].bucket = b;
    p->val[stored].name = k->name;
    p->bucket_full[b] = stored;
    if (!slices && !k->host) return stored;
    op_list *emit = p->emit;
    p->emit = &p->gather;
    val full = val_new(p, VC_GATHERED, k->dt, 1, &k->count, placement_on(slices, PLACE_R));
    p->val[full].bucket = b;
    p->val[full].name = k->name;
    val part = k->host ? fetch_part(p, stored, full) : stored;
    if (slices) {
        axis_set axes = slices & mesh_axes(&p->m);
        emit_move(p, part, full, (comm_move){ .axes = axes, .from = PLACE_S(0), .to = PLACE_R });
        set_wire(p, k->gather_wire);
    }
    p->emit = emit;
    p->bucket_full[b] = full;
    return full;
}

bool prog_fetches(const prog *p) {
    for (int i = 0; i < p->gather.n; i++)
        if (op_flags(p->gather.op[i].op) & OPF_FETCH) return true;
    return false;
}

static int param_index(prog *p, const char *name) {
    for (int i = 0; i < p->set.params; i++)
        if (!strcmp(p->set.param[i].name, name) &&
            (!p->set.param[i].block_kind || p->set.param[i].block_kind == p->o.block_kind))
            return i;
    prog_fail(p, "add a row to the parameter table", "unknown parameter %s", name);
    return -1;
}

static val use_param(prog *p, const char *name, val x, bool once) {
    if (p->error) return VAL_NONE;
    int i = param_index(p, name);
    if (i < 0) return VAL_NONE;
    const prog_param *q = &p->set.param[i];
    val full = bucket_read(p, q->bucket);
    placement pl = { 0 };
    for (int a = 0; a < AX_COUNT; a++) {
        place_kind beside = (place_kind)p->val[x].pl.on[a].kind;
        if (q->pl.on[a].kind == PL_S)
            pl.on[a] = q->pl.on[a];
        else if (beside != PL_I && !(once && place_same(p->val[x].pl.on[a], PLACE_S(1))))
            pl.on[a] = PLACE_R;
    }
    dtype dt = p->set.bucket[q->bucket].dt;
    val v = val_alias(p, full, (size_t)q->offset * dt_size(dt), dt, q->ndim, q->dim, pl);
    p->val[v].param = i;
    p->val[v].bucket = q->bucket;
    p->val[v].name = q->name;
    p->val[v].segments[0] = (uint16_t)q->segments;
    p->val[v].needs_grad = p->mode == PROG_TRAIN;
    return v;
}

val prog_use_(prog *p, const char *name, val x) { return use_param(p, name, x, false); }
val prog_use_once_(prog *p, const char *name, val x) { return use_param(p, name, x, true); }

void prog_param_shared(prog *p, const char *name) {
    int i = param_index(p, name);
    if (i >= 0) p->param_written[i] |= WROTE_EARLIER;
}

/* Where gradients are kept in slices, the whole one exists only until it is reduced, zeroed so that padding
 * does not carry garbage into the sum; else it is the accumulator itself. */
static val bucket_gradient(prog *p, int b) {
    if (p->bucket_grad[b] != VAL_NONE) return p->bucket_grad[b];
    const prog_bucket *k = &p->set.bucket[b];
    bool slices = bucket_is_sliced(k, &p->m, HOLDS_GRADS);
    val_class cls = slices ? VC_WHOLE_GRAD : VC_GRAD;
    val g = val_new(p, cls, DT_F32, 1, &k->count, (placement){ 0 });
    p->val[g].bucket = b;
    p->val[g].name = k->name;
    p->bucket_grad[b] = g;
    if (slices) op_emit(p, OP_ZERO)->out[0] = g;
    return g;
}

val param_grad(prog *p, val param, op_acc *acc) {
    prog_val v = p->val[param];
    const prog_param *q = &p->set.param[v.param];
    val base = bucket_gradient(p, v.bucket);
    bool slices = p->val[base].cls == VC_WHOLE_GRAD;
    uint8_t wrote = p->param_written[v.param];
    *acc = wrote & WROTE_HERE ? ACC_ADD : slices ? ACC_STORE : wrote ? ACC_ADD : ACC_MICRO;
    p->param_written[v.param] |= WROTE_HERE;
    val g = val_alias(p, base, (size_t)q->offset * sizeof(float), DT_F32, v.ndim, v.dim,
                      placement_dual(v.pl));
    p->val[g].param = v.param;
    p->val[g].bucket = v.bucket;
    p->val[g].name = q->name;
    return g;
}

/* ---- buckets ----------------------------------------------------------------------------- */
bool bucket_is_sliced(const prog_bucket *b, const mesh *m, bucket_buffer which) {
    bucket_buffer as = which == HOLDS_PARAMS && b->host ? HOLDS_STATE : which;
    return b->zero >= (int)as && mesh_span(m, b->slices) > 1;
}

bucket_range bucket_holds(const prog_bucket *b, const mesh *m, bucket_buffer which) {
    if (!bucket_is_sliced(b, m, which)) return (bucket_range){ 0, b->count };
    int64_t n = b->count / mesh_span(m, b->slices);
    return (bucket_range){ n * mesh_index(m, b->slices), n };
}

void bucket_layout(prog_param *param, int params, prog_bucket *bucket, int buckets, const mesh *m) {
    for (int b = 0; b < buckets; b++) {
        int64_t at = 0;
        for (int same = 0; same < 2; same++) {
            if (same) bucket[b].replicated = at;
            for (int i = 0; i < params; i++) {
                if (param[i].bucket != b || same != !placement_axes(param[i].pl, PL_S)) continue;
                param[i].offset = at;
                int64_t n = param[i].dim[0] * (param[i].ndim > 1 ? param[i].dim[1] : 1);
                at += (int64_t)align_up((size_t)n, PARAM_ALIGN);
            }
        }
        bucket[b].count = (int64_t)align_up((size_t)at, (size_t)PARAM_ALIGN *
                                                            (size_t)mesh_span(m, bucket[b].slices));
    }
}
