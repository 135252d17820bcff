/* CSV as RFC 4180 describes it, with a header, and the same with tabs. A row is a document; the header
 * names its members as those of JSON lines are named. A field may be in quotes, and then contain commas,
 * line breaks and doubled quotes. A quote elsewhere is a character like any other.
 *
 * Whether a line break ends a row is known only from the row's beginning, so a file is one segment. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

/* @return bytes of the quoted part of a field at p, quotes included; 0: it does not end in the buffer,
 * or only perhaps. */
static size_t quoted_length(const char *p, size_t n) {
    for (size_t i = 1; i < n;) {
        const char *quote = memchr(p + i, '"', n - i);
        if (!quote) return 0;
        i = (size_t)(quote - p) + 1;
        if (i == n) return 0;
        if (p[i] != '"') return i;
        i++;
    }
    return 0;
}

/* @return bytes of the row at p, with its line break; 0: its end is not in the buffer. */
static size_t row_length(const char *p, size_t n, char separator) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"') {
            size_t used = quoted_length(p + i, n - i);
            if (!used) return 0;
            i += used;
        }
        while (i < n && p[i] != separator && p[i] != '\n') i++;
        if (i < n && p[i] == '\n') return i + 1;
    }
    return 0;
}

static size_t last_row_end(const char *p, size_t n, char separator) {
    size_t end = 0;
    for (size_t more; (more = row_length(p + end, n - end, separator));) end += more;
    return end;
}

/* After a row that is too long, the next line may be in the middle of a field: it is then bad. */
static size_t first_record_end(const char *p, size_t n, bool line_start) {
    const char *brk = memchr(p, '\n', n);
    return brk ? (size_t)(brk - p) + 1 : 0;
}

/* ---- rows to documents ----------------------------------------------------------------------- */
typedef struct csv_row {
    text_span *fields;
    int n, capacity;
} csv_row;

static void add_csv_field(csv_row *r, text_span field) {
    void *fields = r->fields;
    mem_reserve(&fields, &r->capacity, r->n, sizeof *r->fields);
    r->fields = fields;
    r->fields[r->n++] = field;
}

/* The text of a field without its quotes. What follows a closing quote belongs to the text. */
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
            size_t used = quoted_length(row.at + at, row.len - at);
            end = used ? at + used : row.len;
        }
        while (end < row.len && row.at[end] != separator) end++;
        add_csv_field(out, unquote_field(p, (text_span){ row.at + at, end - at }));
        at = end + 1;
    }
}

/* What a file's header declares: for each column the field that it is, or FIELDS. */
typedef struct csv_header {
    csv_row names;
    int *field;
    int text; /* column; -1: there is none */
} csv_header;

static int csv_field(const text_inputs *in, text_span name) {
    for (int i = 0; i < in->n_wants; i++)
        if (span_is(name, in->wants[i].path)) return in->wants[i].result;
    return FIELDS;
}

static void read_csv_header(parser *p, text_span head, char separator, csv_header *h) {
    if (head.len >= 3 && memcmp(head.at, "\xEF\xBB\xBF", 3) == 0) head.at += 3, head.len -= 3;
    split_row(p, head, separator, &h->names);
    h->field = mem_alloc((size_t)h->names.n * sizeof *h->field);
    h->text = -1;
    for (int i = 0; i < h->names.n; i++) {
        h->field[i] = csv_field(p->in, h->names.fields[i]);
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
        size_t used = row_length(all.at + at, all.len - at, separator);
        if (!used) used = all.len - at;
        text_span line = { all.at + at, used };
        int64_t offset = b->offset + (int64_t)at;
        at += used;
        repaired = false;
        if (!span_trim(line).len || !parser_check_length(p, used, offset)) continue;
        if (!valid && !parser_check_utf8(p, &line, &repaired)) continue;
        split_row(p, line, separator, &row);
        add_csv_row(p, &h, &row, offset, repaired);
    }
    free(h.names.fields);
    free(h.field);
    free(row.fields);
}

/* ---- the two formats ------------------------------------------------------------------------- */
static size_t last_csv_end(const char *p, size_t n) { return last_row_end(p, n, ','); }
static size_t csv_head(const char *p, size_t n) { return row_length(p, n, ','); }
static void parse_csv(parser *p, const raw_block *b) { parse_csv_rows(p, b, ','); }
const text_format format_csv = { .name = "csv",
                                 .last_record_end = last_csv_end,
                                 .first_record_end = first_record_end,
                                 .head_length = csv_head,
                                 .parse = parse_csv,
                                 .overhead = 2 };

static size_t last_tsv_end(const char *p, size_t n) { return last_row_end(p, n, '\t'); }
static size_t tsv_head(const char *p, size_t n) { return row_length(p, n, '\t'); }
static void parse_tsv(parser *p, const raw_block *b) { parse_csv_rows(p, b, '\t'); }
const text_format format_tsv = { .name = "tsv",
                                 .last_record_end = last_tsv_end,
                                 .first_record_end = first_record_end,
                                 .head_length = tsv_head,
                                 .parse = parse_tsv,
                                 .overhead = 2 };
