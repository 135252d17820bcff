/* Quantizes tensors to fp8, and writes transposes for GEMMs, whose fp8 operands must both be contiguous
 * along K.
 *
 * Grid: a block of 256 threads per tile of 128 x 128. A thread has 8 rows of 8 elements, 16 bytes each for
 * bf16: it loads several rows before it uses the first, scales, converts and stores rows of 8 bytes, and
 * transposes its 8 x 8 square in registers. The transpose of the tile passes through shared memory, so
 * that it too is stored in lines of 128 bytes.
 *
 *     thread (c, r) of 16 x 16:   rows 8r..8r+7, columns 8c..8c+7
 *     shared memory               [128 columns][16 units of 8 bytes, one per thread r]
 *
 * The unit of thread r lies at r ^ c: then the 16 threads that write at once (all c), and the 8 that read
 * a line, never hit the same bank twice.
 *
 * Bytes: the operands once, twice where the scale is that of this very tensor (amax runs first), and one
 * byte per element and copy written. Deterministic: the largest magnitude is a maximum, which does not
 * depend on the order; column sums are added in an order fixed by the shape.
 *
 * What is quantized is a *source*: a tensor, or an activation computed on the fly. A source fetches what
 * eight elements are computed from, then computes them, in PARTS results that lie side by side. */
#include "act.cuh"
#include "fp8.cuh"

extern "C" {
#include "ops/op_table.h"
}

enum { TILE = 128, SIDE = 16, THREADS = SIDE * SIDE, UNITS = TILE / 8, AMAX_THREADS = 256 };

/* ---- sources ------------------------------------------------------------------------------------- */
template <class A> struct tensor_source {
    /* BATCH: rows fetched before the first is used */
    enum { PARTS = 1, BATCH = 8, WHOLE = A::WHOLE };
    A x;
    int64_t k;
    typedef typename A::raw raw;
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        return x.fetch(row * k + col, row * k + k);
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        A::widen(r, v[0]);
    }
};

/* x times its row's factor. */
template <class A> struct norm_of {
    enum { PARTS = 1, BATCH = A::WHOLE ? 8 : 1, WHOLE = A::WHOLE };
    A x;
    const float *stat;
    int64_t k;
    struct raw {
        typename A::raw x;
        float by;
    };
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        return raw{ x.fetch(row * k + col, row * k + k), stat[row] };
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        A::widen(r.x, v[0]);
#pragma unroll
        for (int i = 0; i < 8; i++) v[0][i] *= r.by;
    }
};

/* silu(gate) * up, from gu[n, 2k]. */
template <class A> struct swiglu_of {
    enum { PARTS = 1, BATCH = A::WHOLE ? 4 : 1, WHOLE = A::WHOLE };
    A gu;
    int64_t k;
    struct raw {
        typename A::raw gate, up;
    };
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        int64_t at = row * 2 * k + col;
        return raw{ gu.fetch(at, at + 8), gu.fetch(at + k, at + k + 8) };
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        float gate[8];
        A::widen(r.gate, gate);
        A::widen(r.up, v[0]);
#pragma unroll
        for (int i = 0; i < 8; i++) v[0][i] *= gate[i] * sigmoid(gate[i]);
    }
};

/* The gradients of gate and, beside it, of up, from dy[n, k] and gu. */
template <class A> struct swiglu_bwd_of {
    enum { PARTS = 2, BATCH = A::WHOLE ? 2 : 1, WHOLE = A::WHOLE };
    A dy, gu;
    int64_t k;
    struct raw {
        typename A::raw dy, gate, up;
    };
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        int64_t at = row * 2 * k + col, d = row * k + col;
        return raw{ dy.fetch(d, d + 8), gu.fetch(at, at + 8), gu.fetch(at + k, at + k + 8) };
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        float d[8], gate[8], up[8];
        A::widen(r.dy, d);
        A::widen(r.gate, gate);
        A::widen(r.up, up);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float s = sigmoid(gate[i]), silu = gate[i] * s;
            v[0][i] = d[i] * up[i] * (s + silu * (1 - s));
            v[1][i] = d[i] * silu;
        }
    }
};

