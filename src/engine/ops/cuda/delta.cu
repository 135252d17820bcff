/* The gated delta rule; formulas and names are those of cpu/delta.c. A block of 256 threads has the task of a CPU worker: one
 * head of keys with its heads of values and the documents of one row of the batch, chunk by chunk. Matrices of a chunk are in the
 * workspace, where each block has its part, and stay in L2; a thread computes FOUR rows of a column of a GEMM at a time, in fp32.
 * Threads own columns of the triangular systems, so that these need no barrier. At most BLOCKS blocks run, and loop over tasks.
 * In generation a block has one head of one sequence and steps over its tokens. Deterministic. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, CHUNK = 64, FOUR = 4, BLOCKS = 264 };
#define LENGTH_EPS 1e-6f /* of the norms of q and k */

typedef struct delta_shape {
    mixed qkv, o, dqkv; /* o: the result, or its gradient */
    const float *gate;
    float *dgate;
    const int32_t *start;
    int64_t n, each, cols, gates, width;
    int keys, group, K, V;
    float *work;
    int64_t floats; /* of a block */
    int tasks;
} delta_shape;

/* The buffers of a block, and its place. */
struct delta_block {
    const delta_shape *s;
    float *S, *dS, *q, *k, *v, *x, *t, *kk, *P, *dO, *D, *dD, *M, *dq, *dk, *dP, *states, *dqk;
    float *G, *beta, *dG, *dbeta; /* shared memory, [CHUNK] each */
    int rows;
};

static __host__ __device__ int64_t widest(const delta_shape &s) {
    int64_t wide = s.K > s.V ? s.K : s.V;
    return CHUNK * (wide > CHUNK ? wide : CHUNK);
}
static __host__ __device__ int64_t block_floats(const delta_shape &s, bool back) {
    int64_t state = (int64_t)s.K * s.V, chunks = (s.each + CHUNK - 1) / CHUNK;
    int64_t n = state + 7 * widest(s);
    if (back) n += state + 7 * widest(s) + chunks * state + s.each * 2 * s.K;
    return (n + 31) / 32 * 32;
}

static __device__ delta_block block_of(const delta_shape &s, bool back, float *shared) {
    delta_block b = {};
    int64_t wide = widest(s), state = (int64_t)s.K * s.V;
    float *at = s.work + (int64_t)blockIdx.x * s.floats;
    b.s = &s;
    b.S = at, at += state;
    float **parts[] = { &b.q,  &b.k, &b.v,  &b.x, &b.t,  &b.kk, &b.P,
                        &b.dO, &b.D, &b.dD, &b.M, &b.dq, &b.dk, &b.dP };
    for (int i = 0; i < (back ? 14 : 7); i++) *parts[i] = at, at += wide;
    b.dS = at, at += state;
    b.states = at, at += (s.each + CHUNK - 1) / CHUNK * state;
    b.dqk = at;
    b.G = shared, b.beta = shared + CHUNK, b.dG = shared + 2 * CHUNK, b.dbeta = shared + 3 * CHUNK;
    return b;
}

/* ---- matrices, by all threads; each call ends with a barrier ------------------------------------------ */
enum { PLAIN = 0, TA = 1, TB = 2, ADD = 4 };
template <int HOW>
static __device__ void mm(int m, int n, int k, const float *a, const float *b, float *c) {
    int tall = (m + FOUR - 1) / FOUR;
    for (int e = threadIdx.x; e < tall * n; e += THREADS) {
        int row = e / n * FOUR, col = e % n, rows = m - row < FOUR ? m - row : FOUR;
        float sum[FOUR] = { 0 };
        for (int i = 0; i < k; i++) {
            float y = HOW & TB ? b[(int64_t)col * k + i] : b[(int64_t)i * n + col];
#pragma unroll
            for (int r = 0; r < FOUR; r++)
                if (r < rows)
                    sum[r] += y * (HOW & TA ? a[(int64_t)i * m + row + r]
                                            : a[(int64_t)(row + r) * k + i]);
        }
        for (int r = 0; r < rows; r++) {
            float *to = c + (int64_t)(row + r) * n + col;
            *to = HOW & ADD ? *to + sum[r] : sum[r];
        }
    }
    __syncthreads();
}

