/* Rotary positions, forward and (the inverse rotation) backward: 2 x N x C elements, and the table's
 * rows. A thread turns eight pairs of the same columns in HEADS heads of a token, or copies eight
 * elements of what is not turned. Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, HEADS = 2 };

typedef struct rope_shape {
    int64_t rows, stride;
    int heads, dim, rot; /* q and k heads together */
    int pairs, rest;     /* eights of pairs and of the rest of a head */
    int turns, items;    /* of a token: those that turn; all */
    float sign;
} rope_shape;

/* Copies item number `item` of those that do not turn: the rest of heads, then v. */
template <class A>
static __device__ __forceinline__ void copy_item(A x, A y, const rope_shape &s, int item,
                                                 int64_t base) {
    bool in_head = item < s.heads * s.rest;
    int first = in_head ? item / s.rest * s.dim + s.rot + item % s.rest * 8
                        : s.heads * s.dim + (item - s.heads * s.rest) * 8;
    int64_t end = base + (in_head ? (item / s.rest + 1) * s.dim : s.stride);
    float v[8];
    x.load(base + first, end, v);
    y.store(base + first, end, v);
}

template <class A>
static __global__ void __launch_bounds__(THREADS)
    rope(A x, A y, const int32_t *pos, typename A::fp32 table, rope_shape s) {
    int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / (unsigned)s.items;
    int item = (int)(e - row * s.items), half = s.rot / 2;
    if (row >= s.rows) return;
    if (item >= s.turns) {
        copy_item(x, y, s, item - s.turns, row * s.stride);
        return;
    }
    int j = item % s.pairs * 8, head = item / s.pairs * HEADS;
    int64_t at = row * s.stride + (int64_t)head * s.dim, angle = (int64_t)pos[row] * s.rot;
    typename A::raw as[HEADS], bs[HEADS];
    float c[8], d[8];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int64_t base = at + h * s.dim;
        if (head + h >= s.heads) break;
        as[h] = x.fetch(base + j, base + half);
        bs[h] = x.fetch(base + half + j, base + s.rot);
    }
    table.load(angle + j, angle + half, c);
    table.load(angle + half + j, angle + s.rot, d);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int64_t base = at + h * s.dim;
        float a[8], b[8];
        if (head + h >= s.heads) break;
        A::widen(as[h], a);
        A::widen(bs[h], b);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float turned = a[k] * c[k] - s.sign * b[k] * d[k];
            b[k] = b[k] * c[k] + s.sign * a[k] * d[k];
            a[k] = turned;
        }
        y.store(base + j, base + half, a);
        y.store(base + half + j, base + s.rot, b);
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
    s.turns = s.items = (int)ceil_div(s.heads, HEADS) * s.pairs;
    if (x->data != y->data) /* what is not turned, too */
        s.items += s.heads * s.rest + (int)ceil_div(s.stride - (int64_t)s.heads * s.dim, 8);
    s.sign = c->op == OP_ROPE ? 1.0f : -1.0f;
    int unit = s.dim % 8 ? s.dim : s.rot / 2; /* where rows are cut: eights only where both are */
    const tensor *table[] = { &c->in[2] };
    dtype dt = common_type(unit, table, 1) == DT_F32 ? common_type(unit, all, 2) : DT_NONE;
    WITH_TYPE(dt, LAUNCH(cuda_of(c), { blocks_for(s.rows * s.items, THREADS), THREADS }, rope<A>,
                         A(*x, unit), A(*y, unit), (const int32_t *)c->in[1].data,
                         typename A::fp32(c->in[2], s.rot / 2), s));
}
