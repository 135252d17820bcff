/* planning: what a run needs, before it runs. Scaling laws and fits to finished runs; a catalogue of
 * hardware and prices; memory by laying out the real programs; time, cost and goodput; advice from
 * published recipes. Depends on train, since memory is what training itself would reserve.
 *
 * Given a budget of `double flops`:
 *
 *     const scaling_law *law;
 *     scaling_point p;
 *     TRY(law_find("refit", &law));
 *     TRY(law_solve(law, &(scaling_query){ .compute = flops, .params = NAN, .tokens = NAN,
 *                                          .loss = NAN, .unique = INFINITY }, &p));
 *     printf("%.3g parameters, %.3g tokens, loss %.3f\n", p.params, p.tokens, p.loss);
 *
 * The word "plan" belongs to prog/plan.h: the memory and the instances of a run's programs.
 */
#ifndef INGOT_PLANNING_H
#define INGOT_PLANNING_H

#include <jansson.h>

#include "prog/simulate.h"
#include "serve/serve.h"
#include "train/train.h"

/* ---- scaling laws --------------------------------------------------------------------------
 * N parameters, D tokens, C = 6 N D floating point operations, L the loss in nats per token. */
#define PF_DAY 8.64e19 /* 1e15 operations per second for a day */

typedef enum {
    SURFACE_NONE,  /* a frontier only: losses come from law_default */
    SURFACE_SUM,   /* L = e + a / N^alpha + b / D^beta */
    SURFACE_JOINT, /* L = ((a / N)^(alpha / beta) + b / D)^beta, as in Kaplan et al. */
} surface_kind;

typedef struct scaling_law {
    const char *name, *title, *source;
    surface_kind surface;
    double e, a, alpha, b, beta;
    /* The compute-optimal frontier D = at_tokens (N / at_params)^slope. A slope of 0: it is where the
     * surface is lowest along C = 6 N D. */
    double at_params, at_tokens, slope;
} scaling_law;

int law_count(void);
const scaling_law *law_at(int i);
const scaling_law *law_default(void);
/* An unknown name is an error that lists the names. */
err law_find(const char *name, const scaling_law **out) MUST_USE;

/* Laws in files (law_file.c). @param out freed by law_free */
err law_read(const char *path, scaling_law *out) MUST_USE;
void law_free(scaling_law *law); /* one that was read, or a zeroed one */
/* Finds a law by name or, for a text with a dot or a slash, reads its file. @param own law_free frees it, after an error too */
err law_choose(const char *name_or_path, scaling_law *own, const scaling_law **out) MUST_USE;

/* The known quantities; NaN: to be found. `unique` tokens exist, and are repeated where more are trained on
 * (INFINITY: no limit). */
typedef struct scaling_query {
    double compute, params, tokens, loss;
    double unique;
} scaling_query;
typedef struct scaling_point {
    double compute, params, tokens, loss;
    double effective_tokens; /* what the tokens are worth once repeats are discounted */
} scaling_point;

/* The expected loss of N parameters after D tokens; `unique` of them are different. */
double law_loss(const scaling_law *l, double params, double tokens, double unique);
/* Tokens and parameters that are worth as much as these when data repeats (Muennighoff et al. 2023). */
double law_effective_tokens(double tokens, double unique);
/* Completes a query from any one or two of the four quantities. One alone is completed along the
 * compute-optimal frontier. Of the two models that reach a loss with a compute budget, it is the smaller.
 * @return an error for values no run can have, and for a loss that is out of reach, with the nearest one
 * that is not. */
err law_solve(const scaling_law *l, const scaling_query *q, scaling_point *out) MUST_USE;
/* The model of this loss that takes the fewest operations over its life: training on D tokens at 6 N each
 * and inference on `inference` tokens at 2 N each (Sardana et al. 2024). */
err law_solve_lifetime(const scaling_law *l, double loss, double unique, double inference,
                       scaling_point *out) MUST_USE;

