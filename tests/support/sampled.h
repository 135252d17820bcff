/* Models and layouts drawn at random: every fact that changes what a model computes, in combinations that it may have, and
 * every way to divide it. */
#ifndef INGOT_TESTS_SAMPLED_H
#define INGOT_TESTS_SAMPLED_H

#include "support/facts.h"
#include "support/model.h"

static inline int draw(rng_key key, uint64_t *at, int n) {
    return (int)rng_below(key, (*at)++, (uint64_t)n);
}

/* Routers, shared experts and what experts compute. */
static inline void draw_experts(rng_key key, uint64_t *at, model_config *c) {
    static const mlp_kind gated[] = { MLP_SWIGLU, MLP_GEGLU, MLP_GEGLU_ERF, MLP_SWIGLU_CLAMPED };
    c->mlp = gated[draw(key, at, COUNT_OF(gated))];
    c->swiglu_limit = 0.8; /* some gates of such small models exceed it */
    c->mlp_bias = draw(key, at, 2);
    c->router_logit_bias = draw(key, at, 2);
    c->router_bias = draw(key, at, 3) == 0;
    c->router_score = (router_kind)draw(key, at, router_kind_count);
    c->router_normalize = draw(key, at, 2);
    c->router_scale = draw(key, at, 2) ? 1 : 1.7;
    c->scale_input = draw(key, at, 3) == 0;
    c->experts_per_token = 1 + draw(key, at, 3);
    if (draw(key, at, 2)) {
        c->experts = 8;
        c->groups = draw(key, at, 2) ? 4 : 2;
        c->group_limit = c->groups == 4 ? 2 + draw(key, at, 2) : 1;
        c->group_best = draw(key, at, 2);
    }
    c->shared_experts = draw(key, at, 3);
    c->shared_dim = draw(key, at, 2) ? 20 : 0;
    c->shared_gate = draw(key, at, 2);
}

/* Windows, layers with and without positions, and what depends on these. */
static inline void draw_layer_kinds(rng_key key, uint64_t *at, model_config *c) {
    bool rope = c->pos == POS_ROPE;
    if (draw(key, at, 3) == 0) c->layer_pattern = c->window ? rope ? 1243 : 12 : rope ? 24 : 2;
    if (rope && c->window && draw(key, at, 2)) c->rope_local = 100;
    if (rope) c->rope_scaling = (rope_scaling_kind)draw(key, at, rope_scaling_kind_count);
    c->rope_original = 8; /* shorter than the sequences, so that scaling changes angles */
    bool all_alike = c->layer_pattern <= 12; /* in whether they have positions */
    if (all_alike && c->attention_softcap == 0 && draw(key, at, 5) == 0) c->pos = POS_ALIBI;
    c->chunked = draw(key, at, 2);
    c->temperature = draw(key, at, 2) ? 0.3 : 0;
    c->temperature_floor = 4;
    c->qknorm = (qknorm_kind)draw(key, at, qknorm_kind_count);
    c->qk_weights = draw(key, at, 3);
    c->qk_scale = draw(key, at, 3) ? 1 : 1.2;
    c->qk_rope_only = draw(key, at, 2);
    c->sinks = draw(key, at, 3) == 0;
}

/* Some layers are gated DeltaNet, beside those with and without a window. */
static inline void draw_delta(rng_key key, uint64_t *at, model_config *c) {
    static const int64_t patterns[2][3] = { { 5, 525, 552 }, { 51, 515, 551 } };
    c->layer_pattern = patterns[c->window > 0][draw(key, at, 3)];
    c->delta_keys = draw(key, at, 2) ? 4 : 2;
    c->delta_values = c->delta_keys * (1 + draw(key, at, 2));
    c->delta_key_dim = 6 + draw(key, at, 3); /* shorter unit vectors amplify rounding */
    c->delta_value_dim = 5 + draw(key, at, 3);
    c->delta_conv = 2 + draw(key, at, 3);
}

/* Keys and values of every head come from a latent vector. */
static inline void draw_latent(rng_key key, uint64_t *at, model_config *c) {
    c->qknorm = QKNORM_NONE;
    if (c->pos == POS_ALIBI) c->pos = POS_NONE;
    c->sinks = c->chunked = false;
    c->temperature = 0;
    c->kv_heads = c->heads;
    c->kv_latent = 10;
    c->q_latent = draw(key, at, 2) ? 14 : 0;
    c->rope_head_dim = 4;
    c->value_head_dim = draw(key, at, 2) ? 6 : 12;
    c->rope_fraction = 1;
}

