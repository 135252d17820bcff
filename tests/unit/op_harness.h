/* One harness for every op. A test gives a table of op_spec: how to make operands of a shape, a
 * plain fp64 reference of the forward, and the calls (forward and backward) that implement it.
 * For each shape, mixture of element types, instruction set and choice of absent operands,
 * harness_run makes each call and checks
 *
 *   - outputs against the reference, gradients against finite differences of the reference;
 *   - that poisoned outputs and workspace are overwritten, and nothing beyond them;
 *   - that "+=" outputs are stored or added to as asked;
 *   - the same bits from one, two and three threads, and in place where the op allows it.
 *
 * It stops at the first failure, naming op, instruction set, types and shape.
 */
#ifndef INGOT_TESTS_OP_HARNESS_H
#define INGOT_TESTS_OP_HARNESS_H

#include "ops/op_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- what a test declares -------------------------------------------------------------------- */
typedef enum { T_ACT, T_WEIGHT, T_F32, T_I32, T_I64 } operand_kind;
typedef struct operand {
    operand_kind kind;
    int ndim;
    int64_t dim[TENSOR_MAX_DIM], count;
    double *v; /* owned; integers too; NULL: absent */
} operand;

/* Sizes of one case; what a, b, c mean is the spec's business. */
typedef struct op_shape {
    int64_t n, a, b, c;
    int variant;
} op_shape;

typedef struct op_inst {
    op_shape shape;
    operand in[OP_MAX_IN], out[OP_MAX_OUT];
    double *grad[OP_MAX_OUT]; /* of the outputs that have one; NULL: none */
    op_attr attr;
    step_block step;
    uint32_t layer;
} op_inst;

/* An operand of a call: an input, an output, the gradient of output i (given), or the gradient of
 * input i (wanted). */
typedef struct slot {
    char kind;
    int index;
} slot;
#define IN(i)                                                                                      \
    { 'i', i }
#define OUT(i)                                                                                     \
    { 'o', i }
#define GRAD(i)                                                                                    \
    { 'g', i }
#define GRAD_IN(i)                                                                                 \
    { 'd', i }

typedef struct op_call_spec {
    op_code op;
    slot in[OP_MAX_IN], out[OP_MAX_OUT];
    uint32_t adds;          /* outputs documented "+=" */
    uint32_t optional_out;  /* outputs that may be left out ... */
    uint32_t optional_when; /* ... when these inputs are absent */
    bool shares;            /* out[0] may share in[0]'s memory, beyond what OPF_INPLACE says */
} op_call_spec;

enum { SPEC_MAX_CALLS = 3, SPEC_MAX_SHAPES = 8 };
typedef struct op_spec {
    const char *name;
    void (*setup)(op_inst *t); /* makes operands with in_make and out_make, sets attr */
    void (*ref)(op_inst *t);   /* in[].v -> out[].v */
    op_call_spec call[SPEC_MAX_CALLS];
    uint32_t has_grad;      /* outputs with a gradient */
    uint32_t optional_in;   /* inputs that may be absent */
    uint32_t optional_grad; /* gradients that may be absent */
    uint32_t mutated;       /* inputs that the first call writes, and the reference too */
    double looser;          /* multiplies the tolerance; 0 means 1 */
    op_shape shape[SPEC_MAX_SHAPES];
} op_spec;

/* ---- operands -------------------------------------------------------------------------------- */
/* Each spec draws from its own stream, so that adding one changes no other's numbers. */
static rng_key harness_key;
static uint64_t harness_drawn;
static void draw_from(const char *stream) {
    harness_key = rng_key_of(hash_str(stream), 0);
    harness_drawn = 0;
}
static double draw_normal(void) { return rng_normal(harness_key, harness_drawn++); }
static int64_t draw_below(int64_t n) {
    return (int64_t)rng_below(harness_key, harness_drawn++, (uint64_t)n);
}

