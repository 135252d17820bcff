/* Token embedding: a gather of rows, and its transpose. Backward sorts the tokens on the device
 * (stable, so that a token's rows are added in their order: deterministic) and cuts them into stretches
 * of 32. A warp adds up the rows of a stretch, run by run of equal tokens:
 *
 *     | a a a b b c | c c c c c c | c c d e e e |        runs inside a stretch go to the table,
 *              tail->  head ------>  head              pieces of longer ones to the workspace
 *
 * and where a run of pieces begins, another warp adds those in order. A row of the table is written by
 * one warp only. Bytes: dx once, the rows of the table once each way.
 *
 * Workspace: | keys, places, numbers [N] i32 | what the sort needs | pieces [N / 32][2][D] |
 */
#include <cub/device/device_radix_sort.cuh>

#include "device.cuh"

enum { WARPS = 8, PER_SM = 32, STRETCH = WARP, HEAD = 0, TAIL = 1 };

/* A warp a row. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    gather(const int32_t *tok, A table, A x, int64_t n, int64_t d) {
    enum { U = 4 };
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < n;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t from = (int64_t)tok[row] * d, to = row * d;
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d; i += U * WARP * EIGHT) {
            typename A::raw got[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t col = i + u * WARP * EIGHT;
                if (col < d) got[u] = table.fetch(from + col, from + d);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t col = i + u * WARP * EIGHT;
                float v[8];
                if (col >= d) break;
                A::widen(got[u], v);
                x.store(to + col, to + d, v);
            }
        }
    }
}

extern "C" void cuda_embed(const op_call *c) {
    const tensor *table = &c->in[1], *x = &c->out[0], *all[] = { table, x };
    int64_t n = x->dim[0], d = x->dim[1];
    int blocks = grid_for(cuda_of(c), n, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP }, gather<A>,
                     (const int32_t *)c->in[0].data, A(*table), A(*x), n, d));
}

static __global__ void number(int32_t *place, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) place[i] = (int32_t)i;
}

typedef struct runs {
    const int32_t *key, *place; /* tokens in order, and which row of dx each is */
    float *table, *pieces;
    int64_t n, d;
    bool eights; /* rows of the table are whole and aligned eights */
} runs;

static __device__ __forceinline__ float *piece(const runs &r, int64_t stretch, int which) {
    return r.pieces + (stretch * 2 + which) * r.d;
}
static __device__ __forceinline__ int32_t key_at(const runs &r, int64_t i) {
    return i >= 0 && i < r.n ? r.key[i] : -1;
}

static __device__ __forceinline__ void put_piece(const runs &r, float *to, int64_t col,
                                                 const float v[8]) {
    if (r.eights && col < r.d) write8(to + col, v);
    for (int k = 0; k < 8 && !r.eights; k++)
        if (col + k < r.d) to[col + k] = v[k];
}
/* Atomic, though nobody else adds to this row, because the warp need not wait for it. */
static __device__ __forceinline__ void add_row(const runs &r, int32_t token, int64_t col,
                                               const float v[8]) {
    float *to = r.table + token * r.d + col;
    if (r.eights && col < r.d) {
        atomicAdd((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
        atomicAdd((float4 *)to + 1, make_float4(v[4], v[5], v[6], v[7]));
    }
    for (int k = 0; k < 8 && !r.eights; k++)
        if (col + k < r.d) atomicAdd(to + k, v[k]);
}

/* A warp a stretch and 256 columns. */
template <class A> static __global__ void __launch_bounds__(WARPS *WARP) add_runs(A dx, runs r) {
    enum { U = 8 };
    int64_t stretch = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, first = stretch * STRETCH;
    if (first >= r.n) return;
    int lane = threadIdx.x % WARP, count = (int)min((int64_t)STRETCH, r.n - first);
    int64_t col = ((int64_t)blockIdx.y * WARP + lane) * EIGHT;
    int32_t key = key_at(r, first + lane), after = key_at(r, first + STRETCH);
    int32_t row = lane < count ? r.place[first + lane] : 0;
    bool head = key_at(r, first - 1) == __shfl_sync(~0u, key, 0);
    float sum[8] = { 0 }, v[8];
    for (int i = 0; i < count; i += U) {
        typename A::raw got[U] = {};
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t at = __shfl_sync(~0u, row, i + u) * r.d;
            if (i + u < count && col < r.d) got[u] = dx.fetch(at + col, at + r.d);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u >= count) break;
            int32_t token = __shfl_sync(~0u, key, i + u), next = after;
            if (i + u + 1 < count) next = __shfl_sync(~0u, key, i + u + 1);
            A::widen(got[u], v);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += v[k];
            if (next == token && i + u + 1 < count) continue;
            if (next != token && !head)
                add_row(r, token, col, sum);
            else
                put_piece(r, piece(r, stretch, head ? HEAD : TAIL), col, sum);
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] = 0;
            head = false;
        }
    }
}

