/* RMS norm and layer norm, fused with the residual sum before them, and the norms of q and k heads;
 * forward and backward. All kernels are limited by memory bandwidth; each tensor is read once and written
 * once.
 *
 * A row of d columns is held in the registers of one or more warps: a thread has V vectors of eight
 * columns, STEP = 256 columns apart, so that a warp reads whole lines.
 *
 * Forward (norm_fwd): x, delta -> r, y; 2 to 4 x N x D elements. Up to 2048 columns a row has one warp
 * and a block FWD_WARPS rows; beyond, and where there are few rows, a row has several warps and a block
 * of its own. The sum x + delta is rounded to r's type before the statistics are taken, so that y can be
 * recomputed from r. The variance of layer norm is a second sum over the registers, of squared deviations
 * from the mean.
 *
 * Backward (norm_bwd): dy, r, dr -> dx, dw, db; 3 to 4 x N x D elements. A fixed grid of BLOCKS blocks,
 * one per SM of an H200, loops over the rows:
 *
 *     block | group 0: R rows | group 1: R rows | ...      a group: the warps that share a row
 *
 *   - rows arrive in shared memory by cp.async, STAGES - 1 sets of rows ahead of the arithmetic. A thread
 *     reads only what it copied itself, so that waiting for its own copies is enough, without a barrier;
 *   - the sums over a row need a barrier where a row has several warps; R rows share it;
 *   - KEEP: normalized values stay in registers between the sums and dx; otherwise they are read from
 *     shared memory again, which is cheaper than spilling registers;
 *   - weight gradients are added up in registers over all rows of a group. At the end the groups of a
 *     block add theirs in order and write one partial sum per block; add_partials (columns.cu) adds the
 *     blocks.
 *
 * Deterministic: grid, groups and the order of every sum depend on the shapes alone.
 */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { MAX_WIDTH = 16384, BLOCKS = CUDA_PARTIALS / 3, STEP = WARP * EIGHT };

/* Rows of d elements. A token has `groups` of them, contiguous from column `first` of a row of `stride`,
 * and their statistics from column stat_first of a row of stat_stride. */
typedef struct norm_shape {
    int64_t n; /* tokens x groups */
    int d, groups, first, stride, stat_first, stat_stride;
    int warps, rows; /* warps per row; rows (backward: groups) that a block has at a time */
    float eps;
    bool rms;
} norm_shape;

template <bool GROUPED>
static __device__ __forceinline__ int64_t row_offset(const norm_shape &s, int64_t row) {
    if (!GROUPED) return row * s.stride + s.first;
    return row / s.groups * s.stride + s.first + row % s.groups * s.d;
}
template <bool GROUPED>
static __device__ __forceinline__ int64_t stat_offset(const norm_shape &s, int64_t row) {
    if (!GROUPED) return row * s.stat_stride + s.stat_first;
    return row / s.groups * s.stat_stride + s.stat_first + row % s.groups;
}

static norm_shape norm_shape_of(const op_call *c, int64_t tokens, int groups, int64_t d, int first,
                                int64_t stride, bool rms) {
    BUG_IF(d > MAX_WIDTH);
    norm_shape s = {};
    s.n = tokens * groups;
    s.d = (int)d;
    s.groups = groups;
    s.first = first;
    s.stride = (int)stride;
    s.stat_stride = rms ? 1 : 2;
    s.eps = c->attr.eps;
    s.rms = rms;
    return s;
}

/* The width for accessors: rows that do not start at a multiple of eight cannot be read by eights. */
static int64_t access_unit(const norm_shape &s) { return s.stride % 8 || s.first % 8 ? 1 : s.d; }

/* The first column of a thread: a warp has V x STEP columns, a thread vectors at this column + k x STEP. */
template <int V> static __device__ __forceinline__ int first_column(const norm_shape &s) {
    int warp = threadIdx.x / WARP % s.warps, lane = threadIdx.x % WARP;
    return warp * V * STEP + lane * EIGHT;
}