static void operand_make(operand *o, operand_kind kind, int ndim, const int64_t *dim) {
    *o = (operand){ .kind = kind, .ndim = ndim, .count = 1 };
    for (int i = 0; i < ndim; i++) o->count *= o->dim[i] = dim[i];
    o->v = mem_alloc((size_t)o->count * sizeof *o->v + 1);
    if (kind == T_I32 || kind == T_I64) return;
    for (int64_t i = 0; i < o->count; i++) o->v[i] = draw_normal();
}
#define DIMS(...)                                                                                  \
    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define in_make(t, i, kind, ...)  operand_make(&(t)->in[i], kind, DIMS(__VA_ARGS__))
#define out_make(t, i, kind, ...) operand_make(&(t)->out[i], kind, DIMS(__VA_ARGS__))

/* ---- element types: the mixtures tried ------------------------------------------------------- */
typedef struct op_mode {
    const char *name;
    dtype in, out, weight, grad;
    double tol;   /* relative */
    double least; /* absolute: where the coarsest type underflows */
} op_mode;
static const op_mode op_modes[] = {
    { "fp32", DT_F32, DT_F32, DT_F32, DT_F32, 3e-5, 1e-30 },
    { "bf16", DT_BF16, DT_BF16, DT_BF16, DT_BF16, 2e-2, 1e-30 },
    { "fp16", DT_F16, DT_F16, DT_F16, DT_F16, 4e-3, 6e-8 },
    { "bf16 with fp32 weights", DT_BF16, DT_F32, DT_F32, DT_BF16, 2e-2, 1e-30 },
    { "fp32, bf16 and fp16", DT_F32, DT_BF16, DT_F16, DT_F32, 2e-2, 6e-8 },
};

static dtype dtype_in_mode(const op_mode *m, operand_kind kind, char slot_kind) {
    switch (kind) {
    case T_I32: return DT_I32;
    case T_I64: return DT_I64;
    case T_F32: return DT_F32;
    case T_WEIGHT: return slot_kind == 'd' ? DT_F32 : m->weight;
    default: return slot_kind == 'i' ? m->in : slot_kind == 'o' ? m->out : m->grad;
    }
}

/* ---- buffers with canaries ------------------------------------------------------------------- */
enum { CANARY = 64, CANARY_BYTE = 0xa5, POISON = 0xff }; /* 0xff..: NaN in every float type */
typedef struct buffer {
    char *whole; /* owned: canary, bytes, canary */
    size_t bytes;
} buffer;

static buffer buffer_make(size_t bytes) {
    buffer b = { .bytes = bytes };
    b.whole = aligned_alloc(64, align_up(bytes + 2 * CANARY, 64));
    memset(b.whole, CANARY_BYTE, bytes + 2 * CANARY);
    memset(b.whole + CANARY, POISON, bytes);
    return b;
}
static void *buffer_data(buffer b) { return b.whole ? b.whole + CANARY : NULL; }
static bool buffer_intact(buffer b) {
    bool intact = true;
    for (size_t i = 0; b.whole && i < CANARY; i++)
        intact &= (uint8_t)b.whole[i] == CANARY_BYTE &&
                  (uint8_t)b.whole[CANARY + b.bytes + i] == CANARY_BYTE;
    return intact;
}
static void buffer_free(buffer *b) {
    free(b->whole);
    *b = (buffer){ 0 };
}

static void elements_store(dtype dt, const double *v, void *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        char *at = (char *)to + (size_t)i * dt_size(dt);
        float f = (float)v[i];
        if (dt == DT_I32)
            *(int32_t *)at = (int32_t)v[i];
        else if (dt == DT_I64)
            *(int64_t *)at = (int64_t)v[i];
        else
            dt_from_f32(dt, &f, at, 1);
    }
}
static double *elements_load(dtype dt, const void *from, int64_t n) {
    double *v = mem_alloc((size_t)n * sizeof *v + 1);
    for (int64_t i = 0; i < n; i++) {
        float f;
        dt_to_f32(dt, (const char *)from + (size_t)i * dt_size(dt), &f, 1);
        v[i] = f;
    }
    return v;
}
static buffer buffer_of(dtype dt, const double *v, int64_t n) {
    buffer b = buffer_make((size_t)n * dt_size(dt));
    if (v) elements_store(dt, v, buffer_data(b), n);
    return b;
}
/* What the kernel will really see: values rounded to the type they are handed over in. */
static void round_to(dtype dt, double *v, int64_t n) {
    for (int64_t i = 0; v && dt_is_float(dt) && i < n; i++) {
        float f = (float)v[i], back;
        uint32_t raw;
        dt_from_f32(dt, &f, &raw, 1);
        dt_to_f32(dt, &raw, &back, 1);
        v[i] = back;
    }
}

