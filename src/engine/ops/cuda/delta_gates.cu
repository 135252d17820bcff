/* Ops around the gated delta rule, and the gate of attention's output; the formulas are those of cpu/delta_gates.c. Forward
 * has a thread per gate, a warp per head of the norm, a thread per eight elements of sigmoid_gate. Backward with weights has a
 * fixed grid whose blocks loop over rows, each with a row of the workspace for its sums: deterministic. Bytes: each operand once. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, BLOCKS = CUDA_PARTIALS };

static __device__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* ---- gates of the delta rule ------------------------------------------------------------------------- */
static __global__ void __launch_bounds__(THREADS)
    delta_gates(mixed ba, mixed rate, mixed shift, float *gate, int64_t n, int heads) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n * heads) return;
    int h = (int)(i % heads);
    int64_t at = i / heads * 2 * heads + h;
    float x = read1(ba.p, ba.dt, at + heads) + read1(shift.p, shift.dt, h);
    gate[at] = sigmoid(read1(ba.p, ba.dt, at));
    gate[at + heads] = -expf(read1(rate.p, rate.dt, h)) * softplus(x);
}

/* Grid: at most BLOCKS blocks, which loop over the rows; a thread has the same heads in each. */
static __global__ void __launch_bounds__(THREADS)
    delta_gates_bwd(const float *d, mixed ba, mixed rate, mixed shift, mixed dba, float *partial,
                    int64_t n, int heads, int wide) {
    for (int h = threadIdx.x; h < heads; h += THREADS) {
        float scale = -expf(read1(rate.p, rate.dt, h)), of_rate = 0, of_shift = 0;
        for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
            int64_t at = row * 2 * heads + h;
            float beta = sigmoid(read1(ba.p, ba.dt, at));
            float x = read1(ba.p, ba.dt, at + heads) + read1(shift.p, shift.dt, h);
            float da = d[at + heads] * scale * sigmoid(x);
            of_rate += d[at + heads] * scale * softplus(x);
            of_shift += da;
            if (!dba.present()) continue;
            write1(dba.p, dba.dt, at, d[at] * beta * (1 - beta));
            write1(dba.p, dba.dt, at + heads, da);
        }
        float *to = partial + (int64_t)blockIdx.x * 2 * wide + h;
        to[0] = of_rate, to[wide] = of_shift;
    }
}

static void cuda_delta_gates(const op_call *c) {
    const tensor *ba = &c->in[0];
    int heads = (int)(ba->dim[1] / 2);
    LAUNCH(cuda_of(c), { blocks_for(ba->dim[0] * heads, THREADS), THREADS }, delta_gates,
           mixed(*ba), mixed(ba[1]), mixed(ba[2]), (float *)c->out[0].data, ba->dim[0], heads);
}

static void cuda_delta_gates_bwd(const op_call *c) {
    const tensor *ba = &c->in[1];
    int heads = (int)(ba->dim[1] / 2), wide = (int)align_up((size_t)heads, EIGHT);
    int blocks = (int)(ba->dim[0] < BLOCKS ? ba->dim[0] : BLOCKS);
    float *partial = (float *)c->run->workspace;
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, delta_gates_bwd, (const float *)c->in[0].data,
           mixed(*ba), mixed(ba[1]), mixed(ba[2]), mixed(c->out[0]), partial, ba->dim[0], heads,
           wide);
    cuda_sums o = { { (float *)c->out[1].data, (float *)c->out[2].data },
                    { (c->accumulate >> 1 & 1) != 0, (c->accumulate >> 2 & 1) != 0 },
                    heads,
                    wide };
    cuda_add_partials(cuda_of(c), partial, blocks, 2, &o);
}

static size_t cuda_delta_gates_workspace(const op_backend *b, const op_call *c, int threads) {
    return 2 * BLOCKS * align_up((size_t)c->in[2].dim[0], EIGHT) * sizeof(float);
}

/* ---- norm of heads with a gate ------------------------------------------------------------------------- */
/* A warp per head of a token. */
static __global__ void __launch_bounds__(THREADS)
    gated_norm(mixed x, mixed z, mixed w, mixed y, float *stat, int64_t n, int dim, float eps) {
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, at = i * dim;
    int lane = threadIdx.x % WARP;
    if (i >= n) return;
    float sum = 0;
    for (int e = lane; e < dim; e += WARP) {
        float v = read1(x.p, x.dt, at + e);
        sum += v * v;
    }
    float r = rsqrtf(warp_sum(sum) / (float)dim + eps);
    if (lane == 0) stat[i] = r;
    for (int e = lane; e < dim; e += WARP) {
        float g = read1(z.p, z.dt, at + e), by = w.present() ? read1(w.p, w.dt, e) : 1;
        write1(y.p, y.dt, at + e, read1(x.p, x.dt, at + e) * r * by * g * sigmoid(g));
    }
}

