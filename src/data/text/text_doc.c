/* Writing documents as JSON lines. A document that came from a JSON line keeps that line byte by
 * byte, apart from an edited text, so that members unknown to ingot survive every transform. */
#include <string.h>

#include "text/json_scan_internal.h"
#include "text/parser_internal.h"

static void add_escape(char c, str *out) {
    static const char shorts[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'
    };
    unsigned char byte = (unsigned char)c;
    if (byte >= 0x20)
        str_add_bytes(out, (char[]){ '\\', c }, 2);
    else if (shorts[byte])
        str_add_bytes(out, (char[]){ '\\', shorts[byte] }, 2);
    else
        str_add(out, "\\u%04x", byte);
}

void text_json_string(const char *text, size_t n, str *out) {
    str_reserve(out, n + n / 16 + 2);
    str_add_bytes(out, "\"", 1);
    for (size_t i = 0;;) {
        size_t run = json_plain_length(text + i, n - i);
        str_add_bytes(out, text + i, run);
        i += run;
        if (i == n) break;
        add_escape(text[i++], out);
    }
    str_add_bytes(out, "\"", 1);
}

bool doc_has_member(text_span name) {
    static const char *const names[] = { "text", "id", "url", "source", "license" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (span_is(name, names[i])) return true;
    return false;
}

/* Appends `"name": value` to an object that is being written. */
static void add_doc_member(const char *name, text_span value, str *out) {
    str_add(out, "%s\"%s\": ", out->text[out->len - 1] == '{' ? "" : ", ", name);
    text_json_string(value.at, value.len, out);
}

static void add_doc_json(const text_doc *d, text_span text, str *out) {
    const struct {
        const char *name;
        text_span value;
    } about[] = {
        { "id", d->id }, { "url", d->url }, { "source", d->source }, { "license", d->license }
    };
    str_add_bytes(out, "{", 1);
    for (size_t i = 0; i < COUNT_OF(about); i++)
        if (about[i].value.len) add_doc_member(about[i].name, about[i].value, out);
    if (d->members.len) /* they begin with a comma */
        str_add_bytes(out, d->members.at + (out->text[out->len - 1] == '{' ? 2 : 0),
                      d->members.len - (out->text[out->len - 1] == '{' ? 2 : 0));
    add_doc_member("text", text, out);
    str_add_bytes(out, "}", 1);
}

void text_doc_write(const text_doc *d, text_span text, str *out) {
    if (d->line.len == 0) {
        add_doc_json(d, text, out);
    } else if (text_spans_equal(text, d->text)) {
        str_add_bytes(out, d->line.at, d->line.len);
    } else {
        str_add_bytes(out, d->line.at, d->value[0]);
        text_json_string(text.at, text.len, out);
        str_add_bytes(out, d->line.at + d->value[1], d->line.len - d->value[1]);
    }
    str_add_bytes(out, "\n", 1);
}

bool text_doc_member(const text_doc *d, const char *name, str *out) {
    const struct {
        const char *name;
        text_span value;
    } fields[] = {
        { "id", d->id }, { "url", d->url }, { "source", d->source }, { "license", d->license }
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (strcmp(fields[i].name, name) == 0 && fields[i].value.len)
            return str_add_bytes(out, fields[i].value.at, fields[i].value.len), true;
    str object = { 0 };
    text_span line = d->line;
    if (!line.len && d->members.len) {
        str_add(&object, "{%.*s}", (int)d->members.len - 1, d->members.at + 1);
        line = (text_span){ object.text, object.len };
    }
    json_member m = { 0 };
    bool odd = false;
    json_want want = { name, 0 };
    bool found =
        line.len && !json_scan(line.at, line.len, &want, 1, &m, &odd) && m.kind != JSON_ABSENT;
    if (found && m.kind == JSON_SCALAR) str_add_bytes(out, line.at + m.at, m.end - m.at);
    if (found && m.kind == JSON_PLAIN) str_add_bytes(out, line.at + m.at + 1, m.end - m.at - 2);
    if (found && m.kind == JSON_ESCAPED) {
        size_t n = m.end - m.at - 2;
        str_reserve(out, n + 8);
        out->len += json_unescape(line.at + m.at + 1, n, out->text + out->len);
    }
    str_free(&object);
    return found;
}
