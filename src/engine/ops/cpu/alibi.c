/* ALIBI: q, k and v heads with the columns of ops/alibi.h; backward drops those. Bytes moved: each operand once. */
#include "chunks.h"
#include "ops/alibi.h"
#include "ops/op_table.h"

static void widen_row(const op_call *c, int64_t row, int64_t heads, int dim, int wide) {
    const tensor *in = &c->in[0], *out = &c->out[0];
    int q = c->attr.heads.q, kv = c->attr.heads.kv;
    int32_t pos = ((const int32_t *)c->in[1].data)[row];
    float tmp[BLOCK];
    for (int64_t h = 0; h < heads; h++) {
        int64_t from = (row * heads + h) * dim, to = (row * heads + h) * wide;
        for (int64_t k = 0; k < dim; k += BLOCK) {
            int64_t m = MIN(BLOCK, dim - k);
            elems_put(out, to + k, m, elems_get(in, from + k, m, tmp));
        }
        float slope = h < q ? alibi_slope(c->attr.heads.first + (int)h, c->attr.alibi.heads,
                                          c->attr.alibi.max) /
                                  c->attr.heads.scale
                            : 0;
        float more[ALIBI_COLS + 8] = { 0 };
        for (int i = 0; i < ALIBI_COLS && h < q + kv; i++)
            more[i] = h < q ? alibi_query(slope, i) : alibi_key(pos, i);
        elems_put(out, to + dim, wide - dim, more);
    }
}

static void narrow_row(const op_call *c, int64_t row, int64_t heads, int dim, int wide) {
    float tmp[BLOCK];
    for (int64_t h = row * heads; h < (row + 1) * heads; h++)
        for (int64_t k = 0; k < dim; k += BLOCK) {
            int64_t m = MIN(BLOCK, dim - k);
            elems_put(&c->out[0], h * dim + k, m, elems_get(&c->in[0], h * wide + k, m, tmp));
        }
}

static void alibi_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    bool back = c->op == OP_ALIBI_BWD;
    int dim = c->attr.heads.dim, wide = alibi_width(dim);
    int64_t heads = c->attr.heads.q + 2 * c->attr.heads.kv;
    span rows = span_of(i, rows_per_task(heads * wide), c->in[0].dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++)
        (back ? narrow_row : widen_row)(c, row, heads, dim, wide);
}

static void CPU(alibi)(const op_call *c) {
    int64_t cols = MAX(c->in[0].dim[1], c->out[0].dim[1]);
    pool_run(c->run->pool, ceil_div(c->in[0].dim[0], rows_per_task(cols)), alibi_task, (void *)c);
}

KERNEL(ALIBI, CPU(alibi), NULL, ATTRS_ALIBI);
KERNEL(ALIBI_BWD, CPU(alibi), NULL, ATTRS_HEADS);
