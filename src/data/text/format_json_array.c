/* A JSON array of objects: [{...}, {...}]. Each object is a document, read as a line of JSON lines is
 * once its line breaks, which can only be white space, are spaces. Where an object ends is known only
 * from its beginning; so a file is one segment, and one too long to hold ends what can be read.
 *
 *     OUTSIDE --[--> BEFORE --element--> AFTER --,--> BEFORE
 *        ^              |                  |
 *        +------]-------+---------]--------+
 *
 * The first block begins OUTSIDE and each other one AFTER an element, at the comma or bracket that
 * follows it. An element other than an object is unreadable, and so is an array that does not end. */
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

/* @return bytes of the object or array at p; 0: its end is not in the buffer. */
static size_t nested_length(const char *p, size_t n) {
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

/* @return bytes of the number, word or garbage at p, at least one; 0: its end is not in the buffer. */
static size_t json_word_length(const char *p, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (strchr(" \t\r\n,]{[\"", p[i]) && p[i]) return i;
    return 0;
}

typedef enum { OUTSIDE, BEFORE, AFTER } array_state;

static bool is_array_mark(char c, array_state state) {
    return c == ',' || c == ']' || (c == '[' && state == OUTSIDE);
}

/* @return bytes of the mark or element at p, which is not white space; 0: its end is not in the buffer. */
static size_t array_piece_length(const char *p, size_t n, array_state state) {
    if (is_array_mark(*p, state)) return 1;
    if (*p == '{' || *p == '[') return nested_length(p, n);
    return *p == '"' ? string_length(p, n) : json_word_length(p, n);
}

/* @return the state after the piece that begins with this byte. */
static array_state next_array_state(char c, array_state state) {
    if (!is_array_mark(c, state)) return state == OUTSIDE ? OUTSIDE : AFTER;
    if (c == ',') return state == OUTSIDE ? OUTSIDE : BEFORE;
    return c == '[' ? BEFORE : OUTSIDE;
}

static size_t blank_length(const char *p, size_t n) {
    size_t i = 0;
    while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '\r' || p[i] == '\n')) i++;
    return i;
}

static size_t bom_length(const char *p, size_t n) {
    return n >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* A record ends at the comma or bracket after an element, so that only the first block begins with "[". */
static size_t last_record_end(const char *p, size_t n) {
    size_t at = bom_length(p, n), end = 0;
    at += blank_length(p + at, n - at);
    array_state state = at < n && p[at] == '[' ? OUTSIDE : AFTER;
    while (at < n) {
        size_t used = array_piece_length(p + at, n - at, state);
        if (!used) return end;
        if (state == AFTER && is_array_mark(p[at], state)) end = at;
        state = next_array_state(p[at], state);
        at += used;
        at += blank_length(p + at, n - at);
    }
    return end;
}

static size_t first_record_end(const char *p, size_t n, bool line_start) { return 0; }

/* @return the object in one line. */
static text_span join_lines(parser *p, text_span object) {
    if (!memchr(object.at, '\n', object.len) && !memchr(object.at, '\r', object.len)) return object;
    char *to = spool_reserve(&p->strings, object.len);
    for (size_t i = 0; i < object.len; i++)
        to[i] = object.at[i] == '\n' || object.at[i] == '\r' ? ' ' : object.at[i];
    return spool_commit(&p->strings, object.len);
}

static void parse_element(parser *p, text_span element, array_state state, int64_t offset,
                          bool valid) {
    if (*element.at != '{') {
        bad_records_add(&p->bad, offset, "not a JSON object");
        return;
    }
    /* The object is whole, but what is missing in front of it may have been more than a comma. */
    if (state == AFTER) bad_records_add(&p->bad, offset, "no comma before the object");
    if (state == OUTSIDE) bad_records_add(&p->bad, offset, "the object is outside of the array");
    if (parser_check_length(p, element.len, offset))
        json_parse_object(p, join_lines(p, element), offset, valid);
}

static void parse_array_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len, at = b->offset == 0 ? bom_length(from, n) : 0;
    array_state state = b->offset == 0 ? OUTSIDE : AFTER;
    bool valid = is_clean_utf8(from, n),
         cut = b->bad.n > 0; /* a skipped record is skipped to the end */
    for (; (at += blank_length(from + at, n - at)) < n;) {
        size_t used = array_piece_length(from + at, n - at, state);
        if (!used) {
            used = n - at;
            cut = true;
        }
        if (!is_array_mark(from[at], state))
            parse_element(p, (text_span){ from + at, used }, state, b->offset + (int64_t)at, valid);
        state = next_array_state(from[at], state);
        at += used;
    }
    if (b->last && !cut && state != OUTSIDE)
        bad_records_add(&p->bad, b->offset + (int64_t)n, "the array does not end");
}

const text_format format_json_array = { .name = "json",
                                        .last_record_end = last_record_end,
                                        .first_record_end = first_record_end,
                                        .parse = parse_array_block,
                                        .overhead = 1 << 10 };
