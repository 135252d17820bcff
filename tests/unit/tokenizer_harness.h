/* What the tests of tokenizers share. */
#ifndef INGOT_TEST_TOKENIZER_HARNESS_H
#define INGOT_TEST_TOKENIZER_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"
#include "tokenizer/tokenizer_internal.h"

static inline void assert_ok(err e) {
    if (e) err_print(stderr, e, true);
    assert_null(e);
}

/* The error must say `word`; it is freed. */
static inline void assert_err(err e, const char *word) {
    assert_non_null(e);
    if (!strstr(err_message(e), word))
        fail_msg("expected an error with \"%s\", got \"%s\"", word, err_message(e));
    err_free(e);
}

static inline int make_dir(void **state) {
    char *dir = mem_alloc(64);
    snprintf(dir, 64, "/tmp/test_tokenizer.XXXXXX");
    *state = dir;
    return mkdtemp(dir) ? 0 : -1;
}

static inline int drop_dir(void **state) {
    err_free(io_remove_tree("/tmp", *state));
    free(*state);
    return 0;
}

#define FIXTURE(name) FIXTURES "/tokenizers/" name ".json"

static inline tokenizer *open_tokenizer(const char *path, const char *pattern) {
    tokenizer *t = NULL;
    assert_ok(tokenizer_open(path, pattern, &t));
    return t;
}

/* Encodes with a fresh encoder. */
static inline token_ids ids_of(const tokenizer *t, const char *text, size_t n, bool special) {
    encoder *e = encoder_new(t);
    token_ids ids = { 0 };
    encoder_add(e, text, n, special, &ids);
    encoder_free(e);
    return ids;
}

static inline void assert_same_ids(const token_ids *a, const token_ids *b) {
    assert_int_equal(a->n, b->n);
    if (a->n) assert_memory_equal(a->at, b->at, a->n * sizeof *a->at);
}

/* A small source of chance. */
typedef struct chance {
    rng_key key;
    uint64_t at;
} chance;
static inline uint64_t below(chance *c, uint64_t n) { return rng_below(c->key, c->at++, n); }

#endif
