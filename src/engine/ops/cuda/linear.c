/* Linear layers and the loss: GEMMs (gemm.c), with bias and GELU fused where cuBLASLt supports it and in
 * kernels of our own where it does not. Bit-exact between runs only under
 * debug.deterministic, which fixes cuBLASLt's algorithms.
 *
 * Workspace: | cuBLASLt's | operands converted, where their types differ | column sums or logits |
 */
#include "cuda_internal.h"
#include "ops/op_table.h"

/* Logits computed at a time: chunks of 4096 rows measured fastest. */
enum { LOGIT_BYTES = 512 << 20, LOGIT_ROWS = 4096, LINE = 64, ROWS = 128 };

/* The rest of the workspace after cuBLASLt's part; allocations never return it. */
typedef struct scratch {
    char *at, *end;
} scratch;

static scratch scratch_of(const op_call *c) {
    char *at = c->run->workspace;
    return (scratch){ at + CUDA_GEMM_WORKSPACE, at + c->run->workspace_bytes };
}
static void *scratch_alloc(scratch *mem, size_t bytes) {
    void *p = mem->at;
    mem->at += align_up(bytes, 256);
    BUG_IF(mem->at > mem->end);
    return p;
}

/* ---- operands of one type ---------------------------------------------------------------------- */

static size_t fp32_bytes(const tensor *t) {
    return align_up((size_t)tensor_count(t) * sizeof(float), 256);
}
/* Scratch for a pair of operands: none where gemm_of need not convert them. */
static size_t pair_bytes(const tensor *a, const tensor *b) {
    return a->dt == b->dt || dt_is_fp8(a->dt) ? 0 : fp32_bytes(a) + fp32_bytes(b);
}

/* @return t converted, in scratch. */
static tensor convert_to(cuda_context *x, const tensor *t, dtype dt, scratch *mem) {
    tensor as = *t;
    as.dt = dt;
    as.data = scratch_alloc(mem, tensor_bytes(&as));
    cuda_convert(x, t, &as);
    return as;
}

/* @return the GEMM c = op(a) op(b). Operands of different types are both converted to fp32. */
static cuda_gemm gemm_of(cuda_context *x, tensor a, bool ta, tensor b, bool tb, const tensor *c,
                         scratch *mem) {
    if (a.dt != b.dt && !dt_is_fp8(a.dt)) {
        a = convert_to(x, &a, DT_F32, mem);
        b = convert_to(x, &b, DT_F32, mem);
    }
    return (cuda_gemm){ .m = c->dim[0],
                        .n = c->dim[1],
                        .k = ta ? a.dim[0] : a.dim[1],
                        .a = a.data,
                        .b = b.data,
                        .c = c->data,
                        .at = a.dt,
                        .bt = b.dt,
                        .ct = c->dt,
                        .lda = a.dim[1],
                        .ldb = b.dim[1],
                        .ldc = c->dim[1],
                        .ta = ta,
                        .tb = tb,
                        .exact = !x->device->tf32 };
}

static bool try_gemm(const op_call *c, const cuda_gemm *g) MUST_USE;
static bool try_gemm(const op_call *c, const cuda_gemm *g) {
    return cuda_gemm_run(cuda_of(c), g, c->run->workspace, CUDA_GEMM_WORKSPACE);
}

void cuda_gemm_require(cuda_context *x, const cuda_gemm *g, void *workspace) {
    if (cuda_gemm_run(x, g, workspace, CUDA_GEMM_WORKSPACE) || x->device->fault) return;
    const char *remedy = dt_is_fp8(g->at)
                             ? "fp8 needs compute capability 8.9 or more; set precision.fp8=off"
                             : "set precision to a type the GPU multiplies, or device=cpu";
    x->device->fault =
        err_hint(ERR("this GPU has no GEMM of %s and %s [%lld, %lld, %lld]", dt_name(g->at),
                     dt_name(g->bt), (long long)g->m, (long long)g->n, (long long)g->k),
                 "%s", remedy);
}
static void require_gemm(const op_call *c, const cuda_gemm *g) {
    cuda_gemm_require(cuda_of(c), g, c->run->workspace);
}

/* Whether cuBLASLt can write this type of result: fp32, the operands' own, or bf16 from fp8. */
static bool can_write(dtype operands, dtype result) {
    return result == DT_F32 || result == operands || (dt_is_fp8(operands) && result == DT_BF16);
}
static bool writes_result(const cuda_gemm *g) { return can_write(g->at, g->ct); }