/* ---- gradients by finite differences --------------------------------------------------------- */
enum { PROBES = 40 };
typedef struct grad_want {
    int64_t n, at[PROBES];
    double want[PROBES], rms;
    double *along, along_want; /* a direction through all elements at once */
} grad_want;

static double objective(const op_spec *spec, op_inst *t) {
    spec->ref(t);
    double sum = 0;
    for (int o = 0; o < OP_MAX_OUT; o++)
        for (int64_t i = 0; t->grad[o] && i < t->out[o].count; i++)
            sum += t->grad[o][i] * t->out[o].v[i];
    return sum;
}

static double slope(const op_spec *spec, op_inst *t, operand *x, const double *dir, double h) {
    double *saved = x->v, *moved = mem_alloc((size_t)x->count * sizeof *moved), f[2];
    for (int side = 0; side < 2; side++) {
        double step = side ? h : -h;
        for (int64_t i = 0; i < x->count; i++) moved[i] = saved[i] + step * dir[i];
        x->v = moved;
        f[side] = objective(spec, t);
    }
    x->v = saved;
    free(moved);
    return (f[1] - f[0]) / (2 * h);
}

static grad_want grad_want_of(const op_spec *spec, op_inst *t, int input) {
    operand *x = &t->in[input];
    size_t bytes = (size_t)x->count * sizeof(double);
    grad_want g = { .n = MIN(x->count, PROBES), .along = mem_alloc(bytes) };
    double *unit = mem_alloc(bytes), squares = 0;
    for (int64_t p = 0; p < g.n; p++) {
        g.at[p] = x->count <= PROBES ? p : draw_below(x->count);
        unit[g.at[p]] = 1;
        g.want[p] = slope(spec, t, x, unit, 1e-4);
        unit[g.at[p]] = 0;
        squares += g.want[p] * g.want[p];
    }
    g.rms = sqrt(squares / (double)MAX(g.n, 1));
    for (int64_t i = 0; i < x->count; i++) g.along[i] = draw_normal();
    g.along_want = slope(spec, t, x, g.along, 1e-5);
    free(unit);
    return g;
}

/* ---- one instance: a spec at one shape, types and choice of absent operands ------------------ */
typedef struct op_bench {
    const op_spec *spec;
    const op_mode *mode;
    const op_backend *backend;
    op_inst t;
    double *want_out[OP_MAX_OUT], *want_in[OP_MAX_IN]; /* want_in: of mutated inputs */
    grad_want want_grad[OP_MAX_IN];
    uint32_t absent_in, absent_grad, absent_out;
    pool *pools[3]; /* 1, 2, 3 threads; borrowed */
} op_bench;

