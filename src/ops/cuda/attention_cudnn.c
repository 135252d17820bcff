/* Attention through cuDNN, which has no such call in C: one hands it a graph of products, pointwise
 * operations and reductions, and where it recognises the graph, one fused engine takes the whole of
 * it. What it recognises it does not check: some wrong graphs build and compute garbage, so every
 * change here needs tests/gpu. forward() and backward() spell out the two graphs; the rest is
 * plumbing.
 *
 * Sequences are told in one of three ways:
 *
 *     rows        B sequences of T tokens; lse is [B, H, T]
 *     first keys  the same, with a mask: the first key each query sees, as an index in its row. For
 *                 sliding windows and documents in short rows; costs as much as no mask at all
 *     documents   B slots for documents of at most T tokens, wherever they lie among the tokens (also
 *                 for rows that are no documents, where cuDNN must be told how long they are):
 *                 nothing is computed between documents; lse is [N, H]. Their places are read on the
 *                 device, an unused slot has length 0. Documents past the slots, all at the end, are
 *                 left to attention.cu.
 *
 * Forward and backward go the same way, so nobody else sees lse.
 *
 * Workspace: | first keys or places of documents | cuDNN's own | dq in fp32 | row dots |
 *            | dk and dv of each query head |
 */
#include "cuda_internal.h"
#include "ops/op_table.h"

#include <cudnn_graph.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;

/* Tensors by number. Those in memory and host scalars are bound to a pointer when run; virtual ones
 * are numbered from T_VIRTUAL up. */
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
    T_LENGTH_Q, /* documents: [B]; the same memory twice */
    T_LENGTH_K,
    T_AT_QKV, /* documents: [B + 1], where each begins, in elements of those tensors */
    T_AT_O,
    T_AT_STATS,
    T_SCALE,
    T_NEG_INF,
    T_ONE,    /* host scalars */
    T_DQ_SUM, /* in the workspace, from here */
    T_ROWDOT,
    T_DK_EACH,
    T_DV_EACH,
    T_MEMORY,
    T_VIRTUAL = 100
};
enum { MOST_DESC = 256, MOST_OPS = 64, MOST_CONFIGS = 16 };
/* Documents have a slot for each row and for each SLOT_TOKENS. Empty slots cost something: in rows
 * shorter than LONG_ROW more than there is to save. */
enum { SLOT_TOKENS = 128, LONG_ROW = 2048 };
/* Keys that an engine takes at a time. Up to 9.15 gradients of rows that are no multiple of it may be
 * NaN unless the lengths are told, as those of documents are. Before 9.10 the backward graph is another:
 * dQ's buffer is cleared by the caller, lengths are masked twice. */
enum { KEY_TILE = 128, LAST_OF_WHOLE_TILES = 91500, OLDEST = 91000 };
typedef enum { BY_ROWS, BY_FIRST_KEYS, BY_DOCUMENTS } told_by;

typedef struct att_shape {
    int64_t n, b, h, kv, t, d; /* n: tokens */
    double scale;
    int32_t type; /* dtype */
    int32_t by, backward, deterministic;
} att_shape;
_Static_assert(sizeof(att_shape) == 7 * 8 + 4 * 4, "compared as bytes");

typedef struct att_plan {
    att_shape shape;
    cudnnDataType_t type;
    desc made[MOST_DESC], ops[MOST_OPS];
    int n_made, n_ops;
    desc mem[T_MEMORY]; /* the tensors in memory */
    desc plan;          /* NULL: cuDNN refuses the shape */
    int64_t next_virtual;
    size_t at[T_MEMORY], bytes; /* offsets in the workspace after the places; all of it */
    float scale, neg_inf, one;  /* read by cuDNN at every run */
    char why[512];              /* the first failure; "" so far none */
} att_plan;

struct cuda_attention {
    cudnnHandle_t dnn;
    att_plan **plan;
    int n, cap;
};

#define DIMS(...) ((const int64_t[4]){ __VA_ARGS__ })
#define F32       CUDNN_DATA_FLOAT
#define I32       CUDNN_DATA_INT32
#define BOOL      CUDNN_DATA_BOOLEAN

