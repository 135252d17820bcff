/* The peak that MFU is measured against. */
#include "support/folder.h"

#include <math.h>

#include "train/measure_internal.h"

typedef struct meter {
    double value;
    int calls;
} meter;

static double read_meter(void *ctx) {
    meter *m = ctx;
    m->calls++;
    return m->value;
}

/* A peak measured under load is measured again once a step exceeds it, and never stays below a step. */
static void no_step_exceeds_the_peak(void **state) {
    meter free = { .value = 100 }, busy = { .value = 20 };
    assert_true(peak_after(30, 25, read_meter, &free) == 30);
    assert_int_equal(free.calls, 0);
    assert_true(peak_after(30, 93, read_meter, &free) == 100);
    assert_int_equal(free.calls, 1);
    assert_true(peak_after(30, 93, read_meter, &busy) == 93);
    assert_true(peak_after(30, NAN, read_meter, &busy) == 30);
}

/* Validations that follow each other closely do not spend their time on it. */
static void the_peak_is_measured_now_and_then(void **state) {
    assert_false(peak_is_due(1000, 1000.5));
    assert_false(peak_is_due(1000, 1009));
    assert_true(peak_is_due(1000, 1010));
}

/* A machine's peak is read back as it was kept; others in the file stay. */
static void a_peak_is_kept_per_machine(void **state) {
    const char *path = in_folder(*state, "cpu-peak.txt");
    assert_true(isnan(peak_read(path, "a Xeon amx 2 fp32")));
    peak_write(path, "a Xeon amx 2 fp32", 2.5e11);
    peak_write(path, "a Xeon amx 2", 7e10);
    peak_write(path, "b Xeon amx 2 fp32", 1e11);
    peak_write(path, "a Xeon amx 2 fp32", 2.75e11);
    assert_true(peak_read(path, "a Xeon amx 2 fp32") == 2.75e11);
    assert_true(peak_read(path, "a Xeon amx 2") == 7e10);
    assert_true(peak_read(path, "b Xeon amx 2 fp32") == 1e11);
    assert_true(isnan(peak_read(path, "a Xeon amx")));
    folder_write(*state, "cpu-peak.txt", "a: nonsense\nb: -1\nc: inf\n\n: 3\n");
    assert_true(isnan(peak_read(path, "a")) && isnan(peak_read(path, "b")) &&
                isnan(peak_read(path, "c")));
}

static void an_idle_machine_runs_nothing_else(void **state) {
    assert_true(peak_machine_is_idle("0.10 0.20 0.30 1/234 5678\n"));
    assert_false(peak_machine_is_idle("0.10 0.20 0.30 2/234 5678\n"));
    assert_false(peak_machine_is_idle("9.10 8.20 8.30 17/234 5678\n"));
    assert_false(peak_machine_is_idle(""));
    assert_false(peak_machine_is_idle("/"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_exceeds_the_peak),
        cmocka_unit_test(the_peak_is_measured_now_and_then),
        cmocka_unit_test(an_idle_machine_runs_nothing_else),
        cmocka_unit_test_setup_teardown(a_peak_is_kept_per_machine, folder_setup, folder_teardown)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
