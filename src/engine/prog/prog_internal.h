/* The structure of a program, for the passes over it. */
#ifndef INGOT_PROG_INTERNAL_H
#define INGOT_PROG_INTERNAL_H

#include "ops/op_table.h"
#include "prog/record.h"

/* ---- values ------------------------------------------------------------------------------ */
typedef enum {
    VC_TEMP,        /* lives inside one list */
    VC_SAVED,       /* computed forward, read backward, once per instance in flight */
    VC_BLOCK_INPUT, /* the block's summed input: all that recompute needs to start again */
    VC_PARAM,       /* a bucket (or a parameter in it), as stored */
    VC_GATHERED,    /* a bucket that is stored in slices, as gathered: in a slot of the chain */
    VC_GRAD,        /* its fp32 gradient, as accumulated */
    VC_WHOLE_GRAD, /* ... of one microbatch, before it is reduced to a slice: in a slot of the chain */
    VC_INPUT,      /* bound by name: tokens, positions, a cache */
    VC_REGION,     /* memory of a plan region, from an offset on: what an update changes */
    VC_STATE,      /* the step block's state */
    VC_BOUNDARY, /* passed between instances */
    VC_CARRIED,  /* carried past instances, or its gradient: in a slot of the chain */
    VC_ALIAS     /* bytes of another value */
} val_class;

typedef struct prog_val {
    const char *name; /* NULL for most */
    val_class cls;
    dtype dt;
    int ndim;
    int64_t dim[TENSOR_MAX_DIM]; /* local */
    /* A dim may be segments (q|k|v, gate|up): sharding it shards each segment, so that a rank holds a
     * part of every one. Such a dim cannot be gathered: ranks' parts would interleave. 0 reads as 1. */
    uint16_t segments[TENSOR_MAX_DIM];
    placement pl;
    val base;   /* VC_ALIAS: whose bytes, at offset bytes */
    int region; /* VC_REGION: which, at offset bytes */
    size_t offset;
    int param, bucket; /* VC_PARAM, VC_GRAD and their aliases; else -1 */
    int producer;      /* op of the forward list, -1: none */
    val grad;          /* while backward is derived */
    bool needs_grad;
    bool per_layer;  /* VC_INPUT: one for each layer, as a cache */
    bool all_layers; /* ... of the whole model, also those of other pipeline stages */
    bool shared;     /* VC_INPUT: all microbatches read the same */
    bool per_micro;  /* ... each has its own, also of what every layer has its own of */
    size_t at;       /* memory pass: offset in the temp region or in an instance's saved slot */
} prog_val;

/* ---- ops --------------------------------------------------------------------------------- */
/* When an op of a list runs, by microbatch. */
typedef enum {
    WHEN_ALWAYS,
    WHEN_LAST,
    WHEN_UNSCALED /* as long as scales of fp8 are unset: exec.scaled */
} op_when;
/* How "+=" outputs behave. */
typedef enum {
    ACC_STORE, /* overwrite */
    ACC_MICRO, /* overwrite in a step's first microbatch, add in later ones */
    ACC_ADD    /* add */
} op_acc;
typedef enum {
    COMM_BOTH,
    COMM_START,
    COMM_WAIT,
    COMM_LATE /* starts; what ends the step's last microbatch waits for it */
} comm_phase;

typedef struct rec_site { /* where the model recorded it */
    const char *file, *function;
    int line;
} rec_site;

typedef struct prog_op {
    op_code op;
    val in[OP_MAX_IN], out[OP_MAX_OUT];
    op_attr attr;
    op_when when;
    op_acc acc;
    comm_phase phase;
    int pair;           /* COMM_WAIT: index of its START */
    device_queue queue; /* of an update: QUEUE_UPDATE runs beside the next step */
    axis_set
        once; /* LINEAR, EXPERT_BIAS: axes of a partial sum, along which the first rank alone adds the bias */
    bool saves; /* forward: backward reads something that follows from it */
    rec_site site;
} prog_op;