/* Reduces C per-thread values across the warps that share a row and broadcasts the sums to all of their
 * threads; the rows of a block do not wait for each other. Within a warp the values are halved at each
 * exchange, so that in the end 32 / C lanes hold the warp's sum of one value.
 *
 * `smem` holds [warps of the block][C]; consecutive calls need different buffers, since no barrier
 * separates them. ALONE: a row of several warps has the block to itself, and __syncthreads serves. A named
 * barrier whose number is known only at run time reserves all 16 of the block, of the 64 that an SM has. */
template <int C, bool ALONE>
static __device__ __forceinline__ void row_sums(float v[C], const norm_shape &s, int group,
                                                float *smem) {
    enum { SHARE = WARP / C };
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float sum = warp_sums<C>(v);
    if (s.warps > 1) {
        if (lane % SHARE == 0) smem[warp * C + lane / SHARE] = sum;
        if (ALONE)
            __syncthreads();
        else
            barrier_sync(group + 1, s.warps * WARP);
        sum = 0;
        for (int i = lane % SHARE; i < s.warps; i += SHARE)
            sum += smem[(group * s.warps + i) * C + lane / SHARE];
#pragma unroll
        for (int o = SHARE / 2; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    }
#pragma unroll
    for (int c = 0; c < C; c++) v[c] = C == 1 ? sum : __shfl_sync(~0u, sum, c * SHARE);
}

/* ---- forward --------------------------------------------------------------------------------- */
enum { FWD_WARPS = 4, FWD_V = 8, MOST_WARPS = 32 };

/* Grid: n / s.rows blocks; block: s.rows x s.warps warps. */
template <class A, int V, bool RMS>
static __global__ void norm_fwd(A x, A delta, typename A::fp32 w, typename A::fp32 b, A r, A y,
                                float *stat, norm_shape s) {
    __shared__ float smem[2][WARP];
    int col = first_column<V>(s), group = threadIdx.x / (s.warps * WARP);
    int64_t row = (int64_t)blockIdx.x * s.rows + group;
    await_previous();
    if (row >= s.n) return; /* all threads of the row leave, and no others wait for them */
    bool grouped = s.groups > 1;
    int64_t base = grouped ? row_offset<true>(s, row) : row_offset<false>(s, row), end = base + s.d;
    /* without delta, an x of r's type needs no rounding */
    bool rounded = delta.present() || (!A::WHOLE && r.present());
    typename A::raw xs[V], ds[V];
    float v[V][8], sum = 0, mean = 0, by = 1.0f / s.d;
    float weight[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, bias[8] = { 0 };
    enum { EARLY = V == 1 }; /* its weights are read with x: registers are few */
#pragma unroll
    for (int k = 0; k < V; k++) {
        bool in = col + k * STEP < s.d;
        xs[k] = ds[k] = {};
        if (in) xs[k] = x.fetch(base + col + k * STEP, end);
        if (in && delta.present()) ds[k] = delta.fetch(base + col + k * STEP, end);
    }
    if (EARLY && col < s.d) {
        if (w.present()) w.load(col, s.d, weight);
        if (!RMS && b.present()) b.load(col, s.d, bias);
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        float d[8];
        A::widen(xs[k], v[k]);
        A::widen(ds[k], d);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (rounded) v[k][i] = r.round(v[k][i] + d[i]);
            sum += RMS ? v[k][i] * v[k][i] : v[k][i];
        }
        if (r.present() && col + k * STEP < s.d) r.store(base + col + k * STEP, end, v[k]);
    }
    row_sums<1, true>(&sum, s, group, smem[0]);
    if (!RMS) {
        mean = sum * by, sum = 0;
#pragma unroll
        for (int k = 0; k < V; k++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[k][i] -= mean;
                if (col + k * STEP + (A::WHOLE ? 0 : i) < s.d) sum += v[k][i] * v[k][i];
            }
        row_sums<1, true>(&sum, s, group, smem[1]);
    }
    float scale = rsqrtf(sum * by + s.eps);
    if (col == 0) {
        float *to = stat + (grouped ? stat_offset<true>(s, row) : stat_offset<false>(s, row));
        if (!RMS) *to++ = mean;
        *to = scale;
    }
    if (!y.present()) return;
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (col + k * STEP >= s.d) continue;
        if (!EARLY && w.present()) w.load(col + k * STEP, s.d, weight);
        if (!EARLY && !RMS && b.present()) b.load(col + k * STEP, s.d, bias);
#pragma unroll
        for (int i = 0; i < 8; i++) v[k][i] = v[k][i] * scale * weight[i] + bias[i];
        y.store(base + col + k * STEP, end, v[k]);
    }
}