/* ---- fits to finished runs ----------------------------------------------------------------- */
typedef struct fit_run {
    char *name; /* owned */
    double params, tokens, loss;
} fit_run;
typedef struct fit_band {
    double low, high; /* the middle 80 % of the bootstrap */
} fit_band;
typedef struct law_fit {
    scaling_law law;                         /* SURFACE_SUM */
    double error;                            /* root mean square of the relative residuals */
    fit_band e, a, alpha, b, beta, exponent; /* exponent: of N in C along the frontier */
    scaling_law *samples;                    /* [n_samples], owned: one per resampling */
    int n_samples;
} law_fit;
/* Reads a run folder (config.yaml, metrics.jsonl), or a .csv file with the columns params, tokens and
 * loss, and appends to *runs. */
err fit_read(const char *path, fit_run **runs, int *n) MUST_USE;
void fit_runs_free(fit_run *runs, int n);
/* Fits E + A / N^alpha + B / D^beta by a Huber loss on relative residuals (delta 1e-3, as Chinchilla's
 * approach 3), and again for each of `samples` resamplings of the runs.
 * @return an error when the runs cannot determine it. */
err law_fit_runs(const fit_run *runs, int n, int samples, uint64_t seed, law_fit *out) MUST_USE;
void law_fit_free(law_fit *f); /* takes a zeroed one */
/* Writes what law_read reads. @param runs that it was fitted to */
err law_write(const law_fit *f, int runs, const char *path) MUST_USE;
/* @return the range of losses that the resamplings span at this point. */
fit_band law_fit_loss(const law_fit *f, double params, double tokens);

/* ---- YAML and TOML as JSON -------------------------------------------------------------------- */
/* Plain scalars become numbers, booleans and null where they read as such; others are texts.
 * @param name stands for the file in messages. @param out owned: json_decref. */
err yaml_to_json(const char *text, size_t len, const char *name, json_t **out) MUST_USE;

/* ---- hardware and prices ----------------------------------------------------------------------
 * The catalogue is configs/hardware.yaml, compiled in; users extend it with a file of the same form. */
typedef enum { PEAK_FP32, PEAK_TF32, PEAK_FP16, PEAK_BF16, PEAK_FP8, PEAKS } peak_kind;
/* The shape of a call, as far as its time depends on it. */
enum { CALL_TERMS = 4, CALL_DIMS = 5 };
typedef struct call_shape {
    double work[CALL_TERMS]; /* 1; operations of GEMMs, bytes, exponentials (op_work) */
    double
        dim[CALL_DIMS]; /* rows and columns of the first operand and the first result; of a head */
} call_shape;
typedef struct measured_call {
    call_shape shape;
    double seconds;
} measured_call;
/* The measured time of the calls of an op (call_costs.c). */
typedef struct call_cost {
    op_code op;
    dtype type;              /* that the run computes in */
    double term[CALL_TERMS]; /* seconds of a call, per operation, per byte, per exponential */
    measured_call *measured; /* [n], owned */
    int n;
} call_cost;
/* Kernels of attention whose rates the catalogue has. */
typedef enum {
    ATTENTION_OURS, /* ours on a GPU, which is cuDNN's where it is present */
    ATTENTION_CUDNN,
    ATTENTION_FLASH2, /* FlashAttention-2 */
    ATTENTION_FLASH1, /* the first generation, and its Triton variants */
    ATTENTION_STORED, /* scores in memory: two GEMMs, a softmax and a dropout */
    ATTENTION_KERNELS
} attention_kernel;
typedef struct accelerator {
    const char *name, *title, *chip, *source;
    double memory;           /* bytes */
    double memory_bandwidth; /* bytes per second, as all bandwidths here */
    double peak[PEAKS];      /* FLOP/s; NaN: it has no such unit */
    double link, host, network, disk;
    double power; /* share of its rated power that it may draw. 1: all */
    double
        gemm[PEAKS]; /* FLOP/s of the best GEMM that was measured; NaN: none, a share of the peak */
    double attention
        [ATTENTION_KERNELS]; /* FLOP/s at long sequences and wide heads; NaN: a share of the peak */
    int per_node;            /* of one host */
    int domain;              /* that `link` joins: a host, or a rack or slice of several */
    int pod; /* accelerators below one tier of switches without oversubscription; 0: all */
    double oversubscription; /* by which the tier above has less bandwidth. 1: none */
    int torus;               /* dimensions of a torus that links all of them; 0: switches */
    bool shared;             /* a CPU: the ranks of a node divide its cores and its memory */
    call_cost *calls;        /* [n_calls], owned: instead of the roofline, for these ops */
    int n_calls;
} accelerator;
typedef struct hardware_price {
    const char *provider, *accelerator, *instance, *date, *source;
    double usd; /* per accelerator and hour */
} hardware_price;
typedef struct storage_price {
    const char *provider, *name, *date, *source;
    double usd_gb_month, usd_gb_egress;
} storage_price;
typedef struct energy_use {
    const char *accelerator, *source;
    double watts; /* of one, with its share of the node */
} energy_use;
typedef struct hardware {
    accelerator *accelerators;
    hardware_price *prices;
    storage_price *stores;
    energy_use *energies;
    int n_accelerators, n_prices, n_stores, n_energies;
    json_t *docs; /* owns the texts */
} hardware;

