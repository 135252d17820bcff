#include "cpu_internal.h"

#include <string.h>

static void CPU(zero)(const op_call *c) { memset(c->out[0].data, 0, tensor_bytes(&c->out[0])); }

KERNEL(ZERO, CPU(zero));
