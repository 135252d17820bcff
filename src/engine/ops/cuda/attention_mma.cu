/* Attention on tensor cores (mma, compute capability 8.0 and above) for 16-bit operands: with dropout, whose mask must
 * be the same on every backend and layout, and for blocks of keys. cuDNN does neither. attention.cu has what these
 * kernels do not take (fp32, decoding, other head sizes) and defines what they compute.
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
 * Scores stay in the registers of the product that made them, whose layout is that of a left operand of the next one.
 *
 * Dropout draws one Philox block for each query and eight keys that share a counter (ops/attention_drop.h), as a byte
 * in shared memory: bit k is set where key k of the eight is kept. Deterministic: no atomics, every sum has an order
 * that the shapes and documents fix. */
#include "attention.cuh"

enum {
    MMA_WARPS = 4,
    MMA_THREADS = MMA_WARPS * WARP,
    ROWS = 16 * MMA_WARPS, /* of a set */
    KEYS = 64,             /* of a tile */
    PAD = 8 /* elements at the end of a row in shared memory, against bank conflicts */
};
#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* ---- tiles in shared memory ---------------------------------------------------------------------- */
/* Queues copies of `lines` rows of DIM elements from row `row` on; rows from `end` on are zeros. */
template <class T, int DIM>
static __device__ __forceinline__ void queue_rows(T *to, const void *p, int64_t stride, int64_t col,
                                                 int64_t row, int64_t end, int lines) {
    enum { PIECES = DIM / EIGHT };
    for (int e = threadIdx.x; e < lines * PIECES; e += MMA_THREADS) {
        int r = e / PIECES, c = e % PIECES * EIGHT;
        T *at = to + r * (DIM + PAD) + c;
        if (row + r < end)
            copy_async(at, (const T *)p + (row + r) * stride + col + c);
        else
            *(pack16 *)at = pack16();
    }
}

/* Which of eight keys from j on a query keeps, a bit each. */
static __device__ uint32_t kept_keys(const att &a, int head, uint64_t query, int64_t j) {
    int64_t left = min(a.n_keys - j, (int64_t)EIGHT), id[EIGHT];
    bool together = left == EIGHT;
    uint32_t word[4], kept = 0, drawn = 0;
    uint2 key = make_uint2(a.step->dropout.k[0], a.step->dropout.k[1]);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        id[k] = k < left ? a.key_id[j + k] : 0;
        together = together && id[k] == id[0] + k;
    }
    if (together && id[0] % ATTENTION_DROP_KEYS == 0) {
        philox(key,
               make_uint4(a.drop.site, (uint32_t)query, (uint32_t)(query >> 32),
                          attention_drop_counter(&a.drop, head, id[0])),
               word);
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            kept |= (uint32_t)((word[k / 2] >> k % 2 * 16 & 0xffff) >= a.drop.below) << k;
        return kept;
    }
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        uint32_t counter = attention_drop_counter(&a.drop, head, id[k]);
        if (k == 0 || counter != drawn)
            philox(key, make_uint4(a.drop.site, (uint32_t)query, (uint32_t)(query >> 32), counter),
                   word);
        drawn = counter;
        int half = (int)((uint64_t)id[k] % ATTENTION_DROP_KEYS);
        uint32_t own = half < 2 ? word[0] : half < 4 ? word[1] : half < 6 ? word[2] : word[3];
        kept |= (uint32_t)((own >> half % 2 * 16 & 0xffff) >= a.drop.below) << k;
    }
    return kept;
}

