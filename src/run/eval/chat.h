/* chat: prompts from messages, by the chat template that a model came with. Depends on template, checkpoint and tokenizer.
 *
 * Given `const char *model` (a run, a checkpoint or a Hugging Face folder), its `tokenizer *tok` and `json_t *messages`:
 *
 *     chat_format f = { 0 };
 *     token_ids ids = { 0 };
 *     TRY(chat_open(model, tok, &f));
 *     TRY(chat_prompt(&f, tok, messages, &ids));
 *     token_ids_free(&ids);
 *     chat_free(&f);
 */
#ifndef INGOT_CHAT_H
#define INGOT_CHAT_H

#include "eval/eval.h"

typedef struct chat_format {
    char *template; /* owned; NULL: the model has none */
    json_t *vars;   /* bos_token, eos_token and others: owned */
    int32_t *stops; /* ids that end a turn, owned */
    int n_stops;
} chat_format;
/* Reads chat_template.jinja, or what tokenizer_config.json has, and which ids end a text. A model without a template is not an
 * error: chat_prompt is. */
err chat_open(const char *folder, const tokenizer *tok, chat_format *out) MUST_USE;
/* Appends the ids of a prompt that asks for the next turn. @param messages an array of {role, content}, borrowed */
err chat_prompt(const chat_format *f, const tokenizer *tok, json_t *messages,
                token_ids *out) MUST_USE;
void chat_free(chat_format *f); /* takes a zeroed one */

#endif
