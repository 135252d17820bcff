/* GELU (tanh and erf forms), SwiGLU and squared ReLU. Each but the last is x s(x), with s a function that rises from 0 to 1: the
 * logistic function of x (SiLU) or of a cubic in x (GELU, tanh form), or the normal distribution's Phi
 * (GELU, erf form). Bytes moved: each operand once.
 *
 * They are limited by the exponential inside s. There are only 65,536 bf16 numbers, so with vectors of
 * four lanes bf16 operands look values up in tables made by the fp32 code, in a quarter of the time; wider
 * vectors compute them faster than they would gather them.
 *
 * Loops run over whole units, and what is left of a row goes through a padded unit and the same code:
 * compilers may round the scalar rest of a loop differently from its vectors, and a value must not
 * depend on its position in a row. */
#include "bandwidth.h"

#include <pthread.h>
#include <string.h>

#include "ops/op_table.h"

enum { BY_TABLE = VEC == 4, BF16_NUMBERS = 1 << 16 };

/* ---- s(x) and its slope ---------------------------------------------------------------------- */
typedef enum { GATE_TANH, GATE_ERF, GATE_SILU } gate_kind;

static const float LOG2E = 1.44269504f;
/* The tanh form: s is the logistic function of x (a + b x^2), a = 2 sqrt(2 / pi), b = 0.044715 a. */
static const float GELU_A = 1.5957691216f, GELU_B = 0.0713548163f;

/* e^(-x^2 / 2) / 2, and Phi(x) from it: erfc(z) = e^(-z^2) t P(t) with t = 1 / (1 + 0.4 z). */
LOOP_INLINE vf half_bell(vf x) { return vec_exp2(x * x * (-0.5f * LOG2E)) * 0.5f; }
LOOP_INLINE vf normal_cdf(vf x, vf half) {
    vf t = 1.0f / ((vf)((vu)x & 0x7fffffffu) * (0.4f * 0.70710678f) + 1.0f);
    vf p = t * 0.0373838343f - 0.1218346641f;
    p = p * t + 0.04653391123f;
    p = p * t + 0.1298883996f;
    p = p * t + 0.0514787241f;
    p = p * t + 0.2051311558f;
    p = p * t + 0.1989660527f;
    p = p * t + 0.2268410884f;
    p = p * t + 0.2256115327f;
    vf tail = half * (t * p);
    return vec_select(x < 0, tail, 1.0f - tail);
}

LOOP_INLINE vf gate_value(gate_kind k, vf x) {
    switch (k) {
    case GATE_TANH: return vec_logistic2(x * (x * x * -(LOG2E * GELU_B) - LOG2E * GELU_A));
    case GATE_SILU: return vec_logistic2(x * -LOG2E);
    case GATE_ERF: break;
    }
    return normal_cdf(x, half_bell(x));
}

/* d(x s) / dx = s + x s', where s' is s (1 - s) times the slope of s's argument, or the normal density. */
LOOP_INLINE vf gelu_slope(gate_kind k, vf x) {
    if (k == GATE_ERF) {
        vf half = half_bell(x);
        return normal_cdf(x, half) + x * (half * 0.7978845608f);
    }
    vf s = gate_value(k, x);
    return s + x * s * (1.0f - s) * (x * x * (3 * GELU_B) + GELU_A);
}

/* SiLU and its slope. */
typedef struct silu_pair {
    vf value, slope;
} silu_pair;
LOOP_INLINE silu_pair silu_at(vf x) {
    vf s = gate_value(GATE_SILU, x), value = x * s;
    return (silu_pair){ value, s + value * (1.0f - s) };
}

/* ---- tables over all bf16 numbers --------------------------------------------------------------- */
typedef enum {
    GELU_TANH,
    GELU_TANH_SLOPE,
    GELU_ERF,
    GELU_ERF_SLOPE,
    GELU_TABLES,
    RELU2 = GELU_TABLES, /* from here on values are computed: a gather would take longer */
    RELU2_SLOPE,
    SILU /* a gate alone; its table has the slope beside the value */
} gelu_kind;
#define SLOPE_OF(k) ((gelu_kind)((k) + 1))

LOOP_INLINE vf positive_part(vf x) { return vec_select(x < 0, (vf){ 0 }, x); } /* NaN stays NaN */