/* Grid: at most BLOCKS blocks, which loop over heads of tokens. */
static __global__ void __launch_bounds__(THREADS)
    gated_norm_bwd(mixed dy, mixed x, mixed z, const float *stat, mixed w, mixed dx, mixed dz,
                   float *partial, int64_t n, int dim, int wide) {
    __shared__ float smem[WARPS];
    float *dw = partial + (int64_t)blockIdx.x * wide;
    for (int e = threadIdx.x; e < dim; e += THREADS) dw[e] = 0;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        int64_t at = i * dim;
        float r = stat[i], sum = 0;
        for (int e = threadIdx.x; e < dim; e += THREADS) {
            float g = read1(z.p, z.dt, at + e), s = sigmoid(g),
                  by = w.present() ? read1(w.p, w.dt, e) : 1;
            float v = read1(x.p, x.dt, at + e), d = read1(dy.p, dy.dt, at + e), plain = d * v * r;
            dw[e] += plain * g * s;
            sum += d * by * g * s * v;
            if (dz.present()) write1(dz.p, dz.dt, at + e, plain * by * s * (1 + g * (1 - s)));
        }
        sum = r * r * block_sum(sum, smem) / (float)dim;
        for (int e = threadIdx.x; dx.present() && e < dim; e += THREADS) {
            float g = read1(z.p, z.dt, at + e), by = w.present() ? read1(w.p, w.dt, e) : 1;
            float u = read1(dy.p, dy.dt, at + e) * by * g * sigmoid(g);
            write1(dx.p, dx.dt, at + e, r * (u - sum * read1(x.p, x.dt, at + e)));
        }
    }
}

static void cuda_gated_norm(const op_call *c) {
    int64_t n = tensor_count(&c->out[1]), dim = tensor_count(&c->in[0]) / n;
    LAUNCH(cuda_of(c), { blocks_for(n, WARPS), THREADS }, gated_norm, mixed(c->in[0]),
           mixed(c->in[1]), mixed(c->in[2]), mixed(c->out[0]), (float *)c->out[1].data, n, (int)dim,
           c->attr.eps);
}

static void cuda_gated_norm_bwd(const op_call *c) {
    int64_t n = tensor_count(&c->in[3]), dim = tensor_count(&c->in[0]) / n;
    int blocks = (int)(n < BLOCKS ? n : BLOCKS), wide = (int)align_up((size_t)dim, EIGHT);
    float *partial = (float *)c->run->workspace;
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, gated_norm_bwd, mixed(c->in[0]),
           mixed(c->in[1]), mixed(c->in[2]), (const float *)c->in[3].data, mixed(c->in[4]),
           mixed(c->out[0]), mixed(c->out[1]), partial, n, (int)dim, wide);
    if (!c->out[2].data) return;
    cuda_sums o = {
        { (float *)c->out[2].data, NULL }, { (c->accumulate >> 2 & 1) != 0, false }, (int)dim, wide
    };
    cuda_add_partials(cuda_of(c), partial, blocks, 1, &o);
}

static size_t cuda_gated_norm_workspace(const op_backend *b, const op_call *c, int threads) {
    return BLOCKS * align_up((size_t)(c->in[0].dim[1] / c->in[3].dim[1]), EIGHT) * sizeof(float);
}

/* ---- a gate of each element ------------------------------------------------------------------------------ */
template <class A>
static __global__ void __launch_bounds__(THREADS) sigmoid_gate(A x, A gate, A y, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    float v[8], g[8];
    await_previous();
    if (i >= n) return;
    x.load(i, n, v);
    gate.load(i, n, g);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] *= sigmoid(g[k]);
    y.store(i, n, v);
}

template <class A>
static __global__ void __launch_bounds__(THREADS)
    sigmoid_gate_bwd(A dy, A x, A gate, A dx, A dgate, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    float d[8], v[8], g[8];
    if (i >= n) return;
    dy.load(i, n, d);
    x.load(i, n, v);
    gate.load(i, n, g);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float s = sigmoid(g[k]);
        d[k] *= s;
        g[k] = d[k] * v[k] * (1 - s);
    }
    if (dx.present()) dx.store(i, n, d);
    if (dgate.present()) dgate.store(i, n, g);
}

static void cuda_sigmoid_gate(const op_call *c) {
    const tensor *x = &c->in[0], *gate = &c->in[1], *y = &c->out[0], *all[] = { x, gate, y };
    int64_t n = tensor_count(x);
    WITH_TYPE(common_type(n, all, 3),
              LAUNCH(cuda_of(c), { blocks_for(n, THREADS * EIGHT), THREADS, 0, true },
                     sigmoid_gate<A>, A(*x, n), A(*gate, n), A(*y, n), n));
}

static void cuda_sigmoid_gate_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *x = &c->in[1], *gate = &c->in[2], *dx = &c->out[0],
                 *dg = &c->out[1];
    const tensor *all[] = { dy, x, gate, dx, dg };
    int64_t n = tensor_count(x);
    WITH_TYPE(common_type(n, all, 5),
              LAUNCH(cuda_of(c), { blocks_for(n, THREADS * EIGHT), THREADS }, sigmoid_gate_bwd<A>,
                     A(*dy, n), A(*x, n), A(*gate, n), A(*dx, n), A(*dg, n), n));
}

KERNEL(DELTA_GATES, cuda_delta_gates);
KERNEL(DELTA_GATES_BWD, cuda_delta_gates_bwd, cuda_delta_gates_workspace);
KERNEL(GATED_NORM, cuda_gated_norm, NULL, ATTR(EPS));
KERNEL(GATED_NORM_BWD, cuda_gated_norm_bwd, cuda_gated_norm_workspace);
KERNEL(SIGMOID_GATE, cuda_sigmoid_gate);
KERNEL(SIGMOID_GATE_BWD, cuda_sigmoid_gate_bwd);
