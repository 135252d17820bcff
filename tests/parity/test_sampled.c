/* Layouts drawn at random, all axes at once: each gives the loss and gradients of one rank.
 *
 * INGOT_TEST_LAYOUTS: how many layouts (60, under sanitizers 20); INGOT_TEST_SEED: the first one's seed (1). */
#include "support/model.h"

static int layouts_to_try = SANITIZED ? 20 : 60;
static uint64_t first_seed = 1;

typedef struct sample {
    layout l;
    model_config c;
    char text[512];
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
    if (model_has_delta(&s->c) && (l->cp > 1 || s->c.delta_keys % l->tp)) return false;
    if (s->c.kv_heads % l->tp && l->tp % s->c.kv_heads) return false;
    if (l->cp == 1 || l->context == CONTEXT_RING) return true;
    return s->c.heads % (l->tp * l->cp) == 0 && s->c.kv_heads % (l->tp * l->cp) == 0;
}

static void draw_newer_facts(rng_key key, uint64_t *at, model_config *c) {
    bool rope = c->pos == POS_ROPE, plain = !c->experts && c->mlp == MLP_SWIGLU;
    if (c->parallel) c->shared_norm = draw(key, at, 2);
    if (c->norm_position == NORM_PRE && !c->parallel && draw(key, at, 4) == 0)
        c->norm_position = NORM_BOTH;
    if (!c->bias) c->qkv_bias = draw(key, at, 2), c->o_bias = draw(key, at, 2);
    if (plain) c->mlp_bias = draw(key, at, 2);
    if (plain && draw(key, at, 2)) c->mlp = draw(key, at, 2) ? MLP_GEGLU : MLP_GEGLU_ERF;
    if (draw(key, at, 4) == 0) c->embedding_scale = 0.5, c->residual_scale = 0.7;
    if (draw(key, at, 4) == 0) c->attention_scale = 0.2, c->logit_scale = 0.7;
    if (draw(key, at, 3) == 0) c->layer_pattern = c->window ? rope ? 1243 : 12 : rope ? 24 : 2;
    if (rope && c->window && draw(key, at, 2)) c->rope_local = 100;
    if (rope) c->rope_scaling = (rope_scaling_kind)draw(key, at, rope_scaling_kind_count);
    c->qknorm = (qknorm_kind)draw(key, at, qknorm_kind_count);
    if (draw(key, at, 4) == 0) { /* gated DeltaNet */
        static const int64_t patterns[2][3] = { { 5, 525, 552 }, { 51, 515, 551 } };
        c->layer_pattern = patterns[c->window > 0][draw(key, at, 3)];
        c->delta_keys = draw(key, at, 2) ? 4 : 2;
        c->delta_values = c->delta_keys * (1 + draw(key, at, 2));
        c->delta_key_dim = 3 + draw(key, at, 3);
        c->delta_value_dim = 3 + draw(key, at, 3);
        c->delta_conv = 2 + draw(key, at, 3);
    }
    c->attention_gate = draw(key, at, 3) == 0;
    if (c->attention_gate || draw(key, at, 4)) return;
    c->qknorm = QKNORM_NONE; /* and latent attention, in which every head has keys */
    c->kv_heads = c->heads;
    c->kv_latent = 10;
    c->q_latent = draw(key, at, 2) ? 14 : 0;
    c->rope_head_dim = 4;
    c->value_head_dim = draw(key, at, 2) ? 6 : 12;
    c->rope_fraction = 1;
}

static void draw_model(rng_key key, uint64_t *at, model_config *c) {
    int family = draw(key, at, 4);
    *c = family == 0 ? small_gpt2() : family == 1 ? small_neox() : small_llama();
    if (family == 2 && draw(key, at, 2)) *c = small_moe();
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
    if (draw(key, at, 4) == 0) c->window = 5;
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
    snprintf(
        s.text, sizeof s.text,
        "seed %llu: pp%d (%s, less %d and %d, split%s) x %d replicas x dp%d (zero%d%s, prefetch %d%s%s%s) x cp%d (%s) x ep%d x tp%d%s in %d, "
        "recompute %d/%d%s, %d layers, %d kv heads, %d experts, vocabulary %d%s%s, pattern %lld, rope scaling %d "
        "and local base %g, norm position %d, activation %d, scales %g %g %g %g",
        (unsigned long long)seed, l->pp, orders[l->schedule], l->first_less, l->last_less, stages,
        l->replicas, l->dp, l->zero, l->offload_params ? " in host memory" : "", l->prefetch,
        l->keep_gathered ? ", kept" : "", l->whole_below ? ", small ones whole" : "",
        l->bucket_bytes ? ", small buckets" : "", l->cp,
        l->context == CONTEXT_RING ? "ring" : "ulysses", l->ep, l->tp, l->sp ? "+sp" : "",
        l->tp_chunks, l->keep_every, l->keep_last, l->selective ? " selective" : "", s.c.layers,
        s.c.kv_heads, (int)s.c.experts, (int)s.c.vocab, s.c.tied ? ", tied" : "",
        s.c.dropout > 0 ? ", dropout" : "", (long long)s.c.layer_pattern, s.c.rope_scaling,
        s.c.rope_local, s.c.norm_position, s.c.mlp, s.c.embedding_scale, s.c.residual_scale,
        s.c.attention_scale, s.c.logit_scale);
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
