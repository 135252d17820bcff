/* Templates: text between tags, and the tags that are statements. A template is split once into nodes,
 *
 *     text | {{ expression }} | {% statement %}
 *
 * each with the node that ends it or follows it in its chain (if -> elif -> else -> endif), and is then run from node to
 * node. Expressions are parsed when they are computed (template_expr.c): templates are short and run once per turn. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "template_internal.h"

typedef enum { NODE_TEXT, NODE_VALUE, NODE_STATEMENT } node_kind;
typedef struct template_node {
    node_kind kind;
    template_text text; /* borrowed from the template */
    int next;           /* of a statement: the next of its chain, or its end */
} template_node;

void template_fail(template_run *r, const char *fmt, ...) {
    if (r->e) return;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->e = ERR("template: %s", text);
}

bool template_step(template_run *r) {
    if (r->e) return false;
    if (++r->steps > TEMPLATE_STEPS)
        template_fail(r, "it does not end within %d steps", TEMPLATE_STEPS);
    else if (r->out->len > TEMPLATE_OUTPUT)
        template_fail(r, "it prints more than %d bytes", TEMPLATE_OUTPUT);
    return !r->e;
}

/* ---- nodes ---------------------------------------------------------------------------------------- */
typedef struct node_list {
    template_node *at;
    int n, cap;
} node_list;

static void add_node(node_list *l, node_kind kind, const char *at, const char *end) {
    LIST_ADD(l->at, l->n, l->cap) = (template_node){ kind, { at, end }, -1 };
}

static bool is_template_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* @return where a tag that opens at `at` closes, quotes in it respected; NULL: nowhere */
static const char *find_close(const char *at, const char *end, char kind) {
    char quote = 0;
    for (; at + 1 < end; at++) {
        if (kind != '#' && quote) {
            if (*at == '\\') at++;
            if (at < end && *at == quote) quote = 0;
            continue;
        }
        if (kind != '#' && (*at == '"' || *at == '\'')) quote = *at;
        if (*at == kind && at[1] == '}') return at;
    }
    return NULL;
}

/* Text before a tag: without white space where the tag asks for that, and without the indentation of a statement. */
static const char *trim_before(const char *text, const char *from, const char *to, bool strip,
                               bool statement) {
    const char *at = to;
    while (strip && at > from && is_template_space(at[-1])) at--;
    if (strip || !statement) return at;
    while (at > text && (at[-1] == ' ' || at[-1] == '\t')) at--;
    return at == text || at[-1] == '\n' ? MAX(at, from) : to;
}

static err split_nodes(const char *text, node_list *out) {
    const char *at = text, *end = text + strlen(text), *from = text;
    if (end > text && end[-1] == '\n') end--; /* as Jinja does */
    while (at + 1 < end) {
        char kind = at[0] == '{' ? at[1] : 0;
        if (kind != '{' && kind != '%' && kind != '#') {
            at++;
            continue;
        }
        const char *body = at + 2, *close = find_close(body, end, kind == '{' ? '}' : kind);
        if (!close) return ERR("template: \"{%c\" is not closed: %.40s", kind, at);
        bool strip = body < close && *body == '-', keep = body < close && *body == '+';
        const char *before = trim_before(text, from, at, strip, kind != '{' && !keep);
        if (before > from) add_node(out, NODE_TEXT, from, before);
        const char *stop = close, *begin = body + (strip || keep); /* one sign is not both */
        bool strip_after = stop > begin && stop[-1] == '-',
             keep_after = stop > begin && stop[-1] == '+';
        if (kind != '#')
            add_node(out, kind == '{' ? NODE_VALUE : NODE_STATEMENT, begin,
                     stop - (strip_after || keep_after));
        at = from = close + 2;
        if (strip_after)
            while (from < end && is_template_space(*from)) from++;
        else if (kind != '{' && !keep_after && from < end && *from == '\n')
            from++;
        at = from;
    }
    if (end > from) add_node(out, NODE_TEXT, from, end);
    return OK;
}

/* ---- chains ------------------------------------------------------------------------------------------ */
static bool node_is(const template_node *n, const char *word) {
    template_text t = n->text;
    return n->kind == NODE_STATEMENT && template_take(&t, word);
}

/* Whether a "set" has its value between tags. */
static bool is_set_block(const template_node *n) {
    template_text t = n->text;
    return template_take(&t, "set") && !memchr(t.at, '=', (size_t)(t.end - t.at));
}

