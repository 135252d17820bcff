/* Muon's direction: momentum, and orthogonal matrices (ops/polar.h has the iterations). What changes from step to step
 * is read from the step block on the device. Deterministic: the order of every sum depends on the shape alone.
 *
 * A matrix is small, so that calls run in groups (op_impl.run_group): one launch has the addresses of all matrices of a
 * group among its arguments, and blockIdx.y is the matrix. A call on its own is a group of one. */
#include "update.cuh"

extern "C" {
#include "ops/polar.h"
}

enum { THREADS = 256, TILE = 64 };

/* Elements [i, i + 8) of n floats; zeros beyond their end. @param eights they are aligned to 16 bytes */
static __device__ __forceinline__ void read_some(const float *p, bool eights, int64_t i, int64_t n,
                                                 float v[8]) {
    if (eights && i + EIGHT <= n) return read8(p + i, v);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = i + k < n ? p[i + k] : 0;
}
static __device__ __forceinline__ void write_some(float *p, bool eights, int64_t i, int64_t n,
                                                  const float v[8]) {
    if (eights && i + EIGHT <= n) return write8(p + i, v);
    for (int k = 0; k < 8 && i + k < n; k++) p[i + k] = v[k];
}
static bool is_aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- momentum: a thread takes EACH eights of elements ------------------------------------------------ */
enum { EACH = 2 };

typedef struct momentum_group {
    const float *g[OPS_GROUP];
    float *u[OPS_GROUP], *m[OPS_GROUP];
} momentum_group;

static __global__ void muon_momentum(momentum_group group, int64_t n, bool eights, float own,
                                     bool nesterov, const step_block *s) {
    const float *g = group.g[blockIdx.y];
    float *u = group.u[blockIdx.y], *m = group.m[blockIdx.y];
    if (s->now.skip) return;
    float mu = momentum_now(own, s);
    float scale = s->now.grad_scale, rest = 1 - mu, now = nesterov ? rest : 0;
    float then = nesterov ? mu : 1;
    int64_t first = ((int64_t)blockIdx.x * EACH * THREADS + threadIdx.x) * EIGHT;
    float gv[EACH][8], mv[EACH][8];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int64_t i = first + e * THREADS * EIGHT;
        read_some(g, eights, i, n, gv[e]);
        read_some(m, eights, i, n, mv[e]);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int64_t i = first + e * THREADS * EIGHT;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float x = gv[e][k] * scale;
            mv[e][k] = mu * mv[e][k] + rest * x;
            gv[e][k] = now * x + then * mv[e][k];
        }
        write_some(m, eights, i, n, mv[e]);
        write_some(u, eights, i, n, gv[e]);
    }
}

static bool momentum_aligned(const op_call *c) {
    return is_aligned16(c->in[0].data) && is_aligned16(c->out[0].data) &&
           is_aligned16(c->out[1].data);
}
static bool momentum_alike(const op_call *a, const op_call *b) {
    return tensor_count(&a->in[0]) == tensor_count(&b->in[0]) &&
           momentum_aligned(a) == momentum_aligned(b) &&
           a->attr.update.momentum == b->attr.update.momentum &&
           a->attr.update.nesterov == b->attr.update.nesterov;
}

static void cuda_muon_momentums(const op_call *calls, int n) {
    bool done[OPS_GROUP] = {};
    int picked[OPS_GROUP];
    while (int count = pick_alike(calls, n, OPS_GROUP, done, picked, momentum_alike)) {
        momentum_group group = {};
        const op_call *c = &calls[picked[0]];
        int64_t each = tensor_count(&c->in[0]);
        for (int i = 0; i < count; i++) {
            const op_call *own = &calls[picked[i]];
            group.g[i] = (const float *)own->in[0].data;
            group.u[i] = (float *)own->out[0].data, group.m[i] = (float *)own->out[1].data;
        }
        LAUNCH(cuda_of(c),
               { dim3(blocks_for(each, EACH * THREADS * EIGHT), (unsigned)count), THREADS },
               muon_momentum, group, each, momentum_aligned(c), c->attr.update.momentum,
               c->attr.update.nesterov, c->run->step);
    }
}
static void cuda_muon_momentum(const op_call *c) { cuda_muon_momentums(c, 1); }

