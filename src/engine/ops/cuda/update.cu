/* Elementwise updates, and clipping. Each update is one pass over memory that applies the gradient's scale
 * and the decay, updates, and writes the low-precision copy of the weights. Bytes per element: SGD 12,
 * momentum and Lion 20, Adam 28, plus the copy's; 4 less with bf16 weights. What changes from step to step
 * is read from the step block on the device, so that a captured graph serves every step.
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

struct along {
    static constexpr int states = 0;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        p = p * f.keep - g * f.lr;
    }
};

/* The same, with decay only where the step moves the weight towards zero too. */
struct along_cautious {
    static constexpr int states = 0;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        p = p * (g * p >= 0 ? f.keep : 1.0f) - g * f.lr;
    }
};

/* ---- the pass. Grid: a block of 256 threads per V x 1024 elements, V x 4 per thread ---------------- */
template <int V> struct batch {
    four e[V];
    float g[V][4], p[V][4], m[V][4], v[V][4];
};

/* @param WHOLE all elements of the block exist and are aligned. */
template <class R, class P, bool WHOLE, int V>
static __device__ __forceinline__ void load_batch(const elements &o, int64_t from, batch<V> &x) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        int64_t at = from + (k * THREADS + threadIdx.x) * 4, left = o.n - at;
        x.e[k] = four{ at, WHOLE || left > 4 ? 4 : (int)left, WHOLE };
        load4(o.g, x.e[k], x.g[k]);
        load4((const P *)o.p, x.e[k], x.p[k]);
        if (R::states > 0) load4((const float *)o.m, x.e[k], x.m[k]);
        if (R::states > 1) load4((const float *)o.v, x.e[k], x.v[k]);
    }
}

template <class R, class P, int V>
static __device__ __forceinline__ void apply_batch(const elements &o, const factors &f,
                                                   batch<V> &x) {
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int j = 0; j < 4; j++) R::at(f, x.g[k][j], x.p[k][j], x.m[k][j], x.v[k][j]);
        store_weights(o, f, (P *)o.p, x.e[k], x.p[k]);
        if (R::states > 0) store4((float *)o.m, x.e[k], x.m[k]);
        if (R::states > 1) store4((float *)o.v, x.e[k], x.v[k]);
    }
}

template <class R, class P, int V>
static __device__ __forceinline__ void update_block(const elements &o) {
    int64_t from = (int64_t)blockIdx.x * THREADS * V * 4;
    if (o.fours && from + THREADS * V * 4 <= o.n) {
        batch<V> x; /* its loads are in flight while the scalars are computed */
        load_batch<R, P, true>(o, from, x);
        const factors f = block_factors(o.a, o.s);
        if (!f.skip) apply_batch<R, P>(o, f, x);
        return;
    }
    const factors f = block_factors(o.a, o.s);
    for (int k = 0; k < V && !f.skip; k++) {
        batch<1> x;
        load_batch<R, P, false>(o, from + k * THREADS * 4, x);
        apply_batch<R, P>(o, f, x);
    }
}

template <class R, class P, int V>
static __global__ void __launch_bounds__(THREADS, PER_SM) update(elements o) {
    update_block<R, P, V>(o);
}

/* Calls of a group: as many as a kernel's arguments hold. blockIdx.y is the call. */
enum { GROUP = 22 };
typedef struct element_group {
    elements o[GROUP];
} element_group;
static_assert(sizeof(element_group) <= 4096, "arguments of a kernel");

template <class R, class P, int V>
static __global__ void __launch_bounds__(THREADS, PER_SM) update_group(element_group group) {
    const elements o = group.o[blockIdx.y];
    update_block<R, P, V>(o);
}

template <class R, class P>
static void launch_updates_as(const op_call *calls, const int *picked, int count) {
    element_group group = {};
    for (int i = 0; i < count; i++) group.o[i] = elements_of(&calls[picked[i]], R::states);
    unsigned blocks = blocks_for(group.o[0].n, THREADS * VECS * 4);
    if (count == 1) /* its arguments need no registers */
        LAUNCH(cuda_of(calls), { blocks, THREADS }, update<R, P, VECS>, group.o[0]);
    else
        LAUNCH(cuda_of(calls), { dim3(blocks, (unsigned)count), THREADS }, update_group<R, P, VECS>,
               group);
}

