/* ingot serve RUN --generate. */
#ifndef INGOT_CLI_SERVE_GENERATE_H
#define INGOT_CLI_SERVE_GENERATE_H

#include "util/util.h"

typedef struct serve_generate_options {
    const char *model, *address, *token, *device;
    int64_t index, context, batch;
} serve_generate_options;
/* Serves until a signal ends it. */
err serve_generate(const serve_generate_options *o) MUST_USE;

#endif