/* @param extra a file read over the built-in catalogue; NULL: none. @param out freed by hardware_free. */
err hardware_open(const char *extra, hardware *out) MUST_USE;
void hardware_free(hardware *h); /* takes a zeroed one */
/* An unknown name is an error that names the nearest. */
err hardware_find(const hardware *h, const char *name, const accelerator **out) MUST_USE;
/* @param provider NULL: the cheapest. An error if no provider, or not this one, rents it. */
err hardware_find_price(const hardware *h, const accelerator *a, const char *provider,
                        const hardware_price **out) MUST_USE;
const energy_use *hardware_find_energy(const hardware *h, const accelerator *a); /* NULL: none */
const char *peak_name(peak_kind k);                                              /* "bf16" */
/* As an entry of an accelerator's `calls` in the catalogue. */
void call_cost_print(const call_cost *c, str *out);
void call_costs_free(accelerator *a); /* its `calls`; takes a zeroed one */
/* Measures what calls cost in training steps of small models, and adds that to `a`. Takes seconds.
 * @param rounds of timed steps: 1 to CALIBRATION_ROUNDS. */
enum { CALIBRATION_ROUNDS = 4 };
err calibrate_cpu(const op_backend *ops, dtype dt, int rounds, accelerator *a) MUST_USE;
/* Measures how fast two ranks of this machine sum a tensor. @param out bytes per second, as `link` of an accelerator; NaN:
 * it has one core */
err calibrate_link(double *out) MUST_USE;
/* @return what a run computes in there unless it names a precision: bf16, else fp16 on a GPU, else fp32. */
const char *hardware_fastest_type(const accelerator *a);
/* An error when the name is none, or when the accelerator cannot compute in it. */
err hardware_find_peak(const accelerator *a, const char *type, double *flops) MUST_USE;

/* ---- time and cost ---------------------------------------------------------------------------- */
#define MFU_DEFAULT                                                                                \
    0.45 /* of published large runs, 0.38 to 0.50; used where nothing is simulated */
typedef struct run_cost {
    double seconds, gpu_hours, usd;
} run_cost;
/* Prices a run by seconds = flops / (gpus x peak x mfu). */
run_cost cost_of_flops(double flops, double gpus, double peak, double mfu, double usd_per_gpu_hour);

/* Energy that a data center draws for a number of GPU-hours, and its cost. */
#define PUE_DEFAULT     1.2  /* of what the nodes draw: cooling and conversion are the rest */
#define USD_KWH_DEFAULT 0.10 /* about what industry pays in the United States */
typedef struct run_energy {
    double mwh, usd;
} run_energy;
run_energy energy_of(double gpu_hours, double watts, double pue, double usd_kwh);

/* Bytes of weights, gradients, master weights and moments of N parameters on each of `ranks` GPUs, as the
 * ZeRO paper counts mixed-precision Adam: 2 + 2 + 12 bytes per parameter. Stage 0 replicates all, 1 shards
 * the 12, 2 also gradients, 3 also weights. A formula for tables; `--check` lays out the real programs. */
double zero_state_bytes(double params, double ranks, int zero);

