/* Updates. Each is one pass over memory: the gradient's scale, the decay, the update and the narrow
 * copy of the weights together. Bytes an element: SGD 12, momentum and Lion 20, Adam 28, 8-bit Adam
 * 16, and the copy's own. What changes by the step is read from the step block on the device, so
 * that a captured graph serves every step. Deterministic. */
#include "device.cuh"

enum { THREADS = 256, PER_SM = 8 };

/* The scalars of one call, made in fp64 by one thread of each block. */
typedef struct factors {
    float scale, lr, keep, decay, mu, now, then, b1, g1, b2, g2, root_g2, step, eps;
} factors;

typedef struct update_attr {
    float lr_mul, decay, beta1, beta2, eps, momentum;
    bool l2, nesterov;
} update_attr;

static update_attr attr_of(const op_call *c) {
    update_attr a = { c->attr.update.lr_mul, c->attr.update.decay,   c->attr.update.beta1,
                      c->attr.update.beta2,  c->attr.update.eps,     c->attr.update.momentum,
                      c->attr.update.l2,     c->attr.update.nesterov };
    return a;
}

static __device__ factors factors_of(const update_attr &a, const step_block *s) {
    double lr = (double)s->update.lr * a.lr_mul, t = (double)s->update.count;
    double scale = a.l2 ? 1 : s->update.grad_scale, root_bias = sqrt(1 - pow((double)a.beta2, t));
    factors f;
    f.scale = s->update.grad_scale;
    f.lr = (float)lr;
    f.keep = a.l2 ? 1.0f : (float)(1 - lr * a.decay);
    f.decay = a.decay;
    f.mu = a.momentum;
    f.now = a.nesterov ? 1 : 0;
    f.then = a.nesterov ? a.momentum : 1;
    f.b1 = a.beta1;
    f.g1 = (float)((1 - (double)a.beta1) * scale);
    f.b2 = a.beta2;
    f.g2 = (float)((1 - (double)a.beta2) * scale);
    f.root_g2 = (float)(sqrt(1 - (double)a.beta2) * scale);
    f.step = (float)(lr * root_bias / (1 - pow((double)a.beta1, t)));
    f.eps = (float)(a.eps * root_bias);
    return f;
}

static __device__ __forceinline__ const factors &share(const update_attr &a, const step_block *s,
                                                       factors &room) {
    if (threadIdx.x == 0) room = factors_of(a, s);
    __syncthreads();
    return room;
}

/* ---- rules, an element at a time --------------------------------------------------------------- */
struct sgd {
    static constexpr int states = 0;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        p -= (g * f.scale + p * f.decay) * f.lr;
    }
};
struct momentum {
    static constexpr int states = 1;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        g = g * f.scale + p * f.decay;
        m = m * f.mu + g;
        p -= (g * f.now + m * f.then) * f.lr;
    }
};
struct lion {
    static constexpr int states = 1;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        float u = m * f.b1 + g * f.g1;
        float sign = u == 0 ? 0.0f : copysignf(1.0f, u);
        p -= (sign + p * f.decay) * f.lr;
        m = m * f.b2 + g * f.g2;
    }
};
template <bool L2> struct adam {
    static constexpr int states = 2;
    static __device__ __forceinline__ void at(const factors &f, float g, float &p, float &m,
                                              float &v) {
        if (L2) g = g * f.scale + p * f.decay;
        float r = g * f.root_g2;
        m = m * f.b1 + g * f.g1;
        v = v * f.b2 + r * r;
        p = p * f.keep - m / (sqrtf(v) + f.eps) * f.step;
    }
};

template <class R>
static __global__ void update(const float *g, float *p, float *m, float *v, mixed copy, int64_t n,
                              update_attr a, const step_block *s) {
    __shared__ factors room;
    const factors f = share(a, s, room);
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < n;
         i += (int64_t)gridDim.x * THREADS * 4) {
        float x[4][4]; /* g, p, m, v */
        int count = (int)(n - i < 4 ? n - i : 4);
        bool whole = count == 4;
        const float *from[4] = { g, p, m, v };
#pragma unroll
        for (int k = 0; k < 2 + R::states; k++) {
            if (whole)
                *(float4 *)x[k] = *(const float4 *)(from[k] + i);
            else
                for (int j = 0; j < count; j++) x[k][j] = from[k][i + j];
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < count) R::at(f, x[0][j], x[1][j], x[2][j], x[3][j]);
        float *to[4] = { NULL, p, m, v };
#pragma unroll
        for (int k = 1; k < 2 + R::states; k++) {
            if (whole)
                *(float4 *)(to[k] + i) = *(const float4 *)x[k];
            else
                for (int j = 0; j < count; j++) to[k][i + j] = x[k][j];
        }
        if (!copy.present()) continue;
        if (whole && copy.dt == DT_BF16) {
            __nv_bfloat162 h[2] = { __floats2bfloat162_rn(x[1][0], x[1][1]),
                                    __floats2bfloat162_rn(x[1][2], x[1][3]) };
            *(uint2 *)((bf16 *)copy.p + i) = *(const uint2 *)h;
        } else {
            for (int j = 0; j < count; j++) write1(copy.p, copy.dt, i + j, x[1][j]);
        }
    }
}

