/* Other orders of columns and rows: what an exchange between ranks needs before and after it. Copies, in
 * runs as long as the order allows. */
#include "chunks.h"
#include "ops/op_table.h"

/* ---- q|k|v and groups of it ------------------------------------------------------------------ */
static void group_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *x = &c->in[0], *y = &c->out[0];
    int64_t cols = x->dim[1], parts = c->attr.reorder.parts, dim = c->attr.heads.dim;
    int64_t width[] = { c->attr.heads.q * dim, c->attr.heads.kv * dim, c->attr.heads.kv * dim };
    bool back = c->op == OP_GROUP_HEADS_BWD;
    span rows = span_of(i, rows_per_task(cols), x->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        int64_t grouped = row * cols;
        for (int64_t part = 0; part < parts; part++) {
            int64_t segment = row * cols;
            for (int s = 0; s < 3; segment += width[s++]) {
                int64_t n = width[s] / parts, apart = segment + part * n;
                elems_copy(x, back ? grouped : apart, y, back ? apart : grouped, n);
                grouped += n;
            }
        }
    }
}

static void CPU(group_heads)(const op_call *c) {
    const tensor *x = &c->in[0];
    int q = c->attr.heads.q, kv = c->attr.heads.kv, parts = c->attr.reorder.parts;
    BUG_IF(parts < 1 || q % parts || kv % parts);
    BUG_IF(x->dim[1] != (int64_t)(q + 2 * kv) * c->attr.heads.dim);
    pool_run(c->run->pool, ceil_div(x->dim[0], rows_per_task(x->dim[1])), group_task, (void *)c);
}

/* ---- rows ------------------------------------------------------------------------------------- */
typedef struct swap_job {
    const op_call *c;
    int64_t outer, inner, run; /* run: elements that stay together */
} swap_job;

static void swap_task(void *ctx, int64_t i, int worker) {
    const swap_job *j = ctx;
    int64_t o = i / j->inner, k = i % j->inner;
    elems_copy(&j->c->in[0], i * j->run, &j->c->out[0], (k * j->outer + o) * j->run, j->run);
}

static void CPU(swap_rows)(const op_call *c) {
    bool back = c->op == OP_SWAP_ROWS_BWD;
    int64_t a = c->attr.reorder.outer, b = c->attr.reorder.inner;
    BUG_IF(a < 1 || b < 1 || c->in[0].dim[0] % (a * b));
    swap_job j = { c, back ? b : a, back ? a : b, tensor_count(&c->in[0]) / (a * b) };
    pool_run(c->run->pool, a * b, swap_task, &j);
}

/* ---- q and k|v --------------------------------------------------------------------------------- */
static void split_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    bool back = c->op == OP_SPLIT_HEADS_BWD;
    const tensor *all = back ? &c->out[0] : &c->in[0], *q = back ? &c->in[0] : &c->out[0],
                 *kv = back ? &c->in[1] : &c->out[1];
    int64_t cols = all->dim[1], left = q->dim[1], right = kv->dim[1];
    span rows = span_of(i, rows_per_task(cols), all->dim[0]);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        if (back) {
            elems_copy(q, row * left, all, row * cols, left);
            elems_copy(kv, row * right, all, row * cols + left, right);
        } else {
            elems_copy(all, row * cols, q, row * left, left);
            elems_copy(all, row * cols + left, kv, row * right, right);
        }
    }
}

static void CPU(split_heads)(const op_call *c) {
    bool back = c->op == OP_SPLIT_HEADS_BWD;
    const tensor *all = back ? &c->out[0] : &c->in[0];
    int64_t parts = back ? c->in[0].dim[1] + c->in[1].dim[1] : c->out[0].dim[1] + c->out[1].dim[1];
    BUG_IF(all->dim[1] != parts);
    pool_run(c->run->pool, ceil_div(all->dim[0], rows_per_task(all->dim[1])), split_task,
             (void *)c);
}

KERNEL(SPLIT_HEADS, CPU(split_heads));
KERNEL(SPLIT_HEADS_BWD, CPU(split_heads));
KERNEL(GROUP_HEADS, CPU(group_heads), NULL, ATTRS_HEADS | ATTR(PARTS));
KERNEL(GROUP_HEADS_BWD, CPU(group_heads), NULL, ATTRS_HEADS | ATTR(PARTS));
KERNEL(SWAP_ROWS, CPU(swap_rows), NULL, ATTRS_SWAP);
KERNEL(SWAP_ROWS_BWD, CPU(swap_rows), NULL, ATTRS_SWAP);
