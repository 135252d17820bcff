/* Attention on tensor cores (mma, compute capability 8.0 and above) for 16-bit operands: with dropout, whose mask must
 * be the same on every backend and layout, for blocks of keys, and for documents past the slots that cuDNN has.
 * attention.cu has what these kernels do not take (fp32, decoding) and defines what they compute.
 *
 *     attend_mma          grid: sets of ROWS queries x query heads; o and lse
 *     grad_queries_mma    the same grid; dq, and rowdot = sum of do x o for the next kernel
 *     grad_keys_mma       grid: sets of ROWS keys x key heads; dk and dv over all queries that see them
 *
 * A block has four warps with 16 rows of the set each. The other side of the scores passes through shared memory in
 * tiles, of which the next is copied while this one is multiplied:
 *
 *     stays in shared memory            passes through it in tiles, twice buffered
 *     queries (and do)                  64 keys and their values
 *     keys and values                   64 queries and their do, 32 where heads are wide
 *
 * Heads have DIM columns in shared memory, of which those past the head's size are zeros. Registers do not hold dk
 * and dv of heads wider than 128: grad_keys_mma then computes one of the two at a time.
 *
 * Scores stay in the registers of the product that made them, whose layout is that of a left operand of the next one.
 *
 * Dropout draws one Philox block for each query and sixteen keys that share a counter (ops/attention_drop.h), as two bytes
 * in shared memory: bit k is set where key k of eight is kept. Deterministic: no atomics, every sum has an order
 * that the shapes and documents fix. */
#ifndef INGOT_OPS_CUDA_ATTENTION_MMA_CUH
#define INGOT_OPS_CUDA_ATTENTION_MMA_CUH

#include "attention.cuh"

enum {
    MMA_WARPS = 4,
    MMA_THREADS = MMA_WARPS * WARP,
    ROWS = 16 * MMA_WARPS, /* of a set */
    KEYS = 64,             /* of a tile */
    SIXTEEN = ATTENTION_DROP_KEYS,
    PAD = 8,             /* elements at the end of a row in shared memory, against bank conflicts */
    STATIC_SHARED = 1024 /* bytes besides, at most */
};

/* ---- tiles in shared memory ---------------------------------------------------------------------- */
/* Queues copies of `lines` rows of a head from row `row` on; rows from `end` on are zeros. */
template <class T, int DIM>
static __device__ __forceinline__ void queue_rows(T *to, const void *p, int64_t stride, int64_t col,
                                                  int64_t row, int64_t end, int lines, int dim) {
    enum { PIECES = DIM / EIGHT };
    for (int e = threadIdx.x; e < lines * PIECES; e += MMA_THREADS) {
        int r = e / PIECES, c = e % PIECES * EIGHT;
        T *at = to + r * (DIM + PAD) + c;
        if (row + r < end && c < dim)
            copy_async(at, (const T *)p + (row + r) * stride + col + c);
        else
            *(pack16 *)at = pack16();
    }
}

/* The bit of key k of sixteen, as keep_bits has them. */
static __device__ __forceinline__ constexpr int kept_bit(int k) { return k % 4 * 8 + k / 4; }

/* Which of the sixteen keys that share a counter are kept: bit kept_bit(k). Compares four bytes at a time: with its upper bit
 * set, a byte does not borrow from the next when the lower seven of `below` are subtracted. */
static __device__ __forceinline__ uint32_t keep_bits(const uint32_t (&word)[4], uint32_t below) {
    uint32_t each = below * 0x01010101, upper = each & 0x80 ? 0 : ~0u, kept = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t x = word[w], lower = (x | 0x80808080) - (each & 0x7f7f7f7f);
        kept |= (((x & lower) | ((x | lower) & upper)) >> (7 - w)) & 0x01010101 << w;
    }
    return kept;
}

/* Draws the sixteen keys whose ids share a counter. @param id of one of them, or its low half */
static __device__ __forceinline__ uint32_t draw_sixteen(const att &a, uint2 key, int head,
                                                        uint64_t query, int64_t id) {
    uint32_t word[4];
    philox<ATTENTION_DROP_ROUNDS>(key,
                                  make_uint4(a.drop.site, (uint32_t)query, (uint32_t)(query >> 32),
                                             attention_drop_counter(&a.drop, head, id)),
                                  word);
    return keep_bits(word, a.drop.below);
}

/* Which of sixteen keys from j on a query keeps, whatever their ids are. */
static __device__ uint32_t kept_keys(const att &a, int head, uint64_t query, int64_t j) {
    uint2 key = make_uint2(a.step->dropout.k[0], a.step->dropout.k[1]);
    uint32_t kept = 0, drawn = 0;
    int64_t last = 0;
#pragma unroll 1
    for (int k = 0; k < SIXTEEN && j + k < a.n_keys; k++) {
        int64_t id = a.key_id[j + k];
        if (k == 0 || id / SIXTEEN != last) drawn = draw_sixteen(a, key, head, query, id);
        last = id / SIXTEEN;
        kept |= (drawn >> kept_bit((int)(id % SIXTEEN)) & 1) << kept_bit(k);
    }
    return kept;
}

