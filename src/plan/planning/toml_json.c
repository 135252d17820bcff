/* TOML as JSON, as far as configs use it: tables, dotted keys, strings, numbers, booleans, arrays of such values on
 * one line or several, comments. Dates, inline tables and arrays of tables are refused by name. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

typedef struct toml {
    const char *at, *name;
    int line;
} toml;

static err toml_error(const toml *t, const char *what) {
    return err_hint(ERR("%s:%d: %s", t->name, t->line, what),
                    "tables, keys, strings, numbers, booleans and arrays are understood");
}

/* Skips blanks and comments; newlines too where `lines`. */
static void skip_blanks(toml *t, bool lines) {
    for (;; t->at++) {
        if (*t->at == '#') t->at += strcspn(t->at, "\n");
        if (*t->at == '\n' && lines)
            t->line++;
        else if (!*t->at || !strchr(" \t\r", *t->at))
            return;
    }
}

static err read_string(toml *t, json_t **out) {
    char quote = *t->at++;
    str s = { 0 };
    while (*t->at && *t->at != quote && *t->at != '\n') {
        if (quote == '"' && *t->at == '\\' && t->at[1]) {
            t->at++;
            const char *from = "ntr\"\\", *to = "\n\t\r\"\\", *found = strchr(from, *t->at);
            str_add_bytes(&s, found ? &to[found - from] : t->at, 1);
        } else {
            str_add_bytes(&s, t->at, 1);
        }
        t->at++;
    }
    bool closed = *t->at == quote;
    *out = closed ? io_json_string(s.text ? s.text : "", s.len) : NULL;
    str_free(&s);
    if (!closed) return toml_error(t, "a string does not end on its line");
    t->at++;
    return OK;
}

static err read_toml_value(toml *t, int depth, json_t **out);

static err read_array(toml *t, int depth, json_t **out) {
    json_t *list = json_array();
    t->at++;
    for (;;) {
        json_t *item = NULL;
        skip_blanks(t, true);
        if (*t->at == ']') break;
        err e = read_toml_value(t, depth + 1, &item);
        if (e) {
            json_decref(list);
            return e;
        }
        json_array_append_new(list, item);
        skip_blanks(t, true);
        if (*t->at == ',') t->at++;
    }
    t->at++;
    *out = list;
    return OK;
}

/* Numbers may have underscores. */
static err read_bare_value(toml *t, json_t **out) {
    char word[64];
    size_t n = strcspn(t->at, ",]#\n\r\t "), k = 0;
    for (size_t i = 0; i < n && k < sizeof word - 1; i++)
        if (t->at[i] != '_') word[k++] = t->at[i];
    word[k] = '\0';
    char *end = NULL;
    double v = strtod(word, &end);
    if (!strcmp(word, "true") || !strcmp(word, "false"))
        *out = json_boolean(word[0] == 't');
    else if (k && !*end && isfinite(v) && strspn(word, "+-.0123456789eE") == k)
        *out = strpbrk(word, ".eE") || fabs(v) > 1e15 ? json_real(v) : json_integer((json_int_t)v);
    else
        return toml_error(t, "a value is not understood");
    t->at += n;
    return OK;
}

static err read_toml_value(toml *t, int depth, json_t **out) {
    if (depth > 16) return toml_error(t, "arrays are nested too deeply");
    if (*t->at == '"' || *t->at == '\'') return read_string(t, out);
    if (*t->at == '[') return read_array(t, depth, out);
    if (*t->at == '{') return toml_error(t, "inline tables are not supported");
    return read_bare_value(t, out);
}

/* Finds or makes the table that a dotted name leads to, without its last part if `parent`. */
static err walk_name(toml *t, json_t *from, bool parent, const char *end, json_t **table,
                     char last[64]) {
    *table = from;
    for (;;) {
        while (*t->at && strchr(" \t\"", *t->at)) t->at++;
        size_t n = strcspn(t->at, end);
        n = MIN(n, strcspn(t->at, ". \t\"\n"));
        if (!n || n > 63) return toml_error(t, "expected a name");
        snprintf(last, 64, "%.*s", (int)n, t->at);
        t->at += n;
        while (*t->at && strchr(" \t\"", *t->at)) t->at++;
        bool more = *t->at == '.';
        if (!more && parent) return OK;
        json_t *next = json_object_get(*table, last);
        if (!next) {
            next = json_object();
            if (json_object_set_new(*table, last, next))
                return toml_error(t, "a name is not UTF-8");
        }
        if (!json_is_object(next)) return toml_error(t, "a name is both a table and a value");
        *table = next;
        if (!more) return OK;
        t->at++;
    }
}

static err read_toml_line(toml *t, json_t *root, json_t **current) {
    char last[64];
    if (*t->at == '[') {
        t->at++;
        if (*t->at == '[') return toml_error(t, "arrays of tables are not supported");
        TRY(walk_name(t, root, false, "]", current, last));
        if (*t->at != ']') return toml_error(t, "expected ] after a table's name");
        t->at++;
        return OK;
    }
    json_t *table, *value = NULL;
    TRY(walk_name(t, *current, true, "=", &table, last));
    if (*t->at != '=') return toml_error(t, "expected = after a name");
    t->at++;
    skip_blanks(t, false);
    TRY(read_toml_value(t, 0, &value));
    if (json_object_set_new(table, last, value)) return toml_error(t, "a name is not UTF-8");
    return OK;
}

err toml_to_json(const char *text, const char *name, json_t **out) {
    toml t = { text, name, 1 };
    json_t *root = json_object(), *current = root;
    err e = OK;
    for (skip_blanks(&t, true); *t.at && !e; skip_blanks(&t, true)) {
        e = read_toml_line(&t, root, &current);
        if (e) break;
        skip_blanks(&t, false);
        if (*t.at && *t.at != '\n') e = toml_error(&t, "expected the end of the line");
    }
    if (e) {
        json_decref(root);
        root = NULL;
    }
    *out = root;
    return e;
}
