/* A folder of its own for each test, removed afterwards; files in and out of it. */
#ifndef INGOT_CURATE_PLACE_H
#define INGOT_CURATE_PLACE_H

#include "io/io.h"

#include <stdlib.h>
#include <string.h>

typedef struct place {
    char dir[64];
    arena *memory; /* of paths */
} place;

static int place_setup(void **state) {
    place *p = mem_alloc(sizeof *p);
    p->memory = arena_new();
    snprintf(p->dir, sizeof p->dir, "/tmp/ingot_curate_XXXXXX");
    *state = p;
    return mkdtemp(p->dir) ? 0 : -1;
}

static int place_teardown(void **state) {
    place *p = *state;
    err e = io_remove_tree("/tmp", p->dir);
    arena_free(p->memory);
    free(p);
    err_free(e);
    return e != OK;
}

/* @return valid until the end of the test. */
static inline const char *in(place *p, const char *name) {
    return arena_printf(p->memory, "%s/%s", p->dir, name);
}

static inline void assert_fine(err e) {
    if (e) fail_msg("%s", err_message(e));
}

static inline void assert_fails(err e, const char *part) {
    assert_non_null(e);
    if (!strstr(err_message(e), part)) fail_msg("no \"%s\" in \"%s\"", part, err_message(e));
    err_free(e);
}

static inline void put(place *p, const char *name, const char *text) {
    assert_fine(io_write(in(p, name), text, strlen(text)));
}

/* @return owned. */
static inline char *get(place *p, const char *name) {
    char *text = NULL;
    assert_fine(io_read(in(p, name), 1 << 28, &text, NULL));
    return text;
}

static inline void assert_same_files(place *p, const char *a, const char *b) {
    char *x = get(p, a), *y = get(p, b);
    if (strcmp(x, y) != 0) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

#endif