/* Draws the decisions of queries [row, row + lines) and COUNT keys from j on: kept[line][COUNT / 8], a bit for each of eight
 * keys. By THREADS_ threads, of which this is number `thread`. */
template <int COUNT, int THREADS_>
static __device__ void draw_kept(const att &a, int head, int64_t row, int lines, int64_t j,
                                 uint8_t *kept, int thread) {
    for (int e = thread; e < lines * (COUNT / SIXTEEN); e += THREADS_) {
        int64_t i = row + e / (COUNT / SIXTEEN), from = j + e % (COUNT / SIXTEEN) * SIXTEEN;
        bool seen = i < a.n && from < a.n_keys && from <= last_key(a, i) &&
                    from + SIXTEEN > first_key(a, i);
        uint32_t own = seen ? kept_keys(a, head, (uint64_t)a.drop.id[i], from) : 0, low = 0,
                 high = 0;
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
            low |= (own >> kept_bit(k) & 1) << k;
            high |= (own >> kept_bit(EIGHT + k) & 1) << k;
        }
        kept[2 * e] = (uint8_t)low, kept[2 * e + 1] = (uint8_t)high;
    }
}

/* ---- products ------------------------------------------------------------------------------------ */
/* The left operand of a product: 16 rows from `row`, 16 columns from `col`. */
template <class T>
static __device__ __forceinline__ void load_left(uint32_t (&a)[4], const T *tile, int ld, int row,
                                                 int col) {
    int lane = threadIdx.x % WARP;
    load_matrices(a, tile + (row + lane % 16) * ld + col + lane / 16 * 8);
}
/* Right operands for 16 columns of the result: b[0], b[1] for the first 8 and b[2], b[3] for the others. The tile has
 * the result's columns as rows ... */
template <class T>
static __device__ __forceinline__ void load_right(uint32_t (&b)[4], const T *tile, int ld, int n,
                                                  int depth) {
    int lane = threadIdx.x % WARP;
    load_matrices(b, tile + (n + lane / 16 * 8 + lane % 8) * ld + depth + lane / 8 % 2 * 8);
}
/* ... or as columns. */
template <class T>
static __device__ __forceinline__ void load_right_across(uint32_t (&b)[4], const T *tile, int ld,
                                                         int depth, int n) {
    int lane = threadIdx.x % WARP;
    load_matrices_transposed(b, tile + (depth + lane % 16) * ld + n + lane / 16 * 8);
}

/* s = rows [row, row + 16) of `left` times the N rows of `right`, transposed. s[n][2 h + i] is row lane / 4 + 8 h,
 * column 8 n + lane % 4 * 2 + i. */
