/* Updates by element, and clipping. Each update is one pass over memory: the gradient's scale, the
 * decay, the update and the narrow copy of the weights together. Bytes an element: SGD 12, momentum
 * and Lion 20, Adam 28, and the copy's own; 4 less with weights in bf16. What changes by the step is
 * read from the step block on the device, so that a captured graph serves every step.
 * Deterministic. */
#include "update.cuh"

#include "ops/clip.h"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, VECS = 2, PER_SM = 4 };

/* ---- rules ------------------------------------------------------------------------------------- */
struct sgd {
    static constexpr int states = 0;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        p -= (g * f.scale + p * f.decay) * f.lr;
    }
};
struct momentum {
    static constexpr int states = 1;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        g = g * f.scale + p * f.decay;
        m = m * f.mu + g;
        p -= (g * f.now + m * f.then) * f.lr;
    }
};
struct lion {
    static constexpr int states = 1;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        float u = m * f.b1 + g * f.g1;
        float sign = u == 0 ? 0.0f : copysignf(1.0f, u);
        p -= (sign + p * f.decay) * f.lr;
        m = m * f.b2 + g * f.g2;
    }
};

/* ---- the pass: a block of 256 threads takes V times 1024 elements, V fours a thread --------------- */
template <int V> struct batch {
    four e[V];
    float g[V][4], p[V][4], m[V][4], v[V][4];
};

/* @param WHOLE all of the block's elements are there, and aligned. */
template <class R, class P, bool WHOLE, int V>
static __device__ __forceinline__ void load(const elements &o, int64_t from, batch<V> &x) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        int64_t at = from + (k * THREADS + threadIdx.x) * 4, left = o.n - at;
        x.e[k] = four{ at, WHOLE || left > 4 ? 4 : (int)left, WHOLE };
        take(o.g, x.e[k], x.g[k]);
        take((const P *)o.p, x.e[k], x.p[k]);
        if (R::states > 0) take((const float *)o.m, x.e[k], x.m[k]);
        if (R::states > 1) take((const float *)o.v, x.e[k], x.v[k]);
    }
}

template <class R, class P, int V>
static __device__ __forceinline__ void apply(const elements &o, const factors &f, batch<V> &x) {
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int j = 0; j < 4; j++) R::at(f, x.g[k][j], x.p[k][j], x.m[k][j], x.v[k][j]);
        store(o, f, (P *)o.p, x.e[k], x.p[k]);
        if (R::states > 0) give((float *)o.m, x.e[k], x.m[k]);
        if (R::states > 1) give((float *)o.v, x.e[k], x.v[k]);
    }
}

template <class R, class P, int V>
static __global__ void __launch_bounds__(THREADS, PER_SM) update(elements o) {
    int64_t from = (int64_t)blockIdx.x * THREADS * V * 4;
    if (o.fours && from + THREADS * V * 4 <= o.n) {
        batch<V> x; /* on its way while the scalars are made */
        load<R, P, true>(o, from, x);
        const factors f = share(o.a, o.s);
        if (!f.skip) apply<R, P>(o, f, x);
        return;
    }
    const factors f = share(o.a, o.s);
    for (int k = 0; k < V && !f.skip; k++) {
        batch<1> x;
        load<R, P, false>(o, from + k * THREADS * 4, x);
        apply<R, P>(o, f, x);
    }
}

template <class R, class P> static void launch_of(const op_call *c) {
    elements o = elements_of(c, R::states);
    int64_t blocks = ceil_div(o.n, THREADS * VECS * 4);
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, update<R, P, VECS>, o);
}

template <class R> static void launch(const op_call *c) {
    if (c->out[0].dt == DT_BF16)
        launch_of<R, bf16>(c);
    else
        launch_of<R, float>(c);
}

extern "C" void cuda_update(const op_call *c) {
    if (c->attr.update.host_state) return cuda_update_offloaded(c, cuda_update);
    switch (c->op) {
    case OP_UPDATE_SGD: launch<sgd>(c); break;
    case OP_UPDATE_MOMENTUM: launch<momentum>(c); break;
    case OP_UPDATE_LION: launch<lion>(c); break;
    default:
        if (c->attr.update.l2)
            launch<adam<true>>(c);
        else
            launch<adam<false>>(c);
    }
}

/* ---- clipping ----------------------------------------------------------------------------------- */
static __global__ void clip(step_state *now, const float *sum, const step_block *s,
                            int64_t interval) {
    clip_state(now, sum, s->update.max_norm, interval);
}

extern "C" void cuda_clip(const op_call *c) {
    LAUNCH(cuda_of(c), { 1, 1 }, clip, (step_state *)c->out[0].data, (const float *)c->in[0].data,
           c->run->step, c->attr.clip.growth_interval);
}

/* ---- adaptive clipping: a block a row ----------------------------------------------------------- */
static __global__ void clip_rows(const float *p, float *g, int64_t cols, float factor, float eps,
                                 const step_block *s) {
    __shared__ float room[33];
    if (s->now.skip) return;
    int64_t base = (int64_t)blockIdx.x * cols;
    float pp = 0, gg = 0;
    for (int64_t k = threadIdx.x; k < cols; k += blockDim.x) {
        pp += p[base + k] * p[base + k];
        gg += g[base + k] * g[base + k];
    }
    pp = block_sum(pp, room);
    gg = block_sum(gg, room);
    float most = factor * fmaxf(sqrtf(pp), eps), length = sqrtf(gg) * s->now.grad_scale;
    if (!(length > most)) return; /* NaN passes: the norm of the whole has shown it */
    float by = most / length;
    for (int64_t k = threadIdx.x; k < cols; k += blockDim.x) g[base + k] *= by;
}

extern "C" void cuda_agc(const op_call *c) {
    const tensor *p = &c->in[0];
    LAUNCH(cuda_of(c), { (unsigned)p->dim[0], THREADS }, clip_rows, (const float *)p->data,
           (float *)c->out[0].data, p->dim[1], c->attr.agc.factor, c->attr.agc.eps, c->run->step);
}