static bool updates_alike(const op_call *a, const op_call *b) {
    return tensor_count(&a->in[0]) == tensor_count(&b->in[0]) && a->out[0].dt == b->out[0].dt &&
           a->attr.update.l2 == b->attr.update.l2 &&
           a->attr.update.cautious == b->attr.update.cautious &&
           a->attr.update.host_state == b->attr.update.host_state &&
           a->attr.update.host_params == b->attr.update.host_params;
}

template <class R, class L2 = R> static void cuda_update(const op_call *c);

/* @param R the rule, L2 its rule with decay through the gradient: equal where the rule has one way to decay */
template <class R, class L2 = R>
static void launch_updates(const op_call *calls, const int *picked, int count) {
    const op_call *c = &calls[picked[0]];
    bool bf16_weights = c->out[0].dt == DT_BF16;
    BUG_IF(R::states != op_states(c->op));
    if (c->attr.update.host_state || c->attr.update.host_params)
        for (int i = 0; i < count; i++)
            cuda_update_offloaded(&calls[picked[i]], cuda_update<R, L2>);
    else if (c->attr.update.l2)
        bf16_weights ? launch_updates_as<L2, bf16>(calls, picked, count)
                     : launch_updates_as<L2, float>(calls, picked, count);
    else
        bf16_weights ? launch_updates_as<R, bf16>(calls, picked, count)
                     : launch_updates_as<R, float>(calls, picked, count);
}

template <class R, class L2 = R> static void cuda_updates(const op_call *calls, int n) {
    bool done[OPS_GROUP] = {};
    int picked[OPS_GROUP];
    while (int count = pick_alike(calls, n, GROUP, done, picked, updates_alike))
        launch_updates<R, L2>(calls, picked, count);
}
template <class R, class L2> static void cuda_update(const op_call *c) {
    const int first = 0;
    launch_updates<R, L2>(c, &first, 1);
}

static void cuda_updates_along(const op_call *calls, int n) {
    bool done[OPS_GROUP] = {};
    int picked[OPS_GROUP];
    while (int count = pick_alike(calls, n, GROUP, done, picked, updates_alike))
        calls[picked[0]].attr.update.cautious ? launch_updates<along_cautious>(calls, picked, count)
                                              : launch_updates<along>(calls, picked, count);
}
static void cuda_update_along(const op_call *c) { cuda_updates_along(c, 1); }

/* ---- clipping ----------------------------------------------------------------------------------- */
/* A single thread: it reads the norm and writes the step state. */
static __global__ void clip_gradient(step_state *now, const float *sum, const step_block *s,
                                     int64_t interval) {
    clip_state(now, sum, s->update.max_norm, s->update.skip_norm, interval);
}

static void cuda_clip(const op_call *c) {
    LAUNCH(cuda_of(c), { 1, 1 }, clip_gradient, (step_state *)c->out[0].data,
           (const float *)c->in[0].data, c->run->step, c->attr.clip.growth_interval);
}

KERNEL(UPDATE_SGD, (cuda_update<sgd>), cuda_offload_workspace, ATTRS_UPDATE, (cuda_updates<sgd>));
KERNEL(UPDATE_MOMENTUM, (cuda_update<momentum>), cuda_offload_workspace, ATTRS_UPDATE,
       (cuda_updates<momentum>));
KERNEL(UPDATE_ADAM, (cuda_update<adam<false>, adam<true>>), cuda_offload_workspace, ATTRS_UPDATE,
       (cuda_updates<adam<false>, adam<true>>));
KERNEL(UPDATE_LION, (cuda_update<lion>), cuda_offload_workspace, ATTRS_UPDATE_DECOUPLED,
       (cuda_updates<lion>));
KERNEL(UPDATE_ALONG, cuda_update_along, cuda_offload_workspace,
       ATTRS_UPDATE_DECOUPLED | ATTR(CAUTIOUS), cuda_updates_along);
KERNEL(CLIP, cuda_clip, NULL, ATTR(GROWTH_INTERVAL));
