/* Words as datatrove counts them in English; see english_words.c. Depends on util and PCRE2.
 *
 *     english_words *w = NULL;
 *     TRY(english_words_new(&w));                   // shared by threads
 *     english_scratch *s = english_scratch_new();   // one per thread
 *     size_t n;
 *     const uint32_t *bytes = english_words_split(w, s, "don't", 5, &n);   // 2 words: 2 and 3 bytes
 */
#ifndef INGOT_ENGLISH_WORDS_H
#define INGOT_ENGLISH_WORDS_H

#include "util/util.h"

typedef struct english_words english_words;
err english_words_new(english_words **out) MUST_USE;
void english_words_free(english_words *w); /* takes NULL */
typedef struct english_scratch english_scratch;
english_scratch *english_scratch_new(void);
void english_scratch_free(english_scratch *s); /* takes NULL */

/* Splits a chunk of text: n > 0 bytes of valid UTF-8 without white space. @param words how many.
 * @return [words] the bytes of each, borrowed until the next call. */
const uint32_t *english_words_split(const english_words *w, english_scratch *s, const char *chunk,
                                    size_t n, size_t *words);

bool english_is_punctuation(uint32_t code_point); /* a word of nothing else does not count */
bool english_ends_sentence(uint32_t code_point);  /* as a word of its own */

#endif
