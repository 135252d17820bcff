/* Linear layers and the loss: products (products.c), with what cuBLASLt cannot fuse in kernels of
 * our own.
 *
 * Workspace: | products | operands converted, where their types differ | column sums or logits |
 */
#include "cuda_internal.h"

#include <string.h>

enum { LOGIT_BYTES = 1 << 30, LINE = 64 };

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

static size_t widened(const tensor *t) {
    return align_up((size_t)tensor_count(t) * sizeof(float), 256);
}
static size_t pair_bytes(const tensor *a, const tensor *b) {
    return a->dt == b->dt ? 0 : widened(a) + widened(b);
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
    if (a.dt != b.dt) {
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
                        .exact = true };
}

static bool multiply(const op_call *c, const cuda_gemm *g) {
    return cuda_multiply(cuda_of(c), g, c->run->workspace, CUDA_GEMM_WORKSPACE);
}

/* cuBLASLt writes no fp16 or bf16 result of other operands' types. */
static bool direct(const cuda_gemm *g) { return g->ct == DT_F32 || g->ct == g->at; }

/* Through an fp32 result where the product cannot write c's own type. */
static void product(const op_call *c, cuda_gemm g, const tensor *to, room *r) {
    if (direct(&g)) {
        multiply(c, &g);
        return;
    }
    tensor wide = *to;
    wide.dt = DT_F32;
    wide.data = take(r, tensor_bytes(&wide));
    g.c = wide.data;
    g.ct = DT_F32;
    multiply(c, &g);
    cuda_convert(cuda_of(c), &wide, to);
}

/* ---- linear ------------------------------------------------------------------------------------ */

size_t cuda_linear_workspace(const op_call *c) {
    const tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    size_t bytes = CUDA_GEMM_WORKSPACE + pair_bytes(a, b) + widened(y);
    if (a->dt == b->dt && (y->dt == a->dt || y->dt == DT_F32)) bytes -= widened(y);
    if (c->op == OP_LINEAR_BWD_W && c->out[1].dt != DT_NONE) bytes += cuda_columns_bytes(a->dim[1]);
    return bytes + 1024;
}

void cuda_linear(const op_call *c) {
    cuda_context *x = cuda_of(c);
    bool gelu = c->op == OP_LINEAR_GELU;
    const tensor *bias = &c->in[2], *y = &c->out[0], *pre = gelu ? &c->out[1] : y;
    room r = room_of(c);
    cuda_gemm g = gemm_of(x, c->in[0], false, c->in[1], true, y, &r), fused = g;
    fused.bias = bias->data;
    fused.bias_t = bias->dt;
    fused.gelu = gelu && c->attr.act == ACT_GELU_TANH;
    fused.pre = pre->data;
    bool whole = direct(&g) && (fused.gelu || !gelu) && g.at != DT_F32 &&
                 (!gelu || pre->dt == y->dt) && (bias->data || fused.gelu);
    if (whole && multiply(c, &fused)) return;
    g.c = pre->data;
    g.ct = pre->dt;
    product(c, g, pre, &r);
    if (bias->data || gelu) cuda_bias_gelu(x, pre, bias, gelu ? (int)c->attr.act : -1, y);
}

void cuda_linear_bwd_x(const op_call *c) {
    room r = room_of(c);
    cuda_gemm g = gemm_of(cuda_of(c), c->in[0], false, c->in[1], false, &c->out[0], &r);
    product(c, g, &c->out[0], &r);
}

void cuda_linear_bwd_w(const op_call *c) {
    cuda_context *x = cuda_of(c);
    room r = room_of(c);
    if (c->out[1].data) {
        void *partial = take(&r, cuda_columns_bytes(c->in[0].dim[1]));
        cuda_sum_columns(x, &c->in[0], c->out[1].data, c->accumulate & 2, partial);
    }
    if (!c->out[0].data) return;
    cuda_gemm g = gemm_of(x, c->in[0], true, c->in[1], false, &c->out[0], &r);
    g.accumulate = c->accumulate & 1;
    multiply(c, &g);
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
    int64_t most = LOGIT_BYTES / (s.stride * (int64_t)dt_size(s.zt));
    int64_t chunks = MAX(1, (s.n + MAX(most, 1) - 1) / MAX(most, 1));
    s.rows = (s.n + chunks - 1) / chunks;
    return s;
}

size_t cuda_linear_ce_workspace(const op_call *c) {
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

void cuda_linear_ce(const op_call *c) {
    cuda_context *x = cuda_of(c);
    ce s = ce_of(c);
    room r = room_of(c);
    tensor h = c->in[0], w = c->in[1];
    if (h.dt != w.dt) {
        h = widen(x, &h, &r);
        w = widen(x, &w, &r);
    }
    void *z = take(&r, (size_t)(s.rows * s.stride) * dt_size(s.zt));
    bool grad = c->out[1].data || c->out[2].data;
    for (int64_t from = 0; from < s.n; from += s.rows) {
        int64_t count = MIN(s.rows, s.n - from);
        tensor hc = rows_of(&h, from, count), zc = tensor_of(z, s.zt, 2, (int64_t[]){ count, s.v });
        room left = r;
        cuda_gemm g = gemm_of(x, hc, false, w, true, &zc, &left);
        g.ldc = s.stride;
        multiply(c, &g);
        cuda_softmax_rows(&(cuda_softmax){ c, z, s.zt, from, count, s.v, s.stride, grad });
        if (c->out[1].data) {
            tensor dh = rows_of(&c->out[1], from, count);
            g = gemm_of(x, zc, false, w, false, &dh, &left);
            g.lda = s.stride;
            product(c, g, &dh, &left);
        }
        if (c->out[2].data) {
            g = gemm_of(x, zc, true, hc, false, &c->out[2], &left);
            g.lda = s.stride;
            g.accumulate = from > 0 || (c->accumulate & 4);
            multiply(c, &g);
        }
    }
}
