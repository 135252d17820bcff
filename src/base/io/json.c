/* JSON documents: jansson with errors that name the place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io_internal.h"

/* A document is held in memory several times over while it is read. */
static const size_t JSON_MAX_BYTES = (size_t)1 << 30;

err io_json_parse(const char *text, size_t len, const char *name, json_t **out) {
    json_error_t problem;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &problem);
    if (*out) return OK;
    return err_hint(
        ERR("%s:%d:%d: not valid JSON: %s", name, problem.line, problem.column, problem.text),
        "is the file complete, and is it JSON?");
}

err io_json_read(const char *path, json_t **out) {
    char *text = NULL;
    size_t len;
    *out = NULL;
    TRY(io_read(path, JSON_MAX_BYTES, &text, &len));
    err e = io_json_parse(text, len, path, out);
    free(text);
    return e;
}

void io_json_add(str *out, json_t *doc, size_t flags) {
    char *text = json_dumps(doc, flags | JSON_ENCODE_ANY);
    BUG_IF(!text); /* every text in it was checked when it was made */
    str_add(out, "%s", text);
    free(text);
    json_decref(doc);
}

void io_json_quote(str *out, const char *text) {
    io_json_add(out, io_json_string(text, strlen(text)), 0);
}

bool io_json_print(FILE *to, json_t *doc, size_t flags) {
    bool ok = json_dumpf(doc, to, flags) == 0 && fputc('\n', to) != EOF;
    json_decref(doc);
    return ok;
}

err io_json_format(const char *path, const json_t *doc, str *out) {
    char *text = json_dumps(doc, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    if (!text) return ERR("cannot write %s: a text in it is not UTF-8", path);
    str_add(out, "%s\n", text);
    free(text);
    return OK;
}

err io_json_write(const char *path, const json_t *doc) {
    str text = { 0 };
    err e = io_json_format(path, doc, &text);
    if (!e) e = io_write(path, text.text, text.len);
    str_free(&text);
    return e;
}

/* @return the length of the UTF-8 character that the n bytes at p begin with, 0 when none. */
static size_t utf8_prefix(const char *p, size_t n) {
    for (size_t len = 1; len <= MIN(n, 4); len++) {
        json_t *s = json_stringn(p, len); /* NULL when it is not UTF-8 */
        json_decref(s);
        if (s) return len;
    }
    return 0;
}

json_t *io_json_string(const char *bytes, size_t n) {
    json_t *whole = json_stringn(bytes, n);
    if (whole) return whole;
    str fixed = { 0 };
    for (size_t i = 0; i < n;) {
        size_t len = utf8_prefix(bytes + i, n - i);
        if (len)
            str_add_bytes(&fixed, bytes + i, len);
        else
            str_add(&fixed, "\xef\xbf\xbd");
        i += len ? len : 1;
    }
    whole = json_stringn(fixed.text, fixed.len);
    str_free(&fixed);
    return whole;
}

json_t *io_json_number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

/* ---- members ------------------------------------------------------------------------------- */
static const char *json_kind(const json_t *v) {
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return v ? kinds[json_typeof(v)] : "nothing";
}

#define MEMBER_READER(kind, type, is, expected, value)                                             \
    err io_json_##kind(const json_t *object, const char *name, const char *key, type *out) {       \
        json_t *v = json_object_get(object, key);                                                  \
        if (!is(v))                                                                                \
            return ERR("%s: \"%s\": expected %s; got %s", name, key, expected, json_kind(v));      \
        *out = value;                                                                              \
        return OK;                                                                                 \
    }
MEMBER_READER(text, const char *, json_is_string, "a string", json_string_value(v))
MEMBER_READER(int, int64_t, json_is_integer, "an integer", json_integer_value(v))
MEMBER_READER(real, double, json_is_number, "a number", json_number_value(v))
MEMBER_READER(bool, bool, json_is_boolean, "true or false", json_is_true(v))
MEMBER_READER(array, json_t *, json_is_array, "an array", v)
MEMBER_READER(object, json_t *, json_is_object, "an object", v)
