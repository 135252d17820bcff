/* Configs of other systems as ours.
 *
 * A source is flattened to keys and texts. Its system's table (config/foreign.h) has every key that the system knows;
 * what needs more than one key is the system's `finish`. The source's meaning is kept, its defaults included:
 *
 *     file -> pairs -> rules -> finish -> defaults -> what has an effect -> YAML
 *
 * A key whose meaning would be lost is an error, unless --allow names it; one that has no effect on the result is listed
 * in the notes. A key that the system does not have is an error with the nearest one that it has. */
#include "convert_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* ---- the source, flat ---------------------------------------------------------------------------- */
void convert_add_pair(convert_source *s, const char *key, const char *value) {
    s->at = mem_grow(s->at, sizeof *s->at * (size_t)(s->n + 1));
    source_pair p = { .key = strdup(key), .value = strdup(value) };
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
    str *const texts[] = { &s->unknown,  &s->lost,  &s->unknown_text, &s->lost_text,
                           &s->left_out, &s->autos, &s->allowed,      &s->differs };
    for (size_t i = 0; i < COUNT_OF(texts); i++) str_free(texts[i]);
}

static void flatten_json(convert_source *s, const char *prefix, const json_t *v) {
    char key[256], text[64];
    const char *name;
    json_t *child;
    bool empty = json_is_null(v) || (json_is_array(v) && !json_array_size(v)) ||
                 (json_is_object(v) && !json_object_size(v) && *prefix);
    if (empty) {
        convert_add_pair(s, prefix, "null");
        s->at[s->n - 1].empty = true;
    } else if (json_is_object(v)) {
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
        convert_add_pair(s, prefix, json_string_value(v));
    } else {
        if (json_is_boolean(v))
            snprintf(text, sizeof text, "%s", json_is_true(v) ? "true" : "false");
        else if (json_is_integer(v))
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        else
            snprintf(text, sizeof text, "%.12g", json_real_value(v));
        convert_add_pair(s, prefix, text);
    }
}

const char *convert_take(convert_source *s, const char *key) {
    foreign_kind kind = foreign_find(s->system->table, key, NULL);
    BUG_IF(kind != FOREIGN_RULE && kind != FOREIGN_READ);
    for (int i = s->n - 1; i >= 0; i--) /* the last one counts, as for argparse */
        if (!s->at[i].empty && !s->at[i].refused && !strcmp(s->at[i].key, key))
            return s->at[i].value;
    return NULL;
}

bool convert_has(const convert_source *s, const char *key) {
    for (int i = 0; i < s->n; i++)
        if (!s->at[i].empty && !strcmp(s->at[i].key, key)) return true;
    return false;
}

bool convert_auto(const convert_source *s, const char *key) {
    for (int i = 0; i < s->n; i++)
        if (s->at[i].left_auto && !strcmp(s->at[i].key, key)) return true;
    return false;
}

double convert_take_number(convert_source *s, const char *key) {
    double v;
    const char *text = convert_take(s, key);
    if (!text) return NAN;
    if (number_parse_real(text, &v)) return v;
    convert_refuse(s, key, text, "a number is expected");
    return NAN;
}

double convert_number_or(convert_source *s, const char *key, double otherwise) {
    double given = convert_take_number(s, key);
    return isnan(given) ? otherwise : given;
}

bool convert_is(convert_source *s, const char *key, const char *value) {
    const char *text = convert_take(s, key);
    return text && strcmp(text, value) == 0;
}

bool convert_true(convert_source *s, const char *key) {
    return convert_is(s, key, "true") || convert_is(s, key, "True");
}

/* ---- converting a key ------------------------------------------------------------------------ */
static void add_line(str *lines, int *n, const char *key, const char *value, const char *why) {
    str_add(lines, "  %s = %.*s%s%s\n", key, (int)MIN(strcspn(value, "\n"), 80), value,
            *why ? ": " : "", why);
    *n += 1;
}

static bool is_allowed(const convert_source *s, const char *key) {
    const char *list = s->options->allow ? s->options->allow : "";
    for (size_t len; *list; list += len + (list[len] == ',')) {
        len = strcspn(list, ",");
        if (strlen(key) >= len && len && (key[len] == '\0' || key[len] == '.')) {
            size_t i = 0;
            while (i < len && (list[i] == '-' ? '_' : list[i]) == key[i]) i++;
            if (i == len) return true;
        }
    }
    return false;
}

