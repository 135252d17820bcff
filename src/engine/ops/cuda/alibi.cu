/* ALIBI: q, k and v heads with the columns of ops/alibi.h; backward drops those. Grid: a block of 256 threads per row.
 * Bytes: each operand once. Deterministic. */
#include "device.cuh"
#include "ops/alibi.h"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256 };

typedef struct alibi_args {
    int q, kv, dim, wide, first, heads;
    float max, scale;
    bool back;
} alibi_args;

static __global__ void __launch_bounds__(THREADS)
    copy_alibi(mixed x, mixed y, const int32_t *pos, alibi_args a) {
    int64_t row = blockIdx.x;
    int heads = a.q + 2 * a.kv, to = a.back ? a.dim : a.wide, from = a.back ? a.wide : a.dim;
    await_previous();
    for (int e = threadIdx.x; e < heads * to; e += THREADS) {
        int h = e / to, at = e % to, more = at - a.dim;
        float v = 0;
        if (more < 0)
            v = read1(x.p, x.dt, (row * heads + h) * from + at);
        else if (more < ALIBI_COLS && h < a.q)
            v = alibi_query(alibi_slope(a.first + h, a.heads, a.max) / a.scale, more);
        else if (more < ALIBI_COLS && h < a.q + a.kv)
            v = alibi_key(pos[row], more);
        write1(y.p, y.dt, row * heads * to + e, v);
    }
}

static void cuda_alibi(const op_call *c) {
    alibi_args a = {};
    a.back = c->op == OP_ALIBI_BWD;
    a.q = c->attr.heads.q, a.kv = c->attr.heads.kv, a.dim = c->attr.heads.dim;
    a.wide = alibi_width(a.dim);
    a.first = c->attr.heads.first, a.heads = c->attr.alibi.heads;
    a.max = c->attr.alibi.max, a.scale = c->attr.heads.scale;
    LAUNCH(cuda_of(c), { (unsigned)c->in[0].dim[0], THREADS, 0, true }, copy_alibi, mixed(c->in[0]),
           mixed(c->out[0]), a.back ? NULL : (const int32_t *)c->in[1].data, a);
}

KERNEL(ALIBI, cuda_alibi, NULL, ATTRS_ALIBI);
KERNEL(ALIBI_BWD, cuda_alibi, NULL, ATTRS_HEADS);
