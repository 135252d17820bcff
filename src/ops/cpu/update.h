/* What the update kernels share: the numbers of a step, and the copy that products read. */
#ifndef INGOT_OPS_CPU_UPDATE_H
#define INGOT_OPS_CPU_UPDATE_H

#include "chunks.h"

#include <math.h>

/* The scalars of one call: made in fp64 from the attributes and the step block, once. */
typedef struct update_factors {
    float scale;  /* of the gradient */
    float lr;     /* this parameter's */
    float keep;   /* 1 - lr decay: what decoupled decay leaves */
    float decay;  /* for rules that add it to the gradient */
    float b1, c1; /* beta1, 1 - beta1 */
    float b2, c2;
    float step;      /* lr / (1 - beta1^t) */
    float root_bias; /* 1 / sqrt(1 - beta2^t) */
    float eps;
} update_factors;

static inline update_factors update_factors_of(const op_call *c) {
    const step_block *s = c->run->step;
    double lr = (double)s->update.lr * c->attr.update.lr_mul, decay = c->attr.update.decay;
    double b1 = c->attr.update.beta1, b2 = c->attr.update.beta2, t = (double)s->update.count;
    return (update_factors){ .scale = s->update.grad_scale,
                             .lr = (float)lr,
                             .keep = (float)(1 - lr * decay),
                             .decay = (float)decay,
                             .b1 = (float)b1,
                             .c1 = (float)(1 - b1),
                             .b2 = (float)b2,
                             .c2 = (float)(1 - b2),
                             .step = (float)(lr / (1 - pow(b1, t))),
                             .root_bias = (float)(1 / sqrt(1 - pow(b2, t))),
                             .eps = c->attr.update.eps };
}

/* Writes elements [at, at + n) of p into the copy, while they are in the cache. */
static inline void update_copy(const tensor *copy, const float *p, int64_t at, int64_t n) {
    if (copy->data) elems_put(copy, at, n, p + at);
}

/* Operands of an update are flat fp32 of one size; the copy may be of any float type. */
static inline void update_check(const op_call *c, int states, int copy) {
    int64_t n = tensor_count(&c->in[0]);
    BUG_IF(c->in[0].dt != DT_F32);
    for (int i = 0; i <= states; i++)
        BUG_IF(!c->out[i].data || c->out[i].dt != DT_F32 || tensor_count(&c->out[i]) != n);
    BUG_IF(c->out[copy].data && tensor_count(&c->out[copy]) != n);
    BUG_IF(c->run->step->update.count < 1);
}

#endif
