/* The gate of a token, which multiplies its row; the formulas are those of cpu/gates.c. A block of 256 threads per row;
 * backward has a fixed grid whose blocks loop over rows, and each block adds the gradient of w into a row of the workspace that is its own: deterministic. Bytes moved: every operand
 * once, of backward y and dz twice. */
#include "device.cuh"
#include "ops/op_table.h"

enum { THREADS = 256, BLOCKS = CUDA_PARTIALS };

template <class X, class W>
static __device__ __forceinline__ float block_dot(const X &a, int64_t a_at, const W &b,
                                                  int64_t b_at, int64_t n, float *smem) {
    float sum = 0;
    for (int64_t i = threadIdx.x * EIGHT; i < n; i += THREADS * EIGHT) {
        float p[8], q[8];
        a.load(a_at + i, a_at + n, p); /* 0 beyond the row */
        b.load(b_at + i, b_at + n, q);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += p[e] * q[e];
    }
    return block_sum(sum, smem);
}

template <class A, class B>
static __device__ __forceinline__ void block_scale(const A &from, int64_t at, const B &to,
                                                   int64_t to_at, int64_t n, float by) {
    for (int64_t i = threadIdx.x * EIGHT; i < n; i += THREADS * EIGHT) {
        float v[8];
        from.load(at + i, at + n, v);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] *= by;
        to.store(to_at + i, to_at + n, v);
    }
}

/* Grid: a block per row. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    gate_rows(A y, mixed x, mixed w, A z, int64_t d, int64_t k) {
    __shared__ float smem[THREADS / WARP];
    int64_t row = blockIdx.x;
    float g = sigmoid(block_dot(x, row * k, w, 0, k, smem));
    block_scale(y, row * d, z, row * d, d, g);
}

/* Grid: BLOCKS blocks, which loop over the rows. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    gate_rows_bwd(A dz, A y, mixed x, mixed w, A dy, mixed dx, float *partial, int64_t n, int64_t d,
                  int64_t k, int64_t wide) {
    __shared__ float smem[THREADS / WARP];
    float *dw = partial + (int64_t)blockIdx.x * wide;
    for (int64_t i = threadIdx.x; i < k; i += THREADS) dw[i] = 0;
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
        float g = sigmoid(block_dot(x, row * k, w, 0, k, smem));
        float ds = g * (1 - g) * block_dot(dz, row * d, y, row * d, d, smem);
        if (dy.present()) block_scale(dz, row * d, dy, row * d, d, g);
        if (dx.present()) block_scale(w, 0, dx, row * k, k, ds);
        for (int64_t i = threadIdx.x; i < k; i += THREADS)
            dw[i] += ds * read1(x.p, x.dt, row * k + i);
    }
}

static void cuda_gate_rows(const op_call *c) {
    const tensor *y = &c->in[0], *x = &c->in[1], *z = &c->out[0], *all[] = { y, z };
    WITH_TYPE(common_type(y->dim[1], all, 2),
              LAUNCH(cuda_of(c), { blocks_for(y->dim[0], 1), THREADS }, gate_rows<A>, A(*y),
                     mixed(*x), mixed(c->in[2]), A(*z), y->dim[1], x->dim[1]));
}

static void cuda_gate_rows_bwd(const op_call *c) {
    const tensor *dz = &c->in[0], *y = &c->in[1], *x = &c->in[2], *dy = &c->out[0];
    const tensor *all[] = { dz, y, dy };
    int64_t n = y->dim[0], d = y->dim[1], k = x->dim[1];
    int blocks = (int)(n < BLOCKS ? n : BLOCKS), wide = (int)align_up((size_t)k, EIGHT);
    float *partial = (float *)c->run->workspace;
    WITH_TYPE(common_type(d, all, 3),
              LAUNCH(cuda_of(c), { blocks, THREADS }, gate_rows_bwd<A>, A(*dz), A(*y), mixed(*x),
                     mixed(c->in[3]), A(*dy), mixed(c->out[1]), partial, n, d, k, wide));
    if (!c->out[2].data) return;
    cuda_sums o = {
        { (float *)c->out[2].data, NULL }, { (c->accumulate >> 2 & 1) != 0, false }, (int)k, wide
    };
    cuda_add_partials(cuda_of(c), partial, blocks, 1, &o);
}

static size_t cuda_gate_rows_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * align_up((size_t)c->in[3].dim[1], EIGHT) * sizeof(float);
}

KERNEL(GATE_ROWS, cuda_gate_rows);
KERNEL(GATE_ROWS_BWD, cuda_gate_rows_bwd, cuda_gate_rows_workspace);
