/* Attention through cuDNN.
 *
 * cuDNN has no attention call in C. Its interface is a graph of matmuls, pointwise operations and
 * reductions over tensor descriptors; where it recognizes the graph as attention, one fused engine runs
 * all of it and the scores never reach memory. forward_graph() and backward_graph() spell out the two
 * graphs; the rest of the file is plumbing that only they use, hence its length. cuDNN does not verify that a graph it accepts means what its
 * engine computes: some wrong graphs build and compute garbage. Every change here needs tests/gpu.
 *
 *     call -> att_shape -> graph of descriptors -> heuristic -> engine   (once per shape, cached)
 *                                                                 |
 *     call: bind addresses, execute  <----------------------------+
 *
 * What sequences a batch holds is expressed in one of three forms (choose_form):
 *
 *     rows        B sequences of T tokens
 *     first keys  the same with a mask: for each query the first key it attends to, as an index in its
 *                 row. For documents in short rows. Costs as much as no mask
 *     documents   B slots for documents of at most T tokens, anywhere among the tokens; nothing is
 *                 computed between documents. Their lengths and offsets are found on the device, an
 *                 unused slot has length 0; lse is [N, H]. Also for rows that are not documents, where
 *                 cuDNN needs explicit lengths (KEY_TILE). Documents past the slots, which are always
 *                 the last ones, are left to the kernels of attention.cu
 *
 * A sliding window is a mask of its own that engines know, in rows and in documents: what it hides is not
 * computed. Where no engine has it, it becomes part of the first keys (graph_for).
 *
 * On Hopper our own kernels (attention_hopper.cuh) are faster for some shapes, in one direction or both (own_is_faster). lse
 * is [H, N] for them and in rows and first keys, so that a direction may choose for itself; with documents forward and
 * backward choose the same form. Both engines must exist before either is used (graph_for).
 *
 * Determinism: backward adds tiles of dQ in no fixed order, unless debug.deterministic is set. Then the
 * graph selects another engine, which needs memory for all scores of a sequence.
 *
 * Workspace: | first keys or documents | cuDNN's own | dq in fp32 | row dots |
 *            | dk and dv of each query head |
 */
#include "cuda_internal.h"
#include "ops/op_table.h"

#include <cudnn_graph.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;

/* Tensors by number, cuDNN's "unique id". Those in memory and host scalars are bound to an address by
 * each run; virtual ones, which exist only inside the engine, are numbered from T_VIRTUAL up. */
enum {
    T_Q = 1,
    T_K,
    T_V,
    T_O,
    T_STATS,
    T_DO,
    T_DQ,
    T_DK,
    T_DV,
    T_FIRST,
    T_LENGTH_Q, /* documents: [B] tokens; T_LENGTH_K is bound to the same memory */
    T_LENGTH_K,
    T_OFFSET_QKV, /* documents: [B + 1], where each begins, in elements of that tensor */
    T_OFFSET_O,
    T_OFFSET_STATS,
    T_SCALE, /* from here to T_ONE: host scalars */
    T_NEG_INF,
    T_WINDOW,
    T_ONE,
    T_DQ_SUM, /* from here: in the workspace */
    T_ROWDOT,
    T_DK_EACH,
    T_DV_EACH,
    T_MEMORY,
    T_VIRTUAL = 100
};
enum { MAX_DESC = 256, MAX_OPS = 64, MAX_CONFIGS = 16 };
/* Documents get one slot per row plus one per SLOT_TOKENS tokens. Empty slots have a cost: in rows
 * shorter than LONG_ROW it exceeds what skipping other documents saves. */
enum { SLOT_TOKENS = 128, LONG_ROW = 2048 };
/* Keys that an engine processes at a time. Up to cuDNN 9.15 the gradients of rows whose length is not a
 * multiple of it may be NaN, unless lengths are passed explicitly as for documents. Before 9.10 the
 * backward graph was different (the caller cleared dQ's buffer, lengths were masked twice): those
 * versions are not supported. */
enum { KEY_TILE = 128, LAST_OF_WHOLE_TILES = 91500, OLDEST = 91000 };
typedef enum { BY_ROWS, BY_FIRST_KEYS, BY_DOCUMENTS } sequence_form;

typedef struct att_shape {
    int64_t n, b, h, kv, t, d; /* n: tokens */
    int64_t window;            /* that the engine masks; 0: none */
    double scale;
    int32_t type; /* dtype */
    int32_t by, backward, deterministic;
} att_shape;
_Static_assert(sizeof(att_shape) == 8 * 8 + 4 * 4, "compared as bytes");

