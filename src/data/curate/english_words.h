/* Words as datatrove counts them in English; see english_words.c. Depends on util, io and PCRE2.
 *
 *     english_words *w = NULL;
 *     TRY(english_words_new("english.json", &w));   // shared by threads
 *     english_scratch *s = english_scratch_new();   // one per thread
 *     size_t n;
 *     const uint32_t *bytes = english_words_split(w, s, "don't", 5, &n);   // 2 words: 2 and 3 bytes
 *
 * The rules are a JSON file, made from an installed spaCy by tests/fixtures/datatrove/make.py --rules FILE:
 *
 *     prefix, suffix, infix, url     patterns of PCRE2 for UTF-8; a prefix and a URL match at the beginning of
 *                                    a chunk, a suffix at its end. (?!) matches nothing
 *     exceptions                     {"don't": [2, 3], ...}: a text and the bytes of its tokens, 1 to 4
 *     punctuation, sentence_ends     [[from, to], ...]: code points, ascending
 *
 * As in spaCy's rules, no affix or infix is in letters of ASCII alone, and a suffix looks at no more than 64 bytes
 * before the dots that the text ends in. */
#ifndef INGOT_ENGLISH_WORDS_H
#define INGOT_ENGLISH_WORDS_H

#include "util/util.h"

typedef struct english_words english_words;
err english_words_new(const char *path, english_words **out) MUST_USE;
uint64_t english_words_hash(const english_words *w); /* of the file's content */
void english_words_free(english_words *w);           /* takes NULL */
typedef struct english_scratch english_scratch;
english_scratch *english_scratch_new(void);
void english_scratch_free(english_scratch *s); /* takes NULL */

/* Splits a chunk of text: n > 0 bytes of valid UTF-8 without white space. @param words how many.
 * @return [words] the bytes of each, borrowed until the next call. */
const uint32_t *english_words_split(const english_words *w, english_scratch *s, const char *chunk,
                                    size_t n, size_t *words);

/* Whether a word of such characters alone does not count, and whether a character, as a word of its own, ends
 * a sentence. */
bool english_is_punctuation(const english_words *w, uint32_t code_point);
bool english_ends_sentence(const english_words *w, uint32_t code_point);

#endif
