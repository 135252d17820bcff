/* Reads options that are lists of sections. */
#include "config/option_list_internal.h"

#include <string.h>

const char *list_text(const yaml_node_t *n) {
    if (!n || n->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)n->data.scalar.value;
    return strlen(text) == n->data.scalar.length ? text : NULL;
}

err list_read_value(const list_reader *r, int i, const char *in, const char *key, const char *name,
                    const yaml_node_t *value, void *at) {
    const option *o = option_find(in, key);
    const char *text = list_text(value);
    BUG_IF(o == NULL);
    if (text && option_parse(o, text, at)) return OK;
    str expected = { 0 };
    option_expects(o, &expected);
    err e = ERR("%s: %s %d: %s: expected %s; got %.60s", r->label, r->item, i + 1, name,
                expected.text, text ? text : "a list or a section");
    str_free(&expected);
    return e;
}

static err read_list_entry(const list_reader *r, int i, const yaml_node_t *node) {
    if (r->begin) TRY(r->begin(r, i));
    if (node->type != YAML_MAPPING_NODE)
        return err_hint(ERR("%s: %s %d: expected keys and values", r->label, r->item, i + 1),
                        "write %s", r->example);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        const char *key = list_text(yaml_document_get_node(r->doc, p->key));
        for (yaml_node_pair_t *q = node->data.mapping.pairs.start; key && q < p; q++) {
            const char *other = list_text(yaml_document_get_node(r->doc, q->key));
            if (other && !strcmp(key, other))
                return ERR("%s: %s %d: %s is set twice", r->label, r->item, i + 1, key);
        }
        TRY(r->read_key(r, i, key ? key : "", yaml_document_get_node(r->doc, p->value)));
    }
    return r->end(r, i);
}

static err read_list_entries(const list_reader *r, int *n) {
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root) return OK;
    if (root->type != YAML_SEQUENCE_NODE)
        return err_hint(ERR("%s: expected a list of %ss", r->label, r->item), "write %s",
                        r->example);
    for (yaml_node_item_t *i = root->data.sequence.items.start; i < root->data.sequence.items.top;
         i++) {
        if (*n == r->most) return ERR("%s: more than %d %ss", r->label, r->most, r->item);
        TRY(read_list_entry(r, *n, yaml_document_get_node(r->doc, *i)));
        ++*n;
    }
    return OK;
}

err list_read(list_reader *r, const char *text, int *n) {
    yaml_parser_t parser;
    yaml_document_t doc;
    *n = 0;
    TRY(config_check_yaml_depth(text, strlen(text), r->label));
    BUG_IF(!yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    err e = OK;
    if (!yaml_parser_load(&parser, &doc)) {
        e = err_hint(ERR("%s: not a list in YAML: %s", r->label,
                         parser.problem ? parser.problem : "out of memory"),
                     "write %s, and what has a * in quotes", r->example);
    } else {
        r->doc = &doc;
        e = read_list_entries(r, n);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return e;
}
