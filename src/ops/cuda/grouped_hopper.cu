/* The experts' GEMMs on Hopper's tensor cores (compute capability 9.0), in bf16 and fp16:
 *
 *     GROUPED_LINEAR         y  = x w_e^T     A = x   K contiguous     B = w   K contiguous
 *     GROUPED_LINEAR_BWD_X   dx = dy w_e      A = dy  K contiguous     B = w   N contiguous
 *     GROUPED_LINEAR_BWD_W   dw = dy_e^T x_e  A = dy  M contiguous     B = x   N contiguous
 *
 * Two blocks, a cluster, take two neighboring tiles of 128 x 256 of the result and share the operand that
 * is common to both: each copies half of it to both. Clusters, one per two SMs, take every n-th pair, all
 * groups one after another; the sizes of groups are read on the device. A block's first warp group copies
 * operands (TMA) into a ring of stages, the other two multiply (wgmma), 64 rows of the tile each:
 *
 *     copier        wait empty[s] -> copy A, B of 64 deep -> full[s]
 *     multipliers   wait full[s] -> 4 x wgmma m64n256k16 -> empty[s] of both blocks; at the end write the tile
 *
 * While a tile is written the copier fills the ring for the next one. A tile's rows beyond its group are
 * computed from the next group's rows and not written; beyond the depth of a group (BWD_W, whose depth is
 * rows) the operands are zeroed in shared memory. Rows of no group are a group of depth 0. Deterministic:
 * the order of sums depends on nothing but the group's size.
 *
 * Operand bytes per tile: 2 depth (128 + 256), of which a shared operand is read from L2 once per pair; a
 * band of pairs shares its columns in L2. */
#include <cuda.h>

#include "device.cuh"
#include "ops/op_table.h"
#include "ops/route.h"

enum {
    TILE_M = 128,
    TILE_N = 256,
    DEPTH = 64, /* of a stage: 128 bytes, the width of a swizzled line */
    STAGES = 4,
    BAND_ROWS = 2048,
    PAIR = 2,            /* blocks of a cluster */
    GROUP_THREADS = 128, /* a warp group */
    THREADS = 3 * GROUP_THREADS,
    LINE_BYTES = DEPTH * 2,
    BOX_BYTES = 64 * LINE_BYTES, /* 64 lines */
    A_BYTES = TILE_M * LINE_BYTES,
    B_BYTES = TILE_N * LINE_BYTES,
    STAGE_BYTES = A_BYTES + B_BYTES,
    ALIGN = 1024, /* of swizzled shared memory */
    SUMS = 64 * TILE_N / GROUP_THREADS,
};

enum form { FORWARD, BACKWARD_X, BACKWARD_W };
enum pair_way { DOWN, ACROSS }; /* where the second tile of a pair lies: DOWN shares B, ACROSS A */

struct grouped_args {
    CUtensorMap a, b;
    void *out;
    int out_dt;
    bool add;
    int64_t ld; /* of out */
    const int32_t *offset;
    int experts, rows; /* rows: M, of all groups and none */
    int m, n, depth;   /* of a group; m (BACKWARD_W: depth) is the group's own */
};

/* ---- PTX ------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(phase)
                 : "memory");
}
/* Arrives at this barrier in block `of` of the cluster. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, int of) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(of)
                 : "memory");
}
static __device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* Copies a box of the tensor to shared memory; its bytes count towards the barrier. */
static __device__ __forceinline__ void copy_box_async(char *to, const CUtensorMap *map, int x,
                                                      int y, int z, uint64_t *full) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(full))
                 : "memory");
}

/* To the same place in both blocks of the cluster, towards the same barrier in each. */
static __device__ __forceinline__ void copy_box_to_both(char *to, const CUtensorMap *map, int x,
                                                        int y, int z, uint64_t *full) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(full)), "h"((uint16_t)3)
        : "memory");
}

/* Describes an operand in shared memory, swizzled by 128 bytes, to wgmma.
 * @param wide bytes from 64 elements of M or N to the next 64, where M or N is contiguous */
