/* Cases: operands of a spec at one shape and mixture of element types; which calls it has, by the rows
 * of its ops; gradients of its reference by finite differences. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const op_mode op_modes[MODE_COUNT] = {
    { "fp32", DT_F32, DT_F32, DT_F32, DT_F32, 3e-5, 1e-30 },
    { "bf16", DT_BF16, DT_BF16, DT_BF16, DT_BF16, 2e-2, 1e-30 },
    { "fp16", DT_F16, DT_F16, DT_F16, DT_F16, 4e-3, 6e-8 },
    { "bf16 with fp32 weights", DT_BF16, DT_F32, DT_F32, DT_BF16, 2e-2, 1e-30 },
    { "fp32, bf16 and fp16", DT_F32, DT_BF16, DT_F16, DT_F32, 2e-2, 6e-8 },
};

const char *spec_name(const op_spec *s) { return s->name ? s->name : op_name(s->op); }

bool spec_in_out(const op_spec *s) { return s->in_out || (op_flags(s->op) & OPF_UPDATE); }

/* ---- random values ------------------------------------------------------------------------------- */
/* Each spec draws from its own stream, so that adding one changes no other's numbers. */
static struct {
    rng_key key;
    uint64_t drawn;
} source;

void draw_from(const char *name, uint64_t seed) {
    source.key = rng_key_of(hash_str(name), seed);
    source.drawn = 0;
}
double draw_normal(void) { return rng_normal(source.key, source.drawn++); }
int64_t draw_below(int64_t n) {
    return (int64_t)rng_below(source.key, source.drawn++, (uint64_t)n);
}

/* Drawing is slow where kernels are emulated; a prime, so that rows differ. */
enum { FRESH = 4099 };
static void draw_normals(double *v, int64_t n) {
    int64_t fresh = harness.most ? MIN(n, FRESH) : n;
    float *f = mem_alloc((size_t)fresh * sizeof *f + 1);
    rng_normals(source.key, source.drawn, fresh, f);
    source.drawn += (uint64_t)fresh;
    for (int64_t i = 0; i < n; i++) v[i] = i < fresh ? f[i] : v[i - fresh];
    free(f);
}

