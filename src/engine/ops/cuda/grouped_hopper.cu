/* The experts' GEMMs on Hopper's tensor cores (compute capability 9.0), in bf16 and fp16, each as
 * D = A B^T with the features of a weight down and, but for dw, the group's rows across:
 *
 *     GROUPED_LINEAR         y^T  = w_e x^T    A = w   depth contiguous  B = x   depth contiguous
 *     GROUPED_LINEAR_BWD_X   dx^T = w_e^T dy^T A = w   M contiguous      B = dy  depth contiguous
 *     GROUPED_LINEAR_BWD_W   dw   = dy_e^T x_e A = dy  M contiguous      B = x   N contiguous
 *
 * A tile is 128 down and up to 256 across, in steps of 16: a group's rows are divided evenly among as few tiles
 * as hold them, so that little is computed beyond its end. Two blocks, a cluster, take two neighboring tiles down
 * and share B: each copies half of it to both. Clusters, one per two SMs, take pair after pair, all groups one
 * after another, as they become free: neighbors, which share operands, are then computed at the same time and read
 * them from memory once. The sizes of groups are read on the device. A block's first warp group copies operands (TMA) into
 * a ring of stages, the other two multiply (wgmma), 64 rows of the tile each:
 *
 *     copier        wait empty[s] -> which tile, copy A, B of 64 deep -> full[s]
 *     multipliers   wait full[s] -> 4 x wgmma m64nNk16 -> empty[s] of both blocks; at the end write the tile
 *
 * A tile is written through shared memory in chunks of 64 lines of 128 bytes, which TMA then stores while the next
 * chunk and the next tile are computed. Only the copier reads the groups: each stage names the tile it belongs to.
 * Rows beyond a group's end are computed from the next group's and not written; beyond the depth of a group
 * (BWD_W, whose depth is rows) the operands are zeroed in shared memory. Rows of no group are a group of depth 0.
 * Deterministic: the order of sums depends on nothing but the group's size, whichever block computes a tile.
 *
 * Operand bytes per tile: 2 depth (128 + 256); B is read from L2 once per pair, and a band of pairs shares
 * its columns in L2. */
#include "hopper.cuh"
#include "ops/op_table.h"

enum {
    STEP_N = 16,        /* a tile's width is a multiple of it */
    BAND = 8,           /* tiles across that take turns: they share A in L2 */
    TURNS = 2 * STAGES, /* more tiles than one copier of a pair can be ahead of the other */
};

enum form { FORWARD, BACKWARD_X, BACKWARD_W };

struct grouped_args {
    CUtensorMap a, b, to;
    void *out;
    bool add;
    int64_t ld; /* of out */
    int *next;  /* the first pair that no cluster has taken */
    const int32_t *offset;
    int experts, rows; /* rows: of all groups and none */
    int m, n, depth;   /* of a group; n (BACKWARD_W: depth) is the group's own */
};

/* ---- tiles ----------------------------------------------------------------------------------------- */
struct group_tile {
    int group; /* the expert; -1: no tiles are left */
    int m, n;  /* first feature down; first row (BACKWARD_W: feature) across, of all groups */
    int width, depth; /* width: how many across exist */
    int first;        /* BACKWARD_W: the first of the `depth` rows */
};

static __host__ __device__ __forceinline__ int round_to(int x, int to) {
    return (x + to - 1) / to * to;
}

/* Walks over the pairs of tiles of all groups, then of the rows that belong to none, which become 0, where rows are
 * a dim of the result. */
