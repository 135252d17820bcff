/* The part of HTTP that responses in WARC files need: headers, chunked transfer, compressed
 * bodies. */
#include <string.h>
#include <zlib.h>

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

/* Decompresses gzip or zlib data, at most `most` bytes. @return false if nothing comes out. */
static bool inflate_body(text_span body, size_t most, str *made, text_span *out) {
    z_stream z = { 0 };
    str plain = { 0 };
    BUG_IF(inflateInit2(&z, 15 + 32) != Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)body.at;
    z.avail_in = (uInt)MIN(body.len, (size_t)UINT32_MAX);
    for (int rc = Z_OK; rc == Z_OK && plain.len < most;) {
        size_t space = MIN(most - plain.len, (size_t)64 << 10);
        str_reserve(&plain, space);
        z.next_out = (unsigned char *)plain.text + plain.len;
        z.avail_out = (uInt)space;
        rc = inflate(&z, Z_NO_FLUSH);
        plain.len += space - z.avail_out;
    }
    inflateEnd(&z);
    made->len = 0; /* the joined chunks are no longer needed */
    str_add_bytes(made, plain.text, plain.len);
    str_free(&plain);
    *out = (text_span){ made->text, made->len };
    return made->len > 0;
}

static void decode_body(text_span head, size_t most, str *made, http_body *b) {
    if (span_is_nocase(header_value(head, "transfer-encoding"), "chunked"))
        b->bytes = join_chunks(b->bytes, made);
    text_span compression = header_value(head, "content-encoding");
    if (compression.len == 0 || span_is_nocase(compression, "identity")) return;
    if (!span_is_nocase(compression, "gzip") && !span_is_nocase(compression, "x-gzip") &&
        !span_is_nocase(compression, "deflate"))
        b->wrong = "a body with an unknown content encoding";
    else if (!inflate_body(b->bytes, most, made, &b->bytes))
        b->wrong = "a body that cannot be decompressed";
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
