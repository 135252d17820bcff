/* Norms and values that are read of gradients and parameters now and then: of all of them, of the first half of a step, of
 * each block. Programs compute the norms. */
#include "optim_internal.h"

#include <math.h>
#include <stdlib.h>

err optim_half_norm(optimizer *o, exec *x, double *norm) {
    float sum[2];
    step_state now;
    TRY(plan_get(o->p, sum, plan_data(o->p, o->sum), sizeof sum));
    TRY(exec_state_get(x, &now));
    *norm = sqrt((double)sum[0] + sum[1]) / (now.loss_scale > 0 ? now.loss_scale : 1);
    return OK;
}

/* ---- of each block, and values ---------------------------------------------------------------- */
err optim_block_norms(optimizer *o, exec *x, param_buffer which, double *norm) {
    int blocks = model_conf(o->m)->layers + 1;
    float *sums = mem_alloc((size_t)blocks * 2 * sizeof *sums);
    if (o->on_host) exec_join(x, QUEUE_COMPUTE, QUEUE_UPDATE); /* which changes weights */
    err e = exec_program(x, o->block_norm[which]);
    if (!e)
        e = plan_get(o->p, sums, (float *)plan_data(o->p, o->sum) + 2,
                     (size_t)blocks * 2 * sizeof *sums);
    for (int i = 0; i < blocks && !e; i++) norm[i] = sqrt((double)sums[2 * i] + sums[2 * i + 1]);
    free(sums);
    return e;
}

int64_t optim_param_count(const optimizer *o, int param) {
    return o->param[param].range < 0 ? 0 : o->param[param].count;
}

err optim_read(const optimizer *o, int param, param_buffer which, int64_t n, float *to) {
    const param_update *t = &o->param[param];
    const update_range *s = &o->range[t->range];
    dtype dt = which == PARAM_GRAD ? DT_F32 : s->b.master_dt;
    region_at in = which == PARAM_GRAD ? s->b.grad : s->b.master;
    size_t size = dt_size(dt);
    const char *at = (char *)plan_data(o->p, in.region) + (size_t)(in.at + s->at + t->at) * size;
    void *raw = mem_alloc((size_t)n * size);
    err e = plan_get(o->p, raw, at, (size_t)n * size);
    if (!e) dt_to_f32(dt, raw, to, n);
    free(raw);
    return e;
}