void spread_values(op_value *x, double mean, double spread) {
    for (int64_t i = 0; x->v && i < x->count; i++) x->v[i] = mean + spread * x->v[i];
}
void fill_below(op_value *x, int64_t n) {
    for (int64_t i = 0; i < x->count; i++) x->v[i] = (double)draw_below(n);
}
void drop_value(op_value *x) {
    free(x->v);
    x->v = NULL;
}
void swap_dims(op_value *x) {
    int64_t rows = x->dim[0];
    x->dim[0] = x->dim[1];
    x->dim[1] = rows;
}
double gelu_of(double x, act_kind act) {
    /* 1 + erf and 1 + tanh would round to 0 where an op's result is tiny, but not 0 */
    if (act == ACT_RELU2) return x > 0 ? x * x : 0;
    if (act == ACT_GELU_ERF) return 0.5 * x * erfc(-x / sqrt(2));
    return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double *copy_values(const double *v, int64_t n) {
    double *copy = mem_alloc((size_t)n * sizeof *copy + 1);
    memcpy(copy, v, (size_t)n * sizeof *copy);
    return copy;
}

/* ---- operands -------------------------------------------------------------------------------------- */
static dtype type_in_mode(const op_mode *m, operand_type type, bool result) {
    switch (type) {
    case KIND_I32: return DT_I32;
    case KIND_I64: return DT_I64;
    case KIND_U8: return DT_U8;
    case KIND_F32: return DT_F32;
    case KIND_WEIGHT: return m->weight;
    default: return result ? m->out : m->in;
    }
}

/* @return false when the size of a letter is not known. */
static bool set_dims(op_value *x, const op_case *c, const op_spec *s, const op_operand *o) {
    x->ndim = o->ndim;
    if (o->ndim == ANY_SHAPE) {
        x->ndim = 0;
        for (int i = 0; s->letters[i] && size_of(c, s->letters[i]); i++)
            x->dim[x->ndim++] = size_of(c, s->letters[i]);
    }
    for (int i = 0; i < o->ndim; i++)
        x->dim[i] = o->dim[i].times * (o->dim[i].symbol ? size_of(c, o->dim[i].symbol) : 1);
    x->count = x->ndim > 0;
    for (int i = 0; i < x->ndim; i++) x->count *= x->dim[i];
    return x->count > 0;
}

static void make_value(op_value *x, const op_case *c, const op_spec *s, const op_mode *m,
                       const op_operand *o, bool result) {
    *x = (op_value){ .type = o->type, .optional = o->optional };
    memcpy(x->name, o->name, sizeof x->name);
    x->dt = type_in_mode(m, o->type, result);
    x->grad_dt = o->type == KIND_FLOAT ? m->grad : DT_F32;
    if (!set_dims(x, c, s, o)) {
        if (!o->optional) spec_error(s, "the size of %s is missing", o->name);
        return;
    }
    x->v = mem_alloc((size_t)x->count * sizeof *x->v);
    if (dt_is_float(x->dt)) draw_normals(x->v, x->count);
}

static void set_step(op_case *c) {
    c->layer = 2;
    c->step = (step_block){ .loss_grad = 0.125f, .dropout = { { 3, 5 } } };
    c->step.update.lr = 1e-2f;
    c->step.update.max_norm = 1;
    c->step.update.rounding = rng_key_of(harness.seed, 3);
    c->step.now.grad_scale = 0.8f;
    c->step.now.count = 7;
}

void case_make(op_case *c, const op_spec *s, const op_mode *m, op_shape shape) {
    op_signature sig = op_signature_of(s->op);
    const int64_t sizes[] = { shape.n, shape.a, shape.b, shape.c, shape.d, shape.e, shape.f };
    *c = (op_case){ .shape = shape };
    for (int i = 0; s->letters[i]; i++) c->size[(int)s->letters[i]] = sizes[i];
    set_step(c);
    if (s->sizes) s->sizes(c);
    for (int i = 0; i < sig.ins; i++) make_value(&c->in[i], c, s, m, &sig.in[i], false);
    for (int i = 0; i < sig.outs; i++) make_value(&c->out[i], c, s, m, &sig.out[i], true);
    if (s->values) s->values(c);
    for (int i = 0; i < OP_MAX_IN; i++) round_values(c->in[i].dt, c->in[i].v, c->in[i].count);
    for (int i = 0; i < OP_MAX_OUT && spec_in_out(s); i++)
        round_values(c->out[i].dt, c->out[i].v, c->out[i].count);
}

void case_give_gradient(op_case *c, int result) {
    op_value *y = &c->out[result];
    if (!y->v) return;
    if (!c->grad[result]) {
        c->grad[result] = mem_alloc((size_t)y->count * sizeof(double) + 1);
        draw_normals(c->grad[result], y->count);
    }
    round_values(y->grad_dt, c->grad[result], y->count);
}

void case_free(op_case *c) {
    for (int i = 0; i < OP_MAX_IN; i++) free(c->in[i].v);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        free(c->out[i].v);
        free(c->grad[i]);
    }
    *c = (op_case){ 0 };
}

bool case_too_large(const op_case *c) {
    int64_t n = 0;
    for (int i = 0; i < OP_MAX_IN; i++) n += c->in[i].v ? c->in[i].count : 0;
    for (int i = 0; i < OP_MAX_OUT; i++) n += c->out[i].v ? c->out[i].count : 0;
    if (!harness.most || c->shape.when == ALWAYS) return false;
    return c->shape.when == UNLIMITED || n > harness.most;
}

/* ---- the calls of a spec --------------------------------------------------------------------------- */
int spec_ops(const op_spec *s, op_code ops[MAX_CALLS]) {
    const op_row *row = op_row_of(s->op);
    int n = 0;
    if (s->only) {
        ops[n++] = s->only;
        return n;
    }
    ops[n++] = s->op;
    if (s->alone) return n;
    if (row->bwd == BWD_SELF) ops[n++] = s->op;
    bool by_name = row->bwd == BWD_BY_NAME || row->bwd == BWD_NORM || row->bwd == BWD_LINEAR ||
                   row->bwd == BWD_BLOCKS || row->bwd == BWD_MIX;
    if (!by_name || row->fused.plain) return n; /* a fused activation has its own backward */
    for (int i = 0; i < 2; i++)
        if (row->bwd_op[i]) ops[n++] = row->bwd_op[i];
    return n;
}

static int find_value(const op_value *list, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (list[i].name[0] && !strcmp(list[i].name, name)) return i;
    return -1;
}

