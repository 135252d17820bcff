/* The forward pass of every family, written once against the record calls. Placements state where
 * tensor, sequence and context parallelism communicate; on one rank they record nothing.
 *
 *   norm before the branch      norm on its output (OLMo-2)     branches in parallel (NeoX)
 *   r = x + delta               r = x + delta                   r = x + delta
 *   d = attn(norm1 r)           d = norm1 attn(r)               d = attn(norm1 r) + mlp(norm2 r)
 *   r2 = r + d                  r2 = r + d
 *   out r2, mlp(norm2 r2)       out r2, norm2 mlp(r2)           out r, d
 *
 * With norms on both sides (Gemma) a branch is attn.norm attn(norm1 r). Branches in parallel may share norm1 (Cohere).
 */
#include "model_internal.h"

#include <math.h>
#include <string.h>

#include "ops/op_table.h"

typedef struct builder {
    const model *m;
    const model_config *c;
    prog *p;
    prog_mode mode;
    int block_kind;                  /* as in prog_options */
    int64_t n, positions, sequences; /* sequences: of a cache */
    int64_t length;                  /* of the sequences; 0: all positions */
    bool shares;                     /* prefixes: attention to several ranges */
    placement residual;              /* how the residual lies */
} builder;

/* Values that programs leave for later ones: the embedding, and the residual after the middle block. */
enum { CARRY_EMBED, CARRY_MIDDLE };

/* Dropouts of a program draw different masks. */
enum { SITE_BRANCH, SITE_SECOND_BRANCH, SITE_EMBED, SITE_ATTENTION };

static const char *type_of_module[] = { "embed", "attn", "mlp", "head" };
enum { M_EMBED, M_ATTN, M_MLP, M_HEAD };

static dtype enter_module(builder *b, int module) {
    dtype dt = DT_F32;
    err e = module_dtype(&b->m->l, type_of_module[module], &dt);
    BUG_IF(e); /* model_new has checked the overrides */
    prog_compute_in(b->p, dt);
    return dt;
}

/* The axes over which the tokens of a sequence are sharded, of these. */
static axis_set residual_token_axes(const builder *b, axis_set of) {
    return placement_axes(b->residual, PL_S) & mesh_axes(&b->m->l.mesh) & of;
}

/* A fact about tokens, sharded as the residual is over these axes. */
enum { WHOLE = 0, AS_RESIDUAL = AXIS(AX_CP) | AXIS(AX_TP), AS_HEADS = AXIS(AX_CP) };
static val token_input(builder *b, token_fact fact, dtype dt, axis_set over) {
    placement pl = b->residual;
    axis_set shared = residual_token_axes(b, over);
    for (int a = 0; a < AX_COUNT; a++)
        if (!(AXIS(a) & (shared | AXES_ROWS))) pl.on[a] = PLACE_I;
    int64_t n = b->n / mesh_span(&b->m->l.mesh, shared);
    return prog_input(b->p, token_input_name(fact, shared), dt, 1, &n, pl);
}

static bool has_param(const builder *b, const char *param) {
    for (int i = 0; i < b->m->fuseds; i++) {
        int kind = b->m->fused[i].block_kind;
        if (!strcmp(b->m->fused[i].name, param) && (!kind || kind == b->block_kind)) return true;
    }
    return false;
}
#define USE_IF(b, name, x)      (has_param(b, name) ? prog_use((b)->p, name, x) : VAL_NONE)
#define USE_ONCE_IF(b, name, x) (has_param(b, name) ? prog_use_once((b)->p, name, x) : VAL_NONE)

static const mix_spec NO_MIX = { VAL_NONE, VAL_NONE, VAL_NONE };
/* A norm computes in the type of the module it belongs to, so that what crosses tp has that type. */
static norm_out norm(builder *b, int module, residual_state s, mix_spec mix, const char *w,
                     const char *bias) {
    CHOICE_DECIDED(norm_kind, 2);
    enter_module(b, module);
    val weight = USE_IF(b, w, s.residual), shift = USE_IF(b, bias, s.residual);
    return rec_mix_norm(
        b->p, s, mix, (norm_spec){ b->c->norm == NORM_RMS, weight, shift, (float)b->c->norm_eps });
}

/* Marks a block's linear layer, just recorded, for fp8 as the layout states. Generation reads the
 * weights as they are. */
static val linear(builder *b, block_linear which, val y) {
    if (b->mode != PROG_DECODE) prog_fp8(b->p, y, linear_recipe(&b->m->l, which), which);
    return y;
}