static __device__ void set_all(float *to, float value, int64_t n) {
    for (int64_t e = threadIdx.x; e < n; e += THREADS) to[e] = value;
    __syncthreads();
}
static __device__ void copy_floats(float *to, const float *from, int64_t n) {
    for (int64_t e = threadIdx.x; e < n; e += THREADS) to[e] = from[e];
    __syncthreads();
}
/* to = by x of each row, by being e^(G_last - G) with `left`, else e^G. */
static __device__ void decay_rows(const delta_block &b, float *to, const float *x, int cols,
                                  bool left) {
    float last = b.G[b.rows - 1];
    for (int e = threadIdx.x; e < b.rows * cols; e += THREADS) {
        float g = b.G[e / cols];
        to[e] = expf(left ? last - g : g) * x[e];
    }
    __syncthreads();
}
static __device__ float row_dot(const float *x, const float *y, int n) { /* by a warp */
    float sum = 0;
    for (int e = threadIdx.x % WARP; e < n; e += WARP) sum += x[e] * y[e];
    return warp_sum(sum);
}

/* ---- a chunk ---------------------------------------------------------------------------------------------- */
/* A normalized vector, by a warp. @return 1 / its length */
static __device__ float load_unit(const mixed &t, int64_t at, int n, float by, float *to) {
    float sum = 0;
    for (int e = threadIdx.x % WARP; e < n; e += WARP) {
        float x = read1(t.p, t.dt, at + e);
        sum += x * x;
    }
    float r = rsqrtf(warp_sum(sum) + LENGTH_EPS);
    for (int e = threadIdx.x % WARP; e < n; e += WARP) to[e] = r * by * read1(t.p, t.dt, at + e);
    return r;
}

static __device__ void load_tokens(const delta_block &b, int64_t at, int h) {
    const delta_shape &s = *b.s;
    int key = h / s.group, heads = (int)(s.gates / 2), warp = threadIdx.x / WARP;
    float by = rsqrtf((float)s.K);
    for (int i = warp; i < b.rows; i += WARPS) {
        int64_t row = (at + i) * s.cols;
        load_unit(s.qkv, row + (int64_t)key * s.K, s.K, by, b.q + i * s.K);
        load_unit(s.qkv, row + (int64_t)(s.keys + key) * s.K, s.K, 1, b.k + i * s.K);
        for (int e = threadIdx.x % WARP; e < s.V; e += WARP)
            b.v[i * s.V + e] = read1(s.qkv.p, s.qkv.dt, row + 2 * s.keys * s.K + h * s.V + e);
    }
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < b.rows; i++) {
            b.beta[i] = s.gate[(at + i) * s.gates + h];
            b.G[i] = sum += s.gate[(at + i) * s.gates + heads + h];
        }
    }
    __syncthreads();
}

/* x: the corrections, from t = K S; kk becomes A. */
static __device__ void solve_corrections(const delta_block &b) {
    int n = b.rows, V = b.s->V;
    mm<TB>(n, n, b.s->K, b.k, b.k, b.kk);
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        int i = e / n, k = e % n;
        b.kk[e] = k < i ? b.beta[i] * expf(b.G[i] - b.G[k]) * b.kk[e] : 0;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < V; e += THREADS)
        for (int i = 0; i < n; i++) {
            float x = b.beta[i] * (b.v[i * V + e] - expf(b.G[i]) * b.t[i * V + e]);
            for (int k = 0; k < i; k++) x -= b.kk[i * n + k] * b.x[k * V + e];
            b.x[i * V + e] = x;
        }
    __syncthreads();
}

static __device__ void score_chunk(const delta_block &b) {
    int n = b.rows;
    mm<TB>(n, n, b.s->K, b.q, b.k, b.P);
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        int i = e / n, k = e % n;
        b.P[e] = k <= i ? expf(b.G[i] - b.G[k]) * b.P[e] : 0;
    }
    __syncthreads();
}

