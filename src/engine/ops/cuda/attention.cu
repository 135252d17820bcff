/* Attention by tiles with online softmax, in fp32 arithmetic whatever the operands' type. Used for
 * fp32 runs, and for what cuDNN (attention_cudnn.c), attention_mma.cuh and, in generation, attention_few.cu do not support. The matrix of scores never exists as a whole.
 *
 *     attend         grid: sets of QUERIES tokens x query heads. Tiles of TILE keys and values pass
 *                    through shared memory; lane j of a warp scores key j, then the lanes divide the
 *                    columns of the output among themselves
 *     grad_queries   the same grid; dq, and rowdot = sum of do x o for the next kernel
 *     grad_keys      grid: sets of QUERIES keys x key heads; dk and dv over all queries that see them
 *
 * With DROPS a thread draws the decision for its pair of query and key (ops/attention_drop.h): one Philox
 * call, little beside the dot products of the pair.
 *
 * Both backward kernels recompute the scores from lse. Blocks have WARPS warps; a warp has EACH queries
 * (or keys) of the set. With att.from, which is read on the device, a grid of at most SETS_OF_REMAINDER
 * sets loops over the tokens from there on: the documents for which cuDNN had no slot.
 *
 * Bytes: every block reads each tile of keys and values it needs once, so keys are read
 * N / QUERIES times by each head that sees all of them. Deterministic: no atomics, and every sum runs in
 * an order fixed by the shapes and documents.
 */
#include "attention.cuh"

enum {
    TILE = 32, /* keys in shared memory, one per lane */
    WARPS = 4,
    EACH = 4, /* queries per warp */
    QUERIES = WARPS * EACH,
    MAX_DIM = 256,
    LANE_COLS = MAX_DIM / 32, /* columns of a head per lane */
    SETS_OF_REMAINDER = 64,
    FEW_TOKENS = 32 /* of a step of generation; the chunks of a prompt are longer */
};

/* @return what dropout multiplies the probability of query i and key j of a head by. */
template <bool DROPS>
static __device__ __forceinline__ float drop_factor(const att &a, int head, int64_t i, int64_t j) {
    if (!DROPS) return 1;
    uint64_t query = (uint64_t)a.drop.id[i];
    int64_t key = a.key_id[j];
    int byte = (int)((uint64_t)key % ATTENTION_DROP_KEYS);
    uint32_t word[4];
    philox<ATTENTION_DROP_ROUNDS>(make_uint2(a.step->dropout.k[0], a.step->dropout.k[1]),
                                  make_uint4(a.drop.site, (uint32_t)query, (uint32_t)(query >> 32),
                                             attention_drop_counter(&a.drop, head, key)),
                                  word);
    uint32_t own = byte < 4 ? word[0] : byte < 8 ? word[1] : byte < 12 ? word[2] : word[3];
    return (own >> byte % 4 * 8 & 0xff) < a.drop.below ? 0 : a.drop.keep;
}

/* Loads rows [row, row + TILE) of dim columns from `col` into smem[TILE][dim + 1], zeros past `end`. The
 * extra column avoids bank conflicts. */
static __device__ void load_tile(const void *p, int dt, int64_t stride, int64_t col, int64_t row,
                                 int64_t end, int dim, float *smem) {
    for (int e = threadIdx.x; e < TILE * dim; e += blockDim.x) {
        int r = e / dim, c = e % dim;
        smem[r * (dim + 1) + c] = row + r < end ? read1(p, dt, (row + r) * stride + col + c) : 0.0f;
    }
}

/* Loads a tile of keys and of values of a key head. */
static __device__ void load_keys(const att &a, int group, int64_t row, int64_t end, float *ks,
                                 float *vs) {
    int k = a.key_col + group * a.dim, v = a.key_col + (a.kv + group) * a.dim;
    load_tile(a.keys, a.key_t, a.key_stride, k, row, end, a.dim, ks);
    load_tile(a.keys, a.key_t, a.key_stride, v, row, end, a.dim, vs);
}

static __device__ __forceinline__ float dot(const float *a, const float *b, int n) {
    float s = 0;
    for (int d = 0; d < n; d++) s += a[d] * b[d];
    return s;
}