typedef struct norm_args {
    tensor x, delta, w, b, r, y; /* delta, w, b and r may be absent */
    float *stat;
} norm_args;

template <class A, int V>
static void launch_fwd(const op_call *c, const norm_args &a, const norm_shape &s) {
    using W = typename A::fp32;
    int64_t unit = access_unit(s);
    int threads = s.rows * s.warps * WARP;
    auto kernel = s.rms ? norm_fwd<A, V, true> : norm_fwd<A, V, false>;
    LAUNCH(cuda_of(c), { blocks_for(s.n, s.rows), threads, 0, true }, kernel, A(a.x, unit),
           A(a.delta, unit), W(a.w), W(a.b), A(a.r, unit), A(a.y, unit), a.stat, s);
}

template <class A>
static void launch_fwd_by_width(const op_call *c, const norm_args &a, norm_shape s) {
    int64_t vectors = ceil_div(s.d, STEP), most = A::WHOLE ? MOST_WARPS : FWD_V;
    bool few = s.n <= BLOCKS; /* rows: a thread has as little of one as possible */
    s.warps = (int)(few ? min(vectors, most) : ceil_div(vectors, FWD_V));
    s.rows = s.warps == 1 ? FWD_WARPS : 1;
    int64_t each = ceil_div(vectors, s.warps);
    if constexpr (A::WHOLE) switch (each) {
        case 1: return launch_fwd<A, 1>(c, a, s);
        case 2: return launch_fwd<A, 2>(c, a, s);
        case 3: return launch_fwd<A, 3>(c, a, s);
        case 4: return launch_fwd<A, 4>(c, a, s);
        case 5:
        case 6: return launch_fwd<A, 6>(c, a, s);
        case 7: return launch_fwd<A, 7>(c, a, s);
        default: return launch_fwd<A, 8>(c, a, s);
        }
    else /* two shapes: a kernel for mixed types takes several times as long to compile */
        each <= 2 ? launch_fwd<A, 2>(c, a, s) : launch_fwd<A, 8>(c, a, s);
}

/* @return the common type of the activations, if they and fp32 weights can be read by eights. */
static dtype common_row_type(const norm_shape &s, const tensor *const *all, int n, const tensor &w,
                             const tensor &b) {
    const tensor *weights[] = { &w, &b };
    bool none = !w.data && !b.data;
    return none || common_type(s.d, weights, 2) == DT_F32 ? common_type(access_unit(s), all, n)
                                                          : DT_NONE;
}

static void run_fwd(const op_call *c, const norm_args &a, const norm_shape &s) {
    const tensor *all[] = { &a.x, &a.delta, &a.r, &a.y };
    WITH_TYPE(common_row_type(s, all, 4, a.w, a.b), launch_fwd_by_width<A>(c, a, s));
}

static void cuda_norm(const op_call *c) {
    bool rms = c->op == OP_RMSNORM;
    const tensor *x = &c->in[0];
    norm_shape s = norm_shape_of(c, x->dim[0], 1, x->dim[1], 0, x->dim[1], rms);
    norm_args a = {};
    a.x = *x, a.delta = c->in[1], a.w = c->in[2], a.r = c->out[0], a.y = c->out[1];
    if (!rms) a.b = c->in[3];
    a.stat = (float *)c->out[2].data;
    if (!a.delta.data && a.r.data == a.x.data) a.r.data = NULL; /* r is x already */
    run_fwd(c, a, s);
}

/* ---- backward -------------------------------------------------------------------------------- */
/* V vectors per thread and row, R rows per group at a time, STAGES sets of rows in shared memory, WARPS
 * warps per block. */