template <form F> struct pair_walk {
    int group, first, rows;  /* of the group */
    int before;              /* pairs of earlier groups */
    int down, across, steps; /* pairs down; tiles across, of how many steps together */

    __device__ __forceinline__ int row_of(const grouped_args &g, int e) const {
        return e > g.experts ? g.rows : g.offset ? g.offset[e] : e * (g.rows / g.experts);
    }
    __device__ __forceinline__ void enter(const grouped_args &g, int e) {
        group = e;
        first = row_of(g, e);
        rows = row_of(g, e + 1) - first;
        int n = F == BACKWARD_W ? g.n : rows;
        across = (n + TILE_N - 1) / TILE_N;
        steps = (n + STEP_N - 1) / STEP_N;
    }
    __device__ __forceinline__ void begin(const grouped_args &g) {
        before = 0;
        down = (g.m + PAIR * TILE_M - 1) / (PAIR * TILE_M);
        enter(g, 0);
    }
    /* Where tile i across begins: the first ones have a step more where they cannot all be equal. */
    __device__ __forceinline__ int edge(int i) const {
        return F == BACKWARD_W ? i * TILE_N
                               : (i * (steps / across) + min(i, steps % across)) * STEP_N;
    }
    /* @return this block's tile of pair `at`, which is later than the last. */
    __device__ __forceinline__ group_tile find(const grouped_args &g, int at) {
        int groups = g.experts + (F != BACKWARD_W);
        while (at - before >= down * across) {
            before += down * across;
            if (group + 1 == groups) return { -1 };
            enter(g, group + 1);
        }
        at -= before;
        int bands = (across + BAND - 1) / BAND, band = (across + bands - 1) / bands;
        int left = at / (band * down) * band, in = at % (band * down),
            wide = min(band, across - left);
        int column = left + in % wide, n = edge(column), end = F == BACKWARD_W ? g.n : rows;
        group_tile t;
        t.group = group;
        t.m = in / wide * PAIR * TILE_M + cluster_rank() * TILE_M;
        t.n = F == BACKWARD_W ? n : first + n;
        t.width = min(edge(column + 1), end) - n;
        t.depth = F == BACKWARD_W ? rows : group < g.experts ? g.depth : 0;
        t.first = first;
        return t;
    }
};

typedef tile_ring<group_tile> ring;

/* ---- copying --------------------------------------------------------------------------------------- */
/* Copies A, and this block's half of B to both blocks. */
template <form F>
static __device__ __forceinline__ void copy_stage(const grouped_args &g, const group_tile &t, int k,
                                                  char *stage, uint64_t *full) {
    char *b = stage + A_BYTES;
    int rank = cluster_rank(), boxes = (t.width + 63) / 64;
    if (F == BACKWARD_W) {
        barrier_expect(full, A_BYTES + boxes * BOX_BYTES);
        for (int i = 0; i < TILE_M / 64; i++)
            copy_box_async(stage + i * BOX_BYTES, &g.a, t.m + 64 * i, t.first + k, 0, full);
        for (int i = 0; i < boxes; i++) /* half of the depth */
            copy_box_to_both(b + i * BOX_BYTES + rank * HALF_BYTES, &g.b, t.n + 64 * i,
                             t.first + k + rank * HALF_LINES, 0, full);
        return;
    }
    int halves = (t.width + HALF_LINES - 1) / HALF_LINES;
    barrier_expect(full, A_BYTES + halves * HALF_BYTES);
    for (int i = 0; i < TILE_M / 64; i++)
        copy_box_async(stage + i * BOX_BYTES, &g.a, F == FORWARD ? k : t.m + 64 * i,
                       F == FORWARD ? t.m + 64 * i : k, t.group, full);
    for (int i = rank; i < halves; i += PAIR)
        copy_box_to_both(b + i * HALF_BYTES, &g.b, k, t.n + i * HALF_LINES, 0, full);
}

/* The pairs that the cluster takes: the first block takes one and sends its number to both. */
struct pair_turns {
    int *pair;
    uint64_t *told;
    int at, phase;
    __device__ __forceinline__ void ask(const grouped_args &g) const {
        if (cluster_rank() != 0) return;
        int v = atomicAdd(g.next, 1);
        for (int i = 0; i < PAIR; i++) send_to(&pair[at], v, &told[at], i);
    }
    __device__ __forceinline__ int take() {
        int v = receive(&pair[at], &told[at], phase);
        if (++at == TURNS) at = 0, phase ^= 1;
        return v;
    }
};

