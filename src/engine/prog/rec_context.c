/* Context parallelism: attention where ranks along an axis have tokens of their own of every sequence.
 *
 * All-to-all (Ulysses): before attention ranks exchange tokens for heads, and after it heads for tokens.
 * A rank's rows are [sequence, token of its shard]; what it receives is [rank, sequence, token], and
 * attention reads [sequence, rank, token]: the order of the batch.
 *
 * Ring: keys and values go around. In step s a rank has those of the rank s before it, and merges what they
 * add to its result by log-sum-exp; the shift to the next rank overlaps. Backward goes around once more, and
 * the gradients of keys and values travel with them, summed on the way, until they are at home:
 *
 *     forward     kv --> kv --> kv              backward     kv --> kv --> kv
 *                  |      |      |                            |      |      |
 *                  o ---> o ---> o, lse                       c0     c1     c2     each rank's share
 *                                                             +-> d --> d+c1 --> d+c2 --> dkv at home
 *
 * Nothing of other ranks is saved between the two. */
#include "prog_internal.h"

#include <stdlib.h>

/* ---- what ranks share of sequences and heads ----------------------------------------------- */
axis_set sequence_axes(void) { return AXES_ALL & ~AXES_ROWS; }

axis_set head_axes(const prog *p, val qkv) {
    axis_set axes = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (place_same(p->val[qkv].pl.on[a], PLACE_S(1))) axes |= AXIS(a);
    return axes;
}

int own_heads(prog *p, val x, int heads, const char *of, const char *remedy) {
    if (p->error || x == VAL_NONE) return 0;
    int ranks = mesh_span(&p->m, head_axes(p, x));
    if (heads % ranks == 0) return heads / ranks;
    prog_fail(p, remedy, "%s: %d heads do not divide over %d ranks", of, heads, ranks);
    return 0;
}

/* tp divides the heads first, cp the heads of a tp rank. */
int head_share(const prog *p, axis_set axes) {
    axis_set rest = axes & ~AXIS(AX_TP);
    return mesh_index(&p->m, axes & AXIS(AX_TP)) * mesh_span(&p->m, rest) + mesh_index(&p->m, rest);
}

bool local_heads(prog *p, op_code op, val qkv, head_shape h, op_attr *attr) {
    if (p->error || qkv == VAL_NONE) return false;
    axis_set axes = head_axes(p, qkv);
    int ranks = mesh_span(&p->m, axes);
    int kv = h.kv * mesh_span(&p->m, axes & AXIS(AX_TP) ? AXES_TP_REP : 0); /* with repetitions */
    if (h.q % ranks || kv % ranks || h.q % h.kv) {
        prog_fail(p, "use a tensor_parallel_degree that divides the key/value heads",
                  "%s: %d query and %d key/value heads do not divide over %d ranks", op_name(op),
                  h.q, h.kv, ranks);
        return false;
    }
    attr->heads.q = h.q / ranks;
    attr->heads.kv = kv / ranks;
    attr->heads.dim = h.dim;
    attr->heads.rot = h.rot;
    attr->heads.window = h.window;
    attr->heads.seq = h.seq;
    attr->heads.documents = h.documents;
    attr->heads.scale = h.scale;
    attr->heads.cap = h.cap;
    attr->heads.norm_full = h.norm_full;
    attr->heads.sink_first = mesh_index(&p->m, axes & ~AXIS(AX_TP)) * attr->heads.q;
    int64_t width = (int64_t)(attr->heads.q + 2 * attr->heads.kv) * h.dim;
    if (p->val[qkv].dim[1] == width) return true;
    prog_fail(p, NULL, "%s: the width of qkv is %lld, expected %lld", op_name(op),
              (long long)p->val[qkv].dim[1], (long long)width);
    return false;
}

/* ---- all-to-all ---------------------------------------------------------------------------- */
/* Sequences in the batch. @param n tokens of a rank */
static int sequences_per_rank(const prog *p, int64_t n, axis_set axes, head_shape h) {
    int64_t all = n * mesh_span(&p->m, axes);
    BUG_IF(h.seq < 1 || all % h.seq); /* the model has checked it */
    return (int)(all / h.seq);
}

