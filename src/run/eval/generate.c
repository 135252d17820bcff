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
    if (mesh_stages(&model_lay(g->m)->mesh) == 1) return OK;
    /* every stage continues from the token that the last one's logits give */
    if (!exec_has_result(x, which)) memset(logits, 0, (size_t)vocab * sizeof *logits);
    return comm_sum(x->comm, AXES_STAGES, logits, vocab);
}

static err run_prompt(const generator *g, exec *x, const int32_t *tokens, int64_t from, int64_t n,
                      float *logits) {
    for (int64_t at = from; at < n; at += PREFILL)
        TRY(run_tokens(g, x, tokens + at, MIN((int64_t)PREFILL, n - at), at, logits));
    return OK;
}

void generator_memory_free(generator_memory *h) {
    free(h->ids);
    free(h->logits);
    *h = (generator_memory){ 0 };
}

/* Runs the prompt from where it differs from the one before. Whole chunks are kept, so that a text does not depend on what
 * was generated before it. */
static err run_remembered(const generator *g, exec *x, const int32_t *tokens, int64_t n,
                          generator_memory *h, float *logits) {
    size_t bytes = (size_t)model_conf(g->m)->vocab * sizeof *logits;
    int64_t same = 0;
    if (!h) return run_prompt(g, x, tokens, 0, n, logits);
    while (same < MIN(n, h->n) && h->ids[same] == tokens[same]) same++;
    if (same == n && n == h->n) {
        memcpy(logits, h->logits, bytes);
        return OK;
    }
    h->n = 0; /* until it has run */
    TRY(run_prompt(g, x, tokens, MIN(same, n - 1) / PREFILL * PREFILL, n, logits));
    free(h->ids);
    free(h->logits);
    h->ids = mem_alloc((size_t)n * sizeof *h->ids);
    h->logits = mem_alloc(bytes);
    memcpy(h->ids, tokens, (size_t)n * sizeof *h->ids);
    memcpy(h->logits, logits, bytes);
    h->n = n;
    return OK;
}

void sample_penalize(float *logits, int64_t vocab, const sample_options *o, const int32_t *context,
                     int64_t n, int64_t made) {
    double repeat = o->repetition_penalty > 0 ? o->repetition_penalty : 1;
    bool counts = o->frequency_penalty != 0 || o->presence_penalty != 0;
    if (repeat == 1 && !counts) return;
    int32_t *seen = mem_alloc((size_t)vocab * sizeof *seen); /* 0: not there; 1 + generated */
    for (int64_t i = 0; i < n; i++) seen[context[i]] = MAX(seen[context[i]], 1) + (i >= made);
    for (int64_t i = 0; i < vocab; i++) {
        if (!seen[i]) continue;
        logits[i] *= (float)(logits[i] > 0 ? 1 / repeat : repeat);
        logits[i] -=
            (float)(o->frequency_penalty * (seen[i] - 1) + (seen[i] > 1 ? o->presence_penalty : 0));
    }
    free(seen);
}

static bool ends_text(const sample_options *o, int32_t id) {
    for (int i = 0; i < o->n_stops; i++)
        if (id == o->stops[i]) return true;
    return id == o->stop;
}

