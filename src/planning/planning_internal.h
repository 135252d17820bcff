#ifndef INGOT_PLANNING_INTERNAL_H
#define INGOT_PLANNING_INTERNAL_H

#include "planning/planning.h"

/* Files of configs/ that the build compiles in (cmake/embed_files.cmake), so that the program needs none at
 * run time. The last one has no name. */
typedef struct embedded_file {
    const char *name; /* without folder and ending */
    const char *text;
} embedded_file;
extern const embedded_file hardware_files[], recipe_files[];

#endif
