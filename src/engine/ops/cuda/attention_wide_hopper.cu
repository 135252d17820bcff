/* Attention on Hopper's tensor cores, backward: dk and dv of heads of 192 and 256. The second of two passes, after
 * grad_queries_hopper (attention_bwd_hopper.cu). Deterministic.
 *
 *     grad_wide_keys_hopper     grid: 64 keys x key heads
 *
 * The sums of 128 keys do not fit in registers, so the two computing groups share 64 keys, and each has one of the gradients:
 *
 *     first group                          second group
 *     p = keys queries^T                   dp = values do^T
 *     p to shared memory ------------->    ds = p (dp - rowdot)
 *     dv += p do                           dk += ds queries
 *
 * p passes in fp32, from thread to thread, through one buffer: the first group is at most a tile ahead. While a group computes
 * probabilities the other multiplies. A tile of 64 queries of heads of 256 takes, of an SM:
 *
 *     tensor cores      4 products of 512 cycles                                   2,048 cycles
 *     shared memory     scores 4 x 32 KiB, sums 2 x 32, the tile 64, p twice 16    2,304 cycles, at 128 bytes each
 *     L2                the tile, 64 KiB                                           2,800 cycles, at 5.3 TB/s of 132 SMs
 *     registers         128 for the sum, 32 for each of p and dp, 16 as left operand; 224 are enough
 *
 * The three kernels that this one and grad_queries_hopper replace had 64 rows per block for heads of 256 and read 192 KiB of L2
 * per 64 x 64 scores, at that rate, so presumably they waited for L2. The two read 96. Two blocks of a cluster that share their tiles would
 * read 64. One pass would compute five products instead of seven, but add 64 KiB to dq in L2 for every tile that it reads:
 * blocks of 128 keys, which add half of that, at 1.2 to 1.6 TB/s were the fastest measured. */
#include "attention_bwd_hopper.cuh"

template <int DIM> struct wide_sizes {
    enum {
        GROUPS = 2,
        FEW = 56, /* registers of copying threads */
        STAGES_ = DIM == 192 ? 3 : 2,
        ROWS_ = 64,
        OWN = tile_bytes<DIM, 64>(),
        TILE = tile_bytes<DIM, LINES>(),
        PROBABILITIES = (LINES / 2 + 1) * GROUP_THREADS * 4, /* p of a tile, and what is kept */
        SHARED = ALIGN + 2 * OWN + STAGES_ * 2 * TILE + PROBABILITIES
    };
};
template <int DIM>
using tile_stages = stage_ring<wide_sizes<DIM>::STAGES_, 2 * wide_sizes<DIM>::TILE>;
/* p of one tile at a time: from a thread of the first group to the thread of the second that has the same scores. */
template <int DIM> using p_stage = stage_ring<1, wide_sizes<DIM>::PROBABILITIES>;

static __device__ __forceinline__ void put_probabilities(char *to, const float (&p)[LINES / 2],
                                                         const uint32_t *kept) {
    int thread = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < LINES / 8; i++)
        ((float4 *)to)[i * GROUP_THREADS + thread] =
            make_float4(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
    if (kept) ((uint32_t *)to)[LINES / 2 * GROUP_THREADS + thread] = *kept;
}
static __device__ __forceinline__ void get_probabilities(const char *from, float (&p)[LINES / 2],
                                                         uint32_t *kept) {
    int thread = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int i = 0; i < LINES / 8; i++) {
        float4 v = ((const float4 *)from)[i * GROUP_THREADS + thread];
        p[4 * i] = v.x, p[4 * i + 1] = v.y, p[4 * i + 2] = v.z, p[4 * i + 3] = v.w;
    }
    if (kept) *kept = ((const uint32_t *)from)[LINES / 2 * GROUP_THREADS + thread];
}

/* The first group: p, and dv of the block's keys. */
template <class T, int DIM, bool DROPS>
static __device__ __forceinline__ void sum_value_grads(const att &a, const att_grad &g,
                                                       const key_block<wide_sizes<DIM>> &b,
                                                       tile_stages<DIM> ring, p_stage<DIM> shared,
                                                       const query_tile *queries) {
    typedef wide_sizes<DIM> S;
    float dv[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) dv[i] = 0;
    key_sixteen sixteen = {};
    uint2 key;
    if (DROPS) sixteen = sixteen_of_warp(a, b.first), key = drop_key(a);
    tile_stages<DIM> before = ring; /* the stage whose dv is being summed */
    uint32_t left[LINES / 4], kept = 0;
    for (bool first = true;; first = false, before = ring, ring.next(), shared.next()) {
        ring.wait_full();
        const query_tile &q = queries[ring.at];
        int head = __shfl_sync(~0u, q.head, 0);
        if (head < 0) break;
        float p[LINES / 2];
        begin_scores<T, DIM, LINES>(p, b.own, ring.stage());
        multiply_wait<1>();
        if (!first) before.release();
        if (DROPS) kept = draw_columns(a, key, head, q, sixteen);
        multiply_wait<0>();
        soften_keys(a, q, (int)b.first, p);
        shared.wait_empty();
        put_probabilities(shared.stage(), p, DROPS ? &kept : NULL);
        __syncwarp();
        if (threadIdx.x % WARP == 0) barrier_arrive(shared.full);
        pack_kept<T, DROPS>(left, p, kept);
        begin_sums<T, DIM, LINES>(dv, left, ring.stage() + S::TILE);
    }
    multiply_wait<0>();
    int col = a.key_col + (a.kv + b.kv_head) * DIM;
    write_key_grads<DIM>(a, g.dkv, b.first, b.last, col, value_factor(a), dv);
}

