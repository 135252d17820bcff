/* Linear layers of few tokens: a step of generation. Each weight is read once and multiplied by up to MOST rows, so that the
 * speed of memory is the limit; tensor cores would work on tiles that are mostly empty.
 *
 *     multiply_few     grid: the blocks that run at once; each loops over sets of EACH columns of y
 *
 * A block's threads divide the depth among themselves. A thread has eight elements of EACH rows of weights at a time and reads the
 * next ones, also those of the next set, while it multiplies. A block's first weights begin to move to L2 before the kernel waits for
 * the one before it (machine.cuh). Deterministic; a row's result does not depend on the other rows, nor on how many there are. */
#include "act.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, EACH = 4, MOST = 8, NO_ACT = -1 };

typedef struct few {
    int rows, act; /* act: NO_ACT, or the activation of y, whose argument is stored as `pre` */
    int rounds;    /* of a block's threads, over the depth */
    int64_t cols, depth;
    mixed bias, y, pre;
} few;

/* Ends y[row, col]. @param sums those of the warps, `apart` from each other */
static __device__ __forceinline__ void write_few(const few &f, int row, int64_t col,
                                                 const float *sums, int apart) {
    float y = 0;
    for (int k = 0; k < (int)(blockDim.x / WARP); k++) y += sums[k * apart];
    if (f.bias.present()) y += read1(f.bias.p, f.bias.dt, col);
    int64_t to = row * f.cols + col;
    if (f.act != NO_ACT) {
        y = f.pre.round(y);
        if (f.pre.present()) write1(f.pre.p, f.pre.dt, to, y);
        y = gelu(y, (act_kind)f.act);
    }
    write1(f.y.p, f.y.dt, to, y);
}

/* Blocks that an SM runs at once: what their registers allow. */
template <class A> constexpr int few_per_sm(int rows) {
    return !A::NARROW ? 2 : rows <= 2 ? 4 : rows <= 4 ? 3 : 2;
}

template <class A, int ROWS>
static __global__ void __launch_bounds__(THREADS, few_per_sm<A>(ROWS))
    multiply_few(A x, A w, few f) {
    enum { SUMS = EACH * ROWS };
    __shared__ float sums[2][WARPS][SUMS];
    int64_t first = (int64_t)blockIdx.x * EACH, next_set = (int64_t)gridDim.x * EACH;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, set = 0;
    if (threadIdx.x == 0)
        move_to_l2(w.p + first * f.depth,
                   min((int64_t)EACH, f.cols - first) * f.depth * sizeof *w.p);
    await_previous();
    typename A::raw next[EACH];
    int64_t col_ahead = first;
    int round_ahead = 0;
    auto fetch_next = [&] {
        int64_t at = (round_ahead * (int64_t)blockDim.x + threadIdx.x) * EIGHT;
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            int64_t from = min(col_ahead + c, f.cols - 1) * f.depth; /* past the end the last one */
            if (col_ahead < f.cols && at < f.depth) next[c] = w.fetch(from + at, from + f.depth);
        }
        if (++round_ahead == f.rounds) round_ahead = 0, col_ahead += next_set;
    };
    fetch_next();
    for (int64_t col = first; col < f.cols; col += next_set, set ^= 1) {
        float sum[SUMS] = { 0 };
        for (int round = 0; round < f.rounds; round++) {
            float weight[EACH][EIGHT];
#pragma unroll
            for (int c = 0; c < EACH; c++) A::widen(next[c], weight[c]);
            fetch_next();
            int64_t at = (round * (int64_t)blockDim.x + threadIdx.x) * EIGHT;
            if (at >= f.depth) continue;
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
        float whole = warp_sums<SUMS>(sum);
        if (lane % (WARP / SUMS) == 0) sums[set][warp][lane * SUMS / WARP] = whole;
        __syncthreads(); /* the only one of a set: the next set has the other buffer */
        int i = threadIdx.x, row = i % ROWS;
        if (i < SUMS && row < f.rows && col + i / ROWS < f.cols)
            write_few(f, row, col + i / ROWS, &sums[set][0][i], SUMS);
    }
}

template <class A> static void launch_few(const op_call *c, few f) {
    cuda_context *ctx = cuda_of(c);
    int threads = (int)min((int64_t)THREADS, ceil_div(f.depth, WARP * EIGHT) * WARP);
    auto kernel = f.rows == 1   ? multiply_few<A, 1>
                  : f.rows == 2 ? multiply_few<A, 2>
                  : f.rows <= 4 ? multiply_few<A, 4>
                                : multiply_few<A, 8>;
    int blocks = grid_for(ctx, f.cols, EACH, few_per_sm<A>(f.rows) * (THREADS / threads));
    f.rounds = (int)ceil_div(f.depth, threads * EIGHT);
    LAUNCH(ctx, { blocks, threads, 0, true }, kernel, A(c->in[0]), A(c->in[1]), f);
}

extern "C" bool cuda_linear_few(const op_call *c) {
    const tensor *x = &c->in[0], *w = &c->in[1], *operands[] = { x, w };
    bool gelu = c->op == OP_LINEAR_GELU;
    dtype dt = common_type(x->dim[1], operands, 2);
    if (x->dim[0] > MOST || !(dt == DT_F32 || dt == DT_BF16 || dt == DT_F16)) return false;
    few f = {};
    f.rows = (int)x->dim[0], f.act = gelu ? (int)c->attr.act : NO_ACT;
    f.cols = w->dim[0], f.depth = x->dim[1];
    f.bias = mixed(c->in[2]), f.y = mixed(c->out[0]);
    if (gelu) f.pre = mixed(c->out[1]);
    WITH_ONE_TYPE(dt, launch_few<A>(c, f));
    return true;
}

extern "C" int cuda_compiled_for() {
    return compiled_for((const void *)multiply_few<typed<bf16>, 1>);
}