template <class A, int V, int R, int STAGES, int WARPS> struct bwd_shape {
    using access = A;
    enum { v = V, r = R, stages = STAGES, warps = WARPS, threads = WARPS * WARP };
    enum { set = 3 * R * V * threads }; /* slots of a stage: [3][R][V][threads] of dy, x, dr */
};
enum { DY, X, DR };

template <class S, bool RMS, bool GROUPED> struct bwd_thread {
    using A = typename S::access;
    enum { V = S::v, R = S::r, SUMS = RMS ? R : 2 * R };
    A dy, x, dr, dx;
    const float *stat;
    typename A::raw *slots;
    int col, group; /* the first column of its vectors; the group within the block */
    float weight[V][8], dw[V][8], db[V][8];

    static __device__ __forceinline__ int slot(int which, int r, int k) {
        return ((which * R + r) * V + k) * S::threads;
    }

    __device__ __forceinline__ void load_async(int stage, int64_t first,
                                               const norm_shape &s) const {
        typename A::raw *to = slots + stage * S::set;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= s.n) break;
            int64_t base = row_offset<GROUPED>(s, first + r), end = base + s.d;
#pragma unroll
            for (int k = 0; k < V; k++) {
                int64_t at = base + col + k * STEP;
                if (col + k * STEP >= s.d) continue; /* these slots stay 0 */
                dy.load_async(to + slot(DY, r, k), at, end);
                x.load_async(to + slot(X, r, k), at, end);
                if (dr.present()) dr.load_async(to + slot(DR, r, k), at, end);
            }
        }
        copies_commit();
    }

    __device__ __forceinline__ void load_statistics(float mean[R], float scale[R], int64_t first,
                                                    const norm_shape &s) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float *from = stat + stat_offset<GROUPED>(s, first + r);
            mean[r] = !RMS && first + r < s.n ? from[0] : 0;
            scale[r] = first + r < s.n ? from[!RMS] : 0;
        }
    }

    /* Reads a slot: g = dy and h = the normalized x, eight elements each. */
    __device__ __forceinline__ void normalize_slot(const typename A::raw *from, int r, int k,
                                                   float mean, float scale, float g[8],
                                                   float h[8]) const {
        A::widen(from[slot(DY, r, k)], g);
        A::widen(from[slot(X, r, k)], h);
#pragma unroll
        for (int i = 0; i < 8; i++) h[i] = h[i] * scale - mean * scale;
    }

    template <bool KEEP>
    __device__ __forceinline__ void process_rows(int stage, int64_t first, const float mean[R],
                                                 const float scale[R], float *smem,
                                                 const norm_shape &s) {
        const typename A::raw *from = slots + stage * S::set;
        float sum[SUMS] = { 0 }, g[KEEP ? R : 1][KEEP ? V : 1][8], h[KEEP ? R : 1][KEEP ? V : 1][8];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= s.n) break;
#pragma unroll
            for (int k = 0; k < V; k++) {
                float(&gs)[8] = g[KEEP ? r : 0][KEEP ? k : 0],
                (&hs)[8] = h[KEEP ? r : 0][KEEP ? k : 0];
                normalize_slot(from, r, k, mean[r], scale[r], gs, hs);
#pragma unroll
                for (int i = 0; i < 8; i++) { /* gs is 0 past the last element */
                    dw[k][i] += gs[i] * hs[i];
                    if (!RMS) db[k][i] += gs[i];
                    gs[i] *= weight[k][i];
                    sum[r] += gs[i] * hs[i];
                    if (!RMS) sum[SUMS - R + r] += gs[i];
                }
            }
        }
        row_sums<SUMS, false>(sum, s, group, smem);
        if (!KEEP) asm volatile("" ::: "memory"); /* forces the slots to be read again below */
        float by = 1.0f / s.d;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (first + r >= s.n) break;
            int64_t base = row_offset<GROUPED>(s, first + r);
            float along = sum[r] * by, shift = RMS ? 0 : scale[r] * sum[SUMS - R + r] * by;