template <act_kind ACT> static __device__ __forceinline__ void gelu8(float v[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = gelu(v[i], ACT);
}
template <act_kind ACT>
static __device__ __forceinline__ void gelu_bwd8(float d[8], const float x[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) d[i] *= gelu_derivative(x[i], ACT);
}

template <class A> struct gelu_of {
    enum { PARTS = 1, BATCH = A::WHOLE ? 8 : 1, WHOLE = A::WHOLE };
    A x;
    int64_t k;
    act_kind act;
    typedef typename A::raw raw;
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        return x.fetch(row * k + col, row * k + k);
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        A::widen(r, v[0]);
        WITH_ACT(act, gelu8<ACT>(v[0]));
    }
};

template <class A> struct gelu_bwd_of {
    enum { PARTS = 1, BATCH = A::WHOLE ? 4 : 1, WHOLE = A::WHOLE };
    A dy, x;
    int64_t k;
    act_kind act;
    struct raw {
        typename A::raw dy, x;
    };
    __device__ __forceinline__ raw fetch(int64_t row, int64_t col) const {
        int64_t at = row * k + col;
        return raw{ dy.fetch(at, at + 8), x.fetch(at, at + 8) };
    }
    __device__ __forceinline__ void compute(const raw &r, float v[PARTS][8]) const {
        float x[8];
        A::widen(r.dy, v[0]);
        A::widen(r.x, x);
        WITH_ACT(act, gelu_bwd8<ACT>(v[0], x));
    }
};

/* ---- scales -------------------------------------------------------------------------------------- */
/* Where the scale comes from: the row as it is; this tensor; this tensor if the row has none yet. */
typedef enum { FROM_ROW, FROM_TENSOR, FROM_TENSOR_IF_UNSET } scale_source;

static __device__ __forceinline__ float max_magnitude(float most, float x) {
    return fmaxf(most, fabsf(x + x * 0.0f)); /* NaN where x is not finite, which fmaxf ignores */
}

/* Raises the row's amax. Most blocks find a larger value there and need no atomic. */
static __device__ void raise_amax(float *row, float most) {
    if (most > __ldcg(row + FP8_AMAX))
        atomicMax((int *)(row + FP8_AMAX),
                  __float_as_int(most)); /* non-negative floats are ordered as their bits */
}

/* All blocks compute the same scale: where it is the tensor's, amax was complete before the kernel. */
static __device__ float choose_scale(float *row, scale_source from, float top) {
    float scale = row[FP8_SCALE];
    if (from == FROM_ROW || (from == FROM_TENSOR_IF_UNSET && scale != 0)) return scale;
    scale = fp8_scale(__ldcg(row + FP8_AMAX), top);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        row[FP8_TOP] = top;
        fp8_set_scale(row, scale);
    }
    return scale;
}

/* The largest finite magnitude. Grid: blocks of 256 threads that loop over the rows. Returns at once if
 * `unset_only` and the row has a scale. */
template <class S>
static __global__ void __launch_bounds__(AMAX_THREADS)
    find_amax(S source, int64_t n, int64_t k, float *row, bool unset_only) {
    __shared__ float smem[AMAX_THREADS / WARP];
    if (unset_only && row[FP8_SCALE] != 0) return;
    float most = 0;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x)
        for (int64_t col = threadIdx.x * EIGHT; col < k; col += AMAX_THREADS * EIGHT) {
            float v[S::PARTS][8];
            source.compute(source.fetch(i, col), v);
#pragma unroll
            for (int p = 0; p < S::PARTS; p++)
#pragma unroll
                for (int j = 0; j < 8; j++) most = max_magnitude(most, v[p][j]);
        }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) smem[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 0; w < AMAX_THREADS / WARP; w++) most = fmaxf(most, smem[w]);
    raise_amax(row, most);
}

/* ---- the conversion ------------------------------------------------------------------------------ */
/* Transposes 4 x 4 bytes: rows a, b, c, d become columns. */
static __device__ __forceinline__ void transpose_bytes4(uint32_t a, uint32_t b, uint32_t c,
                                                        uint32_t d, uint32_t out[4]) {
    uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab_low, cd_low, 0x5410);
    out[1] = __byte_perm(ab_low, cd_low, 0x7632);
    out[2] = __byte_perm(ab_high, cd_high, 0x5410);
    out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

/* Stores a thread's transposed square: unit r of column 8c + i at r ^ c. */
static __device__ __forceinline__ void store_square(const uint2 rows[8], int c, int r,
                                                    uint2 (*smem)[UNITS]) {
    uint32_t top[8], bottom[8]; /* of each column: rows 0..3, rows 4..7 */
    transpose_bytes4(rows[0].x, rows[1].x, rows[2].x, rows[3].x, top);
    transpose_bytes4(rows[0].y, rows[1].y, rows[2].y, rows[3].y, top + 4);
    transpose_bytes4(rows[4].x, rows[5].x, rows[6].x, rows[7].x, bottom);
    transpose_bytes4(rows[4].y, rows[5].y, rows[6].y, rows[7].y, bottom + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) smem[8 * c + i][r ^ c] = make_uint2(top[i], bottom[i]);
}

