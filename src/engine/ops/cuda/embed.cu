/* Token embedding: a gather of rows, and its transpose. Forward moves the bytes of x twice (table row in,
 * row of x out).
 *
 * Backward adds row i of dx to row tok[i] of the gradient table. It sorts the tokens on the device, so
 * that rows for the same token are adjacent, and splits the sorted list into segments of 32. A warp sums
 * the rows of a segment, run by run of equal tokens:
 *
 *     | a a a b b c | c c c c c c | c c d e e e |      a run inside one segment is added to the table;
 *              tail->  head ------>  head              a run over several leaves a partial sum in each
 *
 * and a second kernel adds the partial sums of each such run in order. A row of the table is written by
 * one warp only, and the sort is stable, so that a token's rows are added in their order: deterministic.
 * Bytes: dx read once; each row of the table written once, or each that occurs read and written where gradients are
 * accumulated.
 *
 * Where the table is sharded, tokens of other ranks have the key one past the last row: they are sorted
 * behind all others, and no warp reads their rows.
 *
 * Workspace: | sorted keys, their rows, row indices, keys [N] i32 | the sort's | partial [N / 32][2][D] |
 */
#include <cub/device/device_radix_sort.cuh>

#include "device.cuh"

enum { WARPS = 8, PER_SM = 32, SEGMENT = WARP, HEAD = 0, TAIL = 1 };

/* The rows of a table are those of tokens first, first + 1, ... */
typedef struct table_shard {
    int64_t first, rows;
} table_shard;

static table_shard shard_of(const op_call *c, const tensor *table) {
    return { c->attr.vocab.first, table->dim[0] };
}

/* x[i] = table[tok[i] - first], 0 where the table lacks that row. Grid: up to PER_SM blocks per SM, which loop; a warp per row, U loads in flight. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    gather_rows(const int32_t *tok, A table, A x, int64_t n, int64_t d, table_shard s) {
    enum { U = 4 };
    await_previous();
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < n;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t token = tok[row] - s.first, from = token * d, to = row * d;
        bool own = token >= 0 && token < s.rows;
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d; i += U * WARP * EIGHT) {
            typename A::raw loaded[U] = {};
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t col = i + u * WARP * EIGHT;
                if (own && col < d) loaded[u] = table.fetch(from + col, from + d);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t col = i + u * WARP * EIGHT;
                float v[8];
                if (col >= d) break;
                A::widen(loaded[u], v);
                x.store(to + col, to + d, v);
            }
        }
    }
}

static void cuda_embed(const op_call *c) {
    const tensor *table = &c->in[1], *x = &c->out[0], *all[] = { table, x };
    int64_t n = x->dim[0], d = x->dim[1];
    int blocks = grid_for(cuda_of(c), n, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP, 0, true }, gather_rows<A>,
                     (const int32_t *)c->in[0].data, A(*table), A(*x), n, d, shard_of(c, table)));
}

/* The pairs that are sorted: each token's row of the table (or the number of rows, where it has none), and its index. */
static __global__ void fill_keys(const int32_t *tok, int32_t *key, int32_t *index, int64_t n,
                                 table_shard s) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t row = tok[i] - s.first;
    key[i] = (int32_t)(row >= 0 && row < s.rows ? row : s.rows);
    index[i] = (int32_t)i;
}

typedef struct token_runs {
    const int32_t *key, *row; /* tokens in order, and the row of dx of each */
    float *table, *partials;
    int64_t n, d, rows; /* rows: of the table; keys are less, or other ranks' */
    bool eights;        /* rows of the table are aligned and multiples of eight */
    bool add;           /* to what the table holds */
} token_runs;

static __device__ __forceinline__ float *partial_of(const token_runs &r, int64_t segment,
                                                    int which) {
    return r.partials + (segment * 2 + which) * r.d;
}
static __device__ __forceinline__ int32_t key_at(const token_runs &r, int64_t i) {
    return i >= 0 && i < r.n ? r.key[i] : -1;
}