/* Draws the decisions of queries [row, row + lines) and KEYS keys from j on: kept[line][KEYS / 8]. */
static __device__ void draw_kept(const att &a, int head, int64_t row, int lines, int64_t j,
                                 uint8_t *kept) {
    for (int e = threadIdx.x; e < lines * (KEYS / EIGHT); e += MMA_THREADS) {
        int64_t i = row + e / (KEYS / EIGHT), from = j + e % (KEYS / EIGHT) * EIGHT;
        bool seen =
            i < a.n && from < a.n_keys && from <= last_key(a, i) && from + EIGHT > first_key(a, i);
        kept[e] = (uint8_t)(seen ? kept_keys(a, head, (uint64_t)a.drop.id[i], from) : 0);
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
/* The keys that any of the set's queries sees; the first is rounded down so that dropout's eights stay together.
 * Ends with the block at a barrier. */
static __device__ void keys_of_set(const att &a, int64_t first, int count, int (&at)[2][MMA_WARPS],
                                   int *begin, int *end) {
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

static __device__ __forceinline__ two_rows rows_of_lane(const att &a, int64_t first, int count) {
    two_rows t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + 8 * h;
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
    int64_t k = a.key_col + group * DIM, v = a.key_col + (a.kv + group) * DIM;
    queue_rows<T, DIM>(ks, a.keys, a.key_stride, k, row, end, KEYS);
    queue_rows<T, DIM>(vs, a.keys, a.key_stride, v, row, end, KEYS);
}

/* The set of this block: the last ones, which see most keys, begin first. */
static __device__ __forceinline__ int64_t first_of_set() {
    return (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
}

/* ---- forward ------------------------------------------------------------------------------------- */
/* One tile's share of two rows: scores become probabilities, and what was summed is rescaled. */
template <int DIM>
static __device__ __forceinline__ void soften(const att &a, const two_rows &t, int tile,
                                              const uint8_t *kept, float (&s)[KEYS / 8][4],
                                              float (&most)[2], float (&sum)[2],
                                              float (&out)[DIM / 8][4]) {
    int lane = threadIdx.x % WARP, line = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = most[h], share = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int j = tile + 8 * n + lane % 4 * 2 + i;
                float &x = s[n][2 * h + i];
                x = j >= t.lo[h] && j <= t.hi[h] ? x * (a.scale * LOG2E) : -INFINITY;
                top = fmaxf(top, x);
            }
        top = quad_max(top);
        float from = top == -INFINITY ? 0 : top, rescale = exp2_approx(most[h] - from);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            uint32_t keeps = a.drop.id ? kept[(line + 8 * h) * (KEYS / EIGHT) + n] : 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][2 * h + i];
                x = exp2_approx(x - from);
                share += x;
                if (a.drop.id) x = keeps >> (lane % 4 * 2 + i) & 1 ? x * a.drop.keep : 0;
            }
        }
        sum[h] = sum[h] * rescale + share;
        most[h] = top;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) out[n][2 * h] *= rescale, out[n][2 * h + 1] *= rescale;
    }
}

template <class T, int DIM>
static __global__ void __launch_bounds__(MMA_THREADS)
    attend_mma(att a, att_before before, mixed o, float *lse) {
    enum { LD = DIM + PAD, TILE_ELEMENTS = KEYS * LD };
    DYNAMIC_SHARED(pack16, shared);
    __shared__ int bounds[2][MMA_WARPS];
    T *qs = (T *)shared, *ks = qs + ROWS * LD, *vs = ks + 2 * TILE_ELEMENTS;
    uint8_t *kept = (uint8_t *)(vs + 2 * TILE_ELEMENTS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int head = blockIdx.y, group = head / (a.q / a.kv), begin, end;
    int64_t first = first_of_set();
    int count = (int)min((int64_t)ROWS, a.n - first);
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)head * DIM, first, a.n, ROWS);
    keys_of_set(a, first, count, bounds, &begin, &end);
    load_key_tile<T, DIM>(a, group, begin, end, ks, vs);
    copies_commit();
    two_rows t = rows_of_lane(a, first, count);
    float most[2], sum[2], out[DIM / 8][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool more = before.lse && t.live[h];
        most[h] = more ? before.lse[lse_at(a, head, t.i[h])] * LOG2E : -INFINITY;
        sum[h] = more && lane % 4 == 0 ? 1 : 0; /* the lanes' sums are added at the end */
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                out[n][2 * h + i] =
                    more ? read1(before.o, before.dt,
                                 (t.i[h] * a.q + head) * DIM + 8 * n + lane % 4 * 2 + i)
                         : 0;
    }
    for (int tile = begin, buffer = 0; tile < end; tile += KEYS, buffer ^= 1) {
        if (tile + KEYS < end)
            load_key_tile<T, DIM>(a, group, tile + KEYS, end, ks + (buffer ^ 1) * TILE_ELEMENTS,
                                  vs + (buffer ^ 1) * TILE_ELEMENTS);
        copies_commit();
        if (a.drop.id) draw_kept(a, head, first, ROWS, tile, kept);
        copies_wait<1>();
        __syncthreads();
        float s[KEYS / 8][4];
        multiply_rows<T, DIM, KEYS>(s, qs, warp * 16, ks + buffer * TILE_ELEMENTS);
        soften<DIM>(a, t, tile, kept, s, most, sum, out);
        add_product<T, DIM, KEYS>(out, s, vs + buffer * TILE_ELEMENTS);
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float all = quad_sum(sum[h]), part = all > 0 ? 1 / all : 0;
        if (!t.live[h]) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            write_two(o, (t.i[h] * a.q + head) * DIM + 8 * n + lane % 4 * 2, out[n][2 * h] * part,
                      out[n][2 * h + 1] * part, false);
        if (lse && lane % 4 == 0) lse[lse_at(a, head, t.i[h])] = (most[h] + log2f(all)) * LN2;
    }
}

