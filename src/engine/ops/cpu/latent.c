/* Latent attention: keys and values of all heads are projections of one small vector per token, c, beside a rotated key
 * that all heads share. Rows of a head, wherever they are, begin with the rotated dims:
 *
 *     q     H heads of  rot | plain          kv    H heads of  plain | value, projected from c
 *     qkv   H heads of q, H of k, H of v, each of one width, with zeros beyond their own dims
 *
 * LATENT_QKV expands them for attention as any other; LATENT_CACHED attends to c and the rotated keys as they are:
 *
 *     q' = q_plain W_k,   score = q' . c + q_rot . rot,   o = W_v (sum of p c)
 *
 * where W_k and W_v are a head's rows of the projection w. Bytes moved: each operand once; of the cache, once per head. */
#include "bandwidth.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <float.h>
#include <string.h>

/* ---- the expanded form ------------------------------------------------------------------------- */
typedef struct latent_shape {
    int64_t n, heads, rot, plain, value, dim; /* dim: of a head of qkv */
} latent_shape;

static latent_shape latent_shape_of(const op_call *c, const tensor *q, const tensor *kv,
                                    const tensor *rot, const tensor *qkv) {
    int64_t heads = c->attr.heads.q;
    latent_shape s = { .n = q->dim[0], .heads = heads, .rot = rot->dim[1] };
    s.plain = q->dim[1] / heads - s.rot;
    s.value = kv->dim[1] / heads - s.plain;
    s.dim = qkv->dim[1] / (3 * heads);
    BUG_IF(s.plain < 0 || s.value < 1 || s.dim < s.rot + s.plain || s.dim < s.value);
    return s;
}

typedef struct latent_job {
    latent_shape s;
    const tensor *q, *kv, *rot, *qkv;
    bool back;
} latent_job;

/* Moves n elements of a part to q|k|v; backward, from there. */
static void move_columns(const latent_job *j, const tensor *part, int64_t at, int64_t in_qkv,
                         int64_t n) {
    if (j->back)
        elems_copy(j->qkv, in_qkv, part, at, n);
    else
        elems_copy(part, at, j->qkv, in_qkv, n);
}

/* The gradient of the shared key is the sum over the heads. */
static void move_row(const latent_job *j, int64_t row) {
    const latent_shape *s = &j->s;
    int64_t at = row * 3 * s->heads * s->dim, qk = s->rot + s->plain;
    for (int64_t h = 0; h < s->heads; h++) {
        int64_t q = at + h * s->dim, k = q + s->heads * s->dim, v = k + s->heads * s->dim;
        int64_t own = (row * s->heads + h) * (s->plain + s->value);
        move_columns(j, j->q, (row * s->heads + h) * qk, q, qk);
        move_columns(j, j->kv, own, k + s->rot, s->plain);
        move_columns(j, j->kv, own + s->plain, v, s->value);
        if (j->back) continue;
        elems_copy(j->rot, row * s->rot, j->qkv, k, s->rot);
        elems_clear(j->qkv, q + qk, s->dim - qk);
        elems_clear(j->qkv, k + qk, s->dim - qk);
        elems_clear(j->qkv, v + s->value, s->dim - s->value);
    }
    float sum[BLOCK], tmp[BLOCK];
    for (int64_t e = 0; j->back && e < s->rot; e += BLOCK) {
        int64_t m = MIN(BLOCK, s->rot - e);
        memset(sum, 0, sizeof sum);
        for (int64_t h = 0; h < s->heads; h++) {
            const float *d = elems_get(j->qkv, at + (s->heads + h) * s->dim + e, m, tmp);
            for (int64_t i = 0; i < m; i++) sum[i] += d[i];
        }
        elems_put(j->rot, row * s->rot + e, m, sum);
    }
}

static void latent_task(void *ctx, int64_t i, int worker) {
    const latent_job *j = ctx;
    span rows = span_of(i, rows_per_task(j->qkv->dim[1]), j->s.n);
    for (int64_t row = rows.lo; row < rows.hi; row++) move_row(j, row);
}

