/* Chunks of rows. Between two communications over the axes of a layer's shards (prog_options.chunk_axes) a layer may
 * work on one chunk of its rows after another, so that the communication of a chunk overlaps the GEMMs of others. A
 * model records whole layers; this pass rewrites the forward list before backward is derived from it:
 *
 *     recorded   gather x | up, act, down | sum                gather x | qkv | attention | out | sum
 *     chunks     gather x0, gather x1 | up, act, down of x0 | sum 0 | up, act, down of x1 | sum 1
 *
 * Ops from a gather to the next sum are divided together where each works row by row; else the GEMM beside the
 * communication is, alone. If ranks hold rows of their own, a gathered chunk consists of rows of every rank, in the
 * order of the ranks: of two chunks on two ranks,
 *
 *     rows of the batch    | rank 0: chunk 0 | chunk 1 | rank 1: chunk 0 | chunk 1 |
 *     gathered             chunk 0: | rank 0 | rank 1 |     chunk 1: | rank 0 | rank 1 |
 *
 * To ops up to the sum the order does not matter. What follows a GEMM that is divided alone needs that of the batch, so
 * it runs on a rank's rows of a chunk at a time. */
#include "prog_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct chunker {
    prog *p;
    op_list old; /* the list as recorded */
} chunker;

/* ---- what can be divided ------------------------------------------------------------------- */
static bool crosses(const chunker *c, const prog_op *o) {
    return (op_flags(o->op) & OPF_EXTERN) && o->attr.comm.kind == MOVE_NONE &&
           o->attr.comm.axes == c->p->o.chunk_axes;
}
static bool is_sum(const chunker *c, const prog_op *o) {
    return crosses(c, o) && o->attr.comm.from.kind == PL_P;
}
static bool is_gemm(const prog_op *o) { return op_row_of(o->op)->cost == COST_GEMM; }

/* Whether the op works row by row on its first operand, and all others are weights. */
static bool works_by_row(const prog_op *o) {
    op_signature sig = op_signature_of(o->op);
    char rows = sig.in[0].dim[0].symbol;
    if (op_flags(o->op) & OPF_EXTERN) return false;
    for (int i = 1; i < sig.ins; i++)
        if (o->in[i] != VAL_NONE && sig.in[i].type != KIND_WEIGHT) return false;
    for (int i = 0; i < sig.outs; i++)
        if (o->out[i] != VAL_NONE && sig.out[i].dim[0].symbol != rows) return false;
    return sig.ins > 0 && (sig.in[0].ndim == 2 || sig.in[0].ndim == ANY_SHAPE);
}

/* Whether the next op is the only one that reads what op i yields, as its first operand. */
static bool passes_on(const chunker *c, int i) {
    val v = c->old.op[i].out[0];
    int readers = 0;
    for (int k = i + 1; k < c->old.n; k++)
        for (int m = 0; m < OP_MAX_IN; m++)
            for (val a = c->old.op[k].in[m]; a != VAL_NONE;
                 a = c->p->val[a].cls == VC_ALIAS ? c->p->val[a].base : VAL_NONE)
                readers += a == v;
    return readers == 1 && c->old.op[i + 1].in[0] == v;
}

/* Counts the ops that are divided together: those after a gather that work by row. */
typedef struct gathered_rows {
    int n, gemms;
    bool to_sum; /* the op after them sums what they yield */
} gathered_rows;

static gathered_rows span_after(const chunker *c, int gather) {
    gathered_rows s = { 0 };
    while (passes_on(c, gather + s.n)) {
        const prog_op *o = &c->old.op[gather + 1 + s.n];
        s.to_sum = is_sum(c, o) && s.gemms;
        if (!works_by_row(o)) break;
        s.gemms += is_gemm(o);
        s.n++;
    }
    return s;
}

/* @return the number of chunks. @param rows of this rank @param ranks whose rows a gathered chunk consists of */
static int chunk_count(const prog *p, int64_t rows, int ranks) {
    int n = p->o.row_chunks;
    while (n > 1 && (rows % n || rows / n < p->o.chunk_rows || n * ranks > MAX_ROW_PARTS)) n--;
    return MAX(1, n);
}
static int ranks_of_chunk(const prog *p, place rows) {
    return rows.kind == PL_S ? mesh_span(&p->m, p->o.chunk_axes) : 1;
}

/* ---- the list rebuilt ---------------------------------------------------------------------- */
static void push_op(prog *p, const prog_op *o) {
    list_push(&p->fwd, o);
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (o->out[k] != VAL_NONE) p->val[o->out[k]].producer = p->fwd.n - 1;
}

