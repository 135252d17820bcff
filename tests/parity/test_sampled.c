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

static sample draw_sample(uint64_t seed) {
    rng_key key = rng_key_of(seed, hash_str("layouts"));
    uint64_t at = 0;
    sample s = { 0 };
    do {
        s.l = (layout){ 0 };
        draw_axes(key, &at, &s.l);
        draw_ways(key, &at, &s.l);
        draw_model(key, &at, &s.c);
        if (s.l.pp > 1 && draw(key, &at, 3) == 0) draw_split(key, &at, s.c.layers, &s.l);
    } while (!can_run(&s.c, &s.l));
    int n = snprintf(s.text, sizeof s.text, "seed %llu: ", (unsigned long long)seed);
    describe_layout(&s.l, &s.c, s.text + n, sizeof s.text - (size_t)n);
    return s;
}

static void every_sampled_layout_agrees_with_one_rank(void **state) {
    for (int i = 0; i < layouts_to_try; i++) {
        sample s = draw_sample(first_seed + (uint64_t)i);
        outcome one;
        print_message("%s\n", s.text);
        run_layout(&s.c, &(layout){ .name = "one", .micros = s.l.micros }, &one);
        /* twice what rounding does was the most of 700 samples */
        double limit = 4 * rounding_of(&s.c, &one, s.l.micros);
        agree_with_one(&s.c, s.l, &one, limit, s.text);
        outcome_free(&one);
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
