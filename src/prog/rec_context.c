/* Context parallelism: attention where ranks along an axis have tokens of their own of every sequence.
 *
 * All-to-all (Ulysses): before attention ranks exchange tokens for heads, and after it heads for tokens.
 * A rank's rows are [sequence, token of its shard]; what it receives is [rank, sequence, token], and
 * attention reads [sequence, rank, token]: the order of the batch. */
#include "prog_internal.h"

/* Sequences in the batch. @param n tokens of a rank */
static int sequences(const prog *p, int64_t n, mesh_axis axis, head_shape h) {
    int64_t all = n * mesh_size(&p->m, axis);
    BUG_IF(h.seq < 1 || all % h.seq); /* the model has checked it */
    return (int)(all / h.seq);
}

static val swap_rows(prog *p, val x, int outer, int inner) {
    if (outer == 1 || inner == 1) return x;
    return rec_first(
        p, (rec_request){ OP_SWAP_ROWS, { x }, { .reorder = { .outer = outer, .inner = inner } } });
}

val rec_tokens_to_heads_(prog *p, val qkv, mesh_axis axis, head_shape h) {
    int ranks = mesh_size(&p->m, axis);
    rec_request r = { OP_GROUP_HEADS, { qkv }, { .reorder.parts = ranks } };
    if (ranks == 1 || !local_heads(p, r.op, qkv, h, &r.attr)) return p->error ? VAL_NONE : qkv;
    if (r.attr.heads.q % ranks || r.attr.heads.kv % ranks) {
        prog_fail(p, "use a degree that divides them, or ring attention",
                  "%s: %d query and %d key/value heads do not divide over %d ranks of %s",
                  op_name(r.op), r.attr.heads.q, r.attr.heads.kv, ranks, mesh_axis_name[axis]);
        return VAL_NONE;
    }
    int rows = sequences(p, p->val[qkv].dim[0], axis, h);
    r.sizes.of['G'] = p->val[qkv].dim[1];
    val grouped = rec_first(p, r);
    if (p->error) return VAL_NONE;
    return swap_rows(p, emit_comm(p, grouped, AXIS(axis), PLACE_S(1), WHEN_ALWAYS), ranks, rows);
}

val rec_heads_to_tokens_(prog *p, val o, mesh_axis axis, head_shape h) {
    int ranks = mesh_size(&p->m, axis);
    if (p->error || ranks == 1) return p->error ? VAL_NONE : o;
    int rows = sequences(p, p->val[o].dim[0] / ranks, axis, h);
    val by_rank = swap_rows(p, o, rows, ranks);
    return p->error ? VAL_NONE : emit_comm(p, by_rank, AXIS(axis), PLACE_S(0), WHEN_ALWAYS);
}