template <class R> static void launch(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]);
    int blocks = grid_for(cuda_of(c), n, THREADS * 4, PER_SM);
    const tensor *out = c->out;
    float *m = R::states > 0 ? (float *)out[1].data : NULL;
    float *v = R::states > 1 ? (float *)out[2].data : NULL;
    update<R><<<blocks, THREADS, 0, cuda_stream(c)>>>(
        (const float *)c->in[0].data, (float *)out[0].data, m, v, mixed(out[R::states + 1]), n,
        attr_of(c), c->run->step);
    CUDA_LAUNCHED(c);
}

extern "C" void cuda_update(const op_call *c) {
    switch (c->op) {
    case OP_UPDATE_SGD: launch<sgd>(c); break;
    case OP_UPDATE_MOMENTUM: launch<momentum>(c); break;
    case OP_UPDATE_LION: launch<lion>(c); break;
    default:
        if (c->attr.update.l2)
            launch<adam<true>>(c);
        else
            launch<adam<false>>(c);
    }
}

/* ---- 8-bit Adam: a warp a block of 256 elements, eight an element a lane (ops/block8.h) ----------- */
enum { B8 = 256, B8_SHIFT = 20 };

static __device__ __forceinline__ uint32_t b8_base(bool sign) {
    return 0x3f800000u - ((sign ? 127u : 255u) << B8_SHIFT);
}
static __device__ __forceinline__ void b8_unpack(const uint8_t *code, bool sign, float scale,
                                                 float x[8]) {
    uint32_t base = b8_base(sign);
    uint2 eight = *(const uint2 *)code;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        uint32_t byte = (k < 4 ? eight.x >> 8 * k : eight.y >> 8 * (k - 4)) & 255u;
        uint32_t c = byte & (sign ? 0x7fu : 0xffu), bits = base + (c << B8_SHIFT);
        if (sign) bits = (c ? bits : 0) | (byte & 0x80u) << 24;
        x[k] = __uint_as_float(bits) * scale;
    }
}
static __device__ __forceinline__ void b8_pack(const float x[8], bool sign, uint8_t *code,
                                               float *scale) {
    uint32_t most = 0, base = b8_base(sign), eight[2] = { 0, 0 };
#pragma unroll
    for (int k = 0; k < 8; k++) most = max(most, __float_as_uint(x[k]) & 0x7fffffffu);
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) most = max(most, __shfl_xor_sync(~0u, most, o));
    float largest = most < __float_as_uint(1e-27f) ? 0 : __uint_as_float(most);
    float inverse = largest > 0 ? __fdiv_rn(1.0f, largest) : 0;
    if (threadIdx.x % WARP == 0) *scale = largest;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        uint32_t bits = __float_as_uint(x[k]);
        uint32_t part = __float_as_uint(__uint_as_float(bits & 0x7fffffffu) * inverse);
        uint32_t c = ((part > base ? part : base) - base + (1u << (B8_SHIFT - 1))) >> B8_SHIFT;
        if (sign) c |= bits >> 24 & 0x80u;
        eight[k / 4] |= (c & 255u) << 8 * (k % 4);
    }
    *(uint2 *)code = make_uint2(eight[0], eight[1]);
}

static __global__ void update_adam8(const float *g, float *p, uint8_t *mc, uint8_t *vc, float *ms,
                                    float *vs, mixed copy, int64_t n, update_attr a,
                                    const step_block *s) {
    __shared__ factors room;
    const factors f = share(a, s, room);
    int lane = threadIdx.x % WARP;
    int64_t blocks = (n + B8 - 1) / B8, warps = (int64_t)gridDim.x * (THREADS / WARP);
    for (int64_t b = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP; b < blocks;
         b += warps) {
        int64_t at = b * B8 + lane * 8;
        float m[8], v[8], w[8];
        b8_unpack(mc + at, true, ms[b], m);
        b8_unpack(vc + at, false, vs[b], v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (at + k >= n) {
                m[k] = v[k] = 0;
                continue;
            }
            w[k] = p[at + k];
            adam<false>::at(f, g[at + k], w[k], m[k], v[k]);
            p[at + k] = w[k];
            if (copy.present()) write1(copy.p, copy.dt, at + k, w[k]);
        }
        b8_pack(m, true, mc + at, &ms[b]);
        b8_pack(v, false, vc + at, &vs[b]);
    }
}

