/* optim: updates, schedules, clipping, loss scaling. Depends on model.
 *
 * Given `optim_settings settings`, `model *m`, `plan *p` and `exec x`:
 *
 *     optimizer *o;
 *     TRY(optim_new(&settings, m, p, &o));              // reserves state; before plan_commit
 *     TRY(plan_commit(p));
 *     TRY(optim_step(o, &x, 3e-4, 1.0));                      // after each step: norm, clip, update
 *
 * A step's update is recorded as programs over the buckets this rank stores (programs.c): one call for all contiguous
 * parameters that follow the same rule. The gradient's norm, and what follows from it, stays on the
 * device: nothing waits. Gradients must be reduced already.
 */
#ifndef INGOT_OPTIM_H
#define INGOT_OPTIM_H

#include "config/config.h"
#include "model/model.h"

/* A rule reads the settings it has a use for: SGD only the decay; Lion beta1 and beta2; Adafactor only
 * the decay, its other constants being the paper's (eps 1e-30, updates clipped at 1, moments that decay
 * by 1 - t^-0.8). Only matrices decay: decoupled (p *= 1 - lr decay), but through the gradient for SGD,
 * momentum and Adam. */
typedef struct optim_settings {
    optim_kind kind;
    double lr;             /* the schedule's highest, which the rates of groups are relative to */
    int64_t lr_base_width; /* the rate is multiplied by sqrt(lr_base_width / width); 0: it is not */
    double beta1, beta2, eps, weight_decay;
    double momentum; /* momentum, Muon */
    bool nesterov;   /* momentum, Muon */
    wd_schedule decay_by;
    /* Decay is multiplied by decay_base_tokens decay_per_token; not where one of them is 0. */
    int64_t decay_base_tokens;
    double decay_per_token;
    polar_kind polar;  /* Muon's polynomials */
    bool equilibrate;  /* Muon: rows get equal norms before a matrix is orthogonalized */
    double muon_beta2; /* Muon: of NorMuon's second moments; 0: there are none */
    bool cautious;     /* Muon: decay only what the update moves towards zero too */
    double agc;        /* adaptive clipping: largest norm of a gradient row relative to its row of
                      * weights; 0: off. Vectors and the head are never clipped this way. */
    double offload;    /* share of the state kept in host memory, where the backend is a device */
    int64_t growth_interval; /* fp16: good steps before the loss scale doubles; 0: no loss scale */
    const op_backend *backend;       /* the plan's; NULL: the CPU's best */
    cfg_group group[CFG_MAX_GROUPS]; /* parameters with settings of their own */
    int groups;
} optim_settings;

/* A group with its settings, those that it leaves to the others filled in. A parameter belongs to the first group that
 * matches it; the last group has those that none matches. */
typedef struct optim_group {
    char match[64]; /* "" for the last */
    optim_kind kind;
    double lr_factor; /* of the schedule's rate */
    double beta1, beta2, eps, weight_decay, momentum;
    wd_schedule decay_by;
    bool decays_vectors;
    bool scaled_decay; /* by decay_base_tokens */
    int params;        /* of the whole model, with their elements */
    int64_t elements;
    char rules[32]; /* names of the optimizers that update them: "muon, adamw" */
    int reads;      /* traits of those optimizers (choices.h) */
    bool decays;    /* one of the parameters does */
} optim_group;

typedef struct optimizer optimizer;
/* Reserves state in the plan ("optimizer" regions, and "work"); after model_reserve, before
 * plan_commit. Model and plan are borrowed, and outlive it.
 * With µP, the learning rate of hidden matrices is multiplied by base / width (Muon needs no such
 * factor: its update has the right size at any width). SGD and momentum, whose rates µP scales by
 * other rules, are refused there. */
err optim_new(const optim_settings *s, model *m, plan *p, optimizer **out) MUST_USE;
void optim_free(optimizer *o); /* takes NULL */

/* Returns the groups that have parameters, for their user to see. @param n their number. @return borrowed */
const optim_group *optim_groups(const optimizer *o, int *n);

/* Changes optim_settings.decay_per_token, for the updates that follow. */
void optim_set_decay_per_token(optimizer *o, double per_token);

/* Returns the lists that end a training step, for its chain (chain.end_list). @param n their number. @return borrowed */
const chain_end *optim_ends(const optimizer *o, int *n);
/* Finds the next program of the update, in their order; what the lists have for half a step is not one.
 * @param i 0 at first. @return borrowed; NULL: there is none */
const prog *optim_next_program(const optimizer *o, int *i);

/* State is zero after plan_commit: nothing more to initialize. What else is carried from step to step
 * (the count of updates, the loss scale) is the executor's step_state, set on resume. */

/* One update of the master weights and of the copies that programs read, queued. Gradients are
 * divided by the loss scale and, where their norm is above max_norm, scaled down to it (0: never).
 * The norm counts each element of the whole model once, whatever the layout, and is bit-identical on
 * every rank. Where it is not finite nothing changes, but for the loss scale: see ops/clip.h, and
 * step_state for what the host reads of it later. With agc gradients are clipped in place.
 * An error, before anything is queued, when lr is not finite or max_norm negative. */
