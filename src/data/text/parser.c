/* Code that all formats share: checking, repairing and collecting the documents of a block. Also the
 * table of formats and how one is detected from a name or from content. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet.h"
#include "text/inputs_internal.h"
#include "text/parser_internal.h"

void text_counts_add(text_counts *to, const text_counts *from) {
    to->documents += from->documents;
    to->bytes += from->bytes;
    to->repaired += from->repaired;
    to->invalid += from->invalid;
    to->unreadable += from->unreadable;
    to->empty += from->empty;
    to->excluded += from->excluded;
    to->lost_bytes += from->lost_bytes;
    for (int i = 0; i < TEXT_SKIP_COUNT; i++) to->skipped[i] += from->skipped[i];
}

err text_counts_check(const text_counts *c, const char *who) {
    int64_t bad = c->unreadable + c->invalid;
    if (c->documents || c->empty || c->excluded || !bad) return OK;
    return err_hint(ERR("%s: nothing could be read: no document, and %lld unreadable or invalid "
                        "record%s",
                        who, (long long)bad, bad == 1 ? "" : "s"),
                    "the warnings show the first of them; check the inputs, --format and "
                    "--text-field");
}

void parser_init(parser *p, const text_inputs *in, int segment, const text_format *format) {
    const input_file *f = &in->files[in->segments[segment].file];
    *p = (parser){
        .in = in, .format = format, .path = text_span_of(f->path), .source = text_span_of(f->given)
    };
}

void parser_parse(parser *p, const raw_block *b) {
    spool_reset(&p->strings);
    p->n = 0;
    p->counts = (text_counts){ 0 };
    p->bad = (bad_records){ 0 };
    if (!b->damage || b->bytes.len || b->rows) p->format->parse(p, b);
}

void parser_free(parser *p) {
    free(p->docs);
    spool_free(&p->strings);
    str_free(&p->scratch);
    str_free(&p->body);
}

size_t format_longest_record(const text_format *f, const text_inputs *in) {
    return in->o.document_bytes + f->overhead;
}

bool parser_check_length(parser *p, size_t n, int64_t offset) {
    if (n <= format_longest_record(p->format, p->in)) return true;
    bad_records_add(&p->bad, offset, "longer than %zu bytes", p->in->o.document_bytes);
    return false;
}

bool is_clean_utf8(const char *text, size_t n) {
    return n == 0 || (utf8_valid(text, n) == n && !memchr(text, 0, n));
}

/* Appends the text with U+FFFD for each invalid sequence and each NUL. */
static void repair_text(text_span text, str *out) {
    while (text.len > 0) {
        const char *nul = memchr(text.at, 0, text.len);
        size_t n = nul ? (size_t)(nul - text.at) : text.len;
        utf8_repair(text.at, n, out);
        if (nul) str_add_bytes(out, "\xEF\xBF\xBD", 3), n++;
        text.at += n, text.len -= n;
    }
}

bool parser_check_utf8(parser *p, text_span *text, bool *repaired) {
    if (is_clean_utf8(text->at, text->len)) return true;
    if (p->in->o.invalid == TEXT_REFUSE) return p->counts.invalid++, false;
    p->scratch.len = 0;
    repair_text(*text, &p->scratch);
    *text = spool_copy(&p->strings, p->scratch.text, p->scratch.len);
    return *repaired = true;
}

text_span parser_normalize_breaks(parser *p, text_span text) {
    if (!text.len || !memchr(text.at, '\r', text.len)) return text;
    char *to = spool_reserve(&p->strings, text.len);
    size_t made = 0;
    for (size_t i = 0; i < text.len; i++)
        if (!(text.at[i] == '\r' && i + 1 < text.len && text.at[i + 1] == '\n'))
            to[made++] = text.at[i];
    return spool_commit(&p->strings, made);
}

static bool is_excluded(const char *only, const char *but, text_span name) {
    return (only && !name_list_has(only, name)) || (but && name_list_has(but, name));
}

void parser_add_document(parser *p, const text_doc *d, bool repaired) {
    const text_input_options *o = &p->in->o;
    if (span_trim(d->text).len == 0) {
        p->counts.empty++;
        return;
    }
    if (is_excluded(o->sources, o->not_sources, d->source) ||
        is_excluded(o->licenses, o->not_licenses, d->license)) {
        p->counts.excluded++;
        return;
    }
    LIST_ADD(p->docs, p->n, p->capacity) = *d;
    p->counts.documents++;
    p->counts.bytes += (int64_t)d->text.len;
    p->counts.repaired += repaired;
}

/* ---- formats --------------------------------------------------------------------------------- */
static const struct {
    const char *name; /* a --format name; also a file extension */
    const text_format *format;
} formats[] = {
    { "text", &format_text },   { "txt", &format_text },      { "md", &format_text },
    { "jsonl", &format_jsonl }, { "json", &format_jsonl },    { "ndjson", &format_jsonl },
    { "warc", &format_warc },   { "wet", &format_warc },      { "parquet", &format_parquet },
    { "csv", &format_csv },     { "tsv", &format_tsv },       { "html", &format_html },
    { "htm", &format_html },    { "arrow", &format_parquet }, { "feather", &format_parquet },
    { "ipc", &format_parquet }, { "tar", &format_tar },       { "tgz", &format_tar },
};

const text_format *format_by_name(const char *name) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].format;
    return NULL;
}

bool text_format_exists(const char *name) { return format_by_name(name) != NULL; }

const text_format *format_of_path(const char *path, text_compression *compression) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n;
    *compression = compression_of_name(name, &n);
    const char *dot = memrchr(name, '.', n);
    if (!dot) return NULL;
    text_span ending = { dot + 1, n - (size_t)(dot + 1 - name) };
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (span_is_nocase(ending, formats[i].name)) return formats[i].format;
    return NULL;
}

const text_format *format_of_content(const char *head, size_t n) {
    if (n >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0) head += 3, n -= 3;
    text_span text = span_trim((text_span){ head, n });
    if (parquet_has_magic(head, n)) return &format_parquet;
    if (tar_has_magic(head, n)) return &format_tar;
    if (text.len >= 5 && memcmp(text.at, "WARC/", 5) == 0) return &format_warc;
    if (text.len >= 5 && span_is_nocase((text_span){ text.at, 5 }, "<html")) return &format_html;
    if (text.len >= 14 && span_is_nocase((text_span){ text.at, 14 }, "<!doctype html"))
        return &format_html;
    if (text.len && text.at[0] == '{') return &format_jsonl;
    bool array = text.len && text.at[0] == '[';
    text_span first = array ? span_trim((text_span){ text.at + 1, text.len - 1 }) : text;
    return array && first.len && first.at[0] == '{' ? &format_json_array : &format_text;
}

const text_format *format_refine(const text_format *f, const char *head, size_t n,
                                 const char *text_field) {
    if (n >= 3 && memcmp(head, "\xEF\xBB\xBF", 3) == 0) head += 3, n -= 3;
    text_span text = span_trim((text_span){ head, n });
    if (f == &format_jsonl && text.len && text.at[0] == '[') return &format_json_array;
    return csv_refine(f, head, n, text_field);
}
