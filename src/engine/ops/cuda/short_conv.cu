/* A short causal convolution of each column, and SiLU; the formulas are those of cpu/short_conv.c. A thread per element:
 * neighboring threads have neighboring columns; rows that taps read again are in L2. The gradient of w is summed by RUNS runs of rows into
 * rows of the workspace, which are then added in order: deterministic. In generation a thread has a column of a sequence. */
#include "device.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { THREADS = 256, RUNS = 128 };

typedef struct conv_shape {
    mixed x, w;
    const int32_t *start;
    int64_t n, cols;
    int taps;
} conv_shape;

static conv_shape conv_shape_of(const tensor *x) {
    conv_shape s = {};
    s.x = mixed(*x), s.w = mixed(x[1]);
    s.n = x->dim[0], s.cols = x->dim[1], s.taps = (int)x[1].dim[1];
    return s;
}

static __device__ float tap_of(const conv_shape &s, int64_t col, int back) {
    return read1(s.w.p, s.w.dt, col * s.taps + s.taps - 1 - back);
}
static __device__ float convolve(const conv_shape &s, int64_t row, int64_t col) {
    float p = 0;
    for (int k = 0; k < s.taps && row - k >= s.start[row]; k++)
        p += tap_of(s, col, k) * read1(s.x.p, s.x.dt, (row - k) * s.cols + col);
    return p;
}
static __device__ float slope_of(const conv_shape &s, const mixed &dy, int64_t row, int64_t col) {
    float p = convolve(s, row, col), g = sigmoid(p);
    return read1(dy.p, dy.dt, row * s.cols + col) * g * (1 + p * (1 - g));
}

static __global__ void __launch_bounds__(THREADS) short_conv(conv_shape s, mixed y) {
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= s.n * s.cols) return;
    float p = convolve(s, at / s.cols, at % s.cols);
    write1(y.p, y.dt, at, p * sigmoid(p));
}

static __global__ void __launch_bounds__(THREADS) short_conv_dx(conv_shape s, mixed dy, mixed dx) {
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / s.cols, col = at % s.cols;
    if (at >= s.n * s.cols) return;
    float sum = 0;
    for (int k = 0; k < s.taps && row + k < s.n && s.start[row + k] <= row; k++)
        sum += tap_of(s, col, k) * slope_of(s, dy, row + k, col);
    write1(dx.p, dx.dt, at, sum);
}

/* Grid: (blocks of columns, runs of `each` rows). */
static __global__ void __launch_bounds__(THREADS)
    short_conv_dw(conv_shape s, mixed dy, float *partial, int64_t each, int64_t wide) {
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x, from = blockIdx.y * each;
    if (col >= s.cols) return;
    float *sum = partial + blockIdx.y * wide + col * s.taps;
    for (int t = 0; t < s.taps; t++) sum[t] = 0;
    for (int64_t row = from; row < from + each && row < s.n; row++) {
        float dp = slope_of(s, dy, row, col);
        for (int k = 0; k < s.taps && row - k >= s.start[row]; k++)
            sum[s.taps - 1 - k] += dp * read1(s.x.p, s.x.dt, (row - k) * s.cols + col);
    }
}

static void cuda_short_conv(const op_call *c) {
    conv_shape s = conv_shape_of(&c->in[0]);
    s.start = (const int32_t *)c->in[2].data;
    LAUNCH(cuda_of(c), { blocks_for(s.n * s.cols, THREADS), THREADS }, short_conv, s,
           mixed(c->out[0]));
}

static void cuda_short_conv_bwd(const op_call *c) {
    conv_shape s = conv_shape_of(&c->in[1]);
    s.start = (const int32_t *)c->in[3].data;
    if (c->out[0].data)
        LAUNCH(cuda_of(c), { blocks_for(s.n * s.cols, THREADS), THREADS }, short_conv_dx, s,
               mixed(c->in[0]), mixed(c->out[0]));
    if (!c->out[1].data) return;
    int64_t each = ceil_div(s.n, (int64_t)RUNS), runs = ceil_div(s.n, each), d = s.cols * s.taps;
    int wide = (int)align_up((size_t)d, EIGHT);
    float *partial = (float *)c->run->workspace;
    LAUNCH(cuda_of(c), { dim3(blocks_for(s.cols, THREADS), (unsigned)runs), THREADS },
           short_conv_dw, s, mixed(c->in[0]), partial, each, wide);
    cuda_sums o = {
        { (float *)c->out[1].data, NULL }, { (c->accumulate >> 1 & 1) != 0, false }, (int)d, wide
    };
    cuda_add_partials(cuda_of(c), partial, (int)runs, 1, &o);
}

static size_t cuda_short_conv_workspace(const op_backend *b, const op_call *c, int threads) {
    return RUNS * align_up((size_t)(c->in[2].dim[0] * c->in[2].dim[1]), EIGHT) * sizeof(float);
}

/* Grid: (blocks of columns, sequences). */
static __global__ void __launch_bounds__(THREADS)
    short_conv_cached(conv_shape s, float *all, const int32_t *pos, mixed y, int seq) {
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int kept = s.taps - 1;
    if (col >= s.cols) return;
    float *state = all + (int64_t)blockIdx.y * kept * s.cols + col, p = 0;
    for (int64_t i = 0; i < s.n; i++) {
        if (s.start[i] / seq != (int)blockIdx.y) continue;
        if (!i || s.start[i] != s.start[i - 1] || pos[i] != pos[i - 1]) {
            float x = read1(s.x.p, s.x.dt, i * s.cols + col);
            p = tap_of(s, col, 0) * x;
            for (int k = 0; k < kept; k++) {
                float old = pos[i] == 0 ? 0 : state[k * s.cols];
                p += tap_of(s, col, kept - k) * old;
                state[k * s.cols] = k + 1 == kept ? x : pos[i] == 0 ? 0 : state[(k + 1) * s.cols];
            }
        }
        write1(y.p, y.dt, i * s.cols + col, p * sigmoid(p));
    }
}

static void cuda_short_conv_cached(const op_call *c) {
    conv_shape s = conv_shape_of(&c->in[0]);
    s.start = (const int32_t *)c->in[4].data;
    LAUNCH(cuda_of(c), { dim3(blocks_for(s.cols, THREADS), (unsigned)c->in[2].dim[0]), THREADS },
           short_conv_cached, s, (float *)c->in[2].data, (const int32_t *)c->in[3].data,
           mixed(c->out[0]), c->attr.heads.seq);
}

KERNEL(SHORT_CONV, cuda_short_conv);
KERNEL(SHORT_CONV_BWD, cuda_short_conv_bwd, cuda_short_conv_workspace);
KERNEL(SHORT_CONV_CACHED, cuda_short_conv_cached, NULL, ATTR(SEQ));
