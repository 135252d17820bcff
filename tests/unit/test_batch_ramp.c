/* Steps and windows of a batch that grows, against a count step by step. */
#include "support/test.h"

#include "shards/data.h"

static int64_t count_steps(const batch_ramp *r, int64_t from, int64_t to) {
    int64_t steps = 0;
    for (int64_t at = from; at < to; at += batch_ramp_size(r, at)) steps++;
    return steps;
}

static int64_t count_windows(const batch_ramp *r, int64_t steps) {
    int64_t at = 0;
    for (int64_t i = 0; i < steps; i++) at += batch_ramp_size(r, at);
    return at;
}

static const batch_ramp ramps[] = {
    { .unit = 4, .full = 16 },
    { .unit = 4, .full = 16, .start = 4, .windows = 160 },
    { .unit = 4, .full = 16, .start = 4, .windows = 160, .end = 640 },
    { .unit = 4, .full = 16, .start = 4, .windows = 160, .end = 92 },
    { .unit = 1, .full = 97, .start = 3, .windows = 5000, .end = 7001 },
    { .unit = 8, .full = 64, .start = 5, .windows = 3 },
    { .unit = 2, .full = 12, .start = 12, .windows = 100, .end = 30 },
    { .unit = 2, .full = 24, .start = 4, .increment = 10, .windows = 90 },
    { .unit = 8, .full = 24, .start = 4, .increment = 2, .windows = 900, .end = 1776 },
    { .unit = 2, .full = 16, .n_phases = 1, .phases = { { 4, 90 } } },
    { .unit = 2,
      .full = 16,
      .n_phases = 3,
      .phases = { { 4, 91 }, { 8, 100 }, { 6, 2000 } },
      .end = 3002 },
    { .unit = 4, .full = 16, .n_phases = 2, .phases = { { 5, 90 }, { 16, 400 } }, .end = 92 },
};

static void counts_agree_with_single_steps(void **state) {
    for (size_t k = 0; k < COUNT_OF(ramps); k++) {
        const batch_ramp *r = &ramps[k];
        for (int64_t steps = 0; steps < 200; steps++)
            assert_int_equal(batch_ramp_windows(r, steps), count_windows(r, steps));
        for (int64_t to = 0; to < 8000; to += 13)
            assert_int_equal(batch_ramp_steps(r, 0, to), count_steps(r, 0, to));
        int64_t from = count_windows(r, 7);
        for (int64_t to = from; to < from + 900; to += 7)
            assert_int_equal(batch_ramp_steps(r, from, to), count_steps(r, from, to));
    }
}

static void no_step_crosses_the_end(void **state) {
    for (size_t k = 0; k < COUNT_OF(ramps); k++) {
        const batch_ramp *r = &ramps[k];
        bool met = r->end == 0;
        for (int64_t at = 0; at < 8000; at += batch_ramp_size(r, at)) met = met || at == r->end;
        assert_true(met);
    }
}

/* As Megatron's --rampup-batch-size START INCREMENT SAMPLES: every increment lasts as many samples. */
static void increments_are_equal_parts_of_the_ramp(void **state) {
    batch_ramp r = { .unit = 1, .full = 32, .start = 8, .increment = 4, .windows = 600 };
    for (int64_t at = 0; at < 800; at++)
        assert_int_equal(batch_ramp_size(&r, at), at < 600 ? 8 + at / 100 * 4 : 32);
}

/* A phase has the steps that begin before its end; after the last one steps are full. */
static void phases_end_where_they_say(void **state) {
    batch_ramp r = {
        .unit = 1, .full = 32, .n_phases = 3, .phases = { { 8, 100 }, { 4, 140 }, { 16, 600 } }
    };
    for (int64_t at = 0; at < 800; at++)
        assert_int_equal(batch_ramp_size(&r, at), at < 100 ? 8 : at < 140 ? 4 : at < 600 ? 16 : 32);
}

/* The sizes of steps are the same for every unit that divides them; others round each up. */
static void sizes_do_not_depend_on_the_unit(void **state) {
    for (int64_t unit = 1; unit <= 16; unit++)
        for (int64_t at = 0; at < 500; at++) {
            batch_ramp one = { .unit = 1, .full = 48, .start = 8, .windows = 333 }, r = one;
            r.unit = unit;
            int64_t size = batch_ramp_size(&one, at);
            assert_int_equal(batch_ramp_size(&r, at), ceil_div(size, unit) * unit);
        }
}

/* A count takes as long as there are sizes of steps, not steps. */
static void long_runs_are_counted_at_once(void **state) {
    batch_ramp r = { .unit = 1, .full = 1024, .start = 32, .windows = INT64_MAX / 4 };
    assert_true(batch_ramp_steps(&r, 0, INT64_MAX / 2) > INT64_MAX / 4096);
    assert_int_equal(batch_ramp_windows(&r, INT64_MAX - 1), INT64_MAX);
    assert_int_equal(batch_ramp_windows(&r, 1000), 32000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_agree_with_single_steps),
        cmocka_unit_test(no_step_crosses_the_end),
        cmocka_unit_test(increments_are_equal_parts_of_the_ramp),
        cmocka_unit_test(phases_end_where_they_say),
        cmocka_unit_test(sizes_do_not_depend_on_the_unit),
        cmocka_unit_test(long_runs_are_counted_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
