/* A folder for the time of a test, as its state: char *, and errors that speak. */
#ifndef INGOT_TESTS_FOLDER_STATE_H
#define INGOT_TESTS_FOLDER_STATE_H

#include <stdlib.h>
#include <string.h>

#include "io/io.h"

static inline int folder_setup(void **state) {
    char *dir = strdup("/tmp/ingot_test_XXXXXX"); /* mkdtemp's pattern */
    log_set_level(LOG_WARN);
    *state = dir;
    return mkdtemp(dir) ? 0 : -1;
}

static inline int folder_teardown(void **state) {
    err e = io_remove_tree("/tmp", *state);
    free(*state);
    err_free(e);
    return e != OK;
}

static inline void assert_fine(err e) {
    if (e) fail_msg("%s", err_message(e));
}

#endif
