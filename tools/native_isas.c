/* Prints those of its arguments, names of instruction sets, that this machine can run; for
 * cmake/CpuIsa.cmake. */
#include "ops/cpu_features.h"

#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (cpu_has_isa(argv[i])) puts(argv[i]);
    return 0;
}