static head_shape shape_of_heads(const builder *b) {
    double hd = (double)b->c->head_dim, sharper = b->c->qknorm ? b->c->qk_scale : 1;
    /* µP: 1/d, equal to 1/sqrt(d) at head size 64 */
    double scale = b->c->mup ? 8 / hd : 1 / sqrt(hd);
    if (b->c->attention_scale != 0) scale = b->c->attention_scale;
    if (b->c->pos == POS_ROPE && b->c->rope_scaling != ROPE_PLAIN) {
        double longer = 0.1 * b->c->rope_mscale * log(b->c->rope_factor) + 1;
        scale *= longer * longer;
    }
    return (head_shape){ .q = b->c->heads,
                         .kv = b->c->kv_heads,
                         .dim = (int)MAX(b->c->head_dim, model_value_dim(b->c)),
                         .rot = (int)rope_dims(b->c),
                         .window = b->c->chunked ? 0 : (int)b->c->window,
                         .chunk = b->c->chunked ? (int)b->c->window : 0,
                         .temper = (float)b->c->temperature,
                         .temper_floor = (float)b->c->temperature_floor,
                         .seq = (int)b->m->l.seq,
                         /* held-out texts and questions share rows, whatever training does */
                         .documents = b->m->l.documents || b->mode == PROG_EVAL || b->c->chunked,
                         .scale = (float)(scale * sharper * sharper),
                         .cap = (float)b->c->attention_softcap,
                         .norm_full = b->c->qknorm == QKNORM_FULL,
                         .dropout = { (float)b->c->attn_dropout, SITE_ATTENTION } };
}

/* Ring-attention inputs: the key range visible from each source rank, and the keys' token ids. */
static ring_inputs ring_inputs_of(builder *b, val qkv, bool drop) {
    int64_t ranks = mesh_size(&b->m->l.mesh, AX_CP), n = b->n / ranks;
    placement pl = placement_on(residual_token_axes(b, AS_HEADS | AXES_ROWS), PLACE_S(2));
    placement of_keys = placement_on(residual_token_axes(b, AXES_ROWS), PLACE_S(1));
    int64_t ranges[] = { ranks, 2, n }, keys[] = { ranks, n };
    return (ring_inputs){
        prog_input(b->p, ring_range_name(b->c->window), DT_I32, 3, ranges, pl),
        drop ? token_input(b, TOKEN_IDS, DT_I64, AS_HEADS) : VAL_NONE,
        drop ? prog_input(b->p, "ring_ids", DT_I64, 2, keys, of_keys) : VAL_NONE,
        USE_IF(b, "attn.sinks", qkv),
    };
}

/* Attention among all tokens of a sequence, of which context-parallel ranks have their own. */
static val attend(builder *b, val qkv, head_shape h) {
    prog *p = b->p;
    bool drop = b->c->attn_dropout > 0 && b->mode == PROG_TRAIN;
    CHOICE_DECIDED(context_mode, 2);
    if (residual_token_axes(b, AS_HEADS) && b->m->l.context == CONTEXT_RING)
        return rec_ring_attention(p, qkv, AXIS(AX_CP), ring_inputs_of(b, qkv, drop), h);
    if (b->shares) {
        int64_t dim[] = { MODEL_RANGES, 2, b->n };
        val ranges = prog_input(p, "ranges", DT_I32, 3, dim, (placement){ 0 });
        return rec_ranges_attention(p, qkv, ranges, USE_IF(b, "attn.sinks", qkv), h);
    }
    qkv = rec_tokens_to_heads(p, qkv, AXIS(AX_CP), h);
    val start = token_input(b, h.chunk ? TOKEN_CHUNK : TOKEN_START, DT_I32, WHOLE);
    val id = drop ? token_input(b, TOKEN_IDS, DT_I64, WHOLE) : VAL_NONE;
    head_shape whole = h; /* an evaluation's sequences may be longer than those that ranks divide */
    if (h.seq) whole.seq = (int)b->positions;
    val sink = USE_IF(b, "attn.sinks", qkv);
    return rec_heads_to_tokens(p, rec_attention(p, qkv, start, id, sink, whole), AXIS(AX_CP), h);
}

static val qkv_layer(builder *b, val x) {
    val w = prog_use(b->p, "attn.qkv", x), bias = USE_IF(b, "attn.qkv.b", x);
    return linear(b, LINEAR_QKV, rec_linear(b->p, x, w, bias));
}

static val output_projection(builder *b, val o) {
    val w = prog_use(b->p, "attn.o", o), bias = USE_ONCE_IF(b, "attn.o.b", o);
    return linear(b, LINEAR_O, rec_linear(b->p, o, w, bias));
}

/* Adds the values of the tokens themselves. @param x what qkv was computed from */
static val with_own_values(builder *b, val qkv, val x, head_shape h) {
    val tok = token_input(b, TOKEN_TOKENS, DT_I32, AS_HEADS);
    val ve = rec_embed(b->p, tok, prog_use(b->p, "attn.values", tok));
    return rec_add_values(b->p, qkv, ve, x, prog_use(b->p, "attn.values.gate", x), h);
}

/* The table of rotations. */
static val rope_table(builder *b, head_shape h) {
    int64_t dim[] = { b->positions, h.rot };
    int64_t length = b->length ? b->length : b->positions;
    return prog_input_shared(b->p, rope_input_name(b->c, length), dim);
}

