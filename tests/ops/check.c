/* The comparisons of one spec: small cases with its reference, wide ones with the CPU backend. */
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A spec at one shape, mixture of types and choice of absent operands. */
typedef struct trial {
    const op_spec *s;
    const op_mode *m;
    op_case c;
    op_binding call[MAX_CALLS];
    int calls;
    double *begin[OP_MAX_OUT];                         /* of results that are operands too */
    double *want_out[OP_MAX_OUT], *want_in[OP_MAX_IN]; /* want_in: of written operands */
    grad_want want_grad[OP_MAX_IN];
    tensor made[2][OP_MAX_OUT]; /* results as operands of backward calls: [0] the reference's or the
                                   CPU's, [1] the device's */
    uint32_t absent_in, absent_grad, absent_out, writes;
    bool wide;
    /* of the run at hand */
    const op_backend *backend;
    const op_binding *at;
    const char *how;
} trial;

/* ---- the record --------------------------------------------------------------------------------- */
static void describe(const trial *t, char *to, size_t n) {
    const op_shape *s = &t->c.shape;
    const int64_t sizes[] = { s->n, s->a, s->b, s->c, s->d, s->e, s->f };
    str more = { 0 };
    if (t->s->name) str_add(&more, "%s, ", t->s->name);
    str_add(&more, "%s%s, %s", t->backend->name, t->wide ? ", wide" : "", t->m->name);
    for (int i = 0; t->s->letters[i]; i++)
        str_add(&more, " %c=%lld", t->s->letters[i], (long long)sizes[i]);
    if (s->variant) str_add(&more, " variant %d", s->variant);
    for (int i = 0; i < OP_MAX_IN; i++)
        if (t->absent_in >> i & 1) str_add(&more, ", no %s", t->c.in[i].name);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (t->absent_grad >> i & 1) str_add(&more, ", no d%s", t->c.out[i].name);
        if (t->absent_out >> i & 1) str_add(&more, ", no %s", t->at->sig.out[i].name);
    }
    if (t->how[0]) str_add(&more, ", %s", t->how);
    snprintf(to, n, "%s", more.text);
    str_free(&more);
}

static op_record *record_of(const trial *t) { return &harness.record[t->at->op]; }
static bool failed(const trial *t) { return record_of(t)->failure[0]; }

