/* Linear layers of few tokens: a step of generation. Each weight is read once and multiplied by up to MOST rows, so that the
 * speed of memory is the limit; tensor cores would work on tiles that are mostly empty.
 *
 *     multiply_few     grid: sets of EACH columns of y; a block's threads divide the depth among themselves
 *
 * A thread has eight elements of EACH rows of weights at a time and reads the next ones while it multiplies. A block's weights are
 * contiguous, and begin to move to L2 before the kernel waits for the one before it (machine.cuh). Deterministic; a row's result
 * does not depend on the other rows, nor on how many there are. */
#include "act.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, EACH = 4, MOST = 8, NO_ACT = -1 };

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

template <class A, int ROWS>
static __global__ void __launch_bounds__(THREADS) multiply_few(A x, A w, few f) {
    enum { SUMS = EACH * ROWS };
    __shared__ float sums[WARPS][SUMS];
    int64_t col = (int64_t)blockIdx.x * EACH, at = threadIdx.x * EIGHT;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, step = blockDim.x * EIGHT;
    int64_t from[EACH];
    typename A::raw next[EACH];
    float sum[SUMS] = { 0 };
    if (threadIdx.x == 0)
        move_to_l2(w.p + col * f.depth, min((int64_t)EACH, f.cols - col) * f.depth * sizeof *w.p);
    await_previous();
#pragma unroll
    for (int c = 0; c < EACH; c++) {
        from[c] = min(col + c, f.cols - 1) * f.depth; /* past the end the last one, again */
        if (at < f.depth) next[c] = w.fetch(from[c] + at, from[c] + f.depth);
    }
    while (at < f.depth) {
        float weight[EACH][EIGHT];
#pragma unroll
        for (int c = 0; c < EACH; c++) A::widen(next[c], weight[c]);
        int64_t now = at;
        at += step;
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (at < f.depth) next[c] = w.fetch(from[c] + at, from[c] + f.depth);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float v[EIGHT];
            x.load(min(r, f.rows - 1) * f.depth + now, f.rows * f.depth, v);
#pragma unroll
            for (int c = 0; c < EACH; c++)
#pragma unroll
                for (int k = 0; k < EIGHT; k++) sum[c * ROWS + r] += v[k] * weight[c][k];
        }
    }
    float own = warp_sum_of(sum);
    if (lane % (WARP / SUMS) == 0) sums[warp][lane * SUMS / WARP] = own;
    __syncthreads();
    int i = threadIdx.x, row = i % ROWS;
    col += i / ROWS;
    if (i >= SUMS || row >= f.rows || col >= f.cols) return;
    float y = 0;
    for (int k = 0; k < (int)(blockDim.x / WARP); k++) y += sums[k][i];
    if (f.bias.present()) y += read1(f.bias.p, f.bias.dt, col);
    int64_t to = row * f.cols + col;
    if (f.act != NO_ACT) {
        y = f.pre.round(y);
        if (f.pre.present()) write1(f.pre.p, f.pre.dt, to, y);
        y = gelu(y, (act_kind)f.act);
    }
    write1(f.y.p, f.y.dt, to, y);
}

template <class A> static void launch_few(const op_call *c, const few &f) {
    unsigned blocks = blocks_for(f.cols, EACH);
    unsigned threads = (unsigned)min((int64_t)THREADS, ceil_div(f.depth, WARP * EIGHT) * WARP);
    auto kernel = f.rows == 1   ? multiply_few<A, 1>
                  : f.rows == 2 ? multiply_few<A, 2>
                  : f.rows <= 4 ? multiply_few<A, 4>
                                : multiply_few<A, 8>;
    LAUNCH(cuda_of(c), { blocks, threads, 0, true }, kernel, A(c->in[0]), A(c->in[1]), f);
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

extern "C" int cuda_compiled_for() {
    return compiled_for((const void *)multiply_few<typed<bf16>, 1>);
}