/* ---- lines: rows or columns of u that are scaled as a whole --------------------------------------------
 * A kernel sums their squares; every block of the next one derives from all sums what its own lines are multiplied by,
 * so that no stage of a single block is between them. Workspace: sums [lines], moments before the step [lines], each a
 * multiple of four. */
typedef struct muon_lines {
    int64_t n;
    float *sum;   /* of squares */
    int64_t each; /* floats of the workspace per matrix of the group */
    /* NorMuon's second moments: blocks read those before the step while one of them writes the new ones. NULL: none */
    float *before, *moment;   /* set by own_lines */
    float size, beta2, share; /* size: min(R, C); share: (1 - beta2) / elements of a line */
} muon_lines;

/* The matrices of a group. */
typedef struct muon_group {
    void *packed[OPS_GROUP];
    float *u[OPS_GROUP], *moment[OPS_GROUP];
} muon_group;
/* @return the lines of this block's matrix. */
static __device__ __forceinline__ muon_lines own_lines(muon_lines lines, const muon_group &group) {
    lines.sum += blockIdx.y * lines.each;
    lines.moment = group.moment[blockIdx.y];
    lines.before = lines.sum + (lines.n + 3) / 4 * 4;
    return lines;
}
template <class A> static __device__ __forceinline__ A own_packed(A x, const muon_group &group) {
    x.p = (decltype(x.p))group.packed[blockIdx.y];
    return x;
}

static __device__ __forceinline__ void store_line_sum(const muon_lines &lines, int64_t i,
                                                      float sum) {
    lines.sum[i] = sum;
    if (lines.moment) lines.before[i] = lines.moment[i];
}

/* Lines are rows of x, of `length` elements at a distance of `wide`: a block for each. Matrices are small: many
 * threads with one load each are faster than few with several. */
enum { ROW_THREADS = 128 };
template <class A>
static __global__ void __launch_bounds__(ROW_THREADS)
    row_squares(A x, int64_t length, int64_t wide, muon_lines lines, muon_group group) {
    __shared__ float smem[ROW_THREADS / WARP];
    lines = own_lines(lines, group), x = own_packed(x, group);
    int64_t from = blockIdx.x * wide;
    float sum = 0;
    for (int64_t col = threadIdx.x * EIGHT; col < length; col += ROW_THREADS * EIGHT) {
        float v[8];
        x.load(from + col, from + length, v);
#pragma unroll
        for (int k = 0; k < 8; k++) sum += col + k < length ? v[k] * v[k] : 0;
    }
    sum = block_sum(sum, smem);
    if (threadIdx.x == 0) store_line_sum(lines, blockIdx.x, sum);
}

/* Lines are columns of x, of `length` elements: 32 to a block, whose threads have 8 columns of every 256th row. */
enum { COLUMN_THREADS = 1024, COLUMN_EIGHTS = WARP / EIGHT };
template <class A>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_squares(A x, int64_t length, int64_t wide, muon_lines lines, muon_group group) {
    lines = own_lines(lines, group), x = own_packed(x, group);
    __shared__ float smem[COLUMN_THREADS / WARP][WARP];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * WARP, col = first + lane % COLUMN_EIGHTS * EIGHT;
    int64_t end = col < lines.n ? length : 0;
    float part[8] = { 0 };
#pragma unroll 3
    for (int64_t row = threadIdx.x / COLUMN_EIGHTS; row < end;
         row += COLUMN_THREADS / COLUMN_EIGHTS) {
        float v[8];
        x.load(row * wide + col, row * wide + lines.n, v);
#pragma unroll
        for (int k = 0; k < 8; k++) part[k] += v[k] * v[k];
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
#pragma unroll
        for (int o = COLUMN_EIGHTS; o < WARP; o <<= 1) part[k] += __shfl_xor_sync(~0u, part[k], o);
        if (lane < COLUMN_EIGHTS) smem[warp][lane * EIGHT + k] = part[k];
    }
    __syncthreads();
    if (threadIdx.x >= WARP || first + lane >= lines.n) return;
    float sum = 0;
    for (int i = 0; i < COLUMN_THREADS / WARP; i++) sum += smem[i][lane];
    store_line_sum(lines, first + lane, sum);
}

/* Queues the sums of a group's lines. @param x one of its tensors, [.., wide], all in group.packed; length: elements of a
 * line; across: lines are columns of x; dt: their type, if rows are read by eights */
