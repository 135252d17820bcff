/* Attention on tensor cores, backward: attention_mma.cuh. Both kernels recompute the scores from lse. */
#include "attention_mma.cuh"

/* ---- backward ------------------------------------------------------------------------------------ */
/* rowdot of the set: two threads per query, over do in shared memory and o. */
template <class T, int DIM>
static __device__ void sum_output_dots(const att &a, mixed o, const T *ds, int head, int64_t first,
                                       int count, float *rowdot, float *global) {
    int r = threadIdx.x / 2;
    float s = 0;
    for (int c = threadIdx.x % 2 * EIGHT; r < count && c < a.dim; c += 2 * EIGHT) {
        float x[EIGHT], y[EIGHT];
        int64_t at = ((first + r) * a.q + head) * a.dim + c;
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
    int64_t first = first_of_set(a);
    if (first >= a.n) return;
    int count = (int)min((int64_t)ROWS, a.n - first);
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)head * a.dim, first, a.n, ROWS, a.dim);
    queue_rows<T, DIM>(ds, dout.p, (int64_t)a.q * a.dim, (int64_t)head * a.dim, first, a.n, ROWS,
                       a.dim);
    copies_commit();
    copies_wait<0>();
    keys_of_set(a, first, count, bounds, &begin, &end);
    load_key_tile<T, DIM>(a, group, begin, end, ks, vs);
    copies_commit();
    sum_output_dots<T, DIM>(a, o, ds, head, first, count, dots, rowdot);
    __syncthreads();
    two_rows t = rows_of_lane(a, first, count, threadIdx.x);
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
        if (a.drop.id) draw_kept<KEYS, MMA_THREADS>(a, head, first, ROWS, tile, kept, threadIdx.x);
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
                    float p = seen ? exp2_approx(att_score(a, x, LOG2E) - stat[h]) : 0;
                    x = p * (g - dot[h]) * att_score_slope(a, x);
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
            if (t.live[h] && 8 * n < a.dim)
                write_two(dq, t.i[h] * a.stride + head * a.dim + 8 * n + lane % 4 * 2,
                          sum[n][2 * h], sum[n][2 * h + 1], add);
}

/* A tile of queries that a set of keys is seen by. */
typedef struct tile_of_queries {
    int head;
    int64_t row; /* a.n or more: none of this head is left */
} tile_of_queries;

template <int LINES>
static __device__ tile_of_queries next_tile(const att &a, tile_of_queries t, int last_head,
                                            int64_t from, int64_t last, bool begins) {
    t.row = begins ? from : t.row + LINES;
    if (t.row < a.n && first_key(a, t.row) <= last) return t;
    t.row = from;
    if (++t.head > last_head || begins) t.head = last_head + 1; /* no query sees these keys */
    return t;
}

/* The queries of a tile, as grad_keys_mma reads them from shared memory. */
template <int LINES> struct query_stats {
    float lse[LINES], dot[LINES];
    int lo[LINES], hi[LINES];
};

template <class T, int DIM, int LINES>
static __device__ __forceinline__ void load_query_tile(const att &a, mixed dout, tile_of_queries q,
                                                       T *qs, T *ds) {
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)q.head * a.dim, q.row, a.n, LINES, a.dim);
    queue_rows<T, DIM>(ds, dout.p, (int64_t)a.q * a.dim, (int64_t)q.head * a.dim, q.row, a.n, LINES,
                       a.dim);
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

