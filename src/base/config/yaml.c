/* YAML into a config. Two levels: sections, and keys within. Every complaint has file:line. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "config/config_internal.h"

/* One file being read. */
typedef struct yaml_reader {
    config *c;
    const char *name;
    yaml_document_t *doc;
    int *option_line;  /* per option, where this file set it; 0: not yet */
    int *section_line; /* the same for sections */
} yaml_reader;

static int yaml_line(const yaml_node_t *n) { return (int)n->start_mark.line + 1; }

static const char *yaml_kind(const yaml_node_t *n) {
    return n->type == YAML_SEQUENCE_NODE  ? "a list"
           : n->type == YAML_MAPPING_NODE ? "a section"
                                          : "a value";
}

/* @return the scalar's text, or NULL when it is not a scalar or holds a NUL. Borrowed. */
static const char *scalar_text(const yaml_node_t *n) {
    if (n->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)n->data.scalar.value;
    return strlen(text) == n->data.scalar.length ? text : NULL;
}

/* YAML's ways of writing nothing, when not in quotes. */
static bool is_null(const yaml_node_t *n) {
    const char *text = scalar_text(n);
    return text && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static err set_twice(const yaml_reader *r, int line, const char *what, int first) {
    return err_hint(ERR("%s:%d: %s is set twice; first on line %d", r->name, line, what, first),
                    "keep one of the two");
}

/* Appends a list or a section of a file in flow style. @return false: it is too deep or too long, as aliases can make
 * it. */
static bool add_flow(const yaml_reader *r, const yaml_node_t *n, int depth, str *out) {
    enum { MOST_DEEP = 8, MOST_BYTES = 1 << 16 };
    if (depth > MOST_DEEP || out->len > MOST_BYTES) return false;
    bool fits = true;
    if (n->type == YAML_SEQUENCE_NODE) {
        str_add(out, "[");
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top;
             i++) {
            if (i > n->data.sequence.items.start) str_add(out, ", ");
            fits &= add_flow(r, yaml_document_get_node(r->doc, *i), depth + 1, out);
        }
        str_add(out, "]");
    } else if (n->type == YAML_MAPPING_NODE) {
        str_add(out, "{");
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top;
             p++) {
            if (p > n->data.mapping.pairs.start) str_add(out, ", ");
            fits &= add_flow(r, yaml_document_get_node(r->doc, p->key), depth + 1, out);
            str_add(out, ": ");
            fits &= add_flow(r, yaml_document_get_node(r->doc, p->value), depth + 1, out);
        }
        str_add(out, "}");
    } else {
        quote_text(out, (const char *)n->data.scalar.value);
    }
    return fits;
}

static err read_config_value(yaml_reader *r, const option *o, int line, const yaml_node_t *value) {
    int *seen = &r->option_line[option_index(o)];
    if (*seen) return set_twice(r, line, o->name, *seen);
    *seen = line;
    const char *origin = arena_printf(r->c->memory, "%s:%d", r->name, line);
    const char *label = arena_printf(r->c->memory, "%s: %s", origin, o->name);
    const char *text = is_null(value) ? "" : scalar_text(value);
    if (!text && o->type == OPT_LIST && value->type != YAML_SCALAR_NODE) {
        str flow = { 0 };
        err e = add_flow(r, value, 0, &flow) ? option_set(r->c, o, flow.text, label, origin)
                                             : ERR("%s: the list is too long or too deep", label);
        str_free(&flow);
        return e;
    }
    if (!text) {
        str expected = { 0 };
        option_expects(o, &expected);
        err e = ERR("%s: expected %s; got %s", label, expected.text,
                    value->type == YAML_SCALAR_NODE ? "text with a NUL in it" : yaml_kind(value));
        str_free(&expected);
        return e;
    }
    return option_set(r->c, o, text, label, origin);
}

static err read_config_key(yaml_reader *r, const section *s, const yaml_node_t *key,
                           const yaml_node_t *value) {
    const char *text = scalar_text(key);
    if (!text)
        return ERR("%s:%d: expected the name of an option of section \"%s\"; got %s", r->name,
                   yaml_line(key), s->name, yaml_kind(key));
    const option *o = option_find(s->name, text);
    if (strcmp(text, "<<") == 0)
        return err_hint(ERR("%s:%d: merge keys (<<) are not supported", r->name, yaml_line(key)),
                        "write the keys out; anchors and aliases of single values are fine");
    if (!o)
        return option_suggest(ERR("%s:%d: unknown key \"%.60s\" in section \"%s\"", r->name,
                                  yaml_line(key), text, s->name),
                              s->name, text);
    return read_config_value(r, o, yaml_line(key), value);
}

/* `precision: bf16` sets the main key; an empty section sets nothing. */
static err read_short_form(yaml_reader *r, const section *s, int line, const yaml_node_t *value) {
    if (is_null(value)) return OK;
    if (s->main_key[0] && value->type == YAML_SCALAR_NODE)
        return read_config_value(r, option_find(s->name, s->main_key), line, value);
    return err_hint(ERR("%s:%d: section \"%s\": expected keys and values below it; got %s", r->name,
                        line, s->name, yaml_kind(value)),
                    "write \"%s:\" and, on the lines after it, indented \"key: value\" pairs",
                    s->name);
}

