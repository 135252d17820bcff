/* Likelihood of continuations. Requests lie one after another in the rows of a batch, each a document of
 * its own:
 *
 *     | request 0 | request 1  | padding |
 *     | request 2    | request 3 | ...   |
 *
 * Ranks that read different rows share a batch: all of them lay out the whole of it, `rows` rows for each, and
 * each runs its own. So a request lies in the same row, beside the same others, on any number of ranks. */
#include "eval/eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct score_batch {
    int32_t *tokens, *targets, *pos, *start; /* [rows seq] */
    int64_t *ids, *owner;                    /* owner: request of each token; -1: none */
    int64_t rows, seq, row, at;              /* of all ranks; where the next request goes */
    int64_t own;                             /* rows of a rank */
} score_batch;

static void clear_batch(score_batch *b) {
    for (int64_t i = 0; i < b->rows * b->seq; i++) {
        b->tokens[i] = b->pos[i] = 0;
        b->targets[i] = DATA_NO_TARGET;
        b->start[i] = (int32_t)(i % (b->own * b->seq));
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
        b->start[first + i] = (int32_t)(first % (b->own * b->seq)); /* among the rank's own */
        b->owner[first + i] = which;
        if (from + 1 >= r->from) b->targets[first + i] = r->tokens[from + 1];
    }
    b->at += n;
    return true;
}

/* @param losses [2][tokens of a rank] */
static err run_score_batch(exec *x, const model *m, int which, const score_batch *b, float *losses,
                           score_request *all) {
    const mesh *me = &model_lay(m)->mesh;
    tensor result = exec_result(x, which);
    placement pl = exec_result_placement(x, which);
    int64_t n = b->own * b->seq, first = mesh_index(me, model_row_axes(m)) * n,
            here = result.dim[0];
    float *mine = losses + n;
    model_batch batch = { b->tokens + first,
                          b->targets + first,
                          b->pos + first,
                          b->start + first,
                          b->ids + first,
                          n,
                          0 };
    model_set_batch(m, x->plan, &batch);
    TRY(exec_chain(x, which, 0, 1));
    if (!exec_has_result(x, which)) return OK;
    TRY(plan_get(x->plan, mine, result.data, tensor_bytes(&result)));
    memset(losses, 0, (size_t)n * sizeof *losses);
    for (int64_t i = 0; i < here; i++) losses[model_token_index(m, pl, n, i)] = mine[i];
    for (int64_t i = 0; i < n; i++)
        if (b->owner[first + i] >= 0 && b->targets[first + i] != DATA_NO_TARGET)
            all[b->owner[first + i]].sum -= (double)losses[i];
    return OK;
}

/* Adds up what ranks have; of those that know the same, one counts. */
static err share_scores(exec *x, const model *m, int which, score_request *all, int64_t n) {
    enum { CHUNK = 4096 };
    const mesh *me = &model_lay(m)->mesh;
    if (mesh_world(me) == 1) return OK;
    axis_set sharded = placement_axes(exec_result_placement(x, which), PL_S);
    axis_set alike = AXES_ALL & ~model_row_axes(m) & ~AXES_STAGES & ~sharded;
    bool counts = exec_has_result(x, which) && mesh_index(me, alike) == 0;
    double *sums = mem_alloc(CHUNK * sizeof *sums);
    err e = OK;
    for (int64_t at = 0; at < n && !e; at += CHUNK) {
        int64_t some = MIN((int64_t)CHUNK, n - at);
        for (int64_t i = 0; i < some; i++) sums[i] = counts ? all[at + i].sum : 0;
        e = comm_total(x->comm, sums, (int)some);
        for (int64_t i = 0; i < some; i++) all[at + i].sum = sums[i];
    }
    free(sums);
    return e;
}

err score_all(exec *x, const model *m, int which, int64_t rows, int64_t seq, score_request *all,
              int64_t n, void (*on_batch)(void *ctx, int64_t done), void *ctx) {
    int64_t whole = rows * mesh_span(&model_lay(m)->mesh, model_row_axes(m));
    size_t size = (size_t)(whole * seq);
    score_batch b = { .rows = whole, .seq = seq, .own = rows };
    int32_t *words = mem_alloc(4 * size * sizeof *words);
    b.tokens = words, b.targets = words + size, b.pos = words + 2 * size,
    b.start = words + 3 * size;
    b.ids = mem_alloc(2 * size * sizeof *b.ids);
    b.owner = b.ids + size;
    float *losses = mem_alloc(2 * (size_t)(rows * seq) * sizeof *losses);
    err e = OK;
    for (int64_t i = 0; i < n; i++) {
        BUG_IF(all[i].from < 1 || all[i].from > all[i].n);
        all[i].sum = 0;
    }
    for (int64_t i = 0; i < n;) {
        clear_batch(&b);
        while (i < n && add_request(&b, &all[i], i)) i++;
        TRY_CLEAN(run_score_batch(x, m, which, &b, losses, all));
        if (on_batch) on_batch(ctx, i);
    }
    TRY_CLEAN(share_scores(x, m, which, all, n));
cleanup:
    free(words);
    free(b.ids);
    free(losses);
    return e;
}