static void fail(const trial *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void fail(const trial *t, const char *fmt, ...) {
    op_record *r = record_of(t);
    if (r->failure[0]) return;
    char what[180], where[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    describe(t, where, sizeof where);
    snprintf(r->failure, sizeof r->failure, "%s: %s", where, what);
}

/* @param share the difference as a share of what is allowed */
static void note(const trial *t, const char *name, double share) {
    op_record *r = record_of(t);
    if (r->where[0] && !(share > r->worst)) return;
    char where[200];
    describe(t, where, sizeof where);
    r->worst = share;
    snprintf(r->where, sizeof r->where, "%.2g of the tolerance: %s on %s", share, name, where);
}

/* ---- calls ---------------------------------------------------------------------------------------- */
static op_value *value_of(trial *t, op_slot s) {
    return s.kind == 'i' || s.kind == 'd' ? &t->c.in[s.index] : &t->c.out[s.index];
}

static tensor copy_tensor(const tensor *x) {
    tensor copy = *x;
    if (!x->data) return (tensor){ 0 };
    copy.data = mem_alloc(tensor_bytes(x) + 1);
    memcpy(copy.data, x->data, tensor_bytes(x));
    return copy;
}

static tensor operand_tensor(trial *t, op_slot s) {
    op_value *x = s.kind ? value_of(t, s) : NULL;
    bool on_device = t->backend->device && t->s->private_out;
    if (!x || (s.kind == 'g' && !t->c.grad[s.index]) || (s.kind == 'i' && !x->v))
        return (tensor){ 0 };
    if (s.kind == 'o') return copy_tensor(&t->made[on_device][s.index]);
    if (s.kind == 'g') return encode(t->c.grad[s.index], x->grad_dt, x->ndim, x->dim);
    return encode(x->v, x->dt, x->ndim, x->dim);
}

/* A backward op may fix the type of a gradient. */
static dtype gradient_type(const op_operand *o, const op_value *x) {
    return o->type == KIND_F32 ? DT_F32 : x->grad_dt;
}

static tensor result_tensor(trial *t, op_slot s, int i) {
    op_value *x = s.kind ? value_of(t, s) : NULL;
    if (!x || !x->v || (t->absent_out >> i & 1)) return (tensor){ 0 };
    if (s.kind == 'd') return encode(NULL, gradient_type(&t->at->sig.out[i], x), x->ndim, x->dim);
    return encode(t->at->forward ? t->begin[s.index] : NULL, x->dt, x->ndim, x->dim);
}

static op_call call_make(trial *t) {
    op_call c = { .op = t->at->op, .attr = t->c.attr };
    for (int i = 0; i < t->at->sig.ins; i++) c.in[i] = operand_tensor(t, t->at->in[i]);
    for (int i = 0; i < t->at->sig.outs; i++) c.out[i] = result_tensor(t, t->at->out[i], i);
    return c;
}
static op_call call_copy(const op_call *c) {
    op_call copy = *c;
    for (int i = 0; i < OP_MAX_IN; i++) copy.in[i] = copy_tensor(&c->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) copy.out[i] = copy_tensor(&c->out[i]);
    return copy;
}
static void call_free(op_call *c) {
    for (int i = 0; i < OP_MAX_IN; i++) free(c->in[i].data);
    for (int i = 0; i < OP_MAX_OUT; i++) free(c->out[i].data);
}

static uint32_t written_operands(const trial *t) { return t->at->forward ? t->writes : 0; }

static void run(trial *t, op_call *c, run_options o) {
    o.writes = written_operands(t);
    const char *wrong = run_call(t->backend, c, &t->c, o);
    if (wrong[0]) fail(t, "%s", wrong);
}

static void expect_bits(trial *t, const op_call *a, const op_call *b) {
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (a->out[i].data && memcmp(a->out[i].data, b->out[i].data, tensor_bytes(&a->out[i])))
            fail(t, "%s has other bits", t->at->sig.out[i].name);
}

static uint32_t accumulating(const op_call *c, const op_signature *sig) {
    uint32_t set = 0;
    for (int i = 0; i < sig->outs; i++)
        if (sig->out[i].accumulates && c->out[i].data) set |= 1u << i;
    return set;
}

/* Puts small integers where results are added to. */
static void fill_bases(op_call *c, uint32_t set, double *base[OP_MAX_OUT]) {
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!(set >> i & 1)) continue;
        tensor *x = &c->out[i];
        int64_t n = tensor_count(x);
        base[i] = mem_alloc((size_t)n * sizeof(double) + 1);
        /* not drawn: the cases that follow must not depend on how many instruction sets there are */
        for (int64_t k = 0; k < n; k++) base[i][k] = (double)(k * 7 % 16) - 8;
        tensor filled = encode(base[i], x->dt, x->ndim, x->dim);
        free(x->data);
        *x = filled;
    }
    c->accumulate = set;
}

static bool may_run_in_place(const trial *t, const op_call *c) {
    bool allowed = (t->at->forward && t->s->shares) || (op_flags(t->at->op) & OPF_INPLACE);
    return allowed && c->out[0].data && c->in[0].dt == c->out[0].dt &&
           tensor_count(&c->in[0]) == tensor_count(&c->out[0]);
}

/* ---- against the reference -------------------------------------------------------------------------- */
/* By the mode, or by the result's own type where the spec gave it a coarser one. */
static double tolerance(const trial *t, dtype dt) {
    double coarsest = dt == DT_BF16 ? 2e-2 : dt == DT_F16 ? 4e-3 : 0;
    return MAX(t->m->tol, coarsest) * (t->s->looser > 0 ? t->s->looser : 1);
}

