/* The residual mixed with an earlier value and the RMS norm without weights that follows; the formulas are those of
 * cpu/mix_norm.c. Limited by memory bandwidth: forward reads x, delta and past and writes r, m and y; backward reads dy,
 * dm, r, past and dkept and writes dx and dpast.
 *
 * A row is held in the registers of one warp, or of the warps of a block where it is wider than those hold. A thread has
 * V vectors of eight columns, STEP = 256 columns apart, and loads them all before it uses any: with this many operands
 * the warps of an SM keep its memory busy without copies that run ahead. Backward loops over the rows with a fixed grid,
 * and each block writes its sums da and db to a row of the workspace of its own. Deterministic. */
#include "device.cuh"
#include "ops/op_table.h"

enum { STEP = WARP * EIGHT, ROWS = 4, MAX_WIDTH = 16384, WIDE_THREADS = 512 };
enum {
    BLOCKS = CUDA_PARTIALS,
    WIDE_BLOCKS = 8 * CUDA_PARTIALS / 3
}; /* of backward: 3 and 8 per SM */

typedef struct mixed_rows {
    const float *a, *b; /* a: NULL for 1 */
    int64_t n;
    int d;
    float eps;
} mixed_rows;

/* The rows of a block, and the columns of this thread: from `col` on, STEP apart. */
template <int V, bool WIDE> struct mix_place {
    int64_t row, step;
    int col;
    __device__ __forceinline__ mix_place() {
        int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        row = WIDE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * ROWS + warp;
        step = (int64_t)gridDim.x * (WIDE ? 1 : ROWS);
        col = (WIDE ? warp * V * STEP : 0) + lane * EIGHT;
    }
    /* @return the sum over the row, to all of its threads. */
    static __device__ __forceinline__ float row_sum(float v, float *smem) {
        return WIDE ? block_sum(v, smem) : warp_sum(v);
    }
};

template <class A, int V>
static __device__ __forceinline__ void fetch_row(typename A::raw to[V], const A &from, int64_t base,
                                                 int col, int d) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        to[k] = {};
        if (from.present() && col + k * STEP < d)
            to[k] = from.fetch(base + col + k * STEP, base + d);
    }
}

/* @return a r + b past, rounded, in either pass. */
template <class A>
static __device__ __forceinline__ float mixed_value(const A &as, float a, float r, float b,
                                                    float past) {
    return as.round(fmaf(a, r, b * past));
}

/* ---- forward --------------------------------------------------------------------------------- */
/* Grid: a block per ROWS rows (WIDE: per row). */
template <class A, int V, bool WIDE>
static __global__ void __launch_bounds__(WIDE ? WIDE_THREADS : ROWS *WARP)
    mix_norm_fwd(A x, A delta, A past, A r, A m, A y, A kept, float *stat, mixed_rows s) {
    __shared__ float smem[WARP];
    mix_place<V, WIDE> at;
    await_previous();
    if (at.row >= s.n) return; /* a whole warp, and no other waits for it */
    const int col = at.col, d = s.d;
    const int64_t base = at.row * d, end = base + d;
    const float a = s.a ? *s.a : 1, b = *s.b;
    typename A::raw xs[V], ds[V], ps[V];
    float v[V][8], squares = 0;
    fetch_row<A, V>(xs, x, base, col, d);
    fetch_row<A, V>(ds, delta, base, col, d);
    fetch_row<A, V>(ps, past, base, col, d);
    const A &as = m.present() ? m : x;
#pragma unroll
    for (int k = 0; k < V; k++) {
        float more[8], p[8];
        int64_t i = base + col + k * STEP;
        bool in = col + k * STEP < d;
        A::widen(xs[k], v[k]);
        A::widen(ds[k], more);
        A::widen(ps[k], p);
        if (r.present()) {
#pragma unroll
            for (int e = 0; e < 8; e++) v[k][e] = r.round(v[k][e] + more[e]);
            if (in && (delta.present() || r.p != x.p)) r.store(i, end, v[k]);
        }
        if (in && kept.present()) kept.store(i, end, p);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[k][e] = mixed_value(as, a, v[k][e], b, p[e]);
            squares += v[k][e] * v[k][e];
        }
        if (in && m.present()) m.store(i, end, v[k]);
    }
    float scale = rsqrtf(at.row_sum(squares, smem) / d + s.eps);
    if (col == 0) stat[at.row] = scale;
    if (!y.present()) return;
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int e = 0; e < 8; e++) v[k][e] *= scale;
        if (col + k * STEP < d) y.store(base + col + k * STEP, end, v[k]);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */
