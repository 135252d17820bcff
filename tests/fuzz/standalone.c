/* main of a fuzz target without libFuzzer: mutates the files it is given, at random, for some seconds.
 * Finds less than a fuzzer that is guided by coverage; runs with any compiler.
 *
 *     fuzz_NAME SECONDS FILE...      prints how many inputs were run; a fault ends it */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

typedef struct input {
    uint8_t *at;
    size_t n;
} input;

static input read_input(const char *path) {
    input in = { 0 };
    FILE *f = fopen(path, "rb");
    if (!f) return in;
    in.at = mem_grow(NULL, 1 << 20);
    in.n = fread(in.at, 1, 1 << 20, f);
    fclose(f);
    return in;
}

/* Changes some bytes, and now and then the length. */
static void mutate(input *in, rng_key key, uint64_t *at) {
    uint64_t changes = 1 + rng_below(key, (*at)++, 8);
    for (uint64_t i = 0; i < changes && in->n > 0; i++) {
        size_t where = (size_t)rng_below(key, (*at)++, in->n);
        in->at[where] = (uint8_t)rng_u32(key, (*at)++);
    }
    if (in->n > 0 && rng_below(key, (*at)++, 16) == 0) in->n = rng_below(key, (*at)++, in->n);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s SECONDS FILE...\n", argv[0]);
        return 2;
    }
    double end = time_now() + atof(argv[1]);
    rng_key key = rng_key_of((uint64_t)(time_now() * 1e6), 1);
    uint64_t at = 0, runs = 0;
    while (time_now() < end)
        for (int i = 2; i < argc; i++, runs++) {
            input in = read_input(argv[i]);
            if (runs >= (uint64_t)argc) mutate(&in, key, &at); /* first as they are */
            LLVMFuzzerTestOneInput(in.at, in.n);
            free(in.at);
        }
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}
