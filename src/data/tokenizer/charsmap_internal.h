/* SentencePiece's normalization (charsmap.c). */
#ifndef INGOT_TOKENIZER_CHARSMAP_INTERNAL_H
#define INGOT_TOKENIZER_CHARSMAP_INTERNAL_H

#include "text/text.h"

typedef struct charsmap charsmap;
/* @param bytes n bytes of the compiled table, copied. */
err charsmap_new(const char *bytes, size_t n, charsmap **out) MUST_USE;
void charsmap_free(charsmap *m); /* takes NULL */
uint64_t charsmap_hash(const charsmap *m);
/* Appends the normalized text. @param longest as SentencePiece does it, else as Hugging Face's library.
 * @param text valid UTF-8. */
void charsmap_normalize(const charsmap *m, bool longest, const char *text, size_t n, str *out);

#endif