/* ---- descriptors: after the first failure calls do nothing --------------------------------------- */

static bool check(att_plan *p, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    if (p->why[0]) return false;
    char more[400] = "";
    cudnnGetLastErrorString(more, sizeof more);
    snprintf(p->why, sizeof p->why, "%s: %s: %s", what, cudnnGetErrorString(status), more);
    return false;
}

static desc make(att_plan *p, cudnnBackendDescriptorType_t type) {
    desc d = NULL;
    if (p->why[0]) return NULL;
    BUG_IF(p->n_made == MOST_DESC);
    if (check(p, cudnnBackendCreateDescriptor(type, &d), "descriptor")) p->made[p->n_made++] = d;
    return d;
}

static void set(att_plan *p, desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value) {
    if (!p->why[0]) check(p, cudnnBackendSetAttribute(d, name, type, n, value), "attribute");
}
static void set_desc(att_plan *p, desc d, cudnnBackendAttributeName_t name, desc value) {
    if (value) set(p, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}
static void finalize(att_plan *p, desc d, const char *what) {
    if (!p->why[0]) check(p, cudnnBackendFinalize(d), what);
}

/* ---- tensors: always four dims, batch, head, row, column ------------------------------------------ */

/* @param begin where its sequences begin; NULL: at its strides. */
static desc tensor_at(att_plan *p, int64_t number, cudnnDataType_t type, const int64_t dim[4],
                      const int64_t stride[4], desc begin) {
    int64_t align = 16;
    bool yes = true;
    desc t = make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(p, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(p, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(p, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(p, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    set(p, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (number >= T_VIRTUAL) set(p, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (number >= T_SCALE && number <= T_ONE)
        set(p, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    set_desc(p, t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, begin);
    finalize(p, t, "tensor");
    if (number < T_MEMORY) p->mem[number] = t;
    return t;
}
static desc tensor4(att_plan *p, int64_t number, cudnnDataType_t type, const int64_t dim[4],
                    const int64_t stride[4]) {
    return tensor_at(p, number, type, dim, stride, NULL);
}

static desc vector(att_plan *p, int number, cudnnDataType_t type, int64_t n) {
    if (p->mem[number]) return p->mem[number];
    return tensor4(p, number, type, DIMS(n, 1, 1, 1), DIMS(1, 1, 1, 1));
}
static desc scalar(att_plan *p, int number) { return vector(p, number, F32, 1); }
/* Where documents lie. Offsets must be 64 bits wide: head_gradient's are multiples of them. */
static void places(att_plan *p) {
    int64_t b = p->shape.b;
    if (p->shape.by != BY_DOCUMENTS) return;
    vector(p, T_LENGTH_Q, I32, b);
    vector(p, T_LENGTH_K, I32, b);
    for (int i = T_AT_QKV; i <= T_AT_STATS; i++) vector(p, i, CUDNN_DATA_INT64, b + 1);
}
static desc scores(att_plan *p, cudnnDataType_t type) { /* virtual [B, H, T, T] */
    const att_shape *s = &p->shape;
    int64_t tt = s->t * s->t;
    return tensor4(p, p->next_virtual++, type, DIMS(s->b, s->h, s->t, s->t),
                   DIMS(s->h * tt, tt, s->t, 1));
}
static desc per_row(att_plan *p, int64_t number) { /* [B, H, T, 1] */
    const att_shape *s = &p->shape;
    if (number < T_MEMORY && p->mem[number]) return p->mem[number];
    if (number < T_MEMORY && s->by == BY_DOCUMENTS)
        return tensor_at(p, number, F32, DIMS(s->b, s->h, s->t, 1), DIMS(s->h * s->t, 1, s->h, 1),
                         p->mem[T_AT_STATS]);
    return tensor4(p, number, F32, DIMS(s->b, s->h, s->t, 1), DIMS(s->h * s->t, s->t, 1, 1));
}
/* Heads of D columns in rows of `row` elements, as [B, heads, T, D] or transposed [B, heads, D, T]. */
static desc heads_at(att_plan *p, int64_t number, cudnnDataType_t type, int64_t heads, int64_t row,
                     bool transposed, int at) {
    const att_shape *s = &p->shape;
    const int64_t *dim = transposed ? DIMS(s->b, heads, s->d, s->t) : DIMS(s->b, heads, s->t, s->d);
    const int64_t *stride =
        transposed ? DIMS(s->t * row, s->d, 1, row) : DIMS(s->t * row, s->d, row, 1);
    return tensor_at(p, number, type, dim, stride, p->mem[at]);
}

/* ---- operations ------------------------------------------------------------------------------------ */

static desc add_op(att_plan *p, desc op, desc y, const char *what) {
    finalize(p, op, what);
    BUG_IF(p->n_ops == MOST_OPS);
    p->ops[p->n_ops++] = op;
    return y;
}

/* c = a b. Of documents, m, n and k are the true extents of a dimension that they vary in: without
 * them the plan builds, and reads and writes out of bounds. */
static desc product(att_plan *p, desc a, desc b, desc c, int m, int n, int k) {
    cudnnDataType_t type = F32;
    desc how = make(p, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(p, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(p, how, "product");
    desc op = make(p, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, p->mem[m]);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, p->mem[n]);
    set_desc(p, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, p->mem[k]);
    return add_op(p, op, c, "product");
}

/* y = mode(x, b, t); axis is for GEN_INDEX alone. */
static desc pointwise(att_plan *p, cudnnPointwiseMode_t mode, cudnnDataType_t precision, desc x,
                      desc b, desc t, int64_t axis, desc y) {
    desc how = make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(p, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(p, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(p, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(p, how, "pointwise");
    desc op = make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return add_op(p, op, y, "pointwise");
}
#define PW(mode, x, b, y) pointwise(p, CUDNN_POINTWISE_##mode, F32, x, b, NULL, 0, y)
#define PW_BOOL(mode, x, b)                                                                        \
    pointwise(p, CUDNN_POINTWISE_##mode, BOOL, x, b, NULL, 0, scores(p, BOOL))

static desc reduce(att_plan *p, cudnnReduceTensorOp_t mode, desc x, desc y) {
    cudnnDataType_t type = F32;
    desc how = make(p, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(p, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(p, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    finalize(p, how, "reduction");
    desc op = make(p, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(p, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_desc(p, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(p, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    return add_op(p, op, y, "reduction");
}

static desc reshape(att_plan *p, desc x, desc y) {
    desc op = make(p, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(p, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(p, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    return add_op(p, op, y, "reshape");
}

/* ---- masks: score where `keep`, else -inf ----------------------------------------------------------- */

static desc keep_where(att_plan *p, desc score, desc keep) {
    return pointwise(p, CUDNN_POINTWISE_BINARY_SELECT, F32, score, scalar(p, T_NEG_INF), keep, 0,
                     scores(p, F32));
}
static desc index_of(att_plan *p, desc score, int64_t axis) {
    return pointwise(p, CUDNN_POINTWISE_GEN_INDEX, I32, score, NULL, NULL, axis, scores(p, I32));
}
static desc mask_causal(att_plan *p, desc score) {
    desc row = index_of(p, score, 2), column = index_of(p, score, 3);
    return keep_where(p, score, PW_BOOL(CMP_GE, row, column));
}
/* Keys before a query's first, or outside its document. */
static desc mask_first(att_plan *p, desc score) {
    const att_shape *s = &p->shape;
    if (s->by == BY_ROWS) return score;
    if (s->by == BY_DOCUMENTS) {
        desc row = index_of(p, score, 2), column = index_of(p, score, 3);
        desc in_q = PW_BOOL(CMP_LT, row, p->mem[T_LENGTH_Q]);
        desc in_k = PW_BOOL(CMP_LT, column, p->mem[T_LENGTH_K]);
        return keep_where(p, score, PW_BOOL(LOGICAL_AND, in_q, in_k));
    }
    desc first = tensor4(p, T_FIRST, I32, DIMS(s->b, 1, s->t, 1), DIMS(s->t, s->t, 1, 1));
    return keep_where(p, score, PW_BOOL(CMP_GE, index_of(p, score, 3), first));
}

/* ---- the two graphs ----------------------------------------------------------------------------------- */

enum { Q_ = T_LENGTH_Q, K_ = T_LENGTH_K, ALL = 0 }; /* extents of products */

static int64_t row_width(const att_shape *s) { return (s->h + 2 * s->kv) * s->d; }

static void forward(att_plan *p) {
    const att_shape *s = &p->shape;
    int64_t row = row_width(s);
    places(p);
    desc q = heads_at(p, T_Q, p->type, s->h, row, false, T_AT_QKV);
    desc kt = heads_at(p, T_K, p->type, s->kv, row, true, T_AT_QKV); /* K enters transposed */
    desc v = heads_at(p, T_V, p->type, s->kv, row, false, T_AT_QKV);
    desc o = heads_at(p, T_O, p->type, s->h, s->h * s->d, false, T_AT_O);
    desc z = product(p, q, kt, scores(p, F32), Q_, K_, ALL);
    z = PW(MUL, z, scalar(p, T_SCALE), scores(p, F32));
    z = mask_first(p, z);
    z = mask_causal(p, z);
    desc max = reduce(p, CUDNN_REDUCE_TENSOR_MAX, z, per_row(p, p->next_virtual++));
    desc e = PW(SUB, z, max, scores(p, F32));
    e = PW(EXP, e, NULL, scores(p, F32));
    desc sum = reduce(p, CUDNN_REDUCE_TENSOR_ADD, e, per_row(p, p->next_virtual++));
    desc log = PW(LOG, sum, NULL, per_row(p, p->next_virtual++));
    PW(ADD, max, log, per_row(p, T_STATS));
    /* Probabilities must have the inputs' type: fp32 here is refused. */
    product(p, PW(DIV, e, sum, scores(p, p->type)), v, o, Q_, ALL, K_);
}

/* dK or dV = a^T b, where several query heads share a key head: one gradient each, then the sum. It
 * must be in the operands' type: with fp32 the plan builds, and dK and dV are NaN. In cuDNN's own
 * memory those of documents would take B x T rows; in ours the engine places a document at H / KV
 * times the gradient's own offset. */
static void head_gradient(att_plan *p, desc at, desc b, int number, int each_number) {
    const att_shape *s = &p->shape;
    int64_t row = row_width(s), shared = s->h / s->kv;
    desc out = heads_at(p, number, p->type, s->kv, row, false, T_AT_QKV);
    if (shared == 1) {
        product(p, at, b, out, K_, ALL, Q_);
        return;
    }
    desc each = s->by == BY_DOCUMENTS
                    ? heads_at(p, each_number, p->type, s->h, shared * row, false, T_AT_QKV)
                    : heads_at(p, p->next_virtual++, p->type, s->h, s->h * s->d, false, ALL);
    product(p, at, b, each, K_, ALL, Q_);
    reduce(p, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

static desc transposed(att_plan *p, desc x) { /* of scores, in the operands' type */
    const att_shape *s = &p->shape;
    int64_t tt = s->t * s->t;
    return reshape(p, x,
                   tensor4(p, p->next_virtual++, p->type, DIMS(s->b, s->h, s->t, s->t),
                           DIMS(s->h * tt, tt, 1, s->t)));
}

static void backward(att_plan *p) {
    const att_shape *s = &p->shape;
    int64_t row = row_width(s), wide = s->h * s->d;
    places(p);
    desc q = heads_at(p, T_Q, p->type, s->h, row, false, T_AT_QKV);
    desc kt = heads_at(p, T_K, p->type, s->kv, row, true, T_AT_QKV); /* K, V enter transposed */
    desc vt = heads_at(p, T_V, p->type, s->kv, row, true, T_AT_QKV);
    desc o = heads_at(p, T_O, p->type, s->h, wide, false, T_AT_O);
    desc dout = heads_at(p, T_DO, p->type, s->h, wide, false, T_AT_O);
    desc dq = heads_at(p, T_DQ, p->type, s->h, row, false, T_AT_QKV);
    desc scale = scalar(p, T_SCALE);
    /* The sum over D of dO x O. The product with one belongs to the pattern: without it the plan
     * builds, and dQ and dK are NaN. */
    desc dot = PW(MUL, dout, o, heads_at(p, p->next_virtual++, F32, s->h, wide, false, ALL));
    dot = reduce(p, CUDNN_REDUCE_TENSOR_ADD, dot, per_row(p, p->next_virtual++));
    dot = PW(MUL, dot, scalar(p, T_ONE), per_row(p, T_ROWDOT));
    /* P = exp(scale Q K^T - stats) once more; dV = P^T dO. */
    desc z = product(p, q, kt, scores(p, F32), Q_, K_, ALL);
    z = PW(MUL, z, scale, scores(p, F32));
    z = mask_first(p, z);
    z = PW(SUB, z, per_row(p, T_STATS), scores(p, F32));
    z = mask_causal(p, z);
    desc prob = PW(EXP, z, NULL, scores(p, F32));
    head_gradient(p, transposed(p, prob), dout, T_DV, T_DV_EACH);
    /* dS = P (dO V^T - dot) scale; dK = dS^T Q. */
    desc ds = product(p, dout, vt, scores(p, F32), Q_, K_, ALL);
    ds = PW(SUB, ds, dot, scores(p, F32));
    ds = PW(MUL, ds, prob, scores(p, F32));
    ds = PW(MUL, ds, scale, scores(p, F32));
    head_gradient(p, transposed(p, ds), q, T_DK, T_DK_EACH);
    /* dQ = dS K. By default tiles of dQ are added into an fp32 buffer, in no fixed order; leaving
     * that buffer out is how one asks for the deterministic engine. The buffer of documents is
     * addressed by dQ's own offsets, and so must have its strides. */
    desc k = reshape(p, kt, heads_at(p, p->next_virtual++, p->type, s->kv, row, false, T_AT_QKV));
    if (s->deterministic) {
        product(p, ds, k, dq, Q_, ALL, K_);
        return;
    }
    desc sum =
        heads_at(p, T_DQ_SUM, F32, s->h, s->by == BY_DOCUMENTS ? row : wide, false, T_AT_QKV);
    product(p, ds, k, sum, Q_, ALL, K_);
    PW(IDENTITY, sum, NULL, dq);
}

/* ---- graph -> heuristic -> engine -> plan --------------------------------------------------------------- */

static desc first_plan(att_plan *p, cudnnHandle_t dnn) {
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    desc graph = make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
    set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, p->n_ops, p->ops);
    finalize(p, graph, "graph");
    desc heuristic = make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(p, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(p, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(p, heuristic, "heuristic");
    desc config[MOST_CONFIGS];
    for (int i = 0; i < MOST_CONFIGS; i++) config[i] = make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (p->why[0]) return NULL;
    check(p,
          cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGS, &n, config),
          "results");
    for (int64_t i = 0; i < MIN(n, (int64_t)MOST_CONFIGS); i++) {
        p->why[0] = 0;
        desc plan = make(p, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        set(p, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
        set_desc(p, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config[i]);
        finalize(p, plan, "plan"); /* compiles the kernel */
        if (!p->why[0]) return plan;
    }
    if (!p->why[0]) snprintf(p->why, sizeof p->why, "cuDNN has no engine for this graph");
    return NULL;
}

static att_plan *build(cudnnHandle_t dnn, const att_shape *s) {
    att_plan *p = mem_alloc(sizeof *p);
    p->shape = *s;
    p->type = s->type == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    p->next_virtual = T_VIRTUAL;
    p->scale = (float)s->scale;
    p->neg_inf = -INFINITY;
    p->one = 1;
    (s->backward ? backward : forward)(p);
    p->plan = first_plan(p, dnn);
    int64_t own = 0, one;
    if (p->plan)
        check(p,
              cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &one, &own),
              "workspace");
    int64_t row = row_width(s), each = s->h / s->kv * row * (int64_t)dt_size((dtype)s->type);
    int64_t sum = (s->by == BY_DOCUMENTS ? row : s->h * s->d) * (int64_t)sizeof(float);
    const int64_t token_bytes[T_MEMORY] = { [T_DQ_SUM] = sum,
                                            [T_ROWDOT] = s->h * (int64_t)sizeof(float),
                                            [T_DK_EACH] = each,
                                            [T_DV_EACH] = each };
    p->bytes = align_up((size_t)own, 256);
    for (int i = T_DQ_SUM; i < T_MEMORY; i++) {
        p->at[i] = p->bytes;
        if (p->mem[i]) p->bytes += align_up((size_t)(s->n * token_bytes[i]), 256);
    }
    if (!p->plan) log_at(LOG_DEBUG, "attention without cuDNN: %s", p->why);
    return p;
}

static void plan_free(att_plan *p) {
    while (p->n_made) cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    free(p);
}

/* ---- which calls -------------------------------------------------------------------------------------------- */

err cuda_attention_new(cudaStream_t stream, struct cuda_attention **out) {
    *out = NULL;
    if (cudnnGetVersion() < OLDEST) {
        log_at(LOG_WARN,
               "cuDNN 9.10 is the oldest that attention works with: it runs without, slower");
        return OK;
    }
    struct cuda_attention *a = mem_alloc(sizeof *a);
    cudnnStatus_t status = cudnnCreate(&a->dnn);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(a->dnn, stream);
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
    for (int i = 0; i < a->n; i++) plan_free(a->plan[i]);
    free(a->plan);
    cudnnDestroy(a->dnn);
    free(a);
}

/* Chooses how sequences are told. @return false where no way is safe. */
static bool tell(const cuda_context *x, const op_call *c, att_shape *s) {
    bool documents = c->attr.heads.documents;
    bool window = c->attr.heads.window > 0 && c->attr.heads.window < s->t;
    bool lengths = s->t % KEY_TILE && cudnnGetVersion() <= LAST_OF_WHOLE_TILES;
    /* The deterministic engine needs memory for all scores of a sequence: too much for slots. */
    bool slots = !window && !x->deterministic;
    if (lengths && !slots) return false;
    if (slots && (lengths || (documents && s->t >= LONG_ROW))) {
        s->by = BY_DOCUMENTS;
        s->b = MIN(s->b + (documents ? s->n / SLOT_TOKENS : 0), CUDA_MOST_SLOTS);
        s->t = (int64_t)align_up((size_t)s->t, KEY_TILE);
    } else {
        s->by = documents || window ? BY_FIRST_KEYS : BY_ROWS;
    }
    return true;
}

/* @return false for what this file leaves to attention.cu. */
static bool shape_of(const cuda_context *x, const op_call *c, att_shape *s) {
    bool bwd = c->op == OP_ATTENTION_BWD;
    const tensor *qkv = &c->in[bwd ? 1 : 0];
    int64_t seq = c->attr.heads.seq;
    if ((qkv->dt != DT_BF16 && qkv->dt != DT_F16) || seq <= 1 || qkv->dim[0] % seq) return false;
    for (int i = 0; i < OP_MAX_OUT; i++) /* do, o, dqkv in the same type */
        if (c->out[i].dt != DT_NONE && c->out[i].dt != qkv->dt && c->out[i].dt != DT_F32)
            return false;
    if (c->out[0].dt != qkv->dt || (bwd && (c->in[0].dt != qkv->dt || c->in[2].dt != qkv->dt)))
        return false;
    s->n = qkv->dim[0], s->b = s->n / seq, s->t = seq;
    s->h = c->attr.heads.q, s->kv = c->attr.heads.kv, s->d = c->attr.heads.dim;
    s->scale = c->attr.heads.scale;
    s->type = (int32_t)qkv->dt;
    s->backward = bwd;
    s->deterministic = bwd && x->deterministic;
    return s->d % 8 == 0 && s->d <= 128 && tell(x, c, s);
}

static att_plan *find(struct cuda_attention *a, const att_shape *s) {
    for (int i = 0; i < a->n; i++)
        if (memcmp(&a->plan[i]->shape, s, sizeof *s) == 0) return a->plan[i];
    att_plan *p = build(a->dnn, s);
    mem_reserve((void **)&a->plan, &a->cap, a->n, sizeof *a->plan);
    a->plan[a->n++] = p;
    return p;
}

/* Both directions or neither: they share lse. */
static att_plan *plan_for(const cuda_context *x, const op_call *c) {
    att_shape s, other;
    if (!x->attention || !shape_of(x, c, &s)) return NULL;
    other = s;
    other.backward = !s.backward;
    other.deterministic = other.backward && x->deterministic;
    att_plan *p = find(x->attention, &s), *q = find(x->attention, &other);
    return p->plan && q->plan ? p : NULL;
}

static size_t places_bytes(const att_shape *s) {
    if (s->by == BY_DOCUMENTS) return align_up(sizeof(cuda_places), 256);
    return s->by == BY_FIRST_KEYS ? align_up((size_t)s->n * sizeof(int32_t), 256) : 0;
}

size_t cuda_attention_cudnn_bytes(const cuda_context *x, const op_call *c) {
    att_plan *p = plan_for(x, c);
    size_t left = cuda_attention_tiles_bytes(c); /* of documents past the slots */
    return p ? places_bytes(&p->shape) + MAX(p->bytes, left) + 256 : 0;
}

static void run(const op_call *c, att_plan *p, void *const at[T_MEMORY], void *workspace) {
    int64_t number[T_MEMORY];
    void *pointer[T_MEMORY];
    int n = 0;
    for (int i = 1; i < T_MEMORY; i++)
        if (p->mem[i]) number[n] = i, pointer[n++] = at[i];
    desc pack = make(p, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(p, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, number);
    set(p, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointer);
    set(p, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(p, pack, "pack");
    cuda_context *x = cuda_of(c);
    if (!p->why[0]) check(p, cudnnBackendExecute(x->attention->dnn, p->plan, pack), "run");
    if (p->why[0] && !x->fault) x->fault = ERR("attention through cuDNN: %s", p->why);
    if (pack) cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
}

bool cuda_attention_cudnn(const op_call *c) {
    att_plan *p = plan_for(cuda_of(c), c);
    if (!p) return false;
    const att_shape *s = &p->shape;
    bool bwd = s->backward;
    char *qkv = c->in[bwd ? 1 : 0].data, *dqkv = bwd ? c->out[0].data : NULL;
    const int32_t *start = c->in[bwd ? 4 : 1].data;
    int32_t *first = c->run->workspace;
    cuda_places *at_documents = c->run->workspace;
    char *work = (char *)c->run->workspace + places_bytes(s);
    if (s->by == BY_FIRST_KEYS) cuda_row_starts(c, start, s->n, s->t, first);
    if (s->by == BY_DOCUMENTS)
        cuda_cut_documents(c, start, s->n, (int)s->b,
                           (const int64_t[]){ row_width(s), s->h * s->d, s->h }, at_documents);
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
                                 [T_LENGTH_Q] = at_documents->length,
                                 [T_LENGTH_K] = at_documents->length,
                                 [T_AT_QKV] = at_documents->at[0],
                                 [T_AT_O] = at_documents->at[1],
                                 [T_AT_STATS] = at_documents->at[2],
                                 [T_SCALE] = &p->scale,
                                 [T_NEG_INF] = &p->neg_inf,
                                 [T_ONE] = &p->one,
                                 [T_DQ_SUM] = work + p->at[T_DQ_SUM],
                                 [T_ROWDOT] = work + p->at[T_ROWDOT],
                                 [T_DK_EACH] = work + p->at[T_DK_EACH],
                                 [T_DV_EACH] = work + p->at[T_DV_EACH] };
    run(c, p, at, work);
    if (s->by == BY_DOCUMENTS) cuda_attention_rest(c, &at_documents->rest, work);
    return true;
}