extern "C" void cuda_update_adam8(const op_call *c) {
    int64_t n = tensor_count(&c->in[0]), blocks = ceil_div(n, B8);
    uint8_t *mc = (uint8_t *)c->out[1].data, *vc = (uint8_t *)c->out[2].data;
    int grid = grid_for(cuda_of(c), blocks, THREADS / WARP, PER_SM);
    update_adam8<<<grid, THREADS, 0, cuda_stream(c)>>>(
        (const float *)c->in[0].data, (float *)c->out[0].data, mc, vc, (float *)(mc + blocks * B8),
        (float *)(vc + blocks * B8), mixed(c->out[3]), n, attr_of(c), c->run->step);
    CUDA_LAUNCHED(c);
}

/* ---- adaptive clipping: a block a row ----------------------------------------------------------- */
static __global__ void clip_rows(const float *p, float *g, int64_t cols, float factor, float eps,
                                 const step_block *s) {
    __shared__ float room[33];
    int64_t base = (int64_t)blockIdx.x * cols;
    float pp = 0, gg = 0;
    for (int64_t k = threadIdx.x; k < cols; k += blockDim.x) {
        pp += p[base + k] * p[base + k];
        gg += g[base + k] * g[base + k];
    }
    pp = block_sum(pp, room);
    gg = block_sum(gg, room);
    float most = factor * fmaxf(sqrtf(pp), eps), length = sqrtf(gg) * s->update.grad_scale;
    if (!(length > most)) return; /* NaN passes: the norm of the whole has shown it */
    float by = most / length;
    for (int64_t k = threadIdx.x; k < cols; k += blockDim.x) g[base + k] *= by;
}

extern "C" void cuda_agc(const op_call *c) {
    const tensor *p = &c->in[0];
    clip_rows<<<(unsigned)p->dim[0], THREADS, 0, cuda_stream(c)>>>(
        (const float *)p->data, (float *)c->out[0].data, p->dim[1], c->attr.agc.factor,
        c->attr.agc.eps, c->run->step);
    CUDA_LAUNCHED(c);
}

/* ---- Adafactor -----------------------------------------------------------------------------------
 * As the CPU's (ops/cpu/update_adafactor.c): row and column means of the squared gradient, the
 * length of the update, the update. Workspace, fp32:
 *
 *     | partial [CUDA_PARTIALS] f64 | total f64 | row factors [R] | column factors [C] |
 *       column sums [CUDA_PARTIALS, C] |
 */
typedef struct factored {
    const float *g;
    float *p, *rows, *cols; /* a vector's v is `rows`, and cols is NULL */
    double *partial, *total;
    float *row, *col, *sums;
    int64_t r, c;
    int blocks;
    update_attr a;
    const step_block *s;
    mixed copy;
} factored;

static __device__ float beta2_of(const step_block *s, float &rest) {
    double power = pow((double)s->update.count, -0.8);
    rest = (float)power;
    return (float)(1 - power);
}

/* The block's double, to partial[block]. */
static __device__ void leave(const factored &f, double v) {
    __shared__ double room[THREADS];
    room[threadIdx.x] = v;
    __syncthreads();
    for (int o = THREADS / 2; o; o >>= 1) {
        if (threadIdx.x < o) room[threadIdx.x] += room[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) f.partial[blockIdx.x] = room[0];
}

static __global__ void total_of(factored f) {
    double sum = 0;
    for (int i = 0; i < f.blocks; i++) sum += f.partial[i];
    *f.total = sum;
}

static __global__ void row_sums(factored f) {
    __shared__ float room[33];
    float rest, b2 = beta2_of(f.s, rest), scale = f.s->update.grad_scale;
    double total = 0;
    for (int64_t row = blockIdx.x; row < f.r; row += gridDim.x) {
        float sum = 0;
        for (int64_t k = threadIdx.x; k < f.c; k += THREADS) {
            float x = f.g[row * f.c + k] * scale;
            sum += x * x + f.a.eps;
        }
        sum = block_sum(sum, room);
        if (threadIdx.x) continue;
        f.rows[row] = b2 * f.rows[row] + rest * (sum / f.c);
        total += f.rows[row];
    }
    leave(f, total);
}

static __global__ void column_sums(factored f) { /* block (x, y): 256 columns, every y-th row */
    float scale = f.s->update.grad_scale, sum = 0;
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= f.c) return;
    for (int64_t row = blockIdx.y; row < f.r; row += gridDim.y) {
        float x = f.g[row * f.c + col] * scale;
        sum += x * x + f.a.eps;
    }
    f.sums[blockIdx.y * f.c + col] = sum;
}