static __device__ __forceinline__ uint64_t smem_descriptor(const char *p, int wide) {
    uint64_t at = (shared_address(p) & 0x3ffff) >> 4;
    return at | (uint64_t)(wide >> 4) << 16 | (uint64_t)(ALIGN >> 4) << 32 | 1ull << 62;
}
static __device__ __forceinline__ void multiply_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void multiply_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int AFTER> static __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(AFTER) : "memory");
}

#define REGS8(a) a "0, " a "1, " a "2, " a "3, " a "4, " a "5, " a "6, " a "7, " a "8, " a "9, "
#define SUM_NAMES                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " REGS8("%1") REGS8("%2") REGS8("%3") REGS8("%4")     \
        REGS8("%5") REGS8("%6") REGS8("%7") REGS8("%8") REGS8("%9") REGS8("%10")                   \
            REGS8("%11") "%120, %121, %122, %123, %124, %125, %126, %127"
#define SUM4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUM16(i) SUM4(i), SUM4(i + 4), SUM4(i + 8), SUM4(i + 12)
#define SUM128                                                                                     \
    SUM16(0), SUM16(16), SUM16(32), SUM16(48), SUM16(64), SUM16(80), SUM16(96), SUM16(112)

/* d = A B^T (+ d where `add`): 64 x 256 x 16. TA, TB: M or N is contiguous instead of K. */
#define WGMMA(type)                                                                                \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" SUM_NAMES       \
                 "}, %128, %129, add, 1, 1, %131, %132;\n}"                                        \
                 : SUM128                                                                          \
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB))
template <class T, int TA, int TB>
static __device__ __forceinline__ void multiply16(float (&d)[SUMS], uint64_t a, uint64_t b,
                                                  int add) {
    if (std::is_same<T, bf16>::value)
        WGMMA("bf16");
    else
        WGMMA("f16");
}

/* ---- tiles ----------------------------------------------------------------------------------------- */
struct group_tile {
    int group;
    int first, rows; /* of the group */
    int m, n;        /* of the tile, within the group */
    int depth;
};

/* Of each group: its first row and its first pair of tiles; one entry more holds the ends. In shared
 * memory. */
struct group_starts {
    int row[ROUTE_MAX_EXPERTS + 2], pair[ROUTE_MAX_EXPERTS + 2];
};

/* Groups that make tiles: with rows of no group, which become 0, where rows are a dim of the result. */
template <form F> static __device__ __forceinline__ int group_count(const grouped_args &g) {
    return g.experts + (F != BACKWARD_W);
}

/* A pair of tiles. */
template <pair_way W> struct tile_pair {
    enum { M = W == DOWN ? PAIR * TILE_M : TILE_M, N = W == ACROSS ? PAIR * TILE_N : TILE_N };
    enum { BAND = BAND_ROWS / M }; /* pairs down */
};

/* Pairs of tiles of group e. */
template <form F, pair_way W>
static __device__ __forceinline__ int pairs_down(const grouped_args &g, const group_starts &s,
                                                 int e) {
    return ((F == BACKWARD_W ? g.m : s.row[e + 1] - s.row[e]) + tile_pair<W>::M - 1) /
           tile_pair<W>::M;
}
template <pair_way W> static __device__ __forceinline__ int pairs_across(const grouped_args &g) {
    return (g.n + tile_pair<W>::N - 1) / tile_pair<W>::N;
}

/* By the first warp. */
template <form F, pair_way W>
static __device__ void find_groups(const grouped_args &g, group_starts *s) {
    int count = group_count<F>(g), lane = threadIdx.x, each = (count + WARP - 1) / WARP, sum = 0;
    for (int e = lane; e <= g.experts; e += WARP)
        s->row[e] = g.offset ? g.offset[e] : e * (g.rows / g.experts);
    if (lane == 0) s->row[g.experts + 1] = g.rows;
    __syncwarp();
    int lo = min(lane * each, count), hi = min(lo + each, count), across = pairs_across<W>(g);
    for (int e = lo; e < hi; e++) sum += pairs_down<F, W>(g, *s, e) * across;
    int end = sum;
    for (int o = 1; o < WARP; o <<= 1) {
        int v = __shfl_up_sync(~0u, end, o);
        if (lane >= o) end += v;
    }
    int at = end - sum;
    for (int e = lo; e < hi; e++) {
        s->pair[e] = at;
        at += pairs_down<F, W>(g, *s, e) * across;
    }
    if (lane == WARP - 1) s->pair[count] = end;
}

