/* ingot doctor, inside.
 *
 *     cmd_doctor.c        the command: what this build and machine have, and how fast they are
 *     doctor_burn.c       known answers of one rank: memory and GEMMs, of the CPU or a device
 *     doctor_cluster.c    --cluster: all ranks, their disks and the links between them
 */
#ifndef INGOT_DOCTOR_H
#define INGOT_DOCTOR_H

#include "ops/ops.h"

/* ---- doctor_burn.c ---------------------------------------------------------------------------- */
/* Memory of a backend: the device's, or the process's own. */
err doctor_map(const op_backend *b, size_t bytes, void **out) MUST_USE;
void doctor_unmap(const op_backend *b, void *at, size_t bytes); /* takes NULL */
void doctor_put(const op_backend *b, void *to, const void *from, size_t bytes);
err doctor_get(const op_backend *b, void *to, const void *from, size_t bytes) MUST_USE; /* waits */
err doctor_sync(const op_backend *b) MUST_USE; /* waits for what is queued */

/* @return the i-th word of the pattern of a seed. */
uint64_t doctor_word(uint64_t seed, uint64_t i);

enum { DOCTOR_PIECE_BYTES = 16 << 20 }; /* memory is tested in whole pieces */
typedef struct doctor_burn {
    const op_backend *b;
    pool *p;
    int rank;       /* for faults on purpose */
    double seconds; /* of GEMMs of one type */
} doctor_burn;
/* Writes patterns over so much memory and reads them back, twice. @param wrong words. */
err doctor_burn_memory(const doctor_burn *j, size_t bytes, int64_t *wrong) MUST_USE;
/* @param rate of the fastest batch, FLOP/s. @param wrong elements of results. */
err doctor_burn_gemm(const doctor_burn *j, dtype dt, double *rate, int64_t *wrong) MUST_USE;
/* Both of a GPU: memory, up to 4 GiB of what is free, and GEMMs in fp32 and bf16. @param number as in ops_choice. */
typedef struct doctor_gpu {
    double bytes, fp32, bf16; /* of memory tested; FLOP/s */
    int64_t wrong_words, wrong_results;
} doctor_gpu;
err doctor_burn_gpu(const doctor_burn *j, int number, doctor_gpu *out) MUST_USE;

/* ---- doctor_cluster.c -------------------------------------------------------------------------- */
enum { DOCTOR_SECONDS = 2 }; /* of GEMMs, unless the user chooses */
typedef struct cluster_options {
    const char *dir;   /* where the disk is tested */
    const char *store; /* a URL below which the object store is tested; NULL: it is not */
    double seconds;    /* of GEMMs */
} cluster_options;
/* Tests all ranks of the job this process was started in, or this process alone. */
err doctor_cluster(const cluster_options *o) MUST_USE;

#endif
