#include "eval/eval.h"

#include <string.h>

err eval_loss(exec *x, const model *m, int which, const prog *last, loader *l, int64_t batches,
              double *loss) {
    double sum = 0;
    int64_t valid = 0, most = loader_batches(l);
    if (batches > 0) most = MIN(most, batches);
    loader_seek(l, 0);
    for (int64_t b = 0; b < most; b++) {
        data_batch d;
        TRY(loader_next(l, &d));
        int64_t n = last->val[last->loss].dim[0];
        model_batch batch = { d.tokens, d.targets, d.pos, d.start, d.id, n };
        model_set_batch(m, x->plan, comm_rank(x->comm), &batch);
        TRY(exec_chain(x, which, 0, 1));
        const float *losses = exec_value(x, which, last->loss);
        for (int64_t i = 0; i < n; i++) sum += losses[i];
        valid += d.valid_here;
    }
    *loss = valid ? sum / (double)valid : NAN;
    return OK;
}