/* By one thread. A tile without depth takes a stage too, and so does the end. */
template <form F>
static __device__ void copy_tiles(const grouped_args &g, ring r, pair_turns turns) {
    pair_walk<F> walk;
    walk.begin(g);
    turns.ask(g);
    for (;;) {
        int at = turns.take();
        turns.ask(g); /* for the next one */
        group_tile t = walk.find(g, at);
        int k = 0;
        do {
            barrier_wait(&r.empty[r.at], r.phase ^ 1);
            r.tile[r.at] = t;
            if (t.group >= 0 && t.depth > 0)
                copy_stage<F>(g, t, k, r.stage(), &r.full[r.at]);
            else
                barrier_expect(&r.full[r.at], 0);
            r.next();
            k += DEPTH;
        } while (t.group >= 0 && k < t.depth);
        if (t.group < 0) return;
    }
}

/* ---- multiplying ----------------------------------------------------------------------------------- */
/* Zeroes the rows after the group's last one up to a multiple of 16, in B and in this warp group's part of A. The other
 * one may do so with B while this one multiplies: it writes zeros over zeros. */
static __device__ void zero_beyond(char *stage, int half, int rows) {
    int end = round_to(rows, 16) * LINE_BYTES;
    for (int box = 0; box < STAGE_BYTES / BOX_BYTES; box++) {
        if (box == 1 - half) continue;
        for (int at = rows * LINE_BYTES + threadIdx.x % GROUP_THREADS * 16; at < end;
             at += GROUP_THREADS * 16)
            *(uint4 *)(stage + box * BOX_BYTES + at) = uint4{ 0, 0, 0, 0 };
    }
    fence_async();
    barrier_sync(1 + half, GROUP_THREADS);
}

/* Sums 64 rows of the tile over its depth. @param half which 64 */
template <class T, form F, int N>
static __device__ __forceinline__ void multiply_depth(float (&d)[SUMS], ring &r, int half,
                                                      int depth) {
    constexpr int TA = F != FORWARD, TB = F == BACKWARD_W;
    /* 16 deep: 32 bytes of a line where the depth is contiguous, else 16 lines */
    constexpr int A_STEP = (TA ? 16 * LINE_BYTES : 32) >> 4,
                  B_STEP = (TB ? 16 * LINE_BYTES : 32) >> 4;
    int before = -1; /* the stage whose multiplications are in flight */
#pragma unroll 1
    for (int k = 0; k < depth; k += DEPTH, r.next()) {
        barrier_wait(&r.full[r.at], r.phase);
        if (F == BACKWARD_W && depth - k < DEPTH) zero_beyond(r.stage(), half, depth - k);
        uint64_t a = smem_descriptor(r.stage() + half * BOX_BYTES, BOX_BYTES);
        uint64_t b = smem_descriptor(r.stage() + A_BYTES, BOX_BYTES);
        multiply_begin();
        if (F == BACKWARD_W) {
            int end = min(depth, k + DEPTH);
#pragma unroll 1
            for (int i = k; i < end; i += 16, a += A_STEP, b += B_STEP)
                multiplier<T, N>::template multiply16<TA, TB>(d, a, b, i > 0);
        } else {
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++)
                multiplier<T, N>::template multiply16<TA, TB>(d, a + i * A_STEP, b + i * B_STEP,
                                                              k > 0 || i > 0);
        }
        multiply_commit();
        multiply_wait<1>();
        if (before >= 0) free_stage(r, before);
        before = r.at;
    }
    multiply_wait<0>();
    free_stage(r, before);
}

/* Frees the stages of a tile that this warp group does not multiply: the other one then has the tensor cores to
 * itself. */
static __device__ void skip_stages(int depth, ring &r) {
    for (int k = 0; k < depth; k += DEPTH, r.next()) {
        barrier_wait(&r.full[r.at], r.phase);
        free_stage(r, r.at);
    }
}

/* ---- writing --------------------------------------------------------------------------------------- */
/* From two columns each of chunks `a` and `b` of eight: four columns, of `a` in even lanes, of `b` in odd
 * ones. */
static __device__ __forceinline__ float4 four_columns(const float *a, const float *b) {
    bool odd = threadIdx.x & 1;
    float x = __shfl_xor_sync(~0u, odd ? a[0] : b[0], 1);
    float y = __shfl_xor_sync(~0u, odd ? a[1] : b[1], 1);
    return odd ? float4{ x, y, b[0], b[1] } : float4{ a[0], a[1], x, y };
}