/* This block's tile of pair `at`; @param e the group of an earlier pair, moved on */
template <form F, pair_way W>
static __device__ __forceinline__ group_tile group_tile_at(const grouped_args &g,
                                                           const group_starts &s, int at, int *e) {
    constexpr int BAND = tile_pair<W>::BAND;
    while (at >= s.pair[*e + 1]) ++*e;
    int down = pairs_down<F, W>(g, s, *e), across = pairs_across<W>(g), rank = cluster_rank();
    at -= s.pair[*e];
    int band = at / (BAND * across), in = at % (BAND * across);
    int high = min(BAND, down - band * BAND);
    group_tile t = { *e, s.row[*e], s.row[*e + 1] - s.row[*e] };
    t.m = (band * BAND + in % high) * tile_pair<W>::M + (W == DOWN ? rank * TILE_M : 0);
    t.n = in / high * tile_pair<W>::N + (W == ACROSS ? rank * TILE_N : 0);
    t.depth = F == BACKWARD_W ? t.rows : *e < g.experts ? g.depth : 0;
    return t;
}

/* ---- copying --------------------------------------------------------------------------------------- */
/* Copies the n boxes of an operand, or this block's half of them to both blocks. at(i): where box i lies
 * in the tensor. */
template <bool SHARED, int N, class At>
static __device__ __forceinline__ void copy_boxes(char *to, const CUtensorMap *map, uint64_t *full,
                                                  At at) {
    int first = SHARED ? cluster_rank() * (N / PAIR) : 0;
#pragma unroll
    for (int i = first; i < first + (SHARED ? N / PAIR : N); i++) {
        int3 p = at(i);
        if (SHARED)
            copy_box_to_both(to + i * BOX_BYTES, map, p.x, p.y, p.z, full);
        else
            copy_box_async(to + i * BOX_BYTES, map, p.x, p.y, p.z, full);
    }
}

template <form F, pair_way W>
static __device__ __forceinline__ void copy_stage(const grouped_args &g, const group_tile &t, int k,
                                                  char *stage, uint64_t *full) {
    barrier_expect(full, STAGE_BYTES);
    copy_boxes<W == ACROSS, TILE_M / 64>(stage, &g.a, full, [&](int i) {
        int m = t.m + 64 * i;
        return F == BACKWARD_W ? int3{ m, t.first + k, 0 } : int3{ k, t.first + m, 0 };
    });
    copy_boxes<W == DOWN, TILE_N / 64>(stage + A_BYTES, &g.b, full, [&](int i) {
        int n = t.n + 64 * i;
        return F == FORWARD      ? int3{ k, n, t.group }
               : F == BACKWARD_X ? int3{ n, k, t.group }
                                 : int3{ n, t.first + k, 0 };
    });
}

/* ---- multiplying ----------------------------------------------------------------------------------- */
/* Zeroes what lies beyond the group's rows, in all boxes of a stage. By both multiplying warp groups. */
static __device__ void zero_beyond(char *stage, int rows) {
    int i = threadIdx.x - GROUP_THREADS;
    for (int box = 0; box < STAGE_BYTES / BOX_BYTES; box++)
        for (int at = rows * LINE_BYTES + i * 16; at < BOX_BYTES; at += 2 * GROUP_THREADS * 16)
            *(uint4 *)(stage + box * BOX_BYTES + at) = uint4{ 0, 0, 0, 0 };
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_sync(1, 2 * GROUP_THREADS);
}

