/* WARC: crawled pages, whose HTML is converted to text, and WET: text extracted by the crawler.
 *
 *     record = blank lines, "WARC/1.0", header lines, an empty line, Content-Length bytes
 *
 * Anything else up to the next line that begins with "WARC/" counts as one bad record. */
#include <string.h>

#include "text/html.h"
#include "text/http_internal.h"
#include "text/inputs_internal.h"

enum {
    LONGEST_HEAD = 64 << 10,
    MARK_BYTES = 5,
};
static const char MARK[] = "\nWARC/";

typedef enum { RECORD_WHOLE, RECORD_TRUNCATED, RECORD_BAD, RECORD_NONE } record_state;
typedef struct warc_record {
    text_span head;   /* from "WARC/" on */
    uint64_t before;  /* bytes before the content */
    uint64_t content; /* bytes of it */
    record_state state;
} warc_record;

static size_t count_line_ends(const char *p, size_t n) {
    size_t i = 0;
    while (i < n && (p[i] == '\r' || p[i] == '\n')) i++;
    return i;
}

/* @return false if it is not a number in the range of file sizes. */
static bool parse_length(text_span digits, uint64_t *out) {
    *out = 0;
    for (size_t i = 0; i < digits.len; i++) {
        if (digits.at[i] < '0' || digits.at[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(digits.at[i] - '0');
    }
    return digits.len > 0 && digits.len <= 15;
}

/* Reads the head of the record at p. */
static warc_record read_record_head(const char *p, size_t n) {
    size_t skip = count_line_ends(p, n), rest = n - skip;
    if (rest == 0) return (warc_record){ .state = RECORD_NONE };
    if (memcmp(p + skip, MARK + 1, MIN(rest, (size_t)MARK_BYTES)) != 0)
        return (warc_record){ .state = RECORD_BAD };
    size_t head = header_length(p + skip, MIN(rest, (size_t)LONGEST_HEAD));
    if (!head) return (warc_record){ .state = rest < LONGEST_HEAD ? RECORD_TRUNCATED : RECORD_BAD };
    warc_record r = { .head = { p + skip, head }, .before = skip + head };
    if (!parse_length(header_value(r.head, "content-length"), &r.content))
        r.state = RECORD_BAD;
    else
        r.state = n - r.before < r.content ? RECORD_TRUNCATED : RECORD_WHOLE;
    return r;
}

/* ---- where records end ----------------------------------------------------------------------- */
static size_t first_record_end(const char *p, size_t n, bool line_start) {
    const char *hit = memmem(p, n, MARK, sizeof MARK - 1);
    return hit ? (size_t)(hit - p) + 1 : 0;
}

/* @return bytes of the record at p; 0 if its end is not in the buffer. */
static size_t record_end(const char *p, size_t n, warc_record *r) {
    *r = read_record_head(p, n);
    if (r->state == RECORD_WHOLE) return (size_t)(r->before + r->content);
    if (r->state != RECORD_BAD) return 0;
    size_t skip = count_line_ends(p, n), end = first_record_end(p + skip, n - skip, true);
    return end ? skip + end : 0;
}

static size_t last_record_end(const char *p, size_t n) {
    warc_record r;
    size_t end = 0;
    for (size_t more; (more = record_end(p + end, n - end, &r));) end += more;
    return end;
}

static uint64_t warc_record_length(const char *p, size_t n) {
    warc_record r = read_record_head(p, n);
    return r.state == RECORD_TRUNCATED && r.head.len ? r.before + r.content : 0;
}

/* ---- documents ------------------------------------------------------------------------------- */
static bool is_html(text_span type) {
    return span_is_nocase(type, "text/html") || span_is_nocase(type, "application/xhtml+xml");
}

static void add_warc_document(parser *p, text_span head, text_span text) {
    bool repaired = false, noted = false;
    text_span id = header_value(head, "warc-record-id"),
              url = header_value(head, "warc-target-uri");
    if (id.len > 2 && id.at[0] == '<') id.at++, id.len -= 2;
    if (url.len > 2 && url.at[0] == '<') url.at++, url.len -= 2;
    if (!parser_check_utf8(p, &text, &repaired)) return;
    if (!parser_check_utf8(p, &id, &noted) || !parser_check_utf8(p, &url, &noted)) return;
    text_doc d = {
        .text = parser_normalize_breaks(p, text), .id = id, .url = url, .source = p->source
    };
    parser_add_document(p, &d, repaired);
}

static void add_body(parser *p, text_span head, const http_body *b, int64_t offset) {
    if (!is_html(b->type)) {
        if (span_is_nocase(b->type, "text/plain"))
            add_warc_document(p, head, b->bytes);
        else
            p->counts.skipped[TEXT_SKIP_other_media]++;
        return;
    }
    if (b->bytes.len > HTML_LONGEST_PAGE) {
        bad_records_add(&p->bad, offset, "a page longer than %d bytes", HTML_LONGEST_PAGE);
        return;
    }
    str text = { 0 };
    err e = html_text(b->bytes.at, b->bytes.len, b->charset[0] ? b->charset : NULL, &text);
    if (e)
        bad_records_add(&p->bad, offset, "%s", err_message(e));
    else
        add_warc_document(p, head, spool_copy(&p->strings, text.text, text.len));
    err_free(e);
    str_free(&text);
}

static void parse_record(parser *p, const warc_record *r, text_span content, int64_t offset) {
    text_span type = header_value(r->head, "warc-type");
    http_body b = { .bytes = content };
    if (span_is_nocase(type, "response"))
        b = http_parse(content, p->in->o.document_bytes, &p->body);
    else if (span_is_nocase(type, "conversion") || span_is_nocase(type, "resource"))
        http_split_media_type(header_value(r->head, "content-type"), &b);
    else {
        bool revisit = span_is_nocase(type, "revisit");
        p->counts.skipped[revisit ? TEXT_SKIP_revisits : TEXT_SKIP_about_crawl]++;
        return;
    }
    if (b.wrong)
        bad_records_add(&p->bad, offset, "%s", b.wrong);
    else
        add_body(p, r->head, &b, offset);
}

static void parse_warc_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len;
    for (size_t at = 0; at < n;) {
        warc_record r;
        size_t used = record_end(from + at, n - at, &r);
        int64_t offset = b->offset + (int64_t)at;
        if (r.state == RECORD_NONE) return;
        if (!used) used = n - at;
        if (r.state == RECORD_TRUNCATED)
            bad_records_add(&p->bad, offset, "the WARC record is truncated");
        else if (r.state == RECORD_BAD)
            bad_records_add(&p->bad, offset, "not a WARC record");
        else if (parser_check_length(p, used, offset))
            parse_record(p, &r, (text_span){ from + at + r.before, r.content }, offset);
        at += used;
    }
}

const text_format format_warc = { .name = "warc",
                                  .last_record_end = last_record_end,
                                  .first_record_end = first_record_end,
                                  .length = warc_record_length,
                                  .decodes = true,
                                  .parse = parse_warc_block,
                                  .overhead = LONGEST_HEAD };
