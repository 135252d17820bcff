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
static char *part_data(const optimizer *o, const param_update *t, param_buffer which, dtype *dt) {
    const update_range *s = &o->range[t->range];
    *dt = which == PARAM_GRAD ? DT_F32 : s->b.master_dt;
    region_at in = which == PARAM_GRAD ? s->b.grad : s->b.master;
    char *data = plan_data(o->p, in.region);
    return data + (size_t)(in.at + s->at + t->at) * dt_size(*dt);
}

/* Reads elements [from, from + n) of a parameter as fp32. @param raw a buffer of n floats. */
static err read_elements(const optimizer *o, const param_update *t, param_buffer which,
                         int64_t from, int64_t n, float *raw, float *to) {
    dtype dt;
    char *at = part_data(o, t, which, &dt);
    TRY(plan_get(o->p, dt == DT_F32 ? to : raw, at + (size_t)from * dt_size(dt),
                 (size_t)n * dt_size(dt)));
    if (dt != DT_F32) dt_to_f32(dt, raw, to, n);
    return OK;
}

err optim_block_norms(optimizer *o, exec *x, param_buffer which, double *norm) {
    int blocks = model_conf(o->m)->layers + 1;
    float *sums = mem_alloc((size_t)blocks * 2 * sizeof *sums);
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
    float *raw = mem_alloc((size_t)n * sizeof *raw);
    err e = read_elements(o, &o->param[param], which, 0, n, raw, to);
    free(raw);
    return e;
}