/* Normalizes and rotates queries and keys, as the model states. */
static val position_heads(builder *b, val qkv, val pos, head_shape h) {
    bool rotates = b->c->pos == POS_ROPE;
    if (b->c->qknorm == QKNORM_NONE)
        return rotates ? rec_rope(b->p, qkv, pos, rope_table(b, h), h) : qkv;
    qk_norms n = { USE_IF(b, "attn.qnorm", qkv), USE_IF(b, "attn.knorm", qkv),
                   (float)b->c->norm_eps };
    if (!rotates) return rec_qknorm(b->p, qkv, n.wq, n.wk, h, n.eps);
    return rec_qknorm_rope(b->p, qkv, n, pos, rope_table(b, h), h);
}

static val norm_latent(builder *b, val x, const char *w) {
    norm_spec s = { true, USE_IF(b, w, x), VAL_NONE, (float)b->c->latent_eps };
    return rec_norm(b->p, (residual_state){ x, VAL_NONE }, s).y;
}

/* Heads are projected from these. Latent vectors are computed from a rank's own tokens, and gathered: they are smaller
 * than the residual. */
static latent_tokens latent_of(builder *b, val x, head_shape h) {
    prog *p = b->p;
    latent_tokens t;
    val a = rec_linear(p, x, prog_use(p, "attn.a", x), USE_IF(b, "attn.a.b", x));
    if (b->c->q_latent) {
        val_pair parts = rec_split_columns(p, a, b->c->q_latent);
        val q = rec_comm(p, norm_latent(b, parts.left, "attn.q_a.norm"), AXIS(AX_TP), PLACE_R);
        t.q = linear(b, LINEAR_QKV, rec_linear(p, q, prog_use(p, "attn.q_b", q), VAL_NONE));
        a = parts.right;
    } else {
        t.q = qkv_layer(b, rec_comm(p, x, AXIS(AX_TP), PLACE_R));
    }
    val_pair parts = rec_split_columns(p, a, h.rot);
    t.rot = rec_comm(p, parts.left, AXIS(AX_TP), PLACE_R);
    t.c = rec_comm(p, norm_latent(b, parts.right, "attn.kv_a.norm"), AXIS(AX_TP), PLACE_R);
    t.w = prog_use(p, "attn.kv_b", t.c);
    return t;
}

/* Attention whose keys and values are projected from a latent vector: expanded in training, and in generation as
 * they are. */
static val latent_attention(builder *b, val x, head_shape h, dtype dt) {
    prog *p = b->p;
    latent_tokens t = latent_of(b, x, h);
    int64_t value = model_value_dim(b->c);
    val pos = token_input(b, TOKEN_POS, DT_I32, AS_HEADS);
    if (b->c->pos == POS_ROPE) {
        t.q = rec_rope_heads(p, t.q, pos, rope_table(b, h), h.q, h);
        t.rot = rec_rope_heads(p, t.rot, pos, rope_table(b, h), 1, h);
    }
    if (b->mode == PROG_DECODE) {
        int64_t dim[] = { b->sequences * b->positions, b->c->kv_latent + h.rot };
        val cache = prog_input_per_layer(p, "cache", dt, dim, (placement){ 0 });
        val start = token_input(b, TOKEN_START, DT_I32, WHOLE);
        return rec_latent_cached(p, t, cache, pos, start, value, h);
    }
    val kv = rec_linear(p, t.c, t.w, VAL_NONE);
    return rec_head_values(p, attend(b, rec_latent_qkv(p, t.q, kv, t.rot, h), h), value, h);
}

/* @return the branch's output, a partial sum over tp. */
static val attention(builder *b, val x) {
    prog *p = b->p;
    head_shape h = shape_of_heads(b);
    dtype dt = enter_module(b, M_ATTN);
    if (b->c->kv_latent) return output_projection(b, latent_attention(b, x, h, dt));
    val all = rec_comm(p, x, AXIS(AX_TP), PLACE_R), qkv = qkv_layer(b, all);
    CHOICE_DECIDED(qknorm_kind, 3);
    CHOICE_DECIDED(pos_kind, 4);
    /* before the others: it changes v alone, so that what they save need not be copied for it */
    if (b->c->value_step) qkv = with_own_values(b, qkv, all, h);
    val pos = token_input(b, TOKEN_POS, DT_I32, AS_HEADS);
    qkv = position_heads(b, qkv, pos, h);
    if (b->c->pos == POS_NONE && b->c->temperature > 0) qkv = rec_scale_queries(p, qkv, pos, h);
    if (b->c->pos == POS_ALIBI) qkv = rec_alibi(p, qkv, pos, (float)b->c->alibi_max, &h);
    val o;
    if (b->mode == PROG_DECODE) {
        int64_t dim[] = { b->sequences * b->positions,
                          2 * local_kv_heads(b->c, &b->m->l.mesh) * h.dim };
        val cache =
            prog_input_per_layer(p, "cache", dt, dim, placement_on(AXIS(AX_TP), PLACE_S(1)));
        val start = token_input(b, TOKEN_START, DT_I32, WHOLE);
        o = rec_attention_cached(p, qkv, cache, pos, start, USE_IF(b, "attn.sinks", qkv), h);
    } else {
        o = attend(b, qkv, h);
    }
    o = rec_head_values(p, o, model_value_dim(b->c), h);
    if (has_param(b, "attn.gate")) {
        val w = prog_use(p, "attn.gate", all), bias = USE_IF(b, "attn.gate.b", all);
        val gate = linear(b, LINEAR_GATE, rec_linear(p, all, w, bias));
        o = rec(p, OP_SIGMOID_GATE, { o, gate });
    }
    return output_projection(b, o);
}

