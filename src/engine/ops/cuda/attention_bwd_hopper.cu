/* Attention on Hopper's tensor cores, backward in two passes: attention_hopper.cuh.
 *
 *     sum_row_dots            rowdot; for one pass also zeros where dq is summed
 *     grad_queries_hopper     grid: 128 queries x heads; dq. Three products: s, dp, dq
 *     grad_keys_hopper        grid: 128 keys x key heads; dk and dv. Four products: s, dp, dv, dk
 *
 * The latter two recompute the scores from lse. Deterministic; attention_one_pass_hopper.cu has the faster way, which is not.
 * The sums of heads wider than 128 do not fit in the registers of grad_keys_hopper: attention_wide_hopper.cu has another kernel
 * for them.
 *
 * The two groups of grad_queries_hopper share tiles of keys and of values, a ring in which the values of a tile come first:
 *
 *     dp = do values^T           after dq of the tile before, whose keys are then released; dropout is drawn meanwhile
 *     s = queries keys^T         then the values are released
 *     ds = p (dp - rowdot)
 *     dq += ds keys
 *
 * Three slots are enough, which is what heads of 256 have beside 128 queries and do: the next values are copied to the slot of
 * the keys before, the next keys to that of the values, each while the group computes on. */
#include "attention_bwd_hopper.cuh"

template <int DIM> struct query_sizes {
    enum {
        GROUPS = 2,
        ROWS_ = 64 * GROUPS,
        OWN = tile_bytes<DIM, 64>(),
        TILE = tile_bytes<DIM, LINES>(),
        FIT = ((224 << 10) - GROUPS * 2 * OWN) / TILE,
        SLOTS = FIT < 6 ? FIT : 6, /* of a tile of keys or values */
        SHARED = ALIGN + GROUPS * 2 * OWN + SLOTS * TILE
    };
};

/* ---- queries ------------------------------------------------------------------------------------- */
/* rowdot, and zeros where dq is summed: reads do and o once. A thread: an eighth element of every 32 of its head. Threads are
 * numbered with 32 bits, since divisions of 64 would take longer than the memory. */
static __global__ void sum_row_dots(att a, att_grad g) {
    uint32_t i = (blockIdx.x * DOT_THREADS + threadIdx.x) / DOT_SHARE, token = i / a.q;
    bool live = token < a.n, zero = g.sums && ((void *)g.sums != g.dq.p || !g.add);
    float s = 0;
    for (int c = threadIdx.x % DOT_SHARE * EIGHT; live && c < a.dim; c += DOT_SHARE * EIGHT) {
        float x[EIGHT], y[EIGHT], none[EIGHT] = { 0 };
        int64_t at = (int64_t)i * a.dim + c;
        g.dout.load(at, at + EIGHT, x);
        g.o.load(at, at + EIGHT, y);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) s += x[k] * y[k];
        if (zero) write8(g.sums + at, none);
    }
    s = quad_sum(s);
    if (live && threadIdx.x % DOT_SHARE == 0) g.rowdot[(i - token * a.q) * a.n + token] = s;
}

extern "C" void attention_row_dots(const op_call *c, const att *a, const att_grad *g) {
    unsigned blocks = (unsigned)ceil_div(a->n * a->q, DOT_THREADS / DOT_SHARE);
    LAUNCH(cuda_of(c), { blocks, DOT_THREADS }, sum_row_dots, *a, *g);
}

/* Scores and do v become the gradient of the scores. */
template <bool DROPS>
static __device__ __forceinline__ void grad_scores(const att &a, const two_rows &t, int tile,
                                                   bool all_seen, const uint32_t (&kept)[2],
                                                   float (&s)[LINES / 2], float (&dp)[LINES / 2],
                                                   const float (&stat)[2], const float (&dot)[2]) {
    int lane = threadIdx.x % WARP;
    float by = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < LINES / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int j = tile + 8 * n + lane % 4 * 2 + i;
                float &x = s[4 * n + 2 * h + i], g = dp[4 * n + 2 * h + i];
                if (DROPS) g = row_keeps(kept[h], n, i) ? g * a.drop.keep : 0;
                bool seen = all_seen || (j >= t.lo[h] && j <= t.hi[h]);
                float p = seen ? exp2_approx(fmaf(x, by, -stat[h])) : 0;
                x = p * (g - dot[h]) * a.scale;
            }
}

