/* Layouts drawn at random, all axes at once: each gives the loss and gradients of one rank.
 *
 * INGOT_TEST_LAYOUTS: how many layouts (60, under sanitizers 20); INGOT_TEST_SEED: the first one's seed (1). */
#include "support/model.h"

static int layouts_to_try = SANITIZED ? 20 : 60;
static uint64_t first_seed = 1;

typedef struct sample {
    layout l;
    model_config c;
    char text[2048];
} sample;

static int draw(rng_key key, uint64_t *at, int n) {
    return (int)rng_below(key, (*at)++, (uint64_t)n);
}

/* Two to eight ranks, dealt to the axes two at a time. */
static void draw_axes(rng_key key, uint64_t *at, layout *l) {
    int *axis[] = { &l->pp, &l->replicas, &l->dp, &l->cp, &l->ep, &l->tp };
    for (size_t i = 0; i < COUNT_OF(axis); i++) *axis[i] = 1;
    int doublings = 1 + draw(key, at, 3);
    for (int i = 0; i < doublings; i++) *axis[draw(key, at, COUNT_OF(axis))] *= 2;
}

static bool can_run(const sample *s) {
    const layout *l = &s->l;
    bool split = l->pp > 1 && l->schedule == PIPE_ZERO_BUBBLE;
    if (l->replicas * l->dp * l->ep > RUN_ROWS) return false;
    if (s->c.experts ? s->c.experts % l->ep : l->ep > 1) return false;
    if (l->pp * (l->chunks ? l->chunks : 1) > s->c.layers + l->first_less + l->last_less)
        return false;
    if (split && (l->zero >= 2 || l->keep_every)) return false;
    if (s->c.heads % l->tp) return false;
    if (s->c.kv_heads % l->tp && l->tp % s->c.kv_heads) return false;
    if (s->c.value_step && s->c.kv_heads % l->tp) return false;
    if (l->cp == 1 || l->context == CONTEXT_RING) return true;
    return s->c.heads % (l->tp * l->cp) == 0 && s->c.kv_heads % (l->tp * l->cp) == 0;
}

/* Routers, shared experts and what experts compute. */
static void draw_experts(rng_key key, uint64_t *at, model_config *c) {
    static const mlp_kind gated[] = { MLP_SWIGLU, MLP_GEGLU, MLP_GEGLU_ERF, MLP_SWIGLU_CLAMPED };
    c->mlp = gated[draw(key, at, COUNT_OF(gated))];
    c->swiglu_limit = 0.8; /* which some of these small models' gates exceed */
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
    }
    c->shared_experts = draw(key, at, 3);
    c->shared_dim = draw(key, at, 2) ? 20 : 0;
    c->shared_gate = draw(key, at, 2);
}

/* Windows, layers with and without positions, and what depends on these. */
static void draw_layer_kinds(rng_key key, uint64_t *at, model_config *c) {
    bool rope = c->pos == POS_ROPE;
    if (draw(key, at, 3) == 0) c->layer_pattern = c->window ? rope ? 1243 : 12 : rope ? 24 : 2;
    if (rope && c->window && draw(key, at, 2)) c->rope_local = 100;
    if (rope) c->rope_scaling = (rope_scaling_kind)draw(key, at, rope_scaling_kind_count);
    c->rope_original = 8; /* shorter than the sequences, so that scaling changes angles */
    c->chunked = draw(key, at, 2);
    c->temperature = draw(key, at, 2) ? 0.3 : 0;
    c->temperature_floor = 4;
    c->qknorm = (qknorm_kind)draw(key, at, qknorm_kind_count);
    c->qk_weights = draw(key, at, 3);
    c->qk_rope_only = draw(key, at, 2);
    c->sinks = draw(key, at, 3) == 0;
}

/* Keys and values of every head come from a latent vector. */
static void draw_latent(rng_key key, uint64_t *at, model_config *c) {
    c->qknorm = QKNORM_NONE;
    c->sinks = false;
    c->kv_heads = c->heads;
    c->kv_latent = 10;
    c->q_latent = draw(key, at, 2) ? 14 : 0;
    c->rope_head_dim = 4;
    c->value_head_dim = draw(key, at, 2) ? 6 : 12;
    c->rope_fraction = 1;
}

