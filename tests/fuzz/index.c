/* Any bytes as an index of keys. The checksums of the first filter are made right half of the time, so that what follows
 * them is reached. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "curate/dedup_internal.h"

static void repair_checksums(uint8_t *at, size_t n) {
    uint64_t words, hash;
    if (n < 64) return;
    memcpy(&words, at + 24, 8);
    if (words <= (n - 64) / 8) {
        hash = hash_bytes(at + 64, words * 8, 0);
        memcpy(at + 40, &hash, 8);
    }
    hash = hash_bytes(at, 48, 0);
    memcpy(at + 48, &hash, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    key_index *x = NULL;
    if (n == 0) return 0;
    uint8_t *copy = malloc(n);
    memcpy(copy, data, n);
    if (data[n - 1] & 1) repair_checksums(copy, n);
    err e = key_index_open(fuzz_write("a.index", copy, n), 7, &x);
    if (!e)
        for (uint64_t key = 1; key; key *= 2) key_index_has(x, key);
    key_index_close(x);
    err_free(e);
    free(copy);
    return 0;
}
