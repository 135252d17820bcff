/* Attention on Hopper's tensor cores (wgmma): what attention_mma.cuh does, faster, for bf16, scores without a cap,
 * and heads of 64, 96, 128, 192 and 256. attention_hopper.cu has the forward kernel, attention_one_pass_hopper.cu
 * the backward of heads up to 128, attention_bwd_hopper.cu the two kernels of a deterministic one and of wider heads,
 * attention_wide_hopper.cu the second of these for wider heads.
 *
 * A block has a warp group that copies (TMA) and GROUPS that compute, each with 64 rows of the scores (but in
 * grad_wide_keys_hopper, where both have the same rows):
 *
 *     stays in shared memory        passes through it in tiles, a ring of stages
 *     64 queries (and do) each      keys and values             attend_hopper, grad_queries_hopper
 *     64 keys and values each       queries and do              grad_keys_hopper, grad_all_hopper
 *     64 keys and values            queries and do              grad_wide_keys_hopper
 *
 * Tiles are lines of 128 bytes, swizzled, a box of 64 columns after another. Scores stay in registers, in the layout of a
 * left operand of the next product, as with mma. Computing warp groups take turns by themselves: while one has its scores
 * exponentiated the other multiplies.
 *
 * A stage belongs to the copying warp from `empty` to `full`, to the computing groups from `full` to `empty`:
 *
 *     copying       wait empty | expect bytes, copy ........ |
 *     computing                                    wait full | multiply | arrive at empty, once per warp
 *
 * Deterministic but for grad_all_hopper: no atomics, every sum has an order that the shapes and documents fix. */
#ifndef INGOT_OPS_CUDA_ATTENTION_HOPPER_CUH
#define INGOT_OPS_CUDA_ATTENTION_HOPPER_CUH

#include "attention_mma.cuh"
#ifdef __CUDACC__
#include "hopper.cuh"
#else
#include <hopper_emulated.h>
#endif

typedef struct att_maps {
    CUtensorMap q, kv, dout;
    CUtensorMap dq; /* in fp32, where atomic sums make it */
} att_maps;

/* attention_one_pass_hopper.cu: @return false where it does not fit the call, and nothing was done. */
extern "C" bool attention_grad_in_one_pass(const op_call *c, const att *a, const att_grad *g,
                                           const att_maps *maps);
/* attention_wide_hopper.cu: dk and dv of heads of 192 and 256; rowdot has been computed. */
extern "C" void attention_grad_of_wide_keys(const op_call *c, const att *a, const att_grad *g,
                                            const att_maps *maps);

/* ---- shared memory ------------------------------------------------------------------------------- */
static __device__ __forceinline__ char *aligned(char *p) {
    return p + (ALIGN - shared_address(p) % ALIGN) % ALIGN;
}
/* Stages of BYTES each. */
template <int STAGES_, int BYTES> struct stage_ring {
    char *stages;
    uint64_t *full, *empty; /* [STAGES_] each */
    int at, phase;
    __device__ __forceinline__ char *stage() const { return stages + at * BYTES; }
    __device__ __forceinline__ void next() {
        if (++at == STAGES_) at = 0, phase ^= 1;
    }
    __device__ __forceinline__ void wait_full() const { barrier_wait(&full[at], phase); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(&empty[at], phase ^ 1); }
    /* By every warp of a computing group. */
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if (threadIdx.x % WARP == 0) barrier_arrive(&empty[at]);
    }
    __device__ __forceinline__ void skip() {
        wait_full();
        release();
        next();
    }
    __device__ __forceinline__ void init(int groups, int copiers = 1) const { /* by one thread */
        for (int i = 0; i < STAGES_; i++) {
            barrier_init(&full[i], copiers);
            barrier_init(&empty[i], 4 * groups);
        }
    }
};

/* Copies LINES rows of a head, from row `row` and column `col` on, as boxes of 64 columns and LINES lines. The caller
 * has the barrier expect tile_bytes. */
