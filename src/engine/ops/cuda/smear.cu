/* A share of the previous token's row, through a gate; the formulas are those of cpu/smear.c. A warp per row, eight elements
 * per lane and load, the gate's channels one per lane. Backward has a fixed grid whose warps loop over the rows, and each
 * block writes its sums to a row of the workspace of its own: deterministic. Bytes moved: every operand once, of backward
 * dy twice; the row before is in the cache. */
#include "device.cuh"
#include "ops/op_table.h"

enum { THREADS = 256, ROWS = THREADS / WARP, BLOCKS = CUDA_PARTIALS };

typedef struct smear_shape {
    int64_t n, d;
    int gate;
} smear_shape;

/* Whether a token has a previous one. */
static __device__ __forceinline__ bool smears(const int32_t *pos, int64_t row, bool own,
                                              smear_shape s) {
    return row < s.n && pos[row] != 0 && (own || row > 0);
}

/* @return the lane's channel of the gate, 0 beyond them. */
static __device__ __forceinline__ float gate_channel(const mixed &x, int64_t row, smear_shape s) {
    int lane = threadIdx.x % WARP;
    return lane < s.gate ? read1(x.p, x.dt, row * s.d + lane) : 0;
}

/* Grid: a warp per row. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    smear_rows(A x, mixed channels, A prev, const int32_t *pos, const float *w, const float *scale,
               A y, smear_shape s) {
    int lane = threadIdx.x % WARP;
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
    await_previous();
    if (row >= s.n) return;
    bool any = smears(pos, row, prev.present(), s);
    float with = lane < s.gate ? w[lane] : 0;
    float by = *scale * sigmoid(warp_sum(with * gate_channel(channels, row, s)));
    int64_t at = row * s.d, before = prev.present() ? at : at - s.d;
    for (int64_t k = lane * EIGHT; k < s.d; k += WARP * EIGHT) {
        float v[8], p[8] = { 0 };
        x.load(at + k, at + s.d, v);
        if (any && prev.present()) prev.load(before + k, before + s.d, p);
        if (any && !prev.present()) x.load(before + k, before + s.d, p);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += any ? by * p[e] : 0;
        y.store(at + k, at + s.d, v);
    }
}

static smear_shape smear_shape_of(const tensor *x, const tensor *w) {
    smear_shape s = { x->dim[0], x->dim[1], (int)w->dim[0] };
    BUG_IF(s.gate > WARP || s.gate > s.d);
    return s;
}

static void cuda_smear(const op_call *c) {
    const tensor *x = &c->in[0], *prev = &c->in[1], *y = &c->out[0], *all[] = { x, prev, y };
    smear_shape s = smear_shape_of(x, &c->in[3]);
    WITH_TYPE(common_type(s.d, all, 3),
              LAUNCH(cuda_of(c), { blocks_for(s.n, ROWS), THREADS, 0, true }, smear_rows<A>, A(*x),
                     mixed(*x), A(*prev), (const int32_t *)c->in[2].data,
                     (const float *)c->in[3].data, (const float *)c->in[4].data, A(*y), s));
}

/* Grid: at most BLOCKS blocks, whose warps loop over the rows. Each block writes its sums: [blocks][WARP] of dw, and
 * [blocks][EIGHT] of ds behind them, of which the first of each eight is used. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    smear_rows_bwd(A dy, A x, mixed channels, A prev, const int32_t *pos, const float *w,
                   const float *scale, A dx, A dprev, float *partial, smear_shape s) {
    __shared__ float of_w[ROWS][WARP], of_s[ROWS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    bool own = prev.present();
    float with = lane < s.gate ? w[lane] : 0, dw = 0, ds = 0, by = *scale;
    for (int64_t row = (int64_t)blockIdx.x * ROWS + warp; row < s.n;
         row += (int64_t)gridDim.x * ROWS) {
        bool any = smears(pos, row, own, s), read = !own && smears(pos, row + 1, own, s);
        int64_t at = row * s.d, before = own ? at : at - s.d;
        float c = gate_channel(channels, row, s), g = 0, dz = 0, next = 0;
        if (any) {
            float dot = 0;
            for (int64_t k = lane * EIGHT; k < s.d; k += WARP * EIGHT) {
                float v[8], p[8];
                dy.load(at + k, at + s.d, v); /* 0 beyond the row */
                if (own)
                    prev.load(before + k, before + s.d, p);
                else
                    x.load(before + k, before + s.d, p);
#pragma unroll
                for (int e = 0; e < 8; e++) dot += v[e] * p[e];
            }
            dot = warp_sum(dot);
            g = sigmoid(warp_sum(with * c));
            dz = by * g * (1 - g) * dot;
            dw += dz * c;
            ds += g * dot;
        }
        if (read) next = by * sigmoid(warp_sum(with * gate_channel(channels, row + 1, s)));
        for (int64_t k = lane * EIGHT; k < s.d; k += WARP * EIGHT) {
            float v[8], p[8] = { 0 };
            dy.load(at + k, at + s.d, v);
            if (read) dy.load(at + s.d + k, at + 2 * s.d, p);
            if (dprev.present()) {
                float q[8];
#pragma unroll
                for (int e = 0; e < 8; e++) q[e] = by * g * v[e];
                dprev.store(at + k, at + s.d, q);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (read) v[e] += next * p[e];
                if (any && k + e < s.gate) v[e] += dz * w[k + e];
            }
            if (dx.present()) dx.store(at + k, at + s.d, v);
        }
    }
    of_w[warp][lane] = dw;
    if (lane == 0) of_s[warp] = ds;
    __syncthreads();
    if (warp) return;
    float sum = 0, sum_s = 0;
    for (int i = 0; i < ROWS; i++) {
        sum += of_w[i][lane];
        sum_s += of_s[i];
    }
    partial[(int64_t)blockIdx.x * WARP + lane] = sum;
    if (lane == 0) partial[(int64_t)gridDim.x * WARP + (int64_t)blockIdx.x * EIGHT] = sum_s;
}

static void cuda_smear_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *x = &c->in[1], *prev = &c->in[2];
    const tensor *dx = &c->out[0], *dprev = &c->out[1], *all[] = { dy, x, prev, dx, dprev };
    smear_shape s = smear_shape_of(x, &c->in[4]);
    int64_t most = ceil_div(s.n, ROWS);
    int blocks = (int)(most < BLOCKS ? most : BLOCKS);
    float *partial = (float *)c->run->workspace;
    WITH_TYPE(common_type(s.d, all, 5),
              LAUNCH(cuda_of(c), { blocks, THREADS }, smear_rows_bwd<A>, A(*dy), A(*x), mixed(*x),
                     A(*prev), (const int32_t *)c->in[3].data, (const float *)c->in[4].data,
                     (const float *)c->in[5].data, A(*dx), A(*dprev), partial, s));
    cuda_sums of_w = {
        { (float *)c->out[2].data, NULL }, { (c->accumulate >> 2 & 1) != 0, false }, s.gate, WARP
    };
    cuda_sums of_s = {
        { (float *)c->out[3].data, NULL }, { (c->accumulate >> 3 & 1) != 0, false }, 1, EIGHT
    };
    if (of_w.out[0]) cuda_add_partials(cuda_of(c), partial, blocks, 1, &of_w);
    if (of_s.out[0])
        cuda_add_partials(cuda_of(c), partial + (int64_t)blocks * WARP, blocks, 1, &of_s);
}

static size_t cuda_smear_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * (WARP + EIGHT) * sizeof(float);
}

KERNEL(SMEAR, cuda_smear);
KERNEL(SMEAR_BWD, cuda_smear_bwd, cuda_smear_workspace);