/* ---- what a run would have to itself --------------------------------------------------------------- */
/* As `ingot plan` has its options and the planning page its queries: texts; NULL: not given. */
typedef struct machine_query {
    const char *gpu, *gpus, *dtype, *mfu, *provider, *pue, *usd_kwh;
} machine_query;
typedef struct plan_machine {
    hardware catalogue;
    const accelerator *gpu; /* NULL: none was named */
    bool gpus_given, mfu_given;
    double gpus, mfu, peak; /* peak: FLOP/s in `dtype` */
    double pue, usd_kwh;
    const char *dtype, *provider; /* of the query, or static; provider NULL: all */
} plan_machine;
/* A quantity such as "70B"; NaN where there is none. @param name of the option, for the error. */
err plan_quantity(const char *name, const char *text, double *out) MUST_USE;
/* @param catalogue a file over the built-in one; NULL: none. @param out plan_machine_close unless it fails */
err plan_machine_open(const char *catalogue, const machine_query *q, plan_machine *out) MUST_USE;
/* The same with the catalogue that *m has, whatever it described before. */
err plan_machine_choose(plan_machine *m, const machine_query *q) MUST_USE;
void plan_machine_close(plan_machine *m);
/* Whether this is a price of its accelerator, at its provider where it has one. */
bool plan_machine_rents(const plan_machine *m, const hardware_price *p);
/* Days and dollars that this many operations take. @return owned, as all JSON here */
json_t *plan_cost_json(const plan_machine *m, double flops);
/* @return how the tokens compare with the law's own optimum for that many parameters. */
double law_times_optimal(const scaling_law *l, const scaling_point *p);
json_t *law_point_json(const scaling_law *l, const scaling_point *p);

/* ---- goodput: failures, checkpoints, restarts --------------------------------------------------- */
typedef struct goodput_run {
    double work;                  /* seconds without failures and checkpoints */
    double nodes, spares;         /* that compute; that wait */
    double failures_per_node_day; /* 0.01: one node in a hundred per day */
    double checkpoint_s;          /* that saving stops the run */
    double restart_s;             /* from a failure to the first new step, a spare being there */
    double repair_s;              /* until a broken node can be used again */
} goodput_run;
typedef struct goodput {
    double mtbf;                             /* of the whole cluster, seconds */
    double young, daly, simulated, interval; /* best intervals between checkpoints; the one used */
    double expected;                         /* seconds, closed form without spares */
    double mean, p10, p50, p90, failures;    /* of the simulated runs: seconds; how many failures */
    double goodput;                          /* work / mean */
} goodput;
double goodput_mtbf(const goodput_run *r);
double goodput_young(const goodput_run *r);
double goodput_daly(const goodput_run *r);
double goodput_expected(const goodput_run *r, double interval);
/* @param interval seconds of work between checkpoints; NaN: Daly's. The same seed gives the same figures. */
err goodput_simulate(const goodput_run *r, double interval, int trials, uint64_t seed,
                     goodput *out) MUST_USE;

/* ---- capacity ---------------------------------------------------------------------------------- */
typedef enum {
    MEMORY_WEIGHTS, /* that GEMMs read */
    MEMORY_GRADIENTS,
    MEMORY_MASTER, /* weights that the optimizer updates, where GEMMs read a copy */
    MEMORY_MOMENTS,
    MEMORY_ACTIVATIONS,
    MEMORY_COMMUNICATION, /* gathered parameters, whole gradients, what stages send and receive */
    MEMORY_WORKSPACE,
    MEMORY_INPUTS,
    MEMORY_OTHER,
    MEMORY_KINDS
} memory_kind;
const char *memory_name(memory_kind k);

/* How a source counts operations: attention in full or causally, or with every block's forward pass twice. */
typedef enum { COUNT_FULL, COUNT_CAUSAL, COUNT_RECOMPUTED } flop_count;

/* How another system differs from our programs, as its source shows: for plans of its runs and for
 * comparisons with what it published (systems.c). */
typedef enum { AS_OURS, COMPILED, EAGER_FUSED, EAGER, PASS_KINDS } pass_kind;
/* Messages between stages: as they are; each tensor-parallel rank sends a part, and the receivers gather it; beside
 * computing, received one task early. */
typedef enum { MESSAGES_WHOLE, MESSAGES_SCATTERED, MESSAGES_EARLY } message_kind;
/* Saved values that a system keeps less of than our programs do, bits of other_system.keeps (systems.c has what each means,
 * and its source). */