/* ---- forward ----------------------------------------------------------------------------------- */
template <bool DROPS>
static __device__ void attend_set(const att &a, att_before before, mixed o, float *lse,
                                  int64_t first) {
    DYNAMIC_SHARED(float, shared);
    int dim = a.dim, ld = dim + 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *qs = shared, *ks = qs + QUERIES * ld, *vs = ks + TILE * ld;
    int head = blockIdx.y, group = head / (a.q / a.kv);
    int64_t count = min(a.set, a.n - first);
    __syncthreads(); /* the readers of the last set are done */
    for (int e = threadIdx.x; e < QUERIES * dim; e += blockDim.x) {
        int r = e / dim, c = e % dim;
        qs[r * ld + c] =
            r < count ? read1(a.qkv, a.qkv_t, (first + r) * a.stride + head * dim + c) : 0.0f;
    }
    int64_t begin = INT64_MAX, end = 0;
    for (int r = 0; r < count; r++) {
        begin = min(begin, first_key(a, first + r));
        end = max(end, last_key(a, first + r) + 1);
    }
    float max_[EACH], sum[EACH], out[EACH][LANE_COLS] = { { 0 } };
    for (int t = 0; t < EACH; t++) {
        int r = warp * EACH + t;
        max_[t] = -INFINITY, sum[t] = 0;
        if (!before.lse || r >= count) continue;
        max_[t] = before.lse[lse_at(a, head, first + r)], sum[t] = 1;
        for (int c = 0; c < LANE_COLS; c++)
            if (lane + c * 32 < dim)
                out[t][c] = read1(before.o, before.dt,
                                  (first + r) * a.q * dim + head * dim + lane + c * 32);
    }
    for (int64_t tile = begin; tile < end; tile += TILE) {
        __syncthreads();
        load_keys(a, group, tile, end, ks, vs);
        __syncthreads();
        for (int t = 0; t < EACH; t++) {
            int r = warp * EACH + t;
            if (r >= count) continue;
            int64_t j = tile + lane;
            bool seen = j >= first_key(a, first + r) && j <= last_key(a, first + r);
            float s = seen ? att_score(a, dot(qs + r * ld, ks + lane * ld, dim), 1) : -INFINITY;
            float most = fmaxf(max_[t], warp_max(s));
            if (most == -INFINITY) continue;
            float p = seen ? __expf(s - most) : 0, rescale = __expf(max_[t] - most);
            sum[t] = sum[t] * rescale + warp_sum(p);
            if (DROPS && seen) p *= drop_factor<DROPS>(a, head, first + r, j);
            max_[t] = most;
            for (int c = 0; c < LANE_COLS; c++) out[t][c] *= rescale;
            for (int k = 0; k < TILE; k++) {
                float pk = __shfl_sync(~0u, p, k);
#pragma unroll
                for (int c = 0; c < LANE_COLS; c++)
                    if (lane + c * 32 < dim) out[t][c] += pk * vs[k * ld + lane + c * 32];
            }
        }
    }
    for (int t = 0; t < EACH; t++) {
        int r = warp * EACH + t;
        if (r >= count) continue;
        int64_t i = first + r;
        for (int c = 0; c < LANE_COLS; c++)
            if (lane + c * 32 < dim)
                write1(o.p, o.dt, i * a.q * dim + head * dim + lane + c * 32, out[t][c] / sum[t]);
        if (lse && lane == 0) lse[lse_at(a, head, i)] = max_[t] + logf(sum[t]);
    }
}

/* Loops over the sets of a block: one, unless the grid is limited to SETS_OF_REMAINDER. */
#define FOR_EACH_SET(a, first, n)                                                                  \
    for (int64_t first = first_token(a) + (int64_t)blockIdx.x * QUERIES; first < (n);              \
         first += (int64_t)gridDim.x * QUERIES)

template <bool DROPS>
static __global__ void attend_tiles(att a, att_before before, mixed o, float *lse) {
    for (int64_t first = first_token(a) + blockIdx.x * a.set; first < a.n;
         first += gridDim.x * a.set)
        attend_set<DROPS>(a, before, o, lse, first);
}

static att att_of(const op_call *c, const tensor *qkv) {
    att a = {};
    a.n = a.n_keys = qkv->dim[0];
    a.set = QUERIES;
    a.q = c->attr.heads.q, a.kv = c->attr.heads.kv, a.dim = c->attr.heads.dim;
    a.window = c->attr.heads.window, a.scale = c->attr.heads.scale;
    a.cap = c->attr.heads.cap;
    a.qkv = a.keys = qkv->data;
    a.qkv_t = a.key_t = qkv->dt;
    a.stride = a.key_stride = qkv->dim[1];
    a.key_col = a.q * a.dim;
    a.lse_head = a.n, a.lse_token = 1;
    BUG_IF(a.dim > MAX_DIM);
    return a;
}