/* One stage of the sums of 64 rows. @param half which 64 rows of the tile */
template <class T, form F>
static __device__ __forceinline__ void multiply_stage(float (&d)[SUMS], const char *stage, int half,
                                                      bool add) {
    constexpr int TA = F == BACKWARD_W, TB = F != FORWARD;
    /* 16 deep: 32 bytes of a line where K is contiguous, else 16 lines */
    constexpr int A_STEP = (TA ? 16 * LINE_BYTES : 32) >> 4,
                  B_STEP = (TB ? 16 * LINE_BYTES : 32) >> 4;
    uint64_t a = smem_descriptor(stage + half * BOX_BYTES, BOX_BYTES);
    uint64_t b = smem_descriptor(stage + A_BYTES, BOX_BYTES);
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
        multiply16<T, TA, TB>(d, a + i * A_STEP, b + i * B_STEP, add || i > 0);
}

/* ---- writing --------------------------------------------------------------------------------------- */
/* Lane q of four gets word q of each of the four: a transposition. */
static __device__ __forceinline__ void transpose_lanes4(uint32_t (&v)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
    (odd ? v[0] : v[1]) = a;
    (odd ? v[2] : v[3]) = b;
    a = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
    b = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
    (high ? v[0] : v[2]) = a;
    (high ? v[1] : v[3]) = b;
}

/* From two columns each of chunks `a` and `b` of eight: four columns, of `a` in even lanes, of `b` in odd
 * ones. */
static __device__ __forceinline__ float4 four_columns(const float *a, const float *b) {
    bool odd = threadIdx.x & 1;
    float x = __shfl_xor_sync(~0u, odd ? a[0] : b[0], 1);
    float y = __shfl_xor_sync(~0u, odd ? a[1] : b[1], 1);
    return odd ? float4{ x, y, b[0], b[1] } : float4{ a[0], a[1], x, y };
}

static __device__ __forceinline__ uint32_t pack_two(bf16, float x, float y) {
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&v;
}
static __device__ __forceinline__ uint32_t pack_two(half, float x, float y) {
    __half2 v = __floats2half2_rn(x, y);
    return *(uint32_t *)&v;
}

/* Writes 64 rows: d[4 j + 2 h + i] is row 16 warp + lane / 4 + 8 h, column 8 j + lane % 4 * 2 + i.
 * @param rows, cols how many of them exist */
template <class T>
static __device__ void write_tile(const grouped_args &g, const float (&d)[SUMS], int64_t at,
                                  int rows, int cols) {
    int lane = threadIdx.x % WARP, quad = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = threadIdx.x % GROUP_THREADS / WARP * 16 + lane / 4 + 8 * h;
        if (g.out_dt == DT_F32) {
            float *to = (float *)g.out + at + row * g.ld;
#pragma unroll
            for (int j = 0; j < TILE_N / 8; j += 2) {
                float4 v = four_columns(&d[4 * j + 2 * h], &d[4 * (j + 1) + 2 * h]);
                int col = 8 * (j + quad % 2) + quad / 2 * 4;
                if (row >= rows || col >= cols) continue;
                float4 *p = (float4 *)(to + col);
                if (g.add) v.x += p->x, v.y += p->y, v.z += p->z, v.w += p->w;
                *p = v;
            }
            continue;
        }
        T *to = (T *)g.out + at + row * g.ld;
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = pack_two(T(), d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]);
            transpose_lanes4(v);
            if (row < rows && 8 * (j + quad) < cols)
                *(uint4 *)(to + 8 * (j + quad)) = uint4{ v[0], v[1], v[2], v[3] };
        }
    }
}

/* A tile of 64 rows without depth. */
static __device__ void zero_tile(const grouped_args &g, int64_t at, int rows, int cols) {
    if (g.add) return;
    int bytes = g.out_dt == DT_F32 ? 4 : 2, words = min(cols, TILE_N) * bytes / 16;
    for (int row = threadIdx.x % GROUP_THREADS / WARP; row < min(rows, 64); row += 4)
        for (int i = threadIdx.x % WARP; i < words; i += WARP)
            ((uint4 *)((char *)g.out + (at + row * g.ld) * bytes))[i] = uint4{ 0, 0, 0, 0 };
}

