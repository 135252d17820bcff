/* What the tests of data/ share: errors that speak, a folder of their own, a loader in a line. */
#ifndef INGOT_TESTS_DATA_HARNESS_H
#define INGOT_TESTS_DATA_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/data.h"
#include "io/io.h"

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        err assert_ok_ = (expr);                                                                   \
        if (assert_ok_) err_print(stderr, assert_ok_, true);                                       \
        assert_null(assert_ok_);                                                                   \
    } while (0)

/* The error must speak of each of these. */
static inline void assert_error(err e, const char *first, const char *second) {
    assert_non_null(e);
    bool speaks = strstr(err_message(e), first) && strstr(err_message(e), second);
    if (!speaks) err_print(stderr, e, true);
    assert_true(speaks);
    err_free(e);
}
static inline void assert_says(err e, const char *what) { assert_error(e, what, ""); }

/* ---- a folder for the time of a test ------------------------------------------------------------ */
typedef struct test_folder {
    char path[64], file[128];
} test_folder;

static inline int folder_make(test_folder *f) {
    strcpy(f->path, "/tmp/ingot-data-XXXXXX"); /* mkdtemp's pattern */
    return mkdtemp(f->path) ? 0 : -1;
}
static inline int folder_remove(test_folder *f) {
    err e = io_remove_tree("/tmp", f->path);
    bool failed = e != OK;
    err_free(e);
    return failed;
}
static inline int make_folder(void **state) {
    *state = calloc(1, sizeof(test_folder));
    return folder_make(*state);
}
static inline int remove_folder(void **state) {
    int failed = folder_remove(*state);
    free(*state);
    return failed;
}

static inline const char *in_folder(test_folder *f, const char *name) {
    snprintf(f->file, sizeof f->file, "%s/%s", f->path, name);
    return f->file;
}
static inline const char *write_file(test_folder *f, const char *name, const void *bytes,
                                     size_t n) {
    const char *path = in_folder(f, name);
    assert_ok(io_write(path, bytes, n));
    return path;
}

/* ---- loaders --------------------------------------------------------------------------------------- */
static inline loader *loader_of(const data_source *s, loader_options o) {
    loader *l = NULL;
    assert_ok(loader_new(s, &o, &l));
    return l;
}
static inline data_batch next(loader *l) {
    data_batch b;
    assert_ok(loader_next(l, &b));
    return b;
}

#endif