typedef struct op_list {
    prog_op *op;
    int n, cap;
} op_list;

/* The rows of a value in equal parts, in order. */
enum { MAX_ROW_PARTS = 32 };
typedef struct row_parts {
    val part[MAX_ROW_PARTS];
    int n;
} row_parts;
/* A value and the parts that are all of its rows, in order. Either the parts alias a value that an op yielded
 * (split_rows), or the value consists of what ops yielded as its parts (join_rows). */
typedef struct row_division {
    val whole, part[MAX_ROW_PARTS];
    int parts;
} row_division;

enum { PROG_LISTS = 5 };
extern const char *const prog_list_names[PROG_LISTS];

struct prog {
    const char *name;
    prog_mode mode;
    mesh m;
    param_set set;
    prog_options o;
    dtype dt; /* what the module being recorded computes in */
    prog_val *val;
    int vals, val_cap;
    /* weights: gradients of weights that bwd leaves for later (prog_options.split_weights).
     * gather, reduce: communication of buckets that are kept in slices. The step's instructions decide when they start
     * and when they are awaited (slots.c): `gather` yields what the other lists read, `reduce` adds the gradients that
     * they leave to the slices. */
    union {
        struct {
            op_list gather, fwd, bwd, weights, reduce;
        };
        op_list list[PROG_LISTS];
    };
    op_list *emit; /* the list that recording adds to */
    bool terminal; /* ends in the loss: backward follows in the same list */
    val res_in, delta_in, res_out, delta_out; /* the residual state, VAL_NONE where there is none */
    val block_input;                          /* its sum, from which recompute can start */
    val grad_in, grad_out;                    /* of the residual, backward */
    /* Carried values (record.h), VAL_NONE where there is none: as read, as left, and backward their gradients as later
     * programs left them and with this program's share. */
    val carry_in[CARRIES], carry_out[CARRIES], carry_grad_in[CARRIES], carry_grad_out[CARRIES];
    val result;                              /* the loss per token; in DECODE the logits */
    val top1;                                /* of EVAL, beside the loss; else VAL_NONE */
    size_t temp_bytes, saved_bytes;          /* by the memory pass */
    size_t gathered_bytes, whole_grad_bytes; /* ... of one slot */
    val *bucket_full, *bucket_grad; /* [buckets] what parameters are read from, gradients go to */
    row_division *division;         /* what was split or joined by rows */
    int divisions, division_cap;
    uint8_t *param_written; /* [params] who wrote its gradient so far */
    rec_site site;          /* of the record call in progress */
    err error;              /* the first, kept until prog_finish */
};

/* Bits of prog.param_written. */
enum { WROTE_EARLIER = 1, WROTE_HERE = 2 };

/* ---- record.c: values and ops ------------------------------------------------------------ */
val val_new(prog *p, val_class cls, dtype dt, int ndim, const int64_t *dim, placement pl);
/* @return a value over the bytes of another, from `offset` bytes on. */
val val_alias(prog *p, val base, size_t offset, dtype dt, int ndim, const int64_t *dim,
              placement pl);
