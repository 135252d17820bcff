/* Which of several replicas is corrupt, from hashes. */
#include "support/test.h"

#include "train/health_internal.h"

static void the_odd_one_of_a_group_is_named(void **state) {
    bool bad[6];
    /* Two groups of three: what ranks of different groups hold is not compared. */
    replica all[6] = { { 1, 10 }, { 2, 20 }, { 1, 10 }, { 2, 20 }, { 1, 10 }, { 2, 20 } };
    assert_int_equal(replicas_judge(all, 6, bad), 0);
    all[3].bytes = 21;
    assert_int_equal(replicas_judge(all, 6, bad), 1);
    for (int r = 0; r < 6; r++) assert_true(bad[r] == (r == 3));
}

static void of_two_both_are_named(void **state) {
    bool bad[3];
    replica all[3] = { { 1, 10 }, { 1, 11 }, { 2, 5 } };
    assert_int_equal(replicas_judge(all, 3, bad), 2);
    assert_true(bad[0] && bad[1] && !bad[2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_odd_one_of_a_group_is_named),
        cmocka_unit_test(of_two_both_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
