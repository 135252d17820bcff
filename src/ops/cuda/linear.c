/* Linear layers and the loss: products (products.c), with what cuBLASLt cannot fuse in kernels of
 * our own.
 *
 * Workspace: | products | operands converted, where their types differ | column sums or logits |
 */
#include "cuda_internal.h"
#include "ops/op_table.h"

#include <string.h>

/* Logits at a time: chunks of 4096 rows are the fastest and small. */
enum { LOGIT_BYTES = 512 << 20, LOGIT_ROWS = 4096, LINE = 64, ROWS = 128 };

typedef struct room {
    char *at, *end;
} room;

static room room_of(const op_call *c) {
    char *at = c->run->workspace;
    return (room){ at + CUDA_GEMM_WORKSPACE, at + c->run->workspace_bytes };
}
static void *take(room *r, size_t bytes) {
    void *p = r->at;
    r->at += align_up(bytes, 256);
    BUG_IF(r->at > r->end);
    return p;
}

/* ---- operands of one type ---------------------------------------------------------------------- */

/* fp8 operands, e4m3 or e5m2, are multiplied as they are. */
static bool is_fp8(dtype dt) { return dt_size(dt) == 1; }

static size_t widened(const tensor *t) {
    return align_up((size_t)tensor_count(t) * sizeof(float), 256);
}
static size_t pair_bytes(const tensor *a, const tensor *b) {
    return a->dt == b->dt || is_fp8(a->dt) ? 0 : widened(a) + widened(b);
}

static tensor widen(cuda_context *x, const tensor *t, room *r) {
    tensor wide = *t;
    wide.dt = DT_F32;
    wide.data = take(r, tensor_bytes(&wide));
    cuda_convert(x, t, &wide);
    return wide;
}

/* c = op(a) op(b), where the operands may differ in type: then both become fp32. */
static cuda_gemm gemm_of(cuda_context *x, tensor a, bool ta, tensor b, bool tb, const tensor *c,
                         room *r) {
    if (a.dt != b.dt && !is_fp8(a.dt)) {
        a = widen(x, &a, r);
        b = widen(x, &b, r);
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
                        .exact = !x->tf32 };
}

static bool multiply(const op_call *c, const cuda_gemm *g) {
    return cuda_multiply(cuda_of(c), g, c->run->workspace, CUDA_GEMM_WORKSPACE);
}
/* Where there is no other way. */
static void must_multiply(const op_call *c, const cuda_gemm *g) {
    cuda_context *x = cuda_of(c);
    if (!multiply(c, g) && !x->fault)
        x->fault =
            err_hint(ERR("this GPU has no product of %s and %s [%lld, %lld, %lld]", dt_name(g->at),
                         dt_name(g->bt), (long long)g->m, (long long)g->n, (long long)g->k),
                     "fp8 needs compute capability 8.9 or more; set precision.fp8=off");
}

/* cuBLASLt writes no fp16 or bf16 result of other operands' types, but for fp8. */
static bool writes(dtype operands, dtype result) {
    return result == DT_F32 || result == operands || (is_fp8(operands) && result == DT_BF16);
}
static bool direct(const cuda_gemm *g) { return writes(g->at, g->ct); }

/* Through an fp32 result where the product cannot write c's own type. */
static void product(const op_call *c, cuda_gemm g, const tensor *to, room *r) {
    if (direct(&g)) {
        must_multiply(c, &g);
        return;
    }
    tensor wide = *to;
    wide.dt = DT_F32;
    wide.data = take(r, tensor_bytes(&wide));
    g.c = wide.data;
    g.ct = DT_F32;
    must_multiply(c, &g);
    cuda_convert(cuda_of(c), &wide, to);
}

/* ---- linear ------------------------------------------------------------------------------------ */

size_t cuda_linear_workspace(const op_backend *b, const op_call *c, int threads) {
    const tensor *x = &c->in[0], *w = &c->in[1];
    const tensor *y = &c->out[c->op == OP_LINEAR_GELU ? 1 : 0]; /* what the GEMM writes */
    dtype operands = x->dt == w->dt || is_fp8(x->dt) ? x->dt : DT_F32;
    size_t bytes = CUDA_GEMM_WORKSPACE + pair_bytes(x, w);
    if (!writes(operands, y->dt)) bytes += widened(y);
    if (c->op == OP_LINEAR_BWD_W && c->out[1].dt != DT_NONE)
        bytes += cuda_columns_bytes(c->out[1].dim[0]);
    if (c->in[2].dt != DT_NONE && c->in[2].ndim == 1) bytes += widened(&c->in[2]);
    return bytes + 1024;
}