/* ---- backward ------------------------------------------------------------------------------------ */
/* rowdot of the set: two threads per query, over do in shared memory and o. */
template <class T, int DIM>
static __device__ void sum_output_dots(const att &a, mixed o, const T *ds, int head, int64_t first,
                                       int count, float *rowdot, float *global) {
    int r = threadIdx.x / 2;
    float s = 0;
    for (int c = threadIdx.x % 2 * EIGHT; r < count && c < DIM; c += 2 * EIGHT) {
        float x[EIGHT], y[EIGHT];
        int64_t at = ((first + r) * a.q + head) * DIM + c;
        read8(ds + r * (DIM + PAD) + c, x);
        o.load(at, at + EIGHT, y);
#pragma unroll
        for (int k = 0; k < EIGHT; k++) s += x[k] * y[k];
    }
    s += __shfl_xor_sync(~0u, s, 1);
    if (threadIdx.x % 2) return;
    rowdot[r] = s;
    if (r < count) global[head * a.n + first + r] = s;
}

template <class T, int DIM>
static __global__ void __launch_bounds__(MMA_THREADS)
    grad_queries_mma(att a, mixed dout, mixed o, const float *lse, mixed dq, bool add,
                     float *rowdot) {
    enum { LD = DIM + PAD, TILE_ELEMENTS = KEYS * LD };
    DYNAMIC_SHARED(pack16, shared);
    __shared__ int bounds[2][MMA_WARPS];
    __shared__ float dots[ROWS];
    T *qs = (T *)shared, *ds = qs + ROWS * LD, *ks = ds + ROWS * LD, *vs = ks + 2 * TILE_ELEMENTS;
    uint8_t *kept = (uint8_t *)(vs + 2 * TILE_ELEMENTS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int head = blockIdx.y, group = head / (a.q / a.kv), begin, end;
    int64_t first = first_of_set();
    int count = (int)min((int64_t)ROWS, a.n - first);
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)head * DIM, first, a.n, ROWS);
    queue_rows<T, DIM>(ds, dout.p, (int64_t)a.q * DIM, (int64_t)head * DIM, first, a.n, ROWS);
    copies_commit();
    copies_wait<0>();
    keys_of_set(a, first, count, bounds, &begin, &end);
    load_key_tile<T, DIM>(a, group, begin, end, ks, vs);
    copies_commit();
    sum_output_dots<T, DIM>(a, o, ds, head, first, count, dots, rowdot);
    __syncthreads();
    two_rows t = rows_of_lane(a, first, count);
    float dot[2], stat[2], sum[DIM / 8][4] = { { 0 } };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        dot[h] = dots[warp * 16 + lane / 4 + 8 * h];
        stat[h] = t.live[h] ? lse[lse_at(a, head, t.i[h])] * LOG2E : 0;
    }
    for (int tile = begin, buffer = 0; tile < end; tile += KEYS, buffer ^= 1) {
        if (tile + KEYS < end)
            load_key_tile<T, DIM>(a, group, tile + KEYS, end, ks + (buffer ^ 1) * TILE_ELEMENTS,
                                  vs + (buffer ^ 1) * TILE_ELEMENTS);
        copies_commit();
        if (a.drop.id) draw_kept(a, head, first, ROWS, tile, kept);
        copies_wait<1>();
        __syncthreads();
        float s[KEYS / 8][4], dp[KEYS / 8][4];
        multiply_rows<T, DIM, KEYS>(s, qs, warp * 16, ks + buffer * TILE_ELEMENTS);
        multiply_rows<T, DIM, KEYS>(dp, ds, warp * 16, vs + buffer * TILE_ELEMENTS);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t keeps =
                    a.drop.id
                        ? kept[(warp * 16 + lane / 4 + 8 * h) * (KEYS / EIGHT) + n] >> lane % 4 * 2
                        : 0;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int j = tile + 8 * n + lane % 4 * 2 + i;
                    float &x = s[n][2 * h + i], g = dp[n][2 * h + i];
                    if (a.drop.id) g = keeps >> i & 1 ? g * a.drop.keep : 0;
                    bool seen = j >= t.lo[h] && j <= t.hi[h];
                    float p = seen ? exp2_approx(x * (a.scale * LOG2E) - stat[h]) : 0;
                    x = p * (g - dot[h]) * a.scale;
                }
            }
        add_product<T, DIM, KEYS>(sum, s, ks + buffer * TILE_ELEMENTS);
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            if (t.live[h])
                write_two(dq, t.i[h] * a.stride + head * DIM + 8 * n + lane % 4 * 2, sum[n][2 * h],
                          sum[n][2 * h + 1], add);
}

