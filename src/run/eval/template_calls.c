/* Callables of templates: methods, functions, filters and tests. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "template_internal.h"

json_t *template_string(const str *s) {
    json_t *v = json_stringn(s->text ? s->text : "", s->len);
    return v ? v : json_string("");
}

bool template_number(const json_t *v, double *out) {
    *out = json_is_true(v) ? 1 : json_is_number(v) ? json_number_value(v) : 0;
    return json_is_number(v) || json_is_boolean(v);
}

bool template_same(const json_t *a, const json_t *b) {
    double x, y;
    if (template_number(a, &x) && template_number(b, &y)) return x == y;
    if (!a || !b) return a == b;
    return json_equal(a, b);
}

bool template_contains(template_run *r, const json_t *item, const json_t *in) {
    json_t *value;
    size_t i;
    if (json_is_string(in))
        return json_is_string(item) && strstr(json_string_value(in), json_string_value(item));
    if (json_is_object(in))
        return json_is_string(item) && json_object_get(in, json_string_value(item));
    if (!json_is_array(in)) {
        if (in) template_fail(r, "\"in\" needs a text, a list or a mapping");
        return false;
    }
    json_array_foreach(in, i, value) if (template_same(item, value)) return true;
    return false;
}

/* ---- texts ------------------------------------------------------------------------------------------------ */
/* Without the characters at its ends. @param sides 1: left, 2: right, 3: both */
static json_t *strip_sides(const json_t *v, const char *set, int sides) {
    const char *text = json_string_value(v), *end = text + json_string_length(v);
    if (!set) set = " \t\n\r\f\v";
    while (sides & 1 && text < end && strchr(set, *text)) text++;
    while (sides & 2 && end > text && strchr(set, end[-1])) end--;
    return json_stringn(text, (size_t)(end - text));
}

static json_t *change_case(const json_t *v, const char *how) {
    str out = { 0 };
    const char *text = json_string_value(v);
    utf8proc_ssize_t left = (utf8proc_ssize_t)json_string_length(v), n;
    bool first = true;
    for (utf8proc_int32_t c; left > 0; text += n, left -= n) {
        utf8proc_uint8_t bytes[4];
        n = utf8proc_iterate((const utf8proc_uint8_t *)text, left, &c);
        if (n < 1) break;
        bool letter = utf8proc_tolower(c) != utf8proc_toupper(c);
        if (!strcmp(how, "upper"))
            c = utf8proc_toupper(c);
        else
            c = first && strcmp(how, "lower") != 0 ? utf8proc_totitle(c) : utf8proc_tolower(c);
        first = !strcmp(how, "title") && !letter;
        str_add_bytes(&out, (const char *)bytes, (size_t)utf8proc_encode_char(c, bytes));
    }
    json_t *changed = template_string(&out);
    str_free(&out);
    return changed;
}

/* Removes what stands in brackets on one line: "[step] Mix." becomes " Mix." */
static json_t *remove_brackets(const json_t *v) {
    str out = { 0 };
    for (const char *at = json_string_value(v); *at;) {
        size_t line = strcspn(at, "\n");
        const char *close = *at == '[' ? memchr(at, ']', line) : NULL;
        if (!close) str_add_bytes(&out, at, 1);
        at = close ? close + 1 : at + 1;
    }
    json_t *left = template_string(&out);
    str_free(&out);
    return left;
}

static json_t *split_text(const json_t *v, const char *by, int64_t most) {
    json_t *list = json_array();
    const char *at = json_string_value(v), *hit;
    if (by && *by) {
        for (; most && (hit = strstr(at, by)); at = hit + strlen(by), most--)
            json_array_append_new(list, json_stringn(at, (size_t)(hit - at)));
        json_array_append_new(list, json_string(at));
        return list;
    }
    for (;;) {
        at += strspn(at, " \t\n\r\f\v");
        size_t n = strcspn(at, " \t\n\r\f\v");
        if (!n) return list;
        json_array_append_new(list, json_stringn(at, n));
        at += n;
    }
}

static json_t *replace_in_text(const json_t *v, const char *what, const char *by) {
    str s = { 0 };
    const char *at = json_string_value(v), *hit;
    for (; *what && (hit = strstr(at, what)); at = hit + strlen(what)) {
        str_add_bytes(&s, at, (size_t)(hit - at));
        str_add(&s, "%s", by);
    }
    str_add(&s, "%s", at);
    json_t *out = template_string(&s);
    str_free(&s);
    return out;
}