/* Whether the sums of fp8 products are kept shorter, which is faster. */
enum { FP8_FAST_FORWARD = true, FP8_FAST_BACKWARD = false };

/* The product of the op's operands. In fp8 both lie along the sum, whichever op it is. */
static cuda_gemm operands(const op_call *c, bool ta, bool tb, room *r) {
    bool fp8 = is_fp8(c->in[0].dt);
    cuda_gemm g = gemm_of(cuda_of(c), c->in[0], ta && !fp8, c->in[1], tb || fp8, &c->out[0], r);
    if (!fp8) return g;
    bool forward = c->op == OP_LINEAR || c->op == OP_LINEAR_GELU;
    g.scale_a = (const float *)c->in[3].data + FP8_UNSCALE;
    g.scale_b = (const float *)c->in[4].data + FP8_UNSCALE;
    g.fast = forward ? FP8_FAST_FORWARD : FP8_FAST_BACKWARD;
    return g;
}

/* Beside a product the bias has the result's type. */
static tensor bias_as(cuda_context *x, const tensor *bias, dtype dt, room *r) {
    tensor b = *bias;
    if (!bias->data || bias->dt == dt) return b;
    b.dt = dt;
    b.data = take(r, tensor_bytes(&b));
    cuda_convert(x, bias, &b);
    return b;
}

void cuda_linear(const op_call *c) {
    cuda_context *x = cuda_of(c);
    bool gelu = c->op == OP_LINEAR_GELU;
    const tensor *bias = &c->in[2], *y = &c->out[0], *pre = gelu ? &c->out[1] : y;
    room r = room_of(c);
    cuda_gemm g = operands(c, false, true, &r), fused = g;
    fused.gelu = gelu && c->attr.act == ACT_GELU_TANH;
    fused.pre = pre->data;
    bool whole = direct(&g) && (!gelu || (fused.gelu && g.at != DT_F32 && pre->dt == y->dt));
    if (whole && (bias->data || gelu)) {
        tensor b = bias_as(x, bias, g.ct, &r);
        fused.bias = b.data;
        fused.bias_t = b.dt;
        if (multiply(c, &fused)) return;
    }
    g.c = pre->data;
    g.ct = pre->dt;
    product(c, g, pre, &r);
    if (bias->data || gelu) cuda_bias_gelu(x, pre, bias, gelu ? (int)c->attr.act : -1, y);
}

void cuda_linear_bwd_x(const op_call *c) {
    room r = room_of(c);
    cuda_gemm g = operands(c, false, false, &r);
    product(c, g, &c->out[0], &r);
}

void cuda_linear_bwd_x_gelu(const op_call *c) {
    room r = room_of(c);
    const tensor *pre = &c->in[2], *dpre = &c->out[0];
    cuda_gemm g = operands(c, false, false, &r), fused = g;
    fused.dgelu = true;
    fused.pre = pre->data;
    bool whole = direct(&g) && c->attr.act == ACT_GELU_TANH && g.at != DT_F32 && pre->dt == g.ct;
    if (whole && multiply(c, &fused)) return;
    product(c, g, dpre, &r);
    op_call slope = *c; /* in place */
    slope.in[0] = *dpre;
    slope.in[1] = *pre;
    cuda_gelu_bwd(&slope);
}

void cuda_linear_bwd_w(const op_call *c) {
    cuda_context *x = cuda_of(c);
    const tensor *dy = &c->in[0], *dw = &c->out[0], *db = &c->out[1];
    room r = room_of(c);
    if (dw->data) {
        cuda_gemm g = operands(c, true, false, &r);
        g.accumulate = c->accumulate & 1;
        must_multiply(c, &g);
    }
    if (db->data) {
        void *partial = take(&r, cuda_columns_bytes(dy->dim[1]));
        cuda_sum_columns(x, dy, db->data, c->accumulate & 2, partial);
    }
}

/* ---- the loss ------------------------------------------------------------------------------------
 * A chunk of rows at a time: logits in h's type, softmax and gradient in place, two products. */
typedef struct ce {
    int64_t n, d, v, stride, rows;
    dtype zt;
} ce;