static void compare_values(trial *t, const char *name, const double *got, const double *want,
                           int64_t n, double least, dtype dt) {
    bool exact = !dt_is_float(dt);
    double squares = 0, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) squares += want[i] * want[i];
    double rms = sqrt(squares / (double)MAX(n, 1));
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(got[i] - want[i]),
               allowed = tolerance(t, dt) * (fabs(want[i]) + rms) + least;
        double share = exact ? (d == 0 ? 0 : INFINITY) : d / allowed;
        if (isnan(share)) share = INFINITY;
        if (share > worst) worst = share, at = i;
    }
    note(t, name, worst);
    if (worst > 1)
        fail(t, "%s[%lld] is %.9g, expected %.9g", name, (long long)at, got[at], want[at]);
}

static void compare_gradient(trial *t, const char *name, const double *got, const grad_want *g,
                             int64_t count, double least, dtype dt) {
    double worst = 0;
    if (t->s->cancels && g->rms < 1e-9) least += tolerance(t, dt);
    for (int64_t p = 0; p < g->n; p++) {
        double have = got[g->at[p]], slack = tolerance(t, dt) * (fabs(g->want[p]) + g->rms);
        double share = fabs(have - g->want[p]) / (slack + least + 1e-9);
        if (!(share <= 1))
            fail(t, "%s[%lld] is %.9g, finite differences say %.9g", name, (long long)g->at[p],
                 have, g->want[p]);
        worst = MAX(worst, share);
    }
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        double term = got[i] * g->along[i];
        sum += term;
        squares += term * term;
    }
    double allowed =
        tolerance(t, dt) * (fabs(sum) + 2 * sqrt(squares)) + least * sqrt((double)count) + 1e-7;
    double share = fabs(sum - g->along_want) / allowed;
    if (!(share <= 1))
        fail(t, "%s along a direction is %.9g, finite differences say %.9g", name, sum,
             g->along_want);
    note(t, name, MAX(worst, share));
}

/* `base` is what accumulating results held before, or NULL. */
static void compare_with_reference(trial *t, const op_call *c, double *const base[OP_MAX_OUT]) {
    for (int i = 0; i < t->at->sig.outs; i++) {
        op_slot s = t->at->out[i];
        const char *name = t->at->sig.out[i].name;
        if (!c->out[i].data) continue;
        if (s.kind == 'o' && t->backend->device && (t->s->private_out >> s.index & 1)) continue;
        int64_t n = tensor_count(&c->out[i]);
        double *got = decode(&c->out[i]), least = t->m->least;
        for (int64_t k = 0; base && base[i] && k < n; k++) got[k] -= base[i][k];
        if (base && base[i]) least += 8e-7; /* rounding of base + sum */
        if (s.kind == 'd') {
            compare_gradient(t, name, got, &t->want_grad[s.index], n, least, c->out[i].dt);
        } else {
            double *want = copy_values(t->want_out[s.index], n);
            bool merged = t->at->forward && i == 0 && t->s->merge;
            if (merged) t->s->merge(got), t->s->merge(want);
            compare_values(t, name, got, want, n, least, c->out[i].dt);
            free(want);
        }
        free(got);
    }
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!(written_operands(t) >> i & 1)) continue;
        double *got = decode(&c->in[i]);
        compare_values(t, t->at->sig.in[i].name, got, t->want_in[i], t->c.in[i].count, t->m->least,
                       c->in[i].dt);
        free(got);
    }
}

/* ---- the checks of one call ------------------------------------------------------------------------- */
static void check_again(trial *t, const op_call *first, run_options o, const char *how) {
    op_call again = call_make(t);
    t->how = how;
    run(t, &again, o);
    expect_bits(t, first, &again);
    t->how = "";
    call_free(&again);
}