/* Blocks along the tokens: one per set, or few for a remainder, which is most likely empty. */
static unsigned set_blocks(const att &a, int64_t n) {
    int64_t all = ceil_div(n, QUERIES);
    return (unsigned)(a.from && all > SETS_OF_REMAINDER ? SETS_OF_REMAINDER : all);
}

static void launch_attend(const op_call *c, const att &a, const att_before &before, const tensor *o,
                          float *lse) {
    if (a.set == QUERIES &&
        (attend_by_hopper(c, &a, &before, o, lse) || attend_by_mma(c, a, before, o, lse)))
        return;
    size_t shared = (size_t)(QUERIES + 2 * TILE) * (a.dim + 1) * sizeof(float);
    dim3 grid(a.set == QUERIES ? set_blocks(a, a.n) : (unsigned)ceil_div(a.n, a.set),
              (unsigned)a.q);
    auto kernel = a.drop.id ? attend_tiles<true> : attend_tiles<false>;
    LAUNCH(cuda_of(c), { grid, WARPS * WARP, shared }, kernel, a, before, mixed(*o), lse);
}

static void set_dropout(att *a, const op_call *c, const tensor *id, const tensor *key_id) {
    a->drop = attention_drop_of(c, id);
    a->key_id = (const int64_t *)key_id->data;
    a->step = c->run->step;
}

/* ---- sinks -------------------------------------------------------------------------------------
 * A term of the denominator beside the keys': o and lse of the keys alone become those of both. A warp per token and head:
 * reads and writes o once. */
static __global__ void __launch_bounds__(WARPS *WARP)
    scale_by_sinks(mixed o, float *lse, mixed sink, int first, int64_t n, int heads, int dim) {
    int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, i = at / heads;
    int head = (int)(at % heads), lane = threadIdx.x % WARP;
    await_previous();
    if (i >= n) return;
    float s = read1(sink.p, sink.dt, first + head), keys = lse[head * n + i];
    float top = fmaxf(s, keys), all = top + logf(expf(s - top) + expf(keys - top));
    float share = expf(keys - all);
    for (int64_t d = at * dim + lane; d < (at + 1) * dim; d += WARP)
        write1(o.p, o.dt, d, share * read1(o.p, o.dt, d));
    __syncwarp();
    if (lane == 0) lse[head * n + i] = all;
}

static void add_sinks(const op_call *c, const tensor *sink, const tensor *o, float *lse) {
    int64_t n = o->dim[0];
    int heads = c->attr.heads.q;
    if (!sink->data) return;
    LAUNCH(cuda_of(c), { blocks_for(n * heads, WARPS), WARPS * WARP, 0, true }, scale_by_sinks,
           mixed(*o), lse, mixed(*sink), c->attr.heads.sink_first, n, heads, c->attr.heads.dim);
}

/* dsink of a head: a block sums the tokens of its run, a warp one at a time, into a row of the workspace. Grid: (sinks,
 * SINK_RUNS). Deterministic. */
enum { SINK_RUNS = 32 };
static __global__ void __launch_bounds__(WARPS *WARP)
    sum_sinks(mixed dout, mixed o, const float *lse, mixed sink, float *partial, int first,
              int64_t n, int heads, int dim, int wide) {
    __shared__ float smem[WARPS];
    int at = blockIdx.x, head = at - first, lane = threadIdx.x % WARP;
    float sum = 0, s = read1(sink.p, sink.dt, at);
    for (int64_t i = (int64_t)blockIdx.y * WARPS + threadIdx.x / WARP;
         head >= 0 && head < heads && i < n; i += SINK_RUNS * WARPS) {
        float dot = 0;
        for (int64_t d = (i * heads + head) * dim + lane; d < (i * heads + head + 1) * dim;
             d += WARP)
            dot += read1(dout.p, dout.dt, d) * read1(o.p, o.dt, d);
        sum -= expf(s - lse[head * n + i]) * dot;
    }
    sum = block_sum(sum, smem);
    if (threadIdx.x == 0) partial[blockIdx.y * wide + at] = sum;
}