static __global__ void column_factors(factored f, int parts) {
    float rest, b2 = beta2_of(f.s, rest), sum = 0;
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= f.c) return;
    for (int k = 0; k < parts; k++) sum += f.sums[k * f.c + col];
    f.cols[col] = b2 * f.cols[col] + rest * (sum / f.r);
    f.col[col] = 1 / sqrtf(f.cols[col]);
}

static __global__ void row_factors(factored f) {
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < f.r) f.row[row] = 1 / sqrtf(f.rows[row] / (float)(*f.total / f.r));
}

/* What element i is multiplied by to become the update before clipping. */
static __device__ __forceinline__ float factor_at(const factored &f, int64_t i) {
    float scale = f.s->update.grad_scale;
    if (f.cols) return scale * f.row[i / f.c] * f.col[i % f.c];
    return scale / sqrtf(f.rows[i]);
}

static __global__ void lengths(factored f) {
    float rest, b2 = beta2_of(f.s, rest), scale = f.s->update.grad_scale;
    double sum = 0;
    int64_t n = f.r * f.c, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float x = f.g[i] * scale;
        if (!f.cols) f.rows[i] = b2 * f.rows[i] + rest * (x * x + f.a.eps);
        float u = f.g[i] * factor_at(f, i);
        sum += (double)u * u;
    }
    leave(f, sum);
}

static __global__ void apply_factored(factored f) {
    __shared__ factors room;
    const factors k = share(f.a, f.s, room);
    int64_t n = f.r * f.c, step = (int64_t)gridDim.x * THREADS;
    double rms = sqrt(*f.total / (double)n);
    float lr = (float)(k.lr / (rms > 1 ? rms : 1.0));
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float p = f.p[i] * k.keep - lr * f.g[i] * factor_at(f, i);
        f.p[i] = p;
        if (f.copy.present()) write1(f.copy.p, f.copy.dt, i, p);
    }
}

extern "C" void cuda_update_adafactor(const op_call *c) {
    const tensor *g = &c->in[0];
    bool matrix = g->ndim == 2;
    factored f = { (const float *)g->data,
                   (float *)c->out[0].data,
                   (float *)c->out[1].data,
                   matrix ? (float *)c->out[2].data : NULL,
                   (double *)c->run->workspace,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   g->dim[0],
                   matrix ? g->dim[1] : 1,
                   CUDA_PARTIALS,
                   attr_of(c),
                   c->run->step,
                   mixed(c->out[3]) };
    f.total = f.partial + CUDA_PARTIALS;
    f.row = (float *)(f.total + 1);
    f.col = f.row + f.r;
    f.sums = f.col + f.c;
    cudaStream_t stream = cuda_stream(c);
    if (matrix) {
        unsigned across = (unsigned)ceil_div(f.c, THREADS);
        int parts = (int)(f.r < CUDA_PARTIALS ? f.r : CUDA_PARTIALS);
        row_sums<<<CUDA_PARTIALS, THREADS, 0, stream>>>(f);
        total_of<<<1, 1, 0, stream>>>(f);
        column_sums<<<dim3(across, (unsigned)parts), THREADS, 0, stream>>>(f);
        column_factors<<<across, THREADS, 0, stream>>>(f, parts);
        row_factors<<<(unsigned)ceil_div(f.r, THREADS), THREADS, 0, stream>>>(f);
    }
    lengths<<<CUDA_PARTIALS, THREADS, 0, stream>>>(f);
    total_of<<<1, 1, 0, stream>>>(f);
    apply_factored<<<CUDA_PARTIALS * 4, THREADS, 0, stream>>>(f);
    CUDA_LAUNCHED(c);
}

/* ---- Muon -----------------------------------------------------------------------------------------
 * As the CPU's (ops/cpu/update_muon.c): momentum, five Newton-Schulz steps in fp32 products, the
 * update. Workspace: | x [R,C] | next [R,C] | G [S,S] | poly [S,S] | partial f64 | total | products |
 */
