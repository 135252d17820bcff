/* Sums, casts, scales and dropout: each element read once and written once. Blocks of 256 threads,
 * eight elements a thread at a time, in a grid-stride loop. Deterministic. */
#include "device.cuh"

enum { THREADS = 256, PER_SM = 16 };

/* A tensor as one row, so that only its end may be ragged. */
static tensor flat(const tensor *t) {
    int64_t n = tensor_count(t);
    return t->data ? tensor_of(t->data, t->dt, 1, &n) : tensor{};
}

/* y = by (a + b); 3 x (without b 2 x) the tensor's bytes. */
template <class A> static __global__ void add(A a, A b, A y, int64_t n, float by) {
    int64_t step = (int64_t)gridDim.x * THREADS * EIGHT;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n; i += step) {
        float p[8], q[8];
        a.load(i, n, p);
        if (b.present()) {
            b.load(i, n, q);
            for (int k = 0; k < 8; k++) p[k] += q[k];
        }
        for (int k = 0; k < 8; k++) p[k] *= by;
        y.store(i, n, p);
    }
}

static void add_launch(cuda_context *x, const tensor *at, const tensor *bt, const tensor *yt,
                       float by) {
    tensor a = flat(at), b = flat(bt), y = flat(yt);
    const tensor *all[] = { &a, &b, &y };
    int64_t n = a.dim[0];
    int blocks = grid_for(x, n, THREADS * EIGHT, PER_SM);
    WITH_TYPE(common_type(n, all, 3),
              (add<A><<<blocks, THREADS, 0, x->stream>>>(A(a), A(b), A(y), n, by)));
    cuda_ok(x, cudaGetLastError(), __FILE__, __LINE__);
}

extern "C" void cuda_add(const op_call *c) {
    add_launch(cuda_of(c), &c->in[0], &c->in[1], &c->out[0], 1);
}
extern "C" void cuda_scale(const op_call *c) {
    tensor none = {};
    add_launch(cuda_of(c), &c->in[0], &none, &c->out[0], c->attr.scale.by);
}
extern "C" void cuda_convert(cuda_context *x, const tensor *from, const tensor *to) {
    tensor none = {};
    add_launch(x, from, &none, to, 1);
}

extern "C" void cuda_zero(const op_call *c) {
    CUDA_OK(cuda_of(c),
            cudaMemsetAsync(c->out[0].data, 0, tensor_bytes(&c->out[0]), cuda_stream(c)));
}

/* ---- dropout: the CPU's mask, bit for bit ------------------------------------------------------ */

static __device__ __forceinline__ void philox(uint2 key, uint4 ctr, uint32_t out[4]) {
#pragma unroll
    for (int round = 0; round < 10; round++, key.x += 0x9E3779B9u, key.y += 0xBB67AE85u) {
        uint32_t h0 = __umulhi(0xD2511F53u, ctr.x), l0 = 0xD2511F53u * ctr.x;
        uint32_t h1 = __umulhi(0xCD9E8D57u, ctr.z), l1 = 0xCD9E8D57u * ctr.z;
        ctr = make_uint4(h1 ^ ctr.y ^ key.x, l1, h0 ^ ctr.w ^ key.y, l0);
    }
    out[0] = ctr.x, out[1] = ctr.y, out[2] = ctr.z, out[3] = ctr.w;
}

template <class A>
static __global__ void dropout(A x, A y, const int64_t *id, const step_block *step, int64_t rows,
                               int64_t cols, uint32_t site, uint32_t below, float keep) {
    uint2 key = make_uint2(step->dropout.k[0], step->dropout.k[1]);
    int64_t eights = (cols + 7) / 8, total = rows * eights;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < total; e += stride) {
        int64_t row = e / eights, col = e % eights * 8, at = row * cols + col;
        float v[8];
        uint32_t bits[8];
        uint64_t token = (uint64_t)id[row];
        x.load(at, row * cols + cols, v);
        for (int h = 0; h < 2; h++)
            philox(
                key,
                make_uint4(site, (uint32_t)token, (uint32_t)(token >> 32), (uint32_t)(col / 4 + h)),
                bits + 4 * h);
        for (int k = 0; k < 8; k++) v[k] = bits[k] < below ? 0.0f : v[k] * keep;
        y.store(at, row * cols + cols, v);
    }
}

extern "C" void cuda_dropout(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0], *all[] = { x, y };
    double p = c->attr.dropout.p;
    BUG_IF(!(p >= 0 && p < 1) || c->attr.dropout.site >> 16);
    int64_t rows = x->dim[0], cols = x->dim[1];
    int blocks = grid_for(cuda_of(c), rows * ceil_div(cols, 8), THREADS, PER_SM);
    uint32_t site = c->attr.dropout.site | c->run->layer << 16;
    uint32_t below = (uint32_t)(p * 4294967296.0);
    float keep = (float)(1 / (1 - p));
    WITH_TYPE(common_type(cols, all, 2), (dropout<A><<<blocks, THREADS, 0, cuda_stream(c)>>>(
                                             A(*x), A(*y), (const int64_t *)c->in[1].data,
                                             c->run->step, rows, cols, site, below, keep)));
    CUDA_LAUNCHED(c);
}
