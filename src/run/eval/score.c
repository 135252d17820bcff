/* Likelihood of continuations. Requests are placed back to back in the rows of a batch, each a document of
 * its own:
 *
 *     | request 0 | request 1  | padding |
 *     | request 2    | request 3 | ...   |
 *
 * Where the chain can (model_record_shared), answers to one question share its tokens, and questions the examples before them. A
 * batch is then one list of tokens without rows:
 *
 *     | examples | question | answer | answer | question | answer | answer | ...
 *
 * in which an answer attends to itself, to its question and to the examples: three ranges, none of which decreases from a token to
 * the next.
 *
 * Ranks that read different rows share a batch: all of them lay out the whole of it, `rows` rows for each, and
 * each runs its own. So a request is in the same row, beside the same others, on any number of ranks. */
#include "eval/eval.h"

#include <stdlib.h>
#include <string.h>

static err plan_one(model *m, plan *p, bool shares, int64_t tokens, int64_t seq, int *id) {
    chain c;
    if (shares)
        TRY(model_record_shared(m, tokens, seq, &c));
    else
        TRY(model_record(m, PROG_EVAL, tokens, seq, &c));
    return plan_chain(p, &c, model_bucket_regions, m, id);
}

/* Tails differ by a sixteenth of the whole chain, so that the last batch has less padding than that; below a hundred tokens GEMMs
 * take no less time. */
err score_plan(model *m, plan *p, bool shares, score_chains *on) {
    enum { LEAST_TOKENS = 128 };
    int64_t whole = on->rows * on->seq, step = MAX(ceil_div(whole, SCORE_TAILS + 1), LEAST_TOKENS);
    shares = shares && model_can_share(m);
    on->tails = 0;
    TRY(plan_one(m, p, shares, whole, on->seq, &on->which));
    for (int64_t n = (whole - 1) / step * step; shares && n > 0; n -= step) {
        struct score_tail *t = &on->tail[on->tails++];
        t->tokens = n;
        TRY(plan_one(m, p, shares, n, on->seq, &t->id));
    }
    return OK;
}