LOOP_INLINE vf gelu_at(gelu_kind k, vf x) {
    switch (k) {
    case GELU_TANH: return x * gate_value(GATE_TANH, x);
    case GELU_TANH_SLOPE: return gelu_slope(GATE_TANH, x);
    case GELU_ERF: return x * gate_value(GATE_ERF, x);
    case RELU2: return positive_part(x) * positive_part(x);
    case RELU2_SLOPE: return positive_part(x) * 2.0f;
    case GELU_ERF_SLOPE:
    case SILU: break;
    }
    return gelu_slope(GATE_ERF, x);
}

/* Constants once they are made, by the first call that needs them. */
static float gelu_tables[GELU_TABLES][BF16_NUMBERS], silu_table[BF16_NUMBERS][2];

LOOP_INLINE vf bf16_numbers(int first) {
    uint16_t code[VEC];
    for (int i = 0; i < VEC; i++) code[i] = (uint16_t)(first + i);
    return vec_load(DT_BF16, code, 0);
}
LOOP_INLINE void make_gelu(gelu_kind k) {
    for (int i = 0; i < BF16_NUMBERS; i += VEC)
        vec_store(DT_F32, gelu_tables[k], i, gelu_at(k, bf16_numbers(i)));
}
static void make_gelu_tanh(void) { make_gelu(GELU_TANH); }
static void make_gelu_tanh_slope(void) { make_gelu(GELU_TANH_SLOPE); }
static void make_gelu_erf(void) { make_gelu(GELU_ERF); }
static void make_gelu_erf_slope(void) { make_gelu(GELU_ERF_SLOPE); }
static void make_silu(void) {
    for (int i = 0; i < BF16_NUMBERS; i += VEC) {
        silu_pair p = silu_at(bf16_numbers(i));
        for (int l = 0; l < VEC; l++) {
            silu_table[i + l][0] = p.value[l];
            silu_table[i + l][1] = p.slope[l];
        }
    }
}

/* @return NULL for fp32, where the values are computed, and for SiLU, whose table is made. */
LOOP_INLINE const float *gelu_table(dtype t, gelu_kind k) {
    static pthread_once_t once[GELU_TABLES] = { PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT,
                                                PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT };
    static pthread_once_t silu_once = PTHREAD_ONCE_INIT;
    static void (*const make[])(void) = { make_gelu_tanh, make_gelu_tanh_slope, make_gelu_erf,
                                          make_gelu_erf_slope };
    if (!BY_TABLE || t != DT_BF16) return NULL;
    if (k == SILU) pthread_once(&silu_once, make_silu);
    if (k >= GELU_TABLES) return NULL;
    pthread_once(&once[k], make[k]);
    return gelu_tables[k];
}

/* ---- loops over whole units of one type --------------------------------------------------------
 * in: x; dy, x; g, u; dy, g, u. out: y; dx; y; dg, du and, where it is wanted, y. Results may take the
 * place of operands. t and k are constant after inlining. */
typedef void (*unit_loop)(const char *const *in, char *const *out, int64_t n);

LOOP_INLINE void unit_gelu(dtype t, gelu_kind k, const float *table, const char *p, int64_t at,
                           vf *out) {
    if (BY_TABLE && t == DT_BF16 && k < GELU_TABLES) {
        UNIT_EACH out[i] = vec_gather(table, (const uint16_t *)p + at + i * VEC);
    } else {
        unit_load(t, p, at, out);
        UNIT_EACH out[i] = gelu_at(k, out[i]);
    }
}
LOOP_INLINE void unit_silu(dtype t, const char *p, int64_t at, silu_pair *out) {
    if (BY_TABLE && t == DT_BF16) {
        UNIT_EACH vec_gather_pairs(silu_table, (const uint16_t *)p + at + i * VEC, &out[i].value,
                                   &out[i].slope);
    } else {
        vf g[UNIT_VECS];
        unit_load(t, p, at, g);
        UNIT_EACH out[i] = silu_at(g[i]);
    }
}

LOOP_INLINE void gelu_units(dtype t, gelu_kind k, const char *const *in, char *const *out,
                            int64_t n) {
    const float *table = gelu_table(t, k);
    for (int64_t at = 0; at < n; at += UNIT) {
        vf y[UNIT_VECS];
        unit_gelu(t, k, table, in[0], at, y);
        unit_store(t, out[0], at, y);
    }
}

