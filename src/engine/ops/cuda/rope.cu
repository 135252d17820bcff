/* Rotary position embedding, forward, and backward as the inverse rotation. Grid: one item per thread,
 * blocks of 256. An item rotates eight pairs, of the same columns in HEADS heads of a token, or copies
 * eight elements that are not rotated; in place there is nothing to copy. Bytes: 2 x N x C elements
 * (in place only q and k), and the rows of the table. Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, HEADS = 2 };

typedef struct rope_shape {
    int64_t rows, stride;
    int heads, dim, rot;  /* q and k heads together */
    int pairs, rest;      /* per head: groups of eight pairs, and of eight elements not rotated */
    int rotations, items; /* per token: items that rotate; all */
    float sign;
} rope_shape;

/* Copies item number `item` of those that are not rotated: the rest of each head, then v. */
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
    await_previous();
    if (row >= s.rows) return;
    if (item >= s.rotations) {
        copy_item(x, y, s, item - s.rotations, row * s.stride);
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
            float rotated = a[k] * c[k] - s.sign * b[k] * d[k];
            b[k] = b[k] * c[k] + s.sign * a[k] * d[k];
            a[k] = rotated;
        }
        y.store(base + j, base + half, a);
        y.store(base + half + j, base + s.rot, b);
    }
}

static void cuda_rope(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0], *all[] = { x, y };
    rope_shape s = {};
    s.rows = x->dim[0], s.stride = x->dim[1];
    s.heads = c->attr.heads.q + c->attr.heads.kv;
    s.dim = c->attr.heads.dim, s.rot = c->attr.heads.rot;
    s.pairs = (int)ceil_div(s.rot / 2, 8);
    s.rest = (int)ceil_div(s.dim - s.rot, 8);
    s.rotations = s.items = (int)ceil_div(s.heads, HEADS) * s.pairs;
    if (x->data != y->data) /* also copy what is not rotated */
        s.items += s.heads * s.rest + (int)ceil_div(s.stride - (int64_t)s.heads * s.dim, 8);
    s.sign = c->op == OP_ROPE ? 1.0f : -1.0f;
    int unit = s.dim % 8 ? s.dim : s.rot / 2; /* accesses start at its multiples */
    const tensor *table[] = { &c->in[2] };
    dtype dt = common_type(unit, table, 1) == DT_F32 ? common_type(unit, all, 2) : DT_NONE;
    WITH_TYPE(dt, LAUNCH(cuda_of(c), { blocks_for(s.rows * s.items, THREADS), THREADS, 0, true },
                         rope<A>, A(*x, unit), A(*y, unit), (const int32_t *)c->in[1].data,
                         typename A::fp32(c->in[2], s.rot / 2), s));
}

KERNEL(ROPE, cuda_rope, NULL, ATTRS_HEADS | ATTR(ROT));
KERNEL(ROPE_BWD, cuda_rope, NULL, ATTRS_HEADS | ATTR(ROT));
