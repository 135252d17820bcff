/* Configs of other systems as ours.
 *
 * A source is flattened to keys and texts ("optimizer.params.lr": "0.0001", dashes as underscores). A format is
 * a table of rules: a key, our option, and how its values translate; what needs more than one key is code in
 * `finish`. A key that no rule takes is reported in the output, never dropped in silence. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* ---- the source, flat ---------------------------------------------------------------------------- */
typedef struct source_pair {
    char *key, *value; /* owned */
    bool used;
} source_pair;
struct convert_source {
    source_pair *at;
    int n;
    config *c;
    const char *name;
};

static char *copy_text(const char *from) {
    char *to = mem_alloc(strlen(from) + 1);
    strcpy(to, from);
    return to;
}

static void add_pair(convert_source *s, const char *key, const char *value) {
    s->at = mem_grow(s->at, sizeof *s->at * (size_t)(s->n + 1));
    source_pair p = { copy_text(key), copy_text(value), false };
    for (char *c = p.key; *c; c++)
        if (*c == '-') *c = '_';
    s->at[s->n++] = p;
}

static void free_source(convert_source *s) {
    for (int i = 0; i < s->n; i++) {
        free(s->at[i].key);
        free(s->at[i].value);
    }
    free(s->at);
}

static void flatten_json(convert_source *s, const char *prefix, const json_t *v) {
    char key[256], text[64];
    const char *name;
    json_t *child;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)v, name, child) {
            snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", name);
            flatten_json(s, key, child);
        }
    } else if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            snprintf(key, sizeof key, "%s.%zu", prefix, i);
            flatten_json(s, key, json_array_get(v, i));
        }
    } else if (json_is_string(v)) {
        add_pair(s, prefix, json_string_value(v));
    } else if (!json_is_null(v)) {
        if (json_is_boolean(v))
            snprintf(text, sizeof text, "%s", json_is_true(v) ? "true" : "false");
        else if (json_is_integer(v))
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        else
            snprintf(text, sizeof text, "%.12g", json_real_value(v));
        add_pair(s, prefix, text);
    }
}

const char *convert_take(convert_source *s, const char *key) {
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->at[i].key, key)) {
            s->at[i].used = true;
            return s->at[i].value;
        }
    return NULL;
}

double convert_take_number(convert_source *s, const char *key) {
    double v;
    const char *text = convert_take(s, key);
    return text && number_parse_real(text, &v) ? v : NAN;
}

bool convert_is(convert_source *s, const char *key, const char *value) {
    const char *text = convert_take(s, key);
    return text && strcmp(text, value) == 0;
}

/* Sets an option; an error names the source's key. */
err convert_set(convert_source *s, const char *key, const char *option, const char *value) {
    err e = config_set(s->c, option, value);
    if (!e) return OK;
    err named = ERR("%s: %s: \"%.60s\": %s", s->name, key, value, err_message(e));
    named = err_hint(named, "%s", *err_remedy(e) ? err_remedy(e) : "change it in the file");
    err_free(e);
    return named;
}

err convert_set_number(convert_source *s, const char *key, const char *option, double value,
                       const char *unit) {
    char text[64];
    if (isnan(value)) return OK;
    snprintf(text, sizeof text, "%.10g%s%s", value, *unit ? " " : "", unit);
    return convert_set(s, key, option, text);
}

/* ---- rules ---------------------------------------------------------------------------------------- */
/* The translation of a value: "a=b,c=d"; NULL, or an item "*": as it is. @return false when the value is not
 * in it. */
static bool translate_value(const char *map, const char *value, char *out, size_t size) {
    if (!map) {
        snprintf(out, size, "%s", value);
        return true;
    }
    size_t n = strlen(value);
    for (const char *at = map; *at;) {
        size_t len = strcspn(at, ",");
        if (len > n && !strncmp(at, value, n) && at[n] == '=') {
            snprintf(out, size, "%.*s", (int)(len - n - 1), at + n + 1);
            return true;
        }
        if (len == 1 && *at == '*') return translate_value(NULL, value, out, size);
        at += len + (at[len] == ',');
    }
    return false;
}

static err apply_rules(convert_source *s, const foreign_rule *rules) {
    for (const foreign_rule *r = rules; r->key; r++) {
        char value[512];
        for (int i = 0; i < s->n; i++) {
            if (strcmp(s->at[i].key, r->key) != 0) continue;
            if (!translate_value(r->map, s->at[i].value, value, sizeof value))
                continue; /* reported */
            s->at[i].used = true;
            if (r->option && *value) TRY(convert_set(s, r->key, r->option, value));
        }
    }
    return OK;
}

/* ---- reading -------------------------------------------------------------------------------------- */
/* A shell's "GPT_ARGS=". */
static bool is_assignment(const char *word) {
    size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n && word[n] == '=';
}

/* Blanks comments, quotes, line continuations and the parentheses of shell arrays out. */
static void clean_arguments(char *text) {
    for (char *c = text; *c; c++) {
        if (*c == '#' && (c == text || strchr(" \t\n", c[-1]))) memset(c, ' ', strcspn(c, "\n"));
        if (strchr("\\\"'()", *c)) *c = ' ';
    }
}

/* Another value of the option before: "--rampup-batch-size 32 32 1000". */
static void append_word(source_pair *p, const char *word) {
    str joined = { 0 };
    str_add(&joined, "%s %s", p->value, word);
    free(p->value);
    p->value = copy_text(joined.text);
    str_free(&joined);
}

