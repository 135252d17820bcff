/* The op table, for those who name ops or read their rows: kernels, the passes of prog/, update rules,
 * tests. The rows are in ops.def; this header defines their fields.
 *
 *     const op_row *row = op_row_of(OP_SWIGLU);
 *     op_signature sig = op_signature_of(OP_SWIGLU);
 *     int gu = op_find(sig.in, sig.ins, "gu");
 */
#ifndef INGOT_OP_TABLE_H
#define INGOT_OP_TABLE_H

#include "ops/op_attrs.h"

enum {
    OP_NONE = 0, /* so that a field left out of a row names no op */
#define OP(id, ...) OP_##id,
#include "ops/ops.def"
    OP_COUNT
};

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
    BWD_MIX,     /* bwd_op[0], with the gradient of the earlier value so far added inside */
    BWD_BLOCKS,  /* of the last block: that of all of them (prog/rec_context.c) */
    BWD_STOP,    /* not differentiable: refused when an operand needs a gradient */
    BWD_COUNT
} op_bwd;

/* Classes of cost of a call (ops_cost). */
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
    COST_DELTA,               /* GEMMs of a head's chunks with its state */
    COST_DELTA_BWD,           /* three times as many */
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
    /* A norm whose result "y", where it has no weights "w", is another result (the first operand where that is absent)
     * times "stat": the op that quantizes y from those two, so that y is not written. */
    struct {
        op_code op;
        const char *from;
    } scaled;
    op_cost cost;
    attr_set attrs; /* those it reads */
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

/* Operands of ATTENTION_BLOCK and ATTENTION_BLOCK_BWD, which both backends and prog/rec_context.c name. */
enum {
    BLOCK_BEFORE,
    BLOCK_Q,
    BLOCK_KV,
    BLOCK_RANGE,
    BLOCK_ID,
    BLOCK_KEY_ID,
    BLOCK_LSE_BEFORE,
    BLOCK_SINK
};
enum {
    BLOCK_BWD_DO,
    BLOCK_BWD_Q,
    BLOCK_BWD_KV,
    BLOCK_BWD_O,
    BLOCK_BWD_LSE,
    BLOCK_BWD_RANGE,
    BLOCK_BWD_ID,
    BLOCK_BWD_KEY_ID
};

#endif
