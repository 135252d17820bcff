/* The op table, for those who name ops or read their rows: kernels, the passes of prog/, update rules,
 * tests. The rows are in ops.def; this header defines their fields.
 *
 *     const op_row *row = op_row_of(OP_SWIGLU);
 *     op_signature sig = op_signature_of(OP_SWIGLU);
 *     int gu = op_find(sig.in, sig.ins, "gu");
 */
#ifndef INGOT_OP_TABLE_H
#define INGOT_OP_TABLE_H

#include "ops/ops.h"

enum {
    OP_NONE = 0, /* so that a field left out of a row names no op */
#define OP(id, ...) OP_##id,
#include "ops/ops.def"
#undef OP
    OP_COUNT
};

/* ---- attributes: what op_attr holds, one row each --------------------------------------------
 *     id, member of op_attr, how it prints                                                       */
#define OP_ATTRIBUTES(X)                                                                           \
    X(EPS, eps, FLOAT)                                                                             \
    X(ACT, act, ACT)                                                                               \
    X(HEADS_Q, heads.q, INT)                                                                       \
    X(HEADS_KV, heads.kv, INT)                                                                     \
    X(HEAD_DIM, heads.dim, INT)                                                                    \
    X(ROT, heads.rot, INT)                                                                         \
    X(WINDOW, heads.window, INT)                                                                   \
    X(SEQ, heads.seq, INT)                                                                         \
    X(DOCUMENTS, heads.documents, BOOL)                                                            \
    X(SCORE_SCALE, heads.scale, FLOAT)                                                             \
    X(HEADS_FIRST, heads.first, INT)                                                               \
    X(NORM_FULL, heads.norm_full, BOOL)                                                            \
    X(DROPOUT_P, dropout.p, FLOAT)                                                                 \
    X(DROPOUT_SITE, dropout.site, INT)                                                             \
    X(PARTS, reorder.parts, INT)                                                                   \
    X(SWAP_OUTER, reorder.outer, INT)                                                              \
    X(SWAP_INNER, reorder.inner, INT)                                                              \
    X(SCALE_BY, scale.by, FLOAT)                                                                   \
    X(LOGIT_SCALE, ce.logit_scale, FLOAT)                                                          \
    X(VOCAB_FIRST, vocab.first, LONG)                                                              \
    X(VOCAB_SIZE, vocab.size, LONG)                                                                \
    X(LR_MUL, update.lr_mul, FLOAT)                                                                \
    X(DECAY, update.decay, FLOAT)                                                                  \
    X(BETA1, update.beta1, FLOAT)                                                                  \
    X(BETA2, update.beta2, FLOAT)                                                                  \
    X(UPDATE_EPS, update.eps, FLOAT)                                                               \
    X(MOMENTUM, update.momentum, FLOAT)                                                            \
    X(L2, update.l2, BOOL)                                                                         \
    X(NESTEROV, update.nesterov, BOOL)                                                             \
    X(POLAR, update.polar, INT)                                                                    \
    X(ROUND_SITE, update.site, INT)                                                                \
    X(PART_FIRST, update.first, LONG)                                                              \
    X(PART_BASE, update.base, LONG)                                                                \
    X(PART_COLS, update.cols, LONG)                                                                \
    X(PART_STRIDE, update.stride, LONG)                                                            \
    X(HOST_STATE, update.host_state, BOOL)                                                         \
    X(HOST_PARAMS, update.host_params, BOOL)                                                       \
    X(AGC_FACTOR, agc.factor, FLOAT)                                                               \
    X(AGC_EPS, agc.eps, FLOAT)                                                                     \
    X(GROWTH_INTERVAL, clip.growth_interval, LONG)                                                 \
    X(EXPERTS, experts, INT)                                                                       \
    X(ROUTE_SIGMOID, route.sigmoid, BOOL)                                                          \
    X(ROUTE_NORMALIZE, route.normalize, BOOL)                                                      \
    X(ROUTE_PADDED, route.padded, BOOL)                                                            \
    X(ROUTE_SCALE, route.scale, FLOAT)                                                             \
    X(ROUTE_SEQ, route.seq, INT)                                                                   \
    X(ROUTE_CAPACITY, route.capacity, INT)                                                         \
    X(ROUTE_K, route.k, INT)                                                                       \
    X(ROUTE_CHUNKS, route.chunks, INT)                                                             \
    X(ROUTE_PART, route.part, INT)                                                                 \
    X(ROUTE_BALANCE, route.balance, FLOAT)                                                         \
    X(ROUTE_Z, route.z, FLOAT)                                                                     \
    X(FP8_RECIPE, fp8.recipe, INT)                                                                 \
    X(FP8_GIVEN, fp8.given, BOOL)                                                                  \
    X(FP8_MEASURE, fp8.measure, BOOL)                                                              \
    X(FP8_MEASURED, fp8.measured, BOOL)                                                            \
    X(FP8_SITE, fp8.site, INT)