/* Links the statements from `at` on, until one that belongs to an outer chain. @return its node. */
static int link_nodes(node_list *l, int at, int depth, err *e) {
    static const char *const blocks[][2] = { { "if", "endif" },
                                             { "for", "endfor" },
                                             { "macro", "endmacro" },
                                             { "set", "endset" },
                                             { "generation", "endgeneration" } };
    static const char *const parts[] = { "elif",     "else",   "endif",        "endfor",
                                         "endmacro", "endset", "endgeneration" };
    if (depth > TEMPLATE_DEPTH) *e = ERR("template: nested deeper than %d", TEMPLATE_DEPTH);
    while (at < l->n && !*e) {
        template_node *node = &l->at[at];
        size_t b = 0;
        for (size_t i = 0; i < COUNT_OF(parts); i++)
            if (node_is(node, parts[i])) return at;
        while (b < COUNT_OF(blocks) && !node_is(node, blocks[b][0])) b++;
        if (b == COUNT_OF(blocks) || (b == 3 && !is_set_block(node))) {
            at++;
            continue;
        }
        for (int head = at; !*e;) {
            int next = link_nodes(l, head + 1, depth + 1, e);
            if (*e) break;
            bool ends = next < l->n && node_is(&l->at[next], blocks[b][1]);
            bool goes_on =
                next < l->n && b <= 1 &&
                (node_is(&l->at[next], "else") || (b == 0 && node_is(&l->at[next], "elif")));
            if (!ends && !goes_on) {
                *e = ERR("template: \"%s\" without \"%s\"", blocks[b][0], blocks[b][1]);
                break;
            }
            l->at[head].next = next;
            head = at = next;
            if (ends) break;
        }
        at++;
    }
    return at;
}

/* ---- running --------------------------------------------------------------------------------------------- */
typedef enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } node_flow;
static node_flow run_nodes(template_run *r, int from, int to);

static void push_scope(template_run *r, template_scope *s) {
    *s = (template_scope){ json_object(), r->scope };
    r->scope = s;
}

static void pop_scope(template_run *r) {
    json_decref(r->scope->vars);
    r->scope = r->scope->outer;
}

static int last_of_chain(const template_run *r, int at) {
    while (r->node[at].next >= 0) at = r->node[at].next;
    return at;
}

static node_flow run_if(template_run *r, int at) {
    for (; at >= 0 && !r->e; at = r->node[at].next) {
        template_text t = r->node[at].text;
        bool taken;
        if (template_take(&t, "else")) {
            taken = true;
        } else if (template_take(&t, "endif")) {
            return FLOW_ON;
        } else {
            if (!template_take(&t, "elif")) template_take(&t, "if");
            json_t *v = template_value(r, &t);
            taken = template_is_true(v);
            json_decref(v);
        }
        if (taken && !r->e) return run_nodes(r, at + 1, r->node[at].next);
    }
    return FLOW_ON;
}

json_t *template_list(template_run *r, json_t *v) {
    if (json_is_array(v)) return json_incref(v);
    json_t *list = json_array(), *value;
    const char *key;
    if (json_is_object(v))
        json_object_foreach(v, key, value) json_array_append_new(list, json_string(key));
    else if (json_is_string(v))
        for (const char *at = json_string_value(v); *at;) {
            size_t n = 1;
            while (((unsigned char)at[n] & 0xc0) == 0x80) n++;
            json_array_append_new(list, json_stringn(at, n));
            at += n;
        }
    else if (v)
        template_fail(r, "a loop over a value that is not a list");
    return list;
}

static void set_targets(template_run *r, char names[][64], int n, json_t *item) {
    if (n == 1) {
        json_object_set(r->scope->vars, names[0], item);
        return;
    }
    for (int i = 0; i < n; i++) {
        json_t *part = json_array_get(item, (size_t)i);
        json_object_set_new(r->scope->vars, names[i], part ? json_incref(part) : json_null());
    }
}

static json_t *loop_facts(const json_t *list, size_t i) {
    size_t n = json_array_size(list);
    json_t *before = i ? json_array_get(list, i - 1) : NULL, *after = json_array_get(list, i + 1);
    json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:I}", "index", (json_int_t)i + 1,
                          "index0", (json_int_t)i, "revindex", (json_int_t)(n - i), "revindex0",
                          (json_int_t)(n - i - 1), "first", (int)(i == 0), "last",
                          (int)(i + 1 == n), "length", (json_int_t)n);
    if (before) json_object_set(o, "previtem", before);
    if (after) json_object_set(o, "nextitem", after);
    return o;
}