/* Stores lines of the transpose: 8 threads per column, two units each, which are swapped if c is odd. */
static __device__ __forceinline__ void store_lines(const uint2 (*smem)[UNITS], uint8_t *qt,
                                                   int64_t n, int64_t k, int64_t row0,
                                                   int64_t col0) {
    int pair = threadIdx.x % 8;
#pragma unroll
    for (int col = threadIdx.x / 8; col < TILE; col += THREADS / 8) {
        int c = col / 8;
        uint4 both = *(const uint4 *)&smem[col][2 * (pair ^ (c / 2))];
        if (c % 2) both = make_uint4(both.z, both.w, both.x, both.y);
        if (col0 + col < k && row0 + 16 * pair < n)
            *(uint4 *)(qt + (col0 + col) * n + row0 + 16 * pair) = both;
    }
}

/* Adds the column sums of all threads, each over its 8 rows, into out[128]. `smem` holds [8][128]. */
static __device__ __forceinline__ void store_column_sums(float sum[8], int c, float (*smem)[TILE],
                                                         float *out, int64_t left) {
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum[j] += __shfl_xor_sync(~0u, sum[j], SIDE); /* the warp's other r */
    __syncthreads();
    if (threadIdx.x % WARP < SIDE) {
#pragma unroll
        for (int j = 0; j < 8; j++) smem[threadIdx.x / WARP][8 * c + j] = sum[j];
    }
    __syncthreads();
    if (threadIdx.x >= TILE || threadIdx.x >= left) return;
    float all = 0;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; w++) all += smem[w][threadIdx.x];
    out[threadIdx.x] = all;
}

/* Grid: (columns of tiles, rows of tiles). q [n, PARTS k] or qt [PARTS k, n] may be absent; n and k are
 * multiples of 16. With SUM, sums[rows of tiles, PARTS k] receives the column sums of each tile; it may be
 * absent. */
template <class S, __nv_fp8_interpretation_t F, bool SUM>
static __global__ void __launch_bounds__(THREADS, 3)
    quantize(S source, float *row, uint8_t *__restrict__ q, uint8_t *__restrict__ qt, int64_t n,
             int64_t k, scale_source from, float top, float *sums) {
    __shared__ __align__(16) uint2 smem[TILE][UNITS];
    __shared__ float columns[SUM ? THREADS / WARP : 1][TILE];
    __shared__ float warp_amax[THREADS / WARP];
    int c = threadIdx.x % SIDE, r = threadIdx.x / SIDE;
    int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
    int64_t first = row0 + 8 * r, col = col0 + 8 * c;
    bool inside = first < n && col < k; /* all of the square or none of it */
    float scale = 0, most = 0, sum[S::PARTS][8] = {};
    uint2 bytes[S::PARTS][8];
#pragma unroll(S::WHOLE ? 8 / S::BATCH : 1)
    for (int b = 0; b < 8; b += S::BATCH) {
        typename S::raw raw[S::BATCH] = {};
#pragma unroll
        for (int i = 0; i < S::BATCH; i++)
            if (inside) raw[i] = source.fetch(first + b + i, col);
        if (b == 0) scale = choose_scale(row, from, top);
#pragma unroll
        for (int i = 0; i < S::BATCH; i++) {
            float v[S::PARTS][8];
            source.compute(raw[i], v);
#pragma unroll
            for (int p = 0; p < S::PARTS; p++) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    most = max_magnitude(most, v[p][j]);
                    if (SUM) sum[p][j] += v[p][j];
                    v[p][j] = fmaf(v[p][j], scale, v[p][j] * 0.0f); /* NaN where not finite */
                }
                bytes[p][b + i] = to_fp8<F>(v[p]);
                if (q && inside)
                    *(uint2 *)(q + ((first + b + i) * S::PARTS + p) * k + col) = bytes[p][b + i];
            }
        }
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) warp_amax[threadIdx.x / WARP] = most;
#pragma unroll
    for (int p = 0; p < S::PARTS; p++) {
        if (p) __syncthreads();
        if (qt) store_square(bytes[p], c, r, smem);
        __syncthreads();
        if (qt) store_lines(smem, qt + p * k * n, n, k, row0, col0);
        if (SUM && sums)
            store_column_sums(sum[p], c, columns, sums + (blockIdx.y * S::PARTS + p) * k + col0,
                              k - col0);
    }
    if (from == FROM_ROW || threadIdx.x) return;
    for (int w = 0; w < THREADS / WARP; w++) most = fmaxf(most, warp_amax[w]);
    raise_amax(row, most);
}

