/* Recording of latent attention: keys and values are projected from one small vector per token. Ranks along tp have
 * heads of their own and all of the latent vectors; training expands these to q|k|v, which attention reads as any other,
 * and generation caches them as they are. */
#include "prog_internal.h"

static int latent_heads(prog *p, val x, int heads) {
    return own_heads(p, x, heads, "latent attention",
                     "use a tensor_parallel_degree that divides the heads");
}

val rec_rope_heads_(prog *p, val x, val pos, val table, int heads, head_shape h) {
    rec_request r = { OP_ROPE, { x, pos, table } };
    r.attr.heads.q = latent_heads(p, x, heads);
    if (!r.attr.heads.q) return VAL_NONE;
    r.attr.heads.dim = (int)(p->val[x].dim[1] / r.attr.heads.q);
    r.attr.heads.rot = h.rot;
    r.sizes.of['T'] = h.rot;
    return rec_first(p, r);
}

val rec_latent_qkv_(prog *p, val q, val kv, val rot, head_shape h) {
    rec_request r = { OP_LATENT_QKV, { q, kv, rot } };
    r.attr.heads.q = latent_heads(p, q, h.q);
    if (!r.attr.heads.q) return VAL_NONE;
    r.sizes.of['C'] = 3 * (int64_t)r.attr.heads.q * h.dim;
    val qkv = rec_first(p, r);
    if (qkv != VAL_NONE) p->val[qkv].segments[1] = 3; /* each with a rank's heads */
    return qkv;
}

val rec_head_values_(prog *p, val o, int64_t value, head_shape h) {
    if (value == h.dim) return o;
    rec_request r = { OP_HEAD_VALUES, { o } };
    r.attr.heads.q = latent_heads(p, o, h.q);
    if (!r.attr.heads.q) return VAL_NONE;
    r.sizes.of['O'] = r.attr.heads.q * value;
    return rec_first(p, r);
}

val_pair rec_split_columns_(prog *p, val x, int64_t left) {
    val out[OP_MAX_OUT];
    rec_request r = { OP_SPLIT_HEADS, { x } };
    if (p->error || x == VAL_NONE) return (val_pair){ VAL_NONE, VAL_NONE };
    r.sizes.of['O'] = left;
    r.sizes.of['B'] = p->val[x].dim[1] - left;
    rec_op(p, &r, out);
    return (val_pair){ out[0], out[1] };
}

val rec_latent_cached_(prog *p, latent_tokens t, val cache, val pos, val start, int64_t value,
                       head_shape h) {
    rec_request r = { OP_LATENT_CACHED, { t.q, t.c, t.rot, t.w, cache, pos, start } };
    r.attr.heads.q = latent_heads(p, t.q, h.q);
    if (!r.attr.heads.q) return VAL_NONE;
    r.attr.heads.window = h.window;
    r.attr.heads.seq = h.seq;
    r.attr.heads.documents = h.documents;
    r.attr.heads.scale = h.scale;
    r.attr.heads.cap = h.cap;
    r.sizes.of['O'] = r.attr.heads.q * value;
    return rec_first(p, r);
}