typedef enum {
#define ATTR_ENUM(id, member, kind) ATTR_##id,
    OP_ATTRIBUTES(ATTR_ENUM)
#undef ATTR_ENUM
        ATTR_COUNT
} attr_id;
/* Sets of attributes, as rows and kernels name them. */
#define ATTR(id)    (UINT64_C(1) << ATTR_##id)
#define ATTRS_HEADS (ATTR(HEADS_Q) | ATTR(HEADS_KV) | ATTR(HEAD_DIM))
#define ATTRS_VOCAB (ATTR(VOCAB_FIRST) | ATTR(VOCAB_SIZE))
#define ATTRS_FP8                                                                                  \
    (ATTR(FP8_RECIPE) | ATTR(FP8_GIVEN) | ATTR(FP8_MEASURE) | ATTR(FP8_MEASURED) | ATTR(FP8_SITE))
/* Which elements of a parameter a call has. */
#define ATTRS_PART (ATTR(PART_FIRST) | ATTR(PART_BASE) | ATTR(PART_COLS) | ATTR(PART_STRIDE))
#define ATTRS_UPDATE                                                                               \
    (ATTR(LR_MUL) | ATTR(DECAY) | ATTR(BETA1) | ATTR(BETA2) | ATTR(UPDATE_EPS) | ATTR(MOMENTUM) |  \
     ATTR(L2) | ATTR(NESTEROV) | ATTR(ROUND_SITE) | ATTRS_PART | ATTR(HOST_STATE) |                \
     ATTR(HOST_PARAMS))
#define ATTRS_UPDATE_DECOUPLED                                                                     \
    (ATTRS_UPDATE & ~ATTR(L2)) /* of kernels without decay through the gradient */
#define ATTRS_ROUTE                                                                                \
    (ATTR(ROUTE_SIGMOID) | ATTR(ROUTE_NORMALIZE) | ATTR(ROUTE_PADDED) | ATTR(ROUTE_SCALE) |        \
     ATTR(ROUTE_SEQ) | ATTR(ROUTE_CAPACITY) | ATTR(ROUTE_BALANCE) | ATTR(ROUTE_Z) |                \
     ATTR(ROUTE_CHUNKS) | ATTR(ROUTE_PART))
#define ATTRS_ROUTE_COUNT                                                                          \
    (ATTR(ROUTE_SIGMOID) | ATTR(ROUTE_SEQ) | ATTR(ROUTE_K) | ATTR(ROUTE_CHUNKS))
#define ATTRS_ATTENTION         (ATTR(WINDOW) | ATTR(SEQ) | ATTR(DOCUMENTS) | ATTR(SCORE_SCALE))
#define ATTRS_ATTENTION_DROPOUT (ATTR(DROPOUT_P) | ATTR(DROPOUT_SITE) | ATTR(HEADS_FIRST))
#define ATTRS_SWAP              (ATTR(SWAP_OUTER) | ATTR(SWAP_INNER))

/* ---- rows -------------------------------------------------------------------------------------- */
/* How backward is derived (prog/backward.c). 0, a row that does not set it, is refused as soon as a
 * gradient reaches the op. */
typedef enum {
    BWD_MISSING,
    BWD_BY_NAME, /* emits bwd_op[], binding operands and results by name */
    BWD_SELF,    /* the op applied to the gradient: dropout, scale, cast */
    BWD_SUM,     /* the gradient goes to every operand */
    BWD_COMM,    /* the dual communication */
    BWD_LOSS,    /* terminal: its results are the gradients */
    BWD_LINEAR,  /* bwd_op[], with a fused activation and the activation before it */
    BWD_NORM,    /* bwd_op[0], with the gradient of the residual sum added inside */
    BWD_BLOCKS,  /* of the last block: that of all of them (prog/rec_context.c) */
    BWD_STOP,    /* not differentiable: refused when an operand needs a gradient */
    BWD_COUNT
} op_bwd;

