/* The loss. On one tp rank it is one op (linear_ce). Of a vocabulary that is sharded over tp it is a composite:
 * the logits of all tokens never exist at once, nor those of a token on one rank. For each chunk of rows:
 *
 *     z[n,V/tp] = linear(h, w)          S1      a rank's own columns, fp32
 *     stat[n,4] = ce_stat(z, target)    S0      maximum, sum, the target's logit, the sum of logits
 *     comm S0 -> R                              what all ranks found
 *     dz, loss  = ce_loss(z, stat, target)      dz takes the memory of z where types agree
 *     dh = linear_bwd_x(dz, w)          P       dw += linear_bwd_w(dz, h)     S0
 *
 * Gradients are computed here, in forward, because the chunk's logits are gone afterwards.
 *
 * In fp8 (loss_spec.fp8) linear_ce quantizes its operands itself. The composite records it: w once, h and dz of each chunk, by
 * scales in the rows of the input "fp8_head". No rank asks others for their maxima: scales are powers of two, which change
 * only how values far below the largest are rounded. */
#include "prog_internal.h"

/* Whether a table's tokens are. */
static bool is_sharded_over_tp(const prog *p, val v) {
    return place_same(p->val[v].pl.on[AX_TP], PLACE_S(0));
}

void rec_set_vocab(const prog *p, val table, op_attr *attr) {
    if (table == VAL_NONE || p->val[table].param < 0) return;
    const prog_param *q = &p->set.param[p->val[table].param];
    if (!is_sharded_over_tp(p, table)) return;
    attr->vocab.first = q->first;
    attr->vocab.size = q->whole;
}

static void end_in_loss(prog *p, val loss, val top1) {
    p->result = loss;
    p->top1 = top1;
    p->val[loss].name = "loss";
    p->terminal = true;
}

/* Evaluation measures the model that is exported, so that it has neither smoothing nor a z-loss, and no fp8. */
static op_attr loss_attr(const prog *p, const loss_spec *l) {
    op_attr a = { .ce = { .logit_scale = l->logit_scale, .cap = l->cap } };
    if (p->mode != PROG_TRAIN) return a;
    a.ce.smoothing = l->smoothing;
    a.ce.z_loss = l->z_loss;
    a.ce.fp8 = l->fp8;
    return a;
}

/* Refuses a loss in fp8 whose sizes or types its GEMMs do not have. @param v tokens of the vocabulary on a rank */
static bool fits_fp8(prog *p, const loss_spec *l) {
    const prog_val *h = &p->val[l->h], *w = &p->val[l->w];
    int64_t n = h->dim[0], d = h->dim[1], v = w->dim[0];
    if (w->dt != DT_BF16)
        prog_fail(p, "set precision.fp8_head=false, or compute the head in bf16",
                  "precision.fp8_head: the output layer computes in %s", dt_name(w->dt));
    else if (n % FP8_UNIT || d % FP8_UNIT || v % FP8_UNIT)
        prog_fail(
            p,
            "round them up (model.vocab_size may exceed the tokenizer's), or set precision.fp8_head=false",
            "precision.fp8_head: %lld tokens of a microbatch, model.dim %lld and %lld tokens of the vocabulary on a rank "
            "must be multiples of %d",
            (long long)n, (long long)d, (long long)v, FP8_UNIT);
    return !p->error;
}

/* A matrix and its transpose in fp8, and the row of their scale. */
typedef struct fp8_operand {
    val q, qt, row;
} fp8_operand;

typedef struct sharded_loss {
    val h, w, target, loss, top1, dh,
        dw;     /* of all rows; dh, dw: in training, top1: in evaluation; else VAL_NONE */
    op_acc acc; /* of dw, by the first chunk */
    op_attr attr;
    bool fp8;
    val rows; /* scales: of w, then of each chunk of h */
    fp8_operand w8;
    int64_t chunk; /* rows */
} sharded_loss;

static val head_scale_row(prog *p, const sharded_loss *s, int64_t i) {
    int64_t width = FP8_ROW;
    return val_alias(p, s->rows, (size_t)(i * FP8_ROW) * sizeof(float), DT_F32, 1, &width,
                     (placement){ 0 });
}

/* Records the quantization of x. @param given the row has the scale, which is x's own else */
static fp8_operand rec_quantize(prog *p, val x, val row, dtype dt, bool given) {
    prog_val v = p->val[x];
    int64_t turned[] = { v.dim[1], v.dim[0] };
    fp8_operand f = { val_new(p, VC_TEMP, dt, 2, v.dim, v.pl),
                      val_new(p, VC_TEMP, dt, 2, turned, v.pl), row };
    prog_op *o = op_emit_on(p, OP_QUANTIZE, x, row, f.q);
    o->out[1] = f.qt;
    o->attr.fp8.recipe = FP8_CURRENT;
    o->attr.fp8.given = given;
    return f;
}

/* Sets the operands of a linear op: in fp8 both are contiguous along the sum, and their rows are operands too. */
static void set_fp8_operands(prog_op *o, val a, val a_row, val b, val b_row) {
    o->in[0] = a;
    o->in[1] = b;
    o->in[3] = a_row;
    o->in[4] = b_row;
}

/* @param h8 in fp8: of these rows; row: of dz */
static void rec_gradients(prog *p, const sharded_loss *s, val dz, val row, const fp8_operand *h8,
                          int64_t from, int64_t n) {
    val h = slice_rows(p, s->h, from, n), dh = slice_rows(p, s->dh, from, n);
    fp8_operand dz8 = { 0 };
    if (s->fp8) dz8 = rec_quantize(p, dz, row, DT_E5M2, true);
    prog_op *o = op_emit_on(p, OP_LINEAR_BWD_X, dz, s->w, dh);
    if (s->fp8) set_fp8_operands(o, dz8.q, row, s->w8.qt, s->w8.row);
    o = op_emit_on(p, OP_LINEAR_BWD_W, dz, h, s->dw);
    if (s->fp8) set_fp8_operands(o, dz8.qt, row, h8->qt, h8->row);
    o->acc = from ? ACC_ADD : s->acc;
}