static void cuda_attention_sink_bwd(const op_call *c) {
    const tensor *o = &c->in[1], *sink = &c->in[3];
    int sinks = (int)sink->dim[0], wide = (int)align_up((size_t)sinks, EIGHT);
    if (!sinks) return;
    float *partial = (float *)c->run->workspace;
    dim3 grid((unsigned)sinks, SINK_RUNS);
    LAUNCH(cuda_of(c), { grid, WARPS * WARP }, sum_sinks, mixed(c->in[0]), mixed(*o),
           (const float *)c->in[2].data, mixed(*sink), partial, c->attr.heads.sink_first, o->dim[0],
           c->attr.heads.q, c->attr.heads.dim, wide);
    cuda_sums sums = {
        { (float *)c->out[0].data, NULL }, { (c->accumulate & 1) != 0, false }, sinks, wide
    };
    cuda_add_partials(cuda_of(c), partial, SINK_RUNS, 1, &sums);
}

static size_t sink_workspace(const op_backend *b, const op_call *c, int threads) {
    return SINK_RUNS * align_up((size_t)c->in[3].dim[0], EIGHT) * sizeof(float);
}

extern "C" void cuda_attention_tiles(const op_call *c) {
    att a = att_of(c, &c->in[0]);
    a.start = (const int32_t *)c->in[1].data;
    set_dropout(&a, c, &c->in[2], &c->in[2]);
    launch_attend(c, a, att_before(), &c->out[0], (float *)c->out[1].data);
    add_sinks(c, &c->in[3], &c->out[0], (float *)c->out[1].data);
}

static att att_block_of(const op_call *c, const tensor *q, const tensor *kv, const tensor *range) {
    att a = att_of(c, q);
    a.n_keys = kv->dim[0];
    a.keys = kv->data;
    a.key_t = kv->dt;
    a.key_stride = kv->dim[1];
    a.key_col = 0;
    a.window = 0;
    a.range = (const int32_t *)range->data;
    return a;
}

static void cuda_attention_block(const op_call *c) {
    att a = att_block_of(c, &c->in[BLOCK_Q], &c->in[BLOCK_KV], &c->in[BLOCK_RANGE]);
    att_before before = { c->in[BLOCK_BEFORE].data, c->in[BLOCK_BEFORE].dt,
                          (const float *)c->in[BLOCK_LSE_BEFORE].data };
    set_dropout(&a, c, &c->in[BLOCK_ID], &c->in[BLOCK_KEY_ID]);
    launch_attend(c, a, before, &c->out[0], (float *)c->out[1].data);
    add_sinks(c, &c->in[BLOCK_SINK], &c->out[0], (float *)c->out[1].data);
}

/* ---- decoding ---------------------------------------------------------------------------------- */
/* Copies k|v of each token to its row of the cache. Grid: tokens x columns; a thread has one element. */
static __global__ void store_keys(att a, void *cache, int cache_t) {
    int64_t row = blockIdx.x;
    int width = 2 * a.kv * a.dim, c = blockIdx.y * blockDim.x + threadIdx.x;
    await_previous();
    if (c < width)
        write1(cache, cache_t, last_key(a, row) * width + c,
               read1(a.qkv, a.qkv_t, row * a.stride + a.q * a.dim + c));
}

/* lse [H, N], which sinks need. */
static size_t cached_lse_bytes(const op_call *c) {
    if (!c->in[4].data && !c->attr.heads.sinks) return 0;
    return align_up((size_t)(c->attr.heads.q * c->in[0].dim[0]) * sizeof(float), 256);
}

static void cuda_attention_cached(const op_call *c) {
    att a = att_of(c, &c->in[0]);
    a.pos = (const int32_t *)c->in[2].data;
    a.start = (const int32_t *)c->in[3].data;
    a.chunk = c->attr.heads.chunk;
    if (a.n <= FEW_TOKENS) a.set = 1; /* most likely of several sequences, which lie apart */
    const tensor *cache = &c->in[1];
    enum { BLOCK = 128 };
    dim3 elements((unsigned)a.n, blocks_for(cache->dim[1], BLOCK));
    if (!attend_few_stores(c))
        LAUNCH(cuda_of(c), { elements, BLOCK, 0, true }, store_keys, a, cache->data, cache->dt);
    a.keys = cache->data;
    a.key_t = cache->dt;
    a.key_stride = cache->dim[1];
    a.key_col = 0;
    float *lse = c->in[4].data ? (float *)c->run->workspace : NULL;
    if (a.n > FEW_TOKENS ||
        !attend_few(c, &a, (char *)c->run->workspace + cached_lse_bytes(c), lse))
        launch_attend(c, a, att_before(), &c->out[0], lse);
    add_sinks(c, &c->in[4], &c->out[0], lse);
}

