/* The GEMMs of linear layers on Hopper's tensor cores (compute capability 9.0), in bf16 and fp16. Autotuning
 * (gemm_autotune.c) times them beside cuBLASLt's:
 *
 *     y  = x w^T   A [m, depth]  B [n, depth]   in 16 bits; + bias; GELU, which stores its argument too
 *     dx = dy w    A [m, depth]  B [depth, n]   in 16 bits; times GELU's slope
 *     dw = dy^T x  A [depth, m]  B [depth, n]   in fp32, stored or added
 *
 * Blocks are divided as hopper_tiles.cuh says; clusters and tiles are numbered, so that copiers and multipliers find their
 * tiles by counting.
 *
 * Results in 16 bits are finished beside the next tile's products. At a tile's end the sums get their bias, are rounded and
 * held, two to a register, and the next tile begins; in each of its first 8 stages a multiplying group queues its products and
 * then, while they run, computes and stores an eighth of what it holds, 32 columns:
 *
 *     tensor cores   | stage 0 | stage 1 | ... | stage 7 | ... | last |   | stage 0 | ...
 *     group          | part 0  | part 1  | ... | part 7  |     |      |round| part 0 | ...      of the tile before
 *
 * So what an epilogue computes, reads and stores costs time only where it exceeds the products'. It needs 8 stages: a depth of
 * 512. The argument of a slope comes through the chunk in which its result leaves: TMA copies chunk c + 2 of the sequence
 * once c has been stored.
 *
 * dw has few tiles and a long depth. Clusters take whole tiles while there is one for each; the tiles that are left are
 * divided along their depth, evenly among all clusters:
 *
 *     depth 0 ... share | share ... 2 share | the rest
 *     one cluster a tile, all at the same  | the other clusters, one tile
 *     depth, so that they share operands   | after another
 *
 * Parts of a tile are added in memory (TMA), in any order, to what was there or to zeros; so dw is not bit-exact from run to
 * run.
 *
 * Operand bytes per tile: 2 depth (128 + 256); B is read from L2 once per pair. */
#include "act.cuh"
#include "hopper_tiles.cuh"

enum {
    PARTS = 8, /* of a tile that is finished */
    PART_WORDS = SUMS / 2 / PARTS,
    BAND = 16,        /* tiles across that share their columns in L2 */
    LEAST_STAGES = 4, /* dw: of a cluster */
    STEP_N = 32,      /* dw: widths are multiples of it, the columns of a chunk */
    DENSE_BYTES = RING_BYTES + MULTIPLIERS * CHUNK_BUFFERS * sizeof(uint64_t),
};

#ifndef GEMM_CLUSTERS
#define GEMM_CLUSTERS INT32_MAX /* tests have few, so that each has several tiles */
#endif

enum epilogue { PLAIN, WITH_GELU, WITH_SLOPE };

struct dense_args {
    CUtensorMap a, b, to,
        pre;          /* pre: GELU's argument, which is stored; or the slope's, which is read */
    const void *bias; /* NULL: none */
    int m, n, depth;
};

struct dense_tile {
    int m, n;
};

static __host__ __device__ __forceinline__ int tiles_of(int size, int of) {
    return (size + of - 1) / of;
}

/* This block's tile of pair `at`. */
static __device__ __forceinline__ dense_tile dense_tile_at(const dense_args &g, int at) {
    pair_place p = tile_pair_at(at, tiles_of(g.m, PAIR_M), tiles_of(g.n, TILE_N), BAND);
    return { p.down * PAIR_M + cluster_rank() * TILE_M, p.across * TILE_N };
}
static __host__ __device__ __forceinline__ int dense_pairs(const dense_args &g) {
    return tiles_of(g.m, PAIR_M) * tiles_of(g.n, TILE_N);
}
static __device__ __forceinline__ int cluster_at() { return (int)blockIdx.x / PAIR; }
static __device__ __forceinline__ int clusters() { return (int)gridDim.x / PAIR; }

