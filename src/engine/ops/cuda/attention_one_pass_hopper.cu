/* Attention on Hopper's tensor cores, backward in one pass over blocks of 128 keys: attention_hopper.cuh.
 *
 *     sum_row_dots            rowdot, and zeros where dq is summed: attention_bwd_hopper.cu
 *     grad_all_hopper         grid: blocks of keys x key heads; dk and dv, and what it adds to dq
 *     write_sums              dq, where the result is not in fp32
 *
 * One pass computes five products where two compute seven, but blocks add to dq in any order, so that results differ
 * between runs in rounding: debug.deterministic has two, as have heads wider than 128, whose dk and dv do not fit in
 * registers together. A tile of queries is
 *
 *     p = keys queries^T, dp = values do^T     each computing group for its 64 keys, in registers
 *     dv += p do, ds = p (dp - rowdot)
 *     ds to shared memory, and a barrier of both groups
 *     dk += ds queries, dq = ds^T keys         dq over the 128 keys of both groups, half of the columns each
 *     dq to shared memory, from where TMA adds it to the sums in memory while the next tile is multiplied
 *
 * ds has two buffers, so that one barrier per tile is enough: a group writes to a buffer again only after the next
 * tile's barrier, at which both have arrived with their dq of this tile complete. */
#include "attention_bwd_hopper.cuh"

template <int DIM> struct one_pass_sizes : backward_sizes<DIM> {
    typedef backward_sizes<DIM> two;
    enum {
        STAGES_ = 2,
        COLUMNS = DIM == 64 ? 32 : 64,    /* of dq that a group computes; heads of 96 leave some */
        SCORES = two::GROUPS * BOX_BYTES, /* ds of a tile */
        SUM_BOX = LINE_BYTES / 4          /* columns */
    };
    enum {
        SUMS_ = COLUMNS / SUM_BOX * BOX_BYTES, /* dq of a group */
        SHARED = ALIGN + two::GROUPS * 2 * two::OWN + STAGES_ * 2 * two::TILE + 2 * SCORES +
                 two::GROUPS * SUMS_
    };
};
/* ---- queries in the same pass ---------------------------------------------------------------------- */
/* Writes ds of a group's 64 keys as lines of 64 queries. */
static __device__ __forceinline__ void put_scores(char *box, const uint32_t (&ds)[LINES / 4]) {
    int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < LINES / 8; j += 2) {
        uint32_t v[4] = { ds[2 * j], ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3] };
        store_matrices(swizzled(box, warp * 16 + lane % 16, lane / 16 + j), v);
    }
}

/* Begins dq = ds^T keys, over the keys of both groups, for this group's columns. `own`: keys and values of each group. */
template <class T, int DIM>
static __device__ __forceinline__ void begin_query_sums(
    float (&dq)[one_pass_sizes<DIM>::COLUMNS / 2], const char *ds, const char *own, int group) {
    typedef one_pass_sizes<DIM> S;
    int box = DIM == 64 ? 0 : group, within = DIM == 64 ? group * S::COLUMNS * 2 / 16 : 0;
    multiply_begin();
#pragma unroll
    for (int k = 0; k < S::ROWS_ / 16; k++) {
        const char *keys = own + k / 4 * 2 * S::OWN + box * BOX_BYTES + k % 4 * 16 * LINE_BYTES;
        shared_product<T, S::COLUMNS>::template multiply<1, 1>(
            dq, smem_descriptor(ds + k * 16 * LINE_BYTES, BOX_BYTES),
            smem_descriptor(keys, BOX_BYTES) + within, k > 0);
    }
    multiply_commit();
}

