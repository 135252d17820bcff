/* Helpers of the parsers: spans, spooled strings, and the tally of bad records. */
#include <stdlib.h>
#include <string.h>

#include "text/span_internal.h"

bool span_is(text_span s, const char *word) {
    return strlen(word) == s.len && memcmp(s.at, word, s.len) == 0;
}

bool text_spans_equal(text_span a, text_span b) {
    return a.len == b.len && (a.at == b.at || memcmp(a.at, b.at, a.len) == 0);
}

bool span_is_nocase(text_span s, const char *word) {
    for (size_t i = 0; i < s.len; i++)
        if (!word[i] || lower_ascii(word[i]) != lower_ascii(s.at[i])) return false;
    return !word[s.len];
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

text_span span_trim(text_span s) {
    while (s.len > 0 && is_blank(s.at[s.len - 1])) s.len--;
    while (s.len > 0 && is_blank(s.at[0])) s.at++, s.len--;
    return s;
}

bool name_list_has(const char *names, text_span word) {
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        text_span name = span_trim((text_span){ p, n });
        if (name.len == word.len && memcmp(name.at, word.at, word.len) == 0) return true;
        p += n + (p[n] == ',');
    }
    return false;
}

/* ---- spool ----------------------------------------------------------------------------------- */
struct spool_piece {
    spool_piece *next;
    size_t used, size;
    char bytes[];
};
enum { SPOOL_PIECE = 256 << 10 };

char *spool_reserve(spool *s, size_t n) {
    if (!s->head || s->head->size - s->head->used < n) {
        size_t size = MAX(n, (size_t)SPOOL_PIECE);
        spool_piece *fresh = mem_grow(NULL, sizeof *fresh + size);
        fresh->next = s->head;
        fresh->used = 0;
        fresh->size = size;
        s->head = fresh;
    }
    return s->head->bytes + s->head->used;
}

text_span spool_commit(spool *s, size_t used) {
    BUG_IF(used > s->head->size - s->head->used);
    text_span kept = { s->head->bytes + s->head->used, used };
    s->head->used += used;
    return kept;
}

text_span spool_copy(spool *s, const char *text, size_t n) {
    char *to = spool_reserve(s, n);
    if (n) memcpy(to, text, n);
    return spool_commit(s, n);
}

void spool_reset(spool *s) {
    while (s->head && (s->head->next || s->head->size > SPOOL_PIECE)) {
        spool_piece *next = s->head->next;
        free(s->head);
        s->head = next;
    }
    if (s->head) s->head->used = 0;
}

void spool_free(spool *s) {
    spool_reset(s);
    free(s->head);
    *s = (spool){ 0 };
}

/* ---- bad records ----------------------------------------------------------------------------- */
void bad_records_add(bad_records *b, int64_t offset, const char *fmt, ...) {
    if (b->n++) return;
    b->offset = offset;
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->why, sizeof b->why, fmt, args);
    va_end(args);
}

void bad_records_merge(bad_records *to, const bad_records *from) {
    int64_t n = to->n + from->n;
    if (!to->n) *to = *from;
    to->n = n;
}
