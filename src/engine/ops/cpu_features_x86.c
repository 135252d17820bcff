/* Instruction sets of x86. A set is usable when the processor has the instructions (cpuid) and the system
 * saves their registers (XCR0). Linux grants the AMX tile registers only to processes that request them. */
#include "ops/cpu_features.h"

#include <cpuid.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };
enum {
    STATE_AVX = 0x6,     /* sse, ymm */
    STATE_AVX512 = 0xe6, /* and opmask, the upper halves, zmm16-31 */
    STATE_AMX = 0x60000  /* tile configuration and data */
};

typedef struct feature {
    uint32_t leaf, subleaf;
    int reg, bit;
} feature;

static const feature osxsave = { 1, 0, ECX, 27 };
static const feature sse2[] = { { 1, 0, EDX, 26 } };
static const feature avx2[] = {
    { 1, 0, ECX, 28 }, { 1, 0, ECX, 12 }, { 1, 0, ECX, 29 }, { 7, 0, EBX, 5 } /* fma, f16c */
};
static const feature avx512[] = {
    { 7, 0, EBX, 16 }, { 7, 0, EBX, 17 }, { 7, 0, EBX, 30 }, { 7, 0, EBX, 31 } /* f dq bw vl */
};
static const feature avx512_bf16[] = { { 7, 1, EAX, 5 } };
static const feature amx[] = { { 7, 0, EDX, 22 }, { 7, 0, EDX, 24 } }; /* bf16, tile */

/* Each set needs its own features and those of all rows above it. */
static const struct level {
    const char *isa;
    const feature *need;
    int count;
    uint32_t state;
} levels[] = {
    { "sse2", sse2, 1, 0 },
    { "avx2", avx2, 4, STATE_AVX },
    { "avx512", avx512, 4, STATE_AVX512 },
    { "avx512_bf16", avx512_bf16, 1, STATE_AVX512 },
    { "amx", amx, 2, STATE_AMX },
};

static bool has_feature(const feature *f) {
    uint32_t r[4] = { 0 };
    if ((uint32_t)__get_cpuid_max(0, NULL) < f->leaf) return false; /* clang declares it int */
    if (f->subleaf) { /* leaf 7 reports how many subleaves it has */
        __cpuid_count(f->leaf, 0, r[EAX], r[EBX], r[ECX], r[EDX]);
        if (r[EAX] < f->subleaf) return false;
    }
    __cpuid_count(f->leaf, f->subleaf, r[EAX], r[EBX], r[ECX], r[EDX]);
    return r[f->reg] >> f->bit & 1;
}

static bool saves_state(uint32_t state) {
    if (!state) return true;
    if (!has_feature(&osxsave)) return false;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & state) == state;
}

static bool request_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool cpu_has_isa(const char *isa) {
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        for (int f = 0; f < levels[i].count; f++)
            if (!has_feature(&levels[i].need[f])) return false;
        if (!saves_state(levels[i].state)) return false;
        if (levels[i].state == STATE_AMX && !request_tiles()) return false;
        if (!strcmp(levels[i].isa, isa)) return true;
    }
    return false;
}