static val swap_rows(prog *p, val x, int outer, int inner) {
    if (outer == 1 || inner == 1) return x;
    return rec_first(
        p, (rec_request){ OP_SWAP_ROWS, { x }, { .reorder = { .outer = outer, .inner = inner } } });
}

val rec_tokens_to_heads_(prog *p, val qkv, axis_set axes, head_shape h) {
    int ranks = mesh_span(&p->m, axes);
    rec_request r = { OP_GROUP_HEADS, { qkv }, { .reorder.parts = ranks } };
    if (ranks == 1 || !local_heads(p, r.op, qkv, h, &r.attr)) return p->error ? VAL_NONE : qkv;
    if (r.attr.heads.q % ranks || r.attr.heads.kv % ranks) {
        prog_fail(
            p, "use a degree that divides them, or ring attention",
            "%s: %d query and %d key/value heads do not divide over the %d ranks of a sequence",
            op_name(r.op), r.attr.heads.q, r.attr.heads.kv, ranks);
        return VAL_NONE;
    }
    int rows = sequences_per_rank(p, p->val[qkv].dim[0], axes, h);
    r.sizes.of['G'] = p->val[qkv].dim[1];
    val grouped = rec_first(p, r);
    if (p->error) return VAL_NONE;
    return swap_rows(p, emit_comm(p, grouped, axes, PLACE_S(1), WHEN_ALWAYS), ranks, rows);
}

val rec_heads_to_tokens_(prog *p, val o, axis_set axes, head_shape h) {
    int ranks = mesh_span(&p->m, axes);
    if (p->error || ranks == 1) return p->error ? VAL_NONE : o;
    int rows = sequences_per_rank(p, p->val[o].dim[0] / ranks, axes, h);
    val by_rank = swap_rows(p, o, rows, ranks);
    return p->error ? VAL_NONE : emit_comm(p, by_rank, axes, PLACE_S(0), WHEN_ALWAYS);
}

/* ---- blocks of keys ------------------------------------------------------------------------- */
enum { OUT, LSE }; /* results of ATTENTION_BLOCK */

/* Part s of an input that has one for each step. */
static val record_slice(prog *p, val v, int64_t s) {
    if (v == VAL_NONE) return VAL_NONE;
    prog_val x = p->val[v];
    size_t bytes = val_bytes(&x) / (size_t)x.dim[0];
    return val_alias(p, v, (size_t)s * bytes, x.dt, x.ndim - 1, x.dim + 1, x.pl);
}

/* Attends to the keys of one block after another; with axes, they are those of the ranks before this one. */
static val record_blocks(prog *p, val qkv, axis_set axes, int64_t blocks, ring_inputs in,
                         head_shape h) {
    enum { Q, KV };
    val parts[OP_MAX_OUT], out[OP_MAX_OUT] = { VAL_NONE, VAL_NONE };
    rec_request split = { OP_SPLIT_HEADS, { qkv } };
    if (!local_heads(p, OP_ATTENTION_BLOCK, qkv, h, &split.attr)) return VAL_NONE;
    op_attr attr = split.attr;
    attr.comm.axes = axes;
    if (!set_attention_dropout(p, qkv, in.id, h, &attr)) in.id = in.key_id = VAL_NONE;
    split.sizes.of['O'] = (int64_t)attr.heads.q * h.dim;
    split.sizes.of['B'] = 2 * (int64_t)attr.heads.kv * h.dim;
    rec_op(p, &split, parts);
    dtype dt = p->dt;
    p->dt = DT_F32; /* partial results */
    val kv = parts[KV];
    for (int64_t s = 0; s < blocks && !p->error; s++) {
        bool last = s == blocks - 1;
        val next = axes && !last ? emit_shift(p, kv, axes, 1) : kv;
        rec_request r = { OP_ATTENTION_BLOCK,
                          { out[OUT], parts[Q], kv, record_slice(p, in.range, s), in.id,
                            record_slice(p, in.key_id, s), out[LSE], last ? in.sink : VAL_NONE },
                          attr };
        r.attr.heads.sinks = r.in[BLOCK_SINK] != VAL_NONE;
        r.sizes.of['H'] = attr.heads.q;
        rec_op(p, &r, out);
        kv = next;
    }
    p->dt = dt;
    return p->error ? VAL_NONE : val_as(p, out[OUT], p->val[qkv].dt);
}