/* By one thread. */
template <bool TB> static __device__ void copy_dense(const dense_args &g, tile_ring r) {
    for (int at = cluster_at(); at < dense_pairs(g); at += clusters()) {
        dense_tile t = dense_tile_at(g, at);
        for (int k = 0; k < g.depth; k += DEPTH, r.next()) {
            barrier_wait(&r.empty[r.at], r.phase ^ 1);
            copy_stage<false, TB>(r, &g.a, &g.b, { t.m, t.n, k, TILE_N, 0, 0 });
        }
    }
}

/* ---- results in 16 bits ----------------------------------------------------------------------------- */
/* Finishes tiles whose rounded sums a multiplying group holds. */
template <class T, epilogue E> struct finisher {
    char *chunks;     /* the group's */
    uint64_t *loaded; /* of each chunk; WITH_SLOPE */
    int half;
    bool one; /* this thread gives TMA its orders */

    /* Copies the slope's argument of chunk c. */
    __device__ __forceinline__ void load(const dense_args &g, const dense_tile &t, int c) const {
        int at = c % CHUNK_BUFFERS;
        barrier_expect(&loaded[at], BOX_BYTES);
        copy_box_async(chunks + at * BOX_BYTES, &g.pre, t.n + 64 * c, t.m + 64 * half, 0,
                       &loaded[at]);
    }
    /* The same for the chunk that has the buffer of chunk c of t next: of t, or of the tile after it. */
    __device__ __forceinline__ void load_after(const dense_args &g, const dense_tile &t, int c,
                                               const dense_tile &after) const {
        stores_wait_read<0>();
        int next = c + CHUNK_BUFFERS, all = TILE_N / 64;
        if (next < all)
            load(g, t, next);
        else if (after.m >= 0)
            load(g, after, next - all);
    }
    __device__ __forceinline__ void store(const CUtensorMap *to, const char *chunk,
                                          const dense_tile &t, int c) const {
        store_box_async(to, chunk, t.n + 64 * c, t.m + 64 * half, 0);
    }

    /* Part p of tile t: 32 columns of this thread's `held`. @param after the tile that is next held; m < 0: none */
    __device__ __forceinline__ void part(const dense_args &g, const dense_tile &t,
                                         const dense_tile &after, const uint32_t *held,
                                         int p) const {
        int c = p / 2, buffer = E == WITH_GELU ? 1 : c % CHUNK_BUFFERS;
        char *chunk = chunks + buffer * BOX_BYTES, *pre = chunks;
        bool begins = p % 2 == 0;
        if (begins && E == WITH_SLOPE) {
            if (one && c > 0) load_after(g, t, c - 1, after);
            barrier_wait(&loaded[buffer], c / CHUNK_BUFFERS);
        } else if (begins) { /* chunks that earlier stores still read */
            if (one) stores_wait_read<E == WITH_GELU ? 0 : CHUNK_BUFFERS - 1>();
            barrier_sync(1 + half, GROUP_THREADS);
        }
        int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
        int line = warp * 16 + lane % 16, piece = lane / 16 + 4 * (p % 2);
#pragma unroll
        for (int j = 0; j < 4; j += 2) { /* see put_lines */
            uint32_t v[4], x[4];
            char *at = swizzled(chunk, line, piece + j);
            if (E == WITH_SLOPE) load_matrices(x, at);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = held[2 * j + i];
                float2 y = two_of(T(), v[i]);
                if (E == WITH_GELU) {
                    x[i] = v[i];
                    v[i] = pack_two(T(), gelu(y.x, ACT_GELU_TANH), gelu(y.y, ACT_GELU_TANH));
                } else if (E == WITH_SLOPE) {
                    float2 z = two_of(T(), x[i]);
                    v[i] = pack_two(T(), y.x * gelu_derivative(z.x, ACT_GELU_TANH),
                                    y.y * gelu_derivative(z.y, ACT_GELU_TANH));
                }
            }
            store_matrices(at, v);
            if (E == WITH_GELU) store_matrices(swizzled(pre, line, piece + j), x);
        }
        if (begins) return;
        fence_async();
        barrier_sync(1 + half, GROUP_THREADS);
        if (!one) return;
        store(&g.to, chunk, t, c);
        if (E == WITH_GELU) store(&g.pre, pre, t, c);
        stores_commit();
    }
};