static size_t text_length(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* ---- calls ----------------------------------------------------------------------------------------- */
static const char *text_arg(const template_args *a, size_t i, const char *otherwise) {
    const char *text = json_string_value(json_array_get(a->list, i));
    return text ? text : otherwise;
}

static json_t *mapping_list(json_t *v, bool keys, bool values) {
    json_t *list = json_array(), *value;
    const char *key;
    json_object_foreach(v, key, value) {
        if (keys && values)
            json_array_append_new(list, json_pack("[s, O]", key, value));
        else
            json_array_append_new(list, keys ? json_string(key) : json_incref(value));
    }
    return list;
}

json_t *template_method(template_run *r, json_t *v, const char *name, const template_args *a) {
    if (json_is_string(v)) {
        const char *text = json_string_value(v), *one = text_arg(a, 0, NULL);
        if (!strcmp(name, "strip")) return strip_sides(v, one, 3);
        if (!strcmp(name, "lstrip")) return strip_sides(v, one, 1);
        if (!strcmp(name, "rstrip")) return strip_sides(v, one, 2);
        if (!strcmp(name, "startswith") && one) return json_boolean(str_starts(text, one));
        if (!strcmp(name, "endswith") && one) return json_boolean(str_ends(text, one));
        if (!strcmp(name, "upper") || !strcmp(name, "lower") || !strcmp(name, "title") ||
            !strcmp(name, "capitalize"))
            return change_case(v, name);
        if (!strcmp(name, "split")) {
            const json_t *most = json_array_get(a->list, 1);
            return split_text(v, one, most ? json_integer_value(most) : -1);
        }
        const char *hit = !strcmp(name, "index") && one ? strstr(text, one) : NULL;
        if (hit) {
            json_t *before = json_stringn(text, (size_t)(hit - text));
            json_t *at = json_integer((json_int_t)text_length(json_string_value(before)));
            json_decref(before);
            return at;
        }
        if (!strcmp(name, "replace") && one) return replace_in_text(v, one, text_arg(a, 1, ""));
    }
    if (json_is_object(v)) {
        if (!strcmp(name, "items")) return mapping_list(v, true, true);
        if (!strcmp(name, "keys")) return mapping_list(v, true, false);
        if (!strcmp(name, "values")) return mapping_list(v, false, true);
        if (!strcmp(name, "get")) {
            json_t *got = json_object_get(v, text_arg(a, 0, "")),
                   *other = json_array_get(a->list, 1);
            return got ? json_incref(got) : other ? json_incref(other) : json_null();
        }
    }
    for (size_t i = 0; !strcmp(name, "index") && i < json_array_size(v); i++)
        if (template_same(json_array_get(v, i), json_array_get(a->list, 0)))
            return json_integer((json_int_t)i);
    if (json_is_array(v) && !strcmp(name, "append") && json_array_get(a->list, 0)) {
        json_array_append(v, json_array_get(a->list, 0));
        return json_null();
    }
    template_fail(r, "\"%s\" is not a method that is known here", name);
    return NULL;
}

static json_t *call_range(template_run *r, const template_args *a) {
    size_t n = json_array_size(a->list);
    int64_t from = n > 1 ? json_integer_value(json_array_get(a->list, 0)) : 0;
    int64_t to = json_integer_value(json_array_get(a->list, n > 1 ? 1 : 0));
    int64_t by = n > 2 ? json_integer_value(json_array_get(a->list, 2)) : 1;
    json_t *list = json_array();
    if (by == 0) template_fail(r, "a range needs steps other than 0");
    for (int64_t i = from; by && (by > 0 ? i < to : i > to) && template_step(r); i += by)
        json_array_append_new(list, json_integer(i));
    return list;
}

json_t *template_function(template_run *r, const char *name, const template_args *a) {
    json_t *out = NULL;
    if (!strcmp(name, "raise_exception")) {
        template_fail(r, "%s", text_arg(a, 0, "the template refuses these messages"));
        return NULL;
    }
    if (!strcmp(name, "namespace") || !strcmp(name, "dict")) return json_copy(a->named);
    if (!strcmp(name, "range")) return call_range(r, a);
    if (!strcmp(name, "strftime_now")) {
        char text[64] = "";
        time_t now = time(NULL);
        struct tm day;
        if (!localtime_r(&now, &day) ||
            !strftime(text, sizeof text, text_arg(a, 0, "%Y-%m-%d"), &day))
            text[0] = '\0';
        return json_string(text);
    }
    if (template_call_macro(r, name, a->list, a->named, &out)) return out;
    template_fail(r, "\"%s\" is not a function that is known here", name);
    return NULL;
}

/* ---- filters and tests ------------------------------------------------------------------------------------------ */
static json_t *to_json(const json_t *v, const template_args *a) {
    const json_t *indent = json_object_get(a->named, "indent");
    if (!indent) indent = json_array_get(a->list, 0);
    size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    if (json_is_integer(indent)) flags |= JSON_INDENT((size_t)(json_integer_value(indent) & 31));
    char *text = json_dumps(v, flags);
    json_t *out = json_string(text ? text : "null");
    free(text);
    return out;
}

static json_t *join_list(template_run *r, const json_t *v, const char *by) {
    str s = { 0 };
    json_t *item;
    size_t i;
    json_array_foreach(v, i, item) {
        if (i) str_add(&s, "%s", by);
        template_print(r, item, &s);
    }
    json_t *out = template_string(&s);
    str_free(&s);
    return out;
}

/* selectattr, rejectattr and map(attribute=...). */
static json_t *filter_list(template_run *r, const json_t *v, const char *name,
                           const template_args *a) {
    json_t *list = json_array(), *item;
    const char *key = json_string_value(json_object_get(a->named, "attribute"));
    const json_t *wanted = json_array_get(a->list, 2);
    size_t i;
    if (!key) key = text_arg(a, 0, "");
    json_array_foreach(v, i, item) {
        json_t *member = json_object_get(item, key);
        bool holds =
            wanted ? template_same(member, wanted)
                   : template_is_true(member) || (member && !strcmp(text_arg(a, 1, ""), "defined"));
        if (!strcmp(name, "map"))
            json_array_append_new(list, member ? json_incref(member) : json_null());
        else if (holds == !strcmp(name, "selectattr"))
            json_array_append(list, item);
    }
    return list;
}

/* @param v owned. @return owned */
json_t *template_filter(template_run *r, json_t *v, const char *name, const template_args *a) {
    static const char *const of_text[] = {
        "without_brackets", "trim",    "upper",  "lower", "title",
        "capitalize",       "replace", "string", "safe"
    };
    json_t *out = NULL;
    for (size_t i = 0; i < COUNT_OF(of_text) && !json_is_string(v); i++) {
        if (strcmp(name, of_text[i]) != 0) continue;
        str s = { 0 };
        template_print(r, v, &s);
        json_decref(v);
        v = template_string(&s);
        str_free(&s);
    }
    bool text = json_is_string(v), list = json_is_array(v);
    if (!strcmp(name, "default") || !strcmp(name, "d")) {
        bool falsy = template_is_true(json_array_get(a->list, 1)) ||
                     template_is_true(json_object_get(a->named, "boolean"));
        json_t *other = json_array_get(a->list, 0);
        bool use = !v || (falsy && !template_is_true(v));
        out = !use ? json_incref(v) : other ? json_incref(other) : json_string("");
    } else if (!strcmp(name, "tojson")) {
        out = to_json(v, a);
    } else if (!strcmp(name, "without_brackets") &&
               text) { /* Jinja has none: of the tables of tasks */
        out = remove_brackets(v);
    } else if (!strcmp(name, "trim") && text) {
        out = strip_sides(v, text_arg(a, 0, NULL), 3);
    } else if ((!strcmp(name, "upper") || !strcmp(name, "lower") || !strcmp(name, "title") ||
                !strcmp(name, "capitalize")) &&
               text) {
        out = change_case(v, name);
    } else if (!strcmp(name, "length") || !strcmp(name, "count")) {
        out = json_integer((json_int_t)(text   ? text_length(json_string_value(v))
                                        : list ? json_array_size(v)
                                               : json_object_size(v)));
    } else if (!strcmp(name, "string") || !strcmp(name, "safe")) {
        out = json_incref(v);
    } else if (!strcmp(name, "int")) {
        double x;
        template_number(v, &x);
        out = json_integer(text ? strtoll(json_string_value(v), NULL, 10) : (json_int_t)x);
    } else if (!strcmp(name, "join") && list) {
        out = join_list(r, v, text_arg(a, 0, ""));
    } else if ((!strcmp(name, "first") || !strcmp(name, "last")) && v) {
        json_t *all = template_list(r, v);
        out = json_array_get(all, *name == 'f' ? 0 : json_array_size(all) - 1);
        json_incref(out);
        json_decref(all);
    } else if (!strcmp(name, "list")) {
        out = template_list(r, v);
    } else if (!strcmp(name, "items") && json_is_object(v)) {
        out = mapping_list(v, true, true);
    } else if (!strcmp(name, "replace") && text) {
        out = replace_in_text(v, text_arg(a, 0, ""), text_arg(a, 1, ""));
    } else if (!strcmp(name, "map") || !strcmp(name, "selectattr") || !strcmp(name, "rejectattr")) {
        out = filter_list(r, v, name, a);
    } else {
        template_fail(r, "the filter \"%s\" is not known for this value", name);
    }
    json_decref(v);
    return out;
}

bool template_test(template_run *r, const json_t *v, const char *name, const template_args *a) {
    if (!strcmp(name, "defined")) return v != NULL;
    if (!strcmp(name, "undefined")) return v == NULL;
    if (!strcmp(name, "none")) return json_is_null(v);
    if (!strcmp(name, "string")) return json_is_string(v);
    if (!strcmp(name, "mapping")) return json_is_object(v);
    if (!strcmp(name, "number")) return json_is_number(v) || json_is_boolean(v);
    if (!strcmp(name, "integer")) return json_is_integer(v);
    if (!strcmp(name, "boolean")) return json_is_boolean(v);
    if (!strcmp(name, "true")) return json_is_true(v);
    if (!strcmp(name, "false")) return json_is_false(v);
    if (!strcmp(name, "iterable") || !strcmp(name, "sequence"))
        return json_is_array(v) || json_is_string(v) || json_is_object(v);
    if (!strcmp(name, "odd")) return json_integer_value(v) & 1;
    if (!strcmp(name, "even")) return json_is_integer(v) && !(json_integer_value(v) & 1);
    if (!strcmp(name, "equalto") || !strcmp(name, "eq"))
        return template_same(v, json_array_get(a->list, 0));
    if (!strcmp(name, "in")) return template_contains(r, v, json_array_get(a->list, 0));
    template_fail(r, "the test \"%s\" is not known", name);
    return false;
}
