/* Shared by the kernels of attention's backward on Hopper's tensor cores that have a block per 64 or 128 keys
 * (attention_bwd_hopper.cu, attention_one_pass_hopper.cu, attention_wide_hopper.cu): tiles of queries, and what becomes of
 * scores. */
#ifndef INGOT_OPS_CUDA_ATTENTION_BWD_HOPPER_CUH
#define INGOT_OPS_CUDA_ATTENTION_BWD_HOPPER_CUH

#include "attention_hopper.cuh"

enum { LINES = 64, COPIERS = LINES / WARP }; /* of a tile; warps that copy it */
/* A block's threads in kernels over elements, and the threads that share a head of a token. */
enum { DOT_THREADS = 256, DOT_SHARE = 4 };

/* attention_bwd_hopper.cu: g->rowdot, and zeros in g->sums, if there are any that are not added to. */
extern "C" void attention_row_dots(const op_call *c, const att *a, const att_grad *g);

template <int DIM> struct backward_sizes {
    enum {
        GROUPS = 2,
        FEW = DIM == 128 ? 24 : 40, /* registers of copying threads */
        STAGES_ = 3,
        ROWS_ = 64 * GROUPS,
        OWN = tile_bytes<DIM, 64>(),
        TILE = tile_bytes<DIM, LINES>(),
        SHARED = ALIGN + ROWS_ / 64 * 2 * OWN + STAGES_ * 2 * TILE
    };
};
/* ---- keys ---------------------------------------------------------------------------------------- */
/* A tile of queries: a copying warp has a line per lane. */
struct alignas(16) query_tile {
    float lse[LINES]; /* less the logarithm of the scale */
    float dot[LINES];
    int lo[LINES], hi[LINES];
    uint64_t id[LINES];     /* with dropout: 0 past the last query */
    int head, row;          /* head -1: the end */
    bool all_seen[COPIERS]; /* every key of the block by each query of a warp's lines */
};

/* What a thread reads about a query of a tile: before the tile's stage is free, so that copying does not wait for memory. */
typedef struct query_numbers {
    float lse, dot;
    int lo, hi, begin; /* begin: the first key that any query from the tile on sees */
    uint64_t id;
} query_numbers;

static __device__ __forceinline__ query_numbers read_query_numbers(const att &a, const att_grad &g,
                                                                   int head, int row) {
    int query = row + (int)threadIdx.x;
    query_numbers s = { 0, 0, 1, 0, INT32_MAX, 0 };
    if (row < a.n) s.begin = (int)first_key(a, row);
    if (query >= a.n) return s;
    s.lse = g.lse[lse_at(a, head, query)];
    s.dot = g.rowdot[head * a.n + query];
    s.lo = (int)first_key(a, query), s.hi = (int)last_key(a, query);
    if (a.drop.id) s.id = (uint64_t)a.drop.id[query];
    return s;
}

/* By the copying warps. */
static __device__ __forceinline__ void write_query_numbers(const att &a, const query_numbers &s,
                                                           int head, int row, int first, int last,
                                                           query_tile *to) {
    int line = threadIdx.x;
    to->lse[line] = s.hi < s.lo ? 0 : s.lse * LOG2E - log2f(a.scale);
    to->dot[line] = s.dot;
    to->lo[line] = s.lo, to->hi[line] = s.hi;
    if (a.drop.id) to->id[line] = s.id;
    bool all = __all_sync(~0u, s.lo <= first && s.hi >= last);
    if (line % WARP == 0) to->all_seen[line / WARP] = all;
    if (line == 0) to->head = head, to->row = row;
    __syncwarp();
}

/* Draws which of the warp's 16 keys the queries of a tile keep: column_keeps says which bit is about which score. A lane draws
 * for two queries, without branches unless the keys are scattered. */