/* The state after the chunk. Overwrites q. */
static __device__ void step_state_on(const delta_block &b) {
    int n = b.rows, K = b.s->K, V = b.s->V;
    float keep = expf(b.G[n - 1]);
    decay_rows(b, b.q, b.k, K, true);
    for (int e = threadIdx.x; e < K * V; e += THREADS) b.S[e] *= keep;
    __syncthreads();
    mm<TA | ADD>(K, V, n, b.q, b.x, b.S);
}

/* @return the end of the chunk that begins at `at`, or with most > CHUNK of its document */
static __device__ int64_t tokens_end(const delta_shape &s, int64_t at, int64_t to, int64_t most) {
    int64_t end = at + most < to ? at + most : to, i = at + 1;
    while (i < end && s.start[i] <= at) i++;
    return i;
}

static __global__ void __launch_bounds__(THREADS) delta_rule(delta_shape s) {
    __shared__ float shared[4 * CHUNK];
    delta_block b = block_of(s, false, shared);
    int K = s.K, V = s.V;
    for (int task = blockIdx.x; task < s.tasks; task += gridDim.x) {
        int key = task % s.keys;
        int64_t from = task / s.keys * s.each, to = from + s.each < s.n ? from + s.each : s.n;
        for (int h = key * s.group; h < (key + 1) * s.group; h++)
            for (int64_t at = from; at < to; at += b.rows) {
                if (at == from || s.start[at] == at) set_all(b.S, 0, (int64_t)K * V);
                b.rows = (int)(tokens_end(s, at, to, CHUNK) - at);
                load_tokens(b, at, h);
                mm<PLAIN>(b.rows, V, K, b.k, b.S, b.t);
                solve_corrections(b);
                score_chunk(b);
                mm<PLAIN>(b.rows, V, K, b.q, b.S, b.t);
                decay_rows(b, b.t, b.t, V, false);
                mm<ADD>(b.rows, V, b.rows, b.P, b.x, b.t);
                for (int e = threadIdx.x; e < b.rows * V; e += THREADS)
                    write1(s.o.p, s.o.dt, (at + e / V) * s.width + h * V + e % V, b.t[e]);
                step_state_on(b);
            }
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------ */
static __device__ void output_bwd(const delta_block &b) {
    int n = b.rows, K = b.s->K, V = b.s->V, warp = threadIdx.x / WARP;
    mm<TA>(n, V, n, b.P, b.dO, b.dD);
    mm<PLAIN>(n, V, K, b.q, b.S, b.t);
    for (int i = warp; i < n; i += WARPS) {
        float sum = expf(b.G[i]) * row_dot(b.dO + i * V, b.t + i * V, V);
        if (threadIdx.x % WARP == 0) b.dG[i] = sum;
    }
    mm<TB>(n, n, V, b.dO, b.D, b.dP);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float sum = 0;
        for (int k = 0; k <= i; k++) sum += b.dP[i * n + k] * b.P[i * n + k];
        for (int k = i; k < n; k++) sum -= b.dP[k * n + i] * b.P[k * n + i];
        b.dG[i] += sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        int i = e / n, k = e % n;
        b.P[e] = k <= i ? b.dP[e] * expf(b.G[i] - b.G[k]) : 0;
    }
    __syncthreads();
    mm<TB>(n, K, V, b.dO, b.S, b.dq);
    decay_rows(b, b.dq, b.dq, K, false);
    mm<ADD>(n, K, n, b.P, b.k, b.dq);
    mm<TA>(n, K, n, b.P, b.q, b.dk);
}

static __device__ void state_bwd(const delta_block &b) {
    __shared__ float smem[WARPS];
    int n = b.rows, K = b.s->K, V = b.s->V, warp = threadIdx.x / WARP;
    float last = b.G[n - 1], total = 0;
    for (int e = threadIdx.x; e < K * V; e += THREADS) total += b.dS[e] * b.S[e];
    total = expf(last) * block_sum(total, smem);
    mm<TB>(n, K, V, b.D, b.dS, b.t);
    decay_rows(b, b.x, b.k, K, true);
    for (int i = warp; i < n; i += WARPS) {
        float u = row_dot(b.t + i * K, b.x + i * K, K);
        if (threadIdx.x % WARP == 0) b.dG[i] -= u, b.dbeta[i] = u;
        for (int e = threadIdx.x % WARP; e < K; e += WARP)
            b.dk[i * K + e] += expf(last - b.G[i]) * b.t[i * K + e];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < n; i++) total += b.dbeta[i];
        b.dG[n - 1] += total;
    }
    mm<ADD>(n, V, K, b.x, b.dS, b.dD);
}