static void sum_lines(const op_call *c, const tensor *x, dtype dt, int64_t length, bool across,
                      const muon_lines &lines, const muon_group &group, int count) {
    int64_t wide = x->dim[1];
    launch_shape by_row = { dim3(blocks_for(lines.n, 1), (unsigned)count), ROW_THREADS };
    launch_shape by_column = { dim3(blocks_for(lines.n, WARP), (unsigned)count), COLUMN_THREADS };
    WITH_TYPE(
        dt,
        if (across) {
            LAUNCH(cuda_of(c), by_column, column_squares<A>, A(*x), length, wide, lines, group);
        } else { LAUNCH(cuda_of(c), by_row, row_squares<A>, A(*x), length, wide, lines, group); });
}

/* Lines are multiplied by `by`, each over the root of its sum or moment, or of `least` if that is larger. */
typedef struct line_scale {
    float by, least;
    float norm; /* moments: x times the root of this has the norm sqrt(size) */
} line_scale;

/* Calls f(i, sum of line i) for the block's share of the lines and adds the results, for all threads of the block. Reads
 * four lines at a time: a dependent read costs more here than all arithmetic. @param smem a float per warp */
template <class F>
static __device__ __forceinline__ float sum_over_lines(const muon_lines &lines, float *smem, F f) {
    float all = 0;
    for (int64_t i = threadIdx.x * 4; i < lines.n; i += THREADS * 4) {
        float4 v = *(const float4 *)(lines.sum + i); /* the workspace has a multiple of four */
        float four[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int k = 0; k < 4; k++) all += i + k < lines.n ? f(i + k, four[k]) : 0;
    }
    return block_sum(all, smem);
}

/* The matrix gets the norm 1 / margin. @param equal all rows get one norm */
static __device__ line_scale scale_of_rows(const muon_lines &lines, bool equal, float margin,
                                           float *smem) {
    float square = sum_over_lines(lines, smem, [](int64_t i, float sum) { return sum; }), least = 0;
    if (equal) {
        least =
            fmaxf((float)POLAR_LEAST_ROW * sqrtf(square / (float)lines.n), (float)POLAR_LEAST_NORM);
        least *= least;
        square = sum_over_lines(lines, smem, [least](int64_t i, float sum) {
            return sum * rcp_approx(fmaxf(sum, least));
        });
    }
    return { 1 / (margin * fmaxf(sqrtf(square), (float)POLAR_LEAST_NORM)), least, 0 };
}

/* @return the second moment of line i after the step. */
static __device__ __forceinline__ float moved_moment(const muon_lines &lines, float norm, int64_t i,
                                                     float sum) {
    return lines.beta2 * lines.before[i] + lines.share * norm * sum;
}

/* The matrix keeps the norm of an orthogonal one, times `by`. The first block of the grid stores the moments. */
static __device__ line_scale scale_of_moments(const muon_lines &lines, float by, float *smem) {
    float all = sum_over_lines(lines, smem, [](int64_t i, float sum) { return sum; });
    float norm = all > 0 ? lines.size / all : 0, least = (float)POLAR_LEAST_MOMENT;
    float square = sum_over_lines(lines, smem, [&lines, norm, least](int64_t i, float sum) {
        float moment = moved_moment(lines, norm, i, sum);
        if (blockIdx.x == 0) lines.moment[i] = moment;
        return norm * sum * rcp_approx(fmaxf(moment, least));
    });
    return { square > 0 ? by * sqrtf(norm * lines.size / square) : 0, least, norm };
}

/* @return the factor of line i; 0 beyond the last. */
static __device__ __forceinline__ float line_factor(const muon_lines &lines, const line_scale &s,
                                                    int64_t i) {
    if (i >= lines.n) return 0;
    float square = lines.moment ? moved_moment(lines, s.norm, i, lines.sum[i]) : lines.sum[i];
    return s.by / sqrtf(fmaxf(square, s.least));
}

/* ---- packing ----------------------------------------------------------------------------------------- */
/* A matrix u [R,C] and the packed one, x [S,L], in tiles of 64 x 64 that blocks loop over. A tile of a tall matrix is
 * transposed in shared memory. The first tile's reads are in flight while the factors are computed. */
