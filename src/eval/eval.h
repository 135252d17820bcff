/* eval: what a trained model is worth and what it writes. Depends on model, data, checkpoint.
 *
 * Given `model *m`, `plan *p`, `exec x`, a prompt `const int32_t *prompt` of `int64_t n` ids, and
 * `bool (*print_token)(void *ctx, int32_t token)`:
 *
 *     generator g;
 *     TRY(generator_plan(m, p, 1024, &g));                 // its own programs and cache
 *     TRY(plan_commit(p));
 *     TRY(generate(&g, &x, prompt, n, &(sample_options){ .tokens = 200, .temperature = 0.8 },
 *                  print_token, NULL));
 */
#ifndef INGOT_EVAL_H
#define INGOT_EVAL_H

#include "checkpoint/checkpoint.h"
#include "data/data.h"
#include "tokenizer/tokenizer.h"

/* Mean loss over the targets of `batches` microbatches from the loader's beginning (0: all).
 * @param which the plan's EVAL chain, @param last its last program. */
err eval_loss(exec *x, const model *m, int which, loader *l, int64_t batches,
              double *loss) MUST_USE;

/* ---- writing text ------------------------------------------------------------------------ */
enum { PREFILL = 64 }; /* tokens of a prompt taken at once */

/* Two DECODE chains over one key/value cache: a prompt in pieces, then a token at a time. */
typedef struct generator {
    model *m;
    int64_t positions; /* rows of the cache; older tokens are forgotten in halves */
    chain many, one;
    int many_id, one_id;
} generator;
err generator_plan(model *m, plan *p, int64_t positions, generator *g) MUST_USE;

typedef struct sample_options {
    int64_t tokens;
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0 or 1: all */
    uint64_t seed;
    int32_t stop; /* end here; -1: never */
} sample_options;

/* Writes up to `tokens` after the prompt, giving each to emit as it is made; emit returns false to
 * stop. The prompt holds at least one token. The same seed gives the same text. */
err generate(const generator *g, exec *x, const int32_t *prompt, int64_t n, const sample_options *o,
             bool (*emit)(void *ctx, int32_t token), void *ctx) MUST_USE;

/* The same in text: `prompt` is not empty; emit gets whole characters as they are made. o->stop is
 * not read: the tokenizer's end of a document stops. */
err generate_text(const generator *g, exec *x, const tokenizer *t, const char *prompt,
                  const sample_options *o, bool (*emit)(void *ctx, const char *text, size_t n),
                  void *ctx) MUST_USE;

/* Chooses a token from logits [vocab], which are overwritten. `u` is uniform in [0, 1). */
int32_t sample_token(float *logits, int64_t vocab, const sample_options *o, double u);

#endif