static size_t cached_workspace(const op_backend *b, const op_call *c, int threads) {
    bool few = c->in[0].dim[0] <= FEW_TOKENS;
    return cached_lse_bytes(c) + (few ? attend_few_bytes((const cuda_device *)b->context, c) : 0);
}

/* ---- backward ---------------------------------------------------------------------------------- */
/* dq of QUERIES tokens; also writes rowdot[H, N] = sum of do x o, which grad_keys reads. */
template <bool DROPS>
static __device__ void grad_query_set(const att &a, mixed dout, mixed o, const float *lse,
                                      mixed dq_, bool add, float *rowdot, int64_t first) {
    DYNAMIC_SHARED(float, shared);
    int dim = a.dim, ld = dim + 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *qs = shared, *ds = qs + QUERIES * ld, *ks = ds + QUERIES * ld, *vs = ks + TILE * ld;
    int head = blockIdx.y, group = head / (a.q / a.kv);
    int64_t count = min((int64_t)QUERIES, a.n - first);
    __syncthreads();
    for (int e = threadIdx.x; e < QUERIES * dim; e += blockDim.x) {
        int r = e / dim, c = e % dim;
        int64_t at = (first + r) * a.q * dim + head * dim + c;
        qs[r * ld + c] =
            r < count ? read1(a.qkv, a.qkv_t, (first + r) * a.stride + head * dim + c) : 0.0f;
        ds[r * ld + c] = r < count ? read1(dout.p, dout.dt, at) : 0.0f;
    }
    __syncthreads();
    int64_t begin = INT64_MAX, end = 0;
    for (int r = 0; r < count; r++) {
        begin = min(begin, first_key(a, first + r));
        end = max(end, last_key(a, first + r) + 1);
    }
    float dq[EACH][LANE_COLS] = { { 0 } }, row[EACH], stat[EACH];
    for (int t = 0; t < EACH; t++) {
        int r = warp * EACH + t;
        row[t] = stat[t] = 0;
        if (r >= count) continue;
        float s = 0;
        for (int c = lane; c < dim; c += 32)
            s += ds[r * ld + c] * read1(o.p, o.dt, (first + r) * a.q * dim + head * dim + c);
        row[t] = warp_sum(s);
        stat[t] = lse[lse_at(a, head, first + r)];
        if (lane == 0) rowdot[head * a.n + first + r] = row[t];
    }
    for (int64_t tile = begin; tile < end; tile += TILE) {
        __syncthreads();
        load_keys(a, group, tile, end, ks, vs);
        __syncthreads();
        for (int t = 0; t < EACH; t++) {
            int r = warp * EACH + t;
            if (r >= count) continue;
            int64_t j = tile + lane;
            bool seen = j >= first_key(a, first + r) && j <= last_key(a, first + r);
            float g = 0;
            if (seen) {
                float qk = dot(qs + r * ld, ks + lane * ld, dim);
                float p = __expf(att_score(a, qk, 1) - stat[t]);
                float dp = dot(ds + r * ld, vs + lane * ld, dim) *
                           drop_factor<DROPS>(a, head, first + r, j);
                g = p * (dp - row[t]) * att_score_slope(a, qk);
            }
            for (int k = 0; k < TILE; k++) {
                float gk = __shfl_sync(~0u, g, k);
#pragma unroll
                for (int c = 0; c < LANE_COLS; c++)
                    if (lane + c * 32 < dim) dq[t][c] += gk * ks[k * ld + lane + c * 32];
            }
        }
    }
    for (int t = 0; t < EACH; t++) {
        int r = warp * EACH + t;
        for (int c = 0; c < LANE_COLS; c++) {
            if (r >= count || lane + c * 32 >= dim) continue;
            int64_t at = (first + r) * a.stride + head * dim + lane + c * 32;
            float old = add ? read1(dq_.p, dq_.dt, at) : 0.0f;
            write1(dq_.p, dq_.dt, at, old + dq[t][c]);
        }
    }
}