/* Writes a group's dq of a tile to shared memory, as boxes of 32 columns ... */
template <int DIM>
static __device__ __forceinline__ void put_query_sums(
    char *boxes, const float (&dq)[one_pass_sizes<DIM>::COLUMNS / 2]) {
    int thread = threadIdx.x % GROUP_THREADS, lane = thread % WARP;
#pragma unroll
    for (int n = 0; n < one_pass_sizes<DIM>::COLUMNS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            char *line = swizzled(boxes + n / 4 * BOX_BYTES, thread / WARP * 16 + lane / 4 + 8 * h,
                                  n % 4 * 2 + lane % 4 / 2);
            *(float2 *)(line + lane % 2 * 8) =
                make_float2(dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]);
        }
    fence_async();
}
/* ... and adds it to the sums in memory, once all of the group's threads are here. */
template <int DIM>
static __device__ __forceinline__ void add_query_sums(const CUtensorMap *map, const char *boxes,
                                                      int group, int head, int row) {
    typedef one_pass_sizes<DIM> S;
    int column = group * S::COLUMNS;
    barrier_sync(1 + group, GROUP_THREADS);
    if (threadIdx.x % GROUP_THREADS) return;
    for (int c = 0; c < S::COLUMNS && column + c < DIM; c += S::SUM_BOX)
        add_box_async(map, boxes + c / S::SUM_BOX * BOX_BYTES, head * DIM + column + c, row, 0);
    stores_commit();
}

/* ---- the kernel ---------------------------------------------------------------------------------- */
template <class T, int DIM, bool DROPS>
static __global__ void __launch_bounds__((one_pass_sizes<DIM>::GROUPS + 1) * GROUP_THREADS, 1)
    grad_all_hopper(const __grid_constant__ att_maps maps, const __grid_constant__ att a,
                    const __grid_constant__ att_grad g, int together) {
    typedef one_pass_sizes<DIM> S;
    enum { GROUPS = S::GROUPS };
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[2 * S::STAGES_ + 1];
    __shared__ query_tile queries[S::STAGES_];
    stage_ring<S::STAGES_, 2 * S::TILE> ring;
    int blocks = (int)((a.n_keys + S::ROWS_ - 1) / S::ROWS_),
        turn = (int)blockIdx.x / (together * blocks);
    int at = (int)blockIdx.x % (together * blocks), wide = min(together, a.kv - turn * together);
    key_block<S> b =
        open_key_block<S>(a, memory, bars, &ring, at / wide, turn * together + at % wide);
    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<GROUPS, S::FEW>(true);
        if (threadIdx.x < COPIERS * WARP) copy_key_block<S, DIM>(maps, a, g, b, ring, queries);
        return;
    }

    keep_registers<GROUPS, S::FEW>(false);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0), parity = 0;
    const char *keys = b.own + group * 2 * S::OWN, *values = keys + S::OWN;
    char *scores = b.tiles + S::STAGES_ * 2 * S::TILE,
         *sums = scores + 2 * S::SCORES + group * S::SUMS_;
    int64_t first = b.first + 64 * group;
    float dk[DIM / 2], dv[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) dk[i] = dv[i] = 0;
    key_sixteen sixteen = {};
    uint2 key;
    if (DROPS) sixteen = sixteen_of_warp(a, first), key = drop_key(a);
    barrier_wait(b.full, 0);
    int head_before = 0, row_before = (int)a.n; /* the tile whose dq is added next: past the end */
    for (;; ring.next(), parity ^= 1) {
        ring.wait_full();
        const query_tile &q = queries[ring.at];
        int head = __shfl_sync(~0u, q.head, 0), row = __shfl_sync(~0u, q.row, 0);
        if (head < 0) break;
        const char *qs = ring.stage(), *ds = qs + S::TILE;
        char *of_tile = scores + parity * S::SCORES;
        float p[LINES / 2], s[LINES / 2], dq[S::COLUMNS / 2];
        uint32_t left[LINES / 4], right[LINES / 4], kept = 0;
        begin_scores<T, DIM, LINES>(p, keys, qs);
        begin_scores<T, DIM, LINES>(s, values, ds);
        add_query_sums<DIM>(&maps.dq, sums, group, head_before, row_before);
        if (DROPS) kept = draw_columns(a, key, head, q, sixteen);
        multiply_wait<1>();
        soften_keys(a, q, (int)first, p);
        pack_kept<T, DROPS>(left, p, kept);
        begin_sums<T, DIM, LINES>(dv, left, ds);
        multiply_wait<1>();
        grad_keys_scores<DROPS>(a, q, kept, p, s);
        pack_scores<T, LINES>(right, s);
        put_scores(of_tile + group * BOX_BYTES, right);
        fence_async();
        if (threadIdx.x % GROUP_THREADS == 0) stores_wait_read<0>(); /* `sums` is free */
        barrier_sync(1 + GROUPS, GROUPS * GROUP_THREADS);
        begin_sums<T, DIM, LINES>(dk, right, qs);
        begin_query_sums<T, DIM>(dq, of_tile, b.own, group);
        multiply_wait<0>();
        ring.release();
        put_query_sums<DIM>(sums, dq);
        head_before = head, row_before = row;
    }
    add_query_sums<DIM>(&maps.dq, sums, group, head_before, row_before);
    if (threadIdx.x % GROUP_THREADS == 0) stores_wait();
    int col = a.key_col + b.kv_head * DIM;
    write_key_grads<DIM>(a, g.dkv, first, b.last, col, 1, dk);
    write_key_grads<DIM>(a, g.dkv, first, b.last, col + a.kv * DIM, value_factor(a), dv);
}

