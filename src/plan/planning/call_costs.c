/* Holds what calls were measured to cost on a CPU, as entries of the catalogue, and the cost of a call by them.
 *
 * An entry has an op's terms, which fit all of its measured calls at once, and these calls themselves. Shapes matter beyond
 * what terms express: a GEMM with a short inner dim packs more than it multiplies, a small tensor is still in a cache, a
 * batch of few matrices leaves threads idle. So a call costs what the terms give, times the ratio of measured to fitted seconds
 * of the measured calls that are most like it. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "ops/op_table.h"

/* ---- the shape of a call ---------------------------------------------------------------------------- */
/* Keys and units of the terms, which are those of a shape too, in the catalogue. */
static const struct {
    const char *term;
    double unit, of_shape;
} call_terms[CALL_TERMS] = { { "us", 1e-6, 1 },
                             { "ps_flop", 1e-12, 1e6 },
                             { "ps_byte", 1e-12, 1e3 },
                             { "ps_exp", 1e-12, 1e3 } };

static void set_dims(const tensor *x, double dim[2]) {
    dim[0] = x->dt != DT_NONE && x->ndim ? (double)x->dim[0] : 1;
    dim[1] = x->dt != DT_NONE ? (double)tensor_count(x) / dim[0] : 1;
}

call_shape call_shape_of(const op_call *c) {
    op_work w = ops_work(c);
    call_shape s = { .work = { 1, w.flops, w.bytes, w.exps } };
    set_dims(&c->in[0], &s.dim[0]);
    set_dims(&c->out[0], &s.dim[2]);
    s.dim[4] = MAX(1, c->attr.heads.dim);
    return s;
}

static double fitted_seconds(const call_cost *m, const call_shape *s, double share) {
    double seconds = 0;
    for (int t = 1; t < CALL_TERMS; t++) seconds += m->term[t] * s->work[t];
    return m->term[0] + seconds / share;
}

/* @return the square of the distance of two shapes, in factors of two. */
static double distance_of(const call_shape *a, const call_shape *b) {
    double sum = 0;
    for (int t = 1; t < CALL_TERMS; t++) {
        double d = log2((a->work[t] + 1) / (b->work[t] + 1));
        sum += d * d;
    }
    for (int k = 0; k < CALL_DIMS; k++) {
        double d = log2(a->dim[k] / b->dim[k]);
        sum += d * d;
    }
    return sum;
}

double call_cost_seconds(const call_cost *m, const call_shape *s, double share) {
    /* measured calls count by 1 / (d^2 + near)^2, the terms alone as a call at the distance `far` */
    static const double near = 0.25, far = 64;
    double weights = 1 / ((far + near) * (far + near)), sum = 0;
    for (int i = 0; i < m->n; i++) {
        double d = distance_of(s, &m->measured[i].shape) + near;
        double ratio = m->measured[i].seconds / fitted_seconds(m, &m->measured[i].shape, 1);
        sum += log(ratio) / (d * d);
        weights += 1 / (d * d);
    }
    return fitted_seconds(m, s, share) * exp(sum / weights);
}

const call_cost *call_cost_find(const accelerator *a, op_code op, dtype type) {
    for (int i = 0; i < a->n_calls; i++)
        if (a->calls[i].op == op && a->calls[i].type == type) return &a->calls[i];
    return NULL;
}

double sorted_median(double *v, int n) {
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    return n ? v[n / 2] : NAN;
}

/* The median time per unit of work of the measured calls that have such work and no work of a term before it.
 * @param kind NULL: of any class of cost */
static double unit_seconds(const accelerator *a, dtype type, int term, const op_cost *kind) {
    int most = 0, n = 0;
    for (int i = 0; i < a->n_calls; i++) most += a->calls[i].n;
    double *each = mem_alloc((size_t)(most + 1) * sizeof *each);
    for (int i = 0; i < a->n_calls; i++) {
        const call_cost *m = &a->calls[i];
        if (m->type != type || (kind && op_row_of(m->op)->cost != *kind)) continue;
        for (int k = 0; k < m->n; k++) {
            const double *work = m->measured[k].shape.work;
            if (work[term] > 0 && (term == 1 || work[1] == 0))
                each[n++] = m->measured[k].seconds / work[term];
        }
    }
    double median = sorted_median(each, n);
    free(each);
    return median;
}

double call_cost_of_kind(const accelerator *a, const op_call *c, dtype type, double share) {
    op_work w = ops_work(c);
    op_cost kind = op_row_of(c->op)->cost;
    int term = w.flops > 0 ? 1 : 2;
    double seconds = unit_seconds(a, type, term, &kind);
    if (isnan(seconds)) seconds = unit_seconds(a, type, term, NULL);
    return seconds * (term == 1 ? w.flops : w.bytes) / share;
}