static err read_section(yaml_reader *r, const yaml_node_t *key, const yaml_node_t *value) {
    const char *text = scalar_text(key);
    if (!text)
        return ERR("%s:%d: expected the name of a section; got %s", r->name, yaml_line(key),
                   yaml_kind(key));
    const section *s = section_find(text);
    if (!s)
        return option_suggest(
            ERR("%s:%d: unknown section \"%.60s\"", r->name, yaml_line(key), text), NULL, text);
    int *seen = &r->section_line[s - section_table];
    if (*seen)
        return set_twice(r, yaml_line(key), arena_printf(r->c->memory, "section \"%s\"", text),
                         *seen);
    *seen = yaml_line(key);
    if (value->type != YAML_MAPPING_NODE) return read_short_form(r, s, yaml_line(key), value);
    for (yaml_node_pair_t *p = value->data.mapping.pairs.start; p < value->data.mapping.pairs.top;
         p++)
        TRY(read_config_key(r, s, yaml_document_get_node(r->doc, p->key),
                            yaml_document_get_node(r->doc, p->value)));
    return OK;
}

static err read_config_document(yaml_reader *r) {
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root || is_null(root)) return OK; /* an empty file: all defaults */
    if (root->type != YAML_MAPPING_NODE)
        return err_hint(ERR("%s:%d: expected sections such as \"training:\"; got %s", r->name,
                            yaml_line(root), yaml_kind(root)),
                        "\"ingot config\" prints a complete file to start from");
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++)
        TRY(read_section(r, yaml_document_get_node(r->doc, p->key),
                         yaml_document_get_node(r->doc, p->value)));
    return OK;
}

/* Returns libyaml's complaint. Its reader, which checks the encoding, knows an offset but no line. */
static err syntax_error(const yaml_parser_t *p, const char *name) {
    const char *problem = p->problem ? p->problem : "out of memory";
    if (p->error == YAML_READER_ERROR)
        return err_hint(ERR("%s: not UTF-8 text: %s at byte %zu", name, problem, p->problem_offset),
                        "save the file as UTF-8; is it a config file at all?");
    return err_hint(ERR("%s:%zu:%zu: not valid YAML: %s%s%s", name, p->problem_mark.line + 1,
                        p->problem_mark.column + 1, p->context ? p->context : "",
                        p->context ? ", " : "", problem),
                    "check indentation (spaces, never tabs), colons and quotes on that line and "
                    "the one before");
}

static err read_stream(yaml_parser_t *parser, config *c, const char *name) {
    yaml_document_t doc;
    if (!yaml_parser_load(parser, &doc)) return syntax_error(parser, name);
    yaml_reader r = { .c = c, .name = name, .doc = &doc };
    r.option_line = arena_alloc(c->memory, (size_t)option_count * sizeof(int));
    r.section_line = arena_alloc(c->memory, (size_t)section_count * sizeof(int));
    err e = read_config_document(&r);
    yaml_document_delete(&doc);
    TRY(e);
    if (!yaml_parser_load(parser, &doc)) return syntax_error(parser, name);
    const yaml_node_t *more = yaml_document_get_root_node(&doc);
    if (more)
        e = err_hint(ERR("%s:%d: a second YAML document begins here", name, yaml_line(more)),
                     "remove the \"---\" line, or keep one document per file");
    yaml_document_delete(&doc);
    return e;
}

/* Both libyaml's time and its document grow with the square of the depth of nesting. */
err config_check_yaml_depth(const char *text, size_t len, const char *name) {
    enum { MOST_LEVELS = 32 };
    yaml_parser_t parser;
    yaml_event_t event = { 0 };
    int depth = 0, line = 0;
    BUG_IF(!yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    for (bool more = true; more && depth <= MOST_LEVELS; yaml_event_delete(&event)) {
        /* what is not YAML is reported by who reads the document */
        if (!yaml_parser_parse(&parser, &event)) break;
        yaml_event_type_t kind = event.type;
        depth += kind == YAML_SEQUENCE_START_EVENT || kind == YAML_MAPPING_START_EVENT;
        depth -= kind == YAML_SEQUENCE_END_EVENT || kind == YAML_MAPPING_END_EVENT;
        line = (int)event.start_mark.line + 1;
        more = kind != YAML_STREAM_END_EVENT;
    }
    yaml_parser_delete(&parser);
    if (depth <= MOST_LEVELS) return OK;
    return err_hint(
        ERR("%s:%d: lists and sections are nested more than %d deep", name, line, MOST_LEVELS),
        "is this the right file?");
}

err config_parse(config *c, const char *text, size_t len, const char *name) {
    yaml_parser_t parser;
    TRY(config_check_yaml_depth(text, len, name));
    BUG_IF(!yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    err e = read_stream(&parser, c, name);
    yaml_parser_delete(&parser);
    if (!e) config_begin_overrides(c);
    return e;
}

/* Large enough for any config, small enough that a token file given by mistake fails at once. */
enum { CONFIG_MAX_BYTES = 1 << 20 };

err config_load(config *c, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_hint(
            ERR("cannot open %s: %s", path, strerror(errno)),
            "check the path; \"ingot config > run.yaml\" writes a complete file to start from");
    char *text = mem_alloc(CONFIG_MAX_BYTES + 1);
    size_t n = fread(text, 1, CONFIG_MAX_BYTES + 1, f);
    err e = OK;
    if (ferror(f))
        e = err_hint(ERR("cannot read %s: %s", path, strerror(errno)), "give a YAML file");
    else if (n > CONFIG_MAX_BYTES)
        e = err_hint(ERR("%s: expected a config file of at most 1 MiB; it is larger", path),
                     "is it a data file? Those are named inside a config, in data.train");
    fclose(f);
    if (!e) e = config_parse(c, text, n, path);
    free(text);
    return e;
}
