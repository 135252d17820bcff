/* Known patterns, each with a scanner of its own (split.c, scan*.c). */
#ifndef INGOT_TOKENIZER_SPLITTER_INTERNAL_H
#define INGOT_TOKENIZER_SPLITTER_INTERNAL_H

#include "util/util.h"

/* Ends of the pieces from `from` on, which is where one begins; any bytes.
 * @return how many were written, at least 1 and at most `max`; the last is n when all is done. */
typedef int (*scan_fn)(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_gpt2(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_cl100k(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_qwen2(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_o200k(const char *text, size_t n, size_t from, size_t *ends, int max);
/* Before each U+2581 that follows another character. */
int scan_words(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_whole(const char *text, size_t n, size_t from, size_t *ends, int max);
/* @param pattern a name or a regular expression. @return NULL: no scanner of ours does it. */
scan_fn scanner_of(const char *pattern);

#endif
