/* Likelihood of continuations. Requests lie one after another in the rows of a batch, each a document of
 * its own:
 *
 *     | request 0 | request 1  | padding |
 *     | request 2    | request 3 | ...   |
 */
#include "eval/eval.h"

#include <stdlib.h>

typedef struct score_batch {
    int32_t *tokens, *targets, *pos, *start; /* [rows seq] */
    int64_t *ids, *owner;                    /* owner: request of each token; -1: none */
    int64_t rows, seq, row, at;              /* where the next request goes */
} score_batch;

static void clear_batch(score_batch *b) {
    for (int64_t i = 0; i < b->rows * b->seq; i++) {
        b->tokens[i] = b->pos[i] = 0;
        b->targets[i] = DATA_NO_TARGET;
        b->start[i] = (int32_t)i;
        b->ids[i] = i;
        b->owner[i] = -1;
    }
    b->row = b->at = 0;
}

/* @return false when it does not fit any more. */
static bool add_request(score_batch *b, const score_request *r, int64_t which) {
    int64_t skip = MAX(0, r->n - 1 - b->seq), n = r->n - 1 - skip;
    if (b->at + n > b->seq) b->row++, b->at = 0;
    if (b->row == b->rows) return false;
    int64_t first = b->row * b->seq + b->at;
    for (int64_t i = 0; i < n; i++) {
        int64_t from = skip + i;
        b->tokens[first + i] = r->tokens[from];
        b->pos[first + i] = (int32_t)i;
        b->start[first + i] = (int32_t)first;
        b->owner[first + i] = which;
        if (from + 1 >= r->from) b->targets[first + i] = r->tokens[from + 1];
    }
    b->at += n;
    return true;
}

static err run_batch(exec *x, const model *m, int which, const score_batch *b, float *losses,
                     score_request *all) {
    tensor result = exec_result(x, which);
    int64_t n = b->rows * b->seq;
    BUG_IF(result.dim[0] != n);
    model_set_batch(m, x->plan,
                    &(model_batch){ b->tokens, b->targets, b->pos, b->start, b->ids, n, 0 });
    TRY(exec_chain(x, which, 0, 1));
    TRY(plan_get(x->plan, losses, result.data, tensor_bytes(&result)));
    for (int64_t i = 0; i < n; i++)
        if (b->owner[i] >= 0 && b->targets[i] != DATA_NO_TARGET)
            all[b->owner[i]].sum -= (double)losses[i];
    return OK;
}

err score_all(exec *x, const model *m, int which, int64_t rows, int64_t seq, score_request *all,
              int64_t n, void (*on_batch)(void *ctx, int64_t done), void *ctx) {
    size_t size = (size_t)(rows * seq);
    score_batch b = { .rows = rows, .seq = seq };
    int32_t *words = mem_alloc(4 * size * sizeof *words);
    b.tokens = words, b.targets = words + size, b.pos = words + 2 * size,
    b.start = words + 3 * size;
    b.ids = mem_alloc(2 * size * sizeof *b.ids);
    b.owner = b.ids + size;
    float *losses = mem_alloc(size * sizeof *losses);
    err e = OK;
    for (int64_t i = 0; i < n; i++) {
        BUG_IF(all[i].from < 1 || all[i].from > all[i].n);
        all[i].sum = 0;
    }
    for (int64_t i = 0; i < n;) {
        clear_batch(&b);
        while (i < n && add_request(&b, &all[i], i)) i++;
        TRY_CLEAN(run_batch(x, m, which, &b, losses, all));
        if (on_batch) on_batch(ctx, i);
    }
cleanup:
    free(words);
    free(b.ids);
    free(losses);
    return e;
}