typedef struct score_batch {
    int32_t *tokens, *targets, *pos, *start; /* [rows seq] */
    int64_t *ids, *owner;                    /* owner: request of each token; -1: none */
    int64_t rows, seq, row, at;              /* of all ranks; where the next request goes */
    int64_t own;                             /* rows of a rank */
    const int32_t *ranges, *previous;        /* where beginnings are shared */
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

/* @param n tokens of a rank @param losses [4][n] */
static err run_score_batch(exec *x, const model *m, int which, const score_batch *b, int64_t n,
                           float *losses, score_request *all) {
    const mesh *me = &model_lay(m)->mesh;
    tensor result = exec_result(x, which);
    placement pl = exec_result_placement(x, which);
    int64_t first = mesh_index(me, model_row_axes(m)) * n, here = result.dim[0];
    float *mine = losses + n, *top1 = losses + 2 * n, *mine1 = losses + 3 * n;
    model_batch batch = { b->tokens + first,
                          b->targets + first,
                          b->pos + first,
                          b->start + first,
                          b->ids + first,
                          n,
                          0,
                          b->ranges,
                          b->previous };
    model_set_batch(m, x->plan, &batch);
    TRY(exec_chain(x, which, 0, 1));
    if (!exec_has_result(x, which)) return OK;
    TRY(plan_get(x->plan, mine, result.data, tensor_bytes(&result)));
    TRY(plan_get(x->plan, mine1, exec_top1(x, which), tensor_bytes(&result)));
    memset(losses, 0, (size_t)n * sizeof *losses);
    for (int64_t i = 0; i < n; i++) top1[i] = 1; /* of tokens that other ranks have */
    for (int64_t i = 0; i < here; i++) {
        int64_t at = model_token_index(m, pl, n, i);
        losses[at] = mine[i];
        top1[at] = mine1[i];
    }
    for (int64_t i = 0; i < n; i++) {
        if (b->owner[first + i] < 0 || b->targets[first + i] == DATA_NO_TARGET) continue;
        all[b->owner[first + i]].sum -= (double)losses[i];
        all[b->owner[first + i]].missed += 1 - (double)top1[i];
    }
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
    double *sums = mem_alloc(2 * CHUNK * sizeof *sums);
    err e = OK;
    for (int64_t at = 0; at < n && !e; at += CHUNK) {
        int64_t some = MIN((int64_t)CHUNK, n - at);
        for (int64_t i = 0; i < some; i++) {
            sums[2 * i] = counts ? all[at + i].sum : 0;
            sums[2 * i + 1] = counts ? all[at + i].missed : 0;
        }
        e = comm_total(x->comm, sums, (int)(2 * some));
        for (int64_t i = 0; i < some; i++)
            all[at + i].sum = sums[2 * i], all[at + i].missed = sums[2 * i + 1];
    }
    free(sums);
    return e;
}

/* ---- shared beginnings ------------------------------------------------------------------------- */
enum {
    RANGE_OWN,
    RANGE_EXAMPLES,
    RANGE_QUESTION,
    LEAST_SHARED = 8 /* tokens; fewer are not worth a range */
};

typedef struct shared_batch {
    score_batch b;
    int32_t *ranges;           /* [MODEL_RANGES, 2, n] */
    int32_t *previous;         /* [n] the token before each */
    int64_t n, at;             /* tokens, and those in use */
    int32_t end[MODEL_RANGES]; /* of the last range of each kind */
} shared_batch;

/* The beginning of a request that no target is needed of. */
static int64_t without_targets(const score_request *r) { return r->from - 1; }

/* The tokens that both begin with, of those that need no target. */
static int64_t shared_tokens(const score_request *a, const score_request *b, int64_t most) {
    int64_t n = MIN(most, MIN(without_targets(a), without_targets(b))), same = 0;
    while (same < n && a->tokens[same] == b->tokens[same]) same++;
    return same;
}

/* Appends tokens [from, end) of a request, which see the ranges [first, end) of what they follow. */
static void append_tokens(shared_batch *s, const score_request *r, int64_t which, int64_t from,
                          int64_t end, const int32_t seen[MODEL_RANGES][2]) {
    score_batch *b = &s->b;
    int64_t first = s->at;
    for (int64_t i = from; i < end; i++, s->at++) {
        b->tokens[s->at] = r->tokens[i];
        b->pos[s->at] = (int32_t)i;
        s->previous[s->at] = r->tokens[MAX(i - 1, 0)];
        b->owner[s->at] = which;
        if (which >= 0 && i + 1 >= r->from) b->targets[s->at] = r->tokens[i + 1];
        for (int k = 0; k < MODEL_RANGES; k++) {
            bool any = k != RANGE_OWN && seen[k][0] < seen[k][1];
            int32_t lo = any ? seen[k][0] : s->end[k], hi = any ? seen[k][1] : s->end[k];
            if (k == RANGE_OWN) lo = (int32_t)first, hi = (int32_t)s->at + 1;
            s->ranges[(2 * k) * s->n + s->at] = lo;
            s->ranges[(2 * k + 1) * s->n + s->at] = s->end[k] = hi;
        }
    }
}

/* Requests [i, end) that begin with the same `shared` tokens. */
typedef struct request_group {
    int64_t end, shared;
} request_group;

/* Whether a request has nearly all of `shared` tokens in common with another, as answers to one question do: `same`. */
static bool is_same_question(int64_t same, int64_t shared) {
    return (double)same >= 0.9 * (double)shared;
}

/* Answers to the question of request i. @param beyond tokens that are shared anyway */
static request_group question_from(const score_request *all, int64_t i, int64_t end,
                                   int64_t beyond) {
    request_group g = { i + 1, without_targets(&all[i]) };
    for (; g.end < end; g.end++) {
        int64_t same = shared_tokens(&all[i], &all[g.end], g.shared);
        if (same < beyond + LEAST_SHARED || !is_same_question(same, g.shared)) break;
        g.shared = same;
    }
    if (g.end == i + 1) g.shared = beyond;
    return g;
}

/* Questions from request i on, among those that a batch of `capacity` tokens may hold, whose common beginning saves most: its tokens for
 * every question but the first. Without any, the answers to one question, which share nothing here. */
static request_group examples_from(const score_request *all, int64_t i, int64_t n,
                                   int64_t capacity) {
    request_group best = { i + 1, 0 };
    int64_t common = without_targets(&all[i]), used = all[i].n, questions = 1, saved = 0;
    for (int64_t k = i + 1; k < n && used < capacity; k++) {
        int64_t before = without_targets(&all[k - 1]);
        int64_t same = shared_tokens(&all[i], &all[k], common);
        int64_t last = shared_tokens(&all[k - 1], &all[k], before);
        if (same < LEAST_SHARED) break;
        common = same;
        questions += !is_same_question(last, before);
        used += all[k].n - last;
        if (questions == 1) best.end = k + 1;
        if (common * (questions - 1) < MAX(saved, 1)) continue;
        saved = common * (questions - 1);
        best = (request_group){ k + 1, common };
    }
    return best;
}

/* Adds as many requests from i on as fit. @return the first that does not. */
static int64_t fill_shared(shared_batch *s, const score_request *all, int64_t i, int64_t n) {
    int32_t seen[MODEL_RANGES][2] = { { 0 } };
    int64_t outer_end = i, inner_end = i, outer = 0, inner = 0;
    for (; i < n; i++) {
        const score_request *r = &all[i];
        request_group o = { outer_end, outer }, q = { inner_end, inner };
        if (i >= outer_end) o = examples_from(all, i, n, s->n - s->at);
        if (i >= MIN(inner_end, outer_end)) q = question_from(all, i, o.end, o.shared);
        bool new_outer = i >= outer_end, new_inner = i >= MIN(inner_end, outer_end);
        int64_t need = r->n - 1 - q.shared + (new_inner ? q.shared - o.shared : 0) +
                       (new_outer ? o.shared : 0);
        if (s->at + need > s->n) break;
        if (new_outer) {
            memset(seen, 0, sizeof seen);
            seen[RANGE_EXAMPLES][0] = (int32_t)s->at;
            append_tokens(s, r, -1, 0, o.shared, (const int32_t[MODEL_RANGES][2]){ { 0 } });
            seen[RANGE_EXAMPLES][1] = (int32_t)s->at;
        }
        if (new_inner) {
            memset(seen[RANGE_QUESTION], 0, sizeof seen[RANGE_QUESTION]);
            int32_t from = (int32_t)s->at;
            append_tokens(s, r, -1, o.shared, q.shared, seen);
            seen[RANGE_QUESTION][0] = from;
            seen[RANGE_QUESTION][1] = (int32_t)s->at;
        }
        outer_end = o.end, outer = o.shared, inner_end = q.end, inner = q.shared;
        append_tokens(s, r, i, q.shared, r->n - 1, seen);
    }
    return i;
}

/* The rest of a batch sees itself. */
static void pad_shared(shared_batch *s) {
    for (; s->at < s->n; s->at++) {
        s->previous[s->at] = 0;
        for (int k = 0; k < MODEL_RANGES; k++) {
            s->ranges[(2 * k) * s->n + s->at] = k == RANGE_OWN ? (int32_t)s->at : s->end[k];
            s->ranges[(2 * k + 1) * s->n + s->at] = k == RANGE_OWN ? (int32_t)s->at + 1 : s->end[k];
        }
    }
}

/* The last tokens of a request that is longer than a sequence. */
static score_request last_tokens(const score_request *r, int64_t seq) {
    int64_t skip = MAX(0, r->n - 1 - seq);
    return (score_request){ r->tokens + skip, r->n - skip, MAX(1, r->from - skip) };
}

/* Lays out a batch of `tokens` tokens from request i on. @return the first request that does not fit. */
static int64_t lay_out_shared(shared_batch *s, int64_t tokens, const score_request *all, int64_t i,
                              int64_t n) {
    clear_batch(&s->b);
    memset(s->end, 0, sizeof s->end);
    s->n = tokens;
    s->at = 0;
    return fill_shared(s, all, i, n);
}

/* Moves a batch into the smallest chain that holds its tokens. @return the chain's id. */
static int shrink_batch(shared_batch *s, const score_chains *on) {
    int id = on->which;
    int64_t whole = s->n;
    for (int i = 0; i < on->tails && s->at <= on->tail[i].tokens; i++)
        id = on->tail[i].id, s->n = on->tail[i].tokens;
    for (int k = 1; k < 2 * MODEL_RANGES; k++)
        memmove(s->ranges + k * s->n, s->ranges + k * whole, (size_t)s->at * sizeof *s->ranges);
    return id;
}

static err score_shared(exec *x, const model *m, const score_chains *on, score_batch *b,
                        float *losses, score_request *all, int64_t n,
                        void (*on_batch)(void *ctx, int64_t done, int64_t tokens), void *ctx) {
    int64_t whole = b->rows * b->seq;
    shared_batch s = { .b = *b };
    score_request *cut = mem_alloc((size_t)MAX(n, 1) * sizeof *cut);
    s.ranges = mem_alloc((size_t)(MODEL_RANGES * 2 * whole) * sizeof *s.ranges);
    s.previous = mem_alloc((size_t)whole * sizeof *s.previous);
    s.b.ranges = s.ranges;
    s.b.previous = s.previous;
    err e = OK;
    for (int64_t i = 0; i < n; i++) cut[i] = last_tokens(&all[i], b->seq);
    for (int64_t i = 0; i < n && !e;) {
        int64_t end = lay_out_shared(&s, whole, cut, i, n);
        BUG_IF(end == i);
        int which = shrink_batch(&s, on);
        pad_shared(&s);
        e = run_score_batch(x, m, which, &s.b, s.n, losses, all);
        i = end;
        if (on_batch) on_batch(ctx, i, s.n);
    }
    free(s.previous);
    free(s.ranges);
    free(cut);
    return e;
}

err score_all(exec *x, const model *m, const score_chains *on, score_request *all, int64_t n,
              void (*on_batch)(void *ctx, int64_t done, int64_t tokens), void *ctx) {
    int64_t rows = on->rows, seq = on->seq;
    int64_t whole = rows * mesh_span(&model_lay(m)->mesh, model_row_axes(m));
    size_t size = (size_t)(whole * seq);
    score_batch b = { .rows = whole, .seq = seq, .own = rows };
    int32_t *words = mem_alloc(4 * size * sizeof *words);
    b.tokens = words, b.targets = words + size, b.pos = words + 2 * size,
    b.start = words + 3 * size;
    b.ids = mem_alloc(2 * size * sizeof *b.ids);
    b.owner = b.ids + size;
    float *losses = mem_alloc(4 * (size_t)(rows * seq) * sizeof *losses);
    err e = OK;
    for (int64_t i = 0; i < n; i++) {
        BUG_IF(all[i].from < 1 || all[i].from > all[i].n);
        all[i].sum = all[i].missed = 0;
    }
    input_info ranges;
    if (plan_input_info(x->plan, "ranges", &ranges)) {
        e = score_shared(x, m, on, &b, losses, all, n, on_batch, ctx);
        goto cleanup;
    }
    for (int64_t i = 0; i < n;) {
        clear_batch(&b);
        while (i < n && add_request(&b, &all[i], i)) i++;
        TRY_CLEAN(run_score_batch(x, m, on->which, &b, rows * seq, losses, all));
        if (on_batch) on_batch(ctx, i, whole * seq);
    }
    TRY_CLEAN(share_scores(x, m, on->which, all, n));
cleanup:
    free(words);
    free(b.ids);
    free(losses);
    return e;
}
