/* Other architectures: plain C only. */
#include "ops/cpu_features.h"

#include <string.h>

bool cpu_has_isa(const char *isa) { return !strcmp(isa, "portable"); }
