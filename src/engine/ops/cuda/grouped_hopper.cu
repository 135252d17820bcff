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
 * a ring of stages, the other two multiply (wgmma), 64 rows of the tile each (hopper_tiles.cuh). A tile is written while
 * the next one is computed. Only the copier reads the groups: each stage names the tile it belongs to.
 * Rows beyond a group's end are computed from the next group's and not written; beyond the depth of a group
 * (BWD_W, whose depth is rows) the operands are zeroed in shared memory. Rows of no group are a group of depth 0.
 * Deterministic: the order of sums depends on nothing but the group's size, whichever block computes a tile.
 *
 * Operand bytes per tile: 2 depth (128 + 256); B is read from L2 once per pair, and a band of pairs shares
 * its columns in L2. */
#include "hopper_tiles.cuh"
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
    int first;        /* BACKWARD_W: the first of the `depth` rows; else 0 */
};

static __host__ __device__ __forceinline__ int round_to(int x, int to) {
    return (x + to - 1) / to * to;
}

enum {
    SHARED_BYTES =
        RING_BYTES + TURNS * (sizeof(uint64_t) + sizeof(int)) + STAGES * sizeof(group_tile)
};

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
        down = (g.m + PAIR_M - 1) / PAIR_M;
        enter(g, 0);
    }
    /* Where tile i across begins: the first ones have a step more where they cannot all be equal. */
    __device__ __forceinline__ int edge(int i) const {
        return F == BACKWARD_W ? i * TILE_N : edge_at(i, across, steps) * STEP_N;
    }
    /* @return this block's tile of pair `at`, which is later than the last. */
    __device__ __forceinline__ group_tile find(const grouped_args &g, int at) {
        int groups = g.experts + (F != BACKWARD_W);
        while (at - before >= down * across) {
            before += down * across;
            if (group + 1 == groups) return { -1 };
            enter(g, group + 1);
        }
        pair_place p = tile_pair_at(at - before, down, across, BAND);
        int n = edge(p.across), end = F == BACKWARD_W ? g.n : rows;
        group_tile t;
        t.group = group;
        t.m = p.down * PAIR_M + cluster_rank() * TILE_M;
        t.n = F == BACKWARD_W ? n : first + n;
        t.width = min(edge(p.across + 1), end) - n;
        t.depth = F == BACKWARD_W ? rows : group < g.experts ? g.depth : 0;
        t.first = F == BACKWARD_W ? first : 0;
        return t;
    }
};

struct ring : tile_ring {
    group_tile *tile; /* of each stage */
};

/* ---- copying --------------------------------------------------------------------------------------- */
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
                copy_stage<F != FORWARD, F == BACKWARD_W>(
                    r, &g.a, &g.b,
                    { t.m, t.n, t.first + k, t.width, F == BACKWARD_W ? 0 : t.group, 0 });
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

/* Queues the products of a stage of BACKWARD_W, of which `rows` are the group's. */
template <class T, int N>
static __device__ __forceinline__ void multiply_group_rows(float (&d)[SUMS], const ring &r,
                                                           int half, int rows, bool add) {
    constexpr int STEP = 16 * LINE_BYTES >> 4; /* 16 lines */
    barrier_wait(&r.full[r.at], r.phase);
    if (rows < DEPTH) zero_beyond(r.stage(), half, rows);
    uint64_t a = smem_descriptor(r.stage() + half * BOX_BYTES, BOX_BYTES);
    uint64_t b = smem_descriptor(r.stage() + A_BYTES, BOX_BYTES);
    multiply_begin();
#pragma unroll 1
    for (int i = 0; i < min(rows, (int)DEPTH); i += 16, a += STEP, b += STEP)
        multiplier<T, N>::template multiply16<true, true>(d, a, b, add || i > 0);
    multiply_commit();
}

/* Sums 64 rows of the tile over its depth. @param half which 64 */
template <class T, form F, int N>
static __device__ __forceinline__ void multiply_depth(float (&d)[SUMS], ring &r, int half,
                                                      int depth) {
    int before = -1;
#pragma unroll 1
    for (int k = 0; k < depth; k += DEPTH) {
        if (F == BACKWARD_W)
            multiply_group_rows<T, N>(d, r, half, depth - k, k > 0);
        else
            multiply_stage<T, N, F != FORWARD, false>(d, r, half, k > 0);
        end_stage(r, before);
    }
    end_tile(r, before);
}

/* ---- writing --------------------------------------------------------------------------------------- */
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
template <class T, form F> static __device__ void multiply_tiles(const grouped_args &g, ring r) {
    int half = half_of_tile();
    char *chunks = r.chunks(half);
    for (;;) {
        barrier_wait(&r.full[r.at], r.phase);
        group_tile t = r.tile[r.at];
        if (t.group < 0) break;
        bool beyond = t.m + 64 * half >= g.m;
        if (t.depth == 0 || beyond) {
            barrier_sync(1 + half, GROUP_THREADS); /* all threads know the tile: its stage may go */
            skip_stages(r, half, max((t.depth + DEPTH - 1) / DEPTH, 1));
            if (!beyond) zero_tile<F>(g, t, half);
            continue;
        }
        float d[SUMS];
        int depth = uniform(t.depth);
        if constexpr (F == BACKWARD_W) {
            multiply_depth<T, F, TILE_N>(d, r, half, depth); /* its widths are the model's */
        } else {
            switch (uniform((t.width + STEP_N - 1) / STEP_N)) {
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
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_groups_hopper(const __grid_constant__ grouped_args g) {
    DYNAMIC_SHARED(char, memory);
    ring r = { ring_open(memory, TURNS) };
    uint64_t *told = r.end();
    int *pair = (int *)(told + TURNS);
    r.tile = (group_tile *)(pair + TURNS);
    if (threadIdx.x < GROUP_THREADS) {
        registers_keep<40>();
        if (threadIdx.x == 0) copy_tiles<F>(g, r, { pair, told, 0, 0 });
        __syncwarp();
    } else {
        registers_take<232>();
        multiply_tiles<T, F>(g, r);
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
    s.cluster = PAIR;
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
