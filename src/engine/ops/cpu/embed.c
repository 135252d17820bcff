/* Token embedding: a gather of rows, and its transpose. */
#include "chunks.h"

#include <string.h>

typedef struct embed_job {
    const int32_t *tok;  /* [N] */
    const tensor *table; /* [V, D] */
    const tensor *x;     /* [N, D] */
    float *dtable;       /* [V, D] */
    int64_t n, d, rows, each;
    int64_t first, vocab; /* rows are those of tokens first, first + 1, ... of the vocabulary */
} embed_job;

enum { OTHER_RANK = -1 };

/* @return the token's row of the table, or OTHER_RANK. */
static int64_t token_row(const embed_job *j, int64_t i) {
    int64_t id = j->tok[i], row = id - j->first;
    BUG_IF(id < 0 || id >= j->vocab);
    return row >= 0 && row < j->rows ? row : OTHER_RANK;
}

static embed_job embed_job_of(const op_call *c, const int32_t *tok, const tensor *x,
                              const tensor *table) {
    int64_t rows = table->dim[0], vocab = c->attr.vocab.size;
    BUG_IF(table->dim[1] != x->dim[1]);
    return (embed_job){ .tok = tok,
                        .table = table,
                        .x = x,
                        .n = x->dim[0],
                        .d = x->dim[1],
                        .rows = rows,
                        .first = c->attr.vocab.first,
                        .vocab = vocab ? vocab : rows,
                        .each = rows_per_task(x->dim[1]) };
}

static void embed_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span rows = span_of(i, j->each, j->n);
    for (int64_t r = rows.lo; r < rows.hi; r++) {
        int64_t row = token_row(j, r);
        if (row == OTHER_RANK)
            elems_clear(j->x, r * j->d, j->d);
        else
            elems_copy(j->table, row * j->d, j->x, r * j->d, j->d);
    }
}

static void CPU(embed)(const op_call *c) {
    embed_job j = embed_job_of(c, c->in[0].data, &c->out[0], &c->in[1]);
    pool_run(c->run->pool, ceil_div(j.n, j.each), embed_task, &j);
}

/* ---- backward -------------------------------------------------------------------------------
 * Tokens repeat, so that tasks cannot divide the rows of the table without locks. They divide its columns:
 * each task owns a slice of columns and goes through the tokens in order, which also fixes the order of the
 * sums: deterministic. */
enum { SLICE = 64 };

static void embed_clear_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span rows = span_of(i, j->each, j->rows);
    memset(j->dtable + rows.lo * j->d, 0, (size_t)((rows.hi - rows.lo) * j->d) * sizeof(float));
}

static void embed_bwd_task(void *ctx, int64_t i, int worker) {
    const embed_job *j = ctx;
    span cols = span_of(i, SLICE, j->d);
    int64_t m = cols.hi - cols.lo;
    float tmp[SLICE];
    for (int64_t r = 0; r < j->n; r++) {
        int64_t row = token_row(j, r);
        if (row == OTHER_RANK) continue;
        const float *dx = elems_get(j->x, r * j->d + cols.lo, m, tmp);
        float *sum = j->dtable + row * j->d + cols.lo;
#pragma omp simd
        for (int64_t k = 0; k < m; k++) sum[k] += dx[k];
    }
}

static void CPU(embed_bwd)(const op_call *c) {
    embed_job j = embed_job_of(c, c->in[1].data, &c->in[0], &c->out[0]);
    j.dtable = c->out[0].data;
    BUG_IF(c->out[0].dt != DT_F32);
    if (!(c->accumulate & 1))
        pool_run(c->run->pool, ceil_div(j.rows, j.each), embed_clear_task, &j);
    pool_run(c->run->pool, ceil_div(j.d, SLICE), embed_bwd_task, &j);
}

KERNEL(EMBED, CPU(embed), NULL, ATTRS_VOCAB);
KERNEL(EMBED_BWD, CPU(embed_bwd), NULL, ATTRS_VOCAB);