/* The states of a gated DeltaNet layer, in generation: a row per sequence, of a rank's own heads. */
static val delta_state(builder *b, const char *name, int64_t cols) {
    int64_t dim[] = { b->sequences, cols / mesh_size(&b->m->l.mesh, AX_TP) };
    return prog_input_per_layer(b->p, name, DT_F32, dim, placement_on(AXIS(AX_TP), PLACE_S(1)));
}

/* Gated DeltaNet: a state per head in place of keys that are kept. @return a partial sum over tp */
static val delta_net(builder *b, val x) {
    const model_config *c = b->c;
    prog *p = b->p;
    enter_module(b, M_ATTN);
    bool decodes = b->mode == PROG_DECODE;
    delta_spec h = { .keys = c->delta_keys,
                     .values = c->delta_values,
                     .value_dim = c->delta_value_dim };
    h.seq = (int)(decodes || b->m->l.seq ? b->positions : 0);
    val all = rec_comm(p, x, AXIS(AX_TP), PLACE_R);
    val qkv = linear(b, LINEAR_QKV, rec_linear(p, all, prog_use(p, "delta.qkv", all), VAL_NONE));
    val z = linear(b, LINEAR_GATE, rec_linear(p, all, prog_use(p, "delta.z", all), VAL_NONE));
    val ba = rec_linear(p, all, prog_use(p, "delta.ba", all), VAL_NONE);
    val gate = rec(p, OP_DELTA_GATES,
                   { ba, prog_use(p, "delta.rate", ba), prog_use(p, "delta.shift", ba) });
    val w = prog_use(p, "delta.conv", qkv), start = token_input(b, TOKEN_START, DT_I32, WHOLE), o;
    if (decodes) {
        int64_t values = c->delta_values * c->delta_value_dim, kept = c->delta_conv - 1;
        int64_t keys = c->delta_keys * c->delta_key_dim;
        val pos = token_input(b, TOKEN_POS, DT_I32, WHOLE);
        val last = delta_state(b, "delta_conv", kept * (2 * keys + values));
        val state = delta_state(b, "delta_state", values * c->delta_key_dim);
        qkv = rec(p, OP_SHORT_CONV_CACHED, { qkv, w, last, pos, start }, { .heads.seq = h.seq });
        o = rec_delta_cached(p, qkv, gate, state, pos, start, h);
    } else {
        qkv = rec(p, OP_SHORT_CONV, { qkv, w, start });
        o = rec_delta_rule(p, qkv, gate, start, h);
    }
    o = rec_gated_norm(p, o, z, USE_IF(b, "delta.norm", o), h, (float)c->norm_eps);
    return linear(b, LINEAR_O, rec_linear(p, o, prog_use(p, "delta.o", o), VAL_NONE));
}

/* The branch that mixes tokens. */
static val first_branch(builder *b, val x) {
    return b->c->delta_keys ? delta_net(b, x) : attention(b, x);
}

/* Activates gate|up; VAL_NONE where the activation has no gate. */
static val activate_gate(builder *b, val gu) {
    switch (b->c->mlp) {
    case MLP_SWIGLU: return rec(b->p, OP_SWIGLU, { gu });
    case MLP_GEGLU: return rec(b->p, OP_GEGLU, { gu }, { .act = ACT_GELU_TANH });
    case MLP_GEGLU_ERF: return rec(b->p, OP_GEGLU, { gu }, { .act = ACT_GELU_ERF });
    case MLP_SWIGLU_CLAMPED:
        return rec(b->p, OP_SWIGLU_CLAMPED, { gu },
                   { .clamp = { (float)b->c->swiglu_limit, (float)b->c->swiglu_alpha } });
    case MLP_GELU_TANH:
    case MLP_GELU_ERF:
    case MLP_RELU2: break;
    }
    return VAL_NONE;
}