typedef enum {
    KEEPS_SHARDS = 1,        /* of inputs that sequence parallelism gathers */
    KEEPS_ROUTED_SHARDS = 2, /* of what tensor-parallel ranks receive back from experts */
    KEEPS_NO_RESULTS = 4,    /* of experts, which are weighted before their last GEMM */
    KEEPS_LATENTS = 8,       /* of latent attention, whose projections are recomputed */
    KEEPS_FP8 = 16,          /* inputs of GEMMs and of their activations in fp8 */
    KEEPS_INPUT_SHARDS = 64, /* of the inputs of recomputed blocks, over tensor-parallel ranks */
    KEEPS_NO_GRADIENTS = 32  /* for weight gradients that are deferred */
} kept_values;
typedef struct other_system {
    const char *name, *about;
    attention_kernel attention;
    pass_kind passes;   /* how often elementwise ops go through memory, relative to ours */
    double gemm;        /* share of the best GEMM's rate that its libraries reach */
    double logit_bytes; /* that its loss moves per logit, beside its GEMMs */
    double launch;      /* seconds of the host per op that it starts */
    int tp_overlap; /* chunks into which tensor-parallel communication is divided beside GEMMs; 0: none */
    bool casts_shards;   /* sharded weights are cast when they are gathered, with no copy in bf16 */
    bool late_gradients; /* data-parallel reductions follow the pipeline's last backward */
    bool bf16_gradients; /* stored and reduced in bf16 */
    unsigned keeps;      /* kept_values */
    bool bf16_moments;
    int copies;         /* of weights and gradients that a rank holds; 0 reads as 1 */
    double host_blocks; /* share of blocks whose saved values are in host memory until backward */
    bool fp8_gather;    /* sharded weights of fp8 GEMMs are gathered in fp8 */
    bool
        routes_shards; /* a tensor-parallel rank sends its share of the tokens to experts, which are gathered there */
    bool hides_experts; /* the exchange with experts overlaps the compute of another microbatch */
    /* a token goes once to each host that has experts of it, which passes it on */
    bool sends_once;
    message_kind messages;
    flop_count count;
} other_system;
/* An unknown name is an error that lists the names. */
err other_system_find(const char *name, const other_system **out) MUST_USE;
/* Operations per token as it counts them. @param as NULL: ours, attention in full */
double other_system_flops(const other_system *as, const model_config *mc, int64_t seq);

/* The machine that a run is laid out for. */
typedef struct run_target {
    const op_backend *ops; /* whose kernels and workspace count; borrowed */
    bool device; /* an accelerator: one host thread's workspace, and offloaded state in the host */
    int ranks;   /* of the whole run; 0: as many as the parallelism section asks for */
    const accelerator
        *gpu; /* on which changes are simulated; NULL: their cost in time is a rule of thumb */
    const other_system *as; /* whose step is simulated; NULL: ours */
} run_target;

/* Targets an accelerator that need not be here: our CPU lays the programs out, in the type it would run in.
 * @param limit bytes that a rank's plan may have */
err plan_target_accelerator(const accelerator *gpu, config *c, run_target *on,
                            double *limit) MUST_USE;
/* Returns the part of a GPU's memory that its driver leaves to the plan. */
double plan_limit_of_gpu(double memory);

/* One rank of a run, from its recorded programs. Bytes, tokens and operations. Of a pipeline it is the rank
 * whose stage needs most. */
typedef struct capacity {
    model_config mc;
    mesh layout;
    int stage, layers_of_stage; /* the stage shown, and how many layers it has */
    dtype dt;
    double params, flops_full, flops_causal; /* per token; attention counted full or causal */
    int64_t rows, micros, seq;
    double step_tokens, steps, tokens; /* NaN: in epochs of data that is not known */
    double memory[MEMORY_KINDS], total;
    double of_all_ranks; /* their totals together */
    double offloaded;    /* in the host's memory */
    double checkpoint;   /* bytes on disk */
    double token_bytes;
} capacity;
/* Lays out the run that `cfg` describes, every stage of its pipeline. */
err capacity_of(const config *cfg, const run_target *on, capacity *out) MUST_USE;
/* Returns the bytes that count against a target's limit: a rank, and on a CPU the whole process. */
double capacity_needed(const run_target *on, const capacity *c);
json_t *memory_json(const capacity *c); /* bytes by memory_name */
json_t *capacity_json(const capacity *c);

