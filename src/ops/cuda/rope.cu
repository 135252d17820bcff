/* Rotary positions, forward and (the inverse rotation) backward: 2 x N x C elements, and the table's
 * rows. A thread turns eight pairs of one head, or copies eight elements of what is not turned. */
#include "device.cuh"

enum { THREADS = 256, PER_SM = 16 };

typedef struct rope_shape {
    int64_t rows, stride;
    int heads, dim, rot;   /* q and k heads together */
    int pairs, rest, tail; /* items: eights of pairs and of the rest of a head; of v */
    float sign;
    bool copy; /* y is not x: what is not turned must be copied */
} rope_shape;

template <class A>
static __global__ void rope(A x, A y, const int32_t *pos, mixed table, rope_shape s) {
    int64_t turn = (int64_t)s.heads * s.pairs,
            move = s.copy ? (int64_t)s.heads * s.rest + s.tail : 0;
    int64_t each = turn + move, total = s.rows * each;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total;
         e += (int64_t)gridDim.x * THREADS) {
        int64_t row = e / each, item = e % each, base = row * s.stride;
        float a[8], b[8], c[8], d[8];
        if (item >= turn) {
            item -= turn;
            bool in_head = item < (int64_t)s.heads * s.rest;
            int64_t first = in_head ? item / s.rest * s.dim + s.rot + item % s.rest * 8
                                    : (int64_t)s.heads * s.dim + (item - s.heads * s.rest) * 8;
            int64_t end = base + (in_head ? (item / s.rest + 1) * s.dim : s.stride);
            x.load(base + first, end, a);
            y.store(base + first, end, a);
            continue;
        }
        int half = s.rot / 2, j = (int)(item % s.pairs) * 8;
        int64_t at = base + item / s.pairs * s.dim, angle = (int64_t)pos[row] * s.rot;
        x.load(at + j, at + half, a);
        x.load(at + half + j, at + s.rot, b);
        table.load(angle + j, angle + half, c);
        table.load(angle + half + j, angle + s.rot, d);
        for (int k = 0; k < 8; k++) {
            float u = a[k] * c[k] - s.sign * b[k] * d[k];
            b[k] = b[k] * c[k] + s.sign * a[k] * d[k];
            a[k] = u;
        }
        y.store(at + j, at + half, a);
        y.store(at + half + j, at + s.rot, b);
    }
}

extern "C" void cuda_rope(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0], *all[] = { x, y };
    rope_shape s = {};
    s.rows = x->dim[0], s.stride = x->dim[1];
    s.heads = c->attr.heads.q + c->attr.heads.kv;
    s.dim = c->attr.heads.dim, s.rot = c->attr.heads.rot;
    s.pairs = (int)ceil_div(s.rot / 2, 8);
    s.rest = (int)ceil_div(s.dim - s.rot, 8);
    s.tail = (int)ceil_div(s.stride - (int64_t)s.heads * s.dim, 8);
    s.sign = c->op == OP_ROPE ? 1.0f : -1.0f;
    s.copy = x->data != y->data;
    int unit = s.dim % 8 ? s.dim : s.rot / 2; /* where rows are cut: eights only where both are */
    int64_t items = s.rows * ((int64_t)s.heads * (s.pairs + s.rest) + s.tail);
    int blocks = grid_for(cuda_of(c), items, THREADS, PER_SM);
    WITH_TYPE(common_type(unit, all, 2),
              (rope<A><<<blocks, THREADS, 0, cuda_stream(c)>>>(A(*x, unit), A(*y, unit),
                                                               (const int32_t *)c->in[1].data,
                                                               mixed(c->in[2], s.rot / 2), s)));
    CUDA_LAUNCHED(c);
}
