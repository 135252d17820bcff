/* The GEMMs of ORTHOGONALIZE on Hopper's tensor cores (compute capability 9.0), in bf16 and fp16, for all matrices of
 * a batch in one launch:
 *
 *     symmetric   D = alpha A B^T + beta C + diagonal I    A, B [m, depth] depth contiguous; D, C [m, m]
 *     else        D = A B                                  A [m, depth], B [depth, n] n contiguous
 *
 * D of the first is symmetric by its meaning (B is A, or both are polynomials of one symmetric matrix): only the pairs
 * of tiles on and below the diagonal are computed, and what is below it is stored a second time, transposed. So D is
 * symmetric to the bit although the operands are rounded.
 *
 *     0             a pair is 256 x 256; block 0 of the cluster has its upper half, block 1 its lower
 *     1 2           one: clusters take pairs in this order, matrix after matrix
 *     3 4 5
 *
 * Blocks are divided as in grouped_hopper.cu: a warp group copies operands into a ring of stages, two multiply 64 rows
 * of the tile each. All tiles have the same depth, so that copier and multipliers find their tiles by counting.
 * Elements outside a matrix are read as zeros and not written (TMA). Deterministic, and the sums of a matrix do not depend
 * on the others of its batch.
 *
 * Operand bytes per tile: 2 depth (128 + 256); B is read from L2 once per pair. */
#include "hopper_tiles.cuh"

struct batch_args {
    CUtensorMap a, b, to;
    const void *add; /* C; NULL: none */
    float alpha, beta, diagonal;
    int m, n, depth, batch;
};

/* ---- tiles ----------------------------------------------------------------------------------------- */
struct batch_tile {
    int z; /* which matrix */
    int m, n;
};

/* How many pairs of tiles the matrices have. */
template <bool SYMMETRIC> static __host__ __device__ int pairs_of(const batch_args &g) {
    int down = (g.m + PAIR_M - 1) / PAIR_M, across = (g.n + TILE_N - 1) / TILE_N;
    return SYMMETRIC ? down * (down + 1) / 2 : down * across;
}

/* This block's tile of a pair: rows alternate fastest, and share their columns in L2. */
template <bool SYMMETRIC>
static __device__ __forceinline__ batch_tile tile_at(const batch_args &g, int at) {
    int each = pairs_of<SYMMETRIC>(g), in = at % each, down, across;
    if (SYMMETRIC) {
        down = (int)((sqrtf(8.0f * in + 1) - 1) / 2);
        while ((down + 1) * (down + 2) / 2 <= in) down++;
        while (down * (down + 1) / 2 > in) down--;
        across = in - down * (down + 1) / 2;
    } else {
        int rows = (g.m + PAIR_M - 1) / PAIR_M;
        down = in % rows;
        across = in / rows;
    }
    return { at / each, (down * PAIR + cluster_rank()) * TILE_M, across * TILE_N };
}

/* ---- copying: one thread ----------------------------------------------------------------------------- */
template <bool SYMMETRIC>
static __device__ void copy_batch_tiles(const batch_args &g, tile_ring r) {
    int end = pairs_of<SYMMETRIC>(g) * g.batch;
    for (int at = blockIdx.x / PAIR; at < end; at += gridDim.x / PAIR) {
        batch_tile t = tile_at<SYMMETRIC>(g, at);
        for (int k = 0; k < g.depth; k += DEPTH, r.next()) {
            barrier_wait(&r.empty[r.at], r.phase ^ 1);
            copy_stage<false, !SYMMETRIC>(r, &g.a, &g.b, { t.m, t.n, k, TILE_N, t.z, t.z });
        }
    }
}

/* ---- multiplying ----------------------------------------------------------------------------------- */
/* Sums 64 rows of the tile over its depth. @param half which 64 */
template <class T, int TB>
static __device__ __forceinline__ void multiply_batch_depth(float (&d)[SUMS], tile_ring &r,
                                                            int half, int depth) {
    int before = -1;
#pragma unroll 1
    for (int k = 0; k < depth; k += DEPTH) {
        multiply_stage<T, TILE_N, false, TB>(d, r, half, k > 0);
        end_stage(r, before);
    }
    end_tile(r, before);
}

/* d = alpha d + beta C + diagonal I, of 64 columns: see put_transposed for which elements a thread has. */
template <class T>
static __device__ __forceinline__ void add_to_sums(const batch_args &g, float *d, int z, int m,
                                                   int n) {
    int warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    m += warp * 16 + lane / 4, n += lane % 4 * 2;
    const T *add = (const T *)g.add + ((int64_t)z * g.m + m) * g.n + n;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float *v = &d[4 * j + 2 * h];
            int row = m + 8 * h, col = n + 8 * j;
            float2 c = { 0, 0 };
            if (g.add && row < g.m && col < g.n)
                c = two_of(T(), *(const uint32_t *)(add + 8 * h * g.n + 8 * j));
            v[0] = g.alpha * v[0] + g.beta * c.x + (row == col ? g.diagonal : 0);
            v[1] = g.alpha * v[1] + g.beta * c.y + (row == col + 1 ? g.diagonal : 0);
        }
}

