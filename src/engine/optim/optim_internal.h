/* The parts of the optimizer: rules, the ranges they run over, the programs that they are recorded as. */
#ifndef INGOT_OPTIM_INTERNAL_H
#define INGOT_OPTIM_INTERNAL_H

#include "ops/op_table.h"
#include "optim/optim.h"

/* ---- rules: rules.c ---------------------------------------------------------------------- */
/* How an update follows from the gradient: element by element; or along a direction, which depends on the
 * whole parameter (directions.c). */
typedef enum { BY_ELEMENT, BY_FACTORS, BY_FACTORS_VECTOR, BY_ORTHOGONAL } rule_kind;

typedef struct rule {
    op_code op;       /* steps the weights */
    op_code keeps[2]; /* the ops whose signatures name the state; none: op itself */
    rule_kind kind;
} rule;

/* Rows and columns are of the whole matrix, on every rank that has a part of its bucket. */
typedef enum { AS_PARAM, AS_ROWS, AS_COLS, AS_BYTES, AS_SIGNED_BYTES } state_shape;
enum { MAX_STATES = 2 * (OP_MAX_OUT - 1) };
/* The state that a rule keeps for a parameter: the results that the signatures of its ops mark as state. */
typedef struct rule_states {
    int n;
    struct rule_state {
        char name[OPERAND_NAME];
        state_shape shape;
        op_code op; /* the op that keeps it, and which of its results it is */
        int out;
    } state[MAX_STATES];
} rule_states;
rule_states rule_states_of(const rule *r);
static inline bool state_in_bytes(const struct rule_state *s) {
    return s->shape == AS_BYTES || s->shape == AS_SIGNED_BYTES;
}
static inline bool state_is_whole(const struct rule_state *s) {
    return s->shape == AS_ROWS || s->shape == AS_COLS;
}

err rules_check(const optim_settings *s, const model *m) MUST_USE;
/* @return the rule of a parameter in a group, and its numbers. */
const rule *rule_of(const optim_settings *s, const optim_group *g, const model_param *q);
/* @return the optimizer whose rule a parameter has: AdamW for those that Muon does not orthogonalize. */
optim_kind rule_kind_of(const optim_settings *s, const optim_group *g, const model_param *q);
const char *rule_kind_name(optim_kind kind);
err rules_check_group(const optim_group *g, const model *m) MUST_USE;
op_attr rule_attr(const optim_settings *s, const optim_group *g, const model_config *c,
                  const model_param *q);

/* ---- groups.c ---------------------------------------------------------------------------------- */
typedef struct group_table {
    optim_group group[CFG_MAX_GROUPS + 1];
    int groups;
    int *of; /* [params] the group of each, owned; state belongs to the last */
} group_table;
/* @return an error for a group without parameters, or with numbers that its rule cannot have. */
err groups_resolve(const optim_settings *s, const model *m, group_table *out) MUST_USE;

/* Whether adaptive clipping applies to a parameter's rows: to matrices other than the head. */
bool rule_clips_rows(const optim_settings *s, const model_config *c, const model_param *q);

/* ---- the optimizer ----------------------------------------------------------------------- */
/* Contiguous parameters of a bucket that one call updates, with the padding between them: zeros, which
 * stay zeros. State has the range's own size and order. */
typedef struct update_range {
    const rule *r;
    bucket_view b;
    int64_t at, count;     /* elements of the view */
    int param;             /* its first; its only one with BY_FACTORS and BY_FACTORS_VECTOR */
    int state[MAX_STATES]; /* plan regions; not of rows and columns, which belong to parameters */
    op_attr attr;          /* update.host_state, host_params: these are in host memory */
} update_range;

typedef struct param_update { /* a parameter, or the slice of it that this rank stores */
    const rule *r;
    rule_states states;
    int range;  /* -1: this rank stores none of it */
    int64_t at; /* in the range */
    int64_t count;
    int64_t copies;        /* ranks that hold the same elements */
    int whole[MAX_STATES]; /* plan regions of states by rows and columns; -1: none */
    int turn; /* of the ranks that have its shards, the one that orthogonalizes it; -1: each does */
    int64_t sums; /* of its rows and columns: where they begin among those of all matrices */
} param_update;

/* A step's programs: `norm` sums the gradient's squares over all ranks, `clip` decides from it and clips by rows,
 * `update` changes the weights. Updates of host memory are a program for each layer, beside the next step. */
enum { PROGRAM_NORM, PROGRAM_CLIP, PROGRAM_UPDATE, PROGRAMS };

