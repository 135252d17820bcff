/* Recording of gated DeltaNet. Ranks along tp have heads of their own, of keys with the heads of values that belong to them. */
#include "prog_internal.h"

static int delta_heads(prog *p, val x, int heads) {
    return own_heads(p, x, heads, "gated DeltaNet",
                     "use a tensor_parallel_degree that divides the heads of keys");
}

static val rec_rule(prog *p, rec_request r, delta_spec h) {
    r.attr.heads.q = delta_heads(p, r.in[0], h.keys);
    if (!r.attr.heads.q) return VAL_NONE;
    r.attr.heads.seq = h.seq;
    r.sizes.of['O'] = r.attr.heads.q * (h.values / h.keys) * h.value_dim;
    return rec_first(p, r);
}

val rec_delta_rule_(prog *p, val qkv, val gate, val start, delta_spec h) {
    return rec_rule(p, (rec_request){ OP_DELTA_RULE, { qkv, gate, start } }, h);
}

val rec_delta_cached_(prog *p, val qkv, val gate, val state, val pos, val start, delta_spec h) {
    return rec_rule(p, (rec_request){ OP_DELTA_CACHED, { qkv, gate, state, pos, start } }, h);
}

val rec_gated_norm_(prog *p, val x, val z, val w, delta_spec h, float eps) {
    rec_request r = { OP_GATED_NORM, { x, z, w } };
    r.attr.eps = eps;
    r.sizes.of['H'] = delta_heads(p, x, h.values);
    return r.sizes.of['H'] ? rec_first(p, r) : VAL_NONE;
}
