/* JSON lines: one object per line. Lines are checked and searched in place (json_scan.c); only
 * text with escapes is copied. */
#include <string.h>

#include "text/inputs_internal.h"

size_t first_line_end(const char *p, size_t n, bool line_start) {
    const char *brk = memchr(p, '\n', n);
    return brk ? (size_t)(brk - p) + 1 : 0;
}

static size_t last_record_end(const char *p, size_t n) {
    const char *brk = memrchr(p, '\n', n);
    return brk ? (size_t)(brk - p) + 1 : 0;
}

/* The text of a member: borrowed from the line, or unescaped. Numbers as they are written. */
static text_span member_text(parser *p, text_span line, json_member m) {
    if (m.kind == JSON_ABSENT) return (text_span){ 0 };
    if (m.kind == JSON_SCALAR) return (text_span){ line.at + m.at, m.end - m.at };
    text_span inside = { line.at + m.at + 1, m.end - m.at - 2 };
    if (m.kind == JSON_PLAIN) return inside;
    char *to = spool_reserve(&p->strings, inside.len + 8);
    return spool_commit(&p->strings, json_unescape(inside.at, inside.len, to));
}

/* Replaces escapes that stand for no character. @return false if the document is refused for
 * them. */
static bool replace_odd_escapes(parser *p, text_span *line) {
    if (p->in->o.invalid == TEXT_REFUSE) return p->counts.invalid++, false;
    char *copy = spool_reserve(&p->strings, line->len);
    memcpy(copy, line->at, line->len);
    json_replace_odd_escapes(copy, line->len);
    *line = spool_commit(&p->strings, line->len);
    return true;
}

void json_parse_object(parser *p, text_span line, int64_t offset, bool valid) {
    json_member m[FIELDS] = { 0 };
    bool repaired = false, odd = false;
    if (!valid && !parser_check_utf8(p, &line, &repaired)) return;
    const char *wrong = json_scan(line.at, line.len, p->in->wants, p->in->n_wants, m, &odd);
    if (wrong) {
        bad_records_add(&p->bad, offset, "%s", wrong);
        return;
    }
    if (m[FIELD_TEXT].kind != JSON_PLAIN && m[FIELD_TEXT].kind != JSON_ESCAPED) {
        bad_records_add(&p->bad, offset, "no string \"%s\"; --text-field names another member",
                        p->in->o.text_field);
        return;
    }
    if (odd && !replace_odd_escapes(p, &line)) return;
    text_doc d = {
        .text = member_text(p, line, m[FIELD_TEXT]),
        .id = member_text(p, line, m[FIELD_ID]),
        .url = member_text(p, line, m[FIELD_URL]),
        .source = member_text(p, line, m[FIELD_SOURCE]),
        .license = member_text(p, line, m[FIELD_LICENSE]),
        .line = line,
        .value = { m[FIELD_TEXT].at, m[FIELD_TEXT].end },
    };
    parser_add_document(p, &d, repaired || odd);
}

static void parse_jsonl_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len, at = 0;
    if (b->offset == 0 && n >= 3 && memcmp(from, "\xEF\xBB\xBF", 3) == 0) at = 3;
    bool valid = is_clean_utf8(from, n); /* check all lines at once: they are nearly always valid */
    while (at < n) {
        size_t used = first_line_end(from + at, n - at, true);
        if (!used) used = n - at;
        text_span line = span_trim((text_span){ from + at, used });
        int64_t offset = b->offset + (int64_t)at;
        if (line.len && parser_check_length(p, used, offset))
            json_parse_object(p, line, offset, valid);
        at += used;
    }
}

const text_format format_jsonl = { .name = "jsonl",
                                   .last_record_end = last_record_end,
                                   .first_record_end = first_line_end,
                                   .parse = parse_jsonl_block,
                                   .overhead = 2,
                                   .look_back = 1 };