template <int DIM, int LINES> static constexpr int tile_bytes() {
    return (DIM + 63) / 64 * LINES * LINE_BYTES;
}
template <int DIM, int LINES>
static __device__ __forceinline__ void copy_tile(char *to, const CUtensorMap *map, int col, int row,
                                                 uint64_t *full) {
    for (int box = 0; box < (DIM + 63) / 64; box++)
        for (int line = 0; line < LINES; line += 64)
            copy_box_async(to + (box * LINES + line) * LINE_BYTES, map, col + 64 * box, row + line,
                           0, full);
}

/* ---- products ------------------------------------------------------------------------------------ */
/* Begins s = 64 rows of `left` times the LINES rows of `right`, transposed. s[4 n + 2 h + i]: row 16 warp + lane / 4 +
 * 8 h, column 8 n + lane % 4 * 2 + i. */
template <class T, int DIM, int LINES>
static __device__ __forceinline__ void begin_scores(float (&s)[LINES / 2], const char *left,
                                                    const char *right) {
    multiply_begin();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint64_t a = smem_descriptor(left + k / 4 * BOX_BYTES, BOX_BYTES) + k % 4 * 2;
        uint64_t b = smem_descriptor(right + k / 4 * LINES * LINE_BYTES, BOX_BYTES) + k % 4 * 2;
        shared_product<T, LINES>::template multiply<0, 0>(s, a, b, k > 0);
    }
    multiply_commit();
}

/* s as the left operand of the next product. */
template <class T, int LINES>
static __device__ __forceinline__ void pack_scores(uint32_t (&p)[LINES / 4],
                                                   const float (&s)[LINES / 2]) {
#pragma unroll
    for (int i = 0; i < LINES / 4; i++) {
        int at = (i / 4 * 2 + i % 4 / 2) * 4 + i % 2 * 2;
        p[i] = pack_two(T(), s[at], s[at + 1]);
    }
}

/* Begins out += p times the LINES rows of `right`. */
template <class T, int DIM, int LINES>
static __device__ __forceinline__ void begin_sums(float (&out)[DIM / 2],
                                                  const uint32_t (&p)[LINES / 4],
                                                  const char *right) {
    multiply_begin();
#pragma unroll
    for (int k = 0; k < LINES / 16; k++)
        sum_product<T, DIM>::add(out, &p[4 * k],
                                 smem_descriptor(right + k * 16 * LINE_BYTES, LINES * LINE_BYTES));
    multiply_commit();
}

/* ---- queries: which keys they see ---------------------------------------------------------------- */
/* Of the queries of a computing group: the keys that any sees are [begin, end), all see those of [from, to]. */
typedef struct seen_keys {
    int begin, end, from, to;
} seen_keys;

/* Of every group, and of all of them in seen[groups]; `begin` of that is rounded down, so that dropout's sixteens stay
 * together. Ends with the block at a barrier. */
static __device__ __forceinline__ void find_seen_keys(const att &a, int64_t first, int groups,
                                                      seen_keys *seen, seen_keys *parts) {
    int r = threadIdx.x;
    if (r < 64 * groups) {
        bool live = first + r < a.n;
        int lo = live ? (int)first_key(a, first + r) : INT32_MAX;
        int hi = live ? (int)last_key(a, first + r) : -1;
        seen_keys s = { lo, hi + 1, live ? lo : 0, live ? hi : INT32_MAX };
        for (int o = WARP / 2; o; o >>= 1) {
            s.begin = min(s.begin, __shfl_xor_sync(~0u, s.begin, o));
            s.end = max(s.end, __shfl_xor_sync(~0u, s.end, o));
            s.from = max(s.from, __shfl_xor_sync(~0u, s.from, o));
            s.to = min(s.to, __shfl_xor_sync(~0u, s.to, o));
        }
        if (r % WARP == 0) parts[r / WARP] = s;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        seen_keys all = { INT32_MAX, 0, 0, 0 };
        for (int g = 0; g < groups; g++) {
            seen_keys x = parts[2 * g], y = parts[2 * g + 1];
            seen[g] = { min(x.begin, y.begin), max(x.end, y.end), max(x.from, y.from),
                        min(x.to, y.to) };
            all.begin = min(all.begin, seen[g].begin), all.end = max(all.end, seen[g].end);
        }
        all.begin = all.begin / SIXTEEN * SIXTEEN;
        seen[groups] = all;
    }
    __syncthreads();
}