void convert_refuse(convert_source *s, const char *key, const char *value, const char *why) {
    char shown[64];
    snprintf(shown, sizeof shown, "%.60s", value);
    shown[strcspn(shown, "\n")] = '\0';
    if (is_allowed(s, key)) {
        add_line(&s->allowed, &s->n_allowed, key, value, why);
    } else {
        str_add(&s->lost_text, "%s%s = %s%s%s%s", s->n_lost ? "; " : "", key, shown,
                *why ? " (" : "", why, *why ? ")" : "");
        str_add(&s->lost, "%s%s", s->n_lost ? "," : "", key);
        s->n_lost++;
    }
    size_t n = strlen(key); /* the key, or each entry of a list, is dealt with */
    for (int i = 0; i < s->n; i++)
        if (!strncmp(s->at[i].key, key, n) && (!s->at[i].key[n] || s->at[i].key[n] == '.'))
            s->at[i].refused = true;
}

void convert_leave_out(convert_source *s, const char *key, const char *value) {
    add_line(&s->left_out, &s->n_left_out, key, value, "");
}

void convert_leave_out_given(convert_source *s, const char *key) {
    if (convert_take(s, key)) convert_leave_out(s, key, convert_take(s, key));
}

void convert_leave_out_all(convert_source *s, const char *const *keys, size_t n) {
    for (size_t i = 0; i < n; i++) convert_leave_out_given(s, keys[i]);
}

void convert_note(convert_source *s, const char *text) {
    str_add(&s->differs, "  %s\n", text);
    s->n_differs++;
}

/* ---- options --------------------------------------------------------------------------------------- */
/* Sets an option; an error names the source's key. */
err convert_set(convert_source *s, const char *key, const char *option, const char *value) {
    err e = strchr(value, '$') ? ERR("its value is known only when the script runs")
                               : config_set(s->c, option, value);
    if (!e) return OK;
    err named = ERR("%s: %s: \"%.60s\": %s", s->name, key, value, err_message(e));
    named = err_hint(named, "%s", *err_remedy(e) ? err_remedy(e) : "change it in the file");
    err_free(e);
    return named;
}

err convert_set_amount(convert_source *s, const char *key, const char *option, double value,
                       const char *unit) {
    char text[64];
    if (isnan(value)) return OK;
    snprintf(text, sizeof text, "%.10g%s%s", value, *unit ? " " : "", unit);
    return convert_set(s, key, option, text);
}

err convert_set_number(convert_source *s, const char *key, const char *option, double value) {
    return convert_set_amount(s, key, option, value, "");
}

err convert_default(convert_source *s, const char *option, const char *value) {
    if (strcmp(config_where(s->c, option), "default") != 0) return OK;
    return config_set(s->c, option, value);
}

/* Translates a value by a rule's map. @return false when the value is not in it. */
static bool convert_translate(const char *map, const char *value, char *out, size_t size) {
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
        if (len == 1 && *at == '*') return convert_translate(NULL, value, out, size);
        at += len + (at[len] == ',');
    }
    return false;
}

err convert_choice(convert_source *s, const char *key, const char *option, const char *map,
                   const char *otherwise) {
    char value[512];
    const char *text = convert_take(s, key);
    if (!text) return otherwise ? convert_default(s, option, otherwise) : OK;
    if (convert_translate(map, text, value, sizeof value))
        return *value ? convert_set(s, key, option, value) : OK;
    convert_refuse(s, key, text, "");
    return OK;
}

static err apply_defaults(convert_source *s) {
    for (const foreign_rule *r = s->system->table->rules; r->key; r++)
        if (r->otherwise && !convert_auto(s, r->key) && (!r->with || convert_take(s, r->with)))
            TRY(convert_default(s, r->option, r->otherwise));
    return OK;
}

