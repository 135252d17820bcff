/* CSV as RFC 4180 describes it, with a header, and the same with tabs, semicolons or bars. A row is a document;
 * the header names its members as those of JSON lines are named. A field may be in quotes, and then contain
 * separators, line breaks and doubled quotes. A quote elsewhere is a character like any other.
 *
 * Whether a line break ends a row is known only from the row's beginning, so a file is one segment.
 *
 * A quote that is never closed would swallow the rows after it, up to the next quote or the end of the file. Such a
 * field is recognized by what follows the quote that seems to close it: after a field of several lines that must be
 * a separator or a line break. The line in which such a field begins is then a bad record of its own, and reading
 * continues with the next line. */
#include <stdlib.h>
#include <string.h>

#include "text/inputs_internal.h"

/* @return bytes up to and with the quote that closes the field at p; 0: it is not in the buffer, or only perhaps:
 * the last byte of the buffer may be the first half of a doubled quote. @param last the file ends with the buffer. */
static size_t quoted_length(const char *p, size_t n, bool last) {
    for (size_t i = 1; i < n;) {
        const char *quote = memchr(p + i, '"', n - i);
        if (!quote) return 0;
        i = (size_t)(quote - p) + 1;
        if (i == n) return last ? i : 0;
        if (p[i] != '"') return i;
        i++;
    }
    return 0;
}

/* Whether the quoted field p[0, used) cannot have been meant: it has several lines and text after its last quote. */
static bool is_runaway(const char *p, size_t n, size_t used, char separator) {
    if (!memchr(p, '\n', used)) return false;
    while (used < n && p[used] == ' ') used++;
    return used < n && p[used] != separator && p[used] != '\n' && p[used] != '\r';
}

static size_t first_line(const char *p, size_t n) {
    const char *brk = memchr(p, '\n', n);
    return brk ? (size_t)(brk - p) + 1 : n;
}

/* @return bytes of the row at p, with its line break; 0: its end is not in the buffer. *bad: only the first line
 * of what a quote without an end has swallowed. @param last the file ends with the buffer. */
static size_t row_length(const char *p, size_t n, char separator, bool last, bool *bad) {
    *bad = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"') {
            size_t used = quoted_length(p + i, n - i, last);
            *bad = used ? is_runaway(p + i, n - i, used, separator) : last;
            if (*bad) return first_line(p, n);
            if (!used) return 0;
            i += used;
        }
        while (i < n && p[i] != separator && p[i] != '\n') i++;
        if (i < n && p[i] == '\n') return i + 1;
    }
    return last ? n : 0;
}

static size_t last_row_end(const char *p, size_t n, char separator) {
    size_t end = 0;
    bool bad;
    for (size_t more; (more = row_length(p + end, n - end, separator, false, &bad));) end += more;
    return end;
}

/* Of a row that is too long only the first line is skipped: mostly a quote that does not end. */
static uint64_t long_row_length(const char *p, size_t n) {
    return memchr(p, '\n', n) ? first_line(p, n) : 0;
}

/* ---- rows to documents ----------------------------------------------------------------------- */
typedef struct csv_row {
    text_span *fields;
    int n, capacity;
} csv_row;

/* @return the text of a field without its quotes. What follows a closing quote belongs to the text. */
static text_span unquote_field(parser *p, text_span field) {
    if (!field.len || field.at[0] != '"') return field;
    char *to = spool_reserve(&p->strings, field.len);
    size_t made = 0;
    bool inside = true;
    for (size_t i = 1; i < field.len; i++) {
        bool doubled = inside && i + 1 < field.len && field.at[i + 1] == '"';
        if (inside && field.at[i] == '"' && !doubled) {
            inside = false;
            continue;
        }
        if (inside && field.at[i] == '"') i++;
        to[made++] = field.at[i];
    }
    return spool_commit(&p->strings, made);
}

static void split_row(parser *p, text_span row, char separator, csv_row *out) {
    out->n = 0;
    if (row.len && row.at[row.len - 1] == '\n') row.len--;
    if (row.len && row.at[row.len - 1] == '\r') row.len--;
    for (size_t at = 0; at <= row.len;) {
        size_t end = at;
        if (end < row.len && row.at[end] == '"') {
            size_t used = quoted_length(row.at + at, row.len - at, true);
            end = used ? at + used : row.len;
        }
        while (end < row.len && row.at[end] != separator) end++;
        LIST_ADD(out->fields, out->n, out->capacity) =
            unquote_field(p, (text_span){ row.at + at, end - at });
        at = end + 1;
    }
}

/* The header of a file: for each column the field that it is, or FIELDS. */
typedef struct csv_header {
    csv_row names;
    int *field;
    int text; /* column; -1: there is none */
} csv_header;

static void read_csv_header(parser *p, text_span head, char separator, csv_header *h) {
    if (head.len >= 3 && memcmp(head.at, "\xEF\xBB\xBF", 3) == 0) head.at += 3, head.len -= 3;
    split_row(p, head, separator, &h->names);
    h->field = mem_alloc((size_t)h->names.n * sizeof *h->field);
    h->text = -1;
    for (int i = 0; i < h->names.n; i++) {
        const json_want *w = p->in->wants, *end = w + p->in->n_wants;
        while (w < end && !span_is(h->names.fields[i], w->path)) w++;
        h->field[i] = w < end ? w->result : FIELDS;
        if (h->field[i] == FIELD_TEXT) h->text = i;
    }
    if (h->text < 0 && h->names.n == 1 && !p->in->text_named) h->text = 0;
}

