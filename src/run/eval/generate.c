/* Choosing the next token, and text of one sequence: generation.c runs the model. */
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- choosing ---------------------------------------------------------------------------- */
typedef struct token_candidate {
    float p;
    int32_t id;
} token_candidate;

SORT_ORDER(by_probability, token_candidate, FALLING(p) RISING(id));

int32_t sample_token(float *logits, int64_t vocab, const sample_options *o, double u) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
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

err generate_text(generation *d, const tokenizer *t, const char *prompt, const sample_options *o,
                  bool (*emit)(void *ctx, const char *text, size_t n), void *ctx, generated *out) {
    encoder *e = encoder_new(t);
    token_ids ids = { 0 };
    encoder_add_prefixed(e, prompt, strlen(prompt), true, &ids);
    BUG_IF(ids.n == 0);
    err failed = generate_after(d, t, ids.at, (int64_t)ids.n, o, emit, ctx, out);
    token_ids_free(&ids);
    encoder_free(e);
    return failed;
}
