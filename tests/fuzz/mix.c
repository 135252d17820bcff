/* Any bytes as a mix file. */
#include "fuzz/fuzz.h"

#include "shards/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    mix_file m;
    log_set_level(LOG_ERROR);
    err e = mix_file_read(fuzz_write("mix.yaml", data, n), &m);
    if (!e) mix_file_free(&m);
    err_free(e);
    return 0;
}
