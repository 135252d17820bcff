/* The command line of every command: what is an option, what is its value, what is a word. */
#include <string.h>

#include "util/util.h"

bool args_parse_bool(const char *text, bool *out) {
    static const char *const names[] = { "false", "true", "no", "yes", "off", "on" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *out = i % 2;
            return true;
        }
    return false;
}

enum { NAME_BYTES = 64 };
/* One argument, taken apart: --name=value is { "--name", name "name", value "value" }. */
typedef struct argument {
    char label[NAME_BYTES + 2];
    const char *name;  /* in label, without the dashes */
    const char *value; /* after "="; NULL: none */
} argument;

static err take_apart(const char *text, argument *out) {
    const char *equals = strchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : strlen(text);
    if (n >= sizeof out->label) return ERR("%.40s...: unknown option", text);
    memcpy(out->label, text, n);
    out->label[n] = '\0';
    out->name = out->label + strspn(out->label, "-");
    out->value = equals ? equals + 1 : NULL;
    return OK;
}

/* @param i moves to the last argument used. */
static err parse_option(const args_grammar *g, int argc, char **argv, int *i) {
    argument a;
    args_option o = { 0 };
    bool b;
    TRY(take_apart(argv[*i], &a));
    ptrdiff_t dashes = strlen(a.name) == 1 ? 1 : 2; /* of a letter, of a name */
    if (a.name - a.label != dashes || !g->find(g->ctx, a.name, &o))
        return g->unknown(g->ctx, ERR("%s: unknown option", a.label), a.name);
    if (o.kind == ARGS_FLAG) {
        if (a.value) return ERR("%s: takes no value; got \"%.100s\"", a.label, a.value);
        return g->set(g->ctx, &o, a.label, NULL);
    }
    bool next_is_bool = *i + 1 < argc && args_parse_bool(argv[*i + 1], &b);
    if (o.kind == ARGS_SWITCH && !a.value && !next_is_bool) a.value = "true";
    if (!a.value && *i + 1 >= argc)
        return err_hint(ERR("%s: expected a value; got the end of the command line", a.label),
                        "write %s=%s", a.label, o.example);
    if (!a.value) a.value = argv[++*i];
    return g->set(g->ctx, &o, a.label, a.value);
}

static err parse_all(const args_grammar *g, int argc, char **argv) {
    bool words_only = false;
    for (int i = 0; i < argc; i++) {
        if (!words_only && strcmp(argv[i], "--") == 0)
            words_only = true;
        else if (!words_only && argv[i][0] == '-' && argv[i][1])
            TRY(parse_option(g, argc, argv, &i));
        else
            TRY(g->word(g->ctx, argv[i]));
    }
    return OK;
}

err args_parse(const args_grammar *g, int argc, char **argv) {
    err e = parse_all(g, argc, argv);
    return e ? err_usage(err_trail(e, __FILE__, __LINE__)) : OK;
}
