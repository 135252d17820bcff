/* The tests of tokenizers share these: opening fixtures, encoding, comparing ids, random draws. */
#ifndef INGOT_TESTS_TOKENIZER_H
#define INGOT_TESTS_TOKENIZER_H

#include "support/folder.h"

#include "tokenizer/tokenizer_internal.h"

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