static void draw_newer_facts(rng_key key, uint64_t *at, model_config *c) {
    bool plain = !c->experts && c->mlp == MLP_SWIGLU;
    if (c->parallel) c->shared_norm = draw(key, at, 2);
    if (c->norm_position == NORM_PRE && !c->parallel && draw(key, at, 4) == 0)
        c->norm_position = NORM_BOTH;
    if (!c->bias) c->qkv_bias = draw(key, at, 2), c->o_bias = draw(key, at, 2);
    if (plain) c->mlp_bias = draw(key, at, 2);
    if (plain && draw(key, at, 2)) c->mlp = draw(key, at, 2) ? MLP_GEGLU : MLP_GEGLU_ERF;
    if (draw(key, at, 4) == 0) c->embedding_scale = 0.5, c->residual_scale = 0.7;
    if (draw(key, at, 4) == 0) c->attention_scale = 0.2, c->logit_scale = 0.7;
    if (draw(key, at, 6) == 0) c->attention_softcap = 2, c->logit_softcap = 3;
    if (c->experts) draw_experts(key, at, c);
    draw_layer_kinds(key, at, c);
    if (draw(key, at, 4) == 0) draw_latent(key, at, c);
    if (!c->kv_latent && draw(key, at, 5) == 0) c->value_step = 2;
    model_config_normalize(c); /* facts that do not matter to this model are left out */
    assert_ok(model_check(c));
}

static void draw_model(rng_key key, uint64_t *at, model_config *c) {
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

static void draw_layout(rng_key key, uint64_t *at, layout *l) {
    *l = (layout){ .name = "sampled", .micros = 4 };
    draw_axes(key, at, l);
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
static void draw_split(rng_key key, uint64_t *at, int layers, layout *l) {
    int stages = l->pp * l->chunks;
    l->first_less = l->last_less = 0;
    for (int i = 1; i < stages - 1; i++) l->split[i] = 1;
    for (int left = layers - MAX(0, stages - 2); left > 0; left--)
        l->split[draw(key, at, stages)]++;
}

/* Writes the facts that differ from their defaults. */
static void describe(const model_config *c, char *to, size_t n) {
    char value[64];
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        double v = model_fact_get(f, c);
        if (v == f->fallback) continue;
        int wrote = snprintf(to, n, " %s=%s", f->key, model_fact_text(f, v, value, sizeof value));
        assert_true(wrote > 0 && (size_t)wrote < n);
        to += wrote;
        n -= (size_t)wrote;
    }
}

static sample draw_sample(uint64_t seed) {
    static const char *const orders[] = { "1F1B", "GPipe", "interleaved", "zero bubble" };
    rng_key key = rng_key_of(seed, hash_str("layouts"));
    uint64_t at = 0;
    sample s = { 0 };
    do {
        draw_layout(key, &at, &s.l);
        draw_model(key, &at, &s.c);
        if (s.l.pp > 1 && draw(key, &at, 3) == 0) draw_split(key, &at, s.c.layers, &s.l);
    } while (!can_run(&s));
    const layout *l = &s.l;
    char stages[64] = "";
    for (int i = 0; i < l->pp * l->chunks; i++)
        snprintf(stages + strlen(stages), sizeof stages - strlen(stages), " %d", l->split[i]);
    int n = snprintf(
        s.text, sizeof s.text,
        "seed %llu: pp%d (%s, less %d and %d, split%s) x %d replicas x dp%d (zero%d%s, prefetch %d%s%s%s) x cp%d (%s) x ep%d x tp%d%s in %d, "
        "recompute %d/%d%s, model",
        (unsigned long long)seed, l->pp, orders[l->schedule], l->first_less, l->last_less, stages,
        l->replicas, l->dp, l->zero, l->offload_params ? " in host memory" : "", l->prefetch,
        l->keep_gathered ? ", kept" : "", l->whole_below ? ", small ones whole" : "",
        l->bucket_bytes ? ", small buckets" : "", l->cp,
        l->context == CONTEXT_RING ? "ring" : "ulysses", l->ep, l->tp, l->sp ? "+sp" : "",
        l->tp_chunks, l->keep_every, l->keep_last, l->selective ? " selective" : "");
    describe(&s.c, s.text + n, sizeof s.text - (size_t)n);
    return s;
}

static void every_sampled_layout_agrees_with_one_rank(void **state) {
    for (int i = 0; i < layouts_to_try; i++) {
        sample s = draw_sample(first_seed + (uint64_t)i);
        outcome one, many;
        print_message("%s\n", s.text);
        run_layout(&s.c, &(layout){ .name = "one", .micros = s.l.micros }, &one);
        run_layout(&s.c, &s.l, &many);
        if (!many.replicas_agree) fail_msg("%s: replicas differ", s.text);
        /* twice what rounding does was the most of 700 samples */
        same_within(s.text, &many, &one, 4 * rounding_of(&s.c, &one, s.l.micros));
        outcome_free(&one);
        outcome_free(&many);
    }
}

int main(void) {
    const char *layouts = getenv("INGOT_TEST_LAYOUTS"), *seed = getenv("INGOT_TEST_SEED");
    if (layouts) layouts_to_try = atoi(layouts);
    if (seed) first_seed = strtoull(seed, NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sampled_layout_agrees_with_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
