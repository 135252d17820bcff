/* ingot doctor, inside. */
#ifndef INGOT_DOCTOR_H
#define INGOT_DOCTOR_H

#include "util/util.h"

typedef struct cluster_options {
    const char *dir; /* where the disk is tested */
    double seconds;  /* of GEMMs */
} cluster_options;
/* Tests all ranks of the job this process was started in, or this process alone. */
err doctor_cluster(const cluster_options *o) MUST_USE;

#endif