template <bool DROPS>
static __global__ void grad_queries(att a, mixed dout, mixed o, const float *lse, mixed dq,
                                    bool add, float *rowdot) {
    FOR_EACH_SET(a, first, a.n) grad_query_set<DROPS>(a, dout, o, lse, dq, add, rowdot, first);
}

/* dk and dv of QUERIES keys of a key head, over every query of its query heads that sees them. */
template <bool DROPS>
static __device__ void grad_key_set(const att &a, mixed dout, const float *lse, const float *rowdot,
                                    mixed dkv, int64_t first) {
    DYNAMIC_SHARED(float, shared);
    int dim = a.dim, ld = dim + 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *ks = shared, *vs = ks + QUERIES * ld, *qs = vs + QUERIES * ld, *ds = qs + TILE * ld;
    int group = blockIdx.y, heads = a.q / a.kv;
    int64_t count = min((int64_t)QUERIES, a.n_keys - first), last = first + count - 1;
    __syncthreads();
    for (int e = threadIdx.x; e < QUERIES * dim; e += blockDim.x) {
        int r = e / dim, c = e % dim;
        int64_t at = (first + r) * a.key_stride + a.key_col + group * dim + c;
        ks[r * ld + c] = r < count ? read1(a.keys, a.key_t, at) : 0.0f;
        vs[r * ld + c] = r < count ? read1(a.keys, a.key_t, at + a.kv * dim) : 0.0f;
    }
    float dk[EACH][LANE_COLS] = { { 0 } }, dv[EACH][LANE_COLS] = { { 0 } };
    for (int head = group * heads; head < (group + 1) * heads; head++)
        for (int64_t tile = a.range ? 0 : first; tile < a.n && first_key(a, tile) <= last;
             tile += TILE) {
            if (last_key(a, min(tile + TILE, a.n) - 1) < first) continue;
            __syncthreads();
            load_tile(a.qkv, a.qkv_t, a.stride, (int64_t)head * dim, tile, a.n, dim, qs);
            load_tile(dout.p, dout.dt, (int64_t)a.q * dim, (int64_t)head * dim, tile, a.n, dim, ds);
            __syncthreads();
            int64_t i = tile + lane;
            bool live = i < a.n;
            int64_t lo = live ? first_key(a, i) : 0, hi = live ? last_key(a, i) : 0;
            float stat = live ? lse[lse_at(a, head, i)] : 0,
                  row = live ? rowdot[head * a.n + i] : 0;
            for (int t = 0; t < EACH; t++) {
                int r = warp * EACH + t;
                int64_t j = first + r;
                float p = 0, g = 0;
                if (live && r < count && j >= lo && j <= hi) {
                    float factor = drop_factor<DROPS>(a, head, i, j);
                    float qk = dot(qs + lane * ld, ks + r * ld, dim);
                    p = __expf(att_score(a, qk, 1) - stat);
                    g = p * (dot(ds + lane * ld, vs + r * ld, dim) * factor - row) *
                        att_score_slope(a, qk);
                    p *= factor;
                }
                for (int k = 0; k < TILE; k++) {
                    float pk = __shfl_sync(~0u, p, k), gk = __shfl_sync(~0u, g, k);
#pragma unroll
                    for (int c = 0; c < LANE_COLS; c++) {
                        if (lane + c * 32 >= dim) continue;
                        dv[t][c] += pk * ds[k * ld + lane + c * 32];
                        dk[t][c] += gk * qs[k * ld + lane + c * 32];
                    }
                }
            }
        }
    for (int t = 0; t < EACH; t++) {
        int r = warp * EACH + t;
        for (int c = 0; c < LANE_COLS; c++) {
            if (r >= count || lane + c * 32 >= dim) continue;
            int64_t at = (first + r) * a.key_stride + a.key_col + group * dim + lane + c * 32;
            write1(dkv.p, dkv.dt, at, dk[t][c]);
            write1(dkv.p, dkv.dt, at + a.kv * dim, dv[t][c]);
        }
    }
}

template <bool DROPS>
static __global__ void grad_keys(att a, mixed dout, const float *lse, const float *rowdot,
                                 mixed dkv) {
    FOR_EACH_SET(a, first, a.n_keys) grad_key_set<DROPS>(a, dout, lse, rowdot, dkv, first);
}

