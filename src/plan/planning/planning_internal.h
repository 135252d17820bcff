#ifndef INGOT_PLANNING_INTERNAL_H
#define INGOT_PLANNING_INTERNAL_H

#include "planning/planning.h"

/* Files of configs/ that the build compiles in (cmake/embed_files.cmake), so that the program needs none at
 * run time. The last one has no name. */
extern const embedded_file hardware_files[], recipe_files[];

/* @return the bytes of a token in a shard (shards/tokfile.c). */
static inline double bytes_per_token(int64_t vocab) { return vocab <= 65536 ? 2 : 4; }

/* Lays out one stage of the pipeline (capacity.c). */
err capacity_of_stage(const config *cfg, const run_target *on, int stage, capacity *out) MUST_USE;

/* The memory of one stage of a run that is laid out. */
void capacity_of_outline(const train_outline *o, const run_target *on, int stage, capacity *out);
/* Bytes of a program's saved values that another system does not keep (systems.c). @param as NULL: ours */
double other_system_spares(const other_system *as, const model_config *mc, const model_layout *lay,
                           const prog *p);
/* Changes bytes of weights, gradients and moments to what another system has, however they are sharded. */
void other_system_states(const other_system *as, dtype dt, double bytes[MEMORY_KINDS]);
/* @return the bytes that a microbatch's first stage moves to host memory, and back for its backward. */
double other_system_moves(const other_system *as, const train_outline *o);
double free_move(void *ctx, const mesh *m, const comm_move *move, double bytes); /* costs nothing */
/* Changes a stage's memory to what another system has. */
void other_system_memory(const other_system *as, const train_outline *o, int stage, capacity *c);
/* Computes a step's time and the memory of the pipeline's first stage, from one layout (roofline.c). */
err step_of_first_stage(const config *cfg, const run_target *on, const accelerator *gpu,
                        step_time *time, capacity *memory) MUST_USE;
/* Adds a plan's regions by kind, and their total. */
void capacity_add_memory(const plan *p, bool device, capacity *c);

/* ---- what ops and communications cost (roofline.c, network_links.c) ----------------------------------------- */
/* The constants of the simulator. They hold for every accelerator, model, layout and system; what differs between chips is in
 * the catalogue, what differs between systems in systems.c. Those marked * were fitted to the calibration half of
 * bench/plan/rows.txt within what is plausible, the others are what their comments say. */
typedef struct cost_constants {
    double gemm_sustained; /* * share of the best GEMM's rate that large GEMMs keep in a step */
    double gemm_half;      /* a dim at which GEMMs in bf16 run at half of that on an H100 */
    double gemm_peak[2];   /* share of the peak for chips without a measured GEMM */
    double
        power; /* * exponent: a chip at a share p of its power runs GEMMs at p^power of the rate */
    double memory;             /* share of the memory's bandwidth, H200 copies */
    double call;               /* seconds of the shortest kernel */
    double logit_passes;       /* of our loss over the logits of a chunk */
    double passes[PASS_KINDS]; /* * traffic of elementwise ops, relative to ours */
    double stored_scores
        [2]; /* bytes per score that attention with stored scores moves, forward and backward */
    double link, network; /* share of a link's and the network's bandwidth that collectives reach */
    double tree;          /* share of that for algorithms of few steps */
    double link_hop, network_hop, switch_hop; /* seconds per step; more for each tier of switches */
    double start;                             /* seconds to start a collective */
    double interference;                      /* * sim_costs.interference */
    double chips; /* * standard deviation of the speed of chips, as a share */
    double
        hosts; /* * mean delay of a step by one host's noise, as a share; exponentially distributed */
} cost_constants;
extern const cost_constants plan_constants;

typedef struct cost_model {
    const accelerator *gpu;
    bool tf32; /* fp32 GEMMs run in TF32 */
    bool fp8;
    bool selective; /* attention's scores are recomputed where they would be stored */
    dtype dt;       /* that the run computes in */
    double share;   /* of the accelerator's rates that a rank has: below 1 where ranks share one */
    const other_system *as; /* NULL: our programs */
    nccl_algorithm algorithm;
    double experts_per_token; /* 0: not known, or a dense model */
} cost_model;
/* @param ranks of the whole run. @param k outlives the costs. */
sim_costs cost_model_of(const accelerator *gpu, const config *cfg, const run_target *on, int ranks,
                        cost_model *k);
/* @return the seconds of a communication, or the links that it occupies: bits of sim_link (network_links.c). */
double price_move(void *ctx, const mesh *m, const comm_move *move, double bytes);
unsigned links_of_move(void *ctx, const mesh *m, const comm_move *move);
/* Seconds by which a step of `seconds` waits for its slowest chip and host. */
double straggler_seconds(const accelerator *gpu, double seconds, int ranks);
/* @return the seconds of a rank's update, by its recorded programs. */
double update_seconds(const optimizer *o, const mesh *m, const sim_costs *costs);

/* ---- measured calls (call_costs.c, calibrate.c) -------------------------------------------------------- */
call_shape call_shape_of(const op_call *c);
/* @return NULL: it has not been measured. */
const call_cost *call_cost_find(const accelerator *a, op_code op, dtype type);
/* @param share of the measured rates that a rank has */
double call_cost_seconds(const call_cost *m, const call_shape *s, double share);
/* The cost of an op that was not measured: per operation, or per byte where it has none, what measured calls of its class
 * take, or else of any class. @return NaN: nothing was measured */
double call_cost_of_kind(const accelerator *a, const op_call *c, dtype type, double share);
double sorted_median(double *v, int n);    /* which it sorts; NaN: of none */
call_cost *call_costs_add(accelerator *a); /* a zeroed one */
err call_costs_read(const json_t *o, const char *where, accelerator *a) MUST_USE;
/* Reads a number above 0 of an entry of the catalogue (hardware.c). @param scale that it is multiplied by */
err read_hardware_number(const json_t *o, const char *where, const char *key, double scale,
                         double *out) MUST_USE;
/* Coefficients, none of them negative, with which the calls' relative errors are least. @return false: there are
 * none. */
bool calibration_fit(const measured_call *p, int n, double out[CALL_TERMS]);

/* Appends the variants that are other runs. @param list its first entry is the config as it is. */
void add_other_runs(const config *cfg, const run_target *on, const capacity *now,
                    capacity_variant **list, int *n);

#endif
