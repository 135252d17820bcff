/* How evenly routers load their experts, for the metrics: what each layer counted in a step, which is stored in
 * the place of its bias's gradient (ROUTE in ops.def), summed over all ranks. Read like the step's state,
 * when the next step is queued. Stages of a pipeline add up what they have of the layers. */
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static expert_load *new_loads(const trainer *t) {
    expert_load *load = mem_alloc((size_t)t->mc.layers * sizeof *load);
    for (int l = 0; l < t->mc.layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "l%d.moe.bias", l);
        int i = model_find_param(t->m, name);
        if (i >= 0) load[l].at = model_param_data(t->m, t->p, i, PARAM_GRAD, NULL);
    }
    return load;
}

void expert_load_fetch(trainer *t, queued_step *q) {
    if (!t->mc.experts) return;
    if (!q->load) q->load = new_loads(t);
    for (int l = 0; l < t->mc.layers; l++) {
        expert_load *load = &q->load[l];
        size_t bytes = (size_t)(t->mc.experts + 1) * sizeof *load->at;
        if (load->at) plan_fetch(t->p, QUEUE_COMPUTE, &load->ticket, load->at, bytes);
    }
}

/* Keeps the least and the most loaded expert of a layer, for the monitor. */
static void keep_extremes(trainer *t, int layer, const float *count, double sum) {
    double *least = t->alerts.expert + layer, *most = least + t->mc.layers;
    if (!(sum > 0)) return;
    *least = *most = count[0];
    for (int i = 1; i < t->mc.experts; i++) {
        *least = MIN(*least, (double)count[i]);
        *most = MAX(*most, (double)count[i]);
    }
    *least *= t->mc.experts / sum;
    *most *= t->mc.experts / sum;
    most[t->mc.layers] = 1;
}

err expert_load_measure(trainer *t, observe_step *s) {
    expert_load *load = t->last.load;
    int layers = t->mc.layers, experts = t->mc.experts;
    double most = 0;
    if (!load) return OK;
    float *count = mem_alloc((size_t)(experts + 1) * sizeof *count);
    /* the largest share of each layer, then choices and those of them that were dropped */
    double *all = mem_alloc((size_t)(layers + 2) * sizeof *all);
    memset(t->alerts.expert, 0, 3 * (size_t)layers * sizeof *t->alerts.expert);
    err e = OK;
    for (int l = 0; l < layers && !e; l++) {
        double sum = 0, largest = 0;
        if (!load[l].at) continue;
        e = plan_take(t->p, &load[l].ticket, count);
        for (int i = 0; i < experts; i++) {
            sum += count[i];
            largest = MAX(largest, (double)count[i]);
        }
        all[l] = largest * experts / MAX(sum, 1);
        all[layers] += sum;
        all[layers + 1] += count[experts];
        keep_extremes(t, l, count, sum);
    }
    if (!e) e = ranks_sum_stages(t, all, layers + 2);
    for (int l = 0; l < layers; l++) most = MAX(most, all[l]);
    s->expert_load = most;
    s->expert_drop = all[layers + 1] / MAX(all[layers], 1);
    free(count);
    free(all);
    double *v = t->alerts.expert; /* of a pipeline each stage knows its own layers */
    if (!e) e = ranks_sum_stages(t, v, 3 * layers);
    for (int l = 0; l < layers && !e; l++)
        if (!(v[2 * layers + l] > 0)) v[l] = v[layers + l] = NAN; /* a layer without experts */
    return e;
}

void expert_load_free(trainer *t) {
    for (int l = 0; t->last.load && l < t->mc.layers; l++) plan_drop(t->p, &t->last.load[l].ticket);
    free(t->last.load);
}