/* @return the members of the list that its "if" keeps. */
static json_t *filter_items(template_run *r, json_t *list, template_text condition,
                            char names[][64], int n) {
    json_t *kept = json_array(), *item;
    size_t i;
    json_array_foreach(list, i, item) {
        template_scope inner;
        template_text t = condition;
        if (!template_step(r)) break;
        push_scope(r, &inner);
        set_targets(r, names, n, item);
        json_t *v = template_value(r, &t);
        if (template_is_true(v)) json_array_append(kept, item);
        json_decref(v);
        pop_scope(r);
    }
    json_decref(list);
    return kept;
}

static void run_for(template_run *r, int at) {
    enum { MOST_NAMES = 4 };
    char names[MOST_NAMES][64];
    int n = 0;
    template_text t = r->node[at].text;
    template_take(&t, "for");
    template_take(&t, "(");
    do
        if (n == MOST_NAMES || !template_take_name(&t, names[n++]))
            template_fail(r, "\"for\" without a name: %.*s", (int)(t.end - t.at), t.at);
    while (!r->e && template_take(&t, ","));
    template_take(&t, ")");
    if (!r->e && !template_take(&t, "in")) template_fail(r, "\"for\" without \"in\"");
    if (r->e) return;
    json_t *v = template_plain_value(r, &t), *list = template_list(r, v), *item;
    json_decref(v);
    if (!r->e && template_take(&t, "if")) list = filter_items(r, list, t, names, n);
    int next = r->node[at].next;
    bool has_else = node_is(&r->node[next], "else");
    size_t i;
    json_array_foreach(list, i, item) {
        template_scope inner;
        if (!template_step(r)) break;
        push_scope(r, &inner);
        set_targets(r, names, n, item);
        json_object_set_new(inner.vars, "loop", loop_facts(list, i));
        node_flow flow = run_nodes(r, at + 1, next);
        pop_scope(r);
        if (flow == FLOW_BREAK) break;
    }
    if (!json_array_size(list) && has_else && !r->e) run_nodes(r, next + 1, r->node[next].next);
    json_decref(list);
}

/* Runs nodes into a text of its own. @return a new reference */
static json_t *run_captured(template_run *r, int from, int to) {
    str text = { 0 }, *before = r->out;
    str_add(&text, "%s", "");
    r->out = &text;
    run_nodes(r, from, to);
    r->out = before;
    json_t *v = json_stringn(text.text, text.len);
    str_free(&text);
    return v ? v : json_string("");
}

static void run_set(template_run *r, int at) {
    template_text t = r->node[at].text;
    char name[64], member[64];
    template_take(&t, "set");
    if (!template_take_name(&t, name)) {
        template_fail(r, "\"set\" without a name");
        return;
    }
    bool has_member = template_take(&t, ".") && template_take_name(&t, member);
    json_t *v;
    if (is_set_block(&r->node[at])) {
        v = run_captured(r, at + 1, r->node[at].next);
    } else {
        if (!template_take(&t, "=")) template_fail(r, "\"set %s\" without a value", name);
        v = template_value(r, &t);
    }
    if (!v) v = json_null();
    if (has_member) {
        json_t *object = NULL;
        for (template_scope *s = r->scope; s && !object; s = s->outer)
            object = json_object_get(s->vars, name);
        if (!json_is_object(object))
            template_fail(r, "\"%s\" is not a namespace", name);
        else
            json_object_set(object, member, v);
    } else {
        json_object_set(r->scope->vars, name, v);
    }
    json_decref(v);
}

/* ---- macros ------------------------------------------------------------------------------------------------ */
/* Finds "macro NAME(". @return its node, with t after the parenthesis; -1: none */
static int find_macro(const template_run *r, const char *name, template_text *t) {
    char got[64];
    for (int i = 0; i < r->n; i++) {
        *t = r->node[i].text;
        if (r->node[i].kind == NODE_STATEMENT && template_take(t, "macro") &&
            template_take_name(t, got) && !strcmp(got, name) && template_take(t, "("))
            return i;
    }
    return -1;
}