/* A tile of queries that a set of keys is seen by. */
typedef struct tile_of_queries {
    int head;
    int64_t row; /* a.n or more: none of this head is left */
} tile_of_queries;

template <int LINES>
static __device__ tile_of_queries next_tile(const att &a, tile_of_queries t, int last_head,
                                            int64_t first, int64_t last, bool begins) {
    int64_t from = a.range ? 0 : first / LINES * LINES;
    t.row = begins ? from : t.row + LINES;
    for (;;) {
        if (t.row >= a.n || first_key(a, t.row) > last) {
            if (++t.head > last_head) return t;
            t.row = from;
            continue;
        }
        if (last_key(a, min(t.row + LINES, a.n) - 1) >= first) return t;
        t.row += LINES;
    }
}

/* What grad_keys_mma reads of each query of a tile. */
template <int LINES> struct query_stats {
    float lse[LINES], dot[LINES];
    int lo[LINES], hi[LINES];
};

template <class T, int DIM, int LINES>
static __device__ __forceinline__ void load_query_tile(const att &a, mixed dout, tile_of_queries q,
                                                       T *qs, T *ds) {
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)q.head * DIM, q.row, a.n, LINES);
    queue_rows<T, DIM>(ds, dout.p, (int64_t)a.q * DIM, (int64_t)q.head * DIM, q.row, a.n, LINES);
}

template <int LINES>
static __device__ __forceinline__ void load_stats(const att &a, const float *lse,
                                                  const float *rowdot, tile_of_queries q,
                                                  query_stats<LINES> *out) {
    int r = threadIdx.x;
    if (r >= LINES) return;
    int64_t i = q.row + r;
    bool live = i < a.n;
    out->lse[r] = live ? lse[lse_at(a, q.head, i)] * LOG2E : 0;
    out->dot[r] = live ? rowdot[q.head * a.n + i] : 0;
    out->lo[r] = live ? (int)first_key(a, i) : 1;
    out->hi[r] = live ? (int)last_key(a, i) : 0;
}

