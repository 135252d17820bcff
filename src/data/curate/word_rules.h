/* Words as datatrove counts them; see word_rules.c. Depends on util, io, text and PCRE2.
 *
 *     word_tables *t = word_tables_new();                             // shared by threads
 *     const word_rules *w = word_tables_get(t, word_tables_find(t, "en"));
 *     word_scratch *s = word_scratch_new();                           // one per thread
 *     size_t n;
 *     const uint32_t *bytes = word_rules_split(w, s, "don't", 5, &n); // 2 words: 2 and 3 bytes
 *
 * Rules may also come from a JSON file, such as tests/fixtures/datatrove/make.py --rules FILE makes from an installed
 * spaCy:
 *
 *     prefix, suffix, infix, url     patterns of PCRE2 for UTF-8; a prefix and a URL match at the beginning of
 *                                    a chunk, a suffix at its end. (?!) matches nothing
 *     exceptions                     {"don't": [2, 3], ...}: a text and the bytes of its tokens, 1 to 4
 *     punctuation, sentence_ends     [[from, to], ...]: code points, ascending
 *
 * As in spaCy's rules for English, no affix or infix is in letters of ASCII alone, and a suffix looks at no more than 64
 * bytes before the dots that the text ends in. */
#ifndef INGOT_WORD_RULES_H
#define INGOT_WORD_RULES_H

#include "util/util.h"

typedef struct word_rules word_rules;
err word_rules_read(const char *path, word_rules **out) MUST_USE;
uint64_t word_rules_hash(const word_rules *w); /* of the file's content */
void word_rules_free(word_rules *w);           /* takes NULL */

/* ---- the rules of languages that are compiled in: word_tables.c ---- */
typedef struct word_tables word_tables;
word_tables *word_tables_new(void);
void word_tables_free(word_tables *t); /* takes NULL */
/* @return the rules of a language, such as en, eng or eng_Latn; -1: it has none. */
int word_tables_find(const word_tables *t, const char *language);
int word_tables_any(const word_tables *t); /* the rules for a language without any */
/* @return rules, borrowed from the tables. Any thread may call it. */
const word_rules *word_tables_get(word_tables *t, int rules);
uint64_t word_tables_hash(void);

typedef struct word_scratch word_scratch;
word_scratch *word_scratch_new(void);
void word_scratch_free(word_scratch *s); /* takes NULL */

/* Whether spaces and tabs alone separate chunks: other white space is part of a word unless at its ends. */
bool word_rules_only_blanks(const word_rules *w);
/* Splits a chunk of text: n > 0 bytes of valid UTF-8 without white space that separates chunks. @param words how many.
 * @return [words] the bytes of each, borrowed until the next call. */
const uint32_t *word_rules_split(const word_rules *w, word_scratch *s, const char *chunk, size_t n,
                                 size_t *words);

/* Whether any chunk of n letters of ASCII with these ends is one word. */
bool word_rules_keep_letters(const word_rules *w, char first, char last, size_t n);

/* Whether a word of such characters alone does not count, and whether a character, as a word of its own, ends
 * a sentence. */
bool word_is_punctuation(const word_rules *w, uint32_t code_point);
bool word_ends_sentence(const word_rules *w, uint32_t code_point);
/* Whether sentences have a pattern of their own, and how many of them it finds in a line. */
bool word_rules_have_sentences(const word_rules *w);
int64_t word_rules_sentences(const word_rules *w, word_scratch *s, const char *text, size_t n);

#endif