template <class T, int DIM, bool DROPS>
static __global__ void __launch_bounds__((query_sizes<DIM>::GROUPS + 1) * GROUP_THREADS, 1)
    grad_queries_hopper(const __grid_constant__ att_maps maps, const __grid_constant__ att a,
                        const __grid_constant__ att_grad g) {
    typedef query_sizes<DIM> S;
    enum { GROUPS = S::GROUPS };
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[2 * S::SLOTS + 2];
    __shared__ seen_keys seen[GROUPS + 1], parts[2 * GROUPS];
    __shared__ uint32_t sixteens[S::SLOTS][LINES / SIXTEEN]; /* with dropout */
    char *own = aligned(memory), *tiles = own + GROUPS * 2 * S::OWN;
    uint64_t *have_dout = &bars[2 * S::SLOTS], *have_queries = have_dout + 1;
    stage_ring<S::SLOTS, S::TILE> ring = { tiles, bars, bars + S::SLOTS, 0, 0 };
    int head = blockIdx.y, kv_head = head / (a.q / a.kv);
    int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * S::ROWS_;
    if (threadIdx.x == 0) {
        ring.init(GROUPS);
        barrier_init(have_dout, 1);
        barrier_init(have_queries, 1);
        barriers_ready();
    }
    find_seen_keys(a, first, GROUPS, seen, parts);
    int begin = seen[GROUPS].begin, end = seen[GROUPS].end;
    int count = end > begin ? (end - begin + LINES - 1) / LINES : 0;

    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<GROUPS>(true);
        if (threadIdx.x >= (DROPS ? WARP : 1)) return;
        bool copies = threadIdx.x == 0;
        int k = a.key_col + kv_head * DIM, v = k + a.kv * DIM;
        for (int i = 0; i < 2 * count; i++, ring.next()) {
            int row = begin + i / 2 * LINES;
            uint64_t *full = &ring.full[ring.at];
            ring.wait_empty();
            if (DROPS && i % 2) {
                write_sixteens<LINES>(a, row, sixteens[ring.at]);
                __syncwarp();
            }
            if (!copies) continue;
            if (i < 2) { /* what multiplies the first values, then the first keys */
                barrier_expect(have_dout + i, GROUPS * S::OWN);
                for (int j = 0; j < GROUPS; j++)
                    copy_tile<DIM, 64>(own + (2 * j + 1 - i) * S::OWN, i ? &maps.q : &maps.dout,
                                       head * DIM, (int)first + 64 * j, have_dout + i);
            }
            barrier_expect(full, S::TILE);
            copy_tile<DIM, LINES>(ring.stage(), &maps.kv, i % 2 ? k : v, row, full);
        }
        return;
    }

    keep_registers<GROUPS>(false);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    int lane = threadIdx.x % WARP;
    const char *queries = own + group * 2 * S::OWN, *dout = queries + S::OWN;
    query_group own_rows = query_group_of<LINES>(a, first, group, GROUPS, seen);
    const two_rows &t = own_rows.rows;
    int from = own_rows.from, to = own_rows.to;
    float dot[2], stat[2], sum[DIM / 2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        dot[h] = t.live[h] ? g.rowdot[head * a.n + t.i[h]] : 0;
        stat[h] = t.live[h] ? g.lse[lse_at(a, head, t.i[h])] * LOG2E : 0;
    }
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) sum[i] = 0;
    for (int at = 0; at < 2 * from; at++) ring.skip();
    stage_ring<S::SLOTS, S::TILE> values = ring, keys = ring; /* of a tile */
    uint32_t p[LINES / 4], kept[2];
    uint64_t query[2];
    uint2 key;
    if (DROPS) query_ids(a, t, query), key = drop_key(a);
    for (int at = from; at < to; at++) {
        float s[LINES / 2], dp[LINES / 2];
        int tile = begin + at * LINES;
        values = ring;
        barrier_wait(have_dout, 0);
        ring.wait_full();
        begin_scores<T, DIM, LINES>(dp, dout, ring.stage());
        ring.next();
        multiply_wait<1>();
        if (at > from) keys.release();
        keys = ring;
        barrier_wait(have_queries, 0);
        ring.wait_full();
        if (DROPS) draw_rows<LINES>(a, key, head, t, query, tile, sixteens[ring.at], kept);
        begin_scores<T, DIM, LINES>(s, queries, ring.stage());
        ring.next();
        multiply_wait<0>();
        values.release();
        grad_scores<DROPS>(a, t, tile, all_seen<LINES>(own_rows, tile), kept, s, dp, stat, dot);
        pack_scores<T, LINES>(p, s);
        begin_sums<T, DIM, LINES>(sum, p, keys.stage());
    }
    multiply_wait<0>();
    if (from < to) keys.release();
    for (int at = 2 * to; at < 2 * count; at++) ring.skip();
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            if (t.live[h])
                write_two(g.dq, t.i[h] * a.stride + head * DIM + 8 * n + lane % 4 * 2,
                          sum[4 * n + 2 * h], sum[4 * n + 2 * h + 1], g.add);
}

