/* Characters of text that may be broken, and alphabets for bytes (chars.c). */
#ifndef INGOT_TOKENIZER_CHARS_INTERNAL_H
#define INGOT_TOKENIZER_CHARS_INTERNAL_H

#include "text/text.h"

/* The code point at p, which has n > 0 bytes. @return its bytes; 1 and U+FFFD for a broken byte. */
int char_decode_any(const char *p, size_t n, uint32_t *cp);

/* Whether a character of three bytes is at p. */
static inline bool is_three_bytes(const char *p) {
    uint32_t bytes = (uint8_t)p[0] | (uint32_t)(uint8_t)p[1] << 8 | (uint32_t)(uint8_t)p[2] << 16;
    return (bytes & 0xC0C0F0) == 0x8080E0;
}

/* The number of such a character: its code point, if the text is not broken. */
static inline uint32_t three_bytes_number(const char *p) {
    return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
}

/* The same, fast for what is common. */
static inline int char_decode(const char *p, size_t n, uint32_t *cp) {
    const uint8_t *s = (const uint8_t *)p;
    if (s[0] < 0x80) return *cp = s[0], 1;
    if (s[0] >= 0xC2 && s[0] < 0xE0 && n > 1 && (s[1] & 0xC0) == 0x80)
        return *cp = (s[0] & 31u) << 6 | (s[1] & 63u), 2;
    if (n > 2 && is_three_bytes(p)) {
        *cp = three_bytes_number(p);
        if (*cp >= 0x800 && (*cp & 0xF800) != 0xD800)
            return 3; /* neither overlong nor a surrogate */
    }
    return char_decode_any(p, n, cp);
}

/* The first byte of a character of three bytes, and the bytes that follow a first one. */
static inline bool is_lead(char c) { return ((uint8_t)c & 0xF0) == 0xE0; }
static inline bool is_follow(char c) { return ((uint8_t)c & 0xC0) == 0x80; }

/* Bytes of the last character before p[n], n > 0. */
int char_back(const char *p, size_t n, uint32_t *cp);
/* Broken text as valid UTF-8 for those who need it: each broken byte becomes a code point of
 * U+10FF00..U+10FFFF, and so do the bytes of such code points in the text. Undone exactly. */
void chars_escape(const char *text, size_t n, str *out);
void chars_unescape(const char *text, size_t n, str *out);
/* GPT-2's alphabet: each byte written as a printable character. */
uint32_t byte_to_char(uint8_t byte);
/* Appends the bytes that a text of that alphabet stands for. @return false, and nothing appended,
 * when a character is not of it. */
bool alphabet_to_bytes(const char *text, size_t n, str *out);
void alphabet_from_bytes(const char *bytes, size_t n, str *out);
/* Appends the bytes that base64 stands for. @return false when it is not base64. */
bool base64_to_bytes(const char *s, size_t n, str *out);
void base64_from_bytes(const char *bytes, size_t n, str *out);

/* Letters in circles and squares: symbols by their category, but Alphabetic, and so characters of words. */
#define FRAMED_LETTERS(RANGE)                                                                      \
    RANGE(24b6, 24e9) RANGE(1f130, 1f149) RANGE(1f150, 1f169) RANGE(1f170, 1f189)

#endif
