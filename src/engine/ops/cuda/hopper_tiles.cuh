/* Shared by the GEMMs on Hopper's tensor cores (gemm_hopper.cu, grouped_hopper.cu, orthogonalize_hopper.cu): tiles of
 * 128 x 256 that the two blocks of a cluster compute side by side, and the ring of stages in shared memory between the
 * warp group that copies operands (TMA) and the two that multiply (wgmma), 64 rows of the tile each:
 *
 *     copier        wait empty[s] -> copy A, B of 64 deep -> full[s]
 *     multipliers   wait full[s] -> 4 x wgmma m64nNk16 -> empty[s] of both blocks
 *
 * A tile is written through chunks of 64 lines of 128 bytes, which TMA stores. Dynamic shared memory of a block:
 *
 *     | 4 stages: A 128 x 64, B 256 x 64 | 2 chunks of each multiplying group | full, empty | what the kernel adds | */
#ifndef INGOT_OPS_CUDA_HOPPER_TILES_CUH
#define INGOT_OPS_CUDA_HOPPER_TILES_CUH

#include "device.cuh"
#ifdef __CUDACC__
#include "hopper.cuh"
#else
#include <hopper_emulated.h>
#endif

enum {
    TILE_M = 128,
    TILE_N = 256, /* at most */
    DEPTH = 64,   /* of a stage: LINE_BYTES */
    STAGES = 4,
    PAIR = 2, /* blocks of a cluster */
    PAIR_M = PAIR * TILE_M,
    MULTIPLIERS = 2, /* warp groups of a block */
    THREADS = (1 + MULTIPLIERS) * GROUP_THREADS,
    HALF_LINES = 32, /* that one block of a pair copies of a box of B */
    HALF_BYTES = HALF_LINES * LINE_BYTES,
    A_BYTES = TILE_M * LINE_BYTES,
    B_BYTES = TILE_N * LINE_BYTES,
    STAGE_BYTES = A_BYTES + B_BYTES,
    CHUNK_BUFFERS = 2, /* of each multiplying warp group */
    CHUNK_BYTES = CHUNK_BUFFERS * BOX_BYTES,
    RING_BYTES =
        ALIGN + STAGES * STAGE_BYTES + MULTIPLIERS * CHUNK_BYTES + 2 * STAGES * sizeof(uint64_t),
};

/* ---- the ring -------------------------------------------------------------------------------------- */
struct tile_ring {
    char *stages;
    uint64_t *full, *empty; /* [STAGES] */
    int at, phase;
    __device__ __forceinline__ char *stage() const { return stages + at * STAGE_BYTES; }
    __device__ __forceinline__ void next() {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
    /* The chunks of a multiplying group. */
    __device__ __forceinline__ char *chunks(int half) const {
        return stages + STAGES * STAGE_BYTES + half * CHUNK_BYTES;
    }
    /* @return the shared memory that follows the ring. */
    __device__ __forceinline__ uint64_t *end() const { return empty + STAGES; }
};

/* Lays a ring out in a block's dynamic shared memory of at least RING_BYTES, and has one thread initialize its barriers:
 * those of the ring, and `more` that follow it, each for one arrival. The cluster waits until all are ready. */
static __device__ __forceinline__ tile_ring ring_open(char *memory, int more) {
    char *stages = memory + (ALIGN - shared_address(memory) % ALIGN) % ALIGN;
    uint64_t *full = (uint64_t *)(stages + STAGES * STAGE_BYTES + MULTIPLIERS * CHUNK_BYTES);
    tile_ring r = { stages, full, full + STAGES, 0, 0 };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&r.full[i], 1);
            barrier_init(&r.empty[i], MULTIPLIERS * PAIR);
        }
        for (int i = 0; i < more; i++) barrier_init(&r.end()[i], 1);
        barriers_ready();
    }
    __syncthreads();
    cluster_sync();
    return r;
}