typedef struct muon_matrix {
    int64_t rows, cols, s, l;
    int tiles, wide;   /* wide: tiles of a row of x */
    bool tall, eights; /* eights: rows of u are aligned to 16 bytes */
} muon_matrix;
enum { TILE_EIGHTS = TILE / 8, TILE_TURNS = TILE * TILE_EIGHTS / THREADS, PER_SM = 5 };

/* The most blocks of a grid: each reads the sums of all lines, which would cost more than a large matrix itself. Tests
 * set fewer. */
#ifndef MUON_BLOCKS
#define MUON_BLOCKS 660
#endif
static launch_shape packing_shape(const muon_matrix &m, int count) {
    int most = count < MUON_BLOCKS ? MUON_BLOCKS / count : 1;
    return { dim3((unsigned)(m.tiles < most ? m.tiles : most), (unsigned)count), THREADS };
}

static muon_matrix muon_matrix_of(const tensor *u, const tensor *x) {
    bool eights = u->dim[1] % 4 == 0 && is_aligned16(u->data);
    int wide = (int)ceil_div(x->dim[1], TILE), tiles = (int)ceil_div(x->dim[0], TILE) * wide;
    return {
        u->dim[0], u->dim[1], x->dim[0], x->dim[1], tiles, wide, u->dim[0] > u->dim[1], eights
    };
}

/* The first row and column of a tile, in u and in x. */
typedef struct tile_corner {
    int64_t row, col, s, l;
} tile_corner;
static __device__ __forceinline__ tile_corner corner_of(const muon_matrix &m, int tile) {
    int64_t s = (int64_t)(tile / m.wide) * TILE, l = (int64_t)(tile % m.wide) * TILE;
    return { m.tall ? l : s, m.tall ? s : l, s, l };
}

/* Eight elements of row `row` of u from column `col` on; zeros beyond its end. */
static __device__ __forceinline__ void read_row8(const float *u, const muon_matrix &m, int64_t row,
                                                 int64_t col, float v[8]) {
    read_some(u + row * m.cols, m.eights, col, row < m.rows ? m.cols : 0, v);
}
static __device__ __forceinline__ void write_row8(float *u, const muon_matrix &m, int64_t row,
                                                  int64_t col, const float v[8]) {
    write_some(u + row * m.cols, m.eights, col, row < m.rows ? m.cols : 0, v);
}

/* Lines are the rows of u. @param equal they get one norm */
template <class A>
static __global__ void __launch_bounds__(THREADS, PER_SM)
    muon_pack(A x, muon_matrix m, muon_lines lines, muon_group group, bool equal, float margin) {
    __shared__ float tile[TILE][TILE + 1], line[TILE], smem[THREADS / WARP];
    const float *u = group.u[blockIdx.y];
    lines = own_lines(lines, group), x = own_packed(x, group);
    int row = threadIdx.x / TILE_EIGHTS, col = threadIdx.x % TILE_EIGHTS * 8;
    line_scale scale = {};
    for (int t = blockIdx.x; t < m.tiles; t += gridDim.x) {
        tile_corner at = corner_of(m, t);
        float v[TILE_TURNS][8];
#pragma unroll
        for (int i = 0; i < TILE_TURNS; i++)
            read_row8(u, m, at.row + row + i * (TILE / TILE_TURNS), at.col + col, v[i]);
        if (t == blockIdx.x) scale = scale_of_rows(lines, equal, margin, smem);
        __syncthreads(); /* the tile before has been stored */
        if (threadIdx.x < TILE)
            line[threadIdx.x] = equal ? line_factor(lines, scale, at.row + threadIdx.x) : scale.by;
#pragma unroll
        for (int i = 0; i < TILE_TURNS && m.tall; i++)
#pragma unroll
            for (int k = 0; k < 8; k++) tile[row + i * (TILE / TILE_TURNS)][col + k] = v[i][k];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_TURNS; i++) {
            int own = row + i * (TILE / TILE_TURNS);
            int64_t s = at.s + own, l = at.l + col;
            if (s >= m.s || l >= m.l) continue;
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[i][k] = m.tall ? line[col + k] * tile[col + k][own] : line[own] * v[i][k];
            x.store(s * m.l + l, (s + 1) * m.l, v[i]);
        }
    }
}

/* The same tiles, the other way. @param of_rows lines are rows of u, else columns; without second moments every
 * element is multiplied by `by` */