/* 32 columns of dw as 64 lines of fp32. Odd lines put their two halves in the other order: no two lanes then use
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

/* Copies the lines of a chunk that exist, where TMA would write others too. */
static __device__ void copy_lines(char *chunk, char *to, int64_t pitch, int lines, int pieces) {
    for (int i = threadIdx.x % GROUP_THREADS; i < lines * 8; i += GROUP_THREADS)
        if (i % 8 < pieces)
            *(uint4 *)(to + i / 8 * pitch + i % 8 * 16) = *(uint4 *)swizzled(chunk, i / 8, i % 8);
}

/* Writes this warp group's 64 rows of the tile. @param chunks two buffers of its own */
template <class T, form F>
static __device__ void write_tile(const grouped_args &g, const float (&d)[SUMS],
                                  const group_tile &t, int half, char *chunks) {
    constexpr int WIDTH = F == BACKWARD_W ? 32 : 64; /* columns of a chunk */
    int m = t.m + 64 * half;
    bool one = threadIdx.x % GROUP_THREADS == 0;
#pragma unroll
    for (int c = 0; c < TILE_N / WIDTH; c++) {
        if (c * WIDTH >= t.width) break;
        char *chunk = chunks + c % CHUNK_BUFFERS * BOX_BYTES;
        if (one && c == 0)
            stores_wait_read<0>(); /* the last tile may have ended with this buffer */
        if (one) stores_wait_read<CHUNK_BUFFERS - 1>();
        barrier_sync(1 + half, GROUP_THREADS);
        if (F == BACKWARD_W)
            put_gradients(chunk, &d[c * WIDTH / 2]);
        else
            put_transposed<T>(chunk, &d[c * WIDTH / 2]);
        fence_async();
        barrier_sync(1 + half, GROUP_THREADS);
        int n = t.n + c * WIDTH, lines = t.width - c * WIDTH;
        if (F != BACKWARD_W && lines < WIDTH)
            copy_lines(chunk, (char *)g.out + (n * g.ld + m) * 2, g.ld * 2, lines, (g.m - m) / 8);
        else if (one && F != BACKWARD_W)
            store_box_async(&g.to, chunk, m, n, 0);
        else if (one && g.add)
            add_box_async(&g.to, chunk, n, m, t.group);
        else if (one)
            store_box_async(&g.to, chunk, n, m, t.group);
        if (one) stores_commit();
    }
}

/* A tile without depth. */
template <form F>
static __device__ void zero_tile(const grouped_args &g, const group_tile &t, int half) {
    if (g.add) return;
    int m = t.m + 64 * half, high = min(64, g.m - m);
    int bytes = F == BACKWARD_W ? 4 : 2, lines = F == BACKWARD_W ? high : t.width;
    int pieces = (F == BACKWARD_W ? t.width : high) * bytes / 16;
    int64_t row = F == BACKWARD_W ? (int64_t)t.group * g.m + m : t.n,
            col = F == BACKWARD_W ? t.n : m;
    char *to = (char *)g.out + (row * g.ld + col) * bytes;
    for (int line = threadIdx.x % GROUP_THREADS / WARP; line < lines; line += GROUP_THREADS / WARP)
        for (int i = threadIdx.x % WARP; i < pieces; i += WARP)
            *(uint4 *)(to + line * g.ld * bytes + i * 16) = uint4{ 0, 0, 0, 0 };
}

/* ---- the kernel ------------------------------------------------------------------------------------ */
template <class T, form F>
static __device__ void multiply_tiles(const grouped_args &g, ring r, char *chunks) {
    /* from one lane, so that the compiler knows it to be one for the warp */
    int half = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    chunks += half * CHUNK_BUFFERS * BOX_BYTES;
    for (;;) {
        barrier_wait(&r.full[r.at], r.phase);
        group_tile t = r.tile[r.at];
        if (t.group < 0) break;
        bool beyond = t.m + 64 * half >= g.m;
        if (t.depth == 0 || beyond) {
            barrier_sync(1 + half, GROUP_THREADS); /* all threads know the tile: its stage may go */
            skip_stages(max(t.depth, 1), r);
            if (!beyond) zero_tile<F>(g, t, half);
            continue;
        }
        float d[SUMS];
        int depth = __shfl_sync(~0u, t.depth, 0);
        if constexpr (F == BACKWARD_W) {
            multiply_depth<T, F, TILE_N>(d, r, half, depth); /* its widths are the model's */
        } else {
            switch (__shfl_sync(~0u, (t.width + STEP_N - 1) / STEP_N, 0)) {
#define CASE(width, sums)                                                                          \
    case width / STEP_N: multiply_depth<T, F, width>(d, r, half, depth); break;
                FOR_EACH_WIDTH(CASE)
#undef CASE
            }
        }
        write_tile<T, F>(g, d, t, half, chunks);
    }
    stores_wait();
}

