/* clip: from the sum of squares of a gradient to the step state: whether the update runs, how gradients
 * are scaled, and the next loss scale. Runs where the gradient is stored, on the CPU and in CUDA kernels alike,
 * so that the host never waits for the norm. Depends on ops.
 *
 *     norm = sqrt(sum) / loss scale
 *     not finite:  skip the update; the loss scale halves
 *     above skip:  skip the update, and nothing else (skip < 0: any norm is; 0: none)
 *     finite:      gradients are multiplied by min(1, max_norm / norm) / loss scale; after
 *                  `interval` such steps in a row the loss scale doubles
 *
 * The loss scale stays within [1, 2^32]. interval 0: loss scaling is disabled, and the scale does not change. */
#ifndef INGOT_OPS_CLIP_H
#define INGOT_OPS_CLIP_H

#include "ops/ops.h"

#include <math.h>

#ifdef __CUDACC__
#define CLIP_FUNCTION static __host__ __device__ inline
#else
#define CLIP_FUNCTION static inline
#endif

/* @return the factor that clips a gradient of this norm to max_norm; max_norm 0: no clipping. */
CLIP_FUNCTION double clip_factor(double norm, double max_norm) {
    return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

CLIP_FUNCTION void clip_state(step_state *s, const float *sum, float max_norm, float skip,
                              int64_t interval) {
    const float least = 1, most = 4294967296.0f;
    float scale = s->loss_scale > 0 ? s->loss_scale : 1;
    double norm = sqrt((double)sum[0] + sum[1]) / scale;
    bool good = isfinite(norm) && norm <= 3.4e38; /* also as the fp32 that is reported */
    s->norm = (float)norm;
    bool wanted = skip < 0 || (skip > 0 && norm > skip);
    s->skip = !good || wanted;
    s->grad_scale = 0;
    if (good && wanted) return;
    if (good) {
        s->grad_scale = (float)(clip_factor(norm, max_norm) / scale);
        s->count++;
    }
    if (interval <= 0) return;
    s->good = good ? s->good + 1 : 0;
    if (!good) s->loss_scale = scale / 2 > least ? scale / 2 : least;
    if (s->good < interval) return;
    s->loss_scale = scale * 2 < most ? scale * 2 : most;
    s->good = 0;
}

#endif
