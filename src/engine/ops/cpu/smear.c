/* A share of the previous token's row, through a gate of the token's first channels:
 *
 *     y_t = x_t + s g_t p_t,   g_t = sigmoid(w . x_t)       p_t: the row before; y_t = x_t at position 0
 *     dz_t = s g_t (1 - g_t) (dy_t . p_t)
 *     dx_t = dy_t + dz_t w,   dp_t = s g_t dy_t,   dw = the sum of dz_t x_t,   ds = the sum of g_t (dy_t . p_t)
 *
 * The rows before are x_{t-1}, so that dp_{t+1} is added to dx_t, unless the caller has them elsewhere. A task has a run of
 * rows; the sums over fixed runs are added in order: deterministic for any number of threads. */
#include "bandwidth.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <string.h>

enum { SMEAR_RUNS = 64, MOST_GATE = 32 };

typedef struct smear_job {
    const op_call *c;
    const tensor *x, *prev; /* [N, D] */
    const int32_t *pos;     /* [N] */
    const float *w, *s;     /* [G], [1] */
    int64_t n, d, gate, each;
    float *partial; /* [SMEAR_RUNS, G + 1] */
} smear_job;

/* @param first of the operands x, prev, pos, w and s in the call */
static smear_job smear_job_of(const op_call *c, int first) {
    const tensor *in = c->in + first;
    BUG_IF(in[3].dim[0] > MOST_GATE || in[3].dim[0] > in[0].dim[1]);
    return (smear_job){ .c = c,
                        .x = &in[0],
                        .prev = &in[1],
                        .pos = in[2].data,
                        .w = in[3].data,
                        .s = in[4].data,
                        .n = in[0].dim[0],
                        .d = in[0].dim[1],
                        .gate = in[3].dim[0],
                        .each = rows_per_task(in[0].dim[1]) };
}

/* Whether a token has a previous one. */
static bool smears(const smear_job *j, int64_t row) {
    return row < j->n && j->pos[row] != 0 && (j->prev->data || row > 0);
}
static const float *gate_input(const smear_job *j, int64_t row, float *tmp) {
    return elems_get(j->x, row * j->d, j->gate, tmp);
}
static float smear_gate(const smear_job *j, int64_t row) {
    float tmp[MOST_GATE], z = 0;
    const float *x = gate_input(j, row, tmp);
    for (int64_t k = 0; k < j->gate; k++) z += j->w[k] * x[k];
    return 1 / (1 + vm_exp(-z));
}
/* @return elements [k, k + m) of the row before. */
static const float *previous_row(const smear_job *j, int64_t row, int64_t k, int64_t m,
                                 float *tmp) {
    return j->prev->data ? elems_get(j->prev, row * j->d + k, m, tmp)
                         : elems_get(j->x, (row - 1) * j->d + k, m, tmp);
}

static void smear_task(void *ctx, int64_t i, int worker) {
    const smear_job *j = ctx;
    const tensor *y = &j->c->out[0];
    float x_tmp[BLOCK], p_tmp[BLOCK], out[BLOCK];
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        float by = smears(j, row) ? *j->s * smear_gate(j, row) : 0;
        if (!smears(j, row)) elems_copy(j->x, row * j->d, y, row * j->d, j->d);
        for (int64_t k = 0; smears(j, row) && k < j->d; k += BLOCK) {
            int64_t m = MIN(BLOCK, j->d - k), at = row * j->d + k;
            const float *x = elems_get(j->x, at, m, x_tmp), *p = previous_row(j, row, k, m, p_tmp);
            float *to = elems_at(y, at, out);
#pragma omp simd
            for (int64_t e = 0; e < m; e++) to[e] = x[e] + by * p[e];
            elems_put(y, at, m, to);
        }
    }
}

static void CPU(smear)(const op_call *c) {
    smear_job j = smear_job_of(c, 0);
    pool_run(c->run->pool, ceil_div(j.n, j.each), smear_task, &j);
}