static void launch_grad(const op_call *c, const att &a, const att_grad &g) {
    if (attention_grad_by_hopper(c, &a, &g) || attention_grad_by_mma(c, a, g)) return;
    size_t shared = (size_t)(2 * QUERIES + 2 * TILE) * (a.dim + 1) * sizeof(float);
    dim3 queries(set_blocks(a, a.n), (unsigned)a.q), keys(set_blocks(a, a.n_keys), (unsigned)a.kv);
    auto of_queries = a.drop.id ? grad_queries<true> : grad_queries<false>;
    auto of_keys = a.drop.id ? grad_keys<true> : grad_keys<false>;
    LAUNCH(cuda_of(c), { queries, WARPS * WARP, shared }, of_queries, a, g.dout, g.o, g.lse, g.dq,
           g.add, g.rowdot);
    LAUNCH(cuda_of(c), { keys, WARPS * WARP, shared }, of_keys, a, g.dout, g.lse,
           (const float *)g.rowdot, g.dkv);
}

static size_t rowdot_bytes(const op_call *c) {
    return align_up((size_t)(c->attr.heads.q * c->in[1].dim[0]) * sizeof(float), 256);
}
/* Of dq in fp32, which attention_one_pass_hopper.cu sums. */
static size_t query_sum_bytes(const cuda_device *d, const op_call *c) {
    bool sums = c->op == OP_ATTENTION_BWD && !(c->attr.heads.cap > 0) && !d->deterministic &&
                cuda_attention_on_hopper(d, c->out[0].dt, c->attr.heads.dim) &&
                c->attr.heads.dim <= 128;
    return sums ? (size_t)tensor_count(&c->in[0]) * sizeof(float) : 0;
}

/* Of ATTENTION_BWD. */
static att_grad att_grad_of(const op_call *c, void *workspace) {
    att_grad g = {};
    g.dout = mixed(c->in[0]), g.o = mixed(c->in[2]), g.dq = g.dkv = mixed(c->out[0]);
    g.lse = (const float *)c->in[3].data;
    g.rowdot = (float *)workspace;
    return g;
}

extern "C" void cuda_attention_tiles_bwd(const op_call *c) {
    att a = att_of(c, &c->in[1]);
    a.start = (const int32_t *)c->in[4].data;
    set_dropout(&a, c, &c->in[5], &c->in[5]);
    att_grad g = att_grad_of(c, c->run->workspace);
    if (query_sum_bytes(cuda_of(c)->device, c))
        g.sums = (float *)((char *)c->run->workspace + rowdot_bytes(c));
    launch_grad(c, a, g);
}

static void cuda_attention_block_bwd(const op_call *c) {
    att a = att_block_of(c, &c->in[BLOCK_BWD_Q], &c->in[BLOCK_BWD_KV], &c->in[BLOCK_BWD_RANGE]);
    att_grad g = {};
    g.dout = mixed(c->in[BLOCK_BWD_DO]), g.o = mixed(c->in[BLOCK_BWD_O]);
    g.dq = mixed(c->out[0]), g.dkv = mixed(c->out[1]);
    g.lse = (const float *)c->in[BLOCK_BWD_LSE].data;
    g.rowdot = (float *)c->run->workspace;
    g.add = c->accumulate & 1;
    set_dropout(&a, c, &c->in[BLOCK_BWD_ID], &c->in[BLOCK_BWD_KEY_ID]);
    launch_grad(c, a, g);
}

extern "C" size_t cuda_attention_remainder_bytes(const op_call *c) {
    return c->op == OP_ATTENTION_BWD || c->op == OP_ATTENTION_BLOCK_BWD ? rowdot_bytes(c) : 0;
}
extern "C" size_t cuda_attention_tiles_bytes(const cuda_device *d, const op_call *c) {
    return cuda_attention_remainder_bytes(c) + query_sum_bytes(d, c);
}

/* ---- for cuDNN: the first key of each query, as an index in its row ------------------------------- */
/* A thread per token: reads 4 bytes, writes 4. */
static __global__ void find_first_keys(const int32_t *start, int64_t n, int64_t seq, int window,
                                       int32_t *first) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t lo = start[i], row = i / seq * seq;
    if (window > 0 && i - window + 1 > lo) lo = i - window + 1;
    first[i] = (int32_t)(lo > row ? lo - row : 0);
}