/* Copies what is below the diagonal of a chunk of 64 x 64 to above it. */
template <class T> static __device__ __forceinline__ void mirror_chunk(char *chunk) {
    for (int i = threadIdx.x % GROUP_THREADS; i < 64 * 64; i += GROUP_THREADS) {
        int row = i / 64, col = i % 64;
        if (col > row)
            ((T *)swizzled(chunk, row, col / 8))[col % 8] =
                ((T *)swizzled(chunk, col, row / 8))[row % 8];
    }
}

/* Writes this warp group's 64 rows of the tile, in chunks of 64 columns: of a symmetric matrix those below the
 * diagonal also transposed, and none above it.
 * @param chunks two buffers of its own; the turn's is free once the store before the last has read it */
template <class T, bool SYMMETRIC>
static __device__ void write_batch_tile(const batch_args &g, float (&d)[SUMS], const batch_tile &t,
                                        int half, char *chunks, int &turn) {
    int m = t.m + 64 * half;
    bool one = threadIdx.x % GROUP_THREADS == 0;
    if (m >= g.m) return;
#pragma unroll
    for (int c = 0; c < TILE_N / 64; c++) {
        int n = t.n + 64 * c, sides = SYMMETRIC && n < m ? 2 : 1;
        if (n >= g.n || (SYMMETRIC && n > m)) break;
        if (SYMMETRIC) add_to_sums<T>(g, &d[32 * c], t.z, m, n);
#pragma unroll 1
        for (int side = 0; side < sides; side++, turn ^= 1) {
            char *chunk = chunks + turn * BOX_BYTES;
            if (one) stores_wait_read<CHUNK_BUFFERS - 1>();
            barrier_sync(1 + half, GROUP_THREADS);
            if (side)
                put_transposed<T>(chunk, &d[32 * c]);
            else
                put_lines<T>(chunk, &d[32 * c]);
            if (SYMMETRIC && n == m) {
                barrier_sync(1 + half, GROUP_THREADS);
                mirror_chunk<T>(chunk);
            }
            fence_async();
            barrier_sync(1 + half, GROUP_THREADS);
            if (!one) continue;
            store_box_async(&g.to, chunk, side ? m : n, side ? n : m, t.z);
            stores_commit();
        }
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------ */
template <class T, bool SYMMETRIC>
static __device__ void multiply_batch_tiles(const batch_args &g, tile_ring r) {
    int half = half_of_tile(), turn = 0;
    char *chunks = r.chunks(half);
    int end = pairs_of<SYMMETRIC>(g) * g.batch;
    for (int at = blockIdx.x / PAIR; at < end; at += gridDim.x / PAIR) {
        float d[SUMS];
        multiply_batch_depth<T, !SYMMETRIC>(d, r, half, g.depth);
        write_batch_tile<T, SYMMETRIC>(g, d, tile_at<SYMMETRIC>(g, at), half, chunks, turn);
    }
    stores_wait();
}

template <class T, bool SYMMETRIC>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_batch_hopper(const __grid_constant__ batch_args g) {
    DYNAMIC_SHARED(char, memory);
    tile_ring r = ring_open(memory, 0);
    if (threadIdx.x < GROUP_THREADS) {
        registers_keep<40>();
        if (threadIdx.x == 0) copy_batch_tiles<SYMMETRIC>(g, r);
        __syncwarp();
    } else {
        registers_take<232>();
        multiply_batch_tiles<T, SYMMETRIC>(g, r);
        __syncwarp();
    }
    cluster_sync(); /* the other block still copies to this one's memory until it is done */
}

/* ---- calls ----------------------------------------------------------------------------------------- */
/* Describes t, [batch, rows, cols]. */
static bool encode_batch(CUtensorMap *map, const tensor *t, int lines) {
    int64_t dim[] = { t->dim[0] * t->dim[1], t->dim[2] };
    tensor flat = tensor_of(t->data, t->dt, 2, dim);
    return is_aligned(&flat) && encode_map(map, &flat, t->dim[0], lines);
}

extern "C" bool cuda_batch_gemm_hopper(cuda_context *x, const cuda_batch_gemm *c) {
    batch_args g;
    if (x->device->capability != 9 || (c->a.dt != DT_BF16 && c->a.dt != DT_F16) ||
        !encode_batch(&g.a, &c->a, 64) || !encode_batch(&g.b, &c->b, HALF_LINES) ||
        !encode_batch(&g.to, &c->to, 64))
        return false;
    g.add = c->add.data;
    g.alpha = c->alpha, g.beta = c->beta, g.diagonal = c->diagonal;
    g.batch = (int)c->to.dim[0];
    g.m = (int)c->to.dim[1], g.n = (int)c->to.dim[2], g.depth = (int)c->a.dim[2];
    launch_shape s = { (unsigned)x->device->sms / PAIR * PAIR, THREADS, RING_BYTES };
    s.cluster = PAIR;
    bool bf = c->a.dt == DT_BF16;
    auto symmetric = bf ? multiply_batch_hopper<bf16, true> : multiply_batch_hopper<half, true>;
    auto plain = bf ? multiply_batch_hopper<bf16, false> : multiply_batch_hopper<half, false>;
    LAUNCH(x, s, c->symmetric ? symmetric : plain, g);
    return true;
}