template <class A>
static __global__ void __launch_bounds__(THREADS, PER_SM)
    muon_unpack(A x, muon_matrix m, muon_lines lines, muon_group group, bool of_rows, float by,
                const step_block *step) {
    __shared__ float tile[TILE][TILE + 1], line[TILE], smem[THREADS / WARP];
    float *u = group.u[blockIdx.y];
    lines = own_lines(lines, group), x = own_packed(x, group);
    int row = threadIdx.x / TILE_EIGHTS, col = threadIdx.x % TILE_EIGHTS * 8;
    line_scale scale = {};
    if (step->now.skip) return;
    for (int t = blockIdx.x; t < m.tiles; t += gridDim.x) {
        tile_corner at = corner_of(m, t);
        float v[TILE_TURNS][8] = {};
#pragma unroll
        for (int i = 0; i < TILE_TURNS; i++) {
            int64_t s = at.s + row + i * (TILE / TILE_TURNS), l = at.l + col;
            if (s < m.s && l < m.l) x.load(s * m.l + l, (s + 1) * m.l, v[i]);
        }
        if (t == blockIdx.x && lines.moment) scale = scale_of_moments(lines, by, smem);
        __syncthreads(); /* the tile before has been stored */
        if (threadIdx.x < TILE) {
            int64_t i = (of_rows ? at.row : at.col) + threadIdx.x;
            line[threadIdx.x] = lines.moment ? line_factor(lines, scale, i) : by;
        }
#pragma unroll
        for (int i = 0; i < TILE_TURNS && m.tall; i++)
#pragma unroll
            for (int k = 0; k < 8; k++) tile[row + i * (TILE / TILE_TURNS)][col + k] = v[i][k];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_TURNS; i++) {
            int own = row + i * (TILE / TILE_TURNS);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[i][k] = line[of_rows ? own : col + k] * (m.tall ? tile[col + k][own] : v[i][k]);
            write_row8(u, m, at.row + own, at.col + col, v[i]);
        }
    }
}

/* Operands of a call of either direction. */
typedef struct packing_call {
    const tensor *u, *x;
    float *moment; /* NULL: none */
} packing_call;
static packing_call packing_call_of(const op_call *c) {
    bool packs = c->op == OP_MUON_PACK;
    return { packs ? &c->in[0] : &c->out[0], packs ? &c->out[0] : &c->in[0],
             packs ? NULL : (float *)c->out[1].data };
}
/* @return the type of the packed matrix, if its rows are read by eights. */
static dtype packed_type(const op_call *c) {
    const tensor *x = packing_call_of(c).x;
    return common_type(x->dim[1], &x, 1);
}
static bool packing_alike(const op_call *a, const op_call *b) {
    packing_call p = packing_call_of(a), q = packing_call_of(b);
    return p.u->dim[0] == q.u->dim[0] && p.u->dim[1] == q.u->dim[1] && p.x->dim[0] == q.x->dim[0] &&
           p.x->dim[1] == q.x->dim[1] && p.x->dt == q.x->dt &&
           is_aligned16(p.u->data) == is_aligned16(q.u->data) && packed_type(a) == packed_type(b) &&
           a->attr.update.polar == b->attr.update.polar &&
           a->attr.update.equilibrate == b->attr.update.equilibrate &&
           a->attr.update.beta2 == b->attr.update.beta2;
}

static size_t cuda_muon_pack_workspace(const op_backend *b, const op_call *c, int threads) {
    return align_up((size_t)c->in[0].dim[0], 4) * sizeof(float);
}
static size_t cuda_muon_unpack_workspace(const op_backend *b, const op_call *c, int threads) {
    return align_up((size_t)c->out[1].dim[0], 4) * 2 * sizeof(float);
}

/* @param bytes of the workspace of a call @param lines its lines */
static muon_lines lines_of(const op_call *c, int64_t n, size_t bytes) {
    muon_lines lines = { n, (float *)c->run->workspace };
    lines.each = (int64_t)(align_up(bytes, 256) / sizeof(float));
    return lines;
}

static void launch_pack(const op_call *c, const muon_group &group, int count) {
    const tensor *u = &c->in[0], *x = &c->out[0];
    muon_matrix m = muon_matrix_of(u, x);
    muon_lines lines = lines_of(c, m.rows, cuda_muon_pack_workspace(NULL, c, 1));
    muon_group sources = {};
    for (int i = 0; i < count; i++) sources.packed[i] = group.u[i];
    sum_lines(c, u, common_type(m.cols, &u, 1), m.cols, false, lines, sources, count);
    WITH_TYPE(packed_type(c),
              LAUNCH(cuda_of(c), packing_shape(m, count), muon_pack<A>, A(*x), m, lines, group,
                     c->attr.update.equilibrate, (float)polar_margin(c->attr.update.polar)));
}