/* Hides what a register holds from the compiler, which would else keep each value in fp32 too, in twice the registers,
 * between the two passes over a row. */
template <class A, int V> static __device__ __forceinline__ void hide_values(typename A::raw v[V]) {
    if constexpr (A::WHOLE)
#pragma unroll
        for (int k = 0; k < V; k++)
#pragma unroll
            for (pack16 &w : v[k].w)
                asm volatile("" : "+r"(w.w[0]), "+r"(w.w[1]), "+r"(w.w[2]), "+r"(w.w[3]));
}

/* Grid: at most BLOCKS blocks (WIDE: WIDE_BLOCKS), which loop over the rows. partial: [blocks][2][EIGHT], of which the
 * first of each eight is used. */
template <class A, int V, bool WIDE>
static __global__ void __launch_bounds__(WIDE ? WIDE_THREADS : ROWS *WARP, WIDE ? 1 : 3)
    mix_norm_bwd(A dy, A r, A past, A dm, A dkept, A dx, A dpast, const float *stat, float *partial,
                 mixed_rows s) {
    __shared__ float smem[WARP];
    mix_place<V, WIDE> at;
    const int col = at.col, d = s.d;
    const float a = s.a ? *s.a : 1, b = *s.b;
    float da = 0, db = 0;
    for (int64_t row = at.row; row < s.n; row += at.step) {
        const int64_t base = row * d, end = base + d;
        typename A::raw gs[V], rs[V], ps[V], ms[V], ks[V];
        fetch_row<A, V>(gs, dy, base, col, d);
        fetch_row<A, V>(rs, r, base, col, d);
        fetch_row<A, V>(ps, past, base, col, d);
        fetch_row<A, V>(ms, dm, base, col, d);
        fetch_row<A, V>(ks, dkept, base, col, d);
        float scale = stat[row], dot = 0;
#pragma unroll
        for (int k = 0; k < V; k++) {
            float g[8], v[8], p[8];
            A::widen(gs[k], g);
            A::widen(rs[k], v);
            A::widen(ps[k], p);
#pragma unroll
            for (int e = 0; e < 8; e++) dot += g[e] * mixed_value(r, a, v[e], b, p[e]);
        }
        float along = at.row_sum(dot, smem) * scale * scale / d;
        hide_values<A, V>(gs);
        hide_values<A, V>(rs);
        hide_values<A, V>(ps);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float g[8], v[8], p[8], more[8], so_far[8];
            if (col + k * STEP >= d) continue;
            A::widen(gs[k], g);
            A::widen(rs[k], v);
            A::widen(ps[k], p);
            A::widen(ms[k], more);
            A::widen(ks[k], so_far);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float t = more[e] + scale * (g[e] - mixed_value(r, a, v[e], b, p[e]) * along);
                da += t * v[e];
                db += t * p[e];
                so_far[e] += b * t;
                g[e] = a * t;
            }
            dpast.store(base + col + k * STEP, end, so_far);
            dx.store(base + col + k * STEP, end, g);
        }
    }
    da = block_sum(da, smem);
    db = block_sum(db, smem);
    if (threadIdx.x) return;
    partial[(int64_t)blockIdx.x * 2 * EIGHT] = da;
    partial[(int64_t)blockIdx.x * 2 * EIGHT + EIGHT] = db;
}