template <class T, int DIM, int LINES>
static __global__ void __launch_bounds__(MMA_THREADS)
    grad_keys_mma(att a, mixed dout, const float *lse, const float *rowdot, mixed dkv) {
    enum { LD = DIM + PAD, TILE_ELEMENTS = LINES * LD };
    DYNAMIC_SHARED(pack16, shared);
    __shared__ query_stats<LINES> stats;
    T *ks = (T *)shared, *vs = ks + ROWS * LD, *qs = vs + ROWS * LD, *ds = qs + 2 * TILE_ELEMENTS;
    uint8_t *kept = (uint8_t *)(ds + 2 * TILE_ELEMENTS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int group = blockIdx.y, heads = a.q / a.kv, last_head = (group + 1) * heads - 1;
    int64_t first = (int64_t)blockIdx.x * ROWS, last = min(first + ROWS, a.n_keys) - 1;
    int64_t col = a.key_col + group * DIM;
    tile_of_queries now = { group * heads, 0 };
    now = next_tile<LINES>(a, now, last_head, first, last, true);
    queue_rows<T, DIM>(ks, a.keys, a.key_stride, col, first, a.n_keys, ROWS);
    queue_rows<T, DIM>(vs, a.keys, a.key_stride, col + a.kv * DIM, first, a.n_keys, ROWS);
    if (now.head <= last_head) load_query_tile<T, DIM, LINES>(a, dout, now, qs, ds);
    copies_commit();
    float dk[DIM / 8][4] = { { 0 } }, dv[DIM / 8][4] = { { 0 } };
    for (int buffer = 0; now.head <= last_head; buffer ^= 1) {
        tile_of_queries next = next_tile<LINES>(a, now, last_head, first, last, false);
        if (next.head <= last_head)
            load_query_tile<T, DIM, LINES>(a, dout, next, qs + (buffer ^ 1) * TILE_ELEMENTS,
                                           ds + (buffer ^ 1) * TILE_ELEMENTS);
        copies_commit();
        load_stats<LINES>(a, lse, rowdot, now, &stats);
        if (a.drop.id) draw_kept(a, now.head, now.row, LINES, first, kept);
        copies_wait<1>();
        __syncthreads();
        const T *q = qs + buffer * TILE_ELEMENTS, *d = ds + buffer * TILE_ELEMENTS;
        float p[LINES / 8][4], g[LINES / 8][4];
        multiply_rows<T, DIM, LINES>(p, ks, warp * 16, q);
        multiply_rows<T, DIM, LINES>(g, vs, warp * 16, d);
#pragma unroll
        for (int n = 0; n < LINES / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int line = 8 * n + lane % 4 * 2 + i;
                float stat = stats.lse[line], dot = stats.dot[line];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int r = warp * 16 + lane / 4 + 8 * h, j = (int)first + r;
                    bool seen = j >= stats.lo[line] && j <= stats.hi[line];
                    float factor = 1, &x = p[n][2 * h + i], &y = g[n][2 * h + i];
                    if (a.drop.id)
                        factor = kept[line * (KEYS / EIGHT) + r / EIGHT] >> r % EIGHT & 1
                                     ? a.drop.keep
                                     : 0;
                    x = seen ? exp2_approx(x * (a.scale * LOG2E) - stat) : 0;
                    y = x * (y * factor - dot) * a.scale;
                    x *= factor;
                }
            }
        add_product<T, DIM, LINES>(dv, p, d);
        add_product<T, DIM, LINES>(dk, g, q);
        __syncthreads();
        now = next;
    }
    copies_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t j = first + warp * 16 + lane / 4 + 8 * h;
        if (j > last) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            int64_t at = j * a.key_stride + col + 8 * n + lane % 4 * 2;
            write_two(dkv, at, dk[n][2 * h], dk[n][2 * h + 1], false);
            write_two(dkv, at + a.kv * DIM, dv[n][2 * h], dv[n][2 * h + 1], false);
        }
    }
}

/* ---- launches ------------------------------------------------------------------------------------ */
/* Rows that 16 bytes at a time can be copied of. */
static bool in_sixteens(const void *p, int64_t stride, int64_t col) {
    return (uintptr_t)p % 16 == 0 && stride % EIGHT == 0 && col % EIGHT == 0;
}