static inline void draw_newer_facts(rng_key key, uint64_t *at, model_config *c) {
    bool plain = !c->experts && c->mlp == MLP_SWIGLU;
    if (c->parallel) c->shared_norm = draw(key, at, 2);
    if (c->norm_position == NORM_PRE && !c->parallel && draw(key, at, 4) == 0)
        c->norm_position = NORM_BOTH;
    if (!c->bias) c->qkv_bias = draw(key, at, 2), c->o_bias = draw(key, at, 2);
    if (plain) c->mlp_bias = draw(key, at, 2);
    static const mlp_kind activations[] = { MLP_SWIGLU, MLP_GEGLU, MLP_GEGLU_ERF, MLP_RELU2 };
    if (plain) c->mlp = activations[draw(key, at, COUNT_OF(activations))];
    if (draw(key, at, 4) == 0) c->embedding_scale = 0.5, c->residual_scale = 0.7;
    if (draw(key, at, 4) == 0) c->attention_scale = 0.2, c->logit_scale = 0.7;
    if (draw(key, at, 6) == 0) c->attention_softcap = 2, c->logit_softcap = 3;
    if (c->experts) draw_experts(key, at, c);
    draw_layer_kinds(key, at, c);
    if (draw(key, at, 4) == 0) draw_delta(key, at, c);
    c->attention_gate = draw(key, at, 3) == 0;
    if (!c->attention_gate && draw(key, at, 4) == 0) draw_latent(key, at, c);
    if (!c->kv_latent && !model_has_delta(c) && draw(key, at, 5) == 0) c->value_step = 2;
    c->layer_scalars = draw(key, at, 4) == 0;
    c->backout = draw(key, at, 4) == 0;
    c->smear = draw(key, at, 4) == 0;
    c->weightless_norms = draw(key, at, 3) == 0;
    c->embedding_norm = draw(key, at, 3) == 0;
    /* or norms of a state's first, small results amplify rounding a thousand times */
    if (model_has_delta(c) || draw(key, at, 4) == 0) c->norm_eps = 0.01;
    fill_rope_lists(c);
    model_config_normalize(c); /* facts that do not matter to this model are left out */
    assert_ok(model_check(c));
}

static inline void draw_model(rng_key key, uint64_t *at, model_config *c) {
    int family = draw(key, at, 5); /* the last is small_llama as it is */
    *c = family == 0 ? small_gpt2() : family == 1 ? small_neox() : small_llama();
    if (family == 2) *c = small_moe();
    if (family == 3) c->norm_position = NORM_POST;
    c->layers = 4 + draw(key, at, 2);
    if (c->experts) {
        c->first_dense = draw(key, at, 3);
        c->moe_step = 1 + draw(key, at, 2);
        c->capacity_factor = draw(key, at, 3) ? 1.25 : 0;
    }
    c->kv_heads = draw(key, at, 2) ? 4 : 2;
    c->tied = draw(key, at, 2);
    c->vocab = draw(key, at, 2) ? 40 : 41;
    if (draw(key, at, 2)) c->dropout = 0.1, c->attn_dropout = 0.1, c->embed_dropout = 0.1;
    if (draw(key, at, 3) == 0) c->window = 5;
    draw_newer_facts(key, at, c);
}

/* Writes the facts that differ from their defaults. */
static inline void describe(const model_config *c, char *to, size_t n) {
    char value[64];
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        if (model_fact_get(f, c) == f->fallback) continue;
        int wrote = snprintf(to, n, " %s=%s", f->key, model_fact_shown(f, c, value, sizeof value));
        assert_true(wrote > 0 && (size_t)wrote < n);
        to += wrote;
        n -= (size_t)wrote;
    }
}

/* ---- layouts ------------------------------------------------------------------------------------ */

/* Two to eight ranks, dealt to the axes two at a time. */
static inline void draw_axes(rng_key key, uint64_t *at, layout *l) {
    int *axis[] = { &l->pp, &l->replicas, &l->dp, &l->cp, &l->ep, &l->tp };
    for (size_t i = 0; i < COUNT_OF(axis); i++) *axis[i] = 1;
    int doublings = 1 + draw(key, at, 3);
    for (int i = 0; i < doublings; i++) *axis[draw(key, at, COUNT_OF(axis))] *= 2;
}