/* @param x R over tp @return a partial sum over tp */
static val feed_forward(builder *b, val x) {
    prog *p = b->p;
    enter_module(b, M_MLP);
    val w = prog_use(p, "mlp.up", x), bias = USE_IF(b, "mlp.up.b", x), h = VAL_NONE;
    switch (b->c->mlp) {
    case MLP_SWIGLU:
    case MLP_GEGLU:
    case MLP_GEGLU_ERF:
    case MLP_SWIGLU_CLAMPED:
        h = activate_gate(b, linear(b, LINEAR_UP, rec_linear(p, x, w, bias)));
        break;
    case MLP_GELU_TANH:
        h = linear(b, LINEAR_UP, rec_linear_gelu(p, x, w, bias, ACT_GELU_TANH));
        break;
    case MLP_GELU_ERF:
        h = linear(b, LINEAR_UP, rec_linear_gelu(p, x, w, bias, ACT_GELU_ERF));
        break;
    case MLP_RELU2: h = linear(b, LINEAR_UP, rec_linear_gelu(p, x, w, bias, ACT_RELU2)); break;
    }
    w = prog_use(p, "mlp.down", h), bias = USE_ONCE_IF(b, "mlp.down.b", h);
    return linear(b, LINEAR_DOWN, rec_linear(p, h, w, bias));
}

/* The tokens of a sequence that one expert takes; 0: all. Only training drops tokens: a held-out loss and the
 * answer to a question must depend on neither the batch nor the text beside them. */
static int64_t expert_capacity(const builder *b) {
    const model_config *c = b->c;
    if (b->mode != PROG_TRAIN || c->capacity_factor == 0) return 0;
    double even = (double)b->positions * c->experts_per_token / c->experts;
    return MIN((int64_t)ceil(c->capacity_factor * even), b->positions);
}

/* Routes whole sequences, since capacity and balance are per sequence, on every tp rank alike. */
static routing route(builder *b, val x) {
    const model_config *c = b->c;
    prog *p = b->p;
    enter_module(b, M_MLP);
    prog_compute_in(p, DT_F32);
    val bias = USE_IF(b, "moe.router.b", x);
    val logits = rec_linear(p, x, prog_use(p, "moe.router", x), bias);
    logits = rec_comm(p, logits, AXIS(AX_TP), PLACE_I);
    CHOICE_DECIDED(router_kind, 2);
    route_spec s = { .sigmoid = c->router_score == ROUTER_SIGMOID,
                     .normalize = c->router_normalize,
                     .groups = c->groups,
                     .group_limit = c->group_limit,
                     .group_best = c->group_best,
                     .scale = (float)c->router_scale,
                     .k = c->experts_per_token,
                     .seq = b->positions,
                     .capacity = expert_capacity(b),
                     .balance = (float)c->balance_loss,
                     .z = (float)c->router_z_loss };
    return rec_route(p, logits, prog_use(p, "moe.bias", logits), s);
}

/* The experts that every token goes to. */
static val shared_experts(builder *b, val x) {
    val all = rec_comm(b->p, x, AXIS(AX_TP), PLACE_R), y = feed_forward(b, all);
    if (!b->c->shared_gate) return y;
    return rec(b->p, OP_GATE_ROWS, { y, all, prog_use(b->p, "moe.gate", all) });
}

/* Routed experts, each a gated feed-forward layer, and those that every token goes to. */
static val mixture(builder *b, val x) {
    prog *p = b->p;
    routing to = route(b, x);
    enter_module(b, M_MLP);
    val weight = rec_comm(p, to.weight, AXIS(AX_TP), PLACE_R);
    val h = rec_comm(p, x, AXIS(AX_TP), PLACE_R);
    h = b->c->scale_input ? rec(p, OP_DISPATCH_WEIGHTED, { h, weight, to.row, to.source })
                          : rec(p, OP_DISPATCH, { h, to.row, to.source });
    expert_rows at = rec_to_experts(p, h, to, b->m->experts);
    val w = prog_use(p, "expert.up", at.rows), bias = USE_IF(b, "expert.up.b", at.rows);
    h = activate_gate(b, rec_expert_linear(p, at.rows, w, bias, &at));
    w = prog_use(p, "expert.down", h), bias = USE_ONCE_IF(b, "expert.down.b", h);
    h = rec_expert_linear(p, h, w, bias, &at);
    h = rec_from_experts(p, h, &at);
    val y = b->c->scale_input ? rec(p, OP_COMBINE_SUM, { h, to.row, to.source })
                              : rec(p, OP_COMBINE, { h, weight, to.row, to.source });
    return b->c->shared_experts ? rec_add(p, y, shared_experts(b, x)) : y;
}

/* @return a partial sum over tp */
static val second_branch(builder *b, val x) {
    if (b->c->experts) return mixture(b, x);
    return feed_forward(b, rec_comm(b->p, x, AXIS(AX_TP), PLACE_R));
}

/* Sums a branch over tp into the residual's placement, where it is not yet, and scales it, with dropout. */
static val join_branch(builder *b, val partial, uint32_t site) {
    val d = rec_comm(b->p, partial, AXIS(AX_TP), b->residual.on[AX_TP]);
    if (b->c->residual_scale != 1) d = rec_scale(b->p, d, (float)b->c->residual_scale);
    if (b->c->dropout > 0)
        d = rec_dropout(b->p, d, token_input(b, TOKEN_IDS, DT_I64, AS_RESIDUAL),
                        (float)b->c->dropout, site);
    return d;
}