/* Runs a GEMM into `to`, through an fp32 result in scratch where cuBLASLt cannot write its type. */
static void gemm_into(const op_call *c, cuda_gemm g, const tensor *to, scratch *mem) {
    if (writes_result(&g)) {
        require_gemm(c, &g);
        return;
    }
    tensor wide = *to;
    wide.dt = DT_F32;
    g.c = wide.data = scratch_alloc(mem, tensor_bytes(&wide));
    g.ct = DT_F32;
    require_gemm(c, &g);
    cuda_convert(cuda_of(c), &wide, to);
}

/* ---- linear ------------------------------------------------------------------------------------ */

static size_t cuda_linear_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *x = &c->in[0], *w = &c->in[1];
    const tensor *y = &c->out[c->op == OP_LINEAR_GELU ? 1 : 0]; /* what the GEMM writes */
    dtype operands = x->dt == w->dt || dt_is_fp8(x->dt) ? x->dt : DT_F32;
    size_t bytes = CUDA_GEMM_WORKSPACE + pair_bytes(x, w);
    if (!can_write(operands, y->dt)) bytes += fp32_bytes(y);
    if (c->op == OP_LINEAR_BWD_W && c->out[1].dt != DT_NONE)
        bytes += cuda_columns_bytes(c->out[1].dim[0]);
    if (c->in[2].dt != DT_NONE && c->in[2].ndim == 1) bytes += fp32_bytes(&c->in[2]);
    return bytes + 1024;
}

/* Whether fp8 GEMMs accumulate in fewer bits (cuda_gemm.fast), which is faster. */
enum { FP8_FAST_FORWARD = true, FP8_FAST_BACKWARD = false };

/* @return the GEMM of the op's first two operands. In fp8 K is contiguous in both, whichever op it is. */
static cuda_gemm op_gemm(const op_call *c, bool ta, bool tb, scratch *mem) {
    bool fp8 = dt_is_fp8(c->in[0].dt);
    cuda_gemm g = gemm_of(cuda_of(c), c->in[0], ta && !fp8, c->in[1], tb || fp8, &c->out[0], mem);
    if (!fp8) return g;
    bool forward = c->op == OP_LINEAR || c->op == OP_LINEAR_GELU;
    g.scale_a = (const float *)c->in[3].data + FP8_UNSCALE;
    g.scale_b = (const float *)c->in[4].data + FP8_UNSCALE;
    g.fast = forward ? FP8_FAST_FORWARD : FP8_FAST_BACKWARD;
    return g;
}

static void cuda_linear(const op_call *c) {
    if (cuda_linear_few(c)) return;
    cuda_context *x = cuda_of(c);
    bool gelu = c->op == OP_LINEAR_GELU;
    const tensor *bias = &c->in[2], *y = &c->out[0], *pre = gelu ? &c->out[1] : y;
    scratch mem = scratch_of(c);
    cuda_gemm g = op_gemm(c, false, true, &mem), fused = g;
    fused.gelu = gelu && c->attr.act == ACT_GELU_TANH;
    fused.pre = pre->data;
    bool can_fuse =
        writes_result(&g) && (!gelu || (fused.gelu && g.at != DT_F32 && pre->dt == y->dt));
    if (can_fuse && (bias->data || gelu)) {
        tensor b = *bias; /* the fused epilogue reads it in the type of the result */
        if (b.data && b.dt != g.ct) b = convert_to(x, bias, g.ct, &mem);
        fused.bias = b.data;
        fused.bias_t = b.dt;
        if (try_gemm(c, &fused)) return;
    }
    g.c = pre->data;
    g.ct = pre->dt;
    gemm_into(c, g, pre, &mem);
    if (bias->data || gelu) cuda_bias_gelu(x, pre, bias, gelu ? (int)c->attr.act : -1, y);
}

static void cuda_linear_bwd_x(const op_call *c) {
    scratch mem = scratch_of(c);
    cuda_gemm g = op_gemm(c, false, false, &mem);
    gemm_into(c, g, &c->out[0], &mem);
}