static void launch_unpack(const op_call *c, const muon_group &group, int count) {
    const tensor *x = &c->in[0], *u = &c->out[0];
    muon_matrix m = muon_matrix_of(u, x);
    double ratio = (double)m.rows / (double)m.cols;
    float by = (float)sqrt(ratio > 1 ? ratio : 1);
    bool of_rows = c->op == OP_MUON_UNPACK_ROWS;
    muon_lines lines = {};
    if (c->op != OP_MUON_UNPACK) {
        lines = lines_of(c, c->out[1].dim[0], cuda_muon_unpack_workspace(NULL, c, 1));
        int64_t length = of_rows ? m.cols : m.rows;
        lines.size = (float)(m.rows < m.cols ? m.rows : m.cols);
        lines.beta2 = c->attr.update.beta2, lines.share = (1 - lines.beta2) / (float)length;
        sum_lines(c, x, packed_type(c), length, of_rows == m.tall, lines, group, count);
    }
    WITH_TYPE(packed_type(c), LAUNCH(cuda_of(c), packing_shape(m, count), muon_unpack<A>, A(*x), m,
                                     lines, group, of_rows, by, c->run->step));
}

static void cuda_muon_packing(const op_call *calls, int n) {
    bool done[OPS_GROUP] = {};
    int picked[OPS_GROUP];
    while (int count = pick_alike(calls, n, OPS_GROUP, done, picked, packing_alike)) {
        muon_group group = {};
        for (int i = 0; i < count; i++) {
            packing_call own = packing_call_of(&calls[picked[i]]);
            group.packed[i] = own.x->data;
            group.u[i] = (float *)own.u->data, group.moment[i] = own.moment;
        }
        const op_call *c = &calls[picked[0]];
        c->op == OP_MUON_PACK ? launch_pack(c, group, count) : launch_unpack(c, group, count);
    }
}
static void cuda_muon_packing_alone(const op_call *c) { cuda_muon_packing(c, 1); }

/* ---- orthogonal matrices -----------------------------------------------------------------------------
 * GEMMs run on all matrices of the batch at once where orthogonalize_hopper.cu can, else one by one through cuBLASLt.
 * Workspace, each part aligned to 256 bytes: | next [B,S,L] | 4 squares [B,S,S] | cuBLASLt's |
 */
/* y = f[0] y + f[1] add + f[2] I, of matrices [S,S]; CUDA_PARTIALS blocks loop over the elements. */
static __global__ void add_terms(mixed y, mixed add, int64_t n, int64_t s, float f0, float f1,
                                 float f2) {
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EIGHT; i < n;
         i += (int64_t)gridDim.x * THREADS * EIGHT) {
        float v[8], w[8] = { 0 };
        y.load(i, n, v);
        if (add.present()) add.load(i, n, w);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int64_t at = (i + k) % (s * s);
            v[k] = f0 * v[k] + f1 * w[k] + (at / s == at % s ? f2 : 0);
        }
        y.store(i, n, v);
    }
}

/* Copies what is below the diagonals of matrices [S,S] to above them; CUDA_PARTIALS blocks loop over the elements. */
template <class T> static __global__ void mirror(T *y, int64_t n, int64_t s) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / s % s, col = i % s;
        if (col > row) y[i] = y[i + (col - row) * s - (col - row)];
    }
}

typedef struct muon_job {
    const op_call *c;
    void *workspace; /* of cuBLASLt */
} muon_job;

/* One matrix of a batch after the other. */
static void multiply_each(const muon_job *j, const tensor *a, const tensor *b, bool transposed,
                          const tensor *to) {
    for (int64_t i = 0; i < to->dim[0]; i++) {
        cuda_gemm g = {};
        g.m = to->dim[1], g.n = to->dim[2], g.k = a->dim[2];
        g.a = (const char *)a->data + i * a->dim[1] * a->dim[2] * dt_size(a->dt);
        g.b = (const char *)b->data + i * b->dim[1] * b->dim[2] * dt_size(b->dt);
        g.c = (char *)to->data + i * to->dim[1] * to->dim[2] * dt_size(to->dt);
        g.at = g.bt = g.ct = to->dt;
        g.lda = g.k, g.ldb = b->dim[2], g.ldc = g.n;
        g.tb = transposed, g.exact = true;
        cuda_gemm_require(cuda_of(j->c), &g, j->workspace);
    }
}

