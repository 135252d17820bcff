/* Choosing a token: which ones can be drawn, and how often. */
#include "support/test.h"

#include <math.h>

#include "eval/eval.h"

enum { VOCAB = 6 };
/* Probabilities 0.4, 0.25, 0.15, 0.1, 0.06, 0.04 at temperature 1, not in the order of the ids. */
static const float logits[VOCAB] = { -1.897120f, -0.916291f, -2.813411f,
                                     -1.386294f, -3.218876f, -2.302585f };
static const double probability[VOCAB] = { 0.15, 0.4, 0.06, 0.25, 0.04, 0.1 };

/* How often each token is drawn over an even grid of u. */
static void draw(const sample_options *o, double share[VOCAB]) {
    enum { DRAWS = 100000 };
    memset(share, 0, VOCAB * sizeof *share);
    for (int i = 0; i < DRAWS; i++) {
        float copy[VOCAB];
        memcpy(copy, logits, sizeof copy);
        int32_t id = sample_token(copy, VOCAB, o, (i + 0.5) / DRAWS);
        assert_in_range(id, 0, VOCAB - 1);
        share[id] += 1.0 / DRAWS;
    }
}

/* The tokens whose probability is at least `least`, and no others, in their own proportions. */
static void check_shares(const sample_options *o, double least) {
    double share[VOCAB], sum = 0;
    draw(o, share);
    for (int i = 0; i < VOCAB; i++) sum += probability[i] >= least ? probability[i] : 0;
    for (int i = 0; i < VOCAB; i++) {
        double want = probability[i] >= least ? probability[i] / sum : 0;
        if (fabs(share[i] - want) > 1e-4) fail_msg("token %d: %g, expected %g", i, share[i], want);
    }
}

static void all_tokens_are_drawn_by_their_probability(void **state) {
    check_shares(&(sample_options){ .temperature = 1, .top_p = 1 }, 0);
    check_shares(&(sample_options){ .temperature = 1, .top_k = VOCAB, .top_p = 1 }, 0);
    check_shares(&(sample_options){ .temperature = 1, .top_k = 100, .top_p = 1 }, 0);
}

static void top_k_keeps_exactly_k(void **state) {
    static const double sorted[VOCAB] = { 0.4, 0.25, 0.15, 0.1, 0.06, 0.04 };
    for (int k = 1; k <= VOCAB; k++)
        check_shares(&(sample_options){ .temperature = 1, .top_k = k, .top_p = 1 }, sorted[k - 1]);
}

/* The fewest tokens that hold the probability: the one that reaches it counts. */
static void top_p_keeps_the_fewest_that_hold_it(void **state) {
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0 }, 0.4);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 1e-9 }, 0.4);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0.3 }, 0.4);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0.41 }, 0.25);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0.79 }, 0.15);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0.95 }, 0.06);
    check_shares(&(sample_options){ .temperature = 1, .top_p = 0.95, .top_k = 2 }, 0.25);
}

static void temperature_sharpens(void **state) {
    double share[VOCAB];
    static const double greedy[] = { 0, 1e-300, 1e-50, 1e-40, 1e-37 };
    for (size_t i = 0; i < COUNT_OF(greedy); i++) {
        draw(&(sample_options){ .temperature = greedy[i], .top_p = 1 }, share);
        assert_true(share[1] > 0.99999);
    }
    draw(&(sample_options){ .temperature = 0.5, .top_p = 1 },
         share); /* squares of the probabilities */
    assert_true(fabs(share[1] / share[3] - 0.16 / 0.0625) < 1e-3);
}

/* Of any number of tokens, many of which are equal; those that are not a number are never chosen. */
static void greedy_takes_the_first_of_the_likeliest(void **state) {
    enum { MOST = 1100 };
    float l[MOST];
    rng_key key = rng_key_of(3, 0);
    for (int32_t n = 1; n <= MOST; n++) {
        int32_t want = 0;
        for (int32_t i = 0; i < n; i++)
            l[i] = i % 97 == 5 ? NAN : -(float)rng_below(key, (uint64_t)(n * MOST + i), 300);
        for (int32_t i = 0; i < n; i++)
            if (l[i] > l[want]) want = i;
        assert_int_equal(sample_token(l, n, &(sample_options){ 0 }, 0), want);
    }
}

static void equal_tokens_are_kept_by_their_id(void **state) {
    float same[4] = { 1, 1, 1, 1 };
    for (int i = 0; i < 100; i++) {
        memcpy(same, (float[]){ 1, 1, 1, 1 }, sizeof same);
        assert_true(sample_token(same, 4,
                                 &(sample_options){ .temperature = 1, .top_k = 2, .top_p = 1 },
                                 i / 100.0) < 2);
    }
}

/* As transformers defines the first and OpenAI the others. */
static void penalties_lower_what_was_there(void **state) {
    const int32_t context[] = { 0, 1, 2, 2, 2 }; /* the last two were generated */
    float l[VOCAB] = { 2, -3, 1, 4, 5, 0 };
    sample_penalize(l, VOCAB, &(sample_options){ .repetition_penalty = 2 }, context, 5, 3);
    assert_memory_equal(l, ((float[VOCAB]){ 1, -6, 0.5f, 4, 5, 0 }), sizeof l);
    memcpy(l, (float[VOCAB]){ 2, -3, 1, 4, 5, 0 }, sizeof l);
    sample_options o = { .frequency_penalty = 0.5, .presence_penalty = 0.25 };
    sample_penalize(l, VOCAB, &o, context, 5, 3);
    assert_memory_equal(l, ((float[VOCAB]){ 2, -3, 1 - 2 * 0.5f - 0.25f, 4, 5, 0 }), sizeof l);
    memcpy(l, logits, sizeof l);
    sample_penalize(l, VOCAB, &(sample_options){ .repetition_penalty = 1 }, context, 5, 3);
    assert_memory_equal(l, logits, sizeof l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tokens_are_drawn_by_their_probability),
        cmocka_unit_test(top_k_keeps_exactly_k),
        cmocka_unit_test(top_p_keeps_the_fewest_that_hold_it),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(greedy_takes_the_first_of_the_likeliest),
        cmocka_unit_test(equal_tokens_are_kept_by_their_id),
        cmocka_unit_test(penalties_lower_what_was_there),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