/* A computing group: its 64 queries as this lane has them, and which of the block's tiles of keys it reads. */
typedef struct query_group {
    int64_t first;
    seen_keys seen;
    two_rows rows;
    int from, to; /* tiles [from, to) */
} query_group;

/* @param seen of each group, and then of the block */
template <int LINES>
static __device__ __forceinline__ query_group query_group_of(const att &a, int64_t first, int group,
                                                             int groups, const seen_keys *seen) {
    query_group q = { first + 64 * group, seen[group], {}, 0, 0 };
    int begin = seen[groups].begin, left = (int)max((int64_t)0, min((int64_t)64, a.n - q.first));
    q.rows = rows_of_lane(a, q.first, left, threadIdx.x % GROUP_THREADS);
    if (q.seen.end > q.seen.begin && q.seen.end > begin) {
        q.from = max(0, q.seen.begin - begin) / LINES;
        q.to = (q.seen.end - begin + LINES - 1) / LINES;
    }
    return q;
}
/* Whether all of its queries see all keys of a tile. */
template <int LINES>
static __device__ __forceinline__ bool all_seen(const query_group &q, int tile) {
    return tile >= q.seen.from && tile + LINES - 1 <= q.seen.to;
}

/* ---- dropout ------------------------------------------------------------------------------------- */
/* The key of the step's draws. The shuffle lets the compiler know that it is the same in all lanes. */
static __device__ __forceinline__ uint2 drop_key(const att &a) {
    return make_uint2(__shfl_sync(~0u, a.step->dropout.k[0], 0),
                      __shfl_sync(~0u, a.step->dropout.k[1], 0));
}

/* Sixteen keys from j on. Where their ids share a counter, one Philox block decides about all of them. */
typedef struct key_sixteen {
    int j;
    uint32_t
        id; /* low half of the first's, which has all that a counter takes of it; or SCATTERED */
} key_sixteen;
enum { SCATTERED = 1 };

static __device__ __forceinline__ key_sixteen sixteen_keys(const att &a, int j) {
    key_sixteen e = { j, SCATTERED };
    if (j + SIXTEEN > a.n_keys) return e;
    int64_t id = a.key_id[j];
    bool together = id % SIXTEEN == 0;
#pragma unroll
    for (int k = 1; k < SIXTEEN; k++) together = together && a.key_id[j + k] == id + k;
    if (together) e.id = (uint32_t)id;
    return e;
}
/* Which of them a query keeps. */
static __device__ __forceinline__ uint32_t kept_of(const att &a, uint2 key, int head,
                                                   uint64_t query, const key_sixteen &e) {
    return e.id == SCATTERED ? kept_keys(a, head, query, e.j)
                             : draw_sixteen(a, key, head, query, e.id);
}

/* The ids of a tile's sixteens, in shared memory. By the lanes of a warp. */
template <int LINES>
static __device__ __forceinline__ void write_sixteens(const att &a, int tile, uint32_t *ids) {
    int at = threadIdx.x % WARP;
    if (at < LINES / SIXTEEN) ids[at] = sixteen_keys(a, tile + SIXTEEN * at).id;
}

/* Draws which of LINES keys a lane's two queries keep: row_keeps says which bit is about which score. The four lanes of a row
 * draw a quarter each. Without branches where no sixteen is scattered, so that the draws run side by side. */