template <class T, form F>
static __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_groups_hopper(const __grid_constant__ grouped_args g) {
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ group_tile tile[STAGES];
    __shared__ uint64_t told[TURNS];
    __shared__ int pair[TURNS];
    ring r = { (char *)(((uintptr_t)memory + ALIGN - 1) / ALIGN * ALIGN), full, empty, tile, 0, 0 };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 2 * PAIR); /* warp groups that multiply */
        }
        for (int i = 0; i < TURNS; i++) barrier_init(&told[i], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_sync();
    if (threadIdx.x < GROUP_THREADS) {
        registers_keep<40>();
        if (threadIdx.x == 0) copy_tiles<F>(g, r, { pair, told, 0, 0 });
        __syncwarp();
    } else {
        registers_take<232>();
        multiply_tiles<T, F>(g, r, r.stages + STAGES * STAGE_BYTES);
        __syncwarp();
    }
    cluster_sync(); /* the other block still copies to this one's memory until it is done */
}

/* ---- calls ----------------------------------------------------------------------------------------- */
static bool can_multiply(const op_call *c) {
    const tensor *a = &c->in[0], *b = &c->in[1], *out = &c->out[0];
    return cuda_of(c)->device->capability == 9 && (a->dt == DT_BF16 || a->dt == DT_F16) &&
           b->dt == a->dt && out->dt == (c->op == OP_GROUPED_LINEAR_BWD_W ? DT_F32 : a->dt) &&
           is_aligned(a) && is_aligned(b) && is_aligned(out);
}

template <form F> static bool run_grouped(const op_call *c) {
    const tensor *rows = &c->in[0], *other = &c->in[1], *out = &c->out[0];
    const tensor *a = F == BACKWARD_W ? rows : other, *b = F == BACKWARD_W ? other : rows;
    int64_t experts = c->attr.experts;
    grouped_args g;
    if (!encode_map(&g.a, a, F == BACKWARD_W ? 1 : experts, 64) ||
        !encode_map(&g.b, b, 1, HALF_LINES) ||
        !encode_map(&g.to, out, F == BACKWARD_W ? experts : 1, 64))
        return false;
    g.next = (int *)c->run->workspace;
    CUDA_OK(cuda_of(c), cudaMemsetAsync(g.next, 0, sizeof *g.next, cuda_of(c)->stream));
    g.out = out->data;
    g.add = c->accumulate & 1;
    g.ld = out->dim[1];
    g.offset = (const int32_t *)c->in[2].data;
    g.experts = (int)experts;
    g.rows = (int)rows->dim[0];
    g.m = (int)(F == BACKWARD_W ? out->dim[0] / experts : out->dim[1]);
    g.n = (int)out->dim[1];
    g.depth = (int)rows->dim[1];
    launch_shape s = { (unsigned)cuda_of(c)->device->sms / PAIR * PAIR, THREADS, SHARED_BYTES };
    auto kernel =
        rows->dt == DT_BF16 ? multiply_groups_hopper<bf16, F> : multiply_groups_hopper<half, F>;
    LAUNCH(cuda_of(c), s, kernel, g);
    return true;
}

extern "C" bool cuda_grouped_hopper(const op_call *c) {
    if (!can_multiply(c)) return false;
    return c->op == OP_GROUPED_LINEAR         ? run_grouped<FORWARD>(c)
           : c->op == OP_GROUPED_LINEAR_BWD_X ? run_grouped<BACKWARD_X>(c)
                                              : run_grouped<BACKWARD_W>(c);
}
