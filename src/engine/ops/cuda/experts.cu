/* Tokens to the rows of their experts and back, and the experts' GEMMs. Sizes of groups are read on the
 * device, so that the calls are the same every step and a CUDA graph can hold them.
 *
 * Moving rows: a warp per row, each operand moved once. The GEMMs here are tiles of 64 x 64 in fp32, for
 * any mixture of types and any GPU: right, and far from the speed of tensor cores, which grouped_hopper.cu
 * uses. Deterministic. */
#include "device.cuh"
#include "ops/op_table.h"

enum { WARPS = 8, PER_SM = 32 };

/* to[m] = from[token of m], times its weight where there are weights; 0 where the row is unused. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    spread_rows(A from, A to, const int32_t *source, const float *weight, int64_t rows, int64_t d,
                int k) {
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < rows;
         row += (int64_t)gridDim.x * WARPS) {
        int32_t s = source[row];
        float by = s < 0 ? 0 : weight ? weight[s] : 1;
        int64_t at = s < 0 ? 0 : (int64_t)(s / k) * d, out = row * d;
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d; i += WARP * EIGHT) {
            float v[8] = { 0 };
            if (s >= 0) from.load(at + i, at + d, v);
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] *= by;
            to.store(out + i, out + d, v);
        }
    }
}

/* to[t] = the sum of from[row] over the token's rows, each times its weight. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    sum_rows(A from, A to, const int32_t *row, const float *weight, int64_t tokens, int64_t d,
             int k) {
    for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; t < tokens;
         t += (int64_t)gridDim.x * WARPS)
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d; i += WARP * EIGHT) {
            float sum[8] = { 0 }, v[8];
            for (int64_t c = t * k; c < (t + 1) * k; c++) {
                if (row[c] < 0) continue;
                int64_t at = (int64_t)row[c] * d;
                float by = weight ? weight[c] : 1;
                from.load(at + i, at + d, v);
#pragma unroll
                for (int e = 0; e < 8; e++) sum[e] += by * v[e];
            }
            to.store(t * d + i, (t + 1) * d, sum);
        }
}

/* dweight of a choice: dz[token] . y[row]. A warp per choice. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    dot_rows(A dz, A y, const int32_t *row, float *dweight, int64_t choices, int64_t d, int k) {
    for (int64_t c = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; c < choices;
         c += (int64_t)gridDim.x * WARPS) {
        int64_t from = c / k * d, at = (int64_t)row[c] * d;
        float sum = 0, a[8], b[8];
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d && row[c] >= 0; i += WARP * EIGHT) {
            dz.load(from + i, from + d, a);
            y.load(at + i, at + d, b);
#pragma unroll
            for (int e = 0; e < 8; e++) sum += a[e] * b[e];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) dweight[c] = sum;
    }
}

static void launch_spread(const op_call *c, const tensor *from, const tensor *to,
                          const tensor *source, const float *weight, int64_t k) {
    const tensor *all[] = { from, to };
    int64_t rows = to->dim[0], d = to->dim[1];
    int blocks = grid_for(cuda_of(c), rows, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP }, spread_rows<A>, A(*from), A(*to),
                     (const int32_t *)source->data, weight, rows, d, (int)k));
}

static void launch_sum(const op_call *c, const tensor *from, const tensor *to, const tensor *row,
                       const float *weight) {
    const tensor *all[] = { from, to };
    int64_t tokens = to->dim[0], d = to->dim[1];
    int blocks = grid_for(cuda_of(c), tokens, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP }, sum_rows<A>, A(*from), A(*to),
                     (const int32_t *)row->data, weight, tokens, d, (int)row->dim[1]));
}

/* The dot products of tokens with their rows, one per choice. */
static void launch_dot(const op_call *c, const tensor *tokens, const tensor *rows,
                       const tensor *row, const tensor *to) {
    const tensor *all[] = { tokens, rows };
    int64_t choices = tensor_count(row), d = tokens->dim[1];
    int blocks = grid_for(cuda_of(c), choices, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP }, dot_rows<A>, A(*tokens), A(*rows),
                     (const int32_t *)row->data, (float *)to->data, choices, d, (int)row->dim[1]));
}