static void multiply_symmetric(void *context, const tensor *a, const tensor *b, const tensor *add,
                               const float f[3], const tensor *to) {
    const muon_job *j = (const muon_job *)context;
    cuda_batch_gemm g = { *a, *b, *add, *to, f[0], f[1], f[2], true };
    if (cuda_batch_gemm_hopper(cuda_of(j->c), &g)) return;
    multiply_each(j, a, b, true, to);
    int64_t n = tensor_count(to);
    launch_shape shape = { CUDA_PARTIALS, THREADS };
    if (a->data != b->data && to->dt == DT_F32)
        LAUNCH(cuda_of(j->c), shape, mirror<float>, (float *)to->data, n, to->dim[1]);
    else if (a->data != b->data)
        LAUNCH(cuda_of(j->c), shape, mirror<uint16_t>, (uint16_t *)to->data, n, to->dim[1]);
    if (!add->data) return;
    LAUNCH(cuda_of(j->c), shape, add_terms, mixed(*to, n), mixed(*add, n), n, to->dim[1], f[0],
           f[1], f[2]);
}

static void multiply_plain(void *context, const tensor *q, const tensor *x, const tensor *to) {
    const muon_job *j = (const muon_job *)context;
    cuda_batch_gemm g = { *q, *x, { 0 }, *to, 1, 0, 0, false };
    if (!cuda_batch_gemm_hopper(cuda_of(j->c), &g)) multiply_each(j, q, x, false, to);
}

/* A step that is skipped is orthogonalized too, and then not applied: GEMMs read no step block. */
static void cuda_orthogonalize(const op_call *c) {
    const tensor *x = &c->out[0];
    muon_job j = { c };
    polar_run r = { &j, *x, *x };
    char *at = (char *)c->run->workspace;
    r.next.data = at;
    at += align_up(tensor_bytes(x), 256);
    for (int i = 0; i < POLAR_SQUARES; i++) {
        int64_t dim[] = { x->dim[0], x->dim[1], x->dim[1] };
        r.square[i] = tensor_of(at, x->dt, 3, dim);
        at += align_up(tensor_bytes(&r.square[i]), 256);
    }
    j.workspace = at;
    r.symmetric = multiply_symmetric, r.apply = multiply_plain;
    polar_iterate(&r, c->attr.update.polar);
    if (r.x.data != x->data)
        CUDA_OK(cuda_of(c), cudaMemcpyAsync(x->data, r.x.data, tensor_bytes(x),
                                            cudaMemcpyDeviceToDevice, cuda_stream(c)));
}

static size_t cuda_orthogonalize_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *x = &c->out[0];
    size_t square = (size_t)(x->dim[0] * x->dim[1] * x->dim[1]) * dt_size(x->dt);
    return align_up(tensor_bytes(x), 256) + POLAR_SQUARES * align_up(square, 256) +
           CUDA_GEMM_WORKSPACE;
}

KERNEL(MUON_MOMENTUM, cuda_muon_momentum, NULL, ATTR(MOMENTUM) | ATTR(NESTEROV) | ATTR(HOST_STATE),
       cuda_muon_momentums);
KERNEL(MUON_PACK, cuda_muon_packing_alone, cuda_muon_pack_workspace,
       ATTR(POLAR) | ATTR(EQUILIBRATE), cuda_muon_packing);
KERNEL(ORTHOGONALIZE, cuda_orthogonalize, cuda_orthogonalize_workspace, ATTR(POLAR));
KERNEL(MUON_UNPACK, cuda_muon_packing_alone, NULL, 0, cuda_muon_packing);
KERNEL(MUON_UNPACK_ROWS, cuda_muon_packing_alone, cuda_muon_unpack_workspace, ATTR(BETA2),
       cuda_muon_packing);
KERNEL(MUON_UNPACK_COLS, cuda_muon_packing_alone, cuda_muon_unpack_workspace, ATTR(BETA2),
       cuda_muon_packing);