/* ---- every key has a kind ---------------------------------------------------------------------------- */
/* Of two keys that are as near, the first of the table. */
static void nearest_key(const foreign_table *t, const char *key, char *out, size_t size) {
    char name[256];
    foreign_kind kind;
    int best = 1 + (int)strlen(key) / 3;
    *out = '\0';
    for (int i = 0; foreign_key(t, i, name, sizeof name, &kind); i++) {
        int distance = str_distance(key, name);
        if (distance >= best) continue;
        best = distance;
        snprintf(out, size, "%s", name);
    }
}

static void refuse_unknown(convert_source *s, const source_pair *p) {
    char near[256];
    if (is_allowed(s, p->key)) {
        add_line(&s->allowed, &s->n_allowed, p->key, p->value, "not one of its keys");
        return;
    }
    nearest_key(s->system->table, p->key, near, sizeof near);
    str_add(&s->unknown_text, "%s\"%s\"", s->n_unknown ? ", " : "", p->key);
    if (*near) str_add(&s->unknown_text, " (is it \"%s\"?)", near);
    str_add(&s->unknown, "%s%s", s->n_unknown ? "," : "", p->key);
    s->n_unknown++;
}

/* Whether a value of `changes` means what happens here anyway. @param list "a|b", up to a blank */
static bool is_neutral(const char *list, const char *value) {
    static const char *const always[] = { "false", "False", "none", "None", "null", "" };
    for (size_t i = 0; i < COUNT_OF(always); i++)
        if (!strcmp(value, always[i])) return true;
    for (size_t len, end = strcspn(list, " "); end; list += len, end -= len) {
        len = strcspn(list, "| ");
        if (strlen(value) == len && !strncmp(list, value, len)) return true;
        len += list[len] == '|';
    }
    return false;
}

static void classify_pair(convert_source *s, source_pair *p) {
    const char *neutral = "";
    foreign_kind kind = foreign_find(s->system->table, p->key, &neutral);
    if (kind == FOREIGN_UNKNOWN) {
        if (!p->empty || !foreign_is_section(s->system->table, p->key)) refuse_unknown(s, p);
        p->refused = true;
    } else if (p->empty) {
        return;
    } else if (s->system->leaves_auto && !strcmp(p->value, "auto")) {
        add_line(&s->autos, &s->n_autos, p->key, p->value, "");
        p->empty = p->left_auto = true;
    } else if (kind == FOREIGN_IDLE || (kind == FOREIGN_CHANGES && is_neutral(neutral, p->value))) {
        convert_leave_out(s, p->key, p->value);
    } else if (kind == FOREIGN_CHANGES) {
        convert_refuse(s, p->key, p->value, "");
    } else if (is_allowed(s, p->key)) { /* asked for: its default stands */
        add_line(&s->allowed, &s->n_allowed, p->key, p->value, "");
        p->refused = true;
    } else {
        s->n_converted++;
    }
}

static err refusal(const convert_source *s) {
    if (s->n_unknown)
        return err_hint(
            ERR("%s: %s has no key %s", s->name, s->system->title, s->unknown_text.text),
            "correct the file, or --allow %s leaves %s out", s->unknown.text,
            s->n_unknown > 1 ? "them" : "it");
    if (s->n_lost)
        return err_hint(ERR("%s: without a counterpart here, and it would change the result: %s",
                            s->name, s->lost_text.text),
                        "change the file, or --allow %s leaves %s out", s->lost.text,
                        s->n_lost > 1 ? "them" : "it");
    return OK;
}

/* ---- reading -------------------------------------------------------------------------------------- */
static err parse_document(convert_syntax syntax, const char *text, size_t len, const char *name,
                          json_t **out) {
    return syntax == SYNTAX_TOML   ? toml_to_json(text, name, out)
           : syntax == SYNTAX_JSON ? io_json_parse(text, len, name, out)
                                   : yaml_to_json(text, len, name, out);
}

static err read_source(convert_source *s, const char *text, size_t len) {
    json_t *doc = NULL;
    if (s->system->syntax == SYNTAX_ARGUMENTS) return convert_read_script(s, text);
    TRY(parse_document(s->system->syntax, text, len, s->name, &doc));
    if (json_is_object(doc)) flatten_json(s, "", doc);
    bool object = json_is_object(doc);
    json_decref(doc);
    return object ? OK : ERR("%s: keys and values are expected", s->name);
}