/* Normalizes a branch's output where norms are on both sides. */
static val norm_output(builder *b, int module, val d, const char *w, const char *bias) {
    if (b->c->norm_position != NORM_BOTH) return d;
    return norm(b, module, (residual_state){ d, VAL_NONE }, NO_MIX, w, bias).y;
}

/* Scales the residual, and adds a share of the embedding. */
static mix_spec with_embedding(builder *b, residual_state s) {
    if (!b->c->layer_scalars) return NO_MIX;
    val a = prog_use(b->p, "mix.residual", s.residual), e = prog_use(b->p, "mix.embed", s.residual);
    return (mix_spec){ prog_carry_in(b->p, CARRY_EMBED), a, e };
}

/* Adds a share of the residual after the middle block. */
static mix_spec with_middle(builder *b, residual_state s) {
    if (!b->c->backout) return NO_MIX;
    val share = prog_use(b->p, "mix.middle", s.residual);
    return (mix_spec){ prog_carry_in(b->p, CARRY_MIDDLE), VAL_NONE, share };
}

/* Leaves the residual for later programs too. */
static residual_state leave_residual(builder *b, residual_state s, int which) {
    val sum = rec_cast(b->p, rec_sum(b->p, s), b->m->l.residual);
    prog_carry_out(b->p, which, sum);
    return (residual_state){ sum, VAL_NONE };
}

static residual_state block(builder *b, residual_state s) {
    mix_spec mix = with_embedding(b, s);
    if (b->c->parallel) {
        norm_out n1 = norm(b, M_ATTN, s, mix, "norm1.w", "norm1.b");
        s = (residual_state){ n1.r, VAL_NONE };
        val second = b->c->shared_norm ? n1.y : norm(b, M_MLP, s, NO_MIX, "norm2.w", "norm2.b").y;
        val a = first_branch(b, n1.y), f = second_branch(b, second);
        if (!(b->c->dropout > 0) || b->mode != PROG_TRAIN) /* one sum over tp is enough */
            return (residual_state){ n1.r, join_branch(b, rec_add(b->p, a, f), SITE_BRANCH) };
        a = join_branch(b, a, SITE_BRANCH);
        f = join_branch(b, f, SITE_SECOND_BRANCH);
        return (residual_state){ n1.r, rec_add(b->p, a, f) };
    }
    CHOICE_DECIDED(norm_position_kind, 3);
    if (b->c->norm_position == NORM_POST) {
        val r = rec_mix(b->p, s, mix), d = join_branch(b, first_branch(b, r), SITE_BRANCH);
        residual_state branch = { d, VAL_NONE };
        s = (residual_state){ r, norm(b, M_ATTN, branch, NO_MIX, "norm1.w", "norm1.b").y };
        val r2 = rec_sum(b->p, s), d2 = join_branch(b, second_branch(b, r2), SITE_SECOND_BRANCH);
        branch.residual = d2;
        return (residual_state){ r2, norm(b, M_MLP, branch, NO_MIX, "norm2.w", "norm2.b").y };
    }
    norm_out n1 = norm(b, M_ATTN, s, mix, "norm1.w", "norm1.b");
    val d = join_branch(b, first_branch(b, n1.y), SITE_BRANCH);
    s = (residual_state){ n1.r, norm_output(b, M_ATTN, d, "attn.norm.w", "attn.norm.b") };
    norm_out n2 = norm(b, M_MLP, s, NO_MIX, "norm2.w", "norm2.b");
    val d2 = join_branch(b, second_branch(b, n2.y), SITE_SECOND_BRANCH);
    return (residual_state){ n2.r, norm_output(b, M_MLP, d2, "mlp.norm.w", "mlp.norm.b") };
}

static val norm_embedding(builder *b, residual_state s) {
    norm_spec plain = { b->c->norm == NORM_RMS, VAL_NONE, VAL_NONE, (float)b->c->norm_eps };
    prog_compute_in(b->p, b->m->l.residual);
    return rec_norm(b->p, s, plain).y;
}

/* Reads rows of the token table, and normalizes them unless positions are to be added first. */
static val embed_tokens(builder *b, token_fact which) {
    prog *p = b->p;
    enter_module(b, M_EMBED);
    val tok = token_input(b, which, DT_I32, AS_HEADS);
    prog_compute_in(p, b->m->l.residual);
    val x = rec_embed(p, tok, prog_use(p, "embed.tokens", tok)); /* a partial sum over tp */
    x = rec_comm(p, x, AXIS(AX_TP), b->residual.on[AX_TP]);
    if (b->c->embedding_scale != 1) x = rec_scale(p, x, (float)b->c->embedding_scale);
    bool norm = b->c->embedding_norm && b->c->pos != POS_LEARNED;
    return norm ? norm_embedding(b, (residual_state){ x, VAL_NONE }) : x;
}

/* Adds a share of the previous token's embedding. Where the row before is not that token's, or another rank has it, the
 * embedding of previous tokens is computed too. */