/* The graph of a shape and the engine that runs it. Owned by cuda_attention. */
typedef struct att_graph {
    att_shape shape;
    cudnnDataType_t type;
    desc owned[MAX_DESC], ops[MAX_OPS];
    int n_owned, n_ops;
    desc mem[T_MEMORY]; /* the tensors in memory */
    desc engine;        /* NULL: cuDNN does not support the shape */
    int64_t next_virtual;
    size_t offset[T_MEMORY], bytes;    /* offsets in the workspace after index_bytes; the total */
    float scale, neg_inf, window, one; /* host scalars, read by every run */
    char error[512];                   /* the first failure; "": none so far */
} att_graph;

struct cuda_attention {
    cudnnHandle_t dnn;
    cudaStream_t stream; /* the handle's */
    att_graph **graph;
    int n, cap;
};

#define DIMS(...) ((const int64_t[4]){ __VA_ARGS__ })
#define F32       CUDNN_DATA_FLOAT
#define I32       CUDNN_DATA_INT32
#define BOOL      CUDNN_DATA_BOOLEAN

/* ---- descriptors. After the first failure these calls do nothing --------------------------------- */

static bool check_status(att_graph *g, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    if (g->error[0]) return false;
    char more[400] = "";
    cudnnGetLastErrorString(more, sizeof more);
    snprintf(g->error, sizeof g->error, "%s: %s: %s", what, cudnnGetErrorString(status), more);
    return false;
}

static desc new_desc(att_graph *g, cudnnBackendDescriptorType_t type) {
    desc d = NULL;
    if (g->error[0]) return NULL;
    BUG_IF(g->n_owned == MAX_DESC);
    if (check_status(g, cudnnBackendCreateDescriptor(type, &d), "descriptor"))
        g->owned[g->n_owned++] = d;
    return d;
}