static __device__ void solve_bwd(const delta_block &b) {
    int n = b.rows, K = b.s->K, V = b.s->V, warp = threadIdx.x / WARP;
    for (int e = threadIdx.x; e < V; e += THREADS)
        for (int i = n - 1; i >= 0; i--) {
            float d = b.dD[i * V + e];
            for (int k = i + 1; k < n; k++) d -= b.kk[k * n + i] * b.dD[k * V + e];
            b.dD[i * V + e] = d;
        }
    __syncthreads();
    mm<TB>(n, n, V, b.dD, b.D, b.dP);
    for (int i = warp; i < n; i += WARPS) {
        float by = -expf(b.G[i]), of_v = row_dot(b.dD + i * V, b.v + i * V, V);
        float of_m = by * row_dot(b.dD + i * V, b.M + i * V, V);
        if (threadIdx.x % WARP == 0) b.dbeta[i] = of_v + of_m, b.dG[i] += b.beta[i] * of_m;
    }
    for (int e = threadIdx.x; e < n * V; e += THREADS)
        b.t[e] = -b.beta[e / V] * expf(b.G[e / V]) * b.dD[e];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float sum = 0;
        for (int k = 0; k < i; k++) sum -= b.dP[i * n + k] * b.kk[i * n + k];
        for (int k = i + 1; k < n; k++) sum += b.dP[k * n + i] * b.kk[k * n + i];
        b.dG[i] += sum;
    }
    for (int e = threadIdx.x; e < n * n; e += THREADS) {
        int i = e / n, k = e % n;
        b.P[e] = k < i ? -b.dP[e] * expf(b.G[i] - b.G[k]) : 0;
    }
    __syncthreads();
    mm<TB>(n, n, K, b.k, b.k, b.dP);
    for (int i = warp; i < n; i += WARPS) {
        float sum = row_dot(b.P + i * n, b.dP + i * n, i);
        if (threadIdx.x % WARP == 0) b.dbeta[i] += sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n * n; e += THREADS) b.P[e] *= b.beta[e / n];
    __syncthreads();
    mm<TB | ADD>(n, K, V, b.t, b.S, b.dk);
    mm<ADD>(n, K, n, b.P, b.k, b.dk);
    mm<TA | ADD>(n, K, n, b.P, b.k, b.dk);
}

static __device__ void chunk_backward(const delta_block &b, int64_t at, int h, int64_t from) {
    const delta_shape &s = *b.s;
    int n = b.rows, K = s.K, V = s.V, heads = (int)(s.gates / 2);
    load_tokens(b, at, h);
    for (int e = threadIdx.x; e < n * V; e += THREADS)
        b.dO[e] = read1(s.o.p, s.o.dt, (at + e / V) * s.width + h * V + e % V);
    mm<PLAIN>(n, V, K, b.k, b.S, b.t);
    copy_floats(b.M, b.t, n * V);
    solve_corrections(b);
    copy_floats(b.D, b.x, n * V);
    score_chunk(b);
    output_bwd(b);
    state_bwd(b);
    solve_bwd(b);
    float keep = expf(b.G[n - 1]);
    for (int e = threadIdx.x; e < K * V; e += THREADS) b.dS[e] *= keep;
    __syncthreads();
    mm<TA | ADD>(K, V, n, b.k, b.t, b.dS);
    decay_rows(b, b.q, b.q, K, false);
    mm<TA | ADD>(K, V, n, b.q, b.dO, b.dS);
    if (threadIdx.x == 0 && s.dgate) {
        float sum = 0;
        for (int i = n - 1; i >= 0; i--) {
            s.dgate[(at + i) * s.gates + h] = b.dbeta[i];
            s.dgate[(at + i) * s.gates + heads + h] = sum += b.dG[i];
        }
    }
    for (int e = threadIdx.x; e < n * K; e += THREADS) {
        float *to = b.dqk + (at - from + e / K) * 2 * K + e % K;
        to[0] += b.dq[e], to[K] += b.dk[e];
    }
    for (int e = threadIdx.x; s.dqkv.present() && e < n * V; e += THREADS)
        write1(s.dqkv.p, s.dqkv.dt, (at + e / V) * s.cols + 2 * s.keys * K + h * V + e % V,
               b.beta[e / V] * b.dD[e]);
    __syncthreads();
}