LOOP_INLINE void gelu_bwd_units(dtype t, gelu_kind k, const char *const *in, char *const *out,
                                int64_t n) {
    const float *table = gelu_table(t, k);
    for (int64_t at = 0; at < n; at += UNIT) {
        vf dy[UNIT_VECS], slope[UNIT_VECS];
        unit_load(t, in[0], at, dy);
        unit_gelu(t, k, table, in[1], at, slope);
        UNIT_EACH dy[i] *= slope[i];
        unit_store(t, out[0], at, dy);
    }
}

/* The value of a gate and, where it is not NULL, its slope. */
LOOP_INLINE void unit_gate(dtype t, gelu_kind k, const float *table, const float *slopes,
                           const char *p, int64_t at, vf *value, vf *slope) {
    if (k == SILU) {
        silu_pair silu[UNIT_VECS];
        unit_silu(t, p, at, silu);
        UNIT_EACH value[i] = silu[i].value;
        if (slope) UNIT_EACH slope[i] = silu[i].slope;
    } else {
        unit_gelu(t, k, table, p, at, value);
        if (slope) unit_gelu(t, SLOPE_OF(k), slopes, p, at, slope);
    }
}

LOOP_INLINE void gated_units(dtype t, gelu_kind k, const char *const *in, char *const *out,
                             int64_t n) {
    const float *table = gelu_table(t, k);
    for (int64_t at = 0; at < n; at += UNIT) {
        vf gate[UNIT_VECS], u[UNIT_VECS];
        unit_gate(t, k, table, NULL, in[0], at, gate, NULL);
        unit_load(t, in[1], at, u);
        UNIT_EACH u[i] *= gate[i];
        unit_store(t, out[0], at, u);
    }
}

/* y too, where asked: forward's to the bit, since both multiply the table's value by u. */
LOOP_INLINE void gated_bwd_units(dtype t, gelu_kind k, bool also_y, const char *const *in,
                                 char *const *out, int64_t n) {
    const float *table = gelu_table(t, k), *slopes = gelu_table(t, SLOPE_OF(k));
    for (int64_t at = 0; at < n; at += UNIT) {
        vf dy[UNIT_VECS], u[UNIT_VECS], y[UNIT_VECS], gate[UNIT_VECS], slope[UNIT_VECS];
        unit_load(t, in[0], at, dy);
        unit_gate(t, k, table, slopes, in[1], at, gate, slope);
        unit_load(t, in[2], at, u);
        UNIT_EACH {
            y[i] = u[i] * gate[i];
            u[i] *= dy[i] * slope[i];
            dy[i] *= gate[i];
        }
        unit_store(t, out[0], at, u);
        unit_store(t, out[1], at, dy);
        if (also_y) unit_store(t, out[2], at, y);
    }
}

#define UNIT_LOOP(name, call)                                                                      \
    static __attribute__((noinline)) void name(const char *const *in, char *const *out,            \
                                               int64_t n) {                                        \
        call;                                                                                      \
    }
