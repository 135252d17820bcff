/* Which of the CPU ops' instruction sets this processor, and its operating system, can run. One
 * cpu_features_*.c per architecture; the build chooses. */
#ifndef INGOT_OPS_CPU_FEATURES_H
#define INGOT_OPS_CPU_FEATURES_H

#include <stdbool.h>

/* @param isa a name from cmake/CpuIsa.cmake. @return false for a name it does not know. */
bool cpu_has_isa(const char *isa);

#endif