/* "--name value", "--name=value", "--flag", over lines, alone or in the variables of a shell script. */
static void read_arguments(convert_source *s, const char *text) {
    char *copy = copy_text(text), *next = NULL, key[128] = "";
    bool open = false; /* the option before may have more values */
    clean_arguments(copy);
    for (char *w = strtok_r(copy, " \t\r\n", &next); w; w = strtok_r(NULL, " \t\r\n", &next)) {
        bool name = str_starts(w, "--");
        char *equals = name ? strchr(w, '=') : NULL;
        if (name && *key) add_pair(s, key, "true");
        if (equals) *equals = '\0';
        if (is_assignment(w)) {
            open = false;
        } else if (name) {
            snprintf(key, sizeof key, "%s", equals ? "" : w + 2);
            if (equals) add_pair(s, w + 2, equals + 1);
            open = false;
        } else if (*key) {
            add_pair(s, key, w);
            key[0] = '\0';
            open = true;
        } else if (open) {
            append_word(&s->at[s->n - 1], w);
        }
    }
    if (*key) add_pair(s, key, "true");
    free(copy);
}

static err read_source(convert_source *s, const convert_system *f, const char *text, size_t len) {
    json_t *doc = NULL;
    if (f->syntax == SYNTAX_ARGUMENTS) {
        read_arguments(s, text);
        return OK;
    }
    TRY(f->syntax == SYNTAX_TOML   ? toml_to_json(text, s->name, &doc)
        : f->syntax == SYNTAX_JSON ? io_json_parse(text, len, s->name, &doc)
                                   : yaml_to_json(text, len, s->name, &doc));
    flatten_json(s, "", doc);
    json_decref(doc);
    return OK;
}

const char *convert_format(int i) {
    return i >= 0 && i < convert_system_count ? convert_systems[i].name : NULL;
}

static const char *nth_format(const void *ctx, int i) { return convert_format(i); }

/* The format whose telling key the text has. */
static err find_convert_system(const char *text, const char *name, const char *format,
                               const convert_system **out) {
    for (int i = 0; i < convert_system_count; i++) {
        const convert_system *f = &convert_systems[i];
        bool found = format ? !strcmp(f->name, format)
                            : (!f->ending || str_ends(name, f->ending)) && strstr(text, f->telling);
        if (!found) continue;
        *out = f;
        return OK;
    }
    str all = { 0 };
    for (int i = 0; i < convert_system_count; i++)
        str_add(&all, "%s%s", i ? ", " : "", convert_systems[i].name);
    const char *near = format ? str_nearest(format, nth_format, NULL, convert_system_count) : NULL;
    err e = format ? ERR_USAGE("--from: \"%.40s\" is none of %s", format, all.text)
                   : ERR("%s: its format is not recognized", name);
    e = near ? err_hint(e, "--from %s", near) : err_hint(e, "--from with one of %s", all.text);
    str_free(&all);
    return e;
}

/* ---- writing -------------------------------------------------------------------------------------- */
static void print_set_options(const config *c, str *out) {
    char section[64] = "";
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i), *dot = strchr(name, '.');
        if (!strcmp(config_where(c, name), "default")) continue;
        if (strncmp(section, name, (size_t)(dot - name)) || section[dot - name]) {
            snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
            str_add(out, "%s%s:\n", out->len ? "\n" : "", section);
        }
        str value = { 0 };
        config_option_text(c, i, &value);
        bool quote = strpbrk(value.text, " :#,\"") || !*value.text;
        str_add(out, "  %s: %s%s%s\n", dot + 1, quote ? "\"" : "", value.text, quote ? "\"" : "");
        str_free(&value);
    }
}

/* An option that says nothing in this config (a momentum beside AdamW) would be refused when it is read. */
static void print_without_effect(config *c, str *out) {
    bool first = true;
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i);
        if (config_has_effect(c, i) || !config_is_set(c, name)) continue;
        str value = { 0 };
        config_option_text(c, i, &value);
        str_add(out, "%s#   %s = %s\n", first ? "\n# Without an effect here:\n" : "", name,
                value.text);
        str_free(&value);
        first = false;
    }
    config_drop_idle(c);
}

static void print_leftovers(const convert_source *s, str *out) {
    bool first = true;
    for (int i = 0; i < s->n; i++) {
        if (s->at[i].used) continue;
        if (first) str_add(out, "\n# No equivalent here:\n");
        first = false;
        str_add(out, "#   %s = %.*s\n", s->at[i].key, (int)MIN(strcspn(s->at[i].value, "\n"), 80),
                s->at[i].value);
    }
}

err convert_config(const char *text, size_t len, const char *name, const char *format, str *out) {
    const convert_system *f = NULL;
    config c;
    TRY(find_convert_system(text, name, format, &f));
    config_init(&c);
    convert_source s = { .c = &c, .name = name };
    err e = read_source(&s, f, text, len);
    if (!e && f->model) e = convert_set(&s, "model", "model.preset", MODEL_CUSTOM);
    if (!e) e = apply_rules(&s, f->rules);
    if (!e) e = f->finish(&s);
    if (!e) {
        str_add(out, "# From %s, a config of %s.\n", name, f->title);
        if (!strcmp(config_where(&c, "model.preset"), "default"))
            str_add(out, "# It does not describe the model: set model.preset.\n");
        else if (f->model && c.model.vocab_size == CFG_AUTO)
            str_add(out, "# The vocabulary is the tokenizer's: set model.vocab_size.\n");
        str body = { 0 }, idle = { 0 };
        print_without_effect(&c, &idle);
        print_set_options(&c, &body);
        str_add(out, "%s%s", body.text ? body.text : "", idle.text ? idle.text : "");
        str_free(&body);
        str_free(&idle);
        print_leftovers(&s, out);
    }
    free_source(&s);
    config_free(&c);
    return e;
}
