/* Attention on Hopper's tensor cores, backward in one pass over blocks of 128 keys: attention_hopper.cuh.
 *
 *     begin_query_sums_at     rowdot, and zeros where dq is summed
 *     grad_all_hopper         grid: blocks of keys x key heads; dk and dv, and what it adds to dq
 *     write_sums              dq, where the result is not in fp32
 *
 * One pass computes five products where two compute seven, but blocks add to dq in any order, so that results differ
 * between runs in rounding: debug.deterministic has two, as have heads wider than 128, whose dk and dv do not fit in
 * registers together. For a tile of queries each computing group has
 *
 *     p = keys queries^T, dp = values do^T     for its 64 keys, in registers
 *     dv += p do, ds = p (dp - rowdot), dk += ds queries
 *     ds to a ring in shared memory
 *     dq = ds^T keys of the tile before        over the 128 keys of both groups
 *     dq to shared memory, from where TMA adds it to the sums in memory
 *
 * dq is a tile late so that neither group waits for the other's ds: while one exponentiates, the other multiplies. Each
 * has half of its columns. Heads of 64 leave registers for p and dp of the next tile, which are begun with dq, and for all
 * columns of dq, so that the groups take turns: half as many columns would read ds from shared memory twice. */
#include "attention_bwd_hopper.cuh"

template <int DIM> struct one_pass_sizes : backward_sizes<DIM> {
    typedef backward_sizes<DIM> two;
    enum {
        AHEAD = DIM == 64, /* registers allow p and dp of the next tile beside dq */
        TURNS = DIM == 64, /* ... and all columns of dq */
        STAGES_ = AHEAD ? 3 : 2,
        COLUMNS =
            DIM == 64 && !TURNS ? 32 : 64, /* of dq that a group computes; heads of 96 leave some */
        SCORES = two::GROUPS * BOX_BYTES,  /* ds of a tile */
        SCORE_STAGES = 3,
        SUM_BOX = LINE_BYTES / 4 /* columns */
    };
    enum {
        SUMS_ = COLUMNS / SUM_BOX * BOX_BYTES, /* dq of a group */
        SHARED = ALIGN + two::GROUPS * 2 * two::OWN + STAGES_ * 2 * two::TILE +
                 SCORE_STAGES * SCORES + two::GROUPS * SUMS_
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
    int box = S::TURNS || S::COLUMNS == 32 ? 0 : group,
        within = S::COLUMNS == 32 ? group * S::COLUMNS * 2 / 16 : 0;
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

/* Adds a group's dq of a tile to the sums in memory, through boxes of 32 columns in shared memory. */
template <int DIM>
static __device__ __forceinline__ void add_query_sums(
    const CUtensorMap *map, char *boxes, const float (&dq)[one_pass_sizes<DIM>::COLUMNS / 2],
    int group, int head, int row) {
    typedef one_pass_sizes<DIM> S;
    int thread = threadIdx.x % GROUP_THREADS, lane = thread % WARP,
        column = S::TURNS ? 0 : group * S::COLUMNS;
    if (thread == 0) stores_wait_read<0>();
    barrier_sync(1 + group, GROUP_THREADS); /* the boxes are free */
#pragma unroll
    for (int n = 0; n < S::COLUMNS / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            char *line = swizzled(boxes + n / 4 * BOX_BYTES, thread / WARP * 16 + lane / 4 + 8 * h,
                                  n % 4 * 2 + lane % 4 / 2);
            *(float2 *)(line + lane % 2 * 8) =
                make_float2(dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]);
        }
    fence_async();
    barrier_sync(1 + group, GROUP_THREADS);
    if (thread) return;
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
    enum { GROUPS = S::GROUPS, WARPS_OF_GROUP = GROUP_THREADS / WARP };
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[2 * S::STAGES_ + 1], score_bars[2 * S::SCORE_STAGES];
    __shared__ query_tile queries[S::STAGES_];
    stage_ring<S::STAGES_, 2 * S::TILE> ring;
    int blocks = (int)((a.n_keys + S::ROWS_ - 1) / S::ROWS_),
        turn = (int)blockIdx.x / (together * blocks);
    int at = (int)blockIdx.x % (together * blocks), wide = min(together, a.kv - turn * together);
    if (threadIdx.x == 0)
        for (int i = 0; i < S::SCORE_STAGES; i++) {
            barrier_init(&score_bars[i], GROUPS * WARPS_OF_GROUP);
            barrier_init(&score_bars[S::SCORE_STAGES + i],
                         (S::TURNS ? 1 : GROUPS) * WARPS_OF_GROUP);
        }
    key_block<S> b =
        open_key_block<S>(a, memory, bars, &ring, at / wide, turn * together + at % wide);
    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<GROUPS>(true);
        if (threadIdx.x < WARP) copy_key_block<S, DIM>(maps, a, g, b, ring, queries);
        return;
    }

    keep_registers<GROUPS>(false);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    const char *keys = b.own + group * 2 * S::OWN, *values = keys + S::OWN;
    char *sums = b.tiles + S::STAGES_ * 2 * S::TILE + group * S::SUMS_;
    stage_ring<S::SCORE_STAGES, S::SCORES> scores = { b.tiles + S::STAGES_ * 2 * S::TILE +
                                                          GROUPS * S::SUMS_,
                                                      score_bars, score_bars + S::SCORE_STAGES, 0,
                                                      0 },
                                           before = scores; /* the tile whose dq is next */
    int64_t first = b.first + 64 * group;
    float dk[DIM / 2], dv[DIM / 2];
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) dk[i] = dv[i] = 0;
    key_sixteen sixteen = {};
    uint2 key;
    if (DROPS) sixteen = sixteen_of_warp(a, first), key = drop_key(a);
    barrier_wait(b.full, 0);
    float p[LINES / 2], s[LINES / 2];
    uint32_t left[LINES / 4], right[LINES / 4], kept = 0;
    int head = 0, head_before = 0, row_before = (int)a.n, turn_of_dq = 0;
    auto enter_tile = [&]() {
        ring.wait_full();
        head = __shfl_sync(~0u, queries[ring.at].head, 0);
    };
    auto begin_tile = [&]() {
        begin_scores<T, DIM, LINES>(p, keys, ring.stage());
        begin_scores<T, DIM, LINES>(s, values, ring.stage() + S::TILE);
        if (DROPS) kept = draw_columns(a, key, head, queries[ring.at], sixteen);
    };
    scores.arrive(); /* the tile before the first, whose dq is past the end of the sums */
    scores.next();
    enter_tile();
    if (S::AHEAD) {
        begin_tile();
        multiply_wait<0>();
    }
    while (head >= 0) {
        const query_tile &q = queries[ring.at];
        const char *qs = ring.stage(), *ds = qs + S::TILE;
        float dq[S::COLUMNS / 2];
        if (!S::AHEAD) {
            begin_tile();
            multiply_wait<1>();
        }
        soften_keys(a, q, (int)first, p);
        pack_kept<T, DROPS>(left, p, kept);
        begin_sums<T, DIM, LINES>(dv, left, ds);
        if (!S::AHEAD) multiply_wait<1>();
        grad_keys_scores<DROPS>(a, q, kept, p, s);
        pack_scores<T, LINES>(right, s);
        begin_sums<T, DIM, LINES>(dk, right, qs);
        scores.wait_empty();
        put_scores(scores.stage() + group * BOX_BYTES, right);
        fence_async();
        scores.arrive();
        bool mine = !S::TURNS || turn_of_dq == group; /* dq of the tile before */
        if (mine) {
            before.wait_full();
            begin_query_sums<T, DIM>(dq, before.stage(), b.own, group);
        }
        int head_now = head, row = __shfl_sync(~0u, q.row, 0);
        auto now = ring;
        ring.next();
        if (S::AHEAD) {
            enter_tile();
            begin_tile(); /* at the end of old queries */
        }
        multiply_wait<S::AHEAD ? 2 : 0>();
        now.release();
        if (mine) {
            before.release();
            add_query_sums<DIM>(&maps.dq, sums, dq, group, head_before, row_before);
        }
        turn_of_dq ^= 1;
        head_before = head_now, row_before = row, before = scores;
        scores.next();
        if (!S::AHEAD) enter_tile();
        multiply_wait<0>();
    }
    if (!S::TURNS || turn_of_dq == group) {
        float dq[S::COLUMNS / 2];
        before.wait_full();
        begin_query_sums<T, DIM>(dq, before.stage(), b.own, group);
        multiply_wait<0>();
        add_query_sums<DIM>(&maps.dq, sums, dq, group, head_before, row_before);
    }
    if (threadIdx.x % GROUP_THREADS == 0) stores_wait();
    int col = a.key_col + b.kv_head * DIM;
    write_key_grads<DIM>(a, g.dkv, first, b.last, col, 1, dk);
    write_key_grads<DIM>(a, g.dkv, first, b.last, col + a.kv * DIM, value_factor(a), dv);
}