extern "C" void cuda_find_first_keys(const op_call *c, const int32_t *start, int64_t n, int64_t seq,
                                     int32_t *first) {
    LAUNCH(cuda_of(c), { (unsigned)ceil_div(n, 256), 256 }, find_first_keys, start, n, seq,
           c->attr.heads.window, first);
}

/* ---- for cuDNN: lengths and offsets of documents -------------------------------------------------- */
enum { SCAN_THREADS = 1024, SCAN_EACH = 16 };

/* A single block of SCAN_THREADS threads, 4 bytes read per token. Each thread finds the first tokens of
 * documents among SCAN_EACH tokens; a prefix sum over the threads numbers them. */
static __global__ void find_documents(const int32_t *start, int n, int slots, int64_t w0,
                                      int64_t w1, int64_t w2, cuda_documents *out) {
    __shared__ int begin[CUDA_MAX_DOCUMENTS + 1], total[SCAN_THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, before = 0;
    for (int k = threadIdx.x; k <= slots; k += SCAN_THREADS) begin[k] = n;
    for (int from = 0; from < n; from += SCAN_THREADS * SCAN_EACH) {
        int at = from + threadIdx.x * SCAN_EACH;
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < SCAN_EACH; j++)
            if (at + j < n && start[at + j] == at + j) bits |= 1u << j;
        int own = __popc(bits), sum = own;
        for (int o = 1; o < WARP; o <<= 1) {
            int other = __shfl_up_sync(~0u, sum, o);
            if (lane >= o) sum += other;
        }
        __syncthreads();
        if (lane == WARP - 1) total[warp] = sum;
        __syncthreads();
        int number = before + sum - own;
        for (int w = 0; w < SCAN_THREADS / WARP; w++) {
            if (w < warp) number += total[w];
            before += total[w];
        }
        for (; bits; bits &= bits - 1, number++)
            if (number <= slots) begin[number] = at + __ffs(bits) - 1;
    }
    __syncthreads();
    for (int k = threadIdx.x; k <= slots; k += SCAN_THREADS) {
        int64_t at = begin[k];
        if (k < slots) out->length[k] = begin[k + 1] - begin[k];
        out->offset[0][k] = at * w0, out->offset[1][k] = at * w1, out->offset[2][k] = at * w2;
    }
    if (threadIdx.x == 0) out->remainder = begin[slots];
}

extern "C" void cuda_find_documents(const op_call *c, const int32_t *start, int64_t n, int slots,
                                    const int64_t width[3], cuda_documents *out) {
    BUG_IF(slots > CUDA_MAX_DOCUMENTS || n >= INT32_MAX - SCAN_THREADS * SCAN_EACH);
    LAUNCH(cuda_of(c), { 1, SCAN_THREADS }, find_documents, start, (int)n, slots, width[0],
           width[1], width[2], out);
}

extern "C" void cuda_attention_remainder(const op_call *c, const int32_t *from, void *workspace) {
    bool bwd = c->op == OP_ATTENTION_BWD;
    att a = att_of(c, &c->in[bwd ? 1 : 0]);
    a.start = (const int32_t *)c->in[bwd ? 4 : 1].data;
    a.from = from;
    a.lse_head = 1, a.lse_token = a.q;
    if (bwd)
        launch_grad(c, a, att_grad_of(c, workspace));
    else
        launch_attend(c, a, att_before(), &c->out[0], (float *)c->out[1].data);
}

static size_t block_workspace(const op_backend *b, const op_call *c, int threads) {
    return cuda_attention_tiles_bytes((const cuda_device *)b->context, c);
}

KERNEL(ATTENTION_BLOCK, cuda_attention_block, block_workspace,
       ATTRS_HEADS | ATTRS_SCORES | ATTRS_ATTENTION_DROPOUT);
KERNEL(ATTENTION_BLOCK_BWD, cuda_attention_block_bwd, block_workspace,
       ATTRS_HEADS | ATTRS_SCORES | ATTRS_ATTENTION_DROPOUT);
KERNEL(ATTENTION_SINK_BWD, cuda_attention_sink_bwd, sink_workspace, ATTRS_HEADS | ATTR(SINK_FIRST));
KERNEL(ATTENTION_CACHED, cuda_attention_cached, cached_workspace,
       ATTRS_HEADS | ATTRS_ATTENTION | ATTR(CHUNK));
