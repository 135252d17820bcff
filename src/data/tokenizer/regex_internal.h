/* Regular expressions (regex.c). */
#ifndef INGOT_TOKENIZER_REGEX_INTERNAL_H
#define INGOT_TOKENIZER_REGEX_INTERNAL_H

#include "text/text.h"

/* Whose regular expressions: Hugging Face's (^ and $ also match at line ends), or tiktoken's. */
typedef enum { REGEX_ONIGURUMA, REGEX_RUST } regex_flavor;
typedef struct regex regex;
typedef struct regex_work regex_work; /* what one thread needs to match */
err regex_new(const char *pattern, regex_flavor flavor, regex **out) MUST_USE;
void regex_free(regex *r);
/* @param lasting whether it is worth a stack of its own, for patterns that go deep. */
regex_work *regex_work_new(bool lasting);
void regex_work_free(regex_work *w);
/* The first match at or after `from` in valid UTF-8. A search that needs too many steps or too much
 * memory is given up with a warning, once per pattern. @return false: none, or given up. */
bool regex_find(const regex *r, regex_work *w, const char *text, size_t n, size_t from,
                size_t *start, size_t *end);

#endif
