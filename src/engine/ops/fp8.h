/* fp8: how tensors are scaled into eight bits. Depends on tensor.
 *
 * A tensor is stored as x * scale, rounded to e4m3 (values) or e5m2 (gradients). Scales are powers of two:
 * the multiplication is exact, so that a value is rounded only once and identically on every backend, and
 * a scale does not follow every small change of the largest value.
 *
 * The scale and history of one tensor (a *site*: an operand of one linear layer) are a row of floats:
 *
 *     | unscale | scale | amax | top | amax of the last 16 steps, the latest first |
 *
 * Rows are aligned to 16 bytes, which cuBLASLt requires of the address of `unscale`.
 *
 * A row of zeros has no scale yet; the first tensor that is quantized with it sets one. A tensor of zeros
 * does not.
 */
#ifndef INGOT_OPS_FP8_H
#define INGOT_OPS_FP8_H

#include "config/choices.h"
#include "tensor/tensor.h"

#ifdef __CUDACC__
#define FP8_BOTH __host__ __device__
#else
#define FP8_BOTH
#endif

/* A recipe (fp8_recipe) either takes the scale from the tensor itself, which is read twice, or from the
 * largest value of the last steps, fixed within a step. */
static inline bool fp8_keeps_history(fp8_recipe r) {
    return fp8_recipe_traits[r] & FP8_KEEPS_HISTORY;
}

enum {
    FP8_UNSCALE, /* the inverse of scale, for GEMMs */
    FP8_SCALE,   /* what values are multiplied by; 0: none yet */
    FP8_AMAX,    /* largest finite magnitude: since the step began (delayed), or of the tensor */
    FP8_TOP,     /* largest value of the format */
    FP8_HISTORY,
    FP8_STEPS = 16,
    FP8_ROW = FP8_HISTORY + FP8_STEPS
};

enum { FP8_UNIT = 16 }; /* the sizes of a GEMM must be multiples of it */

/* The operands of a linear layer, in the order of their rows. */
enum { FP8_X, FP8_W, FP8_DY, FP8_OPERANDS };

static inline FP8_BOTH float fp8_top(dtype dt) { return dt == DT_E5M2 ? 57344.0f : 448.0f; }

/* @return the largest power of two with amax * scale <= top; 0 where amax is 0. Below 2^-50 of amax it
 * grows no further, so that the inverses of two scales can be multiplied. */
static inline FP8_BOTH float fp8_scale(float amax, float top) {
    union {
        float f;
        uint32_t u;
    } s;
    s.f = top / (amax < 0x1p-50f ? 0x1p-50f : amax);
    s.u &= 0x7f800000; /* the exponent alone */
    return amax > 0 ? s.f : 0;
}

static inline FP8_BOTH void fp8_set_scale(float *row, float scale) {
    row[FP8_SCALE] = scale;
    row[FP8_UNSCALE] = scale > 0 ? 1 / scale : 0;
}

/* @return the scale of the gradient of logits in e5m2. Softmax and target bound it by `unit`, the gradient of a token's loss;
 * a z-loss may exceed that, by a factor of up to 14 before it saturates. */
static inline FP8_BOTH float fp8_logit_scale(float unit) {
    return fp8_scale(8 * (unit < 0 ? -unit : unit), fp8_top(DT_E5M2));
}

/* Begins a step: adds the amax of the last one to the history and computes the scale from all of it. */
static inline FP8_BOTH void fp8_commit_row(float *row) {
    float most = row[FP8_AMAX], *history = row + FP8_HISTORY;
    for (int i = FP8_STEPS - 1; i > 0; i--) {
        history[i] = history[i - 1];
        most = history[i] > most ? history[i] : most;
    }
    history[0] = row[FP8_AMAX];
    row[FP8_AMAX] = 0;
    fp8_set_scale(row, fp8_scale(most, row[FP8_TOP]));
}

#endif