static __device__ __forceinline__ uint32_t draw_columns(const att &a, uint2 key, int head,
                                                        const query_tile &q,
                                                        const key_sixteen &keys) {
    int lane = threadIdx.x % WARP;
    uint32_t own = 0, kept = 0;
    if (__shfl_sync(~0u, keys.id, 0) != SCATTERED) {
#pragma unroll
        for (int b = 0; b < LINES / WARP; b++)
            own |= draw_sixteen(a, key, head, q.id[lane + b * WARP], keys.id) << 4 * b;
    } else {
#pragma unroll 1
        for (int b = 0; b < LINES / WARP; b++) {
            int line = lane + b * WARP, lo = q.lo[line], hi = q.hi[line];
            if (lo <= hi && keys.j <= hi && keys.j + SIXTEEN > lo)
                own |= kept_keys(a, head, q.id[line], keys.j) << 4 * b;
        }
    }
    /* Of a query the lane has keys r and r + 8, for r = lane / 4: bits 0 and 2 after the shift, and of the query 32 later bits
     * 4 and 6. */
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            kept |=
                (__shfl_sync(~0u, own, EIGHT * k + lane % 4 * 2 + i) >> kept_bit(lane / 4) & 0x55)
                << (8 * k + i);
    return kept;
}
/* Of the lane's score p[4 n + 2 h + i]. */
static __device__ __forceinline__ bool column_keeps(uint32_t kept, int n, int h, int i) {
    return kept >> (n % 4 * 8 + n / 4 * 4 + h * 2 + i) & 1;
}

/* Products of keys and queries become probabilities times the scale. */
template <bool ALL_SEEN>
static __device__ __forceinline__ void soften_keys(const att &a, const query_tile &q, int first,
                                                   float (&p)[LINES / 2]) {
    int lane = threadIdx.x % WARP, row = threadIdx.x % GROUP_THREADS / WARP * 16 + lane / 4;
    float by = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < LINES / 8; n++) {
        int line = 8 * n + lane % 4 * 2;
        float2 stat = *(const float2 *)&q.lse[line];
        int2 lo, hi;
        if (!ALL_SEEN) lo = *(const int2 *)&q.lo[line], hi = *(const int2 *)&q.hi[line];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int j = first + row + 8 * h;
                float &x = p[4 * n + 2 * h + i];
                x = exp2_approx(fmaf(x, by, -(i ? stat.y : stat.x)));
                if (!ALL_SEEN && (j < (i ? lo.y : lo.x) || j > (i ? hi.y : hi.x))) x = 0;
            }
    }
}

static __device__ __forceinline__ void soften_keys(const att &a, const query_tile &q, int first,
                                                   float (&p)[LINES / 2]) {
    if (q.all_seen[0] && q.all_seen[1])
        soften_keys<true>(a, q, first, p);
    else
        soften_keys<false>(a, q, first, p);
}

/* The left operand of dv: what is kept of p. */
template <class T, bool DROPS>
static __device__ __forceinline__ void pack_kept(uint32_t (&left)[LINES / 4],
                                                 const float (&p)[LINES / 2], uint32_t kept) {
    float x[LINES / 2];
#pragma unroll
    for (int e = 0; e < LINES / 2; e++)
        x[e] = !DROPS || column_keeps(kept, e / 4, e / 2 % 2, e % 2) ? p[e] : 0;
    pack_scores<T, LINES>(left, x);
}

/* Products of values and do become the gradients of scores. */
template <bool DROPS>
static __device__ __forceinline__ void grad_keys_scores(const att &a, const query_tile &q,
                                                        uint32_t kept, const float (&p)[LINES / 2],
                                                        float (&g)[LINES / 2]) {
#pragma unroll
    for (int n = 0; n < LINES / 8; n++) {
        float2 dot = *(const float2 *)&q.dot[8 * n + threadIdx.x % 4 * 2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float &y = g[4 * n + 2 * h + i], of = i ? dot.y : dot.x;
                if (DROPS)
                    y = fmaf(column_keeps(kept, n, h, i) ? y : 0, a.drop.keep, -of);
                else
                    y -= of;
                y *= p[4 * n + 2 * h + i];
            }
    }
}

/* ---- a block of keys ----------------------------------------------------------------------------- */
/* The keys of a block, and what of shared memory holds them. */
template <class S> struct key_block {
    char *own, *tiles; /* 64 keys, their values, the next 64; the stages of the ring */
    uint64_t *full;    /* they have been copied */
    int kv_head;
    int64_t first, last;
};