bool template_call_macro(template_run *r, const char *name, json_t *args, json_t *named,
                         json_t **out) {
    template_text t;
    int at = find_macro(r, name, &t);
    if (at < 0) return false;
    template_scope inner, *before = r->scope;
    if (++r->depth > TEMPLATE_DEPTH)
        template_fail(r, "macros are nested deeper than %d", TEMPLATE_DEPTH);
    while (r->scope->outer)
        r->scope = r->scope->outer; /* a macro sees its arguments and the template's names */
    push_scope(r, &inner);
    char parameter[64];
    for (size_t i = 0; !r->e && template_take_name(&t, parameter); i++) {
        json_t *otherwise = template_take(&t, "=") ? template_value(r, &t) : NULL;
        json_t *given = json_object_get(named, parameter);
        if (!given) given = json_array_get(args, i);
        json_object_set(inner.vars, parameter, given ? given : otherwise ? otherwise : json_null());
        json_decref(otherwise);
        if (!template_take(&t, ",")) break;
    }
    if (!r->e) *out = run_captured(r, at + 1, r->node[at].next);
    pop_scope(r);
    r->scope = before;
    r->depth--;
    return true;
}

static node_flow run_statement(template_run *r, int *at) {
    const template_node *n = &r->node[*at];
    node_flow flow = FLOW_ON;
    if (node_is(n, "if")) {
        flow = run_if(r, *at);
        *at = last_of_chain(r, *at);
    } else if (node_is(n, "for")) {
        run_for(r, *at);
        *at = last_of_chain(r, *at);
    } else if (node_is(n, "set")) {
        run_set(r, *at);
        if (n->next >= 0) *at = n->next;
    } else if (node_is(n, "macro")) {
        *at = n->next;
    } else if (node_is(n, "generation") || node_is(n, "endgeneration")) {
        return FLOW_ON; /* marks what a model is trained on */
    } else if (node_is(n, "break")) {
        return FLOW_BREAK;
    } else if (node_is(n, "continue")) {
        return FLOW_CONTINUE;
    } else {
        template_fail(r, "\"%.*s\" is not a statement that is known",
                      (int)MIN(n->text.end - n->text.at, (ptrdiff_t)40), n->text.at);
    }
    return flow;
}

static node_flow run_nodes(template_run *r, int from, int to) {
    node_flow flow = FLOW_ON;
    if (++r->depth > TEMPLATE_DEPTH) template_fail(r, "nested deeper than %d", TEMPLATE_DEPTH);
    for (int i = from; i < to && flow == FLOW_ON && template_step(r); i++) {
        const template_node *n = &r->node[i];
        template_text t = n->text;
        if (n->kind == NODE_TEXT) {
            str_add_bytes(r->out, t.at, (size_t)(t.end - t.at));
        } else if (n->kind == NODE_VALUE) {
            json_t *v = template_value(r, &t);
            if (!r->e && !template_at_end(&t))
                template_fail(r, "\"%.*s\" is not understood",
                              (int)MIN(t.end - t.at, (ptrdiff_t)60), t.at);
            if (v && !r->e) template_print(r, v, r->out);
            json_decref(v);
        } else {
            flow = run_statement(r, &i);
        }
    }
    r->depth--;
    return flow;
}

err template_render(const char *text, json_t *vars, str *out) {
    node_list l = { 0 };
    err e = split_nodes(text, &l);
    if (!e) {
        int stopped = link_nodes(&l, 0, 0, &e);
        if (!e && stopped < l.n)
            e = ERR("template: \"%.*s\" without what it ends",
                    (int)MIN(l.at[stopped].text.end - l.at[stopped].text.at, (ptrdiff_t)30),
                    l.at[stopped].text.at);
    }
    if (!e) {
        template_scope all = { json_copy(vars), NULL };
        template_run r = { .node = l.at, .n = l.n, .scope = &all, .out = out };
        run_nodes(&r, 0, l.n);
        json_decref(all.vars);
        e = r.e;
    }
    free(l.at);
    return e;
}

err template_evaluate(const char *text, json_t *vars, json_t **out) {
    str unused = { 0 };
    template_scope all = { json_copy(vars), NULL };
    template_run r = { .scope = &all, .out = &unused };
    template_text t = { text, text + strlen(text) };
    *out = template_value(&r, &t);
    if (!r.e && !template_at_end(&t)) template_fail(&r, "\"%.40s\" is not understood", t.at);
    json_decref(all.vars);
    str_free(&unused);
    if (!r.e && !*out) *out = json_null();
    if (r.e) {
        json_decref(*out);
        *out = NULL;
    }
    return r.e;
}