/* A warp a stretch and 256 columns: the run that begins in its tail, if one does. */
static __global__ void __launch_bounds__(WARPS *WARP) add_pieces(runs r) {
    int64_t stretch = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int64_t first = stretch * STRETCH, next = first + STRETCH;
    int32_t token = key_at(r, next - 1);
    if (next >= r.n || key_at(r, next) != token || key_at(r, first - 1) == token) return;
    int lane = threadIdx.x % WARP;
    int64_t col = ((int64_t)blockIdx.y * WARP + lane) * EIGHT;
    float sum[8];
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] = col + k < r.d ? piece(r, stretch, TAIL)[col + k] : 0;
    for (int64_t at = stretch + 1, more = 1; more; at += WARP) {
        /* stretches from `at` that the run has a part in: all but the last, it goes through */
        unsigned through = __ballot_sync(~0u, key_at(r, (at + lane + 1) * STRETCH) == token);
        int parts = ~through ? __ffs(~through) : WARP;
        more = !~through;
#pragma unroll 4
        for (int i = 0; i < parts; i++)
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (col + k < r.d) sum[k] += piece(r, at + i, HEAD)[col + k];
    }
    add_row(r, token, col, sum);
}

static size_t sort_bytes(int64_t n) {
    size_t bytes = 0;
    cub::DeviceRadixSort::SortPairs(nullptr, bytes, (const int32_t *)nullptr, (int32_t *)nullptr,
                                    (const int32_t *)nullptr, (int32_t *)nullptr, (int)n);
    return bytes;
}

static size_t lists_bytes(int64_t n) { return align_up(3 * (size_t)n * sizeof(int32_t), 256); }

extern "C" size_t cuda_embed_workspace(const op_backend *b, const op_call *c, int threads) {
    int64_t n = c->in[0].dim[0], d = c->in[0].dim[1];
    size_t pieces = 2 * (size_t)(ceil_div(n, STRETCH) * d) * sizeof(float);
    return lists_bytes(n) + align_up(sort_bytes(n), 256) + pieces;
}

extern "C" void cuda_embed_bwd(const op_call *c) {
    const tensor *dx = &c->in[0], *all[] = { dx };
    int64_t n = dx->dim[0], d = dx->dim[1];
    cuda_context *x = cuda_of(c);
    char *work = (char *)c->run->workspace, *sort = work + lists_bytes(n);
    size_t bytes = sort_bytes(n);
    BUG_IF(c->out[0].dt != DT_F32);
    if (!(c->accumulate & 1))
        CUDA_OK(x, cudaMemsetAsync(c->out[0].data, 0, tensor_bytes(&c->out[0]), x->stream));
    int32_t *key = (int32_t *)work, *place = key + n, *numbers = place + n;
    LAUNCH(x, { blocks_for(n, 256), 256 }, number, numbers, n);
    int bits = 1;
    while (c->out[0].dim[0] > (int64_t)1 << bits) bits++;
    CUDA_OK(x, cub::DeviceRadixSort::SortPairs(sort, bytes, (const int32_t *)c->in[1].data, key,
                                               numbers, place, (int)n, 0, bits, x->stream));
    runs r = { key, place, (float *)c->out[0].data, (float *)(sort + align_up(bytes, 256)), n, d };
    r.eights = d % 8 == 0 && (uintptr_t)r.table % 16 == 0;
    dim3 blocks((unsigned)ceil_div(n, STRETCH * WARPS), (unsigned)ceil_div(d, WARP * EIGHT));
    WITH_TYPE(common_type(d, all, 1), LAUNCH(x, { blocks, WARPS * WARP }, add_runs<A>, A(*dx), r));
    LAUNCH(x, { blocks, WARPS * WARP }, add_pieces, r);
}
