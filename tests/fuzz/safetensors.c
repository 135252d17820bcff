/* Any bytes as a safetensors file: all of what is accepted is read. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "checkpoint/checkpoint.h"

static volatile float sum;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    st_file *f = NULL;
    err e = st_open(fuzz_write("model.safetensors", data, n), &f);
    for (int i = 0; !e && i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        float *values = mem_alloc((size_t)t->count * sizeof *values + 1);
        err_free(st_read_f32(t, 0, t->count, values)); /* some types are not ours */
        for (int64_t k = 0; k < t->count; k++) sum += values[k];
        free(values);
    }
    err_free(e);
    st_close(f);
    return 0;
}