static void cuda_dispatch(const op_call *c) {
    launch_spread(c, &c->in[0], &c->out[0], &c->in[2], NULL, c->in[1].dim[1]);
}
static void cuda_dispatch_bwd(const op_call *c) {
    launch_sum(c, &c->in[0], &c->out[0], &c->in[1], NULL);
}
static void cuda_combine(const op_call *c) {
    launch_sum(c, &c->in[0], &c->out[0], &c->in[2], (const float *)c->in[1].data);
}
static void cuda_combine_bwd(const op_call *c) {
    const tensor *dz = &c->in[0], *row = &c->in[3];
    launch_spread(c, dz, &c->out[0], &c->in[4], (const float *)c->in[2].data, row->dim[1]);
    launch_dot(c, dz, &c->in[1], row, &c->out[1]);
}

static void cuda_dispatch_weighted(const op_call *c) {
    launch_spread(c, &c->in[0], &c->out[0], &c->in[3], (const float *)c->in[1].data,
                  c->in[2].dim[1]);
}
static void cuda_dispatch_weighted_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *x = &c->in[1], *row = &c->in[3];
    if (c->out[0].data) launch_sum(c, dy, &c->out[0], row, (const float *)c->in[2].data);
    if (c->out[1].data) launch_dot(c, x, dy, row, &c->out[1]);
}

/* ---- rows between ranks ------------------------------------------------------------------------------- */
static __global__ void count_rows(const int32_t *offset, int32_t *count, int64_t experts) {
    int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (e < experts) count[e] = offset[e + 1] - offset[e];
}

static void cuda_expert_rows(const op_call *c) {
    int64_t experts = c->out[0].dim[0];
    LAUNCH(cuda_of(c), { blocks_for(experts, WARP), WARP }, count_rows,
           (const int32_t *)c->in[0].data, (int32_t *)c->out[0].data, experts);
}

/* Rows by rank and expert to rows by expert and rank, or back. A warp per row of the grouped order, which finds
 * its part by a walk over the counts: there are as many as experts. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    group_rows(A from, A to, const int32_t *count, int32_t *offset, int64_t rows, int64_t d,
               int experts, int ranks, bool to_groups) {
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < rows;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t first = 0, apart = 0;
        int part = 0; /* e ranks + j */
        for (; part < experts * ranks && row >= first + count[part]; part++) first += count[part];
        bool used = part < experts * ranks;
        int e = part / ranks, j = part % ranks;
        for (int i = 0; used && i < experts * ranks; i++)
            if (i % ranks < j || (i % ranks == j && i / ranks < e)) apart += count[i];
        apart += row - first;
        int64_t at = (to_groups ? apart : row) * d, out = (to_groups || !used ? row : apart) * d;
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < d; i += WARP * EIGHT) {
            float v[8] = { 0 };
            if (used) from.load(at + i, at + d, v);
            to.store(out + i, out + d, v);
        }
    }
    if (!offset || blockIdx.x || threadIdx.x) return;
    int32_t at = 0;
    for (int i = 0; i <= experts * ranks; i++) {
        if (i % ranks == 0) offset[i / ranks] = at;
        if (i < experts * ranks) at += count[i];
    }
}

/* Also of gradients: the backward of one order is the other. */
static void cuda_group_rows(const op_call *c) {
    const tensor *from = &c->in[0], *to = &c->out[0], *all[] = { from, to };
    int64_t rows = to->dim[0], d = to->dim[1];
    bool to_groups = c->op == OP_GROUP_ROWS || c->op == OP_UNGROUP_ROWS_BWD;
    int32_t *offset = c->op == OP_GROUP_ROWS ? (int32_t *)c->out[1].data : NULL;
    int blocks = grid_for(cuda_of(c), rows, WARPS, PER_SM);
    WITH_TYPE(common_type(d, all, 2),
              LAUNCH(cuda_of(c), { blocks, WARPS * WARP }, group_rows<A>, A(*from), A(*to),
                     (const int32_t *)c->in[1].data, offset, rows, d, (int)c->in[1].dim[0],
                     (int)c->in[1].dim[1], to_groups));
}

