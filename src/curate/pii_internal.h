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

size_t pii_card_end(const masking *m, size_t i);
size_t pii_iban_end(const masking *m, size_t i);
size_t pii_ssn_end(const masking *m, size_t i);

#endif