/* The bias of this thread's columns, two to a word. */
template <class T>
static __device__ __forceinline__ void read_bias(const dense_args &g, const dense_tile &t,
                                                 uint32_t (&bias)[SUMS / 4]) {
    int n = t.n + threadIdx.x % 4 * 2;
    const T *from = (const T *)g.bias;
#pragma unroll
    for (int j = 0; j < SUMS / 4; j++)
        bias[j] = from && n + 8 * j < g.n ? *(const uint32_t *)(from + n + 8 * j) : 0;
}

template <class T, bool TB, epilogue E>
static __device__ void multiply_dense(const dense_args &g, tile_ring r) {
    int half = half_of_tile();
    finisher<T, E> f = { r.chunks(half), r.end() + half * CHUNK_BUFFERS, half,
                         threadIdx.x % GROUP_THREADS == 0 };
    uint32_t held[SUMS / 2];
    dense_tile last = { -1, 0 };
    for (int at = cluster_at(); at < dense_pairs(g); at += clusters()) {
        dense_tile t = dense_tile_at(g, at);
        float d[SUMS];
        int before = -1;
        if (E == WITH_SLOPE && last.m < 0 && f.one) {
            f.load(g, t, 0);
            f.load(g, t, 1);
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            multiply_stage<T, TILE_N, false, TB>(d, r, half, p > 0);
            if (last.m >= 0) f.part(g, last, t, &held[p * PART_WORDS], p);
            end_stage(r, before);
        }
        if (E == WITH_SLOPE && last.m >= 0 && f.one) f.load_after(g, last, 3, t);
        uint32_t bias[SUMS / 4];
        if (E != WITH_SLOPE) read_bias<T>(g, t, bias);
#pragma unroll 1
        for (int k = PARTS * DEPTH; k < g.depth; k += DEPTH) {
            multiply_stage<T, TILE_N, false, TB>(d, r, half, true);
            end_stage(r, before);
        }
        end_tile(r, before);
#pragma unroll
        for (int j = 0; j < SUMS / 4; j++) {
            float2 b = { 0, 0 };
            if (E != WITH_SLOPE) b = two_of(T(), bias[j]);
#pragma unroll
            for (int h = 0; h < 2; h++)
                held[2 * j + h] = pack_two(T(), d[4 * j + 2 * h] + b.x, d[4 * j + 2 * h + 1] + b.y);
        }
        last = t;
    }
    if (last.m >= 0)
#pragma unroll
        for (int p = 0; p < PARTS; p++) f.part(g, last, { -1, 0 }, &held[p * PART_WORDS], p);
    stores_wait();
}

template <class T, bool TB, epilogue E>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_dense_hopper(const __grid_constant__ dense_args g) {
    DYNAMIC_SHARED(char, memory);
    tile_ring r = ring_open(memory, MULTIPLIERS * CHUNK_BUFFERS);
    if (threadIdx.x < GROUP_THREADS) {
        registers_keep<24>();
        if (threadIdx.x == 0) copy_dense<TB>(g, r);
        __syncwarp();
    } else {
        registers_take<240>();
        multiply_dense<T, TB, E>(g, r);
        __syncwarp();
    }
    cluster_sync(); /* the other block still copies to this one's memory until it is done */
}