static ce ce_of(const op_call *c) {
    ce s = { .n = c->in[0].dim[0], .d = c->in[0].dim[1], .v = c->in[1].dim[0] };
    s.zt = c->in[0].dt == c->in[1].dt ? c->in[0].dt : DT_F32;
    s.stride = (s.v + LINE - 1) / LINE * LINE;
    int64_t most = MIN(LOGIT_ROWS, LOGIT_BYTES / (s.stride * (int64_t)dt_size(s.zt)));
    int64_t chunks = MAX(1, (s.n + MAX(most, 1) - 1) / MAX(most, 1));
    s.rows = MIN((int64_t)align_up((size_t)((s.n + chunks - 1) / chunks), ROWS), s.n);
    return s;
}

size_t cuda_linear_ce_workspace(const op_backend *b, const op_call *c, int threads) {
    ce s = ce_of(c);
    size_t z = (size_t)(s.rows * s.stride) * dt_size(s.zt);
    size_t dh = c->out[1].dt != DT_NONE && c->out[1].dt != s.zt && c->out[1].dt != DT_F32
                    ? (size_t)(s.rows * s.d) * sizeof(float)
                    : 0;
    return CUDA_GEMM_WORKSPACE + align_up(z, 256) + dh + pair_bytes(&c->in[0], &c->in[1]) + 2048;
}

static tensor rows_of(const tensor *t, int64_t from, int64_t count) {
    tensor part = *t;
    if (t->data) part.data = (char *)t->data + (size_t)(from * t->dim[1]) * dt_size(t->dt);
    part.dim[0] = count;
    return part;
}

/* The vocabulary in whole lines, and what is left: with 50,257 columns in one piece the three products
 * ran at 149 TFLOP/s where 50,304 have 649. */
typedef struct columns {
    int64_t from, count;
} columns;

static int cut_columns(const op_call *c, const ce *s, columns part[2]) {
    int64_t whole = s->v / LINE * LINE;
    bool one = whole == s->v || whole == 0 || dt_size(s->zt) != 2 ||
               (c->out[1].data && !writes(s->zt, c->out[1].dt));
    part[0] = (columns){ 0, one ? s->v : whole };
    part[1] = (columns){ whole, s->v - whole };
    return one ? 1 : 2;
}

static tensor columns_of(const ce *s, void *z, int64_t rows, columns k) {
    return tensor_of((char *)z + (size_t)k.from * dt_size(s->zt), s->zt, 2,
                     (int64_t[]){ rows, k.count });
}

void cuda_linear_ce(const op_call *c) {
    cuda_context *x = cuda_of(c);
    ce s = ce_of(c);
    room r = room_of(c);
    tensor h = c->in[0], w = c->in[1];
    if (h.dt != w.dt) {
        h = widen(x, &h, &r);
        w = widen(x, &w, &r);
    }
    columns part[2];
    int parts = cut_columns(c, &s, part);
    void *z = take(&r, (size_t)(s.rows * s.stride) * dt_size(s.zt));
    bool grad = c->out[1].data || c->out[2].data;
    for (int64_t from = 0; from < s.n; from += s.rows) {
        int64_t count = MIN(s.rows, s.n - from);
        tensor hc = rows_of(&h, from, count), dh = rows_of(&c->out[1], from, count);
        room left = r;
        for (int k = 0; k < parts; k++) {
            tensor zk = columns_of(&s, z, count, part[k]);
            tensor wk = rows_of(&w, part[k].from, part[k].count);
            cuda_gemm g = gemm_of(x, hc, false, wk, true, &zk, &left);
            g.ldc = s.stride;
            multiply(c, &g);
        }
        cuda_softmax_rows(&(cuda_softmax){ c, z, s.zt, from, count, s.v, s.stride, grad });
        /* The short sum first: it is rounded once more. */
        for (int k = parts - 1; grad && k >= 0; k--) {
            tensor zk = columns_of(&s, z, count, part[k]);
            tensor wk = rows_of(&w, part[k].from, part[k].count);
            if (c->out[1].data) {
                cuda_gemm g = gemm_of(x, zk, false, wk, false, &dh, &left);
                g.lda = s.stride;
                g.accumulate = k < parts - 1;
                product(c, g, &dh, &left);
            }
            if (c->out[2].data) {
                tensor dw = rows_of(&c->out[2], part[k].from, part[k].count);
                cuda_gemm g = gemm_of(x, zk, true, hc, false, &dw, &left);
                g.lda = s.stride;
                g.accumulate = from > 0 || (c->accumulate & 4);
                multiply(c, &g);
            }
        }
    }
}