/* ---- GEMMs ------------------------------------------------------------------------------------------ */
enum { TILE = 64, DEPTH = 16, THREADS = 256, PER_THREAD = 4 };

/* An operand as rows by the summed dim: element (i, l) is p[i ld + l], transposed p[l ld + i]. */
struct gemm_operand {
    const void *p;
    int dt;
    int64_t ld;
    bool transposed;
    __device__ __forceinline__ float at(int64_t i, int64_t l) const {
        return read1(p, dt, transposed ? l * ld + i : i * ld + l);
    }
};

/* Copies DEPTH x TILE elements, 0 beyond the operand, to shared memory. */
static __device__ void load_operand_tile(const gemm_operand &s, int64_t i0, int64_t rows,
                                         int64_t l0, int64_t depth, float to[DEPTH][TILE + 1]) {
    for (int n = threadIdx.x; n < TILE * DEPTH; n += THREADS) {
        int i = s.transposed ? n % TILE : n / DEPTH, l = s.transposed ? n / TILE : n % DEPTH;
        to[l][i] = i0 + i < rows && l0 + l < depth ? s.at(i0 + i, l0 + l) : 0;
    }
}

/* out (+)= a b^T of one tile: a[m,k], b[n,k]. */
struct tile_out {
    void *p;
    int dt;
    int64_t ld;
    bool add;
};
static __device__ void multiply_tile(const gemm_operand &a, const gemm_operand &b, int64_t m,
                                     int64_t n, int64_t k, int64_t i0, int64_t j0,
                                     const tile_out &out) {
    __shared__ float sa[DEPTH][TILE + 1], sb[DEPTH][TILE + 1];
    float sum[PER_THREAD][PER_THREAD] = { { 0 } };
    int ti = threadIdx.x / (TILE / PER_THREAD) * PER_THREAD,
        tj = threadIdx.x % (TILE / PER_THREAD) * PER_THREAD;
    for (int64_t l0 = 0; l0 < k; l0 += DEPTH) {
        load_operand_tile(a, i0, m, l0, k, sa);
        load_operand_tile(b, j0, n, l0, k, sb);
        __syncthreads();
        for (int l = 0; l < DEPTH; l++)
#pragma unroll
            for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
                for (int j = 0; j < PER_THREAD; j++) sum[i][j] += sa[l][ti + i] * sb[l][tj + j];
        __syncthreads();
    }
    for (int i = 0; i < PER_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++) {
            if (i0 + ti + i >= m || j0 + tj + j >= n) continue;
            int64_t at = (i0 + ti + i) * out.ld + j0 + tj + j;
            write1(out.p, out.dt, at, sum[i][j] + (out.add ? ((const float *)out.p)[at] : 0));
        }
}

struct expert_groups {
    const int32_t *offset; /* NULL: equal groups */
    int64_t rows, experts;
    __device__ __forceinline__ int64_t first(int64_t e) const {
        return offset ? offset[e] : e * (rows / experts);
    }
};

static __device__ __forceinline__ gemm_operand operand_rows(const tensor &t, int64_t first_row,
                                                            bool transposed) {
    const char *p = (const char *)t.data;
    int size = t.dt == DT_F32 ? 4 : 2;
    return { p + first_row * t.dim[1] * size, (int)t.dt, t.dim[1], transposed };
}

/* y = x w^T, or dx = dy w with `transposed`. Grid: (columns / 64, rows / 64 + experts + 1): the tiles of
 * all groups one after another, then the rows that belong to none, which become 0. */
