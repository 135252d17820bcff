/* Other orders of columns and rows: what an exchange between ranks needs before and after it. A block of
 * 256 threads per row; each element is read once and written once. Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256 };

typedef struct reorder {
    int64_t cols;
    int64_t q, kv, parts;      /* columns of q and of k; groups. parts 0: columns stay */
    int64_t outer, inner, run; /* rows: [outer, inner, run] becomes [inner, outer, run] */
    bool back;                 /* the other way: groups become q|k|v */
} reorder;

/* The column of q|k|v that column e of the groups is. */
static __device__ int64_t plain_column(const reorder &r, int64_t e) {
    if (!r.parts) return e;
    int64_t group = r.cols / r.parts, part = e / group, q = r.q / r.parts, kv = r.kv / r.parts;
    e -= part * group;
    if (e < q) return part * q + e;
    e -= q;
    return e < kv ? r.q + part * kv + e : r.q + r.kv + part * kv + e - kv;
}

static __global__ void __launch_bounds__(THREADS) copy_reordered(mixed x, mixed y, reorder r) {
    int64_t row = blockIdx.x, block = row / r.run, at = row % r.run;
    int64_t to = ((block % r.inner) * r.outer + block / r.inner) * r.run + at;
    for (int64_t e = threadIdx.x; e < r.cols; e += THREADS) {
        int64_t p = plain_column(r, e), from = r.back ? e : p, into = r.back ? p : e;
        write1(y.p, y.dt, to * r.cols + into, read1(x.p, x.dt, row * r.cols + from));
    }
}

static void launch_reorder(const op_call *c, reorder r) {
    r.cols = c->in[0].dim[1];
    LAUNCH(cuda_of(c), { (unsigned)c->in[0].dim[0], THREADS }, copy_reordered, mixed(c->in[0]),
           mixed(c->out[0]), r);
}

static void cuda_group_heads(const op_call *c) {
    reorder r = {};
    r.q = (int64_t)c->attr.heads.q * c->attr.heads.dim;
    r.kv = (int64_t)c->attr.heads.kv * c->attr.heads.dim;
    r.parts = c->attr.reorder.parts;
    r.outer = r.inner = 1, r.run = c->in[0].dim[0];
    r.back = c->op == OP_GROUP_HEADS_BWD;
    launch_reorder(c, r);
}

static void cuda_swap_rows(const op_call *c) {
    bool back = c->op == OP_SWAP_ROWS_BWD;
    int64_t a = c->attr.reorder.outer, b = c->attr.reorder.inner;
    reorder r = {};
    r.outer = back ? b : a, r.inner = back ? a : b, r.run = c->in[0].dim[0] / (a * b);
    launch_reorder(c, r);
}

/* all[N, q + kv] is q[N] | kv[N]: copied apart, or together. */
static __global__ void __launch_bounds__(THREADS)
    copy_parts(mixed all, mixed q, mixed kv, int64_t left, int64_t right, bool join) {
    int64_t row = blockIdx.x, cols = left + right;
    for (int64_t e = threadIdx.x; e < cols; e += THREADS) {
        mixed &part = e < left ? q : kv;
        int64_t at = e < left ? row * left + e : row * right + e - left, whole = row * cols + e;
        if (join)
            write1(all.p, all.dt, whole, read1(part.p, part.dt, at));
        else
            write1(part.p, part.dt, at, read1(all.p, all.dt, whole));
    }
}

static void cuda_split_heads(const op_call *c) {
    bool join = c->op == OP_SPLIT_HEADS_BWD;
    const tensor *all = join ? &c->out[0] : &c->in[0], *q = join ? &c->in[0] : &c->out[0],
                 *kv = join ? &c->in[1] : &c->out[1];
    LAUNCH(cuda_of(c), { (unsigned)all->dim[0], THREADS }, copy_parts, mixed(*all), mixed(*q),
           mixed(*kv), q->dim[1], kv->dim[1], join);
}

KERNEL(SPLIT_HEADS, cuda_split_heads);
KERNEL(SPLIT_HEADS_BWD, cuda_split_heads);
KERNEL(GROUP_HEADS, cuda_group_heads, NULL, ATTRS_HEADS | ATTR(PARTS));
KERNEL(GROUP_HEADS_BWD, cuda_group_heads, NULL, ATTRS_HEADS | ATTR(PARTS));
KERNEL(SWAP_ROWS, cuda_swap_rows, NULL, ATTRS_SWAP);
KERNEL(SWAP_ROWS_BWD, cuda_swap_rows, NULL, ATTRS_SWAP);
