/* Plots for terminals. */
#include "support/test.h"

#include <math.h>

#include "planning/planning.h"

/* The extreme points are in the corners, no line ends in blanks, and what is not a number is left out. */
static void points_are_where_they_belong(void **state) {
    const double x[] = { 1, 10, 100, 1000 }, y[] = { 4, NAN, 2, 1 };
    const plot_series s[] = { { x, y, 4, '*', "loss" } };
    str out = { 0 };
    plot_draw(&out, s, 1, "tokens", "loss");
    int rows = 0, marks = 0, first = -1, last = -1;
    size_t left = 0, right = 0;
    for (const char *line = out.text; *line; line += strcspn(line, "\n") + 1) {
        size_t n = strcspn(line, "\n"), at = strcspn(line, "*\n");
        const char *bar = memchr(line, '|', n);
        if (!bar) continue;
        if (line + n > bar + 1) assert_true(line[n - 1] != ' ');
        rows++;
        if (at >= n) continue;
        marks++;
        if (first < 0) first = rows, left = at - (size_t)(bar - line);
        last = rows, right = at - (size_t)(bar - line);
    }
    assert_int_equal(marks, 3);
    assert_int_equal(first, 1);
    assert_int_equal(last, rows);
    assert_true(left == 1 && right > 40);
    str_free(&out);
}

static void nothing_is_drawn_of_nothing(void **state) {
    const double x[] = { 1 }, y[] = { NAN };
    const plot_series s[] = { { x, y, 1, '*', NULL } };
    str out = { 0 };
    plot_draw(&out, s, 1, "x", "y");
    assert_int_equal(out.len, 0);
    str_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_are_where_they_belong),
        cmocka_unit_test(nothing_is_drawn_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