static __device__ void document_backward(delta_block &b, int64_t at, int64_t end, int h,
                                         int64_t from) {
    int64_t state = (int64_t)b.s->K * b.s->V;
    set_all(b.S, 0, state);
    set_all(b.dS, 0, state);
    for (int64_t i = at; i < end; i += CHUNK) {
        copy_floats(b.states + (i - at) / CHUNK * state, b.S, state);
        b.rows = (int)(end - i < CHUNK ? end - i : CHUNK);
        load_tokens(b, i, h);
        mm<PLAIN>(b.rows, b.s->V, b.s->K, b.k, b.S, b.t);
        solve_corrections(b);
        step_state_on(b);
    }
    for (int64_t chunk = (end - at - 1) / CHUNK; chunk >= 0; chunk--) {
        int64_t i = at + chunk * CHUNK;
        copy_floats(b.S, b.states + chunk * state, state);
        b.rows = (int)(end - i < CHUNK ? end - i : CHUNK);
        chunk_backward(b, i, h, from);
    }
}

/* Through the normalization of a vector, by a warp. @param own memory for the vector, of this warp */
static __device__ void put_unit_bwd(const delta_shape &s, int64_t at, float by, const float *d,
                                    float *own) {
    float r = load_unit(s.qkv, at, s.K, 1, own), along = row_dot(own, d, s.K);
    for (int e = threadIdx.x % WARP; e < s.K; e += WARP)
        write1(s.dqkv.p, s.dqkv.dt, at + e, by * r * (d[e] - along * own[e]));
}

static __global__ void __launch_bounds__(THREADS) delta_rule_bwd(delta_shape s) {
    __shared__ float shared[4 * CHUNK];
    delta_block b = block_of(s, true, shared);
    for (int task = blockIdx.x; task < s.tasks; task += gridDim.x) {
        int key = task % s.keys, warp = threadIdx.x / WARP;
        int64_t from = task / s.keys * s.each, to = from + s.each < s.n ? from + s.each : s.n;
        set_all(b.dqk, 0, (to - from) * 2 * s.K);
        for (int64_t at = from, end; at < to; at = end) {
            end = tokens_end(s, at, to, to - at);
            for (int h = key * s.group; h < (key + 1) * s.group; h++)
                document_backward(b, at, end, h, from);
        }
        for (int64_t i = from + warp; s.dqkv.present() && i < to; i += WARPS) {
            const float *d = b.dqk + (i - from) * 2 * s.K;
            float *own = b.q + warp * s.K;
            put_unit_bwd(s, i * s.cols + (int64_t)key * s.K, rsqrtf((float)s.K), d, own);
            put_unit_bwd(s, i * s.cols + (int64_t)(s.keys + key) * s.K, 1, d + s.K, own);
        }
        __syncthreads();
    }
}

static delta_shape delta_shape_of(const op_call *c, const tensor *qkv, const tensor *o) {
    delta_shape s = {};
    s.qkv = mixed(*qkv), s.o = mixed(*o);
    s.gate = (const float *)qkv[1].data;
    s.n = qkv->dim[0], s.cols = qkv->dim[1], s.gates = qkv[1].dim[1], s.width = o->dim[1];
    s.keys = c->attr.heads.q;
    int heads = (int)(s.gates / 2);
    s.group = heads / s.keys, s.V = (int)(s.width / heads);
    s.K = (int)((s.cols - s.width) / (2 * s.keys));
    int seq = c->attr.heads.seq;
    s.each = seq > 0 && s.n % seq == 0 ? seq : s.n;
    s.tasks = (int)(s.keys * (s.n / s.each));
    return s;
}

