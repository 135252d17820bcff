/* An architecture with no instruction sets of ours: plain C, which any compiler's target runs. */
#include "ops/cpu_features.h"

#include <string.h>

bool cpu_has_isa(const char *isa) { return !strcmp(isa, "portable"); }