err generate(const generator *g, exec *x, const int32_t *prompt, int64_t n, const sample_options *o,
             bool (*emit)(void *ctx, int32_t token), void *ctx, generated *out) {
    BUG_IF(n < 1);
    err e = OK;
    generated own = { .prompt = n };
    rng_key key = rng_key_of(o->seed, hash_str("sample"));
    int32_t *text = mem_alloc((size_t)g->positions * sizeof *text);
    int64_t keep = MIN(n, g->positions - 1), at = keep, made = keep,
            vocab = model_conf(g->m)->vocab;
    memcpy(text, prompt + n - keep, (size_t)keep * sizeof *text);
    float *logits = mem_alloc((size_t)vocab * sizeof *logits);
    TRY_CLEAN(run_remembered(g, x, text, keep, o->memory, logits));
    for (int64_t i = 0; i < o->tokens; i++) {
        sample_penalize(logits, vocab, o, text, at, made);
        int32_t id = sample_token(logits, vocab, o, rng_uniform(key, (uint64_t)i));
        own.stopped = ends_text(o, id);
        if (own.stopped) break;
        own.tokens++;
        own.stopped = !emit(ctx, id);
        if (own.stopped) break;
        if (at == g->positions) { /* full: start over from the later half */
            int64_t half = MAX(g->positions / 2, 1);
            memmove(text, text + at - half, (size_t)half * sizeof *text);
            made = MAX(0, made - (at - half));
            at = half;
            if (at < g->positions) text[at++] = id;
            if (o->memory) o->memory->n = 0;
            TRY_CLEAN(run_prompt(g, x, text, 0, at, logits));
            continue;
        }
        text[at] = id;
        TRY_CLEAN(run_tokens(g, x, &text[at], 1, at, logits));
        at++;
    }
    if (out) *out = own;
cleanup:
    free(logits);
    free(text);
    return e;
}

/* ---- text ---------------------------------------------------------------------------------- */
typedef struct text_sink {
    token_decoder decoder;
    str fresh; /* not emitted yet */
    const sample_options *o;
    bool (*emit)(void *ctx, const char *text, size_t n);
    void *ctx;
    bool ended; /* a stop text came */
} text_sink;

/* @return where the first stop text begins in what is fresh, or, with `last` false, where one may begin that is not whole yet;
 * else its length. */
static size_t find_stop(text_sink *s, bool last) {
    for (size_t at = 0; at < s->fresh.len; at++)
        for (int i = 0; i < s->o->n_stop_texts; i++) {
            size_t n = strlen(s->o->stop_texts[i]), left = s->fresh.len - at;
            if (!n || memcmp(s->fresh.text + at, s->o->stop_texts[i], MIN(n, left)) != 0) continue;
            if (left >= n) s->ended = true;
            if (left >= n || !last) return at;
        }
    return s->fresh.len;
}

static bool emit_fresh(text_sink *s, bool last) {
    size_t n = find_stop(s, last);
    bool more = n == 0 || s->emit(s->ctx, s->fresh.text, n);
    if (n) memmove(s->fresh.text, s->fresh.text + n, s->fresh.len - n + 1);
    s->fresh.len -= n;
    return more && !s->ended;
}

static bool take_token(void *ctx, int32_t id) {
    text_sink *s = ctx;
    token_decoder_push(&s->decoder, id, &s->fresh);
    return emit_fresh(s, false);
}

err generate_after(const generator *g, exec *x, const tokenizer *t, const int32_t *prompt,
                   int64_t n, const sample_options *o,
                   bool (*emit)(void *ctx, const char *text, size_t n), void *ctx, generated *out) {
    text_sink s = { .decoder = { .t = t }, .o = o, .emit = emit, .ctx = ctx };
    /* what the prompt reads as is not written again */
    for (int64_t i = 0; i < n; i++) token_decoder_push(&s.decoder, prompt[i], &s.fresh);
    s.fresh.len = 0;
    sample_options own = *o;
    own.stop = tokenizer_eos(t);
    err failed = generate(g, x, prompt, n, &own, take_token, &s, out);
    token_decoder_end(&s.decoder, &s.fresh);
    if (!failed && !s.ended) emit_fresh(&s, true);
    if (out && s.ended) out->stopped = true;
    str_free(&s.fresh);
    return failed;
}

err generate_text(const generator *g, exec *x, const tokenizer *t, const char *prompt,
                  const sample_options *o, bool (*emit)(void *ctx, const char *text, size_t n),
                  void *ctx, generated *out) {
    encoder *e = encoder_new(t);
    token_ids ids = { 0 };
    encoder_add_prefixed(e, prompt, strlen(prompt), true, &ids);
    BUG_IF(ids.n == 0);
    err failed = generate_after(g, x, t, ids.at, (int64_t)ids.n, o, emit, ctx, out);
    token_ids_free(&ids);
    encoder_free(e);
    return failed;
}
