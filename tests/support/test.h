/* Every test includes this first: cmocka with the headers it needs, and assertions on err.
 *
 *     assert_ok(io_read(path, 1 << 20, &text, NULL));
 *     assert_error(io_read("/nowhere", 1, &text, NULL), "cannot open", "/nowhere");
 */
#ifndef INGOT_TESTS_TEST_H
#define INGOT_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#ifdef main /* a function of run_tests.c's program */
int main(void);
#endif

/* Sanitizers, under which a test takes up to ten times as long, look for wrong accesses and races, not for values that
 * differ: what runs the same code on other values runs less often. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* A reference: sanitizers would watch every element of its sums, for minutes. */
#define UNWATCHED __attribute__((no_sanitize("address"), no_sanitize("undefined")))

/* Fails with the error's message and trail unless `expr` is OK. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        err assert_ok_ = (expr);                                                                   \
        if (assert_ok_) {                                                                          \
            err_print(stderr, assert_ok_, true);                                                   \
            err_free(assert_ok_);                                                                  \
            fail_msg("expected no error from %s", #expr);                                          \
        }                                                                                          \
    } while (0)

/* `expr` must be an error whose message contains every one of the strings that follow. Frees it. */
#define assert_error(expr, ...)                                                                    \
    do {                                                                                           \
        const char *assert_error_parts_[] = { __VA_ARGS__ };                                       \
        err assert_error_ = (expr);                                                                \
        if (!assert_error_) fail_msg("expected an error from %s", #expr);                          \
        for (size_t i_ = 0; i_ < COUNT_OF(assert_error_parts_); i_++)                              \
            if (!strstr(err_message(assert_error_), assert_error_parts_[i_]))                      \
                fail_msg("no \"%s\" in the error \"%s\"", assert_error_parts_[i_],                 \
                         err_message(assert_error_));                                              \
        err_free(assert_error_);                                                                   \
    } while (0)

#endif