/* Draws everything about a layout but its axes. */
static inline void draw_ways(rng_key key, uint64_t *at, layout *l) {
    l->name = "sampled";
    l->micros = 4;
    l->sp = l->tp > 1 && draw(key, at, 2);
    l->zero = draw(key, at, 4);
    l->context = draw(key, at, 2) ? CONTEXT_RING : CONTEXT_ULYSSES;
    l->schedule = (pipeline_schedule)draw(key, at, 4);
    l->chunks = l->pp > 1 && l->schedule == PIPE_INTERLEAVED ? 2 : 1;
    if (l->pp > 1 && draw(key, at, 2))
        l->first_less = draw(key, at, 2), l->last_less = draw(key, at, 2);
    l->keep_every = draw(key, at, 3);
    l->keep_last = l->keep_every ? draw(key, at, 2) : 0;
    l->selective = draw(key, at, 2);
    l->prefetch = draw(key, at, 4) - 1;
    l->keep_gathered = draw(key, at, 4) == 0;
    l->whole_below = draw(key, at, 2) ? 1100 : 0;
    l->bucket_bytes = draw(key, at, 3) ? 0 : 8192;
    l->tp_chunks = 1 + draw(key, at, 2);
    l->offload_params = draw(key, at, 3) == 0;
}

/* Every stage between has a layer; the others go anywhere, the ends included, which may have none. */
static inline void draw_split(rng_key key, uint64_t *at, int layers, layout *l) {
    int stages = l->pp * l->chunks;
    l->first_less = l->last_less = 0;
    for (int i = 1; i < stages - 1; i++) l->split[i] = 1;
    for (int left = layers - MAX(0, stages - 2); left > 0; left--)
        l->split[draw(key, at, stages)]++;
}

/* @return whether the layout suits the model, the small batch and itself */
static inline bool can_run(const model_config *c, const layout *l) {
    bool split = l->pp > 1 && l->schedule == PIPE_ZERO_BUBBLE;
    if (l->replicas * l->dp * l->ep > RUN_ROWS) return false;
    if (c->experts ? c->experts % l->ep : l->ep > 1) return false;
    if (l->pp * (l->chunks ? l->chunks : 1) > c->layers + l->first_less + l->last_less)
        return false;
    if (split && (l->zero >= 2 || l->keep_every)) return false;
    if (c->heads % l->tp) return false;
    if (model_has_delta(c) && (l->cp > 1 || c->delta_keys % l->tp)) return false;
    if (c->kv_heads % l->tp && l->tp % c->kv_heads) return false;
    if (c->value_step && c->kv_heads % l->tp) return false;
    if (l->cp == 1 || l->context == CONTEXT_RING) return true;
    return c->heads % (l->tp * l->cp) == 0 && c->kv_heads % (l->tp * l->cp) == 0;
}

/* Writes a layout, and the facts of a model that differ from their defaults. */
static inline void describe_layout(const layout *l, const model_config *c, char *to, size_t cap) {
    static const char *const orders[] = { "1F1B", "GPipe", "interleaved", "zero bubble" };
    char stages[64] = "";
    for (int i = 0; i < l->pp * l->chunks; i++)
        snprintf(stages + strlen(stages), sizeof stages - strlen(stages), " %d", l->split[i]);
    int n = snprintf(
        to, cap,
        "pp%d (%s, less %d and %d, split%s) x %d replicas x dp%d (zero%d%s, prefetch %d%s%s%s) x cp%d (%s) x ep%d x tp%d%s in %d, "
        "recompute %d/%d%s, model",
        l->pp, orders[l->schedule], l->first_less, l->last_less, stages, l->replicas, l->dp,
        l->zero, l->offload_params ? " in host memory" : "", l->prefetch,
        l->keep_gathered ? ", kept" : "", l->whole_below ? ", small ones whole" : "",
        l->bucket_bytes ? ", small buckets" : "", l->cp,
        l->context == CONTEXT_RING ? "ring" : "ulysses", l->ep, l->tp, l->sp ? "+sp" : "",
        l->tp_chunks, l->keep_every, l->keep_last, l->selective ? " selective" : "");
    describe(c, to + n, cap - (size_t)n);
}

/* Compares a layout with one rank, whose outcome is `one`, within what rounding does to the model.
 * @param limit of the difference
 * @param text names the sample in messages */
static inline void agree_with_one(const model_config *c, layout l, const outcome *one, double limit,
                                  const char *text) {
    outcome many;
    run_layout(c, &l, &many);
    if (!many.replicas_agree) fail_msg("%s: replicas differ", text);
    if (worst_difference(&many, one) <= limit) {
        same_within(text, &many, one, limit);
        outcome_free(&many);
        return;
    }
    /* Rounding may cross the bound of a clamp or exchange two experts, in one sample of a thousand. A fault
     * shows with other weights, too. */
    print_message("again, with other weights\n");
    outcome other;
    layout alone = { .name = "one", .micros = l.micros, .nudge = 0.01 };
    l.nudge = alone.nudge;
    outcome_free(&many);
    run_layout(c, &alone, &other);
    run_layout(c, &l, &many);
    same_within(text, &many, &other, limit);
    outcome_free(&other);
    outcome_free(&many);
}

#endif