/* x: operand x; y: result y; dy: y's gradient, given; dx: x's gradient, wanted. */
static op_slot bind_by_name(const op_spec *s, const op_case *c, op_code op, const op_operand *o,
                            bool result) {
    const char *name = o->name;
    int in = find_value(c->in, OP_MAX_IN, name), out = find_value(c->out, OP_MAX_OUT, name);
    if (in >= 0 && !result) return (op_slot){ 'i', in };
    if (out >= 0) return (op_slot){ 'o', out };
    if (name[0] == 'd') {
        int of = result ? find_value(c->in, OP_MAX_IN, name + 1)
                        : find_value(c->out, OP_MAX_OUT, name + 1);
        if (of >= 0) return (op_slot){ result ? 'd' : 'g', of };
    }
    if (!o->optional && name[0])
        spec_error(s, "%s of %s is neither a value nor a gradient", name, op_name(op));
    return (op_slot){ 0 };
}

static void bind_forward(const op_case *c, op_binding *b, bool loss) {
    b->forward = true;
    for (int i = 0; i < b->sig.ins; i++) b->in[i] = (op_slot){ 'i', i };
    for (int i = 0; i < b->sig.outs; i++) {
        const char *name = b->sig.out[i].name;
        int of = loss && name[0] == 'd' ? find_value(c->in, OP_MAX_IN, name + 1) : -1;
        b->out[i] = of >= 0 ? (op_slot){ 'd', of } : (op_slot){ 'o', i };
    }
}

int case_bind(const op_spec *s, const op_case *c, op_binding calls[MAX_CALLS]) {
    op_code ops[MAX_CALLS];
    int n = spec_ops(s, ops);
    op_bwd rule = op_row_of(s->op)->bwd;
    for (int k = 0; k < n; k++) {
        op_binding *b = &calls[k];
        *b = (op_binding){ .op = ops[k], .sig = op_signature_of(ops[k]) };
        if (k == 0 && !s->only) {
            bind_forward(c, b, rule == BWD_LOSS);
        } else if (rule == BWD_SELF) {
            bind_forward(c, b, false);
            b->forward = false;
            b->in[0] = (op_slot){ 'g', 0 };
            b->out[0] = (op_slot){ 'd', 0 };
        } else {
            for (int i = 0; i < b->sig.ins; i++)
                b->in[i] = bind_by_name(s, c, b->op, &b->sig.in[i], false);
            for (int i = 0; i < b->sig.outs; i++)
                b->out[i] = bind_by_name(s, c, b->op, &b->sig.out[i], true);
        }
    }
    return n;
}

/* ---- finite differences ---------------------------------------------------------------------------- */
static double objective(const op_spec *s, op_case *c) {
    s->reference(c);
    double sum = 0;
    for (int o = 0; o < OP_MAX_OUT; o++)
        for (int64_t i = 0; c->grad[o] && i < c->out[o].count; i++)
            sum += c->grad[o][i] * c->out[o].v[i];
    return sum;
}

static double slope(const op_spec *s, op_case *c, op_value *x, const double *along, double h) {
    double *saved = x->v, *moved = mem_alloc((size_t)x->count * sizeof *moved), f[2];
    for (int side = 0; side < 2; side++) {
        double step = side ? h : -h;
        for (int64_t i = 0; i < x->count; i++) moved[i] = saved[i] + step * along[i];
        x->v = moved;
        f[side] = objective(s, c);
    }
    x->v = saved;
    free(moved);
    return (f[1] - f[0]) / (2 * h);
}

grad_want differences(const op_spec *s, op_case *c, int input) {
    op_value *x = &c->in[input];
    size_t bytes = (size_t)x->count * sizeof(double);
    grad_want g = { .n = MIN(x->count, PROBES), .along = mem_alloc(bytes) };
    double *unit = mem_alloc(bytes), squares = 0;
    for (int64_t p = 0; p < g.n; p++) {
        g.at[p] = x->count <= PROBES ? p : draw_below(x->count);
        unit[g.at[p]] = 1;
        g.want[p] = slope(s, c, x, unit, 1e-4);
        unit[g.at[p]] = 0;
        squares += g.want[p] * g.want[p];
    }
    g.rms = sqrt(squares / (double)MAX(g.n, 1));
    for (int64_t i = 0; i < x->count; i++) g.along[i] = draw_normal();
    g.along_want = slope(s, c, x, g.along, 1e-5);
    if (g.n < x->count) /* the elements that were not probed count too */
        g.rms = MAX(g.rms, fabs(g.along_want) / sqrt((double)x->count));
    free(unit);
    return g;
}
