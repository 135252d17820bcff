#ifndef INGOT_PLANNING_INTERNAL_H
#define INGOT_PLANNING_INTERNAL_H

#include "planning/planning.h"

/* Files of configs/ that the build compiles in (cmake/embed_files.cmake), so that the program needs none at
 * run time. The last one has no name. */
extern const embedded_file hardware_files[], recipe_files[];

/* Bytes of a token in a shard (shards/tokfile.c). */
static inline double bytes_per_token(int64_t vocab) { return vocab <= 65536 ? 2 : 4; }

/* Lays out one stage of the pipeline (capacity.c). */
err capacity_of_stage(const config *cfg, const run_target *on, int stage, capacity *out) MUST_USE;

/* ---- what ops and communications cost (roofline.c) ------------------------------------------------- */
typedef struct cost_model {
    const accelerator *gpu;
    bool tf32;    /* fp32 GEMMs run in TF32 */
    dtype dt;     /* that the run computes in */
    double share; /* of the accelerator's rates that a rank has: below 1 where ranks share one */
    const other_system *as; /* NULL: our programs */
    nccl_algorithm algorithm;
} cost_model;
/* @param ranks of the whole run. @param k outlives the costs. */
sim_costs cost_model_of(const accelerator *gpu, const config *cfg, const run_target *on, int ranks,
                        cost_model *k);
/* Seconds of a rank's update, by its recorded programs. */
double update_seconds(const optimizer *o, const mesh *m, const sim_costs *costs);

/* ---- calibration (calibrate.c) --------------------------------------------------------------------- */
enum { CALL_TERMS = 4 };
/* What an op did in one step of one model. */
typedef struct calibration_point {
    double x[CALL_TERMS]; /* calls, operations of GEMMs, bytes, exponentials */
    double seconds;
} calibration_point;
/* Coefficients, none of them negative, with which the points' relative errors are least. @return false: there are
 * none. */
bool calibration_fit(const calibration_point *p, int n, double out[CALL_TERMS]);

/* Appends the variants that are other runs. @param list its first entry is the config as it is. */
void add_other_runs(const config *cfg, const run_target *on, const capacity *now,
                    capacity_variant **list, int *n);

#endif
