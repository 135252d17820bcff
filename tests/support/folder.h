/* A temporary folder per test, removed afterwards, and files in it.
 *
 *     cmocka_unit_test_setup_teardown(a_file_is_read, folder_setup, folder_teardown)
 *
 *     static void a_file_is_read(void **state) {
 *         test_folder *f = *state;
 *         assert_ok(thing_read(folder_write(f, "a.txt", "text")));
 *     }
 */
#ifndef INGOT_TESTS_FOLDER_H
#define INGOT_TESTS_FOLDER_H

#include "support/test.h"

#include "io/io.h"

#include <assert.h>
#include <unistd.h>

typedef struct test_folder {
    char path[96];
    arena *names; /* paths made by in_folder; NULL until the first */
} test_folder;

/* Tests that need the path alone read their state as one: `const char *dir = *state;`. */
static_assert(offsetof(test_folder, path) == 0, "the state of a test is also the folder's path");

static inline const char *folder_root(void) {
    const char *root = getenv("TMPDIR");
    return root && strlen(root) < 64 ? root : "/tmp";
}

/* @return 0, as cmocka expects of a setup. */
static inline int folder_make(test_folder *f) {
    *f = (test_folder){ 0 };
    snprintf(f->path, sizeof f->path, "%s/ingot-test-XXXXXX", folder_root());
    return mkdtemp(f->path) ? 0 : -1;
}

static inline int folder_remove(test_folder *f) {
    err e = io_remove_tree(folder_root(), f->path);
    if (e) err_print(stderr, e, true);
    err_free(e);
    arena_free(f->names);
    return e || io_exists(f->path) ? -1 : 0;
}

static inline int folder_setup(void **state) {
    log_set_level(LOG_WARN);
    *state = mem_alloc(sizeof(test_folder));
    return folder_make(*state);
}

static inline int folder_teardown(void **state) {
    int failed = folder_remove(*state);
    free(*state);
    return failed;
}

/* @return the path of `name` in the folder, valid until the end of the test. */
static inline const char *in_folder(test_folder *f, const char *name) {
    if (!f->names) f->names = arena_new();
    return arena_printf(f->names, "%s/%s", f->path, name);
}

/* Writes without the fsync of io_write, which would take most of a test's time. */
static inline void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* @return the path, valid until the end of the test. */
static inline const char *folder_write_bytes(test_folder *f, const char *name, const void *bytes,
                                             size_t n) {
    const char *path = in_folder(f, name);
    write_bytes(path, bytes, n);
    return path;
}
static inline const char *folder_write(test_folder *f, const char *name, const char *text) {
    return folder_write_bytes(f, name, text, strlen(text));
}

/* @return owned, ends with a zero byte. */
static inline char *folder_read(test_folder *f, const char *name) {
    char *text = NULL;
    assert_ok(io_read(in_folder(f, name), 1 << 28, &text, NULL));
    return text;
}

static inline void assert_same_files(test_folder *f, const char *a, const char *b) {
    char *x = folder_read(f, a), *y = folder_read(f, b);
    if (strcmp(x, y) != 0) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

#endif