static __device__ __forceinline__ void store_partial(const token_runs &r, float *to, int64_t col,
                                                     const float v[8]) {
    if (r.eights && col < r.d) write8(to + col, v);
    for (int k = 0; k < 8 && !r.eights; k++)
        if (col + k < r.d) to[col + k] = v[k];
}
/* Zeros beyond the last column. */
static __device__ __forceinline__ void load_partial(const token_runs &r, const float *from,
                                                    int64_t col, float v[8]) {
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = !r.eights && col + k < r.d ? from[col + k] : 0;
    if (r.eights && col < r.d) read8(from + col, v);
}
/* Sums are added atomically although no other warp adds to this row: a reduction needs no round trip, unlike load and
 * store. */
static __device__ __forceinline__ void put_token_row(const token_runs &r, int32_t token,
                                                     int64_t col, const float v[8]) {
    if (!r.add) return store_partial(r, r.table + token * r.d, col, v);
    float *to = r.table + token * r.d + col;
    if (r.eights && col < r.d) {
        atomic_add_four(to, make_float4(v[0], v[1], v[2], v[3]));
        atomic_add_four(to + 4, make_float4(v[4], v[5], v[6], v[7]));
    }
    for (int k = 0; k < 8 && !r.eights; k++)
        if (col + k < r.d) atomicAdd(to + k, v[k]);
}

/* Zeros where no token has the row: a warp for each row of the table, which finds its place among the sorted keys in
 * steps of 32 parts. */
static __global__ void __launch_bounds__(WARPS *WARP) zero_absent_rows(token_runs r) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, from = 0, end = r.n, step;
    int lane = threadIdx.x % WARP;
    const float zero[8] = { 0 };
    if (row >= r.rows) return;
    do {
        step = (end - from + WARP - 1) / WARP;
        int64_t last = from + (lane + 1) * step - 1; /* of the lane's part */
        unsigned before = __ballot_sync(~0u, last < end && r.key[last] < row);
        from += __popc(before) * step;
        end = min(from + step, end);
    } while (step > 1);
    if (key_at(r, from) == row) return;
    for (int64_t col = lane * EIGHT; col < r.d; col += WARP * EIGHT)
        store_partial(r, r.table + row * r.d, col, zero);
}

/* Grid: (segments / 8, columns / 256); a warp has a segment and 256 columns. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP) add_runs(A dx, token_runs r) {
    enum { U = 8 };
    int64_t segment = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, first = segment * SEGMENT;
    if (first >= r.n) return;
    int lane = threadIdx.x % WARP, count = (int)min((int64_t)SEGMENT, r.n - first);
    int64_t col = ((int64_t)blockIdx.y * WARP + lane) * EIGHT;
    int32_t key = key_at(r, first + lane), after = key_at(r, first + SEGMENT);
    count = __popc(__ballot_sync(~0u, lane < count && key < r.rows)); /* others are at the end */
    if (!count) return;
    int32_t row = lane < count ? r.row[first + lane] : 0;
    bool head = key_at(r, first - 1) == __shfl_sync(~0u, key, 0);
    float sum[8] = { 0 }, v[8];
    for (int i = 0; i < count; i += U) {
        typename A::raw loaded[U] = {};
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t at = __shfl_sync(~0u, row, i + u) * r.d;
            if (i + u < count && col < r.d) loaded[u] = dx.fetch(at + col, at + r.d);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u >= count) break;
            int32_t token = __shfl_sync(~0u, key, i + u), next = after;
            if (i + u + 1 < count) next = __shfl_sync(~0u, key, i + u + 1);
            A::widen(loaded[u], v);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += v[k];
            if (next == token && i + u + 1 < count) continue;
            if (next != token && !head)
                put_token_row(r, token, col, sum);
            else
                store_partial(r, partial_of(r, segment, head ? HEAD : TAIL), col, sum);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] = 0;
            head = false;
        }
    }
}

