/* main of a fuzz target without libFuzzer: mutates the files it is given, at random. Finds less than a
 * fuzzer that is guided by coverage; runs with any compiler.
 *
 *     fuzz_NAME -runs=N | -seconds=S  FILE...      prints how many inputs were run; a fault ends it
 *
 * With -runs the mutations are the same every time. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

typedef struct input {
    uint8_t *at;
    size_t n;
} input;

enum { MOST_BYTES = 1 << 20 };

/* @return the files' bytes, owned, as is what they point to. */
static input *read_seeds(char **path, int n) {
    input *seed = mem_alloc((size_t)n * sizeof *seed);
    uint8_t *bytes = mem_grow(NULL, MOST_BYTES);
    for (int i = 0; i < n; i++) {
        FILE *f = fopen(path[i], "rb");
        if (!f) continue;
        seed[i].n = fread(bytes, 1, MOST_BYTES, f);
        seed[i].at = mem_grow(NULL, MAX(seed[i].n, (size_t)1));
        memcpy(seed[i].at, bytes, seed[i].n);
        fclose(f);
    }
    free(bytes);
    return seed;
}

/* Copies a part of the input over another: headers, counts and brackets at the wrong offset. */
static void copy_part(input *in, rng_key key, uint64_t *draw) {
    size_t from = (size_t)rng_below(key, (*draw)++, in->n);
    size_t to = (size_t)rng_below(key, (*draw)++, in->n);
    size_t n = (size_t)rng_below(key, (*draw)++, MIN(in->n - MAX(from, to), (size_t)64) + 1);
    memmove(in->at + to, in->at + from, n);
}

/* Changes some bytes, now and then copies a part, and now and then shortens it. */
static void mutate(input *in, rng_key key, uint64_t *draw) {
    static const uint8_t edges[] = { 0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', '<', '\\', '-', '\n' };
    uint64_t changes = 1 + rng_below(key, (*draw)++, 8);
    for (uint64_t i = 0; i < changes && in->n > 0; i++) {
        size_t where = (size_t)rng_below(key, (*draw)++, in->n);
        uint32_t value = rng_u32(key, (*draw)++);
        in->at[where] = value & 0x100 ? edges[value % COUNT_OF(edges)] : (uint8_t)value;
    }
    if (in->n > 0 && rng_below(key, (*draw)++, 4) == 0) copy_part(in, key, draw);
    if (in->n > 0 && rng_below(key, (*draw)++, 16) == 0) in->n = rng_below(key, (*draw)++, in->n);
}

int main(int argc, char **argv) {
    bool by_runs = argc > 2 && str_starts(argv[1], "-runs=");
    if (!by_runs && !(argc > 2 && str_starts(argv[1], "-seconds="))) {
        fprintf(stderr, "usage: %s -runs=N|-seconds=S FILE...\n", argv[0]);
        return 2;
    }
    double limit = atof(strchr(argv[1], '=') + 1), began = time_now();
    rng_key key = rng_key_of(by_runs ? 1 : (uint64_t)(began * 1e6), 1);
    uint64_t draw = 0, runs = 0, seeds = (uint64_t)(argc - 2);
    input *seed = read_seeds(argv + 2, argc - 2);
    uint8_t *work = mem_grow(NULL, MOST_BYTES);
    while (by_runs ? (double)runs < limit : time_now() < began + limit) {
        input in = { work, seed[runs % seeds].n };
        if (in.n) memcpy(work, seed[runs % seeds].at, in.n);
        if (runs >= seeds) mutate(&in, key, &draw);            /* first as they are */
        uint8_t *exact = mem_grow(NULL, MAX(in.n, (size_t)1)); /* a read beyond its end is seen */
        if (in.n) memcpy(exact, work, in.n);
        LLVMFuzzerTestOneInput(exact, in.n);
        free(exact);
        runs++;
    }
    for (uint64_t i = 0; i < seeds; i++) free(seed[i].at);
    free(seed);
    free(work);
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}
