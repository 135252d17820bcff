/* SCALE_QUERIES, and its backward, which is the same product: the q heads of a row times a factor of its position. Grid: a
 * block of 256 threads per row. Bytes: q once in, once out; k and v too where results have memory of their own.
 * Deterministic. */
#include "device.cuh"
#include "ops/op_table.h"

#include <math.h>

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
    scale_queries(mixed x, mixed y, const int32_t *pos, int64_t cols, int64_t q, int64_t end,
                  float temper, float limit) {
    int64_t row = blockIdx.x;
    await_previous();
    float by = 1 + temper * log1pf(floorf(((float)pos[row] + 1) / limit));
    for (int64_t i = threadIdx.x; i < end; i += THREADS) {
        float v = read1(x.p, x.dt, row * cols + i);
        write1(y.p, y.dt, row * cols + i, i < q ? by * v : v);
    }
}

static void cuda_scale_queries(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0];
    int64_t cols = x->dim[1], q = (int64_t)c->attr.heads.q * c->attr.heads.dim;
    LAUNCH(cuda_of(c), { blocks_for(x->dim[0], 1), THREADS, 0, true }, scale_queries, mixed(*x),
           mixed(*y), (const int32_t *)c->in[1].data, cols, q, x->data == y->data ? q : cols,
           c->attr.heads.temper, c->attr.heads.temper_floor);
}

KERNEL(SCALE_QUERIES, cuda_scale_queries, NULL, ATTRS_HEADS | ATTRS_TEMPER);
KERNEL(SCALE_QUERIES_BWD, cuda_scale_queries, NULL, ATTRS_HEADS | ATTRS_TEMPER);