template <int LINES>
static __device__ __forceinline__ void draw_rows(const att &a, uint2 key, int head,
                                                 const two_rows &t, const uint64_t (&query)[2],
                                                 int tile, const uint32_t *ids,
                                                 uint32_t (&kept)[2]) {
    int lane = threadIdx.x % WARP;
    uint32_t own[2] = { 0, 0 };
    bool together = true;
#pragma unroll
    for (int b = 0; b < LINES / 64; b++) together = together && ids[4 * b + lane % 4] != SCATTERED;
    if (__all_sync(~0u, together)) {
#pragma unroll
        for (int b = 0; b < LINES / 64; b++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                own[h] |= draw_sixteen(a, key, head, query[h], ids[4 * b + lane % 4]) << 4 * b;
    } else {
#pragma unroll 1
        for (int b = 0; b < LINES / 64; b++) {
            key_sixteen e = { tile + SIXTEEN * (4 * b + lane % 4), ids[4 * b + lane % 4] };
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (t.live[h] && e.j <= t.hi[h] && e.j + SIXTEEN > t.lo[h])
                    own[h] |= kept_of(a, key, head, query[h], e) << 4 * b;
        }
    }
    /* The lane's keys of a sixteen are 2 c and the next, for c = lane % 4, and those 8 later: bits 0, 2, 8 and 10 after the
     * shift, and of the next sixteen that was drawn with it 4 later. */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        kept[h] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            kept[h] |=
                (__shfl_sync(~0u, own[h], lane / 4 * 4 + k) >> kept_bit(lane % 4 * 2) & 0x5555)
                << (k % 2 + k / 2 * 16);
    }
}
/* Of the lane's score s[4 n + 2 h + i], with kept[h]. */
static __device__ __forceinline__ bool row_keeps(uint32_t kept, int n, int i) {
    return kept >> (n / 8 * 4 + n / 4 % 2 * 16 + n / 2 % 2 + n % 2 * 2 + i * 8) & 1;
}

/* The ids of a lane's two queries. */
static __device__ __forceinline__ void query_ids(const att &a, const two_rows &t,
                                                 uint64_t (&query)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) query[h] = t.live[h] ? (uint64_t)a.drop.id[t.i[h]] : 0;
}

/* ---- launches ------------------------------------------------------------------------------------ */
/* Gives registers of the copying warp group, all but FEW, to two or three computing ones; with one there are enough for all. */
template <int GROUPS, int FEW = GROUPS == 2 ? 24 : 32>
static __device__ __forceinline__ void keep_registers(bool copies) {
    if (GROUPS == 1) return;
    if (copies)
        registers_keep<FEW>();
    else
        registers_take<((GROUPS + 1) * (GROUPS == 2 ? 168 : 128) - FEW) / GROUPS>();
}

static inline bool takes_hopper(const op_call *c, const att &a) {
    return cuda_attention_on_hopper(cuda_of(c)->device, (dtype)a.qkv_t, a.dim) &&
           a.key_t == a.qkv_t && !a.pos && !a.from && !(a.cap > 0) &&
           in_sixteens(a.qkv, a.stride, 0) && in_sixteens(a.keys, a.key_stride, a.key_col) &&
           a.n < INT32_MAX && a.n_keys < INT32_MAX;
}

static inline bool encode_rows(CUtensorMap *map, const void *p, int dt, int64_t rows,
                               int64_t stride) {
    int64_t dim[] = { rows, stride };
    tensor t = tensor_of((void *)p, (dtype)dt, 2, dim);
    return encode_map(map, &t, 1, 64);
}

#define WITH_WIDE_HEAD(dim, ...)                                                                   \
    do switch (dim) {                                                                              \
            AS_HEAD(64, __VA_ARGS__);                                                              \
            AS_HEAD(96, __VA_ARGS__);                                                              \
            AS_HEAD(128, __VA_ARGS__);                                                             \
            AS_HEAD(192, __VA_ARGS__);                                                             \
            AS_HEAD(256, __VA_ARGS__);                                                             \
        default: BUG("a head of another size");                                                    \
        }                                                                                          \
    while (0)

#endif
