/* Linear layers of few tokens: a step of generation. Each weight is read once and multiplied by up to MOST rows, so that the
 * speed of memory is the limit; tensor cores would work on tiles that are mostly empty.
 *
 *     multiply_few     a warp has one or two columns of y, and AHEAD loads of eight weights per lane on their way
 *
 * Warps wait for nothing but their own weights, so that many are on their way from memory at any time. A block's weights are
 * contiguous, and begin to move to L2 before the kernel waits for the one before it (machine.cuh). Deterministic; a row's result
 * does not depend on the other rows, nor on how many there are. */
#include "act.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 128, WARPS = THREADS / WARP, AHEAD = 8, MOST = 8, NO_ACT = -1 };

typedef struct few {
    int rows, act; /* act: NO_ACT, or the activation of y, whose argument is stored as `pre` */
    int64_t cols, depth;
    mixed bias, y, pre;
} few;

/* Sums each of N values over a warp; a lane keeps half of its values at each exchange. @param v a power of two of them, at most
 * WARP. @return the sum of value N * lane / WARP */
template <int N> static __device__ __forceinline__ float warp_sum_of(float (&v)[N]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int o = WARP / 2, half = N / 2; o; o /= 2, half /= 2) {
        if (half == 0) v[0] += __shfl_xor_sync(~0u, v[0], o);
#pragma unroll
        for (int i = 0; i < half; i++) {
            bool upper = lane & o;
            float sent = upper ? v[i] : v[i + half], kept = upper ? v[i + half] : v[i];
            v[i] = kept + __shfl_xor_sync(~0u, sent, o);
        }
    }
    return v[0];
}

template <int ROWS> struct few_sizes {
    enum { EACH = ROWS <= 2 ? 1 : 2, LOADS = AHEAD / EACH, STEP = WARP * EIGHT };
};

/* A lane's weights of each of a warp's columns from `at` on; columns past the end are the last one, again. */
template <class A, int EACH>
static __device__ __forceinline__ void fetch_weights(typename A::raw (&to)[EACH], A w, const few &f,
                                                     int64_t col, int64_t at) {
    if (at >= f.depth) return;
#pragma unroll
    for (int c = 0; c < EACH; c++) {
        int64_t from = min(col + c, f.cols - 1) * f.depth;
        to[c] = w.fetch(from + at, from + f.depth);
    }
}
template <class A, int ROWS, int EACH>
static __device__ __forceinline__ void multiply_weights(float (&sum)[EACH * ROWS],
                                                        const typename A::raw (&weights)[EACH], A x,
                                                        const few &f, int64_t at) {
    if (at >= f.depth) return;
    float weight[EACH][EIGHT];
#pragma unroll
    for (int c = 0; c < EACH; c++) A::widen(weights[c], weight[c]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v[EIGHT];
        x.load(min(r, f.rows - 1) * f.depth + at, f.rows * f.depth, v);
#pragma unroll
        for (int c = 0; c < EACH; c++)
#pragma unroll
            for (int k = 0; k < EIGHT; k++) sum[c * ROWS + r] += v[k] * weight[c][k];
    }
}

static __device__ __forceinline__ void write_few(const few &f, int row, int64_t col, float y) {
    if (row >= f.rows || col >= f.cols) return;
    if (f.bias.present()) y += read1(f.bias.p, f.bias.dt, col);
    int64_t to = row * f.cols + col;
    if (f.act != NO_ACT) {
        y = f.pre.round(y);
        if (f.pre.present()) write1(f.pre.p, f.pre.dt, to, y);
        y = gelu(y, (act_kind)f.act);
    }
    write1(f.y.p, f.y.dt, to, y);
}

template <class A, int ROWS>
static __global__ void __launch_bounds__(THREADS) multiply_few(A x, A w, few f) {
    typedef few_sizes<ROWS> S;
    enum { EACH = S::EACH, SUMS = EACH * ROWS };
    int lane = threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * WARPS * EACH, col = first + threadIdx.x / WARP * EACH;
    typename A::raw weights[S::LOADS][EACH];
    float sum[SUMS] = { 0 };
    if (threadIdx.x == 0)
        move_to_l2(w.p + first * f.depth,
                   min((int64_t)WARPS * EACH, f.cols - first) * f.depth * sizeof *w.p);
    await_previous();
#pragma unroll
    for (int i = 0; i < S::LOADS; i++)
        fetch_weights<A, EACH>(weights[i], w, f, col, lane * EIGHT + i * S::STEP);
    for (int64_t at = lane * EIGHT; at < f.depth; at += S::LOADS * S::STEP)
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            int64_t now = at + i * S::STEP;
            multiply_weights<A, ROWS, EACH>(sum, weights[i], x, f, now);
            fetch_weights<A, EACH>(weights[i], w, f, col, now + S::LOADS * S::STEP);
        }
    float y = warp_sum_of(sum);
    int i = lane * SUMS / WARP;
    if (lane % (WARP / SUMS) == 0) write_few(f, i % ROWS, col + i / ROWS, y);
}

template <class A, int ROWS> static void launch_few_rows(const op_call *c, const few &f) {
    unsigned blocks = blocks_for(f.cols, WARPS * few_sizes<ROWS>::EACH);
    LAUNCH(cuda_of(c), { blocks, THREADS, 0, true }, (multiply_few<A, ROWS>), A(c->in[0]),
           A(c->in[1]), f);
}
template <class A> static void launch_few(const op_call *c, const few &f) {
    if (f.rows == 1)
        launch_few_rows<A, 1>(c, f);
    else if (f.rows == 2)
        launch_few_rows<A, 2>(c, f);
    else if (f.rows <= 4)
        launch_few_rows<A, 4>(c, f);
    else
        launch_few_rows<A, 8>(c, f);
}

extern "C" bool cuda_linear_few(const op_call *c) {
    const tensor *x = &c->in[0], *w = &c->in[1], *operands[] = { x, w };
    bool gelu = c->op == OP_LINEAR_GELU;
    dtype dt = common_type(x->dim[1], operands, 2);
    if (x->dim[0] > MOST || !(dt == DT_F32 || dt == DT_BF16 || dt == DT_F16)) return false;
    few f = { (int)x->dim[0],  gelu ? (int)c->attr.act : NO_ACT,
              w->dim[0],       x->dim[1],
              mixed(c->in[2]), mixed(c->out[0]),
              mixed() };
    if (gelu) f.pre = mixed(c->out[1]);
    WITH_ONE_TYPE(dt, launch_few<A>(c, f));
    return true;
}

extern "C" bool cuda_kernels_overlap() {
    return is_compiled_to_overlap((const void *)multiply_few<typed<bf16>, 1>);
}
