/* Writes members onto documents. A JSON line stays as it is, byte by byte, and gets the members at its end; only
 * one that has a member of the same name already is written anew, without its text, which can be long, going
 * through the parser. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/output_internal.h"

static bool has_one_of(const json_t *object, const json_t *names) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)names, name, value) {
        (void)value;
        if (json_object_get(object, name)) return true;
    }
    return false;
}

/* @return the object that members, each as `, "name": value`, make; owned. */
static json_t *object_of_members(text_span members, str *scratch) {
    scratch->len = 0;
    if (!members.len) return json_object();
    str_add_bytes(scratch, "{", 1);
    str_add_bytes(scratch, members.at + 1, members.len - 1);
    str_add_bytes(scratch, "}", 1);
    json_t *o = json_loadb(scratch->text, scratch->len, 0, NULL);
    return o ? o : json_object();
}

/* Placeholder for the text while its line is parsed; it is found again, since no text has a NUL. */
#define MARK "\\u0000text"

/* Writes the line without the members of these names. */
static void rewrite_line(const text_doc *d, json_t *line, json_t *names, str *out, text_doc *made) {
    const char *name;
    json_t *value;
    json_object_foreach(names, name, value) json_object_del(line, name);
    char *text = json_dumps(line, JSON_REAL_PRECISION(17));
    char *at = text ? strstr(text, "\"" MARK "\"") : NULL;
    BUG_IF(!at);
    str_add_bytes(out, text, (size_t)(at - text));
    made->value[0] = out->len;
    str_add_bytes(out, d->line.at + d->value[0], d->value[1] - d->value[0]);
    made->value[1] = out->len;
    str_add(out, "%s", at + sizeof MARK + 1);
    free(text);
}

static void annotate_line(const text_doc *d, text_span members, json_t *added, str scratch[2],
                          text_doc *made) {
    str *rest = &scratch[0], *out = &scratch[1];
    rest->len = out->len = 0;
    str_add_bytes(rest, d->line.at, d->value[0]);
    str_add(rest, "\"" MARK "\"");
    str_add_bytes(rest, d->line.at + d->value[1], d->line.len - d->value[1]);
    json_t *line = json_loadb(rest->text, rest->len, JSON_ALLOW_NUL, NULL);
    if (line && has_one_of(line, added))
        rewrite_line(d, line, added, out, made);
    else
        str_add_bytes(out, d->line.at, d->line.len);
    while (out->text[out->len - 1] != '}') out->len--;
    out->len--;
    str_add_bytes(out, members.at, members.len);
    str_add_bytes(out, "}", 1);
    made->line = (text_span){ out->text, out->len };
    json_decref(line);
}

static void annotate_members(const text_doc *d, text_span members, const json_t *added,
                             str scratch[2], text_doc *made) {
    str *out = &scratch[1];
    json_t *own = object_of_members(d->members, &scratch[0]), *value;
    const char *name;
    out->len = 0;
    json_object_foreach(own, name, value) {
        if (json_object_get(added, name)) continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        str_add(out, ", ");
        text_json_string(name, strlen(name), out);
        str_add(out, ": %s", text);
        free(text);
    }
    str_add_bytes(out, members.at, members.len);
    made->members = (text_span){ out->text, out->len };
    json_decref(own);
}

text_doc doc_annotate(const text_doc *d, text_span members, str scratch[2]) {
    text_doc made = *d;
    if (!members.len) return made;
    json_t *added = object_of_members(members, &scratch[0]);
    if (d->line.len)
        annotate_line(d, members, added, scratch, &made);
    else
        annotate_members(d, members, added, scratch, &made);
    json_decref(added);
    return made;
}