/* What a call costs (ops_cost). */
typedef enum {
    COST_BYTES,  /* every operand and result moved once */
    COST_GATHER, /* reads as many table rows as it writes */
    COST_GEMM,
    COST_GROUPED, /* a GEMM over the rows of a batch, with another matrix for each group of them */
    COST_LOSS,
    COST_ATTENTION,           /* two GEMMs over half the keys */
    COST_ATTENTION_BWD,       /* five */
    COST_ATTENTION_BLOCK,     /* two over half of a block's keys */
    COST_ATTENTION_BLOCK_BWD, /* five */
    COST_UPDATE,              /* results are read too, but for the copy */
    COST_ORTHOGONALIZE        /* iterations of three GEMMs on matrices */
} op_cost;

enum {
    OPF_INPLACE = 1,      /* out[0] may share in[0]'s memory */
    OPF_EXTERN = 2,       /* run by the executor (communication), not by a backend */
    OPF_FP8 = 4,          /* a GEMM whose activation operands may be quantized */
    OPF_QUANTIZE = 8,     /* yields fp8 copies of its operand; writes its row too */
    OPF_UPDATE = 16,      /* part of the optimizer's update: changes its results in place */
    OPF_WEIGHT_GRAD = 32, /* yields weight gradients alone: nothing in its list waits for it */
    OPF_FETCH = 64        /* reads host memory: runs on QUEUE_FETCH, beside everything else */
};

typedef struct op_row {
    const char *name, *signature;
    /* Accepted placements, per mesh axis: alternatives "operands > results", separated by ";".
     * A placement is I, R, P, S0, S1, or "." for any; operands beyond those named are unconstrained,
     * results beyond take the last one named. "@batch": only on axes that divide the batch. "=": any,
     * and results take the first operand's. NULL: models do not record it. */
    const char *place;
    op_bwd bwd;
    op_code bwd_op[2];
    /* How recompute rebuilds a result: runs `op` on these operands and results of the recorded op, by
     * name and in order. "-" leaves a slot empty, "r|x" takes x where r is absent. The first operand
     * must be available, the first result is what is rebuilt. An operand beyond those named that is
     * present rules it out. OP_NONE: the result is saved. */
    struct {
        op_code op;
        const char *in, *out;
    } rebuild;
    /* An op with an activation built in: the op without it, the activation, and the result that holds
     * the activation's input. */
    struct {
        op_code plain, activation;
        const char *pre;
    } fused;
    /* A backward op that can carry the slope of the activation before it: which activation, and the op
     * that does both. */
    struct {
        op_code activation, op;
    } through;
    op_code quantized; /* the op that computes this one and quantizes its result, unwritten */
    op_cost cost;
    uint64_t attrs; /* set of attributes it reads */
    int flags;
} op_row;
const op_row *op_row_of(op_code op);
static inline int op_flags(op_code op) { return op_row_of(op)->flags; }

/* ---- signatures ---------------------------------------------------------------------------------- */
typedef enum { KIND_FLOAT, KIND_WEIGHT, KIND_F32, KIND_I32, KIND_I64, KIND_U8 } operand_type;
enum { OPERAND_NAME = 12, ANY_SHAPE = -1 };
typedef struct op_operand {
    char name[OPERAND_NAME]; /* "" for a slot that is never used */
    operand_type type;
    bool optional, accumulates;
    bool state;  /* of an update: what the optimizer keeps from step to step */
    bool sign;   /* KIND_U8: codes of values of either sign */
    int type_of; /* operand whose element type it has (results) or is converted to; -1: none */
    int ndim;    /* or ANY_SHAPE */
    struct {
        int times;
        char symbol; /* 0: `times` itself is the size */
    } dim[TENSOR_MAX_DIM];
} op_operand;
typedef struct op_signature {
    op_operand in[OP_MAX_IN], out[OP_MAX_OUT];
    int ins, outs;
} op_signature;
op_signature op_signature_of(op_code op);
/* @return the index of the operand of this name; -1: none. */
int op_find(const op_operand *list, int n, const char *name);
/* @return how many of an update's results are states. */
int op_states(op_code op);

/* ---- attributes of a call ------------------------------------------------------------------------ */
/* The attributes that are set, not zero or false. */
uint64_t op_attrs_set(const op_attr *a);
/* "eps=1e-05 window=256": those the op reads and that are set. */
void op_attrs_print(op_code op, const op_attr *a, str *out);
const char *attr_name(attr_id id); /* "heads.window" */

#endif
