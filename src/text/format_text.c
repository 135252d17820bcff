/* Plain text: documents between lines that hold the separator. */
#include <string.h>

#include "text/text_internal.h"

enum { SEPARATOR_BYTES = sizeof TEXT_SEPARATOR - 1 };

/* Bytes of the line break at p: 0 when there is none. */
static size_t line_break(const char *p, size_t n) {
    if (n >= 1 && p[0] == '\n') return 1;
    return n >= 2 && p[0] == '\r' && p[1] == '\n' ? 2 : 0;
}

/* Bytes of text before the line at p + i: the break between them is not the document's. */
static size_t text_before(const char *p, size_t i) {
    if (i == 0) return 0;
    return i - (i > 1 && p[i - 2] == '\r' ? 2 : 1);
}

/* Its first byte is rare in text, and finding bytes is what the C library does fastest. */
static const char *find_separator(const char *p, size_t n) {
    if (n < SEPARATOR_BYTES) return NULL;
    for (const char *last = p + n - SEPARATOR_BYTES; p <= last; p++) {
        p = memchr(p, TEXT_SEPARATOR[0], (size_t)(last - p) + 1);
        if (!p) return NULL;
        if (memcmp(p, TEXT_SEPARATOR, SEPARATOR_BYTES) == 0) return p;
    }
    return NULL;
}

size_t text_separator(const char *p, size_t n, bool line_start, size_t *begin) {
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

static size_t first_end(const char *p, size_t n, bool line_start) {
    size_t begin;
    return text_separator(p, n, line_start, &begin);
}

static size_t last_end(const char *p, size_t n) {
    size_t end = 0;
    for (size_t more; (more = first_end(p + end, n - end, true));) end += more;
    return end;
}

/* A name for a document without one: the file, and where in it. */
static text_span name_of(parser *p, int64_t offset) {
    if (offset == 0) return p->path;
    char number[32];
    int n = snprintf(number, sizeof number, ":%lld", (long long)offset);
    char *to = spool_room(&p->strings, p->path.len + (size_t)n);
    memcpy(to, p->path.at, p->path.len);
    memcpy(to + p->path.len, number, (size_t)n);
    return spool_take(&p->strings, p->path.len + (size_t)n);
}

static void add_document(parser *p, text_span text, int64_t offset) {
    bool repaired = false;
    if (offset == 0 && text.len >= 3 && memcmp(text.at, "\xEF\xBB\xBF", 3) == 0)
        text.at += 3, text.len -= 3; /* a byte order mark */
    if (!parser_valid(p, &text, &repaired)) return;
    text_doc d = { .text = parser_breaks(p, text), .id = name_of(p, offset), .source = p->source };
    parser_add(p, &d, repaired);
}

/* The text of a file's last document, which may end in a separator without a line break. */
static size_t last_text(const char *p, size_t n) {
    if (n < SEPARATOR_BYTES) return n;
    size_t before = n - SEPARATOR_BYTES;
    if (memcmp(p + before, TEXT_SEPARATOR, SEPARATOR_BYTES) != 0) return n;
    return before > 0 && p[before - 1] != '\n' ? n : text_before(p, before);
}

/* A text without separators is one document as far as it may be, then the next. */
static size_t cut(const char *p, size_t n) {
    const char *line = memrchr(p, '\n', n);
    if (line) return (size_t)(line - p) + 1;
    size_t at = n;
    while (at > 1 && at + 4 > n && ((unsigned char)p[at] & 0xC0) == 0x80) at--; /* no half of one */
    return at;
}

static void parse(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len;
    for (size_t at = 0; at < n;) {
        size_t len, used = text_separator(from + at, n - at, true, &len);
        if (!used) used = n - at, len = last_text(from + at, n - at);
        size_t longest = format_longest(&format_text, p->in);
        if (used > longest) used = len = cut(from + at, longest);
        add_document(p, (text_span){ from + at, len }, b->offset + (int64_t)at);
        at += used;
    }
}

const text_format format_text = { .name = "text",
                                  .last_end = last_end,
                                  .first_end = first_end,
                                  .parse = parse,
                                  .cut = cut,
                                  .overhead = SEPARATOR_BYTES + 4,
                                  .look_back = SEPARATOR_BYTES + 3,
                                  .tails = true };