static void cuda_linear_bwd_x_gelu(const op_call *c) {
    scratch mem = scratch_of(c);
    const tensor *pre = &c->in[2], *dpre = &c->out[0];
    cuda_gemm g = op_gemm(c, false, false, &mem), fused = g;
    fused.dgelu = true;
    fused.pre = pre->data;
    bool can_fuse =
        writes_result(&g) && c->attr.act == ACT_GELU_TANH && g.at != DT_F32 && pre->dt == g.ct;
    if (can_fuse && try_gemm(c, &fused)) return;
    gemm_into(c, g, dpre, &mem);
    op_call slope = *c; /* in place */
    slope.in[0] = *dpre;
    slope.in[1] = *pre;
    cuda_gelu_bwd(&slope);
}

static void cuda_linear_bwd_w(const op_call *c) {
    cuda_context *x = cuda_of(c);
    const tensor *dy = &c->in[0], *dw = &c->out[0], *db = &c->out[1];
    scratch mem = scratch_of(c);
    if (db->data) {
        void *partial = scratch_alloc(&mem, cuda_columns_bytes(dy->dim[1]));
        cuda_sum_columns(x, dy, db->data, c->accumulate & 2, partial);
    }
    if (!dw->data) return;
    cuda_gemm g = op_gemm(c, true, false, &mem);
    g.accumulate = c->accumulate & 1;
    require_gemm(c, &g);
}

/* ---- the loss ------------------------------------------------------------------------------------
 * For each chunk of rows: a GEMM computes the logits in h's type, a kernel replaces them by the softmax's
 * gradient in place (loss.cu), and two GEMMs compute dh and add to dw. All logits never exist at once. */
typedef struct ce_shape {
    int64_t n, d, v, stride, rows;
    dtype zt;
} ce_shape;

static ce_shape ce_shape_of(const op_call *c) {
    ce_shape s = { .n = c->in[0].dim[0], .d = c->in[0].dim[1], .v = c->in[1].dim[0] };
    s.zt = c->in[0].dt == c->in[1].dt ? c->in[0].dt : DT_F32;
    s.stride = (s.v + LINE - 1) / LINE * LINE;
    int64_t most = MIN(LOGIT_ROWS, LOGIT_BYTES / (s.stride * (int64_t)dt_size(s.zt)));
    int64_t chunks = MAX(1, (s.n + MAX(most, 1) - 1) / MAX(most, 1));
    s.rows = MIN((int64_t)align_up((size_t)((s.n + chunks - 1) / chunks), ROWS), s.n);
    return s;
}

/* The operands in fp8. Both of a GEMM are contiguous along the sum, so that gradients need transposes:
 *
 *     z = h w^T        dh = dz wt^T        dw += dzt ht^T
 *
 * All three GEMMs are faster in fp8: from 4,096 rows on, dz and dzt in fp8 take no more bytes than dz in bf16, which dw would
 * be computed from otherwise. */
typedef struct ce_fp8 {
    tensor h, ht, w, wt, dz; /* [N,D] [D,N] [V,D] [D,V]; of a chunk: [rows,V] */
    float *h_row, *w_row, *dz_row;
} ce_fp8;
enum { CE_FP8_PARTS = 8 };

static size_t ce_fp8_bytes(const ce_shape *s) {
    size_t bytes = (size_t)(2 * s->n * s->d + 2 * s->v * s->d + s->rows * s->v);
    return bytes + CE_FP8_PARTS * align_up(FP8_ROW * sizeof(float), 256);
}

static tensor fp8_alloc(scratch *mem, dtype dt, int64_t rows, int64_t cols) {
    return tensor_of(scratch_alloc(mem, (size_t)(rows * cols)), dt, 2, (int64_t[]){ rows, cols });
}

static ce_fp8 ce_fp8_alloc(const ce_shape *s, scratch *mem) {
    enum { BYTES = FP8_ROW * sizeof(float) };
    ce_fp8 f = { .h_row = scratch_alloc(mem, BYTES) };
    f.w_row = scratch_alloc(mem, BYTES);
    f.dz_row = scratch_alloc(mem, BYTES);
    f.h = fp8_alloc(mem, DT_E4M3, s->n, s->d);
    f.ht = fp8_alloc(mem, DT_E4M3, s->d, s->n);
    f.w = fp8_alloc(mem, DT_E4M3, s->v, s->d);
    f.wt = fp8_alloc(mem, DT_E4M3, s->d, s->v);
    f.dz = fp8_alloc(mem, DT_E5M2, s->rows, s->v);
    return f;
}

