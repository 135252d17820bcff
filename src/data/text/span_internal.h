/* Spans of text, spools of them, and records that cannot be read (span.c). */
#ifndef INGOT_TEXT_SPAN_INTERNAL_H
#define INGOT_TEXT_SPAN_INTERNAL_H

#include "text/text.h"

static inline text_span text_span_of(const char *s) {
    size_t n = 0;
    while (s && s[n]) n++;
    return (text_span){ s, n };
}

bool span_is(text_span s, const char *word);
/* Ignores the case of ASCII letters. */
bool span_is_nocase(text_span s, const char *word);
typedef struct spool_piece spool_piece;
typedef struct spool {
    spool_piece *head; /* the newest */
} spool;
/* Reserves n bytes; the next spool_commit keeps the first `used` of them. */
char *spool_reserve(spool *s, size_t n);
text_span spool_commit(spool *s, size_t used);
text_span spool_copy(spool *s, const char *text, size_t n);
void spool_reset(spool *s); /* keeps one piece for reuse */
void spool_free(spool *s);

typedef struct bad_records {
    int64_t n;
    int64_t offset; /* of the first one, in the decompressed bytes */
    char why[160];  /* reason for the first one */
} bad_records;
void bad_records_add(bad_records *b, int64_t offset, const char *fmt, ...) PRINTF_LIKE(3, 4);
void bad_records_merge(bad_records *to,
                       const bad_records *from); /* `from` comes after `to` in the input */
/* @return whether `word` is one of the comma-separated names. */
bool name_list_has(const char *names, text_span word);

#endif
