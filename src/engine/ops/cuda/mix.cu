/* The residual and an earlier value of the chain, each times a learned factor; the formulas are those of cpu/mix.c.
 * Blocks of 256 threads, eight elements per thread and load; every operand is read once. Backward has a fixed grid whose
 * blocks loop over the elements, and each block writes its sums to a row of the workspace of its own: deterministic. */
#include "device.cuh"
#include "ops/op_table.h"

enum { THREADS = 256, BLOCKS = CUDA_PARTIALS };

/* Views a tensor as one row, so that only its end may not be a multiple of eight. */
static tensor as_one_row(const tensor *t) {
    int64_t n = tensor_count(t);
    return t->data ? tensor_of(t->data, t->dt, 1, &n) : tensor{};
}

/* Grid: n / 2048 blocks. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    mix_past(A x, A delta, A past, const float *a, const float *b, A r, A y, A kept, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    await_previous();
    if (i >= n) return;
    float by = a ? *a : 1, with = *b, v[8], p[8];
    x.load(i, n, v);
    past.load(i, n, p);
    if (delta.present()) {
        float d[8];
        delta.load(i, n, d);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = r.round(v[k] + d[k]);
    }
    if (r.present() && (delta.present() || r.p != x.p)) r.store(i, n, v);
    if (kept.present()) kept.store(i, n, p);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = by * v[k] + with * p[k];
    if (y.present()) y.store(i, n, v);
}

static void cuda_mix(const op_call *c) {
    tensor x = as_one_row(&c->in[0]), delta = as_one_row(&c->in[1]), past = as_one_row(&c->in[2]);
    tensor r = as_one_row(&c->out[0]), y = as_one_row(&c->out[1]), kept = as_one_row(&c->out[2]);
    const tensor *all[] = { &x, &delta, &past, &r, &y, &kept };
    int64_t n = x.dim[0];
    WITH_TYPE(common_type(n, all, 6),
              LAUNCH(cuda_of(c), { blocks_for(n, THREADS * EIGHT), THREADS, 0, true }, mix_past<A>,
                     A(x), A(delta), A(past), (const float *)c->in[3].data,
                     (const float *)c->in[4].data, A(r), A(y), A(kept), n));
}

/* Grid: at most BLOCKS blocks, which loop over the elements. partial: [blocks][2][EIGHT], of which the first of each
 * eight is used. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    mix_past_bwd(A dy, A r, A past, const float *a, const float *b, A dkept, A dx, A dpast,
                 float *partial, int64_t n) {
    __shared__ float smem[THREADS / WARP];
    float by = a ? *a : 1, with = *b, da = 0, db = 0;
    int64_t step = (int64_t)gridDim.x * THREADS * EIGHT;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n; i += step) {
        float g[8], v[8], p[8];
        dy.load(i, n, g); /* 0 beyond the end */
        r.load(i, n, v);
        past.load(i, n, p);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            da += g[k] * v[k];
            db += g[k] * p[k];
        }
        float so_far[8] = { 0 };
        if (dkept.present()) dkept.load(i, n, so_far);
#pragma unroll
        for (int k = 0; k < 8; k++) so_far[k] += with * g[k], g[k] *= by;
        dpast.store(i, n, so_far);
        dx.store(i, n, g);
    }
    da = block_sum(da, smem);
    db = block_sum(db, smem);
    if (threadIdx.x) return;
    partial[(int64_t)blockIdx.x * 2 * EIGHT] = da;
    partial[(int64_t)blockIdx.x * 2 * EIGHT + EIGHT] = db;
}

static void cuda_mix_bwd(const op_call *c) {
    tensor dy = as_one_row(&c->in[0]), r = as_one_row(&c->in[1]), past = as_one_row(&c->in[2]);
    tensor dkept = as_one_row(&c->in[5]);
    tensor dx = as_one_row(&c->out[0]), dpast = as_one_row(&c->out[1]);
    const tensor *all[] = { &dy, &r, &past, &dkept, &dx, &dpast };
    int64_t n = dy.dim[0], most = ceil_div(n, THREADS * EIGHT);
    int blocks = (int)(most < BLOCKS ? most : BLOCKS);
    float *partial = (float *)c->run->workspace;
    WITH_TYPE(common_type(n, all, 6),
              LAUNCH(cuda_of(c), { blocks, THREADS }, mix_past_bwd<A>, A(dy), A(r), A(past),
                     (const float *)c->in[3].data, (const float *)c->in[4].data, A(dkept), A(dx),
                     A(dpast), partial, n));
    cuda_sums o = { { (float *)c->out[2].data, (float *)c->out[3].data },
                    { (c->accumulate >> 2 & 1) != 0, (c->accumulate >> 3 & 1) != 0 },
                    1,
                    EIGHT };
    if (o.out[0] || o.out[1]) cuda_add_partials(cuda_of(c), partial, blocks, 2, &o);
}

static size_t cuda_mix_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * 2 * EIGHT * sizeof(float);
}

KERNEL(MIX, cuda_mix);
KERNEL(MIX_BWD, cuda_mix_bwd, cuda_mix_workspace);