/* ---- gradients of weights ---------------------------------------------------------------------------- */
struct weight_args {
    CUtensorMap a, b, to;
    float alpha;
    bool add; /* to what is there; else parts of tiles alone are added */
    int m, n, depth;
    int waves;  /* whole tiles of each cluster */
    int left;   /* tiles that are divided */
    int share;  /* stages of a part of them, and how many parts are computed side by side ... */
    int groups; /* ... by as many clusters as tiles are left */
    int rest,
        each; /* stages of a tile after these parts; of each other cluster, of all tiles together */
    int down, across; /* pairs of tiles */
};

/* The stages of a pair of tiles that one cluster computes. */
struct tile_span {
    int tile, from, to; /* stages */
};
struct tile_span_walk {
    int wave, unit; /* whole tiles behind it; stages of the rest behind it */

    __device__ __forceinline__ bool next(const weight_args &g, tile_span &s) {
        int stages = tiles_of(g.depth, DEPTH), at = cluster_at(), first = g.waves * clusters();
        if (wave < g.waves) {
            s = { wave++ * clusters() + at, 0, stages };
            return true;
        }
        if (at < g.groups * g.left) {
            int from = at / g.left * g.share;
            s = { first + at % g.left, from, min(stages, from + g.share) };
            return wave++ == g.waves && s.from < s.to;
        }
        int begin = (at - g.groups * g.left) * g.each + unit, end = begin - unit + g.each;
        end = min(end, g.left * g.rest);
        if (begin >= end) return false;
        int from = begin % g.rest, count = min(g.rest - from, end - begin);
        from += g.groups * g.share;
        s = { first + begin / g.rest, from, from + count };
        unit += count;
        return true;
    }
};

/* Where a span's tile is: this block's. */
struct weight_tile {
    int m, n, width;
};
static __device__ __forceinline__ weight_tile weight_tile_at(const weight_args &g, int at) {
    int steps = tiles_of(g.n, STEP_N), column = at % g.across;
    int n = edge_at(column, g.across, steps), end = edge_at(column + 1, g.across, steps);
    return { at / g.across * PAIR_M + cluster_rank() * TILE_M, n * STEP_N, (end - n) * STEP_N };
}

/* By one thread. */
static __device__ void copy_weights(const weight_args &g, tile_ring r) {
    tile_span_walk walk = { 0, 0 };
    tile_span s;
    while (walk.next(g, s)) {
        weight_tile t = weight_tile_at(g, s.tile);
        for (int k = s.from; k < s.to; k++, r.next()) {
            barrier_wait(&r.empty[r.at], r.phase ^ 1);
            copy_stage<true, true>(r, &g.a, &g.b, { t.m, t.n, k * DEPTH, t.width, 0, 0 });
        }
    }
}

template <class T, int N>
static __device__ __forceinline__ void multiply_span(float (&d)[SUMS], tile_ring &r, int half,
                                                     const tile_span &s) {
    int before = -1;
#pragma unroll 1
    for (int k = s.from; k < s.to; k++) {
        multiply_stage<T, N, true, true>(d, r, half, k > s.from);
        end_stage(r, before);
    }
    end_tile(r, before);
}

/* Stores this group's 64 rows of a span, or adds them. @param turn which of its chunks is next */
static __device__ void write_span(const weight_args &g, const float (&d)[SUMS],
                                  const weight_tile &t, bool add, char *chunks, int half,
                                  int &turn) {
    bool one = threadIdx.x % GROUP_THREADS == 0;
#pragma unroll
    for (int c = 0; c < TILE_N / STEP_N; c++) {
        if (c * STEP_N >= t.width) break;
        float v[STEP_N /
                2]; /* a copy: registers of wgmma that change hands in between would serialize it */
#pragma unroll
        for (int i = 0; i < STEP_N / 2; i++) v[i] = g.alpha * d[c * STEP_N / 2 + i];
        char *chunk = chunks + turn * BOX_BYTES;
        turn ^= 1;
        if (one) stores_wait_read<CHUNK_BUFFERS - 1>();
        barrier_sync(1 + half, GROUP_THREADS);
        put_gradients(chunk, v);
        fence_async();
        barrier_sync(1 + half, GROUP_THREADS);
        if (!one) continue;
        int n = t.n + c * STEP_N, m = t.m + 64 * half;
        if (add)
            add_box_async(&g.to, chunk, n, m, 0);
        else
            store_box_async(&g.to, chunk, n, m, 0);
        stores_commit();
    }
}

