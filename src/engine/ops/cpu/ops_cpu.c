/* Chooses the copy of the CPU ops for this processor. */
#include "ops/ops.h"
#include "ops/cpu_features.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#define X(isa) extern const op_backend backend_##isa;
CPU_ISA_TABLE
#undef X

static const op_backend *const backends[] = {
#define X(isa) &backend_##isa,
    CPU_ISA_TABLE
#undef X
};

static_assert(COUNT_OF(backends) < 32, "a bit for each");
/* @return a bit for each backend that this processor can run. Found out once: in a virtual machine cpuid traps
 * to the hypervisor, which takes as long as a small op. Never 0, as the weakest is always among them. */
static uint32_t usable_backends(void) {
    static _Atomic uint32_t known; /* threads that come here at once find the same */
    uint32_t bits = atomic_load_explicit(&known, memory_order_relaxed);
    if (bits) return bits;
    for (size_t b = 0; b < COUNT_OF(backends); b++)
        if (cpu_has_isa(backends[b]->name)) bits |= 1u << b;
    atomic_store_explicit(&known, bits, memory_order_relaxed);
    return bits;
}

/* @return the i-th backend that this processor can run, weakest first; NULL past the end. */
static const op_backend *usable_backend(int i) {
    int seen = 0;
    for (size_t b = 0; b < COUNT_OF(backends); b++)
        if (usable_backends() >> b & 1 && seen++ == i) return backends[b];
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