/* ---- calls ----------------------------------------------------------------------------------- */
static mixed_rows mixed_rows_of(const op_call *c) {
    int64_t d = c->in[0].dim[1];
    BUG_IF(d > MAX_WIDTH);
    return { (const float *)c->in[3].data, (const float *)c->in[4].data, c->in[0].dim[0], (int)d,
             c->attr.eps };
}

/* @return the blocks of backward, 0 forward. */
template <class A, int V, bool WIDE> static int launch_mix(const op_call *c, const mixed_rows &s) {
    const tensor *in = c->in, *out = c->out;
    int threads = WIDE ? (int)ceil_div(s.d, V * STEP) * WARP : ROWS * WARP;
    int64_t all = WIDE ? s.n : ceil_div(s.n, ROWS), most = WIDE ? WIDE_BLOCKS : BLOCKS;
    int blocks = (int)(all < most ? all : most);
    if (c->op == OP_MIX_NORM) {
        LAUNCH(cuda_of(c), { blocks_for(all, 1), threads, 0, true }, mix_norm_fwd<A, V, WIDE>,
               A(in[0]), A(in[1]), A(in[2]), A(out[0]), A(out[1]), A(out[2]), A(out[4]),
               (float *)out[3].data, s);
        return 0;
    }
    LAUNCH(cuda_of(c), { blocks, threads }, mix_norm_bwd<A, V, WIDE>, A(in[0]), A(in[1]), A(in[2]),
           A(in[6]), A(in[7]), A(out[0]), A(out[1]), (const float *)in[5].data,
           (float *)c->run->workspace, s);
    return blocks;
}

/* A thread has so few vectors that three blocks of backward fit on an SM, with up to 170 registers per thread. */
template <class A> static int launch_mix_by_width(const op_call *c, const mixed_rows &s) {
    int64_t vectors = ceil_div(s.d, STEP);
    if constexpr (A::WHOLE)
        if (vectors == 2) return launch_mix<A, 2, false>(c, s);
    if constexpr (A::WHOLE && !A::NARROW)
        if (vectors > 3 && vectors <= 32) return launch_mix<A, 2, true>(c, s);
    if constexpr (A::NARROW) {
        if (vectors == 4) return launch_mix<A, 4, false>(c, s);
        if (vectors == 5) return launch_mix<A, 5, false>(c, s);
        if (vectors == 6) return launch_mix<A, 6, false>(c, s);
    }
    if (vectors == 1) return launch_mix<A, 1, false>(c, s);
    return vectors <= 3 ? launch_mix<A, 3, false>(c, s) : launch_mix<A, 4, true>(c, s);
}

static void cuda_mix_norm(const op_call *c) {
    const tensor *all[] = { &c->in[0],  &c->in[1],  &c->in[2], &c->out[0],
                            &c->out[1], &c->out[2], &c->out[4] };
    mixed_rows s = mixed_rows_of(c);
    WITH_TYPE(common_type(s.d, all, 7), launch_mix_by_width<A>(c, s));
}

static void cuda_mix_norm_bwd(const op_call *c) {
    const tensor *all[] = { &c->in[0], &c->in[1],  &c->in[2], &c->in[6],
                            &c->in[7], &c->out[0], &c->out[1] };
    mixed_rows s = mixed_rows_of(c);
    int blocks = 0;
    WITH_TYPE(common_type(s.d, all, 7), blocks = launch_mix_by_width<A>(c, s));
    cuda_sums o = { { (float *)c->out[2].data, (float *)c->out[3].data },
                    { (c->accumulate >> 2 & 1) != 0, (c->accumulate >> 3 & 1) != 0 },
                    1,
                    EIGHT };
    if (o.out[0] || o.out[1])
        cuda_add_partials(cuda_of(c), (const float *)c->run->workspace, blocks, 2, &o);
}

static size_t cuda_mix_norm_workspace(const op_backend *b, const op_call *c, int threads) {
    return WIDE_BLOCKS * 2 * EIGHT * sizeof(float);
}

KERNEL(MIX_NORM, cuda_mix_norm, NULL, ATTR(EPS));
KERNEL(MIX_NORM_BWD, cuda_mix_norm_bwd, cuda_mix_norm_workspace);
