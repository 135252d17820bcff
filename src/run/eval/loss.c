/* Held-out loss. */
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>

/* The axes that share the tokens of a sequence: a rank gets the losses of its own. */
static axis_set result_token_axes(const exec *x, const model *m, int which) {
    return placement_axes(exec_result_placement(x, which), PL_S) & ~model_row_axes(m);
}

/* Adds a batch's losses to *sum. @param losses a buffer, one per token. */
static err add_batch(exec *x, const model *m, int which, const data_batch *d, float *losses,
                     double *sum) {
    tensor result = exec_result(x, which);
    int64_t n = result.dim[0],
            all = n * mesh_span(&model_lay(m)->mesh, result_token_axes(x, m, which));
    model_batch batch = { d->tokens, d->targets, d->pos, d->start, d->id, all };
    model_set_batch(m, x->plan, &batch);
    TRY(exec_chain(x, which, 0, 1));
    if (!exec_has_result(x, which)) return OK;
    TRY(plan_get(x->plan, losses, result.data, tensor_bytes(&result)));
    for (int64_t i = 0; i < n; i++) *sum += losses[i];
    return OK;
}

static int64_t target_bytes(const tokenizer *tok, const data_batch *d, int64_t n) {
    str text = { 0 };
    for (int64_t i = 0; i < n; i++)
        if (d->targets[i] != DATA_NO_TARGET) tokenizer_decode(tok, &d->targets[i], 1, false, &text);
    int64_t bytes = (int64_t)text.len;
    str_free(&text);
    return bytes;
}

typedef struct loss_sums {
    double loss;
    int64_t tokens, bytes; /* of the targets; bytes where there is a tokenizer */
} loss_sums;

/* Adds up the first batches of a loader, all of them if `batches` is 0, as far as this rank has them. */
static err sum_losses(exec *x, const model *m, int which, loader *l, int64_t batches,
                      const tokenizer *tok, eval_progress show, loss_sums *out) {
    int64_t n = exec_result(x, which).dim[0], most = loader_batches(l);
    float *losses = mem_alloc((size_t)n * sizeof *losses);
    err e = OK;
    if (batches > 0) most = MIN(most, batches);
    loader_seek(l, 0);
    for (int64_t b = 0; b < most; b++) {
        data_batch d;
        TRY_CLEAN(loader_next(l, &d));
        TRY_CLEAN(add_batch(x, m, which, &d, losses, &out->loss));
        out->tokens += d.valid_here;
        if (tok) out->bytes += target_bytes(tok, &d, n);
        if (show.on_batch) show.on_batch(show.ctx, b + 1, most);
    }
cleanup:
    free(losses);
    return e;
}

err eval_loss(exec *x, const model *m, int which, loader *l, int64_t batches, double *loss) {
    loss_sums own = { 0 };
    TRY(sum_losses(x, m, which, l, batches, NULL, (eval_progress){ 0 }, &own));
    const mesh *me = &model_lay(m)->mesh;
    /* of ranks that know the same, one counts; of a pipeline it is one that has the losses */
    axis_set others = AXES_ALL & ~model_row_axes(m) & ~AXES_STAGES;
    bool last = exec_has_result(x, which);
    bool has_sum = last && mesh_index(me, others & ~result_token_axes(x, m, which)) == 0;
    bool has_valid = last && mesh_index(me, others) == 0;
    double sums[] = { has_sum ? own.loss : 0, has_valid ? (double)own.tokens : 0 };
    TRY(comm_total(x->comm, sums, COUNT_OF(sums)));
    *loss = sums[1] > 0 ? sums[0] / sums[1] : NAN;
    return OK;
}

err eval_read_text(exec *x, const model *m, int which, loader *l, int64_t batches,
                   const tokenizer *tok, eval_progress show, eval_text *out) {
    loss_sums all = { 0 };
    *out = (eval_text){ .loss = NAN };
    TRY(sum_losses(x, m, which, l, batches, tok, show, &all));
    out->tokens = all.tokens;
    out->bytes = all.bytes;
    if (out->tokens) out->loss = all.loss / (double)out->tokens;
    return OK;
}

double eval_bits_per_byte(const eval_text *t) {
    return t->bytes ? t->loss * (double)t->tokens / (double)t->bytes / log(2) : NAN;
}