/* The second group: dk of the block's keys. */
template <class T, int DIM, bool DROPS>
static __device__ __forceinline__ void sum_key_grads(const att &a, const att_grad &g,
                                                     const key_block<wide_sizes<DIM>> &b,
                                                     tile_stages<DIM> ring, p_stage<DIM> shared,
                                                     const query_tile *queries) {
    typedef wide_sizes<DIM> S;
    float dk[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) dk[i] = 0;
    tile_stages<DIM> before = ring; /* the stage whose dk is being summed */
    uint32_t right[LINES / 4], kept = 0;
    for (bool first = true;; first = false, before = ring, ring.next(), shared.next()) {
        ring.wait_full();
        const query_tile &q = queries[ring.at];
        if (__shfl_sync(~0u, q.head, 0) < 0) break;
        float p[LINES / 2], s[LINES / 2];
        begin_scores<T, DIM, LINES>(s, b.own + S::OWN, ring.stage() + S::TILE);
        multiply_wait<1>();
        if (!first) before.release();
        shared.wait_full();
        get_probabilities(shared.stage(), p, DROPS ? &kept : NULL);
        shared.release();
        multiply_wait<0>();
        grad_keys_scores<DROPS>(a, q, kept, p, s);
        pack_scores<T, LINES>(right, s);
        begin_sums<T, DIM, LINES>(dk, right, ring.stage());
    }
    multiply_wait<0>();
    write_key_grads<DIM>(a, g.dkv, b.first, b.last, a.key_col + b.kv_head * DIM, 1, dk);
}

template <class T, int DIM, bool DROPS>
static __global__ void __launch_bounds__((wide_sizes<DIM>::GROUPS + 1) * GROUP_THREADS, 1)
    grad_wide_keys_hopper(const __grid_constant__ att_maps maps, const __grid_constant__ att a,
                          const __grid_constant__ att_grad g) {
    typedef wide_sizes<DIM> S;
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[2 * S::STAGES_ + 1], p_bars[2];
    __shared__ query_tile queries[S::STAGES_];
    tile_stages<DIM> ring;
    if (threadIdx.x == 0) p_stage<DIM>{ NULL, p_bars, p_bars + 1, 0, 0 }.init(1, 4);
    key_block<S> b = open_key_block<S>(a, memory, bars, &ring, (int)blockIdx.x, (int)blockIdx.y);
    p_stage<DIM> shared = { b.tiles + S::STAGES_ * 2 * S::TILE, p_bars, p_bars + 1, 0, 0 };
    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<S::GROUPS, S::FEW>(true);
        if (threadIdx.x < COPIERS * WARP) copy_key_block<S, DIM>(maps, a, g, b, ring, queries);
        return;
    }
    keep_registers<S::GROUPS, S::FEW>(false);
    barrier_wait(b.full, 0);
    if (__shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS, 0) == 1)
        sum_value_grads<T, DIM, DROPS>(a, g, b, ring, shared, queries);
    else
        sum_key_grads<T, DIM, DROPS>(a, g, b, ring, shared, queries);
}

template <class T, int DIM>
static void launch_wide_keys(const op_call *c, const att_maps &maps, const att &a,
                             const att_grad &g) {
    typedef wide_sizes<DIM> S;
    dim3 grid((unsigned)ceil_div(a.n_keys, S::ROWS_), (unsigned)a.kv);
    auto kernel =
        a.drop.id ? grad_wide_keys_hopper<T, DIM, true> : grad_wide_keys_hopper<T, DIM, false>;
    LAUNCH(cuda_of(c), { grid, (S::GROUPS + 1) * GROUP_THREADS, S::SHARED }, kernel, maps, a, g);
}

extern "C" void attention_grad_of_wide_keys(const op_call *c, const att *a, const att_grad *g,
                                            const att_maps *maps) {
    switch (a->dim) {
        AS_HEAD(192, launch_wide_keys<bf16, DIM>(c, *maps, *a, *g));
        AS_HEAD(256, launch_wide_keys<bf16, DIM>(c, *maps, *a, *g));
    default: BUG("a head of another size");
    }
}
