/* py_text: characters as Python's str and re see them, so that answers and words are counted as other programs count them.
 *
 * Given `const char *text` and `size_t n`:
 *
 *     int64_t spaces = 0;
 *     uint32_t cp;
 *     for (size_t i = 0; i < n; spaces += py_is_space(cp)) i += py_read(text + i, n - i, &cp);
 *     return spaces ? ERR("spaces") : OK;
 */
#ifndef INGOT_PY_TEXT_H
#define INGOT_PY_TEXT_H

#include "util/util.h"

/* Reads the character at p. @param n bytes from p on, at least 1. @param cp U+FFFD where the bytes are not UTF-8. @return its bytes */
size_t py_read(const char *p, size_t n, uint32_t *cp);
bool py_is_space(uint32_t cp); /* \s */
bool py_is_word(uint32_t cp);  /* \w */
uint32_t py_lower(uint32_t cp);

#endif