#pragma unroll
            for (int k = 0; k < V; k++) {
                float(&gs)[8] = g[KEEP ? r : 0][KEEP ? k : 0],
                (&hs)[8] = h[KEEP ? r : 0][KEEP ? k : 0];
                float d[8] = { 0 };
                if (col + k * STEP >= s.d) continue;
                if (!KEEP) {
                    normalize_slot(from, r, k, mean[r], scale[r], gs, hs);
#pragma unroll
                    for (int i = 0; i < 8; i++) gs[i] *= weight[k][i];
                }
                if (dr.present()) A::widen(from[slot(DR, r, k)], d);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    d[i] = scale[r] * (gs[i] - hs[i] * along) + (d[i] - shift);
                dx.store(base + col + k * STEP, base + s.d, d);
            }
        }
    }
};

template <class S, bool RMS, bool GROUPED, bool KEEP>
static __global__ void __launch_bounds__(S::threads, 1)
    norm_bwd(typename S::access dy, typename S::access x, const float *stat,
             typename S::access::fp32 w, typename S::access dr, typename S::access dx,
             float *partial, bool biased, norm_shape s) {
    using A = typename S::access;
    DYNAMIC_SHARED(pack16, shared);
    __shared__ float smem[2][S::warps * 2 * S::r];
    const int group = threadIdx.x / (s.warps * WARP);
    bwd_thread<S, RMS, GROUPED> t = {
        dy, x, dr, dx, stat, (typename A::raw *)shared + threadIdx.x
    };
    t.col = first_column<S::v>(s), t.group = group;
#pragma unroll
    for (int k = 0; k < S::v; k++) {
#pragma unroll
        for (int i = 0; i < 8; i++) t.weight[k][i] = w.present() ? 0 : 1;
#pragma unroll
        for (int i = 0; i < 8; i++) t.dw[k][i] = t.db[k][i] = 0;
        if (w.present() && t.col + k * STEP < s.d) w.load(t.col + k * STEP, s.d, t.weight[k]);
    }
    for (int i = 0; i < S::stages * 3 * S::r * S::v; i++) t.slots[i * S::threads] = {};
    int64_t step = (int64_t)gridDim.x * s.rows * S::r;
    int64_t first = ((int64_t)blockIdx.x * s.rows + group) * S::r;
    float mean[S::r], scale[S::r], next_mean[S::r], next_scale[S::r];
    for (int i = 0; i < S::stages - 1; i++) t.load_async(i, first + i * step, s);
    t.load_statistics(mean, scale, first, s);
    for (int at = 0, turn = 0; first < s.n; first += step, turn ^= 1) {
        t.load_async(at == 0 ? S::stages - 1 : at - 1, first + (S::stages - 1) * step, s);
        t.load_statistics(next_mean, next_scale, first + step, s);
        copies_wait<S::stages - 1>();
        t.template process_rows<KEEP>(at, first, mean, scale, smem[turn], s);
        at = at == S::stages - 1 ? 0 : at + 1;
#pragma unroll
        for (int r = 0; r < S::r; r++) mean[r] = next_mean[r], scale[r] = next_scale[r];
    }
    copies_wait<0>();
    /* The groups of the block add their sums in order, the last one first; group 0 writes the partial. */
    float *sums = (float *)shared;
    int wide = (s.d + 7) / 8 * 8;
    for (int other = s.rows - 1; other >= 0; other--) {
        __syncthreads();
        float *to = other ? sums : partial + (int64_t)blockIdx.x * (biased ? 2 : 1) * wide;
#pragma unroll
        for (int k = 0; k < S::v; k++) {
            int col = t.col + k * STEP;
            if (group != other || col >= s.d) continue;
            float more[8];
            if (other < s.rows - 1) {
                read8(sums + col, more);
#pragma unroll
                for (int i = 0; i < 8; i++) t.dw[k][i] += more[i];
            }
            if (other < s.rows - 1 && biased) {
                read8(sums + wide + col, more);
#pragma unroll
                for (int i = 0; i < 8; i++) t.db[k][i] += more[i];
            }
            write8(to + col, t.dw[k]);
            if (biased) write8(to + wide + col, t.db[k]);
        }
    }
}