static void bench_fail(const op_bench *b, const op_call_spec *c, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static void bench_fail(const op_bench *b, const op_call_spec *c, const char *fmt, ...) {
    char what[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    const op_shape *s = &b->t.shape;
    fail_msg("%s on %s, %s, shape n=%lld a=%lld b=%lld c=%lld variant %d, absent in %x grad %x "
             "out %x: %s",
             op_name(c->op), b->backend->name, b->mode->name, (long long)s->n, (long long)s->a,
             (long long)s->b, (long long)s->c, s->variant, b->absent_in, b->absent_grad,
             b->absent_out, what);
}

static const operand *slot_operand(const op_bench *b, slot s) {
    bool input = s.kind == 'i' || s.kind == 'd';
    return input ? &b->t.in[s.index] : &b->t.out[s.index];
}
static bool slot_absent(const op_bench *b, slot s, bool as_output, int position) {
    if (!s.kind) return true;
    if (s.kind == 'g') return !b->t.grad[s.index];
    if (as_output && b->absent_out >> position & 1) return true;
    return (s.kind == 'i' || s.kind == 'd') && (b->absent_in >> s.index & 1);
}
static const double *slot_value(const op_bench *b, slot s) {
    if (s.kind == 'g') return b->t.grad[s.index];
    return s.kind == 'i' ? b->t.in[s.index].v : b->want_out[s.index];
}

typedef struct prepared {
    op_call call;
    op_run run;
    buffer in[OP_MAX_IN], out[OP_MAX_OUT], workspace;
} prepared;

static void prepare(const op_bench *b, const op_call_spec *c, int threads, prepared *p) {
    *p = (prepared){ .call = { .op = c->op, .attr = b->t.attr } };
    p->run = (op_run){ .pool = b->pools[threads - 1], .step = &b->t.step, .layer = b->t.layer };
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++) {
        bool output = i >= OP_MAX_IN;
        int k = output ? i - OP_MAX_IN : i;
        slot s = output ? c->out[k] : c->in[k];
        if (!s.kind) continue;
        const operand *o = slot_operand(b, s);
        dtype dt = dtype_in_mode(b->mode, o->kind, s.kind);
        buffer *data = output ? &p->out[k] : &p->in[k];
        if (!slot_absent(b, s, output, k))
            *data = buffer_of(dt, output ? NULL : slot_value(b, s), o->count);
        tensor x = tensor_of(buffer_data(*data), dt, o->ndim, o->dim);
        *(output ? &p->call.out[k] : &p->call.in[k]) = x;
    }
    p->run.workspace_bytes = ops_workspace(b->backend, &p->call, threads);
    p->workspace = buffer_make(p->run.workspace_bytes);
    p->run.workspace = buffer_data(p->workspace);
}

static void unprepare(prepared *p) {
    for (int i = 0; i < OP_MAX_IN; i++) buffer_free(&p->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) buffer_free(&p->out[i]);
    buffer_free(&p->workspace);
}

static void run_checked(const op_bench *b, const op_call_spec *c, prepared *p) {
    p->call.run = &p->run;
    ops_run(b->backend, &p->call);
    for (int i = 0; i < OP_MAX_IN; i++)
        if (!buffer_intact(p->in[i])) bench_fail(b, c, "wrote beyond input %d", i);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (!buffer_intact(p->out[i])) bench_fail(b, c, "wrote beyond output %d", i);
    if (!buffer_intact(p->workspace)) bench_fail(b, c, "wrote beyond its workspace");
}

/* ---- comparisons ----------------------------------------------------------------------------- */
static double tolerance(const op_bench *b) {
    return b->mode->tol * (b->spec->looser > 0 ? b->spec->looser : 1);
}

static void compare_values(const op_bench *b, const op_call_spec *c, const char *what, int which,
                           const double *got, const double *want, int64_t n, double least) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += want[i] * want[i];
    double rms = sqrt(squares / (double)MAX(n, 1));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance(b) * (fabs(want[i]) + rms) + least))
            bench_fail(b, c, "%s %d, element %lld: got %.9g, expected %.9g", what, which,
                       (long long)i, got[i], want[i]);
}

static void compare_gradient(const op_bench *b, const op_call_spec *c, int which, const double *got,
                             const grad_want *g, int64_t count, double least) {
    for (int64_t p = 0; p < g->n; p++) {
        double have = got[g->at[p]], slack = tolerance(b) * (fabs(g->want[p]) + g->rms);
        if (!(fabs(have - g->want[p]) <= slack + least + 1e-9))
            bench_fail(b, c,
                       "gradient of input %d, element %lld: got %.9g, finite differences %.9g",
                       which, (long long)g->at[p], have, g->want[p]);
    }
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        double term = got[i] * g->along[i];
        sum += term;
        squares += term * term;
    }
    if (!(fabs(sum - g->along_want) <=
          tolerance(b) * (fabs(sum) + 2 * sqrt(squares)) + least * sqrt((double)count) + 1e-7))
        bench_fail(b, c,
                   "gradient of input %d along a direction: got %.9g, finite differences %.9g",
                   which, sum, g->along_want);
}