/* qt[k, n] = the transpose of q[n, k], both in fp8. Grid as above; a byte per element is read and written. */
static __global__ void __launch_bounds__(THREADS)
    transpose(const uint8_t *__restrict__ q, uint8_t *__restrict__ qt, int64_t n, int64_t k) {
    __shared__ __align__(16) uint2 smem[TILE][UNITS];
    int c = threadIdx.x % SIDE, r = threadIdx.x / SIDE;
    int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
    int64_t first = row0 + 8 * r, col = col0 + 8 * c;
    bool inside = first < n && col < k; /* all of the square or none of it */
    uint2 bytes[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (inside) bytes[i] = *(const uint2 *)(q + (first + i) * k + col);
    store_square(bytes, c, r, smem);
    __syncthreads();
    store_lines(smem, qt, n, k, row0, col0);
}

extern "C" void cuda_transpose_fp8(cuda_context *x, const tensor *q, const tensor *qt) {
    int64_t n = q->dim[0], k = q->dim[1];
    BUG_IF(n % 16 || k % 16);
    dim3 grid((unsigned)ceil_div(k, TILE), (unsigned)ceil_div(n, TILE));
    LAUNCH(x, { grid, THREADS }, transpose, (const uint8_t *)q->data, (uint8_t *)qt->data, n, k);
}

/* ---- launches -------------------------------------------------------------------------------------- */
/* out[width] (+)= the sum of sums[rows, width] over its rows. Grid: a block per 32 columns; 32 x 16
 * threads. */
static __global__ void add_tile_sums(const float *sums, int64_t rows, int64_t width, float *out,
                                     bool accumulate) {
    __shared__ float smem[SIDE][WARP];
    int64_t col = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0;
    for (int64_t r = threadIdx.y; r < rows && col < width; r += SIDE) sum += sums[r * width + col];
    smem[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= width) return;
    for (int i = 1; i < SIDE; i++) sum += smem[i][threadIdx.x];
    out[col] = accumulate ? out[col] + sum : sum;
}

static size_t cuda_quantize_workspace(const op_backend *b, const op_call *c, int threads) {
    if (c->out[2].dt == DT_NONE) return 0;
    return (size_t)(ceil_div(c->in[0].dim[0], TILE) * c->out[2].dim[0]) * sizeof(float);
}

template <class S, __nv_fp8_interpretation_t F>
static void launch_quantize_as(const op_call *c, S source, int64_t n, int64_t k,
                               scale_source from) {
    dim3 grid((unsigned)ceil_div(k, TILE), (unsigned)ceil_div(n, TILE));
    float *sums = c->out[2].data ? (float *)c->run->workspace : NULL;
    auto kernel = quantize<S, F, true>;
    if constexpr (S::WHOLE) /* the slow path has fewer and smaller kernels, which compile sooner */
        if (!sums) kernel = quantize<S, F, false>;
    LAUNCH(cuda_of(c), { grid, THREADS }, kernel, source, (float *)c->in[1].data,
           (uint8_t *)c->out[0].data, (uint8_t *)c->out[1].data, n, k, from,
           fp8_top(F == __NV_E5M2 ? DT_E5M2 : DT_E4M3), sums);
    if (!sums) return;
    int64_t width = S::PARTS * k;
    LAUNCH(cuda_of(c), { (unsigned)ceil_div(width, WARP), dim3(WARP, SIDE) }, add_tile_sums, sums,
           grid.y, width, (float *)c->out[2].data, c->accumulate & 4);
}

/* @param n, k shape of the source's operands; the result is PARTS k wide. */
template <class S> static void launch_quantize(const op_call *c, S source, int64_t n, int64_t k) {
    cuda_context *ctx = cuda_of(c);
    float *row = (float *)c->in[1].data;
    BUG_IF(n % 16 || k % 16);
    bool delayed = fp8_keeps_history(c->attr.fp8.recipe);
    scale_source from = c->attr.fp8.given ? FROM_ROW : delayed ? FROM_TENSOR_IF_UNSET : FROM_TENSOR;
    bool looks = from != FROM_ROW && !c->attr.fp8.measured;
    if (looks && from == FROM_TENSOR)
        CUDA_OK(ctx, cudaMemsetAsync(row + FP8_AMAX, 0, sizeof *row, ctx->stream));
    if (looks) {
        int blocks = grid_for(ctx, n, 1, delayed ? 1 : 8);
        LAUNCH(ctx, { blocks, AMAX_THREADS }, find_amax<S>, source, n, k, row, delayed);
    }
    if (c->attr.fp8.measure) return;
    if (c->out[c->out[0].data ? 0 : 1].dt == DT_E5M2)
        launch_quantize_as<S, __NV_E5M2>(c, source, n, k, from);
    else
        launch_quantize_as<S, __NV_E4M3>(c, source, n, k, from);
}

extern "C" void cuda_quantize(const op_call *c) {
    const tensor *x = &c->in[0];
    int64_t n = x->dim[0], k = x->dim[1];
    WITH_ONE_TYPE(x->dt, launch_quantize(c, tensor_source<A>{ A(*x), k }, n, k));
}

/* Programs record these ops in bf16 only; other types take the slow path. */
#define WITH_BF16(dt, ...)                                                                         \
    do switch (dt) {                                                                               \
            AS_TYPE(case DT_BF16, typed<bf16>, __VA_ARGS__);                                       \
            AS_TYPE(default, mixed, __VA_ARGS__);                                                  \
        }                                                                                          \
    while (0)

static void cuda_quantize_activation(const op_call *c) {
    const tensor *x = &c->in[0];
    bool swiglu = c->op == OP_QUANTIZE_SWIGLU;
    int64_t n = x->dim[0], k = swiglu ? x->dim[1] / 2 : x->dim[1];
    if (swiglu)
        WITH_BF16(x->dt, launch_quantize(c, swiglu_of<A>{ A(*x), k }, n, k));
    else
        WITH_BF16(x->dt, launch_quantize(c, gelu_of<A>{ A(*x), k, c->attr.act }, n, k));
}

static void cuda_quantize_norm(const op_call *c) {
    const tensor *x = &c->in[0];
    int64_t n = x->dim[0], k = x->dim[1];
    const float *stat = (const float *)c->in[2].data;
    WITH_BF16(x->dt, launch_quantize(c, norm_of<A>{ A(*x), stat, k }, n, k));
}

static void cuda_quantize_activation_bwd(const op_call *c) {
    const tensor *dy = &c->in[0], *x = &c->in[2];
    bool swiglu = c->op == OP_QUANTIZE_SWIGLU_BWD;
    int64_t n = dy->dim[0], k = dy->dim[1];
    dtype dt = dy->dt == x->dt ? dy->dt : DT_NONE;
    if (swiglu)
        WITH_BF16(dt, launch_quantize(c, swiglu_bwd_of<A>{ A(*dy), A(*x), k }, n, k));
    else
        WITH_BF16(dt, launch_quantize(c, gelu_bwd_of<A>{ A(*dy), A(*x), k, c->attr.act }, n, k));
}

/* A thread per row. */
static __global__ void commit_rows(float *rows, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) fp8_commit_row(rows + i * FP8_ROW);
}

static void cuda_fp8_commit(const op_call *c) {
    int64_t n = c->out[0].dim[0];
    LAUNCH(cuda_of(c), { (unsigned)ceil_div(n, WARP), WARP }, commit_rows, (float *)c->out[0].data,
           n);
}

KERNEL(QUANTIZE, cuda_quantize, cuda_quantize_workspace, ATTRS_FP8);
KERNEL(QUANTIZE_SWIGLU, cuda_quantize_activation, cuda_quantize_workspace, ATTRS_FP8);
KERNEL(QUANTIZE_SWIGLU_BWD, cuda_quantize_activation_bwd, cuda_quantize_workspace, ATTRS_FP8);
KERNEL(QUANTIZE_GELU, cuda_quantize_activation, cuda_quantize_workspace, ATTRS_FP8 | ATTR(ACT));
KERNEL(QUANTIZE_GELU_BWD, cuda_quantize_activation_bwd, cuda_quantize_workspace,
       ATTRS_FP8 | ATTR(ACT));
KERNEL(QUANTIZE_NORM, cuda_quantize_norm, cuda_quantize_workspace, ATTRS_FP8);
KERNEL(FP8_COMMIT, cuda_fp8_commit);