/* The loops of a gate, and of an activation. */
#define GATE_LOOPS(name, kind)                                                                     \
    UNIT_LOOP(name##_gate_f32, gated_units(DT_F32, kind, in, out, n))                              \
    UNIT_LOOP(name##_gate_bf16, gated_units(DT_BF16, kind, in, out, n))                            \
    UNIT_LOOP(name##_gate_bwd_f32, gated_bwd_units(DT_F32, kind, false, in, out, n))               \
    UNIT_LOOP(name##_gate_bwd_bf16, gated_bwd_units(DT_BF16, kind, false, in, out, n))
#define ACT_LOOPS(name, kind)                                                                      \
    UNIT_LOOP(name##_f32, gelu_units(DT_F32, kind, in, out, n))                                    \
    UNIT_LOOP(name##_bf16, gelu_units(DT_BF16, kind, in, out, n))                                  \
    UNIT_LOOP(name##_bwd_f32, gelu_bwd_units(DT_F32, SLOPE_OF(kind), in, out, n))                  \
    UNIT_LOOP(name##_bwd_bf16, gelu_bwd_units(DT_BF16, SLOPE_OF(kind), in, out, n))                \
    GATE_LOOPS(name, kind)
ACT_LOOPS(gelu_tanh, GELU_TANH)
ACT_LOOPS(gelu_erf, GELU_ERF)
ACT_LOOPS(relu2, RELU2)
GATE_LOOPS(silu, SILU)
UNIT_LOOP(silu_gate_bwd_y_bf16, gated_bwd_units(DT_BF16, SILU, true, in, out, n))

/* ---- elements of tensors ----------------------------------------------------------------------- */
enum { MOST_IN = 3, MOST_OUT = 3 };

typedef struct act_loops {
    unit_loop f32, bf16;
    int ins, outs;
} act_loops;
#define ACT_ROW(name)                                                                              \
    {                                                                                              \
        { name##_f32, name##_bf16, 1, 1 }, { name##_bwd_f32, name##_bwd_bf16, 2, 1 },              \
            { name##_gate_f32, name##_gate_bf16, 2, 1 }, {                                         \
            name##_gate_bwd_f32, name##_gate_bwd_bf16, 3, 2                                        \
        }                                                                                          \
    }
static const struct {
    act_loops fwd, bwd, gate, gate_bwd;
} acts[] = { [ACT_GELU_TANH] = ACT_ROW(gelu_tanh),
             [ACT_GELU_ERF] = ACT_ROW(gelu_erf),
             [ACT_RELU2] = ACT_ROW(relu2) };
static const act_loops swiglu_fwd = { silu_gate_f32, silu_gate_bf16, 2, 1 };
static const act_loops swiglu_bwd = { silu_gate_bwd_f32, silu_gate_bwd_bf16, 3, 2 };
static const act_loops swiglu_bwd_y = { NULL, silu_gate_bwd_y_bf16, 3, 3 };

/* n elements of one type, fp32 or bf16. */
static void run_loop(const act_loops *l, dtype t, const char *const *in, char *const *out,
                     int64_t n) {
    unit_loop loop = t == DT_F32 ? l->f32 : l->bf16;
    int64_t whole = n / UNIT * UNIT;
    size_t size = elem_size(t), done = (size_t)whole * size, left = (size_t)(n - whole) * size;
    if (whole) loop(in, out, whole);
    if (!left) return;
    float rest[MOST_IN + MOST_OUT][UNIT] = { 0 };
    const char *rest_in[MOST_IN];
    char *rest_out[MOST_OUT];
    for (int i = 0; i < l->ins; i++) {
        rest_in[i] = memcpy(rest[i], in[i] + done, left);
    }
    for (int i = 0; i < l->outs; i++) rest_out[i] = (char *)rest[MOST_IN + i];
    loop(rest_in, rest_out, UNIT);
    for (int i = 0; i < l->outs; i++) memcpy(out[i] + done, rest_out[i], left);
}

/* A slice of a tensor: n elements from `at` on. */
typedef struct slice {
    const tensor *t;
    int64_t at;
} slice;

static char *slice_data(const slice *s) {
    return (char *)s->t->data + (size_t)s->at * dt_size(s->t->dt);
}

static bool all_of_type(dtype t, const act_loops *l, const slice *in, const slice *out) {
    for (int i = 0; i < l->ins; i++)
        if (in[i].t->dt != t) return false;
    for (int i = 0; i < l->outs; i++)
        if (out[i].t->dt != t) return false;
    return true;
}

/* Other types, and mixtures, pass through blocks of fp32. */
static void run_blocks(const act_loops *l, const slice *in, const slice *out, int64_t n) {
    float in_tmp[MOST_IN][BLOCK], out_tmp[MOST_OUT][BLOCK];
    const char *from[MOST_IN];
    char *to[MOST_OUT];
    for (int64_t done = 0; done < n; done += BLOCK) {
        int64_t m = MIN(BLOCK, n - done);
        for (int i = 0; i < l->ins; i++)
            from[i] = (const char *)elems_get(in[i].t, in[i].at + done, m, in_tmp[i]);
        for (int i = 0; i < l->outs; i++)
            to[i] = (char *)elems_at(out[i].t, out[i].at + done, out_tmp[i]);
        run_loop(l, DT_F32, from, to, m);
        for (int i = 0; i < l->outs; i++)
            elems_put(out[i].t, out[i].at + done, m, (const float *)to[i]);
    }
}

static void run_slices(const act_loops *l, const slice *in, const slice *out, int64_t n) {
    const char *from[MOST_IN];
    char *to[MOST_OUT];
    dtype t = in[0].t->dt;
    if ((t != DT_F32 && t != DT_BF16) || !all_of_type(t, l, in, out)) {
        run_blocks(l, in, out, n);
        return;
    }
    for (int i = 0; i < l->ins; i++) from[i] = slice_data(&in[i]);
    for (int i = 0; i < l->outs; i++) to[i] = slice_data(&out[i]);
    run_loop(l, t, from, to, n);
}

/* ---- ops --------------------------------------------------------------------------------------- */
void CPU(gelu_values)(act_kind act, dtype t, const void *x, void *y, int64_t n) {
    const char *in[] = { x };
    char *out[] = { y };
    run_loop(&acts[act].fwd, t, in, out, n);
}

static void gelu_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    span e = span_of(i, TASK_ELEMENTS, tensor_count(&c->in[0]));
    const slice in[] = { { &c->in[0], e.lo } }, out[] = { { &c->out[0], e.lo } };
    run_slices(&acts[c->attr.act].fwd, in, out, e.hi - e.lo);
}

static void gelu_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    span e = span_of(i, TASK_ELEMENTS, tensor_count(&c->in[1]));
    const slice in[] = { { &c->in[0], e.lo }, { &c->in[1], e.lo } };
    const slice out[] = { { &c->out[0], e.lo } };
    run_slices(&acts[c->attr.act].bwd, in, out, e.hi - e.lo);
}

void CPU(gelu)(const op_call *c) {
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), TASK_ELEMENTS), gelu_task, (void *)c);
}
void CPU(gelu_bwd)(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]);
    pool_run(c->run->pool, ceil_div(n, TASK_ELEMENTS), gelu_bwd_task, (void *)c);
}

/* A row of the fused operand is g | u. */
static void swiglu_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *gu = &c->in[0], *y = &c->out[0];
    const act_loops *gate = c->op == OP_GEGLU ? &acts[c->attr.act].gate : &swiglu_fwd;
    int64_t f = y->dim[1];
    span rows = span_of(i, rows_per_task(f), y->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const slice in[] = { { gu, row * 2 * f }, { gu, row * 2 * f + f } };
        const slice out[] = { { y, row * f } };
        run_slices(gate, in, out, f);
    }
}

static void swiglu_bwd_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *dy = &c->in[0], *gu = &c->in[1], *dgu = &c->out[0], *y = &c->out[1];
    int64_t f = dy->dim[1];
    span rows = span_of(i, rows_per_task(f), dy->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        int64_t g = row * 2 * f;
        const slice in[] = { { dy, row * f }, { gu, g }, { gu, g + f } };
        const slice out[] = { { dgu, g }, { dgu, g + f }, { y, row * f } };
        if (c->op == OP_GEGLU_BWD) {
            run_slices(&acts[c->attr.act].gate_bwd, in, out, f);
        } else if (!y->data) {
            run_slices(&swiglu_bwd, in, out, f);
        } else if (BY_TABLE && all_of_type(DT_BF16, &swiglu_bwd_y, in, out)) {
            run_slices(&swiglu_bwd_y, in, out, f);
        } else { /* y by forward's code, which other code would round differently */
            run_slices(&swiglu_fwd, in + 1, out + 2, f);
            run_slices(&swiglu_bwd, in, out, f);
        }
    }
}

void CPU(swiglu)(const op_call *c) {
    const tensor *y = &c->out[0];
    BUG_IF(c->in[0].dim[1] != 2 * y->dim[1]);
    pool_run(c->run->pool, ceil_div(y->dim[0], rows_per_task(y->dim[1])), swiglu_task, (void *)c);
}
void CPU(swiglu_bwd)(const op_call *c) {
    const tensor *dy = &c->in[0];
    BUG_IF(c->in[1].dim[1] != 2 * dy->dim[1]);
    int64_t tasks = ceil_div(dy->dim[0], rows_per_task(dy->dim[1]));
    pool_run(c->run->pool, tasks, swiglu_bwd_task, (void *)c);
}

KERNEL(GELU, CPU(gelu), NULL, ATTR(ACT));
KERNEL(GELU_BWD, CPU(gelu_bwd), NULL, ATTR(ACT));
KERNEL(SWIGLU, CPU(swiglu));
KERNEL(SWIGLU_BWD, CPU(swiglu_bwd));
KERNEL(GEGLU, CPU(swiglu), NULL, ATTR(ACT));
KERNEL(GEGLU_BWD, CPU(swiglu_bwd), NULL, ATTR(ACT));