static void CPU(latent_qkv)(const op_call *c) {
    bool back = c->op == OP_LATENT_QKV_BWD;
    const tensor *parts = back ? c->out : c->in, *qkv = back ? &c->in[0] : &c->out[0];
    latent_job j = { .s = latent_shape_of(c, &parts[0], &parts[1], &parts[2], qkv),
                     .q = &parts[0],
                     .kv = &parts[1],
                     .rot = &parts[2],
                     .qkv = qkv,
                     .back = back };
    pool_run(c->run->pool, ceil_div(j.s.n, rows_per_task(qkv->dim[1])), latent_task, &j);
}

/* The first columns of every head, and the way back: zeros in the others. */
static void head_values_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    bool back = c->op == OP_HEAD_VALUES_BWD;
    const tensor *wide = back ? &c->out[0] : &c->in[0], *own = back ? &c->in[0] : &c->out[0];
    int64_t heads = c->attr.heads.q, dim = wide->dim[1] / heads, value = own->dim[1] / heads;
    span rows = span_of(i, rows_per_task(wide->dim[1]), wide->dim[0]);
    for (int64_t r = rows.lo * heads; r < rows.hi * heads; r++) {
        if (!back) {
            elems_copy(wide, r * dim, own, r * value, value);
            continue;
        }
        elems_copy(own, r * value, wide, r * dim, value);
        elems_clear(wide, r * dim + value, dim - value);
    }
}

static void CPU(head_values)(const op_call *c) {
    const tensor *wide = c->op == OP_HEAD_VALUES_BWD ? &c->out[0] : &c->in[0];
    pool_run(c->run->pool, ceil_div(wide->dim[0], rows_per_task(wide->dim[1])), head_values_task,
             (void *)c);
}

/* ---- the compressed form ----------------------------------------------------------------------- */
enum { Q, C, ROT, W, CACHE, POS, START };
enum { KEYS = 64 }; /* of a step of the online softmax */

typedef struct cached_latent {
    const op_call *c;
    int64_t n, heads, rot, plain, value, latent, row; /* row: columns of the cache */
    char *worker;
    size_t worker_bytes;
} cached_latent;

static cached_latent cached_latent_of(const op_call *c) {
    int64_t heads = c->attr.heads.q;
    cached_latent a = { .c = c,
                        .n = c->in[Q].dim[0],
                        .heads = heads,
                        .rot = c->in[ROT].dim[1],
                        .latent = c->in[C].dim[1],
                        .row = c->in[CACHE].dim[1] };
    a.plain = c->in[Q].dim[1] / heads - a.rot;
    a.value = c->out[0].dim[1] / heads;
    BUG_IF(a.row != a.latent + a.rot || c->in[W].dim[0] != heads * (a.plain + a.value));
    /* a query, a result, a row of w or of queries, and KEYS rows of the cache */
    a.worker_bytes =
        align_up((size_t)((3 + KEYS) * (a.row + a.plain + a.value)) * sizeof(float), 64);
    return a;
}

static size_t CPU(latent_cached_workspace)(const op_backend *b, const op_call *c, int threads) {
    return (size_t)threads * cached_latent_of(c).worker_bytes;
}