/* Sets up the barriers: bars has 2 STAGES_ + 1. Ends with the block at a barrier. */
template <class S, class RING>
static __device__ __forceinline__ key_block<S> open_key_block(const att &a, char *memory,
                                                              uint64_t *bars, RING *ring, int block,
                                                              int kv_head) {
    char *own = aligned(memory);
    int64_t first = (int64_t)block * S::ROWS_;
    key_block<S> b = { own,   own + S::ROWS_ / 64 * 2 * S::OWN,   &bars[2 * S::STAGES_], kv_head,
                       first, min(first + S::ROWS_, a.n_keys) - 1 };
    *ring = { b.tiles, bars, bars + S::STAGES_, 0, 0 };
    if (threadIdx.x == 0) {
        ring->init(S::GROUPS, COPIERS);
        barrier_init(b.full, 1);
        barriers_ready();
    }
    __syncthreads();
    return b;
}

/* Copies the keys, then every tile of queries that sees one of them, and a tile of head -1: by the copying warps. */
template <class S, int DIM, class RING>
static __device__ __forceinline__ void copy_key_block(const att_maps &maps, const att &a,
                                                      const att_grad &g, const key_block<S> &b,
                                                      RING ring, query_tile *queries) {
    int heads = a.q / a.kv, col = a.key_col + b.kv_head * DIM;
    if (threadIdx.x == 0) {
        barrier_expect(b.full, S::ROWS_ / 64 * 2 * S::OWN);
        for (int i = 0; i < S::ROWS_ / 64; i++) {
            char *to = b.own + i * 2 * S::OWN;
            copy_tile<DIM, 64>(to, &maps.kv, col, (int)b.first + 64 * i, b.full);
            copy_tile<DIM, 64>(to + S::OWN, &maps.kv, col + a.kv * DIM, (int)b.first + 64 * i,
                               b.full);
        }
    }
    int from = (int)first_query(a, b.first), row = from;
    int head = b.kv_head * heads, end = head + heads;
    query_numbers numbers = read_query_numbers(a, g, head, row);
    for (;; ring.next()) {
        if (numbers.begin > b.last) { /* no query from here on sees the block's keys */
            if (row == from || ++head == end) break;
            row = from;
            numbers = read_query_numbers(a, g, head, row);
        }
        ring.wait_empty();
        uint64_t *full = &ring.full[ring.at];
        if (threadIdx.x == 0) {
            barrier_expect_more(full, 2 * S::TILE);
            copy_tile<DIM, LINES>(ring.stage(), &maps.q, head * DIM, row, full);
            copy_tile<DIM, LINES>(ring.stage() + S::TILE, &maps.dout, head * DIM, row, full);
        }
        write_query_numbers(a, numbers, head, row, (int)b.first, (int)b.last, &queries[ring.at]);
        if (threadIdx.x % WARP == 0) barrier_arrive(full);
        row += LINES;
        numbers = read_query_numbers(a, g, head, row);
    }
    ring.wait_empty();
    if (threadIdx.x == 0) queries[ring.at].head = -1;
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(&ring.full[ring.at]);
}

/* Writes one of the gradients of 64 keys, the first of which is `first`; `col`: of the head. */
template <int DIM>
static __device__ __forceinline__ void write_key_grads(const att &a, mixed to, int64_t first,
                                                       int64_t last, int col, float by,
                                                       const float (&sum)[DIM / 2]) {
    int thread = threadIdx.x % GROUP_THREADS, lane = thread % WARP;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t j = first + thread / WARP * 16 + lane / 4 + 8 * h;
        if (j > last) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            write_two(to, j * a.key_stride + col + 8 * n + lane % 4 * 2, sum[4 * n + 2 * h] * by,
                      sum[4 * n + 2 * h + 1] * by, false);
    }
}
/* Sums of p are multiplied by this: p has the scale, and not the factor of what is kept. */
static __device__ __forceinline__ float value_factor(const att &a) { return a.drop.keep / a.scale; }

/* The keys whose decisions a warp of a group draws. */
static __device__ __forceinline__ key_sixteen sixteen_of_warp(const att &a, int64_t first) {
    return sixteen_keys(a, (int)first + threadIdx.x % GROUP_THREADS / WARP * 16);
}

#endif
