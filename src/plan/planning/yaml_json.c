/* YAML as JSON, for files that are not configs of ours: the hardware catalogue, others' configs. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "io/io.h"

static json_t *scalar_json(const yaml_node_t *n) {
    static const char *const nothing[] = { "", "~", "null", "Null", "NULL" };
    const char *text = (const char *)n->data.scalar.value;
    size_t len = n->data.scalar.length;
    bool plain = n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strlen(text) == len, b;
    char *end = NULL;
    for (size_t i = 0; plain && i < COUNT_OF(nothing); i++)
        if (strcmp(text, nothing[i]) == 0) return json_null();
    if (plain && (!strcmp(text, "True") || !strcmp(text, "False")))
        return json_boolean(*text == 'T');
    if (plain && args_parse_bool(text, &b)) return json_boolean(b);
    char digits[64]; /* 739_328 is a number */
    size_t used = 0;
    for (size_t i = 0; plain && i < len && used + 1 < sizeof digits; i++)
        if (text[i] != '_' || !i || !strchr("0123456789", text[i - 1])) digits[used++] = text[i];
    digits[used] = '\0';
    if (plain && len < sizeof digits && strspn(text, "+-.0123456789eE_") == len &&
        strpbrk(text, "0123456789")) {
        double v = strtod(digits, &end);
        if (!*end && isfinite(v))
            return v == floor(v) && fabs(v) < 1e15 && !strpbrk(text, ".eE")
                       ? json_integer((json_int_t)v)
                       : json_real(v);
    }
    return io_json_string(text, len);
}

typedef struct converter {
    yaml_document_t *doc;
    const char *name;
    int nodes; /* seen so far: aliases could make a small file endless */
} converter;

static err convert_node(converter *c, int id, int depth, json_t **out);

static err convert_list(converter *c, const yaml_node_t *n, int depth, json_t *list) {
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        json_t *item = NULL;
        TRY(convert_node(c, *i, depth + 1, &item));
        json_array_append_new(list, item);
    }
    return OK;
}

static err convert_map(converter *c, const yaml_node_t *n, int depth, json_t *map) {
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(c->doc, p->key);
        json_t *value = NULL;
        if (key->type != YAML_SCALAR_NODE)
            return err_hint(
                ERR("%s:%d: a key is not a text", c->name, (int)key->start_mark.line + 1),
                "write keys as plain words");
        TRY(convert_node(c, p->value, depth + 1, &value));
        if (json_object_set_new(map, (const char *)key->data.scalar.value, value))
            return ERR("%s:%d: a key is not UTF-8", c->name, (int)key->start_mark.line + 1);
    }
    return OK;
}

static err convert_node(converter *c, int id, int depth, json_t **out) {
    enum { DEEPEST = 64, MOST_NODES = 1 << 20 };
    const yaml_node_t *n = yaml_document_get_node(c->doc, id);
    if (depth > DEEPEST || ++c->nodes > MOST_NODES)
        return err_hint(ERR("%s: nested too deeply, or too large", c->name),
                        "such a file is expected to have a few levels");
    bool list = n->type == YAML_SEQUENCE_NODE;
    if (n->type == YAML_SCALAR_NODE) {
        *out = scalar_json(n);
        return OK;
    }
    *out = list ? json_array() : json_object();
    err e = list ? convert_list(c, n, depth, *out) : convert_map(c, n, depth, *out);
    if (!e) return OK;
    json_decref(*out);
    *out = NULL;
    return e;
}

err yaml_to_json(const char *text, size_t len, const char *name, json_t **out) {
    yaml_parser_t parser;
    yaml_document_t doc;
    *out = NULL;
    TRY(config_check_yaml_depth(text, len, name));
    if (!yaml_parser_initialize(&parser)) return ERR("%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        err e = ERR("%s:%d: %s", name, (int)parser.problem_mark.line + 1,
                    parser.problem ? parser.problem : "not YAML");
        yaml_parser_delete(&parser);
        return err_hint(e, "check the indentation and the quotes of that line");
    }
    converter c = { .doc = &doc, .name = name };
    bool empty = !yaml_document_get_root_node(&doc);
    err e = empty ? OK : convert_node(&c, 1, 0, out);
    if (empty) *out = json_object();
    yaml_document_delete(&doc);
    yaml_parser_delete(&parser);
    return e;
}
