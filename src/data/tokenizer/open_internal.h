/* Tokenizers from files (open_*.c): the parts of a tokenizer.json (json_*.c), and what is put around texts (affixes.c). */
#ifndef INGOT_TOKENIZER_OPEN_INTERNAL_H
#define INGOT_TOKENIZER_OPEN_INTERNAL_H

#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

struct json_t;
/* An error unless all members of the object are among those named, separated by spaces. */
err json_only(const struct json_t *o, const char *where, const char *allowed) MUST_USE;

/* A kind of step of a normalizer, pre-tokenizer or post-processor, by its "type". */
typedef struct step_kind {
    const char *type, *members; /* that it may have beside "type" */
    err (*read)(const struct json_t *o, const struct step_kind *k, void *into);
    int what;
} step_kind;
/* Reads one object by its type, or a Sequence of them. @param list the member of a Sequence that holds them. */
err json_read_steps(const struct json_t *o, const char *where, const step_kind *kinds, int n,
                    const char *list, void *into) MUST_USE;
/* Reads the "pattern" of a step. */
err json_finder(const struct json_t *step, const char *where, finder *out) MUST_USE;
err json_normalizer(const struct json_t *o, tokenizer *t) MUST_USE;
/* @param byte_level whether bytes are written in GPT-2's alphabet. */
err json_pre_tokenizer(const struct json_t *o, tokenizer *t, bool *byte_level) MUST_USE;
/* Reads what is put around texts; the vocabulary must be complete. */
err json_post_processor(const struct json_t *o, tokenizer *t) MUST_USE;
/* @return what json_post_processor reads back, owned; null without affixes. */
struct json_t *affixes_json(const tokenizer *t);
/* Applies the tokenizer_config.json in the folder `path`, unless that has a tokenizer.json, or beside a tokenizer.model. */
err affixes_from_settings(const char *path, tokenizer *t) MUST_USE;
/* Fills in what ids give, and finishes the tokenizer. */
err json_decoder(const struct json_t *o, tokenizer *t, bool byte_level) MUST_USE;
err tokenizer_open_json(const char *path, tokenizer **out) MUST_USE;
err tokenizer_open_gpt2(const char *vocab, const char *merges, tokenizer **out) MUST_USE;
err tokenizer_open_sentencepiece(const char *path, tokenizer **out) MUST_USE;
err tokenizer_open_tiktoken(const char *path, const char *pattern, tokenizer **out) MUST_USE;
/* A document that holds what a tokenizer.json holds. @param name for messages. @param source the
 * document as text, owned from here on. */
err tokenizer_from_json(const struct json_t *doc, const char *name, char *source, size_t len,
                        tokenizer **out) MUST_USE;

#endif