static void check_accumulate(trial *t, uint32_t set) {
    double *base[OP_MAX_OUT] = { 0 };
    op_call c = call_make(t);
    fill_bases(&c, set, base);
    t->how = "accumulating";
    run(t, &c, (run_options){ .threads = 2 });
    if (t->s->reference) compare_with_reference(t, &c, base);
    t->how = "";
    for (int i = 0; i < OP_MAX_OUT; i++) free(base[i]);
    call_free(&c);
}

static void keep_results(trial *t, int side, const op_call *c) {
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (t->at->out[i].kind == 'o' && c->out[i].data) {
            free(t->made[side][i].data);
            t->made[side][i] = copy_tensor(&c->out[i]);
        }
}

static void check_small_call(trial *t) {
    op_call c = call_make(t);
    run(t, &c, (run_options){ .threads = 1 });
    if (t->s->reference) compare_with_reference(t, &c, NULL);
    if (t->at->forward && t->backend->device) keep_results(t, 1, &c);
    if (!t->backend->device) {
        check_again(t, &c, (run_options){ .threads = 2 }, "on two threads");
        check_again(t, &c, (run_options){ .threads = 3 }, "on three threads");
    } else if (harness.deterministic) {
        check_again(t, &c, (run_options){ 0 }, "the second time");
    }
    if (may_run_in_place(t, &c))
        check_again(t, &c, (run_options){ .threads = 2, .in_place = true }, "in place");
    uint32_t set = accumulating(&c, &t->at->sig);
    call_free(&c);
    if (set) check_accumulate(t, set);
}

/* ---- against the CPU -------------------------------------------------------------------------------- */
static double allowed_difference(const trial *t, const op_call *c, dtype dt) {
    bool backward = !t->at->forward;
    if (t->s->exact) return 0;
    double half = t->s->wide_half[backward] > 0 ? t->s->wide_half[backward] : 1;
    if (dt == DT_BF16) return 6e-3 * half;
    if (dt == DT_F16) return 1e-3 * half;
    bool fp32 = c->in[0].dt == DT_F32 && (!c->in[1].data || c->in[1].dt == DT_F32);
    if (t->s->wide_mixed > 0 && !fp32) return t->s->wide_mixed;
    double tol = backward && t->c.shape.tol > 0 ? t->c.shape.tol : t->s->wide_tol[backward];
    return tol > 0 ? tol : t->s->wide_tol[0];
}

/* The norm of the difference as a part of the norm; exact: whether any element differs. */
static double distance(const trial *t, const double *got, const double *want, int64_t n,
                       bool exact) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (t->s->nan && isnan(got[i]) && isnan(want[i])) continue;
        if (exact && memcmp(&got[i], &want[i], sizeof got[i])) return INFINITY;
        apart += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    if (exact) return 0;
    double d = size > 0 ? sqrt(apart / size) : sqrt(apart);
    return isnan(d) ? INFINITY : d;
}

static void compare_tensors(trial *t, const char *name, const tensor *got, const tensor *want,
                            double allowed, bool merged) {
    int64_t n = tensor_count(got);
    double *x = decode(got), *y = decode(want);
    if (merged) t->s->merge(x), t->s->merge(y);
    double d = distance(t, x, y, n, allowed == 0 || !dt_is_float(got->dt));
    note(t, name, d > 0 ? d / allowed : 0);
    if (!(d <= allowed))
        fail(t, "%s differs from the CPU's by %.2e, allowed %.0e", name, d, allowed);
    free(x);
    free(y);
}

static void compare_with_cpu(trial *t, const op_call *got, const op_call *want) {
    for (int i = 0; i < t->at->sig.outs; i++) {
        op_slot s = t->at->out[i];
        if (!got->out[i].data) continue;
        if (s.kind == 'o' && (t->s->private_out >> s.index & 1)) continue;
        compare_tensors(t, t->at->sig.out[i].name, &got->out[i], &want->out[i],
                        allowed_difference(t, want, want->out[i].dt),
                        t->at->forward && i == 0 && t->s->merge);
    }
    for (int i = 0; i < OP_MAX_IN; i++)
        if (written_operands(t) >> i & 1)
            compare_tensors(t, t->at->sig.in[i].name, &got->in[i], &want->in[i],
                            allowed_difference(t, want, want->in[i].dt), false);
}