err optim_step(optimizer *o, exec *x, double lr, double max_norm) MUST_USE;
/* Momentum and weight decay as the schedules have them, for the updates that follow. */
typedef struct optim_factors {
    struct {
        double toward, weight; /* a momentum is moved by `weight` of the way to `toward` */
    } momentum;
    double decay[wd_schedule_count];
} optim_factors;
void optim_set_factors(optimizer *o, const optim_factors *f);
/* The first part of it, where a chain ends with the update: sets what the update reads (exec_hooks.update). */
err optim_begin(optimizer *o, exec *x, double lr, double max_norm) MUST_USE;
/* The norm, without the loss scale, of the first half of a step's microbatches, with model_layout.keeps_half_grad: their sum over all ranks, which
 * is the gradient of the same sequences on every layout. record, once the training programs are recorded and before
 * plan_chain, adds what measures it to the chain; norm reads it, in exec_hooks.update. */
err optim_record_half(optimizer *o, chain *c) MUST_USE;
err optim_half_norm(optimizer *o, exec *x, double *norm) MUST_USE;

/* @return what a step multiplied its gradients with to keep them within max_norm: 1, or max_norm /
 * norm when that is smaller; NaN when the norm was not finite and no step was taken. */
double optim_clip(double norm, double max_norm);

/* For metrics; each waits for what is queued. */
/* Computes the norms of each block's parameters, or of its gradient as it is. @param norm [layers + 1]; the last
 * is of all that is outside the blocks. Every rank takes part. */
err optim_block_norms(optimizer *o, exec *x, param_buffer which, double *norm) MUST_USE;
/* @return how many elements of a parameter this rank stores. */
int64_t optim_param_count(const optimizer *o, int param);
/* Reads the first n of the elements that this rank stores, as fp32. */
err optim_read(const optimizer *o, int param, param_buffer which, int64_t n, float *to) MUST_USE;

/* State by parameter, for checkpoints: state k ("m", "v", "row", ...) of a parameter, as fp32.
 * 8-bit moments are read and written dequantized; writing back what was read is bit-exact. */
int optim_states(const optimizer *o, int param);
const char *optim_state_name(const optimizer *o, int param, int k);
/* Names what the elements of a state belong to: those of the parameter ("m", "v"), or the rows or the columns of
 * the whole matrix ("row", "col"), which are then the same on every rank that has the parameter. */
typedef enum { STATE_OF_ELEMENTS, STATE_OF_ROWS, STATE_OF_COLS } state_kind;
state_kind optim_state_kind(const optimizer *o, int param, int k);
/* The axes along which ranks hold copies of a state of rows or columns. Muon's are held where the matrix is
 * orthogonalized; other ranks have none of it. */
axis_set optim_state_same(const optimizer *o, int param, int k);
/* @return the address of a state that is stored as fp32; NULL when this rank holds nothing of it, or when it
 * is quantized. */
const float *optim_state_data(const optimizer *o, int param, int k);
/* @return how many elements of the state this rank holds: those of the parameter's own slice, in its order, or all
 * rows or columns; 0 when it holds none. */
int64_t optim_state_count(const optimizer *o, int param, int k);
err optim_state_get(const optimizer *o, int param, int k, float *to) MUST_USE;
void optim_state_set(optimizer *o, int param, int k, const float *from);

/* ---- schedules --------------------------------------------------------------------------- */
/* Lengths count steps or tokens, whichever the run's length is given in. */
typedef struct schedule {
    sched_kind kind;
    decay_kind decay; /* WSD: how the last part falls */
    double lr;
    double min_factor; /* of lr, where the fall ends: at `end`, and held after */
    int64_t warmup, end;
    int64_t
        decay_length; /* WSD: of the part before `end` that falls, at most what warm-up leaves */
    int64_t total;    /* length of the run, at least `end`, over which weight decay changes */
} schedule;
/* The learning rate of a step that begins at `at` and is `size` long (counted in steps: 1). Warm-up
 * rises evenly, lr (at + size) / (warmup + size), so that the first step already learns and the one
 * that begins at `warmup` has lr. With x going from 0 to 1 over the fall and a, b the two ends (1 and
 * min_factor):
 *     linear        a + (b - a) x             cosine   b + (a - b) (1 + cos(pi x)) / 2
 *     sqrt          b + (a - b) (1 - sqrt(x))
 *     exponential   a (b / a)^x, taking b as 0.01 when it is 0
 */
double schedule_lr(const schedule *s, double at, double size);
/* Momentum moves linearly from `start` over `warmup`, and to `end` while the rate falls (NaN: it does not). */
typedef struct momentum_schedule {
    int64_t warmup;
    double start, end;
} momentum_schedule;
/* @param lr_factor the step's rate, relative to the highest */
optim_factors schedule_factors(const schedule *s, const momentum_schedule *m, double at,
                               double lr_factor);

/* The fp16 loss scale as checkpoints keep it; ops/clip.h moves it. */
typedef struct loss_scaler {
    double scale;
    int64_t good_steps, interval;
} loss_scaler;

/* ---- gradient noise scale ----------------------------------------------------------------
 * From squared gradient norms of a small and a large batch (McCandlish et al., 2018): unbiased
 * estimates of |G|^2 and of the trace of the noise, each smoothed before the ratio is taken. */
typedef struct noise_scale {
    double g2, noise; /* moving averages */
    double decay;     /* 0 means 0.99 */
    int64_t seen;
} noise_scale;
/* @param small_sq, large_sq squared norms of the mean gradients over b_small and b_large tokens
 * (or sequences: the unit of the result). @return the scale, NaN until it is defined. */
double noise_scale_add(noise_scale *n, double small_sq, double b_small, double large_sq,
                       double b_large);

#endif
