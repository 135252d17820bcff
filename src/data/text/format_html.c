/* HTML: a file is a page, and its text a document, as of a page in a WARC file. */
#include "text/html.h"
#include "text/parser_internal.h"

static size_t no_record_end(const char *p, size_t n) { return 0; }
static size_t no_first_end(const char *p, size_t n, bool line_start) { return 0; }

static void parse_page(parser *p, const raw_block *b) {
    str text = { 0 };
    if (b->bytes.len == 0) return;
    if (b->bytes.len > HTML_LONGEST_PAGE) {
        bad_records_add(&p->bad, b->offset, "a page longer than %d bytes", HTML_LONGEST_PAGE);
        return;
    }
    err e = html_text(b->bytes.text, b->bytes.len, NULL, &text);
    if (e) {
        bad_records_add(&p->bad, b->offset, "%s", err_message(e));
    } else {
        text_doc d = { .text = spool_copy(&p->strings, text.text ? text.text : "", text.len),
                       .id = p->path,
                       .source = p->source };
        parser_add_document(p, &d, false);
    }
    err_free(e);
    str_free(&text);
}

const text_format format_html = { .name = "html",
                                  .last_record_end = no_record_end,
                                  .first_record_end = no_first_end,
                                  .decodes = true,
                                  .parse = parse_page };
