/* Instruction sets of arm64, from the capability bits that the kernel passes to every process. */
#include "ops/cpu_features.h"

#include <string.h>
#include <sys/auxv.h>

/* Bits of the kernel's asm/hwcap.h; older headers lack the last. */
enum { CAP_FPHP = 1 << 9, CAP_ASIMDHP = 1 << 10, CAP2_BF16 = 1 << 14 };

static bool always_present(void) { return true; }

static bool has_bf16(void) {
    unsigned long need = CAP_FPHP | CAP_ASIMDHP;
    return (getauxval(AT_HWCAP) & need) == need && (getauxval(AT_HWCAP2) & CAP2_BF16);
}

static const struct {
    const char *isa;
    bool (*has)(void);
} table[] = { { "neon", always_present }, { "neon_bf16", has_bf16 } };

bool cpu_has_isa(const char *isa) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].isa, isa)) return table[i].has();
    return false;
}