/* ---- the kernel ------------------------------------------------------------------------------------ */
struct ring {
    char *stages;
    uint64_t *full, *empty;
    int at, phase;
    __device__ __forceinline__ char *stage() const { return stages + at * STAGE_BYTES; }
    __device__ __forceinline__ void next() {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

template <form F, pair_way W>
static __device__ void copy_tiles(const grouped_args &g, const group_starts &s, ring r) {
    int e = 0, pairs = s.pair[group_count<F>(g)];
    for (int at = blockIdx.x / PAIR; at < pairs; at += gridDim.x / PAIR) {
        group_tile t = group_tile_at<F, W>(g, s, at, &e);
        for (int k = 0; k < t.depth; k += DEPTH, r.next()) {
            barrier_wait(&r.empty[r.at], r.phase ^ 1);
            copy_stage<F, W>(g, t, k, r.stage(), &r.full[r.at]);
        }
    }
}

/* The stage is free, for the copiers of both blocks: by one thread of the warp group each. */
static __device__ __forceinline__ void free_stage(const ring &r, int stage) {
    int to = threadIdx.x % GROUP_THREADS;
    if (to < PAIR) barrier_arrive_at(&r.empty[stage], to);
}

/* Frees the stages of a tile of which no part is this warp group's: the other one then has the tensor cores
 * to itself. */
template <form F> static __device__ void skip_tile(const group_tile &t, ring &r) {
    for (int k = 0; k < t.depth; k += DEPTH, r.next()) {
        barrier_wait(&r.full[r.at], r.phase);
        if (F == BACKWARD_W && t.depth - k < DEPTH) zero_beyond(r.stage(), t.depth - k);
        free_stage(r, r.at);
    }
}

template <class T, form F, pair_way W>
static __device__ void multiply_tiles(const grouped_args &g, const group_starts &s, ring r) {
    /* from one lane, so that the compiler knows it to be one for the warp */
    int half = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    int e = 0, pairs = s.pair[group_count<F>(g)];
    for (int at = blockIdx.x / PAIR; at < pairs; at += gridDim.x / PAIR) {
        group_tile t = group_tile_at<F, W>(g, s, at, &e);
        int m = t.m + 64 * half, height = F == BACKWARD_W ? g.m : t.rows;
        if (m >= height || t.n >= g.n) {
            skip_tile<F>(t, r);
            continue;
        }
        int64_t row = (F == BACKWARD_W ? (int64_t)t.group * g.m : t.first) + m;
        if (t.depth == 0) {
            zero_tile(g, row * g.ld + t.n, height - m, g.n - t.n);
            continue;
        }
        float d[SUMS];
        int before = -1; /* the stage whose multiplications are in flight */
#pragma unroll 1
        for (int k = 0; k < t.depth; k += DEPTH, r.next()) {
            barrier_wait(&r.full[r.at], r.phase);
            if (F == BACKWARD_W && t.depth - k < DEPTH) zero_beyond(r.stage(), t.depth - k);
            multiply_begin();
            multiply_stage<T, F>(d, r.stage(), half, k > 0);
            multiply_commit();
            multiply_wait<1>();
            if (before >= 0) free_stage(r, before);
            before = r.at;
        }
        multiply_wait<0>();
        free_stage(r, before);
        write_tile<T>(g, d, row * g.ld + t.n, height - m, g.n - t.n);
    }
}

template <class T, form F, pair_way W>
static __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_groups_hopper(const __grid_constant__ grouped_args g) {
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ group_starts s;
    ring r = { (char *)(((uintptr_t)memory + ALIGN - 1) / ALIGN * ALIGN), full, empty, 0, 0 };
    if (threadIdx.x < WARP) find_groups<F, W>(g, &s);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 2 * PAIR); /* warp groups that multiply */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_sync();
    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) copy_tiles<F, W>(g, s, r);
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<T, F, W>(g, s, r);
        __syncwarp();
    }
    cluster_sync(); /* the other block still copies to this one's memory until it is done */
}

/* ---- calls ----------------------------------------------------------------------------------------- */
typedef decltype(&cuTensorMapEncodeTiled) map_encoder;

/* The driver's function, found at run time: nothing else of the program needs libcuda. */
static map_encoder find_encoder() {
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    const char *name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else
    cudaError_t status = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? (map_encoder)f : NULL;
}

