/* template: chat templates, as Hugging Face folders have them: the part of Jinja that they use, with trim_blocks and
 * lstrip_blocks on, as transformers sets them. Depends on util and io.
 *
 * Given `json_t *vars`, an object with "messages" and "add_generation_prompt":
 *
 *     str out = { 0 };
 *     TRY(template_render("{{ messages[0].content }}", vars, &out));
 *     str_free(&out);
 *
 * A template comes with a model from anywhere: it can reach its variables and nothing else, and what it may print, nest and
 * repeat is bounded. A construct that is not known is an error that names it. */
#ifndef INGOT_TEMPLATE_H
#define INGOT_TEMPLATE_H

#include <jansson.h>

#include "util/util.h"

/* Appends the text. @param vars an object, borrowed. */
err template_render(const char *text, json_t *vars, str *out) MUST_USE;
/* One expression, such as "choices.label.index(answerKey)". @param out owned; null where it is undefined */
err template_evaluate(const char *text, json_t *vars, json_t **out) MUST_USE;

#endif
