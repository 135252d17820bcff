/* A JSON array of objects: [{...}, {...}]. Each object is a document, read as a line of JSON lines is
 * once its line breaks, which can only be white space, are spaces. Where an object ends is known only
 * from its beginning; so a file is one segment, and one too long to hold ends what can be read. */
#include <string.h>

#include "text/json_scan_internal.h"
#include "text/parser_internal.h"

/* @return bytes of the JSON string at p, quotes included; 0: its end is not in the buffer. */
static size_t string_length(const char *p, size_t n) {
    for (size_t i = 1; i < n;) {
        i += json_plain_length(p + i, n - i);
        if (i >= n) return 0;
        if (p[i] == '"') return i + 1;
        i += p[i] == '\\' ? 2 : 1;
    }
    return 0;
}

/* @return bytes of the object at p; 0: its end is not in the buffer. */
static size_t object_length(const char *p, size_t n) {
    int64_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"') {
            size_t used = string_length(p + i, n - i);
            if (!used) return 0;
            i += used - 1;
        } else if (p[i] == '{' || p[i] == '[') {
            depth++;
        } else if ((p[i] == '}' || p[i] == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

/* @return bytes before the next object: brackets and commas of the array, and whatever is wrong. */
static size_t gap_length(const char *p, size_t n) {
    const char *hit = n ? memchr(p, '{', n) : NULL;
    return hit ? (size_t)(hit - p) : n;
}

static size_t last_record_end(const char *p, size_t n) {
    for (size_t end = 0;;) {
        size_t at = end + gap_length(p + end, n - end), used = object_length(p + at, n - at);
        if (!used) return end;
        end = at + used;
    }
}

static size_t first_record_end(const char *p, size_t n, bool line_start) { return 0; }

/* Anything but brackets, commas and white space between objects is not a document. */
static void check_gap(parser *p, text_span gap, int64_t offset) {
    for (size_t i = 0; i < gap.len; i++)
        if (!strchr("[], \t\r\n", gap.at[i])) {
            bad_records_add(&p->bad, offset + (int64_t)i, "not a JSON object");
            return;
        }
}

/* @return the object in one line. */
static text_span join_lines(parser *p, text_span object) {
    if (!memchr(object.at, '\n', object.len) && !memchr(object.at, '\r', object.len)) return object;
    char *to = spool_reserve(&p->strings, object.len);
    for (size_t i = 0; i < object.len; i++)
        to[i] = object.at[i] == '\n' || object.at[i] == '\r' ? ' ' : object.at[i];
    return spool_commit(&p->strings, object.len);
}

static void parse_array_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len, at = 0;
    if (b->offset == 0 && n >= 3 && memcmp(from, "\xEF\xBB\xBF", 3) == 0) at = 3;
    bool valid = is_clean_utf8(from, n);
    while (at < n) {
        size_t gap = gap_length(from + at, n - at);
        check_gap(p, (text_span){ from + at, gap }, b->offset + (int64_t)at);
        at += gap;
        if (at == n) break;
        size_t used = object_length(from + at, n - at);
        if (!used) used = n - at;
        int64_t offset = b->offset + (int64_t)at;
        if (parser_check_length(p, used, offset))
            json_parse_object(p, join_lines(p, (text_span){ from + at, used }), offset, valid);
        at += used;
    }
}

const text_format format_json_array = { .name = "json",
                                        .last_record_end = last_record_end,
                                        .first_record_end = first_record_end,
                                        .parse = parse_array_block,
                                        .overhead = 1 << 10 };