static bool takes(const op_call *c, const att &a) {
    return cuda_of(c)->device->capability >= 8 && !a.pos && !a.from &&
           (a.qkv_t == DT_BF16 || a.qkv_t == DT_F16) && a.key_t == a.qkv_t &&
           (a.dim == 32 || a.dim == 64 || a.dim == 96 || a.dim == 128) &&
           in_sixteens(a.qkv, a.stride, 0) && in_sixteens(a.keys, a.key_stride, a.key_col);
}

template <class T, int DIM>
static void launch_attend_mma(const op_call *c, const att &a, const att_before &before,
                              const tensor *o, float *lse) {
    size_t shared = (ROWS + 4 * KEYS) * (DIM + PAD) * sizeof(T) + ROWS * (KEYS / EIGHT);
    dim3 grid((unsigned)ceil_div(a.n, ROWS), (unsigned)a.q);
    auto kernel = attend_mma<T, DIM>;
    LAUNCH(cuda_of(c), { grid, MMA_THREADS, shared }, kernel, a, before, mixed(*o), lse);
}

template <class T, int DIM>
static void launch_grad_mma(const op_call *c, const att &a, const att_grad &g) {
    enum { LINES = DIM > 64 ? 32 : 64 };
    size_t row = (DIM + PAD) * sizeof(T);
    size_t for_queries = (2 * ROWS + 4 * KEYS) * row + ROWS * (KEYS / EIGHT);
    size_t for_keys = (2 * ROWS + 4 * LINES) * row + LINES * (KEYS / EIGHT);
    dim3 queries((unsigned)ceil_div(a.n, ROWS), (unsigned)a.q);
    dim3 keys((unsigned)ceil_div(a.n_keys, ROWS), (unsigned)a.kv);
    auto dq = grad_queries_mma<T, DIM>;
    auto dkv = grad_keys_mma<T, DIM, LINES>;
    LAUNCH(cuda_of(c), { queries, MMA_THREADS, for_queries }, dq, a, g.dout, g.o, g.lse, g.dq,
           g.add, g.rowdot);
    LAUNCH(cuda_of(c), { keys, MMA_THREADS, for_keys }, dkv, a, g.dout, g.lse,
           (const float *)g.rowdot, g.dkv);
}

/* WITH_HEAD(dim, call): with DIM as a constant. */
#define WITH_HEAD(dim, ...)                                                                        \
    do switch (dim) {                                                                              \
            AS_HEAD(32, __VA_ARGS__);                                                              \
            AS_HEAD(64, __VA_ARGS__);                                                              \
            AS_HEAD(96, __VA_ARGS__);                                                              \
            AS_HEAD(128, __VA_ARGS__);                                                             \
        default: BUG("a head of another size");                                                    \
        }                                                                                          \
    while (0)
#define AS_HEAD(size, ...)                                                                         \
    case size: {                                                                                   \
        enum { DIM = size };                                                                       \
        __VA_ARGS__;                                                                               \
    } break

bool attend_by_mma(const op_call *c, const att &a, const att_before &before, const tensor *o,
                   float *lse) {
    if (!takes(c, a)) return false;
    if (a.qkv_t == DT_BF16)
        WITH_HEAD(a.dim, launch_attend_mma<bf16, DIM>(c, a, before, o, lse));
    else
        WITH_HEAD(a.dim, launch_attend_mma<half, DIM>(c, a, before, o, lse));
    return true;
}

bool attention_grad_by_mma(const op_call *c, const att &a, const att_grad &g) {
    if (!takes(c, a) || g.dout.dt != a.qkv_t || !in_sixteens(g.dout.p, a.dim, 0)) return false;
    if (a.qkv_t == DT_BF16)
        WITH_HEAD(a.dim, launch_grad_mma<bf16, DIM>(c, a, g));
    else
        WITH_HEAD(a.dim, launch_grad_mma<half, DIM>(c, a, g));
    return true;
}