/* Checks every output of a call; `base` is what "+=" outputs held before, or NULL. */
static void compare_outputs(const op_bench *b, const op_call_spec *c, const prepared *p,
                            const double *const base[OP_MAX_OUT]) {
    for (int i = 0; i < OP_MAX_OUT; i++) {
        slot s = c->out[i];
        if (!p->call.out[i].data) continue;
        int64_t n = slot_operand(b, s)->count;
        double *got = elements_load(p->call.out[i].dt, p->call.out[i].data, n);
        for (int64_t k = 0; base && base[i] && k < n; k++) got[k] -= base[i][k];
        double least = b->mode->least + (base && base[i] ? 8e-7 : 0); /* rounding of base + sum */
        if (s.kind == 'd')
            compare_gradient(b, c, s.index, got, &b->want_grad[s.index], n, least);
        else
            compare_values(b, c, "output", s.index, got, b->want_out[s.index], n, least);
        free(got);
    }
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (c->in[i].kind != 'i' || !b->want_in[c->in[i].index]) continue;
        const double *want = b->want_in[c->in[i].index];
        int64_t n = slot_operand(b, c->in[i])->count;
        double *got = elements_load(p->call.in[i].dt, p->call.in[i].data, n);
        compare_values(b, c, "written input", c->in[i].index, got, want, n, b->mode->least);
        free(got);
    }
}

static void compare_bits(const op_bench *b, const op_call_spec *c, const prepared *p,
                         const prepared *q, const char *when) {
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const void *x = p->call.out[i].data, *y = q->call.out[i].data;
        if (x && y && memcmp(x, y, tensor_bytes(&p->call.out[i])))
            bench_fail(b, c, "output %d has other bits %s", i, when);
    }
}

/* ---- the checks of one call ------------------------------------------------------------------ */
static void check_threads(const op_bench *b, const op_call_spec *c, const prepared *one) {
    for (int threads = 2; threads <= 3; threads++) {
        prepared p;
        prepare(b, c, threads, &p);
        run_checked(b, c, &p);
        compare_bits(b, c, one, &p, threads == 2 ? "with two threads" : "with three threads");
        unprepare(&p);
    }
}

static void check_in_place(const op_bench *b, const op_call_spec *c, const prepared *apart) {
    const tensor *in = &apart->call.in[0], *out = &apart->call.out[0];
    bool allowed = c->shares || (op_flags(c->op) & OPF_INPLACE);
    if (!allowed || !out->data || in->dt != out->dt || tensor_count(in) != tensor_count(out))
        return;
    prepared p;
    prepare(b, c, 2, &p);
    memcpy(p.call.out[0].data, p.call.in[0].data, tensor_bytes(in));
    p.call.in[0].data = p.call.out[0].data;
    run_checked(b, c, &p);
    compare_bits(b, c, apart, &p, "in place");
    unprepare(&p);
}

static void check_accumulate(const op_bench *b, const op_call_spec *c) {
    prepared p;
    double *base[OP_MAX_OUT] = { 0 };
    prepare(b, c, 2, &p);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!(c->adds >> i & 1) || !p.call.out[i].data) continue;
        int64_t n = slot_operand(b, c->out[i])->count;
        base[i] = mem_alloc((size_t)n * sizeof(double));
        for (int64_t k = 0; k < n; k++) base[i][k] = (double)draw_below(16) - 8;
        elements_store(p.call.out[i].dt, base[i], p.call.out[i].data, n);
    }
    p.call.accumulate = c->adds;
    run_checked(b, c, &p);
    compare_outputs(b, c, &p, (const double *const *)base);
    for (int i = 0; i < OP_MAX_OUT; i++) free(base[i]);
    unprepare(&p);
}

static void check_call(op_bench *b, const op_call_spec *c) {
    prepared p;
    prepare(b, c, 1, &p);
    run_checked(b, c, &p);
    compare_outputs(b, c, &p, NULL);
    check_threads(b, c, &p);
    check_in_place(b, c, &p);
    unprepare(&p);
    if (c->adds) check_accumulate(b, c);
}