static __global__ void __launch_bounds__(THREADS)
    multiply_groups(tensor x, tensor w, tensor y, expert_groups g, bool transposed) {
    int64_t tile = blockIdx.y, e = 0, first = 0, rows = 0;
    for (; e < g.experts; e++) {
        first = g.first(e);
        rows = g.first(e + 1) - first;
        int64_t tiles = (rows + TILE - 1) / TILE;
        if (tile < tiles) break;
        tile -= tiles;
    }
    int64_t cols = y.dim[1], j0 = (int64_t)blockIdx.x * TILE, i0 = tile * TILE;
    int64_t f = w.dim[0] / g.experts;
    if (e < g.experts) {
        gemm_operand out = operand_rows(y, first, false);
        multiply_tile(operand_rows(x, first, false), operand_rows(w, e * f, transposed), rows, cols,
                      x.dim[1], i0, j0, { (void *)out.p, out.dt, cols, false });
        return;
    }
    first = g.first(g.experts) + i0;
    for (int n = threadIdx.x; n < TILE * TILE; n += THREADS) {
        int64_t i = first + n / TILE, j = j0 + n % TILE;
        if (i < y.dim[0] && j < cols) write1(y.data, y.dt, i * cols + j, 0);
    }
}

/* dw = dy^T x of each group. Grid: (K / 64, F / 64, experts). */
static __global__ void __launch_bounds__(THREADS)
    multiply_group_gradients(tensor dy, tensor x, tensor dw, expert_groups g, bool add) {
    int64_t e = blockIdx.z, first = g.first(e), rows = g.first(e + 1) - first;
    int64_t f = dw.dim[0] / g.experts, k = dw.dim[1];
    gemm_operand out = operand_rows(dw, e * f, false);
    multiply_tile(operand_rows(dy, first, true), operand_rows(x, first, true), f, k, rows,
                  (int64_t)blockIdx.y * TILE, (int64_t)blockIdx.x * TILE,
                  { (void *)out.p, out.dt, k, add });
}

static expert_groups groups_of(const op_call *c) {
    return { (const int32_t *)c->in[2].data, c->in[0].dim[0], c->attr.experts };
}

/* grouped_hopper.cu counts in it which tiles are taken. */
static size_t cuda_grouped_workspace(const op_backend *b, const op_call *c, int threads) {
    return sizeof(int);
}

static void cuda_grouped_linear(const op_call *c) {
    if (cuda_grouped_hopper(c)) return;
    const tensor *y = &c->out[0];
    dim3 blocks(blocks_for(y->dim[1], TILE),
                blocks_for(y->dim[0], TILE) + (unsigned)c->attr.experts + 1);
    LAUNCH(cuda_of(c), { blocks, THREADS }, multiply_groups, c->in[0], c->in[1], *y, groups_of(c),
           c->op == OP_GROUPED_LINEAR_BWD_X);
}

static void cuda_grouped_linear_bwd_w(const op_call *c) {
    if (cuda_grouped_hopper(c)) return;
    const tensor *dw = &c->out[0];
    int64_t f = dw->dim[0] / c->attr.experts;
    dim3 blocks(blocks_for(dw->dim[1], TILE), blocks_for(f, TILE), (unsigned)c->attr.experts);
    LAUNCH(cuda_of(c), { blocks, THREADS }, multiply_group_gradients, c->in[0], c->in[1], *dw,
           groups_of(c), (bool)(c->accumulate & 1));
}