typedef struct norm_bwd_args {
    tensor dy, x, w, dr, dx; /* w and dr may be absent */
    const float *stat;
    float *dw, *db; /* NULL: not computed */
    bool add_w, add_b;
} norm_bwd_args;

/* @return the number of partial sums in the workspace. */
template <class S, bool KEEP>
static int launch_bwd(const op_call *c, const norm_bwd_args &a, norm_shape s) {
    using A = typename S::access;
    s.warps = (int)ceil_div(s.d, S::v * WARP * EIGHT);
    BUG_IF(s.warps > S::warps || (s.groups > 1 && !(s.rms && S::v == 1)));
    s.rows = S::warps / s.warps;
    int64_t unit = access_unit(s), blocks_wanted = ceil_div(s.n, s.rows * S::r);
    int blocks = (int)(blocks_wanted < BLOCKS ? blocks_wanted : BLOCKS),
        threads = s.rows * s.warps * WARP;
    size_t shared = S::stages * S::set * sizeof(typename A::raw);
    auto kernel = s.rms ? norm_bwd<S, true, false, KEEP> : norm_bwd<S, false, false, KEEP>;
    if constexpr (S::v == 1)
        if (s.groups > 1) kernel = norm_bwd<S, true, true, KEEP>;
    LAUNCH(cuda_of(c), { blocks, threads, shared }, kernel, A(a.dy, unit), A(a.x, unit), a.stat,
           typename A::fp32(a.w), A(a.dr, unit), A(a.dx, unit), (float *)c->run->workspace,
           a.db != NULL, s);
    return blocks;
}

/* The shapes that measured fastest on an H200 at the widths of GPT-2 and Llama. */
template <class A>
static int launch_bwd_by_width(const op_call *c, const norm_bwd_args &a, const norm_shape &s) {
    enum { TWO = 32 / sizeof(typename A::raw) }; /* two rows of 16-bit elements; one of fp32 */
    if (s.d <= 4 * STEP || s.groups > 1)
        return launch_bwd<bwd_shape<A, 1, 2, 2, 16>, false>(c, a, s);
    if constexpr (A::WHOLE) /* the next one serves mixed types too */
        if (s.d <= 8 * STEP) return launch_bwd<bwd_shape<A, 2, TWO, 2, 12>, true>(c, a, s);
    if (s.d <= 32 * STEP) return launch_bwd<bwd_shape<A, 2, 1, 2, 16>, false>(c, a, s);
    return launch_bwd<bwd_shape<A, 4, 1, 1, 16>, false>(c, a, s);
}

static void run_bwd(const op_call *c, const norm_bwd_args &a, const norm_shape &s) {
    const tensor *all[] = { &a.dy, &a.x, &a.dr, &a.dx };
    int blocks = 0;
    WITH_TYPE(common_row_type(s, all, 4, a.w, a.w), blocks = launch_bwd_by_width<A>(c, a, s));
    if (!a.dw && !a.db) return;
    cuda_sums o = { { a.dw, a.db }, { a.add_w, a.add_b }, s.d, (s.d + 7) / 8 * 8 };
    cuda_add_partials(cuda_of(c), (const float *)c->run->workspace, blocks, a.db ? 2 : 1, &o);
}

static void cuda_norm_bwd(const op_call *c) {
    bool rms = c->op == OP_RMSNORM_BWD;
    const tensor *x = &c->in[1];
    norm_shape s = norm_shape_of(c, x->dim[0], 1, x->dim[1], 0, x->dim[1], rms);
    norm_bwd_args a = {};
    a.dy = c->in[0], a.x = *x, a.w = c->in[3], a.dr = c->in[4], a.dx = c->out[0];
    a.stat = (const float *)c->in[2].data;
    a.dw = (float *)c->out[1].data, a.add_w = c->accumulate >> 1 & 1;
    a.db = rms ? NULL : (float *)c->out[2].data, a.add_b = c->accumulate >> 2 & 1;
    run_bwd(c, a, s);
}