/* Records the op for some rows of its first operand. @return its first result */
static val push_part(prog *p, const prog_op *whole, val part) {
    prog_op o = *whole;
    int64_t rows = p->val[part].dim[0], all = p->val[whole->in[0]].dim[0];
    o.in[0] = part;
    for (int k = 0; k < OP_MAX_OUT; k++) {
        if (o.out[k] == VAL_NONE) continue;
        prog_val v = p->val[o.out[k]];
        v.dim[0] = v.dim[0] * rows / all;
        o.out[k] = val_new(p, VC_TEMP, v.dt, v.ndim, v.dim, v.pl);
        p->val[o.out[k]].needs_grad = v.needs_grad;
        memcpy(p->val[o.out[k]].segments, v.segments, sizeof v.segments);
    }
    push_op(p, &o);
    return o.out[0];
}

static val move_part(prog *p, const prog_op *move, val part) {
    p->site = move->site;
    return emit_comm(p, part, move->attr.comm.axes, move->attr.comm.to, WHEN_ALWAYS);
}

static row_parts gather_chunks(prog *p, const prog_op *gather, int n) {
    row_parts r = split_rows(p, gather->in[0], n);
    for (int i = 0; i < r.n; i++) r.part[i] = move_part(p, gather, r.part[i]);
    return r;
}

/* Divides all ops from the gather to the sum. */
static void divide_layer(prog *p, const prog_op *gather, const gathered_rows *s, int n) {
    row_parts r = gather_chunks(p, gather, n);
    const prog_op *sum = gather + 1 + s->n;
    for (int i = 0; i < n; i++) {
        for (int k = 1; k <= s->n; k++) r.part[i] = push_part(p, gather + k, r.part[i]);
        r.part[i] = move_part(p, sum, r.part[i]);
    }
    join_rows(p, &r, sum->out[0]);
}

/* Divides a gather and the GEMM after it, whose result is in the order of the batch. */
static void divide_first_gemm(prog *p, const prog_op *gather, int n, int ranks) {
    row_parts chunk = gather_chunks(p, gather, n), out = { .n = n * ranks };
    const prog_op *gemm = gather + 1;
    for (int c = 0; c < n; c++) {
        row_parts of = split_rows(p, chunk.part[c], ranks);
        for (int r = 0; r < ranks; r++) out.part[r * n + c] = push_part(p, gemm, of.part[r]);
    }
    join_rows(p, &out, gemm->out[0]);
}

/* Divides a GEMM whose operand is in the order of the batch, and the sum after it. */
static void divide_last_gemm(prog *p, const prog_op *gemm, int n, int ranks) {
    row_parts from = split_rows(p, gemm->in[0], n * ranks), out = { .n = n };
    const prog_op *sum = gemm + 1;
    for (int c = 0; c < n; c++) {
        row_parts part = { .n = ranks };
        for (int r = 0; r < ranks; r++) part.part[r] = push_part(p, gemm, from.part[r * n + c]);
        out.part[c] = move_part(p, sum, join_rows(p, &part, VAL_NONE));
    }
    join_rows(p, &out, sum->out[0]);
}

/* Divides what begins with op i, if anything does. @return how many ops of the old list that replaces */
static int divide_at(chunker *c, int i) {
    prog *p = c->p;
    const prog_op *o = &c->old.op[i], *next = i + 1 < c->old.n ? o + 1 : o;
    if (crosses(c, o) && o->attr.comm.to.kind == PL_R && o->attr.comm.from.kind != PL_P) {
        int ranks = ranks_of_chunk(p, o->attr.comm.from);
        int n = chunk_count(p, p->val[o->in[0]].dim[0], ranks);
        gathered_rows s = span_after(c, i);
        if (n > 1 && s.to_sum) divide_layer(p, o, &s, n);
        if (n > 1 && s.to_sum) return s.n + 2;
        if (n == 1 || s.gemms != 1 || !is_gemm(next)) return 0;
        divide_first_gemm(p, o, n, ranks);
        return 2;
    }
    if (!is_gemm(o) || !is_sum(c, next) || !works_by_row(o) || !passes_on(c, i)) return 0;
    int ranks = ranks_of_chunk(p, next->attr.comm.to);
    int n = chunk_count(p, p->val[o->in[0]].dim[0] / ranks, ranks);
    if (n == 1) return 0;
    divide_last_gemm(p, o, n, ranks);
    return 2;
}

void pass_chunk_rows(prog *p) {
    chunker c = { p, p->fwd };
    rec_site site = p->site;
    if (p->o.row_chunks <= 1 || mesh_span(&p->m, p->o.chunk_axes) == 1) return;
    p->fwd = (op_list){ 0 };
    for (int i = 0; i < c.old.n;) {
        int done = divide_at(&c, i);
        if (!done) push_op(p, &c.old.op[i]);
        i += MAX(1, done);
    }
    free(c.old.op);
    p->site = site;
}