/* Appends the row's other columns as JSON members. */
static void add_members(parser *p, const csv_header *h, const csv_row *row, text_doc *d) {
    if (!p->in->all_members) return;
    p->body.len = 0;
    for (int i = 0; i < row->n; i++) {
        text_span name = h->names.fields[i], value = row->fields[i];
        if (i == h->text || h->field[i] != FIELDS || doc_has_member(name)) continue;
        str_add(&p->body, ", ");
        text_json_string(name.at, name.len, &p->body);
        str_add(&p->body, ": ");
        text_json_string(value.at, value.len, &p->body);
    }
    if (p->body.len) d->members = spool_copy(&p->strings, p->body.text, p->body.len);
}

static void add_csv_row(parser *p, const csv_header *h, const csv_row *row, int64_t offset,
                        bool repaired) {
    text_doc d = { 0 };
    text_span *const field[FIELDS] = { [FIELD_TEXT] = &d.text,
                                       [FIELD_ID] = &d.id,
                                       [FIELD_URL] = &d.url,
                                       [FIELD_SOURCE] = &d.source,
                                       [FIELD_LICENSE] = &d.license };
    if (row->n != h->names.n) {
        bad_records_add(&p->bad, offset, "%d fields; the header has %d", row->n, h->names.n);
        return;
    }
    if (h->text < 0) {
        bad_records_add(&p->bad, offset, "no column \"%s\"; --text-column names another",
                        p->in->o.text_field);
        return;
    }
    for (int i = 0; i < row->n; i++)
        if (h->field[i] != FIELDS) *field[h->field[i]] = row->fields[i];
    d.text = parser_normalize_breaks(p, row->fields[h->text]);
    add_members(p, h, row, &d);
    parser_add_document(p, &d, repaired);
}

static void parse_csv_rows(parser *p, const raw_block *b, char separator) {
    text_span all = { b->bytes.text, b->bytes.len };
    bool repaired = false, valid = is_clean_utf8(all.at, all.len);
    csv_header h = { 0 };
    csv_row row = { 0 };
    if (!all.len) return;
    if (!b->head.len) {
        bad_records_add(&p->bad, b->offset, "the header of the file is too long");
        return;
    }
    read_csv_header(p, b->head, separator, &h);
    for (size_t at = b->offset == 0 ? b->head.len : 0; at < all.len;) {
        bool bad;
        size_t used = row_length(all.at + at, all.len - at, separator, true, &bad);
        text_span line = { all.at + at, used };
        int64_t offset = b->offset + (int64_t)at;
        at += used;
        repaired = false;
        if (!span_trim(line).len || !parser_check_length(p, used, offset)) continue;
        if (bad) {
            bad_records_add(&p->bad, offset, "a quoted field does not end");
            continue;
        }
        if (!valid && !parser_check_utf8(p, &line, &repaired)) continue;
        split_row(p, line, separator, &row);
        add_csv_row(p, &h, &row, offset, repaired);
    }
    free(h.names.fields);
    free(h.field);
    free(row.fields);
}

/* ---- one format per separator ---------------------------------------------------------------- */
#define CSV_FORMAT(name_, separator)                                                               \
    static size_t last_##name_##_end(const char *p, size_t n) {                                    \
        return last_row_end(p, n, separator);                                                      \
    }                                                                                              \
    static size_t name_##_head(const char *p, size_t n) {                                          \
        bool bad;                                                                                  \
        return row_length(p, n, separator, false, &bad);                                           \
    }                                                                                              \
    static void parse_##name_(parser *p, const raw_block *b) { parse_csv_rows(p, b, separator); }  \
    const text_format format_##name_ = { .name = #name_,                                           \
                                         .last_record_end = last_##name_##_end,                    \
                                         .first_record_end = first_line_end,                       \
                                         .length = long_row_length,                                \
                                         .head_length = name_##_head,                              \
                                         .parse = parse_##name_,                                   \
                                         .overhead = 2 };
CSV_FORMAT(csv, ',')
CSV_FORMAT(tsv, '\t')
CSV_FORMAT(csv_semicolon, ';')
CSV_FORMAT(csv_bar, '|')

static const struct {
    const text_format *format;
    char separator;
} separators[] = { { &format_csv, ',' },
                   { &format_tsv, '\t' },
                   { &format_csv_semicolon, ';' },
                   { &format_csv_bar, '|' } };

/* @return the columns that a header has by this separator; *named: one of them is `name`. */
static int header_columns(text_span head, char separator, const char *name, bool *named) {
    int n = 1;
    bool quoted = false;
    *named = false;
    for (size_t at = 0, i = 0; i <= head.len; i++) {
        if (i < head.len && head.at[i] == '"') quoted = !quoted;
        if (i < head.len && (quoted || head.at[i] != separator)) continue;
        text_span field = span_trim((text_span){ head.at + at, i - at });
        if (field.len >= 2 && field.at[0] == '"') field.at++, field.len -= 2;
        *named |= span_is(field, name);
        at = i + 1;
        n += i < head.len;
    }
    return n;
}

const text_format *csv_refine(const text_format *f, const char *head, size_t n, const char *name) {
    const text_format *other = NULL;
    text_span line = { head, first_line(head, n) };
    int columns = 0, most = 1;
    bool named = false, other_named = false;
    for (size_t i = 0; i < COUNT_OF(separators); i++)
        if (separators[i].format == f)
            columns = header_columns(line, separators[i].separator, name, &named);
    if (columns == 0 || named) return f;
    for (size_t i = 0; i < COUNT_OF(separators); i++) {
        bool has;
        int there = header_columns(line, separators[i].separator, name, &has);
        if (there < 2 || (other_named && !has)) continue;
        if (has == other_named && there <= most) continue;
        other = separators[i].format, most = there, other_named = has;
    }
    return other && (other_named || columns == 1) ? other : f;
}
