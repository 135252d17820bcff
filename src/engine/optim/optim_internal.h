/* What the optimizer is made of: rules, the ranges they run over, where their state lies. */
#ifndef INGOT_OPTIM_INTERNAL_H
#define INGOT_OPTIM_INTERNAL_H

#include "optim/optim.h"

/* ---- rules: rules.c ---------------------------------------------------------------------- */
/* Rows and columns are of the whole matrix, on every rank that has a part of its bucket. */
typedef enum { AS_PARAM, AS_ROWS, AS_COLS, AS_BYTES, AS_SIGNED_BYTES } state_shape;
/* How an update follows from the gradient: element by element; or along a direction, which depends on the
 * whole parameter (directions.c). */
typedef enum { BY_ELEMENT, BY_FACTORS, BY_FACTORS_VECTOR, BY_ORTHOGONAL } rule_kind;
enum { MAX_STATES = 2 };

typedef struct rule {
    op_code op;
    int states, copy; /* copy: which output of the op it is */
    rule_kind kind;
    struct {
        const char *name;
        state_shape shape;
    } state[MAX_STATES];
} rule;

err rules_check(const optim_settings *s, const model *m) MUST_USE;
const rule *rule_of(optim_kind kind, const model_param *q);
op_attr rule_attr(const optim_settings *s, const model_config *c, const model_param *q);
/* Adaptive clipping of rows: matrices, but for the head. */
bool rule_clips_rows(const optim_settings *s, const model_config *c, const model_param *q);
static inline bool rule_in_bytes(const rule *r, int k) {
    return r->state[k].shape == AS_BYTES || r->state[k].shape == AS_SIGNED_BYTES;
}

/* ---- the optimizer ----------------------------------------------------------------------- */
/* Contiguous parameters of a bucket that one call updates, with the padding between them: zeros, which
 * stay zeros. State has the range's own size and order. */
typedef struct update_range {
    const rule *r;
    bucket_view b;
    int64_t at, count;     /* elements of the view */
    int param;             /* its first; its only one but for BY_ELEMENT */
    int state[MAX_STATES]; /* plan regions; not of rows and columns, which belong to parameters */
    op_attr attr;          /* update.host_state, host_params: these are in host memory */
} update_range;

typedef struct param_slot { /* a parameter, or the slice of it that this rank stores */
    int range;              /* -1: this rank stores none of it */
    int64_t at;             /* in the range */
    int64_t count;
    int64_t copies;        /* ranks that hold the same elements */
    int whole[MAX_STATES]; /* plan regions of states by rows and columns; -1: none */
    int64_t sums;          /* of its rows and columns: where they begin in directions.sums */
} param_slot;

typedef struct workspace {
    int region;
    size_t bytes;
} workspace;

/* What directions are computed with; plan regions, -1: none. See directions.c. */
typedef struct directions {
    axis_set parts;    /* ranks along these hold different parts of some parameter */
    int sums, squares; /* [sums of all matrices], [params, 2] */
    int64_t sum_count;
    int slices, bucket, matrix; /* of Muon: [slices, elements of one], all of a bucket, a matrix */
} directions;

struct optimizer {
    optim_settings s;
    const model *m;
    const plan *p;
    mesh mesh;
    param_slot *slot; /* [params] */
    int *order;       /* [ordered] parameters this rank stores, in memory order */
    int params, ordered;
    update_range *range;
    int ranges;
    bool on_host;                /* some of them have state or parameters in host memory */
    bool params_on_host;         /* ... parameters */
    int sum;                     /* plan region: the gradient's square sum */
    workspace work, update_work; /* of calls on QUEUE_COMPUTE and on QUEUE_UPDATE */
    double first_partial;        /* of optim_first_add: what the host summed */
    directions d;
    exec_tape clip, updates;
};

typedef struct step_run {
    optimizer *o;
    exec *x;
    step_block *step;
    tensor sum;
} step_run;

/* ---- optim.c ------------------------------------------------------------------------------- */
/* A tensor over elements `at` on of a region; without a committed plan, its shape alone. */
tensor region_view(const optimizer *o, bool ready, int region, dtype dt, int64_t at, int ndim,
                   const int64_t *dim);
/* The same over elements `at` on of what a bucket's view has in a region. */
tensor part_view(const optimizer *o, bool ready, region_part in, dtype dt, int64_t at, int ndim,
                 const int64_t *dim);
op_call sqnorm_call(float *grad, int64_t n, int64_t copies, bool add, const tensor *sum);
/* Grows the workspace to what the call needs; refuses what the backend cannot run. */
err reserve_call(optimizer *o, const plan *p, workspace *w, const op_call *c) MUST_USE;
void run_call(const step_run *r, op_call *c);
/* Moves a tensor on the ranks; waits for it. @param name of what asks, for messages. */
err move_tensor(const step_run *r, const char *name, comm_move move, const tensor *in,
                const tensor *out) MUST_USE;
err sum_over(const step_run *r, const char *name, axis_set axes, const tensor *t) MUST_USE;

/* ---- directions.c -------------------------------------------------------------------------- */
/* Reserves states by rows and columns, and buffers; after the ranges are known. */
err directions_reserve(optimizer *o, plan *p) MUST_USE;
/* Adaptive clipping of rows. */
err clip_adaptively(const step_run *r) MUST_USE;
/* The updates of all ranges that are not BY_ELEMENT. */
err update_along_directions(const step_run *r) MUST_USE;

#endif