template <class T> static __device__ void multiply_weights(const weight_args &g, tile_ring r) {
    int half = half_of_tile(), turn = 0, stages = tiles_of(g.depth, DEPTH);
    tile_span_walk walk = { 0, 0 };
    tile_span s;
    while (walk.next(g, s)) {
        s = { uniform(s.tile), uniform(s.from), uniform(s.to) };
        weight_tile t = weight_tile_at(g, s.tile);
        if (uniform(t.m + 64 * half >= g.m)) {
            skip_stages(r, half, s.to - s.from);
            continue;
        }
        float d[SUMS];
        switch (uniform(t.width / STEP_N)) {
#define CASE(width)                                                                                \
    case width / STEP_N: multiply_span<T, width>(d, r, half, s); break
            CASE(32);
            CASE(64);
            CASE(96);
            CASE(128);
            CASE(160);
            CASE(192);
            CASE(224);
            CASE(256);
#undef CASE
        }
        bool whole = s.from == 0 && s.to == stages;
        write_span(g, d, t, g.add || !whole, r.chunks(half), half, turn);
    }
    stores_wait();
}

template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_weights_hopper(const __grid_constant__ weight_args g) {
    DYNAMIC_SHARED(char, memory);
    tile_ring r = ring_open(memory, 0);
    if (threadIdx.x < GROUP_THREADS) {
        registers_keep<24>();
        if (threadIdx.x == 0) copy_weights(g, r);
        __syncwarp();
    } else {
        registers_take<240>();
        multiply_weights<T>(g, r);
        __syncwarp();
    }
    cluster_sync(); /* the other block still copies to this one's memory until it is done */
}

/* ---- calls ----------------------------------------------------------------------------------------- */
/* Describes a matrix with this stride, in boxes of this many lines. @return false where TMA cannot copy it */
static bool encode_matrix(CUtensorMap *map, const void *data, dtype dt, int64_t rows, int64_t cols,
                          int64_t stride, int lines) {
    int64_t dim[] = { rows, cols };
    tensor t = tensor_of((void *)data, dt, 2, dim);
    return is_aligned(&t) && stride % 8 == 0 && encode_strided(map, &t, stride, 1, lines);
}
static bool encode_operands(const cuda_gemm *g, CUtensorMap *a, CUtensorMap *b) {
    return encode_matrix(a, g->a, g->at, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda, 64) &&
           encode_matrix(b, g->b, g->bt, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb,
                         HALF_LINES);
}

/* The launch of clusters for this much work. @param least of it, that is worth a cluster */
static launch_shape shape_for(const cuda_context *x, int64_t work, int64_t least, size_t shared) {
    int64_t most = MIN(x->device->sms / PAIR, GEMM_CLUSTERS);
    int64_t clusters = MAX(1, MIN(most, work / least));
    launch_shape s = { (unsigned)clusters * PAIR, THREADS, shared };
    s.cluster = PAIR;
    return s;
}

