/* Layouts drawn at random, all axes at once: each gives the loss and gradients of one rank.
 *
 * INGOT_TEST_LAYOUTS: how many layouts (60, under sanitizers 20); INGOT_TEST_SEED: the first one's seed (1). */
#include "support/sampled.h"

static int layouts_to_try = SANITIZED ? 20 : 60;
static uint64_t first_seed = 1;

typedef struct sample {
    layout l;
    model_config c;
    char text[2048];
} sample;

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
    if (s->c.value_step && s->c.kv_heads % l->tp) return false;
    if (l->cp == 1 || l->context == CONTEXT_RING) return true;
    return s->c.heads % (l->tp * l->cp) == 0 && s->c.kv_heads % (l->tp * l->cp) == 0;
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
        layout alone = { .name = "one", .micros = s.l.micros };
        run_layout(&s.c, &alone, &one);
        run_layout(&s.c, &s.l, &many);
        if (!many.replicas_agree) fail_msg("%s: replicas differ", s.text);
        /* twice what rounding does was the most of 700 samples */
        double limit = 4 * rounding_of(&s.c, &one, s.l.micros);
        if (worst_difference(&many, &one) > limit) {
            /* Rounding may cross the bound of a clamp or exchange two experts, in one sample of a thousand. A fault
             * shows with other weights, too. */
            print_message("again, with other weights\n");
            alone.nudge = s.l.nudge = 0.01;
            outcome_free(&one);
            outcome_free(&many);
            run_layout(&s.c, &alone, &one);
            run_layout(&s.c, &s.l, &many);
        }
        same_within(s.text, &many, &one, limit);
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