static val with_previous(builder *b, val x) {
    bool in_order = b->mode != PROG_DECODE && !b->shares && !residual_token_axes(b, AS_RESIDUAL);
    val prev = in_order ? VAL_NONE : embed_tokens(b, TOKEN_PREVIOUS);
    val gate = prog_use(b->p, "smear.gate", x), factor = prog_use(b->p, "smear.factor", x);
    val pos = token_input(b, TOKEN_POS, DT_I32, AS_RESIDUAL);
    return rec(b->p, OP_SMEAR, { x, prev, pos, gate, factor });
}

static residual_state embed(builder *b) {
    prog *p = b->p;
    val x = embed_tokens(b, TOKEN_TOKENS), delta = VAL_NONE;
    if (b->c->smear) x = with_previous(b, x);
    if (b->c->pos == POS_LEARNED) {
        val pos = token_input(b, TOKEN_POS, DT_I32, AS_RESIDUAL);
        prog_compute_in(p, b->m->l.dt);
        delta = rec_embed(p, pos, prog_use(p, "embed.positions", pos));
        if (b->c->embedding_norm) {
            x = norm_embedding(b, (residual_state){ x, delta });
            delta = VAL_NONE;
        }
    }
    if (b->c->embed_dropout > 0 && b->mode == PROG_TRAIN) {
        x = rec_sum(p, (residual_state){ x, delta });
        x = rec_dropout(p, x, token_input(b, TOKEN_IDS, DT_I64, AS_RESIDUAL),
                        (float)b->c->embed_dropout, SITE_EMBED);
        delta = VAL_NONE;
    }
    return (residual_state){ x, delta };
}

static void output_layer(builder *b, residual_state s) {
    prog *p = b->p;
    enter_module(b, M_HEAD);
    val h = norm(b, M_HEAD, s, with_middle(b, s), "norm.w", "norm.b").y;
    h = rec_comm(p, h, AXIS(AX_TP), PLACE_R);
    val w = prog_use(p, b->c->tied ? "embed.tokens" : "head", h);
    /* µP: logits are scaled by the base width over the width */
    double width = b->c->mup ? (double)b->c->mup_base / (double)b->c->dim : 1;
    float by = (float)(b->c->logit_scale * width);
    float cap = (float)b->c->logit_softcap;
    if (b->mode != PROG_DECODE) {
        val target = token_input(b, TOKEN_TARGETS, DT_I32, AS_HEADS);
        rec_linear_ce(p, (loss_spec){ h, w, target, by, cap, b->m->l.label_smoothing,
                                      b->m->l.z_loss, b->m->l.fp8_head });
        return;
    }
    prog_compute_in(p, DT_F32);
    val logits = rec_comm(p, rec_linear(p, h, w, VAL_NONE), AXIS(AX_TP), PLACE_I);
    prog_set_result(p, rec_cap_logits(p, logits, by, cap));
}

static prog *new_program(model *m, prog_mode mode, const char *name, const prog_options *o) {
    param_set set = model_set(m);
    prog *p = prog_new(name, mode, &m->l.mesh, &set, o);
    m->recorded = mem_reserve(m->recorded, &m->record_cap, m->records, sizeof *m->recorded);
    return m->recorded[m->records++] = p;
}

static err record_program(model *m, builder *b, const char *name, int which, prog **out) {
    prog_options o = { .selective = m->l.selective,
                       .split_weights = pipeline_splits_backward(&m->l.pipe) &&
                                        b->mode == PROG_TRAIN && which < 2,
                       .block_kind = b->block_kind,
                       .fp8_sites = m->l.fp8 == FP8_OFF ? 0 : block_linears(&m->c),
                       .logit_bytes = m->l.logit_bytes,
                       .sequence_runs = context_runs(&m->l),
                       .chunk_axes = AXIS(AX_TP),
                       .chunk_rows = m->l.tp_chunk_rows };
    /* scales of fp8 are of whole tensors, and of two branches in parallel one overlaps the other */
    if (which == 1 && m->l.fp8 == FP8_OFF && b->mode != PROG_DECODE && !b->c->parallel)
        o.row_chunks = m->l.tp_chunks;
    prog *p = new_program(m, b->mode, name, &o);
    b->p = p;
    if (which == 0 && m->c.tied && m->l.pipe.ranks == 1)
        prog_param_shared(p, "embed.tokens"); /* the head wrote it first */
    int64_t n = b->n / mesh_span(&m->l.mesh, residual_token_axes(b, AS_RESIDUAL));
    residual_state s = { VAL_NONE, VAL_NONE };
    if (which > 0) s = prog_residual_in(p, n, m->c.dim, m->l.residual, m->l.dt, b->residual);
    if (which == 0) s = embed(b);
    if (which == 1) s = block(b, s);
    if (which == 0 && b->c->layer_scalars) s = leave_residual(b, s, CARRY_EMBED);
    if (which == 1 && b->c->backout) s = leave_residual(b, s, CARRY_MIDDLE);
    if (which == 2) {
        output_layer(b, s);
    } else {
        s.residual = rec_cast(p, s.residual, m->l.residual);
        if (s.delta != VAL_NONE) s.delta = rec_cast(p, s.delta, m->l.dt);
        prog_residual_out(p, s);
    }
    *out = p;
    return prog_finish(p);
}

