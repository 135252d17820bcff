/* The option table as data, and looking things up in it. */
#include <string.h>

#include "config/config_internal.h"
#include "config/foreign.h"

/* norm_kind_choices, norm_kind_traits, ...: the rows of choices.h as data. */
#define CHOICE_ROW(symbol, text, traits, help)    { text, help },
#define CHOICE_TRAITS(symbol, text, traits, help) traits,
#define CHOICE_TABLE(type, ROWS)                                                                   \
    static const choice_row type##_choices[] = { ROWS(CHOICE_ROW) };                               \
    const int type##_traits[] = { ROWS(CHOICE_TRAITS) };
CHOICE_TYPES(CHOICE_TABLE)

#define BASE(s, k, r, t)                                                                           \
    .section = #s, .key = #k, .name = #s "." #k, .type = (t), .resume = CFG_RESUME_##r,            \
    .offset = offsetof(config, s.k)
/* clang-format off */
const option option_table[] = {
#define INT(s, k, r, def, min, max, text)                                                             \
    { BASE(s, k, r, OPT_INT), .int_min = (min), .int_max = (max), .has_auto = (def) == CFG_AUTO,      \
      .help = text },
/* A real default is automatic when it is not equal to itself. */
#define REAL(s, k, r, def, min, max, text)                                                            \
    { BASE(s, k, r, OPT_REAL), .real_min = (min), .real_max = (max), .has_auto = (def) != (def),      \
      .help = text },
#define BOOL(s, k, r, def, text)     { BASE(s, k, r, OPT_BOOL), .help = text },
#define TRISTATE(s, k, r, text)      { BASE(s, k, r, OPT_TRISTATE), .has_auto = true, .help = text },
#define TEXT(s, k, r, def, placeholder, text)                                                         \
    { BASE(s, k, r, OPT_TEXT), .holder = placeholder, .help = text },
#define SECRET(s, k, r, placeholder, text) { BASE(s, k, r, OPT_SECRET), .holder = placeholder, .help = text },
#define LIST(s, k, r, normalize_, placeholder, text)                                                  \
    { BASE(s, k, r, OPT_LIST), .normalize = normalize_, .holder = placeholder, .help = text },
#define CHOICE(s, k, r, type_, def, text)                                                             \
    { BASE(s, k, r, OPT_CHOICE), .choices = type_##_choices, .n_choices = type_##_count,                \
      .has_auto = (int)(def) == CFG_AUTO, .help = text },
#define AMOUNT(s, k, r, value_, unit_, units_, text)                                                  \
    { BASE(s, k, r, OPT_AMOUNT), .units = units_, .has_auto = (value_) != (value_),                  \
      .help = text },
#include "config/options.def"
};

const section section_table[] = {
#define SECTION(s, main, text) { #s, main, text },
#include "config/options.def"
};

const config config_defaults = {
#define INT(s, k, r, def, min, max, text)            .s.k = (def),
#define REAL(s, k, r, def, min, max, text)           .s.k = (def),
#define BOOL(s, k, r, def, text)                     .s.k = (def),
#define TRISTATE(s, k, r, text)                      .s.k = CFG_AUTO,
#define TEXT(s, k, r, def, placeholder, text)        .s.k = (def),
#define SECRET(s, k, r, placeholder, text)           .s.k = "",
#define LIST(s, k, r, normalize_, placeholder, text) .s.k = "[]",
#define CHOICE(s, k, r, type_, def, text)            .s.k = (def),
#define AMOUNT(s, k, r, value_, unit_, units_, text) .s.k = { (value_), (unit_) },
#include "config/options.def"
};

static const struct {
    const char *section, *other, *key;
} alias_table[] = {
#define ALIAS(s, other_name, k) { #s, #other_name, #k },
#include "config/options.def"
};
/* clang-format on */

const int option_count = (int)COUNT_OF(option_table);
const int section_count = (int)COUNT_OF(section_table);

int config_option_count(void) { return option_count; }
const char *config_option_name(int i) { return option_table[i].name; }
cfg_resume config_option_resume(int i) { return option_table[i].resume; }
void config_option_text(const config *c, int i, str *out) {
    const option *o = &option_table[i];
    const char *const *text = (const char *const *)((const char *)c + o->offset);
    if (o->type == OPT_TEXT || o->type == OPT_LIST)
        str_add(out, "%s", *text);
    else if (o->type == OPT_SECRET)
        str_add(out, "%s", secret_shown(*text));
    else
        option_print(o, c, out);
}

int option_index(const option *o) { return (int)(o - option_table); }

const section *section_find(const char *name) {
    for (int i = 0; i < section_count; i++)
        if (strcmp(section_table[i].name, name) == 0) return &section_table[i];
    return NULL;
}

const option *option_find(const char *section_name, const char *key) {
    for (size_t i = 0; i < COUNT_OF(alias_table); i++)
        if (strcmp(alias_table[i].section, section_name) == 0 &&
            strcmp(alias_table[i].other, key) == 0)
            key = alias_table[i].key;
    for (int i = 0; i < option_count; i++)
        if (strcmp(option_table[i].section, section_name) == 0 &&
            strcmp(option_table[i].key, key) == 0)
            return &option_table[i];
    return NULL;
}

const option *option_find_name(const char *name) {
    char part[64];
    const char *dot = strchr(name, '.');
    size_t len = dot ? (size_t)(dot - name) : strlen(name);
    if (len >= sizeof part) return NULL;
    memcpy(part, name, len);
    part[len] = '\0';
    const section *s = section_find(part);
    if (!s) return NULL;
    return option_find(part, dot ? dot + 1 : s->main_key);
}

