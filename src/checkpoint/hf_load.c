/* The weights of a Hugging Face folder into a model's plan. */
#include <math.h>

#include "checkpoint/checkpoint_internal.h"

typedef struct target {
    model *m;
    exec *x;
} target;

static err put_weights(void *ctx, int i, const float *values) {
    target *to = ctx;
    const model_param *q = model_param_at(to->m, i);
    for (int64_t k = 0, n = q->dim[0] * q->dim[1]; k < n; k++)
        if (!isfinite(values[k]))
            return err_hint(ERR("%s: element %lld is %g", q->name, (long long)k, (double)values[k]),
                            "use another file: this one is damaged, or its training had diverged");
    shard_put_weights(to->m, to->x, i, values);
    return OK;
}

err hf_load(const hf_family *family, const char *folder, model *m, exec *x) {
    st_file *f;
    target to = { m, x };
    TRY(hf_open_weights(folder, &f));
    err e = hf_import_params(family, f, m, put_weights, &to);
    st_close(f);
    TRY(e);
    TRY(model_publish(m, x));
    model_fill_constants(m, x->plan);
    return OK;
}