template <class T> static bool run_dense(cuda_context *x, const cuda_gemm *g, bool launch) {
    dense_args d = {};
    bool keeps = g->gelu || g->dgelu;
    bool two_by_two = !g->bias || (g->bias_t == g->ct && (uintptr_t)g->bias % 4 == 0);
    if (g->k < PARTS * DEPTH || (g->alpha != 0 && g->alpha != 1) || !two_by_two ||
        (g->gelu && !g->tb) || (g->dgelu && g->tb) || /* as linear layers have them */
        !encode_operands(g, &d.a, &d.b) ||
        !encode_matrix(&d.to, g->c, g->ct, g->m, g->n, g->ldc, 64) ||
        (keeps && !encode_matrix(&d.pre, g->pre, g->ct, g->m, g->n, g->ldc, 64)))
        return false;
    if (!launch) return true;
    d.bias = g->bias;
    d.m = (int)g->m, d.n = (int)g->n, d.depth = (int)g->k;
    auto kernel = g->gelu    ? multiply_dense_hopper<T, false, WITH_GELU>
                  : g->dgelu ? multiply_dense_hopper<T, true, WITH_SLOPE>
                  : g->tb    ? multiply_dense_hopper<T, false, PLAIN>
                             : multiply_dense_hopper<T, true, PLAIN>;
    LAUNCH(x, shape_for(x, dense_pairs(d), 1, DENSE_BYTES), kernel, d);
    return true;
}

/* Divides tiles among clusters. */
static void divide_tiles(weight_args *w, int clusters) {
    int stages = tiles_of(w->depth, DEPTH), tiles = w->down * w->across;
    w->waves = tiles / clusters;
    w->left = tiles % clusters;
    if (!w->left) return;
    w->share = tiles_of(w->left * stages, clusters);
    w->groups = clusters / w->left;
    w->rest = MAX(0, stages - w->groups * w->share);
    if (w->rest) w->each = tiles_of(w->rest * w->left, clusters - w->groups * w->left);
}

template <class T> static bool run_weights(cuda_context *x, const cuda_gemm *g, bool launch) {
    weight_args w = {};
    if (g->ldc != g->n || !encode_operands(g, &w.a, &w.b) ||
        !encode_matrix(&w.to, g->c, g->ct, g->m, g->n, g->ldc, 64))
        return false;
    if (!launch) return true;
    w.alpha = g->alpha == 0 ? 1 : g->alpha;
    w.add = g->accumulate;
    w.m = (int)g->m, w.n = (int)g->n, w.depth = (int)g->k;
    w.down = tiles_of(w.m, PAIR_M), w.across = tiles_of(w.n, TILE_N);
    int64_t stages = (int64_t)w.down * w.across * tiles_of(w.depth, DEPTH);
    launch_shape s = shape_for(x, stages, LEAST_STAGES, RING_BYTES);
    int clusters = (int)s.blocks.x / PAIR;
    divide_tiles(&w, clusters);
    int64_t first = (int64_t)w.waves * clusters / w.across * PAIR_M;
    if (w.left && !w.add) /* what parts are added to: the rows of the last tiles */
        CUDA_OK(x, cudaMemsetAsync((float *)g->c + first * g->n, 0,
                                   (size_t)((g->m - first) * g->n) * 4, x->stream));
    LAUNCH(x, s, multiply_weights_hopper<T>, w);
    return true;
}

template <class T> static bool run_on_hopper(cuda_context *x, const cuda_gemm *g, bool launch) {
    bool gradient = g->ta && !g->tb && g->ct == DT_F32 && !g->bias && !g->gelu && !g->dgelu;
    if (gradient) return run_weights<T>(x, g, launch);
    return !g->ta && g->ct == g->at && !g->accumulate && run_dense<T>(x, g, launch);
}
static bool run_type(cuda_context *x, const cuda_gemm *g, bool launch) {
    if (x->device->capability != 9 || g->at != g->bt || g->m > INT32_MAX || g->n > INT32_MAX ||
        g->k > INT32_MAX)
        return false;
    return g->at == DT_BF16  ? run_on_hopper<bf16>(x, g, launch)
           : g->at == DT_F16 ? run_on_hopper<half>(x, g, launch)
                             : false;
}

extern "C" bool cuda_gemm_hopper(cuda_context *x, const cuda_gemm *g) {
    return run_type(x, g, true);
}
extern "C" bool cuda_gemm_hopper_fits(cuda_context *x, const cuda_gemm *g) {
    return run_type(x, g, false);
}
