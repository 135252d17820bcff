/* When validation, samples, saves and log lines come due: in steps, tokens or time. */
#include "support/train.h"

#include "train/lengths_internal.h"

static void steps_tokens_and_seconds_come_due(void **state) {
    cadences every = { .log = { 3, CFG_STEPS },
                       .save = { 100, CFG_TOKENS },
                       .sample = { 10, CFG_SECONDS, 1010 } };
    char log[13] = "", save[13] = "", sample[13] = "";
    static const double now[] = { 1001, 1009.9, 1010, 1011, 1019, 1020.5,
                                  1021, 1055,   1056, 1060, 1061, 1062 };
    for (int i = 0; i < 12; i++) {
        due_events due = cadences_due(&every, i + 1, 40 * (i + 1), 40, now[i]);
        log[i] = due.log ? 'x' : '.';
        save[i] = due.save ? 'x' : '.';
        sample[i] = due.sample ? 'x' : '.';
        assert_false(due.validate || due.detail || due.tensorboard);
    }
    assert_string_equal(log, "..x..x..x..x");
    assert_string_equal(save, "..x.x..x.x..");   /* of 100, 200, 300, 400 tokens */
    assert_string_equal(sample, "..x..x.x.x.."); /* a pause of 35 s is not caught up with */
}

/* An interval that every step exceeds: each of them saves, validates and samples. */
static void a_run_takes_intervals_in_time(void **state) {
    test_folder *f = *state;
    train_small(f, "a",
                (settings){ "validation.every", "1e-9s", "sample.every", "1e-9 seconds",
                            "sample.tokens", "2", "checkpoint.every", "1e-9m", "metrics.log_every",
                            "1h", "checkpoint.keep_latest_k", "0", "metrics.detail_every", "10h" });
    json_t *steps = logged_steps(f, "a");
    assert_int_equal(json_array_size(steps), 8);
    for (size_t i = 0; i < 8; i++) {
        char path[64];
        assert_true(logged_number(steps, i, "val_loss") > 0);
        assert_null(json_object_get(json_array_get(steps, i), "param_norm"));
        snprintf(path, sizeof path, "a/checkpoints/step-%08zu/manifest.json", i + 1);
        assert_true(io_exists(in_folder(f, path)));
    }
    json_decref(steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_tokens_and_seconds_come_due),
        cmocka_unit_test_setup_teardown(a_run_takes_intervals_in_time, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