static __global__ void muon_momentum(const float *g, float *m, float *u, int64_t n, double *partial,
                                     update_attr a, const step_block *s) {
    __shared__ factors room;
    const factors f = share(a, s, room);
    float rest = 1 - f.mu, now = f.now * rest;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float gi = g[i] * f.scale, mi = f.mu * m[i] + rest * gi, ui = now * gi + f.then * mi;
        m[i] = mi;
        u[i] = ui;
        sum += (double)ui * ui;
    }
    factored leaves = { NULL, NULL, NULL, NULL, partial, NULL, NULL,   NULL,
                        NULL, 0,    0,    0,    a,       s,    mixed{} };
    leave(leaves, sum);
}

static __global__ void muon_normalise(float *x, int64_t n, const double *partial) {
    __shared__ float by;
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < CUDA_PARTIALS; i++) sum += partial[i];
        by = (float)(1 / fmax(sqrt(sum), 1e-7));
    }
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        x[i] *= by;
}

/* y = a x + b y */
static __global__ void blend(const float *x, float *y, int64_t n, float a, float b) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        y[i] = a * x[i] + (b == 0 ? 0.0f : b * y[i]);
}

static __global__ void muon_apply(const float *x, float *p, mixed copy, int64_t n, float shape,
                                  update_attr a, const step_block *s) {
    __shared__ factors room;
    const factors f = share(a, s, room);
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float w = p[i] * f.keep - f.lr * shape * x[i];
        p[i] = w;
        if (copy.present()) write1(copy.p, copy.dt, i, w);
    }
}

static void product(const op_call *c, int64_t m, int64_t n, int64_t k, const float *a, bool ta,
                    const float *b, bool tb, float *to, bool accumulate, void *room) {
    cuda_gemm g = {};
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = to;
    g.at = g.bt = g.ct = DT_F32;
    g.lda = ta ? m : k, g.ldb = tb ? k : n, g.ldc = n;
    g.ta = ta, g.tb = tb, g.accumulate = accumulate, g.exact = true;
    cuda_multiply(cuda_of(c), &g, room, CUDA_GEMM_WORKSPACE);
}

extern "C" void cuda_update_muon(const op_call *c) {
    const tensor *g = &c->in[0];
    int64_t r = g->dim[0], k = g->dim[1], n = r * k, s = r < k ? r : k;
    bool tall = r > k;
    float *x = (float *)c->run->workspace, *next = x + n, *gram = next + n, *poly = gram + s * s;
    double *partial = (double *)align_up((uintptr_t)(poly + s * s), 16);
    void *room = (void *)align_up((uintptr_t)(partial + CUDA_PARTIALS), 256);
    cudaStream_t stream = cuda_stream(c);
    update_attr a = attr_of(c);
    muon_momentum<<<CUDA_PARTIALS, THREADS, 0, stream>>>(
        (const float *)g->data, (float *)c->out[1].data, x, n, partial, a, c->run->step);
    muon_normalise<<<CUDA_PARTIALS, THREADS, 0, stream>>>(x, n, partial);
    for (int i = 0; i < 5; i++) {
        product(c, s, s, tall ? r : k, x, tall, x, !tall, gram, false, room);
        product(c, s, s, s, gram, false, gram, false, poly, false, room);
        blend<<<CUDA_PARTIALS, THREADS, 0, stream>>>(gram, poly, s * s, -4.7750f, 2.0315f);
        blend<<<CUDA_PARTIALS, THREADS, 0, stream>>>(x, next, n, 3.4445f, 0);
        if (tall)
            product(c, r, k, k, x, false, poly, false, next, true, room);
        else
            product(c, r, k, r, poly, false, x, false, next, true, room);
        float *swap = x;
        x = next;
        next = swap;
    }
    double ratio = (double)r / (double)k;
    float shape = (float)sqrt(ratio > 1 ? ratio : 1.0);
    muon_apply<<<CUDA_PARTIALS, THREADS, 0, stream>>>(x, (float *)c->out[0].data, mixed(c->out[2]),
                                                      n, shape, a, c->run->step);
    CUDA_LAUNCHED(c);
}

extern "C" size_t cuda_update_workspace(const op_call *c) {
    const tensor *g = &c->in[0];
    int64_t r = g->dim[0], k = g->ndim == 2 ? g->dim[1] : 1, s = r < k ? r : k;
    size_t sums = (CUDA_PARTIALS + 1) * sizeof(double);
    if (c->op == OP_UPDATE_ADAFACTOR)
        return sums + (size_t)(r + k + CUDA_PARTIALS * k) * sizeof(float);
    if (c->op == OP_UPDATE_MUON)
        return (size_t)(2 * r * k + 2 * s * s) * sizeof(float) + sums + 512 + CUDA_GEMM_WORKSPACE;
    return 0;
}
