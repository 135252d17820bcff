#include "eval/py_text.h"

#include <utf8proc.h>

#include "text/text.h"

size_t py_read(const char *p, size_t n, uint32_t *cp) {
    unsigned char first = (unsigned char)*p;
    size_t bytes = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    *cp = 0xFFFD;
    if (bytes > n || (first >= 0x80 && first < 0xC0)) return 1;
    for (size_t i = 1; i < bytes; i++)
        if (((unsigned char)p[i] & 0xC0) != 0x80) return 1;
    utf8_decode(p, cp);
    if (*cp > 0x10FFFF) *cp = 0xFFFD;
    return bytes;
}

bool py_is_space(uint32_t cp) {
    return (unicode_class(cp) & CLASS_SPACE) || (cp >= 0x1c && cp <= 0x1f);
}

bool py_is_word(uint32_t cp) {
    return cp == '_' || (unicode_class(cp) & (CLASS_LETTER | CLASS_NUMBER));
}

uint32_t py_lower(uint32_t cp) { return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp); }