/* Finds the syntax that the ending of a file's name states. @return false: it states none */
static bool syntax_of_name(const char *name, convert_syntax *out) {
    static const struct {
        const char *ending;
        convert_syntax syntax;
    } endings[] = { { ".toml", SYNTAX_TOML },
                    { ".json", SYNTAX_JSON },
                    { ".yml", SYNTAX_YAML },
                    { ".yaml", SYNTAX_YAML } };
    for (size_t i = 0; i < COUNT_OF(endings); i++)
        if (str_ends(name, endings[i].ending)) return *out = endings[i].syntax, true;
    return false;
}

/* @return how many keys of a file a system knows; -1: it is not in the system's syntax. */
static int known_keys(const convert_system *f, const char *text, size_t len, const char *name) {
    convert_syntax stated;
    if (syntax_of_name(name, &stated) && stated != f->syntax) return -1;
    config c;
    config_init(&c);
    convert_options none = { 0 };
    convert_source s = { .c = &c, .name = name, .system = f, .options = &none };
    err e = read_source(&s, text, len);
    int n = e ? -1 : 0;
    for (int i = 0; !e && i < s.n; i++)
        n += foreign_find(f->table, s.at[i].key, NULL) != FOREIGN_UNKNOWN;
    err_free(e);
    free_source(&s);
    config_free(&c);
    return n;
}

/* @return the system that knows most of the file's keys. */
static const convert_system *recognize(const char *text, size_t len, const char *name) {
    const convert_system *best = NULL;
    int most = 0;
    for (int i = 0; i < convert_system_count; i++) {
        int n = known_keys(&convert_systems[i], text, len, name);
        if (n <= most) continue;
        most = n;
        best = &convert_systems[i];
    }
    return best;
}

/* @return what is wrong with a file that is not in the syntax that its name states. */
static err check_syntax(const char *text, size_t len, const char *name) {
    convert_syntax stated;
    json_t *doc = NULL;
    if (!syntax_of_name(name, &stated)) return OK;
    TRY(parse_document(stated, text, len, name, &doc));
    json_decref(doc);
    return OK;
}

static err find_system(const char *text, size_t len, const char *name, const char *format,
                       const convert_system **out) {
    *out = format ? NULL : recognize(text, len, name);
    if (!format && !*out && (str_ends(name, ".sh") || strstr(text, "--num-layers")))
        format = "megatron"; /* and what is wrong with it is said when it is read */
    for (int i = 0; format && i < convert_system_count; i++)
        if (!strcmp(convert_systems[i].name, format)) *out = &convert_systems[i];
    if (*out) return OK;
    if (!format) TRY(check_syntax(text, len, name));
    str all = { 0 };
    const char *near = NULL;
    for (int i = 0; i < convert_system_count; i++) {
        str_add(&all, "%s%s", i ? ", " : "", convert_systems[i].name);
        if (format) near = str_nearer(format, convert_systems[i].name, near);
    }
    err e = format ? ERR_USAGE("--from: \"%.40s\" is none of %s", format, all.text)
                   : ERR("%s: its format is not recognized", name);
    e = near ? err_hint(e, "--from %s", near) : err_hint(e, "--from with one of %s", all.text);
    str_free(&all);
    return e;
}

/* ---- writing -------------------------------------------------------------------------------------- */
/* Makes the model that the config describes, to know which of its facts matter. */
static err model_of(const config *c, model_config *out) {
    config copy;
    config_copy(&copy, c);
    err e = c->model.vocab_size == CFG_AUTO ? config_set(&copy, "model.vocab_size", "1024") : OK;
    if (!e) e = model_from_config(&copy, out);
    config_free(&copy);
    return e;
}

static bool has_effect(const config *c, const model_config *m, int option) {
    const char *name = config_option_name(option);
    const model_fact *f = m && str_starts(name, "model.") ? model_fact_find(name + 6) : NULL;
    return config_has_effect(c, option) && (!f || model_fact_applies(f, m));
}

/* @param partial the file describes a part of a model, if any: its facts alone do not identify it */
static void print_options(const config *c, const model_config *m, bool partial, str *out) {
    char section[64] = "";
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i), *dot = strchr(name, '.');
        if (!strcmp(config_where(c, name), "default") || !has_effect(c, m, i)) continue;
        if (partial && str_starts(name, "model.")) continue;
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

