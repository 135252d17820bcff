/* Classes of the characters a scanner meets, fast where they are ASCII. */
#ifndef INGOT_TOKENIZER_SCAN_H
#define INGOT_TOKENIZER_SCAN_H

#include "tokenizer/chars_internal.h"

enum {
    LETTER = CLASS_LETTER,
    NUMBER = CLASS_NUMBER,
    SPACE = CLASS_SPACE,
    MARK = CLASS_MARK,
    UPPER = CLASS_UPPER,
    LOWER = CLASS_LOWER,
};

/* The class of the character at s[i], i < n, and its bytes. A broken byte is of no class that
 * matters here. */
static inline unsigned class_at(const char *s, size_t n, size_t i, int *len) {
    *len = 1;
    if ((signed char)s[i] >= 0) return unicode_classes[(unsigned char)s[i]]; /* of the first page */
    uint32_t cp;
    *len = char_decode(s + i, n - i, &cp);
    return unicode_class(cp);
}

/* The end of the one piece at `from`. */
size_t scan_gpt2_one(const char *text, size_t n, size_t from);

#endif
