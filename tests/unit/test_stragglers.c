/* Which rank is slower than the others, from times that are known. */
#include "support/test.h"

#include <math.h>

#include "observe/observe.h"

enum { RANKS = 8 };
static const int one_group[RANKS] = { 0 };

/* Windows until rank `slow` is named; -1: it is not within `most`. Others must never be. */
static int windows_until_named(straggler *s, int slow, double factor, double noise, int most) {
    rng_key key = rng_key_of(7, 0);
    for (int w = 1; w <= most; w++) {
        double seconds[RANKS];
        for (int r = 0; r < RANKS; r++) {
            double steps[STRAGGLER_WINDOW];
            for (int i = 0; i < STRAGGLER_WINDOW; i++) {
                uint64_t at = (uint64_t)((w * RANKS + r) * STRAGGLER_WINDOW + i);
                steps[i] =
                    0.1 * (1 + noise * (double)rng_uniform(key, at)) * (r == slow ? factor : 1);
            }
            seconds[r] = straggler_typical(steps, STRAGGLER_WINDOW);
        }
        straggler_judge(s, seconds, one_group, RANKS);
        for (int r = 0; r < RANKS; r++) {
            if (r != slow) assert_false(s[r].raised);
            if (r == slow && s[r].raised) return w;
        }
    }
    return -1;
}

static void a_rank_slowed_by_30_percent_is_named_within_50_steps(void **state) {
    straggler s[RANKS] = { 0 };
    int windows = windows_until_named(s, 5, 1.3, 0.2, 10);
    assert_true(windows > 0 && windows * STRAGGLER_WINDOW <= 50);
    assert_true(s[5].slow && fabs(s[5].ratio - 1.3) < 0.1);
}

static void healthy_ranks_are_not_named(void **state) {
    straggler s[RANKS] = { 0 };
    assert_int_equal(windows_until_named(s, -1, 1, 0.5, 200), -1);
    straggler t[RANKS] = { 0 };
    assert_int_equal(windows_until_named(t, 3, 1.1, 0.1, 200), -1); /* under the threshold */
}

/* A step in which a rank writes a file, or is interrupted, is not its speed. */
static void single_slow_steps_do_not_count(void **state) {
    double steps[STRAGGLER_WINDOW];
    for (int i = 0; i < STRAGGLER_WINDOW; i++) steps[i] = i % 3 ? 0.1 : 5;
    assert_true(straggler_typical(steps, STRAGGLER_WINDOW) == 0.1);
    assert_true(isnan(straggler_typical(steps, 0)));
}

static void it_is_named_once_and_cleared_with_hysteresis(void **state) {
    straggler s[RANKS] = { 0 };
    double seconds[RANKS];
    int raised = 0, cleared = 0;
    static const double factors[] = { 1.5, 1.5, 1.5, 1.5, 1.15, 1.5, 1.05, 1.5, 1.5 };
    for (size_t w = 0; w < COUNT_OF(factors); w++) {
        for (int r = 0; r < RANKS; r++) seconds[r] = r == 2 ? 0.1 * factors[w] : 0.1;
        straggler_judge(s, seconds, one_group, RANKS);
        raised += s[2].raised;
        cleared += s[2].cleared;
        assert_true(s[2].slow == (w >= 2 && w <= 5));
    }
    assert_int_equal(raised, 1);
    assert_int_equal(cleared, 1);
}

/* Stages of a pipeline have different work; of two ranks the slower is named; microseconds do not count. */
static void ranks_are_compared_with_their_peers(void **state) {
    static const int stages[4] = { 0, 0, 1, 1 };
    straggler s[4] = { 0 };
    for (int w = 0; w < STRAGGLER_WINDOWS; w++)
        straggler_judge(s, (double[]){ 0.1, 0.1, 0.2, 0.27 }, stages, 4);
    assert_true(!s[0].slow && !s[1].slow && !s[2].slow && s[3].slow);
    straggler tiny[2] = { 0 };
    for (int w = 0; w < 10; w++) straggler_judge(tiny, (double[]){ 0.001, 0.002 }, stages, 2);
    assert_false(tiny[1].slow);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_slowed_by_30_percent_is_named_within_50_steps),
        cmocka_unit_test(healthy_ranks_are_not_named),
        cmocka_unit_test(single_slow_steps_do_not_count),
        cmocka_unit_test(it_is_named_once_and_cleared_with_hysteresis),
        cmocka_unit_test(ranks_are_compared_with_their_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
