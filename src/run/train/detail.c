/* Metrics that take a pass over the parameters (metrics.detail_every): norms per block, the size of the
 * update, and a sample of weights, gradients and updates for histograms.
 *
 *     queue the step's microbatches -> read a sample of the weights -> update -> finish the step
 *         -> read the sample again -> norms
 *
 * The gradient of a step stays in its accumulators until the next one begins, so such a step is finished
 * before that. The sample is the first SAMPLED elements of each parameter this rank stores; each stands
 * for all elements of its parameter. */
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED = 4096 };
enum { WEIGHTS, GRADIENTS, UPDATES };

static int64_t sampled_count(const trainer *t, int param) {
    return MIN(optim_param_count(t->o, param), SAMPLED);
}

static err read_sample(trainer *t, param_buffer which, float *to) {
    for (int i = 0; i < model_params(t->m); i++) {
        int64_t n = sampled_count(t, i);
        if (n) TRY(optim_read(t->o, i, which, n, to));
        to += n;
    }
    return OK;
}

static void allocate_samples(trainer *t) {
    static const char *const names[] = { "weights", "gradients", "updates" };
    observe_detail *d = &t->detail.last;
    if (d->grad_norm) return;
    int64_t all = 0;
    for (int i = 0; i < model_params(t->m); i++) all += sampled_count(t, i);
    d->blocks = t->mc.layers;
    d->grad_norm = mem_alloc((size_t)(d->blocks + 1) * sizeof(double));
    d->param_norm = mem_alloc((size_t)(d->blocks + 1) * sizeof(double));
    t->detail.values = mem_alloc(COUNT_OF(names) * (size_t)MAX(all, 1) * sizeof(float));
    for (int k = 0; k < (int)COUNT_OF(names); k++)
        d->sample[k] = (observe_sample){ names[k], t->detail.values + k * all, all };
}

static float *sample_of(trainer *t, int k) {
    return t->detail.values + k * t->detail.last.sample[k].n;
}

err detail_before_update(trainer *t) {
    allocate_samples(t);
    return read_sample(t, PARAM_MASTER, sample_of(t, UPDATES));
}

/* Norm of the update over norm of the parameters, from their samples. */
static double update_ratio(trainer *t) {
    const float *weight = sample_of(t, WEIGHTS), *update = sample_of(t, UPDATES);
    double moved = 0, held = 0;
    for (int p = 0; p < model_params(t->m); p++) {
        int64_t n = sampled_count(t, p);
        double each = n ? (double)optim_param_count(t->o, p) / (double)n : 0;
        for (int64_t i = 0; i < n; i++) {
            moved += each * (double)update[i] * update[i];
            held += each * (double)weight[i] * weight[i];
        }
        weight += n;
        update += n;
    }
    return sqrt(moved / held);
}

/* Measures the root mean square of each block's input, from sums over all ranks. */
static err measure_activations(trainer *t) {
    double *v = t->alerts.activation; /* [layers][2], and at the end [layers] */
    int n = t->mc.layers;
    memset(v, 0, (size_t)n * 2 * sizeof *v);
    for (int l = 0; l < n; l++) {
        exec_sample *s = &t->alerts.sampled[l];
        const void *raw;
        if (!s->n) continue;
        TRY(plan_wait(t->p, &s->ticket, &raw));
        float *value = mem_alloc((size_t)s->n * sizeof *value);
        dt_to_f32(s->dt, raw, value, s->n);
        for (int64_t i = 0; i < s->n; i++) v[2 * l] += (double)value[i] * value[i];
        v[2 * l + 1] = (double)s->n;
        free(value);
    }
    TRY(comm_total(t->x.comm, v, 2 * n));
    for (int l = 0; l < n; l++) v[l] = v[2 * l + 1] > 0 ? sqrt(v[2 * l] / v[2 * l + 1]) : NAN;
    return OK;
}

/* Figures of a layer's fp8 tensors that ranks exchange. */
typedef struct fp8_layer {
    double amax; /* of the inputs of its linear layers */
    double seen,
        above; /* tensors; those whose largest value in the step is more than their scale can hold */
} fp8_layer;

