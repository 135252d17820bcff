/* Token embedding: a gather of rows, and its transpose. */
#include "chunks.h"

#include <string.h>

typedef struct embed_job {
    const int32_t *tok;  /* [N] */
    const tensor *table; /* [V, D] */
    const tensor *x;     /* [N, D] */
    float *dtable;       /* [V, D] */
    int64_t n, d, vocab, each;
} embed_job;

static int64_t token_at(const embed_job *j, int64_t i) {
    int64_t id = j->tok[i];
    BUG_IF(id < 0 || id >= j->vocab);
    return id;
}

static void copy_row(const tensor *from, int64_t from_row, const tensor *to, int64_t to_row,
                     int64_t d) {
    size_t size = dt_size(from->dt), bytes = (size_t)d * size;
    if (from->dt == to->dt) {
        memcpy((char *)to->data + (size_t)to_row * bytes,
               (const char *)from->data + (size_t)from_row * bytes, bytes);
        return;
    }
    float tmp[BLOCK];
    for (int64_t at = 0; at < d; at += BLOCK) {
        int64_t m = MIN(BLOCK, d - at);
        elems_put(to, to_row * d + at, m, elems_get(from, from_row * d + at, m, tmp));
    }
}

static void embed_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    for (int64_t r = rows.lo; r < rows.hi; r++) copy_row(j->table, token_at(j, r), j->x, r, j->d);
}

void CPU(embed)(const op_call *c) {
    const tensor *table = &c->in[1], *x = &c->out[0];
    embed_job j = { .tok = c->in[0].data,
                    .table = table,
                    .x = x,
                    .n = x->dim[0],
                    .d = x->dim[1],
                    .vocab = table->dim[0],
                    .each = rows_per_task(x->dim[1]) };
    BUG_IF(table->dim[1] != j.d);
    pool_run(c->run->pool, ceil_div(j.n, j.each), embed_task, &j);
}

/* ---- backward -------------------------------------------------------------------------------
 * Tokens repeat, so that tasks cannot divide the rows of the table without locks. They divide its columns:
 * each task owns a slice of columns and goes through the tokens in order, which also fixes the order of the
 * sums: deterministic. */
enum { SLICE = 64 };

static void embed_clear_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span rows = span_of(i, j->each, j->vocab);
    memset(j->dtable + rows.lo * j->d, 0, (size_t)((rows.hi - rows.lo) * j->d) * sizeof(float));
}

static void embed_bwd_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span cols = span_of(i, SLICE, j->d);
    int64_t m = cols.hi - cols.lo;
    float tmp[SLICE];
    for (int64_t r = 0; r < j->n; r++) {
        const float *dx = elems_get(j->x, r * j->d + cols.lo, m, tmp);
        float *sum = j->dtable + token_at(j, r) * j->d + cols.lo;
#pragma omp simd
        for (int64_t k = 0; k < m; k++) sum[k] += dx[k];
    }
}

void CPU(embed_bwd)(const op_call *c) {
    const tensor *dx = &c->in[0], *dtable = &c->out[0];
    embed_job j = { .tok = c->in[1].data,
                    .x = dx,
                    .dtable = dtable->data,
                    .n = dx->dim[0],
                    .d = dx->dim[1],
                    .vocab = dtable->dim[0],
                    .each = rows_per_task(dx->dim[1]) };
    BUG_IF(dtable->dt != DT_F32 || dtable->dim[1] != j.d);
    if (!(c->accumulate & 1))
        pool_run(c->run->pool, ceil_div(j.vocab, j.each), embed_clear_task, &j);
    pool_run(c->run->pool, ceil_div(j.d, SLICE), embed_bwd_task, &j);
}