static op_call run_on_cpu(trial *t, const op_call *from) {
    op_call c = call_copy(from);
    t->backend = harness.cpu[harness.cpus - 1];
    run(t, &c, (run_options){ 0 });
    t->backend = harness.device;
    return c;
}

/* The same operands, but for results of the backend's own forward. */
static op_call device_call(trial *t, const op_call *cpu) {
    op_call c = call_copy(cpu);
    for (int i = 0; i < t->at->sig.ins; i++)
        if (t->s->private_out && t->at->in[i].kind == 'o') {
            free(c.in[i].data);
            c.in[i] = operand_tensor(t, t->at->in[i]);
        }
    return c;
}

static void check_on_device(trial *t, const op_call *from, const op_call *want, run_options o,
                            const char *how) {
    op_call c = device_call(t, from);
    t->how = how;
    run(t, &c, o);
    compare_with_cpu(t, &c, want);
    if (t->at->forward && !o.shift && !o.in_place) keep_results(t, 1, &c);
    if (harness.deterministic) {
        op_call again = device_call(t, from);
        run(t, &again, o);
        expect_bits(t, &c, &again);
        call_free(&again);
    }
    t->how = "";
    call_free(&c);
}

/* @param set results to add to; 0: all are stored */
static void check_wide_run(trial *t, uint32_t set) {
    double *base[OP_MAX_OUT] = { 0 };
    t->backend = harness.cpu[harness.cpus - 1]; /* whose results a backward call takes */
    op_call from = call_make(t);
    t->backend = harness.device;
    if (set) fill_bases(&from, set, base);
    op_call want = run_on_cpu(t, &from);
    if (t->at->forward && !set) keep_results(t, 0, &want);
    check_on_device(t, &from, &want, (run_options){ 0 }, set ? "accumulating" : "");
    if (t->s->shift)
        check_on_device(t, &from, &want, (run_options){ .shift = t->s->shift },
                        set ? "accumulating, not aligned" : "not aligned");
    if (!set && may_run_in_place(t, &from))
        check_on_device(t, &from, &want, (run_options){ .in_place = true }, "in place");
    for (int i = 0; i < OP_MAX_OUT; i++) free(base[i]);
    call_free(&from);
    call_free(&want);
}

static void check_wide_call(trial *t) {
    uint32_t set = 0;
    for (int i = 0; i < t->at->sig.outs; i++) {
        op_slot s = t->at->out[i];
        bool present = s.kind && value_of(t, s)->v && !(t->absent_out >> i & 1);
        if (present && t->at->sig.out[i].accumulates) set |= 1u << i;
    }
    if (set && t->c.shape.adds_first) check_wide_run(t, set);
    check_wide_run(t, 0);
    if (set && !t->c.shape.adds_first) check_wide_run(t, set);
}

/* ---- choices of absent results ---------------------------------------------------------------------- */
static bool may_lack(const trial *t, uint32_t present) {
    if (!t->absent_out) return true;
    if (!(present & ~t->absent_out)) return false;
    if (!t->at->forward || !t->s->may_lack) return true;
    return t->s->may_lack(t->absent_in, t->absent_out);
}

static void check_call(trial *t, void (*check)(trial *t)) {
    uint32_t optional = 0, present = 0;
    for (int i = 0; i < t->at->sig.outs; i++) {
        op_slot s = t->at->out[i];
        if (!s.kind || !value_of(t, s)->v) continue;
        present |= 1u << i;
        if (t->at->sig.out[i].optional) optional |= 1u << i;
    }
    for (uint32_t absent = 0; absent <= optional && !failed(t); absent++) {
        t->absent_out = absent;
        if (!(absent & ~optional) && may_lack(t, present)) check(t);
    }
    t->absent_out = 0;
}