static void check_calls(op_bench *b) {
    for (int i = 0; ops_cpu_isa(i); i++) {
        b->backend = ops_cpu(ops_cpu_isa(i));
        for (int k = 0; k < SPEC_MAX_CALLS && b->spec->call[k].out[0].kind; k++) {
            const op_call_spec *c = &b->spec->call[k];
            check_call(b, c);
            if (!c->optional_out || (b->absent_in & c->optional_when) != c->optional_when) continue;
            b->absent_out = c->optional_out;
            check_call(b, c);
            b->absent_out = 0;
        }
    }
}

/* ---- instances ------------------------------------------------------------------------------- */
static double *copy_values(const operand *o) {
    double *v = mem_alloc((size_t)o->count * sizeof *v + 1);
    memcpy(v, o->v, (size_t)o->count * sizeof *v);
    return v;
}

static bool input_needs_gradient(const op_spec *spec, int input) {
    for (int k = 0; k < SPEC_MAX_CALLS; k++)
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (spec->call[k].out[o].kind == 'd' && spec->call[k].out[o].index == input)
                return true;
    return false;
}

static void make_inputs(op_bench *b) {
    op_inst *t = &b->t;
    t->step = (step_block){ .loss_grad = 0.125f, .dropout = { { 3, 5 } } };
    t->layer = 2;
    b->spec->setup(t);
    for (int i = 0; i < OP_MAX_IN; i++) {
        operand *x = &t->in[i];
        if (!x->v) continue;
        round_to(dtype_in_mode(b->mode, x->kind, 'i'), x->v, x->count);
        if (b->absent_in >> i & 1) {
            free(x->v);
            x->v = NULL;
        }
    }
    for (int o = 0; o < OP_MAX_OUT; o++) {
        if (!(b->spec->has_grad >> o & 1) || (b->absent_grad >> o & 1)) continue;
        operand *y = &t->out[o];
        if (!t->grad[o]) t->grad[o] = copy_values(y); /* random still: not yet computed */
        round_to(dtype_in_mode(b->mode, y->kind, 'g'), t->grad[o], y->count);
    }
}

static void make_wants(op_bench *b) {
    op_inst *t = &b->t;
    double *before[OP_MAX_IN] = { 0 };
    for (int i = 0; i < OP_MAX_IN; i++)
        if (b->spec->mutated >> i & 1) before[i] = copy_values(&t->in[i]);
    b->spec->ref(t);
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (t->out[o].v) b->want_out[o] = copy_values(&t->out[o]);
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!before[i]) continue;
        b->want_in[i] = t->in[i].v;
        t->in[i].v = before[i];
    }
    for (int i = 0; i < OP_MAX_IN; i++)
        if (t->in[i].v && input_needs_gradient(b->spec, i))
            b->want_grad[i] = grad_want_of(b->spec, t, i);
}

static void bench_free(op_bench *b) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        free(b->t.in[i].v);
        free(b->want_in[i]);
        free(b->want_grad[i].along);
    }
    for (int o = 0; o < OP_MAX_OUT; o++) {
        free(b->t.out[o].v);
        free(b->t.grad[o]);
        free(b->want_out[o]);
    }
}

static void harness_instance(const op_spec *spec, const op_mode *mode, op_shape shape,
                             uint32_t absent_in, uint32_t absent_grad) {
    op_bench b = { .spec = spec,
                   .mode = mode,
                   .t = { .shape = shape },
                   .absent_in = absent_in,
                   .absent_grad = absent_grad };
    b.pools[1] = pool_new(2);
    b.pools[2] = pool_new(3);
    make_inputs(&b);
    make_wants(&b);
    check_calls(&b);
    bench_free(&b);
    pool_free(b.pools[1]);
    pool_free(b.pools[2]);
}

/* All of one spec: each shape, mixture of types and set of absent operands. */
static void harness_run(const op_spec *spec) {
    draw_from(spec->name);
    for (size_t m = 0; m < COUNT_OF(op_modes); m++)
        for (int s = 0; s < SPEC_MAX_SHAPES && spec->shape[s].n; s++)
            for (uint32_t in = 0; in <= spec->optional_in; in++)
                for (uint32_t g = 0; g <= spec->optional_grad; g++)
                    if (!(in & ~spec->optional_in) && !(g & ~spec->optional_grad))
                        harness_instance(spec, &op_modes[m], spec->shape[s], in, g);
}

#endif
