/* SCALE_QUERIES: the q heads of a row times a factor of its position; in place, k and v are not touched. Backward is the same
 * product. Bytes moved: the row once in, once out. */
#include "chunks.h"
#include "ops/op_table.h"

#include <math.h>

static void temper_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *in = &c->in[0], *out = &c->out[0];
    const int32_t *pos = c->in[1].data;
    int64_t cols = in->dim[1], q = (int64_t)c->attr.heads.q * c->attr.heads.dim;
    int64_t end = in->data == out->data ? q : cols;
    span rows = span_of(i, rows_per_task(cols), in->dim[0]);
    float from[BLOCK], to[BLOCK];
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        float far = floorf(((float)pos[row] + 1) / c->attr.heads.temper_floor);
        float by = 1 + c->attr.heads.temper * log1pf(far);
        for (int64_t k = 0; k < end;) { /* a block has queries alone, or none */
            int64_t m = MIN(BLOCK, (k < q ? q : end) - k), at = row * cols + k;
            const float *x = elems_get(in, at, m, from);
            for (int64_t e = 0; e < m; e++) to[e] = k < q ? by * x[e] : x[e];
            elems_put(out, at, m, to);
            k += m;
        }
    }
}

static void CPU(scale_queries)(const op_call *c) {
    int64_t rows = rows_per_task(c->in[0].dim[1]);
    pool_run(c->run->pool, ceil_div(c->in[0].dim[0], rows), temper_task, (void *)c);
}

KERNEL(SCALE_QUERIES, CPU(scale_queries), NULL, ATTRS_HEADS | ATTRS_TEMPER);
KERNEL(SCALE_QUERIES_BWD, CPU(scale_queries), NULL, ATTRS_HEADS | ATTRS_TEMPER);