/* The stage is free, for the copiers of both blocks: by one thread each of a warp group. */
static __device__ __forceinline__ void free_stage(const tile_ring &r, int stage) {
    int to = threadIdx.x % GROUP_THREADS;
    if (to < PAIR) barrier_arrive_at(&r.empty[stage], to);
}

/* A value that all lanes have. The compiler sees that it is one for the warp, and so lets wgmma overlap where it decides what
 * is multiplied. */
static __device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

/* Of a multiplying warp group: which 64 rows of the tile it has. */
static __device__ __forceinline__ int half_of_tile() {
    return uniform((int)threadIdx.x / GROUP_THREADS - 1);
}

/* Frees stages that this multiplying group does not read: the other one then has the tensor cores to itself. Its threads wait for
 * those that do, since nothing else would keep them from taking a later turn of the ring for this one. */
static __device__ __forceinline__ void skip_stages(tile_ring &r, int half, int count) {
    tile_ring at = r;
    for (int i = 0; i < count; i++) r.next();
    if (threadIdx.x % GROUP_THREADS < PAIR)
        for (int i = 0; i < count; i++, at.next()) {
            barrier_wait(&at.full[at.at], at.phase);
            free_stage(at, at.at);
        }
    __syncwarp();
    barrier_sync(1 + half, GROUP_THREADS);
}

/* ---- copying --------------------------------------------------------------------------------------- */
/* Where a stage's operands begin; za and zb: which matrix. */
struct stage_place {
    int m, n, k, width, za, zb; /* width: columns of the tile that exist */
};

/* Copies a stage once it is free: A, and this block's half of B to both blocks. TA, TB: M or N is contiguous, instead of
 * the depth. */
template <bool TA, bool TB>
static __device__ __forceinline__ void copy_stage(const tile_ring &r, const CUtensorMap *a,
                                                  const CUtensorMap *b, const stage_place &p) {
    char *to = r.stage();
    uint64_t *full = &r.full[r.at];
    int rank = cluster_rank(), boxes = (p.width + 63) / 64;
    int halves = (p.width + HALF_LINES - 1) / HALF_LINES;
    barrier_expect(full, A_BYTES + (TB ? boxes * BOX_BYTES : halves * HALF_BYTES));
    for (int i = 0; i < TILE_M / 64; i++) {
        int m = p.m + 64 * i;
        copy_box_async(to + i * BOX_BYTES, a, TA ? m : p.k, TA ? p.k : m, p.za, full);
    }
    to += A_BYTES;
    for (int i = 0; TB && i < boxes; i++) /* half of the depth */
        copy_box_to_both(to + i * BOX_BYTES + rank * HALF_BYTES, b, p.n + 64 * i,
                         p.k + rank * HALF_LINES, p.zb, full);
    for (int i = rank; !TB && i < halves; i += PAIR)
        copy_box_to_both(to + i * HALF_BYTES, b, p.k, p.n + i * HALF_LINES, p.zb, full);
}

/* ---- multiplying ----------------------------------------------------------------------------------- */
/* Waits for a stage and queues its products, 64 x N each. TA, TB: see copy_stage. @param add to what d holds */
template <class T, int N, bool TA, bool TB>
static __device__ __forceinline__ void multiply_stage(float (&d)[SUMS], const tile_ring &r,
                                                      int half, bool add) {
    /* 16 deep: 32 bytes of a line where the depth is contiguous, else 16 lines */
    constexpr int A_STEP = (TA ? 16 * LINE_BYTES : 32) >> 4,
                  B_STEP = (TB ? 16 * LINE_BYTES : 32) >> 4;
    barrier_wait(&r.full[r.at], r.phase);
    uint64_t a = smem_descriptor(r.stage() + half * BOX_BYTES, BOX_BYTES);
    uint64_t b = smem_descriptor(r.stage() + A_BYTES, BOX_BYTES);
    multiply_begin();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
        multiplier<T, N>::template multiply16<TA, TB>(d, a + i * A_STEP, b + i * B_STEP,
                                                      add || i > 0);
    multiply_commit();
}
/* Goes on to the next stage. Once the one before has been multiplied, it is free. @param before -1: there is none */
static __device__ __forceinline__ void end_stage(tile_ring &r, int &before) {
    multiply_wait<1>();
    if (before >= 0) free_stage(r, before);
    before = r.at;
    r.next();
}
static __device__ __forceinline__ void end_tile(const tile_ring &r, int before) {
    multiply_wait<0>();
    free_stage(r, before);
}

