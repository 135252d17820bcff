/* Chooses the copy of the CPU ops for this processor. */
#include "ops/ops.h"
#include "ops/cpu_features.h"

#include <string.h>

#define X(isa) extern const op_backend backend_##isa;
CPU_ISA_TABLE
#undef X

static const op_backend *const backends[] = {
#define X(isa) &backend_##isa,
    CPU_ISA_TABLE
#undef X
};

/* @return the i-th backend that this processor can run, weakest first; NULL past the end. */
static const op_backend *usable_backend(int i) {
    int seen = 0;
    for (size_t b = 0; b < COUNT_OF(backends); b++)
        if (cpu_has_isa(backends[b]->name) && seen++ == i) return backends[b];
    return NULL;
}

const char *ops_cpu_isa(int i) {
    const op_backend *b = usable_backend(i);
    return b ? b->name : NULL;
}

const op_backend *ops_cpu(const char *isa) {
    const op_backend *found = NULL;
    for (int i = 0; usable_backend(i); i++)
        if (isa == OPS_ISA_BEST || !strcmp(usable_backend(i)->name, isa)) found = usable_backend(i);
    return found;
}
