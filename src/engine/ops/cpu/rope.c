/* Rotary position embedding on the q and k heads of a row; v passes through. Bytes moved: the row
 * once in, once out; in place, v is not touched. */
#include "bandwidth.h"
#include "ops/op_table.h"

#include <string.h>

enum { ROPE_BLOCK = 1024 }; /* elements: as many whole heads as fit */

typedef struct rope_job {
    const tensor *in, *out; /* [N, C] */
    const tensor *table;    /* [P, rot] */
    const int32_t *pos;     /* [N] */
    int64_t n, c, each;
    int dim, rot, rotated; /* head size, rotated dims, number of q and k heads */
    float sign;            /* of the angle; -1: the inverse rotation */
} rope_job;

/* n vectors of each half of a head, from element j on. */
LOOP_INLINE void rotate_vecs(dtype t, const void *x, void *y, const float *cs, int half, float sign,
                             int j, int n) {
    vf a[UNIT_VECS], b[UNIT_VECS], c[UNIT_VECS], s[UNIT_VECS], rotated[UNIT_VECS];
    vecs_load(t, x, j, a, n);
    vecs_load(t, x, j + half, b, n);
    vecs_load(DT_F32, cs, j, c, n);
    vecs_load(DT_F32, cs, j + half, s, n);
    VEC_UNROLL for (int i = 0; i < n; i++) rotated[i] = a[i] * c[i] - b[i] * (s[i] * sign);
    VEC_UNROLL for (int i = 0; i < n; i++) b[i] = b[i] * c[i] + a[i] * (s[i] * sign);
    vecs_store(t, y, j, rotated, n);
    vecs_store(t, y, j + half, b, n);
}
/* One head: (a, b) -> (a cos - b sin, b cos + a sin). x and y are of type t, the same or apart. */
LOOP_INLINE void rotate_head(dtype t, const void *x, void *y, const float *cs, int half,
                             float sign) {
    const float *cosine = cs, *sine = cs + half;
    int j = 0;
    for (; j + UNIT <= half; j += UNIT) {
        unit_prefetch(t, x, 2 * j); /* in order of addresses, across both halves */
        unit_prefetch(t, x, 2 * j + UNIT);
        rotate_vecs(t, x, y, cs, half, sign, j, UNIT_VECS);
    }
    for (; j + 2 * VEC <= half; j += 2 * VEC) rotate_vecs(t, x, y, cs, half, sign, j, 2);
    for (; j < half; j++) {
        float a = elem_get(t, x, j), b = elem_get(t, x, j + half), s = sign * sine[j];
        elem_put(t, y, j, a * cosine[j] - b * s);
        elem_put(t, y, j + half, b * cosine[j] + a * s);
    }
}
/* Consecutive heads; the dims beyond rot pass through. */
LOOP_INLINE void rotate_by(dtype t, float sign, const char *x, char *y, const float *cs,
                           const rope_job *j, int heads) {
    size_t size = elem_size(t), skip = (size_t)j->rot * size;
    size_t step = (size_t)j->dim * size;
    for (int h = 0; h < heads; h++, x += step, y += step) {
        rotate_head(t, x, y, cs, j->rot / 2, sign);
        if (x != y && step > skip) memcpy(y + skip, x + skip, step - skip);
    }
}

/* With a constant sign the multiplication by it is optimized away. */
LOOP_INLINE void rotate_heads(dtype t, const char *x, char *y, const float *cs, const rope_job *j,
                              int heads) {
    if (j->sign > 0)
        rotate_by(t, 1.0f, x, y, cs, j, heads);
    else
        rotate_by(t, -1.0f, x, y, cs, j, heads);
}

/* The q and k heads of a row. */
static void rotate_row(const rope_job *j, int64_t row) {
    float cs_tmp[ROPE_BLOCK], x_tmp[ROPE_BLOCK], y_tmp[ROPE_BLOCK];
    int64_t p = j->pos[row], base = row * j->c;
    BUG_IF(p < 0 || p >= j->table->dim[0]);
    const float *cs = elems_get(j->table, p * j->rot, j->rot, cs_tmp);
    if (j->in->dt == j->out->dt && (j->in->dt == DT_F32 || j->in->dt == DT_BF16)) {
        size_t at = (size_t)base * dt_size(j->in->dt);
        const char *x = (const char *)j->in->data + at;
        char *y = (char *)j->out->data + at;
        if (j->in->dt == DT_F32)
            rotate_heads(DT_F32, x, y, cs, j, j->rotated);
        else
            rotate_heads(DT_BF16, x, y, cs, j, j->rotated);
        return;
    }
    int per = ROPE_BLOCK / j->dim;
    for (int h = 0; h < j->rotated; h += per) {
        int heads = MIN(per, j->rotated - h);
        int64_t at = base + (int64_t)h * j->dim, m = (int64_t)heads * j->dim;
        const float *x = elems_get(j->in, at, m, x_tmp);
        float *y = elems_at(j->out, at, y_tmp);
        rotate_heads(DT_F32, (const char *)x, (char *)y, cs, j, heads);
        elems_put(j->out, at, m, y);
    }
}

static void rope_task(void *ctx, int64_t i, int worker) {
    const rope_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    int64_t qk = (int64_t)j->rotated * j->dim;
    for (int64_t r = rows.lo; r < rows.hi; r++) {
        rotate_row(j, r);
        if (j->in->data != j->out->data)
            elems_copy(j->in, r * j->c + qk, j->out, r * j->c + qk, j->c - qk);
    }
}

static void CPU(rope)(const op_call *c) {
    const tensor *in = &c->in[0], *table = &c->in[2];
    int q = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    rope_job j = { .in = in,
                   .out = &c->out[0],
                   .table = table,
                   .pos = c->in[1].data,
                   .n = in->dim[0],
                   .c = in->dim[1],
                   .each = bandwidth_rows(in->dim[0], in->dim[1], c->run->pool),
                   .dim = dim,
                   .rot = c->attr.heads.rot,
                   .rotated = q + kv,
                   .sign = c->op == OP_ROPE_BWD ? -1.0f : 1.0f };
    BUG_IF(j.c != (int64_t)(q + 2 * kv) * dim);
    BUG_IF(j.rot % 2 || j.rot > dim || table->dim[1] != j.rot || dim > ROPE_BLOCK);
    pool_run(c->run->pool, ceil_div(j.n, j.each), rope_task, &j);
}

KERNEL(ROPE, CPU(rope), NULL, ATTRS_HEADS | ATTR(ROT));
KERNEL(ROPE_BWD, CPU(rope), NULL, ATTRS_HEADS | ATTR(ROT));
