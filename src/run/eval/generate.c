/* Generation: a prompt through the key/value cache in chunks, then one token after the other, each drawn
 * from the logits of the last. When the cache is full, its later half runs again as a prompt. */
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

err generator_plan(model *m, plan *p, int64_t positions, generator *g) {
    *g = (generator){ .m = m, .positions = MIN(positions, model_conf(m)->max_seq) };
    TRY(model_record(m, PROG_DECODE, PREFILL, g->positions, &g->many));
    TRY(model_record(m, PROG_DECODE, 1, g->positions, &g->one));
    TRY(plan_chain(p, &g->many, model_bucket_regions, m, &g->many_id));
    TRY(plan_chain(p, &g->one, model_bucket_regions, m, &g->one_id));
    return OK;
}

/* ---- choosing ---------------------------------------------------------------------------- */
typedef struct token_candidate {
    float p;
    int32_t id;
} token_candidate;

static int by_probability(const void *a, const void *b) {
    const token_candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id - y->id; /* ties in a fixed order */
}

static int32_t most_likely(const float *logits, int64_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int32_t sample_token(float *logits, int64_t vocab, const sample_options *o, double u) {
    int32_t best = most_likely(logits, vocab);
    if (o->temperature <= 0) return best;
    float most = logits[best];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) {
        logits[i] = expf((logits[i] - most) / (float)o->temperature);
        sum += logits[i];
    }
    bool all = (o->top_k <= 0 || o->top_k >= vocab) && (o->top_p <= 0 || o->top_p >= 1);
    token_candidate *c = mem_alloc((size_t)vocab * sizeof *c);
    for (int64_t i = 0; i < vocab; i++) c[i] = (token_candidate){ logits[i], (int32_t)i };
    int64_t n = vocab;
    if (!all) {
        sort_array(c, (size_t)vocab, sizeof *c, by_probability);
        if (o->top_k > 0) n = MIN(n, o->top_k);
        double kept = 0, wanted = o->top_p > 0 && o->top_p < 1 ? o->top_p * sum : INFINITY;
        int64_t k = 0;
        while (k < n && kept < wanted) kept += c[k++].p;
        n = k;
        sum = kept;
    }
    double at = u * sum;
    int64_t k = 0;
    while (k < n - 1 && (at -= c[k].p) >= 0) k++;
    int32_t id = c[k].id;
    free(c);
    return id;
}

/* ---- running ----------------------------------------------------------------------------- */
/* Runs n <= PREFILL tokens at positions [at, at + n). @param logits [vocab], of the last. */
static err run_tokens(const generator *g, exec *x, const int32_t *tokens, int64_t n, int64_t at,
                      float *logits) {
    bool single = n == 1;
    int64_t width = single ? 1 : PREFILL;
    int32_t tok[PREFILL], pos[PREFILL];
    for (int64_t i = 0; i < width; i++) {
        /* The rest of the chunk repeats the last token at its own position: nothing is overwritten. */
        int64_t k = MIN(i, n - 1);
        tok[i] = tokens[k];
        pos[i] = (int32_t)(at + k);
    }
    model_set_batch(g->m, x->plan, &(model_batch){ .tokens = tok, .pos = pos, .n = width });
    int which = single ? g->one_id : g->many_id;
    TRY(exec_chain(x, which, 0, 1));
    tensor all = exec_result(x, which); /* columns beyond the vocabulary are padding */
    const float *last = (const float *)all.data + (n - 1) * all.dim[1];
    int64_t vocab = model_conf(g->m)->vocab;
    TRY(plan_get(x->plan, logits, last, (size_t)vocab * sizeof *logits));
    if (mesh_size(&model_lay(g->m)->mesh, AX_PP) == 1) return OK;
    /* every stage continues from the token that the last one's logits give */
    if (!exec_has_result(x, which)) memset(logits, 0, (size_t)vocab * sizeof *logits);
    return comm_sum(x->comm, AXIS(AX_PP), logits, vocab);
}

static err run_prompt(const generator *g, exec *x, const int32_t *tokens, int64_t n,
                      float *logits) {
    for (int64_t at = 0; at < n; at += PREFILL)
        TRY(run_tokens(g, x, tokens + at, MIN((int64_t)PREFILL, n - at), at, logits));
    return OK;
}

err generate(const generator *g, exec *x, const int32_t *prompt, int64_t n, const sample_options *o,
             bool (*emit)(void *ctx, int32_t token), void *ctx) {
    BUG_IF(n < 1);
    err e = OK;
    rng_key key = rng_key_of(o->seed, hash_str("sample"));
    int32_t *text = mem_alloc((size_t)g->positions * sizeof *text);
    int64_t keep = MIN(n, g->positions - 1), at = keep;
    memcpy(text, prompt + n - keep, (size_t)keep * sizeof *text);
    float *logits = mem_alloc((size_t)model_conf(g->m)->vocab * sizeof *logits);
    TRY_CLEAN(run_prompt(g, x, text, keep, logits));
    for (int64_t i = 0; i < o->tokens; i++) {
        int32_t id =
            sample_token(logits, model_conf(g->m)->vocab, o, rng_uniform(key, (uint64_t)i));
        if (id == o->stop || !emit(ctx, id)) break;
        if (at == g->positions) { /* full: start over from the later half */
            int64_t half = MAX(g->positions / 2, 1);
            memmove(text, text + at - half, (size_t)half * sizeof *text);
            at = half;
            if (at < g->positions) text[at++] = id;
            TRY_CLEAN(run_prompt(g, x, text, at, logits));
            continue;
        }
        text[at] = id;
        TRY_CLEAN(run_tokens(g, x, &text[at], 1, at, logits));
        at++;
    }
cleanup:
    free(logits);
    free(text);
    return e;
}

/* ---- text ---------------------------------------------------------------------------------- */
typedef struct text_sink {
    token_decoder decoder;
    str fresh;
    bool (*emit)(void *ctx, const char *text, size_t n);
    void *ctx;
} text_sink;

static bool emit_fresh(text_sink *s) {
    bool more = s->fresh.len == 0 || s->emit(s->ctx, s->fresh.text, s->fresh.len);
    s->fresh.len = 0;
    return more;
}

static bool take_token(void *ctx, int32_t id) {
    text_sink *s = ctx;
    token_decoder_push(&s->decoder, id, &s->fresh);
    return emit_fresh(s);
}

err generate_text(const generator *g, exec *x, const tokenizer *t, const char *prompt,
                  const sample_options *o, bool (*emit)(void *ctx, const char *text, size_t n),
                  void *ctx) {
    encoder *e = encoder_new(t);
    token_ids ids = { 0 };
    size_t begin = encoder_add_prefixed(e, prompt, strlen(prompt), true, &ids);
    BUG_IF(ids.n == 0);
    text_sink s = { .decoder = { .t = t }, .emit = emit, .ctx = ctx };
    /* what the prompt reads as is not written again */
    for (size_t i = begin; i < ids.n; i++) token_decoder_push(&s.decoder, ids.at[i], &s.fresh);
    s.fresh.len = 0;
    sample_options own = *o;
    own.stop = tokenizer_eos(t);
    err failed = generate(g, x, ids.at, (int64_t)ids.n, &own, take_token, &s);
    token_decoder_end(&s.decoder, &s.fresh);
    if (!failed) emit_fresh(&s);
    str_free(&s.fresh);
    token_ids_free(&ids);
    encoder_free(e);
    return failed;
}