/* ---- the order of tiles ---------------------------------------------------------------------------- */
/* Pair `at` of down x across, in bands of at most `most` tiles across: those of a band share their columns in L2. */
struct pair_place {
    int down, across;
};
static __device__ __forceinline__ pair_place tile_pair_at(int at, int down, int across, int most) {
    int bands = (across + most - 1) / most, band = (across + bands - 1) / bands;
    int left = at / (band * down) * band, in = at % (band * down), wide = min(band, across - left);
    return { in / wide, left + in % wide };
}
/* Where tile i of `across` begins, which share `steps` steps: the first ones have a step more where they cannot all be
 * equal. */
static __device__ __forceinline__ int edge_at(int i, int across, int steps) {
    return i * (steps / across) + min(i, steps % across);
}

/* ---- two elements in a word ------------------------------------------------------------------------ */
static __device__ __forceinline__ float2 two_of(bf16, uint32_t w) {
    return { __uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u) };
}
static __device__ __forceinline__ float2 two_of(half, uint32_t w) {
    return __half22float2(*(const half2 *)&w);
}

/* ---- writing --------------------------------------------------------------------------------------- */
/* 64 columns of a warp group's sums as lines of 64 rows.
 * d[4 j + 2 h + i] is row 16 warp + lane / 4 + 8 h, column 8 j + lane % 4 * 2 + i. */
template <class T>
static __device__ __forceinline__ void put_transposed(char *chunk, const float *d) {
    int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    int line = lane / 16 * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = pack_two(T(), d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
        store_transposed(swizzled(chunk, line + 8 * j, piece), v);
    }
}

/* The same as 64 lines of 64 columns. */
template <class T> static __device__ __forceinline__ void put_lines(char *chunk, const float *d) {
    int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    int line = warp * 16 + lane % 16, piece = lane / 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = pack_two(T(), d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
        store_matrices(swizzled(chunk, line, piece + j), v);
    }
}

/* From two columns each of chunks `a` and `b` of eight: four columns, of `a` in even lanes, of `b` in odd
 * ones. */
static __device__ __forceinline__ float4 four_columns(const float *a, const float *b) {
    bool odd = threadIdx.x & 1;
    float x = __shfl_xor_sync(~0u, odd ? a[0] : b[0], 1);
    float y = __shfl_xor_sync(~0u, odd ? a[1] : b[1], 1);
    return odd ? float4{ x, y, b[0], b[1] } : float4{ a[0], a[1], x, y };
}

/* 32 columns of the sums as 64 lines of fp32. Odd lines put their two halves in the other order: no two lanes then use
 * the same banks. */
static __device__ __forceinline__ void put_gradients(char *chunk, const float *d) {
    int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP, quad = lane % 4;
    int piece = 2 * (quad % 2) + quad / 2, odd = lane / 4 % 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int line = warp * 16 + lane / 4 + 8 * h;
        float4 low = four_columns(&d[2 * h], &d[4 + 2 * h]);
        float4 high = four_columns(&d[8 + 2 * h], &d[12 + 2 * h]);
        *(float4 *)swizzled(chunk, line, piece + 4 * odd) = odd ? high : low;
        *(float4 *)swizzled(chunk, line, piece + 4 * !odd) = odd ? low : high;
    }
}

#endif