/* ---- q and k heads ---------------------------------------------------------------------------- */
/* The shape of the norms of q (part 0) or k (part 1) in rows of q | k | v. */
static norm_shape qk_shape_of(const op_call *c, const tensor *x, int part) {
    int q = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    bool full = c->attr.heads.norm_full;
    int heads = part ? kv : q, first = part ? q * dim : 0;
    norm_shape s =
        full ? norm_shape_of(c, x->dim[0], 1, (int64_t)heads * dim, first, x->dim[1], true)
             : norm_shape_of(c, x->dim[0], heads, dim, first, x->dim[1], true);
    s.stat_stride = full ? 2 : q + kv;
    s.stat_first = part ? (full ? 1 : q) : 0;
    return s;
}

/* Copies columns from `first` on. Grid: up to 16 blocks of 256 threads per SM, which loop. */
template <class A>
static __global__ void copy_tail_columns(A x, A y, int64_t rows, int64_t stride, int64_t first) {
    int64_t width = stride - first, eights = (width + 7) / 8, total = rows * eights;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < total;
         e += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = e / eights, at = row * stride + first + e % eights * 8;
        float v[8];
        x.load(at, row * stride + stride, v);
        y.store(at, row * stride + stride, v);
    }
}

static void copy_v(const op_call *c, const tensor *x, const tensor *y) {
    if (x->data == y->data) return;
    int64_t rows = x->dim[0], stride = x->dim[1];
    int64_t first = (int64_t)(c->attr.heads.q + c->attr.heads.kv) * c->attr.heads.dim;
    const tensor *all[] = { x, y };
    dtype dt = first % 8 ? DT_NONE : common_type(stride, all, 2);
    int blocks = grid_for(cuda_of(c), rows * ceil_div(stride - first, 8), 256, 16);
    int64_t width = first % 8 ? first : stride;
    WITH_TYPE(dt, LAUNCH(cuda_of(c), { blocks, 256 }, copy_tail_columns<A>, A(*x, width),
                         A(*y, width), rows, stride, first));
}

static void cuda_qknorm(const op_call *c) {
    for (int part = 0; part < 2; part++) {
        norm_args a = {};
        a.x = c->in[0], a.w = c->in[1 + part], a.y = c->out[0];
        a.stat = (float *)c->out[1].data;
        run_fwd(c, a, qk_shape_of(c, &c->in[0], part));
    }
    copy_v(c, &c->in[0], &c->out[0]);
}

static void cuda_qknorm_bwd(const op_call *c) {
    for (int part = 0; part < 2; part++) {
        norm_bwd_args a = {};
        a.dy = c->in[0], a.x = c->in[1], a.w = c->in[3 + part], a.dx = c->out[0];
        a.stat = (const float *)c->in[2].data;
        a.dw = (float *)c->out[1 + part].data, a.add_w = c->accumulate >> (1 + part) & 1;
        run_bwd(c, a, qk_shape_of(c, &c->in[1], part));
    }
    copy_v(c, &c->in[0], &c->out[0]);
}

static size_t cuda_norm_workspace(const op_backend *b, const op_call *c, int threads) {
    size_t outputs = c->op == OP_LAYERNORM_BWD ? 2 : 1;
    return BLOCKS * outputs * align_up((size_t)c->in[1].dim[1], EIGHT) * sizeof(float);
}

KERNEL(RMSNORM, cuda_norm, NULL, ATTR(EPS));
KERNEL(RMSNORM_BWD, cuda_norm_bwd, cuda_norm_workspace);
KERNEL(LAYERNORM, cuda_norm, NULL, ATTR(EPS));
KERNEL(LAYERNORM_BWD, cuda_norm_bwd, cuda_norm_workspace);
KERNEL(QKNORM, cuda_qknorm, NULL, ATTRS_HEADS | ATTR(EPS) | ATTR(NORM_FULL));
KERNEL(QKNORM_BWD, cuda_qknorm_bwd, cuda_norm_workspace, ATTRS_HEADS | ATTR(NORM_FULL));