static size_t cuda_linear_ce_workspace(const op_backend *b, const op_call *c, int threads) {
    ce_shape s = ce_shape_of(c);
    size_t z = (size_t)(s.rows * s.stride) * dt_size(s.zt);
    size_t dh = c->out[1].dt != DT_NONE && c->out[1].dt != s.zt && c->out[1].dt != DT_F32
                    ? (size_t)(s.rows * s.d) * sizeof(float)
                    : 0;
    size_t fp8 = c->attr.ce.fp8 ? ce_fp8_bytes(&s) : 0;
    return CUDA_GEMM_WORKSPACE + align_up(z, 256) + dh + pair_bytes(&c->in[0], &c->in[1]) + fp8 +
           2048;
}

static tensor row_range(const tensor *t, int64_t from, int64_t count) {
    tensor part = *t;
    if (t->data) part.data = (char *)t->data + (size_t)(from * t->dim[1]) * dt_size(t->dt);
    part.dim[0] = count;
    return part;
}

/* A vocabulary that is not a multiple of LINE is split into its whole lines and the rest, a GEMM each:
 * with 50,257 columns in one GEMM the three ran at 149 TFLOP/s, with 50,304 at 649. */
typedef struct columns {
    int64_t from, count;
} columns;

/* @return how many parts there are, 1 or 2. */
static int split_columns(const op_call *c, const ce_shape *s, columns part[2]) {
    int64_t whole = s->v / LINE * LINE;
    bool one = whole == s->v || whole == 0 || dt_size(s->zt) != 2 ||
               (c->out[1].data && !can_write(s->zt, c->out[1].dt));
    part[0] = (columns){ 0, one ? s->v : whole };
    part[1] = (columns){ whole, s->v - whole };
    return one ? 1 : 2;
}

/* Columns k of a chunk of logits; their stride is s->stride. */
static tensor logits_of(const ce_shape *s, void *z, int64_t rows, columns k) {
    return tensor_of((char *)z + (size_t)k.from * dt_size(s->zt), s->zt, 2,
                     (int64_t[]){ rows, k.count });
}

/* Quantizes all of x by its own maximum. @param qt NULL: no transpose */
static void quantize_whole(const op_call *of, const tensor *x, float *row, const tensor *q,
                           const tensor *qt) {
    op_call c = { .op = OP_QUANTIZE, .run = of->run, .in = { *x }, .out = { *q } };
    c.in[1] = tensor_of(row, DT_F32, 1, (int64_t[]){ FP8_ROW });
    if (qt) c.out[1] = *qt;
    c.attr.fp8.recipe = FP8_CURRENT;
    cuda_quantize(&c);
}

/* @return the GEMM c = a b^T of operands in fp8. */
static cuda_gemm fp8_gemm(cuda_context *x, const tensor *a, const float *a_row, const tensor *b,
                          const float *b_row, const tensor *c) {
    cuda_gemm g = gemm_of(x, *a, false, *b, true, c, NULL);
    g.scale_a = a_row + FP8_UNSCALE;
    g.scale_b = b_row + FP8_UNSCALE;
    g.fast = FP8_FAST_BACKWARD;
    g.exact = false;
    return g;
}