static void set_attr(att_graph *g, desc d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, const void *value) {
    if (!g->error[0])
        check_status(g, cudnnBackendSetAttribute(d, name, type, n, value), "attribute");
}
static void set_desc(att_graph *g, desc d, cudnnBackendAttributeName_t name, desc value) {
    if (value) set_attr(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}
static void finalize_desc(att_graph *g, desc d, const char *what) {
    if (!g->error[0]) check_status(g, cudnnBackendFinalize(d), what);
}

/* ---- tensors: always four dims, batch, head, row, column ------------------------------------------ */

/* @param begin the tensor of offsets at which its sequences begin; NULL: the stride separates them. */
static desc tensor_at(att_graph *g, int64_t number, cudnnDataType_t type, const int64_t dim[4],
                      const int64_t stride[4], desc begin) {
    int64_t align = 16;
    bool yes = true;
    desc t = new_desc(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_attr(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attr(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set_attr(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set_attr(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    set_attr(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (number >= T_VIRTUAL)
        set_attr(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (number >= T_SCALE && number <= T_ONE)
        set_attr(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    set_desc(g, t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, begin);
    finalize_desc(g, t, "tensor");
    if (number < T_MEMORY) g->mem[number] = t;
    return t;
}
static desc tensor4_desc(att_graph *g, int64_t number, cudnnDataType_t type, const int64_t dim[4],
                         const int64_t stride[4]) {
    return tensor_at(g, number, type, dim, stride, NULL);
}

static desc vector_tensor(att_graph *g, int number, cudnnDataType_t type, int64_t n) {
    if (g->mem[number]) return g->mem[number];
    return tensor4_desc(g, number, type, DIMS(n, 1, 1, 1), DIMS(1, 1, 1, 1));
}
static desc scalar_tensor(att_graph *g, int number) { return vector_tensor(g, number, F32, 1); }
/* The lengths and offsets of documents. Offsets must have 64 bits: key_gradient multiplies them. */
static void declare_documents(att_graph *g) {
    int64_t b = g->shape.b;
    if (g->shape.by != BY_DOCUMENTS) return;
    vector_tensor(g, T_LENGTH_Q, I32, b);
    vector_tensor(g, T_LENGTH_K, I32, b);
    for (int i = T_OFFSET_QKV; i <= T_OFFSET_STATS; i++)
        vector_tensor(g, i, CUDNN_DATA_INT64, b + 1);
}
static desc new_scores(att_graph *g, cudnnDataType_t type) { /* a new virtual tensor [B, H, T, T] */
    const att_shape *s = &g->shape;
    int64_t tt = s->t * s->t;
    return tensor4_desc(g, g->next_virtual++, type, DIMS(s->b, s->h, s->t, s->t),
                        DIMS(s->h * tt, tt, s->t, 1));
}
static desc row_tensor(att_graph *g, int64_t number) { /* [B, H, T, 1] */
    const att_shape *s = &g->shape;
    if (number < T_MEMORY && g->mem[number]) return g->mem[number];
    if (number < T_MEMORY && s->by == BY_DOCUMENTS)
        return tensor_at(g, number, F32, DIMS(s->b, s->h, s->t, 1), DIMS(s->h * s->t, 1, s->h, 1),
                         g->mem[T_OFFSET_STATS]);
    bool lse = number == T_STATS; /* [H, N]; what is left is cuDNN's own */
    return tensor4_desc(g, number, F32, DIMS(s->b, s->h, s->t, 1),
                        lse ? DIMS(s->t, s->n, 1, 1) : DIMS(s->h * s->t, s->t, 1, 1));
}
/* Heads of D columns in rows of `row` elements, as [B, heads, T, D] or transposed [B, heads, D, T]. */
static desc heads_tensor(att_graph *g, int64_t number, cudnnDataType_t type, int64_t heads,
                         int64_t row, bool transposed, int at) {
    const att_shape *s = &g->shape;
    const int64_t *dim = transposed ? DIMS(s->b, heads, s->d, s->t) : DIMS(s->b, heads, s->t, s->d);
    const int64_t *stride =
        transposed ? DIMS(s->t * row, s->d, 1, row) : DIMS(s->t * row, s->d, row, 1);
    return tensor_at(g, number, type, dim, stride, g->mem[at]);
}
/* [B, H, T, D] without gaps: tiles of partial sums are contiguous. */
static desc by_heads_tensor(att_graph *g, int64_t number, cudnnDataType_t type) {
    const att_shape *s = &g->shape;
    int64_t one = s->t * s->d;
    return tensor4_desc(g, number, type, DIMS(s->b, s->h, s->t, s->d),
                        DIMS(s->h * one, one, s->d, 1));
}

/* ---- operations ------------------------------------------------------------------------------------ */

static desc add_graph_op(att_graph *g, desc op, desc y, const char *what) {
    finalize_desc(g, op, what);
    BUG_IF(g->n_ops == MAX_OPS);
    g->ops[g->n_ops++] = op;
    return y;
}

/* c = a b. m, n, k: for documents, the tensor of true lengths of a dimension that varies between them, or
 * ALL. Without these the engine builds, and reads and writes out of bounds. */
static desc matmul_desc(att_graph *g, desc a, desc b, desc c, int m, int n, int k) {
    cudnnDataType_t type = F32;
    desc how = new_desc(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_attr(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize_desc(g, how, "matmul");
    desc op = new_desc(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, g->mem[m]);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, g->mem[n]);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, g->mem[k]);
    return add_graph_op(g, op, c, "matmul");
}

/* y = mode(x, b, t); only GEN_INDEX reads axis. */
static desc pointwise_desc(att_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                           desc x, desc b, desc t, int64_t axis, desc y) {
    desc how = new_desc(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attr(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_attr(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set_attr(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize_desc(g, how, "pointwise");
    desc op = new_desc(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return add_graph_op(g, op, y, "pointwise");
}
#define PW(mode, x, b, y) pointwise_desc(g, CUDNN_POINTWISE_##mode, F32, x, b, NULL, 0, y)
#define PW_BOOL(mode, x, b)                                                                        \
    pointwise_desc(g, CUDNN_POINTWISE_##mode, BOOL, x, b, NULL, 0, new_scores(g, BOOL))

static desc reduce_columns(att_graph *g, cudnnReduceTensorOp_t mode, desc x, desc y) {
    cudnnDataType_t type = F32;
    desc how = new_desc(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_attr(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attr(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    finalize_desc(g, how, "reduction");
    desc op = new_desc(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    return add_graph_op(g, op, y, "reduction");
}

static desc reshape_tensor(att_graph *g, desc x, desc y) {
    desc op = new_desc(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    return add_graph_op(g, op, y, "reshape");
}

/* ---- masks: the score where `keep` is true, else -inf ----------------------------------------------- */

static desc keep_where(att_graph *g, desc score, desc keep) {
    return pointwise_desc(g, CUDNN_POINTWISE_BINARY_SELECT, F32, score, scalar_tensor(g, T_NEG_INF),
                          keep, 0, new_scores(g, F32));
}
static desc score_index(att_graph *g, desc score, int64_t axis) {
    return pointwise_desc(g, CUDNN_POINTWISE_GEN_INDEX, I32, score, NULL, NULL, axis,
                          new_scores(g, I32));
}
static desc mask_causal(att_graph *g, desc score) {
    desc row = score_index(g, score, 2), column = score_index(g, score, 3);
    return keep_where(g, score, PW_BOOL(CMP_GE, row, column));
}
/* Engines know the window in this form alone: column + window > row, summed in fp32. */
static desc mask_window(att_graph *g, desc score) {
    if (!g->shape.window) return score;
    desc row = score_index(g, score, 2), column = score_index(g, score, 3);
    column = PW(ADD, column, scalar_tensor(g, T_WINDOW), new_scores(g, F32));
    return keep_where(g, score, PW_BOOL(CMP_GT, column, row));
}
/* Masks keys before a query's first key, or outside its document. */
static desc mask_before_first(att_graph *g, desc score) {
    const att_shape *s = &g->shape;
    if (s->by == BY_ROWS) return score;
    if (s->by == BY_DOCUMENTS) {
        desc row = score_index(g, score, 2), column = score_index(g, score, 3);
        desc in_q = PW_BOOL(CMP_LT, row, g->mem[T_LENGTH_Q]);
        desc in_k = PW_BOOL(CMP_LT, column, g->mem[T_LENGTH_K]);
        return keep_where(g, score, PW_BOOL(LOGICAL_AND, in_q, in_k));
    }
    desc first = tensor4_desc(g, T_FIRST, I32, DIMS(s->b, 1, s->t, 1), DIMS(s->t, s->t, 1, 1));
    return keep_where(g, score, PW_BOOL(CMP_GE, score_index(g, score, 3), first));
}

/* ---- the two graphs ----------------------------------------------------------------------------------- */

enum { Q_ = T_LENGTH_Q, K_ = T_LENGTH_K, ALL = 0 }; /* extents for matmul */

static int64_t row_width(const att_shape *s) { return (s->h + 2 * s->kv) * s->d; }

static void forward_graph(att_graph *g) {
    const att_shape *s = &g->shape;
    int64_t row = row_width(s);
    declare_documents(g);
    desc q = heads_tensor(g, T_Q, g->type, s->h, row, false, T_OFFSET_QKV);
    desc kt =
        heads_tensor(g, T_K, g->type, s->kv, row, true, T_OFFSET_QKV); /* K enters transposed */
    desc v = heads_tensor(g, T_V, g->type, s->kv, row, false, T_OFFSET_QKV);
    desc o = heads_tensor(g, T_O, g->type, s->h, s->h * s->d, false, T_OFFSET_O);
    desc z = matmul_desc(g, q, kt, new_scores(g, F32), Q_, K_, ALL);
    z = PW(MUL, z, scalar_tensor(g, T_SCALE), new_scores(g, F32));
    z = mask_before_first(g, z);
    z = mask_window(g, mask_causal(g, z));
    desc max = reduce_columns(g, CUDNN_REDUCE_TENSOR_MAX, z, row_tensor(g, g->next_virtual++));
    desc e = PW(SUB, z, max, new_scores(g, F32));
    e = PW(EXP, e, NULL, new_scores(g, F32));
    desc sum = reduce_columns(g, CUDNN_REDUCE_TENSOR_ADD, e, row_tensor(g, g->next_virtual++));
    desc log = PW(LOG, sum, NULL, row_tensor(g, g->next_virtual++));
    PW(ADD, max, log, row_tensor(g, T_STATS));
    /* Probabilities must have the inputs' type: fp32 here is refused. */
    matmul_desc(g, PW(DIV, e, sum, new_scores(g, g->type)), v, o, Q_, ALL, K_);
}

/* dK or dV = at b. Where several query heads share a key head, one gradient for each query head, then their
 * sum. The per-head gradients must have the operands' type: with fp32 the engine builds, and dK and dV
 * are NaN. For documents they are not virtual: in cuDNN's own memory they would take B x T rows; in
 * ours the engine puts a document at H / KV times the offset it has in the gradient itself. */
static void key_gradient(att_graph *g, desc at, desc b, int number, int each_number) {
    const att_shape *s = &g->shape;
    int64_t row = row_width(s), shared = s->h / s->kv;
    desc out = heads_tensor(g, number, g->type, s->kv, row, false, T_OFFSET_QKV);
    if (shared == 1) {
        matmul_desc(g, at, b, out, K_, ALL, Q_);
        return;
    }
    desc each = s->by == BY_DOCUMENTS
                    ? heads_tensor(g, each_number, g->type, s->h, shared * row, false, T_OFFSET_QKV)
                    : by_heads_tensor(g, g->next_virtual++, g->type);
    matmul_desc(g, at, b, each, K_, ALL, Q_);
    reduce_columns(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

static desc transpose_scores(att_graph *g, desc x) { /* in the operands' type */
    const att_shape *s = &g->shape;
    int64_t tt = s->t * s->t;
    return reshape_tensor(g, x,
                          tensor4_desc(g, g->next_virtual++, g->type, DIMS(s->b, s->h, s->t, s->t),
                                       DIMS(s->h * tt, tt, 1, s->t)));
}

static void backward_graph(att_graph *g) {
    const att_shape *s = &g->shape;
    int64_t row = row_width(s), wide = s->h * s->d;
    declare_documents(g);
    desc q = heads_tensor(g, T_Q, g->type, s->h, row, false, T_OFFSET_QKV);
    desc kt =
        heads_tensor(g, T_K, g->type, s->kv, row, true, T_OFFSET_QKV); /* K, V enter transposed */
    desc vt = heads_tensor(g, T_V, g->type, s->kv, row, true, T_OFFSET_QKV);
    desc o = heads_tensor(g, T_O, g->type, s->h, wide, false, T_OFFSET_O);
    desc dout = heads_tensor(g, T_DO, g->type, s->h, wide, false, T_OFFSET_O);
    desc dq = heads_tensor(g, T_DQ, g->type, s->h, row, false, T_OFFSET_QKV);
    desc scale = scalar_tensor(g, T_SCALE);
    /* dot: the sum over D of dO x O. The multiplication by one belongs to the pattern that cuDNN looks
     * for: without it the engine builds, and dQ and dK are NaN. */
    desc dot = PW(MUL, dout, o, heads_tensor(g, g->next_virtual++, F32, s->h, wide, false, ALL));
    dot = reduce_columns(g, CUDNN_REDUCE_TENSOR_ADD, dot, row_tensor(g, g->next_virtual++));
    dot = PW(MUL, dot, scalar_tensor(g, T_ONE), row_tensor(g, T_ROWDOT));
    /* P = exp(scale Q K^T - stats) recomputed; dV = P^T dO. */
    desc z = matmul_desc(g, q, kt, new_scores(g, F32), Q_, K_, ALL);
    z = PW(MUL, z, scale, new_scores(g, F32));
    z = mask_before_first(g, z);
    z = PW(SUB, z, row_tensor(g, T_STATS), new_scores(g, F32));
    z = mask_window(g, mask_causal(g, z));
    desc prob = PW(EXP, z, NULL, new_scores(g, F32));
    key_gradient(g, transpose_scores(g, prob), dout, T_DV, T_DV_EACH);
    /* dS = P (dO V^T - dot) scale; dK = dS^T Q. */
    desc ds = matmul_desc(g, dout, vt, new_scores(g, F32), Q_, K_, ALL);
    ds = PW(SUB, ds, dot, new_scores(g, F32));
    ds = PW(MUL, ds, prob, new_scores(g, F32));
    ds = PW(MUL, ds, scale, new_scores(g, F32));
    key_gradient(g, transpose_scores(g, ds), q, T_DK, T_DK_EACH);
    /* dQ = dS K. By default tiles of dQ are added into an fp32 buffer, in no fixed order; a graph
     * without that buffer selects the deterministic engine. For documents the buffer is addressed by
     * dQ's own offsets, and so must have its strides. */
    desc k = reshape_tensor(
        g, kt, heads_tensor(g, g->next_virtual++, g->type, s->kv, row, false, T_OFFSET_QKV));
    if (s->deterministic) {
        matmul_desc(g, ds, k, dq, Q_, ALL, K_);
        return;
    }
    desc sum = s->by == BY_DOCUMENTS
                   ? heads_tensor(g, T_DQ_SUM, F32, s->h, row, false, T_OFFSET_QKV)
                   : by_heads_tensor(g, T_DQ_SUM, F32);
    matmul_desc(g, ds, k, sum, Q_, ALL, K_);
    PW(IDENTITY, sum, NULL, dq);
}

/* ---- graph -> heuristic -> engine ----------------------------------------------------------------------- */

/* @return cuDNN's execution plan for the first engine configuration that compiles; NULL: none does. */
static desc build_engine(att_graph *g, cudnnHandle_t dnn) {
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    desc graph = new_desc(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attr(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
    set_attr(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops,
             g->ops);
    finalize_desc(g, graph, "graph");
    desc heuristic = new_desc(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_attr(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize_desc(g, heuristic, "heuristic");
    desc config[MAX_CONFIGS];
    for (int i = 0; i < MAX_CONFIGS; i++)
        config[i] = new_desc(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->error[0]) return NULL;
    check_status(g,
                 cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &n, config),
                 "results");
    for (int64_t i = 0; i < MIN(n, (int64_t)MAX_CONFIGS); i++) {
        g->error[0] = 0;
        desc engine = new_desc(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        set_attr(g, engine, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
        set_desc(g, engine, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config[i]);
        finalize_desc(g, engine, "engine"); /* compiles the kernel */
        if (!g->error[0]) return engine;
    }
    if (!g->error[0]) snprintf(g->error, sizeof g->error, "cuDNN has no engine for this graph");
    return NULL;
}

static att_graph *build_graph(cudnnHandle_t dnn, const att_shape *s) {
    att_graph *g = mem_alloc(sizeof *g);
    g->shape = *s;
    g->type = s->type == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    g->next_virtual = T_VIRTUAL;
    g->scale = (float)s->scale;
    g->neg_inf = -INFINITY;
    g->window = (float)s->window;
    g->one = 1;
    (s->backward ? backward_graph : forward_graph)(g);
    g->engine = build_engine(g, dnn);
    int64_t own = 0, one;
    if (g->engine)
        check_status(g,
                     cudnnBackendGetAttribute(g->engine, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                              CUDNN_TYPE_INT64, 1, &one, &own),
                     "workspace");
    int64_t row = row_width(s), each = s->h / s->kv * row * (int64_t)dt_size((dtype)s->type);
    int64_t sum = (s->by == BY_DOCUMENTS ? row : s->h * s->d) * (int64_t)sizeof(float);
    const int64_t token_bytes[T_MEMORY] = { [T_DQ_SUM] = sum,
                                            [T_ROWDOT] = s->h * (int64_t)sizeof(float),
                                            [T_DK_EACH] = each,
                                            [T_DV_EACH] = each };
    g->bytes = align_up((size_t)own, 256);
    for (int i = T_DQ_SUM; i < T_MEMORY; i++) {
        g->offset[i] = g->bytes;
        if (g->mem[i]) g->bytes += align_up((size_t)(s->n * token_bytes[i]), 256);
    }
    if (!g->engine) log_at(LOG_DEBUG, "attention runs without cuDNN: %s", g->error);
    return g;
}

static void att_graph_free(att_graph *g) {
    while (g->n_owned) cudnnBackendDestroyDescriptor(g->owned[--g->n_owned]);
    free(g);
}

/* ---- which calls are supported, and their graphs ------------------------------------------------------------ */

err cuda_attention_new(struct cuda_attention **out) {
    *out = NULL;
    if (cudnnGetVersion() < OLDEST) {
        log_at(LOG_WARN,
               "attention needs cuDNN 9.10 or later; it runs without cuDNN now, which is slower");
        return OK;
    }
    struct cuda_attention *a = mem_alloc(sizeof *a);
    cudnnStatus_t status = cudnnCreate(&a->dnn);
    if (status != CUDNN_STATUS_SUCCESS) {
        if (a->dnn) cudnnDestroy(a->dnn);
        free(a);
        return ERR("cuDNN does not start: %s", cudnnGetErrorString(status));
    }
    *out = a;
    return OK;
}

size_t cuda_attention_version(void) { return cudnnGetVersion(); }

void cuda_attention_free(struct cuda_attention *a) {
    if (!a) return;
    for (int i = 0; i < a->n; i++) att_graph_free(a->graph[i]);
    free(a->graph);
    cudnnDestroy(a->dnn);
    free(a);
}

/* Whether our own kernels for Hopper are faster for this shape and direction, as measured on an H200 beside cuDNN 9.14
 * (bench/gpu/attention). Documents of 50 to 2,000 tokens take 0.56 to 1.06 of cuDNN's time in rows of 2,048 and more. */
static bool own_is_faster(const cuda_device *d, const op_call *c, const att_shape *s) {
    if (!cuda_attention_on_hopper(d, (dtype)s->type, s->d)) return false;
    if (c->attr.heads.documents) return s->t >= 512;
    if (s->by == BY_DOCUMENTS) return false; /* lse is [N, H]: both directions run on cuDNN */
    if (s->backward && s->d > 128) return s->t >= 512;
    if (c->attr.heads.window > 0 || s->deterministic) return false;
    if (s->backward) return s->d == 96 && s->t >= 8192;
    return s->t >= (s->d == 64 || s->d == 128 ? 32768 : 8192);
}

/* Sets s->by. @param masks engines have a mask for the window. @return false where no form is safe. */
static bool choose_form(const cuda_device *d, const op_call *c, bool masks, att_shape *s) {
    bool documents = c->attr.heads.documents;
    bool window = c->attr.heads.window > 0 && c->attr.heads.window < s->t;
    bool lengths = s->t % KEY_TILE && cudnnGetVersion() <= LAST_OF_WHOLE_TILES;
    /* The deterministic engine needs memory for all scores of every slot: too much. Gradients of wide heads are
     * infinite in slots (cuDNN 9.14). */
    bool slots = (!window || masks) && !d->deterministic && s->d <= 128;
    if (lengths && !slots) return false;
    if (window && masks) s->window = c->attr.heads.window;
    if (slots && (lengths || (documents && s->t >= LONG_ROW))) {
        s->by = BY_DOCUMENTS;
        s->b = MIN(s->b + (documents ? s->n / SLOT_TOKENS : 0), CUDA_MAX_DOCUMENTS);
        s->t = (int64_t)align_up((size_t)s->t, KEY_TILE);
        return true;
    }
    s->by = documents || (window && !masks) ? BY_FIRST_KEYS : BY_ROWS;
    if (s->by == BY_FIRST_KEYS) s->window = 0; /* it is part of these */
    return true;
}

/* @return false for calls that are left to attention.cu. */
static bool cudnn_shape(const cuda_device *d, const op_call *c, bool masks, att_shape *s) {
    bool bwd = c->op == OP_ATTENTION_BWD;
    const tensor *qkv = &c->in[bwd ? 1 : 0];
    int64_t seq = c->attr.heads.seq;
    if ((qkv->dt != DT_BF16 && qkv->dt != DT_F16) || seq <= 1 || qkv->dim[0] % seq) return false;
    if (c->attr.heads.cap > 0 || c->attr.heads.sinks) return false;
    for (int i = 0; i < OP_MAX_OUT; i++) /* do, o and dqkv have the type of qkv */
        if (c->out[i].dt != DT_NONE && c->out[i].dt != qkv->dt && c->out[i].dt != DT_F32)
            return false;
    if (c->out[0].dt != qkv->dt || (bwd && (c->in[0].dt != qkv->dt || c->in[2].dt != qkv->dt)))
        return false;
    *s = (att_shape){ .n = qkv->dim[0], .b = qkv->dim[0] / seq, .t = seq };
    s->h = c->attr.heads.q, s->kv = c->attr.heads.kv, s->d = c->attr.heads.dim;
    s->scale = c->attr.heads.scale;
    s->type = (int32_t)qkv->dt;
    s->backward = bwd;
    s->deterministic = bwd && d->deterministic;
    int64_t widest = d->capability == 9 ? 256 : 128;
    return s->d % 8 == 0 && s->d <= widest && choose_form(d, c, masks, s);
}

static att_graph *find_or_build(struct cuda_attention *a, const att_shape *s) {
    for (int i = 0; i < a->n; i++)
        if (memcmp(&a->graph[i]->shape, s, sizeof *s) == 0) return a->graph[i];
    att_graph *g = build_graph(a->dnn, s);
    LIST_ADD(a->graph, a->n, a->cap) = g;
    return g;
}

/* @return NULL unless cuDNN supports both directions: they share lse. */
static att_graph *graph_for(const cuda_device *d, const op_call *c) {
    for (int masks = c->attr.heads.window > 0; d->attention && masks >= 0; masks--) {
        att_shape s, other;
        if (!cudnn_shape(d, c, masks, &s)) continue;
        if (own_is_faster(d, c, &s)) return NULL;
        other = s;
        other.backward = !s.backward;
        other.deterministic = other.backward && d->deterministic;
        att_graph *g = find_or_build(d->attention, &s),
                  *opposite = find_or_build(d->attention, &other);
        if (g->engine && opposite->engine) return g;
    }
    return NULL;
}

/* Bytes of the first keys or documents, which precede cuDNN's workspace. */
static size_t index_bytes(const att_shape *s) {
    if (s->by == BY_DOCUMENTS) return align_up(sizeof(cuda_documents), 256);
    return s->by == BY_FIRST_KEYS ? align_up((size_t)s->n * sizeof(int32_t), 256) : 0;
}

size_t cuda_attention_cudnn_bytes(const cuda_device *d, const op_call *c) {
    att_graph *g = graph_for(d, c);
    size_t left = cuda_attention_remainder_bytes(c); /* for documents past the slots */
    return g ? index_bytes(&g->shape) + MAX(g->bytes, left) + 256 : 0;
}

static void run_graph(const op_call *c, att_graph *g, void *const at[T_MEMORY], void *workspace) {
    int64_t number[T_MEMORY];
    void *pointer[T_MEMORY];
    int n = 0;
    for (int i = 1; i < T_MEMORY; i++)
        if (g->mem[i]) number[n] = i, pointer[n++] = at[i];
    desc bindings = new_desc(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set_attr(g, bindings, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, number);
    set_attr(g, bindings, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointer);
    set_attr(g, bindings, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize_desc(g, bindings, "bindings");
    cuda_context *x = cuda_of(c);
    struct cuda_attention *a = x->device->attention;
    if (!g->error[0] && a->stream != x->stream) { /* the last call was of another queue */
        a->stream = x->stream;
        check_status(g, cudnnSetStream(a->dnn, a->stream), "stream");
    }
    if (!g->error[0]) check_status(g, cudnnBackendExecute(a->dnn, g->engine, bindings), "run");
    if (g->error[0] && !x->device->fault)
        x->device->fault = ERR("attention through cuDNN: %s", g->error);
    if (bindings) cudnnBackendDestroyDescriptor(g->owned[--g->n_owned]);
}

bool cuda_attention_cudnn(const op_call *c) {
    att_graph *g = graph_for(cuda_of(c)->device, c);
    if (!g) return false;
    const att_shape *s = &g->shape;
    bool bwd = s->backward;
    char *qkv = c->in[bwd ? 1 : 0].data, *dqkv = bwd ? c->out[0].data : NULL;
    const int32_t *start = c->in[bwd ? 4 : 1].data;
    int32_t *first = c->run->workspace;
    cuda_documents *documents = c->run->workspace;
    char *work = (char *)c->run->workspace + index_bytes(s);
    if (s->by == BY_FIRST_KEYS) cuda_find_first_keys(c, start, s->n, s->t, first);
    if (s->by == BY_DOCUMENTS)
        cuda_find_documents(c, start, s->n, (int)s->b,
                            (const int64_t[]){ row_width(s), s->h * s->d, s->h }, documents);
    int64_t k = s->h * s->d * 2, v = k + s->kv * s->d * 2; /* bytes from q to k, to v */
    void *const at[T_MEMORY] = { [T_Q] = qkv,
                                 [T_K] = qkv + k,
                                 [T_V] = qkv + v,
                                 [T_O] = bwd ? c->in[2].data : c->out[0].data,
                                 [T_STATS] = bwd ? c->in[3].data : c->out[1].data,
                                 [T_DO] = bwd ? c->in[0].data : NULL,
                                 [T_DQ] = dqkv,
                                 [T_DK] = bwd ? dqkv + k : NULL,
                                 [T_DV] = bwd ? dqkv + v : NULL,
                                 [T_FIRST] = first,
                                 [T_LENGTH_Q] = documents->length,
                                 [T_LENGTH_K] = documents->length,
                                 [T_OFFSET_QKV] = documents->offset[0],
                                 [T_OFFSET_O] = documents->offset[1],
                                 [T_OFFSET_STATS] = documents->offset[2],
                                 [T_SCALE] = &g->scale,
                                 [T_NEG_INF] = &g->neg_inf,
                                 [T_WINDOW] = &g->window,
                                 [T_ONE] = &g->one,
                                 [T_DQ_SUM] = work + g->offset[T_DQ_SUM],
                                 [T_ROWDOT] = work + g->offset[T_ROWDOT],
                                 [T_DK_EACH] = work + g->offset[T_DK_EACH],
                                 [T_DV_EACH] = work + g->offset[T_DV_EACH] };
    run_graph(c, g, at, work);
    if (s->by == BY_DOCUMENTS) cuda_attention_remainder(c, &documents->remainder, work);
    return true;
}