/* @return the value whose bytes v shares; aliases are followed. */
val val_root(const prog *p, val v);
size_t val_bytes(const prog_val *v);
tensor val_tensor(const prog_val *v); /* shape only */
prog_op op_blank(op_code op, rec_site site);
prog_op *op_emit(prog *p, op_code op);
/* The same for an op that reads `a` and `b` and writes `out`. */
prog_op *op_emit_on(prog *p, op_code op, val a, val b, val out);
/* Records a + b, of type dt. */
val emit_add(prog *p, val a, val b, dtype dt);
void list_push(op_list *l, const prog_op *op);
/* Keeps the first error, prefixed with program, file and line. */
void prog_fail(prog *p, const char *hint, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* @return x as dt: its producer emits that type, or a cast is recorded. */
val val_as(prog *p, val x, dtype dt);
/* @return the value in which this parameter's gradient is accumulated; a program's first writer stores. */
val param_grad(prog *p, val param, op_acc *acc);
/* Whether it reads parameters from host memory. */
bool prog_fetches(const prog *p);

/* ---- rec_comm.c: communication ------------------------------------------------------------- */
/* @return x in another placement; x itself where nothing changes. */
val emit_comm(prog *p, val x, axis_set axes, place to, op_when when);
/* Records a shift: the result is x of the rank `by` places before along the axes. */
val emit_shift(prog *p, val x, axis_set axes, int by);
/* Sends rows to the ranks along these axes, by counts (COMM in ops.def); receives at most `rows`. */
val emit_rows(prog *p, val x, axis_set axes, val send, val back, int64_t rows);
/* Records any move from x into y, unchecked. @return the op, valid until the next is recorded. */
prog_op *emit_move(prog *p, val x, val y, comm_move m);
/* Lets the communication recorded last cross between ranks in this type, if it is a narrower one. */
void set_wire(prog *p, dtype wire);
/* The op of a move, and the kind of a COMM op. */
prog_op op_of_move(val x, val y, comm_move m, rec_site site);
static inline move_kind op_move_kind(const prog_op *o) { return comm_kind(&o->attr.comm); }

/* ---- rec_ops.c: one op, for the record calls ----------------------------------------------- */
/* Records an op. @param out its results; VAL_NONE after an error. @return the op, or NULL. */
prog_op *rec_op(prog *p, rec_request *r, val out[OP_MAX_OUT]);
/* Sets which tokens of the vocabulary the rows of a table are, where it is sharded (rec_loss.c). */
void rec_set_vocab(const prog *p, val table, op_attr *attr);
/* Sets the dropout of attention, after local_heads. @return whether there is any. */
bool set_attention_dropout(prog *p, val qkv, val id, head_shape h, op_attr *attr);

/* ---- rec_rows.c ------------------------------------------------------------------------------ */
/* Equal parts of a value, and the value that consists of them: `into`, or a new one where that is VAL_NONE. Neither
 * moves bytes. */
row_parts split_rows(prog *p, val x, int n);
val join_rows(prog *p, const row_parts *of, val into);
/* n rows of x from row `from` on. */
val slice_rows(prog *p, val x, int64_t from, int64_t n);
/* Makes v, which an op has just yielded, rows of a larger value. */
void become_rows(prog *p, val v, val of, int64_t from);

/* ---- rec_context.c ------------------------------------------------------------------------- */
/* The axes along which ranks share the tokens of a sequence. */
axis_set sequence_axes(void);
/* The axes along which ranks share the heads of qkv, and the index of this rank's share. */
axis_set head_axes(const prog *p, val qkv);
int head_share(const prog *p, axis_set axes);
/* Divides heads of x over the ranks that share them. @param of the layer, for an error. @return 0 after an error. */
int own_heads(prog *p, val x, int heads, const char *of, const char *remedy);
/* Divides the model's heads over the ranks that share them, and sets attr->heads. @return false after an
 * error. */
bool local_heads(prog *p, op_code op, val qkv, head_shape h, op_attr *attr);
/* The backward of attention to blocks of keys, given its last op. @param dout the gradient of its result
 * @param q, kv the values whose gradients are dq and dkv */
typedef struct blocks_grad {
    val q, kv, dq, dkv;
} blocks_grad;
blocks_grad rec_blocks_backward(prog *p, const prog_op *last, val dout);

/* ---- the passes, in order ---------------------------------------------------------------- */
void pass_chunk_rows(prog *p);             /* chunk_rows.c: layers by chunks of their rows */
void pass_backward(prog *p);               /* backward.c */
void pass_fp8(prog *p);                    /* fp8.c: marked linear layers in fp8 */
void pass_save(prog *p);                   /* recompute.c: what is saved, what is recomputed */
void pass_split_weights(prog *p);          /* split_weights.c */
void pass_split_comm(prog *p, op_list *l); /* comm_split.c */
void pass_memory(prog *p);                 /* memory.c */

#endif
