/* Sums, casts, scaling and dropout: each element is read once and written once. Blocks of 256 threads,
 * eight elements per thread and load. Deterministic. */
#include "device.cuh"
#include "philox.cuh"

enum { THREADS = 256 };

/* @return the tensor as one row, so that only its end may not be a multiple of eight. */
static tensor flatten_tensor(const tensor *t) {
    int64_t n = tensor_count(t);
    return t->data ? tensor_of(t->data, t->dt, 1, &n) : tensor{};
}

/* y = by (a + b), or by a without b. Grid: n / 2048 blocks. */
template <class A>
static __global__ void __launch_bounds__(THREADS) add_scaled(A a, A b, A y, int64_t n, float by) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT;
    await_previous();
    if (i >= n) return;
    float p[8], q[8];
    a.load(i, n, p);
    if (b.present()) {
        b.load(i, n, q);
#pragma unroll
        for (int k = 0; k < 8; k++) p[k] += q[k];
    }
#pragma unroll
    for (int k = 0; k < 8; k++) p[k] *= by;
    y.store(i, n, p);
}

static void launch_add(cuda_context *x, const tensor *at, const tensor *bt, const tensor *yt,
                       float by) {
    tensor a = flatten_tensor(at), b = flatten_tensor(bt), y = flatten_tensor(yt);
    const tensor *all[] = { &a, &b, &y };
    int64_t n = a.dim[0];
    WITH_TYPE(common_type(n, all, 3),
              LAUNCH(x, { blocks_for(n, THREADS * EIGHT), THREADS, 0, true }, add_scaled<A>, A(a),
                     A(b), A(y), n, by));
}

static void cuda_add(const op_call *c) {
    bool onto_itself = c->in[0].data == c->out[0].data && c->in[0].dt == c->out[0].dt;
    if (!c->in[1].data && onto_itself) return;
    launch_add(cuda_of(c), &c->in[0], &c->in[1], &c->out[0], 1);
}
static void cuda_accumulate(const op_call *c) {
    tensor none = {};
    launch_add(cuda_of(c), &c->in[0], c->accumulate & 1 ? &c->out[0] : &none, &c->out[0], 1);
}
static void cuda_scale(const op_call *c) {
    tensor none = {};
    launch_add(cuda_of(c), &c->in[0], &none, &c->out[0], c->attr.scale.by);
}
extern "C" void cuda_convert(cuda_context *x, const tensor *from, const tensor *to) {
    tensor none = {};
    launch_add(x, from, &none, to, 1);
}

extern "C" void cuda_add_on_stream(void *context, void *stream, const tensor *a, const tensor *b,
                                   const tensor *out) {
    cuda_context x = { (cuda_device *)context, (cudaStream_t)stream };
    launch_add(&x, a, b, out, 1);
}

static void cuda_zero(const op_call *c) {
    CUDA_OK(cuda_of(c),
            cudaMemsetAsync(c->out[0].data, 0, tensor_bytes(&c->out[0]), cuda_stream(c)));
}

/* ---- dropout: the mask is bit-exact with the CPU's ---------------------------------------------- */

/* Grid: a block per row. Four columns share one Philox counter. */
template <class A>
static __global__ void __launch_bounds__(THREADS)
    dropout(A x, A y, const int64_t *id, const step_block *step, int64_t cols, uint32_t site,
            uint32_t below, float keep) {
    uint2 key = make_uint2(step->dropout.k[0], step->dropout.k[1]);
    uint64_t token = (uint64_t)id[blockIdx.x];
    int64_t base = blockIdx.x * cols, end = base + cols;
    for (int64_t col = threadIdx.x * EIGHT; col < cols; col += THREADS * EIGHT) {
        float v[8];
        uint32_t bits[8];
        x.load(base + col, end, v);
#pragma unroll
        for (int h = 0; h < 2; h++)
            philox(
                key,
                make_uint4(site, (uint32_t)token, (uint32_t)(token >> 32), (uint32_t)(col / 4 + h)),
                bits + 4 * h);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = bits[k] < below ? 0.0f : v[k] * keep;
        y.store(base + col, end, v);
    }
}

static void cuda_dropout(const op_call *c) {
    const tensor *x = &c->in[0], *y = &c->out[0], *all[] = { x, y };
    double p = c->attr.dropout.p;
    BUG_IF(!(p >= 0 && p < 1) || c->attr.dropout.site >> 16);
    int64_t cols = x->dim[1];
    uint32_t site = c->attr.dropout.site | c->run->layer << 16;
    uint32_t below = (uint32_t)(p * 4294967296.0);
    float keep = (float)(1 / (1 - p));
    WITH_TYPE(common_type(cols, all, 2),
              LAUNCH(cuda_of(c), { blocks_for(x->dim[0], 1), THREADS }, dropout<A>, A(*x), A(*y),
                     (const int64_t *)c->in[1].data, c->run->step, cols, site, below, keep));
}

KERNEL(ADD, cuda_add);
KERNEL(ACCUMULATE, cuda_accumulate);
KERNEL(CAST, cuda_add);
KERNEL(DROPOUT, cuda_dropout, NULL, ATTR(DROPOUT_P) | ATTR(DROPOUT_SITE));
KERNEL(SCALE, cuda_scale, NULL, ATTR(SCALE_BY));
KERNEL(ZERO, cuda_zero);
