/* The main function of all unit tests.
 *
 *     tests/test_NAME                    runs that test: the link's name chooses it
 *     tests/run_tests NAME...            runs these, one after the other in one process
 *
 * tests.def, which CMake writes, has a row TEST(name) for each file. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "util/util.h"

#define TEST(name) int name(void);
#include "tests.def"
#undef TEST

static const struct {
    const char *name;
    int (*run)(void); /* @return the number of failures */
} tests[] = {
#define TEST(name) { #name, name },
#include "tests.def"
#undef TEST
};

/* @return the number of failures; -1: there is no such test */
static int run_test(const char *name) {
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        if (strcmp(tests[i].name, name) == 0) {
            clock_t from = clock();
            int failures = tests[i].run();
            fprintf(stderr, "%s: %.1f CPU seconds\n", name,
                    (double)(clock() - from) / CLOCKS_PER_SEC);
            return failures;
        }
    return -1;
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *own = slash ? slash + 1 : argv[0];
    int failures = argc == 1 ? run_test(own) : 0;
    for (int i = 1; i < argc && failures >= 0; i++) {
        int n = run_test(argv[i]);
        failures = n < 0 ? n : failures + n;
    }
    if (failures < 0) {
        fprintf(stderr,
                "usage: run_tests NAME..., each the name of a file test_*.c without its end\n");
        return 2;
    }
    return failures > 0;
}