/* Scales of fp8 are a step's, of all layers at once, on all ranks the same. */
static err record_scales(model *m, chain *out) {
    const prog_options o = { .fp8_sites = block_linears(&m->c) };
    out->begin = new_program(m, PROG_TRAIN, "begin", &o);
    rec_fp8_commit(out->begin, m->c.layers);
    TRY(prog_finish(out->begin));
    if (mesh_world(&m->l.mesh) == 1) return OK;
    out->end = new_program(m, PROG_TRAIN, "end", &o);
    rec_fp8_share(out->end, m->c.layers);
    return prog_finish(out->end);
}

/* A program's name borrows, so that kinds of blocks have names that exist: what they have that others lack. */
static const char *block_name(const model *m, int kind) {
#define WITH(what)                                                                                 \
    {                                                                                              \
        { { what, what " with values" },                                                           \
          { what " with a window", what " with a window and values" } },                           \
        {                                                                                          \
            { what " without positions", what " without positions, with values" }, {               \
                what " without positions, with a window",                                          \
                    what " without positions, with a window and values"                            \
            }                                                                                      \
        }                                                                                          \
    }
    static const char *const names[2][2][2][2] = { WITH("dense block"), WITH("moe block") };
#undef WITH
    const model_config *c = &m->of[kind];
    bool bare = c->pos == POS_NONE && m->c.pos != POS_NONE;
    if (m->kinds == 1) return "block";
    if (c->backout) return "middle block"; /* there is one */
    if (c->delta_keys) return c->experts > 0 ? "moe delta block" : "dense delta block";
    return names[c->experts > 0][bare][c->window > 0][c->value_step > 0];
}

static err record_chain(model *m, builder b, chain *out) {
    prog_mode mode = b.mode;
    int64_t n = b.n, positions = b.positions;
    if (positions > m->c.max_seq)
        return err_hint(ERR("sequences of %lld tokens, but the model's positions end at %lld",
                            (long long)positions, (long long)m->c.max_seq),
                        "lower training.seq_len or raise model.max_seq_len");
    if (mode != PROG_DECODE) /* there every rank generates the same text */
        b.residual = placement_on(AXES_DATA & mesh_axes(&m->l.mesh), PLACE_S(0));
    bool sp = m->l.sequence_parallel && mesh_size(&m->l.mesh, AX_TP) > 1 && mode != PROG_DECODE;
    b.residual.on[AX_TP] = sp ? PLACE_S(0) : PLACE_I;
    if (mode != PROG_DECODE) TRY(context_check(&m->c, &m->l, n));
    if (sp && n % mesh_span(&m->l.mesh, AS_RESIDUAL))
        return err_hint(ERR("%lld tokens do not divide over %d sequence-parallel ranks",
                            (long long)n, mesh_span(&m->l.mesh, AS_RESIDUAL)),
                        "choose a batch and sequence length whose product the ranks divide");
    *out = (chain){ .layers = m->c.layers,
                    .kind = m->kind,
                    .pipe = m->l.pipe,
                    .prefetch = m->l.prefetch,
                    .keep_gathered = m->l.keep_gathered && mode == PROG_TRAIN,
                    .tied = mode == PROG_TRAIN && m->tied.p ? &m->tied : NULL };
    if (fp8_keeps_history(m->l.fp8) && mode == PROG_TRAIN) TRY(record_scales(m, out));
    TRY(record_program(m, &b, "first", 0, &out->first));
    for (int k = 0; k < m->kinds; k++) {
        b.c = &m->of[k];
        b.block_kind = 1 + k;
        TRY(record_program(m, &b, block_name(m, k), 1, &out->block[k]));
    }
    b.c = &m->c;
    b.block_kind = 0;
    TRY(record_program(m, &b, "last", 2, &out->last));
    return OK;
}

err model_record(model *m, prog_mode mode, int64_t n, int64_t positions, chain *out) {
    builder b = {
        .m = m, .c = &m->c, .mode = mode, .n = n, .positions = positions, .sequences = 1
    };
    return record_chain(m, b, out);
}

bool model_can_share(const model *m) {
    return mesh_world(&m->l.mesh) == 1 && !m->c.window && !model_has_delta(&m->c);
}

err model_record_shared(model *m, int64_t n, int64_t positions, chain *out) {
    BUG_IF(!model_can_share(m));
    builder b = { .m = m, .c = &m->c, .mode = PROG_EVAL, .n = n, .positions = positions };
    b.shares = true;
    return record_chain(m, b, out);
}

err model_record_decode(model *m, int64_t n, int64_t positions, int64_t sequences, bool beyond,
                        chain *out) {
    builder b = { .m = m, .c = &m->c, .mode = PROG_DECODE, .n = n, .positions = positions };
    b.sequences = sequences;
    b.length = beyond ? positions : MIN(positions, rope_switch(&m->c));
    return record_chain(m, b, out);
}