/* ---- in the catalogue ----------------------------------------------------------------------------- */
void call_costs_free(accelerator *a) {
    for (int i = 0; i < a->n_calls; i++) free(a->calls[i].measured);
    free(a->calls);
    a->calls = NULL;
    a->n_calls = 0;
}

call_cost *call_costs_add(accelerator *a) {
    a->calls = mem_grow(a->calls, (size_t)(a->n_calls + 1) * sizeof *a->calls);
    a->calls[a->n_calls] = (call_cost){ 0 };
    return &a->calls[a->n_calls++];
}

void call_cost_print(const call_cost *c, str *out) {
    str_add(out, "{op: %s, type: %s", op_name(c->op), dt_name(c->type));
    for (int t = 0; t < CALL_TERMS; t++)
        if (c->term[t] > 0)
            str_add(out, ", %s: %.4g", call_terms[t].term, c->term[t] / call_terms[t].unit);
    for (int i = 0; i < c->n; i++) {
        const call_shape *s = &c->measured[i].shape;
        for (int k = 0; k < CALL_DIMS; k++)
            str_add(out, "%s%.9g", k ? ", " : i ? ", [" : ", measured: [[", s->dim[k]);
        for (int t = 1; t < CALL_TERMS; t++)
            str_add(out, ", %.5g", s->work[t] / call_terms[t].of_shape);
        str_add(out, ", %.4g]", c->measured[i].seconds * 1e6);
    }
    str_add(out, "%s}", c->n ? "]" : "");
}

/* Reads dims, MFLOP, KB, thousands of exponentials, us. */
static err read_measured_call(const json_t *list, const char *where, measured_call *out) {
    enum { NUMBERS = CALL_DIMS + CALL_TERMS };
    double v[NUMBERS];
    bool good = json_is_array(list) && json_array_size(list) == NUMBERS;
    for (int i = 0; good && i < NUMBERS; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        bool work = i >= CALL_DIMS && i < NUMBERS - 1; /* a call may have none */
        v[i] = json_number_value(x);
        good = json_is_number(x) && v[i] < 1e15 && (work ? v[i] >= 0 : v[i] > 0);
    }
    if (!good)
        return err_hint(
            ERR("%s: calls: measured: expected lists of %d numbers: dims and time above 0", where,
                NUMBERS),
            "write the file again: ingot doctor --calibrate");
    *out = (measured_call){ .shape = { .work = { 1 } }, .seconds = v[NUMBERS - 1] * 1e-6 };
    memcpy(out->shape.dim, v, sizeof out->shape.dim);
    for (int t = 1; t < CALL_TERMS; t++)
        out->shape.work[t] = v[CALL_DIMS + t - 1] * call_terms[t].of_shape;
    return OK;
}

static err read_call_cost(const json_t *o, const char *where, call_cost *out) {
    const char *op, *type;
    json_t *list = NULL;
    TRY(io_json_text(o, where, "op", &op));
    TRY(io_json_text(o, where, "type", &type));
    out->op = OP_NONE + 1;
    while (out->op < OP_COUNT && strcmp(op_name(out->op), op) != 0) out->op++;
    if (out->op == OP_COUNT)
        return err_hint(ERR("%s: calls: unknown op \"%.40s\"", where, op),
                        "write the file again: ingot doctor --calibrate");
    out->type = dt_from_name(type);
    if (out->type == DT_NONE)
        return err_hint(ERR("%s: calls: unknown type \"%.20s\"", where, type), "fp32 or bf16");
    bool any = false;
    for (int t = 0; t < CALL_TERMS; t++) {
        const char *key = call_terms[t].term;
        if (!json_object_get(o, key)) continue;
        TRY(read_hardware_number(o, where, key, call_terms[t].unit, &out->term[t]));
        any = true;
    }
    if (!json_object_get(o, "measured")) return OK;
    if (!any)
        return err_hint(ERR("%s: calls: %s has measured calls and no term", where, op),
                        "write the file again: ingot doctor --calibrate");
    TRY(io_json_array(o, where, "measured", &list));
    out->measured = mem_alloc((json_array_size(list) + 1) * sizeof *out->measured);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_measured_call(json_array_get(list, i), where, &out->measured[out->n++]));
    return OK;
}

err call_costs_read(const json_t *o, const char *where, accelerator *a) {
    json_t *list = NULL;
    if (!json_object_get(o, "calls")) return OK;
    TRY(io_json_array(o, where, "calls", &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_call_cost(json_array_get(list, i), where, call_costs_add(a)));
    return OK;
}