static float dot_of(const float *x, const float *y, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* A head's query against rows of the cache: [latent | rot], scaled. */
static void absorb_query(const cached_latent *a, int64_t i, int64_t h, float *q, float *tmp) {
    const tensor *w = &a->c->in[W];
    float own[BLOCK];
    int64_t at = (i * a->heads + h) * (a->rot + a->plain), first = h * (a->plain + a->value);
    memset(q, 0, (size_t)a->latent * sizeof *q);
    for (int64_t k = 0; k < a->plain; k += BLOCK) {
        int64_t m = MIN(BLOCK, a->plain - k);
        const float *x = elems_get(&a->c->in[Q], at + a->rot + k, m, own);
        for (int64_t d = 0; d < m; d++) {
            const float *row = elems_get(w, (first + k + d) * a->latent, a->latent, tmp), by = x[d];
            for (int64_t e = 0; e < a->latent; e++) q[e] += by * row[e];
        }
    }
    const float *turned = elems_get(&a->c->in[Q], at, a->rot, tmp);
    memcpy(q + a->latent, turned, (size_t)a->rot * sizeof *q);
    for (int64_t e = 0; e < a->row; e++) q[e] *= a->c->attr.heads.scale;
}

/* sum of p c over the keys from row `key` to `last`. */
static void attend_latent(const cached_latent *a, const float *q, int64_t key, int64_t last,
                          float *sum, float *rows) {
    float top = -FLT_MAX, total = 0, cap = a->c->attr.heads.cap;
    memset(sum, 0, (size_t)a->latent * sizeof *sum);
    for (; key <= last; key += KEYS) {
        int keys = (int)MIN(KEYS, last + 1 - key);
        float s[KEYS], best = top;
        const float *k = elems_get(&a->c->in[CACHE], key * a->row, keys * a->row, rows);
        for (int j = 0; j < keys; j++) {
            s[j] = dot_of(q, k + j * a->row, a->row);
            if (cap > 0) s[j] = cap * vm_tanh(s[j] / cap);
            best = MAX(best, s[j]);
        }
        float shrink = total > 0 ? vm_exp(top - best) : 0;
        for (int64_t e = 0; e < a->latent; e++) sum[e] *= shrink;
        total *= shrink;
        for (int j = 0; j < keys; j++) {
            float p = vm_exp(s[j] - best);
            total += p;
            for (int64_t e = 0; e < a->latent; e++) sum[e] += p * k[j * a->row + e];
        }
        top = best;
    }
    for (int64_t e = 0; e < a->latent; e++) sum[e] /= total;
}

static void latent_cached_task(void *ctx, int64_t task, int worker) {
    const cached_latent *a = ctx;
    const op_call *c = a->c;
    int64_t i = task / a->heads, h = task % a->heads, wide = a->row + a->plain + a->value;
    int64_t start = ((const int32_t *)c->in[START].data)[i],
            pos = ((const int32_t *)c->in[POS].data)[i], window = c->attr.heads.window;
    float *q = (float *)(a->worker + (size_t)worker * a->worker_bytes), *sum = q + wide;
    float *tmp = sum + wide, *rows = tmp + wide, o[BLOCK];
    absorb_query(a, i, h, q, tmp);
    attend_latent(a, q, start + (window > 0 ? MAX(0, pos - window + 1) : 0), start + pos, sum,
                  rows);
    for (int64_t v = 0; v < a->value; v += BLOCK) {
        int64_t m = MIN(BLOCK, a->value - v);
        int64_t first = h * (a->plain + a->value) + a->plain + v;
        for (int64_t d = 0; d < m; d++) {
            const float *row = elems_get(&c->in[W], (first + d) * a->latent, a->latent, tmp);
            o[d] = dot_of(row, sum, a->latent);
        }
        elems_put(&c->out[0], (i * a->heads + h) * a->value + v, m, o);
    }
}

static void CPU(latent_cached)(const op_call *c) {
    cached_latent a = cached_latent_of(c);
    const int32_t *pos = c->in[POS].data, *start = c->in[START].data;
    a.worker = c->run->workspace;
    for (int64_t i = 0; i < a.n; i++) {
        int64_t row = (int64_t)start[i] + pos[i];
        BUG_IF(pos[i] < 0 || start[i] < 0 || row >= c->in[CACHE].dim[0]);
        elems_copy(&c->in[C], i * a.latent, &c->in[CACHE], row * a.row, a.latent);
        elems_copy(&c->in[ROT], i * a.rot, &c->in[CACHE], row * a.row + a.latent, a.rot);
    }
    pool_run(c->run->pool, a.n * a.heads, latent_cached_task, &a);
}

KERNEL(LATENT_QKV, CPU(latent_qkv), NULL, ATTR(HEADS_Q));
KERNEL(LATENT_QKV_BWD, CPU(latent_qkv), NULL, ATTR(HEADS_Q));
KERNEL(HEAD_VALUES, CPU(head_values), NULL, ATTR(HEADS_Q));
KERNEL(HEAD_VALUES_BWD, CPU(head_values), NULL, ATTR(HEADS_Q));
KERNEL(LATENT_CACHED, CPU(latent_cached), CPU(latent_cached_workspace),
       ATTR(HEADS_Q) | ATTRS_ATTENTION);
