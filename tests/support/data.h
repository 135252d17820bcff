/* The tests of data/ share these: a temporary folder, and loaders that must open. */
#ifndef INGOT_TESTS_DATA_H
#define INGOT_TESTS_DATA_H

#include "support/folder.h"

#include "shards/data.h"

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