static void cuda_linear_ce_fp8(const op_call *c) {
    cuda_context *x = cuda_of(c);
    ce_shape s = ce_shape_of(c);
    scratch mem = scratch_of(c);
    ce_fp8 f = ce_fp8_alloc(&s, &mem);
    void *z = scratch_alloc(&mem, (size_t)(s.rows * s.stride) * dt_size(s.zt));
    bool dh_wanted = c->out[1].data, dw_wanted = c->out[2].data;
    quantize_whole(c, &c->in[0], f.h_row, &f.h, dw_wanted ? &f.ht : NULL);
    quantize_whole(c, &c->in[1], f.w_row, &f.w, dh_wanted ? &f.wt : NULL);
    for (int64_t from = 0; from < s.n; from += s.rows) {
        int64_t count = MIN(s.rows, s.n - from);
        tensor h = row_range(&f.h, from, count), dh = row_range(&c->out[1], from, count);
        tensor zc = tensor_of(z, s.zt, 2, (int64_t[]){ count, s.v });
        cuda_gemm g = fp8_gemm(x, &h, f.h_row, &f.w, f.w_row, &zc);
        g.ldc = s.stride;
        g.fast = FP8_FAST_FORWARD;
        require_gemm(c, &g);
        bool grad = dh_wanted || dw_wanted;
        cuda_softmax_rows(
            &(cuda_softmax){ c, z, s.zt, from, count, s.v, s.stride, grad, f.dz.data, f.dz_row });
        tensor dz = row_range(&f.dz, 0, count);
        if (dh_wanted) {
            g = fp8_gemm(x, &dz, f.dz_row, &f.wt, f.w_row, &dh);
            require_gemm(c, &g);
        }
        if (dw_wanted) {
            tensor ht = f.ht; /* dzt replaces the logits, which nothing reads any more */
            tensor dzt = tensor_of(z, DT_E5M2, 2, (int64_t[]){ s.v, count });
            cuda_transpose_fp8(x, &dz, &dzt);
            ht.data = (char *)ht.data + from;
            g = fp8_gemm(x, &dzt, f.dz_row, &ht, f.h_row, &c->out[2]);
            g.accumulate = from > 0 || (c->accumulate & 4);
            require_gemm(c, &g);
        }
    }
}

static void cuda_linear_ce(const op_call *c) {
    if (c->attr.ce.fp8) {
        cuda_linear_ce_fp8(c);
        return;
    }
    cuda_context *x = cuda_of(c);
    ce_shape s = ce_shape_of(c);
    scratch mem = scratch_of(c);
    tensor h = c->in[0], w = c->in[1];
    if (h.dt != w.dt) {
        h = convert_to(x, &h, DT_F32, &mem);
        w = convert_to(x, &w, DT_F32, &mem);
    }
    columns part[2];
    int parts = split_columns(c, &s, part);
    void *z = scratch_alloc(&mem, (size_t)(s.rows * s.stride) * dt_size(s.zt));
    bool grad = c->out[1].data || c->out[2].data;
    for (int64_t from = 0; from < s.n; from += s.rows) {
        int64_t count = MIN(s.rows, s.n - from);
        tensor hc = row_range(&h, from, count), dh = row_range(&c->out[1], from, count);
        scratch left = mem;
        for (int k = 0; k < parts; k++) {
            tensor zk = logits_of(&s, z, count, part[k]);
            tensor wk = row_range(&w, part[k].from, part[k].count);
            cuda_gemm g = gemm_of(x, hc, false, wk, true, &zk, &left);
            g.ldc = s.stride;
            require_gemm(c, &g);
        }
        cuda_softmax_rows(&(cuda_softmax){ c, z, s.zt, from, count, s.v, s.stride, grad });
        /* The short part first: its share of dh is rounded to dh's type twice. */
        for (int k = parts - 1; grad && k >= 0; k--) {
            tensor zk = logits_of(&s, z, count, part[k]);
            tensor wk = row_range(&w, part[k].from, part[k].count);
            if (c->out[1].data) {
                cuda_gemm g = gemm_of(x, zk, false, wk, false, &dh, &left);
                g.lda = s.stride;
                g.accumulate = k < parts - 1;
                gemm_into(c, g, &dh, &left);
            }
            if (c->out[2].data) {
                tensor dw = row_range(&c->out[2], part[k].from, part[k].count);
                cuda_gemm g = gemm_of(x, zk, true, hc, false, &dw, &left);
                g.lda = s.stride;
                g.accumulate = from > 0 || (c->accumulate & 4);
                require_gemm(c, &g);
            }
        }
    }
}

KERNEL(LINEAR, cuda_linear, cuda_linear_workspace, ATTRS_FP8);
KERNEL(LINEAR_GELU, cuda_linear, cuda_linear_workspace, ATTRS_FP8 | ATTR(ACT));
KERNEL(LINEAR_BWD_X, cuda_linear_bwd_x, cuda_linear_workspace, ATTRS_FP8);
KERNEL(LINEAR_BWD_X_GELU, cuda_linear_bwd_x_gelu, cuda_linear_workspace, ATTR(ACT));
KERNEL(LINEAR_BWD_W, cuda_linear_bwd_w, cuda_linear_workspace, ATTRS_FP8);
KERNEL(LINEAR_CE, cuda_linear_ce, cuda_linear_ce_workspace, ATTRS_LOSS | ATTR(LOSS_FP8));
