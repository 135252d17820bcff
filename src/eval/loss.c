/* Held-out loss. */
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>

/* Adds a batch's losses to *sum. @param losses a buffer, one per token. */
static err add_batch(exec *x, const model *m, int which, const data_batch *d, float *losses,
                     double *sum) {
    tensor result = exec_result(x, which);
    int64_t n = result.dim[0];
    model_batch batch = { d->tokens, d->targets, d->pos, d->start, d->id, n };
    model_set_batch(m, x->plan, &batch);
    TRY(exec_chain(x, which, 0, 1));
    TRY(plan_get(x->plan, losses, result.data, tensor_bytes(&result)));
    for (int64_t i = 0; i < n; i++) *sum += losses[i];
    return OK;
}

err eval_loss(exec *x, const model *m, int which, loader *l, int64_t batches, double *loss) {
    double sum = 0;
    int64_t valid = 0, most = loader_batches(l);
    float *losses = mem_alloc((size_t)exec_result(x, which).dim[0] * sizeof *losses);
    err e = OK;
    if (batches > 0) most = MIN(most, batches);
    loader_seek(l, 0);
    for (int64_t b = 0; b < most; b++) {
        data_batch d;
        TRY_CLEAN(loader_next(l, &d));
        TRY_CLEAN(add_batch(x, m, which, &d, losses, &sum));
        valid += d.valid_here;
    }
    *loss = valid ? sum / (double)valid : NAN;
cleanup:
    free(losses);
    return e;
}