static float dot_with_previous(const smear_job *j, int64_t row) {
    float g_tmp[BLOCK], p_tmp[BLOCK];
    double sum = 0;
    for (int64_t k = 0; k < j->d; k += BLOCK) {
        int64_t m = MIN(BLOCK, j->d - k);
        const float *g = elems_get(&j->c->in[0], row * j->d + k, m, g_tmp);
        const float *p = previous_row(j, row, k, m, p_tmp);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t e = 0; e < m; e++) part += g[e] * p[e];
        sum += (double)part;
    }
    return (float)sum;
}

/* Writes dx of a row. @param dz the gradient of the input of its gate */
static void put_smear_dx(const smear_job *j, int64_t row, float dz) {
    const tensor *dy = &j->c->in[0], *dx = &j->c->out[0];
    float g_tmp[BLOCK], n_tmp[BLOCK], out[BLOCK];
    bool read = !j->prev->data && smears(j, row + 1); /* by the next row */
    float by = read ? *j->s * smear_gate(j, row + 1) : 0;
    for (int64_t k = 0; k < j->d; k += BLOCK) {
        int64_t m = MIN(BLOCK, j->d - k), at = row * j->d + k;
        const float *g = elems_get(dy, at, m, g_tmp);
        const float *next = read ? elems_get(dy, at + j->d, m, n_tmp) : NULL;
        for (int64_t e = 0; e < m; e++) out[e] = g[e] + (next ? by * next[e] : 0);
        for (int64_t e = 0; k == 0 && e < j->gate; e++) out[e] += dz * j->w[e];
        elems_put(dx, at, m, out);
    }
}

/* Writes dp of a row, where the rows before have memory of their own. */
static void put_previous_gradient(const smear_job *j, int64_t row, float by) {
    const tensor *to = &j->c->out[1];
    float tmp[BLOCK], out[BLOCK];
    for (int64_t k = 0; to->data && k < j->d; k += BLOCK) {
        int64_t m = MIN(BLOCK, j->d - k);
        const float *g = elems_get(&j->c->in[0], row * j->d + k, m, tmp);
        for (int64_t e = 0; e < m; e++) out[e] = by * g[e];
        elems_put(to, row * j->d + k, m, out);
    }
}

static void smear_bwd_task(void *ctx, int64_t i, int worker) {
    const smear_job *j = ctx;
    float *sums = j->partial + i * (j->gate + 1), tmp[MOST_GATE];
    span rows = span_of(i, j->each, j->n);
    memset(sums, 0, (size_t)(j->gate + 1) * sizeof *sums);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        float g = 0, dz = 0;
        if (smears(j, row)) {
            float dot = dot_with_previous(j, row);
            const float *x = gate_input(j, row, tmp);
            g = smear_gate(j, row);
            dz = *j->s * g * (1 - g) * dot;
            for (int64_t k = 0; k < j->gate; k++) sums[k] += dz * x[k];
            sums[j->gate] += g * dot;
        }
        put_previous_gradient(j, row, *j->s * g);
        if (j->c->out[0].data) put_smear_dx(j, row, dz);
    }
}

static void CPU(smear_bwd)(const op_call *c) {
    smear_job j = smear_job_of(c, 1);
    j.each = ceil_div(j.n, SMEAR_RUNS);
    j.partial = c->run->workspace;
    int64_t runs = ceil_div(j.n, j.each);
    pool_run(c->run->pool, runs, smear_bwd_task, &j);
    for (int64_t k = 0; k <= j.gate; k++) {
        int out = k < j.gate ? 2 : 3;
        float *to = c->out[out].data;
        if (!to) continue;
        to += k < j.gate ? k : 0;
        double sum = c->accumulate >> out & 1 ? (double)*to : 0;
        for (int64_t i = 0; i < runs; i++) sum += (double)j.partial[i * (j.gate + 1) + k];
        *to = (float)sum;
    }
}

static size_t CPU(smear_workspace)(const op_backend *b, const op_call *c, int threads) {
    return SMEAR_RUNS * (MOST_GATE + 1) * sizeof(float);
}

KERNEL(SMEAR, CPU(smear));
KERNEL(SMEAR_BWD, CPU(smear_bwd), CPU(smear_workspace));
