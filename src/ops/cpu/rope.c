/* Rotary position embedding on the q and k heads of a row; v passes through. Bytes moved: the row
 * once in, once out; in place, v is not touched. */
#include "chunks.h"

#include <string.h>

enum { ROPE_BLOCK = 1024 }; /* elements: as many whole heads as fit */

typedef struct rope_job {
    const tensor *in, *out; /* [N, C] */
    const tensor *table;    /* [P, rot] */
    const int32_t *pos;     /* [N] */
    int64_t n, c, each;
    int dim, rot, turned; /* head size, rotated dims, number of q and k heads */
    float sign;           /* of the angle: -1 turns back */
} rope_job;

/* One head: (a, b) -> (a cos - b sin, b cos + a sin). x and y are the same or apart. */
static void rotate(const float *x, float *y, const float *cs, int rot, int dim, float sign) {
    int half = rot / 2;
    const float *cosine = cs, *sine = cs + half;
#pragma omp simd
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half], s = sign * sine[j];
        y[j] = a * cosine[j] - b * s;
        y[j + half] = b * cosine[j] + a * s;
    }
    if (x != y)
        for (int j = rot; j < dim; j++) y[j] = x[j];
}

static void copy_elems(const tensor *from, const tensor *to, int64_t at, int64_t n) {
    size_t size = dt_size(from->dt);
    if (from->dt == to->dt) {
        if (from->data != to->data)
            memcpy((char *)to->data + (size_t)at * size,
                   (const char *)from->data + (size_t)at * size, (size_t)n * size);
        return;
    }
    float tmp[ROPE_BLOCK];
    for (int64_t end = at + n, m; at < end; at += m) {
        m = MIN(ROPE_BLOCK, end - at);
        elems_put(to, at, m, elems_get(from, at, m, tmp));
    }
}

static void rope_row(const rope_job *j, int64_t row) {
    float cs_tmp[ROPE_BLOCK], x_tmp[ROPE_BLOCK], y_tmp[ROPE_BLOCK];
    int64_t p = j->pos[row], base = row * j->c;
    BUG_IF(p < 0 || p >= j->table->dim[0]);
    const float *cs = elems_get(j->table, p * j->rot, j->rot, cs_tmp);
    int per = ROPE_BLOCK / j->dim;
    for (int h = 0; h < j->turned; h += per) {
        int heads = MIN(per, j->turned - h);
        int64_t at = base + (int64_t)h * j->dim, m = (int64_t)heads * j->dim;
        const float *x = elems_get(j->in, at, m, x_tmp);
        float *y = elems_at(j->out, at, y_tmp);
        for (int k = 0; k < heads; k++)
            rotate(x + k * j->dim, y + k * j->dim, cs, j->rot, j->dim, j->sign);
        elems_put(j->out, at, m, y);
    }
    int64_t qk = (int64_t)j->turned * j->dim;
    copy_elems(j->in, j->out, base + qk, j->c - qk);
}

static void rope_task(void *ctx, int64_t i, int worker) {
    const rope_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    for (int64_t r = rows.lo; r < rows.hi; r++) rope_row(j, r);
}

void CPU(rope)(const op_call *c) {
    const tensor *in = &c->in[0], *table = &c->in[2];
    int q = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    rope_job j = { .in = in,
                   .out = &c->out[0],
                   .table = table,
                   .pos = c->in[1].data,
                   .n = in->dim[0],
                   .c = in->dim[1],
                   .each = rows_per_task(in->dim[1]),
                   .dim = dim,
                   .rot = c->attr.heads.rot,
                   .turned = q + kv,
                   .sign = c->op == OP_ROPE_BWD ? -1.0f : 1.0f };
    BUG_IF(j.c != (int64_t)(q + 2 * kv) * dim);
    BUG_IF(j.rot % 2 || j.rot > dim || table->dim[1] != j.rot || dim > ROPE_BLOCK);
    pool_run(c->run->pool, ceil_div(j.n, j.each), rope_task, &j);
}