/* The cheapest change of what `ingot train` offers that makes the run fit. */
typedef struct fit_change {
    bool found;
    str what, settings; /* in words; as options */
    double slower;      /* share by which a step gets longer, estimated */
    double least;       /* bytes of the smallest one tried */
    capacity after;
} fit_change;
/* @param limit bytes that `total` may have. @param now capacity_of the config as it is. @param out freed by
 * fit_change_free. */
err capacity_make_fit(const config *cfg, const run_target *on, double limit, const capacity *now,
                      fit_change *out) MUST_USE;
void fit_change_free(fit_change *f);

/* The config as it is, with each of those changes alone, and with others of attention, packing and experts. */
typedef struct capacity_variant {
    str what, settings; /* in words; as options */
    double slower;      /* share by which a step gets longer: simulated, or a rule of thumb */
    double seconds;     /* of a step, simulated; NaN: it is not */
    bool other_run;     /* another model, or other sequences */
    capacity cap;
} capacity_variant;
/* @param list owned, on an error too: capacity_variants_free. */
err capacity_compare(const config *cfg, const run_target *on, const capacity *now,
                     capacity_variant **list, int *n) MUST_USE;
void capacity_variants_free(capacity_variant *list, int n);

/* ---- the time of a step ------------------------------------------------------------------------ */
typedef struct step_time {
    double seconds;           /* of a whole step */
    double update;            /* ... the optimizer's update, a part of it */
    double stragglers;        /* ... waiting for the slowest rank */
    double host;              /* ... waiting for state in host memory; computing hides the rest */
    double data;              /* ... waiting for the disk; reading ahead hides the rest */
    sim_result run;           /* ... and the microbatches */
    double tokens_per_second; /* of all ranks */
    double flops_causal, flops_full; /* model FLOP/s per rank, with attention counted either way */
    double flops_counted;            /* ... as the system that is simulated counts them */
} step_time;
/* Plays the instruction lists of the run that `cfg` describes on this accelerator. @param watch NULL: disabled */
err step_simulate(const config *cfg, const run_target *on, const accelerator *gpu,
                  const sim_watch *watch, step_time *out) MUST_USE;

/* The share of a whole step in which ranks wait for other stages of the pipeline. */
double step_bubble(const step_time *t);
json_t *step_time_json(const step_time *t);

/* ---- the best layout --------------------------------------------------------------------------- */
const char *recompute_name(cfg_recompute k); /* as activation_checkpoint.mode takes it */

/* Selects what is kept in host memory: nothing; moments; moments, weights and their master copies. */
typedef enum { OFFLOAD_NONE, OFFLOAD_MOMENTS, OFFLOAD_ALL, OFFLOADS } offload_kind;
const char *offload_name(offload_kind k);

typedef struct layout_choice {
    int tp, pp, dp, cp, ep; /* ep is part of dp */
    int replicas; /* of the sharded states among the dp ranks (HSDP); 1: all of them share one */
    int chunks, zero;
    bool
        ends_counted; /* the embedding and the head count as a layer each when layers are divided */
    pipeline_schedule schedule;
    cfg_recompute recompute;
    offload_kind offload;
    bool stages_near;       /* pipeline stages, not data-parallel ranks, are neighbors on a host */
    int64_t rows, micros;   /* sequences of a microbatch; microbatches of a step */
    double bytes, estimate; /* closed form: of a rank; tokens per second */
    int fullest;            /* the stage that needs most, by the same */
    double score;           /* what the search maximizes */
    capacity cap;           /* of the layout itself, as it would run */
    step_time time;         /* simulated */
} layout_choice;
int choice_ranks(const layout_choice *c);
/* Sets the options of a config to it. */
err layout_apply(const layout_choice *k, config *c) MUST_USE;