/* A key that became an option without an effect in this config (a momentum beside AdamW) has none in the source. */
static void note_idle(convert_source *s, const model_config *m) {
    for (const foreign_rule *r = s->system->table->rules; r->key; r++) {
        const char *value = convert_take(s, r->key);
        for (int i = 0; value && i < config_option_count(); i++) {
            if (strcmp(config_option_name(i), r->option) != 0 || has_effect(s->c, m, i)) continue;
            convert_leave_out(s, r->key, value);
            s->n_converted--;
        }
    }
}

static void add_note(str *notes, const convert_source *s, int n, const char *what,
                     const str *lines) {
    if (n)
        str_add(notes, "%s: %d %s %s:\n%s", s->name, n, n > 1 ? "keys" : "key", what, lines->text);
}

/* Whatever else is wrong with a file whose keys have no counterpart, these are why. */
static err convert_keys(convert_source *s) {
    err e = OK;
    for (const foreign_rule *r = s->system->table->rules; r->key && !e; r++)
        e = convert_choice(s, r->key, r->option, r->map, NULL);
    if (!e) e = s->system->finish(s);
    if (!s->n_unknown && !s->n_lost) return e;
    err_free(e);
    return refusal(s);
}

static err convert_pairs(convert_source *s, model_config *m, bool *describes) {
    for (int i = 0; i < s->n; i++)
        if (!s->at[i].refused) classify_pair(s, &s->at[i]);
    *describes = s->system->model && convert_take(s, s->system->model);
    if (*describes) TRY(convert_set(s, "model", "model.preset", MODEL_CUSTOM));
    if (!*describes && s->system->syntax == SYNTAX_ARGUMENTS) {
        TRY(refusal(s));
        return ERR("%s: no command with --num-layers in it", s->name);
    }
    TRY(convert_keys(s));
    TRY(apply_defaults(s));
    TRY(convert_default(s, "data.guard", "false")); /* elsewhere every sequence counts */
    err e = *describes ? model_of(s->c, m) : OK;
    if (!e) return OK;
    err named = err_hint(ERR("%s: %s", s->name, err_message(e)), "%s", err_remedy(e));
    err_free(e);
    return named;
}

err convert_config(const char *text, size_t len, const char *name, const convert_options *o,
                   str *out, str *notes) {
    const convert_system *f = NULL;
    model_config m;
    bool describes = false;
    config c;
    TRY(find_system(text, len, name, o->format, &f));
    config_init(&c);
    convert_source s = { .c = &c, .name = name, .system = f, .options = o, .ranks = o->ranks };
    err e = read_source(&s, text, len);
    if (!e) e = convert_pairs(&s, &m, &describes);
    if (!e) {
        bool preset = strcmp(config_where(&c, "model.preset"), "default") != 0;
        str body = { 0 };
        note_idle(&s, describes ? &m : NULL);
        str_add(out, "# From %s, a config of %s", name, f->title);
        if (s.ranks) str_add(out, ", for %lld ranks", (long long)s.ranks);
        str_add(out, ".\n");
        if (!preset)
            str_add(out, "# It does not describe the model: set model.preset.\n");
        else if (describes && c.model.vocab_size == CFG_AUTO)
            str_add(out, "# The vocabulary is the tokenizer's: set model.vocab_size.\n");
        print_options(&c, describes ? &m : NULL, !preset, &body);
        str_add(out, "%s", body.text ? body.text : "");
        add_note(notes, &s, s.n_autos, "left to the defaults here", &s.autos);
        add_note(notes, &s, s.n_allowed, "left out by --allow", &s.allowed);
        add_note(notes, &s, s.n_left_out, "left out without an effect on the result", &s.left_out);
        add_note(notes, &s, s.n_differs, "to look at", &s.differs);
        str_add(notes, "%s: %d converted, %d left out\n", name, s.n_converted,
                s.n_autos + s.n_allowed + s.n_left_out);
        str_free(&body);
    }
    free_source(&s);
    config_free(&c);
    return e;
}
