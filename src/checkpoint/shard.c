/* Tensors of the whole model, from and to what each rank holds of them. All ranks call these together, in
 * the same order. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

/* Copies the elements that this rank updates, in order, from or to where they lie in the whole parameter. */
static void copy_elements(const model *m, int param, float *own, float *whole, bool to_whole) {
    const model_param *q = model_param_at(m, param);
    param_range r = model_weights_range(m, param);
    for (int64_t e = r.from, end; e < r.to; e = end) {
        end = MIN(r.to, (e / q->local[1] + 1) * q->local[1]); /* a row of the shard */
        float *at = whole + model_global_index(m, param, e), *mine = own + (e - r.from);
        memcpy(to_whole ? at : mine, to_whole ? mine : at, (size_t)(end - e) * sizeof *at);
    }
}

/* Every element is stored by the first of the ranks that update it; from the others comes -0, which leaves
 * every bit of what it is added to as it is. */
static err sum_shards(const model *m, exec *x, int param, float *own, float *whole, int64_t n) {
    for (int64_t i = 0; i < n; i++) whole[i] = -0.0f;
    if (model_param_first(m, param)) copy_elements(m, param, own, whole, true);
    return comm_sum(x->comm, AXES_ALL, whole, n);
}

err shard_get_weights(const model *m, exec *x, int param, float *whole) {
    const model_param *q = model_param_at(m, param);
    if (mesh_world(&model_lay(m)->mesh) == 1) return model_weights_get(m, x->plan, param, whole);
    float *own = mem_alloc((size_t)(q->local[0] * q->local[1]) * sizeof *own);
    err e = model_weights_get(m, x->plan, param, own);
    if (!e) e = sum_shards(m, x, param, own, whole, q->dim[0] * q->dim[1]);
    free(own);
    return e;
}

void shard_put_weights(const model *m, exec *x, int param, const float *whole) {
    const model_param *q = model_param_at(m, param);
    float *own = mem_alloc((size_t)(q->local[0] * q->local[1]) * sizeof *own);
    copy_elements(m, param, own, (float *)whole, false);
    model_weights_set(m, x->plan, param, own);
    free(own);
}

int64_t shard_state_count(const model *m, const optimizer *o, int param, int state) {
    const model_param *q = model_param_at(m, param);
    return optim_state_by_element(o, param, state) ? q->dim[0] * q->dim[1]
                                                   : optim_state_count(o, param, state);
}

err shard_get_state(const model *m, exec *x, const optimizer *o, int param, int state,
                    float *whole) {
    bool alone = mesh_world(&model_lay(m)->mesh) == 1;
    if (alone || !optim_state_by_element(o, param, state))
        return optim_state_get(o, param, state, whole);
    int64_t n = optim_state_count(o, param, state);
    float *own = mem_alloc((size_t)(n + 1) * sizeof *own);
    err e = optim_state_get(o, param, state, own);
    if (!e) e = sum_shards(m, x, param, own, whole, shard_state_count(m, o, param, state));
    free(own);
    return e;
}

void shard_put_state(const model *m, optimizer *o, int param, int state, const float *whole) {
    if (!optim_state_by_element(o, param, state)) {
        optim_state_set(o, param, state, whole);
        return;
    }
    int64_t n = optim_state_count(o, param, state);
    float *own = mem_alloc((size_t)(n + 1) * sizeof *own);
    copy_elements(m, param, own, (float *)whole, false);
    optim_state_set(o, param, state, own);
    free(own);
}
