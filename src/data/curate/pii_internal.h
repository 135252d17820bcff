/* Internals of PII masking: the text being masked, and looking at its bytes. */
#ifndef INGOT_PII_INTERNAL_H
#define INGOT_PII_INTERNAL_H

#include <string.h>

#include "curate/curate.h"

/* The text being masked, and how much of it is already copied. */
typedef struct masking {
    text_span text;
    size_t done;
} masking;

/* @return the byte at i; -1 outside of the text. */
static inline int pii_byte_at(const masking *m, size_t i) {
    return i < m->text.len ? (unsigned char)m->text.at[i] : -1;
}
static inline int pii_byte_before(const masking *m, size_t i) {
    return i > 0 ? pii_byte_at(m, i - 1) : -1;
}

static inline bool pii_is_digit(int c) { return c >= '0' && c <= '9'; }
static inline bool pii_is_letter(int c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
/* Bytes of non-ASCII characters count as letters: they join words. */
static inline bool pii_is_alnum(int c) { return pii_is_digit(c) || pii_is_letter(c) || c >= 0x80; }
static inline bool pii_is_one_of(int c, const char *set) { return c > 0 && strchr(set, c); }

/* Whether the n bytes of `word` are at i; nocase: `word` is in lower case, ASCII letters of the text need
 * not be. */
static inline bool pii_has(const masking *m, size_t i, const char *word) {
    size_t n = strlen(word);
    return i <= m->text.len && n <= m->text.len - i && memcmp(m->text.at + i, word, n) == 0;
}
static inline bool pii_has_nocase(const masking *m, size_t i, const char *word) {
    for (; *word; word++, i++) {
        int c = pii_byte_at(m, i);
        if ((c >= 'A' && c <= 'Z' ? c + 32 : c) != (unsigned char)*word) return false;
    }
    return true;
}

/* Whether a non-ASCII character with this first byte is a letter of a script that separates words: Latin
 * to Georgian, but not punctuation (C2, E2), and not ideographs, kana or Hangul (from E3), which adjoin
 * anything. */
static inline bool pii_is_letter_lead(int c) { return c >= 0xC3 && c <= 0xE1; }
static inline bool pii_letter_follows(const masking *m, size_t i) {
    return pii_is_letter(pii_byte_at(m, i)) || pii_is_letter_lead(pii_byte_at(m, i));
}
/* @return where the character that ends before i begins; i > 0. */
static inline size_t pii_character_before(const masking *m, size_t i) {
    size_t k = i - 1;
    while (k > 0 && i - k < 4 && (pii_byte_at(m, k) & 0xC0) == 0x80) k--;
    return k;
}
static inline bool pii_letter_precedes(const masking *m, size_t i) {
    return i > 0 && pii_letter_follows(m, pii_character_before(m, i));
}

/* Each returns the end of what begins at i; i: nothing does. */
size_t pii_phone_end(const masking *m, size_t i);
/* Finds the address around the @ at `sign`. @return false if there is none. */
bool pii_find_email(const masking *m, size_t sign, size_t *begin, size_t *end);
size_t pii_card_end(const masking *m, size_t i);
size_t pii_iban_end(const masking *m, size_t i);
size_t pii_ssn_end(const masking *m, size_t i);

#endif