struct optimizer {
    optim_settings s;
    group_table groups;
    optim_factors factors; /* of the next update */
    double
        length_factor; /* ... of decays that follow the length, beside the one programs were recorded with */
    const model *m;
    plan *p;
    mesh mesh;
    param_update *param; /* [params] */
    int *order;          /* [ordered] parameters this rank stores, in memory order */
    int params, ordered;
    update_range *range;
    int ranges;
    bool on_host;        /* some of them have state or parameters in host memory */
    bool params_on_host; /* ... parameters */
    int sum; /* plan region: square sums, of the gradient and of each block (record_block_norms) */
    axis_set parts;    /* ranks along these hold different parts of some matrix */
    int64_t sum_count; /* rows and columns of all matrices that are summed over */
    dtype polar;       /* in which Muon's iterations run */
    prog *program[PROGRAMS];
    int norm;                          /* of plan_program */
    prog *block_norms[PARAM_GRAD + 1]; /* by param_buffer */
    int block_norm[PARAM_GRAD + 1];    /* of plan_program */
    chain_end *end;                    /* [ends] what a step ends with */
    int ends;
    chain_end *half; /* [halves] what measures the first half of a step */
    int halves, half_cap;
    prog *half_end;
    exec_tape tape[2]; /* of optim_step */
};

/* ---- programs.c ------------------------------------------------------------------ */
/* Gradients that are contiguous in the arena: n elements of a region, and of those after it. */
typedef struct grad_run {
    int region;
    int64_t at, n;
    int64_t copies; /* ranks that hold the same ones */
} grad_run;
err optim_record(optimizer *o) MUST_USE;
prog *new_update_program(const optimizer *o, const char *name);
/* @return the gradient's square sum, before it is summed over the ranks or after. */
val record_sum(const optimizer *o, prog *p, place_kind kind);
/* Records the square sum of a run of gradients. */
void record_run_squares(prog *p, const grad_run *r, val sum);
/* @return elements of a bucket's view in a region. */
val record_elements(const optimizer *o, prog *p, int param, region_at in, dtype dt, int64_t at,
                    int64_t n);
/* Binds a parameter's states, those that the op keeps, to its results. */
void record_states(const optimizer *o, prog *p, int param, change_request *c);
/* Binds the range's weights, and their copy, to the results of an op that steps them. */
void record_weights(const optimizer *o, prog *p, const update_range *s, change_request *c);
void record_zero(prog *p, val x);
/* Records the square sum of gradients that `copies` ranks hold. @param add to the value of `sum` */
void record_squares(prog *p, val grad, int64_t copies, val sum, bool add);
/* Finds the next run of chosen parameters from order[*i] on. @return false: there is none. */
bool next_grad_run(const optimizer *o, bool (*chosen)(const void *ctx, int param), const void *ctx,
                   int *i, grad_run *out);
/* State parameters have no gradient and are excluded from norms. */
bool has_gradient(const optimizer *o, int param);

/* ---- optim.c ------------------------------------------------------------------------------- */
/* Whether padding between gradients is zero: gradients kept in slices come through a buffer whose padding may
 * hold anything; else it is zero from the start. */
bool padding_is_zero(const optimizer *o);

/* ---- half_norm.c --------------------------------------------------------------------------- */
/* Records what the norm of the first half of a step ends with. */
void record_half_end(const optimizer *o, prog *p);

/* ---- directions.c -------------------------------------------------------------------------- */
/* @return the axes along which ranks hold different parts of a parameter. Ranks of another pipeline stage have other
 * parameters. */
axis_set parts_over(const optimizer *o, int param);
/* @return the axes of parts_over that ZeRO slices it over. */
axis_set slices_over(const optimizer *o, int param);
/* Reserves states by rows and columns; after the ranges are known. */
void directions_reserve(optimizer *o);
/* Adaptive clipping of rows. */
void record_adaptive_clip(const optimizer *o, prog *p);
/* Records the updates of all ranges that are not BY_ELEMENT. */
void record_directions(const optimizer *o, prog *p);
/* The weights' step along a direction. @param squares VAL_NONE: its length is right as it is */
void record_along(const optimizer *o, prog *p, const update_range *s, val direction, val squares);

/* ---- muon.c -------------------------------------------------------------------------------- */
/* Deals out the matrices that ranks have shards of, in the order of the parameters. */
void muon_deal(optimizer *o);
/* The axes along which another rank orthogonalizes a matrix; whether this one does. */
axis_set dealt_over(const optimizer *o, int param);
bool muon_is_here(const optimizer *o, int param);
void record_muon(const optimizer *o, prog *p);

#endif