template <class T, int DIM, int N>
static __device__ __forceinline__ void multiply_rows(float (&s)[N / 8][4], const T *left, int row,
                                                     const T *right) {
    enum { LD = DIM + PAD };
#pragma unroll
    for (int n = 0; n < N / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t a[4], b[4];
        load_left(a, left, LD, row, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            load_right(b, right, LD, n, k);
            multiply_16x8x16(T(), s[n / 8], a, b[0], b[1]);
            multiply_16x8x16(T(), s[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

/* out += s (rounded to T) times the N rows of `right`. */
template <class T, int DIM, int N>
static __device__ __forceinline__ void add_product(float (&out)[DIM / 8][4],
                                                   const float (&s)[N / 8][4], const T *right) {
    enum { LD = DIM + PAD };
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        uint32_t a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = pack_two(T(), s[k / 8 + i / 2][i % 2 * 2], s[k / 8 + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < DIM; n += 16) {
            load_right_across(b, right, LD, k, n);
            multiply_16x8x16(T(), out[n / 8], a, b[0], b[1]);
            multiply_16x8x16(T(), out[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

/* Over the four lanes that have columns of one row. */
static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

static __device__ __forceinline__ void write_two(mixed to, int64_t at, float x, float y, bool add) {
    if (add) x += read1(to.p, to.dt, at), y += read1(to.p, to.dt, at + 1);
    if (to.dt == DT_BF16)
        *(uint32_t *)((bf16 *)to.p + at) = pack_two(bf16(), x, y);
    else if (to.dt == DT_F16)
        *(uint32_t *)((half *)to.p + at) = pack_two(half(), x, y);
    else
        *(float2 *)((float *)to.p + at) = make_float2(x, y);
}

/* ---- queries: which keys they see ---------------------------------------------------------------- */
/* The keys that any of the set's queries sees; the first is rounded down so that dropout's sixteens stay together.
 * Ends with the block at a barrier. */
static __device__ __forceinline__ void keys_of_set(const att &a, int64_t first, int count,
                                                   int (&at)[2][MMA_WARPS], int *begin, int *end) {
    int lo = INT32_MAX, hi = 0, r = threadIdx.x % ROWS;
    if (r < count) {
        lo = (int)first_key(a, first + r);
        hi = (int)last_key(a, first + r) + 1;
    }
    for (int o = WARP / 2; o; o >>= 1) {
        lo = min(lo, __shfl_xor_sync(~0u, lo, o));
        hi = max(hi, __shfl_xor_sync(~0u, hi, o));
    }
    if (threadIdx.x % WARP == 0) at[0][threadIdx.x / WARP] = lo, at[1][threadIdx.x / WARP] = hi;
    __syncthreads();
    *begin = at[0][0], *end = at[1][0];
    for (int w = 1; w < MMA_WARPS; w++) *begin = min(*begin, at[0][w]), *end = max(*end, at[1][w]);
    *begin = *begin / EIGHT * EIGHT;
}

/* The two rows of scores of a lane: lane / 4 and 8 below. */
typedef struct two_rows {
    int64_t i[2];
    bool live[2];
    int lo[2], hi[2]; /* first and last key */
} two_rows;

/* @param thread of the 128 that have a set of 64 rows */
static __device__ __forceinline__ two_rows rows_of_lane(const att &a, int64_t first, int count,
                                                        int thread) {
    two_rows t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = thread / WARP * 16 + thread % WARP / 4 + 8 * h;
        t.i[h] = first + r;
        t.live[h] = r < count;
        t.lo[h] = t.live[h] ? (int)first_key(a, t.i[h]) : 1;
        t.hi[h] = t.live[h] ? (int)last_key(a, t.i[h]) : 0;
    }
    return t;
}

/* Loads a tile of keys and of values of a key head. */
template <class T, int DIM>
static __device__ __forceinline__ void load_key_tile(const att &a, int group, int64_t row,
                                                     int64_t end, T *ks, T *vs) {
    int64_t k = a.key_col + group * a.dim, v = a.key_col + (a.kv + group) * a.dim;
    queue_rows<T, DIM>(ks, a.keys, a.key_stride, k, row, end, KEYS, a.dim);
    queue_rows<T, DIM>(vs, a.keys, a.key_stride, v, row, end, KEYS, a.dim);
}

/* The set of this block: the last ones, which see most keys, begin first. */
static __device__ __forceinline__ int64_t first_of_set(const att &a) {
    return first_token(a) + (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
}

/* ---- launches ------------------------------------------------------------------------------------ */
/* Rows that 16 bytes at a time can be copied of. */
static inline bool in_sixteens(const void *p, int64_t stride, int64_t col) {
    return (uintptr_t)p % 16 == 0 && stride % EIGHT == 0 && col % EIGHT == 0;
}

static inline int head_columns(int dim) {
    return dim <= 128 ? (int)align_up((size_t)dim, 32) : (int)align_up((size_t)dim, 64);
}

/* Bytes of shared memory of the largest kernel: grad_queries_mma. */
static inline size_t most_shared(int dim) {
    return (2 * ROWS + 4 * KEYS) * (dim + PAD) * 2 + ROWS * (KEYS / EIGHT);
}

static inline bool takes_mma(const op_call *c, const att &a) {
    const cuda_device *d = cuda_of(c)->device;
    return d->capability >= 8 && !a.pos && (a.qkv_t == DT_BF16 || a.qkv_t == DT_F16) &&
           a.key_t == a.qkv_t && a.dim % EIGHT == 0 && a.dim <= 256 &&
           most_shared(head_columns(a.dim)) + STATIC_SHARED <= (size_t)d->shared &&
           in_sixteens(a.qkv, a.stride, 0) && in_sixteens(a.keys, a.key_stride, a.key_col);
}

/* WITH_HEAD(dim, call): with DIM, the columns of a head in shared memory, as a constant. */
#define WITH_HEAD(dim, ...)                                                                        \
    do switch (head_columns(dim)) {                                                                \
            AS_HEAD(32, __VA_ARGS__);                                                              \
            AS_HEAD(64, __VA_ARGS__);                                                              \
            AS_HEAD(96, __VA_ARGS__);                                                              \
            AS_HEAD(128, __VA_ARGS__);                                                             \
            AS_HEAD(192, __VA_ARGS__);                                                             \
            AS_HEAD(256, __VA_ARGS__);                                                             \
        default: BUG("a head of another size");                                                    \
        }                                                                                          \
    while (0)
#define AS_HEAD(size, ...)                                                                         \
    case size: {                                                                                   \
        enum { DIM = size };                                                                       \
        __VA_ARGS__;                                                                               \
    } break

#endif
