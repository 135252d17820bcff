/* Expert parallelism: rows of a rank's tokens go to the ranks that have their experts, and back.
 *
 * Padded to a capacity all parts are equal: rows are [experts, rows of each, width], sharded along the second
 * dim before, by sequence, and along the first after.
 *
 * Else parts are as large as it happens: ranks tell each other how many rows come for each expert, an
 * all-to-all moves as many, and what came is put in the order of the experts:
 *
 *     rank 0   | e0 e0 | e1 | e2 e3 |    counts         | e0 e0 e1 | e0 e1 e1 |    | e0 e0 e0 | e1 e1 e1 |
 *     rank 1   | e0 | e1 e1 | e2 e2 |  ----------->     from rank 0  from rank 1
 *
 * Memory is for the most that can come: every token of every rank chooses as many of this rank's experts as it
 * can. */
#include "prog_internal.h"

#include <string.h>

/* ---- equal parts --------------------------------------------------------------------------- */
static val exchange_padded(prog *p, val x, int experts, bool to_experts) {
    int groups = to_experts ? experts * mesh_size(&p->m, AX_EP) : experts;
    if (p->error || x == VAL_NONE) return VAL_NONE;
    prog_val *v = &p->val[x];
    BUG_IF(v->ndim != 2 || v->dim[0] % groups);
    v->ndim = 3;
    v->dim[2] = v->dim[1];
    v->dim[1] = v->dim[0] / groups;
    v->dim[0] = groups;
    v->pl.on[AX_EP] = PLACE_S(to_experts ? 1 : 0);
    return rec_comm_(p, x, AX_EP, PLACE_S(to_experts ? 0 : 1));
}

/* ---- parts by count ------------------------------------------------------------------------- */
/* How many rows of each rank come for each of this rank's experts. */
static val exchange_counts(prog *p, val sent) {
    if (p->error) return VAL_NONE;
    placement pl =
        p->val[sent].pl; /* a column for each rank; the experts' rows are spread over them */
    pl.on[AX_EP] = PLACE_S(1);
    val columns = val_alias(p, sent, 0, DT_I32, 2, p->val[sent].dim, pl);
    return rec_comm_(p, columns, AX_EP, PLACE_S(0));
}

/* The most rows that can come: of each token at most as many as this rank has experts. */
static int64_t most_rows(const prog *p, routing to, int experts) {
    const prog_val *row = &p->val[to.row];
    return mesh_size(&p->m, AX_EP) * row->dim[0] * MIN(row->dim[1], (int64_t)experts);
}

expert_rows rec_to_experts_(prog *p, val x, routing to, int experts) {
    enum { ROWS, OFFSET };
    expert_rows r = { x, to.offset, VAL_NONE, VAL_NONE, { 0 }, experts };
    if (p->error || x == VAL_NONE || mesh_size(&p->m, AX_EP) == 1) return r;
    if (to.padded) {
        r.rows = exchange_padded(p, x, experts, true);
        r.offset = VAL_NONE;
        return r;
    }
    memcpy(r.home, p->val[x].dim, sizeof r.home);
    int64_t most = most_rows(p, to, experts);
    if (most > INT32_MAX / 2) {
        prog_fail(p, "lower training.local_batch_size",
                  "up to %lld rows could come to the experts of one rank", (long long)most);
        return r;
    }
    rec_request count = { OP_EXPERT_ROWS, { to.offset } };
    count.sizes.of['E'] = experts * mesh_size(&p->m, AX_EP);
    count.sizes.of['J'] = 1;
    r.sent = rec_first(p, count);
    r.came = exchange_counts(p, r.sent);
    if (p->error) return r;
    rec_request group = { OP_GROUP_ROWS, { emit_rows(p, x, r.sent, r.came, most), r.came } };
    group.sizes.of['O'] = experts + 1;
    val out[OP_MAX_OUT];
    rec_op(p, &group, out);
    r.rows = out[ROWS];
    r.offset = out[OFFSET];
    return r;
}

val rec_from_experts_(prog *p, val x, const expert_rows *from) {
    if (p->error || x == VAL_NONE || mesh_size(&p->m, AX_EP) == 1) return x;
    if (from->sent == VAL_NONE) return exchange_padded(p, x, from->experts, false);
    val apart = rec_first(p, (rec_request){ OP_UNGROUP_ROWS, { x, from->came } });
    return p->error ? VAL_NONE : emit_rows(p, apart, from->came, from->sent, from->home[0]);
}