static void cuda_delta_rule(const op_call *c) {
    bool back = c->op == OP_DELTA_RULE_BWD;
    delta_shape s = delta_shape_of(c, &c->in[back], back ? &c->in[0] : &c->out[0]);
    s.start = (const int32_t *)c->in[2 + back].data;
    s.work = (float *)c->run->workspace;
    s.floats = block_floats(s, back);
    unsigned blocks = (unsigned)(s.tasks < BLOCKS ? s.tasks : BLOCKS);
    if (back) {
        s.dqkv = mixed(c->out[0]), s.dgate = (float *)c->out[1].data;
        LAUNCH(cuda_of(c), { blocks, THREADS }, delta_rule_bwd, s);
    } else {
        LAUNCH(cuda_of(c), { blocks, THREADS }, delta_rule, s);
    }
}

static size_t cuda_delta_workspace(const op_backend *b, const op_call *c, int threads) {
    bool back = c->op == OP_DELTA_RULE_BWD;
    delta_shape s = delta_shape_of(c, &c->in[back], back ? &c->in[0] : &c->out[0]);
    int64_t blocks = s.tasks < BLOCKS ? s.tasks : BLOCKS;
    return (size_t)(blocks * block_floats(s, back)) * sizeof(float);
}

/* ---- generation. Grid: (heads of values, sequences); shared: q [K], k [K] --------------------------------- */
static __global__ void __launch_bounds__(THREADS)
    delta_cached(delta_shape s, float *state, const int32_t *pos, int seq) {
    DYNAMIC_SHARED(float, shared);
    int h = blockIdx.x, key = h / s.group, heads = (int)(s.gates / 2);
    float *q = shared, *k = shared + s.K,
          *S = state + ((int64_t)blockIdx.y * heads + h) * s.K * s.V;
    for (int64_t i = 0; i < s.n; i++) {
        int64_t row = i * s.cols;
        if (s.start[i] / seq != (int)blockIdx.y) continue;
        bool again = i && s.start[i] == s.start[i - 1] && pos[i] == pos[i - 1];
        if (threadIdx.x < WARP && !again) { /* else q is that of the row before */
            load_unit(s.qkv, row + (int64_t)key * s.K, s.K, rsqrtf((float)s.K), q);
            load_unit(s.qkv, row + (int64_t)(s.keys + key) * s.K, s.K, 1, k);
        }
        __syncthreads();
        float beta = s.gate[i * s.gates + h], keep = expf(s.gate[i * s.gates + heads + h]);
        if (pos[i] == 0) keep = 0;
        for (int e = threadIdx.x; e < s.V; e += THREADS) {
            float sum = 0, o = 0,
                  v = read1(s.qkv.p, s.qkv.dt, row + 2 * s.keys * s.K + h * s.V + e);
            for (int a = 0; !again && a < s.K; a++) {
                float *at = S + (int64_t)a * s.V + e;
                *at = pos[i] == 0 ? 0 : keep * *at;
                sum += k[a] * *at;
            }
            for (int a = 0; a < s.K; a++) {
                float *at = S + (int64_t)a * s.V + e;
                if (!again) *at += k[a] * beta * (v - sum);
                o += q[a] * *at;
            }
            write1(s.o.p, s.o.dt, i * s.width + h * s.V + e, o);
        }
        __syncthreads();
    }
}

static void cuda_delta_cached(const op_call *c) {
    delta_shape s = delta_shape_of(c, &c->in[0], &c->out[0]);
    s.start = (const int32_t *)c->in[4].data;
    unsigned heads = (unsigned)(s.gates / 2), sequences = (unsigned)c->in[2].dim[0];
    LAUNCH(cuda_of(c), { dim3(heads, sequences), THREADS, 2 * (size_t)s.K * sizeof(float) },
           delta_cached, s, (float *)c->in[2].data, (const int32_t *)c->in[3].data,
           c->attr.heads.seq);
}

KERNEL(DELTA_RULE, cuda_delta_rule, cuda_delta_workspace, ATTR(HEADS_Q) | ATTR(SEQ));
KERNEL(DELTA_RULE_BWD, cuda_delta_rule, cuda_delta_workspace, ATTR(HEADS_Q) | ATTR(SEQ));
KERNEL(DELTA_CACHED, cuda_delta_cached, NULL, ATTR(HEADS_Q) | ATTR(SEQ));
