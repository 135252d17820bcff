/* Plain text: documents are separated by lines that consist of TEXT_SEPARATOR; a file without
 * such lines is one document, split at a line end if it exceeds the longest document allowed. */
#include <string.h>

#include "text/parser_internal.h"

enum { SEPARATOR_BYTES = sizeof TEXT_SEPARATOR - 1 };

/* @return bytes of the line break at p; 0 if there is none. */
static size_t line_break(const char *p, size_t n) {
    if (n >= 1 && p[0] == '\n') return 1;
    return n >= 2 && p[0] == '\r' && p[1] == '\n' ? 2 : 0;
}

/* @return bytes of text before the line at p + i, without the line break between them. */
static size_t text_before(const char *p, size_t i) {
    if (i == 0) return 0;
    return i - (i > 1 && p[i - 2] == '\r' ? 2 : 1);
}

/* memchr on the first byte, which is rare in text, is the fastest search the C library has. */
static const char *find_separator(const char *p, size_t n) {
    if (n < SEPARATOR_BYTES) return NULL;
    for (const char *last = p + n - SEPARATOR_BYTES; p <= last; p++) {
        p = memchr(p, TEXT_SEPARATOR[0], (size_t)(last - p) + 1);
        if (!p) return NULL;
        if (memcmp(p, TEXT_SEPARATOR, SEPARATOR_BYTES) == 0) return p;
    }
    return NULL;
}

/* Finds the document separator: a whole line, with its end. *begin is the end of the text before
 * it. @return bytes up to the end of that line; 0 if there is none. */
static size_t find_separator_line(const char *p, size_t n, bool line_start, size_t *begin) {
    for (size_t at = 0; at < n;) {
        const char *hit = find_separator(p + at, n - at);
        if (!hit) return 0;
        size_t i = (size_t)(hit - p), after = i + SEPARATOR_BYTES;
        size_t brk = line_break(p + after, n - after);
        if (brk && (i ? p[i - 1] == '\n' : line_start)) {
            *begin = text_before(p, i);
            return after + brk;
        }
        at = i + 1;
    }
    return 0;
}

static size_t first_record_end(const char *p, size_t n, bool line_start) {
    size_t begin;
    return find_separator_line(p, n, line_start, &begin);
}

static size_t last_record_end(const char *p, size_t n) {
    size_t end = 0;
    for (size_t more; (more = first_record_end(p + end, n - end, true));) end += more;
    return end;
}

/* The id of a document that has none: the path, and its offset in the file. */
static text_span document_name(parser *p, int64_t offset) {
    if (offset == 0) return p->path;
    char number[32];
    int n = snprintf(number, sizeof number, ":%lld", (long long)offset);
    char *to = spool_reserve(&p->strings, p->path.len + (size_t)n);
    memcpy(to, p->path.at, p->path.len);
    memcpy(to + p->path.len, number, (size_t)n);
    return spool_commit(&p->strings, p->path.len + (size_t)n);
}

static void add_text_document(parser *p, text_span text, int64_t offset) {
    bool repaired = false;
    if (offset == 0 && text.len >= 3 && memcmp(text.at, "\xEF\xBB\xBF", 3) == 0)
        text.at += 3, text.len -= 3; /* a byte order mark */
    if (!parser_check_utf8(p, &text, &repaired)) return;
    text_doc d = { .text = parser_normalize_breaks(p, text),
                   .id = document_name(p, offset),
                   .source = p->source };
    parser_add_document(p, &d, repaired);
}

/* @return bytes of the last document of a file, which may end in a separator without a line
 * break. */
static size_t last_document_length(const char *p, size_t n) {
    if (n < SEPARATOR_BYTES) return n;
    size_t before = n - SEPARATOR_BYTES;
    if (memcmp(p + before, TEXT_SEPARATOR, SEPARATOR_BYTES) != 0) return n;
    return before > 0 && p[before - 1] != '\n' ? n : text_before(p, before);
}

/* Where to split text that is too long: after the last line end, or else between characters. */
static size_t split_long_text(const char *p, size_t n) {
    const char *line = memrchr(p, '\n', n);
    if (line) return (size_t)(line - p) + 1;
    size_t at = n;
    while (at > 1 && at + 4 > n && ((unsigned char)p[at] & 0xC0) == 0x80)
        at--; /* not inside a character */
    return at;
}

static void parse_text_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len;
    for (size_t at = 0; at < n;) {
        size_t len, used = find_separator_line(from + at, n - at, true, &len);
        if (!used) used = n - at, len = last_document_length(from + at, n - at);
        size_t longest = format_longest_record(&format_text, p->in);
        if (used > longest) used = len = split_long_text(from + at, longest);
        add_text_document(p, (text_span){ from + at, len }, b->offset + (int64_t)at);
        at += used;
    }
}

const text_format format_text = { .name = "text",
                                  .last_record_end = last_record_end,
                                  .first_record_end = first_record_end,
                                  .parse = parse_text_block,
                                  .split_at = split_long_text,
                                  .overhead = SEPARATOR_BYTES + 4,
                                  .look_back = SEPARATOR_BYTES + 3,
                                  .keeps_tail = true };