/* ---- trials ------------------------------------------------------------------------------------------- */
static uint32_t gradients_taken(const trial *t, bool optional_only) {
    uint32_t set = 0;
    for (int k = 0; k < t->calls; k++)
        for (int i = 0; i < t->call[k].sig.ins; i++)
            if (t->call[k].in[i].kind == 'g' && (!optional_only || t->call[k].sig.in[i].optional))
                set |= 1u << t->call[k].in[i].index;
    return set;
}

/* @return false when there is no such choice of absent operands */
static bool trial_make(trial *t, op_shape shape) {
    t->how = "";
    case_make(&t->c, t->s, t->m, shape);
    t->calls = case_bind(t->s, &t->c, t->call);
    t->at = t->call;
    if (t->absent_grad & ~gradients_taken(t, true)) return false;
    for (int i = 0; i < OP_MAX_IN; i++) {
        op_value *x = &t->c.in[i];
        if (t->s->writes && !strcmp(x->name, t->s->writes)) t->writes |= 1u << i;
        if (!(t->absent_in >> i & 1)) continue;
        if (!x->v || !x->optional) return false;
        drop_value(x);
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (gradients_taken(t, false) & ~t->absent_grad & 1u << i) case_give_gradient(&t->c, i);
        if (spec_in_out(t->s) && t->c.out[i].v)
            t->begin[i] = copy_values(t->c.out[i].v, t->c.out[i].count);
    }
    return true;
}

static bool wants_gradient(const trial *t, int input) {
    for (int k = 0; k < t->calls; k++)
        for (int i = 0; i < OP_MAX_OUT; i++)
            if (t->call[k].out[i].kind == 'd' && t->call[k].out[i].index == input) return true;
    return false;
}

static void make_wants(trial *t) {
    op_case *c = &t->c;
    double *before[OP_MAX_IN] = { 0 };
    for (int i = 0; i < OP_MAX_IN; i++)
        if (t->writes >> i & 1) before[i] = copy_values(c->in[i].v, c->in[i].count);
    t->s->reference(c);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        op_value *y = &c->out[i];
        if (!y->v) continue;
        t->want_out[i] = copy_values(y->v, y->count);
        t->made[0][i] = encode(y->v, y->dt, y->ndim, y->dim);
    }
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!before[i]) continue;
        t->want_in[i] = c->in[i].v;
        c->in[i].v = before[i];
    }
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->in[i].v && wants_gradient(t, i)) t->want_grad[i] = differences(t->s, c, i);
}

static void trial_free(trial *t) {
    case_free(&t->c);
    for (int i = 0; i < OP_MAX_IN; i++) {
        free(t->want_in[i]);
        free(t->want_grad[i].along);
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        free(t->begin[i]);
        free(t->want_out[i]);
        free(t->made[0][i].data);
        free(t->made[1][i].data);
    }
}

static void check_calls(trial *t, void (*check)(trial *t)) {
    for (int k = 0; k < t->calls; k++) {
        t->at = &t->call[k];
        check_call(t, check);
    }
}

static void small_trial(const op_spec *s, const op_mode *m, op_shape shape, uint32_t absent_in,
                        uint32_t absent_grad) {
    trial t = { .s = s, .m = m, .absent_in = absent_in, .absent_grad = absent_grad };
    if (trial_make(&t, shape)) {
        if (s->reference) make_wants(&t);
        for (int i = 0; i < (harness.device ? 1 : harness.cpus); i++) {
            t.backend = harness.device ? harness.device : harness.cpu[i];
            check_calls(&t, check_small_call);
        }
    }
    trial_free(&t);
}