/* Describes t as [groups, rows, cols], read in boxes of [1, 64, 64]. @return whether the driver can */
static bool encode_map(CUtensorMap *map, const tensor *t, int64_t groups) {
    static map_encoder encoder = find_encoder();
    CUtensorMapDataType type =
        t->dt == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    cuuint64_t cols = (cuuint64_t)t->dim[1], rows = (cuuint64_t)(t->dim[0] / groups);
    cuuint64_t dims[] = { cols, rows, (cuuint64_t)groups },
               strides[] = { cols * 2, cols * rows * 2 };
    cuuint32_t box[] = { 64, 64, 1 }, steps[] = { 1, 1, 1 };
    return encoder &&
           encoder(map, type, 3, t->data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Rows are read in whole lines of 16 bytes. */
static bool is_aligned(const tensor *t) {
    return t->dim[1] % 8 == 0 && (uintptr_t)t->data % 16 == 0 && t->dim[0] <= INT32_MAX &&
           t->dim[1] <= INT32_MAX;
}

static bool can_multiply(const op_call *c) {
    const tensor *a = &c->in[0], *b = &c->in[1], *out = &c->out[0];
    return cuda_of(c)->device->capability == 9 && (a->dt == DT_BF16 || a->dt == DT_F16) &&
           b->dt == a->dt && (out->dt == a->dt || out->dt == DT_F32) && is_aligned(a) &&
           is_aligned(b) && is_aligned(out);
}

/* Pairs down move fewer bytes (of 6 boxes a block reads 4 instead of 5), but where groups are small they
 * waste more of the last pair. */
template <form F> static bool goes_down(const grouped_args &g) {
    double down, m = F == BACKWARD_W ? g.m : (double)g.rows / g.experts, one = m;
    if (F == BACKWARD_W) {
        down = (double)ceil_div(g.m, PAIR * TILE_M) * PAIR * TILE_M;
        one = (double)ceil_div(g.m, TILE_M) * TILE_M;
    } else {
        down = m + TILE_M; /* half a pair is unused, on average */
        one = m + TILE_M / 2;
    }
    double across = (double)ceil_div(g.n, PAIR * TILE_N) * PAIR / (double)ceil_div(g.n, TILE_N);
    return down <= one * across * 1.05;
}

template <class T, form F> static void launch_groups(const op_call *c, const grouped_args &g) {
    launch_shape s = { (unsigned)cuda_of(c)->device->sms / PAIR * PAIR, THREADS,
                       STAGES * STAGE_BYTES + ALIGN };
    if (goes_down<F>(g))
        LAUNCH(cuda_of(c), s, multiply_groups_hopper<T, F, DOWN>, g);
    else
        LAUNCH(cuda_of(c), s, multiply_groups_hopper<T, F, ACROSS>, g);
}

template <form F> static bool run_grouped(const op_call *c) {
    const tensor *a = &c->in[0], *b = &c->in[1], *out = &c->out[0];
    int64_t experts = c->attr.experts;
    grouped_args g;
    if (!encode_map(&g.a, a, 1) || !encode_map(&g.b, b, F == BACKWARD_W ? 1 : experts))
        return false;
    g.out = out->data;
    g.out_dt = out->dt;
    g.add = c->accumulate & 1;
    g.ld = out->dim[1];
    g.offset = (const int32_t *)c->in[2].data;
    g.experts = (int)experts;
    g.rows = (int)a->dim[0];
    g.m = (int)(out->dim[0] / experts);
    g.n = (int)out->dim[1];
    g.depth = (int)a->dim[1];
    if (a->dt == DT_BF16)
        launch_groups<bf16, F>(c, g);
    else
        launch_groups<half, F>(c, g);
    return true;
}

extern "C" bool cuda_grouped_hopper(const op_call *c) {
    if (!can_multiply(c)) return false;
    return c->op == OP_GROUPED_LINEAR         ? run_grouped<FORWARD>(c)
           : c->op == OP_GROUPED_LINEAR_BWD_X ? run_grouped<BACKWARD_X>(c)
                                              : run_grouped<BACKWARD_W>(c);
}