static void rec_loss_chunk(prog *p, const sharded_loss *s, int64_t from, int64_t n) {
    enum { DZ, LOSS, TOP1, ROW };
    val out[OP_MAX_OUT], target = slice_rows(p, s->target, from, n),
                         h = slice_rows(p, s->h, from, n);
    fp8_operand h8 = { 0 };
    if (s->fp8) h8 = rec_quantize(p, h, head_scale_row(p, s, 1 + from / s->chunk), DT_E4M3, false);
    dtype dt = p->dt;
    p->dt = DT_F32;
    val z = rec_linear_(p, h, s->w, VAL_NONE);
    if (s->fp8 && z != VAL_NONE)
        set_fp8_operands(&p->fwd.op[p->val[z].producer], h8.q, h8.row, s->w8.q, s->w8.row);
    p->dt = p->val[s->w].dt;                         /* of dz */
    if (z != VAL_NONE) p->val[z].needs_grad = false; /* backward is recorded here */
    val stat = rec_first(p, (rec_request){ OP_CE_STAT, { z, target }, s->attr });
    stat = rec_comm_(p, stat, AXIS(AX_TP), PLACE_R);
    rec_request r = { OP_CE_LOSS, { z, stat, target }, s->attr };
    r.want = s->dh == VAL_NONE ? 1 << TOP1 : 1 << DZ;
    if (s->fp8) r.want |= 1 << ROW;
    bool recorded = rec_op(p, &r, out) != NULL;
    p->dt = dt;
    if (!recorded) return;
    p->val[s->loss].pl = p->val[out[LOSS]].pl;
    become_rows(p, out[LOSS], s->loss, from);
    if (s->top1 != VAL_NONE) {
        p->val[s->top1].pl = p->val[out[TOP1]].pl;
        become_rows(p, out[TOP1], s->top1, from);
    }
    if (s->dh != VAL_NONE) rec_gradients(p, s, out[DZ], out[ROW], &h8, from, n);
}

static void rec_sharded_ce(prog *p, loss_spec l) {
    enum { LEAST_ROWS = 32 }; /* of a chunk */
    if (l.h == VAL_NONE || l.target == VAL_NONE) return;
    sharded_loss s = { l.h, l.w, l.target, VAL_NONE, VAL_NONE, VAL_NONE, VAL_NONE, ACC_STORE };
    s.h = val_as(p, l.h, p->val[l.w].dt);
    s.attr = loss_attr(p, &l);
    rec_set_vocab(p, l.w, &s.attr);
    prog_val h = p->val[s.h];
    int64_t n = h.dim[0], columns = p->val[l.w].dim[0];
    s.loss = val_new(p, VC_TEMP, DT_F32, 1, &n, h.pl);
    if (p->mode == PROG_TRAIN) {
        s.dw = param_grad(p, l.w, &s.acc);
        s.dh = val_new(p, VC_TEMP, h.dt, 2, h.dim, placement_dual(h.pl));
    } else {
        s.top1 = val_new(p, VC_TEMP, DT_F32, 1, &n, h.pl);
    }
    int64_t bytes = p->o.logit_bytes ? p->o.logit_bytes : LOGIT_BYTES;
    int64_t most = MAX(LEAST_ROWS, bytes / (columns * (int64_t)sizeof(float)));
    int64_t chunks = (n + most - 1) / most, rows = (n + chunks - 1) / chunks;
    if (s.attr.ce.fp8) {
        s.attr.ce.fp8 = false; /* the ops of the composite know nothing of it */
        s.fp8 = true;
        s.chunk = rows = (rows + FP8_UNIT - 1) / FP8_UNIT * FP8_UNIT;
        int64_t dim[] = { 1 + chunks, FP8_ROW };
        s.rows = prog_input_shared(p, "fp8_head", dim);
        s.w8 = rec_quantize(p, s.w, head_scale_row(p, &s, 0), DT_E4M3, false);
    }
    for (int64_t from = 0; from < n && !p->error; from += rows)
        rec_loss_chunk(p, &s, from, MIN(rows, n - from));
    p->val[s.h].grad = s.dh;
    end_in_loss(p, s.loss, s.top1);
}

void rec_linear_ce_(prog *p, loss_spec l) {
    enum { LOSS, DH, DW, TOP1 };
    op_acc acc = ACC_STORE;
    val dw = VAL_NONE, out[OP_MAX_OUT];
    bool train = p->mode == PROG_TRAIN;
    if (p->error || l.w == VAL_NONE) return;
    if (train && l.fp8 && !fits_fp8(p, &l)) return;
    if (is_sharded_over_tp(p, l.w)) {
        rec_sharded_ce(p, l);
        return;
    }
    if (train)
        dw = param_grad(p, l.w, &acc); /* may emit: before the op's own results are numbered */
    rec_request r = { OP_LINEAR_CE, { l.h, l.w, l.target }, loss_attr(p, &l) };
    r.want = train ? 1 << DH : 1 << TOP1;
    prog_op *o = rec_op(p, &r, out);
    if (!o) return;
    o->out[DW] = dw;
    o->acc = acc;
    if (train) p->val[out[DH]].pl = placement_dual(p->val[out[LOSS]].pl);
    end_in_loss(p, out[LOSS], train ? VAL_NONE : out[TOP1]);
}