/* @param n floats of all layers */
static void read_fp8_layers(const float *rows, int64_t n, int layers, fp8_layer *out) {
    int64_t each = n / layers / FP8_ROW; /* rows of a layer */
    for (int l = 0; l < layers; l++)
        for (int64_t i = 0; i < each; i++) {
            const float *row = rows + (l * each + i) * FP8_ROW;
            if (!(row[FP8_SCALE] > 0)) continue; /* of another rank's layer, or not in fp8 */
            out[l].seen++;
            out[l].above += row[FP8_AMAX] * row[FP8_SCALE] > row[FP8_TOP];
            if (i % FP8_OPERANDS == FP8_X) out[l].amax = MAX(out[l].amax, (double)row[FP8_AMAX]);
        }
}

/* Of all ranks. @param all [ranks][layers] */
static void join_fp8_layers(trainer *t, const fp8_layer *all) {
    observe_detail *d = &t->detail.last;
    int layers = t->mc.layers;
    double seen = 0, above = 0;
    if (!d->fp8_amax) {
        d->fp8_amax = mem_alloc((size_t)layers * sizeof(double));
        d->fp8_saturated = mem_alloc((size_t)layers * sizeof(double));
    }
    for (int l = 0; l < layers; l++) {
        fp8_layer sum = { 0 };
        for (int r = 0; r < mesh_world(&t->mesh); r++) {
            const fp8_layer *one = &all[r * layers + l];
            sum.amax = MAX(sum.amax, one->amax);
            sum.seen += one->seen;
            sum.above += one->above;
        }
        d->fp8_amax[l] = sum.seen > 0 ? sum.amax : NAN;
        d->fp8_saturated[l] = sum.above / sum.seen; /* NaN: none is in fp8 */
        seen += sum.seen;
        above += sum.above;
    }
    if (seen > 0) t->alerts.fp8_saturated = above / seen;
}

static err measure_fp8(trainer *t) {
    int64_t n;
    int layers = t->mc.layers;
    const float *rows = model_fp8_rows(t->m, t->p, &n);
    t->alerts.fp8_saturated = NAN;
    if (!rows) return OK;
    float *copy = mem_alloc((size_t)n * sizeof *copy);
    size_t bytes = (size_t)layers * sizeof(fp8_layer);
    fp8_layer *mine = mem_alloc(bytes), *all = mem_alloc((size_t)mesh_world(&t->mesh) * bytes);
    err e = plan_get(t->p, copy, rows, (size_t)n * sizeof *copy);
    if (!e) read_fp8_layers(copy, n, layers, mine);
    if (!e) e = comm_collect(t->x.comm, mine, bytes, all);
    if (!e) join_fp8_layers(t, all);
    free(copy);
    free(mine);
    free(all);
    return e;
}

err detail_measure(trainer *t, observe_step *s) {
    observe_detail *d = &t->detail.last;
    float *weight = sample_of(t, WEIGHTS), *grad = sample_of(t, GRADIENTS);
    float *update = sample_of(t, UPDATES); /* still the weights before */
    double scale = isnan(s->loss_scale) ? 1 : s->loss_scale, squares = 0;
    TRY(optim_block_norms(t->o, &t->x, PARAM_GRAD, d->grad_norm));
    TRY(optim_block_norms(t->o, &t->x, PARAM_MASTER, d->param_norm));
    TRY(read_sample(t, PARAM_MASTER, weight));
    TRY(read_sample(t, PARAM_GRAD, grad));
    for (int64_t i = 0; i < d->sample[WEIGHTS].n; i++) {
        update[i] = weight[i] - update[i];
        grad[i] = (float)(grad[i] / scale);
    }
    for (int i = 0; i <= d->blocks; i++) {
        d->grad_norm[i] /= scale;
        squares += d->param_norm[i] * d->param_norm[i];
    }
    s->param_norm = sqrt(squares);
    s->update_ratio = update_ratio(t);
    s->detail = d;
    TRY(measure_activations(t));
    d->activation_rms = t->alerts.activation;
    return measure_fp8(t);
}

void detail_free(trainer *t) {
    free(t->detail.last.grad_norm);
    free(t->detail.last.param_norm);
    free(t->detail.last.fp8_amax);
    free(t->detail.last.fp8_saturated);
    free(t->detail.values);
}