/* ---- suggestions --------------------------------------------------------------------------- */
/* @return the option that has this very key in some other section. */
static const option *same_key(const char *key) {
    for (int i = 0; i < option_count; i++)
        if (strcmp(option_table[i].key, key) == 0) return &option_table[i];
    return NULL;
}

static const char *nearest_name(const char *section_name, const char *key) {
    bool known = section_find(section_name) != NULL;
    const char *near = NULL;
    for (int i = 0; i < option_count; i++)
        if (!strcmp(option_table[i].section, section_name))
            near = str_nearer(key, option_table[i].key, near);
    if (near) return option_find(section_name, near)->name;
    const option *elsewhere = same_key(key);
    if (elsewhere) return elsewhere->name;
    if (known) return NULL; /* equal section names would make anything look near */
    str full = { 0 };
    str_add(&full, "%s.%s", section_name, key);
    for (int i = 0; i < option_count; i++) near = str_nearer(full.text, option_table[i].name, near);
    str_free(&full);
    return near;
}

err option_suggest(err e, const char *section_name, const char *key) {
    const char *near = foreign_option(key); /* a name that other systems use */
    if (!near && section_name) {
        near = nearest_name(section_name, key);
    } else if (!near) {
        for (int i = 0; i < section_count; i++) near = str_nearer(key, section_table[i].name, near);
        const option *o = same_key(key);
        if (!near && o) near = o->name;
    }
    if (!near) return err_hint(e, "\"ingot config --help\" lists every option");
    return err_hint(e, "\"%s\"; \"ingot config --help\" lists every option", near);
}

/* ---- a config's life ----------------------------------------------------------------------- */
void config_init(config *c) {
    *c = config_defaults;
    c->memory = arena_new();
    c->origin = arena_alloc(c->memory, (size_t)option_count * sizeof *c->origin);
}

void config_copy(config *to, const config *from) {
    *to = *from;
    to->memory = arena_new();
    to->origin = arena_alloc(to->memory, (size_t)option_count * sizeof *to->origin);
    if (from->idle_in_file) {
        to->idle_in_file = arena_alloc(to->memory, (size_t)option_count * sizeof(bool));
        memcpy(to->idle_in_file, from->idle_in_file, (size_t)option_count * sizeof(bool));
    }
    for (int i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        const char **text = (const char **)((char *)to + o->offset);
        if (o->type == OPT_TEXT || o->type == OPT_SECRET || o->type == OPT_LIST)
            *text = arena_strdup(to->memory, *text);
        if (from->origin[i]) to->origin[i] = arena_strdup(to->memory, from->origin[i]);
    }
}

void option_reset(config *c, const option *o) {
    static const size_t sizes[] = {
        [OPT_INT] = sizeof(int64_t),       [OPT_REAL] = sizeof(double),
        [OPT_BOOL] = sizeof(bool),         [OPT_TRISTATE] = sizeof(int),
        [OPT_TEXT] = sizeof(const char *), [OPT_SECRET] = sizeof(const char *),
        [OPT_LIST] = sizeof(const char *), [OPT_CHOICE] = sizeof(int),
        [OPT_AMOUNT] = sizeof(cfg_amount),
    };
    memcpy((char *)c + o->offset, (const char *)&config_defaults + o->offset, sizes[o->type]);
}

void config_free(config *c) {
    if (!c) return;
    arena_free(c->memory);
    c->memory = NULL;
    c->origin = NULL;
}

const char *config_where(const config *c, const char *name) {
    const option *o = option_find_name(name);
    BUG_IF(o == NULL);
    const char *origin = c->origin[option_index(o)];
    return origin ? origin : "default";
}

int config_choices(const char *name) {
    const option *o = option_find_name(name);
    BUG_IF(o == NULL);
    return o->type == OPT_CHOICE ? o->n_choices : 0;
}

const char *config_choice(const char *name, int value) {
    const option *o = option_find_name(name);
    BUG_IF(o == NULL || o->type != OPT_CHOICE || value >= o->n_choices || value < CFG_AUTO);
    return value == CFG_AUTO ? "auto" : o->choices[value].text;
}

/* ---- lists of options ------------------------------------------------------------------------ */
/* @return the next item of a comma-separated list without the spaces around it; *n 0: none left. */
static const char *next_list_item(const char **list, size_t *n) {
    const char *at = *list + strspn(*list, " ,");
    *n = strcspn(at, ",");
    *list = at + *n;
    while (*n && at[*n - 1] == ' ') --*n;
    return at;
}

static bool item_is(const char *item, size_t n, const char *name) {
    return strlen(name) == n && strncmp(item, name, n) == 0;
}

static bool item_names(const char *item, size_t n, const option *o) {
    return item_is(item, n, o->name) || item_is(item, n, o->section);
}

bool config_list_names(const char *list, int i) {
    size_t n;
    for (const char *item; item = next_list_item(&list, &n), n;)
        if (item_names(item, n, &option_table[i])) return true;
    return false;
}

err config_list_check(const char *list, const char *name) {
    size_t n;
    for (const char *item; item = next_list_item(&list, &n), n;) {
        bool found = false;
        for (int i = 0; i < option_count; i++)
            found = found || item_names(item, n, &option_table[i]);
        if (found) continue;
        err e = ERR("%s: \"%.*s\" is not an option", name, (int)MIN(n, (size_t)60), item);
        const char *dot = memchr(item, '.', n);
        char head_text[64], key[64];
        size_t head = dot ? (size_t)(dot - item) : n;
        snprintf(head_text, sizeof head_text, "%.*s", (int)head, item);
        snprintf(key, sizeof key, "%.*s", (int)(n - head - (dot != NULL)),
                 item + head + (dot != NULL));
        return dot ? option_suggest(e, head_text, key) : option_suggest(e, NULL, head_text);
    }
    return OK;
}
