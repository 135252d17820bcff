/* Expressions of templates, computed as they are parsed:
 *
 *     choice   any [if any [else choice]]            member   value .name [index] (arguments) |filter is test
 *     any      all or all                            value    name "text" 12 1.5 [list] {mapping} (choice)
 *     all      no and no
 *     no       not no | compared
 *     compared sum == != < <= > >= in, not in sum
 *     sum      text ~ joined, + - ; * / // %
 *
 * Numbers, texts, lists and mappings are jansson's. What is not taken (the right of a false "and") is parsed with `skipping`
 * set, so that nothing in it can fail. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "template_internal.h"

/* ---- words ------------------------------------------------------------------------------------------ */
static void skip_template_space(template_text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n' || *t->at == '\r'))
        t->at++;
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool template_at_end(template_text *t) {
    skip_template_space(t);
    return t->at >= t->end;
}

bool template_take(template_text *t, const char *word) {
    size_t n = strlen(word);
    skip_template_space(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0) return false;
    if (is_name_char(word[0]) && t->at + n < t->end && is_name_char(t->at[n])) return false;
    t->at += n;
    return true;
}

bool template_take_name(template_text *t, char *out) {
    skip_template_space(t);
    size_t n = 0;
    while (t->at + n < t->end && is_name_char(t->at[n])) n++;
    if (n == 0 || n >= 64 || (*t->at >= '0' && *t->at <= '9')) return false;
    memcpy(out, t->at, n);
    out[n] = '\0';
    t->at += n;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------- */
bool template_is_true(const json_t *v) {
    if (!v || json_is_null(v) || json_is_false(v)) return false;
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return json_object_size(v) > 0;
    if (json_is_number(v)) return json_number_value(v) != 0;
    return true;
}

static void print_quoted(const char *text, str *out) {
    char quote = strchr(text, '\'') && !strchr(text, '"') ? '"' : '\'';
    str_add(out, "%c", quote);
    for (; *text; text++) {
        if (*text == '\n')
            str_add(out, "\\n");
        else
            str_add(out, *text == '\\' || *text == quote ? "\\%c" : "%c", *text);
    }
    str_add(out, "%c", quote);
}

/* As Python's repr. */
static void print_nested(template_run *r, const json_t *v, bool inside, str *out) {
    if (!template_step(r)) return;
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_string(v)) {
        if (inside)
            print_quoted(json_string_value(v), out);
        else
            str_add_bytes(out, json_string_value(v), json_string_length(v));
    } else if (json_is_integer(v)) {
        str_add(out, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        double d = json_real_value(v);
        str_add(out, d == floor(d) && fabs(d) < 1e16 ? "%.1f" : "%.17g", d);
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, value) {
            str_add(out, i ? ", " : "[");
            print_nested(r, value, true, out);
        }
        str_add(out, json_array_size(v) ? "]" : "[]");
    } else if (json_is_object(v)) {
        str_add(out, "{");
        i = 0;
        json_object_foreach((json_t *)(uintptr_t)v, key, value) {
            str_add(out, i++ ? ", " : "");
            print_quoted(key, out);
            str_add(out, ": ");
            print_nested(r, value, true, out);
        }
        str_add(out, "}");
    } else {
        str_add(out, json_is_true(v) ? "True" : json_is_false(v) ? "False" : v ? "None" : "");
    }
}

void template_print(template_run *r, const json_t *v, str *out) { print_nested(r, v, false, out); }

/* @return -1, 0, 1; texts by bytes, which is the order of code points. */
static int compare_values(template_run *r, const json_t *a, const json_t *b) {
    if (json_is_string(a) && json_is_string(b))
        return strcmp(json_string_value(a), json_string_value(b));
    double x, y;
    if (template_number(a, &x) && template_number(b, &y)) return x < y ? -1 : x > y;
    template_fail(r, "two values of different types are compared");
    return 0;
}

/* ---- arguments ------------------------------------------------------------------------------------- */
/* After the parenthesis. */
static template_args read_call_arguments(template_run *r, template_text *t) {
    template_args a = { json_array(), json_object() };
    while (!r->e && !template_take(t, ")")) {
        template_text before = *t;
        char name[64];
        bool named = template_take_name(t, name) && template_take(t, "=") && !template_take(t, "=");
        if (!named) *t = before;
        json_t *v = template_value(r, t);
        if (!v) v = json_null();
        if (named)
            json_object_set_new(a.named, name, v);
        else
            json_array_append_new(a.list, v);
        if (!template_take(t, ",")) {
            if (!template_take(t, ")")) template_fail(r, "arguments are not closed");
            break;
        }
    }
    return a;
}

static void free_arguments(template_args *a) {
    json_decref(a->list);
    json_decref(a->named);
}

/* ---- literals ------------------------------------------------------------------------------------------------------- */
static json_t *read_quoted(template_run *r, template_text *t) {
    str s = { 0 };
    char quote = *t->at++;
    for (; t->at < t->end && *t->at != quote; t->at++) {
        char c = *t->at;
        if (c == '\\' && t->at + 1 < t->end) {
            c = *++t->at;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        str_add_bytes(&s, &c, 1);
    }
    if (t->at >= t->end) template_fail(r, "a text is not closed");
    t->at += t->at < t->end;
    json_t *v = template_string(&s);
    str_free(&s);
    return v;
}

static json_t *read_number(template_text *t) {
    char text[64], *end;
    size_t n = 0;
    bool real = false;
    while (t->at < t->end && n + 1 < sizeof text &&
           ((*t->at >= '0' && *t->at <= '9') || *t->at == '.')) {
        if (*t->at == '.') {
            if (t->at + 1 >= t->end || t->at[1] < '0' || t->at[1] > '9') break;
            real = true;
        }
        text[n++] = *t->at++;
    }
    text[n] = '\0';
    return real ? json_real(strtod(text, &end)) : json_integer(strtoll(text, &end, 10));
}

static json_t *read_list(template_run *r, template_text *t, const char *close) {
    json_t *list = json_array();
    while (!r->e && !template_take(t, close)) {
        json_t *v = template_value(r, t);
        json_array_append_new(list, v ? v : json_null());
        if (template_take(t, ",")) continue;
        if (!template_take(t, close)) template_fail(r, "a list is not closed");
        break;
    }
    return list;
}

static json_t *read_mapping(template_run *r, template_text *t) {
    json_t *o = json_object();
    while (!r->e && !template_take(t, "}")) {
        json_t *key = template_value(r, t);
        if (!template_take(t, ":")) template_fail(r, "a mapping needs \"key: value\"");
        json_t *v = template_value(r, t);
        if (json_is_string(key)) json_object_set(o, json_string_value(key), v ? v : json_null());
        json_decref(key);
        json_decref(v);
        if (template_take(t, ",")) continue;
        if (!template_take(t, "}")) template_fail(r, "a mapping is not closed");
        break;
    }
    return o;
}

static json_t *look_up(const template_run *r, const char *name) {
    static const char *const yes[] = { "true", "True" }, *const no[] = { "false", "False" },
                             *const none[] = { "none", "None" };
    for (int i = 0; i < 2; i++) {
        if (!strcmp(name, yes[i])) return json_true();
        if (!strcmp(name, no[i])) return json_false();
        if (!strcmp(name, none[i])) return json_null();
    }
    for (const template_scope *s = r->scope; s; s = s->outer) {
        json_t *v = json_object_get(s->vars, name);
        if (v) return json_incref(v);
    }
    return NULL;
}

static json_t *read_primary(template_run *r, template_text *t) {
    char name[64];
    skip_template_space(t);
    char c = t->at < t->end ? *t->at : 0;
    if (c == '"' || c == '\'') return read_quoted(r, t);
    if (c >= '0' && c <= '9') return read_number(t);
    if (template_take(t, "[")) return read_list(r, t, "]");
    if (template_take(t, "{")) return read_mapping(r, t);
    if (template_take(t, "(")) {
        json_t *v = template_value(r, t);
        if (template_take(t, ",")) { /* a tuple */
            json_t *rest = read_list(r, t, ")");
            json_array_insert_new(rest, 0, v ? v : json_null());
            return rest;
        }
        if (!template_take(t, ")")) template_fail(r, "a parenthesis is not closed");
        return v;
    }
    if (!template_take_name(t, name)) {
        template_fail(r, "\"%.*s\" is not a value", (int)MIN(t->end - t->at, (ptrdiff_t)30), t->at);
        return NULL;
    }
    if (!template_take(t, "(")) return r->skipping ? NULL : look_up(r, name);
    template_args a = read_call_arguments(r, t);
    json_t *out = r->e || r->skipping ? NULL : template_function(r, name, &a);
    free_arguments(&a);
    return out;
}

/* ---- members --------------------------------------------------------------------------------------------------------- */
/* Of a list, or of the characters of a text. */
static json_t *take_slice(template_run *r, json_t *v, const json_t *from, const json_t *to,
                          const json_t *by) {
    json_t *all = template_list(r, v), *list = json_array();
    int64_t n = (int64_t)json_array_size(all);
    int64_t step = json_is_integer(by) ? json_integer_value(by) : 1;
    int64_t a = json_is_integer(from) ? json_integer_value(from) : step < 0 ? n - 1 : 0;
    int64_t b = json_is_integer(to) ? json_integer_value(to) : step < 0 ? -n - 1 : n;
    if (a < 0) a += n;
    if (b < 0) b += n;
    a = MAX(step < 0 ? -1 : 0, MIN(a, step < 0 ? n - 1 : n));
    b = MAX(-1, MIN(b, n));
    for (int64_t i = a; step && (step > 0 ? i < b : i > b); i += step)
        json_array_append(list, json_array_get(all, (size_t)i));
    json_decref(all);
    if (!json_is_string(v)) return list;
    str text = { 0 };
    json_t *one;
    size_t i;
    json_array_foreach(list, i, one) str_add(&text, "%s", json_string_value(one));
    json_decref(list);
    json_t *out = template_string(&text);
    str_free(&text);
    return out;
}

/* After the bracket. @param v owned */
static json_t *read_index(template_run *r, template_text *t, json_t *v) {
    json_t *part[3] = { NULL }, *out = NULL;
    int n = 0;
    bool slice = false;
    while (!r->e && !template_take(t, "]")) {
        if (template_take(t, ":")) {
            slice = true;
            if (++n > 2) template_fail(r, "an index has too many parts");
            continue;
        }
        if (template_at_end(t)) {
            template_fail(r, "an index is not closed");
            break;
        }
        json_decref(part[MIN(n, 2)]);
        part[MIN(n, 2)] = template_value(r, t);
    }
    if (!r->e && !r->skipping) {
        if (slice) {
            out = v ? take_slice(r, v, part[0], part[1], part[2]) : NULL;
        } else if (json_is_object(v) && json_is_string(part[0])) {
            out = json_object_get(v, json_string_value(part[0]));
            json_incref(out);
        } else if (json_is_integer(part[0]) && json_is_array(v)) {
            int64_t i = json_integer_value(part[0]);
            if (i < 0) i += (int64_t)json_array_size(v);
            out = i < 0 ? NULL : json_array_get(v, (size_t)i);
            json_incref(out);
        } else if (json_is_integer(part[0]) && json_is_string(v)) {
            json_t *end = json_integer(json_integer_value(part[0]) + 1);
            out = take_slice(r, v, part[0], json_integer_value(end) ? end : NULL, NULL);
            json_decref(end);
        }
    }
    for (int i = 0; i < 3; i++) json_decref(part[i]);
    json_decref(v);
    return out;
}

/* After the dot. @param v owned */
static json_t *read_member(template_run *r, template_text *t, json_t *v) {
    char name[64];
    json_t *out = NULL;
    if (!template_take_name(t, name)) {
        template_fail(r, "\".\" without a name");
    } else if (template_take(t, "(")) {
        template_args a = read_call_arguments(r, t);
        if (!r->e && !r->skipping) out = template_method(r, v, name, &a);
        free_arguments(&a);
    } else if (!r->skipping) {
        out = json_object_get(v, name);
        json_incref(out);
    }
    json_decref(v);
    return out;
}

/* After the "is". @param v owned */
static json_t *read_test(template_run *r, template_text *t, json_t *v) {
    char name[64];
    bool no = template_take(t, "not"), holds = false;
    if (!template_take_name(t, name)) template_fail(r, "\"is\" without a test");
    template_args a = { NULL, NULL };
    if (!r->e && template_take(t, "(")) a = read_call_arguments(r, t);
    if (!r->e && !r->skipping) holds = template_test(r, v, name, &a);
    free_arguments(&a);
    json_decref(v);
    return json_boolean(holds != no);
}

static json_t *read_filter(template_run *r, template_text *t, json_t *v) {
    char name[64];
    if (!template_take_name(t, name)) template_fail(r, "\"|\" without a filter");
    template_args a = { NULL, NULL };
    if (!r->e && template_take(t, "(")) a = read_call_arguments(r, t);
    if (r->e || r->skipping) {
        json_decref(v);
        v = NULL;
    } else {
        v = template_filter(r, v, name, &a);
    }
    free_arguments(&a);
    return v;
}

static json_t *read_unary(template_run *r, template_text *t) {
    if (!template_step(r)) return NULL;
    if (template_take(t, "-")) {
        json_t *v = read_unary(r, t), *out = NULL;
        if (json_is_integer(v)) out = json_integer(-json_integer_value(v));
        if (json_is_real(v)) out = json_real(-json_real_value(v));
        json_decref(v);
        return out;
    }
    json_t *v = read_primary(r, t);
    while (!r->e) {
        if (template_take(t, "."))
            v = read_member(r, t, v);
        else if (template_take(t, "["))
            v = read_index(r, t, v);
        else if (template_take(t, "|"))
            v = read_filter(r, t, v);
        else if (template_take(t, "is"))
            v = read_test(r, t, v);
        else
            break;
    }
    return v;
}

/* ---- operators ---------------------------------------------------------------------------------------------------------- */
/* @param a, b owned */
static json_t *compute(template_run *r, json_t *a, char op, json_t *b) {
    json_t *out = NULL;
    bool whole = !json_is_real(a) && !json_is_real(b);
    double x, y;
    if (r->skipping || r->e) {
        ;
    } else if (op == '~' || (op == '+' && json_is_string(a) && json_is_string(b))) {
        str s = { 0 };
        template_print(r, a, &s);
        template_print(r, b, &s);
        out = template_string(&s);
        if (s.len > TEMPLATE_OUTPUT)
            template_fail(r, "a text has more than %d bytes", TEMPLATE_OUTPUT);
        str_free(&s);
    } else if (op == '+' && json_is_array(a) && json_is_array(b)) {
        out = json_copy(a);
        json_array_extend(out, b);
    } else if (template_number(a, &x) && template_number(b, &y)) {
        if ((op == '/' || op == '%' || op == 'f') && y == 0) {
            template_fail(r, "a division by 0");
        } else {
            double v = op == '+'   ? x + y
                       : op == '-' ? x - y
                       : op == '*' ? x * y
                       : op == '/' ? x / y
                       : op == 'f' ? floor(x / y)
                                   : x - y * floor(x / y);
            bool fits = fabs(v) < 9e15;
            out = whole && op != '/' && fits ? json_integer((json_int_t)v) : io_json_number(v);
        }
    } else {
        template_fail(r, "\"%c\" of values that are neither numbers nor texts", op);
    }
    json_decref(a);
    json_decref(b);
    return out;
}

static json_t *read_product(template_run *r, template_text *t) {
    json_t *v = read_unary(r, t);
    while (!r->e) {
        char op = template_take(t, "*")    ? '*'
                  : template_take(t, "//") ? 'f'
                  : template_take(t, "/")  ? '/'
                                           : 0;
        skip_template_space(t);
        if (!op && t->at < t->end && *t->at == '%' && t->at + 1 < t->end && t->at[1] != '}') {
            t->at++;
            op = '%';
        }
        if (!op) break;
        v = compute(r, v, op, read_unary(r, t));
    }
    return v;
}

static json_t *read_joined(template_run *r, template_text *t) {
    json_t *v = read_product(r, t);
    while (!r->e && template_take(t, "~")) v = compute(r, v, '~', read_product(r, t));
    return v;
}

static json_t *read_sum(template_run *r, template_text *t) {
    json_t *v = read_joined(r, t);
    while (!r->e) {
        char op = template_take(t, "+") ? '+' : template_take(t, "-") ? '-' : 0;
        if (!op) break;
        v = compute(r, v, op, read_joined(r, t));
    }
    return v;
}

static json_t *read_compared(template_run *r, template_text *t) {
    static const char *const ops[] = { "==", "!=", "<=", ">=", "<", ">", "in" };
    json_t *v = read_sum(r, t);
    while (!r->e) {
        template_text before = *t;
        bool no = template_take(t, "not") && template_take(t, "in");
        size_t k = no ? 6 : 0;
        if (!no) *t = before;
        while (!no && k < COUNT_OF(ops) && !template_take(t, ops[k])) k++;
        if (k == COUNT_OF(ops)) break;
        json_t *other = read_sum(r, t);
        bool holds = false;
        if (!r->e && !r->skipping) {
            if (k < 2)
                holds = template_same(v, other) == (k == 0);
            else if (k == 6)
                holds = template_contains(r, v, other) != no;
            else {
                int c = compare_values(r, v, other);
                holds = k == 2 ? c <= 0 : k == 3 ? c >= 0 : k == 4 ? c < 0 : c > 0;
            }
        }
        json_decref(v);
        json_decref(other);
        v = json_boolean(holds);
    }
    return v;
}

static json_t *read_not(template_run *r, template_text *t) {
    if (!template_take(t, "not")) return read_compared(r, t);
    if (!template_step(r)) return NULL;
    json_t *v = read_not(r, t);
    bool truth = template_is_true(v);
    json_decref(v);
    return json_boolean(!truth);
}

/* Both have the value of the side that decides, as in Python. */
static json_t *read_logic(template_run *r, template_text *t, bool any) {
    json_t *v = any ? read_logic(r, t, false) : read_not(r, t);
    while (!r->e && template_take(t, any ? "or" : "and")) {
        bool decided = template_is_true(v) == any, before = r->skipping;
        r->skipping = before || decided;
        json_t *other = any ? read_logic(r, t, false) : read_not(r, t);
        r->skipping = before;
        json_decref(decided ? other : v);
        if (!decided) v = other;
    }
    return v;
}

json_t *template_plain_value(template_run *r, template_text *t) {
    return template_step(r) ? read_logic(r, t, true) : NULL;
}

/* The value before an "if" is computed only when the condition holds, so it is parsed first to find the "if". */
json_t *template_value(template_run *r, template_text *t) {
    json_t *v = NULL;
    bool before = r->skipping, taken = false;
    template_text from = *t;
    if (!template_step(r)) return NULL;
    if (++r->depth > TEMPLATE_DEPTH) template_fail(r, "nested deeper than %d", TEMPLATE_DEPTH);
    r->skipping = true;
    json_decref(template_plain_value(r, t));
    r->skipping = before;
    bool chooses = !r->e && template_take(t, "if");
    if (chooses) {
        json_t *condition = template_plain_value(r, t);
        taken = template_is_true(condition);
        json_decref(condition);
    }
    if (!r->e && !before && (taken || !chooses)) v = template_plain_value(r, &from);
    if (!r->e && chooses && template_take(t, "else")) {
        r->skipping = before || taken;
        json_t *other = template_value(r, t);
        r->skipping = before;
        if (taken)
            json_decref(other);
        else
            v = other;
    }
    r->depth--;
    return v;
}