/* ---- after one pass ------------------------------------------------------------------------------ */
/* Rounds the sums of dq: a thread for eight, 32 bytes read and 16 written. */
static __global__ void write_sums(att a, att_grad g) {
    uint32_t i = blockIdx.x * DOT_THREADS + threadIdx.x, each = a.q * a.dim / EIGHT,
             token = i / each;
    if (token >= a.n) return;
    float x[EIGHT], y[EIGHT];
    int64_t at = (int64_t)i * EIGHT, to = token * a.stride + (i - token * each) * EIGHT;
    read8(g.sums + at, x);
    if (g.add) {
        g.dq.load(to, to + EIGHT, y);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) x[k] += y[k];
    }
    g.dq.store(to, to + EIGHT, x);
}

/* ---- launches ------------------------------------------------------------------------------------ */
template <class T, int DIM>
static void launch_one_pass(const op_call *c, const att_maps &maps, const att &a,
                            const att_grad &g) {
    typedef one_pass_sizes<DIM> S;
    int64_t keys = ceil_div(a.n_keys, S::ROWS_);
    /* Blocks of early keys have most queries. Where several heads share keys there are few blocks, and these begin first, of
     * as many key heads as occupy the GPU twice. */
    int together =
        a.kv == a.q ? 1 : (int)min((int64_t)a.kv, ceil_div(2 * cuda_of(c)->device->sms, keys));
    dim3 grid((unsigned)(keys * a.kv));
    auto kernel = a.drop.id ? grad_all_hopper<T, DIM, true> : grad_all_hopper<T, DIM, false>;
    attention_row_dots(c, &a, &g);
    LAUNCH(cuda_of(c), { grid, (S::GROUPS + 1) * GROUP_THREADS, S::SHARED }, kernel, maps, a, g,
           together);
    if ((void *)g.sums == g.dq.p) return;
    int64_t eights = a.n * a.q * a.dim / EIGHT;
    LAUNCH(cuda_of(c), { (unsigned)ceil_div(eights, DOT_THREADS), DOT_THREADS }, write_sums, a, g);
}

extern "C" bool attention_grad_in_one_pass(const op_call *c, const att *a, const att_grad *g,
                                           const att_maps *given) {
    att_grad own = *g;
    att_maps maps = *given;
    int64_t wide = (int64_t)a->q * a->dim;
    if (g->dq.dt == DT_F32 && a->stride == wide) own.sums = (float *)g->dq.p;
    if (cuda_of(c)->device->deterministic || !own.sums || a->n * wide / DOT_SHARE > INT32_MAX ||
        !encode_rows(&maps.dq, own.sums, DT_F32, a->n, wide))
        return false;
    switch (a->dim) {
        AS_HEAD(64, launch_one_pass<bf16, DIM>(c, maps, *a, own));
        AS_HEAD(96, launch_one_pass<bf16, DIM>(c, maps, *a, own));
        AS_HEAD(128, launch_one_pass<bf16, DIM>(c, maps, *a, own));
    default: return false;
    }
    return true;
}
