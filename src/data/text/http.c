/* The part of HTTP that responses in WARC files need: headers, chunked transfer, compressed
 * bodies. Some crawlers decode a body and leave the headers as they were, so a body that is not what they state is taken
 * as it is, if that can be told. */
#include <string.h>
#include <zlib.h>

#include "text/decompress.h"
#include "text/http_internal.h"
#include "text/span_internal.h"

size_t header_length(const char *p, size_t n) {
    for (size_t at = 0; at < n;) {
        const char *brk = memchr(p + at, '\n', n - at);
        if (!brk) return 0;
        size_t line = (size_t)(brk - p) - at;
        bool empty = line == 0 || (line == 1 && p[at] == '\r');
        at += line + 1;
        if (empty) return at;
    }
    return 0;
}

/* Removes and returns the first line. */
static text_span next_line(text_span *rest) {
    const char *brk = rest->len ? memchr(rest->at, '\n', rest->len) : NULL;
    size_t n = brk ? (size_t)(brk - rest->at) + 1 : rest->len;
    text_span line = { rest->at, n };
    rest->at += n, rest->len -= n;
    return line;
}

text_span header_value(text_span head, const char *name) {
    next_line(&head);
    while (head.len) {
        text_span line = next_line(&head);
        const char *colon = memchr(line.at, ':', line.len);
        if (!colon) continue;
        size_t n = (size_t)(colon - line.at);
        if (span_is_nocase(span_trim((text_span){ line.at, n }), name))
            return span_trim((text_span){ colon + 1, line.len - n - 1 });
    }
    return (text_span){ 0 };
}

void http_split_media_type(text_span value, http_body *out) {
    if (value.len == 0) return;
    const char *semicolon = memchr(value.at, ';', value.len);
    size_t n = semicolon ? (size_t)(semicolon - value.at) : value.len;
    out->type = span_trim((text_span){ value.at, n });
    text_span rest = { value.at + n, value.len - n };
    for (size_t i = 0; i + 8 < rest.len; i++) {
        if (!span_is_nocase((text_span){ rest.at + i, 8 }, "charset=")) continue;
        size_t used = 0;
        for (size_t k = i + 8; k < rest.len && used + 1 < sizeof out->charset; k++) {
            char c = rest.at[k];
            if (c == ';' || c == ' ') break;
            if (c != '"' && c != '\'') out->charset[used++] = c;
        }
        out->charset[used] = 0;
        return;
    }
}

/* ---- bodies ---------------------------------------------------------------------------------- */
/* Whether a body begins with the size of a chunk. */
static bool is_chunked(text_span body) {
    text_span line = next_line(&body);
    size_t digits = 0;
    while (digits < line.len && hex_digit(line.at[digits]) >= 0) digits++;
    return digits > 0 && digits < line.len && strchr("; \r\n", line.at[digits]) != NULL;
}

/* Joins the chunks of a body. A truncated body yields the chunks that are there. */
static text_span join_chunks(text_span body, str *made) {
    size_t from = made->len;
    while (body.len) {
        text_span line = next_line(&body);
        size_t size = 0, i = 0;
        for (; i < line.len && i < 12 && hex_digit(line.at[i]) >= 0; i++)
            size = size << 4 | (size_t)hex_digit(line.at[i]);
        if (i == 0 || size == 0) break;
        size = MIN(size, body.len);
        str_add_bytes(made, body.at, size);
        body.at += size, body.len -= size;
        next_line(&body); /* the line break after a chunk */
    }
    return made->len > from ? (text_span){ made->text + from, made->len - from }
                            : (text_span){ "", 0 };
}

/* Decompresses gzip or zlib data, at most `most` bytes. */
static void inflate_body(text_span body, size_t most, str *plain) {
    z_stream z = { 0 };
    BUG_IF(inflateInit2(&z, 15 + 32) != Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)body.at;
    z.avail_in = (uInt)MIN(body.len, (size_t)UINT32_MAX);
    for (int rc = Z_OK; rc == Z_OK && plain->len < most;) {
        size_t space = MIN(most - plain->len, (size_t)64 << 10);
        str_reserve(plain, space);
        z.next_out = (unsigned char *)plain->text + plain->len;
        z.avail_out = (uInt)space;
        rc = inflate(&z, Z_NO_FLUSH);
        plain->len += space - z.avail_out;
    }
    inflateEnd(&z);
}

/* The same with a decoder of files. */
static void decompress_body(const decoder *d, text_span body, size_t most, str *plain) {
    codec_step s = { .in = body.at, .in_left = body.len, .begins = true };
    void *state = d->open();
    for (bool more = true; more && !s.ended && plain->len < most; s.begins = false) {
        size_t space = MIN(most - plain->len, (size_t)64 << 10);
        str_reserve(plain, space);
        s.out = plain->text + plain->len;
        s.out_left = space;
        more = d->run(state, &s) == NULL && s.out_left < space;
        plain->len += space - s.out_left;
    }
    d->close(state);
}

/* Whether a body begins with a tag, as a page does that is not compressed. */
static bool is_markup(text_span body) {
    body = span_trim(body);
    char c = body.len > 1 && body.at[0] == '<' ? body.at[1] : 0;
    return c == '!' || c == '?' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* @return why the body cannot be used; NULL: it can. */
static const char *decompress_by_name(text_span name, size_t most, str *made, text_span *body) {
    bool gzip = span_is_nocase(name, "gzip") || span_is_nocase(name, "x-gzip");
    const decoder *d = span_is_nocase(name, "br")     ? text_codec_of(COMPRESSION_BROTLI)->decode
                       : span_is_nocase(name, "zstd") ? text_codec_of(COMPRESSION_ZSTD)->decode
                                                      : NULL;
    bool known = gzip || span_is_nocase(name, "deflate") || (d && d->open);
    str plain = { 0 };
    bool packed = !gzip || (body->len >= 2 && memcmp(body->at, "\x1f\x8b", 2) == 0);
    if (!packed || is_markup(*body)) return NULL;
    if (!known) return "a body with an unknown content encoding";
    if (d)
        decompress_body(d, *body, most, &plain);
    else
        inflate_body(*body, most, &plain);
    made->len = 0; /* the joined chunks are no longer needed */
    str_add_bytes(made, plain.text, plain.len);
    str_free(&plain);
    *body = (text_span){ made->text, made->len };
    return made->len ? NULL : "a body that cannot be decompressed";
}

static void decode_body(text_span head, size_t most, str *made, http_body *b) {
    text_span compression = header_value(head, "content-encoding");
    if (span_is_nocase(header_value(head, "transfer-encoding"), "chunked") && is_chunked(b->bytes))
        b->bytes = join_chunks(b->bytes, made);
    if (compression.len && !span_is_nocase(compression, "identity"))
        b->wrong = decompress_by_name(compression, most, made, &b->bytes);
}

http_body http_parse(text_span message, size_t most, str *made) {
    http_body b = { 0 };
    size_t head_bytes = header_length(message.at, message.len);
    if (message.len < 12 || memcmp(message.at, "HTTP/", 5) != 0 || !head_bytes) {
        b.wrong = "not an HTTP response";
        return b;
    }
    text_span head = { message.at, head_bytes };
    const char *status = memchr(head.at, ' ', head.len);
    if (!status || status[1] != '2') return b; /* an error page is not a document */
    made->len = 0;
    b.bytes = (text_span){ message.at + head_bytes, message.len - head_bytes };
    http_split_media_type(header_value(head, "content-type"), &b);
    if (b.type.len) decode_body(head, most, made, &b);
    return b;
}
