/* The peak that MFU is measured against. */
#include "support/test.h"

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

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(no_step_exceeds_the_peak),
                                        cmocka_unit_test(the_peak_is_measured_now_and_then) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
