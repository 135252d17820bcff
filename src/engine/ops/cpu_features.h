/* Which instruction sets of the CPU ops this processor and its operating system support. One
 * cpu_features_*.c per architecture; the build chooses. */
#ifndef INGOT_OPS_CPU_FEATURES_H
#define INGOT_OPS_CPU_FEATURES_H

#include <stdbool.h>

/* @param isa a name from cmake/CpuIsa.cmake. @return false also for an unknown name. */
bool cpu_has_isa(const char *isa);

#endif