/* ---- biases ------------------------------------------------------------------------------------- */
/* z = y + the vector of the row's expert; a copy without b. A warp per row. */
template <class A>
static __global__ void __launch_bounds__(WARPS *WARP)
    add_expert_bias(A y, mixed b, A z, expert_groups g, int64_t f) {
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < g.rows;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t e = 0, end = g.experts; /* g.first(e) <= row, unless it belongs to no expert */
        while (end - e > 1) {
            int64_t middle = (e + end) / 2;
            if (g.first(middle) <= row)
                e = middle;
            else
                end = middle;
        }
        bool adds = b.present() && row < g.first(e + 1);
        for (int64_t i = threadIdx.x % WARP * EIGHT; i < f; i += WARP * EIGHT) {
            float v[8], own[8];
            y.load(row * f + i, (row + 1) * f, v);
            if (adds) {
                b.load(e * f + i, (e + 1) * f, own);
#pragma unroll
                for (int k = 0; k < 8; k++) v[k] += own[k];
            }
            z.store(row * f + i, (row + 1) * f, v);
        }
    }
}

/* db of each expert: a thread per column adds the rows in order. Grid: (columns / 256, experts). */
static __global__ void __launch_bounds__(THREADS)
    sum_expert_bias(mixed dz, float *db, expert_groups g, int64_t f, bool add) {
    int64_t e = blockIdx.y, col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= f) return;
    float sum = add ? db[e * f + col] : 0;
    for (int64_t row = g.first(e); row < g.first(e + 1); row++)
        sum += read1(dz.p, dz.dt, row * f + col);
    db[e * f + col] = sum;
}

static void cuda_expert_bias(const op_call *c) {
    const tensor *y = &c->in[0], *z = &c->out[0], *all[] = { y, z };
    bool forward = c->op == OP_EXPERT_BIAS;
    expert_groups g = { (const int32_t *)c->in[1].data, y->dim[0], c->attr.experts };
    int64_t f = y->dim[1];
    mixed b = forward ? mixed(c->in[2], f) : mixed();
    if (z->data && (z->data != y->data || b.p))
        WITH_TYPE(common_type(f, all, 2),
                  LAUNCH(cuda_of(c), { grid_for(cuda_of(c), g.rows, WARPS, PER_SM), WARPS * WARP },
                         add_expert_bias<A>, A(*y), b, A(*z), g, f));
    if (forward || !c->out[1].data) return;
    dim3 blocks(blocks_for(f, THREADS), (unsigned)g.experts);
    LAUNCH(cuda_of(c), { blocks, THREADS }, sum_expert_bias, mixed(*y), (float *)c->out[1].data, g,
           f, (bool)(c->accumulate & 2));
}

KERNEL(DISPATCH_WEIGHTED, cuda_dispatch_weighted);
KERNEL(DISPATCH_WEIGHTED_BWD, cuda_dispatch_weighted_bwd);
KERNEL(COMBINE_SUM, cuda_dispatch_bwd); /* each is the other's gradient */
KERNEL(COMBINE_SUM_BWD, cuda_dispatch);
KERNEL(EXPERT_BIAS, cuda_expert_bias, NULL, ATTR(EXPERTS));
KERNEL(EXPERT_BIAS_BWD, cuda_expert_bias, NULL, ATTR(EXPERTS));
KERNEL(EXPERT_ROWS, cuda_expert_rows);
KERNEL(GROUP_ROWS, cuda_group_rows);
KERNEL(GROUP_ROWS_BWD, cuda_group_rows);
KERNEL(UNGROUP_ROWS, cuda_group_rows);
KERNEL(UNGROUP_ROWS_BWD, cuda_group_rows);
KERNEL(DISPATCH, cuda_dispatch);
KERNEL(DISPATCH_BWD, cuda_dispatch_bwd);
KERNEL(COMBINE, cuda_combine);
KERNEL(COMBINE_BWD, cuda_combine_bwd);
KERNEL(GROUPED_LINEAR, cuda_grouped_linear, cuda_grouped_workspace, ATTR(EXPERTS));
KERNEL(GROUPED_LINEAR_BWD_X, cuda_grouped_linear, cuda_grouped_workspace, ATTR(EXPERTS));
KERNEL(GROUPED_LINEAR_BWD_W, cuda_grouped_linear_bwd_w, cuda_grouped_workspace, ATTR(EXPERTS));