/* ---- keys ---------------------------------------------------------------------------------------- */
template <class T, int DIM, bool DROPS>
static __global__ void __launch_bounds__((backward_sizes<DIM>::GROUPS + 1) * GROUP_THREADS, 1)
    grad_keys_hopper(const __grid_constant__ att_maps maps, const __grid_constant__ att a,
                     const __grid_constant__ att_grad g) {
    typedef backward_sizes<DIM> S;
    enum { GROUPS = S::GROUPS };
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[2 * S::STAGES_ + 1];
    __shared__ query_tile queries[S::STAGES_];
    stage_ring<S::STAGES_, 2 * S::TILE> ring;
    key_block<S> b = open_key_block<S>(a, memory, bars, &ring, (int)blockIdx.x, (int)blockIdx.y);
    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<GROUPS, S::FEW>(true);
        if (threadIdx.x < COPIERS * WARP) copy_key_block<S, DIM>(maps, a, g, b, ring, queries);
        return;
    }

    keep_registers<GROUPS, S::FEW>(false);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    const char *keys = b.own + group * 2 * S::OWN, *values = keys + S::OWN;
    int64_t first = b.first + 64 * group;
    float dk[DIM / 2], dv[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) dk[i] = dv[i] = 0;
    key_sixteen sixteen = {};
    uint2 key;
    if (DROPS) sixteen = sixteen_of_warp(a, first), key = drop_key(a);
    barrier_wait(b.full, 0);
    for (;; ring.next()) {
        ring.wait_full();
        const query_tile &q = queries[ring.at];
        int head = __shfl_sync(~0u, q.head, 0);
        if (head < 0) break;
        const char *qs = ring.stage(), *ds = qs + S::TILE;
        float p[LINES / 2], s[LINES / 2];
        uint32_t left[LINES / 4], right[LINES / 4], kept;
        begin_scores<T, DIM, LINES>(p, keys, qs);
        begin_scores<T, DIM, LINES>(s, values, ds);
        if (DROPS) kept = draw_columns(a, key, head, q, sixteen);
        multiply_wait<1>();
        soften_keys(a, q, (int)first, p);
        pack_kept<T, DROPS>(left, p, kept);
        begin_sums<T, DIM, LINES>(dv, left, ds);
        multiply_wait<1>();
        grad_keys_scores<DROPS>(a, q, kept, p, s);
        pack_scores<T, LINES>(right, s);
        begin_sums<T, DIM, LINES>(dk, right, qs);
        multiply_wait<0>();
        ring.release();
    }
    int col = a.key_col + b.kv_head * DIM;
    write_key_grads<DIM>(a, g.dkv, first, b.last, col, 1, dk);
    write_key_grads<DIM>(a, g.dkv, first, b.last, col + a.kv * DIM, value_factor(a), dv);
}

/* ---- launches ------------------------------------------------------------------------------------ */
template <class T, int DIM>
static void launch_keys(const op_call *c, const att_maps &maps, const att &a, const att_grad &g) {
    typedef backward_sizes<DIM> S;
    dim3 grid((unsigned)ceil_div(a.n_keys, S::ROWS_), (unsigned)a.kv);
    auto kernel = a.drop.id ? grad_keys_hopper<T, DIM, true> : grad_keys_hopper<T, DIM, false>;
    LAUNCH(cuda_of(c), { grid, (S::GROUPS + 1) * GROUP_THREADS, S::SHARED }, kernel, maps, a, g);
}

template <class T, int DIM>
static void launch_two_passes(const op_call *c, const att_maps &maps, const att &a,
                              const att_grad &g) {
    typedef query_sizes<DIM> S;
    dim3 grid((unsigned)ceil_div(a.n, S::ROWS_), (unsigned)a.q);
    auto dq = a.drop.id ? grad_queries_hopper<T, DIM, true> : grad_queries_hopper<T, DIM, false>;
    attention_row_dots(c, &a, &g);
    LAUNCH(cuda_of(c), { grid, (S::GROUPS + 1) * GROUP_THREADS, S::SHARED }, dq, maps, a, g);
    if constexpr (DIM > 128)
        attention_grad_of_wide_keys(c, &a, &g, &maps);
    else
        launch_keys<T, DIM>(c, maps, a, g);
}

extern "C" bool attention_grad_by_hopper(const op_call *c, const att *a, const att_grad *g) {
    att_maps maps = {};
    int64_t wide = (int64_t)a->q * a->dim;
    if (!takes_hopper(c, *a) || g->dout.dt != a->qkv_t || !in_sixteens(g->dout.p, wide, 0) ||
        a->n * a->q > INT32_MAX / DOT_SHARE ||
        !encode_rows(&maps.q, a->qkv, a->qkv_t, a->n, a->stride) ||
        !encode_rows(&maps.kv, a->keys, a->key_t, a->n_keys, a->key_stride) ||
        !encode_rows(&maps.dout, g->dout.p, g->dout.dt, a->n, wide))
        return false;
    if (!attention_grad_in_one_pass(c, a, g, &maps))
        WITH_WIDE_HEAD(a->dim, launch_two_passes<bf16, DIM>(c, maps, *a, *g));
    return true;
}
