/* Choosing the next token, and text of one sequence: generation.c runs the model. */
#include "eval/eval.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- choosing ---------------------------------------------------------------------------- */
typedef struct token_candidate {
    float p;
    int32_t id;
} token_candidate;

/* Whether a is drawn before b. */
static bool is_likelier(const token_candidate *a, const token_candidate *b) {
    return a->p != b->p ? a->p > b->p : a->id < b->id;
}

/* Restores the heap c[0..n), the likeliest first, below element i. */
static void sift_down(token_candidate *c, int64_t n, int64_t i) {
    token_candidate moved = c[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_likelier(&c[child + 1], &c[child])) child++;
        if (!is_likelier(&c[child], &moved)) break;
        c[i] = c[child];
    }
    c[i] = moved;
}

/* Draws from the likeliest tokens: a heap, since they are few and sorting a vocabulary takes as long as a small
 * model's step. @param p [vocab] probabilities times `sum` */
static int32_t sample_likeliest(const float *p, int64_t vocab, const sample_options *o, double sum,
                                double u) {
    token_candidate *c = mem_alloc((size_t)vocab * sizeof *c);
    for (int64_t i = 0; i < vocab; i++) c[i] = (token_candidate){ p[i], (int32_t)i };
    for (int64_t i = vocab / 2; i-- > 0;) sift_down(c, vocab, i);
    int64_t most = o->top_k > 0 ? MIN(vocab, o->top_k) : vocab, left = vocab;
    double kept = 0, wanted = o->top_p < 1 ? o->top_p * sum : INFINITY;
    /* the likeliest are moved behind the heap: c[vocab - 1] is the first, and kept whatever top_p is */
    while (left == vocab || (vocab - left < most && kept < wanted)) {
        token_candidate next = c[0];
        kept += next.p;
        c[0] = c[--left];
        sift_down(c, left, 0);
        c[left] = next;
    }
    double at = u * kept;
    int64_t k = vocab - 1;
    while (k > left && (at -= c[k].p) >= 0) k--;
    int32_t id = c[k].id;
    free(c);
    return id;
}

/* @return the first token of the largest logit. Whether a run has a larger one than those before needs no branches, so that
 * the compiler uses vectors; few runs have one and are searched. */
static int32_t likeliest_token(const float *logits, int64_t vocab) {
    enum { RUN = 64 };
    int64_t best = 0, from = 0;
    for (; from + RUN <= vocab; from += RUN) {
        float most = logits[best];
        int larger = 0;
        for (int k = 0; k < RUN; k++) larger |= logits[from + k] > most;
        for (int64_t i = from; larger && i < from + RUN; i++)
            if (logits[i] > logits[best]) best = i;
    }
    for (; from < vocab; from++)
        if (logits[from] > logits[best]) best = from;
    return (int32_t)best;
}

int32_t sample_token(float *logits, int64_t vocab, const sample_options *o, double u) {
    int32_t best = likeliest_token(logits, vocab);
    if (o->temperature < FLT_MIN) return best; /* one that rounds to 0 would divide 0 by 0 */
    float most = logits[best];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) {
        logits[i] = expf((logits[i] - most) / (float)o->temperature);
        sum += logits[i];
    }
    if ((o->top_k > 0 && o->top_k < vocab) || o->top_p < 1)
        return sample_likeliest(logits, vocab, o, sum, u);
    double at = u * sum;
    int32_t k = 0;
    while (k < vocab - 1 && (at -= logits[k]) >= 0) k++;
    return k;
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

/* ---- one sequence ---------------------------------------------------------------------------- */
typedef struct one_sequence {
    bool (*emit)(void *ctx, int32_t token);
    bool (*emit_text)(void *ctx, const char *text, size_t n);
    void *ctx;
    generated out;
} one_sequence;

static bool pass_token(void *ctx, int32_t token) {
    const one_sequence *s = ctx;
    return s->emit(s->ctx, token);
}
static bool pass_text(void *ctx, const char *text, size_t n) {
    const one_sequence *s = ctx;
    return s->emit_text(s->ctx, text, n);
}
static void keep_result(void *ctx, const generated *g) { ((one_sequence *)ctx)->out = *g; }

static err run_one(generation *d, const tokenizer *t, const int32_t *prompt, int64_t n,
                   const sample_options *o, one_sequence *s, generated *out) {
    BUG_IF(generation_busy(d));
    decode_sink to = { .done = keep_result, .ctx = s };
    if (s->emit)
        to.emit = pass_token;
    else
        to.emit_text = pass_text;
    TRY(generation_add(d, t, prompt, n, o, to));
    while (generation_busy(d)) TRY(generation_step(d));
    if (out) *out = s->out;
    return OK;
}

err generate(generation *d, const int32_t *prompt, int64_t n, const sample_options *o,
             bool (*emit)(void *ctx, int32_t token), void *ctx, generated *out) {
    one_sequence s = { .emit = emit, .ctx = ctx };
    return run_one(d, NULL, prompt, n, o, &s, out);
}

err generate_after(generation *d, const tokenizer *t, const int32_t *prompt, int64_t n,
                   const sample_options *o, bool (*emit)(void *ctx, const char *text, size_t n),
                   void *ctx, generated *out) {
    one_sequence s = { .emit_text = emit, .ctx = ctx };
    return run_one(d, t, prompt, n, o, &s, out);
}

err prompt_encode(const tokenizer *t, const char *text, size_t n, token_ids *out) {
    int32_t eos = tokenizer_eos(t);
    encoder *e = encoder_new(t);
    encoder_add_prefixed(e, text, n, true, out);
    encoder_free(e);
    if (!out->n && eos >= 0) token_ids_add(out, &eos, 1);
    if (out->n) return OK;
    return err_hint(
        ERR("the prompt has no tokens, and the tokenizer none that begins or ends a document"),
        "give the beginning of a text, such as \"The \"");
}

err generate_text(generation *d, const tokenizer *t, const char *prompt, const sample_options *o,
                  bool (*emit)(void *ctx, const char *text, size_t n), void *ctx, generated *out) {
    token_ids ids = { 0 };
    err e = prompt_encode(t, prompt, strlen(prompt), &ids);
    if (!e) e = generate_after(d, t, ids.at, (int64_t)ids.n, o, emit, ctx, out);
    token_ids_free(&ids);
    return e;
}