typedef struct search_options {
    const accelerator *gpu;
    int gpus;      /* all of them, unless no layout can use all */
    bool fewer;    /* or any smaller number that is as good */
    double limit;  /* bytes of a rank */
    bool for_cost; /* the most tokens per second and accelerator, with any number of them */
    /* Called now and then: layouts estimated and simulated so far; NULL: disabled */
    void (*progress)(void *ctx, long estimated, int simulated);
    void *ctx;
} search_options;
enum { LAYOUTS_SHOWN = 10 };
typedef struct layout_result {
    layout_choice best[LAYOUTS_SHOWN];
    int n;           /* 0: no layout fits */
    long considered; /* combinations estimated */
    int examined;    /* laid out and simulated */
} layout_result;
/* Searches tp x pp x dp x cp x ep, replicas, schedule, microbatch, ZeRO stage, recompute, offload and order of axes for
 * the config's model and global batch. */
err layout_find(const config *cfg, const run_target *on, const search_options *o,
                layout_result *out) MUST_USE;
/* In words: what the second loses to the best. */
void layout_explain(const layout_choice *best, const layout_choice *second, bool for_cost,
                    str *out);

/* ---- recipes and advice ------------------------------------------------------------------------ */
/* Published trainings as configs (configs/recipes/), compiled in. */
int recipe_count(void);
const char *recipe_name(int i);
const char *recipe_text(
    int i); /* YAML; its first lines name the model, the source and what differs */
err recipe_find(const char *name, int *out) MUST_USE;
/* The rest of the comment line that begins with `key`, such as "source": into `out`. */
void recipe_note(int i, const char *key, str *out);
/* Shrinks a config to seconds on a CPU: the same family and proportions, a few thousand weights, built-in text; each
 * parallel degree above 2 becomes 2. @param scale "tiny". */
err config_scale(config *c, const char *scale) MUST_USE;

typedef enum { ADVICE_SUGGESTION, ADVICE_WARNING } advice_kind;
typedef struct advice {
    advice_kind kind;
    char *text; /* owned */
} advice;
/* Reports what published recipes of this size did, and classic mistakes in the config. @param out owned:
 * advice_free. */
err plan_advise(const config *c, const capacity *cap, advice **out, int *n) MUST_USE;
void advice_free(advice *list, int n);

/* ---- configs of other systems ------------------------------------------------------------------ */
/* Reads a config of Megatron-LM (arguments, or the script that runs it), DeepSpeed (JSON), GPT-NeoX (YAML), torchtitan
 * (TOML), OLMo (YAML) or Hugging Face's TrainingArguments (JSON) and writes ours, as YAML, with the source's defaults. A
 * key that would change the result and has no counterpart is an error, as is one that the system does not have. */
typedef struct convert_options {
    const char *format; /* a name of convert_systems; NULL: by the file's name and keys */
    const char
        *allow;    /* keys to leave out although they change the result: "KEY,..."; NULL: none */
    int64_t ranks; /* that the source runs on; 0: as it states, or not known */
} convert_options;
/* @param notes keys that were left out, with a count. */
err convert_config(const char *text, size_t len, const char *name, const convert_options *o,
                   str *out, str *notes) MUST_USE;
err toml_to_json(const char *text, const char *name, json_t **out) MUST_USE;

/* ---- the planning page of `ingot serve` -------------------------------------------------------------- */
typedef struct planning_page planning_page;
/* @param catalogue a file over the built-in one; NULL: none. @param out planning_page_free */
err planning_page_open(const char *catalogue, planning_page **out) MUST_USE;
/* Offers a config beside the recipes. It is read now, to refuse what is not one, and again for each answer.
 * @param name of the list's entry */
err planning_page_add(planning_page *p, const char *name, const char *path) MUST_USE;
/* Offers a law in a file, before the others. */
err planning_page_add_law(planning_page *p, const char *path) MUST_USE;
/* Adds its paths to a server. @param p outlives the server */
void planning_page_serve(planning_page *p, serve_options *o);
void planning_page_free(planning_page *p); /* takes NULL */

/* ---- plots for terminals -------------------------------------------------------------------- */
typedef struct plot_series {
    const double *x, *y;
    int n;
    char mark;
    const char *label; /* NULL: not in the legend */
} plot_series;
/* Draws points over a logarithmic x axis; later series draw over earlier ones. NaNs are left out. */
void plot_draw(str *out, const plot_series *series, int n, const char *x_label,
               const char *y_label);

#endif