/* Same grid: a warp completes the run that begins in the tail of its segment, if one does. */
static __global__ void __launch_bounds__(WARPS *WARP) add_partial_runs(token_runs r) {
    int64_t segment = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int64_t first = segment * SEGMENT, next = first + SEGMENT;
    int32_t token = key_at(r, next - 1);
    if (next >= r.n || key_at(r, next) != token || key_at(r, first - 1) == token) return;
    if (token >= r.rows) return;
    int lane = threadIdx.x % WARP;
    int64_t col = ((int64_t)blockIdx.y * WARP + lane) * EIGHT;
    float sum[8], v[8];
    load_partial(r, partial_of(r, segment, TAIL), col, sum);
    for (int64_t at = segment + 1, more = 1; more; at += WARP) {
        /* lane l: whether the run goes on past segment at + l; it ends in the first where not */
        unsigned through = __ballot_sync(~0u, key_at(r, (at + lane + 1) * SEGMENT) == token);
        int parts = ~through ? __ffs(~through) : WARP;
        more = !~through;
#pragma unroll 8
        for (int i = 0; i < parts; i++) {
            load_partial(r, partial_of(r, at + i, HEAD), col, v);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += v[k];
        }
    }
    put_token_row(r, token, col, sum);
}

static size_t sort_bytes(int64_t n) {
    size_t bytes = 0;
    cub::DeviceRadixSort::SortPairs(nullptr, bytes, (const int32_t *)nullptr, (int32_t *)nullptr,
                                    (const int32_t *)nullptr, (int32_t *)nullptr, (int)n);
    return bytes;
}

static size_t lists_bytes(int64_t n) { return align_up(4 * (size_t)n * sizeof(int32_t), 256); }

static size_t cuda_embed_workspace(const op_backend *b, const op_call *c, int threads) {
    int64_t n = c->in[0].dim[0], d = c->in[0].dim[1];
    size_t partials = 2 * (size_t)(ceil_div(n, SEGMENT) * d) * sizeof(float);
    return lists_bytes(n) + align_up(sort_bytes(n), 256) + partials;
}

static void cuda_embed_bwd(const op_call *c) {
    const tensor *dx = &c->in[0], *all[] = { dx };
    int64_t n = dx->dim[0], d = dx->dim[1];
    cuda_context *x = cuda_of(c);
    char *work = (char *)c->run->workspace, *sort = work + lists_bytes(n);
    size_t bytes = sort_bytes(n);
    BUG_IF(c->out[0].dt != DT_F32);
    int32_t *key = (int32_t *)work, *row = key + n, *indices = row + n, *unsorted = indices + n;
    table_shard s = shard_of(c, &c->out[0]);
    LAUNCH(x, { blocks_for(n, 256), 256 }, fill_keys, (const int32_t *)c->in[1].data, unsorted,
           indices, n, s);
    int bits = 1;
    while (s.rows >= (int64_t)1 << bits) bits++;
    CUDA_OK(x, cub::DeviceRadixSort::SortPairs(sort, bytes, (const int32_t *)unsorted, key, indices,
                                               row, (int)n, 0, bits, x->stream));
    token_runs r = { key, row,   (float *)c->out[0].data, (float *)(sort + align_up(bytes, 256)), n,
                     d,   s.rows };
    r.eights = d % 8 == 0 && (uintptr_t)r.table % 16 == 0, r.add = c->accumulate & 1;
    if (!r.add) LAUNCH(x, { blocks_for(s.rows, WARPS), WARPS * WARP }, zero_absent_rows, r);
    dim3 blocks((unsigned)ceil_div(n, SEGMENT * WARPS), (unsigned)ceil_div(d, WARP * EIGHT));
    WITH_TYPE(common_type(d, all, 1), LAUNCH(x, { blocks, WARPS * WARP }, add_runs<A>, A(*dx), r));
    LAUNCH(x, { blocks, WARPS * WARP }, add_partial_runs, r);
}

KERNEL(EMBED, cuda_embed, NULL, ATTRS_VOCAB);
KERNEL(EMBED_BWD, cuda_embed_bwd, cuda_embed_workspace, ATTRS_VOCAB);
