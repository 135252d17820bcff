/* What the optimizer is made of: rules, the ranges they run over, where their state lies. */
#ifndef INGOT_OPTIM_INTERNAL_H
#define INGOT_OPTIM_INTERNAL_H

#include "optim/optim.h"

/* ---- rules: rules.c ---------------------------------------------------------------------- */
typedef enum { AS_PARAM, AS_ROWS, AS_COLS, AS_BYTES, AS_SIGNED_BYTES } state_shape;
/* What one call takes: any elements, a whole parameter, or a whole matrix with its shape. */
typedef enum { TAKES_ANY, TAKES_PARAM, TAKES_MATRIX } rule_takes;
enum { MAX_STATES = 2 };

typedef struct rule {
    op_code op;
    int states, copy; /* copy: which output of the op it is */
    rule_takes takes;
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
    int param;             /* its first; its only one where a call takes a single parameter */
    int state[MAX_STATES]; /* plan regions */
    op_attr attr;          /* update.host_state: state is in host memory */
} update_range;

typedef struct param_slot { /* a parameter, or the slice of it that this rank stores */
    int range;              /* -1: this rank stores none of it */
    int64_t at;             /* in the range */
    int64_t count;
    int64_t copies; /* ranks that hold the same elements */
} param_slot;

typedef struct workspace {
    int region;
    size_t bytes;
} workspace;

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
    bool on_host;         /* some of them have state in host memory */
    int sum;              /* plan region: the gradient's square sum */
    workspace work, side; /* side: of calls on the side queue */
    exec_tape clip, updates;
};

#endif