val rec_ring_attention_(prog *p, val qkv, axis_set axes, ring_inputs in, head_shape h) {
    return record_blocks(p, qkv, axes, mesh_span(&p->m, axes), in, h);
}

val rec_ranges_attention_(prog *p, val qkv, val ranges, val sink, head_shape h) {
    BUG_IF(p->mode != PROG_EVAL || h.window);
    if (p->error) return VAL_NONE;
    return record_blocks(p, qkv, 0, p->val[ranges].dim[0],
                         (ring_inputs){ ranges, VAL_NONE, VAL_NONE, sink }, h);
}

/* A gradient's value, in fp32: it is summed over the steps. */
static val new_sum(prog *p, val of) {
    prog_val v = p->val[of];
    return val_new(p, VC_TEMP, DT_F32, v.ndim, v.dim, placement_dual(v.pl));
}

/* The op of each step, from the last one back. @return how many. */
static int block_ops(const prog *p, const prog_op *last, prog_op *steps, int most) {
    int n = 0;
    for (prog_op o = *last;; o = p->fwd.op[p->val[o.in[BLOCK_BEFORE]].producer]) {
        BUG_IF(n == most);
        steps[n++] = o;
        if (o.in[BLOCK_BEFORE] == VAL_NONE) break;
    }
    for (int i = 0; i < n / 2; i++) {
        prog_op swap = steps[i];
        steps[i] = steps[n - 1 - i];
        steps[n - 1 - i] = swap;
    }
    return n;
}

blocks_grad rec_blocks_backward(prog *p, const prog_op *last, val dout) {
    axis_set axes = last->attr.comm.axes;
    int ranks = mesh_span(&p->m, axes);
    prog_op *step = mem_alloc((size_t)ranks * sizeof *step);
    BUG_IF(block_ops(p, last, step, ranks) != ranks);
    blocks_grad g = { last->in[BLOCK_Q], step[0].in[BLOCK_KV], new_sum(p, last->in[BLOCK_Q]),
                      VAL_NONE };
    val kv = g.kv;
    for (int s = 0; s < ranks; s++) {
        val next = s == ranks - 1 ? VAL_NONE : emit_shift(p, kv, axes, 1);
        val came = s == 0 ? VAL_NONE : emit_shift(p, g.dkv, axes, 1), own = new_sum(p, g.kv);
        prog_op *o = op_emit(p, op_row_of(last->op)->bwd_op[0]);
        o->in[BLOCK_BWD_DO] = dout;
        o->in[BLOCK_BWD_Q] = g.q;
        o->in[BLOCK_BWD_KV] = kv;
        o->in[BLOCK_BWD_O] = last->out[OUT];
        o->in[BLOCK_BWD_LSE] = last->out[LSE];
        o->in[BLOCK_BWD_RANGE] = step[s].in[BLOCK_RANGE];
        o->in[BLOCK_BWD_ID] = last->in[BLOCK_ID];
        o->in[BLOCK_BWD_KEY_ID] = step[s].in[BLOCK_KEY_ID];
        o->out[0] = g.dq;
        o->out[1] = own;
        o->acc = s ? ACC_ADD : ACC_STORE;
        o->attr = last->attr;
        g.dkv = s ? emit_add(p, came, own, p->val[came].dt) : own;
        kv = next;
    }
    if (ranks > 1) g.dkv = emit_shift(p, g.dkv, axes, 1);
    if (last->in[BLOCK_SINK] != VAL_NONE && p->val[last->in[BLOCK_SINK]].needs_grad) {
        op_acc acc = ACC_STORE;
        val dsink = param_grad(p, last->in[BLOCK_SINK], &acc);
        prog_op *o = op_emit_on(p, OP_ATTENTION_SINK_BWD, dout, last->out[OUT], dsink);
        o->in[2] = last->out[LSE];
        o->in[3] = last->in[BLOCK_SINK];
        o->acc = acc;
        o->attr = last->attr;
    }
    free(step);
    return g;
}