static void wide_trial(const op_spec *s, const op_mode *m, op_shape shape, bool all) {
    trial t = { .s = s, .m = m, .wide = true, .backend = harness.device };
    op_signature sig = op_signature_of(s->op);
    trial dry = { .s = s, .m = m };
    if (!all) { /* all that may be absent is */
        trial_make(&dry, shape);
        for (int i = 0; i < sig.ins; i++)
            if (dry.c.in[i].v && dry.c.in[i].optional) t.absent_in |= 1u << i;
        t.absent_grad = gradients_taken(&dry, true);
    }
    trial_free(&dry);
    if ((all || t.absent_in || t.absent_grad) && trial_make(&t, shape) && !case_too_large(&t.c))
        check_calls(&t, check_wide_call);
    trial_free(&t);
}

static op_shape shape_variant(op_shape shape, int more) {
    shape.variant += more;
    return shape;
}

/* @return the results whose gradients may be absent: known from names alone, so that no case is made to learn that
 * a choice does not exist. */
static uint32_t optional_gradients(const op_spec *s, const op_mode *m) {
    trial dry = { .s = s, .m = m };
    trial_make(&dry, s->small[0]);
    uint32_t set = gradients_taken(&dry, true);
    trial_free(&dry);
    return set;
}

static void small_cases(const op_spec *s, const op_mode *m, bool every_absence) {
    op_signature sig = op_signature_of(s->op);
    uint32_t optional = 0, gradients = s->small[0].n ? optional_gradients(s, m) : 0;
    for (int i = 0; i < sig.ins; i++) optional |= sig.in[i].optional ? 1u << i : 0;
    for (int k = 0; k < SPEC_SMALL && s->small[k].n; k++)
        for (uint32_t in = 0; in <= optional; in++)
            for (uint32_t g = 0; g <= gradients && !(in & ~optional); g++) {
                if (g & ~gradients || ((in || g) && in != optional && !every_absence)) continue;
                for (int v = 0; v < MAX(s->variants, 1); v++)
                    small_trial(s, m, shape_variant(s->small[k], v), in, g);
            }
}

/* Without a reference, small cases too are compared with the CPU. */
static void wide_cases(const op_spec *s, int mode) {
    uint32_t usual = s->wide_modes ? s->wide_modes : s->modes ? s->modes : MODES_UNIFORM;
    const op_mode *m = &op_modes[mode];
    int modes = __builtin_popcount(usual), nth = __builtin_popcount(usual & ((1u << mode) - 1));
    for (int all = harness.few; all < 2; all++)
        for (int v = 0; v < MAX(s->variants, 1); v++) {
            for (int k = 0; k < SPEC_WIDE && s->wide[k].n; k++) {
                uint32_t own = s->wide[k].modes;
                if (harness.few && !own && k % modes != nth) continue;
                if ((own ? own : usual) >> mode & 1 && (all || !own)) /* special cases: once */
                    wide_trial(s, m, shape_variant(s->wide[k], v), all);
            }
            for (int k = 0; k < SPEC_SMALL && s->small[k].n && !s->reference; k++)
                if (usual >> mode & 1) wide_trial(s, m, shape_variant(s->small[k], v), all);
        }
}

void check_spec(const op_spec *s) {
    bool small = s->reference || !harness.device;
    uint32_t modes = s->modes ? s->modes : (1u << MODE_COUNT) - 1;
    /* a kernel for tensors of two types is the one for those of three */
    if (harness.few && (modes & MODE_ALL_THREE)) modes &= ~(uint32_t)MODE_BF16_F32;
    draw_from(spec_name(s), 0);
    for (int mode = 0; mode < MODE_COUNT; mode++)
        if (small && (modes >> mode & 1))
            small_cases(s, &op_modes[mode], !harness.few || !(modes & ((1u << mode) - 1)));
    draw_from(spec_name(s), harness.seed);
    for (int mode = 0; mode < MODE_COUNT && harness.device; mode++) wide_cases(s, mode);
}