template <class T, int DIM, int LINES, int GRADS>
static __global__ void __launch_bounds__(MMA_THREADS)
    grad_keys_mma(att a, mixed dout, const float *lse, const float *rowdot, mixed dkv) {
    enum { LD = DIM + PAD, TILE_ELEMENTS = LINES * LD };
    DYNAMIC_SHARED(pack16, shared);
    __shared__ query_stats<LINES> stats;
    T *ks = (T *)shared, *vs = ks + ROWS * LD, *qs = vs + ROWS * LD, *ds = qs + 2 * TILE_ELEMENTS;
    uint8_t *kept = (uint8_t *)(ds + 2 * TILE_ELEMENTS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int group = blockIdx.y, heads = a.q / a.kv, last_head = (group + 1) * heads - 1;
    int64_t first = first_token(a) + (int64_t)blockIdx.x * ROWS,
            last = min(first + ROWS, a.n_keys) - 1;
    int64_t col = a.key_col + group * a.dim;
    if (first >= a.n_keys) return;
    tile_of_queries now = { group * heads, 0 };
    int64_t from = first_query(a, first); /* that sees one of the keys */
    now = next_tile<LINES>(a, now, last_head, from, last, true);
    queue_rows<T, DIM>(ks, a.keys, a.key_stride, col, first, a.n_keys, ROWS, a.dim);
    queue_rows<T, DIM>(vs, a.keys, a.key_stride, col + a.kv * a.dim, first, a.n_keys, ROWS, a.dim);
    if (now.head <= last_head) load_query_tile<T, DIM, LINES>(a, dout, now, qs, ds);
    copies_commit();
    float dk[DIM / 8][4] = { { 0 } }, dv[DIM / 8][4] = { { 0 } };
    for (int buffer = 0; now.head <= last_head; buffer ^= 1) {
        tile_of_queries next = next_tile<LINES>(a, now, last_head, from, last, false);
        if (next.head <= last_head)
            load_query_tile<T, DIM, LINES>(a, dout, next, qs + (buffer ^ 1) * TILE_ELEMENTS,
                                           ds + (buffer ^ 1) * TILE_ELEMENTS);
        copies_commit();
        load_stats<LINES>(a, lse, rowdot, now, &stats);
        if (a.drop.id)
            draw_kept<KEYS, MMA_THREADS>(a, now.head, now.row, LINES, first, kept, threadIdx.x);
        copies_wait<1>();
        __syncthreads();
        const T *q = qs + buffer * TILE_ELEMENTS, *d = ds + buffer * TILE_ELEMENTS;
        float p[LINES / 8][4], g[LINES / 8][4];
        multiply_rows<T, DIM, LINES>(p, ks, warp * 16, q);
        if (GRADS & DK) multiply_rows<T, DIM, LINES>(g, vs, warp * 16, d);
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
                    float slope = att_score_slope(a, x);
                    x = seen ? exp2_approx(att_score(a, x, LOG2E) - stat) : 0;
                    if (GRADS & DK) y = x * (y * factor - dot) * slope;
                    x *= factor;
                }
            }
        if (GRADS & DV) add_product<T, DIM, LINES>(dv, p, d);
        if (GRADS & DK) add_product<T, DIM, LINES>(dk, g, q);
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
            if (8 * n >= a.dim) continue;
            if (GRADS & DK) write_two(dkv, at, dk[n][2 * h], dk[n][2 * h + 1], false);
            if (GRADS & DV)
                write_two(dkv, at + a.kv * a.dim, dv[n][2 * h], dv[n][2 * h + 1], false);
        }
    }
}

template <class T, int DIM, int GRADS>
static void launch_grad_keys(const op_call *c, const att &a, const att_grad &g) {
    enum { LINES = DIM > 64 ? 32 : 64 };
    size_t shared = (2 * ROWS + 4 * LINES) * (DIM + PAD) * sizeof(T) + LINES * (KEYS / EIGHT);
    dim3 keys((unsigned)ceil_div(a.n_keys, ROWS), (unsigned)a.kv);
    auto kernel = grad_keys_mma<T, DIM, LINES, GRADS>;
    LAUNCH(cuda_of(c), { keys, MMA_THREADS, shared }, kernel, a, g.dout, g.lse,
           (const float *)g.rowdot, g.dkv);
}

template <class T, int DIM>
static void launch_grad_mma(const op_call *c, const att &a, const att_grad &g) {
    dim3 queries((unsigned)ceil_div(a.n, ROWS), (unsigned)a.q);
    auto dq = grad_queries_mma<T, DIM>;
    LAUNCH(cuda_of(c), { queries, MMA_THREADS, most_shared(DIM) }, dq, a, g.dout, g.o, g.lse, g.dq,
           g.add, g.rowdot);
    launch_grad_keys<T, DIM, DIM <= 128 ? DK | DV : DK>(c, a, g);
    if (DIM > 128) launch_grad_keys<T, DIM, DIM <= 128 ? DK | DV : DV>(c, a, g);
}

bool attention_grad_by_mma(const op_call *c, const att &a, const att_grad &g) {
    if (!takes_mma(c, a) || g.dout.dt != a.qkv_t || !in_sixteens(g.dout.p, a.dim, 0)) return false;
    if (a.qkv_t == DT_BF16)
        WITH_HEAD(a.dim, launch_grad_mma<bf16, DIM>(c, a, g));
    else
        WITH_HEAD(a.dim, launch_grad_mma<half, DIM>(c, a, g));
    return true;
}