/* ---- before and after one pass ------------------------------------------------------------------- */
enum { DOT_THREADS = 256, DOT_SHARE = 4 }; /* threads that share a head of a token */

/* rowdot, and zeros where dq is summed: reads do and o once. A thread: an eighth element of every 32 of its head. */
static __global__ void begin_query_sums_at(att a, att_grad g) {
    int64_t i = ((int64_t)blockIdx.x * DOT_THREADS + threadIdx.x) / DOT_SHARE;
    bool live = i < a.n * a.q, zero = (void *)g.sums != g.dq.p || !g.add;
    float s = 0;
    for (int c = threadIdx.x % DOT_SHARE * EIGHT; live && c < a.dim; c += DOT_SHARE * EIGHT) {
        float x[EIGHT], y[EIGHT], none[EIGHT] = { 0 };
        int64_t at = i * a.dim + c;
        g.dout.load(at, at + EIGHT, x);
        g.o.load(at, at + EIGHT, y);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) s += x[k] * y[k];
        if (zero) write8(g.sums + at, none);
    }
    s = quad_sum(s);
    if (live && threadIdx.x % DOT_SHARE == 0) g.rowdot[i % a.q * a.n + i / a.q] = s;
}

/* Rounds the sums of dq: a thread for eight, 32 bytes read and 16 written. */
static __global__ void write_sums(att a, att_grad g) {
    int64_t at = ((int64_t)blockIdx.x * DOT_THREADS + threadIdx.x) * EIGHT, wide = a.q * a.dim;
    if (at >= a.n * wide) return;
    float x[EIGHT], y[EIGHT];
    int64_t to = at / wide * a.stride + at % wide;
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
    unsigned blocks = (unsigned)ceil_div(a.n * a.q, DOT_THREADS / DOT_SHARE);
    int64_t keys = ceil_div(a.n_keys, S::ROWS_);
    /* Blocks of early keys have most queries and begin first, of as many heads as occupy the GPU twice; not of more, since
     * those that run at the same time share queries and sums in L2. */
    int together = (int)min((int64_t)a.kv, ceil_div(2 * cuda_of(c)->device->sms, keys));
    dim3 grid((unsigned)(keys * a.kv));
    auto kernel = a.drop.id ? grad_all_hopper<T, DIM, true> : grad_all_hopper<T, DIM, false>;
    LAUNCH(cuda_of(c), { blocks, DOT_THREADS }, begin_query_sums_at, a, g);
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
    if (cuda_of(c)->device->deterministic || !own.sums ||
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
